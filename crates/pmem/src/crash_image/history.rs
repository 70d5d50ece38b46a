//! Which stores are certain to be durable, and which a crash may take back.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Choices;

/// A unit that is stored to and never written back keeps this many stores; older ones are then durable for certain,
/// as if the cache had evicted them. It bounds a long simulation, and takes possibilities away only.
const STORES_MAX: usize = 64;

/// A store, as a workload made it.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) before: Vec<u8>,
    /// One store of the CPU: never torn.
    pub(super) indivisible: bool,
}

/// The bytes that are durable for certain, and per unit (line or page) the stores since.
#[derive(Clone, Debug)]
pub(super) struct History {
    certain: Vec<u8>,
    unit: u64,
    tracked: bool,
    units: BTreeMap<u64, Unit>,
    /// Fences so far, and how many of them a psync has made certain.
    fences: u64,
    synced: u64,
    /// Units that were written back since the last fence, and since the last psync.
    asked: Vec<u64>,
    fenced: Vec<u64>,
    /// How many stores were made so far.
    writes: u64,
}

/// A word of which a crash may leave one of several values.
#[derive(Clone, Debug)]
pub(super) struct OpenWord {
    /// Offset of the word in the memory.
    pub(super) at: u64,
    /// The values that a crash may leave of the word, each once, in the order of the stores that made them.
    pub(super) values: Vec<OpenValue>,
    /// The number of the last store to it, if all of the open ones were longer than one store of the CPU.
    pub(super) write: Option<u64>,
    len: usize,
}

/// A value, and with which fences as the newest that held it can be: bit n is fence n since the last psync.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenValue {
    pub(super) bytes: [u8; 8],
    pub(super) fences: u128,
}

impl OpenWord {
    /// Writes a value of it to the image.
    pub(super) fn put(&self, value: [u8; 8], image: &mut [u8]) {
        image[self.at as usize..self.at as usize + self.len].copy_from_slice(&value[..self.len]);
    }
}

#[derive(Clone, Debug, Default)]
struct Unit {
    stores: Vec<Part>,
    /// How many stores the last pwb covered, until a fence comes.
    asked: usize,
    /// Per fence, how many stores it covers.
    covered: Vec<(u64, usize)>,
}

/// The part of a store that falls into one unit.
#[derive(Clone, Debug)]
struct Part {
    /// Made after this many fences.
    fences: u64,
    /// The number of the store.
    write: u64,
    at: usize,
    bytes: Box<[u8]>,
    indivisible: bool,
}

impl Part {
    /// The words of the unit that it touches.
    fn words(&self) -> Range<usize> {
        self.at / 8..(self.at + self.bytes.len()).div_ceil(8)
    }

    /// Carries out the bytes that fall into one word, up to `keep` of them, if it touches that.
    fn apply(&self, unit: &mut [u8], word: usize, keep: impl FnOnce(usize) -> usize) {
        let start = self.at.max(word * 8);
        let end = (self.at + self.bytes.len()).min(word * 8 + 8);
        if start < end {
            let end = start + keep(end - start);
            unit[start..end].copy_from_slice(&self.bytes[start - self.at..end - self.at]);
        }
    }
}

impl History {
    pub(super) fn new(certain: Vec<u8>, unit: u64, tracked: bool) -> Self {
        Self {
            certain,
            unit,
            tracked,
            units: BTreeMap::new(),
            fences: 0,
            synced: 0,
            asked: Vec::new(),
            fenced: Vec::new(),
            writes: 0,
        }
    }

    pub(super) fn certain(&self) -> &[u8] {
        &self.certain
    }

    /// The fences that may have been the newest that held, and every word that is open.
    pub(super) fn open(&self) -> (u128, Vec<OpenWord>) {
        let pending = self.fences - self.synced;
        assert!(pending < 127, "{pending} fences since the last psync are more than can be told apart");
        let open = |(index, unit): (&u64, &Unit)| unit.open(index * self.unit, self);
        ((1 << (pending + 1)) - 1, self.units.iter().flat_map(open).collect())
    }

    pub(super) fn store(&mut self, offset: u64, bytes: &[u8], indivisible: bool) {
        if !self.tracked {
            return;
        }
        self.writes += 1;
        let mut done = 0;
        while done < bytes.len() {
            let offset = offset + done as u64;
            let (index, at) = (offset / self.unit, (offset % self.unit) as usize);
            let len = (bytes.len() - done).min(self.unit as usize - at);
            let (fences, write) = (self.fences, self.writes);
            let part = Part { fences, write, at, bytes: bytes[done..done + len].into(), indivisible };
            let unit = self.units.entry(index).or_default();
            unit.stores.push(part);
            if unit.stores.len() > STORES_MAX {
                self.settle(index, 1);
            }
            done += len;
        }
    }

    pub(super) fn pwb(&mut self, units: Range<u64>) {
        for (index, unit) in self.units.range_mut(units) {
            unit.asked = unit.stores.len();
            self.asked.push(*index);
        }
    }

    pub(super) fn pfence(&mut self) {
        self.fences += 1;
        for index in std::mem::take(&mut self.asked) {
            let Some(unit) = self.units.get_mut(&index) else { continue };
            if unit.asked > 0 {
                unit.covered.push((self.fences, unit.asked));
                unit.asked = 0;
                self.fenced.push(index);
            }
        }
    }

