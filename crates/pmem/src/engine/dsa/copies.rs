//! The engine: copies in order, by a device that keeps none.
//!
//! **Order.** A device of several engines carries descriptors out side by side, and in no order. Two things would bring
//! order: the *fence* flag, which is known within a batch only, and to wait. This engine waits: a copy's first descriptor is
//! handed over when the last of the copy before has completed, and been seen to. So whoever sees a byte of a copy
//! sees all of those before it, by the plainest argument there is: they were complete when its first byte was asked for. A
//! completion record is written after the bytes it is about (specification, memory ordering; all addresses of our
//! descriptors are of one traffic class, as no selector flag is set), the CPU reads it by an acquire, and fences before it
//! hands over the next. A copy that is longer than a descriptor may be is cut, and its pieces go in parallel,
//! as many as the queue holds: within a copy nobody was promised an order. What this costs: the device rests for a round
//! trip between two copies, so it is for long ones. Batches with fences would hide that from short ones. They are not
//! here: a page fault in one abandons what is behind it, kernels refuse them to programs without privilege on the devices of the
//! first generation, and nobody could say here what they gain.
//!
//! **Who drives.** No thread: each call of the owner looks at the device, and goes on with what waits. Between calls the
//! device carries out the copy that it has.
//!
//! **Durability** rests on the CPU alone: when a copy has completed, its range is written back (`pwb`) and synced as that of
//! any other engine, whatever the cache-control flag promises.
//!
//! **Page faults.** The device may not wait for a page (*block on fault* is not set), so a copy that meets one that is not
//! present completes in part. The CPU then carries out the part that lies in that page itself, as every CPU's copy is:
//! that makes the page present without touching a byte that is not to be written, and where memory has vanished it fails
//! as guarded accesses and the fault handler make it, after which the copy fails. Then the device goes on.
//!
//! **Never more than the queue holds.** A dedicated queue drops what it has no room for, without a word. Each
//! descriptor has one of as many completion records as the queue has places, from before it is handed over until the record
//! was read.
//!
//! **What is the device's.** Source, target and record of a descriptor stay where they are until its record is written: the
//! engine waits for that before it gives anything back, and when it is dropped. A device that completes nothing for ten
//! seconds is given up, and what it may still write to is then never freed.
//!
//! **Fork.** The child has neither the portal nor the PASID: there the engine has ended, as a worker's has, and what its parent
//! had under way comes back as [`CopyError::Died`] (the parent's own engine goes on with it).
#![expect(unsafe_code, reason = "a device is handed addresses")]

use std::collections::VecDeque;
use std::ptr;
use std::time::{Duration, Instant};

use super::portal::{Handed, Portal};
use super::spec::{CACHE_CONTROL, Descriptor, PAGE_FAULT, Record, STATUS_MASK, SUCCESS, Written};
use super::{DeviceError, Limits};
use crate::engine::patience::Patience;
use crate::engine::{
    Bytes, Completion, CopyEngine, CopyError, CrashOrder, Options, Placement, Promise, Refusal, Refused,
    Source, Ticket, check,
};
use crate::map;
use crate::medium::Medium;
use crate::region::Region;

/// A sleep between two looks at a device that takes longer than spinning pays for.
const NAP: Duration = Duration::from_micros(50);

/// Of the time between two looks, so much counts at most: a process that was stopped blames no device.
const LOOK_MAX: Duration = Duration::from_millis(10);

/// Memory that has addresses for a device.
pub(in crate::engine) trait Target: Medium + Clone + Send + 'static {
    /// The address of its first byte. The rest follows.
    fn address(&self) -> u64;
}

impl Target for Region {
    fn address(&self) -> u64 {
        self.base().expose_provenance() as u64
    }
}

