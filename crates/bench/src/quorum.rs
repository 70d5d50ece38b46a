//! `rem bench quorum`: what a durable append to a log on several servers waits for.
//!
//! Three servers that hold one log, of which two acknowledge, beside three that hold one each: processes of this program at its
//! default settings, on files in one directory, reached over loopback. Appends to each server alone say which one is the
//! second-fastest, which is what a quorum of two can be compared with; then one append after the other is made to all three, while all
//! of them answer, and while the third one is stopped (SIGSTOP). All of it is interleaved, in another order each round.
//!
//! The servers share one disk here, as they would not elsewhere. What that costs is measured bare, in the same run: a block
//! written and synced to one file, and to two files at once (`limits/file.rs`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use remanence_remote::Reactor;
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::{AppendError, Group, GroupError, Method, SessionConnection, connect, group};
use remanence_verbs::Context;

use crate::effort::Effort;
use crate::limits::file::{self, BareFile, write_at_once};
use crate::process::Server;
use crate::report::{Bar, Report, Sense};
use crate::samples::{Key, Metric, Samples};

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

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that serves: this one, or another release.
    pub program: PathBuf,
    /// Where servers keep what they have: a directory, which is used and left empty.
    pub directory: PathBuf,
    /// How much is measured.
    pub effort: Effort,
    /// Further arguments of each server.
    pub more: Vec<String>,
}

/// What one append after the other is made to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Series {
    /// A server by itself.
    Alone(usize),
    /// One append after the other to all three servers, while all of them answer.
    All,
    /// All three, of which the last one is stopped.
    Stopped,
    /// So many files, written and synced at once, with no server.
    Bare(usize),
}

impl Series {
    const ALL: [Self; SERVERS + 4] = [
        Self::Alone(0),
        Self::Alone(1),
        Self::Alone(2),
        Self::All,
        Self::Stopped,
        Self::Bare(1),
        Self::Bare(2),
    ];

