//! Posting by function calls: `ibv_wr_start`, then for each request its operation and its data, then `ibv_wr_complete`,
//! which posts all of them behind one doorbell, or none.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::slice;

use remanence_rnic::{
    Data, Placement, QpType, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Sge, UdDest,
};
use remanence_wire::{Lkey, Rkey};

use crate::abi::{
    IBV_FLUSH_GLOBAL, IBV_FLUSH_MR, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah, ibv_context_ops, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex,
    ibv_sge, verbs_context,
};
use crate::errno;
use crate::qp::{QpObj, qp};
use crate::turnstile::Turnstile;
use crate::wr;

/// Puts this file's functions into a context: they are in each QP.
pub(crate) fn install(_: &mut ibv_context_ops, _: &mut verbs_context) {}

/// The operations that a transport has.
pub(crate) fn operations(ty: QpType) -> u64 {
    let datagrams = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagrams
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    u64::from(match ty {
        QpType::Ud => datagrams,
        QpType::Uc => unreliable,
        QpType::Rc => {
            unreliable
                | IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | IBV_QP_EX_WITH_FLUSH
                | IBV_QP_EX_WITH_ATOMIC_WRITE
        }
    })
}

/// Gives a QP its functions.
pub(crate) fn offer(c: &mut ibv_qp_ex) {
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_send_tso = Some(wr_send_tso);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_atomic_write = Some(wr_atomic_write);
    c.wr_flush = Some(wr_flush);
}

/// Where the data of a request lies in the lists of all requests.
#[derive(Clone, Copy)]
enum Part {
    Sges(usize, usize),
    Inline(usize, usize),
}

#[derive(Clone, Copy)]
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    ud: Option<UdDest>,
    part: Part,
}

/// The requests between start and complete. Their storage is used again.
#[derive(Default)]
struct List {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    /// The first thing that was wrong.
    error: Option<c_int>,
}

/// What a QP needs to be posted to by function calls. Between start and complete it belongs to one thread.
pub(crate) struct Builder {
    turnstile: Turnstile,
    list: UnsafeCell<List>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { turnstile: Turnstile::new(false), list: UnsafeCell::default() }
    }
}

impl List {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = None;
    }

    #[cold]
    fn fail(&mut self, e: c_int) {
        self.error.get_or_insert(e);
    }

    #[inline]
    fn request(&mut self, object: &QpObj, wr_id: u64, wr_flags: u32, op: SendOp) {
        // So that a program that never ends a list finds out, before there is no memory left.
        if self.requests.len() >= object.caps.max_send_wr as usize {
            return self.fail(libc::ENOMEM);
        }
        let flags = SendFlags::from_bits_truncate(wr_flags);
        self.requests.push(Request { wr_id, op, flags, ud: None, part: Part::Sges(0, 0) });
    }

    #[inline]
    fn last(&mut self) -> Option<&mut Request> {
        let last = self.requests.last_mut();
        if last.is_none() {
            self.error.get_or_insert(libc::EINVAL);
        }
        last
    }

    #[inline]
    fn set_sges(&mut self, object: &QpObj, sges: &[Sge]) {
        if sges.len() > object.caps.max_send_sge as usize {
            return self.fail(libc::EINVAL);
        }
        let part = Part::Sges(self.sges.len(), sges.len());
        let Some(last) = self.last() else { return };
        last.part = part;
        self.sges.extend_from_slice(sges);
    }

    #[inline]
    fn set_inline<'a>(&mut self, object: &QpObj, pieces: impl Iterator<Item = &'a [u8]>) {
        let start = self.bytes.len();
        for piece in pieces {
            if self.bytes.len() - start + piece.len() > object.caps.max_inline as usize {
                return self.fail(libc::EINVAL);
            }
            self.bytes.extend_from_slice(piece);
        }
        let part = Part::Inline(start, self.bytes.len() - start);
        if let Some(last) = self.last() {
            last.part = part;
        }
    }

    #[inline]
    fn work_request(&self, request: &Request) -> SendWr<'_> {
        let Request { wr_id, op, flags, ud, part } = *request;
        let data = match part {
            Part::Sges(start, len) => Data::Sges(&self.sges[start..start + len]),
            Part::Inline(start, len) => Data::Inline(&self.bytes[start..start + len]),
        };
        SendWr { wr_id, op, data, flags, ud }
    }

    /// Posts all or nothing.
    #[inline]
    fn post(&self, object: &QpObj) -> Result<(), c_int> {
        if let Some(e) = self.error {
            return Err(e);
        }
        let mut doorbell = object.qp.doorbell();
        // One request is posted whole by itself.
        if self.requests.len() > 1 {
            for (ahead, request) in (0..).zip(&self.requests) {
                doorbell.check_send(&self.work_request(request), ahead).map_err(errno::of_post)?;
            }
        }
        for request in &self.requests {
            doorbell.post_send(&self.work_request(request)).map_err(errno::of_post)?;
        }
        Ok(())
    }
}

