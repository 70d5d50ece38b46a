//! Nobody is served during a step of the server, so each does little, however much the store holds. Counted, not timed.

use crate::common;

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use common::{DURABLE, SALT};
use remanence_kv::format::object::object_len;
use remanence_kv::proto::{Expect, Inline, Reply, Request};
use remanence_kv::server::{ClientId, Event, Options, Server, format};
use remanence_kv::{Geometry, Refusal};
use remanence_pmem::Medium;

/// What the host gives a step.
const BUDGET: usize = 64;
/// What a step may cost: cleaning and growing have the budget each, and there is the last thing that they begin, regions that
/// become free, and what goes round.
const MOST: u64 = 2 * BUDGET as u64 + 64;

/// Memory that never crashes, and is quick: these tests are about counts. It counts waits.
pub(super) struct Plain(RefCell<Vec<u8>>, Cell<u64>);

impl Plain {
    fn word(&self, offset: u64) -> Ref<'_, [u8]> {
        Ref::map(self.0.borrow(), |bytes| &bytes[offset as usize..offset as usize + 8])
    }
}

impl Medium for Plain {
    fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        let at = offset as usize;
        into.copy_from_slice(&self.0.borrow()[at..at + into.len()]);
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        u64::from_le_bytes((&*self.word(offset)).try_into().expect("eight bytes")).to_le()
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le().to_le_bytes());
    }
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let was = self.load_u64(offset);
        if was == compare {
            self.store_u64(offset, swap);
        }
        was
    }
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let was = self.load_u64(offset);
        self.store_u64(offset, was.wrapping_add(add));
        was
    }
    fn pwb(&self, _: Range<u64>) {}
    fn pfence(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn psync(&self) -> std::io::Result<()> {
        self.1.set(self.1.get() + 1);
        Ok(())
    }
}

/// A server, one client of it, and what its steps have cost.
pub(super) struct Bench<'m> {
    pub(super) server: Server<&'m Plain>,
    pub(super) client: ClientId,
    pub(super) now: u64,
    /// The dearest step, and what the steps were.
    worst: u64,
    steps: u64,
}

impl<'m> Bench<'m> {
    pub(super) fn open(medium: &'m Plain, options: Options) -> Self {
        let (mut server, _) = Server::open(medium, options).expect("a store");
        let client = server.connect();
        Self { server, client, now: 1, worst: 0, steps: 0 }
    }

    pub(super) fn step(&mut self) -> bool {
        let before = self.server.spent();
        let more = self.server.step(self.now, BUDGET).expect("memory does not fail");
        self.worst = self.worst.max(self.server.spent() - before);
        self.steps += 1;
        while let Some(event) = self.server.poll_event() {
            let Event::Notice { client, view } = event else { panic!("{event:?}") };
            self.server.handle(self.now, client, &Request::Acknowledge { view });
        }
        more
    }

