//! A write cache whose log has a copy on servers: what a sync has promised is there when the machine has lost its memory, and a machine that was given
//! up promises nothing any more.

use std::fs::{self, File, FileTimes};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use remanence_cache_live::daemon::{segment_of, socket_of};
use tempfile::TempDir;

use crate::cache::CacheDirectory;
use crate::common::{address, rem, start};

/// Three servers of logs.
struct Servers {
    names: Vec<String>,
    directory: TempDir,
    children: Vec<Option<Child>>,
}

impl Servers {
    fn new(size: &str) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let names: Vec<String> = (0..3).map(|_| address().to_string()).collect();
        let mut this = Self { names, directory, children: vec![None, None, None] };
        (0..3).for_each(|n| this.start(n, size));
        this
    }

    fn start(&mut self, n: usize, size: &str) {
        let mut command = rem();
        command.args(["log", "serve"]).arg(self.directory.path().join(n.to_string()));
        command.args(["--listen", &self.names[n], "--json", "--size", size]);
        self.children[n] = Some(start(command.stderr(Stdio::piped())).0);
    }

    fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.children[n].take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// As `--log` and `--from` take them.
    fn all(&self) -> String {
        self.names.join(",")
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        (0..3).for_each(|n| self.kill(n));
    }
}

/// A daemon of a log with copies.
struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    fn start(place: &CacheDirectory, servers: &Servers) -> Self {
        Self::start_with(place, servers, &[])
    }

    fn start_with(place: &CacheDirectory, servers: &Servers, more: &[&str]) -> Self {
        let all = servers.all();
        let mut command = place.rem(&[&["cache", "start", "--size", "8M", "--log", &all], more].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("rem starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            assert!(out.read_line(&mut line).expect("text") > 0, "it has ended");
        }
        let status = place.said(&["cache", "status", "--json", "--log", &servers.all()]).json();
        let log = status["log"].as_str().expect("a path").into();
        Self { child, log }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("it ends");
    }

    /// What a machine without power has lost: the log, its segment.
    fn forget(&self) {
        if let Ok(segment) = fs::File::open(&self.log).and_then(|log| segment_of(&log)) {
            let _ = fs::remove_file(segment);
            let _ = fs::remove_file(&self.log);
        }
        let _ = fs::remove_file(socket_of(&self.log));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        self.forget();
    }
}

/// A file as the disk had it.
struct Old(PathBuf, Vec<u8>, std::time::SystemTime);

impl Old {
    fn of(path: PathBuf) -> Self {
        let when = fs::metadata(&path).and_then(|found| found.modified()).expect("it is there");
        let bytes = fs::read(&path).expect("it can be read");
        Self(path, bytes, when)
    }

    fn put_back(&self) {
        fs::write(&self.0, &self.1).expect("room");
        let file = File::options().write(true).open(&self.0).expect("it is there");
        file.set_times(FileTimes::new().set_modified(self.2)).expect("it is ours");
    }
}

/// Appends lines to a file, each of which is synced; the shell fails with the first sync that does.
fn lines(from: u32, upto: u32) -> String {
    format!("n={from}; while [ $n -lt {upto} ]; do echo line $n >> f; sync f || exit 9; n=$((n + 1)); done")
}

fn expected(upto: u32) -> String {
    (0..upto).map(|n| format!("line {n}\n")).collect()
}

