//! A crash at every store, fence and sync of every operation, of cleaning and of resizing, then recovery; every byte is
//! looked at.
//!
//! The oracle: in durable mode each key has its value of the last acknowledged operation, or that of the one under way. In
//! mode `erda` it has one that it once had, whole. `REMANENCE_KV_CRASH=n` tries n times as many crashes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use remanence_kv::client::{Many, Put};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::Server;
use remanence_kv::{Geometry, Options};
use remanence_pmem::crash_image::{CrashImage, EveryWay, Explorer, Failure};
use remanence_pmem::{Medium, PersistenceDomain};

const TINY: Geometry = Geometry { size: 32 << 10, region_len: 1024, segment_len: 512, heads: 2 };

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Op {
    Put(u8, Vec<u8>),
    Inline(u8, Vec<u8>),
    Delete(u8),
    Batch(Vec<(u8, Vec<u8>)>),
    /// Room is handed out, this much of the object is written, and the client dies.
    Torn(u8, Vec<u8>, usize),
    Clean(u8),
    Resize(u64),
    /// The server settles what clients have confirmed.
    Settle,
}

impl Op {
    fn apply(&self, contents: &mut Contents) {
        match self {
            Self::Put(key, value) | Self::Inline(key, value) => {
                drop(contents.insert(vec![*key], value.clone()));
            }
            Self::Delete(key) => drop(contents.remove(&vec![*key])),
            Self::Batch(puts) => {
                puts.iter().for_each(|(key, value)| drop(contents.insert(vec![*key], value.clone())));
            }
            Self::Torn(..) | Self::Clean(_) | Self::Resize(_) | Self::Settle => {}
        }
    }

    fn run(&self, store: &Store<'_>, client: &mut Session<'_, '_>) {
        match self {
            Self::Put(key, value) => assert!(client.put(&[*key], value).is_ok()),
            Self::Inline(key, value) => {
                let (key, value) = (vec![*key], value.clone());
                let reply = client.call(&Request::PutInline { key, value, expires: 0, expect: Expect::Any });
                assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
            }
            Self::Delete(key) => drop(client.delete(&[*key])),
            Self::Batch(puts) => {
                let puts = puts.iter().map(|(key, value)| Put::new(&[*key], value, 0, Expect::Any)).collect();
                client.run(&mut Many::new(puts)).into_iter().for_each(|put| assert!(put.is_ok()));
            }
            Self::Torn(key, value, written) => torn(store, *key, value, *written),
            Self::Clean(head) => {
                store.server.borrow_mut().clean(*head).expect("nothing else is being cleaned");
                store.settle_down(&mut [client]);
            }
            Self::Resize(buckets) => {
                store.server.borrow_mut().resize(*buckets).expect("room");
                store.settle_down(&mut [client]);
            }
            Self::Settle => {
                if let Some(confirm) = client.client.poll_confirm() {
                    client.call(&confirm);
                }
                store.step();
            }
        }
    }
}

/// A client that dies within its WRITE.
fn torn(store: &Store<'_>, key: u8, value: &[u8], written: usize) {
    let mut dying = store.client(0);
    let put = Request::Put { key: vec![key], len: value.len() as u64, expires: 0, expect: Expect::Any };
    let Reply::Reserved(reserved) = dying.call(&put) else { panic!("room") };
    let place = remanence_kv::format::Place {
        salt: SALT,
        head: reserved.head,
        offset: reserved.offset,
        epoch: reserved.epoch,
    };
    let content = remanence_kv::format::object::Content::Value(value);
    let object = remanence_kv::format::object::emit(&place, reserved.version, 0, &[key], content);
    store.image.write(reserved.at + 8, &object[8..written.min(object.len())]);
    let id = dying.id;
    drop(dying);
    store.server.borrow_mut().disconnected(id).expect("memory does not fail");
}

