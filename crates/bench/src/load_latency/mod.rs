//! `rem bench load-latency`: latency by offered load, and throughput and latency by the number of clients, of calls, a store and
//! durable logs, beside Redis, memcached and bare UDP.
//!
//! *Offered load*: one client, whose requests are due at the times of a Poisson process (`arrivals`); the latency of each counts
//! from when it was due. What saturates a service is measured first, by a closed loop of the same client.
//! *Clients*: a closed loop of 1 to 256, each a thread with a connection of its own, all in one process.

pub mod arrivals;
pub(crate) mod ends;
pub mod figure;
mod service;

use std::path::PathBuf;

use self::ends::{BYTES, Burst, Clients, Found, KEYS, Server, Spec};
use self::service::{Request, Service, Who};
use crate::effort::Effort;
use crate::report::{Bar, Report, Sense};
use crate::role::{self, Lost, Pair, Place, Ran};
use crate::samples::{Key, Metric, Samples};

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is measured.
    pub effort: Effort,
    /// The program that is started with the arguments `bench-agent ROLE` for each end.
    pub program: PathBuf,
}

/// The 99th percentile of so many clients is to be no more than so many times their median.
const FEW: usize = 4;
const TAIL: f64 = 10.0;
/// What is measured of each series, from one burst.
const METRICS: [Metric; 2] = [Metric::Latency, Metric::Rate];

fn by_load(request: Request) -> String {
    format!("{}, offered load", request.name())
}

fn by_clients(request: Request) -> String {
    format!("{}, clients", request.name())
}

/// The key of so many clients.
fn clients_key(service: Service, clients: usize, metric: Metric) -> Key {
    let series = service.series().to_owned();
    Key { op: by_clients(service.request), x: clients as u64, series, metric }
}

/// How much is measured.
struct Extent {
    blocks: u64,
    ms: u64,
    /// Per cent of what saturates a service.
    loads: &'static [u32],
    clients: &'static [usize],
}

impl Extent {
    fn of(effort: Effort) -> Self {
        let of = |blocks, ms, loads, clients| Self { blocks, ms, loads, clients };
        effort.pick(
            of(1, 5, &[50, 120], &[1, FEW]),
            of(6, 40, &[10, 50, 80, 95, 120], &[1, FEW, 16]),
            of(9, 150, &[10, 25, 50, 70, 80, 90, 100, 120], &[1, FEW, 16, 64, 256]),
        )
    }

    /// The offered loads of a service that so many answers a second saturate: in hundreds.
    fn offered(&self, saturation: f64) -> Vec<u64> {
        let of = |percent: &u32| (saturation * f64::from(*percent) / 1e4).round().max(1.0) as u64 * 100;
        self.loads.iter().map(of).collect()
    }
}

/// One server and its clients at a time.
struct Bench {
    effort: Effort,
    samples: Samples,
    lost: Lost,
    pair: Pair<Server, Clients>,
    /// What it is, while it is open.
    spec: Option<(Service, usize)>,
}

impl Bench {
    fn burst(&mut self, service: Service, clients: usize, burst: &Burst) -> Result<Ran<Found>, String> {
        if !self.pair.is_open() || self.spec != Some((service, clients)) {
            self.spec = Some((service, clients));
            let spec = Spec { service, clients };
            self.pair.open(&spec, &spec)?;
        }
        self.pair.burst(None, burst)
    }

    /// Answers a second of one client that asks as fast as it is answered: the median of three bursts.
    fn saturation(&mut self, service: Service, ms: u64) -> Result<f64, String> {
        let mut rates = Vec::new();
        for _ in 0..3 {
            rates.push(self.burst(service, 1, &Burst::Closed { ms })?.values.rate * 1e6);
        }
        rates.sort_unstable_by(f64::total_cmp);
        Ok(rates[1])
    }

    /// A burst of one point, whose latencies and rate are both kept; of the A/A pair two.
    fn measure(&mut self, service: Service, clients: usize, of: &dyn Fn(Metric) -> Key, burst: &Burst) {
        const TRIES: u32 = 4;
        let is_control = of(Metric::Latency) == control(Metric::Latency);
        for again in [false, true].into_iter().take(1 + usize::from(is_control)) {
            let key = |metric| if again { of(metric).again() } else { of(metric) };
            METRICS.into_iter().for_each(|metric| self.samples.expect(&key(metric)));
            let mut before = self.effort.probe();
            for _ in 0..TRIES {
                let ran = match self.burst(service, clients, burst) {
                    Ok(ran) => ran,
                    Err(why) => {
                        let Key { op, x, series, .. } = key(Metric::Latency);
                        self.lost.add(format!("{op} {x} {series}"), why);
                        break;
                    }
                };
                let after = self.effort.probe();
                let operations = ran.values.latencies.len() as u64;
                for metric in METRICS {
                    let of = |found: Found| match metric {
                        Metric::Latency => found.latencies,
                        _ => vec![found.rate],
                    };
                    let measured = (ran.clone().map(of), operations);
                    self.samples.add_measured(&key(metric), before, after, measured);
                }
                if before == after {
                    break;
                }
                before = after;
            }
        }
    }
}

