//! The nine holes of the paper's design. Each is one scenario for any design: the paper's fails it, ours passes.
//!
//! `docs/erda.md` has the argument for each. A scenario returns what went wrong in words.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use remanence_erda_paper::paper::{self, Paper, Sizes};
use remanence_kv::client::{Client, Completion, Get, Put, RemoteMemory, Verb, run};
use remanence_kv::format::object::{Content, WRITTEN_FROM, emit};
use remanence_kv::format::slot::fingerprint;
use remanence_kv::format::{ObjectAddress, hash};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{ClientId, Event, Options, Server, format};
use remanence_kv::{Geometry, Mode};
use remanence_pmem::crash_image::{Choices, CrashImage, EveryWay, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};

const VALUE: usize = 40;
const SEGMENT: u64 = 1024;

/// A write that a client may make: where, and what.
#[derive(Clone, Debug)]
struct Write {
    client: usize,
    at: u64,
    bytes: Vec<u8>,
}

/// A store of one of the designs, with clients that can be stopped anywhere.
trait Design {
    /// Asks for room. `None`: the design makes this writer wait.
    fn reserve(&mut self, client: usize, key: u8, value: u8) -> Option<Write>;
    /// A part of the WRITE lands in the server's memory.
    fn land(&mut self, write: &Write, part: Range<usize>);
    /// The rest of it, and whatever the design does before it acknowledges.
    fn finish(&mut self, write: &Write);
    fn read(&mut self, key: u8) -> Option<Vec<u8>>;
    /// Cleans, and waits as long as the design waits. Whether memory became free.
    fn clean(&mut self) -> bool;
    /// The first half of what happens at the end of cleaning, and no more.
    fn clean_in_part(&mut self);
    /// The key is deleted, and its entry may be another's.
    fn remove(&mut self, key: u8);
    /// Everything is durable, by time rather than by anybody's doing.
    fn rest(&mut self);
    fn crash(&mut self, choices: &mut dyn Choices);
    /// Flips these bits of the newest value of a key, as a tear would that happens to leave a fitting checksum.
    fn tear(&mut self, value: u8, pattern: &[u8]);

    /// A key that will have the entry which this one had, when that is gone.
    fn successor(&self, key: u8) -> u8 {
        key + 1
    }

    /// Values that were found damaged so far, and went back to the version before: a crash damages nothing.
    fn damaged(&self) -> u64 {
        0
    }

    /// All of it, by a client that nothing stops.
    fn put(&mut self, client: usize, key: u8, value: u8) {
        let write = self.reserve(client, key, value).expect("nobody else writes");
        self.finish(&write);
    }
}

fn bytes(value: u8) -> Vec<u8> {
    vec![value; VALUE]
}

// The paper's.

const PAPER: Sizes =
    Sizes { key: 1, value: VALUE, entries: 4, region: 4 * SEGMENT, segment: SEGMENT, heads: 1 };

struct ThePaper {
    image: Arc<CrashImage>,
    store: Paper<Arc<CrashImage>>,
}

impl ThePaper {
    fn new() -> Self {
        let image = Arc::new(CrashImage::new(PAPER.medium(), PersistenceDomain::Adr));
        Self { store: Paper::format(image.clone(), PAPER), image }
    }
}

impl Design for ThePaper {
    fn reserve(&mut self, client: usize, key: u8, value: u8) -> Option<Write> {
        let at = self.store.reserve(0, &[key])?;
        Some(Write { client, at, bytes: paper::object(&[key], Some(&bytes(value))) })
    }
    fn land(&mut self, write: &Write, part: Range<usize>) {
        self.store.client_write(write.at + part.start as u64, &write.bytes[part]);
    }
    fn finish(&mut self, write: &Write) {
        self.land(write, 0..write.bytes.len());
    }
    fn read(&mut self, key: u8) -> Option<Vec<u8>> {
        self.store.get(&[key])
    }
    fn clean(&mut self) -> bool {
        self.store.clean_all(0);
        true
    }
    fn clean_in_part(&mut self) {
        self.store.clean(0);
        self.store.merge();
        self.store.sync();
        self.store.switch_head();
    }
    fn remove(&mut self, key: u8) {
        self.store.delete(0, &[key]);
        self.store.free_entry(&[key]);
    }
    fn rest(&mut self) {
        self.store.sync();
    }
    fn crash(&mut self, choices: &mut dyn Choices) {
        self.image = Arc::new(self.image.crash(Failure::PowerLoss, choices));
        self.store = Paper::recover(self.image.clone(), PAPER);
    }
    fn tear(&mut self, value: u8, pattern: &[u8]) {
        tear(&self.image, value, pattern);
    }
}

