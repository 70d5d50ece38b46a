//! What the leader is told, and when; and who is not listened to.

use remanence_rnic::Instant;
use remanence_switch::{Config, Endpoint, GroupError, Report, Switch};
use remanence_wire::aeth::{self, Aeth, Credits, NakCode, RnrTimer};
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Msn, Opcode, Qpn, bth};

use crate::common::{PORT, Path, Rig, SWITCH, config, host, packet, plain_ack, see, spec};

#[test]
fn the_leader_is_told_when_enough_replicas_have_a_write() {
    let mut rig = Rig::usual();
    assert_eq!(rig.write(0), [], "nobody has it yet");
    assert_eq!(rig.ack(2, 0, 1), [], "one of two");
    assert_eq!(rig.ack(0, 0, 1), [rig.told(Opcode::RcAck, 0, plain_ack(1))]);
    assert_eq!(rig.ack(1, 0, 1), [], "the third is nothing new");
}

#[test]
fn the_same_replica_twice_is_one() {
    let mut rig = Rig::usual();
    rig.write(0);
    for _ in 0..3 {
        assert_eq!(rig.ack(1, 0, 1), []);
    }
    rig.write(0);
    assert_eq!(rig.ack(1, 0, 1), [], "also when the leader has sent it again");
    assert_eq!(rig.ack(2, 0, 1).len(), 1);
}

#[test]
fn an_ack_stands_for_all_before_it() {
    let mut rig = Rig::usual();
    (0..6).for_each(|n| _ = rig.write(n));
    assert_eq!(rig.ack(0, 5, 6), []);
    assert_eq!(
        rig.ack(1, 1, 2),
        [rig.told(Opcode::RcAck, 1, plain_ack(2))],
        "the second highest, across the wrap"
    );
    assert_eq!(rig.ack(2, 3, 4), [rig.told(Opcode::RcAck, 3, plain_ack(4))]);
    assert_eq!(rig.ack(2, 2, 3), [], "an older one comes late");
}

#[test]
fn a_nak_acknowledges_nothing_that_the_others_have_not() {
    let mut rig = Rig::usual();
    (0..4).for_each(|n| _ = rig.write(n));
    let nak = |code| aeth::Repr { aeth: Aeth::Nak(code), msn: Msn::new(0) };
    // This replica has 0 to 2; nobody else is known to.
    assert_eq!(rig.misses(0, 3), [rig.told(Opcode::RcAck, 0, nak(NakCode::PsnSequenceError))]);
    assert_eq!(
        rig.misses(1, 3).iter().map(|seen| seen.psn()).collect::<Vec<_>>(),
        [rig.spec.leader.psn.add(2), rig.spec.leader.psn.add(3)]
    );
    assert_eq!(rig.misses(2, 3), [], "the leader was asked already");
    rig.write(3);
    assert_eq!(rig.misses(2, 3).len(), 1, "it has gone back, and this was lost again");
}

#[test]
fn a_refusal_is_passed_on_at_once_and_ends_the_group() {
    let mut rig = Rig::usual();
    (0..4).for_each(|n| _ = rig.write(n));
    rig.ack(0, 0, 1);
    rig.ack(1, 0, 1);
    let refused = Aeth::Nak(NakCode::RemoteAccessError);
    let nak = rig.told(Opcode::RcAck, 1, aeth::Repr { aeth: refused, msn: Msn::new(1) });
    // It may have all before the third, but it is alone with that.
    assert_eq!(rig.say(2, Opcode::RcAck, 3, refused, 3), std::slice::from_ref(&nak));
    let group = rig.made.id;
    assert_eq!(rig.reports(), [Report::Refused { group, replica: 2, code: NakCode::RemoteAccessError }]);
    assert_eq!(rig.ack(0, 3, 4), []);
    assert_eq!(rig.ack(1, 3, 4), [], "which would be enough");
    let request = rig.request(Opcode::RcWriteOnly, 1, Headers::Reth(rig.range(0, 8)), &[1; 8]);
    let left: Vec<_> = rig.give(&request).iter().map(|packet| see(packet)).collect();
    assert_eq!(left, [nak], "whoever has not heard it is told again, and nothing goes to the replicas");
}