    pub(super) fn psync(&mut self) {
        self.pfence();
        self.synced = self.fences;
        for index in std::mem::take(&mut self.fenced) {
            let covered = self.units.get(&index).map_or(0, |unit| unit.covered_by(self.fences));
            self.settle(index, covered);
        }
    }

    /// Makes every store to these units certain.
    pub(super) fn settle_all(&mut self, units: Range<u64>) {
        let all: Vec<(u64, usize)> =
            self.units.range(units).map(|(index, unit)| (*index, unit.stores.len())).collect();
        all.into_iter().for_each(|(index, count)| self.settle(index, count));
    }

    /// Makes the first `count` stores of a unit certain.
    fn settle(&mut self, index: u64, count: usize) {
        let Some(unit) = self.units.get_mut(&index) else { return };
        let start = (index * self.unit) as usize;
        for part in unit.stores.drain(..count) {
            let at = start + part.at;
            self.certain[at..at + part.bytes.len()].copy_from_slice(&part.bytes);
        }
        unit.asked = unit.asked.saturating_sub(count);
        unit.covered.iter_mut().for_each(|(_, covered)| *covered = covered.saturating_sub(count));
        unit.covered.retain(|(fence, covered)| *fence > self.synced && *covered > 0);
        if unit.stores.is_empty() {
            self.units.remove(&index);
        }
    }

    /// One possible content after a crash.
    pub(super) fn crash(&self, choices: &mut dyn Choices) -> Vec<u8> {
        let mut bytes = self.certain.clone();
        // The newest fence that still held: no later store can have survived, and all it covers has.
        let pending = (self.fences - self.synced) as usize;
        let fence = self.fences - choices.pick(pending + 1) as u64;
        for (index, unit) in &self.units {
            let start = (index * self.unit) as usize;
            let end = bytes.len().min(start + self.unit as usize);
            unit.crash(fence, &mut bytes[start..end], choices);
        }
        bytes
    }
}

impl Unit {
    fn covered_by(&self, fence: u64) -> usize {
        self.covered.iter().filter(|(f, _)| *f <= fence).map(|(_, covered)| *covered).max().unwrap_or(0)
    }

    /// The stores that are certain if this was the newest fence that held, and those that may have survived.
    fn extent(&self, fence: u64) -> (usize, usize) {
        let sure = self.covered_by(fence);
        (sure, self.stores.iter().take_while(|part| part.fences <= fence).count().max(sure))
    }

    /// The words that are open: of each, every value that [`crash`](Self::crash) may leave of it.
    fn open(&self, start: u64, of: &History) -> Vec<OpenWord> {
        let mut words: Vec<usize> = self.stores.iter().flat_map(Part::words).collect();
        words.sort_unstable();
        words.dedup();
        let end = of.certain.len().min((start + of.unit) as usize);
        let certain = &of.certain[start as usize..end];
        let word = |word: usize| {
            let (from, len) = (word * 8, (certain.len() - word * 8).min(8));
            let touching: Vec<(usize, &Part)> =
                self.stores.iter().enumerate().filter(|(_, part)| part.words().contains(&word)).collect();
            let mut values: Vec<OpenValue> = Vec::new();
            for fence in of.synced..=of.fences {
                let (sure, possible) = self.extent(fence);
                let mut unit = certain.to_vec();
                let mut note = |unit: &[u8]| {
                    let mut bytes = [0; 8];
                    bytes[..len].copy_from_slice(&unit[from..from + len]);
                    let fences = 1 << (fence - of.synced);
                    match values.iter_mut().find(|value| value.bytes == bytes) {
                        Some(value) => value.fences |= fences,
                        None => values.push(OpenValue { bytes, fences }),
                    }
                };
                let (certain, open): (Vec<_>, Vec<_>) =
                    touching.iter().filter(|(n, _)| *n < possible).partition(|(n, _)| *n < sure);
                certain.iter().for_each(|(_, part)| part.apply(&mut unit, word, |len| len));
                note(&unit);
                for (_, part) in open {
                    part.apply(&mut unit, word, |len| len);
                    note(&unit);
                }
            }
            let long = touching.iter().all(|(_, part)| !part.indivisible);
            let write = touching.last().filter(|_| long).map(|(_, part)| part.write);
            OpenWord { at: start + from as u64, values, write, len }
        };
        words.into_iter().map(word).filter(|word| word.values.len() > 1).collect()
    }

    fn crash(&self, fence: u64, bytes: &mut [u8], choices: &mut dyn Choices) {
        let (sure, possible) = self.extent(fence);
        let together = choices.together().then(|| sure + choices.pick(possible - sure + 1));
        let mut words: Vec<usize> = self.stores[..possible].iter().flat_map(Part::words).collect();
        words.sort_unstable();
        words.dedup();
        for word in words {
            let touching = |stores: Range<usize>| {
                stores.filter(move |i| self.stores[*i].words().contains(&word)).collect::<Vec<usize>>()
            };
            for i in touching(0..sure) {
                self.stores[i].apply(bytes, word, |len| len);
            }
            let open = touching(sure..possible);
            let kept = match together {
                Some(kept) => open.iter().filter(|i| **i < kept).count(),
                None if open.is_empty() => 0,
                None => choices.pick(open.len() + 1),
            };
            for i in &open[..kept] {
                self.stores[*i].apply(bytes, word, |len| len);
            }
            if let Some(i) = open.get(kept).filter(|i| together.is_none() && !self.stores[**i].indivisible) {
                self.stores[*i].apply(bytes, word, |len| choices.torn(len));
            }
        }
    }
}
