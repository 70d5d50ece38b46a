//! Sharing a port between real processes: each one is this test binary again, in a network namespace of the test's.
//!
//! The rule is the one of RoCEv2 (IBA Vol 1, 9.2 for the BTH, 12.6 for the messages of the connection manager), with
//! the offsets that `verbs` uses.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as StdName, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::allowance::Allowance;
use super::roster::{Label, Way, is_home};
use super::rule::{Owner, PROBE_MAGIC, Table};
use super::{Match, Seat, SteerCase, SteerRule, SteerTo};
use crate::link::{Link, Outgoing, WaitFd};
use crate::sys::bpf::MAX_INSNS;
use crate::sys::net;
use crate::sys::unix::{self, Name};
use crate::udp::{Options, ROCE_PORT, UdpLink};
use crate::veth::{End, Veth};

/// How long what must happen may take; only a failing test ever waits so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A user who is not root.
const NOBODY: u32 = 65_534;

/// And one more.
const SOMEBODY: u32 = 4711;

/// What a process is to do: share the port, take the names of all slots, or fill the queues of all who have them.
const CHILD: &str = "REMANENCE_TEST_CHILD";
const SHARES: &str = "shares";
const SQUATS: &str = "squats";
const FLOODS: &str = "floods";

fn rule() -> SteerRule {
    let gsi = Match { offset: 4, width: 4, mask: 0x00FF_FFFF, value: 1 };
    let attribute = |value| Match { offset: 36, width: 2, mask: 0xFFFF, value };
    let nobodys = Match { offset: 48, width: 4, mask: u32::MAX, value: 0 };
    let case = |when: &[Match], to| SteerCase { when: when.to_vec(), to };
    SteerRule {
        cases: vec![
            case(&[gsi, attribute(0x10)], SteerTo::Service(52)),
            case(&[gsi, attribute(0x18)], SteerTo::Slot(44)),
            case(&[gsi, attribute(0x12), nobodys], SteerTo::Everyone),
            case(&[gsi], SteerTo::SlotOrHeir(48)),
            case(&[], SteerTo::Slot(5)),
        ],
    }
}

/// A datagram for a QP of `slot`, with a number to know it by.
fn to_qp(slot: u8, number: u32) -> Vec<u8> {
    let mut payload = vec![0; 64];
    payload[..8].copy_from_slice(&[0x0A, 0x40, 0xFF, 0xFF, 0, slot, 0x12, 0x34]);
    payload[60..].copy_from_slice(&number.to_be_bytes());
    payload
}

/// A connection request for `service`.
fn to_service(service: u64, number: u32) -> Vec<u8> {
    let mut payload = vec![0; 280];
    payload[..8].copy_from_slice(&[0x64, 0, 0xFF, 0xFF, 0, 0, 0, 1]);
    payload[36..38].copy_from_slice(&[0, 0x10]);
    payload[52..60].copy_from_slice(&service.to_be_bytes());
    payload[60..64].copy_from_slice(&number.to_be_bytes());
    payload
}

/// Whoever gives up on a request that was never answered does not know whose it was.
fn takes_back(number: u32) -> Vec<u8> {
    let mut payload = to_service(0, number);
    payload[37] = 0x12;
    payload
}

fn number_of(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload[60..].first_chunk().expect("a test datagram"))
}

// ---- the rule and its program -------------------------------------------------------------------------------------

#[test]
fn the_rule_reads_slots_and_services() {
    let rule = rule();
    assert_eq!(rule.owner(&to_qp(0x3f, 0)), Some(Owner::Slot(0x3f)));
    assert_eq!(rule.owner(&to_service(0x0106_4321, 0)), Some(Owner::Service(0x0106_4321)));
    let mut reply = to_service(0, 0);
    reply[36..38].copy_from_slice(&[0, 0x13]);
    reply[48] = 0x77;
    assert_eq!(rule.owner(&reply), Some(Owner::SlotOrHeir(0x77)));
    assert_eq!(rule.owner(&[0; 4]), None, "too short to say");
    assert_eq!(rule.owner(&[0, 0, 0, 0, 0, 0, 0, 1]), None, "a management datagram without its datagram");
}

