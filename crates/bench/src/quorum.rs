//! `rem bench quorum`: what a durable append to a log on several servers waits for.
//!
//! Three servers that hold one log, of which two acknowledge, beside three that hold one each: processes of this program at its
//! default settings, on files in one directory, reached over loopback; whoever appends is a process as well. Appends to each server alone say which one is the
//! second-fastest, which is what a quorum of two can be compared with; then one append after the other is made to all three, while all
//! of them answer, and while the third one is stopped (SIGSTOP). All of it is interleaved, in another order each round.
//!
//! The servers share one disk and two cores here, as they would not elsewhere. What that costs is measured in the same run, in two
//! ways that know of no quorum: appends to two logs of one server each, begun at once and waited for together, which is the least
//! that two of three can take here; and bare, a block that is written and synced to one file, and to two files at once (`limits/file.rs`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use remanence_remote::Reactor;
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::{AppendError, Group, GroupError, Method, SessionConnection, connect, group};
use remanence_verbs::Context;
use serde::{Deserialize, Serialize};

use crate::effort;
use crate::erda::tcp::At;
use crate::limits::file::{self, BareFile, write_at_once};
use crate::programs::{self, Fate, Programs, Spec, Started};
use crate::report::{Bar, Report, Sense};
use crate::role::{Counters, Launcher, Lost, Pair, Ran, Role};
use crate::samples::{Key, Metric, Samples};
use crate::stats::Estimate;

/// Servers of the log.
const SERVERS: usize = 3;
/// How many of them acknowledge.
const ACKS: u16 = 2;
/// Bytes of a record's payload: the first one has the bars.
const PAYLOADS: [usize; 2] = [64, 4096];
/// Appends before a burst counts: for what is made on demand, and for learning who drives.
const WARM: u32 = 50;
/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is asked: the quorum beside the second-fastest server alone.
const LIMIT: f64 = 1.3;
/// And beside as many servers alone, to which somebody appends at once.
const BOUND: f64 = 1.1;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
    /// The program that serves: this one, or another release.
    pub program: PathBuf,
    /// Where servers keep what they have: a directory, which is used and left empty.
    pub directory: PathBuf,
    /// Further arguments of each server.
    pub more: Vec<String>,
}

/// What one append after the other is made to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Series {
    /// A server by itself.
    Alone(usize),
    /// As many as acknowledge, each by itself and all at once.
    AtOnce,
    /// One append after the other to all three servers, while all of them answer.
    All,
    /// All three, of which the last one is stopped.
    Stopped,
    /// So many files, written and synced at once, with no server.
    Bare(usize),
}

impl Series {
    const ALL: [Self; SERVERS + 5] = [
        Self::Alone(0),
        Self::Alone(1),
        Self::Alone(2),
        Self::AtOnce,
        Self::All,
        Self::Stopped,
        Self::Bare(1),
        Self::Bare(2),
    ];

    fn key(self, payload: usize) -> Key {
        let series = match self {
            Self::Alone(n) => format!("server {} alone", n + 1),
            Self::AtOnce => format!("{ACKS} alone, at once"),
            Self::All => format!("{ACKS} of {SERVERS}"),
            Self::Stopped => format!("{ACKS} of {SERVERS}, the third stopped"),
            Self::Bare(1) => "bare, one file".to_owned(),
            Self::Bare(n) => format!("bare, {n} files at once"),
        };
        Key { op: "append".into(), x: payload as u64, series, metric: Metric::Latency }
    }
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: it was stopped.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let ms = Duration::from_millis;
    let effort::Options { effort, only, program } = &options.common;
    let (rounds, burst) = effort.pick((1_u64, ms(5)), (12, ms(150)), (60, ms(300)));
    let process = std::process::id() % 60_000 + 256;
    let ip = |n: u8| IpAddr::V4(Ipv4Addr::new(127, (process >> 8) as u8, process as u8, n));
    let servers = Spec::Ours((0..2 * SERVERS).map(|n| served(options, n, ip(n as u8 + 2))).collect());
    let writer = WriterSpec { own: ip(1), directory: options.directory.clone() };
    let mut pair: Pair<Programs, Writer> = Pair::new(Launcher::here(program));
    let mut survives = serde_json::Value::Null;
    let (mut samples, mut lost) = (Samples::new(*effort, only), Lost::default());
    samples.control(&Series::Alone(0).key(PAYLOADS[0]));
    let cells: Vec<(usize, Series)> =
        PAYLOADS.into_iter().flat_map(|payload| Series::ALL.map(|series| (payload, series))).collect();
    let total = rounds * cells.len() as u64;
    while samples.another(rounds, bars)? {
        for cell in samples.order(cells.len()) {
            let (payload, series) = cells[cell];
            let key = series.key(payload);
            progress(samples.step(), total, &key.series);
            let measured = samples.burst(&key, || {
                if !pair.is_open() {
                    survives = pair.open(&servers, &writer)?[0].said["survives"].clone();
                }
                burst_of(&mut pair, series, payload, burst)
            });
            measured.unwrap_or_else(|why| lost.add(format!("{} {payload}", key.series), why));
        }
    }
    let params = serde_json::json!({
        "payloads": PAYLOADS, "servers": SERVERS, "acks": ACKS, "rounds": samples.blocks(),
        "burst_ms": burst.as_millis() as u64, "arguments": options.more, "pinned": programs::pinned(),
        "survives": survives, "bare": file::WORDS,
        format!("{ACKS} alone, at once / the second-fastest alone"): bound(&samples),
        "cpu": "of the servers: all threads of all six; their application: those that are not an RNIC's engine",
    });
    Report::new("quorum", params, &samples, bars, |_| Vec::new(), lost.lines())
}

