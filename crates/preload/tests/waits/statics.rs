//! Programs that no library can be loaded into, under a supervisor: what they say, what they are killed with, and what the log has of it is as with any other.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use remanence_intercept::Way;
use rustix::process::{Signal, kill_process};

use crate::cache::{Cache, Talk, traps};
use crate::kills::{self, has_records, records};
use crate::traps::{Syncs, trap_under};

const NEVER: u64 = 3000;

/// Where the sources of the programs are.
fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/waits").join(name)
}

/// Runs a compiler; `None` if it is not there, or cannot make such programs here.
fn built(program: &Path, compiler: &mut Command, way: Way) -> Option<PathBuf> {
    match compiler.output() {
        Ok(output) if output.status.success() => {
            let found = remanence_intercept::inspect(program).expect("a program");
            assert_eq!(found.way(), Ok(way), "{program:?}");
            Some(program.to_owned())
        }
        Ok(output) => {
            println!("skipped: {compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(why) => {
            println!("skipped: {compiler:?}: {why}");
            None
        }
    }
}

/// Where a program goes, which is made once.
fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()))
}

/// The program of C.
fn of_c() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let program = target("static-c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-static", "-pthread", "-o"]).arg(&program).arg(sources("static/writes.c"));
        built(&program, &mut compiler, Way::Outside)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Makes the program of Go, with the C library or without.
fn go(name: &str, is_loaded: bool) -> Option<PathBuf> {
    let program = target(name);
    let mut compiler = Command::new("go");
    compiler.args(["build", "-p", "2", "-o"]).arg(&program).arg(".").current_dir(sources("static-go"));
    compiler.env("CGO_ENABLED", if is_loaded { "1" } else { "0" });
    compiler.envs([("GOFLAGS", "-mod=mod"), ("GOTOOLCHAIN", "local")]);
    built(&program, &mut compiler, if is_loaded { Way::All } else { Way::Outside })
}

/// The program of Go, without the C library.
fn of_go() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| go("static-go", false)).as_deref()
}

/// The same with it.
fn of_go_and_c() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| go("loaded-go", true)).as_deref()
}

/// Under a hook, as a program that the loader loads and that has calls of its own.
fn hooked(cache: &Cache, program: &Path) -> Command {
    let mut command = cache.command(program);
    command.env("REMANENCE_CACHE_SCOPE", "all");
    command
}

fn supervised(cache: &Cache, program: &Path) -> Command {
    cache.supervised(program)
}

fn trap(name: &str, syncs: Syncs) {
    trap_under(&format!("outside-{name}"), name, syncs, |cache| cache.supervised(traps()));
}

#[test]
fn writes_of_all_kinds() {
    for name in ["plain", "big", "vectors", "dsync", "length"] {
        trap(name, Syncs::Absorbed);
    }
}

#[test]
fn descriptors_and_processes() {
    for name in ["dup", "fork", "append", "spawn", "threads"] {
        trap(name, Syncs::Absorbed);
    }
}

#[test]
fn what_only_the_kernel_does() {
    trap("ring", Syncs::Absorbed);
    // A limit is for the kernel to judge.
    for name in ["limit", "map", "copy"] {
        trap(name, Syncs::Kernel);
    }
}

/// What the program does is in the log, call by call.
#[test]
fn nothing_slips_by() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("slips", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.supervised(program).args(["count", "file", "0"]));
    program.until("ready");
    assert!(cache.count("file", "absorbed") > 0);
    let (old, before) = (cache.old(&["file"]), cache.counted("changes"));
    program.say("\n");
    program.until("done");
    // Ten rounds of seven calls, one write that ends early, a hundred of threads, and ten of a child; what is cut short is said before as well, but where the log has nothing of it yet.
    assert_eq!(cache.counted("changes") - before, 70 + 1 + 100 + 10 + 9);
    old.becomes_what_is_there(&cache);
    program.end();
    cache.stop();
}

/// A call that is interrupted is neither lost nor made twice.
#[test]
fn signals_in_the_middle_of_calls() {
    const LINES: usize = 4000;
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("signals", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let output = cache.supervised(program).args(["append", "file", &LINES.to_string()]).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"1\n", "it was interrupted");
    let text = fs::read_to_string(cache.path("file")).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.iter().enumerate().find(|(n, line)| **line != format!("{n:09}"));
    assert_eq!((first, lines.len()), (None, LINES));
    cache.drain();
    cache.old(&["file"]).becomes_what_is_there(&cache);
    cache.stop();
}

