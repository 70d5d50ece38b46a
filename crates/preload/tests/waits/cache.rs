//! A cache in a directory of its own, programs under it, and what a recovery would make of its log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use remanence_cache::cleaner::Action;
use remanence_cache::format::{self, Lost};
use remanence_cache::op::Op;
use remanence_cache::recovery::{Judged, Policy, Recovery, scan};
use remanence_cache::table::Identity;
use remanence_cache_live::command;
use remanence_cache_live::daemon::{segment_of, socket_of};
use rustix::process::{Pid, Signal, kill_process};

/// The variable that says where the library and the programs are, for a test that another user runs, who cannot make them.
const BUILT: &str = "REMANENCE_BUILT";

/// The directory with the library and the programs, as this test's sources make them.
fn built() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        if let Some(place) = std::env::var_os(BUILT) {
            return place.into();
        }
        let arguments = ["-p", "remanence-preload", "--lib", "--examples"];
        remanence_effort::built(env!("CARGO_TARGET_TMPDIR"), &arguments)
    })
}

/// A program with a trap.
pub(crate) fn traps() -> PathBuf {
    example("cache_traps")
}

/// The library that is loaded into programs.
pub(crate) fn library() -> PathBuf {
    built().join("libremanence_preload.so")
}

/// Whether the directory of these tests lies on a file system whose syncs are absorbed; says so, if not.
pub(crate) fn is_absorbed() -> bool {
    /// ext4, XFS, Btrfs and F2FS.
    const ABSORBED: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    let found = rustix::fs::statfs("/var/tmp").expect("a file system");
    let is_absorbed = ABSORBED.contains(&(found.f_type as u32));
    if !is_absorbed {
        println!("SKIPPED: /var/tmp lies on no file system whose syncs are absorbed");
    }
    is_absorbed
}

/// One of our programs.
pub(crate) fn example(name: &str) -> PathBuf {
    built().join("examples").join(name)
}

/// Runs a test of this program again as somebody who is not root, where this is root: some programs refuse to serve root. Whether it did.
pub(crate) fn again_as_nobody(test: &str) -> bool {
    const NOBODY: &str = "65534";
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let place = Path::new("/var/tmp").join(format!("remanence-built-{}", std::process::id()));
    fs::create_dir_all(place.join("examples")).expect("a directory");
    let own = std::env::current_exe().expect("this program");
    fs::copy(own, place.join("test")).expect("room");
    for file in ["examples/cached", "libremanence_preload.so"] {
        fs::copy(built().join(file), place.join(file)).expect("room");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]).arg(place.join("test"));
    command.args([test, "--exact", "--nocapture"]).env(BUILT, &place).current_dir("/");
    let output = command.output();
    fs::remove_dir_all(&place).expect("it is there");
    let output = output.expect("setpriv runs");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "as nobody: {why}");
    true
}

/// A directory with a log and its daemon, which goes with the test.
pub(crate) struct Cache {
    pub(crate) place: PathBuf,
    log: PathBuf,
    batch: u64,
    word: Option<&'static str>,
    daemon: Child,
}

impl Cache {
    /// With a log beside the files, of which a batch has so many entries. `None`: there are no syncs here that could be absorbed.
    pub(crate) fn new(name: &str, batch: u64) -> Option<Self> {
        Self::with_log(name, batch, "/var/tmp")
    }

    /// The same with a log in memory.
    pub(crate) fn in_memory(name: &str, batch: u64) -> Option<Self> {
        Self::with_log(name, batch, "/dev/shm")
    }

    /// The first one, whose daemon is told a word.
    pub(crate) fn told(name: &str, batch: u64, word: &'static str) -> Option<Self> {
        let mut cache = Self::new(name, batch)?;
        cache.stop_and_keep();
        cache.word = Some(word);
        cache.start_again().map(|_| cache).map_err(|why| panic!("a daemon: {why}")).ok()
    }