#[test]
fn what_a_sync_promised_comes_back_from_the_servers_when_the_machine_has_lost_its_memory() {
    let Some(place) = CacheDirectory::new("copies") else { return };
    let mut servers = Servers::new("8M");
    let all = servers.all();
    let mut daemon = Daemon::start(&place, &servers);
    place.said(&["run", "--log", &all, "--", "sh", "-c", &lines(0, 8)]).good();
    place.said(&["cache", "drain", "--log", &all]).good();
    let old = Old::of(place.0.join("f"));
    // As long as it is there, nothing is drained that need not be.
    let script = format!("{}; echo one; read go; {}; echo two; read go", lines(8, 40), lines(40, 50));
    let mut program = place.rem(&["run", "--log", &all, "--", "sh", "-c", &script]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("rem starts");
    let mut said = BufReader::new(program.stdout.take().expect("piped"));
    let mut hears = |what: &str| {
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        assert_eq!(line, format!("{what}\n"));
    };
    hears("one");
    let status = place.said(&["cache", "status", "--json", "--log", &all]).json();
    assert!(status["syncs_absorbed"].as_u64() >= Some(30), "{status}");
    assert_eq!((status["copies"]["acks"].as_u64(), status["copies"]["members"].as_u64()), (Some(2), Some(3)));
    // One server goes, and comes back; then another one, for good.
    servers.kill(0);
    program.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it reads");
    hears("two");
    servers.start(0, "8M");
    daemon.kill();
    program.kill().expect("it runs");
    program.wait().expect("it ends");
    daemon.forget();
    old.put_back();
    servers.kill(1);
    // Nobody begins on what is not recovered, and a look changes nothing.
    place.said(&["cache", "start", "--size", "8M", "--log", &all]).bad("rem cache recover --from");
    place.said(&["cache", "recover", "--dry-run", "--from", &all]).good();
    assert_eq!(fs::read(place.0.join("f")).expect("it is there"), old.1);
    place.said(&["cache", "recover", "--from", &all]).good();
    assert_eq!(fs::read_to_string(place.0.join("f")).expect("text"), expected(50));
    for more in [&[][..], &["--dry-run"]] {
        let again = place.said(&[&["cache", "recover", "--from", &all][..], more].concat());
        let again = String::from_utf8(again.good()).expect("text");
        assert!(again.contains("clean"), "{again}");
    }
    drop(daemon);
    let daemon = Daemon::start(&place, &servers);
    place.said(&["run", "--log", &all, "--", "sh", "-c", &lines(50, 60)]).good();
    place.said(&["cache", "stop", "--log", &all]).good();
    assert_eq!(fs::read_to_string(place.0.join("f")).expect("text"), expected(60));
    let _ = daemon;
}

#[test]
fn a_machine_that_was_given_up_promises_nothing_any_more() {
    let Some(place) = CacheDirectory::new("given-up") else { return };
    let servers = Servers::new("8M");
    let all = servers.all();
    let _daemon = Daemon::start(&place, &servers);
    place.said(&["run", "--log", &all, "--", "sh", "-c", &lines(0, 8)]).good();
    let here = place.0.join("recovered.log");
    let here = here.to_str().expect("text");
    place.said(&["cache", "recover", "--from", &all, here]).good();
    assert_eq!(fs::read_to_string(place.0.join("f")).expect("text"), expected(8));
    // The first sync finds out; the other file has nothing in the log, and fails as well.
    for script in [&lines(8, 9)[..], "echo new > g; sync g || exit 9"] {
        let said = place.said(&["run", "--log", &all, "--", "sh", "-c", script]);
        assert_eq!(said.status, Some(9), "{}", said.stderr);
    }
    let status = place.said(&["cache", "status", "--json", "--log", &all]).json();
    assert_eq!(status["state"].as_str(), Some("failed"), "{status}");
}

#[test]
fn more_is_written_than_the_servers_have_room_for() {
    let Some(place) = CacheDirectory::new("room") else { return };
    let servers = Servers::new("4M");
    let all = servers.all();
    let mut daemon = Daemon::start(&place, &servers);
    let script = "n=0; while [ $n -lt 40 ]; do dd if=/dev/zero of=g bs=64k count=8 conv=fsync,notrunc 2>/dev/null || exit 9; n=$((n + 1)); done";
    place.said(&["run", "--log", &all, "--", "sh", "-c", script]).good();
    place.said(&["run", "--log", &all, "--", "sh", "-c", &lines(0, 20)]).good();
    daemon.kill();
    daemon.forget();
    // The disk has everything, and nothing older is put over it.
    place.said(&["cache", "recover", "--from", &all]).good();
    assert_eq!(fs::read_to_string(place.0.join("f")).expect("text"), expected(20));
}

#[test]
fn what_cannot_be_a_log_with_copies_is_said() {
    let Some(place) = CacheDirectory::new("no-copies") else { return };
    let said = |arguments: &[&str], what: &str| place.said(arguments).bad(what);
    said(&["run", "--log", "shm", "--acks", "2", "--", "true"], "--acks is for a log that has copies");
    said(&["cache", "start", "--log", "127.0.0.1,127.0.0.2", "--acks", "3"], "more servers than the 2");
    said(&["cache", "start", "--log", "a,b c"], "is no address");
    said(
        &["cache", "status", "--log", "127.0.0.1,127.0.0.2"],
        "`rem cache start --log 127.0.0.1,127.0.0.2` starts one",
    );
    let servers = Servers::new("1M");
    said(&["cache", "start", "--size", "8M", "--log", &servers.all()], "serve logs of 4M at least");
    said(&["cache", "recover", "--from", &servers.names[0]], "");
}

#[test]
fn servers_that_are_back_get_all_again() {
    let Some(place) = CacheDirectory::new("back") else { return };
    let mut servers = Servers::new("8M");
    let all = servers.all();
    let _daemon = Daemon::start(&place, &servers);
    for round in 0..3 {
        place.said(&["run", "--log", &all, "--", "sh", "-c", &lines(round * 8, round * 8 + 7)]).good();
        // Too few are left, and what a sync waits for is sent once more when they are there again.
        [0, 1].into_iter().for_each(|n| servers.kill(n));
        let script = lines(round * 8 + 7, round * 8 + 8);
        let mut program =
            place.rem(&["run", "--log", &all, "--", "sh", "-c", &script]).spawn().expect("rem starts");
        [0, 1].into_iter().for_each(|n| servers.start(n, "8M"));
        assert!(program.wait().expect("it ends").success(), "round {round}");
    }
    place.said(&["cache", "stop", "--log", &all]).good();
    assert_eq!(fs::read_to_string(place.0.join("f")).expect("text"), expected(24));
}

/// What servers have of files, as the daemon says.
fn images(place: &CacheDirectory, servers: &Servers) -> serde_json::Value {
    let mut status = place.said(&["cache", "status", "--json", "--log", &servers.all()]).json();
    status["copies"]["images"].take()
}

/// Files of a machine that is lost, made again somewhere else.
fn recovered(place: &CacheDirectory, servers: &Servers) -> PathBuf {
    let into = place.0.join("elsewhere");
    let into_text = into.to_str().expect("text");
    place.said(&["cache", "recover", "--from", &servers.all(), "--into", into_text]).good();
    let lost = place.0.canonicalize().expect("it is there");
    into.join(lost.strip_prefix("/").expect("it is whole"))
}

/// A machine that is lost with its disk: nothing of its files is left, nor of the log.
fn lose(place: &CacheDirectory, daemon: &mut Daemon) {
    daemon.kill();
    daemon.forget();
    for entry in fs::read_dir(&place.0).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it is ours");
    }
}

