//! A region that holds a store, or is to hold one.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use remanence_pmem::{FileOptions, Image, Medium, Region};

use super::Error;
use crate::format::slot::{NEIGHBOURHOOD, TableAt};
use crate::format::superblock::{BLANK, JOURNAL_NOTE, State, is_blank};
use crate::format::{BadGeometry, Geometry, Superblock, SuperblockError};
use crate::server::{Finding, OpenError, Options, Recovered, Scrubbed, Server, extend, format};

/// Where it says that a store is being made: a crash meanwhile leaves this, and no superblock.
const MAKING: u64 = 2048;
const MAKING_MARK: [u8; 16] = *b"REMERDA making \x01";

/// Whether the mark is there, or the half of it that a crash left of its writing.
fn is_making(mark: &[u8]) -> bool {
    let halves = || mark.chunks(8).zip(MAKING_MARK.chunks(8));
    mark.len() == MAKING_MARK.len()
        && halves().all(|(found, half)| found == half || found == [0; 8])
        && halves().any(|(found, half)| found == half)
}
/// Behind the store: what exports the region looks there for receive buffers of its own, which no value may imitate.
const BEHIND: u64 = 4096;

/// How a store is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct New {
    pub(super) geometry: Option<Geometry>,
    pub(super) keys: Option<u64>,
}

/// Makes a store if the region is blank. Returns whether it did.
pub(super) fn make_if_blank<M: Medium + Clone>(region: &M, new: &New) -> Result<bool, Error> {
    let len = Medium::len(region);
    let short = || OpenError::from(BadGeometry("a store takes 256 KiB at least"));
    if len < BLANK as u64 * 4 {
        return Err(short().into());
    }
    match Superblock::read(region) {
        Ok(_) => return Ok(false),
        // Of a store that was being made there is more than that.
        Err(SuperblockError::Missing | SuperblockError::Foreign) => {}
        Err(other) => return Err(OpenError::from(other).into()),
    }
    let mut mark = [0; MAKING_MARK.len()];
    Medium::read(region, MAKING, &mut mark);
    if !is_making(&mark) {
        let mut start = vec![0; BLANK];
        Medium::read(region, 0, &mut start);
        if !is_blank(&start) {
            return Err(Error::SomethingElse);
        }
    }
    let failed = |e: std::io::Error| OpenError::Medium(e.to_string());
    Medium::write(region, MAKING, &MAKING_MARK);
    Medium::persist(region, MAKING..MAKING + MAKING_MARK.len() as u64).map_err(failed)?;
    let geometry = new.geometry.unwrap_or_else(|| Geometry::for_size(len - BEHIND));
    if geometry.size > len - BEHIND {
        return Err(OpenError::from(BadGeometry("the medium is shorter than the store and 4 KiB")).into());
    }
    geometry.check().map_err(OpenError::from)?;
    // One entry for each KiB, if nothing is said, and a quarter of the regions at most: the table grows when it must.
    let most = u64::from(geometry.regions() / 4).max(1) * geometry.region_len;
    let mut buckets = new.keys.unwrap_or(geometry.size >> 10).max(NEIGHBOURHOOD);
    while buckets > NEIGHBOURHOOD && TableAt::bytes(buckets) > most {
        buckets /= 2;
    }
    let mut random = [0; 24];
    getrandom::fill(&mut random)
        .map_err(|e| Error::Argument(format!("the system gives no random bytes: {e}")))?;
    let (salt, uuid) = random.split_first_chunk().expect("eight bytes and sixteen");
    let uuid = uuid.try_into().expect("sixteen bytes");
    format(region, &geometry, buckets, u64::from_le_bytes(*salt), uuid)?;
    Ok(true)
}

/// What a store comes to in a file of so many bytes, if that is more than it has.
fn larger(had: &Geometry, asked: u64) -> Result<Option<Geometry>, Error> {
    let size = asked.saturating_sub(BEHIND);
    match had.grown_to(size) {
        Ok(grown) => Ok(Some(grown)),
        // As large as it can be with what it is given.
        Err(_) if size <= had.size || size - had.size < 2 * had.region_len => Ok(None),
        Err(e) => Err(Error::Argument(format!(
            "a store that was made so small cannot grow to {asked} bytes ({e}): `rem kv dump` it, and `rem kv load` it into one that is \
             made larger"
        ))),
    }
}

