//! The same commands to a real Redis 7.0 server and to this crate: the same bytes must come back, in RESP2 and RESP3.
//!
//! The server is Debian's `redis-server`, on a unix socket in a directory of the test's own; without it the test says so
//! and is skipped. `REMANENCE_RESP_ROUNDS` sets how many random sequences run (20), `REMANENCE_RESP_SEED` which.
//! Excluded are replies that cannot be equal: the order of KEYS and SCAN (compared as sets), RANDOMKEY, INFO, TIME, and
//! times to live of keys that a clock counts down (compared where they are absolute).

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a real server is waited for, and has a real clock"
)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_resp::engine::{Config, Moment, Session, Shared};
use remanence_resp::memory::MemoryStore;
use remanence_resp::protocol::{Decoder, Frame, Limits, parse_frame};

struct Redis {
    child: Child,
    directory: tempfile::TempDir,
}

impl Redis {
    fn start(options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let started = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no", "--dir"])
            .arg(directory.path())
            .args(options)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Self { child, directory }),
            Err(error) => {
                println!("skipped: no redis-server here ({error}); install the package redis-server");
                None
            }
        }
    }

    fn connect(&self) -> Real {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match UnixStream::connect(self.directory.path().join("s")) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    return Real { stream, pending: Vec::new() };
                }
                Err(error) if Instant::now() > until => panic!("redis-server does not listen: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Real {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Real {
    fn reply(&mut self, request: &[u8]) -> Vec<u8> {
        self.stream.write_all(request).unwrap();
        self.read()
    }

    fn read(&mut self) -> Vec<u8> {
        let mut chunk = [0; 65536];
        loop {
            if let Some((_, len)) = parse_frame(&self.pending).unwrap() {
                return self.pending.drain(..len).collect();
            }
            let count = self.stream.read(&mut chunk).unwrap();
            assert!(count > 0, "redis-server closed the connection");
            self.pending.extend_from_slice(&chunk[..count]);
        }
    }
}

struct Ours {
    shared: Arc<Shared>,
    session: Session,
    store: MemoryStore,
    decoder: Decoder,
}

impl Ours {
    fn new(config: Config) -> Self {
        Self::over(Arc::new(Shared::new(config, 0)), MemoryStore::default())
    }

    fn over(shared: Arc<Shared>, store: MemoryStore) -> Self {
        let session = Session::open(&shared, "a:1", "b:2", 0);
        Self { shared, session, store, decoder: Decoder::new(Limits::default()) }
    }

    /// Another connection to the same.
    fn beside(&self) -> Self {
        Self::over(Arc::clone(&self.shared), self.store.clone())
    }

