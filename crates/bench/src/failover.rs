//! `rem bench failover`: for how long a store on several members takes no write when its primary is lost.
//!
//! Real processes of this program at its default settings on this host, one client that writes one small value after the
//! other, and one fault of the primary per round: it is killed, it is stopped (SIGSTOP), its disk answers no more (its file
//! system, on a loop device, is frozen), its link goes down (each member has a network namespace of its own then, on a cable to a bridge
//! where the client is). What is measured is the time from the fault to the first write that is acknowledged
//! after it; of what was under way when the fault came the client is told that nobody knows, which counts as no write.

use std::io::BufRead as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_kv_live::{ConnectOptions, Error, MemberStats, PutOptions, Role, Store};
use remanence_verbs::Context;

use crate::netns::Star;
use crate::process::Server;
use crate::report::{Bar, Kind, Report, Row, Sense};

/// Members of the store.
const MEMBERS: usize = 3;
/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the file system that is frozen.
const DISK: &str = "2G";

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that serves: this one, or another release.
    pub program: PathBuf,
    /// Where members keep what they have: a directory, which is used and left empty.
    pub directory: PathBuf,
    /// Rounds of each fault.
    pub rounds: usize,
    /// Further arguments of each member.
    pub more: Vec<String>,
}

/// What happens to the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
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

    /// What is asked, in milliseconds.
    const fn limit(self) -> f64 {
        match self {
            Self::Kill | Self::Stop => 500.0,
            Self::Disk | Self::Link => 2000.0,
        }
    }
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: a member does not start, or the store does not come up.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let (mut rows, mut bars, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let of = (Fault::ALL.len() * options.rounds) as u64;
    let mut done = 0;
    for fault in Fault::ALL {
        let mut gaps = Vec::new();
        for _ in 0..options.rounds {
            progress(done, of, fault.name());
            done += 1;
            match round(options, fault) {
                Ok(gap) => gaps.push(gap.as_secs_f64() * 1e3),
                Err(Failed::Skip(why)) => {
                    skipped.push(format!("{}: {why}", fault.name()));
                    break;
                }
                Err(Failed::Broken(why)) => return Err(format!("{}: {why}", fault.name())),
            }
        }
        gaps.sort_by(f64::total_cmp);
        let worst = gaps.last().copied();
        if let (Some(worst), Some(p50)) = (worst, gaps.get(gaps.len() / 2)) {
            let metric = ("unavailability", "ms");
            let row = Row::single(fault.name(), 0, format!("{MEMBERS} members"), metric, *p50, Kind::Live);
            let n = gaps.len() as u64;
            rows.push(Row { p99: Some(worst), bursts: n, n, ..row });
        }
        let name = format!("without a write: primary {}, worst, ms", fault.name());
        bars.push(Bar::new(name, worst, Sense::AtMost, fault.limit()));
    }
    let params = serde_json::json!({
        "members": MEMBERS, "rounds": options.rounds, "arguments": options.more,
        "unavailability": "from the fault to the first write that is acknowledged after it; p99 is the worst",
    });
    Ok(Report::of_rows("failover", params, rows, bars, skipped))
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

fn round(options: &Options, fault: Fault) -> Result<Duration, Failed> {
    let disks = match fault {
        Fault::Disk => Some(Disks::new(&options.directory).map_err(Failed::Skip)?),
        Fault::Kill | Fault::Stop | Fault::Link => None,
    };
    let star = match fault {
        Fault::Link => Some(Star::new(MEMBERS).map_err(Failed::Skip)?),
        Fault::Kill | Fault::Stop | Fault::Disk => None,
    };
    let around = Around { disks: disks.as_ref(), star: star.as_ref() };
    let measured = around.within(|| {
        let mut members = Members::start(options, around)?;
        members.measure(fault, around).map_err(|e| members.with_why(e))
    });
    drop((disks, star));
    for n in 0..MEMBERS {
        // What is there is this bench's.
        let _ = std::fs::remove_dir_all(options.directory.join(format!("m{n}")));
    }
    Ok(measured?)
}

/// What members are put into for a fault.
#[derive(Clone, Copy)]
struct Around<'a> {
    disks: Option<&'a Disks>,
    star: Option<&'a Star>,
}

