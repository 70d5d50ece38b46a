//! Deadlines of all QPs, kept lazily.
//!
//! A QP has at most one entry, and moving its deadline *later* (which every ACK does) touches nothing: when the
//! entry comes up, the QP says whether anything is really due and when to ask again. So timers cost a busy QP one
//! insertion per timeout, not per packet, and an idle QP nothing.

use std::collections::BTreeSet;

use crate::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BTreeSet<(Instant, u32)>,
}

/// The QP's side of its entry.
#[derive(Debug, Default)]
pub(crate) struct TimerEntry(Option<Instant>);

impl Timers {
    /// Makes sure that slot `slot` is asked at `deadline` or before.
    #[inline]
    pub(crate) fn arm(&mut self, slot: u32, entry: &mut TimerEntry, deadline: Instant) {
        match entry.0 {
            Some(at) if at <= deadline => {}
            old => {
                if let Some(at) = old {
                    self.entries.remove(&(at, slot));
                }
                self.entries.insert((deadline, slot));
                entry.0 = Some(deadline);
            }
        }
    }

    pub(crate) fn disarm(&mut self, slot: u32, entry: &mut TimerEntry) {
        if let Some(at) = entry.0.take() {
            self.entries.remove(&(at, slot));
        }
    }

    /// When to ask next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first().map(|&(at, _)| at)
    }

    /// A slot whose entry has come up; the entry is gone, and the caller clears the QP's side with
    /// [`TimerEntry::fired`].
    pub(crate) fn pop(&mut self, now: Instant) -> Option<u32> {
        let &(at, slot) = self.entries.first()?;
        if at > now {
            return None;
        }
        self.entries.pop_first();
        Some(slot)
    }
}

impl TimerEntry {
    pub(crate) const fn fired(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_deadlines_move_the_entry() {
        let at = Instant::from_nanos;
        let mut timers = Timers::default();
        let mut entry = TimerEntry::default();
        timers.arm(3, &mut entry, at(100));
        timers.arm(3, &mut entry, at(500));
        assert_eq!(timers.next(), Some(at(100)));
        timers.arm(3, &mut entry, at(50));
        assert_eq!(timers.next(), Some(at(50)));
        assert_eq!(timers.pop(at(49)), None);
        assert_eq!(timers.pop(at(50)), Some(3));
        entry.fired();
        assert_eq!(timers.next(), None);
        timers.arm(3, &mut entry, at(70));
        timers.disarm(3, &mut entry);
        assert_eq!(timers.next(), None);
    }
}
