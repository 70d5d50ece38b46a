//! What the system knows of this process, under the names that every Prometheus client library gives it. All of it comes out
//! of files: where one is missing, the figure is 0.

use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Source, Unit};

/// The kernel's unit of CPU time towards programs, on every architecture that Rust has.
const TICK_US: u64 = 10_000;

/// A look at the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Bytes of memory that are resident.
    pub resident: u64,
    /// The most bytes that have been.
    pub resident_peak: u64,
    /// Bytes of address space.
    pub virtual_memory: u64,
    /// Microseconds of CPU time in the program.
    pub cpu_user_us: u64,
    /// Microseconds of CPU time in the kernel.
    pub cpu_system_us: u64,
    /// Threads that the process has.
    pub threads: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// File descriptors that may be open.
    pub max_fds: u64,
    /// Ticks from the machine's start to the process'.
    start_ticks: u64,
}

impl Sample {
    /// Reads what the kernel tells of this process now.
    #[must_use]
    pub fn take() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| field(&status, name) * 1024;
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name, in parentheses, may hold anything; the state behind it is field 3, the times are 14 and 15, the start
        // is 22.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let after: Vec<u64> = rest.split_ascii_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
        let ticks = |field: usize| after.get(field - 3).copied().unwrap_or(0);
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        Self {
            resident: kib("VmRSS:"),
            resident_peak: kib("VmHWM:"),
            virtual_memory: kib("VmSize:"),
            cpu_user_us: ticks(14) * TICK_US,
            cpu_system_us: ticks(15) * TICK_US,
            threads: field(&status, "Threads:"),
            // The directory's own descriptor is not counted.
            open_fds: fs::read_dir("/proc/self/fd").map_or(0, |fds| (fds.count() as u64).saturating_sub(1)),
            max_fds: limit.and_then(first_number).unwrap_or(0),
            start_ticks: ticks(22),
        }
    }

    /// When the process started, seconds of Unix time.
    #[must_use]
    pub fn started(&self) -> f64 {
        let up = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let up: f64 = up.split_ascii_whitespace().next().and_then(|up| up.parse().ok()).unwrap_or(0.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        now - up + (self.start_ticks * TICK_US) as f64 / 1e6
    }
}

fn field(text: &str, name: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(name)).and_then(first_number).unwrap_or(0)
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// The process as a source: `process_cpu_seconds_total` and its kind, as in Prometheus' own client libraries.
#[must_use]
pub fn process() -> Source {
    // The clock may be set while the process runs; when it started stays what it was.
    let started = Sample::take().started();
    Arc::new(move |page| {
        let sample = Sample::take();
        let cpu = (sample.cpu_user_us + sample.cpu_system_us) as f64 / 1e6;
        page.counter("process_cpu", Some(Unit::Seconds), "CPU time, user and system.", cpu)?;
        page.gauge(
            "process_resident_memory",
            Some(Unit::Bytes),
            "Memory that is resident.",
            sample.resident,
        )?;
        page.gauge("process_virtual_memory", Some(Unit::Bytes), "Address space.", sample.virtual_memory)?;
        page.gauge("process_start_time", Some(Unit::Seconds), "Unix time of the start.", started)?;
        page.gauge("process_threads", None, "Threads.", sample.threads)?;
        page.gauge("process_open_fds", None, "Open file descriptors.", sample.open_fds)?;
        page.gauge("process_max_fds", None, "File descriptors that may be open.", sample.max_fds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_it_knows() {
        let sample = Sample::take();
        assert!(sample.resident > 1 << 16 && sample.resident_peak >= sample.resident / 2, "{sample:?}");
        assert!(sample.virtual_memory >= sample.resident && sample.threads >= 1, "{sample:?}");
        assert!(sample.open_fds >= 3 && sample.max_fds >= sample.open_fds, "{sample:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        // A process that runs started before now, and not years ago: the field is the right one.
        assert!(sample.started() < now + 60.0 && sample.started() > now - 86400.0 * 30.0);
        // Long enough to be counted, whatever the machine does besides.
        while Sample::take().cpu_user_us + Sample::take().cpu_system_us == 0 {
            std::hint::black_box((0..1_000_000_u64).sum::<u64>());
        }
    }
}
