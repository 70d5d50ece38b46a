//! One server, as a client sees it: two connections, numbered requests, work in flight.
//!
//! The control QP carries requests and replies; it never waits behind a FLUSH, so a server that does not answer there
//! is gone, and not just busy. While anything is outstanding a silent server is asked for a sign of life.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{
    Access, Data, Placement, QpCaps, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Sge, Wc,
    WcOpcode, WcStatus,
};
use remanence_verbs::{ConnectAttr, Connection, Cq, Error as VerbsError, Mr, Pd, Qp, QpOptions};
use remanence_wire::{Qpn, Rkey};

use super::error::Why;
use crate::auth::{Side, Token};
use crate::proto::{Code, MAX_MESSAGE, PoolInfo, Purpose, Reply, Request, WINDOW};

/// Work requests on the data QP at most; each piece of a chunk and each FLUSH is one.
const DATA_DEPTH: usize = 128;

/// READs and FLUSHes that the responder keeps track of at a time.
const RD_ATOMIC: u8 = 16;

/// A server with work to do that said nothing for so long is asked for a sign of life.
const SILENCE: Duration = Duration::from_millis(300);

/// Send buffers on the control QP.
const SENDS: usize = 2 * WINDOW;

/// A request's or a work request's owner, as the client numbers them.
pub(super) type Tag = u64;

/// What happened on a link.
#[derive(Debug)]
pub(super) enum Happened {
    /// A reply to the request with this tag.
    Replied(Tag, Reply),
    /// The data work request with this tag completed.
    Completed(Tag),
}

pub(super) struct Link {
    pub(super) name: String,
    pub(super) info: PoolInfo,
    control: Connection,
    data: Option<Connection>,
    /// WINDOW receive buffers, then SENDS send buffers.
    buffers: Mr,
    free_sends: Vec<u32>,
    next_number: u32,
    unanswered: BTreeMap<u32, Tag>,
    unsent: VecDeque<(Request, Tag)>,
    /// Work requests on the data QP, in the order in which they will complete.
    in_flight: VecDeque<Tag>,
    heard: Instant,
    pinged: bool,
}

/// The tag of requests whose replies nobody waits for.
const NOBODY: Tag = u64::MAX;

fn local(error: impl std::fmt::Display) -> Why {
    Why::Local(error.to_string())
}

