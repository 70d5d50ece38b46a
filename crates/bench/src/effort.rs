//! How much a bench measures: the same three steps for all of them.

use crate::machine::State;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// As little as shows that everything runs: for tests, and worth nothing else.
    Tiny,
    /// In about half a minute; some benches say longer.
    Quick,
    /// What figures are made of.
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

    /// Whether there is another round after the `done` of `rounds` that were asked for: more than these where something is
    /// `missing` still, as it was only measured while the machine was in different states. Twice as many more, and no further.
    pub(crate) fn another(done: u64, rounds: u64, missing: impl FnOnce() -> bool) -> bool {
        done < rounds || (done < 3 * rounds && missing())
    }

    /// The state of the machine. A tiny run is compared with nothing, and must not lose its one burst because the two cores
    /// changed their state meanwhile: it knows none.
    pub(crate) fn probe(self) -> State {
        if self == Self::Tiny { State::Any } else { State::probe() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_gets_more_rounds_and_not_for_ever() {
        let rounds =
            |missing: fn(u64) -> bool| (0..).take_while(|n| Effort::another(*n, 3, || missing(*n))).count();
        assert_eq!(rounds(|_| false), 3);
        assert_eq!(rounds(|n| n < 5), 5);
        assert_eq!(rounds(|_| true), 9);
    }
}
