//! Values that the server writes together: one wait for the medium for all of them, and what becomes of each.

use crate::common;

use common::*;
use remanence_kv::format::object::{Content, emit};
use remanence_kv::format::{ObjectAddress, Slot};
use remanence_kv::proto::{Expect, Inline, Reply, Request, Reserved};
use remanence_kv::{Geometry, Refusal};
use remanence_pmem::Medium as _;
use remanence_pmem::crash_image::{CrashImage, EveryWay, Failure};

const POOL: Geometry =
    Geometry { size: 256 << 10, region_len: 8192, segment_len: 2048, heads: 2, grown_from: 0 };

/// Segments with room for all that a test writes.
const ROOMY: Geometry = Geometry { region_len: 64 << 10, segment_len: 32 << 10, size: 512 << 10, ..POOL };

/// Writes the keys 200 to 207, so that both heads' logs have begun and all that follows goes into segments that are in use.
fn begin_logs(store: &Store<'_>, client: &mut Session<'_, '_>) {
    for key in 200..208 {
        client.put(&[key], b"before").expect("room");
    }
    store.settle_down(&mut [client]);
}

fn inline<'a>(key: &'a [u8], value: &'a [u8]) -> Inline<'a> {
    Inline { key, value: Some(value), expires: 0, expect: Expect::Any }
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
    let image = formatted(ROOMY, 64);
    let store = Store::open(&image, DEFERRED);
    let mut client = store.client(0);
    begin_logs(&store, &mut client);
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

#[test]
fn who_waits_himself_waits_for_new_keys_entries_with_no_lock_held() {
    let image = formatted(ROOMY, 64);
    let store = Store::open(&image, DEFERRED);
    let (mut client, mut other) = (store.client(0), store.client(0));
    begin_logs(&store, &mut client);
    // Whoever looks settles what was written before: what is pending from here on is what is kept.
    assert_eq!(store.server.borrow_mut().scrub(0, 100).expect("it works").verified, 8);
    store.settle_down(&mut [&mut client]);
    let (all, none) = entries(&image, &store);
    assert_eq!((all, none), (8, 0));
    let keys: Vec<[u8; 1]> = (0..9).map(|n| [n]).chain([[200]]).collect();
    let puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, b"value")).collect();
    let prepare = |id, puts: &[Inline<'_>]| store.server.borrow_mut().prepare_ahead(1, id, puts);
    let begin = |id, puts: &[Inline<'_>]| {
        let mut done = Vec::new();
        let named = store.server.borrow_mut().begin_all(1, id, puts, &mut done);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        named
    };
    // One key by itself as well; whoever looks finds nothing.
    for some in [&puts[..1], &puts] {
        image.fail_after_psyncs(0);
        assert_eq!(prepare(client.id, some), Ok(true), "without a wait");
        assert_eq!(prepare(client.id, some), Ok(true), "who asks again has one entry for a key");
        let new = some.len().min(9);
        assert_eq!(entries(&image, &store), (all + new, none + new));
        assert_eq!(client.call(&Request::Get { key: vec![0] }), Reply::Absent);
        image.fail_after_psyncs(9);
        assert_eq!(store.server.borrow_mut().scrub(0, 100).expect("it works").verified, 8);
        store.step();
        assert_eq!(entries(&image, &store), (all + new, none + new), "no step gives them back");
    }
    // Who writes one of them meanwhile waits for an entry of his own.
    image.fail_after_psyncs(1);
    other.put_all(&[inline(&[0], b"other")]).into_iter().for_each(|put| assert!(put.is_err(), "{put:?}"));
    image.fail_after_psyncs(2);
    other.put_all(&[inline(&[0], b"other")]).into_iter().for_each(|put| assert!(put.is_ok(), "{put:?}"));
    image.fail_after_psyncs(1);
    image.psync().expect("the client's wait");
    let named = begin(client.id, &puts);
    assert_eq!((named.len(), entries(&image, &store)), (10, (all + 9, none + 10)), "without a wait");
    image.fail_after_psyncs(1);
    image.psync().expect("the client's wait");
    store.server.borrow_mut().end_all(&named);
    image.fail_after_psyncs(9);
    assert_eq!(entries(&image, &store), (all + 9, none));
    keys.iter().for_each(|key| assert_eq!(other.value(key).as_deref(), Some(&b"value"[..]), "{key:?}"));
    // Nothing to wait for; nothing for who may not write.
    assert_eq!(prepare(client.id, &puts), Ok(false));
    let reader = store.server.borrow_mut().connect_reader();
    let new = [inline(&[50], b"x"), inline(&[51], b"y")];
    for nobody in [reader, remanence_kv::server::ClientId(99)] {
        assert_eq!(prepare(nobody, &new), Ok(false));
    }
    assert_eq!(entries(&image, &store), (all + 9, none));
    // What a client does not come for is free when it is gone, or comes for something else.
    let gone = store.server.borrow_mut().connect();
    assert_eq!((prepare(gone, &new), prepare(client.id, &new)), (Ok(true), Ok(true)));
    assert_eq!(entries(&image, &store), (all + 13, none + 4));
    store.server.borrow_mut().disconnected(gone).expect("it works");
    assert_eq!(entries(&image, &store), (all + 11, none + 2));
    let named = begin(client.id, &puts[..1]);
    assert_eq!(entries(&image, &store), (all + 9, none + 1));
    store.server.borrow_mut().end_all(&named);
    // Who leaves the wait out has the server wait for entries of its own, and this one has to.
    assert_eq!(prepare(client.id, &new), Ok(true));
    image.fail_after_psyncs(0);
    let mut done = Vec::new();
    store.server.borrow_mut().begin_all(1, client.id, &new, &mut done);
    assert_eq!(done, [Err(Refusal::Medium), Err(Refusal::Medium)]);
}

