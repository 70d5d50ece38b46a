//! Programs that are killed again and again, by themselves or together with the daemon: their own checks are the oracle.
//!
//! A program is a row of a table: what makes its files, what does one thing after the other and says each when it is acknowledged, and what checks the
//! files and counts what is there. Each round ends with a kill, wherever everybody is then, and with two checks: of the files as they
//! are, and of what a loss of the machine would have left, where of each file whose syncs were absorbed there are the old bytes and what the log makes of them.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::cache::{Cache, Old, Talk};

/// So many entries that nothing is carried out by itself.
const NEVER: u64 = 3000;

/// A program, in scripts for a shell whose directory is the test's. Its files are below `$DATA`, and a server may listen at `$ADDRESS`. A program behind the words of
/// `$SUPERVISED` is under a supervisor, and has no hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// What has to be installed.
    pub(crate) needs: &'static [&'static str],
    /// Makes the files, without the cache.
    pub(crate) make: &'static str,
    /// What serves under the cache, and says "ready" when clients can come. If there is nothing, `load` is the program.
    pub(crate) serve: &'static str,
    /// Reads numbers, or counts from `$FROM` itself, says each when it is acknowledged, and ends if one is not.
    pub(crate) load: &'static str,
    /// Checks the files, and says how many numbers, from 1 on, are there.
    pub(crate) check: &'static str,
    /// How many numbers are quickly done.
    pub(crate) step: u64,
    /// Each round begins with 1.
    pub(crate) is_fresh: bool,
    pub(crate) synced: Synced,
}

/// How a program syncs, and so whether its syncs are absorbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Synced {
    /// Each file once, when it is written.
    Once,
    /// Files again and again, but none for long.
    Often,
    /// The same files all the time, by one process.
    Same,
    /// The same files all the time, by many processes. Those that begin when there is no daemon have their syncs from the kernel.
    Shared,
}

/// Whether all of these are installed; says what is not.
pub(crate) fn has(programs: &[&str]) -> bool {
    let is_there = |program: &&str| {
        let mut command = Command::new("sh");
        in_path(&mut command).args(["-c", "command -v \"$1\" >/dev/null", "sh"]).arg(program);
        let found = command.status().expect("a shell").success();
        if !found {
            println!("skipped: {program} is not installed");
        }
        found
    };
    programs.iter().all(is_there)
}

/// A shell that finds what Debian puts elsewhere.
fn in_path(command: &mut Command) -> &mut Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:/bin:{path}:/usr/sbin:/sbin:/usr/lib/postgresql/15/bin"))
}

/// What a script prints that ends well.
fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{why}", output.status);
    text
}

/// A cache, a program, and somebody who keeps the log from being drained as he lives.
struct Rounds {
    program: Program,
    /// It is taken in the end.
    cache: Option<Cache>,
    idle: Option<Talk>,
    /// Where a server may listen.
    address: String,
    /// Syncs that were absorbed, and those of the kernel.
    syncs: [u64; 2],
    /// How many rounds there were.
    round: u64,
    /// In how many what the log has was put on old bytes.
    replayed: u64,
}

impl Drop for Rounds {
    fn drop(&mut self) {
        if let Some(cache) = &self.cache {
            cache.kill_programs(0);
        }
    }
}

impl Rounds {
    fn cache(&self) -> &Cache {
        self.cache.as_ref().expect("it is taken in the end")
    }

    fn cache_mut(&mut self) -> &mut Cache {
        self.cache.as_mut().expect("it is taken in the end")
    }

    /// A script, under the cache or not.
    fn script(&self, script: &str, is_cached: bool, data: &str, from: u64) -> Command {
        let cache = self.cache();
        let mut command = if is_cached { cache.command("sh") } else { Command::new("sh") };
        in_path(&mut command).args(["-c", script]).current_dir(&cache.place);
        command.env("ADDRESS", &self.address).env("DATA", data);
        command.env("FROM", from.to_string()).env("ROUND", self.round.to_string());
        if is_cached {
            command.env("SUPERVISED", cache.supervised_words());
        }
        command
    }

    fn idle(&mut self) {
        self.idle = Some(Talk::with(&mut self.cache().command("cat")));
    }

    fn kill(&self) {
        let idle = self.idle.as_ref().map_or(0, |idle| idle.child.id());
        self.cache().kill_programs(idle);
    }

    /// Adds what a daemon has counted, which goes with it.
    fn count(&mut self) {
        for (n, name) in ["syncs_absorbed", "syncs_kernel"].into_iter().enumerate() {
            self.syncs[n] += self.cache().counted(name);
        }
    }

