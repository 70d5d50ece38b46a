//! What a user would pick instead: UCX and libfabric, from the distribution's packages, run as they come.
//!
//! Both programs print *half* round trips for latency. UCX prints one percentile of its single operations (of the last two
//! thousand of a run) and means; `fi_pingpong` a mean. So each statistic has a name of its own, and is compared with the same one of
//! ours: a median with the median, a mean with the mean, of half round trips both.

use std::net::TcpListener;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::effort::Effort;
use crate::netns::NetworkPath;
use crate::process::{self, Running};
use crate::redis::installed;
use crate::role::{Ran, of_children};
use crate::samples::{Key, Metric};

/// How long a run may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a run that failed is repeated.
const TRIES: u32 = 3;

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

    const fn program(self) -> &'static str {
        match self {
            Self::Ucx(_) => "ucx_perftest",
            Self::Fabric(..) => "fi_pingpong",
        }
    }

    /// Why it cannot run here, if so.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let package = if matches!(self, Self::Ucx(_)) { "ucx-utils" } else { "libfabric-bin" };
        installed(self.program(), package).err()
    }

    /// Its environment where the two processes are.
    fn environment(self, place: &NetworkPath) -> Vec<(&'static str, &'static str)> {
        match self {
            // Without a name it looks at the devices in /sys, which are those of another namespace.
            Self::Ucx(tls) if tls == "tcp" => {
                vec![("UCX_TLS", tls), ("UCX_NET_DEVICES", place.interface())]
            }
            Self::Ucx(tls) => vec![("UCX_TLS", tls)],
            Self::Fabric(..) => Vec::new(),
        }
    }

    /// Version, environment and command line, for who reads the figures.
    #[must_use]
    pub fn settings(self, place: &NetworkPath) -> String {
        let version = match self {
            Self::Ucx(_) => version("ucx_info", "-v"),
            Self::Fabric(..) => version("fi_info", "--version"),
        };
        let environment = self.environment(place).into_iter().map(|(name, value)| format!("{name}={value} "));
        let run = Run { program: self, test: "TEST", size: 0, percentile: 50 };
        let arguments = run.arguments(run.rounds(Effort::Full), "PORT", Some("ADDRESS")).join(" ");
        let arguments = arguments.replace(" 0 ", " SIZE ");
        format!(
            "{version}; {}{} {arguments}; client and server spin, pinned to a core each",
            environment.collect::<String>(),
            self.program()
        )
    }
}

/// What a program says of its version, in its first line that has one.
pub(crate) fn version(program: &str, argument: &str) -> String {
    let said = Command::new(program).arg(argument).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    let line = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()));
    // Redis says with what it was built as well.
    let line = line.and_then(|line| line.trim_matches(['#', ' ']).split(" sha=").next());
    line.map_or_else(|| format!("{program}, version unknown"), str::to_owned)
}

/// What each peer of a list is, for a report's parameters: by series, once.
pub(crate) fn settings(runs: &[Run], place: &NetworkPath) -> Map<String, Value> {
    let mut all = Map::new();
    for program in runs.iter().map(|run| run.program) {
        all.entry(program.series()).or_insert_with(|| program.settings(place).into());
    }
    all
}

/// What a peer measures in one burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The program that is run.
    pub program: PeerProgram,
    /// UCX' name of a test; libfabric's program has one test only.
    pub test: &'static str,
    /// Bytes of an operation.
    pub size: u64,
    /// Which percentile UCX shall print.
    pub percentile: u32,
}

/// What a peer printed about one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// The percentile that was asked for, in microseconds; UCX only.
    pub percentile_us: Option<f64>,
    /// The mean over the whole run, in microseconds.
    pub mean_us: f64,
    /// 10^9 bytes a second.
    pub gbytes_s: f64,
}

impl Run {
    fn is_stream(self) -> bool {
        self.test.ends_with("_bw")
    }

    fn key(self, statistic: &str, metric: Metric) -> Key {
        Key { op: format!("{}{statistic}", self.test), x: self.size, series: self.program.series(), metric }
    }

    /// Under which keys its figures are kept.
    #[must_use]
    pub fn values(self, figures: &Figures) -> Vec<(Key, f64)> {
        if self.is_stream() {
            return vec![(self.throughput_key(), figures.gbytes_s)];
        }
        let mut values = Vec::new();
        if let Some(micros) = figures.percentile_us {
            values.push((self.percentile_key(), micros));
        }
        // A run for another percentile has a mean too, and one is enough.
        if self.percentile == 50 {
            values.push((self.mean_key(), figures.mean_us));
        }
        values
    }

    /// The keys of a run of which nothing is known yet.
    pub(crate) fn keys(self) -> Vec<Key> {
        let percentile_us = matches!(self.program, PeerProgram::Ucx(_)).then_some(0.0);
        let figures = Figures { percentile_us, mean_us: 0.0, gbytes_s: 0.0 };
        self.values(&figures).into_iter().map(|(key, _)| key).collect()
    }

    /// The key of its percentile.
    #[must_use]
    pub fn percentile_key(self) -> Key {
        self.key(&format!(", p{}", self.percentile), Metric::Latency)
    }

