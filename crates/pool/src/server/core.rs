//! What a server answers, decided without waiting: who is admitted, what each client may reach, when a blob counts.
//!
//! The rules, which the tests below hold against it:
//!
//! * Nothing but `Hello` and `Authenticate` is answered before the client has proved that it has the token; no key
//!   to memory exists for it before.
//! * A key opens one extent, for the QPs of one client: blocks it reserved (to write), or blocks of a blob it looked
//!   up (to read). Its keys are closed before its reservation becomes a blob, when it lets go, and when it is gone.
//! * Commits that arrive together become durable together: [`Core::settle`] makes one frame of them.
//! * Clients, and what each may hold, are bounded.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use remanence_pmem::{Guarantee, Medium};

use crate::alloc::Extent;
use crate::auth::{
    self, AccessPolicy, ChallengeName, Credential, Crowd, Nonce, Proof, Refusal, Room, Side, Token,
};
use crate::error::PoolError;
use crate::format::BLOCK;
use crate::pool::{Change, LeaseId, Pool, ReservationId};
use crate::proto::{Code, EXTENTS_PER_MESSAGE, PoolInfo, RemoteExtent, Reply, Request, WINDOW, sentence};

/// The number of a client's connection, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// What a key allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rights {
    /// WRITE and FLUSH: the key is for a reservation.
    Fill,
    /// READ: the key is for a committed blob.
    Read,
    /// Everything: the key is for scratch memory.
    All,
}

/// Opens and closes pool memory to clients. The live server implements it with MRs of the client's own PD.
pub trait Keys {
    /// Opens `len` bytes from `offset` of the pool to this client's QPs.
    ///
    /// # Errors
    /// Why not, as a sentence.
    fn open(
        &mut self,
        client: ClientId,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteExtent, String>;

    /// Closes what `open` opened. When this returns, no access under that key succeeds any more.
    fn close(&mut self, client: ClientId, extent: RemoteExtent);
}

/// What to do after a message was received.
#[derive(PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send this message, which is the reply.
    Reply(Vec<u8>),
    /// The answer comes from [`Core::settle`], which must be called soon.
    Later,
    /// Send this, then disconnect.
    Last(Vec<u8>),
    /// Disconnect: no sound client sends this.
    Hostile(&'static str),
}

/// Bounds of what a server lets its clients have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Clients that have proved the token. Who proves it when there are as many takes the place of another one, if that is
    /// fair; see [`Core::gave_way`].
    pub clients: usize,
    /// Clients that have not proved anything yet, and how long one may take.
    pub strangers: Room,
    /// Reservations, and leases, that one client may hold.
    pub holdings: usize,
    /// A client that said nothing for so long is asked whether it is there.
    pub quiet: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096,
            strangers: Room { most: 256, each: 64, patience: Duration::from_secs(10) },
            holdings: 1024,
            quiet: Duration::from_secs(5),
        }
    }
}

#[derive(Debug)]
enum Standing {
    /// Has connected, and has said nothing yet.
    Stranger,
    /// Said hello, and was given this challenge.
    Challenged { challenge: ChallengeName },
    /// Has proved that it has the token. The ticket is what its second QP shows when it connects.
    Member { ticket: [u8; 16] },
}

#[derive(Debug)]
struct Client {
    address: IpAddr,
    standing: Standing,
    /// When it last said something.
    heard: Duration,
    reservations: BTreeMap<ReservationId, Holding>,
    leases: BTreeMap<LeaseId, Holding>,
    /// Requests that wait for [`Core::settle`].
    waiting: usize,
}

impl Client {
    fn holds_nothing(&self) -> bool {
        self.reservations.is_empty() && self.leases.is_empty() && self.waiting == 0
    }
}

/// The keys of a reservation or a lease.
#[derive(Debug, Default)]
struct Holding {
    keys: Vec<RemoteExtent>,
    /// A lease: extents that the client has not asked for yet.
    unopened: Vec<(u64, u64)>,
    /// A reservation that may not grow or change any more: its commit was asked for.
    sealed: bool,
    /// Scratch memory is no blob and never will be.
    scratch: bool,
}

#[derive(Debug)]
struct Waiting {
    client: ClientId,
    number: u32,
    change: Change,
}