/// Connects a control QP: the part that may take long, and runs beside that of other servers.
fn dial(pd: &Pd, cq: &Cq, address: SocketAddr, limit: Duration) -> Result<Dialled, Why> {
    let caps = QpCaps {
        max_send_wr: SENDS as u32,
        max_recv_wr: WINDOW as u32,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let qp = pd.create_qp(&QpOptions { caps, ..QpOptions::rc(cq) }).map_err(local)?;
    let region = Region::anonymous(((WINDOW + SENDS) * MAX_MESSAGE) as u64).map_err(local)?;
    let buffers = pd.reg_mr(&region, Access::LOCAL_WRITE).map_err(local)?;
    // REMOTE_WRITE lets the server ask a quiet client whether it is there, by a WRITE of no bytes; no MR of ours has it.
    // Three retries: with the CM's timeout of half a second a dead server is noticed after about two.
    let attr = ConnectAttr { access: Access::REMOTE_WRITE, retry_cnt: 3, ..ConnectAttr::default() };
    let control =
        Connection::connect(&qp, address, &attr, &Purpose::Control.emit(), Some(limit)).map_err(refusal)?;
    Ok(Dialled { control, buffers })
}

/// A connected control QP, and its message buffers.
struct Dialled {
    control: Connection,
    buffers: Mr,
}

/// A rejection carries the server's own sentence.
fn refusal(error: VerbsError) -> Why {
    if let VerbsError::Rejected { private_data, .. } = &error {
        let text: Vec<u8> = private_data.iter().copied().take_while(|byte| *byte != 0).collect();
        if let Some(reason) = String::from_utf8(text).ok().filter(|text| !text.is_empty()) {
            let reason = format!("refused the connection: {}", crate::proto::sentence(&reason));
            return Why::Refused { code: Code::Refused, reason };
        }
    }
    Why::Unreachable(error.to_string())
}

impl Link {
    /// Proves the token both ways, then connects the data QP.
    fn open(
        (name, address): &(String, SocketAddr),
        dialled: Dialled,
        desk: &mut Desk<'_>,
        tokens: &[Token],
        limit: Duration,
    ) -> Result<Self, Why> {
        let mut this = Self {
            name: name.clone(),
            info: PoolInfo::unknown(),
            control: dialled.control,
            data: None,
            buffers: dialled.buffers,
            free_sends: (0..SENDS as u32).collect(),
            next_number: 1,
            unanswered: BTreeMap::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            heard: Instant::now(),
            pinged: false,
        };
        (0..WINDOW as u64).try_for_each(|slot| this.post_recv(slot)).map_err(local)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(local)?;
        let (theirs, fingerprint) = match this.converse(desk, Request::Hello { nonce }, limit)? {
            Reply::Challenge { nonce, fingerprint } => (nonce, fingerprint),
            other => return Err(unexpected(other)),
        };
        let token = tokens.iter().find(|token| token.fingerprint() == fingerprint).ok_or(Why::WrongToken)?;
        let proof = Side::Client.prove(token, &nonce, &theirs);
        let (proof, ticket, info) = match this.converse(desk, Request::Authenticate { proof }, limit)? {
            Reply::Welcome { proof, ticket, info } => (proof, ticket, info),
            other => return Err(unexpected(other)),
        };
        if !Side::Server.verify(token, &nonce, &theirs, &proof) {
            return Err(Why::Impostor);
        }
        this.info = info;
        let caps = QpCaps {
            max_send_wr: DATA_DEPTH as u32,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = desk.pd.create_qp(&QpOptions { caps, ..QpOptions::rc(desk.cq) }).map_err(local)?;
        let attr =
            ConnectAttr { access: Access::empty(), max_rd_atomic: RD_ATOMIC, ..ConnectAttr::default() };
        let purpose = Purpose::Data { ticket }.emit();
        this.data = Some(Connection::connect(&qp, *address, &attr, &purpose, Some(limit)).map_err(refusal)?);
        this.heard = Instant::now();
        Ok(this)
    }

    /// Sends a request and waits for its reply; completions of other links are kept for them.
    fn converse(&mut self, desk: &mut Desk<'_>, request: Request, limit: Duration) -> Result<Reply, Why> {
        let end = Instant::now() + limit;
        self.ask(request, 0)?;
        let mut completions = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Why::Silent);
            }
            completions.clear();
            desk.cq.wait(&mut completions, 16, Some(left)).map_err(local)?;
            let mut answer = None;
            for wc in &completions {
                if !self.owns(wc.qpn) {
                    desk.stray.push(*wc);
                } else if let Some(Happened::Replied(0, reply)) = self.completed(wc)? {
                    answer = Some(reply);
                }
            }
            if let Some(reply) = answer {
                return Ok(reply);
            }
        }
    }

    /// Whether a completion is of one of this link's QPs.
    pub(super) fn owns(&self, qpn: Qpn) -> bool {
        self.control.qp().qpn() == qpn || self.data.as_ref().is_some_and(|data| data.qp().qpn() == qpn)
    }

    /// Sends a request, or keeps it until the server may be asked.
    pub(super) fn ask(&mut self, request: Request, tag: Tag) -> Result<(), Why> {
        self.unsent.push_back((request, tag));
        self.push()
    }

    /// As [`Link::ask`], when the reply does not matter.
    pub(super) fn tell(&mut self, request: Request) -> Result<(), Why> {
        self.ask(request, NOBODY)
    }

    fn push(&mut self) -> Result<(), Why> {
        while self.unanswered.len() < WINDOW
            && let Some(slot) = self.free_sends.last().copied()
            && let Some((request, tag)) = self.unsent.pop_front()
        {
            let number = self.next_number;
            self.next_number = number.wrapping_add(1);
            let message = request.emit(number);
            let at = (WINDOW as u64 + u64::from(slot)) * MAX_MESSAGE as u64;
            self.buffers.region().write(at, &message);
            let sge = self.buffers.sge(at, message.len() as u32);
            let wr = SendWr {
                wr_id: u64::from(slot),
                op: SendOp::Send,
                data: Data::Sges(&[sge]),
                flags: SendFlags::SIGNALED,
                ud: None,
            };
            self.control.qp().post_send(&wr).map_err(local)?;
            self.free_sends.pop();
            self.unanswered.insert(number, tag);
        }
        Ok(())
    }

    fn post_recv(&self, slot: u64) -> Result<(), VerbsError> {
        let sge = self.buffers.sge(slot * MAX_MESSAGE as u64, MAX_MESSAGE as u32);
        Ok(self.control.qp().post_recv(&RecvWr { wr_id: slot, sges: &[sge] })?)
    }

    /// How many work requests the data QP takes now.
    pub(super) fn budget(&self) -> usize {
        DATA_DEPTH - self.in_flight.len()
    }

    /// Whether the server has something to do for us.
    pub(super) fn is_busy(&self) -> bool {
        !self.unanswered.is_empty() || !self.in_flight.is_empty() || !self.unsent.is_empty()
    }

    /// WRITEs from our memory.
    pub(super) fn write(&mut self, from: Sge, addr: u64, rkey: u32, tag: Tag) -> Result<(), Why> {
        let to = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Write(to), &[from], tag)
    }

    /// READs into our memory.
    pub(super) fn read(&mut self, to: Sge, addr: u64, rkey: u32, tag: Tag) -> Result<(), Why> {
        let from = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Read(from), &[to], tag)
    }

    /// FLUSHes a range, with persistence where the server's pool can have it.
    pub(super) fn flush(&mut self, addr: u64, len: u64, rkey: u32, tag: Tag) -> Result<(), Why> {
        let placement = if self.info.durable { Placement::Persistence } else { Placement::GlobalVisibility };
        let len = u32::try_from(len).map_err(|_| Why::Nonsense)?;
        let remote = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Flush { remote, len, placement, selectivity: Selectivity::Range }, &[], tag)
    }

    /// Any operation on the data QP.
    pub(super) fn post(&mut self, op: SendOp, sges: &[Sge], tag: Tag) -> Result<(), Why> {
        assert!(self.budget() > 0, "the caller keeps to the budget");
        let wr = SendWr { wr_id: 0, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None };
        self.data_qp().post_send(&wr).map_err(local)?;
        self.in_flight.push_back(tag);
        Ok(())
    }

    fn data_qp(&self) -> &Qp {
        self.data.as_ref().expect("connected, as the link is open").qp()
    }

    /// Takes a completion of one of this link's QPs.
    pub(super) fn completed(&mut self, wc: &Wc) -> Result<Option<Happened>, Why> {
        match wc.status {
            WcStatus::Success => {}
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => return Err(Why::Silent),
            WcStatus::WrFlushErr => return Err(Why::Left),
            other => return Err(Why::Access(other.to_string())),
        }
        self.heard = Instant::now();
        if wc.qpn != self.control.qp().qpn() {
            let tag = self.in_flight.pop_front().ok_or(Why::Nonsense)?;
            return Ok(Some(Happened::Completed(tag)));
        }
        if wc.opcode != WcOpcode::Recv {
            self.free_sends.push(wc.wr_id as u32);
            self.push()?;
            return Ok(None);
        }
        let mut message = vec![0; wc.byte_len as usize];
        self.buffers.region().read(wc.wr_id * MAX_MESSAGE as u64, &mut message);
        self.post_recv(wc.wr_id).map_err(local)?;
        let (number, reply) = Reply::parse(&message).map_err(|_| Why::Nonsense)?;
        let tag = self.unanswered.remove(&number).ok_or(Why::Nonsense)?;
        self.push()?;
        if tag == NOBODY {
            self.pinged = false;
            return Ok(None);
        }
        Ok(Some(Happened::Replied(tag, reply)))
    }

    /// Asks a silent server for a sign of life. The acknowledgement of the SEND is one already; the reply only shows
    /// that it is not stuck.
    pub(super) fn tick(&mut self) -> Result<(), Why> {
        if self.is_busy() && !self.pinged && self.heard.elapsed() >= SILENCE {
            self.pinged = true;
            self.tell(Request::Ping)?;
        }
        Ok(())
    }
}

