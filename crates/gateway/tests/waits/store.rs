//! The gateway on a live Erda server that is a process of its own, and that is killed.
//!
//! It is killed 3 times, and 50 times with `REMANENCE_EFFORT=night`.

use crate::common;
use crate::stores as store;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Client, PATIENCE, bulk, ok, options};
use remanence_gateway::live::Connector;
use remanence_gateway::{Gateway, Options};
use remanence_kv::client::{Completion, RemoteMemory as _, Verb};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv_live::{ConnectOptions, PutOptions, Server, ServerOptions, Stop, Store};
use remanence_resp::protocol::Frame;
use remanence_resp::store::StoreError;
use store::{Served, connector, context};

#[test]
fn the_server_of_these_tests() {
    store::serve();
}

fn gateway(connector: &Connector, options: Options) -> Gateway {
    let open = |_| connector.connect().map_err(|error| StoreError::Unavailable(error.to_string()));
    Gateway::start(options, open).unwrap()
}

fn rounds() -> u64 {
    remanence_effort::rounds(3, 50)
}

#[test]
fn commands_pipelines_and_info_go_through_a_live_store() {
    let directory = tempfile::tempdir().unwrap();
    let server = Served::start(&directory.path().join("store"), "127.9.31.1:0".parse().unwrap());
    let connector = connector(&context("127.9.31.2"), server.address);
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let gateway =
        gateway(&connector, Options { metrics, more_metrics: Some(connector.metrics()), ..options() });
    let mut client = Client::connect(&gateway);
    assert_eq!(client.run("SET a 1"), ok());
    assert_eq!(client.run("INCR a"), Frame::Integer(2));
    assert_eq!(client.run("HSET h f v"), Frame::Integer(1));
    assert_eq!(client.run("SET a 5 NX"), Frame::Null);
    // A pipeline, of which the workers' connections see each other's part.
    let mut other = Client::connect(&gateway);
    let mut pipeline = String::new();
    for i in 0..500 {
        let (key, value) = (format!("key{i:03}"), "v".repeat(i));
        pipeline += &format!("*3\r\n$3\r\nSET\r\n$6\r\n{key}\r\n${i}\r\n{value}\r\n");
    }
    client.send(pipeline.as_bytes());
    for _ in 0..500 {
        assert_eq!(client.reply(), Some(ok()));
    }
    let gets: String = (0..500).map(|i| format!("*2\r\n$3\r\nGET\r\n$6\r\nkey{i:03}\r\n")).collect();
    for client in [&mut client, &mut other] {
        for _ in 0..2 {
            client.send(gets.as_bytes());
            for i in 0..500 {
                assert_eq!(client.reply(), Some(bulk(&"v".repeat(i))));
            }
        }
    }
    assert_eq!(client.run("DBSIZE"), Frame::Integer(502));
    assert_eq!(client.run("DEL key000 key001 none"), Frame::Integer(2));
    let Frame::Bulk(info) = client.run("INFO") else { panic!() };
    let info = String::from_utf8(info).unwrap();
    let fact = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("{name} is not in\n{info}")).to_owned()
    };
    assert_eq!(fact("store_server"), server.address.to_string());
    assert_eq!((fact("store_mode"), fact("store_connected")), ("durable".to_owned(), "2".to_owned()));
    assert!(fact("store_entries").parse::<u64>().unwrap() >= 500);
    for name in ["keys", "live_bytes", "garbage_bytes", "free_bytes", "left_bytes"] {
        fact(&format!("store_{name}")).parse::<u64>().unwrap();
    }
    assert!(fact("used_memory_peak").parse::<u64>().unwrap() > 1 << 20);
    // The second time over, a GET is one READ: the server's application saw none of them.
    assert!(fact("store_cached_gets").parse::<u64>().unwrap() >= 1000, "{info}");
    assert_eq!(fact("store_server_gets"), "0");
    let mut page = std::net::TcpStream::connect(gateway.metrics().unwrap()).unwrap();
    let mut text = String::new();
    std::io::Write::write_all(&mut page, b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    std::io::Read::read_to_string(&mut page, &mut text).unwrap();
    assert!(text.contains("\nremanence_gateway_store_connected 2\n"), "{text}");
    common::check_openmetrics(text.split_once("\r\n\r\n").unwrap().1);
    gateway.stop();
}

