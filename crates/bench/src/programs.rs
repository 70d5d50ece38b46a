//! Programs that are no roles of ours: `rem` as its users start it, Redis and memcached. A role holds them, so that they are started,
//! counted and ended as every server of a bench is. They may run on all cores, as their users start them: on one core the threads of a server, and several servers, would take turns.
//! One that ends of itself costs the burst, and is told.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use remanence_remote::Stop;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::erda::tcp::At;
use crate::machine;
use crate::process::{self, Directory, Server};
use crate::redis::{self, Process, Setting};
use crate::role::{self, Counters, Role};

/// How often a role looks whether its programs are there.
const LOOK: Duration = Duration::from_millis(20);

/// What is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Spec {
    /// Our gateway with a store of so many bytes.
    Gateway { program: PathBuf, dir: PathBuf, size: u64 },
    /// Redis, on TCP and on a Unix socket.
    Redis { dir: PathBuf, setting: Setting },
    /// memcached, on a Unix socket if there is a directory for one.
    Memcached { dir: Option<PathBuf> },
    /// Each a `rem … serve`: its command line, and a directory that is empty when it starts, and goes with it.
    Ours(Vec<(Vec<String>, PathBuf)>),
}

/// A program that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    /// The number of its process.
    pub(crate) id: u32,
    /// Where it is to be found, all its sockets.
    pub(crate) at: Vec<At>,
    /// What it said when it was ready, or how it was started.
    pub(crate) said: Value,
}

/// What happens to programs while a burst is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fate {
    /// All of them run.
    Run,
    /// The one of this number is stopped (SIGSTOP).
    Stopped(usize),
    /// Whoever is their client ends some of them.
    MayEnd,
}

/// Programs that run, as one server.
pub(crate) struct Programs {
    ids: Vec<u32>,
    stopped: Option<Stopped>,
    // They go before what they have written.
    peer: Option<Process>,
    _ours: Vec<Server>,
    _dirs: Vec<Directory>,
}

impl Role for Programs {
    const WORD: &'static str = "programs";
    type Spec = Spec;
    type Here = Vec<Started>;
    type Peer = ();
    type Burst = Fate;
    type Values = ();

    fn open(spec: Spec) -> Result<(Self, Vec<Started>), String> {
        machine::pin_to(machine::allowed());
        let peer = match spec {
            // Whoever was there before, and did not end in order, has left what it had.
            Spec::Gateway { program, dir, size } => {
                let _ = std::fs::remove_dir_all(&dir);
                redis::gateway_and_store(&program, dir, size)?
            }
            Spec::Redis { dir, setting } => {
                let _ = std::fs::remove_dir_all(&dir);
                redis::redis(dir, setting)?
            }
            Spec::Memcached { dir } => redis::memcached(dir)?,
            Spec::Ours(commands) => return ours(commands),
        };
        let at = [Some(peer.at().clone()), peer.socket()].into_iter().flatten().collect();
        let said = format!("{}; on cores {}", peer.settings(), cores_of(peer.id()));
        let started = Started { id: peer.id(), at, said: said.into() };
        let ids = vec![started.id];
        let this = Self { ids, stopped: None, peer: Some(peer), _ours: Vec::new(), _dirs: Vec::new() };
        Ok((this, vec![started]))
    }

    fn prepare(&mut self, fate: &Fate) -> Result<(), String> {
        if let Fate::Stopped(number) = fate {
            let id = self.ids.get(*number).ok_or("there is no such program")?;
            self.stopped = Some(Stopped::new(*id)?);
        }
        self.peer.as_ref().map_or(Ok(()), Process::shorten_log)
    }

    fn serve(&mut self, fate: Fate, stop: &Stop) -> Result<(), String> {
        let this = std::thread::current();
        let _wakes = stop.wakes(move || this.unpark());
        while !stop.is_asked() && (fate == Fate::MayEnd || self.ended().is_none()) {
            std::thread::park_timeout(LOOK);
        }
        self.stopped = None;
        self.ended().filter(|_| fate != Fate::MayEnd).map_or(Ok(()), Err)
    }

    fn counters(&self) -> Counters {
        Counters { programs: self.ids.clone(), ..Counters::default() }
    }
}