/// Refuses a size to which the store in a file cannot grow, before anything of the file is changed. What else may be wrong with
/// the file is found by who opens it.
pub(super) fn may_grow(path: &Path, asked: u64) -> Result<(), Error> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut head = Vec::new();
    if file.take(BLANK as u64).read_to_end(&mut head).is_err() {
        return Ok(());
    }
    match Superblock::of_head(&head, u64::MAX) {
        Ok(found) => larger(&found.superblock.geometry, asked).map(drop),
        Err(_) => Ok(()),
    }
}

/// Has a store that nobody serves use the medium as far as `asked`, if that is more. Returns how many bytes it used before, if it
/// has grown.
pub(super) fn grow<M: Medium + Clone>(region: &M, asked: u64) -> Result<Option<u64>, Error> {
    let found = Superblock::read(region).map_err(OpenError::from)?;
    let asked = asked.min(Medium::len(region));
    let Some(grown) = larger(&found.superblock.geometry, asked)? else { return Ok(None) };
    if found.state != State::Current || found.whole != [true, true] {
        // Which upgrades it, and puts the superblock right.
        drop(Server::open(region, Options::default())?);
    }
    Ok(extend(region, grown.size)?)
}

/// What a file of this length has that begins so: every opener of a store's file says this to [`FileOptions::image`], as
/// [`file_options`] does. One copy of the superblock that is whole makes it a store.
#[must_use]
pub fn image(head: &[u8], len: u64) -> Image {
    let making = || head.get(MAKING as usize..MAKING as usize + MAKING_MARK.len()).is_some_and(is_making);
    match Superblock::of_head(head, len) {
        Ok(found) => Image::Ours { len: found.superblock.geometry.size },
        // All pages of a store may still have been in the journal.
        Err(SuperblockError::Missing) => Image::Blank,
        Err(SuperblockError::Foreign) if making() => Image::Blank,
        // Who opens the store says why it is none.
        Err(_) => Image::Foreign,
    }
}

/// How every opener of a store's file opens it.
#[must_use]
pub fn file_options() -> FileOptions {
    let way = "read what is left with `rem kv salvage FILE -o DUMP`, which goes into a new store by `rem kv load`; the image of a member \
               is made anew by the others when its directory is taken away";
    FileOptions::new().image(image).journal_note(JOURNAL_NOTE, way)
}

/// Refuses a region that somebody else opened if its file was cut short within its journal: behind the store then lies what is
/// left of that.
pub(super) fn refuse_cut_journal(region: &Region) -> Result<(), Error> {
    let len = Medium::len(region);
    let mut head = vec![0; (BLANK as u64).min(len) as usize];
    Medium::read(region, 0, &mut head);
    match image(&head, len) {
        Image::Ours { len: store } => Ok(region.refuse_cut_journal(store..len)?),
        Image::Blank => Ok(region.refuse_cut_journal(0..len)?),
        Image::Foreign => Ok(()),
    }
}

/// What is found in a store that nobody serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// The store's name and geometry.
    pub superblock: Superblock,
    /// What recovery would do.
    pub recovered: Recovered,
    /// Values that were verified, repaired and lost, as a scrub would count them.
    pub scrubbed: Scrubbed,
    /// What is damaged, by name as far as that is known; the first thousands of it.
    pub findings: Vec<Finding>,
}

/// Recovers a store and verifies every value in a copy-on-write view of it, so that nothing of the medium changes.
///
/// # Errors
/// There is no store, or it is damaged beyond what recovery knows.
pub fn inspect(region: &Region) -> Result<Inspected, Error> {
    let overlay = super::overlay::Overlay::new(region.clone());
    scrub_all(region, &overlay)
}

