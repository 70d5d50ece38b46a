//! What is damaged is named, with what is safe; what a crash may leave is not taken for damage.

use proptest::prelude::*;
use remanence_coord::log::error::{Fault, Proof};
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::format::{DATA_AT, VERSION};
use remanence_coord::log::walk::Local;
use remanence_coord::log::{
    AppendError, Epoch, Geometry, Make, Mode, OpenError, Reader, Refused, Store, Updates, Writer,
};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

const EPOCH: Epoch = Epoch::new(1, 1);

fn log(mode: Mode, segment: u64, segments: u64) -> (CrashImage, Writer) {
    let geometry = Geometry::new(DATA_AT + segments * segment, segment).expect("fair");
    let image = CrashImage::new(geometry.size, PersistenceDomain::Adr);
    let make = Make { mode, geometry, uuid: Uuid([9; 16]), salt: 3 };
    let mut store = Store::create(&image, &make).expect("fair");
    let writer = Writer::new(store.grant(EPOCH).expect("the first").writer_grant(), EPOCH);
    drop(store);
    (image, writer)
}

fn carry_out(image: &CrashImage, updates: &Updates) {
    for (offset, bytes) in updates.list() {
        image.write(offset, bytes);
        image.persist(offset..offset + bytes.len() as u64).expect("memory");
    }
}

fn append(image: &CrashImage, writer: &mut Writer, payload: &[u8]) -> u64 {
    let updates = writer.append(payload).expect("room");
    carry_out(image, &updates);
    writer.acknowledged(writer.next());
    updates.offset
}

#[test]
fn a_damaged_record_in_the_middle_is_named_with_what_is_safe() {
    for mode in Mode::ALL {
        let (image, mut writer) = log(mode, 4096, 4);
        let offsets: Vec<u64> = (0..9).map(|n| append(&image, &mut writer, &[n; 40])).collect();
        let at = offsets[5] + 40;
        image.write(at, &[0xee]);
        image.persist(at..at + 1).expect("memory");
        let mut store = Store::open(&image).expect("the rest can be read");
        let damage = *store.damage().expect("it is found");
        assert_eq!((damage.sequence, damage.first, damage.offset), (5, 0, offsets[5]));
        assert_eq!(damage.fault, Fault::Checksum);
        let proof = if mode == Mode::Compound { Proof::Tail } else { Proof::Later { sequence: 7 } };
        assert!(damage.proof == proof || matches!(damage.proof, Proof::Later { .. }), "{damage}");
        let said = damage.to_string();
        assert!(said.contains("records 0 to 4 are whole and safe") && said.contains("--cut 5"), "{said}");
        assert!(said.contains("only server") && !said.contains("rebuil"), "nobody can rebuild it: {said}");
        // A promise does not sweep it under the carpet; the records before it can still be read.
        let status = store.grant(Epoch::new(2, 1)).expect("it is told all the same");
        assert_eq!(status.damage, Some(damage));
        assert_eq!(Store::open(&image).expect("open").damage(), Some(&damage));
        assert!(matches!(store.adopt(Epoch::new(2, 1), 5, Uuid([1; 16]), 1, 1), Err(Refused::Damaged(_))));
        // Who gives the rest up gets a log that goes on.
        store.give_up_from(5).expect("it is the administrator's word");
        let mut store = Store::open(&image).expect("open");
        assert_eq!((store.damage(), store.tail().sequence), (None, 5));
        let epoch = Epoch::new(9, 1);
        let mut writer = Writer::new(store.grant(epoch).expect("higher").writer_grant(), epoch);
        append(&image, &mut writer, b"on we go");
        let store = Store::open(&image).expect("open");
        assert_eq!((store.damage(), store.tail().sequence), (None, 6));
    }
}

#[test]
fn who_can_rebuild_a_damaged_server_is_said_as_it_is() {
    for (members, acks, expected) in [
        (1, 1, "the log's only server"),
        (3, 1, "cannot stand in"),
        (2, 2, "this one is rebuilt"),
        (3, 2, "this one is rebuilt"),
    ] {
        let (image, mut writer) = log(Mode::Singleton, 4096, 4);
        let offset = append(&image, &mut writer, &[1; 40]);
        append(&image, &mut writer, &[2; 40]);
        append(&image, &mut writer, &[3; 40]);
        let mut store = Store::open(&image).expect("whole");
        store.adopt(EPOCH, 3, Uuid([1; 16]), members, acks).expect("it promised");
        image.write(offset + 40, &[0xee]);
        let damage = *Store::open(&image).expect("the rest can be read").damage().expect("it is found");
        let said = damage.to_string();
        assert!(said.contains(expected) && said.contains("--cut 0"), "{members} {acks}: {said}");
        assert_eq!(said.contains("rebuilt"), acks > 1, "{members} {acks}: {said}");
    }
}

