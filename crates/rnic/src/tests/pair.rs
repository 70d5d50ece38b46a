//! Two devices, a clock and a wire that loses, repeats, delays and damages packets as told.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_wire::packet::{OVERHEAD_MAX, Packet, Repr, finish};
use remanence_wire::{Gid, Lkey, Mtu, Psn, Qkey, Qpn, icrc};

use crate::*;

/// Every right that a peer can have.
pub(crate) const REMOTE: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// How the memory under test answers a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlushMode {
    Done,
    Pending,
    Failed,
}

/// Plain memory that counts what is done to it.
pub(crate) struct TestMemory {
    pub(crate) regions: Vec<Vec<u8>>,
    pub(crate) writes: u64,
    pub(crate) flush_mode: FlushMode,
    pub(crate) flushes: Vec<(FlushId, Span, Placement)>,
    pub(crate) support: PlacementSupport,
}

impl TestMemory {
    fn word(&mut self, region: RegionId, offset: u64) -> &mut [u8; 8] {
        let bytes = &mut self.regions[region.0 as usize][offset as usize..];
        bytes.first_chunk_mut().expect("the engine checks bounds")
    }
}

impl Memory for TestMemory {
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.regions[region.0 as usize][offset as usize..][..into.len()]);
    }

    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.writes += 1;
        self.regions[region.0 as usize][offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        assert!(offset.is_multiple_of(8));
        self.writes += 1;
        *self.word(region, offset) = bytes;
    }

    fn compare_and_swap(&mut self, region: RegionId, offset: u64, compare: u64, swap: u64) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.writes += 1;
        let word = self.word(region, offset);
        let old = from_native(*word);
        if old == compare {
            *word = memory::native_bytes(swap);
        }
        old
    }

    fn fetch_add(&mut self, region: RegionId, offset: u64, add: u64) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.writes += 1;
        let word = self.word(region, offset);
        let old = from_native(*word);
        *word = memory::native_bytes(old.wrapping_add(add));
        old
    }

    fn placement_support(&self, _: RegionId) -> PlacementSupport {
        self.support
    }

    fn flush(&mut self, id: FlushId, span: Span, placement: Placement) -> FlushOutcome {
        self.flushes.push((id, span, placement));
        match self.flush_mode {
            FlushMode::Done => FlushOutcome::Done,
            FlushMode::Pending => FlushOutcome::Pending,
            FlushMode::Failed => FlushOutcome::Failed,
        }
    }
}

#[expect(clippy::host_endian_bytes, reason = "atomics are on native integers")]
pub(crate) fn from_native(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

/// A registered buffer of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) mr: Mr,
    pub(crate) region: RegionId,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl Buffer {
    pub(crate) fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr + offset, rkey: self.mr.rkey }
    }

    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr + offset, len, lkey: self.mr.lkey }
    }
}

pub(crate) struct Node {
    pub(crate) device: Device,
    pub(crate) mem: TestMemory,
    pub(crate) ip: IpAddr,
    pub(crate) pd: PdHandle,
    pub(crate) scq: CqHandle,
    pub(crate) rcq: CqHandle,
}

impl Node {
    fn new(config: Config, last: u8) -> Self {
        let ip = IpAddr::from(Ipv4Addr::new(10, 0, 0, last));
        let mut device = Device::new(Config { gids: vec![Gid::from_ip(ip)], seed: last.into(), ..config });
        let pd = device.alloc_pd().unwrap();
        let scq = device.create_cq(4096).unwrap();
        let rcq = device.create_cq(4096).unwrap();
        let mem = TestMemory {
            regions: Vec::new(),
            writes: 0,
            flush_mode: FlushMode::Done,
            flushes: Vec::new(),
            support: PlacementSupport::all(),
        };
        Self { device, mem, ip, pd, scq, rcq }
    }

    /// Registers new memory filled with `fill`, at an address that tells iova from offset.
    pub(crate) fn buffer(&mut self, len: u64, access: Access, fill: u8) -> Buffer {
        let region = RegionId(self.mem.regions.len() as u32);
        // Bytes on either side that nobody may touch.
        self.mem.regions.push(vec![fill; len as usize + 128]);
        let addr = 0x7000_0000_0000 + u64::from(region.0) * 0x1_0000_0000;
        let span = Span { region, offset: 64, len };
        let mr = self.device.reg_mr(self.pd, &MrAttr { span, iova: addr, access }, &self.mem).unwrap();
        Buffer { mr, region, addr, len }
    }