fn tear(image: &CrashImage, value: u8, pattern: &[u8]) {
    let needle = bytes(value);
    let at = image.bytes().windows(VALUE).position(|window| window == needle).expect("it is there");
    let torn: Vec<u8> = needle.iter().zip(pattern).map(|(byte, flip)| byte ^ flip).collect();
    image.write(at as u64, &torn);
}

// Ours.

const OURS: Geometry = Geometry {
    size: 14336 + 2048 + 8 * 4096,
    region_len: 4 * SEGMENT,
    segment_len: SEGMENT,
    heads: 1,
    grown_from: 0,
};

struct Ours {
    image: Arc<CrashImage>,
    server: Rc<RefCell<Server<Arc<CrashImage>>>>,
    options: Options,
    clients: Vec<(ClientId, Client)>,
    /// Clients with a write under way, which acknowledge nothing.
    busy: BTreeSet<usize>,
    now: u64,
}

impl Ours {
    fn new(mode: Mode) -> Self {
        let image = Arc::new(CrashImage::new(OURS.size, PersistenceDomain::Adr));
        format(&image, &OURS, 16, 3, [0; 16]).expect("fair");
        Self::open(
            image,
            Options { mode, lease: 100, unfinished_max: 8, clean_by_itself: false, ..Options::default() },
        )
    }

    fn open(image: Arc<CrashImage>, options: Options) -> Self {
        let (mut server, _) = Server::open(image.clone(), options).expect("a store");
        let clients = (0..4).map(|_| (server.connect(), Client::new(server.view(), 0))).collect::<Vec<_>>();
        Self { image, server: Rc::new(RefCell::new(server)), options, clients, busy: BTreeSet::new(), now: 1 }
    }

    /// Steps, with clients acknowledging what they are told, unless they have a write under way.
    fn go_on(&mut self) {
        for _ in 0..200 {
            self.server.borrow_mut().step(self.now, 8).expect("memory does not fail");
            let view = self.server.borrow().view();
            for (n, (id, client)) in self.clients.iter_mut().enumerate() {
                client.adopt(view.clone());
                if !self.busy.contains(&n)
                    && let Some(acknowledge) = client.poll_acknowledgement()
                {
                    self.server.borrow_mut().handle(self.now, *id, &acknowledge);
                }
            }
        }
    }
}

struct Remote {
    image: Arc<CrashImage>,
    server: Rc<RefCell<Server<Arc<CrashImage>>>>,
    id: ClientId,
}

impl RemoteMemory for Remote {
    type Error = &'static str;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        let call = |request: &Request| self.server.borrow_mut().handle(1, self.id, request);
        Ok(verbs.into_iter().map(|verb| verb.carry_out(&self.image, call)).collect())
    }

    fn now(&self) -> u64 {
        1
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        Err("nobody is waited for here")
    }
}

