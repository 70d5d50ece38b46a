//! What a run does: drawn from a seed, and data from then on.

use remanence_pool::quorum::majority;

use super::{Member, Work};
use crate::cluster::aim;
use crate::cluster::fault::{self, Scene};
use crate::cluster::log::plan::pace;
use crate::cluster::service::{domain, play};
use crate::cluster::{Moment, Outcome, Params, Plan, Service};
use crate::rng::Rng;

/// How many nanoseconds a millisecond has.
const MS: u64 = 1_000_000;

/// What faults are aimed at.
const MOMENTS: [Moment; 6] =
    [Moment::Promise, Moment::Promise, Moment::Update, Moment::Commit, Moment::Find, Moment::Stored];

/// What only runs of a pool have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Clients. One more comes at the end.
    pub clients: u16,
    /// Operations of each of them, at most.
    pub operations: u32,
    /// Mean pause of a client between operations, in nanoseconds.
    pub pause: u64,
    /// Names of blobs that they use.
    pub names: u64,
    /// Bytes of the longest blob.
    pub longest: u64,
    /// Bytes of a server's pool.
    pub size: u64,
    /// Bytes of a chunk, and how many a client has in flight.
    pub chunk: u32,
    /// Chunks that a client has.
    pub chunks: u32,
    /// How long a server waits for more commits that become durable together, in nanoseconds.
    pub gathers: u64,
    /// How long a server may take for each step while it is connected to, in nanoseconds.
    pub connecting: u64,
    /// How long a server may leave a request unanswered, in nanoseconds.
    pub answering: u64,
}

impl Service for Pool {
    const NAME: &'static str = "pool";
    const SERVER: &'static str = "server";
    type Work = Work;
    type Measured = ();

    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        const QUORUMS: [(u16, u16); 9] =
            [(1, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (4, 3), (5, 3)];
        let rng = &mut Rng::new(seed, 50);
        let (servers, acks) = params.draw_quorum(rng, &QUORUMS);
        // Fewer are refused.
        let acks = acks.max(majority(servers.into()) as u16);
        let clients = rng.pick(&[1, 2, 3, 3, 4]);
        let heals = rng.pick(&[20, 60, 60, 150, 150, 2_000]) * MS;
        let slow = rng.pick(&[1, 1, 10]);
        let scene = Scene::new(servers, clients, heals);
        let mut faults = fault::draw(&mut Rng::new(seed, 51), &scene);
        aim::add(&mut Rng::new(seed, 52), &scene, &MOMENTS, &mut faults);
        let chunk = rng.pick(&[512, 4_096, 65_536]);
        let names = rng.pick(&[1, 2, 2, 4]);
        Plan::of(
            params,
            acks,
            (&scene, faults),
            (domain(rng, 2), rng.one_in(2)),
            Self {
                clients,
                operations: rng.pick(&[5, 15, 40]),
                pause: rng.pick(&[500, 20_000, 400_000, heals / 50]),
                names,
                longest: rng.pick(&[64, 3_000, 9_000]),
                // The smallest has room for the longest blob of two names, and one more.
                size: rng.pick(if names > 2 { &[128, 256] } else { &[64, 128, 256] }) << 10,
                chunk,
                chunks: rng.pick(&[2, 8]),
                gathers: rng.pick(&[0, 5_000, 100_000]),
                connecting: rng.pick(&[heals / 20, heals / 4]),
                answering: rng.pick(&[heals / 20, heals / 4, heals]),
            },
            pace(rng, &scene, slow),
        )
    }

    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self> {
        play::<Member>(plan, seed, trace_lines)
    }

    fn clients(&self) -> Vec<(&'static str, u16)> {
        vec![("client", self.clients)]
    }

    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)> {
        vec![("operations", &mut self.operations)]
    }

    fn sentence(plan: &Plan<Self>) -> String {
        format!(
            "blobs on {} servers, {} of them acknowledge; {} clients, up to {} operations each on {} names",
            plan.servers, plan.acks, plan.clients, plan.operations, plan.names
        )
    }
}
