//! What is written to a journal when, what a crash leaves of it, and what a replay makes of that. Pure: the disk is an
//! argument.
//!
//! A psync writes one *batch*: the bytes of all lines that wait, copied out of the region when the batch is made. It is
//! acknowledged when the batch is durable. Batches fill one half of the journal, then the other. A half is written again
//! when a *checkpoint* (a sync of the region, which began after the half's last batch was made) has ended, and a
//! durable batch says so: each batch names the first one that a replay still needs (`from`).
//!
//! **What a replay does.** The newest batch that is whole says where to begin; all batches from there to it must be there,
//! and are written into the region in order. Then the region is synced, and a batch without lines, a *note*, says that
//! nothing before it is needed any more. A crash before the note is durable has the same replay done again.
//!
//! **Why that loses nothing.** Take a byte and its last acknowledged psync. If that was a batch from `from` on, the replay
//! ends with its bytes, or those of a newer batch. If it was an older batch, a checkpoint that began after it has put its
//! bytes, or newer ones, into the region, and any batch that the replay writes over them is newer still. If it was no batch
//! but a sync of everything (too much for a batch), the note that follows such a sync before it is acknowledged has taken
//! all older batches out of the replay. The kernel may also have written pages of its own accord, in any order: what it
//! wrote was never acknowledged, so a replay may put an older value back that was, as on any medium without a psync.
//!
//! **A process that dies takes nothing along**: the kernel has all it wrote, and newer than the journal, and a replay would undo
//! visible stores. So there is none if the page cache is *known* to have lived since the batches were written, with nothing of it lost
//! on its way to the disk. All of this must hold: it is the same boot, and the kernel has had the inode all the time (`cache`); no mark says
//! that a sync or a write had failed; and the sync of whoever opens the file succeeds, which is told of any failure that nobody was told
//! before. Whoever dies while he is being told takes the answer along, and others may sync the file meanwhile: so the file
//! system is asked as well ([`Disk::prove`]). In all other cases the batches are replayed, as after a power loss: what was only visible may go.
//! An owner who promises nothing of what is only visible names no boot in its batches ([`sign`](Log::sign)): they are replayed always. Then
//! nothing rests on what is known of the cache, which knows nothing of somebody who wrote an older copy into this very file.
//!
//! **A medium that fails.** The kernel tells of a page that it could not write once, and has it clean then: until it gives the
//! page up, the cache has what the disk has not. So the first failure is final for a process, and whoever sees it writes a *mark*
//! beside the halves, durably: there will be a replay, whatever the next one to open the file is told. A page that is given up reverts while
//! the process still runs, and lines that are copied from it are old. So the kernel is asked for failures between the copy
//! and the write, and a batch of such lines is never written. After a replay the clean pages of the region are given up, so that
//! nobody relies on what only the cache has.
//!
//! **What is torn.** Batches are written one after the other, each to blocks that nothing needs, so only the last can be
//! torn, and was not acknowledged: its checksum finds out, and it is taken as never written. Any other that is needed and
//! not whole is damage, and refused. What is torn must stay so, and a later write
//! that is torn in turn could bring the very sectors that it lacks. So whoever finds its header writes a note, with a number above
//! its own, before anybody sees the region: then it lies in the note's place, or a replay that it is too old for. At every moment one durable batch is whole, so a journal without any is damage, too.
//!
//! One block of each half is kept for a note, so that there is always room to say that the other half is free.

use std::io;
use std::ops::Range;

use super::format::{
    self, BLOCK, HEADER, Header, JournalLayout, NO_BOOT, Name, blocks_for, bytes_of, put_runs,
};

/// The file under a journal.
pub(crate) trait Disk {
    /// Writes whole blocks of the halves, which are durable when it returns.
    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads blocks of the halves.
    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()>;
    /// Makes all durable that the file has, region and journal.
    fn sync(&mut self) -> io::Result<()>;
    /// Writes bytes of the region: visible, not durable.
    fn restore(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Whether anything that was to be made durable was not, and this journal was not told so yet. Writes nothing.
    fn check(&mut self) -> io::Result<()>;
    /// As [`sync`](Self::sync), and fails if any earlier write may have failed, whoever was told of it.
    fn prove(&mut self) -> io::Result<()>;
    /// Notes durably that all from this batch on needs a replay.
    fn mark(&mut self, sequence: u64) -> io::Result<()>;
    /// What the newest mark says.
    fn marked(&mut self) -> io::Result<Option<u64>>;
    /// What is read next is what the disk has.
    fn forget(&mut self, part: Part) -> io::Result<()>;
}

/// Part of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The bytes in front of the journal.
    Region,
    /// The halves of the journal.
    Halves,
}

