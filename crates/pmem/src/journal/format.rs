//! The bytes of a journal: where it lies in a file, the footer that says so, and batches.
//!
//! ```text
//! file    region | zeros up to 64 KiB | footer's copy | mark | half 0 | half 1 | footer
//! batch   whole blocks: header, then runs (word: first line << 20 | lines; the lines' bytes), then zeros
//! ```
//! A file has a journal if its *length* ends in [`ENDING`] (modulo 64 KiB) and the footer's magic is there. Both, because
//! a peer may be free to write every byte of a region, and so could put a footer at the end of a file that has none; the
//! length is the owner's alone. The copy of the footer in front is looked at when an owner finds a file longer than what
//! it made, and without a footer: that file was cut short within its journal.
//!
//! The mark's block is zeros until a sync or a write fails (`log`). Then it has the number of the batch that would have been next.
//!
//! A batch names the journal (16 random bytes, so that no bytes of a value that lie on a block's start are ever taken
//! for one), the block that it was written to, and the boot of the machine that wrote it, if what was visible then is to be kept.

use std::io;
use std::ops::Range;

use super::log::Copy;
use crate::flush::LINE;
use crate::layout::{get_u32, get_u64};

/// Bytes in a block. Each batch starts on one, so no block that was acknowledged is written again before it is free.
pub(crate) const BLOCK: u64 = 4096;
/// A journal starts at a multiple of this: no page of any machine has bytes of both the region and its journal.
pub(crate) const ALIGN: u64 = 64 << 10;
/// Bytes in the footer, and what the length of a file with a journal is modulo [`ALIGN`].
pub(crate) const ENDING: u64 = 4037;
/// The shortest journal.
pub(crate) const MIN: u64 = 2 * ALIGN;
/// The longest: block numbers have 32 bits, batches have half of these.
pub(crate) const MAX: u64 = 1 << 40;
/// Blocks in front of the halves.
pub(crate) const HEAD: u64 = 2;
/// Bytes in front of a batch's runs.
pub(crate) const HEADER: usize = 80;
/// Bytes of a mark.
pub(crate) const MARK: usize = 64;

const FOOTER_MAGIC: [u8; 8] = *b"RMNCjrnl";
const BATCH_MAGIC: [u8; 8] = *b"RMNCredo";
const MARK_MAGIC: [u8; 8] = *b"RMNCfail";
const VERSION: u32 = 1;
const FOOTER: usize = 64;
/// Lines that one run can have.
const RUN_MAX: u64 = (1 << 20) - 1;
const LINE_U64: u64 = LINE as u64;

const _: () = assert!(ENDING < ALIGN && FOOTER < ENDING as usize && HEADER < BLOCK as usize && LINE == 64);

/// Sixteen bytes that name a boot, or a journal.
pub(crate) type Name = [u8; 16];
/// In place of a boot: the batch is replayed whatever lived, as its writer keeps nothing that was only visible.
pub(crate) const NO_BOOT: Name = [0; 16];

/// Where a journal lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JournalLayout {
    /// Bytes of the file that are the region.
    pub(crate) region: u64,
    /// Blocks in each half.
    pub(crate) half: u64,
    /// The journal's name.
    pub(crate) name: Name,
}

/// Why the end of a file is no footer that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoFooter {
    /// It is nobody's: the file has no journal.
    Foreign,
    /// It was ours.
    Damaged,
    /// It is of a version that this program does not know.
    Version(u32),
}

impl JournalLayout {
    /// A journal of about `len` bytes behind a region.
    pub(crate) fn new(region: u64, len: u64, name: Name) -> Self {
        let len = len.clamp(MIN, MAX).next_multiple_of(ALIGN);
        Self { region, half: (len / BLOCK - HEAD) / 2, name }
    }

    /// Where in the file it starts.
    pub(crate) const fn start(&self) -> u64 {
        self.region.next_multiple_of(ALIGN)
    }

    /// Where in the file the mark is.
    pub(crate) const fn mark(&self) -> u64 {
        self.start() + BLOCK
    }

    /// Where in the file a block of the halves is.
    pub(crate) const fn block(&self, block: u64) -> u64 {
        self.start() + (HEAD + block) * BLOCK
    }

    /// Blocks in both halves.
    pub(crate) const fn blocks(&self) -> u64 {
        2 * self.half
    }

    /// Where in the file the footer is.
    pub(crate) const fn footer(&self) -> u64 {
        self.block(self.blocks())
    }

    /// Bytes in the file.
    pub(crate) const fn file(&self) -> u64 {
        self.footer() + ENDING
    }

    /// Bytes in the journal.
    pub(crate) const fn journal(&self) -> u64 {
        self.footer() - self.start()
    }

