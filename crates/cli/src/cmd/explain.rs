//! `rem doctor --explain`: which method makes a remote update durable here, why, what it survives, and what would be faster.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::str::FromStr;

use remanence_persist::Config;
use remanence_persist::check::Prover;
use remanence_persist::plan::{Costs, Gain, Plan, Request, explain, improvements, plan};
use remanence_persist::recipe::{Rsp, Step};
use remanence_persist::taxonomy::Domain;
use remanence_pmem::PersistenceDomain;
use remanence_remote::{CostSource, Options, Session};
use serde_json::{Value, json};

use crate::args::{Server, Tokens};
use crate::device;
use crate::fail::Fail;

/// What to explain: a configuration, or a server that is asked for its own.
#[derive(Clone, Debug)]
pub(crate) enum Responder {
    /// Of which that is known, and what was not said of it is taken for granted.
    Configuration(Config, Vec<&'static str>),
    /// A live one.
    Server(Server),
}

impl FromStr for Responder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Only an address has a colon, or a dot; only a configuration of several words has a plus.
        if text.contains([':', '.']) {
            return text.parse().map(Self::Server);
        }
        match text.parse::<Config>() {
            Ok(config) => Ok(Self::Configuration(config, Config::unsaid(text))),
            Err(e) if text.contains('+') => Err(format!("{e}; or HOST[:PORT] of a server")),
            // The name of a host then, and of none where it was a configuration misspelt.
            Err(e) => match text.parse::<Server>() {
                Ok(server) if server.resolve().is_ok() => Ok(Self::Server(server)),
                _ => Err(format!("{e}; nor is it the name of a host that can be resolved")),
            },
        }
    }
}

/// A responder, and what is said of it.
pub(crate) struct Explained {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) json: Value,
}

/// A place on this machine, served by our own RNIC.
pub(crate) fn place(name: &str, domain: PersistenceDomain) -> Result<Explained, Fail> {
    match Domain::of(domain) {
        Some(domain) => responder(name, &Config::software(domain), &[]),
        None => {
            let text = "nothing outlives the process here, so nothing can be made durable\n".to_owned();
            Ok(Explained { name: name.to_owned(), text, json: json!({ "name": name, "durable": false }) })
        }
    }
}

/// A responder of that configuration: a record of a log, and a record with the pointer to the tail behind it. `assumed` is
/// what nobody said of it.
pub(crate) fn responder(name: &str, config: &Config, assumed: &[&str]) -> Result<Explained, Fail> {
    let mut prover = Prover::default();
    let mut text = String::new();
    for what in assumed {
        let _ = writeln!(text, "assumed     {what}");
    }
    if !assumed.is_empty() {
        text.push_str("            a recipe for what is not so loses data: say what it is\n\n");
    }
    let mut plans = Vec::new();
    for (what, request) in [("record", Request::record(64)), ("append", Request::append(64))] {
        let plan =
            plan(&mut prover, config, &request, &Costs::PAPERS).map_err(|e| Fail::new(e.to_string()))?;
        text.push_str(&explain(&mut prover, &plan, &Costs::PAPERS));
        text.push('\n');
        plans.push(plan_json(what, &plan, "papers 001 and 004", &mut prover, &Costs::PAPERS));
    }
    text.push_str("costs are those of papers 001 and 004, and not of this machine\n");
    let json = json!({
        "name": name,
        "durable": true,
        "configuration": config.to_string(),
        "assumed": assumed,
        "survives": config.domain.survives().to_string(),
        "plans": plans,
    });
    Ok(Explained { name: name.to_owned(), text, json })
}

/// A live server: what both sides rely on, by a handshake, and the plans with costs measured on this connection.
pub(crate) fn server(server: &Server, local: Option<IpAddr>, tokens: &Tokens) -> Result<Explained, Fail> {
    let name = server.to_string();
    let fail = |e: remanence_remote::Error| Fail::new(e.to_string());
    let to = server.resolve()?;
    let context = device::open_towards(to.ip(), local)?;
    let options = Options::default().costs(CostSource::Measured).tokens(tokens.load_any()?);
    let mut session = Session::connect(&context, to, options).map_err(fail)?;
    let (config, costs, region) = (*session.config(), *session.costs(), session.region());
    let mut prover = Prover::default();
    let mut text = String::new();
    let mut plans = Vec::new();
    let _ = writeln!(text, "server      {region}\n");
    for (what, request) in [("record", Request::record(64)), ("append", Request::append(64))] {
        let plan = session.plan(&request).map_err(|e| Fail::new(e.to_string()))?;
        text.push_str(&explain(&mut prover, &plan, &costs));
        text.push('\n');
        plans.push(plan_json(what, &plan, "measured", &mut prover, &costs));
    }
    text.push_str(
        "costs were measured on this connection; those of copies and bytes are papers 001 and 004's\n",
    );
    let json = json!({
        "name": name,
        "durable": region.guarantee.is_durable(),
        "configuration": config.to_string(),
        "server_configuration": session.server_config().to_string(),
        "declared": region.declared,
        "sentence": region.sentence,
        "bytes": region.len,
        "survives": config.domain.survives().to_string(),
        "measured_ns": {
            "round_trip": costs.round_trip,
            "read": costs.read,
            "flush_global": costs.flush_global,
            "flush_persistent": costs.flush_persistent,
            "fdatasync": costs.fdatasync,
            "message": costs.wake + costs.handle,
        },
        "plans": plans,
    });
    Ok(Explained { name, text, json })
}

fn plan_json(what: &str, plan: &Plan, source: &str, prover: &mut Prover, costs: &Costs) -> Value {
    let better = improvements(prover, plan, costs).into_iter().map(|other| {
        json!({
            "change": other.change,
            "configuration": other.plan.config.to_string(),
            "faster": other.gain == Gain::Faster,
            "one_sided": !other.plan.recipe.is_two_sided(),
            "latency_ns": other.latency,
            "steps": other.plan.recipe.steps.iter().map(Step::to_string).collect::<Vec<_>>(),
        })
    });
    json!({
        "better_with": better.collect::<Vec<_>>(),
        "request": what,
        "sizes": plan.request.sizes,
        "operation": plan.op.name(),
        "steps": plan.recipe.steps.iter().map(Step::to_string).collect::<Vec<_>>(),
        "afterwards": plan.recipe.deferred.iter().map(Rsp::to_string).collect::<Vec<_>>(),
        "one_sided": !plan.recipe.is_two_sided(),
        "source": plan.recipe.source.to_string(),
        "preconditions": plan.recipe.preconditions(&plan.config),
        "latency_ns": plan.estimate.latency,
        "responder_ns": plan.estimate.responder,
        "costs": source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_keeps_nothing_says_so_and_one_that_does_names_its_recipe() {
        let none = place("here", PersistenceDomain::Volatile).expect("said");
        assert_eq!(none.json["durable"], false);
        let file = place("/srv", PersistenceDomain::PageCache).expect("planned");
        assert_eq!(file.json["configuration"], "page-cache+DDIO+DRAM+persistent");
        assert!(file.text.contains("survives"), "{}", file.text);
    }
}
