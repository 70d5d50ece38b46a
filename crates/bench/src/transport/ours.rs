//! Our side of the transport bench: one QP, one buffer, spinning.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_pmem::{FileOptions, Region};
use remanence_rnic::{
    Access, Data, Placement, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Wc, WcOpcode,
    WcStatus,
};
use remanence_verbs::{ConnectAttr, Context, Cq, Mr, Options, Progress, Qp, QpEndpoint, QpOptions};
use remanence_wire::{Gid, Psn, Qpn, Rkey};

use super::protocol::{Carrier, Endpoint, Test};
use crate::limits::each;

/// Largest operation; the buffer holds two of them, one for each direction.
pub(crate) const SIZE_MAX: u64 = 1 << 20;
/// Receives kept posted.
pub(super) const RECVS: u32 = 256;
/// A run that makes no headway for this long has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// One end of a connected QP.
pub(crate) struct Ours {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    /// A file, for flushes that mean it.
    file: Mr,
    peer: Option<RemoteAddr>,
    peer_file: Option<RemoteAddr>,
    /// Operations need no packet any more.
    in_place: Cell<bool>,
}

impl Ours {
    pub(crate) fn open(carrier: Carrier, address: IpAddr, interface: &str) -> Result<Self, String> {
        let mut options = match carrier {
            Carrier::Udp | Carrier::UdpServed => Options::udp(address),
            Carrier::Xdp => Options::xdp(interface),
            Carrier::Shm => Options::shm(None),
            Carrier::CAbi | Carrier::BareUdp | Carrier::BareXdp => {
                return Err("not a carrier of the Rust API".into());
            }
        };
        if carrier != Carrier::UdpServed {
            // The agent spins on its own; a progress thread would only compete for the core.
            options.progress = Progress::ByConsumer;
        }
        let sentence = |e: &dyn std::fmt::Display| e.to_string();
        let context = Context::open(options).map_err(|e| sentence(&e))?;
        let pd = context.alloc_pd().map_err(|e| sentence(&e))?;
        let region = Region::memfd("rem-bench", 2 * SIZE_MAX).map_err(|e| sentence(&e))?;
        region.populate();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let mr = pd.reg_mr(&region, access).map_err(|e| sentence(&e))?;
        mr.share_in_place().map_err(|e| sentence(&e))?;
        let file = scratch_file()?;
        let file_access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_PERSISTENT;
        let file = pd.reg_mr(&file, file_access).map_err(|e| sentence(&e))?;
        let cq = context.create_cq(1024, None, 0).map_err(|e| sentence(&e))?;
        let mut qp_options = QpOptions::rc(&cq);
        qp_options.caps.max_recv_wr = RECVS;
        qp_options.caps.max_send_wr = 256;
        let qp = pd.create_qp(&qp_options).map_err(|e| sentence(&e))?;
        Ok(Self { context, cq, qp, mr, file, peer: None, peer_file: None, in_place: Cell::new(false) })
    }

    pub(crate) const fn device(&self) -> &Context {
        &self.context
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let QpEndpoint { gid, qpn, psn } = self.qp.endpoint();
        let remote = self.mr.remote(0);
        Endpoint {
            gid: Ipv6Addr::from(gid.0),
            qpn: qpn.value(),
            psn: psn.value(),
            rkey: remote.rkey.0,
            addr: remote.addr,
            file_rkey: self.file.rkey().0,
        }
    }

    pub(crate) fn connect(&mut self, peer: &Endpoint) -> Result<(), String> {
        let endpoint =
            QpEndpoint { gid: Gid(peer.gid.octets()), qpn: Qpn::new(peer.qpn), psn: Psn::new(peer.psn) };
        self.qp.connect_to(&endpoint, &ConnectAttr::default()).map_err(|e| e.to_string())?;
        self.peer = Some(RemoteAddr { addr: peer.addr, rkey: Rkey(peer.rkey) });
        self.peer_file = Some(RemoteAddr { addr: 0, rkey: Rkey(peer.file_rkey) });
        for n in 0..RECVS {
            self.post_recv(u64::from(n))?;
        }
        Ok(())
    }

    fn post_recv(&self, wr_id: u64) -> Result<(), String> {
        let sges = [self.mr.sge(SIZE_MAX, SIZE_MAX as u32)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).map_err(|e| e.to_string())
    }

