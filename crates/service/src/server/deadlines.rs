//! What is due when. Pure: time is an argument.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Keys with the time at which each is due. A key may be in it more than once.
///
/// Whoever puts a deadline off, as something happens again and again, need not come here each time: what comes out too early
/// is put in again with the later time.
#[derive(Clone, Debug)]
pub struct Deadlines<K>(BinaryHeap<Reverse<(Instant, K)>>);

impl<K: Ord> Default for Deadlines<K> {
    fn default() -> Self {
        Self(BinaryHeap::new())
    }
}

impl<K: Ord> Deadlines<K> {
    /// Adds a key that is due at that time.
    pub fn add(&mut self, at: Instant, key: K) {
        self.0.push(Reverse((at, key)));
    }

    /// When the next one is due.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one that is due, the earliest first.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse((_, key))| key)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is ever due.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_due_comes_out_in_order_and_nothing_before_its_time() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut all = Deadlines::default();
        assert_eq!((all.next(), all.pop_due(start)), (None, None));
        for (at, key) in [(5, 'b'), (3, 'a'), (9, 'c'), (3, 'd')] {
            all.add(start + ms(at), key);
        }
        assert_eq!(all.next(), Some(start + ms(3)));
        assert_eq!(all.pop_due(start + ms(2)), None);
        let mut out = Vec::new();
        while let Some(key) = all.pop_due(start + ms(5)) {
            out.push(key);
        }
        assert_eq!(out, ['a', 'd', 'b']);
        assert_eq!((all.len(), all.next()), (1, Some(start + ms(9))));
    }
}
