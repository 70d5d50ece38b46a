//! The connection manager, sans-IO: who talks to whom, with which QPs, and when it is over.
//!
//! Read first: IBA Vol 1 chapter 12 (communication management), Annex A11 (RDMA IP CM service). The peer is most
//! often `rdma_cm` of Linux (`drivers/infiniband/core/cm.c`, `cma.c`); where the standard leaves a choice, this
//! one does what that one can live with, and a comment says so.
//!
//! A [`Manager`] owns no QP. It is fed MADs (`handle_mad`) and time (`handle_timeout`), gives MADs
//! (`poll_transmit`) and events (`poll_event`), and for each connection knows the [`QpAttr`](crate::QpAttr) values that bring a
//! QP to INIT, RTR and RTS; its caller applies them. Every exchange ends: each message that wants an answer is
//! repeated a bounded number of times, everything that a peer can make us keep is bounded, and what a peer lost
//! (REQ, REP, RTU, REJ, DREQ, DREP) is said again when it asks again.
//!
//! | file | what |
//! |---|---|
//! | `conn.rs` | one connection and its states |
//! | `active.rs` | REQ out, REP in, RTU out |
//! | `passive.rs` | REQ in, REP out, RTU in; listeners, backlog, duplicates, stale connections |
//! | `teardown.rs` | REJ, DREQ, DREP, timewait |
//! | `refusals.rs` | who was refused lately, and how |
//! | `sidr.rs` | service ID resolution, for UD |
//! | `attr.rs` | QP attributes |
//! | `message.rs` | the MADs that leave |

mod active;
mod attr;
mod conn;
mod ids;
mod message;
mod passive;
mod refusals;
mod sidr;
mod teardown;
#[cfg(test)]
mod tests;
mod timing;
mod types;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_wire::cm::{Message, Repr};
use remanence_wire::{Gid, Mtu, Psn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::conn::Conn;
pub use self::conn::State;
use self::ids::CommIds;
use self::message::Mad;
use self::refusals::Refusals;
pub use self::types::{
    Accept, CmError, CommId, CommIdSpace, Config, Connect, Ended, Event, Listen, ListenId, Path, Request,
    SidrReply, SidrRequest, Stats, Transport,
};
use crate::time::Instant;

/// MADs that may wait in the transmit queue for an answer to nobody's connection; more are dropped, as a flood
/// would otherwise grow the queue while the network is slower than the flood.
const STATELESS_REPLIES_MAX: usize = 256;

/// The connection manager of one node or process.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    ids: CommIds,
    rng: ChaCha8Rng,
    conns: BTreeMap<u32, Conn>,
    listeners: BTreeMap<ListenId, Listener>,
    next_listener: u32,
    /// Who listens on a service, by service ID and GID.
    services: BTreeMap<(u64, Option<Gid>), ListenId>,
    /// Connections by the peer's address, GUID and communication ID: finds duplicates.
    ///
    /// A peer's GUID, communication IDs and QP numbers are what it says of itself, and others may say the same: only
    /// together with the address that they came from do they name anything. Without it one peer could end the
    /// connection of another, or keep it from being made.
    by_remote_id: BTreeMap<(Gid, u64, u32), u32>,
    /// Connections by the peer's address, GUID and QP: finds stale connections.
    by_remote_qpn: BTreeMap<(Gid, u64, u32), u32>,
    /// SIDR exchanges of the passive side by the peer's GID and request ID.
    by_sidr: BTreeMap<(Gid, u32), u32>,
    refusals: Refusals,
    timers: BTreeSet<(Instant, u32)>,
    /// What entered timewait, oldest first. Those that have left it since are skipped.
    waiting: VecDeque<u32>,
    half_open: usize,
    knocks: u8,
    out: VecDeque<(Path, Box<Mad>)>,
    events: VecDeque<Event>,
    stats: Stats,
}

#[derive(Debug)]
struct Listener {
    listen: Listen,
    /// How many of its connections are half open.
    pending: usize,
}

