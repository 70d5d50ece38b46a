//! `rem` as its users run it: real processes, each test with addresses and files of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub(crate) use remanence_effort::address;
use serde_json::Value;
use tempfile::TempDir;

/// The program, with nothing of our own environment that it would read, and a local address of its own.
pub(crate) fn rem() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rem"));
    for variable in ["REM_TOKEN", "REM_TOKEN_FILE", "REM_SERVERS"] {
        command.env_remove(variable);
    }
    command.env("REM_LOCAL", address().to_string()).stdin(Stdio::null());
    command
}

/// A large file of somebody else, of which most is a hole.
pub(crate) struct Sparse {
    path: PathBuf,
    /// Bytes, blocks, and when it was last changed.
    was: (u64, u64, i64, i64, i64, i64),
}

impl Sparse {
    pub(crate) fn in_dir(dir: &Path) -> Self {
        let path = dir.join("sparse");
        // What an opener looks at is there, so that a look has no block allocated (by tmpfs).
        std::fs::write(&path, vec![b'x'; 64 << 10]).expect("room");
        let file = std::fs::File::options().write(true).open(&path).expect("there");
        file.set_len(64 << 20).expect("a hole");
        // Blocks are allocated when pages are written.
        file.sync_all().expect("a disk");
        let was = Self::of(&path);
        assert!(was.1 * 512 < was.0, "the file system knows holes");
        Self { path, was }
    }

    fn of(path: &Path) -> (u64, u64, i64, i64, i64, i64) {
        let now = std::fs::metadata(path).expect("there");
        (now.size(), now.blocks(), now.mtime(), now.mtime_nsec(), now.ctime(), now.ctime_nsec())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_as_it_was(&self) {
        assert_eq!(Self::of(&self.path), self.was, "something of it was changed");
    }
}

/// What a finished command said.
pub(crate) struct Said {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Said {
    pub(crate) fn of(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        Self { status: output.status.code(), stdout: output.stdout, stderr }
    }

    /// It succeeded; what is on stdout.
    pub(crate) fn good(self) -> Vec<u8> {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self.stdout
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_slice(&self.good()).expect("JSON on stdout")
    }

    /// It failed, with status 1, nothing on stdout and one sentence on stderr that contains `what`, as JSON if that was
    /// asked for.
    pub(crate) fn bad(self, what: &str) {
        assert_eq!(self.status, Some(1), "{}", self.stderr);
        let last = self.stderr.trim_end().lines().last().unwrap_or_default();
        let said = match serde_json::from_str::<Value>(last) {
            Ok(json) => json["error"].as_str().expect("an error").to_owned(),
            Err(_) => last.strip_prefix("rem: ").unwrap_or_default().to_owned(),
        };
        assert!(said.contains(what), "{:?} does not say {what:?}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        assert_eq!(String::from_utf8_lossy(&self.stdout), "");
    }
}

pub(crate) fn run(command: &mut Command) -> Said {
    Said::of(command.output().expect("rem starts"))
}

/// Runs a command with something on standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Said {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rem starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // It may end early, and then does not read all.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("the writer ends");
    Said::of(output)
}

/// What is served: by which words, in which file, and how where nothing else is said.
pub(crate) struct Kind {
    pub(crate) command: &'static [&'static str],
    pub(crate) file: &'static str,
    pub(crate) usual: &'static [(&'static str, &'static str)],
}

const POOL: Kind = Kind { command: &["serve"], file: "pool", usual: &[] };

/// A server process with a file in a directory of its own.
pub(crate) struct Server {
    pub(crate) dir: TempDir,
    pub(crate) address: IpAddr,
    pub(crate) child: Option<Child>,
    pub(crate) ready: Value,
    kind: &'static Kind,
}

impl Server {
    /// Of a pool.
    pub(crate) fn new(size: &str) -> Self {
        Self::of(&POOL, tempfile::tempdir(), &["--size", size])
    }

    pub(crate) fn of(kind: &'static Kind, dir: std::io::Result<TempDir>, more: &[&str]) -> Self {
        let dir = dir.expect("a directory");
        let mut this = Self { dir, address: address(), child: None, ready: Value::Null, kind };
        this.start(more);
        this
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join(self.kind.file)
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.path().join("pool.token")
    }

    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }

    /// Where it says that it is.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.ready["address"].as_str().expect("an address").parse().expect("an address")
    }

    /// How this server is started.
    pub(crate) fn command(&self) -> Command {
        let mut command = rem();
        command.args(self.kind.command).arg(self.file()).args(["--listen", &self.name(), "--json"]);
        command
    }

    pub(crate) fn start(&mut self, more: &[&str]) {
        let mut command = self.command();
        for (option, value) in self.kind.usual.iter().filter(|(option, _)| !more.contains(option)) {
            command.args([option, value]);
        }
        let (child, ready) = start(command.args(more).stderr(Stdio::piped()));
        self.ready = ready;
        assert_eq!(self.ready["event"], "ready");
        self.child = Some(child);
    }

    /// Ends the server with SIGKILL, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// SIGTERM; what it said at last.
    pub(crate) fn stop(&mut self) -> Value {
        let child = self.child.take().expect("it runs");
        signal(&child, "-TERM");
        let said = Said::of(child.wait_with_output().expect("it ends"));
        serde_json::from_slice(&said.good()).expect("JSON")
    }

    /// A command for this server.
    pub(crate) fn client(&self, verb: &str) -> Command {
        client(verb, &[self])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server, which says in a line of JSON that it is ready.
pub(crate) fn start(command: &mut Command) -> (Child, Value) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("rem starts");
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    lines.read_line(&mut line).expect("it says something");
    child.stdout = Some(lines.into_inner());
    if line.is_empty() {
        let mut why = String::new();
        child.stderr.take().map(|mut said| said.read_to_string(&mut why));
        panic!("the server did not start: {why}");
    }
    (child, serde_json::from_str(&line).expect("JSON"))
}

/// A command for several servers, with all their tokens.
pub(crate) fn client(verb: &str, servers: &[&Server]) -> Command {
    let names: Vec<_> = servers.iter().map(|s| s.address.to_string()).collect();
    let tokens: Vec<_> =
        servers.iter().map(|s| std::fs::read_to_string(s.token_file()).expect("a token")).collect();
    let mut command = rem();
    command.args(verb.split(' ')).args(["-s", &names.join(",")]).env("REM_TOKEN", tokens.join("\n"));
    command
}

pub(crate) fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

pub(crate) fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

/// Bytes that differ from block to block.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (seed.wrapping_mul(0x9E37_79B9).wrapping_add(n.wrapping_mul(0x1_0001)) >> 7) as u8)
        .collect()
}
