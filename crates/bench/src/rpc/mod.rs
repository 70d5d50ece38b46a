//! The study of paper 001 (Kalia, Andersen, Kaminsky, SoCC '20): one-sided durable writes against calls that persist,
//! small ([`pwrite`], figure 3) and in bulk ([`bulk`], figures 4 and 7), and the persistent log server ([`logserver`],
//! figure 9).
//!
//! Server and client are processes, each with a device of its own on UDP over loopback, and a core of its own where there
//! are two. The server's memory is a file in shared memory that is *declared* to be in the persistence
//! domain ADR: so cache lines are written back as on persistent memory, while a power loss would take all of it.

pub mod bulk;
pub(crate) mod client;
pub mod logserver;
pub mod pwrite;
pub(crate) mod server;

use std::net::IpAddr;

use self::client::{Burst, Client};
use self::server::{Serve, Served, Server};
use crate::claims::Claim;
use crate::effort::{Effort, Options};
use crate::machine;
use crate::report::{Bar, Report};
use crate::role::{self, End, Launcher, Lost, Pair};
use crate::samples::{Key, Metric, Samples};
use crate::server_load::ServerLoad;

impl Effort {
    /// Rounds, and milliseconds of one sample.
    fn extent(self) -> (u64, u64) {
        self.pick((1, 3), (6, 10), (9, 40))
    }
}

/// Addresses of two sockets that have nothing of ours.
fn addresses() -> (IpAddr, IpAddr) {
    (server::address(1), server::address(2))
}

/// Samples of one bench, each tagged with the state of the machine around it.
struct Bench {
    samples: Samples,
    lost: Lost,
    pair: Pair<Server, Client>,
    specs: (server::Spec, client::Spec),
}

impl Bench {
    fn new(options: &Options, server: server::Spec, client: client::Spec) -> Self {
        let samples = Samples::new(options.effort, &options.only);
        let pair = Pair::new(Launcher::here(&options.program));
        Self { samples, lost: Lost::default(), pair, specs: (server, client) }
    }

    /// Whether another block is to be measured; its processes are new.
    fn another(&mut self, rounds: u64, bars: impl Fn(&Samples) -> Vec<Bar>) -> Result<bool, String> {
        self.pair.renew().unwrap_or_else(|why| self.lost.add("the end of a block", why));
        self.samples.another(rounds, bars)
    }

    /// Takes one sample of a burst of the client's, which yields values in the metric's unit.
    fn burst(&mut self, key: &Key, serve: Serve, burst: Burst) {
        let (pair, (server, client)) = (&mut self.pair, &self.specs);
        let run = || {
            if !pair.is_open() {
                pair.open(server, client)?;
            }
            let ran = pair.burst(Some(&serve), &burst)?;
            let operations = ran.values.operations;
            Ok((ran.map(|found| found.values), operations))
        };
        if let Err(why) = self.samples.burst(key, run) {
            self.lost.add(cell(key), why);
        }
    }

    /// So many series at each kind of server, or at those that figures have at every point; in the present block's order.
    fn cells(&self, series: usize, all: bool) -> Vec<(usize, ServerLoad)> {
        let loads = if all { &ServerLoad::ALL[..] } else { &FIGURES };
        let order = self.samples.order(series * loads.len()).into_iter();
        order.map(|n| (n % series, loads[n / series])).collect()
    }

    /// Takes one sample of what needs no server of ours, on the client's cores. It stands in several places.
    fn sample(&mut self, keys: &[Key], mut run: impl FnMut() -> Result<Vec<f64>, String> + Send) {
        let burst = || {
            let on_its_core = || {
                machine::pin_to(End::Client.cores(&machine::allowed()));
                run()
            };
            // A thread of its own: this one must stay free to probe both cores.
            let outcome = std::thread::scope(|scope| scope.spawn(on_its_core).join());
            let values = outcome.unwrap_or_else(|_| Err("the client panicked".into()))?;
            Ok(keys.iter().map(|_| values.clone().into()).collect())
        };
        if let Err(why) = self.samples.bursts(keys, burst) {
            self.lost.add(cell(&keys[0]), why);
        }
    }

    fn report(
        self,
        bench: &'static str,
        mut params: serde_json::Value,
        bars: impl Fn(&Samples) -> Vec<Bar>,
        claims: impl Fn(&Samples) -> Vec<Claim>,
    ) -> Result<Report, String> {
        params["pinned"] = role::pinned();
        params["memory"] = "a file in /dev/shm, declared ADR: it survives a crash of the process only".into();
        Report::new(bench, params, &self.samples, bars, claims, self.lost.lines())
    }
}

/// What a server of these does besides, where it is not said: it never sleeps, as the paper's.
const PAPERS: ServerLoad = ServerLoad::Spins;

/// At which servers everything is measured at every x.
const FIGURES: [ServerLoad; 3] = [ServerLoad::IDLE, PAPERS, ServerLoad::BUSY];
/// At which servers bars are judged.
const JUDGED: [ServerLoad; 2] = [ServerLoad::IDLE, ServerLoad::BUSY];

fn serve(what: Served, load: ServerLoad) -> Serve {
    Serve { what, load }
}

/// What an operation at such a server is called: each has a panel of its own.
fn at(op: &str, load: ServerLoad) -> String {
    format!("{op}, server {}", load.name())
}

/// A cell in words.
fn cell(key: &Key) -> String {
    format!("{} {} {}", key.op, key.series, crate::report::bytes(key.x))
}

fn key(op: &str, x: u64, series: &str, metric: Metric) -> Key {
    Key { op: op.to_owned(), x, series: series.to_owned(), metric }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_said_so() {
        let options = Options { effort: Effort::Tiny, only: Vec::new(), program: "none".into() };
        let mut bench = Bench::new(&options, server::Spec::Logs, client::Spec::Logs);
        bench.sample(&[key("write", 64, "a", Metric::Latency)], || Err("it is broken".into()));
        bench.sample(&[key("write", 64, "a", Metric::Latency)], || Err("it is broken".into()));
        assert_eq!(bench.lost.lines(), ["write a 64: it is broken"]);
        let outcome = bench.report("pwrite", serde_json::json!({}), |_| Vec::new(), |_| Vec::new());
        assert!(outcome.is_err_and(|why| why.contains("it is broken")));
    }
}