#[test]
fn what_a_native_client_is_in_the_way_of_waits_and_the_thread_serves_others() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody is cut off because the machine is busy.
    let file = ServerOptions::file(directory.path().join("store")).size(16 << 20).lease(PATIENCE);
    let mut server = Server::bind(&context("127.9.37.1"), file).unwrap();
    let (address, stop) = (server.addr(), Stop::new());
    let stopping = stop.clone();
    let serving = std::thread::spawn(move || server.run(&stopping));
    let (_, mut native) =
        Store::connect(&context("127.9.37.3"), address, ConnectOptions::default()).unwrap().into_parts();
    let connector = connector(&context("127.9.37.2"), address);
    let gateway = gateway(&connector, Options { threads: 1, ..options() });
    let (mut client, mut other) = (Client::connect(&gateway), Client::connect(&gateway));
    // By the first byte of a name, which is the database.
    let ask = Request::Put { key: b"\0held".to_vec(), len: 5, expires: 0, expect: Expect::Any };
    for line in ["SET held 1", "MSET held 2 free 2", "MULTI\r\nINCR held\r\nMSET held 3 free 3\r\nEXEC"] {
        let reserved = match native.post(vec![Verb::Call(ask.clone())]).unwrap().pop() {
            Some(Completion::Reply(Reply::Reserved(reserved))) => reserved,
            reply => panic!("{reply:?}"),
        };
        client.send(format!("{line}\r\n").as_bytes());
        for n in 0..20 {
            assert_eq!(other.run(&format!("SET other {n}")), ok());
        }
        // It was not cut off: the thread did not wait for that.
        native.post(vec![Verb::Call(Request::Abandon { version: reserved.version })]).unwrap();
        for _ in 0..line.lines().count() {
            let reply = client.reply().unwrap();
            assert!(!matches!(reply, Frame::Error(_)), "{line}: {reply:?}");
        }
    }
    assert_eq!(other.run("MGET held free"), Frame::Array(vec![bulk("3"), bulk("3")]));
    gateway.stop();
    stop.ask();
    serving.join().unwrap().unwrap();
}

