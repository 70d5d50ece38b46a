//! Changes of several connections that are written together: one wait for the medium, and nobody is answered before its end.
//!
//! The medium is a crash image whose syncs can be held up, and that is crashed, in the harshest way, whenever we like.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remanence_gateway::erda::{Erda, Parts};
use remanence_gateway::{Address, Gateway, Options};
use remanence_kv::Geometry;
use remanence_kv::client::{Completion, RemoteMemory, Verb};
use remanence_kv::proto::{Changed, Inline, Refusal, Reply, Request};
use remanence_kv::server::{ClientId, Options as StoreOptions, Server, format};
use remanence_kv::view::Mode;
use remanence_pmem::crash_image::{CrashImage, EveryWay, Failure};
use remanence_pmem::watched::{Watch, Watched};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_resp::engine::{Config, Moment, Session, Shared};
use remanence_resp::protocol::{Decoder, Limits};
use remanence_resp::store::{Key, Store as _};

const GEOMETRY: Geometry =
    Geometry { size: 8 << 20, region_len: 1 << 20, segment_len: 256 << 10, heads: 1, grown_from: 0 };
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the syncs of a memory, which wait for somebody while there is a gate.
#[derive(Default, Debug)]
struct Gate {
    syncs: AtomicUsize,
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Watch for Gate {
    fn psync(&self) -> std::io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if let Some((here, go_on)) = &*self.gate.lock().expect("nobody panicked") {
            here.send(()).expect("the test waits");
            go_on.recv_timeout(PATIENCE).expect("the test lets it go on");
        }
        Ok(())
    }
}

type Gated = Watched<CrashImage, Gate>;

/// A store, and how a worker of the gateway's own process reaches it.
struct World {
    medium: Arc<Gated>,
    server: Arc<Mutex<Server<Arc<Gated>>>>,
    options: StoreOptions,
    /// To make something durable takes a wait for a disk: clients write and wait themselves.
    disk: bool,
}

impl World {
    fn new(disk: bool) -> Self {
        let domain = if disk { PersistenceDomain::PageCache } else { PersistenceDomain::Adr };
        let image = CrashImage::new(GEOMETRY.size, domain);
        let medium = Arc::new(Watched { medium: image, watch: Gate::default() });
        format(&medium, &GEOMETRY, 256, 0x5EED, [7; 16]).expect("a fair geometry");
        let options = StoreOptions {
            mode: Mode::Durable,
            lease: 1 << 40,
            unfinished_max: 1024,
            clean_by_itself: false,
            defer: disk,
            inline_max: if disk { 1024 } else { 0 },
        };
        let (server, _) = Server::open(Arc::clone(&medium), options).expect("a store");
        Self { medium, server: Arc::new(Mutex::new(server)), options, disk }
    }

    fn connect(&self) -> Erda<Parts<Reach>> {
        let mut server = self.server.lock().expect("nobody panicked");
        let (id, view) = (server.connect(), server.view());
        let (medium, server) = (Arc::clone(&self.medium), Arc::clone(&self.server));
        Erda::new(remanence_kv::client::Client::new(view, 64), Reach { medium, server, id, disk: self.disk })
    }

    /// Nothing is under way any more.
    fn settle(&self, names: &[Vec<u8>]) {
        let mut server = self.server.lock().expect("nobody panicked");
        let id = server.connect();
        for name in names {
            let key = [&[0], &name[..]].concat();
            let settled = server.handle(1, id, &Request::Settle { key });
            assert!(matches!(settled, Reply::Settled { .. }), "{settled:?}");
        }
        server.disconnected(id).expect("memory does not fail");
    }

    fn syncs(&self) -> usize {
        self.medium.watch.syncs.load(Ordering::SeqCst)
    }

    /// From here on syncs wait: they say so, and go on when they are told.
    fn hold_up(&self) -> (Receiver<()>, Sender<()>) {
        let ((here, at), (go, go_on)) = (channel(), channel());
        *self.medium.watch.gate.lock().expect("nobody panicked") = Some((here, go_on));
        (at, go)
    }

