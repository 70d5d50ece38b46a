//! A crash at every store, fence and sync of every operation, of cleaning and of resizing, then recovery; every byte is
//! looked at.
//!
//! The oracle: in durable mode each key has its value of the last acknowledged operation, or that of the one under way. In
//! mode `erda` it has one that it once had, whole. `REMANENCE_EFFORT=night` tries twenty times as many crashes.

use crate::common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::ops::{
    Contents, Op, TINY, Workload, changes, chunks, cleaning, contents, dying_clients, every_operation, fair,
    for_mode_erda, growing, prepared, resizing, run_all, some, together, works_on,
};
use common::*;
use remanence_kv::Options;
use remanence_kv::format::slot::fingerprint;
use remanence_kv::format::{Word, hash};
use remanence_kv::proto::{Expect, Inline, Reply, Request, Reserved};
use remanence_kv::server::Server;
use remanence_pmem::crash_image::{CrashImage, EveryWay, Explorer, Failure};
use remanence_pmem::watched::{Watch, Watched};
use remanence_pmem::{Medium, PersistenceDomain};

fn factor() -> usize {
    remanence_effort::rounds(1, 20) as usize
}

/// Prepares, then crashes `ops` everywhere.
fn explore(options: Options, domain: PersistenceDomain, (prepare, ops): &Workload, samples: usize) {
    let (prepared, after) = prepared(options, domain, prepare, ops);
    let samples = samples * factor();
    let explorer = Explorer { ways_max: samples, samples, ..Explorer::default() };
    let mut count = 0;
    let report = explorer.run(
        &prepared,
        |image| run_all(image, options, ops),
        |crashed, notes| {
            count += 1;
            let found = contents(crashed, options);
            fair(&after, notes, &found, options);
            if count % 16 == 0 {
                works_on(crashed, options);
            }
        },
    );
    println!("{report:?}");
    assert!(report.steps > ops.len(), "{report:?}");
}

#[test]
fn every_operation_at_every_step() {
    explore(DURABLE, PersistenceDomain::Adr, &every_operation(), 12);
    explore(DURABLE, PersistenceDomain::Eadr, &every_operation(), 4);
    explore(DURABLE, PersistenceDomain::PageCache, &every_operation(), 4);
    explore(DEFERRED, PersistenceDomain::PageCache, &every_operation(), 12);
    // Line by line, as a journal writes them.
    explore(DEFERRED, PersistenceDomain::Adr, &every_operation(), 12);
    explore(INLINE, PersistenceDomain::Adr, &every_operation(), 12);
    explore(INLINE, PersistenceDomain::PageCache, &every_operation(), 4);
    explore(INLINE_LINES, PersistenceDomain::Adr, &every_operation(), 12);
    explore(INLINE_LINES, PersistenceDomain::Eadr, &every_operation(), 4);
}

#[test]
fn values_that_are_written_together_at_every_step() {
    explore(DURABLE, PersistenceDomain::Adr, &together(), 12);
    explore(DURABLE, PersistenceDomain::Eadr, &together(), 4);
    explore(DURABLE, PersistenceDomain::PageCache, &together(), 4);
    explore(DEFERRED, PersistenceDomain::PageCache, &together(), 4);
    // Line by line, as a journal writes them, and word by word.
    explore(DEFERRED, PersistenceDomain::Adr, &together(), 12);
    explore(ERDA, PersistenceDomain::Adr, &together(), 6);
}

#[test]
fn changes_that_come_together_and_those_whose_client_waits_itself() {
    explore(DURABLE, PersistenceDomain::Adr, &changes(), 8);
    explore(DURABLE, PersistenceDomain::PageCache, &changes(), 4);
    explore(DEFERRED, PersistenceDomain::PageCache, &changes(), 4);
    explore(DEFERRED, PersistenceDomain::Adr, &changes(), 8);
    explore(ERDA, PersistenceDomain::Adr, &changes(), 4);
}

#[test]
fn whatever_leaves_before_its_entry_is_durable() {
    explore(DEFERRED, PersistenceDomain::PageCache, &dying_clients(), 6);
    explore(DEFERRED, PersistenceDomain::PageCache, &chunks(), 2);
    explore(DEFERRED, PersistenceDomain::PageCache, &cleaning(), 3);
    explore(DEFERRED, PersistenceDomain::PageCache, &resizing(), 8);
}

#[test]
fn clients_that_die_within_their_write() {
    explore(DURABLE, PersistenceDomain::Adr, &dying_clients(), 8);
    explore(ERDA, PersistenceDomain::Adr, &dying_clients(), 8);
}