    fn with_log(name: &str, batch: u64, medium: &str) -> Option<Self> {
        if !is_absorbed() {
            return None;
        }
        let own = format!("remanence-cache-{}-{name}", std::process::id());
        let place = Path::new("/var/tmp").join(&own);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).expect("a directory");
        let log = match medium {
            "/var/tmp" => place.join("log"),
            medium => Path::new(medium).join(format!("{own}.log")),
        };
        Some(Self::begin(place, log, batch))
    }

    /// In a directory that is there.
    pub(crate) fn at(place: PathBuf, batch: u64) -> Self {
        let log = place.join("log");
        Self::begin(place, log, batch)
    }

    fn begin(place: PathBuf, log: PathBuf, batch: u64) -> Self {
        let daemon = Self::spawn(&log, batch, None);
        let mut cache = Self { place, log, batch, word: None, daemon };
        let said = cache.is_ready().expect("a daemon");
        assert_eq!(said, "", "there was no log");
        cache
    }

    fn spawn(log: &Path, batch: u64, word: Option<&str>) -> Child {
        // With few descriptors, as many as it may have open being another question.
        Command::new("sh")
            .args(["-c", "ulimit -Sn 64; exec \"$@\"", "sh"])
            .arg(example("cached"))
            .arg(log)
            .arg(batch.to_string())
            .args(word)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon starts")
    }

    /// What the daemon says of a recovery before it is ready, or why it has ended.
    fn is_ready(&mut self) -> Result<String, String> {
        let mut out = BufReader::new(self.daemon.stdout.take().expect("piped"));
        let mut said = String::new();
        loop {
            let mut line = String::new();
            out.read_line(&mut line).expect("text");
            match line.as_str() {
                "ready\n" => return Ok(said),
                "" => break,
                line => said += line,
            }
        }
        let mut why = String::new();
        self.daemon.stderr.take().expect("piped").read_to_string(&mut why).expect("text");
        self.daemon.wait().expect("it ends");
        Err(why)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.log.clone()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket_of(&self.log)
    }

    /// Where the memory is that a daemon and its programs share.
    pub(crate) fn segment(&self) -> Option<PathBuf> {
        File::open(&self.log).and_then(|log| segment_of(&log)).ok()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// A program under the cache.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.place);
        command.env("LD_PRELOAD", library());
        command.env("REMANENCE_CACHE", self.socket());
        command
    }

    /// A program under a supervisor of the cache.
    pub(crate) fn supervised(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(example("supervised"));
        command.current_dir(&self.place).arg(self.socket()).arg(program);
        // By this it is known whose it is; nothing of it looks there.
        command.env("REMANENCE_CACHE", self.socket());
        command
    }

    /// The words for a shell that put a program under a supervisor, in place of the hook that the shell has.
    pub(crate) fn supervised_words(&self) -> String {
        format!("env -u LD_PRELOAD {} {}", example("supervised").display(), self.socket().display())
    }

    /// The processes that have the cache mapped, or have joined it: of each its id, where the kernel shows it, and which of the two.
    fn processes(&self) -> Vec<(Pid, PathBuf, [bool; 2])> {
        let Some(segment) = self.segment() else { return Vec::new() };
        let (maps, joins) = (segment.display(), format!("REMANENCE_CACHE={}\0", self.socket().display()));
        let signs = [("maps", maps.to_string()), ("environ", joins)];
        let entries = fs::read_dir("/proc").expect("it is there").flatten().filter_map(|entry| {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let (pid, process) = (number.and_then(Pid::from_raw)?, entry.path());
            let has = signs.each_ref().map(|(file, what)| {
                let text = fs::read(process.join(file)).unwrap_or_default();
                text.windows(what.len()).any(|part| part == what.as_bytes())
            });
            has.contains(&true).then_some((pid, process, has))
        });
        entries.collect()
    }

    /// The processes of supervisors of the cache: the keepers, and the servers, which have joined.
    pub(crate) fn supervisors(&self) -> [Vec<Pid>; 2] {
        self.segment().expect("it is there");
        let mut found = [Vec::new(), Vec::new()];
        for (pid, process, [maps, joins]) in self.processes() {
            if joins && fs::read(process.join("comm")).is_ok_and(|name| name.starts_with(b"rem-supervisor")) {
                found[usize::from(maps)].push(pid);
            }
        }
        found
    }

    /// Kills every program that has the cache but one: what has a session of its own by now too, and what was just executed.
    pub(crate) fn kill_programs(&self, but: u32) {
        let mut quiet = 0;
        while quiet < 3 {
            let mut found = false;
            for (pid, ..) in self.processes() {
                let id = pid.as_raw_nonzero().get().unsigned_abs();
                if ![but, self.daemon.id(), std::process::id()].contains(&id) {
                    found = true;
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            // What was between two programs when it was looked at is seen the next time.
            quiet = if found { 0 } else { quiet + 1 };
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn status(&self) -> String {
        command::status(&self.log()).expect("the daemon answers")
    }

    /// A number of the whole cache.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        number(&self.status(), name)
    }

    /// What the status says of a file; `None` if it is not known.
    pub(crate) fn of(&self, name: &str) -> Option<String> {
        let status = self.status();
        let path = format!("{{\"path\":\"{}\"", self.path(name).display());
        let from = status.find(&path)?;
        status[from..].split_once('}').map(|(file, _)| file.to_owned())
    }

    /// Of each file that is known: the syncs that were absorbed, and those of the kernel.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, [u64; 2]> {
        let status = self.status();
        let files = status.split("{\"path\":\"").skip(1).filter_map(|file| file.split_once('"'));
        files
            .map(|(path, rest)| (path.into(), ["absorbed", "kernel"].map(|name| number(rest, name))))
            .collect()
    }

    /// A number of a file.
    pub(crate) fn count(&self, name: &str, what: &str) -> u64 {
        self.of(name).map_or(0, |file| number(&file, what))
    }

    pub(crate) fn drain(&self) {
        command::drain(&self.log()).expect("it can be drained");
    }

    /// Ends the daemon well: nothing is left in the log.
    pub(crate) fn stop(mut self) {
        self.stop_and_keep();
    }

    /// The same, and keeps the files.
    pub(crate) fn stop_and_keep(&mut self) {
        command::stop(&self.log()).expect("it can be stopped");
        assert!(self.daemon.wait().expect("it ends").success());
        let log = format::file_options().open(self.log()).expect("the log");
        assert!(scan(&log, Lost::Unsynced).expect("a log").is_clean());
    }

    /// Kills the daemon.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon.kill().expect("it can be killed");
        self.daemon.wait().expect("it was");
    }

    /// Starts another one, which may say that it has recovered the log, or refuse in a sentence.
    pub(crate) fn start_again(&mut self) -> Result<String, String> {
        self.daemon = Self::spawn(&self.log(), self.batch, self.word);
        self.is_ready()
    }

    /// Starts another one, and kills it somewhere on its way.
    pub(crate) fn start_and_kill(&mut self, behind: std::time::Duration) {
        self.daemon = Self::spawn(&self.log(), self.batch, self.word);
        std::thread::sleep(behind);
        self.kill_daemon();
    }

    /// What the daemon complains of next: it is waited for.
    pub(crate) fn complaint(&mut self) -> String {
        let mut said = Vec::new();
        let complains = self.daemon.stderr.as_mut().expect("piped");
        let mut byte = [0];
        while said.last() != Some(&b'\n') && complains.read_exact(&mut byte).is_ok() {
            said.push(byte[0]);
        }
        String::from_utf8(said).expect("text")
    }

    /// The daemon stands still, or goes on.
    pub(crate) fn signal_daemon(&self, signal: Signal) {
        let process = Pid::from_raw(self.daemon.id() as i32).expect("a number");
        kill_process(process, signal).expect("it runs");
    }

    /// Whether the daemon has ended, and well.
    pub(crate) fn ended_well(&mut self) -> bool {
        self.daemon.wait().expect("it ends").success()
    }

    /// Copies of files, as they are now.
    pub(crate) fn old(&self, names: &[&str]) -> Old {
        let old = Old::of(names.iter().map(|name| self.path(name)));
        assert_eq!(old.0.len(), names.len(), "all of them are there: {names:?}");
        old
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        // What a daemon that was killed has left.
        for left in [self.segment(), Some(self.socket()), Some(self.log())] {
            let _ = left.map(fs::remove_file);
        }
        let _ = fs::remove_dir_all(&self.place);
    }
}

