//! Registered memory as the engine reaches it: `rnic::Memory` over `pmem::Region`s.
//!
//! A region is reachable by its [`RegionId`] from the registration of an MR to its deregistration, both under the
//! device lock, and the engine uses an id only under that lock and only through a live MR. So nothing is reached
//! after it is gone; what a flush worker needs longer, it owns a clone of.

use std::cell::Cell;
use std::sync::Arc;

use remanence_pmem::{Fault, Region, StoreGranularity};
use remanence_rnic::PlacementSupport;
use remanence_rnic::{FlushId, FlushOutcome, Memory, Placement, RegionId, Span};

use crate::flush::FlushQueue;

/// Longer ranges of persistent memory are written back by a flush worker: 64 KiB of clwb takes 4 us, about what a
/// packet takes to send, and nobody else is served meanwhile.
const INLINE_FLUSH_MAX: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct RegionMemory {
    regions: Vec<Option<Region>>,
    free: Vec<u32>,
    /// An access met memory that its owner had unmapped.
    fault: Cell<bool>,
    flushes: Arc<FlushQueue>,
}

impl RegionMemory {
    pub(crate) fn new(flushes: Arc<FlushQueue>) -> Self {
        Self { regions: Vec::new(), free: Vec::new(), fault: Cell::new(false), flushes }
    }

    pub(crate) fn insert(&mut self, region: Region) -> RegionId {
        if let Some(id) = self.free.pop() {
            self.regions[id as usize] = Some(region);
            return RegionId(id);
        }
        self.regions.push(Some(region));
        RegionId(u32::try_from(self.regions.len() - 1).expect("the engine limits the number of MRs"))
    }

    pub(crate) fn remove(&mut self, id: RegionId) {
        let was = self.regions[id.0 as usize].take();
        assert!(was.is_some(), "region {} was removed twice", id.0);
        self.free.push(id.0);
    }

    /// A handle to a registered region, for whoever uses it outside the engine.
    pub(crate) fn clone_of(&self, id: RegionId) -> Region {
        self.region(id).clone()
    }

    #[inline]
    fn note<T: Default>(&self, result: Result<T, Fault>) -> T {
        result.unwrap_or_else(|Fault| {
            self.fault.set(true);
            T::default()
        })
    }

    #[inline]
    fn region(&self, id: RegionId) -> &Region {
        match self.regions.get(id.0 as usize) {
            Some(Some(region)) => region,
            _ => panic!("the engine reached for region {}, which is not registered", id.0),
        }
    }
}

impl Memory for RegionMemory {
    #[inline]
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        let region = self.region(region);
        self.note(region.try_read(offset, into));
        // A page that was lost reads as zeros, which may well mean something: an empty entry, say.
        if region.failure().is_err() {
            self.fault.set(true);
        }
    }

    #[inline]
    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.note(self.region(region).try_write(offset, bytes));
    }

    fn is_word(&self, region: RegionId, offset: u64) -> bool {
        // Borrowed memory begins anywhere.
        (self.region(region).base().addr() as u64).wrapping_add(offset).is_multiple_of(8)
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        // The region's word is native-endian and the wire's bytes go to memory in their order.
        #[expect(clippy::host_endian_bytes, reason = "bytes of memory to a native word and back: no format")]
        let value = u64::from_ne_bytes(bytes);
        self.note(self.region(region).try_store_u64(offset, value));
    }

    fn compare_and_swap(&mut self, region: RegionId, offset: u64, compare: u64, swap: u64) -> u64 {
        self.note(self.region(region).try_compare_and_swap(offset, compare, swap))
    }

    fn fetch_add(&mut self, region: RegionId, offset: u64, add: u64) -> u64 {
        self.note(self.region(region).try_fetch_add(offset, add))
    }

    #[inline]
    fn take_fault(&self) -> bool {
        self.fault.replace(false)
    }

    fn placement_support(&self, region: RegionId) -> PlacementSupport {
        if self.region(region).domain().guarantee().is_durable() {
            PlacementSupport::GLOBAL_VISIBILITY | PlacementSupport::PERSISTENCE
        } else {
            PlacementSupport::GLOBAL_VISIBILITY
        }
    }

    fn flush(&mut self, id: FlushId, span: Span, placement: Placement) -> FlushOutcome {
        let region = self.region(span.region);
        let range = if span.len == 0 { 0..region.len() } else { span.offset..span.offset + span.len };
        match placement {
            // Our own stores are visible when they are made; what was lost with the medium must be told.
            Placement::GlobalVisibility => outcome(region.failure().is_ok()),
            Placement::Persistence => match region.domain().granularity() {
                StoreGranularity::None => FlushOutcome::Failed,
                StoreGranularity::Byte => outcome(region.psync().is_ok()),
                StoreGranularity::CacheLine if range.end - range.start <= INLINE_FLUSH_MAX => {
                    region.pwb(range);
                    outcome(region.psync().is_ok())
                }
                StoreGranularity::CacheLine | StoreGranularity::Page => {
                    self.flushes.push(id, region.clone(), range);
                    FlushOutcome::Pending
                }
            },
        }
    }
}

