//! Memory that a test can crash: which stores a failure takes back is chosen by a seed, or in every way there is.
//!
//! The model. A store is visible at once. It is durable for certain when its bytes were written back (`pwb`) after it
//! and a `psync` came after that. In between it may or may not be: caches evict lines, and kernels write pages, when
//! they like. So what a crash leaves of each 8-byte word is the value after *any* prefix of the stores to it that are
//! not yet certain, independently of every other word, of the same line too: platforms promise no more than 8 bytes.
//! The exception is `pfence`: if any store after it survives, then so does everything that was written back before it.
//!
//! This leaves out nothing that hardware may do, and includes a little that x86-64 does not do (it keeps the stores to
//! one line in order). Recovery code that survives here survives there.
//!
//! Two ways to use it. A simulator calls [`CrashImage::crash`] when its node dies. A test of recovery code hands a
//! workload to [`Explorer::run`], which crashes it after every single step:
//!
//! ```
//! use remanence_pmem::crash_image::{CrashImage, Explorer};
//! use remanence_pmem::{Medium, PersistenceDomain};
//! let report = Explorer::default().run(
//!     &CrashImage::new(256, PersistenceDomain::Adr),
//!     |image| {
//!         image.write(0, b"entry");
//!         image.pwb(0..5);
//!         image.pfence().unwrap();
//!         image.store_u64(64, 1);
//!         image.persist(64..72).unwrap();
//!         image.note(1); // what a user was told
//!     },
//!     |crashed, notes| {
//!         let mut entry = [0; 5];
//!         crashed.read(0, &mut entry);
//!         let committed = crashed.load_u64(64) == 1;
//!         assert!(committed || notes.is_empty(), "the commit was acknowledged and is gone");
//!         assert!(!committed || &entry == b"entry", "committed, and not there");
//!     },
//! );
//! assert_eq!(report.steps, report.exhausted); // few enough outcomes to try them all
//! ```

mod choices;
mod explore;
mod history;
mod lazy;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use choices::{Choices, EveryWay, Seeded};
pub use explore::{Explorer, LazyReport, Report};
use history::{History, Store};
pub use lazy::Lazy;

use crate::domain::{Guarantee, PersistenceDomain, StoreGranularity, Survives};
use crate::flush::{LINE, lines_of};
use crate::medium::{Medium, Psyncs, Ticket};

/// Bytes in a page of the simulated page cache.
const PAGE: u64 = 4096;

/// A failure, by what it takes from the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The process is killed, and nothing else ends.
    ProcessCrash,
    /// The kernel panics, and its page cache is gone.
    OsCrash,
    /// The power goes, and with it what was not in the persistence domain.
    PowerLoss,
}

impl Failure {
    /// Whether this failure is one that the data survives.
    #[must_use]
    pub const fn is_in(self, survives: Survives) -> bool {
        match self {
            Self::ProcessCrash => survives.process_crash,
            Self::OsCrash => survives.os_crash,
            Self::PowerLoss => survives.power_loss,
        }
    }
}

/// Simulated memory in a persistence domain.
pub struct CrashImage {
    state: Mutex<State>,
    psyncs: Psyncs,
}

#[derive(Clone)]
struct State {
    domain: PersistenceDomain,
    visible: Vec<u8>,
    history: History,
    /// The steps of a workload since recording began, for [`Explorer`] to replay; `None` while nothing is recorded.
    recording: Option<Vec<Step>>,
    /// How many more psyncs succeed; `None` if all of them do.
    psyncs_left: Option<u64>,
}

/// One step of a workload.
#[derive(Clone, Debug)]
enum Step {
    Store(Store),
    Pwb(Range<u64>),
    Pfence,
    Psync,
    Alone(Range<u64>),
    Note(u64),
}

impl CrashImage {
    /// A memory of `len` bytes, all of them zero and durable; nothing has been stored to it yet.
    #[must_use]
    pub fn new(len: u64, domain: PersistenceDomain) -> Self {
        let len = usize::try_from(len).expect("a simulated memory fits a real one");
        Self::from_bytes(vec![0; len], domain)
    }

