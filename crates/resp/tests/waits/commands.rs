//! What the comparison with a real server cannot show: time that passes when told to, stores that fail, threads that meet.

use crate::common;

use common::ends;
use remanence_resp::engine::{Config, Isolation, Moment, Session, Shared, isolation};
use remanence_resp::memory::{Hook, Hooked, MemoryStore, Step};
use remanence_resp::protocol::{Decoder, Frame, Limits, parse_frame};
use remanence_resp::store::{Condition, Key, Store, StoreError, StoreLimits};

struct Client<S> {
    session: Session,
    store: S,
    /// Milliseconds of Unix time, which a test moves on.
    now: i64,
}

impl<S: Store> Client<S> {
    fn new(shared: &Shared, store: S) -> Self {
        Self { session: Session::open(shared, "test:1", "test:2", 0), store, now: 1_000_000 }
    }

    fn run(&mut self, shared: &Shared, line: &str) -> String {
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(line.as_bytes());
        decoder.push(b"\r\n");
        let request = decoder.next(false).unwrap().expect("a line is a request");
        let mut out = Vec::new();
        let moment = Moment { unix_us: self.now * 1000, random: 7 };
        self.session.execute(&request, &mut self.store, shared, moment, &mut out);
        String::from_utf8(out).unwrap()
    }
}

#[test]
fn a_key_is_there_until_its_time_and_gone_after_it() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::default());
    assert_eq!(client.run(&shared, "SET a 1 PX 500"), "+OK\r\n");
    assert_eq!(client.run(&shared, "PTTL a"), ":500\r\n");
    client.now += 500;
    assert_eq!(client.run(&shared, "GET a"), "$1\r\n1\r\n", "the last millisecond is its own");
    assert_eq!(client.run(&shared, "PTTL a"), ":0\r\n");
    client.now += 1;
    assert_eq!(client.run(&shared, "DBSIZE"), ":1\r\n", "nobody has looked yet");
    for (line, reply) in [
        ("GET a", "$-1\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("TTL a", ":-2\r\n"),
        ("SET a 1 XX", "$-1\r\n"),
        ("EXPIRE a 10", ":0\r\n"),
        ("PERSIST a", ":0\r\n"),
    ] {
        assert_eq!(client.run(&shared, line), reply, "{line}");
    }
    assert_eq!(shared.stats.expired.get(), 1);
}

#[test]
fn every_command_sees_an_expired_key_as_gone() {
    let commands = [
        ("GET a", "$-1\r\n"),
        ("STRLEN a", ":0\r\n"),
        ("APPEND a x", ":1\r\n"),
        ("INCR a", ":1\r\n"),
        ("GETSET a x", "$-1\r\n"),
        ("GETDEL a", "$-1\r\n"),
        ("SETNX a x", ":1\r\n"),
        ("MSETNX a x", ":1\r\n"),
        ("SET a x GET KEEPTTL", "$-1\r\n"),
        ("DEL a", ":0\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("TYPE a", "+none\r\n"),
        ("RENAME a b", "-ERR no such key\r\n"),
        ("HGET a f", "$-1\r\n"),
        ("HSET a f v", ":1\r\n"),
        ("HDEL a f", ":0\r\n"),
        ("KEYS *", "*0\r\n"),
        ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("GETRANGE a 0 -1", "$0\r\n\r\n"),
        ("EXPIRETIME a", ":-2\r\n"),
        ("PEXPIRE a 100 LT", ":0\r\n"),
    ];
    for (line, reply) in commands {
        let shared = Shared::new(Config::default(), 0);
        let mut client = Client::new(&shared, MemoryStore::default());
        client.run(&shared, "SET a 12345 PX 10");
        client.now += 11;
        assert_eq!(client.run(&shared, line), reply, "{line}");
        // What was written anew does not inherit the time.
        let ttl = client.run(&shared, "PTTL a");
        assert!([":-1\r\n", ":-2\r\n"].contains(&&*ttl), "{line}: {ttl}");
    }
}

#[test]
fn times_to_live_stay_with_changes_and_go_with_new_values() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::default());
    for (line, left) in [
        ("APPEND a 1", true),
        ("INCR a", true),
        ("INCRBYFLOAT a 0.5", true),
        ("SETRANGE a 0 7", true),
        ("SET a 1 KEEPTTL", true),
        ("RENAME a a", true),
        ("SET a 1", false),
        ("GETSET a 1", false),
        ("MSET a 1", false),
    ] {
        client.run(&shared, "SET a 1 PX 777");
        client.run(&shared, line);
        assert_eq!(client.run(&shared, "PTTL a"), if left { ":777\r\n" } else { ":-1\r\n" }, "{line}");
    }
    client.run(&shared, "HSET h f 1");
    client.run(&shared, "PEXPIRE h 777");
    client.run(&shared, "HINCRBY h f 1");
    client.run(&shared, "RENAME h g");
    assert_eq!(client.run(&shared, "PTTL g"), ":777\r\n");
}