impl Manager {
    /// A manager with no connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            ids: CommIds::new(config.comm_ids, config.seed),
            rng: ChaCha8Rng::seed_from_u64(config.seed ^ 0x9e37_79b9_7f4a_7c15),
            config,
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            next_listener: 0,
            services: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            by_sidr: BTreeMap::new(),
            refusals: Refusals::default(),
            timers: BTreeSet::new(),
            waiting: VecDeque::new(),
            half_open: 0,
            knocks: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// The device's addresses and the largest path MTU are others from now on. Connections keep what they have.
    pub fn set_port(&mut self, gids: &[Gid], max_mtu: Mtu) {
        self.config.gids = gids.to_vec();
        self.config.max_mtu = max_mtu;
    }

    /// From now on, asks for a service that nobody listens for `knocks` times more before it believes that: five times 10
    /// ms apart, then each time after twice as long.
    ///
    /// Programs agree out of band that one will connect as soon as the other will listen. Where a connection takes a
    /// system call here and a work queue there, the listener always wins that race; in one process it does not.
    pub fn set_knocks(&mut self, knocks: u8) {
        self.knocks = knocks;
    }

    /// Takes a MAD that arrived on QP 1 from `from`.
    pub fn handle_mad(&mut self, now: Instant, from: Gid, mad: &Mad) {
        self.stats.received += 1;
        let Ok(Repr { transaction_id: tid, message }) = Repr::parse(mad) else {
            self.stats.malformed += 1;
            return;
        };
        match message {
            Message::Req(req) => self.on_req(now, from, tid, &req),
            Message::Mra(mra) => self.on_mra(now, from, &mra),
            Message::Rej(rej) => self.on_rej(now, from, &rej),
            Message::Rep(rep) => self.on_rep(now, from, tid, &rep),
            Message::Rtu(rtu) => self.on_rtu(from, tid, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, from, tid, &dreq),
            Message::Drep(drep) => self.on_drep(now, from, &drep),
            Message::SidrReq(req) => self.on_sidr_req(now, from, tid, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(now, from, &rep),
            // Alternate paths do not exist on RoCE; cm.c ignores these there too.
            Message::Lap(..) | Message::Apr(..) => self.stats.unexpected += 1,
        }
    }

    /// The next MAD to send to QP 1 of `path.remote`, from `path.local`.
    pub fn poll_transmit(&mut self) -> Option<(Path, Box<Mad>)> {
        let next = self.out.pop_front();
        self.stats.sent += u64::from(next.is_some());
        next
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call `handle_timeout`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Does what is due: repeats, gives up, ends timewait.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let conn = self.conns.get_mut(&id).expect("a timer belongs to a connection");
            conn.deadline = None;
            match conn.state {
                State::ReqSent | State::MraReqRcvd => {
                    self.retry_or(now, id, State::ReqSent, Self::give_up_active)
                }
                State::RepSent | State::MraRepRcvd => self.repeat_rep(now, id),
                State::DreqSent => self.retry_or(now, id, State::DreqSent, Self::give_up_disconnect),
                State::SidrReqSent => self.retry_or(now, id, State::SidrReqSent, Self::give_up_sidr),
                State::ReqRcvd | State::MraReqSent => self.expire_request(id),
                State::Timewait => self.leave_timewait(id),
                State::SidrReqRcvd | State::SidrRepSent => self.remove(id),
                State::RepRcvd | State::MraRepSent | State::Established => {
                    unreachable!("{} waits for our caller or the peer, without a timer", conn.state)
                }
            }
        }
    }

    /// What the manager has counted since it was created.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Connections in any state, timewait included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there is no connection in any state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// The state of a connection, `None` once it is gone.
    #[must_use]
    pub fn state(&self, id: CommId) -> Option<State> {
        self.conns.get(&id.0).map(|conn| conn.state)
    }

    /// Sends the message of `id` again and restarts its timer, or gives up.
    fn retry_or(&mut self, now: Instant, id: u32, state: State, give_up: fn(&mut Self, Instant, u32)) {
        let conn = self.conns.get_mut(&id).expect("the caller looked it up");
        if conn.retries_left == 0 {
            return give_up(self, now, id);
        }
        conn.retries_left -= 1;
        conn.state = state;
        let interval = conn.retry_interval;
        self.stats.retries += 1;
        self.resend(id);
        self.set_timer(id, now + interval);
    }

    /// Puts the kept message of `id` on the transmit queue.
    fn resend(&mut self, id: u32) {
        let conn = &self.conns[&id];
        if let Some(message) = &conn.message {
            self.out.push_back((conn.path, message.clone()));
        }
    }