/// What is measured twice in each block.
fn control(metric: Metric) -> Key {
    clients_key(Service::of(Request::Get, Who::OneSided), FEW, metric)
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured; what cannot be measured alone is in the report's `skipped`.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let extent = Extent::of(options.effort);
    let pair = Pair::new(Place::here(&options.program));
    let (samples, lost) = (Samples::default(), Lost::default());
    let mut bench = Bench { effort: options.effort, samples, lost, pair, spec: None };
    METRICS.into_iter().for_each(|metric| bench.samples.control(&control(metric)));
    let mut services = Vec::new();
    let mut offered = serde_json::Map::new();
    for service in Service::ALL {
        if let Some(why) = service.missing() {
            bench.lost.add(service.words(), why);
            continue;
        }
        progress(0, 0, &format!("what saturates {}", service.words()));
        let loads = match bench.saturation(service, extent.ms) {
            Ok(rate) => extent.offered(rate),
            Err(why) => {
                bench.lost.add(service.words(), why);
                Vec::new()
            }
        };
        offered.insert(service.words(), loads.clone().into());
        services.push((service, loads));
    }
    let steps = extent.blocks * services.len() as u64;
    let (mut block, mut done) = (0, 0);
    while options.effort.another(block, extent.blocks, || bars(&bench.samples)) {
        bench.samples.block(block);
        for n in bench.samples.order(services.len()) {
            let (service, loads) = &services[n];
            progress(done, steps, &service.words());
            done += 1;
            for &clients in extent.clients.iter().filter(|clients| **clients <= service.clients_max()) {
                let key = |metric| clients_key(*service, clients, metric);
                bench.measure(*service, clients, &key, &Burst::Closed { ms: extent.ms });
                // The one client is connected now.
                for n in bench.samples.order(if clients == 1 { loads.len() } else { 0 }) {
                    let op = by_load(service.request);
                    let key = |metric| Key {
                        op: op.clone(),
                        x: loads[n],
                        series: service.series().to_owned(),
                        metric,
                    };
                    let rate = loads[n] as f64;
                    bench.measure(*service, 1, &key, &Burst::Open { ms: extent.ms, rate, seed: block });
                }
            }
        }
        block += 1;
    }
    let Bench { samples, lost, .. } = bench;
    if samples.rows().is_empty() {
        return Err(format!("nothing could be measured: {}", lost.lines().join("; ")));
    }
    let x = Request::ALL.into_iter().flat_map(|request| {
        [(by_load(request), "offered, operations a second".into()), (by_clients(request), "clients".into())]
    });
    let tails = Service::ALL.into_iter().filter_map(|service| {
        let tail = samples.tail(&clients_key(service, FEW, Metric::Latency))?;
        Some((service.words(), serde_json::to_value(tail).unwrap_or_default()))
    });
    let params = serde_json::json!({
        "rounds": block, "ms": extent.ms, "bytes": BYTES, "keys": KEYS, "pinned": role::pinned(),
        "load in % of saturation": extent.loads, "offered": offered,
        "offered load": "one client with one request under way; requests are due at the times of a Poisson process, and latencies count \
                         from then; beyond saturation they grow for as long as a burst lasts",
        "clients": "threads of one process, a connection each; each asks again as soon as it is answered",
        "durability": "store and logs: memory that is declared ADR; Redis and memcached keep nothing",
        "p99 / p50 of 4 clients": tails.collect::<serde_json::Map<_, _>>(),
        "x": x.collect::<serde_json::Map<_, serde_json::Value>>(),
        "settings": services.iter().filter_map(|(service, _)| service.settings()).map(|(program, how)| {
            (program.to_owned(), how.into())
        }).collect::<serde_json::Map<_, serde_json::Value>>(),
    });
    let bars = bars(&samples);
    Ok(Report::new("load-latency", options.effort, params, &samples, bars, lost.lines()))
}

fn bars(samples: &Samples) -> Vec<Bar> {
    let judged =
        [(Request::Get, Who::OneSided), (Request::Append, Who::OneSided), (Request::Append, Who::Rpc)];
    let of = |(request, who)| {
        let service = Service::of(request, who);
        let tail = samples.tail(&clients_key(service, FEW, Metric::Latency));
        Bar::new(format!("{} clients, {}: p99 / p50", FEW, service.words()), tail, Sense::AtMost, TAIL)
    };
    judged.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_a_name_and_what_is_judged_is_measured() {
        let mut names: Vec<String> = Service::ALL.into_iter().map(Service::words).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Service::ALL.len());
        let mut samples = Samples::default();
        let near = crate::machine::State::Near;
        for effort in [Effort::Tiny, Effort::Quick, Effort::Full] {
            for service in Service::ALL {
                let few = Extent::of(effort).clients.contains(&FEW) && FEW <= service.clients_max();
                assert!(few, "{} has no {FEW} clients", service.words());
                samples.add(&clients_key(service, FEW, Metric::Latency), near, near, vec![1.0; 100]);
            }
        }
        assert!(bars(&samples).iter().all(|bar| bar.value.is_some()));
        assert!(Service::ALL.contains(&Service::BARE));
    }

    #[test]
    fn loads_go_from_a_tenth_to_beyond_saturation() {
        let loads = Extent::of(Effort::Full).offered(50_000.0);
        assert_eq!((loads.first(), loads.last()), (Some(&5_000), Some(&60_000)));
        assert_eq!(Extent::of(Effort::Quick).offered(12.0)[0], 100, "a rate is never none");
    }
}
