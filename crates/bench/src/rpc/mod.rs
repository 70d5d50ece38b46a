//! The study of paper 001 (Kalia, Andersen, Kaminsky, SoCC '20): one-sided durable writes against calls that persist,
//! small ([`pwrite`], figure 3) and in bulk ([`bulk`], figures 4 and 7), and the persistent log server ([`logserver`],
//! figure 9).
//!
//! Server and client are threads of one process, each with a device of its own on UDP over loopback, and a core of its
//! own where there are two. The server's memory is a file in shared memory that is *declared* to be in the persistence
//! domain ADR: so cache lines are written back as on persistent memory, while a power loss would take all of it.

pub mod bulk;
mod host;
pub mod logserver;
pub mod pwrite;

use crate::claims::Claim;
use crate::effort::Effort;
use crate::limits::CLIENT_CORE;
use crate::machine::pin;
use crate::report::{Bar, Report};
use crate::samples::{Key, Metric, Samples};
use crate::stats::Estimate;

/// How a bench of these is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How much is measured; half a minute of it if quick.
    pub effort: Effort,
}

impl Options {
    /// Rounds, and milliseconds of one sample.
    fn extent(self) -> (u64, u64) {
        self.effort.pick((1, 3), (6, 10), (9, 40))
    }
}

/// What a bench says: the report, and what becomes of the paper's claims.
pub type Outcome = Result<(Report, Vec<Claim>), String>;

/// Samples of one bench, each tagged with the state of the machine around it.
struct Bench {
    effort: Effort,
    samples: Samples,
    skipped: Vec<String>,
}

impl Bench {
    fn new(effort: Effort) -> Self {
        Self { effort, samples: Samples::default(), skipped: Vec::new() }
    }

    /// Takes one sample on the client's core, which yields values in the metric's unit.
    fn sample(&mut self, key: &Key, mut run: impl FnMut() -> Result<Vec<f64>, String> + Send) {
        let burst = || {
            let on_its_core = || {
                pin(CLIENT_CORE);
                run()
            };
            // A thread of its own: this one must stay free to probe both cores.
            let outcome = std::thread::scope(|scope| scope.spawn(on_its_core).join());
            outcome.unwrap_or_else(|_| Err("the client panicked".into()))
        };
        if let Err(why) = self.samples.burst(self.effort, key, burst) {
            let why = format!("{}: {why}", key.series);
            // Once for each reason.
            if !self.skipped.contains(&why) {
                self.skipped.push(why);
            }
        }
    }

    fn ratio(&self, over: &Key, under: &Key) -> Option<Estimate> {
        self.samples.ratio(over, under)
    }

    fn report(
        self,
        bench: &'static str,
        params: serde_json::Value,
        more: Vec<crate::report::Row>,
        bars: Vec<Bar>,
        claims: Vec<Claim>,
    ) -> Outcome {
        if self.samples.rows().is_empty() {
            return Err(format!("nothing could be measured: {}", self.skipped.join("; ")));
        }
        let mut params = params;
        params["claims"] = serde_json::to_value(&claims).unwrap_or_default();
        params["memory"] = "a file in /dev/shm, declared ADR: it survives a crash of the process only".into();
        let mut report = Report::new(bench, self.effort, params, &self.samples, bars, self.skipped);
        report.rows.extend(more);
        Ok((report, claims))
    }
}

fn key(op: &str, x: u64, series: &str, metric: Metric) -> Key {
    Key { op: op.to_owned(), x, series: series.to_owned(), metric }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_said_so() {
        let mut bench = Bench::new(Effort::Tiny);
        bench.sample(&key("write", 64, "a", Metric::Latency), || Err("it is broken".into()));
        bench.sample(&key("write", 64, "a", Metric::Latency), || Err("it is broken".into()));
        assert_eq!(bench.skipped.len(), 1);
        let outcome = bench.report("pwrite", serde_json::json!({}), Vec::new(), Vec::new(), Vec::new());
        assert!(outcome.is_err_and(|why| why.contains("it is broken")));
    }
}