    fn reply(&mut self, request: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.decoder.push(request);
        let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
        loop {
            match self.decoder.next(self.session.stranger(&self.shared)) {
                Ok(Some(request)) => {
                    let moment = Moment { unix_us, random: 0 };
                    self.session.execute(&request, &mut self.store, &self.shared, moment, &mut out);
                }
                Ok(None) => {
                    let moment = Moment { unix_us, random: unix_us as u64 };
                    while self.shared.fold(&mut self.store, moment).unwrap() {}
                    return out;
                }
                Err(error) => {
                    self.session.protocol_error(&error, &self.shared, &mut out);
                    return out;
                }
            }
        }
    }
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

struct Dice(ChaCha8Rng, u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn key(&mut self) -> String {
        format!("k{}", self.below(8))
    }

    fn field(&mut self) -> String {
        format!("f{}", self.below(6))
    }

    fn value(&mut self) -> String {
        match self.below(8) {
            0 => String::new(),
            1 => self
                .pick(&["inf", "-inf", "nan", "0x1A", "1e400", " 1", "1e5000", "+5", "007", ".", "-0", "5."])
                .to_owned(),
            2 | 3 => (self.below(2000) as i64 - 1000).to_string(),
            4 => format!("{}.{}", self.below(200) as i64 - 100, self.below(100_000)),
            5 => self
                .pick(&["9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e19"])
                .to_owned(),
            6 => "x".repeat(self.below(50)),
            _ => format!("v{}", self.below(100)),
        }
    }

    fn number(&mut self) -> String {
        match self.below(10) {
            0 => self.value(),
            1 => self.pick(&["9223372036854775807", "-9223372036854775808", "-1", "0"]).to_owned(),
            _ => (self.below(200) as i64 - 100).to_string(),
        }
    }

    /// A time to live: so far away that no test sees it pass, or past, or no time at all. No two relative ones are
    /// within a thousand seconds of each other, since the two servers look at their clocks at different times.
    fn ttl(&mut self, ms: bool, absolute: bool) -> String {
        let unit = if ms { 1000 } else { 1 };
        self.1 += 1;
        let value = if absolute {
            4_000_000_000 + self.below(1000) as u64
        } else {
            500_000 + 1000 * (self.1 * 7919 % 10_007)
        };
        match self.below(8) {
            0 => self.pick(&["x", "", "1.5", " 1", "007", "9223372036854775808"]).to_owned(),
            1 => self
                .pick(&["0", "-1", "-9223372036854775808", "9223372036854775807", "9223372036854775"])
                .to_owned(),
            2 if absolute => "1000".to_owned(),
            _ => (value * unit).to_string(),
        }
    }

    fn casing(&mut self, word: &str) -> String {
        match self.below(3) {
            0 => word.to_lowercase(),
            1 => word.to_owned(),
            _ => word
                .chars()
                .enumerate()
                .map(|(i, c)| if i % 2 == 0 { c.to_ascii_lowercase() } else { c })
                .collect(),
        }
    }

    fn set_options(&mut self, command: &str) -> Vec<String> {
        let mut options = Vec::new();
        for _ in 0..[0, 0, 1, 1, 1, 2, 2, 3][self.below(8)] {
            let option = match command {
                "SET" => self.pick(&["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT"]),
                _ => self.pick(&["PERSIST", "EX", "PX", "EXAT", "PXAT"]),
            };
            options.push(self.casing(option));
            match option {
                "EX" | "PX" | "EXAT" | "PXAT" if self.below(12) > 0 => {
                    // What is set in the past is deleted when Redis' own clock looks at it: both do on the next look.
                    options.push(self.ttl(option.starts_with('P'), option.ends_with("AT")));
                }
                _ => {}
            }
        }
        options
    }

    fn command(&mut self) -> Vec<String> {
        const NAMES: &[&str] = &[
            "GET",
            "SET",
            "SET",
            "SET",
            "MGET",
            "MSET",
            "MSETNX",
            "SETNX",
            "SETEX",
            "PSETEX",
            "GETSET",
            "GETDEL",
            "GETEX",
            "APPEND",
            "STRLEN",
            "DEL",
            "UNLINK",
            "EXISTS",
            "TOUCH",
            "INCR",
            "DECR",
            "INCRBY",
            "DECRBY",
            "INCRBYFLOAT",
            "INCRBYFLOAT",
            "EXPIRE",
            "PEXPIRE",
            "EXPIREAT",
            "PEXPIREAT",
            "PERSIST",
            "EXPIRETIME",
            "PEXPIRETIME",
            "KEYS",
            "DBSIZE",
            "TYPE",
            "RENAME",
            "RENAMENX",
            "HSET",
            "HSET",
            "HMSET",
            "HGET",
            "HMGET",
            "HGETALL",
            "HDEL",
            "HLEN",
            "HEXISTS",
            "HKEYS",
            "HVALS",
            "HINCRBY",
            "HINCRBYFLOAT",
            "HSETNX",
            "HSTRLEN",
            "HSCAN",
            "SCAN",
            "ECHO",
            "PING",
            "GETRANGE",
            "SUBSTR",
            "SETRANGE",
            "SELECT",
            "FLUSHDB",
            "TTL",
            "NOSUCH",
            "CLIENT",
            "COMMAND",
            "OBJECTIVE",
        ];
        let name = self.pick(NAMES);
        let mut words = vec![self.casing(name)];
        let mut add = |more: Vec<String>| words.extend(more);
        match name {
            "GET" | "STRLEN" | "GETDEL" | "INCR" | "DECR" | "PERSIST" | "EXPIRETIME" | "PEXPIRETIME"
            | "TYPE" | "HLEN" | "HGETALL" | "HKEYS" | "HVALS" => add(vec![self.key()]),
            // What is left is a matter of the clock: only keys that have no time are asked.
            "TTL" => add(vec![format!("none{}", self.below(3))]),
            "SET" => {
                add(vec![self.key(), self.value()]);
                add(self.set_options("SET"));
            }
            "GETEX" => {
                add(vec![self.key()]);
                add(self.set_options("GETEX"));
            }
            "MGET" | "DEL" | "UNLINK" | "EXISTS" | "TOUCH" => {
                let count = 1 + self.below(3);
                add((0..count).map(|_| self.key()).collect());
            }
            "MSET" | "MSETNX" => {
                let count = 1 + self.below(3);
                add((0..count).flat_map(|_| [self.key(), self.value()]).collect());
            }
            "SETEX" => add(vec![self.key(), self.ttl(false, false), self.value()]),
            "PSETEX" => add(vec![self.key(), self.ttl(true, false), self.value()]),
            "SETNX" | "GETSET" | "APPEND" | "INCRBYFLOAT" => add(vec![self.key(), self.value()]),
            "INCRBY" | "DECRBY" => add(vec![self.key(), self.number()]),
            "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
                add(vec![self.key(), self.ttl(name.starts_with('P'), name.ends_with("AT"))]);
                for _ in 0..[0, 0, 0, 1, 1, 2][self.below(6)] {
                    let option = self.pick(&["NX", "XX", "GT", "LT", "what"]);
                    add(vec![self.casing(option)]);
                }
            }
            "KEYS" => add(vec![self.pick(&["*", "k[0-3]", "k?", "nothing", "k[^1]"]).to_owned()]),
            "RENAME" | "RENAMENX" => add(vec![self.key(), self.key()]),
            "HSET" | "HMSET" => {
                add(vec![self.key()]);
                let count = 1 + self.below(3);
                add((0..count).flat_map(|_| [self.field(), self.value()]).collect());
            }
            "HGET" | "HEXISTS" | "HSTRLEN" => add(vec![self.key(), self.field()]),
            "HMGET" | "HDEL" => {
                add(vec![self.key()]);
                let count = 1 + self.below(12);
                add((0..count).map(|_| self.field()).collect());
            }
            "HINCRBY" => add(vec![self.key(), self.field(), self.number()]),
            "HINCRBYFLOAT" | "HSETNX" => add(vec![self.key(), self.field(), self.value()]),
            "HSCAN" => {
                add(vec![self.key(), self.pick(&["0", "0", "x", "-1"]).to_owned()]);
                add(words_of(self.pick(&[
                    "",
                    "COUNT 5",
                    "MATCH f[1-3]",
                    "COUNT 0",
                    "COUNT x",
                    "TYPE hash",
                    "MATCH",
                ])));
            }
            // Only what fails at once: what succeeds is compared in a test of its own.
            "SCAN" => {
                add(words_of(self.pick(&["x", "0 COUNT 0", "0 COUNT x", "0 what", "0 MATCH", " 1", "1x"])))
            }
            "ECHO" => add(vec![self.value()]),
            "PING" => add((0..self.below(3)).map(|_| self.value()).collect()),
            "GETRANGE" | "SUBSTR" => add(vec![self.key(), self.number(), self.number()]),
            "SETRANGE" => add(vec![self.key(), self.below(40).to_string(), self.value()]),
            "SELECT" => {
                add(vec![self.pick(&["0", "0", "1", "15", "16", "-1", "x", "99999999999"]).to_owned()])
            }
            "FLUSHDB" => add(words_of(self.pick(&["ASYNC", "sync", "what", "sync sync"]))),
            "CLIENT" => add(words_of(self.pick(&[
                "GETNAME",
                "SETNAME me",
                "SETNAME two\u{a0}words",
                "NOSUCH",
                "GETNAME x",
                "SETNAME",
                "LIST TYPE nope",
                "LIST x",
                "REPLY maybe",
                "KILL 1.2.3.4:5",
                "KILL ID 0",
                "KILL",
                "KILL ID",
                "NO-EVICT maybe",
                "LIST ID x",
            ]))),
            "COMMAND" => {
                let of = self.pick(NAMES).to_owned();
                // What contains subcommands is described without them here.
                let of = if ["CLIENT", "COMMAND"].contains(&&*of) { "nosuch".to_owned() } else { of };
                add(match self.below(4) {
                    0 => words_of("COUNT x"),
                    1 => words_of("NOSUCH"),
                    _ => vec!["INFO".to_owned(), of.to_lowercase()],
                });
            }
            "NOSUCH" | "OBJECTIVE" => add((0..self.below(6)).map(|_| self.value()).collect()),
            _ => {}
        }
        // Now and then a word too many or too few.
        match self.below(40) {
            0 => words.push("extra".to_owned()),
            1 if words.len() > 1 => _ = words.pop(),
            _ => {}
        }
        words
    }
}

