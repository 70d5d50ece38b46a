//! WRITE between two processes of this host, in place: a ping-pong in which each polls its own memory, the cost of
//! posting and polling, and a stream beside memcpy.
//!
//! `cargo run --release -p remanence-verbs --example in_place`; the other process is this program again.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, RemoteAddr, SendFlags, SendOp, SendWr, Wc};
use remanence_verbs::{ConnectAttr, Context, Cq, Mr, Options, Qp, QpEndpoint, QpOptions};
use remanence_wire::{Gid, Psn, Qpn, Rkey};

const LEN: u64 = 4 << 20;
const ROUNDS: u64 = 200_000;
/// Where pings and pongs land.
const BALL: u64 = 1 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    peer: RemoteAddr,
    wcs: Vec<Wc>,
}

impl End {
    fn new() -> Result<Self> {
        let context = Context::open(Options::shm(None))?;
        let pd = context.alloc_pd()?;
        let region = Region::memfd("in-place", LEN)?;
        region.populate();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.reg_mr(&region, access)?;
        mr.share_in_place()?;
        let cq = context.create_cq(256, None, 0)?;
        let qp = pd.create_qp(&QpOptions::rc(&cq))?;
        let peer = mr.remote(0);
        Ok(Self { context, cq, qp, mr, peer, wcs: Vec::with_capacity(16) })
    }

    fn describe(&self) -> String {
        let QpEndpoint { gid, qpn, psn } = self.qp.endpoint();
        format!("{} {} {} {}", gid.to_ip(), qpn.value(), psn.value(), self.mr.rkey().0)
    }

    fn connect(&mut self, peer: &str) -> Result<()> {
        let mut words = peer.split_whitespace();
        let mut next = || words.next().ok_or("a peer describes itself in four words");
        let gid = Gid::from_ip(next()?.parse::<IpAddr>()?);
        let (qpn, psn) = (Qpn::new(next()?.parse()?), Psn::new(next()?.parse()?));
        self.peer = RemoteAddr { addr: 0, rkey: Rkey(next()?.parse()?) };
        self.qp.connect_to(&QpEndpoint { gid, qpn, psn }, &ConnectAttr::default())?;
        Ok(())
    }

    /// Writes until that needs no packet.
    fn warm_up(&mut self) -> Result<()> {
        while self.qp.in_place_operations() == 0 {
            self.write(0, 8)?;
        }
        Ok(())
    }

    fn write(&mut self, at: u64, len: u32) -> Result<()> {
        let sges = [self.mr.sge(at, len)];
        let remote = RemoteAddr { addr: self.peer.addr + at, rkey: self.peer.rkey };
        let (op, data) = (SendOp::Write(remote), Data::Sges(&sges));
        self.qp.post_send(&SendWr { wr_id: at, op, data, flags: SendFlags::SIGNALED, ud: None })?;
        self.wcs.clear();
        while self.cq.poll(&mut self.wcs, 1)? == 0 {
            std::hint::spin_loop();
        }
        assert!(self.wcs[0].status == remanence_rnic::WcStatus::Success, "{:?}", self.wcs);
        Ok(())
    }

    fn ping_pong(&mut self, first: bool, len: u32) -> Result<f64> {
        let region = self.mr.region().clone();
        let last = u64::from(len) - 8;
        let start = Instant::now();
        for round in 1..=ROUNDS {
            if first {
                region.store_u64(2 * BALL + last, round);
                self.throw(len)?;
            }
            while region.load_u64(BALL + last) != round {
                std::hint::spin_loop();
            }
            if !first {
                region.store_u64(2 * BALL + last, round);
                self.throw(len)?;
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / ROUNDS as f64 / 2.0)
    }

    /// WRITEs `len` bytes from a place of their own to where the peer looks.
    fn throw(&mut self, len: u32) -> Result<()> {
        let sges = [self.mr.sge(2 * BALL, len)];
        let remote = RemoteAddr { addr: BALL, rkey: self.peer.rkey };
        let (op, data) = (SendOp::Write(remote), Data::Sges(&sges));
        self.qp.post_send(&SendWr { wr_id: 0, op, data, flags: SendFlags::SIGNALED, ud: None })?;
        self.wcs.clear();
        while self.cq.poll(&mut self.wcs, 1)? == 0 {}
        Ok(())
    }
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("peer") {
        return peer();
    }
    let mut end = End::new()?;
    pin(0);
    let mut child = Command::new(std::env::current_exe()?)
        .arg("peer")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("a pipe")?).lines();
    let mut say = child.stdin.take().ok_or("a pipe")?;
    writeln!(say, "{}", end.describe())?;
    let peer = lines.next().ok_or("the peer ended")??;
    end.connect(&peer)?;
    writeln!(say, "connected")?;
    end.warm_up()?;
    lines.next().ok_or("the peer ended")??;

    for len in [8, 64, 4096] {
        let mut halves: Vec<f64> = Vec::new();
        for _ in 0..9 {
            end.mr.region().store_u64(BALL + len - 8, 0);
            writeln!(say, "{len}")?;
            lines.next().ok_or("the peer ended")??;
            halves.push(end.ping_pong(true, len as u32)?);
            lines.next().ok_or("the peer ended")??;
        }
        halves.sort_by(f64::total_cmp);
        println!(
            "WRITE ping-pong {len:>5} B: half a round trip {:.1} ns ({:.1} to {:.1})",
            halves[4], halves[0], halves[8]
        );
    }

    let mut costs: Vec<f64> = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            end.write(64, 8)?;
        }
        costs.push(start.elapsed().as_nanos() as f64 / ROUNDS as f64);
    }
    costs.sort_by(f64::total_cmp);
    println!("post and poll of an 8 B WRITE that nobody looks at: {:.1} ns", costs[4]);

    let (source, target) = (Region::memfd("source", LEN)?, Region::memfd("target", LEN)?);
    source.populate();
    target.populate();
    let mut ratios: Vec<(f64, f64)> = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        (0..200).for_each(|_| source.copy_to(0, &target, 0, 1 << 20));
        let copy = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..200 {
            end.write(0, 1 << 20)?;
        }
        ratios.push((copy, start.elapsed().as_secs_f64()));
    }
    ratios.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (copy, write) = ratios[10];
    let gbs = |seconds: f64| 200.0 * f64::from(1 << 20) / seconds / 1e9;
    println!("1 MiB WRITE stream {:.1} GB/s, copy {:.1} GB/s, {:.2}x", gbs(write), gbs(copy), copy / write);
    drop(say);
    child.wait()?;
    println!("{} operations in place; {:?}", end.qp.in_place_operations(), end.context.link_stats());
    Ok(())
}

fn peer() -> Result<()> {
    let mut end = End::new()?;
    pin(1);
    let mut lines = std::io::stdin().lines();
    println!("{}", end.describe());
    end.connect(&lines.next().ok_or("the parent ended")??)?;
    lines.next().ok_or("the parent ended")??;
    end.warm_up()?;
    // The other side may still need an answer to its question.
    for _ in 0..1000 {
        end.cq.poll(&mut end.wcs, 1)?;
    }
    println!("ready");
    for line in lines {
        let len: u32 = line?.parse()?;
        end.mr.region().store_u64(BALL + u64::from(len) - 8, 0);
        println!("set");
        end.ping_pong(false, len)?;
        println!("done");
    }
    Ok(())
}

/// Pins the calling thread to a core, best effort.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
