//! The plane over a link in memory: the vectors of every data plane, trains, and links without room.

use std::collections::BTreeMap;
use std::net::IpAddr;

use remanence_switch::vectors::{Case, FILE, Vectors};
use remanence_switch_live::Plane;
use remanence_wire::ROCE_PORT;
use remanence_wire::icrc;
use remanence_wire::ip::Datagram;
use remanence_wire::opcode::Operation;
use remanence_wire::packet::Packet;

use crate::wire::{Ends, Wire};

/// The vectors; what no link would hand to a switch is not among them.
fn vectors() -> Vectors {
    let mut vectors: Vectors = FILE.parse().unwrap();
    let addr = vectors.config.addr;
    let is_for_us = |packet: &[u8]| {
        Datagram::parse(packet)
            .is_ok_and(|datagram| datagram.ip.dst == addr && datagram.udp.dst_port == ROCE_PORT)
    };
    for case in &mut vectors.cases {
        case.steps.retain(|step| is_for_us(&step.input));
    }
    vectors
}

/// A plane with the groups of the vectors.
fn plane(vectors: &Vectors, wire: &Wire) -> Plane {
    let (mut plane, _) = Plane::new(Box::new(wire.clone()), vectors.config.clone()).unwrap();
    for group in &vectors.groups {
        plane.make_group(group.clone()).unwrap();
    }
    plane
}

#[test]
fn packets_with_their_headers_leave_as_the_vectors_have_it() {
    let vectors = vectors();
    for Case { name, steps } in &vectors.cases {
        let wire = Wire::whole(vectors.config.addr);
        let mut plane = plane(&vectors, &wire);
        for step in steps {
            wire.ends().arrives.push_back(vec![step.input.clone()]);
            assert!(plane.turn().unwrap());
            assert_eq!(std::mem::take(&mut wire.ends().left), step.outputs, "{name}");
        }
    }
}

/// Of a packet, all but what a socket decides; and whether it is whole.
fn essence(packet: &[u8]) -> (IpAddr, u8, Vec<u8>, bool) {
    let datagram = Datagram::parse(packet).unwrap();
    let body = datagram.payload[..datagram.payload.len() - icrc::LEN].to_vec();
    let is_whole = icrc::check(&datagram.flow(), datagram.ip_id(), datagram.payload).is_ok();
    (datagram.ip.dst, datagram.ip.traffic_class, body, is_whole)
}

/// Who is sent what, in order.
fn by_host(packets: &[Vec<u8>]) -> BTreeMap<IpAddr, Vec<(u8, Vec<u8>, bool)>> {
    let mut all: BTreeMap<IpAddr, Vec<_>> = BTreeMap::new();
    for (host, tos, body, is_whole) in packets.iter().map(|packet| essence(packet)) {
        all.entry(host).or_default().push((tos, body, is_whole));
    }
    all
}

#[test]
fn a_socket_that_neither_sees_nor_chooses_identifications_makes_no_difference() {
    let vectors = vectors();
    for ident in [0, 0xfffd] {
        for Case { name, steps } in &vectors.cases {
            let wire = Wire::socket(vectors.config.addr, 0xd123, ident);
            let mut plane = plane(&vectors, &wire);
            // All of a case at once, as it may come.
            wire.ends().arrives.push_back(steps.iter().map(|step| step.input.clone()).collect());
            plane.turn().unwrap();
            let expected: Vec<Vec<u8>> = steps.iter().flat_map(|step| step.outputs.clone()).collect();
            let left = std::mem::take(&mut wire.ends().left);
            assert_eq!(by_host(&left), by_host(&expected), "{name}");
            let is_from = |packet: &Vec<u8>| Datagram::parse(packet).unwrap().udp.src_port == 0xd123;
            assert!(left.iter().all(is_from), "{name}");
        }
    }
}

/// The first WRITE of one packet among the vectors, and as many more behind it, with the PSNs that follow.
fn writes(vectors: &Vectors, count: u32) -> Vec<Vec<u8>> {
    let is_write = |input: &&Vec<u8>| {
        let datagram = Datagram::parse(input).unwrap();
        let Ok(packet) = Packet::parse(datagram.payload) else { return false };
        let info = packet.info();
        packet.psn() == vectors.groups[0].leader.psn
            && (info.operation, info.position.ends()) == (Operation::Write, true)
            && essence(input).3
    };
    let mut inputs = vectors.cases.iter().flat_map(|case| &case.steps).map(|step| &step.input);
    let first = inputs.find(is_write).expect("a WRITE");
    let numbered = |n: u32| {
        let mut packet = first.clone();
        let datagram = Datagram::parse(first).unwrap();
        let psn = vectors.groups[0].leader.psn.add(n).value().to_be_bytes();
        packet[28 + 9..28 + 12].copy_from_slice(&psn[1..]);
        icrc::seal(&datagram.flow(), datagram.ip.ident, &mut packet[28..]);
        packet
    };
    (0..count).map(numbered).collect()
}

#[test]
fn what_is_alike_leaves_in_trains_each_sealed_for_its_number() {
    let vectors = vectors();
    let wire = Wire::socket(vectors.config.addr, 0xd123, 7);
    let mut plane = plane(&vectors, &wire);
    wire.ends().arrives.push_back(writes(&vectors, 10));
    plane.turn().unwrap();
    let ends = wire.ends();
    let replicas = vectors.groups[0].replicas.len();
    assert_eq!((ends.left.len(), ends.sends), (10 * replicas, 2 * replicas), "eight, and two");
    assert!(ends.left.iter().all(|packet| essence(packet).3), "whole");
}

#[test]
fn what_there_is_no_room_for_waits_and_nothing_is_received_meanwhile() {
    let vectors = vectors();
    let wire = Wire::whole(vectors.config.addr);
    let mut plane = plane(&vectors, &wire);
    let replicas = vectors.groups[0].replicas.len();
    for packet in writes(&vectors, 3) {
        wire.ends().arrives.push_back(vec![packet]);
    }
    wire.ends().room = Some(1);
    plane.turn().unwrap();
    assert!(!plane.turn().unwrap(), "no room: it would sleep");
    let count = |ends: &Ends| (ends.left.len(), ends.arrives.len());
    assert_eq!(count(&wire.ends()), (1, 2));
    wire.ends().room = None;
    while plane.turn().unwrap() || !wire.ends().arrives.is_empty() {}
    assert_eq!(wire.ends().left.len(), 3 * replicas, "none was lost");
    assert!(plane.look().plane.blocked > 0);
    let psns = |host: IpAddr| {
        let ends = wire.ends();
        let of = |packet: &Vec<u8>| {
            let datagram = Datagram::parse(packet).unwrap();
            (datagram.ip.dst == host).then(|| Packet::parse(datagram.payload).unwrap().psn())
        };
        ends.left.iter().filter_map(of).collect::<Vec<_>>()
    };
    for replica in &vectors.groups[0].replicas {
        assert_eq!(psns(replica.end.addr), [0, 1, 2].map(|n| replica.end.psn.add(n)));
    }
}
