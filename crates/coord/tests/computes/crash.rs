//! Crashes at every step that touches the medium, in every way or in many, then recovers and looks at every byte.
//!
//! The oracle: after a crash the log is a beginning of what was appended, in order and byte for byte; it has everything
//! that was acknowledged; and what recovery cut off never comes back, whatever is appended and lost afterwards.

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::{self, Uuid};
use remanence_coord::log::walk::Local;
use remanence_coord::log::{Epoch, Geometry, Make, Mode, OpenError, Reader, Store, Updates, Writer};
use remanence_pmem::crash_image::{CrashImage, Explorer, Failure, Report};
use remanence_pmem::{Image, Medium, PersistenceDomain};

const SEGMENT: u64 = 256;
const SIZE: u64 = DATA_AT + 4 * SEGMENT;

fn make(mode: Mode) -> Make {
    let geometry = Geometry::new(SIZE, SEGMENT).expect("fair");
    Make { mode, geometry, uuid: Uuid([9; 16]), salt: 0x5A17 }
}

/// An empty log.
fn image(mode: Mode, domain: PersistenceDomain) -> CrashImage {
    let image = CrashImage::new(SIZE, domain);
    Store::create(&image, &make(mode)).expect("a fair size");
    image
}

/// What a writer of that epoch appends under that number.
fn payload(epoch: Epoch, sequence: u64) -> Vec<u8> {
    let len = [0, 5, 64, 8, 130, 33][(sequence % 6) as usize];
    (0..len).map(|n: u64| (n * 7 + sequence * 31 + u64::from(epoch.counter()) * 101) as u8 | 1).collect()
}

/// What the writer's recipe does to the medium: the update, durable, and then the tail word, durable.
fn carry_out(image: &CrashImage, updates: &Updates) {
    for (offset, bytes) in updates.list() {
        image.write(offset, bytes);
        image.persist(offset..offset + bytes.len() as u64).expect("memory does not fail");
    }
}

/// The same with the order forgotten: a crash may keep the tail word and lose the record.
fn carry_out_carelessly(image: &CrashImage, updates: &Updates) {
    for (offset, bytes) in updates.list() {
        image.write(offset, bytes);
        image.pwb(offset..offset + bytes.len() as u64);
    }
    image.psync().expect("memory does not fail");
}

/// A note of the workload: how many records are acknowledged now, and how many trimmed.
fn note(image: &CrashImage, acknowledged: u64, trimmed: u64) {
    image.note(acknowledged << 32 | trimmed);
}

/// All records that are there, checked byte for byte; `who` says which epochs a record of that number may have.
fn contents(store: &mut Store<&CrashImage>, who: &dyn Fn(u64, Epoch) -> bool) -> std::ops::Range<u64> {
    let status = store.status().expect("memory does not fail");
    let mut reader = Reader::new(&status);
    let first = reader.next_sequence();
    while reader.next_sequence() < status.tail.sequence {
        let Ok(found) = reader.read(&mut Local(store.medium()));
        let (found, bytes) = found.expect("what was recovered is whole");
        let (sequence, epoch) = (found.header.sequence, found.header.epoch);
        assert!(who(sequence, epoch), "record {sequence} of epoch {epoch} was cut off, and is back");
        assert_eq!(bytes, payload(epoch, sequence), "record {sequence} of epoch {epoch} has other bytes");
    }
    first..reader.next_sequence()
}