/// Counts what happened, for the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Clients that proved the token.
    pub admitted: u64,
    /// Proofs that were wrong, so that their client was refused.
    pub wrong_tokens: u64,
    /// Blobs that were committed, new versions of old ones among them.
    pub committed: u64,
    /// Deletions that were committed, those of names that no blob had among them.
    pub deleted: u64,
    /// Connections ended for what they sent.
    pub hostile: u64,
    /// Quiet clients that were asked whether they are there, and were.
    pub probed: u64,
}

/// The server without its network.
#[derive(Debug)]
pub struct Core<M> {
    pool: Pool<M>,
    token: Token,
    limits: Limits,
    policy: AccessPolicy,
    /// What the memory promises, and the same in a sentence.
    domain: (Guarantee, String),
    clients: BTreeMap<ClientId, Client>,
    strangers: Crowd<ClientId>,
    gave_way: Option<ClientId>,
    waiting: Vec<Waiting>,
    stats: Stats,
}

impl<M: Medium> Core<M> {
    /// A server for `pool`, whose memory promises what `guarantee` says; `survives` is that in a sentence.
    #[must_use]
    pub fn new(pool: Pool<M>, token: Token, limits: Limits, guarantee: Guarantee, survives: &str) -> Self {
        Self {
            pool,
            policy: AccessPolicy::new(Some(token.clone())),
            token,
            limits,
            domain: (guarantee, sentence(survives)),
            clients: BTreeMap::new(),
            strangers: Crowd::new(limits.strangers),
            gave_way: None,
            waiting: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// The pool that is served.
    pub const fn pool(&self) -> &Pool<M> {
        &self.pool
    }

    /// What happened so far.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// The bounds that this server was made with.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Closes the pool in good order: see [`Pool::close`].
    ///
    /// # Errors
    /// The medium failed.
    pub fn close(&mut self) -> Result<(), PoolError> {
        self.pool.close()
    }

    /// Someone connected. Returns who has to go for it, as too many have proved nothing yet: the caller disconnects it.
    pub fn connected(&mut self, now: Duration, client: ClientId, address: IpAddr) -> Option<ClientId> {
        // How many members there are is asked when it is one.
        let goes = self.strangers.enter(now, client, address);
        let (reservations, leases) = (BTreeMap::new(), BTreeMap::new());
        let standing = Standing::Stranger;
        let heard = now;
        self.clients.insert(client, Client { address, standing, heard, reservations, leases, waiting: 0 });
        goes
    }

    /// Who has to go for the one that proved the token last, as there were as many as there may be: the caller
    /// disconnects it.
    pub fn gave_way(&mut self) -> Option<ClientId> {
        self.gave_way.take()
    }

    /// Makes room for a member from `address`; `false` if nobody has to go for it. Whoever has the token may open as many
    /// sessions as there are, and do nothing with them. So of the address that has most of them one gives way: the one
    /// that has been silent for longest of those that hold nothing, and whose next request opens another session; if all
    /// hold something, the most silent of all, but only for an address that has fewer.
    fn make_room(&mut self, address: IpAddr) -> bool {
        let members =
            || self.clients.iter().filter(|(_, client)| matches!(client.standing, Standing::Member { .. }));
        if members().count() < self.limits.clients {
            return true;
        }
        let mut count: BTreeMap<IpAddr, usize> = BTreeMap::new();
        members().for_each(|(_, client)| *count.entry(client.address).or_default() += 1);
        let most = count.values().max().copied().unwrap_or(0);
        let mine = count.get(&address).copied().unwrap_or(0);
        let goes = members()
            .filter(|(_, client)| count[&client.address] == most)
            .filter(|(_, client)| client.holds_nothing() || mine + 1 < most)
            .min_by_key(|(_, client)| (!client.holds_nothing(), client.heard))
            .map(|(id, _)| *id);
        self.gave_way = goes;
        goes.is_some()
    }

    /// What a client shows when it connects its second QP, if it has proved the token.
    #[must_use]
    pub fn ticket(&self, client: ClientId) -> Option<[u8; 16]> {
        match self.clients.get(&client)?.standing {
            Standing::Member { ticket } => Some(ticket),
            Standing::Stranger | Standing::Challenged { .. } => None,
        }
    }

    /// When there is the next stranger whose time is over.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.strangers.deadline()
    }

    /// Strangers whose time is over; the caller disconnects them.
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = ClientId> {
        self.strangers.expired(now)
    }

    /// Someone is gone: what it reserved is free again, what it read may go.
    pub fn disconnected(&mut self, client: ClientId, keys: &mut impl Keys) {
        let Some(gone) = self.clients.remove(&client) else { return };
        self.strangers.leave(client);
        // Its commits may have been asked for and not made: they are not made any more. Nobody was told they were.
        self.waiting.retain(|waiting| waiting.client != client);
        for (id, holding) in gone.reservations {
            holding.keys.into_iter().for_each(|key| keys.close(client, key));
            self.pool.abandon(id).expect("held by this client");
        }
        for (id, holding) in gone.leases {
            holding.keys.into_iter().for_each(|key| keys.close(client, key));
            self.pool.release(id).expect("held by this client");
        }
    }

    /// A message came.
    pub fn receive(
        &mut self,
        now: Duration,
        from: ClientId,
        message: &[u8],
        random: &mut impl FnMut(&mut [u8]),
        keys: &mut impl Keys,
    ) -> Verdict {
        let Ok((number, request)) = Request::parse(message) else {
            return self.hostile("a malformed message");
        };
        let Some(client) = self.clients.get_mut(&from) else { return Verdict::Hostile("nobody") };
        client.heard = now;
        match (&client.standing, request) {
            (Standing::Stranger, Request::Hello { nonce }) => {
                self.take_credential(now, from, number, &Credential::Nonce(nonce), None, random)
            }
            (Standing::Challenged { challenge }, Request::Authenticate { proof }) => {
                let credential = Credential::Proof(*challenge);
                self.take_credential(now, from, number, &credential, Some(proof), random)
            }
            (Standing::Member { .. }, Request::Hello { .. } | Request::Authenticate { .. }) => {
                self.hostile("authentication twice")
            }
            (Standing::Member { .. }, request) => self.serve(from, number, request, keys),
            (Standing::Stranger | Standing::Challenged { .. }, _) => {
                self.hostile("a request before authentication")
            }
        }
    }

    /// Somebody who has proved nothing yet says hello, or answers its challenge.
    fn take_credential(
        &mut self,
        now: Duration,
        from: ClientId,
        number: u32,
        credential: &Credential,
        proof: Option<Proof>,
        random: &mut impl FnMut(&mut [u8]),
    ) -> Verdict {
        let client = self.clients.get_mut(&from).expect("looked up by the caller");
        let mut fresh = [0; 32];
        random(&mut fresh);
        let right = |token: &Token, theirs: &Nonce, ours: &Nonce| {
            proof.is_some_and(|proof| Side::Client.verify(token, theirs, ours, &proof))
        };
        let refused = |code, reason: &str| Verdict::Last(Reply::refused(code, reason).emit(number));
        match self.policy.judge(now, fresh, client.address, credential, right) {
            auth::Verdict::Refuse(Refusal::Challenge(nonce)) => {
                client.standing = Standing::Challenged { challenge: auth::name(&nonce) };
                let fingerprint = self.token.fingerprint();
                Verdict::Reply(Reply::Challenge { nonce, fingerprint }.emit(number))
            }
            auth::Verdict::Refuse(Refusal::Wait(wait)) => {
                Verdict::Last(too_early(client.address, wait).emit(number))
            }
            auth::Verdict::Refuse(Refusal::WrongToken) => {
                self.stats.wrong_tokens += 1;
                let reason =
                    "the token is wrong; use the one that this server printed or keeps in its token file";
                refused(Code::WrongToken, reason)
            }
            auth::Verdict::Refuse(Refusal::Late) => {
                refused(Code::TryLater, "the proof of the token came too late; try again")
            }
            auth::Verdict::Refuse(Refusal::TokenNeeded | Refusal::NoToken) | auth::Verdict::Open => {
                unreachable!("the server has a token, and something was credential")
            }
            auth::Verdict::Admit { token, client: theirs, server: ours, .. } => {
                let address = client.address;
                if !self.make_room(address) {
                    let reason = "the server has as many clients as it takes; try again later";
                    return refused(Code::TryLater, reason);
                }
                let client = self.clients.get_mut(&from).expect("nobody was removed");
                let proof = Side::Server.prove(&token, &theirs, &ours);
                let mut ticket = [0; 16];
                random(&mut ticket);
                client.standing = Standing::Member { ticket };
                self.strangers.leave(from);
                self.stats.admitted += 1;
                Verdict::Reply(Reply::Welcome { proof, ticket, info: self.info() }.emit(number))
            }
        }
    }

    fn serve(&mut self, from: ClientId, number: u32, request: Request, keys: &mut impl Keys) -> Verdict {
        let client = self.clients.get_mut(&from).expect("looked up by the caller");
        let answer = match request {
            Request::Hello { .. } | Request::Authenticate { .. } => unreachable!("not from members"),
            Request::Ping => Ok(Reply::Done),
            Request::Reserve { name, bytes, at_least } => {
                let bytes = self.clip(bytes, at_least);
                match self.pool.ticket() {
                    Ok(ticket) => self.reserve(from, name, bytes, Rights::Fill, ticket, keys),
                    Err(error) => Err(error.into()),
                }
            }
            Request::Scratch { bytes } => {
                let name = crate::BlobName::new("scratch").expect("a fair name");
                self.reserve(from, name, bytes, Rights::All, 0, keys)
            }
            Request::Extend { reservation, bytes, at_least } => {
                let bytes = self.clip(bytes, at_least);
                self.extend(from, ReservationId(reservation), bytes, Rights::Fill, keys)
                    .map(|extents| Reply::Extents { extents })
            }
            Request::Commit { reservation, version, len, digest } => {
                let id = ReservationId(reservation);
                match client.reservations.get_mut(&id).filter(|held| !held.scratch) {
                    None => Err(PoolError::NoSuchReservation.into()),
                    Some(held) => {
                        // From here on the data may not change, whoever wins.
                        held.sealed = true;
                        held.keys.drain(..).for_each(|key| keys.close(from, key));
                        self.pool.data_durable(id).expect("held by this client");
                        return self.wait(
                            from,
                            number,
                            Change::Put { reservation: id, version, len, digest },
                        );
                    }
                }
            }
            Request::Delete { name, version } => {
                return self.wait(from, number, Change::Delete { name, version });
            }
            Request::Abandon { reservation } => {
                let id = ReservationId(reservation);
                // A commit that waits would find its reservation gone.
                let waits = self
                    .waiting
                    .iter()
                    .any(|w| matches!(w.change, Change::Put { reservation, .. } if reservation == id));
                match client.reservations.remove(&id) {
                    Some(_) if waits => return self.hostile("an abandoned commit"),
                    None => Err(PoolError::NoSuchReservation.into()),
                    Some(held) => {
                        held.keys.into_iter().for_each(|key| keys.close(from, key));
                        self.pool.abandon(id).map(|()| Reply::Done).map_err(Into::into)
                    }
                }
            }
            Request::Lookup { name } => self.lookup(from, &name, keys),
            Request::MoreExtents { lease, from: known } => {
                self.more_extents(from, LeaseId(lease), known, keys).map(|extents| Reply::Extents { extents })
            }
            Request::Release { lease } => match client.leases.remove(&LeaseId(lease)) {
                None => Err(PoolError::NoSuchLease.into()),
                Some(held) => {
                    held.keys.into_iter().for_each(|key| keys.close(from, key));
                    self.pool.release(LeaseId(lease)).map(|()| Reply::Done).map_err(Into::into)
                }
            },
            Request::List { after } => Ok(Reply::page(self.pool.list(after.as_ref()))),
            Request::Ticket => {
                self.pool.ticket().map(|number| Reply::Promised { number }).map_err(Into::into)
            }
            Request::Promise { number } => {
                self.pool.promise(number).map(|number| Reply::Promised { number }).map_err(Into::into)
            }
            Request::Stat => Ok(Reply::Info(self.info())),
            Request::VersionOf { name } => {
                Ok(Reply::IsAt { version: self.pool.version(&name), live: self.pool.find(&name).is_some() })
            }
        };
        Verdict::Reply(answer.unwrap_or_else(No::into_reply).emit(number))
    }

    /// Makes all changes that wait durable, and gives the answers.
    pub fn settle(&mut self) -> Vec<(ClientId, Vec<u8>)> {
        let waiting = std::mem::take(&mut self.waiting);
        let changes: Vec<Change> = waiting.iter().map(|w| w.change.clone()).collect();
        let verdicts = match self.pool.commit(&changes) {
            Ok(verdicts) => verdicts,
            Err(failed) => vec![Err(failed); waiting.len()],
        };
        let mut answers = Vec::with_capacity(waiting.len());
        for (waiting, verdict) in waiting.into_iter().zip(verdicts) {
            let client = self.clients.get_mut(&waiting.client).expect("who is gone does not wait");
            client.waiting -= 1;
            if verdict.is_ok() {
                match &waiting.change {
                    Change::Put { reservation, .. } => {
                        client.reservations.remove(reservation).expect("held by this client");
                        self.stats.committed += 1;
                    }
                    Change::Delete { .. } => self.stats.deleted += 1,
                }
            }
            let reply =
                verdict.map_or_else(|e| No::from(e).into_reply(), |version| Reply::Committed { version });
            answers.push((waiting.client, reply.emit(waiting.number)));
        }
        answers
    }

    /// Whether [`Core::settle`] has something to do.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn wait(&mut self, client: ClientId, number: u32, change: Change) -> Verdict {
        let waiting = &mut self.clients.get_mut(&client).expect("looked up by the caller").waiting;
        if *waiting >= WINDOW {
            return self.hostile("more requests at once than agreed");
        }
        *waiting += 1;
        self.waiting.push(Waiting { client, number, change });
        Verdict::Later
    }