#[test]
fn the_largest_table_makes_a_program_that_the_kernel_takes() {
    let table = Table {
        slots: (0..=255).map(|slot| (slot, u32::from(slot))).collect(),
        services: (0..5000).map(|service| (service, 1)).collect(),
        otherwise: None,
    };
    let program = rule().compile(&table, MAX_INSNS);
    assert!(program.len() > 4000 && program.len() <= MAX_INSNS, "{}", program.len());
    let localhost = "127.0.0.1:0".parse().expect("an address");
    let socket = net::udp_socket("127.0.0.1".parse().expect("an address")).expect("a socket");
    let fd = socket.as_fd();
    net::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).expect("before the bind");
    net::bind(fd, localhost).expect("any port");
    super::attach(fd, &rule(), &table).expect("the kernel verifies it, or a shorter one");
}

#[test]
fn a_program_keeps_to_its_budget_and_prefers_slots() {
    let slots: Vec<_> = (0..=255).map(|slot| (slot, u32::from(slot))).collect();
    let services = (0..5000).map(|service| (service, 1)).collect();
    let table = Table { slots, services, otherwise: None };
    for budget in [64, 100, 1000, 1700, MAX_INSNS] {
        let program = rule().compile(&table, budget);
        assert!(program.len() <= budget, "{} of {budget}", program.len());
    }
    assert_eq!(run(&rule().compile(&table, 1700), &to_qp(255, 0)), 255, "all slots fit");
    assert_eq!(run(&rule().compile(&table, 64), &to_qp(255, 0)), u32::MAX, "not all slots fit");
}

// The program is interpreted here as the kernel does, to hold it against the rule byte for byte.
fn run(program: &[crate::sys::bpf::Insn], payload: &[u8]) -> u32 {
    let (mut a, mut pc) = (0u32, 0usize);
    loop {
        let insn = program[pc];
        pc += 1;
        let mut load = |width: usize| {
            let bytes = payload.get(insn.k as usize..insn.k as usize + width)?;
            a = bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b));
            Some(())
        };
        match insn.code {
            0x20 if load(4).is_none() => return 0,
            0x28 if load(2).is_none() => return 0,
            0x30 if load(1).is_none() => return 0,
            0x20 | 0x28 | 0x30 => {}
            0x54 => a &= insn.k,
            0x05 => pc += insn.k as usize,
            0x15 => pc += usize::from(if a == insn.k { insn.jt } else { insn.jf }),
            0x06 => return insn.k,
            0x16 => return a,
            code => panic!("an instruction {code:#x} that we never emit"),
        }
    }
}

#[test]
fn the_program_chooses_as_the_rule_does() {
    let rule = rule();
    let (slots, services) = (vec![(3, 0), (200, 1), (0, 2)], vec![(0x0106_0007, 1), (7, 2)]);
    let table = Table { slots, services, otherwise: None };
    let program = rule.compile(&table, MAX_INSNS);
    let closing = rule.compile(&Table { otherwise: Some(2), ..table.clone() }, MAX_INSNS);
    let mut payloads = vec![vec![], vec![0; 4], to_qp(3, 1), to_qp(200, 2), to_qp(0, 3), to_qp(9, 4)];
    payloads.extend([7, 0x0106_0007, 8].map(|service| to_service(service, 5)));
    for attribute in [0x11, 0x12, 0x13, 0x18] {
        for slot in [3, 200, 9, 1] {
            let mut mad = to_service(0, 6);
            mad[37] = attribute;
            (mad[44], mad[48]) = (slot, slot ^ 1);
            payloads.push(mad);
        }
    }
    // And anything at all, mostly small numbers, since those are what the rule looks for.
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    payloads.extend((0..20_000).map(|_| {
        let len = rng.next_u32() as usize % 80;
        (0..len)
            .map(|_| [0, 0, 0, 1, 3, 7, 0x10, 0x18, 200, rng.next_u32() as u8][rng.next_u32() as usize % 10])
            .collect()
    }));
    for payload in payloads {
        let expected = match rule.owner(&payload) {
            Some(Owner::Slot(slot) | Owner::SlotOrHeir(slot)) => {
                table.slots.iter().find(|(s, _)| *s == slot).map(|(_, i)| *i)
            }
            Some(Owner::Service(id)) => table.services.iter().find(|(s, _)| *s == id).map(|(_, i)| *i),
            Some(Owner::Everyone) => None,
            None => Some(0),
        };
        assert_eq!(run(&program, &payload), expected.unwrap_or(u32::MAX), "{payload:02x?}");
        assert_eq!(run(&closing, &payload), expected.unwrap_or(2), "{payload:02x?}");
    }
    let mut probe = [0; 64];
    probe[..4].copy_from_slice(&PROBE_MAGIC[0].to_be_bytes());
    probe[4..8].copy_from_slice(&PROBE_MAGIC[1].to_be_bytes());
    probe[8..12].copy_from_slice(&17_u32.to_be_bytes());
    assert_eq!(run(&program, &probe), 17);
}