#[test]
fn entries_move_when_nobody_is_about_to_use_one_that_moves() {
    let image = formatted(POOL, 64);
    let store = Store::open(&image, DEFERRED);
    let (mut client, mut waiting) = (store.client(0), store.client(0));
    let keys: Vec<[u8; 1]> = (0..20).map(|n| [n]).collect();
    let puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, key)).collect();
    client.put_all(&puts).into_iter().for_each(|put| assert!(put.is_ok()));
    let (late, later) = ([inline(&[100], &[100])], [inline(&[101], &[101])]);
    let prepare = |id, puts: &[Inline<'_>]| store.server.borrow_mut().prepare_ahead(1, id, puts);
    assert_eq!(prepare(waiting.id, &late), Ok(true));
    store.server.borrow_mut().resize(128).expect("room");
    let moved = || store.server.borrow().stats().entries_moved;
    let before = moved();
    for _ in 0..8 {
        store.server.borrow_mut().step(1, 64).expect("it works");
        client.attend();
        waiting.attend();
    }
    assert_eq!((moved(), store.server.borrow().view().tables.len()), (before, 2), "all have been told");
    // Others go on meanwhile; nobody else is given a place that he would have to come for.
    assert_eq!(prepare(client.id, &later), Ok(false));
    client.put_all(&later).into_iter().for_each(|put| assert!(put.is_ok()));
    image.psync().expect("it works");
    let mut done = Vec::new();
    let named = store.server.borrow_mut().begin_all(1, waiting.id, &late, &mut done);
    image.psync().expect("it works");
    store.server.borrow_mut().end_all(&named);
    store.settle_down(&mut [&mut client, &mut waiting]);
    let stats = store.server.borrow().stats();
    assert_eq!((stats.grown, entries(&image, &store)), (1, (22, 0)));
    for key in keys.iter().chain([&[100], &[101]]) {
        assert_eq!(client.value(key).as_deref(), Some(&key[..]));
    }
    // In the table that they move to a place may be kept.
    begin_to_move(&store, &mut client, 256);
    for _ in 0..4 {
        waiting.attend();
        store.server.borrow_mut().step(1, 1).expect("it works");
        client.attend();
    }
    assert_eq!(prepare(waiting.id, &[inline(&[102], &[102])]), Ok(true));
    store.settle_down(&mut [&mut client, &mut waiting]);
    assert_eq!((store.server.borrow().stats().grown, entries(&image, &store)), (2, (23, 1)));
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
        let place = ObjectAddress { salt: SALT, head, offset, epoch };
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
    // So does the server for whose time is over: all or, of a medium that fails, none.
    assert_eq!(client.call(&Request::Confirm { versions }), Reply::Ok);
    let late = 1 + DEFERRED.lease;
    assert!(store.server.borrow_mut().step(late, 64).is_err(), "the medium fails");
    assert_eq!(entries(&image, &store), (12, 12));
    image.fail_after_psyncs(1);
    assert_eq!(store.server.borrow_mut().step(late, 64), Ok(false));
    assert_eq!(entries(&image, &store), (12, 0));
    assert_eq!(store.server.borrow().stats().fenced, 0);
    image.fail_after_psyncs(u64::MAX);
    for key in &keys {
        assert_eq!(client.value(key).as_deref(), Some(&b"value"[..]));
    }
}

