//! What a primary does for the other members between requests, as far as that is to be decided: when it asks their images to follow, and to
//! which members that it does without it connects again, when, and how long it waits for that. Pure: it is told the time and what was heard;
//! whoever drives a [`Primary`](super::Primary) carries it out, over real connections or over simulated ones.

use std::time::Duration;

use remanence_coord::log::Epoch;
use remanence_coord::log::group::ConnectionLost;
use remanence_coord::takeover::Takeover;

use super::driver::Connections;

/// An image that does not follow is asked to again after this. All follow when nothing was changed for as long.
const AGAIN: Duration = Duration::from_secs(1);
/// How long members to which a primary could not connect are left alone at most.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// When a primary asks all images to follow the log.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    /// When it did so last.
    followed: Duration,
    /// How much was acknowledged when that was looked at last, and since when.
    acknowledged: (u64, Duration),
    /// Some images do not follow.
    is_behind: bool,
}

impl Upkeep {
    /// Of a primary that begins now.
    #[must_use]
    pub const fn new(now: Duration) -> Self {
        Self { followed: now, acknowledged: (0, now), is_behind: false }
    }

    /// So much is acknowledged.
    pub fn acknowledged(&mut self, now: Duration, below: u64) {
        if self.acknowledged.0 != below {
            self.acknowledged = (below, now);
        }
    }

    /// Whether some images do not follow.
    pub const fn behind(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// Whether all images are to be asked to follow now, which is then done. `is_back`: a member was connected to again, or started again;
    /// `is_followed`: all that is acknowledged was sent to the images.
    pub fn follows(&mut self, now: Duration, is_back: bool, is_followed: bool) -> bool {
        // Whoever was started again has an image to be asked for, or its connection is to be found out to be gone.
        let is_due = is_back || self.deadline(is_followed).is_some_and(|at| at <= now);
        if is_due {
            self.followed = now;
        }
        is_due
    }

    /// From when on nothing was changed for a while, if nothing is changed before that.
    #[must_use]
    pub fn rests_from(&self) -> Duration {
        self.acknowledged.1 + AGAIN
    }

    /// When all images will be asked to follow, should nobody come back before that.
    #[must_use]
    pub fn deadline(&self, is_followed: bool) -> Option<Duration> {
        // While nobody changes anything the images catch up, so that whoever takes over has little to apply.
        let rests = (!is_followed).then(|| self.acknowledged.1.max(self.followed) + AGAIN);
        // Who was the primary before may have been ending that still.
        let behind = self.is_behind.then(|| self.followed + AGAIN);
        rests.into_iter().chain(behind).min()
    }
}

/// To which members a primary is to connect that it does without.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Returning {
    /// To all members, to open the log again: some have promised theirs to somebody who did not become the primary.
    All,
    /// To these, which go on in the same epoch.
    These(Vec<usize>),
    /// To none before then, if nothing happens; `None`: not before something happens.
    Rest(Option<Duration>),
}

/// To which members that it does without a primary connects, and when. A member that fails again and again does not hold up clients all the
/// time; one that was started again may do better.
#[derive(Clone, Debug)]
struct Returns {
    shortest: Duration,
    pause: Duration,
    again: Duration,
    /// The members that were there when it connected last.
    lives: Vec<u64>,
}

impl Returns {
    /// Of a primary that begins now, and may be silent for so long.
    fn new(now: Duration, notice: Duration, takeover: &Takeover) -> Self {
        let shortest = (notice / 2).min(PAUSE_MAX);
        Self { shortest, pause: shortest, again: now, lives: takeover.lives(now) }
    }

    /// What is to be done now, by the primary of that epoch; `lost`: the members that it does without; `under_way`: those that it connects to
    /// already.
    fn turn(
        &mut self,
        now: Duration,
        takeover: &Takeover,
        epoch: Epoch,
        lost: &[usize],
        under_way: impl Fn(usize) -> bool,
    ) -> Returning {
        if lost.is_empty() {
            self.pause = self.shortest;
        }
        let away = takeover.has_promised_away(epoch, now);
        let wanted = (0..takeover.members())
            .filter(|at| takeover.wants_back(*at, epoch, lost.contains(at), now) && !under_way(*at));
        let wanted: Vec<usize> = wanted.collect();
        if !away && wanted.is_empty() {
            return Returning::Rest(None);
        }
        let lives = takeover.lives(now);
        if now < self.again && self.lives == lives {
            return Returning::Rest(Some(self.again));
        }
        (self.lives, self.again) = (lives, now + self.pause);
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        if away { Returning::All } else { Returning::These(wanted) }
    }
}