    /// How many bytes are taken from the pool: what is free, if that is less than `bytes` and at least `at_least`;
    /// `bytes` otherwise.
    fn clip(&self, bytes: u64, at_least: u64) -> u64 {
        let free = self.pool.usage().free;
        if free < bytes && free >= at_least { free } else { bytes }
    }

    fn reserve(
        &mut self,
        from: ClientId,
        name: crate::BlobName,
        bytes: u64,
        rights: Rights,
        ticket: u64,
        keys: &mut impl Keys,
    ) -> Result<Reply, No> {
        let held = &mut self.clients.get_mut(&from).expect("looked up by the caller").reservations;
        if held.len() >= self.limits.holdings {
            return Err(No::refused("this client holds as many reservations as a client may"));
        }
        let id = self.pool.reserve(name);
        held.insert(id, Holding { scratch: rights == Rights::All, ..Holding::default() });
        match self.extend(from, id, bytes, rights, keys) {
            Ok(extents) => Ok(Reply::Reserved { reservation: id.0, ticket, extents }),
            Err(no) => {
                self.clients.get_mut(&from).expect("looked up above").reservations.remove(&id);
                self.pool.abandon(id).expect("reserved above");
                Err(no)
            }
        }
    }

    fn extend(
        &mut self,
        from: ClientId,
        id: ReservationId,
        bytes: u64,
        rights: Rights,
        keys: &mut impl Keys,
    ) -> Result<Vec<RemoteExtent>, No> {
        let held = self.clients.get_mut(&from).expect("looked up by the caller").reservations.get_mut(&id);
        let held = held.ok_or(PoolError::NoSuchReservation)?;
        if held.sealed || (held.scratch && rights != Rights::All) {
            return Err(No::refused("this reservation cannot grow any more"));
        }
        let extents = self.pool.extend(id, bytes, EXTENTS_PER_MESSAGE)?;
        let opened = open_all(&self.pool, from, &extents, rights, keys)?;
        // Blocks without a key stay in the reservation: they are free again when it goes, and so does the blob's
        // order not depend on what could be opened.
        held.keys.extend(&opened);
        Ok(opened)
    }

