//! A look at a key's memory, while others change it between any two loads: what it tells was so at some moment of the look.

use crate::common;

use std::cell::Cell;

use common::*;
use remanence_kv::client::{Call, Completion, Get, Peek, Put, RemoteMemory, Verb, peek, peek_front, run};
use remanence_kv::proto::{Expect, Inline, Request};
use remanence_kv::{Geometry, Options};
use remanence_pmem::Medium as _;

const POOL: Geometry =
    Geometry { size: 256 << 10, region_len: 4096, segment_len: 1024, heads: 2, grown_from: 0 };
/// The key that is looked at.
const KEY: u8 = 200;

/// A step of splitmix64's sequence.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 16
}

/// Others, who change the store.
struct Others<'s, 'a> {
    store: &'s Store<'a>,
    writer: Session<'s, 'a>,
    state: u64,
    written: u64,
    /// What the key has now.
    now: Option<Vec<u8>>,
    /// What it has had since the look began.
    had: Vec<Option<Vec<u8>>>,
    /// Room that was handed out for the key, and that nobody has written to.
    dangling: Option<u64>,
}

impl Others<'_, '_> {
    fn changed(&mut self, now: Option<Vec<u8>>) {
        self.now.clone_from(&now);
        self.had.push(now);
    }

    fn value(&mut self) -> Vec<u8> {
        self.written += 1;
        let len = random(&mut self.state) % 150;
        value(self.written, len as usize)
    }

    /// One thing. What finds no room because nobody acknowledges meanwhile does not happen.
    fn act(&mut self) {
        let store = self.store;
        match random(&mut self.state) % 24 {
            0..4 if self.dangling.is_none() => {
                let bytes = self.value();
                if matches!(self.writer.try_run(&mut Put::new(&[KEY], &bytes, 0, Expect::Any)), Ok(Ok(_))) {
                    self.changed(Some(bytes));
                }
            }
            4..6 if self.dangling.is_none() => {
                if matches!(self.writer.try_run(&mut Call::delete(&[KEY], Expect::Any)), Ok(Ok(_))) {
                    self.changed(None);
                }
            }
            6..9 => {
                // With one of the keys that share its neighbourhood, which makes it move.
                let (bytes, other) = (self.value(), [(random(&mut self.state) % 60) as u8]);
                let puts = [&[KEY][..], &other].map(|key| Inline {
                    key,
                    value: Some(&bytes),
                    expires: 0,
                    expect: Expect::Any,
                });
                let (mut done, now) = (Vec::new(), store.now.get());
                store.server.borrow_mut().put_all(now, self.writer.id, &puts, &mut done);
                if done[0].is_ok() {
                    self.changed(Some(bytes));
                }
            }
            9..13 => {
                let (key, bytes) = ([(random(&mut self.state) % 60) as u8], self.value());
                let _ = self.writer.try_run(&mut Put::new(&key, &bytes, 0, Expect::Any));
            }
            13 => {
                let key = [(random(&mut self.state) % 60) as u8];
                let _ = self.writer.try_run(&mut Call::delete(&key, Expect::Any));
            }
            14 if self.dangling.is_none() => {
                let put = Request::Put { key: vec![KEY], len: 40, expires: 0, expect: Expect::Any };
                if let remanence_kv::Reply::Reserved(reserved) = self.writer.call(&put) {
                    self.dangling = Some(reserved.version);
                }
            }
            15 => {
                if let Some(version) = self.dangling.take() {
                    self.writer.call(&Request::Abandon { version });
                }
            }
            16..18 => drop(store.step()),
            18 => drop(store.server.borrow_mut().clean((random(&mut self.state) % 2) as u8)),
            19 => drop(store.server.borrow_mut().resize(16 + random(&mut self.state) % 60)),
            _ => self.writer.attend(),
        }
    }
}

/// The memory, of which every load takes others some time.
struct Busy<'o, 's, 'a> {
    others: &'o mut Others<'s, 'a>,
    loads: &'o Cell<u32>,
}

impl RemoteMemory for Busy<'_, '_, '_> {
    type Error = &'static str;

    fn post(&mut self, _: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        Err("a look posts nothing")
    }

    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Self::Error> {
        self.loads.set(self.loads.get() + 1);
        // Bytes are copied in two parts, in any order, and something may come before each.
        let half = into.len() / 16 * 8;
        let (first, second) = into.split_at_mut(half);
        let mut parts = [(first, at), (second, at + half as u64)];
        if random(&mut self.others.state).is_multiple_of(2) {
            parts.reverse();
        }
        for (part, from) in parts {
            if random(&mut self.others.state).is_multiple_of(3) {
                self.others.act();
            }
            self.others.store.image.read(from, part);
        }
        Ok(true)
    }

    fn now(&self) -> u64 {
        self.others.store.now.get()
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        Err("a look does not wait")
    }
}