impl Design for Ours {
    fn reserve(&mut self, client: usize, key: u8, value: u8) -> Option<Write> {
        let put = Request::Put { key: vec![key], len: VALUE as u64, expires: 0, expect: Expect::Any };
        let mut server = self.server.borrow_mut();
        let reserved = match server.handle(self.now, self.clients[client].0, &put) {
            Reply::Reserved(reserved) => reserved,
            Reply::Refused(_) => return None,
            other => panic!("{other:?}"),
        };
        let salt = server.view().salt;
        let place =
            ObjectAddress { salt, head: reserved.head, offset: reserved.offset, epoch: reserved.epoch };
        let object = emit(&place, reserved.version, 0, &[key], Content::Value(&bytes(value)));
        let at = reserved.at + WRITTEN_FROM as u64;
        self.busy.insert(client);
        Some(Write { client, at, bytes: object[WRITTEN_FROM..].to_vec() })
    }
    fn land(&mut self, write: &Write, part: Range<usize>) {
        self.image.write(write.at + part.start as u64, &write.bytes[part]);
    }
    fn finish(&mut self, write: &Write) {
        self.land(write, 0..write.bytes.len());
        self.busy.remove(&write.client);
        if self.options.mode == Mode::Durable {
            self.image.persist(write.at..write.at + write.bytes.len() as u64).expect("memory does not fail");
        }
    }
    fn put(&mut self, client: usize, key: u8, value: u8) {
        let (id, client) = &mut self.clients[client];
        let mut remote = Remote { image: self.image.clone(), server: self.server.clone(), id: *id };
        let mut put = Put::new(&[key], &bytes(value), 0, Expect::Any);
        run(client, &mut remote, &mut put).expect("it ends").expect("nobody else writes");
    }
    fn read(&mut self, key: u8) -> Option<Vec<u8>> {
        let (id, client) = &mut self.clients[3];
        let mut remote = Remote { image: self.image.clone(), server: self.server.clone(), id: *id };
        let found = run(client, &mut remote, &mut Get::new(&[key])).expect("it ends");
        found.expect("a GET does not fail").map(|found| found.value)
    }
    fn clean(&mut self) -> bool {
        let before = self.server.borrow().stats().regions_freed;
        let _ = self.server.borrow_mut().clean(0);
        self.go_on();
        self.server.borrow().stats().regions_freed > before
    }
    fn clean_in_part(&mut self) {
        let _ = self.server.borrow_mut().clean(0);
        // Merge and sync; the tags of some flip.
        for _ in 0..3 {
            self.server.borrow_mut().step(self.now, 2).expect("memory does not fail");
        }
    }
    fn remove(&mut self, key: u8) {
        let delete = Request::Delete { key: vec![key], expect: Expect::Any };
        self.server.borrow_mut().handle(self.now, self.clients[1].0, &delete);
        self.clean();
    }
    fn rest(&mut self) {
        self.image.persist(0..OURS.size).expect("memory does not fail");
    }
    fn successor(&self, key: u8) -> u8 {
        let view = self.server.borrow().view();
        let home = |key: u8| view.tables[0].home(fingerprint(hash(view.salt, &[key])));
        (key + 1..=u8::MAX).find(|other| home(*other) == home(key)).expect("there are few buckets")
    }
    fn damaged(&self) -> u64 {
        self.server.borrow().stats().damaged
    }
    fn crash(&mut self, choices: &mut dyn Choices) {
        *self = Self::open(Arc::new(self.image.crash(Failure::PowerLoss, choices)), self.options);
    }
    fn tear(&mut self, value: u8, pattern: &[u8]) {
        tear(&self.image, value, pattern);
    }
}

// The scenarios.

type Verdict = Result<(), String>;

fn expect(design: &mut dyn Design, key: u8, value: u8, when: &str) -> Verdict {
    let found = design.read(key);
    if found == Some(bytes(value)) { Ok(()) } else { Err(format!("{when}: {value} became {found:?}")) }
}

/// As the crashes of many seeds, and the harshest one, leave it.
fn crashes() -> impl Iterator<Item = Box<dyn Choices>> {
    let harshest: Box<dyn Choices> = Box::new(EveryWay::new());
    std::iter::once(harshest).chain((0..60).map(|seed| Box::new(Seeded::new(seed)) as Box<dyn Choices>))
}

/// 1. Two updates of one key are begun and neither is finished.
fn lost_value(design: &mut dyn Design) -> Verdict {
    design.put(1, 7, 10);
    design.rest();
    let first = design.reserve(0, 7, 11);
    let second = design.reserve(1, 7, 12);
    for write in [first, second].into_iter().flatten() {
        design.land(&write, 0..write.bytes.len() / 2);
    }
    design.rest();
    expect(design, 7, 10, "while both are under way")?;
    design.crash(&mut EveryWay::new());
    expect(design, 7, 10, "after a crash")
}

/// 2. A PUT was acknowledged, and the power goes.
fn acknowledged(mut new: impl FnMut() -> Box<dyn Design>) -> Verdict {
    for mut choices in crashes() {
        let mut design = new();
        design.put(1, 7, 10);
        design.crash(&mut *choices);
        expect(&mut *design, 7, 10, "after a crash")?;
    }
    Ok(())
}