/// The engine, whatever it copies to.
pub(in crate::engine) struct Copies<M: Target> {
    portal: Box<dyn Portal>,
    limits: Limits,
    options: Options,
    /// From the oldest: those that have ended, those that are copied and wait for their sync, the one that the device has, and
    /// those that wait for it.
    jobs: VecDeque<Job<M>>,
    ended: usize,
    copied: usize,
    /// Where the round ends whose copies share a sync: that of [`CrashOrder::Prefix`] is one copy long.
    round: usize,
    current: Option<Current>,
    /// One for each place of the queue.
    records: Records,
    /// What each of them is about, while the device has it.
    pieces: Box<[Option<Piece>]>,
    busy: usize,
    stopped: bool,
    submitted: u64,
    patience: Patience,
    /// How long the device has done nothing with what it has, as far as anybody looked.
    idle: Duration,
    looked: Option<Instant>,
    /// Whose PASID the descriptors have.
    pub(super) process: u32,
}

struct Job<M> {
    ticket: Ticket,
    source: Source,
    to: M,
    offset: u64,
    outcome: Option<Result<Promise, CopyError>>,
}

/// The copy that the device has.
struct Current {
    from: u64,
    to: u64,
    len: u64,
    /// Up to here it was cut into pieces.
    cut: u64,
    /// What a page fault left to be done.
    again: Vec<Piece>,
    failed: Option<CopyError>,
}

#[derive(Clone, Copy)]
struct Piece {
    at: u64,
    len: u64,
}

/// Completion records, on lines of their own, in memory that a fork leaves as it is: private memory is made read-only by
/// one, until the CPU writes to it, and a device that cannot write a record has nobody to tell.
struct Records(Region);

impl Records {
    const EACH: u64 = 64;

    fn new(count: usize) -> Result<Self, crate::Error> {
        let memory = Region::memfd("remanence-dsa", count as u64 * Self::EACH)?;
        memory.populate();
        Ok(Self(memory))
    }

    fn at(&self, number: usize) -> &Record {
        let offset = number as u64 * Self::EACH;
        assert!(self.0.contains(offset, Self::EACH), "there is no record {number}");
        // SAFETY: inside the mapping, as just checked, which lives as long as `self` and starts on a page; a record is nothing but
        // atomics, of which zeros are valid, and nobody reaches this memory otherwise. Only the device writes there too.
        unsafe { &*self.0.base().add(offset as usize).cast() }
    }
}

impl Bytes<'_> {
    fn address(self) -> u64 {
        match self {
            Self::Slice(bytes) => bytes.as_ptr().expose_provenance() as u64,
            Self::Region(region, at, _) => region.address() + at,
        }
    }

    fn part(self, part: Piece) -> Self {
        match self {
            Self::Slice(bytes) => Self::Slice(&bytes[part.at as usize..(part.at + part.len) as usize]),
            Self::Region(region, at, _) => Self::Region(region, at + part.at, part.len),
        }
    }

    fn failure(self) -> std::io::Result<()> {
        match self {
            Self::Slice(_) => Ok(()),
            Self::Region(region, ..) => region.failure(),
        }
    }
}

impl Current {
    fn is_cut(&self) -> bool {
        self.failed.is_some() || (self.cut == self.len && self.again.is_empty())
    }

    /// What goes to the device next.
    fn next(&self, transfer_max: u64) -> Option<Piece> {
        if self.is_cut() {
            return None;
        }
        let cut = Piece { at: self.cut, len: (self.len - self.cut).min(transfer_max) };
        Some(self.again.last().copied().unwrap_or(cut))
    }

    fn handed_over(&mut self, piece: Piece) {
        if self.again.pop().is_none() {
            self.cut += piece.len;
        }
    }