/// Goroutines, whose threads get signals all the time, and programs that they execute.
fn many(name: &str, program: Option<&Path>, under: fn(&Cache, &Path) -> Command) {
    const FILES: usize = 8;
    let Some(program) = program else { return };
    let Some(cache) = Cache::new(name, NEVER) else { return };
    let output =
        under(&cache, program).args(["many", "file", &FILES.to_string()]).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for own in 0..FILES {
        let mut expected: String = (0..200).map(|n| format!("{own} {n}\n")).collect();
        expected += "a child\n";
        let text = fs::read_to_string(cache.path(&format!("file-{own}"))).expect("text");
        assert!(text == expected, "file-{own}: {} bytes", text.len());
    }
    assert!(cache.counted("syncs_absorbed") >= FILES as u64, "{}", cache.status());
    cache.stop();
}

#[test]
fn many_threads_of_a_static_program_of_go() {
    many("goroutines-static", of_go(), supervised);
}

#[test]
fn many_threads_of_a_program_of_go_that_is_loaded() {
    many("goroutines-loaded", of_go_and_c(), hooked);
}

/// As any other program that is killed.
fn is_killed(name: &str, program: Option<&Path>, under: fn(&Cache, &Path) -> Command) {
    let Some(program) = program else { return };
    let Some(cache) = Cache::new(name, NEVER) else { return };
    kills::is_killed(&cache, 8, || under(&cache, program));
    // Supervisors end with their programs.
    let until = Instant::now() + Duration::from_secs(60);
    while cache.supervisors() != [vec![], vec![]] {
        assert!(Instant::now() < until, "{:?}", cache.supervisors());
        std::thread::sleep(Duration::from_millis(5));
    }
    cache.stop();
}

#[test]
fn a_static_program_of_c_is_killed() {
    is_killed("static-c", of_c(), supervised);
}

#[test]
fn a_static_program_of_go_is_killed() {
    is_killed("static-go", of_go(), supervised);
}

#[test]
fn a_program_of_go_that_is_loaded_is_killed() {
    is_killed("loaded-go", of_go_and_c(), hooked);
}

/// Of its descriptors, its directory and its terminal.
#[test]
fn a_supervisor_holds_nothing_of_its_programs() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("holds", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    // The shell has a file open that the program inherits, and everybody who is forked before it.
    let script = "exec 7>inherited; exec \"$@\"";
    let mut command = Command::new("sh");
    let supervised = cache.supervised(program);
    command.args(["-c", script, "sh"]).arg(supervised.get_program()).args(supervised.get_args());
    command.args(["forever", "file", "1"]).current_dir(&cache.place).env("REMANENCE_CACHE", cache.socket());
    let mut program = Talk::with(&mut command);
    records(&mut program, 4);
    let log = fs::metadata(cache.log()).expect("it is there");
    // The log, and the root of its file system, are what the cache itself syncs it by.
    let is_the_caches = |fd: &Path, leads_to: &Path| {
        let is_root = || {
            let above = fs::metadata(leads_to.join(".."));
            leads_to == Path::new("/") || above.is_ok_and(|above| above.dev() != log.dev())
        };
        let found = fs::metadata(fd).ok().filter(|found| found.dev() == log.dev());
        found.is_some_and(|found| found.ino() == log.ino() || found.is_dir() && is_root())
    };
    let opened = |process: &Path| -> Vec<PathBuf> {
        let fds = fs::read_dir(process.join("fd")).expect("it is there").flatten();
        let leads_to = |fd: fs::DirEntry| {
            let path = fs::read_link(fd.path()).ok()?;
            (!is_the_caches(&fd.path(), &path)).then_some(path)
        };
        fds.filter_map(leads_to).collect()
    };
    let inherited = cache.path("inherited");
    assert!(opened(Path::new(&format!("/proc/{}", program.child.id()))).contains(&inherited));
    for process in cache.supervisors().into_iter().flatten() {
        let process = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
        let opened = opened(&process);
        let theirs = |path: &&PathBuf| {
            let text = path.to_string_lossy();
            !text.contains("anon_inode") && !text.starts_with("socket:") && !path.ends_with("dev/null")
        };
        assert_eq!(opened.iter().find(theirs), None, "{opened:?}");
        assert_eq!(fs::read_link(process.join("cwd")).expect("it is there"), Path::new("/"));
    }
    program.end();
    cache.stop();
}

