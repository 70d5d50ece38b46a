//! Programs whose files are read and written in the program (`rem run --mode deferred` and `--mode pages`): they see and leave what they do without, whoever else comes, and what they had synced is there when they were
//! killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use remanence_cache_live::daemon::{Paths, Rule};
use remanence_effort::rounds;
use remanence_nvcache::programs::{Count, Settings};
use remanence_nvcache::{Cache as Library, Options};

use crate::cache::{Talk, example, is_absorbed, library, traps};
use crate::kills::{acknowledged, has_records, records};
use crate::rounds::has;

/// A log, or pages, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Log,
    LogOnDisk,
    Pages,
}

const KINDS: [Kind; 3] = [Kind::Log, Kind::LogOnDisk, Kind::Pages];

/// A directory with files and a log of its own, which goes with the test.
struct Deferred {
    place: PathBuf,
    settings: Settings,
    size: u64,
}

/// So few entries, or pages, that they are full all the time.
const SMALL: u64 = 64 * 4160;

impl Deferred {
    /// `None`: there is no disk here.
    fn new(name: &str, kind: Kind, size: u64) -> Option<Self> {
        if !is_absorbed() {
            return None;
        }
        let own = format!("remanence-deferred-{}-{name}-{kind:?}", std::process::id());
        let place = Path::new("/var/tmp").join(&own);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).expect("a directory");
        let log = match kind {
            Kind::LogOnDisk => place.join("log"),
            Kind::Log | Kind::Pages => Path::new("/dev/shm").join(&own),
        };
        let counts = place.join("counts");
        File::create(&counts).and_then(|counts| counts.set_len(Count::LEN)).expect("room");
        let pages = kind == Kind::Pages;
        let settings = Settings { log, pages, counts: Some(counts), paths: Paths::default() };
        let deferred = Self { place, settings, size };
        assert_eq!(deferred.recovered(), None, "it is new");
        Some(deferred)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// What `rem run` does before the program starts: makes the log, or recovers it, and says so.
    fn recovered(&self) -> Option<String> {
        let log = &self.settings.log;
        let options = if self.settings.pages { Options::pages(log) } else { Options::new(log) };
        let opened = Library::open(&options.size(self.size))
            .expect("nobody has it, and nobody has to decide anything");
        let recovered = opened.recovered().map(str::to_owned);
        opened.close().expect("nothing is open");
        recovered
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.place).env("LD_PRELOAD", library());
        for (name, value) in self.settings.variables() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
    }

    /// A script that ends well; its programs are deferred, one after the other.
    fn script(&self, script: &str) -> String {
        said(self.command("sh").args(["-c", script]))
    }

    fn count(&self, what: Count) -> u64 {
        let (counts, mut word) = (File::open(self.path("counts")).expect("it is there"), [0; 8]);
        counts.read_exact_at(&mut word, what as u64 * 8).expect("it is as long");
        u64::from_le_bytes(word)
    }

    /// All that was counted, for a message.
    fn counted(&self) -> String {
        let all = Count::ALL.into_iter().map(|count| (count, self.count(count)));
        all.filter(|(_, number)| *number > 0).map(|(count, number)| format!("{count:?} {number} ")).collect()
    }

    /// The files that are there, but for the cache's.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        files(&self.place)
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.settings.log);
        let _ = fs::remove_dir_all(&self.place);
    }
}

fn files(place: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(place).expect("a directory").map(|entry| entry.expect("an entry"));
    let named = entries.map(|entry| (entry.file_name().into_string().expect("text"), entry.path()));
    let ours = named.filter(|(name, _)| !["log", "counts"].contains(&name.as_str()));
    ours.map(|(name, path)| (name, fs::read(path).expect("a file"))).collect()
}

/// What a program prints that ends well.
fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {why}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a trap says and leaves without a cache.
fn without(name: &str) -> (String, BTreeMap<String, Vec<u8>>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let place = format!("remanence-deferred-{}-without-{number}", std::process::id());
    let place = Path::new("/var/tmp").join(place);
    fs::create_dir_all(&place).expect("a directory");
    let text = said(Command::new(example("deferred_traps")).args([name, "file"]).current_dir(&place));
    let left = files(&place);
    fs::remove_dir_all(&place).expect("it is there");
    (text, left)
}

