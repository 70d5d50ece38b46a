//! What the fuzz targets do with their bytes; `fuzz/` holds the shells, and the unit tests run the committed corpus through the
//! same functions.
//!
//! [`responder`] takes its bytes as a story about one device with an RC, a UC and a UD QP: datagrams that come,
//! work that is posted, time that passes, flushes that end, keys that are taken away. QP numbers, PSNs, keys and
//! the ICRC are filled in so that most packets get past the first checks. Whatever is told, the device must not
//! panic, must not touch a byte that no right covers, must say only well-formed packets, and its books must balance.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remanence_wire::aeth::{self, Aeth};
use remanence_wire::opcode::Layout;
use remanence_wire::packet::{Headers, OVERHEAD_MAX, Packet, Repr, finish};
use remanence_wire::{
    Gid, Msn, Mtu, Opcode, Psn, Qkey, Qpn, Rkey, atomic_ack_eth, atomic_eth, bth, deth, feth, icrc, ieth,
    imm_dt, reth,
};

use crate::*;

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] = &[("responder", responder)];

const LEN: u64 = 4096;
/// Bytes around each registered range.
const GUARD: u64 = 64;
const IOVA: u64 = 0x1_0000;

/// Regions by their number: what the device may do there.
const OPEN: RegionId = RegionId(0);
const READ_ONLY: RegionId = RegionId(1);
const RECEIVE: RegionId = RegionId(2);
/// A region that no MR was registered in.
const CLOSED: RegionId = RegionId(3);

/// Memory that knows what must not happen to it.
struct Guarded {
    bytes: Vec<Vec<u8>>,
    pending: Vec<FlushId>,
    answer: FlushOutcome,
}

impl Guarded {
    fn check(&self, region: RegionId, offset: u64, len: u64, write: bool) {
        assert!(region != CLOSED, "a region that was never registered");
        assert!(!write || region != READ_ONLY, "a write to read-only memory");
        assert!(offset >= GUARD && offset + len <= GUARD + LEN, "{len} bytes at {offset}: outside of the MR");
    }

    fn word(&mut self, region: RegionId, offset: u64) -> &mut [u8; 8] {
        self.check(region, offset, 8, true);
        assert!(offset.is_multiple_of(8), "an unaligned atomic");
        assert_eq!(region, OPEN, "an atomic where none is allowed");
        let bytes = &mut self.bytes[region.0 as usize][offset as usize..];
        bytes.first_chunk_mut().expect("checked")
    }
}

impl Memory for Guarded {
    fn read(&self, region: RegionId, offset: u64, into: &mut [u8]) {
        self.check(region, offset, into.len() as u64, false);
        into.copy_from_slice(&self.bytes[region.0 as usize][offset as usize..][..into.len()]);
    }

