//! Real servers in this process, real connections over loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_effort::address;
use remanence_persist::Config;
use remanence_persist::plan::Costs;
use remanence_persist::recipe::Op;
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::{FileOptions, PersistenceDomain, Region, Survives};
use remanence_remote::ring::Layout;
use remanence_remote::{CostSource, Reactor, ServerOptions, Token};
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::{Action, ConnectionLost, Machine, Options, ReplicaConnection};
use remanence_remotelog::proto::Request;
use remanence_remotelog::walk::Ahead;
use remanence_remotelog::{
    CallError, ConnectOptions, Log, LogOptions, LogReader, LogServer, Method, New, ReadError, Record,
    ServeError, SessionConnection, Stop, connect,
};
use remanence_remotelog::{Epoch, Group, GroupError, Mode, OpenError, Reader, Refused};
use remanence_verbs::Context;
use tempfile::TempDir;

fn context() -> Context {
    Context::open(remanence_verbs::Options::udp(address())).expect("a device on loopback")
}

struct Host {
    addr: SocketAddr,
    region: Region,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), remanence_remote::Error>>>,
    dir: Arc<TempDir>,
    mode: Mode,
    config: Option<Config>,
}

impl Host {
    fn new(mode: Mode, config: Option<&str>) -> Self {
        let dir = Arc::new(tempfile::tempdir_in("/dev/shm").expect("a directory"));
        let mut file = FileOptions::new().create(1 << 20);
        if config.is_some() {
            file = file.declare(PersistenceDomain::Adr);
        }
        let region = file.open(dir.path().join("log")).expect("a file");
        Self::on(dir, region, mode, config.map(|text| text.parse().expect("a configuration")))
    }

    fn on(dir: Arc<TempDir>, region: Region, mode: Mode, config: Option<Config>) -> Self {
        Self::with_segments(16 << 10, dir, region, mode, config)
    }

    /// With room for records of so many bytes.
    fn for_records_of(bytes: u64, config: &str) -> Self {
        let dir = Arc::new(tempfile::tempdir_in("/dev/shm").expect("a directory"));
        let file = FileOptions::new().create(16 * bytes).declare(PersistenceDomain::Adr);
        let region = file.open(dir.path().join("log")).expect("a file");
        let config = config.parse().expect("a configuration");
        Self::with_segments(2 * bytes, dir, region, Mode::Singleton, Some(config))
    }

    fn with_segments(
        segment: u64,
        dir: Arc<TempDir>,
        region: Region,
        mode: Mode,
        config: Option<Config>,
    ) -> Self {
        let mut options = ServerOptions::new(&context(), region.clone(), 0).sessions(8).messages(16, 4096);
        if let Some(config) = config {
            options = options.declare(config);
        }
        let mut random = [0; 24];
        random[..4].copy_from_slice(&std::process::id().to_le_bytes());
        random[8..12].copy_from_slice(&address().to_string().len().to_le_bytes()[..4]);
        static NEXT: AtomicU32 = AtomicU32::new(1);
        random[4..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let new = New { mode, segment: Some(segment), random };
        let mut server = LogServer::bind(options, &region, &new).expect("a server");
        let (addr, stop) = (server.addr(), Stop::new());
        let stopping = stop.clone();
        let thread = Some(std::thread::spawn(move || server.run(&stopping).map(drop)));
        Self { addr, region, stop, thread, dir, mode, config }
    }

    fn end(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic").expect("it serves");
        }
    }

    /// Ends, and begins again on what is there.
    fn restart(mut self) -> Self {
        self.end();
        Self::on(Arc::clone(&self.dir), self.region.clone(), self.mode, self.config)
    }

    fn connection(&self, op: Option<Op>) -> Result<SessionConnection, ConnectionLost> {
        self.connection_on(&Reactor::new(&context()).expect("a reactor"), op)
    }

