//! The device: its objects, its edges to the network and to time.
//!
//! Methods come in four kinds. Verbs create, change and destroy objects (in the module of each object). Postings
//! hand in work (`post_*`). `handle_*` tell the device what happened: a datagram came, time passed, a flush
//! ended; they take the time even where nothing in the method needs it today. `poll_*` ask what it wants: packets
//! to send, the next deadline, completions, events. After a `handle_*`, a posting or a `modify_qp`, poll for
//! packets and deadlines again.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_wire::{Gid, Mtu, Qpn};

use crate::ah::Ah;
use crate::async_event::AsyncEvent;
use crate::cq::{Cq, CqHandle};
use crate::gsi::Gsi;
use crate::idents::Idents;
use crate::keys::Keys;
use crate::network::Agenda;
use crate::pd::Pd;
use crate::qp::{Parting, QpTable, Silence};
use crate::slab::Slab;
use crate::srq::Srq;
use crate::stats::Stats;

/// The longest message, 2^31 bytes (IBA Vol 1, 9.4.1).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// [`Config::ack_ride`] on a machine where a system call takes a microsecond: several times what a
/// consumer needs to see a message and to post its answer, with one switch of threads between.
pub const ACK_RIDE: Duration = Duration::from_micros(50);

pub use remanence_wire::ROCE_PORT;

/// Which UDP source port packets leave with. The ICRC covers it, so this must be the truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourcePort {
    /// Always this one: plain UDP sockets.
    Fixed(u16),
    /// One of 0xC000 to 0xFFFF for each QP, so that the network can spread flows (Annex A17).
    PerQp,
}

/// What a device is and how large its objects may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The GID table: our own addresses. A place may be empty (all zeros): [`Device::set_gid`].
    pub gids: Vec<Gid>,
    /// Numbers for QPs. QP 0 and QP 1 are special and never part of it.
    pub qpns: Range<u32>,
    /// The largest path MTU that the link carries.
    pub mtu: Mtu,
    /// UDP source port.
    pub source_port: SourcePort,
    /// Compute and check ICRCs. Off only where no packet can be damaged on the way and all peers have it off:
    /// shared memory. The field is then there and zero. (MADs of QP 1 carry one always.)
    pub icrc: bool,
    /// Mark packets as ECN-capable, so that congestion is told before it is loss.
    pub ecn: bool,
    /// Advertise receive WQEs as end-to-end credits.
    pub credits: bool,
    /// How long the ACK of a plain WRITE may wait for a WRITE of ours to ride with, where the habit of the QP says that one will follow at once; zero: not
    /// at all. Far less than the local CA ACK delay that the device declares.
    pub ack_ride: Duration,
    /// Packets in flight on one QP at most, and at first.
    pub window: WindowLimits,
    /// Protection domains that may exist at a time.
    pub max_pd: u32,
    /// Memory regions that may exist at a time.
    pub max_mr: u32,
    /// Memory windows that may exist at a time.
    pub max_mw: u32,
    /// Address handles that may exist at a time.
    pub max_ah: u32,
    /// Completion queues that may exist at a time.
    pub max_cq: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Shared receive queues that may exist at a time.
    pub max_srq: u32,
    /// WQEs of an SRQ.
    pub max_srq_wr: u32,
    /// Queue pairs that may exist at a time.
    pub max_qp: u32,
    /// WQEs of a send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a WQE.
    pub max_sge: u32,
    /// Bytes of inline data of a WQE.
    pub max_inline: u32,
    /// Multicast groups that QPs are attached to.
    pub max_mcast_groups: u32,
    /// QPs attached to a multicast group.
    pub max_mcast_qps: u32,
    /// Outstanding READs, atomics and flushes of a QP, each way.
    pub max_rd_atomic: u8,
    /// Everything random comes from this.
    pub seed: u64,
}

/// Limits of the congestion window of a QP, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowLimits {
    /// Before anything is known of the path.
    pub initial: u32,
    /// What the window never exceeds, however well the path does.
    pub max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gids: Vec::new(),
            qpns: 0x11..0x1_0000,
            mtu: Mtu::B4096,
            source_port: SourcePort::PerQp,
            icrc: true,
            ecn: true,
            credits: true,
            ack_ride: ACK_RIDE,
            window: WindowLimits { initial: 32, max: 512 },
            max_pd: 1 << 14,
            max_mr: 1 << 16,
            max_mw: 1 << 14,
            max_ah: 1 << 14,
            max_cq: 1 << 14,
            max_cqe: 1 << 22,
            max_srq: 1 << 12,
            max_srq_wr: 1 << 16,
            max_qp: 1 << 15,
            max_qp_wr: 1 << 15,
            max_sge: 32,
            max_inline: 1024,
            max_mcast_groups: 1 << 10,
            max_mcast_qps: 1 << 8,
            max_rd_atomic: 128,
            seed: 0,
        }
    }
}

