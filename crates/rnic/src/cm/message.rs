//! The MADs that leave.

use remanence_wire::cm::{
    CmaHeader, Drep, Dreq, Message, Mra, Path as WirePath, PortSpace, Rej, RejReason, RejectedMessage, Rep,
    Repr, Req, Rtu, ServiceId, SidrRep, SidrReq, TransportService,
};
use remanence_wire::{Pkey, Psn, Qkey, Qpn, mad};

use super::conn::Conn;
use super::types::{Accept, CmError, Config, Connect, Path, SidrReply, Transport};

/// The bytes of one management datagram.
pub(super) type Mad = [u8; mad::LEN];

/// Where a QP begins before anybody said where.
pub(super) const NO_PSN: Psn = Psn::new(0);

/// A LID that means nothing, which is what RoCE and Linux put where InfiniBand has one.
const LID_PERMISSIVE: u16 = 0xffff;
const HOP_LIMIT: u8 = 64;
/// 10 Gbit/s in the encoding of static rates. Nobody on RoCE looks at it, but 0 is reserved.
const PACKET_RATE: u8 = 3;

fn mad(transaction_id: u64, message: Message) -> Mad {
    Repr { transaction_id, message }.to_bytes()
}

/// `data` as a whole field of private data, zeros behind.
fn field<const N: usize>(data: &[u8]) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    field.get_mut(..data.len()).ok_or(CmError::PrivateData)?.copy_from_slice(data);
    Ok(field)
}

/// Whether requests for `service` begin with the header of RDMA-CM.
pub(super) const fn has_cma_header(service: ServiceId) -> bool {
    matches!(service.port_space(), Some(PortSpace::Tcp | PortSpace::Udp | PortSpace::Ipoib))
}

fn cma_header(path: Path, src_port: u16) -> Result<CmaHeader, CmError> {
    let (src, dst) = (path.local.to_ip(), path.remote.to_ip());
    if src.is_ipv4() == dst.is_ipv4() { Ok(CmaHeader { src, src_port, dst }) } else { Err(CmError::Path) }
}

pub(super) fn req(
    config: &Config,
    id: u32,
    connect: &Connect<'_>,
    rq_psn: Psn,
    ack_timeout: u8,
) -> Result<Mad, CmError> {
    let private_data = match connect.cma_port {
        None => field(connect.private_data)?,
        Some(port) => Req::cma_private_data(&cma_header(connect.path, port)?, connect.private_data)
            .ok_or(CmError::PrivateData)?,
    };
    let primary = WirePath {
        local_lid: LID_PERMISSIVE,
        remote_lid: LID_PERMISSIVE,
        local_gid: connect.path.local,
        remote_gid: connect.path.remote,
        flow_label: 0,
        packet_rate: PACKET_RATE,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        service_level: 0,
        subnet_local: false,
        local_ack_timeout: ack_timeout,
    };
    let req = Req {
        local_comm_id: id,
        service_id: connect.service_id,
        local_ca_guid: config.ca_guid,
        local_qkey: Qkey(0),
        local_qpn: connect.qpn,
        responder_resources: connect.responder_resources,
        local_eecn: 0,
        initiator_depth: connect.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: config.response_timeout,
        transport_service: match connect.transport {
            Transport::Rc => TransportService::Rc,
            Transport::Uc => TransportService::Uc,
        },
        end_to_end_flow_control: true,
        // Where the *receiver* shall begin to send (12.7.31).
        starting_psn: rq_psn,
        local_cm_response_timeout: config.response_timeout,
        retry_count: connect.retry_count.min(7),
        pkey: Pkey::DEFAULT,
        path_mtu: connect.mtu as u8,
        rdc_exists: false,
        rnr_retry_count: connect.rnr_retry_count.min(7),
        max_cm_retries: config.max_cm_retries.min(15),
        srq: connect.srq,
        extended_transport_type: 0,
        primary,
        alternate: WirePath::default(),
        sap_supported: false,
        private_data,
    };
    Ok(mad(u64::from(id), Message::Req(req)))
}

