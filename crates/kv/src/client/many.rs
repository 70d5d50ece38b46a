//! Several operations together: one doorbell, one message, one flush for all of a round.

use std::collections::BTreeSet;

use super::{Change, Client, Completion, Operation, Progress, Verb};
use crate::proto::{BATCH_MAX, Reply, Request};

/// Runs operations of one kind together. Each round posts what all of them want: messages become one batch, writes that are
/// to be durable one recipe, which ends in one flush.
#[derive(Debug)]
pub struct Many<O: Operation> {
    operations: Vec<O>,
    done: Vec<Option<O::Output>>,
    /// What each operation waits for, in the order of the post.
    waits: Vec<Wait>,
    /// Those that wait for somebody else's to finish. They are asked again when nothing else of this is under way, and the host
    /// has attended to what the server waits for: else two that ask in turn would keep each other and the host from that.
    resting: BTreeSet<usize>,
}

/// What one operation has in the post of a round.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) operation: usize,
    parts: Vec<Part>,
}

impl Wait {
    /// The operation's own completions, out of those of the round.
    pub(super) fn completions(&self, round: &[Completion]) -> Vec<Completion> {
        self.parts.iter().map(|part| part.completion(round)).collect()
    }
}

/// Where the completion of one work request is found.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// In a completion of its own, at this place of the post.
    Own(usize),
    /// In the completion of the recipe at this place, which operations share.
    Persist(usize),
    /// In the reply to the message at this place of the post, which operations share: so many requests from `first` on;
    /// they are a batch if the operation posted one.
    Shared { at: usize, first: usize, count: usize, batch: bool },
}

impl<O: Operation> Many<O> {
    /// Runs these operations together; none has begun.
    #[must_use]
    pub fn new(operations: Vec<O>) -> Self {
        let done = operations.iter().map(|_| None).collect();
        Self { operations, done, waits: Vec::new(), resting: BTreeSet::new() }
    }

    /// The operations, and what has come of them so far: for when the connection breaks in between.
    pub fn outcomes(&self) -> impl Iterator<Item = (&O, Option<&O::Output>)> {
        self.operations.iter().zip(self.done.iter().map(Option::as_ref))
    }

    fn hand_back(&mut self, client: &mut Client, now: u64, completions: &[Completion]) -> Round<O> {
        let mut round = Round::default();
        let waits = std::mem::take(&mut self.waits);
        let waiting: Vec<usize> = waits.iter().map(|wait| wait.operation).collect();
        for wait in waits {
            let own = wait.completions(completions);
            self.one(client, now, wait.operation, own, &mut round);
        }
        for operation in 0..self.operations.len() {
            let rests = self.resting.contains(&operation) || waiting.contains(&operation);
            if self.done[operation].is_none() && !rests {
                self.one(client, now, operation, Vec::new(), &mut round);
            }
        }
        round
    }

    fn one(
        &mut self,
        client: &mut Client,
        now: u64,
        operation: usize,
        completions: Vec<Completion>,
        round: &mut Round<O>,
    ) {
        match self.operations[operation].step(client, now, completions) {
            Progress::Post(verbs) => round.verbs.push((operation, verbs)),
            Progress::Again => drop(self.resting.insert(operation)),
            Progress::Done(output) => round.outputs.push((operation, output)),
        }
    }
}

impl Many<Change> {
    /// Whether all that are not done wait for others, and have left no trace: they may be [cancelled](Operation::cancel), and tried again.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.outcomes().all(|(change, done)| done.is_some() || !change.is_writing())
    }
}