// ---- seats --------------------------------------------------------------------------------------------------------

#[test]
fn seats_divide_the_numbers_and_never_give_out_the_special_ones() {
    let (a, b) = (Seat::claim(rule()).expect("a seat"), Seat::claim(rule()).expect("a seat"));
    assert_ne!(a.slot(), b.slot());
    for seat in [&a, &b] {
        let range = seat.qpns();
        assert!(range.start >= 2 && range.end <= 0x00FF_FFFF && range.len() >= 65_534, "{range:?}");
        assert!(
            range.start >> 16 == u32::from(seat.slot()) && (range.end - 1) >> 16 == u32::from(seat.slot())
        );
    }
}

#[test]
fn a_service_has_one_listener_until_it_is_dropped() {
    let (a, b) = (Seat::claim(rule()).expect("a seat"), Seat::claim(rule()).expect("a seat"));
    // Unlikely to be anybody else's on this machine.
    let service = net::random_u64();
    let listening = a.listen(service, None).expect("free");
    let err = b.listen(service, None).expect_err("taken");
    assert_eq!(err.kind(), std::io::ErrorKind::AddrInUse);
    b.listen(service, Some("127.0.0.9".parse().expect("an address")))
        .expect("another address is another listener");
    drop(listening);
    b.listen(service, None).expect("free again");
}

#[test]
fn what_stands_in_a_closing_socket_is_sent_on() {
    const COUNT: u32 = 8;
    let Some(_alone) = alone() else { return };
    let localhost = "127.0.0.1".parse().expect("an address");
    // A member of the group whose only task is to tell the kernel, wrongly, whose is whose.
    let liar = net::udp_socket(localhost).expect("a socket");
    net::set_option(liar.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).expect("before the bind");
    net::bind(liar.as_fd(), SocketAddr::new(localhost, ROCE_PORT)).expect("free here");
    let [(_, a), (seat, mut b)] = [(); 2].map(|()| {
        let seat = Seat::claim(rule()).expect("a seat");
        let options = Options { seat: Some(seat.clone()), ..Options::new(vec![localhost]) };
        (seat, UdpLink::open(&options).expect("the port can be shared"))
    });
    let table = Table { slots: vec![(seat.slot(), 1)], ..Table::default() };
    super::attach(liar.as_fd(), &rule(), &table).expect("the kernel takes it");
    let peer = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for number in 0..COUNT {
        peer.send_to(&to_qp(seat.slot(), number), ("127.0.0.1", ROCE_PORT)).expect("sent");
    }
    let mut got = Vec::new();
    assert_eq!(
        b.recv(&mut |rx| got.push(number_of(rx.payload))).expect("a working link"),
        0,
        "all stands at A"
    );
    drop(a);
    let start = Instant::now();
    while got.len() < COUNT as usize && start.elapsed() < PATIENCE {
        if b.recv(&mut |rx| got.push(number_of(rx.payload))).expect("a working link") == 0 {
            let _ = b.prepare_wait().expect("a working link");
        }
    }
    assert_eq!(got, (0..COUNT).collect::<Vec<_>>());
}

// ---- processes ----------------------------------------------------------------------------------------------------

/// Not a test of its own: what the other tests start as a process.
#[test]
fn child_process() {
    match std::env::var(CHILD).as_deref() {
        Ok(SQUATS) => squat(),
        Ok(FLOODS) => flood(),
        Ok(_) => serve(),
        Err(_) => {}
    }
}

/// Takes the plain name of every slot that is free, and says on request how much was sent there.
fn squat() {
    let names = (0..=255).map(|slot| Name::new(&format!("remanence/slot/{slot:02x}")));
    let squatted: Vec<_> = names.filter_map(|name| unix::bind(&name).ok()).collect();
    say(&format!("seat {}", squatted.len() - 1));
    let mut heard = 0;
    for _ in std::io::stdin().lines() {
        let mut buffer = [0; 1 << 10];
        heard += squatted.iter().filter(|socket| unix::recv(socket.as_fd(), &mut buffer).is_ok()).count();
        say(&format!("heard {heard}"));
    }
}

