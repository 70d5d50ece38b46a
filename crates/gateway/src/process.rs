//! What the system knows of this process, for INFO and metrics. All of it comes out of files: where one is missing, the
//! figure is 0.

use std::fs;
use std::io::Read as _;
use std::time::{SystemTime, UNIX_EPOCH};

use remanence_metrics::Sample;
use remanence_resp::engine::{Config, Facts, Shared};

use crate::Address;

/// Microseconds of Unix time.
pub(crate) fn unix_us() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_micros() as i64,
        Err(before) => -(before.duration().as_micros() as i64),
    }
}

/// The same in milliseconds.
pub(crate) fn unix_ms() -> i64 {
    unix_us().div_euclid(1000)
}

/// Random bytes of the kernel; zeros where it has none to give, which only names and RANDOMKEY would notice.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Ok(mut source) = fs::File::open("/dev/urandom") {
        let _ = source.read_exact(&mut bytes);
    }
    bytes
}

/// Fills in what only the process knows.
pub(crate) fn complete(config: &mut Config, addresses: &[Address]) {
    config.run_id = random::<20>().iter().map(|byte| format!("{byte:02x}")).collect();
    config.process = std::process::id();
    config.port = addresses
        .iter()
        .find_map(|address| match address {
            Address::Tcp(socket) => Some(socket.port()),
            Address::Unix(_) => None,
        })
        .unwrap_or(0);
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    config.system =
        format!("{} {} {}", read("ostype").trim(), read("osrelease").trim(), std::env::consts::ARCH);
}

/// What was counted at the last look, to tell rates.
#[derive(Default)]
pub(crate) struct Rates {
    at_us: i64,
    commands: u64,
    bytes_in: u64,
    bytes_out: u64,
}

impl Rates {
    /// When that was, microseconds of Unix time.
    pub(crate) const fn at_us(&self) -> i64 {
        self.at_us
    }
}

/// Refreshes the facts of the process in `shared`, with the rates since the last look.
pub(crate) fn refresh(shared: &Shared, rates: &mut Rates) {
    let now = unix_us();
    let stats = &shared.stats;
    let counts = (stats.commands.get(), stats.input_bytes.get(), stats.output_bytes.get());
    let elapsed = (now - rates.at_us).max(1) as u64;
    let first = rates.at_us == 0;
    let rate = |new: u64, old: u64| {
        if first { 0 } else { new.saturating_sub(old).saturating_mul(1_000_000) / elapsed }
    };
    let sample = Sample::take();
    shared.set_facts(Facts {
        resident: sample.resident,
        resident_peak: sample.resident_peak.max(sample.resident),
        machine_memory: machine_memory(),
        cpu_system_us: sample.cpu_system_us,
        cpu_user_us: sample.cpu_user_us,
        rate: rate(counts.0, rates.commands),
        bytes_in: rate(counts.1, rates.bytes_in),
        bytes_out: rate(counts.2, rates.bytes_out),
    });
    *rates = Rates { at_us: now, commands: counts.0, bytes_in: counts.1, bytes_out: counts.2 };
}

pub(crate) fn machine_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_system_tells_what_it_knows() {
        assert!(super::machine_memory() > 1 << 20);
        assert_ne!(super::random::<16>(), super::random::<16>());
    }
}
