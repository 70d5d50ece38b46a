//! Why a burst was slow: what a process counts over each, beside what it measures.

use std::fmt;

use remanence_remote::Meter;
use remanence_verbs::Context;
use serde::{Deserialize, Serialize};

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// What a process counted: since it began, or over a burst.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Causes {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Causes {
            /// What was counted since then; the memory is what it is now.
            #[must_use]
            pub const fn since(&self, before: &Self) -> Self {
                let counted = Self { $($name: self.$name.saturating_sub(before.$name),)* };
                Self { memory_kib: self.memory_kib, ..counted }
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
    /// The most memory that the process had, in KiB; of several, together.
    memory_kib: "KiB",
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
    /// What there is, but for what every process has: CPU time, messages and memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found: Vec<String> = self
            .named()
            .skip(4)
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
    /// Processes that it has started, which are what counts in place of its own one.
    pub programs: Vec<u32>,
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
        let mut causes =
            if self.programs.is_empty() { known_of(libc::RUSAGE_SELF) } else { Causes::default() };
        self.programs.iter().for_each(|id| of_program(*id, &mut causes));
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
        causes
    }
}

/// Adds what the scheduler knows of the threads that another process has. All but the engine of an RNIC are its application.
fn of_program(id: u32, causes: &mut Causes) {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().filter_map(Result::ok);
    let mut nanos = 0;
    for task in tasks {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        let status = read("status");
        let field = |name: &str| number(status.lines().find_map(|line| line.strip_prefix(name)));
        causes.voluntary += field("voluntary_ctxt_switches:");
        causes.involuntary += field("nonvoluntary_ctxt_switches:");
        let ran = number(read("schedstat").split(' ').next());
        nanos += ran;
        if read("comm").trim() != "remanence-rnic" {
            causes.application_ns += ran;
        }
    }
    causes.cpu_us += nanos / 1000;
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    causes.memory_kib += most.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0);
}

/// What the scheduler knows of all processes that this one has started, and that have ended. Which of them had most memory is not known.
pub(crate) fn of_children() -> Causes {
    Causes { memory_kib: 0, ..known_of(libc::RUSAGE_CHILDREN) }
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
        memory_kib: usage.ru_maxrss as u64,
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
        let before = Causes { cpu_us: 5, memory_kib: 80, timeouts: 1, ..Causes::default() };
        let after = Causes { cpu_us: 9, memory_kib: 90, timeouts: 3, handovers: 7, ..Causes::default() };
        let burst = after.since(&before);
        assert_eq!((burst.cpu_us, burst.memory_kib, burst.timeouts), (4, 90, 2));
        assert_eq!(burst.to_string(), "2 time-outs, 7 handovers");
        assert_eq!(before.since(&before).to_string(), "nothing counted");
    }

    #[test]
    fn what_a_program_costs_is_read_of_it_and_not_of_who_asks() {
        let busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let mut busy = busy.expect("a shell");
        let its = Counters { programs: vec![busy.id()], ..Counters::default() };
        let before = its.read();
        let mut cost = Causes::default();
        // A kernel without statistics of its scheduler counts nothing.
        while cost.cpu_us == 0 && std::path::Path::new("/proc/self/schedstat").exists() {
            cost = its.read().since(&before);
        }
        let with = |program| Counters { programs: vec![busy.id(), program], ..Counters::default() }.read();
        let (one, two) = (with(u32::MAX).memory_kib, with(busy.id()).memory_kib);
        assert!(one > 100 && two >= 2 * one, "a shell has {one} KiB, and twice the same {two}");
        busy.kill().and_then(|()| busy.wait()).expect("it is ours");
        assert!(cost.application_ns > 0 && cost.messages == 0, "{cost:?}");
        let gone = Counters { programs: vec![u32::MAX], ..Counters::default() };
        assert_eq!(gone.read(), Causes::default());
    }

    #[test]
    fn a_process_that_sleeps_gives_its_core_up() {
        let before = Counters::default().read();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Counters::default().read().since(&before).voluntary > 0);
    }
}
