//! `rem bench failover`: for how long a store on several members takes no write when its primary is lost.
//!
//! Real processes of this program at its default settings on this host, one client in a process of its own that writes one small value after
//! the other, and one fault of the primary for each takeover: it is killed, it is stopped (SIGSTOP), its disk answers no more (its file
//! system, on a loop device, is frozen), its link goes down (each member has a network namespace of its own then, on a cable to a bridge
//! where the client is). What is measured is the time from the fault to the first write that is acknowledged
//! after it; of what was under way when the fault came the client is told that nobody knows, which counts as no write. Each takeover is a
//! burst, of members that were started for it; a block has one of each fault in random order, and that of a primary that is killed twice. The
//! figure is the time line of one of each: what is written around the fault, and how long it takes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use remanence_kv_live::{ConnectOptions, Error, MemberStats, PutOptions, Role as MemberRole, Store};
use remanence_verbs::Context;
use serde::{Deserialize, Serialize};

use crate::effort;
use crate::machine::State;
use crate::netns::{self, Star};
use crate::plot::{self, Axis, Panel, Point};
use crate::process::run_tool;
use crate::programs::{self, Fate, Programs, Spec, Started, Stopped, signal};
use crate::report::{Bar, Kind, Report, Row, Sense};
use crate::role::{Counters, Launcher, Lost, Pair, Ran, Role};
use crate::samples::{Key, Metric, Samples};

/// Members of the store.
const MEMBERS: usize = 3;
/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the file system that is frozen.
const DISK: &str = "2G";
/// A fault that could not be measured so often is left out from then on.
const TRIES: usize = 3;
/// Writes before the fault, and after it, that a takeover waits for.
const WRITES: usize = 150;
/// Milliseconds: of a slice of the time line, and of what it has before the fault and behind the first write after it.
const SLICE: u64 = 10;
const AROUND: u64 = 200;
/// Milliseconds of a time line at most.
const DRAWN: u64 = 10_000;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
    /// The program that serves: this one, or another release.
    pub program: PathBuf,
    /// Where members keep what they have: a directory, which is used and left empty.
    pub directory: PathBuf,
    /// Takeovers by each fault; by the effort if nothing is said.
    pub rounds: Option<u64>,
    /// Further arguments of each member.
    pub more: Vec<String>,
}

/// What happens to the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    Kill,
    Stop,
    Disk,
    Link,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Disk, Self::Link];

    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Stop => "stopped",
            Self::Disk => "with a disk that hangs",
            Self::Link => "with a link that is down",
        }
    }

    fn key(self) -> Key {
        Key { op: self.name().to_owned(), x: 0, series: series(), metric: Metric::Unavailability }
    }

    fn over_time(self) -> String {
        format!("primary {}, over time", self.name())
    }

    /// What is asked, in milliseconds.
    const fn limit(self) -> f64 {
        match self {
            Self::Kill | Self::Stop => 500.0,
            Self::Disk | Self::Link => 2000.0,
        }
    }
}

fn series() -> String {
    format!("{MEMBERS} members")
}