    /// A memory that begins with these bytes, all of them durable; nothing has been stored to it yet.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, domain: PersistenceDomain) -> Self {
        let unit = match domain.granularity() {
            StoreGranularity::Page => PAGE,
            StoreGranularity::CacheLine | StoreGranularity::Byte | StoreGranularity::None => LINE as u64,
        };
        // Where psync changes nothing there is nothing to remember.
        let tracked = matches!(domain.granularity(), StoreGranularity::Page | StoreGranularity::CacheLine);
        let history = History::new(if tracked { bytes.clone() } else { Vec::new() }, unit, tracked);
        let state = State { domain, visible: bytes, history, recording: None, psyncs_left: None };
        Self { state: Mutex::new(state), psyncs: Psyncs::default() }
    }

    /// The persistence domain that the memory was made with.
    #[must_use]
    pub fn domain(&self) -> PersistenceDomain {
        self.lock().domain
    }

    /// The bytes that are visible now, durable or not.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().visible.clone()
    }

    /// What is left after a failure, as the next boot finds it: durable, and with no history.
    #[must_use]
    pub fn crash(&self, failure: Failure, choices: &mut dyn Choices) -> Self {
        let state = self.lock();
        let guarantee = Guarantee::of(state.domain);
        let bytes = if failure.is_in(guarantee.before_psync) {
            state.visible.clone()
        } else if failure.is_in(guarantee.after_psync) {
            state.history.crash(choices)
        } else {
            vec![0; state.visible.len()]
        };
        Self::from_bytes(bytes, state.domain)
    }

    /// Lets this many more psyncs (and pfences) succeed; all later ones fail, as after a write-back error.
    pub fn fail_after_psyncs(&self, count: u64) {
        self.lock().psyncs_left = Some(count);
    }

    /// Makes these lines (pages, in a page cache) durable and nothing else: data of a device that went past the caches. A psync
    /// is another thing: it waits for everything that was written back.
    pub fn persist_alone(&self, range: Range<u64>) {
        let mut state = self.lock();
        state.persist_alone(&range);
        state.record(|| Step::Alone(range));
    }

    /// Marks a point of a workload: what the user was told by then. [`Explorer`] hands the marks to the check.
    pub fn note(&self, what: u64) {
        self.lock().record(|| Step::Note(what));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_recording(&self) {
        self.lock().recording = Some(Vec::new());
    }

    fn stop_recording(&self) -> Vec<Step> {
        self.lock().recording.take().unwrap_or_default()
    }

    /// The bytes with the last store carried out only in part, from its start: the process died within it.
    fn cut_short(&self, store: &Store, choices: &mut dyn Choices) -> Self {
        let state = self.lock();
        let mut bytes = state.visible.clone();
        let words = if store.indivisible { 1 } else { store.bytes.len().div_ceil(8) };
        let done = (choices.pick(words + 1) * 8).min(store.bytes.len());
        let at = usize::try_from(store.offset).expect("inside");
        bytes[at + done..at + store.bytes.len()].copy_from_slice(&store.before[done..]);
        Self::from_bytes(bytes, state.domain)
    }

    fn replay(&self, step: &Step) {
        let mut state = self.lock();
        match step {
            Step::Store(store) => state.store(store.offset, &store.bytes, store.indivisible),
            Step::Pwb(range) => state.pwb(range.clone()),
            Step::Pfence => state.history.pfence(),
            Step::Psync => state.history.psync(),
            Step::Alone(range) => state.persist_alone(range),
            Step::Note(_) => {}
        }
    }
}

impl Clone for CrashImage {
    fn clone(&self) -> Self {
        Self { state: Mutex::new(self.lock().clone()), psyncs: Psyncs::default() }
    }
}

impl fmt::Debug for CrashImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("CrashImage")
            .field("domain", &state.domain)
            .field("len", &state.visible.len())
            .finish_non_exhaustive()
    }
}

