//! A small record that is replaced as a whole: two copies, one written after the other.
//!
//! ```text
//! copy, each on a page, or a sector, of its own, so that one write-back cannot tear both:
//!   0  eight bytes that tell whose it is
//!   …  framed as the format says (framing.rs), with the words that say which copy is newer
//! the usual framing (RootFormat::pages):
//!   0  tag         u64
//!   8  generation  u64   counts writes of copies
//!  16  length      u32   bytes of payload
//!  20  crc         u32   CRC-32 of all the others
//!  24  payload
//! ```
//! **The crash argument.** Between two calls both copies are whole, durable, and say the same. A [store](RootFormat::store) writes the
//! one that is not the newest first, and the other when that one is durable. So at any moment one of them is whole: the old record's
//! until the new one's is. A crash leaves the old record or the new one, and the old one only while nobody was told of the new.
//! After a crash the copies may differ, or one of them be torn, or what is visible not be durable, if only the process died.
//! [Opening](RootFormat::open) makes the newest durable first and then the other one equal to it, before anybody acts on what it says.
//!
//! **Rot.** As both say the same, either may be damaged later: the other one is there, and an *older* record never is. Whoever kept the
//! last record and the one before it would be handed the one before when the last is damaged: a promise that was forgotten, a log
//! that comes back. Both damaged is an [error](RootError::Invalid). What was never written is told from that by the second copy: its
//! first byte is written when the first copy is durable, so zeros there say that nobody was told of any record.
//!
//! Media that an earlier release wrote may have the record before in the other copy. Opening them puts that right.

use std::io;

use super::framing::{Framing, Local};
use super::signature::put;
use crate::layout::get_u64;
use crate::medium::Medium;

const PAGE: u64 = 4096;
const GENERATION: usize = 8;
const HEADER: usize = 24;
/// So many writes there never were: who forges a count makes none overflow.
const GENERATION_MAX: u64 = 1 << 63;

/// Bytes that a root record in two pages takes on its medium.
pub const ROOT_LEN: u64 = 2 * PAGE;

/// The longest payload of such a record.
pub const ROOT_PAYLOAD_MAX: usize = PAGE as usize - HEADER;

/// Why a root record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// Nothing valid is there: never written, written for something else, or damaged beyond repair.
    #[error("no valid record at offset {offset}: it was never written, or its medium is damaged")]
    Invalid {
        /// Where the first copy should be.
        offset: u64,
    },
    /// The medium failed.
    #[error("the medium failed: {0}")]
    Medium(#[from] io::Error),
}

/// How a root record lies on its medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootFormat {
    /// Where the copies begin. No write to one can tear the other.
    pub at: [u64; 2],
    /// The first eight bytes of each.
    pub magic: [u8; 8],
    /// What goes into the checksums besides, if the format has a salt.
    pub salt: Option<u64>,
    /// How a copy is framed.
    pub framing: Framing,
    /// Where the words lie that say which of two copies is newer, the one that counts most first.
    pub newer: &'static [usize],
    /// Whether the first of these counts the writes of copies, and is filled in. Otherwise they are the format's own, and both
    /// copies are the same bytes.
    pub counted: bool,
}

impl RootFormat {
    /// The usual one: on two pages from a multiple of their size on. The tag tells whose record it is.
    #[must_use]
    pub const fn pages(offset: u64, tag: u64) -> Self {
        Self {
            at: [offset, offset + PAGE],
            magic: tag.to_le_bytes(),
            salt: None,
            framing: Framing {
                header: HEADER,
                length: Some(16),
                mark: None,
                max: ROOT_PAYLOAD_MAX,
                crc: 20,
                align: 1,
                padding: true,
            },
            newer: &[GENERATION],
            counted: true,
        }
    }