/// What is known of the page cache that a file's last writers wrote to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cache {
    /// It is this one.
    Kept,
    /// Nothing: it may have been lost.
    Unknown,
}

/// Adds the bytes of lines of the region to the end.
pub(crate) trait Copy: FnMut(Range<u64>, &mut Vec<u8>) -> io::Result<()> {}

impl<F: FnMut(Range<u64>, &mut Vec<u8>) -> io::Result<()>> Copy for F {}

/// No journal comes to so many batches.
const SEQUENCE_MAX: u64 = 1 << 62;

/// What is to be made durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// These lines, in order and apart.
    Lines(Vec<Range<u64>>),
    /// All there is.
    Everything,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It is durable.
    Durable,
    /// Nothing was done: a checkpoint must end first.
    Full,
}

/// Why a journal cannot be used.
#[derive(Debug)]
pub(crate) enum Bad {
    /// It could not be read, or the region not be written.
    Os(io::Error),
    /// Something that a replay needs is not there.
    Damaged(String),
}

impl From<io::Error> for Bad {
    fn from(e: io::Error) -> Self {
        Self::Os(e)
    }
}

/// What was found when a journal was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Recovered {
    /// Batches that were written into the region.
    pub(crate) replayed: u64,
}

/// A journal that is written.
#[derive(Debug)]
pub(crate) struct Log {
    place: JournalLayout,
    boot: Name,
    /// The number of the next batch.
    next: u64,
    /// The half that is written now, and how many of its blocks are used.
    half: usize,
    used: u64,
    /// The last batch in each half.
    last: [u64; 2],
    /// What batches before this one have is durable in the region.
    from: u64,
    /// What the newest batch says of that: what a replay would believe.
    durable_from: u64,
    /// The newest batch is a note that leaves nothing to replay.
    clean: bool,
    /// Made anew for each batch.
    batch: Vec<u8>,
}

impl Log {
    /// Starts a journal in halves of zeros: from now on it has a batch that is whole.
    pub(crate) fn create(disk: &mut impl Disk, place: JournalLayout, boot: Name) -> io::Result<Self> {
        let mut log = Self::at(place, boot, 1);
        log.note(disk)?;
        Ok(log)
    }

    fn at(place: JournalLayout, boot: Name, next: u64) -> Self {
        Self {
            place,
            boot,
            next,
            half: 0,
            used: 0,
            last: [0; 2],
            from: next,
            durable_from: next,
            clean: false,
            batch: Vec::new(),
        }
    }

    /// Takes up a journal that somebody left, as the head of this file says.
    pub(crate) fn open(
        disk: &mut impl Disk,
        place: JournalLayout,
        boot: Name,
        cache: Cache,
    ) -> Result<(Self, Recovered), Bad> {
        let written = disk.sync();
        // A block that could not be written may be whole in the cache only.
        disk.forget(Part::Halves)?;
        let mark = disk.marked()?.filter(|mark| *mark < SEQUENCE_MAX);
        let (found, highest) = scan(disk, &place)?;
        if found.windows(2).any(|two| two[0].sequence == two[1].sequence) {
            return Err(damaged("two of its records have one number"));
        }
        let newest = *found.last().ok_or_else(|| damaged("none of its records can be read"))?;
        let needed: Vec<Header> = found.iter().filter(|h| h.sequence >= newest.from).copied().collect();
        let whole = needed.iter().zip(newest.from..).all(|(header, sequence)| header.sequence == sequence);
        if !whole || needed.len() as u64 != newest.sequence - newest.from + 1 {
            return Err(damaged("records that were acknowledged cannot be read"));
        }
        let mut log = Self::at(place, boot, highest.max(mark.unwrap_or(0)) + 1);
        log.half = usize::from(u64::from(newest.block) >= place.half);
        log.used = u64::from(newest.block) % place.half + newest.blocks();
        log.durable_from = newest.from;
        for header in &found {
            log.last[usize::from(u64::from(header.block) >= place.half)] = header.sequence;
        }
        if log.used == place.half && log.last[1 - log.half] >= log.durable_from {
            return Err(damaged("its records fill it wholly, which they never do"));
        }
        let mut recovered = Recovered::default();
        let clean = newest.is_note() && newest.from == newest.sequence;
        let torn = highest > newest.sequence;
        let marked = mark.is_some_and(|mark| newest.from <= mark);
        let kept = cache == Cache::Kept && !marked;
        let lived = newest.boot == boot && kept;
        let written = match written {
            Ok(()) if lived || newest.boot == NO_BOOT && kept => disk.prove(),
            written => written,
        };
        if written.is_err() && !marked {
            // It was told to us, and may be told to nobody else.
            disk.mark(newest.sequence)?;
        }
        let survived = lived && written.is_ok();
        if !survived {
            // All are looked at before anything is changed.
            for header in needed.iter().filter(|header| !header.is_note()) {
                let batch = read(disk, header)?;
                if !format::runs(&batch[HEADER..]).all(|run| run.is_some_and(|run| within(&place, run))) {
                    return Err(damaged("a record names bytes that do not lie in the region"));
                }
            }
            recovered.replayed = replay(disk, &place, &needed)?;
            // Where all that the cache has is on its way to the disk, it may stay.
            if !kept || written.is_err() || newest.boot != NO_BOOT {
                disk.forget(Part::Region)?;
            }
        }
        log.clean = clean;
        if !clean || torn || marked || written.is_err() {
            log.note(disk)?;
        }
        Ok((log, recovered))
    }

