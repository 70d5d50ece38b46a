//! The gateway's own promises, over real sockets: who waits for whom, what is bounded, what is answered at the end.

use crate::common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Client, PATIENCE, bulk, ok, options, start, tcp};
use remanence_gateway::{Address, Error, Gateway, Options};
use remanence_resp::engine::Config;
use remanence_resp::memory::{Hook, Hooked, MemoryStore, Step};
use remanence_resp::protocol::{Frame, Limits};
use remanence_resp::store::StoreError;

/// Waits for what happens by itself, sooner or later.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_pipeline_comes_back_in_order_however_it_is_cut() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    let mut bytes = Vec::new();
    for i in 0..2000 {
        bytes.extend(
            format!("*3\r\n$3\r\nSET\r\n$4\r\nk{i:03}\r\n$4\r\n{i:04}\r\nECHO {i}\r\n", i = i % 1000)
                .into_bytes(),
        );
    }
    for piece in bytes.chunks(777) {
        client.send(piece);
    }
    for i in 0..2000 {
        assert_eq!(client.reply(), Some(ok()));
        assert_eq!(client.reply(), Some(bulk(&(i % 1000).to_string())));
    }
    gateway.stop();
}

#[test]
fn many_connections_are_served_by_few_threads() {
    let gateway = start(options());
    let mut clients: Vec<Client> = (0..300).map(|_| Client::connect(&gateway)).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(format!("SET key{i} {i}\r\nINCR sum\r\nGET key{i}\r\n").as_bytes());
    }
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply(), Some(ok()));
        assert!(matches!(client.reply(), Some(Frame::Integer(1..=300))));
        assert_eq!(client.reply(), Some(bulk(&i.to_string())));
    }
    assert_eq!(clients[7].run("GET sum"), bulk("300"));
    assert_eq!(gateway.shared().peers().len(), 300);
    drop(clients);
    eventually("connections that were closed are forgotten", || gateway.shared().peers().is_empty());
    gateway.stop();
}

#[test]
fn who_does_not_read_is_not_read_from_and_loses_nothing() {
    const REPLIES: usize = 600;
    let gateway = start(Options { output_high: 256 * 1024, ..options() });
    let mut client = Client::connect(&gateway);
    let value = "x".repeat(100_000);
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${}\r\n{value}\r\n", value.len()).as_bytes());
    assert_eq!(client.reply(), Some(ok()));
    // 60 MB of replies, which fit in no socket.
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&b"GET v\r\n".repeat(REPLIES)).unwrap());
    eventually("the gateway stops working for it", || gateway.shared().stats.throttled.get() > 0);
    // What it has carried out is what sockets and buffer hold, not what was asked for.
    let carried_out = gateway.shared().stats.commands.get();
    assert!(carried_out < REPLIES as u64, "{carried_out}");
    // Others are served meanwhile.
    let mut other = Client::connect(&gateway);
    assert_eq!(other.run("PING"), Frame::Simple(b"PONG".to_vec()));
    for _ in 0..REPLIES {
        assert_eq!(client.reply(), Some(bulk(&value)));
    }
    sender.join().unwrap();
    gateway.stop();
}

#[test]
fn who_never_reads_is_closed() {
    let gateway = start(Options { output_high: 1024, stall: Duration::from_millis(100), ..options() });
    let mut client = Client::connect(&gateway);
    client.run(&format!("SET v {}", "x".repeat(60_000)));
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        // Ends with an error when the gateway has had enough.
        while writer.write_all(&b"GET v\r\n".repeat(100)).is_ok() {}
    });
    eventually("a stalled connection is closed", || gateway.shared().peers().is_empty());
    sender.join().unwrap();
    gateway.stop();
}

#[test]
fn large_values_go_through_whole() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    let value: String = (0..8 << 20).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${}\r\n{value}\r\n", value.len()).as_bytes());
    assert_eq!(client.reply(), Some(ok()));
    assert_eq!(client.run("STRLEN v"), Frame::Integer(8 << 20));
    assert_eq!(client.run("GET v"), bulk(&value));
    gateway.stop();
}