/// A database, and a log that is written anew and gets the name of the old one now and then, as that of Redis: each says what was acknowledged.
const DATABASE: &str = "sqlite3 -batch db 'PRAGMA journal_mode=wal; CREATE TABLE t(n INTEGER PRIMARY KEY, x)' > /dev/null; \
    (echo 'PRAGMA synchronous=FULL;'; n=1; while [ $n -lt 100000 ]; do \
    echo \"INSERT INTO t VALUES($n, hex(randomblob(300))); SELECT $n;\"; n=$((n + 1)); done) | stdbuf -oL sqlite3 -batch db";
const APPENDED: &str = "n=1; while :; do echo line $n >> a; sync a || exit 9; echo $n; if [ $((n % 20)) = 0 ]; then \
    cp a a.new && sync a.new && mv a.new a && sync . || exit 9; fi; n=$((n + 1)); done";

#[test]
fn files_are_made_again_elsewhere_from_the_servers_alone() {
    let Some(place) = CacheDirectory::new("images") else { return };
    for program in ["sqlite3", "stdbuf"] {
        if std::process::Command::new(program).arg("--version").output().is_err() {
            return println!("SKIPPED: there is no {program}");
        }
    }
    let mut servers = Servers::new("64M");
    let all = servers.all();
    let mut daemon = Daemon::start_with(&place, &servers, &["--images"]);
    let mut programs: Vec<(Child, BufReader<std::process::ChildStdout>)> = [DATABASE, APPENDED]
        .iter()
        .map(|script| {
            let mut program = place.rem(&["run", "--images", "--log", &all, "--", "sh", "-c", script]);
            std::os::unix::process::CommandExt::process_group(&mut program, 0);
            let mut program = program.stdout(Stdio::piped()).spawn().expect("rem starts");
            let out = BufReader::new(program.stdout.take().expect("piped"));
            (program, out)
        })
        .collect();
    let hear = |programs: &mut Vec<(Child, BufReader<std::process::ChildStdout>)>, upto: u64| {
        let mut heard = Vec::new();
        for (_, out) in programs {
            let mut line = String::new();
            let mut last = 0;
            while last < upto {
                line.clear();
                assert!(out.read_line(&mut line).expect("text") > 0, "it has ended behind {last}");
                last = line.trim().parse().expect("a number");
            }
            heard.push(last);
        }
        heard
    };
    hear(&mut programs, 30);
    place.said(&["cache", "drain", "--log", &all]).good();
    hear(&mut programs, 60);
    servers.kill(1);
    let heard = hear(&mut programs, 90);
    let images = images(&place, &servers);
    assert!(images["whole"].as_u64() >= Some(2) && images["bytes"].as_u64() > Some(0), "{images}");
    for (program, _) in &programs {
        let group = rustix::process::Pid::from_raw(program.id().cast_signed()).expect("a number");
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("it runs");
    }
    for (program, _) in &mut programs {
        program.wait().expect("it ends");
    }
    lose(&place, &mut daemon);
    place.said(&["cache", "start", "--size", "8M", "--log", &all]).bad("images of files");
    let made = recovered(&place, &servers);
    let lines = fs::read_to_string(made.join("a")).expect("it is there");
    let upto = lines.lines().count() as u64;
    assert!(upto >= heard[1], "{upto} of {} lines", heard[1]);
    assert!(lines.lines().zip(1..).all(|(line, n)| line == format!("line {n}")), "{lines}");
    let sql = "PRAGMA integrity_check; SELECT count(*) = max(n) FROM t; SELECT count(*) FROM t";
    let said = std::process::Command::new("sqlite3").arg(made.join("db")).arg(sql).output().expect("it runs");
    let said = String::from_utf8(said.stdout).expect("text");
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said[..2], ["ok", "1"], "{said:?}");
    assert!(said[2].parse::<u64>().expect("a number") >= heard[0], "{said:?} of {}", heard[0]);
}

