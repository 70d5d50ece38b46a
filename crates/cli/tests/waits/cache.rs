//! `rem run` and `rem cache`, with a daemon that the first one has started.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use remanence_cache_live::daemon::segment_of;

use crate::common::{Said, rem, run};

/// The library, as this test's sources make it.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let made =
            remanence_effort::built(env!("CARGO_TARGET_TMPDIR"), &["-p", "remanence-preload", "--lib"]);
        made.join("libremanence_preload.so")
    })
}

/// Whether syncs are absorbed there; says so, if not.
pub(crate) fn is_absorbed(place: &str) -> bool {
    /// ext4, XFS, Btrfs and F2FS.
    const ABSORBED: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    let found = rustix::fs::statfs(place).expect("a file system");
    let is_absorbed = ABSORBED.contains(&(found.f_type as u32));
    if !is_absorbed {
        println!("SKIPPED: {place} lies on no file system whose syncs are absorbed");
    }
    is_absorbed
}

/// A place on a disk, and a daemon that ends with it.
pub(crate) struct CacheDirectory(pub(crate) PathBuf);

impl CacheDirectory {
    /// `None`: there are no syncs here that could be absorbed.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if !is_absorbed("/var/tmp") {
            return None;
        }
        let place = Path::new("/var/tmp").join(format!("remanence-run-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("a directory");
        Some(Self(place))
    }

    pub(crate) fn rem(&self, arguments: &[&str]) -> Command {
        let mut command = rem();
        command.current_dir(&self.0).env("REMANENCE_PRELOAD", library()).args(arguments);
        command
    }

    pub(crate) fn said(&self, arguments: &[&str]) -> Said {
        run(&mut self.rem(arguments))
    }
}

impl Drop for CacheDirectory {
    fn drop(&mut self) {
        let _ = self.rem(&["cache", "stop", "--log", "log"]).output();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_program_is_run_with_its_syncs_absorbed_and_a_report() {
    let Some(place) = CacheDirectory::new("report") else { return };
    let script = "echo a > f; sync f; echo b >> f; sync f; echo c >> f; sync f; echo d >> f; sync f; exit 7";
    let said = place.said(&["run", "--log", "log", "--size", "8M", "--report", "--", "sh", "-c", script]);
    assert_eq!(said.status, Some(7), "{}", said.stderr);
    // On a machine that stood still meanwhile the file is old enough to be absorbed from its first sync on.
    let counts = ["2 absorbed, 2 by the kernel", "3 absorbed, 1 by the kernel"];
    assert!(counts.iter().any(|counts| said.stderr.contains(counts)), "{}", said.stderr);
    // The second one finds the daemon that the first has started, and what it counted is not told again.
    let said = place.said(&["run", "--log", "log", "--report", "--", "sh", "-c", "echo e >> f; sync f"]);
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("1 absorbed, 0 by the kernel"), "{}", said.stderr);
    let status = place.said(&["cache", "status", "--log", "log", "--json"]).json();
    assert_eq!(status["state"].as_str(), Some("serving"));
    assert!(status["syncs_absorbed"].as_u64() >= Some(3));
    place.said(&["cache", "drain", "--log", "log"]).good();
    let status = place.said(&["cache", "status", "--log", "log", "--json"]).json();
    assert_eq!(status["used"].as_u64(), Some(0));
    place.said(&["cache", "stop", "--log", "log"]).good();
    place.said(&["cache", "status", "--log", "log"]).bad("no daemon has the log");
    assert_eq!(std::fs::read(place.0.join("f")).expect("it is there"), b"a\nb\nc\nd\ne\n");
    // A log that was closed can be used again.
    let said = place.said(&["run", "--log", "log", "--", "sh", "-c", "echo $REMANENCE_CACHE"]);
    assert!(String::from_utf8(said.good()).expect("text").ends_with("/log.sock\n"));
}

/// The process that has a log: whose command line says so.
fn daemon_of(log: &Path) -> rustix::process::Pid {
    let processes = std::fs::read_dir("/proc").expect("processes");
    let log = log.as_os_str().as_encoded_bytes();
    let mut daemons = processes.filter_map(|process| {
        let process: i32 = process.ok()?.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0).skip_while(|word| *word != b"start");
        let is_daemon = words.next().is_some() && words.any(|word| word == log);
        is_daemon.then(|| rustix::process::Pid::from_raw(process)).flatten()
    });
    daemons.next().expect("it runs")
}

