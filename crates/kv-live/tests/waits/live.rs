//! Real servers and clients over loopback.

use crate::servers as common;

use std::time::{Duration, Instant};

use common::{Host, PATIENCE, SIZE, client};
use remanence_kv::client::{Completion, RemoteMemory as _, Verb};
use remanence_kv::proto::{Expect, Refusal, Reply, Request};
use remanence_kv::view::Mode;
use remanence_kv_live::{
    Change, ConnectOptions, Error, PutOptions, Server, ServerOptions, Stop, Store, inspect,
};
use remanence_pmem::{FileOptions, Region};

/// Of a server that is to cut somebody off: the others must have been heard of within it on a busy machine too.
const LEASE: Duration = Duration::from_secs(4);

fn expect(expect: Expect) -> PutOptions {
    PutOptions { expect, ..PutOptions::default() }
}

#[test]
fn what_is_put_is_got_in_both_modes() {
    for (mode, inline_max) in [(Mode::Durable, 8192), (Mode::Durable, 0), (Mode::Erda, 0)] {
        let host = Host::new(SIZE, |options| options.mode(mode).inline_max(inline_max));
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

/// Up to the limit; a longer one gets room. Nobody has to say anything for it but where it is as in the paper.
#[test]
fn a_small_value_is_one_message() {
    let way = |change: fn(ServerOptions) -> ServerOptions, len: usize| {
        let host = Host::new(SIZE, change);
        let mut store = client(&host);
        let before = host.metrics();
        store.put(b"key", &vec![7; len], PutOptions::default()).expect("a PUT");
        let stats = host.metrics();
        assert_eq!(store.get(b"key").expect("a GET").map(|found| found.value.len()), Some(len));
        (stats.calls - before.calls, stats.server.written, stats.server.reserved)
    };
    assert_eq!(way(|options| options, 8192), (1, 1, 0), "the server writes it");
    assert_eq!(way(|options| options, 8193), (1, 0, 1), "the client does");
    assert_eq!(way(|options| options.inline_max(100), 100), (1, 1, 0));
    assert_eq!(way(|options| options.inline_max(100), 101), (1, 0, 1));
    assert_eq!(way(|options| options.inline_max(0), 1), (1, 0, 1));
    assert_eq!(way(|options| options.mode(Mode::Erda), 1), (1, 0, 1), "as in the paper");
    let refused = |options: ServerOptions| {
        let bound = Server::bind(&common::context(), options).map(drop);
        let Err(Error::Argument(sentence)) = bound else { panic!("{bound:?}") };
        sentence
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = || ServerOptions::file(dir.path().join("store")).size(SIZE);
    assert!(refused(options().inline_max(8193)).contains("8192 bytes"));
    assert!(refused(options().mode(Mode::Erda).inline_max(1)).contains("mode durable"));
    assert!(!dir.path().join("store").exists(), "nothing was made");
}

/// The paper's flow: the request by WRITE with immediate, the address back, and the object by WRITE. A client that does not ask for it
/// is served as well.
#[test]
fn in_mode_erda_nothing_is_sent_but_the_servers_answers() {
    let puts = |mode: Mode| {
        let host = Host::new(SIZE, |options| options.mode(mode).inline_max(0));
        let device = common::context();
        let mut store = Store::connect(&device, host.addr, common::options()).expect("connected");
        let before = device.stats();
        let calls = host.metrics().calls;
        for n in 0..200_u32 {
            // Also one that takes several messages.
            let key = vec![n as u8; if n == 100 { 200 } else { 3 }];
            store.put(&key, &n.to_le_bytes(), PutOptions::default()).expect("a PUT");
        }
        let keys: Vec<Vec<u8>> = (0..200_u16).map(|n| [&n.to_le_bytes()[..], &[7; 200]].concat()).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &b"a value"[..])).collect();
        let all = store.put_many(&pairs, PutOptions::default()).expect("PUTs");
        assert!(all.iter().all(Result::is_ok));
        assert!(store.delete(&[5; 3], Expect::Any).expect("a DELETE").is_some());
        assert_eq!(
            store.get(&[9; 3]).expect("a GET").map(|found| found.value),
            Some(9_u32.to_le_bytes().into())
        );
        assert_eq!(store.get_many(&keys).expect("GETs").iter().flatten().count(), 200);
        let after = device.stats();
        assert!(host.metrics().calls - calls > 200 && after.receives - before.receives > 200);
        (after.sends - before.sends, store.session().calls_by_immediate())
    };
    assert_eq!(puts(Mode::Erda), (0, true));
    let (sends, by_immediate) = puts(Mode::Durable);
    assert!(sends > 200 && !by_immediate);
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
fn keys_and_entries_are_iterators_over_all_that_is_there() {
    let host = Host::new(SIZE, |options| options);
    let mut store = Store::connect_to(host.addr, common::options()).expect("no address of its own is needed");
    assert_eq!(store.keys().count(), 0);
    // More than a page, and every third is deleted again.
    let pairs: Vec<(String, String)> =
        (0..900).map(|n| (format!("key{n:03}"), format!("value{n}"))).collect();
    store.put_many(&pairs, PutOptions::default()).expect("PUTs").into_iter().for_each(|put| {
        put.expect("a PUT");
    });
    for (key, _) in pairs.iter().step_by(3) {
        store.delete(key.as_bytes(), Expect::Any).expect("a DELETE");
    }
    let left = pairs.iter().enumerate().filter(|(n, _)| n % 3 > 0).map(|(_, pair)| pair);
    let left: Vec<(Vec<u8>, Vec<u8>)> = left.map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
    let mut keys: Vec<Vec<u8>> = store.keys().collect::<Result<_, _>>().expect("a scan");
    keys.sort();
    assert_eq!(keys, left.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), "each once");
    let entries = store.entries().map(|entry| entry.map(|(key, found)| (key, found.value)));
    let mut entries: Vec<_> = entries.collect::<Result<_, _>>().expect("a scan");
    entries.sort();
    assert_eq!(entries, left);
}

/// One has lost its value, another one its key as well.
#[test]
fn what_is_damaged_comes_as_an_error_among_the_others() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = FileOptions::new().create(SIZE).open(dir.path().join("store")).expect("a file");
    let host = Host::of(ServerOptions::region(region.clone()).mode(Mode::Erda));
    let mut store = client(&host);
    for n in 0..20 {
        store.put(format!("key {n:02}").as_bytes(), &[n; 64], PutOptions::default()).expect("a PUT");
    }
    store.rest().expect("the writes are confirmed");
    host.settled();
    let mut all = vec![0; SIZE as usize];
    region.read(0, &mut all);
    let places = |n: u8| {
        let object = [format!("key {n:02}").into_bytes(), vec![n; 64]].concat();
        let at = |from: usize| all[from..].windows(object.len()).position(|bytes| bytes == object);
        at(0).expect("it lies there") as u64
    };
    region.write(places(3) + 20, b"rot");
    region.write(places(5), &[0xee; 64]);
    let (mut keys, mut nameless) = (0, 0);
    for key in store.keys() {
        match key {
            Ok(_) => keys += 1,
            Err(Error::Nameless(count)) => nameless += count,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((keys, nameless), (19, 1));
    let (good, bad): (Vec<_>, Vec<_>) = store.entries().partition(Result::is_ok);
    assert_eq!((good.len(), bad.len()), (18, 2));
    let said: Vec<String> = bad.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    assert!(said.iter().any(|said| said.contains("damaged on the medium")), "{said:?}");
    assert!(said.iter().any(|said| said.starts_with("1 value is damaged so much")), "{said:?}");
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

#[test]
fn a_batch_is_one_message_and_one_doorbell() {
    let host = Host::new(SIZE, |options| options);
    let mut store = client(&host);
    let before = host.metrics().calls;
    let pairs: Vec<(String, String)> =
        (0..256).map(|n| (format!("key {n}"), format!("value {n} {}", "x".repeat(n)))).collect();
    let versions = store.put_many(&pairs, PutOptions::default()).expect("PUTs");
    assert!(versions.iter().all(Result::is_ok), "{versions:?}");
    let calls = host.metrics().calls - before;
    assert!(calls <= 3, "{calls} calls for 256 values: a batch, and perhaps a view and its acknowledgement");
    let keys: Vec<&String> = pairs.iter().map(|(key, _)| key).collect();
    for (found, (_, value)) in store.get_many(&keys).expect("GETs").into_iter().zip(&pairs) {
        assert_eq!(found.expect("it is there").value, value.as_bytes());
    }
    // Each has its own outcome.
    let mixed = [("key 1", "again"), ("new", "one")];
    let outcomes = store.put_many(&mixed, expect(Expect::Absent)).expect("PUTs");
    assert!(matches!(outcomes[0], Err(Error::Refused(Refusal::WrongVersion { .. }))), "{outcomes:?}");
    assert!(outcomes[1].is_ok(), "{outcomes:?}");
}

#[test]
fn large_values_go_in_chunks() {
    let host = Host::new(64 << 20, |options| options);
    let mut store = client(&host);
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    store.put(b"large", b"small at first", PutOptions::default()).expect("a PUT");
    let version = store.put(b"large", &large, PutOptions::default()).expect("a PUT");
    let mut other = client(&host);
    let found = other.get(b"large").expect("a GET").expect("it is there");
    assert!(found.version == version && found.value == large);
    store.put(b"large", b"small again", PutOptions::default()).expect("a PUT");
    assert_eq!(other.get(b"large").expect("a GET").expect("it is there").value, b"small again");
    let refused = store.put(b"too large", &vec![0; 80 << 20], PutOptions::default());
    assert!(matches!(refused, Err(Error::Refused(Refusal::TooLarge { .. }))), "{refused:?}");
}

#[test]
fn counting_by_compare_and_swap_loses_nothing() {
    for inline_max in [8192, 0] {
        count(inline_max);
    }
}

fn count(inline_max: u32) {
    const EACH: u64 = 30;
    let host = Host::new(SIZE, |options| options.inline_max(inline_max));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut store = client(&host);
                for _ in 0..EACH {
                    loop {
                        let (version, count) = match store.get(b"count").expect("a GET") {
                            Some(found) => (
                                Expect::Version(found.version),
                                u64::from_le_bytes(found.value.try_into().expect("8")),
                            ),
                            None => (Expect::Absent, 0),
                        };
                        match store.put(b"count", &(count + 1).to_le_bytes(), expect(version)) {
                            Ok(_) => break,
                            Err(Error::Refused(Refusal::WrongVersion { .. })) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    let count = client(&host).get(b"count").expect("a GET").expect("it is there").value;
    assert_eq!(count, (3 * EACH).to_le_bytes());
}

#[test]
fn values_end_when_their_time_is_over() {
    let host = Host::new(SIZE, |options| options);
    let mut store = client(&host);
    let ttl = |time| PutOptions { ttl: Some(time), ..PutOptions::default() };
    store.put(b"long", b"lasts", ttl(Duration::from_secs(3600))).expect("a PUT");
    store.put(b"short", b"does not", ttl(Duration::from_millis(1))).expect("a PUT");
    let begin = Instant::now();
    while store.get(b"short").expect("a GET").is_some() {
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let found = store.get(b"long").expect("a GET").expect("it is there");
    assert!(found.expires > store.session().lease().as_millis() as u64, "a time of the server's clock");
    assert_eq!(client(&host).get(b"long").expect("a GET").expect("it is there").value, b"lasts");
}

#[test]
fn every_key_is_seen_once() {
    let host = Host::new(SIZE, |options| options.keys(64));
    let mut store = client(&host);
    let pairs: Vec<(String, &str)> = (0..300).map(|n| (format!("key {n}"), "value")).collect();
    for outcome in store.put_many(&pairs, PutOptions::default()).expect("PUTs") {
        outcome.expect("a PUT");
    }
    let (mut seen, mut cursor) = (Vec::new(), Some(0));
    while let Some(from) = cursor {
        let page = store.scan(from, 37).expect("a page");
        seen.extend(page.keys);
        cursor = page.next;
    }
    seen.sort();
    let mut all: Vec<Vec<u8>> = pairs.iter().map(|(key, _)| key.clone().into_bytes()).collect();
    all.sort();
    assert!(seen == all, "{} of {} keys", seen.len(), all.len());
    assert!(host.metrics().server.grown > 0, "the table was too small for that");
}

#[test]
fn a_long_value_goes_out_in_lots_and_each_is_written_by_its_key() {
    // Regions of 8 MiB and segments of 2 MiB: chunks go out in parts, and some objects too.
    let host = Host::new(512 << 20, |options| options.lease(Duration::from_secs(60)));
    let mut store = client(&host);
    for len in [(1 << 20) + 1, 19 << 20] {
        let value: Vec<u8> = (0..len as u32).map(|n| (n % 251) as u8 ^ (n >> 13) as u8).collect();
        store.put(b"key", &value, PutOptions::default()).expect("a PUT");
        assert!(store.get(b"key").expect("a GET").expect("it is there").value == value, "{len}");
    }
}

#[test]
fn who_holds_a_key_up_is_cut_off() {
    let host = Host::new(SIZE, |options| options.lease(LEASE));
    let mut store = client(&host);
    let version = store.put(b"key", b"before", PutOptions::default()).expect("a PUT");
    let (_, mut holder) = client(&host).into_parts();
    let ask = Request::Put { key: b"key".to_vec(), len: 5, expires: 0, expect: Expect::Any };
    let reserved = match holder.post(vec![Verb::Call(ask)]).expect("a reply").pop() {
        Some(Completion::Reply(Reply::Reserved(reserved))) => reserved,
        other => panic!("{other:?}"),
    };
    // Readers are not held up.
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").version, version);
    // A writer is, until the holder is gone; and then nothing that it writes arrives.
    store.put(b"key", b"after", PutOptions::default()).expect("a PUT");
    assert_eq!(host.metrics().server.fenced, 1);
    let late = holder.post(vec![Verb::Write { at: reserved.at + 16, bytes: vec![0xee; 64] }]);
    assert!(late.is_err(), "{late:?}");
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"after");
}

#[test]
fn whoever_does_not_wait_for_others_makes_what_they_are_not_in_the_way_of() {
    let host = Host::new(SIZE, |options| options);
    let (_, mut holder) = client(&host).into_parts();
    let ask = Request::Put { key: b"held".to_vec(), len: 5, expires: 0, expect: Expect::Any };
    let reserved = match holder.post(vec![Verb::Call(ask)]).expect("a reply").pop() {
        Some(Completion::Reply(Reply::Reserved(reserved))) => reserved,
        other => panic!("{other:?}"),
    };
    let mut store = client(&host);
    let change = |key, value| Change { key, value: Some(value), expect: Expect::Any, ttl: None };
    // A short value by the server, a long one by the client itself.
    let long = vec![7; 100_000];
    for value in [&b"short"[..], &long] {
        let done = store.change_at_once(&[change(b"held", value), change(b"free", value)]).expect("changes");
        assert!(matches!(&done[..], [None, Some(Ok(_))]), "{done:?}");
        assert_eq!(store.get(b"free").expect("a GET").expect("it is there").value, value);
    }
    holder
        .post(vec![Verb::Call(Request::Abandon { version: reserved.version })])
        .expect("it was not cut off");
    let done = store.change_at_once(&[change(b"held", &long)]).expect("changes");
    assert!(matches!(&done[..], [Some(Ok(_))]), "{done:?}");
    assert_eq!(store.get(b"held").expect("a GET").expect("it is there").value, long);
}

#[test]
fn an_idle_client_does_not_hold_cleaning_up_and_comes_back() {
    let host = Host::new(SIZE, |options| options.lease(LEASE).clean_by_itself(false));
    let mut idle = client(&host);
    idle.put(b"mine", b"value", PutOptions::default()).expect("a PUT");
    assert!(idle.get(b"mine").expect("a GET").is_some());
    let mut store = client(&host);
    let pairs: Vec<(String, Vec<u8>)> = (0..100).map(|n| (format!("key {n}"), vec![n; 2000])).collect();
    for _ in 0..4 {
        for outcome in store.put_many(&pairs, PutOptions::default()).expect("PUTs") {
            outcome.expect("a PUT");
        }
    }
    store.compact().expect("it begins");
    let begin = Instant::now();
    let done = loop {
        store.rest().expect("it attends to notices");
        let stats = store.stats().expect("figures");
        if stats.to_clean == 0 && !stats.usage.cleaning {
            break stats;
        }
        assert!(begin.elapsed() < PATIENCE, "{stats:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(done.server.regions_freed > 0 && done.server.objects_moved > 0, "{done:?}");
    assert_eq!(
        store
            .get_many(&pairs.iter().map(|(key, _)| key).collect::<Vec<_>>())
            .expect("GETs")
            .iter()
            .flatten()
            .count(),
        100
    );
    assert!(idle.put(b"mine", b"again", PutOptions::default()).is_ok());
    assert_eq!(idle.get(b"mine").expect("a GET").expect("it is there").value, b"again");
    assert_eq!(idle.reconnected(), 1, "it was cut off, and nobody had to notice");
}

#[test]
fn a_client_finds_a_server_that_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let device = common::context();
    let mut host = Host::on(&device, &path, SIZE, |options| options);
    let port = host.addr.port();
    let mut store = client(&host);
    store.put(b"key", b"value", PutOptions::default()).expect("a PUT");
    assert!(store.get(b"key").expect("a GET").is_some());
    let mut proud =
        Store::connect(&common::context(), host.addr, common::options().reconnect(false)).expect("connected");
    let first = host.stop().expect("it served");
    assert_eq!((first.clients, first.usage.unfinished), (0, 0));
    drop(host);
    let host = Host::on(&device, &path, SIZE, |options| options.port(port));
    assert_eq!(host.metrics().boot, first.boot + 1);
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"value");
    store.put(b"key", b"more", PutOptions::default()).expect("a PUT");
    assert_eq!(store.reconnected(), 1);
    // Who does not want that is told what is known, which for a deletion that went out is nothing.
    assert!(proud.delete(b"key", Expect::Any).is_err());
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"more");
}

#[test]
fn damage_is_found_and_a_new_value_heals_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = FileOptions::new().create(SIZE).open(dir.path().join("store")).expect("a file");
    let host = Host::of(ServerOptions::region(region.clone()));
    let mut store = client(&host);
    store.put(b"twice", b"the version before", PutOptions::default()).expect("a PUT");
    store.put(b"twice", b"the version behind", PutOptions::default()).expect("a PUT");
    store.put(b"once", b"the only version", PutOptions::default()).expect("a PUT");
    store.rest().expect("the writes are confirmed");
    host.settled();
    let whole = store.scrub(0, 100).expect("a scrub");
    assert_eq!((whole.verified, whole.repaired, whole.lost, whole.next), (2, 0, 0, None));
    for value in [&b"the version behind"[..], b"the only version"] {
        flip(&region, value);
    }
    let found = inspect(&region).expect("a store").scrubbed;
    assert_eq!((found.verified, found.repaired, found.lost), (0, 0, 2), "seen, and nothing changed");
    let scrubbed = store.scrub(0, 100).expect("a scrub");
    assert_eq!((scrubbed.verified, scrubbed.repaired, scrubbed.lost), (0, 0, 2));
    let mut fresh = client(&host);
    let older = fresh.get(b"twice");
    assert!(matches!(older, Err(Error::Refused(Refusal::Damaged))), "{older:?}");
    let lost = fresh.get(b"once");
    assert!(matches!(lost, Err(Error::Refused(Refusal::Damaged))), "{lost:?}");
    fresh.put(b"once", b"restored", PutOptions::default()).expect("a PUT");
    assert_eq!(fresh.get(b"once").expect("a GET").expect("it is there").value, b"restored");
}

/// Damages the bytes where a region has them.
fn flip(region: &Region, value: &[u8]) {
    let mut all = vec![0; region.len() as usize];
    region.read(0, &mut all);
    let at = all.windows(value.len()).position(|some| some == value).expect("it is in there");
    region.write(at as u64, &[all[at] ^ 1]);
}

#[test]
fn a_full_pool_says_so_and_deleting_makes_room() {
    let host = Host::new(512 << 10, |options| options);
    let mut store = client(&host);
    let mut keys = 0_u32;
    let refused = loop {
        match store.put(&keys.to_le_bytes(), &[7; 3000], PutOptions::default()) {
            Ok(_) => keys += 1,
            Err(error) => break error,
        }
        assert!(keys < 1000, "512 KiB do not hold that");
    };
    assert!(matches!(refused, Error::Refused(Refusal::Full)), "{refused}");
    assert!(keys > 20, "{keys}");
    for n in 0..keys {
        assert!(store.get(&n.to_le_bytes()).expect("a GET").is_some(), "key {n}");
    }
    for n in 0..keys / 2 {
        assert!(store.delete(&n.to_le_bytes(), Expect::Any).expect("a DELETE").is_some(), "key {n}");
    }
    let begin = Instant::now();
    while let Err(error) = store.put(b"new", &[7; 3000], PutOptions::default()) {
        assert!(matches!(error, Error::Refused(Refusal::Full)), "{error}");
        assert!(begin.elapsed() < PATIENCE, "cleaning makes no room");
    }
}

#[test]
fn what_is_not_a_store_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let bind = |name: &str| Server::bind(&common::context(), ServerOptions::file(dir.path().join(name)));
    assert!(matches!(bind("missing"), Err(Error::Argument(_))));
    let letter = vec![b'x'; 1 << 20];
    std::fs::write(dir.path().join("letter"), &letter).expect("written");
    assert!(matches!(bind("letter"), Err(Error::SomethingElse)));
    std::fs::write(dir.path().join("short"), "x\n").expect("written");
    assert!(matches!(bind("short"), Err(Error::SomethingElse)), "nobody asked how large a store is");
    assert!(std::fs::read(dir.path().join("letter")).expect("a file") == letter);
    // A blank file becomes a store; one that was being made when the power went is made again.
    std::fs::write(dir.path().join("blank"), vec![0; 1 << 20]).expect("written");
    let server = bind("blank").expect("a store");
    assert!(server.made());
    assert!(matches!(bind("blank"), Err(Error::Memory(remanence_pmem::Error::InUse { .. }))));
    drop(server);
    let mut image = std::fs::read(dir.path().join("blank")).expect("a file");
    let second = remanence_kv::format::superblock::COPIES[1] as usize;
    image[..128].fill(0);
    image[second..second + 128].fill(0);
    std::fs::write(dir.path().join("half"), &image).expect("written");
    assert!(bind("half").expect("a store").made());
    // A later version's.
    let mut image = std::fs::read(dir.path().join("blank")).expect("a file");
    image[8] = 9;
    let crc = remanence_kv::format::object::crc64(&[&image[..64]]).to_le_bytes();
    image[64..72].copy_from_slice(&crc);
    std::fs::write(dir.path().join("later"), &image).expect("written");
    let later = bind("later").expect_err("another format");
    assert!(later.to_string().contains("has format 9"), "{later}");
    let mut image = std::fs::read(dir.path().join("blank")).expect("a file");
    image[20] ^= 1;
    std::fs::write(dir.path().join("one"), &image).expect("written");
    assert!(!bind("one").expect("the second copy").made());
    image[second + 20] ^= 1;
    std::fs::write(dir.path().join("damaged"), &image).expect("written");
    let damaged = bind("damaged").expect_err("damage");
    assert!(damaged.to_string().contains("both copies of the store's superblock are damaged"), "{damaged}");
}

#[test]
fn another_service_is_told_from_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let region = FileOptions::new().create(SIZE).open(dir.path().join("memory")).expect("a file");
    let options = remanence_remote::ServerOptions::new(&common::context(), region, 0);
    let mut server = remanence_remote::Server::bind(options).expect("a server");
    let (addr, stop) = (server.addr(), Stop::new());
    std::thread::scope(|scope| {
        scope.spawn(|| server.run(&stop));
        let outcome = Store::connect(&common::context(), addr, common::options());
        stop.ask();
        let error = outcome.expect_err("it serves no store");
        assert!(matches!(error, Error::Stranger(at) if at == addr), "{error}");
    });
}
