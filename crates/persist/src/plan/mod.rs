//! The planner: the cheapest recipe that is proven for a responder, by what is to be made durable and what things cost.
//!
//! It proves at the moment of planning, on the machine that was declared or detected: a recipe that does not hold there is
//! not offered, whatever table it stands in. Batches share one flush. Costs are an argument, so that they can be measured.

mod costs;
mod explain;

use std::fmt;

pub use costs::{Costs, Estimate};
pub use explain::{Gain, Improvement, explain, improvements};

use crate::check::{Machine, Outcome, Prover};
use crate::recipe::{Op, Recipe, Rq, Shape, build, variants};
use crate::taxonomy::{AtomicSupport, Buffers, Config, Domain, FlushSupport, Order, Transport};

/// What is to be made durable, and what the application can do for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bytes of each update, 1 to 64 of them.
    pub sizes: Vec<u32>,
    /// Each must be durable before the next one is.
    pub ordered: bool,
    /// Recovery can find messages in receive buffers and apply them.
    pub replay: bool,
    /// 32 bits tell the responder which update it is, so that WRITE_IMM can be used.
    pub immediate: bool,
    /// The responder's application must learn of the updates.
    pub notify: bool,
    /// The last update carries a checksum, so that a torn one is found.
    pub checksum: bool,
    /// The largest message that a receive buffer takes.
    pub message_max: u32,
}

impl Request {
    /// One update with a checksum in it, like a record of a log.
    #[must_use]
    pub fn record(size: u32) -> Self {
        Self {
            sizes: vec![size],
            ordered: false,
            replay: true,
            immediate: true,
            notify: false,
            checksum: true,
            message_max: 4096,
        }
    }

    /// A record and then the 8-byte pointer to the log's tail.
    #[must_use]
    pub fn append(size: u32) -> Self {
        Self { sizes: vec![size, 8], ordered: true, checksum: false, ..Self::record(size) }
    }

    /// The shape of a recipe for it.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let word = self.sizes.last().is_some_and(|size| *size <= 8);
        Shape { count: self.sizes.len() as u8, ordered: self.ordered && self.sizes.len() > 1, word }
    }
}

