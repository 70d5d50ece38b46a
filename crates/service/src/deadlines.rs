//! When which of many things is due, with no clock of its own: who waits sleeps until the first one, and for nothing else.

use std::collections::{BTreeMap, BTreeSet};

/// Deadlines of things that are known by a key, one at most for each. `T` is a time by any clock.
#[derive(Clone, Debug)]
pub struct Deadlines<K, T> {
    of: BTreeMap<K, T>,
    in_order: BTreeSet<(T, K)>,
}

impl<K, T> Default for Deadlines<K, T> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), in_order: BTreeSet::new() }
    }
}

impl<K: Ord + Copy, T: Ord + Copy> Deadlines<K, T> {
    /// Gives it another deadline, or none. Returns whether the first deadline of all is an earlier one now: who sleeps until the
    /// one that was first has to be told.
    pub fn set(&mut self, key: K, at: Option<T>) -> bool {
        let first = self.first();
        let before = match at {
            Some(at) => self.of.insert(key, at),
            None => self.of.remove(&key),
        };
        if let Some(before) = before {
            self.in_order.remove(&(before, key));
        }
        let Some(at) = at else { return false };
        self.in_order.insert((at, key));
        first.is_none_or(|first| at < first)
    }

    /// When the first one is due.
    #[must_use]
    pub fn first(&self) -> Option<T> {
        self.in_order.first().map(|(at, _)| *at)
    }

    /// The first one, if it is due by now. It has no deadline any more.
    pub fn pop_due(&mut self, now: T) -> Option<K> {
        let (at, key) = *self.in_order.first()?;
        (at <= now).then(|| {
            self.in_order.pop_first();
            self.of.remove(&key);
            key
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_the_order_of_its_time_and_once() {
        let mut deadlines = Deadlines::default();
        assert!(deadlines.set('b', Some(20)));
        assert!(!deadlines.set('c', Some(30)));
        assert!(deadlines.set('a', Some(10)));
        assert_eq!(deadlines.pop_due(9), None);
        assert_eq!(deadlines.pop_due(25), Some('a'));
        assert_eq!(deadlines.pop_due(25), Some('b'));
        assert_eq!(deadlines.pop_due(25), None);
        assert_eq!(deadlines.first(), Some(30));
    }

    #[test]
    fn a_deadline_is_moved_and_taken_back() {
        let mut deadlines = Deadlines::default();
        deadlines.set(1, Some(10));
        assert!(!deadlines.set(1, Some(40)), "later than it was");
        assert_eq!((deadlines.first(), deadlines.pop_due(39)), (Some(40), None));
        assert!(deadlines.set(1, Some(5)));
        deadlines.set(2, Some(5));
        assert!(!deadlines.set(1, None));
        assert!(!deadlines.set(3, None), "it had none");
        assert_eq!((deadlines.pop_due(5), deadlines.pop_due(100), deadlines.first()), (Some(2), None, None));
    }
}
