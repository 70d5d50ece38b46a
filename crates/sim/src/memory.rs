//! The memory of a simulated node.
//!
//! A volatile region is bytes, and zeros after a crash. A persistent one is a [`CrashImage`] of `pmem`: a store is
//! visible at once, and until a FLUSH with placement persistence has completed the machine may write any part of
//! it back, or not. A flush that takes time has its effect at one moment of it: early, so that what comes later is
//! not covered, or late, so that nothing is durable before the end.

use std::collections::BTreeMap;

use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_rnic::{FlushId, FlushOutcome, Memory, Placement, PlacementSupport, RegionId, Span};

use crate::rng::{Ppm, Rng};

/// One atomic operation that the memory carried out, as the oracle wants to see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AtomicDone {
    pub(crate) region: RegionId,
    pub(crate) offset: u64,
    pub(crate) kind: AtomicKind,
    pub(crate) old: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtomicKind {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// An ATOMIC WRITE: the word takes the value, whatever it was.
    Store {
        value: u64,
    },
}

impl AtomicKind {
    /// What the word holds afterwards.
    pub(crate) const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd { add } => old.wrapping_add(add),
            Self::Store { value } => value,
        }
    }
}

#[derive(Debug)]
enum Region {
    Volatile(Vec<u8>),
    Persistent(Box<CrashImage>),
}

/// When a flush that takes time has its effect.
#[derive(Clone, Copy, Debug)]
enum Effect {
    None,
    AtStart,
    /// Write-back asked for at the start, waited for at the end.
    Between,
    AtEnd,
}

/// The regions of one node.
#[derive(Debug)]
pub(crate) struct SimMemory {
    rng: Rng,
    regions: Vec<Region>,
    domain: PersistenceDomain,
    /// How often a flush takes time, and how long on average.
    pending: Ppm,
    pending_nanos: u64,
    deferred: BTreeMap<FlushId, (Span, Effect)>,
    /// Flushes to finish later, and after how long; the world takes them out.
    pub(crate) new_pending: Vec<(FlushId, u64)>,
    /// Atomics carried out; the world takes them out.
    pub(crate) atomics: Vec<AtomicDone>,
}

/// The worst crash: nothing survives that was not promised.
struct Worst;

impl Choices for Worst {
    fn pick(&mut self, _options: usize) -> usize {
        0
    }
}

impl SimMemory {
    pub(crate) fn new(rng: Rng, domain: PersistenceDomain, pending: Ppm, pending_nanos: u64) -> Self {
        Self {
            rng,
            regions: Vec::new(),
            domain,
            pending,
            pending_nanos,
            deferred: BTreeMap::new(),
            new_pending: Vec::new(),
            atomics: Vec::new(),
        }
    }

    fn add(&mut self, region: Region) -> RegionId {
        let id = RegionId(u32::try_from(self.regions.len()).expect("few regions"));
        self.regions.push(region);
        id
    }

    pub(crate) fn add_volatile(&mut self, content: Vec<u8>) -> RegionId {
        self.add(Region::Volatile(content))
    }

    /// A region whose content is durable to begin with.
    pub(crate) fn add_persistent(&mut self, content: Vec<u8>) -> RegionId {
        let image = CrashImage::from_bytes(content, self.domain);
        self.add(Region::Persistent(Box::new(image)))
    }

    /// The visible bytes of a range.
    pub(crate) fn bytes(&self, region: RegionId, start: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(region, start as u64, &mut bytes);
        bytes
    }

    /// Stores on behalf of the node's own consumer.
    pub(crate) fn store(&mut self, region: RegionId, start: usize, bytes: &[u8]) {
        self.write(region, start as u64, bytes);
    }

    /// What the worst crash would leave of a persistent region now.
    pub(crate) fn after_worst_crash(&self, region: RegionId) -> Vec<u8> {
        match &self.regions[region.0 as usize] {
            Region::Persistent(image) => image.crash(Failure::PowerLoss, &mut Worst).bytes(),
            Region::Volatile(bytes) => vec![0; bytes.len()],
        }
    }

    /// The time has come that a pending flush asked for.
    pub(crate) fn finish_flush(&mut self, id: FlushId) {
        let (span, effect) = self.deferred.remove(&id).expect("a flush finishes once");
        match effect {
            Effect::None | Effect::AtStart => {}
            Effect::Between => self.psync(span),
            Effect::AtEnd => {
                self.pwb(span);
                self.psync(span);
            }
        }
    }

    /// The machine loses power.
    pub(crate) fn crash(&mut self) {
        self.deferred.clear();
        self.new_pending.clear();
        self.atomics.clear();
        for region in &mut self.regions {
            match region {
                Region::Volatile(bytes) => bytes.fill(0),
                Region::Persistent(image) => {
                    **image = image.crash(Failure::PowerLoss, &mut Seeded::new(self.rng.u64()));
                }
            }
        }
    }

