//! How much of the logs is live, and what cleaning can make of the rest.
//!
//! What is live is what the newest versions of keys take, tombstones excepted: a region knows how much of it that is, and the log how
//! much of all of it. Both are kept at each change of an entry, beside the counts of keys and by the same [rule](super::round): the
//! first round after the store was opened finds them, and from its end on they are exact. Until then a region is taken to be as full
//! as recovery found it.
//!
//! Nobody can take so much that nothing is left to clean with. A value that makes the live part grow beyond [`Log::most`] is refused
//! at once; one that is no longer than its key's last one is not, as there is garbage enough for it to be made room for. What is
//! written [so that something can be removed](Expect::Freeing) may have half of what is kept for garbage, and what only
//! [moves](Expect::Moving) three quarters: neither can keep the other from its end.
//!
//! A long value needs many free regions at once to be written again, as the one before stays until that is done. So much is kept free for
//! the longest one, as far as that is no more than a quarter of the store: values that are longer are written as long as there is room
//! for them by chance.
//!
//! Who finds no room waits for cleaning only as long as that gets on. A cleaning that made no room to speak of [exhausts](Log::cleaned) the
//! head's log: it is left alone until something more becomes garbage there, or there is a region more to move things to. When the rest of
//! the garbage together is less than what is wanted, or all logs are exhausted, the store is full, and says so at once.

use remanence_pmem::Medium;

use super::log::{Log, SPARE};
use super::{Current, Server};
use crate::format::{Offset, RegionKind, UNIT, get_u32};
use crate::proto::{Expect, Refusal};

/// A version that stands for a value, and what it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    /// The first byte of its key.
    pub(super) first: u8,
    pub(super) head: u8,
    /// When it ends; 0: never.
    pub(super) expires: u64,
    /// Where the object lies, and its bytes.
    pub(super) object: (Offset, u64),
    /// The same of its chunks.
    pub(super) chunks: Vec<(Offset, u32)>,
}

impl Counted {
    fn parts(&self) -> impl Iterator<Item = (Offset, u32)> {
        let chunks = self.chunks.iter().map(|(offset, len)| (*offset, u64::from(*len)));
        std::iter::once(self.object)
            .chain(chunks)
            .map(|(offset, bytes)| (offset, bytes.div_ceil(UNIT) as u32))
    }

    fn units(&self) -> u64 {
        self.parts().map(|(_, units)| u64::from(units)).sum()
    }
}

/// What lies in a region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Units of values that keys have.
    pub(super) live: u32,
    /// Of those, what ends some time, and when the last of it does.
    mortal: u32,
    ends: u64,
    /// Units that nothing was put into, as no object spans two segments. Cleaning leaves as many somewhere else, of those beside what is live.
    padding: u32,
    /// Units that were handed out in this run, padding included.
    used: u32,
    /// What recovery took to be live.
    pub(super) found: u32,
    /// Something in it could not be moved when so many regions had been freed. It is not tried again before there is another.
    stuck: Option<u64>,
}

impl Load {
    /// Units that are still worth something at this time.
    fn worth(&self, now: u64, counted: bool) -> u32 {
        match counted {
            true if self.ends <= now => self.live.saturating_sub(self.mortal),
            true => self.live,
            false => self.live.max(self.found),
        }
    }

    /// Units that this takes when it has been moved, with as much padding as it has here.
    fn kept(&self, now: u64, counted: bool) -> u64 {
        let worth = u64::from(self.worth(now, counted));
        let put = u64::from(self.used.saturating_sub(self.padding)).max(1);
        worth + u64::from(self.padding) * worth.min(put) / put
    }
}

/// The same of all regions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loads {
    pub(super) live: u64,
    padding: u64,
    used: u64,
    /// Units that became garbage since it was last found that there is none worth while.
    pub(super) shed: u64,
    /// Regions that were freed.
    pub(super) freed: u64,
    /// Units that copies of cleaning took, padding included.
    pub(super) copied: u64,
}

/// Of a region, the part that a cleaning must make room for, or it is not done again.
const WORTH: u64 = 64;

/// How full the logs are, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// What is known of all keys: before that the others are what was met so far.
    pub counted: bool,
    /// Keys that have a value, those included that expired and that nobody has met since.
    pub keys: u64,
    /// What these take.
    pub live: u64,
    /// What nobody can reach any more, until cleaning comes by.
    pub garbage: u64,
    /// What nothing was put into yet.
    pub free: u64,
    /// Of what is not live, how much can become live: the rest is what cleaning and replacing values go on with.
    pub left: u64,
}

impl Loads {
    /// Nobody has looked yet.
    pub(super) fn unknown() -> Self {
        Self { shed: u64::MAX, ..Self::default() }
    }
}