#[test]
fn what_is_no_request_is_told_and_closed() {
    let gateway = start(Options { limits: Limits { bulk: 1000, request: 5000, words: 100 }, ..options() });
    for (bytes, text) in [
        (&b"*1\r\nGET\r\n"[..], "ERR Protocol error: expected '$', got 'G'"),
        (b"*101\r\n", "ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$1001\r\n", "ERR Protocol error: invalid bulk length"),
        (b"PING\r\nset 'a\r\nPING\r\n", "ERR Protocol error: unbalanced quotes in request"),
    ] {
        let mut client = Client::connect(&gateway);
        client.send(bytes);
        let mut last = None;
        while let Some(frame) = client.reply() {
            last = Some(frame);
        }
        assert_eq!(last, Some(Frame::Error(text.as_bytes().to_vec())));
    }
    eventually("they are all gone", || gateway.shared().peers().is_empty());
    assert_eq!(gateway.shared().stats.protocol_errors.get(), 4);
    gateway.stop();
}

#[test]
fn a_client_that_closes_its_half_gets_its_replies() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    client.send(&b"PING\r\n".repeat(5000));
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..5000 {
        assert_eq!(client.reply(), Some(Frame::Simple(b"PONG".to_vec())));
    }
    assert_eq!(client.reply(), None);
    gateway.stop();
}

#[test]
fn who_does_not_authenticate_in_time_is_closed_whatever_it_sends() {
    let config = Config { password: Some("secret".to_owned()), ..Config::default() };
    let gateway = start(Options { config, auth_time: Duration::from_millis(300), ..options() });
    let mut friend = Client::connect(&gateway);
    assert_eq!(friend.run("AUTH secret"), ok());
    // One is silent, one is in the middle of a request, and one sends all the time.
    let mut strangers: Vec<Client> = (0..3).map(|_| Client::connect(&gateway)).collect();
    strangers[1].send(b"*2\r\n$4\r\nAUTH\r\n$6\r\nse");
    while strangers[2].stream.write_all(b"PING\r\n").is_ok() {
        if strangers[2].reply().is_none() {
            break;
        }
    }
    for stranger in &mut strangers[..2] {
        assert_eq!(stranger.reply(), None);
    }
    eventually("they are counted", || gateway.shared().stats.stranger_closed.get() == 3);
    assert_eq!(friend.run("PING"), Frame::Simple(b"PONG".to_vec()), "who has authenticated stays");
    gateway.stop();
}

#[test]
fn requests_and_replies_of_all_have_one_bound_and_small_ones_go_on() {
    const MEMORY: usize = 8 << 20;
    let gateway = start(Options { memory: MEMORY, ..options() });
    let mut friend = Client::connect(&gateway);
    assert_eq!(friend.run("SET small 1"), ok());
    // Strangers begin requests of a megabyte each that they never finish. Not all of them can be kept.
    let mut strangers: Vec<Client> = (0..24).map(|_| Client::connect(&gateway)).collect();
    for stranger in &mut strangers {
        // Who is closed meanwhile does not take all of it.
        let _ = stranger.stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n");
        let _ = stranger.stream.write_all(&[b'x'; 1_000_000]);
    }
    let closed = || gateway.shared().stats.memory_closed.get();
    eventually("some are turned away", || closed() >= 24 - MEMORY as u64 / 1_000_000);
    let room = MEMORY + 25 * (128 << 10);
    assert!(gateway.shared().client_memory() <= room as u64, "{}", gateway.shared().client_memory());
    assert_eq!(friend.run("GET small"), bulk("1"), "small requests are answered all the while");
    // The same for transactions: what is queued is kept, too.
    friend.send(b"MULTI\r\n");
    assert_eq!(friend.reply(), Some(ok()));
    let value = "v".repeat(60_000);
    let before = closed();
    loop {
        let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len());
        match friend.stream.write_all(set.as_bytes()).ok().and_then(|()| friend.reply()) {
            Some(Frame::Simple(queued)) => assert_eq!(queued, b"QUEUED"),
            Some(Frame::Error(text)) => {
                let text = String::from_utf8(text).unwrap();
                assert!(text.contains("(--memory)"), "{text}");
                break;
            }
            // What had not been read when it was closed can take the reply along.
            None => break,
            other => panic!("{other:?}"),
        }
    }
    // (Strangers may be turned away meanwhile, too.)
    assert!(closed() > before);
    drop(strangers);
    drop(friend);
    eventually("nothing is held for nobody", || gateway.shared().client_memory() == 0);
    // And for replies that nobody reads: the value is there for all, and they want more of it than there is room for.
    let mut friend = Client::connect(&gateway);
    friend.send(format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n", 900_000).as_bytes());
    friend.send(&[b'x'; 900_000]);
    friend.send(b"\r\n");
    assert_eq!(friend.reply(), Some(ok()));
    let before = closed();
    let mut readers: Vec<Client> = (0..16).map(|_| Client::connect(&gateway)).collect();
    for reader in &mut readers {
        let _ = reader.stream.write_all(&b"GET big\r\n".repeat(40));
    }
    eventually("some are turned away", || closed() > before);
    drop(readers);
    assert_eq!(friend.run("GET small"), bulk("1"));
    gateway.stop();
}