    pub(super) fn rest(&mut self) {
        for _ in 0..1_000_000 {
            let usage = self.server.usage();
            if !self.step() && !usage.cleaning && !usage.growing {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.server.usage());
    }

    fn put(&mut self, key: u64, value: &[u8], expires: u64) -> Result<(), Refusal> {
        let put = Inline { key: &key.to_le_bytes(), value: Some(value), expires, expect: Expect::Any };
        let mut done = Vec::new();
        self.server.put_all(self.now, self.client, &[put], &mut done);
        done.pop().expect("one for one").map(drop)
    }

    /// The same, until there is room; a step after every few.
    fn insist(&mut self, key: u64, value: &[u8]) {
        if key.is_multiple_of(8) {
            self.step();
        }
        for _ in 0..1_000_000 {
            match self.put(key, value, 0) {
                Ok(()) => return,
                Err(Refusal::Cleaning | Refusal::Growing) => drop(self.step()),
                Err(refusal) => panic!("key {key}: {refusal}"),
            }
        }
        panic!("key {key} never finds room");
    }

    pub(super) fn get(&mut self, key: u64) -> Reply {
        self.server.handle(self.now, self.client, &Request::Get { key: key.to_le_bytes().to_vec() })
    }

    pub(super) fn assert_bounded(&self) {
        assert!(self.worst <= MOST, "a step cost {}, and {MOST} is the most", self.worst);
    }
}

const LARGE: Geometry =
    Geometry { size: 64 << 20, region_len: 1 << 20, segment_len: 256 << 10, heads: 2, grown_from: 0 };
pub(super) const BY_ITSELF: Options = Options { clean_by_itself: true, ..DURABLE };

pub(super) fn plain(geometry: &Geometry, buckets: u64) -> Plain {
    let medium = Plain(RefCell::new(vec![0; geometry.size as usize]), Cell::new(0));
    format(&&medium, geometry, buckets, SALT, [7; 16]).expect("a fair geometry");
    medium
}

#[test]
fn no_step_of_cleaning_is_longer_in_a_large_store_and_all_of_it_is_linear() {
    let medium = plain(&LARGE, 250_000);
    let mut bench = Bench::open(&medium, BY_ITSELF);
    let keys = 200_000;
    for key in 0..keys {
        bench.insist(key, &[1; 20]);
    }
    let (before, written) = (bench.server.spent(), 700_000);
    let mut random = 1u64;
    for _ in 0..written {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bench.insist((random >> 33) % keys, &[2; 20]);
    }
    let stats = bench.server.stats();
    assert!(stats.objects_moved > keys / 2 && stats.regions_freed > 16, "{stats:?}");
    bench.assert_bounded();
    // Each object that was ever written or copied is looked at once, and each copy flips once.
    let spent = bench.server.spent() - before;
    assert!(spent <= keys + written + 3 * stats.objects_moved, "{spent} things for {stats:?}");
    for key in (0..keys).step_by(97) {
        assert!(matches!(bench.get(key), Reply::Value { .. }), "{key}");
    }
}

#[test]
fn no_step_is_longer_when_nothing_can_be_moved() {
    // Filled to the brim, and nothing of it is garbage: cleaning finds no room for most of what it looks at.
    let medium = plain(&LARGE, 250_000);
    let mut bench = Bench::open(&medium, DURABLE);
    let value = vec![7; 200];
    let mut key = 0;
    while bench.put(key, &value, 0).is_ok() {
        key += 1;
    }
    assert!(key > 100_000, "{key} keys");
    for head in 0..2 {
        assert!(bench.server.clean(head).expect("it begins"));
        bench.rest();
    }
    bench.assert_bounded();
    for key in (0..key).step_by(97) {
        assert!(matches!(bench.get(key), Reply::Value { .. }), "{key}");
    }
}

#[test]
fn a_value_of_many_chunks_is_copied_in_many_steps() {
    let geometry =
        Geometry { size: 16 << 20, region_len: 256 << 10, segment_len: 16 << 10, heads: 1, grown_from: 0 };
    let medium = plain(&geometry, 64);
    let mut bench = Bench::open(&medium, DURABLE);
    let value: Vec<u8> = (0..6u32 << 20).map(|n| (n >> 7) as u8).collect();
    let request = |key: &[u8]| {
        let (key, value) = (key.to_vec(), value.clone());
        Request::PutInline { key, value, expires: 0, expect: Expect::Any }
    };
    let reply = bench.server.handle(1, bench.client, &request(b"large"));
    assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    assert!(object_len(5, value.len() as u64) > geometry.region_len * 8);
    assert!(bench.server.clean(0).expect("it begins"));
    bench.rest();
    assert!(bench.server.stats().regions_freed >= 20 && bench.steps > 4, "{:?}", bench.server.stats());
    bench.assert_bounded();
    let get = Request::Get { key: b"large".to_vec() };
    let Reply::Value { value: found, .. } = bench.server.handle(1, bench.client, &get) else {
        panic!("gone")
    };
    assert!(found == value, "as it was");
    // It is replaced while it is copied: what was copied so far is garbage, and nothing else is lost.
    assert!(bench.server.clean(0).expect("it begins"));
    for _ in 0..4 {
        bench.step();
    }
    assert!(bench.server.usage().cleaning);
    let put = Request::PutInline { key: b"large".to_vec(), value: vec![1], expires: 0, expect: Expect::Any };
    let reply = bench.server.handle(1, bench.client, &put);
    assert!(matches!(reply, Reply::Done { .. } | Reply::Written(_)), "{reply:?}");
    bench.rest();
    assert!(bench.server.clean(0).expect("it begins"));
    bench.rest();
    let usage = bench.server.usage();
    assert!(usage.regions_free > usage.regions - 6, "{usage:?}");
    let Reply::Value { value: found, .. } = bench.server.handle(1, bench.client, &get) else {
        panic!("gone")
    };
    assert_eq!(found, [1]);
}

#[test]
fn a_table_grows_by_what_it_must_and_no_step_of_it_is_longer() {
    let medium = plain(&LARGE, 1024);
    for defer in [false, true] {
        format(&&medium, &LARGE, 1024, SALT, [7; 16]).expect("a fair geometry");
        let mut bench = Bench::open(&medium, Options { defer, ..DURABLE });
        let (keys, mut expected) = (70_000, 1024);
        for key in 0..keys {
            // Nobody steps until it must be: keys find no place, and ask while the table is growing.
            while let Err(refusal) = bench.put(key, b"value", 0) {
                assert_eq!(refusal, Refusal::Growing);
                bench.step();
            }
        }
        bench.rest();
        while keys * 10 > expected * 8 {
            expected *= 2;
        }
        let slots = bench.server.usage().entries_max;
        assert!((expected..expected + 1024).contains(&slots), "{slots} slots for {keys} keys");
        let most = MOST + 1024;
        assert!(bench.worst <= most, "a step cost {}, and {most} is the most", bench.worst);
    }
}

#[test]
fn a_table_for_which_there_is_no_room_at_twice_its_size_grows_by_less() {
    // A table of 16 KiB is crowded when the objects take 50, and 28 are left.
    let geometry = Geometry { size: 112 << 10, region_len: 1024, segment_len: 512, heads: 1, grown_from: 0 };
    let medium = plain(&geometry, 1000);
    let mut bench = Bench::open(&medium, DURABLE);
    let begin = bench.server.usage().entries_max;
    let mut keys = 0;
    loop {
        match bench.put(keys, b"", 0) {
            Ok(()) => keys += 1,
            Err(Refusal::Growing | Refusal::Cleaning) => drop(bench.step()),
            Err(refusal) => break assert_eq!(refusal, Refusal::Full),
        }
        assert!(keys < 2000, "so many entries do not fit");
        bench.step();
    }
    bench.rest();
    let end = bench.server.usage().entries_max;
    assert!((begin + 1..begin * 2).contains(&end), "{begin} entries, then {end}, with {keys} keys");
    for key in 0..keys {
        assert!(matches!(bench.get(key), Reply::Value { .. }), "{key} of {keys}");
    }
}

#[test]
fn what_finds_no_room_to_be_moved_to_keeps_all_of_its_chunks() {
    let geometry =
        Geometry { size: 2 << 20, region_len: 64 << 10, segment_len: 8 << 10, heads: 1, grown_from: 0 };
    let medium = plain(&geometry, 64);
    let mut bench = Bench::open(&medium, DURABLE);
    let value = |key: u64| vec![key as u8; 300 << 10];
    let put = |bench: &mut Bench<'_>, key: u64| {
        let (key, value) = (key.to_le_bytes().to_vec(), value(key));
        let put = Request::PutInline { key, value, expires: 0, expect: Expect::Any };
        matches!(bench.server.handle(1, bench.client, &put), Reply::Done { .. })
    };
    let keys = (0..).take_while(|key| put(&mut bench, *key)).count() as u64;
    assert!(keys >= 4, "{keys} values of several regions each");
    for round in 0..4 {
        bench.server.clean(0).expect("it begins");
        bench.rest();
        for key in 0..keys {
            let Reply::Value { value: found, .. } = bench.get(key) else { panic!("{key} in round {round}") };
            assert!(found == value(key), "{key} in round {round}");
        }
        // What is free is used, and would be what was there before.
        while bench.put(1000, &[0; 4 << 10], 0).is_ok() {}
    }
}