    pub(crate) fn bytes(&self, buffer: &Buffer) -> &[u8] {
        &self.mem.regions[buffer.region.0 as usize][64..64 + buffer.len as usize]
    }

    pub(crate) fn bytes_mut(&mut self, buffer: &Buffer) -> &mut [u8] {
        &mut self.mem.regions[buffer.region.0 as usize][64..64 + buffer.len as usize]
    }

    pub(crate) fn sends(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.device.pop_cq(self.scq)).collect()
    }

    pub(crate) fn recvs(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.device.pop_cq(self.rcq)).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.device.poll_async_event()).collect()
    }

    pub(crate) fn post(&mut self, qpn: Qpn, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.post_flags(qpn, wr_id, op, sges, SendFlags::SIGNALED);
    }

    pub(crate) fn post_flags(&mut self, qpn: Qpn, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        let wr = SendWr { wr_id, op, data: Data::Sges(sges), flags, ud: None };
        self.device.post_send(qpn, &wr).unwrap();
    }

    pub(crate) fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) {
        self.device.post_recv(qpn, &RecvWr { wr_id, sges }).unwrap();
    }

    pub(crate) fn state(&self, qpn: Qpn) -> QpState {
        self.device.query_qp(qpn).unwrap().state
    }
}

/// What the wire does to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    Duplicate,
    /// Delivered that much later.
    Delay(Duration),
    /// Delivered then, or as usual if that is later: the receiver is away.
    HoldUntil(Instant),
    /// One bit flipped.
    Corrupt,
    /// Marked as having met congestion.
    Mark,
}

struct Flight {
    to: usize,
    rx: RxMeta,
    bytes: Vec<u8>,
}

type Hook = Box<dyn FnMut(usize, &Packet<'_>) -> Fate>;

pub(crate) struct Pair {
    pub(crate) nodes: [Node; 2],
    pub(crate) qpns: [Qpn; 2],
    pub(crate) now: Instant,
    pub(crate) latency: Duration,
    /// Decides each packet's fate; the number is the sender's.
    pub(crate) hook: Option<Hook>,
    /// The headers of all that was sent, with the sender.
    pub(crate) log: Vec<(usize, Repr)>,
    /// Segments of each transmission.
    pub(crate) batches: Vec<usize>,
    pub(crate) max_segments: usize,
    /// What arrives at the same time is received before anything is sent, as from a socket.
    pub(crate) at_once: bool,
    wire: BTreeMap<(Instant, u64), Flight>,
    sent: u64,
    rng: ChaCha8Rng,
}

/// The attributes of a usual connection.
pub(crate) fn connect_attr(to: &Node, qpn: Qpn, mtu: Mtu) -> [QpAttr; 3] {
    let init = QpAttr { state: Some(QpState::Init), access: Some(REMOTE), ..QpAttr::default() };
    let rtr = QpAttr {
        state: Some(QpState::Rtr),
        av: Some(AhAttr::new(Gid::from_ip(to.ip))),
        path_mtu: Some(mtu),
        dest_qpn: Some(qpn),
        rq_psn: Some(Psn::new(0xff_fff0)),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(1),
        ..QpAttr::default()
    };
    let rts = QpAttr {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0xff_fff0)),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(4),
        ..QpAttr::default()
    };
    [init, rtr, rts]
}

pub(crate) fn caps() -> QpCaps {
    QpCaps { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 4, max_recv_sge: 4, max_inline: 256 }
}

impl Pair {
    /// Two devices without QPs.
    pub(crate) fn unconnected(config: Config) -> Self {
        Self {
            nodes: [Node::new(config.clone(), 1), Node::new(config, 2)],
            qpns: [Qpn::new(0); 2],
            now: Instant::from_nanos(1_000_000_000),
            latency: Duration::from_micros(5),
            hook: None,
            log: Vec::new(),
            batches: Vec::new(),
            max_segments: 64,
            at_once: false,
            wire: BTreeMap::new(),
            sent: 0,
            rng: ChaCha8Rng::seed_from_u64(1),
        }
    }

    /// Two RC QPs in RTS.
    pub(crate) fn connected() -> Self {
        Self::connected_with(Config::default(), Mtu::B1024)
    }

    pub(crate) fn connected_with(config: Config, mtu: Mtu) -> Self {
        let mut pair = Self::unconnected(config);
        pair.qpns = pair.connect(QpType::Rc, mtu, |_| {});
        pair
    }