    /// The footer, without the zeros behind it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FOOTER);
        bytes.extend(FOOTER_MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((BLOCK as u32).to_le_bytes());
        bytes.extend(self.region.to_le_bytes());
        bytes.extend(self.half.to_le_bytes());
        bytes.extend(self.file().to_le_bytes());
        bytes.extend(self.name);
        bytes.extend([0; 4]);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        assert_eq!(bytes.len(), FOOTER);
        bytes
    }

    /// Reads a footer, or its copy.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NoFooter> {
        if bytes.len() < FOOTER || bytes[..8] != FOOTER_MAGIC {
            return Err(NoFooter::Foreign);
        }
        let version = get_u32(bytes, 8);
        if version != VERSION {
            return Err(NoFooter::Version(version));
        }
        let place = Self {
            region: get_u64(bytes, 16),
            half: get_u64(bytes, 24),
            name: bytes[40..56].try_into().expect("sixteen bytes"),
        };
        let sound = get_u32(bytes, FOOTER - 4) == crc32fast::hash(&bytes[..FOOTER - 4])
            && u64::from(get_u32(bytes, 12)) == BLOCK
            && (1..=1 << 50).contains(&place.region)
            && (MIN..=MAX).contains(&place.half.saturating_mul(2).saturating_add(HEAD).saturating_mul(BLOCK))
            && place.file() == get_u64(bytes, 32)
            && place.file() % ALIGN == ENDING;
        if sound { Ok(place) } else { Err(NoFooter::Damaged) }
    }
}

/// What is in front of a batch's runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The journal's name.
    pub(crate) name: Name,
    /// The boot of the machine that wrote it, or [`NO_BOOT`].
    pub(crate) boot: Name,
    /// Batches are numbered as they are written, from 1.
    pub(crate) sequence: u64,
    /// The first batch that a replay needs: what those before it have is durable in the region itself.
    pub(crate) from: u64,
    /// The block that it starts at.
    pub(crate) block: u32,
    /// Bytes of runs.
    pub(crate) bytes: u32,
}

/// The blocks of a batch with so many bytes of runs.
pub(crate) const fn blocks_for(bytes: u64) -> u64 {
    (HEADER as u64 + bytes).div_ceil(BLOCK)
}

impl Header {
    /// Blocks of the batch.
    pub(crate) const fn blocks(&self) -> u64 {
        blocks_for(self.bytes as u64)
    }

    /// Whether what it names is nothing: it only says where a replay starts.
    pub(crate) const fn is_note(&self) -> bool {
        self.bytes == 0
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&BATCH_MAGIC);
        bytes[8..24].copy_from_slice(&self.name);
        bytes[24..40].copy_from_slice(&self.boot);
        bytes[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.from.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.block.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The header at the start of a block, if the block is the start of a batch of this journal that was written there.
    /// What follows it has not been looked at: [`seals`] does that.
    pub(crate) fn decode(bytes: &[u8], name: &Name, block: u64) -> Option<Self> {
        if bytes.len() < HEADER || bytes[..8] != BATCH_MAGIC || bytes[8..24] != *name {
            return None;
        }
        let header = Self {
            name: *name,
            boot: bytes[24..40].try_into().expect("sixteen bytes"),
            sequence: get_u64(bytes, 40),
            from: get_u64(bytes, 48),
            block: get_u32(bytes, 56),
            bytes: get_u32(bytes, 60),
        };
        let sound = u64::from(header.block) == block && (1..=header.sequence).contains(&header.from);
        sound.then_some(header)
    }
}

/// The mark of a journal whose medium failed when it was about to write this batch.
pub(crate) fn mark(name: &Name, sequence: u64) -> [u8; MARK] {
    let mut bytes = [0; MARK];
    bytes[..8].copy_from_slice(&MARK_MAGIC);
    bytes[8..24].copy_from_slice(name);
    bytes[24..32].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..MARK - 4]);
    bytes[MARK - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// What a mark says, if these bytes are one of this journal's.
pub(crate) fn marked(bytes: &[u8; MARK], name: &Name) -> Option<u64> {
    (*bytes == mark(name, get_u64(bytes, 24))).then(|| get_u64(bytes, 24))
}

/// Makes a batch of `batch`, whose first [`HEADER`] bytes are room for the header and whose others are runs.
pub(crate) fn seal(batch: &mut Vec<u8>, header: &Header) {
    batch[..HEADER].copy_from_slice(&header.encode());
    let crc = crc32fast::hash(batch);
    batch[HEADER - 4..HEADER].copy_from_slice(&crc.to_le_bytes());
    batch.resize((header.blocks() * BLOCK) as usize, 0);
}

/// Whether a batch, header and runs, is as it was sealed.
pub(crate) fn seals(batch: &[u8]) -> bool {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&batch[..HEADER - 4]);
    hasher.update(&[0; 4]);
    hasher.update(&batch[HEADER..]);
    hasher.finalize() == get_u32(batch, HEADER - 4)
}

