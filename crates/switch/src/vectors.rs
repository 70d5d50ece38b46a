//! The packet vectors: what goes in, and what must leave, byte by byte. Every data plane is driven by the same file.
//!
//! ```text
//! # A comment.
//! switch 10.0.0.100 qpns=0x100..0x200
//! group service=1 epoch=1 leader=10.0.0.1/0x11/0xfffffe mtu=1024 va=0x0 rkey=0x1000 writes=2 reads=2 lag=1024
//! replica 10.0.0.2/0x21/0x100 va=0x7f0000000000 rkey=0x2222
//! replica 10.0.0.3/0x31/0x200 va=0x7e0000000000 rkey=0x3333 linux-flush
//!
//! case what must hold
//! in 4500…
//! out 4500…
//! ```
//! A `group` has the `replica`s behind it; an end of a connection is ADDRESS/QPN/PSN. Each `case` begins with a switch that has these groups, in this
//! order, and nothing else has happened to. A packet is from its IP header to its ICRC; the `out`s behind an `in` leave for it, in this order, and no others.
//! Numbers are decimal or hexadecimal.
//!
//! A plane that cannot write behind a payload, and keeps the ICRC right by the IPv4 identification and the UDP source port instead, differs in these two fields and
//! the ICRC, which must then be right.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use remanence_wire::{Mtu, Psn, Qpn, Rkey};

use crate::{Config, Endpoint, Replica, Spec};

/// The file of the vectors that are committed.
pub const FILE: &str = include_str!("../vectors/byp4ss.txt");

/// A packet, and what leaves for it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Step {
    /// What goes in.
    pub input: Vec<u8>,
    /// The packets that leave for it, in order.
    pub outputs: Vec<Vec<u8>>,
}

/// A story of some packets.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Case {
    /// What must hold.
    pub name: String,
    /// The packets, in order.
    pub steps: Vec<Step>,
}

/// A file of vectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vectors {
    /// The switch of each case.
    pub config: Config,
    /// The groups that it has, in order.
    pub groups: Vec<Spec>,
    /// What happens to it.
    pub cases: Vec<Case>,
}

impl FromStr for Vectors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut config = None;
        let (mut groups, mut cases) = (Vec::<Spec>::new(), Vec::<Case>::new());
        for (at, line) in text.lines().enumerate() {
            let wrong = |what: &str| format!("line {}: {what}", at + 1);
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let fields = Fields(rest);
            match word {
                "" | "#" => {}
                "switch" => config = Some(fields.config().ok_or_else(|| wrong("no switch"))?),
                "group" => groups.push(fields.group().ok_or_else(|| wrong("no group"))?),
                "replica" => {
                    let group = groups.last_mut().ok_or_else(|| wrong("a replica of no group"))?;
                    group.replicas.push(fields.replica().ok_or_else(|| wrong("no replica"))?);
                }
                "case" => cases.push(Case { name: rest.to_owned(), steps: Vec::new() }),
                "in" | "out" => {
                    let packet = unhex(rest).ok_or_else(|| wrong("no packet"))?;
                    let case = cases.last_mut().ok_or_else(|| wrong("a packet in no case"))?;
                    if word == "in" {
                        case.steps.push(Step { input: packet, outputs: Vec::new() });
                    } else {
                        let step = case.steps.last_mut().ok_or_else(|| wrong("what leaves for no packet"))?;
                        step.outputs.push(packet);
                    }
                }
                _ => return Err(wrong("begins with no known word")),
            }
        }
        Ok(Self { config: config.ok_or("no switch")?, groups, cases })
    }
}

impl fmt::Display for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.config.qpns;
        writeln!(f, "switch {} qpns={start:#x}..{end:#x}", self.config.addr)?;
        for group in &self.groups {
            let Spec { service, epoch, leader, replicas, mtu, va, rkey, writes, reads, lag } = group;
            write!(f, "group service={service} epoch={epoch} leader={} mtu={mtu} ", End(leader))?;
            writeln!(f, "va={va:#x} rkey={rkey} writes={writes} reads={reads} lag={lag}")?;
            for Replica { end, va, rkey, linux_flush } in replicas {
                let linux = if *linux_flush { " linux-flush" } else { "" };
                writeln!(f, "replica {} va={va:#x} rkey={rkey}{linux}", End(end))?;
            }
        }
        for Case { name, steps } in &self.cases {
            writeln!(f, "\ncase {name}")?;
            for Step { input, outputs } in steps {
                writeln!(f, "in {}", Hex(input))?;
                outputs.iter().try_for_each(|output| writeln!(f, "out {}", Hex(output)))?;
            }
        }
        Ok(())
    }
}

/// An end of a connection, as a file has it.
struct End<'a>(&'a Endpoint);

impl fmt::Display for End<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.0.addr, self.0.qpn, self.0.psn)
    }
}

/// Bytes, as a file has them.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| (byte as char).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn number32(text: &str) -> Option<u32> {
    number(text)?.try_into().ok()
}

/// The words behind the first one of a line.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    /// The value of `NAME=VALUE`.
    fn value(&self, name: &str) -> Option<&'a str> {
        self.0.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn number(&self, name: &str) -> Option<u64> {
        number(self.value(name)?)
    }

    fn count(&self, name: &str) -> Option<usize> {
        self.number(name)?.try_into().ok()
    }

    fn first(&self) -> &'a str {
        self.0.split(' ').next().unwrap_or_default()
    }

    fn rkey(&self) -> Option<Rkey> {
        number32(self.value("rkey")?).map(Rkey)
    }

    fn config(&self) -> Option<Config> {
        let (start, end) = self.value("qpns")?.split_once("..")?;
        Some(Config::new(self.first().parse().ok()?, number32(start)?..number32(end)?))
    }

    fn group(&self) -> Option<Spec> {
        let mtu = self.count("mtu")?;
        Some(Spec {
            service: self.number("service")?,
            epoch: self.number("epoch")?,
            leader: endpoint(self.value("leader")?)?,
            replicas: Vec::new(),
            mtu: Mtu::ALL.into_iter().find(|one| one.bytes() == mtu)?,
            va: self.number("va")?,
            rkey: self.rkey()?,
            writes: self.count("writes")?,
            reads: self.count("reads")?,
            lag: number32(self.value("lag")?)?,
        })
    }

    fn replica(&self) -> Option<Replica> {
        Some(Replica {
            end: endpoint(self.first())?,
            va: self.number("va")?,
            rkey: self.rkey()?,
            linux_flush: self.0.split(' ').any(|word| word == "linux-flush"),
        })
    }
}

fn endpoint(text: &str) -> Option<Endpoint> {
    let mut parts = text.split('/');
    let addr = parts.next()?.parse().ok()?;
    let (qpn, psn) = (number32(parts.next()?)?, number32(parts.next()?)?);
    Some(Endpoint { addr, qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}
