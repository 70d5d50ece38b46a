//! What a peer may not do: the NAK or drop that the specification asks for, and not one byte touched.
//!
//! Each test damages one thing in a request that would otherwise be executed, and looks at everything: the
//! requester's completion, the responder's memory and its count of writes, its state, its events.

use remanence_wire::aeth::{Aeth, NakCode};
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Mtu, Opcode, Psn, Qpn, Rkey, atomic_eth, bth, feth, reth};

use super::pair::*;
use crate::*;

/// A connected pair with one registered buffer at each end; the responder's is full of 0xee.
struct Case {
    pair: Pair,
    src: Buffer,
    dst: Buffer,
}

impl Case {
    fn new(access: Access) -> Self {
        let mut pair = Pair::connected();
        let src = pair.a().buffer(8192, Access::LOCAL_WRITE, 0x11);
        let dst = pair.b().buffer(4096, access, 0xee);
        Self { pair, src, dst }
    }

    fn untouched(&mut self) {
        let b = self.pair.b();
        assert_eq!(b.mem.writes, 0, "the responder wrote");
        assert!(b.mem.flushes.is_empty(), "the responder flushed");
        assert!(b.mem.regions.iter().flatten().all(|&byte| byte == 0xee), "a byte was touched");
        assert!(self.pair.a().mem.regions.iter().flatten().all(|&byte| byte == 0x11));
    }

    /// Executes an operation that must be refused with a status, and with it the whole connection.
    fn refused(&mut self, op: SendOp, sges: &[Sge], status: WcStatus, event: AsyncEvent) {
        let wc = self.pair.execute(op, sges);
        assert_eq!(wc.status, status, "{op:?}");
        self.untouched();
        let qpns = self.pair.qpns;
        assert_eq!(self.pair.a().state(qpns[0]), QpState::Err);
        assert_eq!(self.pair.b().state(qpns[1]), QpState::Err);
        assert_eq!(self.pair.b().events(), [event]);
        assert_eq!(self.pair.a().events(), []);
    }

    fn access_error(&mut self, op: SendOp, sges: &[Sge]) {
        let event = AsyncEvent::QpAccessError(self.pair.qpns[1]);
        self.refused(op, sges, WcStatus::RemAccessErr, event);
    }

    fn invalid_request(&mut self, op: SendOp, sges: &[Sge]) {
        let event = AsyncEvent::QpRequestError(self.pair.qpns[1]);
        self.refused(op, sges, WcStatus::RemInvReqErr, event);
    }

    /// Hands the responder a packet made by hand.
    fn inject(&mut self, opcode: Opcode, psn: Psn, headers: Headers, payload: &[u8]) {
        let bth = bth::Repr { ack_req: true, ..bth::Repr::new(opcode, self.pair.qpns[1], psn) };
        self.pair.inject(1, &Repr { bth, headers }, payload);
    }

    /// What the responder answered to injected packets.
    fn answers(&mut self) -> Vec<(Psn, Aeth)> {
        self.pair.log.clear();
        self.pair.collect();
        let aeth = |headers: &Headers| match headers {
            Headers::Aeth(aeth) | Headers::AethAtomicAck(aeth, _) => Some(aeth.aeth),
            _ => None,
        };
        let from_b = self.pair.log.iter().filter(|(from, _)| *from == 1);
        from_b.filter_map(|(_, repr)| Some((repr.bth.psn, aeth(&repr.headers)?))).collect()
    }

    /// An injected packet must be answered with NAK invalid request.
    fn naked_invalid(&mut self, opcode: Opcode, psn: Psn, headers: Headers, payload: &[u8]) {
        self.inject(opcode, psn, headers, payload);
        assert_eq!(self.answers(), [(psn, Aeth::Nak(NakCode::InvalidRequest))], "{opcode}");
        let qpn = self.pair.qpns[1];
        assert_eq!(self.pair.b().state(qpn), QpState::Err);
        assert_eq!(self.pair.b().events(), [AsyncEvent::QpRequestError(qpn)]);
    }

    fn reth(&self, len: u32) -> Headers {
        Headers::Reth(reth::Repr { va: self.dst.addr, rkey: self.dst.mr.rkey, dma_len: len })
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.pair.nodes[1].device.stats().dropped_for(reason)
    }
}

/// The PSN that the harness connects with.
const FIRST: Psn = Psn::new(0xff_fff0);

const EVERY: Access = REMOTE;

fn write(to: RemoteAddr) -> SendOp {
    SendOp::Write(to)
}