#[test]
fn images_leave_the_servers_room_and_what_finds_none_is_told() {
    let Some(place) = CacheDirectory::new("images-room") else { return };
    let servers = Servers::new("64M");
    let all = servers.all();
    let mut daemon = Daemon::start_with(&place, &servers, &["--images"]);
    let run = |script: &str| drop(place.said(&["run", "--log", &all, "--", "sh", "-c", script]).good());
    run(&lines(0, 20));
    let dd = "dd if=/dev/urandom of=big bs=1M count=30 conv=fsync 2>/dev/null || exit 9";
    run(dd);
    let of = images(&place, &servers);
    let lacking = of["lacking"].as_array().expect("a list");
    assert_eq!(lacking.len(), 1, "{of}");
    assert!(lacking[0]["path"].as_str().is_some_and(|path| path.ends_with("/big")), "{of}");
    assert_eq!(lacking[0]["state"].as_str(), Some("given-up"), "{of}");
    let said = place.said(&["cache", "status", "--log", &all]).good();
    let said = String::from_utf8(said).expect("text");
    assert!(said.contains("would be lost"), "{said}");
    // It all goes round in the servers' logs, more than once.
    let script = "dd if=/dev/urandom of=g bs=64k count=8 conv=fsync 2>/dev/null || exit 9; \
        n=0; while [ $n -lt 200 ]; do \
        dd if=/dev/urandom of=g bs=64k count=8 conv=fsync,notrunc 2>/dev/null || exit 9; n=$((n + 1)); done";
    run(script);
    run(&lines(20, 40));
    let g = fs::read(place.0.join("g")).expect("it is there");
    lose(&place, &mut daemon);
    let into = place.0.join("elsewhere");
    let recover = ["cache", "recover", "--from", &all, "--into", into.to_str().expect("text")];
    place.said(&[&recover[..], &["--dry-run"]].concat()).good();
    assert!(!into.exists(), "nothing was changed");
    let said = place.said(&recover);
    assert_eq!(said.status, Some(1), "{}", said.stderr);
    assert!(said.stderr.contains("1 file could not be made again"), "{}", said.stderr);
    // It says so again, until it is given up.
    place.said(&[&recover[..], &["--skip-damage"]].concat()).good();
    let made =
        into.join(place.0.canonicalize().expect("it is there").strip_prefix("/").expect("it is whole"));
    assert_eq!(fs::read(made.join("g")).expect("it is there"), g);
    assert_eq!(fs::read_to_string(made.join("f")).expect("it is there"), expected(40));
    assert!(!made.join("big").exists());
}

