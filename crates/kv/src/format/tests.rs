use proptest::prelude::*;

use super::object::{Content, WRITTEN_FROM, chunk_lens, crc64, emit};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::CrashImage;

use super::superblock::State;
use super::*;

const PLACE: ObjectAddress = ObjectAddress { salt: 7, head: 3, offset: Offset(99), epoch: 5 };

#[test]
fn an_update_keeps_the_previous_place() {
    let first = Word::FREE.update(Offset(10));
    assert_eq!((first.new_offset(), first.old_offset(), first.is_pending()), (Some(Offset(10)), None, true));
    let second = first.settled().update(Offset(20));
    assert_eq!((second.new_offset(), second.old_offset()), (Some(Offset(20)), Some(Offset(10))));
    assert_eq!(second.flipped(), first.settled(), "repair goes back to the version before");
    assert_eq!(first.flipped(), Word::FREE, "and a creation that failed leaves nothing");
    assert_eq!(second.with_old(None).flipped(), Word::FREE);
    let largest = Word::FREE.update(Offset((1 << 31) - 1)).settled().update(Offset((1 << 31) - 1));
    assert_eq!(largest.new_offset(), largest.old_offset());
    assert_eq!(largest.0, !0 >> 1 | 1 << 63, "63 ones, and one for the parity");
}

#[test]
fn a_word_with_a_flipped_bit_names_nothing() {
    for word in [Word::FREE, Word::GOING, Word::FREE.update(Offset(5)).settled().update(Offset(6))] {
        assert!(word.is_sound() && word.neighbours().all(|word| !word.is_sound()));
        for bad in word.neighbours() {
            assert_eq!(
                (bad.new_offset(), bad.old_offset(), bad.is_pending()),
                (None, None, false),
                "{bad:?}"
            );
            assert!(bad.neighbours().any(|before| before == word));
        }
    }
}

#[test]
fn a_hint_never_says_too_little_and_at_most_an_eighth_too_much() {
    for units in (1..5000).chain([1 << 17, (1 << 24) + 1]) {
        let len = units * UNIT;
        let hint = Hint::of(len).len();
        assert!(hint >= len && hint <= len + len / 8 + UNIT, "{len} bytes are hinted as {hint}");
    }
}

#[test]
fn geometries_of_any_size_fit_their_medium() {
    for size in [128 << 10, 1 << 20, 100 << 20, 1 << 30, (80 << 30) + 5, 4 << 40] {
        let geometry = Geometry::for_size(size);
        geometry.check().unwrap_or_else(|e| panic!("{size}: {e} {geometry:?}"));
        assert!(geometry.region(geometry.regions()) <= size);
        assert!(geometry.region(geometry.regions() + 1) > size, "room for one more in {geometry:?}");
    }
    let paper = Geometry::for_size(4 << 40);
    assert_eq!((paper.region_len, paper.segment_len, paper.links()), (1 << 30, 8 << 20, 128));
    let bad = Geometry { heads: 0, ..paper };
    assert_eq!(bad.check().unwrap_err().to_string(), "a store has 1 to 256 heads");
}

#[test]
fn the_hash_is_part_of_the_format() {
    assert_eq!(hash(0, b""), 0xE220_A839_7B1D_CDAF, "mix(0), the first output of SplitMix64");
    assert_ne!(hash(1, b"key"), hash(2, b"key"));
    assert_ne!(hash(1, b"key"), hash(1, b"key\0"), "padding is not the key");
}

#[test]
fn a_superblock_says_what_is_wrong_with_it() {
    let superblock = Superblock { geometry: Geometry::for_size(1 << 20), salt: 3, uuid: [9; 16] };
    let good = superblock.emit();
    assert_eq!(Superblock::parse(&good, 1 << 20), Ok(superblock));
    assert_eq!(Superblock::parse(&[0; 4096], 1 << 20), Err(SuperblockError::Missing));
    let mut half_made = vec![7; 4096];
    half_made[2048..][..16].copy_from_slice(b"REMERDA making \x01");
    assert_eq!(Superblock::parse(&half_made, 1 << 20), Err(SuperblockError::Unfinished));
    let short = SuperblockError::CutOff { store: 1 << 20, medium: 9 };
    assert_eq!(Superblock::parse(&good, 9), Err(short));
    for at in 8..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert_eq!(Superblock::parse(&bad, 1 << 20), Err(SuperblockError::Damaged), "byte {at}");
    }
}

