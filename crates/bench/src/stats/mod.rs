//! The statistics of every bench: the burst is the unit, what is compared is paired within a block, and a ratio has an interval.
//!
//! A *burst* is one short run of one series: some milliseconds of operations, summed up by their mean and percentiles. A
//! *block* has one burst of each series that is compared, in random order. The ratio of two series is the geometric mean of
//! the ratios of their bursts in each block ([`Estimate`]), by state of the machine, and its interval is a bootstrap over
//! blocks ([`Interval`]). So a fast burst, which has many operations, weighs no more than a slow one, and ten thousand operations of one
//! burst, which all saw the same machine, do not pass for ten thousand experiments.
//!
//! One series of each bench is measured twice in each block under two names (*A/A*). No difference that is smaller than
//! theirs is one: an interval is never narrower than that of the A/A pair.

mod burst;
mod estimate;
mod interval;

pub use self::burst::{Burst, Statistic};
pub use self::estimate::{Estimate, Judgement, median, worst};
pub use self::interval::{Interval, LEAST, LOOKS, difference, mean};
