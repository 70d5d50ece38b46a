//! One burst, summed up.

use hdrhistogram::Histogram;

use crate::machine::State;
use crate::role::Ran;

/// What one burst of a series measured, in the unit of its metric.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Burst {
    /// The block that it belongs to.
    pub block: u32,
    /// The state of the machine all through it.
    pub state: State,
    /// Values that it had.
    pub n: u64,
    /// How many operations it was, and what its processes counted meanwhile, if they are roles.
    pub ran: Option<Ran<u64>>,
    mean: f64,
    p50: f64,
    p99: Option<f64>,
    p999: Option<f64>,
}

/// What is told of a burst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Statistic {
    /// The arithmetic mean of its values.
    Mean,
    /// Their median.
    P50,
    /// Their 99th percentile, of bursts with 100 values at least.
    P99,
    /// Their 99.9th percentile, of bursts with 1000 values at least.
    P999,
}

impl Burst {
    /// The burst of these values; `None` of none. Percentiles have three digits.
    #[must_use]
    pub fn of(block: u32, state: State, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        /// Histograms count integers: a millionth of the unit is told apart.
        const SCALE: f64 = 1e6;
        let mut histogram = Histogram::<u64>::new(3).expect("three digits are allowed");
        let mut sum = 0.0;
        for value in values {
            sum += value;
            // The histogram grows by itself; only a value beyond 2^63 could fail.
            let _ = histogram.record((value * SCALE).round().max(0.0) as u64);
        }
        let n = histogram.len();
        if n == 0 {
            return None;
        }
        // What was measured once is that, and not the end of its bucket.
        let single = |value: f64| if n == 1 { sum } else { value };
        let at = |quantile| single(histogram.value_at_quantile(quantile) as f64 / SCALE);
        Some(Self {
            block,
            state,
            n,
            ran: None,
            mean: sum / n as f64,
            p50: at(0.5),
            p99: (n >= 100).then(|| at(0.99)),
            p999: (n >= 1000).then(|| at(0.999)),
        })
    }

    /// A statistic of it, if it has values enough.
    #[must_use]
    pub const fn get(&self, statistic: Statistic) -> Option<f64> {
        match statistic {
            Statistic::Mean => Some(self.mean),
            Statistic::P50 => Some(self.p50),
            Statistic::P99 => self.p99,
            Statistic::P999 => self.p999,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_the_percentiles_that_its_values_can_show() {
        let of = |n: u64| Burst::of(0, State::Near, (1..=n).map(|v| v as f64)).unwrap();
        assert_eq!(Burst::of(0, State::Near, []), None);
        let few = of(50);
        assert_eq!((few.get(Statistic::P99), few.get(Statistic::Mean)), (None, Some(25.5)));
        let more = of(500);
        assert!((more.get(Statistic::P99).unwrap() - 495.0).abs() < 1.0);
        assert_eq!(more.get(Statistic::P999), None);
        assert!((of(2000).get(Statistic::P999).unwrap() - 1998.0).abs() < 3.0);
    }
}
