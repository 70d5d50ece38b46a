//! Both sides prove that they have the token, and neither sends it.
//!
//! ```text
//! client ── Hello: client nonce ─────────────────────────────────────────────► server
//! client ◄── Challenge: server nonce, the token's fingerprint ───────────────── server
//! client ── Authenticate: HMAC(token, "client", both nonces) ────────────────► server
//! client ◄── Welcome: HMAC(token, "server", both nonces), or Refused ────────── server
//! ```
//!
//! The server proves itself only after the client did, so a stranger learns nothing that a token could be guessed
//! against; a client that meets an impostor gives away one HMAC, which is why generated tokens have 160 random bits
//! and short ones are refused. The nonces are fresh on both sides: a recorded conversation is worth nothing.
//!
//! What this does not do: RoCEv2 packets are neither encrypted nor authenticated, so who can read and forge packets
//! *on the path* can read and forge data, as on any RDMA fabric. rkeys and QP numbers are all that such a one has
//! to know.

pub use remanence_auth::crowd::{Crowd, Room};
pub use remanence_auth::policy::{AccessPolicy, ChallengeName, Credential, Refusal, Verdict, name};
pub use remanence_auth::{BadToken, Fingerprint, Gate, MAX_TOKEN, MIN_TOKEN, Nonce, Proof, Token};

/// The side that proves that it has the token. The proof of one is worth nothing as that of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client, which connects and proves first.
    Client,
    /// The server, which exports a pool and proves itself only to a client that has.
    Server,
}

impl Side {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Client => b"remanence pool 1 client",
            Self::Server => b"remanence pool 1 server",
        }
    }

    /// Proves that this side has the token.
    #[must_use]
    pub fn prove(self, token: &Token, client: &Nonce, server: &Nonce) -> Proof {
        token.prove(self.label(), &[client, server])
    }

    /// Checks the proof of that side, in a time that does not depend on where it is wrong.
    #[must_use]
    pub fn verify(self, token: &Token, client: &Nonce, server: &Nonce, proof: &Proof) -> bool {
        token.verify(self.label(), &[client, server], proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_side_and_one_pair_of_nonces() {
        let (ours, c, s) = (Token::new("correct-horse-battery").expect("a fair token"), [1; 32], [2; 32]);
        let proof = Side::Client.prove(&ours, &c, &s);
        assert!(Side::Client.verify(&ours, &c, &s, &proof));
        assert!(!Side::Server.verify(&ours, &c, &s, &proof));
        assert!(!Side::Client.verify(&ours, &s, &c, &proof));
    }
}