#[test]
fn what_is_done_is_settled_by_anybodys_wait_that_began_later_or_by_one_of_the_servers_in_time() {
    let image = formatted(ROOMY, 64);
    let store = Store::open(&image, DEFERRED);
    let (mut client, mut other) = (store.client(0), store.client(0));
    begin_logs(&store, &mut client);
    let (all, open) = entries(&image, &store);
    let keys: Vec<[u8; 1]> = (200..206).map(|n| [n]).collect();
    let step = |now| store.server.borrow_mut().step(now, 64);
    let begun = store.now.get();
    let mut write = |value: &[u8]| {
        image.fail_after_psyncs(9);
        let versions = write_all(&store, &mut client, &keys, value);
        // Too early for what is written back below.
        image.psync().expect("it works");
        image.fail_after_psyncs(0);
        assert_eq!(client.call(&Request::Confirm { versions }), Reply::Ok);
        assert_eq!(step(begun), Ok(false), "nothing waits for the medium");
        assert_eq!(entries(&image, &store), (all, open + 6));
        assert_eq!(step(begun + 3), Ok(false));
        assert_eq!(entries(&image, &store), (all, open + 6), "and none has ended");
    };
    write(b"first");
    image.fail_after_psyncs(1);
    image.psync().expect("as a client's FLUSH");
    assert_eq!(step(begun + 3), Ok(false), "no other one is needed");
    assert_eq!(entries(&image, &store), (all, open));
    // Nobody else waits: the server does, once for all.
    write(b"second");
    assert_eq!(step(begun + 4), Err(Refusal::Medium));
    assert_eq!(entries(&image, &store), (all, open + 6));
    image.fail_after_psyncs(1);
    assert_eq!(step(begun + 4), Ok(false));
    assert_eq!(entries(&image, &store), (all, open));
    // A reader need not wait for either; who writes the key need not, if somebody's wait has ended.
    write(b"third");
    image.fail_after_psyncs(1);
    assert_eq!(other.value(&keys[0]).as_deref(), Some(&b"third"[..]));
    assert_eq!(entries(&image, &store), (all, open + 5), "of the others nobody has asked");
    image.psync().expect_err("the one that was left went into the answer");
    let put = |key: u8| Request::Put { key: vec![key], len: 1, expires: 0, expect: Expect::Any };
    assert!(matches!(other.call(&put(201)), Reply::Reserved(_)), "the reader's wait serves it");
    assert_eq!(step(begun + 3), Ok(false));
    assert_eq!(entries(&image, &store), (all, open + 1), "what the other one may write");
    // A client that goes leaves nothing pending.
    image.fail_after_psyncs(9);
    let Reply::Reserved(reserved) = client.call(&put(202)) else { panic!("room") };
    let place =
        ObjectAddress { salt: SALT, head: reserved.head, offset: reserved.offset, epoch: reserved.epoch };
    let object = emit(&place, reserved.version, 0, &[202], Content::Value(b"x"));
    image.write_nt(reserved.at + 8, &object[8..]);
    assert_eq!(client.call(&Request::Confirm { versions: vec![reserved.version] }), Reply::Ok);
    assert_eq!(step(begun), Ok(false));
    assert!(store.server.borrow().is_settling());
    for session in [&client, &other] {
        store.server.borrow_mut().disconnected(session.id).expect("it works");
    }
    assert!(!store.server.borrow().is_settling());
    assert_eq!(entries(&image, &store), (all, 0));
    let stats = store.server.borrow().stats();
    assert_eq!((stats.given_up, stats.damaged), (1, 0));
}

