//! How two programs meet: a network of their own, the drop-in libraries, a server that is seen to listen before the
//! client starts, and a limit after which both are killed.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::listening::Sign;
use crate::common::world::{self, namespace, tcp_listens};

/// Two programs, and what becomes of them. `{server}` and `{client}` in arguments are the addresses of the two ends,
/// `{scratch}` a directory of the test's.
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
    /// Both are run by `rem verbs` with these options, and see the devices below /sys and /dev. `{scratch}` as above.
    pub(crate) verbs: Option<&'static [&'static str]>,
    /// What either end says when it fails for a reason of its own, and may try again: see the row.
    pub(crate) excuse: Option<&'static str>,
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) limit: Duration,
}

/// How a server is seen to listen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// A TCP port is listened on.
    Tcp(u16),
    /// `rdma_listen` has returned.
    Cm,
    /// It says so, in a line with these words.
    Says(&'static str),
    /// There is one program only.
    Alone,
}

/// The same command on both sides; the client names the server.
macro_rules! both {
    ($command:literal) => {
        $crate::programs::harness::Row {
            server: $command,
            client: concat!($command, " {server}"),
            ..$crate::programs::harness::ROW
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
    verbs: None,
    excuse: None,
    settings: &[],
    // Seconds are enough where there is nothing else to do.
    limit: Duration::from_secs(150),
};

/// How often a program is run that has an excuse.
const TRIES: usize = 5;

/// What no program says that works. Lines with one of the second list are no trouble.
const TROUBLE: [&str; 6] = ["error", "fail", "invalid data", "mismatch", "couldn't", "unable"];
const NO_TROUBLE: [&str; 4] = [
    "Device not recognized to implement inline feature",
    "errors: 0",
    // perftest -R: the server did not listen yet. It tries again by itself.
    "RDMA CM event error:",
    "Event: RDMA_CM_EVENT_REJECTED; error: 8.",
];

/// Where the two programs are.
pub(crate) enum RunsOn {
    /// On one host, over loopback.
    Host,
    /// On two hosts with a wire between them.
    Wire,
}

/// Runs all rows of a table, and fails with what went wrong in any of them.
#[track_caller]
pub(crate) fn run(place: RunsOn, rows: &[Row]) {
    run_and(place, rows, |_| ());
}

/// The same, and then looks at what they left behind in the scratch directory.
#[track_caller]
pub(crate) fn run_and(place: RunsOn, rows: &[Row], look: impl FnOnce(&Path)) {
    let _one_at_a_time = one_at_a_time();
    let Some(net) = Net::of(&place) else { return };
    let failures = through(&net, rows);
    assert!(failures.is_empty(), "\n{failures}");
    look(&net.scratch);
}

/// Runs all rows at the same time.
#[track_caller]
pub(crate) fn run_at_once(place: RunsOn, rows: &[Row]) {
    let _one_at_a_time = one_at_a_time();
    let Some(net) = Net::of(&place) else { return };
    let failures: String = thread::scope(|scope| {
        let net = &net;
        let running: Vec<_> =
            rows.iter().map(|row| scope.spawn(move || through(net, std::slice::from_ref(row)))).collect();
        running.into_iter().map(|row| row.join().expect("it says what went wrong")).collect()
    });
    assert!(failures.is_empty(), "\n{failures}");
}

/// One row after the other; what went wrong.
fn through(net: &Net, rows: &[Row]) -> String {
    let mut failures = String::new();
    for row in rows {
        let began = Instant::now();
        let mut tried = net.pair(row);
        for _ in 1..TRIES {
            match &tried {
                Err(why) if row.excuse.is_some_and(|excuse| why.contains(excuse)) => tried = net.pair(row),
                _ => break,
            }
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
    failures
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

/// The networks of the two ends.
pub(crate) struct Net {
    server: Option<world::Net>,
    client: Option<world::Net>,
    addresses: [&'static str; 2],
    pub(crate) scratch: PathBuf,
}

impl Net {
    /// `None`, and the reason is said, if there can be none here.
    fn of(place: &RunsOn) -> Option<Self> {
        match Self::new(place) {
            Ok(net) => Some(net),
            Err(why) if matches!(place, RunsOn::Wire) => {
                println!("skipped: no network namespaces ({why})");
                None
            }
            Err(_) => Some(Self::shared()),
        }
    }

    fn new(place: &RunsOn) -> Result<Self, String> {
        let mut net = Self::shared();
        net.server = Some(world::Net::by(namespace(), "true")?);
        // Addresses can be used as soon as they are there, without asking whether somebody has them.
        const AT_ONCE: &str = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad";
        net.sh(&format!("{AT_ONCE}; ip link set lo up"))?;
        if let RunsOn::Wire = place {
            net.addresses = ["10.88.0.1", "10.88.0.2"];
            let mut unshare = Self::enter(net.server.as_ref());
            unshare.args(["unshare", "--net"]);
            let client = world::Net::by(unshare, "true")?;
            let other = client.id();
            net.client = Some(client);
            net.sh(&format!(
                "nsenter -t {other} -n sh -c '{AT_ONCE}'; ip link add veth0 type veth peer name veth0 netns {other} && \
                 ip addr add 10.88.0.1/24 dev veth0 && ip addr add fd88::1/64 dev veth0 nodad && \
                 ip link set veth0 up && nsenter -t {other} -n sh -c 'ip link set lo up && \
                 ip addr add 10.88.0.2/24 dev veth0 && ip addr add fd88::2/64 dev veth0 nodad && \
                 ip link set veth0 up' && for n in $(seq 500); do \
                 test $(nsenter -t {other} -n ip -o addr show dev veth0 scope link -tentative | wc -l) = 1 && exit 0; \
                 sleep 0.01; done; echo no link-local address >&2; exit 1"
            ))?;
        }
        Ok(net)
    }

    /// This machine's own network, where no other can be had.
    fn shared() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let scratch = common::scratch(&format!("programs.{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        Self { server: None, client: None, addresses: ["127.0.0.1"; 2], scratch }
    }

    fn sh(&self, script: &str) -> Result<(), String> {
        let output = Self::enter(self.server.as_ref()).args(["sh", "-c", script]).output();
        let output = output.map_err(|e| e.to_string())?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// A command to which a program's name and arguments are still to be added.
    fn enter(net: Option<&world::Net>) -> Command {
        net.map_or_else(|| Command::new("env"), world::Net::enter)
    }

    fn program(&self, side: usize, line: &str, row: &Row) -> Result<Running, String> {
        let holder =
            if side == 1 && self.client.is_some() { self.client.as_ref() } else { self.server.as_ref() };
        let scratch = self.scratch.to_string_lossy();
        let line = line.replace("{server}", self.addresses[0]).replace("{client}", self.addresses[1]);
        let line = line.replace("{scratch}", &scratch);
        let mut command = Self::enter(holder);
        if matches!(row.ready, Ready::Says(_)) {
            // Into a pipe they would keep their lines to themselves.
            command.args(["stdbuf", "-oL"]);
        }
        if let Some(options) = row.verbs {
            let options = options.iter().map(|option| option.replace("{scratch}", &scratch));
            command.arg(common::rem()).arg("verbs").args(options).arg("--");
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
        let variable = if row.verbs.is_some() { "REMANENCE_LIB" } else { "LD_LIBRARY_PATH" };
        command.env(variable, libraries).envs(row.settings.iter().copied());
        let sign = (side == 0 && matches!(row.ready, Ready::Cm)).then(|| Sign::of(&mut command));
        Running::start(command, &line, sign)
    }

    /// Whether somebody listens on a TCP port where the servers are.
    fn tcp_listens(&self, port: u16) -> bool {
        self.server.as_ref().map_or_else(|| tcp_listens("self", port), |net| net.tcp_listens(port))
    }

    /// Looks until the server listens.
    fn listens(&self, server: &mut Running, ready: Ready, until: Instant) -> Result<(), String> {
        loop {
            let there = match ready {
                Ready::Tcp(port) => self.tcp_listens(port),
                Ready::Cm => server.sign.as_ref().is_some_and(Sign::is_given),
                Ready::Says(words) => server.has_said(words),
                Ready::Alone => true,
            };
            if there {
                return Ok(());
            }
            if let Ok(Some(status)) = server.child.try_wait() {
                server.status = Some(status);
                return Err(format!("server: {status} before it listened"));
            }
            if Instant::now() > until {
                return Err(format!("server: does not listen ({ready:?})"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a server and a client to their end.
    fn pair(&self, row: &Row) -> Result<Said, String> {
        for program in [row.server, row.client].iter().filter_map(|line| line.split_whitespace().next()) {
            if !installed(program) {
                return Ok(Said::Skipped(format!("{program} is not installed")));
            }
        }
        // Building what is run does not count.
        let _ = (common::dropin(), row.verbs.map(|_| common::rem()));
        let until = Instant::now() + row.limit;
        if let Ready::Tcp(port) = row.ready {
            // Of a server of the row before, which was killed.
            while self.tcp_listens(port) {
                if Instant::now() > until {
                    return Err(format!("somebody else listens on port {port}"));
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        let mut server = None;
        if !matches!(row.ready, Ready::Alone) {
            let mut running = self.program(0, row.server, row)?;
            if let Err(why) = self.listens(&mut running, row.ready, until) {
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

impl Drop for Net {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// A program, and what it says.
struct Running {
    child: Child,
    line: String,
    readers: Vec<JoinHandle<()>>,
    /// What came so far, of both streams.
    heard: [Arc<Mutex<Vec<u8>>>; 2],
    status: Option<ExitStatus>,
    sign: Option<Sign>,
}

impl Running {
    fn start(mut command: Command, line: &str, sign: Option<Sign>) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("{line}: {e}"))?;
        let heard = <[Arc<Mutex<Vec<u8>>>; 2]>::default();
        let out = listen_to(child.stdout.take().expect("piped"), &heard[0]);
        let err = listen_to(child.stderr.take().expect("piped"), &heard[1]);
        Ok(Self { child, line: line.to_owned(), readers: vec![out, err], heard, status: None, sign })
    }

    /// All that it said so far.
    fn text(&self) -> String {
        let texts = self.heard.each_ref().map(|heard| {
            String::from_utf8_lossy(&heard.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
        });
        texts.concat()
    }

    fn has_said(&self, words: &str) -> bool {
        self.text().contains(words)
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
        self.readers.drain(..).for_each(|reader| reader.join().expect("the reader ends"));
        self.text()
    }

    fn end(self, why: &str) -> String {
        let line = self.line.clone();
        format!("--- {line}\n{why}\n{}", self.said())
    }
}

/// Collects what a program says.
fn listen_to(mut stream: impl Read + Send + 'static, heard: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let heard = Arc::clone(heard);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..len]);
        }
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill();
        }
    }
}
