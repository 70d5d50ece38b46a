//! Where the tests' programs live: a network of their own, processes that are talked with line by line and killed when
//! they take too long.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// An interface that looks like a real one: addresses of both families, multicast, and a wire to nobody. One who is no
/// more there is still known, 10.77.0.8 and
/// fd77::8; and a route leads through one who never was.
pub(crate) const INTERFACE: &str = "ip link set lo up && ip link add rv0 type veth peer name rv1 \
    && ip link set rv0 addrgenmode none && ip addr add 10.77.0.1/24 dev rv0 && ip addr add fd77::1/64 dev rv0 nodad \
    && ip link set rv0 up && ip link set rv1 up && ip route add 224.0.0.0/4 dev rv0 \
    && ip neigh add 10.77.0.8 lladdr 02:00:00:00:00:08 dev rv0 nud permanent \
    && ip neigh add fd77::8 lladdr 02:00:00:00:00:08 dev rv0 nud permanent && ip route add 10.78.0.0/16 via 10.77.0.7";
/// The address of that interface.
pub(crate) const ADDRESS: &str = "10.77.0.1";

/// How long anything may take that takes milliseconds, or a second under Valgrind.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// Runs a command that says nothing.
pub(crate) fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// A command in a network namespace of its own. Root needs no user namespace, and keeps its rights without one.
pub(crate) fn namespace() -> Command {
    let mut unshare = Command::new("unshare");
    if !is_privileged() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.arg("--net");
    unshare
}

fn is_privileged() -> bool {
    quiet(Command::new("unshare").args(["--net", "true"]))
}

/// A network namespace, held by a process that does nothing.
pub(crate) struct Net {
    holder: Child,
    privileged: bool,
}

impl Net {
    /// One of its own with [`INTERFACE`]. `Err`: why there is none here.
    pub(crate) fn new() -> Result<Self, String> {
        Self::by(namespace(), INTERFACE)
    }

    /// That of which the command makes or finds one, in which a script is run.
    pub(crate) fn by(mut enter: Command, script: &str) -> Result<Self, String> {
        let mut holder = enter
            .args(["sh", "-c", &format!("{script} && echo there && exec sleep 100000")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        let mut line = String::new();
        let out = holder.stdout.as_mut().expect("piped");
        if BufReader::new(out).read_line(&mut line).is_ok_and(|n| n > 0) {
            return Ok(Self { holder, privileged: is_privileged() });
        }
        let mut why = String::new();
        let _ = holder.stderr.take().expect("piped").read_to_string(&mut why);
        let _ = holder.wait();
        Err(format!("no network namespace: {}", why.trim()))
    }

    /// The process that holds it.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    /// A command in the network, to which a program's name and arguments are still to be added.
    pub(crate) fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("-t").arg(self.id().to_string()).arg("-n");
        if !self.privileged {
            command.args(["-U", "--preserve-credentials"]);
        }
        command.arg("--");
        command
    }

    /// A command in the network, with the drop-in libraries in `libraries`.
    pub(crate) fn command(&self, libraries: &Path, program: impl AsRef<Path>) -> Command {
        let mut command = self.enter();
        command.arg(program.as_ref());
        command.env("LD_LIBRARY_PATH", libraries).env("REMANENCE_DEVICE", "rem_rv0");
        command
    }

    /// Whether somebody in the network listens on a TCP port.
    pub(crate) fn tcp_listens(&self, port: u16) -> bool {
        tcp_listens(&self.id().to_string(), port)
    }
}

/// Whether somebody listens on a TCP port in the network that a process is in: its id, or `self`.
pub(crate) fn tcp_listens(process: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(3) == Some(&LISTEN) && words[1].ends_with(&format!(":{port:04X}"))
        })
    })
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Compiles C programs of `tests/FOLDER` into a directory.
pub(crate) fn compile(folder: &str, program: &str, libraries: &[&str], to: &Path) -> PathBuf {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join(format!("{program}.c"));
    let binary = to.join(program);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wno-unused-function", "-pthread", "-o"]).arg(&binary).arg(&source);
    let output = cc.args(libraries).output().expect("a C compiler: apt install gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    binary
}

/// A program, and what it says.
pub(crate) struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
    errors: Option<JoinHandle<String>>,
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Self {
        let name = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let (out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (told, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = thread::spawn(move || {
            let mut all = Vec::new();
            let _ = err.read_to_end(&mut all);
            String::from_utf8_lossy(&all).into_owned()
        });
        let stdin = child.stdin.take();
        Self { name, child, stdin, lines, said: Vec::new(), errors: Some(errors) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its next line, or `None` when it has closed its output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> Option<String> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => {
                self.said.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => self.fail("says nothing any more"),
        }
    }

    /// Reads until it says `what` at the beginning of a line; the rest of that line.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str) -> String {
        loop {
            match self.line() {
                None => self.fail(&format!("ended without saying {what:?}")),
                Some(line) => {
                    if let Some(rest) = line.strip_prefix(what) {
                        return rest.trim().to_owned();
                    }
                }
            }
        }
    }

    /// Says a line to it.
    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("open");
        // It may be gone, which its end will tell.
        let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
    }

    /// Nothing more will be said to it.
    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// SIGKILL, the program alone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("our child");
    }

    /// Waits for its end, which must come in time.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status;
            }
            if Instant::now() > until {
                self.fail("does not end");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end, with status 0; all that it said.
    #[track_caller]
    pub(crate) fn ends_well(mut self) -> Vec<String> {
        self.hang_up();
        let status = self.end();
        if !status.success() {
            self.fail(&status.to_string());
        }
        while let Some(line) = self.line() {
            drop(line);
        }
        std::mem::take(&mut self.said)
    }

    #[track_caller]
    pub(crate) fn fail(&mut self, why: &str) -> ! {
        self.kill_all();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            self.said.push(line);
        }
        let errors = self.errors.take().map_or_else(String::new, |errors| errors.join().expect("it reads"));
        panic!("{} {why}; it said\n{}\n{errors}", self.name, self.said.join("\n"));
    }

    /// With all that it started.
    fn kill_all(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = quiet(Command::new("kill").args(["-KILL", "--", &group]));
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill_all();
        }
    }
}
