//! What turns and rounds do, counted: no time, no other thread.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use mio::Waker;
use remanence_resp::memory::{Hook, Hooked, MemoryStore, Step};
use remanence_resp::store::{Change, Condition, Key, StoreLimits, Version};

use super::*;
use crate::connection::{COMMAND, NEW};

struct Host<S = MemoryStore> {
    worker: Worker<S>,
    events: Events,
}

struct Client(UnixStream);

impl Host {
    fn new() -> Self {
        Self::over(MemoryStore::default())
    }
}

impl<S: Store> Host<S> {
    fn over(store: S) -> Self {
        let options = Options::default();
        let shared = Arc::new(Shared::new(options.config.clone(), 0));
        let poll = Poll::new().expect("an epoll");
        let wakers = Arc::new(vec![Waker::new(poll.registry(), WAKER).expect("a waker")]);
        let (sender, inbox) = mpsc::channel();
        let common = Common {
            options,
            shared,
            stopper: Stopper { stop: Arc::new(AtomicBool::new(false)), wakers },
            mailboxes: vec![Mailbox::new(sender)],
            alone: RwLock::default(),
            turn: Mutex::default(),
            contended: AtomicUsize::new(0),
            sweeps_at: AtomicI64::new(i64::MIN),
            rates: Mutex::default(),
        };
        let worker = Worker::new(0, poll, inbox, store, Arc::new(common));
        Self { worker, events: Events::with_capacity(1024) }
    }

    fn connect(&mut self) -> Client {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        for stream in [&ours, &theirs] {
            stream.set_nonblocking(true).expect("a socket");
        }
        let stream = Stream::Unix(mio::net::UnixStream::from_std(ours));
        self.worker.common.mailboxes[0].load.fetch_add(1, Ordering::Relaxed);
        self.worker.seat(Arrival { stream, address: "client".to_owned(), local: "gateway".to_owned() });
        Client(theirs)
    }

    /// A client that has been there for a while.
    fn known(&mut self) -> Client {
        let mut client = self.connect();
        for _ in 0..NEW {
            client.feed(b"PING\r\n");
            while client.read().is_empty() {
                self.round();
            }
        }
        client
    }

    /// One round; how many commands it carried out.
    fn round(&mut self) -> u64 {
        let before = self.commands();
        self.worker.gather(&mut self.events, Some(Duration::ZERO));
        self.worker.serve();
        self.worker.write_joint();
        // Nobody waits for the pauses between attempts. What waits for keys is told when they are given back.
        let paused = self.worker.paused.iter().map(|(next, _)| *next);
        let next = self.worker.waiting.iter().filter_map(|waiting| waiting.next).chain(paused).max();
        self.worker.write_waiting(next.unwrap_or_else(Instant::now));
        self.commands() - before
    }

    /// One round in which nobody's pause is over, but for those that are told.
    fn round_at_once(&mut self) {
        self.worker.gather(&mut self.events, Some(Duration::ZERO));
        self.worker.serve();
        self.worker.write_joint();
        self.worker.write_waiting(Instant::now());
    }

    /// What comes for a client, in as many rounds as that takes until it is so long.
    fn replies(&mut self, client: &mut Client, len: usize) -> String {
        let (mut came, mut rounds) = (client.read(), 0);
        while came.len() < len {
            self.round();
            came.extend(client.read());
            rounds += 1;
            assert!(rounds < 1000, "it is never answered: {}", String::from_utf8_lossy(&came));
        }
        String::from_utf8_lossy(&came).into_owned()
    }

