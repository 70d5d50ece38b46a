//! The text of INFO: sections and names as Redis prints them, with what there is to say of a gateway.

use std::fmt::Write as _;

use super::COMMANDS;
use crate::engine::{REDIS_VERSION, Shared};

/// A part of INFO.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Section {
    Server,
    Clients,
    Memory,
    Persistence,
    Stats,
    Replication,
    Cpu,
    Modules,
    CommandStats,
    ErrorStats,
    Cluster,
    Store,
    Keyspace,
}

impl Section {
    const ALL: [(Self, &'static str, bool); 13] = [
        (Self::Server, "server", true),
        (Self::Clients, "clients", true),
        (Self::Memory, "memory", true),
        (Self::Persistence, "persistence", true),
        (Self::Stats, "stats", true),
        (Self::Replication, "replication", true),
        (Self::Cpu, "cpu", true),
        (Self::Modules, "modules", true),
        (Self::CommandStats, "commandstats", false),
        (Self::ErrorStats, "errorstats", true),
        (Self::Cluster, "cluster", true),
        (Self::Store, "store", true),
        (Self::Keyspace, "keyspace", true),
    ];

    /// The sections that a word of INFO asks for. One that names nothing asks for nothing.
    pub(super) fn named(word: &[u8]) -> impl Iterator<Item = Self> {
        let word = word.to_ascii_lowercase();
        Self::ALL.into_iter().filter_map(move |(section, name, default)| {
            let wanted = match &*word {
                b"all" | b"everything" => true,
                b"default" => default,
                word => word == name.as_bytes(),
            };
            wanted.then_some(section)
        })
    }
}

/// What the store was asked for.
#[derive(Debug, Default)]
pub(super) struct StoreFigures {
    /// Databases with keys, and how many.
    pub(super) keys: Vec<(u16, u64)>,
    pub(super) store: Vec<(&'static str, String)>,
}

/// The text of the sections, in Redis' order, each once.
pub(super) fn text(sections: &[Section], shared: &Shared, now_us: i64, told: &StoreFigures) -> String {
    let mut text = String::new();
    for (section, ..) in Section::ALL.into_iter().filter(|(section, ..)| sections.contains(section)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        write(section, shared, now_us, told, &mut text);
    }
    text
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string can not fail.
    let _ = write!(text, "{name}:{value}\r\n");
}

fn write(section: Section, shared: &Shared, now_us: i64, told: &StoreFigures, text: &mut String) {
    let (config, stats, facts) = (&shared.config, &shared.stats, shared.facts());
    let title = match section {
        Section::Cpu => "CPU",
        Section::CommandStats => "Commandstats",
        Section::ErrorStats => "Errorstats",
        other => &format!("{other:?}"),
    };
    let _ = write!(text, "# {title}\r\n");
    match section {
        Section::Server => {
            let uptime = (now_us - shared.started_us()).max(0) / 1_000_000;
            line(text, "redis_version", REDIS_VERSION);
            line(text, "redis_mode", "standalone");
            line(text, "remanence_version", env!("CARGO_PKG_VERSION"));
            line(text, "os", &config.system);
            line(text, "arch_bits", usize::BITS);
            line(text, "multiplexing_api", "epoll");
            line(text, "process_id", config.process);
            line(text, "run_id", &config.run_id);
            line(text, "tcp_port", config.port);
            line(text, "server_time_usec", now_us);
            line(text, "uptime_in_seconds", uptime);
            line(text, "uptime_in_days", uptime / 86400);
            line(text, "hz", 10);
            line(text, "configured_hz", 10);
        }
        Section::Clients => {
            line(text, "connected_clients", shared.peers().len());
            line(text, "cluster_connections", 0);
            line(text, "maxclients", config.clients_max);
            line(text, "blocked_clients", 0);
            line(text, "tracking_clients", 0);
            line(text, "clients_in_timeout_table", 0);
        }
        Section::Memory => {
            line(text, "used_memory", facts.resident);
            line(text, "used_memory_human", human(facts.resident));
            line(text, "used_memory_rss", facts.resident);
            line(text, "used_memory_rss_human", human(facts.resident));
            line(text, "used_memory_peak", facts.resident_peak);
            line(text, "used_memory_peak_human", human(facts.resident_peak));
            line(text, "total_system_memory", facts.machine_memory);
            line(text, "total_system_memory_human", human(facts.machine_memory));
            line(text, "maxmemory", 0);
            line(text, "maxmemory_human", human(0));
            line(text, "maxmemory_policy", "noeviction");
        }
        Section::Persistence => {
            line(text, "loading", 0);
            line(text, "async_loading", 0);
            line(text, "rdb_bgsave_in_progress", 0);
            line(text, "rdb_last_bgsave_status", "ok");
            line(text, "aof_enabled", u8::from(config.durable));
            line(text, "aof_rewrite_in_progress", 0);
            line(text, "aof_last_write_status", "ok");
            line(text, "durability", &config.durability);
        }
        Section::Stats => {
            let (channels, patterns) = shared.channels.counts();
            line(text, "total_connections_received", stats.connections.get());
            line(text, "total_commands_processed", stats.commands.get());
            line(text, "instantaneous_ops_per_sec", facts.rate);
            line(text, "total_net_input_bytes", stats.input_bytes.get());
            line(text, "total_net_output_bytes", stats.output_bytes.get());
            line(text, "instantaneous_input_kbps", format!("{:.2}", facts.bytes_in as f64 / 1024.0));
            line(text, "instantaneous_output_kbps", format!("{:.2}", facts.bytes_out as f64 / 1024.0));
            line(text, "rejected_connections", stats.rejected_connections.get());
            line(text, "expired_keys", stats.expired.get());
            line(text, "evicted_keys", 0);
            line(text, "evicted_clients", 0);
            line(text, "keyspace_hits", stats.hits.get());
            line(text, "keyspace_misses", stats.misses.get());
            line(text, "pubsub_channels", channels);
            line(text, "pubsub_patterns", patterns);
            line(text, "total_error_replies", stats.errors.get());
            line(text, "total_reads_processed", stats.reads.get());
            line(text, "total_writes_processed", stats.writes.get());
        }
        Section::Replication => {
            line(text, "role", "master");
            line(text, "connected_slaves", 0);
            line(text, "master_failover_state", "no-failover");
            line(text, "master_replid", &config.run_id);
            line(text, "master_repl_offset", 0);
        }
        Section::Cpu => {
            line(text, "used_cpu_sys", seconds(facts.cpu_system_us));
            line(text, "used_cpu_user", seconds(facts.cpu_user_us));
        }
        Section::Modules => {}
        Section::CommandStats => {
            for command in COMMANDS {
                let counts = stats.of(command.id);
                let (calls, us) = (counts.calls.get(), counts.microseconds.get());
                let (rejected, failed) = (counts.rejected.get(), counts.failed.get());
                if calls + rejected + failed > 0 {
                    let each = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
                    line(
                        text,
                        &format!("cmdstat_{}", command.name),
                        format!(
                            "calls={calls},usec={us},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
                        ),
                    );
                }
            }
        }
        Section::ErrorStats => {
            for (code, count) in stats.errors_by_code() {
                // A code comes out of an error's text, which may hold anything.
                let code: String = code.chars().map(|c| if "#:\n\r".contains(c) { '_' } else { c }).collect();
                line(text, &format!("errorstat_{code}"), format!("count={count}"));
            }
        }
        Section::Cluster => line(text, "cluster_enabled", 0),
        Section::Store => {
            for (name, value) in &told.store {
                line(text, name, value);
            }
        }
        Section::Keyspace => {
            for (space, count) in &told.keys {
                // Which of them expire is in the values: a count would be a walk through the store.
                line(text, &format!("db{space}"), format!("keys={count},expires=0,avg_ttl=0"));
            }
        }
    }
}

fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// `bytesToHuman` of Redis.
fn human(bytes: u64) -> String {
    let units = ["B", "K", "M", "G", "T", "P"];
    let power = (bytes.max(1).ilog2() / 10).min(5) as usize;
    if power == 0 {
        return format!("{bytes}B");
    }
    format!("{:.2}{}", bytes as f64 / (1_u64 << (10 * power)) as f64, units[power])
}
