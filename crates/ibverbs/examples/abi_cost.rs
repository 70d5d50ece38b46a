//! What the C ABI costs: a 64-byte WRITE ping-pong between two QPs of one device, through `libibverbs.so.1` and through
//! the Rust API, by turns, each time in a process of its own.
//!
//! `cargo xtask dropin --release`, then `cargo run --release -p remanence-ibverbs --example abi_cost [TURNS]`.
#![expect(unsafe_code, reason = "calls the library as C does")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::net::Ipv4Addr;
use std::process::Command;
use std::ptr;
use std::time::Instant;

use remanence_ibverbs::abi::*;
use remanence_pmem::Region;
use remanence_rnic::{Access, Data, SendFlags, SendOp, SendWr, WcStatus};
use remanence_verbs::{ConnectAttr, Context, Options, QpOptions};

const LEN: u32 = 64;
const BATCHES: usize = 200;
const PER_BATCH: usize = 100;

fn main() {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("rust") => println!("{}", rust()),
        Some("c") => println!("{}", c(Posting::List)),
        Some("calls") => println!("{}", c(Posting::Calls)),
        turns => compare(turns.map_or(15, |turns| turns.parse().expect("a number of turns"))),
    }
}

/// Runs the ways by turns and prints their medians.
fn compare(turns: usize) {
    let ways = ["rust", "c", "calls"];
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..turns {
        for (way, times) in ways.iter().zip(&mut times) {
            let output = Command::new(std::env::current_exe().expect("this program"))
                .arg(way)
                .env("REMANENCE_DEVICE", "rem_lo")
                .output()
                .expect("it runs");
            assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
            let ns: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a time");
            times.push(ns);
        }
    }
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[0])
    });
    let (base, best) = medians[0];
    for (way, (median, min)) in ways.iter().zip(medians) {
        println!(
            "{way:6} median {median:7.0} ns ({:.3}), least {min:7.0} ns ({:.3})",
            median / base,
            min / best
        );
    }
}

/// The median time of a round in ns: two WRITEs, one after the other is complete.
fn measure(mut round: impl FnMut()) -> f64 {
    for _ in 0..10 * PER_BATCH {
        round();
    }
    let mut times = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..PER_BATCH {
            round();
        }
        times.push(start.elapsed().as_nanos() as f64 / PER_BATCH as f64);
    }
    times.sort_by(f64::total_cmp);
    times[BATCHES / 2]
}

fn rust() -> f64 {
    let context = Context::open(Options::udp(Ipv4Addr::LOCALHOST.into())).expect("a device");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(64, None, 0).expect("a CQ");
    let region = Region::anonymous(4096).expect("memory");
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = pd.reg_mr(&region, all).expect("an MR");
    let [a, b] = [(); 2].map(|()| pd.create_qp(&QpOptions::rc(&cq)).expect("a QP"));
    a.connect_to(&b.endpoint(), &ConnectAttr::default()).expect("connected");
    b.connect_to(&a.endpoint(), &ConnectAttr::default()).expect("connected");
    let mut done = Vec::with_capacity(1);
    measure(|| {
        for qp in [&a, &b] {
            let sges = [mr.sge(0, LEN)];
            let op = SendOp::Write(mr.remote(2048));
            let data = Data::Sges(&sges);
            let wr = SendWr { wr_id: 1, op, data, flags: SendFlags::SIGNALED, ud: None };
            qp.post_send(&wr).expect("posted");
            done.clear();
            while cq.poll(&mut done, 1).expect("no overflow") == 0 {}
            assert_eq!(done[0].status, WcStatus::Success);
        }
    })
}

enum Posting {
    List,
    Calls,
}

