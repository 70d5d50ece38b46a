//! Damaged metadata: every bit of it flipped, one by one, and stores of format 1.

use crate::common;

use std::collections::BTreeMap;
use std::ops::Range;

use common::*;
use remanence_kv::dump::Record;
use remanence_kv::format::object::{Content, HEADER_LEN, WRITTEN_FROM, emit};
use remanence_kv::format::slot::{NEIGHBOURHOOD, NEVER, TableAt, fingerprint};
use remanence_kv::format::superblock::{COPIES, SUPERBLOCK_LEN};
use remanence_kv::format::{
    DIRECTORY, HEAD_WORDS, Header, Meta, ObjectAddress, ROOT, RegionKind, RegionWord, Slot, Superblock, Word,
    hash,
};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{DamageLocation, Fate, Finding};
use remanence_kv::{Refusal, Server};
use remanence_kv_live::{inspect, salvage};
use remanence_pmem::crash_image::{CrashImage, Explorer};
use remanence_pmem::{Medium as _, PersistenceDomain, Region};

/// What keys have; `None`: nothing.
type Contents = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Time at which nothing has expired.
const NOW: u64 = 100;

/// A store with keys that were written once and more often, deleted, in chunks, and under way when it ended.
fn story() -> (CrashImage, Contents) {
    let image = formatted(SMALL, 64);
    let mut contents = Contents::new();
    {
        let store = Store::open(&image, DURABLE);
        let mut client = store.client(0);
        for round in 0..3_u8 {
            for key in 0..12_u8 {
                let value = value((round * 16 + key).into(), 20 + usize::from(key));
                client.put(&[b'k', key], &value).expect("room");
                contents.insert(vec![b'k', key], Some(value));
            }
        }
        for key in [3, 4] {
            client.delete(&[b'k', key]);
            contents.insert(vec![b'k', key], None);
        }
        client.put(b"chained", &value(99, 3000)).expect("room");
        contents.insert(b"chained".to_vec(), Some(value(99, 3000)));
        contents.insert(b"never".to_vec(), None);
        store.settle_down(&mut [&mut client]);
        let put = Request::Put { key: vec![b'k', 7], len: 30, expires: 0, expect: Expect::Any };
        assert!(matches!(client.call(&put), Reply::Reserved(_)), "room");
    }
    (image, contents)
}

/// The store of a program that knew format 1 only, with the same story.
fn first_format() -> CrashImage {
    let mut bytes = vec![0; SMALL.size as usize];
    for line in include_str!("../golden/v1.store").lines() {
        let (at, row) = line.split_once(' ').expect("a place and a row");
        let at = usize::from_str_radix(at, 16).expect("a number");
        for (n, byte) in row.as_bytes().chunks(2).enumerate() {
            let digits = std::str::from_utf8(byte).expect("digits");
            bytes[at + n] = u8::from_str_radix(digits, 16).expect("digits");
        }
    }
    CrashImage::from_bytes(bytes, PersistenceDomain::Adr)
}

fn flipped(image: &CrashImage, at: u64, bit: u32) -> CrashImage {
    let mut bytes = image.bytes();
    bytes[at as usize] ^= 1 << bit;
    CrashImage::from_bytes(bytes, image.domain())
}

/// Opens the store, reads everything, and says what was found damaged. Every key has its value, nothing, as it should be, or is
/// said to be damaged.
fn looked_through(image: &CrashImage, contents: &Contents, what: &str) -> (Vec<Finding>, Vec<Vec<u8>>) {
    let (mut server, recovered) = Server::open(image, DURABLE).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        cursor = server.scrub(from, 256).expect("memory does not fail").next;
    }
    let findings = server.findings().to_vec();
    assert_eq!(
        recovered.mended + recovered.lost > 0,
        findings.iter().any(|f| !matches!(f.at, DamageLocation::Value { .. }))
    );
    let client = server.connect();
    let mut damaged = Vec::new();
    for (key, expected) in contents {
        match (server.handle(NOW, client, &Request::Get { key: key.clone() }), expected) {
            (Reply::Value { value, .. }, Some(expected)) if value == *expected => {}
            (Reply::Absent, None) => {}
            (Reply::Refused(Refusal::Damaged), _) => damaged.push(key.clone()),
            (other, _) => panic!("{what}: {key:?} is {other:?}, which it was not; {findings:?}"),
        }
    }
    let named = |key: &Vec<u8>| {
        findings.iter().any(|found| found.key.as_ref() == Some(key) && found.fate == Fate::Lost)
    };
    assert!(damaged.iter().all(named), "{what}: {damaged:?} are damaged, and {findings:?} names them not");
    (findings, damaged)
}

