//! The logs: regions, the links of each head, and where the next object goes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use remanence_pmem::Medium;

use super::index::store;
use super::room::{Load, Loads};
use crate::format::{Geometry, HEAD_WORDS, HeadWord, Offset, RegionKind, RegionWord, UNIT};
use crate::proto::Refusal;
use crate::view::Link;

/// Something that a region holds a part of: an object, or a chunk of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Start {
    pub(super) fingerprint: u64,
    /// Where the object is, whose chunk it may be.
    pub(super) object: Offset,
}

/// Of so many starts a part consists. A region of 1 GiB may have 16 million: in one piece, the push that makes it grow would
/// copy all of them.
const PART: usize = 4096;

/// The starts of a region, in the order in which they were put there.
#[derive(Debug, Default)]
pub(super) struct Starts {
    parts: Vec<Vec<Start>>,
}

impl Starts {
    pub(super) fn push(&mut self, start: Start) {
        match self.parts.last_mut() {
            Some(part) if part.len() < PART => part.push(start),
            _ => self.parts.push(vec![start]),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.parts.last().map_or(0, |last| (self.parts.len() - 1) * PART + last.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn get(&self, nth: usize) -> Option<Start> {
        self.parts.get(nth / PART)?.get(nth % PART).copied()
    }

    pub(super) fn set(&mut self, nth: usize, start: Start) {
        self.parts[nth / PART][nth % PART] = start;
    }

    /// Says whose chunk the one is that was put there as its own.
    pub(super) fn own(&mut self, chunk: Offset, object: Offset) {
        let mut starts = self.parts.iter_mut().rev().flat_map(|part| part.iter_mut().rev());
        if let Some(start) = starts.find(|start| start.object == chunk) {
            start.object = object;
        }
    }
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) word: RegionWord,
    /// What was put there, in the order of the log: what the cleaner scans from the end. Volatile; recovery finds what
    /// is referenced.
    pub(super) starts: Starts,
    /// On its way out: in no view any more, and still not free.
    pub(super) retiring: bool,
    pub(super) load: Load,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    /// The link that is written to, and the next unit of it.
    tail: Option<(u16, u32)>,
    /// The number of the link after the last one.
    next_link: u16,
    /// The last cleaning made no room of its garbage: how many units could be written to then.
    pub(super) exhausted: Option<u64>,
}

/// Who asks for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A client, who must leave some for the cleaner.
    Store,
    /// A deletion, which makes room in the end. It leaves the cleaner what it can move at least one region's values to.
    Delete,
    /// A copy that cleaning makes. It may take the last region: by that it frees others.
    Reclaim,
}

/// Room that was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) offset: Offset,
    pub(super) at: u64,
    pub(super) epoch: u32,
}

pub(super) struct Log<M> {
    pub(super) medium: M,
    pub(super) geometry: Geometry,
    pub(super) regions: Vec<Region>,
    pub(super) links: BTreeMap<(u8, u16), u32>,
    pub(super) free: BTreeSet<u32>,
    pub(super) heads: Vec<Head>,
    pub(super) epoch: u32,
    /// Regions whose words mean nothing: what lies there may have been of any log.
    pub(super) lost: usize,
    pub(super) loads: Loads,
    /// Values that take more than a region: how many there are of so many units.
    pub(super) long: BTreeMap<u64, u64>,
}

/// Regions that clients leave to the cleaner.
pub(super) const SPARE: usize = 2;

impl<M: Medium> Log<M> {
    /// The log as the directory and the head words describe it, which were [looked through](super::mend) before. A region whose
    /// word means nothing all the same is not used.
    pub(super) fn open(medium: M, geometry: Geometry) -> Self {
        let mut log = Self {
            geometry,
            regions: Vec::new(),
            links: BTreeMap::new(),
            free: BTreeSet::new(),
            heads: Vec::new(),
            epoch: 0,
            lost: 0,
            loads: Loads::unknown(),
            long: BTreeMap::new(),
            medium,
        };
        for index in 0..geometry.regions() {
            let word = RegionWord::parse(super::index::load(&log.medium, geometry.directory(index)));
            log.epoch = log.epoch.max(word.map_or(0, |word| word.epoch));
            log.lost += usize::from(word.is_none());
            match word {
                Some(RegionWord { kind: RegionKind::Free, .. }) => drop(log.free.insert(index)),
                Some(word) if word.kind == RegionKind::Log => {
                    log.links.insert((word.head, word.link), index);
                }
                _ => {}
            }
            let word = word.unwrap_or(RegionWord::FREE);
            log.regions.push(Region {
                word,
                starts: Starts::default(),
                retiring: false,
                load: Load::default(),
            });
        }
        for head in 0..geometry.heads {
            let at = HEAD_WORDS + 8 * u64::from(head);
            let mut state = Head::default();
            let word = HeadWord::check(super::index::load(&log.medium, at)).and_then(|(word, _)| word);
            if let Some(HeadWord { link, segment }) = word {
                // Everything up to the end of that segment may have been handed out, and may still be written to by
                // nobody: the keys of the last run are gone with its process.
                let unit = segment.saturating_add(1).saturating_mul(geometry.segment_units());
                let known = log.links.contains_key(&(head as u8, link));
                state.tail = (known && unit < geometry.region_units()).then_some((link, unit));
                state.next_link = log.after(link);
            }
            log.heads.push(state);
        }
        log
    }

