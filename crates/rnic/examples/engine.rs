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

use std::time::{Duration, Instant as Clock};

use remanence_rnic::side::{Plain, Side};
use remanence_rnic::{Access, Data, Instant, SendFlags, SendOp, SendWr, WcStatus};
use remanence_wire::Mtu;

const SPAN: u64 = 1 << 20;
const DEPTH: u32 = 64;

/// A side, and what it cost so far.
struct Timed {
    side: Side<Plain>,
    spent: Duration,
    packets: u64,
}

impl Timed {
    fn new(last: u8) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let side = Side::new(last, Plain(vec![last; SPAN as usize]), SPAN, access, DEPTH);
        Self { side, spent: Duration::ZERO, packets: 0 }
    }

    /// Hands everything that this side wants to send to the other.
    fn exchange(&mut self, other: &mut Self, buf: &mut [u8], now: Instant) {
        loop {
            let start = Clock::now();
            let sent = self.side.transmit(now, buf);
            self.spent += start.elapsed();
            let Some(sent) = sent else { return };
            let start = Clock::now();
            self.packets += other.side.receive(now, &sent, buf);
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
    let (mut a, mut b) = (Timed::new(1), Timed::new(2));
    let mut clock = 1_000_000;
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    a.side.connect(&mut b.side, Mtu::B4096, rights, Instant::from_nanos(clock));
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
            let (remote, sge) = (b.side.remote(offset), [a.side.sge(offset, row.len)]);
            let op = if row.read { SendOp::Read(remote) } else { SendOp::Write(remote) };
            let signalled = posted % 8 == 7 || posted + 1 == messages;
            let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { wr_id: posted, op, data: Data::Sges(&sge), flags, ud: None };
            a.side.device.post_send(a.side.qpn, &wr).expect("room in the send queue");
            posted += 1;
        }
        a.spent += start.elapsed();
        clock += 10_000;
        let now = Instant::from_nanos(clock);
        a.exchange(&mut b, &mut buf, now);
        b.exchange(&mut a, &mut buf, now);
        let start = Clock::now();
        wcs.clear();
        a.side.device.poll_cq(a.side.cq, &mut wcs, 64).expect("a CQ that is large enough");
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
    assert_eq!(a.side.device.stats().retransmits, 0, "nothing is lost here");
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
