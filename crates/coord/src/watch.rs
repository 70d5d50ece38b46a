//! The failure detector of a member: when others were heard, and when the primary is taken for lost. Pure: time is an
//! argument, counted from any beginning. [`takeover`](super::takeover) decides what follows from it.
//!
//! Nothing here decides who *may* be the primary: promises do ([`crate::log::group`]), so that a wrong suspicion
//! costs a fail-over and never a value. Therefore the rules may be fast, and have to be calm:
//!
//! 1. *Silence.* A primary that was not heard of for `notice` is suspected. Time in which the member itself did not run does
//!    not count: who was deaf knows nothing of others' silence. Nor does time in which only that part of it did not run which asks the primary what it is
//!    ([`Watch::asks`]): an answer may have waited there. But twice as long is silence, whoever ran.
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
    silent: Silence,
    /// Not before this member slept, if it did.
    is_fresh: bool,
    /// When whoever asks it what it is ran last, as far as somebody does.
    asked: Option<Duration>,
}

/// Since when a member is silent, or a primary is not heard to be one.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// As far as it counts.
    counts: Duration,
    /// With the time in which whoever asks it did not run.
    whole: Duration,
}

impl Silence {
    const fn since(now: Duration) -> Self {
        Self { counts: now, whole: now }
    }

    fn forgive(&mut self, asleep: Duration, now: Duration) {
        let later = |heard: Duration| (heard + asleep).min(now);
        *self = Self { counts: later(self.counts), whole: later(self.whole) };
    }

    /// How long it lasts, as far as it counts; all of it counts as so much less.
    fn lasts(&self, limit: Duration, now: Duration) -> Duration {
        now.saturating_sub(self.counts).max(now.saturating_sub(self.whole + limit))
    }
}