/// After a crash: everything acknowledged is there, and what was cut off stays dead through a new writer's crash.
fn check(crashed: &CrashImage, notes: &[u64], old: Epoch) {
    let (acknowledged, trimmed) = notes.last().map_or((0, 0), |note| (note >> 32, note & 0xffff_ffff));
    let mut store = Store::open(crashed).expect("a crash is no damage of the whole");
    assert_eq!(store.damage(), None, "a crash is taken for damage, {acknowledged} acknowledged");
    let there = contents(&mut store, &|_, epoch| epoch <= old);
    assert!(there.end >= acknowledged, "{acknowledged} were acknowledged and {there:?} are there");
    assert!(there.start >= trimmed && (there.start == trimmed || there.start <= acknowledged), "{there:?}");

    // The next writer: whatever lies behind the end must not count, before and after it appends.
    let new = Epoch::new(store.state().promised.counter() + 1, 5);
    let status = store.grant(new).expect("a higher epoch");
    drop(store);
    let who = |sequence, epoch| if sequence < there.end { epoch <= old } else { epoch == new };
    let mut store = Store::open(crashed).expect("open");
    assert_eq!(contents(&mut store, &who), there);
    drop(store);
    let mut writer = Writer::new(status.writer_grant(), new);
    for end in there.end + 1..there.end + 3 {
        let Ok(updates) = writer.append(&payload(new, writer.next())) else { break };
        carry_out(crashed, &updates);
        writer.acknowledged(writer.next());
        let mut store = Store::open(crashed).expect("open");
        assert_eq!(store.damage(), None);
        assert_eq!(contents(&mut store, &who), there.start..end);
    }
}

fn explorer(failure: Failure) -> Explorer {
    let long = remanence_effort::Effort::asked() == remanence_effort::Effort::Night;
    Explorer {
        failure,
        ways_max: if long { 4096 } else { 256 },
        samples: if long { 2048 } else { 96 },
        ..Explorer::default()
    }
}

/// Appends, trims, changes the writer, goes around the ring twice.
fn workload(image: &CrashImage, carry: &dyn Fn(&CrashImage, &Updates)) {
    let mut store = Store::open(image).expect("an empty log");
    let (mut acknowledged, mut trimmed) = (0, 0);
    for counter in 1..=3 {
        let epoch = Epoch::new(counter, 1);
        let status = store.grant(epoch).expect("a higher epoch");
        let mut writer = Writer::new(status.writer_grant(), epoch);
        for _ in 0..6 {
            let payload = payload(epoch, writer.next());
            if writer.fits(payload.len()).is_err() {
                let below = writer.next() - 2;
                let status = store.trim(below).expect("they are there");
                trimmed = below;
                note(image, acknowledged, trimmed);
                writer.trimmed(status.state.head.position);
            }
            let updates = writer.append(&payload).expect("there is room now");
            carry(image, &updates);
            writer.acknowledged(writer.next());
            acknowledged = writer.next();
            note(image, acknowledged, trimmed);
        }
    }
}

fn explore(
    mode: Mode,
    domain: PersistenceDomain,
    failure: Failure,
    carry: &dyn Fn(&CrashImage, &Updates),
) -> Report {
    let old = Epoch::new(3, 1);
    explorer(failure).run(
        &image(mode, domain),
        |image| workload(image, carry),
        |crashed, notes| check(crashed, notes, old),
    )
}

#[test]
fn a_crash_while_a_log_is_made_leaves_a_log_or_what_is_as_good_as_blank() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Eadr, PersistenceDomain::PageCache] {
        let (mut blank, mut whole) = (0, 0);
        explorer(Failure::PowerLoss).run(
            &CrashImage::new(SIZE, domain),
            |image| drop(Store::create(image, &make(Mode::Compound)).expect("a fair size")),
            |crashed, _| match superblock::image(&crashed.bytes()[..4096], SIZE) {
                Image::Blank => {
                    blank += 1;
                    assert_eq!(Store::open(crashed).err(), Some(OpenError::Blank));
                    Store::create(crashed, &make(Mode::Singleton)).expect("a fair size");
                    assert_eq!(Store::open(crashed).expect("a log").superblock().mode, Mode::Singleton);
                }
                Image::Ours { .. } => {
                    whole += 1;
                    assert_eq!(Store::open(crashed).expect("a log").superblock().mode, Mode::Compound);
                }
                Image::Foreign => panic!("nobody makes a log of it, and nobody opens it"),
            },
        );
        assert!(blank > 10 && whole > 0, "{blank} {whole}");
    }
}

#[test]
fn a_crash_at_any_step_loses_nothing_that_was_acknowledged() {
    for mode in Mode::ALL {
        for (domain, failure) in [
            (PersistenceDomain::Adr, Failure::PowerLoss),
            (PersistenceDomain::Eadr, Failure::PowerLoss),
            (PersistenceDomain::Process, Failure::ProcessCrash),
        ] {
            let report = explore(mode, domain, failure, &carry_out);
            assert!(report.steps > 50, "{report:?}");
        }
    }
}

