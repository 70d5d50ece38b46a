//! When a member tries to become the primary: a machine that is told what was heard and what this member is, and says what to
//! do. Pure: time is an argument, counted from any beginning.
//!
//! [`Takeover::handle`] takes what has happened, [`Takeover::poll`] gives what is to be done about it, and
//! [`Takeover::deadline`] says when [`Takeover::timeout`] is due, should nothing happen before. Nobody else than this machine
//! says what a member is ([`Role`]).
//!
//! [`watch`](super::watch) has the rules by which a primary is suspected. These say what follows:
//!
//! 1. *Agreement.* A member takes over only when as many members as it needs follow nobody either. One that alone does not
//!    hear the primary changes nothing.
//! 2. *Turn.* The first of those that are fit goes first, the next half a `notice` later, so that they do not hold each other up.
//! 3. *Others try.* Nobody tries while another one that is there is taking over, for a `notice` after its own log was promised to somebody, or
//!    for half of one after an attempt of its own has failed. From the end of that its turn counts.
//! 4. *Medium.* Whoever has waited for its own medium for a `notice` leaves it to others: it could promise nothing itself. One whose
//!    medium failed never tries, and for the others it is away from the moment that it says so, also if it was the primary: it is about
//!    to end, and is not waited for. Nor does one try whose image takes no change any more.
//! 5. *Sleep.* A member that did not run knows nothing of the time in which it did not. It knows that it slept because it is late to its
//!    own deadline: by more than half a beat is late. The time is forgiven to all ([`Watch::forgive`]), and what they said before is no reason to
//!    take over: each that was there is listened to first, or is silent for a `notice` more. What has come meanwhile waits in
//!    the sockets, and is heard first. Where the part of it that decides has run, and not the one that asks others what they are, that
//!    one's time is forgiven as well ([`Watch::asks`]).
//! 6. *Source.* Whoever is to be rebuilt waits for one that is there, belongs to the store and has an image; a member that is new has none,
//!    though nothing is wrong with its own. Where nobody has, each says so, and nobody makes a new store in the place of what is left.
//!
//! For rule 5 there is a deadline always, a `notice` away at most, also when nothing is due: who alone is left, or leads and hears
//! nobody, could not tell otherwise that it slept, and would act upon what it knew before. That is the one case
//! in which the machine is woken for nothing. An order that is carried out keeps a member from listening like a sleep, however long it takes:
//! nothing is due meanwhile, and the time is forgiven in the end.

use std::collections::VecDeque;
use std::time::Duration;

use crate::log::Epoch;

use super::watch::{Leader, Watch, beat};

/// What a member does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Role {
    /// It waits for a primary, or for enough members to choose one from.
    #[default]
    Waiting = 0,
    /// Its log and its image follow the primary's.
    Follower = 1,
    /// It is taking over.
    TakingOver = 2,
    /// It serves clients.
    Primary = 3,
}

impl Role {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Follower => "follower",
            Self::TakingOver => "taking over",
            Self::Primary => "primary",
        }
    }
}

/// What another member says of itself, as far as it matters for who takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statement {
    /// What it does.
    pub role: Role,
    /// The epoch: of a primary its own, else the one that it has promised its log to.
    pub epoch: Epoch,
    /// Drawn by its process.
    pub life: u64,
    /// For how long its medium has not answered.
    pub stalled: Duration,
    /// Its medium failed, and it ends.
    pub failed: bool,
    /// Its image is one, and has what the log begins behind.
    pub has_image: bool,
    /// It is a member of a store already.
    pub belongs: bool,
    /// It has what a store was kept in, whole or not: a log that belongs to one, or an image.
    pub holds: bool,
}

/// What this member is itself, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// To whom its log is promised.
    pub promised: Epoch,
    /// It has never been a member of a store.
    pub is_new: bool,
    /// It has what a store was kept in, whole or not: a log that belongs to one, or an image.
    pub holds: bool,
    /// Its image is one, and has what the log begins behind.
    pub has_image: bool,
    /// Its image takes no change any more, until it is started again.
    pub is_stuck: bool,
    /// How many members acknowledge.
    pub acks: usize,
    /// For how long its medium has not answered.
    pub stalled: Duration,
    /// Its medium failed, and it ends.
    pub failed: bool,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// A member says something of itself.
    Heard {
        /// Which of them.
        at: usize,
        /// What it says.
        said: Statement,
    },
    /// What answers in a member's place is no member of this store.
    Stranger {
        /// The member in whose place it answers.
        at: usize,
    },
    /// A member could not be reached.
    Missed {
        /// Which of them.
        at: usize,
    },
    /// Whoever asks a member what it is runs, and has no answer: said when it is asked, and each [`beat`] from then on.
    Asks {
        /// Which of them is asked.
        at: usize,
    },
    /// This member is something else than before.
    Own(Own),
    /// An order of the primary is being carried out.
    Obeys,
    /// It is carried out, for that epoch; or was refused, for none.
    Obeyed(Option<Epoch>),
    /// What [`Action::Lead`] asked for has come about: this member serves.
    Leads {
        /// In that epoch.
        epoch: Epoch,
    },
    /// It has not come about, or this member serves no more.
    Ended,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// This member is that from now on; others are to be told at once.
    Become(Role),
    /// Try to lead; [`Input::Leads`] and [`Input::Ended`] say what came of it.
    Lead,
    /// Nobody serves, and this member cannot either: whoever looks wants to know why.
    Explain(Obstacle),
}

