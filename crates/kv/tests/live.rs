//! Real servers and clients over loopback.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "real servers take real time")]

#[path = "live/common.rs"]
mod common;

use common::{Host, SIZE, client};
use remanence_kv::live::{ConnectOptions, Error, PutOptions, Store};
use remanence_kv::proto::{Expect, Refusal};
use remanence_kv::view::Mode;

fn expect(expect: Expect) -> PutOptions {
    PutOptions { expect, ..PutOptions::default() }
}

#[test]
fn what_is_put_is_got_in_both_modes() {
    for mode in [Mode::Durable, Mode::Erda] {
        let host = Host::new(SIZE, |options| options.mode(mode));
        let mut store = client(&host);
        assert_eq!(store.get(b"a").expect("a GET"), None);
        let first = store.put(b"a", b"one", PutOptions::default()).expect("a PUT");
        let found = store.get(b"a").expect("a GET").expect("it is there");
        assert_eq!((found.version, &found.value[..]), (first, &b"one"[..]));
        let refused = store.put(b"a", b"no", expect(Expect::Absent));
        assert!(
            matches!(refused, Err(Error::Refused(Refusal::WrongVersion { found })) if found == first),
            "{refused:?}"
        );
        let second = store.put(b"a", b"two", expect(Expect::Version(first))).expect("a PUT");
        assert!(second > first);
        assert_eq!(store.get(b"a").expect("a GET").map(|found| found.value), Some(b"two".to_vec()));
        assert!(store.delete(b"a", Expect::Any).expect("a DELETE").is_some());
        assert_eq!(store.delete(b"a", Expect::Any).expect("a DELETE"), None);
        assert_eq!(store.get(b"a").expect("a GET"), None);
    }
}

#[test]
fn a_get_costs_the_servers_application_nothing() {
    let host = Host::new(SIZE, |options| options);
    let mut store = client(&host);
    let keys: Vec<Vec<u8>> = (0..40_u32).map(|n| format!("key {n}").into_bytes()).collect();
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &b"a value"[..])).collect();
    store.put_many(&pairs, PutOptions::default()).expect("PUTs").into_iter().for_each(|put| {
        put.expect("a PUT");
    });
    store.rest().expect("the writes are confirmed");
    host.settled();
    // A client that has cached nothing, and one that has cached everything.
    let mut fresh = client(&host);
    let (before, reads) = (host.metrics().calls, fresh.client().stats().reads);
    for key in &keys {
        assert!(fresh.get(key).expect("a GET").is_some());
    }
    assert_eq!(fresh.client().stats().reads - reads, 2 * keys.len() as u64, "an entry, an object");
    let reads = fresh.client().stats().reads;
    for key in &keys {
        assert!(fresh.get(key).expect("a GET").is_some());
    }
    assert_eq!(fresh.client().stats().reads - reads, keys.len() as u64, "an object");
    assert_eq!(fresh.get_many(&keys).expect("GETs").iter().flatten().count(), keys.len());
    assert_eq!(host.metrics().calls, before, "nobody at the server saw any of them");
}

#[test]
fn a_store_is_found_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let version = {
        let host = Host::at(&path, SIZE, |options| options);
        let mut store = client(&host);
        store.put(b"kept", b"over a restart", PutOptions::default()).expect("a PUT")
    };
    let host = Host::at(&path, SIZE, |options| options);
    let mut store =
        Store::connect(&common::context(), host.addr, ConnectOptions::default()).expect("connected");
    let found = store.get(b"kept").expect("a GET").expect("it is there");
    assert_eq!((found.version, &found.value[..]), (version, &b"over a restart"[..]));
    assert!(store.put(b"kept", b"again", PutOptions::default()).expect("a PUT") > version);
}