    /// Sends all of it, in as many rounds as that takes.
    fn send(&mut self, client: &mut Client, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match client.0.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => _ = self.round(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn commands(&self) -> u64 {
        self.worker.common.shared.stats.commands.get()
    }
}

impl Client {
    /// Sends as much of it as the sockets take.
    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// What has come.
    fn read(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        match self.0.read(&mut bytes) {
            Ok(count) => bytes.truncate(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bytes.clear(),
            Err(error) => panic!("{error}"),
        }
        bytes
    }
}

/// More of them than sockets take.
fn pipeline() -> Vec<u8> {
    b"*2\r\n$3\r\nGET\r\n$1\r\ng\r\n".repeat(100_000)
}

#[test]
fn a_turn_does_its_share_of_bytes_and_commands_and_no_more() {
    let mut host = Host::new();
    let mut client = host.connect();
    client.feed(&pipeline());
    let (first, most) = (host.round(), (ROUND / COMMAND) as u64);
    assert!((most / 2..=most).contains(&first), "{first} small commands in a turn");
    // Large replies are bytes of it, too: not more than one is begun beyond it.
    let mut reader = host.connect();
    reader.feed(&[&b"*3\r\n$3\r\nSET\r\n$1\r\nl\r\n$50000\r\n"[..], &[b'x'; 50000], b"\r\n"].concat());
    while reader.read() != b"+OK\r\n" {
        host.round();
    }
    drop(client);
    while host.worker.guests[0].is_some() {
        host.round();
    }
    reader.feed(&b"GET l\r\n".repeat(100));
    let large = host.round();
    assert!((1..=(ROUND / 50_000 + 1) as u64).contains(&large), "{large} large replies in a turn");
    // What is received of one large request is as bounded as what is carried out.
    let mut host = Host::new();
    let mut feeder = host.connect();
    feeder.feed(&[&b"*3\r\n$3\r\nSET\r\n$1\r\nl\r\n$5000000\r\n"[..], &[b'x'; 1 << 20]].concat());
    host.round();
    let received = host.worker.common.shared.stats.input_bytes.get();
    assert!((1..=ROUND as u64 / 4).contains(&received), "{received} bytes in a turn");
}

#[test]
fn who_wants_little_waits_for_one_round_however_many_want_much() {
    let mut host = Host::new();
    let mut good = host.known();
    good.feed(b"SET g x\r\n");
    host.round();
    assert_eq!(good.read(), b"+OK\r\n");
    let pipeline = pipeline();
    let mut many: Vec<_> = (0..100).map(|_| host.connect()).collect();
    for client in &mut many {
        client.feed(&pipeline);
    }
    // They all have just come: as many have a turn, of the least share, as there is work in a round.
    let first = host.round();
    assert!(first <= (ROUND / COMMAND) as u64, "{first} commands of all");
    for _ in 0..3 {
        good.feed(b"SET g y\r\n");
        let between = host.round();
        assert_eq!(good.read(), b"+OK\r\n", "it is answered in the round that it came in");
        assert!(between <= 1 + (ROUND / COMMAND) as u64, "{between} commands before its reply");
        assert!(between > 1, "the others go on meanwhile");
    }
    // New ones and those that are behind go by turns. In as many rounds as it takes that each is behind, and has another turn, it has gone on.
    for _ in 0..3 * many.len().div_ceil(ROUND / SHARE) {
        host.round();
    }
    let once = SHARE / COMMAND;
    for client in &mut many {
        let replies = client.read().len() / b"$1\r\ny\r\n".len();
        assert!(replies > once, "{replies} commands of one client, {once} of them in its first turn");
    }
}

/// Small requests for much work on a value of 500 KB, each with the commands that it is.
const MUCH: [(&[u8], u64); 4] = [
    (b"SETRANGE much 500000 x\r\n", 1),
    (b"APPEND much x\r\n", 1),
    (b"MGET much much\r\n", 1),
    (b"MULTI\r\nSETRANGE much 500000 x\r\nEXEC\r\n", 3),
];

#[test]
fn what_a_command_reads_and_writes_is_work_of_its_turn() {
    for (request, commands) in MUCH {
        for pipelined in [1, 100] {
            let mut host = Host::new();
            let (mut good, mut many) = (host.known(), Vec::new());
            good.feed(b"SETRANGE much 500000 x\r\n");
            while good.read().is_empty() {
                host.round();
            }
            for _ in 0..50 {
                let mut client = host.connect();
                client.feed(&request.repeat(pipelined));
                many.push(client);
            }
            // They all have just come: one has a turn, and carries out one of them.
            assert_eq!(host.round(), commands);
            let mut answered = vec![0; many.len()];
            for _ in 0..4 * many.len() {
                good.feed(b"SET g y\r\n");
                let between = host.round();
                assert_eq!(good.read(), b"+OK\r\n", "it is answered in the round that it came in");
                assert!(between <= 1 + commands, "{between} commands before its reply");
                for (client, answered) in many.iter_mut().zip(&mut answered) {
                    let came = !client.read().is_empty();
                    *answered += usize::from(came);
                    if came && pipelined == 1 {
                        client.feed(request);
                    }
                }
            }
            // Each in its turn.
            assert!(answered.iter().all(|count| *count >= 2), "{answered:?}");
        }
    }
}

#[test]
fn who_comes_anew_for_each_command_has_no_more_of_a_round_than_who_stays() {
    let (request, commands) = MUCH[3];
    let mut host = Host::new();
    let mut good = host.known();
    good.feed(b"SETRANGE much 500000 x\r\n");
    while good.read().is_empty() {
        host.round();
    }
    // It is behind for that.
    for _ in 0..4 {
        good.feed(b"PING\r\n");
        host.round();
    }
    good.read();
    for _ in 0..20 {
        for _ in 0..20 {
            host.connect().feed(request);
        }
        good.feed(b"SET g y\r\n");
        let between = host.round();
        assert_eq!(good.read(), b"+OK\r\n", "it is answered in the round that it came in");
        assert!(between <= 1 + commands, "{between} commands before its reply");
    }
    // None of them is forgotten: the other side of a socket that was closed has what came before.
    let mut rounds = 0;
    while host.worker.guests.iter().filter(|guest| guest.is_some()).count() > 1 {
        host.round();
        rounds += 1;
        assert!(rounds < 2000, "some are never served");
    }
}

#[test]
fn what_is_published_is_work_for_each_who_gets_it() {
    let mut host = Host::new();
    let mut many: Vec<_> = (0..100).map(|_| host.connect()).collect();
    for client in &mut many {
        client.feed(b"SUBSCRIBE c\r\n");
    }
    while host.commands() < 100 {
        host.round();
    }
    let mut publisher = host.connect();
    publisher.feed(&b"PUBLISH c 0123456789\r\n".repeat(1000));
    let published = host.round();
    assert!((1..=ROUND as u64 / (100 * 522) + 1).contains(&published), "{published} messages in a turn");
}

#[test]
fn who_did_more_than_its_share_is_behind_until_it_has_made_up_for_it() {
    let mut host = Host::new();
    let mut client = host.connect();
    client.feed(&b"SETRANGE much 5000000 x\r\n".repeat(2));
    while client.read().is_empty() {
        host.round();
    }
    let behind = |host: &Host| host.worker.guests[0].as_ref().expect("it is there").is_behind();
    let mut turns = 0;
    while behind(&host) {
        client.feed(b"PING\r\n");
        host.round();
        turns += 1;
        assert!(turns < 100, "it is behind for ever");
    }
    // Of the second one, which read 5 MB and wrote as many.
    let expected = 10_000_000 / ROUND;
    assert!((expected..=expected + 2).contains(&turns), "{turns} turns");
}

#[test]
fn what_names_many_keys_or_is_compared_with_long_patterns_is_carried_out_in_parts() {
    let mut host = Host::new();
    let (mut good, mut many, mut listener) = (host.known(), host.known(), host.known());
    good.feed(b"SET there x\r\n");
    let mut patterns = b"PSUBSCRIBE aaaaaaaa*".to_vec();
    (0..10).for_each(|n| patterns.extend(format!(" {}b{n}", "*a".repeat(50)).into_bytes()));
    listener.feed(&[&patterns[..], b"\r\n"].concat());
    for client in [&mut good, &mut listener] {
        while client.read().is_empty() {
            host.round();
        }
    }
    host.round();
    listener.read();
    let names = "$5\r\nthere\r\n$6\r\nabsent\r\n".repeat(2000);
    let channel = "a".repeat(20_000);
    let of = |name: &str, each: usize, words: &str| format!("*{}\r\n{name}\r\n{words}", 2000 * each + 1);
    let keys: String = (1000..3000).map(|n| format!("$7\r\nkey{n}\r\n")).collect();
    let pairs: String = (1000..3000).map(|n| format!("$7\r\nkey{n}\r\n$1\r\nv\r\n")).collect();
    let values = format!("*2000\r\n{}", "$1\r\nv\r\n".repeat(2000));
    // Each with its reply, and how many rounds it takes at least.
    let cases = [
        (of("$4\r\nMSET", 2, &pairs), "+OK\r\n", 2000 / 512),
        (of("$4\r\nMGET", 1, &keys), values.as_str(), 2000 / 64),
        (of("$6\r\nMSETNX", 2, &pairs), ":0\r\n", 1),
        (of("$3\r\nDEL", 1, &keys), ":2000\r\n", 2000 / 512),
        (of("$6\r\nMSETNX", 2, &pairs), ":1\r\n", 2 * 2000 / 512),
        (of("$6\r\nUNLINK", 1, &keys), ":2000\r\n", 2000 / 512),
        (format!("*4001\r\n$6\r\nEXISTS\r\n{names}"), ":2000\r\n", 4000 / 64),
        (format!("*4001\r\n$5\r\nTOUCH\r\n{names}"), ":2000\r\n", 4000 / 64),
        (format!("*3\r\n$7\r\nPUBLISH\r\n$20000\r\n{channel}\r\n$1\r\nm\r\n"), ":1\r\n", 2),
    ];
    for (request, reply, least) in cases {
        many.feed(request.as_bytes());
        let mut rounds = 0;
        let replied = loop {
            good.feed(b"PING\r\n");
            host.round();
            assert_eq!(good.read(), b"+PONG\r\n", "others are served in each round");
            rounds += 1;
            let replied = many.read();
            if !replied.is_empty() {
                break replied;
            }
        };
        assert_eq!(String::from_utf8_lossy(&replied), reply);
        assert!(rounds >= least, "{rounds} rounds for {}", &request[..20]);
    }
    for _ in 0..4 {
        host.round();
    }
    assert!(listener.read().ends_with(b"$1\r\nm\r\n"), "and the message has come");
}

#[test]
fn between_the_parts_of_a_command_on_many_keys_nobody_comes_to_one_of_them() {
    let pairs = |value: &str| (1000..3000).map(|n| format!(" key{n} {value}")).collect::<String>();
    let names: String = (1000..3000).map(|n| format!(" key{n}")).collect();
    let cases = [
        (format!("MSET{}", pairs("new")), "+OK\r\n", "*2\r\n$3\r\nnew\r\n$3\r\nnew\r\n"),
        (format!("DEL{names}"), ":2000\r\n", "*2\r\n$-1\r\n$-1\r\n"),
        (
            format!("MULTI\r\nMSET{0}\r\nMSET{0}\r\nEXEC", pairs("new")),
            "*2\r\n+OK\r\n+OK\r\n",
            "*2\r\n$3\r\nnew\r\n$3\r\nnew\r\n",
        ),
    ];
    for (command, reply, seen) in cases {
        let mut host = Host::new();
        let (mut many, mut reader, mut writer) = (host.known(), host.known(), host.known());
        host.send(&mut many, format!("MSET{}\r\n", pairs("old")).as_bytes());
        while many.read().is_empty() {
            host.round();
        }
        // What is put off beside the first part is written behind the last one.
        writer.feed(b"APPEND key2999 x\r\n");
        host.send(&mut many, format!("{command}\r\n").as_bytes());
        while !host.worker.common.shared.has_holds() {
            host.round();
        }
        reader.feed(b"MGET key1000 key2998\r\n");
        let (mut replied, mut waited) = (Vec::new(), 0);
        while !replied.ends_with(reply.as_bytes()) {
            assert!(reader.read().is_empty(), "{}: the half of it was seen", &command[..9]);
            host.round();
            replied.extend(many.read());
            waited += 1;
            assert!(waited < 100, "it comes to no end");
        }
        // Whoever waited for the keys is told, and tries again at no other time.
        assert_eq!(host.replies(&mut reader, seen.len()), seen);
        let length = if command.starts_with("DEL") { ":1\r\n" } else { ":4\r\n" };
        assert_eq!(host.replies(&mut writer, length.len()), length);
        assert_eq!(host.worker.next_attempt(), None);
    }
}

#[test]
fn what_exec_carries_out_goes_in_parts_too_and_is_one_moment() {
    let of = |each: &str| (1000..4000).map(|n| each.replace("key", &format!("key{n}"))).collect::<String>();
    let (names, pairs) = (of(" key"), of(" key v"));
    let (there, gone) = ("$1\r\nv\r\n", "$-1\r\n");
    // What is done before, the command, its reply, how many rounds it takes at least, and what is at a key then.
    let cases = [
        ("PING", format!("MGET{names}"), format!("*3000\r\n{}", there.repeat(3000)), 3000 / 64, there),
        ("PING", format!("EXISTS{names}"), ":3000\r\n".to_owned(), 3000 / 64, there),
        ("PING", "KEYS key3999".to_owned(), "*1\r\n$7\r\nkey3999\r\n".to_owned(), 3000 / 1024, there),
        ("PING", format!("MSET{pairs}"), "+OK\r\n".to_owned(), 3000 / 512, there),
        ("FLUSHALL", format!("MSETNX{pairs}"), ":1\r\n".to_owned(), 2 * 3000 / 512, there),
        ("PING", format!("DEL{names}"), ":3000\r\n".to_owned(), 3000 / 512, gone),
        ("PING", "FLUSHALL".to_owned(), "+OK\r\n".to_owned(), 16, gone),
    ];
    for (before, command, reply, least, found) in cases {
        let name = &command[..4];
        let mut host = Host::new();
        let (mut many, mut good, mut writer) = (host.known(), host.known(), host.known());
        host.send(
            &mut many,
            format!("MSET{pairs}\r\n{before}\r\nMULTI\r\n{command}\r\nGET key3999\r\n").as_bytes(),
        );
        let came = host.replies(&mut many, "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n".len());
        assert!(came.ends_with("+OK\r\n+QUEUED\r\n+QUEUED\r\n"), "{name}: {came}");
        many.feed(b"EXEC\r\n");
        let (mut rounds, mut replied) = (0, Vec::new());
        while replied.is_empty() {
            good.feed(b"PING\r\n");
            host.round();
            assert_eq!(good.read(), b"+PONG\r\n", "{name}: others are served in each round");
            replied = many.read();
            if rounds == 0 {
                assert!(host.worker.common.shared.has_holds(), "{name}: it goes on");
                writer.feed(b"SET key3999 w\r\n");
            } else if replied.is_empty() {
                assert!(writer.read().is_empty(), "{name}: somebody came between its parts");
            }
            rounds += 1;
        }
        assert!(rounds >= least, "{rounds} rounds for {name}");
        let expected = format!("*2\r\n{reply}{found}");
        let rest = host.replies(&mut many, expected.len() - replied.len());
        assert_eq!(String::from_utf8_lossy(&replied) + &*rest, expected.as_str(), "{name}");
        assert_eq!(host.replies(&mut writer, 5), "+OK\r\n", "{name}");
        assert!(!host.worker.common.shared.has_holds());
    }
}

#[test]
fn a_connection_that_is_over_is_drained_a_share_at_a_time() {
    let mut host = Host::new();
    let mut client = host.connect();
    client.feed(&[&b"QUIT\r\n"[..], &[b'x'; 1 << 20]].concat());
    let mut rounds = 0;
    while host.worker.guests[0].is_some() {
        host.round();
        rounds += 1;
        assert!(rounds < 1000, "it is never closed");
    }
    assert_eq!(client.read(), b"+OK\r\n", "and its last reply is not lost");
}

/// The store's server goes away after so many answers, unless they are [all](THERE) that it is asked for, and is waited for then.
struct Away {
    left: Rc<Cell<u32>>,
    /// How often it was asked for something when it was away.
    asked: Rc<Cell<u32>>,
}

const THERE: u32 = u32::MAX;
/// GETs of `a`, of `none` and of `a` again, as programs send them: they are carried out together.
const RUN: &str = "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n*2\r\n$3\r\nGET\r\n$1\r\na";
/// For how long it is waited for.
const LONG: Duration = Duration::from_secs(3600);

impl Hook for Away {
    fn before(&mut self, _: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        match self.left.get() {
            0 => {
                self.asked.set(self.asked.get() + 1);
                return Err(StoreError::InTheWay);
            }
            THERE => {}
            left => self.left.set(left - 1),
        }
        Ok(())
    }

    fn away(&self) -> Option<Duration> {
        (self.left.get() == 0).then_some(LONG)
    }
}

#[test]
fn what_needs_a_store_that_is_away_waits_for_it_and_all_else_goes_on() {
    let many = format!("EXISTS a{}", (1000..1200).map(|n| format!(" key{n}")).collect::<String>());
    // Commands, and what a store answers that has `a` 1 and a hash `h` with a field `f`.
    let cases = [
        ("GET a", "$1\r\n1\r\n"),
        (RUN, "$1\r\n1\r\n$-1\r\n$1\r\n1\r\n"),
        ("GET a\r\nGET none\r\nGET a", "$1\r\n1\r\n$-1\r\n$1\r\n1\r\n"),
        ("CLIENT REPLY SKIP\r\nGET a\r\nGET a", "$1\r\n1\r\n"),
        ("INCR a", ":2\r\n"),
        ("SET a 5\r\nINCR a\r\nHSET h g 1\r\nHLEN h\r\nPING", "+OK\r\n:6\r\n:1\r\n:2\r\n+PONG\r\n"),
        ("SET b 5\r\nGET a\r\nGET b", "+OK\r\n$1\r\n1\r\n$1\r\n5\r\n"),
        ("MSET a 2 b 3\r\nMGET a b", "+OK\r\n*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
        ("MSETNX b 2 c 3", ":1\r\n"),
        ("RENAME a b\r\nEXISTS a b", "+OK\r\n:1\r\n"),
        ("RENAMENX a b", ":1\r\n"),
        ("DEL a h none", ":2\r\n"),
        ("EXPIRE a 100\r\nTYPE a", ":1\r\n+string\r\n"),
        ("KEYS a", "*1\r\n$1\r\na\r\n"),
        ("DBSIZE", ":2\r\n"),
        ("FLUSHALL\r\nDBSIZE", "+OK\r\n:0\r\n"),
        (
            "WATCH a\r\nMULTI\r\nINCR a\r\nMGET a a\r\nKEYS a\r\nEXEC",
            "+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:2\r\n*2\r\n$1\r\n2\r\n$1\r\n2\r\n*1\r\n$1\r\na\r\n",
        ),
        (&many[..], ":1\r\n"),
    ];
    for (commands, replies) in cases {
        for answers in 0..6 {
            let [left, asked] = [THERE, 0].map(|count| Rc::new(Cell::new(count)));
            let hook = Away { left: Rc::clone(&left), asked: Rc::clone(&asked) };
            let mut host = Host::over(Hooked { store: MemoryStore::default(), hook });
            let (mut waits, mut good) = (host.known(), host.known());
            good.feed(b"SET a 1\r\nHSET h f v\r\n");
            assert_eq!(host.replies(&mut good, 9), "+OK\r\n:1\r\n");
            left.set(answers);
            waits.feed(format!("{commands}\r\n").as_bytes());
            let mut before = 0;
            for _ in 0..20 {
                before = asked.get();
                good.feed(b"PING\r\nECHO x\r\n");
                host.round_at_once();
                assert_eq!(good.read(), b"+PONG\r\n$1\r\nx\r\n", "{commands}: answered in its round");
            }
            assert_eq!(asked.get(), before, "{commands}: it is asked again and again");
            if before > 0 {
                let due = host.worker.next_attempt().expect("something waits");
                assert!(due > Instant::now() + LONG / 2, "{commands}: nothing wakes up for it before");
            }
            left.set(THERE);
            let mut came = waits.read();
            for _ in 0..60 {
                host.round_at_once();
                came.extend(waits.read());
            }
            assert_eq!(String::from_utf8_lossy(&came), replies, "{commands}, away after {answers} answers");
            let is_over = !host.worker.common.shared.has_holds() && host.worker.next_attempt().is_none();
            assert!(is_over, "{commands}: something is left");
        }
    }
}

/// The store's server does what it is asked at once and answers a round later, as long as it is slow.
#[derive(Default)]
struct Slow {
    store: MemoryStore,
    is_slow: Rc<Cell<bool>>,
    /// The round: what was asked in one before has been answered.
    round: Rc<Cell<u64>>,
    asked: u64,
    recalled: Option<u64>,
    busy: Option<(u64, Late)>,
    late: Vec<Late>,
    /// Changes that the server has made.
    made: Rc<Cell<usize>>,
}

struct Late {
    at: u64,
    asked: String,
    answer: Box<dyn std::any::Any>,
}

impl Slow {
    fn ask<T: 'static>(
        &mut self,
        asked: String,
        waits: StoreError,
        act: impl FnOnce(&mut MemoryStore) -> T,
    ) -> Result<T, StoreError> {
        self.away();
        let is_own = |at: u64| self.recalled.is_some_and(|mark| at >= mark);
        if let Some(n) = self.late.iter().position(|late| is_own(late.at) && late.asked == asked) {
            return Ok(*self.late.remove(n).answer.downcast().expect("what was asked says what is answered"));
        }
        if let Some((_, busy)) = &self.busy {
            return Err(if is_own(busy.at) && busy.asked == asked { waits } else { StoreError::InTheWay });
        }
        self.asked += 1;
        let (at, answer) = (self.asked, act(&mut self.store));
        if !self.is_slow.get() {
            return Ok(answer);
        }
        self.busy = Some((self.round.get(), Late { at, asked, answer: Box::new(answer) }));
        Err(waits)
    }

    fn look(
        &mut self,
        asked: String,
        value: &mut Vec<u8>,
        look: impl FnOnce(&mut MemoryStore, &mut Vec<u8>) -> Result<Option<Version>, StoreError>,
    ) -> Result<Option<Version>, StoreError> {
        let (found, bytes) = self.ask(asked, StoreError::InTheWay, |store| {
            let mut bytes = Vec::new();
            (look(store, &mut bytes), bytes)
        })?;
        value.extend(bytes);
        found
    }

    fn change(&mut self, change: Change<'_>) -> Result<bool, StoreError> {
        let mut done = Vec::new();
        self.change_many(&[change], &mut done);
        done.pop().expect("one for one")
    }
}

impl Store for Slow {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.look(format!("get {key:?}"), value, |store, value| store.get(key, value))
    }

    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.look(format!("head {key:?}"), head, |store, head| store.head(key, head))
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.change(Change { key, value: Some(value), condition })
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        self.change(Change { key, value: None, condition })
    }

    fn change_many(&mut self, changes: &[Change<'_>], done: &mut Vec<Result<bool, StoreError>>) {
        let made = Rc::clone(&self.made);
        let all = self.ask(format!("{changes:?}"), StoreError::UnderWay, |store| {
            let mut done = Vec::new();
            store.change_many(changes, &mut done);
            made.set(made.get() + changes.len());
            done
        });
        done.extend(all.unwrap_or_else(|error| changes.iter().map(|_| Err(error.clone())).collect()));
    }

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        let (next, shown) = self.ask(format!("scan {space} {cursor}"), StoreError::InTheWay, |store| {
            let mut shown = Vec::new();
            let next = store
                .scan(space, cursor, count, &mut |name, head| shown.push((name.to_vec(), head.to_vec())));
            (next, shown)
        })?;
        shown.iter().for_each(|(name, head)| each(name, head));
        next
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        self.ask(format!("count {space}"), StoreError::InTheWay, |store| store.count(space))?
    }

    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        self.ask(format!("clear {space:?} {cursor}"), StoreError::InTheWay, |store| {
            store.clear(space, cursor)
        })?
    }

