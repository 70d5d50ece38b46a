//! What the cells stand on: each assumption is withdrawn alone, and the cells that fall are listed.

use super::{Assumption, Machine, Outcome, Prover};
use crate::recipe::Cell;

/// What falls without an assumption.
#[derive(Clone, Debug)]
pub struct Withdrawn {
    /// The assumption that is not made.
    pub assumption: Assumption,
    /// The cells that fall, by number in the list that was given.
    pub fall: Vec<(usize, Outcome)>,
}

/// Withdraws each assumption, on all those cells.
pub fn withdraw(prover: &mut Prover, cells: &[Cell]) -> Vec<Withdrawn> {
    let mut all = Vec::new();
    for assumption in Assumption::ALL {
        let mut fall = Vec::new();
        for (n, cell) in cells.iter().enumerate() {
            let outcome = prover.prove(&cell.recipe(), &Machine::new(cell.config).without(assumption));
            if !outcome.holds() {
                fall.push((n, outcome));
            }
        }
        all.push(Withdrawn { assumption, fall });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Op, Shape, build, cells};
    use crate::taxonomy::{Buffers, Config, Domain, Order, Transport};

    /// The cells that must fall, said of each assumption alone.
    fn stands_on(assumption: Assumption, cell: &Cell) -> bool {
        let recipe = cell.recipe();
        let dmp = cell.config.domain == Domain::Dmp;
        let one_sided = !recipe.is_two_sided();
        let flushes = one_sided && recipe.requester().any(|s| matches!(s, crate::recipe::Rq::Flush(_)));
        let compound = cell.shape == Shape::COMPOUND;
        match assumption {
            // A singleton may be found torn, and a compound's `a` is guarded by its one word `b`.
            // Where messages are durable when they are received, replay repairs a torn copy.
            Assumption::UpdateChecksum => !compound && (dmp || !recipe.replay),
            Assumption::MessageChecksum | Assumption::Replay | Assumption::ReplayInOrder => recipe.replay,
            Assumption::FlushLeavesIio => dmp && flushes,
            Assumption::FlushCoversSend => recipe.replay && flushes && dmp,
            Assumption::SameQp => flushes,
            // Only noticed where posted writes have no order anyhow, see below.
            Assumption::ReceiveAfterPlacement => false,
            Assumption::MhpHoldsIio => cell.config.domain == Domain::Mhp && cell.op != Op::Send && compound,
            // WSP keeps the store buffer, so nobody sees in which order it drains.
            Assumption::StoresInOrder => {
                cell.config.domain == Domain::Mhp
                    && cell.op == Op::Send
                    && compound
                    && cell.config.buffers == Buffers::Dram
            }
            Assumption::Doorbell => cell.config.domain == Domain::Mhp && cell.op == Op::Send,
        }
    }

    #[test]
    fn each_assumption_carries_the_cells_that_it_should() {
        let cells = cells(Transport::Roce);
        let mut wrong: Vec<String> = Vec::new();
        for withdrawn in withdraw(&mut Prover::default(), &cells) {
            for (n, cell) in cells.iter().enumerate() {
                let falls = withdrawn.fall.iter().any(|(m, _)| *m == n);
                if falls != stands_on(withdrawn.assumption, cell) {
                    wrong.push(format!("{:?} {} falls: {falls}", withdrawn.assumption, cell.name()));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_message_must_not_overtake_relaxed_writes() {
        let config = Config { order: Order::Relaxed, ..Config::paper(Domain::Dmp, true, Buffers::Dram) };
        let recipe = build(&config, Op::Write, Shape::SINGLETON);
        let machine = Machine::new(config);
        let mut prover = Prover::default();
        assert!(prover.prove(&recipe, &machine).holds());
        assert_eq!(prover.prove(&recipe, &machine.without(Assumption::ReceiveAfterPlacement)).word(), "lost");
    }
}
