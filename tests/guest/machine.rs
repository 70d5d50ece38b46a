//! The guest that `guest.sh` builds and boots, for tests that include this file: a network namespace with a tap in
//! it, and the machine behind the tap.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Our addresses on the tap.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The address of the guest on the tap.
pub(crate) const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const TAP: &str = "rem0";
/// Emulated, it is up in some ten seconds on a machine of its own.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// So often it is booted again.
const BOOTS_AGAIN: u32 = 3;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/guest.sh")
}

/// Where the kernel and the initramfs are kept between runs.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(if is_root() { &["--net"][..] } else { &["--net", "--user", "--map-root-user"] });
    command
}

/// Runs a test again inside a network namespace of its own, with `mark` in its environment, when the guest can be
/// had: `inside` is what it does there. Where something is missing it is said, and the test is skipped. `test` is its name as the program
/// lists it: one that is none's would pass.
pub(crate) fn in_a_namespace(test: &str, mark: &str, inside: fn()) {
    if std::env::var_os(mark).is_some() {
        return inside();
    }
    let program = std::env::current_exe().expect("this program");
    let list = Command::new(&program).args(["--exact", test, "--list"]).output().expect("it runs");
    assert!(text(&list.stdout).contains(&format!("{test}: test\n")), "this program has no test {test}");
    if let Err(reason) = possible().and_then(|()| build()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let status = unshare()
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(mark, "1")
        .status()
        .expect("unshare was there a moment ago");
    assert!(status.success(), "inside the namespace: {status}");
}

/// What a guest needs, or the reason why there can be none.
fn possible() -> Result<(), String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the guest is a Linux on x86-64".to_owned());
    }
    match unshare().args(["ip", "tuntap", "add", "rem0", "mode", "tap"]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("no tap in a new network namespace: {}", text(&output.stderr))),
        Err(e) => Err(format!("unshare: {e}")),
    }
}