/// Fills the queues of the slots that it is told of: whenever one has room, somebody waits for that.
fn flood() {
    say("seat 0");
    for slot in std::io::stdin().lines() {
        let slot: u8 = slot.expect("a line").parse().expect("a slot");
        let name = StdName::from_abstract_name(format!("remanence/slot/{slot:02x}")).expect("a name");
        for _ in 0..16 {
            let name = name.clone();
            std::thread::spawn(move || {
                let sender = UnixDatagram::unbound().expect("a socket");
                while sender.send_to_addr(b"a stranger's", &name).is_ok() {}
            });
        }
        let probe = UnixDatagram::unbound().expect("a socket");
        probe.set_nonblocking(true).expect("a socket");
        while probe.send_to_addr(b"a stranger's", &name).is_ok() {}
        say("full");
    }
}

/// Prints what arrives; obeys lines on standard input.
fn serve() {
    let seat = Seat::claim(rule()).expect("a seat");
    let options =
        Options { seat: Some(seat.clone()), ..Options::new(vec!["127.0.0.1".parse().expect("an address")]) };
    let mut link = UdpLink::open(&options).expect("the port can be shared");
    let mut listening = Vec::new();
    say(&format!("seat {}", seat.slot()));
    let stdin = std::io::stdin();
    let mut fds = Vec::new();
    loop {
        let mut got = Vec::new();
        while link.recv(&mut |rx| got.push((number_of(rx.payload), rx.src))).expect("a working link") > 0 {}
        for (number, src) in got {
            say(&format!("got {number} from {src}"));
        }
        if link.prepare_wait().expect("a working link") {
            continue;
        }
        fds.clear();
        link.wait_fds(&mut fds);
        let input = WaitFd { fd: stdin.as_raw_fd(), events: libc::POLLIN };
        fds.push(input);
        crate::wait::poll(&fds, None).expect("poll");
        if crate::wait::poll(&[input], Some(Duration::ZERO)).expect("poll") {
            let mut line = String::new();
            if stdin.lock().read_line(&mut line).expect("standard input") == 0 {
                return;
            }
            match line.trim().split_once(' ') {
                Some(("listen", service)) => {
                    listening.push(seat.listen(service.parse().expect("a number"), None).expect("free"));
                    say("listening");
                }
                Some(("surely", what)) => {
                    let (slot, number) = what.split_once(' ').expect("a slot and a number");
                    let payload = to_qp(slot.parse().expect("a slot"), number.parse().expect("a number"));
                    link.tx_buffer().expect("room")[..payload.len()].copy_from_slice(&payload);
                    let here = "127.0.0.1".parse().expect("an address");
                    let out = Outgoing {
                        src: here,
                        src_port: 0xC000,
                        dst: SocketAddr::new(here, ROCE_PORT),
                        tos: 2,
                        ttl: 64,
                        len: payload.len(),
                        segment_size: payload.len(),
                    };
                    link.send_surely(&out);
                    link.send_surely(&Outgoing { dst: "192.0.2.1:4791".parse().expect("an address"), ..out });
                    say("handed");
                }
                _ => {
                    let stats = link.stats();
                    say(&format!("detours {}", stats.forwarded + stats.forwarded_here));
                }
            }
        }
    }
}

fn say(text: &str) {
    // One write, so that the harness's own output cannot cut the line in two.
    std::io::stdout().write_all(format!("\n@{text}\n").as_bytes()).expect("the parent reads");
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    slot: u8,
    /// Numbers of datagrams that arrived and were not asked for yet.
    got: Vec<u32>,
}

impl Process {
    /// Starts a process that shares the port, in the calling thread's namespace.
    fn start() -> Self {
        Self::start_as(None).expect("the test binary runs")
    }

    /// The same, as another user.
    fn start_as(user: Option<u32>) -> std::io::Result<Self> {
        Self::start_to(SHARES, user)
    }

