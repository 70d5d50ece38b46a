//! One session: its QP, its receive ring, and what waits to be sent.
//!
//! *Receive ring.* Message `n`, from 1, is received into buffer `(n - 1) % slots`, as receive buffers are used in the order
//! in which they are posted. A buffer is the service's until it [gives it back](Link::give_back), in the order of the
//! messages; how many a client may have under way, its credits, is between the two.
//!
//! *Sends.* Short messages go inline, and one of some of them has a completion, so that a full queue is heard of when it is
//! full no more. Longer ones take a send buffer, of which all sessions share a stock. What finds no room waits here, and who lets too much
//! wait, as it does not take its answers, is ended.
//!
//! Memory that no message touched yet is not there: a silent session costs its objects, and no buffer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, PostError, QpCaps, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use remanence_verbs::{ConnectAttr, Connection, Mr, Pd, Qp};
use remanence_wire::Rkey;

use super::bounds::Permit;

/// Messages that are not longer go without a buffer.
const INLINE: usize = 256;
/// Marks a work request as a receive; the message's number is beside it.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// Marks a send whose completion frees no buffer, but makes room in the queue.
pub(crate) const ROOM: u64 = 1 << 62;
/// Marks the question whether the client is there.
pub(crate) const PROBE: u64 = 1 << 61;
/// Marks what is posted to be flushed.
const LAST: u64 = 1 << 60;

/// Names a session: never another one, before or after.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Where receive buffers lie.
#[derive(Clone, Copy, Debug)]
pub enum Buffers<'a> {
    /// In memory that is made for them, which nobody reaches from elsewhere.
    Own,
    /// The same, of which the service may bind memory windows: a key to a session's buffers that is good through its QP alone.
    Bindable,
    /// In a region of the service's, from an offset on, registered with these rights.
    Within(&'a Region, u64, Access),
}

/// What a session is to have.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// How many receive buffers it has.
    pub slots: u32,
    /// Bytes of each of them.
    pub slot_size: u32,
    /// Send buffers that it has at once at most, of those that all sessions share.
    pub sends: u32,
    /// Messages to the client that wait for room at most.
    pub unsent: usize,
    /// Work requests that the service posts on its own, beside messages.
    pub extra: u32,
    /// Where its receive buffers lie.
    pub buffers: Buffers<'a>,
    /// How it is connected.
    pub attr: ConnectAttr,
}

impl Spec<'_> {
    /// Of the send queue: all send buffers, as many inline messages three times, the service's own, and a probe.
    const fn max_send_wr(&self) -> u32 {
        4 * self.sends + self.extra + 4
    }

    pub(crate) const fn caps(&self) -> QpCaps {
        QpCaps {
            max_send_wr: self.max_send_wr(),
            max_recv_wr: self.slots,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: INLINE as u32,
        }
    }

    /// Completions that there may be of it at once, those of a second QP among them.
    pub(crate) const fn completions(&self) -> u32 {
        self.max_send_wr() + self.slots + 2
    }

    /// Of memory that is made for it, with send buffers of so many bytes.
    pub(crate) fn bytes(&self, send: u32) -> u64 {
        let received = if matches!(self.buffers, Buffers::Own | Buffers::Bindable) { self.slots } else { 0 };
        u64::from(received) * u64::from(self.slot_size) + u64::from(self.sends) * u64::from(send)
    }
}

#[derive(Debug)]
struct Ring {
    mr: Mr,
    slots: u32,
    slot_size: u32,
}

impl Ring {
    /// Where message `number` is, from the beginning of what is registered.
    fn offset(&self, number: u64) -> u64 {
        (number - 1) % u64::from(self.slots) * u64::from(self.slot_size)
    }

    fn post(&self, qp: &Qp, number: u64) -> Result<(), PostError> {
        let sge = [self.mr.sge(self.offset(number), self.slot_size)];
        qp.post_recv(&RecvWr { wr_id: number | RECEIVE, sges: &sge })
    }
}

/// A session that is made and not connected yet: its client may be told of it.
#[derive(Debug)]
pub struct Opened {
    id: SessionId,
    ring: Ring,
    outbox: Outbox,
    pub(crate) qp: Qp,
    pub(crate) attr: ConnectAttr,
    permit: Permit,
}

