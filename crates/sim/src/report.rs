//! What a run says in the end.

use std::fmt::{self, Write as _};

use crate::network::Traffic;
use crate::params::Plan;

/// Counters that can be added up over runs.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl $crate::report::Counters for $name {
            fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}
pub(crate) use counters;

/// What was counted in a run, which can be added up over runs.
pub trait Counters: Copy + Eq + Default + fmt::Debug + std::ops::AddAssign {
    /// Names and values.
    fn fields(&self) -> Vec<(&'static str, u64)>;
}

counters! {
/// What happened in a run, counted.
Counts {
    /// Work requests posted to send queues.
    posted,
    /// Those that completed well, each with everything that it must have done checked.
    ops,
    /// Work completions, receives too.
    completions,
    /// Messages that a receive work request took.
    messages,
    /// Atomics that memory carried out.
    atomics,
    /// Persistent FLUSHes after which the worst crash was looked at.
    flushes_checked,
    /// Times that a node lost its power.
    crashes,
    /// Times that the network was partitioned.
    partitions,
    /// Connections that came back.
    reconnects,
    /// QPs that gave up on a peer that was away.
    retries_exhausted,
    /// Request packets that were sent again.
    retransmits,
    /// Local ACK timeouts.
    timeouts,
    /// NAK sequence errors.
    nak_sequence,
    /// NAKs "receiver not ready", for want of a receive WQE.
    rnr_nak,
    /// Duplicate requests answered.
    duplicates_answered,
    /// Congestion notifications sent.
    cnp,
    /// Packets that engines dropped, for any reason.
    dropped,
    /// Steps of the simulator.
    events,
}
}

/// Why a run is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What was observed and must not be.
    pub what: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

/// What became of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The seed, which replays the run.
    pub seed: u64,
    /// What the seed made of the parameters.
    pub plan: Plan,
    /// What the engines did.
    pub counts: Counts,
    /// What the network did.
    pub traffic: Traffic,
    /// Simulated time, in nanoseconds.
    pub nanos: u64,
    /// Of everything that happened: two runs of a seed are the same if these are.
    pub hash: u64,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
}

impl Outcome {
    /// Whether nothing was wrong.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.failure.is_none()
    }

    /// The outcome as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::from("{");
        let mut field = |name: &str, value: &dyn fmt::Display| {
            let comma = if json.len() > 1 { "," } else { "" };
            write!(json, "{comma}\"{name}\":{value}").expect("a string takes all");
        };
        field("seed", &self.seed);
        field("verdict", &if self.passed() { "\"pass\"" } else { "\"fail\"" });
        // As text: readers of JSON keep 53 bits of a number.
        field("hash", &format_args!("\"{:016x}\"", self.hash));
        field("simulated_ns", &self.nanos);
        for (name, value) in self.plan_fields() {
            field(name, &value);
        }
        for (name, value) in self.counts.fields().into_iter().chain(self.traffic.fields()) {
            field(name, &value);
        }
        match &self.failure {
            None => field("failure", &"null"),
            Some(failure) => {
                let trace: Vec<String> = failure.trace.iter().map(|line| quoted(line)).collect();
                field("failure", &quoted(&failure.what));
                field("trace", &format_args!("[{}]", trace.join(",")));
            }
        }
        json.push('}');
        json
    }

    fn plan_fields(&self) -> Vec<(&'static str, u64)> {
        let plan = &self.plan;
        vec![
            ("nodes", u64::from(plan.nodes)),
            ("connections", u64::from(plan.connections)),
            ("mtu", plan.mtu.bytes() as u64),
            ("loss_ppm", u64::from(plan.faults.loss.0)),
            ("duplication_ppm", u64::from(plan.faults.duplication.0)),
            ("corruption_ppm", u64::from(plan.faults.corruption.0)),
            ("reordering_ppm", u64::from(plan.faults.reordering.0)),
            ("congestion_ppm", u64::from(plan.faults.congestion.0)),
        ]
    }
}

/// A JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if u32::from(c) < 0x20 => write!(json, "\\u{:04x}", u32::from(c)).expect("a string takes all"),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, c, t) = (&self.plan, &self.counts, &self.traffic);
        let faults = &plan.faults;
        writeln!(
            f,
            "seed {}: {} nodes, {} connections over {}, path MTU {}, {} WQEs, messages up to {} bytes",
            self.seed,
            plan.nodes,
            plan.connections,
            if plan.ipv6 { "IPv6" } else { "IPv4" },
            plan.mtu,
            plan.send_depth,
            plan.message_max
        )?;
        writeln!(
            f,
            "network  loss {}, duplication {}, corruption {}, reordering {}, congestion {}",
            faults.loss, faults.duplication, faults.corruption, faults.reordering, faults.congestion
        )?;
        writeln!(
            f,
            "work     {} posted, {} done and checked, {} messages, {} atomics, {} persistent flushes",
            c.posted, c.ops, c.messages, c.atomics, c.flushes_checked
        )?;
        writeln!(
            f,
            "packets  {} sent, {} lost, {} twice, {} damaged, {} held back, {} marked",
            t.packets, t.lost, t.duplicated, t.corrupted, t.reordered, t.marked
        )?;
        writeln!(
            f,
            "engine   {} retransmitted, {} timeouts, {} NAKs of sequence, {} RNR NAKs, {} duplicates answered, {} CNPs",
            c.retransmits, c.timeouts, c.nak_sequence, c.rnr_nak, c.duplicates_answered, c.cnp
        )?;
        writeln!(
            f,
            "faults   {} power losses, {} partitions, {} QPs gave up, {} reconnects",
            c.crashes, c.partitions, c.retries_exhausted, c.reconnects
        )?;
        writeln!(
            f,
            "time     {}.{:06} s simulated in {} steps, hash {:016x}",
            self.nanos / 1_000_000_000,
            self.nanos / 1000 % 1_000_000,
            c.events,
            self.hash
        )?;
        match &self.failure {
            None => f.write_str("verdict  pass"),
            Some(failure) => {
                writeln!(f, "trace    the last {} lines:", failure.trace.len())?;
                for line in &failure.trace {
                    writeln!(f, "  {line}")?;
                }
                write!(f, "verdict  FAIL: {}", failure.what)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings_are_quoted() {
        assert_eq!(quoted("a \"b\"\\\n"), "\"a \\\"b\\\"\\\\\\u000a\"");
    }
}
