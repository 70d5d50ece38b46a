//! How much of the logs is live, and what cleaning can make of the rest.
//!
//! What is live is what the newest versions of keys take, tombstones excepted: a region knows how much of it that is, and the log how
//! much of all of it. Both are kept at each change of an entry, beside the counts of keys and by the same [rule](super::round): the
//! first round after the store was opened finds them, and from its end on they are exact. Until then a region is taken to be as full
//! as recovery found it.
//!
//! Nobody can take so much that nothing is left to clean with. A value that makes the live part grow beyond [`Log::most`] is refused
//! at once; one that is no longer than its key's last one never is, as there is garbage enough for it to be made room for. What is
//! written [so that something can be removed](Expect::Freeing) may have half of what is kept for garbage, and what only
//! [moves](Expect::Moving) three quarters: neither can keep the other from its end.

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
    /// Units that nothing was put into, as no object spans two segments. Cleaning would leave as many somewhere else.
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
}

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
    fn units(&self) -> u64 {
        u64::from(self.geometry.region_units()) - 1
    }

    /// A version is the one that its key has, or is not any more.
    pub(super) fn weigh(&mut self, counted: &Counted, comes: bool) {
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
        self.most_for(Expect::Any)
    }

    /// The same for what is written on this condition.
    fn most_for(&self, expect: Expect) -> u64 {
        let quarters = match expect {
            Expect::Freeing(_) => 2,
            Expect::Moving(_) => 1,
            _ => 4,
        };
        let all = self.all();
        let kept = SPARE as u64 + self.heads.len() as u64;
        let garbage = (all / 16).max(1) * self.units() * quarters / 4;
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

    /// What cleaning a region makes room for.
    fn gain(&self, region: u32, now: u64, counted: bool) -> u64 {
        let state = &self.regions[region as usize];
        let is_at_hand = state.word.kind == RegionKind::Log
            && !state.retiring
            && state.load.stuck != Some(self.loads.freed)
            && !self.is_tail(region);
        let kept = u64::from(state.load.worth(now, counted)) + u64::from(state.load.padding);
        if is_at_hand { self.units().saturating_sub(kept) } else { 0 }
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
        let gains: Vec<u64> =
            (0..self.regions.len() as u32).map(|region| self.gain(region, now, counted)).collect();
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
            let kept = u64::from(self.regions[region as usize].load.worth(now, counted));
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
        let (live, most) = (self.log.loads.live, self.log.most_for(expect));
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
    /// what was cleaned is not garbage any more, and where there is none, nobody waits.
    pub(super) fn wait_for_room(&mut self, now: u64, refusal: Refusal) -> Refusal {
        if refusal != Refusal::Cleaning {
            return refusal;
        }
        self.wants_room = self.options.clean_by_itself;
        let counted = self.round.is_whole();
        let may = || !counted || self.log.worth_cleaning(now, counted, 1, 1).is_some();
        if self.cleaning.is_some() || self.options.clean_by_itself && may() {
            Refusal::Cleaning
        } else {
            Refusal::Full
        }
    }

    /// What is to be cleaned next, if anything is worth while: at little free room what gives a region at least, and whatever there
    /// is if somebody waits.
    pub(super) fn next_to_clean(&mut self, now: u64) -> Option<(u8, Vec<u32>)> {
        let units = self.log.units();
        let (wanted, low) = (self.wants_room, self.low());
        if !wanted && self.log.loads.shed < units && now.saturating_sub(self.cleaned_at) < self.options.lease
        {
            return None;
        }
        self.wants_room = false;
        self.cleaned_at = now;
        self.spent += self.log.regions.len() as u64 / 256;
        let goal = (1 + low.saturating_sub(self.log.free.len())) as u64 * units;
        let least = if wanted { 1 } else { units };
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
