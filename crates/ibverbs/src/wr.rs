//! Posting: C's work requests become the engine's, without a copy of their lists and without an allocation.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::slice;

use remanence_rnic::{Data, PostError, QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, UdDest};
use remanence_wire::{Qkey, Qpn, Rkey};

use crate::abi::{
    IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE,
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_ah, ibv_context_ops, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, verbs_context,
};
use crate::ah::ah;
use crate::errno;
use crate::mw;
use crate::qp::{QpObj, qp};
use crate::srq::srq;

/// The most inline data of a work request.
pub(crate) const MAX_INLINE: usize = 1024;

/// Puts this file's functions into a context.
pub(crate) fn install(ops: &mut ibv_context_ops, _: &mut verbs_context) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

// The engine's scatter/gather entries are C's.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, len) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// More scatter/gather entries than the engine has for any queue: 32.
const MAX_SGE: usize = 64;
static TOO_MANY: [Sge; MAX_SGE + 1] = [Sge { addr: 0, len: 0, lkey: remanence_wire::Lkey(0) }; MAX_SGE + 1];

/// Where a list is copied to that does not lie at a multiple of its alignment: programs have them in packed structures
/// (libiscsi), and C's loads do not mind.
pub(crate) struct Room([MaybeUninit<Sge>; MAX_SGE]);

impl Room {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_SGE])
    }

    /// # Safety
    /// As of [`sges`].
    #[cold]
    unsafe fn copy(&mut self, list: *const Sge, count: usize) -> &[Sge] {
        if count > MAX_SGE {
            return &TOO_MANY;
        }
        let to = self.0.as_mut_ptr().cast::<Sge>();
        // SAFETY: bytes of the caller's entries, by the contract, to room for as many, which then are initialised.
        unsafe {
            to.cast::<u8>().copy_from_nonoverlapping(list.cast(), count * size_of::<Sge>());
            slice::from_raw_parts(to, count)
        }
    }
}

/// C's scatter/gather list, in place if that can be. An entry of length 0 is empty, as with every device of rdma-core (the
/// specification means 2^31 by it).
///
/// # Safety
/// `list` has `count` entries, for as long as the result is used.
#[inline]
pub(crate) unsafe fn sges(list: *const ibv_sge, count: usize, room: &mut Room) -> &[Sge] {
    let list = list.cast::<Sge>();
    if count == 0 {
        &[]
    } else if list.is_aligned() {
        // SAFETY: by the contract, and both entries are laid out alike: see above.
        unsafe { slice::from_raw_parts(list, count) }
    } else {
        // SAFETY: by the contract.
        unsafe { room.copy(list, count) }
    }
}

/// Where inline data of several pieces is put together.
pub(crate) struct Scratch(MaybeUninit<[u8; MAX_INLINE]>);

impl Scratch {
    #[inline]
    fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// The bytes that the entries point to, one after the other.
    ///
    /// # Safety
    /// They point to readable memory.
    #[inline]
    unsafe fn gather<'a>(&'a mut self, pieces: &[Sge]) -> Result<&'a [u8], c_int> {
        if let [piece] = pieces
            && piece.len > 0
        {
            // SAFETY: by the contract; the caller's memory stays as it is until the request is posted.
            return Ok(unsafe { slice::from_raw_parts(pointer(piece.addr), piece.len as usize) });
        }
        let start = self.0.as_mut_ptr().cast::<u8>();
        let mut len = 0;
        for piece in pieces {
            let more = piece.len as usize;
            if more > MAX_INLINE - len {
                return Err(libc::EINVAL);
            }
            // SAFETY: by the contract of the source, and there is room, as just checked.
            unsafe { start.add(len).copy_from_nonoverlapping(pointer(piece.addr), more) };
            len += more;
        }
        // SAFETY: that many bytes were written above.
        Ok(unsafe { slice::from_raw_parts(start, len) })
    }
}

fn pointer(addr: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(addr as usize)
}

/// The operation of a send work request.
///
/// # Safety
/// The request is C's; the pointers in it, as far as its opcode uses them, are live.
#[inline]
unsafe fn op(wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    // SAFETY: the opcode says which fields of the unions are meant, and any bytes are a value of each.
    unsafe {
        let rdma = || RemoteAddr { addr: wr.wr.rdma.remote_addr, rkey: Rkey(wr.wr.rdma.rkey) };
        let atomic = || RemoteAddr { addr: wr.wr.atomic.remote_addr, rkey: Rkey(wr.wr.atomic.rkey) };
        let imm = || u32::from_be(wr.imm.imm_data);
        Ok(match wr.opcode {
            IBV_WR_RDMA_WRITE => SendOp::Write(rdma()),
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(rdma(), imm()),
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm()),
            IBV_WR_RDMA_READ => SendOp::Read(rdma()),
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
                remote: atomic(),
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                SendOp::FetchAdd { remote: atomic(), add: wr.wr.atomic.compare_add }
            }
            IBV_WR_LOCAL_INV => SendOp::LocalInv(Rkey(wr.imm.invalidate_rkey)),
            IBV_WR_BIND_MW => {
                let bind = &wr.extra.bind_mw;
                bind_mw(bind.mw, bind.rkey, &bind.bind_info)?
            }
            IBV_WR_SEND_WITH_INV => SendOp::SendInv(Rkey(wr.imm.invalidate_rkey)),
            IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite(rdma()),
            // TSO is for raw packets. A FLUSH has no form here: its placement has no field (use ibv_wr_flush).
            _ => return Err(libc::EINVAL),
        })
    }
}

