//! Channels by themselves: what is kept for whom, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use remanence_resp::channels::{ALL_PATTERNS_MAX, Bell, MAIL_MAX, PATTERN_LEN_MAX, PATTERNS_MAX};
use remanence_resp::engine::{Config, Moment, Session, Shared};
use remanence_resp::memory::MemoryStore;
use remanence_resp::protocol::{Decoder, Limits};

struct Count(Arc<AtomicUsize>);

impl Bell for Count {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Client {
    session: Session,
    rings: Arc<AtomicUsize>,
}

impl Client {
    fn new(shared: &Shared) -> Self {
        let rings = Arc::new(AtomicUsize::new(0));
        let bell = Box::new(Count(Arc::clone(&rings)));
        Self { session: Session::open_with_bell(shared, "a", "b", 0, Some(bell)), rings }
    }

    fn run(&mut self, shared: &Shared, words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(&bytes);
        let request = decoder.next(false).unwrap().unwrap();
        let (mut out, moment) = (Vec::new(), Moment { unix_us: 0, random: 0 });
        self.session.execute(&request, &mut MemoryStore::default(), shared, moment, &mut out);
        out
    }

    fn rings(&self) -> usize {
        self.rings.load(Ordering::Relaxed)
    }

    fn mail(&self, shared: &Shared) -> Vec<u8> {
        let mut out = Vec::new();
        self.session.take_mail(shared, &mut out);
        out
    }
}

#[test]
fn the_bell_rings_for_the_first_message_and_again_when_all_were_taken() {
    let shared = Shared::new(Config::default(), 0);
    let (mut listener, mut publisher) = (Client::new(&shared), Client::new(&shared));
    listener.run(&shared, &[b"SUBSCRIBE", b"c"]);
    for n in 0..10 {
        assert_eq!(publisher.run(&shared, &[b"PUBLISH", b"c", &[b'0' + n]]), b":1\r\n");
    }
    assert_eq!(listener.rings(), 1, "it is looked at anyway");
    assert!(shared.client_memory() > 0, "what waits is counted");
    let mail = String::from_utf8(listener.mail(&shared)).unwrap();
    let order: Vec<&str> = mail.split("\r\n").skip(6).step_by(7).collect();
    assert_eq!(order, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "{mail}");
    assert_eq!((shared.client_memory(), listener.session.has_mail()), (0, false));
    publisher.run(&shared, &[b"PUBLISH", b"c", b"x"]);
    assert_eq!(listener.rings(), 2);
    // Who goes is sent nothing more, and what waited is kept for nobody.
    listener.session.close(&shared);
    assert_eq!(shared.client_memory(), 0);
    assert_eq!(publisher.run(&shared, &[b"PUBLISH", b"c", b"x"]), b":0\r\n");
    assert_eq!(publisher.run(&shared, &[b"PUBSUB", b"CHANNELS"]), b"*0\r\n");
}

/// A message behind the end of its subscription would be taken for the reply to the next command.
#[test]
fn what_was_sent_before_a_subscription_ended_comes_before_its_end() {
    let shared = Shared::new(Config::default(), 0);
    let (mut listener, mut publisher) = (Client::new(&shared), Client::new(&shared));
    let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n";
    for end in [&[b"UNSUBSCRIBE" as &[u8], b"c"] as &[&[u8]], &[b"UNSUBSCRIBE"], &[b"RESET"]] {
        listener.run(&shared, &[b"SUBSCRIBE", b"c"]);
        publisher.run(&shared, &[b"PUBLISH", b"c", b"x"]);
        let said = listener.run(&shared, end);
        assert!(said.starts_with(message), "{}", said.escape_ascii());
        assert!(said.len() > message.len() && !listener.session.has_mail());
    }
    // With RESP3 the version may change meanwhile: what was written in one is not sent behind a reply in the other.
    listener.run(&shared, &[b"HELLO", b"3"]);
    listener.run(&shared, &[b"SUBSCRIBE", b"c"]);
    publisher.run(&shared, &[b"PUBLISH", b"c", b"x"]);
    let said = listener.run(&shared, &[b"HELLO", b"2"]);
    assert!(said.starts_with(b">3\r\n$7\r\nmessage\r\n"), "{}", said.escape_ascii());
    assert!(!listener.session.has_mail());
    // What EXEC answers is one array, whatever comes meanwhile.
    listener.run(&shared, &[b"RESET"]);
    for words in [
        &[b"MULTI" as &[u8]] as &[&[u8]],
        &[b"SUBSCRIBE", b"c"],
        &[b"PUBLISH", b"c", b"x"],
        &[b"UNSUBSCRIBE"],
    ] {
        listener.run(&shared, words);
    }
    let said = listener.run(&shared, &[b"EXEC"]);
    assert!(said.starts_with(b"*3\r\n*3\r\n$9\r\nsubscribe\r\n"), "{}", said.escape_ascii());
    assert!(
        said.ends_with(b":1\r\n*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n"),
        "{}",
        said.escape_ascii()
    );
    assert!(!listener.session.has_mail(), "it would be taken for a reply");
}

#[test]
fn who_reads_nothing_is_closed_beyond_a_bound() {
    let shared = Shared::new(Config::default(), 0);
    let (mut silent, mut publisher) = (Client::new(&shared), Client::new(&shared));
    silent.run(&shared, &[b"PSUBSCRIBE", b"*"]);
    let message = vec![b'x'; 1 << 20];
    let mut sent = 0;
    while !silent.session.peer().killed() {
        assert!(sent < MAIL_MAX + message.len(), "nobody ends it");
        publisher.run(&shared, &[b"PUBLISH", b"c", &message]);
        sent += message.len();
        assert!(shared.client_memory() <= MAIL_MAX as u64);
    }
    assert!(sent > MAIL_MAX - 2 * message.len(), "it had {sent} bytes only");
    assert_eq!(
        (shared.client_memory(), silent.rings()),
        (0, 2),
        "nothing is kept for it, and it is to be closed now"
    );
    assert_eq!(shared.stats.mail_closed.get(), 1);
    publisher.run(&shared, &[b"PUBLISH", b"c", &message]);
    assert_eq!((shared.client_memory(), shared.stats.mail_closed.get()), (0, 1));
}

#[test]
fn mail_shares_the_memory_of_all_connections_beyond_a_little_each() {
    let shared = Shared::new(Config { memory: 1 << 20, ..Config::default() }, 0);
    let mut publisher = Client::new(&shared);
    let silent: Vec<Client> = (0..64)
        .map(|_| {
            let mut client = Client::new(&shared);
            client.run(&shared, &[b"SUBSCRIBE", b"c"]);
            client
        })
        .collect();
    let message = vec![b'x'; 4096];
    for _ in 0..256 {
        publisher.run(&shared, &[b"PUBLISH", b"c", &message]);
    }
    // A mebibyte for all, or 128 KiB each.
    assert!(shared.client_memory() <= 64 * (128 << 10), "{}", shared.client_memory());
    assert!(silent.iter().all(|client| client.session.peer().killed()), "all of them read nothing");
}

#[test]
fn subscriptions_count_as_what_a_connection_keeps() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared);
    for n in 0_u32..1000 {
        client.run(&shared, &[b"SUBSCRIBE", &n.to_le_bytes()]);
        client.run(&shared, &[b"SUBSCRIBE", &n.to_le_bytes()]);
        client.run(&shared, &[b"PSUBSCRIBE", &n.to_le_bytes()]);
    }
    assert!(client.session.queued_bytes() >= 2000 * 100, "{}", client.session.queued_bytes());
    assert_eq!(client.run(&shared, &[b"RESET"]), b"+RESET\r\n");
    assert_eq!(client.session.queued_bytes(), 0);
    assert_eq!(client.run(&shared, &[b"PUBSUB", b"NUMPAT"]), b":0\r\n");
}

