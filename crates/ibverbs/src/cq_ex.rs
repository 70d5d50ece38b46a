//! Completion queues that are read field by field: `ibv_start_poll` to `ibv_end_poll`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::ptr;

use remanence_rnic::{CqError, Wc};
use remanence_wire::Qpn;

use crate::abi::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP,
    IBV_WC_STANDARD_FLAGS, ibv_context, ibv_context_ops, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
    ibv_wc_opcode, verbs_context,
};
use crate::cq::{self, CqObj};
use crate::errno;
use crate::turnstile::Turnstile;
use crate::wc::{self, Array};

/// Completions that are taken from the queue at once, for one lock and one look at the device.
const AHEAD: usize = 16;

/// Puts this file's functions into a context.
pub(crate) fn install(_: &mut ibv_context_ops, vc: &mut verbs_context) {
    vc.create_cq_ex = Some(create_cq_ex);
}

/// The completions that were taken from the queue; the one at `at` is the next, or is being read.
struct Batch {
    entries: Vec<Wc>,
    at: usize,
    reading: bool,
}

/// What a CQ needs to be read field by field. Between `start_poll` and `end_poll` it belongs to one thread.
pub(crate) struct Reader {
    turnstile: Turnstile,
    batch: UnsafeCell<Batch>,
}

impl Reader {
    fn new(single_threaded: bool) -> Self {
        let batch = Batch { entries: Vec::with_capacity(AHEAD), at: 0, reading: false };
        Self { turnstile: Turnstile::new(single_threaded), batch: UnsafeCell::new(batch) }
    }

    /// For `ibv_poll_cq` on such a queue: moves what was taken ahead to `out`, and says how many that were.
    pub(crate) fn take(&self, out: &mut Array, max: usize) -> usize {
        self.turnstile.enter();
        // SAFETY: between enter and leave this thread is the only one here.
        let batch = unsafe { &mut *self.batch.get() };
        let taken = (batch.entries.len() - batch.at).min(max);
        out.extend(batch.entries[batch.at..batch.at + taken].iter().copied());
        batch.at += taken;
        self.turnstile.leave();
        taken
    }

    /// Drops what was taken ahead of a QP that is reset, as the engine does with what is in the queue.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.turnstile.enter();
        // SAFETY: between enter and leave this thread is the only one here.
        let batch = unsafe { &mut *self.batch.get() };
        let mut index = 0;
        let kept = batch.at + usize::from(batch.reading);
        batch.entries.retain(|wc| {
            index += 1;
            index <= kept || wc.qpn != qpn
        });
        self.turnstile.leave();
    }
}

impl Batch {
    /// Whether there is an entry at `at`, having looked for more if not.
    #[inline]
    fn fill(&mut self, object: &CqObj) -> Result<bool, CqError> {
        if self.at == self.entries.len() {
            self.entries.clear();
            (self.at, self.reading) = (0, false);
            object.cq.poll(&mut self.entries, AHEAD)?;
        }
        self.reading = !self.entries.is_empty();
        Ok(self.reading)
    }

    /// The entry at hand was read.
    #[inline]
    fn step(&mut self) {
        self.at += usize::from(self.reading);
        self.reading = false;
    }
}

unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: C hands in a live context and a structure that is as long as its comp_mask says; the mask is read
    // first, and what an old program's structure lacks is then not looked at.
    match unsafe { create(context, attr) } {
        Ok(object) => object.cast(),
        Err(e) => errno::null_with(e),
    }
}

/// # Safety
/// As `ibv_create_cq_ex`.
unsafe fn create(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> Result<*mut CqObj, c_int> {
    // SAFETY: by the contract; fields beyond comp_mask are read only if it names them.
    let (comp_mask, wc_flags, request) = unsafe {
        let request = cq::Request {
            cqe: (*attr).cqe,
            cq_context: (*attr).cq_context,
            channel: (*attr).channel,
            comp_vector: (*attr).comp_vector,
        };
        ((*attr).comp_mask, (*attr).wc_flags, request)
    };
    if comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS) != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    let flags = match comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        // SAFETY: the mask names the field.
        _ => unsafe { (*attr).flags },
    };
    // Who promises never to overrun the queue needs nothing from us.
    if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
    // SAFETY: by the contract.
    let object = unsafe { cq::create(context, &request, Some(Reader::new(single_threaded)))? };
    // SAFETY: just made, and not yet given to C.
    offer(unsafe { &mut *(*object).c.get() }, wc_flags as u32);
    Ok(object)
}