fn factor() -> usize {
    std::env::var("REMANENCE_KV_CRASH").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// What the server tells, and what a client reads by itself, which must be the same.
fn contents(crashed: &CrashImage, options: Options) -> Contents {
    let store = Store::open(crashed, options);
    let mut client = store.client(16);
    let scrubbed = store.server.borrow_mut().scrub(0, 1000).expect("memory does not fail");
    assert_eq!((scrubbed.lost, scrubbed.repaired), (0, 0), "an entry names what is not whole");
    let mut contents = Contents::new();
    for key in client.keys() {
        assert!(!contents.contains_key(&key), "two entries name {key:?}");
        let value = client.value(&key).expect("a key that is listed has a value");
        assert_eq!(client.value(&key).as_ref(), Some(&value), "with its location cached");
        let Reply::Value { value: told, .. } = client.call(&Request::Get { key: key.clone() }) else {
            panic!("the server does not find {key:?}")
        };
        assert_eq!(told, value);
        contents.insert(key, value);
    }
    contents
}

/// What is left can be worked on: everything is written, cleaned, resized and read again.
fn works_on(crashed: &CrashImage, options: Options) {
    let before = contents(crashed, options);
    let store = Store::open(crashed, options);
    let mut client = store.client(16);
    for key in before.keys() {
        client.put(key, b"after").expect("room");
    }
    for head in 0..2 {
        store.server.borrow_mut().clean(head).expect("nothing is being cleaned");
        store.settle_down(&mut [&mut client]);
    }
    store.server.borrow_mut().resize(40).expect("room");
    store.settle_down(&mut [&mut client]);
    assert_eq!(client.keys(), before.keys().cloned().collect::<Vec<_>>());
    for key in before.keys() {
        assert_eq!(client.value(key), Some(b"after".to_vec()));
    }
    let scrubbed = store.server.borrow_mut().scrub(0, 1000).expect("memory does not fail");
    assert_eq!(scrubbed.verified, before.len() as u64);
}

/// Prepares, then crashes `ops` everywhere.
fn explore(options: Options, domain: PersistenceDomain, prepare: &[Op], ops: &[Op], samples: usize) {
    let prepared = {
        let image = formatted(TINY, 16);
        {
            let store = Store::open(&image, options);
            let mut client = store.client(0);
            prepare.iter().for_each(|op| op.run(&store, &mut client));
        }
        CrashImage::from_bytes(image.bytes(), domain)
    };
    let mut after = vec![Contents::new()];
    prepare.iter().for_each(|op| op.apply(&mut after[0]));
    for op in ops {
        let mut next = after.last().expect("the start").clone();
        op.apply(&mut next);
        after.push(next);
    }
    let samples = samples * factor();
    let explorer = Explorer { ways_max: samples, samples, ..Explorer::default() };
    let mut count = 0;
    let report = explorer.run(
        &prepared,
        |image| {
            let store = Store::open(image, options);
            let mut client = store.client(0);
            for (n, op) in ops.iter().enumerate() {
                op.run(&store, &mut client);
                image.note(n as u64 + 1);
            }
        },
        |crashed, notes| {
            count += 1;
            let found = contents(crashed, options);
            let (whole, next) = (&after[notes.len()], after.get(notes.len() + 1));
            let keys: BTreeSet<&Vec<u8>> =
                after.iter().flat_map(BTreeMap::keys).chain(found.keys()).collect();
            for key in keys {
                let value = found.get(key);
                let fair = match options.mode {
                    remanence_kv::Mode::Durable => {
                        value == whole.get(key) || next.is_some_and(|next| value == next.get(key))
                    }
                    remanence_kv::Mode::Erda => {
                        after[..=(notes.len() + 1).min(ops.len())].iter().any(|state| value == state.get(key))
                    }
                };
                assert!(fair, "{key:?} is {value:?}, should be {:?} or {next:?}", whole.get(key));
            }
            if count % 16 == 0 {
                works_on(crashed, options);
            }
        },
    );
    println!("{report:?}");
    assert!(report.steps > ops.len(), "{report:?}");
}

fn some(count: u8, len: usize) -> Vec<Op> {
    (0..count).map(|n| Op::Put(n, value(n.into(), len))).collect()
}

#[test]
fn every_operation_at_every_step() {
    let ops = [
        Op::Put(1, value(1, 30)),
        Op::Put(1, value(2, 90)),
        Op::Put(2, value(3, 10)),
        Op::Delete(1),
        Op::Inline(2, value(4, 100)),
        Op::Put(1, value(5, 5)),
        Op::Batch(vec![(1, value(6, 70)), (2, value(7, 7)), (3, value(8, 20))]),
        Op::Settle,
        Op::Put(3, value(9, 20)),
        Op::Delete(3),
    ];
    explore(DURABLE, PersistenceDomain::Adr, &some(3, 20), &ops, 12);
    explore(DURABLE, PersistenceDomain::Eadr, &some(3, 20), &ops, 4);
    explore(DURABLE, PersistenceDomain::PageCache, &some(3, 20), &ops, 4);
}

#[test]
fn clients_that_die_within_their_write() {
    let ops = [
        Op::Torn(1, value(1, 100), 70),
        Op::Torn(1, value(2, 100), 8),
        Op::Put(1, value(3, 100)),
        Op::Torn(2, value(4, 40), 60),
        Op::Torn(2, value(5, 40), 30),
        Op::Delete(2),
        Op::Torn(9, value(5, 40), 64),
        Op::Put(9, value(6, 40)),
    ];
    explore(DURABLE, PersistenceDomain::Adr, &some(3, 60), &ops, 8);
    explore(ERDA, PersistenceDomain::Adr, &some(3, 60), &ops, 8);
}

#[test]
fn values_in_chunks_at_every_step() {
    let ops = [
        Op::Put(1, value(1, 1200)),
        Op::Inline(2, value(2, 900)),
        Op::Put(1, value(3, 20)),
        Op::Clean(0),
        Op::Clean(1),
        Op::Put(2, value(4, 700)),
    ];
    explore(DURABLE, PersistenceDomain::Adr, &some(3, 60), &ops, 3);
}

#[test]
fn mode_erda_is_atomic_at_every_step() {
    let ops = [
        Op::Put(1, value(1, 30)),
        Op::Put(1, value(2, 90)),
        Op::Put(1, value(3, 10)),
        Op::Settle,
        Op::Delete(1),
        Op::Inline(2, value(4, 100)),
        Op::Put(7, value(5, 5)),
        Op::Clean(0),
        Op::Clean(1),
        Op::Resize(32),
    ];
    explore(ERDA, PersistenceDomain::Adr, &some(3, 20), &ops, 6);
}

#[test]
fn cleaning_at_every_step() {
    let mut prepare = some(12, 60);
    prepare.extend((0..6).map(|n| Op::Put(n, value(100 + u64::from(n), 40))));
    prepare.extend([Op::Delete(2), Op::Delete(9), Op::Settle]);
    let ops = [
        Op::Clean(0),
        Op::Clean(1),
        Op::Put(0, value(7, 60)),
        Op::Torn(5, value(8, 60), 50),
        Op::Clean(0),
        Op::Clean(1),
        Op::Put(9, value(9, 10)),
    ];
    explore(DURABLE, PersistenceDomain::Adr, &prepare, &ops, 6);
}

#[test]
fn resizing_and_displacement_at_every_step() {
    // More keys than a neighbourhood has places: entries are displaced on the way.
    let mut ops: Vec<Op> = (20..30).map(|n| Op::Put(n, value(n.into(), 4))).collect();
    ops[9] = Op::Inline(29, value(29, 4));
    ops.push(Op::Resize(32));
    ops.push(Op::Put(3, value(1, 4)));
    ops.push(Op::Delete(4));
    ops.push(Op::Resize(40));
    ops.push(Op::Put(4, value(2, 4)));
    explore(DURABLE, PersistenceDomain::Adr, &some(14, 4), &ops, 24);
}

#[test]
fn making_a_store_leaves_none_or_a_whole_one() {
    let explorer = Explorer { ways_max: 8, samples: 8, ..Explorer::default() };
    let old = {
        let image = formatted(TINY, 16);
        let store = Store::open(&image, DURABLE);
        store.client(0).put(b"old", b"store").expect("room");
        CrashImage::from_bytes(image.bytes(), PersistenceDomain::Adr)
    };
    explorer.run(
        &old,
        |image| {
            remanence_kv::server::format(&image, &TINY, 16, SALT + 1, [8; 16]).expect("fair");
            image.note(1);
        },
        |crashed, notes| match Server::open(crashed, DURABLE) {
            Ok((server, recovered)) => {
                let new = server.view().salt == SALT + 1;
                assert!(new || notes.is_empty());
                assert_eq!(recovered.entries, u64::from(!new), "all of the old one, or an empty new one");
            }
            Err(error) => assert!(notes.is_empty(), "{error}"),
        },
    );
}

#[test]
fn a_medium_that_fails_is_said_so() {
    let image = formatted(TINY, 16);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    image.fail_after_psyncs(1);
    let replies: Vec<Reply> = (0..3u8)
        .map(|key| {
            let put = Request::PutInline { key: vec![key], value: vec![1], expires: 0, expect: Expect::Any };
            client.call(&put)
        })
        .collect();
    assert_eq!(replies[2], Reply::Refused(remanence_kv::Refusal::Medium));
}

#[test]
fn an_address_leaves_only_when_the_entry_that_names_it_is_durable() {
    let image = formatted(TINY, 16);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    for (key, pending) in [(1, 1), (2, 2)] {
        let put = Request::Put { key: vec![key], len: 9, expires: 0, expect: Expect::Any };
        assert!(matches!(client.call(&put), Reply::Reserved(_)));
        // The harshest crash: nothing survives that no sync covers.
        let crashed = image.crash(Failure::PowerLoss, &mut EveryWay::new());
        let (_, recovered) = Server::open(&crashed, DURABLE).expect("a crash is no damage");
        assert_eq!(recovered.pending, pending, "a client may be writing there by now");
    }
}

#[test]
fn a_deletion_without_room_for_a_tombstone_is_durable_when_it_is_seen() {
    let image = formatted(TINY, 16);
    let store = Store::open(&image, DURABLE);
    let mut client = store.client(0);
    let put =
        |n: u8| Request::PutInline { key: vec![n], value: vec![n; 350], expires: 0, expect: Expect::Any };
    let full = (0..200).find(|n| client.call(&put(*n)) == Reply::Refused(remanence_kv::Refusal::Full));
    let full = full.expect("the pool is finite");
    // Tombstones use what is left, and then entries go without one.
    for n in 0..full {
        client.delete(&[n]);
        let crashed = image.crash(Failure::PowerLoss, &mut EveryWay::new());
        let found = contents(&crashed, DURABLE);
        let left: Contents = (n + 1..full).map(|n| (vec![n], vec![n; 350])).collect();
        assert_eq!(found, left, "{n} of {full} was acknowledged as deleted");
    }
}

/// At each sync, looks at what one-sided readers would believe by then.
#[derive(Clone)]
struct Peeking {
    image: Arc<CrashImage>,
    believed: Arc<AtomicU64>,
}

impl Peeking {
    /// Settled entries of the first table: fingerprint and place of the newest version, or of both.
    fn entries(image: &CrashImage, both: bool) -> BTreeSet<(u64, u32)> {
        let mut bytes = vec![0; (79 * 16) as usize];
        image.read(TINY.region(0) + 64, &mut bytes);
        let slots = remanence_kv::format::Slot::parse_all(&bytes);
        let believed = slots.filter(|slot| both || !slot.word.is_pending());
        believed
            .flat_map(|slot| {
                let old = slot.word.old_offset().filter(|_| both);
                let places = [slot.word.new_offset(), old].into_iter().flatten();
                places.map(move |place| (slot.meta.fingerprint(), place.0)).collect::<Vec<_>>()
            })
            .collect()
    }

    fn look(&self) {
        let crashed = self.image.crash(Failure::PowerLoss, &mut EveryWay::new());
        let durable = Self::entries(&crashed, true);
        for entry in Self::entries(&self.image, false) {
            assert!(durable.contains(&entry), "{entry:?} can be read, and is not durable: {durable:?}");
            self.believed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Medium for Peeking {
    fn len(&self) -> u64 {
        self.image.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.image.read(offset, into);
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.image.write(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.image.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.image.store_u64(offset, value);
    }
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.image.compare_and_swap(offset, compare, swap)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.image.fetch_add(offset, add)
    }
    fn pwb(&self, range: std::ops::Range<u64>) {
        self.image.pwb(range);
    }
    fn pfence(&self) -> std::io::Result<()> {
        self.image.pfence()
    }
    fn psync(&self) -> std::io::Result<()> {
        self.look();
        self.image.psync()
    }
}

#[test]
fn at_no_sync_could_a_reader_believe_what_is_not_durable() {
    let image = Arc::new(CrashImage::new(TINY.size, PersistenceDomain::Adr));
    remanence_kv::server::format(&image, &TINY, 64, SALT, [7; 16]).expect("fair");
    let peeking = Peeking { image: image.clone(), believed: Arc::default() };
    let (mut server, _) = Server::open(peeking.clone(), DURABLE).expect("a store");
    let client = server.connect();
    for n in 0..60u8 {
        let key = vec![n % 9];
        let put =
            Request::PutInline { key: key.clone(), value: vec![n; 30], expires: 0, expect: Expect::Any };
        assert!(matches!(server.handle(1, client, &put), Reply::Done { .. }));
        if n % 7 == 0 {
            server.handle(1, client, &Request::Delete { key: key.clone(), expect: Expect::Any });
        }
        let put = Request::Put { key: vec![n % 9], len: 20, expires: 0, expect: Expect::Any };
        let Reply::Reserved(reserved) = server.handle(1, client, &put) else { panic!("room") };
        let place = remanence_kv::format::Place {
            salt: SALT,
            head: reserved.head,
            offset: reserved.offset,
            epoch: reserved.epoch,
        };
        let content = remanence_kv::format::object::Content::Value(&[n; 20]);
        let object = remanence_kv::format::object::emit(&place, reserved.version, 0, &[n % 9], content);
        // Visible, and nothing more: whoever settles it must make it durable.
        image.write(reserved.at + 8, &object[8..]);
        server.handle(1, client, &Request::Settle { key: vec![n % 9] });
        if n % 10 == 9 {
            server.clean(n / 10 % 2).expect("nothing is being cleaned");
            for _ in 0..30 {
                server.step(1, 4).expect("memory does not fail");
                let view = server.view().number;
                server.handle(1, client, &Request::Acknowledge { view });
            }
        }
    }
    assert!(peeking.believed.load(Ordering::Relaxed) > 500);
}
