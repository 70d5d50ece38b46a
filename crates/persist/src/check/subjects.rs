//! What `rem check persistence` looks at: the cells of the paper, and those that it has no table for.

use super::mutants::{Mutant, mutants};
use super::{Machine, Outcome, Prover};
use crate::recipe::{Op, Recipe, Shape, build, cells, variants};
use crate::taxonomy::{Config, Transport};

/// One recipe on one configuration: a cell of the tables, or one beyond them.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The configuration of the responder.
    pub config: Config,
    /// The operation that carries the updates.
    pub op: Op,
    /// The recipe, with its shape and source.
    pub recipe: Recipe,
    /// The paper has it in a table (or says in words that it has, of iWARP).
    pub paper: bool,
    /// What is misprinted there.
    pub misprint: Option<&'static str>,
    /// It is not the paper's method but one of ours, of that number.
    pub variant: Option<usize>,
}

impl Subject {
    /// The name that `--cell` takes.
    #[must_use]
    pub fn name(&self) -> String {
        let variant = self.variant.map_or_else(String::new, |n| format!("/variant-{}", n + 1));
        format!("{}/{}/{}{variant}", self.config, self.op.name(), self.recipe.shape)
    }
}

/// A cell that was checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What becomes of the recipe.
    pub outcome: Outcome,
    /// And of each of its mutants.
    pub mutants: Vec<Mutant>,
}

impl Checked {
    /// Mutants that nobody noticed.
    pub fn survivors(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().filter(|m| m.outcome.holds())
    }
}

/// The paper's 144 cells.
#[must_use]
pub fn paper_subjects() -> Vec<Subject> {
    let both = [Transport::Roce, Transport::Iwarp].into_iter().flat_map(cells);
    let subject = |cell: crate::recipe::Cell| Subject {
        config: cell.config,
        op: cell.op,
        recipe: cell.recipe(),
        paper: true,
        misprint: cell.misprint,
        variant: None,
    };
    both.map(subject).collect()
}

/// The cells beyond the paper: every other configuration; a second update of any length; batches and lists; our own
/// recipes.
#[must_use]
pub fn further_subjects() -> Vec<Subject> {
    let shapes = [
        Shape::SINGLETON,
        Shape::COMPOUND,
        Shape::COMPOUND_LONG,
        Shape::batch(2),
        Shape::batch(3),
        Shape::list(3),
    ];
    let mut all = Vec::new();
    for config in Config::all() {
        for shape in shapes {
            let papers = config.is_papers() && (shape == Shape::SINGLETON || shape == Shape::COMPOUND);
            for op in Op::ALL.into_iter().filter(|_| !papers) {
                let recipe = build(&config, op, shape);
                all.push(Subject { config, op, recipe, paper: false, misprint: None, variant: None });
            }
            for (n, (op, recipe)) in variants(&config, shape).into_iter().enumerate() {
                all.push(Subject { config, op, recipe, paper: false, misprint: None, variant: Some(n) });
            }
        }
    }
    all
}

impl Prover {
    /// Checks a cell and each of its mutants.
    pub fn check_subject(&mut self, subject: &Subject) -> Checked {
        let machine = Machine::new(subject.config);
        let outcome = self.prove(&subject.recipe, &machine);
        let mutants = mutants(self, &subject.recipe, &machine);
        Checked { outcome, mutants }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_further_cell_holds_and_its_mutants_do_not() {
        let mut prover = Prover::default();
        let mut wrong = Vec::new();
        let subjects = further_subjects();
        let mut made = 0;
        for subject in &subjects {
            let checked = prover.check_subject(subject);
            made += checked.mutants.len();
            if !checked.outcome.holds() {
                wrong.push(format!("{} {}: {}", subject.name(), checked.outcome.word(), subject.recipe));
            }
            wrong.extend(
                checked.survivors().map(|m| format!("{} {}: {}", subject.name(), m.mutation, m.recipe)),
            );
        }
        println!(
            "{} cells, {made} mutants, {} states, {} runs, {} reused",
            subjects.len(),
            prover.states,
            prover.runs,
            prover.reused
        );
        println!("{}", wrong.join("\n"));
        assert!(
            wrong.is_empty(),
            "{} of {}:\n{}",
            wrong.len(),
            subjects.len(),
            wrong[..wrong.len().min(40)].join("\n")
        );
    }
}
