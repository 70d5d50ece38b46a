//! The request distributions that are not Zipf's.

use crate::random::Random;

/// Every item alike.
#[derive(Clone, Debug)]
pub struct Uniform {
    first: u64,
    items: u64,
}

impl Uniform {
    /// Items `first ..= last`.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Self {
        assert!(first <= last, "no items between {first} and {last}");
        Self { first, items: last - first + 1 }
    }

    /// The next item.
    pub fn next(&self, random: &mut impl Random) -> u64 {
        self.first + random.below(self.items)
    }
}

/// A hot set at the start of the items, which takes a given share of the operations; both sets are uniform inside.
#[derive(Clone, Debug)]
pub struct Hotspot {
    first: u64,
    hot: u64,
    cold: u64,
    hot_share: f64,
}

impl Hotspot {
    /// Items `first ..= last`, of which the fraction `hot_items` is hot and takes the fraction `hot_share` of the
    /// operations. A fraction outside 0..=1 counts as 0, as in YCSB. A set without items leaves its share to the
    /// other (YCSB divides by zero there).
    ///
    /// # Panics
    /// If there are no items.
    #[must_use]
    pub fn new(first: u64, last: u64, hot_items: f64, hot_share: f64) -> Self {
        assert!(first <= last, "no items between {first} and {last}");
        let fraction = |f: f64| if (0.0..=1.0).contains(&f) { f } else { 0.0 };
        let items = last - first + 1;
        let hot = (items as f64 * fraction(hot_items)) as u64;
        Self { first, hot, cold: items - hot, hot_share: fraction(hot_share) }
    }

    /// The next item.
    pub fn next(&self, random: &mut impl Random) -> u64 {
        let hot = random.next_f64() < self.hot_share;
        if (hot && self.hot > 0) || self.cold == 0 {
            self.first + random.below(self.hot)
        } else {
            self.first + self.hot + random.below(self.cold)
        }
    }
}

/// Distances from the newest item, exponentially rarer the longer they are.
#[derive(Clone, Debug)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// `percentile` percent of the draws are below `range`.
    #[must_use]
    pub fn new(percentile: f64, range: f64) -> Self {
        Self { gamma: -(1.0 - percentile / 100.0).ln() / range }
    }

    /// The next distance. A draw of exactly 0 gives infinity, as in YCSB; callers draw again where it does not fit.
    pub fn next(&self, random: &mut impl Random) -> f64 {
        -random.next_f64().ln() / self.gamma
    }

    /// The mean distance.
    #[must_use]
    pub fn mean(&self) -> f64 {
        1.0 / self.gamma
    }
}

/// One after the other, from the start again after the last.
#[derive(Clone, Debug)]
pub struct Sequential {
    first: u64,
    items: u64,
    next: u64,
}

impl Sequential {
    /// Items `first ..= last`.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Self {
        assert!(first <= last, "no items between {first} and {last}");
        Self { first, items: last - first + 1, next: 0 }
    }

    /// The next item.
    pub const fn next(&mut self) -> u64 {
        let item = self.first + self.next % self.items;
        self.next = (self.next + 1) % self.items;
        item
    }
}

/// One of several values, by weight: the operation mix.
#[derive(Clone, Debug)]
pub struct Discrete<T> {
    values: Vec<(f64, T)>,
    sum: f64,
}

impl<T: Copy> Discrete<T> {
    /// Weights need not sum to 1; values of weight 0 or less are left out, as YCSB does for operations.
    #[must_use]
    pub fn new(values: &[(f64, T)]) -> Self {
        let values: Vec<_> = values.iter().copied().filter(|(weight, _)| *weight > 0.0).collect();
        let sum = values.iter().map(|(weight, _)| weight).sum();
        Self { values, sum }
    }

    /// The next value; `None` if there is none to draw.
    pub fn next(&self, random: &mut impl Random) -> Option<T> {
        let mut draw = random.next_f64();
        for &(weight, value) in &self.values {
            let share = weight / self.sum;
            if draw < share {
                return Some(value);
            }
            draw -= share;
        }
        // Shares that do not quite sum to one leave the draws at the very top to the last value.
        self.values.last().map(|&(_, value)| value)
    }
}
