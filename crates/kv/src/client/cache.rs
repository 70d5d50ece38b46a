//! Where keys' values were found. Bounded; the oldest go first.

use std::collections::{BTreeMap, VecDeque};

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

#[derive(Debug)]
pub(super) struct Cache {
    max: usize,
    locations: BTreeMap<Vec<u8>, (u64, Location)>,
    /// In the order of insertion; an entry whose number is not the location's is out of date.
    order: VecDeque<(u64, Vec<u8>)>,
    next: u64,
}

impl Cache {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, locations: BTreeMap::new(), order: VecDeque::new(), next: 0 }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Location> {
        self.locations.get(key).map(|(_, location)| *location)
    }

    pub(super) fn insert(&mut self, key: &[u8], location: Location) {
        if self.max == 0 {
            return;
        }
        if let Some((_, known)) = self.locations.get_mut(key) {
            // A slow GET may come with an older one.
            if known.version <= location.version {
                *known = location;
            }
            return;
        }
        while self.locations.len() >= self.max {
            let Some((number, key)) = self.order.pop_front() else { break };
            if self.locations.get(&key).is_some_and(|(n, _)| *n == number) {
                self.locations.remove(&key);
            }
        }
        self.next += 1;
        self.locations.insert(key.to_vec(), (self.next, location));
        self.order.push_back((self.next, key.to_vec()));
        // Removals leave their numbers behind.
        if self.order.len() > 2 * self.max + 16 {
            let locations = &self.locations;
            self.order.retain(|(number, key)| locations.get(key).is_some_and(|(n, _)| n == number));
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.locations.remove(key);
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
            cache.insert(&n.to_le_bytes(), at(n + 1));
            if n % 3 == 0 {
                cache.remove(&n.to_le_bytes());
            }
        }
        assert!(cache.locations.len() <= 2 && cache.order.len() <= 20);
        assert_eq!(cache.get(&998u64.to_le_bytes()), Some(at(999)));
        cache.insert(&998u64.to_le_bytes(), at(5));
        assert_eq!(
            cache.get(&998u64.to_le_bytes()),
            Some(at(999)),
            "an older version does not replace a newer one"
        );
    }
}
