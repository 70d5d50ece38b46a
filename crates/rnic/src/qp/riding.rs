//! Acknowledgements that ride along.
//!
//! Where two programs take turns, the ACK of a message leaves a few microseconds before the answer does: two system calls, and a
//! peer that is woken twice, the first time for nothing it could act on. So an ACK waits for a request of ours to ride with, in the same
//! train of datagrams, where the habit of this QP says that one will follow at once.
//!
//! It is TCP's delayed acknowledgement in its interactive mode (RFC 1122, 4.2.3.2; Linux' `pingpong`). The specification
//! lets a responder coalesce ACKs (9.7.5.1.2) and asks for them within the local CA ACK delay that it declares (9.7.6.1.3), which is
//! thousands of times as long as one waits here.
//!
//! Habits are learned for each kind of message apart: a consumer answers a SEND, and hardly ever a WRITE that it cannot
//! see, whose sender would wait in vain. An ACK that waited in vain left late by the whole delay, so a habit that is
//! broken must be shown twice as often the next time.

use std::time::Duration;

use crate::time::Instant;

/// What the message that is acknowledged was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A SEND, or a WRITE with immediate data: the consumer has a completion.
    Told,
    /// A WRITE: the consumer has to look at its memory.
    Silent,
}

/// Answers in a row that make a habit, at first and at most.
const ROW_MIN: u8 = 3;
const ROW_MAX: u8 = 192;
/// This many ACKs rode without one that waited in vain: half the row is enough from now on.
const PARDON: u8 = 64;

#[derive(Clone, Copy, Debug)]
struct Habit {
    /// Messages in a row that were answered within the delay.
    row: u8,
    needed: u8,
    ridden: u8,
}

impl Default for Habit {
    fn default() -> Self {
        Self { row: 0, needed: ROW_MIN, ridden: 0 }
    }
}

/// When the ACK that a responder owes leaves.
#[derive(Debug, Default)]
pub(crate) struct Riding {
    /// Until when it waits.
    until: Option<Instant>,
    /// It has waited in vain.
    overdue: bool,
    /// What is owed an ACK, or was last.
    kind: Option<Kind>,
    /// The last ACK left alone, and nothing came in or left since.
    alone: Option<Instant>,
    /// The train that it was to ride with had no room: it leads the next.
    leads: bool,
    habits: [Habit; 2],
}

impl Riding {
    /// A message came to its end, and its sender asks for an ACK; `owed`: another one does already. Says whether the ACK waits.
    pub(crate) fn asked(&mut self, now: Instant, delay: Duration, kind: Kind, owed: bool) -> bool {
        let habit = &self.habits[kind as usize];
        // Whoever sends on without waiting for an answer wants to know how far we are.
        self.until = (!owed && habit.row >= habit.needed && !delay.is_zero()).then(|| now + delay);
        self.kind = Some(kind);
        self.alone = None;
        self.overdue = false;
        self.until.is_some()
    }

