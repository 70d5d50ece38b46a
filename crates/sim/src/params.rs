//! What a run may do, and what its seed makes of that.

use remanence_pmem::PersistenceDomain;
use remanence_wire::Mtu;

use crate::network::Faults;
use crate::rng::{Ppm, Rng};

/// The bounds within which a seed draws its run. The defaults are those of `make test`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Work requests of a run, over all QPs.
    pub ops: u32,
    /// Nodes at most; at least two take part.
    pub nodes_max: u32,
    /// Connections at most.
    pub connections_max: u32,
    /// Longest message, in bytes.
    pub message_max: u32,
    /// Loss at most.
    pub loss_max: Ppm,
    /// Duplication at most.
    pub duplication_max: Ppm,
    /// Corruption at most.
    pub corruption_max: Ppm,
    /// Nodes may lose power and come back.
    pub crashes: bool,
    /// Pairs of nodes may lose sight of each other for a while.
    pub partitions: bool,
    /// Beside RC, use UC and UD.
    pub unreliable: bool,
    /// Lines of the trace that a failed run shows.
    pub trace_lines: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            ops: 160,
            nodes_max: 3,
            connections_max: 4,
            message_max: 6000,
            loss_max: Ppm::percent(10),
            duplication_max: Ppm::percent(5),
            corruption_max: Ppm::percent(5),
            crashes: true,
            partitions: true,
            unreliable: true,
            trace_lines: 200,
        }
    }
}

/// How often each operation is chosen; zero is never. Every seed leaves some out and prefers others, as a mix of
/// everything hides what happens when there is much of one thing (swarm testing).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// SEND, with immediate or invalidate too.
    pub send: u32,
    /// WRITE, with immediate too.
    pub write: u32,
    /// The weight of READ.
    pub read: u32,
    /// CmpSwap and FetchAdd.
    pub atomic: u32,
    /// The weight of ATOMIC WRITE.
    pub atomic_write: u32,
    /// The weight of FLUSH.
    pub flush: u32,
    /// Memory windows: bind, use, invalidate.
    pub window: u32,
}