    /// One that has all in a header of `len` bytes, which ends in its checksum; which of two copies is newer it says in words of its own.
    #[must_use]
    pub const fn header(
        at: [u64; 2],
        magic: [u8; 8],
        salt: u64,
        len: usize,
        newer: &'static [usize],
    ) -> Self {
        Self {
            at,
            magic,
            salt: Some(salt),
            framing: Framing {
                header: len,
                length: None,
                mark: None,
                max: 0,
                crc: len - 4,
                align: 1,
                padding: true,
            },
            newer,
            counted: false,
        }
    }

    /// Finds the newest record: its header and its payload. From then on both copies say so, durably. `None`: none was ever written.
    ///
    /// # Errors
    /// Both copies are damaged, or the medium failed.
    pub fn open(&self, medium: &impl Medium) -> Result<Option<Vec<u8>>, RootError> {
        let copies = self.copies(medium);
        let Some(newest) = self.newest(&copies) else {
            return if self.is_blank(medium) {
                Ok(None)
            } else {
                Err(RootError::Invalid { offset: self.at[0] })
            };
        };
        // What is read may be on its way only: until it is durable, the other copy is all that there is.
        for (copy, at) in copies.iter().zip(self.at) {
            copy.iter().for_each(|copy| medium.pwb(at..at + copy.len() as u64));
        }
        medium.psync()?;
        let [first, second] = &copies;
        let found = copies[newest].as_ref().expect("the newest is whole");
        let same = |a: &[u8], b: &[u8]| a[self.own()..] == b[self.own()..];
        if !matches!((first, second), (Some(first), Some(second)) if same(first, second)) {
            self.write(medium, found, self.generation(found), [1 - newest].into_iter())?;
        }
        Ok(Some(found.clone()))
    }

    /// Replaces the record; durable on return. The header is the format's own, with the magic number and the length in their places.
    ///
    /// # Errors
    /// The medium failed: either record may be found later.
    ///
    /// # Panics
    /// The header is none of this format.
    pub fn store(&self, medium: &impl Medium, header: &[u8], payload: &[u8]) -> io::Result<()> {
        assert!(header.starts_with(&self.magic), "a root record begins with its magic number");
        let copies = self.copies(medium);
        let newest = self.newest(&copies);
        let generation =
            newest.and_then(|newest| copies[newest].as_deref()).map_or(0, |copy| self.generation(copy));
        let first = newest.map_or(0, |newest| 1 - newest);
        let mut copy = Vec::new();
        self.framing.emit(self.salt, header, payload, &mut copy);
        self.write(medium, &copy, generation, [first, 1 - first].into_iter())
    }