/// Every operation that reaches the peer's memory, with the local buffers it wants.
fn reaching(case: &Case, to: RemoteAddr) -> Vec<(SendOp, Vec<Sge>)> {
    let eight = vec![case.src.sge(0, 8)];
    let flush = |placement| SendOp::Flush { remote: to, len: 8, placement, selectivity: Selectivity::Range };
    vec![
        (SendOp::Write(to), eight.clone()),
        (SendOp::Write(to), vec![case.src.sge(0, 3000)]),
        (SendOp::Read(to), eight.clone()),
        (SendOp::CompareSwap { remote: to, compare: 0, swap: 1 }, eight.clone()),
        (SendOp::FetchAdd { remote: to, add: 1 }, eight.clone()),
        (SendOp::AtomicWrite(to), eight),
        (flush(Placement::GlobalVisibility), vec![]),
        (flush(Placement::Persistence), vec![]),
    ]
}

const OPS: usize = 8;

#[test]
fn a_wrong_rkey_is_refused() {
    for op in 0..OPS {
        for flip in [1u32, 0x100, 0x8000_0000, 0xffff_ffff] {
            let mut case = Case::new(EVERY);
            let rkey = Rkey(case.dst.mr.rkey.0 ^ flip);
            let to = RemoteAddr { addr: case.dst.addr, rkey };
            let (op, sges) = reaching(&case, to).swap_remove(op);
            case.access_error(op, &sges);
        }
    }
}

#[test]
fn a_deregistered_mr_is_refused() {
    for op in 0..OPS {
        let mut case = Case::new(EVERY);
        let handle = case.dst.mr.handle;
        case.pair.b().device.dereg_mr(handle).unwrap();
        let (op, sges) = reaching(&case, case.dst.remote(0)).swap_remove(op);
        case.access_error(op, &sges);
    }
}

#[test]
fn one_byte_out_of_bounds_is_refused() {
    for op in 0..OPS {
        for offset in [-8i64, -1, 4089, 4096, i64::MAX, i64::MIN] {
            let mut case = Case::new(EVERY);
            let addr = case.dst.addr.wrapping_add_signed(offset);
            let (op, sges) = reaching(&case, RemoteAddr { addr, ..case.dst.remote(0) }).swap_remove(op);
            case.access_error(op, &sges);
        }
    }
    let mut case = Case::new(EVERY);
    let sges = [case.src.sge(0, 4097)];
    case.access_error(write(case.dst.remote(0)), &sges);
}

#[test]
fn a_range_that_wraps_the_address_space_is_refused() {
    let mut case = Case::new(EVERY);
    let to = RemoteAddr { addr: u64::MAX - 3, ..case.dst.remote(0) };
    let sges = [case.src.sge(0, 8)];
    case.access_error(write(to), &sges);
}

#[test]
fn a_missing_right_of_the_mr_is_refused() {
    let needs = [
        Access::REMOTE_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_WRITE,
        Access::FLUSH_GLOBAL,
        Access::FLUSH_PERSISTENT,
    ];
    for (op, missing) in needs.into_iter().enumerate() {
        let mut case = Case::new(EVERY - missing);
        let (op, sges) = reaching(&case, case.dst.remote(0)).swap_remove(op);
        case.access_error(op, &sges);
    }
}

#[test]
fn a_read_only_mr_is_not_written() {
    for op in [0, 1, 3, 4, 5] {
        let mut case = Case::new(Access::REMOTE_READ);
        let (op, sges) = reaching(&case, case.dst.remote(0)).swap_remove(op);
        case.access_error(op, &sges);
    }
}

#[test]
fn a_missing_right_of_the_qp_is_an_invalid_request() {
    for op in 0..OPS {
        let mut case = Case::new(EVERY);
        let (now, qpn) = (case.pair.now, case.pair.qpns[1]);
        let attr = QpAttr { access: Some(Access::empty()), ..QpAttr::default() };
        case.pair.b().device.modify_qp(now, qpn, &attr).unwrap();
        let (op, sges) = reaching(&case, case.dst.remote(0)).swap_remove(op);
        case.invalid_request(op, &sges);
    }
}

#[test]
fn an_mr_of_another_pd_is_refused() {
    for op in 0..OPS {
        let mut case = Case::new(EVERY);
        let b = case.pair.b();
        let pd = b.device.alloc_pd().unwrap();
        let old = std::mem::replace(&mut b.pd, pd);
        case.dst = b.buffer(4096, EVERY, 0xee);
        b.pd = old;
        let (op, sges) = reaching(&case, case.dst.remote(0)).swap_remove(op);
        case.access_error(op, &sges);
    }
}

#[test]
fn an_unaligned_atomic_is_an_invalid_request() {
    for op in [3, 4, 5] {
        for offset in 1..8 {
            let mut case = Case::new(EVERY);
            let (op, sges) = reaching(&case, case.dst.remote(offset)).swap_remove(op);
            case.invalid_request(op, &sges);
        }
    }
}

