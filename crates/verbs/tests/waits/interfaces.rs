//! Interfaces that change under open devices, on a cable between two network namespaces.

use crate::common;

use std::io;

use common::{LIMIT, Side, connect, pattern, wr};
use remanence_link::veth::{End, Veth};
use remanence_rnic::SendOp;
use remanence_verbs::{ConnectAttr, Context, DeviceEvent, Options, Qp, QpEndpoint};
use remanence_wire::Gid;

fn veth() -> Option<Veth> {
    match Veth::new(1500) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            println!("SKIPPED: network namespaces need root: {e}");
            None
        }
        other => Some(other.expect("a veth pair")),
    }
}

/// A device that is opened with the IPv4 address of an end, and follows the interface: the IPv6 address comes later.
fn side(veth: &Veth, end: End) -> Side {
    let follow = Some(Veth::INTERFACE.to_owned());
    let side = veth
        .within(end, || {
            Ok(Side::with(Context::open(Options { follow, ..Options::udp(end.ipv4()) }).unwrap()))
        })
        .unwrap();
    assert_eq!(side.context.config().gids, [Gid::from_ip(end.ipv4())]);
    until(&side.context, DeviceEvent::GidChange);
    side
}

/// Takes events up to this one.
fn until(context: &Context, expected: DeviceEvent) {
    while context.get_async_event(LIMIT).expect("an event within the limit") != expected {}
}

/// Writes from one side into the other's memory, and looks there.
fn write(from: &Side, qp: &Qp, to: &Side, seed: u8) {
    let text = pattern(10_000, seed);
    from.fill(0, &text);
    qp.post_send(&wr(seed.into(), SendOp::Write(to.mr.remote(0)), &[from.mr.sge(0, 10_000)])).unwrap();
    assert_eq!(from.success().wr_id, u64::from(seed));
    assert_eq!(to.bytes(0, 10_000), text);
}

#[test]
fn an_address_that_comes_later_is_sent_from_and_received_at() {
    let Some(veth) = veth() else { return };
    let [a, b] = [End::Left, End::Right].map(|end| side(&veth, end));
    let (qa, qb) = (a.qp(), b.qp());
    for (side, end) in [(&a, End::Left), (&b, End::Right)] {
        let port = side.context.port();
        assert!(port.active);
        assert_eq!(port.index_of(Gid::from_ip(end.ipv4())), Some(0), "the first stays where it was");
        assert_eq!(port.index_of(Gid::from_ip(end.ipv6())), Some(1));
    }
    let at = |qp: &Qp, end: End| QpEndpoint { gid: Gid::from_ip(end.ipv6()), ..qp.endpoint() };
    qa.connect_to(&at(&qb, End::Right), &ConnectAttr::default()).unwrap();
    qb.connect_to(&at(&qa, End::Left), &ConnectAttr::default()).unwrap();
    write(&a, &qa, &b, 1);
    write(&b, &qb, &a, 2);
}

#[test]
fn what_is_sent_while_a_cable_is_unplugged_arrives_when_it_is_plugged_in_again() {
    let Some(veth) = veth() else { return };
    let [a, b] = [End::Left, End::Right].map(|end| side(&veth, end));
    let (qa, qb) = (a.qp(), b.qp());
    connect(&qa, &qb);
    write(&a, &qa, &b, 1);
    veth.set_up(End::Right, false).unwrap();
    for side in [&a, &b] {
        until(&side.context, DeviceEvent::PortError);
        assert!(!side.context.port().active);
    }
    // The interface that is down has lost its IPv6 address, before or after, and keeps the other.
    while b.context.port().index_of(Gid::from_ip(End::Right.ipv6())).is_some() {
        until(&b.context, DeviceEvent::GidChange);
    }
    assert_eq!(b.context.port().addresses().collect::<Vec<_>>(), [Gid::from_ip(End::Right.ipv4())]);
    let text = pattern(10_000, 2);
    a.fill(0, &text);
    qa.post_send(&wr(2, SendOp::Write(b.mr.remote(0)), &[a.mr.sge(0, 10_000)])).unwrap();
    assert_eq!(a.cq.poll(&mut Vec::new(), 1), Ok(0), "nobody is there to acknowledge it");
    veth.set_up(End::Right, true).unwrap();
    for side in [&a, &b] {
        until(&side.context, DeviceEvent::PortActive);
        assert!(side.context.port().active);
    }
    assert_eq!(a.success().wr_id, 2);
    assert_eq!(b.bytes(0, 10_000), text);
    write(&b, &qb, &a, 3);
}
