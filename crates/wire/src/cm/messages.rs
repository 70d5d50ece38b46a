//! The messages beside REQ, in the order of the specification.

use super::cma::{CMA_HEADER_LEN, CmaHeader, ServiceId};
use super::field::{
    Data, get_bit, get_bits, get_bytes, get16, get24, get32, get64, put_bits, put_bytes, put16, put24, put32,
    put64,
};
use super::reject::RejReason;
use super::req::{Path, split};
use crate::Error;
use crate::psn::Psn;
use crate::types::{Gid, Pkey, Qkey, Qpn};

/// The message that a REJ or MRA is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RejectedMessage {
    /// The message is about the peer's REQ.
    Req = 0,
    /// The message is about the peer's REP.
    Rep = 1,
    /// REJ: no message in particular; MRA: the LAP.
    Other = 2,
    /// The tables leave this value reserved.
    Reserved = 3,
}

impl RejectedMessage {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }
}

/// Message receipt acknowledgement: asks for patience (table 107).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The message that arrived.
    pub message: RejectedMessage,
    /// How long the answer may take, 5 bits: 4.096 us * 2^n.
    pub service_timeout: u8,
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; 222],
}

impl Mra {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            message: RejectedMessage::from_bits(get_bits(data, 8, 0, 2)),
            service_timeout: get_bits(data, 9, 0, 5),
            private_data: get_bytes(data, 10),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put_bits(data, 8, 0, 2, self.message as u8);
        put_bits(data, 9, 0, 5, self.service_timeout);
        put_bytes(data, 10, &self.private_data);
    }
}

/// Refuses (table 108).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's name for the connection; zero if it has none.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// What is refused.
    pub message: RejectedMessage,
    /// Bytes of additional information that count, 7 bits.
    pub info_len: u8,
    /// The reason that the sender gives for the refusal.
    pub reason: RejReason,
    /// Additional reject information.
    pub info: [u8; 72],
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Rej {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 148;

    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            message: RejectedMessage::from_bits(get_bits(data, 8, 0, 2)),
            info_len: get_bits(data, 9, 0, 7),
            reason: RejReason(get16(data, 10)),
            info: get_bytes(data, 12),
            private_data: get_bytes(data, 84),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put_bits(data, 8, 0, 2, self.message as u8);
        put_bits(data, 9, 0, 7, self.info_len);
        put16(data, 10, self.reason.0);
        put_bytes(data, 12, &self.info);
        put_bytes(data, 84, &self.private_data);
    }
}

/// Grants a connection (table 110).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Q_Key (RD only).
    pub local_qkey: Qkey,
    /// The sender's QP.
    pub local_qpn: Qpn,
    /// The sender's EE context (RD only), 24 bits.
    pub local_eecn: u32,
    /// Where the *receiver* shall begin to send: the first PSN that the sender expects.
    pub starting_psn: Psn,
    /// READs and atomics that the sender is ready to answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have under way.
    pub initiator_depth: u8,
    /// How long the sender's adapter may take to acknowledge, 5 bits: 4.096 us * 2^n.
    pub target_ack_delay: u8,
    /// Whether the alternate path was taken, 2 bits.
    pub failover_accepted: u8,
    /// The sender supports end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// RNR retry count for the receiver's QP, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's QP has an SRQ.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 196;

    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            local_qkey: Qkey(get32(data, 8)),
            local_qpn: Qpn::new(get24(data, 12)),
            local_eecn: get24(data, 16),
            starting_psn: Psn::new(get24(data, 20)),
            responder_resources: data[24],
            initiator_depth: data[25],
            target_ack_delay: get_bits(data, 26, 0, 5),
            failover_accepted: get_bits(data, 26, 5, 2),
            end_to_end_flow_control: get_bit(data, 26, 7),
            rnr_retry_count: get_bits(data, 27, 0, 3),
            srq: get_bit(data, 27, 3),
            local_ca_guid: get64(data, 28),
            private_data: get_bytes(data, 36),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put32(data, 8, self.local_qkey.0);
        put24(data, 12, self.local_qpn.value());
        put24(data, 16, self.local_eecn);
        put24(data, 20, self.starting_psn.value());
        data[24] = self.responder_resources;
        data[25] = self.initiator_depth;
        put_bits(data, 26, 0, 5, self.target_ack_delay);
        put_bits(data, 26, 5, 2, self.failover_accepted);
        put_bits(data, 26, 7, 1, self.end_to_end_flow_control.into());
        put_bits(data, 27, 0, 3, self.rnr_retry_count);
        put_bits(data, 27, 3, 1, self.srq.into());
        put64(data, 28, self.local_ca_guid);
        put_bytes(data, 36, &self.private_data);
    }
}