#[test]
fn changes_of_one_key_by_many_threads_are_all_there() {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    let shared = Shared::new(Config::default(), 0);
    let store = MemoryStore::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, mut client) = (&shared, Client::new(&shared, store.clone()));
            scope.spawn(move || {
                for i in 0..EACH {
                    client.run(shared, "INCR sum");
                    client.run(shared, "HINCRBY hash sum 2");
                    client.run(shared, &format!("HSET hash t{thread}-{i} v"));
                    client.run(shared, "APPEND log x");
                }
            });
        }
    });
    let mut client = Client::new(&shared, store);
    let total = THREADS * EACH;
    assert_eq!(client.run(&shared, "GET sum"), format!("$3\r\n{total}\r\n"));
    assert_eq!(client.run(&shared, "HGET hash sum"), format!("$4\r\n{}\r\n", 2 * total));
    assert_eq!(client.run(&shared, "HLEN hash"), format!(":{}\r\n", total + 1));
    assert_eq!(client.run(&shared, "STRLEN log"), format!(":{total}\r\n"));
}

/// Whatever the command had written of its reply, at whatever step the store fails.
#[test]
fn a_store_that_fails_is_one_error_and_no_half_reply() {
    let shared = Shared::new(Config::default(), 0);
    for line in [
        "MGET a b c",
        "EXISTS a b c",
        "DEL a b c",
        "MSET a 1 b 2 c 3",
        "MSETNX x 1 y 2",
        "RENAME a x",
        "INCR a",
        "KEYS *",
        "SCAN 0",
        "RANDOMKEY",
        "DBSIZE",
        "HGETALL h",
        "HSET h f v",
        "GETEX a EX 10",
        "FLUSHALL",
        "INFO",
        "SET a 1 GET",
    ] {
        for left in 0..40 {
            let mut store = MemoryStore::default();
            let mut client = Client::new(&shared, store.clone());
            client.run(&shared, "MSET a 1 b 2 c 3");
            client.run(&shared, "HSET h f v");
            store.limits();
            let mut client = Client::new(&shared, ends(&store, left));
            let reply = client.run(&shared, line);
            let (frame, len) = parse_frame(reply.as_bytes()).unwrap().unwrap();
            assert_eq!(len, reply.len(), "{line}: {reply:?}");
            if let Frame::Error(text) = frame {
                assert_eq!(text, b"ERR the store did not answer: the  link is down");
                assert!(store.count(0).is_ok());
            } else {
                assert!(left > 0, "{line} asked nothing of the store");
                break;
            }
            assert!(left < 39, "{line} never succeeds");
        }
    }
}

#[test]
fn a_store_that_is_full_or_narrow_says_so() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::new(StoreLimits { key: 5, value: 10 }));
    assert_eq!(client.run(&shared, "SET a 123456789"), "+OK\r\n");
    assert_eq!(
        client.run(&shared, "APPEND a 0"),
        "-ERR the value has 11 bytes and the store takes 10: split it over several keys\r\n"
    );
    assert_eq!(client.run(&shared, "GET a"), "$9\r\n123456789\r\n");
    assert_eq!(
        client.run(&shared, "SET toolong 1"),
        "-ERR the key has 7 bytes and the store takes 5: shorten it\r\n"
    );
    assert_eq!(
        StoreError::Full.to_string(),
        "OOM command not allowed when used memory > 'maxmemory'.",
        "client libraries know this text"
    );
}

#[test]
fn values_of_others_are_left_alone() {
    let shared = Shared::new(Config::default(), 0);
    let mut store = MemoryStore::default();
    store.put(Key { space: 0, name: b"native" }, b"not ours", Condition::Always).unwrap();
    let mut client = Client::new(&shared, store);
    let refusal = "-ERR the value of this key was not written by a Redis client: use the store's own\r\n";
    for line in ["GET native", "APPEND native x", "TTL native", "DEL native", "HGET native f"] {
        assert_eq!(client.run(&shared, line), refusal, "{line}");
    }
    assert_eq!(client.run(&shared, "KEYS *"), "*0\r\n");
}

#[test]
fn a_key_without_a_name_is_found_by_a_star_alone() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::default());
    client.run(&shared, "SET \"\" 1");
    assert_eq!(client.run(&shared, "KEYS *"), "*1\r\n$0\r\n\r\n");
    assert_eq!(client.run(&shared, "KEYS **"), "*0\r\n");
    assert_eq!(client.run(&shared, "SCAN 0 MATCH **"), "*2\r\n$1\r\n0\r\n*0\r\n");
}