/// The address says nothing of the memory: registered from the middle of a word on, or bound so and zero-based.
#[test]
fn an_atomic_on_memory_that_is_not_aligned_is_an_invalid_request() {
    for op in [3, 4, 5] {
        let mut case = Case::new(EVERY);
        let span = Span { region: case.dst.region, offset: 4, len: 64 };
        let b = case.pair.b();
        let attr = MrAttr { span, iova: 0x8000, access: EVERY };
        let rkey = b.device.reg_mr(b.pd, &attr, &b.mem).unwrap().rkey;
        let (op, sges) = reaching(&case, RemoteAddr { addr: 0x8000, rkey }).swap_remove(op);
        case.invalid_request(op, &sges);
    }
    for op in [3, 4, 5] {
        let mut case = Case::new(EVERY | Access::MW_BIND);
        let (qpn, pd) = (case.pair.qpns[1], case.pair.nodes[1].pd);
        let (mw, rkey) = case.pair.b().device.alloc_mw(pd, MwType::Type2).unwrap();
        let access = Access::REMOTE_ATOMIC | Access::REMOTE_WRITE | Access::ZERO_BASED;
        let bind = MwBind { mr: case.dst.mr.lkey, addr: case.dst.addr + 100, len: 64, access };
        case.pair.b().post(qpn, 1, SendOp::BindMw { mw, rkey, bind }, &[]);
        case.pair.run();
        assert_eq!(case.pair.b().sends()[0].status, WcStatus::Success);
        let (op, sges) = reaching(&case, RemoteAddr { addr: 8, rkey }).swap_remove(op);
        case.invalid_request(op, &sges);
    }
}

#[test]
fn a_zero_length_access_needs_no_key() {
    let mut case = Case::new(Access::empty());
    let to = RemoteAddr { addr: 1, rkey: Rkey(0xbad) };
    assert_eq!(case.pair.execute(SendOp::Write(to), &[]).status, WcStatus::Success);
    assert_eq!(case.pair.execute(SendOp::Read(to), &[]).status, WcStatus::Success);
    case.untouched();
}

#[test]
fn payloads_must_fit_their_opcode_and_the_path_mtu() {
    let full = [0u8; 1024];
    let long = [0u8; 1028];
    // First and middle are exactly the path MTU, last is not empty, only is no more.
    for (opcode, total, payload) in [
        (Opcode::RcWriteFirst, 2048, &full[..1020]),
        (Opcode::RcWriteFirst, 2048, &long[..]),
        (Opcode::RcWriteFirst, 2048, &full[..0]),
        (Opcode::RcWriteOnly, 1028, &long[..]),
        // Less, and more, than the RETH says.
        (Opcode::RcWriteOnly, 64, &full[..60]),
        (Opcode::RcWriteOnly, 64, &full[..68]),
        (Opcode::RcWriteFirst, 1024, &full[..]),
        (Opcode::RcWriteFirst, 1000, &full[..]),
        (Opcode::RcWriteFirst, 0, &full[..]),
        (Opcode::RcWriteOnly, 0, &full[..4]),
    ] {
        let mut case = Case::new(EVERY);
        case.naked_invalid(opcode, FIRST, case.reth(total), payload);
        case.untouched();
    }
    // ATOMIC WRITE is 8 bytes, and says so.
    for (total, len) in [(8, 4), (8, 12), (12, 8), (0, 0), (4, 4)] {
        let mut case = Case::new(EVERY);
        case.naked_invalid(Opcode::RcAtomicWrite, FIRST, case.reth(total), &full[..len]);
        case.untouched();
    }
    // More than 2^31 bytes.
    for opcode in [Opcode::RcReadRequest, Opcode::RcWriteFirst] {
        let mut case = Case::new(EVERY);
        let payload = if opcode == Opcode::RcReadRequest { &full[..0] } else { &full[..] };
        case.naked_invalid(opcode, FIRST, case.reth(0x8000_0001), payload);
        case.untouched();
    }
}

#[test]
fn a_later_packet_must_fit_what_is_left() {
    let payload = [0xee; 1024];
    for (opcode, len) in [
        (Opcode::RcWriteMiddle, 1020),
        (Opcode::RcWriteLast, 1024),
        (Opcode::RcWriteLast, 472),
        (Opcode::RcWriteLast, 0),
    ] {
        let mut case = Case::new(EVERY);
        case.inject(Opcode::RcWriteFirst, FIRST, case.reth(2500), &payload);
        assert_eq!(case.answers().len(), 1);
        case.pair.b().mem.writes = 0;
        case.naked_invalid(opcode, FIRST.next(), Headers::None, &payload[..len]);
        case.untouched();
    }
    // A middle packet where only 476 bytes are left.
    let mut case = Case::new(EVERY);
    case.inject(Opcode::RcWriteFirst, FIRST, case.reth(1500), &payload);
    assert_eq!(case.answers().len(), 1);
    case.pair.b().mem.writes = 0;
    case.naked_invalid(Opcode::RcWriteMiddle, FIRST.next(), Headers::None, &payload);
    case.untouched();
}

