//! Who decides what a crash leaves: a seed, or an enumeration of every possibility.

/// Answers the questions of a crash.
pub trait Choices {
    /// One of `0..options`; `options` is at least 1.
    fn pick(&mut self, options: usize) -> usize;

    /// Of a store that may tear anywhere, and of which this word was lost: how many of its `len` bytes in this word
    /// are there all the same. Most choosers tear between words only.
    fn torn(&mut self, _len: usize) -> usize {
        0
    }

    /// Whether whole units should keep or lose their stores together now and then: all words independently would
    /// hardly ever show a line as the hardware usually leaves it.
    fn together(&mut self) -> bool {
        false
    }
}

/// Choices from a seed: the same seed crashes the same way (SplitMix64, whose stream is fixed for ever here).
#[derive(Clone, Debug)]
pub struct Seeded {
    state: u64,
}

impl Seeded {
    /// Choices of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Choices for Seeded {
    fn pick(&mut self, options: usize) -> usize {
        // The high half times the range, without a division; the bias of 2^-32 does not matter here.
        (((self.next() >> 32) * options as u64) >> 32) as usize
    }

    fn torn(&mut self, len: usize) -> usize {
        if self.pick(4) == 0 { self.pick(len) } else { 0 }
    }

    fn together(&mut self) -> bool {
        self.pick(2) == 0
    }
}

/// Every combination of answers, one after the other: crash, then [`advance`](Self::advance), until it says no.
#[derive(Clone, Debug, Default)]
pub struct EveryWay {
    /// The answers of this round, and how many there were to choose from.
    path: Vec<(usize, usize)>,
    at: usize,
}

impl EveryWay {
    /// The first combination.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on to the next combination; false when there is none left.
    pub fn advance(&mut self) -> bool {
        self.path.truncate(self.at);
        self.at = 0;
        while let Some((answer, options)) = self.path.pop() {
            if answer + 1 < options {
                self.path.push((answer + 1, options));
                return true;
            }
        }
        false
    }
}

impl Choices for EveryWay {
    fn pick(&mut self, options: usize) -> usize {
        if self.at == self.path.len() {
            self.path.push((0, options));
        }
        let (answer, expected) = self.path[self.at];
        assert_eq!(options, expected, "the same answers must lead to the same questions");
        self.at += 1;
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_taken_once() {
        let mut ways = EveryWay::new();
        let mut seen = Vec::new();
        loop {
            let first = ways.pick(3);
            // The second question depends on the first answer.
            let second = if first == 1 { ways.pick(2) } else { 9 };
            seen.push((first, second));
            if !ways.advance() {
                break;
            }
        }
        assert_eq!(seen, [(0, 9), (1, 0), (1, 1), (2, 9)]);
    }

    #[test]
    fn a_seed_is_forever() {
        let mut choices = Seeded::new(42);
        let drawn: Vec<usize> = (0..8).map(|_| choices.pick(1000)).collect();
        assert_eq!(drawn, [741, 159, 278, 344, 38, 868, 218, 800]);
    }
}