impl Around<'_> {
    /// Where the client is.
    fn within<T: Send>(self, act: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
        let Some(star) = self.star else { return act() };
        let act = || star.enter().and_then(|()| act());
        std::thread::scope(|scope| scope.spawn(act).join()).map_err(|_| "the bench failed".to_owned())?
    }
}

fn run_tool(program: &str, args: &[&str]) -> Result<(), String> {
    let said = Command::new(program).args(args).stdin(Stdio::null()).output();
    let said = said.map_err(|e| format!("{program} is needed: {e}"))?;
    if said.status.success() {
        return Ok(());
    }
    Err(format!(
        "{program} {}: {} (file systems of one's own take root)",
        args.join(" "),
        String::from_utf8_lossy(&said.stderr).trim()
    ))
}

/// A file system of its own for each member, on a loop device.
struct Disks {
    images: Vec<PathBuf>,
    mounts: Vec<PathBuf>,
    /// Which of them is frozen, and a process that thaws it when its input ends: when we do, in whatever way. Nothing else would, and
    /// who waits for a file system cannot be killed.
    frozen: Mutex<Option<(usize, Child)>>,
}

impl Disks {
    fn new(directory: &Path) -> Result<Self, String> {
        let mut this = Self { images: Vec::new(), mounts: Vec::new(), frozen: Mutex::new(None) };
        for n in 0..MEMBERS {
            let (image, mount) = (directory.join(format!("disk{n}")), directory.join(format!("m{n}")));
            let (file, at) = (image.display().to_string(), mount.display().to_string());
            std::fs::create_dir_all(&mount).map_err(|e| format!("{at}: {e}"))?;
            run_tool("truncate", &["-s", DISK, &file])?;
            this.images.push(image);
            run_tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=1", &file])?;
            run_tool("mount", &["-o", "loop", &file, &at])?;
            this.mounts.push(mount);
        }
        Ok(this)
    }

    fn freeze(&self, n: usize) -> Result<(), String> {
        let mut guard = Command::new("sh");
        guard.args(["-c", "read -r _; exec fsfreeze -u \"$0\""]).arg(&self.mounts[n]);
        // Ctrl-C is for us; it goes when we have gone.
        let guard = guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let guard = guard.spawn().map_err(|e| format!("sh is needed: {e}"))?;
        *self.frozen.lock().expect("one thread") = Some((n, guard));
        run_tool("fsfreeze", &["-f", &self.mounts[n].display().to_string()])
    }

    fn thaw(&self) {
        if let Some((n, mut guard)) = self.frozen.lock().expect("one thread").take() {
            let _ = run_tool("fsfreeze", &["-u", &self.mounts[n].display().to_string()]);
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.thaw();
        for mount in &self.mounts {
            let _ = run_tool("umount", &[&mount.display().to_string()]);
        }
        for image in &self.images {
            let _ = std::fs::remove_file(image);
        }
    }
}

struct Members {
    addrs: Vec<SocketAddr>,
    processes: Vec<Server>,
    context: Context,
    options: Options,
}

impl Members {
    fn start(options: &Options, around: Around<'_>) -> Result<Self, String> {
        use std::sync::atomic::AtomicU32;
        static ROUND: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id() % 60_000 + 256;
        let first = 1 + ROUND.fetch_add(1, Ordering::Relaxed) * 4 % 240;
        let ip =
            |n: u32| IpAddr::V4(Ipv4Addr::new(127, (process >> 8) as u8, process as u8, (first + n) as u8));
        let (own, ips): (IpAddr, Vec<IpAddr>) = match around.star {
            Some(_) => (Star::HUB, (0..MEMBERS).map(Star::end).collect()),
            None => (ip(0), (1..=MEMBERS as u32).map(ip).collect()),
        };
        let addrs: Vec<SocketAddr> = ips.into_iter().map(|ip| SocketAddr::new(ip, 7471)).collect();
        let context = Context::open(remanence_verbs::Options::udp(own)).map_err(|e| e.to_string())?;
        let mut this = Self { addrs, processes: Vec::new(), context, options: options.clone() };
        let list = this.addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        for n in 0..MEMBERS {
            let mut command = match around.star {
                Some(star) => star.command(n, &options.program.display().to_string()),
                None => Command::new(&options.program),
            };
            command.args(["kv", "serve"]).arg(options.directory.join(format!("m{n}")).join("member"));
            command.args(["--listen", &this.addrs[n].to_string(), "--members", &list]);
            // Nobody else is on that network.
            command.args(around.star.map(|_| "--insecure")).args(&options.more);
            let _ = std::fs::create_dir_all(options.directory.join(format!("m{n}")));
            let (process, _, lines) = Server::start(command)?;
            this.processes.push(process);
            // It says whatever changes, and somebody must read it.
            std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
        }
        Ok(this)
    }