/// Connections that are made to all members at one time, for a log that is opened, or opened again. It is over when it is known of all what
/// came of them, or when enough are there and the others were given their time.
#[derive(Debug)]
pub struct Round<C> {
    made: Vec<Option<Result<C, ConnectionLost>>>,
    /// How many connections are enough, and how long the others are waited for then.
    enough: usize,
    grace: Duration,
    end: Option<Duration>,
}

impl<C> Round<C> {
    /// Of whoever takes over, or opens the log again, and may be silent for so long.
    #[must_use]
    pub fn new(takeover: &Takeover, notice: Duration) -> Self {
        let made = (0..takeover.members()).map(|_| None).collect();
        Self { made, enough: takeover.enough(), grace: notice, end: None }
    }

    /// That came of connecting to a member.
    pub fn take(&mut self, now: Duration, at: usize, made: Result<C, ConnectionLost>) {
        self.made[at] = Some(made);
        let there = self.made.iter().flatten().filter(|made| made.is_ok()).count();
        if self.made.iter().all(Option::is_some) {
            self.end = Some(now);
        } else if there >= self.enough {
            self.end.get_or_insert(now + self.grace);
        }
    }

    /// When it is over, should nothing more come of any; `None`: not before more has come.
    #[must_use]
    pub const fn end(&self) -> Option<Duration> {
        self.end
    }

    /// Whether the log can be [opened again](Takeover::can_open) by whoever leads, with those that there is a connection to. If it cannot, to
    /// begin with that would end a primary that is needed.
    fn is_worth_it(&self, takeover: &Takeover) -> bool {
        takeover.can_open(|at| matches!(self.made[at], Some(Ok(_))))
    }

    /// What came of all of them, by these names.
    #[must_use]
    pub fn connections(self, names: &[String]) -> Connections<C> {
        let late = || Err(ConnectionLost("connecting to it takes its time".into()));
        let made = self.made.into_iter().map(|made| made.unwrap_or_else(late));
        names.iter().cloned().zip(made).collect()
    }
}

/// What a primary does next about members that it does without.
#[derive(Debug)]
pub enum Bring<C> {
    /// Connect to these; [`made`](Bringing::made) is told what comes of it.
    Connect(Vec<usize>),
    /// Open the log again, with these connections.
    Open(Round<C>),
    /// Drop these connections: they were made to open the log again, which is not wanted any more, or cannot be done with them.
    Leave(Round<C>),
    /// Nothing before then, if nothing happens; `None`: not before something happens.
    Rest(Option<Duration>),
}

/// The connections that a primary makes to members that it does without: to those that are there again and go on in the same epoch, and to all
/// members where the log is to be opened again. Nothing else begins while one of these rounds is under way, and whatever comes belongs to it.
#[derive(Debug)]
pub struct Bringing<C> {
    notice: Duration,
    returns: Returns,
    round: Option<Round<C>>,
}

impl<C> Bringing<C> {
    /// Of a primary that begins now, and may be silent for so long.
    #[must_use]
    pub fn new(now: Duration, notice: Duration, takeover: &Takeover) -> Self {
        Self { notice, returns: Returns::new(now, notice, takeover), round: None }
    }

    /// That came of connecting to a member, perhaps later than was waited for. A connection that is returned is for that member alone, in the
    /// same epoch.
    pub fn made(&mut self, now: Duration, at: usize, made: Result<C, ConnectionLost>) -> Option<C> {
        match &mut self.round {
            Some(round) => {
                round.take(now, at, made);
                None
            }
            None => made.ok(),
        }
    }