    /// Answers the peer until told to stop.
    pub(crate) fn serve(&self, test: Test, size: u64, stop: &AtomicBool) -> Result<(), String> {
        let mut wcs: Vec<Wc> = Vec::with_capacity(64);
        let region = self.mr.region();
        let (mut turn, mut looks) = (1, 0);
        while !stop.load(Ordering::Relaxed) {
            if test == Test::PingPong {
                if self.has_come(turn, size, &mut looks, &mut wcs)? {
                    region.store_u64(size - 8, turn);
                    self.post(SendOp::Write(self.at(SIZE_MAX)?), size, turn)?;
                    turn += 1;
                }
                continue;
            }
            wcs.clear();
            self.cq.poll(&mut wcs, 64).map_err(|e| e.to_string())?;
            for wc in &wcs {
                if wc.status != WcStatus::Success {
                    return Err(format!("the server's work ended with: {}", wc.status));
                }
                // A ping-pong before this one may have left the completion of its last WRITE, which used no receive.
                if wc.opcode == WcOpcode::Recv {
                    self.post_recv(wc.wr_id)?;
                }
            }
        }
        if test == Test::PingPong {
            // The next run counts from one again.
            region.store_u64(SIZE_MAX + size - 8, 0);
        }
        Ok(())
    }

    fn at(&self, offset: u64) -> Result<RemoteAddr, String> {
        let peer = self.peer.ok_or("not connected")?;
        Ok(RemoteAddr { addr: peer.addr + offset, rkey: peer.rkey })
    }

    /// Where a test's operations go.
    fn target(&self, test: Test) -> Result<RemoteAddr, String> {
        if test == Test::FlushPersistent {
            self.peer_file.ok_or_else(|| "not connected".into())
        } else {
            self.at(0)
        }
    }

    fn post(&self, op: SendOp, size: u64, wr_id: u64) -> Result<(), String> {
        let sges = [self.mr.sge(0, size as u32)];
        let sges = if matches!(op, SendOp::Flush { .. }) { &sges[..0] } else { &sges[..] };
        let wr = SendWr { wr_id, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None };
        self.qp.post_send(&wr).map_err(|e| e.to_string())
    }

    fn op(&self, test: Test, size: u64) -> Result<SendOp, String> {
        let remote = self.target(test)?;
        Ok(match test {
            Test::Write | Test::WriteStream | Test::WriteRate => SendOp::Write(remote),
            Test::Read | Test::ReadStream => SendOp::Read(remote),
            Test::Send | Test::SendStream => SendOp::Send,
            Test::CompareSwap => SendOp::CompareSwap { remote, compare: 0, swap: 0 },
            Test::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            Test::AtomicWrite => SendOp::AtomicWrite(remote),
            Test::Flush | Test::FlushPersistent => SendOp::Flush {
                remote,
                len: size as u32,
                placement: if test == Test::Flush {
                    Placement::GlobalVisibility
                } else {
                    Placement::Persistence
                },
                selectivity: Selectivity::Range,
            },
            Test::Ping | Test::Stream | Test::Framed | Test::Rate | Test::PingPong => {
                return Err(format!("{test:?} is not one operation"));
            }
        })
    }

    /// Runs a test for about `ms` milliseconds.
    pub(crate) fn run(&self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        let budget = Duration::from_millis(ms);
        match test {
            Test::PingPong => self.ping_pong(size, budget),
            _ if test.is_burst() => self.stream(test, size, budget),
            _ => self.latency(test, size, budget),
        }
    }

    fn latency(&self, test: Test, size: u64, budget: Duration) -> Result<Vec<u64>, String> {
        let op = self.op(test, size)?;
        let mut wcs: Vec<Wc> = Vec::with_capacity(16);
        let mut samples = Vec::with_capacity(1 << 14);
        let begin = Instant::now();
        let mut start = begin;
        while start - begin < budget {
            if matches!(test, Test::Flush | Test::FlushPersistent) {
                // Something to flush; its completion is not part of the figure.
                self.post(SendOp::Write(self.target(test)?), size, 0)?;
                self.wait(&mut wcs, 1)?;
                start = Instant::now();
            }
            self.post(op, size, 0)?;
            self.wait(&mut wcs, 1)?;
            let end = Instant::now();
            samples.push((end - start).as_nanos() as u64);
            start = end;
        }
        Ok(samples)
    }