#[test]
fn opcodes_must_follow_each_other() {
    use Opcode as O;
    let payload = [0xee; 1024];
    let none = Headers::None;
    // Middle and last without a first.
    for opcode in [O::RcSendMiddle, O::RcSendLast, O::RcWriteMiddle, O::RcWriteLast] {
        let mut case = Case::new(EVERY);
        case.naked_invalid(opcode, FIRST, none, &payload);
        case.untouched();
    }
    // A new message, or another operation, where a WRITE must go on.
    for (opcode, headers) in [
        (O::RcWriteFirst, None),
        (O::RcWriteOnly, None),
        (O::RcSendMiddle, Some(none)),
        (O::RcSendLast, Some(none)),
        (O::RcSendOnly, Some(none)),
        (O::RcReadRequest, None),
    ] {
        let mut case = Case::new(EVERY);
        case.inject(O::RcWriteFirst, FIRST, case.reth(4000), &payload);
        assert_eq!(case.answers().len(), 1);
        case.pair.b().mem.writes = 0;
        let headers = headers.unwrap_or(case.reth(1024));
        let len = if opcode == O::RcReadRequest { 0 } else { 1024 };
        case.naked_invalid(opcode, FIRST.next(), headers, &payload[..len]);
        case.untouched();
    }
    // A WRITE where a SEND must go on: its receive WQE completes too, and so there is no event.
    let mut case = Case::new(EVERY);
    let qpn = case.pair.qpns[1];
    let sge = case.dst.sge(0, 4096);
    case.pair.b().post_recv(qpn, 5, &[sge]);
    case.pair.b().post_recv(qpn, 6, &[sge]);
    case.inject(O::RcSendFirst, FIRST, none, &payload);
    case.inject(O::RcWriteMiddle, FIRST.next(), none, &payload);
    assert_eq!(case.answers(), [(FIRST.next(), Aeth::Nak(NakCode::InvalidRequest))]);
    let recvs: Vec<_> = case.pair.b().recvs().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(recvs, [(5, WcStatus::RemInvReqErr), (6, WcStatus::WrFlushErr)]);
    assert_eq!(case.pair.b().events(), []);
}

#[test]
fn a_gap_is_naked_once_and_a_far_psn_not_executed() {
    let mut case = Case::new(EVERY);
    let reth = case.reth(8);
    for ahead in [1, 2, 100, 0x7f_ffff] {
        case.inject(Opcode::RcWriteOnly, FIRST.add(ahead), reth, &[1; 8]);
    }
    assert_eq!(case.answers(), [(FIRST, Aeth::Nak(NakCode::PsnSequenceError))]);
    assert_eq!(case.dropped(DropReason::OutOfSequence), 4);
    assert_eq!(case.pair.b().device.stats().rx_gaps, 1);
    case.untouched();
    // The missing one arrives: the gap is closed, and the next gap is news.
    case.inject(Opcode::RcWriteOnly, FIRST, reth, &[0xee; 8]);
    case.inject(Opcode::RcWriteOnly, FIRST.add(5), reth, &[1; 8]);
    assert_eq!(case.answers(), [(FIRST.next(), Aeth::Nak(NakCode::PsnSequenceError))]);
}

#[test]
fn a_duplicate_write_is_acknowledged_and_not_executed() {
    let mut case = Case::new(EVERY);
    let reth = case.reth(8);
    case.inject(Opcode::RcWriteOnly, FIRST, reth, &[0xee; 8]);
    case.inject(Opcode::RcWriteOnly, FIRST.next(), reth, &[0xee; 8]);
    assert_eq!(case.answers().len(), 1, "two ACKs are one");
    case.pair.b().mem.writes = 0;
    for back in [1, 2, 3, 1000] {
        case.inject(Opcode::RcWriteOnly, FIRST.add(2).sub(back), reth, &[1; 8]);
        let answers = case.answers();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0, FIRST.next(), "the newest executed request is acknowledged");
        assert!(matches!(answers[0].1, Aeth::Ack(_)));
    }
    case.untouched();
    assert_eq!(case.pair.nodes[1].device.stats().rx_duplicates, 4);
}

