//! When a requester sends again, and when it gives up.
//!
//! Read first: IBA Vol 1, 9.7.6 (transport timer), 9.9.2 (retry counters), 9.7.5 (RNR NAK timer).
//!
//! The local ACK timeout of a QP is chosen for the worst path that it may meet, so that waiting for it after every
//! lost tail would cost tens of milliseconds. Here it bounds the *patience* of the QP, as the specification means
//! it: without progress for (retry count + 1) timeouts, somewhat stretched, the work request fails. Within that, requests
//! are sent again after a timeout that follows the measured round trip (RFC 6298), doubling each time.

use std::time::Duration;

use remanence_wire::Psn;

use crate::time::Instant;

/// The shortest retransmission timeout. Either end may be a process that the scheduler took off its core; sending
/// again before it is back only adds work.
const RTO_MIN_NS: u64 = 4_000_000;
/// Before anything was measured.
const RTO_INITIAL_NS: u64 = 25_000_000;
/// The longest step of the doubling; a healed path is noticed within this time.
const RTO_MAX_NS: u64 = 500_000_000;
/// To this, short patience is stretched, by four at the most: as far as a timeout may be longer than what was asked for
/// (9.7.6). Programs ask for half a second, of hardware. A peer in software may be off its core for as long, where it
/// shares it with others.
const PATIENCE_NS: u64 = 1_500_000_000;
/// Time-outs in a row that a live peer seldom lets pass: some 60 ms where it is near.
const SUSPICIOUS: u32 = 4;
/// With an unknown round trip, two reports of the same gap closer than this are one.
const GAP_MIN_NS: u64 = 100_000;

/// The local ACK timeout of a code (IBA Vol 1, 9.7.6); `None` for 0, which means never.
pub(crate) fn local_ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << (code & 0x1f)))
}

/// How long a QP waits for progress before its work request fails; `None` is for ever.
pub(crate) fn patience(timeout: u8, retry_cnt: u8) -> Option<Duration> {
    let asked = local_ack_timeout(timeout)? * (u32::from(retry_cnt) + 1);
    Some(asked.max((asked * 4).min(Duration::from_nanos(PATIENCE_NS))))
}

#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// When to act: to send again, or to go on after an RNR NAK. `None` while nothing is outstanding.
    deadline: Option<Instant>,
    /// When the peer last acknowledged something new, or the QP started to wait.
    progress_at: Instant,
    /// How long after its deadlines it was called since, in sum.
    away: Duration,
    /// The patience was over when it came back, and the peer got one more try.
    spared: bool,
    /// How often the deadline has passed since.
    backoff: u32,
    srtt_ns: u64,
    rttvar_ns: u64,
    /// The shortest round trip that was measured: how far the peer is, whatever waits on the way now and then.
    least_ns: Option<u64>,
    /// A packet whose acknowledgement is being timed.
    sample: Option<(Psn, Instant)>,
    /// RNR NAKs in a row.
    rnr: u8,
    /// Waiting for the RNR NAK timer.
    rnr_wait: bool,
    /// The last gap that was repaired, and when.
    gap: Option<(Psn, Instant)>,
}

/// What to do at a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expired {
    /// The retransmission timeout is over: send again what is not acknowledged.
    Resend,
    /// The RNR NAK timer is over: go on.
    RnrOver,
    /// The retry count is exhausted.
    GiveUp,
}

