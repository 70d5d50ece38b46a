//! The guard page: how the owner of memory takes it back from a peer that writes it with no packet.
//!
//! The owner (the responder) makes one page for each peer process, which both map. In it are two kinds of words:
//!
//! * a *grant*, written by the owner: the generation of the grant that stands there, 0 for none;
//! * a *hazard* for each lane of the peer, written by the peer: 1 while it touches the owner's memory.
//!
//! The peer sets its hazard, looks at the grant, touches the memory if the grant stands, clears its hazard. The
//! owner clears the grant, then waits until all hazards have been seen clear. That is Dekker's pattern, and needs a
//! full fence between the store and the load on both sides, which would cost the peer as much as all else together.
//! So the owner pays for both: `membarrier(2)` runs a full fence on every core that runs a registered process. If
//! the peer's hazard store was before that fence, the owner sees it; if it was after, so was the peer's look at the
//! grant, which found it cleared. A peer that stands still in the middle of a copy is waited for, [`PATIENCE`] long.

use std::time::{Duration, Instant};

use remanence_pmem::Region;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::error::Error;

/// Grants to one peer process.
pub(super) const GRANTS: u32 = 512;
/// Lanes of one peer process.
pub(super) const HAZARDS: u32 = 512;
/// Where the hazards begin, each on a cache line of its own.
const HAZARDS_AT: u64 = GRANTS as u64 * 8;
const LINE: u64 = 64;
/// Bytes of the page.
pub(super) const LEN: u64 = HAZARDS_AT + HAZARDS as u64 * LINE;
/// How long a peer may take for an operation that it is in the middle of. One that was stopped there for longer may
/// finish it later, in memory that is still mapped.
const PATIENCE: Duration = Duration::from_secs(1);

/// The byte of a grant's word.
pub(super) fn grant_at(index: u32) -> u64 {
    u64::from(index) * 8
}

/// The byte of a hazard's word.
pub(super) fn hazard_at(index: u32) -> u64 {
    HAZARDS_AT + u64::from(index) * LINE
}

/// Which hazard's word is at a byte.
pub(super) fn hazard_index(at: u64) -> u32 {
    u32::try_from((at - HAZARDS_AT) / LINE).expect("a place that hazard_at gave")
}

/// Makes a guard page.
pub(super) fn create() -> Result<Region, Error> {
    Region::memfd("remanence-guard", LEN).map_err(|e| Error::os("guard page", std::io::Error::other(e)))
}

/// Makes fences of other processes run in this one. To be called before the first hazard is set.
pub(super) fn register() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// Whether memory can be taken back on this machine; if not, none is given.
pub(super) fn is_possible() -> bool {
    register() && fence_everywhere()
}

fn fence_everywhere() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Grants were cleared: waits until nobody is in the middle of an operation under one of them.
#[must_use = "the memory is in use until this was waited for"]
#[derive(Debug, Default)]
pub(crate) struct Withdrawal {
    pub(super) guards: Vec<Region>,
}

impl Withdrawal {
    /// Not to be called under the device lock: peers of the same process may need that.
    pub(crate) fn wait(self) {
        if self.guards.is_empty() {
            return;
        }
        assert!(fence_everywhere(), "membarrier worked when the memory was given");
        let start = Instant::now();
        // One look at each that finds it clear is enough: whoever sets it later finds the grant cleared.
        for (guard, index) in
            self.guards.iter().flat_map(|guard| (0..HAZARDS).map(move |index| (guard, index)))
        {
            while guard.load_u64(hazard_at(index)) != 0 && start.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
        }
    }
}