fn outcome(done: bool) -> FlushOutcome {
    if done { FlushOutcome::Done } else { FlushOutcome::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> RegionMemory {
        RegionMemory::new(Arc::new(FlushQueue::default()))
    }

    #[test]
    fn memory_that_nothing_makes_durable_says_so_and_refuses_persistence() {
        let mut memory = memory();
        let id = memory.insert(Region::anonymous(4096).unwrap());
        assert_eq!(memory.placement_support(id), PlacementSupport::GLOBAL_VISIBILITY);
        let span = Span { region: id, offset: 0, len: 64 };
        assert_eq!(memory.flush(FlushId(1), span, Placement::GlobalVisibility), FlushOutcome::Done);
        assert_eq!(memory.flush(FlushId(2), span, Placement::Persistence), FlushOutcome::Failed);
    }

    #[test]
    fn an_atomic_write_stores_the_bytes_in_their_order() {
        let mut memory = memory();
        let region = Region::anonymous(4096).unwrap();
        let id = memory.insert(region.clone());
        memory.atomic_write(id, 8, *b"in order");
        let mut bytes = [0; 24];
        region.read(0, &mut bytes);
        assert_eq!(&bytes, b"\0\0\0\0\0\0\0\0in order\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn what_is_read_of_a_file_that_lost_a_page_is_no_data() {
        let path = std::env::temp_dir().join(format!("remanence-lost-page-{}", std::process::id()));
        let region = remanence_pmem::FileOptions::new().create(3 * 4096).open(&path).unwrap();
        let mut memory = memory();
        let id = memory.insert(region);
        let mut bytes = [7; 16];
        memory.read(id, 8192, &mut bytes);
        assert!(!memory.take_fault() && bytes == [0; 16]);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        // What is still there is good until somebody finds out.
        memory.read(id, 0, &mut bytes);
        assert!(!memory.take_fault());
        memory.read(id, 8192, &mut bytes);
        assert!(memory.take_fault(), "zeros in place of a lost page are handed out");
        memory.read(id, 0, &mut bytes);
        assert!(memory.take_fault(), "the region has failed, and goes on as if it had not");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    #[should_panic(expected = "not registered")]
    fn a_region_that_was_removed_is_not_reached() {
        let mut memory = memory();
        let id = memory.insert(Region::anonymous(4096).unwrap());
        memory.remove(id);
        memory.read(id, 0, &mut [0]);
    }

    #[test]
    fn an_id_is_used_again_only_after_its_region_is_gone() {
        let mut memory = memory();
        let first = memory.insert(Region::anonymous(4096).unwrap());
        let second = memory.insert(Region::anonymous(4096).unwrap());
        assert_ne!(first, second);
        memory.remove(first);
        assert_eq!(memory.insert(Region::anonymous(4096).unwrap()), first);
    }
}