#[test]
fn a_log_whose_daemon_was_killed_is_recovered_when_the_next_program_is_run() {
    let Some(place) = CacheDirectory::new("killed") else { return };
    let script =
        "echo a > f; sync f; sync f; echo b >> f; sync f; echo c >> f; sync f; echo synced; read line";
    let mut first = place.rem(&["run", "--log", "log", "--", "sh", "-c", script]);
    let mut first = first
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(first.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("text");
    assert_eq!(line, "synced\n");
    let daemon = daemon_of(&place.0.join("log"));
    let lives = rustix::process::pidfd_open(daemon, rustix::process::PidfdFlags::empty()).expect("it runs");
    rustix::process::pidfd_send_signal(&lives, rustix::process::Signal::KILL).expect("it runs");
    rustix::event::poll(&mut [rustix::event::PollFd::new(&lives, rustix::event::PollFlags::IN)], None)
        .expect("it ends");
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    let said = place.said(&["run", "--log", "log", "--", "cat", "f"]);
    assert!(said.stderr.contains("was not closed, and its files have all of it"), "{}", said.stderr);
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    assert_eq!(said.good(), b"a\nb\nc\n");
    place.said(&["cache", "stop", "--log", "log"]).good();
}

#[test]
fn which_rule_keeps_a_file_from_the_cache_is_told() {
    let Some(place) = CacheDirectory::new("rules") else { return };
    let script = "for f in a.db b.tmp c.db; do for n in 1 2 3 4; do echo $n >> $f; sync $f; done; done";
    let run = |more: &[&str]| {
        let rules = ["run", "--log", "log", "--report", "--include", "*.db", "--exclude", "./c*"];
        place.said(&[&rules[..], more, &["--", "sh", "-c", script]].concat())
    };
    let said = run(&[]);
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let told = |end: &str| said.stderr.lines().any(|line| line.ends_with(end));
    let place_of = std::fs::canonicalize(&place.0).expect("it is there");
    assert!(told("b.tmp: its path is excluded (no --include has it)"), "{}", said.stderr);
    let rule = format!("c.db: its path is excluded (--exclude {}/c*)", place_of.display());
    assert!(told(&rule), "{}", said.stderr);
    assert!(!said.stderr.contains("a.db"), "{}", said.stderr);
    let files = place.said(&["cache", "status", "--log", "log", "--json"]).json();
    let files = files["files"].as_array().expect("a list").clone();
    let a = files.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with("a.db")));
    assert!(a.is_some_and(|a| a["absorbed"].as_u64() >= Some(2)), "{files:?}");
    // A daemon that runs is not told other ones.
    let said = run(&["--exclude", "*.other"]);
    assert!(said.stderr.contains("runs with other paths"), "{}", said.stderr);
    assert_eq!(run(&[]).status, Some(0));
}

#[test]
fn a_log_of_another_size_than_is_asked_for_is_not_used() {
    let Some(place) = CacheDirectory::new("size") else { return };
    place.said(&["run", "--log", "log", "--size", "8M", "--", "true"]).good();
    for daemon in ["running", "ended"] {
        let other = place.said(&["run", "--log", "log", "--size", "16M", "--", "true"]);
        assert_eq!(other.status, Some(1), "{daemon}");
        assert!(other.stderr.contains("leave the size out, or name another log"), "{}", other.stderr);
        if daemon == "running" {
            place.said(&["cache", "stop", "--log", "log"]).good();
        }
    }
    for same in
        [&["run", "--log", "log", "--size", "8M", "--", "true"][..], &["run", "--log", "log", "--", "true"]]
    {
        place.said(same).good();
    }
}

