//! What a user of the store sees, one idea to a test.

use crate::common;

use common::*;
use remanence_kv::client::{Completion, Error, Get, Many, Operation, Progress, Put, Verb};
use remanence_kv::format::object::{Content, WRITTEN_FROM, crc64, emit};
use remanence_kv::format::{Chunk, KEY_MAX, ObjectAddress, RegionWord};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::{Geometry, Options, Refusal};
use remanence_pmem::Medium;
use remanence_pmem::crash_image::{EveryWay, Failure};

fn store(run: impl FnOnce(&Store<'_>)) {
    let image = formatted(SMALL, 64);
    run(&Store::open(&image, DURABLE));
}

#[test]
fn what_was_put_is_found_by_everybody_and_what_was_deleted_is_not() {
    store(|store| {
        let (mut writer, mut reader) = (store.client(0), store.client(0));
        assert_eq!(reader.get(b"key"), None);
        let version = writer.put(b"key", b"value").expect("room");
        let found = reader.get(b"key").expect("there");
        assert_eq!((found.version, &found.value[..], found.expires), (version, &b"value"[..], 0));
        assert_eq!(reader.get(b"kez"), None);
        let second = writer.put(b"key", b"").expect("room");
        assert!(second > version);
        assert_eq!(reader.value(b"key"), Some(vec![]), "an empty value is a value");
        assert!(writer.delete(b"key") > second);
        assert_eq!((reader.get(b"key"), writer.delete(b"key")), (None, 0));
        writer.put(b"key", b"back").expect("room");
        assert_eq!(reader.value(b"key"), Some(b"back".to_vec()));
    });
}

#[test]
fn a_get_is_two_reads_and_one_with_a_cached_location() {
    store(|store| {
        let (mut writer, mut reader) = (store.client(0), store.client(10));
        writer.put(b"key", &value(1, 300)).expect("room");
        reader.get(b"key");
        for _ in 0..3 {
            store.step();
        }
        reader.call(&Request::Settle { key: b"key".to_vec() });
        let mut cold = store.client(10);
        assert_eq!(cold.value(b"key"), Some(value(1, 300)));
        assert_eq!(cold.verbs, ["read", "read"], "entry and object, and the server sees nothing");
        cold.verbs.clear();
        assert_eq!(cold.value(b"key"), Some(value(1, 300)));
        assert_eq!(cold.verbs, ["read"], "the location is cached");
    });
}

#[test]
fn a_cached_location_notices_that_it_is_stale() {
    store(|store| {
        let (mut writer, mut reader) = (store.client(0), store.client(10));
        writer.put(b"key", b"one").expect("room");
        assert_eq!(reader.value(b"key"), Some(b"one".to_vec()));
        writer.put(b"key", b"two").expect("room");
        assert_eq!(reader.value(b"key"), Some(b"two".to_vec()), "the mark tells");
        assert_eq!(reader.client.stats().stale, 1);
        writer.delete(b"key");
        assert_eq!(reader.value(b"key"), None);
    });
}

#[test]
fn a_write_that_does_not_come_leaves_the_version_before() {
    store(|store| {
        let (mut writer, mut reader) = (store.client(0), store.client(10));
        writer.put(b"key", b"one").expect("room");
        assert_eq!(reader.value(b"key"), Some(b"one".to_vec()));
        let put = Request::Put { key: b"key".to_vec(), len: 3, expires: 0, expect: Expect::Any };
        let Reply::Reserved(reserved) = writer.call(&put) else { panic!("room") };
        assert_eq!(reader.value(b"key"), Some(b"one".to_vec()), "4.2");
        assert_eq!(reader.client.stats().fell_back, 1);
        // Another write of the key has to wait for it.
        let mut other = store.client(0);
        assert_eq!(other.call(&put), Reply::Refused(Refusal::Unfinished));
        assert_eq!(
            other.call(&Request::Abandon { version: reserved.version }),
            Reply::Refused(Refusal::NotYours)
        );
        // The lease passes, the host cuts the writer off, and the key is free again.
        store.now.set(5000);
        store.step();
        assert_eq!(store.events(), [remanence_kv::server::Event::Fence { client: writer.id }]);
        assert_eq!(writer.call(&Request::View), Reply::Refused(Refusal::Fenced));
        store.server.borrow_mut().disconnected(writer.id).expect("memory does not fail");
        assert_eq!(store.server.borrow().stats().given_up, 1);
        reader.verbs.clear();
        assert_eq!(reader.value(b"key"), Some(b"one".to_vec()));
        other.put(b"key", b"two").expect("the key is free");
        assert_eq!(reader.value(b"key"), Some(b"two".to_vec()));
    });
}

#[test]
fn an_acknowledged_value_stays_though_its_client_dies_before_the_server_is_told() {
    for options in [DURABLE, ERDA] {
        let image = formatted(SMALL, 64);
        let store = Store::open(&image, options);
        let mut writer = store.client(0);
        writer.put(b"key", b"one").expect("room");
        writer.put(b"key", b"two").expect("room");
        let id = writer.id;
        drop(writer);
        store.server.borrow_mut().disconnected(id).expect("memory does not fail");
        assert_eq!(store.server.borrow().stats().given_up, 0);
        assert_eq!(store.client(0).value(b"key"), Some(b"two".to_vec()));
    }
}

#[test]
fn a_write_that_its_client_abandons_frees_the_key_at_once() {
    store(|store| {
        let mut writer = store.client(0);
        let put = Request::Put { key: b"new".to_vec(), len: 3, expires: 0, expect: Expect::Absent };
        let Reply::Reserved(reserved) = writer.call(&put) else { panic!("room") };
        assert_eq!(writer.value(b"new"), None);
        assert_eq!(writer.call(&Request::Abandon { version: reserved.version }), Reply::Ok);
        assert_eq!(store.server.borrow().usage().entries, 0, "nothing is left of a creation that failed");
        writer.put_if(b"new", b"one", Expect::Absent).expect("the condition holds");
    });
}

#[test]
fn a_change_depends_on_what_it_expects() {
    store(|store| {
        let mut client = store.client(0);
        let wrong = |found| Err(Error::Refused(Refusal::WrongVersion { found }));
        assert_eq!(client.put_if(b"key", b"0", Expect::Present), wrong(0));
        assert_eq!(client.put_if(b"key", b"0", Expect::Version(9)), wrong(0));
        let one = client.put_if(b"key", b"1", Expect::Absent).expect("absent");
        assert_eq!(client.put_if(b"key", b"2", Expect::Absent), wrong(one));
        let two = client.put_if(b"key", b"2", Expect::Version(one)).expect("it has this version");
        assert_eq!(client.put_if(b"key", b"3", Expect::Version(one)), wrong(two));
        let stale = Request::Delete { key: b"key".to_vec(), expect: Expect::Version(one) };
        assert_eq!(client.call(&stale), Reply::Refused(Refusal::WrongVersion { found: two }));
        client.delete(b"key");
        let three = client.put_if(b"key", b"3", Expect::Absent).expect("deleted is absent");
        assert!(three > two, "a key that comes back does not repeat versions");
    });
}

#[test]
fn a_value_ends_when_its_time_comes() {
    store(|store| {
        let mut client = store.client(4);
        client.run(&mut Put::new(b"key", b"one", 100, Expect::Any)).expect("room");
        assert_eq!(client.value(b"key"), Some(b"one".to_vec()));
        store.now.set(100);
        assert_eq!(client.value(b"key"), None, "cached or not");
        assert_eq!(store.client(0).value(b"key"), None);
        client.put_if(b"key", b"two", Expect::Absent).expect("what has ended is absent");
        assert_eq!(client.value(b"key"), Some(b"two".to_vec()));
    });
}

#[test]
fn a_value_is_there_until_its_very_last_millisecond_to_everybody_who_looks() {
    store(|store| {
        let mut writer = store.client(4);
        let version = writer.run(&mut Put::new(b"key", b"one", 100, Expect::Any)).expect("room");
        let mut cached = store.client(4);
        let get = Request::Get { key: b"key".to_vec() };
        for (now, there) in [(1, true), (99, true), (100, false), (101, false)] {
            store.now.set(now);
            let one = there.then(|| b"one".to_vec());
            assert_eq!(writer.value(b"key"), one, "who wrote it, at {now}");
            assert_eq!(cached.value(b"key"), one, "who cached where it is, at {now}");
            assert_eq!(store.client(0).value(b"key"), one, "who reads the entry, at {now}");
            let reply = writer.call(&get);
            assert_eq!(matches!(reply, Reply::Value { expires: 100, .. }), there, "the server, at {now}");
            assert_eq!(writer.keys().len(), usize::from(there), "a scan, at {now}");
            // What a change may depend on: each of these is refused, and says which version was found.
            let found = Reply::Refused(Refusal::WrongVersion { found: if there { version } else { 0 } });
            let expect = if there { Expect::Absent } else { Expect::Present };
            let key = b"key".to_vec();
            let asked = [
                Request::Put { key: key.clone(), len: 3, expires: 0, expect },
                Request::PutInline { key: key.clone(), value: b"two".to_vec(), expires: 0, expect },
                Request::Delete { key, expect },
            ];
            for asked in asked {
                assert_eq!(writer.call(&asked), found, "{asked:?} at {now}");
            }
        }
        // It took no version of its own to end.
        let next = writer.put_if(b"key", b"two", Expect::Absent).expect("what has ended is absent");
        assert!(next > version);
    });
}

#[test]
fn cleaning_keeps_what_has_not_ended_yet() {
    for (now, there) in [(99, true), (100, false)] {
        store(|store| {
            let mut client = store.client(0);
            client.run(&mut Put::new(b"key", b"one", 100, Expect::Any)).expect("room");
            client.put(b"other", b"stays").expect("room");
            store.now.set(now);
            for head in 0..2 {
                let _ = store.server.borrow_mut().clean(head);
                store.settle_down(&mut [&mut client]);
            }
            assert_eq!(client.value(b"key").is_some(), there, "at {now}");
            assert_eq!(client.value(b"other"), Some(b"stays".to_vec()));
            // And of those that ended the entry is gone, too.
            assert_eq!(store.server.borrow().usage().entries, 1 + u64::from(there), "at {now}");
        });
    }
}

#[test]
fn a_value_larger_than_a_segment_lies_in_chunks() {
    store(|store| {
        let mut client = store.client(4);
        let large = value(3, 5000);
        client.put(b"large", &large).expect("room");
        assert_eq!(client.value(b"large"), Some(large.clone()));
        assert_eq!(store.client(0).value(b"large"), Some(large.clone()));
        client.put(b"large", b"small").expect("room");
        assert_eq!(client.value(b"large"), Some(b"small".to_vec()));
        let inline =
            Request::PutInline { key: b"in".to_vec(), value: large.clone(), expires: 0, expect: Expect::Any };
        assert!(matches!(client.call(&inline), Reply::Done { .. }));
        assert_eq!(client.value(b"in"), Some(large.clone()));
        let Reply::Value { value, .. } = client.call(&Request::Get { key: b"in".to_vec() }) else { panic!() };
        assert_eq!(value, large);
    });
}

#[test]
fn a_chunk_that_is_torn_is_not_served() {
    for options in [DURABLE, ERDA] {
        let image = formatted(SMALL, 64);
        let store = Store::open(&image, options);
        let (mut writer, mut reader) = (store.client(0), store.client(0));
        writer.put(b"large", &value(1, 3000)).expect("room");
        let put = Request::Put { key: b"large".to_vec(), len: 3000, expires: 0, expect: Expect::Any };
        let Reply::Reserved(reserved) = writer.call(&put) else { panic!("room") };
        let (mut rest, mut chunks, mut parts) = (&value(2, 3000)[..], Vec::new(), Vec::new());
        for extent in &reserved.extents {
            let (part, behind) = rest.split_at(extent.len as usize);
            chunks.push(Chunk { offset: extent.offset, len: extent.len, crc: crc64(&[part]) });
            parts.push((extent.at, part.to_vec()));
            rest = behind;
        }
        let place =
            ObjectAddress { salt: SALT, head: reserved.head, offset: reserved.offset, epoch: reserved.epoch };
        let object = emit(&place, reserved.version, 0, b"large", Content::Chained(&chunks));
        image.write(reserved.at + WRITTEN_FROM as u64, &object[WRITTEN_FROM..]);
        let (last, others) = parts.split_last().expect("chunks");
        others.iter().for_each(|(at, part)| image.write(*at, part));
        image.write(last.0, &last.1[1..]);
        assert_eq!(reader.value(b"large"), Some(value(1, 3000)), "one byte of the last chunk is missing");
        image.write(last.0, &last.1);
        assert_eq!(reader.value(b"large"), Some(value(2, 3000)));
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    store(|store| {
        let mut client = store.client(0);
        let refused = |r: Refusal| Err::<u64, _>(Error::Refused(r));
        assert_eq!(client.put(b"", b"x"), refused(Refusal::BadKey));
        assert_eq!(client.put(&[1; KEY_MAX + 1], b"x"), refused(Refusal::BadKey));
        client.put(&[1; 900], b"x").expect("a key that fits a segment");
        let put = Request::Put { key: b"k".to_vec(), len: u64::MAX, expires: 0, expect: Expect::Any };
        assert!(matches!(client.call(&put), Reply::Refused(Refusal::TooLarge { .. })));
        let nested = Request::Batch(vec![Request::Batch(vec![])]);
        assert_eq!(
            store.server.borrow_mut().handle(0, client.id, &nested),
            Reply::Batch(vec![Reply::Refused(Refusal::Malformed)])
        );
        let put = |n: u8| Request::Put { key: vec![n], len: 1, expires: 0, expect: Expect::Any };
        let replies: Vec<Reply> = (1..=17).map(|n| client.call(&put(n))).collect();
        assert!(replies[..16].iter().all(|reply| matches!(reply, Reply::Reserved(_))));
        assert_eq!(replies[16], Reply::Refused(Refusal::TooMany));
    });
}

#[test]
fn a_batch_shares_doorbells_messages_and_flushes() {
    store(|store| {
        let mut client = store.client(0);
        let puts = (0..20u64).map(|n| Put::new(&n.to_le_bytes(), &value(n, 50), 0, Expect::Any)).collect();
        // More than one client may have under way: the rest is refused, and nothing of it hangs.
        let outputs = client.run(&mut Many::new(puts));
        assert_eq!(outputs.iter().filter(|output| output.is_ok()).count(), 16);
        assert_eq!(client.verbs, ["call", "persist"], "one message and one flush for all");
        let confirm = client.client.poll_confirm().expect("sixteen");
        client.call(&confirm);
        store.step();
        assert_eq!(store.server.borrow().usage().unfinished, 0);
        client.verbs.clear();
        let gets = (0..16u64).map(|n| Get::new(&n.to_le_bytes())).collect();
        let found = client.run(&mut Many::new(gets));
        assert_eq!(client.posts, 2 + 2, "two rounds");
        for (n, found) in found.into_iter().enumerate() {
            let found = found.expect("no failure").expect("there");
            assert_eq!(found.value, value(n as u64, 50));
        }
    });
}

#[test]
fn every_key_is_listed_once() {
    store(|store| {
        let mut client = store.client(0);
        let mut all: Vec<Vec<u8>> = (0..40u8).map(|n| vec![b'k', n]).collect();
        for key in &all {
            client.put(key, b"v").expect("room");
        }
        client.delete(&all.remove(7));
        assert_eq!(client.keys(), all);
    });
}

#[test]
fn a_full_pool_says_so_and_cleaning_makes_room() {
    let image = formatted(SMALL, 64);
    let store = Store::open(&image, Options { clean_by_itself: true, ..DURABLE });
    let mut client = store.client(8);
    // Far more than the pool holds, of few keys.
    for n in 0..600u64 {
        let key = [n as u8 % 10];
        let mut tries = 0;
        while client.put(&key, &value(n, 200)) == Err(FULL) {
            tries += 1;
            assert!(tries < 20, "cleaning does not help at {n}");
            store.settle_down(&mut [&mut client]);
        }
        if n % 20 == 0 {
            store.settle_down(&mut [&mut client]);
        }
        assert_eq!(client.value(&key), Some(value(n, 200)), "{n}");
    }
    assert!(store.server.borrow().stats().regions_freed > 20, "{:?}", store.server.borrow().stats());
    // And of ever new ones: that is full, and what was there stays.
    let full = (0..1000u64).find(|n| client.put(&n.to_le_bytes(), &value(*n, 200)).is_err());
    let full = full.expect("the pool is finite");
    store.settle_down(&mut [&mut client]);
    for n in 0..full {
        assert_eq!(client.value(&n.to_le_bytes()), Some(value(n, 200)), "{n} of {full}");
    }
    // Deleting makes room.
    for n in 0..full {
        client.delete(&n.to_le_bytes());
        if n % 8 == 0 {
            store.settle_down(&mut [&mut client]);
        }
    }
    store.settle_down(&mut [&mut client]);
    client.put(b"again", b"room").expect("deleting made room");
}

/// Garbage is room that is not there yet, and no reason to tell anybody that the store is full; values are.
#[test]
fn who_asks_for_room_waits_for_cleaning_and_is_told_when_that_made_none() {
    for inline_max in [0, 400] {
        let image = formatted(SMALL, 16);
        let store = Store::open(&image, Options { clean_by_itself: true, inline_max, ..DURABLE });
        let mut client = store.client(0);
        let put = |n: u64| Request::PutInline {
            key: n.to_le_bytes().to_vec(),
            value: value(n, 300),
            expires: 0,
            expect: Expect::Any,
        };
        // Nobody takes a step.
        let mut refused = (0..10_000).map(|n| client.call(&put(n % 5)));
        let refused = refused.find(|reply| matches!(reply, Reply::Refused(_)));
        assert_eq!(refused, Some(Reply::Refused(Refusal::Cleaning)), "all but five of them are garbage");
        store.settle_down(&mut [&mut client]);
        assert!(!matches!(client.call(&put(0)), Reply::Refused(_)), "there is room now");

        let mut tries = 0;
        let mut keys = 5..;
        let mut key = keys.next().expect("endless");
        loop {
            match client.call(&put(key)) {
                Reply::Refused(Refusal::Cleaning | Refusal::Growing) => {
                    store.settle_down(&mut [&mut client]);
                    tries += 1;
                    assert!(tries < 1000, "cleaning has no end");
                }
                Reply::Refused(refusal) => {
                    assert_eq!(refusal, Refusal::Full);
                    break;
                }
                _ => key = keys.next().expect("endless"),
            }
        }
        assert!(key > 20, "{key} values are not all that fit");
    }
}

#[test]
fn the_table_grows_under_its_readers() {
    let geometry = Geometry { size: 256 << 10, region_len: 8192, ..SMALL };
    let image = formatted(geometry, 16);
    let store = Store::open(&image, DURABLE);
    let (mut writer, mut reader) = (store.client(0), store.client(0));
    let mut known = 0u64;
    for n in 0..500u64 {
        loop {
            match writer.try_run(&mut Put::new(&n.to_le_bytes(), &value(n, 20), 0, Expect::Any)) {
                Ok(Ok(_)) => break,
                // Growing waits until everybody has the view; here nobody else runs.
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => store.settle_down(&mut [&mut writer, &mut reader]),
            }
        }
        if n % 7 == 0 {
            store.step();
            writer.attend();
            reader.attend();
        }
        known = known * 31 % (n + 1);
        assert_eq!(reader.value(&known.to_le_bytes()), Some(value(known, 20)), "{known} after {n}");
        assert_eq!(reader.value(&(n + 1).to_le_bytes()), None);
    }
    store.settle_down(&mut [&mut writer, &mut reader]);
    let stats = store.server.borrow().stats();
    assert!(stats.grown >= 4 && stats.entries_moved > 100, "{stats:?}");
    assert_eq!(writer.keys().len(), 500);
    for n in 0..500u64 {
        assert_eq!(reader.value(&n.to_le_bytes()), Some(value(n, 20)));
    }
}

#[test]
fn a_client_that_waits_lets_the_server_go_on() {
    // Growing and cleaning wait for acknowledgements of the very client that waits for them.
    let geometry = Geometry { size: 96 << 10, region_len: 4096, ..SMALL };
    let image = formatted(geometry, 16);
    let store = Store::open(&image, Options { clean_by_itself: true, ..DURABLE });
    let mut client = store.client(8);
    for n in 0..2000u64 {
        let key = (n % 150).to_le_bytes();
        client.put(&key, &value(n, 100)).expect("room");
    }
    let stats = store.server.borrow().stats();
    assert!(stats.grown > 0 && stats.regions_freed > 10 && stats.fenced == 0, "{stats:?}");
    for n in 1850..2000u64 {
        assert_eq!(client.value(&(n % 150).to_le_bytes()), Some(value(n, 100)));
    }
}

#[test]
fn a_table_that_cannot_grow_is_full_and_says_so() {
    // Regions of 1 KiB, which the table's successor needs many of in a row, and values have used.
    let geometry = Geometry { size: 26 << 10, region_len: 1024, segment_len: 512, heads: 1, grown_from: 0 };
    let image = formatted(geometry, 16);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    let put = |n: u8| Request::PutInline { key: vec![n], value: vec![n], expires: 0, expect: Expect::Any };
    let mut full = None;
    for n in 0..200u8 {
        let mut tries = 0;
        let reply = loop {
            let reply = client.call(&put(n));
            store.step();
            client.attend();
            tries += 1;
            if reply != Reply::Refused(Refusal::Growing) || tries > 100 {
                break reply;
            }
        };
        match reply {
            Reply::Done { .. } => {}
            Reply::Refused(Refusal::Full) => {
                full = Some(n);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let full = full.expect("it is finite");
    for n in 0..full {
        assert_eq!(client.value(&[n]), Some(vec![n]));
    }
    client.delete(&[0]);
    client.put(&[1], &[2]).expect("a key that is there can be written");
}

#[test]
fn a_miss_is_believed_only_if_nothing_moved_meanwhile() {
    store(|store| {
        let mut client = store.client(0);
        client.put(b"key", b"value").expect("room");
        let now = store.now.get();
        let answer = |verbs: &[Verb], moved: u64| -> Vec<Completion> {
            let read = verbs.iter().enumerate().map(|(n, verb)| match verb {
                // The entry was read at its new place before it came there, and at its old one after it had gone.
                Verb::Read { len: 256, .. } => Completion::Read(vec![0; 256]),
                Verb::Read { len: 8, .. } => {
                    let count = if n == 0 { 0 } else { moved };
                    Completion::Read(u64::to_le_bytes(count).to_vec())
                }
                other => panic!("{other:?}"),
            });
            read.collect()
        };
        for (moved, believed) in [(1, false), (0, true)] {
            let mut get = Get::new(b"key");
            let mut completions = Vec::new();
            for round in 0..2 {
                let Progress::Post(verbs) = get.step(&mut client.client, now, completions) else { panic!() };
                assert_eq!(verbs.len(), if round == 0 { 1 } else { 3 });
                completions = answer(&verbs, moved);
            }
            let next = get.step(&mut client.client, now, completions);
            assert_eq!(next == Progress::Done(Ok(None)), believed, "{moved} moves: {next:?}");
            get.cancel(&mut client.client);
        }
    });
}

#[test]
fn a_cached_location_notices_an_update_of_what_cleaning_moved() {
    store(|store| {
        let (mut writer, mut reader) = (store.client(0), store.client(10));
        writer.put(b"key", b"one").expect("room");
        assert_eq!(reader.value(b"key"), Some(b"one".to_vec()));
        for head in 0..2 {
            store.server.borrow_mut().clean(head).expect("nothing else is being cleaned");
            // The reader hears nothing of it yet; what it has cached is where the value was.
            for _ in 0..10 {
                store.step();
                writer.attend();
            }
            if head == 0 && store.server.borrow().usage().cleaning {
                break;
            }
        }
        assert_eq!(store.server.borrow().stats().objects_moved, 1);
        writer.put(b"key", b"two").expect("room");
        assert_eq!(reader.value(b"key"), Some(b"two".to_vec()));
    });
}

#[test]
fn every_move_of_an_entry_is_counted_where_readers_look() {
    let geometry = Geometry { size: 128 << 10, region_len: 4096, ..SMALL };
    let image = formatted(geometry, 64);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    for n in 0..60u64 {
        client.put(&n.to_le_bytes(), b"v").expect("room");
    }
    let table = store.server.borrow().view().tables[0];
    let counted = remanence_pmem::Medium::load_u64(&image, table.at);
    let moved = store.server.borrow().stats().entries_moved;
    assert_eq!((counted, store.server.borrow().view().tables.len()), (moved, 1));
    store.server.borrow_mut().resize(256).expect("room");
    store.settle_down(&mut [&mut client]);
    let counted = remanence_pmem::Medium::load_u64(&image, table.at);
    assert!(counted >= 60, "{counted}: each entry moved to the larger table");
}

#[test]
fn a_server_that_starts_again_has_everything() {
    let image = formatted(SMALL, 64);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(8);
    for n in 0..30u64 {
        client.put(&n.to_le_bytes(), &value(n, 60)).expect("room");
    }
    client.delete(&3u64.to_le_bytes());
    let before = client.get(&7u64.to_le_bytes()).expect("there");
    drop(client);
    drop(store);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(8);
    for n in 0..30u64 {
        let expected = (n != 3).then(|| value(n, 60));
        assert_eq!(client.value(&n.to_le_bytes()), expected, "{n}");
    }
    let version = client.put_if(&7u64.to_le_bytes(), b"new", Expect::Version(before.version)).expect("CAS");
    assert!(version > before.version, "versions go on over restarts");
}

#[test]
fn what_was_cached_is_forgotten_when_the_server_starts_again() {
    let image = formatted(SMALL, 64);
    let first = Store::open(&image, DURABLE);
    let (mut writer, mut reader) = (first.client(0), first.client(8));
    writer.put(b"key", b"one").expect("room");
    assert_eq!(reader.value(b"key"), Some(b"one".to_vec()));
    writer.put(b"key", b"two").expect("room");
    // Marks are not durable: nothing says any more that the cached object has a successor.
    let crashed = image.crash(Failure::PowerLoss, &mut EveryWay::new());
    let second = Store::open(&crashed, DURABLE);
    let fresh = second.client(0);
    let mut again = Session { client: reader.client, ..fresh };
    again.client.adopt(second.server.borrow().view());
    assert_eq!(again.value(b"key"), Some(b"two".to_vec()));
}

#[test]
fn a_settled_value_that_has_rotted_is_an_error_and_no_older_version() {
    let image = formatted(SMALL, 64);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    client.put(b"twice", b"one").expect("room");
    client.put(b"twice", b"two").expect("room");
    client.put(b"once", b"one").expect("room");
    client.put(b"fine", b"one").expect("room");
    drop(client.keys());
    // A bit rots in the newest version of each.
    let bytes = image.bytes();
    let rot = |needle: &[u8]| {
        let at = bytes.windows(needle.len()).position(|window| window == needle).expect("in the log");
        use remanence_pmem::Medium;
        image.write(at as u64, b"X");
    };
    rot(b"twicetwo");
    rot(b"onceone");
    let scrubbed = store.server.borrow_mut().scrub(0, 1000).expect("memory does not fail");
    assert_eq!((scrubbed.verified, scrubbed.repaired, scrubbed.lost, scrubbed.next), (1, 0, 2, None));
    for key in [&b"twice"[..], b"once"] {
        assert_eq!(client.run(&mut Get::new(key)), Err(Error::Refused(Refusal::Damaged)), "no older version");
        let get = Request::Get { key: key.to_vec() };
        assert_eq!(client.call(&get), Reply::Refused(Refusal::Damaged));
        // Nobody knows what it is, so nothing can be expected of it.
        for expect in [Expect::Absent, Expect::Present, Expect::Version(1)] {
            let put = Request::Put { key: key.to_vec(), len: 1, expires: 0, expect };
            assert_eq!(client.call(&put), Reply::Refused(Refusal::Damaged), "{expect:?}");
        }
    }
    client.put(b"once", b"two").expect("a new value heals the key");
    assert_eq!(client.value(b"once"), Some(b"two".to_vec()));
    client.delete(b"twice");
    assert_eq!(client.value(b"twice"), None, "it was deleted, and has not come back");
}

#[test]
fn a_page_of_an_all_but_empty_table_is_short_and_says_where_to_go_on() {
    const BUCKETS: u64 = 1 << 15;
    let geometry =
        Geometry { size: 32 << 20, region_len: 4 << 20, segment_len: 64 << 10, heads: 2, grown_from: 0 };
    let image = formatted(geometry, BUCKETS);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    for key in [b"one".to_vec(), b"two".to_vec()] {
        let put = Request::PutInline { key, value: vec![1], expires: 0, expect: Expect::Any };
        assert!(matches!(client.call(&put), Reply::Done { .. }));
    }
    let (mut cursor, mut pages, mut found) = (Some(0), 0, Vec::new());
    while let Some(at) = cursor {
        let Reply::Page { next, keys, .. } = client.call(&Request::Scan { cursor: at, limit: 10 }) else {
            panic!("a scan is answered by a page")
        };
        assert!(next.is_none_or(|next| next > at));
        (cursor, pages) = (next, pages + 1);
        found.extend(keys);
    }
    found.sort();
    assert_eq!(found, [b"one".to_vec(), b"two".to_vec()]);
    assert!((8..=16).contains(&pages), "{pages} pages: nobody waits for a whole table");
}

/// An epoch that came again would make an object of an earlier use of its region whole, and the older of two regions the younger.
#[test]
fn a_store_that_has_used_up_its_epochs_is_full_and_is_read() {
    let image = formatted(SMALL, 64);
    let word = RegionWord { epoch: u32::MAX - 10, ..RegionWord::FREE };
    image.write(SMALL.directory(SMALL.regions() - 1), &word.emit().to_le_bytes());
    let options = Options { clean_by_itself: true, ..DURABLE };
    let mut written = 0;
    for round in 0..3 {
        let store = Store::open(&image, options);
        let mut client = store.client(0);
        let refused = loop {
            let newest = (written > 0).then(|| value(written, 500));
            assert_eq!(client.value(b"key"), newest, "round {round}");
            match client.put(b"key", &value(written + 1, 500)) {
                Ok(_) => written += 1,
                Err(refused) => break refused,
            }
            assert!(written < 100, "ten regions have room for some thirty values");
        };
        assert!(matches!(refused, Error::Refused(Refusal::Full)), "{refused:?}");
        assert!(written > 10, "{written}");
    }
    for region in 0..SMALL.regions() {
        let mut word = [0; 8];
        image.read(SMALL.directory(region), &mut word);
        let word = RegionWord::parse(u64::from_le_bytes(word)).expect("as it was stored");
        assert!(word.epoch == 1 || word.epoch == 0 || word.epoch >= u32::MAX - 10, "{word:?}");
    }
}
