//! Every operation does what it says, on a wire that loses nothing and on one that does.

use remanence_wire::{Mtu, Opcode};

use super::pair::*;
use crate::*;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

#[test]
fn write_of_every_length_lands_and_completes() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(100_000, Access::empty(), 0);
    let dst = pair.b().buffer(100_000, REMOTE, 0xee);
    let data = pattern(100_000, 3);
    pair.a().bytes_mut(&src).copy_from_slice(&data);
    for len in [0u32, 1, 3, 64, 1023, 1024, 1025, 2048, 65_536, 99_999] {
        pair.b().bytes_mut(&dst).fill(0xee);
        let wc = pair.execute(SendOp::Write(dst.remote(1)), &[src.sge(0, len)]);
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::RdmaWrite));
        let bytes = pair.b().bytes(&dst).to_vec();
        assert_eq!(bytes[0], 0xee);
        assert_eq!(bytes[1..1 + len as usize], data[..len as usize]);
        assert!(bytes[1 + len as usize..].iter().all(|&b| b == 0xee));
    }
}

#[test]
fn read_of_every_length_arrives() {
    let mut pair = Pair::connected();
    let sink = pair.a().buffer(600_000, Access::LOCAL_WRITE, 0xee);
    let src = pair.b().buffer(600_000, REMOTE, 0);
    let data = pattern(600_000, 5);
    pair.b().bytes_mut(&src).copy_from_slice(&data);
    for len in [0u32, 1, 8, 1024, 1025, 65_536, 599_990] {
        pair.a().bytes_mut(&sink).fill(0xee);
        let wc = pair.execute(SendOp::Read(src.remote(7)), &[sink.sge(2, len)]);
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::RdmaRead, len));
        let bytes = pair.a().bytes(&sink).to_vec();
        assert_eq!(bytes[2..2 + len as usize], data[7..7 + len as usize]);
        assert!(bytes[..2].iter().chain(&bytes[2 + len as usize..]).all(|&b| b == 0xee));
    }
}

#[test]
fn sends_fill_receives_in_order() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(10_000, Access::empty(), 0);
    let data = pattern(10_000, 9);
    pair.a().bytes_mut(&src).copy_from_slice(&data);
    let dst = pair.b().buffer(30_000, Access::LOCAL_WRITE, 0xee);
    let qpns = pair.qpns;
    pair.b().post_recv(qpns[1], 1, &[dst.sge(0, 10), dst.sge(100, 2000), dst.sge(5000, 5000)]);
    pair.b().post_recv(qpns[1], 2, &[dst.sge(20_000, 1000)]);
    pair.b().post_recv(qpns[1], 3, &[]);
    pair.post(11, SendOp::SendImm(0xfeed_f00d), &[src.sge(0, 7), src.sge(7, 0), src.sge(7, 4993)]);
    pair.a().post_flags(qpns[0], 12, SendOp::Send, &[src.sge(1, 50)], SendFlags::SOLICITED);
    pair.post(13, SendOp::WriteImm(RemoteAddr { addr: 0, rkey: remanence_wire::Rkey(0) }, 5), &[]);
    pair.run();
    let sends: Vec<u64> = pair.a().sends().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(sends, [11, 13], "the unsignalled one is silent");
    let recvs = pair.b().recvs();
    assert_eq!(
        recvs.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(),
        [(1, 5000), (2, 50), (3, 0)]
    );
    assert_eq!(recvs.iter().map(|wc| wc.imm).collect::<Vec<_>>(), [Some(0xfeed_f00d), None, Some(5)]);
    assert_eq!(recvs.iter().map(|wc| wc.solicited).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(recvs[2].opcode, WcOpcode::RecvRdmaWithImm);
    let bytes = pair.b().bytes(&dst);
    assert_eq!(bytes[..10], data[..10]);
    assert_eq!(bytes[100..2100], data[10..2010]);
    assert_eq!(bytes[5000..5000 + 2990], data[2010..5000]);
    assert_eq!(bytes[20_000..20_050], data[1..51]);
    assert!(bytes[7990..20_000].iter().all(|&b| b == 0xee));
}