    /// Starts a process that does `what`.
    fn start_to(what: &str, user: Option<u32>) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe().expect("the test binary"));
        if let Some(user) = user {
            command.uid(user).gid(user).current_dir("/");
        }
        let mut child = command
            .args(["--exact", "host::tests::child_process", "--nocapture", "--test-threads=1"])
            .env(CHILD, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(text) = line.strip_prefix('@') {
                    let _ = send.send(text.to_owned());
                }
            }
        });
        let stdin = child.stdin.take().expect("piped");
        let mut process = Self { child, stdin, lines, slot: 0, got: Vec::new() };
        process.slot = process.answer("seat").parse().expect("a slot");
        Ok(process)
    }

    /// Waits for the line that begins with `word`, keeping what arrived in between.
    fn answer(&mut self, word: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("no line {word:?} from {}", self.slot));
            match line.split_once(' ') {
                Some((first, rest)) if first == word => return rest.to_owned(),
                Some(("got", rest)) => self.keep(rest),
                _ if line == word => return String::new(),
                _ => panic!("unexpected line {line:?}"),
            }
        }
    }

    fn keep(&mut self, rest: &str) {
        let number = rest.split(' ').next().expect("a word");
        self.got.push(number.parse().expect("a number"));
    }

    fn ask(&mut self, line: &str, answer: &str) -> String {
        writeln!(self.stdin, "{line}").expect("the process lives");
        self.answer(answer)
    }

    /// Datagrams of anybody's that this process saw on a detour.
    fn detours(&mut self) -> u64 {
        self.ask("detours", "detours").parse().expect("a number")
    }

    /// Whether the datagram `number` arrives within `time`.
    fn hears(&mut self, number: u32, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            if let Some(at) = self.got.iter().position(|got| *got == number) {
                self.got.remove(at);
                return true;
            }
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.keep(line.strip_prefix("got ").expect("only datagrams are reported unasked"))
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => panic!("the process of slot {} ended", self.slot),
            }
        }
    }

    fn signal(&self, signal: libc::c_int) {
        crate::sys::process::kill(self.child.id(), signal).expect("our own child");
    }

    fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of the world: many peers, so that the kernel's hash spreads them.
struct World {
    peers: Vec<UdpSocket>,
    /// Whom each datagram was sent to, by its number.
    owners: Vec<Option<u8>>,
}

impl World {
    fn new() -> Self {
        let peers = (0..16).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket")).collect();
        Self { peers, owners: Vec::new() }
    }

    fn send(&mut self, owner: Option<u8>, payload: impl Fn(u32) -> Vec<u8>) -> u32 {
        let number = self.number(owner);
        let peer = &self.peers[number as usize % self.peers.len()];
        peer.send_to(&payload(number), ("127.0.0.1", ROCE_PORT)).expect("sent");
        number
    }

    /// A number for a datagram to `owner`.
    fn number(&mut self, owner: Option<u8>) -> u32 {
        self.owners.push(owner);
        self.owners.len() as u32 - 1
    }

    fn send_to_slot(&mut self, slot: u8) -> u32 {
        self.send(Some(slot), |number| to_qp(slot, number))
    }

    /// One datagram from every peer to every process; how many were not there in `time`.
    fn lost(&mut self, processes: &mut [&mut Process], time: Duration) -> usize {
        let mut lost = 0;
        for process in &mut *processes {
            let slot = process.slot;
            let numbers: Vec<u32> = (0..self.peers.len()).map(|_| self.send_to_slot(slot)).collect();
            lost += numbers.into_iter().filter(|number| !process.hears(*number, time)).count();
        }
        for process in processes {
            for number in process.got.drain(..) {
                assert_eq!(self.owners[number as usize], Some(process.slot), "datagram {number} went astray");
            }
        }
        lost
    }

    /// A round in which nothing may be lost. One datagram at a time, so that no queue has a reason to be full.
    fn round(&mut self, processes: &mut [&mut Process]) {
        for process in processes {
            for _ in 0..self.peers.len() {
                let number = self.send_to_slot(process.slot);
                assert!(process.hears(number, PATIENCE), "slot {} never got {number}", process.slot);
            }
        }
    }

    /// Rounds until one loses nothing and needs no detour.
    fn until_direct(&mut self, processes: &mut [&mut Process]) {
        let detours = |processes: &mut [&mut Process]| processes.iter_mut().map(|p| p.detours()).sum::<u64>();
        let start = Instant::now();
        loop {
            let before = detours(processes);
            if self.lost(processes, Duration::from_millis(100)) == 0 && detours(processes) == before {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "datagrams are still lost, or take detours");
        }
    }
}

/// A namespace for this test alone. Its board goes with it.
struct Alone {
    veth: Veth,
}

impl Drop for Alone {
    fn drop(&mut self) {
        for uid in [0, NOBODY, SOMEBODY].map(super::board::path) {
            let _ = uid.and_then(std::fs::remove_file);
        }
    }
}

/// A namespace for this test alone, or a reason to skip it.
fn alone() -> Option<Alone> {
    match Veth::new(1500) {
        Ok(veth) => {
            veth.enter(End::Left).expect("a new namespace");
            Some(Alone { veth })
        }
        Err(err) => {
            eprintln!("skipped: a network namespace for the test alone needs root: {err}");
            None
        }
    }
}

#[test]
fn three_processes_receive_only_what_is_theirs_and_without_detours() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
}

