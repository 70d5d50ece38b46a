//! What other threads have for the one that drives a replica: it sleeps until something comes from its peers, a deadline is due, or one of them wakes it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remanence_coord::mu::service::Ask;
use remanence_coord::mu::{Input, Plane};
use remanence_remote::{ReactorWaker, Unanswered};

use crate::link::Link;

/// One thing that came from elsewhere.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A client asks.
    Asked { ask: Ask, unanswered: Unanswered },
    /// The machine is to be told.
    Happened(Input),
    /// A connection was made, or not, for a reason.
    Dialed { peer: usize, plane: Plane, link: Result<Box<Link>, String> },
    /// A peer has made a connection to this one: it is there.
    Joined { peer: usize },
    /// One of the servers has ended.
    Over,
}

/// What has come.
#[derive(Debug)]
pub(crate) struct Mailbox {
    mails: Mutex<VecDeque<Mail>>,
    waker: ReactorWaker,
}

impl Mailbox {
    pub(crate) const fn new(waker: ReactorWaker) -> Self {
        Self { mails: Mutex::new(VecDeque::new()), waker }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Mail>> {
        self.mails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever drives.
    pub(crate) fn put(&self, mail: Mail) {
        self.lock().push_back(mail);
        self.waker.wake();
    }

    /// All that has come since.
    pub(crate) fn take(&self) -> VecDeque<Mail> {
        std::mem::take(&mut *self.lock())
    }
}