fn number(text: &str, name: &str) -> u64 {
    let name = format!("\"{name}\":");
    let from = text.find(&name).unwrap_or_else(|| panic!("no {name} in {text}")) + name.len();
    let digits = text[from..].chars().take_while(char::is_ascii_digit).collect::<String>();
    digits.parse().expect("a number")
}

/// Files as they were, by their inodes.
pub(crate) struct Old(pub(crate) BTreeMap<u64, (PathBuf, Vec<u8>, SystemTime)>);

impl Old {
    /// Those that are there.
    pub(crate) fn of(paths: impl Iterator<Item = PathBuf>) -> Self {
        let copy = |path: PathBuf| {
            let mut file = File::open(&path).ok()?;
            let (found, mut bytes) = (file.metadata().ok()?, Vec::new());
            file.read_to_end(&mut bytes).ok()?;
            Some((found.ino(), (path, bytes, found.modified().ok()?)))
        };
        Self(paths.filter_map(copy).collect())
    }

    /// Forgets those that are not wanted any more, or have lost their names.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&Path) -> bool) {
        let same = |inode: u64, path: &Path| fs::metadata(path).is_ok_and(|now| now.ino() == inode);
        self.0.retain(|inode, (path, ..)| wanted(path) && same(*inode, path));
    }

    /// Replays a copy of the log onto them, as after the loss of the machine, and gives what each file is then.
    pub(crate) fn replayed(&self, cache: &Cache) -> Vec<(PathBuf, Vec<u8>)> {
        let copy = cache.path("log.copy");
        fs::copy(cache.log(), &copy).expect("room");
        let medium = format::file_options().open(&copy).expect("a log");
        let found = scan(&medium, Lost::Unsynced).expect("a log");
        assert_eq!((&found.damaged, &found.unsure), (&vec![], &vec![]));
        let layout = found.layout;
        let mut files = BTreeMap::new();
        for (inode, (path, bytes, _)) in &self.0 {
            let target = cache.path(&format!("replayed-{inode}"));
            fs::write(&target, bytes).expect("room");
            let file = File::options().read(true).write(true).open(&target).expect("it is there");
            files.insert(*inode, (path.clone(), target, file));
        }
        let mut recovery =
            Recovery::begin(&medium, found, Policy::Hold, &Judged::default()).expect("it begins");
        let mut payload = Vec::new();
        while let Some((token, action)) = recovery.poll() {
            if let Action::Apply { entry } = action {
                recovery.scan().payload(&medium, &entry, &mut payload).expect("it was whole");
                let identity = Identity::read(&medium, &layout, entry.file).expect("a file");
                if let (Some((_, _, file)), Some(op)) = (files.get(&identity.inode), entry.op(&payload)) {
                    carry_out(file, &op);
                }
            }
            recovery.done(token);
        }
        recovery.finish(&medium).expect("it ends");
        drop(medium);
        fs::remove_file(&copy).expect("it is there");
        files
            .into_values()
            .map(|(path, target, _)| {
                let bytes = fs::read(&target).expect("it can be read");
                fs::remove_file(&target).expect("it is there");
                (path, bytes)
            })
            .collect()
    }

    /// The log brings each of them to what it is now.
    pub(crate) fn becomes_what_is_there(&self, cache: &Cache) {
        for (path, bytes) in self.replayed(cache) {
            let now = fs::read(&path).expect("it can be read");
            let differs = now.iter().zip(&bytes).position(|(a, b)| a != b);
            assert_eq!(
                (now.len(), differs),
                (bytes.len(), None),
                "{} is not what the log makes of it",
                path.display()
            );
        }
    }
}

