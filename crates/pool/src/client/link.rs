//! One server over verbs: two connections, and the device that all links of a client have.
//!
//! What is said on them, and when a server is given up, is decided in [`dialogue`](super::dialogue); the deadline of that is one of the control
//! QP's session on the reactor.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, QpCaps, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};
use remanence_service::client::{Came, Endpoint, Reactor, Waiter};
use remanence_verbs::{ConnectAttr, Connection, Context, Error as VerbsError, Mr, Pd, Qp};

use super::dialogue::{DATA_DEPTH, Dialogue, Introduced, Introduction};
use super::error::{Error, LossReason};
use super::network::{Happened, Link, Network, Tag, Waker};
use super::{Options, device};
use crate::auth::Token;
use crate::proto::{Code, MAX_MESSAGE, PoolInfo, Purpose, Reply, Request, WINDOW};

/// READs and FLUSHes that the responder keeps track of at a time.
const RD_ATOMIC: u8 = 16;

/// Send buffers on the control QP.
const SENDS: usize = 2 * WINDOW;

/// The device of a client, and what all its links have in common.
pub(super) struct Device {
    context: Context,
    pd: Pd,
    /// For any of the servers.
    waiter: Waiter,
    ring: Mr,
    options: Options,
}

impl Device {
    pub(super) fn open(context: &Context, options: &Options) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let reactor = Reactor::new(context)?;
        // Made before the links: it is told of whatever comes on them.
        let waiter = reactor.waiter();
        let region = Region::anonymous(u64::from(options.chunk) * u64::from(options.chunks))
            .map_err(|e| device("the ring of chunks", e))?;
        let ring = pd.reg_mr(&region, Access::LOCAL_WRITE)?;
        Ok(Self { context: context.clone(), pd, waiter, ring, options: options.clone() })
    }
}

impl Network for Device {
    /// Each by a thread of its own, as one that does not answer takes seconds.
    fn connect(&mut self, servers: &[(String, SocketAddr)]) -> Vec<Result<Box<dyn Link>, LossReason>> {
        let Options { tokens, connect_limit, answer_limit, .. } = &self.options;
        let (reactor, pd, buffer) = (self.waiter.reactor(), &self.pd, self.ring.sge(0, 0));
        let desk = Desk { reactor, pd, tokens, limit: *connect_limit, answer_limit: *answer_limit, buffer };
        let boxed = |link: QpLink| -> Box<dyn Link> { Box::new(link) };
        std::thread::scope(|scope| {
            let opening: Vec<_> =
                servers.iter().map(|(_, at)| scope.spawn(move || QpLink::open(desk, *at))).collect();
            let opened =
                opening.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(local("a thread died"))));
            opened.map(|link| link.map(boxed)).collect()
        })
    }

    fn another(&self) -> Result<Box<dyn Network>, Error> {
        Ok(Box::new(Self::open(&self.context, &self.options)?))
    }

    fn memory(&self) -> &Region {
        self.ring.region()
    }

    fn wait(&mut self) -> bool {
        self.waiter.wait(None).expect("the queue holds all completions") != Came::Woken
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.waiter.reactor().waker())
    }

    fn random(&mut self, into: &mut [u8]) -> Result<(), Error> {
        getrandom::fill(into).map_err(|e| device("random bytes", e))
    }
}

/// A server's two QPs.
struct QpLink {
    info: PoolInfo,
    control: Half,
    data: Option<Half>,
    /// WINDOW receive buffers, then SENDS send buffers.
    buffers: Mr,
    /// The first byte of the client's memory.
    ring: Sge,
    free_sends: Vec<u32>,
    began: Instant,
    dialogue: Dialogue,
    /// The deadline of the dialogue that the session has.
    deadline: Option<Duration>,
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
struct Desk<'a> {
    reactor: &'a Reactor,
    pd: &'a Pd,
    tokens: &'a [Token],
    /// How long a server may take to answer while it is connected to, each time; and from then on.
    limit: Duration,
    answer_limit: Duration,
    buffer: Sge,
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

impl QpLink {
    /// Connects the control QP, proves the token both ways, then connects the data QP.
    fn open(desk: Desk<'_>, address: SocketAddr) -> Result<Self, LossReason> {
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
            info: PoolInfo::unknown(),
            control: desk.connect(address, caps, &attr, &Purpose::Control)?,
            data: None,
            buffers,
            ring: desk.buffer,
            free_sends: (0..SENDS as u32).collect(),
            began: Instant::now(),
            dialogue: Dialogue::new(Duration::ZERO, desk.answer_limit),
            deadline: None,
            completions: Vec::new(),
        };
        (0..WINDOW as u64).try_for_each(|slot| this.post_recv(slot)).map_err(local)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(local)?;
        let (mut introduction, mut request) = Introduction::new(nonce);
        let ticket = loop {
            let reply = this.converse(request, desk.limit)?;
            match introduction.replied(reply, desk.tokens)? {
                Introduced::Ask(next) => request = next,
                Introduced::Welcome { ticket, info } => {
                    this.info = info;
                    break ticket;
                }
            }
        };
        let caps = QpCaps { max_send_wr: DATA_DEPTH as u32, max_recv_wr: 1, ..caps };
        let attr =
            ConnectAttr { access: Access::empty(), max_rd_atomic: RD_ATOMIC, ..ConnectAttr::default() };
        this.data = Some(desk.connect(address, caps, &attr, &Purpose::Data { ticket })?);
        this.dialogue.hears(this.now());
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