#[test]
fn what_cannot_be_caught_is_refused_before_it_starts() {
    let Some(place) = CacheDirectory::new("refused") else { return };
    let said = place.said(&["run", "--log", "log", "--", "there-is-no-such-program"]);
    assert_eq!(said.status, Some(127), "{}", said.stderr);
    let said = place.said(&["run", "--log", "log", "--", "su", "--version"]);
    assert_eq!(said.status, Some(126), "{}", said.stderr);
    assert!(said.stderr.contains("set-user-ID"), "{}", said.stderr);
    assert!(!place.0.join("log").exists(), "no daemon was started for it");
}

/// Names that can be guessed, where all may write.
#[test]
fn what_another_user_has_put_in_the_place_of_memory_or_a_socket_is_not_used() {
    let Some(place) = CacheDirectory::new("squatter") else { return };
    let theirs = |path: &Path| std::os::unix::fs::lchown(path, Some(65_534), None).is_ok();
    place.said(&["run", "--log", "log", "--", "true"]).good();
    // A log is named in either way.
    place.said(&["cache", "status", "log"]).good();
    place.said(&["cache", "drain", "log"]).good();
    place.said(&["cache", "stop", "log"]).good();
    let log = File::open(place.0.join("log")).expect("it is there");
    let segment = segment_of(&log).expect("a file");
    let socket = place.0.join("log.sock");
    for there in [&segment, &socket] {
        std::fs::write(there, "theirs").expect("room");
        if !theirs(there) {
            std::fs::remove_file(there).expect("it is there");
            println!("SKIPPED: only root can give a file to another user");
            return;
        }
        let said = place.said(&["run", "--log", "log", "--", "true"]);
        let name = there.display().to_string();
        assert!(
            said.stderr.contains(&name) && said.stderr.contains("belongs to another user"),
            "{}",
            said.stderr
        );
        assert_ne!(said.status, Some(0));
        assert_eq!(std::fs::read(there).expect("it is there"), b"theirs");
        std::fs::remove_file(there).expect("it is there");
    }
    // A link of theirs that leads to a file of ours.
    std::fs::write(place.0.join("own"), []).expect("room");
    std::os::unix::fs::symlink(place.0.join("own"), place.0.join("link")).expect("a link");
    assert!(theirs(&place.0.join("link")));
    place.said(&["run", "--log", "link", "--", "true"]).bad("belongs to another user");
    assert_eq!(std::fs::metadata(place.0.join("own")).expect("it is there").len(), 0);
    place.said(&["run", "--log", "log", "--", "true"]).good();
}

/// Appends four lines, each of which it syncs, and says its own number.
const STATIC: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (int n = 0; n < 4; n++)
        if (write(file, "line\n", 5) != 5 || fsync(file) != 0)
            return 3;
    printf("%d\n", getpid());
    return 7;
}
"#;

#[test]
fn a_static_program_is_seen_by_a_supervisor() {
    let Some(place) = CacheDirectory::new("static") else { return };
    let (source, program) = (place.0.join("writes.c"), place.0.join("writes"));
    std::fs::write(&source, STATIC).expect("room");
    let made = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no static programs can be made here");
        return;
    }
    let path = program.to_str().expect("text");
    let said = place.said(&["doctor", "--json", path]).json();
    assert_eq!(said["programs"][0]["caught"].as_str(), Some("supervisor"), "{said}");
    let said = place.said(&["run", "--log", "log", "--report", "--", path, "f"]);
    assert_eq!(said.status, Some(7), "{}", said.stderr);
    assert!(said.stderr.contains("seen by a supervisor"), "{}", said.stderr);
    let counts = ["2 absorbed, 2 by the kernel", "3 absorbed, 1 by the kernel"];
    assert!(counts.iter().any(|counts| said.stderr.contains(counts)), "{}", said.stderr);
    assert_eq!(std::fs::read(place.0.join("f")).expect("it is there"), b"line\n".repeat(4));
    // It takes the place of the command, and nothing of the supervisor keeps its output open.
    let child =
        place.rem(&["run", "--log", "log", "--", path, "f"]).stdout(std::process::Stdio::piped()).spawn();
    let child = child.expect("rem starts");
    let number = child.id().to_string();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim()),
        (Some(7), &number[..])
    );
    // By a script, which is not static itself.
    let script = "$0 f; $0 f; sync f; exit 4";
    let said =
        place.said(&["run", "--log", "log", "--report", "--supervise", "--", "sh", "-c", script, path]);
    assert_eq!(said.status, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("9 absorbed, 0 by the kernel"), "{}", said.stderr);
    assert_eq!(std::fs::read(place.0.join("f")).expect("it is there"), b"line\n".repeat(16));
}

