//! A device in software, for the tests: what the specification allows a device to do, it does.
//!
//! A thread carries out descriptors in small steps, and each step is one of any descriptor that it has, in any order within
//! that too, so nothing is in order that the specification does not put in order. It checks what a device checks,
//! and answers with the status that the specification has for it. It stops at pages as a seed says, and at those
//! that really are not there. A dedicated queue drops what it has no room for, and remembers that: whoever lets go of the
//! portal then panics. A shared queue says that it is full, now and then when it is not. The status is the last thing
//! that is written.
//!
//! Broken devices, for the trial, are those with a [`Vice`].
//!
//! The promise of this room: it reads and writes what the descriptors name, as a device would, and relies on what
//! [`Portal::submit`]'s callers promise. Memory is touched by the guarded routines only.
#![expect(unsafe_code, reason = "it is handed addresses, as a device is")]

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Limits;
use super::copies::Copies;
pub(in crate::engine) use super::copies::Target;
use super::portal::{Handed, Portal};
use super::spec::{
    CACHE_CONTROL, COMPLETION_ADDRESS_VALID, Descriptor, MEMMOVE, PAGE_FAULT, REQUEST_COMPLETION, Record,
    STATUS_WRITE, SUCCESS,
};
use crate::crash_image::{Choices as _, CrashImage, Seeded};
use crate::engine::Options;
use crate::medium::Medium as _;
use crate::{Fault, guarded, sigbus};

/// What a device gets wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Vice {
    None,
    /// One byte of a long copy is another.
    FlipsAByte,
    /// It writes a byte more than it was told.
    Overruns,
    /// It says that it is done, and does it then.
    CompletesEarly,
    /// It says that it is done when it has stopped at a page.
    HidesFaults,
    /// It says that it stopped behind the end.
    ExaggeratesFaults,
    /// It says nothing any more after so many.
    FallsSilent(u64),
    /// It refuses everything with this status.
    Refuses(u8),
}

/// What a device is like.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Build {
    pub(in crate::engine) shared: bool,
    pub(in crate::engine) size: usize,
    pub(in crate::engine) transfer_max: u64,
    pub(in crate::engine) cache_control: bool,
    /// One in so many descriptors stops at a page.
    pub(in crate::engine) faults: usize,
    pub(in crate::engine) seed: u64,
    pub(in crate::engine) vice: Vice,
}

impl Default for Build {
    fn default() -> Self {
        let (size, transfer_max) = (3, 600);
        Self { shared: false, size, transfer_max, cache_control: true, faults: 6, seed: 1, vice: Vice::None }
    }
}

impl Build {
    pub(in crate::engine) fn limits(self) -> Limits {
        Limits {
            in_flight: self.size,
            transfer_max: self.transfer_max,
            cache_control: self.cache_control,
            idle_max: Duration::from_secs(10),
        }
    }

    /// An engine on a device of its own.
    pub(in crate::engine) fn engine<M: Target>(self, options: Options) -> Copies<M> {
        Copies::new(Box::new(Soft::new(self)), self.limits(), options).unwrap()
    }
}

/// What anybody can count.
#[derive(Debug, Default)]
pub(in crate::engine) struct Counts {
    /// Descriptors that were completed.
    pub(in crate::engine) completed: AtomicU64,
    /// Of these: partial completions.
    pub(in crate::engine) partial: AtomicU64,
    /// Descriptors with the cache-control flag.
    pub(in crate::engine) cached: AtomicU64,
    /// Descriptors that a dedicated queue dropped.
    pub(in crate::engine) dropped: AtomicU64,
    /// The most that the device had at a time.
    pub(in crate::engine) most: AtomicUsize,
}

/// The portal of a device, whose thread ends with it.
pub(in crate::engine) struct Soft {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    whim: Seeded,
}

struct Shared {
    build: Build,
    counts: Arc<Counts>,
    inbox: Mutex<Inbox>,
    more: Condvar,
    /// Descriptors that it has.
    has: AtomicUsize,
}

#[derive(Default)]
struct Inbox {
    descriptors: VecDeque<Descriptor>,
    closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Soft {
    pub(in crate::engine) fn new(build: Build) -> Self {
        sigbus::guard();
        let (counts, inbox) = (Arc::default(), Mutex::default());
        let shared =
            Arc::new(Shared { build, counts, inbox, more: Condvar::new(), has: AtomicUsize::new(0) });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || theirs.live());
        Self { shared, thread: Some(thread), whim: Seeded::new(!build.seed) }
    }