#[test]
fn a_repeated_message_is_acknowledged_at_its_end_or_where_the_peer_asks() {
    for ops in [
        [Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLast],
        [Opcode::RcSendFirst, Opcode::RcSendMiddle, Opcode::RcSendLast],
    ] {
        let mut case = Case::new(EVERY);
        let qpn = case.pair.qpns[1];
        let room = [case.dst.sge(0, 4096)];
        case.pair.b().post_recv(qpn, 1, &room);
        let first = if ops[0] == Opcode::RcWriteFirst { case.reth(2056) } else { Headers::None };
        let send = |case: &mut Case, at: usize, ack_req: bool| {
            let (headers, len) = [(first, 1024), (Headers::None, 1024), (Headers::None, 8)][at];
            let bth = bth::Repr { ack_req, ..bth::Repr::new(ops[at], qpn, FIRST.add(at as u32)) };
            case.pair.inject(1, &Repr { bth, headers }, &vec![0xee; len]);
            case.answers()
        };
        for at in 0..3 {
            send(&mut case, at, at == 2);
        }
        let all = |answers: &[(Psn, Aeth)]| matches!(answers, [(psn, Aeth::Ack(_))] if *psn == FIRST.add(2));
        // Soft-RoCE never sends again on a QP whose message is acknowledged while it is in the middle of repeating it.
        assert_eq!(send(&mut case, 0, false), []);
        assert_eq!(send(&mut case, 1, false), []);
        assert!(all(&send(&mut case, 2, false)), "{ops:?}");
        assert!(all(&send(&mut case, 1, true)), "{ops:?}: it was asked for");
        assert_eq!(case.pair.nodes[1].device.stats().rx_duplicates, 4);
        assert_eq!(case.pair.b().recvs().len(), usize::from(ops[0] == Opcode::RcSendFirst));
    }
}

#[test]
fn a_duplicate_atomic_is_answered_from_memory() {
    let mut case = Case::new(EVERY);
    let mr = case.dst;
    let eth = atomic_eth::Repr { va: mr.addr + 8, rkey: mr.mr.rkey, swap_or_add: 1, compare: 0 };
    case.inject(Opcode::RcFetchAdd, FIRST, Headers::AtomicEth(eth), &[]);
    let original = |case: &Case| {
        case.pair.log.iter().rev().find_map(|(_, repr)| match repr.headers {
            Headers::AethAtomicAck(_, ack) => Some(ack.original),
            _ => None,
        })
    };
    assert_eq!(case.answers().len(), 1);
    assert_eq!(original(&case), Some(from_native([0xee; 8])));
    case.inject(Opcode::RcFetchAdd, FIRST, Headers::AtomicEth(eth), &[]);
    assert_eq!(case.answers().len(), 1);
    assert_eq!(original(&case), Some(from_native([0xee; 8])), "the result of the first time");
    assert_eq!(case.pair.b().mem.writes, 1, "executed once");
    // Not the request that is remembered at that PSN: no answer.
    let other = atomic_eth::Repr { swap_or_add: 2, ..eth };
    case.inject(Opcode::RcFetchAdd, FIRST, Headers::AtomicEth(other), &[]);
    case.inject(Opcode::RcCompareSwap, FIRST, Headers::AtomicEth(eth), &[]);
    assert_eq!(case.answers(), []);
    assert_eq!(case.dropped(DropReason::Stale), 2);
    assert_eq!(case.pair.b().mem.writes, 1);
}

#[test]
fn a_duplicate_read_is_executed_again_within_its_old_bounds_only() {
    let mut case = Case::new(EVERY);
    let (addr, rkey) = (case.dst.addr, case.dst.mr.rkey);
    let request =
        |skip: u32, len: u32| Headers::Reth(reth::Repr { va: addr + u64::from(skip), rkey, dma_len: len });
    case.inject(Opcode::RcReadRequest, FIRST, request(0, 3000), &[]);
    case.pair.collect();
    assert_eq!(case.pair.log.len(), 3);
    // The last two packets again, with fresh bytes.
    case.pair.log.clear();
    case.inject(Opcode::RcReadRequest, FIRST.next(), request(1024, 1976), &[]);
    case.pair.collect();
    let opcodes: Vec<_> = case.pair.log.iter().map(|(_, repr)| (repr.bth.opcode, repr.bth.psn)).collect();
    assert_eq!(
        opcodes,
        [(Opcode::RcReadResponseFirst, FIRST.add(1)), (Opcode::RcReadResponseLast, FIRST.add(2))]
    );
    // A piece from the middle.
    case.pair.log.clear();
    case.inject(Opcode::RcReadRequest, FIRST.next(), request(1024, 1024), &[]);
    case.pair.collect();
    let opcodes: Vec<_> = case.pair.log.iter().map(|(_, repr)| (repr.bth.opcode, repr.bth.psn)).collect();
    assert_eq!(opcodes, [(Opcode::RcReadResponseOnly, FIRST.next())]);
    // Another range, another length, another key, or a PSN that was no READ.
    for headers in [
        request(1020, 1976),
        request(1024, 1977),
        request(1024, 2000),
        Headers::Reth(reth::Repr { va: addr + 1024, rkey: Rkey(rkey.0 ^ 1), dma_len: 1976 }),
    ] {
        case.inject(Opcode::RcReadRequest, FIRST.next(), headers, &[]);
        assert_eq!(case.answers(), []);
    }
    case.inject(Opcode::RcReadRequest, FIRST.sub(1), request(0, 8), &[]);
    assert_eq!(case.answers(), []);
    assert_eq!(case.dropped(DropReason::Stale), 5);
    case.untouched();
}

