//! The failure detector of a member: when others were heard, and when the primary is taken for lost. Pure: time is an
//! argument, counted from any beginning. [`takeover`](super::takeover) decides what follows from it.
//!
//! Nothing here decides who *may* be the primary: promises do ([`crate::log::group`]), so that a wrong suspicion
//! costs a fail-over and never a value. Therefore the rules may be fast, and have to be calm:
//!
//! 1. *Silence.* A primary that was not heard of for `notice` is suspected. Time in which the member itself did not run does
//!    not count: who was deaf knows nothing of others' silence.
//! 2. *Medium.* A primary says how long its own medium has not answered. After [`STALL`] times `notice` it is suspected, however
//!    well it can be heard: nothing can be written there.
//! 3. *Back-off.* A suspicion was wrong if the suspect is heard within [`WINDOW`] times `notice`, and is still the same process.
//!    Each doubles the time of rules 1 and 2, up to [`DOUBTS`] times; each [`CALM`] without one halves it.
//!
//! Silence is measured from beat to beat: members tell each other what they are every [`beat`], and the next moment that
//! matters ([`Watch::deadline`]) is the one at which a member that is there has missed its next beat. So nothing is due while all are
//! heard, and a member that was stopped while it waited finds itself late by all that it slept but two beats, whatever `notice` is.

use std::time::Duration;

use crate::log::Epoch;

/// A medium may be silent for so many times `notice`.
pub const STALL: u32 = 5;
/// For so many times `notice` a suspicion may turn out to be wrong.
pub const WINDOW: u32 = 10;
/// Wrong suspicions that count.
pub const DOUBTS: u32 = 3;
/// After so long without a wrong suspicion one of them is forgotten.
pub const CALM: Duration = Duration::from_secs(60);

/// How often members tell each other what they are, if one that is silent for `notice` is taken for dead.
#[must_use]
pub fn beat(notice: Duration) -> Duration {
    (notice / 8).clamp(Duration::from_millis(20), Duration::from_millis(250))
}

/// Who serves, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leader {
    /// Which of the members.
    pub who: usize,
    /// The epoch under which it has the log.
    pub epoch: Epoch,
    /// A number that its process drew, by which one that was started again is told from the one before.
    pub life: u64,
}

/// Why a primary was suspected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It was not heard of.
    Silence,
    /// Its medium does not answer.
    Medium,
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    who: usize,
    life: u64,
    since: Duration,
    cause: Cause,
}

/// When a member was heard last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    last: Duration,
    /// Not before this member slept, if it did.
    is_fresh: bool,
}

/// What a member knows of when others were heard.
#[derive(Clone, Debug)]
pub struct Watch {
    notice: Duration,
    heard: Vec<Option<Heard>>,
    leader: Option<(Leader, Duration)>,
    suspect: Option<Suspect>,
    doubts: u32,
    /// When the last suspicion was found to be wrong, or one was forgotten.
    doubted: Duration,
}

impl Watch {
    /// Of so many members.
    #[must_use]
    pub fn new(members: usize, notice: Duration) -> Self {
        Self {
            notice,
            heard: vec![None; members],
            leader: None,
            suspect: None,
            doubts: 0,
            doubted: Duration::ZERO,
        }
    }