#[test]
fn a_replica_refuses_what_the_others_have_acknowledged_long_ago() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ack(0, 0, 1);
    rig.ack(1, 0, 1);
    let refused = Aeth::Nak(NakCode::RemoteAccessError);
    assert_eq!(
        rig.say(2, Opcode::RcAck, 0, refused, 0),
        [rig.told(Opcode::RcAck, 1, aeth::Repr { aeth: refused, msn: Msn::new(1) })]
    );
    // The leader had nothing under way, and hears of it at its next request.
    let told = rig.write(1);
    assert_eq!(told, [rig.told(Opcode::RcAck, 1, aeth::Repr { aeth: refused, msn: Msn::new(1) })]);
}

#[test]
fn a_receiver_that_is_not_ready_holds_the_leader_where_it_is() {
    let mut rig = Rig::usual();
    (0..3).for_each(|n| _ = rig.write(n));
    let wait = Aeth::RnrNak(RnrTimer::new(3));
    let told = rig.say(0, Opcode::RcAck, 2, wait, 2);
    assert_eq!(told, [rig.told(Opcode::RcAck, 0, aeth::Repr { aeth: wait, msn: Msn::new(0) })]);
}

#[test]
fn what_a_flush_has_made_durable_is_said_before_any_later_ack() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ask(Opcode::RcFlush, 1, 8);
    rig.write(2);
    let ack = Aeth::Ack(Credits::UNLIMITED);
    assert_eq!(rig.say(0, Opcode::RcReadResponseOnly, 1, ack, 2), []);
    assert_eq!(rig.ack(0, 2, 3), []);
    assert_eq!(rig.ack(1, 0, 1), [rig.told(Opcode::RcAck, 0, plain_ack(1))]);
    // Its answer to the FLUSH was lost; that it acknowledges what is behind it says the same.
    let expected =
        [rig.told(Opcode::RcReadResponseOnly, 1, plain_ack(3)), rig.told(Opcode::RcAck, 2, plain_ack(3))];
    assert_eq!(rig.ack(1, 2, 3), expected);
}

#[test]
fn an_atomic_write_is_answered_as_a_flush_is() {
    let mut rig = Rig::usual();
    rig.ask(Opcode::RcAtomicWrite, 0, 8);
    let ack = Aeth::Ack(Credits::UNLIMITED);
    assert_eq!(rig.say(0, Opcode::RcReadResponseOnly, 0, ack, 1), []);
    let told = rig.told(Opcode::RcReadResponseOnly, 0, plain_ack(1));
    assert_eq!(rig.say(2, Opcode::RcReadResponseOnly, 0, ack, 1), [told]);
}

#[test]
fn a_leader_that_did_not_hear_is_told_again() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ask(Opcode::RcFlush, 1, 8);
    rig.write(2);
    rig.ack(0, 2, 3);
    assert_eq!(rig.ack(1, 2, 3).len(), 2);
    assert_eq!(rig.write(0), [rig.told(Opcode::RcAck, 2, plain_ack(3))]);
    assert_eq!(rig.ask(Opcode::RcFlush, 1, 8), [rig.told(Opcode::RcReadResponseOnly, 1, plain_ack(3))]);
    assert_eq!(rig.write(2), [rig.told(Opcode::RcAck, 2, plain_ack(3))]);
    // A packet in the middle of a message asks nobody for an answer.
    let path = Path { src: host(1), dst: SWITCH, src_port: PORT, ident: 0 };
    let bth = bth::Repr::new(Opcode::RcWriteMiddle, rig.made.broadcast, rig.spec.leader.psn);
    let copies = rig.give(&packet(&path, &Repr { bth, headers: Headers::None }, &[0; 1024]));
    assert_eq!(copies.len(), 3, "and who misses it gets it");
}

