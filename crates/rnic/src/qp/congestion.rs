//! How many packets a requester may have in flight.
//!
//! RoCEv2 leaves this to the network (priority flow control) and to DCQCN in hardware. Over plain UDP there is
//! neither, so that a go-back-N sender with a fixed window collapses under loss: every lost packet costs a window.
//! The window here grows and shrinks as TCP's does (RFC 5681: slow start, additive increase, halving once per
//! window that lost something), and a CNP shrinks it by DCQCN's estimate of how congested the path is.
//!
//! READs are windowed too: their response packets count, and a long READ leaves as several requests.

use remanence_wire::Psn;

use crate::device::WindowLimits;
use crate::time::Instant;

/// The window is kept in units of 1/256 packet, so that "one packet per window" adds up.
const ONE: u32 = 256;
/// Below two packets a loss shows only by timeout: nobody comes behind it to reveal the gap.
const MIN: u32 = 2 * ONE;
/// Fixed point of `alpha`.
const ALPHA_ONE: u32 = 1 << 10;
/// Gain of the `alpha` estimate, 1/16: DCQCN's 1/256 is for hardware that sees a thousand CNPs where we see ten.
const ALPHA_SHIFT: u32 = 4;
/// The interval after which `alpha` decays without a CNP, and the least time between two cuts (DCQCN: 55 us).
const CNP_INTERVAL_NS: u64 = 55_000;

#[derive(Debug)]
pub(crate) struct Congestion {
    window: u32,
    threshold: u32,
    max: u32,
    /// Losses of packets before this one were already paid for.
    recovery: Option<Psn>,
    /// Window and threshold before a timeout that is not answered yet, and whether the path is to blame for it.
    undo: Option<(u32, u32, bool)>,
    /// Window and threshold before the last timeout that counted as a loss.
    regret: Option<(u32, u32)>,
    alpha: u32,
    alpha_at: Instant,
    cut_at: Instant,
}

impl Congestion {
    pub(crate) fn new(limits: WindowLimits) -> Self {
        let max = limits.max.clamp(2, 1 << 20) * ONE;
        Self {
            window: (limits.initial.max(2) * ONE).min(max),
            threshold: max,
            max,
            recovery: None,
            undo: None,
            regret: None,
            alpha: ALPHA_ONE,
            alpha_at: Instant::ZERO,
            cut_at: Instant::ZERO,
        }
    }

    /// The window in packets.
    #[inline]
    pub(crate) const fn packets(&self) -> u32 {
        self.window / ONE
    }

    /// `n` packets were newly acknowledged, and everything before `una` has been.
    #[inline]
    pub(crate) fn on_progress(&mut self, n: u32, una: Psn) {
        self.undo = None;
        if let Some(until) = self.recovery {
            if una.is_before(until) {
                return;
            }
            self.recovery = None;
        }
        if self.window >= self.max {
            return;
        }
        let grown = if self.window < self.threshold {
            self.window.saturating_add(n.saturating_mul(ONE))
        } else {
            self.window + (n.min(self.window / ONE) * ONE) / (self.window / ONE).max(1)
        };
        self.window = grown.min(self.max);
    }

    /// A packet was lost; everything up to `max_psn` had been sent.
    pub(crate) fn on_loss(&mut self, una: Psn, max_psn: Psn) {
        (self.undo, self.regret) = (None, None);
        if self.recovery.is_some_and(|until| una.is_before(until)) {
            return;
        }
        self.window = (self.window / 2).max(MIN);
        self.threshold = self.window;
        self.recovery = Some(max_psn);
    }

    /// Nothing came back in time: start over with a single packet. A path that is not to `blame` has lost nothing.
    pub(crate) fn on_timeout(&mut self, max_psn: Psn, blame: bool) {
        if self.undo.is_none() {
            self.undo = Some((self.window, self.threshold, blame));
        }
        self.window = ONE;
        self.recovery = Some(max_psn);
    }