    /// After so much silence a member is not there (rules 1 and 5).
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.notice * (1 << self.doubts)
    }

    /// After so much silence of its medium a member is of no use (rules 2 and 5).
    #[must_use]
    pub fn stall(&self) -> Duration {
        STALL * self.limit()
    }

    /// The primary that this member follows; none while it is suspected, or when nobody was heard to serve.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        self.leader.map(|(leader, _)| leader)
    }

    /// This member did not run for so long, until now: nobody was silent for that.
    pub fn forgive(&mut self, asleep: Duration, now: Duration) {
        let later = |heard: Duration| (heard + asleep).min(now);
        self.heard.iter_mut().flatten().for_each(|heard| heard.last = later(heard.last));
        if let Some((_, heard)) = &mut self.leader {
            *heard = later(*heard);
        }
    }

    /// What was said until now is old, and is to be said again.
    pub fn forget(&mut self) {
        self.heard.iter_mut().flatten().for_each(|heard| heard.is_fresh = false);
    }

    /// Who leads is not any more, if it has been silent for too long.
    pub fn look(&mut self, now: Duration) {
        if self.doubts > 0 && now.saturating_sub(self.doubted) >= CALM {
            (self.doubts, self.doubted) = (self.doubts - 1, now);
        }
        if self.leader.is_some_and(|(_, heard)| now.saturating_sub(heard) >= self.limit()) {
            self.suspect(Cause::Silence, now);
        }
    }

    /// When a member that is there, or the primary, has missed its next beat: the first of these moments that is still to come.
    #[must_use]
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let (beat, limit) = (beat(self.notice), self.limit());
        let missed = |heard: Duration| {
            let silence = now.saturating_sub(heard);
            // A beat that is late by less than another one is none that was missed.
            let beats = (silence.as_nanos() / beat.as_nanos() + 1).max(2);
            let next = beat.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX)).min(limit);
            (silence < limit).then_some(heard + next)
        };
        let members = self.heard.iter().flatten().map(|heard| heard.last);
        members.chain(self.leader.map(|(_, heard)| heard)).filter_map(missed).min()
    }

    fn suspect(&mut self, cause: Cause, now: Duration) {
        if let Some((Leader { who, life, .. }, _)) = self.leader.take() {
            self.suspect = Some(Suspect { who, life, since: now, cause });
        }
    }

    /// A process of a member was heard.
    pub fn heard(&mut self, at: usize, life: u64, now: Duration) {
        self.heard[at] = Some(Heard { last: now, is_fresh: true });
        self.was_wrong(at, life, Cause::Silence, now);
    }

    fn was_wrong(&mut self, at: usize, life: u64, cause: Cause, now: Duration) {
        let Some(suspect) = self.suspect.filter(|suspect| (suspect.who, suspect.cause) == (at, cause)) else {
            return;
        };
        self.suspect = None;
        if suspect.life == life && now.saturating_sub(suspect.since) < WINDOW * self.limit() {
            (self.doubts, self.doubted) = ((self.doubts + 1).min(DOUBTS), now);
        }
    }

    /// A member says that it serves, and that its medium has not answered for `stalled`. Whether it counts as the primary.
    pub fn leads(&mut self, leader: Leader, stalled: Duration, now: Duration) -> bool {
        if stalled >= self.stall() {
            if self.leader.is_some_and(|(known, _)| known.who == leader.who) {
                self.suspect(Cause::Medium, now);
            }
            return false;
        }
        if self.leader.is_none_or(|(known, _)| known.epoch.counter() <= leader.epoch.counter()) {
            self.was_wrong(leader.who, leader.life, Cause::Medium, now);
            self.leader = Some((leader, now));
        }
        true
    }

    /// The primary was heard in another way: it gave an order.
    pub fn ordered(&mut self, epoch: Epoch, now: Duration) {
        if let Some((_, heard)) = self.leader.as_mut().filter(|(leader, _)| leader.epoch == epoch) {
            *heard = (*heard).max(now);
        }
    }

    /// A member says that it does not serve.
    pub fn leads_not(&mut self, at: usize) {
        self.leader = self.leader.filter(|(leader, _)| leader.who != at);
    }

    /// This member leads, and nobody of an earlier epoch does.
    pub fn takes_over(&mut self, epoch: Epoch) {
        self.leader = self.leader.filter(|(leader, _)| leader.epoch.counter() > epoch.counter());
    }

    /// For how long a member was not heard of.
    #[must_use]
    pub fn silence(&self, at: usize, now: Duration) -> Option<Duration> {
        self.heard[at].map(|heard| now.saturating_sub(heard.last))
    }

    /// Whether what a member said last is older than this member's last sleep.
    #[must_use]
    pub fn is_old(&self, at: usize) -> bool {
        self.heard[at].is_some_and(|heard| !heard.is_fresh)
    }

    /// Whether a member was heard of lately.
    #[must_use]
    pub fn is_there(&self, at: usize, now: Duration) -> bool {
        self.silence(at, now).is_some_and(|silence| silence < self.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: Duration = Duration::from_millis(200);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn leader(life: u64) -> Leader {
        Leader { who: 0, epoch: Epoch::new(3, 7), life }
    }

    fn watching() -> Watch {
        let mut watch = Watch::new(3, NOTICE);
        watch.heard(0, 1, ms(0));
        assert!(watch.leads(leader(1), Duration::ZERO, ms(0)));
        watch
    }

    /// Looks whenever that is due, until then. When the primary was suspected.
    fn look(watch: &mut Watch, from: Duration, until: Duration) -> Option<Duration> {
        let mut now = from;
        while watch.leader().is_some() {
            now = watch.deadline(now).filter(|next| *next <= until)?;
            watch.look(now);
        }
        Some(now)
    }

    #[test]
    fn a_primary_is_suspected_after_its_notice_and_not_for_the_time_in_which_nobody_listened() {
        let mut watch = watching();
        assert_eq!(look(&mut watch, ms(0), ms(1000)), Some(NOTICE));
        assert!(!watch.is_there(0, ms(200)) && watch.is_there(0, ms(199)));
        let mut watch = watching();
        assert_eq!(look(&mut watch, ms(0), ms(100)), None);
        // Half a second that was slept.
        watch.forgive(ms(500), ms(600));
        watch.forget();
        watch.look(ms(600));
        assert!(watch.leader().is_some() && watch.is_there(0, ms(600)) && watch.is_old(0));
        assert_eq!(look(&mut watch, ms(600), ms(1000)), Some(ms(700)), "no more than that is forgiven");
        watch.heard(0, 1, ms(710));
        assert!(!watch.is_old(0));
        // Nobody was heard in the future.
        watch.forgive(ms(500), ms(750));
        assert_eq!(watch.silence(0, ms(800)), Some(ms(50)));
    }

    #[test]
    fn nothing_is_due_while_all_are_heard_and_each_beat_that_is_missed_then_is() {
        let mut watch = watching();
        for now in (0..1000).step_by(25) {
            watch.heard(0, 1, ms(now));
            watch.leads(leader(1), Duration::ZERO, ms(now));
            assert_eq!(watch.deadline(ms(now)), Some(ms(now + 50)));
        }
        watch.heard(1, 1, ms(1000));
        let due = |now| watch.deadline(ms(now));
        assert_eq!([due(1000), due(1024)], [Some(ms(1025)); 2], "the third beat of the primary");
        let mut now = ms(1025);
        let mut all = Vec::new();
        while let Some(next) = watch.deadline(now) {
            assert!(next > now, "{next:?} is due after {now:?}");
            all.push(next.as_millis());
            now = next;
        }
        assert_eq!(all.last(), Some(&1200), "{all:?}: the last that is heard of anybody");
        assert!(all.len() <= 16, "{all:?}");
    }

    #[test]
    fn a_wrong_suspicion_doubles_the_notice_and_calm_halves_it() {
        let (mut watch, mut now) = (watching(), ms(0));
        for doubts in 1..=5_u32 {
            now = look(&mut watch, now, now + ms(4000)).expect("suspected") + ms(10);
            let mut late = watch.clone();
            late.heard(0, 2, now);
            assert_eq!(late.limit(), watch.limit(), "a process that was started again is another one");
            watch.heard(0, 1, now);
            assert_eq!(watch.limit(), NOTICE * (1 << doubts.min(DOUBTS)));
            watch.leads(leader(1), Duration::ZERO, now);
        }
        for second in 1..=400 {
            watch.leads(leader(1), Duration::ZERO, now + ms(1000 * second));
            watch.look(now + ms(1000 * second));
        }
        assert_eq!(watch.limit(), NOTICE);
    }

    #[test]
    fn a_primary_whose_medium_hangs_is_suspected_however_well_it_is_heard() {
        let mut watch = watching();
        for now in (25..2000).step_by(25) {
            let stalled = ms(now).saturating_sub(ms(100));
            watch.heard(0, 1, ms(now));
            let leads = watch.leads(leader(1), stalled, ms(now));
            assert_eq!(leads, stalled < ms(1000), "{stalled:?}");
            watch.look(ms(now));
            assert_eq!(watch.leader().is_some(), leads);
        }
        assert_eq!(watch.limit(), NOTICE, "it was heard, and was suspected all the same");
        // It answers again, and nobody has taken over: the next time it is given more.
        assert!(watch.leads(leader(1), Duration::ZERO, ms(2100)));
        assert_eq!(watch.stall(), 2 * STALL * NOTICE);
    }

    #[test]
    fn who_takes_over_follows_nobody_that_it_has_replaced() {
        let mut watch = watching();
        watch.takes_over(Epoch::new(2, 9));
        assert_eq!(watch.leader(), Some(leader(1)), "that one came later");
        watch.takes_over(Epoch::new(4, 9));
        assert_eq!(watch.leader(), None);
    }
}
