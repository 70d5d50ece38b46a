//! That a medium failed, kept for whoever asks, and told to whoever wants to know at once.
//!
//! A psync fails where nobody may look: a peer's FLUSH is carried out by the device, and the server that serves the medium hears
//! nothing of it. So the first failure stays ([`Region::failure`](crate::Region::failure)), and calls whoever asked for that
//! ([`Region::when_failed`](crate::Region::when_failed)).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::flush::page::Failure;

type Call = Arc<dyn Fn() + Send + Sync>;

/// The first psync that failed, and who is called then.
#[derive(Default)]
pub(crate) struct FirstFailure {
    first: OnceLock<Failure>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    next: u64,
    all: BTreeMap<u64, Call>,
}

/// While this is there, somebody is called when a medium fails: see [`Region::when_failed`](crate::Region::when_failed).
pub struct FailureWatch {
    of: crate::Region,
    number: u64,
}

impl fmt::Debug for FailureWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureWatch").field("of", &self.of).finish_non_exhaustive()
    }
}

impl Drop for FailureWatch {
    fn drop(&mut self) {
        self.of.first_failure().forget(self.number);
    }
}

impl FirstFailure {
    /// A psync has ended so. That something cannot be made durable here, by anybody or by this process, is no failure of the medium.
    pub(crate) fn note(&self, error: &io::Error) {
        if error.kind() != io::ErrorKind::Unsupported {
            let _ = self.first.set(Failure::of(error));
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> io::Result<()> {
        self.first.get().map_or(Ok(()), |failure| Err(failure.to_error()))
    }

    /// Calls whoever wants to know, if there is something to be known.
    pub(crate) fn announce(&self) {
        if self.first.get().is_some() {
            let calls: Vec<Call> = self.lock().all.values().cloned().collect();
            calls.iter().for_each(|call| call());
        }
    }

    pub(crate) fn call(&self, of: &crate::Region, call: Call) -> FailureWatch {
        let mut calls = self.lock();
        let number = calls.next;
        calls.next += 1;
        calls.all.insert(number, call);
        FailureWatch { of: of.clone(), number }
    }

    fn forget(&self, number: u64) {
        self.lock().all.remove(&number);
    }

    /// Each change is one step.
    fn lock(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
