//! Ctrl-C and SIGTERM: the first one asks the command to end well, the second one ends it, with the status that a shell says of
//! who was killed by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::fail::{Context as _, Fail};

/// Has what would grow a file beyond the limit of its user (`ulimit -f`) fail with EFBIG, which is said in a sentence; the signal that comes first
/// would end the program without one. A handler does that, and is not there any more in programs that this one starts, as one who
/// ignored the signal would still be.
pub(crate) fn file_size_limit_is_an_error() {
    // Where it cannot be had, all is as it would be without.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether someone asked us to stop.
#[derive(Clone)]
pub(crate) struct Stop(Arc<Asked>);

struct Asked {
    /// What a signal sets before anything else.
    flag: Arc<AtomicBool>,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Self, Fail> {
        let (flag, signalled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the shutdown looks at what an earlier signal has set. Who was asked in another way ends well.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&signalled))
                .and_then(|_| flag::register(signal, Arc::clone(&signalled)))
                .and_then(|_| flag::register(signal, Arc::clone(&flag)))
                .context(|| "signals cannot be received".into())?;
        }
        let stop = Self(Arc::new(Asked { flag, lock: Mutex::new(()), changed: Condvar::new() }));
        let mut signals = Signals::new([SIGINT, SIGTERM]).context(|| "signals cannot be received".into())?;
        let told = stop.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || signals.forever().for_each(|_| told.ask()))
            .context(|| "a thread cannot be started".into())?;
        Ok(stop)
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.flag.load(Ordering::Acquire)
    }

    /// As a signal would.
    pub(crate) fn ask(&self) {
        let _whoever_waits_sees_it = self.lock();
        self.0.flag.store(true, Ordering::Release);
        self.0.changed.notify_all();
    }

    /// Returns when someone has asked.
    pub(crate) fn wait(&self) {
        let guard = self.lock();
        let asked = self.0.changed.wait_while(guard, |()| !self.is_asked());
        drop(asked.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns when someone has asked, or after a while. Whether someone has.
    pub(crate) fn wait_for(&self, longest: Duration) -> bool {
        let guard = self.lock();
        let asked = self.0.changed.wait_timeout_while(guard, longest, |()| !self.is_asked());
        drop(asked.unwrap_or_else(PoisonError::into_inner));
        self.is_asked()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
