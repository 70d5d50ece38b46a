//! A switch that runs between a leader and replicas with engines: what it carries, what it goes on without, and how it ends.

use std::io;

use remanence_effort::{Process, again};
use remanence_link::fault::{Faults, Faulty, Plan};
use remanence_link::udp::{self, UdpLink};
use remanence_link::veth::{End, Veth};
use remanence_link::xdp::{Config, XdpLink};
use remanence_rnic::{Placement, Selectivity, SendOp, WcStatus};
use remanence_switch::{Access, Report};
use remanence_switch_live::Look;
use remanence_verbs::Options;

use crate::common::{LIMIT, Member, Running, SIZE, Side, address, ask, group, pattern};

#[test]
fn a_leader_says_it_once_and_is_answered_once() {
    let switch = Running::new(Access::anybody());
    let members = [Member::new(), Member::new(), Member::new()];
    let all: Vec<&Member> = members.iter().collect();
    let addrs = all.iter().map(|member| member.side.addr()).collect::<Vec<_>>();
    let side = Side::new();
    let (leader, _connections) = group(&side, switch.addr, &all, &ask(&addrs, 3, 1));

    // Where nothing is sent again, as it may be on a busy machine, each WRITE is one packet in, three out, three in, and one out.
    let mut least = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    for round in 0..50 {
        let before = switch.look().switch;
        assert_eq!(leader.write(64 * round, &pattern(64, round as u8)), WcStatus::Success);
        let now = switch.look().switch;
        least = least.min((
            now.scattered - before.scattered,
            now.copies - before.copies,
            now.gathered - before.gathered,
            now.answered - before.answered,
        ));
    }
    assert_eq!(least, (1, 3, 3, 1));
    // A long one, of packets of every position, and what makes it durable as far as this memory can be.
    let long = pattern(SIZE as usize - 4096, 7);
    assert_eq!(leader.write(4096, &long), WcStatus::Success);
    let flush = SendOp::Flush {
        remote: leader.remote(0),
        len: 0,
        placement: Placement::GlobalVisibility,
        selectivity: Selectivity::MemoryRegion,
    };
    assert_eq!(leader.perform(flush, 0, 0), WcStatus::Success);
    for member in &members {
        assert_eq!(member.side.bytes(4096, long.len()), long);
        assert_eq!(member.side.bytes(64 * 49, 64), pattern(64, 49));
    }
    // What they agree on is read back.
    leader.side.mr.region().write(0, &[0; 4096]);
    assert_eq!(leader.perform(SendOp::Read(leader.remote(4096)), 0, 4096), WcStatus::Success);
    assert_eq!(leader.side.bytes(0, 4096), long[..4096]);
    let look = switch.look();
    assert_eq!((look.switch.strangers, look.switch.damaged, look.switch.ahead), (0, 0, 0));
    assert!(look.link.tx_batches < look.link.tx_datagrams, "trains");
}

#[test]
fn what_a_key_does_not_open_is_refused_and_the_group_is_over() {
    let switch = Running::new(Access::anybody());
    let member = Member::new();
    let side = Side::new();
    let (leader, _connections) = group(&side, switch.addr, &[&member], &ask(&[member.side.addr()], 1, 1));
    let past_the_end = SendOp::Write(leader.remote(SIZE - 4));
    assert_eq!(leader.perform(past_the_end, 0, 8), WcStatus::RemAccessErr);
    assert!(switch.look().groups[0].refused.is_some());
    let report = switch.reports.recv_timeout(LIMIT.expect("a limit"));
    assert!(matches!(report, Ok(Report::Refused { replica: 0, .. })), "{report:?}");
}

#[test]
fn a_replica_that_is_stopped_or_killed_is_not_waited_for() {
    let switch = Running::new(Access::anybody());
    let members = [Member::new(), Member::new()];
    let mut third = Process::start(&mut again("live::a_replica_for_another_test"));
    let addr = third.after("replica at ").expect("it begins").parse().unwrap();
    let addrs = [members[0].side.addr(), members[1].side.addr(), addr];
    let side = Side::new();
    let both = [&members[0], &members[1]];
    let (leader, _connections) = group(&side, switch.addr, &both, &ask(&addrs, 2, 1));
    assert_eq!(leader.write(0, &pattern(64, 0)), WcStatus::Success);
    let third_is_there = |look: &Look| look.groups[0].replicas[2].lag <= 0;
    switch.until("all three have it", third_is_there);
    third.hold();
    for round in 1..50 {
        assert_eq!(leader.write(64 * round, &pattern(64, round as u8)), WcStatus::Success);
    }
    assert!(!third_is_there(&switch.look()), "it stands still");
    third.go_on();
    switch.until("it has caught up", third_is_there);
    third.kill();
    for round in 50..100 {
        assert_eq!(leader.write(64 * round, &pattern(64, round as u8)), WcStatus::Success);
    }
    assert_eq!(leader.write(0, &pattern(32 << 10, 3)), WcStatus::Success);
    switch.until("both have it", |look| look.groups[0].replicas[..2].iter().all(|one| one.lag <= 0));
    for member in &members {
        assert_eq!(member.side.bytes(0, 32 << 10), pattern(32 << 10, 3));
    }
}

