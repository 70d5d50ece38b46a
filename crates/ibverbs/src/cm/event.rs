//! Events: what the connection manager says, in the words of `rdma_cm_event`, and what the library does about it
//! before the program hears: QPs are taken to RTR and RTS when the peer has accepted, requests become identifiers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::NonNull;

use remanence_rnic::AhAttr;
use remanence_rnic::cm::{CommId, Ended, Event, Path, Request, SidrRequest, Transport};
use remanence_wire::cm::{CMA_HEADER_LEN, CmaHeader, ServiceId, SidrRep};
use remanence_wire::{Gid, Qkey, Qpn};

use crate::abi::*;
use crate::errno;
use crate::qp_attr::av_of;

use super::channel::Channel;
use super::id::{HOP_LIMIT, Id, Local, State, Target, Verbs};
use super::{create, multicast, qp, resolve};

/// The longest private data of any message.
const DATA_MAX: usize = 224;

/// An event that C holds, with what C sees of it in front.
#[repr(C)]
struct EventObj {
    c: rdma_cm_event,
    data: [u8; DATA_MAX],
    /// Whose count it is in: a connection request is in its listener's.
    counted: Id,
    group: Option<u64>,
}

/// An event that C holds.
#[derive(Clone, Copy)]
pub(super) struct EventRef(NonNull<EventObj>);

impl EventRef {
    /// Every event that C has came from here.
    pub(super) fn of(event: *mut rdma_cm_event) -> Option<Self> {
        NonNull::new(event.cast()).map(Self)
    }

    pub(super) fn acknowledge(self) {
        // SAFETY: C gives it back.
        let event = unsafe { Box::from_raw(self.0.as_ptr()) };
        event.counted.complete(event.group);
    }
}

/// An event in the making.
struct Draft {
    c: rdma_cm_event,
    data: Vec<u8>,
    group: Option<u64>,
}

impl Draft {
    fn new(id: Id, event: rdma_cm_event_type) -> Self {
        let c = rdma_cm_event { id: id.c(), event, ..rdma_cm_event::zeroed() };
        Self { c, data: Vec::new(), group: None }
    }

    fn status(mut self, status: c_int) -> Self {
        self.c.status = status;
        self
    }

    fn conn(mut self, conn: rdma_conn_param, data: &[u8]) -> Self {
        self.c.param.conn = conn;
        self.data = data.to_vec();
        self
    }

    fn ud(mut self, ud: rdma_ud_param, data: &[u8]) -> Self {
        self.c.param.ud = ud;
        self.data = data.to_vec();
        self
    }

    fn publish(self, counted: Id) -> *mut rdma_cm_event {
        let mut event = Box::new(EventObj { c: self.c, data: [0; DATA_MAX], counted, group: self.group });
        let len = self.data.len().min(DATA_MAX);
        event.data[..len].copy_from_slice(&self.data[..len]);
        let event = Box::into_raw(event);
        if len > 0 {
            // SAFETY: ours until it is returned. The data begins both members of the union alike.
            unsafe {
                (*event).c.param.conn.private_data = (&raw const (*event).data).cast::<c_void>();
                (*event).c.param.conn.private_data_len = len as u8;
            }
        }
        event.cast()
    }
}

/// What becomes of an event of the channel: one for C, or nothing.
pub(super) fn of(channel: Channel, target: Target, event: Option<Event>) -> Option<*mut rdma_cm_event> {
    let id = target.id;
    let draft = match event {
        None => local(id),
        Some(Event::ConnectRequest(request)) => {
            target.heard.and_then(|verbs| connect_request(channel, id, verbs, &request))
        }
        Some(Event::SidrRequest(request)) => {
            target.heard.and_then(|verbs| sidr_request(channel, id, verbs, &request))
        }
        // Of a request that nobody had taken over yet: the kernel drops these as well. Accepting will fail.
        Some(_) if target.heard.is_some() => None,
        Some(event) => of_connection(id, event),
    };
    match draft {
        Some(draft) => Some(draft.publish(id)),
        None => {
            id.complete(None);
            None
        }
    }
}

fn local(id: Id) -> Option<Draft> {
    let local = id.lock().local.pop_front()?;
    Some(match local {
        Local::Neighbour(status) => match resolve::answered(id, status) {
            Ok(()) => Draft::new(id, RDMA_CM_EVENT_ADDR_RESOLVED),
            Err(e) => Draft::new(id, RDMA_CM_EVENT_ADDR_ERROR).status(-e),
        },
        Local::AddrResolved => Draft::new(id, RDMA_CM_EVENT_ADDR_RESOLVED),
        Local::AddrError(status) => Draft::new(id, RDMA_CM_EVENT_ADDR_ERROR).status(status),
        Local::RouteResolved => Draft::new(id, RDMA_CM_EVENT_ROUTE_RESOLVED),
        Local::DeviceRemoved => Draft::new(id, RDMA_CM_EVENT_DEVICE_REMOVAL),
        Local::Joined(number) => {
            let (ud, status) = multicast::joined(id, number)?;
            let event =
                if status == 0 { RDMA_CM_EVENT_MULTICAST_JOIN } else { RDMA_CM_EVENT_MULTICAST_ERROR };
            Draft { group: Some(number), ..Draft::new(id, event).status(status).ud(ud, &[]) }
        }
    })
}

