//! Real engines on both sides of the switch: a leader and its replicas, none of which knows that there is anything but a peer.

use std::collections::BTreeMap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_effort::{replay, seeds};
use remanence_rnic::side::{Plain, Side};
use remanence_rnic::{
    Access, AhAttr, Data, Instant, Placement, QpAttr, QpState, RemoteAddr, RxMeta, Selectivity, SendFlags,
    SendOp, SendWr, Wc, WcStatus,
};
use remanence_switch::{Endpoint, Made, Replica, Report, Spec, Switch};
use remanence_wire::ip::{self, Datagram};
use remanence_wire::packet::OVERHEAD_MAX;
use remanence_wire::{Gid, Mtu, Psn, Qpn, ROCE_PORT, Rkey, udp};

use crate::common::{SWITCH, config};

/// Memory of each of them.
const SPAN: u64 = 1 << 20;
/// Where the leader believes the group's memory to begin, and its key.
const VA: u64 = 0x5000_0000;
const KEY: Rkey = Rkey(0x600d_600d);

struct Net {
    /// The leader, and the replicas behind it.
    sides: Vec<Side<Plain>>,
    switch: Switch,
    made: Made,
    now: Instant,
    wire: BTreeMap<(Instant, u64), Vec<u8>>,
    sent: u64,
    rng: ChaCha8Rng,
    /// Of a thousand packets on each link, so many are lost.
    loss: u32,
    /// Nothing reaches it and nothing leaves it.
    dead: Option<usize>,
}

/// Brings a QP to RTS, connected to a QP of the switch.
fn connect(side: &mut Side<Plain>, qpn: Qpn, psn: Psn, now: Instant) {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL;
    let attrs = [
        QpAttr { state: Some(QpState::Init), access: Some(access), ..QpAttr::default() },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AhAttr::new(Gid::from_ip(SWITCH))),
            path_mtu: Some(Mtu::B1024),
            dest_qpn: Some(qpn),
            rq_psn: Some(psn),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..QpAttr::default()
        },
    ];
    for attr in attrs {
        side.device.modify_qp(now, side.qpn, &attr).unwrap();
    }
}

