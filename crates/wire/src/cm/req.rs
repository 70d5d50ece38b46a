//! REQ, the request for a connection, and the paths that it names.
//!
//! Read first: IBA Vol 1, 12.6.5, table 106.

use super::cma::{CMA_HEADER_LEN, CmaHeader, ServiceId};
use super::field::{
    Data, get_bit, get_bits, get_bytes, get16, get24, get32, get64, put_bits, put_bytes, put16, put24, put32,
    put64,
};
use crate::Error;
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

/// A path between two ports. On RoCE only the GIDs, traffic class, hop limit and timeout matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Path {
    /// LID of the sender; 0xffff on RoCE.
    pub local_lid: u16,
    /// LID of the receiver; 0xffff on RoCE.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Static rate, 6 bits.
    pub packet_rate: u8,
    /// Traffic class of the packets' GRH (on RoCEv2, of their IP header).
    pub traffic_class: u8,
    /// Hop limit of the packets' GRH (on RoCEv2, of their IP header).
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Both ports are of one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout, 5 bits: 4.096 us * 2^n.
    pub local_ack_timeout: u8,
}

impl Path {
    const LEN: usize = 44;

    fn parse(data: &Data, at: usize) -> Self {
        Self {
            local_lid: get16(data, at),
            remote_lid: get16(data, at + 2),
            local_gid: Gid(get_bytes(data, at + 4)),
            remote_gid: Gid(get_bytes(data, at + 20)),
            flow_label: get24(data, at + 36) >> 4,
            packet_rate: get_bits(data, at + 39, 2, 6),
            traffic_class: data[at + 40],
            hop_limit: data[at + 41],
            service_level: get_bits(data, at + 42, 0, 4),
            subnet_local: get_bit(data, at + 42, 4),
            local_ack_timeout: get_bits(data, at + 43, 0, 5),
        }
    }

    fn emit(&self, data: &mut Data, at: usize) {
        put16(data, at, self.local_lid);
        put16(data, at + 2, self.remote_lid);
        put_bytes(data, at + 4, &self.local_gid.0);
        put_bytes(data, at + 20, &self.remote_gid.0);
        put24(data, at + 36, self.flow_label << 4);
        put_bits(data, at + 39, 2, 6, self.packet_rate);
        data[at + 40] = self.traffic_class;
        data[at + 41] = self.hop_limit;
        put_bits(data, at + 42, 0, 4, self.service_level);
        put_bits(data, at + 42, 4, 1, self.subnet_local.into());
        put_bits(data, at + 43, 0, 5, self.local_ack_timeout);
    }
}

