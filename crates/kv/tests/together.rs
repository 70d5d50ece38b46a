//! Values that the server writes together: one wait for the medium for all of them, and what becomes of each.

mod common;

use common::*;
use remanence_kv::format::object::{Content, emit};
use remanence_kv::format::{Place, Slot};
use remanence_kv::proto::{Expect, Inline, Reply, Request, Reserved};
use remanence_kv::{Geometry, Refusal};
use remanence_pmem::Medium as _;
use remanence_pmem::crash_image::CrashImage;

const POOL: Geometry = Geometry { size: 256 << 10, region_len: 8192, segment_len: 2048, heads: 2 };

fn inline<'a>(key: &'a [u8], value: &'a [u8]) -> Inline<'a> {
    Inline { key, value, expires: 0, expect: Expect::Any }
}

/// Entries that are not free, and how many of them are pending.
fn entries(image: &CrashImage, store: &Store<'_>) -> (usize, usize) {
    let view = store.server.borrow().view();
    let (mut used, mut pending) = (0, 0);
    for table in view.tables {
        let mut bytes = vec![0; (table.slots() * 16) as usize];
        image.read(table.slot(0), &mut bytes);
        for slot in Slot::parse_all(&bytes).filter(|slot| !slot.word.is_free()) {
            used += 1;
            pending += usize::from(slot.word.is_pending());
        }
    }
    (used, pending)
}

#[test]
fn what_is_displaced_by_its_own_batch_is_settled_where_it_went() {
    let mut moved = 0;
    for round in 0..120u8 {
        // A table that is nearly full: a new entry makes others move, those of its own batch among them, unless they were
        // prepared, when they keep their places.
        let image = formatted(POOL, 64);
        let store = Store::open(&image, if round % 2 == 0 { DURABLE } else { DEFERRED });
        let mut client = store.client(0);
        let mut written = Vec::new();
        for lot in 0..3u8 {
            let keys: Vec<[u8; 3]> = (0..20).map(|n| [round, lot, n]).collect();
            let puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, key)).collect();
            let mut done = Vec::new();
            store.server.borrow_mut().put_all(1, client.id, &puts, &mut done);
            written.extend(keys.iter().zip(&done).filter(|(_, done)| done.is_ok()).map(|(key, _)| *key));
            assert_eq!(entries(&image, &store), (written.len(), 0), "round {round}, lot {lot}");
        }
        moved += store.server.borrow().stats().entries_moved;
        for key in &written {
            assert_eq!(client.value(key).as_deref(), Some(&key[..]));
        }
    }
    assert!(moved > 150, "{moved} entries moved");
}

#[test]
fn they_share_a_wait_and_each_has_its_own_outcome() {
    let image = formatted(POOL, 64);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(8);
    let keys: Vec<[u8; 1]> = (0..20).map(|n| [n]).collect();
    let puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, b"value")).collect();
    client.put_all(&puts).into_iter().for_each(|put| assert!(put.is_ok()));
    let stats = store.server.borrow().stats();
    assert_eq!((stats.written, stats.reserved), (20, 0), "the server has written all of them");
    // They are known to be durable, and where they are: a look needs no message.
    for key in &keys {
        client.peek(key).expect("it is settled").expect("it has a value");
    }
    assert_eq!((client.posts, entries(&image, &store)), (0, (20, 0)));
    // A write that nobody finishes holds its key up, and no other.
    let put = Request::Put { key: vec![3], len: 9, expires: 0, expect: Expect::Any };
    let Reply::Reserved(reserved) = client.call(&put) else { panic!("room") };
    let version = client.get(&[1]).expect("a value").version;
    let wrong = Inline { expect: Expect::Version(version + 1), ..inline(&[4], b"next") };
    let right = Inline { expect: Expect::Version(version), ..inline(&[1], b"next") };
    let puts = [
        inline(&[3], b"next"),
        wrong,
        right,
        inline(b"", b"x"),
        inline(&[5], b"next"),
        inline(&[5], b"last"),
    ];
    let mut done = Vec::new();
    store.server.borrow_mut().put_all(1, client.id, &puts, &mut done);
    let refused = |n: usize| done[n].clone().expect_err("a refusal");
    assert_eq!(refused(0), Refusal::Unfinished);
    assert!(matches!(refused(1), Refusal::WrongVersion { .. }));
    assert_eq!(refused(3), Refusal::BadKey);
    assert!(done[2].is_ok() && done[4].is_ok() && done[5].is_ok());
    let large = vec![7; 3000];
    store.server.borrow_mut().put_all(1, client.id, &[inline(&[6], &large)], &mut done);
    assert_eq!(done[6], Err(Refusal::Malformed), "it takes more than one object");
    assert!(client.put_all(&[inline(&[6], &large), inline(&[7], b"small")]).iter().all(Result::is_ok));
    let expected: [(u8, &[u8]); 5] = [(1, b"next"), (3, b"value"), (4, b"value"), (5, b"last"), (6, &large)];
    for (key, value) in expected {
        assert_eq!(client.value(&[key]).as_deref(), Some(value), "{key}");
    }
    assert_eq!(client.call(&Request::Abandon { version: reserved.version }), Reply::Ok);
    // Who may only read, and who is unknown, writes nothing.
    let reader = store.server.borrow_mut().connect_reader();
    let (mut done, stranger) = (Vec::new(), remanence_kv::server::ClientId(99));
    store.server.borrow_mut().put_all(1, reader, &[inline(&[1], b"no")], &mut done);
    store.server.borrow_mut().put_all(1, stranger, &[inline(&[1], b"no")], &mut done);
    assert_eq!(done, [Err(Refusal::ReadOnly), Err(Refusal::Fenced)]);
    // A medium that fails acknowledges nothing.
    image.fail_after_psyncs(0);
    let mut done = Vec::new();
    store.server.borrow_mut().put_all(1, client.id, &[inline(&[8], b"a"), inline(&[9], b"b")], &mut done);
    assert_eq!(done, [Err(Refusal::Medium), Err(Refusal::Medium)]);
}

