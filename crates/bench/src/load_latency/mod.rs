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

use std::collections::BTreeMap;

use self::ends::{BYTES, Burst, Clients, Found, KEYS, Server, Spec};
use self::service::{Request, Service, Who};
use crate::effort::{Effort, Options};
use crate::report::{Bar, Report, Sense};
use crate::role::{self, Launcher, Lost, Pair, Ran};
use crate::samples::{Key, Metric, Samples};

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

/// The key of a load.
fn load_key(service: Service, offered: u64, metric: Metric) -> Key {
    let series = service.series().to_owned();
    Key { op: by_load(service.request), x: offered, series, metric }
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
struct Ends {
    pair: Pair<Server, Clients>,
    /// What it is, while it is open.
    spec: Option<(Service, usize)>,
}

impl Ends {
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
}

struct Bench {
    samples: Samples,
    lost: Lost,
    ends: Ends,
    /// What each service is offered, once it is known what saturates it.
    offered: BTreeMap<Service, Vec<u64>>,
}

impl Bench {
    /// A block's bursts of a service.
    fn service(&mut self, service: Service, extent: &Extent) {
        let clients = extent.clients.iter().filter(|clients| **clients <= service.clients_max());
        let clients: Vec<usize> = clients.copied().collect();
        let of_clients = |clients| METRICS.map(|metric| clients_key(service, clients, metric));
        // What is offered is not known before: per cent stand for it.
        let listed = |percent: u32| METRICS.map(|metric| load_key(service, percent.into(), metric));
        let wants_loads =
            self.samples.wants_any(&extent.loads.iter().copied().flat_map(listed).collect::<Vec<_>>());
        let keys: Vec<Key> = clients.iter().copied().flat_map(of_clients).collect();
        if !self.samples.wants_any(&keys) && !wants_loads {
            return;
        }
        if let Some(why) = service.missing() {
            self.lost.add(service.words(), why);
            return;
        }
        let ms = extent.ms;
        if wants_loads && !self.offered.contains_key(&service) {
            let rate = self.ends.saturation(service, ms);
            let loads = rate.map(|rate| extent.offered(rate)).unwrap_or_else(|why| {
                self.lost.add(service.words(), why);
                Vec::new()
            });
            for (percent, load) in extent.loads.iter().zip(&loads) {
                let keys = METRICS.map(|metric| load_key(service, *load, metric));
                listed(*percent)
                    .iter()
                    .zip(&keys)
                    .for_each(|(listed, key)| self.samples.stands_for(listed, key));
            }
            self.offered.insert(service, loads);
        }
        let loads = self.offered.get(&service).cloned().unwrap_or_default();
        let seed = self.samples.blocks();
        for clients in clients {
            self.measure(service, clients, &of_clients(clients), &Burst::Closed { ms });
            // The one client is connected now.
            for n in self.samples.order(if clients == 1 { loads.len() } else { 0 }) {
                let keys = METRICS.map(|metric| load_key(service, loads[n], metric));
                self.measure(service, 1, &keys, &Burst::Open { ms, rate: loads[n] as f64, seed });
            }
        }
    }

    /// A burst of one point, whose latencies and rate are both kept.
    fn measure(&mut self, service: Service, clients: usize, keys: &[Key], burst: &Burst) {
        let Self { samples, ends, .. } = self;
        let measured = samples.bursts(keys, || {
            let ran = ends.burst(service, clients, burst)?;
            let operations = ran.values.latencies.len() as u64;
            let rate = (ran.clone().map(|found| vec![found.rate]), operations);
            Ok(vec![ran.map(|found| found.latencies).into(), rate.into()])
        });
        if let Err(why) = measured {
            let Key { op, x, series, .. } = &keys[0];
            self.lost.add(format!("{op} {x} {series}"), why);
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
    let Options { effort, only, program } = options;
    let extent = Extent::of(*effort);
    let mut bench = Bench {
        samples: Samples::new(*effort, only),
        lost: Lost::default(),
        ends: Ends { pair: Pair::new(Launcher::here(program)), spec: None },
        offered: BTreeMap::new(),
    };
    METRICS.into_iter().for_each(|metric| bench.samples.control(&control(metric)));
    let steps = extent.blocks * Service::ALL.len() as u64;
    while bench.samples.another(extent.blocks, bars)? {
        bench.ends.pair.renew().unwrap_or_else(|why| bench.lost.add("the end of a block", why));
        for n in bench.samples.order(Service::ALL.len()) {
            let service = Service::ALL[n];
            progress(bench.samples.step(), steps, &service.words());
            bench.service(service, &extent);
        }
    }
    let Bench { samples, lost, offered, .. } = bench;
    let x = Request::ALL.into_iter().flat_map(|request| {
        [(by_load(request), "offered, operations a second".into()), (by_clients(request), "clients".into())]
    });
    let tails = Service::ALL.into_iter().filter_map(|service| {
        let tail = samples.tail(&clients_key(service, FEW, Metric::Latency))?;
        Some((service.words(), serde_json::to_value(tail).unwrap_or_default()))
    });
    let rows = samples.rows();
    let is_measured = |service: &Service| rows.iter().any(|row| row.series == service.series());
    let measured = Service::ALL.into_iter().filter(is_measured);
    let params = serde_json::json!({
        "rounds": samples.blocks(), "ms": extent.ms, "bytes": BYTES, "keys": KEYS, "pinned": role::pinned(),
        "load in % of saturation": extent.loads,
        "offered": offered.into_iter().map(|(service, loads)| (service.words(), loads)).collect::<BTreeMap<_, _>>(),
        "offered load": "one client with one request under way; requests are due at the times of a Poisson process, and latencies count \
                         from then; beyond saturation they grow for as long as a burst lasts",
        "clients": "threads of one process, a connection each; each asks again as soon as it is answered",
        "durability": "store and logs: memory that is declared ADR; Redis and memcached keep nothing",
        "p99 / p50 of 4 clients": tails.collect::<serde_json::Map<_, _>>(),
        "x": x.collect::<serde_json::Map<_, serde_json::Value>>(),
        "cores": "the threads of each server, ours and peers' alike, run on the server's cores",
        "settings": measured.filter_map(Service::settings).map(|(program, how)| {
            (program.to_owned(), how.into())
        }).collect::<serde_json::Map<_, serde_json::Value>>(),
    });
    Report::new("load-latency", params, &samples, bars, |_| Vec::new(), lost.lines())
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