    /// The first answer after a timeout. Had the packet that was sent again been lost the first time, then all
    /// behind it would have been dropped as out of sequence: an answer that covers more proves that nothing was
    /// lost, and only somebody late (as RFC 5682 finds out for TCP). `true` if nothing need be sent again.
    #[inline]
    pub(crate) fn after_timeout(&mut self, covers_more: bool) -> bool {
        let Some((window, threshold, blame)) = self.undo.take() else { return false };
        self.recovery = None;
        if covers_more || !blame {
            (self.window, self.threshold) = (window, threshold);
            return true;
        }
        self.regret = Some((window, threshold));
        self.threshold = (window / 2).max(MIN);
        self.window = MIN;
        false
    }

    /// The response of a READ came a second time: it was late, and not lost (as RFC 3708 concludes for TCP).
    #[cold]
    pub(crate) fn on_duplicate_response(&mut self) {
        if let Some((window, threshold)) = self.regret.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    /// The peer saw congestion marks on our packets.
    pub(crate) fn on_cnp(&mut self, now: Instant, rtt_ns: u64) {
        self.decay(now);
        self.alpha = self.alpha - (self.alpha >> ALPHA_SHIFT) + (ALPHA_ONE >> ALPHA_SHIFT);
        let since = now.as_nanos().saturating_sub(self.cut_at.as_nanos());
        if self.cut_at != Instant::ZERO && since < rtt_ns.max(CNP_INTERVAL_NS) {
            return;
        }
        self.cut_at = now;
        let cut = (u64::from(self.window) * u64::from(self.alpha) / u64::from(2 * ALPHA_ONE)) as u32;
        self.window = (self.window - cut).max(MIN);
        self.threshold = self.window;
    }

    fn decay(&mut self, now: Instant) {
        let intervals = now.as_nanos().saturating_sub(self.alpha_at.as_nanos()) / CNP_INTERVAL_NS;
        if self.alpha_at != Instant::ZERO {
            for _ in 0..intervals.min(64) {
                self.alpha -= self.alpha >> ALPHA_SHIFT;
            }
        }
        self.alpha_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(initial: u32) -> Congestion {
        Congestion::new(WindowLimits { initial, max: 512 })
    }

    #[test]
    fn slow_start_doubles_and_loss_halves_once_per_window() {
        let mut c = window(32);
        c.on_progress(32, Psn::new(32));
        assert_eq!(c.packets(), 64);
        c.on_loss(Psn::new(32), Psn::new(96));
        c.on_loss(Psn::new(40), Psn::new(96));
        assert_eq!(c.packets(), 32);
        c.on_progress(20, Psn::new(60));
        assert_eq!(c.packets(), 32, "no growth before the loss is repaired");
        c.on_progress(36, Psn::new(96));
        assert_eq!(c.packets(), 33, "then one packet per window");
        for _ in 0..10_000 {
            c.on_progress(64, Psn::new(97));
        }
        assert_eq!(c.packets(), 512);
    }

    #[test]
    fn a_timeout_probes_with_one_packet_and_then_believes_the_answer() {
        let mut c = window(64);
        c.on_timeout(Psn::new(64), true);
        c.on_timeout(Psn::new(64), true);
        assert_eq!(c.packets(), 1);
        assert!(c.after_timeout(true), "nothing was lost");
        assert_eq!(c.packets(), 64);
        c.on_timeout(Psn::new(64), false);
        assert!(c.after_timeout(false), "a FLUSH was slow");
        assert_eq!(c.packets(), 64);
        c.on_timeout(Psn::new(64), true);
        assert!(!c.after_timeout(false));
        assert_eq!(c.packets(), 2);
        c.on_progress(2, Psn::new(65));
        assert_eq!(c.packets(), 4, "slow start up to half of what was");
        assert!(!c.after_timeout(true), "only the first answer counts");
    }

    #[test]
    fn cnps_cut_by_how_many_there_are_and_not_more_than_once_a_round_trip() {
        let mut c = window(400);
        let at = |micros: u64| Instant::from_nanos(1 + micros * 1000);
        c.on_cnp(at(0), 100_000);
        assert_eq!(c.packets(), 200);
        c.on_cnp(at(90), 100_000);
        assert_eq!(c.packets(), 200);
        // After a long quiet time a single mark means little.
        c.on_cnp(at(10_000), 100_000);
        assert!(c.packets() > 180);
    }
}