#[test]
fn the_others_go_on_when_one_is_killed_and_a_new_one_joins() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
    // The first one's socket is where the last one's will be.
    let slot_of_the_dead = a.slot;
    a.kill();
    world.until_direct(&mut [&mut b, &mut c]);
    // What is still sent to the dead goes nowhere.
    world.send_to_slot(slot_of_the_dead);
    world.round(&mut [&mut b, &mut c]);
    let mut d = Process::start();
    world.round(&mut [&mut b, &mut c, &mut d]);
    world.until_direct(&mut [&mut b, &mut c, &mut d]);
    b.kill();
    c.kill();
    world.until_direct(&mut [&mut d]);
}

#[test]
fn a_stopped_process_disturbs_nobody_and_finds_its_datagrams_when_it_goes_on() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
    b.signal(libc::SIGSTOP);
    let waiting = world.send_to_slot(b.slot);
    world.round(&mut [&mut a, &mut c]);
    // Now indices change while the stopped one cannot help: it neither sends on nor finds its own place.
    a.kill();
    world.until_direct(&mut [&mut c]);
    let mut d = Process::start();
    world.until_direct(&mut [&mut c, &mut d]);
    b.signal(libc::SIGCONT);
    assert!(b.hears(waiting, PATIENCE), "what waited in the stopped process's socket is still there");
    world.until_direct(&mut [&mut b, &mut c, &mut d]);
}

/// The datagram goes to its owner whatever the kernel's choice would be, exactly once, and makes nobody doubt that.
#[test]
fn what_is_sent_surely_does_not_touch_the_network() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
    // Its socket is not even read.
    a.signal(libc::SIGSTOP);
    for _ in 0..5 {
        let number = world.number(Some(b.slot));
        c.ask(&format!("surely {} {number}", b.slot), "handed");
        assert!(b.hears(number, PATIENCE), "not handed over");
        assert!(!b.hears(number, Duration::from_millis(20)), "twice");
    }
    a.signal(libc::SIGCONT);
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
}

#[test]
fn a_lost_board_costs_detours_until_all_have_found_the_new_one() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b] = [(); 2].map(|()| Process::start());
    let mut world = World::new();
    world.until_direct(&mut [&mut a, &mut b]);
    std::fs::remove_file(super::board::path(0).expect("a board")).expect("shared with the processes");
    let mut c = Process::start();
    world.round(&mut [&mut a, &mut b, &mut c]);
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
}

/// A killed process cannot remove its board, and nobody comes back to a namespace that is gone.
#[test]
fn the_board_of_the_killed_is_removed_by_the_next_and_a_used_one_stays() {
    let Some(Alone { veth }) = &alone() else { return };
    let left = super::board::path(0).expect("a board");
    let (a, b) = (Process::start(), Process::start());
    a.kill();
    veth.enter(End::Right).expect("the other namespace");
    let elsewhere = super::board::path(0).expect("a board");
    let mut c = Process::start();
    assert!(left.exists(), "one lives in that namespace, and is on the board");
    b.kill();
    let d = Process::start();
    assert!(!left.exists(), "the next one removes it");
    d.kill();
    // Beside one that was killed, the last who leaves by himself is the last.
    assert!(elsewhere.exists());
    let own = super::board::Board::open().expect("a board");
    assert!(own.shared() && own.is_current());
    c.detours();
    c.kill();
    own.clear_away();
    assert!(!elsewhere.exists(), "the last who leaves takes it with him");
    assert!(!own.is_current());
}

#[test]
fn who_opens_a_board_does_not_wait_for_one_who_was_stopped_while_removing_it() {
    let Some(_alone) = alone() else { return };
    let path = super::board::path(0).expect("a board");
    let stopped = std::fs::File::create(&path).expect("a board");
    stopped.lock().expect("nobody else's");
    let before = super::board::Board::open().expect("a board");
    assert!(before.shared() && before.is_current());
    std::fs::remove_file(&path).expect("the stopped one goes on");
    assert!(!before.is_current());
    let after = super::board::Board::open().expect("a board");
    assert!(after.shared() && after.is_current());
}

#[test]
fn another_user_is_a_guest_while_root_has_the_port_and_inherits_it() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b] = [(); 2].map(|()| Process::start());
    let mut guest = match Process::start_as(Some(NOBODY)) {
        Ok(guest) => guest,
        Err(err) => {
            eprintln!("skipped: another user cannot execute the test: {err}");
            return;
        }
    };
    let mut world = World::new();
    world.round(&mut [&mut a, &mut b, &mut guest]);
    guest.ask("listen 4660", "listening");
    let number = world.send(None, |number| to_service(4660, number));
    assert!(guest.hears(number, PATIENCE), "the guest's service is not found");
    a.kill();
    world.lost(&mut [&mut guest], Duration::from_millis(10));
    b.kill();
    world.until_direct(&mut [&mut guest]);
}