    /// The store after a power failure that keeps nothing but what a sync covers.
    fn crashed(&self) -> Erda<Parts<Reach>> {
        let image = self.medium.medium.crash(Failure::PowerLoss, &mut EveryWay::new());
        let medium = Arc::new(Watched { medium: image, watch: Gate::default() });
        let (server, _) = Server::open(Arc::clone(&medium), self.options).expect("a crash is no damage");
        let (server, options) = (Arc::new(Mutex::new(server)), self.options);
        Self { medium, server, options, disk: self.disk }.connect()
    }

    /// What is there then.
    fn after_a_crash(&self, names: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut store = self.crashed();
        let mut found = BTreeMap::new();
        for name in names {
            let mut value = Vec::new();
            if store.get(Key { space: 0, name }, &mut value).expect("it is served").is_some() {
                // Behind the byte that says that it is a string.
                found.insert(name.clone(), value.split_off(1));
            }
        }
        found
    }
}

#[derive(Debug)]
struct Reach {
    medium: Arc<Gated>,
    server: Arc<Mutex<Server<Arc<Gated>>>>,
    id: ClientId,
    disk: bool,
}

impl RemoteMemory for Reach {
    type Error = &'static str;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        let call = |request: &Request| {
            let request = Request::parse(&request.emit()).expect("what was emitted is parsed");
            let reply = self.server.lock().expect("nobody panicked").handle(1, self.id, &request);
            Reply::parse(&reply.emit()).expect("what was emitted is parsed")
        };
        Ok(verbs.into_iter().map(|verb| verb.carry_out(&self.medium, call)).collect())
    }

    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Self::Error> {
        self.medium.read(at, into);
        Ok(true)
    }

    fn put_all(
        &mut self,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Result<bool, Self::Error> {
        if !self.disk {
            self.server.lock().expect("nobody panicked").put_all(1, self.id, puts, done);
            return Ok(true);
        }
        let named = self.server.lock().expect("nobody panicked").begin_all(1, self.id, puts, done);
        if !named.is_empty() {
            self.medium.psync().expect("memory does not fail");
            self.server.lock().expect("nobody panicked").end_all(&named);
        }
        Ok(true)
    }

    fn now(&self) -> u64 {
        1
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        Err("nobody is in the way")
    }
}

/// A connection by a unix socket: what was written to one is at its other end.
struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the gateway listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut client = Self(stream);
        client.send("PING\r\n");
        client.expect("+PONG\r\n");
        client
    }

    fn send(&mut self, line: &str) {
        self.0.write_all(line.as_bytes()).expect("it is read");
    }

    fn expect(&mut self, reply: &str) {
        let mut bytes = vec![0; reply.len()];
        self.0.read_exact(&mut bytes).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&bytes), reply);
    }

    /// Whether nothing has come for it.
    fn has_no_reply(&mut self) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        let read = self.0.read(&mut [0]);
        self.0.set_nonblocking(false).expect("a socket");
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

fn set(name: &[u8], value: &str) -> String {
    let name = std::str::from_utf8(name).expect("text");
    format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len())
}

const CROWD: usize = 30;

