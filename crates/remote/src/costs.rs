//! What things cost on this connection: measured when it is made, remembered, or given.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use remanence_persist::plan::Costs;
use remanence_persist::taxonomy::{Domain, FlushSupport};
use remanence_rnic::Placement;

use crate::error::Error;
use crate::session::Session;

/// Where the costs come from that plans are compared by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CostSource {
    /// These: [`Costs::PAPERS`] if nothing better is known.
    Fixed(Costs),
    /// Measured when connecting: some ten of each operation, a millisecond where a round trip takes ten microseconds.
    Measured,
    /// What this process measured of that server before; measured if it has not.
    Cached,
}

static KNOWN: Mutex<BTreeMap<(SocketAddr, String), Costs>> = Mutex::new(BTreeMap::new());

/// Odd, so that there is a median.
const SAMPLES: usize = 9;

pub(crate) fn of(session: &mut Session, peer: SocketAddr, source: CostSource) -> Result<Costs, Error> {
    let key = (peer, session.config().to_string());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match source {
        CostSource::Fixed(costs) => return Ok(costs),
        CostSource::Cached => {
            if let Some(costs) = known().get(&key) {
                return Ok(*costs);
            }
        }
        CostSource::Measured => {}
    }
    let costs = measure(session)?;
    known().insert(key, costs);
    Ok(costs)
}

/// The median, in nanoseconds: one sample that was interrupted does not count.
fn median(mut sample: impl FnMut() -> Result<Duration, Error>) -> Result<f64, Error> {
    let mut all = (0..SAMPLES).map(|_| sample()).collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable();
    Ok(all[SAMPLES / 2].as_nanos() as f64)
}

/// Costs of this connection. What cannot be measured from here (a copy, a byte) stays as the papers have it.
fn measure(session: &mut Session) -> Result<Costs, Error> {
    let config = *session.config();
    let round_trip = median(|| session.timed(|r| Ok(r.touch())))?;
    let beyond = |time: f64| (time - round_trip).max(0.0);
    let read = median(|| {
        session.timed(|r| {
            let (number, _) = r.read(0, 8)?;
            r.release(number);
            Ok(number)
        })
    })?;
    let mut costs = Costs { round_trip, read: beyond(read), ..Costs::PAPERS };
    if config.flush >= FlushSupport::Global {
        costs.flush_global =
            beyond(median(|| session.timed(|r| Ok(r.flush(Placement::GlobalVisibility, 0, 8))))?);
    }
    if config.flush == FlushSupport::Persistent {
        let time = beyond(median(|| session.timed(|r| Ok(r.flush(Placement::Persistence, 0, 8))))?);
        if config.domain == Domain::PageCache {
            costs.fdatasync = time;
        } else {
            costs.flush_persistent = time;
        }
    }
    // A message and its answer: two packets each way at the most, and the server's CPU in between.
    let message = median(|| {
        let begin = Instant::now();
        session.settle()?;
        Ok(begin.elapsed())
    })?;
    (costs.wake, costs.handle) = (beyond(message) * 0.6, beyond(message) * 0.4);
    Ok(costs)
}