fn of_connection(id: Id, event: Event) -> Option<Draft> {
    match event {
        Event::Response {
            id: conn,
            remote_qpn,
            responder_resources,
            initiator_depth,
            rnr_retry_count,
            srq,
            private_data,
        } => {
            let param = rdma_conn_param {
                qp_num: remote_qpn.value(),
                responder_resources,
                initiator_depth,
                rnr_retry_count,
                flow_control: 1,
                srq: u8::from(srq),
                ..rdma_conn_param::zeroed()
            };
            response(id, conn, param, &private_data)
        }
        Event::Established { .. } => is_connecting(id).then(|| Draft::new(id, RDMA_CM_EVENT_ESTABLISHED)),
        Event::Rejected { reason, private_data, .. } => {
            let mut inner = id.lock();
            inner.conn = None;
            let unheard = inner.connect_error || inner.undecided;
            drop(inner);
            if unheard {
                return None;
            }
            qp::to_error(id);
            let draft = Draft::new(id, RDMA_CM_EVENT_REJECTED).status(c_int::from(reason.0));
            Some(draft.conn(rdma_conn_param::zeroed(), &private_data))
        }
        Event::Unreachable { .. } => {
            id.lock().conn = None;
            Some(Draft::new(id, RDMA_CM_EVENT_UNREACHABLE).status(-libc::ETIMEDOUT))
        }
        Event::Disconnected { ended, .. } => {
            let mut inner = id.lock();
            let was = std::mem::replace(&mut inner.state, State::Disconnect);
            if was != State::Connect || inner.connect_error {
                return None;
            }
            let status = if ended == Ended::Unanswered { -libc::ETIMEDOUT } else { 0 };
            Some(Draft::new(id, RDMA_CM_EVENT_DISCONNECTED).status(status))
        }
        Event::TimewaitExit { .. } => {
            let mut inner = id.lock();
            inner.conn = None;
            // Only after the program was told of the end, as in cma.c.
            (inner.state == State::Disconnect).then(|| Draft::new(id, RDMA_CM_EVENT_TIMEWAIT_EXIT))
        }
        Event::SidrResponse { status, qpn, qkey, private_data, .. } => {
            Some(sidr_response(id, status, qpn, qkey, &private_data))
        }
        Event::ConnectRequest(_) | Event::SidrRequest(_) => None,
    }
}

fn is_connecting(id: Id) -> bool {
    let inner = id.lock();
    inner.state == State::Connect && !inner.connect_error
}

/// The peer accepted. With a QP of the library's, the connection is brought up before the program hears of it.
fn response(id: Id, conn: CommId, param: rdma_conn_param, data: &[u8]) -> Option<Draft> {
    let (verbs, _) = id.lock().connection()?;
    if id.qp().is_null() {
        return Some(Draft::new(id, RDMA_CM_EVENT_CONNECT_RESPONSE).conn(param, data));
    }
    let up = qp::to_rtr(id, param.responder_resources)
        .and_then(|()| qp::to_rts(id, param.initiator_depth))
        .and_then(|()| verbs.ctx().context.cm().establish(conn, &[]).map_err(errno::of_cm));
    Some(match up {
        Ok(()) => Draft::new(id, RDMA_CM_EVENT_ESTABLISHED).conn(param, data),
        Err(_) => {
            qp::to_error(id);
            id.lock().connect_error = true;
            Draft::new(id, RDMA_CM_EVENT_CONNECT_ERROR).status(-1).conn(param, data)
        }
    })
}

/// A UD peer's answer.
fn sidr_response(id: Id, status: u8, qpn: Qpn, qkey: Qkey, data: &[u8]) -> Draft {
    let mut inner = id.lock();
    inner.conn = None;
    let none = rdma_ud_param::zeroed();
    if status != SidrRep::STATUS_VALID {
        return Draft::new(id, RDMA_CM_EVENT_UNREACHABLE).status(c_int::from(status)).ud(none, data);
    }
    // One Q_Key for all that an identifier's QP talks to.
    if *inner.qkey.get_or_insert(qkey.0) != qkey.0 {
        return Draft::new(id, RDMA_CM_EVENT_ADDR_ERROR).status(-libc::EINVAL).ud(none, data);
    }
    let ah_attr = match (inner.verbs, inner.src, inner.dst) {
        (Some(verbs), Some(src), Some(dst)) => {
            let av = AhAttr {
                hop_limit: HOP_LIMIT,
                traffic_class: inner.tos.unwrap_or(0),
                sgid_index: sgid_index(verbs, Gid::from_ip(src.ip())),
                ..AhAttr::new(Gid::from_ip(dst.ip()))
            };
            av_of(&av)
        }
        _ => ibv_ah_attr::zeroed(),
    };
    let ud = rdma_ud_param { ah_attr, qp_num: qpn.value(), qkey: qkey.0, ..none };
    Draft::new(id, RDMA_CM_EVENT_ESTABLISHED).ud(ud, data)
}