impl<M: Medium> Log<M> {
    /// Units of a region that objects can be put into.
    pub(super) fn units(&self) -> u64 {
        u64::from(self.geometry.region_units()) - 1
    }

    /// A version is the one that its key has, or is not any more.
    pub(super) fn weigh(&mut self, counted: &Counted, comes: bool) {
        self.weigh_long(counted.units(), comes);
        if !comes {
            self.heads[usize::from(counted.head)].exhausted = None;
        }
        for (offset, units) in counted.parts() {
            let Some(region) = self.region_of(counted.head, offset) else { continue };
            let load = &mut self.regions[region as usize].load;
            if comes {
                load.live = load.live.saturating_add(units);
                self.loads.live += u64::from(units);
                if counted.expires != 0 {
                    load.mortal = load.mortal.saturating_add(units);
                    load.ends = load.ends.max(counted.expires);
                }
            } else {
                // A client that wrote another length into its object than it was given may have taken more than it brought.
                let units = units.min(load.live);
                load.live -= units;
                load.stuck = None;
                self.loads.live = self.loads.live.saturating_sub(units.into());
                self.loads.shed = self.loads.shed.saturating_add(units.into());
                if counted.expires != 0 {
                    load.mortal = load.mortal.saturating_sub(units);
                }
            }
        }
    }