    /// How many are there, after a check.
    fn found(&self, is_cached: bool, data: &str) -> u64 {
        let check = self.program.check;
        let text = said(&mut self.script(check, is_cached, data, 1));
        text.lines().last().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("no number: {text}"))
    }

    /// The server, if there is one.
    fn serve(&self, from: u64) -> Option<Talk> {
        let serve = self.program.serve;
        (!serve.is_empty()).then(|| {
            let mut server = Talk::with(&mut self.script(serve, true, "data", from));
            server.until("ready");
            server
        })
    }

    /// One round from a number on; gives where the next one begins.
    fn round(&mut self, from: u64, with_daemon: bool, more: u64) -> u64 {
        let Program { load, step, serve, name, synced, .. } = self.program;
        let server = self.serve(from);
        let mut client = Talk::with(&mut self.script(load, serve.is_empty(), "data", from));
        let mut asked = from;
        let mut acknowledged = 0;
        let mut work = |client: &mut Talk, ask: u64, wait: u64| {
            (asked..asked + ask).for_each(|n| client.say(&format!("{n}\n")));
            asked += ask;
            let mut left = wait;
            while left > 0 {
                let line = client.line().unwrap_or_else(|| panic!("{name} ends behind {acknowledged}"));
                if let Ok(n) = line.parse() {
                    acknowledged = n;
                    left -= 1;
                }
            }
        };
        work(&mut client, step, step);
        let head = self.cache().counted("tail") + self.cache().counted("used");
        let before = self.cache().files();
        let mut old = Old::of(before.keys().cloned());
        work(&mut client, step, step);
        let mut known = None;
        if with_daemon {
            known = Some((self.cache().files(), self.cache().counted("tail")));
            self.count();
            self.cache_mut().kill_daemon();
        }
        work(&mut client, 2 * step, more.clamp(1, 2 * step));
        // Wherever they are then.
        self.kill();
        let acknowledged = client.numbers().into_iter().last().unwrap_or(0).max(acknowledged);
        for talk in [Some(client), server].into_iter().flatten() {
            end(talk.child);
        }
        let (after, tail) = known.unwrap_or_else(|| (self.cache().files(), self.cache().counted("tail")));
        let place = self.cache().place.clone();
        let data = place.join("data");
        // Of each file that only the log had synced, what is on the disk is old.
        old.retain(|path| {
            let [absorbed, kernel] = before.get(path).copied().unwrap_or_default();
            let [later, again] = after.get(path).copied().unwrap_or_default();
            later > absorbed && again == kernel && path.starts_with(&data)
        });
        said(Command::new("sh").args(["-c", "rm -rf lost && cp -a data lost"]).current_dir(&place));
        // Otherwise it is in the files, and gone from the log; or nobody knows who has synced it.
        let is_in_log = tail <= head && !(with_daemon && synced == Synced::Shared);
        if is_in_log {
            let replayed = old.replayed(self.cache());
            self.replayed += u64::from(!replayed.is_empty());
            for (path, bytes) in replayed {
                let below = path.strip_prefix(&data).expect("it is below").to_owned();
                println!("{name}: {} as the log has it", below.display());
                fs::write(place.join("lost").join(below), bytes).expect("room");
            }
        }
        let there = self.found(false, "lost");
        assert!(there >= acknowledged, "{name}: {acknowledged} were acknowledged, {there} survive a crash");
        if with_daemon {
            self.recover();
        }
        let there = self.found(true, "data");
        assert!(there >= acknowledged, "{name}: {acknowledged} were acknowledged, {there} are there");
        self.round += 1;
        if self.program.is_fresh { 1 } else { there + 1 }
    }

    /// Brings what a daemon that was killed has left into the files, and starts another one.
    fn recover(&mut self) {
        if let Some(idle) = self.idle.take() {
            idle.end();
        }
        let said = self.cache_mut().start_again().expect("nobody has to decide anything");
        println!("{}: {said}", self.program.name);
        self.idle();
    }
}

/// A child that was killed, or ends with who was.
fn end(mut child: Child) {
    child.wait().expect("it ends");
}

/// Kills a program in many rounds, in every other one together with the daemon.
pub(crate) fn kills(program: Program) {
    let Program { name, needs, make, .. } = program;
    if !has(needs) {
        return;
    }
    let Some(cache) = Cache::in_memory(name, NEVER) else { return };
    let address = remanence_effort::address().to_string();
    let mut rounds =
        Rounds { program, cache: Some(cache), idle: None, address, syncs: [0; 2], round: 0, replayed: 0 };
    fs::create_dir(rounds.cache().path("data")).expect("a directory");
    said(&mut rounds.script(make, false, "data", 1));
    rounds.idle();
    let mut from = 1;
    for round in 0..remanence_effort::rounds(2, 200) {
        let more = round * 7 % (2 * program.step) + 1;
        from = rounds.round(from, round % 2 == 1, more);
    }
    rounds.count();
    let [absorbed, kernel] = rounds.syncs;
    println!("{name}: {absorbed} of {} syncs absorbed", absorbed + kernel);
    assert!(absorbed > 0 || program.synced == Synced::Once, "{name}: {kernel} syncs, and none absorbed");
    // Where many processes are at a file, one that is at something else may have its next syncs be the kernel's.
    let is_replayed = program.synced == Synced::Same;
    assert!(rounds.replayed > 0 || !is_replayed, "{name}: what the log has was on no old bytes");
    // Its own end goes through the log too.
    if let Some(idle) = rounds.idle.take() {
        idle.end();
    }
    let cache = rounds.cache.take().expect("until now");
    cache.drain();
    assert_eq!(cache.counted("used"), 0);
    cache.stop();
}

/// Runs a script without the cache and with it: it says the same.
pub(crate) fn same(name: &'static str, needs: &[&str], script: &str) {
    if !has(needs) {
        return;
    }
    let Some(cache) = Cache::in_memory(&format!("same-{name}"), NEVER) else { return };
    let run = |command: &mut Command, place: &str| {
        let place: PathBuf = cache.path(place);
        fs::create_dir(&place).expect("a directory");
        said(in_path(command).args(["-ec", script]).current_dir(place).env("HOME", "/nonexistent"))
    };
    let plain = run(&mut Command::new("sh"), "plain");
    let cached = run(&mut cache.command("sh"), "cached");
    assert_eq!(plain, cached, "{name} says something else under the cache");
    let (absorbed, kernel) = (cache.counted("syncs_absorbed"), cache.counted("syncs_kernel"));
    println!("{name}: {absorbed} of {} syncs absorbed", absorbed + kernel);
    cache.drain();
    cache.stop();
}