    /// One of several that are waited for together.
    fn connection_on(&self, reactor: &Reactor, op: Option<Op>) -> Result<SessionConnection, ConnectionLost> {
        let options = remanence_remote::Options::default().costs(CostSource::Fixed(Costs::PAPERS));
        connect(reactor, self.addr, options, op.map_or(Method::Cheapest, Method::Op))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

fn options(writer: u32) -> Options {
    Options::new(writer, Uuid([4; 16]))
}

fn to() -> ConnectOptions {
    ConnectOptions::default()
}

fn open(
    hosts: &[&Host],
    op: Option<Op>,
    writer: u32,
    acks: Option<u16>,
) -> Result<Group<SessionConnection>, GroupError> {
    let reactor = Reactor::new(&context()).expect("a reactor");
    let connections = hosts.iter().map(|host| (host.addr.to_string(), host.connection_on(&reactor, op)));
    Group::open(connections.collect(), &Options { acks, ..options(writer) }).map(|(group, _)| group)
}

fn payload(n: u64) -> Vec<u8> {
    (0..n * 37 % 300).map(|i| (i + n) as u8).collect()
}

/// Everything that is there, read from afar.
fn read_all(host: &Host) -> Vec<Vec<u8>> {
    let mut connection = host.connection(None).expect("it is there");
    let status = connection.call(&Request::Status).expect("it answers");
    assert_eq!(status.damage, None);
    let mut reader = Reader::new(&status);
    let mut ahead = Ahead::new(&mut connection, status.superblock.geometry.size, 8192);
    let mut all = Vec::new();
    while reader.next_sequence() < status.tail.sequence {
        all.push(reader.read(&mut ahead).expect("it is reached").expect("it is whole").1.to_vec());
    }
    all
}

#[test]
fn every_operation_appends_in_both_modes_and_a_restart_finds_all_of_it() {
    for mode in Mode::ALL {
        for config in ["DMP+DDIO+DRAM", "MHP+DDIO+PM", "DMP+no-DDIO+PM", "WSP+DDIO+DRAM"] {
            let mut host = Host::new(mode, Some(config));
            let mut next = 0;
            for (n, op) in Op::ALL.into_iter().enumerate() {
                let mut group = open(&[&host], Some(op), n as u32, None).expect("it opens");
                assert_eq!(group.next(), next, "{config} {op:?}");
                for _ in 0..20 {
                    assert_eq!(group.begin_append(&payload(next)), Ok(next), "{config} {op:?}");
                    next += 1;
                    if next % 5 == 0 {
                        group.wait(next).expect("it goes on");
                    }
                }
                group.close().expect("it goes on");
                host = host.restart();
            }
            let expected: Vec<Vec<u8>> = (0..next).map(payload).collect();
            assert_eq!(read_all(&host), expected, "{mode:?} {config}");
        }
    }
}

#[test]
fn a_writer_that_connects_again_goes_on_in_the_same_epoch() {
    let host = Host::new(Mode::Singleton, None);
    let epoch = remanence_remotelog::Epoch::new(7, 1);
    let mut first = host.connection(None).expect("it is there");
    first.call(&Request::Grant { epoch }).expect("nobody else has it");
    let mut again = host.connection(None).expect("it is there");
    let status = again.call(&Request::Grant { epoch }).expect("it is the same writer");
    assert_eq!(status.state.promised, epoch);
    // What the older connection has under way arrives no more.
    assert!(first.call(&Request::Status).is_err(), "both connections may write");
    again.call(&Request::Known { epoch, below: 0 }).expect("it has the promise");

    let hosts = [0; 3].map(|_| Host::new(Mode::Singleton, None));
    let mut group = open(&hosts.iter().collect::<Vec<_>>(), None, 1, Some(2)).expect("all are there");
    let epoch = group.epoch();
    for n in 0..50 {
        if n == 20 {
            let name = hosts[1].addr.to_string();
            group.reconnect(&name, Err(ConnectionLost("the cable was pulled".into())));
            assert_eq!(group.lost().len(), 1);
        }
        if n == 40 {
            let there = group.connections().next().map(|(_, other)| other.session().reactor().clone());
            let connection = hosts[1].connection_on(&there.expect("two are there"), None);
            group.reconnect(&hosts[1].addr.to_string(), connection);
        }
        assert_eq!(group.begin_append(&payload(n)), Ok(n));
        group.wait(n + 1).expect("two are enough");
    }
    while !group.machine().behind().is_empty() || group.machine().is_settling() {
        group.poll().expect("all are there");
    }
    assert_eq!((group.lost().len(), group.epoch()), (0, epoch));
    group.close().expect("all are there");
    let expected: Vec<Vec<u8>> = (0..50).map(payload).collect();
    for host in &hosts {
        assert_eq!(read_all(host), expected);
    }
}

#[test]
fn a_later_writer_cuts_the_earlier_one_off() {
    let host = Host::new(Mode::Singleton, None);
    let mut first = open(&[&host], None, 1, None).expect("it opens");
    first.begin_append(b"one").expect("room");
    first.wait(1).expect("it goes on");
    let mut second = open(&[&host], None, 2, None).expect("it opens");
    let late = first.begin_append(b"never").and_then(|_| first.wait(2));
    assert!(matches!(late, Err(GroupError::TooFew { .. })), "{late:?}");
    second.begin_append(b"two").expect("room");
    second.wait(2).expect("it goes on");
    assert_eq!(read_all(&host), [b"one".to_vec(), b"two".to_vec()]);
}

#[test]
fn a_group_goes_on_without_one_and_rebuilds_it() {
    let mut hosts =
        [Host::new(Mode::Singleton, None), Host::new(Mode::Singleton, None), Host::new(Mode::Compound, None)];
    let mut group = open(&[&hosts[0], &hosts[1], &hosts[2]], None, 1, Some(2)).expect("all are there");
    for n in 0..10 {
        group.begin_append(&payload(n)).expect("room");
    }
    group.wait(10).expect("all are there");
    hosts[2].end();
    for n in 10..20 {
        group.begin_append(&payload(n)).expect("two are enough");
        group.wait(n + 1).expect("two are enough");
    }
    group.trim(3).expect("they are acknowledged");
    assert_eq!(group.lost().len(), 1);
    drop(group);
    // One comes back with what it had, one with nothing.
    let [a, _b, c] = hosts;
    let c = c.restart();
    let b = Host::new(Mode::Singleton, None);
    let reactor = Reactor::new(&context()).expect("a reactor");
    let connect = |host: &&Host| (host.addr.to_string(), host.connection_on(&reactor, None));
    let connections = [&a, &b, &c].iter().map(connect).collect();
    let (mut group, opened) = Group::open(connections, &options(2)).expect("two of them know");
    assert_eq!((opened.lost.len(), group.next(), group.quorum()), (0, 20, (2, 3)));
    group.begin_append(&payload(20)).expect("room");
    // The third one, too, however long that takes.
    while !group.machine().behind().is_empty() || group.machine().is_settling() {
        group.poll().expect("all are there");
    }
    group.close().expect("all are there");
    let expected: Vec<Vec<u8>> = (3..=20).map(payload).collect();
    for host in [&a, &b, &c] {
        assert_eq!(read_all(host), expected);
    }
}

#[test]
fn connections_that_are_not_waited_for_together_make_no_group() {
    let hosts = [(); 3].map(|()| Host::new(Mode::Singleton, Some("DMP+DDIO+DRAM")));
    let connections = hosts.iter().map(|host| (host.addr.to_string(), host.connection(None))).collect();
    let refused = Group::open(connections, &options(1)).map(drop).expect_err("they are on three reactors");
    assert!(refused.to_string().contains("on another reactor"), "{refused}");
}

#[test]
fn an_append_that_returned_is_acknowledged_and_one_that_was_begun_is_not() {
    let host = Host::new(Mode::Singleton, Some("DMP+DDIO+DRAM"));
    let mut log = Log::connect_to(&[host.addr], &to()).expect("it opens");
    assert_eq!((log.acknowledged(), log.survives()), (0, None));
    assert_eq!(log.append(b"one"), Ok(0));
    assert_eq!((log.acknowledged(), log.survives()), (1, Some(Survives::EVERYTHING)));
    assert_eq!(log.begin_append(b"two"), Ok(1));
    assert_eq!(log.acknowledged(), 1, "nobody has waited for it");
    log.wait(2).expect("it goes on");
    assert_eq!(read_all(&host), [b"one".to_vec(), b"two".to_vec()]);
    let nobody = Log::connect_to(&[], &to()).map(drop).expect_err("nobody is named");
    assert!(nobody.to_string().contains("name all servers"), "{nobody}");
}

#[test]
fn a_reader_goes_on_where_it_ended_and_says_what_was_trimmed_before_it_came() {
    let host = Host::new(Mode::Singleton, None);
    let mut log = Log::connect_to(&[host.addr], &to()).expect("it opens");
    for n in 0..5 {
        log.begin_append(&payload(n)).expect("room");
    }
    log.wait(5).expect("it goes on");
    let mut reader = LogReader::connect_to(host.addr, &to()).expect("it is there");
    let mut late = LogReader::connect_to(host.addr, &to()).expect("it is there");
    let read: Vec<Record> = reader.by_ref().collect::<Result<_, _>>().expect("it is whole");
    for (record, n) in read.iter().zip(0..) {
        assert_eq!((record.sequence, record.epoch, &record.payload), (n, log.epoch(), &payload(n)));
    }
    assert_eq!((read.len(), reader.next()), (5, None));
    log.append(b"more").expect("room");
    let more = reader.next().expect("it is there").expect("it is whole");
    assert_eq!((more.sequence, &more.payload[..]), (5, &b"more"[..]));
    // Round the ring: what the other reader is about to read is trimmed, and overwritten.
    for _ in 0..150 {
        log.append(&[7; 8000]).expect("room");
        log.trim(log.next()).expect("it is acknowledged");
    }
    let trimmed = late.next().expect("an error").expect_err("it is not there any more");
    assert_eq!(trimmed, ReadError::Trimmed { from: 0, below: 156 });
    assert!(trimmed.to_string().contains("records 0 to 155 were trimmed"), "{trimmed}");
    assert_eq!(late.next(), None, "after an error it is over");
}

/// A later writer did not find what some had read: those are told so, and get nothing that comes behind it.
#[test]
fn a_reader_is_told_that_what_it_read_was_cut_off() {
    let host = Host::new(Mode::Singleton, None);
    let mut log = Log::connect_to(&[host.addr], &to()).expect("it opens");
    for _ in 0..5 {
        log.append(&[1; 20]).expect("room");
    }
    let reader = |count: usize| {
        let mut reader = LogReader::connect_to(host.addr, &to()).expect("it is there");
        let read: Vec<Record> = reader.by_ref().take(count).collect::<Result<_, _>>().expect("it is whole");
        assert_eq!(read.len(), count);
        reader
    };
    let (mut before, mut behind, mut at_end) = (reader(2), reader(4), reader(5));
    let mut connection = host.connection(None).expect("it is there");
    let epoch = Epoch::new(log.epoch().counter() + 1, 9);
    let mut call = |request: Request| loop {
        match connection.call(&request) {
            Err(CallError::Refused(Refused::Busy)) => std::thread::sleep(Duration::from_millis(1)),
            reply => break reply.expect("it is promised"),
        }
    };
    call(Request::Grant { epoch });
    call(Request::Truncate { epoch, sequence: 3 });
    let mut log = Log::connect_to(&[host.addr], &to()).expect("it opens");
    for _ in 0..5 {
        log.append(&[2; 20]).expect("room");
    }
    let cut = ReadError::CutOff { from: 5 };
    assert_eq!(at_end.next(), Some(Err(cut)));
    assert_eq!(at_end.next(), None, "after an error it is over");
    // What it had read ahead it may hand out still, and nothing behind that.
    let rest: Vec<_> = behind.by_ref().collect();
    let (last, whole) = rest.split_last().expect("an error");
    assert!(whole.iter().all(|read| read.as_ref().is_ok_and(|record| record.payload == [1; 20])), "{rest:?}");
    assert!(matches!(last, Err(ReadError::CutOff { .. })), "{last:?}");
    assert!(last.as_ref().is_err_and(|error| error.to_string().contains("the log was cut")));
    let rest: Vec<_> = before.by_ref().collect();
    let all = rest.iter().all(Result::is_ok);
    assert!(
        all && rest.len() == 6
            || rest.last().is_some_and(|last| matches!(last, Err(ReadError::CutOff { .. })))
    );
}

#[test]
fn a_reader_is_told_what_is_damaged() {
    let host = Host::new(Mode::Singleton, None);
    let mut log = Log::connect_to(&[host.addr], &to()).expect("it opens");
    for n in 0..4 {
        log.append(&payload(n + 1)).expect("room");
    }
    log.close().expect("it goes on");
    let second = find(&host, &payload(2));
    host.region.write(second, &[0xff; 4]);
    let host = host.restart();
    let mut reader = LogReader::connect_to(host.addr, &to()).expect("it is there");
    assert_eq!(reader.next().expect("the first").map(|record| record.payload), Ok(payload(1)));
    let damage = reader.next().expect("an error").expect_err("it is damaged");
    assert!(matches!(damage, ReadError::Damaged(damage) if damage.sequence == 1), "{damage}");
}

/// Where some bytes lie.
fn find(host: &Host, wanted: &[u8]) -> u64 {
    let mut all = vec![0; 1 << 20];
    host.region.read(0, &mut all);
    all.windows(wanted.len()).position(|bytes| bytes == wanted).expect("they are there") as u64
}

#[test]
fn a_log_in_a_file_is_made_found_again_and_nothing_is_left_of_one_that_was_refused() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = dir.path().join("log");
    let serve = |options: LogOptions| LogServer::open(&context(), options);
    let missing = serve(LogOptions::file(&path)).map(drop).expect_err("it is not there").to_string();
    assert!(missing.contains("does not exist"), "{missing}");
    let small = serve(LogOptions::file(&path).size(8192)).map(drop).expect_err("too small").to_string();
    assert!(small.contains("a log needs 16K"), "{small}");
    assert!(!path.exists(), "nothing was left behind");
    let made = serve(LogOptions::file(&path).size(1 << 20).segment(16 << 10)).expect("made");
    let uuid = made.status().expect("a log").superblock.uuid;
    assert!(made.made());
    drop(made);
    let found = serve(LogOptions::file(&path).size(2 << 20)).expect("found");
    let superblock = found.status().expect("a log").superblock;
    assert_eq!((found.made(), superblock.uuid, superblock.geometry.segment), (false, uuid, 16 << 10));
    let taken = serve(LogOptions::file(dir.path().join("other")).size(1 << 20)).expect("made");
    let other = taken.status().expect("a log").superblock.uuid;
    assert_ne!(other, uuid, "each is drawn");
}

/// Whoever appends chooses what lies where receive buffers would be.
#[test]
fn records_at_the_end_of_a_region_are_not_taken_for_receive_buffers() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = FileOptions::new().create(1 << 20).open(dir.path().join("log")).expect("a file");
    let new = New { mode: Mode::Singleton, segment: Some(16 << 10), random: [2; 24] };
    let options = || ServerOptions::new(&context(), region.clone(), 0).sessions(1).messages(4, 512);
    drop(LogServer::bind(options(), &region, &new).expect("a log"));
    Layout::at_the_end(region.len(), 1, 4, 512).expect("room").format(&region).expect("a file");
    let bytes = || {
        let mut bytes = vec![0; region.len() as usize];
        region.read(0, &mut bytes);
        bytes
    };
    let before = bytes();
    let served = LogServer::bind(options(), &region, &new).expect("its own log");
    assert!(!served.made());
    drop(served);
    // Nor are any made over the records that lie there.
    let asked = LogServer::bind(options().buffers(Buffers::Pm), &region, &new).map(drop);
    assert!(matches!(asked, Err(ServeError::NoRoom { .. })), "{asked:?}");
    assert!(bytes() == before, "what lies in the log stays");
}