#[test]
fn atomics_return_what_was_there() {
    let mut pair = Pair::connected();
    let old = pair.a().buffer(64, Access::LOCAL_WRITE, 0xee);
    let word = pair.b().buffer(64, REMOTE, 0);
    let read = |pair: &mut Pair| from_native(pair.nodes[0].bytes(&old)[8..16].try_into().unwrap());
    let wc = pair.execute(SendOp::FetchAdd { remote: word.remote(16), add: 41 }, &[old.sge(8, 8)]);
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::FetchAdd, 8));
    assert_eq!(read(&mut pair), 0);
    let cas = |compare, swap| SendOp::CompareSwap { remote: word.remote(16), compare, swap };
    assert_eq!(pair.execute(cas(40, 1), &[old.sge(8, 8)]).status, WcStatus::Success);
    assert_eq!(read(&mut pair), 41);
    assert_eq!(pair.execute(cas(41, 7), &[old.sge(8, 8)]).opcode, WcOpcode::CompSwap);
    assert_eq!(read(&mut pair), 41);
    assert_eq!(from_native(pair.b().bytes(&word)[16..24].try_into().unwrap()), 7);
    assert!(pair.a().bytes(&old)[16..].iter().all(|&b| b == 0xee));
}

#[test]
fn flush_and_atomic_write_are_answered_as_soft_roce_does() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(64, Access::empty(), 0x5a);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let wc = pair.execute(SendOp::AtomicWrite(dst.remote(8)), &[src.sge(0, 8)]);
    assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::AtomicWrite));
    assert_eq!(pair.b().bytes(&dst)[8..16], [0x5a; 8]);
    let flush =
        |placement, selectivity| SendOp::Flush { remote: dst.remote(100), len: 50, placement, selectivity };
    let wc = pair.execute(flush(Placement::Persistence, Selectivity::Range), &[]);
    assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Flush));
    pair.execute(flush(Placement::GlobalVisibility, Selectivity::MemoryRegion), &[]);
    let flushes: Vec<_> =
        pair.b().mem.flushes.iter().map(|(_, span, placement)| (*span, *placement)).collect();
    let span = |offset, len| Span { region: dst.region, offset, len };
    assert_eq!(
        flushes,
        [(span(164, 50), Placement::Persistence), (span(64, 4096), Placement::GlobalVisibility)]
    );
    assert_eq!(pair.sent(1, Opcode::RcReadResponseOnly), 3);
    assert_eq!(pair.sent(1, Opcode::RcAck), 0);
}