    /// How much of what is left of a piece lies in front of the end of the page that was not present: at least a byte. The
    /// device may tell any address of the page. One that is in neither the source nor the target tells nothing, and
    /// then it is the page that ends first.
    fn to_mend(&self, left: Piece, fault: u64) -> u64 {
        let page = map::page_size() as u64;
        let upto = |from: u64| {
            let first = from & !(page - 1);
            let faulted = fault & !(page - 1);
            let inside = (first..from + left.len).contains(&faulted);
            (inside, if inside { faulted } else { first } + page - from)
        };
        let (source, target) = (upto(self.from + left.at), upto(self.to + left.at));
        let len = match (source, target) {
            ((true, len), (false, _)) | ((false, _), (true, len)) => len,
            ((_, one), (_, other)) => one.min(other),
        };
        len.min(left.len)
    }
}

impl<M: Target> Copies<M> {
    /// An engine on this queue.
    ///
    /// # Errors
    /// No memory for completion records.
    pub(super) fn new(
        portal: Box<dyn Portal>,
        limits: Limits,
        options: Options,
    ) -> Result<Self, crate::Error> {
        let places = limits.in_flight.max(1);
        Ok(Self {
            portal,
            limits,
            options: options.within_bounds(),
            jobs: VecDeque::new(),
            ended: 0,
            copied: 0,
            round: 0,
            current: None,
            records: Records::new(places)?,
            pieces: (0..places).map(|_| None).collect(),
            busy: 0,
            stopped: false,
            submitted: 0,
            patience: Patience::new(),
            idle: Duration::ZERO,
            looked: None,
            process: std::process::id(),
        })
    }

    fn is_inherited(&self) -> bool {
        std::process::id() != self.process
    }

    /// Does what can be done without waiting for the device.
    fn advance(&mut self) {
        if self.is_inherited() {
            return;
        }
        loop {
            self.reap();
            self.feed();
            if let Some(current) = &self.current {
                if !current.is_cut() || self.busy > 0 {
                    return self.watch();
                }
                self.finish_current();
            }
            if self.copied == self.round {
                self.settle();
                let waiting = self.jobs.len() - self.copied;
                if waiting == 0 {
                    self.looked = None;
                    return;
                }
                self.round = self.copied + if self.options.order == CrashOrder::Prefix { 1 } else { waiting };
            }
            self.begin();
        }
    }

    /// Takes the next copy up.
    fn begin(&mut self) {
        let Job { source, to, offset, .. } = &self.jobs[self.copied];
        let (bytes, target) = (source.bytes(), to.address() + offset);
        let (from, len) = (bytes.address(), bytes.len());
        let mut current = Current { from, to: target, len, cut: 0, again: Vec::new(), failed: None };
        // A device that can move overlapping bytes may do it backwards, and then counts a partial completion from the end.
        if len > 0 && from < target + len && target < from + len {
            self.options.placement.copy(bytes, to, *offset);
            current.cut = len;
        }
        self.idle = Duration::ZERO;
        self.current = Some(current);
    }

    /// Hands over what there is room for.
    fn feed(&mut self) {
        let Some(current) = &mut self.current else { return };
        let placement = self.options.placement;
        let cached = placement != Placement::NonTemporal && self.limits.cache_control;
        let flags = if cached { CACHE_CONTROL } else { 0 };
        while let Some(piece) = current.next(self.limits.transfer_max)
            && let Some(free) = self.pieces.iter().position(Option::is_none)
        {
            let record = self.records.at(free);
            record.clear();
            let record = ptr::from_ref(record).expose_provenance() as u64;
            // No piece is longer than `transfer_max`, which fits.
            let (from, to) = (current.from + piece.at, current.to + piece.at);
            let descriptor = Descriptor::copy(from, to, piece.len as u32, flags, record);
            // SAFETY: the record is alive, and all atomics. The source and the target's clone are
            // the job's, which leaves this engine when the device has nothing of it any more (`finish_current`), or never
            // (`give_up_device`). The source is only read, by CPU and device. Nobody makes a reference to a target's bytes:
            // `Target` is for memory that others write to at any time. `Drop` waits for the device.
            match unsafe { self.portal.submit(&descriptor) } {
                Ok(Handed::Over) => {
                    self.pieces[free] = Some(piece);
                    self.busy += 1;
                    self.idle = Duration::ZERO;
                    current.handed_over(piece);
                }
                Ok(Handed::Full) => return,
                Err(e) => current.failed = Some(DeviceError::Portal(e).into()),
            }
        }
    }

