//! Properties of every packet, and what the ICRC catches.

use crate::common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use remanence_wire::aeth::{self, Aeth};
use remanence_wire::feth::{self, PlacementType, SelectivityLevel};
use remanence_wire::icrc::{self, BadIcrc, Flow, IpId};
use remanence_wire::opcode::Layout;
use remanence_wire::packet::{self, Headers, Packet, Repr};
use remanence_wire::{
    Msn, Opcode, Pkey, Psn, Qkey, Qpn, Rkey, atomic_ack_eth, atomic_eth, bth, deth, ieth, imm_dt, reth,
};

prop_compose! {
    fn any_reth()(va: u64, rkey: u32, dma_len: u32) -> reth::Repr {
        reth::Repr { va, rkey: Rkey(rkey), dma_len }
    }
}

prop_compose! {
    fn any_aeth()(syndrome in any::<u8>().prop_filter_map("reserved", Aeth::from_u8), msn: u32) -> aeth::Repr {
        aeth::Repr { aeth: syndrome, msn: Msn::new(msn) }
    }
}

prop_compose! {
    fn any_deth()(qkey: u32, src_qp: u32) -> deth::Repr {
        deth::Repr { qkey: Qkey(qkey), src_qp: Qpn::new(src_qp) }
    }
}

fn any_imm() -> impl Strategy<Value = imm_dt::Repr> {
    any::<u32>().prop_map(|imm| imm_dt::Repr { imm })
}

fn any_feth() -> impl Strategy<Value = feth::Repr> {
    let level = prop_oneof![
        Just(SelectivityLevel::Range),
        Just(SelectivityLevel::MemoryRegion),
        Just(SelectivityLevel::Reserved2),
        Just(SelectivityLevel::Reserved3)
    ];
    (0u8..16, level).prop_map(|(bits, selectivity)| feth::Repr {
        placement: PlacementType::from_bits_retain(bits),
        selectivity,
    })
}

fn any_headers(layout: Layout) -> BoxedStrategy<Headers> {
    match layout {
        Layout::None => Just(Headers::None).boxed(),
        Layout::Reth => any_reth().prop_map(Headers::Reth).boxed(),
        Layout::RethImm => {
            (any_reth(), any_imm()).prop_map(|(reth, imm)| Headers::RethImm(reth, imm)).boxed()
        }
        Layout::Imm => any_imm().prop_map(Headers::Imm).boxed(),
        Layout::Ieth => any::<u32>().prop_map(|rkey| Headers::Ieth(ieth::Repr { rkey: Rkey(rkey) })).boxed(),
        Layout::Aeth => any_aeth().prop_map(Headers::Aeth).boxed(),
        Layout::AethAtomicAck => (any_aeth(), any::<u64>())
            .prop_map(|(aeth, original)| Headers::AethAtomicAck(aeth, atomic_ack_eth::Repr { original }))
            .boxed(),
        Layout::AtomicEth => (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>())
            .prop_map(|(va, rkey, swap_or_add, compare)| {
                Headers::AtomicEth(atomic_eth::Repr { va, rkey: Rkey(rkey), swap_or_add, compare })
            })
            .boxed(),
        Layout::FethReth => {
            (any_feth(), any_reth()).prop_map(|(feth, reth)| Headers::FethReth(feth, reth)).boxed()
        }
        Layout::Deth => any_deth().prop_map(Headers::Deth).boxed(),
        Layout::DethImm => {
            (any_deth(), any_imm()).prop_map(|(deth, imm)| Headers::DethImm(deth, imm)).boxed()
        }
        Layout::Cnp => Just(Headers::Cnp).boxed(),
    }
}

prop_compose! {
    fn any_bth(opcode: Opcode)(flags: [bool; 5], pkey: u16, dest_qp: u32, psn: u32) -> bth::Repr {
        let [solicited, mig_req, fecn, becn, ack_req] = flags;
        bth::Repr {
            opcode, solicited, mig_req, pkey: Pkey(pkey), fecn, becn, dest_qp: Qpn::new(dest_qp), ack_req,
            psn: Psn::new(psn),
        }
    }
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let v4 = any::<[Ipv4Addr; 2]>().prop_map(|pair| pair.map(IpAddr::from));
    // An address that starts with 2 is not an IPv4-mapped one.
    let v6 = any::<[u128; 2]>().prop_map(|pair| pair.map(|bits| Ipv6Addr::from(bits | 2 << 124).into()));
    let addresses = prop_oneof![v4, v6].boxed();
    (addresses, any::<[u16; 2]>())
        .prop_map(|(ip, port): ([IpAddr; 2], [u16; 2])| Flow::new(ip[0], ip[1], port[0], port[1]))
}