/// Asks for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The service asked for.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Q_Key (RD only).
    pub local_qkey: Qkey,
    /// The sender's QP.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender is ready to answer at a time.
    pub responder_resources: u8,
    /// The sender's EE context (RD only), 24 bits.
    pub local_eecn: u32,
    /// READs and atomics that the sender wants to have under way.
    pub initiator_depth: u8,
    /// The receiver's EE context (RD only), 24 bits.
    pub remote_eecn: u32,
    /// How long the receiver's CM may take to answer, 5 bits: 4.096 us * 2^n.
    pub remote_cm_response_timeout: u8,
    /// The transport service that the connection shall have.
    pub transport_service: TransportService,
    /// The sender supports end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// Where the *receiver* shall begin to send: the first PSN that the sender expects.
    pub starting_psn: Psn,
    /// How long the sender's CM may take to answer, 5 bits: 4.096 us * 2^n.
    pub local_cm_response_timeout: u8,
    /// Retry count for the receiver's QP, 3 bits.
    pub retry_count: u8,
    /// The partition in which the connection's packets are sent.
    pub pkey: Pkey,
    /// Path MTU as the verbs encode it, 4 bits; reserved values occur.
    pub path_mtu: u8,
    /// RD channel exists (RD only).
    pub rdc_exists: bool,
    /// RNR retry count for the receiver's QP, 3 bits.
    pub rnr_retry_count: u8,
    /// How often the receiver's CM may resend, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP has an SRQ.
    pub srq: bool,
    /// Extended transport type, 3 bits.
    pub extended_transport_type: u8,
    /// The path that the connection begins with.
    pub primary: Path,
    /// Another path; all zero if there is none.
    pub alternate: Path,
    /// The sender knows suggested alternate paths (SAP).
    pub sap_supported: bool,
    /// Bytes for the peer's consumer, led by a [`CmaHeader`] when the service id belongs to RDMA-CM.
    pub private_data: [u8; Self::PRIVATE_DATA_LEN],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 92;
    /// Bytes of private data that RDMA-CM leaves to its user.
    pub const USER_DATA_LEN: usize = Self::PRIVATE_DATA_LEN - CMA_HEADER_LEN;

    const PRIMARY: usize = 52;
    const ALTERNATE: usize = Self::PRIMARY + Path::LEN;
    const PRIVATE_DATA: usize = Self::ALTERNATE + Path::LEN;

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
            local_comm_id: get32(data, 0),
            service_id: ServiceId(get64(data, 8)),
            local_ca_guid: get64(data, 16),
            local_qkey: Qkey(get32(data, 28)),
            local_qpn: Qpn::new(get24(data, 32)),
            responder_resources: data[35],
            local_eecn: get24(data, 36),
            initiator_depth: data[39],
            remote_eecn: get24(data, 40),
            remote_cm_response_timeout: get_bits(data, 43, 0, 5),
            transport_service: match get_bits(data, 43, 5, 2) {
                0 => TransportService::Rc,
                1 => TransportService::Uc,
                2 => TransportService::Rd,
                _ => TransportService::Extended,
            },
            end_to_end_flow_control: get_bit(data, 43, 7),
            starting_psn: Psn::new(get24(data, 44)),
            local_cm_response_timeout: get_bits(data, 47, 0, 5),
            retry_count: get_bits(data, 47, 5, 3),
            pkey: Pkey(get16(data, 48)),
            path_mtu: get_bits(data, 50, 0, 4),
            rdc_exists: get_bit(data, 50, 4),
            rnr_retry_count: get_bits(data, 50, 5, 3),
            max_cm_retries: get_bits(data, 51, 0, 4),
            srq: get_bit(data, 51, 4),
            extended_transport_type: get_bits(data, 51, 5, 3),
            primary: Path::parse(data, Self::PRIMARY),
            alternate: Path::parse(data, Self::ALTERNATE),
            sap_supported: get_bit(data, Self::ALTERNATE + 43, 5),
            private_data: get_bytes(data, Self::PRIVATE_DATA),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put32(data, 0, self.local_comm_id);
        put64(data, 8, self.service_id.0);
        put64(data, 16, self.local_ca_guid);
        put32(data, 28, self.local_qkey.0);
        put24(data, 32, self.local_qpn.value());
        data[35] = self.responder_resources;
        put24(data, 36, self.local_eecn);
        data[39] = self.initiator_depth;
        put24(data, 40, self.remote_eecn);
        put_bits(data, 43, 0, 5, self.remote_cm_response_timeout);
        put_bits(data, 43, 5, 2, self.transport_service as u8);
        put_bits(data, 43, 7, 1, self.end_to_end_flow_control.into());
        put24(data, 44, self.starting_psn.value());
        put_bits(data, 47, 0, 5, self.local_cm_response_timeout);
        put_bits(data, 47, 5, 3, self.retry_count);
        put16(data, 48, self.pkey.0);
        put_bits(data, 50, 0, 4, self.path_mtu);
        put_bits(data, 50, 4, 1, self.rdc_exists.into());
        put_bits(data, 50, 5, 3, self.rnr_retry_count);
        put_bits(data, 51, 0, 4, self.max_cm_retries);
        put_bits(data, 51, 4, 1, self.srq.into());
        put_bits(data, 51, 5, 3, self.extended_transport_type);
        self.primary.emit(data, Self::PRIMARY);
        self.alternate.emit(data, Self::ALTERNATE);
        put_bits(data, Self::ALTERNATE + 43, 5, 1, self.sap_supported.into());
        put_bytes(data, Self::PRIVATE_DATA, &self.private_data);
    }
}

/// Private data as RDMA-CM header and the rest.
pub(super) fn split<const N: usize, const REST: usize>(
    private_data: &[u8; N],
) -> (&[u8; CMA_HEADER_LEN], &[u8; REST]) {
    const { assert!(N == CMA_HEADER_LEN + REST) };
    let header = private_data.first_chunk().expect("N is long enough");
    let rest = private_data.last_chunk().expect("N is long enough");
    (header, rest)
}