    /// Time has passed; says whether that was the end of the wait.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if self.until.is_none_or(|until| now < until) {
            return false;
        }
        self.until = None;
        self.overdue = true;
        true
    }

    /// There was no room for it behind the requests.
    pub(crate) const fn lead(&mut self) {
        self.leads = true;
    }

    /// Whether the ACK leaves before the requests do.
    pub(crate) const fn leads(&self) -> bool {
        self.leads
    }

    /// The ACK leaves as soon as it can, or has left, and says nothing of habits.
    pub(crate) const fn hurry(&mut self) {
        self.until = None;
        self.alone = None;
        self.kind = None;
        (self.overdue, self.leads) = (false, false);
    }

    /// When an ACK that waits leaves alone.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the ACK that is owed waits.
    pub(crate) fn waits(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// The ACK leaves, with nothing else; says whether it has waited in vain.
    pub(crate) fn left_alone(&mut self, now: Instant) -> bool {
        self.expire(now);
        let Some(kind) = self.kind.take() else { return false };
        if std::mem::take(&mut self.overdue) {
            let habit = &mut self.habits[kind as usize];
            *habit = Habit { row: 0, needed: habit.needed.saturating_mul(2).min(ROW_MAX), ridden: 0 };
            return true;
        }
        self.alone = Some(now);
        self.kind = Some(kind);
        false
    }

    /// A request leaves that has not left before; `acknowledging`: the ACK that is owed leaves with it.
    pub(crate) fn request_left(&mut self, now: Instant, delay: Duration, acknowledging: bool) {
        let alone = self.alone.take();
        (self.until, self.overdue) = (None, false);
        let Some(kind) = self.kind.take() else { return };
        let habit = &mut self.habits[kind as usize];
        if acknowledging {
            habit.ridden += 1;
            if habit.ridden == PARDON {
                *habit = Habit { needed: (habit.needed / 2).max(ROW_MIN), ridden: 0, ..*habit };
            }
        }
        let in_time = acknowledging || alone.is_some_and(|at| now.since(at) <= delay);
        habit.row = if in_time { habit.row.saturating_add(1).min(habit.needed) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_micros(20);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// A message at `micros`, and an answer after `later`; returns whether its ACK waited.
    fn turn(riding: &mut Riding, kind: Kind, micros: u64, later: u64) -> bool {
        riding.asked(at(micros), DELAY, kind, false);
        let waits = riding.waits(at(micros));
        let rides = riding.waits(at(micros + later));
        if !rides {
            riding.left_alone(at(micros + if waits { 20 } else { 0 }));
        }
        riding.request_left(at(micros + later), DELAY, rides);
        waits
    }

    #[test]
    fn answers_in_a_row_make_a_habit_of_their_kind() {
        let mut riding = Riding::default();
        let waited: Vec<bool> = (0..5).map(|n| turn(&mut riding, Kind::Told, n * 100, 5)).collect();
        assert_eq!(waited, [false, false, false, true, true]);
        assert!(!turn(&mut riding, Kind::Silent, 1000, 5), "nobody ever answered a WRITE");
    }

    #[test]
    fn late_answers_make_none() {
        let mut riding = Riding::default();
        for n in 0..20 {
            assert!(!turn(&mut riding, Kind::Told, n * 100, 21));
        }
        // In time now and then is not in a row.
        for n in 0..30 {
            assert!(!turn(&mut riding, Kind::Told, n * 100, if n % 3 == 0 { 21 } else { 1 }));
        }
    }

    #[test]
    fn a_habit_that_is_broken_takes_twice_as_long_to_come_back() {
        let mut riding = Riding::default();
        for (row, broken) in [(3, 0), (6, 1), (12, 2), (24, 3)] {
            let start = broken * 10_000;
            for n in 0..row {
                assert!(!turn(&mut riding, Kind::Told, start + n * 100, 5), "{broken}: {n} of {row}");
            }
            assert!(turn(&mut riding, Kind::Told, start + 9_000, 50), "waits in vain");
        }
        for n in 0..48 {
            assert!(!turn(&mut riding, Kind::Told, 90_000 + n * 100, 5));
        }
        // And what rode in a row pardons.
        for n in 0..u64::from(PARDON) {
            assert!(turn(&mut riding, Kind::Told, 100_000 + n * 100, 5));
        }
        assert_eq!(riding.habits[0].needed, 24);
    }

    #[test]
    fn a_second_message_lets_the_ack_go() {
        let mut riding = Riding::default();
        for n in 0..3 {
            turn(&mut riding, Kind::Told, n * 100, 5);
        }
        riding.asked(at(1000), DELAY, Kind::Told, false);
        assert_eq!(riding.deadline(), Some(at(1020)));
        riding.asked(at(1001), DELAY, Kind::Told, true);
        assert!(!riding.waits(at(1001)));
    }

    #[test]
    fn without_a_delay_nothing_waits() {
        let mut riding = Riding::default();
        for n in 0..10 {
            riding.asked(at(n), Duration::ZERO, Kind::Told, false);
            assert!(!riding.waits(at(n)));
            riding.left_alone(at(n));
            riding.request_left(at(n), Duration::ZERO, false);
        }
    }
}