/// Fetches and builds what the guest is made of; the error is the reason why it cannot be had here.
fn build() -> Result<(), String> {
    let output = Command::new(script()).arg("build").arg(directory()).output().map_err(|e| e.to_string())?;
    match output.status.code() {
        Some(0) => Ok(()),
        Some(3) => Err(text(&output.stderr).trim().to_owned()),
        _ => panic!("guest.sh build: {}{}", text(&output.stdout), text(&output.stderr)),
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", text(&output.stderr));
}

/// The running guest. Dropped, it is killed.
pub(crate) struct Machine {
    process: Child,
    console: PathBuf,
}

impl Machine {
    /// Makes the tap in the network namespace that this process is in, and boots the guest behind it, for `limit` at
    /// the most. Returns with a connection to `rxe_peer`.
    pub(crate) fn boot(limit: Duration) -> (Self, TcpStream) {
        ip("link set lo up");
        ip(&format!("tuntap add {TAP} mode tap"));
        ip(&format!("addr add {HOST}/24 dev {TAP}"));
        ip(&format!("-6 addr add {HOST_V6}/64 dev {TAP} nodad"));
        ip(&format!("link set {TAP} mtu 4300 up"));
        let mut machine = Self::start(limit);
        let control = SocketAddr::new(IpAddr::V4(GUEST), 7777);
        let start = Instant::now();
        let mut again = 0..BOOTS_AGAIN;
        let stream = loop {
            match TcpStream::connect_timeout(&control, Duration::from_millis(300)) {
                Ok(stream) => break stream,
                // An emulated processor that was kept waiting can be the death of a kernel that boots on it, which says nothing of us.
                Err(_) if machine.has_panicked() && again.next().is_some() => {
                    eprintln!(
                        "the guest's kernel died while it booted, and is booted again: {}",
                        machine.tail()
                    );
                    drop(machine);
                    machine = Self::start(limit);
                }
                Err(_) if start.elapsed() < BOOT_LIMIT => std::thread::sleep(Duration::from_millis(50)),
                Err(e) => panic!("the guest did not come up ({e}): {}", machine.tail()),
            }
        };
        stream.set_nodelay(true).expect("a socket option");
        eprintln!("the guest is up after {:.1} s", start.elapsed().as_secs_f64());
        (machine, stream)
    }

    /// Starts the emulator.
    fn start(limit: Duration) -> Self {
        let console = directory().join("console.log");
        let log = File::create(&console).expect("the guest's directory can be written");
        let process = Command::new("timeout")
            .args(["--kill-after=5", &limit.as_secs().to_string()])
            .arg(script())
            .arg("boot")
            .args([&directory(), Path::new(TAP)])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("the guest starts");
        Self { process, console }
    }

    /// Whether its kernel has given up.
    fn has_panicked(&self) -> bool {
        self.tail().contains("Kernel panic - not syncing")
    }

    /// The last words on its console.
    pub(crate) fn tail(&self) -> String {
        let text = std::fs::read(&self.console).map(|bytes| text(&bytes)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Waits for it to power off.
    pub(crate) fn wait(mut self) {
        let status = self.process.wait().expect("the guest ends");
        assert!(status.success(), "{status}: {}", self.tail());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            // `timeout` hands SIGTERM on to the emulator; SIGKILL it could not hand on.
            let _ = Command::new("kill").arg(self.process.id().to_string()).status();
            let _ = self.process.wait();
        }
    }
}

/// All RoCE packets on the tap, recorded.
pub(crate) struct Capture {
    recorder: Option<Child>,
}

impl Capture {
    fn file() -> PathBuf {
        directory().join("capture.pcapng")
    }

    pub(crate) fn start() -> Self {
        let recorder = Command::new("dumpcap")
            .args(["-q", "-i", TAP, "-f", "udp port 4791", "-B", "64", "-w"])
            .arg(Self::file())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut recorder) = recorder else {
            eprintln!("skipped: the look at the packets, as dumpcap is not installed (package tshark)");
            return Self { recorder: None };
        };
        // It says so when it listens.
        let mut said = BufReader::new(recorder.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("File:") {
            line.clear();
            let n = said.read_line(&mut line).expect("dumpcap speaks");
            assert!(n > 0, "dumpcap ended");
        }
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self { recorder: Some(recorder) }
    }

    /// Every packet is RoCEv2 to Wireshark too, and none is malformed.
    pub(crate) fn judge(mut self) {
        if !self.stop() {
            return;
        }
        let all = count(&Self::file(), "infiniband");
        let strange = count(&Self::file(), "_ws.malformed or (udp.dstport == 4791 and not infiniband)");
        eprintln!("tshark knows {all} packets as InfiniBand, and {strange} as malformed");
        assert!(all > 5_000, "too few packets were recorded");
        assert_eq!(strange, 0, "{}", Self::file().display());
    }
}

impl Capture {
    /// Ends the recording with all packets in the file; says whether there was one.
    fn stop(&mut self) -> bool {
        let Some(mut recorder) = self.recorder.take() else { return false };
        let _ = Command::new("kill").args(["-INT", &recorder.id().to_string()]).status();
        recorder.wait().is_ok()
    }
}

/// A failed test leaves its packets to look at.
impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
    }
}

fn count(file: &Path, filter: &str) -> usize {
    let output = Command::new("tshark")
        // Nobody's preferences.
        .env("HOME", directory())
        .env("XDG_CONFIG_HOME", directory())
        // Not guessing what an RDMA payload might be: 16 bytes of pattern now and then look like a bad VLAN tag.
        .args(["-n", "--disable-protocol", "rpcordma"])
        .args(["--disable-heuristic", "eth_over_ib", "--disable-heuristic", "mellanox_eoib", "-r"])
        .arg(file)
        .args(["-Y", filter, "-T", "fields", "-e", "frame.number"])
        .output()
        .expect("tshark comes with dumpcap");
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout.iter().filter(|byte| **byte == b'\n').count()
}