/// One SET is held up in its sync while those of all others arrive.
fn one_sync_for_all(disk: bool) {
    let world = World::new(disk);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("gateway");
    // Nobody else asks for anything: expired keys are not looked for.
    let options =
        Options { listen: vec![Address::Unix(path.clone())], threads: 1, sweep: 0, ..Options::default() };
    let gateway = Gateway::start(options, |_| Ok(world.connect())).expect("a gateway");
    let mut first = Client::connect(&path);
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| Client::connect(&path)).collect();
    // Each has a key; the last three have one of the first, too.
    let mut names: Vec<Vec<u8>> = (0..CROWD - 3).map(|n| format!("key{n}").into_bytes()).collect();
    names.push(b"first".to_vec());
    let name = |n: usize| names[n % (CROWD - 3)].clone();
    for name in &names {
        first.send(&set(name, "before"));
        first.expect("+OK\r\n");
    }
    let before: BTreeMap<Vec<u8>, Vec<u8>> =
        names.iter().map(|name| (name.clone(), b"before".to_vec())).collect();
    assert_eq!(world.after_a_crash(&names), before);
    world.settle(&names);

    let (at_sync, go_on) = world.hold_up();
    let counted = world.syncs();
    first.send(&set(b"first", "alone"));
    at_sync.recv_timeout(PATIENCE).expect("it is made durable");
    for (n, client) in crowd.iter_mut().enumerate() {
        client.send(&set(&name(n), &format!("value{n}")));
        // What follows in the pipeline waits for it.
        client.send("PING\r\n");
    }
    assert!(first.has_no_reply(), "its sync is not over");
    assert_eq!(world.after_a_crash(&names), before, "nothing is durable, and nothing was acknowledged");
    go_on.send(()).expect("it waits");
    first.expect("+OK\r\n");
    at_sync.recv_timeout(PATIENCE).expect("theirs are made durable");
    assert!(crowd.iter_mut().all(Client::has_no_reply), "their sync is not over");
    let mut now = before;
    now.insert(b"first".to_vec(), b"alone".to_vec());
    assert_eq!(world.after_a_crash(&names), now, "who was acknowledged is there");
    go_on.send(()).expect("it waits");
    for client in &mut crowd {
        client.expect("+OK\r\n+PONG\r\n");
    }
    assert_eq!(world.syncs() - counted, 2, "one for the first, and one for {CROWD} others");
    let found = world.after_a_crash(&names);
    for (n, name) in names.iter().enumerate().take(CROWD - 3) {
        let written: Vec<String> =
            (n..CROWD).step_by(CROWD - 3).map(|client| format!("value{client}")).collect();
        let value = String::from_utf8_lossy(&found[name]).into_owned();
        assert!(written.contains(&value), "{value:?} is none of {written:?}");
    }
    assert_eq!(found[&b"first"[..]], b"alone");
    // The gateway asks for nothing that waits any more but what stops it.
    *world.medium.watch.gate.lock().expect("nobody panicked") = None;
    gateway.stop();
}

#[test]
fn of_a_crowd_in_memory_one_sync_serves_all() {
    one_sync_for_all(false);
}

#[test]
fn of_a_crowd_on_a_disk_one_sync_serves_all() {
    one_sync_for_all(true);
}

/// Every command that changes a key, on a key that is there, and its reply.
const CHANGES: &[(&str, &str, &str)] = &[
    ("SET k x", "SET k y", "+OK\r\n"),
    ("SET k x", "SET k y XX GET", "$1\r\nx\r\n"),
    ("SET k x", "SETEX k 100 y", "+OK\r\n"),
    ("SET k x", "PSETEX k 100000 y", "+OK\r\n"),
    ("SET k x", "GETSET k y", "$1\r\nx\r\n"),
    ("SET k x", "GETDEL k", "$1\r\nx\r\n"),
    ("SET k x", "GETEX k EX 100", "$1\r\nx\r\n"),
    ("SET k x", "APPEND k y", ":2\r\n"),
    ("SET k x", "SETRANGE k 2 y", ":3\r\n"),
    ("SET k x", "DEL k", ":1\r\n"),
    ("SET k x", "UNLINK k", ":1\r\n"),
    ("SET k x", "EXPIRE k 100", ":1\r\n"),
    ("SET k x", "PEXPIRE k 100000", ":1\r\n"),
    ("SET k x EX 100", "PERSIST k", ":1\r\n"),
    ("SET k 1", "INCR k", ":2\r\n"),
    ("SET k 1", "DECR k", ":0\r\n"),
    ("SET k 1", "INCRBY k 7", ":8\r\n"),
    ("SET k 1", "DECRBY k 7", ":-6\r\n"),
    ("SET k 1", "INCRBYFLOAT k 0.5", "$3\r\n1.5\r\n"),
    ("HSET k f 1", "HSET k g 2", ":1\r\n"),
    ("HSET k f 1", "HMSET k g 2", "+OK\r\n"),
    ("HSET k f 1", "HSETNX k g 2", ":1\r\n"),
    ("HSET k f 1 g 2", "HDEL k f", ":1\r\n"),
    ("HSET k f 1", "HINCRBY k f 4", ":5\r\n"),
    ("HSET k f 1", "HINCRBYFLOAT k f 4", "$1\r\n5\r\n"),
];

fn start(world: &World, path: &Path) -> Gateway {
    // Nobody else asks for anything: expired keys are not looked for.
    let options = Options {
        listen: vec![Address::Unix(path.to_path_buf())],
        threads: 1,
        sweep: 0,
        ..Options::default()
    };
    Gateway::start(options, |_| Ok(world.connect())).expect("a gateway")
}