    fn with_why(&self, error: String) -> String {
        format!("{error} ({} members with {:?})", self.processes.len(), self.options.more)
    }

    fn store(&self) -> Result<Store, String> {
        let options = ConnectOptions::default().patience(PATIENCE);
        Store::connect_members(&self.context, &self.addrs, options).map_err(|e| e.to_string())
    }

    /// Waits until all have images, and the primary does without none. Which one it is.
    fn whole(&self) -> Result<usize, String> {
        let mut store = self.store()?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let said: Vec<Option<MemberStats>> =
                store.members().map_err(|e| e.to_string())?.into_iter().map(|(_, said)| said.ok()).collect();
            let primary =
                said.iter().position(|said| said.as_ref().is_some_and(|said| said.role == Role::Primary));
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

    fn measure(&mut self, fault: Fault, around: Around<'_>) -> Result<Duration, String> {
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
                while count(after) < 20 {
                    if begin.elapsed() > PATIENCE || writing.is_finished() {
                        return Err(format!("no writes for {} s", begin.elapsed().as_secs()));
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            };
            let measured = goes_on(Instant::now()).and_then(|()| {
                let pid = self.processes[primary].id().to_string();
                let at = Instant::now();
                match fault {
                    Fault::Kill => run_tool("kill", &["-KILL", &pid])?,
                    Fault::Stop => run_tool("kill", &["-STOP", &pid])?,
                    Fault::Disk => around.disks.ok_or("no disks")?.freeze(primary)?,
                    Fault::Link => around.star.ok_or("no network")?.cut(primary)?,
                }
                // What ends while the fault is being made ended before it, perhaps; what begins later did not.
                let made = Instant::now();
                goes_on(made).map(|()| at)
            });
            stop.store(true, Ordering::Release);
            // Whoever was stopped goes on, or nobody could end it in order.
            let pid = self.processes[primary].id().to_string();
            match fault {
                Fault::Kill | Fault::Link => {}
                Fault::Stop => drop(run_tool("kill", &["-CONT", &pid])),
                Fault::Disk => around.disks.into_iter().for_each(Disks::thaw),
            }
            let wrote = writing.join().map_err(|_| "the writer failed".to_owned())?;
            let at = match measured {
                Ok(at) => at,
                // That is an answer, too.
                Err(_) if wrote.is_ok() => return Ok(PATIENCE),
                Err(e) => return Err(format!("{e}: {}", wrote.err().unwrap_or_default())),
            };
            let writes = writes.lock().expect("whole");
            // The longest time without a write that lies, in part at least, behind the fault.
            let mut ends = vec![at];
            ends.extend(writes.iter().map(|(_, ended)| *ended).filter(|ended| *ended >= at));
            let gap = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            Ok(gap)
        })
    }
}