impl Net {
    fn new(seed: u64, writes: usize, reads: usize, loss: u32) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL;
        let side = |last| Side::new(last, Plain(vec![0; SPAN as usize]), SPAN, access, 64);
        let mut sides: Vec<Side<Plain>> = (1..=4).map(side).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut psn = || Psn::new(rng.next_u32() | 0xff_ff00);
        let ends: Vec<Endpoint> =
            sides.iter().map(|side| Endpoint { addr: side.ip, qpn: side.qpn, psn: psn() }).collect();
        let replica =
            |at: usize| Replica { end: ends[at], va: 0, rkey: sides[at].mr.rkey, linux_flush: false };
        let spec = Spec {
            service: 1,
            epoch: 1,
            leader: ends[0],
            replicas: (1..4).map(replica).collect(),
            mtu: Mtu::B1024,
            va: VA,
            rkey: KEY,
            writes,
            reads,
            lag: 1 << 16,
        };
        let mut switch = Switch::new(config());
        let made = switch.make_group(Instant::ZERO, spec).unwrap();
        let now = Instant::from_nanos(1_000_000);
        for (at, side) in sides.iter_mut().enumerate() {
            let qpn = if at == 0 { made.broadcast } else { made.aggregate(at - 1) };
            connect(side, qpn, ends[at].psn, now);
        }
        Self { sides, switch, made, now, wire: BTreeMap::new(), sent: 0, rng, loss, dead: None }
    }

    /// Puts a packet on the wire, where it may be lost, and half as often damaged.
    fn launch(&mut self, mut packet: Vec<u8>) {
        if self.rng.next_u32() % 1000 >= self.loss {
            if self.rng.next_u32() % 1000 < self.loss / 2 {
                // One bit behind IP and UDP.
                let bit = 28 * 8 + self.rng.next_u32() as usize % ((packet.len() - 28) * 8);
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            self.sent += 1;
            self.wire.insert((self.now + Duration::from_micros(5), self.sent), packet);
        }
    }

    /// Takes what the engines want to send.
    fn collect(&mut self) {
        let mut buf = vec![0; 65_507];
        for at in 0..self.sides.len() {
            while let Some(sent) = self.sides[at].transmit(self.now, &mut buf) {
                if self.dead == Some(at) {
                    continue;
                }
                for (ident, payload) in (0..).zip(buf[..sent.len].chunks(sent.segment_size)) {
                    let ip = ip::Repr {
                        src: sent.src,
                        dst: sent.dst,
                        traffic_class: sent.tos,
                        hop_limit: sent.hop_limit,
                        ident,
                        flow_label: 0,
                        payload_len: (udp::LEN + payload.len()) as u16,
                    };
                    let mut packet = vec![0; ip::V4_LEN + udp::LEN + OVERHEAD_MAX];
                    let at = ip.emit(&mut packet);
                    let payload_len = payload.len() as u16;
                    udp::Repr { src_port: sent.src_port, dst_port: ROCE_PORT, payload_len }
                        .emit(packet[at..].first_chunk_mut().unwrap());
                    packet.truncate(at + udp::LEN);
                    packet.extend(payload);
                    self.launch(packet);
                }
            }
        }
    }

    fn arrive(&mut self, packet: &[u8]) {
        let Datagram { ip, udp, payload } = Datagram::parse(packet).unwrap();
        if ip.dst == SWITCH {
            let mut left = Vec::new();
            self.switch.handle(self.now, packet, &mut |packet| left.push(packet.to_vec()));
            left.into_iter().for_each(|packet| self.launch(packet));
            return;
        }
        let to = self.sides.iter().position(|side| side.ip == ip.dst).expect("one of them");
        if self.dead == Some(to) {
            return;
        }
        let rx = RxMeta {
            src: ip.src,
            dst: ip.dst,
            src_port: udp.src_port,
            ip_id: Some(ip.ident),
            train_index: 0,
            ecn: ip.traffic_class & 3,
            hop_limit: ip.hop_limit,
        };
        let side = &mut self.sides[to];
        side.device.handle_datagram(self.now, &rx, payload, &mut side.memory);
    }

    /// Lets the next thing happen; whether there was one.
    fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.wire.first_key_value().map(|(&key, _)| key);
        let deadline = self.sides.iter().filter_map(|side| side.device.poll_timeout()).min();
        match (arrival, deadline) {
            (Some(key), deadline) if deadline.is_none_or(|deadline| key.0 <= deadline) => {
                self.now = self.now.max(key.0);
                let packet = self.wire.remove(&key).expect("it is the first");
                self.arrive(&packet);
            }
            (_, Some(deadline)) => {
                self.now = self.now.max(deadline);
                for side in &mut self.sides {
                    side.device.handle_timeout(self.now);
                }
            }
            (_, None) => return false,
        }
        true
    }

    /// The leader posts this, and what became of it.
    fn execute(&mut self, op: SendOp, offset: u64, len: u32) -> WcStatus {
        let leader = &mut self.sides[0];
        let sge = [leader.sge(offset, len)];
        let data = Data::Sges(if matches!(op, SendOp::Flush { .. }) { &[] } else { &sge });
        let wr = SendWr { wr_id: offset, op, data, flags: SendFlags::SIGNALED, ud: None };
        leader.device.post_send(leader.qpn, &wr).unwrap();
        self.wait().status
    }

    fn wait(&mut self) -> Wc {
        for _ in 0..1_000_000 {
            let leader = &mut self.sides[0];
            if let Some(wc) = leader.device.pop_cq(leader.cq) {
                return wc;
            }
            assert!(self.step(), "somebody waits for something");
        }
        panic!("no completion");
    }

    fn reports(&mut self) -> Vec<Report> {
        std::iter::from_fn(|| self.switch.poll_report()).collect()
    }
}

/// A place of the group's memory, as the leader names it.
const fn remote(offset: u64) -> RemoteAddr {
    RemoteAddr { addr: VA + offset, rkey: KEY }
}