    fn write(&mut self, region: RegionId, offset: u64, bytes: &[u8]) {
        self.check(region, offset, bytes.len() as u64, true);
        self.bytes[region.0 as usize][offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn atomic_write(&mut self, region: RegionId, offset: u64, bytes: [u8; 8]) {
        *self.word(region, offset) = bytes;
    }

    fn compare_and_swap(&mut self, region: RegionId, offset: u64, compare: u64, swap: u64) -> u64 {
        let word = self.word(region, offset);
        let old = u64::from_be_bytes(*word);
        if old == compare {
            *word = swap.to_be_bytes();
        }
        old
    }

    fn fetch_add(&mut self, region: RegionId, offset: u64, add: u64) -> u64 {
        let word = self.word(region, offset);
        let old = u64::from_be_bytes(*word);
        *word = old.wrapping_add(add).to_be_bytes();
        old
    }

    fn placement_support(&self, region: RegionId) -> PlacementSupport {
        if region == OPEN { PlacementSupport::all() } else { PlacementSupport::GLOBAL_VISIBILITY }
    }

    fn flush(&mut self, id: FlushId, span: Span, placement: Placement) -> FlushOutcome {
        self.check(span.region, span.offset, span.len, false);
        assert!(placement == Placement::GlobalVisibility || span.region == OPEN);
        if self.answer == FlushOutcome::Pending {
            self.pending.push(id);
        }
        self.answer
    }
}

/// Takes values off the story; what is missing at its end is zero.
struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

struct World {
    device: Device,
    mem: Guarded,
    now: Instant,
    pd: PdHandle,
    cq: CqHandle,
    mrs: [Mr; 3],
    mw: (MwHandle, Rkey),
    ah: AhHandle,
    qpns: [Qpn; 3],
    buf: Vec<u8>,
}

const PEER: Qpn = Qpn::new(0x99);
const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const THEIRS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const QKEY: Qkey = Qkey(0x1111);
const EVERY_RIGHT: Access = Access::all().difference(Access::ZERO_BASED);

impl World {
    fn new() -> Self {
        let mut device = Device::new(Config {
            gids: vec![Gid::from_ip(OURS)],
            mtu: Mtu::B256,
            window: WindowLimits { initial: 4, max: 16 },
            ..Config::default()
        });
        let mem = Guarded {
            bytes: vec![vec![0; (LEN + 2 * GUARD) as usize]; 4],
            pending: Vec::new(),
            answer: FlushOutcome::Done,
        };
        let pd = device.alloc_pd().expect("the first PD");
        let cq = device.create_cq(1 << 16).expect("the first CQ");
        let mrs = [
            (OPEN, EVERY_RIGHT),
            (READ_ONLY, Access::REMOTE_READ | Access::FLUSH_GLOBAL),
            (RECEIVE, Access::LOCAL_WRITE),
        ]
        .map(|(region, access)| {
            let span = Span { region, offset: GUARD, len: LEN };
            device.reg_mr(pd, &MrAttr { span, iova: IOVA, access }, &mem).expect("an MR")
        });
        let mw = device.alloc_mw(pd, MwType::Type2).expect("an MW");
        let ah = device.create_ah(pd, &AhAttr::new(Gid::from_ip(THEIRS))).expect("an AH");
        let caps =
            QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 3, max_recv_sge: 3, max_inline: 32 };
        let qpns = [QpType::Rc, QpType::Uc, QpType::Ud].map(|ty| {
            let init = QpInit { pd, ty, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: true };
            device.create_qp(&init).expect("a QP")
        });
        let now = Instant::from_nanos(1_000_000_000);
        let buf = vec![0; 65_507];
        let mut world = Self { device, mem, now, pd, cq, mrs, mw, ah, qpns, buf };
        for at in 0..3 {
            world.connect(at);
        }
        world
    }

    /// Takes a QP from wherever it is to RTS.
    fn connect(&mut self, at: usize) {
        let qpn = self.qpns[at];
        let rc = |value: u8| (at == 0).then_some(value);
        let connected = at < 2;
        let psn = Some(Psn::new(0xff_fffe));
        let steps = [
            QpAttr { state: Some(QpState::Reset), ..QpAttr::default() },
            QpAttr {
                state: Some(QpState::Init),
                access: connected.then_some(EVERY_RIGHT),
                qkey: (!connected).then_some(QKEY),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(QpState::Rtr),
                av: connected.then_some(AhAttr::new(Gid::from_ip(THEIRS))),
                path_mtu: connected.then_some(Mtu::B256),
                dest_qpn: connected.then_some(PEER),
                rq_psn: psn.filter(|_| connected),
                max_dest_rd_atomic: rc(3),
                min_rnr_timer: rc(1),
                ..QpAttr::default()
            },
            QpAttr {
                state: Some(QpState::Rts),
                sq_psn: psn,
                timeout: rc(8),
                retry_cnt: rc(2),
                rnr_retry: rc(3),
                max_rd_atomic: rc(2),
                ..QpAttr::default()
            },
        ];
        for attr in steps {
            self.device.modify_qp(self.now, qpn, &attr).expect("the usual way to RTS");
        }
    }

    fn state(&self, at: usize) -> QpState {
        self.device.query_qp(self.qpns[at]).expect("QPs live as long as the world").state
    }

    /// Seals and delivers a UDP payload whose last four bytes are room for the ICRC.
    fn deliver(&mut self, mut bytes: Vec<u8>, ecn: u8) {
        let flow = icrc::Flow::new(THEIRS, OURS, 0xc000, ROCE_PORT);
        if bytes.len() >= bth::LEN + icrc::LEN {
            icrc::seal(&flow, 0, &mut bytes);
        }
        let rx = RxMeta {
            src: THEIRS,
            dst: OURS,
            src_port: 0xc000,
            ip_id: None,
            train_index: 0,
            ecn: ecn & 3,
            hop_limit: 64,
        };
        self.device.handle_datagram(self.now, &rx, &bytes, &mut self.mem);
    }

    /// The PSN that makes a packet interesting, and one that is off by `delta`.
    fn psn(&self, at: usize, response: bool, delta: i8) -> Psn {
        let qp = self.device.qps.get(self.qpns[at]).expect("QPs live as long as the world");
        let base = if response { qp.requester.una } else { qp.responder.epsn };
        if delta >= 0 { base.add(delta as u32) } else { base.sub(u32::from(delta.unsigned_abs())) }
    }

    fn raw(&mut self, tape: &mut Tape<'_>, at: usize) {
        let delta = tape.byte() as i8;
        let len = usize::from(tape.word() % 600);
        let mut bytes = tape.bytes(len).to_vec();
        if bytes.len() >= bth::LEN + icrc::LEN {
            let response = Opcode::from_u8(bytes[0]).is_some_and(|opcode| opcode.info().is_response());
            let psn = self.psn(at, response, delta).value().to_be_bytes();
            bytes[5..8].copy_from_slice(&self.qpns[at].value().to_be_bytes()[1..]);
            bytes[9..12].copy_from_slice(&psn[1..]);
            if bytes[1] & 0x40 == 0 {
                bytes[2..4].fill(0xff);
            }
        }
        self.deliver(bytes, 0);
    }

    fn rkey(&self, selector: u8) -> Rkey {
        match selector % 16 {
            0..=8 => self.mrs[0].rkey,
            9 | 10 => self.mrs[1].rkey,
            11 => self.mrs[2].rkey,
            12..=14 => Rkey(self.mw.1.0 ^ u32::from(selector >> 4 & 1)),
            _ => Rkey(u32::from(selector) << 8),
        }
    }

    fn headers(&self, tape: &mut Tape<'_>, layout: Layout, payload: u32) -> Headers {
        let selector = tape.byte();
        let at = tape.word();
        // Mostly inside, mostly aligned.
        let va = IOVA + u64::from(if at & 0x8000 == 0 { at & 0x1ff8 } else { at & 0x1fff });
        let rkey = self.rkey(selector);
        let dma_len = match selector >> 4 {
            0..=5 => payload,
            6..=10 => payload + u32::from(tape.byte()) * 8,
            _ => u32::from(tape.word()),
        };
        let reth = reth::Repr { va, rkey, dma_len };
        let imm = imm_dt::Repr { imm: u32::from(at) };
        let msn = Msn::new(u32::from(at));
        let aeth =
            aeth::Repr { aeth: Aeth::from_u8(selector).unwrap_or(Aeth::Ack(aeth::Credits::UNLIMITED)), msn };
        let deth = deth::Repr { qkey: if selector == 0xff { Qkey(1) } else { QKEY }, src_qp: PEER };
        match layout {
            Layout::None => Headers::None,
            Layout::Reth => Headers::Reth(reth),
            Layout::RethImm => Headers::RethImm(reth, imm),
            Layout::Imm => Headers::Imm(imm),
            Layout::Ieth => Headers::Ieth(ieth::Repr { rkey }),
            Layout::Aeth => Headers::Aeth(aeth),
            Layout::AethAtomicAck => Headers::AethAtomicAck(aeth, atomic_ack_eth::Repr { original: va }),
            Layout::AtomicEth => {
                Headers::AtomicEth(atomic_eth::Repr { va, rkey, swap_or_add: 1, compare: 0 })
            }
            Layout::FethReth => {
                let feth = feth::Repr::parse(&[0, 0, 0, tape.byte()]);
                Headers::FethReth(feth, reth)
            }
            Layout::Deth => Headers::Deth(deth),
            Layout::DethImm => Headers::DethImm(deth, imm),
            Layout::Cnp => Headers::Cnp,
        }
    }

    /// A packet with every header that its opcode asks for.
    fn crafted(&mut self, tape: &mut Tape<'_>, at: usize) {
        let opcode = Opcode::ALL[usize::from(tape.byte()) % Opcode::ALL.len()];
        let flags = tape.byte();
        let payload = match flags >> 5 {
            0 => 0,
            1..=3 => 256,
            4 => 8,
            5 => u32::from(tape.byte()),
            _ => u32::from(tape.word() % 520),
        };
        let delta = if flags & 3 == 0 { tape.byte() as i8 } else { 0 };
        let headers = self.headers(tape, opcode.info().layout, payload);
        let bth = bth::Repr {
            solicited: flags & 4 != 0,
            ack_req: flags & 8 != 0,
            ..bth::Repr::new(opcode, self.qpns[at], self.psn(at, opcode.info().is_response(), delta))
        };
        let mut bytes = vec![tape.byte(); payload as usize + OVERHEAD_MAX];
        let header_len = Repr { bth, headers }.emit(&mut bytes);
        let flow = icrc::Flow::new(THEIRS, OURS, 0xc000, ROCE_PORT);
        let len = finish(&mut bytes, header_len, payload as usize, &flow, 0);
        bytes.truncate(len);
        self.deliver(bytes, if flags & 16 == 0 { 2 } else { 3 });
    }

    fn post(&mut self, tape: &mut Tape<'_>, at: usize) {
        let selector = tape.byte();
        let len = u32::from(tape.word() % 2000);
        let remote = RemoteAddr { addr: IOVA + u64::from(tape.word()), rkey: Rkey(u32::from(selector)) };
        let op = match selector % 12 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(7),
            2 => SendOp::SendInv(self.mw.1),
            3 => SendOp::Write(remote),
            4 => SendOp::WriteImm(remote, 9),
            5 | 6 => SendOp::Read(remote),
            7 => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            8 => SendOp::FetchAdd { remote, add: 1 },
            9 => SendOp::Flush {
                remote,
                len,
                placement: Placement::Persistence,
                selectivity: Selectivity::Range,
            },
            10 => SendOp::LocalInv(self.mw.1),
            _ => SendOp::BindMw {
                mw: self.mw.0,
                rkey: Rkey(self.mw.1.0 ^ u32::from(selector >> 7)),
                bind: MwBind {
                    mr: self.mrs[0].lkey,
                    addr: IOVA + u64::from(len),
                    len: 256,
                    access: EVERY_RIGHT | Access::ZERO_BASED,
                },
            },
        };
        let len = match op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 8,
            SendOp::Flush { .. } | SendOp::LocalInv(_) | SendOp::BindMw { .. } => 0,
            _ => len,
        };
        // A wrong key now and then.
        let lkey = self.mrs[usize::from(selector >> 6) % 3].lkey;
        let sges =
            [Sge { addr: IOVA, len: len / 3, lkey }, Sge { addr: IOVA + 700, len: len - len / 3, lkey }];
        let flags = if selector & 16 == 0 { SendFlags::SIGNALED } else { SendFlags::FENCE };
        let ud = Some(UdDest { ah: self.ah, qpn: PEER, qkey: QKEY });
        let wr = SendWr { wr_id: 1, op, data: Data::Sges(&sges), flags, ud };
        _ = self.device.post_send(self.qpns[at], &wr);
    }

    fn manage(&mut self, tape: &mut Tape<'_>, at: usize) {
        let selector = tape.byte();
        match selector % 10 {
            0..=2 => {
                let len = u32::from(tape.word() % 1500);
                let lkey = self.mrs[if selector & 128 == 0 { 2 } else { 1 }].lkey;
                let sges = [Sge { addr: IOVA, len: len / 2, lkey }, Sge { addr: IOVA + 2000, len, lkey }];
                _ = self.device.post_recv(self.qpns[at], &RecvWr { wr_id: 2, sges: &sges });
            }
            3 => {
                self.mem.answer = [FlushOutcome::Done, FlushOutcome::Pending, FlushOutcome::Failed]
                    [usize::from(selector) % 3];
            }
            4 | 5 => {
                if let Some(id) = self.mem.pending.pop() {
                    let result = if selector & 128 == 0 { Ok(()) } else { Err(()) };
                    self.device.flush_done(self.now, id, result, &mut self.mem);
                }
            }
            6 => {
                // The open region goes and comes back under another key.
                if self.device.dereg_mr(self.mrs[0].handle).is_ok() {
                    let span = Span { region: OPEN, offset: GUARD, len: LEN };
                    let attr = MrAttr { span, iova: IOVA, access: EVERY_RIGHT };
                    self.mrs[0] = self.device.reg_mr(self.pd, &attr, &self.mem).expect("it was there before");
                }
            }
            7 => self.connect(at),
            8 => {
                let state = if selector & 128 == 0 { QpState::Sqd } else { QpState::Rts };
                let attr = QpAttr { state: Some(state), ..QpAttr::default() };
                _ = self.device.modify_qp(self.now, self.qpns[at], &attr);
            }
            _ => {
                let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
                self.device.modify_qp(self.now, self.qpns[at], &attr).expect("always possible");
            }
        }
    }

    fn pass_time(&mut self, tape: &mut Tape<'_>) {
        self.now = self.now + Duration::from_micros(1 << (tape.byte() % 20));
        self.device.handle_timeout(self.now);
        assert!(self.device.poll_timeout().is_none_or(|next| next > self.now), "nothing that is due remains");
    }

    /// Takes what comes out, and looks at the books.
    fn settle(&mut self) {
        let mut packets = 0;
        while let Some(t) = self.device.poll_transmit(self.now, &mut self.buf, 16, &mut self.mem) {
            for bytes in self.buf[..t.len].chunks(t.segment_size) {
                let packet = Packet::parse(bytes).expect("a device sends well-formed packets");
                assert!(packet.info().payload.admits(packet.payload().len(), Mtu::B256));
                packets += 1;
            }
            assert!(packets < 1000, "a device comes to rest");
        }
        while self.device.pop_cq(self.cq).is_some() {}
        while self.device.poll_async_event().is_some() {}
        for qpn in self.qpns {
            self.device.qps.get(qpn).expect("QPs live as long as the world").audit();
        }
    }
}