/// A process of another user that has the plain names of all slots, as far as they are free; or a reason to skip the test.
fn squatter() -> Option<Process> {
    let squatter = Process::start_to(SQUATS, Some(NOBODY));
    squatter.inspect_err(|err| eprintln!("SKIPPED: another user cannot execute the test: {err}")).ok()
}

#[test]
fn who_squats_on_all_names_denies_nobody_a_seat_and_hears_nothing() {
    let Some(_alone) = alone() else { return };
    let mut a = Process::start();
    let mut world = World::new();
    world.round(&mut [&mut a]);
    let Some(mut squatter) = squatter() else { return };
    assert_eq!(squatter.slot, 254, "all names but one");
    // The first one has seen the names before the others came, and is all there is to receive for them at first.
    let [mut b, mut c] = [(); 2].map(|()| Process::start());
    world.round(&mut [&mut a, &mut b, &mut c]);
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
    b.ask("listen 4660", "listening");
    let number = world.send(None, |number| to_service(4660, number));
    assert!(b.hears(number, PATIENCE), "the service is not found");
    // What is for the dead is not the squatter's either. The one that is left takes it from the same queue.
    let dead = c.slot;
    c.kill();
    a.kill();
    world.until_direct(&mut [&mut b]);
    world.send_to_slot(dead);
    world.round(&mut [&mut b]);
    assert_eq!(squatter.ask("heard", "heard"), "0");
    // Whose slot it was is free again, and so are the squatter's.
    squatter.kill();
    let mut d = Process::start();
    world.round(&mut [&mut b, &mut d]);
}

/// The queue of a seat's name has room for ten messages, and anybody may send there.
#[test]
fn who_fills_the_queues_of_all_names_loses_nobody_a_datagram() {
    let Some(_alone) = alone() else { return };
    let mut a = Process::start();
    let guest = |user| Process::start_as(Some(user));
    let mut early = match guest(NOBODY) {
        Ok(guest) => guest,
        Err(err) => return eprintln!("SKIPPED: another user cannot execute the test: {err}"),
    };
    let mut world = World::new();
    world.round(&mut [&mut a, &mut early]);
    let mut flooder = Process::start_to(FLOODS, Some(SOMEBODY)).expect("as the guest");
    flooder.ask(&early.slot.to_string(), "full");
    // What is for guests all takes the way that he fills.
    for _ in 0..20 {
        world.round(&mut [&mut a, &mut early]);
    }
    // Who is crowded before anything was sent on to him has his own way once one message was let through.
    let mut late = guest(NOBODY).expect("as before");
    let next = Process::start();
    flooder.ask(&late.slot.to_string(), "full");
    a.kill();
    let mut a = next;
    let start = Instant::now();
    while world.lost(&mut [&mut late, &mut early], Duration::from_millis(100)) > 0 {
        assert!(start.elapsed() < PATIENCE, "he is still crowded out");
    }
    for _ in 0..20 {
        world.round(&mut [&mut a, &mut early, &mut late]);
    }
}

/// By what somebody saw just before it was taken, its datagrams would go to the plain name.
#[test]
fn a_slot_beside_a_squatter_is_used_when_all_who_send_on_have_seen_it() {
    let Some(_alone) = alone() else { return };
    let first = Seat::claim(rule()).expect("a seat");
    let Some(_squatter) = squatter() else { return };
    assert_eq!(first.way(0, true), first.way(0, false));
    let second = Seat::claim(rule()).expect("a seat");
    let way = first.way(second.slot(), false);
    assert!(matches!(way, Way::To(Label::Beside(_))), "{way:?}");
    assert_eq!(way, first.way(second.slot(), true));
    assert!(first.counts_everywhere() && second.counts_everywhere(), "both are root's");
}

#[test]
fn who_squats_on_all_names_denies_no_other_user_a_guests_seat() {
    let Some(_alone) = alone() else { return };
    let mut a = Process::start();
    let Some(mut squatter) = squatter() else { return };
    let mut world = World::new();
    world.round(&mut [&mut a]);
    let mut guests = [(); 2].map(|()| Process::start_as(Some(SOMEBODY)).expect("as the squatter"));
    for guest in &mut guests {
        assert!(is_home(SOMEBODY, guest.slot) && !is_home(NOBODY, guest.slot), "{:#x}", guest.slot);
        world.round(&mut [&mut a, guest]);
    }
    assert_ne!(guests[0].slot, guests[1].slot);
    // And the squatter could be a guest himself, where he is at home.
    let at_home =
        (0..=255).find(|slot| is_home(NOBODY, *slot) && *slot != a.slot).expect("a quarter of them");
    world.send_to_slot(at_home);
    world.round(&mut [&mut a]);
    assert_eq!(squatter.ask("heard", "heard"), "1");
}

