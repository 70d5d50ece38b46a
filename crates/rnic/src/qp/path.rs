//! The path of a connected QP: an address vector made ready for every packet.

use std::net::IpAddr;

use remanence_wire::{Qpn, icrc};

use crate::ah::Av;
use crate::device::{ROCE_PORT, RxMeta, SourcePort, Transmit};

#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) tos: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow: icrc::Flow,
    /// The flow of what comes in, kept for the source port that came last.
    rx_flow: icrc::Flow,
    rx_port: u16,
}

/// ECN-capable transport, codepoint 0 (RFC 3168).
const ECT0: u8 = 2;

impl Path {
    pub(crate) fn new(av: &Av, qpn: Qpn, dest: Qpn, source_port: SourcePort, ecn: bool) -> Self {
        let src_port = match source_port {
            SourcePort::Fixed(port) => port,
            SourcePort::PerQp => per_qp_port(av.attr.flow_label, qpn, dest),
        };
        Self {
            src: av.src,
            dst: av.dst,
            src_port,
            tos: av.attr.traffic_class & !3 | if ecn { ECT0 } else { 0 },
            hop_limit: if av.attr.hop_limit == 0 { 64 } else { av.attr.hop_limit },
            flow: icrc::Flow::new(av.src, av.dst, src_port, ROCE_PORT),
            rx_flow: icrc::Flow::new(av.dst, av.src, ROCE_PORT, ROCE_PORT),
            rx_port: ROCE_PORT,
        }
    }

    /// What to tell the link of `len` bytes of packets of `segment_size` bytes.
    pub(crate) const fn transmit(&self, len: usize, segment_size: usize) -> Transmit {
        Transmit {
            src: self.src,
            dst: self.dst,
            src_port: self.src_port,
            tos: self.tos,
            hop_limit: self.hop_limit,
            len,
            segment_size,
            parting: false,
        }
    }

    /// Whether a datagram comes from the peer and to the address that the QP uses.
    #[inline]
    pub(crate) fn matches(&self, rx: &RxMeta) -> bool {
        rx.src == self.dst && rx.dst == self.src
    }

    /// The flow of a datagram that [`matches`](Self::matches).
    #[inline]
    pub(crate) fn rx_flow(&mut self, src_port: u16) -> &icrc::Flow {
        if src_port != self.rx_port {
            self.rx_flow = icrc::Flow::new(self.dst, self.src, src_port, ROCE_PORT);
            self.rx_port = src_port;
        }
        &self.rx_flow
    }
}

/// The source port of a flow: from the flow label as `ibv_flow_label_to_udp_sport` folds it, or from a hash of
/// both QP numbers.
fn per_qp_port(flow_label: u32, qpn: Qpn, dest: Qpn) -> u16 {
    let label = if flow_label != 0 {
        flow_label & 0xf_ffff
    } else {
        // As rdma_calc_flow_label does: the product of the QP numbers, folded.
        let v = u64::from(qpn.value()) * u64::from(dest.value());
        let v = v ^ v >> 20 ^ v >> 40;
        (v & 0xf_ffff) as u32
    };
    let folded = label & 0x3fff ^ (label & 0xf_c000) >> 14;
    folded as u16 | 0xc000
}