#[test]
fn reservations_of_new_keys_share_a_wait_and_take_it_before_any_address_leaves() {
    let image = formatted(ROOMY, 64);
    let store = Store::open(&image, DEFERRED);
    let mut client = store.client(0);
    begin_logs(&store, &mut client);
    let before = entries(&image, &store);
    let keys: Vec<[u8; 1]> = (0..9).map(|n| [n]).collect();
    image.fail_after_psyncs(1);
    write_all(&store, &mut client, &keys, b"value");
    assert_eq!(entries(&image, &store), (before.0 + 9, before.1 + 9), "named, and not settled");
    let put = |key: u8, expect| Request::Put { key: vec![key], len: 5, expires: 0, expect };
    // What has no right to be new keeps no place; nor does what is refused in the end.
    let asked = [put(100, Expect::Present), put(101, Expect::Version(7)), put(102, Expect::Absent)];
    image.fail_after_psyncs(2);
    let Reply::Batch(replies) = client.call(&Request::Batch(asked.to_vec())) else { panic!("a batch") };
    assert!(matches!(replies[..2], [Reply::Refused(_), Reply::Refused(_)]), "{replies:?}");
    assert!(matches!(replies[2], Reply::Reserved(_)), "{replies:?}");
    assert_eq!(entries(&image, &store), (before.0 + 10, before.1 + 10));
    image.fail_after_psyncs(0);
    let asked = Request::Batch((110..113).map(|key| put(key, Expect::Any)).collect());
    assert_eq!(client.call(&asked), Reply::Refused(Refusal::Medium));
}

