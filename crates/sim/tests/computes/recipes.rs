//! Recipes of persistence in simulated clusters: seeds, and what the simulator must be able to see.

use remanence_persist::recipe::{Rq, Rsp, Step, build};
use remanence_persist::taxonomy::{Buffers, Domain};
use remanence_sim::cluster::recipes::Recipes;
use remanence_sim::cluster::{Params, Plan, run_plan};

use crate::clusters::{cluster, of};

/// What seeds must meet in each run, of the service and of faults.
const ACTIVE: &[(&str, f64)] = &[
    ("acknowledged", 10.0),
    ("unknown", 0.5),
    ("found_again", 0.3),
    ("replayed", 0.1),
    ("media_ended", 0.02),
    ("pauses", 0.1),
    ("kills", 0.2),
    ("power_losses", 0.5),
    ("power_losses_within", 0.05),
    ("partitions", 0.05),
];

cluster! { Recipes;
    fn what_is_acknowledged_is_found_whenever_the_power_goes() { 2000, Params::default(), ACTIVE }
    fn seeds_of_two_servers() { 300, of(2, 2), ACTIVE }
}

/// Plans of such responders whose recipe was changed fail.
fn is_found(what: &str, is_chosen: impl Fn(&Recipes) -> bool, change: impl Fn(&mut Recipes) -> bool) {
    let drawn = (0..20_000).map(|seed| (seed, Plan::<Recipes>::draw(seed, &Params::default())));
    let mut tried = 0;
    let found = drawn.filter(|(_, plan)| is_chosen(&plan.own)).take(300).find(|(seed, plan)| {
        let mut plan = plan.clone();
        tried += 1;
        change(&mut plan.own) && !run_plan(*seed, &plan, 0).passed()
    });
    assert!(found.is_some(), "{what}: {tried} plans have noticed nothing");
}

fn without(recipe: &mut Recipes, is_left_out: impl Fn(&Step) -> bool) -> bool {
    let count = recipe.recipe.steps.len();
    recipe.recipe.steps.retain(|step| !is_left_out(step));
    recipe.recipe.steps.len() < count
}

#[test]
fn a_recipe_without_one_of_its_steps_is_found() {
    let is_cached = |own: &Recipes| own.config.domain == Domain::Dmp;
    is_found("without a flush of the processor", is_cached, |own| {
        without(own, |step| matches!(step, Step::Rsp(Rsp::Flush(_))))
    });
    is_found("without a FLUSH", is_cached, |own| without(own, |step| matches!(step, Step::Rq(Rq::Flush(_)))));
}

#[test]
fn the_recipe_of_another_responder_is_found() {
    let is_cached = |own: &Recipes| own.config.domain == Domain::Dmp && own.config.ddio;
    is_found("without DDIO, as was believed", is_cached, |own| {
        let believed = remanence_persist::Config { ddio: false, ..own.config };
        let other = build(&believed, own.op, own.recipe.shape);
        own.buffers = own.buffers.max(other.messages() as u64);
        std::mem::replace(&mut own.recipe, other) != own.recipe
    });
    let is_found_again = |own: &Recipes| own.recipe.replay && own.config.buffers == Buffers::Pm;
    is_found("without recovery", is_found_again, |own| {
        own.recipe.replay = false;
        true
    });
}
