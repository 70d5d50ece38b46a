//! The network between simulated nodes.
//!
//! Fault model: each packet is delayed by a base time and an exponential jitter, so that packets overtake each
//! other; some are held back much longer. A packet may be lost, come twice (each copy with its own delay), be
//! marked by a congested switch, or be damaged: bits flipped, its tail cut off, bytes replaced by noise. What the
//! ICRC cannot find is not in the model: damage that it would accept is made a loss, since no receiver could do
//! better. Two nodes may be partitioned for a while: everything between them is lost. Apart from that a packet
//! arrives as it left, at the node that has its address. Packets never outlive [`Faults::lifetime_max`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use remanence_rnic::device::{ROCE_PORT, RxMeta, Transmit};
use remanence_wire::icrc;

use crate::report::counters;
use crate::rng::{Ppm, Rng};

/// What the network does to packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Packets that never arrive.
    pub loss: Ppm,
    /// Packets that come twice.
    pub duplication: Ppm,
    /// Packets that arrive with bytes changed.
    pub corruption: Ppm,
    /// Packets held back for a long time, so that many others overtake them.
    pub reordering: Ppm,
    /// Packets marked "congestion experienced".
    pub congestion: Ppm,
    /// Least delay of a packet, in nanoseconds.
    pub delay: u64,
    /// Mean of what is added, in nanoseconds.
    pub jitter: u64,
    /// Receivers see the IPv4 identification. A UDP socket does not.
    pub ip_id_visible: bool,
}

impl Faults {
    /// A network without faults and with the given delay.
    #[must_use]
    pub const fn none(delay: u64) -> Self {
        Self {
            loss: Ppm(0),
            duplication: Ppm(0),
            corruption: Ppm(0),
            reordering: Ppm(0),
            congestion: Ppm(0),
            delay,
            jitter: 0,
            ip_id_visible: false,
        }
    }

    /// The longest time that a packet can be under way.
    #[must_use]
    pub const fn lifetime_max(&self) -> u64 {
        // The jitter is cut at 20 means; a packet held back gets up to 20 times 20 of them.
        self.delay + 20 * self.jitter + 20 * 20 * self.jitter
    }
}

counters! {
/// What happened to packets.
Traffic {
    /// Packets that nodes sent.
    packets,
    /// Bytes of their UDP payloads.
    bytes,
    /// Packets lost, by chance or by a partition.
    lost,
    /// Packets that came twice.
    duplicated,
    /// Packets that came damaged.
    corrupted,
    /// Packets held back.
    reordered,
    /// Packets marked "congestion experienced".
    marked,
    /// Packets to a node that was down.
    undeliverable,
}
}

/// A packet under way: one UDP payload and what the IP layer says of it.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) meta: RxMeta,
    pub(crate) payload: Vec<u8>,
    pub(crate) damaged: bool,
}

#[derive(Debug)]
pub(crate) struct Network {
    rng: Rng,
    faults: Faults,
    lifetime_max: u64,
    /// Pairs of nodes that cannot reach each other.
    partitions: BTreeMap<(IpAddr, IpAddr), u32>,
    pub(crate) traffic: Traffic,
    /// Buffers of delivered packets.
    spare: Vec<Vec<u8>>,
}

impl Network {
    pub(crate) fn new(rng: Rng, faults: Faults) -> Self {
        Self {
            rng,
            lifetime_max: faults.lifetime_max(),
            faults,
            partitions: BTreeMap::new(),
            traffic: Traffic::default(),
            spare: Vec::new(),
        }
    }

    /// From now on nothing happens to packets but a delay.
    pub(crate) fn heal(&mut self) {
        let Faults { delay, ip_id_visible, .. } = self.faults;
        self.faults = Faults { ip_id_visible, ..Faults::none(delay) };
        self.partitions.clear();
    }

    pub(crate) fn partition(&mut self, a: IpAddr, b: IpAddr) {
        *self.partitions.entry((a.min(b), a.max(b))).or_default() += 1;
    }

