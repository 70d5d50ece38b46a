//! Seeds by the thousand: the acceptance test of the engine.
//!
//! A seed that fails prints its whole report; `rem sim --seed N` shows it again.

use remanence_sim::{Counts, Params, Traffic, run};

/// Seeds of each test below, so that they share the cores.
const SHARD: u64 = 400;

fn shard(number: u64) -> (Counts, Traffic) {
    let (mut counts, mut traffic) = (Counts::default(), Traffic::default());
    for seed in number * SHARD..(number + 1) * SHARD {
        let outcome = run(seed, &Params::default());
        assert!(outcome.passed(), "{outcome}");
        counts += outcome.counts;
        traffic += outcome.traffic;
    }
    (counts, traffic)
}

/// What the seeds of a shard must have met together: a simulator that no longer does anything passes everything.
fn check(number: u64) {
    let (counts, traffic) = shard(number);
    println!("{counts:?}\n{traffic:?}");
    assert!(
        counts.ops > 150 * SHARD && counts.messages > 30 * SHARD && counts.atomics > 10 * SHARD,
        "{counts:?}"
    );
    assert!(counts.flushes_checked > SHARD && counts.crashes > SHARD / 10, "{counts:?}");
    assert!(counts.retransmits > 10 * SHARD && counts.duplicates_answered > SHARD, "{counts:?}");
    assert!(counts.rnr_nak > SHARD && counts.cnp > SHARD && counts.timeouts > SHARD, "{counts:?}");
    assert!(
        traffic.lost > 10 * SHARD && traffic.duplicated > 5 * SHARD && traffic.corrupted > 5 * SHARD,
        "{traffic:?}"
    );
}

macro_rules! shards {
    ($($name:ident = $number:literal;)*) => {
        $(#[test]
        fn $name() {
            check($number);
        })*
    };
}

shards! {
    seeds_from_0 = 0;
    seeds_from_400 = 1;
    seeds_from_800 = 2;
    seeds_from_1200 = 3;
    seeds_from_1600 = 4;
    seeds_from_2000 = 5;
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..40 {
        let (a, b) = (run(seed, &Params::default()), run(seed, &Params::default()));
        assert_eq!(a, b);
    }
    let hash = |seed| run(seed, &Params::default()).hash;
    assert_ne!(hash(1), hash(2));
}

/// Tracing must not change what is traced.
#[test]
fn a_run_with_a_trace_is_the_same_run() {
    let params = Params::default();
    for seed in 0..10 {
        let plain = run(seed, &params);
        assert_eq!(remanence_sim::run_plan(seed, &plain.plan, 50).hash, plain.hash);
    }
}
