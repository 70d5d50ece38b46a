//! A copy is the request with other addresses, numbers and keys, and nothing else; its ICRC is that of a whole computation.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use remanence_rnic::Instant;
use remanence_switch::{Endpoint, Spec, Switch};
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Opcode, Psn, Qpn, Rkey, bth, feth, icrc, imm_dt, ip, reth};

use crate::common::{PORT, Path, Rig, SWITCH, host, packet, see, spec};

/// Every request that can be scattered, with the headers that it has for this range.
fn requests(range: reth::Repr) -> Vec<(Opcode, Headers)> {
    let imm = imm_dt::Repr { imm: 0xfeed_f00d };
    vec![
        (Opcode::RcWriteOnly, Headers::Reth(range)),
        (Opcode::RcWriteOnlyImm, Headers::RethImm(range, imm)),
        (Opcode::RcWriteFirst, Headers::Reth(range)),
        (Opcode::RcWriteMiddle, Headers::None),
        (Opcode::RcWriteLast, Headers::None),
        (Opcode::RcWriteLastImm, Headers::Imm(imm)),
        (Opcode::RcAtomicWrite, Headers::Reth(range)),
        (Opcode::RcFlush, Headers::FethReth(feth::Repr::parse(&[0, 0, 0, 2]), range)),
        (Opcode::RcReadRequest, Headers::Reth(range)),
    ]
}

#[test]
fn every_request_reaches_every_replica_as_its_own_at_every_length() {
    let mut rig = Rig::usual();
    for len in 0..=4096 {
        // All lengths for WRITEs of one packet, some for the others.
        let payload: Vec<u8> = (0..len).map(|at| (at * 31 + 7) as u8).collect();
        let all = requests(rig.range(24, len as u32));
        for (at, (opcode, headers)) in all.into_iter().enumerate() {
            if at > 1 && len > 16 && len % 509 != 0 && len != 4096 || !fits(opcode, len) {
                continue;
            }
            let request = rig.request(opcode, 0, headers, &payload);
            let copies = rig.give(&request);
            for (to, copy) in copies.iter().enumerate().take(3) {
                let (_, headers) = requests(rig.range_at(to, 24, len as u32))[at];
                assert_eq!(*copy, rig.copy(to, opcode, 0, headers, &payload), "{opcode} of {len} to {to}");
            }
            assert_eq!(copies.len(), 3, "{opcode} of {len}");
        }
    }
}

/// Whether a packet may have such a payload.
fn fits(opcode: Opcode, len: usize) -> bool {
    match opcode {
        Opcode::RcAtomicWrite => len == 8,
        Opcode::RcFlush | Opcode::RcReadRequest => len == 0,
        _ => true,
    }
}