fn table(image: &CrashImage) -> TableAt {
    let (server, _) = Server::open(image, DURABLE).expect("a store");
    server.view().tables[0]
}

/// The bytes of the metadata, and whether a bit of it means something.
fn metadata(image: &CrashImage) -> Vec<(&'static str, Range<u64>, bool)> {
    let mut all = Vec::new();
    for at in COPIES {
        all.push(("superblock", at..at + SUPERBLOCK_LEN as u64, true));
    }
    // The payload is how often it was opened, and a table: 20 bytes behind a header of 24.
    for at in [ROOT, ROOT + 4096] {
        all.push(("root record", at..at + 44, true));
    }
    // Those of heads, and two of those that this store does not have.
    for head in [0, 1, 2, 255] {
        all.push(("head word", HEAD_WORDS + 8 * head..HEAD_WORDS + 8 * head + 8, true));
    }
    all.push(("directory", DIRECTORY..DIRECTORY + 8 * u64::from(SMALL.regions()), true));
    let table = table(&CrashImage::from_bytes(image.bytes(), image.domain()));
    all.push(("count of moves", table.at..table.at + 8, false));
    for index in 0..table.slots() {
        let at = table.slot(index);
        let free = image.load_u64(at + 8) == 0;
        all.push(("meta word", at..at + 8, !free));
        all.push(("atomic word", at + 8..at + 16, true));
    }
    all
}

#[test]
fn every_flipped_bit_of_metadata_is_named_and_nothing_else_is_served() {
    let (image, contents) = story();
    assert_eq!(
        looked_through(&CrashImage::from_bytes(image.bytes(), image.domain()), &contents, "whole").0,
        []
    );
    let (mut tried, mut ambiguous) = (0, 0);
    for (name, bytes, means) in metadata(&image) {
        for (at, bit) in bytes.flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let what = format!("{name}, bit {bit} of byte {at}");
            let bad = flipped(&image, at, bit);
            let (findings, damaged) = looked_through(&bad, &contents, &what);
            assert_eq!(!findings.is_empty(), means, "{what}: {findings:?}");
            ambiguous += usize::from(!damaged.is_empty());
            tried += 1;
            // What was put right stays so.
            if findings.iter().all(|found| found.fate == Fate::Mended) {
                let again = CrashImage::from_bytes(bad.bytes(), bad.domain());
                assert_eq!(looked_through(&again, &contents, &what).0, [], "{what}, opened again");
            }
        }
    }
    assert!(tried > 10_000, "{tried} bits are not the metadata");
    assert!(ambiguous < 20, "{ambiguous} of {tried} flipped bits take a value away");
}

#[test]
fn two_flipped_bits_of_an_entry_or_a_region_take_nothing_else_away() {
    let (image, contents) = story();
    for (name, bytes, _) in metadata(&image) {
        let words = bytes.step_by(8).filter(|_| name != "superblock" && name != "root record");
        for at in words {
            for (one, other) in [(0, 1), (2, 60), (17, 63), (40, 41)] {
                let bad =
                    flipped(&flipped(&image, at + one / 8, one as u32 % 8), at + other / 8, other as u32 % 8);
                // An even number of flipped bits of an atomic word has the right parity: its objects are looked at alone.
                if name != "atomic word" {
                    looked_through(&bad, &contents, &format!("{name} at {at}, bits {one} and {other}"));
                }
            }
        }
    }
}

#[test]
fn one_superblock_is_enough_and_both_are_there_afterwards() {
    let (image, contents) = story();
    for copy in COPIES {
        let mut bytes = image.bytes();
        bytes[copy as usize..][..512].fill(0xA5);
        let bad = CrashImage::from_bytes(bytes, image.domain());
        let (findings, damaged) = looked_through(&bad, &contents, "a sector is lost");
        assert_eq!((findings.len(), damaged.len()), (1, 0), "{findings:?}");
        assert_eq!(Superblock::read(&bad).expect("a store").whole, [true, true]);
    }
}

/// A crashed store's bytes, with some of them zeros.
fn zeroed(image: &CrashImage, part: Range<u64>) -> CrashImage {
    let mut bytes = image.bytes();
    bytes[part.start as usize..part.end as usize].fill(0);
    CrashImage::from_bytes(bytes, image.domain())
}

