//! From a request into persistent memory, by a copy engine: the server's half of a call that persists.
//!
//! Read first: paper 001, 5.5. The handler hands the message to the engine where it lies (a receive buffer, or the buffer
//! in which its packets were put together), and goes back to the event loop. When the engine says that the copy is in
//! the persistence domain, the call is answered, and the buffer is free again. Order is the engine's: calls are copied,
//! and answered, in the order in which they came.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use remanence_pmem::Region;
use remanence_pmem::engine::{
    CopyEngine, CopyError, DsaEngine, Inline, Options, Placement, Promise, Refusal, Source, Ticket, Worker,
    dsa,
};

use crate::chooser::{Chooser, Way};
use crate::core::buffers::Body;
use crate::core::event::RequestId;
use crate::live::Live;

/// One call's bytes on their way.
#[derive(Debug)]
pub struct Job {
    /// The call whose request is copied.
    pub id: RequestId,
    /// The request, which is held until it is copied.
    pub body: Body<Live>,
    /// Bytes of it that are not to be copied: what the service needs for itself.
    pub skip: usize,
    /// Where the rest goes.
    pub to: u64,
}

impl Job {
    fn source(&self) -> Source {
        let (region, start) = self.body.place();
        Source::region(region, start + self.skip as u64, self.bytes())
    }

    fn bytes(&self) -> u64 {
        (self.body.len() - self.skip) as u64
    }
}

/// Copies requests into a region.
pub struct Copier {
    engine: Box<dyn CopyEngine<Region>>,
    /// For what is not worth a hand-over, while nothing is under way.
    inline: Inline<Region>,
    policy: Policy,
    begin: Instant,
    promise: Promise,
    under_way: VecDeque<(Ticket, Job)>,
    /// The engine's window is full, or what is to be copied at once waits for the engine to be through with what is ahead.
    waiting: VecDeque<Job>,
    /// Copies that were done at once: all of them came before all that are under way.
    done: VecDeque<(RequestId, Result<Promise, CopyError>)>,
}

