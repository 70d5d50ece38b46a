//! One server, as a client sees it: two connections, numbered requests, work in flight.
//!
//! The control QP carries requests and replies; it never waits behind a FLUSH, so a server that does not answer there
//! is gone, and not just busy. While anything is outstanding a silent server is asked for a sign of life, by a deadline of
//! its session on the reactor.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{
    Access, Data, Placement, QpCaps, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Sge, Wc,
    WcOpcode, WcStatus,
};
use remanence_service::client::{Endpoint, Reactor};
use remanence_verbs::{ConnectAttr, Connection, Error as VerbsError, Mr, Pd, Qp};
use remanence_wire::Rkey;

use super::error::LossReason;
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
    control: Half,
    data: Option<Half>,
    /// WINDOW receive buffers, then SENDS send buffers.
    buffers: Mr,
    free_sends: Vec<u32>,
    next_number: u32,
    unanswered: BTreeMap<u32, Tag>,
    unsent: VecDeque<(Request, Tag)>,
    /// Work requests on the data QP, in the order in which they will complete.
    in_flight: VecDeque<Tag>,
    heard: Instant,
    /// When its program answered last, or began to owe an answer, and how long it may take for the next one.
    answered: Instant,
    answer_limit: Duration,
    /// That was over when somebody looked, who may not have looked for long: what has come lies in the queue then.
    late: bool,
    /// A deadline is set at which somebody looks whether it is silent.
    watched: bool,
    pinged: bool,
    completions: Vec<Wc>,
}

/// A connected QP. The connection goes first, as it has the QP too.
struct Half {
    connection: Connection,
    endpoint: Endpoint,
}

impl Half {
    fn qp(&self) -> &Qp {
        self.endpoint.qp()
    }
}

/// What links are opened with.
#[derive(Clone, Copy)]
pub(super) struct Desk<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) pd: &'a Pd,
    pub(super) tokens: &'a [Token],
    /// How long a server may take to answer while it is connected to, each time; and from then on.
    pub(super) limit: Duration,
    pub(super) answer_limit: Duration,
}

impl Desk<'_> {
    fn connect(
        &self,
        address: SocketAddr,
        caps: QpCaps,
        attr: &ConnectAttr,
        purpose: &Purpose,
    ) -> Result<Half, LossReason> {
        let endpoint = self.reactor.endpoint(self.pd, caps).map_err(local)?;
        let connection = Connection::connect(endpoint.qp(), address, attr, &purpose.emit(), Some(self.limit))
            .map_err(refusal)?;
        Ok(Half { connection, endpoint })
    }
}

/// The tag of requests whose replies nobody waits for.
const NOBODY: Tag = u64::MAX;

fn local(error: impl std::fmt::Display) -> LossReason {
    LossReason::Local(error.to_string())
}

/// A rejection carries the server's own sentence.
fn refusal(error: VerbsError) -> LossReason {
    if let VerbsError::Rejected { private_data, .. } = &error {
        let text: Vec<u8> = private_data.iter().copied().take_while(|byte| *byte != 0).collect();
        if let Some(reason) = String::from_utf8(text).ok().filter(|text| !text.is_empty()) {
            let reason = format!("refused the connection: {}", crate::proto::sentence(&reason));
            return LossReason::Refused { code: Code::Refused, reason };
        }
    }
    LossReason::Unreachable(error.to_string())
}

