//! Crashes that are decided word by word, when recovery reads: the constraint refinement of Jaaru (Gorjiara, Xu and Demsky,
//! ASPLOS 2021).
//!
//! Words that nobody reads after a crash need no decision, so a workload with a hundred words in flight, of which recovery
//! reads four, has a handful of outcomes instead of 2^100. A word that is read for the first time takes each value that it
//! may have, one execution of the check after the other. Words depend on each other only through fences: a value tells
//! which fences can have been the newest that held, and each decision leaves those that agree with all decisions so far.
//!
//! Bytes behind a checksum are the exception that would explode again, since recovery reads all of them. Where the caller
//! says that a checksum guards, the words of one write (its first apart) are decided together, in classes: nothing
//! arrived, or all of it; and in one write of each execution also every prefix, every suffix, each word alone and all but
//! each. What a checksum detects it detects whatever is missing, which is why classes will do.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::history::OpenWord;
use super::{Choices, CrashImage, EveryWay};
use crate::domain::PersistenceDomain;
use crate::medium::Medium;

/// What a power loss left, to be decided as far as it is looked at. What is written to it is durable at once.
pub struct Lazy {
    domain: PersistenceDomain,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    bytes: Vec<u8>,
    /// Words without a decision, by their offset.
    open: BTreeMap<u64, OpenWord>,
    /// Those of them that are decided together.
    writes: BTreeMap<u64, Vec<u64>>,
    /// Fences that may have been the newest that held.
    fences: u128,
    /// Some write was decided in another way than the two usual ones.
    unusual: bool,
    ways: EveryWay,
}

/// The ways to decide a write that are tried in all combinations with other writes.
const USUAL: usize = 2;

/// Of so many words, the number of ways to let some arrive.
const fn patterns(words: usize) -> usize {
    USUAL + 4 * words
}

/// Whether this word of so many arrives in this way.
const fn arrives(pattern: usize, words: usize, word: usize) -> bool {
    match pattern {
        0 => false,
        1 => true,
        other => {
            let (kind, n) = ((other - USUAL) / words, (other - USUAL) % words);
            match kind {
                0 => word < n,
                1 => word >= n,
                2 => word == n,
                _ => word != n,
            }
        }
    }
}

impl Lazy {
    /// Nothing decided. Bytes behind a checksum are where `guarded` says so.
    pub(super) fn new(image: &CrashImage, guarded: impl Fn(u64) -> bool) -> Self {
        let state = image.lock();
        let (fences, words) = state.history.open();
        let mut writes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut open = BTreeMap::new();
        for word in words {
            if let Some(write) = word.write.filter(|_| guarded(word.at)) {
                writes.entry(write).or_default().push(word.at);
            }
            open.insert(word.at, word);
        }
        for words in writes.values_mut() {
            words.remove(0);
        }
        let bytes = state.history.certain().to_vec();
        assert_eq!(bytes.len(), state.visible.len(), "where psync changes nothing, nothing is to be decided");
        let decided = State { bytes, open, writes, fences, unusual: false, ways: EveryWay::new() };
        Self { domain: state.domain, state: Mutex::new(decided) }
    }

    /// The same, to be decided this way.
    pub(super) fn again(&self, ways: EveryWay) -> Self {
        let state = State { ways, ..self.lock().clone() };
        Self { domain: self.domain, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Words that may still have one of several values.
    pub(super) fn undecided(&self) -> usize {
        self.lock().open.len()
    }

    /// The number of images that a crash may leave, each counted once for every newest fence that it may come of.
    pub(super) fn outcomes(&self) -> f64 {
        let state = self.lock();
        (0..128)
            .filter(|fence| state.fences >> fence & 1 == 1)
            .map(|fence| {
                let ways =
                    |word: &OpenWord| word.values.iter().filter(|v| v.fences >> fence & 1 == 1).count();
                state.open.values().map(|word| ways(word) as f64).product::<f64>()
            })
            .sum()
    }

    pub(super) fn into_ways(self) -> EveryWay {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).ways
    }

    /// The image with all that was decided and written so far; of what was not, the newest that is possible.
    #[must_use]
    pub fn completed(&self) -> CrashImage {
        let state = self.lock();
        let (mut bytes, mut fences) = (state.bytes.clone(), state.fences);
        for word in state.open.values() {
            let value =
                word.values.iter().rfind(|value| value.fences & fences != 0).expect("one is possible");
            fences &= value.fences;
            word.put(value.bytes, &mut bytes);
        }
        CrashImage::from_bytes(bytes, self.domain)
    }
}

impl State {
    fn range(&self, offset: u64, len: usize) -> Range<usize> {
        let end = usize::try_from(offset).ok().and_then(|at| at.checked_add(len));
        let end = end.filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            panic!("{len} bytes at offset {offset} do not lie in an image of {}", self.bytes.len())
        };
        end - len..end
    }

