//! The recipe for any configuration, operation and shape, by rule. The paper's tables are the same rules written out,
//! which a test compares; the rules go on where the tables end: other domains, other FLUSHes, no ATOMIC WRITE, writes
//! out of order, batches and lists.

use super::{Flush, Message, Op, Recipe, Rq, Rsp, Set, Shape, Source, Step, Target, Update};
use crate::taxonomy::{AtomicSupport, Buffers, Config, Domain, FlushSupport, Order, Transport};

/// What the requester must do before it may believe what it has posted to be in the domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// Wait for the completion.
    Completion,
    /// Flush, and wait for that completion.
    Flush(Flush),
    /// Ask the responder's CPU.
    Cpu,
}

fn reach(config: &Config) -> Reach {
    let visible = match (config.flush, config.order) {
        // A READ pushes only the bytes that it reads when memory may be written in any order.
        (FlushSupport::Read, Order::Relaxed) => Reach::Cpu,
        (FlushSupport::Read, Order::Posted) => Reach::Flush(Flush::Read),
        (FlushSupport::Global | FlushSupport::Persistent, _) => Reach::Flush(Flush::Global),
    };
    let persistent = config.flush == FlushSupport::Persistent;
    match (config.domain, config.ddio) {
        (Domain::Wsp, _) if config.transport == Transport::Roce => Reach::Completion,
        // Memory of a process cannot promise persistence, and need not: visible is enough.
        (Domain::Wsp | Domain::Mhp | Domain::Process, _) => visible,
        // It does not depend on what was declared of DDIO, so it is used where it is to be had.
        (Domain::Dmp | Domain::PageCache, _) if persistent => Reach::Flush(Flush::Persistent),
        (Domain::Dmp, false) => visible,
        (Domain::Dmp, true) | (Domain::PageCache, _) => Reach::Cpu,
    }
}

/// Updates that are posted one after the other enter the domain in that order.
fn keeps_order(config: &Config) -> bool {
    config.order == Order::Posted && config.domain.keeps_caches()
}

/// The recipe for that configuration with that operation, as the paper would have it.
#[must_use]
pub fn build(config: &Config, op: Op, shape: Shape) -> Recipe {
    let mut steps = Vec::new();
    match op {
        Op::Write | Op::WriteImm => writes(config, op, shape, &mut steps),
        Op::Send => sends(config, shape, &mut steps),
    }
    complete(config, shape, steps, source(config, op, shape))
}

fn source(config: &Config, op: Op, shape: Shape) -> Source {
    let flushes_persistently = reach(config) == Reach::Flush(Flush::Persistent);
    let two_sided_send = op == Op::Send && config.buffers == Buffers::Dram;
    if config.domain == Domain::PageCache || config.domain == Domain::Process {
        return Source::Ours("the paper's reasoning for a domain that it does not have");
    }
    if flushes_persistently && !two_sided_send {
        return Source::Annex;
    }
    if config.order == Order::Relaxed {
        return Source::Ours("the paper's reasoning without the order of posted writes");
    }
    match (shape, config.transport) {
        (Shape::COMPOUND_LONG, _) => Source::Section("3.3, second update of more than 8 bytes"),
        (Shape::SINGLETON | Shape::COMPOUND, Transport::Iwarp) => {
            Source::Section("3.2 and 3.3, the paragraphs on iWARP")
        }
        (Shape::SINGLETON, Transport::Roce) => Source::Table(2),
        (Shape::COMPOUND, Transport::Roce) if config.atomic == AtomicSupport::Native => Source::Table(3),
        (Shape::COMPOUND, Transport::Roce) => Source::Section("3.4, fenced WRITE"),
        _ => Source::Ours("the paper's reasoning for more than two updates"),
    }
}

fn post(op: Op, update: Update) -> Step {
    Step::Rq(if op == Op::WriteImm { Rq::WriteImm(update) } else { Rq::Write(update) })
}