    fn away(&mut self) -> Option<Duration> {
        let round = self.round.get();
        self.late.extend(self.busy.take_if(|(at, _)| *at < round).map(|(_, late)| late));
        self.busy.is_some().then_some(LONG)
    }

    fn mark(&self) -> u64 {
        self.asked + 1
    }

    fn recall(&mut self, mark: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.recalled, mark)
    }
}

#[test]
fn what_a_server_answers_late_is_asked_once_and_the_thread_serves_others_meanwhile() {
    // Commands, what they answer where `a` is 1 and `h` has a field `f`, and how many changes they make.
    let cases = [
        ("GET a\r\nGET none\r\nGET a", "$1\r\n1\r\n$-1\r\n$1\r\n1\r\n", 0),
        ("INCR a\r\nINCR a\r\nGET a", ":2\r\n:3\r\n$1\r\n3\r\n", 1),
        ("INCR a\r\nMGET a none\r\nINCR a", ":2\r\n*2\r\n$1\r\n2\r\n$-1\r\n:3\r\n", 2),
        (RUN, "$1\r\n1\r\n$-1\r\n$1\r\n1\r\n", 0),
        ("CLIENT REPLY SKIP\r\nINCR a\r\nGET a", "$1\r\n2\r\n", 1),
        (
            "CLIENT REPLY OFF\r\nINCR a\r\nAPPEND a x\r\nHSET h g 1\r\nCLIENT REPLY ON\r\nGET a\r\nHLEN h",
            "+OK\r\n$2\r\n2x\r\n:2\r\n",
            3,
        ),
        ("MSET a 2 b 3\r\nMGET a b", "+OK\r\n*2\r\n$1\r\n2\r\n$1\r\n3\r\n", 2),
        (
            "MSETNX b 2 c 3\r\nMSETNX a 1 d 1\r\nMGET b c d",
            ":1\r\n:0\r\n*3\r\n$1\r\n2\r\n$1\r\n3\r\n$-1\r\n",
            2,
        ),
        ("RENAME a b\r\nEXISTS a b", "+OK\r\n:1\r\n", 2),
        ("RENAMENX a b\r\nRENAMENX h b", ":1\r\n:0\r\n", 2),
        ("DEL a h none\r\nDEL a h", ":2\r\n:0\r\n", 2),
        ("KEYS a\r\nDBSIZE", "*1\r\n$1\r\na\r\n:2\r\n", 0),
        ("FLUSHALL\r\nDBSIZE", "+OK\r\n:0\r\n", 0),
    ];
    for (commands, replies, changes) in cases {
        let store = Slow::default();
        let (is_slow, round, made) =
            (Rc::clone(&store.is_slow), Rc::clone(&store.round), Rc::clone(&store.made));
        let mut host = Host::over(store);
        let (mut waits, mut good) = (host.known(), host.known());
        good.feed(b"SET a 1\r\nHSET h f v\r\n");
        assert_eq!(host.replies(&mut good, 9), "+OK\r\n:1\r\n");
        let before = made.get();
        is_slow.set(true);
        waits.feed(format!("{commands}\r\n").as_bytes());
        let mut came = Vec::new();
        for _ in 0..120 {
            good.feed(b"PING\r\nECHO x\r\n");
            host.round_at_once();
            assert_eq!(good.read(), b"+PONG\r\n$1\r\nx\r\n", "{commands}: answered in its round");
            came.extend(waits.read());
            round.set(round.get() + 1);
        }
        assert_eq!(String::from_utf8_lossy(&came), replies, "{commands}");
        assert_eq!(made.get() - before, changes, "{commands}: each change is made once");
        let is_over = !host.worker.common.shared.has_holds() && host.worker.next_attempt().is_none();
        assert!(is_over, "{commands}: something is left");
    }
}