    fn weigh_long(&mut self, units: u64, comes: bool) {
        if units <= self.units() {
            return;
        }
        if comes {
            *self.long.entry(units).or_default() += 1;
            return;
        }
        // A client may have written another length: then it is nobody's any more, and which one it was nobody knows.
        let Some(found) = self.long.range(..=units).next_back().or(self.long.first_key_value()) else {
            return;
        };
        let found = *found.0;
        let count = self.long.entry(found).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.long.remove(&found);
        }
    }

    /// Units are handed out, or left empty in front of an object.
    pub(super) fn use_up(&mut self, region: u32, padding: u32, units: u32) {
        let load = &mut self.regions[region as usize].load;
        load.padding += padding;
        load.used += padding + units;
        self.loads.padding += u64::from(padding);
        self.loads.used += u64::from(padding + units);
    }

    /// The region is free, whatever lay there.
    pub(super) fn unload(&mut self, region: u32) {
        let load = std::mem::take(&mut self.regions[region as usize].load);
        self.loads.live = self.loads.live.saturating_sub(load.live.into());
        self.loads.padding = self.loads.padding.saturating_sub(load.padding.into());
        self.loads.used = self.loads.used.saturating_sub(load.used.into());
        self.loads.freed += 1;
    }

    /// Something in the region could not be moved.
    pub(super) fn is_stuck(&mut self, region: u32) {
        self.regions[region as usize].load.stuck = Some(self.loads.freed);
    }

    /// Regions that are a log's, or could be.
    fn all(&self) -> u64 {
        (self.links.len() + self.free.len()) as u64
    }

    /// The most units that may be live: what is left is what the cleaner copies into, the ends of the logs, and enough garbage that
    /// making room costs little.
    pub(super) fn most(&self) -> u64 {
        self.most_for(Expect::Any, 0)
    }

    /// The same for a value of so many units that is written on this condition.
    fn most_for(&self, expect: Expect, units: u64) -> u64 {
        let quarters = match expect {
            Expect::Freeing(_) => 2,
            Expect::Moving(_) => 1,
            _ => 4,
        };
        let all = self.all();
        let kept = SPARE as u64 + self.heads.len() as u64;
        let garbage = (all / 16).max(1);
        let garbage = garbage.max(self.regions_again(units) + garbage / 2) * self.units() * quarters / 4;
        // A store of a few regions is used all the same.
        let most =
            (all.saturating_sub(kept) * self.units()).saturating_sub(garbage).max(all / 2 * self.units());
        // And of what is put there, as much is padding as is now.
        let (used, padding) = (self.loads.used, self.loads.padding);
        if padding == 0 {
            most
        } else {
            (u128::from(most) * u128::from(used - padding) / u128::from(used)) as u64
        }
    }

    /// Regions that the longest of all values is written again to, or one of so many units: of those for which a quarter of all is enough.
    fn regions_again(&self, units: u64) -> u64 {
        let (region, segment) = (self.geometry.region_units(), self.geometry.segment_units());
        // A chunk takes a segment, and there are the last chunk and the object.
        let regions =
            |units: &u64| (units.div_ceil(u64::from(segment) - 1) + 1).div_ceil(u64::from(region / segment));
        let few = |regions: &u64| *regions <= self.all() / 4;
        let longest = self.long.keys().rev().map(regions).find(few);
        longest.into_iter().chain(Some(regions(&units)).filter(few)).max().unwrap_or(0)
    }

    /// Units at the ends of the logs that nothing was put into yet.
    fn at_tails(&self) -> u64 {
        let tail = |head: usize| u64::from(self.tail_room(head));
        (0..self.heads.len()).map(tail).sum()
    }

    /// Units that came to their end, as far as whole regions show.
    fn ended(&self, now: u64) -> u64 {
        let ended = |load: &Load| if load.ends <= now { load.mortal } else { 0 };
        self.regions.iter().map(|region| u64::from(ended(&region.load))).sum()
    }

    /// Units that can be written to.
    fn writable(&self) -> u64 {
        self.free.len() as u64 * self.units() + self.at_tails()
    }

    /// A cleaning of a head's log is over, by which regions of so many units came free while copies took so many others.
    pub(super) fn cleaned(&mut self, head: u8, freed: u64, copied: u64) {
        let is_worth = freed.saturating_sub(copied) >= (self.units() / WORTH).max(1);
        let writable = self.writable();
        self.heads[usize::from(head)].exhausted = (!is_worth).then_some(writable);
    }

    /// What cleaning each region makes room for.
    fn gains(&self, now: u64, counted: bool) -> Vec<u64> {
        let writable = self.writable();
        let is_exhausted = |head: &super::log::Head| {
            head.exhausted.is_some_and(|then| writable < then.saturating_add(self.units()))
        };
        let exhausted: Vec<bool> = self.heads.iter().map(is_exhausted).collect();
        let gain = |(region, state): (u32, &super::log::Region)| {
            let ended = state.load.mortal > 0 && state.load.ends <= now;
            let is_at_hand = state.word.kind == RegionKind::Log
                && !state.retiring
                && state.load.stuck != Some(self.loads.freed)
                && (ended || !exhausted[usize::from(state.word.head)])
                && !self.is_tail(region);
            if is_at_hand { self.units().saturating_sub(state.load.kept(now, counted)) } else { 0 }
        };
        (0..).zip(&self.regions).map(gain).collect()
    }

    /// Whether there could be so many free regions if nothing were garbage.
    fn can_come_to(&self, regions: usize) -> bool {
        self.loads.live + regions as u64 * self.units() <= self.all() * self.units()
    }

    /// Whether cleaning may come to so many free regions.
    fn may_come_to(&self, regions: usize, now: u64, counted: bool) -> bool {
        let gains: u64 = self.gains(now, counted).iter().sum();
        gains > 0 && self.writable() + gains >= regions as u64 * self.units()
    }

    /// The head whose log has the most garbage, if it is as much as this, and those of its regions that have most of it: until
    /// so many units are made room for, and as far as what is to be kept finds room.
    pub(super) fn worth_cleaning(
        &self,
        now: u64,
        counted: bool,
        least: u64,
        goal: u64,
    ) -> Option<(u8, Vec<u32>)> {
        let mut heads = vec![0u64; self.heads.len()];
        let gains = self.gains(now, counted);
        for (state, gain) in self.regions.iter().zip(&gains).filter(|(_, gain)| **gain > 0) {
            heads[usize::from(state.word.head)] += gain;
        }
        let (head, most) = heads.iter().enumerate().max_by_key(|(_, gain)| **gain)?;
        if *most < least.max(1) {
            return None;
        }
        let is_own =
            |(state, gain): &(&super::log::Region, &u64)| **gain > 0 && usize::from(state.word.head) == head;
        let mut own: Vec<(u64, u32)> = self
            .regions
            .iter()
            .zip(&gains)
            .enumerate()
            .filter(|(_, region)| is_own(region))
            .map(|(region, (_, gain))| (*gain, region as u32))
            .collect();
        own.sort_unstable_by(|a, b| b.cmp(a));
        let mut room = u64::from(self.tail_room(head)) + self.free.len() as u64 * self.units();
        let (mut made, mut chosen) = (0, Vec::new());
        for (gain, region) in own {
            let kept = self.units() - gain;
            if made >= goal || !chosen.is_empty() && kept > room {
                break;
            }
            room = room.saturating_sub(kept);
            made += gain;
            chosen.push(region);
        }
        Some((head as u8, chosen))
    }

    pub(super) fn room(&self, keys: u64, counted: bool) -> Room {
        let (units, tails) = (self.units(), self.at_tails());
        let used = (self.links.len() as u64 * units).saturating_sub(tails);
        let live = self.loads.live;
        Room {
            counted,
            keys,
            live: live * UNIT,
            garbage: used.saturating_sub(live) * UNIT,
            free: (self.free.len() as u64 * units + tails) * UNIT,
            left: self.most().saturating_sub(live) * UNIT,
        }
    }
}

