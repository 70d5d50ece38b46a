//! Operations of any kind that come and go, together on one session: for hosts whose callers do not wait for each other.
//!
//! Each [`Mux::step`] posts what all of them want: READs under one doorbell, messages as one batch, what is to be durable as
//! one recipe with one flush. While that is under way more operations [begin](Mux::begin), and share the next one.
//!
//! Nobody may want an operation any more ([`Mux::give_up`]). It then ends at the next moment at which nothing of it is under
//! way, and says what became of it: a PUT that had been handed room but not begun to write is abandoned at the server, so
//! that its key is free again; one whose value is on its way is carried to its end, and has taken effect.

use std::collections::BTreeMap;

use super::many::{Wait, merge};
use super::{Call, Client, Completion, Error, Found, Get, Operation, Progress, Put, Verb};
use crate::proto::{Reply, Request};

/// An operation of any kind.
#[derive(Debug)]
pub enum AnyOperation {
    /// The reading of a key's value.
    Get(Get),
    /// The writing of a key's value.
    Put(Put),
    /// A message to the server, and its reply.
    Call(Call),
}

/// What comes out of an [`AnyOperation`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// What a GET ended with.
    Get(Result<Option<Found>, Error>),
    /// What a PUT ended with: the version of the value.
    Put(Result<u64, Error>),
    /// What a message ended with.
    Call(Result<Reply, Error>),
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It came to its end, whether or not somebody still wanted it.
    Done(Output),
    /// It was given up, and nothing was changed.
    Never,
    /// The connection broke. Nothing was changed.
    Lost,
    /// The connection broke, and it may have taken effect or not.
    Unknown,
}

/// What a host does next.
#[derive(Debug)]
pub struct Step {
    /// Post these in this order; then step with one completion for each. If there are none, step again when more has begun, or
    /// a little later if [`Self::again`].
    pub post: Vec<Verb>,
    /// Operations that have ended, by number.
    pub ended: Vec<(u64, Ended)>,
    /// Whether some wait for an operation of somebody else to finish.
    pub again: bool,
}

#[derive(Debug)]
struct Running {
    operation: AnyOperation,
    /// Whether something of it has been posted.
    begun: bool,
    given_up: bool,
    /// It waits for somebody else's to finish, and is asked again when nothing else of this session is under way and the host
    /// has attended to what the server waits for: else two that ask in turn would keep each other and the host from that.
    rests: bool,
}

/// Operations under way on one session.
#[derive(Debug, Default)]
pub struct Mux {
    running: BTreeMap<u64, Running>,
    /// The operation that has each place of the round, by its number.
    order: Vec<u64>,
    waits: Vec<Wait>,
}

/// The place of what is told to the server and is nobody's operation.
const NOBODY: usize = usize::MAX;

impl Mux {
    /// A session on which nothing is under way.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// An operation begins at the next step. The number is the caller's, and must not be in use.
    pub fn begin(&mut self, number: u64, operation: AnyOperation) {
        let running = Running { operation, begun: false, given_up: false, rests: false };
        let before = self.running.insert(number, running);
        assert!(before.is_none(), "operation {number} is under way already");
    }

    /// Nobody wants an operation any more. That it has ended is still said.
    pub fn give_up(&mut self, number: u64) {
        if let Some(running) = self.running.get_mut(&number) {
            running.given_up = true;
        }
    }

    /// Goes on, with the completions of what was posted last.
    pub fn step(&mut self, client: &mut Client, now: u64, completions: &[Completion]) -> Step {
        let mut step = Step { post: Vec::new(), ended: Vec::new(), again: false };
        let mut errands: Vec<Request> = Vec::new();
        let mut wanted: Vec<(u64, Vec<Verb>)> = Vec::new();
        let order = std::mem::take(&mut self.order);
        let mut fed: BTreeMap<u64, Vec<Completion>> = BTreeMap::new();
        for wait in std::mem::take(&mut self.waits) {
            if let Some(number) = order.get(wait.operation) {
                fed.insert(*number, wait.completions(completions));
            }
        }
        let mut over = Vec::new();
        for (number, running) in &mut self.running {
            let completions = fed.remove(number);
            if running.given_up && completions.is_none() {
                // Nothing of it is under way, and what it waited for it has not been given.
                errands.extend(running.operation.cancel(client));
                over.push(*number);
                step.ended.push((*number, Ended::Never));
                continue;
            }
            if running.rests {
                step.again = true;
                continue;
            }
            match running.operation.step(client, now, completions.unwrap_or_default()) {
                Progress::Done(output) => {
                    over.push(*number);
                    step.ended.push((*number, Ended::Done(output)));
                }
                Progress::Post(_) | Progress::Again if running.given_up => {
                    errands.extend(running.operation.cancel(client));
                    over.push(*number);
                    step.ended.push((*number, Ended::Never));
                }
                Progress::Post(verbs) => {
                    running.begun = true;
                    wanted.push((*number, verbs));
                }
                Progress::Again => (step.again, running.rests) = (true, true),
            }
        }
        for number in over {
            self.running.remove(&number);
        }
        while let Some(report) = client.poll_report() {
            errands.push(report);
        }
        errands.extend(client.poll_acknowledgement());
        let mut places: Vec<(usize, Vec<Verb>)> = Vec::with_capacity(wanted.len() + 1);
        for (place, (number, verbs)) in wanted.into_iter().enumerate() {
            self.order.push(number);
            places.push((place, verbs));
        }
        if !errands.is_empty() {
            places.push((NOBODY, errands.into_iter().map(Verb::Call).collect()));
        }
        (step.post, self.waits) = merge(places);
        if step.post.is_empty() {
            self.running.values_mut().for_each(|running| running.rests = false);
        }
        step
    }

    /// The connection broke: everything ends, and nothing of it can be under way any more.
    pub fn broken(&mut self, client: &mut Client) -> Vec<(u64, Ended)> {
        self.waits.clear();
        self.order.clear();
        let running = std::mem::take(&mut self.running);
        running
            .into_iter()
            .map(|(number, mut running)| {
                let open = match &running.operation {
                    AnyOperation::Get(_) => false,
                    AnyOperation::Put(put) => put.is_writing(),
                    AnyOperation::Call(call) => running.begun && call.changes(),
                };
                running.operation.cancel(client);
                (number, if open { Ended::Unknown } else { Ended::Lost })
            })
            .collect()
    }
}

impl Operation for AnyOperation {
    type Output = Output;

    fn step(&mut self, client: &mut Client, now: u64, completions: Vec<Completion>) -> Progress<Output> {
        fn map<T>(progress: Progress<T>, of: impl FnOnce(T) -> Output) -> Progress<Output> {
            match progress {
                Progress::Post(verbs) => Progress::Post(verbs),
                Progress::Again => Progress::Again,
                Progress::Done(output) => Progress::Done(of(output)),
            }
        }
        match self {
            Self::Get(get) => map(get.step(client, now, completions), Output::Get),
            Self::Put(put) => map(put.step(client, now, completions), Output::Put),
            Self::Call(call) => map(call.step(client, now, completions), Output::Call),
        }
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        match self {
            Self::Get(get) => get.cancel(client),
            Self::Put(put) => put.cancel(client),
            Self::Call(call) => call.cancel(client),
        }
    }
}