    fn after(&self, link: u16) -> u16 {
        ((u32::from(link) + 1) % self.geometry.links()) as u16
    }

    /// Where an offset lies, and the region's epoch.
    pub(super) fn locate(&self, head: u8, offset: Offset) -> Option<Room> {
        let (link, unit) = self.geometry.split(offset);
        let region = *self.links.get(&(head, link))?;
        let at = self.geometry.region(region) + u64::from(unit) * UNIT;
        Some(Room { offset, at, epoch: self.regions[region as usize].word.epoch })
    }

    /// Bytes from an offset to the end of its segment: no object and no chunk is longer.
    pub(super) fn left_in_segment(&self, offset: Offset) -> u64 {
        let within = u64::from(self.geometry.split(offset).1) * UNIT;
        self.geometry.segment_len - within % self.geometry.segment_len
    }

    /// The region of an offset.
    pub(super) fn region_of(&self, head: u8, offset: Offset) -> Option<u32> {
        self.links.get(&(head, self.geometry.split(offset).0)).copied()
    }

    /// The links as clients see them.
    pub(super) fn view(&self) -> BTreeMap<(u8, u16), Link> {
        let seen = self.links.iter().filter(|(_, region)| !self.regions[**region as usize].retiring);
        seen.map(|(link, region)| {
            let epoch = self.regions[*region as usize].word.epoch;
            (*link, Link { at: self.geometry.region(*region), epoch })
        })
        .collect()
    }

    /// Units at the end of a head's log that nothing was put into yet.
    pub(super) fn tail_room(&self, head: usize) -> u32 {
        self.heads[head].tail.map_or(0, |(_, unit)| self.geometry.region_units() - unit)
    }

    /// Whether a region is the one that its head's log is written to.
    pub(super) fn is_tail(&self, region: u32) -> bool {
        let word = self.regions[region as usize].word;
        self.heads[usize::from(word.head)].tail.is_some_and(|(link, _)| link == word.link)
    }

    /// Room for an object or a chunk of so many bytes at the end of a head's log.
    ///
    /// Handed out means durable: the head word says that this segment is in use before any address in it leaves.
    pub(super) fn hand_out(
        &mut self,
        head: u8,
        bytes: u64,
        start: impl FnOnce(Offset) -> Start,
        purpose: Purpose,
    ) -> Result<Room, Refusal> {
        // Requests are checked before. A copy of an object can be too long if a client tampered with it.
        if bytes == 0 || bytes > self.geometry.object_max() {
            return Err(Refusal::Damaged);
        }
        let units = bytes.div_ceil(UNIT) as u32;
        let segment = self.geometry.segment_units();
        let (mut link, next) = match self.heads[usize::from(head)].tail {
            Some(tail) => tail,
            None => self.link(head, purpose)?,
        };
        let (unit, padding) = match self.fit(next, units) {
            Some(unit) => {
                self.use_up(self.links[&(head, link)], unit - next, units);
                (unit, unit - next)
            }
            None => {
                let (full, padding) = (link, self.geometry.region_units() - next);
                let unit;
                (link, unit) = self.link(head, purpose)?;
                self.use_up(self.links[&(head, full)], padding, 0);
                self.use_up(self.links[&(head, link)], 0, units);
                (unit, padding)
            }
        };
        if purpose == Purpose::Reclaim {
            self.loads.copied += u64::from(padding + units);
        }
        let state = &mut self.heads[usize::from(head)];
        let entered = HeadWord { link, segment: unit / segment };
        state.tail = Some((link, unit + units));
        let at = HEAD_WORDS + 8 * u64::from(head);
        let word = HeadWord::emit(Some(entered));
        if super::index::load(&self.medium, at) != word {
            store(&self.medium, at, word);
            self.medium.persist(at..at + 8).map_err(|_| Refusal::Medium)?;
        }
        let offset = self.geometry.join(link, unit);
        let room = self.locate(head, offset).expect("the tail is linked");
        let region = self.links[&(head, link)];
        self.regions[region as usize].starts.push(start(offset));
        Ok(room)
    }

    /// How many free regions objects of so many bytes take, one after the other, behind what is left at the end of a head's log.
    pub(super) fn regions_for(&self, head: u8, objects: impl Iterator<Item = u64>) -> usize {
        let mut regions = 0;
        let mut next =
            self.heads[usize::from(head)].tail.map_or(self.geometry.region_units(), |(_, unit)| unit);
        for bytes in objects {
            let units = bytes.div_ceil(UNIT) as u32;
            let unit = self.fit(next, units).unwrap_or_else(|| {
                regions += 1;
                1
            });
            next = unit + units;
        }
        regions
    }

