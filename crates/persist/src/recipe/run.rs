//! A recipe being carried out by a requester, and the token that only its end can mint.
//!
//! [`Run`] walks the requester's steps over anything that can post and wait: live verbs, a simulated QP, a test. It is
//! sans-IO: a wait that is not over gives control back. A [`Persistent`] has no other source, so a function that asks for
//! one cannot be called with an update that is merely visible:
//!
//! ```compile_fail,E0451
//! use remanence_persist::recipe::Persistent;
//! let forged = Persistent { updates: 1, survives: remanence_pmem::Survives::EVERYTHING };
//! ```

use std::sync::Arc;
use std::task::Poll;

use remanence_pmem::Survives;

use super::{Recipe, Rq};
use crate::taxonomy::Config;

/// Proof that every step of a recipe was carried out.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an update was made durable; who asked for it wants to know"]
pub struct Persistent {
    updates: u8,
    survives: Survives,
}

impl Persistent {
    /// How many updates are durable.
    #[must_use]
    pub const fn updates(&self) -> u8 {
        self.updates
    }

    /// Which failures they survive.
    #[must_use]
    pub const fn survives(&self) -> Survives {
        self.survives
    }
}

/// What a requester must be able to do. The seam to live verbs.
pub trait Requester {
    /// Why it cannot go on: the QP is in error, the peer refused.
    type Error;

    /// Posts a work request for a step that is none of the waits.
    ///
    /// # Errors
    /// The work request cannot be posted.
    fn post(&mut self, step: Rq) -> Result<(), Self::Error>;

    /// Whether everything posted so far has completed.
    ///
    /// # Errors
    /// A work request failed: nothing may be believed durable.
    fn completed(&mut self) -> Result<bool, Self::Error>;

    /// Whether one more acknowledgement has come from the responder; it is consumed.
    ///
    /// # Errors
    /// The responder says that it failed, or is gone.
    fn acknowledged(&mut self) -> Result<bool, Self::Error>;
}

/// What a run that cannot go on waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// The completion of a work request that was posted.
    Completion,
    /// The responder's acknowledgement.
    Acknowledgement,
}

/// The requester's half of a recipe: made once for any number of runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    steps: Arc<[Rq]>,
    updates: u8,
}

impl Script {
    /// Of a recipe.
    #[must_use]
    pub fn of(recipe: &Recipe) -> Self {
        Self { steps: recipe.requester().collect(), updates: recipe.shape.count }
    }
}

/// A recipe on its way.
#[derive(Debug)]
pub struct Run {
    script: Script,
    next: usize,
    survives: Survives,
}

impl Run {
    /// Begins to carry out a recipe on a responder of that configuration.
    #[must_use]
    pub fn new(recipe: &Recipe, config: &Config) -> Self {
        Self::of(&Script::of(recipe), config)
    }

    /// As [`new`](Self::new), of a recipe whose requester's half is at hand.
    #[must_use]
    pub fn of(script: &Script, config: &Config) -> Self {
        Self { script: script.clone(), next: 0, survives: config.domain.survives() }
    }

    /// What it waits for, if it waits.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting> {
        match self.script.steps.get(self.next)? {
            Rq::Comp => Some(Waiting::Completion),
            Rq::Receive => Some(Waiting::Acknowledgement),
            _ => None,
        }
    }

    /// Goes on as far as it can without waiting. `Ready` once: the token is minted, and the run is at its end.
    ///
    /// # Errors
    /// Whatever the requester says. The run is not at its end then, and nothing may be believed durable.
    ///
    /// # Panics
    /// If it is polled after its end.
    pub fn poll<R: Requester>(&mut self, requester: &mut R) -> Poll<Result<Persistent, R::Error>> {
        assert!(self.next <= self.script.steps.len(), "a run is polled after its end");
        while let Some(step) = self.script.steps.get(self.next) {
            let over = match step {
                Rq::Comp => requester.completed(),
                Rq::Receive => requester.acknowledged(),
                Rq::Write(_)
                | Rq::WriteImm(_)
                | Rq::Send(_)
                | Rq::Flush(_)
                | Rq::AtomicWrite(_)
                | Rq::FencedWrite(_) => requester.post(*step).map(|()| true),
            };
            match over {
                Ok(true) => self.next += 1,
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.next += 1;
        Poll::Ready(Ok(Persistent { updates: self.script.updates, survives: self.survives }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Op, Shape, build};
    use crate::taxonomy::{Buffers, Domain};

    /// Completes and acknowledges when it is told to.
    #[derive(Default)]
    struct Scripted {
        posted: Vec<Rq>,
        completes: bool,
        acks: usize,
        fails: bool,
    }

    impl Requester for Scripted {
        type Error = &'static str;

        fn post(&mut self, step: Rq) -> Result<(), Self::Error> {
            self.posted.push(step);
            Ok(())
        }

        fn completed(&mut self) -> Result<bool, Self::Error> {
            if self.fails { Err("flushed in error") } else { Ok(self.completes) }
        }

        fn acknowledged(&mut self) -> Result<bool, Self::Error> {
            let any = self.acks > 0;
            self.acks -= usize::from(any);
            Ok(any)
        }
    }

    #[test]
    fn the_token_is_minted_when_the_last_wait_is_over_and_not_before() {
        let config = Config::paper(Domain::Dmp, true, Buffers::Dram);
        let recipe = build(&config, Op::Write, Shape::COMPOUND);
        let mut run = Run::new(&recipe, &config);
        let mut verbs = Scripted::default();
        assert!(run.poll(&mut verbs).is_pending());
        assert_eq!((verbs.posted.len(), run.waiting()), (2, Some(Waiting::Acknowledgement)));
        verbs.acks = 1;
        assert!(run.poll(&mut verbs).is_pending(), "one acknowledgement is not two");
        assert_eq!(verbs.posted.len(), 4);
        verbs.acks = 1;
        let Poll::Ready(Ok(token)) = run.poll(&mut verbs) else { panic!("not at its end") };
        assert_eq!((token.updates(), token.survives()), (2, Survives::EVERYTHING));
    }

    #[test]
    fn a_failed_completion_mints_nothing() {
        let config = Config::paper(Domain::Mhp, true, Buffers::Dram);
        let mut run = Run::new(&build(&config, Op::Write, Shape::SINGLETON), &config);
        let mut verbs = Scripted { fails: true, completes: true, ..Scripted::default() };
        assert!(matches!(run.poll(&mut verbs), Poll::Ready(Err("flushed in error"))));
    }

    #[test]
    fn a_process_domain_says_what_it_does_not_survive() {
        let config = Config { domain: Domain::Process, ..Config::SAFE };
        let mut run = Run::new(&build(&config, Op::Send, Shape::SINGLETON), &config);
        let mut verbs = Scripted { acks: 1, ..Scripted::default() };
        let Poll::Ready(Ok(token)) = run.poll(&mut verbs) else { panic!("not at its end") };
        assert_eq!(token.survives(), Survives::PROCESS_CRASH);
    }
}