/// The first bytes of a medium, with these in place of the copies of the superblock.
fn medium(first: &[u8], second: &[u8]) -> CrashImage {
    let mut bytes = vec![0; 1 << 20];
    bytes[..first.len()].copy_from_slice(first);
    bytes[superblock::COPIES[1] as usize..][..second.len()].copy_from_slice(second);
    CrashImage::from_bytes(bytes, PersistenceDomain::Adr)
}

/// Written by the releases that had these formats.
#[test]
fn the_bytes_of_a_superblock_are_those_of_its_format() {
    let small = Geometry { size: 64 << 10, region_len: 2048, segment_len: 1024, heads: 2, grown_from: 0 };
    let grown = small.grown_to(128 << 10).expect("room");
    let middle = "00080000000000000004000000000000fecaad0befbeadde30313233343536373839616263646566";
    let written = [
        (State::First, small, "0100000002000000 0000010000000000", "603cbdf7e93012da"),
        (State::Upgrading, small, "0200000002000100 0000010000000000", "2b15156113a8df61"),
        (State::Current, small, "0200000002000000 0000010000000000", "8e30920228567e7c"),
        (State::Current, grown, "0300000002000000 0000020000000000", "000001000000000058b3298fdc7f89db"),
    ];
    for (state, geometry, begin, end) in written {
        let hex = format!("52454d4552444101{begin}{middle}{end}").replace(' ', "");
        let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).expect("ASCII"));
        let bytes: Vec<u8> = digits.map(|two| u8::from_str_radix(two, 16).expect("hex")).collect();
        let superblock = Superblock { geometry, salt: 0xDEAD_BEEF_0BAD_CAFE, uuid: *b"0123456789abcdef" };
        let found = Superblock::read(&medium(&bytes, if state == State::First { &[] } else { &bytes }));
        assert_eq!(found, Ok(superblock::Found { superblock, state, whole: [true; 2] }));
        if state == State::First {
            continue;
        }
        let image = medium(&[0xEE; 128], &[0xEE; 128]);
        superblock.write(&image, state).expect("memory");
        for at in superblock::COPIES.map(|at| at as usize) {
            assert_eq!(image.bytes()[at..at + bytes.len()], bytes, "{state:?}, the copy at {at}");
            assert_eq!(image.bytes()[at + bytes.len()..at + 128], [0xEE; 128][bytes.len()..]);
        }
    }
}

#[test]
fn blank_foreign_damaged_later_and_cut_off_are_told_apart() {
    let superblock = Superblock { geometry: Geometry::for_size(1 << 20), salt: 3, uuid: [9; 16] };
    let good = superblock.emit();
    let mut later = good.clone();
    later[8] = 4;
    // What a later format has behind its version is its own.
    later[20..].fill(0xEE);
    let mut bad = good.clone();
    bad[40] ^= 1;
    let mut number = good.clone();
    number[8] ^= 1;
    let read = |first: &[u8], second: &[u8]| Superblock::read(&medium(first, second));
    let whole = |whole| Ok(superblock::Found { superblock, state: superblock::State::Current, whole });
    assert_eq!(read(&good, &good), whole([true, true]));
    assert_eq!(read(&good, &bad), whole([true, false]));
    assert_eq!(read(&bad, &good), whole([false, true]));
    assert_eq!(read(&number, &good), whole([false, true]), "a damaged version is no later one");
    assert_eq!(read(&[0; 72], &good), whole([false, true]));
    assert_eq!(read(&bad, &bad), Err(SuperblockError::Damaged));
    assert_eq!(read(&number, &number), Err(SuperblockError::Damaged));
    assert_eq!(read(&later, &later), Err(SuperblockError::Version(4)));
    assert_eq!(
        read(&later, &good),
        Err(SuperblockError::Version(4)),
        "a later format need not have a second copy"
    );
    assert_eq!(read(&[], &[]), Err(SuperblockError::Missing));
    assert_eq!(read(b"PK\x03\x04", &[]), Err(SuperblockError::Foreign));
    let short = CrashImage::from_bytes(good.to_vec(), PersistenceDomain::Adr);
    assert_eq!(Superblock::read(&short), Err(SuperblockError::CutOff { store: 1 << 20, medium: 72 }));
    assert_eq!(
        SuperblockError::Version(4).to_string(),
        "the store has format 4, and this program reads formats 1 to 3: use the program that made it"
    );
}