    fn lookup(&mut self, from: ClientId, name: &crate::BlobName, keys: &mut impl Keys) -> Result<Reply, No> {
        let held = &mut self.clients.get_mut(&from).expect("looked up by the caller").leases;
        if held.len() >= self.limits.holdings {
            return Err(No::refused("this client holds as many read leases as a client may"));
        }
        let (id, found) = self.pool.lease(name)?;
        let spans = spans(&self.pool, &found.extents);
        held.insert(id, Holding { unopened: spans, ..Holding::default() });
        let total = found.extents.len() as u32;
        match self.more_extents(from, id, 0, keys) {
            Ok(extents) => {
                let (version, len, digest) = (found.version, found.len, found.digest);
                Ok(Reply::Found { lease: id.0, version, len, digest, total, extents })
            }
            Err(no) => {
                self.clients.get_mut(&from).expect("looked up above").leases.remove(&id);
                self.pool.release(id).expect("leased above");
                Err(no)
            }
        }
    }

    fn more_extents(
        &mut self,
        from: ClientId,
        id: LeaseId,
        known: u32,
        keys: &mut impl Keys,
    ) -> Result<Vec<RemoteExtent>, No> {
        let held = self.clients.get_mut(&from).expect("looked up by the caller").leases.get_mut(&id);
        let held = held.ok_or(PoolError::NoSuchLease)?;
        if known as usize != held.keys.len() {
            return Err(No::refused("extents are read in order"));
        }
        let next = held.unopened.len().min(EXTENTS_PER_MESSAGE);
        let mut opened = Vec::with_capacity(next);
        for (offset, len) in held.unopened.drain(..next) {
            opened.push(keys.open(from, offset, len, Rights::Read).map_err(No::refused)?);
            held.keys.extend(opened.last());
        }
        Ok(opened)
    }

