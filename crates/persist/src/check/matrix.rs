//! The misuse matrix: the recipe of each configuration on every other one.
//!
//! It tells which mistakes about a responder are harmless and which lose data, that is, what detection must never get
//! wrong and a declaration must never overstate.

use super::{Machine, Outcome, Prover};
use crate::recipe::{Op, Shape, build};
use crate::taxonomy::{Buffers, Config, Domain, FlushSupport, Transport};

/// One question of the matrix.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Whose recipe it is.
    pub recipe_of: Config,
    /// Where it is used.
    pub on: Config,
    /// What becomes of it.
    pub outcome: Outcome,
}

/// One operation and shape: each recipe in each configuration.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The operation that carries the updates.
    pub op: Op,
    /// How many updates there are, and what is asked of their order.
    pub shape: Shape,
    /// The configurations, of both sides.
    pub configs: Vec<Config>,
    /// Row by row: the recipe of one configuration on all of them.
    pub entries: Vec<Entry>,
}

impl Matrix {
    /// How many entries come to that word.
    #[must_use]
    pub fn count(&self, word: &str) -> usize {
        self.entries.iter().filter(|e| e.outcome.word() == word).count()
    }

    /// The entry of a recipe in a configuration, both by their numbers.
    #[must_use]
    pub fn entry(&self, row: usize, column: usize) -> &Entry {
        &self.entries[row * self.configs.len() + column]
    }
}

/// The configurations that the matrix compares: the paper's, on both transports, and ours.
#[must_use]
pub fn matrix_configs() -> Vec<Config> {
    let mut all = Config::papers();
    all.extend(Config::papers().into_iter().map(|c| Config { transport: Transport::Iwarp, ..c }));
    for buffers in [Buffers::Dram, Buffers::Pm] {
        let persistent =
            Config { flush: FlushSupport::Persistent, ..Config::paper(Domain::Dmp, true, buffers) };
        all.push(persistent);
        all.push(Config { domain: Domain::PageCache, ..persistent });
        all.push(Config::paper(Domain::Process, true, buffers));
    }
    all
}

/// The misuse matrix of an operation and shape.
pub fn matrix(prover: &mut Prover, configs: &[Config], op: Op, shape: Shape) -> Matrix {
    let mut entries = Vec::with_capacity(configs.len() * configs.len());
    for recipe_of in configs {
        let recipe = build(recipe_of, op, shape);
        for on in configs {
            let outcome = prover.prove(&recipe, &Machine::new(*on));
            entries.push(Entry { recipe_of: *recipe_of, on: *on, outcome });
        }
    }
    Matrix { op, shape, configs: configs.to_vec(), entries }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word for the recipe of one of the paper's configurations in another.
    fn word(op: Op, shape: Shape, recipe_of: &str, on: &str) -> &'static str {
        let parse = |name: &str| -> Config { name.parse().expect("a configuration") };
        let recipe = build(&parse(recipe_of), op, shape);
        Prover::default().prove(&recipe, &Machine::new(parse(on))).word()
    }

    #[test]
    fn a_recipe_holds_at_home_and_in_stronger_domains() {
        let configs = Config::papers();
        for op in Op::ALL {
            for shape in [Shape::SINGLETON, Shape::COMPOUND] {
                let matrix = matrix(&mut Prover::default(), &configs, op, shape);
                for (row, config) in configs.iter().enumerate() {
                    assert_eq!(matrix.entry(row, row).outcome.word(), "holds");
                    // The message-passing recipes of the weakest configuration are universal (004, 3.4).
                    if config.domain == Domain::Dmp && config.ddio {
                        for column in 0..configs.len() {
                            assert_eq!(
                                matrix.entry(row, column).outcome.word(),
                                "holds",
                                "{op:?} {shape} {row} {column}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_overstated_configuration_loses_data() {
        let one = Shape::SINGLETON;
        assert_eq!(word(Op::Write, one, "MHP+DDIO+DRAM", "DMP+DDIO+DRAM"), "lost");
        assert_eq!(word(Op::Write, one, "WSP+DDIO+DRAM", "MHP+DDIO+DRAM"), "lost");
        assert_eq!(word(Op::Write, one, "DMP+no-DDIO+DRAM", "DMP+DDIO+DRAM"), "lost");
        assert_eq!(word(Op::Send, one, "MHP+DDIO+PM", "MHP+DDIO+DRAM"), "lost");
        assert_eq!(word(Op::Write, Shape::COMPOUND, "MHP+DDIO+DRAM", "DMP+no-DDIO+DRAM"), "order");
        assert_eq!(word(Op::Write, one, "WSP+DDIO+DRAM", "WSP+DDIO+DRAM+iwarp"), "lost");
        assert_eq!(word(Op::Write, Shape::COMPOUND, "MHP+DDIO+DRAM", "MHP+DDIO+DRAM+relaxed"), "order");
    }
}