/// When a copy is handed over.
enum Policy {
    /// From so many bytes on.
    From(u64),
    /// When that pays.
    Measured(Box<Chooser>),
    /// As a test says, over and over.
    #[cfg(test)]
    Scripted(VecDeque<bool>),
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
        Self::with(Box::new(Inline::new(options)), options.window(1), placement, Policy::From(0))
    }

    /// With a thread of its own, up to the window of copies ahead. Requests with fewer bytes to copy than `inline_below`
    /// are copied by the caller's CPU when none is ahead of them.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn worker(options: Options, placement: Placement, inline_below: usize) -> io::Result<Self> {
        let options = options.placement(placement);
        let engine = Box::new(Worker::new(options)?);
        Ok(Self::with(engine, options.window(1), placement, Policy::From(inline_below as u64)))
    }

    /// With Intel's accelerator, which has never been run on hardware yet: only for those who ask for it. Shorter requests are
    /// copied as with [`worker`](Self::worker).
    ///
    /// # Errors
    /// There is none that can be used, or it did not pass the test that it is put to here.
    pub fn dsa(options: Options, placement: Placement, inline_below: usize) -> Result<Self, dsa::Unusable> {
        let options = options.placement(placement);
        let engine = Box::new(DsaEngine::open(options)?);
        Ok(Self::with(engine, options.window(1), placement, Policy::From(inline_below as u64)))
    }

    /// With a thread of its own where that pays, and with the caller's CPU else: it pays if a core is idle that the thread
    /// can have, and a copy takes longer than a hand-over, which is measured here, in less than a millisecond. Then both ways
    /// are compared while they are used; one that does not pay is tried for some copies in a thousand.
    ///
    /// # Errors
    /// The operating system refuses a thread, or memory to measure with.
    pub fn adaptive(options: Options, placement: Placement) -> io::Result<Self> {
        let options = options.placement(placement);
        let mut engine = Worker::new(options)?;
        let crossover = crossover(&mut engine, Inline::new(options.window(1))).map_err(io::Error::other)?;
        let policy = Policy::Measured(Box::new(Chooser::new(crossover)));
        Ok(Self::with(Box::new(engine), options.window(1), placement, policy))
    }

    fn with(
        engine: Box<dyn CopyEngine<Region>>,
        options: Options,
        placement: Placement,
        policy: Policy,
    ) -> Self {
        Self {
            inline: Inline::new(options),
            engine,
            policy,
            begin: Instant::now(),
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
        self.waiting.push_back(job);
        self.feed(to);
    }

    /// Whether a copy is done at once, and whether it waits for those ahead of it to be done so.
    fn at_once(&mut self, bytes: u64) -> bool {
        match &mut self.policy {
            Policy::From(least) => bytes < *least && self.under_way.is_empty(),
            Policy::Measured(chooser) => chooser.way(bytes) == Way::Inline,
            #[cfg(test)]
            Policy::Scripted(inline) => inline[bytes as usize % inline.len()],
        }
    }

    fn feed(&mut self, to: &Region) {
        while let Some(job) = self.waiting.pop_front() {
            if self.at_once(job.bytes()) {
                if !self.under_way.is_empty() {
                    self.waiting.push_front(job);
                    return;
                }
                let outcome = match self.inline.submit(job.source(), to, job.to) {
                    Ok(_) => {
                        self.inline.poll().map_or(Err(CopyError::GivenUp), |completion| completion.outcome)
                    }
                    Err(refused) => Err(refused.why.into()),
                };
                self.ended(job.bytes());
                self.done.push_back((job.id, outcome));
                continue;
            }
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

    fn ended(&mut self, bytes: u64) {
        if let Policy::Measured(chooser) = &mut self.policy {
            chooser.copied(self.begin.elapsed(), bytes);
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
        self.ended(job.bytes());
        drop(job);
        self.feed(to);
        Some((id, completion.outcome))
    }
}

/// From how many bytes on a copy takes longer than to hand it over and to take its completion: the best of a few of both, as
/// whoever had the core meanwhile is not what is measured.
fn crossover(engine: &mut Worker<Region>, mut inline: Inline<Region>) -> Result<u64, remanence_pmem::Error> {
    const SAMPLE: u64 = 64 << 10;
    const TRIES: u32 = 8;
    let (from, to) = (Region::anonymous(SAMPLE)?, Region::anonymous(SAMPLE)?);
    // Its pages are made on demand.
    (0..SAMPLE).step_by(4096).for_each(|at| {
        from.write(at, &[1]);
        to.write(at, &[1]);
    });
    let (mut copy, mut hand) = (u64::MAX, u64::MAX);
    for _ in 0..TRIES {
        let begin = Instant::now();
        if inline.submit(Source::region(&from, 0, SAMPLE), &to, 0).is_ok() {
            let _ = inline.poll();
            copy = copy.min(begin.elapsed().as_nanos() as u64);
        }
        let begin = Instant::now();
        if engine.submit(Source::region(&from, 0, 64), &to, 0).is_ok() {
            let handed = begin.elapsed();
            let _ = engine.wait();
            let begin = Instant::now();
            let _ = engine.poll();
            hand = hand.min((handed + begin.elapsed()).as_nanos() as u64);
        }
    }
    Ok((hand.saturating_mul(SAMPLE) / copy.max(1)).clamp(CROSSOVER_MIN, CROSSOVER_MAX))
}

/// What is never handed over, and what may always be, whatever was measured.
const CROSSOVER_MIN: u64 = 4 << 10;
const CROSSOVER_MAX: u64 = 256 << 10;

/// What a failed copy means for the server: nothing more can be promised.
pub(crate) fn fatal(error: CopyError) -> io::Error {
    match error {
        CopyError::Medium(e) => e,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::SessionId;
    use crate::live::body_of;

    /// Calls to one place, whose lengths say who copies them.
    #[test]
    fn calls_are_copied_and_answered_as_they_came_whoever_copies_which() {
        let options = Options::new().window(3);
        for told in [vec![true], vec![false], vec![true, false], vec![false, false, true, true, false]] {
            let mut copier = Copier::worker(options, Placement::WriteBack, 0).expect("a thread");
            copier.policy = Policy::Scripted(told.iter().copied().collect());
            let region = Region::anonymous(1 << 16).expect("memory");
            let (mut answered, mut last) = (0, [0; 1]);
            for n in 0..200_u64 {
                let id = RequestId { session: SessionId { number: 1, key: 1 }, number: n };
                // Long ones, so that the engine is behind when a short way is taken.
                let len = 20_000 + (n * 7919 % 11) as usize;
                let body = body_of(&vec![n as u8; len]);
                copier.submit(&region, Job { id, body, skip: 8, to: 64 });
                if n % 5 == 4 {
                    while let Some((id, outcome)) = copier.poll(&region) {
                        assert_eq!((id.number, outcome.is_ok()), (answered, true), "{told:?}");
                        answered += 1;
                    }
                }
            }
            while !copier.is_idle() {
                match copier.poll(&region) {
                    Some((id, outcome)) => {
                        assert_eq!((id.number, outcome.is_ok()), (answered, true), "{told:?}");
                        answered += 1;
                        // Nothing of a later call was there before this one, and nothing of this one comes after it.
                        region.read(64, &mut last);
                        assert!(u64::from(last[0]) >= id.number, "{told:?}: {} at {}", last[0], id.number);
                    }
                    None => std::thread::yield_now(),
                }
            }
            region.read(64, &mut last);
            assert_eq!((answered, last[0]), (200, 199), "{told:?}");
        }
    }
}