#[test]
fn requests_that_are_at_hand_share_a_wait_and_whoever_looks_meanwhile_finds_nothing() {
    let image = formatted(ROOMY, 64);
    let store = Store::open(&image, DEFERRED);
    let (mut client, mut other) = (store.client(0), store.client(0));
    let keys: Vec<[u8; 1]> = (200..208).map(|n| [n]).collect();
    let puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, b"before")).collect();
    client.put_all(&puts).into_iter().for_each(|put| assert!(put.is_ok()));
    let put = |key: u8, len: u64| Request::Put { key: vec![key], len, expires: 0, expect: Expect::Any };
    let at_hand: Vec<Request> = (0..6).map(|key| put(key, 5)).chain([put(200, 5)]).collect();
    let prepare = || store.server.borrow_mut().prepare(1, &at_hand);
    image.fail_after_psyncs(1);
    prepare().expect("one wait was left");
    assert_eq!(entries(&image, &store), (14, 6));
    // Nothing is there of them yet, for anybody.
    image.fail_after_psyncs(9);
    assert_eq!(client.call(&Request::Get { key: vec![0] }), Reply::Absent);
    assert_eq!(
        client.call(&Request::Delete { key: vec![0], expect: Expect::Any }),
        Reply::Done { version: 0 }
    );
    assert_eq!(client.value(&[1]), None);
    assert_eq!(client.keys(), keys);
    assert_eq!(store.server.borrow_mut().scrub(0, 100).expect("it works").verified, 8);
    // Each is given what was kept for it, without another wait; one of them to another client, for a longer value.
    image.fail_after_psyncs(0);
    let reserved = |reply| if let Reply::Reserved(reserved) = reply { reserved } else { panic!("{reply:?}") };
    let mut versions = Vec::new();
    for (key, len) in [(0, 5), (1, 5), (2, 300)] {
        let asking = if key == 2 { &mut other } else { &mut client };
        let Reserved { version, head, offset, epoch, at, .. } = reserved(asking.call(&put(key, len)));
        let place = ObjectAddress { salt: SALT, head, offset, epoch };
        let object = emit(&place, version, 0, &[key], Content::Value(&vec![key; len as usize]));
        image.write_nt(at + 8, &object[8..]);
        versions.push(version);
    }
    assert_eq!(entries(&image, &store), (14, 6));
    // What nobody came for is free again; once more it takes a wait.
    store.server.borrow_mut().release_prepared();
    assert_eq!(entries(&image, &store), (11, 3));
    assert_eq!(prepare(), Err(Refusal::Medium));
    image.fail_after_psyncs(u64::MAX);
    prepare().expect("the medium works");
    store.step();
    assert_eq!(entries(&image, &store), (11, 3), "a step gives them back, too");
    for (n, session) in [&mut client, &mut other].into_iter().enumerate() {
        let own = if n == 0 { &versions[..2] } else { &versions[2..] };
        assert_eq!(session.call(&Request::Confirm { versions: own.to_vec() }), Reply::Ok);
    }
    store.settle_down(&mut [&mut client, &mut other]);
    for (key, len) in [(0, 5), (1, 5), (2, 300)] {
        assert_eq!(client.value(&[key]), Some(vec![key; len]), "{key}");
    }
    // One whose value takes more than an object is named as what was kept for a small one.
    prepare().expect("the medium works");
    client.put(&[3], &[7; 40_000]).expect("room");
    client.put(&[4], b"small").expect("room");
    drop(client);
    let crashed = image.crash(Failure::PowerLoss, &mut EveryWay::new());
    let store = Store::open(&crashed, DEFERRED);
    let mut client = store.client(0);
    assert_eq!(client.value(&[3]), Some(vec![7; 40_000]));
    assert_eq!(client.value(&[4]).as_deref(), Some(&b"small"[..]));
}

/// Entries move from here on.
fn begin_to_move(store: &Store<'_>, client: &mut Session<'_, '_>, buckets: u64) {
    store.server.borrow_mut().resize(buckets).expect("room");
    for _ in 0..2 {
        store.server.borrow_mut().step(1, 1).expect("it works");
        client.attend();
    }
}

#[test]
fn entries_that_move_together_take_three_waits() {
    let image = formatted(POOL, 64);
    let store = Store::open(&image, DEFERRED);
    let mut client = store.client(0);
    let keys: Vec<[u8; 1]> = (0..40).map(|n| [n]).collect();
    let puts: Vec<Inline<'_>> = keys.iter().map(|key| inline(key, key)).collect();
    client.put_all(&puts).into_iter().for_each(|put| assert!(put.is_ok()));
    begin_to_move(&store, &mut client, 128);
    store.server.borrow_mut().step(1, 1).expect("nothing is left to be told");
    let moved = || store.server.borrow().stats().entries_moved;
    let before = moved();
    image.fail_after_psyncs(3);
    store.server.borrow_mut().step(1, 60).expect("three waits were left");
    assert!(moved() > before + 15, "{} moved", moved() - before);
    assert_eq!(entries(&image, &store), (40, 0));
    image.fail_after_psyncs(u64::MAX);
    keys.iter().for_each(|key| assert_eq!(client.value(key).as_deref(), Some(&key[..])));
}

