//! Many threads, many QPs, and objects that go while they are in use.

use crate::common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{ALL, LIMIT, Pair, Side, connect, open, pattern, wr};
use remanence_pmem::Region;
use remanence_rnic::{RecvWr, SendOp, Wc, WcStatus};
use remanence_verbs::{Progress, QpOptions};

#[test]
fn threads_with_queues_of_their_own_share_a_device() {
    let (a, b) = (Side::new(), Side::new());
    thread::scope(|scope| {
        for t in 0..4u64 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let cq = a.context.create_cq(64, None, 0).unwrap();
                let qa = a.pd.create_qp(&QpOptions::rc(&cq)).unwrap();
                let qb = b.qp();
                connect(&qa, &qb);
                let mut wcs = Vec::new();
                for i in 0..500u64 {
                    a.mr.region().store_u64(t * 64, i);
                    let sge = [a.mr.sge(t * 64, 8)];
                    qa.post_send(&wr(i, SendOp::Write(b.mr.remote(t * 64)), &sge)).unwrap();
                    wcs.clear();
                    // Some spin, some block: both kinds of driver at once.
                    while cq.poll(&mut wcs, 1).unwrap() == 0 {
                        if t % 2 == 0 {
                            cq.wait(&mut wcs, 1, LIMIT).unwrap();
                            break;
                        }
                    }
                    assert_eq!((wcs[0].wr_id, wcs[0].status), (i, WcStatus::Success));
                    assert_eq!(b.mr.region().load_u64(t * 64), i);
                }
            });
        }
    });
}