fn words_of(line: &str) -> Vec<String> {
    if line.is_empty() {
        Vec::new()
    } else {
        line.split('_').flat_map(|l| l.split(' ')).map(str::to_owned).collect()
    }
}

/// Whether two replies are points in time that the two servers' looks at their clocks explain.
fn within_minutes(a: &[u8], b: &[u8]) -> bool {
    match (parse_frame(a), parse_frame(b)) {
        (Ok(Some((Frame::Integer(a), _))), Ok(Some((Frame::Integer(b), _)))) => {
            a > 0 && b > 0 && a.abs_diff(b) < 600_000
        }
        _ => false,
    }
}

/// The leaves of a reply whose order means nothing.
fn sorted(bytes: &[u8]) -> Vec<u8> {
    fn leaves(frame: &Frame, into: &mut Vec<String>) {
        match frame {
            Frame::Array(items) | Frame::Map(items) => items.iter().for_each(|item| leaves(item, into)),
            other => into.push(format!("{other:?}")),
        }
    }
    let Ok(Some((frame, _))) = parse_frame(bytes) else { return bytes.to_vec() };
    let mut found = Vec::new();
    leaves(&frame, &mut found);
    found.sort();
    found.join(",").into_bytes()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn random_commands_are_answered_as_redis_answers_them() {
    // A hash with a long value would be a table, in an order of Redis' own; so none is.
    let Some(redis) = Redis::start(&["--hash-max-listpack-value", "100000"]) else { return };
    let rounds = setting("REMANENCE_RESP_ROUNDS", 20);
    let seed = setting("REMANENCE_RESP_SEED", 1);
    for round in 0..rounds {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed.wrapping_add(round)), 0);
        let mut real = redis.connect();
        // Every fourth round with hashes in parts.
        let parts = round % 4 == 3;
        let config = Config::default();
        let mut ours = Ours::new(Config { hash_whole: if parts { 24 } else { config.hash_whole }, ..config });
        real.reply(&encode(&words("FLUSHALL")));
        let mut history = Vec::new();
        if round % 2 == 1 {
            let hello = encode(&words("HELLO 3"));
            real.reply(&hello);
            ours.reply(&hello);
        }
        for _ in 0..400 {
            let command: Vec<Vec<u8>> = dice.command().into_iter().map(String::into_bytes).collect();
            let request = encode(&command);
            let (mut expected, mut got) = (real.reply(&request), ours.reply(&request));
            let name = command[0].to_ascii_lowercase();
            let fields = [&b"hgetall"[..], b"hkeys", b"hvals", b"hscan"].contains(&&*name);
            if name == b"keys" || parts && fields {
                (expected, got) = (sorted(&expected), sorted(&got));
            }
            // Keys that expired stay in DBSIZE until a background task of Redis finds them; a list of clients is of the
            // server's own.
            let own =
                [&b"dbsize"[..], b"client"].contains(&&*name) && matches!(expected[0], b':' | b'=' | b'$');
            // And Redis has more commands to count and to describe.
            let own = own || (name == b"command" && command.len() < 3 && !expected.starts_with(b"-"));
            // The order of a scan is each store's own; its sets are compared below.
            let own = own || (name == b"scan" && expected.starts_with(b"*"));
            let compared = !own || expected.starts_with(b"$2\r\n");
            history.push(command.iter().map(|word| show(word)).collect::<Vec<_>>().join(" "));
            if compared
                && expected != got
                && !(name.ends_with(b"expiretime") && within_minutes(&expected, &got))
            {
                let last = history.len().saturating_sub(12);
                panic!(
                    "seed {}, command {}:\n  {}\nredis {}\nours  {}",
                    seed.wrapping_add(round),
                    history.len(),
                    history[last..].join("\n  "),
                    show(&expected),
                    show(&got)
                );
            }
        }
    }
}

