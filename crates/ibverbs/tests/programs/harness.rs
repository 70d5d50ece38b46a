//! How two programs meet: a network of their own, the drop-in libraries, a server that is seen to listen before the
//! client starts, and a limit after which both are killed.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common;

/// Two programs, and what becomes of them. `{server}` and `{client}` in arguments are the addresses of the two ends.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    /// How the server is seen to listen.
    pub(crate) ready: Ready,
    /// What the client must say, each in one line.
    pub(crate) says: &'static [&'static str],
    /// What the server must say.
    pub(crate) server_says: &'static [&'static str],
    /// The server goes on, and is ended when the client is done.
    pub(crate) serves_on: bool,
    /// So many clients at the same time.
    pub(crate) clients: usize,
    /// Both see the devices below /sys and /dev: by `rem verbs`, where it is built.
    pub(crate) view: bool,
    /// How often it may fail for a reason of its own: see the row.
    pub(crate) tries: usize,
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) limit: Duration,
}

/// How a server is seen to listen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// A TCP port is listened on.
    Tcp(u16),
    /// A port of the connection manager is taken, and the program waits.
    Cm(u16),
    /// It does not say; the first line that it prints is soon enough.
    Line,
    /// There is one program only.
    Alone,
}

/// The same command on both sides; the client names the server.
macro_rules! both {
    ($command:literal) => {
        $crate::harness::Row {
            server: $command,
            client: concat!($command, " {server}"),
            ..$crate::harness::ROW
        }
    };
}
pub(crate) use both;

/// What most rows are.
pub(crate) const ROW: Row = Row {
    server: "",
    client: "",
    ready: Ready::Tcp(18515),
    says: &[],
    server_says: &[],
    serves_on: false,
    clients: 1,
    view: false,
    tries: 1,
    settings: &[],
    limit: Duration::from_secs(30),
};

/// What no program says that works. Lines with one of the second list are no trouble.
const TROUBLE: [&str; 6] = ["error", "fail", "invalid data", "mismatch", "couldn't", "unable"];
const NO_TROUBLE: [&str; 2] = ["Device not recognized to implement inline feature", "errors: 0"];

/// Where the two programs are.
pub(crate) enum Place {
    /// On one host, over loopback.
    Host,
    /// On two hosts with a wire between them.
    Wire,
}