/// What the server says of its keys, when it has counted all.
fn counts(bench: &mut Bench<'_>) -> Vec<(u8, u64)> {
    for _ in 0..100_000 {
        let reply = bench.server.handle(bench.now, bench.client, &Request::Count);
        let Reply::Counts { whole, counts } = reply else { panic!("{reply:?}") };
        if whole {
            return counts;
        }
    }
    panic!("it never has counted all");
}

#[test]
fn keys_are_counted_once_and_counts_are_kept_whatever_happens_meanwhile() {
    let geometry =
        Geometry { size: 8 << 20, region_len: 128 << 10, segment_len: 32 << 10, heads: 2, grown_from: 0 };
    let medium = plain(&geometry, 1000);
    let mut random = 7u64;
    let mut keys: BTreeMap<Vec<u8>, ()> = BTreeMap::new();
    for _ in 0..4 {
        // Opened again, as after a crash: it counts while keys come and go.
        let mut bench = Bench::open(&medium, BY_ITSELF);
        bench.now = 1000;
        for n in 0..6000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = vec![(random >> 60) as u8 & 3, (random >> 40) as u8, (random >> 48) as u8 & 7];
            let request = match random >> 33 & 7 {
                0 | 1 => Request::Delete { key: key.clone(), expect: Expect::Any },
                // Room that is given back.
                2 => Request::Put { key: key.clone(), len: 9, expires: 0, expect: Expect::Any },
                _ => {
                    let (value, key) = (vec![1; 9], key.clone());
                    Request::PutInline { key, value, expires: 0, expect: Expect::Any }
                }
            };
            match bench.server.handle(bench.now, bench.client, &request) {
                Reply::Reserved(reserved) => {
                    let abandon = Request::Abandon { version: reserved.version };
                    let reply = bench.server.handle(bench.now, bench.client, &abandon);
                    assert_eq!(reply, Reply::Ok);
                }
                Reply::Done { .. } | Reply::Written(_) => {
                    let there = matches!(request, Request::PutInline { .. });
                    let _ = if there { keys.insert(key, ()) } else { keys.remove(&key) };
                }
                Reply::Refused(Refusal::Growing | Refusal::Cleaning) => {}
                reply => panic!("{reply:?}"),
            }
            if n % 64 == 0 {
                bench.step();
            }
        }
        let expected: BTreeMap<u8, u64> = keys.keys().fold(BTreeMap::new(), |mut counts, key| {
            *counts.entry(key[0]).or_default() += 1;
            counts
        });
        assert_eq!(counts(&mut bench), expected.iter().map(|(k, n)| (*k, *n)).collect::<Vec<_>>());
        let before = bench.server.spent();
        counts(&mut bench);
        assert_eq!(bench.server.spent(), before, "nobody counts again");
        // One database goes.
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let clear = Request::Clear { first: Some(2), cursor: at };
            let reply = bench.server.handle(bench.now, bench.client, &clear);
            let Reply::Page { next, .. } = reply else { panic!("{reply:?}") };
            cursor = next;
        }
        keys.retain(|key, _| key[0] != 2);
        assert!(counts(&mut bench).iter().all(|(first, _)| *first != 2));
        for key in keys.keys() {
            let reply = bench.server.handle(bench.now, bench.client, &Request::Get { key: key.clone() });
            assert!(matches!(reply, Reply::Value { .. }), "{key:?}: {reply:?}");
        }
        bench.assert_bounded();
    }
}