/// 3. Somebody has read the new value before its writer had it made durable, and the power goes.
fn read_and_gone(mut new: impl FnMut() -> Box<dyn Design>) -> Verdict {
    for mut choices in crashes() {
        let mut design = new();
        design.put(1, 7, 10);
        design.rest();
        let write = design.reserve(1, 7, 11).expect("nobody else writes");
        design.land(&write, 0..write.bytes.len());
        let seen = design.read(7).expect("a value")[0];
        design.crash(&mut *choices);
        expect(&mut *design, 7, seen, "after a crash, having been read")?;
    }
    Ok(())
}

/// 4. Memory is used again, where an old value of the same key still lies.
fn stale(design: &mut dyn Design) -> Verdict {
    for value in 10..13 {
        design.put(1, 7, value);
    }
    let mut freed = 0;
    for round in 0..4 {
        freed += u32::from(design.clean());
        // Room is handed out; the client has not written yet. What is read there must not be an old value.
        for _ in 0..3 {
            design.put(1, 7, 13 + round);
            let Some(write) = design.reserve(1, 7, 99) else { continue };
            expect(design, 7, 13 + round, "while a write is under way")?;
            design.finish(&write);
            expect(design, 7, 99, "when it is done")?;
        }
    }
    if freed > 1 { Ok(()) } else { Err("memory was never used again, so nothing was seen".to_owned()) }
}

/// 5. A slow client's room lies before the last segment when the power goes.
fn recovery_scope(mut new: impl FnMut() -> Box<dyn Design>) -> Verdict {
    // Who reads the key first may have it repaired; nobody has to.
    for read_first in [true, false] {
        let design = &mut *new();
        design.put(1, 7, 10);
        design.rest();
        let slow = design.reserve(0, 7, 11).expect("nobody else writes");
        design.land(&slow, 0..20);
        for n in 0..30 {
            design.put(1, 8, n);
        }
        design.rest();
        design.crash(&mut EveryWay::new());
        if read_first {
            expect(design, 7, 10, "after the crash")?;
        }
        // The next write of the key, abandoned like the first.
        if let Some(next) = design.reserve(1, 7, 12) {
            design.land(&next, 0..20);
        }
        expect(design, 7, 10, "while the next write is under way")?;
    }
    Ok(())
}

/// 6. A WRITE comes late, when its room was cleaned away.
fn late_write(design: &mut dyn Design) -> Verdict {
    design.put(1, 7, 10);
    let late = design.reserve(0, 7, 11).expect("nobody else writes");
    // Cleaned often enough for the memory to be in use again, if the design frees it.
    for round in 0..4 {
        for key in 1..4 {
            design.put(1, key, 20 + round + key);
        }
        design.clean();
    }
    design.land(&late, 0..late.bytes.len());
    for key in 1..4 {
        expect(design, key, 23 + key, "after a write of another key came late")?;
    }
    Ok(())
}

/// 7. An entry is made where another was, and the power goes: the key may be old and the word new.
fn half_an_entry(mut new: impl FnMut() -> Box<dyn Design>) -> Verdict {
    for mut choices in crashes() {
        let mut design = new();
        design.put(1, 7, 10);
        design.rest();
        design.remove(7);
        design.rest();
        let write = design.reserve(1, design.successor(7), 20).expect("nobody else writes");
        design.finish(&write);
        design.crash(&mut *choices);
        if let Some(found) = design.read(7) {
            return Err(format!("a deleted key came back with {:?}", &found[..1]));
        }
    }
    Ok(())
}

/// 8. The power goes at the end of cleaning.
fn half_a_flip(design: &mut dyn Design) -> Verdict {
    for key in 1..4 {
        design.put(1, key, 9);
        design.put(1, key, 20 + key);
    }
    design.rest();
    design.clean_in_part();
    design.rest();
    design.crash(&mut EveryWay::new());
    for key in 1..4 {
        expect(design, key, 20 + key, "after a crash in the middle of cleaning")?;
    }
    match design.damaged() {
        0 => Ok(()),
        n => Err(format!("{n} entries named what is no more, and only their copies were left")),
    }
}

