//! A connection that is made again when it is lost: when that is tried, and how it is waited for.
//!
//! [`Reconnect`] decides, and has neither a clock nor a connection. There is a connection, or an attempt is under way, or the next one
//! waits for its time; nothing here looks at anything now and then. Who has nothing else to do waits for that time
//! ([`Reconnect::due`]) and makes the attempt himself; who has is woken when one has ended that was made beside ([`Reconnecting`]).
//!
//! Nothing is sent again here: what was under way when a connection was lost its user tells of, as failed or as unknown. And nothing is
//! given up here: how long a connection is waited for is a matter of what waits, and each failure is told to it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context as Task, Poll};
use std::time::Instant;

use super::delays::Delays;
use super::faces::{Face, elsewhere};
use super::reactor::Timer;

/// When a connection is made, and made again.
#[derive(Clone, Debug)]
pub struct Reconnect {
    delays: Delays,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connected {
        since: Instant,
    },
    Connecting,
    /// The next attempt waits until then; `None`: it waits for nothing.
    Waiting {
        until: Option<Instant>,
    },
}

impl Reconnect {
    /// There is no connection yet, and the first attempt is due.
    #[must_use]
    pub const fn new(delays: Delays) -> Self {
        Self { delays, phase: Phase::Waiting { until: None } }
    }

    /// Whether there is a connection, as far as it was told.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected { .. })
    }

    /// When the next attempt is due, if it waits for a time.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { until } => until,
            Phase::Connected { .. } | Phase::Connecting => None,
        }
    }

    /// Whether an attempt is to be made now; it is under way then, until it has [succeeded](Self::connected) or [failed](Self::failed).
    #[must_use]
    pub fn begins(&mut self, now: Instant) -> bool {
        let Phase::Waiting { until } = self.phase else { return false };
        let is_due = until.is_none_or(|until| until <= now);
        if is_due {
            self.phase = Phase::Connecting;
        }
        is_due
    }

    /// There is a connection.
    pub const fn connected(&mut self, now: Instant) {
        self.phase = Phase::Connected { since: now };
    }

    /// An attempt was in vain: the next one waits for a delay.
    pub fn failed(&mut self, now: Instant) {
        self.phase = Phase::Waiting { until: now.checked_add(self.delays.next_delay()) };
    }

    /// The connection is lost, if there was one. One that stood for as long as the longest delay is made again at once; what goes as soon as it is
    /// there would be so for ever, and counts as an attempt in vain.
    pub fn lost(&mut self, now: Instant) {
        let Phase::Connected { since } = self.phase else { return };
        if now.saturating_duration_since(since) >= self.delays.most() {
            self.delays.reset();
            self.phase = Phase::Waiting { until: None };
        } else {
            self.failed(now);
        }
    }

    /// Until when the next attempt is waited for, by somebody who waits no longer than that.
    fn rests(&self, limit: Instant) -> Option<Instant> {
        self.deadline().map(|until| until.min(limit))
    }

    /// Waits as it says until an attempt is due, but not beyond `limit`; it is under way then. One that was under way before was given up by whoever
    /// made it.
    pub async fn due(&mut self, face: Face, timer: &mut Timer, limit: Instant) {
        if let Some(until) = self.rests(limit) {
            match face {
                Face::Thread => std::thread::sleep(until.saturating_duration_since(Instant::now())),
                Face::Task => timer.over(until).await,
            }
        }
        self.phase = Phase::Connecting;
    }
}

/// A connection that is made beside whatever its user does, each attempt by a thread of its own, which ends with the attempt.
pub struct Reconnecting<T> {
    reconnect: Reconnect,
    attempt: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T> fmt::Debug for Reconnecting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting").field("reconnect", &self.reconnect).finish_non_exhaustive()
    }
}

impl<T, E> Reconnecting<Result<T, E>> {
    /// As [`Reconnect::new`].
    #[must_use]
    pub const fn new(delays: Delays) -> Self {
        Self { reconnect: Reconnect::new(delays), attempt: None }
    }