/// The binding of a type 2 window; a type 1 window is bound by `ibv_bind_mw`.
///
/// # Safety
/// The window and the MR are live.
pub(crate) unsafe fn bind_mw(
    window: *mut crate::abi::ibv_mw,
    rkey: u32,
    info: &crate::abi::ibv_mw_bind_info,
) -> Result<SendOp, c_int> {
    // SAFETY: by the contract.
    let (window, bind) = unsafe { (mw::mw(window), mw::of_bind(info)?) };
    if window.ty() != remanence_rnic::MwType::Type2 {
        return Err(libc::EINVAL);
    }
    Ok(SendOp::BindMw { mw: window.raw(), rkey: Rkey(rkey), bind })
}

/// Where a datagram goes.
///
/// # Safety
/// The address handle is live, if it is not null.
#[inline]
pub(crate) unsafe fn destination(p: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDest, c_int> {
    if p.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the contract.
    Ok(unsafe { ah(p) }.ah.dest(Qpn::new(qpn), Qkey(qkey)))
}

/// A send work request as the engine takes it.
///
/// # Safety
/// The request and what it points to are C's.
#[inline]
unsafe fn translate<'a>(
    object: &QpObj,
    wr: &ibv_send_wr,
    scratch: &'a mut Scratch,
    room: &'a mut Room,
) -> Result<SendWr<'a>, c_int> {
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    // SAFETY: by the contract.
    unsafe {
        let list = sges(wr.sg_list, count, room);
        let data = if wr.send_flags & IBV_SEND_INLINE == 0 {
            Data::Sges(list)
        } else {
            Data::Inline(scratch.gather(list)?)
        };
        let ud = if object.ty == QpType::Ud {
            let to = &wr.wr.ud;
            Some(destination(to.ah, to.remote_qpn, to.remote_qkey)?)
        } else {
            None
        };
        let flags = SendFlags::from_bits_truncate(wr.send_flags);
        Ok(SendWr { wr_id: wr.wr_id, op: op(wr)?, data, flags, ud })
    }
}

unsafe extern "C" fn post_send(p: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: C hands in a live QP.
    let object = unsafe { qp(p) };
    let (mut scratch, mut room) = (Scratch::new(), Room::new());
    // Rings when it goes, whether all were posted or some.
    let mut doorbell = object.qp.doorbell();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: C hands in a list that ends with null.
        let wr = unsafe { &*next };
        // SAFETY: and what its requests point to.
        let posted = unsafe { translate(object, wr, &mut scratch, &mut room) }
            .and_then(|wr| doorbell.post_send(&wr).map_err(errno::of_post));
        if let Err(e) = posted {
            // SAFETY: where C wants to know it.
            unsafe { *bad = next };
            return e;
        }
        next = wr.next;
    }
    0
}

/// A list of receives, as C links them. Remembers the one that it gave last.
struct Receives {
    next: *mut ibv_recv_wr,
    last: *mut ibv_recv_wr,
    room: Room,
}

impl Iterator for Receives {
    type Item = RecvWr<'static>;

    #[inline]
    fn next(&mut self) -> Option<RecvWr<'static>> {
        if self.next.is_null() {
            return None;
        }
        self.last = self.next;
        let room = &raw mut self.room;
        // SAFETY: `post_receives` was promised a list of live requests that ends with null. That is only as long as
        // the call lasts, and so is the use that it makes of what comes out here: of one request before it asks for the
        // next, which may take the same room.
        unsafe {
            let wr = &*self.next;
            self.next = wr.next;
            // What makes no sense is more than any queue allows.
            let count = usize::try_from(wr.num_sge).unwrap_or(usize::MAX);
            let list = if count > MAX_SGE { &TOO_MANY[..] } else { sges(wr.sg_list, count, &mut *room) };
            Some(RecvWr { wr_id: wr.wr_id, sges: list })
        }
    }
}

/// # Safety
/// `first` is a list of C's, `bad` is where C wants to know which one was refused.
#[inline]
unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl FnOnce(&mut Receives) -> Result<(), (usize, PostError)>,
) -> c_int {
    let mut list = Receives { next: first, last: first, room: Room::new() };
    match post(&mut list) {
        Ok(()) => 0,
        Err((_, e)) => {
            // SAFETY: by the contract.
            unsafe { *bad = list.last };
            errno::of_post(e)
        }
    }
}

unsafe extern "C" fn post_recv(p: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: C hands in a live QP, a list, and where it wants to know what was refused.
    unsafe { post_receives(first, bad, |list| qp(p).qp.post_recvs(list)) }
}

unsafe extern "C" fn post_srq_recv(
    p: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C hands in a live queue, a list, and where it wants to know what was refused.
    unsafe { post_receives(first, bad, |list| srq(p).srq.post_recvs(list)) }
}
