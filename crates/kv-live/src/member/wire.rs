//! What members tell each other, and clients, besides the log's and the store's own calls. Little-endian.
//!
//! ```text
//! promise   u64 promised, u64 adopted, u64 CRC-64 of both: at the start of what a member exports to clients, read one-sidedly
//! text      u16 bytes, the bytes
//! said      u16 version, u8 role, u16 who, u16 acks (0: not made yet), u64 life, u64 bytes of the image, u64 epoch, 16 group,
//!           16 name of the log, u16 log's port, u16 store's port, u64 first record, u64 next record, u64 applied, u8 flags
//!           (1: its image is one, 2: it survives the loss of power), u64 sent, u64 of; u16 count and texts, the members'
//!           names; the same, of those that are lost; text whom it rebuilds, text why it does not serve, text what its
//!           memory survives; and since a later release, zeros before: u64 for how many milliseconds its medium has not
//!           answered, u16 count and texts, members whose images do not follow
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use remanence_pmem::Survives;
use remanence_remotelog::Epoch;
use remanence_remotelog::format::superblock::Uuid;

use remanence_codec::{Reader, printable};
use remanence_coord::takeover::{Role, Statement};
use remanence_kv::format::object::crc64;
use remanence_kv::replica::Promise;
use remanence_kv::replica::guard::PROMISE_LEN;

/// The version of all this.
pub(super) const VERSION: u16 = 1;
/// Bytes of an exported promise.
pub(crate) const EXPORTED: usize = PROMISE_LEN + 8;
/// Names in a list, at most.
const NAMES_MAX: u16 = 64;

/// A promise as it is exported. The words are stored one after the other, and read at once: a checksum tells whether they
/// belong together.
pub(super) fn export(promise: &Promise) -> [u8; EXPORTED] {
    let words = promise.emit();
    let mut bytes = [0; EXPORTED];
    bytes[..PROMISE_LEN].copy_from_slice(&words);
    bytes[PROMISE_LEN..].copy_from_slice(&crc64(&[&words]).to_le_bytes());
    bytes
}

/// The inverse; `None` if it was being changed.
pub(crate) fn exported(bytes: &[u8; EXPORTED]) -> Option<Promise> {
    let (words, crc) = bytes.split_first_chunk::<PROMISE_LEN>()?;
    (crc == crc64(&[words]).to_le_bytes()).then(|| Promise::parse(words))
}

/// What a member of a replicated store says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberStats {
    /// What it does.
    pub role: Role,
    /// Which of the members it is.
    pub who: u16,
    /// All of them, in their order.
    pub members: Vec<String>,
    /// How many of them have a change durably when it is acknowledged; 0 before the store is made.
    pub acks: u16,
    /// Bytes of its image.
    pub image: u64,
    /// The epoch: of a primary its own, else the one that it has promised its log to.
    pub epoch: Epoch,
    /// Which store it is a member of; zeros before it is one.
    pub group: Uuid,
    /// The name of its log.
    pub log: Uuid,
    /// Drawn by its process.
    pub(crate) life: u64,
    pub(crate) log_port: u16,
    /// Where a primary serves clients; 0 if it does not.
    pub(crate) store_port: u16,
    /// The first record of its log.
    pub first: u64,
    /// The record that its log goes on with.
    pub next: u64,
    /// Its image has all records below this number.
    pub applied: u64,
    /// Its image is one, and not the beginning of one.
    pub complete: bool,
    /// What its memory has survives the loss of power.
    pub durable: bool,
    /// Which failures the records survive that its log has acknowledged.
    pub log_survives: Survives,
    /// Of the rebuilding that a primary has under way: bytes that were sent.
    pub sent: u64,
    /// Bytes in all; 0 if nobody is rebuilt.
    pub of: u64,
    /// Members that a primary does without.
    pub lost: Vec<String>,
    /// Whom it rebuilds.
    pub rebuilding: String,
    /// Why it does not serve, or does not follow.
    pub why: String,
    /// What its memory is and what that survives, in a sentence.
    pub survives: String,
    /// For how many milliseconds its medium has not answered.
    pub stalled: u64,
    /// It cannot go on and ends; of a member whose log's medium failed. Why is said as well.
    pub failed: bool,
    /// Members whose images do not follow a primary's records, or that are there and none of this store, and why: a sentence each.
    pub behind: Vec<String>,
}

