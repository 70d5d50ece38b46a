//! Which pages of a file that somebody else has changed are replayed.
//!
//! A page of it may be as any of those who use the log left it, or as somebody else did, and a crash may have torn it at sectors. What the log has
//! for a page are the bytes that its entries cover, and after the first of them that completes the cover it knows what these were after each. A page of which
//! every sector is, in these bytes, as after one of those entries has nothing of anybody else where the log would write, and is brought to what it is after the
//! last one. Any other page is kept: its bytes are somebody else's, or of before, which the log does not know; what it has for that page goes into a
//! file beside. Nothing is lost so, and nothing undone.
//!
//! A page that was replayed is as after the last entry, so whoever begins anew finds the same as who was cut short. The file's length does not change here: what would make it shorter or longer is beside it as well.

use std::collections::{BTreeMap, BTreeSet};

use crate::op::Op;
use crate::read::{Damage, Entry};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes that a disk writes wholly or not at all.
const SECTOR: usize = 512;
/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 0x01;
/// `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`.
const ZEROS: u32 = 0x02 | 0x10;

/// What one entry does.
#[derive(Clone, Copy, Debug)]
struct Change {
    entry: Entry,
    /// The bytes that it covers.
    from: u64,
    to: u64,
    /// They are zeros then, and not what the entry has.
    zeros: bool,
    len: Len,
}

/// What becomes of a file's length.
#[derive(Clone, Copy, Debug)]
enum Len {
    Same,
    AtLeast(u64),
    Is(u64),
}

/// The entries of one file, in their order.
#[derive(Debug, Default)]
pub struct Pages {
    changes: Vec<Change>,
    /// Of each page, the changes that write to it.
    writes: BTreeMap<u64, Vec<usize>>,
    /// Those that leave zeros, also where no page is named.
    zeros: Vec<usize>,
}

/// What is to be done with a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is as it should be.
    Done,
    /// These bytes are to be written there.
    Replayed {
        /// Where they lie in the file.
        offset: u64,
        /// What is written; what the log does not cover in between is as it was.
        bytes: Vec<u8>,
    },
    /// It has what the log does not know.
    Kept,
}

impl Pages {
    /// Takes one entry, which is behind all that it was given.
    pub fn add(&mut self, entry: Entry, op: &Op<'_>) {
        let number = self.changes.len();
        let (from, to, zeros, len) = match *op {
            Op::Write { offset, bytes, .. } if !bytes.is_empty() => {
                let to = offset.saturating_add(bytes.len() as u64);
                for page in offset / PAGE..to.div_ceil(PAGE) {
                    self.writes.entry(page).or_default().push(number);
                }
                (offset, to, false, Len::AtLeast(to))
            }
            Op::Truncate { len, .. } => (len, u64::MAX, true, Len::Is(len)),
            Op::Allocate { mode, offset, len, .. } => {
                let to = offset.saturating_add(len);
                let zeros = mode & ZEROS != 0;
                let len = if mode & KEEP_SIZE == 0 { Len::AtLeast(to) } else { Len::Same };
                (offset, if zeros { to } else { offset }, zeros, len)
            }
            _ => return,
        };
        if zeros {
            self.zeros.push(number);
        }
        self.changes.push(Change { entry, from, to, zeros, len });
    }

    /// The pages that its entries change, of a file that is so long.
    #[must_use]
    pub fn pages(&self, len: u64) -> BTreeSet<u64> {
        let zeros = self.zeros.iter().map(|number| &self.changes[*number]);
        zeros
            .flat_map(|change| change.from / PAGE..change.to.min(len).div_ceil(PAGE))
            .chain(self.writes.keys().copied())
            .collect()
    }

    /// How long a file is behind the last entry that was so long before the first.
    #[must_use]
    pub fn len(&self, before: u64) -> u64 {
        self.changes.iter().fold(before, |len, change| match change.len {
            Len::Same => len,
            Len::AtLeast(least) => len.max(least),
            Len::Is(len) => len,
        })
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// What is to be done with a page that has this: [`PAGE`] bytes, zeros behind the file's end. `fetch` reads what an entry has.
    ///
    /// # Errors
    /// An entry is damaged.
    pub fn judge(
        &self,
        page: u64,
        disk: &[u8],
        mut fetch: impl FnMut(&Entry, &mut Vec<u8>) -> Result<(), Damage>,
    ) -> Result<Verdict, Damage> {
        let (begin, end) = (page * PAGE, page.saturating_add(1).saturating_mul(PAGE));
        let zeros = self.zeros.iter().filter(|number| {
            let change = &self.changes[**number];
            change.from < end && begin < change.to
        });
        let of_page: BTreeSet<usize> =
            self.writes.get(&page).into_iter().flatten().chain(zeros).copied().collect();
        let within = |change: &Change| {
            let (from, to) = (change.from.max(begin), change.to.min(end));
            (from - begin) as usize..(to - begin) as usize
        };

        let mut covered = vec![false; PAGE as usize];
        let mut complete = None;
        for number in &of_page {
            let range = &mut covered[within(&self.changes[*number])];
            if range.contains(&false) {
                range.fill(true);
                complete = Some(*number);
            }
        }
        let Some(complete) = complete else { return Ok(Verdict::Done) };

        let mut now = disk.to_vec();
        let mut fits = vec![false; disk.len() / SECTOR];
        let mut payload = Vec::new();
        for number in &of_page {
            let change = &self.changes[*number];
            let range = within(change);
            if change.zeros {
                now[range].fill(0);
            } else {
                fetch(&change.entry, &mut payload)?;
                let skipped = (begin + range.start as u64 - change.from) as usize;
                let len = range.len();
                now[range].copy_from_slice(&payload[skipped..skipped + len]);
            }
            if *number >= complete {
                // What is not covered was taken from the disk, and fits.
                let sectors = now.chunks(SECTOR).zip(disk.chunks(SECTOR));
                fits.iter_mut().zip(sectors).for_each(|(fits, (now, disk))| *fits |= now == disk);
            }
        }
        if fits.contains(&false) {
            return Ok(Verdict::Kept);
        }
        let differs = |at: &usize| now[*at] != disk[*at];
        let (first, last) = ((0..now.len()).find(differs), (0..now.len()).rfind(differs));
        Ok(match (first, last) {
            (Some(first), Some(last)) => {
                Verdict::Replayed { offset: begin + first as u64, bytes: now[first..=last].to_vec() }
            }
            _ => Verdict::Done,
        })
    }
}
