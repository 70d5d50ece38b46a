//! Ctrl-C and SIGTERM: the first one asks the command to end well, the second one ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::fail::{Context as _, Fail};

/// Whether someone asked us to stop.
#[derive(Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Self, Fail> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the shutdown looks at what an earlier signal has set.
            flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .context(|| "signals cannot be received".into())?;
        }
        Ok(Self(stop))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// What a signal sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// As a signal would.
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }
}