/// Transactions of several connections, in every order: each reply is Redis'.
#[test]
fn random_transactions_of_several_connections_are_answered_as_redis_answers_them() {
    let Some(redis) = Redis::start(&["--hash-max-listpack-value", "100000"]) else { return };
    let rounds = setting("REMANENCE_RESP_ROUNDS", 20);
    let seed = setting("REMANENCE_RESP_SEED", 1);
    for round in 0..rounds {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed.wrapping_add(round)), 0);
        let first = Ours::new(Config::default());
        let mut both: Vec<(Real, Ours, bool)> =
            (0..4).map(|_| (redis.connect(), first.beside(), false)).collect();
        both[0].0.reply(&encode(&words("FLUSHALL")));
        for (real, ours, _) in &mut both[2..] {
            let hello = encode(&words("HELLO 3"));
            real.reply(&hello);
            ours.reply(&hello);
        }
        let mut history = Vec::new();
        for _ in 0..600 {
            let who = dice.below(4);
            let open = both[who].2;
            let command = match (dice.below(10), open) {
                (0, false) | (9, true) => words_of("MULTI"),
                (0 | 1, true) => words_of("EXEC"),
                (2, true) if dice.below(4) == 0 => {
                    words_of(dice.pick(&["DISCARD", "RESET", "EXEC x", "WATCH", "MULTI x"]))
                }
                (1 | 2, false) => vec!["WATCH".to_owned(), dice.key()],
                (3, _) if dice.below(3) == 0 => {
                    words_of(dice.pick(&["UNWATCH", "EXEC", "DISCARD", "WATCH k1 k2"]))
                }
                _ => dice.command(),
            };
            let name = command[0].to_ascii_lowercase();
            // What is compared above, and what one look at a clock or an order of its own decides, has no place here.
            let own = ["keys", "scan", "dbsize", "hscan", "expiretime", "pexpiretime"].contains(&&*name);
            let second = command.get(1).map_or(String::new(), |word| word.to_lowercase());
            let own =
                own || (["client", "command"].contains(&&*name) && !["nosuch", "kill"].contains(&&*second));
            // Redis takes a key for unchanged whose time had come at WATCH, and that was written since; here that has changed.
            let own = own || (name == "set" && command.iter().any(|word| word == "1000"));
            if own {
                continue;
            }
            let request = encode(&command.iter().map(|word| word.clone().into_bytes()).collect::<Vec<_>>());
            let (real, ours, open) = &mut both[who];
            let (expected, got) = (real.reply(&request), ours.reply(&request));
            *open = match &*name {
                "multi" => *open || expected == b"+OK\r\n",
                "exec" | "discard" | "reset" => false,
                _ => *open,
            };
            history.push(format!("{who}: {}", command.join(" ").escape_debug()));
            let last = history.len().saturating_sub(40);
            assert!(
                expected == got,
                "seed {}, command {}:\n  {}\nredis {}\nours  {}",
                seed.wrapping_add(round),
                history.len(),
                history[last..].join("\n  "),
                show(&expected),
                show(&got)
            );
        }
    }
}