/// Looks, as often. Returns how many found a value, none, and could not tell.
fn looks(options: Options, seed: u64, count: u32, locations: usize) -> [u32; 3] {
    let image = formatted(POOL, 16);
    let store = Store::open(&image, Options { clean_by_itself: true, lease: 1 << 40, ..options });
    let (mut reader, writer) = (store.client(locations), store.client(4));
    let mut others =
        Others { store: &store, writer, state: seed, written: 0, now: None, had: Vec::new(), dangling: None };
    let mut told = [0; 3];
    for n in 0..count {
        for _ in 0..random(&mut others.state) % 4 {
            others.act();
        }
        others.had = vec![others.now.clone()];
        let (mut buffer, loads) = (b"kept".to_vec(), Cell::new(0));
        let mut busy = Busy { others: &mut others, loads: &loads };
        let found = peek(&mut reader.client, &mut busy, &[KEY], &mut buffer).expect("memory does not fail");
        let found = match found {
            Peek::Found { value, .. } => {
                told[0] += 1;
                Some(Some(buffer[value].to_vec()))
            }
            Peek::Absent => {
                told[1] += 1;
                Some(None)
            }
            Peek::Unknown => {
                told[2] += 1;
                None
            }
        };
        assert!(buffer.starts_with(b"kept") && loads.get() <= 8, "{} loads", loads.get());
        if let Some(found) = &found {
            assert!(others.had.contains(found), "look {n}: {found:?}, and it was {:?}", others.had);
        } else {
            assert_eq!(buffer, b"kept");
        }
        // And what a GET finds when nobody else is about, with what the look has cached.
        let known = others.now.clone();
        if random(&mut others.state).is_multiple_of(2) {
            let mut remote = Quiet { store: &store, reader: reader.id };
            let got =
                run(&mut reader.client, &mut remote, &mut Get::new(&[KEY])).expect("memory does not fail");
            assert_eq!(got.expect("a GET").map(|found| found.value), known, "look {n}");
        }
        reader.attend();
    }
    told
}

/// The memory and the server, with nobody else about.
struct Quiet<'s, 'a> {
    store: &'s Store<'a>,
    reader: remanence_kv::server::ClientId,
}

impl RemoteMemory for Quiet<'_, '_> {
    type Error = &'static str;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        let one = |verb| {
            assert!(matches!(verb, Verb::Read { .. } | Verb::Call(_)), "a GET writes nothing");
            verb.carry_out(&self.store.image, |request| {
                self.store.server.borrow_mut().handle(self.store.now.get(), self.reader, request)
            })
        };
        Ok(verbs.into_iter().map(one).collect())
    }

    fn now(&self) -> u64 {
        self.store.now.get()
    }

    fn again(&mut self, tries: u32) -> Result<(), Self::Error> {
        self.store.step();
        if tries > 100 { Err("tried for too long") } else { Ok(()) }
    }
}