/// Else it would read what is written, or have a file of somebody else's cut short.
#[test]
fn what_another_user_has_put_in_the_place_of_a_log_is_not_used() {
    let Some(place) = CacheDirectory::new("stranger") else { return };
    let there = |name: &str| place.0.join(name);
    std::fs::write(there("kept"), "kept").expect("room");
    std::os::unix::fs::symlink(there("kept"), there("one.err")).expect("a link");
    place.said(&["run", "--log", "one", "--", "true"]).bad("one.err cannot be written");
    std::fs::write(there("two.err"), "kept").expect("room");
    std::fs::write(there("two"), "this is no log").expect("room");
    place.said(&["run", "--log", "two", "--", "true"]).bad("something else than a log");
    for name in ["kept", "two.err"] {
        let bytes = std::fs::read_to_string(there(name)).expect("it is there");
        assert!(bytes.starts_with("kept"), "{name}: {bytes}");
    }
    std::fs::write(there("three"), "").expect("room");
    if std::os::unix::fs::chown(there("three"), Some(65_534), None).is_err() {
        println!("SKIPPED: only root can give a file to another user");
        return;
    }
    place.said(&["run", "--log", "three", "--", "true"]).bad("belongs to another user");
    // A daemon of theirs, which would be sent descriptors of files.
    let mut theirs = Command::new("setpriv");
    theirs.args(["--reuid=65534", "--clear-groups", "--"]).arg(rem().get_program());
    theirs.current_dir(std::env::temp_dir()).args(["cache", "start", "--log"]).arg(there("four"));
    std::os::unix::fs::chown(&place.0, Some(65_534), None).expect("as above");
    let mut theirs = theirs.stdout(std::process::Stdio::piped()).spawn().expect("setpriv runs");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(theirs.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("text");
    if line != "ready\n" {
        println!("SKIPPED: another user cannot run the program from where it was built");
        let _ = theirs.kill();
        theirs.wait().expect("it ends");
        return;
    }
    let said = place.said(&["cache", "status", "--log", "four"]);
    theirs.kill().expect("it runs");
    theirs.wait().expect("it ends");
    // What it had in memory.
    let _ = std::fs::remove_dir_all("/dev/shm/remanence-cache-65534");
    said.bad("another user's, and serves nobody else (Operation not permitted");
    assert!(!there("three.err").exists(), "it was empty");
}

#[test]
fn a_log_is_frozen_and_thawed() {
    let Some(place) = CacheDirectory::new("freeze") else { return };
    place.said(&["run", "--log", "log", "--size", "8M", "--", "true"]).good();
    let state = || {
        let status = place.said(&["cache", "status", "log", "--json"]).json();
        status["state"].as_str().expect("text").to_owned()
    };
    place.said(&["cache", "freeze", "log"]).good();
    assert_eq!(state(), "frozen");
    let script = "for n in 1 2 3 4; do echo $n >> f; sync f; done";
    let said = place.said(&["run", "--log", "log", "--report", "--", "sh", "-c", script]);
    assert!(said.stderr.contains("0 absorbed, 4 by the kernel"), "{}", said.stderr);
    place.said(&["cache", "thaw", "log"]).good();
    assert_eq!(state(), "serving");
    place.said(&["cache", "stop", "log"]).good();
    place.said(&["cache", "freeze", "log"]).bad("no daemon has the log");
}

#[test]
fn a_status_that_is_watched_goes_on_until_somebody_ends_it() {
    let Some(place) = CacheDirectory::new("watch") else { return };
    place.said(&["run", "--log", "log", "--size", "8M", "--", "true"]).good();
    for as_json in [true, false] {
        let mut command = place.rem(&["cache", "status", "log", "--watch=1"]);
        if as_json {
            command.arg("--json");
        }
        let mut watch = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
        for n in 0..3 {
            let line = lines.next().expect("it goes on").expect("text");
            if as_json {
                let status: serde_json::Value = serde_json::from_str(&line).expect("an object a line");
                assert_eq!(status["state"].as_str(), Some("serving"));
            } else {
                let begins = if n == 0 { "state" } else { "serving" };
                assert!(line.trim_start().starts_with(begins), "{line}");
            }
        }
        let process = rustix::process::Pid::from_raw(watch.id() as i32).expect("a number");
        rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it runs");
        assert!(watch.wait().expect("it ends").success());
    }
}

/// As a unit of systemd starts one, with `Type=notify`.
#[test]
fn a_daemon_tells_its_manager_that_it_is_ready_and_prometheus_how_it_stands() {
    let Some(place) = CacheDirectory::new("unit") else { return };
    let socket = place.0.join("notify");
    let manager = UnixDatagram::bind(&socket).expect("room");
    let start = ["cache", "start", "--log", "log", "--size", "8M", "--metrics", "127.0.0.1:0"];
    let mut daemon = place.rem(&start);
    let mut daemon = daemon.env("NOTIFY_SOCKET", &socket).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut told = [0; 64];
    let len = manager.recv(&mut told).expect("it tells");
    assert_eq!(&told[..len], b"READY=1");
    let mut lines = BufReader::new(daemon.stdout.take().expect("piped")).lines();
    let line = lines.next().expect("a line").expect("text");
    let address = line.strip_prefix("metrics http://").and_then(|line| line.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let script = "for n in 1 2 3 4; do echo $n >> f; sync f; done";
    place.said(&["run", "--log", "log", "--", "sh", "-c", script]).good();
    let scrape = || {
        let mut to = std::net::TcpStream::connect(&address).expect("it listens");
        to.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("room");
        let mut page = String::new();
        to.read_to_string(&mut page).expect("text");
        page
    };
    let page = scrape();
    let value = |name: &str| -> u64 {
        let line = page.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{name}: {page}"))
    };
    assert_eq!(value("remanence_cache_up"), 1);
    assert_eq!(
        value("remanence_cache_syncs_absorbed_total") + value("remanence_cache_syncs_kernel_total"),
        4
    );
    // Entries may be drained at any time.
    assert!(value("remanence_cache_changes_total") > 0 && value("remanence_cache_entries") < 2000);
    assert_eq!((value("remanence_cache_failed"), value("remanence_cache_frozen")), (0, 0));
    place.said(&["cache", "stop", "log"]).good();
    assert!(daemon.wait().expect("it ends").success());
}

/// Into a program with another C library than ours has, nothing of ours can be loaded.
#[test]
fn a_program_with_another_c_library_is_seen_by_a_supervisor() {
    let Some(place) = CacheDirectory::new("musl") else { return };
    let (source, program) = (place.0.join("writes.c"), place.0.join("writes"));
    std::fs::write(&source, STATIC).expect("room");
    let made = Command::new("musl-gcc").arg("-o").arg(&program).arg(&source).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no programs with musl can be made here");
        return;
    }
    let path = program.to_str().expect("text");
    let said = place.said(&["run", "--log", "log", "--report", "--", path, "f"]);
    assert_eq!(said.status, Some(7), "{}", said.stderr);
    assert!(said.stderr.contains("seen by a supervisor"), "{}", said.stderr);
    assert_eq!(std::fs::read(place.0.join("f")).expect("it is there"), b"line\n".repeat(4));
    let counts = ["2 absorbed, 2 by the kernel", "3 absorbed, 1 by the kernel"];
    assert!(counts.iter().any(|counts| said.stderr.contains(counts)), "{}", said.stderr);
}

#[test]
fn the_unit_for_systemd_is_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/systemd/remanence-cache@.service");
    let text = std::fs::read_to_string(unit).expect("it is there");
    let there = rem().get_program().to_str().expect("text").to_owned();
    let path = dir.path().join("remanence-cache@mnt-log.service");
    std::fs::write(&path, text.replace("/usr/local/bin/rem", &there)).expect("room");
    let Ok(said) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output() else {
        return println!("SKIPPED: systemd-analyze is not installed");
    };
    let why = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && !why.contains("remanence-cache"), "{why}");
}
