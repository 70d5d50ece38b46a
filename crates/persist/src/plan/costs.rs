//! What things cost, and what a recipe made of them costs.

use crate::recipe::{Flush, Recipe, Rq, Rsp, Step, Target};
use crate::taxonomy::{Config, Domain};

/// Times in nanoseconds. Measured ones take the place of those given here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// From posting the smallest WRITE to its completion.
    pub round_trip: f64,
    /// Each work request beyond the first of a round trip.
    pub post: f64,
    /// Each byte of an update on the wire.
    pub byte: f64,
    /// What a READ adds at the responder, by reading through PCIe.
    pub read: f64,
    /// What a FLUSH to global visibility adds.
    pub flush_global: f64,
    /// What a FLUSH to persistence adds, and each cache line of it.
    pub flush_persistent: f64,
    /// Each cache line that is flushed, by whom ever.
    pub line: f64,
    /// Until the responder's CPU notices a message: little if it polls, much if it is busy or asleep.
    pub wake: f64,
    /// The responder's handling of a message, its acknowledgement included.
    pub handle: f64,
    /// Each byte that the responder copies.
    pub copy: f64,
    /// A local flush (write-back and fence), beyond its lines.
    pub writeback: f64,
    /// An fdatasync, which a page cache needs for each flush.
    pub fdatasync: f64,
    /// How much a nanosecond of the responder's CPU weighs against one of latency.
    pub cpu_weight: f64,
}

impl Costs {
    /// The order of magnitude of papers 001 and 004: 1.4 us for a WRITE, 2.9 us for WRITE and READ, 2.3 us for a persistent
    /// RPC to a server that does nothing but poll. Replace them by what was measured.
    pub const PAPERS: Self = Self {
        round_trip: 1400.0,
        post: 100.0,
        byte: 0.15,
        read: 1400.0,
        flush_global: 1200.0,
        flush_persistent: 1400.0,
        line: 30.0,
        wake: 350.0,
        handle: 250.0,
        copy: 0.1,
        writeback: 200.0,
        fdatasync: 100_000.0,
        cpu_weight: 0.25,
    };

    /// A recipe with updates of those sizes.
    #[must_use]
    pub fn estimate(&self, recipe: &Recipe, sizes: &[u32], config: &Config) -> Estimate {
        let size = |n: u8| f64::from(sizes.get(usize::from(n)).copied().unwrap_or(8));
        let lines = |bytes: f64| (bytes / 64.0).ceil().max(1.0);
        let total: f64 = sizes.iter().map(|s| f64::from(*s)).sum();
        let page_cache = config.domain == Domain::PageCache;
        let mut latency = 0.0;
        let mut responder = 0.0;
        let mut since_wait = 0;
        let mut pending = 0.0;
        let mut round_trips = 0;
        for step in &recipe.steps {
            match step {
                Step::Rq(rq) => {
                    let bytes = match rq {
                        Rq::Write(u) | Rq::WriteImm(u) | Rq::AtomicWrite(u) | Rq::FencedWrite(u) => size(u.0),
                        Rq::Send(m) => 16.0 + m.data.iter().map(|u| size(u.0)).sum::<f64>(),
                        Rq::Flush(_) | Rq::Comp | Rq::Receive => 0.0,
                    };
                    match rq {
                        Rq::Comp | Rq::Receive => {
                            latency += self.round_trip + pending;
                            round_trips += 1;
                            (since_wait, pending) = (0, 0.0);
                        }
                        _ => {
                            if matches!(rq, Rq::FencedWrite(_)) {
                                latency += self.round_trip + pending;
                                round_trips += 1;
                                (since_wait, pending) = (0, 0.0);
                            }
                            let posting = if since_wait > 0 { self.post } else { 0.0 };
                            latency += posting + bytes * self.byte;
                            since_wait += 1;
                        }
                    }
                    pending += match rq {
                        Rq::Flush(Flush::Read) => self.read,
                        Rq::Flush(Flush::Global) => self.flush_global,
                        Rq::Flush(Flush::Persistent) if page_cache => self.fdatasync,
                        Rq::Flush(Flush::Persistent) => self.flush_persistent + self.line * lines(total),
                        _ => 0.0,
                    };
                }
                Step::Rsp(rsp) => {
                    let cost = self.responder(*rsp, total, &size, page_cache);
                    pending += cost;
                    responder += cost;
                    if matches!(rsp, Rsp::Receive(_)) {
                        pending += self.wake;
                    }
                }
            }
        }
        for rsp in &recipe.deferred {
            responder += self.responder(*rsp, total, &size, page_cache);
        }
        Estimate { latency, responder, round_trips }
    }

