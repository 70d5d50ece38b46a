//! Bounded synthesis: every list of steps shorter than a recipe is tried on its machine. None is correct, or here is one.
//!
//! Lists are made of the steps of the cell's operation; a WRITE may be accompanied by messages. What cannot be part of a
//! shortest list is not tried: a list that does not send every update exactly once; that ends in anything but a wait, or
//! waits twice for the same thing, or not for an acknowledgement that is sent; a responder that acts before it was told
//! to, after its acknowledgement, or copies what it was not sent. What the responder does after its acknowledgement
//! follows from the steps and is not counted.

use super::explore::fails;
use super::{Machine, Scenario, Verdict, check};
use crate::recipe::{
    A, B, Flush, Message, Op, Recipe, Rq, Rsp, Set, Shape, Source, Step, Target, Update, complete,
};
use crate::taxonomy::{Buffers, Config};

/// What was found among the shorter lists.
#[derive(Clone, Debug)]
pub struct Synthesis {
    /// Length of the recipe that it was compared with.
    pub length: usize,
    /// Every list shorter than this was tried, or ruled out.
    pub bound: usize,
    /// Lists that were explored.
    pub tried: usize,
    /// States that were explored for it.
    pub states: u64,
    /// The shortest correct recipes, if any is shorter: all of that length.
    pub shorter: Vec<Recipe>,
}

/// Longer lists are not tried.
const BOUND: usize = 9;

/// Looks for a correct list of steps that is shorter than `recipe`, for the same configuration, operation and shape
/// ([`Shape::SINGLETON`] or a compound).
#[must_use]
pub fn synthesise(recipe: &Recipe, config: &Config, op: Op) -> Synthesis {
    let length = recipe.steps.len();
    let mut search = Search::new(config, op, recipe.shape);
    let mut found =
        Synthesis { length, bound: length.min(BOUND + 1), tried: 0, states: 0, shorter: Vec::new() };
    for total in 2..length.min(BOUND + 1) {
        search.total(total, &mut found);
        if !found.shorter.is_empty() {
            found.bound = total + 1;
            break;
        }
    }
    found
}

struct Search {
    config: Config,
    machine: Machine,
    shape: Shape,
    rq_letters: Vec<Rq>,
    rsp_letters: Vec<Rsp>,
    rq: Vec<Rq>,
    rsp: Vec<Rsp>,
}

impl Search {
    fn new(config: &Config, op: Op, shape: Shape) -> Self {
        let updates: Vec<Update> = Set::first(shape.count).iter().collect();
        let single: Vec<Set> = updates.iter().map(|u| Set::one(*u)).collect();
        let all = Set::first(shape.count);
        let mut rq_letters = Vec::new();
        match op {
            Op::Write => {
                rq_letters.extend(updates.iter().map(|u| Rq::Write(*u)));
                rq_letters.extend(single.iter().map(|s| Rq::Send(Message::notice(*s))));
                if shape.count == 2 {
                    rq_letters.push(Rq::Send(Message::notice(all)));
                    rq_letters.push(Rq::Send(Message::data(Set::one(B))));
                    rq_letters.push(Rq::Send(Message { notice: Set::one(A), data: Set::one(B) }));
                    if shape.word {
                        rq_letters.push(Rq::AtomicWrite(B));
                    }
                }
            }
            Op::WriteImm => rq_letters.extend(updates.iter().map(|u| Rq::WriteImm(*u))),
            Op::Send => {
                rq_letters.push(Rq::Send(Message::data(all)));
                if shape.count == 2 {
                    rq_letters.extend(single.iter().map(|s| Rq::Send(Message::data(*s))));
                }
            }
        }
        rq_letters.extend([Rq::Flush(Flush::Global), Rq::Comp, Rq::Receive]);
        // The label of a receive follows from what was sent.
        let mut rsp_letters = vec![Rsp::Receive(Message::default())];
        let carried =
            |u: &&Update| rq_letters.iter().any(|step| matches!(step, Rq::Send(m) if m.data.has(**u)));
        rsp_letters.extend(updates.iter().filter(carried).map(|u| Rsp::Copy(*u)));
        rsp_letters.extend(updates.iter().map(|u| Rsp::Flush(Target::Update(*u))));
        if config.buffers == Buffers::Pm && op != Op::WriteImm {
            rsp_letters.push(Rsp::Flush(Target::Buffer));
        }
        rsp_letters.push(Rsp::Ack);
        let machine = Machine::new(*config);
        Self { config: *config, machine, shape, rq_letters, rsp_letters, rq: Vec::new(), rsp: Vec::new() }
    }