/// Where an address of a device is in its GID table.
pub(super) fn sgid_index(verbs: Verbs, gid: Gid) -> u8 {
    verbs.ctx().context.port().index_of(gid).unwrap_or(0)
}

fn connect_request(channel: Channel, listener: Id, verbs: Verbs, request: &Request) -> Option<Draft> {
    let asked = Asked::new(request.path, request.service_id, request.cma, &request.private_data);
    let id = incoming(channel, listener, verbs, request.id, &asked)?;
    let mut inner = id.lock();
    inner.responder_resources = request.responder_resources;
    inner.initiator_depth = request.initiator_depth;
    drop(inner);
    if request.transport == Transport::Uc {
        id.set_qp_type(IBV_QPT_UC);
    }
    let conn = rdma_conn_param {
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        flow_control: 1,
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry_count,
        srq: u8::from(request.srq),
        qp_num: request.remote_qpn.value(),
        ..rdma_conn_param::zeroed()
    };
    let mut draft = Draft::new(id, RDMA_CM_EVENT_CONNECT_REQUEST).conn(conn, asked.data);
    draft.c.listen_id = listener.c();
    Some(draft)
}

fn sidr_request(channel: Channel, listener: Id, verbs: Verbs, request: &SidrRequest) -> Option<Draft> {
    let asked = Asked::new(request.path, request.service_id, request.cma, &request.private_data);
    let id = incoming(channel, listener, verbs, request.id, &asked)?;
    let mut draft = Draft::new(id, RDMA_CM_EVENT_CONNECT_REQUEST).ud(rdma_ud_param::zeroed(), asked.data);
    draft.c.listen_id = listener.c();
    Some(draft)
}

/// Who asks whom.
struct Asked<'a> {
    src: SocketAddr,
    dst: SocketAddr,
    data: &'a [u8],
}

impl<'a> Asked<'a> {
    fn new(path: Path, service: ServiceId, cma: Option<CmaHeader>, data: &'a [u8]) -> Self {
        // The engine does not look into requests for native service ids; those of librdmacm have the header too.
        let (cma, data) = match (cma, data.split_first_chunk::<CMA_HEADER_LEN>()) {
            (Some(cma), _) => (Some(cma), data),
            (None, Some((head, rest))) => match CmaHeader::parse(head) {
                Ok(cma) => (Some(cma), rest),
                Err(_) => (None, data),
            },
            (None, None) => (None, data),
        };
        let port = service.port().unwrap_or(0);
        Self {
            src: SocketAddr::new(cma.map_or(path.local.to_ip(), |cma| cma.dst), port),
            dst: SocketAddr::new(
                cma.map_or(path.remote.to_ip(), |cma| cma.src),
                cma.map_or(0, |cma| cma.src_port),
            ),
            data,
        }
    }
}

/// A request becomes an identifier on the listener's channel, or on one of its own if the listener's calls wait.
fn incoming(channel: Channel, listener: Id, verbs: Verbs, conn: CommId, asked: &Asked<'_>) -> Option<Id> {
    let id = Id::new(listener.context(), listener.ps(), listener.qp_type());
    id.set_channel(channel.c());
    let (sync, tos) = {
        let inner = listener.lock();
        (inner.sync, inner.tos)
    };
    let ready = {
        let mut inner = id.lock();
        inner.state = State::Connect;
        inner.undecided = true;
        inner.conn = Some(conn);
        inner.tos = tos;
        inner.src = Some(asked.src);
        inner.dst = Some(asked.dst);
        id.attach_open(&mut inner, verbs).and_then(|()| {
            id.show_addresses(&inner);
            id.show_path(&inner)
        })
    };
    // With the identifier's own token, and out of the listener's backlog.
    verbs.ctx().context.cm().adopt(conn, &channel.queue(), id.token());
    let ready = ready.and_then(|()| if sync { create::migrate(id, None) } else { Ok(()) });
    if ready.is_err() {
        id.destroy();
        return None;
    }
    Some(id)
}

/// `rdma_ack_cm_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    match EventRef::of(event) {
        Some(event) => {
            event.acknowledge();
            0
        }
        None => errno::minus_one_with(libc::EINVAL),
    }
}

/// `rdma_event_str(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    name(event).as_ptr()
}

fn name(event: rdma_cm_event_type) -> &'static CStr {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        _ => c"UNKNOWN EVENT",
    }
}

/// What a private field of C holds, for `ptr` and `len` as the program gave them.
///
/// # Safety
/// `data` is null or has `len` bytes.
pub(super) unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(data.cast(), usize::from(len)) }
}

const _: () = assert!(
    std::mem::offset_of!(rdma_conn_param, private_data_len)
        == std::mem::offset_of!(rdma_ud_param, private_data_len),
    "publish writes both through one of them"
);
