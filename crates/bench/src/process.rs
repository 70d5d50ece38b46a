//! The processes of a bench, and what is left when it has ended: nothing.
//!
//! A bench is measured by a [`Worker`], a process of its own, and everything that it starts is started here (`spawn`) and is killed with it,
//! however it ends: the kernel sends a signal to a process whose parent has died. Whoever started the worker adopts what has outlived
//! it, ends that too, and takes away what the kernel would keep: mounts below the bench's directories, network namespaces, and shared
//! memory of peers. So one path serves a bench that succeeds, fails, panics, is interrupted or is killed. Where the one who started
//! the worker is killed himself, files may stay; no process does.
//!
//! Room for `unsafe`: the hook between fork and exec.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use remanence_cache_live::daemon::segment_of;
use rustix::process::{Pid, Signal, WaitOptions};
use serde_json::Value;

use crate::netns;

/// How long what outlives a worker has to end by itself: a guard has a file system to thaw, a tool to finish.
const GRACE: Duration = Duration::from_secs(1);
/// How long it takes at most: who waits for a medium cannot be killed.
const LIMIT: Duration = Duration::from_secs(10);

/// Starts a process that is killed when this one has died, in whatever way.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    spawn_until(Signal::KILL, command)
}

/// Starts a process that gets SIGTERM when this one has died, because it has one of its own to end.
pub(crate) fn spawn_parent(command: &mut Command) -> io::Result<Child> {
    spawn_until(Signal::TERM, command)
}

/// The signal comes when the *thread* has ended that started the process: so it is one that lives as long as this process.
fn spawn_until(signal: Signal, command: &mut Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, taken) = channel::<Order>();
        let start = move || {
            for (mut command, reply) in taken {
                let _ = reply.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("starter".into()).spawn(start).expect("a thread can be started");
        orders
    });
    let mut command = std::mem::replace(command, Command::new(""));
    die_with_parent(signal, &mut command);
    let (reply, child) = channel();
    starter.send((command, reply)).map_err(io::Error::other)?;
    let child = child.recv().map_err(io::Error::other)??;
    if let Some(memory) = MEMORY.get() {
        let started = OpenOptions::new().create(true).append(true).open(memory.join(STARTED));
        // Who cannot write there has no place for anything else either.
        let _ = started.and_then(|mut started| writeln!(started, "{}", child.id()));
    }
    Ok(child)
}

fn die_with_parent(signal: Signal, command: &mut Command) {
    use std::os::unix::process::CommandExt as _;

    let parent = rustix::process::getpid();
    let hook = move || {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // A parent that had died before that sends nothing any more.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    #[expect(
        unsafe_code,
        reason = "what runs between fork and exec is under rules that the compiler does not know"
    )]
    // SAFETY: the hook asks the kernel for two things, and does nothing else: it takes no lock, allocates nothing, and touches no
    // memory but its own two words.
    unsafe {
        command.pre_exec(hook);
    }
}

/// The process that measures a bench, seen by the one that answers for it.
pub struct Worker {
    child: Child,
}

impl Worker {
    /// Starts it; whatever it starts is adopted by this process when it has ended.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        die_with_parent(Signal::KILL, command);
        Ok(Self { child: command.spawn()? })
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// What the system says.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Ends it if it has not ended, all that it has started, and what these have made of the system beside files in `directories`.
    ///
    /// # Errors
    /// One sentence that says what could not be ended.
    pub fn end(mut self, directories: &[&Path]) -> Result<(), String> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let begin = Instant::now();
        while let Some(orphans) = orphans() {
            if begin.elapsed() > LIMIT {
                let all: Vec<String> = orphans.iter().map(ToString::to_string).collect();
                return Err(format!("processes that the bench has started do not end: {}", all.join(", ")));
            }
            if begin.elapsed() > GRACE {
                for pid in &orphans {
                    let _ = rustix::process::kill_process(*pid, Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let left = self.take_away(directories);
        directories.iter().for_each(|directory| remove_shared_memory_of(&directory.join(STARTED)));
        directories.iter().for_each(|directory| remove_segments_of(directory));
        left
    }

    /// Takes away mounts and network namespaces. It is programs that do it, and a signal may end one of them in the moment in which it is
    /// started, before it is in [its own group](tool): so it is done until nothing is left.
    fn take_away(&self, directories: &[&Path]) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let (mounts, namespaces) = (mounts_below(directories), netns::those_of(self.child.id()));
            if mounts.is_empty() && namespaces.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > LIMIT {
                let mounts = mounts.iter().map(|mount| mount.display().to_string());
                let left: Vec<String> = mounts.chain(namespaces).collect();
                return Err(format!("mounts and namespaces of the bench are left: {}", left.join(", ")));
            }
            for mount in mounts {
                let _ = tool("umount").arg("--lazy").arg(mount).stderr(Stdio::null()).status();
            }
            namespaces.iter().for_each(|name| netns::remove(name));
        }
    }
}

/// A program of the system's, which may be one that cleans up. It is in a process group of its own: who presses Ctrl-C again, because a bench takes a moment to
/// end, would end the program in the middle of it otherwise, and what it takes away would stay.
pub(crate) fn tool(program: &str) -> Command {
    use std::os::unix::process::CommandExt as _;

    let mut command = Command::new(program);
    command.process_group(0).stdin(Stdio::null());
    command
}

/// Runs a program of the system's to its end.
///
/// # Errors
/// What it said, or that it is not there.
pub(crate) fn run_tool(program: &str, args: &[&str]) -> Result<(), String> {
    let said = tool(program).args(args).output().map_err(|e| format!("{program} is needed: {e}"))?;
    if said.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&said.stderr).trim()))
}

