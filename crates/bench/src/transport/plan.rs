//! What is measured, in which order, and what is asked of it.

use super::key;
use super::ours::SIZE_MAX;
use super::protocol::{Carrier, Test};
use crate::netns::{NetworkPath, Veth};
use crate::peers::{PeerProgram, Run};
use crate::report::{Bar, Sense};
use crate::samples::{Key, Metric, Samples};
use crate::stats::{Estimate, Statistic};

/// A carrier at a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Path {
    BareUdpLo,
    UdpLo,
    BareUdpVeth,
    UdpVeth,
    BareXdpVeth,
    XdpVeth,
    Shm,
    /// Of `rem bench verbs`, to be compared with the next.
    UdpServedLo,
    CAbiLo,
}

impl Path {
    pub(super) const ALL: [Self; 7] = [
        Self::BareUdpLo,
        Self::UdpLo,
        Self::BareUdpVeth,
        Self::UdpVeth,
        Self::BareXdpVeth,
        Self::XdpVeth,
        Self::Shm,
    ];

    /// What the user calls the path; the bare one goes with ours.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BareUdpLo | Self::UdpLo | Self::UdpServedLo | Self::CAbiLo => "udp-lo",
            Self::BareUdpVeth | Self::UdpVeth => "udp-veth",
            Self::BareXdpVeth | Self::XdpVeth => "xdp-veth",
            Self::Shm => "shm",
        }
    }

    pub(crate) const fn series(self) -> &'static str {
        match self {
            Self::BareUdpLo => "bare/udp-lo",
            Self::UdpLo => "remanence/udp-lo",
            Self::BareUdpVeth => "bare/udp-veth",
            Self::UdpVeth => "remanence/udp-veth",
            Self::BareXdpVeth => "bare/xdp-veth",
            Self::XdpVeth => "remanence/xdp-veth",
            Self::Shm => "remanence/shm",
            Self::UdpServedLo => "rust-api/udp-lo",
            Self::CAbiLo => "c-abi/udp-lo",
        }
    }

    pub(super) const fn carrier(self) -> Carrier {
        match self {
            Self::BareUdpLo | Self::BareUdpVeth => Carrier::BareUdp,
            Self::UdpLo | Self::UdpVeth => Carrier::Udp,
            Self::BareXdpVeth => Carrier::BareXdp,
            Self::XdpVeth => Carrier::Xdp,
            Self::Shm => Carrier::Shm,
            Self::UdpServedLo => Carrier::UdpServed,
            Self::CAbiLo => Carrier::CAbi,
        }
    }

    /// Makes the place where it runs.
    pub(super) fn place(self) -> Result<NetworkPath, String> {
        match self {
            Self::BareUdpLo | Self::UdpLo | Self::UdpServedLo | Self::CAbiLo | Self::Shm => {
                Ok(NetworkPath::Loopback)
            }
            Self::BareUdpVeth | Self::UdpVeth => Veth::new(9000).map(NetworkPath::Veth),
            // An AF_XDP frame is a page at most.
            Self::BareXdpVeth | Self::XdpVeth => Veth::new(3000).map(NetworkPath::Veth),
        }
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) path: Path,
    pub(super) test: Test,
    pub(super) size: u64,
}

impl Step {
    pub(super) fn key(&self) -> Key {
        key(self.path, self.test, self.size)
    }

    /// A run's values, in the unit of its metric: bursts are one pair of operations and nanoseconds.
    pub(super) fn figures(&self, found: &[u64]) -> Vec<f64> {
        if !self.test.is_burst() {
            return found.iter().map(|nanos| *nanos as f64 / 1e3).collect();
        }
        let [operations, nanos] = found else { return Vec::new() };
        let per_nano = *operations as f64 / (*nanos).max(1) as f64;
        vec![per_nano * if self.key().metric == Metric::Rate { 1e3 } else { self.size as f64 }]
    }

    /// Whether it is measured twice in each block: a latency, and a throughput.
    pub(super) fn is_control(&self) -> bool {
        let carrier = matches!(self.path.carrier(), Carrier::Udp | Carrier::Xdp | Carrier::Shm);
        carrier && matches!((self.test, self.size), (Test::Write, 64) | (Test::WriteStream, 65_536))
    }

    /// How many operations a run was, of which it tells.
    pub(super) fn operations(&self, values: &[u64]) -> u64 {
        match values {
            [operations, _] if self.test.is_burst() => *operations,
            _ => values.len() as u64,
        }
    }