impl Retry {
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) const fn rnr_waiting(&self) -> bool {
        self.rnr_wait
    }

    /// Whether what is not acknowledged has been sent so often that the peer may have forgotten the QP.
    pub(crate) const fn is_suspicious(&self) -> bool {
        self.backoff >= SUSPICIOUS
    }

    pub(crate) const fn rtt_ns(&self) -> u64 {
        self.srtt_ns
    }

    /// The shortest round trip that was measured, if any was.
    pub(crate) const fn least_rtt_ns(&self) -> Option<u64> {
        self.least_ns
    }

    /// The timeout before any doubling.
    fn base_rto(&self) -> Duration {
        Duration::from_nanos(if self.srtt_ns == 0 {
            RTO_INITIAL_NS
        } else {
            (self.srtt_ns + 4 * self.rttvar_ns).max(RTO_MIN_NS)
        })
    }

    fn rto(&self) -> Duration {
        (self.base_rto() * (1 << self.backoff.min(8))).min(Duration::from_nanos(RTO_MAX_NS))
    }

    /// From here on the peer's silence counts.
    #[inline]
    const fn begin(&mut self, now: Instant) {
        self.progress_at = now;
        self.away = Duration::ZERO;
        self.spared = false;
    }

    /// Something was sent. Starts the timer if it does not run.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.begin(now);
            self.backoff = 0;
            self.deadline = Some(now + self.rto());
        }
    }

    /// Whether no acknowledgement is being timed.
    #[inline]
    pub(crate) const fn wants_sample(&self) -> bool {
        self.sample.is_none()
    }

    /// Times the acknowledgement of `psn`.
    #[inline]
    pub(crate) const fn start_sample(&mut self, psn: Psn, now: Instant) {
        self.sample = Some((psn, now));
    }

    /// The peer acknowledged everything before `una`; `idle` says that nothing more is outstanding.
    #[inline]
    pub(crate) fn on_progress(&mut self, una: Psn, idle: bool, now: Instant) {
        if let Some((psn, sent)) = self.sample
            && psn.is_before(una)
        {
            self.sample = None;
            self.measured(now.as_nanos().saturating_sub(sent.as_nanos()));
        }
        self.begin(now);
        self.backoff = 0;
        self.rnr = 0;
        self.rnr_wait = false;
        self.gap = None;
        self.deadline = if idle { None } else { Some(now + self.rto()) };
    }

    /// RFC 6298, 2.
    fn measured(&mut self, rtt: u64) {
        let rtt = rtt.max(1);
        self.least_ns = Some(self.least_ns.map_or(rtt, |least| least.min(rtt)));
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rttvar_ns) = (rtt, rtt / 2);
        } else {
            self.rttvar_ns = (3 * self.rttvar_ns + self.srtt_ns.abs_diff(rtt)) / 4;
            self.srtt_ns = (7 * self.srtt_ns + rtt) / 8;
        }
    }

    /// The requester goes back: what is being timed would be answered twice (Karn).
    pub(crate) const fn on_go_back(&mut self) {
        self.sample = None;
    }

    /// Whether a report that `una` was lost is news. The packets already in flight behind a gap may report it
    /// again before the repair can have arrived.
    pub(crate) fn is_new_gap(&mut self, una: Psn, now: Instant) -> bool {
        let quiet = self.srtt_ns.max(GAP_MIN_NS);
        let known = self
            .gap
            .is_some_and(|(psn, at)| psn == una && now.as_nanos().saturating_sub(at.as_nanos()) < quiet);
        if !known {
            self.gap = Some((una, now));
        }
        !known
    }

    /// An RNR NAK: wait as long as it asks. `Err` when there were too many in a row; a limit of 7 is none.
    pub(crate) fn on_rnr_nak(&mut self, wait: Duration, limit: u8, now: Instant) -> Result<(), ()> {
        if limit < 7 {
            if self.rnr >= limit {
                return Err(());
            }
            self.rnr += 1;
        }
        self.begin(now);
        self.backoff = 0;
        self.rnr_wait = true;
        self.deadline = Some(now + wait);
        Ok(())
    }

    /// Called when the deadline may have passed; `None` if it has not.
    pub(crate) fn expire(&mut self, timeout: u8, retry_cnt: u8, now: Instant) -> Option<Expired> {
        let deadline = self.deadline?;
        if deadline > now {
            return None;
        }
        if self.rnr_wait {
            self.rnr_wait = false;
            self.begin(now);
            self.deadline = None;
            return Some(Expired::RnrOver);
        }
        let late = now.since(deadline);
        self.away += late;
        let limit = local_ack_timeout(timeout).map_or(self.rto(), |limit| limit.max(self.base_rto()));
        let patience = patience(timeout, retry_cnt).map(|patience| {
            // What we slept through says nothing of the peer. However long it was, we have listened for as long as most
            // programs would wait.
            let listened = self.away + patience.min(Duration::from_nanos(PATIENCE_NS));
            self.progress_at + patience.max(listened)
        });
        if patience.is_some_and(|end| end <= now) {
            if late > Duration::from_nanos(RTO_MIN_NS) && !self.spared {
                // Whoever is back late is not alone in that: where a whole machine stood still, the peer begins to answer just
                // now. Once more, for as long as one answer may take.
                self.spared = true;
                self.backoff += 1;
                self.deadline = Some(now + limit.min(Duration::from_nanos(RTO_MAX_NS)));
                return Some(Expired::Resend);
            }
            self.deadline = None;
            return Some(Expired::GiveUp);
        }
        self.backoff += 1;
        // However far the doubling has come, (retry count + 1) tries must fit into the patience: the QP gives up
        // after that many answers were missed (9.7.6), not after a long silence that it chose itself.
        let next = now + self.rto().min(limit);
        self.deadline = Some(patience.map_or(next, |end| end.min(next)));
        Some(Expired::Resend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1 + millis * MS)
    }

    /// Runs the timer to its end; returns how often it asked to send again, and when it gave up.
    fn exhaust(timeout: u8, retry_cnt: u8) -> (u32, Duration) {
        let mut retry = Retry::default();
        retry.on_sent(at(0));
        let mut resends = 0;
        loop {
            let now = retry.deadline().unwrap();
            match retry.expire(timeout, retry_cnt, now).unwrap() {
                Expired::Resend => resends += 1,
                Expired::GiveUp => return (resends, now.since(at(0))),
                Expired::RnrOver => unreachable!("no RNR NAK came"),
            }
        }
    }

    #[test]
    fn a_qp_gives_up_when_its_patience_ends() {
        for (timeout, retry_cnt) in [(14, 7), (14, 0), (10, 3), (17, 7)] {
            let (resends, gave_up) = exhaust(timeout, retry_cnt);
            let wanted = patience(timeout, retry_cnt).unwrap();
            // The first check is after the initial timeout, so that short patience ends there.
            assert_eq!(gave_up, wanted.max(Duration::from_nanos(RTO_INITIAL_NS)));
            assert!(resends >= u32::from(gave_up > Duration::from_nanos(RTO_INITIAL_NS)));
        }
    }

    #[test]
    fn patience_is_stretched_by_four_up_to_a_second_and_a_half() {
        assert_eq!(patience(0, 7), None);
        assert_eq!(patience(14, 0), Some(Duration::from_nanos(4 * (4096 << 14))));
        assert_eq!(patience(14, 7), Some(Duration::from_millis(1500)), "what most programs ask for");
        assert_eq!(patience(18, 7), Some(Duration::from_nanos(8 * (4096 << 18))), "long enough");
    }

    #[test]
    fn a_deadline_that_was_slept_through_is_no_proof_of_silence() {
        // Slept through in the middle of the patience: the rest of it is still there.
        let mut retry = Retry::default();
        retry.on_sent(at(0));
        assert_eq!(retry.expire(14, 7, at(5000)), Some(Expired::Resend));
        let (mut resends, mut now) = (0, at(5000));
        let gave_up = loop {
            now = now.max(retry.deadline().unwrap());
            match retry.expire(14, 7, now).unwrap() {
                Expired::Resend => resends += 1,
                _ => break now,
            }
        };
        let rest = Duration::from_millis(1500) - Duration::from_nanos(RTO_INITIAL_NS);
        assert_eq!((gave_up.since(at(5000)), resends > 15), (rest, true));

        // Slept through at its very end: the peer has as long as one answer may take, once.
        for back in [5067, 9000] {
            let mut retry = Retry::default();
            retry.on_sent(at(0));
            while retry.deadline().unwrap() < at(1500) {
                assert_eq!(retry.expire(14, 7, retry.deadline().unwrap()), Some(Expired::Resend));
            }
            assert_eq!(retry.expire(14, 7, at(5000)), Some(Expired::Resend));
            let once = retry.deadline().unwrap();
            assert_eq!(once.since(at(5000)), Duration::from_nanos(4096 << 14));
            assert_eq!(retry.expire(14, 7, once.max(at(back))), Some(Expired::GiveUp));
        }
    }

    #[test]
    fn who_is_always_late_gives_up_all_the_same() {
        let mut retry = Retry::default();
        retry.on_sent(at(0));
        let late = Duration::from_millis(300);
        let gave_up = loop {
            let now = retry.deadline().unwrap() + late;
            if retry.expire(20, 7, now) == Some(Expired::GiveUp) {
                break now;
            }
        };
        // One try more, and late twice.
        let wanted = patience(20, 7).unwrap();
        assert!(gave_up.since(at(0)) >= wanted);
        assert!(gave_up.since(at(0)) <= wanted + Duration::from_nanos(RTO_MAX_NS) + late * 2);
    }

    #[test]
    fn the_timeout_follows_the_round_trip_and_doubles() {
        let mut retry = Retry::default();
        for n in 0..20u32 {
            retry.on_sent(at(u64::from(n) * 20));
            retry.start_sample(Psn::new(n), at(u64::from(n) * 20));
            retry.on_progress(Psn::new(n + 1), true, at(u64::from(n) * 20 + 10));
        }
        assert_eq!(retry.deadline(), None);
        assert_eq!(retry.rtt_ns(), 10 * MS);
        retry.on_sent(at(1000));
        let first = retry.deadline().unwrap().since(at(1000));
        assert!(first >= Duration::from_millis(10) && first < Duration::from_millis(20));
        assert_eq!(retry.expire(18, 7, at(1001)), None);
        assert_eq!(retry.expire(18, 7, at(1050)), Some(Expired::Resend));
        assert_eq!(retry.deadline().unwrap().since(at(1050)), first * 2);
    }

    #[test]
    fn rnr_naks_are_counted_unless_the_limit_is_seven() {
        let mut retry = Retry::default();
        retry.on_sent(at(0));
        let wait = Duration::from_millis(1);
        assert_eq!(retry.on_rnr_nak(wait, 2, at(0)), Ok(()));
        assert_eq!(retry.expire(14, 7, at(0)), None);
        assert_eq!(retry.expire(14, 7, at(1)), Some(Expired::RnrOver));
        assert_eq!(retry.on_rnr_nak(wait, 2, at(2)), Ok(()));
        assert_eq!(retry.on_rnr_nak(wait, 2, at(3)), Err(()));
        for n in 0..1000 {
            assert_eq!(retry.on_rnr_nak(wait, 7, at(n)), Ok(()));
        }
    }

    #[test]
    fn a_gap_is_repaired_once_per_round_trip() {
        let mut retry = Retry::default();
        assert!(retry.is_new_gap(Psn::new(5), at(0)));
        assert!(!retry.is_new_gap(Psn::new(5), at(0)));
        assert!(retry.is_new_gap(Psn::new(6), at(0)));
        assert!(retry.is_new_gap(Psn::new(6), at(1)));
    }
}