/// Children of this process that it has not reaped, after it has reaped those that ended; `None` where there are no children.
fn orphans() -> Option<Vec<Pid>> {
    while rustix::process::wait(WaitOptions::NOHANG).ok()?.is_some() {}
    let own = rustix::process::getpid().as_raw_pid().to_string();
    let is_ours =
        |stat: &str| stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(&own);
    let processes = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok).filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        is_ours(&stat).then(|| Pid::from_raw(pid))?
    });
    Some(processes.collect())
}

/// What is mounted below these, the innermost first.
fn mounts_below(directories: &[&Path]) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let at = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let at = at.map(|path| PathBuf::from(path.replace("\\040", " ")));
    let mut below: Vec<PathBuf> =
        at.filter(|path| directories.iter().any(|dir| path.starts_with(dir))).collect();
    below.reverse();
    below
}

/// Removes the shared memory of processes in a list: libfabric's has the process' number in its name, and stays when that is killed.
fn remove_shared_memory_of(list: &Path) {
    let started = std::fs::read_to_string(list).unwrap_or_default();
    let started: Vec<&str> = started.lines().collect();
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split_once(':'));
        if owner.is_some_and(|(owner, _)| started.contains(&owner)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Removes what daemons of the write caches' logs there share with programs: it lies beside no log, and stays where a daemon is killed.
fn remove_segments_of(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            remove_segment_of(&entry.path());
        }
    }
}

/// The same of one log.
pub(crate) fn remove_segment_of(log: &Path) {
    if let Ok(segment) = std::fs::File::open(log).and_then(|log| segment_of(&log)) {
        let _ = std::fs::remove_file(segment);
    }
}

/// What was started, in the directory for files in memory: a line each.
const STARTED: &str = "started";

static MEMORY: OnceLock<PathBuf> = OnceLock::new();

/// Says where files in memory go: a directory that is taken away with the bench. It is said once, at the start of a process.
pub fn keep_memory_in(directory: PathBuf) {
    let _ = MEMORY.set(directory);
}

/// Where files in memory go.
pub(crate) fn memory() -> &'static Path {
    MEMORY.get().map_or(Path::new("/dev/shm"), |directory| directory)
}

/// A process that is ended with this, if it has not ended.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Waits until it ends: how it did, and all that it wrote to its standard output.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<(ExitStatus, String), String> {
        let mut out = self.0.stdout.take().ok_or("no standard output")?;
        // A full pipe would stop it.
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().map_err(|e| e.to_string())? {
                return Ok((status, reader.join().map_err(|_| "its reader panicked")?));
            }
            if begin.elapsed() > patience {
                return Err(format!("it did not end within {} s", patience.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that goes with this.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A `rem … serve --json --stop-on-eof`, which ends when we do, in whatever way.
pub(crate) struct Server(Running);

impl Server {
    /// Starts it, and waits until it is ready: what it says then, and where it says more.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(mut command: Command) -> Result<(Self, Value, BufReader<ChildStdout>), String> {
        command.args(["--json", "--stop-on-eof"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = Path::new(command.get_program()).display().to_string();
        let child = spawn(&mut command).map_err(|e| format!("cannot start {name}: {e}"))?;
        let mut this = Self(Running(child));
        let mut lines = BufReader::new(this.0.0.stdout.take().ok_or("no standard output")?);
        let mut line = String::new();
        lines.read_line(&mut line).map_err(|e| e.to_string())?;
        let ready = serde_json::from_str(&line).map_err(|_| "a server does not start; it says above why")?;
        Ok((this, ready, lines))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.0.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal sends SIGINT to each process of the group in its foreground.
    #[test]
    fn what_cleans_up_is_not_interrupted_with_who_waits_for_it() {
        let group = "read -r line < /proc/self/stat; set -- ${line##*) }; echo $3";
        let said = tool("sh").args(["-c", group]).output().expect("a shell");
        let said: i32 = String::from_utf8_lossy(&said.stdout).trim().parse().expect("a number");
        assert_ne!(said, rustix::process::getpgrp().as_raw_pid());
        // The same of who does not take care.
        let said = Command::new("sh").args(["-c", group]).output().expect("a shell");
        let said: i32 = String::from_utf8_lossy(&said.stdout).trim().parse().expect("a number");
        assert_eq!(said, rustix::process::getpgrp().as_raw_pid());
    }
}
