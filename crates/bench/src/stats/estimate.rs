//! A ratio, or a value, in each state of the machine, and what can be said of it.

use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use super::{Interval, LEAST};
use crate::machine::State;
use crate::report::{Sense, figure};

/// An interval for each state of the machine that was met. States are never averaged: the worse one is judged.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Estimate([Option<Interval>; State::ALL.len()]);

/// What an estimate says of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The whole interval is on the good side of it, in every state.
    Holds,
    /// The whole interval is on the other side, in a state.
    Missed,
    /// The limit lies within an interval, or there are fewer than [`LEAST`] blocks: no success.
    Undecided,
    /// There is no estimate.
    NotMeasured,
}

impl Judgement {
    /// The verdict as tables have it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Missed => "MISSED",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        }
    }
}

impl Estimate {
    /// From what each state has; `None` if none has anything.
    pub(crate) fn by_state(of: impl FnMut(State) -> Option<Interval>) -> Option<Self> {
        let all = State::ALL.map(of);
        all.iter().any(Option::is_some).then_some(Self(all))
    }

    /// The states that are judged: those with blocks enough, or all that there are if none has.
    fn judged(&self) -> impl Iterator<Item = (State, Interval)> + '_ {
        let enough = self.all().any(|(_, interval)| interval.n >= LEAST);
        self.all().filter(move |(_, interval)| interval.n >= LEAST || !enough)
    }

    /// Each state's interval.
    pub fn all(&self) -> impl Iterator<Item = (State, Interval)> + '_ {
        State::ALL.into_iter().zip(self.0).filter_map(|(state, interval)| Some((state, interval?)))
    }

    /// The state whose estimate is worse.
    #[must_use]
    pub fn worse(&self, sense: Sense) -> (State, Interval) {
        let order = |a: &(State, Interval), b: &(State, Interval)| match sense {
            Sense::AtMost => a.1.value.total_cmp(&b.1.value),
            Sense::AtLeast => b.1.value.total_cmp(&a.1.value),
        };
        self.judged().max_by(order).expect("an estimate has a state")
    }

    /// The value in the state that has the most blocks: for prose, which has room for one.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.all().max_by_key(|(_, interval)| interval.n).expect("an estimate has a state").1.value
    }

    /// What it says of a limit.
    #[must_use]
    pub fn judge(&self, sense: Sense, limit: f64) -> Judgement {
        let of = |interval: Interval| {
            let (worst, best) = match sense {
                Sense::AtMost => (interval.high, interval.low),
                Sense::AtLeast => (interval.low, interval.high),
            };
            match (sense.holds(worst, limit), sense.holds(best, limit)) {
                _ if interval.n < LEAST => Judgement::Undecided,
                (true, _) => Judgement::Holds,
                (false, true) => Judgement::Undecided,
                (false, false) => Judgement::Missed,
            }
        };
        let found: Vec<Judgement> = self.judged().map(|(_, interval)| of(interval)).collect();
        let any = |judgement| found.contains(&judgement).then_some(judgement);
        any(Judgement::Missed).or(any(Judgement::Undecided)).unwrap_or(Judgement::Holds)
    }

    /// Whether another run may well say otherwise of a limit that this one decides: the limit is nearer to the interval's end than that is to the
    /// value. The estimates of two runs differ by more than that in one case of twenty or fewer.
    #[must_use]
    pub fn is_close(&self, sense: Sense, limit: f64) -> bool {
        let twice = |i: Interval| Interval { low: 2.0 * i.low - i.value, high: 2.0 * i.high - i.value, ..i };
        self.map(twice).judge(sense, limit) != self.judge(sense, limit)
    }

    /// `1.23 x (1.10 to 1.31)`, with this unit, of each state that is judged; their names where there are several.
    #[must_use]
    pub fn words(&self, unit: &str) -> String {
        let several = self.judged().count() > 1;
        let each = self.judged().map(|(state, Interval { value, low, high, n: blocks })| {
            let bounds =
                (low < high && blocks > 1).then(|| format!(" ({} to {})", figure(low), figure(high)));
            let name = several.then(|| format!(" {}", state.word()));
            format!("{}{unit}{}{}", figure(value), bounds.unwrap_or_default(), name.unwrap_or_default())
        });
        each.collect::<Vec<_>>().join(", ")
    }

    /// Each state's interval by a function.
    #[must_use]
    pub(crate) fn map(self, by: impl Fn(Interval) -> Interval) -> Self {
        Self(self.0.map(|interval| interval.map(&by)))
    }
}

/// What is known, and not measured.
impl From<f64> for Estimate {
    fn from(value: f64) -> Self {
        let any = |state| (state == State::Any).then_some(Interval::exact(value));
        Self(State::ALL.map(any))
    }
}

impl Serialize for Estimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (state, interval) in self.all() {
            map.serialize_entry(state.word(), &interval)?;
        }
        map.end()
    }
}

/// `1.23 (1.10 to 1.31)`, of each state that is judged; their names where there are several.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(""))
    }
}

/// The worst of several estimates: it holds where all of them hold, and is missed where one is.
#[must_use]
pub fn worst(all: &[Estimate], sense: Sense) -> Option<Estimate> {
    let worse = |values: Vec<f64>| match sense {
        Sense::AtMost => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
        Sense::AtLeast => values.into_iter().fold(f64::INFINITY, f64::min),
    };
    together(all, worse)
}

/// The median of several estimates, and of their bounds.
#[must_use]
pub fn median(all: &[Estimate]) -> Option<Estimate> {
    together(all, |mut values| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    })
}