#[test]
fn transactions_are_answered_as_in_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    // Each line is a request of one of two connections.
    let script = [
        "1 MULTI",
        "1 MULTI",
        "1 WATCH a",
        "1 UNWATCH",
        "1 SET a 1",
        "1 EXEC",
        "1 EXEC",
        "1 DISCARD",
        // What is wrong when it is queued discards all.
        "1 MULTI",
        "1 SET a",
        "1 SET a 2",
        "1 EXEC",
        "1 GET a",
        "1 MULTI",
        "1 NOSUCH",
        "1 EXEC",
        "1 MULTI",
        "1 CLIENT NOSUCH",
        "1 EXEC",
        "1 MULTI",
        "1 CONFIG GET",
        "1 EXEC",
        "1 MULTI",
        "1 EXEC x",
        "1 EXEC",
        "1 MULTI",
        "1 DISCARD x",
        "1 EXEC",
        // What fails when it is carried out takes nothing back.
        "1 MULTI",
        "1 SET a x",
        "1 INCR a",
        "1 HGET a f",
        "1 SET b 2",
        "1 EXEC",
        "1 MGET a b",
        // Watched keys.
        "1 WATCH a",
        "2 SET a 1",
        "1 MULTI",
        "1 INCR a",
        "1 EXEC",
        "1 GET a",
        "1 MULTI",
        "1 INCR a",
        "1 EXEC",
        "1 WATCH a",
        "2 SET a 2",
        "1 UNWATCH",
        "1 MULTI",
        "1 EXEC",
        "1 WATCH a",
        "1 SET a 2",
        "1 MULTI",
        "1 EXEC",
        "1 WATCH none",
        "2 SET none 1",
        "2 DEL none",
        "1 MULTI",
        "1 PING",
        "1 EXEC",
        "1 WATCH none",
        "2 DEL none",
        "1 MULTI",
        "1 PING",
        "1 EXEC",
        "1 WATCH a",
        "1 MULTI",
        "1 DISCARD",
        "2 SET a 3",
        "1 MULTI",
        "1 PING",
        "1 EXEC",
        "1 WATCH a",
        "2 SELECT 1",
        "2 SET a 4",
        "1 MULTI",
        "1 PING",
        "1 EXEC",
        "1 WATCH a",
        "2 FLUSHALL",
        "1 MULTI",
        "1 PING",
        "1 EXEC",
        "1 SET a 1",
        "1 WATCH a",
        "2 SELECT 0",
        "2 PEXPIREAT a 1000",
        "1 MULTI",
        "1 PING",
        "1 EXEC",
        // The database and the protocol change when they are carried out.
        "1 MULTI",
        "1 SELECT 1",
        "1 SET a 5",
        "1 HELLO 9",
        "1 EXEC",
        "1 GET a",
        "2 GET a",
        "1 MULTI",
        "1 EXEC",
        "1 WATCH a",
        "2 SELECT 1",
        "2 SET a 5",
        "1 HELLO 3",
        "1 MULTI",
        "1 EXEC",
        "1 MULTI",
        "1 RESET",
        "1 EXEC",
        "1 MULTI",
        "1 QUIT",
    ];
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    let (mut real_too, mut ours_too) = (redis.connect(), ours.beside());
    for (n, line) in script.iter().enumerate() {
        let (who, line) = line.split_once(' ').unwrap();
        let request = encode(&words(line));
        let (expected, got) = match who {
            "1" => (real.reply(&request), ours.reply(&request)),
            _ => (real_too.reply(&request), ours_too.reply(&request)),
        };
        if !line.starts_with("HELLO 3") {
            assert_eq!(show(&got), show(&expected), "line {n}: {line}");
        }
    }
}

/// Many sums, since their last digits are where arithmetic differs.
#[test]
fn sums_of_floats_are_equal_to_the_last_digit() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(setting("REMANENCE_RESP_SEED", 1)), 0);
    for round in 0..2000 {
        let digits = |dice: &mut Dice, max: usize| {
            let count = 1 + dice.below(max);
            (0..count).map(|_| char::from(b'0' + dice.below(10) as u8)).collect::<String>()
        };
        let number = |dice: &mut Dice| {
            let sign = dice.pick(&["", "-", "+"]);
            match dice.below(5) {
                0 => format!("{sign}{}.{}", digits(dice, 20), digits(dice, 25)),
                1 => format!("{sign}{}e{}", digits(dice, 5), dice.below(60) as i64 - 30),
                2 => format!("{sign}.{}E{}", digits(dice, 30), dice.below(10_000) as i64 - 5000),
                3 => format!(
                    "{sign}0x{:x}.{:x}p{}",
                    dice.0.next_u64(),
                    dice.below(4096),
                    dice.below(140) as i64 - 70
                ),
                _ => format!("{sign}{}", digits(dice, 40)),
            }
        };
        let (a, b) = (number(&mut dice), number(&mut dice));
        for line in [
            format!("SET f {a}"),
            format!("INCRBYFLOAT f {b}"),
            format!("INCRBYFLOAT f -{b}"),
            "GET f".to_owned(),
        ] {
            let request = encode(&words(&line));
            let (expected, got) = (real.reply(&request), ours.reply(&request));
            assert_eq!(show(&got), show(&expected), "round {round}: {line}, after SET f {a}");
        }
    }
}

