//! What a run does: drawn from a seed, and data from then on.

use remanence_coord::log::Mode;

use super::{Member, Work};
use crate::cluster::aim;
use crate::cluster::fault::{self, Scene};
use crate::cluster::service::{domain, play};
use crate::cluster::{Clock, Moment, Outcome, Params, Plan, Service, Speeds};
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

/// What only runs of the log have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// How the ends of the logs are found.
    pub mode: Mode,
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
    /// How long a connection that was lost is left alone, in nanoseconds.
    pub reconnect: u64,
    /// Beside each writer somebody reads the log of one server, and looks every so many nanoseconds whether there is more.
    pub follows: Option<u64>,
    /// The last writer comes when the usual ones have come to their ends, which they must. They do not open the log any more when all faults
    /// are over.
    pub lets_end: bool,
}

impl Service for Log {
    const NAME: &'static str = "log";
    const SERVER: &'static str = "server";
    type Work = Work;
    /// When each record that was acknowledged was appended, and how long that took, in nanoseconds.
    type Measured = Vec<(u64, u64)>;

    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        const QUORUMS: [(u16, u16); 10] =
            [(1, 1), (2, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (4, 2), (5, 3)];
        let rng = &mut Rng::new(seed, 10);
        let (servers, acks) = params.draw_quorum(rng, &QUORUMS);
        let mode = if rng.one_in(3) { Mode::Compound } else { Mode::Singleton };
        let writers = rng.pick(&[1, 2, 2, 3]);
        let scene = Scene::new(servers, writers, rng.pick(&[5_000_000, 20_000_000, 60_000_000]));
        let slow = rng.pick(&[1, 1, 10]);
        let segments = rng.between(8, 24);
        let grace = |rng: &mut Rng| rng.pick(&[0, 100_000, 2_000_000, 50_000_000]);
        let mut faults = fault::draw(&mut Rng::new(seed, 11), &scene);
        aim::add(&mut Rng::new(seed, 12), &scene, &MOMENTS, &mut faults);
        let mut plan = Plan::of(
            params,
            acks,
            (&scene, faults),
            (domain(rng, 3), rng.one_in(2)),
            Self {
                mode: params.mode.unwrap_or(mode),
                segment: 512,
                segments: (0..servers)
                    .map(|_| segments + if rng.one_in(3) { rng.below(8) } else { 0 })
                    .collect(),
                writers,
                sessions: rng.pick(&[1, 3, 6]),
                records: rng.pick(&[2, 10, 20, 40]),
                payload: rng.pick(&[16, 90, 90, 300]),
                window: rng.pick(&[1, 3, 8, 20]),
                pause: rng.pick(&[500, 5_000, 50_000, 400_000]),
                depth: rng.pick(&[1, 2, 16, 16]),
                grace: (0..=writers).map(|_| grace(rng)).collect(),
                patience: rng.pick(&[2_000_000, 10_000_000, 100_000_000]),
                reconnect: 700_000,
                follows: None,
                lets_end: false,
            },
            pace(rng, &scene, slow),
        );
        plan.lets_end = rng.one_in(2);
        let rng = &mut Rng::new(seed, 13);
        if rng.one_in(4) {
            // Before whoever was told to ask again does.
            plan.reconnect = 10_000;
        }
        if rng.one_in(50) {
            // Logs of which not all is read at a time.
            (plan.segment, plan.payload) = (64 << 10, 30_000);
            plan.segments.iter_mut().for_each(|segments| *segments = 6 + *segments % 4);
            (plan.records, plan.sessions) = (plan.records.max(20), 3);
        }
        plan.follows = rng.one_in(3).then_some(100_000);
        plan
    }

    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self> {
        play::<Member>(plan, seed, trace_lines)
    }

    fn clients(&self) -> Vec<(&'static str, u16)> {
        vec![("writer", self.writers)]
    }

    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)> {
        vec![("sessions", &mut self.sessions), ("records", &mut self.records)]
    }

    fn mode(&self) -> Option<Mode> {
        Some(self.mode)
    }

    fn sentence(plan: &Plan<Self>) -> String {
        format!(
            "a log on {} servers, {} of them acknowledge; {} writers, {} times each, up to {} records; {}",
            plan.servers,
            plan.acks,
            plan.writers,
            plan.sessions,
            plan.records,
            plan.mode.name()
        )
    }
}

/// By how many microseconds in a second clocks are wrong.
pub(in crate::cluster) const PPM: [i32; 6] = [0, 50, -50, 5_000, -200_000, 300_000];

/// How fast so many nodes are, with links and disks that are so many times as slow.
pub(in crate::cluster) fn speeds(rng: &mut Rng, nodes: usize, times: u64) -> Speeds {
    let links = [500, 2_000, 10_000];
    let retry = [500_000, 3_000_000, 20_000_000];
    Speeds::draw(rng, nodes, times, [links, [200, 2_000, 30_000], [300, 2_000, 20_000], retry])
}

/// The same of the nodes of a log, and their clocks.
pub(in crate::cluster) fn pace(rng: &mut Rng, scene: &Scene, times: u64) -> (Speeds, Vec<Clock>) {
    (speeds(rng, scene.nodes(), times), Clock::draw(rng, scene.nodes(), &PPM))
}