    pub(super) fn words(&self) -> String {
        format!("{} {} {}", self.path.series(), self.test.op(), crate::report::bytes(self.size))
    }
}

/// A burst of one series at one point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Of a pair of agents.
    Ours(Step),
    /// Of memcpy, of so many bytes at a time.
    Memcpy(u64),
    /// Of two engines without a link, which write so many bytes at a time.
    Engine(u64),
    /// Of a peer.
    Peer(Run),
}

impl Work {
    pub(super) fn words(&self) -> String {
        match self {
            Self::Ours(step) => step.words(),
            Self::Memcpy(size) => format!("memcpy {}", crate::report::bytes(*size)),
            Self::Engine(size) => format!("{ENGINE} write {}", crate::report::bytes(*size)),
            Self::Peer(run) => run.words(),
        }
    }
}

/// All of a round, in groups that stay together: ours, and behind it what bounds it and what it is compared with.
pub(super) fn work(wanted: &[String]) -> Vec<Vec<Work>> {
    // Once a block is enough.
    let is_bare = |path: &Path| matches!(path.carrier(), Carrier::BareUdp | Carrier::BareXdp);
    let first_bare = paths(wanted).into_iter().find(is_bare);
    let group = |step: Step| {
        let mut work = vec![Work::Ours(step)];
        if (step.path, step.test) == (Path::Shm, Test::WriteStream) {
            work.push(Work::Memcpy(step.size));
        }
        if (Some(step.path), step.test, step.size) == (first_bare, Test::Ping, 64) {
            work.push(Work::Engine(step.size));
        }
        let beside = |(test, run): &(Test, Run)| (*test, run.size) == (step.test, step.size);
        work.extend(peers(step.path).into_iter().filter(beside).map(|(_, run)| Work::Peer(run)));
        work
    };
    steps(wanted).into_iter().map(group).collect()
}

/// Those that are asked for.
pub(super) fn paths(wanted: &[String]) -> Vec<Path> {
    let asked = |path: &Path| wanted.is_empty() || wanted.iter().any(|name| name == path.name());
    Path::ALL.into_iter().filter(asked).collect()
}

const SIZES: [u64; 5] = [8, 64, 4 << 10, 64 << 10, SIZE_MAX];

/// All of ours and what is bare, grouped so that what is compared follows each other.
fn steps(wanted: &[String]) -> Vec<Step> {
    let paths = paths(wanted);
    let mut steps = Vec::new();
    for size in SIZES {
        for &path in &paths {
            let mut add = |test| steps.push(Step { path, test, size });
            match path.carrier() {
                // A bare datagram ends where a UDP payload or an AF_XDP frame does.
                Carrier::BareUdp | Carrier::BareXdp if size == 8 => {
                    [Test::Ping, Test::Rate].into_iter().for_each(&mut add);
                }
                Carrier::BareUdp if size <= 4 << 10 => add(Test::Ping),
                Carrier::BareUdp if size == 64 << 10 => {
                    [Test::Stream, Test::Framed].into_iter().for_each(&mut add)
                }
                Carrier::BareXdp if size <= 64 => add(Test::Ping),
                Carrier::BareUdp | Carrier::BareXdp | Carrier::UdpServed | Carrier::CAbi => {}
                Carrier::Udp | Carrier::Xdp | Carrier::Shm => {
                    [Test::Write, Test::Read, Test::Send].into_iter().for_each(&mut add);
                    match size {
                        8 => [Test::CompareSwap, Test::FetchAdd, Test::AtomicWrite, Test::WriteRate]
                            .into_iter()
                            .for_each(&mut add),
                        64 => [Test::Flush, Test::FlushPersistent, Test::PingPong]
                            .into_iter()
                            .for_each(&mut add),
                        _ => [Test::WriteStream, Test::ReadStream, Test::SendStream]
                            .into_iter()
                            .for_each(&mut add),
                    }
                }
            }
        }
    }
    steps
}

const UCX_SHM: PeerProgram = PeerProgram::Ucx("posix,cma");
const UCX_TCP: PeerProgram = PeerProgram::Ucx("tcp");

/// The median and the mean of a peer's half round trips of 64 bytes.
const fn put_lat(program: PeerProgram) -> Run {
    Run { program, test: "ucp_put_lat", size: 64, percentile: 50 }
}

const fn put_bw(program: PeerProgram, size: u64) -> Run {
    Run { program, test: "ucp_put_bw", size, percentile: 50 }
}