#[test]
fn commands_are_described_as_redis_describes_them() {
    let Some(redis) = Redis::start(&[]) else { return };
    for version in ["2", "3"] {
        let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
        let hello = encode(&words(&format!("HELLO {version}")));
        real.reply(&hello);
        ours.reply(&hello);
        for command in remanence_resp::command::COMMANDS {
            // Of containers we do not list the subcommands.
            if ["client", "cluster", "command", "config", "pubsub"].contains(&command.name) {
                continue;
            }
            let request = encode(&words(&format!("COMMAND INFO {}", command.name)));
            assert_eq!(show(&ours.reply(&request)), show(&real.reply(&request)), "{}", command.name);
        }
    }
}

#[test]
fn scans_find_the_same_keys_and_fields() {
    type Both<'a> = dyn FnMut(&str) -> (Vec<u8>, Vec<u8>) + 'a;
    let Some(redis) = Redis::start(&[]) else { return };
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    let mut both = |line: &str| {
        let request = encode(&words(line));
        let (expected, got) = (real.reply(&request), ours.reply(&request));
        (expected, got)
    };
    for i in 0..300 {
        assert_eq!(both(&format!("SET key{i} {i}")).0, b"+OK\r\n");
        both(&format!("HSET hash{} f v", i % 20));
    }
    for i in 0..600 {
        both(&format!("HSET big field{i} {}", "x".repeat(80)));
    }
    both("PEXPIREAT key0 4000000000000");
    let everything = |scan: &str, side: usize, both: &mut Both<'_>| {
        let (mut found, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let replies = both(&scan.replace('@', &cursor));
            let reply = if side == 0 { replies.0 } else { replies.1 };
            let Ok(Some((Frame::Array(parts), _))) = parse_frame(&reply) else { panic!("{}", show(&reply)) };
            let [Frame::Bulk(next), Frame::Array(items)] = &parts[..] else { panic!("{parts:?}") };
            found.extend(items.iter().map(|item| format!("{item:?}")));
            cursor = String::from_utf8(next.clone()).unwrap();
            if cursor == "0" {
                return found;
            }
        }
    };
    for scan in [
        "SCAN @",
        "SCAN @ COUNT 1",
        "SCAN @ COUNT 1000",
        "SCAN @ MATCH key1*",
        "SCAN @ TYPE hash",
        "SCAN @ TYPE HASH COUNT 7",
        "SCAN @ TYPE nosuch",
        "SCAN @ TYPE string MATCH *9",
        "HSCAN big @",
        "HSCAN big @ COUNT 3",
        "HSCAN big @ MATCH *7",
        "HSCAN hash1 @",
    ] {
        let (expected, got) = (everything(scan, 0, &mut both), everything(scan, 1, &mut both));
        assert_eq!(got, expected, "{scan}");
    }
}

#[test]
fn authentication_is_as_in_redis() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]) else { return };
    let config = Config { password: Some("secret".to_owned()), ..Config::default() };
    let lines = [
        "GET a",
        "PING",
        "NOSUCH",
        "GET",
        "HELLO",
        "HELLO 3",
        "HELLO 4",
        "HELLO x",
        "AUTH wrong",
        "AUTH default wrong",
        "AUTH other secret",
        "AUTH a b c",
        "HELLO 2 AUTH default wrong",
        "HELLO 2 SETNAME x",
        "RESET",
        "HELLO 2 what",
        "AUTH secret",
        "GET a",
        "RESET",
        "GET a",
        "AUTH default secret",
        "PING",
        "CLIENT SETNAME me",
        "CLIENT GETNAME",
        "RESET",
        "CLIENT GETNAME",
        "AUTH secret",
        "CLIENT GETNAME",
        "HELLO 2 SETNAME you",
        "CLIENT GETNAME",
    ];
    let (mut real, mut ours) = (redis.connect(), Ours::new(config));
    for line in lines {
        let request = encode(&words(line));
        let (expected, got) = (real.reply(&request), ours.reply(&request));
        // HELLO's answer has the connection's number in it.
        if !expected.starts_with(b"*14") {
            assert_eq!(show(&got), show(&expected), "{line}");
        }
    }
    // And as the first words of a connection, in the newer protocol.
    let (mut real, mut ours) =
        (redis.connect(), Ours::new(Config { password: Some("secret".to_owned()), ..Config::default() }));
    let hello = encode(&words("HELLO 3 AUTH default secret SETNAME me"));
    let (expected, got) = (real.reply(&hello), ours.reply(&hello));
    let without_id = |bytes: &[u8]| show(bytes).replace(|c: char| c.is_ascii_digit(), "");
    assert_eq!(without_id(&got), without_id(&expected));
    for line in
        ["CLIENT GETNAME", "HGETALL none", "GET none", "MGET a b", "KEYS x", "COMMAND INFO nosuch get"]
    {
        let request = encode(&words(line));
        assert_eq!(show(&ours.reply(&request)), show(&real.reply(&request)), "{line}");
    }
}