/// The QP and the list that is being made.
///
/// # Safety
/// `p` came from `ibv_qp_to_qp_ex` and was not destroyed yet; this thread is between start and complete.
#[inline]
unsafe fn parts<'a>(p: *mut ibv_qp_ex) -> (&'a QpObj, &'a mut List) {
    // SAFETY: by the contract this thread has the builder for itself.
    unsafe {
        let object = qp(p.cast());
        (object, &mut *builder(object).list.get())
    }
}

#[inline]
fn builder(object: &QpObj) -> &Builder {
    object.builder.as_ref().expect("only such QPs have these functions")
}

/// Begins a request with the operation, and `wr_id` and `wr_flags` as C has set them.
///
/// # Safety
/// As [`parts`].
#[inline]
unsafe fn begin(p: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: by the contract.
    unsafe {
        let (object, list) = parts(p);
        list.request(object, (*p).wr_id, (*p).wr_flags, op);
    }
}

unsafe extern "C" fn wr_start(p: *mut ibv_qp_ex) {
    // SAFETY: C hands in a live QP, and enters here.
    unsafe {
        builder(qp(p.cast())).turnstile.enter();
        parts(p).1.clear();
    }
}

unsafe extern "C" fn wr_complete(p: *mut ibv_qp_ex) -> c_int {
    // SAFETY: C has started.
    let (object, list) = unsafe { parts(p) };
    let posted = list.post(object);
    builder(object).turnstile.leave();
    errno::code(posted)
}

unsafe extern "C" fn wr_abort(p: *mut ibv_qp_ex) {
    // SAFETY: C has started.
    let object = unsafe { parts(p) }.0;
    builder(object).turnstile.leave();
}

unsafe extern "C" fn wr_send(p: *mut ibv_qp_ex) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::Send) }
}

unsafe extern "C" fn wr_send_imm(p: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::SendImm(u32::from_be(imm_data))) }
}

unsafe extern "C" fn wr_send_inv(p: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::SendInv(Rkey(invalidate_rkey))) }
}

unsafe extern "C" fn wr_rdma_write(p: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::Write(remote(rkey, remote_addr))) }
}

unsafe extern "C" fn wr_rdma_write_imm(p: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::WriteImm(remote(rkey, remote_addr), u32::from_be(imm_data))) }
}

unsafe extern "C" fn wr_rdma_read(p: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::Read(remote(rkey, remote_addr))) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    p: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let op = SendOp::CompareSwap { remote: remote(rkey, remote_addr), compare, swap };
    // SAFETY: C has started.
    unsafe { begin(p, op) }
}

unsafe extern "C" fn wr_atomic_fetch_add(p: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::FetchAdd { remote: remote(rkey, remote_addr), add }) }
}

