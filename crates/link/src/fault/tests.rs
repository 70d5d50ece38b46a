//! Each fault does what it says, in the direction it is set for, and nothing else.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{FaultStats, Faults, Faulty, Plan};
use crate::conformance::{self, Pair, pattern, receive, send};
use crate::link::{Link, LinkCaps, LinkStats, Outgoing, Received, SourcePort, WaitFd};
use crate::udp::{Options, UdpLink};

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A perfect link to itself, with no kernel in between: what is sent waits in a queue to be received.
struct Mirror {
    caps: LinkCaps,
    buffer: Vec<u8>,
    queue: VecDeque<Vec<u8>>,
    refuse: usize,
}

impl Mirror {
    fn new() -> Self {
        let caps = LinkCaps {
            kind: "mirror",
            addresses: vec![HOME],
            port: 4791,
            mtu: 1500,
            max_segments: 8,
            max_send_bytes: 8192,
            src_port: SourcePort::Any,
            reliable_bytes: false,
        };
        Self { caps, buffer: vec![0; 8192], queue: VecDeque::new(), refuse: 0 }
    }
}

impl Link for Mirror {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        Ok(&mut self.buffer)
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        if self.refuse > 0 {
            self.refuse -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.queue.extend(self.buffer[..out.len].chunks(out.segment_size).map(<[u8]>::to_vec));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let Some(payload) = self.queue.pop_front() else { return Ok(0) };
        let src = SocketAddr::new(PEER, 49152);
        sink(Received { src, dst_ip: HOME, ip_id: None, train_index: 0, ecn: 0, ttl: 0, payload: &payload });
        Ok(1)
    }

    fn wait_fds(&self, _: &mut Vec<WaitFd>) {}

    fn prepare_wait(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}

fn out(len: usize) -> Outgoing {
    let dst = SocketAddr::new(PEER, 4791);
    Outgoing { src: HOME, src_port: 0xC000, dst, tos: 0, ttl: 64, len, segment_size: len }
}

/// Sends `count` numbered datagrams of 100 bytes and collects what arrives.
fn exchange(link: &mut Faulty<Mirror>, count: u32) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    for number in 0..count {
        let mut payload = pattern(0, 100);
        payload[..4].copy_from_slice(&number.to_be_bytes());
        link.tx_buffer().expect("room")[..100].copy_from_slice(&payload);
        link.send(&out(100)).expect("sent");
        while link.recv(&mut |rx| got.push(rx.payload.to_vec())).expect("a working link") > 0 {}
    }
    got
}

fn numbers(got: &[Vec<u8>]) -> Vec<u32> {
    got.iter().map(|p| u32::from_be_bytes(*p.first_chunk().expect("a number"))).collect()
}

fn faulty(plan: Plan, seed: u64) -> Faulty<Mirror> {
    Faulty::new(Box::new(Mirror::new()), plan, seed).expect("a timer")
}

fn both_ways(faults: Faults) -> [Plan; 2] {
    [Plan { tx: faults, ..Plan::default() }, Plan { rx: faults, ..Plan::default() }]
}

#[test]
fn without_faults_it_conforms() {
    let open = || {
        let options = Options { port: 0, ..Options::new(vec![Ipv4Addr::LOCALHOST.into()]) };
        let link = UdpLink::open(&options).expect("a socket on loopback");
        Box::new(Faulty::new(Box::new(link), Plan::default(), 1).expect("a timer"))
    };
    conformance::all(|| Pair { a: open(), b: open(), lossy: true, sees_ecn: true });
}

#[test]
fn with_a_delay_nothing_is_lost_and_waiting_ends_in_time() {
    for plan in both_ways(Faults { delay: Duration::from_millis(3), ..Faults::default() }) {
        let options = Options { port: 0, ..Options::new(vec![Ipv4Addr::LOCALHOST.into()]) };
        let mut a =
            Faulty::new(Box::new(UdpLink::open(&options).expect("a socket")), plan, 1).expect("a timer");
        let mut b =
            Faulty::new(Box::new(UdpLink::open(&options).expect("a socket")), plan, 2).expect("a timer");
        for i in 0..20 {
            let payload = pattern(i, 1000);
            send(&mut a, &b, &payload, 1000);
            // As a live device does: receive (which sends what is due), then wait.
            while !a.tx_held.is_empty() {
                conformance::wait(&mut a, Duration::from_secs(10));
                conformance::assert_silent(&mut a);
            }
            assert_eq!(receive(&mut b, 1)[0].payload, payload);
        }
        assert_eq!(a.control().stats(), FaultStats::default(), "a delay is no damage");
    }
}

#[test]
fn what_is_held_back_when_the_link_closes_still_arrives() {
    let faults = Faults { delay: Duration::from_secs(600), ..Faults::default() };
    let options = Options { port: 0, ..Options::new(vec![Ipv4Addr::LOCALHOST.into()]) };
    let plan = Plan { tx: faults, rx: Faults::NONE };
    let mut a = Faulty::new(Box::new(UdpLink::open(&options).expect("a socket")), plan, 1).expect("a timer");
    let mut b = UdpLink::open(&options).expect("a socket");
    send(&mut a, &b, &pattern(1, 100), 100);
    send(&mut a, &b, &pattern(2, 100), 100);
    conformance::assert_silent(&mut b);
    drop(a);
    let got = receive(&mut b, 2);
    assert_eq!((&got[0].payload, &got[1].payload), (&pattern(1, 100), &pattern(2, 100)));
}