#[test]
fn images_stay_when_the_daemon_is_started_again() {
    let Some(place) = CacheDirectory::new("images-again") else { return };
    let servers = Servers::new("64M");
    let all = servers.all();
    let mut daemon = Daemon::start_with(&place, &servers, &["--images"]);
    let run = |script: &str| place.said(&["run", "--log", &all, "--", "sh", "-c", script]);
    run("echo old > gone; sync gone").good();
    run(&lines(0, 20)).good();
    daemon.kill();
    // What is done without it is seen by the next one.
    fs::remove_file(place.0.join("gone")).expect("it is there");
    let mut daemon = Daemon::start_with(&place, &servers, &["--images"]);
    run(&lines(20, 40)).good();
    place.said(&["cache", "stop", "--log", &all]).good();
    daemon.child.wait().expect("it ends");
    place.said(&["cache", "start", "--size", "8M", "--log", &all]).bad("say --images");
    fs::write(place.0.join("h"), "by nobody of ours").expect("room");
    let mut daemon = Daemon::start_with(&place, &servers, &["--images"]);
    run("sync h; mv h i; sync .").good();
    // A file whose name another one gets is gone with it.
    run("echo new > f.new; sync f.new; cat f >> f.new; sync f.new; mv f.new f; sync .").good();
    lose(&place, &mut daemon);
    let made = recovered(&place, &servers);
    assert_eq!(fs::read_to_string(made.join("f")).expect("it is there"), format!("new\n{}", expected(40)));
    assert_eq!(fs::read_to_string(made.join("i")).expect("it is there"), "by nobody of ours");
    let names = fs::read_dir(&made).expect("a directory").count();
    assert_eq!(names, 2, "nothing else is there");
}

#[test]
fn a_machine_whose_files_were_made_again_elsewhere_promises_nothing_any_more() {
    let Some(place) = CacheDirectory::new("images-fenced") else { return };
    let servers = Servers::new("64M");
    let all = servers.all();
    let _daemon = Daemon::start_with(&place, &servers, &["--images"]);
    place.said(&["run", "--log", &all, "--", "sh", "-c", &lines(0, 8)]).good();
    let made = recovered(&place, &servers);
    assert_eq!(fs::read_to_string(made.join("f")).expect("it is there"), expected(8));
    for script in [&lines(8, 9)[..], "echo new > g; sync g || exit 9", "mv f h; sync . || exit 9"] {
        let said = place.said(&["run", "--log", &all, "--", "sh", "-c", script]);
        assert_eq!(said.status, Some(9), "{}", said.stderr);
    }
    place
        .said(&["run", "--images", "--log", "shm", "--", "true"])
        .bad("--images is for a log that has copies");
}
