//! Debian's `perftest`, the programs that RDMA people measure with: what they are asked, and what they answer.
//!
//! As in the papers, latency is half a round trip for WRITE and SEND and a whole one for READ.

use crate::samples::{Key, Metric};

/// An operation that perftest measures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Op {
    /// RDMA WRITE; the latency test looks at the memory for the answer.
    Write,
    /// RDMA READ, which the requester's side alone measures.
    Read,
    /// SEND, which the responder receives.
    Send,
}

impl Op {
    /// All of them, in the order of the papers' tables.
    pub const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Send];

    /// The name in a report.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}

/// One run of a client and its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The operation that is measured.
    pub op: Op,
    /// Latency or throughput.
    pub metric: Metric,
    /// Bytes of an operation.
    pub size: u64,
    /// How many operations the client does.
    pub count: u64,
}

impl Run {
    /// The program, which is the same for client and server.
    #[must_use]
    pub const fn program(&self) -> &'static str {
        match (self.op, self.metric) {
            (Op::Write, Metric::Latency) => "ib_write_lat",
            (Op::Read, Metric::Latency) => "ib_read_lat",
            (Op::Send, Metric::Latency) => "ib_send_lat",
            (Op::Write, _) => "ib_write_bw",
            (Op::Read, _) => "ib_read_bw",
            (Op::Send, _) => "ib_send_bw",
        }
    }

    /// Its arguments; the client has the server's address behind them.
    #[must_use]
    pub fn arguments(&self, device: &str, port: u16) -> Vec<String> {
        let (size, count, port) = (self.size.to_string(), self.count.to_string(), port.to_string());
        let mut arguments = vec!["-F", "-d", device, "-p", &port, "-s", &size, "-n", &count];
        if self.metric == Metric::Latency {
            // Every sample, and not only what it makes of them.
            arguments.push("-U");
        }
        arguments.into_iter().map(str::to_owned).collect()
    }

    /// The key of its samples in `series`.
    #[must_use]
    pub fn key(&self, series: &str) -> Key {
        let (op, series) = (self.op.word().to_owned(), series.to_owned());
        Key { op, x: self.size, series, metric: self.metric }
    }

    /// In words, for a progress bar.
    #[must_use]
    pub fn words(&self, series: &str) -> String {
        format!("{series} {} {}", self.program(), crate::report::bytes(self.size))
    }

    /// What a client printed: microseconds of each operation, or one figure in GB/s.
    ///
    /// # Errors
    /// What it printed, if that is no result.
    pub fn parse(&self, text: &str) -> Result<Vec<f64>, String> {
        let values: Vec<f64> = if self.metric == Metric::Latency {
            // "#, usec", and a line of number and value for each operation.
            let samples = text.lines().skip_while(|line| !line.starts_with("#, ")).skip(1);
            samples.map_while(|line| line.split_once(", ")?.1.trim().parse().ok()).collect()
        } else {
            // "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]"; MB are 2^20 bytes.
            let result = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1);
            let average = result.and_then(|line| line.split_whitespace().nth(3)?.parse::<f64>().ok());
            average.into_iter().map(|mib| mib * 1.048_576e-3).collect()
        };
        if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
            let tail: Vec<&str> = text.lines().rev().take(4).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            return Err(format!(
                "{} of {} bytes gave no figures: {}",
                self.program(),
                self.size,
                tail.join(" | ")
            ));
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(metric: Metric) -> Run {
        Run { op: Op::Write, metric, size: 64, count: 20 }
    }

    #[test]
    fn every_latency_sample_is_read() {
        let text = " local address: LID 0000\n #bytes #iterations t_min[usec]\n#, usec\n1, 5.25\n2, 110.949\n-----\n 64 3\n";
        assert_eq!(run(Metric::Latency).parse(text), Ok(vec![5.25, 110.949]));
    }

    #[test]
    fn the_average_bandwidth_is_read_and_is_in_decimal_units() {
        let text = "\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      100              36.89              1000.00            0.000391\n----\n";
        let values = run(Metric::Throughput).parse(text).unwrap();
        assert!((values[0] - 1.048_576).abs() < 1e-9);
    }

    #[test]
    fn words_instead_of_figures_are_an_error() {
        let said = run(Metric::Latency).parse("Couldn't connect to 10.0.0.1:18515\n").unwrap_err();
        assert!(said.contains("Couldn't connect"), "{said}");
    }
}