    /// There is no connection: what came of the last attempt, if that has ended and was not told yet. Else the task is woken when it has.
    /// If none is under way and one is due, `attempt` is what begins, if anything.
    pub fn poll<A>(
        &mut self,
        task: &mut Task<'_>,
        attempt: impl FnOnce() -> Option<A>,
    ) -> Option<Result<T, E>>
    where
        A: FnOnce() -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let now = Instant::now();
        self.reconnect.lost(now);
        if self.attempt.is_none() {
            let may_begin = self.reconnect.deadline().is_none_or(|until| until <= now);
            let attempt = may_begin.then(attempt).flatten()?;
            self.reconnect.phase = Phase::Connecting;
            self.attempt = Some(Box::pin(elsewhere(attempt)));
        }
        let Poll::Ready(made) = self.attempt.as_mut()?.as_mut().poll(task) else { return None };
        self.attempt = None;
        match &made {
            Ok(_) => self.reconnect.connected(Instant::now()),
            Err(_) => self.reconnect.failed(Instant::now()),
        }
        Some(made)
    }

    /// When the next attempt is due, if it waits for a time.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.reconnect.deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::task::Waker;
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_connection_is_made_at_once_and_after_a_failure_not_before_its_delay() {
        let (begin, mut reconnect) = (Instant::now(), Reconnect::new(Delays::new(8 * MS, 64 * MS)));
        assert!(!reconnect.is_connected() && reconnect.deadline().is_none());
        assert!(reconnect.begins(begin));
        assert!(!reconnect.begins(begin), "one is under way");
        let mut longest = Duration::ZERO;
        let mut now = begin;
        for _ in 0..8 {
            reconnect.failed(now);
            let until = reconnect.deadline().expect("it waits for its time");
            longest = longest.max(until - now);
            assert_eq!(reconnect.rests(until + MS), Some(until));
            assert_eq!(reconnect.rests(now), Some(now), "who waits has a limit");
            assert!(!reconnect.begins(until - MS / 1000), "it is left alone until then");
            assert!(reconnect.begins(until));
            now = until;
        }
        assert!(longest > 16 * MS && longest <= 64 * MS, "delays grow, to their limit: {longest:?}");
        reconnect.connected(now);
        assert!(reconnect.is_connected() && reconnect.deadline().is_none() && !reconnect.begins(now));
    }

    #[test]
    fn one_that_stood_is_made_again_at_once_and_one_that_goes_at_once_is_not() {
        let (begin, mut reconnect) = (Instant::now(), Reconnect::new(Delays::new(8 * MS, 64 * MS)));
        assert!(reconnect.begins(begin));
        reconnect.connected(begin);
        reconnect.lost(begin + 63 * MS);
        let until = reconnect.deadline().expect("it counts as an attempt in vain");
        assert!(until > begin + 63 * MS && !reconnect.is_connected());
        reconnect.lost(begin + 64 * MS);
        assert_eq!(reconnect.deadline(), Some(until), "it is lost once");
        assert!(reconnect.begins(until));
        reconnect.connected(until);
        reconnect.lost(until + 64 * MS);
        assert_eq!(reconnect.deadline(), None);
        assert!(reconnect.begins(until + 64 * MS));
        reconnect.failed(until + 64 * MS);
        let delay = reconnect.deadline().expect("it waits") - (until + 64 * MS);
        assert!(delay <= 8 * MS, "the delays began anew: {delay:?}");
    }

    #[test]
    fn an_attempt_beside_is_made_once_and_told_once() {
        let mut reconnecting = Reconnecting::<Result<u32, ()>>::new(Delays::new(MS, MS));
        let task = &mut Task::from_waker(Waker::noop());
        let none: Option<fn() -> Result<u32, ()>> = None;
        assert_eq!(reconnecting.poll(task, || none), None, "nobody may begin one");
        let (goes_on, waits) = channel();
        assert_eq!(reconnecting.poll(task, || Some(move || waits.recv().map_err(drop))), None);
        let never = || -> Option<fn() -> Result<u32, ()>> { panic!("one is under way") };
        assert_eq!(reconnecting.poll(task, never), None);
        goes_on.send(7).expect("it waits for this");
        let made = loop {
            match reconnecting.poll(task, never) {
                Some(made) => break made,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(made, Ok(7));
        // To ask again says that it is lost: too soon to be made again at once.
        assert_eq!(reconnecting.poll(task, never), None);
        assert!(reconnecting.deadline().is_some());
    }
}