/// A story about a device; see the module.
pub fn responder(data: &[u8]) {
    let mut world = World::new();
    let mut tape = Tape(data);
    let mut steps = 0;
    while !tape.0.is_empty() && steps < 400 {
        steps += 1;
        let step = tape.byte();
        // Most of the story is about the RC QP.
        let at = [0, 0, 0, 0, 0, 1, 1, 2][usize::from(step >> 5)];
        // A dead QP is told a little more, and then lives again.
        if steps % 4 == 0 && matches!(world.state(at), QpState::Err | QpState::Sqe) {
            world.connect(at);
        }
        match step % 16 {
            0..=7 => world.crafted(&mut tape, at),
            8 | 9 => world.raw(&mut tape, at),
            10 | 11 => world.post(&mut tape, at),
            12 => world.pass_time(&mut tape),
            _ => world.manage(&mut tape, at),
        }
        // Now and then packets come in a batch.
        if step & 16 == 0 {
            world.settle();
        }
    }
    world.settle();
    let guard = GUARD as usize;
    for bytes in &world.mem.bytes {
        assert!(bytes[..guard].iter().chain(&bytes[guard + LEN as usize..]).all(|&byte| byte == 0));
    }
    assert!(world.mem.bytes[READ_ONLY.0 as usize].iter().all(|&byte| byte == 0));
    assert!(world.device.qp_footprint(world.qpns[0]).is_ok_and(|bytes| bytes < 16 * 1024));
}

#[cfg(test)]
mod tests;
