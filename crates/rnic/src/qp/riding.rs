//! Acknowledgements that ride along.
//!
//! Where two programs take turns in writing each other's memory, the ACK of a WRITE leaves a few microseconds before the answer
//! does: two system calls, and a peer that is woken twice, the first time for nothing it could act on. So an ACK waits for a
//! WRITE of ours to ride with, behind it in the same train of datagrams, where the habit of this QP says that one will
//! follow at once.
//!
//! It is TCP's delayed acknowledgement in its interactive mode (RFC 1122, 4.2.3.2; Linux' `pingpong`). The specification
//! lets a responder coalesce ACKs (9.7.5.1.2) and asks for them within the local CA ACK delay that it declares (9.7.6.1.3), which is
//! thousands of times as long as one waits here. An ACK that waited in vain left late by the whole delay, so a habit that is
//! broken must be shown twice as often the next time.
//!
//! Only plain WRITEs are answered so, and only with plain WRITEs. Of a SEND, or a WRITE with immediate data, the consumer at the
//! other end has a completion; with the ACK behind it, it would see the answer before the completion of what was
//! answered. The specification allows that, and it happens whenever an ACK is lost; hardware otherwise never does it, and libfabric's
//! `ofi_rxm` (1.17) crashed within minutes.

use std::time::Duration;

use crate::time::Instant;

/// Answers in a row that make a habit, at first and at most.
const ROW_MIN: u8 = 3;
const ROW_MAX: u8 = 192;
/// This many ACKs rode without one that waited in vain: half the row is enough from now on.
const PARDON: u8 = 64;

/// When the ACK that a responder owes leaves.
#[derive(Debug)]
pub(crate) struct Riding {
    /// Until when it waits.
    until: Option<Instant>,
    /// It has waited in vain.
    overdue: bool,
    /// It is a WRITE's, and nothing else came in or left since.
    silent: bool,
    /// Nobody asks for it but the middle of the message that is coming in.
    within: bool,
    /// When it left alone, as long as nothing came in or left since.
    alone: Option<Instant>,
    /// The train that it was to ride with had no room: it leads the next.
    leads: bool,
    /// WRITEs in a row that were answered within the delay.
    row: u8,
    needed: u8,
    ridden: u8,
}

impl Default for Riding {
    fn default() -> Self {
        Self {
            until: None,
            overdue: false,
            silent: false,
            within: false,
            alone: None,
            leads: false,
            row: 0,
            needed: ROW_MIN,
            ridden: 0,
        }
    }
}

impl Riding {
    /// A plain WRITE came to its end, and its sender asks for an ACK; `owed`: one is owed already. Says whether the ACK
    /// waits.
    pub(crate) fn asked(&mut self, now: Instant, delay: Duration, owed: bool) -> bool {
        // The middle of the same WRITE asks for nothing that its end does not: whoever sent all of it has nothing left that our word
        // would let out. Else no WRITE that is long enough to ask on its way would ever be answered in one train.
        let owed = owed && !self.within;
        self.hurry();
        self.silent = true;
        // Whoever sends on without waiting for an answer wants to know how far we are.
        self.until = (!owed && self.row >= self.needed && !delay.is_zero()).then(|| now + delay);
        self.until.is_some()
    }

    /// The middle of a message asks for an ACK, which leaves as soon as it can; `owed`: one is owed already.
    pub(crate) const fn asked_within(&mut self, owed: bool) {
        let within = !owed || self.within;
        self.hurry();
        self.within = within;
    }

