//! A plan in words, for the one who is responsible for the data.

use std::fmt::Write as _;

use super::{Considered, Costs, Plan, plan};
use crate::check::Prover;
use crate::recipe::{Flush, Rq, Rsp, Set, Step, Target};
use crate::taxonomy::{Buffers, Config, Domain, FlushSupport, Order, Transport};

/// What the plan is, why it is right, what it survives, what must hold for it, and what would be faster if the machine
/// were configured differently.
#[must_use]
pub fn explain(prover: &mut Prover, plan_: &Plan, costs: &Costs) -> String {
    let config = &plan_.config;
    let mut text = String::new();
    let _ = writeln!(text, "server      {config}: {}", describe(config));
    let updates = match plan_.request.sizes.as_slice() {
        [one] => format!("one update, a, of {one} bytes"),
        [a, b] if plan_.request.ordered => {
            format!("a of {a} bytes, then b of {b} bytes: b never durable without a")
        }
        many if plan_.request.ordered => {
            format!("{} updates, a, b, …: none durable without those before it", many.len())
        }
        many => format!("{} updates, a, b, …, in any order", many.len()),
    };
    let _ = writeln!(text, "request     {updates}");
    let _ = writeln!(text, "method      {}, {}", plan_.op.name(), sidedness(plan_));
    for (n, step) in plan_.recipe.steps.iter().enumerate() {
        let (who, what) = match step {
            Step::Rq(rq) => ("client", requesters(*rq)),
            Step::Rsp(rsp) => ("server", responders(*rsp, config.domain)),
        };
        let _ = writeln!(text, "            {:>2}. {who}: {what}", n + 1);
    }
    if !plan_.recipe.deferred.is_empty() {
        let steps: Vec<String> =
            plan_.recipe.deferred.iter().map(|rsp| responders(*rsp, config.domain)).collect();
        let _ = writeln!(text, "            later, when nobody waits, the server: {}", steps.join("; "));
    }
    let _ = writeln!(text, "in short    {} (as paper 004 writes it)", plan_.recipe);
    let _ = writeln!(text, "why         {}", why(config, plan_));
    let _ = writeln!(
        text,
        "source      {}; checked on a model of such a server, in every state that it can be in, with a crash in each",
        plan_.recipe.source
    );
    let _ = writeln!(
        text,
        "survives    {}, once the last step is done; nothing is promised before",
        config.domain.survives()
    );
    for precondition in plan_.recipe.preconditions(config) {
        let _ = writeln!(text, "provided    {precondition}");
    }
    let estimate = plan_.estimate;
    let _ = writeln!(
        text,
        "costs       {:.1} us until the client may go on; {} of the server's application thread",
        estimate.latency / 1e3,
        if estimate.responder > 0.0 {
            format!("{:.1} us", estimate.responder / 1e3)
        } else {
            "nothing".into()
        }
    );
    for other in &plan_.others {
        let what = match &other.considered {
            Considered::Proven(e) => format!("{:.1} us", e.latency / 1e3),
            Considered::Unsuitable(reason) => format!("not here: {reason}"),
            Considered::Wrong(reason) => format!("wrong here: {reason}"),
        };
        let help = if other.recipe.is_two_sided() { "with the server's application" } else { "one-sided" };
        let _ = writeln!(text, "instead     {what}, {help}: {}", other.recipe);
    }
    for other in improvements(prover, plan_, costs) {
        let (change, latency, recipe) = (other.change, other.latency / 1e3, &other.plan.recipe);
        let gain = match other.gain {
            Gain::Faster => "faster",
            Gain::OneSided => "no work for the server's application",
        };
        let _ = writeln!(text, "{gain} with {change}: {latency:.1} us by {recipe}");
    }
    text
}

/// What another configuration would be good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gain {
    /// It costs less.
    Faster,
    /// It costs as much or more, and the responder's application need not take part: it may be busy, or asleep.
    OneSided,
}

/// A plan for the same request on a machine that is configured differently in one thing.
#[derive(Clone, Debug)]
pub struct Improvement {
    /// What somebody would have to change.
    pub change: &'static str,
    /// What that is good for.
    pub gain: Gain,
    /// Nanoseconds until the client may go on.
    pub latency: f64,
    /// The method there.
    pub plan: Plan,
}