#[test]
fn what_names_nobody_reaches_everyone_who_listens_once() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    for (process, service) in [(&mut a, 1), (&mut b, 2), (&mut c, 3)] {
        process.ask(&format!("listen {service}"), "listening");
    }
    for _ in 0..16 {
        let number = world.send(None, takes_back);
        for process in [&mut a, &mut b, &mut c] {
            assert!(process.hears(number, PATIENCE), "slot {} did not hear of it", process.slot);
        }
    }
    // Whatever came twice would stand behind the numbers of this.
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
}

#[test]
fn a_message_to_the_dead_is_heard_by_one_of_the_living() {
    let Some(_alone) = alone() else { return };
    let [a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    let dead = a.slot;
    a.kill();
    for _ in 0..16 {
        let number = world.send(None, |number| {
            let mut reply = to_service(0, number);
            (reply[37], reply[48]) = (0x13, dead);
            reply
        });
        let start = Instant::now();
        while !b.hears(number, Duration::ZERO) && !c.hears(number, Duration::ZERO) {
            assert!(start.elapsed() < PATIENCE, "nobody heard it");
        }
    }
    world.until_direct(&mut [&mut b, &mut c]);
}

#[test]
fn requests_find_the_listener_wherever_they_arrive() {
    let Some(_alone) = alone() else { return };
    let [mut a, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    a.ask("listen 4660", "listening");
    c.ask("listen 22136", "listening");
    for _ in 0..3 {
        for (process, service) in [(&mut a, 4660), (&mut c, 22136)] {
            for _ in 0..16 {
                let number = world.send(None, |number| to_service(service, number));
                assert!(process.hears(number, PATIENCE), "no request for {service}");
            }
        }
    }
    // Nobody listens: exactly one process gets it, to answer that.
    let number = world.send(None, |number| to_service(99, number));
    let start = Instant::now();
    let mut heard = 0;
    while heard == 0 {
        heard = [&mut a, &mut b, &mut c]
            .into_iter()
            .filter_map(|p| p.hears(number, Duration::ZERO).then_some(()))
            .count();
        assert!(start.elapsed() < PATIENCE, "a request without listener vanished");
    }
    world.until_direct(&mut [&mut a, &mut b, &mut c]);
    // The listener dies; another process takes the service over.
    a.kill();
    b.ask("listen 4660", "listening");
    for _ in 0..16 {
        let number = world.send(None, |number| to_service(4660, number));
        assert!(b.hears(number, PATIENCE), "the new listener does not get the requests");
    }
}

#[test]
fn what_does_not_say_whose_it_is_reaches_who_listens_and_wakes_nobody_else() {
    let Some(_alone) = alone() else { return };
    let [mut listener, mut b, mut c] = [(); 3].map(|()| Process::start());
    let mut world = World::new();
    listener.ask("listen 4660", "listening");
    let start = Instant::now();
    let mut received = Vec::new();
    for _ in 0..world.peers.len() {
        let number = world.send(None, takes_back);
        assert!(listener.hears(number, PATIENCE), "who listens never got {number}");
        // Twice, so that what had arrived before the first question is there before the second answer.
        for _ in 0..2 {
            b.detours();
            c.detours();
        }
        let heard = [&mut b, &mut c].map(|process| process.hears(number, Duration::ZERO));
        assert_ne!(heard, [true; 2], "one of them at most received it from the network");
        received.push(heard);
    }
    // A flood from somebody whom the kernel's hash brings to a process that does not listen.
    let at = received.iter().position(|heard| heard.contains(&true));
    let Some(at) = at else { return eprintln!("skipped: the kernel brings all to the one who listens") };
    let hit = if received[at][0] { &mut b } else { &mut c };
    for number in 1000..1400 {
        world.peers[at].send_to(&takes_back(number), ("127.0.0.1", ROCE_PORT)).expect("sent");
        assert!(hit.hears(number, PATIENCE), "who received it knows whether it is meant");
        listener.detours();
    }
    listener.detours();
    let told = listener.got.iter().filter(|number| **number >= 1000).count();
    let limit = Allowance::within(start.elapsed());
    assert!(told > 0 && told as u128 <= limit, "{told} of at most {limit}");
}
