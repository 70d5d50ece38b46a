//! Round trips, and what follows from them: when a packet is sent again, and how many may be under way.
//!
//! The timeout is that of RFC 6298. The window grows by one packet each round trip that shows no queue, and shrinks in
//! proportion to the excess delay of one that does, at most by half and at most once a round trip: the window form of
//! delay-based control (Timely's signal, Swift's law). eRPC paces by Timely's rate; with windows of 32 packets and
//! no hardware that paces, a window does the same without a timer for each packet.

use std::time::Duration;

use remanence_rnic::Instant;

/// Fixed point: 16 bits of fraction.
const ONE: u64 = 1 << 16;

/// What the round trips of one session say.
#[derive(Clone, Debug)]
pub struct Congestion {
    credits: u64,
    queueing: Duration,
    timeout_min: Duration,
    timeout_max: Duration,
    /// Packets, in fixed point.
    window: u64,
    smoothed: Option<Duration>,
    variation: Duration,
    shortest: Duration,
    /// No further cut before this.
    cut_until: Instant,
}

impl Congestion {
    /// With a full window: what credits allow is little for any network.
    pub(crate) fn new(
        credits: u16,
        queueing: Duration,
        timeout_min: Duration,
        timeout_max: Duration,
    ) -> Self {
        let credits = u64::from(credits.max(1));
        Self {
            credits,
            queueing,
            timeout_min,
            timeout_max,
            window: credits * ONE,
            smoothed: None,
            variation: Duration::ZERO,
            shortest: Duration::MAX,
            cut_until: Instant::ZERO,
        }
    }

    /// The peer grants so many.
    pub(crate) fn limit(&mut self, credits: u16) {
        self.credits = u64::from(credits.max(1));
        self.window = self.window.min(self.credits * ONE);
    }

    /// Packets that may be under way.
    #[must_use]
    pub fn window(&self) -> u32 {
        (self.window / ONE) as u32
    }

    /// How long to wait for an answer the first time.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        let estimate = self.smoothed.map_or(self.timeout_min * 4, |smoothed| smoothed + self.variation * 4);
        estimate.clamp(self.timeout_min, self.timeout_max)
    }

    /// The shortest round trip so far.
    #[must_use]
    pub fn shortest(&self) -> Option<Duration> {
        self.smoothed.map(|_| self.shortest)
    }

    /// An answer came to a packet that was sent once: `sample` is the round trip without the server's own time.
    pub(crate) fn on_answer(&mut self, now: Instant, sample: Duration) {
        let smoothed = match self.smoothed {
            None => {
                self.variation = sample / 2;
                sample
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                (smoothed * 7 + sample) / 8
            }
        };
        self.smoothed = Some(smoothed);
        self.shortest = self.shortest.min(sample);
        let target = self.queueing.max(self.shortest * 4);
        if sample <= target {
            self.window = (self.window + ONE * ONE / self.window).min(self.credits * ONE);
        } else if now >= self.cut_until {
            let (excess, whole) = ((sample - target).as_nanos(), sample.as_nanos());
            // The share of the excess, at most half: what the window loses.
            let share = (excess * u128::from(ONE) / whole).min(u128::from(ONE / 2)) as u64;
            self.cut(now, self.window - self.window * share / ONE);
        }
    }

    /// Packets were lost.
    pub(crate) fn on_loss(&mut self, now: Instant) {
        if now >= self.cut_until {
            self.cut(now, self.window / 2);
        }
    }

    fn cut(&mut self, now: Instant, to: u64) {
        self.window = to.max(ONE);
        self.cut_until = now + self.smoothed.unwrap_or(self.timeout_min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn fresh() -> Congestion {
        Congestion::new(32, US * 100, US * 1000, US * 100_000)
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn short_round_trips_keep_the_window_at_the_credits() {
        let mut it = fresh();
        (0..100).for_each(|i| it.on_answer(at(i * 10), US * 10));
        assert_eq!(it.window(), 32);
        it.limit(4);
        assert_eq!(it.window(), 4);
        (0..100).for_each(|i| it.on_answer(at(i * 10), US * 10));
        assert_eq!(it.window(), 4, "never beyond what was granted");
    }

    #[test]
    fn a_queue_shrinks_the_window_once_a_round_trip_and_its_end_grows_it() {
        let mut it = fresh();
        it.on_answer(at(0), US * 10);
        it.on_answer(at(10), US * 1000);
        let cut = it.window();
        assert!((16..32).contains(&cut), "{cut}: at most by half");
        it.on_answer(at(11), US * 1000);
        assert_eq!(it.window(), cut, "once");
        (0..200).for_each(|i| it.on_answer(at(100_000 + i * 5000), US * 1000));
        assert_eq!(it.window(), 1, "one packet at least");
        (0..2000).for_each(|i| it.on_answer(at(10_000_000 + i * 10), US * 10));
        assert_eq!(it.window(), 32);
    }

    #[test]
    fn the_timeout_follows_the_round_trips_within_its_bounds() {
        let mut it = fresh();
        assert_eq!(it.timeout(), US * 4000);
        (0..50).for_each(|_| it.on_answer(at(0), US * 10));
        assert_eq!(it.timeout(), US * 1000, "the least");
        (0..50).for_each(|_| it.on_answer(at(0), US * 20_000));
        assert!(it.timeout() >= US * 20_000 && it.timeout() <= US * 100_000, "{:?}", it.timeout());
        (0..50).for_each(|_| it.on_answer(at(0), US * 1_000_000));
        assert_eq!(it.timeout(), US * 100_000, "the most");
        assert_eq!(it.shortest(), Some(US * 10));
    }
}