/// What a member says of itself, or why it does not.
pub type Said = Result<MemberStats, String>;

fn text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(1000)];
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn texts(out: &mut Vec<u8>, all: &[String]) {
    out.extend((all.len() as u16).to_le_bytes());
    all.iter().for_each(|one| text(out, one));
}

fn read_text(from: &mut Reader<'_>) -> Option<String> {
    let len = from.u16_le().ok()?;
    Some(printable(from.take(len.into()).ok()?))
}

fn read_texts(from: &mut Reader<'_>) -> Option<Vec<String>> {
    let count = from.u16_le().ok().filter(|count| *count <= NAMES_MAX)?;
    (0..count).map(|_| read_text(from)).collect()
}

impl MemberStats {
    /// Where the other members reach the log of a member whose clients come there.
    #[must_use]
    pub const fn log_addr(&self, member: SocketAddr) -> SocketAddr {
        SocketAddr::new(member.ip(), self.log_port)
    }

    /// What matters of this for who takes over.
    pub(super) fn statement(&self) -> Statement {
        Statement {
            role: self.role,
            epoch: self.epoch,
            life: self.life,
            stalled: Duration::from_millis(self.stalled),
            failed: self.failed,
            has_image: self.complete && self.applied >= self.first,
            belongs: self.group != Uuid::default(),
            // Whose log alone is gone says nothing of a store, and has an image.
            holds: self.group != Uuid::default() || self.applied > 0 || !self.complete,
        }
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        out.push(self.role as u8);
        for half in [self.who, self.acks] {
            out.extend(half.to_le_bytes());
        }
        for word in [self.life, self.image, self.epoch.0] {
            out.extend(word.to_le_bytes());
        }
        out.extend_from_slice(&self.group.0);
        out.extend_from_slice(&self.log.0);
        for half in [self.log_port, self.store_port] {
            out.extend(half.to_le_bytes());
        }
        for word in [self.first, self.next, self.applied] {
            out.extend(word.to_le_bytes());
        }
        // A release that does not know the last one hears of it as silence, soon after.
        let flags = u8::from(self.complete) | u8::from(self.durable) << 1 | u8::from(self.failed) << 2;
        out.push(flags | (self.log_survives.to_bits() as u8) << 3);
        for word in [self.sent, self.of] {
            out.extend(word.to_le_bytes());
        }
        texts(&mut out, &self.members);
        texts(&mut out, &self.lost);
        for one in [&self.rebuilding, &self.why, &self.survives] {
            text(&mut out, one);
        }
        out.extend(self.stalled.to_le_bytes());
        texts(&mut out, &self.behind);
        out
    }

