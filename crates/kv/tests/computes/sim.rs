//! Whole clusters under a seed: what clients saw is checked for linearizability, across crashes too.
//!
//! `REMANENCE_SEEDS=from..to` runs others than the few of every test run; a failure names its seed.

use crate::common;

use common::world::{CALM, STORM, Weather, World};
use common::{DEFERRED, DURABLE, ERDA, INLINE, INLINE_LINES};
use remanence_kv::Options;
use remanence_kv::server::Stats;

struct Sums {
    stats: Stats,
    crashes: usize,
    kills: usize,
}

fn run(few: u64, weather: Weather, options: Options) -> Sums {
    let mut sums = Sums { stats: Stats::default(), crashes: 0, kills: 0 };
    for seed in remanence_effort::seeds(few) {
        let story = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, weather, options);
            world.run();
            world
        });
        let world = story.unwrap_or_else(|panic| {
            eprintln!("seed {seed}: {} repeats it", remanence_effort::replay(seed));
            std::panic::resume_unwind(panic)
        });
        let stats = world.stats;
        assert_eq!(stats.damaged, 0, "seed {seed}: nothing rots here");
        sums.stats.given_up += stats.given_up;
        sums.stats.objects_moved += stats.objects_moved;
        sums.stats.entries_moved += stats.entries_moved;
        sums.stats.regions_freed += stats.regions_freed;
        sums.stats.grown += stats.grown;
        sums.stats.fenced += stats.fenced;
        sums.stats.unfinished += stats.unfinished;
        sums.crashes += world.crashes;
        sums.kills += world.kills;
    }
    println!("{:?}, {} crashes, {} kills", sums.stats, sums.crashes, sums.kills);
    sums
}

#[test]
fn in_calm_weather_every_history_is_linearizable() {
    let sums = run(30, CALM, Options { clean_by_itself: true, ..DURABLE });
    if !remanence_effort::are_all() {
        return;
    }
    let stats = sums.stats;
    assert!(stats.objects_moved > 100 && stats.grown > 5 && stats.entries_moved > 100, "{stats:?}");
    assert!(stats.regions_freed > 20 && stats.unfinished > 10, "{stats:?}");
}

#[test]
fn in_a_storm_histories_are_durably_linearizable() {
    let sums = run(40, STORM, Options { clean_by_itself: true, lease: 60, ..DURABLE });
    run(20, STORM, Options { clean_by_itself: true, lease: 60, ..DEFERRED });
    run(20, STORM, Options { clean_by_itself: true, lease: 60, ..INLINE });
    run(20, STORM, Options { clean_by_itself: true, lease: 60, ..INLINE_LINES });
    if !remanence_effort::are_all() {
        return;
    }
    let stats = sums.stats;
    assert!(sums.crashes > 10 && sums.kills > 50, "{} crashes, {} kills", sums.crashes, sums.kills);
    assert!(stats.given_up > 10 && stats.fenced > 5, "{stats:?}");
}

#[test]
fn mode_erda_is_linearizable_between_crashes_and_never_torn() {
    let sums = run(30, STORM, Options { clean_by_itself: true, lease: 60, ..ERDA });
    assert!(sums.crashes > 10 || !remanence_effort::are_all());
}