    /// Sends a message that will not be repeated by a timer.
    fn send(&mut self, path: Path, mad: Mad) {
        self.out.push_back((path, Box::new(mad)));
    }

    /// Answers somebody who has no connection with us.
    fn send_stateless(&mut self, path: Path, mad: Result<Mad, CmError>) {
        if self.out.len() < STATELESS_REPLIES_MAX {
            self.send(path, mad.expect("our own information fits"));
        } else {
            self.stats.overflowed += 1;
        }
    }

    /// Tells the caller, if it still cares about `id`.
    fn emit(&mut self, id: u32, event: Event) {
        if self.conns.get(&id).is_some_and(|conn| !conn.abandoned) {
            self.events.push_back(event);
        }
    }

    fn set_timer(&mut self, id: u32, at: Instant) {
        self.cancel_timer(id);
        self.conns.get_mut(&id).expect("the caller looked it up").deadline = Some(at);
        self.timers.insert((at, id));
    }

    fn cancel_timer(&mut self, id: u32) {
        if let Some(at) = self.conns.get_mut(&id).and_then(|conn| conn.deadline.take()) {
            self.timers.remove(&(at, id));
        }
    }

    /// Moves `id` to `state` and keeps the books of half-open connections.
    fn set_state(&mut self, id: u32, state: State) {
        let conn = self.conns.get_mut(&id).expect("the caller looked it up");
        let (was, listener) = (conn.state.is_half_open(), conn.backlog());
        conn.state = state;
        if was && !state.is_half_open() {
            self.release_half_open(listener);
        }
    }

    fn release_half_open(&mut self, listener: Option<ListenId>) {
        self.half_open -= 1;
        // The listener may have gone in the meantime.
        if let Some(listener) = listener.and_then(|id| self.listeners.get_mut(&id)) {
            listener.pending -= 1;
        }
    }

    fn insert(&mut self, id: u32, conn: Conn) {
        if conn.state.is_half_open() {
            self.half_open += 1;
            if let Some(listener) = conn.listener.and_then(|id| self.listeners.get_mut(&id)) {
                listener.pending += 1;
            }
        }
        let twin = self.conns.insert(id, conn);
        assert!(twin.is_none(), "communication ID {id:#x} allocated twice");
    }

    fn allocate_id(&mut self) -> Result<u32, CmError> {
        // A quarter of a small space stays free, so that finding an ID stays quick and IDs stay unlike the last.
        let space = 1_usize << (32 - u32::from(self.config.comm_ids.prefix_bits)).min(31);
        if self.conns.len() >= self.config.max_connections.min(space / 4 * 3) {
            return Err(CmError::NoResources);
        }
        Ok(self.ids.allocate(|id| self.conns.contains_key(&id)))
    }

    /// Forgets `id`.
    fn remove(&mut self, id: u32) {
        self.cancel_timer(id);
        let conn = self.conns.remove(&id).expect("the caller looked it up");
        if conn.state.is_half_open() {
            self.release_half_open(conn.backlog());
        }
        let remote_id = (conn.path.remote, conn.remote_guid, conn.remote_id);
        if self.by_remote_id.get(&remote_id) == Some(&id) {
            self.by_remote_id.remove(&remote_id);
        }
        let remote_qpn = (conn.path.remote, conn.remote_guid, conn.remote_qpn.value());
        if self.by_remote_qpn.get(&remote_qpn) == Some(&id) {
            self.by_remote_qpn.remove(&remote_qpn);
        }
        let sidr = (conn.path.remote, conn.remote_id);
        if self.by_sidr.get(&sidr) == Some(&id) {
            self.by_sidr.remove(&sidr);
        }
    }

    /// The connection `local` if the peer at `from` knows it by `remote`: everything else that says so is stale,
    /// lost or forged.
    fn matching(&self, from: Gid, local: u32, remote: u32) -> Option<&Conn> {
        self.conns.get(&local).filter(|conn| conn.path.remote == from && conn.remote_id == remote)
    }

    fn known(&self, id: CommId) -> Result<&Conn, CmError> {
        self.conns.get(&id.0).filter(|conn| !conn.abandoned).ok_or(CmError::UnknownId)
    }

    /// Where a new QP begins to receive: random, so that packets of an old connection are most likely out of its
    /// window.
    fn random_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }
}
