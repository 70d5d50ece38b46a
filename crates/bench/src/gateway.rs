//! `rem bench gateway`: commands that change something, on a disk, beside Redis that syncs before it replies.
//!
//! The servers run as their users start them, on the same file system, with redis-benchmark for a client: Redis without threads that read
//! and write for it, and with two. Each round starts all of them with nothing, fills them alike, and gives each command to one after the
//! other; who comes first changes from round to round. What the disk does by itself stands beside them (`limits/file.rs`).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::effort::Effort;
use crate::erda::tcp::At;
use crate::limits::file::{self, BareFile, write_at_once};
use crate::machine::State;
use crate::redis::{self, Fsync, Process, Setting, Shape};
use crate::report::{Bar, Report, Sense};
use crate::samples::{Key, Metric, Samples};

/// What Redis may be faster by.
const LIMIT: f64 = 1.5;
/// Bytes of a value.
const VALUE: usize = 64;
/// Bytes of the store's file.
const STORE: u64 = 1 << 30;
/// Numbers that commands on new keys draw from: hardly any comes twice.
const FRESH: u64 = 1_000_000_000_000;
/// No reply takes longer, unless a server hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose gateway is measured: this one, or another release.
    pub program: PathBuf,
    /// Where both keep what they have: a directory, which is used and left empty.
    pub directory: PathBuf,
    /// How much is measured.
    pub effort: Effort,
}

/// What a command finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finds {
    /// Its key, as there is one for each number.
    Keys,
    /// The same, and they are made again before each run, which takes some of them away.
    KeysToDelete,
    /// No key: its number is drawn from so many that hardly any comes twice.
    Nothing,
    /// A hash with a field for each number.
    OneHash,
}

struct Case {
    name: &'static str,
    /// The command's words; `VALUE` is one of 64 bytes.
    words: &'static [&'static str],
    finds: Finds,
    /// What makes the key of a number, or the field.
    fill: &'static [&'static str],
}

const NUMBER: &str = "__rand_int__";

const CASES: [Case; 9] = [
    Case {
        name: "SET",
        words: &["SET", "string:__rand_int__", "VALUE"],
        finds: Finds::Keys,
        fill: &["SET", "string:__rand_int__", "VALUE"],
    },
    Case {
        name: "SETEX",
        words: &["SETEX", "string:__rand_int__", "3600", "VALUE"],
        finds: Finds::Keys,
        fill: &["SET", "string:__rand_int__", "VALUE"],
    },
    Case {
        name: "INCR",
        words: &["INCR", "number:__rand_int__"],
        finds: Finds::Keys,
        fill: &["SET", "number:__rand_int__", "0"],
    },
    Case {
        name: "HSET",
        words: &["HSET", "hash:__rand_int__", "field", "VALUE"],
        finds: Finds::Keys,
        fill: &["HSET", "hash:__rand_int__", "field", "VALUE"],
    },
    Case {
        name: "DEL",
        words: &["DEL", "gone:__rand_int__"],
        finds: Finds::KeysToDelete,
        fill: &["SET", "gone:__rand_int__", "VALUE"],
    },
    Case {
        name: "HSET of a large hash",
        words: &["HSET", "large", "field:__rand_int__", "VALUE"],
        finds: Finds::OneHash,
        fill: &["HSET", "large", "field:__rand_int__", "VALUE"],
    },
    Case {
        name: "SET of a new key",
        words: &["SET", "new:__rand_int__", "VALUE"],
        finds: Finds::Nothing,
        fill: &[],
    },
    Case {
        name: "INCR of a new key",
        words: &["INCR", "count:__rand_int__"],
        finds: Finds::Nothing,
        fill: &[],
    },
    Case {
        name: "HSET of a new key",
        words: &["HSET", "fresh:__rand_int__", "field", "VALUE"],
        finds: Finds::Nothing,
        fill: &[],
    },
];

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Gateway,
    Redis(Setting),
}

/// Syncs before it replies, without threads that read and write for it, and with some.
const REDIS: [Setting; 2] = [Setting::plain(Fsync::Always), Setting::threaded(Fsync::Always)];

impl Who {
    fn name(self) -> String {
        match self {
            Self::Gateway => "gateway".to_owned(),
            Self::Redis(setting) => format!("Redis, {}", setting.words()),
        }
    }
}

