//! Who is let in: a stranger asks for a challenge, and comes back with a proof that it has the token.
//!
//! The rules that every protocol of ours has in common; how requests and proofs travel, and what else a proof is bound to,
//! is the protocol's business. Nothing is kept of a stranger but its challenge: it is good for one proof, from the address
//! that it was given to, for [`PATIENCE`]. A recorded conversation is worth nothing.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::{Gate, Nonce, Role, Token};

/// How long a challenge may be answered.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Challenges that wait for their answers at most; beyond, the oldest is forgotten.
pub const PENDING_MAX: usize = 1024;
/// Of them from one address at most.
pub const PENDING_EACH: usize = 64;

/// The first bytes of a server's nonce, by which a client names the challenge that it answers.
pub type ChallengeName = [u8; 8];

/// The name of a challenge.
#[must_use]
pub fn name(server: &Nonce) -> ChallengeName {
    server[..8].try_into().expect("8 of 32 bytes")
}

/// What somebody has to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credential {
    /// Nothing: it has no token.
    Nothing,
    /// It has a token, and asks for a challenge with a nonce of its own.
    Nonce(Nonce),
    /// The proof that this challenge asked for.
    Proof(ChallengeName),
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It is heard: no token is asked for.
    Open,
    /// It is heard: it has the token, and proved it in this conversation.
    Admit {
        /// What both have.
        token: Token,
        /// What it may do: which of the tokens it has says so.
        role: Role,
        /// What the client drew.
        client: Nonce,
        /// What the server drew.
        server: Nonce,
    },
    /// It is not heard, or not yet.
    Refuse(Refusal),
}

/// Why somebody is not let in, or not yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It has to prove that it has the token, with this nonce of the server's.
    Challenge(Nonce),
    /// It showed no token, and one is asked for.
    TokenNeeded,
    /// Its token is another one.
    WrongToken,
    /// It has a token, and the server has none that it could prove to have.
    NoToken,
    /// The challenge is not known: it comes too late, for the second time, or from elsewhere.
    Late,
    /// Too many wrong proofs came from its address: so long it has to wait.
    Wait(Duration),
}

#[derive(Debug)]
struct Pending {
    client: Nonce,
    server: Nonce,
    from: IpAddr,
    since: Duration,
}

/// The server's side: judges requests.
#[derive(Debug)]
pub struct AccessPolicy {
    /// None: everybody is let in.
    tokens: Vec<(Token, Role)>,
    gate: Gate,
    pending: BTreeMap<ChallengeName, Pending>,
    /// The oldest first; those that were answered are skipped.
    order: VecDeque<ChallengeName>,
    wrong: u64,
}

impl AccessPolicy {
    /// Without a token everybody is let in.
    #[must_use]
    pub fn new(token: Option<Token>) -> Self {
        let tokens = token.into_iter().map(|token| (token, Role::Writer)).collect();
        Self { tokens, gate: Gate::default(), pending: BTreeMap::new(), order: VecDeque::new(), wrong: 0 }
    }

    /// Who has this token is let in, too, to look.
    #[must_use]
    pub fn readers(mut self, token: Token) -> Self {
        self.tokens.push((token, Role::Reader));
        self
    }

