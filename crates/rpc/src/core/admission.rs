//! Who gets a session: client and server prove to each other that they have the token, before a session exists.
//!
//! ```text
//! client ── Ask: client nonce ───────────────────────────────────────────────────► server
//! client ◄── Challenge: server nonce ───────────────────────────────────────────── server
//! client ── Prove: HMAC(token, "client", nonces, ends, this header) ─────────────► server
//! client ◄── Accept: HMAC(token, "server", nonces, ends, this header) ──────────── server
//! ```
//! *ends* are the client's address and QP and the server's QP, so that nobody in between can pass a proof on for a session of
//! its own. The headers have the numbers and the keys of both ends: a proof is good for one session. Each of the packets may be
//! lost, repeated or late. The client asks again, always with the nonce of this attempt; the server keeps nothing of a stranger
//! but its challenge ([`remanence_auth::policy`]), and says the same Accept again when the Prove of a session that it has comes
//! again. A Prove that comes after its challenge was used up or forgotten (the server started anew, or its refusal was lost)
//! makes the client ask anew, as long as its patience lasts.

use remanence_auth::{Nonce, Proof, Token, policy};
use remanence_wire::Qpn;

use crate::header::{ANSWER_LEN, Address, Repr};

const CLIENT: &[u8] = b"remanence rpc 2 client";
const SERVER: &[u8] = b"remanence rpc 2 server";

/// What both ends know of one attempt.
pub(super) struct Transcript {
    pub(super) token: Token,
    pub(super) client: Nonce,
    pub(super) server: Nonce,
    pub(super) ends: Ends,
}

/// What a proof is bound to, beside the nonces.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    /// Where the client is, as the server sees it.
    pub(super) client: Address,
    /// The server's QP.
    pub(super) server: Qpn,
}

impl Ends {
    fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.client.gid.0);
        bytes[16..20].copy_from_slice(&self.client.qpn.value().to_be_bytes());
        bytes[20..].copy_from_slice(&self.server.value().to_be_bytes());
        bytes
    }
}

impl Transcript {
    /// What the client shows behind this Prove.
    pub(super) fn answer(&self, prove: &Repr) -> [u8; ANSWER_LEN] {
        let proof = self.token.prove(CLIENT, &self.bound(&self.ends.bytes(), &prove.emit()));
        let mut credential = [0; ANSWER_LEN];
        credential[..8].copy_from_slice(&policy::name(&self.server));
        credential[8..].copy_from_slice(&proof);
        credential
    }

    pub(super) fn is_answered(&self, prove: &Repr, proof: &Proof) -> bool {
        self.token.verify(CLIENT, &self.bound(&self.ends.bytes(), &prove.emit()), proof)
    }

    /// What the server shows behind this Accept.
    pub(super) fn seal(&self, accept: &Repr) -> Proof {
        self.token.prove(SERVER, &self.bound(&self.ends.bytes(), &accept.emit()))
    }

    pub(super) fn is_sealed(&self, accept: &Repr, proof: &Proof) -> bool {
        self.token.verify(SERVER, &self.bound(&self.ends.bytes(), &accept.emit()), proof)
    }

    fn bound<'a>(&'a self, ends: &'a [u8], header: &'a [u8]) -> [&'a [u8]; 4] {
        [&self.client, &self.server, ends, header]
    }
}

/// How far a client's attempt is.
pub(super) enum Attempt {
    /// It has no token, and shows nothing.
    Plain,
    /// It waits for the challenge.
    Asking(Nonce),
    /// It waits to be accepted.
    Proving { transcript: Box<Transcript>, credential: Box<[u8]> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::address;
    use crate::header::Refusal;

    #[test]
    fn a_proof_is_bound_to_all_that_names_the_conversation() {
        let header = Repr::Refuse { session: 1, key: 2, why: Refusal::Full };
        let transcript = |change: fn(&mut Transcript)| {
            let token = Token::new("correct-horse-battery").expect("a fair token");
            let ends = Ends { client: address(1), server: address(2).qpn };
            let mut transcript = Transcript { token, client: [1; 32], server: [2; 32], ends };
            change(&mut transcript);
            transcript
        };
        let ours = transcript(|_| {});
        let (answer, seal) = (ours.answer(&header), ours.seal(&header));
        let proof = answer.last_chunk().expect("a proof");
        assert!(ours.is_answered(&header, proof) && ours.is_sealed(&header, &seal));
        assert!(
            !ours.is_answered(&header, &seal) && !ours.is_sealed(&header, proof),
            "each side has its own"
        );
        let others: [fn(&mut Transcript); 6] = [
            |transcript| transcript.token = Token::new("correct-horse-batterz").expect("a fair token"),
            |transcript| transcript.client[31] ^= 1,
            |transcript| transcript.server[31] ^= 1,
            |transcript| transcript.ends.client.gid = address(3).gid,
            |transcript| transcript.ends.client.qpn = address(3).qpn,
            |transcript| transcript.ends.server = address(3).qpn,
        ];
        for (n, change) in others.into_iter().enumerate() {
            let other = transcript(change);
            assert!(!other.is_answered(&header, proof) && !other.is_sealed(&header, &seal), "{n}");
        }
        let header = Repr::Refuse { session: 1, key: 3, why: Refusal::Full };
        assert!(!ours.is_answered(&header, proof) && !ours.is_sealed(&header, &seal));
    }
}
