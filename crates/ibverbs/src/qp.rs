//! Queue pairs: the verbs that create, modify, query and destroy them.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{PTHREAD_COND_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
use remanence_rnic::{QpCaps, QpType};
use remanence_verbs::{Qp, QpOptions};
use remanence_wire::Gid;

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_STATE, IBV_QPS_RESET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, Plain,
    ibv_context, ibv_context_ops, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_type, ibv_sge, ibv_srq, ibv_wr_opcode, verbs_context,
};
use crate::context::ctx;
use crate::cq::{cq, wait_for_acks};
use crate::errno;
use crate::neighbour;
use crate::pd::pd;
use crate::qp_attr;
use crate::qp_ex::{self, Builder};
use crate::srq::srq;
use crate::wr::MAX_INLINE;

/// The bytes of an entry of a gather list.
const SGE_LEN: u32 = size_of::<ibv_sge>() as u32;

/// A queue pair, with what C sees of it in front: always the extended structure, which begins with the plain one.
#[repr(C)]
pub(crate) struct QpObj {
    /// C reads and writes it too.
    pub(crate) c: UnsafeCell<ibv_qp_ex>,
    pub(crate) qp: Qp,
    pub(crate) ty: QpType,
    pub(crate) caps: QpCaps,
    sq_sig_all: bool,
    /// Of a QP that is posted to by function calls.
    pub(crate) builder: Option<Builder>,
    /// Multicast groups that it is attached to.
    groups: Mutex<Vec<Gid>>,
}

impl QpObj {
    /// Multicast groups that it is attached to.
    pub(crate) fn groups(&self) -> MutexGuard<'_, Vec<Gid>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Our queue pair behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_qp`] or `ibv_create_qp_ex` and was not destroyed yet.
#[inline]
pub(crate) unsafe fn qp<'a>(p: *mut ibv_qp) -> &'a QpObj {
    // SAFETY: by the contract `c` is the first field of a live QpObj.
    unsafe { &*p.cast::<QpObj>() }
}

/// Puts this file's functions into a context.
pub(crate) fn install(_: &mut ibv_context_ops, vc: &mut verbs_context) {
    vc.create_qp_ex = Some(create_qp_ex);
}

/// What a QP is created with.
struct Request {
    pd: *mut ibv_pd,
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type,
    sq_sig_all: bool,
    /// Operations that will be posted by function calls.
    send_ops: Option<u64>,
}

/// # Safety
/// The pointers came from us, or are null where C allows that.
unsafe fn create(request: &Request) -> Result<*mut QpObj, c_int> {
    let ty = match request.qp_type {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        _ => return Err(libc::EOPNOTSUPP),
    };
    if request.pd.is_null() || request.send_cq.is_null() || request.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the contract the pointers are those of live objects.
    let (context, strangers) = unsafe {
        let context = (*request.pd).context;
        let srq_of_other = !request.srq.is_null() && (*request.srq).context != context;
        let cq_of_other = (*request.send_cq).context != context || (*request.recv_cq).context != context;
        (context, srq_of_other || cq_of_other)
    };
    let mut caps = qp_attr::caps(&request.cap);
    if strangers || caps.max_inline > MAX_INLINE as u32 {
        return Err(libc::EINVAL);
    }
    // A WQE has room for its gather list, and inline data may take it: devices give this much to whoever asks for none,
    // and programs (rdma_xclient) live on it.
    caps.max_inline = caps.max_inline.max(SGE_LEN.saturating_mul(caps.max_send_sge).min(MAX_INLINE as u32));
    if let Some(ops) = request.send_ops {
        if ops & !qp_ex::operations(ty) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if ops & u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE) != 0 {
            // Its eight bytes are given by value.
            caps.max_inline = caps.max_inline.max(8);
        }
    }
    if !request.srq.is_null() {
        (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
    }
    // SAFETY: as above.
    let qp = unsafe {
        let srq_of_c = (!request.srq.is_null()).then(|| &srq(request.srq).srq);
        let options = QpOptions {
            ty,
            send_cq: &cq(request.send_cq).cq,
            recv_cq: &cq(request.recv_cq).cq,
            srq: srq_of_c,
            caps,
            sq_sig_all: request.sq_sig_all,
        };
        pd(request.pd).pd.create_qp(&options).map_err(|e| errno::of(&e))?
    };
    let qpn = qp.qpn();
    let qp_base = ibv_qp {
        context,
        qp_context: request.qp_context,
        pd: request.pd,
        send_cq: request.send_cq,
        recv_cq: request.recv_cq,
        srq: request.srq,
        handle: qpn.value(),
        qp_num: qpn.value(),
        state: IBV_QPS_RESET,
        qp_type: request.qp_type,
        mutex: PTHREAD_MUTEX_INITIALIZER,
        cond: PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let mut c = ibv_qp_ex { qp_base, ..ibv_qp_ex::zeroed() };
    let builder = request.send_ops.map(|_| {
        qp_ex::offer(&mut c);
        Builder::default()
    });
    let sq_sig_all = request.sq_sig_all;
    let groups = Mutex::default();
    let object = Box::new(QpObj { c: UnsafeCell::new(c), qp, ty, caps, sq_sig_all, builder, groups });
    let object = Box::into_raw(object);
    // SAFETY: the context of a live domain.
    unsafe { ctx(context) }.table().add_qp(qpn, object.cast());
    Ok(object)
}

/// Creates a queue pair, and writes back how large it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(p: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: C hands in a live domain and a structure to be read and written.
    let created = unsafe {
        let ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = init.read();
        let sq_sig_all = sq_sig_all != 0;
        let send_ops = None;
        create(&Request { pd: p, qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, send_ops })
    };
    match created {
        Ok(object) => {
            // SAFETY: just made; the structure as above.
            unsafe { (*init).cap = qp_attr::caps_of(&(*object).caps) };
            object.cast()
        }
        Err(e) => errno::null_with(e),
    }
}

unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: C hands in a live context, and a structure that is as long as its mask says.
    let created = unsafe { of_extended(context, init).and_then(|request| create(&request)) };
    match created {
        Ok(object) => {
            // SAFETY: just made; the structure as above.
            unsafe { (*init).cap = qp_attr::caps_of(&(*object).caps) };
            object.cast()
        }
        Err(e) => errno::null_with(e),
    }
}

