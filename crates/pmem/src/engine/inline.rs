//! The caller's own CPU: a copy is done when `submit` returns, and its completion is there to be taken.

use std::collections::VecDeque;
use std::marker::PhantomData;

use super::{Completion, CopyEngine, CopyError, Options, Promise, Refusal, Refused, Source, Ticket, check};
use crate::medium::Medium;
use crate::region::Region;

/// Copies at once, in the thread that submits. Its window bounds the completions that nobody has taken.
#[derive(Debug)]
pub struct Inline<M = Region> {
    options: Options,
    done: VecDeque<Completion>,
    next: u64,
    stopped: bool,
    media: PhantomData<fn(&M)>,
}

impl<M: Medium> Inline<M> {
    /// An engine. (Its crash order is always [`CrashOrder::Prefix`](super::CrashOrder::Prefix), as each copy is
    /// synced at once.)
    #[must_use]
    pub fn new(options: Options) -> Self {
        let options = options.crash_order(super::CrashOrder::Prefix).within_bounds();
        Self { options, done: VecDeque::new(), next: 0, stopped: false, media: PhantomData }
    }

    fn carry_out(&mut self, from: super::Bytes<'_>, to: &M, offset: u64) -> Result<Promise, CopyError> {
        self.options.placement.copy(from, to, offset);
        match self.options.placement.sync(to) {
            Ok(()) => Ok(self.options.placement.promise()),
            Err(e) => {
                self.stopped = true;
                Err(e.into())
            }
        }
    }
}

impl<M: Medium> CopyEngine<M> for Inline<M> {
    fn options(&self) -> Options {
        self.options
    }

    fn submit(&mut self, from: Source, to: &M, offset: u64) -> Result<Ticket, Refused> {
        let window = self.options.window;
        let why = match check(from.len(), to, offset) {
            _ if self.stopped => Some(Refusal::Stopped),
            Err(why) => Some(why),
            Ok(()) if self.done.len() == window => Some(Refusal::WindowFull { window }),
            Ok(()) => None,
        };
        if let Some(why) = why {
            return Err(Refused { why, source: from });
        }
        let outcome = self.carry_out(from.bytes(), to, offset);
        let ticket = Ticket(self.next);
        self.next += 1;
        self.done.push_back(Completion { ticket, source: from, outcome });
        Ok(ticket)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn wait(&mut self) -> Option<Completion> {
        self.poll()
    }

    fn copy(&mut self, from: &[u8], to: &M, offset: u64) -> Result<Promise, CopyError> {
        check(from.len() as u64, to, offset)?;
        if self.stopped {
            return Err(Refusal::Stopped.into());
        }
        self.carry_out(super::Bytes::Slice(from), to, offset)
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn oldest(&self) -> Option<Ticket> {
        self.done.front().map(|completion| completion.ticket)
    }
}