/// How a server is started, and where it keeps what it has.
fn served(options: &Options, number: usize, at: IpAddr) -> (Vec<String>, PathBuf) {
    let dir = options.directory.join(format!("server{number}"));
    let (program, file) = (options.program.display().to_string(), dir.join("log").display().to_string());
    let line = [&program, "log", "serve", &file, "--listen", &at.to_string()].map(str::to_owned);
    (line.into_iter().chain(options.more.iter().cloned()).collect(), dir)
}

/// A burst of it, behind which all servers have everything.
fn burst_of(
    pair: &mut Pair<Programs, Writer>,
    series: Series,
    payload: usize,
    time: Duration,
) -> Result<Ran<Vec<f64>>, String> {
    // The last of the three that hold one log.
    let fate = if series == Series::Stopped { Fate::Stopped(2 * SERVERS - 1) } else { Fate::Run };
    if matches!(series, Series::All | Series::Stopped) {
        pair.burst(Some(&Fate::Run), &Burst::CatchUp)?;
    }
    pair.burst(Some(&fate), &Burst::Append { series, payload, time })
}

/// The second-fastest of the servers by themselves, if each was measured.
fn second_fastest(samples: &Samples) -> Option<Key> {
    let alone = (0..SERVERS).map(|n| Series::Alone(n).key(PAYLOADS[0]));
    let mut alone =
        alone.map(|key| Some((samples.median(&key)?, key))).collect::<Option<Vec<(f64, Key)>>>()?;
    alone.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(alone.swap_remove(1).1)
}

fn bars(samples: &Samples) -> Vec<Bar> {
    let second = second_fastest(samples);
    let at_once = Series::AtOnce.key(PAYLOADS[0]);
    let bar = |series: Series, under: Option<&Key>, what: &str, limit: f64| {
        let over = series.key(PAYLOADS[0]);
        let value = under.and_then(|under| samples.ratio(&over, under));
        Bar::new(
            format!("durable append, {}, p50 / that of {what}", over.series),
            value,
            Sense::AtMost,
            limit,
        )
    };
    let alone = |series: Series| bar(series, second.as_ref(), "the second-fastest server alone", LIMIT);
    let bound = bar(Series::Stopped, Some(&at_once), &at_once.series, BOUND);
    vec![alone(Series::Stopped), alone(Series::All), bound]
}

/// What this machine allows: as many servers as acknowledge, at once, beside the second-fastest one alone.
fn bound(samples: &Samples) -> Option<Estimate> {
    samples.ratio(&Series::AtOnce.key(PAYLOADS[0]), &second_fastest(samples)?)
}

/// Where whoever appends is, and where the files are that are written bare.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriterSpec {
    own: IpAddr,
    directory: PathBuf,
}

/// What it does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// Wait until all three have what two acknowledged.
    CatchUp,
    /// Append for a while, or write bare.
    Append { series: Series, payload: usize, time: Duration },
}

/// Who appends: to each log by itself, and to the one of three servers.
pub(crate) struct Writer {
    alone: Vec<Group<SessionConnection>>,
    all: Option<Group<SessionConnection>>,
    bare: Vec<BareFile>,
    context: Context,
}

impl Role for Writer {
    const WORD: &'static str = "quorum-writer";
    type Spec = WriterSpec;
    type Here = ();
    type Peer = Vec<Started>;
    type Burst = Burst;
    type Values = Vec<f64>;

    fn open(spec: WriterSpec) -> Result<(Self, ()), String> {
        let context = Context::open(remanence_verbs::Options::udp(spec.own)).map_err(|e| e.to_string())?;
        let bare = (0..ACKS).map(|n| BareFile::new(&spec.directory.join(format!("bare{n}"))));
        Ok((Self { alone: Vec::new(), all: None, bare: bare.collect::<Result<_, _>>()?, context }, ()))
    }

    fn connect(&mut self, servers: Vec<Started>) -> Result<(), String> {
        let address = |server: &Started| match server.at[..] {
            [At::Tcp(at)] => Ok(at),
            _ => Err("a server does not say where it is".to_owned()),
        };
        let addrs = servers.iter().map(address).collect::<Result<Vec<SocketAddr>, _>>()?;
        let (apart, together) = addrs.split_at(SERVERS);
        for addr in apart {
            self.alone.push(open(&self.context, std::slice::from_ref(addr), 1)?);
        }
        self.all = Some(open(&self.context, together, ACKS)?);
        Ok(())
    }