    fn info(&self) -> PoolInfo {
        let usage = self.pool.usage();
        PoolInfo {
            uuid: self.pool.uuid(),
            size: usage.size,
            capacity: usage.capacity,
            free: usage.free,
            blobs: usage.blobs,
            sequence: usage.sequence,
            guarantee: self.domain.0,
            survives: self.domain.1.clone(),
        }
    }

    fn hostile(&mut self, what: &'static str) -> Verdict {
        self.stats.hostile += 1;
        Verdict::Hostile(what)
    }
}

fn too_early(address: IpAddr, wait: Duration) -> Reply {
    let seconds = wait.as_secs() + 1;
    Reply::refused(
        Code::TryLater,
        &format!("too many wrong tokens came from {address}; try again in {seconds} seconds"),
    )
}

/// Opens extents to a client, all or none.
fn open_all<M: Medium>(
    pool: &Pool<M>,
    client: ClientId,
    extents: &[Extent],
    rights: Rights,
    keys: &mut impl Keys,
) -> Result<Vec<RemoteExtent>, No> {
    let mut opened = Vec::with_capacity(extents.len());
    for (offset, len) in spans(pool, extents) {
        match keys.open(client, offset, len, rights) {
            Ok(extent) => opened.push(extent),
            Err(why) => {
                opened.into_iter().for_each(|extent| keys.close(client, extent));
                return Err(No::refused(why));
            }
        }
    }
    Ok(opened)
}