/// Found by the simulation: the records of its own behind the cut proved that the one before them was missing, again and again.
#[test]
fn a_damaged_log_that_is_cut_by_the_writer_of_what_lies_behind_is_whole() {
    for (mode, resets) in Mode::ALL.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let (image, mut writer) = log(mode, 256, 8);
        let mut store = Store::open(&image).expect("whole");
        let offsets: Vec<u64> = (0..9).map(|n| append(&image, &mut writer, &[n; 40])).collect();
        store.adopt(EPOCH, 9, Uuid([1; 16]), 3, 2).expect("it promised");
        image.write(offsets[2] + 40, &[0xee]);
        let mut store = Store::open(&image).expect("the rest can be read");
        assert_eq!(store.damage().map(|damage| damage.sequence), Some(2));
        store.grant(EPOCH).expect("it has the promise");
        let status = if resets { store.reset(EPOCH, 2, EPOCH) } else { store.truncate(EPOCH, 2) };
        assert_eq!(status.expect("it has the promise").damage, None);
        for mut store in [store, Store::open(&image).expect("open")] {
            let status = store.grant(EPOCH).expect("it has the promise");
            assert_eq!((status.damage, status.tail.sequence), (None, 2), "{mode:?} {resets}");
            // It is sent again.
            let mut writer = Writer::new(status.writer_grant(), EPOCH);
            append(&image, &mut writer, &[2; 40]);
            assert_eq!(store.status().expect("memory").tail.sequence, 3, "{mode:?} {resets}");
            store.truncate(EPOCH, 2).expect("it is there");
        }
    }
}

#[test]
fn the_loss_of_the_last_record_is_noticed_where_it_can_be() {
    // In singleton mode nothing but the root record can tell it from an append that a crash cut short.
    let (image, mut writer) = log(Mode::Singleton, 4096, 4);
    let offsets: Vec<u64> = (0..4).map(|n| append(&image, &mut writer, &[n; 40])).collect();
    let cut = CrashImage::from_bytes(image.bytes(), PersistenceDomain::Adr);
    cut.write(offsets[3], &[0; 72]);
    let store = Store::open(&cut).expect("open");
    assert_eq!((store.damage(), store.tail().sequence), (None, 3));
    let mut store = Store::open(&image).expect("open");
    store.note_known(EPOCH, 4).expect("they are there");
    image.write(offsets[3], &[0; 72]);
    let damage = *Store::open(&image).expect("open").damage().expect("the root record knows");
    assert_eq!(
        (damage.sequence, damage.fault, damage.proof),
        (3, Fault::Nothing, Proof::Root { sequence: 4 })
    );

    let (image, mut writer) = log(Mode::Compound, 4096, 4);
    let offsets: Vec<u64> = (0..4).map(|n| append(&image, &mut writer, &[n; 40])).collect();
    image.write(offsets[3], &[0; 8]);
    assert_eq!(Store::open(&image).expect("open").damage().map(|d| d.sequence), Some(3));
}

/// What it cannot know is whether the last update was there: it may have been acknowledged, or cut short.
/// Whoever repairs the log decides what is given up: a promise does not.
#[test]
fn a_promise_does_not_forget_that_a_record_is_missing() {
    let (image, mut writer) = log(Mode::Singleton, 4096, 4);
    let offsets: Vec<u64> = (0..3).map(|n| append(&image, &mut writer, &[n; 40])).collect();
    Store::open(&image).expect("whole").grant(Epoch::new(8, 1)).expect("it is higher");
    // That it was there only the root record says, which has the earlier promise.
    image.write(offsets[2], &[0; 72]);
    let missing =
        || Store::open(&image).expect("the rest can be read").damage().map(|damage| damage.sequence);
    assert_eq!(missing(), Some(2));
    Store::open(&image).expect("as before").grant(Epoch::new(9, 1)).expect("it is higher");
    assert_eq!(missing(), Some(2));
}