#[test]
fn what_is_no_log_is_not_served() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = dir.path().join("letter");
    std::fs::write(&path, vec![b'x'; 1 << 16]).expect("a file");
    let region = FileOptions::new().open(&path).expect("a file");
    let new = New { mode: Mode::Singleton, segment: None, random: [1; 24] };
    let served = LogServer::bind(ServerOptions::new(&context(), region.clone(), 0), &region, &new);
    let error = served.map(drop).expect_err("it is a letter");
    assert_eq!(error.to_string(), OpenError::NotALog.to_string());
    assert_eq!(std::fs::read(&path).expect("it is there"), vec![b'x'; 1 << 16], "nothing was changed");
}

#[test]
fn damage_is_told_to_who_opens_the_log() {
    let host = Host::new(Mode::Singleton, None);
    let mut group = open(&[&host], None, 1, None).expect("it opens");
    for n in 0..6 {
        group.begin_append(&payload(n + 1)).expect("room");
        group.wait(n + 1).expect("it goes on");
    }
    group.close().expect("it goes on");
    host.region.write(remanence_remotelog::format::DATA_AT + 40, &[0xff; 4]);
    let host = host.restart();
    let refused = open(&[&host], None, 2, None).map(drop).expect_err("it is damaged").to_string();
    assert!(refused.contains("record 0") && refused.contains("damaged"), "{refused}");
    assert!(refused.contains("lies there alone"), "{refused}");
}