#[test]
fn a_duplicate_flush_is_acknowledged_and_not_repeated() {
    let mut case = Case::new(EVERY);
    let feth = feth::Repr {
        placement: feth::PlacementType::PERSISTENCE,
        selectivity: feth::SelectivityLevel::Range,
    };
    let reth = reth::Repr { va: case.dst.addr, rkey: case.dst.mr.rkey, dma_len: 64 };
    for _ in 0..3 {
        case.inject(Opcode::RcFlush, FIRST, Headers::FethReth(feth, reth), &[]);
        assert_eq!(case.answers().len(), 1);
    }
    assert_eq!(case.pair.b().mem.flushes.len(), 1);
}

#[test]
fn a_flush_of_no_placement_or_reserved_selectivity_is_an_invalid_request() {
    use feth::{PlacementType as P, SelectivityLevel as S};
    for (placement, selectivity) in
        [(P::empty(), S::Range), (P::PERSISTENCE, S::Reserved2), (P::GLOBAL_VISIBILITY, S::Reserved3)]
    {
        let mut case = Case::new(EVERY);
        let feth = feth::Repr { placement, selectivity };
        let reth = reth::Repr { va: case.dst.addr, rkey: case.dst.mr.rkey, dma_len: 64 };
        case.naked_invalid(Opcode::RcFlush, FIRST, Headers::FethReth(feth, reth), &[]);
        case.untouched();
    }
}

#[test]
fn more_reads_than_were_promised_are_an_invalid_request() {
    let mut case = Case::new(EVERY);
    let eight = Headers::Reth(reth::Repr { va: case.dst.addr, rkey: case.dst.mr.rkey, dma_len: 8 });
    for n in 0..4 {
        case.inject(Opcode::RcReadRequest, FIRST.add(n), eight, &[]);
    }
    case.inject(Opcode::RcReadRequest, FIRST.add(4), eight, &[]);
    let answers = case.answers();
    assert_eq!(answers.len(), 5, "what was promised is answered");
    assert_eq!(answers[4], (FIRST.add(4), Aeth::Nak(NakCode::InvalidRequest)));
}