    fn responder(&self, rsp: Rsp, total: f64, size: &dyn Fn(u8) -> f64, page_cache: bool) -> f64 {
        let lines = |bytes: f64| (bytes / 64.0).ceil().max(1.0);
        match rsp {
            Rsp::Receive(_) => self.handle,
            Rsp::Copy(u) => self.copy * size(u.0),
            Rsp::Flush(_) if page_cache => self.fdatasync,
            Rsp::Flush(Target::Update(u)) => self.writeback + self.line * lines(size(u.0)),
            Rsp::Flush(Target::Buffer) => self.writeback + self.line * lines(total + 16.0),
            Rsp::Ack | Rsp::Repost => 0.0,
        }
    }
}

/// What a recipe costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// From the first step of the requester to its last, in nanoseconds.
    pub latency: f64,
    /// Work of the responder's CPU, what it does afterwards included, in nanoseconds.
    pub responder: f64,
    /// How often the requester waits.
    pub round_trips: u32,
}

impl Estimate {
    /// What plans are compared by.
    #[must_use]
    pub fn total(&self, costs: &Costs) -> f64 {
        self.latency + costs.cpu_weight * self.responder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Op, Shape, build};
    use crate::taxonomy::Buffers;

    #[test]
    fn the_papers_figures_come_out() {
        let estimate = |config: &str, op| {
            let config: Config = config.parse().expect("a configuration");
            Costs::PAPERS.estimate(&build(&config, op, Shape::SINGLETON), &[64], &config).latency
        };
        // Paper 001, section 4.3: a WRITE takes 1.4 us, with a READ behind it 2.9 us, a persistent RPC 2.3 us.
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.1;
        assert!(near(estimate("WSP+DDIO+DRAM", Op::Write), 1400.0));
        assert!(near(estimate("DMP+no-DDIO+DRAM+read", Op::Write), 2900.0));
        assert!(near(estimate("DMP+DDIO+DRAM", Op::Send), 2300.0));
    }

    #[test]
    fn each_step_costs_what_it_costs() {
        let costs = Costs::PAPERS;
        let estimate = |config: &str, op, shape, sizes: &[u32]| {
            let config: Config = config.parse().expect("a configuration");
            let recipe = build(&config, op, shape);
            (costs.estimate(&recipe, sizes, &config), recipe)
        };
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.01;
        let (one, _) = estimate("WSP+DDIO+DRAM", Op::Write, Shape::SINGLETON, &[1000]);
        assert!(near(one.latency, costs.round_trip + 1000.0 * costs.byte));
        let (three, _) = estimate("WSP+DDIO+DRAM", Op::Write, Shape::batch(3), &[1000; 3]);
        assert!(near(three.latency, costs.round_trip + 3000.0 * costs.byte + 2.0 * costs.post));
        let (flushed, _) = estimate("DMP+DDIO+DRAM+persistent", Op::Write, Shape::SINGLETON, &[640]);
        let flush = costs.flush_persistent + 10.0 * costs.line;
        assert!(near(flushed.latency, costs.round_trip + 640.0 * costs.byte + costs.post + flush));
        let (disk, _) = estimate("page-cache+DDIO+DRAM+persistent", Op::Write, Shape::SINGLETON, &[640]);
        assert!(near(disk.latency, costs.round_trip + 640.0 * costs.byte + costs.post + costs.fdatasync));
        // A fenced WRITE waits for the FLUSH before it.
        let (fenced, recipe) = estimate("DMP+no-DDIO+DRAM+fenced", Op::Write, Shape::COMPOUND, &[64, 8]);
        assert!(recipe.requester().any(|step| matches!(step, Rq::FencedWrite(_))), "{recipe}");
        assert_eq!(fenced.round_trips as usize, recipe.waits());
        assert!(fenced.latency > 2.0 * (costs.round_trip + costs.flush_global));
    }

    #[test]
    fn more_round_trips_and_fdatasyncs_cost_what_they_cost() {
        let compound = |config: Config, op| {
            Costs::PAPERS.estimate(&build(&config, op, Shape::COMPOUND), &[64, 8], &config)
        };
        let dmp = Config::paper(Domain::Dmp, true, Buffers::Dram);
        assert_eq!(compound(dmp, Op::Write).round_trips, 2);
        assert_eq!(compound(dmp, Op::Send).round_trips, 1);
        let disk = compound(Config { domain: Domain::PageCache, ..dmp }, Op::Send);
        assert!(
            disk.latency > 2.0 * Costs::PAPERS.fdatasync && disk.responder > 2.0 * Costs::PAPERS.fdatasync
        );
    }
}