/// Recovers a store that nobody serves and verifies every value; what is damaged is put right where another copy of the same
/// version is there.
///
/// # Errors
/// As [`inspect`], or the medium failed.
pub fn repair(region: &Region) -> Result<Inspected, Error> {
    scrub_all(region, region)
}

fn scrub_all(region: &Region, medium: &impl Medium) -> Result<Inspected, Error> {
    let superblock = Superblock::read(region).map_err(OpenError::from)?.superblock;
    let (mut server, recovered) = Server::open(medium, Options::default())?;
    let mut all = Scrubbed::default();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let some = server.scrub(from, 256)?;
        all.verified += some.verified;
        all.repaired += some.repaired;
        all.lost += some.lost;
        cursor = some.next;
    }
    let findings = server.findings().to_vec();
    Ok(Inspected { superblock, recovered, scrubbed: all, findings })
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::{CrashImage, Explorer};

    use super::*;
    use crate::format::superblock::COPIES;

    #[test]
    fn a_file_is_a_store_as_long_as_one_copy_of_its_superblock_is_whole() {
        let len = 1 << 20;
        let region = Region::memfd("image", len).expect("memory");
        assert!(make_if_blank(&region, &New { geometry: None, keys: None }).expect("room"));
        let mut head = vec![0; BLANK];
        Medium::read(&region, 0, &mut head);
        assert_eq!(head[2048..2064], *b"REMERDA making \x01", "as the first release that marked it did");
        let ours = image(&head, len);
        assert!(matches!(ours, Image::Ours { len: store } if store <= len - BEHIND), "{ours:?}");
        assert_eq!(image(&head, len / 2), Image::Foreign, "its end was cut off");
        for copy in COPIES {
            let mut damaged = head.clone();
            damaged[copy as usize + 40] ^= 1;
            assert_eq!(image(&damaged, len), ours, "the copy at {copy}");
        }
        for copy in COPIES {
            head[copy as usize + 40] ^= 1;
        }
        assert_eq!(image(&head, len), Image::Foreign, "it is not to be made anew");
    }

    #[test]
    fn a_crash_while_a_store_is_made_leaves_a_store_or_what_may_become_one() {
        let geometry =
            Geometry { size: 20 << 10, region_len: 1024, segment_len: 512, heads: 1, grown_from: 0 };
        let new = New { geometry: Some(geometry), keys: Some(8) };
        for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
            let (mut blank, mut whole) = (0, 0);
            let len = BLANK as u64 * 4;
            Explorer { ways_max: 8, samples: 8, ..Explorer::default() }.run(
                &CrashImage::new(len, domain),
                |image| assert!(make_if_blank(&image, &new).expect("room")),
                |crashed, _| {
                    match image(&crashed.bytes()[..BLANK], len) {
                        Image::Blank => blank += 1,
                        Image::Ours { .. } => whole += 1,
                        Image::Foreign => panic!("nobody makes a store of it, and nobody opens it"),
                    }
                    make_if_blank(&crashed, &new).expect("it is as good as blank, or a store");
                    Server::open(crashed, Options::default()).expect("a store");
                },
            );
            assert!(blank > 20 && whole > 0, "{blank} {whole}");
        }
    }

    #[test]
    fn what_a_store_may_be_made_in_is_blank_and_all_else_is_foreign() {
        let zeros = vec![0; BLANK];
        assert_eq!(image(&zeros, 1 << 20), Image::Blank);
        let mut making = vec![b'x'; BLANK];
        assert_eq!(image(&making, 1 << 20), Image::Foreign);
        making[MAKING as usize..][..MAKING_MARK.len()].copy_from_slice(&MAKING_MARK);
        assert_eq!(image(&making, 1 << 20), Image::Blank);
        let mut noted = zeros.clone();
        let note = JOURNAL_NOTE as usize..JOURNAL_NOTE as usize + remanence_pmem::JOURNAL_NOTE_LEN;
        noted[note.start] = 1;
        assert_eq!(image(&noted, 1 << 20), Image::Foreign, "that is no note");
        for short in 0..100 {
            assert_eq!(image(&zeros[..short], short as u64), Image::Blank);
        }
        assert_eq!(image(b"x", 1), Image::Foreign);
    }
}