#[test]
fn a_message_longer_than_the_receive_is_an_invalid_request() {
    for (room, len) in [(100u32, 101u32), (1500, 1501), (1024, 3000), (0, 1)] {
        let mut case = Case::new(EVERY);
        let qpn = case.pair.qpns[1];
        let sge = case.dst.sge(0, room);
        case.pair.b().post_recv(qpn, 1, &[sge]);
        case.pair.b().post_recv(qpn, 2, &[sge]);
        let wc = case.pair.execute(SendOp::Send, &[case.src.sge(0, len)]);
        assert_eq!(wc.status, WcStatus::RemInvReqErr);
        let recvs: Vec<_> = case.pair.b().recvs().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(recvs, [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
        let bytes = case.pair.b().bytes(&case.dst).to_vec();
        assert!(bytes[room as usize..].iter().all(|&byte| byte == 0xee));
    }
}

#[test]
fn a_receive_buffer_that_its_key_does_not_reach_is_the_consumers_own_error() {
    for kind in 0..4 {
        let mut case = Case::new(EVERY);
        let qpn = case.pair.qpns[1];
        let read_only = case.pair.b().buffer(64, Access::REMOTE_READ, 0xee);
        let good = case.dst.sge(0, 16);
        let bad = match kind {
            0 => Sge { lkey: BAD_LKEY, ..good },
            1 => read_only.sge(0, 64),
            2 => case.dst.sge(4090, 16),
            _ => Sge { addr: 3, ..good },
        };
        case.pair.b().post_recv(qpn, 1, &[good, bad]);
        let wc = case.pair.execute(SendOp::Send, &[case.src.sge(0, 30)]);
        assert_eq!(wc.status, WcStatus::RemOpErr);
        assert_eq!(case.pair.b().recvs()[0].status, WcStatus::LocProtErr);
        case.untouched();
    }
}

#[test]
fn the_requesters_own_wrong_buffers_never_leave() {
    for op in [0, 2, 3, 5] {
        for kind in 0..3 {
            let mut case = Case::new(EVERY);
            let read_only = case.pair.a().buffer(64, Access::empty(), 0x11);
            let bad = match kind {
                0 => Sge { lkey: BAD_LKEY, ..case.src.sge(0, 8) },
                1 => case.src.sge(8190, 8),
                _ if op == 0 || op == 5 => continue,
                _ => read_only.sge(0, 8),
            };
            let (op, _) = reaching(&case, case.dst.remote(0)).swap_remove(op);
            let wc = case.pair.execute(op, &[bad]);
            assert_eq!(wc.status, WcStatus::LocProtErr);
            assert!(case.pair.log.is_empty(), "nothing was sent");
            case.untouched();
        }
    }
}

#[test]
fn what_is_not_for_this_qp_is_dropped() {
    let mut case = Case::new(EVERY);
    let header = |case: &Case| Repr {
        bth: bth::Repr::new(Opcode::RcWriteOnly, case.pair.qpns[1], FIRST),
        headers: case.reth(8),
    };
    let mut repr = header(&case);
    repr.bth.dest_qp = Qpn::new(0x4321);
    case.pair.inject(1, &repr, &[1; 8]);
    assert_eq!(case.dropped(DropReason::NoSuchQp), 1);
    let mut repr = header(&case);
    repr.bth.pkey = remanence_wire::Pkey(0x7ffe);
    case.pair.inject(1, &repr, &[1; 8]);
    assert_eq!(case.dropped(DropReason::BadPkey), 1);
    let mut repr = header(&case);
    repr.bth.opcode = Opcode::UcWriteOnly;
    case.pair.inject(1, &repr, &[1; 8]);
    assert_eq!(case.dropped(DropReason::WrongState), 1);
    // From another address, with a right ICRC for it.
    let mut rx = case.pair.rx_meta(1);
    rx.src = "10.0.0.9".parse().unwrap();
    let repr = header(&case);
    let mut buf = vec![0; 128];
    let header_len = repr.emit(&mut buf);
    let flow = remanence_wire::icrc::Flow::new(rx.src, rx.dst, rx.src_port, ROCE_PORT);
    let len = remanence_wire::packet::finish(&mut buf, header_len, 8, &flow, 0);
    case.pair.inject_raw(1, &rx, &buf[..len]);
    assert_eq!(case.dropped(DropReason::WrongAddress), 1);
    // The same bytes with the peer's address have a wrong ICRC.
    let rx = case.pair.rx_meta(1);
    case.pair.inject_raw(1, &rx, &buf[..len]);
    assert_eq!(case.dropped(DropReason::BadIcrc), 1);
    case.pair.inject_raw(1, &rx, &buf[..11]);
    case.pair.inject_raw(1, &rx, &[]);
    assert_eq!(case.dropped(DropReason::Malformed), 2);
    assert_eq!(case.answers(), []);
    case.untouched();
    let qpn = case.pair.qpns[1];
    assert_eq!(case.pair.b().state(qpn), QpState::Rts, "and nothing has happened to the QP");
}

#[test]
fn ghost_responses_are_dropped() {
    use remanence_wire::aeth;
    let mut case = Case::new(EVERY);
    let qpn = case.pair.qpns[0];
    for aeth in [
        Aeth::Ack(aeth::Credits::UNLIMITED),
        Aeth::Nak(NakCode::RemoteAccessError),
        Aeth::RnrNak(aeth::RnrTimer::new(1)),
    ] {
        for psn in [FIRST, FIRST.sub(1), FIRST.add(5)] {
            let headers = Headers::Aeth(aeth::Repr { aeth, msn: remanence_wire::Msn::new(0) });
            for opcode in [Opcode::RcAck, Opcode::RcReadResponseOnly] {
                case.pair.inject(0, &Repr { bth: bth::Repr::new(opcode, qpn, psn), headers }, &[]);
            }
        }
    }
    assert_eq!(case.pair.a().sends(), []);
    assert_eq!(case.pair.a().state(qpn), QpState::Rts);
    assert_eq!(case.pair.a().device.stats().dropped_for(DropReason::Stale), 18);
}

#[test]
fn a_response_of_the_wrong_kind_or_size_is_a_bad_response() {
    use remanence_wire::aeth;
    let ack = Headers::Aeth(aeth::Repr {
        aeth: Aeth::Ack(aeth::Credits::UNLIMITED),
        msn: remanence_wire::Msn::new(1),
    });
    for (op, opcode, headers, len) in [
        (2, Opcode::RcReadResponseOnly, ack, 4),
        (2, Opcode::RcReadResponseOnly, ack, 12),
        (2, Opcode::RcReadResponseFirst, ack, 8),
        (3, Opcode::RcReadResponseOnly, ack, 8),
        (5, Opcode::RcReadResponseOnly, ack, 8),
        (6, Opcode::RcReadResponseFirst, ack, 0),
        (0, Opcode::RcReadResponseOnly, ack, 8),
    ] {
        let mut case = Case::new(EVERY);
        let (op, sges) = reaching(&case, case.dst.remote(0)).swap_remove(op);
        case.pair.hook = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Deliver }));
        case.pair.post(1, op, &sges);
        case.pair.collect();
        let repr = Repr { bth: bth::Repr::new(opcode, case.pair.qpns[0], FIRST), headers };
        case.pair.inject(0, &repr, &[9; 12][..len]);
        let statuses: Vec<_> = case.pair.a().sends().iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, [WcStatus::BadRespErr], "{op:?}");
        assert!(case.pair.a().mem.regions.iter().flatten().all(|&byte| byte == 0x11));
    }
}

