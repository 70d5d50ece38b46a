use proptest::prelude::*;

use super::object::{Content, WRITTEN_FROM, chunk_lens, crc64, emit};
use super::*;

const PLACE: Place = Place { salt: 7, head: 3, offset: Offset(99), epoch: 5 };

#[test]
fn an_update_flips_the_tag_and_keeps_the_previous_place() {
    let first = Word::FREE.update(Offset(10));
    assert_eq!((first.new_offset(), first.old_offset(), first.is_pending()), (Some(Offset(10)), None, true));
    assert_eq!(first.0 >> 63, 1, "a new tag of 1 means the first offset (4.1)");
    let second = first.settled().update(Offset(20));
    assert_eq!((second.new_offset(), second.old_offset()), (Some(Offset(20)), Some(Offset(10))));
    assert_eq!(second.0 >> 63, 0);
    assert_eq!(second.flipped(), first.settled(), "repair goes back to the version before");
    assert_eq!(first.flipped(), Word::FREE, "and a creation that failed leaves nothing");
    assert_eq!(second.with_old(None).flipped(), Word::FREE);
    let largest = Word::FREE.update(Offset((1 << 31) - 1)).settled().update(Offset((1 << 31) - 1));
    assert_eq!(largest.new_offset(), largest.old_offset());
    assert_eq!(largest.0 & !(1 << 63), (1 << 63) - 1);
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
    let short = SuperblockError::CutOff { store: 1 << 20, medium: 9 };
    assert_eq!(Superblock::parse(&good, 9), Err(short));
    for at in 8..good.len() {
        let mut bad = good;
        bad[at] ^= 0x10;
        assert_eq!(Superblock::parse(&bad, 1 << 20), Err(SuperblockError::Damaged), "byte {at}");
    }
}

#[test]
fn an_object_is_whole_at_its_place_only() {
    let bytes = emit(&PLACE, 8, 0, b"key", Content::Value(b"value"));
    let object = Object::parse(&bytes, &PLACE).expect("whole");
    assert_eq!((object.key, object.value, object.header.version), (&b"key"[..], &b"value"[..], 8));
    let elsewhere = [
        Place { salt: 8, ..PLACE },
        Place { head: 4, ..PLACE },
        Place { offset: Offset(98), ..PLACE },
        Place { epoch: 6, ..PLACE },
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
        let place = Place { epoch, ..PLACE };
        let _ = Object::parse(&bytes, &place);
        let _ = Superblock::parse(&bytes, u64::MAX);
        let _ = Slot::parse_all(&bytes).count();
    }

    #[test]
    fn any_region_word_comes_back(epoch: u32, link: u16, head: u8, kind in 0u64..3) {
        let word = u64::from(epoch) << 32 | u64::from(link) << 16 | u64::from(head) << 8 | kind;
        prop_assert_eq!(RegionWord::parse(word).map(RegionWord::emit), Some(word));
    }
}