    fn viable(&self, at: u64) -> Vec<usize> {
        let values = &self.open[&at].values;
        (0..values.len()).filter(|n| values[*n].fences & self.fences != 0).collect()
    }

    fn take(&mut self, at: u64, value: usize) {
        let word = self.open.remove(&at).expect("it is open");
        self.fences &= word.values[value].fences;
        word.put(word.values[value].bytes, &mut self.bytes);
    }

    fn decide(&mut self, at: u64) {
        let write =
            self.open[&at].write.filter(|write| self.writes.get(write).is_some_and(|w| w.contains(&at)));
        let Some(write) = write else {
            let viable = self.viable(at);
            let n = if viable.len() > 1 { self.ways.pick(viable.len()) } else { 0 };
            return self.take(at, viable[n]);
        };
        let words = self.writes.remove(&write).expect("it was found");
        let words: Vec<u64> = words.into_iter().filter(|at| self.open.contains_key(at)).collect();
        let ways = if self.unusual { USUAL } else { patterns(words.len()) };
        let pattern = self.ways.pick(ways);
        self.unusual |= pattern >= USUAL;
        for (n, at) in words.iter().enumerate() {
            let viable = self.viable(*at);
            let newest = arrives(pattern, words.len(), n);
            self.take(*at, if newest { viable[viable.len() - 1] } else { viable[0] });
        }
    }

    /// Decides every word that these bytes touch.
    fn look(&mut self, bytes: Range<usize>) {
        let (first, end) = (bytes.start as u64 / 8 * 8, bytes.end as u64);
        while let Some(at) = self.open.range(first..end).map(|(at, _)| *at).next() {
            self.decide(at);
        }
    }

    fn load(&mut self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8), "the word at offset {offset} is not aligned");
        let at = self.range(offset, 8);
        self.look(at.clone());
        u64::from_le_bytes(self.bytes[at].try_into().expect("eight bytes")).to_le()
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let at = self.range(offset, bytes.len());
        if bytes.is_empty() {
            return;
        }
        // What is written over whole needs no decision.
        let whole = offset.next_multiple_of(8)..(offset + bytes.len() as u64) / 8 * 8;
        if whole.start < whole.end {
            let over: Vec<u64> = self.open.range(whole).map(|(at, _)| *at).collect();
            over.iter().for_each(|at| drop(self.open.remove(at)));
        }
        self.look(at.clone());
        self.bytes[at].copy_from_slice(bytes);
    }
}

impl Medium for Lazy {
    fn len(&self) -> u64 {
        self.lock().bytes.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let mut state = self.lock();
        let at = state.range(offset, into.len());
        state.look(at.clone());
        into.copy_from_slice(&state.bytes[at]);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.lock().store(offset, bytes);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.lock().load(offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "the word at offset {offset} is not aligned");
        self.lock().store(offset, &value.to_le().to_le_bytes());
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let mut state = self.lock();
        let was = state.load(offset);
        if was == compare {
            state.store(offset, &swap.to_le().to_le_bytes());
        }
        was
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let mut state = self.lock();
        let was = state.load(offset);
        state.store(offset, &was.wrapping_add(add).to_le().to_le_bytes());
        was
    }

    fn pwb(&self, range: Range<u64>) {
        let len = usize::try_from(range.end.saturating_sub(range.start)).expect("a range of the image");
        self.lock().range(range.start, len);
    }

    fn pfence(&self) -> io::Result<()> {
        Ok(())
    }

    fn psync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Lazy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lazy").field("domain", &self.domain).field("undecided", &self.undecided()).finish()
    }
}