#[test]
fn a_key_whose_change_is_under_way_is_held_until_it_is_known_what_came_of_it() {
    let store = Slow::default();
    let (is_slow, round) = (Rc::clone(&store.is_slow), Rc::clone(&store.round));
    let mut host = Host::over(store);
    let (mut one, mut several) = (host.known(), host.known());
    is_slow.set(true);
    one.feed(b"SET a 1\r\n");
    host.round_at_once();
    assert!(host.worker.common.shared.has_holds());
    several.feed(b"MSETNX a 2 b 2\r\n");
    // Beyond the time for which others are waited for: the store says what came of it.
    host.worker.write_waiting(Instant::now() + LONG * 2);
    assert!(one.read().is_empty() && several.read().is_empty());
    for _ in 0..10 {
        round.set(round.get() + 1);
        host.round_at_once();
    }
    assert_eq!((one.read(), several.read()), (b"+OK\r\n".to_vec(), b":0\r\n".to_vec()));
    assert!(!host.worker.common.shared.has_holds());
}

/// Others are in the way of changes of some keys, as long as they are; and the store tells when they are not.
struct Told {
    is: Rc<Cell<bool>>,
    asked: Rc<Cell<u32>>,
}

impl Hook for Told {
    fn before(&mut self, step: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        match step {
            Step::Put(..) if self.is.get() => {
                self.asked.set(self.asked.get() + 1);
                Err(StoreError::InTheWay)
            }
            _ => Ok(()),
        }
    }

