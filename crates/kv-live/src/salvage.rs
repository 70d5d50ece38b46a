//! What can be read of a store that nobody serves: all of it, or, where it is damaged, every object that can be proven.
//!
//! Nothing of the medium is changed. While the metadata tells where the values are, they are read as a server reads them, and
//! only what it could not read is looked for among the objects. Where it does not (both superblocks are damaged, the root
//! record, all of a table), the regions are gone through, a unit at a time: an object's checksum covers its place, so one that
//! fits is one of this store, and its key and version say what it is. Of each key the newest counts; a deletion is an object,
//! too. A value that had been deleted, and whose deletion was cleaned away, comes back then: the report says whether values are
//! known to be current.

use std::collections::{BTreeMap, BTreeSet};

use remanence_pmem::image::Root;
use remanence_pmem::{Medium, Region};

use super::Error;
use remanence_kv::dump::Record;
use remanence_kv::format::object::{HEADER_LEN, Object, crc64};
use remanence_kv::format::slot::{NEIGHBOURHOOD, fingerprint};
use remanence_kv::format::superblock::{COPIES, LONGEST};
use remanence_kv::format::{Geometry, Header, Offset, ROOT, RegionKind, RegionWord, Superblock, UNIT, hash};
use remanence_kv::overlay::Overlay;
use remanence_kv::proto::{Refusal, Reply, Request};
use remanence_kv::server::{DamageLocation, Fate, Finding, OpenError, Options, Server, object_at};

/// Keys asked for at a time.
const PAGE: u32 = 256;
/// Links that are tried in a region of which nothing is known.
const TRIES_MAX: u64 = 1 << 22;

/// What was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Salvaged {
    /// Values that were found.
    pub values: u64,
    /// Keys whose newest value is not known to be the current one: what is current could not be read, and this is the newest
    /// that is whole.
    pub doubtful: Vec<Vec<u8>>,
    /// Keys that have a value, or had one, of which nothing is whole.
    pub lost: Vec<Vec<u8>>,
    /// Entries and values that are lost, of keys that nobody knows.
    pub nameless: u64,
    /// Other damage, and what became of it.
    pub findings: Vec<Finding>,
    /// Why the objects had to be gone through without the store's tables.
    pub without_tables: Option<String>,
}

/// A whole object of a key.
#[derive(Clone, Copy, Debug)]
struct At {
    version: u64,
    region: u32,
    unit: u32,
    head: u8,
    offset: Offset,
}

/// Hands every value of a store that can be read to `visit`, as it is at `now` (milliseconds since 1970). Changes nothing.
///
/// # Errors
/// There is no store and never was one, or `visit` failed.
pub fn salvage(
    region: &Region,
    now: u64,
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
) -> Result<Salvaged, Error> {
    let overlay = Overlay::new(region.clone());
    match Server::open(&overlay, Options::default()) {
        Ok((server, _)) => by_tables(&overlay, server, now, visit),
        Err(why) => {
            let superblock = any_superblock(&overlay).ok_or(why)?;
            let why = match Superblock::read(&overlay) {
                Err(error) => error.to_string(),
                Ok(_) => "its root record means nothing".to_owned(),
            };
            // What recovery wrote before it gave up is of no use.
            let overlay = Overlay::new(region.clone());
            let mut salvaged = Salvaged { without_tables: Some(why), ..Salvaged::default() };
            let objects = Objects::find(&overlay, &superblock);
            for (key, versions) in &objects.keys {
                give(&objects, key, versions, now, &mut salvaged, visit)?;
            }
            Ok(salvaged)
        }
    }
}

/// The same of a store that is whole: nothing is looked for. Fails at the first key that has a value which cannot be read, unless
/// `damaged` takes its name.
///
/// # Errors
/// There is no store, or it cannot be opened.
pub fn read_all(
    region: &Region,
    now: u64,
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
    damaged: &mut dyn FnMut(Option<&[u8]>),
) -> Result<(), Error> {
    let overlay = Overlay::new(region.clone());
    let (mut server, _) = Server::open(&overlay, Options::default())?;
    let mut named = BTreeSet::new();
    let nameless = values(&mut server, now, visit, &mut |key| {
        damaged(Some(key));
        named.insert(key.to_vec());
    })?;
    (0..nameless).for_each(|_| damaged(None));
    for finding in server.findings().iter().filter(|finding| finding.fate == Fate::Lost) {
        let known = finding.key.as_ref().is_some_and(|key| named.contains(key));
        if !known && matches!(finding.at, DamageLocation::Entry(_)) {
            damaged(finding.key.as_deref());
        }
    }
    Ok(())
}