#[test]
fn quit_and_kill_end_connections() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    client.send(b"PING\r\nQUIT\r\nPING\r\n");
    assert_eq!(client.reply(), Some(Frame::Simple(b"PONG".to_vec())));
    assert_eq!(client.reply(), Some(ok()));
    assert_eq!(client.reply(), None, "nothing behind QUIT is answered");

    let (mut one, mut two) = (Client::connect(&gateway), Client::connect(&gateway));
    let Frame::Integer(id) = two.run("CLIENT ID") else { panic!() };
    assert_eq!(one.run(&format!("CLIENT KILL ID {id}")), Frame::Integer(1));
    assert_eq!(two.reply(), None);
    assert_eq!(one.run("CLIENT KILL TYPE normal SKIPME no"), Frame::Integer(1));
    assert_eq!(one.reply(), None);
    gateway.stop();
}

#[test]
fn too_many_connections_are_told_so() {
    let config = Config { clients_max: 3, ..Config::default() };
    let gateway = start(Options { config, ..options() });
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&gateway)).collect();
    clients.iter_mut().for_each(|client| _ = client.run("PING"));
    let mut fourth = Client::connect(&gateway);
    assert_eq!(fourth.reply(), Some(Frame::Error(b"ERR max number of clients reached".to_vec())));
    assert_eq!(fourth.reply(), None);
    clients.pop();
    // Once it has been noticed that one has gone, there is room again.
    eventually("there is room again", || {
        let mut next = Client::connect(&gateway);
        let _ = next.stream.write_all(b"PING\r\n");
        next.reply() == Some(Frame::Simple(b"PONG".to_vec()))
    });
    assert!(gateway.shared().stats.rejected_connections.get() > 0);
    gateway.stop();
}

#[test]
fn idle_connections_are_closed_if_asked_for() {
    let config = Config { idle_timeout_s: 1, ..Config::default() };
    let gateway = start(Options { config, ..options() });
    let mut client = Client::connect(&gateway);
    assert_eq!(client.reply(), None);
    assert_eq!(gateway.shared().stats.idle_closed.get(), 1);
    gateway.stop();
}

#[test]
fn keys_that_expired_are_swept_without_being_asked_for() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    for i in 0..500 {
        client.send(format!("SET key{i} v PX 1\r\nSET stay{i} v\r\n").as_bytes());
    }
    (0..1000).for_each(|_| assert_eq!(client.reply(), Some(ok())));
    eventually("they are all gone", || client.run("DBSIZE") == Frame::Integer(500));
    gateway.stop();
}

#[test]
fn an_idle_gateway_does_not_wake_up() {
    let gateway = start(Options { threads: 3, ..options() });
    let mut clients: Vec<Client> = (0..5).map(|_| Client::connect(&gateway)).collect();
    clients.iter_mut().for_each(|client| _ = client.run("SET key value"));
    // What these few events make it wake up for does not depend on the time that passes.
    std::thread::sleep(Duration::from_secs(5));
    let woken = gateway.shared().stats.wakeups.get();
    assert!(woken < 100, "{woken} wake-ups");
    clients.iter_mut().for_each(|client| assert_eq!(client.run("GET key"), bulk("value")));
    gateway.stop();
}

#[test]
fn a_stopping_gateway_answers_what_it_has_received() {
    for _ in 0..5 {
        let gateway = start(options());
        let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(&gateway)).collect();
        // Each is known to be connected; then a pipeline, the stop right behind it.
        clients.iter_mut().for_each(|client| _ = client.run("PING"));
        clients.iter_mut().for_each(|client| client.send(&b"INCR sum\r\n".repeat(2000)));
        let before = gateway.shared().stats.input_bytes.get();
        let shared = gateway.shared().clone();
        gateway.stop();
        let mut answered = 0;
        for client in &mut clients {
            let mut last = 0;
            while let Some(Frame::Integer(sum)) = client.reply() {
                assert!(sum > last);
                last = sum;
                answered += 1;
            }
        }
        // Not one was carried out without being answered.
        assert_eq!(answered, shared.stats.commands.get() - 8);
        assert!(shared.stats.input_bytes.get() >= before);
        assert!(shared.peers().is_empty());
    }
}