/// Why there is no plan. The sentence says what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// What becomes of a method that was considered.
#[derive(Clone, Debug)]
pub enum Considered {
    /// It is proven, and costs that much.
    Proven(Estimate),
    /// It does not suit the request.
    Unsuitable(&'static str),
    /// It does not hold on this machine.
    Wrong(&'static str),
}

/// A method for a request.
#[derive(Clone, Debug)]
pub struct Method {
    /// The operation that carries the updates.
    pub op: Op,
    /// The steps that make the updates durable.
    pub recipe: Recipe,
    /// What becomes of it.
    pub considered: Considered,
}

/// The plan for a request on a responder.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The configuration of the responder that the plan is for.
    pub config: Config,
    /// What was asked for.
    pub request: Request,
    /// The operation that carries the updates.
    pub op: Op,
    /// What is to be carried out ([`crate::recipe::Run`]).
    pub recipe: Recipe,
    /// What it costs.
    pub estimate: Estimate,
    /// Every other method, cheapest first, then those that will not do.
    pub others: Vec<Method>,
}

/// The cheapest proven recipe.
///
/// # Errors
/// A sentence that says why no method will do, and what would help.
pub fn plan(prover: &mut Prover, config: &Config, request: &Request, costs: &Costs) -> Result<Plan, Refusal> {
    if request.sizes.is_empty() || request.sizes.len() > 64 {
        return Err(Refusal(format!(
            "a plan is for 1 to 64 updates, and {} were given; split them into several plans",
            request.sizes.len()
        )));
    }
    let shape = request.shape();
    let mut methods: Vec<Method> = Vec::new();
    for op in Op::ALL {
        for how in [How::Built(op), How::Asked(op)] {
            methods.extend(consider(prover, config, request, costs, how));
        }
    }
    for n in 0..variants(config, shape).len() {
        methods.extend(consider(prover, config, request, costs, How::Variant(n)));
    }
    methods.dedup_by(|a, b| a.recipe.steps == b.recipe.steps);
    let price = |method: &Method| match &method.considered {
        Considered::Proven(estimate) => estimate.total(costs),
        Considered::Unsuitable(_) | Considered::Wrong(_) => f64::INFINITY,
    };
    // Equal prices: the one with fewer steps, and then the earlier operation.
    methods
        .sort_by(|a, b| price(a).total_cmp(&price(b)).then(a.recipe.steps.len().cmp(&b.recipe.steps.len())));
    let best = methods.remove(0);
    match best.considered {
        Considered::Proven(estimate) => Ok(Plan {
            config: *config,
            request: request.clone(),
            op: best.op,
            recipe: best.recipe,
            estimate,
            others: methods,
        }),
        Considered::Unsuitable(why) | Considered::Wrong(why) => Err(Refusal(format!(
            "no method is proven for this request on {config}: {why}; a checksum in the update, larger receive buffers or \
             fewer demands would help"
        ))),
    }
}

/// Where a method comes from.
#[derive(Clone, Copy, Debug)]
enum How {
    /// The rules, for that configuration.
    Built(Op),
    /// The rules for one that cannot flush from afar: the responder's CPU is asked, which can be faster (004, table 2).
    Asked(Op),
    /// One of ours.
    Variant(usize),
}

impl How {
    fn method(self, config: &Config, shape: Shape) -> Option<(Op, Recipe)> {
        match self {
            Self::Built(op) => Some((op, build(config, op, shape))),
            Self::Asked(op) => {
                let unable = Config {
                    flush: FlushSupport::Read,
                    order: Order::Relaxed,
                    buffers: Buffers::Dram,
                    transport: Transport::Iwarp,
                    ddio: true,
                    ..*config
                };
                Some((op, build(&unable, op, shape)))
            }
            Self::Variant(n) => variants(config, shape).into_iter().nth(n),
        }
    }
}

fn consider(
    prover: &mut Prover,
    config: &Config,
    request: &Request,
    costs: &Costs,
    how: How,
) -> Option<Method> {
    let shape = request.shape();
    let (op, recipe) = how.method(config, shape)?;
    let considered = unsuitable(&recipe, request, op).map_or_else(
        || {
            // The rule that makes a recipe repeats itself from three updates on, and so does its proof.
            let small = Shape { count: shape.count.min(3), ..shape };
            let proof =
                how.method(config, small).map(|(_, recipe)| prover.prove(&recipe, &Machine::new(*config)));
            match proof {
                Some(Outcome::Holds) => Considered::Proven(costs.estimate(&recipe, &request.sizes, config)),
                Some(Outcome::Fails(how)) => Considered::Wrong(how.fault.word()),
                Some(Outcome::Refused(why)) => Considered::Wrong(why),
                None => Considered::Unsuitable("it is not for so many updates"),
            }
        },
        Considered::Unsuitable,
    );
    Some(Method { op, recipe, considered })
}

fn unsuitable(recipe: &Recipe, request: &Request, op: Op) -> Option<&'static str> {
    let largest = recipe.requester().map(|step| match step {
        Rq::Send(m) => m.data.iter().map(|u| request.sizes[usize::from(u.0)]).sum(),
        _ => 0,
    });
    if largest.max().is_some_and(|size: u32| size > request.message_max) {
        return Some("the message would be larger than a receive buffer");
    }
    if recipe.replay && !request.replay {
        return Some("recovery would have to apply messages, which this application cannot");
    }
    if op == Op::WriteImm && !request.immediate {
        return Some("32 bits of immediate do not tell which update it is");
    }
    if request.notify && recipe.messages() == 0 {
        return Some("the responder would not learn of it");
    }
    // A torn update: guarded by nothing, not a word, and no log of messages repairs it.
    if !recipe.shape.word && !request.checksum && !recipe.replay {
        return Some("a torn update would not be found: it has no checksum");
    }
    None
}