/// The numbers that a program has said, and its errors.
fn answers(program: &mut Talk, count: usize) -> (Vec<u64>, Vec<String>) {
    program.say(&".".repeat(count));
    let (mut numbers, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let line = program.line().expect("it goes on");
        match line.parse() {
            Ok(number) => numbers.push(number),
            Err(_) => errors.push(line),
        }
    }
    (numbers, errors)
}

/// What it was at fails, and another one takes its place.
#[test]
fn a_supervisor_that_is_killed_is_replaced() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("replaced", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.supervised(program).args(["forever", "file", "1"]));
    let mut next = answers(&mut program, 4).0.len() as u64;
    for round in 0..6_u64 {
        let [_, servers] = cache.supervisors();
        let server = *servers.first().expect("it serves");
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(300 * round));
            kill_process(server, Signal::KILL).expect("it is there");
        });
        let (numbers, errors) = answers(&mut program, 60);
        killer.join().expect("it kills");
        assert!(numbers.iter().copied().eq(next..next + numbers.len() as u64), "{numbers:?}");
        next += numbers.len() as u64;
        assert!(errors.len() <= 1 && errors.iter().all(|error| error == "E5"), "{errors:?}");
        // The next one has joined when it is at a call.
        let (numbers, errors) = answers(&mut program, 8);
        assert_eq!(errors, [""; 0], "in round {round}");
        next += numbers.len() as u64;
        has_records(&fs::read(cache.path("file")).expect("it is there"), 1, next - 1);
        cache.old(&["file"]).becomes_what_is_there(&cache);
    }
    let absorbed = cache.count("file", "absorbed");
    answers(&mut program, 20);
    assert!(cache.count("file", "absorbed") > absorbed, "also by the last one");
    program.end();
    cache.stop();
}

/// The lock of a file, in the memory that is shared, as if somebody had it who does nothing.
struct Held {
    segment: fs::File,
    at: u64,
}

impl Held {
    /// The number of an owner that nobody is.
    const OWNER: u64 = 0xab_cdef;
    const MASK: u64 = 0xff_ffff;

    /// Takes it, when it is free.
    fn take(cache: &Cache, name: &str) -> Self {
        let path = cache.segment().expect("it is there");
        let segment = fs::File::options().read(true).write(true).open(path).expect("it is ours");
        let inode = fs::metadata(cache.path(name)).expect("it is there").ino();
        let bytes = fs::read(cache.segment().expect("it is there")).expect("it is ours");
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
        // A file that is there, its device, its inode, its time of birth, and its lock.
        let found =
            (2..words.len() - 2).find(|&at| words[at] == inode && words[at - 2] == 1 && words[at + 2] == 0);
        let held = Self { segment, at: (found.expect("it is known") as u64 + 2) * 8 };
        held.put(Self::OWNER);
        held
    }

    fn put(&self, word: u64) {
        self.segment.write_all_at(&word.to_le_bytes(), self.at).expect("room");
    }

    /// Waits until somebody waits for it.
    fn until_wanted(&self) {
        let until = Instant::now() + Duration::from_secs(8);
        loop {
            let mut word = [0; 8];
            self.segment.read_exact_at(&mut word, self.at).expect("it is there");
            let word = u64::from_le_bytes(word);
            assert_eq!(word & Self::MASK, Self::OWNER, "nobody else has it");
            if word != Self::OWNER {
                return;
            }
            assert!(Instant::now() < until, "nobody wants it");
            std::thread::yield_now();
        }
    }

    fn give_back(self) {
        self.put(0);
    }
}