#[test]
fn without_a_password_auth_says_so() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    for line in [
        "AUTH x",
        "AUTH default x",
        "AUTH other x",
        "HELLO 2 AUTH other x",
        "HELLO 3 what",
        "CONFIG",
        "CONFIG NOSUCH",
        "CONFIG GET",
    ] {
        let request = encode(&words(line));
        assert_eq!(show(&ours.reply(&request)), show(&real.reply(&request)), "{line}");
    }
}

/// Libraries ask whether there is a cluster: StackExchange.Redis sends CLUSTER NODES by itself. In a transaction the words are looked
/// at when they are queued.
#[test]
fn there_is_no_cluster_as_redis_says_it() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    for line in [
        "CLUSTER",
        "CLUSTER NODES",
        "cluster info",
        "CLUSTER INFO x",
        "CLUSTER HELP",
        "CLUSTER HELP x",
        "CLUSTER NOSUCH",
        "CLUSTER KEYSLOT",
        "CLUSTER KEYSLOT a",
        "CLUSTER COUNT-FAILURE-REPORTS",
        "CLUSTER FAILOVER",
        "CLUSTER FAILOVER now",
        "CLUSTER ADDSLOTS",
        "CLUSTER ADDSLOTSRANGE 1",
        "CLUSTER DELSLOTSRANGE 1 2",
        "CLUSTER SETSLOT 1",
        "CLUSTER MEET a",
        "CLUSTER RESET",
        "CLUSTER RESET a b",
        "CLUSTER SLAVES",
        "CLUSTER GETKEYSINSLOT 1",
        "CLUSTER SLOTS",
        "CLUSTER SHARDS x",
        "CLUSTER SET-CONFIG-EPOCH",
        "CLUSTER LINKS",
        "CLUSTER MYID",
        "MULTI",
        "CLUSTER NOSUCH",
        "EXEC",
        "MULTI",
        "CLUSTER KEYSLOT",
        "EXEC",
        "MULTI",
        "CLUSTER NODES",
        "EXEC",
        "SENTINEL masters",
    ] {
        let request = encode(&words(line));
        assert_eq!(show(&ours.reply(&request)), show(&real.reply(&request)), "{line}");
    }
}

fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (_, len) = parse_frame(bytes).unwrap().expect("whole frames");
        let (frame, rest) = bytes.split_at(len);
        frames.push(frame.to_vec());
        bytes = rest;
    }
    frames
}