#[test]
fn a_replica_that_misses_what_is_acknowledged_is_reported() {
    let mut rig = Rig::usual();
    (0..2).for_each(|n| _ = rig.write(n));
    rig.ack(0, 1, 2);
    rig.ack(1, 1, 2);
    let missing = rig.spec.leader.psn;
    let behind = Report::Behind { group: rig.made.id, replica: 2, missing };
    assert_eq!(rig.misses(2, 0), [], "the leader has forgotten that");
    rig.misses(2, 0);
    assert_eq!(rig.reports(), [behind], "once");
    rig.write(2);
    rig.ack(0, 2, 3);
    assert_eq!(rig.ack(2, 2, 3).len(), 1, "it got what it missed, from whomever, and counts");
    rig.write(3);
    rig.ack(0, 3, 4);
    rig.ack(1, 3, 4);
    rig.misses(2, 3);
    assert_eq!(rig.reports().len(), 1, "again");
}

#[test]
fn a_replica_that_is_lapped_counts_no_more() {
    let mut rig = Rig::usual();
    let lag = rig.spec.lag;
    for n in 0..=lag {
        rig.write(n);
        rig.ack(0, n, n + 1);
        rig.ack(1, n, n + 1);
    }
    assert_eq!(rig.reports(), [Report::LeftOut { group: rig.made.id, replica: 2 }]);
    let request = rig.request(Opcode::RcWriteOnly, lag + 1, Headers::Reth(rig.range(0, 8)), &[1; 8]);
    assert_eq!(rig.give(&request).len(), 2, "it gets nothing more");
    rig.ack(0, lag + 1, lag + 2);
    assert_eq!(rig.ack(2, lag + 1, lag + 2), [], "and says nothing more");
    assert_eq!(rig.ack(1, lag + 1, lag + 2).len(), 1);
}

#[test]
fn message_counts_and_credits_are_the_connections_own() {
    let mut rig = Rig::usual();
    (0..4).for_each(|n| _ = rig.write(n));
    // Messages 4 and room for 2 more: up to 6.
    let with = |count| Aeth::Ack(Credits::at_most(count));
    assert_eq!(rig.say(0, Opcode::RcAck, 3, with(2), 4), []);
    // Messages 2 and room for 8 more: up to 10. The least is 6, which is 4 beyond what the leader is told.
    let told = rig.say(1, Opcode::RcAck, 1, with(8), 2);
    assert_eq!(told, [rig.told(Opcode::RcAck, 1, aeth::Repr { aeth: with(4), msn: Msn::new(2) })]);
    // One without end-to-end flow control limits nobody.
    let told = rig.ack(2, 3, 4);
    assert_eq!(told, [rig.told(Opcode::RcAck, 3, aeth::Repr { aeth: with(2), msn: Msn::new(4) })]);
}

/// The data that a replica reads, as it sends them.
fn part(rig: &mut Rig, from: usize, opcode: Opcode, n: u32, fill: u8) -> Vec<crate::common::Seen> {
    let headers = match opcode {
        Opcode::RcReadResponseMiddle => Headers::None,
        _ => Headers::Aeth(plain_ack(1)),
    };
    let packet = rig.response(from, opcode, n, headers, &[fill; 1024]);
    rig.give(&packet).iter().map(|packet| see(packet)).collect()
}

