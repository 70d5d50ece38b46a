//! What a client and one server say to each other, without what carries it: how both prove the token ([`Introduction`]), then numbered requests,
//! work under way, and when a server that is silent is given up ([`Dialogue`]). Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::error::LossReason;
use super::network::{Happened, NOBODY, Tag};
use crate::auth::{Nonce, Side, Token};
use crate::proto::{Code, PoolInfo, Reply, Request, WINDOW};

/// Work requests on the data QP at most; each piece of a chunk and each FLUSH is one.
pub const DATA_DEPTH: usize = 128;

/// A server with work to do that said nothing for so long is asked for a sign of life.
const SILENCE: Duration = Duration::from_millis(300);

/// A reply that does not fit the request: a refusal, or nonsense.
pub(super) fn unexpected(reply: Reply) -> LossReason {
    match reply {
        Reply::Refused { code: Code::WrongToken, .. } => LossReason::WrongToken,
        Reply::Refused { code, reason } => LossReason::Refused { code, reason },
        _ => LossReason::Nonsense,
    }
}

/// Both sides prove that they have the token: `crate::auth` has the argument.
#[derive(Debug)]
pub struct Introduction {
    ours: Nonce,
    /// The token that was chosen, and the server's nonce.
    proven: Option<(Token, Nonce)>,
}

/// What follows a reply to an [`Introduction`].
#[derive(Debug)]
pub enum Introduced {
    /// This is to be asked next.
    Ask(Request),
    /// The server has the token too.
    Welcome {
        /// What the data QP has to show when it connects.
        ticket: [u8; 16],
        /// What the server is.
        info: PoolInfo,
    },
}

impl Introduction {
    /// By a client with this nonce; and what it asks first.
    #[must_use]
    pub const fn new(nonce: Nonce) -> (Self, Request) {
        (Self { ours: nonce, proven: None }, Request::Hello { nonce })
    }

    /// The server has replied.
    ///
    /// # Errors
    /// It is of no use: its token is none of these, or it did not prove that it has it, or it has refused.
    pub fn replied(&mut self, reply: Reply, tokens: &[Token]) -> Result<Introduced, LossReason> {
        match (&self.proven, reply) {
            (None, Reply::Challenge { nonce, fingerprint }) => {
                let token = tokens.iter().find(|token| token.fingerprint() == fingerprint);
                let token = token.ok_or(LossReason::WrongToken)?;
                let proof = Side::Client.prove(token, &self.ours, &nonce);
                self.proven = Some((token.clone(), nonce));
                Ok(Introduced::Ask(Request::Authenticate { proof }))
            }
            (Some((token, theirs)), Reply::Welcome { proof, ticket, info }) => {
                match Side::Server.verify(token, &self.ours, theirs, &proof) {
                    true => Ok(Introduced::Welcome { ticket, info }),
                    false => Err(LossReason::Impostor),
                }
            }
            (_, other) => Err(unexpected(other)),
        }
    }
}

/// Requests and work of one client for one server.
///
/// Requests go over the control QP, which never waits behind a FLUSH. So a server that does not answer there is gone, and not just busy: while it
/// has something to do it is asked for a sign of life when it is silent, and is given up when it leaves something unanswered for too long.
#[derive(Debug)]
pub struct Dialogue {
    next_number: u32,
    unanswered: BTreeMap<u32, Tag>,
    unsent: VecDeque<(Request, Tag)>,
    /// Work requests on the data QP, in the order in which they will complete.
    in_flight: VecDeque<Tag>,
    heard: Duration,
    /// When its program answered last, or began to owe an answer, and how long it may take for the next one.
    answered: Duration,
    answer_limit: Duration,
    /// That was over when somebody looked, who may not have looked for long: what has come lies in the queue then.
    late: bool,
    /// When somebody looks whether it is silent. It is not moved at each sign of life, but when it is over.
    deadline: Option<Duration>,
    pinged: bool,
}