/// Which peers are run, over sockets and over shared memory alike, and behind which test of ours.
fn peers(path: Path) -> Vec<(Test, Run)> {
    let (ucx, fabrics) = match path {
        Path::UdpLo => (UCX_TCP, &[("tcp", "msg"), ("udp;ofi_rxd", "rdm")][..]),
        Path::Shm => (UCX_SHM, &[("shm", "rdm")][..]),
        _ => return Vec::new(),
    };
    let lat = put_lat(ucx);
    let mut list = vec![
        (Test::PingPong, lat),
        (Test::PingPong, Run { percentile: 99, ..lat }),
        (Test::PingPong, Run { test: "tag_lat", ..lat }),
        (Test::WriteStream, put_bw(ucx, 64 << 10)),
        (Test::WriteStream, put_bw(ucx, 1 << 20)),
    ];
    for (provider, endpoint) in fabrics {
        let run = Run { program: PeerProgram::Fabric(provider, endpoint), test: "pingpong", ..lat };
        list.extend([(Test::PingPong, run), (Test::WriteStream, Run { size: 64 << 10, ..run })]);
    }
    list
}

/// The key of the memcpy that streams in shared memory are held against.
pub(super) fn memcpy_key(size: u64) -> Key {
    Key { op: "write".into(), x: size, series: "memcpy".into(), metric: Metric::Throughput }
}

/// Two engines in memory, without a link.
const ENGINE: &str = "engine alone";

/// The key of what the engines cost by themselves, which is a part of each round trip.
pub(super) fn engine_key(size: u64) -> Key {
    Key { op: "write".into(), x: size, series: ENGINE.into(), metric: Metric::Latency }
}

