//! How much a bench measures, in three steps that are the same for all of them, and what of it.

use std::path::PathBuf;

use crate::machine::State;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Effort {
    /// As little as shows that everything runs: for tests, and worth nothing else.
    Tiny,
    /// As much as a verdict takes, in a minute or two; some benches take longer.
    Quick,
    /// What figures are made of.
    #[default]
    Full,
}

impl Effort {
    /// One of three values, by how much is measured.
    pub(crate) fn pick<T>(self, tiny: T, quick: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Quick => quick,
            Self::Full => full,
        }
    }

    /// Its word in a report's parameters.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }

    /// How many bursts each point has at least, where nothing is wrong.
    #[must_use]
    pub const fn least(self) -> usize {
        if matches!(self, Self::Tiny) { 1 } else { crate::stats::LEAST }
    }

    /// The state of the machine. A tiny run is compared with nothing, and must not lose its one burst because the two cores
    /// changed their state meanwhile: it knows none.
    pub(crate) fn probe(self) -> State {
        if self == Self::Tiny { State::Any } else { State::probe() }
    }
}

/// How any bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is measured.
    pub effort: Effort,
    /// What is measured: operations, series, bars, and parts of the bench, by a part of their names; all of it if empty.
    pub only: Vec<String>,
    /// The program that is started with the arguments `bench-agent ROLE` for each process of the bench.
    pub program: PathBuf,
}