#[test]
fn what_was_prepared_stays_where_it_is_while_the_table_grows() {
    // Large enough that two new keys do not push the growth along, and what comes with them does.
    let image = formatted(Geometry { size: 512 << 10, ..POOL }, 300);
    let store = Store::open(&image, DEFERRED);
    let mut client = store.client(0);
    let old: Vec<[u8; 1]> = (0..20).map(|n| [n]).collect();
    let puts: Vec<Inline<'_>> = old.iter().map(|key| inline(key, key)).collect();
    client.put_all(&puts).into_iter().for_each(|put| assert!(put.is_ok()));
    store.server.borrow_mut().resize(400).expect("room");
    store.server.borrow_mut().step(1, 1).expect("it works");
    client.attend();
    let value = |key: u8| vec![key; 3];
    let ask =
        |key: u8| Request::PutInline { key: vec![key], value: value(key), expires: 0, expect: Expect::Any };
    let put = |key: u8| Request::Put { key: vec![key], len: 3, expires: 0, expect: Expect::Any };
    let batch: Vec<Request> = (30..110).map(ask).chain([200, 201].map(put)).collect();
    let Reply::Batch(replies) = client.call(&Request::Batch(batch)) else { panic!("a batch has replies") };
    let mut versions = Vec::new();
    for (key, reply) in [200, 201].into_iter().zip(&replies[80..]) {
        let Reply::Reserved(Reserved { version, head, offset, epoch, at: room, .. }) = *reply else {
            panic!("room: {reply:?}")
        };
        let place = ObjectAddress { salt: SALT, head, offset, epoch };
        let object = emit(&place, version, 0, &[key], Content::Value(&value(key)));
        image.write_nt(room + 8, &object[8..]);
        versions.push(version);
    }
    assert_eq!(client.call(&Request::Confirm { versions }), Reply::Ok);
    store.settle_down(&mut [&mut client]);
    assert_eq!(entries(&image, &store), (102, 0));
    for key in (30..110).chain([200, 201]) {
        assert_eq!(client.value(&[key]), Some(value(key)), "{key}");
    }
}

