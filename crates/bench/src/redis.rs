//! What a user would pick instead: Redis and memcached from the distribution's packages, started as they come, on the same
//! medium. And redis-benchmark, which `rem bench erda` runs against them and against our gateway alike.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::erda::tcp::{At, Memcached, Redis};
use crate::peers::{free_port, version};
use crate::process::{self, Directory, Running};

/// Bytes of Redis' log behind which it is rewritten.
const LOG_MAX: u64 = 512 << 20;

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// When Redis syncs its log, if it has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Fsync {
    NoLog,
    Always,
    EverySecond,
    No,
}

impl Fsync {
    /// In the words of its configuration.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::NoLog => "appendonly no",
            Self::Always => "appendfsync always",
            Self::EverySecond => "appendfsync everysec",
            Self::No => "appendfsync no",
        }
    }
}

/// How Redis is configured. It listens on TCP and a Unix socket at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) fsync: Fsync,
    /// Threads that read and write for the one that carries out.
    pub(crate) io_threads: bool,
}

impl Setting {
    pub(crate) const fn plain(fsync: Fsync) -> Self {
        Self { fsync, io_threads: false }
    }

    pub(crate) const fn threaded(fsync: Fsync) -> Self {
        Self { fsync, io_threads: true }
    }

    /// For the name of a series.
    pub(crate) fn words(self) -> String {
        let threads = if self.io_threads { format!(", io-threads {IO_THREADS}") } else { String::new() };
        format!("{}{threads}", self.fsync.words())
    }
}

/// With more than there are processors they would take turns.
const IO_THREADS: &str = "2";

/// A server process, which ends when this goes.
pub(crate) struct Process {
    child: Running,
    at: At,
    socket: Option<PathBuf>,
    settings: String,
    /// The directory of its log, of Redis with one.
    log: Option<PathBuf>,
    /// What it wrote is taken away behind it.
    _dir: Option<Directory>,
}

impl Process {
    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Where it is first to be found.
    pub(crate) const fn at(&self) -> &At {
        &self.at
    }

    /// Its Unix socket, of a server that has one besides.
    pub(crate) fn socket(&self) -> Option<At> {
        self.socket.clone().map(At::Unix)
    }

    /// Version and command line.
    pub(crate) fn settings(&self) -> &str {
        &self.settings
    }

    /// Has Redis rewrite a log that has become long, between bursts, so that nobody is charged for that: a full run of half an hour writes more than the
    /// memory has that it may lie in.
    pub(crate) fn shorten_log(&self) -> Result<(), String> {
        self.shorten_log_to(LOG_MAX)
    }

