//! Who spins offers its core to others that want it.
//!
//! Several clients, each with a thread that spins for its answers, may share two cores with the server that they wait for. Whoever
//! could answer then waits for the end of a spinner's time slice, 3 ms on Linux, and so does each of the others: 4 clients of a
//! store had a 99th percentile of 100 times their median. `sched_yield` between two looks lets them run at once. It is of use only
//! among threads that soon stop: one that computes keeps the core for its whole slice, while somebody who sleeps gets it back
//! the moment that his packet comes. So how long an offer takes decides whether there is another one.

use std::time::Duration;

use remanence_rnic::Instant;

use super::Pace;

/// Between two looks of a spinner that does nothing else: the scheduler gave its core to somebody else. A look takes 1 us.
const PREEMPTED: Duration = Duration::from_micros(100);

/// Between two looks with an offer: somebody took it.
const TAKEN: Duration = Duration::from_micros(4);

/// Somebody took it, and kept the core until the scheduler intervened.
const KEPT: Duration = Duration::from_millis(1);

/// The core is offered for so long after the last sign that others want it.
const OFFERED: Duration = Duration::from_millis(20);

/// It is not offered for so long after somebody kept it, at first and at most.
const WITHHELD_MIN: Duration = Duration::from_millis(100);
const WITHHELD_MAX: Duration = Duration::from_millis(3200);

/// So many offers that were taken, and soon given back, make up for one that was kept; so many for all before it, too.
const EXCUSED: u32 = 32;
const PARDON: u32 = 1024;

/// See the head of the file. Lives under the device lock.
#[derive(Debug)]
pub(super) struct CoreSharing {
    pace: Pace,
    /// The last look of a spinner that goes on, and whether it offered its core after it.
    looked: Option<(Instant, bool)>,
    /// Offered until, and not before.
    until: Instant,
    withheld: Instant,
    /// How long it is withheld the next time.
    penalty: Duration,
    taken: u32,
}

impl CoreSharing {
    pub(super) const fn new(pace: Pace) -> Self {
        Self {
            pace,
            looked: None,
            until: Instant::ZERO,
            withheld: Instant::ZERO,
            penalty: WITHHELD_MIN,
            taken: 0,
        }
    }

    /// A spinner looked at `now`. What it found does not matter: who was off its core for long finds something.
    pub(super) fn looks(&mut self, now: Instant) {
        if let Some((last, offered)) = self.looked.take() {
            self.learn(now, now.since(last), offered);
        }
    }

    /// It found nothing, and will look again: whether it offers its core before it does.
    pub(super) fn offers(&mut self, now: Instant) -> bool {
        let offers = now < self.until;
        self.looked = Some((now, offers));
        offers
    }

    fn learn(&mut self, now: Instant, gap: Duration, offered: bool) {
        if offered && gap >= KEPT {
            if std::mem::take(&mut self.taken) < EXCUSED {
                self.until = Instant::ZERO;
                self.withheld = now + self.penalty;
                self.penalty = (self.penalty * 2).min(WITHHELD_MAX);
            }
        } else if offered && gap >= self.pace.of(TAKEN) {
            self.until = now + OFFERED;
            self.taken = self.taken.saturating_add(1);
            if self.taken >= PARDON {
                self.penalty = WITHHELD_MIN;
            }
        } else if gap >= self.pace.of(PREEMPTED) && now >= self.withheld {
            self.until = now + OFFERED;
        }
    }

    /// It sleeps: how long is not the scheduler's doing alone.
    pub(super) const fn sleeps(&mut self) {
        self.looked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spins for `time`, where a look takes 1 us, an offer `offer`, and the scheduler takes the core away for `slice` every 3 ms that
    /// it is not offered; counts looks with an offer and without.
    fn spin(
        sharing: &mut CoreSharing,
        now: &mut Instant,
        time: Duration,
        offer: u64,
        slice: u64,
    ) -> (u32, u32) {
        let (mut with, mut without) = (0, 0);
        let (end, mut run) = (*now + time, 0);
        while *now < end {
            sharing.looks(*now);
            let took = if sharing.offers(*now) {
                with += 1;
                run = 0;
                1 + offer
            } else {
                without += 1;
                run += 1;
                if run % 3000 == 0 { 1 + slice } else { 1 }
            };
            *now = *now + Duration::from_micros(took);
        }
        (with, without)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_core_that_nobody_wants_is_not_offered() {
        let (mut sharing, mut now) = (CoreSharing::new(Pace::ONE), Instant::from_nanos(1_000_000));
        assert_eq!(spin(&mut sharing, &mut now, SECOND, 0, 0).0, 0);
        // What was wanted once is tried for a moment.
        sharing.looked = Some((now, false));
        now = now + PREEMPTED;
        assert!((19_000..22_000).contains(&spin(&mut sharing, &mut now, SECOND, 0, 0).0));
    }

    #[test]
    fn among_spinners_it_is_offered_after_every_look() {
        let (mut sharing, mut now) = (CoreSharing::new(Pace::ONE), Instant::from_nanos(1_000_000));
        let (with, without) = spin(&mut sharing, &mut now, SECOND, 10, 3000);
        assert_eq!(without, 3000, "until the first slice is lost");
        assert!(with > 80_000, "{with}");
    }

    #[test]
    fn beside_who_computes_it_is_tried_ever_more_rarely() {
        let (mut sharing, mut now) = (CoreSharing::new(Pace::ONE), Instant::from_nanos(1_000_000));
        let mut offers = |time: Duration| spin(&mut sharing, &mut now, time, 3000, 3000).0;
        assert!((3..6).contains(&offers(SECOND)));
        offers(SECOND * 10);
        assert!((2..5).contains(&offers(SECOND * 10)));
    }

    #[test]
    fn one_that_is_kept_among_many_is_excused() {
        let (mut sharing, mut now) = (CoreSharing::new(Pace::ONE), Instant::from_nanos(1_000_000));
        for _ in 0..10 {
            assert!(spin(&mut sharing, &mut now, SECOND / 10, 10, 3000).0 > 5_000);
            sharing.looks(now);
            assert!(sharing.offers(now));
            now = now + KEPT;
        }
    }

    #[test]
    fn who_sleeps_between_two_looks_learns_nothing_from_it() {
        let (mut sharing, mut now) = (CoreSharing::new(Pace::ONE), Instant::from_nanos(1_000_000));
        for _ in 0..100 {
            sharing.looks(now);
            assert!(!sharing.offers(now));
            sharing.sleeps();
            now = now + PREEMPTED * 2;
        }
    }
}
