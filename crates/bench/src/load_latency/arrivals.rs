//! An open-loop load: requests are due at the times of a Poisson process, whether those before them were answered or not, and the
//! latency of each counts from when it was due. A closed loop asks nothing while it waits, and so charges a stall to the one request that
//! met it (*coordinated omission*). Pure: the clock is an argument.

/// When requests are due, in nanoseconds since the begin: the intervals are independent, and exponentially distributed.
#[derive(Clone, Debug)]
pub struct Poisson {
    random: fastrand::Rng,
    interval: f64,
    at: f64,
}

impl Poisson {
    /// So many a second on average. One seed has one sequence of times.
    #[must_use]
    pub fn new(seed: u64, per_second: f64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), interval: 1e9 / per_second, at: 0.0 }
    }
}

impl Iterator for Poisson {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // What is drawn is below 1, so that the logarithm is finite.
        self.at -= (1.0 - self.random.f64()).ln() * self.interval;
        Some(self.at as u64)
    }
}

/// Nanoseconds since the begin.
pub trait Clock {
    /// How many there are now.
    fn now(&self) -> u64;

    /// Returns at that time, or at once if it has passed.
    fn wait_until(&self, due: u64);
}

/// What became of a load.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    /// Nanoseconds from when each request was due until it was answered.
    pub latencies: Vec<u64>,
    /// When the last one was answered.
    pub end: u64,
}

/// Asks for each request when it is due, or as soon after that as the one before has been answered.
///
/// # Errors
/// The first error of a request.
pub fn open_loop<E>(
    due: impl IntoIterator<Item = u64>,
    clock: &impl Clock,
    mut ask: impl FnMut() -> Result<(), E>,
) -> Result<Answered, E> {
    let mut answered = Answered::default();
    for due in due {
        clock.wait_until(due);
        ask()?;
        answered.end = clock.now();
        answered.latencies.push(answered.end - due);
    }
    Ok(answered)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000 * MICRO;
    const SECOND: u64 = 1_000 * MILLI;

    #[derive(Default)]
    struct Simulated(Cell<u64>);

    impl Clock for Simulated {
        fn now(&self) -> u64 {
            self.0.get()
        }

        fn wait_until(&self, due: u64) {
            self.0.set(self.0.get().max(due));
        }
    }

    /// A load of so many requests a second for a while, each of which takes what `service` says of its begin.
    fn loaded(rate: f64, time: u64, service: impl Fn(u64) -> u64) -> (Vec<u64>, Answered) {
        let due: Vec<u64> = Poisson::new(7, rate).take_while(|due| *due < time).collect();
        let clock = Simulated::default();
        let answered = open_loop(due.iter().copied(), &clock, || {
            clock.0.set(clock.now() + service(clock.now()));
            Ok::<_, ()>(())
        });
        (due, answered.expect("nothing fails"))
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        let due: Vec<u64> = Poisson::new(3, 10_000.0).take(100_000).collect();
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e5 - 1.0).abs() < 0.02, "{mean}");
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.02,
            "exponential intervals vary as much as they last"
        );
        assert_eq!(
            due[..100],
            Poisson::new(3, 10_000.0).take(100).collect::<Vec<_>>(),
            "a seed has one sequence"
        );
        assert_ne!(due[..100], Poisson::new(4, 10_000.0).take(100).collect::<Vec<_>>());
    }

    /// 100 ms in which nothing is answered, of a second in which a request takes 10 us.
    #[test]
    fn a_stall_is_charged_to_every_request_that_was_due_in_it() {
        let stall = 300 * MILLI..400 * MILLI;
        let service = |now: u64| if stall.contains(&now) { stall.end - now } else { 10 * MICRO };
        let (due, answered) = loaded(10_000.0, SECOND, service);
        let mut charged = 0;
        for (due, latency) in due.iter().zip(&answered.latencies) {
            if stall.contains(due) {
                assert!(*latency >= stall.end - due, "due at {due}, {latency}");
                charged += 1;
            }
        }
        assert!((900..1100).contains(&charged), "{charged} of 1000");
        // A closed loop sees one request that is slow. Of those due in it each waits for the stall's end, and for those before it: 556 wait for
        // more than half of it on average.
        let slow = answered.latencies.iter().filter(|latency| **latency > 50 * MILLI).count();
        assert!((500..610).contains(&slow), "{slow} requests waited for more than half of it");
    }

    /// Pollaczek and Khinchine: with one server and a fixed service time `s` a request waits for `s` x load / 2 (1 - load) on average.
    #[test]
    fn queueing_is_what_theory_says() {
        let service = 50 * MICRO;
        for load in [0.2, 0.5, 0.8] {
            let (_, answered) = loaded(load * 20_000.0, 20 * SECOND, |_| service);
            let n = answered.latencies.len() as f64;
            let mean = answered.latencies.iter().map(|latency| *latency as f64).sum::<f64>() / n;
            let theory = service as f64 * (1.0 + load / (2.0 * (1.0 - load)));
            assert!((mean / theory - 1.0).abs() < 0.05, "at {load}: {mean} beside {theory}");
        }
    }

    #[test]
    fn beyond_saturation_everything_is_answered_later_and_later() {
        let (due, answered) = loaded(40_000.0, SECOND, |_| 50 * MICRO);
        assert_eq!(due.len(), answered.latencies.len());
        assert!(answered.end > 19 * SECOND / 10, "half of what is offered is achieved");
        let (early, late) = (answered.latencies[100], answered.latencies[due.len() - 100]);
        assert!(late > 100 * early, "{early} and {late}");
    }

    #[test]
    fn what_fails_ends_it() {
        let mut asked = 0;
        let failed = open_loop([1, 2, 3], &Simulated::default(), || {
            asked += 1;
            if asked == 2 { Err("gone") } else { Ok(()) }
        });
        assert_eq!((failed, asked), (Err("gone"), 2));
    }
}
