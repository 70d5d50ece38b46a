//! What our checker says of histories is what Porcupine says: of the simulations', and of such that were broken on purpose.
//! `erda-paper` asks both about those of the paper's own design.
//!
//! `REMANENCE_ROUNDS=N` takes as many seeds. See `common/porcupine.rs` for what this takes.

use crate::common;

use common::porcupine::{Named, Porcupine};
use common::world::{CALM, STORM, Weather, World};
use common::{DEFERRED, DURABLE, ERDA, INLINE, INLINE_LINES};
use remanence_kv::Options;
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_sim::history::{History, Kind, State};

fn simulated(few: u64) -> Vec<Named> {
    let weathers: [(&str, Weather, Options); 6] = [
        ("calm", CALM, Options { clean_by_itself: true, ..DURABLE }),
        ("storm", STORM, Options { clean_by_itself: true, lease: 60, ..DURABLE }),
        ("deferred", STORM, Options { clean_by_itself: true, lease: 60, ..DEFERRED }),
        ("inline", STORM, Options { clean_by_itself: true, lease: 60, ..INLINE }),
        ("inline lines", STORM, Options { clean_by_itself: true, lease: 60, ..INLINE_LINES }),
        ("erda", STORM, Options { clean_by_itself: true, lease: 60, ..ERDA }),
    ];
    let mut all = Vec::new();
    for (name, weather, options) in weathers {
        for seed in 0..remanence_effort::rounds(few, 20 * few) {
            let mut world = World::new(seed, weather, options);
            world.run();
            for (part, (key, history)) in world.checked.into_iter().enumerate() {
                all.push(Named { run: format!("{name} {seed} {part}"), key, history });
            }
        }
    }
    all
}

/// One thing about the history becomes another.
fn broken(history: &History, choices: &mut Seeded) -> History {
    let mut history = history.clone();
    let states: Vec<State> = history
        .events
        .iter()
        .filter_map(|event| match event.kind {
            Kind::Write(state) | Kind::Swap(_, state) => Some(state),
            Kind::Read(_) | Kind::NoSwap(_) => None,
        })
        .chain([0, history.start])
        .collect();
    let n = choices.pick(history.events.len());
    let event = &mut history.events[n];
    match choices.pick(5) {
        0 => drop(history.events.remove(n)),
        1 => event.maybe = false,
        2 => {
            let later = 1 + choices.pick(200) as u64;
            (event.invoked, event.returned) = (event.invoked + later, event.returned + later);
        }
        3 => event.returned = event.invoked,
        _ => {
            let other = states[choices.pick(states.len())];
            event.kind = match event.kind {
                Kind::Read(_) => Kind::Read(other),
                Kind::Write(_) => Kind::Write(other),
                Kind::Swap(_, new) => Kind::Swap(other, new),
                Kind::NoSwap(_) => Kind::NoSwap(other),
            };
        }
    }
    history
}

#[test]
fn porcupine_agrees_about_every_history() {
    let dir = std::env::temp_dir().join(format!("remanence-porcupine-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let Some(porcupine) = Porcupine::build(&dir) else { return };

    let good = simulated(8);
    let (could, could_not) = porcupine.agrees(&good);
    assert_eq!(could_not, 0);
    println!(
        "ours: {could} histories of {} operations",
        good.iter().map(|h| h.history.events.len()).sum::<usize>()
    );

    let mut choices = Seeded::new(7);
    let of_substance = good.iter().filter(|named| named.history.events.len() > 8);
    let broken: Vec<Named> = of_substance
        .flat_map(|named| (0..2).map(move |n| (named, n)))
        .map(|(Named { run, key, history }, n)| {
            let history = broken(history, &mut choices);
            Named { run: format!("{run} broken {n}"), key: key.clone(), history }
        })
        .collect();
    let (could, could_not) = porcupine.agrees(&broken);
    println!("broken on purpose: {could} still could have been, {could_not} could not");
    assert!(
        could_not > broken.len() / 8 || broken.len() < 100,
        "most ways to break a history show: {could_not} of {}",
        broken.len()
    );
    std::fs::remove_dir_all(&dir).expect("it was ours");
}