    /// Tries every list of that length.
    fn total(&mut self, total: usize, found: &mut Synthesis) {
        for responder in 0..total {
            self.requester(total - responder, responder, found);
        }
    }

    fn requester(&mut self, left: usize, responder: usize, found: &mut Synthesis) {
        if left == 0 {
            if self.requester_is_whole(responder) {
                self.responder(responder, found);
            }
            return;
        }
        for n in 0..self.rq_letters.len() {
            let step = self.rq_letters[n];
            if self.requester_may(step) {
                self.rq.push(step);
                self.requester(left - 1, responder, found);
                self.rq.pop();
            }
        }
    }

    fn sent(&self) -> Set {
        self.rq.iter().fold(Set::NONE, |set, step| Set(set.0 | carries(*step).0))
    }

    fn requester_may(&self, step: Rq) -> bool {
        let last = self.rq.last().copied();
        let sent = self.sent();
        match step {
            Rq::Comp => !matches!(last, None | Some(Rq::Comp | Rq::Receive)),
            Rq::Flush(_) => !matches!(last, None | Some(Rq::Flush(_))),
            Rq::Receive => !self.rq.is_empty(),
            _ => sent.0 & carries(step).0 == 0,
        }
    }

    fn requester_is_whole(&self, responder: usize) -> bool {
        let waits = matches!(self.rq.last(), Some(Rq::Comp | Rq::Receive));
        let receives = self.rq.iter().filter(|s| **s == Rq::Receive).count();
        let all = self.sent() == Set::first(self.shape.count);
        waits && all && (receives == 0) == (responder == 0) && 2 * receives <= responder
    }

    fn responder(&mut self, left: usize, found: &mut Synthesis) {
        if left == 0 {
            if self.responder_is_whole() {
                self.try_it(found);
            }
            return;
        }
        for n in 0..self.rsp_letters.len() {
            let step = self.rsp_letters[n];
            if self.responder_may(step, left) {
                self.rsp.push(step);
                self.responder(left - 1, found);
                self.rsp.pop();
            }
        }
    }

    fn messages(&self) -> Vec<Message> {
        let of = |step: &Rq| match step {
            Rq::Send(message) => Some(*message),
            Rq::WriteImm(update) => Some(Message::notice(Set::one(*update))),
            _ => None,
        };
        self.rq.iter().filter_map(of).collect()
    }

    fn responder_may(&self, step: Rsp, left: usize) -> bool {
        let messages = self.messages();
        let received = self.rsp.iter().filter(|s| matches!(s, Rsp::Receive(_))).count();
        match step {
            Rsp::Receive(_) => received < messages.len(),
            _ if received == 0 => false,
            Rsp::Copy(u) => !self.rsp.contains(&step) && messages[..received].iter().any(|m| m.data.has(u)),
            Rsp::Flush(_) => self.rsp.last() != Some(&step),
            Rsp::Ack => {
                let acks = self.rsp.iter().filter(|s| **s == Rsp::Ack).count();
                let receives = self.rq.iter().filter(|s| **s == Rq::Receive).count();
                // The last thing it does is to say the last word.
                acks < receives && (left == 1) == (acks + 1 == receives)
            }
            Rsp::Repost => false,
        }
    }