/// What is asked of the paths that are measured.
pub(super) fn bars(samples: &Samples, wanted: &[String]) -> Vec<Bar> {
    use Path::{BareUdpLo, BareUdpVeth, BareXdpVeth, Shm, UdpLo, UdpVeth, XdpVeth};
    let (chosen, mut bars) = (paths(wanted), Vec::new());
    let mut ask = |of: &[Path], name: &str, found: Option<Estimate>, sense, limit| {
        if of.iter().all(|path| chosen.contains(path)) {
            bars.push(Bar::new(name, found, sense, limit));
        }
    };
    let trip = ([Test::Write, Test::Ping], 64, Sense::AtMost);
    let stream = ([Test::WriteStream, Test::Stream], 64 << 10, Sense::AtLeast);
    // What is between this and 1.0 is ours; what is between the one above and this is RoCEv2's.
    let framed = ([Test::WriteStream, Test::Framed], 64 << 10, Sense::AtLeast);
    for (name, paths, ([ours, bare], size, sense), limit) in [
        ("UDP loopback, 64 B WRITE / bare round trip", [UdpLo, BareUdpLo], trip, 1.25),
        ("UDP veth, 64 B WRITE / bare round trip", [UdpVeth, BareUdpVeth], trip, 1.25),
        ("AF_XDP veth, 64 B WRITE / bare round trip", [XdpVeth, BareXdpVeth], trip, 1.3),
        ("AF_XDP veth, 64 B WRITE / bare UDP veth round trip", [XdpVeth, BareUdpVeth], trip, 1.0),
        ("UDP loopback, 64 KiB WRITE stream / bare stream", [UdpLo, BareUdpLo], stream, 0.6),
        ("UDP veth, 64 KiB WRITE stream / bare stream", [UdpVeth, BareUdpVeth], stream, 0.6),
        ("UDP loopback, 64 KiB WRITE stream / bare packets framed", [UdpLo, BareUdpLo], framed, 0.7),
        ("UDP veth, 64 KiB WRITE stream / bare packets framed", [UdpVeth, BareUdpVeth], framed, 0.7),
    ] {
        let found = samples.ratio(&key(paths[0], ours, size), &key(paths[1], bare, size));
        ask(&paths, name, found, sense, limit);
    }
    // What is missed of the bars of round trips although these hold is no work of the engine: it is caches and hand-overs.
    for (name, bare, limit) in [
        ("the engine alone, 64 B WRITE / bare UDP loopback round trip", BareUdpLo, 0.25),
        ("the engine alone, 64 B WRITE / bare UDP veth round trip", BareUdpVeth, 0.25),
        ("the engine alone, 64 B WRITE / bare AF_XDP veth round trip", BareXdpVeth, 0.3),
    ] {
        let found = samples.ratio(&engine_key(64), &key(bare, Test::Ping, 64));
        ask(&[bare], name, found, Sense::AtMost, limit);
    }
    let ucx = put_bw(UCX_TCP, 64 << 10).throughput_key();
    let found = samples.ratio(&key(UdpLo, Test::WriteStream, 64 << 10), &ucx);
    ask(&[UdpLo], "UDP loopback, 64 KiB WRITE stream / UCX tcp put", found, Sense::AtLeast, 3.0);
    let found = samples.level(&key(UdpLo, Test::WriteRate, 8));
    ask(&[UdpLo], "UDP loopback, 8 B WRITEs posted one by one, M/s", found, Sense::AtLeast, 1.0);
    // Not in millions a second: a frame takes the kernel 1 to 2.5 us from one end of a veth to the other, all of it on the
    // sender's core, so that the path itself carries 0.4 to 1 M/s.
    let found = samples.ratio(&key(XdpVeth, Test::WriteRate, 8), &key(BareXdpVeth, Test::Rate, 8));
    let name = "AF_XDP veth, 8 B WRITEs posted one by one / bare frames";
    ask(&[XdpVeth], name, found, Sense::AtLeast, 0.5);
    for (name, path, program, limit) in [
        ("UDP loopback, 64 B ping-pong / UCX tcp put_lat", UdpLo, UCX_TCP, 1.0),
        ("shared memory, 64 B ping-pong / UCX posix put_lat", Shm, UCX_SHM, 2.0),
    ] {
        let (ours, theirs) = (key(path, Test::PingPong, 64), put_lat(program));
        let p50 = samples.ratio(&ours, &theirs.percentile_key());
        ask(&[path], &format!("{name}, p50"), p50, Sense::AtMost, limit);
        let mean = samples.ratio_of(Statistic::Mean, &ours, &theirs.mean_key());
        ask(&[path], &format!("{name}, mean"), mean, Sense::AtMost, limit);
    }
    let found = samples.ratio(&key(Shm, Test::WriteStream, 1 << 20), &memcpy_key(1 << 20));
    ask(&[Shm], "shared memory, 1 MiB WRITE stream / memcpy", found, Sense::AtLeast, 0.8);
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Figures;

    #[test]
    fn every_bar_is_measured_by_some_step_or_peer() {
        let mut samples = Samples::default();
        let near = crate::machine::State::Near;
        for work in work(&[]).into_iter().flatten() {
            let values = match work {
                Work::Ours(step) => vec![(step.key(), 1.0)],
                Work::Memcpy(size) => vec![(memcpy_key(size), 1.0)],
                Work::Engine(size) => vec![(engine_key(size), 1.0)],
                Work::Peer(run) => {
                    run.values(&Figures { percentile_us: Some(1.0), mean_us: 1.0, gbytes_s: 1.0 })
                }
            };
            for (key, value) in values {
                samples.add(&key, near, near, [value]);
            }
        }
        for bar in bars(&samples, &[]) {
            assert!(bar.value.is_some(), "{} has no samples", bar.name);
        }
    }

    #[test]
    fn a_path_that_is_measured_alone_has_the_engine_beside_it() {
        for (path, times) in [("udp-lo", 1), ("xdp-veth", 1), ("shm", 0)] {
            let all = work(&[path.to_owned()]);
            let engines = all.iter().flatten().filter(|work| matches!(work, Work::Engine(_)));
            assert_eq!(engines.count(), times, "{path}");
        }
    }

    #[test]
    fn what_is_compared_stands_together() {
        let all = work(&[]);
        let behind = |ours: &str, other: &str| {
            // An operation has a latency and a stream.
            let groups = all.iter().filter(|group| group[0].words() == ours);
            let words: Vec<String> = groups.flat_map(|group| &group[1..]).map(Work::words).collect();
            assert!(words.iter().any(|words| words == other), "no {other} behind {ours}: {words:?}");
        };
        behind("remanence/shm write 1M", "memcpy 1M");
        behind("bare/udp-lo ping 64", "engine alone write 64");
        behind("remanence/udp-lo ping-pong 64", "ucx/tcp ucp_put_lat 64");
        behind("remanence/udp-lo ping-pong 64", "libfabric/udp;ofi_rxd pingpong 64");
        behind("remanence/shm ping-pong 64", "ucx/posix,cma ucp_put_lat 64");
        behind("remanence/shm ping-pong 64", "libfabric/shm pingpong 64");
    }
}