impl State {
    fn record(&mut self, step: impl FnOnce() -> Step) {
        if let Some(steps) = &mut self.recording {
            steps.push(step());
        }
    }

    #[track_caller]
    fn check(&self, offset: u64, len: u64) -> Range<usize> {
        let end = offset.checked_add(len).filter(|end| *end <= self.visible.len() as u64);
        let Some(end) = end else {
            panic!("{len} bytes at offset {offset} do not lie in an image of {}", self.visible.len())
        };
        offset as usize..end as usize
    }

    #[track_caller]
    fn word(&self, offset: u64) -> u64 {
        let at = self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "the word at offset {offset} is not aligned");
        u64::from_le_bytes(self.visible[at].try_into().expect("eight bytes")).to_le()
    }

    #[track_caller]
    fn store(&mut self, offset: u64, bytes: &[u8], indivisible: bool) {
        let at = self.check(offset, bytes.len() as u64);
        if bytes.is_empty() {
            return;
        }
        let before = self.visible[at.clone()].to_vec();
        self.visible[at].copy_from_slice(bytes);
        self.history.store(offset, bytes, indivisible);
        let bytes = bytes.to_vec();
        self.record(|| Step::Store(Store { offset, bytes, before, indivisible }));
    }

    fn store_word(&mut self, offset: u64, value: u64) {
        self.store(offset, &value.to_le().to_le_bytes(), true);
    }

    /// The units of the history that a range touches.
    #[track_caller]
    fn units(&self, range: &Range<u64>) -> Range<u64> {
        let at = self.check(range.start, range.end.saturating_sub(range.start));
        if self.domain.granularity() == StoreGranularity::Page {
            return at.start as u64 / PAGE..(at.end as u64).div_ceil(PAGE);
        }
        // The same arithmetic as the real flush, so that a crash proves it.
        let (first, count) = lines_of(at);
        let first = (first / LINE) as u64;
        first..first + count as u64
    }

    #[track_caller]
    fn pwb(&mut self, range: Range<u64>) {
        let units = self.units(&range);
        self.history.pwb(units);
        self.record(|| Step::Pwb(range));
    }

    #[track_caller]
    fn persist_alone(&mut self, range: &Range<u64>) {
        let units = self.units(range);
        self.history.settle_all(units);
    }

    fn sync(&mut self, step: Step) -> io::Result<()> {
        match &mut self.psyncs_left {
            Some(0) => return Err(io::Error::other("the simulated medium failed")),
            Some(left) => *left -= 1,
            None => {}
        }
        match step {
            Step::Pfence => self.history.pfence(),
            _ => self.history.psync(),
        }
        self.record(|| step);
        Ok(())
    }
}

impl Medium for CrashImage {
    fn len(&self) -> u64 {
        self.lock().visible.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let state = self.lock();
        into.copy_from_slice(&state.visible[state.check(offset, into.len() as u64)]);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let one_store = matches!(len, 1 | 2 | 4 | 8) && offset.is_multiple_of(len);
        self.lock().store(offset, bytes, one_store);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.lock().word(offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        let mut state = self.lock();
        state.word(offset);
        state.store_word(offset, value);
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let mut state = self.lock();
        let was = state.word(offset);
        if was == compare {
            state.store_word(offset, swap);
        }
        was
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let mut state = self.lock();
        let was = state.word(offset);
        state.store_word(offset, was.wrapping_add(add));
        was
    }

    fn pwb(&self, range: Range<u64>) {
        self.lock().pwb(range);
    }

    fn pfence(&self) -> io::Result<()> {
        self.lock().sync(Step::Pfence)
    }

    fn psync(&self) -> io::Result<()> {
        self.psyncs.run(|| self.lock().sync(Step::Psync))
    }

    fn ticket(&self) -> Option<Ticket> {
        Some(self.psyncs.ticket())
    }

    fn is_covered(&self, ticket: Ticket) -> bool {
        self.psyncs.cover(ticket)
    }
}

#[cfg(test)]
mod tests;