    /// Polls until `count` completions have come.
    fn wait(&self, wcs: &mut Vec<Wc>, count: usize) -> Result<(), String> {
        wcs.clear();
        let mut patience = Patience::default();
        while wcs.len() < count {
            if self.cq.poll(wcs, 64).map_err(|e| e.to_string())? == 0 {
                patience.check()?;
            }
        }
        match wcs.iter().find(|wc| wc.status != WcStatus::Success) {
            Some(wc) => Err(format!("an operation ended with: {}", wc.status)),
            None => Ok(()),
        }
    }

    /// Keeps operations in flight; yields one pair of operations done and nanoseconds.
    fn stream(&self, test: Test, size: u64, budget: Duration) -> Result<Vec<u64>, String> {
        let op = self.op(test, size)?;
        // Enough in flight to cover a round trip, in bytes and in operations.
        let depth = (8 * SIZE_MAX / size).clamp(8, 128);
        let mut wcs: Vec<Wc> = Vec::with_capacity(64);
        let (mut posted, mut done) = (0_u64, 0_u64);
        let mut patience = Patience::default();
        let begin = Instant::now();
        let mut over = false;
        while !over || done < posted {
            while !over && posted - done < depth {
                self.post(op, size, posted)?;
                posted += 1;
            }
            wcs.clear();
            if self.cq.poll(&mut wcs, 64).map_err(|e| e.to_string())? == 0 {
                patience.check()?;
                continue;
            }
            patience = Patience::default();
            if let Some(wc) = wcs.iter().find(|wc| wc.status != WcStatus::Success) {
                return Err(format!("an operation ended with: {}", wc.status));
            }
            done += wcs.len() as u64;
            over = begin.elapsed() >= budget;
        }
        Ok(vec![done, begin.elapsed().as_nanos() as u64])
    }

    fn ping_pong(&self, size: u64, budget: Duration) -> Result<Vec<u64>, String> {
        let region = self.mr.region();
        let mut wcs: Vec<Wc> = Vec::with_capacity(64);
        let mut turn = 1;
        region.store_u64(SIZE_MAX + size - 8, 0);
        // Each by itself, as the peers' percentiles are of single operations: the clock is in it there as well.
        let whole = each(budget, || {
            region.store_u64(size - 8, turn);
            self.post(SendOp::Write(self.at(SIZE_MAX)?), size, turn)?;
            let (mut patience, mut looks) = (Patience::default(), 0);
            while !self.has_come(turn, size, &mut looks, &mut wcs)? {
                patience.check()?;
            }
            turn += 1;
            Ok::<_, String>(())
        })?;
        Ok(whole.into_iter().map(|nanos| nanos / 2).collect())
    }

    /// Looks for the peer's ball, and serves the device: at every look where packets carry the ball, now and then
    /// (and at the first look, which finds the own completion) where it comes with no packet.
    #[inline]
    fn has_come(&self, turn: u64, size: u64, looks: &mut u32, wcs: &mut Vec<Wc>) -> Result<bool, String> {
        if looks.is_multiple_of(64) || !self.in_place.get() {
            wcs.clear();
            self.cq.poll(wcs, 64).map_err(|e| e.to_string())?;
            self.in_place.set(self.qp.in_place_operations() > 0);
        }
        *looks = looks.wrapping_add(1);
        let here = self.mr.region().load_u64(SIZE_MAX + size - 8) == turn;
        if here {
            *looks = 0;
        } else {
            std::hint::spin_loop();
        }
        Ok(here)
    }

    /// The completions that a run left behind.
    pub(crate) fn settle(&self) {
        let mut wcs: Vec<Wc> = Vec::new();
        while self.cq.poll(&mut wcs, 64).is_ok_and(|n| n > 0) {}
        self.context.poll();
    }
}

/// Notices that nothing has happened for too long, at the price of a clock reading now and then.
#[derive(Default)]
pub(super) struct Patience {
    polls: u32,
    since: Option<Instant>,
}

impl Patience {
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.polls += 1;
        if self.polls.is_multiple_of(1 << 14)
            && self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return Err(format!("nothing has completed for {} s", PATIENCE.as_secs()));
        }
        Ok(())
    }
}

/// A file of one largest operation, on whatever disk holds temporary files; gone with the process.
fn scratch_file() -> Result<Region, String> {
    let path = std::env::temp_dir().join(format!("rem-bench-{}.pmem", std::process::id()));
    let region = FileOptions::new().create(SIZE_MAX).open(&path).map_err(|e| e.to_string());
    let _ = std::fs::remove_file(&path);
    region
}