impl Link {
    /// Connects the control QP, proves the token both ways, then connects the data QP.
    fn open(desk: Desk<'_>, (name, address): &(String, SocketAddr)) -> Result<Self, LossReason> {
        let caps = QpCaps {
            max_send_wr: SENDS as u32,
            max_recv_wr: WINDOW as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let region = Region::anonymous(((WINDOW + SENDS) * MAX_MESSAGE) as u64).map_err(local)?;
        let buffers = desk.pd.reg_mr(&region, Access::LOCAL_WRITE).map_err(local)?;
        // REMOTE_WRITE lets the server ask a quiet client whether it is there, by a WRITE of no bytes; no MR of ours has it.
        // Three retries: with the CM's timeout of half a second a dead server is noticed after about two.
        let attr = ConnectAttr { access: Access::REMOTE_WRITE, retry_cnt: 3, ..ConnectAttr::default() };
        let mut this = Self {
            name: name.clone(),
            info: PoolInfo::unknown(),
            control: desk.connect(*address, caps, &attr, &Purpose::Control)?,
            data: None,
            buffers,
            free_sends: (0..SENDS as u32).collect(),
            next_number: 1,
            unanswered: BTreeMap::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            heard: Instant::now(),
            answered: Instant::now(),
            answer_limit: desk.answer_limit,
            late: false,
            watched: false,
            pinged: false,
            completions: Vec::new(),
        };
        (0..WINDOW as u64).try_for_each(|slot| this.post_recv(slot)).map_err(local)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(local)?;
        let (theirs, fingerprint) = match this.converse(Request::Hello { nonce }, desk.limit)? {
            Reply::Challenge { nonce, fingerprint } => (nonce, fingerprint),
            other => return Err(unexpected(other)),
        };
        let token = desk
            .tokens
            .iter()
            .find(|token| token.fingerprint() == fingerprint)
            .ok_or(LossReason::WrongToken)?;
        let proof = Side::Client.prove(token, &nonce, &theirs);
        let (proof, ticket, info) = match this.converse(Request::Authenticate { proof }, desk.limit)? {
            Reply::Welcome { proof, ticket, info } => (proof, ticket, info),
            other => return Err(unexpected(other)),
        };
        if !Side::Server.verify(token, &nonce, &theirs, &proof) {
            return Err(LossReason::Impostor);
        }
        this.info = info;
        let caps = QpCaps { max_send_wr: DATA_DEPTH as u32, max_recv_wr: 1, ..caps };
        let attr =
            ConnectAttr { access: Access::empty(), max_rd_atomic: RD_ATOMIC, ..ConnectAttr::default() };
        this.data = Some(desk.connect(*address, caps, &attr, &Purpose::Data { ticket })?);
        this.heard = Instant::now();
        Ok(this)
    }

    /// Sends a request and waits for its reply.
    fn converse(&mut self, request: Request, limit: Duration) -> Result<Reply, LossReason> {
        let end = Instant::now() + limit;
        self.ask(request, 0)?;
        let mut happened = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LossReason::Silent);
            }
            self.completions.clear();
            self.control.endpoint.wait(&mut self.completions, Some(left)).map_err(local)?;
            self.take(&mut happened)?;
            if let Some(Happened::Replied(0, reply)) = happened.pop() {
                return Ok(reply);
            }
        }
    }

    /// Takes what has completed on the link, and asks a server that is silent for a sign of life. What happened before the link
    /// failed is told as well.
    pub(super) fn look(&mut self, happened: &mut Vec<Happened>) -> Result<(), LossReason> {
        self.completions.clear();
        for half in [Some(&self.control), self.data.as_ref()].into_iter().flatten() {
            half.endpoint.take(&mut self.completions);
        }
        self.take(happened)?;
        if self.control.endpoint.take_due() { self.due() } else { Ok(()) }
    }

    fn take(&mut self, happened: &mut Vec<Happened>) -> Result<(), LossReason> {
        let completions = std::mem::take(&mut self.completions);
        let outcome = completions.iter().try_for_each(|wc| {
            happened.extend(self.completed(wc)?);
            Ok(())
        });
        self.completions = completions;
        outcome
    }

    /// Sends a request, or keeps it until the server may be asked.
    pub(super) fn ask(&mut self, request: Request, tag: Tag) -> Result<(), LossReason> {
        self.unsent.push_back((request, tag));
        self.push()?;
        self.watch(Instant::now());
        Ok(())
    }

    /// As [`Link::ask`], when the reply does not matter.
    pub(super) fn tell(&mut self, request: Request) -> Result<(), LossReason> {
        self.ask(request, NOBODY)
    }

    fn push(&mut self) -> Result<(), LossReason> {
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
            if self.unanswered.is_empty() {
                (self.answered, self.late) = (Instant::now(), false);
            }
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
    fn is_busy(&self) -> bool {
        !self.unanswered.is_empty() || !self.in_flight.is_empty() || !self.unsent.is_empty()
    }

    /// WRITEs from our memory.
    pub(super) fn write(&mut self, from: Sge, addr: u64, rkey: u32, tag: Tag) -> Result<(), LossReason> {
        let to = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Write(to), &[from], tag)
    }

    /// READs into our memory.
    pub(super) fn read(&mut self, to: Sge, addr: u64, rkey: u32, tag: Tag) -> Result<(), LossReason> {
        let from = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Read(from), &[to], tag)
    }

    /// FLUSHes a range, with persistence where the server's pool can have it.
    pub(super) fn flush(&mut self, addr: u64, len: u64, rkey: u32, tag: Tag) -> Result<(), LossReason> {
        let placement = match self.info.guarantee.is_durable() {
            true => Placement::Persistence,
            false => Placement::GlobalVisibility,
        };
        let len = u32::try_from(len).map_err(|_| LossReason::Nonsense)?;
        let remote = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Flush { remote, len, placement, selectivity: Selectivity::Range }, &[], tag)
    }

    /// Any operation on the data QP.
    pub(super) fn post(&mut self, op: SendOp, sges: &[Sge], tag: Tag) -> Result<(), LossReason> {
        assert!(self.budget() > 0, "the caller keeps to the budget");
        let wr = SendWr { wr_id: 0, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None };
        self.data_qp().post_send(&wr).map_err(local)?;
        self.in_flight.push_back(tag);
        self.watch(Instant::now());
        Ok(())
    }

    fn data_qp(&self) -> &Qp {
        self.data.as_ref().expect("connected, as the link is open").qp()
    }

    /// Takes a completion of one of this link's QPs.
    fn completed(&mut self, wc: &Wc) -> Result<Option<Happened>, LossReason> {
        match wc.status {
            WcStatus::Success => {}
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => return Err(LossReason::Silent),
            WcStatus::WrFlushErr => return Err(LossReason::Left),
            other => return Err(LossReason::Access(other.to_string())),
        }
        self.heard = Instant::now();
        if wc.qpn != self.control.qp().qpn() {
            let tag = self.in_flight.pop_front().ok_or(LossReason::Nonsense)?;
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
        let (number, reply) = Reply::parse(&message).map_err(|_| LossReason::Nonsense)?;
        let tag = self.unanswered.remove(&number).ok_or(LossReason::Nonsense)?;
        (self.answered, self.late) = (self.heard, false);
        self.push()?;
        if tag == NOBODY {
            (self.pinged, self.watched) = (false, false);
            self.watch(self.heard);
            return Ok(None);
        }
        Ok(Some(Happened::Replied(tag, reply)))
    }

    /// While the server has something to do for us, somebody looks in time whether it has been silent since then, or has left something
    /// unanswered for too long. The deadline is not moved at each sign of life, but when it is over.
    fn watch(&mut self, since: Instant) {
        if self.watched {
            return;
        }
        let silence = (self.is_busy() && !self.pinged && !self.late).then(|| since + SILENCE);
        let limit = || if self.late { Instant::now() + SILENCE } else { self.answered + self.answer_limit };
        let answer = (!self.unanswered.is_empty()).then(limit);
        let first = [silence, answer].into_iter().flatten().min();
        self.watched = first.is_some();
        if self.watched {
            self.control.endpoint.set_deadline(first);
        }
    }

    /// Asks a silent server for a sign of life. The acknowledgement of the SEND is one already, of its device; the reply shows that its
    /// program is not stuck, and it is given up if nothing is answered in time.
    fn due(&mut self) -> Result<(), LossReason> {
        self.watched = false;
        let now = Instant::now();
        if !self.unanswered.is_empty() && now >= self.answered + self.answer_limit {
            if self.late {
                return Err(LossReason::Stuck(self.answer_limit));
            }
            self.late = true;
        }
        if self.is_busy() && !self.pinged && now >= self.heard + SILENCE {
            self.pinged = true;
            self.tell(Request::Ping)?;
        }
        self.watch(self.heard);
        Ok(())
    }
}

/// A reply that does not fit the request: a refusal, or nonsense.
pub(super) fn unexpected(reply: Reply) -> LossReason {
    match reply {
        Reply::Refused { code: Code::WrongToken, .. } => LossReason::WrongToken,
        Reply::Refused { code, reason } => LossReason::Refused { code, reason },
        _ => LossReason::Nonsense,
    }
}

/// The connection manager is told on the way out; nobody waits for its answer.
impl Drop for Link {
    fn drop(&mut self) {
        for half in [Some(&self.control), self.data.as_ref()].into_iter().flatten() {
            let _ = half.connection.disconnect();
        }
    }
}

/// Opens links to several servers at once: each by a thread of its own, as one that does not answer takes seconds.
pub(super) fn open_all(desk: Desk<'_>, servers: &[(String, SocketAddr)]) -> Vec<Result<Link, LossReason>> {
    std::thread::scope(|scope| {
        let opening: Vec<_> =
            servers.iter().map(|server| scope.spawn(move || Link::open(desk, server))).collect();
        opening.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(local("a thread died")))).collect()
    })
}
