//! Popularity by Zipf's law, and the two request distributions made of it.
//!
//! The draw is Gray's: ranks 0 and 1 are exact, the others come from a power that approximates the sum. Two quirks of
//! the reference implementation are kept, since figures are compared with it: `eta` goes on using the number of items
//! that the generator was made with, when items are added later, and [`Scrambled`] draws from 10^10 + 1 ranks with the
//! zeta of 10^10.

use crate::fnv::hash64;
use crate::random::Random;

/// The skew of YCSB's distributions: the exponent of the ranks.
pub const THETA: f64 = 0.99;
/// How many ranks [`Scrambled`] draws from, less one.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// zeta(10^10, 0.99), precomputed by YCSB: summing it takes minutes.
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// The sum of 1 / i^theta for i in `from + 1 ..= to`, added to `sum` term by term in that order, as YCSB does, so
/// that what is computed at once and what is computed in steps agree to the last bit.
#[must_use]
pub fn zeta(from: u64, to: u64, theta: f64, sum: f64) -> f64 {
    (from..to).fold(sum, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(theta))
}

/// Ranks from 0, the most popular one, upwards.
#[derive(Clone, Debug)]
pub struct Zipfian {
    /// What it was made for.
    items: u64,
    base: u64,
    theta: f64,
    alpha: f64,
    eta: f64,
    zeta: f64,
    zeta2: f64,
    /// How many items `zeta` sums over.
    counted: u64,
}

impl Zipfian {
    /// `items` items from 0, with YCSB's skew. Takes time proportional to `items`.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self::with_theta(0, items, THETA)
    }

    /// `items` items from `base`, with any skew but 1.
    #[must_use]
    pub fn with_theta(base: u64, items: u64, theta: f64) -> Self {
        Self::with_zeta(base, items, theta, zeta(0, items, theta, 0.0))
    }

    /// The same, where the sum is known.
    #[must_use]
    pub fn with_zeta(base: u64, items: u64, theta: f64, zeta_n: f64) -> Self {
        let zeta2 = zeta(0, 2, theta, 0.0);
        let mut made = Self {
            items,
            base,
            theta,
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
            zeta: zeta_n,
            zeta2,
            counted: items,
        };
        made.set_eta();
        made
    }

    fn set_eta(&mut self) {
        self.eta = (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta)) / (1.0 - self.zeta2 / self.zeta);
    }

    /// The next item.
    pub fn next(&mut self, random: &mut impl Random) -> u64 {
        self.next_of(self.items, random)
    }

    /// The next of the first `items` items. More than before extends the sum by the new terms; fewer leave it as it
    /// is, since one thread may see an older count than another.
    pub fn next_of(&mut self, items: u64, random: &mut impl Random) -> u64 {
        if items > self.counted {
            self.zeta = zeta(self.counted, items, self.theta, self.zeta);
            self.counted = items;
            self.set_eta();
        }
        let u = random.next_f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return self.base;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return self.base + 1;
        }
        self.base + (items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }

    /// The sum in use: 1 over it is the probability of the hottest item.
    #[must_use]
    pub const fn zeta(&self) -> f64 {
        self.zeta
    }
}

/// YCSB's `zipfian` request distribution: ranks of a very long Zipf, scattered over the items by their hash, so that
/// the hot ones are not neighbours and adding items does not change which they are.
#[derive(Clone, Debug)]
pub struct Scrambled {
    ranks: Zipfian,
    base: u64,
    items: u64,
}

impl Scrambled {
    /// Items `first ..= last`.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Self {
        assert!(first <= last, "no items between {first} and {last}");
        let ranks = Zipfian::with_zeta(0, SCRAMBLED_ITEMS + 1, THETA, SCRAMBLED_ZETA);
        Self { ranks, base: first, items: last - first + 1 }
    }

    /// The next item.
    pub fn next(&mut self, random: &mut impl Random) -> u64 {
        self.base + hash64(self.ranks.next(random)) % self.items
    }
}

/// YCSB's `latest` request distribution: the newest item is the hottest. With the newest being number `n`, ranks are
/// drawn from `n` items, so that item 0 is never asked for (a quirk that is kept).
#[derive(Clone, Debug)]
pub struct Latest {
    ranks: Zipfian,
}

impl Latest {
    /// Over items of which `newest` is the last so far.
    #[must_use]
    pub fn new(newest: u64) -> Self {
        Self { ranks: Zipfian::new(newest) }
    }

    /// The next item, now that `newest` is the last one.
    pub fn next(&mut self, newest: u64, random: &mut impl Random) -> u64 {
        newest - self.ranks.next_of(newest, random).min(newest)
    }
}