    fn tells(&self) -> bool {
        true
    }
}

#[test]
fn a_store_that_tells_when_others_are_out_of_the_way_is_not_tried_again_and_again() {
    for commands in ["SET a 1", "MSET a 1 b 1"] {
        let (is, asked) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
        let hook = Told { is: Rc::clone(&is), asked: Rc::clone(&asked) };
        let mut host = Host::over(Hooked { store: MemoryStore::default(), hook });
        let mut waits = host.known();
        waits.feed(format!("{commands}\r\n").as_bytes());
        host.round_at_once();
        let before = asked.get();
        assert!(before > 0, "{commands}: it is in the way");
        for _ in 0..20 {
            host.round_at_once();
        }
        assert_eq!(asked.get(), before, "{commands}: nothing has been told");
        let due = host.worker.next_attempt().expect("something waits");
        assert!(due > Instant::now() + SELDOM / 2, "{commands}: it wakes up for it by itself");
        // A thousand events make one attempt.
        for _ in 0..1000 {
            host.worker.is_wanted.store(true, Ordering::Release);
            host.worker.on_time(Instant::now());
        }
        let due = host.worker.next_attempt().expect("it still waits");
        assert!(due <= Instant::now() + PAUSE, "{commands}: it is told");
        is.set(false);
        host.worker.write_waiting(due);
        for _ in 0..3 {
            host.round_at_once();
        }
        assert_eq!(waits.read(), b"+OK\r\n", "{commands}");
    }
}