#[derive(Debug)]
struct Outbox {
    /// Send buffers that the RNIC may read, in the order of the sends.
    held: VecDeque<u32>,
    held_max: usize,
    unsent: VecDeque<Vec<u8>>,
    unsent_max: usize,
    /// One in so many inline messages has a completion.
    every: u32,
    inline: u32,
    /// Something was posted that no completion will tell of.
    unheard: bool,
}

/// The send buffers of all sessions. The one that was free last is used next, as its memory is there: what a server sends to
/// silent sessions now and then takes no memory for each.
#[derive(Debug)]
pub(crate) struct SendBuffers {
    pd: Pd,
    size: u32,
    lots: Vec<Mr>,
    free: Vec<u32>,
}

impl SendBuffers {
    /// So many are made at once.
    const LOT: u32 = 64;

    pub(crate) const fn new(pd: Pd, size: u32) -> Self {
        Self { pd, size, lots: Vec::new(), free: Vec::new() }
    }

    fn take(&mut self) -> Result<u32, super::Error> {
        if self.free.is_empty() {
            let first = self.lots.len() as u32 * Self::LOT;
            let region = Region::anonymous(u64::from(Self::LOT) * u64::from(self.size))?;
            self.lots.push(self.pd.reg_mr(&region, Access::LOCAL_WRITE)?);
            self.free.extend((first..first + Self::LOT).rev());
        }
        Ok(self.free.pop().expect("there are some now"))
    }

    fn fill(&self, slot: u32, bytes: &[u8]) -> Sge {
        let mr = &self.lots[(slot / Self::LOT) as usize];
        let at = u64::from(slot % Self::LOT) * u64::from(self.size);
        mr.region().write(at, bytes);
        mr.sge(at, bytes.len() as u32)
    }

    /// Those that are free again: nobody reads them any more.
    pub(crate) fn give_back(&mut self, slots: impl IntoIterator<Item = u32>) {
        self.free.extend(slots);
    }
}

impl Opened {
    pub(crate) fn new(
        pd: &Pd,
        qp: Qp,
        id: SessionId,
        permit: Permit,
        spec: &Spec<'_>,
    ) -> Result<Self, super::Error> {
        let received = u64::from(spec.slots) * u64::from(spec.slot_size);
        let mr = match spec.buffers {
            Buffers::Own => pd.reg_mr(&Region::anonymous(received)?, Access::LOCAL_WRITE)?,
            Buffers::Bindable => {
                pd.reg_mr(&Region::anonymous(received)?, Access::LOCAL_WRITE | Access::MW_BIND)?
            }
            Buffers::Within(region, at, access) => pd.reg_mr_at(region, at, received, 0, access)?,
        };
        let ring = Ring { mr, slots: spec.slots, slot_size: spec.slot_size };
        let attr = remanence_rnic::QpAttr {
            state: Some(remanence_rnic::QpState::Init),
            access: Some(spec.attr.access),
            ..remanence_rnic::QpAttr::default()
        };
        // Receives are posted before the peer can know of the QP; INIT is the first state that takes them.
        qp.modify(&attr).map_err(remanence_verbs::Error::from)?;
        for number in 1..=u64::from(spec.slots) {
            ring.post(&qp, number).map_err(remanence_verbs::Error::from)?;
        }
        let outbox = Outbox {
            held: VecDeque::new(),
            held_max: spec.sends as usize,
            unsent: VecDeque::new(),
            unsent_max: spec.unsent,
            every: (spec.max_send_wr() / 4).max(1),
            inline: 0,
            unheard: false,
        };
        Ok(Self { id, ring, outbox, qp, attr: spec.attr, permit })
    }

    /// The number of the session.
    #[must_use]
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// Which of the server's permits it has.
    #[must_use]
    pub const fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Its receive buffers, one behind the other from the beginning. What is registered may have more.
    #[must_use]
    pub fn buffers(&self) -> &Mr {
        &self.ring.mr
    }