#[test]
fn an_idle_gateway_sleeps_and_hears_at_once_what_its_store_elsewhere_waits_for() {
    let directory = tempfile::tempdir().unwrap();
    // Who says nothing would be waited for longer than this test waits.
    let file = ServerOptions::file(directory.path().join("store")).size(16 << 20).lease(PATIENCE * 20);
    let mut server = Server::bind(&context("127.9.38.1"), file.clean_by_itself(false)).unwrap();
    let (address, stop) = (server.addr(), Stop::new());
    let stopping = stop.clone();
    let serving = std::thread::spawn(move || server.run(&stopping));
    let connector = connector(&context("127.9.38.2"), address);
    let gateway = gateway(&connector, Options { threads: 2, ..options() });
    let mut client = Client::connect(&gateway);
    assert_eq!(client.run("SET key value"), ok());
    let mut native = Store::connect(&context("127.9.38.3"), address, ConnectOptions::default()).unwrap();
    for round in 0..3 {
        for n in 0..100 {
            native.put(format!("key {n}").as_bytes(), &vec![round; 2000], PutOptions::default()).unwrap();
        }
        native.compact().unwrap();
        let since = Instant::now();
        loop {
            native.rest().unwrap();
            let stats = native.stats().unwrap();
            if stats.to_clean == 0 && !stats.usage.cleaning {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "cleaning waits for the gateway: {stats:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // What was begun ends, in so many wake-ups; nothing comes from here on.
    let before = gateway.shared().stats.wakeups.get();
    std::thread::sleep(Duration::from_secs(5));
    let woken = gateway.shared().stats.wakeups.get() - before;
    assert!(woken < 50, "{woken} wake-ups");
    assert_eq!(client.run("GET key"), bulk("value"));
    gateway.stop();
    stop.ask();
    serving.join().unwrap().unwrap();
}

#[test]
fn every_acknowledged_set_is_there_after_the_server_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store");
    let mut server = Served::start(&file, "127.9.32.1:0".parse().unwrap());
    let address = server.address;
    let connector = connector(&context("127.9.32.2"), address);
    let gateway = Arc::new(gateway(&connector, options()));
    let stop = Arc::new(AtomicBool::new(false));
    // To each writer.
    let acknowledged: Arc<[AtomicU64; 3]> = Arc::default();
    let total = || acknowledged.iter().map(|count| count.load(Ordering::Acquire)).sum::<u64>();
    // The newest value that was acknowledged, and what was asked for since: the key has one of them.
    type Key = (Option<u64>, Vec<u64>);
    let keys: Arc<Mutex<BTreeMap<String, Key>>> = Arc::default();
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (gateway, stop, keys) = (gateway.clone(), stop.clone(), keys.clone());
            let acknowledged = acknowledged.clone();
            std::thread::spawn(move || {
                let mut client = Client::connect(&gateway);
                let mut n = 0_u64;
                while !stop.load(Ordering::Acquire) {
                    // Half of them alone, half in a pipeline.
                    let lot: Vec<u64> = if n.is_multiple_of(2) { vec![n] } else { (n..n + 6).collect() };
                    n += lot.len() as u64;
                    let name = |n: u64| format!("w{writer}-{}", n % 40);
                    let mut request = String::new();
                    for n in &lot {
                        let (key, value) = (name(*n), format!("{n:020}"));
                        keys.lock().unwrap().entry(key.clone()).or_default().1.push(*n);
                        request +=
                            &format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$20\r\n{value}\r\n", key.len());
                    }
                    client.send(request.as_bytes());
                    for n in &lot {
                        match client.reply().expect("the gateway goes on") {
                            Frame::Simple(_) => {
                                let mut keys = keys.lock().unwrap();
                                let key = keys.get_mut(&name(*n)).unwrap();
                                (key.0, key.1) =
                                    (Some(*n), key.1.iter().copied().filter(|m| m > n).collect());
                                acknowledged[writer].fetch_add(1, Ordering::AcqRel);
                            }
                            Frame::Error(text) => {
                                let text = String::from_utf8(text).unwrap();
                                assert!(text.starts_with("ERR the store did not answer: "), "{text}");
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
            })
        })
        .collect();
    for _ in 0..rounds() {
        // Under load: as many again as there were.
        let goal = total() + 100;
        let since = Instant::now();
        while total() < goal {
            assert!(since.elapsed() < PATIENCE, "no SET is acknowledged any more");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.kill();
        server = Served::start(&file, address);
    }
    // Every writer's worker is back, not only the quickest.
    let goals = acknowledged.each_ref().map(|count| count.load(Ordering::Acquire) + 20);
    let since = Instant::now();
    while acknowledged.iter().zip(goals).any(|(count, goal)| count.load(Ordering::Acquire) < goal) {
        assert!(since.elapsed() < PATIENCE, "the gateway does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Release);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut client = Client::connect(&gateway);
    for (name, (value, since)) in &*keys.lock().unwrap() {
        let found = match client.run(&format!("GET {name}")) {
            Frame::Bulk(bytes) => Some(String::from_utf8(bytes).unwrap().parse::<u64>().unwrap()),
            Frame::Null => None,
            other => panic!("{name}: {other:?}"),
        };
        let one = found == *value || found.is_some_and(|found| since.contains(&found));
        assert!(one, "{name} is {found:?}, {value:?} was acknowledged, {since:?} asked for since");
    }
    let mut text = Vec::new();
    if let Frame::Bulk(info) = client.run("INFO store") {
        text = info;
    }
    let text = String::from_utf8(text).unwrap();
    assert!(
        !text.contains("store_connections_lost:0\r\n") && text.contains("store_connected:2\r\n"),
        "{text}"
    );
    drop(client);
    let gateway = Arc::try_unwrap(gateway).expect("the writers are done");
    gateway.stop();
}

#[test]
fn who_waits_for_a_server_that_is_away_keeps_nobody_else_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store");
    let mut server = Served::start(&file, "127.9.39.1:0".parse().unwrap());
    let (address, context) = (server.address, context("127.9.39.2"));
    // Longer than the test waits: who was waited for in place would be seen.
    let connector = connector(&context, address).hold(PATIENCE * 10);
    let gateway = gateway(&connector, Options { threads: 1, ..options() });
    let lines = [
        ("GET a", vec![bulk("1")]),
        ("GET a\r\nGET none", vec![bulk("1"), Frame::Null]),
        ("HSET h f v", vec![Frame::Integer(1)]),
        ("MGET a none", vec![Frame::Array(vec![bulk("1"), Frame::Null])]),
        ("EXISTS a none", vec![Frame::Integer(1)]),
    ];
    let mut other = Client::connect(&gateway);
    assert_eq!(other.run("SET a 1"), ok());
    server.kill();
    // The connection is given up before they come: a write that was on its way then would fail.
    let since = Instant::now();
    let count = |name: &str, text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.expect("a fact").parse::<u64>().expect("a number")
    };
    let mut first = Client::connect(&gateway);
    first.send(b"GET a\r\n");
    loop {
        let Frame::Bulk(info) = other.run("INFO store") else { panic!() };
        if count("store_connections_lost", &String::from_utf8(info).unwrap()) > 0 {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "the connection is never lost");
    }
    let mut waiting: Vec<Client> = lines.iter().map(|_| Client::connect(&gateway)).collect();
    for (client, (line, _)) in waiting.iter_mut().zip(&lines) {
        client.send(format!("{line}\r\n").as_bytes());
    }
    for _ in 0..100 {
        assert_eq!(other.run("PING"), Frame::Simple(b"PONG".to_vec()));
    }
    for client in waiting.iter().chain([&first]) {
        client.stream.set_nonblocking(true).unwrap();
        let nothing = client.stream.peek(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "nobody can know yet");
        client.stream.set_nonblocking(false).unwrap();
    }
    let server = Served::start(&file, address);
    assert_eq!(first.reply(), Some(bulk("1")));
    for (client, (line, replies)) in waiting.iter_mut().zip(lines) {
        for reply in replies {
            assert_eq!(client.reply(), Some(reply), "{line}");
        }
    }
    gateway.stop();
    drop(server);
}

#[test]
fn who_waits_for_a_server_that_is_silent_keeps_nobody_else_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let server = Served::start(&directory.path().join("store"), "127.9.40.1:0".parse().unwrap());
    // Longer than the test waits: who was waited for in place would be seen.
    let patient = ConnectOptions::default().patience(PATIENCE * 10);
    let connector = Connector::new(&context("127.9.40.2"), server.address, patient);
    let gateway = gateway(&connector, Options { threads: 1, ..options() });
    let mut other = Client::connect(&gateway);
    for round in 0..3_i64 {
        assert_eq!(other.run("MSET a 1 x 1 y 1"), ok());
        let lines = [
            ("GET a", vec![bulk("1")]),
            ("GET a\r\nGET none\r\nGET a", vec![bulk("1"), Frame::Null, bulk("1")]),
            (
                "INCR counter\r\nINCR counter",
                vec![Frame::Integer(4 * round + 1), Frame::Integer(4 * round + 2)],
            ),
            ("SET s 1", vec![ok()]),
            ("CLIENT REPLY SKIP\r\nINCR silent\r\nPING", vec![Frame::Simple(b"PONG".to_vec())]),
            ("MSET m 1 n 2", vec![ok()]),
            ("DEL x y none", vec![Frame::Integer(2)]),
            ("HSET h f v", vec![Frame::Integer(i64::from(round == 0))]),
            ("MGET a none", vec![Frame::Array(vec![bulk("1"), Frame::Null])]),
            ("EXISTS a none", vec![Frame::Integer(1)]),
            ("DBSIZE", Vec::new()),
        ];
        let mut waiting: Vec<Client> = lines.iter().map(|_| Client::connect(&gateway)).collect();
        waiting.iter_mut().for_each(|client| assert_eq!(client.run("PING"), Frame::Simple(b"PONG".to_vec())));
        server.process.hold();
        for (client, (line, _)) in waiting.iter_mut().zip(&lines) {
            client.send(format!("{line}\r\n").as_bytes());
        }
        for n in 0..1000 {
            assert_eq!(other.run("PING"), Frame::Simple(b"PONG".to_vec()));
            assert_eq!(other.run(&format!("PUBLISH channel {n}")), Frame::Integer(0));
        }
        let mut newcomer = Client::connect(&gateway);
        assert_eq!(newcomer.run("ECHO new"), bulk("new"));
        // Had the thread waited in place, all of these would have been given up before others were served.
        for client in &waiting {
            client.stream.set_nonblocking(true).unwrap();
            let nothing = client.stream.peek(&mut [0]).unwrap_err();
            assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "nobody can know yet");
            client.stream.set_nonblocking(false).unwrap();
        }
        server.process.go_on();
        for (client, (line, replies)) in waiting.iter_mut().zip(lines) {
            if replies.is_empty() {
                assert!(matches!(client.reply(), Some(Frame::Integer(_))), "{line}");
            }
            for reply in replies {
                assert_eq!(client.reply(), Some(reply), "{line}");
            }
        }
        // Each was carried out once.
        assert_eq!(other.run("INCRBY counter 2"), Frame::Integer(4 * round + 4));
        assert_eq!(other.run("GET silent"), bulk(&(round + 1).to_string()));
    }
    gateway.stop();
}

#[test]
fn a_server_that_is_silent_for_too_long_is_an_error_and_the_next_connection_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let server = Served::start(&directory.path().join("store"), "127.9.43.1:0".parse().unwrap());
    let hasty = ConnectOptions::default().patience(Duration::from_secs(2));
    let connector = Connector::new(&context("127.9.43.2"), server.address, hasty).hold(Duration::ZERO);
    let gateway = gateway(&connector, Options { threads: 1, ..options() });
    let (mut reader, mut writer, mut other) =
        (Client::connect(&gateway), Client::connect(&gateway), Client::connect(&gateway));
    assert_eq!(other.run("SET a 1"), ok());
    server.process.hold();
    reader.send(b"GET a\r\n");
    writer.send(b"INCR a\r\n");
    for _ in 0..100 {
        assert_eq!(other.run("PING"), Frame::Simple(b"PONG".to_vec()));
    }
    for client in [&mut reader, &mut writer] {
        match client.reply() {
            Some(Frame::Error(text)) => {
                let text = String::from_utf8(text).unwrap();
                assert!(text.starts_with("ERR the store did not answer: "), "{text}");
            }
            reply => panic!("{reply:?}"),
        }
    }
    server.process.go_on();
    let since = Instant::now();
    while matches!(other.run("SET b 1"), Frame::Error(_)) {
        assert!(since.elapsed() < PATIENCE, "it does not come back");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Of the change it was not said that nothing was done.
    let value = other.run("GET a");
    assert!(value == bulk("1") || value == bulk("2"), "{value:?}");
    gateway.stop();
}

#[test]
fn a_server_that_is_away_is_an_error_at_once_and_the_gateway_stops_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store");
    let mut server = Served::start(&file, "127.9.33.1:0".parse().unwrap());
    let (address, context) = (server.address, context("127.9.33.2"));
    let connector = connector(&context, address).hold(Duration::ZERO);
    let gateway = gateway(&connector, options());
    let mut client = Client::connect(&gateway);
    assert_eq!(client.run("SET a 1"), ok());
    server.kill();
    let error = |frame: Frame| match frame {
        Frame::Error(text) => String::from_utf8(text).unwrap(),
        other => panic!("{other:?}"),
    };
    let text = error(client.run("GET a"));
    assert!(text.starts_with("ERR the store did not answer: nothing was done"), "{text}");
    assert!(error(client.run("SET a 2")).starts_with("ERR the store did not answer: "));
    assert_eq!(client.run("PING"), Frame::Simple(b"PONG".to_vec()));
    assert!(matches!(client.run("INFO"), Frame::Error(_) | Frame::Bulk(_)));
    // A client that connects meanwhile is served, and told the same.
    let mut other = Client::connect(&gateway);
    assert!(error(other.run("MGET a b")).starts_with("ERR the store did not answer: "));
    let server = Served::start(&file, address);
    let since = Instant::now();
    loop {
        match client.run("GET a") {
            // Of the SET that failed it was not said that nothing was done.
            Frame::Bulk(value) => break assert!(value == b"1" || value == b"2"),
            Frame::Error(_) => assert!(since.elapsed() < PATIENCE, "it does not come back"),
            other => panic!("{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(server);
    gateway.stop();
    // Nobody is there: a gateway says so before it listens.
    let error = remanence_gateway::live::Connector::new(
        &context,
        address,
        remanence_kv_live::ConnectOptions::default().patience(Duration::from_millis(200)),
    )
    .connect();
    assert!(error.is_err());
}