#[test]
fn a_seed_decides_whom_it_hits() {
    let faults = Faults { loss: 0.1, duplication: 0.1, corruption: 0.1, ..Faults::default() };
    for plan in both_ways(faults) {
        let run = |seed| exchange(&mut faulty(plan, seed), 500);
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}

#[test]
fn rates_are_met_in_either_direction() {
    let faults = Faults { loss: 0.2, duplication: 0.1, corruption: 0.05, ..Faults::default() };
    for plan in both_ways(faults) {
        let mut link = faulty(plan, 3);
        let got = exchange(&mut link, 10_000);
        let stats = link.control().stats();
        // Five standard deviations of these binomials are at most 200.
        assert!(stats.lost.abs_diff(2000) < 200, "{stats:?}");
        assert!(stats.duplicated.abs_diff(800) < 200, "{stats:?}");
        assert!(stats.corrupted.abs_diff(400) < 150, "{stats:?}");
        assert_eq!(got.len() as u64, 10_000 - stats.lost + stats.duplicated);
    }
}

#[test]
fn corruption_inverts_exactly_one_bit() {
    for plan in both_ways(Faults { corruption: 1.0, ..Faults::default() }) {
        let got = exchange(&mut faulty(plan, 5), 200);
        assert_eq!(got.len(), 200);
        for (number, payload) in (0u32..).zip(got) {
            let mut sent = pattern(0, 100);
            sent[..4].copy_from_slice(&number.to_be_bytes());
            let bits: u32 = sent.iter().zip(&payload).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert_eq!((payload.len(), bits), (100, 1));
        }
    }
}

#[test]
fn a_carrier_that_guarantees_its_bytes_loses_what_it_would_damage() {
    for plan in both_ways(Faults { corruption: 0.5, ..Faults::default() }) {
        let mut mirror = Box::new(Mirror::new());
        mirror.caps.reliable_bytes = true;
        let mut link = Faulty::new(mirror, plan, 5).expect("a timer");
        let got = exchange(&mut link, 1000);
        let lost = link.control().stats().lost;
        assert!(lost.abs_diff(500) < 100 && got.len() as u64 == 1000 - lost, "{lost}");
        assert!(got.iter().all(|payload| payload[4..] == pattern(0, 100)[4..]));
    }
}

#[test]
fn reordering_loses_nothing_and_changes_the_order() {
    let faults = Faults { reordering: 0.3, reorder_by: Duration::from_micros(200), ..Faults::default() };
    for plan in both_ways(faults) {
        let mut link = faulty(plan, 11);
        let mut got = numbers(&exchange(&mut link, 1000));
        loop {
            // What is held back for sending may leave in the receive that finds nothing.
            let held = !link.tx_held.is_empty() || !link.rx_held.is_empty();
            let mut take = |rx: Received<'_>| got.extend(numbers(&[rx.payload.to_vec()]));
            if link.recv(&mut take).expect("a working link") == 0 && !held {
                break;
            }
        }
        assert!(!got.is_sorted());
        got.sort_unstable();
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
    }
}

#[test]
fn a_partition_cuts_both_ways_until_it_is_healed() {
    let mut link = faulty(Plan::default(), 0);
    let control = link.control();
    for cut in [0, 1] {
        if cut == 0 {
            control.isolate(PEER)
        } else {
            control.isolate_all()
        }
        assert!(exchange(&mut link, 10).is_empty());
        // What is under way when the cable is cut does not arrive either.
        link.inner.queue.push_back(vec![1]);
        assert_eq!(link.recv(&mut |_| panic!("through a partition")).expect("a working link"), 0);
        control.heal();
        assert_eq!(numbers(&exchange(&mut link, 10)), (0..10).collect::<Vec<_>>());
    }
    control.isolate(HOME);
    assert_eq!(exchange(&mut link, 10).len(), 10, "another peer's partition is not ours");
}

#[test]
fn rates_change_while_it_runs() {
    let mut link = faulty(Plan::default(), 0);
    let control = link.control();
    assert_eq!(link.caps().max_segments, 8);
    control.set(Plan { tx: Faults { loss: 1.0, ..Faults::default() }, ..Plan::default() });
    assert!(exchange(&mut link, 10).is_empty());
    assert_eq!(link.caps().max_segments, 1, "each datagram has a fate of its own");
    control.set(Plan::default());
    assert_eq!(exchange(&mut link, 10).len(), 10);
    assert_eq!(link.caps().max_segments, 8);
}

#[test]
fn what_the_link_underneath_refuses_is_kept() {
    for plan in
        [Plan::default(), Plan { tx: Faults { duplication: 1e-12, ..Faults::default() }, ..Plan::default() }]
    {
        let mut link = faulty(plan, 0);
        link.tx_buffer().expect("room")[..3].copy_from_slice(b"one");
        link.inner.refuse = 2;
        while link.send(&out(3)).is_err() {}
        while !link.tx_held.is_empty() {
            let _ = link.flush();
        }
        assert_eq!(link.inner.queue, [b"one"]);
    }
}