/// A fault, and what became of it so far.
struct Tried {
    fault: Fault,
    takeovers: Vec<Found>,
    failed: usize,
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: no takeover was measured.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort::Options { effort, only, .. } = &options.common;
    let rounds = options.rounds.unwrap_or(effort.pick(1, 6, 10));
    let (mut samples, mut lost) = (Samples::new(*effort, only), Lost::default());
    samples.control(&Fault::Kill.key());
    let mut faults = Fault::ALL.map(|fault| Tried { fault, takeovers: Vec::new(), failed: 0 });
    let total = rounds * faults.len() as u64;
    while samples.another(rounds, bars)? {
        for n in samples.order(faults.len()) {
            let Tried { fault, takeovers, failed } = &mut faults[n];
            progress(samples.step(), total, fault.name());
            if *failed >= TRIES {
                continue;
            }
            // What a takeover waits for has nothing to do with how far apart two cores are.
            let measured = samples.burst_in(
                || State::Any,
                &fault.key(),
                || match takeover(options, *fault) {
                    Ok(ran) => {
                        takeovers.push(ran.values.clone());
                        Ok((ran.map(|found| vec![found.gap_ms]), 0_u64))
                    }
                    Err(Failed::Skip(why)) => {
                        *failed = TRIES;
                        Err(why)
                    }
                    Err(Failed::Broken(why)) => {
                        *failed += 1;
                        Err(why)
                    }
                },
            );
            measured.unwrap_or_else(|why| lost.add(fault.name(), why));
        }
    }
    let mut gaps = serde_json::Map::new();
    for Tried { fault, takeovers, .. } in &mut faults {
        takeovers.sort_by(|a, b| a.gap_ms.total_cmp(&b.gap_ms));
        let Some(typical) = takeovers.get(takeovers.len() / 2) else { continue };
        let rows = timeline(*fault, typical);
        rows.iter().for_each(|row| samples.stands_for(&fault.key(), &Key::of(row)));
        samples.singles(rows);
        gaps.insert(fault.over_time(), typical.gap_ms.into());
    }
    let params = serde_json::json!({
        "members": MEMBERS, "rounds": samples.blocks(), "arguments": options.more, "pinned": programs::pinned(),
        "unavailability": "from the fault to the first write that is acknowledged after it",
        "over time": "of each fault the takeover in the middle, by milliseconds without a write; the fault comes at 200 ms; one client, which writes \
                      1 ms after it is answered",
        "without a write, ms": gaps,
        "x": Fault::ALL.map(|fault| (fault.over_time(), "ms")).into_iter().collect::<BTreeMap<_, _>>(),
    });
    Report::new("failover", params, &samples, bars, |_| Vec::new(), lost.lines())
}

/// What is asked of the mean, and of the longest one that there was.
fn bars(samples: &Samples) -> Vec<Bar> {
    let both = |fault: Fault| {
        let name = format!("without a write: primary {}, ms", fault.name());
        let (key, limit) = (fault.key(), fault.limit());
        let longest = samples.most(&key).into_iter().chain(samples.most(&key.again())).reduce(f64::max);
        [
            Bar::new(&name[..], samples.level(&key), Sense::AtMost, limit),
            Bar::new(format!("{name}: the longest"), longest, Sense::AtMost, limit),
        ]
    };
    Fault::ALL.into_iter().flat_map(both).collect()
}

/// Writes in each slice of time, and the longest of them, where there is one. What was before the first write is no part of it.
fn timeline(fault: Fault, found: &Found) -> Vec<Row> {
    let slice = |at: f64| ((at + AROUND as f64) / SLICE as f64).floor();
    let ends = ((2 * AROUND + found.gap_ms as u64).min(DRAWN) / SLICE) as f64;
    let first = found.writes.first().map_or(ends, |(at, _)| slice(*at) + 1.0).max(0.0);
    let last = found.writes.last().map_or(0.0, |(at, _)| slice(*at)).min(ends);
    let mut rows = Vec::new();
    let mut from = first;
    while from < last {
        let within = found.writes.iter().filter(|(at, _)| slice(*at) == from);
        let (n, longest) = within.fold((0_u64, 0.0), |(n, most), (_, took)| (n + 1, took.max(most)));
        let mut row = |metric, unit, value| {
            let row = Row::single(
                fault.over_time(),
                from as u64 * SLICE,
                series(),
                (metric, unit),
                value,
                Kind::Live,
            );
            rows.push(Row { n, ..row });
        };
        row("rate", "op/s", (n * 1000 / SLICE) as f64);
        if n > 0 {
            row("latency", "ms", longest);
        }
        from += 1.0;
    }
    rows
}

/// Draws the time line of each fault: throughput, and the longest write, over time.
///
/// # Errors
/// One sentence if it cannot be written, or there is nothing to draw.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    let panels = panels(report);
    plot::draw_panels(report, &panels, panels.len().div_ceil(2), path)
}

