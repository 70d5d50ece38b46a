//! Whole clusters under a seed: what clients saw is checked for linearizability, across crashes too.
//!
//! `REMANENCE_KV_SEEDS=from..to` runs others than the few of every test run; a failure names its seed.

mod common;

use common::world::{Weather, World};
use common::{DURABLE, ERDA};
use remanence_kv::Options;
use remanence_kv::server::Stats;

const CALM: Weather =
    Weather { clients: 4, keys: 40, operations: 300, crash: 0, kill: 0, clean: 150, resize: 500, slow: 0 };
const STORM: Weather = Weather { crash: 700, kill: 250, slow: 40, ..CALM };

fn seeds(few: u64) -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("REMANENCE_KV_SEEDS") else { return 0..few };
    let (from, to) = asked.split_once("..").expect("REMANENCE_KV_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

struct Sums {
    stats: Stats,
    crashes: usize,
    kills: usize,
}

fn run(few: u64, weather: Weather, options: Options) -> Sums {
    let mut sums = Sums { stats: Stats::default(), crashes: 0, kills: 0 };
    for seed in seeds(few) {
        let story = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, weather, options);
            world.run();
            world
        });
        let world = story.unwrap_or_else(|panic| {
            eprintln!("seed {seed}: REMANENCE_KV_SEEDS={seed}..{} repeats it", seed + 1);
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
    let stats = sums.stats;
    assert!(stats.objects_moved > 100 && stats.grown > 5 && stats.entries_moved > 100, "{stats:?}");
    assert!(stats.regions_freed > 20 && stats.unfinished > 10, "{stats:?}");
}

#[test]
fn in_a_storm_histories_are_durably_linearizable() {
    let sums = run(40, STORM, Options { clean_by_itself: true, lease: 60, ..DURABLE });
    let stats = sums.stats;
    assert!(sums.crashes > 10 && sums.kills > 50, "{} crashes, {} kills", sums.crashes, sums.kills);
    assert!(stats.given_up > 10 && stats.fenced > 5, "{stats:?}");
}

#[test]
fn mode_erda_is_linearizable_between_crashes_and_never_torn() {
    let sums = run(30, STORM, Options { clean_by_itself: true, lease: 60, ..ERDA });
    assert!(sums.crashes > 10);
}