#[test]
fn a_stop_does_not_wait_for_who_does_not_read() {
    let gateway = start(Options { grace: Duration::from_millis(50), ..options() });
    let mut client = Client::connect(&gateway);
    client.run(&format!("SET v {}", "x".repeat(60_000)));
    let mut writer = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || _ = writer.write_all(&b"GET v\r\n".repeat(5000)));
    eventually("it is throttled", || gateway.shared().stats.throttled.get() > 0);
    gateway.stop();
    drop(client);
    sender.join().unwrap();
}

/// Two keys are always written together: nobody may see them differ, neither by MGET nor while they are renamed.
#[test]
fn commands_on_several_keys_are_seen_whole() {
    let gateway = start(Options { threads: 3, ..options() });
    Client::connect(&gateway).run("MSET a 0 b 0");
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut client = Client::connect(gateway);
                for i in 0..1000 {
                    assert_eq!(client.run(&format!("MSET a {writer}-{i} b {writer}-{i}")), ok());
                }
            });
        }
        let mut client = Client::connect(&gateway);
        for _ in 0..1000 {
            let Frame::Array(pair) = client.run("MGET a b") else { panic!() };
            assert_eq!(pair[0], pair[1]);
        }
    });
    gateway.stop();
}

/// Panics when the store is asked for a certain key, and at another waits until it is told to go on.
struct Fragile(Option<Receiver<()>>);

impl Hook for Fragile {
    fn before(&mut self, step: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        if let Step::Get(key) = step {
            assert!(key.name != b"boom", "this panic is part of a test");
            if let (b"gate", Some(gate)) = (key.name, &self.0) {
                gate.recv_timeout(PATIENCE).unwrap();
            }
        }
        Ok(())
    }
}

#[test]
fn a_worker_that_panics_ends_the_whole_gateway() {
    let store = MemoryStore::default();
    let gateway =
        Gateway::start(options(), |_| Ok(Hooked { store: store.clone(), hook: Fragile(None) })).unwrap();
    let (mut one, mut two) = (Client::connect(&gateway), Client::connect(&gateway));
    one.run("PING");
    two.run("PING");
    one.send(b"GET boom\r\n");
    assert!(!gateway.wait());
    assert_eq!(one.reply(), None);
    assert_eq!(two.reply(), None);
}

/// The only worker is held up in the store while requests arrive and the stop comes: they are read after it, and answered.
#[test]
fn what_had_arrived_when_the_stop_came_is_answered() {
    let (store, (open, gate)) = (MemoryStore::default(), channel());
    let gate = Mutex::new(Some(gate));
    let gateway = Gateway::start(Options { threads: 1, ..options() }, |_| {
        Ok(Hooked { store: store.clone(), hook: Fragile(gate.lock().unwrap().take()) })
    })
    .unwrap();
    let (mut one, mut two) = (Client::connect(&gateway), Client::connect(&gateway));
    one.run("PING");
    two.run("PING");
    let before = gateway.shared().stats.reads.get();
    one.send(b"GET gate\r\n");
    eventually("the worker has read it", || gateway.shared().stats.reads.get() > before);
    two.send(&b"INCR sum\r\n".repeat(2000));
    gateway.stopper().stop();
    open.send(()).unwrap();
    assert_eq!(one.reply(), Some(Frame::Null));
    for i in 1..=2000 {
        assert_eq!(two.reply(), Some(Frame::Integer(i)));
    }
    assert_eq!(two.reply(), None);
    assert!(gateway.wait());
}

#[test]
fn a_gateway_can_be_stopped_from_elsewhere() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    client.run("PING");
    let stopper = gateway.stopper();
    let stopping = std::thread::spawn(move || stopper.stop());
    assert!(gateway.wait());
    stopping.join().unwrap();
    assert_eq!(client.reply(), None);
}

