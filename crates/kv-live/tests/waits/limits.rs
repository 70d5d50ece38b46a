//! Where a live server ends: its clients, their unfinished writes, its pool, its table, its messages, and its medium.

use crate::servers as common;

use std::time::{Duration, Instant};

use common::{Host, PATIENCE, SIZE, client, context, options};
use remanence_kv::Geometry;
use remanence_kv::client::{Completion, RemoteMemory as _, Verb};
use remanence_kv::proto::{Expect, Refusal, Reply, Request};
use remanence_kv_live::{Error, PROTOCOL_VERSION, PutOptions, SERVICE, ServerOptions, Session, Store};
use remanence_pmem::FileOptions;
use remanence_remote::{CostSource, Options};
use remanence_verbs::Context;

/// Asks as a client's operations do.
fn ask(session: &mut Session, request: &Request) -> Reply {
    match session.post(vec![Verb::Call(request.clone())]).expect("an answer").pop() {
        Some(Completion::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

fn inline(key: &[u8], value: &[u8]) -> Request {
    Request::PutInline { key: key.to_vec(), value: value.to_vec(), expires: 0, expect: Expect::Any }
}

fn room(key: u32) -> Request {
    Request::Put { key: key.to_le_bytes().to_vec(), len: 10, expires: 0, expect: Expect::Any }
}

#[test]
fn a_client_too_many_is_told_so_and_may_come_when_another_has_gone() {
    let host = Host::new(SIZE, |options| options.clients(2));
    let device = context();
    let connect = |device: &Context| Store::connect(device, host.addr, options());
    let [mut first, second] = [(); 2].map(|()| connect(&device).expect("two may come from one address"));
    let refused = connect(&device).expect_err("two are enough");
    assert!(refused.to_string().contains("as many sessions as it takes from one address"), "{refused}");
    // There is room for others, and not for any number of them.
    let other = connect(&context()).expect("it is the first from there");
    let refused = connect(&context()).expect_err("three are enough");
    assert!(refused.to_string().contains("as many sessions as it takes;"), "{refused}");
    drop(other);
    first.put(b"key", b"value", PutOptions::default()).expect("the others go on");
    drop(second);
    let begin = Instant::now();
    let mut third = loop {
        match connect(&device) {
            Ok(third) => break third,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "there is a place again: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(third.get(b"key").expect("a GET").expect("it is there").value, b"value");
}

#[test]
fn a_client_has_so_many_unfinished_writes_and_no_more() {
    let host = Host::new(SIZE, |options| options.unfinished(4));
    let (_, mut greedy) = client(&host).into_parts();
    let mut versions = Vec::new();
    for n in 0..4 {
        let Reply::Reserved(reserved) = ask(&mut greedy, &room(n)) else { panic!("there is room for 4") };
        versions.push(reserved.version);
    }
    assert_eq!(ask(&mut greedy, &room(4)), Reply::Refused(Refusal::TooMany));
    // It is the client's own limit.
    client(&host).put(b"other", b"value", PutOptions::default()).expect("another's");
    assert_eq!(ask(&mut greedy, &Request::Abandon { version: versions[1] }), Reply::Ok);
    assert!(matches!(ask(&mut greedy, &room(5)), Reply::Reserved(_)), "one was given up");
    assert_eq!(ask(&mut greedy, &room(6)), Reply::Refused(Refusal::TooMany));
}

#[test]
fn a_value_that_can_never_fit_and_a_key_that_is_none_are_refused_and_nothing_else() {
    let host = Host::new(1 << 20, |options| options);
    let mut store = client(&host);
    let large = vec![7; 2 << 20];
    let outcomes = store
        .put_many(
            &[(&b"small"[..], &b"fits"[..]), (b"large", &large), (b"", b"x"), (&[1; 2000], b"x")],
            PutOptions::default(),
        )
        .expect("each has its own outcome");
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    assert!(
        matches!(outcomes[1], Err(Error::Refused(Refusal::TooLarge { len, .. })) if len == 2 << 20),
        "{outcomes:?}"
    );
    for outcome in &outcomes[2..] {
        assert!(matches!(outcome, Err(Error::Refused(Refusal::BadKey))), "{outcome:?}");
    }
    assert_eq!(store.get(b"small").expect("a GET").expect("it is there").value, b"fits");
    assert_eq!(store.get(b"large").expect("a GET"), None);
    assert_eq!(store.reconnected(), 0);
}

#[test]
fn a_table_that_cannot_grow_is_full_and_what_is_in_it_stays() {
    // The table's successor takes many regions in a row, and there are none when values have used them.
    let geometry = Geometry { size: 252 << 10, region_len: 1024, segment_len: 512, heads: 1, grown_from: 0 };
    // In memory, as thousands of PUTs would wait for a disk.
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let host = Host::at(&dir.path().join("store"), 256 << 10, |options| {
        options.geometry(geometry).keys(16).clean_by_itself(false)
    });
    let mut store = client(&host);
    let mut keys = 0_u32;
    let refused = 'full: loop {
        let lot: Vec<([u8; 4], &[u8])> = (keys..keys + 16).map(|n| (n.to_le_bytes(), &b"v"[..])).collect();
        for outcome in store.put_many(&lot, PutOptions::default()).expect("each has its own outcome") {
            match outcome {
                Ok(_) => keys += 1,
                Err(error) => break 'full error,
            }
        }
        assert!(keys < 20_000, "252 KiB do not hold that");
    };
    assert!(matches!(refused, Error::Refused(Refusal::Full)), "{refused}");
    for n in 0..keys {
        assert!(store.get(&n.to_le_bytes()).expect("a GET").is_some(), "key {n} of {keys}");
    }
    assert!(store.get(&keys.to_le_bytes()).expect("a GET").is_none(), "what was refused is not there");
    println!("{keys} keys");
    store.delete(&0_u32.to_le_bytes(), Expect::Any).expect("a DELETE needs no room");
    assert_eq!(store.get(&0_u32.to_le_bytes()).expect("a GET"), None);
}

#[test]
fn requests_and_answers_that_do_not_fit_a_message_go_in_parts() {
    let host = Host::new(SIZE, |options| options);
    let mut store = client(&host);
    // A request of 300 KiB, and an answer of as much.
    let keys: Vec<Vec<u8>> = (0..250_u32).map(|n| format!("{n:0>1000}").into_bytes()).collect();
    let pairs: Vec<(&[u8], [u8; 2])> =
        keys.iter().enumerate().map(|(n, key)| (&key[..], [n as u8; 2])).collect();
    for outcome in store.put_many(&pairs, PutOptions::default()).expect("PUTs") {
        outcome.expect("a PUT");
    }
    let (mut seen, mut cursor) = (Vec::new(), Some(0));
    while let Some(from) = cursor {
        let page = store.scan(from, 1000).expect("a page");
        assert!(
            page.keys.len() > 32 || page.next.is_none(),
            "a page of {} keys shows nothing",
            page.keys.len()
        );
        seen.extend(page.keys);
        cursor = page.next;
    }
    seen.sort();
    assert!(seen == keys, "{} of {} keys", seen.len(), keys.len());
    // A value by message, larger than any message.
    let (_, mut session) = store.into_parts();
    let value: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert!(matches!(ask(&mut session, &inline(b"large", &value)), Reply::Done { .. }));
    match ask(&mut session, &Request::Get { key: b"large".to_vec() }) {
        Reply::Value { value: found, .. } => assert!(found == value, "{} bytes came back", found.len()),
        other => panic!("{other:?}"),
    }
}

/// A session whose calls are made by hand.
fn raw(host: &Host) -> remanence_remote::Session {
    let costs = CostSource::Fixed(remanence_persist::plan::Costs::PAPERS);
    let mut session =
        remanence_remote::Session::connect(&context(), host.addr, Options::default().costs(costs))
            .expect("connected");
    session.call(SERVICE, &call(3, 0, &PROTOCOL_VERSION.to_le_bytes())).expect("a Hello");
    session
}

fn call(what: u8, tag: u32, body: &[u8]) -> Vec<u8> {
    [&[what][..], &tag.to_le_bytes(), body].concat()
}

fn left(answer: &[u8]) -> u32 {
    u32::from_le_bytes(answer[..4].try_into().expect("four bytes"))
}

#[test]
fn parts_that_nobody_finishes_or_fetches_are_bounded() {
    const REST: u8 = 2;
    let host = Host::new(SIZE, |options| options);
    let mut session = raw(&host);
    client(&host).put(b"large", &[9; 100_000], PutOptions::default()).expect("a PUT");
    // More answers than are kept: the first ones are forgotten, and the last ones are whole.
    let get = Request::Get { key: b"large".to_vec() }.emit();
    let first: Vec<u32> =
        (0..20).map(|tag| left(&session.call(SERVICE, &call(4, tag, &get)).expect("an answer"))).collect();
    assert!(first.iter().all(|left| *left > 80_000), "{first:?}");
    let forgotten = session.call(SERVICE, &call(REST, 0, &[])).expect_err("it was the first");
    assert!(forgotten.to_string().contains("no more of that answer"), "{forgotten}");
    let mut rest = first[19];
    while rest > 0 {
        let more = session.call(SERVICE, &call(REST, 19, &[])).expect("it is kept");
        let len = more.len() as u32 - 12;
        assert_eq!(left(&more), rest - len, "each part says how much is left");
        rest -= len;
    }
    session.call(SERVICE, &call(REST, 19, &[])).expect_err("it was fetched");
    // A request without an end.
    let part = call(1, 0, &vec![0; 8 << 10]);
    let refused = (0..1100).find_map(|_| session.call(SERVICE, &part).err()).expect("8 MiB are enough");
    assert!(refused.to_string().contains("a request has 8388608 bytes at most"), "{refused}");
    // Others go on all the while.
    client(&host).put(b"key", b"value", PutOptions::default()).expect("a PUT");
}

/// From so many of the medium's bytes on there is nothing any more.
fn cut_short(path: &std::path::Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(len)).expect("cut");
}

#[test]
fn when_the_medium_fails_nothing_more_is_acknowledged_and_the_server_ends() {
    for by_message in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("store");
        let region = FileOptions::new().create(SIZE).open(&path).expect("a file");
        let mut host = Host::of(ServerOptions::region(region));
        let mut store = Store::connect(
            &context(),
            host.addr,
            options().patience(Duration::from_secs(5)).reconnect(false),
        )
        .expect("connected");
        store.put(b"key", b"before", PutOptions::default()).expect("a PUT");
        let (_, mut session) = client(&host).into_parts();
        let Reply::Reserved(reserved) = ask(&mut session, &room(1)) else { panic!("there is room") };
        assert_eq!(ask(&mut session, &Request::Abandon { version: reserved.version }), Reply::Ok);
        // The log goes on into what is no more.
        cut_short(&path, (reserved.at + 8192) & !4095);
        let mut acknowledged = 0;
        let refused = (0..2000_u32).find(|n| {
            let value = [*n as u8; 2000];
            if !by_message {
                let outcome = store.put(b"key", &value, PutOptions::default());
                acknowledged += u32::from(outcome.is_ok());
                return outcome.is_err();
            }
            match session.post(vec![Verb::Call(inline(b"key", &value))]) {
                Ok(completions) => match &completions[..] {
                    [Completion::Reply(Reply::Done { .. })] => {
                        acknowledged += 1;
                        false
                    }
                    [Completion::Reply(Reply::Refused(Refusal::Medium))] => true,
                    other => panic!("{other:?}"),
                },
                // The server had ended before the answer was sent.
                Err(error) => matches!(error, Error::Remote(_)),
            }
        });
        assert!(refused.is_some(), "2000 values of 2000 bytes went into 4 MiB, of which most are gone");
        assert!(acknowledged < 40, "{acknowledged} values of 2000 bytes went into 8 KiB");
        // Whoever else asks for a change gets no promise.
        let other = store.put(b"other", b"value", PutOptions::default());
        assert!(other.is_err(), "{other:?}");
        let ended = host.ends().expect_err("it served on a medium that failed");
        assert!(ended.to_string().contains("the medium failed"), "{ended}");
    }
}

#[test]
fn what_the_medium_has_lost_is_not_absent() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let region = FileOptions::new().create(SIZE).open(&path).expect("a file");
    let mut host = Host::of(ServerOptions::region(region));
    let impatient = || options().patience(Duration::from_secs(5)).reconnect(false).locations(0);
    let connect = || Store::connect(&context(), host.addr, impatient()).expect("connected");
    let (mut store, mut other) = (connect(), connect());
    store.put(b"key", b"value", PutOptions::default()).expect("a PUT");
    assert!(other.get(b"key").expect("a GET").is_some());
    // The superblock is still there, and nothing else.
    cut_short(&path, 4096);
    let found = other.get(b"key");
    assert!(found.is_err(), "one-sidedly: {found:?}");
    let page = store.scan(0, 10);
    assert!(page.is_err(), "by the server: {page:?}");
    let ended = host.stop().expect_err("it served on a medium that failed");
    assert!(ended.to_string().contains("the medium failed"), "{ended}");
}
