//! Rights, with the verbs' own numeric values.

use bitflags::bitflags;

bitflags! {
    /// What a memory region, memory window or QP allows (`enum ibv_access_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The consumer's own RNIC may write it (receive buffers, READ sinks).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may WRITE and ATOMIC WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may CAS and FAA.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero, not from the iova.
        const ZERO_BASED = 1 << 5;
        /// The memory need not be there when it is registered.
        const ON_DEMAND = 1 << 6;
        /// Accepted and without effect: pages of any size are alike to us.
        const HUGETLB = 1 << 7;
        /// Peers may FLUSH it with placement type global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH it with placement type persistence; refused where the region cannot give that.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Accepted and without effect: this RNIC keeps order anyway.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// Which placements a region can honour.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct PlacementSupport: u8 {
        /// FLUSH with placement type global visibility.
        const GLOBAL_VISIBILITY = 1 << 0;
        /// FLUSH with placement type persistence.
        const PERSISTENCE = 1 << 1;
    }
}