    /// Writes copies, each when the one before it is durable.
    fn write(
        &self,
        medium: &impl Medium,
        copy: &[u8],
        generation: u64,
        places: impl Iterator<Item = usize>,
    ) -> io::Result<()> {
        let (header, rest) = copy.split_at(self.framing.header);
        let payload = self.framing.payload(header).expect("it is a copy");
        let mut header = header.to_vec();
        for (generation, place) in (generation + 1..).zip(places) {
            if self.counted {
                header[self.newer[0]..][..8].copy_from_slice(&generation.to_le_bytes());
            }
            let mut bytes = Vec::with_capacity(copy.len());
            self.framing.emit(self.salt, &header, &rest[..payload], &mut bytes);
            let mut before = vec![0; bytes.len()];
            medium.read(self.at[place], &mut before);
            if let Err(error) = put(medium, self.at[place], &bytes) {
                // Whoever tries again would take it for the newest and write over the other one, which is all that is durable.
                medium.write_nt(self.at[place], &before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The copies that are whole.
    fn copies(&self, medium: &impl Medium) -> [Option<Vec<u8>>; 2] {
        self.at.map(|at| {
            let (mut copy, mut payload) = (Vec::new(), Vec::new());
            let room = at..medium.len().min(at + self.framing.len(self.framing.max));
            let judge = |header: &[u8]| {
                copy.extend_from_slice(header);
                (header.starts_with(&self.magic) && self.generation(header) < GENERATION_MAX)
                    .then_some(())
                    .ok_or(())
            };
            let Ok(found) = self.framing.read(self.salt, &mut Local(medium), room, &mut payload, judge);
            copy.extend_from_slice(&payload);
            found.is_ok().then_some(copy)
        })
    }

    /// Which copy counts: of two that say the same the second, as the first was written before it.
    fn newest(&self, copies: &[Option<Vec<u8>>; 2]) -> Option<usize> {
        let age = |copy: &[u8]| self.newer.iter().map(|at| get_u64(copy, *at)).collect::<Vec<u64>>();
        (0..2)
            .filter_map(|n| Some((n, age(copies[n].as_deref()?))))
            .max_by(|a, b| a.1.cmp(&b.1))
            .map(|(n, _)| n)
    }

    fn generation(&self, copy: &[u8]) -> u64 {
        if self.counted { get_u64(copy, self.newer[0]) } else { 0 }
    }

    /// What a record says begins here; what is before it, the framing counts.
    const fn own(&self) -> usize {
        if self.counted { self.framing.header } else { 0 }
    }

    /// Whether no byte of a second copy was ever written.
    fn is_blank(&self, medium: &impl Medium) -> bool {
        let mut header = vec![0; self.framing.header];
        if medium.len().checked_sub(self.at[1]).is_some_and(|left| left >= header.len() as u64) {
            medium.read(self.at[1], &mut header);
        }
        header.iter().all(|byte| *byte == 0)
    }
}

/// A root record in two pages of a medium.
#[derive(Debug)]
pub struct Root<M> {
    medium: M,
    format: RootFormat,
}

impl<M: Medium> Root<M> {
    /// Writes the first record at a multiple of the page size, over whatever was there.
    ///
    /// # Errors
    /// The medium failed.
    pub fn format(medium: M, offset: u64, tag: u64, payload: &[u8]) -> Result<Self, RootError> {
        assert!(offset.is_multiple_of(PAGE), "a root record at {offset} does not start on a page");
        let root = Self { medium, format: RootFormat::pages(offset, tag) };
        // What is in the copies may be valid, and newer than what is about to be written. No fence is needed between: until
        // `store` has waited for all of it, the old record may be found as well.
        for at in root.format.at {
            root.medium.write(at, &[0; HEADER]);
            root.medium.pwb(at..at + HEADER as u64);
        }
        root.put(payload)?;
        Ok(root)
    }

    /// Finds the newest record, and makes sure that both copies have it durably.
    ///
    /// # Errors
    /// There is none with this tag, or the medium failed.
    pub fn open(medium: M, offset: u64, tag: u64) -> Result<(Self, Vec<u8>), RootError> {
        let format = RootFormat::pages(offset, tag);
        let mut copy = format.open(&medium)?.ok_or(RootError::Invalid { offset })?;
        let payload = copy.split_off(HEADER);
        Ok((Self { medium, format }, payload))
    }

    /// What the copies hold that are whole, the older one first. One alone says that a copy is damaged, or that a crash cut a store
    /// short.
    #[must_use]
    pub fn slots(medium: &M, offset: u64, tag: u64) -> Vec<Vec<u8>> {
        let format = RootFormat::pages(offset, tag);
        let mut whole: Vec<Vec<u8>> = format.copies(medium).into_iter().flatten().collect();
        whole.sort_by_key(|copy| get_u64(copy, GENERATION));
        whole.into_iter().map(|mut copy| copy.split_off(HEADER)).collect()
    }

    /// Replaces the record; durable on return.
    ///
    /// # Errors
    /// The medium failed: either record may be found later.
    pub fn store(&mut self, payload: &[u8]) -> Result<(), RootError> {
        self.put(payload)
    }

    fn put(&self, payload: &[u8]) -> Result<(), RootError> {
        assert!(payload.len() <= ROOT_PAYLOAD_MAX, "{} bytes do not fit a root record", payload.len());
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.format.magic);
        header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        Ok(self.format.store(&self.medium, &header, payload)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PersistenceDomain;
    use crate::crash_image::{CrashImage, Explorer, Failure};

    const TAG: u64 = 0x5eed_5eed;
    const PAGES: RootFormat = RootFormat::pages(0, TAG);
    /// As a format has it that keeps all in its header and has words of its own for which copy is newer.
    const HEADERS: RootFormat = RootFormat::header([64, 1024], *b"REMTEST\0", 9, 32, &[8, 16]);
    const DOMAINS: [PersistenceDomain; 3] =
        [PersistenceDomain::Adr, PersistenceDomain::PageCache, PersistenceDomain::Eadr];

    fn thorough(failure: Failure) -> Explorer {
        Explorer { failure, ways_max: 400, samples: 200, seed: 7 }
    }

    fn blank(domain: PersistenceDomain) -> CrashImage {
        CrashImage::new(ROOT_LEN, domain)
    }

    fn store(format: &RootFormat, image: &CrashImage, number: u64) -> io::Result<()> {
        let mut header = vec![0; format.framing.header];
        header[..8].copy_from_slice(&format.magic);
        let mut payload = Vec::new();
        if format.counted {
            payload = vec![number as u8; 40 - number as usize];
            header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        } else {
            header[16..24].copy_from_slice(&number.to_le_bytes());
        }
        format.store(image, &header, &payload)
    }

    /// The number of the record that is found, after checking the rest of it; `None` if there is none.
    fn found(format: &RootFormat, image: &CrashImage) -> Result<Option<u64>, RootError> {
        Ok(format.open(image)?.map(|copy| {
            if !format.counted {
                return get_u64(&copy, 16);
            }
            let number = u64::from(copy[HEADER]);
            assert!(
                copy.len() - HEADER == 40 - number as usize
                    && copy[HEADER..].iter().all(|b| u64::from(*b) == number)
            );
            number
        }))
    }

    /// The medium fails at any wait, for good, and is tried again.
    #[test]
    fn a_root_is_there_however_often_it_could_not_be_stored() {
        for format in [PAGES, HEADERS] {
            for (domain, syncs, seed) in DOMAINS.into_iter().flat_map(|domain| {
                (0..3).flat_map(move |syncs| (0..100).map(move |seed| (domain, syncs, seed)))
            }) {
                let image = blank(domain);
                store(&format, &image, 1).expect("it is healthy");
                image.fail_after_psyncs(syncs);
                let stored = (2..5).take_while(|number| store(&format, &image, *number).is_ok()).count();
                for number in 5..8 {
                    store(&format, &image, number).expect_err("it has failed");
                }
                let crashed = image.crash_seeded(Failure::PowerLoss, seed);
                let number = found(&format, &crashed).expect("one of them is whole").expect("it was stored");
                assert!(
                    number > stored as u64,
                    "{domain}, {syncs} syncs, seed {seed}: {number}, of {stored} more"
                );
            }
        }
    }

    /// Every crash of a life, and every crash of the opening after it.
    #[test]
    fn a_root_is_the_old_record_or_the_new_one_after_any_crash_and_stays_what_it_was_found_as() {
        for format in [PAGES, HEADERS] {
            for domain in DOMAINS {
                for failure in [Failure::ProcessCrash, Failure::PowerLoss] {
                    let mut within = 0;
                    let report = thorough(failure).run(
                        &blank(domain),
                        |image| {
                            for number in 1..5 {
                                store(&format, image, number).unwrap();
                                image.note(number);
                            }
                        },
                        |crashed, notes| {
                            let told = notes.last().copied().unwrap_or(0);
                            let number = found(&format, &crashed.clone()).unwrap().unwrap_or(0);
                            assert!(number == told || number == told + 1, "told {told}, found {number}");
                            let again = Explorer { ways_max: 8, samples: 8, ..thorough(Failure::PowerLoss) };
                            let opened = again.run(
                                crashed,
                                |image| {
                                    image.note(found(&format, image).unwrap().unwrap_or(0));
                                    store(&format, image, 9).unwrap();
                                },
                                |twice, notes| {
                                    let left = found(&format, twice).unwrap().unwrap_or(0);
                                    let said = notes.last().copied();
                                    assert!(
                                        left == 9
                                            || said
                                                .map_or(left == number || left == told, |said| left == said)
                                    );
                                },
                            );
                            within += opened.crashes;
                        },
                    );
                    assert!(report.crashes > 20 && within > 200, "{report:?} {within}");
                }
            }
        }
    }

    #[test]
    fn a_count_that_nobody_reached_is_damage() {
        let image = blank(PersistenceDomain::Adr);
        let forge = |generation: u64, at: u64| {
            let (mut header, mut copy) = ([0; HEADER], Vec::new());
            header[..8].copy_from_slice(&PAGES.magic);
            header[GENERATION..][..8].copy_from_slice(&generation.to_le_bytes());
            PAGES.framing.emit(None, &header, &[], &mut copy);
            image.write(at, &copy);
        };
        PAGES.at.iter().for_each(|at| forge(u64::MAX, *at));
        assert!(matches!(PAGES.open(&image), Err(RootError::Invalid { .. })));
        forge(GENERATION_MAX - 1, PAGES.at[0]);
        assert!(PAGES.open(&image).unwrap().is_some(), "the one before it may be copied");
        store(&PAGES, &image, 1).unwrap();
    }

    /// Of a record that was acknowledged no damaged bit leads back to the one before it.
    #[test]
    fn rot_of_either_copy_leaves_the_last_record_and_rot_of_both_is_told() {
        for format in [PAGES, HEADERS] {
            let image = blank(PersistenceDomain::Adr);
            (1..4).for_each(|number| store(&format, &image, number).unwrap());
            let good = image.bytes();
            let bytes = format.framing.header + if format.counted { 37 } else { 0 };
            for at in format.at {
                for bit in 0..bytes * 8 {
                    let mut bad = good.clone();
                    bad[at as usize + bit / 8] ^= 1 << (bit % 8);
                    let bad = CrashImage::from_bytes(bad, PersistenceDomain::Adr);
                    assert_eq!(found(&format, &bad).unwrap(), Some(3), "bit {bit} at {at}");
                    // Both copies are whole again: the other one may rot now.
                    let other = format.at[usize::from(at == format.at[0])];
                    bad.write(other + 9, &[0xEE; 12]);
                    assert_eq!(
                        found(&format, &bad).unwrap(),
                        Some(3),
                        "bit {bit} at {at}, and then the other"
                    );
                }
            }
            for byte in 0..bytes {
                let mut bad = good.clone();
                format.at.iter().for_each(|at| bad[*at as usize + byte] ^= 0x10);
                let bad = CrashImage::from_bytes(bad, PersistenceDomain::Adr);
                assert!(matches!(found(&format, &bad), Err(RootError::Invalid { .. })), "byte {byte}");
            }
        }
    }

    /// A copy that rotted while the record was in use is no copy to fall back on.
    #[test]
    fn a_store_goes_over_the_copy_that_is_damaged_first() {
        for format in [PAGES, HEADERS] {
            for at in format.at {
                let image = blank(PersistenceDomain::Adr);
                store(&format, &image, 1).unwrap();
                image.write(at + 9, b"rot");
                image.persist(at..at + 12).unwrap();
                thorough(Failure::PowerLoss).run(
                    &image,
                    |image| store(&format, image, 2).unwrap(),
                    |crashed, _| assert!(matches!(found(&format, crashed), Ok(Some(1 | 2)))),
                );
            }
        }
    }

    #[test]
    fn a_record_that_was_never_written_is_none_and_a_torn_first_one_is_none() {
        for format in [PAGES, HEADERS] {
            let image = blank(PersistenceDomain::Adr);
            assert_eq!(found(&format, &image).unwrap(), None);
            image.write(format.at[0], &format.magic);
            assert_eq!(
                found(&format, &image).unwrap(),
                None,
                "the second copy comes when the first is durable"
            );
            image.write(format.at[1], &format.magic);
            assert!(found(&format, &image).is_err());
        }
    }

    /// An earlier release wrote one copy each time.
    #[test]
    fn media_of_an_earlier_release_have_the_last_record_twice_once_they_were_opened() {
        let image = blank(PersistenceDomain::Adr);
        (1..4).for_each(|number| store(&PAGES, &image, number).unwrap());
        let older = image.bytes()[..PAGE as usize].to_vec();
        store(&PAGES, &image, 4).unwrap();
        image.write(0, &older);
        assert_eq!(found(&PAGES, &image).unwrap(), Some(4));
        let healed = image.bytes();
        assert_eq!(healed[HEADER..HEADER + 36], healed[PAGE as usize + HEADER..][..36]);
    }

    /// Written by the first release of this format, which left the second page alone.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let image = blank(PersistenceDomain::Adr);
        Root::format(&image, 0, TAG, b"abc").unwrap();
        let hex = |at: usize, len: usize| -> String {
            image.bytes()[at..at + len].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(0, 28), "ed5eed5e00000000010000000000000003000000c37c7d3a61626300");
        assert_eq!(hex(4096, 28), "ed5eed5e00000000020000000000000003000000ba16002b61626300");
        image.write(4096, &[0; 28]);
        assert_eq!(Root::open(&image, 0, TAG).unwrap().1, b"abc");
    }

    #[test]
    fn formatting_a_root_leaves_none_or_the_new_one_and_never_what_was_there() {
        let used = blank(PersistenceDomain::Adr);
        let mut old = Root::format(&used, 0, TAG, &[9; 30]).unwrap();
        (0..5).for_each(|_| old.store(&[9; 30]).unwrap());
        thorough(Failure::PowerLoss).run(
            &used,
            |image| {
                Root::format(image, 0, TAG, &[1; 30]).unwrap();
                image.note(1);
            },
            |crashed, notes| match Root::open(crashed, 0, TAG) {
                Ok((_, found)) if !notes.is_empty() => assert_eq!(found, [1; 30]),
                Ok((_, found)) => assert!(found == [1; 30] || found == [9; 30]),
                Err(_) => assert!(notes.is_empty(), "formatted and gone"),
            },
        );
    }

    #[test]
    fn a_root_of_somebody_else_or_of_nobody_is_refused() {
        let image = blank(PersistenceDomain::Adr);
        assert!(matches!(Root::open(&image, 0, 0), Err(RootError::Invalid { offset: 0 })), "zeros");
        Root::format(&image, 0, TAG, b"x").unwrap();
        assert!(Root::open(&image, 0, TAG + 1).is_err());
        assert_eq!(Root::slots(&&image, 0, TAG), [b"x", b"x"]);
        image.write(24, b"y");
        assert_eq!(Root::slots(&&image, 0, TAG), [b"x"]);
    }

    #[test]
    fn what_a_root_recovered_survives_the_next_power_loss() {
        let image = blank(PersistenceDomain::PageCache);
        Root::format(&image, 0, TAG, b"old").unwrap();
        // The process dies after the write and before the psync; the page cache has the new record.
        let newer = image.clone();
        Root::open(&newer, 0, TAG).unwrap().0.store(b"new").unwrap();
        let mut first = vec![0; ROOT_LEN as usize / 2];
        newer.read(0, &mut first);
        image.write(0, &first);
        let (_, found) = Root::open(&image, 0, TAG).unwrap();
        assert_eq!(found, b"new");
        for seed in 0..100 {
            let left = image.crash_seeded(Failure::PowerLoss, seed);
            assert_eq!(Root::open(&left, 0, TAG).unwrap().1, b"new", "seed {seed}");
        }
    }
}
