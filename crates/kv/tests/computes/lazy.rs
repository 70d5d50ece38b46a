//! Every outcome of a crash at every step of every operation, of cleaning and of resizing, explored lazily: only what recovery
//! reads is decided (`remanence_pmem::crash_image::Lazy`). `tests/computes/crash.rs` draws samples of the same outcomes where they are
//! too many to enumerate, and goes on to work on what it finds.

use crate::common;

use common::ops::{
    Workload, chunks, cleaning, contents, dying_clients, every_operation, fair, few_changes, for_mode_erda,
    growing, prepared, resizing, run_all, together, works_on,
};
use common::{DEFERRED, DURABLE, ERDA};
use remanence_kv::format::{DIRECTORY, RegionKind, RegionWord, Superblock};
use remanence_kv::{Options, Server};
use remanence_pmem::crash_image::{CrashImage, Explorer, LazyReport};
use remanence_pmem::{Medium, PersistenceDomain};

/// Logs are what checksums guard.
fn logs(image: &CrashImage) -> impl Fn(u64) -> bool + use<> {
    let mut first = [0; 4096];
    image.read(0, &mut first);
    let geometry = Superblock::parse(&first, image.len()).expect("a store").geometry;
    let kind = |region| {
        let word = u64::from_le(image.load_u64(DIRECTORY + 8 * u64::from(region)));
        RegionWord::parse(word).expect("a region's word").kind
    };
    let logs: Vec<_> = (0..geometry.regions()).filter(|region| kind(*region) == RegionKind::Log).collect();
    move |offset| {
        logs.iter()
            .any(|log| (geometry.region(*log)..geometry.region(*log) + geometry.region_len).contains(&offset))
    }
}

fn explore(what: &str, options: Options, domain: PersistenceDomain, (prepare, ops): &Workload) -> LazyReport {
    let (prepared, after) = prepared(options, domain, prepare, ops);
    let explorer = Explorer { ways_max: 100_000, ..Explorer::default() };
    let mut count = 0;
    let report = explorer.run_lazily(
        &prepared,
        |image| run_all(image, options, ops),
        logs,
        |crashed, notes| {
            let found = contents(crashed, options);
            fair(&after, notes, &found, options);
            count += 1;
            if count % 64 == 0 {
                works_on(&crashed.completed(), options);
            }
        },
    );
    println!(
        "{what}, {domain}: {} steps, {} executions (at most {}), in place of {:.2e} outcomes (at most {:.2e} of {} words)",
        report.steps,
        report.executions,
        report.executions_max,
        report.outcomes,
        report.outcomes_max,
        report.undecided_max
    );
    assert!(report.steps > ops.len() && report.executions > report.steps, "{report:?}");
    report
}

#[test]
fn every_operation_in_every_outcome() {
    explore("operations", DURABLE, PersistenceDomain::Adr, &every_operation());
    explore("operations", DURABLE, PersistenceDomain::PageCache, &every_operation());
    explore("operations, deferred", DEFERRED, PersistenceDomain::PageCache, &every_operation());
}

#[test]
fn values_that_are_written_together_in_every_outcome() {
    explore("together", DURABLE, PersistenceDomain::Adr, &together());
    explore("together", DURABLE, PersistenceDomain::PageCache, &together());
    explore("together", DEFERRED, PersistenceDomain::Adr, &together());
    explore("changes", DURABLE, PersistenceDomain::Adr, &few_changes());
    explore("changes", DEFERRED, PersistenceDomain::PageCache, &few_changes());
}

#[test]
fn clients_that_die_within_their_write_in_every_outcome() {
    explore("dying clients", DURABLE, PersistenceDomain::Adr, &dying_clients());
}

#[test]
fn values_in_chunks_in_every_outcome() {
    explore("chunks", DURABLE, PersistenceDomain::Adr, &chunks());
}

#[test]
fn cleaning_in_every_outcome() {
    explore("cleaning", DURABLE, PersistenceDomain::Adr, &cleaning());
}

#[test]
fn resizing_and_displacement_in_every_outcome() {
    explore("resizing", DURABLE, PersistenceDomain::Adr, &resizing());
}

#[test]
fn new_keys_that_come_together_while_the_table_grows_in_every_outcome() {
    explore("growing", DEFERRED, PersistenceDomain::Adr, &growing(4, 2));
}

#[test]
fn mode_erda_in_every_outcome() {
    explore("mode erda", ERDA, PersistenceDomain::Adr, &for_mode_erda());
}

#[test]
fn recovery_is_crashed_too_and_finds_the_same_in_the_end() {
    let (mut starts, mut pending, mut doubled, mut executions) = (0, 0, 0, 0);
    for (prepare, ops) in [dying_clients(), cleaning(), resizing(), chunks()] {
        let (prepared, _) = prepared(DURABLE, PersistenceDomain::Adr, &prepare, &ops);
        // What a crash left, drawn by a seed at every step; a part of it.
        let mut left = Vec::new();
        let gentle = Explorer { ways_max: 1, samples: 1, seed: 3, ..Explorer::default() };
        let keep = |crashed: &CrashImage, _: &[u64]| left.push(crashed.bytes());
        gentle.run(&prepared, |image| run_all(image, DURABLE, &ops), keep);
        for bytes in left.into_iter().step_by(4) {
            let start = CrashImage::from_bytes(bytes, PersistenceDomain::Adr);
            let (_, recovered) = Server::open(&start.clone(), DURABLE).expect("a crash is no damage");
            if recovered.pending + recovered.doubled == 0 {
                continue;
            }
            let expected = contents(&start.clone(), DURABLE);
            (starts, pending, doubled) =
                (starts + 1, pending + recovered.pending, doubled + recovered.doubled);
            let report = Explorer { ways_max: 100_000, ..Explorer::default() }.run_lazily(
                &start,
                |image| drop(Server::open(image, DURABLE).expect("a crash is no damage")),
                logs,
                |crashed, _| assert_eq!(contents(crashed, DURABLE), expected),
            );
            executions += report.executions;
        }
    }
    println!(
        "recovery: {starts} starts with {pending} pending and {doubled} doubled entries, {executions} executions"
    );
    assert!(starts > 100 && pending > 100 && doubled > 20);
}