/// What a connection is sent, and in which order: two that listen and one that publishes. Behind each line stands how many replies and
/// messages the first and the second have of it.
#[test]
fn messages_of_channels_come_as_from_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    for version in [2, 3] {
        let mut real = [redis.connect(), redis.connect()];
        let first = Ours::new(Config::default());
        let mut ours = [first.beside(), first];
        let hello = format!("HELLO {version}");
        let nosuch = if version == 2 { "GET nosuch" } else { "GET nosuch2" };
        for (who, line, counts) in [
            (0, &*hello, [1, 0]),
            (1, "SET nosuch2 x", [0, 1]),
            (0, "SUBSCRIBE", [1, 0]),
            (0, "PUBLISH a", [1, 0]),
            (1, "PUBLISH a nobody", [0, 1]),
            (0, "SUBSCRIBE a b a", [3, 0]),
            (1, "PUBLISH a one", [1, 1]),
            (1, "PUBLISH c none", [0, 1]),
            (0, "PSUBSCRIBE a* *b [a-c]", [3, 0]),
            (1, "PUBLISH a two", [3, 1]),
            (1, "PUBLISH ab three", [2, 1]),
            (1, "PUBSUB CHANNELS [a]", [0, 1]),
            (1, "PUBSUB CHANNELS b*", [0, 1]),
            (1, "PUBSUB CHANNELS x*", [0, 1]),
            (1, "PUBSUB CHANNELS x y", [0, 1]),
            (1, "PUBSUB NUMSUB", [0, 1]),
            (1, "PUBSUB NUMSUB a b c", [0, 1]),
            (1, "PUBSUB NUMPAT", [0, 1]),
            (1, "PUBSUB NUMPAT x", [0, 1]),
            (1, "PUBSUB", [0, 1]),
            (1, "PUBSUB WHAT", [0, 1]),
            (0, "PING", [1, 0]),
            (0, "PING hello", [1, 0]),
            (0, "PING hello you", [1, 0]),
            (0, nosuch, [1, 0]),
            (0, "nosuch command", [1, 0]),
            (0, "ECHO x", [1, 0]),
            (0, "CONFIG RESETSTAT", [1, 0]),
            (0, "CONFIG NOSUCH", [1, 0]),
            (0, "PUBSUB NUMPAT", [1, 0]),
            (0, "PUBSUB WHAT", [1, 0]),
            (0, "UNSUBSCRIBE z", [1, 0]),
            (0, "UNSUBSCRIBE a", [1, 0]),
            (0, "UNSUBSCRIBE", [1, 0]),
            (1, "PUBLISH b four", [2, 1]),
            (0, "PUNSUBSCRIBE a* *b", [2, 0]),
            (0, "PUNSUBSCRIBE", [1, 0]),
            (0, "PUNSUBSCRIBE", [1, 0]),
            (0, "UNSUBSCRIBE", [1, 0]),
            (1, "PUBLISH b five", [0, 1]),
            (0, "ECHO x", [1, 0]),
            (0, "MULTI", [1, 0]),
            (0, "SUBSCRIBE m", [1, 0]),
            (0, "PUBLISH n x", [1, 0]),
            (0, "EXEC", [1, 0]),
            (1, "PUBLISH m six", [1, 1]),
            (0, "RESET", [1, 0]),
            (1, "PUBLISH m seven", [0, 1]),
            (0, "GET nosuch", [1, 0]),
            (0, "CLIENT REPLY OFF", [0, 0]),
            (0, "SUBSCRIBE q", [1, 0]),
            (1, "PUBLISH q eight", [1, 1]),
            (0, "UNSUBSCRIBE q", [1, 0]),
            (0, "CLIENT REPLY ON", [1, 0]),
            (0, "CLIENT REPLY SKIP", [0, 0]),
            (0, "SUBSCRIBE r", [1, 0]),
            (0, "UNSUBSCRIBE r", [1, 0]),
            (0, "ECHO x", [1, 0]),
            (1, "DEL nosuch2", [0, 1]),
        ] {
            let request = encode(&words(line));
            real[who].stream.write_all(&request).unwrap();
            let mut got = [Vec::new(), Vec::new()];
            got[who] = ours[who].reply(&request);
            for (at, count) in counts.into_iter().enumerate() {
                let mut expected: Vec<Vec<u8>> = (0..count).map(|_| real[at].read()).collect();
                ours[at].session.take_mail(&ours[at].shared, &mut got[at]);
                // What HELLO tells of the connection is another's.
                if !line.starts_with("HELLO") {
                    let mut got = frames(&got[at]);
                    if line.starts_with("PUBLISH") {
                        // Redis goes over patterns in the order of a hash table.
                        got.sort();
                        expected.sort();
                    }
                    let text = |frames: &[Vec<u8>]| show(&frames.concat());
                    assert_eq!(text(&got), text(&expected), "RESP{version}, {line}, connection {at}");
                }
            }
        }
    }
}

#[test]
fn what_is_no_request_is_answered_as_redis_answers_it() {
    let Some(redis) = Redis::start(&[]) else { return };
    for bytes in [
        &b"*x\r\n"[..],
        b"*1\r\nGET\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"set \"a\r\n",
        b"*2147483648\r\n",
        b"x 'a'b\r\n",
        b"*1\r\n\xff\r\n",
    ] {
        let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
        assert_eq!(show(&ours.reply(bytes)), show(&real.reply(bytes)));
    }
    // Inline requests, good ones.
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    for bytes in [
        &b"PING\r\n"[..],
        b"\r\n  set a 'b c'  \r\n",
        b"get a\n",
        b"echo \"\\x41\\n\"\r\n",
        b"*0\r\nget b\r\n",
    ] {
        assert_eq!(show(&ours.reply(bytes)), show(&real.reply(bytes)), "{}", show(bytes));
    }
}

#[test]
fn unwanted_replies_do_not_come() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (mut real, mut ours) = (redis.connect(), Ours::new(Config::default()));
    // Pipelines, with one reply or the last one at their end.
    for line in [
        "CLIENT REPLY OFF|PING|CLIENT REPLY ON",
        "CLIENT REPLY SKIP|PING|ECHO a",
        "CLIENT REPLY SKIP|CLIENT REPLY SKIP|PING|ECHO b",
        "CLIENT REPLY SKIP|RESET|ECHO c",
        "CLIENT REPLY OFF|PING|RESET",
    ] {
        let request: Vec<u8> = line.split('|').flat_map(|line| encode(&words(line))).collect();
        assert_eq!(show(&ours.reply(&request)), show(&real.reply(&request)), "{line}");
    }
}
