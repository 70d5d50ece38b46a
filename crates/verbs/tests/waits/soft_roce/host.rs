//! Our end: a live device on the tap, its memory, and its QPs connected to QPs of the guest.

use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use remanence_link::fault::{Faults, Plan};
use remanence_link::{udp, xdp};
use remanence_pmem::Region;
use remanence_rnic::{Access, Data, QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Wc, WcStatus};
use remanence_verbs::{ConnectAttr, Context, Cq, LinkKind, Mr, Options, Pd, Qp, QpEndpoint, QpOptions};
use remanence_wire::{Gid, Mtu, Psn, Qkey};

use super::guest::{Guest, GuestQp, pattern};
use crate::machine::{HOST, HOST_V6, TAP};

const LEN: u64 = 4 << 20;
/// Emulated, the guest is some fifty times slower than we are.
const PATIENCE: Duration = Duration::from_secs(150);

/// Everything that a peer may be allowed.
pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
        | Access::MW_BIND
}

/// What carries our packets to the tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    UdpV4,
    UdpV6,
    Xdp,
    /// UDP over a network that loses, repeats, reorders and damages.
    BadWeather,
}

impl Carrier {
    fn options(self) -> Options {
        let options = Options::new(match self {
            Self::UdpV4 | Self::BadWeather => LinkKind::Udp(udp::Options::new(vec![IpAddr::V4(HOST)])),
            Self::UdpV6 => LinkKind::Udp(udp::Options::new(vec![IpAddr::V6(HOST_V6)])),
            Self::Xdp => LinkKind::Xdp(xdp::Config::new(TAP)),
        });
        if self == Self::BadWeather { Options { faults: Some((BAD_WEATHER, 7)), ..options } } else { options }
    }
}

const RX: Faults = Faults { loss: 0.02, duplication: 0.02, reordering: 0.02, ..Faults::NONE };
/// Corruption is not of what we receive: behind a socket 16 of the ICRC's 32 bits go to finding out the IPv4
/// identification, and one damaged packet in 65,536 passes.
const BAD_WEATHER: Plan = Plan { tx: Faults { corruption: 0.02, ..RX }, rx: RX };

/// Our device, with memory that a guest may reach.
pub(crate) struct Host {
    pub(crate) carrier: Carrier,
    /// The address of our device, on the network of the guest.
    pub(crate) address: IpAddr,
    /// Path MTUs to try.
    pub(crate) mtus: [Mtu; 2],
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) region: Region,
    pub(crate) mr: Mr,
}

impl Host {
    pub(crate) fn open(carrier: Carrier) -> Self {
        let context = Context::open(carrier.options()).expect("a device on the tap");
        let address = if carrier == Carrier::UdpV6 { IpAddr::V6(HOST_V6) } else { IpAddr::V4(HOST) };
        // What AF_XDP can carry is in its head.
        let mtus = [Mtu::B1024, if carrier == Carrier::Xdp { Mtu::B2048 } else { Mtu::B4096 }];
        let pd = context.alloc_pd().expect("a protection domain");
        let region = Region::memfd("soft-roce", LEN).expect("memory");
        let mr = pd.reg_mr(&region, all_rights()).expect("a memory region");
        Self { carrier, address, mtus, context, pd, region, mr }
    }

    /// Runs a part of a story in weather that loses nothing of what the guest sends, and keeps its order (an answer
    /// that overtakes another counts as that one's loss), as Linux says some things once
    /// (seen in 6.12):
    /// - the answer to a FLUSH: the responder resource that it keeps has no PSNs (`rxe_prepare_res`), so that a FLUSH that is
    ///   asked for again is not found and not answered;
    /// - a refusal: the QP that refused is in the error state, and a consumer's REJ is not repeated: a REQ that comes again
    ///   is a new request to it;
    /// - an ATOMIC WRITE: sent again, it carries another virtual address (0 for 64 here, with the right data).
    pub(crate) fn hearing_the_guest<T>(&self, part: impl FnOnce() -> T) -> T {
        let Some(weather) = self.context.fault_control() else { return part() };
        weather.set(Plan { rx: Faults { duplication: 0.02, ..Faults::NONE }, ..BAD_WEATHER });
        let result = part();
        weather.set(BAD_WEATHER);
        result
    }

    pub(crate) fn cq(&self) -> Cq {
        self.context.create_cq(512, None, 0).expect("a completion queue")
    }