/// 9. An object is torn so that 32 bits of checksum do not tell.
fn weak_checksum(design: &mut dyn Design) -> Verdict {
    design.put(1, 7, 10);
    design.put(1, 7, 11);
    // A multiple of the generator polynomial of CRC-32, first coefficient in the lowest bit: x^32 and 0x04C11DB7.
    let mut pattern = vec![0; VALUE];
    let polynomial = 1u64 << 32 | 0x04C1_1DB7;
    (0..=32).for_each(|bit| pattern[20 + bit / 8] |= ((polynomial >> (32 - bit) & 1) as u8) << (bit % 8));
    design.tear(11, &pattern);
    let found = design.read(7);
    if [Some(bytes(10)), Some(bytes(11)), None].contains(&found) {
        Ok(())
    } else {
        Err("a torn value was served".to_owned())
    }
}

fn paper() -> Box<dyn Design> {
    Box::new(ThePaper::new())
}

fn durable() -> Box<dyn Design> {
    Box::new(Ours::new(Mode::Durable))
}

fn erda() -> Box<dyn Design> {
    Box::new(Ours::new(Mode::Erda))
}

/// A design of ours, and the mode that it is.
type Named = (&'static str, fn() -> Box<dyn Design>);

const BOTH: &[Named] = &[("durable", durable), ("erda", erda)];
const DURABLE: &[Named] = &[("durable", durable)];

/// A hole, the modes of ours that close it, and whether its scenario makes its designs itself.
macro_rules! hole {
    ($name:ident, $scenario:ident, $modes:expr, $($fresh:tt)?) => {
        mod $name {
            use super::*;

            #[test]
            fn the_paper_has_it() {
                let fault = hole!(@run $scenario, paper, $($fresh)?).expect_err("the paper's design fails this scenario");
                println!("{fault}");
            }

            #[test]
            fn ours_does_not() {
                for (mode, ours) in $modes {
                    let verdict = hole!(@run $scenario, ours, $($fresh)?);
                    verdict.unwrap_or_else(|fault| panic!("mode {mode}: {fault}"));
                }
            }
        }
    };
    (@run $scenario:ident, $design:ident, ) => { $scenario(&mut *$design()) };
    (@run $scenario:ident, $design:ident, new) => { $scenario($design) };
}

hole!(hole_1_lost_value, lost_value, BOTH,);
hole!(hole_2_acknowledged_and_gone, acknowledged, DURABLE, new);
hole!(hole_3_read_and_gone, read_and_gone, DURABLE, new);
hole!(hole_4_stale_but_whole, stale, BOTH,);
hole!(hole_5_recovery_scope, recovery_scope, BOTH, new);
hole!(hole_6_late_write, late_write, BOTH,);
hole!(hole_7_half_an_entry, half_an_entry, BOTH, new);
hole!(hole_8_half_a_flip, half_a_flip, BOTH,);
hole!(hole_9_weak_checksum, weak_checksum, BOTH,);

/// Mode `erda` says what it does not do: holes 2 and 3 are its price, and it has no other.
#[test]
fn mode_erda_is_atomic_and_not_durable_at_the_acknowledgement() {
    assert!(acknowledged(erda).is_err());
    assert!(read_and_gone(erda).is_err());
}

/// The host's part of hole 6: a client that never acknowledges is cut off, and then memory becomes free.
#[test]
fn a_client_that_does_not_acknowledge_is_cut_off() {
    let mut design = Ours::new(Mode::Durable);
    design.put(1, 7, 10);
    let late = design.reserve(0, 7, 11).expect("nobody else writes");
    assert!(!design.clean());
    design.now = 500;
    design.go_on();
    let late_client = design.clients[late.client].0;
    let events: Vec<Event> = std::iter::from_fn(|| design.server.borrow_mut().poll_event()).collect();
    assert!(events.contains(&Event::Fence { client: late_client }), "{events:?}");
    design.server.borrow_mut().disconnected(late_client).expect("memory does not fail");
    design.busy.clear();
    design.go_on();
    assert!(design.server.borrow().stats().regions_freed > 0);
    expect(&mut design, 7, 10, "after all").unwrap();
}
