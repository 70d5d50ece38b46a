//! The seeded simulator: a cluster of engines, with its network, time, memory and crashes, from one number.
//!
//! [`run`] builds a cluster as the seed says, lets its consumers post random work while the network and the power
//! fail, checks every completion against an oracle, then heals everything and demands that all work finishes. The
//! same seed and parameters always give the same run, to the last bit. `docs/sim.md` explains the output.
//!
//! | file | what |
//! |---|---|
//! | `params.rs` | what a run may do, and what a seed makes of it |
//! | `world.rs` | nodes, time, the event loop |
//! | `network.rs`, `memory.rs` | the fault models |
//! | `connect.rs` | set-up, crashes, partitions, reconnection |
//! | `workload.rs`, `end.rs` | what consumers post |
//! | `target.rs`, `check.rs`, `finish.rs` | the oracle |
//! | `trace.rs`, `report.rs` | what a person gets to see |
//! | [`history`] | decides whether what concurrent clients saw is linearizable |
//! | [`cluster`] | clusters of services above the engine: the replicated log, a replicated service over it, the replicated key-value store, durable blobs, remote procedure calls, recipes of persistence |
#![forbid(unsafe_code)]

mod check;
pub mod cluster;
mod connect;
mod end;
mod finish;
pub mod history;
mod memory;
mod network;
mod params;
mod report;
mod rng;
mod target;
mod trace;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use network::{Faults, Traffic};
pub use params::{Mix, Params, Plan};
pub use report::{Counters, Counts, Failure, Outcome};
pub use rng::Ppm;
use trace::Trace;
use world::{Violation, World};

/// Runs a seed. A seed that fails is run once more to tell its story.
#[must_use]
pub fn run(seed: u64, params: &Params) -> Outcome {
    let plan = Plan::draw(seed, params);
    let outcome = run_plan(seed, &plan, 0);
    if outcome.passed() || params.trace_lines == 0 {
        outcome
    } else {
        run_plan(seed, &plan, params.trace_lines)
    }
}

/// Runs a plan, which may be another one than the seed's own: to take a fault away, say, and see whether it matters.
#[must_use]
pub fn run_plan(seed: u64, plan: &Plan, trace_lines: usize) -> Outcome {
    let mut trace = Trace::new(trace_lines);
    let (mut counts, mut traffic, mut nanos) = (Counts::default(), Traffic::default(), 0);
    // A broken promise of an engine is a finding like any other, and has a seed and a story.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, plan, &mut trace)?;
        let result = world.run();
        world.collect_stats();
        (counts, traffic, nanos) = (world.counts, world.network.traffic, world.now);
        result
    }));
    let what = match result {
        Ok(Ok(())) => None,
        Ok(Err(Violation(what))) => Some(what),
        Err(panic) => Some(format!("panic: {}", panic_text(&*panic))),
    };
    let hash = trace.value();
    let failure = what.map(|what| Failure { what, trace: trace.into_lines() });
    Outcome { seed, plan: plan.clone(), counts, traffic, nanos, hash, failure }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