/// Why a member cannot take over, though nobody serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Its own medium failed: it ends.
    Failed,
    /// Its image takes no change any more, until it is started again: it could not follow its own log.
    Stuck,
    /// It is new: another one that is there has an image, and it will be rebuilt.
    IsNew,
    /// All are new, and not all are there.
    NotAll,
    /// It has no image: another one that is there has, and it will be rebuilt.
    NoImage,
    /// A store was there, and nobody who is there has an image to go on with, this one included.
    NoneHasImage,
    /// Too few are there.
    TooFew {
        /// This one included.
        there: usize,
        /// As many are needed.
        needed: usize,
    },
}

/// Why nothing is waited for from a member any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// It is another process by now.
    StartedAgain,
    /// Its medium has not answered for so long.
    Stalled(Duration),
    /// Its medium failed, by its own word.
    Failed,
    /// It has not been heard of for so long, or never.
    Silent(Duration),
}

/// Whether this member may try to take over.
enum Chance {
    Now,
    /// Others are to try first, or do not agree that there is no primary.
    Later,
    /// At that time.
    At(Duration),
    Never(Obstacle),
}

/// What a member knows of the others, and what it is. See the module.
#[derive(Clone, Debug)]
pub struct Takeover {
    who: usize,
    notice: Duration,
    watch: Watch,
    said: Vec<Option<Statement>>,
    /// Somebody has tried to reach it.
    tried: Vec<bool>,
    own: Own,
    role: Role,
    /// Orders that are being carried out, and since when.
    obeying: usize,
    obeys_since: Duration,
    /// From when turns count, if nobody serves.
    since: Option<Duration>,
    /// Until then others may try.
    not_before: Duration,
    /// When it was late last, and listened for it.
    listened: Option<Duration>,
    deadline: Option<Duration>,
    actions: VecDeque<Action>,
}

impl Takeover {
    /// Of the member `who` of so many, that begins to listen now, and whose others are told of it every [`beat`] of this `notice`.
    #[must_use]
    pub fn new(now: Duration, who: usize, members: usize, notice: Duration, own: Own) -> Self {
        Self {
            who,
            notice,
            watch: Watch::new(members, notice),
            said: vec![None; members],
            tried: (0..members).map(|at| at == who).collect(),
            own,
            role: Role::Waiting,
            obeying: 0,
            obeys_since: Duration::ZERO,
            since: None,
            not_before: Duration::ZERO,
            listened: None,
            // It could be stopped before anything happens at all.
            deadline: Some(now + notice),
            actions: VecDeque::new(),
        }
    }

    /// Something has happened.
    pub fn handle(&mut self, now: Duration, input: Input) {
        self.wakes(now);
        match input {
            Input::Heard { at, said } => self.heard(now, at, said),
            Input::Stranger { at } => (self.tried[at], self.said[at]) = (true, None),
            Input::Missed { at } => {
                self.tried[at] = true;
                self.watch.asks_not(at);
            }
            Input::Asks { at } => self.watch.asks(at, now),
            Input::Own(own) => {
                let is_other = std::mem::replace(&mut self.own, own).promised != own.promised;
                if is_other && !self.leads() {
                    // Somebody is taking over, and has not said so yet.
                    self.not_before = self.not_before.max(now + self.notice);
                    self.since = None;
                }
            }
            Input::Obeys => {
                if self.obeying == 0 {
                    self.obeys_since = now;
                }
                self.obeying += 1;
            }
            Input::Obeyed(epoch) => {
                self.obeying = self.obeying.saturating_sub(1);
                let took = now.saturating_sub(self.obeys_since);
                if self.obeying == 0 && self.is_late(took) {
                    self.watch.forgive(took, now);
                }
                if let Some(epoch) = epoch {
                    self.watch.ordered(epoch, now);
                }
            }
            Input::Leads { epoch } => {
                self.watch.takes_over(epoch);
                self.becomes(Role::Primary);
            }
            Input::Ended => {
                self.becomes(Role::Waiting);
                // Others may have more luck.
                self.not_before = now + self.notice / 2;
                self.since = None;
            }
        }
        self.decide(now);
    }

    fn heard(&mut self, now: Duration, at: usize, said: Statement) {
        self.tried[at] = true;
        self.watch.heard(at, said.life, now);
        let is_later = said.epoch.counter() > self.own.promised.counter();
        let serves = said.role == Role::Primary && !said.failed;
        if serves && (is_later || said.epoch == self.own.promised) {
            self.watch.leads(Leader { who: at, epoch: said.epoch, life: said.life }, said.stalled, now);
        } else {
            // It stopped serving, and says so; or was replaced, and does not know it; or has drawn the counter to which this log is promised
            // for somebody else, and has to draw another one.
            self.watch.leads_not(at);
        }
        self.said[at] = Some(said);
    }

    /// It is [`deadline`](Self::deadline), or later.
    pub fn timeout(&mut self, now: Duration) {
        self.wakes(now);
        self.decide(now);
    }