#[test]
fn a_page_cache_loses_nothing_that_was_acknowledged() {
    explore(Mode::Singleton, PersistenceDomain::PageCache, Failure::PowerLoss, &carry_out);
}

#[test]
fn the_exploration_finds_a_recipe_that_forgets_the_order() {
    let forgetful =
        || explore(Mode::Compound, PersistenceDomain::Adr, Failure::PowerLoss, &carry_out_carelessly);
    assert!(std::panic::catch_unwind(forgetful).is_err(), "a tail word without its record went unnoticed");
}

#[test]
fn several_appends_under_way_are_recovered_as_a_beginning() {
    let epoch = Epoch::new(1, 1);
    let report = explorer(Failure::PowerLoss).run(
        &image(Mode::Singleton, PersistenceDomain::Adr),
        |image| {
            let mut store = Store::open(image).expect("an empty log");
            let mut writer = Writer::new(store.grant(epoch).expect("the first").writer_grant(), epoch);
            for burst in 0..3 {
                let updates: Vec<Updates> =
                    (0..3).map(|_| writer.append(&payload(epoch, writer.next())).expect("room")).collect();
                // All are on their way before the first is durable, and they arrive in any order.
                for updates in updates.iter().rev() {
                    image.write(updates.offset, &updates.records);
                }
                for updates in &updates {
                    image
                        .persist(updates.offset..updates.offset + updates.records.len() as u64)
                        .expect("memory");
                    writer.acknowledged(updates.sequences.1);
                    note(image, updates.sequences.1, 0);
                }
                assert_eq!(writer.durable(), (burst + 1) * 3);
            }
        },
        |crashed, notes| check(crashed, notes, epoch),
    );
    assert!(report.crashes > 200, "{report:?}");
}

#[test]
fn a_log_that_is_being_made_is_none_or_a_whole_one() {
    let old = image(Mode::Compound, PersistenceDomain::Adr);
    explorer(Failure::PowerLoss).run(
        &old,
        |image| {
            Store::create(image, &Make { salt: 1, ..make(Mode::Singleton) }).expect("a fair size");
            image.note(1);
        },
        |crashed, notes| match Store::open(crashed) {
            Ok(store) => {
                assert_eq!((store.tail().sequence, store.damage()), (0, None));
                assert!(notes.is_empty() || store.superblock().salt == 1);
            }
            Err(error) => assert!(notes.is_empty(), "{error}"),
        },
    );
}

#[test]
fn a_truncation_or_a_reset_is_done_or_not() {
    for mode in Mode::ALL {
        let start = image(mode, PersistenceDomain::Adr);
        let epoch = Epoch::new(1, 1);
        let mut store = Store::open(&start).expect("open");
        let mut writer = Writer::new(store.grant(epoch).expect("first").writer_grant(), epoch);
        for _ in 0..4 {
            let updates = writer.append(&payload(epoch, writer.next())).expect("room");
            carry_out(&start, &updates);
            writer.acknowledged(writer.next());
        }
        drop(store);
        let new = Epoch::new(2, 1);
        explorer(Failure::PowerLoss).run(
            &start,
            |image| {
                let mut store = Store::open(image).expect("open");
                store.grant(new).expect("higher");
                image.note(1);
                store.truncate(new, 2).expect("it is there");
                image.note(2);
                store.reset(new, 9, epoch).expect("ours");
                image.note(3);
                store.adopt(new, 9, Uuid([2; 16]), 1, 1).expect("ours");
                image.note(4);
            },
            |crashed, notes| {
                let mut store = Store::open(crashed).expect("open");
                assert_eq!(store.damage(), None);
                let there = contents(&mut store, &|_, by| by == epoch);
                let steps = [0..4, 0..4, 0..2, 9..9, 9..9];
                let done = notes.len();
                assert!(
                    there == steps[done] || steps.get(done + 1) == Some(&there),
                    "{there:?} after {done} steps"
                );
                assert!(done < 4 || store.state().adopted == new);
            },
        );
    }
}
