//! Work requests: what a consumer posts.

use bitflags::bitflags;
use remanence_wire::{Lkey, Qkey, Qpn, Rkey};

use crate::access::Access;
use crate::memory::Placement;

/// A local buffer: `len` bytes at virtual address `addr` of the MR that `lkey` names. Laid out as `struct ibv_sge`,
/// so that the C ABI need not copy lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Sge {
    /// Virtual address (the MR's iova counts).
    pub addr: u64,
    /// Length in bytes, 0 to 2^31. (The verbs' "0 means 2^31" is the C ABI's business.)
    pub len: u32,
    /// The key of the MR that the bytes are in.
    pub lkey: Lkey,
}

/// A place in a peer's memory: virtual address `addr` under `rkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAddr {
    /// Virtual address of the first byte, as the peer's MR or MW counts.
    pub addr: u64,
    /// The MR or MW.
    pub rkey: Rkey,
}

bitflags! {
    /// `enum ibv_send_flags`, with its values.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Start only when all earlier READs, atomics and flushes of this QP have completed.
        const FENCE = 1 << 0;
        /// Complete with a work completion even on success.
        const SIGNALED = 1 << 1;
        /// Ask the peer for a solicited event.
        const SOLICITED = 1 << 2;
    }
}

/// Where the data of a send-queue work request comes from, or goes to for READ, CAS and FAA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// Registered memory, in order.
    Sges(&'a [Sge]),
    /// Bytes that are copied when the work request is posted; the caller may reuse them at once.
    Inline(&'a [u8]),
}

/// Which memory a FLUSH covers (the selectivity level of the FETH, Annex A19).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Selectivity {
    /// The given range.
    Range,
    /// The whole memory region of the rkey.
    MemoryRegion,
}

/// Names a memory window of this device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MwHandle(pub u32);

/// The type of a memory window (IBA Vol 1, 10.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MwType {
    /// Reached through any QP of its PD; bound by `Device::bind_mw`.
    Type1,
    /// Type 2B: reached through the QP that bound it only; bound and invalidated by work requests.
    Type2,
}

/// Names an address handle of this device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AhHandle(pub u32);

/// What a memory window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MwBind {
    /// The MR beneath, which must allow MW_BIND.
    pub mr: Lkey,
    /// First virtual address of the window.
    pub addr: u64,
    /// Length in bytes; zero unbinds a type 1 window.
    pub len: u64,
    /// Remote rights (and ZERO_BASED, type 2) of the window.
    pub access: Access,
}

/// The destination of a UD send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDest {
    /// Address handle, of the QP's PD.
    pub ah: AhHandle,
    /// The number of the UD QP at the destination.
    pub qpn: Qpn,
    /// Q_Key to send; with its top bit set the QP's own is sent instead (IBA Vol 1, 10.2.5).
    pub qkey: Qkey,
}

/// The operation of a send-queue work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND, on every transport.
    Send,
    /// SEND with immediate; the value is in host order and leaves big-endian.
    SendImm(u32),
    /// SEND with invalidate (RC).
    SendInv(Rkey),
    /// RDMA WRITE (RC, UC).
    Write(RemoteAddr),
    /// RDMA WRITE with immediate (RC, UC).
    WriteImm(RemoteAddr, u32),
    /// RDMA READ (RC).
    Read(RemoteAddr),
    /// CmpSwap on 8 bytes (RC); the old value lands in the single SGE in host order.
    CompareSwap {
        /// Where, 8-byte aligned.
        remote: RemoteAddr,
        /// The value that the peer's 8 bytes must have to be replaced.
        compare: u64,
        /// The value that replaces them.
        swap: u64,
    },
    /// FetchAdd on 8 bytes (RC); the old value lands in the single SGE in host order.
    FetchAdd {
        /// Where, 8-byte aligned.
        remote: RemoteAddr,
        /// What to add.
        add: u64,
    },
    /// FLUSH (RC, Annex A19). Carries no data.
    Flush {
        /// Where the range begins in the peer's memory.
        remote: RemoteAddr,
        /// Bytes; not looked at with [`Selectivity::MemoryRegion`].
        len: u32,
        /// What is asked for.
        placement: Placement,
        /// How much of the memory.
        selectivity: Selectivity,
    },
    /// ATOMIC WRITE of exactly 8 bytes (RC, Annex A19).
    AtomicWrite(RemoteAddr),
    /// Invalidates a type 2 MW (or, later, a fast-registered MR) of this device.
    LocalInv(Rkey),
    /// Binds a memory window: type 1 gets a new rkey at once (see `Device::bind_mw`), type 2 the given one.
    BindMw {
        /// The window to bind.
        mw: MwHandle,
        /// Type 2: the rkey to use, whose top 24 bits must be the window's.
        rkey: Rkey,
        /// What to bind it to.
        bind: MwBind,
    },
}

/// A send-queue work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the work completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local memory, or inline bytes, that the operation sends or fills.
    pub data: Data<'a>,
    /// How the request is completed, ordered and announced.
    pub flags: SendFlags,
    /// Destination, for UD only.
    pub ud: Option<UdDest>,
}

/// A receive-queue work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the work completion.
    pub wr_id: u64,
    /// Where the message goes, in order.
    pub sges: &'a [Sge],
}