    pub(in crate::engine) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.shared.counts)
    }
}

impl Portal for Soft {
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> io::Result<Handed> {
        let Shared { build, counts, has, .. } = &*self.shared;
        if has.load(Ordering::SeqCst) == build.size {
            if build.shared {
                return Ok(Handed::Full);
            }
            counts.dropped.fetch_add(1, Ordering::SeqCst);
            return Ok(Handed::Over);
        }
        if build.shared && self.whim.pick(5) == 0 {
            return Ok(Handed::Full);
        }
        let now = has.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        lock(&self.shared.inbox).descriptors.push_back(*descriptor);
        self.shared.more.notify_one();
        Ok(Handed::Over)
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        lock(&self.shared.inbox).closed = true;
        self.shared.more.notify_one();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the device broke down");
            let dropped = self.shared.counts.dropped.load(Ordering::SeqCst);
            assert_eq!(
                dropped, 0,
                "descriptors came that a queue of {} has no room for",
                self.shared.build.size
            );
        }
    }
}

/// A descriptor that is being carried out.
struct Task {
    descriptor: Descriptor,
    /// Offsets of the steps to come, from the last on.
    steps: Vec<u64>,
    /// Bytes before the page at which it stops, and whether it is the target's.
    stop: Option<(u64, bool)>,
    /// It has said that it is done.
    told: bool,
}

/// Bytes of a step.
const STEP: u64 = 40;
const PAGE: u64 = 4096;

impl Shared {
    fn live(&self) {
        let mut choices = Seeded::new(self.build.seed);
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            {
                let mut inbox = lock(&self.inbox);
                while tasks.is_empty() && inbox.descriptors.is_empty() && !inbox.closed {
                    inbox = self.more.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                }
                tasks.extend(
                    inbox.descriptors.drain(..).map(|descriptor| self.task(descriptor, &mut choices)),
                );
                if tasks.is_empty() {
                    return;
                }
            }
            let which = choices.pick(tasks.len());
            if self.step(&mut tasks[which]) {
                tasks.swap_remove(which);
            }
        }
    }

    fn task(&self, descriptor: Descriptor, choices: &mut Seeded) -> Task {
        let len = u64::from(descriptor.len);
        let stop = (choices.pick(self.build.faults) == 0).then(|| {
            // At the first byte, or where a page of the source or of the target begins.
            let target = choices.pick(2) == 0;
            let start = if target { descriptor.target } else { descriptor.source };
            let boundary = start.next_multiple_of(PAGE) - start;
            (if boundary < len && choices.pick(3) > 0 { boundary } else { 0 }, target)
        });
        let mut steps: Vec<u64> = (0..stop.map_or(len, |(at, _)| at)).step_by(STEP as usize).collect();
        for at in (1..steps.len()).rev() {
            steps.swap(at, choices.pick(at + 1));
        }
        Task { descriptor, steps, stop, told: false }
    }

    /// Whether it was the last.
    fn step(&self, task: &mut Task) -> bool {
        let Descriptor { source, target, len, flags, .. } = task.descriptor;
        let len = u64::from(len);
        if let Some(status) = self.objection(&task.descriptor) {
            self.complete(&task.descriptor, status, 0, 0);
            return true;
        }
        if self.build.vice == Vice::CompletesEarly && !task.told {
            task.told = true;
            self.complete(&task.descriptor, SUCCESS, 0, 0);
            return task.steps.is_empty();
        }
        if let Some(at) = task.steps.pop() {
            let end = task.stop.map_or(len, |(stop, _)| stop);
            let mut bytes = vec![0; STEP.min(end - at) as usize];
            let moved = load(source + at, &mut bytes).map_err(|Fault| false).and_then(|()| {
                if self.build.vice == Vice::FlipsAByte && at == 320 {
                    bytes[0] ^= 0x10;
                }
                if self.build.vice == Vice::Overruns && at + STEP >= len && len > 4096 {
                    bytes.push(0xEE);
                }
                store(target + at, &bytes).map_err(|Fault| true)
            });
            if let Err(in_target) = moved {
                // A page that really is not there. What lies behind it and was done already does not count.
                task.steps.retain(|step| *step < at);
                task.stop = Some((at, in_target));
            }
            if !task.steps.is_empty() {
                return false;
            }
        }
        if task.told {
            return true;
        }
        if flags & CACHE_CONTROL != 0 {
            self.counts.cached.fetch_add(1, Ordering::SeqCst);
        }
        match (task.stop, self.build.vice) {
            (None, _) | (_, Vice::HidesFaults) => self.complete(&task.descriptor, SUCCESS, 0, 0),
            (Some((at, in_target)), vice) => {
                let (page, bit) = if in_target { (target + at, STATUS_WRITE) } else { (source + at, 0) };
                let said = if vice == Vice::ExaggeratesFaults { len } else { at };
                self.complete(&task.descriptor, PAGE_FAULT | bit, said as u32, page & !(PAGE - 1));
            }
        }
        true
    }

    /// What is wrong with a descriptor.
    fn objection(&self, descriptor: &Descriptor) -> Option<u8> {
        let Descriptor { pasid, flags, source, target, len, interrupt, reserved, operands, .. } = *descriptor;
        let mut known = COMPLETION_ADDRESS_VALID | REQUEST_COMPLETION;
        if self.build.cache_control {
            known |= CACHE_CONTROL;
        }
        let len = u64::from(len);
        match () {
            () if let Vice::Refuses(status) = self.build.vice => Some(status),
            () if flags >> 24 != MEMMOVE.into() => Some(0x10),
            () if flags & 0x00ff_ffff & !known != 0 => Some(0x11),
            () if pasid != 0 || interrupt != 0 || reserved != 0 || operands != [0; 3] => Some(0x12),
            () if len == 0 || len > self.build.transfer_max => Some(0x13),
            () if source < target + len && target < source + len => Some(0x16),
            () => None,
        }
    }

    fn complete(&self, descriptor: &Descriptor, status: u8, completed: u32, fault: u64) {
        assert!(descriptor.completion.is_multiple_of(32), "a record at {:#x}", descriptor.completion);
        let completions = self.counts.completed.fetch_add(1, Ordering::SeqCst);
        if matches!(self.build.vice, Vice::FallsSilent(after) if completions >= after) {
            return;
        }
        self.counts.partial.fetch_add(u64::from(status & !STATUS_WRITE == PAGE_FAULT), Ordering::SeqCst);
        let record: *const Record = std::ptr::with_exposed_provenance(descriptor.completion as usize);
        // SAFETY: the submitter's promise: the record is alive until its status is written, and nobody has it mutably.
        let record = unsafe { &*record };
        // Nonsense first, as a record may be looked at any time before its status is there.
        for nonsense in [true, false] {
            record.completed.store(if nonsense { !completed } else { completed }, Ordering::Relaxed);
            record.fault.store(if nonsense { !fault } else { fault }, Ordering::Relaxed);
        }
        // There is room again when it is known that it is done.
        self.has.fetch_sub(1, Ordering::SeqCst);
        record.status.store(status, Ordering::Release);
    }
}