#[test]
fn new_keys_that_come_together_take_two_waits_and_keys_that_are_there_one() {
    // All of it goes into the segments that are in use.
    let image =
        formatted(Geometry { region_len: 64 << 10, segment_len: 32 << 10, size: 512 << 10, ..POOL }, 64);
    let store = Store::open(&image, DEFERRED);
    let mut client = store.client(0);
    for key in 200..208 {
        client.put(&[key], b"before").expect("room");
    }
    while store.server.borrow_mut().step(1, 64).expect("it works") {}
    let before = entries(&image, &store);
    let keys: Vec<[u8; 1]> = (0..9).map(|n| [n]).collect();
    let mut puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, b"value")).collect();
    // One that is there, and one that has no right to be new.
    puts.push(inline(&[200], b"after"));
    puts.push(Inline { expect: Expect::Version(7), ..inline(&[100], b"none") });
    let write = |waits: u64| {
        image.fail_after_psyncs(waits);
        let mut done = Vec::new();
        store.server.borrow_mut().put_all(1, client.id, &puts, &mut done);
        let refused = done.pop().expect("an answer to each").expect_err("it has no such version");
        assert!(matches!(refused, Refusal::WrongVersion { .. }), "{refused:?}");
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    };
    write(2);
    assert_eq!(entries(&image, &store), (before.0 + 9, before.1), "what was not written keeps no place");
    write(1);
    image.fail_after_psyncs(9);
    for key in &keys {
        assert_eq!(client.value(key).as_deref(), Some(&b"value"[..]));
    }
    assert_eq!((client.value(&[200]).as_deref(), client.value(&[100])), (Some(&b"after"[..]), None));
}

/// Reserves room for all keys in one message, and writes what is to lie there; who did it says no more.
fn write_all(store: &Store<'_>, client: &mut Session<'_, '_>, keys: &[[u8; 1]], value: &[u8]) -> Vec<u64> {
    let put = |key: &[u8; 1]| Request::Put {
        key: key.to_vec(),
        len: value.len() as u64,
        expires: 0,
        expect: Expect::Any,
    };
    let Reply::Batch(replies) = client.call(&Request::Batch(keys.iter().map(put).collect())) else {
        panic!("a batch has replies")
    };
    let written = keys.iter().zip(replies).map(|(key, reply)| {
        let Reply::Reserved(Reserved { version, head, offset, epoch, at, .. }) = reply else {
            panic!("room: {reply:?}")
        };
        let place = Place { salt: SALT, head, offset, epoch };
        let object = emit(&place, version, 0, key, Content::Value(value));
        store.image.write_nt(at + 8, &object[8..]);
        version
    });
    written.collect()
}

#[test]
fn what_is_done_is_settled_together_by_one_wait() {
    let image = formatted(POOL, 64);
    let store = Store::open(&image, DEFERRED);
    let mut client = store.client(0);
    let keys: Vec<[u8; 1]> = (0..12).map(|n| [n]).collect();
    // Both heads' logs have begun.
    write_all(&store, &mut client, &keys, b"before");
    assert_eq!(entries(&image, &store), (12, 12));
    // Whoever writes the same keys again finds them unfinished.
    image.fail_after_psyncs(1);
    let versions = write_all(&store, &mut client, &keys, b"value");
    assert_eq!(store.server.borrow().stats().settled, 12, "one sync was left");
    // So does the server when it is told that they are done: all or, of a medium that fails, none.
    let confirm = Request::Confirm { versions };
    assert_eq!(client.call(&confirm), Reply::Ok);
    assert!(store.server.borrow_mut().step(1, 64).is_err(), "the medium fails");
    assert_eq!(entries(&image, &store), (12, 12));
    image.fail_after_psyncs(1);
    assert_eq!(client.call(&confirm), Reply::Ok);
    store.step();
    assert_eq!(entries(&image, &store), (12, 0));
    image.fail_after_psyncs(u64::MAX);
    for key in &keys {
        assert_eq!(client.value(key).as_deref(), Some(&b"value"[..]));
    }
}