fn panels(report: &Report) -> Vec<Panel> {
    let panel = |fault: Fault, metric: &str, words: &str, unit: &str, log: bool| {
        let op = fault.over_time();
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.op == op && row.metric == metric).collect();
        let gap = report.params["without a write, ms"][&op].as_f64()?;
        let from = AROUND as f64;
        let mut series = plot::lines(&rows);
        for (_, points) in series.iter_mut().filter(|_| metric == "latency") {
            // Nothing was written in between, and so nothing took any time.
            let is_after = |point: &Point| point.x + SLICE as f64 >= from + gap;
            let after = points.iter().position(is_after).unwrap_or(points.len());
            points.insert(after, Point::at(from, f64::NAN));
        }
        (!rows.is_empty()).then(|| Panel {
            caption: format!("Primary {}: {words}", fault.name()),
            x: Axis::Linear(format!("ms; the fault comes at {AROUND}")),
            unit: unit.to_owned(),
            log,
            series,
            shaded: vec![(from, (from + gap).min(DRAWN as f64))],
            shade: "no write is acknowledged",
        })
    };
    let rate = Fault::ALL.map(|fault| panel(fault, "rate", "throughput", "writes a second", false));
    let latency = Fault::ALL.map(|fault| panel(fault, "latency", "the longest write", "ms", true));
    rate.into_iter().chain(latency).flatten().collect()
}

