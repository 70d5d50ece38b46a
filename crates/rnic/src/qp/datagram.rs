//! UD: datagrams out and in.
//!
//! Read first: IBA Vol 1, 9.8.3 (unreliable datagram), 10.2.5 (Q_Keys), 11.4.1 (the GRH area), Annex A17.

use std::net::IpAddr;

use remanence_wire::packet::{Headers, Packet, Repr, packet_len};
use remanence_wire::{Opcode, Qkey, bth, deth, imm_dt, ip, udp};

use super::path::Path;
use super::{Qp, QpState, check_icrc, check_pkey};
use crate::device::{ROCE_PORT, RxMeta, Shared, Transmit};
use crate::memory::Memory;
use crate::stats::DropReason;
use crate::transmit::Batch;
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wr::{SendFlags, SendOp};

/// Bytes in front of the data of every received datagram.
pub(crate) const GRH_LEN: usize = 40;

/// With this bit a Q_Key may only be sent by the privileged: the QP's own is sent instead (10.2.5).
const CONTROLLED_QKEY: u32 = 0x8000_0000;

impl Qp {
    /// Sends datagrams as long as they go to the same destination. Each is complete when it has left.
    pub(crate) fn transmit_datagrams(
        &mut self,
        shared: &mut Shared,
        batch: &mut Batch<'_>,
        mem: &impl Memory,
    ) -> Option<Transmit> {
        let mut to: Option<(u32, Path)> = None;
        while self.state == QpState::Rts && self.sq.len() != 0 {
            let at = self.sq.head;
            let wqe = *self.sq.get(at);
            let dest = wqe.ud.expect("checked when it was posted");
            if to.as_ref().is_none_or(|(ah, _)| *ah != dest.ah.0) {
                let av = shared.ahs.get(dest.ah.0).filter(|ah| ah.pd == self.init.pd).map(|ah| ah.av);
                if !batch.is_empty() {
                    self.wants_tx = true;
                    break;
                }
                let Some(av) = av else {
                    self.fail_head(shared, WcStatus::LocQpOpErr);
                    break;
                };
                let config = &shared.config;
                to = Some((dest.ah.0, Path::new(&av, self.qpn, dest.qpn, config.source_port, config.ecn)));
            }
            let (_, path) = to.as_ref().expect("resolved above");
            let (opcode, imm) = match wqe.op {
                SendOp::SendImm(imm) => (Opcode::UdSendOnlyImm, Some(imm)),
                _ => (Opcode::UdSendOnly, None),
            };
            let len = wqe.len as usize;
            if !batch.admits(packet_len(opcode.info().header_len.into(), len)) {
                self.wants_tx = true;
                break;
            }
            let qkey = if dest.qkey.0 & CONTROLLED_QKEY != 0 {
                self.attr.qkey.unwrap_or_default()
            } else {
                dest.qkey
            };
            let deth = deth::Repr { qkey, src_qp: self.qpn };
            let headers = match imm {
                Some(imm) => Headers::DethImm(deth, imm_dt::Repr { imm }),
                None => Headers::Deth(deth),
            };
            let bth = bth::Repr {
                solicited: wqe.flags.contains(SendFlags::SOLICITED),
                ..bth::Repr::new(opcode, dest.qpn, self.requester.psn)
            };
            let fill = |buf: &mut [u8]| self.gather(shared, at, 0, buf, mem);
            if batch.push(&path.flow, &Repr { bth, headers }, len, fill).is_err() {
                self.fail_head(shared, WcStatus::LocProtErr);
                break;
            }
            let next = self.requester.psn.next();
            self.complete_head(shared, WcStatus::Success);
            self.requester.reset(next, self.sq.head);
        }
        self.settle_cq(shared);
        if batch.is_empty() {
            return None;
        }
        let (_, path) = to.expect("a batch has a destination");
        Some(path.transmit(batch.len(), batch.segment()))
    }

    /// Takes a datagram. What is wrong with it is nobody's business but ours (9.8.3: silently dropped).
    pub(crate) fn handle_datagram(
        &mut self,
        shared: &mut Shared,
        rx: &RxMeta,
        packet: &Packet<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if !self.state.receives() {
            return Err(DropReason::WrongState);
        }
        if shared.config.icrc {
            check_icrc(&mut shared.idents, &datagram_flow(rx)?, rx, packet.bytes())?;
        }
        check_pkey(&packet.bth())?;
        let deth = packet.deth().ok_or(DropReason::Malformed)?;
        if deth.qkey != self.attr.qkey.unwrap_or(Qkey(0)) {
            return Err(DropReason::BadQkey);
        }
        let payload = packet.payload();
        if payload.len() > self.mtu.bytes() {
            return Err(DropReason::Malformed);
        }
        if !self.take_receive(shared) || (GRH_LEN + payload.len()) as u64 > self.receiving.wqe.room {
            return Err(DropReason::NoReceive);
        }
        let grh = grh_area(rx, packet.bytes().len());
        let filled =
            self.fill_receive(shared, &grh, mem).and_then(|()| self.fill_receive(shared, payload, mem));
        if filled.is_err() {
            // The consumer's own buffer is wrong (9.9.3, class E).
            self.fail_receive(shared, WcStatus::LocProtErr);
            self.enter_error(shared);
            return Err(DropReason::NoReceive);
        }
        let wc = Wc {
            byte_len: (GRH_LEN + payload.len()) as u32,
            imm: packet.imm().map(|imm| imm.imm),
            src_qp: deth.src_qp,
            grh: true,
            ipv4: rx.src.is_ipv4(),
            solicited: packet.bth_header().solicited(),
            ..Wc::new(WcOpcode::Recv, self.qpn)
        };
        self.push_receive(shared, wc);
        self.settle_cq(shared);
        Ok(())
    }
}

/// The flow of a datagram from anybody.
pub(crate) fn datagram_flow(rx: &RxMeta) -> Result<remanence_wire::icrc::Flow, DropReason> {
    if rx.src.is_ipv4() != rx.dst.is_ipv4() {
        return Err(DropReason::Malformed);
    }
    Ok(remanence_wire::icrc::Flow::new(rx.src, rx.dst, rx.src_port, ROCE_PORT))
}

/// The GRH area: an IPv6 header as it came, or an IPv4 header in the last 20 bytes.
fn grh_area(rx: &RxMeta, udp_payload: usize) -> [u8; GRH_LEN] {
    let mut area = [0; GRH_LEN];
    let header = ip::Repr {
        src: rx.src,
        dst: rx.dst,
        traffic_class: rx.ecn,
        hop_limit: rx.hop_limit,
        ident: rx.ip_id.unwrap_or(0),
        flow_label: 0,
        payload_len: (udp::LEN + udp_payload) as u16,
    };
    match rx.src {
        IpAddr::V4(_) => header.emit(&mut area[GRH_LEN - ip::V4_LEN..]),
        IpAddr::V6(_) => header.emit(&mut area),
    };
    area
}
