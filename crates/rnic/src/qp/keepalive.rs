//! Whether the peer of a quiet connection is still there.
//!
//! When a process with an RNIC of hardware dies, its kernel ends its connections for it. Nobody does that for a process
//! that is its own RNIC, nor for a host that lost its power; and a QP that only waits would wait for ever. So a watched
//! QP that has heard nothing for a while asks: it repeats its last PSN as an RDMA WRITE of no bytes. To the peer that is
//! a duplicate, which every responder acknowledges and none executes (IBA Vol 1, 9.7.4; the R_Key of a WRITE of no
//! bytes is not looked at either), so it needs nothing of the peer but that it lives.
//!
//! How soon it asks follows from how long the connection has not been used, so that ten thousand that nobody uses cost next to
//! nothing, and one that is in use loses its peer within ten seconds. The first request in either direction ends that.

use std::time::Duration;

use remanence_wire::Psn;

use crate::time::Instant;

/// Silence after which the QP asks where the connection is in use.
const IDLE: Duration = Duration::from_secs(2);
/// The part of the time without use after which it asks otherwise,
const PART: u32 = 4;
/// but no later than this.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Connections that are not in use ask in whole seconds of the clock: the questions of many, and the answers, come together, and
/// wake nobody for each.
const GRID: u64 = 1_000_000_000;
/// Silence between two questions.
const STEP: Duration = Duration::from_secs(1);
/// Questions in a row without an answer: at least ten seconds of silence in all, which a peer that is merely stopped or short
/// of CPU time does not often need.
const PROBES: u8 = 8;

/// What the silence of a watched peer means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// Requests were sent to it again and again, and it acknowledged nothing. It may be merely slow: time to ask whether it still knows of the
    /// connection.
    Retried,
    /// It is quiet, and has not answered a question yet or cannot be asked: time to look for other evidence.
    Unanswered,
    /// It has answered nothing for so long that it must be gone.
    Lost,
}

/// How many requests have left, and how many came, modulo 2^24 each.
pub(crate) type Progress = (Psn, Psn);

#[derive(Debug, Default)]
pub(crate) struct Keepalive {
    /// When to look; `None` while nobody watches.
    deadline: Option<Instant>,
    heard_at: Instant,
    /// The PSNs of the next request and of the next one expected, as of the last look. Questions change neither.
    progress: Option<Progress>,
    /// The last look that found other ones than that before.
    used_at: Instant,
    /// Questions asked since something was heard.
    probes: u8,
    /// A question is to be sent.
    pub(crate) due: bool,
}

impl Keepalive {
    pub(crate) fn watch(&mut self, now: Instant) {
        *self = Self { deadline: Some(now + IDLE), heard_at: now, ..Self::default() };
    }

    pub(crate) fn stop(&mut self) {
        *self = Self::default();
    }

    pub(crate) const fn is_watching(&self) -> bool {
        self.deadline.is_some()
    }

    /// When to look. Soon where the connection is used again, however long it was not.
    #[inline]
    pub(crate) fn deadline(&mut self, progress: Progress) -> Option<Instant> {
        let deadline = self.deadline.as_mut()?;
        if self.probes == 0 && self.progress != Some(progress) {
            *deadline = (*deadline).min(self.heard_at + IDLE);
        }
        Some(*deadline)
    }

    /// When the QP asks.
    fn ask_at(&self) -> Instant {
        let at = self.heard_at + (self.heard_at.since(self.used_at) / PART).min(IDLE_MAX);
        Instant::from_nanos(at.as_nanos() / GRID * GRID).max(self.heard_at + IDLE)
    }

    /// A packet of the peer arrived.
    #[inline]
    pub(crate) const fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Called when the deadline may have passed. `asks`: the QP is in a state that sends requests. One that only receives, in
    /// RTR, has nothing to ask with, and the silence of a peer that was not asked proves nothing, however long it is.
    pub(crate) fn expire(&mut self, now: Instant, asks: bool, progress: Progress) -> Option<Silence> {
        if self.deadline? > now {
            return None;
        }
        if self.progress.replace(progress) != Some(progress) {
            self.used_at = now;
        }
        if !asks {
            (self.probes, self.due) = (0, false);
            self.deadline = Some(now + IDLE);
            return (self.heard_at + IDLE <= now).then_some(Silence::Unanswered);
        }
        if self.ask_at() > now {
            self.probes = 0;
            self.deadline = Some(self.ask_at());
            return None;
        }
        if self.probes == PROBES {
            self.stop();
            return Some(Silence::Lost);
        }
        self.probes += 1;
        self.due = true;
        self.deadline = Some(now + STEP);
        (self.probes > 1).then_some(Silence::Unanswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: [Progress; 2] = [(Psn::new(7), Psn::new(9)), (Psn::new(7), Psn::new(10))];

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * millis)
    }

