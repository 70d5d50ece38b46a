//! What the tests share: devices at loopback addresses of their own, and pairs of connected QPs.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(crate) use remanence_effort::address;
use remanence_pmem::Region;
use remanence_rnic::{Access, Data, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus};
use remanence_verbs::{ConnectAttr, Context, Cq, Mr, Options, Pd, Progress, Qp, QpOptions};

/// No test waits longer for anything; none passes or fails by the clock before it.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);

/// A device at an address of its own. On UDP; on shared memory in the test program that is named so.
pub(crate) fn open(progress: Progress) -> Context {
    let link = if env!("CARGO_CRATE_NAME") == "shm" { Options::shm(None) } else { Options::udp(address()) };
    Context::open(Options { progress, ..link }).expect("a device on this host")
}

/// A device on UDP at an address that others may use too.
pub(crate) fn open_at(address: IpAddr, progress: Progress) -> Context {
    Context::open(Options { progress, ..Options::udp(address) }).expect("a device on the loopback interface")
}

pub(crate) fn address_of(context: &Context) -> IpAddr {
    context.config().gids[0].to_ip()
}

pub(crate) fn socket_addr(context: &Context, port: u16) -> SocketAddr {
    SocketAddr::new(address_of(context), port)
}

/// One side of a test: a device with a domain, a CQ and some registered memory.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with(open(Progress::default()))
    }

    pub(crate) fn with(context: Context) -> Self {
        Self::with_memory(context, &Region::anonymous(1 << 20).unwrap(), ALL)
    }

    pub(crate) fn with_memory(context: Context, region: &Region, access: Access) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, None, 0).unwrap();
        let mr = pd.reg_mr(region, access).unwrap();
        Self { context, pd, cq, mr }
    }

    pub(crate) fn qp(&self) -> Qp {
        self.pd.create_qp(&QpOptions::rc(&self.cq)).unwrap()
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.mr.region().write(offset, bytes);
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().read(offset, &mut bytes);
        bytes
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&self) -> Wc {
        let mut wcs = Vec::new();
        assert_eq!(self.cq.wait(&mut wcs, 1, LIMIT), Ok(1), "no completion within the limit");
        wcs[0]
    }

    /// Waits for the next completion, which must be a success.
    pub(crate) fn success(&self) -> Wc {
        let wc = self.completion();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }
}

/// Two connected QPs on two devices.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) qa: Qp,
    pub(crate) qb: Qp,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::of(Side::new(), Side::new())
    }

    pub(crate) fn of(a: Side, b: Side) -> Self {
        let (qa, qb) = (a.qp(), b.qp());
        connect(&qa, &qb);
        Self { a, b, qa, qb }
    }
}

/// Connects two QPs out of band.
pub(crate) fn connect(a: &Qp, b: &Qp) {
    a.connect_to(&b.endpoint(), &ConnectAttr::default()).unwrap();
    b.connect_to(&a.endpoint(), &ConnectAttr::default()).unwrap();
}

/// A signalled work request.
pub(crate) fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None }
}

/// Bytes that tell where they are.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
