//! The exhaustive checker: every behaviour of a recipe on a machine, with a crash in every state.
//!
//! [`machine`] has the model and its rules, [`explore`] the search. A recipe holds on a machine if in no reachable
//! state a crash and the recovery after it break one of four promises:
//!
//! 1. what the requester believes durable is recovered;
//! 2. of ordered updates, a later one is recovered only with the earlier ones;
//! 3. nothing torn is accepted, and no message is used that has not arrived;
//! 4. without a crash both sides come to their end.
//!
//! A recipe is looked at in several scenarios, since some steps only matter to what comes next: once alone with updates
//! of two words (which may tear), then twice in a row with no receive buffer to spare, then twice to the same place.
//! What [`machine`] takes for granted can be withdrawn, one [`Assumption`] at a time, to see which cells stand on it.

mod assumptions;
mod explore;
mod machine;
mod matrix;
mod mutants;
mod prover;
mod subjects;
mod synthesis;
mod timeline;

use std::fmt;

pub use assumptions::{Withdrawn, withdraw};
pub use explore::{Counterexample, Verdict};
pub use machine::Level;
pub use matrix::{Entry, Matrix, matrix, matrix_configs};
pub use mutants::{Mutant, Mutation, single_mutants};
pub use prover::{Outcome, Prover};
pub use subjects::{Checked, Subject, further_subjects, paper_subjects};
pub use synthesis::{Synthesis, synthesise};
pub use timeline::LEGEND;

use crate::recipe::{Recipe, Rq, Update};
use crate::taxonomy::{Config, Domain, FlushSupport};

/// Something that the paper's reasoning takes for granted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Assumption {
    /// Recovery tells a torn update from a whole one (it carries a checksum).
    UpdateChecksum,
    /// Recovery tells a torn message from a whole one.
    MessageChecksum,
    /// The application can apply messages that it finds in receive buffers.
    Replay,
    /// It applies them oldest first.
    ReplayInOrder,
    /// FLUSH (or the READ for it) leaves nothing in the IIO.
    FlushLeavesIio,
    /// FLUSH covers what a SEND brought into a receive buffer, though Annex A19 speaks of WRITEs and atomics.
    FlushCoversSend,
    /// The FLUSH or READ is posted on the QP of the updates.
    SameQp,
    /// A receive completion promises that earlier WRITEs are visible.
    ReceiveAfterPlacement,
    /// MHP reaches up to the IIO's write buffer.
    MhpHoldsIio,
    /// The CPU's stores become visible in order (x86; other CPUs need a barrier).
    StoresInOrder,
    /// An acknowledgement leaves after the stores before it (a barrier before the doorbell).
    Doorbell,
}

impl Assumption {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::UpdateChecksum,
        Self::MessageChecksum,
        Self::Replay,
        Self::ReplayInOrder,
        Self::FlushLeavesIio,
        Self::FlushCoversSend,
        Self::SameQp,
        Self::ReceiveAfterPlacement,
        Self::MhpHoldsIio,
        Self::StoresInOrder,
        Self::Doorbell,
    ];

    /// What is assumed, in a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::UpdateChecksum => "recovery tells a torn update from a whole one (a checksum in it)",
            Self::MessageChecksum => "recovery tells a torn message from a whole one (a checksum in it)",
            Self::Replay => "recovery finds the messages in the receive buffers and applies them",
            Self::ReplayInOrder => "recovery applies messages oldest first",
            Self::FlushLeavesIio => "a FLUSH or READ leaves nothing in the IIO, not only in the RNIC",
            Self::FlushCoversSend => {
                "a FLUSH covers what a SEND put into a receive buffer (A19 names WRITEs and atomics)"
            }
            Self::SameQp => "the FLUSH or READ is on the QP of the updates",
            Self::ReceiveAfterPlacement => "a receive completion says that earlier WRITEs are visible",
            Self::MhpHoldsIio => "the caches' domain (MHP) includes the IIO's write buffer",
            Self::StoresInOrder => "the responder's stores become visible in order (x86; ARM needs barriers)",
            Self::Doorbell => {
                "the acknowledgement leaves after the stores before it (a barrier before the doorbell)"
            }
        }
    }
}

/// The machine that a recipe is explored on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Machine {
    /// The responder's configuration.
    pub config: Config,
    /// Follow atoms from the memory controller to the DIMM, though both survive. A page cache always does.
    pub media: bool,
    withdrawn: u16,
}

