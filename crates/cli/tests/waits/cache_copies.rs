//! A write cache whose log has a copy on servers: what a sync has promised is there when the machine has lost its memory, and a machine that was given
//! up promises nothing any more.

use std::fs::{self, File, FileTimes};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use remanence_cache_live::daemon::socket_of;
use tempfile::TempDir;

use crate::cache::Place;
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
    fn start(place: &Place, servers: &Servers) -> Self {
        let mut command = place.rem(&["cache", "start", "--size", "8M", "--log", &servers.all()]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("rem starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
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
        use std::os::unix::fs::MetadataExt as _;
        if let Ok(log) = fs::metadata(&self.log) {
            let _ = fs::remove_file(format!("/dev/shm/remanence-cache-{:x}-{:x}", log.dev(), log.ino()));
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
    let Some(place) = Place::new("copies") else { return };
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
    let Some(place) = Place::new("given-up") else { return };
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
    let Some(place) = Place::new("room") else { return };
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
    let Some(place) = Place::new("no-copies") else { return };
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
    let Some(place) = Place::new("back") else { return };
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