fn writes(config: &Config, op: Op, shape: Shape, steps: &mut Vec<Step>) {
    let updates: Vec<Update> = Set::first(shape.count).iter().collect();
    let last = updates.len() - 1;
    let together = !shape.ordered;
    match reach(config) {
        Reach::Completion => {
            for (n, update) in updates.iter().enumerate() {
                steps.push(post(op, *update));
                if n == last || shape.ordered && !keeps_order(config) {
                    steps.push(Step::Rq(Rq::Comp));
                }
            }
        }
        Reach::Flush(flush) => {
            let flush = Step::Rq(Rq::Flush(flush));
            // An ATOMIC WRITE waits at the responder for what is before it. In WSP what has arrived counts already, and
            // where packets may overtake each other it must not even be sent too early.
            let atomic = shape.word
                && (op, config.atomic) == (Op::Write, AtomicSupport::Native)
                && (config.domain, config.order) != (Domain::Wsp, Order::Relaxed);
            for (n, update) in updates.iter().enumerate() {
                let behind = match (n > 0 && shape.ordered && !keeps_order(config), op, config.atomic) {
                    (false, ..) => post(op, *update),
                    (true, Op::Write, AtomicSupport::Native) if atomic && n == last => {
                        Step::Rq(Rq::AtomicWrite(*update))
                    }
                    (true, Op::Write, AtomicSupport::Fenced) => Step::Rq(Rq::FencedWrite(*update)),
                    (true, ..) => {
                        steps.push(Step::Rq(Rq::Comp));
                        post(op, *update)
                    }
                };
                steps.push(behind);
                // Visible after what is before it is all that is needed where caches are kept.
                let follows = atomic && n + 1 == last && config.domain.keeps_caches();
                if n == last || shape.ordered && !keeps_order(config) && !follows {
                    steps.push(flush);
                }
            }
            steps.push(Step::Rq(Rq::Comp));
        }
        Reach::Cpu => {
            // A message says where; with the immediate each write is its own message.
            let groups: Vec<Vec<Update>> =
                if together { vec![updates] } else { updates.into_iter().map(|u| vec![u]).collect() };
            for group in groups {
                exchange(config, op, &group, steps);
            }
        }
    }
}

/// Writes a group, has the responder flush it, and waits for its word.
fn exchange(config: &Config, op: Op, group: &[Update], steps: &mut Vec<Step>) {
    let set = group.iter().fold(Set::NONE, |set, u| Set(set.0 | Set::one(*u).0));
    let flush = |u: &Update| Step::Rsp(Rsp::Flush(Target::Update(*u)));
    steps.extend(group.iter().map(|u| post(op, *u)));
    if op == Op::Write {
        steps.push(Step::Rq(Rq::Send(Message::notice(set))));
        steps.push(Step::Rsp(Rsp::Receive(Message::notice(set))));
        // Where caches are in the domain the message is all that is needed: what came before it is visible.
        steps.extend(group.iter().filter(|_| !config.domain.keeps_caches()).map(flush));
    } else {
        for update in group {
            steps.push(Step::Rsp(Rsp::Receive(Message::notice(Set::one(*update)))));
            if !config.domain.keeps_caches() {
                steps.push(flush(update));
            }
        }
    }
    steps.push(Step::Rsp(Rsp::Ack));
    steps.push(Step::Rq(Rq::Receive));
}

fn sends(config: &Config, shape: Shape, steps: &mut Vec<Step>) {
    let all = Message::data(Set::first(shape.count));
    steps.push(Step::Rq(Rq::Send(all)));
    match (config.buffers, reach(config)) {
        (Buffers::Pm, Reach::Completion) => steps.push(Step::Rq(Rq::Comp)),
        (Buffers::Pm, Reach::Flush(flush)) => steps.extend([Step::Rq(Rq::Flush(flush)), Step::Rq(Rq::Comp)]),
        (Buffers::Dram, _) | (Buffers::Pm, Reach::Cpu) => {
            steps.push(Step::Rsp(Rsp::Receive(all)));
            for update in all.data.iter() {
                steps.push(Step::Rsp(Rsp::Copy(update)));
                if !config.domain.keeps_caches() {
                    steps.push(Step::Rsp(Rsp::Flush(Target::Update(update))));
                }
            }
            steps.extend([Step::Rsp(Rsp::Ack), Step::Rq(Rq::Receive)]);
        }
    }
}

/// Adds what the paper leaves unsaid, and follows from the steps: whether recovery applies messages, and what the
/// responder owes afterwards.
pub(crate) fn complete(config: &Config, shape: Shape, steps: Vec<Step>, source: Source) -> Recipe {
    let mut recipe = Recipe { shape, steps, deferred: Vec::new(), replay: false, source };
    let mut unreceived: Vec<Message> = Vec::new();
    let mut copied = Set::NONE;
    let mut messages = 0;
    for step in &recipe.steps {
        match step {
            Step::Rq(Rq::Send(message)) => unreceived.push(*message),
            Step::Rq(Rq::WriteImm(update)) => unreceived.push(Message::notice(Set::one(*update))),
            Step::Rsp(Rsp::Receive(message)) => {
                unreceived.retain(|m| m != message);
                messages += 1;
            }
            Step::Rsp(Rsp::Copy(update)) => copied.0 |= Set::one(*update).0,
            _ => {}
        }
    }
    // Received, acknowledged and not copied yet: the buffer was flushed, and stands in for the place.
    let data = recipe.requester().fold(Set::NONE, |set, step| match step {
        Rq::Send(message) => Set(set.0 | message.data.0),
        _ => set,
    });
    recipe.replay = data.0 & !copied.0 != 0;
    for message in unreceived {
        recipe.deferred.push(Rsp::Receive(message));
        messages += 1;
    }
    for update in Set(data.0 & !copied.0).iter() {
        recipe.deferred.push(Rsp::Copy(update));
        if !config.domain.keeps_caches() {
            recipe.deferred.push(Rsp::Flush(Target::Update(update)));
        }
    }
    recipe.deferred.extend(std::iter::repeat_n(Rsp::Repost, messages));
    recipe
}