/// One post of what several operations want: messages become batches, what is to be durable one recipe.
pub(super) fn merge(wanted: Vec<(usize, Vec<Verb>)>) -> (Vec<Verb>, Vec<Wait>) {
    let mut waits = Vec::new();
    let mut post: Vec<Verb> = Vec::new();
    let mut requests: Vec<Request> = Vec::new();
    let mut updates: Vec<(u64, Vec<u8>)> = Vec::new();
    for (operation, verbs) in wanted {
        let mut parts = Vec::new();
        for verb in verbs {
            parts.push(match verb {
                Verb::Call(Request::Batch(many)) => {
                    let (first, count) = (requests.len(), many.len());
                    requests.extend(many);
                    Part::Shared { at: 0, first, count, batch: true }
                }
                Verb::Call(request) => {
                    requests.push(request);
                    Part::Shared { at: 0, first: requests.len() - 1, count: 1, batch: false }
                }
                Verb::Persist(more) => {
                    updates.extend(more);
                    Part::Persist(0)
                }
                verb @ (Verb::Read { .. } | Verb::Write { .. }) => {
                    post.push(verb);
                    Part::Own(post.len() - 1)
                }
            });
        }
        waits.push(Wait { operation, parts });
    }
    // Messages that do not fit one batch go in several; no operation's own batch is divided, as the limit of those is
    // half of ours at most (a confirmation and a PUT).
    let shared = post.len();
    let batches = requests.len().div_ceil(BATCH_MAX);
    let persist = shared + batches;
    for wait in &mut waits {
        for part in &mut wait.parts {
            match part {
                Part::Shared { at, .. } => *at = shared,
                Part::Persist(at) => *at = persist,
                Part::Own(_) => {}
            }
        }
    }
    let mut requests = requests.into_iter().peekable();
    while requests.peek().is_some() {
        post.push(Verb::Call(Request::Batch(requests.by_ref().take(BATCH_MAX).collect())));
    }
    if !updates.is_empty() {
        post.push(Verb::Persist(updates));
    }
    (post, waits)
}

impl Part {
    fn completion(self, completions: &[Completion]) -> Completion {
        match self {
            Self::Own(at) | Self::Persist(at) => completions.get(at).cloned().unwrap_or(Completion::Written),
            Self::Shared { at, first, count, batch } => {
                let reply = |n: usize| match completions.get(at + n / BATCH_MAX) {
                    Some(Completion::Reply(Reply::Batch(replies))) => replies.get(n % BATCH_MAX).cloned(),
                    // All of it was refused.
                    Some(Completion::Reply(other)) => Some(other.clone()),
                    _ => None,
                };
                let missing = || Reply::Refused(crate::proto::Refusal::Malformed);
                let mut replies = (first..first + count).map(|n| reply(n).unwrap_or_else(missing));
                Completion::Reply(if batch {
                    Reply::Batch(replies.collect())
                } else {
                    replies.next().unwrap_or_else(missing)
                })
            }
        }
    }
}

struct Round<O: Operation> {
    verbs: Vec<(usize, Vec<Verb>)>,
    outputs: Vec<(usize, O::Output)>,
}

impl<O: Operation> Default for Round<O> {
    fn default() -> Self {
        Self { verbs: Vec::new(), outputs: Vec::new() }
    }
}

impl<O: Operation> Operation for Many<O> {
    type Output = Vec<O::Output>;

    fn step(
        &mut self,
        client: &mut Client,
        now: u64,
        completions: Vec<Completion>,
    ) -> Progress<Self::Output> {
        let round = self.hand_back(client, now, &completions);
        for (operation, output) in round.outputs {
            self.done[operation] = Some(output);
        }
        if self.done.iter().all(Option::is_some) {
            return Progress::Done(self.done.drain(..).flatten().collect());
        }
        if round.verbs.is_empty() {
            self.resting.clear();
            return Progress::Again;
        }
        let (post, waits) = merge(round.verbs);
        self.waits = waits;
        Progress::Post(post)
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        let requests: Vec<Request> = self
            .operations
            .iter_mut()
            .zip(&self.done)
            .filter(|(_, done)| done.is_none())
            .filter_map(|(operation, _)| operation.cancel(client))
            .collect();
        (!requests.is_empty()).then_some(Request::Batch(requests))
    }
}