impl Dialogue {
    /// With a server that may leave a request unanswered for so long.
    #[must_use]
    pub const fn new(now: Duration, answer_limit: Duration) -> Self {
        Self {
            next_number: 1,
            unanswered: BTreeMap::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            heard: now,
            answered: now,
            answer_limit,
            late: false,
            deadline: None,
            pinged: false,
        }
    }

    /// A request is to be sent, when it may be: see [`next_message`](Self::next_message).
    pub fn ask(&mut self, now: Duration, request: Request, tag: Tag) {
        self.unsent.push_back((request, tag));
        self.watch(now, now);
    }

    /// The next message, if one may be sent now: that depends on how many the server has not answered.
    pub fn next_message(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.unanswered.len() >= WINDOW {
            return None;
        }
        let (request, tag) = self.unsent.pop_front()?;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        if self.unanswered.is_empty() {
            (self.answered, self.late) = (now, false);
        }
        self.unanswered.insert(number, tag);
        Some(request.emit(number))
    }

    /// The device of the server has given a sign of life.
    pub const fn hears(&mut self, now: Duration) {
        self.heard = now;
    }

    /// A message has come: what it replies to, if anybody wants to know.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn replied(&mut self, now: Duration, message: &[u8]) -> Result<Option<Happened>, LossReason> {
        self.heard = now;
        let (number, reply) = Reply::parse(message).map_err(|_| LossReason::Nonsense)?;
        let tag = self.unanswered.remove(&number).ok_or(LossReason::Nonsense)?;
        (self.answered, self.late) = (now, false);
        if tag == NOBODY {
            (self.pinged, self.deadline) = (false, None);
            self.watch(now, now);
            return Ok(None);
        }
        Ok(Some(Happened::Replied(tag, reply)))
    }

    /// How many work requests the data QP takes now.
    #[must_use]
    pub fn budget(&self) -> usize {
        DATA_DEPTH - self.in_flight.len()
    }

    /// A work request was posted on the data QP.
    pub fn posted(&mut self, now: Duration, tag: Tag) {
        self.in_flight.push_back(tag);
        self.watch(now, now);
    }

    /// The oldest of them has completed.
    ///
    /// # Errors
    /// There is none.
    pub fn completed(&mut self, now: Duration) -> Result<Happened, LossReason> {
        self.heard = now;
        self.in_flight.pop_front().map(Happened::Completed).ok_or(LossReason::Nonsense)
    }

    /// When [`due`](Self::due) is to be called.
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Whether the server has something to do for us.
    fn is_busy(&self) -> bool {
        !self.unanswered.is_empty() || !self.in_flight.is_empty() || !self.unsent.is_empty()
    }

    /// While the server has something to do for us, somebody looks in time whether it has been silent since then, or has left something
    /// unanswered for too long.
    fn watch(&mut self, now: Duration, since: Duration) {
        if self.deadline.is_some() {
            return;
        }
        let silence = (self.is_busy() && !self.pinged && !self.late).then(|| since + SILENCE);
        let owes_since = if self.unanswered.is_empty() { now } else { self.answered };
        let limit = if self.late { now + SILENCE } else { owes_since + self.answer_limit };
        let answer = (!self.unanswered.is_empty() || !self.unsent.is_empty()).then_some(limit);
        self.deadline = [silence, answer].into_iter().flatten().min();
    }

    /// Asks a silent server for a sign of life. The acknowledgement of the SEND is one already, of its device; the reply shows that its
    /// program is not stuck, and it is given up if nothing is answered in time.
    ///
    /// # Errors
    /// It is given up.
    pub fn due(&mut self, now: Duration) -> Result<(), LossReason> {
        self.deadline = None;
        if !self.unanswered.is_empty() && now >= self.answered + self.answer_limit {
            if self.late {
                return Err(LossReason::Stuck(self.answer_limit));
            }
            self.late = true;
        }
        if self.is_busy() && !self.pinged && now >= self.heard + SILENCE {
            self.pinged = true;
            self.ask(now, Request::Ping, NOBODY);
        }
        self.watch(now, self.heard);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);
    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn no_more_requests_are_unanswered_than_was_agreed() {
        let mut dialogue = Dialogue::new(Duration::ZERO, LIMIT);
        (0..WINDOW as u64 + 2).for_each(|tag| dialogue.ask(Duration::ZERO, Request::Stat, tag));
        let sent: Vec<Vec<u8>> = std::iter::from_fn(|| dialogue.next_message(Duration::ZERO)).collect();
        assert_eq!(sent.len(), WINDOW);
        let reply = Reply::Done.emit(Request::parse(&sent[3]).expect("sound").0);
        let happened = dialogue.replied(SOON, &reply);
        assert!(matches!(happened, Ok(Some(Happened::Replied(3, Reply::Done)))), "{happened:?}");
        assert!(dialogue.next_message(SOON).is_some() && dialogue.next_message(SOON).is_none());
        assert!(matches!(dialogue.replied(SOON, &reply), Err(LossReason::Nonsense)), "nobody has asked");
        assert!(matches!(dialogue.completed(SOON), Err(LossReason::Nonsense)), "nothing was posted");
    }

    #[test]
    fn a_silent_server_is_asked_for_a_sign_of_life_and_given_up_if_it_owes_an_answer_for_too_long() {
        let mut dialogue = Dialogue::new(Duration::ZERO, LIMIT);
        let ping = |dialogue: &mut Dialogue, now| {
            dialogue.due(now).expect("it may be busy");
            let message = dialogue.next_message(now).expect("it is asked");
            let (number, request) = Request::parse(&message).expect("sound");
            assert_eq!((request, dialogue.next_message(now)), (Request::Ping, None));
            number
        };
        assert_eq!(dialogue.deadline(), None, "it has nothing to do");
        dialogue.posted(Duration::ZERO, 7);
        assert_eq!(dialogue.deadline(), Some(SILENCE));
        let number = ping(&mut dialogue, SILENCE);
        let now = SILENCE + SOON;
        assert!(matches!(dialogue.replied(now, &Reply::Done.emit(number)), Ok(None)), "nobody waits for it");
        assert_eq!(dialogue.deadline(), Some(now + SILENCE));
        let asked = now + SILENCE;
        ping(&mut dialogue, asked);
        // Its device goes on.
        assert!(matches!(dialogue.completed(asked + SOON), Ok(Happened::Completed(7))));
        let late = asked + LIMIT;
        assert_eq!(dialogue.deadline(), Some(late));
        dialogue.due(late).expect("nobody may have looked for long");
        assert_eq!((dialogue.next_message(late), dialogue.deadline()), (None, Some(late + SILENCE)));
        assert!(matches!(dialogue.due(late + SILENCE), Err(LossReason::Stuck(LIMIT))));
    }

    #[test]
    fn a_server_that_has_none_of_our_tokens_or_proves_nothing_is_left() {
        let [ours, other] =
            ["correct-horse-battery", "another-horse-battery"].map(|text| Token::new(text).expect("fair"));
        let (tokens, theirs) = ([ours.clone()], [2; 32]);
        let challenge = |token: &Token| Reply::Challenge { nonce: theirs, fingerprint: token.fingerprint() };
        let (mut introduction, hello) = Introduction::new([1; 32]);
        assert_eq!(hello, Request::Hello { nonce: [1; 32] });
        let strange = introduction.replied(challenge(&other), &tokens);
        assert!(matches!(strange, Err(LossReason::WrongToken)), "{strange:?}");
        let Ok(Introduced::Ask(Request::Authenticate { proof })) =
            introduction.replied(challenge(&ours), &tokens)
        else {
            panic!("the token is right");
        };
        assert!(Side::Client.verify(&ours, &[1; 32], &theirs, &proof));
        let welcome = |proof| Reply::Welcome { proof, ticket: [3; 16], info: PoolInfo::unknown() };
        let repeats = introduction.replied(welcome(proof), &tokens);
        assert!(matches!(repeats, Err(LossReason::Impostor)), "{repeats:?}");
        let proof = Side::Server.prove(&ours, &[1; 32], &theirs);
        let proves = introduction.replied(welcome(proof), &tokens);
        assert!(matches!(proves, Ok(Introduced::Welcome { ticket: [3, ..], .. })), "{proves:?}");
    }
}
