//! Remembers what was proven: many configurations are the same machine to a recipe, and many cells have the same recipe.

use std::collections::BTreeMap;

use super::{Counterexample, Machine, Verdict, check};
use crate::recipe::{Recipe, Rq, Rsp, Step};
use crate::taxonomy::{AtomicSupport, Buffers, FlushSupport, Transport};

/// What a recipe on a machine comes to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// No crash that the exploration reaches breaks a promise of the recipe.
    Holds,
    /// It fails, and this is a shortest way.
    Fails(Box<Counterexample>),
    /// The responder refuses a step, and says so: nothing is believed.
    Refused(&'static str),
}

impl Outcome {
    /// Whether the recipe holds.
    #[must_use]
    pub const fn holds(&self) -> bool {
        matches!(self, Self::Holds)
    }

    /// One word: `holds`, `refused`, or the promise that is broken.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails(how) => how.fault.word(),
            Self::Refused(_) => "refused",
        }
    }
}

type Key = (Vec<Step>, Vec<Rsp>, (u8, bool, bool, bool), Machine);

/// Checks, and never twice.
#[derive(Default, Debug)]
pub struct Prover {
    known: BTreeMap<Key, Outcome>,
    /// States that the explorations have met, in all.
    pub states: u64,
    /// Explorations that were done because the answer was not known yet.
    pub runs: u64,
    /// Questions that were answered from memory.
    pub reused: u64,
}

impl Prover {
    /// What a recipe comes to on a machine.
    pub fn prove(&mut self, recipe: &Recipe, machine: &Machine) -> Outcome {
        if let Some(why) = machine.refuses(recipe) {
            return Outcome::Refused(why);
        }
        let asked = *machine;
        // A story is told of the machine that was asked about, though it was found on its like.
        let tell = |mut outcome: Outcome| {
            if let Outcome::Fails(how) = &mut outcome {
                how.machine = asked;
            }
            outcome
        };
        let machine = canonical(asked, recipe);
        let shape = (recipe.shape.count, recipe.shape.ordered, recipe.shape.word, recipe.replay);
        let key = (recipe.steps.clone(), recipe.deferred.clone(), shape, machine);
        if let Some(outcome) = self.known.get(&key) {
            self.reused += 1;
            return tell(outcome.clone());
        }
        let Verdict { states, fault } = check(recipe, &machine);
        self.states += states as u64;
        self.runs += 1;
        let outcome = fault.map_or(Outcome::Holds, Outcome::Fails);
        self.known.insert(key, outcome.clone());
        tell(outcome)
    }
}

/// The same machine with every axis that this recipe cannot notice set to one value.
fn canonical(mut machine: Machine, recipe: &Recipe) -> Machine {
    let config = &mut machine.config;
    // Which flush it is stands in the recipe, and what is not there was refused.
    config.flush = FlushSupport::Persistent;
    config.atomic = AtomicSupport::Native;
    // Only SENDs put anything into a receive buffer.
    if !recipe.requester().any(|step| matches!(step, Rq::Send(_))) {
        config.buffers = Buffers::Dram;
    }
    if !recipe.requester().any(|step| step == Rq::Comp) {
        config.transport = Transport::Roce;
    }
    machine
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Op, Shape, build};
    use crate::taxonomy::{Config, Domain};

    #[test]
    fn what_a_recipe_cannot_notice_does_not_change_what_is_explored() {
        for op in Op::ALL {
            for config in Config::all().into_iter().filter(|c| c.domain == Domain::Dmp) {
                let recipe = build(&config, op, Shape::COMPOUND);
                let machine = Machine::new(config);
                let (a, b) = (check(&recipe, &machine), check(&recipe, &canonical(machine, &recipe)));
                assert_eq!((a.word(), a.states), (b.word(), b.states), "{config} {recipe}");
            }
        }
    }

    #[test]
    fn a_story_is_told_of_the_machine_that_was_asked_about() {
        let config: Config = "MHP+DDIO+PM+iwarp+read".parse().expect("a configuration");
        let mut recipe = build(&config, Op::WriteImm, Shape::SINGLETON);
        recipe.steps.retain(|s| !matches!(s, Step::Rq(Rq::Flush(_))));
        let mut prover = Prover::default();
        for _ in 0..2 {
            let Outcome::Fails(how) = prover.prove(&recipe, &Machine::new(config)) else {
                panic!("it holds")
            };
            assert_eq!(how.machine.config, config);
            assert!(how.to_string().contains("CRASH"));
        }
        assert_eq!((prover.runs, prover.reused), (1, 1));
    }

    #[test]
    fn a_refused_step_is_not_a_failure() {
        let config =
            Config { flush: FlushSupport::Persistent, ..Config::paper(Domain::Dmp, true, Buffers::Dram) };
        let recipe = build(&config, Op::Write, Shape::SINGLETON);
        let mut prover = Prover::default();
        assert_eq!(prover.prove(&recipe, &Machine::new(config)).word(), "holds");
        let older = Config { flush: FlushSupport::Global, ..config };
        assert_eq!(prover.prove(&recipe, &Machine::new(older)).word(), "refused");
    }
}