#[test]
fn a_read_is_answered_when_enough_replicas_agree() {
    let mut rig = Rig::usual();
    rig.ask(Opcode::RcReadRequest, 0, 3 * 1024);
    let [first, middle, last] =
        [Opcode::RcReadResponseFirst, Opcode::RcReadResponseMiddle, Opcode::RcReadResponseLast];
    assert_eq!(part(&mut rig, 0, first, 0, 1), []);
    assert_eq!(part(&mut rig, 0, first, 0, 1), [], "the same one again is not another one");
    assert_eq!(part(&mut rig, 0, middle, 1, 2), []);
    assert_eq!(part(&mut rig, 1, middle, 1, 2), [], "not before the first");
    let told = part(&mut rig, 1, first, 0, 1);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].repr.bth.opcode, told[0].psn(), told[0].to), (first, rig.spec.leader.psn, host(1)));
    assert_eq!(told[0].repr.bth.dest_qp, rig.spec.leader.qpn);
    assert_eq!(told[0].payload, [1; 1024]);
    assert_eq!(told[0].aeth().unwrap().msn, Msn::new(1));
    assert_eq!(part(&mut rig, 2, middle, 1, 2)[0].payload, [2; 1024], "whoever comes in turn");
    assert_eq!(part(&mut rig, 0, last, 2, 3), []);
    assert_eq!(part(&mut rig, 2, last, 2, 3)[0].payload, [3; 1024]);
    assert_eq!(part(&mut rig, 1, last, 2, 3), [], "the third is nothing new");
    assert_eq!(rig.reports(), []);
}

#[test]
fn a_replica_that_answers_twice_agrees_with_nobody() {
    let mut rig = Rig::new(spec(3, 1, 2));
    rig.ask(Opcode::RcReadRequest, 0, 1024);
    for _ in 0..3 {
        assert_eq!(part(&mut rig, 0, Opcode::RcReadResponseOnly, 0, 1), []);
    }
    assert_eq!(part(&mut rig, 2, Opcode::RcReadResponseOnly, 0, 1).len(), 1);
}

#[test]
fn acks_wait_for_the_answer_to_a_read() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ask(Opcode::RcReadRequest, 1, 1024);
    rig.write(2);
    rig.ack(0, 2, 3);
    assert_eq!(rig.ack(1, 2, 3), [rig.told(Opcode::RcAck, 0, plain_ack(3))], "their answers were lost");
    let only = Opcode::RcReadResponseOnly;
    assert_eq!(part(&mut rig, 0, only, 1, 7), []);
    // The leader asks again, and what was said before that does not count.
    rig.ask(Opcode::RcReadRequest, 1, 1024);
    assert_eq!(part(&mut rig, 1, only, 1, 7), []);
    let told = part(&mut rig, 2, only, 1, 7);
    assert_eq!(
        told.iter().map(|seen| seen.psn()).collect::<Vec<_>>(),
        [rig.spec.leader.psn.add(1), rig.spec.leader.psn.add(2)]
    );
    assert_eq!(told[0].payload, [7; 1024]);
    assert_eq!(told[1], rig.told(Opcode::RcAck, 2, plain_ack(3)));
    // And again, as that was lost on the way to it: nobody else waits for it.
    rig.ask(Opcode::RcReadRequest, 1, 1024);
    rig.write(3);
    rig.ack(0, 3, 4);
    assert_eq!(rig.ack(1, 3, 4).len(), 1);
    assert_eq!(part(&mut rig, 0, only, 1, 7), []);
    assert_eq!(part(&mut rig, 1, only, 1, 7)[0].payload, [7; 1024]);
}

#[test]
fn data_are_compared_and_not_the_parts_of_an_answer_that_they_came_in() {
    let mut rig = Rig::usual();
    rig.ask(Opcode::RcReadRequest, 0, 3 * 1024);
    for from in [0, 1] {
        part(&mut rig, from, Opcode::RcReadResponseFirst, 0, 1);
    }
    // The rest was lost, and the leader asks for that alone; a packet of the first answer comes late.
    rig.ask(Opcode::RcReadRequest, 1, 2 * 1024);
    assert_eq!(part(&mut rig, 0, Opcode::RcReadResponseMiddle, 1, 2), []);
    assert_eq!(part(&mut rig, 1, Opcode::RcReadResponseFirst, 1, 2)[0].payload, [2; 1024]);
    assert_eq!(part(&mut rig, 1, Opcode::RcReadResponseLast, 2, 3), []);
    assert_eq!(part(&mut rig, 0, Opcode::RcReadResponseLast, 2, 3).len(), 1);
    assert_eq!(rig.reports(), []);
}

