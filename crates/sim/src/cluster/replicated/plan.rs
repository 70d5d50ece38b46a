//! What a run does: drawn from a seed, and data from then on.

use std::marker::PhantomData;

use remanence_coord::log::Mode;

use super::oracle::Counter;
use super::simulated::Simulated;
use super::{Member, Work};
use crate::cluster::fault::{self, Scene};
use crate::cluster::log::plan::pace;
use crate::cluster::service::{domain, play};
use crate::cluster::{Outcome, Params, Plan, Service};
use crate::rng::Rng;

/// What only runs of a replicated service have. Its servers are those of its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replicated<A = Counter> {
    /// The service that its hosts have.
    pub of: PhantomData<A>,
    /// How the ends of the logs are found.
    pub mode: Mode,
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
}

impl<A: Simulated> Service for Replicated<A> {
    const NAME: &'static str = "replicated";
    const SERVER: &'static str = "server";
    type Work = Work;
    type Measured = ();

    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        const QUORUMS: [(u16, u16); 9] =
            [(1, 1), (2, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (5, 3)];
        let rng = &mut Rng::new(seed, 40);
        let (servers, acks) = params.draw_quorum(rng, &QUORUMS);
        let (hosts, clients) = (rng.pick(&[1, 2, 2, 3]), rng.pick(&[1, 2, 3]));
        // Hosts are to the servers what clients are to the hosts.
        let scene = Scene::new(servers, hosts + clients, rng.pick(&[20_000_000, 60_000_000, 150_000_000]));
        let slow = rng.pick(&[1, 1, 10]);
        let segments = rng.between(16, 40);
        let faults = fault::draw(&mut Rng::new(seed, 41), &scene);
        let mode = if rng.one_in(3) { Mode::Compound } else { Mode::Singleton };
        let mut plan = Plan::of(
            params,
            acks,
            (&scene, faults),
            (domain(rng, 2), rng.one_in(2)),
            Self {
                of: PhantomData,
                mode: params.mode.unwrap_or(mode),
                segment: 512 * A::BYTES.div_ceil(1024).max(1),
                segments: (0..servers)
                    .map(|_| segments + if rng.one_in(3) { rng.below(8) } else { 0 })
                    .collect(),
                hosts,
                clients,
                operations: rng.pick(&[5, 20, 60, 150]),
                sessions: rng.pick(&[2, 4, 8, 8]),
                pause: rng.pick(&[500, 5_000, 50_000, 400_000]),
                endurance: rng.pick(&[300_000, 2_000_000, 20_000_000]),
                depth: rng.pick(&[1, 2, 16, 16]),
                grace: rng.pick(&[0, 100_000, 2_000_000]),
                patience: rng.pick(&[2_000_000, 10_000_000, 100_000_000]),
            },
            pace(rng, &scene, slow),
        );
        if Rng::new(seed, 42).one_in(4) {
            // Longer than a host waits for what it has appended.
            plan.endurance = 2 * (30_000_000 + plan.patience);
        }
        plan
    }

    fn command() -> String {
        A::COMMAND.to_owned()
    }

    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self> {
        play::<Member<A>>(plan, seed, trace_lines)
    }

    fn clients(&self) -> Vec<(&'static str, u16)> {
        vec![("host", self.hosts), ("client", self.clients)]
    }

    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)> {
        vec![("operations", &mut self.operations)]
    }

    fn mode(&self) -> Option<Mode> {
        Some(self.mode)
    }

    fn sentence(plan: &Plan<Self>) -> String {
        format!(
            "a service on {} servers, {} of them acknowledge; {} hosts, {} clients, up to {} commands each; {}",
            plan.servers,
            plan.acks,
            plan.hosts,
            plan.clients,
            plan.operations,
            plan.mode.name()
        )
    }
}
