//! A store that grows keeps all it has where it is, uses the new room, and is whole after a crash at any moment of it.

use crate::common;

use common::*;
use remanence_kv::Geometry;
use remanence_kv::format::superblock::{COPIES, Found, LONGEST};
use remanence_kv::format::{DIRECTORY, Superblock, SuperblockError};
use remanence_kv::server::{OpenError, Options, Server, extend};
use remanence_pmem::crash_image::{CrashImage, Explorer};
use remanence_pmem::{Medium, PersistenceDomain};

/// Regions of which 64 make a run, so that a store of a megabyte has many runs.
const FINE: Geometry =
    Geometry { size: 40 << 10, region_len: 512, segment_len: 512, heads: 2, grown_from: 0 };

/// The same store on a longer medium, with anything behind it.
fn longer(image: &CrashImage, len: u64) -> CrashImage {
    let mut bytes = vec![0xA5; len as usize];
    image.read(0, &mut bytes[..image.len() as usize]);
    CrashImage::from_bytes(bytes, PersistenceDomain::Adr)
}

fn geometry(image: &CrashImage) -> Geometry {
    Superblock::read(image).expect("a store").superblock.geometry
}

#[test]
fn no_two_things_have_one_place_and_nothing_moves() {
    let coarse = Geometry { region_len: 4096, segment_len: 1024, ..FINE };
    for first in [FINE, coarse, Geometry { size: 57_000, ..FINE }, Geometry::for_size(1 << 20)] {
        let mut before = first;
        let mut size = first.size;
        for step in [700, 5_000, 33_000, 123_457, 4 << 20] {
            size += step;
            let Ok(grown) = before.grown_to(size) else {
                assert!(step < 3 * first.region_len, "{step} bytes are room for a region and its words");
                continue;
            };
            let words = |g: Geometry| (0..g.regions()).map(move |region| (g.directory(region), 8));
            let regions = |g: Geometry| (0..g.regions()).map(move |region| (g.region(region), g.region_len));
            let had: Vec<_> = words(before).chain(regions(before)).collect();
            let has: Vec<_> = words(grown).chain(regions(grown)).collect();
            assert!(had.iter().all(|place| has.contains(place)), "something moved: {before:?} {grown:?}");
            let mut all = has;
            all.push((0, DIRECTORY));
            all.sort_unstable();
            assert!(all.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{grown:?}");
            assert!(all.last().is_some_and(|(at, len)| at + len <= size), "{grown:?}");
            let unused = size - all.last().map_or(0, |(at, len)| at + len);
            assert!(unused < 2 * grown.region_len, "{unused} bytes are not used of {grown:?}");
            for region in 0..grown.regions() {
                let at = grown.region(region);
                assert_eq!(grown.region_at(at), Some(region));
                assert_eq!(grown.region_at(at + 8), None);
                let two = grown.regions_at(at, 2 * grown.region_len);
                let follows =
                    region + 1 < grown.regions() && grown.region(region + 1) == at + grown.region_len;
                assert_eq!(two, follows.then_some(region..region + 2));
                assert_eq!(grown.goes_on(region) && region + 1 < grown.regions(), follows);
            }
            before = grown;
        }
        assert!(before.size > 4 << 20 && before.grown_from == first.size);
    }
}

#[test]
fn a_store_grows_again_and_again_and_has_all_it_had() {
    let options = Options { clean_by_itself: true, ..DURABLE };
    let mut image = formatted(FINE, 16);
    let mut keys = 0u64;
    for len in [40 << 10, 41 << 10, 100 << 10, 101 << 10, 700 << 10u64] {
        if len > image.len() {
            image = longer(&image, len);
            let had = geometry(&image);
            assert_eq!(extend(&&image, len).expect("room"), Some(had.size));
            assert_eq!(geometry(&image), Geometry { size: len, grown_from: FINE.size, ..FINE });
            assert_eq!(extend(&&image, len).expect("room"), None, "it has that size");
        }
        let (regions, before) = (geometry(&image).regions(), keys);
        // Opened as it is and after its process died, as often as it grows.
        for _ in 0..2 {
            let store = Store::open(&image, options);
            let mut client = store.client(4);
            for n in 0..keys {
                assert_eq!(client.value(&n.to_le_bytes()), Some(value(n, 40)), "{n} of {keys} at {len}");
            }
            while client.put(&keys.to_le_bytes(), &value(keys, 40)).is_ok() {
                keys += 1;
            }
        }
        assert_eq!(geometry(&image).regions(), regions);
        println!("{len} bytes: {regions} regions, {keys} keys");
        assert!(keys > before, "there is room for more: {len}");
    }
    // The table takes a run at most.
    assert!(keys > 1_500, "{keys} keys in 700 KiB");
    let (mut server, recovered) = Server::open(&image, options).expect("a store");
    assert_eq!((recovered.lost, recovered.mended), (0, 0));
    let mut cursor = Some(0);
    let mut verified = 0;
    while let Some(at) = cursor {
        let some = server.scrub(at, 64).expect("memory does not fail");
        assert_eq!((some.lost, some.repaired), (0, 0));
        verified += some.verified;
        cursor = some.next;
    }
    assert_eq!(verified, keys);
}

#[test]
fn a_crash_while_it_grows_leaves_it_as_it_was_or_grown() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Eadr, PersistenceDomain::PageCache] {
        let image = formatted(FINE, 16);
        {
            let store = Store::open(&image, DURABLE);
            let mut client = store.client(0);
            (0..20u64).for_each(|n| assert!(client.put(&n.to_le_bytes(), &value(n, 30)).is_ok()));
        }
        let mut bytes = vec![0xA5; 64 << 10];
        image.read(0, &mut bytes[..image.len() as usize]);
        let start = CrashImage::from_bytes(bytes, domain);
        let len = start.len();
        let explorer = Explorer { ways_max: 4, samples: 4, ..Explorer::default() };
        let mut sizes = std::collections::BTreeMap::new();
        let report = explorer.run(
            &start,
            |image| assert_eq!(extend(&image, len).expect("room"), Some(FINE.size)),
            |crashed, _| {
                *sizes.entry(geometry(crashed).size).or_insert(0) += 1;
                // Again, as whoever asked for it would; then it is used to its end.
                let (server, recovered) = Server::open(crashed, DURABLE).expect("a store");
                assert_eq!(recovered.lost, 0);
                drop(server);
                extend(&crashed, len).expect("room");
                let store = Store::open(crashed, DURABLE);
                let mut client = store.client(0);
                for n in 0..20u64 {
                    assert_eq!(client.value(&n.to_le_bytes()), Some(value(n, 30)));
                }
                let more =
                    (20..2_000u64).take_while(|n| client.put(&n.to_le_bytes(), &value(*n, 30)).is_ok());
                let more = 20 + more.count() as u64;
                assert!(more > 100, "{more} keys");
                assert!((0..more).all(|n| client.value(&n.to_le_bytes()) == Some(value(n, 30))));
            },
        );
        println!("{domain:?}: {report:?}, {sizes:?}");
        assert_eq!(sizes.keys().copied().collect::<Vec<_>>(), [FINE.size, len], "{report:?}");
    }
}

