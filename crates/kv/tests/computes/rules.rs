//! Rules that hold even where a checksum would save the reader, each in a test of its own.
//!
//! What the server believes of what a client wrote: an object counts only if it is what the room was handed out for. The bytes
//! are whole and their checksum fits in each of these; who wrote them was given that very room.

use crate::common;

use std::sync::Arc;

use common::*;
use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::{
    Epoch, Geometry as LogGeometry, Make, Mode as LogMode, Status, Store as Log, Writer,
};
use remanence_kv::format::object::{Content, crc64, emit};
use remanence_kv::format::{Chunk, ObjectAddress};
use remanence_kv::proto::{Expect, Reply, Request, Reserved};
use remanence_kv::replica::change::Changes;
use remanence_kv::replica::keeper::LEDGER_LEN;
use remanence_kv::replica::{ImageReply, Keeper, Order};
use remanence_pmem::crash_image::{CrashImage, EveryWay, Failure};
use remanence_pmem::{Medium, PersistenceDomain};

fn reserve(client: &mut Session<'_, '_>, key: &[u8], len: u64) -> Reserved {
    let put = Request::Put { key: key.to_vec(), len, expires: 0, expect: Expect::Any };
    let Reply::Reserved(reserved) = client.call(&put) else { panic!("room") };
    reserved
}

fn place(reserved: &Reserved) -> ObjectAddress {
    ObjectAddress { salt: SALT, head: reserved.head, offset: reserved.offset, epoch: reserved.epoch }
}

/// `object` comes to lie in the room of a write of `a`, whose client then dies. What `a` has is what it had before.
fn is_not_believed(store: &Store<'_>, mut liar: Session<'_, '_>, reserved: &Reserved, object: &[u8]) {
    store.image.write_nt(reserved.at + 8, &object[8..]);
    store.image.psync().expect("memory does not fail");
    let mut honest = store.client(0);
    assert_eq!(liar.call(&Request::Confirm { versions: vec![reserved.version] }), Reply::Ok);
    store.step();
    assert_eq!(honest.value(b"a"), Some(b"before".to_vec()), "the write is not done");
    let unfinished = Reply::Refused(remanence_kv::Refusal::Unfinished);
    assert_eq!(honest.call(&Request::Settle { key: b"a".to_vec() }), unfinished);
    let id = liar.id;
    drop(liar);
    store.server.borrow_mut().disconnected(id).expect("memory does not fail");
    assert_eq!(store.server.borrow().stats().given_up, 1);
    assert_eq!(honest.value(b"a"), Some(b"before".to_vec()));
    assert_eq!(honest.put(b"a", b"after"), Ok(honest.get(b"a").expect("it is there").version));
}

fn with_a(image: &remanence_pmem::crash_image::CrashImage) -> Store<'_> {
    let store = Store::open(image, DURABLE);
    let mut honest = store.client(0);
    honest.put(b"a", b"before").expect("room");
    store.settle_down(&mut [&mut honest]);
    let id = honest.id;
    drop(honest);
    store.server.borrow_mut().disconnected(id).expect("memory does not fail");
    store
}

#[test]
fn another_keys_object_is_not_believed() {
    let image = formatted(SMALL, 16);
    let store = with_a(&image);
    let mut liar = store.client(0);
    let reserved = reserve(&mut liar, b"a", 5);
    let object = emit(&place(&reserved), reserved.version, 0, b"b", Content::Value(b"forge"));
    is_not_believed(&store, liar, &reserved, &object);
}

#[test]
fn another_version_is_not_believed() {
    let image = formatted(SMALL, 16);
    let store = with_a(&image);
    let mut liar = store.client(0);
    let reserved = reserve(&mut liar, b"a", 5);
    // One that nobody was given yet, and that would be higher than any for a long time.
    let object = emit(&place(&reserved), reserved.version + 1000, 0, b"a", Content::Value(b"forge"));
    is_not_believed(&store, liar, &reserved, &object);
}

#[test]
fn chunks_that_were_not_handed_out_are_not_believed() {
    let image = formatted(SMALL, 16);
    let store = with_a(&image);
    let mut liar = store.client(0);
    let reserved = reserve(&mut liar, b"a", 1500);
    assert!(reserved.extents.len() > 1);
    let part = |len: u32| vec![7; len as usize];
    let mut chunks: Vec<Chunk> = reserved
        .extents
        .iter()
        .map(|extent| {
            store.image.write_nt(extent.at, &part(extent.len));
            Chunk { offset: extent.offset, len: extent.len, crc: crc64(&[&part(extent.len)]) }
        })
        .collect();
    // The first one twice, and the second one nowhere: cleaning would hand its room to others.
    chunks[1] = chunks[0];
    let object = emit(&place(&reserved), reserved.version, 0, b"a", Content::Chained(&chunks));
    is_not_believed(&store, liar, &reserved, &object);
}