impl Config {
    /// A responder of ours, whose RNIC is software: the CPU places what arrives (which is as if DDIO were on) and executes
    /// FLUSH and ATOMIC WRITE, in order.
    #[must_use]
    pub fn software(domain: Domain) -> Self {
        let flush = if domain == Domain::Process { FlushSupport::Global } else { FlushSupport::Persistent };
        Self {
            domain,
            ddio: true,
            buffers: Buffers::Dram,
            transport: Transport::Roce,
            flush,
            atomic: AtomicSupport::Native,
            order: Order::Posted,
        }
    }

    /// What both sides may rely on when they declare different things of the same responder: on every axis the weaker.
    ///
    /// # Errors
    /// They speak of different failures.
    pub fn agree(&self, other: &Self) -> Result<Self, Refusal> {
        let process = |c: &Self| c.domain == Domain::Process;
        if process(self) != process(other) {
            return Err(Refusal(format!(
                "one side says that the memory survives a power loss, the other one that it survives its process only \
                 ({self}, {other}); declare the same domain on both"
            )));
        }
        let strength = |d: Domain| match d {
            Domain::PageCache | Domain::Process => 0,
            Domain::Dmp => 1,
            Domain::Mhp => 2,
            Domain::Wsp => 3,
        };
        let weaker = strength(self.domain) <= strength(other.domain);
        let order = self.order.max(other.order);
        // WSP is not stronger in everything: what has arrived early counts there. An ATOMIC WRITE that waits at the
        // responder is right in MHP and wrong in WSP if packets overtake each other; a fenced one is right in both.
        let early = order == Order::Relaxed && (self.domain == Domain::Wsp || other.domain == Domain::Wsp);
        let fenced = if early { AtomicSupport::Fenced } else { AtomicSupport::Native };
        Ok(Self {
            domain: if weaker { self.domain } else { other.domain },
            ddio: self.ddio || other.ddio,
            buffers: self.buffers.min(other.buffers),
            transport: self.transport.max(other.transport),
            flush: self.flush.min(other.flush),
            atomic: self.atomic.max(other.atomic).max(fenced),
            order,
        })
    }

