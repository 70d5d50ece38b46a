//! The async client, on an executor that is not ours.

use crate::servers as common;

use std::task::Poll;
use std::time::Duration;

use common::{Host, SIZE, context};
use pollster::block_on;
use remanence_kv::client::{Completion, RemoteMemory as _, Verb};
use remanence_kv::{Expect, Refusal, Reply, Request};
use remanence_kv_live::{AsyncStore, Cancelled, ConnectOptions, Error, PutOptions, Store};

/// Longer than any loaded machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> ConnectOptions {
    common::options().patience(PATIENCE)
}

/// A server whose patience with clients is longer than the test's: what is not given up in time is noticed.
fn host() -> Host {
    Host::new(SIZE, |options| options.lease(Duration::from_secs(120)))
}

fn connect(host: &Host) -> AsyncStore {
    AsyncStore::connect(&context(), host.addr, options()).expect("a client")
}

fn put(store: &AsyncStore, key: &[u8], value: &[u8]) -> remanence_kv_live::Pending<u64> {
    store.put(key, value, PutOptions::default())
}

#[test]
fn many_operations_are_under_way_together_and_share_messages() {
    let host = host();
    let store = connect(&host);
    assert_eq!(store.survives(), None, "nothing was acknowledged");
    let before = host.metrics().calls;
    let keys: Vec<Vec<u8>> = (0..400_u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let puts: Vec<_> = keys.iter().map(|key| put(&store, key, key)).collect();
    for put in puts {
        block_on(put).expect("it is written");
    }
    assert!(store.survives().is_some_and(|survives| survives.process_crash), "{:?}", store.survives());
    let calls = host.metrics().calls - before;
    assert!(calls < 100, "{calls} calls for 400 values");
    let other = store.clone();
    let threads: Vec<_> = keys
        .chunks(100)
        .map(|keys| {
            let (store, keys) = (other.clone(), keys.to_vec());
            std::thread::spawn(move || {
                let gets: Vec<_> = keys.iter().map(|key| store.get(key)).collect();
                for (key, get) in keys.iter().zip(gets) {
                    assert_eq!(&block_on(get).expect("it can be read").expect("it is there").value, key);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it read"));
    let swap = PutOptions { expect: Expect::Version(1), ..PutOptions::default() };
    let refused = block_on(store.put(&keys[0], b"x", swap));
    assert!(matches!(refused, Err(Error::Refused(Refusal::WrongVersion { .. }))), "{refused:?}");
    assert!(block_on(store.delete(&keys[0], Expect::Any)).expect("a server").is_some());
    assert_eq!(block_on(store.delete(&keys[0], Expect::Any)).expect("a server"), None);
    assert_eq!(block_on(store.get(&keys[0])).expect("a server"), None);
    let (mut seen, mut cursor) = (0, Some(0));
    while let Some(at) = cursor {
        let page = block_on(store.scan(at, 64)).expect("a page");
        seen += page.keys.len();
        cursor = page.next;
    }
    assert_eq!((seen, store.under_way()), (399, 0));
    // The same, by who fetches the pages.
    let (mut all, mut scan, mut entries) = (Vec::new(), store.keys(), store.entries());
    while let Some(key) = block_on(scan.next()) {
        all.push(key.expect("a page"));
    }
    let mut values = Vec::new();
    while let Some(entry) = block_on(entries.next()) {
        let (key, found) = entry.expect("its value");
        assert_eq!(found.value, key);
        values.push(key);
    }
    all.sort();
    values.sort();
    let mut expected = keys[1..].to_vec();
    expected.sort();
    assert_eq!((&all, &values), (&expected, &expected));
}

#[test]
fn a_future_that_is_dropped_or_cancelled_holds_no_key_and_says_what_became_of_it() {
    let host = host();
    let store = connect(&host);
    let mut other = Store::connect(&context(), host.addr, options()).expect("a client");
    let (mut never, mut done) = (0, 0);
    for n in 0..60_u64 {
        let key = (n % 7).to_le_bytes();
        other.put(&key, b"before", PutOptions::default()).expect("nobody holds the key");
        // Some have not begun, some have been handed room, some are on their way: whatever the thread has come to.
        let pending = put(&store, &key, &n.to_le_bytes());
        for _ in 0..n % 5 * 200 {
            std::thread::yield_now();
        }
        let outcome = if n % 3 == 0 {
            drop(pending);
            None
        } else {
            Some(block_on(pending.cancel()).expect("the server is there"))
        };
        // A key that is held would be until the lease is over, which is longer than the client's patience.
        let value = loop {
            let found = other.get(&key).expect("it can be read").expect("it is there");
            let after = other.put(
                &key,
                b"after",
                PutOptions { expect: Expect::Version(found.version), ..PutOptions::default() },
            );
            match after {
                Ok(_) => break found.value,
                // What was dropped arrived after it was read.
                Err(Error::Refused(Refusal::WrongVersion { .. })) => assert!(outcome.is_none()),
                Err(error) => panic!("{error}"),
            }
        };
        match outcome {
            None => assert!(value == b"before" || value == n.to_le_bytes(), "{value:?}"),
            Some(Cancelled::Never) => {
                never += 1;
                assert_eq!(value, b"before", "nothing was changed");
            }
            Some(Cancelled::Done(_)) => {
                done += 1;
                assert_eq!(value, n.to_le_bytes(), "it took effect");
            }
        }
    }
    println!("{never} never, {done} done");
    assert_eq!(store.under_way(), 0);
    // A GET that is dropped, polled or not.
    drop(store.get(b"x"));
    let mut polled = Box::pin(store.get(b"x"));
    let waker = std::task::Waker::noop();
    let polled_once = std::future::Future::poll(polled.as_mut(), &mut std::task::Context::from_waker(waker));
    assert!(matches!(polled_once, Poll::Pending | Poll::Ready(Ok(None))));
    drop(polled);
    assert_eq!(block_on(store.get(b"x")).expect("it goes on"), None);
}

#[test]
fn a_time_that_is_over_says_whether_something_may_have_changed() {
    let host = host();
    let store = connect(&host);
    block_on(put(&store, b"a", b"1")).expect("it is written");
    assert!(block_on(store.get(b"a").within(PATIENCE)).expect("in time").is_some());
    // Somebody holds the key, and has longer than this client has patience.
    let holder = Store::connect(&context(), host.addr, options()).expect("a client");
    let (_, mut holder) = holder.into_parts();
    let hold = Request::Put { key: b"held".to_vec(), len: 5, expires: 0, expect: Expect::Any };
    let held = holder.post(vec![Verb::Call(hold)]).expect("a server");
    assert!(matches!(&held[..], [Completion::Reply(Reply::Reserved(_))]), "{held:?}");
    let late = put(&store, b"held", b"2").within(Duration::from_millis(50));
    let cancelled = put(&store, b"held", b"3");
    let late = block_on(late).expect_err("the key is held");
    assert!(matches!(late, Error::LateUnknown | Error::Late), "{late:?}");
    assert_eq!(block_on(cancelled.cancel()).expect("a server"), Cancelled::Never);
    // Whoever waits for a key holds nobody else up.
    let waits = put(&store, b"held", b"4");
    assert!(block_on(store.get(b"a")).expect("a server").is_some());
    drop(holder);
    block_on(waits).expect("the key is free when its holder is gone");
    assert_eq!(block_on(store.get(b"held")).expect("a server").expect("it is there").value, b"4");
    // Nobody is there any more: there is an error, and it does not take as long as the client's patience.
    drop(host);
    for pending in [put(&store, b"a", b"5"), put(&store, b"a", b"6")] {
        let error = block_on(pending.within(Duration::from_millis(50))).expect_err("nobody answers");
        let known = matches!(error, Error::Late | Error::LateUnknown | Error::Lost(_) | Error::Unknown(_));
        assert!(known, "{error:?}");
    }
    let get = block_on(store.get(b"b").within(Duration::from_millis(50))).expect_err("nobody answers");
    assert!(matches!(get, Error::Late | Error::Lost(_)), "{get:?}");
}

/// Those that come together use up the room sooner than cleaning frees it.
#[test]
fn many_writers_of_few_keys_wait_for_cleaning_and_find_no_store_full() {
    for inline_max in [8192, 0] {
        let host = Host::new(2 << 20, |options| options.inline_max(inline_max));
        let store = connect(&host);
        for round in 0..15_u32 {
            let keys: Vec<[u8; 4]> = (0..64_u32).map(|n| (n + round % 3).to_le_bytes()).collect();
            let puts: Vec<_> = keys.iter().map(|key| put(&store, key, &[round as u8; 4000])).collect();
            for put in puts {
                block_on(put).expect("there is room, or will be");
            }
        }
        assert!(host.metrics().server.regions_freed > 0);
    }
}

/// The server takes no room back before every client has acknowledged its view, or its lease is over, which is longer than this test
/// waits.
#[test]
fn a_client_that_nobody_asks_for_anything_keeps_nobody_waiting() {
    let host = Host::new(2 << 20, |options| options.lease(Duration::from_secs(120)));
    let idle = connect(&host);
    block_on(put(&idle, b"a", b"1")).expect("it is written");
    let mut busy = Store::connect(&context(), host.addr, options()).expect("a client");
    for round in 0..15_u32 {
        for n in 0..64 {
            let key = u32::to_le_bytes(n + round % 3);
            busy.put(&key, &[round as u8; 4000], PutOptions::default()).expect("there is room, or will be");
        }
    }
    assert!(host.metrics().server.regions_freed > 0);
    assert_eq!(block_on(idle.get(b"a")).expect("a server").expect("it is there").value, b"1");
}

#[test]
fn what_is_asked_for_last_is_carried_out_though_the_store_is_dropped() {
    let host = host();
    let store = connect(&host);
    let pending: Vec<_> = (0..20_u8).map(|n| put(&store, &[b'k', n], &[n])).collect();
    drop(store);
    for put in pending {
        block_on(put).expect("its future is still there");
    }
    let mut other = Store::connect(&context(), host.addr, options()).expect("a client");
    for n in 0..20_u8 {
        assert_eq!(other.get(&[b'k', n]).expect("a server").expect("it is there").value, [n]);
    }
}