#[test]
fn threads_that_share_one_cq_get_each_completion_once() {
    let pair = Pair::new();
    const EACH: u64 = 500;
    let seen: Vec<AtomicU64> = (0..4 * EACH).map(|_| AtomicU64::new(0)).collect();
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for t in 0..4u64 {
            let (pair, seen, taken) = (&pair, &seen, &taken);
            scope.spawn(move || {
                let mut next = t * EACH;
                let mut wcs: Vec<Wc> = Vec::new();
                while taken.load(Ordering::Relaxed) < 4 * EACH {
                    if next < (t + 1) * EACH {
                        let sge = [pair.a.mr.sge(0, 8)];
                        let op = SendOp::Write(pair.b.mr.remote(0));
                        match pair.qa.post_send(&wr(next, op, &sge)) {
                            Ok(()) => next += 1,
                            Err(remanence_rnic::PostError::QueueFull) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                    wcs.clear();
                    pair.a.cq.poll(&mut wcs, 8).unwrap();
                    for wc in &wcs {
                        assert_eq!(wc.status, WcStatus::Success);
                        assert_eq!(seen[wc.wr_id as usize].fetch_add(1, Ordering::Relaxed), 0);
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1));
}

#[test]
fn a_thousand_qps_carry_their_own_data() {
    let (a, b) = (Side::new(), Side::new());
    let qps: Vec<_> = (0..1000)
        .map(|_| {
            let (qa, qb) = (a.qp(), b.qp());
            connect(&qa, &qb);
            (qa, qb)
        })
        .collect();
    for (i, (qa, _)) in qps.iter().enumerate() {
        let i = i as u64;
        a.mr.region().store_u64(i * 8, i + 1);
        qa.post_send(&wr(i, SendOp::Write(b.mr.remote(i * 8)), &[a.mr.sge(i * 8, 8)])).unwrap();
    }
    let mut done = vec![false; qps.len()];
    for _ in 0..qps.len() {
        let wc = a.success();
        assert!(!std::mem::replace(&mut done[wc.wr_id as usize], true));
    }
    for i in 0..qps.len() as u64 {
        assert_eq!(b.mr.region().load_u64(i * 8), i + 1);
    }
}

#[test]
fn a_device_with_a_thousand_idle_connections_sleeps() {
    let (a, b) = (Side::new(), Side::new());
    let _qps: Vec<_> = (0..1000)
        .map(|_| {
            let (qa, qb) = (a.qp(), b.qp());
            connect(&qa, &qb);
            (qa, qb)
        })
        .collect();
    let turns = || b.context.progress_stats().thread_turns;
    // The last retries of spinning and of the recent work end; then nothing but housekeeping is left.
    let quiet = |before: u64| {
        thread::sleep(Duration::from_millis(100));
        turns() - before < 20
    };
    let begin = Instant::now();
    while !quiet(turns()) {
        assert!(begin.elapsed() < LIMIT.unwrap(), "the progress thread does not come to rest");
    }
}

#[test]
fn memory_deregistered_under_traffic_fails_what_comes_after_and_nothing_else() {
    let (a, b) = (Side::new(), Side::new());
    let (qa, qb) = (a.qp(), b.qp());
    connect(&qa, &qb);
    let mut victim = b.pd.reg_mr(&Region::anonymous(1 << 20).unwrap(), ALL).unwrap();
    let region = victim.region().clone();
    a.fill(0, &pattern(1 << 20, 5));
    let sge = [a.mr.sge(0, 1 << 20)];
    for i in 0..8 {
        qa.post_send(&wr(i, SendOp::Write(victim.remote(0)), &sge)).unwrap();
    }
    assert_eq!(a.completion().status, WcStatus::Success);
    victim.dereg().unwrap();
    region.write(0, &[0; 4096]);
    // All eight may have been finished by now; this one comes too late for certain.
    qa.post_send(&wr(8, SendOp::Write(victim.remote(0)), &sge)).unwrap();
    let statuses: Vec<_> = (1..9).map(|_| a.completion().status).collect();
    let failed = statuses.iter().position(|status| *status != WcStatus::Success).expect("the MR is gone");
    assert_eq!(statuses[failed], WcStatus::RemAccessErr);
    assert!(statuses[failed + 1..].iter().all(|status| *status == WcStatus::WrFlushErr));
    let mut head = [1; 4096];
    region.read(0, &mut head);
    assert_eq!(head, [0; 4096], "nothing is written after deregistration has returned");
    // The device and its other QPs are well.
    let pair = Pair::of(a, b);
    pair.qa.post_send(&wr(9, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 64)])).unwrap();
    pair.a.success();
}

#[test]
fn a_device_closes_with_work_outstanding_and_the_peer_finds_out() {
    let Pair { a, b, qa, qb } = Pair::new();
    qa.post_recv(&RecvWr { wr_id: 1, sges: &[a.mr.sge(0, 64)] }).unwrap();
    for i in 0..16 {
        qb.post_send(&wr(i, SendOp::Read(a.mr.remote(0)), &[b.mr.sge(0, 1 << 20)])).unwrap();
    }
    drop((qb, b));
    // Its reads were in full flow; our device does not mind, and goes on.
    let again = Pair::of(a, Side::new());
    again.qa.post_send(&wr(2, SendOp::Write(again.b.mr.remote(0)), &[again.a.mr.sge(0, 64)])).unwrap();
    assert_eq!(again.a.success().wr_id, 2);
    drop(qa);
}

#[test]
fn objects_keep_what_they_need_and_refuse_to_go_before_their_users() {
    let Side { context, pd, cq, mr } = Side::new();
    let qp = pd.create_qp(&QpOptions::rc(&cq)).unwrap();
    assert!(pd.dealloc().is_err());
    assert!(cq.destroy().is_err());
    drop((context, pd, cq, mr));
    // The QP holds the domain, the CQ and the device.
    assert_eq!(qp.query().unwrap().state, remanence_rnic::QpState::Reset);
    let pd = qp.pd().clone();
    drop(qp);
    pd.dealloc().unwrap();
}

#[test]
fn with_a_progress_thread_of_its_own_kind_a_passive_side_serves() {
    for progress in [Progress::Adaptive, Progress::Sleep, Progress::Spin] {
        let pair = Pair::of(Side::new(), Side::with(open(progress)));
        for i in 0..200 {
            let sge = [pair.a.mr.sge(0, 64)];
            pair.qa.post_send(&wr(i, SendOp::Write(pair.b.mr.remote(0)), &sge)).unwrap();
            assert_eq!(pair.a.success().wr_id, i);
        }
    }
}

#[test]
fn a_handover_is_counted_where_another_kind_of_thread_drives_and_not_where_the_same_does() {
    let side = Side::with(open(Progress::ByConsumer));
    let handovers = || side.context.progress_stats().handovers;
    let mut wcs = Vec::new();
    let mut poll = |times: u64| (0..times).for_each(|_| assert_eq!(side.cq.poll(&mut wcs, 1).unwrap(), 0));
    poll(3);
    assert_eq!(handovers(), 0, "only a poller has driven");
    assert_eq!(side.cq.wait(&mut Vec::new(), 1, Some(Duration::from_millis(1))).unwrap(), 0);
    assert_eq!(handovers(), 1, "and then a waiter");
    poll(3);
    assert_eq!(handovers(), 2, "and a poller again");
}

/// Raises a flag when it goes, also by a panic: whoever looks at it would else be waited for.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn without_a_progress_thread_the_consumer_serves_by_polling() {
    let pair = Pair::of(Side::new(), Side::with(open(Progress::ByConsumer)));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pair.b.context.poll();
            }
        });
        let _end = Raise(&done);
        for i in 0..200 {
            let sge = [pair.a.mr.sge(0, 64)];
            pair.qa.post_send(&wr(i, SendOp::Write(pair.b.mr.remote(0)), &sge)).unwrap();
            assert_eq!(pair.a.success().wr_id, i);
        }
    });
}

/// Who posts on and on keeps its progress thread off the link, as one that polls does: so it serves.
#[test]
fn a_consumer_that_only_posts_serves_its_peers() {
    let pair = Pair::of(Side::new(), Side::with(open(Progress::ByConsumer)));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (sge, mut wcs) = ([pair.b.mr.sge(0, 64 << 10)], Vec::new());
            while !done.load(Ordering::Relaxed) {
                // A full queue refuses it.
                let _ = pair.qb.post_send(&wr(0, SendOp::Write(pair.a.mr.remote(64 << 10)), &sge));
                pair.b.cq.peek(&mut wcs, 16).unwrap();
                assert!(wcs.drain(..).all(|wc| wc.status == WcStatus::Success));
            }
        });
        let _end = Raise(&done);
        for i in 0..20 {
            let sge = [pair.a.mr.sge(0, 64)];
            pair.qa.post_send(&wr(i, SendOp::Read(pair.b.mr.remote(0)), &sge)).unwrap();
            assert_eq!(pair.a.success().wr_id, i);
        }
    });
}