#[test]
fn an_object_is_whole_at_its_place_only() {
    let bytes = emit(&PLACE, 8, 0, b"key", Content::Value(b"value"));
    let object = Object::parse(&bytes, &PLACE).expect("whole");
    assert_eq!((object.key, object.value, object.header.version), (&b"key"[..], &b"value"[..], 8));
    let elsewhere = [
        ObjectAddress { salt: 8, ..PLACE },
        ObjectAddress { head: 4, ..PLACE },
        ObjectAddress { offset: Offset(98), ..PLACE },
        ObjectAddress { epoch: 6, ..PLACE },
    ];
    for place in elsewhere {
        assert_eq!(Object::parse(&bytes, &place), Err(Flaw::Torn), "{place:?}");
    }
    let mut marked = bytes.clone();
    marked[..WRITTEN_FROM].copy_from_slice(&8u64.to_le_bytes());
    assert!(Object::parse(&marked, &PLACE).expect("the mark is not covered").header.is_superseded());
}

#[test]
fn every_flipped_bit_and_every_missing_byte_shows() {
    let bytes = emit(&PLACE, 8, 77, b"key", Content::Value(b"value"));
    for bit in WRITTEN_FROM * 8..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Object::parse(&bad, &PLACE).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(matches!(Object::parse(&bytes[..len], &PLACE), Err(Flaw::Short(_))), "{len} bytes");
    }
}

#[test]
fn a_list_of_chunks_comes_back() {
    let lens: Vec<u32> = chunk_lens(1000, 300).collect();
    assert_eq!(lens, [300, 300, 300, 100]);
    let chunks: Vec<Chunk> = lens
        .iter()
        .enumerate()
        .map(|(n, len)| Chunk { offset: Offset(n as u32 + 1), len: *len, crc: crc64(&[&[n as u8]]) })
        .collect();
    let bytes = emit(&PLACE, 1, 0, b"k", Content::Chained(&chunks));
    let object = Object::parse(&bytes, &PLACE).expect("whole");
    assert!(object.header.chained);
    assert_eq!(object.chunks(), Some((1000, chunks)));
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), epoch: u32) {
        let place = ObjectAddress { epoch, ..PLACE };
        let _ = Object::parse(&bytes, &place);
        let _ = Superblock::parse(&bytes, u64::MAX);
        let _ = Slot::parse_all(&bytes).count();
    }

    #[test]
    fn any_region_word_comes_back(epoch: u32, link: u16, head: u8, kind in 0_u8..3, bit in 0_u32..64) {
        let word = match kind {
            0 => RegionWord { kind: RegionKind::Free, head: 0, link: 0, epoch },
            1 => RegionWord { kind: RegionKind::Log, head, link, epoch },
            _ => RegionWord { kind: RegionKind::Table, head: 0, link: 0, epoch },
        };
        prop_assert_eq!(RegionWord::parse(word.emit()), Some(word));
        prop_assert_eq!(RegionWord::parse(word.emit() ^ 1 << bit), None);
        prop_assert_eq!(RegionWord::check(word.emit() ^ 1 << bit), Some((word, true)));
    }

    #[test]
    fn any_head_and_meta_word_comes_back(link: u16, segment: u32, fingerprint in 0_u64..1 << 48, hint: u8, bit in 0_u32..64) {
        for word in [None, Some(HeadWord { link, segment })] {
            prop_assert_eq!(HeadWord::check(HeadWord::emit(word)), Some((word, false)));
            prop_assert_eq!(HeadWord::check(HeadWord::emit(word) ^ 1 << bit), Some((word, true)));
        }
        let meta = Meta::new(fingerprint, (fingerprint % 7) as u8, Hint(hint));
        prop_assert_eq!(Meta::check(meta.seal(), 7), Some((meta, false)));
        prop_assert_eq!(Meta::check(meta.seal() ^ 1 << bit, 7), Some((meta, true)));
    }
}