/// Bytes that these ranges of lines take in a batch.
pub(crate) fn bytes_of(lines: &[Range<u64>]) -> u64 {
    let one = |r: &Range<u64>| (r.end - r.start) * LINE_U64 + (r.end - r.start).div_ceil(RUN_MAX) * 8;
    lines.iter().map(one).sum()
}

/// Adds runs of these lines to a batch.
pub(crate) fn put_runs(batch: &mut Vec<u8>, lines: &[Range<u64>], mut copy: impl Copy) -> io::Result<()> {
    for range in lines {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + RUN_MAX);
            batch.extend((at << 20 | (end - at)).to_le_bytes());
            let before = batch.len();
            copy(at..end, batch)?;
            assert_eq!((batch.len() - before) as u64, (end - at) * LINE_U64, "lines are copied whole");
            at = end;
        }
    }
    Ok(())
}

/// The runs of a batch: the first byte in the region, and the bytes. `None` in place of one that is not whole.
pub(crate) fn runs(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let whole = bytes.split_at_checked(8).and_then(|(word, rest)| {
            let word = get_u64(word, 0);
            let lines = word & RUN_MAX;
            let (run, rest) = rest.split_at_checked((lines * LINE_U64) as usize)?;
            bytes = rest;
            (lines > 0).then_some(((word >> 20) * LINE_U64, run))
        });
        if whole.is_none() {
            bytes = &[];
        }
        Some(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = *b"a journal's name";

    #[test]
    fn a_footer_goes_through_its_bytes_and_any_flipped_bit_is_found() {
        for (region, len) in [(1, 0), (5000, MIN), (256 << 20, 64 << 20), (1 << 45, MAX)] {
            let place = JournalLayout::new(region, len, NAME);
            assert!(
                place.file() % ALIGN == ENDING && place.start() >= region && place.journal() >= len.max(MIN)
            );
            let mut bytes = place.encode();
            assert_eq!(JournalLayout::decode(&bytes), Ok(place));
            assert_eq!(JournalLayout::decode(&bytes[..FOOTER - 1]), Err(NoFooter::Foreign));
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                let refused = JournalLayout::decode(&bytes).expect_err("a bit was flipped");
                let expected = match bit / 8 {
                    0..8 => matches!(refused, NoFooter::Foreign),
                    8..12 => matches!(refused, NoFooter::Version(_)),
                    _ => refused == NoFooter::Damaged,
                };
                assert!(expected, "bit {bit}: {refused:?}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_batch_goes_through_its_bytes_and_belongs_to_its_journal_and_its_block() {
        let lines = [3..5, 9..10];
        let mut batch = vec![0; HEADER];
        put_runs(&mut batch, &lines, |range, into| {
            range.for_each(|line| into.extend([line as u8; LINE]));
            Ok(())
        })
        .expect("nothing fails");
        let bytes = (batch.len() - HEADER) as u32;
        assert_eq!(u64::from(bytes), bytes_of(&lines));
        let header = Header { name: NAME, boot: [7; 16], sequence: 5, from: 2, block: 11, bytes };
        seal(&mut batch, &header);
        assert_eq!(batch.len() as u64, BLOCK);
        assert_eq!(Header::decode(&batch, &NAME, 11), Some(header));
        assert_eq!(Header::decode(&batch, &NAME, 12), None, "a copy in another place");
        assert_eq!(Header::decode(&batch, &[0; 16], 11), None, "another journal's");
        let sealed = HEADER + bytes as usize;
        assert!(seals(&batch[..sealed]));
        let found: Vec<_> = runs(&batch[HEADER..sealed]).map(|run| run.expect("whole")).collect();
        assert_eq!(
            found.iter().map(|(at, run)| (*at, run.len())).collect::<Vec<_>>(),
            [(192, 128), (576, 64)]
        );
        assert!(found[0].1[..64] == [3; 64] && found[0].1[64..] == [4; 64] && found[1].1 == [9; 64]);
        for bit in 0..sealed * 8 {
            batch[bit / 8] ^= 1 << (bit % 8);
            assert!(!seals(&batch[..sealed]), "bit {bit}");
            batch[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_mark_goes_through_its_bytes_and_any_flipped_bit_is_found() {
        let mut bytes = mark(&NAME, 77);
        assert_eq!(marked(&bytes, &NAME), Some(77));
        assert_eq!((marked(&bytes, &[0; 16]), marked(&[0; MARK], &NAME)), (None, None));
        for bit in 0..MARK * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(marked(&bytes, &NAME), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn runs_of_any_bytes_end() {
        for len in 0..200 {
            for fill in [0, 1, 0xFF] {
                let bytes = vec![fill; len];
                assert!(runs(&bytes).count() <= len / 8 + 1);
                assert!(runs(&bytes).flatten().all(|(_, run)| !run.is_empty()));
            }
        }
    }
}