/// In each state one of those that have it: each by its value and its bounds, with the blocks of the one that has fewest.
fn together(all: &[Estimate], one: impl Fn(Vec<f64>) -> f64) -> Option<Estimate> {
    let of_state = |state| {
        let of = |estimate: &Estimate| {
            estimate.all().find(|(other, _)| *other == state).map(|(_, interval)| interval)
        };
        let there: Vec<Interval> = all.iter().filter_map(of).collect();
        let n = there.iter().map(|interval| interval.n).min()?;
        let over = |part: fn(&Interval) -> f64| one(there.iter().map(part).collect());
        Some(Interval { value: over(|i| i.value), low: over(|i| i.low), high: over(|i| i.high), n })
    };
    Estimate::by_state(of_state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(near: Option<(f64, f64, f64)>, far: Option<(f64, f64, f64)>) -> Estimate {
        let interval = |(value, low, high)| Interval { value, low, high, n: LEAST };
        Estimate::by_state(|state| match state {
            State::Near => near.map(interval),
            State::Far => far.map(interval),
            _ => None,
        })
        .unwrap()
    }

    #[test]
    fn a_bar_holds_only_where_the_interval_of_every_state_does() {
        let limit = |estimate: Estimate| estimate.judge(Sense::AtMost, 1.0);
        assert_eq!(limit(of(Some((0.8, 0.7, 0.9)), Some((0.9, 0.8, 1.0)))), Judgement::Holds);
        assert_eq!(limit(of(Some((0.8, 0.7, 0.9)), Some((0.9, 0.8, 1.1)))), Judgement::Undecided);
        assert_eq!(limit(of(Some((0.8, 0.7, 0.9)), Some((1.5, 1.1, 2.0)))), Judgement::Missed);
        assert_eq!(of(Some((0.8, 0.7, 0.9)), Some((1.5, 1.1, 2.0))).worse(Sense::AtMost).0, State::Far);
        assert_eq!(of(Some((2.0, 1.9, 2.1)), None).judge(Sense::AtLeast, 1.5), Judgement::Holds);
    }

    #[test]
    fn a_state_with_few_blocks_is_not_judged_beside_one_with_enough_and_never_holds() {
        let few = Interval { value: 9.0, low: 8.0, high: 10.0, n: LEAST - 1 };
        let enough = Interval { n: LEAST, ..few.map(|v| v / 20.0) };
        let both = Estimate::by_state(|state| match state {
            State::Near => Some(few),
            State::Far => Some(enough),
            _ => None,
        });
        assert_eq!(both.unwrap().judge(Sense::AtMost, 1.0), Judgement::Holds);
        let alone = Estimate::by_state(|state| (state == State::Near).then_some(few)).unwrap();
        assert_eq!(alone.judge(Sense::AtMost, 20.0), Judgement::Undecided);
    }

    #[test]
    fn a_verdict_is_close_where_its_interval_ends_near_the_limit() {
        let close = |low, value, high| of(Some((value, low, high)), None).is_close(Sense::AtMost, 1.0);
        assert!(close(0.8, 0.9, 0.99) && close(1.01, 1.1, 1.2), "decided by a hair");
        assert!(!close(0.6, 0.7, 0.8) && !close(1.2, 1.3, 1.4), "far from it");
        assert!(!close(0.9, 0.95, 1.05), "what is undecided says so");
        assert!(!Estimate::from(1.0).is_close(Sense::AtMost, 1.0), "what is known is the same each time");
        let both = of(Some((0.9, 0.8, 0.99)), Some((0.5, 0.4, 0.6)));
        assert!(both.is_close(Sense::AtMost, 1.0), "one state is enough");
        let missed = of(Some((0.9, 0.8, 0.99)), Some((1.5, 1.4, 1.6)));
        assert!(
            !missed.is_close(Sense::AtMost, 1.0),
            "one that is missed by far is missed whatever the other is"
        );
    }

    #[test]
    fn a_state_is_named_where_there_are_several_that_are_judged() {
        assert_eq!(of(Some((0.8, 0.7, 0.9)), None).to_string(), "0.800 (0.700 to 0.900)");
        let both = of(Some((0.8, 0.7, 0.9)), Some((1.5, 1.5, 1.5)));
        assert_eq!(both.words(" x"), "0.800 x (0.700 to 0.900) near, 1.50 x far");
        let few = Interval { value: 9.0, low: 8.0, high: 10.0, n: LEAST - 1 };
        let one = both.map(|interval| if interval.value > 1.0 { few } else { interval });
        assert_eq!(one.to_string(), "0.800 (0.700 to 0.900)");
    }

    #[test]
    fn the_worst_of_several_holds_where_all_do() {
        let all = [of(Some((0.5, 0.4, 0.6)), None), of(Some((0.9, 0.8, 1.2)), None)];
        let worst = worst(&all, Sense::AtMost).unwrap();
        assert_eq!(worst.judge(Sense::AtMost, 1.0), Judgement::Undecided);
        assert_eq!(worst.judge(Sense::AtMost, 1.2), Judgement::Holds);
        assert_eq!(worst.judge(Sense::AtMost, 0.7), Judgement::Missed);
        assert_eq!(super::worst(&[], Sense::AtMost), None);
    }

    #[test]
    fn what_is_known_is_judged_as_it_is() {
        assert_eq!(Estimate::from(1.0).judge(Sense::AtMost, 1.0), Judgement::Holds);
        assert_eq!(Estimate::from(f64::NAN).judge(Sense::AtMost, 1.0), Judgement::Missed);
        assert_eq!(Estimate::from(1.5).to_string(), "1.50");
    }
}