#[test]
fn values_in_chunks_at_every_step() {
    explore(DURABLE, PersistenceDomain::Adr, &chunks(), 3);
}

#[test]
fn mode_erda_is_atomic_at_every_step() {
    explore(ERDA, PersistenceDomain::Adr, &for_mode_erda(), 6);
}

#[test]
fn cleaning_at_every_step() {
    explore(DURABLE, PersistenceDomain::Adr, &cleaning(), 6);
}

#[test]
fn resizing_and_displacement_at_every_step() {
    explore(DURABLE, PersistenceDomain::Adr, &resizing(), 24);
}

#[test]
fn new_keys_that_come_together_while_the_table_grows_at_every_step() {
    explore(DEFERRED, PersistenceDomain::PageCache, &growing(14, 4), 8);
    // Line by line, as a journal writes them, and word by word.
    explore(DEFERRED, PersistenceDomain::Adr, &growing(14, 4), 16);
    explore(DURABLE, PersistenceDomain::Adr, &growing(14, 4), 4);
}

#[test]
fn a_larger_table_is_empty_whenever_recovery_finds_it() {
    // Into memory that logs were in: what lies there could be taken for entries.
    let mut prepare = some(12, 60);
    prepare.extend((0..12).map(|n| Op::Put(n, value(100 + u64::from(n), 60))));
    prepare.extend([Op::Settle, Op::Clean(0), Op::Clean(1)]);
    explore(DURABLE, PersistenceDomain::Adr, &(prepare, vec![Op::Resize(40), Op::Put(3, value(1, 4))]), 12);
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

/// The object of a value that was reserved by hand.
fn object(reserved: &Reserved, key: &[u8], value: &[u8]) -> Vec<u8> {
    let Reserved { head, offset, epoch, .. } = *reserved;
    let place = remanence_kv::format::ObjectAddress { salt: SALT, head, offset, epoch };
    let content = remanence_kv::format::object::Content::Value(value);
    remanence_kv::format::object::emit(&place, reserved.version, 0, key, content)
}

#[test]
fn what_was_abandoned_does_not_come_back_with_a_crash() {
    for (options, domain) in [(DURABLE, PersistenceDomain::Adr), (DEFERRED, PersistenceDomain::PageCache)] {
        let image = CrashImage::new(TINY.size, domain);
        remanence_kv::server::format(&&image, &TINY, 16, SALT, [7; 16]).expect("fair");
        let store = Store::open(&image, options);
        let (mut writer, mut reader) = (store.client(0), store.client(0));
        let old = Request::PutInline { key: vec![1], value: vec![5; 20], expires: 0, expect: Expect::Any };
        assert!(matches!(writer.call(&old), Reply::Done { .. }));
        let put = Request::Put { key: vec![1], len: 20, expires: 0, expect: Expect::Any };
        let Reply::Reserved(reserved) = writer.call(&put) else { panic!("there is room") };
        // It is whole and durable, and then the writer thinks better of it.
        let object = object(&reserved, &[1], &[6; 20]);
        let at = reserved.at + 8;
        image.write(at, &object[8..]);
        image.pwb(at..reserved.at + object.len() as u64);
        image.psync().expect("memory does not fail");
        image.write(at, &[0; 8]);
        assert_eq!(writer.call(&Request::Abandon { version: reserved.version }), Reply::Ok);
        let found = reader.call(&Request::Get { key: vec![1] });
        assert!(matches!(&found, Reply::Value { value, .. } if *value == [5; 20]), "{found:?}");
        // The harshest crash: the medium still has the object as it was when it was whole.
        let crashed = image.crash(Failure::PowerLoss, &mut EveryWay::new());
        let found = contents(&crashed, options);
        assert_eq!(
            found,
            Contents::from([(vec![1], vec![5; 20])]),
            "others have seen that nothing came of it"
        );
    }
}

#[test]
fn a_deletion_without_room_for_a_tombstone_is_durable_when_it_is_seen() {
    let image = Arc::new(CrashImage::new(TINY.size, PersistenceDomain::Adr));
    remanence_kv::server::format(&image, &TINY, 64, SALT, [7; 16]).expect("fair");
    let peeking = Peeking { image: image.clone(), believed: Arc::default(), misses: true };
    let (mut server, _) =
        Server::open(Watched { medium: image.clone(), watch: peeking }, DURABLE).expect("a store");
    let client = server.connect();
    let put =
        |n: u8| Request::PutInline { key: vec![n], value: vec![n; 150], expires: 0, expect: Expect::Any };
    let full = Reply::Refused(remanence_kv::Refusal::Full);
    let full = (0..200).find(|n| server.handle(1, client, &put(*n)) == full).expect("the pool is finite");
    // Tombstones use what is left, and then entries go without one.
    for n in 0..full {
        let delete = Request::Delete { key: vec![n], expect: Expect::Any };
        assert!(matches!(server.handle(1, client, &delete), Reply::Done { .. }));
        let crashed = image.crash(Failure::PowerLoss, &mut EveryWay::new());
        let found = contents(&crashed, DURABLE);
        let left: Contents = (n + 1..full).map(|n| (vec![n], vec![n; 150])).collect();
        assert_eq!(found, left, "{n} of {full} was acknowledged as deleted");
    }
    let tombstones = server.stats().written - u64::from(full);
    assert!((1..u64::from(full)).contains(&tombstones), "{tombstones} tombstones for {full} keys");
}

/// At each sync, looks at what one-sided readers would believe by then.
#[derive(Clone)]
struct Peeking {
    image: Arc<CrashImage>,
    believed: Arc<AtomicU64>,
    /// Looks at misses as well: nobody cleans, so that an entry only goes with its key.
    misses: bool,
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

    /// Keys whose entry is such a one.
    fn fingerprints(image: &CrashImage, such: fn(Word) -> bool) -> BTreeSet<u64> {
        let mut bytes = vec![0; (79 * 16) as usize];
        image.read(TINY.region(0) + 64, &mut bytes);
        let slots = remanence_kv::format::Slot::parse_all(&bytes);
        slots.filter(|slot| such(slot.word)).map(|slot| slot.meta.fingerprint()).collect()
    }

    fn look(&self) {
        let crashed = self.image.crash(Failure::PowerLoss, &mut EveryWay::new());
        let durable = Self::entries(&crashed, true);
        for entry in Self::entries(&self.image, false) {
            assert!(durable.contains(&entry), "{entry:?} can be read, and is not durable: {durable:?}");
            self.believed.fetch_add(1, Ordering::Relaxed);
        }
        // Not only named: whole, too.
        let settled =
            Self::fingerprints(&self.image, |word| word.new_offset().is_some() && !word.is_pending());
        let copy = CrashImage::from_bytes(self.image.bytes(), PersistenceDomain::Adr);
        let (seen, left) = (contents(&copy, DURABLE), contents(&crashed, DURABLE));
        for (key, value) in &seen {
            let fingerprint = fingerprint(hash(SALT, key));
            if settled.contains(&fingerprint) {
                assert_eq!(left.get(key), Some(value), "{key:?} can be read, and a crash takes it back");
            }
        }
        if self.misses {
            // Recovery clears an entry that is going, and who looks does not believe it.
            let durable = Self::fingerprints(&crashed, |word| word.new_offset().is_some());
            let seen = Self::fingerprints(&self.image, |word| !word.is_free());
            let gone: Vec<&u64> = durable.difference(&seen).collect();
            assert!(gone.is_empty(), "{gone:?} are missed by who looks, and are there after a crash");
        }
    }
}

impl Watch for Peeking {
    fn psync(&self) -> std::io::Result<()> {
        self.look();
        Ok(())
    }
}

#[test]
fn at_no_sync_could_a_reader_believe_what_is_not_durable() {
    let image = Arc::new(CrashImage::new(TINY.size, PersistenceDomain::Adr));
    remanence_kv::server::format(&image, &TINY, 64, SALT, [7; 16]).expect("fair");
    let peeking = Peeking { image: image.clone(), believed: Arc::default(), misses: false };
    let (mut server, _) =
        Server::open(Watched { medium: image.clone(), watch: peeking.clone() }, DURABLE).expect("a store");
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
        let object = object(&reserved, &[n % 9], &[n; 20]);
        // Visible, and nothing more: whoever settles it must make it durable.
        image.write(reserved.at + 8, &object[8..]);
        server.handle(1, client, &Request::Settle { key: vec![n % 9] });
        if n % 4 == 1 {
            let keys = [[n % 9], [(n + 3) % 9]];
            let value = [n; 12];
            let inline = |key| Inline { key, value: Some(&value), expires: 0, expect: Expect::Any };
            let mut done = Vec::new();
            server.put_all(1, client, &keys.each_ref().map(|key| inline(&key[..])), &mut done);
            assert!(done.iter().all(Result::is_ok), "{done:?}");
        }
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
