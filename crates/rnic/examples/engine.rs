//! What the engine itself costs: two devices in memory, no sockets, no threads.
//!
//! `cargo run --release -p remanence-rnic --example engine` prints nanoseconds per packet (and per message) of each
//! side for streams of small and of large WRITEs and READs, and the rate of large ones. The requester's side is
//! posting, building packets and taking ACKs; the responder's is taking packets and building ACKs. Both include
//! the ICRC, which is computed over every byte on each side. A figure is the median of the rounds, so that what else
//! runs on the machine does not count.
//!
//! `-- write64` (or another row) runs one row alone, for a profiler.

#![expect(clippy::disallowed_types, reason = "a benchmark reads the clock; the engine does not")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant as Clock};

use remanence_rnic::*;
use remanence_wire::{Gid, Mtu, Psn, Qpn};

/// Memory as one slice for each region.
struct Plain(Vec<Vec<u8>>);

impl Plain {
    fn at(&mut self, region: RegionId, offset: u64, len: usize) -> &mut [u8] {
        &mut self.0[region.0 as usize][offset as usize..][..len]
    }
}

impl Memory for Plain {
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[region.0 as usize][offset as usize..][..into.len()]);
    }

    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.at(region, offset, bytes.len()).copy_from_slice(bytes);
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        self.at(region, offset, 8).copy_from_slice(&bytes);
    }

    fn compare_and_swap(&mut self, _: RegionId, _: u64, _: u64, _: u64) -> u64 {
        0
    }

    fn fetch_add(&mut self, _: RegionId, _: u64, _: u64) -> u64 {
        0
    }

    fn placement_support(&self, _: RegionId) -> PlacementSupport {
        PlacementSupport::all()
    }

    fn flush(&mut self, _: FlushId, _: Span, _: Placement) -> FlushOutcome {
        FlushOutcome::Done
    }
}

struct Side {
    device: Device,
    mem: Plain,
    ip: IpAddr,
    cq: CqHandle,
    qpn: Qpn,
    mr: Mr,
    spent: Duration,
    packets: u64,
}

const SPAN: u64 = 1 << 20;
const DEPTH: u32 = 64;