/// What the network layers say of a received datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxMeta {
    /// The IP address that the datagram came from.
    pub src: IpAddr,
    /// Destination address: one of ours.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// IPv4 identification, where the link can see it; else the engine finds it out from the ICRC.
    pub ip_id: Option<u16>,
    /// Position in the train of equal datagrams that arrived together: added to the identification of the first.
    pub train_index: u16,
    /// The two ECN bits.
    pub ecn: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl RxMeta {
    /// Whether the packet met congestion (RFC 3168, CE).
    #[must_use]
    pub const fn congestion_experienced(&self) -> bool {
        self.ecn & 3 == 3
    }
}

/// Packets to send: `len` bytes of the buffer are one or more UDP payloads of `segment_size` bytes, the last of
/// which may be shorter. The UDP destination port is [`ROCE_PORT`]. On IPv4, segment `i` must leave with
/// identification `i` (or as many more as [`Device::set_ident`] said) and DF set, which its ICRC covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The IP address to send from.
    pub src: IpAddr,
    /// The IP address to send to.
    pub dst: IpAddr,
    /// UDP source port, as [`Config::source_port`] decides.
    pub src_port: u16,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Bytes written to the buffer.
    pub len: usize,
    /// Bytes of each UDP payload but the last.
    pub segment_size: usize,
    /// The last acknowledgement of a QP, said again because nobody will answer should it be lost: to be sent in a surer
    /// way, too, where the host has one.
    pub parting: bool,
}

/// All of a device but its QPs, so that a QP can be worked on beside it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) pds: Slab<Pd>,
    pub(crate) keys: Keys,
    pub(crate) ahs: Slab<Ah>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) cq_events: VecDeque<CqHandle>,
    pub(crate) async_events: VecDeque<AsyncEvent>,
    pub(crate) agenda: Agenda,
    /// Watched peers that do not answer.
    pub(crate) silences: VecDeque<(Qpn, Silence)>,
    /// Last acknowledgements of QPs that are gone.
    pub(crate) partings: VecDeque<Parting>,
    /// State changes of QPs, see [`Device::qp_changes`].
    pub(crate) qp_changes: u64,
    /// Of the first packet that is sent next.
    pub(crate) ident: u16,
    pub(crate) idents: Idents,
    rng: ChaCha8Rng,
}

impl Shared {
    pub(crate) fn gid(&self, index: u8) -> Option<Gid> {
        self.config.gids.get(usize::from(index)).copied().filter(|&gid| gid != Gid::default())
    }

    pub(crate) fn random(&mut self) -> u32 {
        self.rng.next_u32()
    }
}

/// A software RNIC.
#[derive(Debug)]
pub struct Device {
    pub(crate) shared: Shared,
    pub(crate) qps: QpTable,
    pub(crate) gsi: Gsi,
    /// Multicast groups and the UD QPs that listen to them.
    pub(crate) groups: Vec<(Gid, Qpn)>,
    /// Groups that nobody listens to any more.
    pub(crate) left: Vec<Gid>,
}

impl Device {
    /// A device without objects.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let shared = Shared {
            stats: Stats::default(),
            pds: Slab::new(config.max_pd),
            keys: Keys::new(config.max_mr.saturating_add(config.max_mw)),
            ahs: Slab::new(config.max_ah),
            cqs: Slab::new(config.max_cq),
            srqs: Slab::new(config.max_srq),
            cq_events: VecDeque::new(),
            async_events: VecDeque::new(),
            agenda: Agenda::default(),
            silences: VecDeque::new(),
            partings: VecDeque::new(),
            qp_changes: 0,
            ident: 0,
            idents: Idents::default(),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            config,
        };
        let qps = QpTable::new(shared.config.qpns.clone(), shared.config.max_qp);
        Self { shared, qps, gsi: Gsi::default(), groups: Vec::new(), left: Vec::new() }
    }

    /// What the device was created with (and the GIDs set since).
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Sets or clears an entry of the GID table. QPs and AHs that use it keep their addresses.
    pub fn set_gid(&mut self, index: u8, gid: Option<Gid>) {
        let gids = &mut self.shared.config.gids;
        if gids.len() <= usize::from(index) {
            gids.resize(usize::from(index) + 1, Gid::default());
        }
        gids[usize::from(index)] = gid.unwrap_or_default();
    }

    /// The link carries packets of another size from now on: path MTUs that QPs are given are held against it, and it is that
    /// of QPs made from now on. Those that there are keep theirs, as they agreed on it with their peers; if the link now carries
    /// less, their packets are lost, and their retries end in an error.
    pub fn set_mtu(&mut self, mtu: Mtu) {
        self.shared.config.mtu = mtu;
    }

    /// What the device has counted since it was created.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.shared.stats
    }
}