    fn key(self, payload: usize) -> Key {
        let series = match self {
            Self::Alone(n) => format!("server {} alone", n + 1),
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
/// One sentence: a server does not start, or a log takes no records.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let ms = Duration::from_millis;
    let (rounds, burst) = options.effort.pick((1_u64, ms(5)), (12, ms(150)), (60, ms(300)));
    let servers = Servers::start(options)?;
    let context = Context::open(remanence_verbs::Options::udp(servers.own)).map_err(|e| e.to_string())?;
    let (apart, together) = servers.addrs.split_at(SERVERS);
    let mut alone = Vec::new();
    for addr in apart {
        alone.push(open(&context, std::slice::from_ref(addr), 1)?);
    }
    let mut all = open(&context, together, ACKS)?;
    let mut bare = (0..ACKS)
        .map(|n| BareFile::new(&options.directory.join(format!("bare{n}"))))
        .collect::<Result<Vec<_>, _>>()?;
    let mut samples = Samples::default();
    samples.control(&Series::Alone(0).key(PAYLOADS[0]));
    let cells: Vec<(usize, Series)> =
        PAYLOADS.into_iter().flat_map(|payload| Series::ALL.map(|series| (payload, series))).collect();
    let total = rounds * cells.len() as u64;
    let mut round = 0;
    while options.effort.another(round, rounds, || bars(&samples)) {
        samples.block(round);
        for (n, cell) in samples.order(cells.len()).into_iter().enumerate() {
            let (payload, series) = cells[cell];
            let key = series.key(payload);
            progress(round * cells.len() as u64 + n as u64, total, &key.series);
            match series {
                Series::Alone(n) => {
                    samples.burst(options.effort, &key, || append(&mut alone[n], payload, burst))?;
                }
                Series::All => {
                    caught_up(&mut all)?;
                    samples.burst(options.effort, &key, || append(&mut all, payload, burst))?;
                }
                Series::Stopped => {
                    caught_up(&mut all)?;
                    let _stopped = Paused::new(&servers.processes[SERVERS + 2])?;
                    samples.burst(options.effort, &key, || append(&mut all, payload, burst))?;
                }
                Series::Bare(n) => {
                    samples.burst(options.effort, &key, || write_at_once(&mut bare[..n], burst))?;
                }
            }
        }
        round += 1;
    }
    let params = serde_json::json!({
        "payloads": PAYLOADS, "servers": SERVERS, "acks": ACKS, "rounds": round,
        "burst_ms": burst.as_millis() as u64, "arguments": options.more,
        "survives": servers.survives, "bare": file::WORDS,
    });
    let bars = bars(&samples);
    Ok(Report::new("quorum", options.effort, params, &samples, bars, Vec::new()))
}

/// The servers by themselves, the fastest first, as far as they were measured.
fn by_speed(samples: &Samples) -> Vec<Key> {
    let mut alone: Vec<(f64, Key)> = (0..SERVERS)
        .map(|n| Series::Alone(n).key(PAYLOADS[0]))
        .filter_map(|key| Some((samples.median(&key)?, key)))
        .collect();
    alone.sort_by(|a, b| a.0.total_cmp(&b.0));
    alone.into_iter().map(|(_, key)| key).collect()
}

fn bars(samples: &Samples) -> Vec<Bar> {
    let fastest = by_speed(samples);
    let second = fastest.get(1);
    let bar = |series: Series| {
        let value = second.and_then(|second| samples.ratio(&series.key(PAYLOADS[0]), second));
        let name = format!(
            "durable append, {}, p50 / that of the second-fastest server alone",
            series.key(PAYLOADS[0]).series
        );
        Bar::new(name, value, Sense::AtMost, LIMIT)
    };
    // What a second disk would have spared it.
    let shared = second.and_then(|second| {
        let of = [Series::Stopped, Series::Bare(2), Series::Bare(1)].map(|series| series.key(PAYLOADS[0]));
        let keys = [&of[0], second, &of[1], &of[2]];
        samples.combined(keys, |[stopped, second, two, one]| stopped / (second + two - one))
    });
    let name = format!(
        "the same, {}, less what bare files at once cost more than one",
        Series::Stopped.key(PAYLOADS[0]).series
    );
    vec![bar(Series::Stopped), bar(Series::All), Bar::new(name, shared, Sense::AtMost, LIMIT)]
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

/// Appends for a while; microseconds each.
fn append(group: &mut Group<SessionConnection>, payload: usize, burst: Duration) -> Result<Vec<f64>, String> {
    let said = |e: GroupError| e.to_string();
    let record = vec![0x5a; payload];
    let mut values = Vec::with_capacity(4096);
    let mut warm = WARM;
    let mut begin = Instant::now();
    let entered = begin;
    while begin.elapsed() < burst || values.is_empty() {
        let start = Instant::now();
        match group.append(&record) {
            Ok(_) => {}
            Err(GroupError::Append(AppendError::Full { .. })) if start.duration_since(entered) < PATIENCE => {
                let below = group.acknowledged();
                group.begin_trim(below).map_err(said)?;
                group.pause().map_err(said)?;
                continue;
            }
            Err(error) => return Err(said(error)),
        }
        let took = start.elapsed();
        // Half of what there is room for is kept for a server that is stopped.
        if group.is_half_full() {
            group.begin_trim(group.acknowledged()).map_err(said)?;
        }
        if warm > 0 {
            warm -= 1;
            begin = Instant::now();
        } else {
            values.push(took.as_nanos() as f64 / 1e3);
        }
    }
    Ok(values)
}

/// A process that is stopped, and goes on when this goes.
struct Paused(String);

impl Paused {
    fn new(server: &Server) -> Result<Self, String> {
        let this = Self(server.id().to_string());
        this.signal("-STOP").map(|()| this)
    }

    fn signal(&self, signal: &str) -> Result<(), String> {
        let said = Command::new("kill").args([signal, &self.0]).status();
        match said {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("kill {signal}: {status}")),
            Err(e) => Err(format!("kill is needed: {e}")),
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // Nobody could end it in order otherwise.
        let _ = self.signal("-CONT");
    }
}

/// Processes that serve: three by themselves, and three of one log.
struct Servers {
    own: IpAddr,
    addrs: Vec<SocketAddr>,
    processes: Vec<Server>,
    survives: String,
    files: Vec<PathBuf>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.processes.clear();
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Servers {
    fn start(options: &Options) -> Result<Self, String> {
        let process = std::process::id() % 60_000 + 256;
        let ip = |n: u8| IpAddr::V4(Ipv4Addr::new(127, (process >> 8) as u8, process as u8, n));
        let mut this = Self {
            own: ip(1),
            addrs: Vec::new(),
            processes: Vec::new(),
            survives: String::new(),
            files: Vec::new(),
        };
        for n in 0..2 * SERVERS {
            let file = options.directory.join(format!("log{n}"));
            this.files.push(file.clone());
            this.serve(options, ip(n as u8 + 2), &file)?;
        }
        Ok(this)
    }

    fn serve(&mut self, options: &Options, at: IpAddr, file: &Path) -> Result<(), String> {
        let mut command = Command::new(&options.program);
        command.args(["log", "serve"]).arg(file).args(["--listen", &at.to_string()]).args(&options.more);
        let (process, ready, _) = Server::start(command)?;
        self.processes.push(process);
        let address = ready["address"].as_str().and_then(|text| text.parse().ok());
        self.addrs.push(address.ok_or("a server does not say where it is")?);
        self.survives = ready["survives"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }
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
        add(Series::Bare(1), 40.0);
        add(Series::Bare(2), 44.0);
        let [stopped, all, shared] = &bars(&samples)[..] else { panic!("three bars") };
        assert!(stopped.holds && !all.holds);
        assert!(shared.value.is_some_and(|value| (value - 1.0).abs() < 0.01), "{shared:?}");
        assert!(stopped.value.is_some_and(|value| (value - 1.2).abs() < 0.01), "{stopped:?}");
    }

    #[test]
    fn what_was_not_measured_holds_nothing() {
        assert!(bars(&Samples::default()).iter().all(|bar| bar.value.is_none() && !bar.holds));
    }
}
