//! The machine under a bench, and the state that its two cores are in.
//!
//! A hypervisor may move two virtual cores between sharing a cache and not. The probe is a cache-line ping-pong
//! over two lines between two pinned threads; its round trip is about 120 ns near and 400 ns far.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use serde::Serialize;

/// Facts about the machine that a reader of a figure needs.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// As the CPU names itself.
    pub cpu: String,
    /// Cores that this process may use, wherever the thread that asks is pinned.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Memory in bytes.
    pub memory: u64,
}

impl Machine {
    /// Reads them from /proc; what cannot be read is said to be unknown.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|l| l.strip_prefix("model name").and_then(|l| l.split_once(':')));
        let meminfo = read("/proc/meminfo");
        let kib = meminfo
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:"))
            .and_then(|l| l.split_whitespace().next());
        Self {
            cpu: cpu.map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.trim().to_owned()),
            cores: cores(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory: kib.and_then(|k| k.parse::<u64>().ok()).unwrap_or(0) << 10,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores, {} GiB, Linux {}", self.cpu, self.cores, self.memory >> 30, self.kernel)
    }
}

/// How far apart the two cores are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
    /// The probe fell between the two, or there is only one core.
    Unclear,
    /// For figures of one core, which know no states.
    Any,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Near, Self::Far, Self::Unclear, Self::Any];
    /// Round trips below this are near, in nanoseconds.
    const NEAR_NS_MAX: f64 = 200.0;
    /// Round trips above this are far, in nanoseconds.
    const FAR_NS_MIN: f64 = 300.0;

    /// The word of the reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Unclear => "unclear",
            Self::Any => "any",
        }
    }

    /// Probes for about a millisecond with two pinned threads.
    #[must_use]
    pub fn probe() -> Self {
        match ping_pong_ns(2_000) {
            Some(ns) if ns < Self::NEAR_NS_MAX => Self::Near,
            Some(ns) if ns > Self::FAR_NS_MIN => Self::Far,
            _ => Self::Unclear,
        }
    }
}

/// How many cores this process may use.
#[must_use]
pub fn cores() -> usize {
    allowed().len().max(1)
}

/// The cores that this process may use. Those of the calling thread may be fewer, where a bench has pinned it; so a thread looks
/// that was let go first. The kernel leaves out those that the process may not use.
#[must_use]
pub fn allowed() -> Vec<usize> {
    let look = || {
        pin_to(0..libc::CPU_SETSIZE as usize);
        #[expect(unsafe_code, reason = "sched_getaffinity has no safe wrapper in std")]
        // SAFETY: as in `pin_to`; the set is filled in, whole.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
            set
        };
        #[expect(unsafe_code, reason = "CPU_ISSET is a macro of C")]
        // SAFETY: the number is below the set's capacity.
        (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
    };
    std::thread::scope(|scope| scope.spawn(look).join()).unwrap_or_default()
}

/// Pins the calling thread to one core; best effort, as a bench on one core is still a bench.
pub fn pin(core: usize) {
    pin_to([core]);
}

/// Lets the calling thread, and those that it starts, run on these cores only; best effort.
pub fn pin_to(cores: impl IntoIterator<Item = usize>) {
    #[expect(unsafe_code, reason = "sched_setaffinity has no safe wrapper in std")]
    // SAFETY: the set is a plain bit mask that lives on this stack, of the size that is passed; each number is bounded
    // by the set's own capacity in CPU_SET.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.into_iter().for_each(|core| libc::CPU_SET(core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

#[repr(align(128))]
struct Line(AtomicU64);

/// The round trip of a cache-line ping-pong over two lines between cores 0 and 1, in nanoseconds: the best of
/// five runs of `rounds`. `None` with fewer than two cores.
#[must_use]
pub fn ping_pong_ns(rounds: u64) -> Option<f64> {
    if cores() < 2 {
        return None;
    }
    let lines = Arc::new((Line(AtomicU64::new(0)), Line(AtomicU64::new(0)), Barrier::new(2)));
    let runs = 5;
    let echo = std::thread::spawn({
        let lines = Arc::clone(&lines);
        move || {
            pin(1);
            lines.2.wait();
            for i in 1..=rounds * runs {
                wait_for(&lines.0, i);
                lines.1.0.store(i, Ordering::Release);
            }
        }
    });
    let ask = std::thread::spawn(move || {
        pin(0);
        lines.2.wait();
        let mut best = f64::INFINITY;
        for run in 0..runs {
            let start = Instant::now();
            for i in run * rounds + 1..=(run + 1) * rounds {
                lines.0.0.store(i, Ordering::Release);
                wait_for(&lines.1, i);
            }
            best = best.min(start.elapsed().as_nanos() as f64 / rounds as f64);
        }
        best
    });
    let best = ask.join().ok()?;
    echo.join().ok()?;
    Some(best)
}

fn wait_for(line: &Line, value: u64) {
    let mut spins = 0_u32;
    while line.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        spins += 1;
        // The other thread may not be running at all on a shared machine.
        if spins.is_multiple_of(1 << 16) {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_describes_itself() {
        let text = Machine::here().to_string();
        assert!(text.contains("Linux "), "{text}");
    }

    #[test]
    fn the_ping_pong_ends_and_is_positive() {
        if let Some(ns) = ping_pong_ns(100) {
            assert!(ns > 0.0 && ns.is_finite(), "{ns}");
        }
    }
}