#[test]
fn a_thousand_keys_are_cleared_with_few_waits() {
    let medium = plain(&LARGE, 20_000);
    let mut bench = Bench::open(&medium, DURABLE);
    for key in 0..10_000 {
        bench.put(key, b"value", 0).expect("room");
    }
    let (before, mut cursor, mut calls) = (medium.1.get(), Some(0), 0);
    while let Some(at) = cursor {
        let reply = bench.server.handle(1, bench.client, &Request::Clear { first: None, cursor: at });
        let Reply::Page { next, .. } = reply else { panic!("{reply:?}") };
        (cursor, calls) = (next, calls + 1);
    }
    let waits = medium.1.get() - before;
    assert!(calls <= 30 && waits <= 2 * calls, "{calls} calls, {waits} waits");
    assert!((0..10_000).all(|key| bench.get(key) == Reply::Absent));
    assert_eq!((counts(&mut bench), bench.server.usage().entries), (vec![], 0));
}

#[test]
fn what_expires_does_not_fill_the_store() {
    // A hundred times what fits, each for a second, and as much again as stays alive of the store's room.
    let geometry =
        Geometry { size: 4 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 2, grown_from: 0 };
    let medium = plain(&geometry, 4000);
    let mut bench = Bench::open(&medium, BY_ITSELF);
    let mut key = 0;
    for _ in 0..60 {
        for _ in 0..100 {
            // Ten milliseconds, and twenty keys: two thousand are alive.
            bench.now += 10;
            for _ in 0..20 {
                let expires = bench.now + 1000;
                let mut tries = 0;
                while let Err(refusal) = bench.put(key, &[3; 200], expires) {
                    assert!(matches!(refusal, Refusal::Cleaning | Refusal::Growing), "{refusal}");
                    tries += 1;
                    assert!(tries < 10_000, "{:?}", bench.server.usage());
                    bench.step();
                }
                key += 1;
            }
            bench.step();
        }
    }
    let usage = bench.server.usage();
    assert!(usage.entries < 20_000 && bench.server.stats().expired > 90_000, "{usage:?}");
    bench.assert_bounded();
    // When they all have ended, rounds take what is left.
    bench.now += 2000;
    for _ in 0..10_000 {
        bench.now += 1;
        bench.step();
    }
    assert_eq!((bench.server.usage().entries, counts(&mut bench)), (0, vec![]));
    let spent = bench.server.spent();
    (0..100).for_each(|_| {
        bench.now += 1;
        bench.step();
    });
    assert_eq!(bench.server.spent(), spent, "there is nothing left to look for");
}

