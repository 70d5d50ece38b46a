//! The counts as Prometheus reads them. `docs/metrics.md` has every name.

use std::fmt;
use std::sync::Arc;

use remanence_metrics::{Page, Source, Unit};
use remanence_resp::command::COMMANDS;
use remanence_resp::engine::{REDIS_VERSION, Shared};
use remanence_resp::stats::CommandStats;

/// Everything that is known: the gateway, the process, and what the store adds.
pub(crate) fn sources(shared: &Arc<Shared>, more: Option<Source>) -> Vec<Source> {
    let shared = Arc::clone(shared);
    let own: Source = Arc::new(move |page| gateway(page, &shared));
    [own, remanence_metrics::process()].into_iter().chain(more).collect()
}

fn gateway(page: &mut Page<'_>, shared: &Shared) -> fmt::Result {
    let (stats, config) = (&shared.stats, &shared.config);
    page.info(
        "remanence_gateway",
        "What it is: its release, the Redis release that it speaks like, and whether acknowledged writes survive.",
        &[
            ("version", env!("CARGO_PKG_VERSION")),
            ("redis_version", REDIS_VERSION),
            ("durable", if config.durable { "yes" } else { "no" }),
            ("durability", &config.durability),
        ],
    )?;
    let started = shared.started_us() as f64 / 1e6;
    page.gauge("remanence_gateway_start_time", Some(Unit::Seconds), "Unix time of the start.", started)?;
    page.gauge("remanence_gateway_connections", None, "Clients connected.", shared.peers().len())?;
    page.gauge("remanence_gateway_connections_max", None, "Clients that may be.", config.clients_max)?;
    let held = shared.client_memory();
    let help = "Requests and replies of all clients.";
    page.gauge("remanence_gateway_clients_memory", Some(Unit::Bytes), help, held)?;
    for (name, help, count) in [
        ("connections_received", "Clients that came.", &stats.connections),
        ("connections_rejected", "Clients turned away.", &stats.rejected_connections),
        ("connections_idle_closed", "Clients closed as idle or stalled.", &stats.idle_closed),
        (
            "connections_unauthenticated_closed",
            "Clients closed as they had not authenticated in time.",
            &stats.stranger_closed,
        ),
        (
            "connections_memory_closed",
            "Clients closed as the memory for all was used up.",
            &stats.memory_closed,
        ),
        (
            "connections_mail_closed",
            "Clients closed as they did not read the messages of channels.",
            &stats.mail_closed,
        ),
        ("protocol_errors", "Clients closed for what is no request.", &stats.protocol_errors),
        ("throttled", "Times a client was not read, not reading.", &stats.throttled),
        ("wakeups", "Times that a thread's wait ended.", &stats.wakeups),
        ("keyspace_hits", "Reads of keys that were there.", &stats.hits),
        ("keyspace_misses", "Reads of keys that were not.", &stats.misses),
        ("expired_keys", "Keys deleted as their time came.", &stats.expired),
    ] {
        page.counter(&format!("remanence_gateway_{name}"), None, help, count.get())?;
    }
    let (received, sent) = (stats.input_bytes.get(), stats.output_bytes.get());
    page.counter("remanence_gateway_received", Some(Unit::Bytes), "Received from clients.", received)?;
    page.counter("remanence_gateway_sent", Some(Unit::Bytes), "Sent to clients.", sent)?;
    let seen = || {
        let counts = COMMANDS.iter().map(|command| (command.name, stats.of(command.id)));
        counts.filter(|(_, of)| of.calls.get() + of.rejected.get() > 0)
    };
    let seconds = |of: &CommandStats| of.microseconds.get() as f64 / 1e6;
    let each = |of: fn(&CommandStats) -> u64| seen().map(move |(name, counts)| (name, of(counts)));
    page.counters(
        "remanence_gateway_commands",
        None,
        "Commands carried out.",
        "command",
        each(|of| of.calls.get()),
    )?;
    page.counters(
        "remanence_gateway_commands_duration",
        Some(Unit::Seconds),
        "Time that took.",
        "command",
        seen().map(|(name, of)| (name, seconds(of))),
    )?;
    page.counters(
        "remanence_gateway_commands_failed",
        None,
        "Commands that answered an error.",
        "command",
        each(|of| of.failed.get()),
    )?;
    page.counters(
        "remanence_gateway_commands_rejected",
        None,
        "Commands refused before they were tried.",
        "command",
        each(|of| of.rejected.get()),
    )?;
    // A code is the first word of an error's text, which can hold what a client sent: the page escapes it.
    page.counters(
        "remanence_gateway_errors",
        None,
        "Errors answered, by code.",
        "code",
        stats.errors_by_code(),
    )
}