    /// Connects a new QP of each node; `change` may alter what they are created with.
    pub(crate) fn connect(&mut self, ty: QpType, mtu: Mtu, change: impl Fn(&mut QpInit)) -> [Qpn; 2] {
        let qpns = [0, 1].map(|at| {
            let node = &mut self.nodes[at];
            let mut init = QpInit {
                pd: node.pd,
                ty,
                send_cq: node.scq,
                recv_cq: node.rcq,
                srq: None,
                caps: caps(),
                sq_sig_all: false,
            };
            change(&mut init);
            node.device.create_qp(&init).unwrap()
        });
        for at in [0, 1] {
            let [init, rtr, rts] = connect_attr(&self.nodes[1 - at], qpns[1 - at], mtu);
            for attr in [init, rtr, rts] {
                let attr = restrict(ty, attr);
                self.nodes[at].device.modify_qp(self.now, qpns[at], &attr).unwrap();
            }
        }
        qpns
    }

    pub(crate) fn a(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    pub(crate) fn b(&mut self) -> &mut Node {
        &mut self.nodes[1]
    }

    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let qpn = self.qpns[0];
        self.a().post(qpn, wr_id, op, sges);
    }

    /// Posts, runs, and returns the one completion that must have come.
    pub(crate) fn execute(&mut self, op: SendOp, sges: &[Sge]) -> Wc {
        self.post(77, op, sges);
        self.run();
        let mut wcs = self.a().sends();
        assert_eq!(wcs.len(), 1, "{wcs:?}");
        let wc = wcs.remove(0);
        assert_eq!(wc.wr_id, 77);
        wc
    }