enum Failed {
    Skip(String),
    Broken(String),
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

/// One takeover, of members that are started for it.
fn takeover(options: &Options, fault: Fault) -> Result<Ran<Found>, Failed> {
    let disks = (fault == Fault::Disk).then(|| Disks::new(&options.directory));
    let disks = disks.transpose().map_err(Failed::Skip)?;
    let star = (fault == Fault::Link).then(|| Star::new(MEMBERS)).transpose().map_err(Failed::Skip)?;
    let (members, writer) = specs(options, disks.as_ref(), star.as_ref());
    // Processes of its own: the client of a network stays there.
    let mut pair: Pair<Programs, Writer> =
        Pair::new(Launcher::here(&options.common.program)).patience(4 * PATIENCE);
    pair.open(&members, &writer)?;
    let ran = pair.burst(Some(&Fate::MayEnd), &fault)?;
    pair.close()?;
    Ok(ran)
}

/// Members, and who writes to them.
fn specs(options: &Options, disks: Option<&Disks>, star: Option<&Star>) -> (Spec, WriterSpec) {
    static TAKEOVER: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id() % 60_000 + 256;
    let first = 1 + TAKEOVER.fetch_add(1, Ordering::Relaxed) * 4 % 240;
    let ip = |n: u32| IpAddr::V4(Ipv4Addr::new(127, (process >> 8) as u8, process as u8, (first + n) as u8));
    let (own, ips): (IpAddr, Vec<IpAddr>) = match star {
        Some(_) => (Star::HUB, (0..MEMBERS).map(Star::end).collect()),
        None => (ip(0), (1..=MEMBERS as u32).map(ip).collect()),
    };
    let members: Vec<SocketAddr> = ips.into_iter().map(|ip| SocketAddr::new(ip, 7471)).collect();
    let list = members.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let member = |(n, at): (usize, &SocketAddr)| {
        let dir = mount(&options.directory, n);
        let (program, file) =
            (options.program.display().to_string(), dir.join("member").display().to_string());
        let mut line = star.map_or_else(Vec::new, |star| star.prefix(n));
        line.extend(
            [&program, "kv", "serve", &file, "--listen", &at.to_string(), "--members", &list]
                .map(str::to_owned),
        );
        // Nobody else is on that network.
        line.extend(star.map(|_| "--insecure".to_owned()));
        line.extend(options.more.iter().cloned());
        (line, dir)
    };
    let commands = Spec::Ours(members.iter().enumerate().map(member).collect());
    let mounts = disks.map(|disks| disks.mounts.clone()).unwrap_or_default();
    (commands, WriterSpec { own, members, mounts, hub: star.map(|star| star.hub().to_owned()) })
}

/// Where a member keeps what it has.
fn mount(directory: &Path, n: usize) -> PathBuf {
    directory.join(format!("m{n}"))
}

/// A file system of its own for each member, on a loop device.
struct Disks {
    images: Vec<PathBuf>,
    mounts: Vec<PathBuf>,
}

impl Disks {
    fn new(directory: &Path) -> Result<Self, String> {
        let mut this = Self { images: Vec::new(), mounts: Vec::new() };
        let root = |why: String| format!("{why} (file systems of one's own take root)");
        for n in 0..MEMBERS {
            let (image, mount) = (directory.join(format!("disk{n}")), mount(directory, n));
            let (file, at) = (image.display().to_string(), mount.display().to_string());
            std::fs::create_dir_all(&mount).map_err(|e| format!("{at}: {e}"))?;
            run_tool("truncate", &["-s", DISK, &file])?;
            this.images.push(image);
            run_tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=1", &file]).map_err(root)?;
            run_tool("mount", &["-o", "loop", &file, &at]).map_err(root)?;
            this.mounts.push(mount);
        }
        Ok(this)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for mount in &self.mounts {
            let at = mount.display().to_string();
            // Its client has died, if it is frozen still; and whoever uses it is about to end.
            let _ = run_tool("fsfreeze", &["-u", &at]);
            let _ = run_tool("umount", &["-l", &at]);
        }
        for image in &self.images {
            let _ = std::fs::remove_file(image);
        }
    }
}

/// A file system that is frozen, and a process that thaws it when its input ends: when we do, in whatever way. Nothing else would, and
/// who waits for a file system cannot be killed.
struct Frozen {
    mount: String,
    guard: Child,
}

impl Frozen {
    fn new(mount: &Path) -> Result<Self, String> {
        let mut guard = Command::new("sh");
        guard.args(["-c", "read -r _; exec fsfreeze -u \"$0\""]).arg(mount);
        // Ctrl-C is for us; it goes when we have gone.
        let guard = guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let guard = guard.spawn().map_err(|e| format!("sh is needed: {e}"))?;
        let this = Self { mount: mount.display().to_string(), guard };
        run_tool("fsfreeze", &["-f", &this.mount]).map(|()| this)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = run_tool("fsfreeze", &["-u", &self.mount]);
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Where whoever writes is, and what it needs for a fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriterSpec {
    own: IpAddr,
    members: Vec<SocketAddr>,
    /// The file systems that can be frozen.
    mounts: Vec<PathBuf>,
    /// The network whose cables can be pulled.
    hub: Option<String>,
}

/// What one takeover was like.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Milliseconds without a write.
    gap_ms: f64,
    /// Each write that was acknowledged: when, in milliseconds from the fault on, and how many it took.
    writes: Vec<(f64, f64)>,
}

/// Who writes, and does the primary harm.
pub(crate) struct Writer {
    spec: WriterSpec,
    processes: Vec<u32>,
    context: Context,
}

impl Role for Writer {
    const WORD: &'static str = "failover-writer";
    type Spec = WriterSpec;
    type Here = ();
    type Peer = Vec<Started>;
    type Burst = Fault;
    type Values = Found;

    fn open(spec: WriterSpec) -> Result<(Self, ()), String> {
        spec.hub.as_deref().map_or(Ok(()), netns::enter)?;
        let context = Context::open(remanence_verbs::Options::udp(spec.own)).map_err(|e| e.to_string())?;
        Ok((Self { spec, processes: Vec::new(), context }, ()))
    }

    fn connect(&mut self, members: Vec<Started>) -> Result<(), String> {
        self.processes = members.into_iter().map(|member| member.id).collect();
        Ok(())
    }

