//! What a run does: drawn from a seed, and data from then on.

use std::time::Duration;

use remanence_coord::mu::{Geometry, Options};

use super::{Node, Work};
use crate::cluster::aim;
use crate::cluster::fault::{self, Scene};
use crate::cluster::log::plan::{PPM, speeds};
use crate::cluster::service::{domain, play};
use crate::cluster::{Clock, Moment, Outcome, Params, Plan, Service, Speeds};
use crate::rng::Rng;

/// What faults are aimed at.
const MOMENTS: [Moment; 5] =
    [Moment::Promise, Moment::Try, Moment::Serve, Moment::Update, Moment::Acknowledge];

/// What only runs of Mu have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mu {
    /// How the replicas' memory is divided.
    pub geometry: Geometry,
    /// How they behave.
    pub options: Options,
    /// How long it takes to change rights on average, in nanoseconds.
    pub switches: u64,
    /// Of so many times that a right is taken away it takes new connections once: access flags do not always succeed.
    pub cycles: u64,
    /// How long a connection that was lost is left alone, in nanoseconds.
    pub reconnect: u64,
    /// Clients. One more comes at the end.
    pub clients: u16,
    /// Commands of each client, at most.
    pub operations: u32,
    /// Commands that a client has under way at a time.
    pub depth: u32,
    /// Bytes of the longest command.
    pub payload: u64,
    /// Commands that change nothing are not in the log: they are answered from the state of a leader that was confirmed.
    pub reads: bool,
    /// Mean pause of a client between commands, in nanoseconds.
    pub pause: u64,
    /// How long a client waits for an answer before it asks another replica, at first, in nanoseconds.
    pub endurance: u64,
}

/// Nanoseconds between two beats that replicas of such a speed can keep: no more than what a round trip takes as a rule, and some syncs of the process that beats.
fn period(speeds: &Speeds) -> u64 {
    let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
    let round = 4 * (most(&speeds.links) + speeds.jitter);
    round.max(4 * most(&speeds.disks)).max(20_000)
}

impl Service for Mu {
    const NAME: &'static str = "mu";
    const SERVER: &'static str = "replica";
    type Work = Work;
    type Measured = ();

    /// The replicas that acknowledge are always a majority.
    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        let mut rng = Rng::new(seed, 60);
        let rng = &mut rng;
        let of = rng.pick(&[1, 2, 3, 3, 3, 3, 3, 4, 5]);
        let servers = params.quorum.map_or(of, |(servers, _)| servers);
        let clients = rng.pick(&[1, 2, 3]);
        let nodes = usize::from(servers + clients) + 1;
        let slow = rng.pick(&[1, 1, 1, 4]);
        let speeds = speeds(rng, nodes, slow);
        let period = Duration::from_nanos(period(&speeds)) * rng.pick(&[1, 1, 2]);
        let heals = (period * rng.pick(&[60, 150, 400])).as_nanos() as u64;
        let scene =
            Scene { servers: servers.into(), clients: clients.into(), among_servers: true, ends: heals };
        let mut faults = fault::draw(&mut Rng::new(seed, 61), &scene);
        // Half of the runs have faults that are aimed, and half of those no others.
        let mut aims = Rng::new(seed, 62);
        if aims.one_in(2) {
            if aims.one_in(2) {
                faults.clear();
            }
            faults.extend(aim::draw(&mut aims, &scene, &MOMENTS));
        }
        let slots = rng.pick(&[16, 32, 64]);
        let options = Options {
            patience: period * rng.pick(&[2, 4]),
            grace: period * rng.pick(&[0, 1, 4]),
            stuck: period * rng.pick(&[60, 150]),
            depth: rng.pick(&[1, 2, 16]),
            waiting: 8,
            ..Options::new(period)
        };
        let window = slots / 4 / rng.pick(&[1, 2, 4]);
        let geometry = Geometry { replicas: servers, slots, slot: 256, window, snapshot: 2048 };
        Plan {
            servers,
            acks: geometry.majority() as u16,
            guarded: params.guarded,
            domain: domain(rng, 3),
            flush_alone: rng.one_in(2),
            own: Self {
                geometry,
                options,
                switches: rng.pick(&[1_000, 20_000, 100_000, 400_000]),
                cycles: rng.pick(&[1, 3, 1000]),
                reconnect: rng.pick(&[10_000, 100_000]),
                clients,
                operations: rng.pick(&[10, 40, 120]),
                depth: rng.pick(&[1, 1, 4, 8]),
                payload: rng.pick(&[1, 60, 200]),
                reads: Rng::new(seed, 64).one_in(2),
                pause: rng.pick(&[500, 5_000, 50_000, 400_000]),
                endurance: rng.pick(&[300_000, 2_000_000, 10_000_000]),
            },
            speeds,
            clocks: Clock::draw(rng, nodes, &PPM),
            heals,
            faults: (0..).zip(faults).collect(),
        }
    }

    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self> {
        play::<Node>(plan, seed, trace_lines)
    }

    fn clients(&self) -> Vec<(&'static str, u16)> {
        vec![("client", self.clients)]
    }

    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)> {
        vec![("operations", &mut self.operations)]
    }

    fn sentence(plan: &Plan<Self>) -> String {
        let Geometry { slots, window, .. } = plan.geometry;
        format!(
            "Mu on {} replicas, with {slots} slots of which {window} are not decided, and beats every {:?}; {} clients, up to {} commands each",
            plan.servers, plan.options.period, plan.own.clients, plan.operations
        )
    }
}