    pub(crate) fn into_link(self, connection: Connection, peer: IpAddr, now: Instant) -> Link {
        let Self { id, ring, outbox, permit, .. } = self;
        Link {
            id,
            peer,
            connection,
            second: None,
            ring,
            outbox,
            received: 0,
            touched: false,
            failed: false,
            leaving: false,
            closed: false,
            cut: false,
            probing: false,
            heard: now,
            permit,
        }
    }
}

/// What the server knows of a session. The service sends through it.
#[derive(Debug)]
pub struct Link {
    pub(crate) id: SessionId,
    peer: IpAddr,
    pub(crate) connection: Connection,
    pub(crate) second: Option<Connection>,
    ring: Ring,
    outbox: Outbox,
    pub(crate) received: u64,
    /// It is in the list of those that have something to do.
    pub(crate) touched: bool,
    failed: bool,
    /// It ends when all that was sent has arrived, and nothing more is sent.
    pub(crate) leaving: bool,
    /// The service has closed it, and is handed nothing more of it.
    closed: bool,
    cut: bool,
    pub(crate) probing: bool,
    pub(crate) heard: Instant,
    /// The last to go.
    permit: Permit,
}

/// A session as the service has it: what it keeps for it, and the server's part.
#[derive(Debug)]
pub struct Session<S> {
    /// What the service keeps for it.
    pub state: S,
    /// What the server knows of it.
    pub link: Link,
}

impl Link {
    /// The number of the session.
    #[must_use]
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// Where its client is.
    #[must_use]
    pub const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Which of the server's permits it has.
    #[must_use]
    pub const fn permit(&self) -> &Permit {
        &self.permit
    }