#[test]
fn an_answer_that_is_not_the_others_is_an_error_in_its_turn() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ask(Opcode::RcReadRequest, 1, 1024);
    let only = Opcode::RcReadResponseOnly;
    assert_eq!(part(&mut rig, 0, only, 1, 7), []);
    let failed = aeth::Repr { aeth: Aeth::Nak(NakCode::RemoteOperationalError), msn: Msn::new(1) };
    let expected = [rig.told(Opcode::RcAck, 0, plain_ack(1)), rig.told(Opcode::RcAck, 1, failed)];
    assert_eq!(part(&mut rig, 1, only, 1, 8), expected, "the WRITE before it has succeeded");
    let psn = rig.spec.leader.psn.add(1);
    assert_eq!(rig.reports(), [Report::Discrepancy { group: rig.made.id, replica: 1, psn }]);
    assert_eq!(part(&mut rig, 2, only, 1, 7), [], "the leader has to ask each of them");
}

#[test]
fn who_is_not_of_the_group_is_not_heard() {
    let mut rig = Rig::usual();
    let mut other = spec(3, 2, 2);
    (other.service, other.leader.addr) = (2, host(51));
    for replica in &mut other.replicas {
        replica.end.addr = host(52);
        replica.end.qpn = Qpn::new(replica.end.qpn.value() + 1);
    }
    let theirs = rig.switch.make_group(Instant::ZERO, other.clone()).unwrap();
    rig.write(0);
    rig.ack(0, 0, 1);
    let before = *rig.switch.stats();
    let send = |src, repr: &Repr| packet(&Path { src, dst: SWITCH, src_port: PORT, ident: 0 }, repr, &[1; 8]);
    // Another leader, and nobody at all, through this group.
    let write = Repr {
        bth: bth::Repr::new(Opcode::RcWriteOnly, rig.made.broadcast, rig.spec.leader.psn.add(1)),
        headers: Headers::Reth(rig.range(0, 8)),
    };
    for src in [host(51), host(99), rig.spec.replicas[0].end.addr] {
        assert!(rig.give(&send(src, &write)).is_empty());
    }
    // A replica for another one, a replica of another group, the leader for a replica.
    let ack = |qpn, replica: usize| Repr {
        bth: bth::Repr::new(Opcode::RcAck, qpn, rig.spec.replicas[replica].end.psn),
        headers: Headers::Aeth(plain_ack(1)),
    };
    for (src, repr) in [
        (host(2), ack(rig.made.aggregate(1), 1)),
        (host(52), ack(rig.made.aggregate(1), 1)),
        (host(1), ack(rig.made.aggregate(1), 1)),
    ] {
        let forged = packet(&Path { src, dst: SWITCH, src_port: PORT, ident: 0 }, &repr, &[]);
        assert!(rig.give(&forged).is_empty());
    }
    assert_eq!(rig.switch.stats().strangers, before.strangers + 6);
    // To a QP that there is not.
    let nowhere =
        Repr { bth: bth::Repr::new(Opcode::RcWriteOnly, Qpn::new(0x1f0), rig.spec.leader.psn), ..write };
    assert!(rig.give(&send(host(1), &nowhere)).is_empty());
    assert_eq!(rig.switch.stats().no_qp, before.no_qp + 1);
    assert_eq!(rig.ack(1, 0, 1).len(), 1, "nothing has changed");
    assert!(
        rig.switch.end_group(Instant::ZERO, theirs.id) && !rig.switch.end_group(Instant::ZERO, theirs.id)
    );
}

