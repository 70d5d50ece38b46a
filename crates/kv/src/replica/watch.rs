//! When a member takes the primary for lost, and when it is its turn to take over. Pure: time is an argument, counted from
//! any beginning.
//!
//! Nothing here decides who *may* be the primary: promises do ([`remanence_remotelog::group`]), so that a wrong suspicion
//! costs a fail-over and never a value. Therefore the rules may be fast, and have to be calm:
//!
//! 1. *Silence.* A primary that was not heard of for `notice` is suspected. Time in which the member itself did not run does
//!    not count: who was deaf knows nothing of others' silence.
//! 2. *Medium.* A primary says how long its own medium has not answered. After [`STALL`] times `notice` it is suspected, however
//!    well it can be heard: nothing can be written there.
//! 3. *Agreement.* A member takes over only when as many members as it needs follow nobody either. One that alone does not
//!    hear the primary changes nothing.
//! 4. *Turn.* The first of those that are fit goes first, the next half a `notice` later, so that they do not hold each other up.
//! 5. *Back-off.* A suspicion was wrong if the suspect is heard within [`WINDOW`] times `notice`, and is still the same process.
//!    Each doubles the time of rules 1 and 2, up to [`DOUBTS`] times; each [`CALM`] without one halves it.

use std::time::Duration;

use remanence_remotelog::Epoch;

/// A medium may be silent for so many times `notice`.
pub const STALL: u32 = 5;
/// For so many times `notice` a suspicion may turn out to be wrong.
pub const WINDOW: u32 = 10;
/// Wrong suspicions that count.
pub const DOUBTS: u32 = 3;
/// After so long without a wrong suspicion one of them is forgotten.
pub const CALM: Duration = Duration::from_secs(60);

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

/// What a member knows of when others were heard.
#[derive(Clone, Debug)]
pub struct Watch {
    notice: Duration,
    /// How often this member looks, at least.
    tick: Duration,
    heard: Vec<Option<Duration>>,
    leader: Option<(Leader, Duration)>,
    suspect: Option<Suspect>,
    doubts: u32,
    /// When the last suspicion was found to be wrong, or one was forgotten.
    doubted: Duration,
    looked: Duration,
}

impl Watch {
    /// Of so many members, for one that looks every `tick`.
    #[must_use]
    pub fn new(members: usize, notice: Duration, tick: Duration) -> Self {
        Self {
            notice,
            tick,
            heard: vec![None; members],
            leader: None,
            suspect: None,
            doubts: 0,
            doubted: Duration::ZERO,
            looked: Duration::ZERO,
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

    /// This member looks: who leads is not any more, if it has been silent for too long. Returns whether that has been found
    /// now.
    pub fn look(&mut self, now: Duration) -> bool {
        let asleep = now.saturating_sub(self.looked).saturating_sub(2 * self.tick);
        self.looked = now;
        if !asleep.is_zero() {
            let later = |heard: &mut Duration| *heard = (*heard + asleep).min(now);
            self.heard.iter_mut().flatten().for_each(later);
            self.leader.iter_mut().for_each(|(_, heard)| later(heard));
        }
        if self.doubts > 0 && now.saturating_sub(self.doubted) >= CALM {
            (self.doubts, self.doubted) = (self.doubts - 1, now);
        }
        match self.leader {
            Some((_, heard)) if now.saturating_sub(heard) >= self.limit() => {
                self.suspect(Cause::Silence, now);
                true
            }
            _ => false,
        }
    }

    fn suspect(&mut self, cause: Cause, now: Duration) {
        if let Some((Leader { who, life, .. }, _)) = self.leader.take() {
            self.suspect = Some(Suspect { who, life, since: now, cause });
        }
    }

    /// A process of a member was heard.
    pub fn heard(&mut self, at: usize, life: u64, now: Duration) {
        self.heard[at] = Some(now);
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

    /// Nobody else leads: this member does.
    pub fn takes_over(&mut self) {
        self.leader = None;
    }

    /// For how long a member was not heard of.
    #[must_use]
    pub fn silence(&self, at: usize, now: Duration) -> Option<Duration> {
        self.heard[at].map(|heard| now.saturating_sub(heard))
    }

    /// Whether a member was heard of lately.
    #[must_use]
    pub fn is_there(&self, at: usize, now: Duration) -> bool {
        self.silence(at, now).is_some_and(|silence| silence < self.limit())
    }
}

/// What another member says of itself that matters for who takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Other {
    /// It is there, and its medium answers.
    pub there: bool,
    /// It follows somebody who serves, or serves.
    pub follows: bool,
    /// It is taking over.
    pub takes_over: bool,
    /// It could: it has an image.
    pub is_fit: bool,
    /// It belongs to a store already.
    pub belongs: bool,
}

/// What this member is, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// Which of the members.
    pub who: usize,
    /// It has never been a member of a store.
    pub is_new: bool,
    /// Its image is one.
    pub has_image: bool,
    /// How many members acknowledge.
    pub acks: usize,
}

/// Whether a member may try to take over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chance {
    /// It may try now.
    Now,
    /// Others are to try first, or do not agree that there is no primary.
    Later,
    /// It is new, and others are not: it will be rebuilt.
    IsNew,
    /// All are new, and not all are there.
    NotAll,
    /// It has no image: it will be rebuilt.
    NoImage,
    /// Too few are there.
    TooFew {
        /// This one included.
        there: usize,
        /// As many are needed.
        needed: usize,
    },
}