/// Crash images have no addresses, so they get some that no program has.
const IMAGES: u64 = 1 << 63;
const IMAGE_MAX: u64 = 1 << 40;

static REGISTRY: Mutex<Vec<Weak<CrashImage>>> = Mutex::new(Vec::new());

impl Target for Arc<CrashImage> {
    fn address(&self) -> u64 {
        let mut registry = lock(&REGISTRY);
        let known = registry.iter().position(|image| image.as_ptr() == Self::as_ptr(self));
        let at = known.unwrap_or_else(|| {
            registry.push(Self::downgrade(self));
            registry.len() - 1
        });
        IMAGES + at as u64 * IMAGE_MAX
    }
}

fn load(from: u64, into: &mut [u8]) -> Result<(), Fault> {
    let from = std::ptr::with_exposed_provenance(from as usize);
    // SAFETY: the submitter's promise; `Soft::new` installed the handler.
    unsafe { guarded::copy(into.as_mut_ptr(), from, into.len()) }
}

fn store(to: u64, bytes: &[u8]) -> Result<(), Fault> {
    if to >= IMAGES {
        let (at, offset) = ((to - IMAGES) / IMAGE_MAX, (to - IMAGES) % IMAGE_MAX);
        let image = lock(&REGISTRY)[at as usize].upgrade();
        image.expect("the submitter keeps it").write(offset, bytes);
        return Ok(());
    }
    let to = std::ptr::with_exposed_provenance_mut(to as usize);
    // SAFETY: as above.
    unsafe { guarded::copy(to, bytes.as_ptr(), bytes.len()) }
}