/// What would be better if the machine were configured differently in one thing.
#[must_use]
pub fn improvements(prover: &mut Prover, now: &Plan, costs: &Costs) -> Vec<Improvement> {
    let mut all = Vec::new();
    for (change, better) in now.config.improvements() {
        let Ok(then) = plan(prover, &better, &now.request, costs) else { continue };
        let total = now.estimate.total(costs);
        if then.estimate.total(costs) < 0.95 * total {
            all.push(Improvement { change, gain: Gain::Faster, latency: then.estimate.latency, plan: then });
            continue;
        }
        // The cheapest may still ask the application where another method, which was not to be had before, does not.
        let one_sided = |plan: &Plan| {
            let others = plan.others.iter().filter_map(|method| match method.considered {
                Considered::Proven(estimate) => Some((method.op, &method.recipe, estimate)),
                Considered::Unsuitable(_) | Considered::Wrong(_) => None,
            });
            let all = std::iter::once((plan.op, &plan.recipe, plan.estimate)).chain(others);
            let mut of = all.filter(|(_, recipe, _)| !recipe.is_two_sided());
            of.next().map(|(op, recipe, estimate)| (op, recipe.clone(), estimate))
        };
        if one_sided(now).is_none()
            && let Some((op, recipe, estimate)) = one_sided(&then)
        {
            let plan = Plan { op, recipe, estimate, others: Vec::new(), ..then };
            all.push(Improvement { change, gain: Gain::OneSided, latency: estimate.latency, plan });
        }
    }
    all
}

fn describe(config: &Config) -> String {
    let domain = match config.domain {
        Domain::Dmp => {
            "what has reached the memory controller survives a power loss (ADR), what is in a cache does not"
        }
        Domain::Mhp => "what has reached a CPU cache or memory survives a power loss (eADR)",
        Domain::Wsp => "what the RNIC has received survives a power loss (a battery for the whole system)",
        Domain::PageCache => "an ordinary file: what was synced to the disk survives a power loss",
        Domain::Process => {
            "memory that outlives the process and not the machine: nothing survives a power loss"
        }
    };
    let mut parts = vec![domain];
    if config.domain == Domain::Dmp {
        parts.push(if config.ddio {
            "arriving data stops in the CPU's cache (DDIO on)"
        } else {
            "arriving data goes to memory (DDIO off)"
        });
    }
    if config.buffers == Buffers::Pm {
        parts.push("messages arrive in persistent memory");
    }
    if config.transport == Transport::Iwarp {
        parts.push("a completion does not say that the responder has anything");
    }
    parts.push(match config.flush {
        FlushSupport::Read => "its RNIC has no FLUSH, a READ stands in for it",
        FlushSupport::Global => "its RNIC has the FLUSH that makes visible, not the one that makes durable",
        FlushSupport::Persistent => "its RNIC has the FLUSH that makes durable",
    });
    if config.order == Order::Relaxed {
        parts.push("writes may be placed in any order");
    }
    parts.join("; ")
}

fn sidedness(plan: &Plan) -> &'static str {
    if plan.recipe.is_two_sided() {
        "with the help of the server's application, which must not be busy"
    } else {
        "one-sided: the server's application takes no part and may be busy"
    }
}

/// What a step of the client is.
fn requesters(step: Rq) -> String {
    match step {
        Rq::Write(u) => format!("RDMA WRITE of {u} to its place"),
        Rq::WriteImm(u) => format!("RDMA WRITE of {u} to its place, with an immediate value for the server's application"),
        Rq::Send(message) => {
            let list = |set: Set| set.iter().map(|u| u.to_string()).collect::<Vec<_>>().join(", ");
            match (message.data == Set::NONE, message.notice == Set::NONE) {
                (false, true) => format!("SEND of a message that carries {}", list(message.data)),
                (true, _) => format!("SEND of a message that says where {} was written", list(message.notice)),
                (false, false) => format!(
                    "SEND of a message that carries {}, and says where {} was written",
                    list(message.data),
                    list(message.notice)
                ),
            }
        }
        Rq::Flush(Flush::Read) => {
            "RDMA READ on the same connection, which pushes what was written out of the server's RNIC and PCIe buffers"
                .into()
        }
        Rq::Flush(Flush::Global) => {
            "RDMA FLUSH (global visibility): what was written is where the server's CPU sees it".into()
        }
        Rq::Flush(Flush::Persistent) => "RDMA FLUSH (persistence): what was written is durable".into(),
        Rq::AtomicWrite(u) => {
            format!("RDMA ATOMIC WRITE of {u}: 8 bytes, never torn, and not before the FLUSH ahead of it is done")
        }
        Rq::FencedWrite(u) => {
            format!("RDMA WRITE of {u}, held back here until the FLUSH or READ ahead of it has completed")
        }
        Rq::Comp => "waits for the completion".into(),
        Rq::Receive => "waits for the server's acknowledgement".into(),
    }
}

