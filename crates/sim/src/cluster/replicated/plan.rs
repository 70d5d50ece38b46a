//! What a run does: drawn from a seed, and data from then on.

use remanence_coord::log::Mode;
use remanence_pmem::PersistenceDomain;

use crate::cluster::fault::{self, Fault, Scene};
use crate::cluster::shrink::Shrink;
use crate::cluster::{Clock, Speeds};
use crate::rng::Rng;

/// The bounds within which a seed draws its run. The defaults are those of `rem sim`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Servers of the log, and how many of them acknowledge. `None`: the seed says so.
    pub quorum: Option<(u16, u16)>,
    /// Servers shut older hosts out. Without, commands are lost.
    pub fencing: bool,
    /// Lines of the trace that a failed run shows.
    pub trace_lines: usize,
    /// How many runs the search for a smaller plan that fails may take.
    pub shrinking: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { quorum: None, fencing: true, trace_lines: 100, shrinking: 300 }
    }
}

/// What one run does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How many servers the log lies on.
    pub servers: u16,
    /// How many of them must have a record before it is acknowledged.
    pub acks: u16,
    /// How the ends of the logs are found.
    pub mode: Mode,
    /// Servers shut older hosts out.
    pub fencing: bool,
    /// Where what is flushed is safe.
    pub domain: PersistenceDomain,
    /// A flush makes durable what it is for, and nothing else.
    pub flush_alone: bool,
    /// Bytes of a segment.
    pub segment: u64,
    /// How many of them each server has.
    pub segments: Vec<u64>,
    /// Hosts that may have the service.
    pub hosts: u16,
    /// Clients. One more comes at the end.
    pub clients: u16,
    /// Commands of each client, at most.
    pub operations: u32,
    /// Sessions that the service keeps, at most.
    pub sessions: u32,
    /// Mean pause of a client between commands, in nanoseconds.
    pub pause: u64,
    /// How long a client waits for an answer before it asks another host, in nanoseconds.
    pub endurance: u64,
    /// Updates that a server has under way at a time.
    pub depth: usize,
    /// How long others are waited for where enough have answered, in nanoseconds.
    pub grace: u64,
    /// How long a server may leave something unanswered, in nanoseconds.
    pub patience: u64,
    /// How fast everything is.
    pub speeds: Speeds,
    /// The clock of each node: the servers', the hosts', the clients', and that of the one who comes last.
    pub clocks: Vec<Clock>,
    /// When all faults are over, in nanoseconds.
    pub heals: u64,
    /// What goes wrong until then. The number of each is its place among those that the seed has drawn.
    pub faults: Vec<(usize, Fault)>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, params: &Params) -> Self {
        let mut rng = Rng::new(seed, 40);
        let rng = &mut rng;
        let of = rng.pick(&[(1, 1), (2, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (5, 3)]);
        let (servers, acks) = params.quorum.unwrap_or(of);
        let (hosts, clients) = (rng.pick(&[1, 2, 2, 3]), rng.pick(&[1, 2, 3]));
        let nodes = usize::from(servers + hosts + clients) + 1;
        let heals = rng.pick(&[20_000_000, 60_000_000, 150_000_000]);
        let slow = rng.pick(&[1, 1, 10]);
        let segments = rng.between(16, 40);
        let clock = |rng: &mut Rng| Clock {
            offset: if rng.one_in(2) { 0 } else { rng.below(1 << 50) },
            ppm: rng.pick(&[0, 50, -50, 5_000, -200_000, 300_000]),
        };
        // Hosts are to the servers what clients are to the hosts.
        let others = usize::from(hosts + clients);
        let scene = Scene { servers: servers.into(), clients: others, among_servers: false, ends: heals };
        let faults = fault::draw(&mut Rng::new(seed, 41), &scene);
        Self {
            servers,
            acks,
            mode: if rng.one_in(3) { Mode::Compound } else { Mode::Singleton },
            fencing: params.fencing,
            domain: rng.pick(&[
                PersistenceDomain::Adr,
                PersistenceDomain::Adr,
                PersistenceDomain::Eadr,
                PersistenceDomain::PageCache,
            ]),
            flush_alone: rng.one_in(2),
            segment: 512,
            segments: (0..servers).map(|_| segments + if rng.one_in(3) { rng.below(8) } else { 0 }).collect(),
            hosts,
            clients,
            operations: rng.pick(&[5, 20, 60, 150]),
            sessions: rng.pick(&[2, 4, 8, 8]),
            pause: rng.pick(&[500, 5_000, 50_000, 400_000]),
            endurance: rng.pick(&[300_000, 2_000_000, 20_000_000]),
            depth: rng.pick(&[1, 2, 16, 16]),
            grace: rng.pick(&[0, 100_000, 2_000_000]),
            patience: rng.pick(&[2_000_000, 10_000_000, 100_000_000]),
            speeds: Speeds {
                links: (0..nodes).map(|_| rng.pick(&[500, 2_000, 10_000]) * slow).collect(),
                jitter: rng.pick(&[200, 2_000, 30_000]),
                disks: (0..nodes).map(|_| rng.pick(&[300, 2_000, 20_000]) * slow).collect(),
                retry: rng.pick(&[500_000, 3_000_000, 20_000_000]),
            },
            clocks: (0..nodes).map(|_| clock(rng)).collect(),
            heals,
            faults: (0..).zip(faults).collect(),
        }
    }

    /// Leaves out all faults but these.
    pub fn keep(&mut self, numbers: &[usize]) {
        self.faults.retain(|(number, _)| numbers.contains(number));
    }

    /// Names of the nodes.
    pub(super) fn names(&self) -> Vec<String> {
        let servers = (0..self.servers).map(|n| format!("server {n}"));
        let hosts = (0..self.hosts).map(|n| format!("host {n}"));
        let clients = (0..self.clients).map(|n| format!("client {n}"));
        servers.chain(hosts).chain(clients).chain(["the last client".to_owned()]).collect()
    }

    /// What goes wrong, in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let names = self.names();
        self.faults.iter().map(|(number, fault)| format!("{number:>2}  {}", fault.sentence(&names))).collect()
    }
}

impl Shrink for Plan {
    /// Halves of the faults first, then each of them, then fewer commands.
    fn less(&self) -> Vec<Self> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plan
        };
        let mut less = Vec::new();
        let count = self.faults.len();
        if count > 3 {
            less.push(with(&|plan| drop(plan.faults.drain(..count / 2))));
            less.push(with(&|plan| plan.faults.truncate(count / 2)));
        }
        less.extend((0..count).map(|n| with(&|plan| _ = plan.faults.remove(n))));
        if self.operations > 1 {
            less.push(with(&|plan| plan.operations /= 2));
            less.push(with(&|plan| plan.operations -= 1));
        }
        less
    }
}