    /// Proofs that were wrong so far.
    #[must_use]
    pub const fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Whether a token is asked for.
    #[must_use]
    pub const fn is_guarded(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Judges a request. `now` counts from whenever the caller likes; `fresh` was never drawn before, and nobody can have
    /// foreseen it; `right` says whether a proof is the one that a client with this token gives in a conversation with these
    /// nonces, the client's first.
    pub fn judge(
        &mut self,
        now: Duration,
        fresh: Nonce,
        from: IpAddr,
        credential: &Credential,
        mut right: impl FnMut(&Token, &Nonce, &Nonce) -> bool,
    ) -> Verdict {
        if !self.is_guarded() {
            return match credential {
                Credential::Nothing => Verdict::Open,
                Credential::Nonce(_) | Credential::Proof(_) => Verdict::Refuse(Refusal::NoToken),
            };
        }
        if *credential == Credential::Nothing {
            return Verdict::Refuse(Refusal::TokenNeeded);
        }
        if let Err(wait) = self.gate.admit(now, from) {
            return Verdict::Refuse(Refusal::Wait(wait));
        }
        match *credential {
            Credential::Nothing => unreachable!("seen above"),
            Credential::Nonce(client) => {
                self.remember(Pending { client, server: fresh, from, since: now });
                Verdict::Refuse(Refusal::Challenge(fresh))
            }
            Credential::Proof(challenge) => {
                let Some(Pending { client, server, .. }) = self.take(now, from, challenge) else {
                    return Verdict::Refuse(Refusal::Late);
                };
                let proven = self.tokens.iter().find(|(token, _)| right(token, &client, &server));
                let Some((token, role)) = proven.cloned() else {
                    self.wrong += 1;
                    self.gate.failed(now, from);
                    return Verdict::Refuse(Refusal::WrongToken);
                };
                self.gate.succeeded(from);
                Verdict::Admit { token, role, client, server }
            }
        }
    }

    /// A challenge is gone whatever becomes of the proof: nobody tries twice on one. But only the one whom it was given to
    /// uses it up, so that nobody makes others wait at the gate.
    fn take(&mut self, now: Duration, from: IpAddr, challenge: ChallengeName) -> Option<Pending> {
        self.pending.get(&challenge).filter(|p| p.from == from)?;
        self.pending.remove(&challenge).filter(|p| now < p.since + PATIENCE)
    }

    fn remember(&mut self, new: Pending) {
        let over = |p: &Pending| new.since >= p.since + PATIENCE;
        while let Some(oldest) = self.order.front() {
            match self.pending.get(oldest) {
                Some(p) if !over(p) && self.pending.len() < PENDING_MAX => break,
                _ => {
                    let oldest = self.order.pop_front().expect("looked at just now");
                    self.pending.remove(&oldest);
                }
            }
        }
        // Who floods us drives out its own.
        let own = |name: &&ChallengeName| self.pending.get(*name).is_some_and(|p| p.from == new.from);
        if self.order.iter().filter(own).count() >= PENDING_EACH {
            let first = *self.order.iter().find(own).expect("there are many");
            self.pending.remove(&first);
        }
        // Answered ones are only skipped at the front; behind it they may not pile up.
        if self.order.len() >= 2 * PENDING_MAX {
            self.order.retain(|name| self.pending.contains_key(name));
        }
        self.order.push_back(name(&new.server));
        self.pending.insert(name(&new.server), new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const THEIRS: Nonce = [9; 32];

    fn token(text: &str) -> Token {
        Token::new(text).expect("a fair token")
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn nonce(n: u64) -> Nonce {
        let mut nonce = [7; 32];
        nonce[..8].copy_from_slice(&n.to_be_bytes());
        nonce
    }

    /// A server with a token, and numbers that are used once.
    struct World {
        policy: AccessPolicy,
        drawn: u64,
    }

    impl World {
        fn new() -> Self {
            Self { policy: AccessPolicy::new(Some(token("correct-horse-battery"))), drawn: 0 }
        }

        fn judge(&mut self, now: Duration, from: IpAddr, credential: Credential, right: bool) -> Verdict {
            self.drawn += 1;
            self.policy.judge(now, nonce(self.drawn), from, &credential, |_, _, _| right)
        }

        fn refused(&mut self, now: Duration, from: IpAddr, credential: Credential, right: bool) -> Refusal {
            match self.judge(now, from, credential, right) {
                Verdict::Refuse(why) => why,
                other => panic!("{other:?}"),
            }
        }

        fn challenge(&mut self, now: Duration, from: IpAddr) -> Credential {
            match self.refused(now, from, Credential::Nonce(THEIRS), false) {
                Refusal::Challenge(ours) => Credential::Proof(name(&ours)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_proof_is_judged_by_the_token_and_the_numbers_of_its_own_conversation() {
        let mut world = World::new();
        let (first, second) = (world.challenge(NOW, address(2)), world.challenge(NOW, address(2)));
        for (credential, drawn) in [(second, 2), (first, 1)] {
            let verdict =
                world.policy.judge(NOW, nonce(9), address(2), &credential, |with, client, server| {
                    assert_eq!(
                        (with.secret(), *client, *server),
                        ("correct-horse-battery", THEIRS, nonce(drawn))
                    );
                    true
                });
            let Verdict::Admit { client, server, .. } = verdict else { panic!("{verdict:?}") };
            assert_eq!((client, server), (THEIRS, nonce(drawn)));
        }
        assert!(world.policy.is_guarded() && world.policy.wrong() == 0);
    }

    #[test]
    fn a_challenge_is_good_once_for_a_while_and_for_whom_it_was_given_to() {
        let mut world = World::new();
        let credential = world.challenge(NOW, address(2));
        assert!(matches!(world.judge(NOW, address(2), credential, true), Verdict::Admit { .. }));
        assert_eq!(world.refused(NOW, address(2), credential, true), Refusal::Late, "for the second time");
        let credential = world.challenge(NOW, address(2));
        assert_eq!(world.refused(NOW + PATIENCE, address(2), credential, true), Refusal::Late, "too late");
        let credential = world.challenge(NOW, address(2));
        assert_eq!(world.refused(NOW, address(3), credential, false), Refusal::Late, "somebody else's");
        assert_eq!(world.policy.wrong(), 0, "it says nothing of who owns it");
        assert!(
            matches!(world.judge(NOW, address(2), credential, true), Verdict::Admit { .. }),
            "it is still there"
        );
        // A wrong proof uses it up.
        let credential = world.challenge(NOW, address(2));
        assert_eq!(world.refused(NOW, address(2), credential, false), Refusal::WrongToken);
        assert_eq!(world.refused(NOW, address(2), credential, true), Refusal::Late);
        assert_eq!(world.policy.wrong(), 1);
        assert_eq!(
            world.refused(NOW, address(2), Credential::Proof([1; 8]), true),
            Refusal::Late,
            "never given"
        );
    }

    #[test]
    fn who_shows_nothing_is_told_so_and_a_server_without_a_token_does_not_pretend_to_have_one() {
        let mut world = World::new();
        assert_eq!(world.refused(NOW, address(2), Credential::Nothing, true), Refusal::TokenNeeded);
        let mut open = World { policy: AccessPolicy::new(None), drawn: 0 };
        assert!(matches!(open.judge(NOW, address(2), Credential::Nothing, false), Verdict::Open));
        assert_eq!(open.refused(NOW, address(2), Credential::Nonce(THEIRS), true), Refusal::NoToken);
        assert_eq!(open.refused(NOW, address(2), Credential::Proof([0; 8]), true), Refusal::NoToken);
        assert!(!open.policy.is_guarded());
    }

    #[test]
    fn who_guesses_waits_and_others_do_not() {
        let mut world = World::new();
        for n in 0..=Gate::FREE {
            let credential = world.challenge(NOW, address(2));
            assert_eq!(world.refused(NOW, address(2), credential, false), Refusal::WrongToken, "{n}");
        }
        let second = Duration::from_secs(1);
        assert_eq!(world.refused(NOW, address(2), Credential::Nonce(THEIRS), true), Refusal::Wait(second));
        assert_eq!(world.refused(NOW, address(2), Credential::Proof([0; 8]), true), Refusal::Wait(second));
        assert_eq!(world.refused(NOW, address(2), Credential::Nothing, true), Refusal::TokenNeeded);
        let credential = world.challenge(NOW, address(3));
        assert!(matches!(world.judge(NOW, address(3), credential, true), Verdict::Admit { .. }));
        // Who mistyped, and then did not, begins anew.
        let credential = world.challenge(NOW + second, address(2));
        assert!(matches!(world.judge(NOW + second, address(2), credential, true), Verdict::Admit { .. }));
        let credential = world.challenge(NOW + second, address(2));
        assert_eq!(world.refused(NOW + second, address(2), credential, false), Refusal::WrongToken);
        let _ = world.challenge(NOW + second, address(2));
    }

    #[test]
    fn a_flood_of_strangers_takes_no_more_memory_than_agreed_and_drives_out_its_own() {
        let mut world = World::new();
        let honest = world.challenge(NOW, address(2));
        for _ in 0..3 * PENDING_MAX {
            let _ = world.challenge(NOW, address(3));
        }
        assert!(world.policy.pending.len() <= PENDING_EACH + 1);
        assert!(world.policy.order.len() <= 2 * PENDING_MAX);
        assert!(matches!(world.judge(NOW, address(2), honest, true), Verdict::Admit { .. }));
        for n in 0..3 * PENDING_MAX as u32 {
            let _ = world.challenge(NOW, std::net::Ipv4Addr::from(n).into());
        }
        assert!(world.policy.pending.len() <= PENDING_MAX);
        assert!(world.policy.order.len() <= 2 * PENDING_MAX);
        // When all of them are over nothing is left.
        let _ = world.challenge(NOW + PATIENCE, address(2));
        assert_eq!(world.policy.pending.len(), 1);
    }
}
