//! UD multicast: several QPs, devices and processes of one host, and what is not for them.

use crate::common;

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Stdio;
use std::time::Duration;

use common::{Side, address, open_at, wr};
use remanence_effort::{Process, again};
use remanence_rnic::{AhAttr, QpCaps, QpType, RecvWr, SendOp, SendWr, VerbError, Wc, WcStatus};
use remanence_verbs::{Ah, Context, Error, Options, Progress, Qp, QpOptions};
use remanence_wire::{Gid, Qkey, Qpn};

const QKEY: Qkey = Qkey(0x1357);
const PART: &str = "REMANENCE_TEST_MEMBER_AT";
/// GRH area and data.
const GRH: usize = 40;

/// A group that no other test process uses at the moment; the IPv6 one does not leave this host.
fn group(like: IpAddr, n: u8) -> Gid {
    let process = std::process::id();
    let (high, low) = ((process >> 8) as u8, process as u8);
    Gid::from_ip(match like {
        IpAddr::V4(_) => IpAddr::from([239, high, low, n]),
        IpAddr::V6(_) => Ipv6Addr::new(0xff11, 0, 0, 0, 0, 0, process as u16, n.into()).into(),
    })
}

fn ud(side: &Side) -> Qp {
    let caps = QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline: 64 };
    let qp = side.pd.create_qp(&QpOptions { ty: QpType::Ud, caps, ..QpOptions::rc(&side.cq) }).unwrap();
    qp.activate_ud(QKEY).unwrap();
    qp
}

/// A UD QP that listens to the group, with a receive posted at `slot` of its side's memory.
fn member(side: &Side, group: Gid, slot: u64) -> Qp {
    let qp = ud(side);
    qp.attach_mcast(group).unwrap();
    qp.post_recv(&RecvWr { wr_id: slot, sges: &[side.mr.sge(slot * 256, 256)] }).unwrap();
    qp
}

fn send(side: &Side, qp: &Qp, ah: &Ah, qpn: Qpn, text: &[u8]) {
    side.fill(1 << 16, text);
    let dest = ah.dest(qpn, QKEY);
    let sges = [side.mr.sge(1 << 16, text.len() as u32)];
    qp.post_send(&SendWr { ud: Some(dest), ..wr(99, SendOp::Send, &sges) }).unwrap();
    assert_eq!(side.success().wr_id, 99);
}

fn received(side: &Side, wc: &Wc, slot: u64, text: &[u8]) {
    assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (slot, WcStatus::Success, GRH + text.len()));
    assert!(wc.grh);
    assert_eq!(side.bytes(slot * 256 + GRH as u64, text.len()), text);
}

fn nothing(side: &Side) {
    let mut wcs = Vec::new();
    assert_eq!(side.cq.wait(&mut wcs, 1, Some(Duration::from_millis(50))), Ok(0), "{wcs:?}");
}

/// An IPv4 address, and an IPv6 address of another interface if there is one: Linux has no route for IPv6 multicast on
/// the loopback interface.
fn addresses() -> Vec<IpAddr> {
    let mut addresses = vec![address()];
    let interfaces = remanence_link::route::interfaces().unwrap();
    match interfaces.iter().find(|i| i.up && !i.loopback && i.addr.is_ipv6() && i.scope_id == 0) {
        Some(interface) => addresses.push(interface.addr),
        None => eprintln!("skipped for IPv6: this machine has no global IPv6 address"),
    }
    addresses
}

#[test]
fn every_member_gets_one_copy_and_nobody_else_does() {
    for address in addresses() {
        let group = group(address, 1);
        let sender = Side::with(open_at(address, Progress::default()));
        let one = Side::with(open_at(address, Progress::default()));
        let other = Side::with(open_at(address, Progress::default()));
        let (first, second) = (member(&one, group, 1), member(&one, group, 2));
        let third = member(&other, group, 3);
        let outsider = ud(&other);
        outsider.post_recv(&RecvWr { wr_id: 4, sges: &[other.mr.sge(4 * 256, 256)] }).unwrap();
        first.attach_mcast(group).unwrap();

        let qp = ud(&sender);
        let ah = sender.pd.create_ah(&AhAttr::new(group)).unwrap();
        send(&sender, &qp, &ah, Qpn::MULTICAST, b"to whom it may concern");
        let mut got = [one.success(), one.success()];
        got.sort_by_key(|wc| wc.wr_id);
        received(&one, &got[0], 1, b"to whom it may concern");
        received(&one, &got[1], 2, b"to whom it may concern");
        assert_eq!((got[0].qpn, got[1].qpn, got[0].src_qp), (first.qpn(), second.qpn(), qp.qpn()));
        received(&other, &other.success(), 3, b"to whom it may concern");
        nothing(&one);
        nothing(&other);

        // The destination in the GRH area is the group.
        let grh = one.bytes(256, GRH);
        match group.to_ip() {
            IpAddr::V4(ip) => assert_eq!(grh[GRH - 4..], ip.octets()),
            IpAddr::V6(ip) => assert_eq!(grh[GRH - 16..], ip.octets()),
        }

        // A QP number that is somebody's, at the group's address, is nobody's.
        third.post_recv(&RecvWr { wr_id: 3, sges: &[other.mr.sge(3 * 256, 256)] }).unwrap();
        send(&sender, &qp, &ah, third.qpn(), b"forged");
        nothing(&other);

        // Who left gets no more, who stayed does.
        third.detach_mcast(group).unwrap();
        assert!(matches!(third.detach_mcast(group), Err(VerbError::InvalidArgument(_))));
        drop(second);
        first.post_recv(&RecvWr { wr_id: 5, sges: &[one.mr.sge(5 * 256, 256)] }).unwrap();
        send(&sender, &qp, &ah, Qpn::MULTICAST, b"still there?");
        received(&one, &one.success(), 5, b"still there?");
        nothing(&other);
        assert_eq!(other.context.stats().rx_packets, 2, "the link has left the group");
    }
}

