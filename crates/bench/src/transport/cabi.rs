//! One end of a QP through the C ABI: `libibverbs.so.1` is loaded as a program loads it, and called as a C program
//! calls it, through the structures of its headers.
//!
//! This file is one room of `unsafe`: every block calls a function of the library, or follows a pointer that it gave,
//! as libibverbs' man pages say; the objects live until the process ends.
#![expect(unsafe_code, reason = "a C library is called")]

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::net::Ipv6Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remanence_ibverbs::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_4096,
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_SEND, Plain, ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

use super::ours::{Patience, RECVS, SIZE_MAX};
use super::protocol::{Endpoint, Test};
use crate::limits::each;

/// The functions that programs find by name.
struct Library {
    handle: *mut c_void,
}

impl Library {
    fn open(directory: &Path) -> Result<Self, String> {
        let file = directory.join("libibverbs.so.1");
        let path = CString::new(file.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: the path is a C string; the library may be loaded at any time.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            Err(format!("{} cannot be loaded", file.display()))
        } else {
            Ok(Self { handle })
        }
    }

    /// A function, as the type that the caller says.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is open and the name a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("libibverbs.so.1 has no {}", name.to_string_lossy()));
        }
        // SAFETY: a pointer of the size of `F`, which the caller says it is.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

type Post<W> = unsafe extern "C" fn(*mut ibv_qp, *mut W, *mut *mut W) -> c_int;

/// One end of a connected QP.
pub(super) struct CAbi {
    library: Library,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    /// Two of the largest operation.
    memory: *mut c_void,
    gid: ibv_gid,
    gid_index: u8,
    peer: Option<(u64, u32)>,
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    post_send: Post<ibv_send_wr>,
    post_recv: Post<ibv_recv_wr>,
}

// SAFETY: the library's objects may be used from any thread; one at a time uses them here.
unsafe impl Send for CAbi {}

fn made<T>(what: &str, pointer: *mut T) -> Result<*mut T, String> {
    if pointer.is_null() { Err(format!("{what}: {}", std::io::Error::last_os_error())) } else { Ok(pointer) }
}

fn done(what: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: {}", std::io::Error::from_raw_os_error(status))) }
}

impl CAbi {
    /// Opens the device of `interface`, and makes what one QP needs.
    pub(super) fn open(directory: &Path, interface: &str) -> Result<Self, String> {
        let library = Library::open(directory)?;
        // SAFETY: the signatures are those of infiniband/verbs.h, and the calls are made as its man pages say.
        unsafe {
            let list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device =
                library.function(c"ibv_get_device_list")?;
            let name: unsafe extern "C" fn(*mut ibv_device) -> *const i8 =
                library.function(c"ibv_get_device_name")?;
            let open: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context =
                library.function(c"ibv_open_device")?;
            let alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd =
                library.function(c"ibv_alloc_pd")?;
            let reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr =
                library.function(c"ibv_reg_mr")?;
            let create_cq: unsafe extern "C" fn(
                *mut ibv_context,
                c_int,
                *mut c_void,
                *mut c_void,
                c_int,
            ) -> *mut ibv_cq = library.function(c"ibv_create_cq")?;
            let create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp =
                library.function(c"ibv_create_qp")?;
            let query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int =
                library.function(c"ibv_query_gid")?;

            let mut devices = made("ibv_get_device_list", list(std::ptr::null_mut()))?;
            let wanted = format!("rem_{interface}");
            while !(*devices).is_null()
                && CStr::from_ptr(name(*devices).cast()).to_bytes() != wanted.as_bytes()
            {
                devices = devices.add(1);
            }
            let context = made(&format!("ibv_open_device of {wanted}"), open(made("devices", *devices)?))?;
            let pd = made("ibv_alloc_pd", alloc_pd(context))?;
            let len = 2 * SIZE_MAX as usize;
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let memory = libc::mmap(std::ptr::null_mut(), len, protection, flags | libc::MAP_POPULATE, -1, 0);
            if memory == libc::MAP_FAILED {
                return Err("no memory".into());
            }
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
            let mr = made("ibv_reg_mr", reg_mr(pd, memory, len, access as c_int))?;
            let none = std::ptr::null_mut();
            let cq = made("ibv_create_cq", create_cq(context, 1024, none, none, 0))?;
            let mut init = ibv_qp_init_attr::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (256, RECVS);
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
            let qp = made("ibv_create_qp", create_qp(pd, &raw mut init))?;
            let mut gid = ibv_gid { raw: [0; 16] };
            // The first IPv4 address.
            let is_v4 = |gid: &ibv_gid| Ipv6Addr::from(gid.raw).to_ipv4_mapped().is_some();
            let mut gids = (0_u8..16)
                .filter(|i| query_gid(context, 1, c_int::from(*i), &raw mut gid) == 0 && is_v4(&gid));
            let gid_index = gids.next().ok_or("the device has no IPv4 address")?;
            let missing = "the context lacks an operation";
            let ops = &(*context).ops;
            Ok(Self {
                cq,
                qp,
                mr,
                memory,
                gid,
                gid_index,
                peer: None,
                poll: ops.poll_cq.ok_or(missing)?,
                post_send: ops.post_send.ok_or(missing)?,
                post_recv: ops.post_recv.ok_or(missing)?,
                library,
            })
        }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        // SAFETY: both objects are alive; `raw` is any union's view.
        let (gid, qpn, rkey) = unsafe { (self.gid.raw, (*self.qp).qp_num, (*self.mr).rkey) };
        Endpoint { gid: Ipv6Addr::from(gid), qpn, psn: 0, rkey, addr: self.memory as u64, file_rkey: 0 }
    }