    /// `Err`: another version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Result<Self, u16>> {
        let mut from = Reader::new(bytes);
        let version = from.u16_le().ok()?;
        if version != VERSION {
            return Some(Err(version));
        }
        let role = match from.u8().ok()? {
            0 => Role::Waiting,
            1 => Role::Follower,
            2 => Role::TakingOver,
            3 => Role::Primary,
            _ => return None,
        };
        let (who, acks) = (from.u16_le().ok()?, from.u16_le().ok()?);
        let (life, image, epoch) = (from.u64_le().ok()?, from.u64_le().ok()?, Epoch(from.u64_le().ok()?));
        let (group, log) = (Uuid(from.array().ok()?), Uuid(from.array().ok()?));
        let (log_port, store_port) = (from.u16_le().ok()?, from.u16_le().ok()?);
        let (first, next, applied) = (from.u64_le().ok()?, from.u64_le().ok()?, from.u64_le().ok()?);
        let flags = from.u8().ok()?;
        let (sent, of) = (from.u64_le().ok()?, from.u64_le().ok()?);
        let (members, lost) = (read_texts(&mut from)?, read_texts(&mut from)?);
        let (rebuilding, why, survives) =
            (read_text(&mut from)?, read_text(&mut from)?, read_text(&mut from)?);
        // A release before this one ends here.
        let (stalled, behind) = if from.rest().is_empty() {
            (0, Vec::new())
        } else {
            (from.u64_le().ok()?, read_texts(&mut from)?)
        };
        Some(Ok(Self {
            role,
            who,
            members,
            acks,
            image,
            epoch,
            group,
            log,
            life,
            log_port,
            store_port,
            first,
            next,
            applied,
            complete: flags & 1 != 0,
            durable: flags & 2 != 0,
            log_survives: Survives::from_bits(u16::from(flags >> 3)),
            sent,
            of,
            lost,
            rebuilding,
            why,
            survives,
            stalled,
            failed: flags & 4 != 0,
            behind,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> MemberStats {
        MemberStats {
            role: Role::Primary,
            who: 2,
            members: vec!["a:1".into(), "b:2".into(), "c:3".into()],
            acks: 2,
            image: 1 << 20,
            epoch: Epoch::new(4, 5),
            group: Uuid([6; 16]),
            log: Uuid([7; 16]),
            life: 77,
            log_port: 8,
            store_port: 9,
            first: 10,
            next: 11,
            applied: 12,
            complete: true,
            durable: false,
            log_survives: Survives::PROCESS_CRASH,
            sent: 13,
            of: 14,
            lost: vec!["b:2".into()],
            rebuilding: "c:3".into(),
            why: String::new(),
            survives: "a disk".into(),
            stalled: 15,
            failed: true,
            behind: vec!["c:3: its disk is full".into()],
        }
    }

    #[test]
    fn what_a_member_says_comes_through_and_no_part_of_it_does() {
        let bytes = some().emit();
        assert_eq!(MemberStats::parse(&bytes), Some(Ok(some())));
        // What a release before this one says ends before the last two.
        let before = bytes.len() - 8 - 2 - 2 - some().behind[0].len();
        let older = MemberStats { stalled: 0, behind: Vec::new(), ..some() };
        assert_eq!(MemberStats::parse(&bytes[..before]), Some(Ok(older)));
        let cut = |len: &usize| *len != before;
        assert!((0..bytes.len()).filter(cut).all(|len| MemberStats::parse(&bytes[..len]).is_none()));
        assert_eq!(MemberStats::parse(&[9, 0]), Some(Err(9)), "another version says which");
    }

    #[test]
    fn what_a_member_says_tells_no_terminal_what_to_do() {
        let hostile = MemberStats { why: "its disk\x1b[2J is full\r".into(), ..some() };
        let said = MemberStats { why: "its disk [2J is full ".into(), ..some() };
        assert_eq!(MemberStats::parse(&hostile.emit()), Some(Ok(said)));
    }

    #[test]
    fn a_promise_that_is_being_changed_is_none() {
        let new = Promise { promised: Epoch::new(3, 1), adopted: Epoch::new(3, 1) };
        let (before, after) = (export(&Promise { adopted: Epoch::NONE, ..new }), export(&new));
        assert_eq!(exported(&after), Some(new));
        assert_eq!(exported(&[0; EXPORTED]), None, "a member that has exported nothing yet promises nothing");
        // Whoever has lost its disk has adopted nothing, and must not seem to have promised nothing as well.
        let mut torn = after;
        torn[..8].fill(0);
        assert_eq!(exported(&torn), None);
        let mut torn = before;
        torn[8..16].copy_from_slice(&after[8..16]);
        assert_eq!(exported(&torn), None);
    }
}