/// What all sectors, and all pages, have of the table.
fn parts_of(table: TableAt) -> impl Iterator<Item = Range<u64>> {
    let bytes = table.at..table.at + TableAt::bytes(table.buckets);
    [512_u64, 4096].into_iter().flat_map(move |len| {
        (bytes.start..bytes.end).step_by(len as usize).map(move |at| at..bytes.end.min(at + len))
    })
}

#[test]
fn a_sector_of_zeros_in_the_table_is_named_and_takes_no_key_away() {
    let (image, contents) = story();
    let mut restored = 0;
    for part in parts_of(table(&image)) {
        let what = format!("bytes {part:?} of the table are zeros");
        let bad = zeroed(&image, part);
        let region = Region::anonymous(SMALL.size).expect("memory");
        region.write(0, &bad.bytes());
        let mut values = Contents::new();
        let mut visit = |record: Record| {
            values.insert(record.key, Some(record.value));
            Ok(())
        };
        salvage(&region, NOW, &mut visit).expect("a store");
        values
            .extend(contents.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| (key.clone(), None)));
        assert!(values == contents, "{what}: salvaged are {:?}", values.keys());
        let (findings, damaged) = looked_through(&bad, &contents, &what);
        assert_eq!(inspect(&region).expect("a store").findings.len(), findings.len(), "{what}");
        assert!(damaged.is_empty() && !findings.is_empty(), "{what}: {damaged:?}, {findings:?}");
        assert!(findings.iter().all(|found| found.fate == Fate::Mended), "{what}: {findings:?}");
        restored += findings.iter().filter(|found| found.key.is_some()).count();
        let again = CrashImage::from_bytes(bad.bytes(), bad.domain());
        assert_eq!(looked_through(&again, &contents, &what).0, [], "{what}, opened again");
    }
    assert!(restored >= 2 * 11, "each key was lost with a sector and with a page: {restored}");
}

/// A region is used again by another head, under the same number of a link, which has not filled it yet.
#[test]
fn what_is_left_of_an_earlier_use_of_a_region_is_not_salvaged() {
    let (link, region) = (7, 20);
    let key_of = |head: u8| {
        let mut keys = (0..).map(|n: u32| format!("key {n}").into_bytes());
        keys.find(|key| SMALL.head_of(fingerprint(hash(SALT, key))) == head).expect("endless")
    };
    for known in [true, false] {
        let image = formatted(SMALL, 16);
        let put = |unit: u32, head: u8, epoch: u32| {
            let place = ObjectAddress { salt: SALT, head, offset: SMALL.join(link, unit), epoch };
            let object = emit(&place, u64::from(epoch), 0, &key_of(head), Content::Value(b"value"));
            image.write(SMALL.region(region) + u64::from(unit) * 64, &object);
        };
        put(1, 1, 9);
        put(8, 0, 5);
        put(12, 1, 10);
        let word = RegionWord { kind: RegionKind::Log, head: 1, link, epoch: 9 }.emit();
        let word = if known { word } else { 0 };
        image.write(SMALL.directory(region), &word.to_le_bytes());
        // The tables are lost.
        image.write(ROOT, &[0; 4096 + 2048]);
        let medium = Region::anonymous(SMALL.size).expect("memory");
        medium.write(0, &image.bytes());
        let mut keys = Vec::new();
        let mut visit = |record: Record| {
            keys.push((record.key, record.version));
            Ok(())
        };
        let salvaged = salvage(&medium, NOW, &mut visit).expect("a store");
        assert!(salvaged.without_tables.is_some());
        assert_eq!(keys, [(key_of(1), 9)], "known: {known}");
    }
}

#[test]
fn keys_of_a_lost_sector_are_back_whenever_the_power_fails_meanwhile() {
    let (image, contents) = story();
    let explorer = Explorer { ways_max: 8, samples: 8, ..Explorer::default() };
    for part in parts_of(table(&image)) {
        explorer.run(
            &zeroed(&image, part.clone()),
            |image| drop(Server::open(image, DURABLE).expect("a store")),
            |crashed, _| {
                let again = CrashImage::from_bytes(crashed.bytes(), crashed.domain());
                let (_, damaged) = looked_through(&again, &contents, &format!("{part:?}, cut short"));
                assert_eq!(damaged, <[Vec<u8>; 0]>::default(), "{part:?}");
            },
        );
    }
}

