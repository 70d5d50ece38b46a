//! Breadth first, so that the first fault found is a nearest one.

use super::machine::{Program, State};
use super::{Event, Fault, Machine, Scenario};
use crate::recipe::Recipe;

/// What the search has found.
#[derive(Clone, Debug)]
#[must_use]
pub struct Verdict {
    /// States that were looked at, and crashed.
    pub states: usize,
    /// A shortest way into a fault; `None`: the recipe holds.
    pub fault: Option<Box<Counterexample>>,
}

impl Verdict {
    /// Whether the recipe holds.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.fault.is_none()
    }

    /// One word for a table: `holds`, or the promise that is broken.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.fault.as_ref().map_or("holds", |c| c.fault.word())
    }
}

/// A shortest way into a fault.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The recipe, or the mutant of one.
    pub recipe: Recipe,
    /// The machine that the recipe was carried out on.
    pub machine: Machine,
    /// What the recipe was to do there, and where a crash may come.
    pub scenario: Scenario,
    /// What happens, up to the crash (or up to where nothing happens any more).
    pub events: Vec<Event>,
    /// What is wrong then.
    pub fault: Fault,
}

/// States that were met, in the order in which they were met, and where they came from.
struct Met {
    states: Vec<(State, u32)>,
    table: Vec<u32>,
}

const FREE: u32 = u32::MAX;

impl Met {
    fn new() -> Self {
        Self { states: Vec::new(), table: vec![FREE; 1 << 10] }
    }

    fn slot(&self, s: State) -> usize {
        // Fibonacci hashing of both halves; the table is a power of two.
        let mixed = (s.atoms ^ u64::from(s.control).rotate_left(41)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mask = self.table.len() - 1;
        let mut slot = (mixed >> 32) as usize & mask;
        loop {
            let at = self.table[slot];
            if at == FREE || self.states[at as usize].0 == s {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Whether it is new.
    fn insert(&mut self, s: State, from: u32) -> bool {
        let slot = self.slot(s);
        if self.table[slot] != FREE {
            return false;
        }
        self.table[slot] = self.states.len() as u32;
        self.states.push((s, from));
        if self.states.len() * 2 > self.table.len() {
            self.table = vec![FREE; self.table.len() * 2];
            for n in 0..self.states.len() {
                let slot = self.slot(self.states[n].0);
                self.table[slot] = n as u32;
            }
        }
        true
    }
}

/// Explores a recipe on a machine in one scenario, up to the first fault.
pub(super) fn explore(recipe: &Recipe, machine: &Machine, scenario: &Scenario) -> Verdict {
    let program = Program::new(recipe, machine, scenario);
    let mut met = Met::new();
    met.insert(program.initial(), FREE);
    let mut next = 0;
    while let Some((state, _)) = met.states.get(next).copied() {
        let mut fault = program.crash(state);
        if fault.is_none() {
            let mut moved = false;
            program.moves(state, |_, to| {
                moved = true;
                met.insert(to, next as u32);
            });
            if !moved && !program.finished(state) {
                fault = Some(Fault::Stuck);
            }
        }
        if let Some(fault) = fault {
            let events = way(&program, &met, next);
            let (recipe, machine, scenario) = (recipe.clone(), *machine, *scenario);
            let found = Counterexample { recipe, machine, scenario, events, fault };
            return Verdict { states: met.states.len(), fault: Some(Box::new(found)) };
        }
        next += 1;
    }
    Verdict { states: met.states.len(), fault: None }
}

/// Whether a recipe fails in a scenario, and after how many states. Depth first, the two sides before the data: most
/// wrong recipes are refuted by the first behaviour in which nothing moves before it must.
pub(super) fn fails(recipe: &Recipe, machine: &Machine, scenario: &Scenario) -> (bool, usize) {
    let program = Program::new(recipe, machine, scenario);
    let mut met = Met::new();
    met.insert(program.initial(), FREE);
    let mut open = vec![0_u32];
    let mut found: Vec<u32> = Vec::new();
    while let Some(at) = open.pop() {
        let state = met.states[at as usize].0;
        let mut moved = false;
        program.moves(state, |_, to| {
            moved = true;
            if met.insert(to, at) {
                found.push(met.states.len() as u32 - 1);
            }
        });
        if program.crash(state).is_some() || !moved && !program.finished(state) {
            return (true, met.states.len());
        }
        open.extend(found.drain(..).rev());
    }
    (false, met.states.len())
}

/// The events from the beginning to a state.
fn way(program: &Program, met: &Met, to: usize) -> Vec<Event> {
    let mut events = Vec::new();
    let mut at = to;
    while met.states[at].1 != FREE {
        let (state, from) = met.states[at];
        let mut how = None;
        program.moves(met.states[from as usize].0, |event, to| {
            if to == state && how.is_none() {
                how = Some(event);
            }
        });
        events.push(how.expect("a state was reached by a move"));
        at = from as usize;
    }
    events.reverse();
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::cells;
    use crate::taxonomy::Transport;

    #[test]
    fn depth_and_breadth_come_to_the_same() {
        for cell in cells(Transport::Roce) {
            for (_, mutant) in super::super::single_mutants(&cell.recipe()) {
                let machine = Machine::new(cell.config);
                let breadth = explore(&mutant, &machine, &Scenario::ALONE);
                let (failed, states) = fails(&mutant, &machine, &Scenario::ALONE);
                assert_eq!(failed, !breadth.holds(), "{mutant}");
                assert!(failed || states == breadth.states, "{mutant}: all of it is explored");
            }
        }
    }

    #[test]
    fn every_cell_of_the_paper_holds() {
        let mut states = 0;
        for transport in [Transport::Roce, Transport::Iwarp] {
            for cell in cells(transport) {
                let verdict = super::super::check(&cell.recipe(), &Machine::new(cell.config));
                states += verdict.states;
                assert!(verdict.holds(), "{}: {:?}", cell.name(), verdict.fault);
            }
        }
        println!("{states} states");
    }

    #[test]
    fn what_is_safe_in_the_memory_controller_need_not_be_followed_to_the_dimm() {
        for cell in cells(Transport::Roce) {
            let near = Machine::new(cell.config);
            let far = Machine { media: true, ..near };
            let recipe = cell.recipe();
            let mutants = super::super::single_mutants(&recipe).into_iter().map(|(_, mutant)| mutant);
            for recipe in mutants.chain([recipe]) {
                let (a, b) =
                    (explore(&recipe, &near, &Scenario::WORDS), explore(&recipe, &far, &Scenario::WORDS));
                assert_eq!(a.word(), b.word(), "{}: {recipe}", cell.name());
            }
        }
    }
}
