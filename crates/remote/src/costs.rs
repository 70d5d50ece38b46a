//! What things cost on this connection: measured when it is made, remembered, or given.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use remanence_persist::Config;
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

/// By server and by what both rely on: the same server with other receive buffers, say, is another one.
type Known = BTreeMap<(SocketAddr, String), Costs>;

static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

/// Odd, so that there is a median.
const SAMPLES: usize = 9;

/// Of the time that a message takes beyond a round trip, the part until the server's CPU notices it. Only the sum can be
/// measured from here; the papers have 350 ns and 250 ns.
const NOTICING: f64 = 0.6;

/// What is measured, once. A [`Session`], but for tests.
trait Probe {
    fn config(&self) -> &Config;
    /// The smallest WRITE, to its completion.
    fn touch(&mut self) -> Result<Duration, Error>;
    /// The smallest READ.
    fn read(&mut self) -> Result<Duration, Error>;
    /// A FLUSH of one line.
    fn flush(&mut self, placement: Placement) -> Result<Duration, Error>;
    /// A message to the server's CPU, to its answer.
    fn message(&mut self) -> Result<Duration, Error>;
}

impl Probe for Session {
    fn config(&self) -> &Config {
        Self::config(self)
    }

    fn touch(&mut self) -> Result<Duration, Error> {
        self.timed(|requester| Ok(requester.touch()))
    }

    fn read(&mut self) -> Result<Duration, Error> {
        self.timed(|requester| {
            let (number, _) = requester.read(0, 8)?;
            requester.release(number);
            Ok(number)
        })
    }

    fn flush(&mut self, placement: Placement) -> Result<Duration, Error> {
        self.timed(|requester| Ok(requester.flush(placement, 0, 8)))
    }

    fn message(&mut self) -> Result<Duration, Error> {
        let begin = Instant::now();
        self.settle()?;
        Ok(begin.elapsed())
    }
}

pub(crate) fn of(session: &mut Session, peer: SocketAddr, source: CostSource) -> Result<Costs, Error> {
    look_up(session, peer, source, &KNOWN)
}