/// How much is measured.
struct Amount {
    rounds: u64,
    /// Numbers that keys are made of.
    keys: u64,
    /// Fields of the large hash.
    fields: u64,
    /// Clients at once, and requests of all of them together.
    shapes: Vec<(u32, u64)>,
}

impl Amount {
    fn of(effort: Effort) -> Self {
        Self {
            rounds: effort.pick(1, 6, 9),
            keys: effort.pick(100, 5_000, 20_000),
            fields: effort.pick(1_000, 10_000, 100_000),
            shapes: effort.pick(
                vec![(1, 50), (4, 200)],
                vec![(1, 100), (50, 3_000)],
                vec![(1, 1_000), (10, 8_000), (50, 30_000)],
            ),
        }
    }
}

/// A command's rate, or latency, from so many clients.
fn key(case: &Case, clients: u32, who: &str, metric: Metric) -> Key {
    Key { op: case.name.to_owned(), x: clients.into(), series: who.to_owned(), metric }
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: a server does not start, or ends, or redis-benchmark gives no figures.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let amount = Amount::of(options.effort);
    let steps = amount.rounds * CASES.len() as u64;
    let most = amount.shapes.iter().map(|(clients, _)| *clients).max().unwrap_or_default();
    let (mut samples, mut skipped) = (Samples::default(), Vec::new());
    let mut settings = serde_json::Map::new();
    let missing = ["redis-server", "redis-benchmark"]
        .iter()
        .zip(["redis-server", "redis-tools"])
        .find_map(|(program, package)| redis::installed(program, package).err());
    match missing {
        Some(why) => skipped.push(why),
        None => {
            for round in 0..amount.rounds {
                samples.block(round);
                let time = Duration::from_millis(options.effort.pick(20, 300, 1000));
                let mut bare = [BareFile::new(&options.directory.join("bare"))?];
                let micros = write_at_once(&mut bare, time)?;
                let rate = micros.len() as f64 / micros.iter().sum::<f64>();
                samples.add(&disk(), State::Any, State::Any, [rate]);
                let mut servers = vec![(Who::Gateway, gateway(options)?)];
                for (n, setting) in REDIS.into_iter().enumerate() {
                    let dir = options.directory.join(format!("redis{n}"));
                    servers.push((Who::Redis(setting), redis::redis(dir, setting)?));
                }
                settings =
                    servers.iter().map(|(who, server)| (who.name(), server.settings().into())).collect();
                // Who comes first has the disk as somebody else left it.
                let order = samples.order(servers.len());
                let servers: Vec<_> = order.into_iter().map(|n| &servers[n]).collect();
                for (case, what) in CASES.iter().enumerate() {
                    progress(round * CASES.len() as u64 + case as u64, steps, what.name);
                    one_case(&amount, case, &servers, &mut samples)?;
                }
            }
        }
    }
    let kind = redis::file_system(&options.directory).unwrap_or_else(|| "unknown".into());
    let params = serde_json::json!({
        "rounds": amount.rounds, "keys": amount.keys, "fields of the large hash": amount.fields,
        "bytes of a value": VALUE, "file system": kind, "x": words_of_x(),
        "latency": "of each run the p50 that redis-benchmark gives; its p99 stands under the name of the command",
        "fdatasync": file::WORDS, "settings": settings,
    });
    let bars = bars(&samples, most);
    Ok(Report::new("gateway", options.effort, params, &samples, bars, skipped))
}