#[test]
fn a_medium_that_fails_under_an_append_ends_the_log_and_what_was_acknowledged_is_there_when_it_is_mended() {
    for mode in Mode::ALL {
        let mut host = Host::new(mode, Some("DMP+DDIO+DRAM+persistent"));
        let mut group = open(&[&host], Some(Op::Write), 1, None).expect("it opens");
        for n in 0..6 {
            group.begin_append(&payload(n)).expect("room");
            group.wait(n + 1).expect("it goes on");
        }
        // The end of the file goes, where no record is yet; the server sees it when it touches the place.
        let path = host.dir.path().join("log");
        let cut = |len| std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(len));
        cut(1 << 19).expect("a file");
        host.region.read(3 << 18, &mut [0]);
        let late =
            group.begin_append(&payload(6)).and_then(|_| group.wait(7)).expect_err("it cannot be durable");
        let said = late.to_string();
        for part in ["medium failed under FLUSH", "what was acknowledged is safe if", "may be durable or not"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("others"), "there are none: {said}");
        drop(group);
        // It has heard of that from nobody but its medium.
        let ended = host.thread.take().expect("it runs").join().expect("it does not panic");
        let ended = ended.expect_err("it served on a medium that failed").to_string();
        assert!(ended.contains("the medium failed") && ended.contains("truncated"), "{ended}");
        // Mended, mapped anew, and served again: the record that was under way is there or not.
        let (dir, config) = (Arc::clone(&host.dir), host.config);
        drop(host);
        cut(1 << 20).expect("a file");
        let region = FileOptions::new().declare(PersistenceDomain::Adr).open(&path).expect("a file");
        let host = Host::on(dir, region, mode, config);
        let mut group = open(&[&host], Some(Op::Write), 3, None).expect("it opens");
        let next = group.next();
        assert!((6..=7).contains(&next), "{next}");
        group.begin_append(&payload(next)).expect("room");
        group.wait(next + 1).expect("it goes on");
        group.close().expect("it goes on");
        assert_eq!(read_all(&host), (0..=next).map(payload).collect::<Vec<_>>(), "{mode:?}");
    }
}

