//! The clock of one device, as the engine counts time: nanoseconds since the device was opened.

use remanence_rnic::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