    /// The key of its mean.
    #[must_use]
    pub fn mean_key(self) -> Key {
        self.key(", mean", Metric::Latency)
    }

    /// The key of its throughput.
    #[must_use]
    pub fn throughput_key(self) -> Key {
        self.key("", Metric::Throughput)
    }

    /// In words, for a progress bar.
    #[must_use]
    pub fn words(self) -> String {
        format!("{} {} {}", self.program.series(), self.test, crate::report::bytes(self.size))
    }

    /// As many operations as take about as long as a burst of ours.
    pub(crate) fn rounds(self, effort: Effort) -> u64 {
        let rounds = match (self.size, self.is_stream()) {
            (0..=4096, false) => 5_000,
            (0..=4096, true) => 50_000,
            (4097..=65_536, _) => 5_000,
            _ => 300,
        };
        // In shared memory an operation takes a tenth of a microsecond.
        let is_shared = matches!(self.program, PeerProgram::Ucx(tls) if tls != "tcp");
        rounds / effort.pick(10, 2, 1) * if is_shared && self.size <= 65_536 { 40 } else { 1 }
    }

    /// The arguments of the client, which is told where the server is, or of the server.
    fn arguments(self, rounds: u64, port: &str, server: Option<&str>) -> Vec<String> {
        let (size, rounds) = (self.size.to_string(), rounds.to_string());
        let percentile = self.percentile.to_string();
        let arguments = match (self.program, server) {
            (PeerProgram::Ucx(_), None) => vec!["-p", port],
            (PeerProgram::Ucx(_), Some(server)) => vec![
                "-p",
                port,
                server,
                "-t",
                self.test,
                "-s",
                &size,
                "-n",
                &rounds,
                "-R",
                &percentile,
                "-f",
                "-v",
            ],
            (PeerProgram::Fabric(provider, endpoint), _) => {
                let mut all = vec!["-p", provider, "-e", endpoint, "-I", &rounds, "-S", &size];
                all.extend([if server.is_some() { "-P" } else { "-B" }, port]);
                all.extend(server);
                all
            }
        };
        arguments.into_iter().map(str::to_owned).collect()
    }

    /// Runs so many rounds of it between two pinned processes, again if it fails. What each end counted has what [`begin`](Self::begin) counts.
    ///
    /// # Errors
    /// One sentence when a process fails, prints something else, or takes longer than 20 s, and does so each time.
    pub fn measure(self, place: &NetworkPath, rounds: u64) -> Result<Ran<Figures>, String> {
        retried(|| self.once(place, rounds, |text, _| self.parse(text)))
    }

    /// What each end counts besides rounds: its begin, its end, and what it does to warm up. It is that of a run of one round, of which
    /// the figures do not matter: a rate may be too small to be seen.
    ///
    /// # Errors
    /// One sentence when a process fails, or takes longer than 20 s, and does so each time.
    pub fn begin(self, place: &NetworkPath) -> Result<Ran<()>, String> {
        retried(|| self.once(place, 1, |_, status| status.success().then_some(())))
    }