/// A trap says and leaves the same with a cache, and the file was handed back for that reason.
fn springs(name: &str, why: Count) {
    for kind in KINDS {
        let Some(deferred) = Deferred::new(name, kind, SMALL) else { return };
        let plain = without(name);
        let text = said(deferred.command(example("deferred_traps")).args([name, "file"]));
        assert_eq!(text, plain.0, "{name} {kind:?}: {}", deferred.counted());
        assert!(deferred.files() == plain.1, "{name} {kind:?} leaves something else: {}", deferred.counted());
        assert!(deferred.count(why) > 0, "{name} {kind:?}: {}", deferred.counted());
        if why != Count::Direct {
            assert!(deferred.count(Count::Writes) > 60, "{name} {kind:?}: {}", deferred.counted());
        }
        assert_eq!(deferred.recovered(), None, "{name} {kind:?}: nothing is left");
    }
}

#[test]
fn what_the_cache_answers_is_what_the_kernel_would() {
    for name in ["plain", "appends", "dsync", "dup", "vectors", "addresses", "sync"] {
        springs(name, Count::Kept);
    }
}

#[test]
fn threads_share_a_file() {
    springs("threads", Count::Kept);
}

/// As daemons close when they begin, and shells choose.
#[test]
fn numbers_of_the_caches_own_stay_open() {
    springs("numbers", Count::Kept);
    springs("range", Count::Kept);
}

#[test]
fn a_process_ends_with_its_last_thread() {
    springs("last", Count::Kept);
}

#[test]
fn children_see_all() {
    springs("fork", Count::Forked);
    springs("spawn", Count::Forked);
    springs("exec", Count::Executed);
}

#[test]
fn what_the_kernel_copies_is_there() {
    springs("map", Count::Mapped);
    springs("sendfile", Count::Copied);
    springs("splice", Count::Copied);
    springs("copy", Count::Copied);
    springs("aio", Count::Asynchronous);
    springs("rights", Count::Sent);
}

#[test]
fn what_is_locked_or_opened_twice_is_the_kernels() {
    springs("flock", Count::Locked);
    springs("lock", Count::Locked);
    springs("again", Count::Shared);
}

#[test]
fn what_is_named_by_its_path_is_the_kernels() {
    for name in ["rename", "unlink", "truncate", "times"] {
        springs(name, Count::Named);
    }
}

#[test]
fn what_only_the_kernel_can_answer_is_its() {
    springs("allocate", Count::Allocated);
    for name in ["hole", "flags", "setfl", "ioctl", "limit"] {
        springs(name, Count::Other);
    }
    springs("unshare", Count::Elsewhere);
    springs("direct", Count::Direct);
}

#[test]
fn threads_are_in_files_that_are_handed_back() {
    springs("together", Count::Locked);
}