/// Ready to use (table 111).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; 224],
}

impl Rtu {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            private_data: get_bytes(data, 8),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put_bytes(data, 8, &self.private_data);
    }
}

/// Takes a connection down (table 112).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; 220],
}

impl Dreq {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            remote_qpn: Qpn::new(get24(data, 8)),
            private_data: get_bytes(data, 12),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put24(data, 8, self.remote_qpn.value());
        put_bytes(data, 12, &self.private_data);
    }
}

/// Agrees to take a connection down (table 113).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; 224],
}

impl Drep {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            private_data: get_bytes(data, 8),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put_bytes(data, 8, &self.private_data);
    }
}

/// Asks for another path (table 115).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The receiver's QP.
    pub remote_qpn: Qpn,
    /// How long the receiver's CM may take to answer, 5 bits: 4.096 us * 2^n.
    pub remote_cm_response_timeout: u8,
    /// The alternate path that the sender proposes.
    pub alternate: Path,
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; 168],
}

impl Lap {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            remote_qpn: Qpn::new(get24(data, 12)),
            remote_cm_response_timeout: get_bits(data, 15, 0, 5),
            // The same fields as in a REQ, but from the flow label on in another order.
            alternate: Path {
                local_lid: get16(data, 20),
                remote_lid: get16(data, 22),
                local_gid: Gid(get_bytes(data, 24)),
                remote_gid: Gid(get_bytes(data, 40)),
                flow_label: get24(data, 56) >> 4,
                traffic_class: data[59],
                hop_limit: data[60],
                packet_rate: get_bits(data, 61, 2, 6),
                service_level: get_bits(data, 62, 0, 4),
                subnet_local: get_bit(data, 62, 4),
                local_ack_timeout: get_bits(data, 63, 0, 5),
            },
            private_data: get_bytes(data, 64),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        put24(data, 12, self.remote_qpn.value());
        put_bits(data, 15, 0, 5, self.remote_cm_response_timeout);
        put16(data, 20, self.alternate.local_lid);
        put16(data, 22, self.alternate.remote_lid);
        put_bytes(data, 24, &self.alternate.local_gid.0);
        put_bytes(data, 40, &self.alternate.remote_gid.0);
        put24(data, 56, self.alternate.flow_label << 4);
        data[59] = self.alternate.traffic_class;
        data[60] = self.alternate.hop_limit;
        put_bits(data, 61, 2, 6, self.alternate.packet_rate);
        put_bits(data, 62, 0, 4, self.alternate.service_level);
        put_bits(data, 62, 4, 1, self.alternate.subnet_local.into());
        put_bits(data, 63, 0, 5, self.alternate.local_ack_timeout);
        put_bytes(data, 64, &self.private_data);
    }
}

/// Answers a LAP (table 116).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Apr {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Bytes of additional information that count.
    pub info_len: u8,
    /// Verdict; zero is yes.
    pub status: u8,
    /// Details of the verdict, of which `info_len` bytes count.
    pub info: [u8; 72],
    /// Bytes for the peer's consumer, which the CM does not interpret.
    pub private_data: [u8; 148],
}

