//! Why a burst was slow: what a process counts over each, beside what it measures.

use std::fmt;

use remanence_remote::Meter;
use remanence_verbs::Context;
use serde::{Deserialize, Serialize};

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// What a process counted: since it began, or over a burst.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        pub struct Causes {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Causes {
            /// What was counted since then.
            #[must_use]
            pub const fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }

            /// Each with its words.
            fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($words, self.$name),)*].into_iter()
            }
        }
    };
}

causes! {
    /// Microseconds of CPU time of the whole process: the application, the RNIC's engine, and their waiting.
    cpu_us: "us of CPU",
    /// Messages that a server's application was sent; one-sided operations are none.
    messages: "messages",
    /// Nanoseconds of CPU time that a server's application spent on them.
    application_ns: "ns of the application",
    /// Times that a thread gave up its core.
    voluntary: "voluntary switches",
    /// Times that a thread's core was taken from it.
    involuntary: "involuntary switches",
    /// Packets sent again, and calls.
    retransmits: "retransmissions",
    /// Timeouts of the transport or of calls.
    timeouts: "time-outs",
    /// RNR NAKs sent or received: a receiver had posted no buffer.
    rnr_naks: "RNR NAKs",
    /// NAKs for a gap in the sequence that were received.
    sequence_naks: "sequence NAKs",
    /// Packets that the engine dropped.
    dropped: "dropped packets",
    /// Sends that a full queue refused for now.
    blocked: "blocked sends",
    /// Times that a thread went to sleep on the link.
    sleeps: "sleeps on the link",
    /// Times that a sleeping thread was woken by another one.
    wakeups: "wake-ups",
    /// Times that another kind of thread came to drive the device.
    handovers: "handovers",
}

impl fmt::Display for Causes {
    /// What there is, but for what every process has: CPU time and messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found: Vec<String> = self
            .named()
            .skip(3)
            .filter(|(_, count)| *count > 0)
            .map(|(words, count)| format!("{count} {words}"))
            .collect();
        f.write_str(if found.is_empty() { "nothing counted" } else { "" })?;
        f.write_str(&found.join(", "))
    }
}

/// What counts for a role.
#[derive(Clone, Default)]
pub struct Counters {
    /// The devices that it has.
    pub devices: Vec<Context>,
    /// Of a server's application.
    pub meter: Option<Meter>,
    /// A process that serves in its place, whose CPU time is its own.
    pub process: Option<u32>,
}

impl Counters {
    /// With a device.
    #[must_use]
    pub fn of(device: &Context) -> Self {
        Self { devices: vec![device.clone()], ..Self::default() }
    }

    /// What they and the operating system have counted since this process began.
    #[must_use]
    pub fn read(&self) -> Causes {
        let mut causes = known_of(libc::RUSAGE_SELF);
        for device in &self.devices {
            let (engine, progress, link) = (device.stats(), device.progress_stats(), device.link_stats());
            causes.retransmits += engine.retransmits;
            causes.timeouts += engine.timeouts;
            causes.rnr_naks += engine.rx_rnr_nak + engine.tx_rnr_nak;
            causes.sequence_naks += engine.rx_nak_sequence;
            causes.dropped += engine.dropped_total();
            causes.blocked += link.tx_blocked;
            causes.sleeps += progress.watches;
            causes.wakeups += progress.kicks;
            causes.handovers += progress.handovers;
        }
        if let Some(meter) = &self.meter {
            let metered = meter.read();
            causes.messages = metered.messages;
            causes.application_ns = metered.application.as_nanos() as u64;
        }
        causes.cpu_us += self.process.map_or(0, cpu_of);
        causes
    }
}

/// Microseconds of CPU time of the threads of a process. Those that have ended are not counted any more.
fn cpu_of(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    // Nanoseconds on a core, nanoseconds of waiting for one, turns.
    let of = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(of).sum::<u64>() / 1000
}

/// What the scheduler knows of all processes that this one has started, and that have ended.
pub(crate) fn of_children() -> Causes {
    known_of(libc::RUSAGE_CHILDREN)
}

/// What the scheduler knows of this process, or of those.
fn known_of(who: libc::c_int) -> Causes {
    #[expect(unsafe_code, reason = "getrusage has no safe wrapper in std")]
    // SAFETY: the structure is plain data, lives on this stack, and is filled in whole; who is asked about is this process or its children.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Causes {
        cpu_us: us(usage.ru_utime) + us(usage.ru_stime),
        voluntary: usage.ru_nvcsw as u64,
        involuntary: usage.ru_nivcsw as u64,
        ..Causes::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_said_and_the_rest_is_not() {
        let before = Causes { cpu_us: 5, timeouts: 1, ..Causes::default() };
        let after = Causes { cpu_us: 9, timeouts: 3, handovers: 7, ..Causes::default() };
        let burst = after.since(&before);
        assert_eq!((burst.cpu_us, burst.timeouts), (4, 2));
        assert_eq!(burst.to_string(), "2 time-outs, 7 handovers");
        assert_eq!(before.since(&before).to_string(), "nothing counted");
    }

    #[test]
    fn the_time_of_another_process_is_counted() {
        let own = std::process::id();
        let (alone, other) = (Counters::default().read().cpu_us, cpu_of(own));
        assert!(other > 0);
        let with = Counters { process: Some(own), ..Counters::default() };
        assert!(with.read().cpu_us >= alone + other);
        assert_eq!(cpu_of(0), 0, "there is none");
    }

    #[test]
    fn a_process_that_sleeps_gives_its_core_up() {
        let before = Counters::default().read();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Counters::default().read().since(&before).voluntary > 0);
    }
}
