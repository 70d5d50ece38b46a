//! The flush worker: makes ranges durable that take a system call, off the device lock.
//!
//! While fdatasync takes its 100 us and more, the device goes on serving. Flushes that arrive meanwhile wait for the
//! next round, and all of one round that fall on the same region are one psync: it covers every write-back that was
//! asked for before it began, so it may answer for all of them, and for none that came later.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use remanence_pmem::Region;
use remanence_rnic::FlushId;

/// One flush that waits for its round.
#[derive(Debug)]
struct Job {
    id: FlushId,
    region: Region,
    range: Range<u64>,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    stopped: bool,
}

/// Where the engine's flushes wait for the worker.
#[derive(Debug, Default)]
pub(crate) struct FlushQueue {
    state: Mutex<State>,
    arrived: Condvar,
}

impl FlushQueue {
    pub(crate) fn push(&self, id: FlushId, region: Region, range: Range<u64>) {
        self.lock().jobs.push(Job { id, region, range });
        self.arrived.notify_one();
    }

    /// Ends the worker after its round; what still waits is dropped, as the device that asked is gone.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.arrived.notify_all();
    }

    /// The worker's life. `done` is told the outcome of each flush of a round at once.
    pub(crate) fn work(&self, mut done: impl FnMut(&[(FlushId, Result<(), ()>)])) {
        let mut outcomes = Vec::new();
        while let Some(jobs) = self.next_round() {
            outcomes.clear();
            run_round(&jobs, &mut outcomes);
            done(&outcomes);
        }
    }

    fn next_round(&self) -> Option<Vec<Job>> {
        let mut state = self.lock();
        while state.jobs.is_empty() && !state.stopped {
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped { None } else { Some(std::mem::take(&mut state.jobs)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run_round(jobs: &[Job], outcomes: &mut Vec<(FlushId, Result<(), ()>)>) {
    // Every write-back is asked for before any wait, so that the media work side by side.
    for job in jobs {
        job.region.pwb(job.range.clone());
    }
    let mut synced: Vec<(usize, Result<(), ()>)> = Vec::new();
    for job in jobs {
        let region = job.region.base().addr();
        let outcome = match synced.iter().find(|(other, _)| *other == region) {
            Some(&(_, outcome)) => outcome,
            None => {
                // The cause is the region's to tell (`Region::failure`); the peer learns that nothing is durable.
                let outcome = job.region.psync().map_err(|_| ());
                synced.push((region, outcome));
                outcome
            }
        };
        outcomes.push((job.id, outcome));
    }
}

/// Runs a worker for `queue` until it is stopped.
pub(crate) fn spawn(
    queue: Arc<FlushQueue>,
    done: impl FnMut(&[(FlushId, Result<(), ()>)]) + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("remanence-flush".into()).spawn(move || queue.work(done))
}