#[test]
fn client_list_tells_who_listens() {
    let shared = Shared::new(Config::default(), 0);
    let (mut listener, mut other) = (Client::new(&shared), Client::new(&shared));
    listener.run(&shared, &[b"SUBSCRIBE", b"a", b"b"]);
    listener.run(&shared, &[b"PSUBSCRIBE", b"*"]);
    let listed = String::from_utf8(other.run(&shared, &[b"CLIENT", b"LIST", b"TYPE", b"pubsub"])).unwrap();
    assert!(listed.contains(" flags=P db=0 sub=2 psub=1 ") && listed.matches("id=").count() == 1, "{listed}");
    let others = String::from_utf8(other.run(&shared, &[b"CLIENT", b"LIST", b"TYPE", b"normal"])).unwrap();
    assert!(others.contains(" flags=N db=0 sub=0 psub=0 ") && others.matches("id=").count() == 1, "{others}");
    assert_eq!(other.run(&shared, &[b"CLIENT", b"KILL", b"TYPE", b"pubsub"]), b":1\r\n");
    assert!(listener.session.peer().killed());
}

#[test]
fn patterns_are_bounded_for_one_connection_and_for_all() {
    let shared = Shared::new(Config::default(), 0);
    let subscribe = |client: &mut Client, names: &[String]| {
        let mut words: Vec<&[u8]> = vec![b"PSUBSCRIBE"];
        words.extend(names.iter().map(String::as_bytes));
        client.run(&shared, &words)
    };
    let number = |client: &mut Client| client.run(&shared, &[b"PUBSUB", b"NUMPAT"]);
    let some = |of: usize, from: usize, count: usize| -> Vec<String> {
        (from..from + count).map(|n| format!("{of} {n} *")).collect()
    };
    let (mut other, mut many) = (Client::new(&shared), Client::new(&shared));
    let said = subscribe(&mut many, &["x".repeat(PATTERN_LEN_MAX + 1)]);
    assert!(said.starts_with(b"-ERR a pattern has "), "{}", said.escape_ascii());
    // None of them, where one is too many.
    let said = subscribe(&mut many, &some(0, 0, PATTERNS_MAX + 1));
    assert_eq!(
        said,
        format!("-ERR a connection may subscribe to {PATTERNS_MAX} patterns at most\r\n").as_bytes()
    );
    assert_eq!(number(&mut other), b":0\r\n");
    // One that comes twice is one.
    let mut twice = some(0, 0, PATTERNS_MAX);
    twice.extend(some(0, 0, 2));
    assert!(subscribe(&mut many, &twice).ends_with(format!(":{PATTERNS_MAX}\r\n").as_bytes()));
    assert!(subscribe(&mut many, &some(0, 0, 1)).starts_with(b"*3\r\n"), "it has that one");
    assert!(subscribe(&mut many, &some(0, PATTERNS_MAX, 1)).starts_with(b"-ERR a connection "));
    // Channels are looked up, and have no such bound.
    assert!(many.run(&shared, &[b"SUBSCRIBE", b"c"]).starts_with(b"*3\r\n"));
    let mut clients: Vec<Client> = Vec::new();
    for of in 1..ALL_PATTERNS_MAX / PATTERNS_MAX {
        clients.push(Client::new(&shared));
        let said = subscribe(clients.last_mut().expect("one"), &some(of, 0, PATTERNS_MAX));
        assert!(said.starts_with(b"*3\r\n"), "{}", said.escape_ascii());
    }
    let full = format!(":{ALL_PATTERNS_MAX}\r\n").into_bytes();
    assert_eq!(number(&mut other), full);
    let mut late = Client::new(&shared);
    assert!(subscribe(&mut late, &some(99, 0, 1)).starts_with(b"-ERR all connections may subscribe to "));
    assert!(subscribe(&mut late, &some(0, 0, 3)).starts_with(b"*3\r\n"), "others have these");
    assert_eq!(number(&mut other), full);
    // Who takes one back makes room for another.
    let taken = some(0, 9, 1);
    many.run(&shared, &[b"PUNSUBSCRIBE", taken[0].as_bytes()]);
    assert!(subscribe(&mut late, &some(99, 0, 1)).starts_with(b"*3\r\n"));
    for client in clients.into_iter().chain([late, many]) {
        client.session.close(&shared);
    }
    assert_eq!(number(&mut other), b":0\r\n");
}