/// The functions of a queue: those that read, for the fields that were asked for.
fn offer(c: &mut ibv_cq_ex, wc_flags: u32) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_wc_flags = Some(read_wc_flags);
    let asked = |flag| wc_flags & flag != 0;
    c.read_byte_len = asked(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    c.read_imm_data = asked(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    c.read_qp_num = asked(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    c.read_src_qp = asked(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    c.read_slid = asked(IBV_WC_EX_WITH_SLID).then_some(read_slid);
    c.read_sl = asked(IBV_WC_EX_WITH_SL).then_some(read_sl);
    c.read_dlid_path_bits = asked(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
}

/// The queue and its reader.
///
/// # Safety
/// `p` came from `ibv_create_cq_ex` and was not destroyed yet.
#[inline]
unsafe fn parts<'a>(p: *mut ibv_cq_ex) -> (&'a CqObj, &'a Reader) {
    // SAFETY: by the contract.
    let object = unsafe { cq::cq(p.cast()) };
    (object, object.reader.as_ref().expect("only such queues have these functions"))
}

/// The batch of a queue.
///
/// # Safety
/// As [`parts`]; and this thread is between `start_poll` and `end_poll`.
#[inline]
unsafe fn batch<'a>(p: *mut ibv_cq_ex) -> &'a mut Batch {
    // SAFETY: by the contract this thread has the reader for itself.
    unsafe { &mut *parts(p).1.batch.get() }
}

/// The completion that is being read.
///
/// # Safety
/// As [`batch`].
#[inline]
unsafe fn current<'a>(p: *mut ibv_cq_ex) -> &'a Wc {
    // SAFETY: by the contract.
    let batch = unsafe { batch(p) };
    &batch.entries[batch.at]
}

/// Shows the entry at hand in the fields that C reads without a function; says whether there is one.
///
/// # Safety
/// As [`batch`].
#[inline]
unsafe fn show(p: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by the contract.
    let (object, batch) = unsafe { (parts(p).0, batch(p)) };
    match batch.fill(object) {
        Ok(true) => {
            let wc = &batch.entries[batch.at];
            // SAFETY: a live queue, which this thread has for itself.
            unsafe {
                (*p).wr_id = wc.wr_id;
                (*p).status = wc.status as c_uint;
            }
            0
        }
        Ok(false) => libc::ENOENT,
        Err(_) => libc::EIO,
    }
}

unsafe extern "C" fn start_poll(p: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: C hands in a live queue and an attribute structure.
    unsafe {
        if !ptr::eq(attr, ptr::null()) && (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let turnstile = &parts(p).1.turnstile;
        turnstile.enter();
        let answer = show(p);
        if answer != 0 {
            // There will be no end_poll.
            turnstile.leave();
        }
        answer
    }
}

unsafe extern "C" fn next_poll(p: *mut ibv_cq_ex) -> c_int {
    // SAFETY: C is between start_poll and end_poll.
    unsafe {
        batch(p).step();
        show(p)
    }
}

unsafe extern "C" fn end_poll(p: *mut ibv_cq_ex) {
    // SAFETY: C is between start_poll and end_poll.
    unsafe {
        batch(p).step();
        parts(p).1.turnstile.leave();
    }
}

unsafe extern "C" fn read_opcode(p: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: C is between start_poll and end_poll.
    unsafe { current(p) }.opcode as ibv_wc_opcode
}

unsafe extern "C" fn read_vendor_err(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_byte_len(p: *mut ibv_cq_ex) -> u32 {
    // SAFETY: C is between start_poll and end_poll.
    unsafe { current(p) }.byte_len
}

unsafe extern "C" fn read_imm_data(p: *mut ibv_cq_ex) -> u32 {
    // SAFETY: C is between start_poll and end_poll.
    wc::imm(unsafe { current(p) })
}

unsafe extern "C" fn read_qp_num(p: *mut ibv_cq_ex) -> u32 {
    // SAFETY: C is between start_poll and end_poll.
    unsafe { current(p) }.qpn.value()
}

unsafe extern "C" fn read_src_qp(p: *mut ibv_cq_ex) -> u32 {
    // SAFETY: C is between start_poll and end_poll.
    unsafe { current(p) }.src_qp.value()
}

unsafe extern "C" fn read_wc_flags(p: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: C is between start_poll and end_poll.
    wc::flags(unsafe { current(p) })
}

unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(p: *mut ibv_cq_ex) -> u8 {
    // SAFETY: C is between start_poll and end_poll.
    wc::sl(unsafe { current(p) })
}

unsafe extern "C" fn read_dlid_path_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}
