//! What a medium says at its beginning of what lies on it: blank, half made, foreign, of another version, damaged, or whole.
//!
//! A format is described as data. Its [signature](Signature) tells whether a medium is its own: the first eight bytes, the mark that
//! it has while an image is made, how much of it is zeros if it is blank, where its file notes a journal. A [format](Format) with
//! a superblock describes that, too: its versions, one copy or two, where the checksum lies. [`Format::judge`] tells by it what
//! a medium has, and [`Signature::file_options`] how its file is opened, so that the two cannot disagree about what is blank.
//!
//! **In which order a head is judged.** The magic number comes first, as nothing else has a meaning without it. The byte
//! order and the version come before the checksum: where that lies is the business of the version that wrote it, and a
//! format of tomorrow must not be taken for one of today that is damaged. Where there is another copy, a checksum that fits as soon as
//! the number is a known one says that the number is what is damaged. The fields count only behind a checksum that
//! fits, and the length is compared last, by a size that is then known to be what was written.
//!
//! **Why a crash while an image is made leaves none or a whole one.** The magic number is eight bytes at an address that is a multiple of
//! eight, so a crash leaves the old ones or the new ones. The [mark](Signature::begin) of making is stored durably before anything else is
//! touched, and the magic number when everything behind it is durable ([`Format::make`]). Of two copies each is durable before the other
//! is touched, the second first: a crash leaves one that is whole, which is the first, or the second, and that is then the newer.
//!
//! **What changes once there is an image.** What is replaced as a whole has two copies ([`Root`], [`RootFormat`]), and what is appended is a
//! log of [records](Records). Each describes its bytes as a [framing](Framing), and the argument of what a crash, an earlier life or damage
//! can leave of it is made once, in `root.rs` and `records.rs`.
//!
//! **What stands on it.** Superblocks: a blob pool's (`pool`), a log's (`coord`), a store's with its two copies and three versions (`kv`),
//! a write cache's log and its page cache with their two copies (`cache`).
//! Signatures of media that begin with a root record: the ledger of a member of a store (`kv`), the persistent log of
//! `rpc`. Roots: those two, a log's (`coord`), a store's (`kv`) and a write cache's (`cache`), and a pool's root and its ceiling, which have other bytes. Records: a
//! pool's frames, the entries of a [`CountedLog`](crate::counter::CountedLog), the records of a replicated log (`coord`).
//!
//! **What does not, and why.** A *journal* is found from the end of its file, by the file's length (`journal`), and its note is a line in
//! other formats' heads; its batches say where a replay begins, and the newest that is whole is believed, so there is no place where the next
//! is due. The *receive buffers* of `remote` have a big-endian superblock at the end of a region that begins with something
//! else, and a message lies in the buffer that its number says: they are a set, of which those count that name a predecessor that was
//! applied. A *store's objects* (`kv`) are found by its index and not one after the other; an object that the index names is due in its place, with the
//! region's epoch for its life, and its version for its number. The *entries of a write cache's log* (`cache`) are appended by many at a time and
//! become durable in any order: which of them count is said by words beside them, and where they end cannot be found from what lies
//! there. A *dump* of a store is a stream, which is read from its first byte to its last.

mod framing;
mod records;
mod root;
mod signature;
mod superblock;

pub use framing::{Flaw, Framing, HEADER_MAX, Judged, Local, Source};
pub use records::{Order, Record, Records, Standing, Verdict};
pub use root::{ROOT_LEN, ROOT_PAYLOAD_MAX, Root, RootError, RootFormat};
pub use signature::{Making, Signature};
pub use superblock::{Checksum, Fields, Format, Found, Places, Version};

/// Why a medium has no image that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It begins like an image, and has fewer bytes than the fields of a superblock take.
    TooShort,
    /// It has zeros, but for what is noted of its file's journal.
    Blank,
    /// A crash came while an image was made: nothing was acknowledged, and one may be made in its place.
    Making,
    /// It has something else.
    Foreign,
    /// It was written in the other byte order.
    OtherByteOrder,
    /// It was written by another version, of which nothing else is known.
    OtherVersion {
        /// The version that the head says.
        found: u32,
    },
    /// The checksum does not fit.
    Damaged,
    /// The medium is shorter than its image: the end was cut off.
    Truncated {
        /// Bytes of the medium.
        has: u64,
        /// Bytes of the image.
        wants: u64,
    },
    /// The medium is longer than its image.
    Grown {
        /// Bytes of the medium.
        has: u64,
        /// Bytes of the image.
        wants: u64,
    },
}