    /// Ends one of the partitions between `a` and `b`.
    pub(crate) fn join(&mut self, a: IpAddr, b: IpAddr) {
        if let Some(count) = self.partitions.get_mut(&(a.min(b), a.max(b))) {
            *count -= 1;
            if *count == 0 {
                self.partitions.remove(&(a.min(b), a.max(b)));
            }
        }
    }

    pub(crate) fn is_partitioned(&self, a: IpAddr, b: IpAddr) -> bool {
        self.partitions.contains_key(&(a.min(b), a.max(b)))
    }

    /// How long a packet that was ever sent can be under way.
    pub(crate) const fn lifetime_max(&self) -> u64 {
        self.lifetime_max
    }

    /// Takes the packets of one `poll_transmit`; calls `arrive` with each that will arrive, and after how long.
    pub(crate) fn send(&mut self, tx: &Transmit, buf: &[u8], mut arrive: impl FnMut(u64, Packet)) {
        for (index, payload) in buf[..tx.len].chunks(tx.segment_size.max(1)).enumerate() {
            self.traffic.packets += 1;
            self.traffic.bytes += payload.len() as u64;
            if self.is_partitioned(tx.src, tx.dst) || self.rng.chance(self.faults.loss) {
                self.traffic.lost += 1;
                continue;
            }
            let copies = if self.rng.chance(self.faults.duplication) {
                self.traffic.duplicated += 1;
                2
            } else {
                1
            };
            for _ in 0..copies {
                let packet = self.packet(tx, index, payload);
                let Some(packet) = packet else {
                    self.traffic.lost += 1;
                    continue;
                };
                let delay = self.delay();
                arrive(delay, packet);
            }
        }
    }

    /// Gives a delivered packet's buffer back.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }

    fn delay(&mut self) -> u64 {
        let mut delay = self.faults.delay + self.rng.exponential(self.faults.jitter);
        if self.rng.chance(self.faults.reordering) {
            self.traffic.reordered += 1;
            delay += self.rng.exponential(20 * self.faults.jitter);
        }
        delay
    }

    fn packet(&mut self, tx: &Transmit, index: usize, payload: &[u8]) -> Option<Packet> {
        let ip_id = u16::try_from(index).expect("segments of one send fit 16 bits");
        let mut ecn = tx.tos & 3;
        if ecn != 0 && self.rng.chance(self.faults.congestion) {
            self.traffic.marked += 1;
            ecn = 3;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(payload);
        let visible = (tx.src.is_ipv4() && self.faults.ip_id_visible).then_some(ip_id);
        // A hint, which may be wrong.
        let train_index = if self.rng.one_in(2) { ip_id } else { 0 };
        let damaged = self.rng.chance(self.faults.corruption);
        if damaged {
            self.damage(&mut copy);
            let flow = icrc::Flow::new(tx.src, tx.dst, tx.src_port, ROCE_PORT);
            // `check` wants at least a BTH; a receiver drops what is shorter before it looks.
            if copy.len() >= 16 && icrc::check(&flow, visible, &copy).is_ok() {
                self.recycle(copy);
                return None;
            }
            self.traffic.corrupted += 1;
        }
        Some(Packet {
            meta: RxMeta {
                src: tx.src,
                dst: tx.dst,
                src_port: tx.src_port,
                ip_id: visible,
                train_index,
                ecn,
                hop_limit: tx.hop_limit.saturating_sub(1),
            },
            payload: copy,
            damaged,
        })
    }

    fn damage(&mut self, payload: &mut Vec<u8>) {
        let len = payload.len();
        match self.rng.below(8) {
            0..4 => {
                for _ in 0..=self.rng.below(3) {
                    payload[self.rng.index(len)] ^= 1 << self.rng.below(8);
                }
            }
            // Headers are where damage does most harm.
            4 | 5 => payload[self.rng.index(len.min(32))] ^= 1 << self.rng.below(8),
            6 => payload.truncate(self.rng.index(len)),
            _ => {
                let start = self.rng.index(len);
                let end = start + 1 + self.rng.index(len - start);
                for byte in &mut payload[start..end] {
                    *byte = self.rng.u64() as u8;
                }
            }
        }
    }
}
