//! What the servers here have in common: they turn round and round, and somebody may want to know what their applications cost beside the
//! endpoint.

use remanence_service::Meter;

/// One turn of so many is timed, and counts for all of them: reading a thread's CPU clock takes longer than a small call's copy. It is a
/// prime number, so that it does not keep step with how many calls come together.
const ONE_OF: u64 = 17;

/// Times a server's turns that serve somebody, once it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Metering {
    meter: Option<Meter>,
    turns: u64,
}

impl Metering {
    /// What counts from here on.
    pub(crate) fn meter(&mut self) -> Meter {
        self.meter.get_or_insert_default().clone()
    }

    /// A turn begins to serve: the CPU time of this thread, if it is timed.
    pub(crate) fn begins(&mut self) -> Option<u64> {
        self.meter.as_ref()?;
        self.turns += 1;
        self.turns.is_multiple_of(ONE_OF).then(Meter::now)
    }

    /// It has served so many requests.
    pub(crate) fn served(&self, requests: u64, since: Option<u64>) {
        let Some(meter) = &self.meter else { return };
        let nanos = since.map_or(0, |since| Meter::now().saturating_sub(since) * ONE_OF);
        meter.spent(requests, nanos);
    }
}

/// Gives a server whose `turn` does what has come, by its fields `rpc` and `metering`, what makes it go round.
macro_rules! event_loop {
    ($server:ty) => {
        impl $server {
            /// The endpoint that the server answers through.
            #[must_use]
            pub fn rpc(&self) -> &$crate::live::Rpc {
                &self.rpc
            }

            /// Serves until it is stopped, which it hears of at once.
            ///
            /// # Errors
            /// The endpoint does not work any more, or the medium failed.
            pub fn run(&mut self, stop: &$crate::Stop) -> std::io::Result<()> {
                let waker = self.rpc.waker();
                let _wakes = stop.wakes(move || waker.wake());
                while !stop.is_asked() {
                    self.turn(None)?;
                }
                Ok(())
            }

            /// What counts, from here on, what the application costs: requests, and the CPU time of the serving thread for them. It is that
            /// of one turn in many, taken for all of them.
            pub fn meter(&mut self) -> $crate::Meter {
                self.metering.meter()
            }

            /// Looks once: what has come is served, and its answers leave. For a thread that has other work between two looks.
            ///
            /// # Errors
            /// As [`turn`](Self::turn).
            pub fn look(&mut self) -> std::io::Result<()> {
                self.turn(Some(std::time::Duration::ZERO))?;
                while self.rpc.has_event() {
                    self.turn(Some(std::time::Duration::ZERO))?;
                }
                self.rpc.flush().map_err(std::io::Error::other)
            }
        }
    };
}
pub(crate) use event_loop;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_turn_of_many_is_timed_for_all_and_every_request_counts() {
        let mut metering = Metering::default();
        assert_eq!(metering.begins(), None, "nobody wants to know");
        let meter = metering.meter();
        let timed = (0..3 * ONE_OF).filter(|_| {
            let since = metering.begins();
            metering.served(1, since.map(|_| 0));
            since.is_some()
        });
        assert_eq!(timed.count(), 3);
        let metered = meter.read();
        assert_eq!(metered.messages, 3 * ONE_OF);
        assert!(metered.application.as_nanos() > 0);
    }
}