#[test]
fn an_idle_connection_gives_its_memory_back_and_goes_on() {
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    client.run(&format!("SET v {}", "x".repeat(50_000)));
    client.run("GET v");
    // Longer than a connection is kept warm; nothing here depends on how long it really takes.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(client.run("STRLEN v"), Frame::Integer(50_000));
    gateway.stop();
}

#[test]
fn a_password_keeps_strangers_out_and_their_requests_small() {
    let config = Config { password: Some("secret".to_owned()), ..Config::default() };
    let gateway = start(Options { config, ..options() });
    let mut client = Client::connect(&gateway);
    assert_eq!(client.run("GET a"), Frame::Error(b"NOAUTH Authentication required.".to_vec()));
    assert_eq!(client.run("AUTH secret"), ok());
    assert_eq!(client.run("SET a 1"), ok());
    let mut stranger = Client::connect(&gateway);
    stranger.send(b"*2\r\n$4\r\nECHO\r\n$20000\r\n");
    assert_eq!(
        stranger.reply(),
        Some(Frame::Error(b"ERR Protocol error: unauthenticated bulk length".to_vec()))
    );
    gateway.stop();
}

fn get(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn prometheus_reads_what_info_says() {
    let more: remanence_metrics::Source =
        Arc::new(|page| page.gauge("erda_objects", None, "Objects.", 42_u64));
    let gateway = start(Options {
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        more_metrics: Some(more),
        ..options()
    });
    let mut client = Client::connect(&gateway);
    for line in ["SET a 1", "GET a", "GET b", "NOSUCH", "GET"] {
        client.run(line);
    }
    let address = gateway.metrics().unwrap();
    let text = get(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for line in [
        "remanence_gateway_connections 1",
        "remanence_gateway_commands_total{command=\"get\"} 2",
        "remanence_gateway_commands_rejected_total{command=\"get\"} 1",
        "remanence_gateway_keyspace_hits_total 1",
        "remanence_gateway_errors_total{code=\"ERR\"} 2",
        "# TYPE remanence_gateway_commands_duration_seconds counter",
        "erda_objects 42",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let body = text.split_once("\r\n\r\n").unwrap().1;
    common::check_openmetrics(body);
    assert!(get(address, "GET /elsewhere HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    let Frame::Bulk(info) = client.run("INFO") else { panic!() };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains(&format!("tcp_port:{}\r\n", tcp(&gateway).port())), "{info}");
    gateway.stop();
}

#[test]
fn unix_sockets_serve_and_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.sock");
    let address = Address::parse(path.to_str().unwrap()).unwrap();
    // One that a dead process left.
    drop(UnixListener::bind(&path).unwrap());
    let listen = vec![address.clone(), Address::parse("127.0.0.1:0").unwrap()];
    let gateway = start(Options { listen: listen.clone(), ..options() });
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"SET a b\r\n").unwrap();
    let mut reply = [0; 5];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    assert_eq!(Client::connect(&gateway).run("GET a"), bulk("b"), "the same store");
    // One that somebody answers at is not taken.
    let store = MemoryStore::default();
    let second = Gateway::start(Options { listen, ..options() }, |_| Ok(store.clone()));
    assert!(matches!(second, Err(Error::Listen { .. })), "{second:?}");
    gateway.stop();
    assert!(!path.exists());
    // Nor is what is no socket.
    std::fs::write(&path, "precious").unwrap();
    let third = Gateway::start(Options { listen: vec![address], ..options() }, |_| Ok(store.clone()));
    assert!(third.unwrap_err().to_string().contains("what is there is no socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn what_does_not_start_says_why() {
    let store = MemoryStore::default();
    let message = |options: Options| Gateway::start(options, |_| Ok(store.clone())).unwrap_err().to_string();
    assert!(message(Options { listen: Vec::new(), ..options() }).contains("give host:port"));
    assert!(message(Options { threads: 0, ..options() }).contains("raise what is 0"));
    assert!(Address::parse("nonsense").unwrap_err().to_string().contains("give host:port or a path"));
    let taken = start(options());
    let address = Address::Tcp(tcp(&taken));
    assert!(message(Options { listen: vec![address], ..options() }).contains("is another server there?"));
    let failed =
        Gateway::start(options(), |_| Err::<MemoryStore, _>(StoreError::Unavailable("no pool".into())));
    assert!(failed.unwrap_err().to_string().starts_with("the store cannot be opened"));
    taken.stop();
}