#[test]
fn whatever_a_crowd_changes_one_sync_serves_all() {
    for disk in [false, true] {
        let world = World::new(disk);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("gateway");
        let gateway = start(&world, &path);
        let mut first = Client::connect(&path);
        let mut crowd: Vec<Client> = CHANGES.iter().map(|_| Client::connect(&path)).collect();
        let of = |line: &str, n: usize| line.replace(" k", &format!(" key{n}")) + "\r\n";
        first.send("SET first 0\r\n");
        first.expect("+OK\r\n");
        for (n, (before, ..)) in CHANGES.iter().enumerate() {
            first.send(&of(before, n));
            first.expect(if before.starts_with("SET") {
                "+OK\r\n"
            } else if before.ends_with("g 2") {
                ":2\r\n"
            } else {
                ":1\r\n"
            });
        }
        let (at_sync, go_on) = world.hold_up();
        let counted = world.syncs();
        first.send("SET first 1\r\n");
        at_sync.recv_timeout(PATIENCE).expect("it is made durable");
        for (n, (client, (_, change, _))) in crowd.iter_mut().zip(CHANGES).enumerate() {
            client.send(&of(change, n));
        }
        go_on.send(()).expect("it waits");
        first.expect("+OK\r\n");
        at_sync.recv_timeout(PATIENCE).expect("theirs are made durable");
        assert!(crowd.iter_mut().all(Client::has_no_reply), "their sync is not over");
        go_on.send(()).expect("it waits");
        for (client, (_, change, reply)) in crowd.iter_mut().zip(CHANGES) {
            client.expect(reply);
            println!("{change}");
        }
        assert_eq!(world.syncs() - counted, 2, "one for the first, and one for all others; disk: {disk}");
        *world.medium.watch.gate.lock().expect("nobody panicked") = None;
        gateway.stop();
    }
}