const MIDDLE: Geometry =
    Geometry { size: 8 << 20, region_len: 128 << 10, segment_len: 32 << 10, heads: 2, grown_from: 0 };

#[test]
fn what_frees_has_room_in_a_full_store_and_what_cleaning_needs_is_kept_from_it_too() {
    let medium = plain(&MIDDLE, 4000);
    let mut bench = Bench::open(&medium, BY_ITSELF);
    bench.rest();
    let put = |bench: &mut Bench<'_>, key: u64, len: usize, expect| loop {
        let key = key.to_le_bytes().to_vec();
        let put = Request::PutInline { key, value: vec![1; len], expires: 0, expect };
        match bench.server.handle(bench.now, bench.client, &put) {
            Reply::Written(place) => break Some(place.version),
            Reply::Done { version } => break Some(version),
            Reply::Refused(Refusal::Cleaning | Refusal::Growing) => _ = bench.step(),
            Reply::Refused(Refusal::Full | Refusal::WrongVersion { .. }) => break None,
            reply => panic!("{reply:?}"),
        }
    };
    let versions: Vec<u64> = (0..).map_while(|key| put(&mut bench, key, 2000, Expect::Any)).collect();
    let full = bench.server.usage().room;
    // Values may grow so that others can go, and new ones may come: not those that do not say so, and not without end.
    let (mut grown, mut fresh) = (0, 0);
    for (key, version) in versions.iter().enumerate() {
        let longer = put(&mut bench, key as u64, 4000, Expect::Version(*version));
        assert_eq!(longer, None, "it does not say that it frees");
        match put(&mut bench, key as u64, 4000, Expect::Freeing(*version)) {
            Some(_) => grown += 1,
            None => break,
        }
        fresh += u64::from(put(&mut bench, 1 << 32 | key as u64, 500, Expect::Freeing(0)).is_some());
    }
    let room = bench.server.usage().room;
    assert!(grown > 0 && fresh > 0, "{full:?}");
    // What changes are moved to finds room where removals, which are changes, find none.
    let moved = versions.len() - 1;
    let longer = put(&mut bench, moved as u64, 4000, Expect::Freeing(versions[moved]));
    assert_eq!(longer, None, "that room is used up");
    assert!(put(&mut bench, moved as u64, 4000, Expect::Moving(versions[moved])).is_some(), "{room:?}");
    let all = room.live + room.garbage + room.free;
    assert!(room.live > full.live && room.live < full.live + all / 32, "{room:?}");
    // Everybody goes on.
    for _ in 0..3 {
        for key in grown as u64 + 1..moved as u64 {
            assert!(put(&mut bench, key, 2000, Expect::Any).is_some(), "{key}");
        }
    }
    for key in 0..grown as u64 {
        assert!(matches!(bench.get(key), Reply::Value { value, .. } if value.len() == 4000), "{key}");
    }
    let wrong = put(&mut bench, 0, 10, Expect::Freeing(versions[0]));
    assert_eq!(wrong, None, "it is another version");
}