#[test]
fn chunks_that_were_written_in_part_are_not_believed() {
    let image = formatted(SMALL, 16);
    let store = with_a(&image);
    let mut dying = store.client(0);
    let reserved = reserve(&mut dying, b"a", 1500);
    let part = |len: u32| vec![7; len as usize];
    // The object is whole, and the last chunk does not come.
    let (last, others) = reserved.extents.split_last().expect("chunks");
    others.iter().for_each(|extent| store.image.write_nt(extent.at, &part(extent.len)));
    let chunk = |extent: &remanence_kv::proto::Extent| Chunk {
        offset: extent.offset,
        len: extent.len,
        crc: crc64(&[&part(extent.len)]),
    };
    let chunks: Vec<Chunk> = others.iter().chain([last]).map(chunk).collect();
    let object = emit(&place(&reserved), reserved.version, 0, b"a", Content::Chained(&chunks));
    is_not_believed(&store, dying, &reserved, &object);
}

#[test]
fn an_object_that_goes_on_behind_its_room_is_not_believed() {
    let image = formatted(SMALL, 16);
    let store = with_a(&image);
    let mut liar = store.client(0);
    let reserved = reserve(&mut liar, b"a", 5);
    // Whole, and its end lies where the next write will be.
    let object = emit(&place(&reserved), reserved.version, 0, b"a", Content::Value(&[7; 200]));
    is_not_believed(&store, liar, &reserved, &object);
}

#[test]
fn recovery_believes_no_other_keys_object() {
    let image = formatted(SMALL, 16);
    {
        let store = with_a(&image);
        let mut honest = store.client(0);
        honest.put(b"b", b"as it was").expect("room");
        let mut liar = store.client(0);
        let reserved = reserve(&mut liar, b"a", 5);
        let object = emit(&place(&reserved), reserved.version, 0, b"b", Content::Value(b"forge"));
        image.write_nt(reserved.at + 8, &object[8..]);
        image.psync().expect("memory does not fail");
    }
    let (_, recovered) = remanence_kv::Server::open(&image.clone(), DURABLE).expect("a store");
    assert_eq!(recovered.rolled_back, 1, "{recovered:?}");
    let store = Store::open(&image, DURABLE);
    let mut honest = store.client(0);
    assert_eq!(honest.value(b"a"), Some(b"before".to_vec()));
    assert_eq!(honest.value(b"b"), Some(b"as it was".to_vec()));
    assert_eq!(honest.keys(), [b"a".to_vec(), b"b".to_vec()]);
}

#[test]
fn memory_is_not_used_again_before_every_client_has_acknowledged_that() {
    let image = formatted(SMALL, 16);
    let store = Store::open(&image, DURABLE);
    let (mut active, mut idle) = (store.client(0), store.client(0));
    for n in 0..60 {
        active.put(&[n % 3], &value(n.into(), 100)).expect("room");
    }
    let freed = || store.server.borrow().stats().regions_freed;
    for head in 0..2 {
        if !store.server.borrow_mut().clean(head).expect("nothing is being cleaned") {
            continue;
        }
        let before = freed();
        for _ in 0..200 {
            store.step();
            active.attend();
        }
        assert_eq!(freed(), before, "one of two has not acknowledged");
        store.settle_down(&mut [&mut active, &mut idle]);
        assert!(freed() > before);
    }
    assert!(freed() > 0);
}

#[test]
fn a_table_is_not_used_again_before_every_client_has_acknowledged_that() {
    let image = formatted(SMALL, 16);
    let store = Store::open(&image, DURABLE);
    let (mut active, mut idle) = (store.client(0), store.client(0));
    for n in 0..10 {
        active.put(&[n], b"value").expect("room");
    }
    let state = || (store.server.borrow().usage().growing, store.server.borrow().stats());
    store.server.borrow_mut().resize(40).expect("room");
    for _ in 0..200 {
        store.step();
        active.attend();
    }
    assert_eq!(
        state().1.entries_moved,
        0,
        "one of two does not know yet that entries may be in either table"
    );
    idle.attend();
    for _ in 0..200 {
        store.step();
        active.attend();
    }
    let (growing, stats) = state();
    assert_eq!(
        (growing, stats.entries_moved, stats.grown),
        (true, 10, 0),
        "one of two may still read the old one"
    );
    store.settle_down(&mut [&mut active, &mut idle]);
    let (growing, stats) = state();
    assert_eq!((growing, stats.grown), (false, 1));
    assert_eq!(idle.value(&[3]), Some(b"value".to_vec()));
}

