//! Sessions on one reactor: QPs to a peer of this process, and threads that wait for them. Whoever is not woken hangs here; nothing
//! is judged by the clock.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, QpCaps, SendFlags, SendOp, SendWr, Wc, WcStatus};
use remanence_service::client::{Background, Came, Endpoint, Reactor, elsewhere};
use remanence_verbs::{ConnectAttr, Context, Cq, Mr, Options, Pd, Qp, QpOptions};

const CAPS: QpCaps =
    QpCaps { max_send_wr: 64, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };

fn device() -> Context {
    Context::open(Options::udp(remanence_effort::address())).expect("a device on this host")
}

/// A device that answers, and the memory that it lends.
struct Peer {
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl Peer {
    fn new() -> Self {
        let context = device();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, None, 0).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.reg_mr(&Region::anonymous(4096).unwrap(), access).unwrap();
        Self { pd, cq, mr }
    }
}

/// The reactor, and memory to write from.
struct Client {
    reactor: Reactor,
    pd: Pd,
    mr: Mr,
}

impl Client {
    fn new() -> Self {
        let context = device();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.reg_mr(&Region::anonymous(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
        Self { reactor: Reactor::new(&context).unwrap(), pd, mr }
    }

    /// A session with a peer; the other QP lives as long as it.
    fn session(&self, peer: &Peer, caps: QpCaps) -> Session {
        let endpoint = self.reactor.endpoint(&self.pd, caps).unwrap();
        let theirs = peer.pd.create_qp(&QpOptions::rc(&peer.cq)).unwrap();
        endpoint.qp().connect_to(&theirs.endpoint(), &ConnectAttr::default()).unwrap();
        theirs.connect_to(&endpoint.qp().endpoint(), &ConnectAttr::default()).unwrap();
        Session { endpoint, _theirs: theirs }
    }

    fn write(&self, session: &Session, wr_id: u64, to: SendOp) {
        let sges = [self.mr.sge(0, 8)];
        let wr = SendWr { wr_id, op: to, data: Data::Sges(&sges), flags: SendFlags::SIGNALED, ud: None };
        session.endpoint.qp().post_send(&wr).unwrap();
    }
}

struct Session {
    endpoint: Endpoint,
    _theirs: Qp,
}

impl Session {
    fn wait(&self) -> Vec<Wc> {
        let mut wcs = Vec::new();
        while self.endpoint.wait(&mut wcs, None).unwrap() == 0 {}
        wcs
    }

    fn ids(&self) -> Vec<u64> {
        self.wait().iter().map(|wc| wc.wr_id).collect()
    }
}

#[test]
fn each_session_gets_its_own_completions_in_their_order() {
    let (client, peer) = (Client::new(), Peer::new());
    let sessions: Vec<_> = (0..5).map(|_| client.session(&peer, CAPS)).collect();
    for round in 0..20 {
        for n in 0..sessions.len() as u64 {
            client.write(&sessions[n as usize], n * 1000 + round, SendOp::Write(peer.mr.remote(0)));
        }
    }
    // The last one first: it takes those of the others out of the queue.
    for n in (0..sessions.len()).rev() {
        let mut ids = Vec::new();
        while ids.len() < 20 {
            ids.extend(sessions[n].ids());
        }
        let expected: Vec<_> = (0..20).map(|round| n as u64 * 1000 + round).collect();
        assert_eq!(ids, expected);
    }
    for session in &sessions {
        assert_eq!(session.endpoint.poll(&mut Vec::new()), Ok(0), "nothing comes twice");
    }
}

#[test]
fn threads_that_wait_on_one_reactor_get_what_is_theirs() {
    const EACH: u64 = 400;
    let (client, peer) = (Client::new(), Peer::new());
    thread::scope(|scope| {
        for t in 0..4_u64 {
            let (client, peer) = (&client, &peer);
            scope.spawn(move || {
                let session = client.session(peer, CAPS);
                let mut wcs = Vec::new();
                for n in 0..EACH {
                    client.write(&session, t << 32 | n, SendOp::Write(peer.mr.remote(t * 8)));
                    wcs.clear();
                    // Some spin, some sleep, and those that spin must not be in the way.
                    while wcs.is_empty() {
                        if (t + n) % 3 == 0 {
                            session.endpoint.poll(&mut wcs).unwrap();
                        } else {
                            session.endpoint.wait(&mut wcs, None).unwrap();
                        }
                    }
                    assert_eq!(wcs.len(), 1);
                    assert_eq!((wcs[0].wr_id, wcs[0].status), (t << 32 | n, WcStatus::Success));
                }
            });
        }
    });
    assert_eq!(client.reactor.sessions(), 0);
}

#[test]
fn one_wait_is_for_any_session_and_those_that_are_silent_do_not_matter() {
    let (client, peer) = (Client::new(), Peer::new());
    let _silent: Vec<_> = (0..3).map(|_| client.session(&peer, CAPS)).collect();
    let sessions: Vec<_> = (0..3).map(|_| client.session(&peer, CAPS)).collect();
    let mut waiter = client.reactor.waiter();
    let mut left = Vec::new();
    for (n, session) in sessions.iter().enumerate() {
        for round in 0..50 {
            client.write(session, round, SendOp::Write(peer.mr.remote(0)));
        }
        left.push((n, 50));
    }
    let mut wcs = Vec::new();
    while !left.is_empty() {
        for (n, left) in &mut left {
            wcs.clear();
            *left -= sessions[*n].endpoint.poll(&mut wcs).unwrap();
        }
        left.retain(|(_, left)| *left > 0);
        if !left.is_empty() {
            assert_eq!(waiter.wait(None), Ok(Came::Something));
        }
    }
}

#[test]
fn what_nobody_takes_is_told_of_once() {
    let (client, peer) = (Client::new(), Peer::new());
    let (idle, other) = (client.session(&peer, CAPS), client.session(&peer, CAPS));
    let mut waiter = client.reactor.waiter();
    client.write(&idle, 1, SendOp::Write(peer.mr.remote(0)));
    assert_eq!(waiter.wait(None), Ok(Came::Something));
    // What lies there still does not keep the thread from sleeping until something else has come.
    assert_eq!(waiter.wait(Some(Instant::now())), Ok(Came::Nothing));
    client.write(&other, 2, SendOp::Write(peer.mr.remote(0)));
    assert_eq!(waiter.wait(None), Ok(Came::Something));
    assert_eq!((other.ids(), idle.ids()), (vec![2], vec![1]));
}

#[test]
fn a_wake_does_not_eat_the_news_that_came_with_it() {
    let (client, peer) = (Client::new(), Peer::new());
    let session = client.session(&peer, CAPS);
    let (mut waiter, mut other) = (client.reactor.waiter(), client.reactor.waiter());
    client.write(&session, 1, SendOp::Write(peer.mr.remote(0)));
    assert_eq!(other.wait(None), Ok(Came::Something), "it lies in the session's inbox now");
    client.reactor.waker().wake();
    assert_eq!(waiter.wait(None), Ok(Came::Woken));
    assert_eq!(waiter.wait(Some(Instant::now())), Ok(Came::Something));
    assert_eq!(waiter.wait(Some(Instant::now())), Ok(Came::Nothing));
    assert_eq!(session.ids(), [1]);
}

#[test]
fn what_fails_is_one_sessions_and_goes_with_it() {
    let (client, peer) = (Client::new(), Peer::new());
    let (bad, good) = (client.session(&peer, CAPS), client.session(&peer, CAPS));
    let mut wrong = peer.mr.remote(0);
    wrong.rkey.0 ^= 0x5a00;
    for n in 0..10 {
        client.write(&bad, n, SendOp::Write(wrong));
    }
    client.write(&good, 77, SendOp::Write(peer.mr.remote(0)));
    let wcs = good.wait();
    assert_eq!(wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(77, WcStatus::Success)]);
    assert_eq!(bad.wait()[0].status, WcStatus::RemAccessErr);
    drop(bad);
    // Its place is another's now, and nothing of it is left there.
    let next = client.session(&peer, CAPS);
    assert_eq!(client.reactor.sessions(), 2);
    client.write(&next, 5, SendOp::Write(peer.mr.remote(0)));
    assert_eq!(next.ids(), [5]);
    client.write(&good, 6, SendOp::Write(peer.mr.remote(0)));
    assert_eq!(good.ids(), [6]);
}

/// Far more than the queue has room for at first, and nobody looks before all have come.
#[test]
fn the_queue_grows_with_the_sessions() {
    let (client, peer) = (Client::new(), Peer::new());
    let caps = QpCaps { max_send_wr: 512, ..CAPS };
    let sessions: Vec<_> = (0..6).map(|_| client.session(&peer, caps)).collect();
    let last = client.session(&peer, CAPS);
    for session in &sessions {
        for n in 0..512 {
            client.write(session, n, SendOp::Write(peer.mr.remote(0)));
        }
    }
    client.write(&last, 9, SendOp::Write(peer.mr.remote(0)));
    assert_eq!(last.ids(), [9]);
    for session in &sessions {
        let mut n = 0;
        while n < 512 {
            n += session.wait().len();
        }
    }
}

#[test]
fn no_wake_of_a_waiter_is_lost_whoever_leads() {
    const ROUNDS: u32 = 2_000;
    let (client, peer) = (Client::new(), Peer::new());
    let (waker, asked, answered) = (client.reactor.waker(), AtomicU32::new(0), AtomicU32::new(0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Leads now and then, with a session of its own.
        scope.spawn(|| {
            let session = client.session(&peer, CAPS);
            for n in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                client.write(&session, n, SendOp::Write(peer.mr.remote(0)));
                assert_eq!(session.ids(), [n]);
            }
        });
        scope.spawn(|| {
            let mut waiter = client.reactor.waiter();
            for round in 1..=ROUNDS {
                while asked.load(Ordering::Relaxed) < round {
                    waiter.wait(None).unwrap();
                }
                answered.store(round, Ordering::Relaxed);
            }
        });
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::Relaxed);
            waker.wake();
            while answered.load(Ordering::Relaxed) < round {
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_wait_is_cancelled_and_other_sessions_do_not_notice() {
    let (client, peer) = (Client::new(), Peer::new());
    let (given_up, other) = (client.session(&peer, CAPS), client.session(&peer, CAPS));
    let (cancel, cancelled) = (given_up.endpoint.canceller(), AtomicBool::new(false));
    thread::scope(|scope| {
        let waits = scope.spawn(|| given_up.endpoint.wait(&mut Vec::new(), None));
        scope.spawn(|| {
            client.write(&other, 3, SendOp::Write(peer.mr.remote(0)));
            assert_eq!(other.ids(), [3]);
            cancelled.store(true, Ordering::Relaxed);
            cancel.cancel();
        });
        assert_eq!(waits.join().unwrap(), Ok(0));
        assert!(cancelled.load(Ordering::Relaxed), "nothing else ends it");
    });
    drop(given_up);
    // The place is another session's by now, which nobody gave up.
    let next = client.session(&peer, CAPS);
    cancel.cancel();
    client.write(&next, 4, SendOp::Write(peer.mr.remote(0)));
    let mut wcs = Vec::new();
    assert_eq!(next.endpoint.wait(&mut wcs, None), Ok(1));
}

#[test]
fn deadlines_of_sessions_end_the_wait_for_any_of_them() {
    let (client, peer) = (Client::new(), Peer::new());
    let (first, second) = (client.session(&peer, CAPS), client.session(&peer, CAPS));
    let mut waiter = client.reactor.waiter();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            // The wait may begin before or after the deadline is set: it ends by it in both cases.
            while !first.endpoint.take_due() {
                assert_eq!(waiter.wait(None), Ok(Came::Something));
            }
        });
        first.endpoint.set_deadline(Some(Instant::now() + Duration::from_millis(2)));
        waits.join().unwrap();
    });
    assert!(!first.endpoint.take_due(), "once");
    assert!(!second.endpoint.take_due());
    second.endpoint.set_deadline(Some(Instant::now()));
    second.endpoint.set_deadline(None);
    first.endpoint.set_deadline(Some(Instant::now()));
    let mut waiter = client.reactor.waiter();
    assert_eq!(waiter.wait(None), Ok(Came::Something));
    assert_eq!((first.endpoint.take_due(), second.endpoint.take_due()), (true, false), "it was taken back");
}

