//! Whether the peer of a quiet connection is still there.
//!
//! When a process with an RNIC of hardware dies, its kernel ends its connections for it. Nobody does that for a process
//! that is its own RNIC, nor for a host that lost its power; and a QP that only waits would wait for ever. So a watched
//! QP that has heard nothing for a while asks: it repeats its last PSN as an RDMA WRITE of no bytes. To the peer that is
//! a duplicate, which every responder acknowledges and none executes (IBA Vol 1, 9.7.4; the R_Key of a WRITE of no
//! bytes is not looked at either), so it needs nothing of the peer but that it lives.

use std::time::Duration;

use crate::time::Instant;

/// Silence after which the QP asks.
const IDLE: Duration = Duration::from_secs(2);
/// Silence between two questions.
const STEP: Duration = Duration::from_secs(1);
/// Questions in a row without an answer: ten seconds of silence in all, which a peer that is merely stopped or short of
/// CPU time does not often need.
const PROBES: u8 = 8;

/// What the silence of a watched peer means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// It is quiet, and has not answered a question yet or cannot be asked: time to look for other evidence.
    Unanswered,
    /// It has answered nothing for so long that it must be gone.
    Lost,
}

#[derive(Debug, Default)]
pub(crate) struct Keepalive {
    /// When to look; `None` while nobody watches.
    deadline: Option<Instant>,
    heard_at: Instant,
    /// Questions asked since.
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

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// A packet of the peer arrived.
    #[inline]
    pub(crate) const fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Called when the deadline may have passed. `asks`: the QP is in a state that sends requests. One that only receives, in
    /// RTR, has nothing to ask with, and the silence of a peer that was not asked proves nothing, however long it is.
    pub(crate) fn expire(&mut self, now: Instant, asks: bool) -> Option<Silence> {
        if self.deadline? > now {
            return None;
        }
        if !asks {
            (self.probes, self.due) = (0, false);
            self.deadline = Some(now + IDLE);
            return (self.heard_at + IDLE <= now).then_some(Silence::Unanswered);
        }
        if self.heard_at + IDLE > now {
            self.probes = 0;
            self.deadline = Some(self.heard_at + IDLE);
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

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * millis)
    }

    #[test]
    fn silence_is_asked_about_and_then_believed() {
        let mut keepalive = Keepalive::default();
        assert_eq!((keepalive.deadline(), keepalive.expire(at(9), true)), (None, None), "nobody watches");
        keepalive.watch(at(0));
        let mut asked = 0;
        let lost = loop {
            let now = keepalive.deadline().expect("still watched");
            match keepalive.expire(now, true) {
                Some(Silence::Lost) => break now,
                Some(Silence::Unanswered) => assert!(asked > 0),
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
        assert_eq!(keepalive.expire(at(2000), true), None);
        assert_eq!((keepalive.due, keepalive.deadline()), (false, Some(at(3500))));
        // An answer to the sixth question is as good as one to the first.
        for second in 0..6 {
            keepalive.expire(at(3500 + second * 1000), true);
        }
        keepalive.heard(at(8600));
        assert_eq!(keepalive.expire(at(9500), true), None);
        assert_eq!((keepalive.probes, keepalive.deadline()), (0, Some(at(10_600))));
    }
}
