//! The seam between the engine and registered memory.
//!
//! A responder that executes an RDMA WRITE touches memory that its consumer and other peers touch at the same
//! time. The engine stays free of `unsafe` by reaching memory only through [`Memory`], which live devices
//! implement over `pmem::Region` and the simulator over crash images. Every access that the engine makes was
//! first checked against an MR or MW, and so lies inside its region; an implementation asserts that.

use crate::access::PlacementSupport;

/// A region of memory that the caller made known to its [`Memory`]; the engine only passes the number on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub u32);

/// A range of bytes of one region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The region that the bytes are in.
    pub region: RegionId,
    /// Bytes from the region's start.
    pub offset: u64,
    /// Length in bytes; may be zero.
    pub len: u64,
}

/// Which placement an RDMA FLUSH asks for (the placement type of the FETH, Annex A19).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Placement {
    /// Earlier writes must be visible to every observer of the responder's memory. Says nothing of failures.
    GlobalVisibility,
    /// Earlier writes must be in the region's persistence domain.
    Persistence,
}

/// Names one FLUSH that a [`Memory`] is still working on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlushId(pub u64);

/// What a [`Memory`] answers to a flush.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlushOutcome {
    /// The range has the placement that was asked for.
    Done,
    /// Under way; the caller will hand the outcome to `Device::flush_done` with the same [`FlushId`]. The
    /// engine goes on with other QPs, and on this QP with everything that may pass a FLUSH.
    Pending,
    /// The medium failed (an I/O error of msync or fdatasync): the responder answers NAK remote operational
    /// error, and nothing may be believed durable.
    Failed,
}

/// Memory as the engine sees it. Offsets are bytes from the region's start; every range was checked before.
pub trait Memory {
    /// Copies `into.len()` bytes out of the region. Concurrent writers may tear the copy at 8 bytes.
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]);

    /// Copies `bytes` into the region, in address order. They are visible, not durable, on return.
    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]);

    /// Whether an atomic can reach the 8 bytes there: whether they are aligned in memory. Asked before each atomic.
    fn is_word(&self, region: RegionId, offset: u64) -> bool {
        let _ = region;
        offset.is_multiple_of(8)
    }

    /// Stores 8 bytes indivisibly at an 8-byte aligned offset (ATOMIC WRITE): no byte swap.
    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]);

    /// Atomically replaces the native-endian `u64` at an 8-byte aligned offset by `swap` if it equals
    /// `compare`; returns what was there. Atomic against the CPU's own atomics too.
    fn compare_and_swap(&mut self, region: RegionId, offset: u64, compare: u64, swap: u64) -> u64;

    /// Atomically adds to the native-endian `u64` at an 8-byte aligned offset, wrapping; returns what was
    /// there. Atomic against the CPU's own atomics too.
    fn fetch_add(&mut self, region: RegionId, offset: u64, add: u64) -> u64;

    /// Whether an access since the last call did not reach its memory, which its owner took away in spite of the
    /// registration; what was read then is no data, and what was written is lost. Asked after each access.
    fn take_fault(&self) -> bool {
        false
    }

    /// Which placements a FLUSH of this region can honour; decides what an MR over it may be registered for.
    fn placement_support(&self, region: RegionId) -> PlacementSupport;

    /// Gives the range the placement. A range of length zero is the whole region given.
    fn flush(&mut self, id: FlushId, span: Span, placement: Placement) -> FlushOutcome;
}

/// The bytes of a `u64` as the CPU keeps it: an atomic's result lands in memory in host order.
#[expect(clippy::host_endian_bytes, reason = "atomics are on native integers (IBA Vol 1, 9.4.5)")]
pub(crate) const fn native_bytes(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}