/// What one seed does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How many nodes the cluster has.
    pub nodes: u32,
    /// How many connections there are between the nodes.
    pub connections: u32,
    /// Whether nodes have IPv6 addresses, and not IPv4 ones.
    pub ipv6: bool,
    /// The path MTU of all QPs.
    pub mtu: Mtu,
    /// The network until it heals.
    pub faults: Faults,
    /// Work requests, over all QPs.
    pub ops: u32,
    /// How often each operation is chosen.
    pub mix: Mix,
    /// The most bytes of one message.
    pub message_max: u32,
    /// WQEs of a send queue.
    pub send_depth: u32,
    /// WQEs of a receive queue.
    pub recv_depth: u32,
    /// Scatter/gather entries that a WQE may have.
    pub sges: u32,
    /// Bytes of inline data that a send WQE may have.
    pub inline: u32,
    /// READs, atomics and flushes outstanding on a QP.
    pub rd_atomic: u8,
    /// Receives come from a shared receive queue.
    pub srq: bool,
    /// Segments of one transmit at most.
    pub segments: usize,
    /// Mean pause of a consumer between postings, in nanoseconds.
    pub pause: u64,
    /// Receives are posted late, so that RNR NAKs happen.
    pub lazy_receiver: bool,
    /// Work requests that ask for no completion.
    pub unsignaled: Ppm,
    /// Work requests with a fence.
    pub fenced: Ppm,
    /// FLUSHes that take time.
    pub flush_pending: Ppm,
    /// How long those take on average, in nanoseconds.
    pub flush_nanos: u64,
    /// Where flushed bytes are safe.
    pub domain: PersistenceDomain,
    /// RNR NAK timer code.
    pub rnr_timer: u8,
    /// All packets leave from one UDP port.
    pub fixed_port: bool,
    /// Beside RC, there are UC and UD QPs.
    pub unreliable: bool,
    /// How many times a node loses its power.
    pub crashes: u32,
    /// How many times the network is partitioned.
    pub partitions: u32,
    /// End-to-end credits are advertised.
    pub credits: bool,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, params: &Params) -> Self {
        let mut rng = Rng::new(seed, 0);
        let rng = &mut rng;
        let nodes = small(rng, 2, params.nodes_max.max(2));
        let mtu = rng.pick(&[Mtu::B256, Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]);
        let calm = rng.one_in(16);
        let upto = |max: Ppm, rng: &mut Rng| {
            if calm || max.0 == 0 || rng.one_in(4) {
                Ppm(0)
            } else {
                Ppm(rng.below(u64::from(max.0) + 1) as u32)
            }
        };
        let faults = Faults {
            loss: upto(params.loss_max, rng),
            duplication: upto(params.duplication_max, rng),
            corruption: upto(params.corruption_max, rng),
            reordering: upto(Ppm::percent(5), rng),
            congestion: upto(Ppm::percent(5), rng),
            delay: rng.pick(&[1_000, 5_000, 20_000]),
            jitter: rng.pick(&[0, 200, 2_000, 20_000]),
            ip_id_visible: rng.one_in(2),
        };
        let lossless = calm || rng.one_in(3);
        let weight = |usual: u32, rng: &mut Rng| if rng.one_in(5) { 0 } else { usual * small(rng, 1, 4) };
        let mut mix = Mix {
            send: weight(4, rng),
            write: weight(4, rng),
            read: weight(3, rng),
            atomic: weight(3, rng),
            atomic_write: weight(2, rng),
            flush: weight(2, rng),
            window: if rng.one_in(2) { 0 } else { 2 },
        };
        if mix.send + mix.write + mix.read + mix.atomic + mix.atomic_write + mix.flush == 0 {
            mix.write = 1;
        }
        // A long message is many packets; with many of them there are fewer messages.
        let message_max = rng.pick(&[64, 600, 2500, params.message_max]).min(params.message_max);
        Self {
            nodes,
            connections: small(rng, 1, params.connections_max.max(1)),
            ipv6: rng.one_in(4),
            mtu,
            faults,
            ops: params.ops / 2 + small(rng, 0, params.ops),
            mix,
            message_max,
            send_depth: rng.pick(&[1, 2, 4, 8, 16, 16]),
            recv_depth: rng.pick(&[1, 2, 4, 8, 16, 16]),
            sges: small(rng, 1, 4),
            inline: rng.pick(&[0, 16, 64, 200]),
            rd_atomic: rng.pick(&[1, 2, 4, 16]),
            srq: rng.one_in(4),
            segments: rng.pick(&[1, 1, 4, 16, 64]),
            pause: rng.pick(&[500, 5_000, 50_000]),
            lazy_receiver: rng.one_in(3),
            unsignaled: Ppm(rng.pick(&[0, 300_000, 900_000])),
            fenced: Ppm(rng.pick(&[0, 50_000, 300_000])),
            flush_pending: Ppm(rng.pick(&[0, 500_000, 1_000_000])),
            flush_nanos: rng.pick(&[1_000, 100_000, 5_000_000]),
            domain: rng.pick(&[
                PersistenceDomain::Adr,
                PersistenceDomain::Adr,
                PersistenceDomain::Eadr,
                PersistenceDomain::PageCache,
            ]),
            rnr_timer: rng.pick(&[1, 5, 12]),
            fixed_port: rng.one_in(2),
            unreliable: params.unreliable && rng.one_in(2),
            crashes: if params.crashes && !lossless && rng.one_in(2) { small(rng, 1, 2) } else { 0 },
            partitions: if params.partitions && !lossless && rng.one_in(2) { small(rng, 1, 3) } else { 0 },
            credits: rng.one_in(2),
        }
    }
}

/// A number from `low` to `high`, both included.
fn small(rng: &mut Rng, low: u32, high: u32) -> u32 {
    u32::try_from(rng.between(u64::from(low), u64::from(high))).expect("between two u32")
}