    /// Where so many units go from this one on in a region; `None`: in the next one. An object does not span two segments (3.3).
    fn fit(&self, next: u32, units: u32) -> Option<u32> {
        let segment = self.geometry.segment_units();
        let spans = !next.is_multiple_of(segment) && next % segment + units > segment;
        let unit = if spans { next.next_multiple_of(segment) } else { next };
        (unit + units <= self.geometry.region_units()).then_some(unit)
    }

    /// Puts a free region to use as the next link, and returns its first unit.
    fn link(&mut self, head: u8, purpose: Purpose) -> Result<(u16, u32), Refusal> {
        let link = self.heads[usize::from(head)].next_link;
        let spare = match purpose {
            Purpose::Store => SPARE,
            Purpose::Delete => 1,
            Purpose::Reclaim => 0,
        };
        if self.free.len() <= spare || self.links.contains_key(&(head, link)) {
            return Err(Refusal::Full);
        }
        let region = *self.free.first().expect("not empty");
        let word = RegionWord { kind: RegionKind::Log, head, link, epoch: self.next_epochs(1)? };
        self.set(region, word)?;
        self.links.insert((head, link), region);
        let next_link = self.after(link);
        let state = &mut self.heads[usize::from(head)];
        state.next_link = next_link;
        state.tail = Some((link, 1));
        Ok((link, 1))
    }

    /// The epoch of the next of so many regions that are put to use.
    ///
    /// An epoch is never used twice: an object is told by it from what an earlier use of the region has left in its place, and of two
    /// regions the younger by the higher one. So the last of them ends what can be written: the store is full, and what it has is
    /// read, also by `rem kv dump`, to be loaded into a new one. A store comes there when 2^32 regions have been filled: 64 TiB in the
    /// smallest one, whose regions have 16 KiB, and 8 PiB in one of 256 MiB.
    pub(super) fn next_epochs(&self, count: u64) -> Result<u32, Refusal> {
        let left = u64::from((u32::MAX - 1).saturating_sub(self.epoch));
        if count > left { Err(Refusal::Full) } else { Ok(self.epoch + 1) }
    }

    /// The next object of this head goes to a region of its own, if there is one.
    pub(super) fn cut(&mut self, head: u8) -> Result<(), Refusal> {
        if self.heads[usize::from(head)].tail.is_some() {
            self.link(head, Purpose::Reclaim)?;
        }
        Ok(())
    }

    /// Changes what a region is, durably.
    pub(super) fn set(&mut self, region: u32, word: RegionWord) -> Result<(), Refusal> {
        self.set_all(&[(region, word)])
    }

    /// The same of several, with one wait for the medium.
    pub(super) fn set_all(&mut self, words: &[(u32, RegionWord)]) -> Result<(), Refusal> {
        for (region, word) in words {
            let at = self.geometry.directory(*region);
            store(&self.medium, at, word.emit());
            self.medium.pwb(at..at + 8);
        }
        self.medium.psync().map_err(|_| Refusal::Medium)?;
        words.iter().for_each(|(region, word)| self.became(*region, *word));
        Ok(())
    }

    fn became(&mut self, region: u32, word: RegionWord) {
        self.epoch = self.epoch.max(word.epoch);
        let old = std::mem::replace(&mut self.regions[region as usize].word, word);
        if old.kind == RegionKind::Log {
            self.links.remove(&(old.head, old.link));
        }
        if word.kind == RegionKind::Free {
            self.free.insert(region);
            self.regions[region as usize].starts = Starts::default();
            self.regions[region as usize].retiring = false;
            self.unload(region);
        } else {
            self.free.remove(&region);
        }
    }

    /// Gives a region back. Nothing on the medium may refer to it.
    pub(super) fn release(&mut self, region: u32) -> Result<(), Refusal> {
        self.release_all([region])
    }

    /// The same of several, with one wait for the medium.
    pub(super) fn release_all(&mut self, regions: impl IntoIterator<Item = u32>) -> Result<(), Refusal> {
        let free = |region: u32| {
            let epoch = self.regions[region as usize].word.epoch;
            (region, RegionWord { kind: RegionKind::Free, head: 0, link: 0, epoch })
        };
        let words: Vec<(u32, RegionWord)> = regions.into_iter().map(free).collect();
        self.set_all(&words)
    }

    /// So many free regions in a row, for a table: the first of them.
    pub(super) fn run_of_free(&self, count: u32) -> Option<u32> {
        let mut run: Option<(u32, u32)> = None;
        for region in &self.free {
            let (first, len) = match run {
                Some((first, len)) if first + len == *region && self.geometry.goes_on(region - 1) => {
                    (first, len + 1)
                }
                _ => (*region, 1),
            };
            if len >= count {
                return Some(first);
            }
            run = Some((first, len));
        }
        None
    }
}

pub(super) fn io(error: &io::Error) -> Refusal {
    let _ = error;
    Refusal::Medium
}