fn words_of_x() -> serde_json::Value {
    CASES
        .iter()
        .map(|case| (case.name.to_owned(), "clients".into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn gateway(options: &Options) -> Result<Process, String> {
    redis::gateway_and_store(&options.program, options.directory.join("gateway"), STORE)
}

fn one_case(
    amount: &Amount,
    case: usize,
    servers: &[&(Who, Process)],
    samples: &mut Samples,
) -> Result<(), String> {
    let what = &CASES[case];
    let value = "x".repeat(VALUE);
    let words: Vec<&str> =
        what.words.iter().map(|word| if *word == "VALUE" { &value } else { *word }).collect();
    let space = match what.finds {
        Finds::Keys | Finds::KeysToDelete => amount.keys,
        Finds::OneHash => amount.fields,
        Finds::Nothing => FRESH,
    };
    if matches!(what.finds, Finds::Keys | Finds::OneHash) {
        for (who, server) in servers {
            fill(server.at(), what, space, &value).map_err(|e| format!("{}: {e}", who.name()))?;
        }
    }
    for &(clients, requests) in &amount.shapes {
        for (who, server) in servers {
            let failed = |e: String| format!("{}, {}: {e}", what.name, who.name());
            if what.finds == Finds::KeysToDelete {
                fill(server.at(), what, space, &value).map_err(failed)?;
            }
            let shape = Shape { clients, pipeline: 1 };
            let said = redis::benchmark(server.at(), shape, space, requests, &words).map_err(failed)?;
            let Some(said) = said.into_iter().next() else {
                return Err(failed("redis-benchmark gave no figures".into()));
            };
            let mut add = |key: &Key, value| samples.add(key, State::Any, State::Any, [value]);
            add(&key(what, clients, &who.name(), Metric::Rate), said.rate / 1e6);
            add(&key(what, clients, &who.name(), Metric::Latency), said.p50_us);
            add(
                &Key {
                    op: format!("{}, p99", what.name),
                    ..key(what, clients, &who.name(), Metric::Latency)
                },
                said.p99_us,
            );
        }
    }
    Ok(())
}

/// Gives a server a key, or a field, for each number below `space`, in pipelines.
fn fill(to: &At, case: &Case, space: u64, value: &str) -> Result<(), String> {
    const PIPELINE: u64 = 500;
    let lost = |e: std::io::Error| format!("the connection broke while it was filled: {e}");
    let At::Tcp(addr) = to else { return Err(format!("{to} is not reached over TCP")) };
    let mut stream = TcpStream::connect(addr).map_err(lost)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
    let mut numbers = 0..space;
    loop {
        let (mut requests, mut asked) = (Vec::new(), 0);
        for number in numbers.by_ref().take(PIPELINE as usize) {
            requests.extend_from_slice(format!("*{}\r\n", case.fill.len()).as_bytes());
            for word in case.fill {
                let word = if *word == "VALUE" { value } else { word };
                let word = word.replace(NUMBER, &format!("{number:012}"));
                requests.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
            asked += 1;
        }
        if asked == 0 {
            return Ok(());
        }
        stream.write_all(&requests).map_err(lost)?;
        // A line each: `+OK` or a number.
        let (mut lines, mut replies) = (0, Vec::new());
        while lines < asked {
            let mut chunk = [0; 4096];
            let len = stream.read(&mut chunk).map_err(lost)?;
            if len == 0 {
                return Err("the server closed the connection while it was filled".into());
            }
            replies.extend_from_slice(&chunk[..len]);
            lines += chunk[..len].iter().filter(|byte| **byte == b'\n').count();
        }
        if let Some(error) = replies.split(|byte| *byte == b'\n').find(|line| line.starts_with(b"-")) {
            return Err(format!("it was not filled: {}", String::from_utf8_lossy(error).trim()));
        }
    }
}

/// Syncs of the disk itself.
fn disk() -> Key {
    Key { op: "fdatasync".to_owned(), x: 0, series: "this disk".to_owned(), metric: Metric::Rate }
}

fn bars(samples: &Samples, clients: u32) -> Vec<Bar> {
    let bar = |(what, redis): (&Case, Who)| {
        let of = |who: Who| key(what, clients, &who.name(), Metric::Rate);
        let ratio = samples.ratio(&of(redis), &of(Who::Gateway));
        let name = format!("{}, {clients} clients: {} / gateway", what.name, redis.name());
        Bar::new(name, ratio, Sense::AtMost, LIMIT)
    };
    CASES.iter().flat_map(|what| REDIS.map(|setting| (what, Who::Redis(setting)))).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_lacks_a_value_where_one_side_is_missing() {
        let mut samples = Samples::default();
        for (block, rate) in [400.0, 100.0].into_iter().enumerate() {
            samples.block(block as u64);
            for (who, rate) in [(Who::Gateway, 100.0), (Who::Redis(REDIS[0]), rate)] {
                samples.add(&key(&CASES[0], 50, &who.name(), Metric::Rate), State::Any, State::Any, [rate]);
            }
        }
        let value = bars(&samples, 50)[0].value.expect("both sides of both rounds");
        assert!((value - 2.0).abs() < 0.01, "{value}");
        assert_eq!(bars(&samples, 50)[1].value, None, "nobody ran it");
    }
}