/// Its server waits for the file when the program is killed, and does nothing for it when it has the file.
#[test]
fn nothing_is_done_for_who_is_dead() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("dead", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.supervised(program).args(["forever", "file", "1"]));
    records(&mut program, 10);
    let (before, changes) = (fs::read(cache.path("file")).expect("it is there"), cache.counted("changes"));
    let held = Held::take(&cache, "file");
    program.say(".");
    held.until_wanted();
    program.child.kill().expect("it waits");
    program.child.wait().expect("it was killed");
    held.give_back();
    let until = Instant::now() + Duration::from_secs(60);
    while cache.supervisors() != [vec![], vec![]] {
        assert!(Instant::now() < until, "{:?}", cache.supervisors());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(fs::read(cache.path("file")).expect("it is there") == before);
    assert_eq!(cache.counted("changes"), changes);
    cache.stop();
}

/// What it was at may have been done or not: the program is told that by an error, and is not left to wait.
#[test]
fn what_a_supervisor_is_killed_at_fails() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("unfinished", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.supervised(program).args(["forever", "file", "1"]));
    records(&mut program, 10);
    let held = Held::take(&cache, "file");
    program.say(".");
    held.until_wanted();
    let [_, servers] = cache.supervisors();
    kill_process(*servers.first().expect("it serves"), Signal::KILL).expect("it is there");
    assert_eq!(program.line().as_deref(), Some("E5"));
    held.give_back();
    let (numbers, errors) = answers(&mut program, 10);
    assert_eq!((numbers, errors), ((10..20).collect(), vec![]));
    has_records(&fs::read(cache.path("file")).expect("it is there"), 1, 19);
    cache.old(&["file"]).becomes_what_is_there(&cache);
    program.end();
    cache.stop();
}

/// Nobody is left who could answer: no call succeeds, and none hangs.
#[test]
fn without_keeper_and_server_calls_fail() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("alone", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.supervised(program).args(["forever", "file", "1"]));
    let (numbers, _) = answers(&mut program, 10);
    let [keepers, servers] = cache.supervisors();
    assert_eq!((numbers.len(), keepers.len(), servers.len()), (10, 1, 1));
    for process in keepers.into_iter().chain(servers) {
        kill_process(process, Signal::KILL).expect("it is there");
    }
    // What it says, it says by a call as well: it says nothing, and ends at the end of what it reads.
    program.say(&".".repeat(10));
    assert_eq!(program.numbers(), [0; 0]);
    let status = program.child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    has_records(&fs::read(cache.path("file")).expect("it is there"), 1, 9);
    cache.stop();
}

/// As if it had been killed before anybody was told that it is ready.
#[test]
fn a_supervisor_that_ends_before_it_is_ready_is_not_waited_for() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("early", NEVER) else { return };
    cache.signal_daemon(Signal::STOP);
    let begun = Instant::now();
    let mut command = cache.supervised(program);
    let mut starts = command.args(["forever", "file", "1"]).stderr(Stdio::null()).spawn().expect("it starts");
    let server = loop {
        if let [_, servers] = cache.supervisors()
            && let [server] = servers[..]
        {
            break server;
        }
        assert!(begun.elapsed().as_secs() < 8, "nobody asks to join: {:?}", cache.supervisors());
        std::thread::sleep(Duration::from_millis(1));
    };
    kill_process(server, Signal::KILL).expect("it waits for the daemon");
    let status = starts.wait().expect("it ends");
    assert!(!status.success() && begun.elapsed().as_secs() < 9, "{status}: {:?}", begun.elapsed());
    cache.signal_daemon(Signal::CONT);
    cache.stop();
}

/// What it writes then is nobody's but the kernel's, and nothing older comes back over that.
#[test]
fn a_program_that_lets_nobody_look_into_it_any_more() {
    let Some(program) = of_c() else { return };
    let Some(cache) = Cache::new("hidden", NEVER) else { return };
    fs::write(cache.path("file"), [7; 1000]).expect("room");
    let mut command = cache.supervised(program);
    if rustix::process::geteuid().is_root() {
        // Without the right by which root looks into everybody.
        let supervised = command;
        command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--"]);
        command.arg(supervised.get_program()).args(supervised.get_args());
        command.current_dir(&cache.place).env("REMANENCE_CACHE", cache.socket());
    }
    let mut program = Talk::with(command.args(["hidden", "file", "0"]));
    program.until("ready");
    assert!(cache.count("file", "absorbed") > 0, "{}", cache.status());
    program.until("done");
    assert_eq!(fs::read(cache.path("file")).expect("it is there")[300..306], *b"behind");
    cache.old(&["file"]).becomes_what_is_there(&cache);
    program.end();
    cache.stop();
}