pub(super) fn rep(config: &Config, conn: &Conn, id: u32, accept: &Accept<'_>) -> Result<Mad, CmError> {
    let rep = Rep {
        local_comm_id: id,
        remote_comm_id: conn.remote_id,
        local_qkey: Qkey(0),
        local_qpn: accept.qpn,
        local_eecn: 0,
        starting_psn: conn.rq_psn,
        responder_resources: accept.responder_resources,
        initiator_depth: accept.initiator_depth,
        target_ack_delay: config.ack_delay,
        failover_accepted: 0,
        end_to_end_flow_control: true,
        rnr_retry_count: accept.rnr_retry_count.min(7),
        srq: accept.srq,
        local_ca_guid: config.ca_guid,
        private_data: field(accept.private_data)?,
    };
    Ok(mad(conn.tid, Message::Rep(rep)))
}

pub(super) fn rtu(conn: &Conn, id: u32, private_data: &[u8]) -> Result<Mad, CmError> {
    let rtu = Rtu { local_comm_id: id, remote_comm_id: conn.remote_id, private_data: field(private_data)? };
    Ok(mad(conn.tid, Message::Rtu(rtu)))
}

pub(super) fn mra(conn: &Conn, id: u32, message: RejectedMessage, service_timeout: u8) -> Mad {
    let mra = Mra {
        local_comm_id: id,
        remote_comm_id: conn.remote_id,
        message,
        service_timeout,
        private_data: [0; 222],
    };
    mad(conn.tid, Message::Mra(mra))
}

/// What a REJ says beside whom it means.
#[derive(Clone, Copy)]
pub(super) struct Reject<'a> {
    pub(super) message: RejectedMessage,
    pub(super) reason: RejReason,
    pub(super) info: &'a [u8],
    pub(super) private_data: &'a [u8],
}

impl Reject<'_> {
    /// A REJ without information.
    pub(super) const fn new(message: RejectedMessage, reason: RejReason) -> Self {
        Self { message, reason, info: &[], private_data: &[] }
    }
}

/// A REJ for a connection, or, with a zero among the IDs, for none of ours.
pub(super) fn rej(tid: u64, local: u32, remote: u32, reject: &Reject<'_>) -> Result<Mad, CmError> {
    let rej = Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        message: reject.message,
        info_len: u8::try_from(reject.info.len()).map_err(|_| CmError::PrivateData)?,
        reason: reject.reason,
        info: field(reject.info)?,
        private_data: field(reject.private_data)?,
    };
    Ok(mad(tid, Message::Rej(rej)))
}

pub(super) fn dreq(conn: &Conn, id: u32) -> Mad {
    let dreq = Dreq {
        local_comm_id: id,
        remote_comm_id: conn.remote_id,
        remote_qpn: conn.remote_qpn,
        private_data: [0; 220],
    };
    mad(conn.tid, Message::Dreq(dreq))
}

pub(super) fn drep(tid: u64, local: u32, remote: u32) -> Mad {
    let drep = Drep { local_comm_id: local, remote_comm_id: remote, private_data: [0; 224] };
    mad(tid, Message::Drep(drep))
}

pub(super) fn sidr_req(
    id: u32,
    path: Path,
    service_id: ServiceId,
    cma_port: Option<u16>,
    private_data: &[u8],
) -> Result<Mad, CmError> {
    let private_data = match cma_port {
        None => field(private_data)?,
        Some(port) => {
            SidrReq::cma_private_data(&cma_header(path, port)?, private_data).ok_or(CmError::PrivateData)?
        }
    };
    let req = SidrReq { request_id: id, pkey: Pkey::DEFAULT, service_id, private_data };
    Ok(mad(u64::from(id), Message::SidrReq(req)))
}

pub(super) fn sidr_rep(
    tid: u64,
    request_id: u32,
    service_id: ServiceId,
    reply: &SidrReply<'_>,
) -> Result<Mad, CmError> {
    let rep = SidrRep {
        request_id,
        status: reply.status,
        info_len: 0,
        qpn: reply.qpn,
        service_id,
        qkey: reply.qkey,
        info: [0; 72],
        private_data: field(reply.private_data)?,
    };
    Ok(mad(tid, Message::SidrRep(rep)))
}

impl SidrReply<'static> {
    /// An answer that says no.
    pub(super) const fn refusal(status: u8) -> Self {
        Self { status, qpn: Qpn::new(0), qkey: Qkey(0), private_data: &[] }
    }
}