    /// What batches are signed with from now on: this boot, or [`NO_BOOT`].
    pub(crate) const fn sign(&mut self, boot: Name) {
        self.boot = boot;
    }

    /// Bytes of runs in the largest batch.
    pub(crate) const fn batch_max(&self) -> u64 {
        (self.place.half - 1).div_ceil(4) * BLOCK - HEADER as u64
    }

    /// Whether this is too much for a batch, and a sync of all there is. No checkpoint may be under way then: a failure is told
    /// to one of two syncs only, and the other one would succeed.
    pub(crate) fn syncs(&self, work: &Work) -> bool {
        match work {
            Work::Lines(lines) => bytes_of(lines) > self.batch_max(),
            Work::Everything => true,
        }
    }

    /// Makes lines of the region durable, as they are now.
    ///
    /// # Errors
    /// The disk's, or that of `copy`, after which the journal is of no more use.
    pub(crate) fn commit(
        &mut self,
        disk: &mut impl Disk,
        work: &Work,
        copy: impl Copy,
    ) -> io::Result<Outcome> {
        let lines = match work {
            Work::Lines(lines) if !self.syncs(work) => lines,
            // Its cost is that of all pages that were written since the last checkpoint, as it is one.
            Work::Lines(_) | Work::Everything => return self.sync(disk).map(|()| Outcome::Durable),
        };
        let bytes = bytes_of(lines);
        if self.used + blocks_for(bytes) + 1 > self.place.half {
            let other = self.last[1 - self.half];
            if other >= self.from {
                return Ok(Outcome::Full);
            }
            if other >= self.durable_from {
                // A crash while the other half is overwritten must find that nothing in it is needed.
                self.note(disk)?;
            }
            self.switch();
        }
        self.batch.clear();
        self.batch.resize(HEADER, 0);
        put_runs(&mut self.batch, lines, copy)?;
        disk.check()?;
        self.write(disk)?;
        Ok(Outcome::Durable)
    }

    /// Makes all durable, and has nothing replayed.
    pub(crate) fn sync(&mut self, disk: &mut impl Disk) -> io::Result<()> {
        disk.sync()?;
        self.from = self.next;
        self.note(disk)
    }

    /// As [`sync`](Self::sync), if there is anything to replay.
    pub(crate) fn close(&mut self, disk: &mut impl Disk) -> io::Result<()> {
        if self.clean { Ok(()) } else { self.sync(disk) }
    }

    /// Whether a sync of the region would free a half.
    pub(crate) const fn wants_checkpoint(&self) -> bool {
        self.last[1 - self.half] >= self.from
    }

    /// A sync of the region begins now; [`checkpointed`](Self::checkpointed) is to be told this when it has ended.
    pub(crate) const fn checkpoint(&self) -> u64 {
        self.next
    }

    /// A sync of the region has ended that began when [`checkpoint`](Self::checkpoint) said this.
    pub(crate) fn checkpointed(&mut self, begun: u64) {
        self.from = self.from.max(begun);
    }

    fn note(&mut self, disk: &mut impl Disk) -> io::Result<()> {
        if self.used == self.place.half {
            self.switch();
        }
        self.batch.clear();
        self.batch.resize(HEADER, 0);
        self.write(disk)
    }

