//! How much a bench measures: the same three steps for all of them.

use crate::machine::State;
use crate::report::Bar;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// As little as shows that everything runs: for tests, and worth nothing else.
    Tiny,
    /// As much as a verdict takes, in a minute or two; some benches take longer.
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

    /// How many bursts each point has at least, where nothing is wrong.
    #[must_use]
    pub const fn least(self) -> usize {
        if matches!(self, Self::Tiny) { 1 } else { crate::stats::LEAST }
    }

    /// Whether there is another block after the `done` of `blocks` that were asked for: more than these where a bar is not
    /// measured or undecided still, as the machine was in different states, or varied. Twice as many more, and no further. It is looked at
    /// [three times](crate::stats::LOOKS) only, as who looks after each block until something is decided decides it by chance.
    pub(crate) fn another(self, done: u64, blocks: u64, bars: impl FnOnce() -> Vec<Bar>) -> bool {
        // With one burst nothing is decided.
        let open = |bar: &Bar| if self == Self::Tiny { bar.value.is_none() } else { bar.is_open() };
        let looks = crate::stats::LOOKS;
        !done.is_multiple_of(blocks) || done == 0 || (done < looks * blocks && bars().iter().any(open))
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
    use crate::report::Sense;
    use crate::samples::{Key, Metric, Samples};

    #[test]
    fn what_is_open_gets_more_blocks_and_not_for_ever() {
        let blocks = |effort: Effort, value: fn(u64) -> Option<f64>| {
            let bars = |n| vec![Bar::new("a", value(n), Sense::AtMost, 1.0)];
            (0..).take_while(|n| effort.another(*n, 3, || bars(*n))).count()
        };
        assert_eq!(blocks(Effort::Quick, |_| Some(2.0)), 3);
        assert_eq!(blocks(Effort::Quick, |n| (n >= 5).then_some(2.0)), 6, "it is looked at twice");
        assert_eq!(blocks(Effort::Quick, |_| None), 9);
    }

    #[test]
    fn a_tiny_run_does_not_wait_for_a_decision() {
        let mut samples = Samples::default();
        let key = Key { op: "a".into(), x: 1, series: "a".into(), metric: Metric::Latency };
        samples.add(&key, State::Any, State::Any, [1.0]);
        let bars = || vec![Bar::new("a", samples.level(&key), Sense::AtMost, 1.0)];
        assert!(
            bars()[0].is_open() && !Effort::Tiny.another(1, 1, bars) && Effort::Quick.another(1, 1, bars)
        );
    }
}
