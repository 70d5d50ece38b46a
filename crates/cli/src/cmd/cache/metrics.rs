//! What Prometheus is told of a write cache: what its daemon says of itself, which is asked at each scrape.

use std::path::PathBuf;
use std::sync::Arc;

use remanence_metrics::{Source, Unit};

use super::daemon::{number_of, standing, text_of};

/// Of each number of a status that only grows: its name here, its unit, and what it is.
const COUNTERS: [(&str, &str, Option<Unit>, &str); 6] = [
    ("changes", "remanence_cache_changes", None, "Changes of files and names that were logged."),
    ("bytes", "remanence_cache_logged", Some(Unit::Bytes), "Bytes of those that were writes."),
    ("syncs_absorbed", "remanence_cache_syncs_absorbed", None, "Syncs that waited for the log."),
    ("syncs_kernel", "remanence_cache_syncs_kernel", None, "Syncs that the kernel carried out."),
    ("waits", "remanence_cache_waits", None, "Times that a change waited for room in the log."),
    (
        "refused",
        "remanence_cache_refused",
        None,
        "Changes that were not logged, as there was no room or the log had failed.",
    ),
];

/// The source of a log.
pub(super) fn source(log: PathBuf) -> Source {
    Arc::new(move |page| {
        let standing = standing(&log);
        let help = "1 if the daemon answers.";
        page.gauge("remanence_cache_up", None, help, u64::from(standing.is_some()))?;
        let Some(status) = standing else { return Ok(()) };
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("log", text_of(&status, "log")),
            ("medium", text_of(&status, "medium")),
        ];
        page.info("remanence_cache", "The log, and where its data lives.", &labels)?;
        let is = |state| u64::from(text_of(&status, "state") == state);
        let help = "1 once nothing is synced any more, and syncs are the kernel's.";
        page.gauge("remanence_cache_failed", None, help, is("failed"))?;
        let help = "1 while nothing is logged, as somebody has frozen it.";
        page.gauge("remanence_cache_frozen", None, help, is("frozen"))?;
        let help = "Entries that the log has.";
        page.gauge("remanence_cache_entries_max", None, help, number_of(&status, "entries"))?;
        let help = "Entries in use: what files may lack.";
        page.gauge("remanence_cache_entries", None, help, number_of(&status, "used"))?;
        let help = "Processes that have joined.";
        page.gauge("remanence_cache_programs", None, help, number_of(&status, "programs"))?;
        for (name, family, unit, help) in COUNTERS {
            page.counter(family, unit, help, number_of(&status, name))?;
        }
        if let Some(copies) = status["copies"].as_object() {
            let of = |name: &str| copies.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default();
            let lost = copies.get("lost").and_then(serde_json::Value::as_array).map_or(0, Vec::len);
            page.gauge(
                "remanence_cache_servers",
                None,
                "Servers that have a copy of the log.",
                of("members"),
            )?;
            page.gauge("remanence_cache_servers_acks", None, "Servers that a sync waits for.", of("acks"))?;
            page.gauge("remanence_cache_servers_lost", None, "Servers that are done without.", lost)?;
        }
        Ok(())
    })
}