/// What a power failure leaves that keeps nothing but what a sync covers.
fn harshest(image: &CrashImage) -> CrashImage {
    image.crash(Failure::PowerLoss, &mut EveryWay::new())
}

#[test]
fn no_version_and_no_room_is_given_twice_however_often_the_power_goes() {
    // Where a reply does not wait for its entry, too: that a segment is in use is durable by itself.
    for (options, domain) in [
        (DURABLE, PersistenceDomain::Adr),
        (DEFERRED, PersistenceDomain::PageCache),
        (ERDA, PersistenceDomain::Adr),
    ] {
        nothing_is_given_twice(options, domain);
    }
}

fn nothing_is_given_twice(options: remanence_kv::Options, domain: PersistenceDomain) {
    let mut image = CrashImage::from_bytes(formatted(SMALL, 16).bytes(), domain);
    let (mut last, mut rooms) = (0, std::collections::BTreeSet::new());
    for round in 0..20 {
        let crashed = {
            let store = Store::open(&image, options);
            let mut client = store.client(0);
            // The first one stays, so that its region does; the second one goes to the next segment, and nothing comes of it.
            for (key, len) in [(b"a", 100), (b"a", 700), (b"b", 100), (b"b", 700)] {
                let reserved = reserve(&mut client, key, len);
                assert!(reserved.version > last, "round {round}: {} is not above {last}", reserved.version);
                last = reserved.version;
                // Of this life of the region; whoever had it before may have left a whole object there.
                let room = (reserved.head, reserved.offset.0, reserved.epoch);
                assert!(rooms.insert(room), "round {round}: {room:?} was handed out before");
                if len == 100 {
                    let value = Content::Value(&[7; 100]);
                    let object = emit(&place(&reserved), reserved.version, 0, key, value);
                    image.write_nt(reserved.at + 8, &object[8..]);
                    image.psync().expect("memory does not fail");
                    let settled = client.call(&Request::Settle { key: key.to_vec() });
                    assert_eq!(settled, Reply::Settled { version: last });
                }
            }
            harshest(&image)
        };
        image = crashed;
    }
}

fn blank(len: u64) -> Arc<CrashImage> {
    Arc::new(CrashImage::new(len, PersistenceDomain::Adr))
}

/// A member's log that is new.
fn log() -> Log<Arc<CrashImage>> {
    let geometry = LogGeometry::new(DATA_AT + 12 * 4096, 4096).expect("fair");
    let make = Make { mode: LogMode::Singleton, geometry, uuid: Uuid([3; 16]), salt: 3 };
    Log::create(blank(geometry.size), &make).expect("fair")
}

#[test]
fn an_image_that_was_begun_and_not_ended_is_none_whatever_the_power_does() {
    let (mut log, image, ledger) = (log(), blank(SMALL.size), blank(LEDGER_LEN));
    let mut keeper = Keeper::create(image.clone(), ledger.clone()).expect("fair");
    let epoch = Epoch::new(4, 1);
    log.grant(epoch).expect("it is the first");
    // Nothing was trimmed: by its number alone this image would do.
    assert_eq!(keeper.obey(&mut log, epoch, &Order::Apply { below: 0 }), ImageReply::Applied(0));
    assert_eq!(keeper.obey(&mut log, epoch, &Order::Begin), ImageReply::Ok);
    let block = Order::Block { at: 0, bytes: vec![7; 64], len: 64 };
    assert_eq!(keeper.obey(&mut log, epoch, &block), ImageReply::Ok);
    drop(keeper);
    let mut keeper = Keeper::open(harshest(&image), harshest(&ledger), &mut log).expect("a ledger");
    assert!(!keeper.ledger().complete);
    assert_eq!(keeper.obey(&mut log, epoch, &Order::Apply { below: 0 }), ImageReply::NeedsImage);
    assert_eq!(keeper.obey(&mut log, epoch, &block), ImageReply::Ok, "it may go on being sent");
    assert_eq!(keeper.obey(&mut log, epoch, &Order::End { applied: 0 }), ImageReply::Ok);
    assert_eq!(keeper.obey(&mut log, epoch, &Order::Apply { below: 0 }), ImageReply::Applied(0));
}