/// Recipes of our own for that configuration and shape, which the paper does not have.
#[must_use]
pub fn variants(config: &Config, shape: Shape) -> Vec<(Op, Recipe)> {
    let mut all = Vec::new();
    if reach(config) != Reach::Cpu || config.domain.keeps_caches() {
        return all;
    }
    let flush = |target| Step::Rsp(Rsp::Flush(target));
    let ack = [Step::Rsp(Rsp::Ack), Step::Rq(Rq::Receive)];
    if config.buffers == Buffers::Pm {
        let message = Message::data(Set::first(shape.count));
        let mut steps =
            vec![Step::Rq(Rq::Send(message)), Step::Rsp(Rsp::Receive(message)), flush(Target::Buffer)];
        steps.extend(ack);
        let why = Source::Ours("the receive buffer is persistent: flush that, acknowledge, and copy later");
        all.push((Op::Send, complete(config, shape, steps, why)));
    }
    if shape.count > 1 && shape.ordered {
        let last = Update(shape.count - 1);
        let before = Set(Set::first(shape.count).0 & !Set::one(last).0);
        let message = Message { notice: before, data: Set::one(last) };
        let mut steps: Vec<Step> = before.iter().map(|u| Step::Rq(Rq::Write(u))).collect();
        steps.extend([Step::Rq(Rq::Send(message)), Step::Rsp(Rsp::Receive(message))]);
        steps.extend(before.iter().map(|u| flush(Target::Update(u))));
        steps.extend([Step::Rsp(Rsp::Copy(last)), flush(Target::Update(last))]);
        steps.extend(ack);
        let why = Source::Ours(
            "the message that asks for the flush of what must come first brings the last update",
        );
        // With more than two the order among the first ones would be lost: they arrive together.
        if shape.count == 2 {
            all.push((Op::Write, complete(config, shape, steps, why)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::cells;

    #[test]
    fn the_rules_give_the_papers_tables() {
        for transport in [Transport::Roce, Transport::Iwarp] {
            for cell in cells(transport) {
                let built = build(&cell.config, cell.op, cell.shape);
                assert_eq!(built, cell.recipe(), "{}: {built}", cell.name());
            }
        }
    }

    #[test]
    fn the_new_flush_makes_one_sided_what_ddio_forbade() {
        let mut config = Config::paper(Domain::Dmp, true, Buffers::Pm);
        assert!(build(&config, Op::Write, Shape::SINGLETON).is_two_sided());
        config.flush = FlushSupport::Persistent;
        for op in Op::ALL {
            assert!(!build(&config, op, Shape::COMPOUND).is_two_sided());
        }
        config.flush = FlushSupport::Read;
        config.ddio = false;
        config.atomic = AtomicSupport::Fenced;
        assert_eq!(
            build(&config, Op::Write, Shape::COMPOUND).to_string(),
            "Rq Write(a); Rq Read; Rq FencedWrite(b); Rq Read; Rq Comp"
        );
    }

    #[test]
    fn who_copies_late_needs_recovery_and_reposts_last() {
        let config = Config::paper(Domain::Dmp, false, Buffers::Pm);
        let recipe = build(&config, Op::Send, Shape::COMPOUND);
        assert!(recipe.replay);
        let deferred: Vec<String> = recipe.deferred.iter().map(Rsp::to_string).collect();
        assert_eq!(deferred, ["Receive(a,b)", "copy(a)", "flush(&a)", "copy(b)", "flush(&b)", "repost"]);
        assert!(!build(&Config::SAFE, Op::Send, Shape::COMPOUND).replay);
    }

    #[test]
    fn batches_share_one_flush() {
        let config = Config::paper(Domain::Dmp, false, Buffers::Dram);
        let recipe = build(&config, Op::Write, Shape::batch(64));
        assert_eq!(recipe.requester().filter(|s| matches!(s, Rq::Flush(_))).count(), 1);
        assert_eq!(recipe.waits(), 1);
        assert_eq!(build(&Config::SAFE, Op::Write, Shape::batch(64)).messages(), 1);
    }
}