/// Not a test: the third replica of the one above.
#[test]
#[ignore = "a child process of `cargo test -p remanence-switch-live --test waits live::a_replica_that_is_stopped`"]
fn a_replica_for_another_test() {
    let member = Member::new();
    println!("replica at {}", member.side.addr());
    let connection = member.agree();
    let _ = connection.wait_ended(None);
}

#[test]
fn losses_repetitions_and_disorder_on_both_sides_of_it_are_repaired() {
    let addr = address();
    let bad = Faults { loss: 0.02, duplication: 0.02, reordering: 0.02, ..Faults::NONE };
    let link = UdpLink::open(&udp::Options::new(vec![addr])).unwrap();
    let link = Faulty::new(Box::new(link), Plan { tx: bad, rx: bad }, 1).unwrap();
    let faults = link.control();
    let switch = Running::on(Box::new(link), addr, Access::anybody());
    let members = [Member::new(), Member::new(), Member::new()];
    let all: Vec<&Member> = members.iter().collect();
    let addrs = all.iter().map(|member| member.side.addr()).collect::<Vec<_>>();
    let side = Side::new();
    let (leader, _connections) = group(&side, switch.addr, &all, &ask(&addrs, 3, 1));
    for round in 0..20 {
        let bytes = pattern(40_000, round);
        assert_eq!(leader.write(0, &bytes), WcStatus::Success);
        for member in &members {
            assert_eq!(member.side.bytes(0, bytes.len()), bytes, "round {round}");
        }
    }
    let stats = faults.stats();
    assert!(stats.lost > 0 && stats.duplicated > 0 && stats.reordered > 0, "{stats:?}");
}

#[test]
fn a_switch_that_stops_tells_all_and_the_next_one_has_nothing_of_it() {
    let mut switch = Running::new(Access::anybody());
    let members = [Member::new(), Member::new()];
    let all: Vec<&Member> = members.iter().collect();
    let addrs = all.iter().map(|member| member.side.addr()).collect::<Vec<_>>();
    let side = Side::new();
    let (leader, connections) = group(&side, switch.addr, &all, &ask(&addrs, 2, 1));
    assert_eq!(leader.write(0, b"before"), WcStatus::Success);
    let last = switch.stop();
    assert!(last.groups.is_empty() && last.switch.scattered > 0);
    assert!(switch.handle.ask(|plane| plane.look()).is_none(), "nobody is there to be asked");
    for connection in connections.iter().chain([&leader.connection]) {
        assert!(connection.wait_ended(LIMIT).unwrap());
    }
    let switch = Running::at(switch.addr, Access::anybody());
    let (leader, _connections) = group(&side, switch.addr, &all, &ask(&addrs, 2, 2));
    assert_eq!(leader.write(0, b"behind"), WcStatus::Success);
    for member in &members {
        assert_eq!(member.side.bytes(0, 6), b"behind");
    }
}

#[test]
fn a_recording_has_what_came_and_what_left() {
    let switch = Running::new(Access::anybody());
    let recording = switch.handle.ask(|plane| plane.record()).unwrap().unwrap();
    assert!(switch.handle.ask(|plane| plane.record()).unwrap().is_err(), "one at a time");
    let member = Member::new();
    let side = Side::new();
    let (leader, _connections) = group(&side, switch.addr, &[&member], &ask(&[member.side.addr()], 1, 1));
    assert_eq!(leader.write(0, b"recorded"), WcStatus::Success);
    let mut file = Vec::new();
    for block in recording {
        file.extend(block);
        // In the request and in its copy.
        if file.windows(8).filter(|bytes| bytes == b"recorded").count() >= 2 {
            break;
        }
    }
    switch.handle.ask(|plane| plane.record()).unwrap().expect("the last one was given up");
}

#[test]
fn af_xdp_carries_it_as_well() {
    let veth = match Veth::new(1500) {
        Ok(veth) => veth,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return println!("SKIPPED: network namespaces need root: {e}");
        }
        Err(e) => panic!("the veth pair could not be made: {e}"),
    };
    let link = veth.within(End::Right, || Ok(XdpLink::open(&Config::new(Veth::INTERFACE)))).unwrap();
    let link = link.unwrap_or_else(|e| panic!("{e}"));
    let switch = Running::on(Box::new(link), End::Right.ipv4(), Access::anybody());
    let side = || veth.within(End::Left, || Ok(Side::with(Options::udp(End::Left.ipv4())))).unwrap();
    let (member, side) = (Member::with(side()), side());
    let (leader, _connections) = group(&side, switch.addr, &[&member], &ask(&[member.side.addr()], 1, 1));
    let long = pattern(100_000, 5);
    assert_eq!(leader.write(0, &long), WcStatus::Success);
    assert_eq!(member.side.bytes(0, long.len()), long);
    assert_eq!(switch.look().switch.damaged, 0);
}
