//! Recipes with one thing wrong. A checker that lets one of them pass, or a recipe that has a step it does not need, is
//! seen here.
//!
//! *Dropping* a wait means that who waited goes on at once. *Swapping* exchanges a step with the next one of the same
//! side: steps of different sides that stand next to each other have no order but the one that messages give them. Steps
//! about different updates of a batch are not swapped, as no order is asked of them.
//!
//! What the responder does after its acknowledgement is mutated where recovery depends on it, and where it drops the
//! return of a receive buffer. Copies that stand next to each other there, or behind a flush of the buffer, have no order:
//! the message that they come from is durable, and recovery makes good what is missing (a test shows that this is so).

use std::fmt;

use super::{Machine, Outcome, Prover};
use crate::recipe::{Recipe, Rq, Rsp, Set, Step, Target};

/// What is wrong with a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A step of the recipe is missing.
    Drop(Step),
    /// Two steps of one side stand in the wrong order.
    Swap(Step, Step),
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop(step) => write!(f, "without {step}"),
            Self::Swap(first, second) => write!(f, "{second} before {first}"),
        }
    }
}

/// A recipe with one thing wrong, and what the checker says.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What was done to it.
    pub mutation: Mutation,
    /// The whole of it.
    pub recipe: Recipe,
    /// Whether the checker noticed.
    pub outcome: Outcome,
}

/// Every single mutant of a recipe, checked on a machine.
pub(super) fn mutants(prover: &mut Prover, recipe: &Recipe, machine: &Machine) -> Vec<Mutant> {
    let mut checked = Vec::new();
    for (mutation, recipe) in single_mutants(recipe) {
        let outcome = prover.prove(&recipe, machine);
        checked.push(Mutant { mutation, recipe, outcome });
    }
    checked
}

/// Every single mutant of a recipe.
#[must_use]
pub fn single_mutants(recipe: &Recipe) -> Vec<(Mutation, Recipe)> {
    let mut all = Vec::new();
    let steps = &recipe.steps;
    for (n, step) in steps.iter().enumerate() {
        let mut mutant = recipe.clone();
        mutant.steps.remove(n);
        all.push((Mutation::Drop(*step), mutant));
        let mine =
            |other: &Step| matches!((step, other), (Step::Rq(_), Step::Rq(_)) | (Step::Rsp(_), Step::Rsp(_)));
        let Some(other) = (n + 1..steps.len()).find(|m| mine(&steps[*m])) else { continue };
        if steps[other] != *step && (recipe.shape.ordered || !apart(*step, steps[other])) {
            let mut mutant = recipe.clone();
            mutant.steps.swap(n, other);
            all.push((Mutation::Swap(*step, steps[other]), mutant));
        }
    }
    let deferred = &recipe.deferred;
    let durable = steps.contains(&Step::Rsp(Rsp::Flush(Target::Buffer)));
    for (n, step) in deferred.iter().enumerate() {
        // Taking an immediate off the queue is housekeeping: nothing is lost if that comes late.
        if recipe.replay || *step == Rsp::Repost {
            let mut mutant = recipe.clone();
            mutant.deferred.remove(n);
            all.push((Mutation::Drop(Step::Rsp(*step)), mutant));
        }
        let copies = |other: &Rsp| matches!((step, other), (Rsp::Copy(_), Rsp::Copy(_)));
        let unordered =
            |o: &Rsp| (!recipe.shape.ordered || durable) && apart(Step::Rsp(*step), Step::Rsp(*o));
        let next =
            deferred.get(n + 1).filter(|o| recipe.replay && **o != *step && !copies(o) && !unordered(o));
        if let Some(other) = next {
            let mut mutant = recipe.clone();
            mutant.deferred.swap(n, n + 1);
            all.push((Mutation::Swap(Step::Rsp(*step), Step::Rsp(*other)), mutant));
        }
    }
    all
}

/// Both are about updates, and not about the same ones: if no order was asked for, either may come first.
fn apart(first: Step, second: Step) -> bool {
    let concerns = |step: Step| match step {
        Step::Rq(Rq::Write(u) | Rq::WriteImm(u) | Rq::AtomicWrite(u) | Rq::FencedWrite(u)) => Set::one(u).0,
        Step::Rq(Rq::Send(m)) | Step::Rsp(Rsp::Receive(m)) => m.notice.0 | m.data.0,
        Step::Rsp(Rsp::Copy(u) | Rsp::Flush(Target::Update(u))) => Set::one(u).0,
        Step::Rq(Rq::Flush(_) | Rq::Comp | Rq::Receive)
        | Step::Rsp(Rsp::Flush(Target::Buffer) | Rsp::Ack | Rsp::Repost) => u64::MAX,
    };
    concerns(first) & concerns(second) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::cells;
    use crate::taxonomy::Transport;

    #[test]
    fn every_mutant_of_every_cell_is_killed() {
        let mut survivors = Vec::new();
        let mut made = 0;
        let mut prover = Prover::default();
        for transport in [Transport::Roce, Transport::Iwarp] {
            for cell in cells(transport) {
                for mutant in mutants(&mut prover, &cell.recipe(), &Machine::new(cell.config)) {
                    made += 1;
                    if mutant.outcome.holds() {
                        survivors.push(format!("{}: {} ({})", cell.name(), mutant.mutation, mutant.recipe));
                    }
                }
            }
        }
        println!("{made} mutants");
        assert!(survivors.is_empty(), "{} survive:\n{}", survivors.len(), survivors.join("\n"));
    }

    #[test]
    fn late_copies_have_no_order_where_a_message_is_durable_when_it_is_received() {
        for cell in cells(Transport::Roce) {
            let mut recipe = cell.recipe();
            let copies = |w: &[Rsp]| matches!(w, [Rsp::Copy(_), Rsp::Copy(_)]);
            let Some(n) = recipe.deferred.windows(2).position(copies) else { continue };
            recipe.deferred.swap(n, n + 1);
            assert!(Prover::default().prove(&recipe, &Machine::new(cell.config)).holds(), "{}", cell.name());
        }
    }
}