#[test]
fn an_ack_for_what_was_never_sent_is_nothing() {
    let mut rig = Rig::usual();
    rig.write(0);
    for n in [1, 2, 1 << 20, 1 << 22] {
        assert_eq!(rig.ack(0, n, 2), []);
        assert_eq!(rig.ack(1, n, 2), []);
    }
    assert_eq!(rig.switch.stats().ahead, 8);
    assert_eq!(rig.write(1), []);
    assert_eq!(rig.ack(0, 0, 1), []);
    assert_eq!(rig.ack(1, 0, 1), [rig.told(Opcode::RcAck, 0, plain_ack(1))], "no more than that");
}

#[test]
fn a_damaged_answer_is_none() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ack(0, 0, 1);
    let ack = rig.response(1, Opcode::RcAck, 0, Headers::Aeth(plain_ack(1)), &[]);
    for bit in (28 * 8..ack.len() * 8).filter(|bit| bit / 8 != 32) {
        let mut damaged = ack.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(rig.give(&damaged).is_empty(), "bit {bit}");
    }
    assert_eq!(rig.give(&ack).len(), 1);
}

#[test]
fn a_request_that_cannot_be_scattered_is_refused_in_its_turn() {
    let mut rig = Rig::usual();
    rig.write(0);
    let send = rig.request(Opcode::RcSendOnly, 1, Headers::None, &[1; 8]);
    let left: Vec<_> = rig.give(&send).iter().map(|packet| see(packet)).collect();
    let invalid = aeth::Repr { aeth: Aeth::Nak(NakCode::InvalidRequest), msn: Msn::new(0) };
    assert_eq!(left, [rig.told(Opcode::RcAck, 0, invalid)]);
}

#[test]
fn a_write_that_was_damaged_refuses_nothing() {
    let mut rig = Rig::usual();
    let write = rig.request(Opcode::RcWriteOnly, 0, Headers::Reth(rig.range(0, 8)), &[1; 8]);
    for bit in 0..12 * 8 {
        let mut damaged = write.clone();
        damaged[28 + bit / 8] ^= 1 << (bit % 8);
        for told in rig.give(&damaged).iter().filter(|left| left[16..20] == [10, 0, 0, 1]) {
            let is_ack = matches!(see(told).aeth().map(|aeth| aeth.aeth), Some(Aeth::Ack(_)));
            assert!(
                is_ack,
                "bit {bit}: one that looks like a repeated one is answered, and nothing is refused"
            );
        }
    }
    assert_eq!(rig.give(&write).len(), 3);
}

#[test]
fn what_is_not_for_the_switch_goes_on_as_it_came() {
    let mut rig = Rig::usual();
    let past = Path { src: host(1), dst: host(2), src_port: PORT, ident: 0x1234 };
    let bth = bth::Repr::new(Opcode::RcWriteOnly, rig.made.broadcast, rig.spec.leader.psn);
    let roce = packet(&past, &Repr { bth, headers: Headers::Reth(rig.range(0, 8)) }, &[1; 8]);
    let mut other_port = rig.request(Opcode::RcWriteOnly, 0, Headers::Reth(rig.range(0, 8)), &[1; 8]);
    other_port[22..24].copy_from_slice(&53u16.to_be_bytes());
    let mut padded = roce.clone();
    padded.extend([0; 6]);
    for foreign in [roce, other_port, padded, vec![], vec![0x45; 7], vec![0xff; 60]] {
        assert_eq!(rig.give(&foreign), [foreign]);
    }
    assert_eq!(rig.switch.stats().forwarded, 6);
}