    /// Its QP, for work requests of the service's own ([`Spec::extra`]). They have the number [`own`](Self::OWN), and some of
    /// them a completion.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        self.connection.qp()
    }

    /// The number of work requests that a service posts on its own.
    pub const OWN: u64 = ROOM;

    /// Its receive buffers, as they are registered.
    #[must_use]
    pub const fn buffers(&self) -> &Mr {
        &self.ring.mr
    }

    /// The memory that its receive buffers lie in.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.ring.mr.region()
    }

    /// Where in [`region`](Self::region) message `number` is.
    #[must_use]
    pub fn place_of(&self, number: u64) -> u64 {
        self.ring.mr.offset() + self.ring.offset(number)
    }

    /// How many receive buffers it has.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.ring.slots
    }

    /// Bytes of each of them.
    #[must_use]
    pub const fn slot_size(&self) -> u32 {
        self.ring.slot_size
    }

    /// The session cannot go on: it ends when the service has returned.
    pub const fn fail(&mut self) {
        self.failed = true;
    }

    /// Copies message `number` out of its buffer.
    pub fn read(&self, number: u64, bytes: &mut [u8]) {
        self.region().read(self.place_of(number), bytes);
    }

    /// The buffer of message `number` may be received into again. Each message's once, in their order.
    pub fn give_back(&mut self, number: u64) {
        let next = number + u64::from(self.ring.slots);
        self.failed |= self.ring.post(self.connection.qp(), next).is_err();
    }

    /// Sends a message, which must fit a send buffer ([`Options::message`](super::Options::message)). It leaves when the service has returned.
    pub fn send(&mut self, message: Vec<u8>) {
        if !self.leaving {
            self.outbox.unsent.push_back(message);
        }
    }

    /// Messages that wait to be sent.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.outbox.unsent.len()
    }

    /// Ends the session when all that was sent has arrived. Nothing that comes meanwhile is handed over.
    pub const fn leave(&mut self) {
        (self.leaving, self.closed) = (true, true);
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) const fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// A client that leaves has all that was sent to it.
    pub(crate) fn has_left(&self) -> bool {
        self.leaving && !self.is_sending()
    }

    /// Something that is to be sent may not have arrived yet.
    pub(crate) fn is_sending(&self) -> bool {
        let Outbox { held, unsent, unheard, .. } = &self.outbox;
        *unheard || self.probing || !unsent.is_empty() || !held.is_empty()
    }

    /// Makes sure that a completion tells when all that was sent has arrived.
    pub(crate) fn ask_for_news(&mut self) {
        if self.outbox.unheard {
            self.probe();
        }
    }

    /// It cannot go on: a work request was refused that should not have been, or its client lets too much wait.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Its client does not take its answers.
    pub(crate) fn is_drowning(&self) -> bool {
        self.outbox.unsent.len() > self.outbox.unsent_max
    }

    /// A send has completed, and with it all before it.
    pub(crate) fn sent(&mut self, wr_id: u64, buffers: &mut SendBuffers) {
        match wr_id {
            PROBE => self.probing = false,
            ROOM => {}
            slot => {
                let oldest = self.outbox.held.pop_front();
                debug_assert_eq!(oldest.map(u64::from), Some(slot), "sends complete in order");
                buffers.give_back(oldest);
            }
        }
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn push(&mut self, buffers: &mut SendBuffers) {
        let Self { connection, outbox, failed, .. } = self;
        let qp = connection.qp();
        while let Some(bytes) = outbox.unsent.front() {
            let posted = if bytes.len() <= INLINE {
                let signaled = outbox.inline.wrapping_add(1).is_multiple_of(outbox.every);
                let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
                let wr = SendWr { wr_id: ROOM, op: SendOp::Send, data: Data::Inline(bytes), flags, ud: None };
                qp.post_send(&wr).inspect(|()| {
                    outbox.inline = outbox.inline.wrapping_add(1);
                    outbox.unheard = true;
                })
            } else {
                if outbox.held.len() >= outbox.held_max {
                    return;
                }
                let Ok(slot) = buffers.take() else {
                    *failed = true;
                    return;
                };
                let sge = [buffers.fill(slot, bytes)];
                let wr = SendWr {
                    wr_id: slot.into(),
                    op: SendOp::Send,
                    data: Data::Sges(&sge),
                    flags: SendFlags::SIGNALED,
                    ud: None,
                };
                let posted = qp.post_send(&wr);
                match posted {
                    Ok(()) => outbox.held.push_back(slot),
                    Err(_) => buffers.give_back([slot]),
                }
                posted
            };
            match posted {
                Ok(()) => drop(outbox.unsent.pop_front()),
                // A completion comes when there is room, or the one that ends the session.
                Err(PostError::QueueFull | PostError::InvalidState) => return,
                Err(_) => {
                    *failed = true;
                    return;
                }
            }
        }
    }

    /// A WRITE of no bytes touches nothing and needs no key, and a peer that is gone does not acknowledge it. It completes
    /// after all that was sent before it.
    pub(crate) fn probe(&mut self) {
        if self.probing || self.cut {
            return;
        }
        match self.post_nothing(PROBE) {
            Ok(()) => {
                self.probing = true;
                self.outbox.unheard = false;
            }
            // Then something is under way that will tell.
            Err(PostError::QueueFull) => {}
            Err(_) => self.failed = true,
        }
    }

    fn post_nothing(&self, wr_id: u64) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op: SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) }),
            data: Data::Sges(&[]),
            flags: SendFlags::SIGNALED,
            ud: None,
        };
        self.connection.qp().post_send(&wr)
    }

    /// Nothing more arrives, and nothing is sent. Behind the completions of what has arrived comes one of something that was
    /// flushed; `false`: there will be none.
    pub(crate) fn cut(&mut self) -> bool {
        if std::mem::replace(&mut self.cut, true) {
            return true;
        }
        self.disconnect();
        // The client may have used all receive buffers, and nothing be under way to it: then this alone is flushed. Where it
        // finds no room, what takes the room is.
        matches!(self.post_nothing(LAST), Ok(()) | Err(PostError::QueueFull))
    }

    pub(crate) const fn is_cut(&self) -> bool {
        self.cut
    }

    /// The send buffers that it has. They are free when its QP is gone.
    pub(crate) fn take_held(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.outbox.held)
    }

    /// Its QPs go to the error state, and the client is told.
    pub(crate) fn disconnect(&self) {
        for connection in [Some(&self.connection), self.second.as_ref()].into_iter().flatten() {
            // It may be over already; then there is nothing to end.
            let _ = connection.disconnect();
        }
    }
}
