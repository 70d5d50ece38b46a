//! What the fuzz target does with its bytes; `fuzz/` holds the shell, and the unit tests run the committed corpus through the same
//! function.

use remanence_kv::Geometry;
use remanence_kv::offline::Local;
use remanence_kv::server::Options;
use remanence_kv::view::Mode;
use remanence_resp::engine::{Config, Moment, Session, Shared};
use remanence_resp::memory::MemoryStore;
use remanence_resp::protocol::{Decoder, Limits};
use remanence_resp::store::Store as _;

use crate::erda::Erda;

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] = &[("gateway_erda", commands)];

/// Commands whose replies follow from what was written before, and from nothing else: not from a store's own order of keys.
const COMMANDS: &[&str] = &[
    "APPEND",
    "DBSIZE",
    "DECR",
    "DECRBY",
    "DEL",
    "ECHO",
    "EXISTS",
    "EXPIRE",
    "EXPIREAT",
    "EXPIRETIME",
    "FLUSHALL",
    "FLUSHDB",
    "GET",
    "GETDEL",
    "GETEX",
    "GETRANGE",
    "GETSET",
    "HDEL",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HINCRBY",
    "HINCRBYFLOAT",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HMSET",
    "HSET",
    "HSETNX",
    "HSTRLEN",
    "HVALS",
    "INCR",
    "INCRBY",
    "INCRBYFLOAT",
    "MGET",
    "MSET",
    "MSETNX",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PEXPIRETIME",
    "PING",
    "PSETEX",
    "PTTL",
    "RENAME",
    "RENAMENX",
    "SELECT",
    "SET",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "STRLEN",
    "SUBSTR",
    "TOUCH",
    "TTL",
    "TYPE",
    "UNLINK",
];

/// Small, so that logs are cleaned and the table grows.
const GEOMETRY: Geometry =
    Geometry { size: 512 << 10, region_len: 16 << 10, segment_len: 8 << 10, heads: 2, grown_from: 0 };

/// What Redis clients send: over Erda, with its own server, formats and clients between, and over a store that is a map, the
/// replies are the same, byte for byte, and so is what is there in the end.
pub fn commands(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let options = Options {
        mode: Mode::Durable,
        lease: 1 << 40,
        unfinished_max: 16,
        clean_by_itself: true,
        defer: false,
        inline_max: 0,
    };
    let local = Local::new(&GEOMETRY, 16, options).expect("a fair geometry");
    let connect = || {
        let (client, reach) = local.connect(usize::from(first & 7));
        Erda::new(client, reach)
    };
    // Two clients take turns: what one writes, the other reads.
    let mut erda = [connect(), connect()];
    let mut memory = MemoryStore::default();
    // Longer strings would only be slower.
    let config = Config { bulk_max: 1 << 12, ..Config::default() };
    let shared = [Shared::new(config.clone(), 0), Shared::new(config, 0)];
    let mut sessions = [Session::open(&shared[0], "a", "b", 0), Session::open(&shared[1], "a", "b", 0)];
    let mut decoder = Decoder::new(Limits { bulk: 1 << 12, request: 1 << 14, words: 1 << 8 });
    decoder.push(bytes);
    let mut clock = 1_700_000_000_000_000;
    let (mut got, mut expected) = (Vec::new(), Vec::new());
    for step in 0.. {
        let Ok(Some(request)) = decoder.next(false) else { break };
        // Keys that Erda refuses are its own affair.
        let name = request.word(0).to_ascii_uppercase();
        let fair = COMMANDS.iter().any(|known| known.as_bytes() == name);
        if !fair || request.words(0).any(|word| word.len() > 1000) {
            continue;
        }
        clock += 1000 * i64::from(first);
        let moment = Moment { unix_us: clock, random: clock as u64 };
        let client = &mut erda[step % 2];
        sessions[0].execute(&request, client, &shared[0], moment, &mut got);
        sessions[1].execute(&request, &mut memory, &shared[1], moment, &mut expected);
        // A pool has an end, and a map has none.
        let full = |reply: &[u8]| reply.windows(4).any(|some| some == b"-OOM");
        if full(&got) {
            return;
        }
        assert_eq!(
            String::from_utf8_lossy(&got),
            String::from_utf8_lossy(&expected),
            "{:?}",
            request.words(0).map(String::from_utf8_lossy).collect::<Vec<_>>()
        );
        got.clear();
        expected.clear();
        local.go_on();
        client.client().adopt(local.view());
        client.rest();
        if sessions[0].closing() {
            break;
        }
    }
    for space in 0..=u8::MAX {
        assert_eq!(erda[0].count(space), memory.count(space), "keys of database {space}");
    }
}

#[cfg(test)]
mod tests;