    fn responder_is_whole(&self) -> bool {
        let count = |wanted: Rsp| self.rsp.iter().filter(|s| **s == wanted).count();
        count(Rsp::Ack) == self.rq.iter().filter(|s| **s == Rq::Receive).count()
    }

    fn try_it(&self, found: &mut Synthesis) {
        let mut messages = self.messages().into_iter();
        let rsp = self.rsp.iter().map(|step| match step {
            Rsp::Receive(_) => Step::Rsp(Rsp::Receive(messages.next().unwrap_or_default())),
            other => Step::Rsp(*other),
        });
        let rsp: Vec<Step> = rsp.collect();
        let steps = interleave(&self.rq, &rsp);
        let recipe = complete(&self.config, self.shape, steps, Source::Ours("found by synthesis"));
        if recipe.replay && self.config.buffers == Buffers::Dram || self.machine.refuses(&recipe).is_some() {
            return;
        }
        // Nearly all fail with updates of one word already, and those have few states.
        let (failed, states) = fails(&recipe, &self.machine, &Scenario::WORDS);
        found.tried += 1;
        found.states += states as u64;
        if failed {
            return;
        }
        let Verdict { states, fault } = check(&recipe, &self.machine);
        found.states += states as u64;
        if fault.is_none() {
            found.shorter.push(recipe);
        }
    }
}

const fn carries(step: Rq) -> Set {
    match step {
        Rq::Write(u) | Rq::WriteImm(u) | Rq::AtomicWrite(u) | Rq::FencedWrite(u) => Set::one(u),
        Rq::Send(message) => message.data,
        Rq::Flush(_) | Rq::Comp | Rq::Receive => Set::NONE,
    }
}

/// One list out of two, each acknowledgement before the step that waits for it, as the paper writes them.
fn interleave(rq: &[Rq], rsp: &[Step]) -> Vec<Step> {
    let mut steps = Vec::with_capacity(rq.len() + rsp.len());
    let mut rest = rsp;
    for step in rq {
        if *step == Rq::Receive {
            let end = rest.iter().position(|s| *s == Step::Rsp(Rsp::Ack)).map_or(rest.len(), |n| n + 1);
            steps.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        steps.push(Step::Rq(*step));
    }
    steps.extend_from_slice(rest);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::build;
    use crate::taxonomy::Domain;

    fn shorter(config: &Config, op: Op, shape: Shape) -> Vec<String> {
        let found = synthesise(&build(config, op, shape), config, op);
        println!(
            "{config} {op:?} {shape}: {} tried, {} states, bound {}",
            found.tried, found.states, found.bound
        );
        found.shorter.iter().map(Recipe::to_string).collect()
    }

    #[test]
    fn the_two_shorter_recipes_that_were_predicted_are_found() {
        let pm = Config::paper(Domain::Dmp, true, Buffers::Pm);
        assert_eq!(
            shorter(&pm, Op::Send, Shape::SINGLETON),
            ["Rq Send(a); Rsp Receive(a); Rsp flush(buffer); Rsp Send(ack); Rq Receive(ack)"]
        );
        let dram = Config::paper(Domain::Dmp, true, Buffers::Dram);
        let found = shorter(&dram, Op::Write, Shape::COMPOUND);
        assert!(
            found.contains(
                &"Rq Write(a); Rq Send(&a,b); Rsp Receive(&a,b); Rsp flush(&a); Rsp copy(b); Rsp flush(&b); \
                  Rsp Send(ack); Rq Receive(ack)"
                    .to_owned()
            ),
            "{found:?}"
        );
    }

    #[test]
    fn the_shortest_are_the_shortest() {
        for domain in Domain::PAPER {
            let config = Config::paper(domain, false, Buffers::Dram);
            assert_eq!(shorter(&config, Op::Write, Shape::SINGLETON), [""; 0]);
            assert_eq!(shorter(&config, Op::Write, Shape::COMPOUND), [""; 0]);
        }
    }
}