    /// The ACK leaves as soon as it can, or has left, and says nothing of habits.
    pub(crate) const fn hurry(&mut self) {
        (self.until, self.alone) = (None, None);
        (self.overdue, self.silent, self.within, self.leads) = (false, false, false, false);
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

    /// When an ACK that waits leaves alone.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the ACK that is owed waits: until it has [expired](Self::expire). An answer that comes when the delay is over, and
    /// before anybody has seen that it is, comes in time: the consumer was held up by the same as we.
    pub(crate) const fn waits(&self) -> bool {
        !self.leads && self.until.is_some()
    }

    /// The ACK leaves before any request; says whether it has waited in vain.
    pub(crate) fn left_alone(&mut self, now: Instant) -> bool {
        let (overdue, silent) = (self.overdue, self.silent);
        self.hurry();
        if silent && overdue {
            (self.row, self.needed, self.ridden) = (0, self.needed.saturating_mul(2).min(ROW_MAX), 0);
            return true;
        }
        if silent {
            (self.silent, self.alone) = (true, Some(now));
        }
        false
    }

    /// What was received last was a plain WRITE.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Requests leave that have not left before. `answers`: plain WRITEs; `riding`: the ACK that is owed leaves behind them.
    pub(crate) fn request_left(&mut self, now: Instant, delay: Duration, answers: bool, riding: bool) {
        let (alone, silent) = (self.alone, self.silent);
        self.hurry();
        if !silent {
            return;
        }
        if riding {
            self.ridden += 1;
            if self.ridden == PARDON {
                (self.needed, self.ridden) = ((self.needed / 2).max(ROW_MIN), 0);
            }
        }
        let in_time = answers && (riding || alone.is_some_and(|at| now.since(at) <= delay));
        self.row = if in_time { self.row.saturating_add(1).min(self.needed) } else { 0 };
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
    fn turn(riding: &mut Riding, micros: u64, later: u64) -> bool {
        riding.asked(at(micros), DELAY, false);
        let waits = riding.waits();
        riding.expire(at(micros + later));
        let rides = riding.waits();
        if !rides {
            riding.left_alone(at(micros + if waits { 20 } else { 0 }));
        }
        riding.request_left(at(micros + later), DELAY, true, rides);
        waits
    }

    #[test]
    fn answers_in_a_row_make_a_habit() {
        let mut riding = Riding::default();
        let waited: Vec<bool> = (0..5).map(|n| turn(&mut riding, n * 100, 5)).collect();
        assert_eq!(waited, [false, false, false, true, true]);
    }

    #[test]
    fn late_answers_make_none() {
        let mut riding = Riding::default();
        for n in 0..20 {
            assert!(!turn(&mut riding, n * 100, 21));
        }
        // In time now and then is not in a row.
        for n in 0..30 {
            assert!(!turn(&mut riding, n * 100, if n % 3 == 0 { 21 } else { 1 }));
        }
    }

    #[test]
    fn other_answers_than_writes_make_none() {
        let mut riding = Riding::default();
        for n in 0..20 {
            riding.asked(at(n * 100), DELAY, false);
            assert!(!riding.waits());
            riding.left_alone(at(n * 100));
            riding.request_left(at(n * 100 + 5), DELAY, false, false);
        }
    }

    #[test]
    fn a_habit_that_is_broken_takes_twice_as_long_to_come_back() {
        let mut riding = Riding::default();
        for (row, broken) in [(3, 0), (6, 1), (12, 2), (24, 3)] {
            let start = broken * 10_000;
            for n in 0..row {
                assert!(!turn(&mut riding, start + n * 100, 5), "{broken}: {n} of {row}");
            }
            assert!(turn(&mut riding, start + 9_000, 50), "waits in vain");
        }
        for n in 0..48 {
            assert!(!turn(&mut riding, 90_000 + n * 100, 5));
        }
        // And what rode in a row pardons.
        for n in 0..u64::from(PARDON) {
            assert!(turn(&mut riding, 100_000 + n * 100, 5));
        }
        assert_eq!(riding.needed, 24);
    }

    #[test]
    fn a_second_message_lets_the_ack_go() {
        let mut riding = Riding::default();
        for n in 0..3 {
            turn(&mut riding, n * 100, 5);
        }
        riding.asked(at(1000), DELAY, false);
        assert_eq!(riding.deadline(), Some(at(1020)));
        riding.asked(at(1001), DELAY, true);
        assert!(!riding.waits());
    }

    #[test]
    fn the_middle_of_a_message_does_not_hurry_its_end() {
        let mut riding = Riding::default();
        for n in 0..3 {
            turn(&mut riding, n * 100, 5);
        }
        riding.asked_within(false);
        assert!(!riding.waits(), "whoever is in the middle is told at once");
        riding.asked_within(true);
        riding.asked(at(1000), DELAY, true);
        assert_eq!(riding.deadline(), Some(at(1020)));
        // The middle of a second message says that its sender did not wait for an answer, and so does its end.
        riding.asked_within(true);
        assert!(!riding.waits());
        riding.asked(at(1001), DELAY, true);
        assert!(!riding.waits());
    }

    #[test]
    fn without_a_delay_nothing_waits() {
        let mut riding = Riding::default();
        for n in 0..10 {
            riding.asked(at(n), Duration::ZERO, false);
            assert!(!riding.waits());
            riding.left_alone(at(n));
            riding.request_left(at(n), Duration::ZERO, true, false);
        }
    }
}