#[test]
fn a_store_that_can_take_no_more_says_so_at_once_and_goes_on_with_all_else() {
    let medium = plain(&MIDDLE, 40_000);
    let mut bench = Bench::open(&medium, BY_ITSELF);
    bench.rest();
    let keys = (0..).take_while(|key| match bench.put(*key, &[1; 200], 0) {
        Ok(()) => true,
        Err(Refusal::Cleaning | Refusal::Growing) => {
            bench.insist(*key, &[1; 200]);
            true
        }
        Err(refusal) => {
            assert_eq!(refusal, Refusal::Full);
            false
        }
    });
    let keys = keys.count() as u64;
    let room = bench.server.usage().room;
    assert!(room.counted && room.keys == keys && room.live == keys * 256, "{keys} keys in {room:?}");
    assert!(room.left < 256 && room.live * 10 > MIDDLE.size * 7, "{room:?} of {}", MIDDLE.size);
    // All of them once more and more, at random: none is refused, and cleaning costs a few copies for each.
    let mut random = 1u64;
    for _ in 0..3 * keys {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bench.insist((random >> 33) % keys, &[2; 200]);
        if random >> 60 == 0 {
            assert_eq!(bench.put(keys, &[1; 2000], 0), Err(Refusal::Full), "at once");
            assert_eq!(bench.put((random >> 33) % keys, &[1; 2000], 0), Err(Refusal::Full), "it is longer");
        }
    }
    let moved = bench.server.stats().objects_moved;
    assert!(moved < 3 * keys * 10, "{moved} objects were moved for {} values", 3 * keys);
    for key in 0..keys {
        assert!(matches!(bench.get(key), Reply::Value { value, .. } if value.len() == 200), "{key}");
    }
    // A deletion makes room for another key, at once.
    for key in 0..keys / 4 {
        let delete = Request::Delete { key: key.to_le_bytes().to_vec(), expect: Expect::Any };
        let reply = bench.server.handle(bench.now, bench.client, &delete);
        assert!(matches!(reply, Reply::Done { .. }), "{reply:?}");
    }
    assert_eq!(bench.server.usage().room.keys, keys - keys / 4, "a key that was deleted is none");
    // What is padded differs a little.
    for key in keys..keys + keys / 5 {
        bench.insist(key, &[3; 200]);
    }
    bench.assert_bounded();
}

#[test]
fn what_is_live_is_known_whatever_happens() {
    let medium = plain(&MIDDLE, 1000);
    let (mut random, mut model) = (3u64, BTreeMap::new());
    for _ in 0..3 {
        // Opened again, as after a crash: it counts while values come, go and are moved.
        let mut bench = Bench::open(&medium, BY_ITSELF);
        for n in 0..6000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Most change a few keys, so that others lie among what is garbage.
            let kept = if random >> 20 & 15 == 0 { 255 } else { 15 };
            let key = vec![1, (random >> 40) as u8 & kept];
            // Of one in sixteen the value takes some chunks.
            let len = if random >> 60 == 0 { 40_000 } else { random >> 50 & 1023 };
            let put = Request::Put { key: key.clone(), len, expires: 0, expect: Expect::Any };
            let request = match random >> 33 & 7 {
                0 => Request::Delete { key: key.clone(), expect: Expect::Any },
                1 => put,
                _ => {
                    let value = vec![n as u8; len as usize];
                    Request::PutInline { key: key.clone(), value, expires: 0, expect: Expect::Any }
                }
            };
            match bench.server.handle(bench.now, bench.client, &request) {
                Reply::Reserved(reserved) => {
                    let abandon = Request::Abandon { version: reserved.version };
                    assert_eq!(bench.server.handle(bench.now, bench.client, &abandon), Reply::Ok);
                }
                Reply::Done { .. } | Reply::Written(_) if matches!(request, Request::Delete { .. }) => {
                    model.remove(&key);
                }
                Reply::Done { .. } | Reply::Written(_) => drop(model.insert(key, len)),
                Reply::Refused(Refusal::Growing | Refusal::Cleaning) => {}
                reply => panic!("{reply:?}"),
            }
            if n % 16 == 0 {
                bench.step();
            }
        }
        assert!(bench.server.stats().objects_moved > 10, "{:?}", bench.server.stats());
        bench.rest();
        let max = MIDDLE.object_max();
        let units = |bytes: u64| bytes.div_ceil(64);
        let live: u64 = model
            .values()
            .map(|len| {
                if object_len(2, *len) <= max {
                    return units(object_len(2, *len));
                }
                let chunks = len.div_ceil(max);
                (0..chunks).map(|n| units(max.min(len - n * max))).sum::<u64>() + units(50 + 8 + 16 * chunks)
            })
            .sum();
        let room = bench.server.usage().room;
        assert!(room.counted);
        assert_eq!((room.keys, room.live), (model.len() as u64, live * 64), "{room:?}");
        bench.assert_bounded();
    }
}