/// Whoever opens the file from outside sees all of it, waits for nothing else, and what comes is the kernel's.
#[test]
fn somebody_outside_sees_all() {
    for kind in KINDS {
        let Some(deferred) = Deferred::new("outside", kind, SMALL) else { return };
        let mut program = Talk::with(deferred.command(example("deferred_traps")).args(["outside", "file"]));
        let hash = program.until("ready").pop().expect("a hash");
        let file = File::options().read(true).write(true).open(deferred.path("file")).expect("it is there");
        let mut bytes = vec![0; 70_000];
        file.read_exact_at(&mut bytes, 0).expect("all of it is there");
        assert_eq!(format!("{}", fnv(&bytes)), hash, "{kind:?}");
        assert_eq!(deferred.count(Count::Shared), 1, "{}", deferred.counted());
        file.write_all_at(b"from outside", 60_000).expect("room");
        program.say("\n");
        program.end();
        let left = fs::read(deferred.path("file")).expect("it is there");
        assert_eq!(&left[60_000..60_012], b"from outside", "it is not undone");
        assert_eq!(&left[780..792], b"where it was", "the kernel knows the place");
        assert_eq!(&left[5000..5010], b"at a place");
        assert_eq!(deferred.recovered(), None);
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A file that somebody has open is the kernel's from the beginning, and so is one of a process beside that which has the log.
#[test]
fn a_file_that_others_have_is_not_taken() {
    let Some(deferred) = Deferred::new("in-use", Kind::Log, SMALL) else { return };
    fs::write(deferred.path("file"), []).expect("room");
    let reader = File::open(deferred.path("file")).expect("it is there");
    let plain = without("plain").0;
    let text = said(deferred.command(example("deferred_traps")).args(["plain", "file"]));
    assert_eq!(text, plain);
    assert_eq!((deferred.count(Count::InUse), deferred.count(Count::Deferred)), (1, 0));
    drop(reader);
    let mut first = Talk::with(deferred.command(example("deferred_traps")).args(["outside", "other"]));
    first.until("ready");
    let text = said(deferred.command(example("deferred_traps")).args(["plain", "file"]));
    assert_eq!(text, plain);
    assert_eq!((deferred.count(Count::NoLog), deferred.count(Count::Deferred)), (1, 1));
    first.say("\n");
    first.end();
}

#[test]
fn what_is_excluded_is_not_taken() {
    let Some(mut deferred) = Deferred::new("excluded", Kind::Log, SMALL) else { return };
    deferred.settings.paths.exclude.push(Rule::new("fil?".into()));
    let text = said(deferred.command(example("deferred_traps")).args(["plain", "file"]));
    assert_eq!(text, without("plain").0);
    assert_eq!((deferred.count(Count::Excluded), deferred.count(Count::Deferred)), (1, 0));
}

/// A program is killed wherever it is. What it had said to be synced is there when the log was recovered.
fn is_killed(kind: Kind) {
    let Some(deferred) = Deferred::new("killed", kind, SMALL * 4) else { return };
    let path = deferred.path("file");
    fs::write(&path, []).expect("room");
    let mut recovered = 0;
    let runs = rounds(8, 100);
    for run in 0..runs {
        let mut program = Talk::with(deferred.command(traps()).args(["forever", "file", &run.to_string()]));
        records(&mut program, 6);
        program.say(&".".repeat(400));
        for _ in 0..1 + run * 37 % 300 {
            program.line().expect("it goes on");
        }
        program.child.kill().expect("it can be killed");
        let upto = acknowledged(&mut program);
        program.child.wait().expect("it was");
        recovered += u64::from(deferred.recovered().is_some());
        has_records(&fs::read(&path).expect("it is there"), run, upto);
    }
    assert_eq!(deferred.count(Count::Deferred), runs, "{}", deferred.counted());
    assert!(recovered > 0, "{kind:?}: the file had all of it each time");
}

#[test]
fn what_was_synced_is_in_the_log_of_a_killed_program() {
    is_killed(Kind::Log);
    is_killed(Kind::LogOnDisk);
}

#[test]
fn what_was_synced_is_in_the_pages_of_a_killed_program() {
    is_killed(Kind::Pages);
}

/// What is left is recovered by the next program too, before it has its first file.
#[test]
fn the_next_program_recovers_what_is_left() {
    let Some(deferred) = Deferred::new("left", Kind::Log, 1 << 20) else { return };
    fs::write(deferred.path("file"), []).expect("room");
    let mut program = Talk::with(deferred.command(traps()).args(["forever", "file", "7"]));
    records(&mut program, 30);
    program.child.kill().expect("it can be killed");
    program.child.wait().expect("it was");
    assert!(fs::read(deferred.path("file")).expect("it is there").len() < 30 * 600, "the log has it");
    deferred.script("echo x > other");
    has_records(&fs::read(deferred.path("file")).expect("it is there"), 7, 29);
    assert_eq!(deferred.recovered(), None);
}

/// The same by a command, also of pages.
#[test]
fn coreutils_do_what_they_do_without() {
    let script = "
        set -e
        seq 1 20000 > a
        dd if=a of=b bs=777 conv=fsync status=none
        dd if=a of=b bs=100 seek=9 oflag=dsync conv=notrunc status=none
        dd if=a of=b bs=4k oflag=append conv=notrunc status=none
        cp b c
        cp --reflink=never --sparse=always -p c d
        mv d e
        sort -r -o e e
        sync e; echo more >> e; echo and more >> e
        seq 5 9 | tee -a e > f
        truncate -s 5000 f
        seq 1 9 | split -l 3 - part.
        install -m 600 a g
        sed -i s/1/one/ g
        touch -d 2001-01-01 g
        rm part.ab
        cat a b c e f g part.* > all
        sync
    ";
    for kind in KINDS {
        let Some(deferred) = Deferred::new("coreutils", kind, 1 << 20) else { return };
        let place = deferred.path("plain");
        fs::create_dir(&place).expect("a directory");
        said(Command::new("sh").args(["-c", script]).current_dir(&place));
        let plain = files(&place);
        let modified = fs::metadata(place.join("g")).expect("it is there").mtime();
        fs::remove_dir_all(&place).expect("it is there");
        deferred.script(script);
        assert!(deferred.files() == plain, "{kind:?}: {}", deferred.counted());
        assert_eq!(fs::metadata(deferred.path("g")).expect("it is there").mtime(), modified);
        assert_eq!(deferred.recovered(), None);
    }
}

/// Each by itself has the log.
#[test]
fn dd_and_cp_have_the_log() {
    let Some(deferred) = Deferred::new("dd", Kind::Log, 1 << 20) else { return };
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(deferred.path("a"), &bytes).expect("room");
    said(deferred.command("dd").args(["if=a", "of=b", "bs=5000", "conv=fsync"]));
    assert!(fs::read(deferred.path("b")).expect("it is there") == bytes);
    assert_eq!(
        (deferred.count(Count::Deferred), deferred.count(Count::Kept)),
        (1, 1),
        "{}",
        deferred.counted()
    );
    assert_eq!(deferred.count(Count::Writes), 240);
    said(deferred.command("cp").args(["b", "c"]));
    assert!(fs::read(deferred.path("c")).expect("it is there") == bytes);
    assert_eq!(deferred.count(Count::Copied), 1, "{}", deferred.counted());
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has(&["fio"]) {
        return;
    }
    for kind in KINDS {
        let Some(deferred) = Deferred::new("fio", kind, 2 << 20) else { return };
        for engine in ["psync", "pvsync2", "sync"] {
            let mut command = deferred.command("fio");
            command.args(["--name=job", "--thread", "--numjobs=2", "--rw=randwrite", "--bs=4k", "--size=2m"]);
            command.args([
                "--fsync=8",
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                "--randseed=7",
            ]);
            said(
                command
                    .arg(format!("--ioengine={engine}"))
                    .arg(format!("--filename_format={engine}.$jobnum")),
            );
        }
        assert!(deferred.count(Count::Writes) > 500, "{kind:?}: {}", deferred.counted());
        assert_eq!(deferred.recovered(), None);
        // Its own eyes, without a cache.
        for engine in ["psync", "pvsync2", "sync"] {
            let mut command = Command::new("fio");
            command.args([
                "--name=job",
                "--numjobs=2",
                "--rw=randwrite",
                "--bs=4k",
                "--size=2m",
                "--verify_only=1",
            ]);
            command.args(["--verify=crc32c", "--verify_fatal=1", "--randseed=7", "--ioengine=psync"]);
            command.arg(format!("--filename_format={engine}.$jobnum")).current_dir(&deferred.place);
            said(&mut command);
        }
    }
}

/// One shell, which is killed: its database is locked, so that this is the kernel's; its journal is not.
fn sqlite(mode: &str) {
    if !has(&["sqlite3"]) {
        return;
    }
    for kind in KINDS {
        let Some(deferred) = Deferred::new(mode, kind, 1 << 20) else { return };
        let begin = format!("PRAGMA journal_mode={mode}; CREATE TABLE t(n INTEGER PRIMARY KEY, x BLOB);");
        said(Command::new("sqlite3").arg(deferred.path("db")).arg(begin));
        let mut rows = 0;
        for round in 0..rounds(4, 40) {
            let mut shell = Talk::with(deferred.command("sqlite3").args(["-batch", "db"]));
            shell.say("PRAGMA synchronous=FULL;\n");
            let insert = "INSERT INTO t(x) VALUES (randomblob(900)); SELECT max(n) FROM t;\n";
            shell.say(&insert.repeat(60));
            // It says it when its buffer is full, or it ends: so it ends well every other time.
            if round % 2 == 0 {
                shell.end();
                rows += 60;
            } else {
                std::thread::sleep(std::time::Duration::from_millis(30 * (round % 8)));
                shell.child.kill().expect("it can be killed");
                let done = shell.numbers().pop().unwrap_or(rows);
                shell.child.wait().expect("it was");
                rows = rows.max(done);
            }
            deferred.recovered();
            let checks = "PRAGMA integrity_check; SELECT count(*) FROM t;";
            let text = said(Command::new("sqlite3").arg(deferred.path("db")).arg(checks));
            let count: u64 =
                text.strip_prefix("ok\n").expect("it is whole").trim().parse().expect("a number");
            assert!(count >= rows, "{mode} {kind:?}: {count} of {rows} rows");
            rows = count;
        }
        assert!(deferred.count(Count::Locked) > 0, "{}", deferred.counted());
        let reads_are_for = kind != Kind::Pages || deferred.count(Count::WriteOnly) == 0;
        assert!(
            deferred.count(Count::Writes) > 0 && reads_are_for,
            "{mode} {kind:?}: {}",
            deferred.counted()
        );
    }
}

#[test]
fn sqlite_with_a_log() {
    sqlite("wal");
}

#[test]
fn sqlite_with_a_rollback_journal() {
    sqlite("delete");
}

/// With its file written anew by a child that is forked, and killed: what it had answered is there.
#[test]
fn redis() {
    if !has(&["redis-server", "redis-cli", "redis-check-aof"]) {
        return;
    }
    let Some(deferred) = Deferred::new("redis", Kind::Log, 4 << 20) else { return };
    let socket = deferred.path("s");
    let socket = socket.to_str().expect("text");
    let client = |arguments: &[&str]| {
        Command::new("redis-cli").args(["-s", socket]).args(arguments).output().expect("it runs").stdout
    };
    let server = |command: &mut Command| {
        let options = ["--port", "0", "--unixsocket", socket, "--appendonly", "yes"];
        let more = ["--appendfsync", "always", "--save", "", "--dir", "."];
        let out = File::create(deferred.path("serve.log")).expect("room");
        command.args(options).args(more).current_dir(&deferred.place).stdout(out);
        let child = command.stdin(Stdio::null()).spawn().expect("it starts");
        while !client(&["ping"]).starts_with(b"PONG") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        child
    };
    let mut rows = 0_u64;
    for round in 0..rounds(3, 20) {
        let mut child = server(&mut deferred.command("redis-server"));
        for n in 0..120 {
            if n == 60 && round % 2 == 0 {
                client(&["bgrewriteaof"]);
            }
            if client(&["rpush", "list", &"x".repeat(300)]).is_empty() {
                panic!("it answers nothing: {}", deferred.counted());
            }
            rows += 1;
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it was");
        deferred.recovered();
        let _ = fs::remove_file(socket);
        let mut plain = server(&mut Command::new("redis-server"));
        let found = String::from_utf8(client(&["llen", "list"])).expect("text");
        assert_eq!(found.trim(), rows.to_string(), "round {round}: {}", deferred.counted());
        client(&["shutdown", "nosave"]);
        plain.wait().expect("it ends");
        let _ = fs::remove_file(socket);
    }
    assert!(deferred.count(Count::Syncs) > 60, "{}", deferred.counted());
    assert!(deferred.count(Count::Forked) > 0, "{}", deferred.counted());
}

/// The library hands nothing out: a program may have the cache's library itself.
#[test]
fn the_library_exports_nothing() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output();
    let Ok(output) = output else {
        println!("skipped: nm is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains(" nv"), "{text}");
}
