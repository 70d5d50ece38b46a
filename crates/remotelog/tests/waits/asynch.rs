//! Futures of a log, over real servers in this process. Whoever is not woken hangs here; nothing is judged by the clock.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use remanence_pmem::Survives;
use remanence_remote::{Reactor, Stop};
use remanence_remotelog::{
    AsyncLog, AsyncLogReader, ConnectOptions, GroupError, Log, LogOptions, LogReader, LogServer, Record,
};
use remanence_verbs::{Context, Options};
use tempfile::TempDir;

/// A device at an address of 127/8 that no other test of this or another process uses at the moment.
fn device() -> Context {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id() % 60_000 + 256;
    let n = NEXT.fetch_add(1, Ordering::Relaxed) % 254 + 1;
    let address: IpAddr = Ipv4Addr::new(127, (process >> 8) as u8, process as u8, n as u8).into();
    Context::open(Options::udp(address)).expect("a device on loopback")
}

struct Server {
    addr: SocketAddr,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    directory: TempDir,
}

impl Server {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        Self::on(directory, &device(), 0)
    }

    fn on(directory: TempDir, device: &Context, port: u16) -> Self {
        let log = LogOptions::file(directory.path().join("log")).size(1 << 20).port(port);
        let mut server = LogServer::open(device, log).expect("a server");
        let (addr, stop) = (server.addr(), Arc::new(Stop::new()));
        let asked = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            server.run(&asked).expect("it serves");
        });
        Self { addr, stop, thread: Some(thread), directory }
    }

    /// Begins again where it was, on an empty disk or on its own.
    fn start_again(&mut self, is_empty: bool) {
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().expect("a directory"));
        if is_empty {
            std::fs::remove_file(directory.path().join("log")).expect("its log");
        }
        let device = Context::open(Options::udp(self.addr.ip())).expect("its address");
        *self = Self::on(directory, &device, self.addr.port());
    }

    fn end(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends well");
        }
    }

    fn read(&self) -> Vec<Record> {
        let reader = LogReader::connect_to(self.addr, &to()).expect("it is there");
        reader.collect::<Result<_, _>>().expect("it is whole")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn to() -> ConnectOptions {
    ConnectOptions::default()
}

fn addresses(servers: &[Server]) -> Vec<SocketAddr> {
    servers.iter().map(|server| server.addr).collect()
}

fn payload(n: u64) -> Vec<u8> {
    (0..n * 37 % 300).map(|i| (i + n) as u8).collect()
}

/// Polls it once, for nobody.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Task::from_waker(Waker::noop()))
}