fn carry_out(file: &File, op: &Op<'_>) {
    match *op {
        Op::Write { offset, bytes, .. } => file.write_all_at(bytes, offset).expect("room"),
        Op::Truncate { len, .. } => file.set_len(len).expect("a file"),
        Op::Allocate { mode, offset, len, .. } => {
            let mode = rustix::fs::FallocateFlags::from_bits_retain(mode);
            rustix::fs::fallocate(file, mode, offset, len).expect("room");
        }
        Op::Attributes { .. } => {}
        _ => panic!("names are no change of bytes: {op:?}"),
    }
}

/// A program that is talked to.
pub(crate) struct Talk {
    pub(crate) child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Talk {
    pub(crate) fn with(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let (to, from) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child, to, from: BufReader::new(from) }
    }

    pub(crate) fn say(&mut self, text: &str) {
        let to = self.to.as_mut().expect("it listens");
        to.write_all(text.as_bytes()).and_then(|()| to.flush()).expect("it listens");
    }

    /// The next line; `None` at the end.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let len = self.from.read_line(&mut line).expect("text");
        (len > 0 && line.ends_with('\n')).then(|| line.trim_end().to_owned())
    }

    /// Everything up to a line.
    pub(crate) fn until(&mut self, word: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().unwrap_or_else(|| panic!("it ends before it says {word}: {lines:?}"));
            if line == word {
                return lines;
            }
            lines.push(line);
        }
    }

    /// Nothing more is said to it: the numbers among the lines that it has said, and says until it ends.
    pub(crate) fn numbers(&mut self) -> Vec<u64> {
        drop(self.to.take());
        std::iter::from_fn(|| self.line()).filter_map(|line| line.parse().ok()).collect()
    }

    /// Nothing more is said to it, and it ends well.
    pub(crate) fn end(mut self) {
        drop(self.to.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}
