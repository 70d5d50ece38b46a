//! The guest: a Linux kernel with Soft-RoCE in QEMU, and the verbs program in it that does as it is told.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::time::Duration;

use remanence_rnic::WcStatus;
use remanence_wire::{Gid, Psn, Qpn, Rkey};

use crate::machine::{GUEST, Machine};

const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// The guest's address in the same family as ours.
pub(crate) fn guest_beside(ours: IpAddr) -> IpAddr {
    if ours.is_ipv6() { IpAddr::V6(GUEST_V6) } else { IpAddr::V4(GUEST) }
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
    machine: Machine,
    answers: BufReader<TcpStream>,
    commands: TcpStream,
    /// Address of its registered memory, and the rkey.
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    pub(crate) len: u64,
}

impl Guest {
    pub(crate) fn boot() -> Self {
        let (machine, commands) = Machine::boot(Duration::from_secs(3600));
        let answers = BufReader::new(commands.try_clone().expect("a descriptor"));
        let (addr, rkey, len) = (0, Rkey(0), 0);
        let mut guest = Self { machine, answers, commands, addr, rkey, len };
        let memory = guest.ask("memory");
        guest.addr = memory[0].parse().expect("an address");
        guest.rkey = Rkey(memory[1].parse().expect("a key"));
        guest.len = memory[2].parse().expect("a length");
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
            None => panic!("the guest is gone: {}", self.machine.tail()),
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
        self.machine.wait();
    }
}

fn parse_wc(word: &str) -> GuestWc {
    let numbers: Vec<u32> = word.split(':').map(|n| n.parse().expect("a number")).collect();
    GuestWc { status: numbers[0], opcode: numbers[1], len: numbers[2], imm: numbers[3] }
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