    fn switch(&mut self) {
        let other = self.last[1 - self.half];
        assert!(other < self.durable_from, "batch {other} is needed from {} on", self.durable_from);
        self.half = 1 - self.half;
        self.used = 0;
    }

    fn write(&mut self, disk: &mut impl Disk) -> io::Result<()> {
        let block = self.half as u64 * self.place.half + self.used;
        let header = Header {
            name: self.place.name,
            boot: self.boot,
            sequence: self.next,
            from: self.from,
            block: block as u32,
            bytes: (self.batch.len() - HEADER) as u32,
        };
        format::seal(&mut self.batch, &header);
        disk.write(block, &self.batch)?;
        self.used += header.blocks();
        self.last[self.half] = self.next;
        self.durable_from = self.from;
        self.clean = header.is_note() && header.from == header.sequence;
        self.next += 1;
        assert!(self.used <= self.place.half, "{} blocks of {} are used", self.used, self.place.half);
        Ok(())
    }
}

fn damaged(what: &str) -> Bad {
    Bad::Damaged(what.to_owned())
}

fn within(place: &JournalLayout, (at, bytes): (u64, &[u8])) -> bool {
    let end = place.region.next_multiple_of(crate::flush::LINE as u64);
    at < place.region && at + bytes.len() as u64 <= end
}

fn read(disk: &mut impl Disk, header: &Header) -> Result<Vec<u8>, Bad> {
    let mut batch = vec![0; (header.blocks() * BLOCK) as usize];
    disk.read(header.block.into(), &mut batch)?;
    batch.truncate(HEADER + header.bytes as usize);
    if format::seals(&batch) { Ok(batch) } else { Err(damaged("a record changes while it is read")) }
}

/// The last line need not be a whole one.
fn restore(disk: &mut impl Disk, place: &JournalLayout, (at, bytes): (u64, &[u8])) -> io::Result<()> {
    let len = (place.region - at).min(bytes.len() as u64);
    disk.restore(at, &bytes[..len as usize])
}

/// Writes the lines of batches into the region, in order, and makes them durable.
fn replay(disk: &mut impl Disk, place: &JournalLayout, needed: &[Header]) -> Result<u64, Bad> {
    let mut replayed = 0;
    for header in needed.iter().filter(|header| !header.is_note()) {
        let batch = read(disk, header)?;
        for run in format::runs(&batch[HEADER..]).flatten() {
            restore(disk, place, run)?;
        }
        replayed += 1;
    }
    disk.sync()?;
    Ok(replayed)
}

/// Writes into the region what batches have that are whole, though others that are needed are not: unless the cache lived, which
/// has all of it.
pub(crate) fn salvage(disk: &mut impl Disk, place: JournalLayout, cache: Cache) -> Result<(), Bad> {
    if cache == Cache::Kept && disk.marked()?.is_none() {
        return Ok(());
    }
    let (found, _) = scan(disk, &place)?;
    let from = found.last().map_or(0, |newest| newest.from);
    for header in found.iter().filter(|header| header.sequence >= from && !header.is_note()) {
        let batch = read(disk, header)?;
        for run in format::runs(&batch[HEADER..]).flatten().filter(|run| within(&place, *run)) {
            restore(disk, &place, run)?;
        }
    }
    Ok(())
}

/// All batches that are whole, in the order of their numbers; and the highest number of any, whole or torn.
fn scan(disk: &mut impl Disk, place: &JournalLayout) -> Result<(Vec<Header>, u64), Bad> {
    /// Blocks read at a time.
    const CHUNK: u64 = 64;
    let mut found: Vec<Header> = Vec::new();
    let mut chunk = vec![0; (CHUNK * BLOCK) as usize];
    let (mut next, mut highest) = (0, 0);
    for first in (0..place.blocks()).step_by(CHUNK as usize) {
        let blocks = CHUNK.min(place.blocks() - first);
        let chunk = &mut chunk[..(blocks * BLOCK) as usize];
        disk.read(first, chunk)?;
        for (block, bytes) in (first..).zip(chunk.chunks_exact(BLOCK as usize)) {
            let Some(header) = Header::decode(bytes, &place.name, block).filter(|_| block >= next) else {
                continue;
            };
            if header.sequence >= SEQUENCE_MAX {
                continue;
            }
            highest = highest.max(header.sequence);
            let fits = block % place.half + header.blocks() <= place.half;
            if fits && read(disk, &header).is_ok() {
                next = block + header.blocks();
                found.push(header);
            }
        }
    }
    found.sort_unstable_by_key(|header| header.sequence);
    Ok((found, highest))
}