    /// What is to be done now, by the primary of that epoch; `lost`: the members that it does without; `under_way`: those that it connects to
    /// already. To be asked again when something has come, and when connections were taken or left.
    pub fn turn(
        &mut self,
        now: Duration,
        takeover: &Takeover,
        epoch: Epoch,
        lost: &[usize],
        under_way: impl Fn(usize) -> bool,
    ) -> Bring<C> {
        if let Some(round) = self.round.take_if(|round| round.end().is_some_and(|end| end <= now)) {
            // Connecting takes its time: somebody may have become the primary meanwhile.
            let is_wanted = takeover.has_promised_away(epoch, now) && round.is_worth_it(takeover);
            return if is_wanted { Bring::Open(round) } else { Bring::Leave(round) };
        }
        if let Some(round) = &self.round {
            return Bring::Rest(round.end());
        }
        match self.returns.turn(now, takeover, epoch, lost, &under_way) {
            Returning::Rest(at) => Bring::Rest(at),
            Returning::These(wanted) => Bring::Connect(wanted),
            Returning::All => {
                self.round = Some(Round::new(takeover, self.notice));
                Bring::Connect((0..takeover.members()).filter(|at| !under_way(*at)).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use remanence_coord::takeover::{Input, Own, Role, Statement};

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn images_follow_when_nothing_was_changed_for_a_while_and_not_all_the_time() {
        let mut upkeep = Upkeep::new(ms(0));
        upkeep.acknowledged(ms(400), 7);
        assert_eq!(upkeep.deadline(false), Some(ms(1400)));
        assert_eq!(upkeep.deadline(true), None, "they have all of it");
        upkeep.acknowledged(ms(900), 7);
        assert!(!upkeep.follows(ms(1399), false, false), "not yet");
        assert!(upkeep.follows(ms(1400), false, false));
        assert!(!upkeep.follows(ms(1401), false, false), "they were asked a moment ago");
        upkeep.acknowledged(ms(2000), 8);
        assert!(!upkeep.follows(ms(2400), false, false), "there are changes");
        assert!(upkeep.follows(ms(2401), true, false), "somebody is back");
    }

    #[test]
    fn an_image_that_is_behind_is_asked_again_though_there_are_changes() {
        let mut upkeep = Upkeep::new(ms(0));
        upkeep.behind(true);
        upkeep.acknowledged(ms(900), 7);
        assert!(!upkeep.follows(ms(999), false, true) && upkeep.follows(ms(1000), false, true));
        upkeep.behind(false);
        assert_eq!(upkeep.deadline(true), None);
    }

    const EPOCH: Epoch = Epoch::new(5, 1);

    /// Three members, of which the first one leads, and has just heard these of the others.
    fn members(now: Duration, said: [Option<Statement>; 2]) -> Takeover {
        let own = Own {
            promised: EPOCH,
            is_new: false,
            holds: true,
            has_image: true,
            is_stuck: false,
            acks: 2,
            stalled: Duration::ZERO,
            failed: false,
        };
        let mut takeover = Takeover::new(now, 0, 3, ms(200), own);
        takeover.handle(now, Input::Leads { epoch: EPOCH });
        for (at, said) in said.into_iter().enumerate() {
            if let Some(said) = said {
                takeover.handle(now, Input::Heard { at: at + 1, said });
            }
        }
        takeover
    }

    const fn says(role: Role, epoch: Epoch, life: u64) -> Option<Statement> {
        Some(Statement {
            role,
            epoch,
            life,
            stalled: Duration::ZERO,
            failed: false,
            has_image: true,
            belongs: true,
            holds: true,
        })
    }

    #[test]
    fn who_is_there_again_is_connected_to_and_is_left_alone_for_longer_each_time() {
        let at = ms(1000);
        let members =
            |now, life| members(now, [says(Role::Follower, EPOCH, 7), says(Role::Waiting, EPOCH, life)]);
        let mut returns = Returns::new(at, ms(200), &members(at, 8));
        let mut turn = |now, life, lost: &[usize], busy: usize| {
            returns.turn(now, &members(now, life), EPOCH, lost, |at| at == busy)
        };
        assert_eq!(turn(at, 8, &[], 9), Returning::Rest(None), "nobody is missing");
        assert_eq!(turn(at, 8, &[2], 2), Returning::Rest(None), "it is being connected to");
        assert_eq!(turn(at, 8, &[2], 9), Returning::These(vec![2]));
        assert_eq!(turn(at, 8, &[2], 9), Returning::Rest(Some(at + ms(100))), "a moment ago");
        assert_eq!(turn(at + ms(100), 8, &[2], 9), Returning::These(vec![2]));
        assert_eq!(turn(at + ms(100), 8, &[2], 9), Returning::Rest(Some(at + ms(300))), "twice as long");
        assert_eq!(turn(at + ms(110), 9, &[2], 9), Returning::These(vec![2]), "it was started again");
        assert_eq!(turn(at + ms(110), 9, &[], 9), Returning::Rest(None));
        assert_eq!(returns.pause, ms(100), "it has all of them");
    }

    #[test]
    fn who_has_promised_its_log_away_has_all_of_them_connected_to() {
        let (at, other) = (ms(1000), Epoch::new(6, 3));
        let turn = |role, lost: &[usize]| {
            let takeover = members(at, [says(role, other, 7), None]);
            Returns::new(at, ms(200), &takeover).turn(at, &takeover, EPOCH, lost, |_| false)
        };
        assert_eq!(turn(Role::Waiting, &[2]), Returning::All);
        assert_eq!(turn(Role::Primary, &[1, 2]), Returning::Rest(None), "there is a later primary");
    }

    /// What a member says that has promised its log to somebody who did not become the primary.
    const AWAY: Option<Statement> = says(Role::Waiting, Epoch::new(6, 3), 7);

    #[test]
    fn what_comes_while_the_log_is_to_be_opened_again_is_for_that_and_nothing_else_begins() {
        let (at, follows) = (ms(1000), says(Role::Follower, EPOCH, 8));
        let takeover = |now| members(now, [AWAY, follows]);
        let mut bringing = Bringing::new(at, ms(200), &takeover(at));
        assert_eq!(bringing.made(at, 2, Ok("late")), Some("late"), "it is for that one alone");
        let turn = |bringing: &mut Bringing<&'static str>, now| {
            bringing.turn(now, &takeover(now), EPOCH, &[1], |at| at == 2)
        };
        let Bring::Connect(to) = turn(&mut bringing, at) else { panic!("one has promised its log away") };
        assert_eq!(to, [0, 1], "it connects to the third already");
        assert!(matches!(turn(&mut bringing, at), Bring::Rest(None)), "nothing has come of it");
        assert_eq!(bringing.made(at, 0, Ok("own")), None);
        assert_eq!(bringing.made(at + ms(1), 1, Ok("away")), None);
        let ends = at + ms(201);
        assert!(matches!(turn(&mut bringing, at + ms(1)), Bring::Rest(Some(end)) if end == ends));
        let Bring::Open(round) = turn(&mut bringing, ends) else { panic!("enough are there") };
        let made =
            round.connections(&["a", "b", "c"].map(String::from)).into_iter().map(|(_, made)| made.ok());
        assert_eq!(made.collect::<Vec<_>>(), [Some("own"), Some("away"), None]);
        assert_eq!(bringing.made(ends, 2, Ok("later")), Some("later"), "it came too late for that");
    }

    #[test]
    fn connections_for_a_log_that_is_not_to_be_opened_again_are_given_back() {
        let at = ms(1000);
        let later = says(Role::Primary, Epoch::new(7, 3), 8);
        for (third, second) in [(later, true), (says(Role::Follower, EPOCH, 8), false)] {
            let takeover = members(at, [AWAY, says(Role::Follower, EPOCH, 8)]);
            let mut bringing = Bringing::new(at, ms(200), &takeover);
            let begun = bringing.turn(at, &takeover, EPOCH, &[1], |_| false);
            assert!(matches!(begun, Bring::Connect(to) if to == [0, 1, 2]));
            for (n, is_made) in [true, second, false].into_iter().enumerate() {
                let made = if is_made { Ok(()) } else { Err(ConnectionLost("it is away".into())) };
                assert!(bringing.made(at, n, made).is_none());
            }
            // There is a later primary by now; or too few of them were there.
            let takeover = members(at, [AWAY, third]);
            let turn = bringing.turn(at, &takeover, EPOCH, &[1], |_| false);
            assert!(matches!(turn, Bring::Leave(_)), "{turn:?}");
        }
    }

    #[test]
    fn who_is_connected_to_late_is_waited_for_only_until_enough_are_there() {
        let grace = ms(200);
        let round = || Round::new(&members(ms(0), [None, None]), grace);
        let lost = || Err(ConnectionLost("it is away".into()));
        // What came of all is known: it is over by then, whoever looks, and whenever.
        let mut all = round();
        for (n, at) in [0, 2, 1].into_iter().enumerate() {
            assert_eq!(all.end(), None, "one of two that are needed is there");
            all.take(ms(n as u64), at, if at == 0 { Ok(()) } else { lost() });
        }
        assert_eq!(all.end(), Some(ms(2)), "there is nothing more to wait for");
        // One is late.
        let mut round = round();
        round.take(ms(1), 0, Ok(()));
        assert_eq!(round.end(), None);
        round.take(ms(2), 2, Ok(()));
        assert_eq!(round.end(), Some(ms(2) + grace));
        let names = ["a", "b", "c"].map(String::from);
        let late: Vec<bool> = round.connections(&names).into_iter().map(|(_, made)| made.is_err()).collect();
        assert_eq!(late, [false, true, false]);
    }

    #[test]
    fn the_log_is_not_opened_again_without_those_whose_promises_are_needed() {
        let said = |belongs| says(Role::Waiting, EPOCH, 7).map(|said| Statement { belongs, ..said });
        for (second, is_worth_it) in [(true, true), (false, false)] {
            let takeover = members(ms(0), [said(second), said(true)]);
            let mut round = Round::new(&takeover, ms(200));
            round.take(ms(1), 0, Ok(()));
            assert!(!round.is_worth_it(&takeover), "nobody but itself");
            round.take(ms(1), 1, Ok(()));
            assert_eq!(
                round.is_worth_it(&takeover),
                is_worth_it,
                "one that has never adopted anything has no say"
            );
            round.take(ms(1), 2, Ok(()));
            assert!(round.is_worth_it(&takeover));
        }
    }
}