/// Appends records that each store a byte at their own number, as a writer's recipe would: up to that number.
fn append(log: &mut Log<Arc<CrashImage>>, status: &Status, epoch: Epoch, below: u64) {
    let mut writer = Writer::new(status.writer_grant(), epoch);
    while writer.next() < below {
        let mut changes = Changes::default();
        changes.push(writer.next(), &[writer.next() as u8 + 100]);
        let records = changes.records(64);
        let updates = writer.append(&records[0]).expect("room");
        for (offset, bytes) in updates.list() {
            log.medium().write(offset, bytes);
            log.medium().persist(offset..offset + bytes.len() as u64).expect("memory does not fail");
        }
    }
}

#[test]
fn an_image_follows_a_log_that_was_begun_anew() {
    let (mut log, image) = (log(), blank(SMALL.size));
    let mut keeper = Keeper::create(image.clone(), blank(LEDGER_LEN)).expect("fair").portion(1);
    let epoch = Epoch::new(4, 1);
    let status = log.grant(epoch).expect("it is the first");
    append(&mut log, &status, epoch, 3);
    let apply = |keeper: &mut Keeper<_>, log: &mut _, below| {
        let mut told = Vec::new();
        loop {
            match keeper.obey(log, epoch, &Order::Apply { below }) {
                ImageReply::Applied(applied) if applied < below => told.push(applied),
                ImageReply::Applied(applied) => return told.into_iter().chain([applied]).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(apply(&mut keeper, &mut log, 3), [1, 2, 3], "one record for each order, where it was before");
    // Its log is made equal to another one, which has trimmed more: what the image has already comes again, further on.
    let status = log.reset(epoch, 2, epoch).expect("it is promised");
    append(&mut log, &status, epoch, 5);
    assert_eq!(apply(&mut keeper, &mut log, 5), [3, 4, 5]);
    let mut bytes = [0; 5];
    image.read(0, &mut bytes);
    assert_eq!(bytes, [100, 101, 102, 103, 104]);
}

#[test]
fn an_image_of_another_store_is_none() {
    let epoch = Epoch::new(4, 1);
    let of_group = |group| {
        let mut log = log();
        log.grant(epoch).expect("it is the first");
        let next = log.status().expect("a log").tail.sequence;
        log.adopt(epoch, next, Uuid([group; 16]), 3, 2).expect("it is promised");
        log
    };
    let (mut log, mut other) = (of_group(1), of_group(2));
    let mut keeper = Keeper::create(blank(SMALL.size), blank(LEDGER_LEN)).expect("fair");
    assert_eq!(keeper.obey(&mut log, epoch, &Order::Begin), ImageReply::Ok);
    assert_eq!(keeper.obey(&mut log, epoch, &Order::End { applied: 0 }), ImageReply::Ok);
    assert_eq!(keeper.obey(&mut log, epoch, &Order::Apply { below: 0 }), ImageReply::Applied(0));
    assert_eq!(keeper.obey(&mut other, epoch, &Order::Apply { below: 0 }), ImageReply::NeedsImage);
}

#[test]
fn a_member_obeys_only_the_primary_that_its_log_is_promised_to() {
    let mut log = log();
    let mut keeper = Keeper::create(blank(SMALL.size), blank(LEDGER_LEN)).expect("fair");
    let (old, new) = (Epoch::new(4, 1), Epoch::new(5, 2));
    log.grant(old).expect("it is the first");
    log.grant(new).expect("it is higher");
    // What would make the image worth nothing.
    let refused = keeper.obey(&mut log, old, &Order::Begin);
    assert!(
        matches!(&refused, ImageReply::Refused(why) if why.contains("promised to another")),
        "{refused:?}"
    );
    assert!(keeper.ledger().complete);
    // Nor does anybody's image change that was not begun anew.
    for order in [Order::Block { at: 0, bytes: vec![7; 64], len: 64 }, Order::End { applied: 9 }] {
        let refused = keeper.obey(&mut log, new, &order);
        assert!(matches!(refused, ImageReply::Refused(_)), "{order:?}: {refused:?}");
    }
    assert_eq!(keeper.obey(&mut log, new, &Order::Read { at: 0, len: 8 }), ImageReply::Bytes(vec![0; 8]));
    assert_eq!(keeper.obey(&mut log, new, &Order::Begin), ImageReply::Ok);
    assert!(!keeper.ledger().complete);
}