/// Wakes a thread that waits for a future and for nothing else: another one waits for the reactor.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn parked<T>(future: impl Future<Output = T>) -> T {
    let (waker, mut future) = (Waker::from(Arc::new(Parked(thread::current()))), pin!(future));
    loop {
        match future.as_mut().poll(&mut Task::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// An executor that polls a task in the thread that wakes it, as some do.
struct PolledAtOnce {
    task: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Woken and not polled since.
    woken: AtomicU32,
}

impl PolledAtOnce {
    fn spawn(task: impl Future<Output = ()> + Send + 'static) {
        Arc::new(Self { task: Mutex::new(Some(Box::pin(task))), woken: AtomicU32::new(0) }).wake();
    }
}

impl Wake for PolledAtOnce {
    fn wake(self: Arc<Self>) {
        if self.woken.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        loop {
            let seen = self.woken.load(Ordering::Acquire);
            let mut task = self.task.lock().expect("nobody else polls it");
            let waker = Waker::from(Arc::clone(&self));
            if let Some(running) = &mut *task
                && running.as_mut().poll(&mut Task::from_waker(&waker)).is_ready()
            {
                *task = None;
            }
            drop(task);
            if self.woken.fetch_sub(seen, Ordering::AcqRel) == seen {
                return;
            }
        }
    }
}

#[test]
fn what_many_appends_have_come_to_is_durable_and_in_their_order() {
    let servers = [(); 3].map(|()| Server::new());
    let reactor = Reactor::new(&device()).expect("a reactor");
    let expected: Vec<Vec<u8>> = (0..302).map(payload).collect();
    reactor.block_on(async {
        let log = AsyncLog::connect(&reactor, &addresses(&servers), &to()).await.expect("it opens");
        assert_eq!((log.next(), log.quorum(), log.survives()), (0, (3, 3), None));
        // More than are under way at a time: the later ones wait for their place.
        let appends: Vec<_> = expected[..300].iter().map(|payload| log.append(payload)).collect();
        for (n, append) in (0..).zip(appends) {
            assert_eq!(append.await, Ok(n));
            assert!(log.acknowledged() > n, "it is acknowledged when its future ends");
        }
        assert_eq!(log.survives(), Some(Survives::PROCESS_CRASH));
        assert_eq!(log.begin_append(&expected[300]).await, Ok(300));
        assert_eq!(log.append(&expected[301]).await, Ok(301));
        let too_long = log.append(&[0; 1 << 20]).await;
        assert!(matches!(too_long, Err(GroupError::Append(_))), "{too_long:?}");
        log.clone().close().await.expect("all of them are there");
        assert_eq!(log.trim(303).await.map_err(|error| matches!(error, GroupError::Refused(_))), Err(true));
        // Read as a task does, each record looked for by a future that is given up first.
        let mut reader =
            AsyncLogReader::connect(&reactor, servers[0].addr, &to()).await.expect("it is there");
        for (n, expected) in (0..).zip(&expected) {
            let given_up = poll_once(pin!(reader.next()));
            let record = match given_up {
                Poll::Ready(record) => record,
                Poll::Pending => reader.next().await,
            };
            let record = record.expect("it is there").expect("it is whole");
            assert_eq!((record.sequence, &record.payload), (n, expected));
        }
        assert_eq!(reader.next().await, None);
        log.trim(100).await.expect("all of them are there");
        let first = AsyncLogReader::connect(&reactor, servers[1].addr, &to()).await.expect("it is there");
        assert_eq!(first.next_sequence(), 100);
    });
    for server in &servers {
        let read: Vec<Vec<u8>> = server.read().into_iter().map(|record| record.payload).collect();
        assert_eq!(read, expected[100..], "what is there when it is closed is on all servers that are");
    }
}

#[test]
fn threads_and_tasks_share_one_log() {
    let server = Server::new();
    let log = parked(AsyncLog::connect_to(&[server.addr], &to())).expect("it opens");
    let mut numbers: Vec<u64> = thread::scope(|scope| {
        let appending: Vec<_> = (0..4_u64)
            .map(|t| {
                let log = log.clone();
                scope.spawn(move || {
                    let two = |n: u64| [log.append(&payload(t + n)), log.append(&payload(t + n))];
                    let all = (0..50).flat_map(|n| two(n).map(|append| parked(append).expect("room")));
                    all.collect::<Vec<_>>()
                })
            })
            .collect();
        appending.into_iter().flat_map(|one| one.join().expect("it ends well")).collect()
    });
    numbers.sort_unstable();
    assert_eq!(numbers, (0..400).collect::<Vec<_>>());
    parked(log.close()).expect("it is there");
    assert_eq!(server.read().len(), 400);
}

#[test]
fn futures_that_are_dropped_leave_the_others_in_their_order() {
    let server = Server::new();
    let reactor = Reactor::new(&device()).expect("a reactor");
    let kept = reactor.block_on(async {
        let log = AsyncLog::connect(&reactor, &[server.addr], &to()).await.expect("it opens");
        let mut kept = Vec::new();
        for n in 0..200_u64 {
            let mut append = log.append(&n.to_le_bytes());
            match n % 4 {
                0 => drop(append),
                1 => drop((poll_once(Pin::new(&mut append)), append)),
                _ => kept.push((n, append)),
            }
        }
        drop((log.wait(10_000), log.begin_append(b"begun"), log.trim(0)));
        let mut numbers = Vec::new();
        for (n, append) in kept {
            numbers.push((n, append.await.expect("room")));
        }
        // A limit of time is a future that is dropped.
        assert_eq!(reactor.within(Duration::from_millis(1), log.wait(10_000)).await, None);
        log.close().await.expect("it is there");
        numbers
    });
    let records = server.read();
    for (n, number) in &kept {
        assert_eq!(records[*number as usize].payload, n.to_le_bytes());
    }
    let of = |record: &Record| record.payload[..].try_into().map(u64::from_le_bytes).ok();
    let all: Vec<u64> = records.iter().filter_map(of).collect();
    assert!(all.is_sorted_by(|a, b| a < b), "each is there once, or not: {all:?}");
}

#[test]
fn who_waits_when_the_servers_go_is_told() {
    let mut servers = [(); 3].map(|()| Server::new());
    let log = parked(AsyncLog::connect_to(&addresses(&servers), &to().acks(2))).expect("it opens");
    let mut waiting = log.wait(3);
    assert!(poll_once(Pin::new(&mut waiting)).is_pending());
    servers[2].end();
    for n in 0..2 {
        assert_eq!(parked(log.append(&payload(n))), Ok(n), "two are enough");
    }
    assert!(poll_once(Pin::new(&mut waiting)).is_pending(), "there is one record less");
    servers[1].end();
    let lost = parked(waiting);
    assert!(matches!(lost, Err(GroupError::TooFew { .. })), "{lost:?}");
    assert_eq!(log.lost().len(), 2);
    let refused = parked(log.append(b"too late"));
    assert!(matches!(refused, Err(GroupError::TooFew { .. })), "{refused:?}");
    let nobody = parked(AsyncLog::connect_to(&[], &to())).expect_err("nobody is named");
    assert!(nobody.to_string().contains("name all servers"), "{nobody}");
}

/// What comes behind a record that does not fit is not appended in its place.
#[test]
fn a_batch_is_appended_in_its_order_up_to_the_first_that_does_not_fit() {
    let servers = [Server::new()];
    let log = parked(AsyncLog::connect_to(&addresses(&servers), &to())).expect("it opens");
    let batch = |from: u64| (from..from + 600).map(payload).collect::<Vec<_>>();
    assert_eq!(parked(log.begin_append_batch(batch(0))), Ok(599), "more than are taken at a time");
    let mut long = batch(600);
    long[300] = vec![7; 1 << 20];
    let refused = parked(log.begin_append_batch(long));
    assert!(matches!(refused, Err(GroupError::Append(_))), "{refused:?}");
    assert_eq!(log.next(), 900, "those before it are there");
    assert_eq!(parked(log.append(&payload(900))), Ok(900), "and the log goes on");
    drop(log.begin_append_batch(batch(5000)));
    parked(log.wait(log.next())).expect("they are durable");
    let records = servers[0].read();
    assert!(records.iter().take(901).map(|record| record.payload.clone()).eq((0..901).map(payload)));
}

#[test]
fn each_server_in_turn_is_started_again_and_the_writer_goes_on() {
    let mut servers = [(); 3].map(|()| Server::new());
    let log = parked(AsyncLog::connect_to(&addresses(&servers), &to().acks(2))).expect("it opens");
    assert_eq!(parked(log.append(&payload(0))), Ok(0));
    for (turn, server) in servers.iter_mut().enumerate() {
        server.end();
        while log.lost().is_empty() {
            thread::yield_now();
        }
        let next = 1 + turn as u64;
        assert_eq!(parked(log.append(&payload(next))), Ok(next), "two are enough");
        // One of them comes back with nothing. Nobody does anything for it but what is behind the log.
        server.start_again(turn == 1);
        while !log.lost().is_empty() {
            thread::yield_now();
        }
        parked(log.caught_up()).expect("it gets what it lacked");
        let records = server.read();
        assert!(records.iter().map(|record| record.sequence).eq(0..=next), "server {turn}: {records:?}");
    }
    assert!(log.behind().is_empty() && log.opened().lost.is_empty());
    assert_eq!(log.recipes().len(), 3);
}

/// The blocking log is the same group. It connects again in its calls, and nothing is appended twice for that.
#[test]
fn a_log_that_waits_goes_on_with_a_server_that_was_started_again_and_repeats_nothing() {
    let mut server = Server::new();
    let mut log = Log::connect_to(&[server.addr], &to()).expect("it opens");
    assert_eq!(log.append(&payload(0)), Ok(0));
    server.end();
    // Nobody has looked since: it has its number before it is found out that the server is gone.
    let _ = log.begin_append(&payload(1));
    assert_eq!(log.next(), 2);
    let lost = log.wait(2).expect_err("nobody is there");
    assert!(matches!(lost, GroupError::TooFew { .. }), "{lost:?}");
    assert_eq!((log.acknowledged(), log.lost().len()), (1, 1), "nobody knows what became of it");
    let refused = log.append(&payload(9)).expect_err("nobody is there");
    assert!(matches!(refused, GroupError::TooFew { .. }) && log.next() == 2, "it has no number: {refused:?}");
    server.start_again(false);
    while log.wait(2).is_err() {
        thread::yield_now();
    }
    assert!(log.acknowledged() == 2 && log.lost().is_empty());
    assert_eq!(log.append(&payload(2)), Ok(2), "in the same epoch");
    log.close().expect("it is there");
    let read: Vec<Vec<u8>> = server.read().into_iter().map(|record| record.payload).collect();
    assert_eq!(read, [payload(0), payload(1), payload(2)]);
}

/// Of three servers two are enough: who waits for a record goes on meanwhile, and the third gets it when it is back.
#[test]
fn a_log_that_waits_takes_a_server_in_again_in_its_calls() {
    let mut servers = [(); 3].map(|()| Server::new());
    let mut log = Log::connect_to(&addresses(&servers), &to().acks(2)).expect("it opens");
    for (turn, is_empty) in [(0, false), (1, true)] {
        servers[turn].end();
        while log.lost().is_empty() {
            log.poll().expect("two are enough");
        }
        log.append(&payload(log.next())).expect("two are enough");
        servers[turn].start_again(is_empty);
        while !log.lost().is_empty() {
            log.poll().expect("two are enough");
            thread::yield_now();
        }
        log.append(&payload(log.next())).expect("all are there");
        let next = log.next();
        while log.group().machine().is_behind(turn) {
            log.poll().expect("all are there");
        }
        let read: Vec<Vec<u8>> = servers[turn].read().into_iter().map(|record| record.payload).collect();
        assert_eq!(read, (0..next).map(payload).collect::<Vec<_>>(), "server {turn}");
    }
    log.close().expect("all are there");
}

#[test]
fn a_later_writer_ends_what_the_earlier_one_waits_for() {
    let server = Server::new();
    let first = parked(AsyncLog::connect_to(&[server.addr], &to())).expect("it opens");
    assert_eq!(parked(first.append(b"one")), Ok(0));
    let waiting = first.wait(2);
    let second = parked(AsyncLog::connect_to(&[server.addr], &to())).expect("it opens");
    assert!(second.epoch() > first.epoch());
    parked(waiting).expect_err("it was shut out");
    parked(first.append(b"never")).expect_err("it was shut out");
    assert_eq!(parked(second.append(b"two")), Ok(1));
    // Whoever gives each future up as soon as it waits gets there too: also where the writer changes, and the log is looked at again.
    let mut reader = parked(AsyncLogReader::connect_to(server.addr, &to())).expect("it is there");
    for expected in [b"one", b"two"] {
        let record = loop {
            if let Poll::Ready(record) = poll_once(pin!(reader.next())) {
                break record.expect("it is there").expect("it is whole");
            }
            thread::yield_now();
        };
        assert_eq!(record.payload, expected);
    }
    assert_eq!(parked(reader.next()), None);
}

/// What it wakes appends again, in that very thread, and is the last that has the log.
#[test]
fn who_is_woken_may_go_on_at_once() {
    let server = Server::new();
    let (done, ended) = channel();
    let log = parked(AsyncLog::connect_to(&[server.addr], &to())).expect("it opens");
    for task in 0..3_u64 {
        let (log, done) = (log.clone(), done.clone());
        PolledAtOnce::spawn(async move {
            for n in 0..50 {
                log.append(&(task * 50 + n).to_le_bytes()).await.expect("room");
            }
            drop(log);
            done.send(task).expect("somebody listens");
        });
    }
    drop(log);
    drop(done);
    let mut tasks: Vec<u64> = ended.iter().collect();
    tasks.sort_unstable();
    assert_eq!(tasks, [0, 1, 2]);
    assert_eq!(server.read().len(), 150);
}
