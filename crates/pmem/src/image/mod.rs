//! What a medium says at its beginning of what lies on it: one codec for superblocks; those of `pool` and `remotelog` are its.
//!
//! A format is [described as data](Format): its magic number, its version, where the checksum lies, where its file notes a
//! journal. [`Format::judge`] tells by that what a medium has, and [`Format::file_options`] how its file is opened, so that
//! the two cannot disagree about what is blank.
//!
//! **In which order a head is judged.** The magic number comes first, as nothing else has a meaning without it. The byte
//! order and the version come before the checksum: where that lies is the business of the version that wrote it, and a
//! format of tomorrow must not be taken for one of today that is damaged. The fields count only behind a checksum that
//! fits, and the length is compared last, by a size that is then known to be what was written.
//!
//! **Why a crash while an image is made leaves none or a whole one.** This is the owner's part, as nothing here writes. The
//! magic number is eight bytes at an address that is a multiple of eight, so a crash leaves the old ones or the new ones. The
//! mark of [making](Format::making) is stored in its place, durably, before anything else is touched, and the magic number
//! when everything behind it is durable.

mod superblock;

pub use superblock::{Fault, Fields, Format, emit, is_blank};