#[test]
fn what_one_connection_sends_at_once_shares_a_sync_and_is_answered_in_its_order() {
    for disk in [false, true] {
        let world = World::new(disk);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("gateway");
        let gateway = start(&world, &path);
        let mut client = Client::connect(&path);
        client.send("MSET a 1 b 2 c 3 d 4\r\n");
        client.expect("+OK\r\n");
        let names: Vec<Vec<u8>> = ["a", "b", "c", "d"].map(|name| name.as_bytes().to_vec()).to_vec();
        world.settle(&names);
        let counted = world.syncs();
        let pipeline = [
            "INCR a",
            "GET a",
            "INCR a",
            "DEL b",
            "GET b",
            "SETNX b x",
            "APPEND c y",
            "GET d",
            "STRLEN c",
            "LPUSH a",
            "HGET a f",
        ];
        client.send(&(pipeline.join("\r\n") + "\r\n"));
        client.expect(":2\r\n$1\r\n2\r\n:3\r\n:1\r\n$-1\r\n:1\r\n:2\r\n$1\r\n4\r\n:2\r\n");
        client.expect("-ERR unknown command 'LPUSH', with args beginning with: 'a' \r\n");
        client.expect("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
        assert_eq!(world.syncs() - counted, 1, "disk: {disk}");
        // What goes over several keys finds what was sent before it.
        client.send("SET a 7\r\nDEL c\r\nMGET a b c d\r\nINCR a\r\nDBSIZE\r\n");
        client.expect("+OK\r\n:1\r\n*4\r\n$1\r\n7\r\n$1\r\nx\r\n$-1\r\n$1\r\n4\r\n:8\r\n:3\r\n");
        let found = world.after_a_crash(&names);
        let value =
            |name: &str| found.get(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned());
        assert_eq!(
            ["a", "b", "c", "d"].map(value),
            ["8", "x", "", "4"].map(|v| (!v.is_empty()).then(|| v.to_owned()))
        );
        gateway.stop();
    }
}

#[test]
fn the_values_of_an_mset_share_one_sync() {
    for disk in [false, true] {
        let world = World::new(disk);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("gateway");
        let options =
            Options { listen: vec![Address::Unix(path.clone())], threads: 1, sweep: 0, ..Options::default() };
        let gateway = Gateway::start(options, |_| Ok(world.connect())).expect("a gateway");
        let mut client = Client::connect(&path);
        let names: Vec<Vec<u8>> = (0..10).map(|n| format!("key{n}").into_bytes()).collect();
        let mset = |value: &str| {
            let pairs = (0..10).map(|n| format!(" key{n} {value}{n}")).collect::<String>();
            format!("MSET{pairs} key3 {value}last\r\n")
        };
        client.send(&mset("before"));
        client.expect("+OK\r\n");
        world.settle(&names);
        let counted = world.syncs();
        client.send(&mset("after"));
        client.expect("+OK\r\n");
        assert_eq!(world.syncs() - counted, 1, "disk: {disk}");
        let found = world.after_a_crash(&names);
        for (n, name) in names.iter().enumerate() {
            let wanted = if n == 3 { "afterlast".to_owned() } else { format!("after{n}") };
            assert_eq!(
                String::from_utf8_lossy(&found[name]),
                wanted,
                "of a key that comes twice the last value stays"
            );
        }
        gateway.stop();
    }
}

/// Carries a request out on a store.
fn at_once(shared: &Shared, store: &mut Erda<Parts<Reach>>, line: &str) -> Vec<u8> {
    let mut session = Session::open(shared, "a", "b", 0);
    let (mut out, mut decoder) = (Vec::new(), Decoder::new(Limits::default()));
    decoder.push(format!("{line}\r\n").as_bytes());
    let request = decoder.next(false).expect("a request").expect("all of it");
    session.execute(&request, store, shared, Moment { unix_us: 1, random: 7 }, &mut out);
    session.close(shared);
    out
}

/// What was acknowledged of each field, and what is under way.
type Known = (BTreeMap<usize, String>, Option<(usize, String)>);

/// Before every sync, of commands and of what brings their changes into the parts, the power could have failed.
fn a_large_hash_in_a_crash(disk: bool) {
    const FIELDS: usize = 40;
    let (world, shared) =
        (&World::new(disk), &Shared::new(Config { hash_whole: 128, ..Config::default() }, 0));
    let known: &Mutex<Known> = &Mutex::default();
    let (at_sync, go_on) = world.hold_up();
    let checks = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while at_sync.recv().is_ok() {
                let (acknowledged, under_way) = &*known.lock().expect("nobody panicked");
                let mut store = world.crashed();
                for n in 0..FIELDS {
                    let reply = at_once(shared, &mut store, &format!("HGET h f{n}"));
                    let is = |value: &String| reply == format!("${}\r\n{value}\r\n", value.len()).as_bytes();
                    let done = under_way.as_ref().is_some_and(|(field, value)| *field == n && is(value));
                    let kept = acknowledged.get(&n).map_or(reply == b"$-1\r\n", is);
                    assert!(
                        done || kept,
                        "f{n} is {:?}, of {acknowledged:?}",
                        reply.escape_ascii().to_string()
                    );
                }
                let len = at_once(shared, &mut store, "HLEN h");
                let all = at_once(shared, &mut store, "HGETALL h");
                let count =
                    String::from_utf8_lossy(&len[1..len.len() - 2]).parse::<usize>().expect("a number");
                assert!(all.starts_with(format!("*{}\r\n", 2 * count).as_bytes()), "{count} fields");
                checks.fetch_add(1, Ordering::SeqCst);
                if go_on.send(()).is_err() {
                    break;
                }
            }
        });
        let mut store = world.connect();
        for n in 0..240 {
            let (field, value) = (n * 7 % FIELDS, format!("value{n}"));
            known.lock().expect("nobody panicked").1 = Some((field, value.clone()));
            assert!(at_once(shared, &mut store, &format!("HSET h f{field} {value}")).starts_with(b":"));
            known.lock().expect("nobody panicked").0.insert(field, value);
            let moment = Moment { unix_us: 1, random: n as u64 };
            while shared.fold(&mut store, moment).expect("it is served") {}
        }
        *world.medium.watch.gate.lock().expect("nobody panicked") = None;
    });
    assert!(checks.load(Ordering::SeqCst) > 200, "{checks:?}");
}

#[test]
fn of_a_large_hash_in_memory_nothing_acknowledged_is_lost_in_a_crash() {
    a_large_hash_in_a_crash(false);
}

#[test]
fn of_a_large_hash_on_a_disk_nothing_acknowledged_is_lost_in_a_crash() {
    a_large_hash_in_a_crash(true);
}
