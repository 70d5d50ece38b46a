//! What a run does: drawn from a seed, and data from then on.

use remanence_persist::Config;
use remanence_persist::recipe::{Op, Recipe, Rq, Shape, build, variants};
use remanence_persist::taxonomy::{Domain, Order};
use remanence_pmem::PersistenceDomain;

use super::{Node, Work};
use crate::cluster::aim;
use crate::cluster::fault::{self, Scene};
use crate::cluster::log::plan::pace;
use crate::cluster::service::play;
use crate::cluster::{Moment, Outcome, Params, Plan, Service};
use crate::rng::Rng;

/// What is asked of updates.
const SHAPES: [Shape; 5] =
    [Shape::SINGLETON, Shape::COMPOUND, Shape::COMPOUND_LONG, Shape::batch(3), Shape::list(3)];

/// What faults are aimed at.
const MOMENTS: [Moment; 3] = [Moment::Update, Moment::Request, Moment::Acknowledge];

/// What only runs of recipes have. Each client carries its updates out at as many servers as [`Plan::acks`] says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipes {
    /// Clients. One more comes at the end.
    pub clients: u16,
    /// How often each client carries the recipe out at each of its servers, at most.
    pub operations: u32,
    /// What the servers are.
    pub config: Config,
    /// Which operation carries the updates.
    pub op: Op,
    /// The steps that clients carry out.
    pub recipe: Recipe,
    /// Places for the updates, which are used one after the other.
    pub slots: u64,
    /// Receive buffers of a session.
    pub buffers: u64,
    /// Words of an update that is not a word itself.
    pub words: usize,
    /// Mean pause of a client between updates, in nanoseconds.
    pub pause: u64,
}

/// Where what is flushed is safe on a responder that is simulated.
fn domain_of(config: &Config) -> Option<PersistenceDomain> {
    match config.domain {
        Domain::Dmp => Some(PersistenceDomain::Adr),
        Domain::Mhp => Some(PersistenceDomain::Eadr),
        Domain::PageCache => Some(PersistenceDomain::PageCache),
        // What the RNIC has is lost here, and so is all that a loss of power takes.
        Domain::Wsp | Domain::Process => None,
    }
}

/// All recipes of a responder for updates of some shape.
fn recipes(config: &Config, shape: Shape) -> Vec<(Op, Recipe)> {
    let built = Op::ALL.into_iter().map(|op| (op, build(config, op, shape)));
    built.chain(variants(config, shape)).collect()
}

impl Recipes {
    /// The messages of one carrying out.
    pub(super) fn messages(&self) -> Vec<Rq> {
        let is_message = |step: &Rq| matches!(step, Rq::Send(_) | Rq::WriteImm(_));
        self.recipe.requester().filter(is_message).collect()
    }
}

impl Service for Recipes {
    const NAME: &'static str = "recipes";
    const SERVER: &'static str = "server";
    type Work = Work;
    type Measured = ();

    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        let rng = &mut Rng::new(seed, 80);
        let (servers, acks) = params.draw_quorum(rng, &[(1, 1), (1, 1), (2, 1), (2, 2)]);
        let clients: u16 = rng.pick(&[1, 2, 3]);
        let heals = rng.pick(&[1_000_000, 5_000_000, 20_000_000]);
        let configs: Vec<Config> = Config::all()
            .into_iter()
            .filter(|config| config.order == Order::Posted && domain_of(config).is_some())
            .collect();
        let config = rng.pick(&configs);
        let mut all = recipes(&config, rng.pick(&SHAPES));
        let (op, recipe) = all.swap_remove(rng.index(all.len()));
        let scene = Scene::new(servers, clients, heals);
        let mut more = Rng::new(seed, 81);
        let mut faults = fault::draw(&mut more, &scene);
        if more.one_in(2) {
            faults.extend(aim::draw(&mut more, &scene, &MOMENTS));
        }
        let operations = rng.pick(&[5, 20, 50]);
        let messages = recipe.messages() as u64;
        Plan::of(
            params,
            acks,
            (&scene, faults),
            (domain_of(&config).expect("no others are there"), true),
            Self {
                clients,
                operations,
                config,
                op,
                recipe,
                slots: rng.pick(&[1, 2, 5]),
                buffers: messages.max(1) * rng.pick(&[1, 2, 3]),
                words: rng.pick(&[2, 3, 16]),
                pause: rng.pick(&[500, 20_000, heals / u64::from(operations)]),
            },
            pace(rng, &scene, 1),
        )
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
        let Self { config, op, recipe, clients, operations, .. } = &plan.own;
        let (servers, acks) = (plan.servers, plan.acks);
        format!(
            "{clients} clients with up to {operations} updates at {acks} of {servers} servers; {config}, {} {}: {recipe}",
            op.name(),
            recipe.shape
        )
    }
}
