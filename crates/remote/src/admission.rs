//! Who may have a session: client and server prove to each other that they have the token, before anything is told.
//!
//! ```text
//! client ── REQ: Hello, client nonce ────────────────────────────────────────────────► server
//! client ◄── REJ: challenge, server nonce ──────────────────────────────────────────── server
//! client ── REQ: Hello, HMAC(token, "client", nonces, ends, what the Hello declares) ► server
//! client ◄── REP: Welcome, HMAC(token, "server", nonces, ends, the Welcome) ────────── server
//! ```
//!
//! Up to the last step the client is a stranger: it has no QP at the server, no session, and has heard neither of keys nor of
//! addresses nor of what the server is. *ends* are the client's address and QP and the server's address and port, so that
//! nobody in between can pass a proof on for a connection of its own. Who is challenged and who is let in, and for how long a
//! challenge is good, is [`remanence_auth::policy`]'s business: a recorded conversation is worth nothing. A client that has a token goes on with nobody who
//! does not prove to have it too, so that an impostor cannot talk it out of it.
//!
//! A server may have a second token, for readers. Which of the two a proof was made with decides what its client may do
//! ([`Role`]); the client does not ask for a role, it learns it from the Welcome.
//!
//! What this does not do: nothing that follows is authenticated; see `remanence_auth`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use remanence_auth::policy::{self, AccessPolicy, Credential, Refusal};
use remanence_auth::{Nonce, Proof, Role, Token};

use crate::hello::{Credentials, Hello, Rejection, WELCOME_PROOF};

const CLIENT: &[u8] = b"remanence remote 2 client";
const SERVER: &[u8] = b"remanence remote 2 server";

/// What a proof is bound to: both ends of the connection that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// From where the client asks.
    pub client: IpAddr,
    /// The number of its QP.
    pub qpn: u32,
    /// The address and port of the server that the client asks.
    pub server: SocketAddr,
}

impl Ends {
    fn bytes(&self) -> [u8; 38] {
        let v6 = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let mut b = [0; 38];
        b[..16].copy_from_slice(&v6(self.client));
        b[16..20].copy_from_slice(&self.qpn.to_be_bytes());
        b[20..36].copy_from_slice(&v6(self.server.ip()));
        b[36..].copy_from_slice(&self.server.port().to_be_bytes());
        b
    }
}

/// What both sides know of one conversation.
#[derive(Clone, Debug)]
pub struct Transcript {
    token: Token,
    client: Nonce,
    server: Nonce,
    ends: Ends,
}

impl Transcript {
    /// The conversation of a client that drew `client` and was challenged with `server`.
    #[must_use]
    pub const fn new(token: Token, client: Nonce, server: Nonce, ends: Ends) -> Self {
        Self { token, client, server, ends }
    }

    /// The Hello that answers the challenge.
    #[must_use]
    pub fn answer(&self, hello: &Hello) -> Hello {
        let proof = self.token.prove(CLIENT, &self.bound(&self.ends.bytes(), &hello.declaration()));
        Hello { credentials: Credentials::Proof { challenge: policy::name(&self.server), proof }, ..*hello }
    }

    fn is_answered(&self, hello: &Hello, proof: &Proof) -> bool {
        self.token.verify(CLIENT, &self.bound(&self.ends.bytes(), &hello.declaration()), proof)
    }

    /// Puts the server's proof into an emitted Welcome.
    ///
    /// # Panics
    /// If it is none.
    pub fn seal(&self, welcome: &mut [u8]) {
        welcome[WELCOME_PROOF].fill(0);
        let proof = self.token.prove(SERVER, &self.bound(&self.ends.bytes(), stripped(welcome)));
        welcome[WELCOME_PROOF].copy_from_slice(&proof);
    }

    /// Whether who sent this Welcome has the token, and sent it for this conversation.
    #[must_use]
    pub fn is_sealed(&self, welcome: &[u8]) -> bool {
        let mut bare = welcome.to_vec();
        let Some(field) = bare.get_mut(WELCOME_PROOF) else { return false };
        let proof: Proof = (&*field).try_into().expect("as long as a proof");
        field.fill(0);
        self.token.verify(SERVER, &self.bound(&self.ends.bytes(), stripped(&bare)), &proof)
    }