/// Others are in the way of changes of some keys, as long as they are.
struct Obstructed(Rc<Cell<bool>>);

impl Hook for Obstructed {
    fn before(&mut self, step: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        match step {
            Step::Put(key, _) | Step::Delete(key) if self.0.get() && key.name.starts_with(b"way") => {
                Err(StoreError::InTheWay)
            }
            _ => Ok(()),
        }
    }
}

fn obstructed(is: &Rc<Cell<bool>>) -> Host<Hooked<Obstructed>> {
    Host::over(Hooked { store: MemoryStore::default(), hook: Obstructed(Rc::clone(is)) })
}

#[test]
fn what_others_are_in_the_way_of_waits_by_itself_and_all_else_goes_on() {
    let is = Rc::new(Cell::new(true));
    let mut host = obstructed(&is);
    let (mut first, mut second, mut good) = (host.known(), host.known(), host.known());
    first.feed(b"SET way 1\r\nGET way\r\n");
    host.round();
    second.feed(b"SET other x\r\nAPPEND way 2\r\n");
    for _ in 0..10 {
        good.feed(b"SET g x\r\nGET g\r\n");
        host.round();
        assert_eq!(good.read(), b"+OK\r\n$1\r\nx\r\n", "answered in the round that it came in");
        assert!(first.read().is_empty() && second.read().is_empty(), "nothing of theirs has been written");
    }
    is.set(false);
    host.round();
    assert_eq!(first.read(), b"+OK\r\n$1\r\n1\r\n");
    assert_eq!(second.read(), b"+OK\r\n:2\r\n", "its answer is that of the state that it found in the end");
    // What waits for too long is given up, and its connection goes on.
    is.set(true);
    first.feed(b"SET way 3\r\n");
    host.round();
    host.worker.write_waiting(Instant::now() + PATIENCE + PAUSE_MAX);
    assert!(first.read().starts_with(b"-ERR the store did not answer: others have been in the way"));
    first.feed(b"GET way\r\n");
    host.round();
    assert_eq!(first.read(), b"$2\r\n12\r\n");
}