/// Whether this member may try to take over, when nobody has served for `waited`; `others` has its own place too.
#[must_use]
pub fn chance(own: &Own, others: &[Other], waited: Duration, notice: Duration) -> Chance {
    let members = others.len();
    let there: Vec<(usize, &Other)> =
        others.iter().enumerate().filter(|(at, other)| *at != own.who && other.there).collect();
    let count = there.len() + 1;
    if own.is_new && there.iter().any(|(_, other)| other.belongs) {
        return Chance::IsNew;
    }
    if own.is_new && count < members {
        return Chance::NotAll;
    }
    if !own.has_image {
        return Chance::NoImage;
    }
    let needed = own.acks.max(members - own.acks + 1);
    if count < needed {
        return Chance::TooFew { there: count, needed };
    }
    // It may have promised its log to that one already, and only not heard yet that it serves.
    if there.iter().any(|(_, other)| other.takes_over) {
        return Chance::Later;
    }
    let agree = there.iter().filter(|(_, other)| !other.follows).count() + 1;
    if agree < needed {
        return Chance::Later;
    }
    let before = there.iter().filter(|(at, other)| *at < own.who && other.is_fit).count() as u32;
    if waited < notice / 2 * before { Chance::Later } else { Chance::Now }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: Duration = Duration::from_millis(200);
    const TICK: Duration = Duration::from_millis(25);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn leader(life: u64) -> Leader {
        Leader { who: 0, epoch: Epoch::new(3, 7), life }
    }

    /// Looks every tick until then. Whether the primary was suspected.
    fn look(watch: &mut Watch, until: Duration) -> Option<Duration> {
        let mut found = None;
        while watch.looked + TICK <= until {
            let now = watch.looked + TICK;
            if watch.look(now) {
                found = found.or(Some(now));
            }
        }
        found
    }

    fn watching() -> Watch {
        let mut watch = Watch::new(3, NOTICE, TICK);
        watch.heard(0, 1, ms(0));
        assert!(watch.leads(leader(1), Duration::ZERO, ms(0)));
        watch
    }

    #[test]
    fn a_primary_is_suspected_after_its_notice_and_not_for_the_time_in_which_nobody_listened() {
        let mut watch = watching();
        assert_eq!(look(&mut watch, ms(1000)), Some(NOTICE));
        assert!(!watch.is_there(0, ms(1000)));
        let mut watch = watching();
        assert_eq!(look(&mut watch, ms(100)), None);
        // Half a second without a look, because the machine was busy.
        assert!(!watch.look(ms(600)), "a member that did not run takes the primary for dead");
        assert_eq!(look(&mut watch, ms(1000)), Some(ms(100 + 500 + 50)), "no more than that is forgiven");
    }

    #[test]
    fn a_wrong_suspicion_doubles_the_notice_and_calm_halves_it() {
        let mut watch = watching();
        for doubts in 1..=5_u32 {
            let until = watch.looked + ms(4000);
            let found = look(&mut watch, until).expect("suspected");
            let mut late = watch.clone();
            late.heard(0, 2, found + ms(10));
            assert_eq!(late.limit(), watch.limit(), "a process that was started again is another one");
            watch.heard(0, 1, found + ms(10));
            assert_eq!(watch.limit(), NOTICE * (1 << doubts.min(DOUBTS)));
            watch.leads(leader(1), Duration::ZERO, watch.looked);
        }
        let begin = watch.looked;
        for second in 1..=400 {
            watch.leads(leader(1), Duration::ZERO, begin + ms(1000 * second));
            watch.look(begin + ms(1000 * second));
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
    fn nobody_takes_over_whom_the_others_do_not_follow_in_that() {
        let own = Own { who: 1, is_new: false, has_image: true, acks: 2 };
        let there = Other { there: true, is_fit: true, belongs: true, ..Other::default() };
        let chance = |others: [Other; 3], waited: u64| chance(&own, &others, ms(waited), NOTICE);
        let (gone, own_place) = (Other::default(), Other::default());
        assert_eq!(chance([gone, own_place, there], 0), Chance::Now);
        let follows = Other { follows: true, ..there };
        assert_eq!(
            chance([gone, own_place, follows], 9999),
            Chance::Later,
            "the other one hears the primary"
        );
        assert_eq!(chance([gone, own_place, gone], 9999), Chance::TooFew { there: 1, needed: 2 });
        assert_eq!(chance([there, own_place, follows], 99), Chance::Later, "it is the turn of the first");
        assert_eq!(chance([there, own_place, there], 100), Chance::Now);
        let taking = Other { takes_over: true, ..there };
        assert_eq!(chance([taking, own_place, there], 9999), Chance::Later);
        // Two that acknowledge both: a store on two members goes on with neither.
        let both = Own { who: 0, acks: 2, ..own };
        assert_eq!(
            super::chance(&both, &[own_place, gone], ms(9999), NOTICE),
            Chance::TooFew { there: 1, needed: 2 }
        );
    }
}
