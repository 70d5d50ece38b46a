//! The flush worker: makes ranges durable that take a system call, off the device lock.
//!
//! While fdatasync takes its 100 us and more, the device goes on serving. Flushes that arrive meanwhile wait for the
//! next round, and all of one round that fall on the same region are one psync: it covers every write-back that was
//! asked for before it began, so it may answer for all of them, and for none that came later.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use remanence_link::{Thread, without_signals};
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

    /// The worker's life. `done` is told the outcome of each flush of a round at once, and then whoever serves a medium that failed,
    /// who may end the connections on which the peers are told.
    pub(crate) fn work(&self, mut done: impl FnMut(&[(FlushId, Result<(), ()>)])) {
        let mut outcomes = Vec::new();
        while let Some(jobs) = self.next_round() {
            outcomes.clear();
            run_round(&jobs, &mut outcomes);
            done(&outcomes);
            let failed = jobs.iter().zip(&outcomes).filter(|(_, (_, outcome))| outcome.is_err());
            failed.for_each(|(job, _)| job.region.announce_failure());
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
                let outcome = job.region.psync_unannounced().map_err(|_| ());
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
) -> std::io::Result<Thread> {
    without_signals(|| Thread::spawn(c"remanence-flush", move || queue.work(done)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use remanence_pmem::FileOptions;

    use super::*;

    fn file_region(name: &str) -> (std::path::PathBuf, Region) {
        let path = std::env::temp_dir().join(format!("remanence-flush-{}-{name}", std::process::id()));
        let region = FileOptions::new().create_new(1 << 20).open(&path).unwrap();
        (path, region)
    }

    #[test]
    fn every_flush_of_a_round_gets_its_answer_and_stopping_drops_the_rest() {
        let (path, region) = file_region("round");
        let queue = Arc::new(FlushQueue::default());
        let (tell, told) = mpsc::channel();
        for id in 0..10 {
            queue.push(FlushId(id), region.clone(), id * 4096..id * 4096 + 64);
        }
        let worker =
            spawn(Arc::clone(&queue), move |outcomes| tell.send(outcomes.to_vec()).unwrap()).unwrap();
        let first = told.recv().unwrap();
        assert!(first.iter().map(|&(id, outcome)| (id.0, outcome)).eq((0..10).map(|id| (id, Ok(())))));
        queue.stop();
        worker.join();
        queue.push(FlushId(11), region, 0..64);
        assert!(told.recv().is_err(), "the worker is gone, and with it its end of the channel");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_serves_a_medium_that_failed_hears_of_it_when_the_peers_have_been_answered() {
        let (path, broken) = file_region("announced");
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let queue = Arc::new(FlushQueue::default());
        let (tell, told) = mpsc::channel();
        let announce = tell.clone();
        let _watch = broken.when_failed(move || announce.send("the server").unwrap());
        queue.push(FlushId(1), broken, 0..64);
        let worker = spawn(Arc::clone(&queue), move |_| tell.send("the peer").unwrap()).unwrap();
        let limit = std::time::Duration::from_secs(60);
        assert_eq!([told.recv_timeout(limit), told.recv_timeout(limit)], [Ok("the peer"), Ok("the server")]);
        queue.stop();
        worker.join();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_medium_that_failed_fails_every_flush_of_it_and_no_other() {
        let (path, broken) = file_region("broken");
        let (other_path, sound) = file_region("sound");
        // A file cut short under its region is a medium that lost pages.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let jobs = [(0, &broken), (1, &sound), (2, &broken)].map(|(id, region)| Job {
            id: FlushId(id),
            region: region.clone(),
            range: 0..64,
        });
        let mut outcomes = Vec::new();
        run_round(&jobs, &mut outcomes);
        assert_eq!(outcomes, [(FlushId(0), Err(())), (FlushId(1), Ok(())), (FlushId(2), Err(()))]);
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(other_path).unwrap();
    }
}