impl Side {
    fn new(last: u8) -> Self {
        let ip = IpAddr::from(Ipv4Addr::new(10, 0, 0, last));
        let mut device = Device::new(Config { gids: vec![Gid::from_ip(ip)], ..Config::default() });
        let mem = Plain(vec![vec![last; SPAN as usize]]);
        let pd = device.alloc_pd().expect("a PD");
        let cq = device.create_cq(1024).expect("a CQ");
        let span = Span { region: RegionId(0), offset: 0, len: SPAN };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = device.reg_mr(pd, &MrAttr { span, iova: 0x1000_0000, access }, &mem).expect("an MR");
        let caps =
            QpCaps { max_send_wr: DEPTH, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
        let init =
            QpInit { pd, ty: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        let qpn = device.create_qp(&init).expect("a QP");
        Self { device, mem, ip, cq, qpn, mr, spent: Duration::ZERO, packets: 0 }
    }

    fn connect(&mut self, ip: IpAddr, qpn: Qpn, now: Instant) {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let psn = Some(Psn::new(7));
        let steps = [
            QpAttr { state: Some(QpState::Init), access: Some(access), ..QpAttr::default() },
            QpAttr {
                state: Some(QpState::Rtr),
                av: Some(AhAttr::new(Gid::from_ip(ip))),
                path_mtu: Some(Mtu::B4096),
                dest_qpn: Some(qpn),
                rq_psn: psn,
                max_dest_rd_atomic: Some(16),
                min_rnr_timer: Some(12),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(QpState::Rts),
                sq_psn: psn,
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(16),
                ..QpAttr::default()
            },
        ];
        for attr in steps {
            self.device.modify_qp(now, self.qpn, &attr).expect("a transition");
        }
    }

    /// Hands everything that this side wants to send to the other.
    fn exchange(&mut self, other: &mut Self, buf: &mut [u8], now: Instant) -> bool {
        let mut any = false;
        loop {
            let start = Clock::now();
            let sent = self.device.poll_transmit(now, buf, 64, &mut self.mem);
            self.spent += start.elapsed();
            let Some(t) = sent else { return any };
            any = true;
            let start = Clock::now();
            for (index, bytes) in buf[..t.len].chunks(t.segment_size).enumerate() {
                let rx = RxMeta {
                    src: t.src,
                    dst: t.dst,
                    src_port: t.src_port,
                    ip_id: None,
                    train_index: index as u16,
                    ecn: 2,
                    hop_limit: 64,
                };
                other.device.handle_datagram(now, &rx, bytes, &mut other.mem);
                self.packets += 1;
            }
            other.spent += start.elapsed();
        }
    }
}

struct Row {
    name: &'static str,
    read: bool,
    len: u32,
    messages: u64,
}

/// Streams messages, a window of WQEs at a time; every eighth is signalled.
fn stream(row: &Row, scale: u64) {
    let (mut a, mut b) = (Side::new(1), Side::new(2));
    let mut clock = 1_000_000;
    let now = Instant::from_nanos(clock);
    a.connect(b.ip, b.qpn, now);
    b.connect(a.ip, a.qpn, now);
    let messages = (row.messages / scale).max(u64::from(DEPTH));
    let mut buf = vec![0; 65_507];
    let mut wcs = Vec::new();
    let (mut posted, mut done) = (0, 0);
    let mut rounds: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    while done < messages {
        let packets = a.packets.max(b.packets);
        (a.spent, b.spent) = (Duration::ZERO, Duration::ZERO);
        let start = Clock::now();
        while posted < messages && posted - done < u64::from(DEPTH) {
            let offset = (posted * 4096) % (SPAN - u64::from(row.len));
            let remote = RemoteAddr { addr: 0x1000_0000 + offset, rkey: b.mr.rkey };
            let sge = [Sge { addr: 0x1000_0000 + offset, len: row.len, lkey: a.mr.lkey }];
            let op = if row.read { SendOp::Read(remote) } else { SendOp::Write(remote) };
            let signalled = posted % 8 == 7 || posted + 1 == messages;
            let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { wr_id: posted, op, data: Data::Sges(&sge), flags, ud: None };
            a.device.post_send(a.qpn, &wr).expect("room in the send queue");
            posted += 1;
        }
        a.spent += start.elapsed();
        clock += 10_000;
        let now = Instant::from_nanos(clock);
        a.exchange(&mut b, &mut buf, now);
        b.exchange(&mut a, &mut buf, now);
        let start = Clock::now();
        wcs.clear();
        a.device.poll_cq(a.cq, &mut wcs, 64).expect("a CQ that is large enough");
        a.spent += start.elapsed();
        if let Some(wc) = wcs.last() {
            assert_eq!(wc.status, WcStatus::Success);
            done = wc.wr_id + 1;
        }
        let packets = a.packets.max(b.packets) - packets;
        if packets > 0 {
            rounds[0].push(a.spent.as_nanos() as f64 / packets as f64);
            rounds[1].push(b.spent.as_nanos() as f64 / packets as f64);
        }
    }
    assert_eq!(a.device.stats().retransmits, 0, "nothing is lost here");
    let packets = a.packets.max(b.packets);
    let [requester, responder] = rounds.map(|mut round| {
        round.sort_by(f64::total_cmp);
        round[round.len() / 2]
    });
    let message = (requester + responder) * packets as f64 / messages as f64;
    println!(
        "{:<10} {:>8} messages {:>8} packets   requester {:>6.1} ns/packet   responder {:>6.1} ns/packet   {:>8.1} ns/message   {:>6.2} GB/s",
        row.name,
        messages,
        packets,
        requester,
        responder,
        message,
        f64::from(row.len) / message,
    );
}

const ROWS: [Row; 6] = [
    Row { name: "write8", read: false, len: 8, messages: 4_000_000 },
    Row { name: "write64", read: false, len: 64, messages: 4_000_000 },
    Row { name: "write4k", read: false, len: 4096, messages: 1_000_000 },
    Row { name: "write64k", read: false, len: 65_536, messages: 100_000 },
    Row { name: "read64", read: true, len: 64, messages: 2_000_000 },
    Row { name: "read64k", read: true, len: 65_536, messages: 100_000 },
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for row in &ROWS {
        if wanted.is_empty() || wanted.iter().any(|name| name == row.name) {
            stream(row, 1);
        }
    }
}

#[test]
fn every_row_runs() {
    for row in &ROWS {
        stream(row, 10_000);
    }
}
