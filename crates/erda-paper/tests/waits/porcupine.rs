//! What our checker says of the histories of the paper's own design, which cannot be had by a register, is what Porcupine says.
//! `kv/tests/waits/porcupine.rs` has those of ours, and `kv/tests/common/porcupine.rs` what this takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checker::{Named, Porcupine};
use remanence_erda_paper::paper::{self, Paper, Sizes};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};
use remanence_sim::history::{Event, History, Kind, State};

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

/// Clients of the paper's own design under a seed, as the simulations of `kv` have them of ours.
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
fn porcupine_agrees_about_the_papers_histories() {
    let dir = std::env::temp_dir().join(format!("remanence-porcupine-paper-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let Some(porcupine) = Porcupine::build(&dir) else { return };
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