    fn bound<'a>(&'a self, ends: &'a [u8], last: &'a [u8]) -> [&'a [u8]; 4] {
        [&self.client, &self.server, ends, last]
    }
}

/// The connection manager pads private data with zeros; nobody says more by more of them.
fn stripped(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It is heard, and may do so much; with a token, its Welcome is [sealed](Transcript::seal).
    Admit(Role, Option<Transcript>),
    /// It is not.
    Reject(Rejection),
}

/// The server's side: judges requests.
pub struct Admission {
    policy: AccessPolicy,
}

impl Admission {
    /// Without a token everybody is admitted, and may write.
    #[must_use]
    pub fn new(token: Option<Token>) -> Self {
        Self { policy: AccessPolicy::new(token) }
    }

    /// Who has this token may read.
    #[must_use]
    pub fn readers(self, token: Token) -> Self {
        Self { policy: self.policy.readers(token) }
    }

    /// Proofs that were wrong so far.
    #[must_use]
    pub const fn wrong(&self) -> u64 {
        self.policy.wrong()
    }

    /// Judges a request. `now` counts from whenever the caller likes; `fresh` was never drawn before.
    pub fn judge(&mut self, now: Duration, fresh: Nonce, ends: &Ends, hello: &Hello) -> Verdict {
        let (credential, proof) = match hello.credentials {
            Credentials::None => (Credential::Nothing, None),
            Credentials::Nonce(client) => (Credential::Nonce(client), None),
            Credentials::Proof { challenge, proof } => (Credential::Proof(challenge), Some(proof)),
        };
        let bond = |token: &Token, client: &Nonce, server: &Nonce| {
            Transcript::new(token.clone(), *client, *server, *ends)
        };
        let verdict = self.policy.judge(now, fresh, ends.client, &credential, |token, client, server| {
            proof.is_some_and(|proof| bond(token, client, server).is_answered(hello, &proof))
        });
        match verdict {
            policy::Verdict::Open => Verdict::Admit(Role::Writer, None),
            policy::Verdict::Admit { token, role, client, server } => {
                Verdict::Admit(role, Some(bond(&token, &client, &server)))
            }
            policy::Verdict::Refuse(why) => Verdict::Reject(match why {
                Refusal::Challenge(ours) => Rejection::Challenge(ours),
                Refusal::TokenNeeded => Rejection::TokenNeeded,
                Refusal::WrongToken => Rejection::WrongToken,
                Refusal::NoToken => Rejection::Open,
                Refusal::Late => Rejection::Sentence(
                    "the proof comes too late, or for the second time; connect again".into(),
                ),
                Refusal::Wait(wait) => Rejection::Sentence(format!(
                    "too many wrong tokens came from {}; try again in {} s",
                    ends.client,
                    wait.as_secs() + 1
                )),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use remanence_persist::Config;
    use remanence_persist::taxonomy::Domain;

    use super::*;
    use crate::hello::tests::welcome;

    const NOW: Duration = Duration::from_secs(100);

    fn token(text: &str) -> Token {
        Token::new(text).expect("a fair token")
    }

    fn ends(last: u8) -> Ends {
        Ends { client: [10, 0, 0, last].into(), qpn: 17, server: ([10, 0, 0, 1], 7471).into() }
    }

    fn nonce(n: u64) -> Nonce {
        let mut nonce = [7; 32];
        nonce[..8].copy_from_slice(&n.to_be_bytes());
        nonce
    }

    /// A server, and numbers that are used once.
    struct World {
        admission: Admission,
        drawn: u64,
    }

    impl World {
        fn new(text: &str) -> Self {
            Self { admission: Admission::new(Some(token(text))), drawn: 0 }
        }

        fn judge(&mut self, now: Duration, ends: &Ends, hello: &Hello) -> Verdict {
            self.drawn += 1;
            self.admission.judge(now, nonce(self.drawn), ends, hello)
        }

        fn challenge(&mut self, now: Duration, ends: &Ends) -> Nonce {
            match self.judge(now, ends, &first()) {
                Verdict::Reject(Rejection::Challenge(theirs)) => theirs,
                other => panic!("{other:?}"),
            }
        }
    }

    fn first() -> Hello {
        Hello { declared: Some(Config::SAFE), credentials: Credentials::Nonce(nonce(u64::MAX)) }
    }

    fn bond(text: &str, theirs: Nonce, ends: Ends) -> Transcript {
        Transcript::new(token(text), nonce(u64::MAX), theirs, ends)
    }

    fn proof_of(hello: &Hello) -> Proof {
        match hello.credentials {
            Credentials::Proof { proof, .. } => proof,
            other => panic!("{other:?}"),
        }
    }

    const OURS: &str = "correct-horse-battery";

    #[test]
    fn who_has_the_token_is_admitted_and_hears_a_welcome_for_itself_alone() {
        let mut world = World::new(OURS);
        let theirs = world.challenge(NOW, &ends(2));
        let bond = bond(OURS, theirs, ends(2));
        let Verdict::Admit(Role::Writer, Some(server)) = world.judge(NOW, &ends(2), &bond.answer(&first()))
        else {
            panic!("not admitted")
        };
        let mut bytes = welcome().emit();
        assert!(!bond.is_sealed(&bytes), "nobody has proven anything");
        server.seal(&mut bytes);
        assert!(bond.is_sealed(&bytes));
        let mut padded = bytes.clone();
        padded.resize(196, 0);
        assert!(bond.is_sealed(&padded), "as the connection manager hands it out");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(!bond.is_sealed(&bad), "byte {at} may be changed on the way");
        }
        let other = Transcript::new(token(OURS), nonce(u64::MAX), theirs, ends(3));
        assert!(!other.is_sealed(&bytes));
    }

    #[test]
    fn the_token_that_was_proven_decides_what_its_client_may_do() {
        let reading = "readers-only-readers-only";
        let mut admission = Admission::new(Some(token(OURS))).readers(token(reading));
        let mut drawn = 0;
        let mut prove = |text: &str| {
            drawn += 2;
            let asked = admission.judge(NOW, nonce(drawn), &ends(2), &first());
            let Verdict::Reject(Rejection::Challenge(theirs)) = asked else { panic!("{asked:?}") };
            let bond = bond(text, theirs, ends(2));
            (admission.judge(NOW, nonce(drawn + 1), &ends(2), &bond.answer(&first())), bond)
        };
        for (text, expected) in [(OURS, Role::Writer), (reading, Role::Reader)] {
            let (Verdict::Admit(role, Some(server)), bond) = prove(text) else { panic!("not admitted") };
            assert_eq!(role, expected);
            // The server proves to have the very token that its client has.
            let mut bytes = welcome().emit();
            server.seal(&mut bytes);
            assert!(bond.is_sealed(&bytes));
        }
        let (neither, _) = prove("readers-only-readers-onlx");
        assert!(matches!(neither, Verdict::Reject(Rejection::WrongToken)), "{neither:?}");
        assert_eq!(admission.wrong(), 1, "one proof was wrong, and counted once");
    }

    #[test]
    fn no_token_and_a_wrong_one_are_told_apart_and_learn_nothing_else() {
        let mut world = World::new(OURS);
        let plain = Hello { declared: None, credentials: Credentials::None };
        assert!(matches!(world.judge(NOW, &ends(2), &plain), Verdict::Reject(Rejection::TokenNeeded)));
        let theirs = world.challenge(NOW, &ends(2));
        let wrong = bond("correct-horse-batterz", theirs, ends(2)).answer(&first());
        assert!(matches!(world.judge(NOW, &ends(2), &wrong), Verdict::Reject(Rejection::WrongToken)));
        assert_eq!(world.admission.wrong(), 1);
        // The right one does not help on a challenge that was answered already.
        let late = bond(OURS, theirs, ends(2)).answer(&first());
        assert!(matches!(world.judge(NOW, &ends(2), &late), Verdict::Reject(Rejection::Sentence(_))));
    }

    #[test]
    fn a_proof_is_good_once_for_a_while_and_for_one_connection() {
        let mut world = World::new(OURS);
        let theirs = world.challenge(NOW, &ends(2));
        let proof = bond(OURS, theirs, ends(2)).answer(&first());
        assert!(matches!(world.judge(NOW, &ends(2), &proof), Verdict::Admit(_, Some(_))));
        assert!(
            matches!(world.judge(NOW, &ends(2), &proof), Verdict::Reject(Rejection::Sentence(_))),
            "replayed"
        );
        let theirs = world.challenge(NOW, &ends(2));
        let proof = bond(OURS, theirs, ends(2)).answer(&first());
        let later = world.judge(NOW + policy::PATIENCE, &ends(2), &proof);
        assert!(matches!(later, Verdict::Reject(Rejection::Sentence(_))), "late");
        // Each of what it is bound to: the address, the QP, the server, what is declared.
        let elsewhere: [fn(&mut Ends, &mut Hello); 5] = [
            |ends, _| ends.client = [10, 0, 0, 3].into(),
            |ends, _| ends.qpn += 1,
            |ends, _| ends.server.set_port(1),
            |ends, _| ends.server.set_ip([10, 0, 0, 9].into()),
            |_, hello| hello.declared = None,
        ];
        for (n, change) in elsewhere.iter().enumerate() {
            // A gate of its own each time.
            let mut world = World::new(OURS);
            let theirs = world.challenge(NOW, &ends(2));
            let (mut at, mut hello) = (ends(2), bond(OURS, theirs, ends(2)).answer(&first()));
            change(&mut at, &mut hello);
            let verdict = world.judge(NOW, &at, &hello);
            // (The challenge was not given to another address at all.)
            let elsewhere = at.client != ends(2).client;
            let refused = match verdict {
                Verdict::Reject(Rejection::Sentence(_)) => elsewhere,
                Verdict::Reject(Rejection::WrongToken) => !elsewhere,
                _ => false,
            };
            assert!(refused, "{n}");
            // Nor is the proof itself: it is bound to the address too.
            assert!(!bond(OURS, theirs, at).is_answered(&hello, &proof_of(&hello)), "{n}");
        }
    }

    #[test]
    fn a_server_without_a_token_does_not_pretend_to_have_one() {
        let mut open = Admission::new(None);
        let plain = Hello { declared: None, credentials: Credentials::None };
        assert!(matches!(open.judge(NOW, nonce(1), &ends(2), &plain), Verdict::Admit(Role::Writer, None)));
        assert!(matches!(open.judge(NOW, nonce(2), &ends(2), &first()), Verdict::Reject(Rejection::Open)));
    }

    #[test]
    fn who_guesses_waits_and_others_do_not() {
        let mut world = World::new(OURS);
        for _ in 0..=remanence_auth::Gate::FREE {
            let theirs = world.challenge(NOW, &ends(2));
            let wrong = bond("correct-horse-batterz", theirs, ends(2)).answer(&first());
            assert!(matches!(world.judge(NOW, &ends(2), &wrong), Verdict::Reject(Rejection::WrongToken)));
        }
        match world.judge(NOW, &ends(2), &first()) {
            Verdict::Reject(Rejection::Sentence(why)) => {
                assert!(why.contains("too many wrong tokens"), "{why}")
            }
            other => panic!("{other:?}"),
        }
        let theirs = world.challenge(NOW, &ends(3));
        let right = bond(OURS, theirs, ends(3)).answer(&first());
        assert!(matches!(world.judge(NOW, &ends(3), &right), Verdict::Admit(_, Some(_))));
    }

    #[test]
    fn a_welcome_that_is_too_short_is_not_sealed() {
        let bond = bond(OURS, nonce(1), ends(2));
        assert!(!bond.is_sealed(b""));
        assert!(!bond.is_sealed(&welcome().emit()[..60]));
        assert_eq!(welcome().server, Config::software(Domain::Dmp));
    }
}