    fn run(&mut self, burst: Burst) -> Result<Vec<f64>, String> {
        let all = self.all.as_mut().ok_or("nobody is connected")?;
        match burst {
            Burst::CatchUp => caught_up(all).map(|()| Vec::new()),
            Burst::Append { series: Series::Alone(n), payload, time } => {
                append(&mut self.alone[n..=n], payload, time)
            }
            Burst::Append { series: Series::AtOnce, payload, time } => {
                append(&mut self.alone[..usize::from(ACKS)], payload, time)
            }
            Burst::Append { series: Series::Bare(n), time, .. } => write_at_once(&mut self.bare[..n], time),
            Burst::Append { payload, time, .. } => append(std::slice::from_mut(all), payload, time),
        }
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.context)
    }
}

fn open(context: &Context, servers: &[SocketAddr], acks: u16) -> Result<Group<SessionConnection>, String> {
    let remote = remanence_remote::Options::default().patience(PATIENCE);
    let reactor = Reactor::new(context).map_err(|e| e.to_string())?;
    let to = |server: &SocketAddr| {
        (server.to_string(), connect(&reactor, *server, remote.clone(), Method::Cheapest))
    };
    let mut name = [1; 16];
    name[..4].copy_from_slice(&std::process::id().to_le_bytes());
    name[4..6].copy_from_slice(&servers[0].port().to_le_bytes());
    let options = group::Options::new(1, Uuid(name)).acks(Some(acks)).patience(PATIENCE);
    Group::open(servers.iter().map(to).collect(), &options).map(|(group, _)| group).map_err(|e| e.to_string())
}

/// Waits until every server has what was appended.
fn caught_up(group: &mut Group<SessionConnection>) -> Result<(), String> {
    let begin = Instant::now();
    while !group.machine().behind().is_empty() {
        if begin.elapsed() > PATIENCE {
            return Err(format!("a server does not catch up: {:?}", group.machine().behind()));
        }
        group.pause().map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Appends to each of these logs at once, again and again for a while; microseconds until the last one has acknowledged.
fn append(
    logs: &mut [Group<SessionConnection>],
    payload: usize,
    burst: Duration,
) -> Result<Vec<f64>, String> {
    let said = |e: GroupError| e.to_string();
    let record = vec![0x5a; payload];
    let mut values = Vec::with_capacity(4096);
    let mut warm = WARM;
    let mut begin = Instant::now();
    let entered = begin;
    while begin.elapsed() < burst || values.is_empty() {
        let (start, mut was_full) = (Instant::now(), false);
        for log in &mut *logs {
            while let Err(error) = log.begin_append(&record) {
                if !matches!(error, GroupError::Append(AppendError::Full { .. }))
                    || entered.elapsed() > PATIENCE
                {
                    return Err(said(error));
                }
                was_full = true;
                log.begin_trim(log.acknowledged()).map_err(said)?;
                log.pause().map_err(said)?;
            }
        }
        for log in &mut *logs {
            log.wait(log.next()).map_err(said)?;
        }
        let took = start.elapsed();
        // Half of what there is room for is kept for a server that is stopped.
        for log in logs.iter_mut().filter(|log| log.is_half_full()) {
            log.begin_trim(log.acknowledged()).map_err(said)?;
        }
        if warm > 0 {
            warm -= 1;
            begin = Instant::now();
        } else if !was_full {
            values.push(took.as_nanos() as f64 / 1e3);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::State;

    #[test]
    fn a_quorum_is_compared_with_the_second_fastest_server() {
        let mut samples = Samples::default();
        let mut add = |series: Series, value: f64| {
            for block in 0..6 {
                samples.block(block);
                samples.add(&series.key(PAYLOADS[0]), State::Near, State::Near, [value; 100]);
            }
        };
        add(Series::Alone(0), 30.0);
        add(Series::Alone(1), 10.0);
        add(Series::Alone(2), 20.0);
        add(Series::Stopped, 24.0);
        add(Series::All, 28.0);
        add(Series::AtOnce, 23.0);
        let [stopped, all, ours] = &bars(&samples)[..] else { panic!("three bars") };
        assert!(stopped.holds && !all.holds && ours.holds);
        let is = |bar: &Bar, value: f64| bar.value.is_some_and(|found| (found - value).abs() < 0.01);
        assert!(is(stopped, 1.2), "{stopped:?}");
        assert!(is(ours, 24.0 / 23.0), "{ours:?}");
        assert!(bound(&samples).is_some_and(|bound| (bound.value() - 1.15).abs() < 0.01));
    }

    #[test]
    fn what_was_not_measured_holds_nothing() {
        assert!(bars(&Samples::default()).iter().all(|bar| bar.value.is_none() && !bar.holds));
    }
}