/// What a step of the server's application is.
fn responders(step: Rsp, domain: Domain) -> String {
    let sync = |what: &str| match domain {
        Domain::PageCache => format!("syncs {what} to the disk (fdatasync)"),
        _ => format!("writes {what} back from its cache (clwb, then a fence)"),
    };
    match step {
        Rsp::Receive(_) => "takes the message".into(),
        Rsp::Copy(u) => format!("copies {u} from the message to its place"),
        Rsp::Flush(Target::Update(u)) => sync(&u.to_string()),
        Rsp::Flush(Target::Buffer) => sync("the receive buffer"),
        Rsp::Ack => "acknowledges".into(),
        Rsp::Repost => "gives the receive buffer back to its RNIC".into(),
    }
}

fn why(config: &Config, plan: &Plan) -> &'static str {
    let flushes = plan.recipe.requester().any(|s| matches!(s, Rq::Flush(_)));
    let persistent = plan.recipe.requester().any(|s| s == Rq::Flush(Flush::Persistent));
    match (plan.recipe.is_two_sided(), config.domain) {
        (true, Domain::Dmp | Domain::PageCache) if plan.recipe.replay => {
            "only the server's CPU can bring what has arrived into the domain, and the receive buffer lies in it"
        }
        (true, Domain::Dmp) if config.ddio => {
            "arriving data stops in the cache, outside the domain, and only the server's CPU can flush it from there"
        }
        (true, Domain::PageCache) => "only a system call on the server brings data to the disk",
        (true, _) => "asking the server's CPU is cheaper here than flushing from afar",
        (false, Domain::PageCache) if persistent => {
            "no completion by itself means that the disk has the data; a FLUSH to persistence tells the server to sync, and is answered after that"
        }
        (false, _) if persistent => {
            "the server's RNIC executes FLUSH to persistence, so that it does not matter where arriving data stops"
        }
        (false, Domain::Dmp) => {
            "with DDIO off a FLUSH brings arriving data to the memory controller, which is in the domain"
        }
        (false, Domain::Wsp) if !flushes => {
            "the server's RNIC is in the domain, and the completion says that it has the data"
        }
        (false, Domain::Mhp | Domain::Process | Domain::Wsp) => {
            "caches are in the domain, so it is enough that a FLUSH makes the data visible"
        }
        (false, Domain::PageCache) => "the server syncs as a FLUSH tells it to",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Request;
    use super::*;

    fn text(config: &str, request: &Request) -> String {
        let config: Config = config.parse().expect("a configuration");
        let mut prover = Prover::default();
        let plan = plan(&mut prover, &config, request, &Costs::PAPERS).expect("a plan");
        explain(&mut prover, &plan, &Costs::PAPERS)
    }

    #[test]
    fn an_explanation_names_the_cell_the_reason_the_failures_and_what_would_help() {
        let text = text("DMP+DDIO+DRAM+read+fenced", &Request::append(4000));
        for wanted in [
            "DMP+DDIO+DRAM+read+fenced",
            "arriving data stops in the CPU's cache",
            "client: waits for the server's acknowledgement",
            "in short ",
            "survives    a process crash, an OS crash and a power loss",
            "faster with a platform that flushes its caches (eADR)",
        ] {
            assert!(text.contains(wanted), "{wanted:?} is missing:\n{text}");
        }
        println!("{text}");
    }

    #[test]
    fn what_would_spare_the_servers_application_is_named_though_it_is_not_faster() {
        let text = text("DMP+DDIO+DRAM", &Request::record(64));
        for wanted in [
            "no work for the server's application with DDIO switched off for the RNIC: 2.7 us by Rq Write(a); Rq Flush; Rq Comp",
            "no work for the server's application with an RNIC that executes FLUSH to persistence",
            "faster with a platform that flushes its caches (eADR)",
        ] {
            assert!(text.contains(wanted), "{wanted:?} is missing:\n{text}");
        }
        let busy = self::text("DMP+no-DDIO+DRAM", &Request::record(64));
        assert!(!busy.contains("no work for"), "it has a one-sided method:\n{busy}");
    }

    #[test]
    fn a_process_domain_does_not_claim_a_power_loss() {
        let text = text("process+DDIO+DRAM", &Request::record(64));
        assert!(text.contains("survives    a process crash only"), "{text}");
    }
}