impl Programs {
    /// Which of them has ended, and how.
    fn ended(&self) -> Option<String> {
        let ended = |(n, id): (usize, &u32)| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
            if !matches!(fields.chars().next(), None | Some('Z' | 'X')) {
                return None;
            }
            let code = fields.trim_end().rsplit(' ').next().and_then(|code| code.parse().ok());
            let how = code.map_or_else(|| "gone".into(), |code| ExitStatus::from_raw(code).to_string());
            Some(format!("program {} of {} ended: {how}", n + 1, self.ids.len()))
        };
        self.ids.iter().enumerate().find_map(ended)
    }
}

/// How they and their clients are pinned, for a report's parameters.
pub(crate) fn pinned() -> Value {
    let mut pinned = role::pinned();
    pinned["server"] = machine::allowed().into();
    pinned
}

/// The cores that a process may run on.
fn cores_of(id: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    cores.unwrap_or("that are not known").trim().to_owned()
}

fn ours(commands: Vec<(Vec<String>, PathBuf)>) -> Result<(Programs, Vec<Started>), String> {
    let (mut here, mut servers, mut dirs) = (Vec::new(), Vec::new(), Vec::new());
    for (line, dir) in commands {
        // Whoever was there before, and did not end in order, has left what it had.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        dirs.push(Directory(dir));
        let (program, arguments) = line.split_first().ok_or("no program is named")?;
        let mut command = Command::new(program);
        command.args(arguments);
        let (server, said, lines) = Server::start(command)?;
        let at = said["address"].as_str().and_then(|at| at.parse().ok()).map(At::Tcp).into_iter().collect();
        here.push(Started { id: server.id(), at, said });
        servers.push(server);
        // It says whatever changes, and somebody must read it.
        std::thread::spawn(move || std::io::copy(&mut { lines }, &mut std::io::sink()));
    }
    let ids = here.iter().map(|started| started.id).collect();
    Ok((Programs { ids, stopped: None, peer: None, _ours: servers, _dirs: dirs }, here))
}

/// A process that is stopped, and goes on when this goes.
pub(crate) struct Stopped(u32);

impl Stopped {
    pub(crate) fn new(id: u32) -> Result<Self, String> {
        signal(id, "STOP").map(|()| Self(id))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Nobody could end it in order otherwise.
        let _ = signal(self.0, "CONT");
    }
}

/// Sends a process a signal.
pub(crate) fn signal(id: u32, name: &str) -> Result<(), String> {
    process::run_tool("kill", &[&format!("-{name}"), &id.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that waits for its input's end, and says what `Server::start` hears.
    fn sleeper(dir: &str) -> (Vec<String>, PathBuf) {
        let script = "echo '{\"address\":\"127.0.0.1:1\"}'; read _";
        let line = ["sh", "-c", script].map(String::from).into();
        (line, std::env::temp_dir().join(format!("rem-bench-{dir}-{}", std::process::id())))
    }

    #[test]
    fn a_program_that_ends_costs_the_burst_and_says_how() {
        let (mut programs, here) =
            Programs::open(Spec::Ours(vec![sleeper("one"), sleeper("two")])).expect("they start");
        assert_eq!(here[1].at, [At::Tcp(([127, 0, 0, 1], 1).into())]);
        let stop = Stop::new();
        stop.ask();
        programs.serve(Fate::Run, &stop).expect("both are there");
        signal(here[1].id, "KILL").expect("it is ours");
        // Nobody asks this one to stop: it ends as the program has.
        let why = programs.serve(Fate::Run, &Stop::new()).expect_err("one has ended");
        assert_eq!(why, "program 2 of 2 ended: signal: 9 (SIGKILL)");
        programs.serve(Fate::MayEnd, &stop).expect("that was to be");
        let dir = sleeper("two").1;
        assert!(dir.exists());
        drop(programs);
        assert!(!dir.exists(), "its directory went with it");
    }

    #[test]
    fn a_program_is_stopped_for_one_burst() {
        let (mut programs, here) = Programs::open(Spec::Ours(vec![sleeper("stopped")])).expect("it starts");
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", here[0].id)).expect("it is there");
            stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next())
        };
        let until = |wanted: fn(Option<char>) -> bool| {
            while !wanted(state()) {
                std::thread::yield_now();
            }
        };
        programs.prepare(&Fate::Stopped(0)).expect("it is stopped");
        until(|state| state == Some('T'));
        let stop = Stop::new();
        stop.ask();
        programs.serve(Fate::Stopped(0), &stop).expect("it is there");
        until(|state| state != Some('T'));
        assert!(programs.prepare(&Fate::Stopped(1)).is_err(), "there is one only");
    }
}