#[test]
fn a_store_grows_no_further_than_its_heads_have_links_and_its_medium_has_bytes() {
    let image = longer(&formatted(FINE, 16), 80 << 10);
    let short = extend(&&image, 90 << 10);
    assert!(matches!(short, Err(OpenError::Geometry(_))), "{short:?}");
    let far = FINE.grown_to(1 << 30).expect_err("512 bytes to a region");
    assert_eq!(far.0, "the heads have no links for so many regions");
    assert!(FINE.grown_to(FINE.size).is_err() && FINE.grown_to(FINE.size + 8).is_err());
    assert_eq!(geometry(&image), FINE, "nothing was changed");
}

/// Whoever knows of no growing must not take such a store for one that was made with that size, and no bit of what it says of
/// itself is believed that was not written.
#[test]
fn a_flipped_bit_of_a_grown_store_s_superblock_is_found() {
    let image = longer(&formatted(FINE, 16), 100 << 10);
    extend(&&image, 100 << 10).expect("room");
    let Found { superblock, whole, .. } = Superblock::read(&image).expect("a store");
    assert_eq!(whole, [true, true]);
    assert_eq!(superblock.emit().len(), LONGEST);
    for (copy, at) in COPIES.into_iter().enumerate() {
        for bit in 0..LONGEST * 8 {
            let mut byte = [0];
            image.read(at + bit as u64 / 8, &mut byte);
            image.write(at + bit as u64 / 8, &[byte[0] ^ 1 << (bit % 8)]);
            let found = Superblock::read(&image).expect("the other copy");
            assert_eq!(
                (found.superblock, found.whole[copy]),
                (superblock, false),
                "bit {bit} of copy {copy}"
            );
            // It is as it was after the next opening, and does not grow before that.
            let refused = extend(&&image, image.len() + 1);
            assert!(matches!(refused, Err(OpenError::Damaged(_))), "{refused:?}");
            image.write(at + bit as u64 / 8, &byte);
        }
    }
    let mut first = vec![0; 4096];
    image.read(0, &mut first);
    assert_eq!(Superblock::parse(&first[..72], image.len()), Err(SuperblockError::Damaged));
}
