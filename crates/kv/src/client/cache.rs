//! Where keys' values were found. Bounded; the oldest go first.
//!
//! Keys are known by their hashes: what is read at a place has the key itself, and a place that turns out to be another key's
//! is out of date like any other. So to remember a place takes no allocation, and to find it compares no keys.

#![expect(clippy::disallowed_types, reason = "its hasher has no random seed, and its order is never seen")]

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::format::Offset;

/// A place that held a key's newest version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Location {
    pub(super) version: u64,
    pub(super) head: u8,
    pub(super) link: u16,
    pub(super) offset: Offset,
    /// Bytes of the object.
    pub(super) len: u64,
}

/// Of what is a hash already.
#[derive(Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only whole words come here, by `write_u64`; anything else is folded in, for completeness.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

pub(super) struct Cache {
    max: usize,
    locations: HashMap<u64, (u64, Location), BuildHasherDefault<Itself>>,
    /// In the order of insertion; an entry whose number is not the location's is out of date.
    order: VecDeque<(u64, u64)>,
    next: u64,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("max", &self.max).field("len", &self.locations.len()).finish()
    }
}

impl Cache {
    pub(super) fn new(max: usize) -> Self {
        Self { max, locations: HashMap::default(), order: VecDeque::new(), next: 0 }
    }

    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<Location> {
        self.locations.get(&hash).map(|(_, location)| *location)
    }

    pub(super) fn insert(&mut self, hash: u64, location: Location) {
        if self.max == 0 {
            return;
        }
        if let Some((_, known)) = self.locations.get_mut(&hash) {
            // A slow GET may come with an older one.
            if known.version <= location.version {
                *known = location;
            }
            return;
        }
        while self.locations.len() >= self.max {
            let Some((number, hash)) = self.order.pop_front() else { break };
            if self.locations.get(&hash).is_some_and(|(n, _)| *n == number) {
                self.locations.remove(&hash);
            }
        }
        self.next += 1;
        self.locations.insert(hash, (self.next, location));
        self.order.push_back((self.next, hash));
        // Removals leave their numbers behind.
        if self.order.len() > 2 * self.max + 16 {
            let locations = &self.locations;
            self.order.retain(|(number, hash)| locations.get(hash).is_some_and(|(n, _)| n == number));
        }
    }

    pub(super) fn remove(&mut self, hash: u64) {
        self.locations.remove(&hash);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Location) -> bool) {
        self.locations.retain(|_, (_, location)| keep(location));
    }

    pub(super) fn clear(&mut self) {
        self.locations.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_and_memory_is_bounded() {
        let mut cache = Cache::new(2);
        let at = |version| Location { version, head: 0, link: 0, offset: Offset(1), len: 1 };
        for n in 0..1000u64 {
            cache.insert(n, at(n + 1));
            if n % 3 == 0 {
                cache.remove(n);
            }
        }
        assert!(cache.locations.len() <= 2 && cache.order.len() <= 20);
        assert_eq!(cache.get(998), Some(at(999)));
        cache.insert(998, at(5));
        assert_eq!(cache.get(998), Some(at(999)), "an older version does not replace a newer one");
    }
}
