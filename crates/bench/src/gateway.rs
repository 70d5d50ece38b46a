//! `rem bench gateway`: commands that change something, on a disk, beside Redis that syncs before it replies.
//!
//! The servers run as their users start them, on the same file system: our gateway with a store of its own; Redis without threads that read
//! and write for it, and with two, over TCP and over a Unix socket; and, with SET only, memcached, which keeps nothing. Each has clients of
//! its own, 1 to 256 connections of one thread (`gateway/clients.rs`), with one command under way on each. All servers alike may run on all cores, as their users
//! start them; clients keep to theirs. Each block starts all of them with
//! nothing, fills them alike, and has a burst of every cell in random order. What the disk does by itself stands beside them
//! (`limits/file.rs`).

pub(crate) mod clients;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use self::clients::Clients;
use self::clients::{Ask, Burst, Found};
use crate::effort;
use crate::limits::file::{self, BareFile, write_at_once};
use crate::machine::State;
use crate::programs::{self, Fate, Programs, Spec};
use crate::redis::{self, Fsync, Setting};
use crate::report::{Bar, Report, Sense};
use crate::role::{Launcher, Lost, Pair};
use crate::samples::{Key, Metric, Samples};

/// What Redis may be faster by.
const LIMIT: f64 = 1.5;
/// Bytes of a value.
const VALUE: usize = 64;
/// Bytes of the store's file.
const STORE: u64 = 1 << 30;
/// Numbers that commands on new keys draw from: hardly any comes twice.
const FRESH: u64 = 1_000_000_000_000;
/// Connections at once: all of these with SET, and those of [`BOTH`] with every command. The bars are of the last of these.
const SWEEP: [u64; 5] = [1, 4, 16, 64, 256];
const BOTH: [u64; 2] = [1, 64];

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
    /// The program whose gateway is measured: this one, or another release.
    pub program: PathBuf,
    /// Where all keep what they have: a directory, which is used and left empty.
    pub directory: PathBuf,
}

/// What a command finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finds {
    /// Its key, as there is one for each number.
    Keys,
    /// The same, each of which is asked for once, and they are made again before each burst.
    KeysToDelete,
    /// No key: its number is drawn from so many that hardly any comes twice.
    Nothing,
    /// A hash with a field for each number.
    OneHash,
}

struct Case {
    name: &'static str,
    /// The command's words; `VALUE` is one of 64 bytes, and `NUMBER` a number.
    words: &'static [&'static str],
    finds: Finds,
    /// What makes the key of a number, or the field.
    fill: &'static [&'static str],
}

const fn case(
    name: &'static str,
    words: &'static [&'static str],
    finds: Finds,
    fill: &'static [&'static str],
) -> Case {
    Case { name, words, finds, fill }
}

const STRINGS: &[&str] = &["SET", "string:NUMBER", "VALUE"];
const CASES: [Case; 9] = [
    case("SET", STRINGS, Finds::Keys, STRINGS),
    case("SETEX", &["SETEX", "string:NUMBER", "3600", "VALUE"], Finds::Keys, STRINGS),
    case("INCR", &["INCR", "number:NUMBER"], Finds::Keys, &["SET", "number:NUMBER", "0"]),
    case(
        "HSET",
        &["HSET", "hash:NUMBER", "field", "VALUE"],
        Finds::Keys,
        &["HSET", "hash:NUMBER", "field", "VALUE"],
    ),
    case("DEL", &["DEL", "gone:NUMBER"], Finds::KeysToDelete, &["SET", "gone:NUMBER", "VALUE"]),
    case(
        "HSET of a large hash",
        &["HSET", "large", "field:NUMBER", "VALUE"],
        Finds::OneHash,
        &["HSET", "large", "field:NUMBER", "VALUE"],
    ),
    case("SET of a new key", &["SET", "new:NUMBER", "VALUE"], Finds::Nothing, &[]),
    case("INCR of a new key", &["INCR", "count:NUMBER"], Finds::Nothing, &[]),
    case("HSET of a new key", &["HSET", "fresh:NUMBER", "field", "VALUE"], Finds::Nothing, &[]),
];

/// Who is measured. Peers are asked over a Unix socket, or over TCP as the gateway is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Gateway,
    Redis { setting: Setting, unix: bool },
    Memcached { unix: bool },
}

/// Syncs before it replies, without threads that read and write for it, and with some.
const SETTINGS: [Setting; 2] = [Setting::plain(Fsync::Always), Setting::threaded(Fsync::Always)];

impl Who {
    fn all() -> Vec<Self> {
        let redis = SETTINGS.map(|setting| [false, true].map(|unix| Self::Redis { setting, unix }));
        let memcached = [false, true].map(|unix| Self::Memcached { unix });
        [Self::Gateway].into_iter().chain(redis.into_iter().flatten()).chain(memcached).collect()
    }