    /// Looks at what the device has completed.
    fn reap(&mut self) {
        for at in 0..self.pieces.len() {
            let Some(piece) = self.pieces[at] else { continue };
            let Some(written) = self.records.at(at).written() else { continue };
            self.pieces[at] = None;
            self.busy -= 1;
            self.idle = Duration::ZERO;
            self.completed(piece, written);
        }
    }

    /// What a completion record says of a piece.
    fn completed(&mut self, piece: Piece, written: Written) {
        let Some(current) = &mut self.current else { unreachable!("a piece of no copy has completed") };
        let completed = u64::from(written.completed);
        let error = match written.status & STATUS_MASK {
            SUCCESS => return,
            PAGE_FAULT if completed < piece.len => {
                let left = Piece { at: piece.at + completed, len: piece.len - completed };
                let mended = current.to_mend(left, written.fault);
                return self.mend(left, mended);
            }
            PAGE_FAULT => DeviceError::Impossible { completed, of: piece.len },
            _ => DeviceError::Status(written.status),
        };
        current.failed.get_or_insert(error.into());
    }

    /// The CPU copies the first bytes of what is left of a piece: those in the page that was not present.
    fn mend(&mut self, left: Piece, mended: u64) {
        let (Some(current), Job { source, to, offset, .. }) = (&mut self.current, &self.jobs[self.copied])
        else {
            return;
        };
        if current.failed.is_some() {
            return;
        }
        // For the time of the copy: should it panic, the copy has failed.
        current.failed = Some(CopyError::Died);
        let bytes = source.bytes();
        self.options.placement.copy(bytes.part(Piece { at: left.at, len: mended }), to, offset + left.at);
        current.failed = to.failure().and_then(|()| bytes.failure()).err().map(CopyError::from);
        if mended < left.len {
            current.again.push(Piece { at: left.at + mended, len: left.len - mended });
        }
    }

    /// The device is through with a copy.
    fn finish_current(&mut self) {
        let Some(current) = &mut self.current else { return };
        if let Some(error) = current.failed.take() {
            self.current = None;
            // Those before it come first; should their sync fail, this one has been given up with that.
            self.settle();
            self.stopped = true;
            return self.end_with(error);
        }
        let Job { to, offset, .. } = &self.jobs[self.copied];
        if self.options.placement.promise() == Promise::Synced {
            to.pwb(*offset..offset + current.len);
        }
        self.current = None;
        self.copied += 1;
    }

    /// Syncs what is copied.
    fn settle(&mut self) {
        while self.ended < self.copied && !self.stopped {
            let job = &mut self.jobs[self.ended];
            match self.options.placement.sync(&job.to) {
                Ok(()) => job.outcome = Some(Ok(self.options.placement.promise())),
                Err(e) => {
                    self.stopped = true;
                    return self.end_with(e.into());
                }
            }
            self.ended += 1;
        }
    }

    /// The oldest that has not ended does so with this error, and all behind it are given up.
    fn end_with(&mut self, error: CopyError) {
        let mut error = Some(error);
        for job in self.jobs.iter_mut().skip(self.ended) {
            job.outcome = Some(Err(error.take().unwrap_or(CopyError::GivenUp)));
        }
        self.ended = self.jobs.len();
        self.copied = self.ended;
        self.round = self.ended;
    }

    /// Gives a device up that does nothing.
    fn watch(&mut self) {
        let now = Instant::now();
        let since = self.looked.replace(now).map_or(Duration::ZERO, |looked| now - looked);
        self.idle += since.min(LOOK_MAX);
        if self.idle >= self.limits.idle_max {
            self.give_up_device();
        }
    }