    fn once<T>(
        self,
        place: &NetworkPath,
        rounds: u64,
        read: impl Fn(&str, ExitStatus) -> Option<T>,
    ) -> Result<Ran<T>, String> {
        let name = self.program.program();
        let (address, port) = (place.server_address(), free_port()?.to_string());
        let start = |core: usize, client: bool| {
            let mut command = place.command(name, core, client);
            command.envs(self.program.environment(place)).env("UCX_WARN_UNUSED_ENV_VARS", "n");
            command.args(self.arguments(rounds, &port, client.then_some(&*address)));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            process::spawn(&mut command).map(Running).map_err(|e| format!("{name}: {e}"))
        };
        let mut server = start(0, false)?;
        let deadline = Instant::now() + PATIENCE;
        // Neither program says when it listens, so the client is started again until it finds the server.
        loop {
            // Nobody else of ours ends meanwhile.
            let before = of_children();
            let client = start(1, true)?;
            let patience = deadline.saturating_duration_since(Instant::now());
            let (status, text) = client.finish(patience).map_err(|why| format!("{name}: {why}"))?;
            if let Some(values) = read(&text, status) {
                let between = of_children();
                drop(server);
                let (client, server) = (between.since(&before), of_children().since(&between));
                return Ok(Ran { values, client, server });
            }
            if server.0.try_wait().map_err(|e| e.to_string())?.is_some() || Instant::now() > deadline {
                return Err(format!("{name} gave no figures"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the client printed: a line of figures below one of their names.
    fn parse(self, text: &str) -> Option<Figures> {
        let (first, split): (_, fn(&str) -> Vec<&str>) = match self.program {
            PeerProgram::Ucx(_) => ("iterations", |line| line.split(',').map(str::trim).collect()),
            PeerProgram::Fabric(..) => ("bytes", |line| line.split_whitespace().collect()),
        };
        let mut lines = text.lines().skip_while(|line| split(line).first() != Some(&first)).map(split);
        let names = lines.next()?;
        let figures = lines.filter(|fields| fields.len() == names.len()).last()?;
        let figure = |name: &str| {
            let at = names.iter().position(|column| *column == name)?;
            figures[at].parse::<f64>().ok().filter(|figure| *figure > 0.0)
        };
        Some(match self.program {
            // MiB are 2^20 bytes there; avg_ is of the last interval of its progress report, overall_ of the run.
            PeerProgram::Ucx(_) => Figures {
                percentile_us: Some(figure(&format!("{:.1}_percentile_lat", f64::from(self.percentile)))?),
                mean_us: figure("overall_lat")?,
                gbytes_s: figure("overall_bw")? * 1.048_576e-3,
            },
            // MB are 10^6 bytes.
            PeerProgram::Fabric(..) => Figures {
                percentile_us: None,
                mean_us: figure("usec/xfer")?,
                gbytes_s: figure("MB/sec")? / 1000.0,
            },
        })
    }
}

/// What succeeds within some tries.
fn retried<T>(mut run: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let mut tries = 1;
    loop {
        match run() {
            Err(why) if tries == TRIES => return Err(format!("{why}, {TRIES} times")),
            Err(_) => tries += 1,
            found => return found,
        }
    }
}

/// A port that the kernel finds free, for programs that have to be told one.
pub(crate) fn free_port() -> Result<u16, String> {
    let socket = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no free port: {e}"))?;
    Ok(socket.local_addr().map_err(|e| e.to_string())?.port())
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

    const UCX: Run = Run { program: PeerProgram::Ucx("tcp"), test: "ucp_put_lat", size: 64, percentile: 50 };
    const FABRIC: Run =
        Run { program: PeerProgram::Fabric("tcp", "msg"), test: "pingpong", size: 64, percentile: 50 };
    const HEADER: &str =
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n";

    /// What UCX 1.13.1 printed, `-f -v`.
    #[test]
    fn what_ucx_prints_is_read_by_the_names_of_its_columns() {
        let lat = format!("{HEADER}2000,6.073,6.142,6.242,9.94,9.84,162813,160813\n");
        let figures = UCX.parse(&lat).expect("figures");
        assert_eq!((figures.percentile_us, figures.mean_us), (Some(6.073), 6.242));
        assert!((figures.gbytes_s - 0.010_318).abs() < 1e-6, "of the run, not of its last interval");
        // Of few operations their number is padded.
        let stream = Run { test: "ucp_put_bw", size: 1 << 20, ..UCX };
        let text = format!("{HEADER} 300,30.218,30.737,30.737,32534.16,32534.16,32534,32534\n");
        let figures = stream.parse(&text).expect("figures");
        assert!((figures.gbytes_s - 34.114_5).abs() < 1e-3);
        let keys: Vec<_> = stream.values(&figures).into_iter().map(|(key, _)| (key.op, key.metric)).collect();
        assert_eq!(keys, [("ucp_put_bw".to_owned(), Metric::Throughput)]);
    }

    /// The same, `-R 99`: the run did not end as fast as it went.
    #[test]
    fn a_percentile_is_the_one_that_was_asked_for() {
        let text = "iterations,99.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    200000,0.155,1.839,6.846,33.19,8.92,543847,146065\n";
        assert_eq!(UCX.parse(text), None, "the column of another one");
        let run = Run { percentile: 99, ..UCX };
        let figures = run.parse(text).expect("figures");
        let values: Vec<_> = run.values(&figures).into_iter().map(|(key, values)| (key.op, values)).collect();
        assert_eq!(values, [("ucp_put_lat, p99".to_owned(), 0.155)]);
    }

    /// What fi_pingpong 1.17.0 printed.
    #[test]
    fn what_libfabric_prints_is_read_by_the_names_of_its_columns() {
        let header = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";
        let small =
            format!("{header}64      5k      =5k      625k        0.35s      1.81      35.40       0.03\n");
        let figures = FABRIC.parse(&small).expect("figures");
        assert_eq!((figures.percentile_us, figures.mean_us), (None, 35.4));
        let values: Vec<_> =
            FABRIC.values(&figures).into_iter().map(|(key, values)| (key.op, values)).collect();
        assert_eq!(values, [("pingpong, mean".to_owned(), 35.4)]);
        let large =
            format!("{header}64k     5k      =5k      625m        3.24s    202.36     323.86       0.00\n");
        let figures = FABRIC.parse(&large).expect("figures, though a rate is too small to be seen");
        assert!((figures.gbytes_s - 0.202_36).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_figure_is_none() {
        assert_eq!(UCX.parse("no figures"), None);
        assert_eq!(UCX.parse(HEADER), None, "the line is missing");
        assert_eq!(UCX.parse(&format!("{HEADER}2000,6.073,6.142\n")), None, "it is cut short");
        assert_eq!(FABRIC.parse("64 5k =5k 625k 0.35s 1.81 35.40 0.03\n"), None, "nothing names them");
    }

    #[test]
    fn the_settings_are_a_command_line() {
        let line = UCX.program.settings(&NetworkPath::Loopback);
        let wanted =
            "UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -p PORT ADDRESS -t TEST -s SIZE -n 5000 -R 50 -f -v";
        assert!(line.contains(wanted), "{line}");
    }
}
