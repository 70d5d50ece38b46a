//! A region that holds a store, or is to hold one.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use remanence_pmem::{Image, Medium, Region};

use super::Error;
use remanence_kv::format::slot::{NEIGHBOURHOOD, TableAt};
use remanence_kv::format::superblock::{BLANK, FORMAT, State, image};
use remanence_kv::format::{BadGeometry, Geometry, Superblock, SuperblockError};
use remanence_kv::overlay::Overlay;
use remanence_kv::server::{Finding, OpenError, Options, Recovered, Scrubbed, Server, extend, format};

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
    match Superblock::read(region) {
        Ok(_) => return Ok(false),
        Err(SuperblockError::Missing | SuperblockError::Unfinished) => {}
        Err(SuperblockError::Foreign) => return Err(Error::SomethingElse),
        Err(other) => return Err(OpenError::from(other).into()),
    }
    if len < BLANK as u64 * 4 {
        return Err(OpenError::from(BadGeometry("a store takes 256 KiB at least")).into());
    }
    FORMAT.signature.begin(region).map_err(|e| OpenError::Medium(e.to_string()))?;
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

/// Refuses a region that somebody else opened if its file was cut short within its journal: behind the store then lies what is
/// left of that.
pub(super) fn refuse_cut_journal(region: &Region) -> Result<(), Error> {
    let len = Medium::len(region);
    FORMAT.open(region, |head| match image(head, len) {
        Image::Ours { len: store } => store..len,
        Image::Blank => 0..len,
        Image::Foreign => len..len,
    })?;
    Ok(())
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
    let overlay = Overlay::new(region.clone());
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
    use remanence_kv::format::superblock::{COPIES, JOURNAL_NOTE};

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
        making[2048..][..16].copy_from_slice(b"REMERDA making \x01");
        assert_eq!(image(&making, 1 << 20), Image::Blank);
        let mut noted = zeros.clone();
        noted[JOURNAL_NOTE as usize] = 1;
        assert_eq!(image(&noted, 1 << 20), Image::Foreign, "that is no note");
        for short in 0..100 {
            assert_eq!(image(&zeros[..short], short as u64), Image::Blank);
        }
        assert_eq!(image(b"x", 1), Image::Foreign);
    }
}