impl<M: Medium + Clone> Server<M> {
    /// What a version counts as if it is a value, though it may have expired or not be whole yet.
    pub(super) fn counts_as(&self, head: u8, offset: Option<Offset>) -> Option<Counted> {
        let offset = offset?;
        if let Some(unfinished) = self.places.get(&(head, offset)).and_then(|v| self.unfinished.get(v)) {
            return Some(Counted {
                first: *unfinished.key.first()?,
                head,
                expires: unfinished.expires,
                object: (offset, unfinished.room),
                chunks: unfinished.extents.clone(),
            });
        }
        let (header, first) = self.header(head, offset).filter(|(header, _)| !header.deleted)?;
        let len = header.len();
        let mut chunks = Vec::new();
        if header.chained && len <= self.log.geometry.object_max() {
            let room = self.log.locate(head, offset)?;
            let mut list = vec![0; header.value_len as usize];
            self.medium.read(room.at + len - list.len() as u64, &mut list);
            let list = list.get(crate::format::object::LIST_LEN..).unwrap_or_default();
            let list = list.chunks_exact(crate::format::object::CHUNK_LEN);
            chunks.extend(list.map(|chunk| (Offset(get_u32(chunk, 0)), get_u32(chunk, 4))));
        }
        Some(Counted { first, head, expires: header.expires, object: (offset, len), chunks })
    }

    /// Whether a value with this object and these chunks may take the place of what the key has.
    pub(super) fn admit(
        &self,
        now: u64,
        current: &Current,
        expect: Expect,
        object: u64,
        chunks: &[u32],
    ) -> Result<(), Refusal> {
        if !self.options.clean_by_itself || !self.round.is_whole() {
            return Ok(());
        }
        let parts = chunks.iter().copied().map(u64::from).chain([object]);
        let units: u64 = parts.map(|bytes| bytes.div_ceil(UNIT)).sum();
        let (live, most) = (self.log.loads.live, self.log.most_for(expect, units));
        if live + units <= most {
            return Ok(());
        }
        let entry = current.entry();
        let before = entry.and_then(|e| self.counts_as(e.slot.meta.head(), e.slot.word.new_offset()));
        let before = before.map_or(0, |before| before.units());
        let fits = units <= before || live + units - before <= most + self.log.ended(now);
        if fits { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Whether so many more regions can come free.
    pub(super) fn can_free(&self, regions: u64) -> bool {
        let live = self.log.loads.live.div_ceil(self.log.units()) + self.log.heads.len() as u64;
        !self.round.is_whole() || live.saturating_add(regions).saturating_add(SPARE as u64) <= self.log.all()
    }

    /// What who asked is told of a refusal: where there is no room at hand, whether cleaning will make some. It comes to an end:
    /// what was cleaned is not garbage any more, or is [exhausted](Log::cleaned), and where there is too little, nobody waits.
    pub(super) fn wait_for_room(&mut self, now: u64, refusal: Refusal) -> Refusal {
        let lacks = std::mem::take(&mut self.lacks).max(1);
        if refusal != Refusal::Cleaning {
            return refusal;
        }
        let counted = self.round.is_whole();
        let may = || !counted || self.log.may_come_to(lacks, now, counted);
        let waits = self.cleaning.is_some() || self.options.clean_by_itself && may();
        if !waits || counted && !self.log.can_come_to(lacks) {
            return Refusal::Full;
        }
        if self.options.clean_by_itself {
            self.wants_room = self.wants_room.max(lacks);
        }
        Refusal::Cleaning
    }

    /// What is to be cleaned next, if anything is worth while: at little free room what gives a region at least, and whatever there
    /// is if somebody waits.
    pub(super) fn next_to_clean(&mut self, now: u64) -> Option<(u8, Vec<u32>)> {
        let units = self.log.units();
        let (wanted, low) = (std::mem::take(&mut self.wants_room), self.low());
        let is_soon = now.saturating_sub(self.cleaned_at) < self.options.lease;
        if wanted == 0 && self.log.loads.shed < units && is_soon {
            return None;
        }
        self.cleaned_at = now;
        self.spent += self.log.regions.len() as u64 / 256;
        let goal = (1 + low.max(wanted).saturating_sub(self.log.free.len())) as u64 * units;
        let least = if wanted > 0 { 1 } else { units };
        let next = self.log.worth_cleaning(now, self.round.is_whole(), least, goal);
        if next.is_none() {
            self.log.loads.shed = 0;
        }
        next
    }

    /// Fewer free regions than this are a reason to clean.
    pub(super) fn low(&self) -> usize {
        SPARE + 1 + self.log.regions.len() / 16
    }
}
