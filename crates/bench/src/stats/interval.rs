//! Means of few values with their intervals, by bootstrap.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

/// As many blocks as a judgement takes. The interval of `n` values is at most as wide as their range, which misses the median of
/// what they were drawn from in 2 of 2^n cases: 3 % for six.
pub const LEAST: usize = 6;

/// What is resampled each time.
const RESAMPLES: usize = 2000;
/// How often a bench looks whether its bars are decided, at most.
pub const LOOKS: u64 = 3;
/// How often an interval misses at one of them: so that it does in 5 % of runs at any of three (Pocock, "Group sequential methods in the
/// design and analysis of clinical trials", 1977, table 1).
const MISSES: f64 = 0.0221;
/// Resampling is the same each time, so that one report has one verdict.
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// A value between its bounds. Of one burst alone there are none: 0 and infinity, which JSON has as `null`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// What was estimated: a mean, or a difference of two.
    pub value: f64,
    /// The lower bound of its 95 % interval: that is over all [`LOOKS`] of a run.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// How many blocks, or bursts, stand behind it.
    pub n: usize,
}

impl Interval {
    /// What is known, and not measured.
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { value, low: value, high: value, n: LEAST }
    }

    /// By a function that keeps the order, such as the logarithm's inverse.
    #[must_use]
    pub(crate) fn map(self, by: impl Fn(f64) -> f64) -> Self {
        Self { value: by(self.value), low: by(self.low), high: by(self.high), n: self.n }
    }

    /// At least as wide as a factor and its inverse around the value.
    #[must_use]
    pub fn widened(self, factor: f64) -> Self {
        let (low, high) = (self.low.min(self.value / factor), self.high.max(self.value * factor));
        Self { low, high, ..self }
    }
}

/// The mean of values and its interval; `None` of none.
#[must_use]
pub fn mean(values: &[f64]) -> Option<Interval> {
    resampled(&[values], |means| means[0])
}

/// The difference of the means of two lists that are not paired, and its interval.
#[must_use]
pub fn difference(over: &[f64], under: &[f64]) -> Option<Interval> {
    resampled(&[over, under], |means| means[0] - means[1])
}

/// The expanded percentile interval (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 4.3): percentiles of
/// the resampled statistic, further out than 2.5 and 97.5 as far as Student's t is wider than the normal distribution for as
/// many values. A plain percentile interval of six values would be a quarter too narrow.
fn resampled(lists: &[&[f64]], statistic: impl Fn(&[f64]) -> f64) -> Option<Interval> {
    let least = lists.iter().map(|list| list.len()).min().filter(|least| *least > 0)?;
    let means: Vec<f64> = lists.iter().map(|list| list.iter().sum::<f64>() / list.len() as f64).collect();
    let value = statistic(&means);
    if least == 1 {
        return Some(Interval { value, low: f64::NEG_INFINITY, high: f64::INFINITY, n: 1 });
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut all: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut drawn = |list: &[f64]| {
                let sum: f64 = (0..list.len()).map(|_| list[random.usize(..list.len())]).sum();
                sum / list.len() as f64
            };
            let means: Vec<f64> = lists.iter().map(|list| drawn(list)).collect();
            statistic(&means)
        })
        .collect();
    all.sort_unstable_by(f64::total_cmp);
    let tail = tail(least);
    let at = |quantile: f64| all[((quantile * RESAMPLES as f64) as usize).min(RESAMPLES - 1)];
    Some(Interval { value, low: at(tail), high: at(1.0 - tail), n: least })
}

/// How much of the resampled values lies beyond each bound, for so many values.
fn tail(n: usize) -> f64 {
    let n = n as f64;
    let student = StudentsT::new(0.0, 1.0, n - 1.0).expect("n is at least 2").inverse_cdf(MISSES / 2.0);
    Normal::standard().cdf((n / (n - 1.0)).sqrt() * student)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of a distribution with a long tail, as latencies have.
    fn drawn(random: &mut fastrand::Rng, n: usize, about: f64) -> Vec<f64> {
        let normal = Normal::standard();
        (0..n)
            .map(|_| {
                about
                    + 0.1 * normal.inverse_cdf(random.f64().clamp(1e-9, 1.0 - 1e-9))
                    + 0.02 * -random.f64().ln().min(20.0)
            })
            .collect()
    }

    #[test]
    fn an_interval_misses_about_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(1);
        let truth = 3.0 + 0.02;
        for n in [6, 9, 20] {
            let missed = (0..600)
                .filter(|_| {
                    let found = mean(&drawn(&mut random, n, 3.0)).unwrap();
                    truth < found.low || truth > found.high
                })
                .count();
            assert!(missed < 600 / 14, "of {n} values {missed} of 600 intervals missed");
        }
    }

    #[test]
    fn a_difference_of_two_that_are_the_same_is_none() {
        let mut random = fastrand::Rng::with_seed(2);
        let missed = (0..400)
            .filter(|_| {
                let (a, b) = (drawn(&mut random, 9, 1.0), drawn(&mut random, 9, 1.0));
                let found = difference(&a, &b).unwrap();
                found.low > 0.0 || found.high < 0.0
            })
            .count();
        assert!(missed < 400 / 14, "{missed} of 400");
    }

    #[test]
    fn one_value_bounds_nothing_and_no_value_is_none() {
        assert_eq!(mean(&[]), None);
        let one = mean(&[2.0]).unwrap();
        assert!(one.low < -1e300 && one.high > 1e300 && one.n == 1);
        assert_eq!(difference(&[1.0], &[]), None);
    }

    #[test]
    fn one_report_has_one_verdict() {
        let values = [1.0, 1.1, 0.9, 1.05, 1.2, 0.97, 1.01];
        assert_eq!(mean(&values), mean(&values));
    }
}
