//! QP 1, the general services interface: MADs in and out for the connection manager.
//!
//! Read first: IBA Vol 1, 13.5.3 (MADs over UD), 3.5.3 (QP 1 and its Q_Key), Annex A17 (no GRH but IP).

use std::collections::VecDeque;

use remanence_wire::packet::{self, Headers, Packet, Repr};
use remanence_wire::{Gid, Opcode, Psn, Qkey, Qpn, bth, deth};

use crate::ah::{AhAttr, Av};
use crate::device::{Device, RxMeta, Shared, Transmit};
use crate::error::VerbError;
use crate::idents::Idents;
use crate::qp::datagram::datagram_flow;
use crate::qp::path::Path;
use crate::qp::{check_icrc, check_pkey};
use crate::stats::DropReason;

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;

/// MADs that wait for their consumer at most; a flood beyond that is dropped, and its senders will retry.
const QUEUE_MAX: usize = 1024;

/// A MAD that came to QP 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedMad {
    /// The GID of the MAD's sender.
    pub from: Gid,
    /// Our address that it was sent to.
    pub to: Gid,
    /// The sender's UDP source port.
    pub src_port: u16,
    /// The management datagram itself.
    pub mad: Box<[u8; MAD_LEN]>,
}

#[derive(Debug, Default)]
pub(crate) struct Gsi {
    incoming: VecDeque<ReceivedMad>,
    outgoing: VecDeque<(Av, Box<[u8; MAD_LEN]>)>,
    psn: Psn,
}

impl Gsi {
    /// Takes a packet to QP 1.
    pub(crate) fn receive(
        &mut self,
        idents: &mut Idents,
        rx: &RxMeta,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        if packet.opcode() != Opcode::UdSendOnly {
            return Err(DropReason::WrongState);
        }
        check_icrc(idents, &datagram_flow(rx)?, rx, packet.bytes())?;
        check_pkey(&packet.bth())?;
        if packet.deth().is_none_or(|deth| deth.qkey != Qkey::GSI) {
            return Err(DropReason::BadQkey);
        }
        let mad: &[u8; MAD_LEN] = packet.payload().try_into().map_err(|_| DropReason::Malformed)?;
        if self.incoming.len() >= QUEUE_MAX {
            return Err(DropReason::MadOverflow);
        }
        self.incoming.push_back(ReceivedMad {
            from: Gid::from_ip(rx.src),
            to: Gid::from_ip(rx.dst),
            src_port: rx.src_port,
            mad: Box::new(*mad),
        });
        Ok(())
    }

    pub(crate) fn transmit(&mut self, shared: &Shared, buf: &mut [u8]) -> Option<Transmit> {
        let (av, mad) = self.outgoing.pop_front()?;
        let path = Path::new(&av, Qpn::GSI, Qpn::GSI, shared.config.source_port, shared.config.ecn);
        let bth = bth::Repr::new(Opcode::UdSendOnly, Qpn::GSI, self.psn);
        self.psn = self.psn.next();
        let headers = Headers::Deth(deth::Repr { qkey: Qkey::GSI, src_qp: Qpn::GSI });
        let header_len = Repr { bth, headers }.emit(buf);
        buf[header_len..header_len + MAD_LEN].copy_from_slice(&mad[..]);
        let len = packet::finish(buf, header_len, MAD_LEN, &path.flow, shared.ident);
        Some(path.transmit(len, len))
    }
}

impl Device {
    /// Sends a MAD from QP 1 to the peer's QP 1, unreliably.
    pub fn send_mad(&mut self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<(), VerbError> {
        let av = self.shared.resolve(to)?;
        if self.gsi.outgoing.len() >= QUEUE_MAX {
            return Err(VerbError::NoRoom("MAD"));
        }
        self.gsi.outgoing.push_back((av, Box::new(*mad)));
        Ok(())
    }

    /// The next MAD that came to QP 1.
    pub fn poll_mad(&mut self) -> Option<ReceivedMad> {
        self.gsi.incoming.pop_front()
    }
}