    /// What is to be done next; `None`: nothing before something happens, or the deadline.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`timeout`](Self::timeout) is due. It moves with whatever happens.
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Whether whoever has come so much too late did not run (rule 5).
    fn is_late(&self, late: Duration) -> bool {
        late > beat(self.notice) / 2
    }

    fn late(&self, now: Duration) -> Duration {
        self.deadline.map_or(Duration::ZERO, |deadline| now.saturating_sub(deadline))
    }

    fn wakes(&mut self, now: Duration) {
        let late = self.late(now);
        if !self.is_late(late) {
            return;
        }
        self.watch.forgive(late, now);
        if self.listened.is_none_or(|last| now.saturating_sub(last) >= self.notice) {
            self.listened = Some(now);
            self.watch.forget();
            self.not_before = self.not_before.max(now + 2 * beat(self.notice));
        }
    }

    fn decide(&mut self, now: Duration) {
        // Who carries an order out has not had the time to listen.
        if self.obeying == 0 {
            self.watch.look(now);
        }
        if !self.leads() {
            let follows = self.watch.leader().is_some();
            self.becomes(if follows { Role::Follower } else { Role::Waiting });
            self.consider(now);
        }
        self.deadline = self.next(now);
    }

    fn consider(&mut self, now: Duration) {
        if self.is_served() {
            self.since = None;
            return;
        }
        // Turns count from when others had their time: those that have promised, or failed, at one moment would try at one moment, too.
        let since = *self.since.get_or_insert(now.max(self.not_before));
        if now < self.not_before || !self.tried.iter().all(|tried| *tried) {
            return;
        }
        match self.chance(since, now) {
            Chance::Now => {
                self.becomes(Role::TakingOver);
                self.actions.push_back(Action::Lead);
            }
            Chance::Never(obstacle) => self.actions.push_back(Action::Explain(obstacle)),
            Chance::Later | Chance::At(_) => {}
        }
    }

    /// Whether this member may try, when nobody has served since then.
    fn chance(&self, since: Duration, now: Duration) -> Chance {
        let Own { is_new, holds, has_image, is_stuck, stalled, failed, .. } = self.own;
        if failed {
            return Chance::Never(Obstacle::Failed);
        }
        if is_stuck {
            return Chance::Never(Obstacle::Stuck);
        }
        let members = self.said.len();
        let others = (0..members).filter(|at| *at != self.who);
        let there: Vec<(usize, &Statement)> =
            others.filter_map(|at| Some((at, self.recent(at, now)?))).collect();
        let count = there.len() + 1;
        let needed = self.needed();
        if there.iter().any(|(at, _)| self.watch.is_old(*at)) {
            return Chance::Later;
        }
        let is_source = |said: &Statement| said.has_image && said.belongs;
        let has_source = there.iter().any(|(_, said)| is_source(said));
        // No new store is made where one was, whatever is left of it.
        if is_new && (holds || there.iter().any(|(_, said)| said.holds)) {
            return Chance::Never(if has_source { Obstacle::IsNew } else { Obstacle::NoneHasImage });
        }
        if is_new && count < members {
            return Chance::Never(Obstacle::NotAll);
        }
        if !has_image {
            return Chance::Never(if has_source { Obstacle::NoImage } else { Obstacle::NoneHasImage });
        }
        if count < needed {
            return Chance::Never(Obstacle::TooFew { there: count, needed });
        }
        if stalled >= self.watch.limit() {
            return Chance::Later;
        }
        // It may have promised its log to that one already, and only not heard yet that it serves.
        if there.iter().any(|(_, said)| said.role == Role::TakingOver) {
            return Chance::Later;
        }
        let follows = |said: &Statement| match said.role {
            Role::Follower => true,
            // It does not know yet that it was replaced.
            Role::Primary => said.epoch.counter() >= self.own.promised.counter(),
            Role::Waiting | Role::TakingOver => false,
        };
        let agree = there.iter().filter(|(_, said)| !follows(said)).count() + 1;
        if agree < needed {
            return Chance::Later;
        }
        let is_fit = |said: &Statement| said.has_image && (is_new || said.belongs);
        let before = there.iter().filter(|(at, said)| *at < self.who && is_fit(said)).count() as u32;
        let turn = since + self.notice / 2 * before;
        if now < turn { Chance::At(turn) } else { Chance::Now }
    }

    /// As many must be there for one to take over, and must agree.
    fn needed(&self) -> usize {
        let (members, acks) = (self.members(), self.own.acks);
        acks.max(members + 1 - acks)
    }

    /// With so many members whoever takes over goes on: a new store takes all of them.
    #[must_use]
    pub fn enough(&self) -> usize {
        if self.own.is_new { self.members() } else { self.needed() }
    }

    /// Whether this member, a primary, can open the log again with itself and those members, as far as it knows: enough have a say, and
    /// enough are there to acknowledge.
    #[must_use]
    pub fn can_open(&self, with: impl Fn(usize) -> bool) -> bool {
        let (members, acks) = (self.members(), self.own.acks);
        let there = (0..members).filter(|at| *at != self.who && with(*at));
        let has_say = |at: &usize| self.said[*at].is_some_and(|said| said.belongs);
        there.clone().count() + 1 >= acks && there.filter(has_say).count() + 1 + acks > members
    }

