//! Nothing slips by: what the hook saw of a program is what the kernel saw.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::tracer::{Key, trace};

/// The directory with the probe and the program with the traps, as this test's sources make them.
pub(crate) fn examples() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let arguments = ["-p", "remanence-intercept", "--examples", "--profile", "test"];
    let build = || remanence_effort::built(env!("CARGO_TARGET_TMPDIR"), &arguments).join("examples");
    BUILT.get_or_init(build).clone()
}

/// A directory that goes with the test.
pub(crate) struct TestDirectory(pub(crate) PathBuf);

impl TestDirectory {
    pub(crate) fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("remanence-intercept-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        Self(place)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        // What is left of it does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program under the probe and the tracer in each of the probe's modes, and compares what both saw.
fn nothing_slips_by(name: &str, modes: &[&str], program: &[&str]) {
    nothing_of_these_slips_by(name, modes, program, |_| true);
}

/// The same for calls of some numbers.
fn nothing_of_these_slips_by(name: &str, modes: &[&str], program: &[&str], these: fn(u64) -> bool) {
    let Some((first, arguments)) = program.split_first() else { return };
    if Command::new("sh")
        .args(["-c", "command -v \"$1\" >/dev/null", "sh", first])
        .status()
        .is_ok_and(|s| !s.success())
    {
        println!("skipped: {first} is not installed");
        return;
    }
    for mode in modes {
        let place = TestDirectory::new(&format!("{name}-{}", mode.replace(',', "-")));
        let log = place.0.join("log");
        let file = std::fs::File::create(&log).expect("a file");
        file.set_len(32 << 20).expect("its size");
        let mut command = Command::new(first);
        command.args(arguments).current_dir(&place.0);
        command.env("TMPDIR", &place.0).env("LD_PRELOAD", examples().join("libprobe.so"));
        command.env("REMANENCE_PROBE_LOG", &log).env("REMANENCE_PROBE_MODE", mode);
        let Some(seen) = trace(&mut command) else {
            println!("skipped: nobody may trace here");
            return;
        };
        assert_eq!(seen.status, 0, "{program:?} ({mode}) failed");
        assert_eq!(
            seen.executed, seen.hooked,
            "{program:?} ({mode}): each program that is executed gets the hook"
        );
        let hooked = hooked(&log);
        let slipped: Vec<_> = seen
            .calls
            .iter()
            .map(|(key, count)| {
                (key, count - seen.restarts.get(key).unwrap_or(&0), hooked.get(key).unwrap_or(&0))
            })
            .filter(|(key, made, hooked)| these(key.1) && key.1 != ANSWERED && made > hooked)
            .collect();
        assert!(
            slipped.is_empty(),
            "{program:?} ({mode}): not seen (process, number, address): {slipped:x?}"
        );
        let never: Vec<_> = hooked
            .iter()
            .filter(|(key, n)| key.1 != ANSWERED && *n > seen.calls.get(key).unwrap_or(&0))
            .collect();
        assert!(never.is_empty(), "{program:?} ({mode}): seen, and never made: {never:x?}");
        assert!(!hooked.is_empty(), "{program:?} ({mode}): the hook saw nothing");
    }
}

/// The call that the probe answers, or makes itself meanwhile.
const ANSWERED: u64 = 0x7ea2;

/// What the probe wrote down.
pub(crate) fn hooked(log: &Path) -> HashMap<Key, u64> {
    let bytes = std::fs::read(log).expect("the log");
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
    let count = usize::try_from(words[0]).expect("a count");
    assert!(4 + count * 4 <= words.len(), "the log is too small for {count} calls");
    let mut hooked = HashMap::new();
    for record in words[4..].chunks_exact(4).take(count) {
        *hooked.entry((record[0], record[1] & 0xffff_ffff, record[2])).or_default() += 1;
    }
    hooked
}

const BOTH: &[&str] = &["libc", "libc,handle"];

fn trap(what: &str, modes: &[&str]) {
    let traps = examples().join("traps");
    nothing_slips_by(what, modes, &[traps.to_str().expect("text"), what]);
}

#[test]
fn stdio_and_popen() {
    trap("stdio", BOTH);
}

#[test]
fn calls_on_files_and_errno() {
    trap("files", BOTH);
}

#[test]
fn aio_of_a_thread_of_the_library() {
    trap("aio", BOTH);
}

#[test]
fn threads() {
    trap("threads", BOTH);
}

#[test]
fn fork_beside_threads_in_calls() {
    trap("fork", BOTH);
}

#[test]
fn vfork_in_the_parents_memory() {
    trap("vfork", BOTH);
}

#[test]
fn posix_spawn_in_the_parents_memory() {
    trap("spawn", BOTH);
}

#[test]
fn signals_in_the_middle_of_calls() {
    trap("signals", BOTH);
}

#[test]
fn a_thread_that_waits_is_cancelled() {
    trap("cancel", BOTH);
}

#[test]
fn registers_flags_and_the_red_zone_are_as_the_kernel_leaves_them() {
    trap("registers", &["all", "all,handle"]);
}

#[test]
fn an_answer_arrives_as_from_the_kernel() {
    trap("answered", &["all,handle"]);
}

#[test]
fn a_library_that_is_loaded_later_is_patched_when_asked() {
    trap("loaded", &["all,handle"]);
}

#[test]
fn shells() {
    let script = "echo one | cat; (cd /; pwd) >f; read x <f; trap 'echo t' USR1; kill -USR1 $$; sleep 0.01 & wait; ls f | wc -l";
    nothing_slips_by("dash", BOTH, &["dash", "-c", script]);
    nothing_slips_by("bash", BOTH, &["bash", "-c", script]);
}

#[test]
fn coreutils() {
    let script = "seq 20000 >a; sort -R a >b; sort -S 64k -n --parallel=2 b >c; cmp a c; cp a d; cp --sparse=always a e; \
                  dd if=a of=g bs=4k conv=fsync 2>/dev/null; cat a d | head -c 5000 >h; split -l 5000 a; tac a | tee i | tail -n 1; \
                  truncate -s 5 h; shred -n 1 h; sync a; mv i j; ln j k; rm -r j; sed -i s/1/2/ d; find . -name x\\* | xargs wc -c";
    nothing_slips_by("coreutils", BOTH, &["sh", "-e", "-c", script]);
}

#[test]
fn sqlite() {
    for mode in ["delete", "wal"] {
        let script = format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t(a); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<500) \
             INSERT INTO t SELECT randomblob(100) FROM n; UPDATE t SET a=1; PRAGMA integrity_check;"
        );
        nothing_slips_by(mode, BOTH, &["sqlite3", "x.db", &script]);
    }
}