    /// What the device has is its own for ever.
    fn give_up_device(&mut self) {
        if self.busy > 0 {
            let job = &mut self.jobs[self.copied];
            std::mem::forget(std::mem::replace(&mut job.source, Source::lost()));
            std::mem::forget(job.to.clone());
            std::mem::forget(self.records.0.clone());
            self.pieces = Box::default();
            self.busy = 0;
        }
        if let Some(current) = &mut self.current {
            current.failed = Some(DeviceError::Lost.into());
            self.finish_current();
        }
    }

    /// Looks until it is so. Not in a child, where nothing comes of it.
    fn drive_until(&mut self, ready: impl Fn(&Self) -> bool) {
        let mut patience = self.patience;
        let looking = || {
            self.advance();
            ready(self)
        };
        patience.wait(looking, || std::thread::sleep(NAP));
        self.patience = patience;
    }

    fn take(&mut self) -> Option<Completion> {
        if self.ended == 0 && !self.is_inherited() {
            return None;
        }
        let Job { ticket, source, outcome, .. } = self.jobs.pop_front()?;
        self.ended = self.ended.saturating_sub(1);
        self.copied = self.copied.saturating_sub(1);
        self.round = self.round.saturating_sub(1);
        Some(Completion { ticket, source, outcome: outcome.unwrap_or(Err(CopyError::Died)) })
    }
}

impl<M: Target> CopyEngine<M> for Copies<M> {
    fn options(&self) -> Options {
        self.options
    }

    fn submit(&mut self, from: Source, to: &M, offset: u64) -> Result<Ticket, Refused> {
        self.advance();
        let window = self.options.window;
        let why = match check(from.len(), to, offset) {
            _ if self.stopped || self.is_inherited() => Some(Refusal::Stopped),
            Err(why) => Some(why),
            Ok(()) if self.jobs.len() == window => Some(Refusal::WindowFull { window }),
            Ok(()) => None,
        };
        if let Some(why) = why {
            return Err(Refused { why, source: from });
        }
        let ticket = Ticket(self.submitted);
        self.submitted += 1;
        self.jobs.push_back(Job { ticket, source: from, to: to.clone(), offset, outcome: None });
        self.advance();
        Ok(ticket)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.advance();
        self.take()
    }

    fn wait(&mut self) -> Option<Completion> {
        if !self.jobs.is_empty() && !self.is_inherited() {
            self.drive_until(|copies| copies.ended > 0);
        }
        self.take()
    }

    fn copy(&mut self, from: &[u8], to: &M, offset: u64) -> Result<Promise, CopyError> {
        check(from.len() as u64, to, offset)?;
        if !self.is_inherited() {
            self.drive_until(|copies| copies.ended == copies.jobs.len());
        }
        if self.stopped || self.is_inherited() {
            return Err(Refusal::Stopped.into());
        }
        let placement = self.options.placement;
        placement.copy(Bytes::Slice(from), to, offset);
        placement.sync(to).map(|()| placement.promise()).map_err(|e| {
            self.stopped = true;
            e.into()
        })
    }

    fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    fn oldest(&self) -> Option<Ticket> {
        self.jobs.front().map(|job| job.ticket)
    }
}

impl<M: Target> Drop for Copies<M> {
    fn drop(&mut self) {
        if self.is_inherited() {
            return self.portal.abandon();
        }
        // A medium that panicked once does so again: then only the device is waited for.
        if std::thread::panicking() {
            self.stopped = true;
            match &mut self.current {
                Some(current) => _ = current.failed.get_or_insert(CopyError::Died),
                None => self.end_with(CopyError::Died),
            }
        }
        self.drive_until(|copies| copies.ended == copies.jobs.len());
    }
}

impl<M: Target> std::fmt::Debug for Copies<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies")
            .field("options", &self.options)
            .field("limits", &self.limits)
            .field("submitted", &self.submitted)
            .field("in_flight", &self.jobs.len())
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}