#[test]
fn a_lost_nak_is_repeated_and_a_refused_read_does_not_take_the_ones_before_it_along() {
    let mut case = Case::new(EVERY);
    let mut naks = 0;
    case.pair.hook = Some(Box::new(move |_, packet| {
        let nak = packet.aeth().is_some_and(|aeth| matches!(aeth.aeth, Aeth::Nak(_)));
        naks += u32::from(nak);
        if nak && naks < 3 { Fate::Drop } else { Fate::Deliver }
    }));
    let wrong = RemoteAddr { rkey: Rkey(1), ..case.dst.remote(0) };
    let (good, bad) = (case.src.sge(0, 64), case.src.sge(64, 64));
    case.pair.post(1, SendOp::Read(case.dst.remote(0)), &[good]);
    case.pair.post(2, SendOp::Read(wrong), &[bad]);
    case.pair.post(3, SendOp::Read(case.dst.remote(0)), &[bad]);
    case.pair.run();
    let wcs: Vec<_> = case.pair.a().sends().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(wcs, [(1, WcStatus::Success), (2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)]);
    assert_eq!(case.pair.a().bytes(&case.src)[..64], [0xee; 64]);
    assert_eq!(case.pair.a().bytes(&case.src)[64..128], [0x11; 64]);
}

#[test]
fn an_mr_deregistered_under_traffic_stops_it_between_two_packets() {
    let mut case = Case::new(EVERY);
    let payload = [0x22; 1024];
    case.inject(Opcode::RcWriteFirst, FIRST, case.reth(3000), &payload);
    assert_eq!(case.answers().len(), 1);
    let handle = case.dst.mr.handle;
    case.pair.b().device.dereg_mr(handle).unwrap();
    case.inject(Opcode::RcWriteMiddle, FIRST.next(), Headers::None, &payload);
    assert_eq!(case.answers(), [(FIRST.next(), Aeth::Nak(NakCode::RemoteAccessError))]);
    assert_eq!(case.pair.b().mem.writes, 1);
    // And a READ that is being streamed.
    let mut case = Case::new(EVERY);
    case.pair.max_segments = 1;
    case.inject(Opcode::RcReadRequest, FIRST, case.reth(3000), &[]);
    let mut buf = vec![0; 8192];
    let (now, handle) = (case.pair.now, case.dst.mr.handle);
    let b = case.pair.b();
    assert!(b.device.poll_transmit(now, &mut buf, 1, &mut b.mem).is_some());
    b.device.dereg_mr(handle).unwrap();
    assert_eq!(case.answers(), [(FIRST.next(), Aeth::Nak(NakCode::RemoteAccessError))]);
}

#[test]
fn every_path_mtu_refuses_a_packet_of_the_next_larger_one() {
    for mtu in [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048] {
        let mut pair = Pair::connected_with(Config::default(), mtu);
        let dst = pair.b().buffer(8192, REMOTE, 0xee);
        let reth = reth::Repr { va: dst.addr, rkey: dst.mr.rkey, dma_len: 8192 };
        let bth = bth::Repr::new(Opcode::RcWriteFirst, pair.qpns[1], FIRST);
        let payload = vec![0; mtu.bytes() * 2];
        pair.inject(1, &Repr { bth, headers: Headers::Reth(reth) }, &payload);
        let qpn = pair.qpns[1];
        assert_eq!(pair.b().state(qpn), QpState::Err);
        assert_eq!(pair.b().mem.writes, 0);
    }
}