#[test]
fn commands_on_several_keys_run_alone() {
    let of = |line: &str| {
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(format!("{line}\r\n").as_bytes());
        isolation(&decoder.next(false).unwrap().unwrap())
    };
    for line in ["GET a", "MGET a", "MSET a 1", "DEL a", "HSET h a 1 b 2", "KEYS *", "nosuch a b c", "SCAN 0"]
    {
        assert_eq!(of(line), Isolation::Together, "{line}");
    }
    for line in [
        "MGET a b",
        "MSET a 1 b 2",
        "msetnx a 1 b 2",
        "DEL a b",
        "UNLINK a b",
        "EXISTS a b",
        "RENAME a b",
        "FLUSHALL",
        "FLUSHDB",
    ] {
        assert_eq!(of(line), Isolation::Alone, "{line}");
    }
}

#[test]
fn where_transactions_are_refused_so_is_what_follows_multi() {
    let shared = Shared::new(Config { transactions: false, ..Config::default() }, 0);
    let mut client = Client::new(&shared, MemoryStore::default());
    assert!(client.run(&shared, "WATCH a").starts_with("-ERR transactions are refused here"));
    for end in ["EXEC", "DISCARD", "RESET"] {
        assert!(client.run(&shared, "MULTI").starts_with("-ERR transactions are refused here"));
        for line in ["SET a 1", "GET a", "INCR a", "SELECT 1"] {
            assert!(
                client.run(&shared, line).starts_with("-ERR not carried out: MULTI was refused"),
                "{line}"
            );
        }
        let said = match end {
            "EXEC" => "-EXECABORT Transaction discarded because of previous errors.\r\n",
            "DISCARD" => "+OK\r\n",
            _ => "+RESET\r\n",
        };
        assert_eq!(client.run(&shared, end), said);
        assert_eq!(
            client.run(&shared, "GET a"),
            "$-1\r\n",
            "nothing was carried out, and the connection goes on"
        );
    }
    assert_eq!(client.run(&shared, "SET a 1"), "+OK\r\n");
}

#[test]
fn a_transaction_s_watched_key_whose_time_came_has_changed() {
    let shared = Shared::new(Config::default(), 0);
    let store = MemoryStore::default();
    let mut client = Client::new(&shared, store);
    client.run(&shared, "SET a 1 PX 500");
    for (passes, reply) in [(500, "*1\r\n:2\r\n"), (501, "*-1\r\n")] {
        client.run(&shared, "SET a 1 PX 500");
        client.run(&shared, "WATCH a");
        client.now += passes;
        client.run(&shared, "MULTI");
        client.run(&shared, "INCR a");
        assert_eq!(client.run(&shared, "EXEC"), reply);
    }
    // One whose time had come was absent then, and still is, whoever has deleted it meanwhile.
    client.run(&shared, "SET b 1 PX 500");
    client.now += 501;
    client.run(&shared, "WATCH b");
    assert_eq!(client.run(&shared, "GET b"), "$-1\r\n");
    client.run(&shared, "MULTI");
    client.run(&shared, "INCR b");
    assert_eq!(client.run(&shared, "EXEC"), "*1\r\n:1\r\n");
}

#[test]
fn a_transaction_over_a_store_that_fails_answers_for_each_command() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::new(StoreLimits { key: 4, value: 1 << 20 }));
    for line in ["MULTI", "SET a 1", "SET longer 1", "GET a"] {
        client.run(&shared, line);
    }
    assert_eq!(
        client.run(&shared, "EXEC"),
        "*3\r\n+OK\r\n-ERR the key has 6 bytes and the store takes 4: shorten it\r\n$1\r\n1\r\n"
    );
}

#[test]
fn databases_are_apart() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::default());
    client.run(&shared, "SET a zero");
    client.run(&shared, "SELECT 3");
    assert_eq!(client.run(&shared, "GET a"), "$-1\r\n");
    client.run(&shared, "SET b three");
    assert_eq!(client.run(&shared, "DBSIZE"), ":1\r\n");
    assert!(client.run(&shared, "INFO keyspace").contains("db0:keys=1,expires=0,avg_ttl=0\r\ndb3:keys=1"));
    client.run(&shared, "FLUSHDB");
    client.run(&shared, "SELECT 0");
    assert_eq!(client.run(&shared, "GET a"), "$4\r\nzero\r\n");
}