    /// Looks whenever it is time to, and says when the first question is asked.
    fn asks_at(keepalive: &mut Keepalive, progress: Progress) -> Instant {
        loop {
            let now = keepalive.deadline(progress).expect("still watched");
            assert_eq!(keepalive.expire(now, true, progress), None);
            if std::mem::take(&mut keepalive.due) {
                return now;
            }
        }
    }

    #[test]
    fn silence_is_asked_about_and_then_believed() {
        let mut keepalive = Keepalive::default();
        assert_eq!(
            (keepalive.deadline(AFTER[0]), keepalive.expire(at(9), true, AFTER[0])),
            (None, None),
            "nobody watches"
        );
        keepalive.watch(at(0));
        let mut asked = 0;
        let lost = loop {
            let now = keepalive.deadline(AFTER[0]).expect("still watched");
            match keepalive.expire(now, true, AFTER[0]) {
                Some(Silence::Lost) => break now,
                Some(Silence::Unanswered) => assert!(asked > 0),
                Some(Silence::Retried) => unreachable!("it sends nothing but questions"),
                None => assert_eq!(asked, 0),
            }
            assert!(std::mem::take(&mut keepalive.due));
            asked += 1;
        };
        assert_eq!((asked, lost, keepalive.is_watching()), (PROBES, at(10_000), false));
    }

    #[test]
    fn whoever_is_heard_is_not_asked() {
        let mut keepalive = Keepalive::default();
        keepalive.watch(at(0));
        keepalive.heard(at(1500));
        assert_eq!(keepalive.expire(at(2000), true, AFTER[0]), None);
        assert_eq!((keepalive.due, keepalive.deadline(AFTER[0])), (false, Some(at(3500))));
        // An answer to the sixth question is as good as one to the first.
        for second in 0..6 {
            keepalive.expire(at(3500 + second * 1000), true, AFTER[0]);
        }
        keepalive.heard(at(8600));
        assert_eq!(keepalive.expire(at(9500), true, AFTER[0]), None);
        assert_eq!((keepalive.probes, keepalive.deadline(AFTER[0])), (0, Some(at(10_600))));
    }

    #[test]
    fn the_longer_it_is_not_used_the_less_it_asks() {
        let mut keepalive = Keepalive::default();
        keepalive.watch(at(0));
        let (mut last, mut questions) = (at(0), 0);
        while last < at(600_000) {
            let now = asks_at(&mut keepalive, AFTER[0]);
            let quiet = (last.since(at(2000)) / PART).clamp(IDLE, IDLE_MAX);
            assert!((quiet - STEP..=quiet).contains(&now.since(last)), "after {last:?}: {now:?}");
            assert!(now.as_nanos().is_multiple_of(GRID), "{now:?} is the moment of nobody else");
            keepalive.heard(now);
            (last, questions) = (now, questions + 1);
        }
        assert!((30..40).contains(&questions), "{questions} questions in ten minutes");
        // Used again: it is not long until the next question, whoever sent the request and whenever that was.
        assert_eq!(keepalive.expire(last + STEP, true, AFTER[0]), None);
        assert_eq!(keepalive.deadline(AFTER[0]), Some(last + IDLE_MAX));
        assert_eq!(keepalive.deadline(AFTER[1]), Some(last + IDLE));
        assert_eq!(asks_at(&mut keepalive, AFTER[1]), last + IDLE);
        keepalive.heard(last + IDLE);
        assert_eq!(asks_at(&mut keepalive, AFTER[1]), last + 2 * IDLE);
    }

    #[test]
    fn requests_to_a_peer_that_does_not_answer_bring_its_end_no_nearer() {
        let mut keepalive = Keepalive::default();
        keepalive.watch(at(0));
        asks_at(&mut keepalive, AFTER[0]);
        assert_eq!(keepalive.deadline(AFTER[1]), Some(at(2000) + STEP));
    }
}
