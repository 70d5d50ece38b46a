//! Code of a process that waits, in a simulation in which nobody waits: it runs on a thread of its own, and either that thread or the
//! simulator runs, never both. So one seed is one run, whatever the machine does.
//!
//! Whoever waits hands the baton back ([`Baton::wait`]); [`Task::resume`] hands it over until that happens again. When its task is dropped,
//! because the process was killed, the code is left where it waits: it unwinds, and what it holds is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// What became of a turn of a task.
#[derive(Debug)]
pub(super) enum Turn<T> {
    /// It waits for something.
    Waits,
    /// It has come to its end, with this.
    Ends(T),
    /// It has broken a promise of its own.
    Panics(String),
}

/// What unwinds the code of a task that was dropped.
struct Dropped;

/// The simulator's end of code that waits.
#[derive(Debug)]
pub(super) struct Task<T> {
    resume: Option<Sender<()>>,
    turns: Receiver<Turn<T>>,
    thread: Option<JoinHandle<()>>,
}

/// The other end: how the code waits.
#[derive(Debug)]
pub(super) struct Baton<T> {
    resumed: Mutex<Receiver<()>>,
    turns: Sender<Turn<T>>,
}

impl<T: Send + 'static> Task<T> {
    /// Code that runs when it is [resumed](Self::resume) for the first time.
    ///
    /// # Panics
    /// The system gives no thread.
    pub(super) fn new(code: impl FnOnce(Arc<Baton<T>>) -> T + Send + 'static) -> Self {
        let (resume, resumed) = channel();
        let (turn, turns) = channel();
        let run = move || {
            if resumed.recv().is_err() {
                return;
            }
            let baton = Arc::new(Baton { resumed: Mutex::new(resumed), turns: turn.clone() });
            let last = match catch_unwind(AssertUnwindSafe(|| code(baton))) {
                Ok(end) => Turn::Ends(end),
                Err(panic) if panic.is::<Dropped>() => return,
                Err(panic) => Turn::Panics(crate::panic_text(&*panic).to_owned()),
            };
            // Nobody is there only if nobody wants to know.
            let _ = turn.send(last);
        };
        let thread = Builder::new().name("simulated".into()).spawn(run).expect("a thread");
        Self { resume: Some(resume), turns, thread: Some(thread) }
    }

    /// Runs it until it waits, or ends. It is not to be resumed after that.
    pub(super) fn resume(&self) -> Turn<T> {
        let resume = self.resume.as_ref().expect("it was not dropped");
        if resume.send(()).is_err() {
            return Turn::Panics("it was resumed after its end".into());
        }
        self.turns.recv().unwrap_or_else(|_| Turn::Panics("it is gone".into()))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        drop(self.resume.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<T> Baton<T> {
    /// Waits until somebody resumes the task; does not return if nobody ever will.
    pub(super) fn wait(&self) {
        let waits = self.turns.send(Turn::Waits).is_ok();
        let resumed = self.resumed.lock().unwrap_or_else(PoisonError::into_inner);
        if !waits || resumed.recv().is_err() {
            resume_unwind(Box::new(Dropped));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn code_that_waits_goes_on_where_it_waited_and_is_left_there_if_it_is_dropped() {
        let steps = Arc::new(AtomicUsize::new(0));
        let task = |waits: usize| {
            let steps = Arc::clone(&steps);
            Task::new(move |baton| {
                for _ in 0..waits {
                    steps.fetch_add(1, Ordering::Relaxed);
                    baton.wait();
                }
                waits
            })
        };
        let first = task(2);
        assert_eq!(steps.load(Ordering::Relaxed), 0, "it was not resumed yet");
        assert!(matches!(first.resume(), Turn::Waits) && matches!(first.resume(), Turn::Waits));
        assert!(matches!(first.resume(), Turn::Ends(2)));
        let second = task(100);
        assert!(matches!(second.resume(), Turn::Waits));
        drop((first, second, task(1)));
        assert_eq!((steps.load(Ordering::Relaxed), Arc::strong_count(&steps)), (3, 1));
        let broken = Task::<()>::new(|_| panic!("a promise"));
        assert!(matches!(broken.resume(), Turn::Panics(why) if why == "a promise"));
    }
}
