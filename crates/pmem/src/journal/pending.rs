//! The lines that wait for a psync: exactly those that were asked for.

use std::ops::Range;

use super::log::Work;

/// So many ranges are gathered before they are merged.
const MERGE_MIN: usize = 1024;

/// Ranges of lines, in the order in which they were asked for.
#[derive(Debug)]
pub(crate) struct Pending {
    ranges: Vec<Range<u64>>,
    /// Ranges are merged when there are so many.
    merge_at: usize,
    /// More lines than this are everything.
    lines_max: u64,
    everything: bool,
}

impl Pending {
    pub(crate) const fn new(lines_max: u64) -> Self {
        Self { ranges: Vec::new(), merge_at: MERGE_MIN, lines_max, everything: false }
    }

    /// Adds lines, of which there is at least one.
    pub(crate) fn add(&mut self, lines: Range<u64>) {
        if self.everything {
            return;
        }
        match self.ranges.last_mut() {
            // Written from the front to the back, as most things are.
            Some(last) if last.start <= lines.start && lines.start <= last.end => {
                last.end = last.end.max(lines.end);
            }
            _ => self.ranges.push(lines),
        }
        if self.ranges.len() >= self.merge_at {
            merge(&mut self.ranges);
            self.merge_at = MERGE_MIN.max(2 * self.ranges.len());
            // Each has at least one line.
            self.everything = self.ranges.len() as u64 > self.lines_max;
            if self.everything {
                self.ranges = Vec::new();
            }
        }
    }

    /// What there is to do, if anything; then nothing waits any more.
    pub(crate) fn take(&mut self) -> Option<Work> {
        self.merge_at = MERGE_MIN;
        let mut ranges = std::mem::take(&mut self.ranges);
        if std::mem::take(&mut self.everything) {
            return Some(Work::Everything);
        }
        merge(&mut ranges);
        (!ranges.is_empty()).then_some(Work::Lines(ranges))
    }
}

/// Sorts ranges, and makes one of those that touch.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let touch = next.start <= kept.end;
        if touch {
            kept.end = kept.end.max(next.end);
        }
        touch
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ranges_are_neither_more_nor_less_than_what_was_asked() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..300 {
            let mut pending = Pending::new(1 << 20);
            pending.merge_at = 1 + round % 7;
            let mut wanted = vec![false; 256];
            for _ in 0..40 {
                let start = next(250);
                let end = start + 1 + next(5);
                wanted[start as usize..end as usize].fill(true);
                pending.add(start..end);
            }
            let Some(Work::Lines(ranges)) = pending.take() else { panic!("there is something to do") };
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "{ranges:?}");
            let mut covered = vec![false; 256];
            ranges.iter().for_each(|r| covered[r.start as usize..r.end as usize].fill(true));
            assert_eq!(covered, wanted);
            assert_eq!(pending.take(), None, "taken once");
        }
    }

    #[test]
    fn more_than_a_batch_has_room_for_is_everything_and_is_not_remembered() {
        let mut pending = Pending::new(3000);
        // The same lines again and again are few.
        (0..100_000_u64).for_each(|n| pending.add(n % 1000 * 3..n % 1000 * 3 + 1));
        assert!(matches!(pending.take(), Some(Work::Lines(ranges)) if ranges.len() == 1000));
        (0..10_000_u64).for_each(|n| pending.add(n * 3..n * 3 + 1));
        assert_eq!((pending.ranges.capacity(), pending.take()), (0, Some(Work::Everything)));
        pending.add(8..9);
        pending.add(5..6);
        assert_eq!(pending.take(), Some(Work::Lines(vec![5..6, 8..9])), "and then again exactly");
    }
}
