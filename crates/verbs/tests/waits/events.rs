//! Notifications: completion channels and asynchronous events, by blocking calls and by their descriptors.

use crate::common;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use common::{ALL, LIMIT, Pair, Side, connect, open, wr};
use remanence_link::{WaitFd, wait};
use remanence_pmem::Region;
use remanence_rnic::{AsyncEvent, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, SrqAttr};
use remanence_verbs::{CompChannel, DeviceEvent, Progress, QpOptions};

fn readable(fd: BorrowedFd<'_>) -> bool {
    wait::poll(&[WaitFd { fd: fd.as_raw_fd(), events: libc::POLLIN }], Some(Duration::ZERO)).unwrap()
}

fn set_nonblocking(fd: BorrowedFd<'_>) {
    let flags = rustix::fs::fcntl_getfl(fd).unwrap();
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
}

/// A side whose CQ has a channel.
fn with_channel(progress: Progress) -> (Side, CompChannel) {
    let mut side = Side::with_memory(open(progress), &Region::anonymous(1 << 16).unwrap(), ALL);
    let channel = side.context.create_comp_channel().unwrap();
    side.cq = side.context.create_cq(64, Some(&channel), 0x5eed).unwrap();
    (side, channel)
}

#[test]
fn a_thread_blocked_on_a_channel_is_woken_by_the_next_completion() {
    for progress in [Progress::Adaptive, Progress::Sleep, Progress::Spin, Progress::ByConsumer] {
        let (b, channel) = with_channel(progress);
        let pair = Pair::of(Side::new(), b);
        for round in 0..50 {
            pair.qb.post_recv(&RecvWr { wr_id: round, sges: &[pair.b.mr.sge(0, 64)] }).unwrap();
            pair.b.cq.req_notify(false).unwrap();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| channel.get_event(LIMIT));
                pair.qa.post_send(&wr(round, SendOp::Send, &[pair.a.mr.sge(0, 64)])).unwrap();
                let event = waiter.join().unwrap().expect("an event");
                assert_eq!((event.cq, event.user_data), (pair.b.cq.raw(), 0x5eed));
            });
            pair.a.success();
            assert_eq!(pair.b.success().wr_id, round);
        }
        assert_eq!(channel.try_get_event(), None, "one notification for each request");
    }
}

#[test]
fn a_program_with_its_own_epoll_needs_only_the_descriptor() {
    let (b, channel) = with_channel(Progress::default());
    let pair = Pair::of(Side::new(), b);
    set_nonblocking(channel.as_fd());
    assert_eq!(channel.get_event(None), None, "non-blocking mode was asked for with fcntl");
    for round in 0..50 {
        pair.qb.post_recv(&RecvWr { wr_id: round, sges: &[pair.b.mr.sge(0, 64)] }).unwrap();
        pair.b.cq.req_notify(false).unwrap();
        assert!(!readable(channel.as_fd()));
        pair.qa.post_send(&wr(round, SendOp::Send, &[pair.a.mr.sge(0, 64)])).unwrap();
        let fd = WaitFd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN };
        assert!(wait::poll(&[fd], LIMIT).unwrap(), "the progress thread must deliver this");
        assert!(channel.get_event(None).is_some());
        assert!(!readable(channel.as_fd()));
        let mut wcs = Vec::new();
        assert_eq!(pair.b.cq.peek(&mut wcs, 4), Ok(1), "what was notified is there without driving");
        pair.a.success();
    }
}

#[test]
fn a_solicited_request_waits_for_a_solicited_message() {
    let (b, channel) = with_channel(Progress::default());
    let pair = Pair::of(Side::new(), b);
    for wr_id in 0..2 {
        pair.qb.post_recv(&RecvWr { wr_id, sges: &[pair.b.mr.sge(0, 64)] }).unwrap();
    }
    pair.b.cq.req_notify(true).unwrap();
    let sge = [pair.a.mr.sge(0, 8)];
    pair.qa.post_send(&wr(0, SendOp::Send, &sge)).unwrap();
    assert_eq!(pair.b.success().wr_id, 0);
    assert_eq!(channel.try_get_event(), None);
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    pair.qa.post_send(&SendWr { flags: solicited, ..wr(1, SendOp::Send, &sge) }).unwrap();
    assert!(channel.get_event(LIMIT).is_some());
}