/// Runs all rows of a table, and fails with what went wrong in any of them.
#[track_caller]
pub(crate) fn run(place: Place, rows: &[Row]) {
    let _one_at_a_time = one_at_a_time();
    let net = match Net::new(&place) {
        Ok(net) => net,
        Err(why) if matches!(place, Place::Wire) => {
            return println!("skipped: no network namespaces ({why})");
        }
        Err(_) => Net::shared(),
    };
    let mut failures = String::new();
    for row in rows {
        let began = Instant::now();
        let mut tried = net.pair(row);
        for _ in 1..row.tries {
            tried = tried.or_else(|_| net.pair(row));
        }
        match tried {
            Ok(Said::Skipped(why)) => println!("skipped: {}: {why}", row.client),
            Ok(Said::All) => println!("{:6.2} s  {}", began.elapsed().as_secs_f64(), row.client),
            Err(why) => {
                println!("{:6.2} s  {} FAILED", began.elapsed().as_secs_f64(), row.client);
                let _ = writeln!(failures, "{why}");
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Most of these programs spin, and would only wait for each other.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Said {
    All,
    Skipped(String),
}

/// Network namespaces, each held by a process that does nothing.
pub(crate) struct Net {
    server: Option<Child>,
    client: Option<Child>,
    addresses: [&'static str; 2],
    privileged: bool,
}

impl Net {
    fn new(place: &Place) -> Result<Self, String> {
        // Root needs no user namespace, and keeps its rights without one.
        let privileged = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
        let privileged = privileged.is_ok_and(|status| status.success());
        let mut net = Self { server: None, client: None, addresses: ["127.0.0.1"; 2], privileged };
        let mut unshare = Command::new("unshare");
        if !privileged {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.arg("--net");
        net.server = Some(hold(unshare)?);
        // Addresses can be used as soon as they are there, without asking whether somebody has them.
        const AT_ONCE: &str = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad";
        net.sh(&format!("{AT_ONCE}; ip link set lo up"))?;
        if let Place::Wire = place {
            net.addresses = ["10.88.0.1", "10.88.0.2"];
            let mut unshare = net.enter(net.server.as_ref());
            unshare.args(["unshare", "--net"]);
            net.client = Some(hold(unshare)?);
            let other = net.client.as_ref().map_or(0, Child::id);
            net.sh(&format!(
                "nsenter -t {other} -n sh -c '{AT_ONCE}'; ip link add veth0 type veth peer name veth0 netns {other} && \
                 ip addr add 10.88.0.1/24 dev veth0 && ip addr add fd88::1/64 dev veth0 nodad && \
                 ip link set veth0 up && nsenter -t {other} -n sh -c 'ip link set lo up && \
                 ip addr add 10.88.0.2/24 dev veth0 && ip addr add fd88::2/64 dev veth0 nodad && \
                 ip link set veth0 up' && for n in $(seq 500); do \
                 test $(nsenter -t {other} -n ip -o addr show dev veth0 scope link | wc -l) = 1 && exit 0; \
                 sleep 0.01; done; echo no link-local address >&2; exit 1"
            ))?;
        }
        Ok(net)
    }

    /// This machine's own network, where no other can be had.
    const fn shared() -> Self {
        Self { server: None, client: None, addresses: ["127.0.0.1"; 2], privileged: false }
    }

    fn sh(&self, script: &str) -> Result<(), String> {
        let output = self.enter(self.server.as_ref()).args(["sh", "-c", script]).output();
        let output = output.map_err(|e| e.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// A command to which a program's name and arguments are still to be added.
    fn enter(&self, holder: Option<&Child>) -> Command {
        let Some(holder) = holder else { return Command::new("env") };
        let mut command = Command::new("nsenter");
        command.arg("-t").arg(holder.id().to_string()).arg("-n");
        if !self.privileged {
            command.args(["-U", "--preserve-credentials"]);
        }
        command.arg("--");
        command
    }

    fn program(&self, side: usize, line: &str, row: &Row) -> Result<Running, String> {
        let holder =
            if side == 1 && self.client.is_some() { self.client.as_ref() } else { self.server.as_ref() };
        let line = line.replace("{server}", self.addresses[0]).replace("{client}", self.addresses[1]);
        let mut command = self.enter(holder);
        if matches!(row.ready, Ready::Line) {
            // Into a pipe they would keep their lines to themselves.
            command.args(["stdbuf", "-oL"]);
        }
        if row.view {
            command.arg(rem()).args(["verbs", "--"]);
        }
        for word in line.split_whitespace() {
            command.arg(word);
        }
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REMANENCE_"))
        {
            command.env_remove(name);
        }
        let libraries = common::dropin();
        let variable = if row.view { "REMANENCE_LIB" } else { "LD_LIBRARY_PATH" };
        command.env(variable, libraries).envs(row.settings.iter().copied());
        Running::start(command, &line)
    }

    /// Runs a server and a client to their end.
    fn pair(&self, row: &Row) -> Result<Said, String> {
        for program in [row.server, row.client].iter().filter_map(|line| line.split_whitespace().next()) {
            if !installed(program) {
                return Ok(Said::Skipped(format!("{program} is not installed")));
            }
        }
        if row.view && !rem().exists() {
            return Ok(Said::Skipped("rem is not built".into()));
        }
        let until = Instant::now() + row.limit;
        let mut server = None;
        if !matches!(row.ready, Ready::Alone) {
            let mut running = self.program(0, row.server, row)?;
            if let Err(why) = running.listens(row.ready, until) {
                return Err(running.end(&why));
            }
            server = Some(running);
        }
        let clients: Result<Vec<Running>, String> =
            (0..row.clients).map(|_| self.program(1, row.client, row)).collect();
        let (mut clients, mut faults) = (clients?, Vec::new());
        for client in &mut clients {
            if let Err(why) = client.ends_well(until) {
                faults.push(format!("client: {why}"));
            }
        }
        if let Some(server) = &mut server {
            if row.serves_on {
                server.kill();
            } else if let Err(why) = server.ends_well(if faults.is_empty() { until } else { Instant::now() })
            {
                faults.push(format!("server: {why}"));
            }
        }
        let server = server.map_or_else(String::new, Running::said);
        check("server", &server, row.server_says, &mut faults);
        let mut client = String::new();
        for said in clients.into_iter().map(Running::said) {
            check("client", &said, row.says, &mut faults);
            client += &said;
        }
        if faults.is_empty() {
            return Ok(Said::All);
        }
        Err(format!(
            "--- {} | {}\n{}\n--- client said\n{}\n--- server said\n{}",
            row.server,
            row.client,
            faults.join("\n"),
            client.trim_end(),
            server.trim_end()
        ))
    }
}

/// All of `wanted` was said, and no trouble.
fn check(who: &str, said: &str, wanted: &[&str], faults: &mut Vec<String>) {
    faults.extend(wanted.iter().filter(|w| !said.contains(**w)).map(|w| format!("{who}: no {w:?}")));
    for line in said.lines() {
        let lower = line.to_lowercase();
        let bad = TROUBLE.iter().any(|word| lower.contains(word));
        if bad && !NO_TROUBLE.iter().any(|fine| line.contains(fine)) {
            faults.push(format!("{who}: {line}"));
        }
    }
}

/// The binary of the `cli` crate, which a test of the whole workspace builds first.
fn rem() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("below cargo's directory").join("debug/rem")
}

impl Drop for Net {
    fn drop(&mut self) {
        for holder in [&mut self.client, &mut self.server].into_iter().flatten() {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// Starts a process that holds a namespace, and waits until it is in it.
fn hold(mut enter: Command) -> Result<Child, String> {
    let mut child = enter
        .args(["sh", "-c", "echo there; exec sleep 100000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
    if read.is_ok_and(|n| n > 0) {
        return Ok(child);
    }
    let _ = child.wait();
    Err("unshare(1) makes none".into())
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// A program, and what it says.
struct Running {
    child: Child,
    line: String,
    readers: Vec<JoinHandle<String>>,
    status: Option<ExitStatus>,
    spoke: std::sync::mpsc::Receiver<()>,
}

impl Running {
    fn start(mut command: Command, line: &str) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("{line}: {e}"))?;
        let (told, spoke) = std::sync::mpsc::channel();
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let readers = vec![
            thread::spawn(move || {
                let (mut out, mut all) = (BufReader::new(out), Vec::new());
                let _ = out.read_until(b'\n', &mut all);
                let _ = told.send(());
                let _ = out.read_to_end(&mut all);
                String::from_utf8_lossy(&all).into_owned()
            }),
            thread::spawn(move || {
                let (mut err, mut all) = (err, Vec::new());
                let _ = err.read_to_end(&mut all);
                String::from_utf8_lossy(&all).into_owned()
            }),
        ];
        Ok(Self { child, line: line.to_owned(), readers, status: None, spoke })
    }

    /// Looks until it listens.
    fn listens(&mut self, ready: Ready, until: Instant) -> Result<(), String> {
        loop {
            let there = match ready {
                Ready::Tcp(port) => self.tcp_listens(port),
                Ready::Cm(port) => self.cm_listens(port),
                Ready::Line => self.spoke.try_recv().is_ok(),
                Ready::Alone => true,
            };
            if there {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                self.status = Some(status);
                return Err(format!("server: {status} before it listened"));
            }
            if Instant::now() > until {
                return Err(format!("server: does not listen ({ready:?})"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn tcp_listens(&self, port: u16) -> bool {
        const LISTEN: &str = "0A";
        ["tcp", "tcp6"].iter().any(|table| {
            let text =
                fs::read_to_string(format!("/proc/{}/net/{table}", self.child.id())).unwrap_or_default();
            text.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.get(3) == Some(&LISTEN) && words[1].ends_with(&format!(":{port:04X}"))
            })
        })
    }

    /// Each port that is taken is an abstract unix name, whose service ends with the port. It is taken a moment before
    /// it is listened on: whoever then waits has done that too.
    fn cm_listens(&self, port: u16) -> bool {
        let proc = format!("/proc/{}", self.child.id());
        let read = |file: &str| fs::read_to_string(format!("{proc}/{file}")).unwrap_or_default();
        let (names, end) = (read("net/unix"), format!("{port:04x}"));
        let mut services = names.lines().filter_map(|line| line.split_once("@remanence/service/"));
        if !services.any(|(_, service)| service.split('/').next().is_some_and(|id| id.ends_with(&end))) {
            return false;
        }
        let waits = read("syscall");
        thread::sleep(Duration::from_millis(5));
        waits != "running\n" && read("syscall") == waits
    }

    fn ends_well(&mut self, until: Instant) -> Result<(), String> {
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
                break status;
            }
            if Instant::now() > until {
                self.kill();
                return Err("did not end in time".into());
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.status = Some(status);
        match (status.code(), status.signal()) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(format!("exit status {code}")),
            (None, signal) => Err(format!("ended by signal {}", signal.unwrap_or(0))),
        }
    }

    /// With all that it started, which would hold our pipes open.
    fn kill(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }

    fn said(mut self) -> String {
        // A daemon of it would go on speaking.
        self.kill();
        self.readers.drain(..).map(|reader| reader.join().expect("the reader ends")).collect()
    }

    fn end(self, why: &str) -> String {
        let line = self.line.clone();
        format!("--- {line}\n{why}\n{}", self.said())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill();
        }
    }
}