/// The eight bytes are given with the operation, as they will be in memory.
unsafe extern "C" fn wr_atomic_write(
    p: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: C has started, and hands in eight bytes.
    unsafe {
        begin(p, SendOp::AtomicWrite(remote(rkey, remote_addr)));
        let (object, list) = parts(p);
        list.set_inline(object, [slice::from_raw_parts(atomic_wr.cast(), 8)].into_iter());
    }
}

/// Both placements at once are persistence, which is the stronger.
unsafe extern "C" fn wr_flush(
    p: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    type_: u8,
    level: u8,
) {
    let type_ = u32::from(type_);
    let known = IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT;
    let placement = match type_ & IBV_FLUSH_PERSISTENT {
        0 => Placement::GlobalVisibility,
        _ => Placement::Persistence,
    };
    let selectivity = match u32::from(level) {
        IBV_FLUSH_RANGE => Some(Selectivity::Range),
        IBV_FLUSH_MR => Some(Selectivity::MemoryRegion),
        _ => None,
    };
    // SAFETY: C has started.
    unsafe {
        match (selectivity, u32::try_from(len)) {
            (Some(selectivity), Ok(len)) if type_ != 0 && type_ & !known == 0 => {
                let remote = remote(rkey, remote_addr);
                begin(p, SendOp::Flush { remote, len, placement, selectivity });
            }
            _ => parts(p).1.fail(libc::EINVAL),
        }
    }
}

unsafe extern "C" fn wr_local_inv(p: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: C has started.
    unsafe { begin(p, SendOp::LocalInv(Rkey(invalidate_rkey))) }
}

unsafe extern "C" fn wr_bind_mw(
    p: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: C has started, and hands in a live window and what to bind it to.
    unsafe {
        match wr::bind_mw(mw, rkey, &*bind_info) {
            Ok(op) => begin(p, op),
            Err(e) => parts(p).1.fail(e),
        }
    }
}

unsafe extern "C" fn wr_send_tso(p: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: C has started.
    unsafe { parts(p).1.fail(libc::EOPNOTSUPP) }
}

unsafe extern "C" fn wr_set_xrc_srqn(p: *mut ibv_qp_ex, _: u32) {
    // SAFETY: C has started.
    unsafe { parts(p).1.fail(libc::EOPNOTSUPP) }
}

unsafe extern "C" fn wr_set_ud_addr(p: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: C has started, and hands in a live address handle.
    unsafe {
        let (_, list) = parts(p);
        match wr::destination(ah, remote_qpn, remote_qkey) {
            Ok(to) => {
                if let Some(last) = list.last() {
                    last.ud = Some(to);
                }
            }
            Err(e) => list.fail(e),
        }
    }
}

unsafe extern "C" fn wr_set_sge(p: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: C has started.
    let (object, list) = unsafe { parts(p) };
    list.set_sges(object, &[Sge { addr, len: length, lkey: Lkey(lkey) }]);
}

unsafe extern "C" fn wr_set_sge_list(p: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: C has started, and hands in a list as long as it says.
    unsafe {
        let (object, list) = parts(p);
        list.set_sges(object, wr::sges(sg_list, num_sge, &mut wr::Room::new()));
    }
}

unsafe extern "C" fn wr_set_inline_data(p: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: C has started, and hands in readable memory.
    unsafe {
        let (object, list) = parts(p);
        list.set_inline(object, [bytes(&piece)].into_iter());
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    p: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: C has started, and hands in a list as long as it says, of readable memory.
    unsafe {
        let (object, list) = parts(p);
        let pieces = if num_buf == 0 { &[] } else { slice::from_raw_parts(buf_list, num_buf) };
        list.set_inline(object, pieces.iter().map(|piece| bytes(piece)));
    }
}

/// # Safety
/// It points to readable memory.
#[inline]
unsafe fn bytes(piece: &ibv_data_buf) -> &[u8] {
    if piece.length == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { slice::from_raw_parts(piece.addr.cast(), piece.length) }
}

#[inline]
fn remote(rkey: u32, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey: Rkey(rkey) }
}
