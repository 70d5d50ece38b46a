//! REQ, the request for a connection, and the paths that it names.
//!
//! Read first: IBA Vol 1, 12.6.5, table 106.

use super::cma::ServiceId;
use super::field::{Bits, message};
use crate::psn::Psn;
use crate::types::{Gid, Pkey, Qkey, Qpn};

/// Transport service type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TransportService {
    /// Reliable connection: messages arrive once and in order, and are acknowledged.
    Rc = 0,
    /// Unreliable connection: between two QPs, and without acknowledgements.
    Uc = 1,
    /// Reliable datagram, which needs an EE context.
    Rd = 2,
    /// What the extended transport type says.
    Extended = 3,
}

impl Bits for TransportService {
    fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended,
        }
    }

    fn to_bits(&self) -> u8 {
        *self as u8
    }
}

message! {
    /// A path between two ports. On RoCE only the GIDs, traffic class, hop limit and timeout matter.
    #[derive(Copy, Hash, Default)]
    Path {
        /// LID of the sender; 0xffff on RoCE.
        local_lid: u16 = at(0),
        /// LID of the receiver; 0xffff on RoCE.
        remote_lid: u16 = at(2),
        /// GID of the sender.
        local_gid: Gid = at(4),
        /// GID of the receiver.
        remote_gid: Gid = at(20),
        /// Flow label, 20 bits.
        flow_label: u32 = flow_label(36),
        /// Static rate, 6 bits.
        packet_rate: u8 = bits(39, 2, 6),
        /// Traffic class of the packets' GRH (on RoCEv2, of their IP header).
        traffic_class: u8 = at(40),
        /// Hop limit of the packets' GRH (on RoCEv2, of their IP header).
        hop_limit: u8 = at(41),
        /// Service level, 4 bits.
        service_level: u8 = bits(42, 0, 4),
        /// Both ports are of one subnet.
        subnet_local: bool = bits(42, 4, 1),
        /// Local ACK timeout, 5 bits: 4.096 us * 2^n.
        local_ack_timeout: u8 = bits(43, 0, 5),
    }
}

impl Path {
    /// Bytes that it takes.
    pub(super) const LEN: usize = 44;
    /// Where the static rate is, the traffic class behind it, and then the hop limit.
    pub(super) const RATE: usize = 39;
}

message! {
    /// Asks for a connection.
    Req {
        /// The sender's name for the connection.
        local_comm_id: u32 = at(0),
        /// The service asked for.
        service_id: ServiceId = at(8),
        /// GUID of the sender's channel adapter.
        local_ca_guid: u64 = at(16),
        /// Q_Key (RD only).
        local_qkey: Qkey = at(28),
        /// The sender's QP.
        local_qpn: Qpn = at(32),
        /// READs and atomics that the sender is ready to answer at a time.
        responder_resources: u8 = at(35),
        /// The sender's EE context (RD only), 24 bits.
        local_eecn: u32 = low24(36),
        /// READs and atomics that the sender wants to have under way.
        initiator_depth: u8 = at(39),
        /// The receiver's EE context (RD only), 24 bits.
        remote_eecn: u32 = low24(40),
        /// How long the receiver's CM may take to answer, 5 bits: 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = bits(43, 0, 5),
        /// The transport service that the connection shall have.
        transport_service: TransportService = bits(43, 5, 2),
        /// The sender supports end-to-end flow control.
        end_to_end_flow_control: bool = bits(43, 7, 1),
        /// Where the *receiver* shall begin to send: the first PSN that the sender expects.
        starting_psn: Psn = at(44),
        /// How long the sender's CM may take to answer, 5 bits: 4.096 us * 2^n.
        local_cm_response_timeout: u8 = bits(47, 0, 5),
        /// Retry count for the receiver's QP, 3 bits.
        retry_count: u8 = bits(47, 5, 3),
        /// The partition in which the connection's packets are sent.
        pkey: Pkey = at(48),
        /// Path MTU as the verbs encode it, 4 bits; reserved values occur.
        path_mtu: u8 = bits(50, 0, 4),
        /// RD channel exists (RD only).
        rdc_exists: bool = bits(50, 4, 1),
        /// RNR retry count for the receiver's QP, 3 bits.
        rnr_retry_count: u8 = bits(50, 5, 3),
        /// How often the receiver's CM may resend, 4 bits.
        max_cm_retries: u8 = bits(51, 0, 4),
        /// The sender's QP has an SRQ.
        srq: bool = bits(51, 4, 1),
        /// Extended transport type, 3 bits.
        extended_transport_type: u8 = bits(51, 5, 3),
        /// The path that the connection begins with.
        primary: Path = path(52),
        /// Another path; all zero if there is none.
        alternate: Path = path(96),
        /// The sender knows suggested alternate paths (SAP).
        sap_supported: bool = bits(139, 5, 1),
        /// Bytes for the peer's consumer, led by a [`CmaHeader`](super::CmaHeader) when the service id belongs to RDMA-CM.
        private_data: [u8; Self::PRIVATE_DATA_LEN] = at(140),
    }
}

/// What a message has beside its fields whose private data RDMA-CM leads with its header.
macro_rules! led_by_cma_header {
    ($message:ident, $len:literal) => {
        impl $message {
            /// Bytes of private data.
            pub const PRIVATE_DATA_LEN: usize = $len;
            /// Bytes of private data that RDMA-CM leaves to its user.
            pub const USER_DATA_LEN: usize = $len - $crate::cm::CMA_HEADER_LEN;

            /// The RDMA-CM header, and what its user says.
            ///
            /// # Errors
            /// When the header makes no sense.
            pub fn cma(&self) -> Result<($crate::cm::CmaHeader, &[u8; Self::USER_DATA_LEN]), $crate::Error> {
                let header = self.private_data.first_chunk().expect("private data is longer than the header");
                let user = self.private_data.last_chunk().expect("private data is longer than its end");
                Ok(($crate::cm::CmaHeader::parse(header)?, user))
            }

            /// Private data made of an RDMA-CM header and what its user says, padded with zeros; `None` if that is too
            /// long.
            #[must_use]
            pub fn cma_private_data(header: &$crate::cm::CmaHeader, user: &[u8]) -> Option<[u8; $len]> {
                let mut data = [0; $len];
                header.emit(data.first_chunk_mut().expect("private data is longer than the header"));
                let begin = $crate::cm::CMA_HEADER_LEN;
                data.get_mut(begin..begin + user.len())?.copy_from_slice(user);
                Some(data)
            }
        }
    };
}
pub(super) use led_by_cma_header;

led_by_cma_header!(Req, 92);