#[test]
fn a_tail_word_that_says_less_than_it_did_is_noticed() {
    let (image, mut writer) = log(Mode::Compound, 4096, 4);
    let ends: Vec<(u64, u64)> = (0..6)
        .map(|n| {
            let updates = writer.append(&[n; 40]).expect("room");
            carry_out(&image, &updates);
            writer.acknowledged(writer.next());
            let (word, bytes) = updates.tail.expect("there is a word");
            (word, u64::from_le_bytes(bytes))
        })
        .collect();
    for (n, (word, end)) in ends.into_iter().enumerate() {
        image.write(word, &end.to_le_bytes());
        let found = Store::open(&image).expect("the rest can be read").damage().map(|damage| {
            assert_eq!(damage.fault, Fault::Tail);
            (damage.sequence, damage.proof)
        });
        let (next, later) = (n as u64 + 1, n as u64 + 2);
        let expected = (next < 5).then_some((next, Proof::Later { sequence: later }));
        assert_eq!(found, expected, "{next} records by the word");
    }
}

#[test]
fn half_a_record_is_the_end_of_the_log() {
    let (image, mut writer) = log(Mode::Singleton, 4096, 4);
    append(&image, &mut writer, b"whole");
    let updates = writer.append(&[7; 100]).expect("room");
    for half in 1..updates.records.len() {
        let torn = CrashImage::from_bytes(image.bytes(), PersistenceDomain::Adr);
        torn.write(updates.offset, &updates.records[..half]);
        let store = Store::open(&torn).expect("open");
        // The last bytes are padding: zeros, as is what they are written over.
        let whole = updates.records[half..].iter().all(|byte| *byte == 0);
        assert_eq!((store.damage(), store.tail().sequence), (None, 1 + u64::from(whole)), "{half} bytes");
    }
}

#[test]
fn logs_of_another_version_or_that_lost_their_roots_are_refused_with_a_sentence() {
    let (image, _) = log(Mode::Singleton, 4096, 4);
    let with = |at: u64, bytes: &[u8]| {
        let other = CrashImage::from_bytes(image.bytes(), PersistenceDomain::Adr);
        other.write(at, bytes);
        Store::open(&other).expect_err("refused")
    };
    let other = with(8, &(VERSION + 1).to_le_bytes());
    assert_eq!(other, OpenError::OtherVersion { found: VERSION + 1 });
    assert!(other.to_string().contains("nothing was changed"), "{other}");
    assert_eq!(with(50, &[0xff]), OpenError::SuperblockDamaged);
    assert_eq!(with(4096, &[0xff; 8192]), OpenError::RootDamaged);
    assert_eq!(with(0, b"SQLite format 3"), OpenError::NotALog);
}

/// Both copies of the root say the same: that of an older state would listen to an older writer again.
#[test]
fn a_damaged_copy_of_the_root_takes_no_promise_back() {
    let (image, _) = log(Mode::Singleton, 256, 4);
    let (older, newer) = (Epoch::new(50, 1), Epoch::new(51, 2));
    let mut store = Store::open(&image).expect("sound");
    store.grant(older).expect("memory");
    store.grant(newer).expect("memory");
    drop(store);
    let good = image.bytes();
    for copy in [4096, 8192] {
        let bad = CrashImage::from_bytes(good.clone(), PersistenceDomain::Adr);
        bad.write(copy + 40, &[0xEE; 8]);
        let mut store = Store::open(&bad).expect("one copy is whole");
        assert_eq!(store.state().promised, newer, "the copy at {copy} is damaged");
        assert!(store.grant(older).is_err());
    }
}

