//! The counts as Prometheus reads them: its text format, version 0.0.4.

use std::fmt::Write as _;

use remanence_resp::command::COMMANDS;
use remanence_resp::engine::Shared;

use crate::{MoreMetrics, process};

/// Everything that is known.
pub(crate) fn text(shared: &Shared, more: Option<&MoreMetrics>) -> String {
    let (stats, facts, mut text) = (&shared.stats, shared.facts(), String::new());
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        head(&mut text, name, kind, help);
        let _ = writeln!(text, "remanence_gateway_{name} {value}");
    };
    let uptime = (process::unix_us() - shared.started_us()).max(0) as u64 / 1_000_000;
    one("uptime_seconds", "gauge", "Since the gateway started.", uptime);
    one("connections", "gauge", "Clients connected.", shared.peers().len() as u64);
    one("connections_max", "gauge", "Clients that may be.", shared.config.clients_max as u64);
    one("connections_total", "counter", "Clients that came.", stats.connections.get());
    one("connections_rejected_total", "counter", "Clients turned away.", stats.rejected_connections.get());
    one(
        "connections_idle_closed_total",
        "counter",
        "Clients closed as idle or stalled.",
        stats.idle_closed.get(),
    );
    one(
        "protocol_errors_total",
        "counter",
        "Clients closed for what is no request.",
        stats.protocol_errors.get(),
    );
    one("throttled_total", "counter", "Times a client was not read, not reading.", stats.throttled.get());
    one("input_bytes_total", "counter", "Received from clients.", stats.input_bytes.get());
    one("output_bytes_total", "counter", "Sent to clients.", stats.output_bytes.get());
    one("keyspace_hits_total", "counter", "Reads of keys that were there.", stats.hits.get());
    one("keyspace_misses_total", "counter", "Reads of keys that were not.", stats.misses.get());
    one("expired_keys_total", "counter", "Keys deleted as their time came.", stats.expired.get());
    one("resident_bytes", "gauge", "Memory of the process.", facts.resident);
    head(&mut text, "cpu_seconds_total", "counter", "CPU time of the process.");
    for (mode, us) in [("user", facts.cpu_user_us), ("system", facts.cpu_system_us)] {
        let _ = writeln!(text, "remanence_gateway_cpu_seconds_total{{mode=\"{mode}\"}} {}", us as f64 / 1e6);
    }
    for (name, help) in [
        ("commands_total", "Commands carried out."),
        ("command_seconds_total", "Time that took."),
        ("commands_failed_total", "Commands that answered an error."),
        ("commands_rejected_total", "Commands refused before they were tried."),
    ] {
        head(&mut text, name, "counter", help);
        for command in COMMANDS {
            let counts = stats.of(command.id);
            let value = match name {
                "commands_total" => counts.calls.get() as f64,
                "command_seconds_total" => counts.microseconds.get() as f64 / 1e6,
                "commands_failed_total" => counts.failed.get() as f64,
                _ => counts.rejected.get() as f64,
            };
            if value > 0.0 {
                let _ = writeln!(text, "remanence_gateway_{name}{{command=\"{}\"}} {value}", command.name);
            }
        }
    }
    head(&mut text, "errors_total", "counter", "Errors answered, by code.");
    for (code, count) in stats.errors_by_code() {
        // A code is the first word of an error's text, which can hold what a client sent.
        let code = code.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(text, "remanence_gateway_errors_total{{code=\"{code}\"}} {count}");
    }
    if let Some(more) = more {
        more(&mut text);
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string can not fail.
    let _ = write!(text, "# HELP remanence_gateway_{name} {help}\n# TYPE remanence_gateway_{name} {kind}\n");
}