/// However many subscriptions a connection had, its end is short; and from then on it is as if it had none.
#[test]
fn a_connection_with_many_subscriptions_goes_in_parts() {
    let shared = Shared::new(Config::default(), 0);
    let (mut listener, mut other, mut publisher) =
        (Client::new(&shared), Client::new(&shared), Client::new(&shared));
    let names: Vec<String> = (0..4500).map(|n| format!("channel:{n}")).collect();
    let mut words: Vec<&[u8]> = vec![b"SUBSCRIBE"];
    words.extend(names.iter().map(String::as_bytes));
    listener.run(&shared, &words);
    listener.run(&shared, &[b"PSUBSCRIBE", b"*"]);
    other.run(&shared, &[b"SUBSCRIBE", b"channel:7"]);
    assert_eq!(publisher.run(&shared, &[b"PUBLISH", b"channel:7", b"x"]), b":3\r\n");
    assert!(!shared.has_left_channels());
    listener.session.close(&shared);
    other.mail(&shared);
    assert_eq!(publisher.run(&shared, &[b"PUBLISH", b"channel:7", b"x"]), b":1\r\n");
    assert_eq!(publisher.run(&shared, &[b"PUBLISH", b"channel:4499", b"x"]), b":0\r\n");
    let numbers = publisher.run(&shared, &[b"PUBSUB", b"NUMSUB", b"channel:7", b"channel:8"]);
    assert_eq!(numbers, b"*4\r\n$9\r\nchannel:7\r\n:1\r\n$9\r\nchannel:8\r\n:0\r\n");
    assert_eq!(publisher.run(&shared, &[b"PUBSUB", b"CHANNELS"]), b"*1\r\n$9\r\nchannel:7\r\n");
    assert_eq!(publisher.run(&shared, &[b"PUBSUB", b"NUMPAT"]), b":0\r\n");
    other.mail(&shared);
    // What is left of it is counted, and goes step by step.
    let mut held = shared.client_memory();
    assert!(held > 4500 * 500, "{held}");
    let mut steps = 0;
    while shared.has_left_channels() {
        shared.leave_channels();
        let now = shared.client_memory();
        assert!(now < held && held - now < 1_000_000, "{held}, then {now}");
        (held, steps) = (now, steps + 1);
    }
    assert_eq!((steps, held), (5, 0));
    let said = String::from_utf8(publisher.run(&shared, &[b"INFO", b"stats"])).unwrap();
    assert!(said.contains("pubsub_channels:1\r\n"), "{said}");
    shared.leave_channels();
    other.session.close(&shared);
    assert!(!shared.has_left_channels(), "a few go at once");
}