#[test]
fn info_counts_what_was_done() {
    let shared = Shared::new(Config::default(), 0);
    let mut client = Client::new(&shared, MemoryStore::default());
    for line in ["SET a 1", "GET a", "GET b", "GET", "HGET a f", "NOSUCH", "INCR a", "INCR a"] {
        client.run(&shared, line);
    }
    let info = client.run(&shared, "INFO everything");
    for line in [
        "redis_version:7.0.15",
        "keyspace_hits:2",
        "keyspace_misses:1",
        "total_error_replies:3",
        "errorstat_ERR:count=2",
        "errorstat_WRONGTYPE:count=1",
        "cmdstat_get:calls=2,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0",
        "cmdstat_hget:calls=1,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=1",
        "connected_clients:1",
    ] {
        assert!(info.contains(&format!("{line}\r\n")), "{line} is not in\n{info}");
    }
    assert_eq!(client.run(&shared, "CONFIG RESETSTAT"), "+OK\r\n");
    assert!(client.run(&shared, "INFO stats").contains("keyspace_hits:0\r\n"));
}

#[test]
fn a_connection_can_be_told_to_end() {
    let shared = Shared::new(Config::default(), 0);
    let store = MemoryStore::default();
    let (mut one, two) = (Client::new(&shared, store.clone()), Client::new(&shared, store));
    let id = two.session.peer().id;
    assert_eq!(one.run(&shared, &format!("CLIENT KILL ID {id}")), ":1\r\n");
    assert!(two.session.peer().killed() && !one.session.closing());
    two.session.close(&shared);
    assert_eq!(one.run(&shared, "CLIENT LIST").matches("id=").count(), 1);
    assert_eq!(one.run(&shared, "CLIENT KILL TYPE normal SKIPME no"), ":1\r\n");
    assert!(one.session.closing());
}

/// One key cannot be reached.
#[derive(Default)]
struct Lost;

impl Hook for Lost {
    fn before(&mut self, step: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        match step {
            Step::Get(Key { name: b"lost", .. }) => Err(StoreError::Unavailable("it is lost".to_owned())),
            Step::Put(Key { name: b"lost", .. }, _) => Err(StoreError::Full),
            _ => Ok(()),
        }
    }
}

#[test]
fn what_goes_to_the_store_together_has_the_replies_and_counts_of_one_after_the_other() {
    use remanence_resp::engine::alike;
    let mut pipeline = Vec::new();
    for name in ["a", "lost", "none", "hash", "late", "a", "b"] {
        pipeline.extend(format!("*2\r\n$3\r\ngEt\r\n${}\r\n{name}\r\n", name.len()).into_bytes());
    }
    for (name, value) in [("a", "1"), ("a", "22"), ("lost", "3"), ("hash", ""), ("c", "4")] {
        let words =
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
        pipeline.extend(words.into_bytes());
    }
    for name in ["a", "hash", "c"] {
        pipeline.extend(format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len()).into_bytes());
    }
    let carry_out = |max: usize, before: &str| {
        let shared = Shared::new(Config::default(), 0);
        let mut client = Client::new(&shared, Hooked::<Lost>::default());
        for line in ["SET a x", "HSET hash f v", "SET late y PX 10", "SET b z", before] {
            client.run(&shared, line);
        }
        client.now += 20;
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(&pipeline);
        let (mut out, mut longest) = (Vec::new(), 0);
        let moment = Moment { unix_us: client.now * 1000, random: 7 };
        while let Some(run) = decoder.next_run(false, max, alike).unwrap() {
            longest = longest.max(run.len());
            client.session.execute_run(&run, &mut client.store, &shared, moment, &mut out);
        }
        let stats = &shared.stats;
        let counts = [&stats.commands, &stats.hits, &stats.misses, &stats.expired, &stats.errors];
        let of = |name: &[u8]| {
            let of = stats.of(remanence_resp::command::Command::find(name).unwrap().id);
            (of.calls.get(), of.failed.get())
        };
        let told = (counts.map(|count| count.get()), of(b"get"), of(b"set"), stats.errors_by_code());
        (String::from_utf8(out).unwrap(), told, longest)
    };
    for before in ["PING", "CLIENT REPLY SKIP", "CLIENT REPLY OFF"] {
        let (one, together) = (carry_out(1, before), carry_out(64, before));
        assert_eq!((&one.0, &one.1), (&together.0, &together.1), "{before}");
        assert_eq!((one.2, together.2), (1, 7));
    }
    let (out, ..) = carry_out(64, "PING");
    assert!(
        out.starts_with("$1\r\nx\r\n-ERR the store did not answer: it is lost\r\n$-1\r\n-WRONGTYPE"),
        "{out}"
    );
    assert!(out.ends_with("$2\r\n22\r\n$0\r\n\r\n$1\r\n4\r\n"), "{out}");
}