#[test]
fn a_sender_that_listens_hears_itself() {
    for address in addresses() {
        let group = group(address, 2);
        let side = Side::with(open_at(address, Progress::default()));
        let qp = member(&side, group, 1);
        let ah = side.pd.create_ah(&AhAttr::new(group)).unwrap();
        let dest = ah.dest(Qpn::MULTICAST, QKEY);
        side.fill(1 << 16, b"echo");
        let sges = [side.mr.sge(1 << 16, 4)];
        qp.post_send(&SendWr { ud: Some(dest), ..wr(99, SendOp::Send, &sges) }).unwrap();
        let mut got = [side.success(), side.success()];
        got.sort_by_key(|wc| wc.wr_id);
        received(&side, &got[0], 1, b"echo");
        assert_eq!(got[1].wr_id, 99);
    }
}

#[test]
fn another_group_another_q_key_and_another_version_are_not_ours() {
    let at = address();
    let (sender, side) =
        (Side::with(open_at(at, Progress::default())), Side::with(open_at(at, Progress::default())));
    let (ours, theirs) = (group(at, 3), group(at, 4));
    let qp = member(&side, ours, 1);
    let from = ud(&sender);
    let to = |group| sender.pd.create_ah(&AhAttr::new(group)).unwrap();
    send(&sender, &from, &to(theirs), Qpn::MULTICAST, b"not for us");
    let right = to(ours);
    let wrong = SendWr { ud: Some(right.dest(Qpn::MULTICAST, Qkey(0x2468))), ..wr(99, SendOp::Send, &[]) };
    from.post_send(&wrong).unwrap();
    sender.success();
    nothing(&side);
    let v6 = group(Ipv6Addr::LOCALHOST.into(), 3);
    assert!(matches!(qp.attach_mcast(v6), Err(Error::Os { .. })), "the device has no IPv6 address");
    assert!(matches!(qp.attach_mcast(Gid::from_ip(at)), Err(Error::Verb(VerbError::InvalidArgument(_)))));
    assert!(sender.pd.create_ah(&AhAttr::new(v6)).is_err());
    let rc = side.qp();
    assert!(matches!(rc.attach_mcast(ours), Err(Error::Verb(VerbError::InvalidArgument(_)))));
}

#[test]
fn shared_memory_says_that_it_has_no_multicast() {
    let side = Side::with(Context::open(Options::shm(None)).unwrap());
    let qp = ud(&side);
    let group = group(common::address_of(&side.context), 5);
    let error = qp.attach_mcast(group).unwrap_err().to_string();
    assert!(error.contains("use UDP for multicast"), "{error}");
    assert!(qp.detach_mcast(group).is_err(), "it is as if it had never been attached");
}

/// A process that listens to the group, in a child of the test.
fn start(address: IpAddr, group: Gid) -> Process {
    let part = format!("{address} {}", group.to_ip());
    let mut command = again("multicast::the_part_of_the_member");
    let mut member = Process::start(command.env(PART, part).stdin(Stdio::piped()));
    member.after("member is listening").expect("it listens");
    member
}

#[test]
#[ignore = "a child process of `cargo test -p remanence-verbs --test waits multicast::every_process`"]
fn the_part_of_the_member() {
    let Ok(part) = std::env::var(PART) else { return };
    let (address, group) = part.split_once(' ').unwrap();
    let side = Side::with(open_at(address.parse().unwrap(), Progress::default()));
    let qp = member(&side, Gid::from_ip(group.parse().unwrap()), 1);
    println!("member is listening");
    loop {
        let wc = side.success();
        let text = side.bytes(256 + GRH as u64, wc.byte_len as usize - GRH);
        // Before it says so: a datagram that finds no receive is dropped.
        qp.post_recv(&RecvWr { wr_id: 1, sges: &[side.mr.sge(256, 256)] }).unwrap();
        println!("member got {}", String::from_utf8_lossy(&text));
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn every_process_at_a_shared_port_gets_its_copy() {
    for address in addresses() {
        let group = group(address, 6);
        let mut members = [start(address, group), start(address, group)];
        let side = Side::with(open_at(address, Progress::default()));
        let _own = member(&side, group, 1);
        let sender = Side::with(open_at(address, Progress::default()));
        let qp = ud(&sender);
        let ah = sender.pd.create_ah(&AhAttr::new(group)).unwrap();
        send(&sender, &qp, &ah, Qpn::MULTICAST, b"hear, hear");
        received(&side, &side.success(), 1, b"hear, hear");
        for member in &mut members {
            member.after("member got hear, hear").expect("it says so");
        }
        // One of them dies; the others do not mind.
        members[0].kill();
        send(&sender, &qp, &ah, Qpn::MULTICAST, b"once more");
        members[1].after("member got once more").expect("it says so");
    }
}
