//! What a run does: drawn from a seed, and data from then on.

use remanence_rpc::log::Word;

use super::{Node, Work};
use crate::cluster::fault::{self, Scene};
use crate::cluster::log::plan::pace;
use crate::cluster::service::{domain, play};
use crate::cluster::{Moment, Outcome, Params, Plan, Service};
use crate::cluster::{aim, datagram};
use crate::rng::Rng;

/// How many nanoseconds a millisecond has.
const MS: u64 = 1_000_000;

/// What faults are aimed at.
const MOMENTS: [Moment; 4] = [Moment::Session, Moment::Request, Moment::Request, Moment::Acknowledge];

/// What only runs of calls have. Each operation is a call to as many servers as [`Plan::acks`] says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rpc {
    /// Clients. One more comes at the end.
    pub clients: u16,
    /// Clients whose token is another one. Without them nobody has a token.
    pub strangers: u16,
    /// Operations of each client, at most.
    pub operations: u32,
    /// Mean pause of a client between operations, in nanoseconds.
    pub pause: u64,
    /// So many of a hundred calls are about the log of the server.
    pub logged: u64,
    /// The word that says how far the logs go.
    pub word: Word,
    /// Bytes of a server's disk.
    pub disk: u64,
    /// Appends that may share a commit.
    pub batch: usize,
    /// Nanoseconds after which a server looks at what has come.
    pub round: u64,
    /// Bytes of the largest datagram.
    pub datagram: usize,
    /// Packets that a session may have under way.
    pub credits: u16,
    /// Whether a node is short of receive buffers, so that nothing stays in them.
    pub short: Vec<bool>,
}

impl Service for Rpc {
    const NAME: &'static str = "rpc";
    const SERVER: &'static str = "server";
    type Work = Work;
    type Measured = ();

    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        let rng = &mut Rng::new(seed, 70);
        let (servers, acks) = params.draw_quorum(rng, &[(1, 1), (1, 1), (2, 1), (2, 1), (2, 2), (3, 2)]);
        let (strangers, clients) = (rng.pick(&[0, 1]), rng.pick(&[1, 2, 3, 4]));
        // Less than it takes to give up a peer that is silent, and more.
        let heals = rng.pick(&[10, 30, 30, 100, 1_000]) * MS;
        let operations = rng.pick(&[10, 20, 60]);
        let slow = rng.pick(&[1, 1, 10]);
        let scene = Scene::new(servers, strangers + clients, heals);
        // A third of the runs has nothing but harm to datagrams, and a quarter no such harm.
        let (mut faults, mut more) = (Vec::new(), Rng::new(seed, 71));
        if !more.one_in(3) {
            faults = fault::draw(&mut more, &scene);
        }
        if more.one_in(3) {
            faults.extend(aim::draw(&mut more, &scene, &MOMENTS));
        }
        if !more.one_in(4) {
            faults.extend(datagram::draw(&mut more, &scene));
        }
        Plan::of(
            params,
            acks,
            (&scene, faults),
            (domain(rng, 3), false),
            Self {
                clients,
                strangers,
                operations,
                pause: rng.pick(&[2_000, MS / 20, heals / u64::from(operations) / 2]),
                logged: rng.pick(&[0, 30, 60, 100]),
                word: rng.pick(&Word::ALL),
                disk: rng.pick(&[16 << 10, 64 << 10]),
                batch: rng.pick(&[1, 4, 32]),
                round: rng.pick(&[0, 3_000, 100_000]),
                datagram: rng.pick(&[512, 1024, 1024]),
                credits: rng.pick(&[1, 8, 8, 32]),
                short: (0..scene.nodes()).map(|_| rng.one_in(5)).collect(),
            },
            pace(rng, &scene, slow),
        )
    }

    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self> {
        play::<Node>(plan, seed, trace_lines)
    }

    fn clients(&self) -> Vec<(&'static str, u16)> {
        vec![("stranger", self.strangers), ("client", self.clients)]
    }

    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)> {
        vec![("operations", &mut self.operations)]
    }

    fn sentence(plan: &Plan<Self>) -> String {
        format!(
            "calls to {} servers, {} at a time; {} clients and {} with another token, up to {} operations each, {} % about a log",
            plan.servers, plan.acks, plan.clients, plan.strangers, plan.operations, plan.logged
        )
    }
}