/// Where extents lie in the pool: offset and length in bytes.
fn spans<M: Medium>(pool: &Pool<M>, extents: &[Extent]) -> Vec<(u64, u64)> {
    extents.iter().map(|e| (pool.geometry().block(e.start), e.blocks * BLOCK)).collect()
}

/// A refusal: the code that goes to the client's program, and the sentence that goes to its user.
struct No {
    code: Code,
    reason: String,
}

impl No {
    fn refused(reason: impl Into<String>) -> Self {
        Self { code: Code::Refused, reason: reason.into() }
    }

    fn into_reply(self) -> Reply {
        Reply::refused(self.code, &self.reason)
    }
}

impl From<PoolError> for No {
    fn from(error: PoolError) -> Self {
        let code = match &error {
            PoolError::Full { .. } | PoolError::Fragmented | PoolError::CatalogueFull => Code::Full,
            PoolError::NoSuchBlob(_) | PoolError::NoSuchReservation | PoolError::NoSuchLease => {
                Code::NotFound
            }
            PoolError::TooLong { .. } | PoolError::NotDurable => Code::Refused,
            PoolError::Superseded { .. } => Code::Superseded,
            PoolError::Medium(_) | PoolError::NumbersUsedUp => Code::Failed,
        };
        Self { code, reason: error.to_string() }
    }
}
