//! Any sequence of operations, beside a map: the same answers, whatever is cleaned, resized and restarted in between.

use crate::common;

use std::collections::BTreeMap;

use common::*;
use proptest::prelude::*;
use remanence_kv::client::{Error, Get, Many, Put};
use remanence_kv::proto::{Expect, Inline, Reply, Request};
use remanence_kv::{Geometry, Options, Refusal};

#[derive(Clone, Debug)]
enum Op {
    Put(u8, usize, u64),
    Inline(u8, usize),
    Delete(u8),
    Get(u8),
    /// Compare and swap, with the right version or a wrong one.
    Swap(u8, bool),
    GetMany(Vec<u8>),
    PutMany(Vec<u8>),
    /// Keys may come twice.
    Together(Vec<(u8, usize)>),
    Abandon(u8),
    Pass(u64),
    Clean(u8),
    Resize(u64),
    Step,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0u8..30;
    prop_oneof![
        6 => (key(), prop_oneof![9 => 0usize..300, 1 => 900usize..2500], prop_oneof![4 => Just(0u64), 1 => 1u64..50])
            .prop_map(|(key, len, ttl)| Op::Put(key, len, ttl)),
        2 => (key(), 0usize..200).prop_map(|(key, len)| Op::Inline(key, len)),
        2 => key().prop_map(Op::Delete),
        6 => key().prop_map(Op::Get),
        2 => (key(), any::<bool>()).prop_map(|(key, right)| Op::Swap(key, right)),
        1 => prop::collection::vec(key(), 0..9).prop_map(Op::GetMany),
        1 => prop::collection::btree_set(key(), 0..9).prop_map(|keys| Op::PutMany(keys.into_iter().collect())),
        2 => prop::collection::vec((key(), prop_oneof![9 => 0usize..300, 1 => 900usize..1500]), 0..9)
            .prop_map(Op::Together),
        1 => key().prop_map(Op::Abandon),
        1 => (1u64..40).prop_map(Op::Pass),
        1 => (0u8..2).prop_map(Op::Clean),
        1 => (16u64..80).prop_map(Op::Resize),
        2 => Just(Op::Step),
        1 => Just(Op::Restart),
    ]
}

#[derive(Clone, PartialEq, Debug)]
struct Value {
    version: u64,
    expires: u64,
    bytes: Vec<u8>,
}

const POOL: Geometry =
    Geometry { size: 256 << 10, region_len: 4096, segment_len: 1024, heads: 2, grown_from: 0 };

