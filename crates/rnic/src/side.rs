//! One of two engines that stand beside each other, without sockets and threads: for models, benchmarks and examples.
//!
//! A [`Side`] is a device with one connected RC QP over any [`Memory`], and one memory region, all of it. Who holds two of
//! them carries the packets: [`Side::transmit`] takes a batch out of one, [`Side::receive`] hands it to the other.

use std::net::IpAddr;

use remanence_wire::{Gid, Mtu, Psn, Qpn};

use crate::memory::{FlushId, FlushOutcome, Memory, Placement, RegionId, Span};
use crate::wr::Sge;
use crate::{
    Access, AhAttr, Config, CqHandle, Device, Instant, Mr, MrAttr, PlacementSupport, QpAttr, QpCaps, QpInit,
    QpState, QpType, RemoteAddr, RxMeta, Transmit,
};

/// Segments of a batch at most.
const SEGMENTS: usize = 64;

/// A device, its memory, and its QP.
pub struct Side<M> {
    /// The engine, which [`Side::transmit`] and [`Side::receive`] drive.
    pub device: Device,
    /// What is registered.
    pub memory: M,
    /// Where it is.
    pub ip: IpAddr,
    /// Of the QP, both ways.
    pub cq: CqHandle,
    /// The number of the side's one QP.
    pub qpn: Qpn,
    /// All of the memory.
    pub mr: Mr,
}

impl<M: Memory> Side<M> {
    /// The device at 10.0.0.`last`, over `len` bytes of memory with these rights; `depth` work requests may be posted.
    ///
    /// # Panics
    /// The memory cannot have these rights, or the numbers are none that a device takes.
    #[must_use]
    pub fn new(last: u8, memory: M, len: u64, access: Access, depth: u32) -> Self {
        let ip = IpAddr::from([10, 0, 0, last]);
        let mut device = Device::new(Config { gids: vec![Gid::from_ip(ip)], ..Config::default() });
        let pd = device.alloc_pd().expect("a PD");
        let cq = device.create_cq(16 * depth).expect("a CQ");
        let span = Span { region: RegionId(0), offset: 0, len };
        let mr = device.reg_mr(pd, &MrAttr { span, iova: 0, access }, &memory).expect("an MR");
        let caps =
            QpCaps { max_send_wr: depth, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
        let init =
            QpInit { pd, ty: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        let qpn = device.create_qp(&init).expect("a QP");
        Self { device, memory, ip, cq, qpn, mr }
    }

    /// Connects two of them, with these rights for each other's requests.
    ///
    /// # Panics
    /// One of them is connected already.
    pub fn connect<N: Memory>(&mut self, other: &mut Side<N>, mtu: Mtu, access: Access, now: Instant) {
        let ends = [(self.ip, self.qpn), (other.ip, other.qpn)];
        for (device, qpn, peer) in
            [(&mut self.device, self.qpn, ends[1]), (&mut other.device, other.qpn, ends[0])]
        {
            for attr in attrs(peer, mtu, access) {
                device.modify_qp(now, qpn, &attr).expect("a transition");
            }
        }
    }

    /// A place of its memory, as the other side names it.
    #[must_use]
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: offset, rkey: self.mr.rkey }
    }

    /// A place of its memory, as its own work requests name it.
    #[must_use]
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: offset, len, lkey: self.mr.lkey }
    }

    /// The next packets that it has to send, if any: in `buf`.
    pub fn transmit(&mut self, now: Instant, buf: &mut [u8]) -> Option<Transmit> {
        self.device.poll_transmit(now, buf, SEGMENTS, &mut self.memory)
    }

    /// Takes packets of the other one; returns how many.
    pub fn receive(&mut self, now: Instant, sent: &Transmit, buf: &[u8]) -> u64 {
        let mut packets = 0;
        for bytes in buf[..sent.len].chunks(sent.segment_size) {
            let rx = RxMeta {
                src: sent.src,
                dst: sent.dst,
                src_port: sent.src_port,
                ip_id: None,
                train_index: packets as u16,
                ecn: 2,
                hop_limit: 64,
            };
            self.device.handle_datagram(now, &rx, bytes, &mut self.memory);
            packets += 1;
        }
        packets
    }
}

fn attrs((ip, qpn): (IpAddr, Qpn), mtu: Mtu, access: Access) -> [QpAttr; 3] {
    let psn = Some(Psn::new(7));
    [
        QpAttr { state: Some(QpState::Init), access: Some(access), ..QpAttr::default() },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AhAttr::new(Gid::from_ip(ip))),
            path_mtu: Some(mtu),
            dest_qpn: Some(qpn),
            rq_psn: psn,
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: psn,
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..QpAttr::default()
        },
    ]
}

/// Memory that is a slice, and nothing more: every region is all of it, stores are visible when they are made, and nothing
/// is durable.
pub struct Plain(pub Vec<u8>);

impl Plain {
    fn word(&mut self, offset: u64) -> &mut [u8; 8] {
        self.0[offset as usize..].first_chunk_mut().expect("a word of the memory")
    }
}

impl Memory for Plain {
    fn read(&self, _: RegionId, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
    }

    fn write(&mut self, _: RegionId, offset: u64, bytes: &[u8]) {
        self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn atomic_write(&mut self, _: RegionId, offset: u64, bytes: [u8; 8]) {
        *self.word(offset) = bytes;
    }

    fn compare_and_swap(&mut self, _: RegionId, offset: u64, compare: u64, swap: u64) -> u64 {
        let word = self.word(offset);
        let found = u64::from_le_bytes(*word);
        if found == compare {
            *word = swap.to_le_bytes();
        }
        found
    }

    fn fetch_add(&mut self, _: RegionId, offset: u64, add: u64) -> u64 {
        let word = self.word(offset);
        let found = u64::from_le_bytes(*word);
        *word = found.wrapping_add(add).to_le_bytes();
        found
    }

    fn placement_support(&self, _: RegionId) -> PlacementSupport {
        PlacementSupport::GLOBAL_VISIBILITY
    }

    fn flush(&mut self, _: FlushId, _: Span, _: Placement) -> FlushOutcome {
        FlushOutcome::Done
    }
}
