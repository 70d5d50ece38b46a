//! A plan in words, for the one who is responsible for the data.

use std::fmt::Write as _;

use super::{Considered, Costs, Plan, plan};
use crate::check::Prover;
use crate::recipe::{Flush, Rq, Step};
use crate::taxonomy::{Buffers, Config, Domain, FlushSupport, Order, Transport};

/// What the plan is, why it is right, what it survives, what must hold for it, and what would be faster if the machine
/// were configured differently.
#[must_use]
pub fn explain(prover: &mut Prover, plan_: &Plan, costs: &Costs) -> String {
    let config = &plan_.config;
    let mut text = String::new();
    let _ = writeln!(text, "responder   {config}: {}", describe(config));
    let updates = match plan_.request.sizes.as_slice() {
        [one] => format!("one update of {one} bytes"),
        [a, b] if plan_.request.ordered => format!("{a} bytes, then {b} bytes, in this order"),
        many if plan_.request.ordered => format!("{} updates, in order", many.len()),
        many => format!("{} updates in any order", many.len()),
    };
    let _ = writeln!(text, "request     {updates}");
    let _ = writeln!(text, "method      {}, {}", plan_.op.name(), sidedness(plan_));
    for (n, step) in plan_.recipe.steps.iter().enumerate() {
        let _ = writeln!(text, "            {:>2}. {}", n + 1, in_words(step));
    }
    if !plan_.recipe.deferred.is_empty() {
        let steps: Vec<String> = plan_.recipe.deferred.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "            afterwards, at leisure, the responder: {}", steps.join(", "));
    }
    let _ = writeln!(text, "why         {}", why(config, plan_));
    let _ = writeln!(
        text,
        "source      {}; proven on this machine's model by looking at every state",
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
        "costs       {:.1} us, {} of the responder's application",
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
        let _ = writeln!(text, "instead     {what} by {}", other.recipe);
    }
    for (change, better) in config.improvements() {
        let Ok(then) = plan(prover, &better, &plan_.request, costs) else { continue };
        if then.estimate.total(costs) < 0.95 * estimate.total(costs) {
            let _ = writeln!(
                text,
                "faster with {change}: {:.1} us by {}",
                then.estimate.latency / 1e3,
                then.recipe
            );
        }
    }
    text
}

fn describe(config: &Config) -> String {
    let domain = match config.domain {
        Domain::Dmp => "what has reached the memory controller survives a power loss",
        Domain::Mhp => "what is visible, in caches too, survives a power loss",
        Domain::Wsp => "what the RNIC has received survives a power loss",
        Domain::PageCache => "what was synced to the disk survives a power loss",
        Domain::Process => "what is visible survives the process",
    };
    let mut parts = vec![domain];
    if config.domain == Domain::Dmp {
        parts.push(if config.ddio {
            "arriving data stops in the CPU's cache"
        } else {
            "arriving data goes to memory"
        });
    }
    if config.buffers == Buffers::Pm {
        parts.push("messages arrive in persistent memory");
    }
    if config.transport == Transport::Iwarp {
        parts.push("a completion does not say that the responder has anything");
    }
    parts.push(match config.flush {
        FlushSupport::Read => "FLUSH is not to be had, READ stands in for it",
        FlushSupport::Global => "FLUSH makes visible",
        FlushSupport::Persistent => "FLUSH makes durable",
    });
    if config.order == Order::Relaxed {
        parts.push("writes may be placed in any order");
    }
    parts.join("; ")
}

fn sidedness(plan: &Plan) -> &'static str {
    if plan.recipe.is_two_sided() {
        "with the help of the responder's application"
    } else {
        "one-sided: the responder's application may be busy"
    }
}

fn in_words(step: &Step) -> String {
    let text = match step {
        Step::Rq(Rq::Flush(Flush::Read)) => "an RDMA READ on the same QP pushes them out of RNIC and IIO",
        Step::Rq(Rq::Comp) => "the requester waits for the completion",
        Step::Rq(Rq::Receive) => "the requester waits for the acknowledgement",
        _ => return step.to_string(),
    };
    format!("{step}: {text}")
}

fn why(config: &Config, plan: &Plan) -> &'static str {
    let flushes = plan.recipe.requester().any(|s| matches!(s, Rq::Flush(_)));
    let persistent = plan.recipe.requester().any(|s| s == Rq::Flush(Flush::Persistent));
    match (plan.recipe.is_two_sided(), config.domain) {
        (true, Domain::Dmp | Domain::PageCache) if plan.recipe.replay => {
            "only the responder's CPU can bring what has arrived into the domain, and the receive buffer lies in it"
        }
        (true, Domain::Dmp) if config.ddio => {
            "arriving data stops in the cache, outside the domain, and only the responder's CPU can flush it from there"
        }
        (true, Domain::PageCache) => "only a system call of the responder brings data to the disk",
        (true, _) => "asking the responder's CPU is cheaper here than flushing from afar",
        (false, _) if persistent => "the responder's RNIC executes FLUSH to persistence, whatever DDIO does",
        (false, Domain::Dmp) => {
            "with DDIO off a FLUSH brings arriving data to the memory controller, which is in the domain"
        }
        (false, Domain::Wsp) if !flushes => {
            "the responder's RNIC is in the domain, and the completion says that it has the data"
        }
        (false, Domain::Mhp | Domain::Process | Domain::Wsp) => {
            "caches are in the domain, so it is enough that a FLUSH makes the data visible"
        }
        (false, Domain::PageCache) => "the responder syncs as a FLUSH tells it to",
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
            "arriving data stops in the cache",
            "survives    a process crash, an OS crash and a power loss",
            "faster with a platform that flushes its caches (eADR)",
        ] {
            assert!(text.contains(wanted), "{wanted:?} is missing:\n{text}");
        }
        println!("{text}");
    }

    #[test]
    fn a_process_domain_does_not_claim_a_power_loss() {
        let text = text("process+DDIO+DRAM", &Request::record(64));
        assert!(text.contains("survives    a process crash only"), "{text}");
    }
}