#[test]
fn no_more_waits_than_there_is_room_for_and_what_has_no_room_comes_behind_it() {
    let is = Rc::new(Cell::new(true));
    let mut host = obstructed(&is);
    let (mut large, mut small) = (host.known(), host.known());
    let value = vec![b'x'; WAITING + 1];
    let head = format!("*3\r\n$3\r\nSET\r\n$3\r\nway\r\n${}\r\n", value.len());
    host.send(&mut large, &[head.as_bytes(), &value, b"\r\n"].concat());
    while !host.worker.is_crowded() {
        host.round();
    }
    small.feed(b"SET way2 y\r\nGET way2\r\n");
    for _ in 0..10 {
        host.round();
        assert!(small.read().is_empty());
    }
    assert_eq!(host.worker.waiting.len(), 1, "its change is not put off");
    is.set(false);
    for (client, reply) in [(&mut large, &b"+OK\r\n"[..]), (&mut small, b"+OK\r\n$1\r\ny\r\n")] {
        let mut rounds = 0;
        let mut came = client.read();
        while came.len() < reply.len() {
            host.round();
            came.extend(client.read());
            rounds += 1;
            assert!(rounds < 100, "it is never answered");
        }
        assert_eq!(came, reply);
    }
}

#[test]
fn what_changes_several_keys_waits_with_its_connection_and_nobody_sees_the_half_of_it() {
    // What is there before, the commands, what they answer, and what is at `free` and `way` then.
    let both = "*2\r\n$1\r\n1\r\n$1\r\n2\r\n";
    let cases = [
        ("PING", "MSET free 1 way 2", "+OK\r\n", both),
        ("PING", "MSETNX free 1 way 2", ":1\r\n", both),
        ("MSET free 1 way 2", "DEL free way", ":2\r\n", "*2\r\n$-1\r\n$-1\r\n"),
        ("MSET free 1 way 2", "UNLINK way free way", ":2\r\n", "*2\r\n$-1\r\n$-1\r\n"),
        ("SET free 1", "RENAME free way", "+OK\r\n", "*2\r\n$-1\r\n$1\r\n1\r\n"),
        ("SET way 1", "RENAMENX way free", ":1\r\n", "*2\r\n$1\r\n1\r\n$-1\r\n"),
        (
            "PING",
            "MULTI\r\nSET free 5\r\nSET way 6\r\nMSET free 1 way3 4\r\nDECRBY way 4\r\nEXEC",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n+OK\r\n+OK\r\n+OK\r\n:2\r\n",
            both,
        ),
        ("PING", "CLIENT REPLY SKIP\r\nMSETNX free 1 way 2\r\nPING", "+PONG\r\n", both),
    ];
    for (before, commands, replies, after) in cases {
        let is = Rc::new(Cell::new(false));
        let mut host = obstructed(&is);
        let (mut several, mut good) = (host.known(), host.known());
        let (mut reader, mut writer) = (host.known(), host.known());
        good.feed(format!("{before}\r\n").as_bytes());
        while good.read().is_empty() {
            host.round();
        }
        is.set(true);
        // One that has been put off before it, in the same round, is not written in the middle of it either.
        writer.feed(b"APPEND free x\r\n");
        several.feed(format!("{commands}\r\n").as_bytes());
        host.round();
        reader.feed(b"MGET free way\r\n");
        for _ in 0..10 {
            good.feed(b"SET g x\r\nGET g\r\n");
            host.round();
            assert_eq!(good.read(), b"+OK\r\n$1\r\nx\r\n", "{commands}: others are served in each round");
            assert!(reader.read().is_empty(), "{commands}: the half of it was seen");
            assert!(writer.read().is_empty(), "{commands}: its key was written in the middle of it");
        }
        drop(writer);
        is.set(false);
        let (mut replied, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            host.round();
            replied.extend(several.read());
            seen.extend(reader.read());
        }
        assert_eq!(String::from_utf8_lossy(&replied), replies, "{commands}");
        let seen = String::from_utf8_lossy(&seen).into_owned();
        let appended = seen.replace("$2\r\n1x", "$1\r\n1").replace("$1\r\nx\r\n", "$-1\r\n");
        assert_eq!(appended, after, "{commands}: {seen}");
        assert!(!host.worker.common.shared.has_holds(), "{commands}: its keys are free again");
    }
}