#[test]
fn what_a_look_tells_was_so_while_it_lasted() {
    let rounds = std::env::var("REMANENCE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let mut all = [0; 3];
    for seed in 0..rounds {
        for (options, locations) in [(DURABLE, 8), (DURABLE, 0), (ERDA, 8)] {
            let told = looks(options, seed, 200, locations);
            all.iter_mut().zip(told).for_each(|(sum, n)| *sum += n);
        }
    }
    println!("{all:?} found, absent, unknown");
    let looks: u32 = all.iter().sum();
    assert!(all[0] > looks / 10 && all[1] > looks / 50 && all[2] > looks / 50, "{all:?}");
}

#[test]
fn a_look_at_what_rests_tells_what_it_is_with_no_message() {
    let image = formatted(POOL, 64);
    let store = Store::open(&image, DURABLE);
    let (mut writer, mut reader) = (store.client(8), store.client(8));
    // Both logs have their first links, and the reader knows them.
    (0..20u8).for_each(|n| assert!(writer.put(&[n], b"other").is_ok()));
    reader.attend();
    writer.put(b"a", b"one").expect("room");
    assert_eq!(reader.peek(b"a"), None, "it may not be durable yet: only the server can tell");
    assert_eq!(
        writer.peek(b"a").flatten().map(|(_, value)| value),
        Some(b"one".to_vec()),
        "it knows its own"
    );
    let confirm = writer.client.poll_confirm().expect("it is to be settled");
    writer.call(&confirm);
    while store.step() {}
    for _ in 0..2 {
        assert_eq!(reader.peek(b"a").flatten().map(|(_, value)| value), Some(b"one".to_vec()));
    }
    assert_eq!(reader.client.stats().cached, 1, "the second time over it is one READ");
    let inline = |value| [Inline { key: b"a", value: Some(value), expires: 3, expect: Expect::Any }];
    assert!(writer.put_all(&inline(b"two"))[0].is_ok());
    assert_eq!(reader.peek(b"a").flatten().map(|(_, value)| value), Some(b"two".to_vec()), "settled at once");
    for _ in 0..2 {
        assert!(reader.peek(b"a").is_some_and(|found| found.is_some()));
        store.now.set(store.now.get() + 1);
    }
    assert_eq!((writer.peek(b"a"), reader.peek(b"a")), (Some(None), Some(None)), "its time has come");
    assert_eq!(reader.peek(b"never"), Some(None));
    assert_eq!(reader.peek(b""), None, "what is no key is a GET's to refuse");
    writer.put(b"large", &[7; 3000]).expect("room");
    let confirm = writer.client.poll_confirm().expect("it is to be settled");
    writer.call(&confirm);
    store.step();
    assert_eq!(reader.peek(b"large"), None, "it lies in chunks");
    assert_eq!(reader.value(b"large"), Some(vec![7; 3000]));
    assert_eq!((reader.posts > 0, store.server.borrow().stats().damaged), (true, 0));
}

/// The memory, of which bytes are counted that are loaded.
struct Counted<'s, 'a> {
    store: &'s Store<'a>,
    bytes: usize,
}

impl RemoteMemory for Counted<'_, '_> {
    type Error = &'static str;

    fn post(&mut self, _: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        Err("a look posts nothing")
    }

    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Self::Error> {
        self.bytes += into.len();
        self.store.image.read(at, into);
        Ok(true)
    }

    fn now(&self) -> u64 {
        self.store.now.get()
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        Err("a look does not wait")
    }
}

#[test]
fn a_look_at_the_front_of_a_value_reads_no_more_however_long_it_is() {
    let geometry =
        Geometry { size: 2 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 2, grown_from: 0 };
    let image = formatted(geometry, 64);
    let store = Store::open(&image, DURABLE);
    for locations in [0, 8] {
        let (mut writer, mut reader, mut far) =
            (store.client(0), store.client(locations), store.client(locations));
        let lens = [(&b"a"[..], 0), (b"b", 5), (b"c", 900), (b"d", 15_000), (b"e", 60_000), (b"f", 300_000)];
        for (key, len) in lens {
            let bytes = value(7, len);
            let (expires, expect) = (store.now.get() + 10, Expect::Any);
            let put = Request::PutInline { key: key.to_vec(), value: bytes.clone(), expires, expect };
            assert!(matches!(writer.call(&put), remanence_kv::Reply::Done { .. }));
            reader.attend();
            far.attend();
            let mut look = || {
                let (mut buffer, mut counted) = (b"before".to_vec(), Counted { store: &store, bytes: 0 });
                let found = peek_front(&mut reader.client, &mut counted, key, 9, &mut buffer);
                assert!(counted.bytes < 5000, "{} bytes of {len}", counted.bytes);
                match found.expect("memory does not fail") {
                    Peek::Found { value, .. } => Some(Some(buffer[value].to_vec())),
                    Peek::Absent => Some(None),
                    Peek::Unknown => None,
                }
            };
            for _ in 0..2 {
                let front = look().flatten().unwrap_or_else(|| panic!("{len} bytes are there"));
                assert_eq!(front[..len.min(9)], bytes[..len.min(9)], "{len} bytes");
            }
            // As one that is elsewhere reads it.
            for _ in 0..2 {
                let found =
                    far.run(&mut Get::front(key, 9)).expect("a GET does not fail").expect("it is there");
                assert_eq!(found.value[..len.min(9)], bytes[..len.min(9)], "{len} bytes");
                assert!(found.value.len() < 2000, "{} of {len} bytes", found.value.len());
            }
            store.now.set(expires);
            assert!(matches!(look(), Some(None) | None), "it is over, or somebody has to make sure of that");
            assert_eq!(far.run(&mut Get::front(key, 9)), Ok(None), "it is over");
        }
    }
}