impl Apr {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            local_comm_id: get32(data, 0),
            remote_comm_id: get32(data, 4),
            info_len: data[8],
            status: data[9],
            info: get_bytes(data, 12),
            private_data: get_bytes(data, 84),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put32(data, 4, self.remote_comm_id);
        data[8] = self.info_len;
        data[9] = self.status;
        put_bytes(data, 12, &self.info);
        put_bytes(data, 84, &self.private_data);
    }
}

/// Asks which UD QP serves a service (table 119).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's name for the question.
    pub request_id: u32,
    /// The partition in which the sender asks.
    pub pkey: Pkey,
    /// The service asked for.
    pub service_id: ServiceId,
    /// Bytes for the service, led by a [`CmaHeader`] when the service id belongs to RDMA-CM.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 216;
    /// Bytes of private data that RDMA-CM leaves to its user.
    pub const USER_DATA_LEN: usize = Self::PRIVATE_DATA_LEN - CMA_HEADER_LEN;

    /// The RDMA-CM header, and what its user says.
    ///
    /// # Errors
    /// When the header makes no sense.
    pub fn cma(&self) -> Result<(CmaHeader, &[u8; Self::USER_DATA_LEN]), Error> {
        let (header, user) = split(&self.private_data);
        Ok((CmaHeader::parse(header)?, user))
    }

    /// Private data made of an RDMA-CM header and what its user says, padded with zeros; `None` if that is too
    /// long.
    #[must_use]
    pub fn cma_private_data(header: &CmaHeader, user: &[u8]) -> Option<[u8; Self::PRIVATE_DATA_LEN]> {
        let mut data = [0; Self::PRIVATE_DATA_LEN];
        header.emit(data.first_chunk_mut().expect("private data is longer than the header"));
        data.get_mut(CMA_HEADER_LEN..CMA_HEADER_LEN + user.len())?.copy_from_slice(user);
        Some(data)
    }

    pub(super) fn parse(data: &Data) -> Self {
        Self {
            request_id: get32(data, 0),
            pkey: Pkey(get16(data, 4)),
            service_id: ServiceId(get64(data, 8)),
            private_data: get_bytes(data, 16),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.request_id);
        put16(data, 4, self.pkey.0);
        put64(data, 8, self.service_id.0);
        put_bytes(data, 16, &self.private_data);
    }
}

/// Says which UD QP serves a service (table 120).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The receiver's name for the question.
    pub request_id: u32,
    /// Verdict, one of the `STATUS_` constants.
    pub status: u8,
    /// Bytes of additional information that count.
    pub info_len: u8,
    /// The UD QP that serves the service.
    pub qpn: Qpn,
    /// The service that the answer is about.
    pub service_id: ServiceId,
    /// The QP's Q_Key.
    pub qkey: Qkey,
    /// Details of the verdict, of which `info_len` bytes count.
    pub info: [u8; 72],
    /// Bytes for the consumer that asked, which the CM does not interpret.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl SidrRep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 136;
    /// The QP and Q_Key are valid.
    pub const STATUS_VALID: u8 = 0;
    /// The service id is not supported.
    pub const STATUS_UNSUPPORTED: u8 = 1;
    /// The service's application refuses.
    pub const STATUS_REJECTED: u8 = 2;
    /// No QP available.
    pub const STATUS_NO_QP: u8 = 3;

    pub(super) fn parse(data: &Data) -> Self {
        Self {
            request_id: get32(data, 0),
            status: data[4],
            info_len: data[5],
            qpn: Qpn::new(get24(data, 8)),
            service_id: ServiceId(get64(data, 12)),
            qkey: Qkey(get32(data, 20)),
            info: get_bytes(data, 24),
            private_data: get_bytes(data, 96),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.request_id);
        data[4] = self.status;
        data[5] = self.info_len;
        put24(data, 8, self.qpn.value());
        put64(data, 12, self.service_id.0);
        put32(data, 20, self.qkey.0);
        put_bytes(data, 24, &self.info);
        put_bytes(data, 96, &self.private_data);
    }
}