#[test]
fn what_is_said_to_a_connection_without_replies_waits_too_and_a_connection_that_goes_gives_its_keys_back() {
    let is = Rc::new(Cell::new(true));
    let mut host = obstructed(&is);
    let (mut silent, mut good) = (host.known(), host.known());
    silent.feed(b"CLIENT REPLY OFF\r\nSET way 1\r\nSET way 2\r\nCLIENT REPLY ON\r\n");
    for _ in 0..5 {
        good.feed(b"PING\r\n");
        host.round();
        assert_eq!(good.read(), b"+PONG\r\n");
    }
    is.set(false);
    while silent.read() != b"+OK\r\n" {
        host.round();
    }
    good.feed(b"GET way\r\n");
    host.round();
    assert_eq!(good.read(), b"$1\r\n2\r\n");
    is.set(true);
    for commands in [&b"MSET free 3 way 4\r\n"[..], b"MULTI\r\nMSET free 3 way 4\r\nEXEC\r\n"] {
        let mut several = host.known();
        several.feed(commands);
        for _ in 0..3 {
            host.round();
        }
        assert!(host.worker.common.shared.has_holds());
        host.worker.leave(2);
        assert!(!host.worker.common.shared.has_holds());
    }
}

#[test]
fn an_idle_worker_has_nothing_to_wake_up_for() {
    let mut host = Host::new();
    host.worker.listeners = Some(Listeners::default());
    let clients: Vec<_> = (0..10).map(|_| host.known()).collect();
    let idles = |host: &mut Host| {
        let mut dues = 0;
        while let Some(due) = host.worker.next_due(Instant::now()) {
            // As if that was long ago.
            for connection in host.worker.guests.iter().flatten() {
                connection.session().peer().touch(process::unix_us() - 2 * RELAX.as_micros() as i64);
            }
            host.worker.on_time(due);
            dues += 1;
            assert!(dues < 10, "it wakes up for ever");
        }
        assert!(!host.worker.has_work());
        dues
    };
    // A rest of the store, a look at the connections, a round of the sweep.
    assert!(idles(&mut host) > 2);
    assert_eq!(idles(&mut host), 0);
    let mut client = host.known();
    client.feed(b"SET key value PX 1\r\nSET other value PX 100000\r\n");
    while client.read().is_empty() {
        host.round();
    }
    assert!(host.worker.common.shared.sweep_due() <= process::unix_ms() + 2, "and one for what expires");
    drop(clients);
}

#[test]
fn who_is_killed_goes_at_once_and_its_command_is_carried_out_before() {
    let is = Rc::new(Cell::new(true));
    let mut host = obstructed(&is);
    let (mut silent, mut busy, mut good) = (host.known(), host.known(), host.known());
    busy.feed(b"MSET free 1 way 2\r\n");
    silent.feed(b"CLIENT ID\r\n");
    host.round();
    let ids = ["1", "2"];
    assert_eq!(silent.read(), b":1\r\n");
    for id in ids {
        good.feed(format!("CLIENT KILL ID {id}\r\n").as_bytes());
        host.round();
        assert_eq!(good.read(), b":1\r\n");
    }
    host.round();
    let there = |host: &Host<Hooked<Obstructed>>, place: usize| host.worker.guests[place].is_some();
    assert!(!there(&host, 0) && there(&host, 1));
    is.set(false);
    while there(&host, 1) {
        host.round();
    }
    good.feed(b"MGET free way\r\n");
    host.round();
    assert_eq!(good.read(), b"*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
}
