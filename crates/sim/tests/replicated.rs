//! A replicated service in simulated clusters: seeds, and what the simulator must be able to see.
//!
//! A failure says what replays it; `REMANENCE_EFFORT` and `REMANENCE_SEEDS` say how much is tried (`crates/effort`).

use remanence_sim::cluster::Counts;
use remanence_sim::cluster::replicated::{Outcome, Params, Plan, Work, run, run_plan};

fn passes(outcome: &Outcome) {
    assert!(outcome.passed(), "{outcome}");
}

/// Runs so many seeds, which together must meet so much of everything: a simulator that no longer does anything passes everything.
fn all(count: u64, quorum: Option<(u16, u16)>) {
    let params = Params { quorum, ..Params::default() };
    let (mut counts, mut work, mut runs) = (Counts::default(), Work::default(), 0);
    let seeds = remanence_effort::seeds(count);
    let are_all = seeds.are_all();
    for seed in seeds {
        let outcome = run(seed, &params);
        passes(&outcome);
        counts += outcome.counts;
        work += outcome.work;
        runs += 1;
    }
    println!("{runs} runs\n{counts:?}\n{work:?}");
    if are_all {
        is_active(&counts, &work, runs);
    }
}

fn is_active(counts: &Counts, work: &Work, runs: u64) {
    assert!(work.led > runs && work.from_snapshot > runs / 5 && work.stood_down > runs / 5, "{work:?}");
    assert!(work.done > 20 * runs && work.sent_again > runs && work.unknown > runs / 10, "{work:?}");
    assert!(work.expired > runs / 20 && work.connected_again > runs / 5, "{work:?}");
    assert!(
        counts.pauses > runs / 5 && counts.kills > runs / 5 && counts.power_losses > runs / 2,
        "{counts:?}"
    );
    assert!(counts.power_losses_within > runs / 20 && counts.media_failed > runs / 5, "{counts:?}");
    assert!(counts.slow > runs / 5 && counts.partitions > runs / 10, "{counts:?}");
}

#[test]
fn seeds_of_two_of_three() {
    all(600, Some((3, 2)));
}

#[test]
fn seeds_of_other_quorums() {
    all(600, None);
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..10 {
        let plan = Plan::draw(seed, &Params::default());
        let (once, again) = (run_plan(seed, &plan, 0), run_plan(seed, &plan, 0));
        assert_eq!(once, again);
        assert_eq!(run_plan(seed, &plan, 50).hash, once.hash, "a trace changes nothing");
    }
}

#[test]
fn servers_that_do_not_shut_older_hosts_out_are_found_and_the_plan_is_shrunk() {
    let params = Params { quorum: Some((3, 2)), fencing: false, ..Params::default() };
    let failed = (0..2000).map(|seed| run(seed, &params)).find(|outcome| !outcome.passed());
    let outcome = failed.expect("older hosts wrote on and nothing was noticed");
    println!("{outcome}");
    assert!(outcome.plan.faults.len() <= Plan::draw(outcome.seed, &params).faults.len());
    assert_eq!(run_plan(outcome.seed, &outcome.plan, 100), outcome, "what is left replays the failure");
    let line = format!("rem sim --cluster replicated --seed {}", outcome.seed);
    assert!(outcome.replay().starts_with(&line));
}