#[test]
fn a_small_value_is_one_message_and_one_wait_where_the_server_writes_it() {
    let image = formatted(ROOMY, 64);
    let store = Store::open(&image, INLINE);
    let (mut client, mut other) = (store.client(8), store.client(8));
    begin_logs(&store, &mut client);
    let entered = entries(&image, &store);
    let (small, large) = ([1; INLINE.inline_max as usize], [2; INLINE.inline_max as usize + 1]);
    client.verbs.clear();
    image.fail_after_psyncs(1);
    let version = client.put(&[200], &small).expect("one wait is enough");
    assert_eq!((&client.verbs[..], entries(&image, &store)), (&["call"][..], entered), "nothing is pending");
    // It knows where the value is, as who writes it itself does.
    client.verbs.clear();
    let found = client.get(&[200]).expect("it is there");
    assert_eq!((found.version, &found.value[..], &client.verbs[..]), (version, &small[..], &["read"][..]));
    assert_eq!(client.put_if(&[200], &small, Expect::Version(version + 1)), {
        Err(Refusal::WrongVersion { found: version }.into())
    });
    image.fail_after_psyncs(9);
    client.verbs.clear();
    client.put(&[200], &large).expect("room");
    assert_eq!(client.verbs, ["call", "persist"], "more than that the client writes itself");
    client.verbs.clear();
    // The word of before waits for nobody now: it comes with the confirmation.
    client.put(&[201], &small).expect("room");
    assert_eq!(client.verbs, ["call"]);
    assert_eq!(other.value(&[200]).as_deref(), Some(&large[..]));
    assert_eq!(other.value(&[201]).as_deref(), Some(&small[..]));

    // Several share the wait, in one message or in those of several clients; what the server cannot write at once it writes alone.
    let put = |key: u8, value: &[u8], expect| Request::PutInline {
        key: vec![key],
        value: value.to_vec(),
        expires: 0,
        expect,
    };
    let batch = Request::Batch(vec![
        put(202, b"a", Expect::Any),
        Request::Get { key: vec![203] },
        put(203, b"b", Expect::Absent),
        put(204, b"c", Expect::Present),
    ]);
    image.fail_after_psyncs(1);
    let Reply::Batch(replies) = client.call(&batch) else { panic!("a batch") };
    assert!(
        matches!(replies[0], Reply::Written(_)) && matches!(replies[3], Reply::Written(_)),
        "{replies:?}"
    );
    assert!(matches!(replies[2], Reply::Refused(Refusal::WrongVersion { .. })), "{replies:?}");
    let reader = store.server.borrow_mut().connect_reader();
    let stranger = remanence_kv::server::ClientId(99);
    let puts = [(client.id, 205), (reader, 206), (other.id, 206), (stranger, 207), (other.id, 205)];
    let inline: Vec<_> = puts.iter().map(|(id, key)| (*id, vec![*key])).collect();
    let together = |value: &[u8]| {
        let puts: Vec<_> = inline
            .iter()
            .map(|(id, key)| (*id, Inline { key, value: Some(value), expires: 0, expect: Expect::Any }))
            .collect();
        store.server.borrow_mut().put_together(1, &puts)
    };
    image.fail_after_psyncs(1);
    let replies = together(b"both");
    let Reply::Done { version: overtaken } = replies[0] else { panic!("{replies:?}") };
    let [Reply::Written(_), Reply::Written(last)] = [&replies[2], &replies[4]] else { panic!("{replies:?}") };
    assert!(overtaken < last.version, "it was there before the last one, for no time");
    assert_eq!(replies[1], Reply::Refused(Refusal::ReadOnly));
    assert_eq!(replies[3], Reply::Refused(Refusal::Fenced));
    image.fail_after_psyncs(u64::MAX);
    assert_eq!(client.value(&[206]).as_deref(), Some(&b"both"[..]));
    assert_eq!(client.get(&[205]).map(|found| found.version), Some(last.version));
    // Where one has a condition each is written, in their order.
    let found = client.get(&[203]).expect("it is there").version;
    let conditions = [Expect::Any, Expect::Version(found), Expect::Present, Expect::Any];
    let mixed: Vec<_> = conditions
        .iter()
        .map(|expect| (client.id, Inline { key: &[203], value: Some(b"mixed"), expires: 0, expect: *expect }))
        .collect();
    let replies = store.server.borrow_mut().put_together(1, &mixed);
    assert!(matches!(replies[1], Reply::Refused(Refusal::WrongVersion { .. })), "{replies:?}");
    assert!([0, 2, 3].iter().all(|n| matches!(replies[*n], Reply::Written(_))), "{replies:?}");
    // Who is refused is so for those whom it overtook.
    let Reply::Reserved(_) =
        client.call(&Request::Put { key: vec![202], len: 1, expires: 0, expect: Expect::Any })
    else {
        panic!("room")
    };
    let twice = Inline { key: &[202], value: Some(b"twice"), expires: 0, expect: Expect::Any };
    let replies = store.server.borrow_mut().put_together(1, &[(client.id, twice), (other.id, twice)]);
    assert_eq!(replies, vec![Reply::Refused(Refusal::Unfinished); 2]);
    let chunked = vec![3; 40_000];
    let replies = together(&chunked);
    assert!(
        matches!(replies[0], Reply::Done { .. }) && matches!(replies[2], Reply::Done { .. }),
        "{replies:?}"
    );
    assert_eq!(client.value(&[205]), Some(chunked));
    image.fail_after_psyncs(0);
    assert_eq!(together(b"lost"), vec![Reply::Refused(Refusal::Medium); 5]);
    assert_eq!(client.call(&put(205, b"lost", Expect::Any)), Reply::Refused(Refusal::Medium));
}