#[test]
fn nobody_says_that_others_have_what_only_one_server_had() {
    let too_few =
        |named| GroupError::TooFew { reached: 0, needed: 1, named, why: "a: gone".into() }.to_string();
    assert!(too_few(1).contains("a: gone") && too_few(1).contains("lies there alone"), "{}", too_few(1));
    assert!(!too_few(1).contains("others") && too_few(3).contains("safe on the others"), "{}", too_few(3));
}

/// Ends a server when it is dropped, whatever has failed.
struct Ends<'a>(&'a Stop);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.ask();
    }
}

#[test]
fn who_may_only_read_takes_no_log_over() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let token = |text: &str| Token::new(text).expect("long enough");
    let (writers, readers) = (token("the-token-of-the-writers"), token("the-token-of-the-readers"));
    let options = LogOptions::file(dir.path().join("log")).size(1 << 20);
    let options = options.token(writers.clone()).reader_token(readers.clone());
    let mut server = LogServer::open(&context(), options).expect("made");
    let (addr, stop) = (server.addr(), Stop::new());
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| server.run(&stop).expect("it serves"));
        let mut log = Log::connect_to(&[addr], &to().tokens([writers])).expect("it opens");
        assert_eq!(log.append(b"one"), Ok(0));
        let refused = Log::connect_to(&[addr], &to().tokens([readers.clone()]));
        let refused = refused.map(drop).expect_err("it may only read").to_string();
        assert!(refused.contains("this token is for reading"), "{refused}");
        assert_eq!(log.append(b"two"), Ok(1), "nobody has taken it over");
        let reader = LogReader::connect_to(addr, &to().tokens([readers])).expect("it may read");
        let read: Vec<Record> = reader.collect::<Result<_, _>>().expect("it is whole");
        assert_eq!(read.len(), 2);
    });
}