    pub(super) fn connect(&mut self, peer: &Endpoint) -> Result<(), String> {
        // SAFETY: the type of ibv_modify_qp.
        let modify: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int =
            unsafe { self.library.function(c"ibv_modify_qp")? };
        let step = |mut attr: ibv_qp_attr, mask: c_uint| {
            // SAFETY: the QP is alive, and the attributes are for the call only.
            done("ibv_modify_qp", unsafe { modify(self.qp, &raw mut attr, mask as c_int) })
        };
        let mut attr = ibv_qp_attr::zeroed();
        (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
        attr.qp_access_flags = (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) as c_uint;
        step(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        attr.qp_state = IBV_QPS_RTR;
        (attr.path_mtu, attr.dest_qp_num, attr.rq_psn) = (IBV_MTU_4096, peer.qpn, peer.psn);
        (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (16, 12);
        (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
        attr.ah_attr.grh.dgid = ibv_gid { raw: peer.gid.octets() };
        (attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit) = (self.gid_index, 64);
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        step(attr, IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)?;
        attr.qp_state = IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (14, 7, 7, 16);
        let patience = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        step(attr, IBV_QP_STATE | IBV_QP_SQ_PSN | patience | IBV_QP_MAX_QP_RD_ATOMIC)?;
        self.peer = Some((peer.addr, peer.rkey));
        (0..RECVS).try_for_each(|_| self.recv())
    }

    fn sge(&self, offset: u64, len: u64) -> ibv_sge {
        // SAFETY: the MR is alive.
        ibv_sge { addr: self.memory as u64 + offset, length: len as u32, lkey: unsafe { (*self.mr).lkey } }
    }

    fn recv(&self) -> Result<(), String> {
        let mut sge = self.sge(SIZE_MAX, SIZE_MAX);
        let mut wr = ibv_recv_wr::zeroed();
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        let mut bad = std::ptr::null_mut();
        // SAFETY: the QP is alive; list and work request are for the call only.
        done("ibv_post_recv", unsafe { (self.post_recv)(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// One completion, if there is one.
    fn poll(&self) -> Result<Option<ibv_wc>, String> {
        let mut wc = ibv_wc::zeroed();
        // SAFETY: the CQ is alive and there is room for one.
        match unsafe { (self.poll)(self.cq, 1, &raw mut wc) } {
            0 => Ok(None),
            1 if wc.status == IBV_WC_SUCCESS => Ok(Some(wc)),
            1 => Err(format!("an operation ended with status {}", wc.status)),
            other => Err(format!("ibv_poll_cq: {other}")),
        }
    }

    /// Answers the peer until told to stop.
    pub(super) fn serve(&self, stop: &AtomicBool) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            if self.poll()?.is_some() {
                self.recv()?;
            }
        }
        Ok(())
    }

    /// Nanoseconds of each operation, post to completion, for about `ms` milliseconds.
    pub(super) fn run(&self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        let (addr, rkey) = self.peer.ok_or("not connected")?;
        let mut sge = self.sge(0, size);
        let mut wr = ibv_send_wr::zeroed();
        (wr.sg_list, wr.num_sge, wr.send_flags) = (&raw mut sge, 1, IBV_SEND_SIGNALED);
        wr.opcode = match test {
            Test::Write => IBV_WR_RDMA_WRITE,
            Test::Read => IBV_WR_RDMA_READ,
            Test::Send => IBV_WR_SEND,
            other => return Err(format!("{other:?} is not measured through the C ABI")),
        };
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (addr, rkey);
        each(Duration::from_millis(ms), || {
            let mut bad = std::ptr::null_mut();
            // SAFETY: the QP is alive; list and work request are for the call only.
            done("ibv_post_send", unsafe { (self.post_send)(self.qp, &raw mut wr, &raw mut bad) })?;
            let mut patience = Patience::default();
            while self.poll()?.is_none() {
                patience.check()?;
            }
            Ok(())
        })
    }
}