    fn next(&self, now: Duration) -> Option<Duration> {
        if self.obeying > 0 {
            return None;
        }
        let mut next = now + self.notice;
        let mut is_due = |at: Duration| {
            if at > now {
                next = next.min(at);
            }
        };
        self.watch.deadline(now).into_iter().for_each(&mut is_due);
        if let Some(since) = self.since.filter(|_| !self.leads()) {
            is_due(self.not_before);
            if let Chance::At(turn) = self.chance(since, now) {
                is_due(turn);
            }
        }
        Some(next)
    }

    fn becomes(&mut self, role: Role) {
        if self.role != role {
            self.role = role;
            self.actions.push_back(Action::Become(role));
        }
    }

    const fn leads(&self) -> bool {
        matches!(self.role, Role::TakingOver | Role::Primary)
    }

    /// What this member is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Whom it follows.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        self.watch.leader()
    }

    /// Somebody serves, as far as is known, and is not this member.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.watch.leader().is_some() || self.obeying > 0
    }

    /// What a member said lately, if its medium answers.
    #[must_use]
    pub fn recent(&self, at: usize, now: Duration) -> Option<&Statement> {
        let said = self.said[at].as_ref().filter(|said| !said.failed)?;
        (!self.has_stalled(said) && self.watch.is_there(at, now)).then_some(said)
    }

    /// Whether this member, a primary in that epoch, is to connect to another one anew: it does without it, or that has promised
    /// its log to somebody who did not become the primary, and takes nothing more. Not when anybody says that there is a later
    /// primary, or is about to be: to open the log again would end that one, too. Therefore not before it has listened, either, if it slept.
    #[must_use]
    pub fn wants_back(&self, at: usize, epoch: Epoch, is_lost: bool, now: Duration) -> bool {
        if self.is_late(self.late(now)) || now < self.not_before || self.watch.is_old(at) {
            return false;
        }
        let is_later = |said: &Statement| said.epoch.counter() > epoch.counter();
        // Of two that were drawn with one counter a log takes nothing of the other.
        let is_another = |said: &Statement| said.epoch.counter() >= epoch.counter() && said.epoch != epoch;
        let was_replaced = (0..self.said.len())
            .filter_map(|at| self.recent(at, now))
            .any(|said| is_later(said) && said.role != Role::Waiting);
        let is_promised = |said: &Statement| said.role == Role::Waiting && is_another(said);
        !was_replaced && self.recent(at, now).is_some_and(|said| is_lost || is_promised(said))
    }

    /// Whether any member has promised its log to somebody who did not become the primary, and takes nothing more of this one, which is the
    /// primary in that epoch.
    #[must_use]
    pub fn has_promised_away(&self, epoch: Epoch, now: Duration) -> bool {
        (0..self.members()).any(|at| self.wants_back(at, epoch, false, now))
    }

    /// How many members there are, this one included.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.said.len()
    }

    /// The lives of all others that were heard of lately; 0 for the rest.
    #[must_use]
    pub fn lives(&self, now: Duration) -> Vec<u64> {
        (0..self.members()).map(|at| self.recent(at, now).map_or(0, |said| said.life)).collect()
    }

    /// Whether a member is gone, or was started again, that was there by these [lives](Self::lives).
    #[must_use]
    pub fn has_changed(&self, lives: &[u64], at: usize, now: Duration) -> bool {
        lives[at] != 0 && self.gone(at, lives[at], now).is_some()
    }

    fn has_stalled(&self, said: &Statement) -> bool {
        said.stalled >= self.watch.stall()
    }

    /// Whether a member's medium did not answer, by its own word.
    #[must_use]
    pub fn is_stalled(&self, at: usize) -> bool {
        self.said[at].as_ref().is_some_and(|said| self.has_stalled(said))
    }

    /// Why a life of a member is over, or taken for over: nothing is waited for then. A member that is slow is not given up as
    /// fast as a primary is suspected: the others go on without its answer.
    #[must_use]
    pub fn gone(&self, at: usize, life: u64, now: Duration) -> Option<Gone> {
        let limit = self.endurance();
        let Some(said) = &self.said[at] else { return Some(Gone::Silent(limit)) };
        if said.life != life {
            return Some(Gone::StartedAgain);
        }
        if said.failed {
            return Some(Gone::Failed);
        }
        if self.has_stalled(said) {
            return Some(Gone::Stalled(said.stalled));
        }
        let is_silent = self.watch.silence(at, now).is_none_or(|silence| silence >= limit);
        is_silent.then_some(Gone::Silent(limit))
    }

    /// When a member that says nothing more from now on is [gone](Self::gone) by its silence; `None`: it was never heard of.
    #[must_use]
    pub fn gives_up(&self, at: usize, now: Duration) -> Option<Duration> {
        self.watch.silence(at, now).map(|silence| now + self.endurance().saturating_sub(silence))
    }

    fn endurance(&self) -> Duration {
        (2 * self.watch.limit()).max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTICE: Duration = Duration::from_millis(200);
    const OWN: Own = Own {
        promised: Epoch::new(3, 7),
        is_new: false,
        holds: true,
        has_image: true,
        is_stuck: false,
        acks: 2,
        stalled: Duration::ZERO,
        failed: false,
    };
    const WAITS: Statement = Statement {
        role: Role::Waiting,
        epoch: Epoch::new(3, 7),
        life: 1,
        stalled: Duration::ZERO,
        failed: false,
        has_image: true,
        belongs: true,
        holds: true,
    };
    /// Its directory was empty: what it has for an image is right before the first record, and nobody can be rebuilt from it.
    const NEW: Statement = Statement { belongs: false, holds: false, ..WAITS };
    const FOLLOWS: Statement = Statement { role: Role::Follower, ..WAITS };
    const SERVES: Statement = Statement { role: Role::Primary, ..WAITS };

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The second of three members, which hears the others every ten milliseconds, and is punctual.
    struct Member {
        machine: Takeover,
        now: Duration,
        said: [Option<Statement>; 3],
    }

    impl Member {
        fn new(own: Own, said: [Option<Statement>; 2]) -> Self {
            let mut this = Self {
                machine: Takeover::new(ms(1000), 1, 3, NOTICE, own),
                now: ms(1000),
                said: [said[0], None, said[1]],
            };
            for at in [0, 2] {
                this.machine.handle(ms(1000), Input::Missed { at });
            }
            this.actions();
            this
        }

        fn actions(&mut self) -> Vec<Action> {
            std::iter::from_fn(|| self.machine.poll()).collect()
        }

        fn hears(&mut self) {
            for at in [0, 2] {
                if let Some(said) = self.said[at] {
                    self.machine.handle(self.now, Input::Heard { at, said });
                }
            }
        }

        fn runs(&mut self, time: u64) -> Vec<Action> {
            for _ in 0..time / 10 {
                self.now += ms(10);
                if self.machine.deadline().is_none_or(|deadline| deadline <= self.now) {
                    self.machine.timeout(self.now);
                }
                self.hears();
            }
            self.actions()
        }

        fn tries(&mut self, within: u64) -> bool {
            self.runs(within).contains(&Action::Lead)
        }
    }

    #[test]
    fn nobody_takes_over_whom_the_others_do_not_follow_in_that() {
        let tries = |said, time| Member::new(OWN, said).tries(time);
        assert!(tries([None, Some(WAITS)], 10));
        assert!(!tries([None, Some(FOLLOWS)], 9000), "the other one hears the primary");
        assert!(!tries([Some(WAITS), Some(FOLLOWS)], 90), "it is the turn of the first");
        assert!(tries([Some(WAITS), Some(FOLLOWS)], 120), "two of three are enough");
        let taking = Statement { role: Role::TakingOver, ..WAITS };
        assert!(!tries([Some(taking), Some(WAITS)], 9000));
        let hangs = Statement { stalled: ms(1000), ..taking };
        assert!(tries([Some(hangs), Some(WAITS)], 10), "who has stalled is not waited for");
        // It serves, and does not know that it was replaced.
        let old = Statement { epoch: Epoch::new(2, 9), ..SERVES };
        assert!(tries([Some(old), Some(WAITS)], 120) && !tries([Some(SERVES), Some(WAITS)], 9000));
    }

    #[test]
    fn what_keeps_a_member_from_taking_over_is_said() {
        let new = Own { is_new: true, holds: false, ..OWN };
        let also_new = Some(NEW);
        assert_eq!(why_not(OWN, [None, None]), Some(Obstacle::TooFew { there: 1, needed: 2 }));
        let both = Own { acks: 3, ..OWN };
        assert_eq!(why_not(both, [None, Some(WAITS)]), Some(Obstacle::TooFew { there: 2, needed: 3 }));
        assert_eq!(why_not(new, [None, Some(WAITS)]), Some(Obstacle::IsNew));
        assert_eq!(why_not(new, [None, also_new]), Some(Obstacle::NotAll));
        let bare = Own { has_image: false, ..OWN };
        let also_bare = Some(Statement { has_image: false, ..WAITS });
        assert_eq!(why_not(bare, [also_bare, Some(WAITS)]), Some(Obstacle::NoImage));
        for others in [[also_bare, also_bare], [None, also_bare], [None, None]] {
            assert_eq!(why_not(bare, others), Some(Obstacle::NoneHasImage), "who made it anew?");
        }
        assert_eq!(why_not(OWN, [Some(SERVES), None]), None, "somebody serves");
        assert!(Member::new(new, [also_new, also_new]).tries(120), "a new store is made by all of them");
    }

    /// Why a member does not try, that waits with these others.
    fn why_not(own: Own, said: [Option<Statement>; 2]) -> Option<Obstacle> {
        let all = Member::new(own, said).runs(300);
        assert!(!all.contains(&Action::Lead), "{all:?}");
        all.into_iter().rev().find_map(|action| match action {
            Action::Explain(obstacle) => Some(obstacle),
            Action::Become(_) | Action::Lead => None,
        })
    }

    #[test]
    fn a_member_that_is_new_is_nobody_s_source() {
        let new = Own { is_new: true, holds: false, ..OWN };
        let bare = Own { has_image: false, ..OWN };
        let damaged = Statement { has_image: false, ..WAITS };
        for own in [new, bare] {
            for others in [[Some(NEW), Some(damaged)], [Some(damaged), Some(damaged)], [Some(damaged), None]]
            {
                assert_eq!(why_not(own, others), Some(Obstacle::NoneHasImage), "{own:?}, {others:?}");
            }
        }
        assert_eq!(why_not(bare, [Some(NEW), Some(NEW)]), Some(Obstacle::NoneHasImage));
        assert_eq!(why_not(new, [Some(damaged), Some(WAITS)]), Some(Obstacle::IsNew));
        assert_eq!(why_not(bare, [Some(NEW), Some(WAITS)]), Some(Obstacle::NoImage));
    }

    /// A log that is lost alone has a member look as if it were new, but for its image.
    #[test]
    fn no_new_store_is_made_where_anything_is_left_of_one() {
        let new = Own { is_new: true, holds: false, ..OWN };
        let lost_log = Statement { holds: true, ..NEW };
        for others in [[Some(lost_log), Some(NEW)], [Some(NEW), Some(lost_log)], [Some(lost_log), None]] {
            assert_eq!(why_not(new, others), Some(Obstacle::NoneHasImage), "{others:?}");
        }
        let own = Own { holds: true, has_image: false, ..new };
        for others in [[Some(NEW), Some(NEW)], [Some(lost_log), Some(lost_log)]] {
            assert_eq!(why_not(own, others), Some(Obstacle::NoneHasImage), "{others:?}");
        }
        assert_eq!(why_not(own, [Some(NEW), Some(WAITS)]), Some(Obstacle::IsNew));
        assert!(Member::new(new, [Some(NEW), Some(NEW)]).tries(120), "nothing is left of any");
    }

    #[test]
    fn whose_image_takes_no_change_any_more_never_tries() {
        let stuck = Own { is_stuck: true, ..OWN };
        assert_eq!(why_not(stuck, [Some(WAITS), Some(WAITS)]), Some(Obstacle::Stuck));
        let mut member = Member::new(OWN, [Some(SERVES), Some(WAITS)]);
        member.runs(300);
        member.machine.handle(member.now, Input::Own(stuck));
        member.said[0] = None;
        assert!(!member.tries(5000), "it could not follow its own log");
    }

    #[test]
    fn who_cannot_be_asked_yet_is_waited_for() {
        let mut machine = Takeover::new(ms(0), 1, 3, NOTICE, OWN);
        machine.handle(ms(10), Input::Heard { at: 2, said: WAITS });
        assert_eq!(machine.poll(), None, "the first may serve");
        machine.handle(ms(20), Input::Missed { at: 0 });
        assert_eq!(machine.poll(), Some(Action::Become(Role::TakingOver)));
        assert_eq!(machine.poll(), Some(Action::Lead));
    }

    #[test]
    fn others_may_try_after_a_promise_and_after_an_attempt_that_failed() {
        let mut member = Member::new(OWN, [Some(SERVES), Some(WAITS)]);
        member.runs(300);
        member.machine.handle(member.now, Input::Own(Own { promised: Epoch::new(4, 1), ..OWN }));
        assert!(!member.tries(290) && member.tries(20), "somebody had a promise, and nothing came of it");
        member.machine.handle(member.now, Input::Own(Own { promised: Epoch::new(5, 1), ..OWN }));
        member.said[0] = None;
        member.runs(300);
        member.machine.handle(member.now, Input::Ended);
        assert_eq!(member.actions(), [Action::Become(Role::Waiting)]);
        assert!(!member.tries(90) && member.tries(20), "its own promise to itself is no other's");
    }

    #[test]
    fn who_leads_follows_nobody_and_says_when_it_ends() {
        let mut member = Member::new(OWN, [None, Some(WAITS)]);
        assert_eq!(member.runs(10), [Action::Become(Role::TakingOver), Action::Lead]);
        let epoch = Epoch::new(4, 2);
        member.machine.handle(member.now, Input::Own(Own { promised: epoch, ..OWN }));
        member.machine.handle(member.now, Input::Leads { epoch });
        assert_eq!(member.actions(), [Action::Become(Role::Primary)]);
        member.said = [Some(SERVES), None, Some(FOLLOWS)];
        assert_eq!(member.runs(1000), []);
        assert!(member.machine.leader().is_none(), "that one was replaced");
        let lost = |member: &Member, is_lost| member.machine.wants_back(2, epoch, is_lost, member.now);
        assert!(lost(&member, true) && !lost(&member, false));
        member.said[2] = Some(Statement { epoch: Epoch::new(5, 3), ..WAITS });
        member.runs(20);
        assert!(lost(&member, false), "its promise led to nothing");
        member.said[0] = Some(Statement { epoch: Epoch::new(6, 3), ..SERVES });
        member.runs(20);
        assert!(!lost(&member, true), "somebody else serves");
        member.machine.handle(member.now, Input::Ended);
        assert_eq!(member.actions(), [Action::Become(Role::Waiting), Action::Become(Role::Follower)]);
    }

    /// Found by the simulation: a member that had tried in vain with the counter of the one that came to serve was never taken in again.
    #[test]
    fn a_log_that_is_promised_to_another_of_the_same_counter_is_asked_for_a_later_one() {
        let serves = |counter, writer| Statement { epoch: Epoch::new(counter, writer), ..SERVES };
        let own = Own { promised: Epoch::new(5, 2), ..OWN };
        let mut member = Member::new(own, [Some(serves(5, 1)), Some(FOLLOWS)]);
        member.runs(300);
        assert!(member.machine.leader().is_none(), "its log takes nothing of that one");
        assert_ne!(member.machine.role(), Role::TakingOver, "the others follow it");
        member.said[0] = Some(serves(6, 1));
        member.runs(20);
        assert!(member.machine.leader().is_some());

        let mut member = Member::new(OWN, [None, Some(WAITS)]);
        member.runs(10);
        let epoch = Epoch::new(5, 1);
        member.machine.handle(member.now, Input::Own(Own { promised: epoch, ..OWN }));
        member.machine.handle(member.now, Input::Leads { epoch });
        let away = |member: &Member| member.machine.wants_back(2, epoch, false, member.now);
        for (promised, is_away) in [(epoch, false), (Epoch::new(5, 2), true), (Epoch::new(4, 9), false)] {
            member.said[2] = Some(Statement { epoch: promised, ..WAITS });
            member.runs(20);
            assert_eq!(away(&member), is_away, "{promised}");
        }
    }

    /// Found by the simulation: two that had failed at one moment failed at one moment again, and again.
    #[test]
    fn those_whose_attempts_failed_together_do_not_try_together() {
        let mut member = Member::new(OWN, [Some(WAITS), Some(WAITS)]);
        assert!(!member.tries(90) && member.tries(20), "it is the turn of the first, and then its own");
        member.machine.handle(member.now, Input::Ended);
        assert!(!member.tries(190) && member.tries(20), "the first is given a time of its own");
    }

    #[test]
    fn those_that_promised_together_do_not_try_together() {
        for served in [false, true] {
            let first = if served { SERVES } else { WAITS };
            let mut member = Member::new(OWN, [Some(first), Some(WAITS)]);
            member.runs(50);
            // Somebody asks all of them for their promises, and dies; whom they followed ends soon after.
            let promised = Epoch::new(4, 9);
            member.machine.handle(member.now, Input::Own(Own { promised, ..OWN }));
            member.runs(30);
            let waits = Statement { epoch: promised, ..WAITS };
            member.said = [Some(waits), None, Some(waits)];
            assert!(!member.tries(260) && member.tries(20), "the first is given a time of its own");
        }
    }

    #[test]
    fn whose_own_medium_hangs_leaves_it_to_others() {
        let mut member = Member::new(OWN, [Some(SERVES), Some(WAITS)]);
        member.runs(300);
        member.machine.handle(member.now, Input::Own(Own { stalled: NOTICE, ..OWN }));
        member.said[0] = None;
        assert!(!member.tries(2000));
        member.machine.handle(member.now, Input::Own(OWN));
        assert!(member.actions().contains(&Action::Lead), "it answers again");
    }

    #[test]
    fn whose_own_medium_failed_never_tries() {
        let mut member = Member::new(OWN, [Some(SERVES), Some(WAITS)]);
        member.runs(300);
        member.machine.handle(member.now, Input::Own(Own { failed: true, ..OWN }));
        member.said[0] = None;
        let actions = member.runs(5000);
        assert!(!actions.contains(&Action::Lead), "it can promise nothing");
        assert!(actions.contains(&Action::Explain(Obstacle::Failed)));
    }

    #[test]
    fn whose_medium_failed_is_away_from_the_moment_that_it_says_so() {
        let mut member = Member::new(OWN, [Some(SERVES), Some(FOLLOWS)]);
        member.runs(300);
        assert!(member.machine.leader().is_some());
        member.said = [Some(Statement { failed: true, ..SERVES }), None, Some(WAITS)];
        // By the same words another member hears of it as soon.
        assert!(member.tries(60), "it does not wait for the silence of who says that it ends");
        let gone = member.machine.gone(0, SERVES.life, member.now);
        assert_eq!(gone, Some(Gone::Failed));
        assert!(member.machine.recent(0, member.now).is_none());

        // One that was to go first is not waited for, and one that is needed is not there.
        let mut member = Member::new(OWN, [Some(Statement { failed: true, ..WAITS }), None]);
        let actions = member.runs(1000);
        assert!(actions.contains(&Action::Explain(Obstacle::TooFew { there: 1, needed: 2 })), "{actions:?}");
        assert!(!actions.contains(&Action::Lead));
    }

    #[test]
    fn who_slept_listens_before_it_acts() {
        let mut member = Member::new(OWN, [Some(SERVES), Some(FOLLOWS)]);
        member.runs(300);
        // It finds itself late by all that it slept but two beats.
        member.now += ms(800);
        member.machine.timeout(member.now);
        assert_eq!(member.actions(), []);
        assert_eq!(
            member.machine.deadline(),
            Some(member.now + ms(25)),
            "they are given the next beat to speak"
        );
        member.said[0] = None;
        assert!(
            !member.runs(140).contains(&Action::Become(Role::Waiting)),
            "that much silence it did not hear"
        );
        assert!(member.runs(20).contains(&Action::Become(Role::Waiting)));

        // One that knew of no primary, and slept while the others chose one.
        let mut member = Member::new(Own { acks: 3, ..OWN }, [Some(WAITS), Some(FOLLOWS)]);
        assert!(!member.tries(300));
        member.now += ms(5000);
        member.said[2] = Some(WAITS);
        member.machine.handle(member.now, Input::Own(OWN));
        member.machine.handle(member.now, Input::Heard { at: 2, said: WAITS });
        assert!(!member.actions().contains(&Action::Lead), "the first has not spoken again");
        member.hears();
        assert!(!member.actions().contains(&Action::Lead), "what is heard first is the oldest");
        member.said[0] = Some(Statement { role: Role::Primary, epoch: Epoch::new(4, 1), ..WAITS });
        assert_eq!(member.runs(300), [Action::Become(Role::Follower)]);
    }

    /// A minute on a busy machine: it decides in time always, and whoever asks the primary is kept from running now and then, for longer
    /// than the notice is less a beat. In the end the primary is silent.
    #[test]
    fn that_whoever_asks_did_not_run_is_no_silence_of_the_primary() {
        for seed in 0..20_u64 {
            let mut member = Member::new(OWN, [None, Some(FOLLOWS)]);
            member.machine.handle(member.now, Input::Heard { at: 0, said: SERVES });
            let mut random = seed;
            let mut draw = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % below
            };
            let (end, mut next) = (member.now + ms(60_000), member.now);
            let mut asks = |member: &mut Member, serves: bool| {
                if member.now < next {
                    return;
                }
                member.machine.handle(member.now, Input::Asks { at: 0 });
                if serves {
                    member.machine.handle(member.now, Input::Heard { at: 0, said: SERVES });
                }
                next = member.now + ms(if draw(5) == 0 { 40 + draw(200) } else { 20 });
            };
            while member.now < end {
                asks(&mut member, true);
                let actions = member.runs(10);
                assert!(
                    !actions.contains(&Action::Become(Role::Waiting)),
                    "seed {seed}, at {:?}",
                    member.now
                );
            }
            member.said[2] = Some(WAITS);
            let (silent, mut tries) = (member.now, false);
            while !tries {
                asks(&mut member, false);
                tries = member.runs(10).contains(&Action::Lead);
                assert!(member.now - silent <= 2 * NOTICE + ms(30), "seed {seed}: it is waited for");
            }
        }
    }

    #[test]
    fn what_was_said_before_a_sleep_is_no_reason_to_take_over() {
        let mut member = Member::new(OWN, [Some(WAITS), Some(WAITS)]);
        assert!(!member.tries(50), "it is the first's turn");
        member.now += ms(1000);
        member.said[0] = None;
        assert!(!member.tries(120), "the first may serve by now");
        assert!(member.tries(80), "it is silent, and was listened to for long enough");
    }

    #[test]
    fn where_everybody_is_late_always_somebody_leads() {
        let mut member = Member::new(OWN, [None, Some(WAITS)]);
        member.said[2] = None;
        let mut turns = 0;
        member.now += ms(5000);
        // Nothing is done in less than 90 ms, and nobody is heard without being late.
        while !member.actions().contains(&Action::Lead) {
            member.now += ms(90);
            member.machine.handle(member.now, Input::Heard { at: 2, said: WAITS });
            turns += 1;
            assert!(turns < 10, "it listens for ever");
        }
    }

    #[test]
    fn there_is_a_deadline_always_but_while_an_order_is_carried_out() {
        let mut member = Member::new(OWN, [None, None]);
        for _ in 0..100 {
            assert!(member.machine.deadline().is_some_and(|deadline| deadline <= member.now + NOTICE));
            member.runs(10);
        }
        member.said[0] = Some(SERVES);
        member.runs(100);
        member.machine.handle(member.now, Input::Obeys);
        assert_eq!(member.machine.deadline(), None);
        // A second, on a disk that is slow: it has heard nobody, and that is its own doing.
        member.now += ms(1000);
        member.machine.timeout(member.now);
        member.machine.handle(member.now, Input::Obeyed(None));
        assert_eq!(member.machine.role(), Role::Follower);
        member.said[0] = None;
        assert_eq!(member.runs(190), []);
        let heard = member.runs(20);
        assert!(heard.contains(&Action::Become(Role::Waiting)), "after that there was no order, nor a word");
    }

    #[test]
    fn whoever_is_waited_for_is_given_up_when_it_is_another_hangs_or_is_silent() {
        let mut member = Member::new(OWN, [Some(FOLLOWS), None]);
        member.runs(100);
        let gone = |member: &Member, at, life, after| member.machine.gone(at, life, member.now + ms(after));
        assert_eq!(gone(&member, 0, 1, 999), None);
        assert_eq!(gone(&member, 0, 1, 1000), Some(Gone::Silent(ms(1000))));
        assert_eq!(member.machine.gives_up(0, member.now + ms(300)), Some(member.now + ms(1000)));
        assert_eq!(member.machine.gives_up(2, member.now), None);
        assert_eq!(gone(&member, 0, 2, 0), Some(Gone::StartedAgain));
        assert_eq!(gone(&member, 2, 1, 0), Some(Gone::Silent(ms(1000))), "it was never heard of");
        member.said[0] = Some(Statement { stalled: ms(1000), ..FOLLOWS });
        member.runs(10);
        assert_eq!(gone(&member, 0, 1, 0), Some(Gone::Stalled(ms(1000))));
        assert!(member.machine.is_stalled(0) && member.machine.recent(0, member.now).is_none());
        member.machine.handle(member.now, Input::Stranger { at: 0 });
        assert_eq!(gone(&member, 0, 1, 0), Some(Gone::Silent(ms(1000))));
    }
}