    fn name(self) -> String {
        let via = |unix| if unix { "Unix socket" } else { "TCP" };
        match self {
            Self::Gateway => "gateway".to_owned(),
            Self::Redis { setting, unix } => format!("Redis, {}, {}", setting.words(), via(unix)),
            Self::Memcached { unix } => format!("memcached, {}", via(unix)),
        }
    }

    /// Which program it takes, if that is not installed.
    fn missing(self) -> Option<(&'static str, String)> {
        let program = match self {
            Self::Gateway => return None,
            Self::Redis { .. } => "redis-server",
            Self::Memcached { .. } => "memcached",
        };
        redis::installed(program, program).err().map(|why| (program, why))
    }

    fn spec(self, options: &Options, number: usize) -> Spec {
        let dir = options.directory.join(format!("server{number}"));
        match self {
            Self::Gateway => Spec::Gateway { program: options.program.clone(), dir, size: STORE },
            Self::Redis { setting, .. } => Spec::Redis { dir, setting },
            Self::Memcached { unix } => Spec::Memcached { dir: unix.then_some(dir) },
        }
    }

    const fn is_unix(self) -> bool {
        matches!(self, Self::Redis { unix: true, .. } | Self::Memcached { unix: true })
    }

    /// memcached is asked for the first one, as it knows one command only.
    fn knows(self, case: &Case) -> bool {
        !matches!(self, Self::Memcached { .. }) || case.name == CASES[0].name
    }

    fn ask(self, words: &[&str]) -> Ask {
        if matches!(self, Self::Memcached { .. }) {
            Ask::memcached(words, VALUE)
        } else {
            Ask::resp(words, VALUE)
        }
    }
}

/// What one burst is of.
#[derive(Clone, Copy, Debug)]
struct Cell {
    case: usize,
    clients: u64,
    /// Its number among the servers.
    who: usize,
}

/// What is measured of each cell, from one burst.
const METRICS: [Metric; 2] = [Metric::Latency, Metric::Rate];

/// A command's rate, or latency, from so many clients.
fn key(case: &Case, clients: u64, who: Who, metric: Metric) -> Key {
    Key { op: case.name.to_owned(), x: clients, series: who.name(), metric }
}

/// A server, and its clients.
struct Served {
    who: Who,
    spec: Spec,
    pair: Pair<Programs, Clients>,
}

struct Bench {
    samples: Samples,
    lost: Lost,
    servers: Vec<Served>,
    settings: serde_json::Map<String, serde_json::Value>,
    keys: u64,
    fields: u64,
    burst: Duration,
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: there is no room for what the disk is measured with.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort::Options { effort, only, program } = &options.common;
    let ms = Duration::from_millis;
    let rounds = effort.pick(1, 6, 9);
    let server = |(number, who): (usize, Who)| Served {
        who,
        spec: who.spec(options, number),
        pair: Pair::new(Launcher::here(program)),
    };
    let mut bench = Bench {
        samples: Samples::new(*effort, only),
        lost: Lost::default(),
        servers: Who::all().into_iter().enumerate().map(server).collect(),
        settings: serde_json::Map::new(),
        keys: effort.pick(100, 5_000, 20_000),
        fields: effort.pick(1_000, 10_000, 100_000),
        burst: effort.pick(ms(10), ms(100), ms(300)),
    };
    let mut cells = Vec::new();
    for (case, what) in CASES.iter().enumerate() {
        for &clients in if case == 0 { &SWEEP[..] } else { &BOTH } {
            let all = bench.servers.iter().enumerate().filter(|(_, server)| server.who.knows(what));
            cells.extend(all.map(|(who, _)| Cell { case, clients, who }));
        }
    }
    for metric in METRICS {
        bench.samples.control(&key(&CASES[0], BOTH[1], Who::Gateway, metric));
    }
    let steps = rounds * cells.len() as u64;
    let mut bare = [BareFile::new(&options.directory.join("bare"))?];
    while bench.samples.another(rounds, bars)? {
        let time = bench.burst;
        bench.samples.burst_in(
            || State::Any,
            &disk(),
            || {
                let micros = write_at_once(&mut bare, time)?;
                Ok(vec![micros.len() as f64 / micros.iter().sum::<f64>()])
            },
        )?;
        for cell in bench.samples.order(cells.len()) {
            let cell = cells[cell];
            let who = bench.servers[cell.who].who;
            let name = format!("{}, {}, {}", CASES[cell.case].name, cell.clients, who.name());
            progress(bench.samples.step(), steps, &name);
            let keys = METRICS.map(|metric| key(&CASES[cell.case], cell.clients, who, metric));
            if !bench.samples.wants_any(&keys) {
                continue;
            }
            if let Some((program, why)) = who.missing() {
                bench.lost.add(program, why);
            } else if let Err(why) = bench.cell(cell, &keys) {
                bench.lost.add(name, why);
            }
        }
        for Served { who, pair, .. } in &mut bench.servers {
            pair.close().unwrap_or_else(|why| bench.lost.add(who.name(), why));
        }
    }
    let kind = redis::file_system(&options.directory).unwrap_or_else(|| "unknown".into());
    let params = serde_json::json!({
        "rounds": bench.samples.blocks(), "keys": bench.keys, "fields of the large hash": bench.fields,
        "bytes of a value": VALUE, "file system": kind, "pinned": programs::pinned(),
        "burst_ms": bench.burst.as_millis() as u64,
        "x": CASES.map(|case| (case.name, "clients")).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "load": "closed: each client has one command under way, and sends the next one when it is answered",
        "cores": "the threads of each server, ours and peers' alike, may run on all of them, as its users start it; clients keep to theirs",
        "cpu": "of a program: all of its threads; its application: those that are not an RNIC's engine",
        "fdatasync": file::WORDS, "settings": bench.settings,
    });
    Report::new("gateway", params, &bench.samples, bars, |_| Vec::new(), bench.lost.lines())
}