/// All values that a server finds; returns how many it found of which nobody knows the keys.
fn values<M: Medium + Clone>(
    server: &mut Server<M>,
    now: u64,
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
    damaged: &mut dyn FnMut(&[u8]),
) -> Result<u64, Error> {
    let client = server.connect();
    let (mut cursor, mut without_names) = (Some(0), 0);
    while let Some(from) = cursor {
        let page = server.handle(now, client, &Request::Scan { cursor: from, limit: PAGE });
        let (next, keys) = match page {
            Reply::Page { next, keys, nameless } => {
                without_names += u64::from(nameless);
                (next, keys)
            }
            Reply::Refused(refusal) => return Err(refusal.into()),
            _ => return Err(Error::Protocol("a page")),
        };
        for key in keys {
            match server.handle(now, client, &Request::Get { key: key.clone() }) {
                Reply::Value { version, expires, value } => visit(Record { key, version, expires, value })?,
                Reply::Refused(Refusal::Damaged) => damaged(&key),
                Reply::Refused(refusal) => return Err(refusal.into()),
                _ => {}
            }
        }
        cursor = next;
    }
    Ok(without_names)
}

fn by_tables<'a>(
    overlay: &'a Overlay,
    mut server: Server<&'a Overlay>,
    now: u64,
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
) -> Result<Salvaged, Error> {
    let mut salvaged = Salvaged::default();
    let mut lost: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut has: BTreeSet<Vec<u8>> = BTreeSet::new();
    let without_names = values(
        &mut server,
        now,
        &mut |record| {
            salvaged.values += 1;
            has.insert(record.key.clone());
            visit(record)
        },
        &mut |key| {
            lost.insert(key.to_vec());
        },
    )?;
    salvaged.findings = server.findings().to_vec();
    let view = server.view();
    // Places of entries of which nobody knows the key, and the fingerprints of values of which nobody does.
    let (mut nameless, mut values): (Vec<u64>, BTreeSet<u64>) = (Vec::new(), BTreeSet::new());
    for finding in salvaged.findings.iter().filter(|finding| finding.fate == Fate::Lost) {
        match (&finding.key, finding.at) {
            (Some(key), _) if !has.contains(key) => {
                lost.insert(key.clone());
            }
            (None, DamageLocation::Entry(at)) => nameless.push(at),
            (None, DamageLocation::Value { fingerprint }) => drop(values.insert(fingerprint)),
            _ => {}
        }
    }
    if lost.is_empty() && nameless.is_empty() && without_names == 0 {
        return Ok(salvaged);
    }
    let superblock = Superblock::read(overlay).map_err(OpenError::from)?.superblock;
    let objects = Objects::find(overlay, &superblock);
    let mut found = 0;
    for (key, versions) in &objects.keys {
        let fingerprint = fingerprint(hash(superblock.salt, key));
        // It may have been the key of an entry that is lost.
        let near = |at: &u64| {
            view.tables.iter().any(|table| {
                let home = table.home(fingerprint);
                (table.slot(home)..table.slot(home + NEIGHBOURHOOD)).contains(at)
            })
        };
        let is_unknown = values.contains(&fingerprint) || nameless.iter().any(near);
        let unknown = !has.contains(key) && !lost.contains(key) && is_unknown;
        if lost.contains(key) || unknown {
            let before = salvaged.values;
            give(&objects, key, versions, now, &mut salvaged, visit)?;
            found += usize::from(unknown && salvaged.values > before);
            lost.remove(key);
        }
    }
    salvaged.lost.extend(lost);
    salvaged.nameless = (nameless.len() as u64 + without_names).saturating_sub(found as u64);
    Ok(salvaged)
}

/// The newest value of a key that is whole, or that it is lost.
fn give(
    objects: &Objects<'_>,
    key: &[u8],
    versions: &[At],
    now: u64,
    salvaged: &mut Salvaged,
    visit: &mut dyn FnMut(Record) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some((header, value)) = versions.iter().find_map(|at| objects.read(at)) else {
        salvaged.lost.push(key.to_vec());
        return Ok(());
    };
    if header.deleted || header.is_expired(now) {
        return Ok(());
    }
    salvaged.values += 1;
    salvaged.doubtful.push(key.to_vec());
    visit(Record { key: key.to_vec(), version: header.version, expires: header.expires, value })
}

/// The objects of a store, found without its tables.
struct Objects<'a> {
    medium: &'a Overlay,
    superblock: Superblock,
    /// Of each key, the newest first.
    keys: BTreeMap<Vec<u8>, Vec<At>>,
    links: BTreeMap<(u8, u16), u32>,
    /// Regions of which it is not known what they are.
    unknown: Vec<u32>,
}

impl<'a> Objects<'a> {
    fn find(medium: &'a Overlay, superblock: &Superblock) -> Self {
        let geometry = superblock.geometry;
        let mut this = Self {
            medium,
            superblock: *superblock,
            keys: BTreeMap::new(),
            links: BTreeMap::new(),
            unknown: Vec::new(),
        };
        for region in 0..geometry.regions() {
            let word = u64::from_le(medium.load_u64(geometry.directory(region)));
            let word = RegionWord::parse(word);
            match word.map(|word| word.kind) {
                Some(RegionKind::Table | RegionKind::Free) => continue,
                Some(RegionKind::Log) | None => {}
            }
            this.look_into(region, word.map(|word| (word.link, word.epoch)));
        }
        for versions in this.keys.values_mut() {
            versions.sort_by_key(|at| std::cmp::Reverse(at.version));
        }
        this
    }

