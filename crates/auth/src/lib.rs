//! Tokens that do not travel: who has one proves it over numbers that both sides drew, and who guesses waits.
//!
//! [`Token::prove`] is an HMAC-SHA256 over a label and what the proof is bound to; [`Token::verify`] compares in constant
//! time. What a protocol binds its proofs to is the protocol's business: `pool/src/auth.rs`, `remote/src/admission.rs` and
//! `rpc/src/core/admission.rs`. [`policy`] has what they have in common: who is challenged, and who is let in; [`crowd`]
//! is for those that let strangers connect first, and ask then.
//!
//! What this does not do: RoCEv2 packets are neither encrypted nor authenticated, so who can read and forge packets
//! *on the path* can read and forge data, as on any RDMA fabric.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

pub mod crowd;
pub mod policy;

/// A number used once.
pub type Nonce = [u8; 32];

/// An HMAC-SHA256, which only somebody with the token can make.
pub type Proof = [u8; 32];

/// Whether something may listen at an address: what asks for neither a token nor a password is for this machine alone, unless
/// somebody said that others are meant (`insecure`).
#[must_use]
pub const fn may_listen(at: IpAddr, guarded: bool, insecure: bool) -> bool {
    guarded || insecure || at.to_canonical().is_loopback()
}

/// The fewest characters of a token.
pub const MIN_TOKEN: usize = 16;

/// The most characters of a token.
pub const MAX_TOKEN: usize = 256;

/// The secret that the users of a server share.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a text is no token.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum BadToken {
    /// Too easy to guess.
    #[error("a token needs at least {MIN_TOKEN} characters; leave it out to have one made")]
    Short,
    /// The text has more than [`MAX_TOKEN`] characters.
    #[error("a token has at most {MAX_TOKEN} characters")]
    Long,
    /// Would be lost in a terminal or a file.
    #[error("a token has only visible ASCII characters, without spaces")]
    Characters,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Token {
    /// Takes a token, without the white space around it.
    ///
    /// # Errors
    /// Too short, too long, or with characters that a shell or a terminal may change.
    pub fn new(text: &str) -> Result<Self, BadToken> {
        let text = text.trim();
        match text.len() {
            _ if !text.bytes().all(|b| b.is_ascii_graphic()) => Err(BadToken::Characters),
            n if n < MIN_TOKEN => Err(BadToken::Short),
            n if n > MAX_TOKEN => Err(BadToken::Long),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// Makes a token from 20 random bytes.
    #[must_use]
    pub fn from_random(random: [u8; 20]) -> Self {
        // Letters and digits that cannot be taken for one another; 32 of them, so 5 bits each.
        const ALPHABET: &[u8; 32] = b"23456789abcdefghjkmnpqrstuvwxyzA";
        let mut text = String::with_capacity(32);
        for five in random.chunks_exact(5) {
            let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            for n in (0..8).rev() {
                text.push(char::from(ALPHABET[(bits >> (5 * n)) as usize & 31]));
            }
        }
        Self(text)
    }

    /// The secret itself: for a file of mode 0600 and for the one line that `rem serve` prints.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Names the token without giving it away: the first 8 bytes of a hash.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        hash.update(b"remanence pool token fingerprint 1");
        hash.update(self.0.as_bytes());
        Fingerprint(hash.finalize()[..8].try_into().expect("8 of 32 bytes"))
    }

    /// Proves that this side has the token, for one purpose: `label` names protocol and side, `bound` is what the proof is
    /// good for. All of `bound` but the last have one length in a protocol, so that no two of its conversations run
    /// together to the same bytes.
    #[must_use]
    pub fn prove(&self, label: &[u8], bound: &[&[u8]]) -> Proof {
        self.mac(label, bound).finalize().into_bytes().into()
    }

    /// Checks the other side's proof, in a time that does not depend on where it is wrong.
    #[must_use]
    pub fn verify(&self, label: &[u8], bound: &[&[u8]], proof: &Proof) -> bool {
        self.mac(label, bound).verify_slice(proof).is_ok()
    }

    fn mac(&self, label: &[u8], bound: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(label);
        bound.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.fingerprint())
    }
}

/// What who has a token may do. Which token is whose is the server's to say, and a proof shows it: nobody asks for a role.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Look at everything, and change nothing.
    Reader,
    /// All that the service offers.
    Writer,
}

impl Role {
    /// Whether it may change something.
    #[must_use]
    pub const fn may_write(self) -> bool {
        matches!(self, Self::Writer)
    }
}

/// Names a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 8]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, pair) in self.0.chunks(2).enumerate() {
            f.write_str(if n == 0 { "" } else { "-" })?;
            pair.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Draws numbers that are used once: nobody foresees them who does not know the secret that they are drawn from.
pub struct Nonces {
    secret: [u8; 32],
    drawn: u64,
}

impl Nonces {
    /// Draws from a secret, which is random, and nobody else's.
    #[must_use]
    pub const fn new(secret: [u8; 32]) -> Self {
        Self { secret, drawn: 0 }
    }

    /// The next one.
    pub fn draw(&mut self) -> Nonce {
        self.drawn += 1;
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        mac.update(b"remanence nonce 1");
        mac.update(&self.drawn.to_be_bytes());
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nonces").field("drawn", &self.drawn).finish_non_exhaustive()
    }
}

/// Slows down who tries tokens out: after [`Gate::FREE`] failures in a row an address waits, longer each time.
///
/// Guessing 160 bits is hopeless anyway; this protects tokens that people chose, and the server's time. Time is
/// whatever the caller counts from.
#[derive(Debug, Default)]
pub struct Gate {
    failures: BTreeMap<IpAddr, Failures>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    until: Duration,
}