fn look_up(
    probe: &mut impl Probe,
    peer: SocketAddr,
    source: CostSource,
    known: &Mutex<Known>,
) -> Result<Costs, Error> {
    let key = (peer, probe.config().to_string());
    let known = || known.lock().unwrap_or_else(PoisonError::into_inner);
    match source {
        CostSource::Fixed(costs) => return Ok(costs),
        CostSource::Cached => {
            if let Some(costs) = known().get(&key) {
                return Ok(*costs);
            }
        }
        CostSource::Measured => {}
    }
    let costs = measure(probe)?;
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
fn measure(probe: &mut impl Probe) -> Result<Costs, Error> {
    let config = *probe.config();
    let round_trip = median(|| probe.touch())?;
    let beyond = |time: f64| (time - round_trip).max(0.0);
    let read = beyond(median(|| probe.read())?);
    let mut costs = Costs { round_trip, read, ..Costs::PAPERS };
    if config.flush >= FlushSupport::Global {
        costs.flush_global = beyond(median(|| probe.flush(Placement::GlobalVisibility))?);
    }
    if config.flush == FlushSupport::Persistent {
        let time = beyond(median(|| probe.flush(Placement::Persistence))?);
        if config.domain == Domain::PageCache {
            costs.fdatasync = time;
        } else {
            costs.flush_persistent = time;
        }
    }
    let message = beyond(median(|| probe.message())?);
    (costs.wake, costs.handle) = (message * NOTICING, message * (1.0 - NOTICING));
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection whose operations take these microseconds, but for every fourth, which is interrupted.
    struct Scripted {
        config: Config,
        touch: u64,
        read: u64,
        global: u64,
        persistent: u64,
        message: u64,
        asked: u64,
    }

    impl Scripted {
        fn new(config: &str) -> Self {
            let config = config.parse().expect("a configuration");
            Self { config, touch: 10, read: 13, global: 17, persistent: 25, message: 60, asked: 0 }
        }

        fn takes(&mut self, micros: u64) -> Result<Duration, Error> {
            self.asked += 1;
            let held_up = if self.asked.is_multiple_of(4) { 50_000 } else { 0 };
            Ok(Duration::from_micros(micros + held_up))
        }
    }

    impl Probe for Scripted {
        fn config(&self) -> &Config {
            &self.config
        }

        fn touch(&mut self) -> Result<Duration, Error> {
            self.takes(self.touch)
        }

        fn read(&mut self) -> Result<Duration, Error> {
            self.takes(self.read)
        }

        fn flush(&mut self, placement: Placement) -> Result<Duration, Error> {
            self.takes(if placement == Placement::Persistence { self.persistent } else { self.global })
        }

        fn message(&mut self) -> Result<Duration, Error> {
            self.takes(self.message)
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn each_measured_time_is_the_cost_that_it_is_a_time_of() {
        let costs = measure(&mut Scripted::new("DMP+DDIO+DRAM+persistent")).expect("measured");
        assert!(near(costs.round_trip, 10_000.0) && near(costs.read, 3000.0), "{costs:?}");
        assert!(near(costs.flush_global, 7000.0) && near(costs.flush_persistent, 15_000.0), "{costs:?}");
        assert!(near(costs.wake, 30_000.0) && near(costs.handle, 20_000.0), "{costs:?}");
        // What was not measured is the papers'.
        let measured = Costs {
            round_trip: costs.round_trip,
            read: costs.read,
            flush_global: costs.flush_global,
            flush_persistent: costs.flush_persistent,
            wake: costs.wake,
            handle: costs.handle,
            ..Costs::PAPERS
        };
        assert_eq!(costs, measured);
    }

    #[test]
    fn a_flush_of_a_page_cache_is_an_fdatasync() {
        let costs = measure(&mut Scripted::new("page-cache+DDIO+DRAM+persistent")).expect("measured");
        assert!(near(costs.fdatasync, 15_000.0), "{costs:?}");
        assert!(near(costs.flush_persistent, Costs::PAPERS.flush_persistent), "{costs:?}");
    }

    #[test]
    fn a_flush_that_the_server_does_not_execute_is_not_tried() {
        for (config, flushes) in [
            ("DMP+no-DDIO+DRAM+read", 0),
            ("DMP+no-DDIO+DRAM", SAMPLES),
            ("DMP+no-DDIO+DRAM+persistent", 2 * SAMPLES),
        ] {
            let mut probe = Scripted::new(config);
            measure(&mut probe).expect("measured");
            assert_eq!(probe.asked as usize, 3 * SAMPLES + flushes, "{config}");
        }
    }

    #[test]
    fn what_is_faster_than_a_write_costs_nothing_beyond_it() {
        let mut probe = Scripted { read: 2, message: 9, ..Scripted::new("MHP+DDIO+DRAM") };
        let costs = measure(&mut probe).expect("measured");
        assert_eq!((costs.read, costs.wake, costs.handle), (0.0, 0.0, 0.0));
    }

    #[test]
    fn costs_are_remembered_by_server_and_agreement_and_measured_again_when_asked() {
        let known = Mutex::new(Known::new());
        let [here, there] = ["127.0.0.1:7", "127.0.0.1:8"].map(|text| text.parse().expect("an address"));
        let asks = |config: &str, touch, peer, source| {
            let mut probe = Scripted { touch, ..Scripted::new(config) };
            let costs = look_up(&mut probe, peer, source, &known).expect("measured");
            (costs.round_trip, probe.asked > 0)
        };
        let (dmp, mhp) = ("DMP+DDIO+DRAM", "MHP+DDIO+DRAM");
        assert_eq!(asks(dmp, 1, here, CostSource::Cached), (1000.0, true));
        assert_eq!(asks(dmp, 2, here, CostSource::Cached), (1000.0, false), "it is remembered");
        assert_eq!(asks(dmp, 3, there, CostSource::Cached), (3000.0, true), "another server");
        assert_eq!(asks(mhp, 4, here, CostSource::Cached), (4000.0, true), "another agreement");
        assert_eq!(asks(dmp, 5, here, CostSource::Measured), (5000.0, true), "measured again");
        assert_eq!(asks(dmp, 6, here, CostSource::Cached), (5000.0, false), "and remembered instead");
        let fixed = CostSource::Fixed(Costs { round_trip: 7.0, ..Costs::PAPERS });
        assert_eq!(asks(dmp, 6, here, fixed), (7.0, false), "given ones are not measured");
        assert_eq!(asks(dmp, 6, here, CostSource::Cached), (5000.0, false), "nor remembered");
    }

    #[test]
    fn measured_costs_decide_which_plan_is_taken() {
        use remanence_persist::check::Prover;
        use remanence_persist::plan::{Request, plan};

        // Where a FLUSH takes long (a PCIe READ through a busy root port, say) and the server's CPU polls, messages are
        // cheaper; where it is asleep or busy, nothing beats a WRITE and a FLUSH.
        let config = "DMP+no-DDIO+DRAM";
        let picked = |global, message| {
            let mut probe = Scripted { global, message, ..Scripted::new(config) };
            let costs = measure(&mut probe).expect("measured");
            let plan = plan(&mut Prover::default(), &probe.config, &Request::record(64), &costs);
            plan.expect("a plan").recipe.is_two_sided()
        };
        assert!(picked(90, 12), "a slow FLUSH and a server that polls");
        assert!(!picked(11, 90), "a fast FLUSH and a server that sleeps");
    }
}