    /// A QP of ours and one of the guest's, connected through the guest's control connection.
    pub(crate) fn pair(&self, guest: &mut Guest, ty: QpType, mtu: Mtu) -> Pair {
        let cq = self.cq();
        let qp = self.pd.create_qp(&QpOptions { ty, ..QpOptions::rc(&cq) }).expect("a QP");
        let name = match ty {
            QpType::Rc => "rc",
            QpType::Uc => "uc",
            QpType::Ud => "ud",
        };
        let theirs = guest.create_qp(name, self.address.is_ipv6());
        let own = self.endpoint(&qp);
        // Near the end of the circle, so that every test wraps.
        let their_psn = Psn::new(0xff_fff0);
        if ty == QpType::Ud {
            qp.activate_ud(Qkey(0x1122_3344)).expect("RTS");
        } else {
            let peer = QpEndpoint { gid: theirs.gid, qpn: theirs.qpn, psn: their_psn };
            // 4 s of patience: the emulated guest shares two cores with everything else that runs.
            let attr = ConnectAttr { path_mtu: Some(mtu), timeout: 17, ..ConnectAttr::default() };
            qp.connect_to(&peer, &attr).expect("RTS");
        }
        guest.connect(theirs.id, own.qpn, own.psn, their_psn, own.gid, mtu.bytes() as u32);
        Pair { qp, cq, theirs }
    }

    /// Where the guest finds the QP.
    fn endpoint(&self, qp: &Qp) -> QpEndpoint {
        QpEndpoint { gid: Gid::from_ip(self.address), ..qp.endpoint() }
    }

    pub(crate) fn fill(&self, offset: u64, len: usize, seed: u64) {
        self.region.write(offset, &pattern(seed, len));
    }

    /// Compares our memory with a pattern, byte by byte.
    pub(crate) fn check(&self, offset: u64, len: usize, seed: u64) {
        let mut found = vec![0; len];
        self.region.read(offset, &mut found);
        let expected = pattern(seed, len);
        if let Some(i) = (0..len).find(|&i| found[i] != expected[i]) {
            panic!("byte {i} of {len} is {:#x} and should be {:#x}", found[i], expected[i]);
        }
    }

    /// Asserts that nothing was written here.
    pub(crate) fn check_untouched(&self, range: Range<u64>) {
        let mut found = vec![0; (range.end - range.start) as usize];
        self.region.read(range.start, &mut found);
        assert!(found.iter().all(|byte| *byte == 0), "bytes in {range:?} were touched");
    }
}

/// Two connected QPs.
pub(crate) struct Pair {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) theirs: GuestQp,
}

impl Pair {
    /// Posts one signalled work request and waits for its completion.
    pub(crate) fn run(&self, host: &Host, op: SendOp, offset: u64, len: usize) -> Wc {
        self.post(host, op, offset, len);
        self.wait(1)[0]
    }

    pub(crate) fn post(&self, host: &Host, op: SendOp, offset: u64, len: usize) {
        let sge = [host.mr.sge(offset, len as u32)];
        let data =
            if matches!(op, SendOp::Flush { .. } | SendOp::BindMw { .. }) { &[][..] } else { &sge[..] };
        let wr = SendWr { wr_id: 1, op, data: Data::Sges(data), flags: SendFlags::SIGNALED, ud: None };
        self.qp.post_send(&wr).expect("posted");
    }

    pub(crate) fn post_recv(&self, host: &Host, offset: u64, len: usize) {
        let sges = [host.mr.sge(offset, len as u32)];
        self.qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).expect("posted");
    }

    pub(crate) fn wait(&self, count: usize) -> Vec<Wc> {
        let (mut found, start) = (Vec::new(), Instant::now());
        while found.len() < count {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let missing = count - found.len();
            let n = self.cq.wait(&mut found, missing, Some(left)).expect("no overflow");
            assert!(n > 0, "{missing} of {count} completions did not come: {:?}", self.qp.query());
        }
        found
    }

    pub(crate) fn run_ok(&self, host: &Host, op: SendOp, offset: u64, len: usize) -> Wc {
        let wc = self.run(host, op, offset, len);
        assert_eq!(wc.status, WcStatus::Success, "{op:?} of {len} bytes: {wc:?}");
        wc
    }
}

/// A place in the guest's memory.
pub(crate) fn remote(guest: &Guest, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: guest.addr + offset, rkey: guest.rkey }
}