/// A function of the library.
macro_rules! function {
    ($library:expr, $name:literal as $ty:ty) => {{
        let name = concat!($name, "\0");
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("a name");
        // SAFETY: a live library and a name.
        let found = unsafe { libc::dlsym($library, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?} is missing");
        // SAFETY: the header says that this is its type.
        unsafe { std::mem::transmute::<*mut c_void, $ty>(found) }
    }};
}

fn c(posting: Posting) -> f64 {
    let exe = std::env::current_exe().expect("this program");
    let beside = exe.parent().and_then(|examples| examples.parent()).expect("a target directory");
    let path = std::env::var("DROPIN").map_or_else(|_| beside.join("dropin"), Into::into);
    let path = path.join("libibverbs.so.1");
    let name = CString::new(path.to_str().expect("a path in UTF-8")).expect("a path");
    // SAFETY: a name.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{}: cargo xtask dropin --release", path.display());
    type List = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
    type Open = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
    type Alloc = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
    type CreateCq =
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ibv_cq;
    type Reg = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    type Modify = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    type Gid = unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    type ToEx = unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    let get_device_list = function!(library, "ibv_get_device_list" as List);
    let open_device = function!(library, "ibv_open_device" as Open);
    let alloc_pd = function!(library, "ibv_alloc_pd" as Alloc);
    let create_cq = function!(library, "ibv_create_cq" as CreateCq);
    let reg_mr = function!(library, "ibv_reg_mr" as Reg);
    let modify_qp = function!(library, "ibv_modify_qp" as Modify);
    let query_gid = function!(library, "ibv_query_gid" as Gid);
    let qp_to_qp_ex = function!(library, "ibv_qp_to_qp_ex" as ToEx);
    // SAFETY: the calls of a C program that knows what it does; null ends it.
    unsafe {
        let mut n = 0;
        let list = get_device_list(&raw mut n);
        assert!(!list.is_null() && n > 0, "no device");
        let context = open_device(*list);
        let pd = alloc_pd(context);
        let cq = create_cq(context, 64, ptr::null_mut(), ptr::null_mut(), 0);
        let memory = libc::aligned_alloc(4096, 4096);
        let mr = reg_mr(pd, memory, 4096, (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as c_int);
        let mut gid = ibv_gid { raw: [0; 16] };
        assert_eq!(query_gid(context, 1, 0, &raw mut gid), 0);
        let verbs = context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        let create_qp_ex = (*verbs).create_qp_ex.expect("a function");
        let [a, b] = [(); 2].map(|()| {
            let mut init = ibv_qp_init_attr_ex { send_cq: cq, recv_cq: cq, ..Plain::zeroed() };
            init.cap = ibv_qp_cap { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, ..Plain::zeroed() };
            init.cap.max_inline_data = 256;
            init.qp_type = IBV_QPT_RC;
            init.pd = pd;
            init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE.into();
            let qp = create_qp_ex(context, &raw mut init);
            assert!(!qp.is_null(), "a QP");
            qp
        });
        for (qp, peer) in [(a, b), (b, a)] {
            connect(modify_qp, qp, (*peer).qp_num, gid);
        }
        let mut sge = ibv_sge { addr: memory as u64, length: LEN, lkey: (*mr).lkey };
        let mut wr = ibv_send_wr {
            wr_id: 1,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: IBV_SEND_SIGNALED,
            ..Plain::zeroed()
        };
        let (there, rkey) = (memory as u64 + 2048, (*mr).rkey);
        wr.wr.rdma = ibv_send_wr_wr_rdma { remote_addr: there, rkey };
        let mut wc: ibv_wc = Plain::zeroed();
        let post_send = (*context).ops.post_send.expect("a function");
        let poll_cq = (*context).ops.poll_cq.expect("a function");
        let mut bad = ptr::null_mut();
        measure(|| {
            for qp in [a, b] {
                match posting {
                    Posting::List => assert_eq!(post_send(qp, &raw mut wr, &raw mut bad), 0),
                    Posting::Calls => {
                        let ex = qp_to_qp_ex(qp);
                        (*ex).wr_start.expect("a function")(ex);
                        (*ex).wr_id = 1;
                        (*ex).wr_flags = IBV_SEND_SIGNALED;
                        (*ex).wr_rdma_write.expect("a function")(ex, rkey, there);
                        (*ex).wr_set_sge.expect("a function")(ex, sge.lkey, sge.addr, LEN);
                        assert_eq!((*ex).wr_complete.expect("a function")(ex), 0);
                    }
                }
                while poll_cq(cq, 1, &raw mut wc) == 0 {}
                assert_eq!(wc.status, IBV_WC_SUCCESS);
            }
        })
    }
}

/// Takes a QP to RTS.
///
/// # Safety
/// As the function that it calls.
unsafe fn connect(
    modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    qp: *mut ibv_qp,
    peer: u32,
    gid: ibv_gid,
) {
    let mut attr: ibv_qp_attr = Plain::zeroed();
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer;
    (attr.max_dest_rd_atomic, attr.max_rd_atomic, attr.min_rnr_timer) = (16, 16, 12);
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
    (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
    attr.ah_attr.grh.dgid = gid;
    let steps = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        (
            IBV_QPS_RTR,
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        ),
        (
            IBV_QPS_RTS,
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    ];
    for (state, mask) in steps {
        attr.qp_state = state;
        // SAFETY: by the contract.
        assert_eq!(unsafe { modify_qp(qp, &raw mut attr, (mask | IBV_QP_STATE) as c_int) }, 0);
    }
}
