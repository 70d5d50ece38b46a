//! What our checker says of histories is what Porcupine says: of the simulations', of such that were broken on purpose, and
//! of those of the paper's own design, which cannot be had by a register.
//!
//! `REMANENCE_ROUNDS=N` takes as many seeds. See `common/porcupine.rs` for what this takes.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::porcupine::{Named, Porcupine};
use common::world::{CALM, STORM, Weather, World};
use common::{DEFERRED, DURABLE, ERDA, INLINE, INLINE_LINES};
use remanence_kv::Options;
use remanence_kv::paper::{self, Paper, Sizes};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};
use remanence_sim::history::{Event, History, Kind, State};

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

const SIZES: Sizes = Sizes { key: 1, value: 24, entries: 4, region: 64 << 10, segment: 8 << 10, heads: 1 };

fn value(write: State) -> Vec<u8> {
    [write, write.wrapping_mul(0x9E37_79B9_7F4A_7C15), !write].iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// A write of the paper's that lands piece by piece.
struct Writing {
    key: u8,
    write: State,
    invoked: u64,
    at: u64,
    left: Vec<(usize, Vec<u8>)>,
}

/// Clients of the paper's own design under a seed, as [`World`] has them of ours.
fn of_the_papers_design(seed: u64, crash: usize) -> Vec<Named> {
    let mut choices = Seeded::new(seed);
    let mut image = Arc::new(CrashImage::new(SIZES.medium(), PersistenceDomain::Adr));
    let mut store = Paper::format(image.clone(), SIZES);
    let mut histories: BTreeMap<u8, History> = BTreeMap::new();
    let mut writing: [Option<Writing>; 3] = [None, None, None];
    let (mut tick, mut writes) = (0, 0);
    while tick < 400 {
        tick += 1;
        if crash > 0 && choices.pick(crash) == 0 {
            for (client, lost) in writing.iter_mut().enumerate() {
                let Some(Writing { key, write, invoked, .. }) = lost.take() else { continue };
                let (kind, client) = (Kind::Write(write), client as u32);
                let event = Event { kind, client, invoked, returned: tick, maybe: true };
                histories.entry(key).or_default().events.push(event);
            }
            tick += 1;
            image = Arc::new(image.crash(Failure::PowerLoss, &mut choices));
            store = Paper::recover(image.clone(), SIZES);
        }
        let client = choices.pick(writing.len());
        let slot = &mut writing[client];
        let key = choices.pick(3) as u8;
        let event = match slot.take() {
            Some(mut going) => {
                let (from, piece) = going.left.swap_remove(choices.pick(going.left.len()));
                store.client_write(going.at + from as u64, &piece);
                if !going.left.is_empty() {
                    *slot = Some(going);
                    continue;
                }
                Some((going.key, Kind::Write(going.write), going.invoked))
            }
            None if choices.pick(2) == 0 => {
                let found = store.get(&[key]);
                let number = |bytes: &[u8]| {
                    State::from_le_bytes(bytes[..8].try_into().expect("a value has its number"))
                };
                let found = found
                    .map_or(0, |bytes| if bytes == value(number(&bytes)) { number(&bytes) } else { 1 << 40 });
                Some((key, Kind::Read(found), tick))
            }
            None => {
                writes += 1;
                // After a crash an entry may name what nobody asked for, and then the table is full.
                let Some(at) = store.reserve(0, &[key]) else { continue };
                let object = paper::object(&[key], Some(&value(writes)));
                let left = object.chunks(8).enumerate().map(|(n, piece)| (n * 8, piece.to_vec())).collect();
                *slot = Some(Writing { key, write: writes, invoked: tick, at, left });
                None
            }
        };
        if let Some((key, kind, invoked)) = event {
            let client = client as u32;
            let event = Event { kind, client, invoked, returned: tick, maybe: false };
            histories.entry(key).or_default().events.push(event);
        }
    }
    for (client, going) in writing.into_iter().enumerate() {
        let Some(Writing { key, write, invoked, .. }) = going else { continue };
        let (kind, client) = (Kind::Write(write), client as u32);
        let event = Event { kind, client, invoked, returned: tick, maybe: true };
        histories.entry(key).or_default().events.push(event);
    }
    let named = |(key, history): (u8, History)| Named {
        run: format!("paper {crash} {seed}"),
        key: vec![key],
        history,
    };
    histories.into_iter().map(named).collect()
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

    for (what, crash) in [("without a crash", 0), ("with crashes", 60)] {
        let papers: Vec<Named> = (0..remanence_effort::rounds(8, 160))
            .flat_map(|seed| of_the_papers_design(seed, crash))
            .collect();
        let (could, could_not) = porcupine.agrees(&papers);
        println!("the paper's design, {what}: {could} could have been, {could_not} could not");
        assert!(could_not > papers.len() / 4 || papers.len() < 24, "{what}: its holes show");
    }
    std::fs::remove_dir_all(&dir).expect("it was ours");
}