/// A thread that runs one task.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn tasks_are_woken_by_the_thread_in_the_background() {
    let (client, peer) = (Client::new(), Peer::new());
    let background = client.reactor.in_background().unwrap();
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for t in 0..3 {
            let (client, peer, taken) = (&client, &peer, &taken);
            scope.spawn(move || {
                let session = client.session(peer, CAPS);
                for n in 0..200 {
                    client.write(&session, n, SendOp::Write(peer.mr.remote(t * 8)));
                    let mut ready = std::pin::pin!(poll_fn(|task| session.endpoint.poll_ready(task)));
                    let waker = Arc::new(Parked(thread::current())).into();
                    while std::future::Future::poll(
                        ready.as_mut(),
                        &mut std::task::Context::from_waker(&waker),
                    ) == Poll::Pending
                    {
                        thread::park();
                    }
                    let mut wcs = Vec::new();
                    assert_eq!(session.endpoint.poll(&mut wcs), Ok(1));
                    assert_eq!(wcs[0].wr_id, n);
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    drop(background);
    assert_eq!(taken.load(Ordering::Relaxed), 600);
}

#[test]
fn one_thread_carries_a_task_out_whatever_it_waits_for() {
    let (client, peer) = (Client::new(), Peer::new());
    let session = client.session(&peer, CAPS);
    let reactor = client.reactor.clone();
    let done = reactor.block_on(async {
        // A completion.
        client.write(&session, 1, SendOp::Write(peer.mr.remote(0)));
        poll_fn(|task| session.endpoint.poll_ready(task)).await;
        let mut wcs = Vec::new();
        assert_eq!((session.endpoint.take(&mut wcs), wcs[0].wr_id), (1, 1));
        // A time, of which the session hears nothing.
        let mut timer = reactor.timer();
        let begin = Instant::now();
        timer.set(Some(begin + Duration::from_millis(3)));
        poll_fn(|task| timer.poll_over(task)).await;
        assert!(begin.elapsed() >= Duration::from_millis(3));
        assert!(poll_fn(|task| Poll::Ready(timer.poll_over(task).is_pending())).await, "it is over once");
        // Another thread, which ends long after the task waits, or before.
        let mut sum = 0;
        for n in 0..50_u64 {
            sum += elsewhere(move || {
                thread::sleep(Duration::from_micros(n % 3 * 100));
                n
            })
            .await;
        }
        // A timer is no session.
        assert_eq!(reactor.sessions(), 1);
        sum
    });
    assert_eq!(done, 49 * 50 / 2);
}

#[test]
fn what_panics_elsewhere_panics_in_its_task() {
    let reactor = Client::new().reactor;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        reactor.block_on(elsewhere(|| panic!("as it should")));
    }));
    assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"as it should"));
}

