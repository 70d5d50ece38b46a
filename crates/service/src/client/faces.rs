//! One machine, two faces: what waits for a session is written once, as an `async` function that is told how to wait.
//!
//! Where it waits it asks for a [`Face`]. [`Face::Thread`] waits right there, as any blocking call does, so that the whole function
//! has ended when it is first polled: [`at_once`] is that poll, and costs nothing beside the call. [`Face::Task`] leaves its waker
//! with the reactor; any executor carries it out, or the thread that waits for the reactor ([`Reactor::block_on`]).
//!
//! [`Reactor::block_on`]: super::Reactor::block_on

use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// How a machine waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Face {
    /// The thread that polls it sleeps until there is something.
    Thread,
    /// It is pending, and its task is woken.
    Task,
}

/// Carries out what waits as a [thread](Face::Thread) does.
///
/// # Panics
/// It waits as a task.
pub fn at_once<T>(machine: impl Future<Output = T>) -> T {
    match pin!(machine).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("what waits as a thread does is never pending"),
    }
}

/// Does what can only block on a thread of its own, so that the task that waits for it, and those beside it, go on meanwhile. It is done
/// to its end even if the task is dropped. Where the system refuses a thread, it is done in this one.
pub async fn elsewhere<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    type Shared<T> = Arc<Mutex<(Option<std::thread::Result<T>>, Option<Waker>)>>;
    let shared: Shared<T> = Arc::new(Mutex::new((None, None)));
    let act = Arc::new(Mutex::new(Some(act)));
    let run = {
        let (shared, act) = (Arc::clone(&shared), Arc::clone(&act));
        move || {
            let Some(act) = act.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.0 = Some(done);
            let waker = shared.1.take();
            drop(shared);
            waker.into_iter().for_each(Waker::wake);
        }
    };
    if std::thread::Builder::new().name("remanence-aside".into()).spawn(run).is_err()
        && let Some(act) = act.lock().unwrap_or_else(PoisonError::into_inner).take()
    {
        return act();
    }
    let done = std::future::poll_fn(|task| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.0.take() {
            Some(done) => Poll::Ready(done),
            None => {
                shared.1 = Some(task.waker().clone());
                Poll::Pending
            }
        }
    });
    done.await.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_as_a_thread_ends_at_once_and_as_a_task_does_not() {
        assert_eq!(at_once(async { 7 }), 7);
        let pending = std::panic::catch_unwind(|| at_once(std::future::pending::<()>()));
        assert!(pending.is_err());
    }
}