impl Gate {
    /// Failures that cost nothing: people mistype.
    pub const FREE: u32 = 3;
    /// The longest wait.
    pub const MAX_WAIT: Duration = Duration::from_secs(60);
    /// Addresses that are remembered. Beyond, the ones whose wait ends first are forgotten.
    pub const MAX_ADDRESSES: usize = 4096;

    /// Whether `address` may try now; if not, how long it has to wait.
    ///
    /// # Errors
    /// The rest of the wait.
    pub fn admit(&self, now: Duration, address: IpAddr) -> Result<(), Duration> {
        match self.failures.get(&address) {
            Some(failures) if failures.count > Self::FREE && now < failures.until => {
                Err(failures.until.saturating_sub(now))
            }
            _ => Ok(()),
        }
    }

    /// Notes a wrong proof.
    pub fn failed(&mut self, now: Duration, address: IpAddr) {
        if self.failures.len() >= Self::MAX_ADDRESSES && !self.failures.contains_key(&address) {
            self.forget(now);
        }
        let failures = self.failures.entry(address).or_insert(Failures { count: 0, until: now });
        failures.count = failures.count.saturating_add(1);
        let doublings = failures.count.saturating_sub(Self::FREE + 1).min(16);
        failures.until = now + Duration::from_secs(1 << doublings).min(Self::MAX_WAIT);
    }

    /// Notes a right proof.
    pub fn succeeded(&mut self, address: IpAddr) {
        self.failures.remove(&address);
    }

    fn forget(&mut self, now: Duration) {
        self.failures.retain(|_, failures| failures.until + Self::MAX_WAIT > now);
        if self.failures.len() >= Self::MAX_ADDRESSES {
            let first = self.failures.iter().min_by_key(|(_, f)| f.until).map(|(address, _)| *address);
            first.map(|address| self.failures.remove(&address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Nonce = [1; 32];
    const S: Nonce = [2; 32];

    fn token(text: &str) -> Token {
        Token::new(text).expect("a fair token")
    }

    #[test]
    fn a_proof_is_good_for_one_token_one_label_and_what_it_is_bound_to() {
        let ours = token("correct-horse-battery");
        let proof = ours.prove(b"client", &[&C, &S]);
        assert!(ours.verify(b"client", &[&C, &S], &proof));
        assert!(!ours.verify(b"server", &[&C, &S], &proof));
        assert!(!ours.verify(b"client", &[&S, &C], &proof));
        assert!(!ours.verify(b"client", &[&C, &[3; 32]], &proof));
        assert!(!token("correct-horse-batterz").verify(b"client", &[&C, &S], &proof));
        for bit in 0..256 {
            let mut bad = proof;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!ours.verify(b"client", &[&C, &S], &bad), "bit {bit}");
        }
    }

    #[test]
    fn a_token_is_neither_weak_nor_shown_by_accident() {
        assert_eq!(Token::new("short"), Err(BadToken::Short));
        assert_eq!(Token::new(&"x".repeat(257)), Err(BadToken::Long));
        assert_eq!(Token::new("with a space in it"), Err(BadToken::Characters));
        assert_eq!(token("  correct-horse-battery\n").secret(), "correct-horse-battery");
        let made = Token::from_random(*b"01234567890123456789");
        assert_eq!(Token::new(made.secret()), Ok(made.clone()));
        assert_eq!(made.secret().len(), 32);
        assert!(!format!("{made:?}").contains(made.secret()));
        assert_ne!(made.fingerprint(), Token::from_random([0; 20]).fingerprint());
    }

    #[test]
    fn nonces_differ_from_one_another_and_with_the_secret() {
        let (mut ours, mut again, mut theirs) = (Nonces::new(C), Nonces::new(C), Nonces::new(S));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let drawn = ours.draw();
            assert_eq!(drawn, again.draw(), "a story is told again from its secret");
            assert!(seen.insert(drawn) && seen.insert(theirs.draw()));
        }
        assert_eq!(format!("{ours:?}"), "Nonces { drawn: 100, .. }");
    }

    #[test]
    fn who_guesses_waits_longer_each_time_and_others_do_not() {
        let (mut gate, mallory, alice) = (Gate::default(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let second = Duration::from_secs(1);
        for _ in 0..Gate::FREE {
            gate.failed(second, mallory);
            assert_eq!(gate.admit(second, mallory), Ok(()));
        }
        gate.failed(second, mallory);
        assert_eq!(gate.admit(second, mallory), Err(second));
        assert_eq!(gate.admit(second * 2, mallory), Ok(()));
        gate.failed(second * 2, mallory);
        assert_eq!(gate.admit(second * 2, mallory), Err(second * 2));
        assert_eq!(gate.admit(second * 2, alice), Ok(()));
        (0..100).for_each(|_| gate.failed(second * 2, mallory));
        assert_eq!(gate.admit(second * 2, mallory), Err(Gate::MAX_WAIT));
        gate.succeeded(mallory);
        assert_eq!(gate.admit(second * 2, mallory), Ok(()));
    }

    #[test]
    fn an_army_of_addresses_takes_no_more_memory_than_agreed() {
        let mut gate = Gate::default();
        for n in 0..2 * Gate::MAX_ADDRESSES as u32 {
            gate.failed(Duration::from_secs(1), std::net::Ipv4Addr::from(n).into());
        }
        assert_eq!(gate.failures.len(), Gate::MAX_ADDRESSES);
    }
}