    /// `known`: which link it is, and since which epoch. Objects of an earlier use lie behind those of this one, and may name
    /// keys that are gone: of a region of which nothing is known, the first object says what it is.
    fn look_into(&mut self, region: u32, mut known: Option<(u16, u32)>) {
        let geometry = self.superblock.geometry;
        let (mut unit, mut tries) = (0, 0);
        let mut is = known.is_some().then_some(None);
        while unit < geometry.region_units() {
            let place = (region, unit);
            let found = match known {
                Some((link, epoch)) => {
                    object_at(self.medium, &self.superblock, place, std::iter::once(link), &mut tries)
                        .filter(|(object, _)| object.header.epoch == epoch)
                }
                None if tries < TRIES_MAX => {
                    let links = (0..geometry.links()).map(|link| link as u16);
                    object_at(self.medium, &self.superblock, place, links, &mut tries)
                }
                None => None,
            };
            let Some((object, bytes)) = found else {
                unit += 1;
                continue;
            };
            known = Some((geometry.split(object.offset).0, object.header.epoch));
            is = Some(Some(object.head));
            self.links.insert((object.head, geometry.split(object.offset).0), region);
            let key = bytes[HEADER_LEN..HEADER_LEN + usize::from(object.header.key_len)].to_vec();
            let version = object.header.version;
            let at = At { version, region, unit, head: object.head, offset: object.offset };
            self.keys.entry(key).or_default().push(at);
            unit += object.header.len().div_ceil(UNIT) as u32;
        }
        // Chunks alone do not say whose they are.
        if !matches!(is, Some(Some(_))) {
            self.unknown.push(region);
        }
    }

    /// The header of an object and its value, if all of it is whole.
    fn read(&self, at: &At) -> Option<(Header, Vec<u8>)> {
        let link = self.superblock.geometry.split(at.offset).0;
        let place = (at.region, at.unit);
        let (known, bytes) = object_at(self.medium, &self.superblock, place, std::iter::once(link), &mut 0)?;
        let object = Object::split(&bytes).ok()?;
        if !known.header.chained {
            return Some((known.header, object.value.to_vec()));
        }
        let (_, chunks) = object.chunks()?;
        let mut value = Vec::new();
        for chunk in chunks {
            value.extend(self.chunk(at.head, chunk.offset, chunk.len, chunk.crc)?);
        }
        Some((known.header, value))
    }

    fn chunk(&self, head: u8, offset: Offset, len: u32, crc: u64) -> Option<Vec<u8>> {
        let geometry = self.superblock.geometry;
        let (link, unit) = geometry.split(offset);
        let within = u64::from(unit) * UNIT;
        if u64::from(len) > geometry.segment_len - within % geometry.segment_len {
            return None;
        }
        self.links.get(&(head, link)).into_iter().chain(&self.unknown).find_map(|region| {
            let mut bytes = vec![0; len as usize];
            self.medium.read(geometry.region(*region) + within, &mut bytes);
            (crc64(&[&bytes]) == crc).then_some(bytes)
        })
    }
}

/// The superblock of a store whose both copies are damaged: a bit of one of them is put right, or what the root record says and
/// the size of the medium stand for it. Objects prove whether it is the right one.
fn any_superblock(medium: &Overlay) -> Option<Superblock> {
    if let Ok(found) = Superblock::read(medium) {
        return Some(found.superblock);
    }
    let len = Medium::len(medium);
    for at in COPIES.into_iter().filter(|at| at + LONGEST as u64 <= len) {
        let mut bytes = [0; LONGEST];
        Medium::read(medium, at, &mut bytes);
        for bit in 0..LONGEST * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(superblock) = Superblock::parse(&bytes, len) {
                return Some(superblock);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    // The root record begins with the salt, in both of its slots.
    for at in [ROOT, ROOT + 4096].into_iter().filter(|at| at + 8 <= len) {
        let mut salt = [0; 8];
        Medium::read(medium, at, &mut salt);
        let salt = u64::from_le_bytes(salt);
        if Root::slots(&medium, ROOT, salt).is_empty() {
            continue;
        }
        // 4 KiB behind the store are the exporter's.
        for size in [len.saturating_sub(4096), len] {
            let superblock = Superblock { geometry: Geometry::for_size(size), salt, uuid: [0; 16] };
            if superblock.geometry.check().is_ok() && !Objects::find(medium, &superblock).keys.is_empty() {
                return Some(superblock);
            }
        }
    }
    None
}