#[test]
fn damage_stays_damage() {
    let mut rig = Rig::usual();
    let request = rig.request(Opcode::RcWriteOnly, 0, Headers::Reth(rig.range(0, 64)), &[3; 64]);
    // Any bit that a copy takes over: the length in the RETH, the payload, the ICRC.
    for bit in (52 * 8..request.len() * 8).step_by(5) {
        let mut damaged = request.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let copies = rig.give(&damaged);
        assert_eq!(copies.len(), 3);
        for copy in copies {
            let datagram = ip::Datagram::parse(&copy).unwrap();
            assert!(icrc::check(&datagram.flow(), datagram.ip_id(), datagram.payload).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn what_is_beyond_the_group_stays_beyond_and_a_wrong_key_stays_wrong() {
    let mut rig = Rig::usual();
    let beyond =
        reth::Repr { va: rig.spec.va.wrapping_sub(8), rkey: Rkey(rig.spec.rkey.0 ^ 0x40), dma_len: 8 };
    let request = rig.request(Opcode::RcWriteOnly, 0, Headers::Reth(beyond), &[3; 8]);
    for (copy, replica) in rig.give(&request).iter().zip(rig.spec.replicas.clone()) {
        let Headers::Reth(reth) = see(copy).repr.headers else { panic!("a RETH") };
        assert_eq!(reth.va, replica.va - 8);
        assert_eq!(reth.rkey, Rkey(replica.rkey.0 ^ 0x40));
    }
}

#[test]
fn a_flush_has_the_form_that_its_replica_takes() {
    let mut spec = spec(2, 1, 1);
    spec.replicas[1].linux_flush = true;
    let mut rig = Rig::new(spec);
    let headers = |range| Headers::FethReth(feth::Repr::parse(&[0, 0, 0, 2]), range);
    let standard = rig.request(Opcode::RcFlush, 0, headers(rig.range(0, 64)), &[]);
    let mut linux = standard.clone();
    reseal_as_linux(&mut linux);
    let for_a = rig.copy(0, Opcode::RcFlush, 0, headers(rig.range_at(0, 0, 64)), &[]);
    let mut for_b = rig.copy(1, Opcode::RcFlush, 0, headers(rig.range_at(1, 0, 64)), &[]);
    reseal_as_linux(&mut for_b);
    assert_eq!(rig.give(&standard), [for_a.clone(), for_b.clone()]);
    assert_eq!(rig.give(&linux), [for_a, for_b], "whichever form the leader has");
    let mut damaged = standard;
    damaged[60] ^= 1;
    assert!(rig.give(&damaged).is_empty(), "which cannot be told any more once it is sealed again");
    assert_eq!(rig.switch.stats().damaged, 1);
}

fn reseal_as_linux(bytes: &mut [u8]) {
    let datagram = ip::Datagram::parse(bytes).unwrap();
    let (flow, ident, at) = (datagram.flow(), datagram.ip.ident, bytes.len() - datagram.payload.len());
    icrc::seal_linux_flush(&flow, ident, &mut bytes[at..]);
}

#[test]
fn ipv6_is_rewritten_as_well() {
    let v6 = |last: u16| IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, last]);
    let mut spec = spec(3, 2, 2);
    spec.leader.addr = v6(1);
    for (at, replica) in spec.replicas.iter_mut().enumerate() {
        replica.end.addr = v6(2 + at as u16);
    }
    let mut switch = Switch::new(remanence_switch::Config::new(v6(100), 0x100..0x200));
    let made = switch.make_group(Instant::ZERO, spec.clone()).unwrap();
    let range = reth::Repr { va: spec.va, rkey: spec.rkey, dma_len: 100 };
    let send = |src, dst, end: Endpoint, reth| {
        let repr =
            Repr { bth: bth::Repr::new(Opcode::RcWriteOnly, end.qpn, end.psn), headers: Headers::Reth(reth) };
        packet(&Path { src, dst, src_port: PORT, ident: 0 }, &repr, &[9; 100])
    };
    let mut copies = Vec::new();
    let to_switch = Endpoint { qpn: made.broadcast, ..spec.leader };
    switch.handle(Instant::ZERO, &send(v6(1), v6(100), to_switch, range), &mut |copy| {
        copies.push(copy.to_vec())
    });
    let expected: Vec<Vec<u8>> = spec
        .replicas
        .iter()
        .map(|one| {
            let reth = reth::Repr { va: one.va, rkey: one.rkey, ..range };
            send(v6(100), one.end.addr, one.end, reth)
        })
        .collect();
    assert_eq!(copies, expected);
}

/// The same answer on every machine.
fn runner(cases: u32) -> TestRunner {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(Config { cases, failure_persistence: None, ..Config::default() }, rng)
}

/// QP, PSN, address and key.
type Numbers = (u32, u32, u64, u32);

#[test]
fn any_numbers_make_the_packet_that_was_sealed_whole() {
    let opcode = 0..requests(reth::Repr { va: 0, rkey: Rkey(0), dma_len: 0 }).len();
    let replica = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>());
    let leader = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>());
    let rest = (opcode, 0usize..1200, any::<u16>(), any::<u32>(), any::<u64>());
    let run = |(replica, leader, rest): (Numbers, Numbers, _)| {
        let (opcode, len, ident, ahead, offset): (usize, usize, u16, u32, u64) = rest;
        let mut spec: Spec = spec(1, 1, 1);
        let end = |addr, (qpn, psn): (u32, u32)| Endpoint { addr, qpn: Qpn::new(qpn), psn: Psn::new(psn) };
        spec.leader = end(host(1), (leader.0, leader.1));
        (spec.va, spec.rkey) = (leader.2, Rkey(leader.3));
        spec.replicas[0].end = end(host(2), (replica.0, replica.1));
        (spec.replicas[0].va, spec.replicas[0].rkey) = (replica.2, Rkey(replica.3));
        let mut rig = Rig::new(spec);
        let n = ahead % remanence_switch::WINDOW;
        let headers =
            |va: u64, rkey| requests(reth::Repr { va: va.wrapping_add(offset), rkey, dma_len: 64 })[opcode];
        let (opcode, ask) = headers(rig.spec.va, rig.spec.rkey);
        let len = match opcode {
            Opcode::RcAtomicWrite => 8,
            Opcode::RcFlush | Opcode::RcReadRequest => 0,
            _ => len,
        };
        let path = Path { src: host(1), dst: SWITCH, src_port: ident ^ 0x5555, ident };
        let bth = bth::Repr::new(opcode, rig.made.broadcast, rig.spec.leader.psn.add(n));
        let payload = vec![ident as u8; len];
        let copies = rig.give(&packet(&path, &Repr { bth, headers: ask }, &payload));
        let one = rig.spec.replicas[0];
        let bth = bth::Repr::new(opcode, one.end.qpn, one.end.psn.add(n));
        let path = Path { src: SWITCH, dst: host(2), ident: 0, ..path };
        let expected = packet(&path, &Repr { bth, headers: headers(one.va, one.rkey).1 }, &payload);
        prop_assert_eq!(copies, [expected]);
        Ok(())
    };
    runner(500).run(&(replica, leader, rest), run).unwrap();
}
