//! The guest: a Linux kernel with Soft-RoCE in QEMU, and the verbs program in it that does as it is told.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use remanence_rnic::WcStatus;
use remanence_wire::{Gid, Psn, Qpn, Rkey};

/// Our addresses on the tap.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The guest's.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// The guest's address in the same family as ours.
pub(crate) fn guest_beside(ours: IpAddr) -> IpAddr {
    if ours.is_ipv6() { IpAddr::V6(GUEST_V6) } else { IpAddr::V4(GUEST) }
}
pub(crate) const TAP: &str = "rem0";
const BOOT_LIMIT: Duration = Duration::from_secs(120);

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/guest.sh")
}

/// Where the kernel and the initramfs are kept between runs.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest")
}

/// Fetches and builds what the guest is made of; the error is the reason why it cannot be had here.
pub(crate) fn build() -> Result<(), String> {
    let output = Command::new(script()).arg("build").arg(directory()).output().map_err(|e| e.to_string())?;
    match output.status.code() {
        Some(0) => Ok(()),
        Some(3) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        _ => panic!("guest.sh build: {}{}", text(&output.stdout), text(&output.stderr)),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", text(&output.stderr));
}

/// One side of a connection that is made out of band.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestQp {
    /// The guest's number for it.
    pub(crate) id: u32,
    pub(crate) qpn: Qpn,
    pub(crate) gid: Gid,
}

/// A completion in the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GuestWc {
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) len: u32,
    pub(crate) imm: u32,
}

impl GuestWc {
    pub(crate) fn assert_success(self) -> Self {
        assert_eq!(self.status, WcStatus::Success as u32, "{self:?}");
        self
    }
}

/// The running guest. Dropped, it is killed.
pub(crate) struct Guest {
    machine: Child,
    answers: BufReader<TcpStream>,
    commands: TcpStream,
    console: PathBuf,
    /// Address of its registered memory, and the rkey.
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    pub(crate) len: u64,
}

impl Guest {
    /// Makes the tap in the network namespace that this process is in, and boots the guest behind it.
    pub(crate) fn boot() -> Self {
        ip("link set lo up");
        ip(&format!("tuntap add {TAP} mode tap"));
        ip(&format!("addr add {HOST}/24 dev {TAP}"));
        ip(&format!("-6 addr add {HOST_V6}/64 dev {TAP} nodad"));
        ip(&format!("link set {TAP} mtu 4300 up"));
        let console = directory().join("console.log");
        let log = File::create(&console).expect("the guest's directory can be written");
        let machine = Command::new("timeout")
            .args(["--kill-after=5", "300"])
            .arg(script())
            .arg("boot")
            .args([&directory(), Path::new(TAP)])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("the guest starts");
        let control = SocketAddr::new(IpAddr::V4(GUEST), 7777);
        let start = Instant::now();
        let commands = loop {
            match TcpStream::connect_timeout(&control, Duration::from_millis(300)) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < BOOT_LIMIT => std::thread::sleep(Duration::from_millis(50)),
                Err(e) => panic!("the guest did not come up ({e}): {}", tail(&console)),
            }
        };
        commands.set_nodelay(true).expect("a socket option");
        let answers = BufReader::new(commands.try_clone().expect("a descriptor"));
        let (addr, rkey, len) = (0, Rkey(0), 0);
        let mut guest = Self { machine, answers, commands, console, addr, rkey, len };
        let memory = guest.ask("memory");
        guest.addr = memory[0].parse().expect("an address");
        guest.rkey = Rkey(memory[1].parse().expect("a key"));
        guest.len = memory[2].parse().expect("a length");
        eprintln!("the guest is up after {:.1} s", start.elapsed().as_secs_f64());
        guest
    }

    /// Sends a command without waiting for its answer.
    pub(crate) fn tell(&mut self, command: &str) {
        self.commands.write_all(format!("{command}\n").as_bytes()).expect("the guest listens");
    }

    /// The answer to the last command: its words, or what went wrong.
    pub(crate) fn answer(&mut self) -> Result<Vec<String>, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the guest answers");
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(words.collect()),
            Some(_) => Err(line.trim().to_owned()),
            None => panic!("the guest is gone: {}", tail(&self.console)),
        }
    }

    /// Sends a command and returns the words of its answer.
    pub(crate) fn ask(&mut self, command: &str) -> Vec<String> {
        self.tell(command);
        self.answer().unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    pub(crate) fn create_qp(&mut self, ty: &str, v6: bool) -> GuestQp {
        let words = self.ask(&format!("qp {ty} {}", u8::from(v6)));
        let bytes: Vec<u8> =
            (0..16).map(|i| u8::from_str_radix(&words[2][2 * i..2 * i + 2], 16).expect("hex")).collect();
        GuestQp {
            id: words[0].parse().expect("a number"),
            qpn: Qpn::new(words[1].parse().expect("a QPN")),
            gid: Gid(bytes.try_into().expect("sixteen bytes")),
        }
    }

    pub(crate) fn connect(
        &mut self,
        id: u32,
        peer: Qpn,
        peer_psn: Psn,
        own_psn: Psn,
        peer_gid: Gid,
        mtu: u32,
    ) {
        let gid: String = peer_gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (peer, peer_psn, own_psn) = (peer.value(), peer_psn.value(), own_psn.value());
        self.ask(&format!("rts {id} {peer} {peer_psn} {own_psn} {gid} {mtu}"));
    }

    /// Fills its memory with a pattern.
    pub(crate) fn fill(&mut self, offset: u64, len: usize, seed: u64) {
        self.ask(&format!("fill {offset} {len} {seed}"));
    }

    /// Compares its memory with a pattern, byte by byte.
    pub(crate) fn check(&mut self, offset: u64, len: usize, seed: u64) {
        self.ask(&format!("check {offset} {len} {seed}"));
    }

    pub(crate) fn word(&mut self, offset: u64) -> u64 {
        self.ask(&format!("word {offset}"))[0].parse().expect("a number")
    }

    pub(crate) fn set_word(&mut self, offset: u64, value: u64) {
        self.ask(&format!("set {offset} {value}"));
    }

    pub(crate) fn post_recv(&mut self, id: u32, offset: u64, len: usize) {
        self.ask(&format!("recv {id} {offset} {len}"));
    }

    pub(crate) fn wait(&mut self, id: u32, count: usize) -> Vec<GuestWc> {
        self.ask(&format!("wait {id} {count}")).iter().map(|word| parse_wc(word)).collect()
    }

    pub(crate) fn wait_one(&mut self, id: u32) -> GuestWc {
        self.wait(id, 1)[0]
    }

    /// Lets the guest power off, and waits for it.
    pub(crate) fn end(mut self) {
        self.tell("quit");
        let status = self.machine.wait().expect("the guest ends");
        assert!(status.success(), "{status}: {}", tail(&self.console));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}

fn parse_wc(word: &str) -> GuestWc {
    let numbers: Vec<u32> = word.split(':').map(|n| n.parse().expect("a number")).collect();
    GuestWc { status: numbers[0], opcode: numbers[1], len: numbers[2], imm: numbers[3] }
}

fn tail(console: &Path) -> String {
    let text = std::fs::read(console).map(|bytes| text(&bytes)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Byte `i` of pattern `seed`; `rxe_peer.c` has the same.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            let mut z = seed
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add((i / 8).wrapping_mul(0xbf58_476d_1ce4_e5b9));
            z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 29;
            (z >> (i % 8 * 8)) as u8
        })
        .collect()
}