    fn pwb(&self, span: Span) {
        if let Region::Persistent(image) = &self.regions[span.region.0 as usize] {
            image.pwb(span.offset..span.offset + span.len);
        }
    }

    fn psync(&self, span: Span) {
        if let Region::Persistent(image) = &self.regions[span.region.0 as usize] {
            image.psync().expect("this medium does not fail");
        }
    }
}

/// A range of a region that is small enough to be simulated.
fn range(offset: u64, len: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).expect("small region");
    start..start + len
}

impl Memory for SimMemory {
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        match &self.regions[region.0 as usize] {
            Region::Volatile(bytes) => into.copy_from_slice(&bytes[range(offset, into.len())]),
            Region::Persistent(image) => image.read(offset, into),
        }
    }

    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        match &mut self.regions[region.0 as usize] {
            Region::Volatile(all) => all[range(offset, bytes.len())].copy_from_slice(bytes),
            Region::Persistent(image) => image.write(offset, bytes),
        }
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        self.atomic(region, offset, AtomicKind::Store { value: u64::from_le_bytes(bytes) });
    }

    fn compare_and_swap(&mut self, region: RegionId, offset: u64, compare: u64, swap: u64) -> u64 {
        self.atomic(region, offset, AtomicKind::CompareSwap { compare, swap })
    }

    fn fetch_add(&mut self, region: RegionId, offset: u64, add: u64) -> u64 {
        self.atomic(region, offset, AtomicKind::FetchAdd { add })
    }

    fn placement_support(&self, region: RegionId) -> PlacementSupport {
        match &self.regions[region.0 as usize] {
            Region::Volatile(_) => PlacementSupport::GLOBAL_VISIBILITY,
            Region::Persistent(_) => PlacementSupport::all(),
        }
    }

    fn flush(&mut self, id: FlushId, span: Span, placement: Placement) -> FlushOutcome {
        let persist = placement == Placement::Persistence;
        if !self.rng.chance(self.pending) {
            if persist {
                self.pwb(span);
                self.psync(span);
            }
            return FlushOutcome::Done;
        }
        let effect = match (persist, self.rng.below(3)) {
            (false, _) => Effect::None,
            (true, 0) => {
                self.pwb(span);
                self.psync(span);
                Effect::AtStart
            }
            (true, 1) => {
                self.pwb(span);
                Effect::Between
            }
            (true, _) => Effect::AtEnd,
        };
        let twin = self.deferred.insert(id, (span, effect));
        assert!(twin.is_none(), "{id:?} is used for two flushes at a time");
        self.new_pending.push((id, 1 + self.rng.exponential(self.pending_nanos)));
        FlushOutcome::Pending
    }
}

impl SimMemory {
    fn atomic(&mut self, region: RegionId, offset: u64, kind: AtomicKind) -> u64 {
        assert!(offset.is_multiple_of(8), "atomic at unaligned offset {offset:#x}");
        let mut word = [0; 8];
        self.read(region, offset, &mut word);
        // The contract says native order; a seed must mean the same on every machine.
        let old = u64::from_le_bytes(word);
        let new = kind.apply(old);
        // (A compare that failed stores nothing.)
        if new != old {
            self.write(region, offset, &new.to_le_bytes());
        }
        self.atomics.push(AtomicDone { region, offset, kind, old });
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(pending: Ppm) -> (SimMemory, RegionId) {
        let mut memory = SimMemory::new(Rng::new(1, 0), PersistenceDomain::Adr, pending, 100);
        let region = memory.add_persistent(vec![0; 256]);
        (memory, region)
    }

    #[test]
    fn only_what_was_flushed_is_sure_to_survive() {
        let (mut memory, region) = memory(Ppm(0));
        memory.write(region, 0, &[1; 128]);
        let span = Span { region, offset: 3, len: 1 };
        assert_eq!(memory.flush(FlushId(1), span, Placement::Persistence), FlushOutcome::Done);
        let left = memory.after_worst_crash(region);
        assert_eq!((&left[..64], &left[64..]), (&[1; 64][..], &[0; 192][..]), "the line, and nothing else");
    }

    #[test]
    fn visibility_makes_nothing_durable() {
        let (mut memory, region) = memory(Ppm(0));
        memory.write(region, 0, &[1; 256]);
        let span = Span { region, offset: 0, len: 256 };
        memory.flush(FlushId(1), span, Placement::GlobalVisibility);
        assert_eq!(memory.after_worst_crash(region), [0; 256]);
    }

    #[test]
    fn a_pending_flush_is_durable_at_its_end() {
        for id in 0..20 {
            let (mut memory, region) = memory(Ppm::percent(100));
            memory.write(region, 0, &[1; 64]);
            let span = Span { region, offset: 0, len: 64 };
            assert_eq!(memory.flush(FlushId(id), span, Placement::Persistence), FlushOutcome::Pending);
            memory.finish_flush(FlushId(id));
            assert_eq!(memory.after_worst_crash(region)[..64], [1; 64]);
        }
    }
}
