//! What a run does: drawn from a seed, and data from then on.

use remanence_coord::log::Mode;
use remanence_pmem::PersistenceDomain;

use crate::cluster::aim;
use crate::cluster::fault::{self, Fault, Scene};
use crate::cluster::shrink::Shrink;
use crate::cluster::{Clock, Moment, Speeds};
use crate::rng::Rng;

/// What faults are aimed at.
const MOMENTS: [Moment; 8] = [
    Moment::Promise,
    Moment::Look,
    Moment::Cut,
    Moment::Adopt,
    Moment::Note,
    Moment::Update,
    Moment::Open,
    Moment::Acknowledge,
];

/// The bounds within which a seed draws its run. The defaults are those of `rem sim`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Servers, and how many of them must have a record before it is acknowledged. `None`: the seed says so.
    pub quorum: Option<(u16, u16)>,
    /// How the ends of logs are found. `None`: the seed says so.
    pub mode: Option<Mode>,
    /// Servers shut older writers out. Without, records are lost.
    pub fencing: bool,
    /// Lines of the trace that a failed run shows.
    pub trace_lines: usize,
    /// How many runs the search for a smaller plan that fails may take.
    pub shrinking: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { quorum: None, mode: None, fencing: true, trace_lines: 100, shrinking: 300 }
    }
}

/// What one run does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How many servers there are.
    pub servers: u16,
    /// How many of them must have a record before it is acknowledged.
    pub acks: u16,
    /// How the ends of the logs are found.
    pub mode: Mode,
    /// Servers shut older writers out.
    pub fencing: bool,
    /// Where what is flushed is safe.
    pub domain: PersistenceDomain,
    /// A flush makes durable what it is for, and nothing else.
    pub flush_alone: bool,
    /// Bytes of a segment, and how many of them each server has.
    pub segment: u64,
    /// Segments of each server.
    pub segments: Vec<u64>,
    /// Writers that do not know of each other. One more comes at the end.
    pub writers: u16,
    /// How often each of them opens the log.
    pub sessions: u32,
    /// Records that one appends each time, at most.
    pub records: u32,
    /// Bytes of the longest record.
    pub payload: u64,
    /// Records that are not acknowledged when the next one is appended, at most.
    pub window: u64,
    /// Mean pause of a writer between appends, in nanoseconds.
    pub pause: u64,
    /// Updates that a server has under way at a time.
    pub depth: usize,
    /// How long others are waited for where enough have answered, in nanoseconds: one for each writer.
    pub grace: Vec<u64>,
    /// How long a server may leave something unanswered, in nanoseconds.
    pub patience: u64,
    /// How fast everything is.
    pub speeds: Speeds,
    /// The clock of each node: the servers', the writers', and that of the one who comes last.
    pub clocks: Vec<Clock>,
    /// When all faults are over, in nanoseconds. No usual writer opens the log any more, and the last one comes.
    pub heals: u64,
    /// The last writer comes when the usual ones have come to their ends, which they must.
    pub lets_end: bool,
    /// What goes wrong until then. The number of each is its place among those that the seed has drawn.
    pub faults: Vec<(usize, Fault)>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, params: &Params) -> Self {
        let mut rng = Rng::new(seed, 10);
        let rng = &mut rng;
        let of = rng.pick(&[(1, 1), (2, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (4, 2), (5, 3)]);
        let (servers, acks) = params.quorum.unwrap_or(of);
        let mode = if rng.one_in(3) { Mode::Compound } else { Mode::Singleton };
        let writers = rng.pick(&[1, 2, 2, 3]);
        let nodes = usize::from(servers + writers) + 1;
        let heals = rng.pick(&[5_000_000, 20_000_000, 60_000_000]);
        let slow = rng.pick(&[1, 1, 10]);
        let segments = rng.between(8, 24);
        let clock = |rng: &mut Rng| Clock {
            offset: if rng.one_in(2) { 0 } else { rng.below(1 << 50) },
            ppm: rng.pick(&[0, 50, -50, 5_000, -200_000, 300_000]),
        };
        let grace = |rng: &mut Rng| rng.pick(&[0, 100_000, 2_000_000, 50_000_000]);
        let scene =
            Scene { servers: servers.into(), clients: writers.into(), among_servers: false, ends: heals };
        let mut faults = fault::draw(&mut Rng::new(seed, 11), &scene);
        // Half of the runs have faults that are aimed, and half of those no others.
        let mut aims = Rng::new(seed, 12);
        if aims.one_in(2) {
            if aims.one_in(2) {
                faults.clear();
            }
            faults.extend(aim::draw(&mut aims, &scene, &MOMENTS));
        }
        Self {
            servers,
            acks,
            mode: params.mode.unwrap_or(mode),
            fencing: params.fencing,
            domain: rng.pick(&[
                PersistenceDomain::Adr,
                PersistenceDomain::Adr,
                PersistenceDomain::Adr,
                PersistenceDomain::Eadr,
                PersistenceDomain::PageCache,
            ]),
            flush_alone: rng.one_in(2),
            segment: 512,
            segments: (0..servers).map(|_| segments + if rng.one_in(3) { rng.below(8) } else { 0 }).collect(),
            writers,
            sessions: rng.pick(&[1, 3, 6]),
            records: rng.pick(&[2, 10, 20, 40]),
            payload: rng.pick(&[16, 90, 90, 300]),
            window: rng.pick(&[1, 3, 8, 20]),
            pause: rng.pick(&[500, 5_000, 50_000, 400_000]),
            depth: rng.pick(&[1, 2, 16, 16]),
            grace: (0..=writers).map(|_| grace(rng)).collect(),
            patience: rng.pick(&[2_000_000, 10_000_000, 100_000_000]),
            speeds: Speeds {
                links: (0..nodes).map(|_| rng.pick(&[500, 2_000, 10_000]) * slow).collect(),
                jitter: rng.pick(&[200, 2_000, 30_000]),
                disks: (0..nodes).map(|_| rng.pick(&[300, 2_000, 20_000]) * slow).collect(),
                retry: rng.pick(&[500_000, 3_000_000, 20_000_000]),
            },
            clocks: (0..nodes).map(|_| clock(rng)).collect(),
            heals,
            lets_end: rng.one_in(2),
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
        let writers = (0..self.writers).map(|n| format!("writer {n}"));
        servers.chain(writers).chain(["the last writer".to_owned()]).collect()
    }

    /// What goes wrong, in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let names = self.names();
        self.faults.iter().map(|(number, fault)| format!("{number:>2}  {}", fault.sentence(&names))).collect()
    }
}

impl Shrink for Plan {
    /// Halves of the faults first, then each of them, then fewer sessions and records.
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
        if self.sessions > 1 {
            less.push(with(&|plan| plan.sessions = 1));
            less.push(with(&|plan| plan.sessions -= 1));
        }
        if self.records > 1 {
            less.push(with(&|plan| plan.records /= 2));
            less.push(with(&|plan| plan.records -= 1));
        }
        less
    }
}