    /// For the dialogue.
    fn now(&self) -> Duration {
        self.began.elapsed()
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

    /// Sends what may be sent, and has somebody look in time whether the server is silent.
    fn push(&mut self) -> Result<(), LossReason> {
        let now = self.now();
        while let Some(slot) = self.free_sends.last().copied()
            && let Some(message) = self.dialogue.next_message(now)
        {
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
        }
        let deadline = self.dialogue.deadline();
        if self.deadline != deadline {
            self.deadline = deadline;
            if let Some(at) = deadline {
                self.control.endpoint.set_deadline(Some(self.began + at));
            }
        }
        Ok(())
    }

    fn post_recv(&self, slot: u64) -> Result<(), VerbsError> {
        let sge = self.buffers.sge(slot * MAX_MESSAGE as u64, MAX_MESSAGE as u32);
        Ok(self.control.qp().post_recv(&RecvWr { wr_id: slot, sges: &[sge] })?)
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
        let now = self.now();
        if wc.qpn != self.control.qp().qpn() {
            return self.dialogue.completed(now).map(Some);
        }
        if wc.opcode != WcOpcode::Recv {
            self.dialogue.hears(now);
            self.free_sends.push(wc.wr_id as u32);
            self.push()?;
            return Ok(None);
        }
        let mut message = vec![0; wc.byte_len as usize];
        self.buffers.region().read(wc.wr_id * MAX_MESSAGE as u64, &mut message);
        self.post_recv(wc.wr_id).map_err(local)?;
        let happened = self.dialogue.replied(now, &message)?;
        self.push()?;
        Ok(happened)
    }
}

impl Link for QpLink {
    fn info(&self) -> &PoolInfo {
        &self.info
    }

    fn ask(&mut self, request: Request, tag: Tag) -> Result<(), LossReason> {
        self.dialogue.ask(self.now(), request, tag);
        self.push()
    }

    fn budget(&self) -> usize {
        self.dialogue.budget()
    }

    fn post(&mut self, op: SendOp, chunk: Option<(u64, u32)>, tag: Tag) -> Result<(), LossReason> {
        assert!(self.budget() > 0, "the caller keeps to the budget");
        let sge = chunk.map(|(at, len)| Sge { addr: self.ring.addr.wrapping_add(at), len, ..self.ring });
        let data = Data::Sges(sge.as_slice());
        let wr = SendWr { wr_id: 0, op, data, flags: SendFlags::SIGNALED, ud: None };
        self.data_qp().post_send(&wr).map_err(local)?;
        self.dialogue.posted(self.now(), tag);
        self.push()
    }

    fn look(&mut self, happened: &mut Vec<Happened>) -> Result<(), LossReason> {
        self.completions.clear();
        for half in [Some(&self.control), self.data.as_ref()].into_iter().flatten() {
            half.endpoint.take(&mut self.completions);
        }
        self.take(happened)?;
        if self.control.endpoint.take_due() {
            self.dialogue.due(self.now())?;
            self.push()?;
        }
        Ok(())
    }
}

/// The connection manager is told on the way out; nobody waits for its answer.
impl Drop for QpLink {
    fn drop(&mut self) {
        for half in [Some(&self.control), self.data.as_ref()].into_iter().flatten() {
            let _ = half.connection.disconnect();
        }
    }
}