/// Returns how many looks told something, and how many did not.
fn story(ops: &[Op], options: Options) -> (u32, u32) {
    let image = formatted(POOL, 16);
    let mut oracle: BTreeMap<u8, Value> = BTreeMap::new();
    let mut now = 1;
    let mut written = 0;
    let mut last = 0;
    let mut at = 0;
    let mut looks = (0, 0);
    while at < ops.len() {
        let store = Store::open(&image, options);
        let mut client = store.client(6);
        while let Some(op) = ops.get(at) {
            at += 1;
            store.now.set(now);
            oracle.retain(|_, value| value.expires == 0 || value.expires > now);
            written += 1;
            let mut put = |oracle: &mut BTreeMap<u8, Value>,
                           key: u8,
                           version: Result<u64, Error>,
                           expires: u64,
                           bytes: Vec<u8>| match version {
                Ok(version) => {
                    assert!(version > last, "versions go up");
                    last = version;
                    oracle.insert(key, Value { version, expires, bytes });
                }
                Err(error) => assert_eq!(error, FULL),
            };
            match op {
                Op::Put(key, len, ttl) => {
                    let (bytes, expires) = (value(written, *len), if *ttl == 0 { 0 } else { now + ttl });
                    put(
                        &mut oracle,
                        *key,
                        client.run(&mut Put::new(&[*key], &bytes, expires, Expect::Any)),
                        expires,
                        bytes,
                    );
                }
                Op::Inline(key, len) => {
                    let bytes = value(written, *len);
                    let request = Request::PutInline {
                        key: vec![*key],
                        value: bytes.clone(),
                        expires: 0,
                        expect: Expect::Any,
                    };
                    match client.call(&request) {
                        Reply::Done { version } => put(&mut oracle, *key, Ok(version), 0, bytes),
                        Reply::Refused(Refusal::Full | Refusal::Growing) => {}
                        other => panic!("{other:?}"),
                    }
                }
                Op::Delete(key) => {
                    let version = client.delete(&[*key]);
                    assert_eq!(version != 0, oracle.remove(key).is_some());
                    last = last.max(version);
                }
                Op::Get(key) => {
                    // A look either tells the same, or nothing.
                    if let Some(found) = client.peek(&[*key]) {
                        let known = oracle.get(key).map(|value| (value.version, value.bytes.clone()));
                        assert_eq!(found, known, "a look at {key}");
                        looks.0 += 1;
                    } else {
                        looks.1 += 1;
                    }
                    let found = client.get(&[*key]).map(|found| (found.version, found.expires, found.value));
                    let known = oracle.get(key).cloned();
                    assert_eq!(
                        found,
                        known.map(|value| (value.version, value.expires, value.bytes)),
                        "{key}"
                    );
                }
                Op::Swap(key, right) => {
                    let version = oracle.get(key).map_or(0, |value| value.version);
                    let expect = match (right, version) {
                        (true, 0) => Expect::Absent,
                        (true, version) => Expect::Version(version),
                        (false, version) => Expect::Version(version + 1),
                    };
                    let bytes = value(written, 33);
                    match client.put_if(&[*key], &bytes, expect) {
                        Err(Error::Refused(Refusal::WrongVersion { found })) => {
                            assert_eq!((found, *right), (version, false));
                        }
                        outcome => {
                            assert!(*right, "a wrong version was taken");
                            put(&mut oracle, *key, outcome, 0, bytes);
                        }
                    }
                }
                Op::GetMany(keys) => {
                    let gets = keys.iter().map(|key| Get::new(&[*key])).collect();
                    let found = client.run(&mut Many::new(gets));
                    for (key, found) in keys.iter().zip(found) {
                        let found = found.expect("a GET does not fail").map(|found| found.value);
                        assert_eq!(found, oracle.get(key).map(|value| value.bytes.clone()), "{key}");
                    }
                }
                Op::PutMany(keys) => {
                    let puts =
                        keys.iter().map(|key| Put::new(&[*key], &[*key; 21], 0, Expect::Any)).collect();
                    let mut versions: Vec<_> =
                        keys.iter().copied().zip(client.run(&mut Many::new(puts))).collect();
                    versions.sort_by_key(|(_, version)| version.clone().unwrap_or(0));
                    versions
                        .into_iter()
                        .for_each(|(key, version)| put(&mut oracle, key, version, 0, vec![key; 21]));
                }
                Op::Together(lot) => {
                    let named =
                        |(key, len): &(u8, usize)| (vec![*key], value(written + u64::from(*key), *len));
                    let lot: Vec<(Vec<u8>, Vec<u8>)> = lot.iter().map(named).collect();
                    let puts: Vec<Inline<'_>> = lot
                        .iter()
                        .map(|(key, value)| Inline {
                            key,
                            value: Some(value),
                            expires: 0,
                            expect: Expect::Any,
                        })
                        .collect();
                    let mut done: Vec<_> = lot.iter().zip(client.put_all(&puts)).collect();
                    done.sort_by_key(|(_, version)| version.clone().unwrap_or(0));
                    done.into_iter().for_each(|((key, bytes), version)| {
                        put(&mut oracle, key[0], version, 0, bytes.clone());
                    });
                }
                Op::Abandon(key) => {
                    let request = Request::Put { key: vec![*key], len: 50, expires: 0, expect: Expect::Any };
                    if let Reply::Reserved(reserved) = client.call(&request) {
                        last = last.max(reserved.version);
                        assert_eq!(client.value(&[*key]), oracle.get(key).map(|value| value.bytes.clone()));
                        assert_eq!(client.call(&Request::Abandon { version: reserved.version }), Reply::Ok);
                    }
                }
                Op::Pass(time) => now += time,
                Op::Clean(head) => drop(store.server.borrow_mut().clean(*head)),
                Op::Resize(buckets) => drop(store.server.borrow_mut().resize(*buckets)),
                Op::Step => {
                    store.step();
                    client.attend();
                }
                Op::Restart => break,
            }
        }
        oracle.retain(|_, value| value.expires == 0 || value.expires > now);
        store.now.set(now);
        assert_eq!(client.keys(), oracle.keys().map(|key| vec![*key]).collect::<Vec<_>>());
        assert_eq!(store.server.borrow().stats().damaged, 0);
    }
    looks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_has_the_answers_of_a_map(ops in prop::collection::vec(op(), 1..150)) {
        story(&ops, Options { clean_by_itself: true, lease: 1 << 40, ..DURABLE });
        story(&ops, Options { clean_by_itself: true, lease: 1 << 40, ..ERDA });
    }
}
