//! From a request into persistent memory, by a copy engine: the server's half of a call that persists.
//!
//! Read first: paper 001, 5.5. The handler hands the message to the engine where it lies (a receive buffer, or the buffer
//! in which its packets were put together), and goes back to the event loop. When the engine says that the copy is in
//! the persistence domain, the call is answered, and the buffer is free again. Order is the engine's: calls are copied,
//! and answered, in the order in which they came.

use std::collections::VecDeque;
use std::io;

use remanence_pmem::Region;
use remanence_pmem::engine::{
    CopyEngine, CopyError, Inline, Options, Placement, Promise, Refusal, Source, Ticket, Worker,
};

use crate::core::buffers::Body;
use crate::core::event::RequestId;
use crate::live::Live;

/// One call's bytes on their way.
#[derive(Debug)]
pub struct Job {
    /// The call.
    pub id: RequestId,
    /// The request.
    pub body: Body<Live>,
    /// Bytes of it that are not to be copied: what the service needs for itself.
    pub skip: usize,
    /// Where the rest goes.
    pub to: u64,
}

impl Job {
    fn source(&self) -> Source {
        let (region, start) = self.body.place();
        Source::region(region, start + self.skip as u64, (self.body.len() - self.skip) as u64)
    }
}

/// Copies requests into a region.
pub struct Copier {
    engine: Box<dyn CopyEngine<Region>>,
    /// For what is too short to be worth a hand-over, while nothing is under way.
    inline: Inline<Region>,
    inline_below: usize,
    promise: Promise,
    under_way: VecDeque<(Ticket, Job)>,
    /// The engine's window is full.
    waiting: VecDeque<Job>,
    /// Copies that were done at once.
    done: VecDeque<(RequestId, Result<Promise, CopyError>)>,
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier")
            .field("options", &self.engine.options())
            .field("under_way", &self.under_way.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl Copier {
    /// With the caller's own CPU: every copy is done when it was submitted.
    #[must_use]
    pub fn inline(options: Options, placement: Placement) -> Self {
        let options = options.placement(placement);
        Self::with(Box::new(Inline::new(options)), options.window(1), placement, 0)
    }

    /// With a thread of its own, up to the window of copies ahead. Requests with fewer bytes to copy than `inline_below`
    /// are copied by the caller's CPU when none is ahead of them.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn worker(options: Options, placement: Placement, inline_below: usize) -> io::Result<Self> {
        let options = options.placement(placement);
        let engine = Box::new(Worker::new(options)?);
        Ok(Self::with(engine, options.window(1), placement, inline_below))
    }

    fn with(
        engine: Box<dyn CopyEngine<Region>>,
        options: Options,
        placement: Placement,
        inline_below: usize,
    ) -> Self {
        Self {
            inline: Inline::new(options),
            engine,
            inline_below,
            promise: placement.promise(),
            under_way: VecDeque::new(),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    /// What an answered copy is known to be.
    #[must_use]
    pub fn promise(&self) -> Promise {
        self.promise
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty() && self.done.is_empty()
    }

    /// Takes a call's bytes.
    pub fn submit(&mut self, to: &Region, job: Job) {
        if self.is_idle() && job.body.len() - job.skip < self.inline_below {
            let outcome = match self.inline.submit(job.source(), to, job.to) {
                Ok(_) => self.inline.poll().map_or(Err(CopyError::GivenUp), |completion| completion.outcome),
                Err(refused) => Err(refused.why.into()),
            };
            self.done.push_back((job.id, outcome));
            return;
        }
        self.waiting.push_back(job);
        self.feed(to);
    }

    fn feed(&mut self, to: &Region) {
        while let Some(job) = self.waiting.pop_front() {
            match self.engine.submit(job.source(), to, job.to) {
                Ok(ticket) => self.under_way.push_back((ticket, job)),
                Err(refused) if matches!(refused.why, Refusal::WindowFull { .. }) => {
                    self.waiting.push_front(job);
                    return;
                }
                // In its turn: behind what is under way.
                Err(refused) if self.under_way.is_empty() => {
                    self.done.push_back((job.id, Err(refused.why.into())));
                }
                Err(_) => {
                    self.waiting.push_front(job);
                    return;
                }
            }
        }
    }

    /// The next call whose copy has come to its end; its buffer is free again.
    pub fn poll(&mut self, to: &Region) -> Option<(RequestId, Result<Promise, CopyError>)> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        let completion = self.engine.poll()?;
        let (ticket, job) = self.under_way.pop_front().expect("what completes was submitted");
        assert_eq!(ticket, completion.ticket, "completions come in order");
        let id = job.id;
        drop(job);
        self.feed(to);
        Some((id, completion.outcome))
    }
}

/// What a failed copy means for the server: nothing more can be promised.
pub(crate) fn fatal(error: CopyError) -> io::Error {
    match error {
        CopyError::Medium(e) => e,
        other => io::Error::other(other),
    }
}