#[test]
fn a_log_takes_what_it_can_and_says_what_it_cannot() {
    let (image, mut writer) = log(Mode::Singleton, 256, 4);
    assert_eq!(writer.append(&[1; 225]), Err(AppendError::TooLong { len: 225, max: 224 }));
    assert_eq!(append(&image, &mut writer, &[]), DATA_AT, "a record may be empty");
    assert_eq!(append(&image, &mut writer, &[1; 224]), DATA_AT + 256, "the longest fills a segment");
    append(&image, &mut writer, &[2; 224]);
    append(&image, &mut writer, &[3; 224]);
    let full = writer.append(&[]);
    assert_eq!(full, Err(AppendError::Full { needed: 32, free: 0 }));
    assert_eq!((writer.next(), writer.free()), (4, 0), "nothing has changed");
    // Room comes back when records are trimmed, and only theirs.
    let mut store = Store::open(&image).expect("open");
    assert!(matches!(store.trim(5), Err(Refused::NotThere { asked: 5, first: 0, next: 4 })));
    let status = store.trim(1).expect("it is there");
    writer.trimmed(status.state.head.position);
    assert!(
        matches!(writer.append(&[1; 224]), Err(AppendError::Full { .. })),
        "the segment is not free as a whole"
    );
    let status = store.trim(2).expect("it is there");
    writer.trimmed(status.state.head.position);
    append(&image, &mut writer, &[4; 200]);
    let store = Store::open(&image).expect("open");
    assert_eq!((store.damage(), store.state().head.sequence, store.tail().sequence), (None, 2, 5));
}

#[test]
fn a_record_that_was_cut_off_does_not_come_back_where_the_next_one_went_to_another_segment() {
    for mode in Mode::ALL {
        for (cut_off, long) in [(30, 120), (120, 30)] {
            let (image, mut writer) = log(mode, 256, 4);
            append(&image, &mut writer, &[1; 100]);
            // Number 1 is written, short or long, and not chosen; then its other form goes to the other place.
            append(&image, &mut writer, &vec![2; cut_off]);
            let mut store = Store::open(&image).expect("open");
            for (counter, number) in [(2, 1), (3, 2)] {
                let epoch = Epoch::new(counter, 1);
                store.grant(epoch).expect("higher");
                let status = store.truncate(epoch, number).expect("it is there");
                let mut writer = Writer::new(status.writer_grant(), epoch);
                append(&image, &mut writer, &vec![10 + number as u8; if number == 1 { long } else { 1 }]);
                store.status().expect("memory");
            }
            // Even if it is lost: then the loss is seen, and nothing else taken for it.
            let mut store = Store::open(&image).expect("open");
            assert_eq!((store.damage(), store.tail().sequence), (None, 3), "{mode:?} {cut_off}");
            let status = store.status().expect("memory");
            let mut reader = Reader::new(&status);
            for expected in [vec![1; 100], vec![11; long], vec![12; 1]] {
                let Ok(found) = reader.read(&mut Local(&&image));
                let (found, bytes) = found.expect("whole");
                assert_eq!(bytes, expected);
                if found.header.sequence == 1 {
                    image.write(status.superblock.geometry.offset(found.position) + 33, &[0x77]);
                }
            }
            assert_eq!(Store::open(&image).expect("open").damage().map(|d| d.sequence), Some(1));
        }
    }
}

#[test]
fn what_was_cut_off_behind_a_copy_of_an_older_record_stays_dead() {
    let geometry = Geometry::new(DATA_AT + 4 * 4096, 4096).expect("fair");
    let image = CrashImage::new(geometry.size, PersistenceDomain::Adr);
    let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([9; 16]), salt: 3 };
    let mut store = Store::create(&image, &make).expect("fair");
    let (older, first, second) = (Epoch::new(1, 0), Epoch::new(1, 1), Epoch::new(2, 1));
    let mut writer = Writer::new(store.grant(first).expect("the first").writer_grant(), first);
    carry_out(&image, &writer.append_copy(older, &[0; 40]).expect("room"));
    append(&image, &mut writer, &[1; 40]);
    append(&image, &mut writer, &[2; 40]);
    // Another log was chosen, of a writer whose epoch is lower: the copy ends where number 2 of before begins.
    store.grant(second).expect("higher");
    let status = store.truncate(second, 1).expect("it is there");
    let mut writer = Writer::new(status.writer_grant(), second);
    carry_out(&image, &writer.append_copy(older, &[7; 40]).expect("room"));
    let store = Store::open(&image).expect("open");
    assert_eq!((store.damage(), store.tail().sequence), (None, 2), "only the stamp tells them apart");
}

#[test]
fn an_older_writer_is_refused() {
    let (image, _) = log(Mode::Singleton, 4096, 4);
    let mut store = Store::open(&image).expect("open");
    let fenced = Refused::Fenced { promised: EPOCH };
    assert_eq!(store.grant(Epoch::new(1, 7)), Err(fenced), "one counter, one writer");
    store.grant(Epoch::new(2, 7)).expect("higher");
    let fenced = Err(Refused::Fenced { promised: Epoch::new(2, 7) });
    assert_eq!(store.truncate(EPOCH, 0), fenced);
    assert_eq!(store.reset(EPOCH, 0, Epoch::NONE), fenced);
    assert_eq!(store.adopt(EPOCH, 0, Uuid([1; 16]), 1, 1), fenced);
    assert_eq!(store.note_known(EPOCH, 0), fenced);
}

