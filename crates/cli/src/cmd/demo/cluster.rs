//! The demo's servers: processes of this same program, which never outlive it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_pool::auth::Token;
use remanence_pool::client::Client;
use remanence_verbs::Context;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::args::{self, Size};
use crate::device;
use crate::fail::{Context as _, Fail};

/// Where everybody is: four processes share one address and the one port of RoCEv2, as they would share a NIC.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How long a server may take to recover its pool and say that it is ready.
const READY: Duration = Duration::from_secs(30);

/// One server of the cluster: its pool's file, and its process while it runs.
struct Member {
    pool: PathBuf,
    process: Option<Running>,
}

struct Running {
    child: Child,
    /// Closed with us, whatever happens to us: then the server stops by itself.
    _lifeline: ChildStdin,
    address: SocketAddr,
    ready: Value,
}

struct Inner {
    members: Vec<Member>,
    /// Goes, with the pools, when the demo does.
    dir: Option<TempDir>,
    size: Size,
    token: Token,
}

/// The servers of a demo. They are killed and their files removed when it is dropped, and on Ctrl-C.
pub(super) struct Cluster {
    inner: Arc<Mutex<Inner>>,
    /// The clients' RNIC.
    device: Context,
}

impl Cluster {
    /// A place for `count` servers with pools of `size` bytes in a directory below `parent`.
    pub(super) fn new(parent: &Path, count: usize, size: Size) -> Result<Self, Fail> {
        let dir = tempfile::Builder::new()
            .prefix("rem-demo-")
            .tempdir_in(parent)
            .context(|| format!("no directory can be made in {}", parent.display()))?;
        let member = |n: usize| Member { pool: dir.path().join(format!("pool-{}", n + 1)), process: None };
        let members = (0..count).map(member).collect();
        let inner = Inner { members, dir: Some(dir), size, token: args::random_token()? };
        let inner = Arc::new(Mutex::new(inner));
        let mut signals = Signals::new([SIGINT, SIGTERM]).context(|| "signals cannot be received".into())?;
        let ours = Arc::clone(&inner);
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Not given back: nothing may be started after this.
                let mut inner = lock(&ours);
                inner.clear_away();
                anstream::eprintln!("\nrem: interrupted; the demo's servers and files are gone");
                std::process::exit(128 + signal);
            }
        });
        Ok(Self { inner, device: device::open_at(HOST)? })
    }

    /// A client of some of the servers.
    pub(super) fn client(&self, which: &[usize], need: usize) -> Result<Client, Fail> {
        let token = lock(&self.inner).token.clone();
        device::connect_on(&self.device, self.addresses(which), vec![token], need)
    }

    /// Starts servers, side by side, and waits until all of them are ready.
    pub(super) fn start(&self, which: &[usize]) -> Result<(), Fail> {
        let mut inner = lock(&self.inner);
        let mut started = Vec::new();
        for &n in which {
            started.push((n, spawn(&inner.members[n].pool, inner.size, &inner.token)?));
        }
        let mut outcome = Ok(());
        for (n, starting) in started {
            // All of them are waited for, even after one failed: none may be left behind.
            match starting.ready() {
                Ok(running) => inner.members[n].process = Some(running),
                Err(fail) => outcome = Err(Fail::new(format!("server {} did not start: {fail}", n + 1))),
            }
        }
        outcome
    }

    /// SIGKILL, and nothing before it.
    pub(super) fn kill(&self, n: usize) -> u32 {
        lock(&self.inner).members[n].kill()
    }

    /// SIGKILL to all of them at once.
    pub(super) fn kill_all(&self) {
        let mut inner = lock(&self.inner);
        for member in &mut inner.members {
            if let Some(running) = &mut member.process {
                let _ = running.child.kill();
            }
        }
        for member in &mut inner.members {
            member.kill();
        }
    }

    /// Where they are, as a client names them.
    fn addresses(&self, which: &[usize]) -> Vec<(String, SocketAddr)> {
        let inner = lock(&self.inner);
        let running = which.iter().filter_map(|n| Some((n, inner.members[*n].process.as_ref()?)));
        running.map(|(n, running)| (format!("server {}", n + 1), running.address)).collect()
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        let inner = lock(&self.inner);
        inner.members.iter().filter_map(|m| m.process.as_ref()).map(|r| r.child.id()).collect()
    }

    /// What a server said when it was ready.
    pub(super) fn said(&self, n: usize, field: &str) -> Value {
        let inner = lock(&self.inner);
        inner.members[n].process.as_ref().map_or(Value::Null, |running| running.ready[field].clone())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        lock(&self.inner).clear_away();
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn clear_away(&mut self) {
        for member in &mut self.members {
            member.kill();
        }
        drop(self.dir.take());
    }
}

impl Member {
    /// Returns the process that was.
    fn kill(&mut self) -> u32 {
        let Some(mut running) = self.process.take() else { return 0 };
        // It may have ended by itself; then there is nothing to kill, and `wait` says so.
        let _ = running.child.kill();
        let _ = running.child.wait();
        running.child.id()
    }
}

struct Starting {
    child: Child,
    lifeline: ChildStdin,
}

fn spawn(pool: &Path, size: Size, token: &Token) -> Result<Starting, Fail> {
    let program = std::env::current_exe().context(|| "this program cannot be found".into())?;
    let mut command = Command::new(program);
    command.arg("serve").arg(pool);
    if !pool.exists() {
        command.args(["--size", &size.to_string()]);
    }
    command
        .args(["--listen", &format!("{HOST}:0"), "--json", "--stop-on-eof"])
        .env("REM_TOKEN", token.secret())
        .env_remove("REM_TOKEN_FILE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context(|| "a server process cannot be started".into())?;
    let lifeline = child.stdin.take().expect("piped");
    Ok(Starting { child, lifeline })
}

impl Starting {
    fn ready(mut self) -> Result<Running, Fail> {
        let stdout = self.child.stdout.take().expect("piped");
        let (line, first) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines();
            // The rest is read and forgotten, so that the server never waits for us.
            let _ = line.send(lines.next());
            lines.for_each(drop);
        });
        let ready: Option<Value> = match first.recv_timeout(READY) {
            Ok(Some(Ok(text))) => serde_json::from_str(&text).ok(),
            Ok(_) | Err(_) => None,
        };
        let address = ready.as_ref().and_then(|ready| ready["address"].as_str()?.parse().ok());
        match (ready, address) {
            (Some(ready), Some(address)) => {
                Ok(Running { child: self.child, _lifeline: self.lifeline, address, ready })
            }
            _ => Err(self.why()),
        }
    }

    /// The server's own sentence.
    fn why(&mut self) -> Fail {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        let _ = self.child.wait();
        let sentence = text.trim().trim_start_matches("rem: ");
        Fail::new(if sentence.is_empty() { "it did not get ready in time" } else { sentence })
    }
}
