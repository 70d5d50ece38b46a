//! The messages beside REQ, in the order of the specification.

use super::cma::ServiceId;
use super::field::{Bits, message};
use super::reject::RejReason;
use super::req::{Path, led_by_cma_header};
use crate::psn::Psn;
use crate::types::{Pkey, Qkey, Qpn};

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

impl Bits for RejectedMessage {
    fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    fn to_bits(&self) -> u8 {
        *self as u8
    }
}

message! {
    /// Message receipt acknowledgement: asks for patience (table 107).
    Mra {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// The message that arrived.
        message: RejectedMessage = bits(8, 0, 2),
        /// How long the answer may take, 5 bits: 4.096 us * 2^n.
        service_timeout: u8 = bits(9, 0, 5),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; 222] = at(10),
    }
}

message! {
    /// Refuses (table 108).
    Rej {
        /// The sender's name for the connection; zero if it has none.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// What is refused.
        message: RejectedMessage = bits(8, 0, 2),
        /// Bytes of additional information that count, 7 bits.
        info_len: u8 = bits(9, 0, 7),
        /// The reason that the sender gives for the refusal.
        reason: RejReason = at(10),
        /// Additional reject information.
        info: [u8; 72] = at(12),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; Self::PRIVATE_DATA_LEN] = at(84),
    }
}

impl Rej {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 148;
}

message! {
    /// Grants a connection (table 110).
    Rep {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// Q_Key (RD only).
        local_qkey: Qkey = at(8),
        /// The sender's QP.
        local_qpn: Qpn = at(12),
        /// The sender's EE context (RD only), 24 bits.
        local_eecn: u32 = low24(16),
        /// Where the *receiver* shall begin to send: the first PSN that the sender expects.
        starting_psn: Psn = at(20),
        /// READs and atomics that the sender is ready to answer at a time.
        responder_resources: u8 = at(24),
        /// READs and atomics that the sender wants to have under way.
        initiator_depth: u8 = at(25),
        /// How long the sender's adapter may take to acknowledge, 5 bits: 4.096 us * 2^n.
        target_ack_delay: u8 = bits(26, 0, 5),
        /// Whether the alternate path was taken, 2 bits.
        failover_accepted: u8 = bits(26, 5, 2),
        /// The sender supports end-to-end flow control.
        end_to_end_flow_control: bool = bits(26, 7, 1),
        /// RNR retry count for the receiver's QP, 3 bits.
        rnr_retry_count: u8 = bits(27, 0, 3),
        /// The sender's QP has an SRQ.
        srq: bool = bits(27, 3, 1),
        /// GUID of the sender's channel adapter.
        local_ca_guid: u64 = at(28),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; Self::PRIVATE_DATA_LEN] = at(36),
    }
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 196;
}

message! {
    /// Ready to use (table 111).
    Rtu {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; 224] = at(8),
    }
}

message! {
    /// Takes a connection down (table 112).
    Dreq {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// The receiver's QP.
        remote_qpn: Qpn = at(8),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; 220] = at(12),
    }
}

message! {
    /// Agrees to take a connection down (table 113).
    Drep {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; 224] = at(8),
    }
}

message! {
    /// Asks for another path (table 115).
    Lap {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// The receiver's QP.
        remote_qpn: Qpn = at(12),
        /// How long the receiver's CM may take to answer, 5 bits: 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = bits(15, 0, 5),
        /// The alternate path that the sender proposes.
        alternate: Path = lap_path(20),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; 168] = at(64),
    }
}

message! {
    /// Answers a LAP (table 116).
    Apr {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The receiver's name for the connection.
        remote_comm_id: u32 = at(4),
        /// Bytes of additional information that count.
        info_len: u8 = at(8),
        /// Verdict; zero is yes.
        status: u8 = at(9),
        /// Details of the verdict, of which `info_len` bytes count.
        info: [u8; 72] = at(12),
        /// Bytes for the peer's consumer, which the CM does not interpret.
        private_data: [u8; 148] = at(84),
    }
}

message! {
    /// Asks which UD QP serves a service (table 119).
    SidrReq {
        /// The sender's name for the question.
        request_id: u32 = at(0),
        /// The partition in which the sender asks.
        pkey: Pkey = at(4),
        /// The service asked for.
        service_id: ServiceId = at(8),
        /// Bytes for the service, led by a [`CmaHeader`](super::CmaHeader) when the service id belongs to RDMA-CM.
        private_data: [u8; Self::PRIVATE_DATA_LEN] = at(16),
    }
}

led_by_cma_header!(SidrReq, 216);

message! {
    /// Says which UD QP serves a service (table 120).
    SidrRep {
        /// The receiver's name for the question.
        request_id: u32 = at(0),
        /// Verdict, one of the `STATUS_` constants.
        status: u8 = at(4),
        /// Bytes of additional information that count.
        info_len: u8 = at(5),
        /// The UD QP that serves the service.
        qpn: Qpn = at(8),
        /// The service that the answer is about.
        service_id: ServiceId = at(12),
        /// The QP's Q_Key.
        qkey: Qkey = at(20),
        /// Details of the verdict, of which `info_len` bytes count.
        info: [u8; 72] = at(24),
        /// Bytes for the consumer that asked, which the CM does not interpret.
        private_data: [u8; Self::PRIVATE_DATA_LEN] = at(96),
    }
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
}