#[test]
fn a_table_of_zeros_that_an_earlier_program_made_is_marked_and_then_checked() {
    let (image, contents) = story();
    let table = table(&image);
    let mut bytes = image.bytes();
    let word = RegionWord { link: 0, ..RegionWord::table(1) };
    bytes[DIRECTORY as usize..][..8].copy_from_slice(&word.emit().to_le_bytes());
    for index in 0..table.slots() {
        let slot = &mut bytes[table.slot(index) as usize..][..16];
        if slot[..8] == NEVER.to_le_bytes() {
            slot.fill(0);
        }
    }
    let earlier = || CrashImage::from_bytes(bytes.clone(), image.domain());
    let opened = earlier();
    assert_eq!(looked_through(&opened, &contents, "made of zeros").0, []);
    let first = parts_of(table).next().expect("a sector");
    let (findings, damaged) = looked_through(&zeroed(&opened, first), &contents, "marked since");
    assert!(!findings.is_empty() && damaged.is_empty(), "{findings:?}, {damaged:?}");
    Explorer { ways_max: 8, samples: 8, ..Explorer::default() }.run(
        &earlier(),
        |image| drop(Server::open(image, DURABLE).expect("a store")),
        |crashed, _| {
            let again = CrashImage::from_bytes(crashed.bytes(), crashed.domain());
            let (findings, _) = looked_through(&again, &contents, "marked in part");
            assert!(
                !findings.iter().any(|found| matches!(found.at, DamageLocation::Entry(_))),
                "{findings:?}"
            );
        },
    );
}

/// What the story of format 1 has beyond the other: a value that expires later.
fn first_contents(mut contents: Contents) -> Contents {
    contents.insert(b"fleeting".to_vec(), Some(b"soon gone".to_vec()));
    contents
}

#[test]
fn a_store_of_format_1_is_upgraded_and_has_what_it_had() {
    let image = first_format();
    let contents = first_contents(story().1);
    let (server, recovered) = Server::open(&image, DURABLE).expect("a store");
    assert!(recovered.upgraded && server.findings().is_empty(), "{:?}", server.findings());
    drop(server);
    let again = CrashImage::from_bytes(image.bytes(), image.domain());
    assert_eq!(looked_through(&again, &contents, "upgraded").0, []);
    assert!(!Server::open(&again, DURABLE).expect("a store").1.upgraded);
}

#[test]
fn an_upgrade_that_was_cut_short_goes_on() {
    let contents = first_contents(story().1);
    let explorer = Explorer { ways_max: 8, samples: 8, ..Explorer::default() };
    explorer.run(
        &first_format(),
        |image| drop(Server::open(image, DURABLE).expect("a store")),
        |crashed, _| {
            let again = CrashImage::from_bytes(crashed.bytes(), crashed.domain());
            looked_through(&again, &contents, "cut short");
        },
    );
}

#[test]
fn a_store_of_format_1_that_one_bit_of_an_entry_made_unusable_is_usable() {
    let image = first_format();
    let contents = first_contents(story().1);
    let table = {
        let whole = first_format();
        table(&whole)
    };
    let mut tried = 0;
    for index in (0..table.slots()).filter(|index| image.load_u64(table.slot(*index) + 8) != 0) {
        let at = table.slot(index);
        // Format 1 has nothing that tells of the others: a fingerprint of the same head and bucket.
        let misplaced = |bit: &u64| {
            let meta = Meta(image.load_u64(at) ^ 1 << bit);
            let home = table.home(meta.fingerprint());
            !(home..home + NEIGHBOURHOOD).contains(&index) || SMALL.head_of(meta.fingerprint()) != meta.head()
        };
        for bit in (8..64).filter(misplaced) {
            tried += 1;
            let bad = flipped(&image, at + bit / 8, bit as u32 % 8);
            looked_through(&bad, &contents, &format!("bit {bit} of the entry at {at}"));
        }
    }
    assert!(tried > 100, "{tried} bits are not those that made a store unusable");
}

/// The bytes of the objects that settled entries name, tombstones included: of each key, without the mark, which says nothing.
fn settled_objects(image: &CrashImage) -> Vec<(Vec<u8>, Range<u64>)> {
    let (server, _) = Server::open(image, DURABLE).expect("a store");
    let view = server.view();
    let table = view.tables[0];
    let mut all = Vec::new();
    for index in 0..table.slots() {
        let at = table.slot(index);
        let slot = Slot { meta: Meta(image.load_u64(at)), word: Word(image.load_u64(at + 8)) }
            .of(view.geometry.heads);
        let Some(offset) = slot.word.new_offset().filter(|_| !slot.word.is_pending()) else { continue };
        let (at, _) = view.locate(slot.meta.head(), offset).expect("a region of the log");
        let mut header = [0; HEADER_LEN];
        image.read(at, &mut header);
        let header = Header::parse(&header).expect("an object");
        let mut key = vec![0; header.key_len.into()];
        image.read(at + HEADER_LEN as u64, &mut key);
        all.push((key, at + WRITTEN_FROM as u64..at + header.len()));
    }
    all
}