/// Calls on files that the Go runtime makes for its program, and none for itself, as `write` is, by which it wakes itself.
fn of_files(number: u64) -> bool {
    [libc::SYS_pwrite64, libc::SYS_fsync, libc::SYS_ftruncate, libc::SYS_renameat]
        .contains(&number.cast_signed())
}

#[test]
fn files_of_a_program_of_go() {
    let place = TestDirectory::new("go");
    let program = place.0.join("program");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/waits/go");
    let built = Command::new("go")
        .args(["build", "-p", "2", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(sources)
        .envs([("CGO_ENABLED", "1"), ("GOFLAGS", "-mod=mod"), ("GOTOOLCHAIN", "local")])
        .output();
    match built {
        Ok(output) if output.status.success() => {}
        Ok(output) => return println!("skipped: go build: {}", String::from_utf8_lossy(&output.stderr)),
        Err(why) => return println!("skipped: go: {why}"),
    }
    let program = program.to_str().expect("text");
    nothing_of_these_slips_by("go-run", &["all", "all,handle"], &[program], of_files);
}

#[test]
fn python() {
    let script = "import subprocess, threading, tempfile, os, socket\n\
                  print(subprocess.run(['echo', 'x'], capture_output=True))\n\
                  ts = [threading.Thread(target=lambda: tempfile.TemporaryFile().write(b'x' * 99999)) for _ in range(4)]\n\
                  [t.start() for t in ts]; [t.join() for t in ts]\n\
                  p = os.fork()\n\
                  if p == 0: os._exit(0)\n\
                  os.waitpid(p, 0); a, b = socket.socketpair(); a.sendall(b'1'); b.recv(1)\n";
    nothing_slips_by("python", &["all", "all,handle"], &["python3", "-c", script]);
}