#[test]
fn a_later_leader_takes_the_place_of_an_earlier_one() {
    let mut rig = Rig::usual();
    rig.write(0);
    rig.ack(0, 0, 1);
    let late = rig.response(1, Opcode::RcAck, 0, Headers::Aeth(plain_ack(1)), &[]);
    let mut next = spec(2, 1, 1);
    (next.epoch, next.leader.addr) = (2, host(7));
    let same_epoch = remanence_switch::Spec { epoch: 1, ..next.clone() };
    assert_eq!(
        rig.switch.make_group(Instant::ZERO, same_epoch),
        Err(GroupError::Stale(1)),
        "an epoch has one leader"
    );
    let made = rig.switch.make_group(Instant::ZERO, next.clone()).unwrap();
    assert_eq!(rig.reports(), [Report::Replaced { group: rig.made.id, by: made.id }]);
    assert!(
        (0..3).all(|at| made.broadcast != rig.made.aggregate(at)) && made.broadcast != rig.made.broadcast
    );
    assert!(rig.give(&late).is_empty(), "a late answer counts nowhere");
    assert_eq!(rig.switch.stats().no_qp, 1);
    assert_eq!(rig.switch.make_group(Instant::ZERO, rig.spec.clone()), Err(GroupError::Stale(2)));
    // Another service of the same hosts, and a second connection of the same leader, are no rivals.
    assert!(
        rig.switch
            .make_group(Instant::ZERO, remanence_switch::Spec { service: 2, ..rig.spec.clone() })
            .is_ok()
    );
    let mut second = next.clone();
    second.replicas.iter_mut().for_each(|one| one.end.qpn = Qpn::new(one.end.qpn.value() + 1));
    assert!(rig.switch.make_group(Instant::ZERO, second).is_ok());
    assert_eq!(rig.reports(), []);
}

#[test]
fn groups_that_cannot_be_are_not_made() {
    let mut switch = Switch::new(config());
    let mut refused = |change: &dyn Fn(&mut remanence_switch::Spec)| {
        let mut spec = spec(3, 2, 2);
        change(&mut spec);
        switch.make_group(Instant::ZERO, spec).unwrap_err()
    };
    assert_eq!(refused(&|spec| spec.replicas.clear()), GroupError::Replicas);
    assert_eq!(refused(&|spec| spec.writes = 4), GroupError::Threshold);
    assert_eq!(refused(&|spec| spec.reads = 0), GroupError::Threshold);
    assert_eq!(refused(&|spec| spec.lag = remanence_switch::LAG_MAX + 1), GroupError::Lag);
    assert_eq!(refused(&|spec| spec.leader.addr = SWITCH), GroupError::Address(SWITCH));
    let v6 = "fd77::1".parse().unwrap();
    assert_eq!(refused(&|spec| spec.replicas[1].end.addr = v6), GroupError::Address(v6));
    assert_eq!(refused(&|spec| spec.replicas[1] = spec.replicas[0]), GroupError::Twice(host(2)));
}

#[test]
fn numbers_of_qps_come_again_as_late_as_can_be() {
    let mut switch = Switch::new(Config { qpns: 0x100..0x110, ..config() });
    let group = |service| {
        let mut spec = spec(3, 2, 2);
        spec.service = service;
        spec
    };
    let made: Vec<_> =
        (0..4).map(|service| switch.make_group(Instant::ZERO, group(service)).unwrap()).collect();
    assert_eq!(
        made.iter().map(|made| made.broadcast.value()).collect::<Vec<_>>(),
        [0x100, 0x104, 0x108, 0x10c]
    );
    assert_eq!(switch.make_group(Instant::ZERO, group(9)), Err(GroupError::Numbers));
    assert!(switch.end_group(Instant::ZERO, made[1].id));
    assert_eq!(switch.make_group(Instant::ZERO, group(9)).unwrap().broadcast, Qpn::new(0x104));
    assert!(switch.end_group(Instant::ZERO, made[0].id));
    assert_eq!(switch.make_group(Instant::ZERO, group(0)).unwrap().broadcast, Qpn::new(0x100));
    let wider = Endpoint { addr: host(9), ..spec(1, 1, 1).replicas[0].end };
    let mut five = group(5);
    five.replicas.push(remanence_switch::Replica { end: wider, ..five.replicas[0] });
    assert!(switch.end_group(Instant::ZERO, made[3].id));
    assert_eq!(switch.make_group(Instant::ZERO, five), Err(GroupError::Numbers), "four in a row are free");
}