#[test]
fn the_notifications_of_a_destroyed_cq_vanish() {
    let (b, channel) = with_channel(Progress::default());
    let extra = b.context.create_cq(16, Some(&channel), 1).unwrap();
    let (qb, a) = (b.pd.create_qp(&QpOptions::rc(&extra)).unwrap(), Side::new());
    let qa = a.qp();
    connect(&qa, &qb);
    extra.req_notify(false).unwrap();
    qb.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(0, 8)] }).unwrap();
    qa.post_send(&wr(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
    let fd = WaitFd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN };
    assert!(wait::poll(&[fd], LIMIT).unwrap());
    assert!(channel.is_used());
    assert!(extra.destroy().is_err(), "a QP uses it");
    drop((qb, extra));
    assert!(!readable(channel.as_fd()), "its event went with it");
    assert_eq!(channel.try_get_event(), None);
    drop(b.cq.clone());
    assert!(channel.is_used(), "the other CQ still does");
}

#[test]
fn asynchronous_events_arrive_at_their_descriptor() {
    let (a, b) = (Side::new(), Side::new());
    let srq = b.pd.create_srq(&SrqAttr { max_wr: 16, max_sge: 1, limit: 2 }).unwrap();
    let qb = b.pd.create_qp(&QpOptions { srq: Some(&srq), ..QpOptions::rc(&b.cq) }).unwrap();
    let qa = a.qp();
    connect(&qa, &qb);
    for wr_id in 0..2 {
        srq.post_recv(&RecvWr { wr_id, sges: &[b.mr.sge(0, 8)] }).unwrap();
    }
    assert_eq!(b.context.try_get_async_event(), None);
    qa.post_send(&wr(1, SendOp::Send, &[a.mr.sge(0, 8)])).unwrap();
    let event = b.context.get_async_event(LIMIT);
    assert_eq!(event, Some(DeviceEvent::Affiliated(AsyncEvent::SrqLimitReached(srq.raw()))));
    assert!(!readable(b.context.async_fd()));
    set_nonblocking(b.context.async_fd());
    assert_eq!(b.context.get_async_event(None), None);
    b.success();
}

#[test]
fn the_asynchronous_events_of_a_destroyed_object_vanish() {
    let (a, b) = (Side::new(), Side::new());
    let srq = b.pd.create_srq(&SrqAttr { max_wr: 16, max_sge: 1, limit: 2 }).unwrap();
    let qb = b.pd.create_qp(&QpOptions { srq: Some(&srq), ..QpOptions::rc(&b.cq) }).unwrap();
    let qa = a.qp();
    connect(&qa, &qb);
    srq.post_recvs((0..2).map(|wr_id| RecvWr { wr_id, sges: &[] })).unwrap();
    qa.post_send(&wr(1, SendOp::Send, &[])).unwrap();
    b.success();
    qb.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() }).unwrap();
    assert!(readable(b.context.async_fd()), "the limit was reached, and there was a last WQE");
    qb.destroy().unwrap();
    let event = b.context.try_get_async_event();
    assert_eq!(event, Some(DeviceEvent::Affiliated(AsyncEvent::SrqLimitReached(srq.raw()))));
    assert!(!readable(b.context.async_fd()), "the QP's event went with it");
    assert_eq!(b.context.try_get_async_event(), None);
}

#[test]
fn a_blocking_wait_ends_at_its_limit() {
    let side = Side::new();
    let mut wcs = Vec::new();
    assert_eq!(side.cq.wait(&mut wcs, 1, Some(Duration::from_millis(5))), Ok(0));
    assert_eq!(side.context.get_async_event(Some(Duration::from_millis(5))), None);
}