    /// The configurations that differ from this one in one thing that somebody could change, and how.
    #[must_use]
    pub fn improvements(&self) -> Vec<(&'static str, Self)> {
        let mut all = Vec::new();
        if self.ddio && matches!(self.domain, Domain::Dmp) {
            all.push(("DDIO switched off for the RNIC", Self { ddio: false, ..*self }));
        }
        if self.buffers == Buffers::Dram {
            all.push(("receive buffers in persistent memory", Self { buffers: Buffers::Pm, ..*self }));
        }
        if self.flush != FlushSupport::Persistent && self.domain != Domain::Process {
            all.push((
                "an RNIC that executes FLUSH to persistence",
                Self { flush: FlushSupport::Persistent, ..*self },
            ));
        }
        if self.atomic == AtomicSupport::Fenced {
            all.push(("an RNIC that has ATOMIC WRITE", Self { atomic: AtomicSupport::Native, ..*self }));
        }
        if self.order == Order::Relaxed {
            all.push(("memory registered without relaxed ordering", Self { order: Order::Posted, ..*self }));
        }
        match self.domain {
            Domain::PageCache => {
                all.push(("a file on persistent memory (DAX, ADR)", Self { domain: Domain::Dmp, ..*self }));
            }
            Domain::Dmp => {
                all.push(("a platform that flushes its caches (eADR)", Self { domain: Domain::Mhp, ..*self }))
            }
            Domain::Mhp => all.push((
                "batteries for the whole system, RNIC included",
                Self { domain: Domain::Wsp, ..*self },
            )),
            Domain::Wsp | Domain::Process => {}
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(config: &str, request: &Request) -> Plan {
        let config: Config = config.parse().expect("a configuration");
        plan(&mut Prover::default(), &config, request, &Costs::PAPERS).expect("a plan")
    }

    #[test]
    fn one_sided_where_it_may_be_and_messages_where_it_must() {
        let record = Request::record(64);
        assert_eq!(best("WSP+DDIO+DRAM", &record).recipe.to_string(), "Rq Write(a); Rq Comp");
        // Papers 001, 4.3 and 004, 4.3: a message can be faster than a WRITE with a READ behind it; a busy CPU is not.
        let idle = best("MHP+DDIO+DRAM+read", &Request { immediate: false, ..record.clone() });
        assert!(idle.recipe.is_two_sided(), "{}", idle.recipe);
        let busy = Costs { wake: 20_000.0, ..Costs::PAPERS };
        let config = "MHP+DDIO+DRAM+read".parse().expect("a configuration");
        let busy = plan(&mut Prover::default(), &config, &record, &busy).expect("a plan");
        assert_eq!(busy.recipe.to_string(), "Rq Write(a); Rq Read; Rq Comp");
        let record = Request { immediate: false, ..record };
        let plan = best("DMP+DDIO+PM", &Request { sizes: vec![4000], ..record });
        assert!(plan.recipe.is_two_sided(), "{}", plan.recipe);
        // Ours, which the paper does not have: acknowledge when the buffer is flushed, and copy later.
        let latency = |deferred: bool| {
            let sends = plan.others.iter().filter(|m| m.op == Op::Send && m.recipe.replay == deferred);
            sends
                .filter_map(|m| match m.considered {
                    Considered::Proven(e) => Some(e.latency),
                    Considered::Unsuitable(_) | Considered::Wrong(_) => None,
                })
                .next()
        };
        assert!(latency(true).expect("ours") < latency(false).expect("the paper's"));
        let append = best("DMP+DDIO+DRAM", &Request { message_max: 64, ..Request::append(4096) });
        assert_eq!(append.recipe.waits(), 1, "{}", append.recipe);
        assert_eq!(append.recipe.messages(), 1, "the tail pointer travels with the request to flush");
    }

    #[test]
    fn what_the_application_cannot_do_is_not_asked_of_it() {
        let config: Config = "DMP+no-DDIO+PM".parse().expect("a configuration");
        let mut prover = Prover::default();
        let mut ask = |request: &Request| plan(&mut prover, &config, request, &Costs::PAPERS);
        let no_replay = ask(&Request { replay: false, ..Request::record(64) }).expect("a plan");
        assert!(!no_replay.recipe.replay);
        let notified = ask(&Request { notify: true, ..Request::record(64) }).expect("a plan");
        assert!(notified.recipe.messages() > 0);
        let bare = Request { checksum: false, replay: false, ..Request::record(64) };
        let refusal = ask(&bare).expect_err("nothing finds a torn update");
        assert!(refusal.to_string().contains("checksum"), "{refusal}");
        assert!(ask(&Request { sizes: vec![8; 65], ..Request::record(8) }).is_err());
    }

    #[test]
    fn many_updates_share_one_flush_and_one_wait() {
        let sizes = vec![64; 32];
        let plan = best("DMP+no-DDIO+DRAM+read", &Request { sizes, message_max: 64, ..Request::record(64) });
        assert_eq!(plan.recipe.waits(), 1);
        let each = best("DMP+no-DDIO+DRAM+read", &Request::record(64)).estimate.latency;
        assert!(plan.estimate.latency < 8.0 * each, "{} against {each}", plan.estimate.latency);
    }

    #[test]
    fn what_two_declarations_agree_on_holds_under_both() {
        let mut prover = Prover::default();
        let all: Vec<Config> = Config::all().into_iter().step_by(7).collect();
        for (n, a) in all.iter().enumerate() {
            for b in all.iter().skip(n % 5).step_by(5) {
                let Ok(agreed) = a.agree(b) else {
                    assert!((a.domain == Domain::Process) != (b.domain == Domain::Process));
                    continue;
                };
                for (op, shape) in [(Op::Write, Shape::COMPOUND), (Op::Send, Shape::SINGLETON)] {
                    let recipe = build(&agreed, op, shape);
                    for real in [a, b] {
                        let outcome = prover.prove(&recipe, &Machine::new(*real));
                        assert!(
                            outcome.holds(),
                            "{a} and {b} agree on {agreed}: {recipe} {}",
                            outcome.word()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_configuration_has_a_plan_for_a_record_and_an_append() {
        let mut prover = Prover::default();
        for config in Config::all() {
            for request in [Request::record(64), Request::append(64)] {
                let plan = plan(&mut prover, &config, &request, &Costs::PAPERS).expect("a plan");
                assert!(plan.estimate.latency >= Costs::PAPERS.round_trip);
            }
        }
    }

    #[test]
    fn what_is_offered_is_proven_and_is_what_was_asked_for() {
        let (mut prover, mut again) = (Prover::default(), Prover::default());
        let requests = [
            Request::record(64),
            Request { immediate: false, ..Request::record(64) },
            Request { notify: true, ..Request::append(64) },
            Request { replay: false, message_max: 64, ..Request::append(64) },
        ];
        for config in Config::all().into_iter().step_by(7) {
            for request in &requests {
                let Ok(plan) = plan(&mut prover, &config, request, &Costs::PAPERS) else { continue };
                let mut last = (plan.estimate.total(&Costs::PAPERS), plan.recipe.steps.len());
                let others = plan.others.iter().filter_map(|method| match method.considered {
                    Considered::Proven(estimate) => Some((method.op, &method.recipe, estimate)),
                    Considered::Unsuitable(_) | Considered::Wrong(_) => None,
                });
                for (op, recipe, estimate) in others.chain([(plan.op, &plan.recipe, plan.estimate)]) {
                    let outcome = again.prove(recipe, &Machine::new(config));
                    assert!(outcome.holds(), "{config}: {recipe} {}", outcome.word());
                    assert!(request.immediate || op != Op::WriteImm, "{config}: {recipe}");
                    assert!(!request.notify || recipe.messages() > 0, "{config}: {recipe}");
                    assert!(request.replay || !recipe.replay, "{config}: {recipe}");
                    for step in recipe.requester() {
                        if let Rq::Send(m) = step {
                            let bytes: u32 = m.data.iter().map(|u| request.sizes[usize::from(u.0)]).sum();
                            assert!(bytes <= request.message_max, "{config}: {recipe}");
                        }
                    }
                    // Cheapest first, and of two that cost the same the shorter one.
                    let price = (estimate.total(&Costs::PAPERS), recipe.steps.len());
                    let best = (plan.estimate.total(&Costs::PAPERS), plan.recipe.steps.len());
                    assert!(best <= price && (last <= price || price == best), "{config}: {recipe}");
                    last = price;
                }
            }
        }
    }

    #[test]
    fn a_message_may_be_as_large_as_a_receive_buffer_and_no_larger() {
        let sends = |message_max| {
            let request = Request { message_max, ..Request::record(1000) };
            let plan = best("DMP+DDIO+DRAM", &request);
            let proven = plan.others.iter().filter(|m| matches!(m.considered, Considered::Proven(_)));
            let data = |recipe: &Recipe| {
                recipe.requester().any(|step| matches!(step, Rq::Send(m) if m.data.iter().count() > 0))
            };
            proven.map(|m| &m.recipe).chain([&plan.recipe]).any(data)
        };
        assert!(sends(1000) && !sends(999));
    }

    #[test]
    fn an_improvement_never_makes_a_plan_dearer() {
        let mut prover = Prover::default();
        for config in Config::all() {
            let request = Request::append(64);
            let now = plan(&mut prover, &config, &request, &Costs::PAPERS)
                .expect("a plan")
                .estimate
                .total(&Costs::PAPERS);
            for (what, better) in config.improvements() {
                // Nothing is said of a page cache and of memory: there the costs themselves differ.
                if config.domain == better.domain {
                    let then = plan(&mut prover, &better, &request, &Costs::PAPERS).expect("a plan");
                    let then = then.estimate.total(&Costs::PAPERS);
                    // FLUSH to persistence is chosen where it is to be had, as it depends on no declaration.
                    assert!(then <= now * 1.35, "{config} with {what}: {then} instead of {now}");
                }
            }
        }
    }
}