    /// Loses, repeats, delays and damages packets at random, in percent.
    pub(crate) fn weather(&mut self, seed: u64, loss: u32, dup: u32, delay: u32, corrupt: u32) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        self.hook = Some(Box::new(move |_, _| {
            let roll = rng.next_u32() % 100;
            if roll < loss {
                Fate::Drop
            } else if roll < loss + dup {
                Fate::Duplicate
            } else if roll < loss + dup + delay {
                Fate::Delay(Duration::from_micros(u64::from(rng.next_u32() % 40)))
            } else if roll < loss + dup + delay + corrupt {
                Fate::Corrupt
            } else {
                Fate::Deliver
            }
        }));
    }

    /// Takes what the devices want to send.
    pub(crate) fn collect(&mut self) {
        let mut buf = vec![0; 65_507];
        for from in [0, 1] {
            loop {
                let node = &mut self.nodes[from];
                let Some(t) = node.device.poll_transmit(self.now, &mut buf, self.max_segments, &mut node.mem)
                else {
                    break;
                };
                assert!(t.len <= buf.len() && t.segment_size <= 4096 + OVERHEAD_MAX);
                self.batches.push(t.len.div_ceil(t.segment_size));
                for (index, bytes) in buf[..t.len].chunks(t.segment_size).enumerate() {
                    let rx = RxMeta {
                        src: t.src,
                        dst: t.dst,
                        src_port: t.src_port,
                        ip_id: Some(index as u16),
                        train_index: 0,
                        ecn: t.tos & 3,
                        hop_limit: t.hop_limit,
                    };
                    self.launch(from, rx, bytes.to_vec());
                }
            }
        }
    }

    fn launch(&mut self, from: usize, mut rx: RxMeta, mut bytes: Vec<u8>) {
        let packet = Packet::parse(&bytes).expect("a device sends well-formed packets");
        self.log.push((from, packet.repr()));
        let fate = self.hook.as_mut().map_or(Fate::Deliver, |hook| hook(from, &packet));
        let Some(to) = self.nodes.iter().position(|node| node.ip == rx.dst || rx.dst.is_multicast()) else {
            return;
        };
        let to = if rx.dst.is_multicast() { 1 - from } else { to };
        let mut at = self.now + self.latency;
        match fate {
            Fate::Deliver => {}
            Fate::Drop => return,
            Fate::Duplicate => self.fly(at, Flight { to, rx, bytes: bytes.clone() }),
            Fate::Delay(by) => at = at + by,
            Fate::HoldUntil(back) => at = at.max(back),
            Fate::Corrupt => {
                let bit = self.rng.next_u32() as usize % (bytes.len() * 8);
                // Not a bit that routers may change, which the ICRC leaves out.
                let bit = if bit / 8 == 4 { bit + 8 } else { bit };
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            Fate::Mark => rx.ecn = 3,
        }
        self.fly(at, Flight { to, rx, bytes });
    }

    fn fly(&mut self, at: Instant, flight: Flight) {
        self.sent += 1;
        self.wire.insert((at, self.sent), flight);
    }

    /// Hands a hand-made packet to node `to`, as if its peer had sent it, with a right ICRC.
    pub(crate) fn inject(&mut self, to: usize, repr: &Repr, payload: &[u8]) {
        let rx = self.rx_meta(to);
        let mut buf = vec![0; payload.len() + OVERHEAD_MAX];
        let header_len = repr.emit(&mut buf);
        buf[header_len..header_len + payload.len()].copy_from_slice(payload);
        let flow = icrc::Flow::new(rx.src, rx.dst, rx.src_port, ROCE_PORT);
        let len = finish(&mut buf, header_len, payload.len(), &flow, 0);
        self.inject_raw(to, &rx, &buf[..len]);
    }

    /// What the network would say of a packet from the peer of node `to`.
    pub(crate) fn rx_meta(&self, to: usize) -> RxMeta {
        RxMeta {
            src: self.nodes[1 - to].ip,
            dst: self.nodes[to].ip,
            src_port: 0xc000,
            ip_id: Some(0),
            train_index: 0,
            ecn: 0,
            hop_limit: 64,
        }
    }

    pub(crate) fn inject_raw(&mut self, to: usize, rx: &RxMeta, bytes: &[u8]) {
        let node = &mut self.nodes[to];
        node.device.handle_datagram(self.now, rx, bytes, &mut node.mem);
    }

    /// Lets one thing happen: an arrival or a deadline. `false` when nothing is left.
    pub(crate) fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.wire.keys().next().copied();
        let deadline = self.nodes.iter().filter_map(|node| node.device.poll_timeout()).min();
        match (arrival, deadline) {
            (None, None) => return false,
            (Some(key), _) if deadline.is_none_or(|deadline| key.0 <= deadline) => {
                self.now = self.now.max(key.0);
                let mut next = Some(key);
                while let Some(flight) = next.and_then(|key| self.wire.remove(&key)) {
                    let node = &mut self.nodes[flight.to];
                    node.device.handle_datagram(self.now, &flight.rx, &flight.bytes, &mut node.mem);
                    next = self.wire.keys().next().copied().filter(|next| self.at_once && next.0 == key.0);
                }
            }
            (_, Some(deadline)) => {
                self.now = self.now.max(deadline);
                for node in &mut self.nodes {
                    node.device.handle_timeout(self.now);
                }
            }
            (Some(_), None) => unreachable!("the guard above takes it"),
        }
        true
    }

    /// Runs until nothing is left to do.
    pub(crate) fn run(&mut self) {
        for _ in 0..2_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the pair does not come to rest");
    }

    /// Runs for a while of simulated time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.collect();
            let arrival = self.wire.keys().next().map(|key| key.0);
            let deadline = self.nodes.iter().filter_map(|node| node.device.poll_timeout()).min();
            if arrival.into_iter().chain(deadline).min().is_none_or(|next| next > end) {
                self.now = end;
                return;
            }
            self.step();
        }
    }

    /// How many packets of an opcode a node has sent.
    pub(crate) fn sent(&self, from: usize, opcode: remanence_wire::Opcode) -> usize {
        self.log.iter().filter(|(sender, repr)| *sender == from && repr.bth.opcode == opcode).count()
    }
}

/// Takes away the attributes that a transport does not have.
pub(crate) fn restrict(ty: QpType, attr: QpAttr) -> QpAttr {
    match ty {
        QpType::Rc => attr,
        QpType::Uc => QpAttr {
            max_dest_rd_atomic: None,
            min_rnr_timer: None,
            timeout: None,
            retry_cnt: None,
            rnr_retry: None,
            max_rd_atomic: None,
            ..attr
        },
        QpType::Ud => QpAttr {
            state: attr.state,
            qkey: (attr.state == Some(QpState::Init)).then_some(Qkey(0x1111)),
            sq_psn: attr.sq_psn,
            ..QpAttr::default()
        },
    }
}

/// An lkey that names nothing.
pub(crate) const BAD_LKEY: Lkey = Lkey(0xdead_beef);