#[test]
fn a_failed_medium_ends_everything() {
    let (image, mut writer) = log(Mode::Singleton, 4096, 4);
    let mut store = Store::open(&image).expect("open");
    append(&image, &mut writer, b"x");
    image.fail_after_psyncs(0);
    assert!(matches!(store.status(), Err(Refused::Medium(_))));
    assert!(matches!(store.grant(Epoch::new(2, 1)), Err(Refused::Medium(_))));
}

#[derive(Clone, Debug)]
enum Op {
    Append(usize),
    Batch(Vec<usize>),
    Trim(u8),
    Reopen,
    NewWriter,
    Lost(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![0..20_usize, 200..225_usize, 0..225_usize];
    let op = prop_oneof![
        6 => len.clone().prop_map(Op::Append),
        2 => prop::collection::vec(len.clone(), 1..6).prop_map(Op::Batch),
        3 => any::<u8>().prop_map(Op::Trim),
        1 => Just(Op::Reopen),
        1 => Just(Op::NewWriter),
        1 => len.prop_map(Op::Lost),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Against a deque: appends, batches, trims, changes of the writer, appends that were lost; around the ring many times.
    #[test]
    fn the_log_is_a_queue(ops in ops(), compound in any::<bool>()) {
        let mode = if compound { Mode::Compound } else { Mode::Singleton };
        let (image, mut writer) = log(mode, 256, 3);
        let mut store = Store::open(&image).expect("open");
        let mut model: std::collections::VecDeque<Vec<u8>> = std::collections::VecDeque::new();
        let mut first = 0_u64;
        let mut counter = 1;
        let mut fill = 0_u8;
        for op in ops {
            fill = fill.wrapping_add(1);
            match op {
                Op::Append(len) => {
                    if let Ok(updates) = writer.append(&vec![fill; len]) {
                        carry_out(&image, &updates);
                        writer.acknowledged(writer.next());
                        model.push_back(vec![fill; len]);
                    }
                }
                Op::Batch(lens) => {
                    let payloads: Vec<Vec<u8>> = lens.iter().map(|len| vec![fill; *len]).collect();
                    let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
                    if let Ok(updates) = writer.append_batch(&slices) {
                        carry_out(&image, &updates);
                        writer.acknowledged(writer.next());
                        let count = (updates.sequences.1 - updates.sequences.0) as usize;
                        prop_assert!(count >= 1);
                        model.extend(payloads.into_iter().take(count));
                    }
                }
                Op::Trim(part) => {
                    let below = first + model.len() as u64 * u64::from(part) / 255;
                    let status = store.trim(below).expect("they are there");
                    writer.trimmed(status.state.head.position);
                    model.drain(..(below - first) as usize);
                    first = below;
                }
                Op::Reopen => {
                    drop(store);
                    store = Store::open(&image).expect("open");
                }
                Op::NewWriter | Op::Lost(_) => {
                    if let Op::Lost(len) = op {
                        // Two appends, of which the first is lost: the second one must never count.
                        if writer.append(&vec![fill; len]).is_ok()
                            && let Ok(updates) = writer.append(&[0xdd; 9])
                        {
                            image.write(updates.offset, &updates.records);
                        }
                    }
                    counter += 1;
                    let epoch = Epoch::new(counter, 1);
                    let status = store.grant(epoch).expect("higher");
                    writer = Writer::new(status.writer_grant(), epoch);
                }
            }
            let status = store.status().expect("memory");
            prop_assert_eq!(status.damage, None);
            prop_assert_eq!(status.state.head.sequence, first);
            prop_assert_eq!(status.tail.sequence, first + model.len() as u64);
            let mut reader = Reader::new(&status);
            for expected in &model {
                let Ok(found) = reader.read(&mut Local(&image));
                prop_assert_eq!(found.expect("it is there").1, &expected[..]);
            }
        }
        drop(store);
        let store = Store::open(&image).expect("open");
        prop_assert_eq!(store.damage(), None);
        prop_assert_eq!(store.tail().sequence, first + model.len() as u64);
    }
}
