//! Crashes at every step that touches the medium, in every way or in many, then recovers and looks at every byte.
//!
//! The oracle: after a crash the pool holds exactly what had been acknowledged, or that and the one operation that
//! was under way, whole. `CrashImage` says what a crash may leave: any prefix of the stores to each word that no
//! `psync` covers.

use std::collections::BTreeMap;

use remanence_pmem::crash_image::{CrashImage, Explorer};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_pool::format::superblock::Uuid;
use remanence_pool::format::{BLOCK, Geometry};
use remanence_pool::{BlobName, Change, Digest, OpenError, Pool, PoolError, State, Version, recover};

const SIZE: u64 = Geometry::MIN_SIZE;
const SALT: u64 = 0x5A17;

/// Names and contents that a reader of the pool sees.
type Contents = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Debug)]
enum Op {
    Put(&'static str, Vec<u8>),
    Delete(&'static str),
    /// Several at once, in one frame: all or nothing.
    Batch(Vec<(&'static str, Vec<u8>)>),
    /// Written and made durable, never committed.
    Abandon(Vec<u8>),
    Close,
}

impl Op {
    fn apply(&self, contents: &mut Contents) {
        match self {
            Self::Put(name, data) => drop(contents.insert((*name).into(), data.clone())),
            Self::Delete(name) => drop(contents.remove(*name)),
            Self::Batch(puts) => {
                puts.iter().for_each(|(name, data)| drop(contents.insert((*name).into(), data.clone())))
            }
            Self::Abandon(_) | Self::Close => {}
        }
    }

    /// Does it; `careless` forgets to make the data durable, which the crashes must find out.
    fn run(&self, pool: &mut Pool<&CrashImage>, careless: bool) -> Result<(), PoolError> {
        match self {
            Self::Put(name, data) => {
                let put = prepare(pool, name, data, careless)?;
                pool.commit(&[put])?.remove(0).map(drop)
            }
            Self::Delete(name) => {
                let name = BlobName::new(name).expect("fair");
                let version = pool.version(&name).next(1);
                pool.commit(&[Change::Delete { name, version }])?.remove(0).map(drop)
            }
            Self::Batch(puts) => {
                let mut changes = Vec::new();
                for (n, (name, data)) in puts.iter().enumerate() {
                    let mut put = prepare(pool, name, data, careless)?;
                    if let Change::Put { version, .. } = &mut put {
                        version.writer += n as u64; // a name may be there twice
                    }
                    changes.push(put);
                }
                pool.commit(&changes)?.into_iter().try_for_each(|verdict| verdict.map(drop))
            }
            Self::Abandon(data) => match prepare(pool, "abandoned", data, careless)? {
                Change::Put { reservation, .. } => pool.abandon(reservation),
                Change::Delete { .. } => unreachable!("prepare makes puts"),
            },
            Self::Close => pool.close(),
        }
    }
}

fn prepare(
    pool: &mut Pool<&CrashImage>,
    name: &str,
    data: &[u8],
    careless: bool,
) -> Result<Change, PoolError> {
    let name = BlobName::new(name).expect("fair");
    let version = pool.version(&name).next(1);
    let reservation = pool.reserve(name);
    let mut rest = data;
    for extent in pool.extend(reservation, data.len() as u64, 64)? {
        let (part, behind) = rest.split_at(rest.len().min((extent.blocks * BLOCK) as usize));
        let at = pool.geometry().block(extent.start);
        pool.medium().write(at, part);
        if !careless {
            pool.medium().persist(at..at + part.len() as u64).expect("memory does not fail");
        }
        rest = behind;
    }
    pool.data_durable(reservation)?;
    Ok(Change::Put { reservation, version, len: data.len() as u64, digest: Digest::of(data) })
}

/// Everything that a reader sees, each byte read and each digest compared.
fn contents<M: Medium>(pool: &Pool<M>) -> Contents {
    let live = pool.list(None).filter(|l| matches!(l.state, State::Live { .. }));
    live.map(|listing| {
        let found = pool.find(&listing.name).expect("listed");
        let mut data = Vec::new();
        for extent in &found.extents {
            let mut part = vec![0; (extent.blocks * BLOCK) as usize];
            pool.medium().read(pool.geometry().block(extent.start), &mut part);
            data.extend(part);
        }
        data.truncate(found.len as usize);
        assert_eq!(Digest::of(&data), found.digest, "{:?} has other bytes than were committed", listing.name);
        (listing.name.to_string(), data)
    })
    .collect()
}

fn data(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (seed.wrapping_mul(0x9E37_79B9).wrapping_add(n * 13) >> 3) as u8 | 1).collect()
}

fn empty_pool(domain: PersistenceDomain) -> CrashImage {
    let image = CrashImage::new(SIZE, domain);
    Pool::create(&image, Uuid([3; 16]), SALT).expect("a fair size");
    image
}

/// Crashes `ops` everywhere; the notes are how many operations were acknowledged.
fn explore(explorer: Explorer, domain: PersistenceDomain, ops: &[Op], careless: bool) {
    let mut after = vec![Contents::new()];
    for op in ops {
        let mut next = after.last().expect("the start").clone();
        op.apply(&mut next);
        after.push(next);
    }
    let report = explorer.run(
        &empty_pool(domain),
        |image| {
            let mut pool = recover(image).expect("an empty pool");
            for (n, op) in ops.iter().enumerate() {
                op.run(&mut pool, careless).expect("there is room");
                image.note(n as u64 + 1);
            }
        },
        |crashed, notes| {
            let acknowledged = notes.len();
            let pool = recover(crashed).expect("a crash is no damage");
            let found = contents(&pool);
            let whole = found == after[acknowledged];
            let under_way = after.get(acknowledged + 1).is_some_and(|next| *next == found);
            assert!(
                whole || under_way,
                "{acknowledged} operations were acknowledged, and {:?} is there",
                found.keys().collect::<Vec<_>>()
            );
            let blocks: u64 = found.values().map(|d| (d.len() as u64).div_ceil(BLOCK)).sum();
            assert_eq!(pool.usage().free, pool.usage().capacity - blocks * BLOCK, "no block is lost");
            live_on(pool, crashed, found);
        },
    );
    println!("{report:?}");
    assert!(report.steps > 2 * ops.len() && report.crashes > 10 * ops.len());
}

/// What a crash left lying about must not come back later: goes on until the catalogue has moved, and looks again.
fn live_on(mut pool: Pool<&CrashImage>, image: &CrashImage, mut expected: Contents) {
    let mut ops: Vec<Op> =
        expected.keys().filter_map(|n| LONG.iter().find(|l| *l == n)).map(|n| Op::Delete(n)).collect();
    ops.extend((0..8).map(|n| Op::Put(LONG[n % 2], data(n as u64, 40))));
    for op in ops {
        op.run(&mut pool, false).expect("there is room");
        op.apply(&mut expected);
    }
    drop(pool);
    assert_eq!(contents(&recover(image).expect("sound")), expected, "what is there much later");
}

fn story() -> Vec<Op> {
    vec![
        Op::Put("a", data(1, 5000)),
        Op::Put("b", data(2, 100)),
        Op::Put("a", data(3, 4097)),
        Op::Abandon(data(4, 9000)),
        Op::Batch(vec![("b", data(5, 300)), ("c", data(6, 4096)), ("b", data(7, 10))]),
        Op::Delete("a"),
        Op::Put("empty", vec![]),
        Op::Close,
        Op::Put("a", data(8, 12_000)),
        Op::Delete("c"),
    ]
}

#[test]
fn a_crash_at_any_step_leaves_what_was_acknowledged_on_persistent_memory() {
    let explorer = Explorer { ways_max: 128, samples: 128, ..Explorer::default() };
    explore(explorer, PersistenceDomain::Adr, &story(), false);
}

#[test]
fn a_crash_at_any_step_leaves_what_was_acknowledged_on_a_page_cache() {
    let explorer = Explorer { ways_max: 128, samples: 128, ..Explorer::default() };
    explore(explorer, PersistenceDomain::PageCache, &story(), false);
}

#[test]
#[should_panic(expected = "other bytes than were committed")]
fn data_that_was_not_made_durable_before_its_commit_is_found_out() {
    explore(
        Explorer { ways_max: 16, samples: 16, ..Explorer::default() },
        PersistenceDomain::Adr,
        &story(),
        true,
    );
}

/// Names long enough that the catalogue moves to the other half every few commits.
const LONG: [&str; 3] = [
    "a-name-that-is-long-enough-to-fill-a-half-of-the-catalogue-in-a-few-commits-so-that-it-moves/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "a-name-that-is-long-enough-to-fill-a-half-of-the-catalogue-in-a-few-commits-so-that-it-moves/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    "c",
];

#[test]
fn moves_of_the_catalogue_survive_crashes_at_any_step() {
    for seed in 0..12_u64 {
        let mut ops = Vec::new();
        for n in 0..16_u64 {
            let pick = (seed * 7919 + n * 104_729).wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
            let name = LONG[(pick % 3) as usize];
            ops.push(match pick / 3 % 5 {
                0 if ops.iter().rev().find_map(|op| match op {
                    Op::Put(n, _) if *n == name => Some(true),
                    Op::Delete(n) if *n == name => Some(false),
                    _ => None,
                }) == Some(true) =>
                {
                    Op::Delete(name)
                }
                1 => Op::Abandon(data(n, 100)),
                _ => Op::Put(name, data(pick, (pick / 15 % 5000) as usize)),
            });
        }
        let explorer = Explorer { ways_max: 48, samples: 48, seed, ..Explorer::default() };
        explore(explorer, PersistenceDomain::Adr, &ops, false);
    }
}

#[test]
fn a_pool_is_made_whole_or_not_at_all() {
    // The worst place to make one: where an old pool was.
    let old = empty_pool(PersistenceDomain::Adr);
    let mut pool = recover(&old).expect("an empty pool");
    Op::Put("old", data(1, 5000)).run(&mut pool, false).expect("room");
    Explorer { ways_max: 256, ..Explorer::default() }.run(
        &old,
        |image| {
            Pool::create(image, Uuid([4; 16]), SALT + 1).expect("a fair size");
            image.note(1);
        },
        |crashed, notes| match recover(crashed) {
            Ok(pool) if pool.uuid() == Uuid([4; 16]) => assert_eq!(contents(&pool), Contents::new()),
            Ok(pool) => {
                assert!(notes.is_empty(), "the old pool is back after the new one was acknowledged");
                assert_eq!(contents(&pool), Contents::from([("old".into(), data(1, 5000))]));
            }
            Err(error) => {
                assert!(notes.is_empty(), "acknowledged, and then: {error}");
                let expected = matches!(
                    error,
                    OpenError::Blank
                        | OpenError::NotAPool
                        | OpenError::SuperblockDamaged
                        | OpenError::RootDamaged
                        | OpenError::OtherVersion { .. }
                );
                assert!(expected, "{error}");
            }
        },
    );
}

#[test]
fn a_crash_during_recovery_loses_nothing() {
    let start = empty_pool(PersistenceDomain::Adr);
    let mut pool = recover(&start).expect("an empty pool");
    let mut expected = Contents::new();
    for op in story() {
        op.run(&mut pool, false).expect("room");
        op.apply(&mut expected);
    }
    // One copy of the root is torn, so that recovery has something to do.
    start.write(BLOCK + 8, &[0xEE; 4]);
    start.persist(BLOCK..2 * BLOCK).expect("memory does not fail");
    Explorer { ways_max: 256, ..Explorer::default() }.run(
        &start,
        |image| drop(recover(image).expect("one root is whole")),
        |crashed, _| assert_eq!(contents(&recover(crashed).expect("one root is whole")), expected),
    );
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let names = ["a", "b", "c", "d", "e", "f"];
    for good in 0..12 {
        let image = empty_pool(PersistenceDomain::PageCache);
        let mut pool = recover(&image).expect("an empty pool");
        // Data is made durable by its own psync, so each put takes two.
        image.fail_after_psyncs(good);
        let mut acknowledged = 0;
        for (n, name) in names.iter().enumerate() {
            let put = {
                let name = BlobName::new(name).expect("fair");
                let reservation = pool.reserve(name);
                let Ok(extents) = pool.extend(reservation, 10, 64) else { continue };
                let at = pool.geometry().block(extents[0].start);
                image.write(at, &data(n as u64, 10));
                if image.persist(at..at + 10).is_err() {
                    continue;
                }
                pool.data_durable(reservation).expect("reserved");
                let digest = Digest::of(&data(n as u64, 10));
                Change::Put { reservation, version: Version { counter: 1, writer: 1 }, len: 10, digest }
            };
            match pool.commit(&[put]) {
                Ok(verdicts) => {
                    assert_eq!(verdicts.len(), 1);
                    acknowledged += 1;
                }
                Err(error) => assert!(matches!(error, PoolError::Medium(_)), "{error}"),
            }
        }
        assert_eq!(acknowledged, good / 2);
        drop(pool);
        let crashed = image.crash_seeded(remanence_pmem::crash_image::Failure::PowerLoss, good);
        let found = contents(&recover(&crashed).expect("a crash is no damage"));
        assert!(names[..acknowledged as usize].iter().all(|n| found.contains_key(*n)), "{good}: {found:?}");
    }
}

/// What a process that died has left is only visible: a recovery that acts on it, and says durably that it was there, makes it durable.
#[test]
fn what_recovery_found_after_the_death_of_a_process_survives_the_loss_of_power() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
        let image = empty_pool(domain);
        let before = image.bytes();
        let mut pool = recover(&image).expect("an empty pool");
        Op::Put("a", data(1, 5000)).run(&mut pool, false).expect("room");
        pool.promise(5000).expect("memory does not fail");
        let area = pool.geometry().data();
        drop(pool);
        let left = CrashImage::from_bytes(before.clone(), domain);
        for (at, (word, old)) in image.bytes().chunks(8).zip(before.chunks(8)).enumerate() {
            if word != old {
                left.write(8 * at as u64, word);
            }
        }
        // A client made its data durable before it asked for the commit.
        left.persist(area..left.len()).expect("memory does not fail");
        let mut pool = recover(&left).expect("a crash is no damage");
        let (found, promised) = (contents(&pool), pool.promise(0).expect("memory does not fail"));
        assert!(found.contains_key("a") && promised >= 5000);
        drop(pool);
        for seed in 0..50 {
            let after = left.crash_seeded(remanence_pmem::crash_image::Failure::PowerLoss, seed);
            let mut pool = recover(&after).expect("a crash is no damage");
            assert_eq!(contents(&pool), found, "seed {seed}");
            assert!(pool.promise(0).expect("memory does not fail") >= promised, "seed {seed}");
        }
    }
}