/// What the leader writes, another one for each seed.
fn pattern(seed: u64) -> Vec<u8> {
    (0..SPAN).map(|at| (at * 31 + at / 256 * 7 + seed) as u8).collect()
}

/// The leader writes all of its memory, in messages of 64 KiB of which several are under way, and flushes it.
fn write_all(net: &mut Net, seed: u64) {
    const PIECE: u32 = 1 << 16;
    net.sides[0].memory.0 = pattern(seed);
    for offset in (0..SPAN).step_by(PIECE as usize) {
        let leader = &mut net.sides[0];
        let sge = [leader.sge(offset, PIECE)];
        let (op, data) = (SendOp::Write(remote(offset)), Data::Sges(&sge));
        let wr = SendWr { wr_id: offset, op, data, flags: SendFlags::SIGNALED, ud: None };
        leader.device.post_send(leader.qpn, &wr).unwrap();
    }
    for offset in (0..SPAN).step_by(PIECE as usize) {
        let wc = net.wait();
        assert_eq!((wc.wr_id, wc.status), (offset, WcStatus::Success), "{}", replay(seed));
    }
    let placement = Placement::GlobalVisibility;
    let flush = SendOp::Flush { remote: remote(0), len: PIECE, placement, selectivity: Selectivity::Range };
    assert_eq!(net.execute(flush, 0, 0), WcStatus::Success, "{}", replay(seed));
}

#[test]
fn a_mebibyte_reaches_all_replicas_through_losses_and_damage() {
    for seed in seeds(12) {
        let loss = [0, 2, 10, 30][seed as usize % 4];
        let mut net = Net::new(seed, 3, 2, loss);
        write_all(&mut net, seed);
        for side in &net.sides[1..] {
            assert!(side.memory.0 == net.sides[0].memory.0, "{}", replay(seed));
        }
        assert_eq!(net.reports(), [], "nobody can be behind where all are waited for");
        // And back again.
        net.sides[0].memory.0.fill(0);
        assert_eq!(
            net.execute(SendOp::Read(remote(1000)), 500, 100_000),
            WcStatus::Success,
            "{}",
            replay(seed)
        );
        assert!(net.sides[0].memory.0[500..100_500] == pattern(seed)[1000..101_000], "{}", replay(seed));
    }
}

#[test]
fn a_replica_that_dies_holds_nobody_up() {
    let mut net = Net::new(1, 2, 2, 0);
    net.dead = Some(2);
    write_all(&mut net, 1);
    for at in [1, 3] {
        assert!(net.sides[at].memory.0 == net.sides[0].memory.0);
    }
    // It comes back, and misses what the leader will not send again.
    net.dead = None;
    assert_eq!(net.execute(SendOp::Write(remote(0)), 0, 64), WcStatus::Success);
    while !net.wire.is_empty() {
        net.step();
    }
    let reports = net.reports();
    assert!(matches!(reports[..], [Report::Behind { replica: 1, .. }]), "{reports:?}");
}

#[test]
fn a_leader_whose_key_is_wrong_is_refused_by_the_replicas() {
    let mut net = Net::new(2, 2, 2, 0);
    let wrong = RemoteAddr { rkey: Rkey(KEY.0 ^ 1), ..remote(0) };
    assert_eq!(net.execute(SendOp::Write(wrong), 0, 64), WcStatus::RemAccessErr);
    assert_eq!(net.sides[1].memory.0[..64], [0; 64]);
}

#[test]
fn a_leader_learns_that_its_replicas_have_different_data() {
    let mut net = Net::new(3, 2, 2, 0);
    net.sides[3].memory.0[70_000] = 1;
    net.sides[2].memory.0[70_000] = 1;
    assert_eq!(net.execute(SendOp::Read(remote(0)), 0, 69_000), WcStatus::Success);
    assert_eq!(net.execute(SendOp::Read(remote(0)), 0, 100_000), WcStatus::RemOpErr);
    let group = net.made.id;
    assert!(
        net.reports()
            .iter()
            .all(|report| matches!(report, Report::Discrepancy { group: at, .. } if *at == group))
    );
}