impl Bench {
    /// A burst of it, by a server that was filled.
    fn cell(&mut self, cell: Cell, keys: &[Key]) -> Result<(), String> {
        let case = &CASES[cell.case];
        let Served { who, spec, pair } = &mut self.servers[cell.who];
        let who = *who;
        let space = match case.finds {
            Finds::Keys | Finds::KeysToDelete => self.keys,
            Finds::OneHash => self.fields,
            Finds::Nothing => FRESH,
        };
        let fill = |case: &Case, space| Burst::Fill { ask: who.ask(case.fill), space };
        let load = Burst::Load {
            ask: who.ask(case.words),
            space,
            once: case.finds == Finds::KeysToDelete,
            clients: cell.clients as usize,
            time: self.burst,
        };
        let (keys_of, settings, fields) = (self.keys, &mut self.settings, self.fields);
        self.samples.bursts(keys, || {
            if !pair.is_open() {
                let here = pair.open(spec, &who.is_unix())?;
                settings.extend(here.into_iter().map(|started| (who.name(), started.said)));
                for (n, filled) in CASES.iter().enumerate() {
                    let is_first = CASES[..n].iter().all(|other| other.fill != filled.fill);
                    let space = if filled.finds == Finds::OneHash { fields } else { keys_of };
                    if is_first
                        && filled.finds != Finds::KeysToDelete
                        && !filled.fill.is_empty()
                        && who.knows(filled)
                    {
                        pair.burst(Some(&Fate::Run), &fill(filled, space))?;
                    }
                }
            }
            if case.finds == Finds::KeysToDelete {
                pair.burst(Some(&Fate::Run), &fill(case, space))?;
            }
            let ran = pair.burst(Some(&Fate::Run), &load)?;
            let operations = ran.values.micros.len() as u64;
            let rate = ran.clone().map(|found: Found| vec![found.rate / 1e6]);
            Ok(vec![ran.map(|found| found.micros).into(), (rate, operations).into()])
        })
    }
}

/// Syncs of the disk itself.
fn disk() -> Key {
    Key { op: "fdatasync".to_owned(), x: 0, series: "this disk".to_owned(), metric: Metric::Rate }
}

/// Redis beside the gateway, where it is asked over TCP as well.
fn bars(samples: &Samples) -> Vec<Bar> {
    let clients = BOTH[1];
    let bar = |(what, redis): (&Case, Who)| {
        let rate = |who: Who| key(what, clients, who, Metric::Rate);
        let ratio = samples.ratio(&rate(redis), &rate(Who::Gateway));
        let name = format!("{}, {clients} clients: {} / gateway", what.name, redis.name());
        Bar::new(name, ratio, Sense::AtMost, LIMIT)
    };
    let redis = || Who::all().into_iter().filter(|who| matches!(who, Who::Redis { unix: false, .. }));
    CASES.iter().flat_map(|what| redis().map(move |who| (what, who))).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_lacks_a_value_where_one_side_is_missing() {
        let mut samples = Samples::default();
        let redis = Who::Redis { setting: SETTINGS[0], unix: false };
        for (block, rate) in [400.0, 100.0].into_iter().enumerate() {
            samples.block(block as u64);
            for (who, rate) in [(Who::Gateway, 100.0), (redis, rate)] {
                samples.add(&key(&CASES[0], BOTH[1], who, Metric::Rate), State::Any, State::Any, [rate]);
            }
        }
        let bars = bars(&samples);
        assert_eq!(bars.len(), CASES.len() * SETTINGS.len(), "over TCP, and not of memcached");
        let value = bars[0].value.expect("both sides of both rounds");
        assert!((value - 2.0).abs() < 0.01, "{value}");
        assert_eq!(bars[1].value, None, "nobody ran it");
    }

    #[test]
    fn memcached_is_asked_for_what_it_knows() {
        let memcached = Who::Memcached { unix: true };
        let known: Vec<_> = CASES.iter().filter(|case| memcached.knows(case)).map(|case| case.name).collect();
        assert_eq!(known, ["SET"]);
        assert!(CASES.iter().all(|case| Who::Gateway.knows(case)));
    }
}
