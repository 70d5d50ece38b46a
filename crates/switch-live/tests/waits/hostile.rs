//! Whoever may not: strangers who ask for groups, who send through those of others, and who forge answers.

use std::net::{IpAddr, UdpSocket};

use remanence_auth::Token;
use remanence_rnic::WcStatus;
use remanence_switch::private::Ask;
use remanence_switch::{Access, Net};
use remanence_verbs::Error;
use remanence_wire::aeth::{self, Aeth, NakCode};
use remanence_wire::icrc::Flow;
use remanence_wire::packet::{self, Headers, OVERHEAD_MAX, Repr};
use remanence_wire::{Msn, Opcode, Psn, Qpn, ROCE_PORT, bth, reth};

use crate::common::{Member, Running, SERVICE, Side, address, ask, connect, group};

/// Whoever is at that address may be a leader.
fn only(leader: &Side, members: &[&Member]) -> Access {
    let replicas = members.iter().map(|member| IpAddr::from(member.side.addr()).into()).collect();
    Access { leaders: vec![IpAddr::from(leader.addr()).into()], replicas, ..Access::default() }
}

#[test]
fn a_stranger_gets_no_group_and_nobody_hears_of_it() {
    let (member, other, leader) = (Member::new(), Member::new(), Side::new());
    let token = Token::new("a-token-that-is-long-enough").unwrap();
    let access = Access { token: Some(token.clone()), ..only(&leader, &[&member]) };
    let switch = Running::new(access);
    let plain = ask(&[member.side.addr()], 1, 1);
    let proven = |side: &Side| plain.clone().prove(&token, SERVICE, side.addr().into());
    let is_refused =
        |side: &Side, ask: &Ask| matches!(connect(side, switch.addr, ask), Err(Error::Rejected { .. }));
    // Not from there; not of that replica, who would agree; not without the token.
    let stranger = Side::new();
    assert!(is_refused(&stranger, &proven(&stranger)));
    let mut beyond = proven(&leader);
    beyond.addrs.push(other.side.addr());
    assert!(is_refused(&leader, &beyond));
    assert!(is_refused(&leader, &plain));
    let stats = switch.look().switch;
    assert_eq!((stats.no_leader, stats.no_replica, stats.unproven), (1, 1, 1));
    assert!(member.is_left_alone() && other.is_left_alone());

    let right = proven(&leader);
    let member = member.with_token(token);
    let (leader, _connections) = group(&leader, switch.addr, &[&member], &right);
    assert_eq!(leader.write(0, b"may"), WcStatus::Success);
}

#[test]
fn a_replica_that_does_not_answer_is_asked_once_at_a_time() {
    let IpAddr::V4(nobody) = address() else { panic!("an IPv4 address") };
    let replicas = vec![IpAddr::from(nobody).into()];
    let access = Access { leaders: Net::ALL.into(), replicas, ..Access::default() };
    let (switch, side) = (Running::new(access), Side::new());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| connect(&side, switch.addr, &ask(&[nobody], 1, 1)).is_err());
        switch.until("the first one is under way", |look| look.link.tx_datagrams > 0);
        let second = connect(&side, switch.addr, &ask(&[nobody], 1, 2));
        assert!(matches!(second, Err(Error::Rejected { .. })));
        assert_eq!(switch.look().switch.bounded, 1);
        assert!(first.join().expect("no panic"), "nobody has agreed");
    });
}

/// Sends a packet to a switch from an address of one's own, as anybody on its network can.
fn forge(switch: IpAddr, repr: &Repr, payload: &[u8]) {
    let socket = UdpSocket::bind((address(), 0)).unwrap();
    let from = socket.local_addr().unwrap();
    let mut bytes = vec![0; repr.header_len() + payload.len() + OVERHEAD_MAX];
    let header_len = repr.emit(&mut bytes);
    bytes[header_len..][..payload.len()].copy_from_slice(payload);
    let flow = Flow::new(from.ip(), switch, from.port(), ROCE_PORT);
    // Whatever identification the kernel gives it: the switch finds out.
    let len = packet::finish(&mut bytes, header_len, payload.len(), &flow, 0);
    socket.send_to(&bytes[..len], (switch, ROCE_PORT)).unwrap();
}

#[test]
fn who_is_not_of_a_group_neither_sends_through_it_nor_answers_in_it() {
    let (member, side) = (Member::new(), Side::new());
    let switch = Running::new(only(&side, &[&member]));
    let (leader, _connections) = group(&side, switch.addr, &[&member], &ask(&[member.side.addr()], 1, 1));
    assert_eq!(leader.write(0, b"the leader's"), WcStatus::Success);
    let group = switch.look().groups.remove(0);
    // A WRITE through it: its number, key, address and PSN are right, and only the sender is not.
    let psn = leader.qp.query().unwrap().attr.sq_psn.expect("it may send");
    let reth = reth::Repr { va: leader.memory.va, rkey: leader.memory.rkey, dma_len: 8 };
    let bth = bth::Repr { ack_req: true, ..bth::Repr::new(Opcode::RcWriteOnly, group.broadcast, psn) };
    forge(switch.addr, &Repr { bth, headers: Headers::Reth(reth) }, b"another!");
    // And answers of the replica, one that acknowledges everything, and one that would end the group.
    let aggregate = Qpn::new(group.broadcast.value() + 1);
    for aeth in [Aeth::Ack(aeth::Credits::UNLIMITED), Aeth::Nak(NakCode::RemoteAccessError)] {
        let bth = bth::Repr::new(Opcode::RcAck, aggregate, group.replicas[0].end.psn);
        forge(switch.addr, &Repr { bth, headers: Headers::Aeth(aeth::Repr { aeth, msn: Msn::new(1) }) }, &[]);
    }
    // To no group at all.
    let nobodys = bth::Repr::new(Opcode::RcAck, Qpn::new(0xffff), Psn::new(0));
    let headers = Headers::Aeth(aeth::Repr { aeth: Aeth::Ack(aeth::Credits::UNLIMITED), msn: Msn::new(1) });
    forge(switch.addr, &Repr { bth: nobodys, headers }, &[]);
    let look = switch.until("all four have come", |look| look.switch.strangers + look.switch.no_qp == 4);
    assert_eq!((look.switch.strangers, look.switch.no_qp), (3, 1));
    assert_eq!(look.groups[0].refused, None);
    assert_eq!(member.side.bytes(0, 12), b"the leader's");
    assert_eq!(leader.write(0, b"still the leader's"), WcStatus::Success);
    assert_eq!(member.side.bytes(0, 18), b"still the leader's");
}