/// What a member knows of when others were heard.
#[derive(Clone, Debug)]
pub struct Watch {
    notice: Duration,
    heard: Vec<Option<Heard>>,
    leader: Option<(Leader, Silence)>,
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
        for heard in self.heard.iter_mut().flatten() {
            heard.silent.forgive(asleep, now);
            heard.asked = heard.asked.map(|asked| (asked + asleep).min(now));
        }
        if let Some((_, silent)) = &mut self.leader {
            silent.forgive(asleep, now);
        }
    }

    /// Whoever asks a member what it is runs, and has no answer of it. It says so when it asks, and each [`beat`] from then on.
    pub fn asks(&mut self, at: usize, now: Duration) {
        let beat = beat(self.notice);
        let Some(heard) = &mut self.heard[at] else { return };
        let before = heard.asked.replace(now).unwrap_or(now);
        if !is_overdue(before, beat, now) {
            return;
        }
        let later = |since: Duration| (since + now.saturating_sub(before + beat)).min(now);
        heard.silent.counts = later(heard.silent.counts);
        if let Some((_, silent)) = self.leader.as_mut().filter(|(leader, _)| leader.who == at) {
            silent.counts = later(silent.counts);
        }
    }

    /// Nobody asks a member what it is: it cannot be reached.
    pub fn asks_not(&mut self, at: usize) {
        if let Some(heard) = &mut self.heard[at] {
            heard.asked = None;
        }
    }

    /// Whether there may be an answer of a member that nobody has taken.
    fn is_overdue(&self, at: usize, now: Duration) -> bool {
        let asked = self.heard[at].and_then(|heard| heard.asked);
        asked.is_some_and(|asked| is_overdue(asked, beat(self.notice), now))
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
        let limit = self.limit();
        let is_silent = |(leader, silent): (Leader, Silence)| {
            // If whoever asks it runs late, an answer may have come.
            let is_over = !self.is_overdue(leader.who, now) || now.saturating_sub(silent.whole) >= 2 * limit;
            silent.lasts(limit, now) >= limit && is_over
        };
        if self.leader.is_some_and(is_silent) {
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
        // Of whom whoever asks does not run, or did not for a while.
        let put_off = |at: usize, silent: Silence| {
            let (is_put_off, ends) = (silent.counts != silent.whole, silent.whole + 2 * limit);
            (ends > now && (is_put_off || self.is_overdue(at, now))).then_some(ends)
        };
        let members = (0..self.heard.len()).filter_map(|at| Some((at, self.heard[at]?.silent)));
        members
            .chain(self.leader.map(|(leader, silent)| (leader.who, silent)))
            .flat_map(|(at, silent)| [missed(silent.counts), put_off(at, silent)])
            .flatten()
            .min()
    }

    fn suspect(&mut self, cause: Cause, now: Duration) {
        if let Some((Leader { who, life, .. }, _)) = self.leader.take() {
            self.suspect = Some(Suspect { who, life, since: now, cause });
        }
    }

    /// A process of a member was heard.
    pub fn heard(&mut self, at: usize, life: u64, now: Duration) {
        // Whoever asks it has an answer, or would have taken one.
        let asked = self.heard[at].and_then(|heard| heard.asked).map(|_| now);
        self.heard[at] = Some(Heard { silent: Silence::since(now), is_fresh: true, asked });
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
            self.leader = Some((leader, Silence::since(now)));
        }
        true
    }

    /// The primary was heard in another way: it gave an order.
    pub fn ordered(&mut self, epoch: Epoch, now: Duration) {
        if let Some((_, silent)) = self.leader.as_mut().filter(|(leader, _)| leader.epoch == epoch) {
            *silent = Silence::since(now);
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
        self.heard[at].map(|heard| heard.silent.lasts(self.limit(), now))
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

/// Whether so much time has passed since then that whoever does something each beat did not run.
fn is_overdue(since: Duration, beat: Duration, now: Duration) -> bool {
    now.saturating_sub(since) > beat + beat / 2
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

    /// When the primary is suspected, of whom nothing comes after the beginning, if whoever asks it says that it runs at these times.
    fn suspected(asks: impl IntoIterator<Item = u64>) -> Option<Duration> {
        let (mut watch, mut now) = (watching(), ms(0));
        for at in asks {
            if let Some(suspected) = look(&mut watch, now, ms(at)) {
                return Some(suspected);
            }
            now = ms(at);
            watch.asks(0, now);
        }
        look(&mut watch, now, ms(5000))
    }

    #[test]
    fn time_in_which_whoever_asks_did_not_run_is_no_silence_but_for_so_long() {
        assert_eq!(suspected((0..400).step_by(25)), Some(ms(200)), "it has asked all the time");
        assert_eq!(suspected([]), Some(ms(200)), "nobody asks");
        // It did not run from 50 to 180, of which one beat counts.
        let late = [25, 50, 180, 205, 230, 255, 280, 305, 330];
        assert_eq!(suspected(late), Some(ms(305)));
        // It is waited for, as its answer may have come, and there was none.
        assert_eq!(suspected([25, 50, 240, 265, 290, 315, 340, 365]), Some(ms(365)));
        // For twice as long, whatever it does.
        assert_eq!(suspected([25, 50]), Some(ms(400)));
        assert_eq!(suspected((25..1000).step_by(90)), Some(ms(400)));
    }

    #[test]
    fn who_cannot_be_asked_is_not_waited_for_and_a_sleep_is_forgiven_once() {
        let mut watch = watching();
        watch.asks(0, ms(25));
        watch.asks_not(0);
        assert_eq!(look(&mut watch, ms(25), ms(1000)), Some(ms(200)), "it cannot be reached");
        // All of the member slept, and whoever asks as well.
        let mut watch = watching();
        watch.asks(0, ms(25));
        watch.forgive(ms(500), ms(550));
        watch.asks(0, ms(550));
        assert_eq!(watch.silence(0, ms(550)), Some(ms(50)));
        (575..1000).step_by(25).for_each(|at| watch.asks(0, ms(at)));
        assert_eq!(look(&mut watch, ms(550), ms(1000)), Some(ms(700)));
        // It asks again when it has heard something.
        let mut watch = watching();
        watch.asks(0, ms(25));
        watch.heard(0, 1, ms(190));
        watch.leads(leader(1), Duration::ZERO, ms(190));
        watch.asks(0, ms(215));
        assert_eq!(watch.silence(0, ms(215)), Some(ms(25)), "it was not late");
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