/// Its plan is told to the server first, and then staging is exchanged for it: nothing is under way when it begins at last. By one
/// connection, as what comes to others of the group would have it begin by chance.
#[test]
fn a_first_record_that_is_longer_than_staging_needs_nothing_else_to_come() {
    const LEN: usize = 2 << 20;
    let host = Host::for_records_of(LEN as u64, "DMP+DDIO+DRAM");
    let mut connection = host.connection(None).expect("it is there");
    let mut machine = Machine::new(["one".to_owned()], options(1));
    machine.connected(Duration::ZERO, 0);
    let mut left = Some(vec![7; LEN]);
    while left.is_some() || machine.acknowledged() == 0 {
        if let Some(record) = left.take_if(|_| machine.is_open()) {
            machine.append_batch(Duration::ZERO, &[&record]).expect("room");
        }
        let mut any = false;
        while let Some(action) = machine.poll_action() {
            any = true;
            match action {
                Action::Call { request, .. } => connection.begin_call(&request),
                Action::Read { offset, len, .. } => connection.begin_read(offset, len),
                Action::Append { updates, plan, .. } => connection.begin_append(*updates, &plan),
                Action::Disconnect { .. } => panic!("{:?}", machine.lost()),
            }
            .expect("it is there");
        }
        while let Some(event) = connection.poll().expect("it is there") {
            any = true;
            machine.handle(Duration::ZERO, 0, event);
        }
        if !any {
            // For ever, if nothing is under way.
            connection.wait(Duration::MAX);
        }
    }
}