/// Emit, put the payload behind, finish; then parse and check: nothing may be lost or added.
fn round_trip(repr: Repr, payload: &[u8], flow: &Flow, id: u16) {
    let mut bytes = vec![0xee; payload.len() + packet::OVERHEAD_MAX];
    let header_len = repr.emit(&mut bytes);
    assert_eq!(header_len, repr.header_len());
    bytes[header_len..header_len + payload.len()].copy_from_slice(payload);
    let len = packet::finish(&mut bytes, header_len, payload.len(), flow, id);
    assert_eq!(len, packet::packet_len(header_len, payload.len()));
    assert_eq!(len % 4, 0);
    assert!(bytes[len..].iter().all(|&byte| byte == 0xee), "nothing is written behind the packet");

    let packet = Packet::parse(&bytes[..len]).unwrap();
    assert_eq!(packet.repr(), repr);
    assert_eq!(packet.payload(), payload);
    assert_eq!(usize::from(packet.bth_header().pad()), len - icrc::LEN - header_len - payload.len());
    let (given, found) = match (flow.is_ipv6(), id) {
        (true, _) => (IpId::Absent, IpId::Absent),
        (false, 0) => (IpId::Confirmed(0), IpId::Confirmed(0)),
        (false, id) => (IpId::Confirmed(id), IpId::Recovered(id)),
    };
    assert_eq!(icrc::check(flow, Some(id), packet.bytes()), Ok(given));
    assert_eq!(icrc::check(flow, None, packet.bytes()), Ok(found));

    // Any cut leaves something that is no packet or fails its ICRC.
    for cut in (0..len).rev().take(64) {
        assert_eq!(icrc::check(flow, Some(id), &bytes[..cut]), Err(BadIcrc));
        _ = Packet::parse(&bytes[..cut]);
    }
}

#[test]
fn every_opcode_survives_a_round_trip() {
    for &opcode in Opcode::ALL {
        let strategy = (
            any_bth(opcode),
            any_headers(opcode.info().layout),
            proptest::collection::vec(any::<u8>(), 0..300),
            any_flow(),
            any::<u16>(),
        );
        let config = Config { failure_persistence: None, ..Config::default() };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        TestRunner::new_with_rng(config, rng)
            .run(&strategy, |(bth, headers, payload, flow, id)| {
                round_trip(Repr { bth, headers }, &payload, &flow, id);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{opcode}: {error}"));
    }
}

#[test]
#[should_panic(expected = "RC SEND Only with Imm")]
fn headers_of_another_opcode_are_our_own_mistake() {
    let bth = bth::Repr::new(Opcode::RcSendOnly, Qpn::new(1), Psn::new(1));
    Repr { bth, headers: Headers::Imm(imm_dt::Repr { imm: 1 }) }.emit(&mut [0; 64]);
}

/// With the identification known, every single-bit error is caught. Without it an error passes if some other
/// identification explains it; of single-bit errors, next to none has such a twin.
#[test]
fn every_single_bit_error_of_every_golden_packet_is_caught() {
    let goldens = common::goldens();
    let conversation = common::conversation();
    let mut frames: Vec<&[u8]> = goldens.iter().map(common::Golden::frame).collect();
    frames.extend(common::frames(&conversation));
    let (mut flips, mut passed_unknown) = (0u32, 0u32);
    for frame in frames {
        let datagram = common::datagram(frame);
        let flow = datagram.flow();
        let mut payload = datagram.payload.to_vec();
        for bit in 0..payload.len() * 8 {
            // The fifth byte of the BTH is for routers to change.
            if bit / 8 == 4 {
                continue;
            }
            payload[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(icrc::check(&flow, datagram.ip_id(), &payload), Err(BadIcrc), "bit {bit}");
            flips += 1;
            passed_unknown += u32::from(icrc::check(&flow, None, &payload).is_ok());
            payload[bit / 8] ^= 1 << (bit % 8);
        }
    }
    println!(
        "of {flips} single-bit errors, {passed_unknown} pass where the identification must be recovered"
    );
    assert!(passed_unknown * 10_000 < flips);
}

/// Random damage passes the check with a recovered identification with a chance of 2^-16, as promised.
#[test]
fn a_recovered_identification_leaves_sixteen_bits_of_check() {
    let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001, 4791);
    let mut payload = vec![0x5a; 80];
    icrc::seal(&flow, 0x1234, &mut payload);
    // A 64-bit linear congruential generator (Knuth's MMIX constants): any will do.
    let mut state = 1u64;
    let tries = 1 << 20;
    let mut passed = 0;
    for _ in 0..tries {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut damaged = payload.clone();
        for (byte, noise) in damaged[40..].iter_mut().zip(state.to_be_bytes()) {
            *byte ^= noise;
        }
        passed += u32::from(icrc::check(&flow, None, &damaged).is_ok());
    }
    println!("{passed} of {tries} random errors pass; 2^-16 would be {}", tries >> 16);
    assert!((4..=40).contains(&passed), "{passed}");
}