/// # Safety
/// As `ibv_create_qp_ex`.
unsafe fn of_extended(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> Result<Request, c_int> {
    // SAFETY: by the contract; fields beyond comp_mask are read only if it names them.
    unsafe {
        let mask = (*init).comp_mask;
        let has = |bit| mask & bit != 0;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        // Receive tables have no PD, XRC no send queue: what is left needs one.
        if mask & !known != 0
            || has(IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH)
            || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && (*init).create_flags != 0
            || has(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && (*init).max_tso_header != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        if !has(IBV_QP_INIT_ATTR_PD) || (*init).pd.is_null() || (*(*init).pd).context != context {
            return Err(libc::EINVAL);
        }
        Ok(Request {
            pd: (*init).pd,
            qp_context: (*init).qp_context,
            send_cq: (*init).send_cq,
            recv_cq: (*init).recv_cq,
            srq: (*init).srq,
            cap: (*init).cap,
            qp_type: (*init).qp_type,
            sq_sig_all: (*init).sq_sig_all != 0,
            send_ops: has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then(|| (*init).send_ops_flags),
        })
    }
}

/// The extended queue pair, if it was created to be posted to by function calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(p: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: C hands in a live QP.
    match unsafe { qp(p) }.builder {
        Some(_) => p.cast(),
        None => std::ptr::null_mut(),
    }
}

/// Changes attributes, the state among them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(p: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: C hands in a live QP and a structure to be read.
    let (object, attr) = unsafe { (qp(p), &*attr) };
    let now = match object.qp.query() {
        Ok(info) => info.state,
        Err(e) => return errno::of_verb(e),
    };
    let changed = qp_attr::change(object.ty, now, attr, mask).and_then(|change| {
        if let Some(av) = &change.av {
            // SAFETY: as above; the QP's device is open.
            neighbour::find(unsafe { ctx((*p).context) }, av)?;
        }
        object.qp.modify(&change).map_err(errno::of_verb)
    });
    if changed.is_ok() && mask as u32 & IBV_QP_STATE != 0 {
        // SAFETY: as above; programs do not modify a QP from two threads at once.
        unsafe { (*p).state = attr.qp_state };
        if attr.qp_state == IBV_QPS_RESET {
            // SAFETY: its CQs live as long as it does.
            for cq in unsafe { [cq((*p).send_cq), cq((*p).recv_cq)] } {
                cq.forget(object.qp.qpn());
            }
        }
    }
    errno::code(changed)
}

/// Attributes and state, and what the QP was created with. Everything is filled in, whatever the mask asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    p: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: C hands in a live QP.
    let object = unsafe { qp(p) };
    let info = match object.qp.query() {
        Ok(info) => info,
        Err(e) => return errno::of_verb(e),
    };
    let answer = qp_attr::answer(&info);
    // SAFETY: as above, and two structures to be written.
    unsafe {
        (*p).state = answer.qp_state;
        init.write(ibv_qp_init_attr {
            qp_context: (*p).qp_context,
            send_cq: (*p).send_cq,
            recv_cq: (*p).recv_cq,
            srq: (*p).srq,
            cap: answer.cap,
            qp_type: (*p).qp_type,
            sq_sig_all: c_int::from(object.sq_sig_all),
        });
        attr.write(answer);
    }
    0
}

/// Destroys a queue pair that is in no multicast group, when all of its events that were handed out are acknowledged.
/// What was posted is gone without completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(p: *mut ibv_qp) -> c_int {
    // SAFETY: C hands in a live QP, whose context is live too.
    let (object, ctx) = unsafe { (qp(p), ctx((*p).context)) };
    if !object.groups().is_empty() {
        return libc::EBUSY;
    }
    let reported = match ctx.destroy_qp(object.qp.qpn(), || object.qp.destroy()) {
        Ok(reported) => reported,
        Err(e) => return e,
    };
    // SAFETY: as above; after this nobody else knows the object, which came from a Box.
    unsafe {
        let (mutex, cond) = (&raw mut (*p).mutex, &raw mut (*p).cond);
        wait_for_acks(mutex, cond, &raw const (*p).events_completed, reported);
        drop(Box::from_raw(p.cast::<QpObj>()));
    }
    0
}

/// Whether the bytes of a message arrive in order in memory, so that the last may be polled. They are copied packet by
/// packet in order, but in what order within a packet is the processor's business.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: ibv_wr_opcode, _flags: u32) -> c_int {
    0
}