impl Machine {
    /// A machine of that configuration that keeps every assumption.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self { config, media: false, withdrawn: 0 }
    }

    /// The same machine without one assumption.
    #[must_use]
    pub const fn without(self, assumption: Assumption) -> Self {
        Self { withdrawn: self.withdrawn | 1 << assumption as u8, ..self }
    }

    const fn holds(&self, assumption: Assumption) -> bool {
        self.withdrawn >> assumption as u8 & 1 == 0
    }

    /// The first level at which an atom survives.
    fn durable_from(&self) -> Level {
        match self.config.domain {
            Domain::Dmp => Level::Imc,
            Domain::Mhp if !self.holds(Assumption::MhpHoldsIio) => Level::L3,
            Domain::Mhp | Domain::Process => Level::Iio,
            Domain::Wsp => Level::Rnic,
            Domain::PageCache => Level::Media,
        }
    }

    /// The paper counts the store buffer to MHP; real eADR does not, and nothing here needs it.
    fn keeps_store_buffer(&self) -> bool {
        matches!(self.config.domain, Domain::Wsp | Domain::Process)
    }

    /// Why the responder refuses a step at once, if it does.
    #[must_use]
    pub fn refuses(&self, recipe: &Recipe) -> Option<&'static str> {
        use crate::recipe::Flush;
        recipe.requester().find_map(|step| match (step, self.config.flush) {
            (Rq::Flush(Flush::Global | Flush::Persistent), FlushSupport::Read) => Some("there is no FLUSH"),
            (Rq::Flush(Flush::Persistent), FlushSupport::Global) => Some("there is no FLUSH to persistence"),
            (Rq::Flush(Flush::Persistent), _) if self.config.domain == Domain::Process => {
                Some("memory of a process cannot promise persistence")
            }
            (Rq::AtomicWrite(_), _) if self.config.atomic == crate::taxonomy::AtomicSupport::Fenced => {
                Some("there is no ATOMIC WRITE")
            }
            _ => None,
        })
    }
}

/// How often a recipe is carried out, and on what.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scenario {
    /// What it is called in a time line.
    pub name: &'static str,
    /// How often in a row.
    pub rounds: u8,
    /// Receive buffers for so many rounds.
    pub spare: u8,
    /// Words of an update that is not a word.
    pub words: u8,
    /// Every round writes the same places.
    pub same_place: bool,
}

impl Scenario {
    /// Once, with updates that may tear.
    pub const ALONE: Self = Self { name: "alone", rounds: 1, spare: 1, words: 2, same_place: false };
    /// Twice, with the receive buffers of one round.
    pub const TWICE: Self = Self { name: "twice", rounds: 2, spare: 1, words: 1, same_place: false };
    /// Twice, to the same place, with the messages of both rounds to be found by recovery.
    pub const AGAIN: Self = Self { name: "again", rounds: 2, spare: 2, words: 2, same_place: true };
    /// Once, with updates of one word, for long lists.
    pub const WORDS: Self = Self { name: "words", rounds: 1, spare: 1, words: 1, same_place: false };

    /// The scenarios that matter to a recipe.
    #[must_use]
    pub fn of(recipe: &Recipe) -> Vec<Self> {
        // Tearing is known from two updates; a list is about order.
        let mut all = vec![if recipe.shape.count > 2 { Self::WORDS } else { Self::ALONE }];
        if recipe.messages() > 0 {
            all.push(Self::TWICE);
            if recipe.replay {
                all.push(Self { words: if recipe.shape.count == 1 { 2 } else { 1 }, ..Self::AGAIN });
            }
        }
        all
    }

    fn buffers(&self, recipe: &Recipe) -> u8 {
        (recipe.messages().max(1) as u8).saturating_mul(self.spare)
    }
}

/// What a state can do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The requester's step of that number.
    Requester(usize),
    /// The responder's step of that number.
    Responder(usize),
    /// A flush, the work request of that number, is executed at the responder.
    Executed(usize),
    /// An atom has moved.
    Moved {
        /// The number of the atom that has moved.
        atom: usize,
        /// The level that it has come to.
        to: Level,
    },
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// Believed durable, and not recovered.
    Lost {
        /// The update that is not there after the crash.
        update: Update,
        /// Of which carrying out of the recipe.
        round: u8,
    },
    /// Recovered without what must come before it.
    Order {
        /// What must come before.
        first: Update,
        /// What was recovered.
        then: Update,
        /// Of which carrying out of the recipe.
        round: u8,
    },
    /// Accepted, and torn.
    Torn {
        /// The update of which only a part is there after the crash.
        update: Update,
        /// Of which carrying out of the recipe.
        round: u8,
    },
    /// The responder used a message that it does not have.
    Garbage,
    /// Somebody waits for ever.
    Stuck,
}

impl Fault {
    /// The promise that is broken, in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lost { .. } => "lost",
            Self::Order { .. } => "order",
            Self::Torn { .. } => "torn",
            Self::Garbage => "garbage",
            Self::Stuck => "stuck",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nth = |round: &u8| if *round == 0 { "" } else { ", the second time" };
        match self {
            Self::Lost { update, round } => {
                write!(f, "{update} is believed durable{}, and is not recovered", nth(round))
            }
            Self::Order { first, then, round } => {
                write!(f, "{then} is recovered{} without {first}, which comes before it", nth(round))
            }
            Self::Torn { update, round } => write!(f, "{update} is accepted{} though it is torn", nth(round)),
            Self::Garbage => f.write_str("the responder copies from a message that it does not have"),
            Self::Stuck => f.write_str("somebody waits for ever"),
        }
    }
}

/// Explores a recipe on a machine in one scenario, up to the first fault.
pub fn check_in(recipe: &Recipe, machine: &Machine, scenario: &Scenario) -> Verdict {
    explore::explore(recipe, machine, scenario)
}

/// Explores a recipe on a machine, in every scenario that matters to it, up to the first fault.
pub fn check(recipe: &Recipe, machine: &Machine) -> Verdict {
    let mut states = 0;
    for scenario in Scenario::of(recipe) {
        let verdict = explore::explore(recipe, machine, &scenario);
        states += verdict.states;
        if verdict.fault.is_some() {
            return Verdict { states, ..verdict };
        }
    }
    Verdict { states, fault: None }
}