#[test]
fn a_flush_that_is_sent_again_tries_the_icrc_of_linux_and_of_the_standard_in_turn() {
    use std::cell::RefCell;
    use std::rc::Rc;
    let mut pair = Pair::connected();
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    // A peer that drops the first two.
    pair.hook = Some(Box::new(move |_, packet| {
        if packet.opcode() != Opcode::RcFlush {
            return Fate::Deliver;
        }
        log.borrow_mut().push(packet.icrc());
        if log.borrow().len() <= 2 { Fate::Drop } else { Fate::Deliver }
    }));
    let flush = |offset| SendOp::Flush {
        remote: dst.remote(offset),
        len: 50,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    assert_eq!(pair.execute(flush(0), &[]).status, WcStatus::Success);
    {
        let icrcs = seen.borrow();
        assert_eq!(icrcs.len(), 3);
        assert_eq!(icrcs[0], icrcs[2], "the standard's again");
        assert_ne!(icrcs[0], icrcs[1], "and the other between");
    }
    assert_eq!(pair.b().mem.flushes.len(), 1, "either is understood, once");
}

/// A peer that drops the standard's ICRC, and loses some of the others, gets both FLUSHes of a row in the kind that it
/// takes, however often they are sent again; and once one was answered at once, nothing else is tried.
#[test]
fn flushes_of_a_row_are_sent_again_alike_and_an_answer_says_which_kind_the_peer_takes() {
    use std::cell::RefCell;
    use std::rc::Rc;
    for lost in 0..4 {
        let mut pair = Pair::connected();
        let dst = pair.b().buffer(4096, REMOTE, 0);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&seen);
        let mut others = 0;
        pair.hook = Some(Box::new(move |_, packet| {
            if packet.opcode() != Opcode::RcFlush {
                return Fate::Deliver;
            }
            let this = (packet.bth().psn, packet.icrc());
            let mut log = log.borrow_mut();
            log.push(this);
            // The first two are in the standard's.
            if log[..log.len().min(2)].contains(&this) {
                return Fate::Drop;
            }
            others += 1;
            // The first of the row, and later every other one.
            if others <= lost || (others > 8 && others % 2 == 0) { Fate::Drop } else { Fate::Deliver }
        }));
        let flush = |offset| SendOp::Flush {
            remote: dst.remote(offset),
            len: 50,
            placement: Placement::Persistence,
            selectivity: Selectivity::Range,
        };
        pair.post(0, flush(0), &[]);
        pair.post(1, flush(64), &[]);
        pair.run();
        assert!(pair.a().sends().iter().all(|wc| wc.status == WcStatus::Success), "{lost} lost");
        let row = seen.borrow().len();
        for n in 2..22 {
            assert_eq!(pair.execute(flush(64 * n), &[]).status, WcStatus::Success);
        }
        let mut later = seen.borrow()[row..].to_vec();
        assert!(later.len() > 28, "every other one was lost");
        later.dedup();
        assert_eq!(later.len(), 20, "a FLUSH to a known peer is sent again as it was");
    }
}

#[test]
fn a_terrible_wire_changes_nothing_but_time() {
    for seed in 0..40 {
        let mtu = Mtu::ALL[seed as usize % 5];
        let mut pair = Pair::connected_with(Config::default(), mtu);
        pair.weather(seed, 10, 5, 10, 3);
        let src = pair.a().buffer(300_000, Access::LOCAL_WRITE, 0);
        let dst = pair.b().buffer(300_000, REMOTE, 0);
        let sink = pair.a().buffer(300_000, Access::LOCAL_WRITE, 0);
        let data = pattern(300_000, seed as u8);
        pair.a().bytes_mut(&src).copy_from_slice(&data);
        let qpns = pair.qpns;
        for n in 0..10u32 {
            pair.b().post_recv(qpns[1], n.into(), &[dst.sge(200_000 + u64::from(n) * 5000, 5000)]);
        }
        for n in 0..10u64 {
            let at = n * 20_000;
            pair.post(n * 10, SendOp::Write(dst.remote(at)), &[src.sge(at, 20_000)]);
            pair.post(n * 10 + 1, SendOp::Send, &[src.sge(200_000 + n * 5000, 5000)]);
            pair.post(
                n * 10 + 2,
                SendOp::FetchAdd { remote: dst.remote(299_000), add: 1 },
                &[sink.sge(299_000, 8)],
            );
            let flush = SendOp::Flush {
                remote: dst.remote(at),
                len: 20_000,
                placement: Placement::Persistence,
                selectivity: Selectivity::Range,
            };
            pair.post(n * 10 + 3, flush, &[]);
            pair.post(n * 10 + 4, SendOp::Read(dst.remote(at)), &[sink.sge(at, 20_000)]);
        }
        pair.run();
        let wcs = pair.a().sends();
        let ids: Vec<u64> = (0..10).flat_map(|n| (0..5).map(move |op| n * 10 + op)).collect();
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "seed {seed}: {wcs:?}");
        assert!(wcs.iter().map(|wc| wc.wr_id).eq(ids), "seed {seed}");
        assert!(pair.b().recvs().iter().map(|wc| wc.wr_id).eq(0..10));
        assert_eq!(pair.b().bytes(&dst)[..250_000], data[..250_000]);
        assert_eq!(pair.a().bytes(&sink)[..200_000], data[..200_000]);
        assert_eq!(from_native(pair.b().bytes(&dst)[299_000..299_008].try_into().unwrap()), 10);
        assert!(pair.a().device.stats().retransmits > 0);
    }
}
