//! What the fuzzer of `fuzz/` does with any bytes; the unit tests run the committed corpus through the same functions, and a few random bytes.

use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::CrashImage;

use crate::log::format::record::{HEADER_LEN, Header, verify};
use crate::log::format::root::State;
use crate::log::format::superblock::Superblock;
use crate::log::proto::{Request, emit_reply, parse_reply};
use crate::log::store::{Make, Reader, Store};
use crate::log::walk::Local;
use crate::log::{Geometry, Mode};

/// Decodes any bytes as everything that is decoded here: nothing panics, and what is accepted is written as it was read.
pub fn decode(bytes: &[u8]) {
    if let Ok(superblock) = Superblock::parse(bytes, bytes.len() as u64) {
        assert_eq!(Superblock::parse(&superblock.emit(), superblock.geometry.size), Ok(superblock));
    }
    if let Some(state) = State::parse(bytes) {
        assert_eq!(state.emit(), bytes);
    }
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(request.emit(), bytes);
    }
    if let Ok(status) = parse_reply(bytes) {
        assert_eq!(parse_reply(&emit_reply(&Ok(status.clone()))), Ok(status));
    }
    if let Some(header) = bytes.first_chunk::<{ HEADER_LEN as usize }>() {
        let header = Header::parse(header);
        assert!(!verify(bytes, 0) || header.record_len() == bytes.len() as u64);
    }
}

/// Puts any bytes where a log has its tail words and segments, and where it has its root: it is recovered without a panic,
/// to records that are whole, or refused.
pub fn recover(bytes: &[u8]) {
    const SIZE: u64 = 24 << 10;
    let (mode, segment) = match bytes.first() {
        Some(byte) if byte & 1 == 1 => (Mode::Compound, 256),
        _ => (Mode::Singleton, 512),
    };
    let geometry = Geometry::new(SIZE, segment).expect("fair");
    let make = Make { mode, geometry, uuid: crate::log::format::superblock::Uuid([7; 16]), salt: 0 };
    let image = CrashImage::new(SIZE, PersistenceDomain::Adr);
    drop(Store::create(&image, &make).expect("it is large enough"));
    let mut all = image.bytes();
    let at = crate::log::format::TAILS_AT as usize;
    let bytes = bytes.get(1..).unwrap_or_default();
    let len = bytes.len().min(all.len() - at);
    all[at..at + len].copy_from_slice(&bytes[..len]);
    let image = CrashImage::from_bytes(all, PersistenceDomain::Adr);
    let Ok(mut store) = Store::open(&image) else { return };
    let status = store.status().expect("memory does not fail");
    let mut reader = Reader::new(&status);
    while reader.next_sequence() < status.tail.sequence {
        let Ok(found) = reader.read(&mut Local(&&image));
        let (found, payload) = found.expect("what was recovered is read");
        assert_eq!(u64::from(found.header.length), payload.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    fn all(bytes: &[u8]) {
        super::decode(bytes);
        super::recover(bytes);
    }

    #[test]
    fn the_corpus_is_no_trouble() {
        remanence_effort::replay_corpora(&[("remotelog", all)]);
    }

    #[test]
    fn a_few_bytes_are_no_trouble() {
        let mut state = 7_u64;
        for len in 0..600 {
            let bytes: Vec<u8> = (0..len * 7)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Mostly zeros, as lengths are then believable.
                    if state >> 61 == 0 { (state >> 40) as u8 } else { 0 }
                })
                .collect();
            all(&bytes);
        }
    }
}