#[test]
fn no_flipped_bit_of_a_settled_value_or_tombstone_brings_an_older_version_back() {
    let (image, contents) = story();
    // What was under way when it ended is given up first, so that all that is there is settled.
    drop(Server::open(&image, DURABLE).expect("a store"));
    let objects = settled_objects(&CrashImage::from_bytes(image.bytes(), image.domain()));
    assert!(objects.len() >= 12 && objects.iter().any(|(key, _)| *key == [b'k', 3]), "{objects:?}");
    for (key, bytes) in objects {
        for at in bytes {
            let what = format!("{key:?}, bit {} of byte {at}", at % 8);
            let bad = flipped(&image, at, (at % 8) as u32);
            let (findings, damaged) = looked_through(&bad, &contents, &what);
            assert_eq!(damaged, std::slice::from_ref(&key), "{what}: {findings:?}");
            // It is listed, and what is written next is what it has.
            let (mut server, _) = Server::open(&bad, DURABLE).expect("a store");
            let client = server.connect();
            let listed = server.handle(NOW, client, &Request::Scan { cursor: 0, limit: 1024 });
            assert!(matches!(&listed, Reply::Page { keys, .. } if keys.contains(&key)), "{what}: {listed:?}");
            let deleted =
                server.handle(NOW, client, &Request::Delete { key: key.clone(), expect: Expect::Any });
            assert!(matches!(deleted, Reply::Done { .. }), "{what}: {deleted:?}");
            assert_eq!(
                server.handle(NOW, client, &Request::Get { key: key.clone() }),
                Reply::Absent,
                "{what}"
            );
        }
    }
}

#[test]
fn keys_whose_values_are_damaged_are_cleared_with_the_others() {
    let (image, _) = story();
    drop(Server::open(&image, DURABLE).expect("a store"));
    for (key, bytes) in settled_objects(&CrashImage::from_bytes(image.bytes(), image.domain())) {
        for at in bytes.step_by(5) {
            let what = format!("{key:?}, bit {} of byte {at}", at % 8);
            for first in [None, Some(key[0])] {
                let bad = flipped(&image, at, (at % 8) as u32);
                let (mut server, _) = Server::open(&bad, DURABLE).expect("a store");
                let client = server.connect();
                let clear = |server: &mut Server<_>, first| {
                    let mut cursor = Some(0);
                    while let Some(at) = cursor {
                        let reply = server.handle(NOW, client, &Request::Clear { first, cursor: at });
                        let Reply::Page { next, .. } = reply else { panic!("{what}: {reply:?}") };
                        cursor = next;
                    }
                    match server.handle(NOW, client, &Request::Scan { cursor: 0, limit: 1024 }) {
                        Reply::Page { keys, next: None, .. } => keys,
                        other => panic!("{what}: {other:?}"),
                    }
                };
                let others = clear(&mut server, Some(key[0] ^ 1));
                assert!(others.contains(&key), "{what}: it is none of those: {others:?}");
                let left = clear(&mut server, first);
                let gone = |key: &Vec<u8>| first.is_none_or(|first| key[0] == first);
                assert!(!left.iter().any(gone), "{what}: {left:?}");
            }
        }
    }
}

#[test]
fn a_damaged_value_whose_entry_is_lost_as_well_is_an_error_and_no_older_version() {
    let (image, contents) = story();
    drop(Server::open(&image, DURABLE).expect("a store"));
    let copy = || CrashImage::from_bytes(image.bytes(), image.domain());
    let mut without_entry = 0;
    for part in parts_of(table(&copy())) {
        for (key, bytes) in settled_objects(&copy()) {
            for at in bytes {
                let bit = (at % 8) as u32;
                let what = format!("{key:?}, bit {bit} of byte {at}, and {part:?} are zeros");
                let bad = flipped(&zeroed(&image, part.clone()), at, bit);
                let (findings, damaged) = looked_through(&bad, &contents, &what);
                assert_eq!(damaged, std::slice::from_ref(&key), "{what}: {findings:?}");
                let is_entry = |found: &Finding| {
                    matches!(found.at, DamageLocation::Entry(_)) && found.fate == Fate::Lost
                };
                without_entry += usize::from(findings.iter().any(is_entry));
            }
        }
    }
    assert!(without_entry > 1000, "{without_entry}");
}