    fn run(&mut self, fault: Fault) -> Result<Found, String> {
        self.measure(fault)
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.context)
    }
}

impl Writer {
    fn store(&self) -> Result<Store, String> {
        let options = ConnectOptions::default().patience(PATIENCE);
        Store::connect_members(&self.context, &self.spec.members, options).map_err(|e| e.to_string())
    }

    /// Waits until all have images, and the primary does without none. Which one it is.
    fn whole(&self) -> Result<usize, String> {
        let mut store = self.store()?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let said: Vec<Option<MemberStats>> =
                store.members().map_err(|e| e.to_string())?.into_iter().map(|(_, said)| said.ok()).collect();
            let primary = said
                .iter()
                .position(|said| said.as_ref().is_some_and(|said| said.role == MemberRole::Primary));
            let all =
                said.iter().all(|said| said.as_ref().is_some_and(|said| said.complete && said.acks > 0));
            if let Some(primary) = primary.filter(|_| all)
                && said[primary].as_ref().is_some_and(|said| said.lost.is_empty() && said.of == 0)
            {
                return Ok(primary);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("the members do not find together".into())
    }

    fn measure(&self, fault: Fault) -> Result<Found, String> {
        let primary = self.whole()?;
        let mut store = self.store()?;
        // When each acknowledged write began and ended.
        let (stop, writes) = (AtomicBool::new(false), Mutex::new(Vec::<(Instant, Instant)>::new()));
        std::thread::scope(|scope| {
            let (stop, writes) = (&stop, &writes);
            let writing = scope.spawn(move || -> Result<(), String> {
                for n in 0_u64.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    let begin = Instant::now();
                    match store.put(&(n % 100).to_le_bytes(), &n.to_le_bytes(), PutOptions::default()) {
                        Ok(_) => writes.lock().expect("whole").push((begin, Instant::now())),
                        Err(Error::Unknown(_)) => {}
                        Err(error) => return Err(error.to_string()),
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let count = |after: Instant| {
                writes.lock().expect("whole").iter().filter(|(_, ended)| *ended > after).count()
            };
            let goes_on = |after: Instant| {
                let begin = Instant::now();
                while count(after) < WRITES {
                    if begin.elapsed() > PATIENCE || writing.is_finished() {
                        return Err(format!("no writes for {} s", begin.elapsed().as_secs()));
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            };
            let harmed = goes_on(Instant::now()).and_then(|()| {
                let at = Instant::now();
                self.harm(fault, primary).map(|harm| (at, harm))
            });
            // What ends while the fault is being made ended before it, perhaps; what begins later did not.
            let goes_on = harmed.is_ok() && goes_on(Instant::now()).is_ok();
            stop.store(true, Ordering::Release);
            // Whoever was stopped goes on, or nobody could end it in order.
            let harmed = harmed.map(|(at, _)| at);
            let wrote = writing.join().map_err(|_| "the writer failed".to_owned())?;
            let at = match (harmed, wrote) {
                (Ok(at), Ok(())) => at,
                (Ok(_), Err(e)) | (Err(e), Ok(())) => return Err(e),
                (Err(a), Err(b)) => return Err(format!("{a}: {b}")),
            };
            let writes = writes.lock().expect("whole");
            // The longest time without a write that lies, in part at least, behind the fault.
            let mut ends = vec![at];
            ends.extend(writes.iter().map(|(_, ended)| *ended).filter(|ended| *ended >= at));
            let gap = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            // That nobody could write again is an answer, too.
            let gap = if goes_on { gap } else { PATIENCE };
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let since = |ended: Instant| {
                ms(ended.saturating_duration_since(at)) - ms(at.saturating_duration_since(ended))
            };
            let writes = writes.iter().map(|(began, ended)| (since(*ended), ms(*ended - *began))).collect();
            Ok(Found { gap_ms: ms(gap), writes })
        })
    }

    /// Does it. What is returned takes back what can be, when it goes.
    fn harm(&self, fault: Fault, primary: usize) -> Result<(Option<Stopped>, Option<Frozen>), String> {
        let id = *self.processes.get(primary).ok_or("there is no such member")?;
        match fault {
            Fault::Kill => signal(id, "KILL").map(|()| (None, None)),
            Fault::Stop => Ok((Some(Stopped::new(id)?), None)),
            Fault::Disk => {
                Ok((None, Some(Frozen::new(self.spec.mounts.get(primary).ok_or("there are no disks")?)?)))
            }
            Fault::Link => netns::cut(self.spec.hub.as_deref().ok_or("there is no network")?, primary)
                .map(|()| (None, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_is_judged_by_its_mean_and_by_the_longest() {
        let mut samples = Samples::default();
        for block in 0..6 {
            samples.block(block);
            let gap = if block == 3 { 510.0 } else { 250.0 };
            samples.add(&Fault::Kill.key(), State::Any, State::Any, [gap]);
        }
        let found = bars(&samples);
        let said: Vec<_> = found.iter().map(|bar| (bar.holds, bar.value.is_some())).collect();
        assert_eq!(said[..4], [(true, true), (false, true), (false, false), (false, false)], "{found:?}");
        assert_eq!(found.len(), 2 * Fault::ALL.len());
    }

    /// A write each 2 ms, and none from the fault on for 300 ms.
    fn killed() -> Found {
        let at = (-120..0).step_by(2).chain((300..420).step_by(2));
        Found {
            gap_ms: 300.0,
            writes: at.map(|at| (f64::from(at), if at == 300 { 299.0 } else { 1.0 })).collect(),
        }
    }

    #[test]
    fn a_time_line_has_what_was_written_around_the_fault() {
        let rows = timeline(Fault::Kill, &killed());
        let of = |metric: &str| -> Vec<(u64, f64)> {
            rows.iter().filter(|row| row.metric == metric).map(|row| (row.x, row.p50)).collect()
        };
        let rate = of("rate");
        // What was before the first write is not told of, nor the slice in which the last one was.
        assert_eq!((rate.first(), rate.last()), (Some(&(90, 500.0)), Some(&(600, 500.0))));
        assert!(rate.iter().all(|(x, rate)| (*rate == 0.0) == (200..500).contains(x)), "{rate:?}");
        let latency = of("latency");
        assert_eq!(latency.len(), rate.iter().filter(|(_, rate)| *rate > 0.0).count());
        assert!(latency.contains(&(500, 299.0)), "{latency:?}");
        assert!(timeline(Fault::Stop, &Found::default()).is_empty());
    }

    #[test]
    fn the_figure_is_the_time_line_with_the_gap_shaded() {
        let gaps = serde_json::json!({ Fault::Kill.over_time(): 300.0 });
        let params = serde_json::json!({ "without a write, ms": gaps });
        let report =
            Report::of_rows("failover", params, timeline(Fault::Kill, &killed()), Vec::new(), Vec::new());
        let panels = panels(&report);
        assert_eq!(panels.len(), 2, "what was not measured has none");
        assert!(panels.iter().all(|panel| panel.shaded == [(200.0, 500.0)]));
        let longest = &panels[1].series[0].1;
        let at = longest.iter().position(|point| point.y.is_nan()).expect("the line is broken");
        assert!(longest[at - 1].x <= 200.0 && longest[at + 1].x >= 490.0, "{longest:?}");
        let file = std::env::temp_dir().join(format!("rem-bench-failover-{}.svg", std::process::id()));
        draw(&report, &file).expect("it is drawn");
        let svg = std::fs::read_to_string(&file).expect("it is there");
        std::fs::remove_file(&file).expect("it is ours");
        for part in [
            "Primary killed: throughput",
            "writes a second",
            "ms; the fault comes at 200",
            "no write is acknowledged",
        ] {
            assert!(svg.contains(part), "no {part}");
        }
    }
}