#[test]
fn a_future_takes_no_longer_than_it_may() {
    let client = Client::new();
    let reactor = client.reactor.clone();
    reactor.block_on(async {
        assert_eq!(reactor.within(Duration::MAX, async { 7 }).await, Some(7));
        assert_eq!(reactor.within(Duration::ZERO, async { 7 }).await, Some(7), "it is asked first");
        let begin = Instant::now();
        let late = reactor.within(Duration::from_millis(3), std::future::pending::<()>()).await;
        assert!(late.is_none() && begin.elapsed() >= Duration::from_millis(3));
    });
}

/// A task that is polled by whoever wakes it, and drops the thread that does.
struct LetsGo(std::sync::Mutex<Option<Background>>, std::sync::mpsc::Sender<()>);

impl Wake for LetsGo {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

#[test]
fn the_thread_in_the_background_may_be_dropped_by_what_it_wakes() {
    let client = Client::new();
    let (done, ended) = std::sync::mpsc::channel();
    let background = client.reactor.in_background().unwrap();
    let task = Arc::new(LetsGo(std::sync::Mutex::new(Some(background)), done)).into();
    let mut timer = client.reactor.timer();
    let pending = timer.poll_over(&std::task::Context::from_waker(&task));
    assert_eq!(pending, Poll::Pending);
    timer.set(Some(Instant::now()));
    ended.recv().unwrap();
}