    fn shorten_log_to(&self, max: u64) -> Result<(), String> {
        let Some(log) = self.log.as_deref().filter(|log| bytes_in(log) > max) else { return Ok(()) };
        Redis::connect(&self.at, false, "Redis")?.rewrite_log()?;
        let until = Instant::now() + PATIENCE;
        while bytes_in(log) > max {
            if Instant::now() > until {
                return Err(format!("Redis does not rewrite its log in {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Where a program of that name is, as the shell would find it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Where it is, or how to get it.
pub(crate) fn installed(program: &str, package: &str) -> Result<PathBuf, String> {
    find(program).ok_or_else(|| format!("{program} is not installed; `apt-get install {package}` brings it"))
}

/// Bytes of the files of a directory.
fn bytes_in(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// Redis with its log and its Unix socket in `dir`, which is made and goes with it.
pub(crate) fn redis(dir: PathBuf, setting: Setting) -> Result<Process, String> {
    let program = installed("redis-server", "redis-server")?;
    std::fs::create_dir_all(&dir).map_err(|e| format!("{} cannot be made: {e}", dir.display()))?;
    let (port, socket) = (free_port()?, dir.join("socket"));
    let mut command = Command::new(program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]);
    command.arg("--unixsocket").arg(&socket);
    match setting.fsync {
        Fsync::NoLog => command.args(["--appendonly", "no"]),
        // A rewrite of the log in the middle would be charged to whoever is measured then.
        logged => command
            .args(["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"])
            .args(logged.words().split(' ').zip(["--", ""]).map(|(word, dashes)| format!("{dashes}{word}"))),
    };
    if setting.io_threads {
        command.args(["--io-threads", IO_THREADS, "--io-threads-do-reads", "yes"]);
    }
    command.arg("--dir").arg(&dir);
    let log = (setting.fsync != Fsync::NoLog).then(|| dir.join("appendonlydir"));
    let at = At::Tcp((Ipv4Addr::LOCALHOST, port).into());
    let mut process = start(command, at, Some(dir), |to| {
        Redis::connect(to, false, "Redis").and_then(|mut redis| redis.ping())
    })?;
    (process.socket, process.log) = (Some(socket), log);
    Ok(process)
}

/// memcached, which keeps nothing, on TCP or, if `socket` names one, on a Unix socket in a directory of its own.
pub(crate) fn memcached(socket: Option<PathBuf>) -> Result<Process, String> {
    let program = installed("memcached", "memcached")?;
    let mut command = Command::new(program);
    command.args(["-m", "256", "-t", "4"]);
    // It refuses to be root without a name to become.
    if std::env::var_os("HOME").is_some_and(|home| home == "/root") {
        command.args(["-u", "root"]);
    }
    let (at, dir) = if let Some(dir) = socket {
        std::fs::create_dir_all(&dir).map_err(|e| format!("{} cannot be made: {e}", dir.display()))?;
        let socket = dir.join("socket");
        command.arg("-s").arg(&socket);
        (At::Unix(socket), Some(dir))
    } else {
        let port = free_port()?;
        command.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
        (At::Tcp((Ipv4Addr::LOCALHOST, port).into()), None)
    };
    // Who connects before it answers has found it.
    start(command, at, dir, |to| Memcached::connect(to, false).map(drop))
}

/// Our gateway to a store that is served elsewhere, as its users start it.
pub(crate) fn gateway(program: &Path, store: SocketAddr) -> Result<Process, String> {
    listening(program, &[&store.to_string()], None)
}

/// Our gateway with a store of its own in `dir`, which is made.
pub(crate) fn gateway_and_store(program: &Path, dir: PathBuf, size: u64) -> Result<Process, String> {
    std::fs::create_dir_all(&dir).map_err(|e| format!("{} cannot be made: {e}", dir.display()))?;
    let file = dir.join("store").display().to_string();
    listening(program, &["--store", &file, "--size", &size.to_string()], Some(dir))
}

fn listening(program: &Path, store: &[&str], dir: Option<PathBuf>) -> Result<Process, String> {
    let known = Command::new(program)
        .args(["kv", "gateway", "--help"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !known {
        return Err("this release of rem has no `rem kv gateway`".into());
    }
    let addr: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()?).into();
    let mut command = Command::new(program);
    command.args(["kv", "gateway"]).args(store).args(["--listen", &addr.to_string()]);
    let ready = |to: &At| Redis::connect(to, false, "gateway").and_then(|mut redis| redis.ping());
    start(command, addr.into(), dir, ready)
}

fn start(
    mut command: Command,
    at: At,
    dir: Option<PathBuf>,
    ready: impl Fn(&At) -> Result<(), String>,
) -> Result<Process, String> {
    let path = command.get_program().to_string_lossy().into_owned();
    let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = command.get_args().map(|word| match word.to_string_lossy() {
        word if word.is_empty() => "''".to_owned(),
        word => word.into_owned(),
    });
    let settings = format!("{}; {name} {}", version(&path, "--version"), words.collect::<Vec<_>>().join(" "));
    let child = process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
    let child = child.map_err(|e| format!("{name} cannot be started: {e}"))?;
    let (child, dir) = (Running(child), dir.map(Directory));
    let mut process = Process { child, at, socket: None, log: None, settings, _dir: dir };
    let begin = Instant::now();
    // None of them says when it listens: who answers does.
    while ready(&process.at).is_err() {
        if let Ok(Some(status)) = process.child.0.try_wait() {
            let mut said = String::new();
            process.child.0.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
            let last = said.trim().lines().last().unwrap_or_default();
            return Err(format!("{name} ended at once ({status}) {last}").trim_end().to_owned());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("{name} did not answer within {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Nobody reads it from here on, and a full pipe would stop it.
    process.child.0.stderr.take();
    Ok(process)
}

/// How redis-benchmark is run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Shape {
    pub(crate) clients: u32,
    pub(crate) pipeline: u32,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [
        Self { clients: 1, pipeline: 1 },
        Self { clients: 1, pipeline: 16 },
        Self { clients: 50, pipeline: 1 },
        Self { clients: 50, pipeline: 16 },
    ];

    pub(crate) fn words(self) -> String {
        format!("-c {} -P {}", self.clients, self.pipeline)
    }
}

/// What it says of one test.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Said {
    /// `SET` or `GET`.
    pub(crate) test: String,
    /// Requests a second.
    pub(crate) rate: f64,
    /// Microseconds, 50 and 99 of 100.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Runs SET and then GET of `value` bytes over `keys` keys. What took no time that it could tell is left out.
pub(crate) fn redis_benchmark(
    to: &At,
    shape: Shape,
    value: usize,
    keys: u64,
    requests: u64,
) -> Result<Vec<Said>, String> {
    let program = installed("redis-benchmark", "redis-tools")?;
    let mut command = Command::new(program);
    match to {
        At::Tcp(addr) => command.args(["-h", &addr.ip().to_string(), "-p", &addr.port().to_string()]),
        At::Unix(socket) => command.arg("-s").arg(socket),
    };
    command.arg("--csv");
    command.args(["-c", &shape.clients.to_string(), "-P", &shape.pipeline.to_string()]);
    command.args(["-r", &keys.to_string(), "-n", &requests.to_string()]);
    command.args(["-t", "set,get", "-d", &value.to_string()]);
    let child = process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()));
    let child = child.map_err(|e| format!("redis-benchmark cannot be started: {e}"))?;
    let ended = Running(child).finish(6 * PATIENCE);
    let (_, text) = ended.map_err(|why| format!("redis-benchmark {}: {why}", shape.words()))?;
    let said: Vec<Said> = text.lines().filter_map(parse).collect();
    Ok(said)
}

/// `"SET","rps","avg","min","p50","p95","p99","max"`, milliseconds.
fn parse(line: &str) -> Option<Said> {
    let fields: Vec<&str> = line.split(',').map(|field| field.trim_matches('"')).collect();
    // A run that was too short to be timed has a rate of `inf`.
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok().filter(|number| number.is_finite());
    let (rate, p50, p99) = (number(1)?, number(4)?, number(6)?);
    Some(Said { test: fields[0].to_owned(), rate, p50_us: p50 * 1e3, p99_us: p99 * 1e3 })
}

/// What file system a directory is on, by the mount table.
pub(crate) fn file_system(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mut best: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(at), Some(kind)) = (fields.next(), fields.next()) else { continue };
        let len = at.len();
        if dir.starts_with(at) && best.as_ref().is_none_or(|(longest, _)| *longest <= len) {
            best = Some((len, kind.to_owned()));
        }
    }
    best.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_benchmark_says_is_understood() {
        let head = r#""test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms""#;
        assert_eq!(parse(head), None);
        let said =
            parse(r#""GET","66225.17","0.461","0.112","0.455","0.583","0.679","1.311""#).expect("a row");
        assert_eq!((said.test.as_str(), said.rate), ("GET", 66225.17));
        assert_eq!(parse(r#""GET","inf","0.4","0.1","0.4","0.5","0.6","1.3""#), None);
        assert!((said.p50_us - 455.0).abs() < 1e-6 && (said.p99_us - 679.0).abs() < 1e-6);
    }

    #[test]
    fn a_program_that_is_missing_is_named_with_its_package() {
        let why = installed("no-such-program", "its-package").unwrap_err();
        assert!(why.contains("no-such-program") && why.contains("apt-get install its-package"), "{why}");
    }

    #[test]
    fn the_file_system_of_a_directory_is_known() {
        assert_eq!(file_system(Path::new("/proc")).as_deref(), Some("proc"));
    }

    #[test]
    fn redis_starts_answers_and_leaves_nothing_behind() {
        if let Err(why) = installed("redis-server", "redis-server") {
            eprintln!("skipped: {why}");
            return;
        }
        let dir = std::env::temp_dir().join(format!("rem-bench-peers-{}", std::process::id()));
        let process = redis(dir.clone(), Setting::threaded(Fsync::Always)).expect("it starts");
        let asked = "--appendonly yes --auto-aof-rewrite-percentage 0 --appendfsync always --io-threads 2";
        assert!(process.settings().contains(asked), "{}", process.settings());
        assert!(process.settings().starts_with("Redis server v="), "{}", process.settings());
        for at in [process.at().clone(), process.socket().expect("both")] {
            let mut redis = Redis::connect(&at, true, "Redis").expect("it answers");
            use remanence_ycsb::packed::KeyValue as _;
            redis.put(b"key", at.to_string().as_bytes()).expect("it writes");
            let mut value = Vec::new();
            assert!(redis.get(b"key", &mut value).expect("it reads"));
            assert_eq!(value, at.to_string().as_bytes());
            if find("redis-benchmark").is_some() {
                let said = redis_benchmark(&at, Shape::ALL[0], 64, 10, 2000).expect("figures");
                assert_eq!(said.iter().map(|s| s.test.as_str()).collect::<Vec<_>>(), ["SET", "GET"]);
                assert!(said.iter().all(|s| s.rate > 0.0));
            }
        }
        let mut redis = Redis::connect(process.at(), true, "Redis").expect("it answers");
        let value = vec![7; 16 << 10];
        (0..32)
            .for_each(|_| remanence_ycsb::packed::KeyValue::put(&mut redis, b"key", &value).expect("room"));
        let log = dir.join("appendonlydir");
        assert!(bytes_in(&log) > 512 << 10, "each of them is in its log");
        process.shorten_log_to(1 << 20).expect("it is short enough");
        process.shorten_log_to(256 << 10).expect("it rewrites its log");
        assert!(bytes_in(&log) <= 256 << 10, "the last one is in its log");
        drop(process);
        assert!(!dir.exists(), "its log went with it");
    }

    #[test]
    fn memcached_answers_on_either_socket() {
        if let Err(why) = installed("memcached", "memcached") {
            eprintln!("skipped: {why}");
            return;
        }
        let dir = std::env::temp_dir().join(format!("rem-bench-memcached-{}", std::process::id()));
        for socket in [None, Some(dir.clone())] {
            let process = memcached(socket).expect("it starts");
            let mut memcached = Memcached::connect(process.at(), true).expect("it answers");
            use remanence_ycsb::packed::KeyValue as _;
            memcached.put(b"key", b"value").expect("it writes");
            let mut value = Vec::new();
            assert!(memcached.get(b"key", &mut value).expect("it reads"));
            assert_eq!(value, b"value");
        }
        assert!(!dir.exists(), "its socket went with it");
    }
}
