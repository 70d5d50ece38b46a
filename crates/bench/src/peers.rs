//! What a user would pick instead: UCX and libfabric, from the distribution's packages, run as they come.
//!
//! Both programs print half round trips for latency, and means over their run; a one-sided put is therefore
//! compared with half of our round trip, and a write's completion with a whole one. The rows say which.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::netns::NetworkPath;

/// A peer program that is installed or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerProgram {
    /// `ucx_perftest` with the given `UCX_TLS`.
    Ucx(&'static str),
    /// `fi_pingpong` with the given provider and endpoint type.
    Fabric(&'static str, &'static str),
}

impl PeerProgram {
    /// The series' name in the report.
    #[must_use]
    pub fn series(self) -> String {
        match self {
            Self::Ucx(tls) => format!("ucx/{tls}"),
            Self::Fabric(provider, _) => format!("libfabric/{provider}"),
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Ucx(_) => "ucx_perftest",
            Self::Fabric(..) => "fi_pingpong",
        }
    }

    /// Why it cannot run here, if so.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let found = std::env::var_os("PATH")
            .is_some_and(|paths| std::env::split_paths(&paths).any(|p| p.join(self.program()).is_file()));
        (!found).then(|| format!("{}: {} is not installed", self.series(), self.program()))
    }
}

/// What a peer printed about one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// Half a round trip, mean, in microseconds.
    pub half_rtt_us: f64,
    /// 10^9 bytes a second.
    pub gbytes_s: f64,
}

/// Runs one test of a peer between two pinned processes: `test` is UCX's test name, or empty for libfabric.
///
/// # Errors
/// One sentence when a process fails, prints something else, or takes longer than 20 s.
pub fn run(
    peer: PeerProgram,
    test: &str,
    size: u64,
    rounds: u64,
    place: &NetworkPath,
) -> Result<Figures, String> {
    let address = place.server_address();
    let port = free_port()?;
    let (size, rounds, port) = (size.to_string(), rounds.to_string(), port.to_string());
    let command = |core: usize, client: bool| {
        let mut command = place.command(peer.program(), core, client);
        match peer {
            PeerProgram::Ucx(tls) => {
                command.env("UCX_TLS", tls).env("UCX_WARN_UNUSED_ENV_VARS", "n").args(["-p", &port]);
                if tls == "tcp" {
                    // Without this it looks at the devices in /sys, which are those of another namespace.
                    command.env("UCX_NET_DEVICES", place.interface());
                }
                if client {
                    command.args([&address, "-t", test, "-s", &size, "-n", &rounds, "-f", "-v"]);
                }
            }
            PeerProgram::Fabric(provider, endpoint) => {
                command.args(["-p", provider, "-e", endpoint, "-I", &rounds, "-S", &size]);
                command.args(if client { ["-P", &port] } else { ["-B", &port] });
                if client {
                    command.arg(&address);
                }
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let mut server = Guard(command(0, false).spawn().map_err(|e| format!("{}: {e}", peer.program()))?);
    let deadline = Instant::now() + Duration::from_secs(20);
    // Neither program says when it listens, so the client is started again until it finds the server.
    loop {
        let mut client = Guard(command(1, true).spawn().map_err(|e| format!("{}: {e}", peer.program()))?);
        let mut text = String::new();
        while client.0.try_wait().map_err(|e| e.to_string())?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("{} {test} did not finish within 20 s", peer.series()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(mut out) = client.0.stdout.take() {
            let _ = out.read_to_string(&mut text);
        }
        if let Some(figures) = parse(peer, &text) {
            return Ok(figures);
        }
        if server.0.try_wait().map_err(|e| e.to_string())?.is_some() || Instant::now() > deadline {
            return Err(format!("{} {test} gave no figures", peer.series()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn parse(peer: PeerProgram, text: &str) -> Option<Figures> {
    match peer {
        // iterations,50%_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr; MiB are 2^20 bytes
        PeerProgram::Ucx(_) => {
            // The number of iterations, which comes first, is padded.
            let of_figures = |l: &&str| l.trim_start().starts_with(|c: char| c.is_ascii_digit());
            let line = text.lines().rev().find(of_figures)?;
            let fields: Vec<f64> = line.split(',').map_while(|f| f.trim().parse().ok()).collect();
            let (latency, bandwidth) = (*fields.get(3)?, *fields.get(5)?);
            Some(Figures { half_rtt_us: latency, gbytes_s: bandwidth * 1.048_576e-3 })
        }
        // bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec; MB are 10^6 bytes
        PeerProgram::Fabric(..) => {
            let line = text.lines().rev().find(|l| l.contains('='))?;
            let fields: Vec<&str> = line.split_whitespace().collect();
            let figure = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok());
            Some(Figures { half_rtt_us: figure(6)?, gbytes_s: figure(5)? / 1000.0 })
        }
    }
}

fn free_port() -> Result<u16, String> {
    let socket = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no free port: {e}"))?;
    Ok(socket.local_addr().map_err(|e| e.to_string())?.port())
}

/// Ends the process that it holds, however its holder ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command pinned to a core by the system's `taskset`, where there is one.
pub(crate) fn pinned(program: &str, core: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_words_are_understood() {
        let ucx = "iterations,50.0_percentile_lat,avg_lat\n200000,0.148,0.146,0.150,417.84,400.00,6845915,6845915\n";
        let figures = parse(PeerProgram::Ucx("posix"), ucx).unwrap();
        assert!((figures.half_rtt_us - 0.150).abs() < 1e-9 && (figures.gbytes_s - 0.4194).abs() < 1e-3);
        let padded = "iterations,50.0_percentile_lat,avg_lat\n   300,0.020,549.483,549.483,1819.89,1819.89,1820,1820\n";
        let figures = parse(PeerProgram::Ucx("posix"), padded).unwrap();
        assert!((figures.gbytes_s - 1.908_3).abs() < 1e-3);
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      64      5k      =5k      625k        0.05s     11.82       5.41       0.18\n";
        let figures = parse(PeerProgram::Fabric("tcp", "msg"), fabric).unwrap();
        assert!((figures.half_rtt_us - 5.41).abs() < 1e-9 && (figures.gbytes_s - 0.01182).abs() < 1e-9);
        assert_eq!(parse(PeerProgram::Ucx("tcp"), "no figures"), None);
    }
}