/// A reply that does not fit the request: a refusal, or nonsense.
pub(super) fn unexpected(reply: Reply) -> Why {
    match reply {
        Reply::Refused { code: Code::WrongToken, .. } => Why::WrongToken,
        Reply::Refused { code, reason } => Why::Refused { code, reason },
        _ => Why::Nonsense,
    }
}

/// The connection manager is told on the way out; nobody waits for its answer.
impl Drop for Link {
    fn drop(&mut self) {
        for connection in [Some(&self.control), self.data.as_ref()].into_iter().flatten() {
            let _ = connection.disconnect();
        }
    }
}

/// What links are opened with.
struct Desk<'a> {
    pd: &'a Pd,
    cq: &'a Cq,
    /// Completions that arrived while another link was being opened.
    stray: Vec<Wc>,
}

/// Opens links to several servers at once: each is dialled by a thread of its own, as one that does not answer takes
/// seconds.
pub(super) fn open_all(
    pd: &Pd,
    cq: &Cq,
    servers: &[(String, SocketAddr)],
    tokens: &[Token],
    limit: Duration,
) -> Vec<Result<Link, Why>> {
    let dialled: Vec<Result<Dialled, Why>> = std::thread::scope(|scope| {
        let dial_one = |address: &SocketAddr| {
            let address = *address;
            scope.spawn(move || dial(pd, cq, address, limit))
        };
        let dials: Vec<_> = servers.iter().map(|(_, address)| dial_one(address)).collect();
        dials.into_iter().map(|dial| dial.join().unwrap_or_else(|_| Err(local("a thread died")))).collect()
    });
    let mut desk = Desk { pd, cq, stray: Vec::new() };
    let mut links: Vec<Result<Link, Why>> = Vec::new();
    for (dialled, server) in dialled.into_iter().zip(servers) {
        links.push(dialled.and_then(|dialled| Link::open(server, dialled, &mut desk, tokens, limit)));
    }
    for wc in desk.stray {
        for link in &mut links {
            if let Ok(open) = link
                && open.owns(wc.qpn)
                && let Err(why) = open.completed(&wc)
            {
                *link = Err(why);
            }
        }
    }
    links
}
