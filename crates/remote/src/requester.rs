//! The requester's side of a session, sans-IO: runs of recipes, turned into work requests and pipelined.
//!
//! Work requests are queued in the order in which runs ask for them and leave in that order, as far as the send queue and
//! the server's receive buffers have room ([`Requester::drive`]). A run goes on when what it waits for has come; what it
//! waits for is decided by [`remanence_persist::recipe::Run`] alone, and so is the end of it.
//!
//! The data of a run lies in *staging*, registered memory that the owner of this half keeps: it is copied there once, when
//! the run is submitted, and stays until the last work request that could need it has completed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Poll;

use remanence_codec::printable;
use remanence_persist::recipe::{self, Flush, Persistent, Recipe, Rq, Run, Script};
use remanence_persist::taxonomy::{Buffers, Domain, Order};
use remanence_persist::{Config, Shape};
use remanence_rnic::{Placement, PostError, RemoteAddr, Selectivity, SendFlags, SendOp};
use remanence_wire::Rkey;

use crate::hello::Window;
use crate::message::{Answer, AnswerKind, ENTRY, Entry, HEADER, Header, Immediates, Kind};
use crate::program::{PLACE_BITS, Program};

/// Bytes at the start of staging where READs that stand in for FLUSHes put what nobody looks at.
pub const SCRATCH: u64 = 64;

/// Notices that are kept if nobody takes them; older ones go first.
const NOTICES_MAX: usize = 64;

/// Ranges that lie closer than this are flushed as one where the responder writes back line by line: 64 lines cost it less
/// than another FLUSH.
const GAP: u64 = 4096;
/// Bytes that a FLUSH of a range covers at most; beyond, it is one of the whole memory region.
const RANGE_MAX: u64 = 1 << 31;

/// What work requests are posted to, and where their data lies.
pub trait Port {
    /// Puts bytes into staging.
    fn stage(&mut self, at: u64, bytes: &[u8]);

    /// Posts a work request whose local data is `len` bytes of staging from `at`.
    ///
    /// # Errors
    /// It was not posted.
    fn post(&mut self, wr_id: u64, op: SendOp, at: u64, len: u32, flags: SendFlags) -> Result<(), PostError>;
}

/// What a session is conducted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// What both sides rely on.
    pub config: Config,
    /// The memory to update.
    pub region: Window,
    /// The server's receive buffers.
    pub buffers: Window,
    /// How many those are.
    pub slots: u16,
    /// Bytes of each.
    pub slot_size: u32,
    /// Of the session.
    pub stamp: u64,
    /// Unit of the places in immediates.
    pub shift: u32,
}

/// A recipe that a session can carry out, and the number by which the server knows its half of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method {
    recipe: Recipe,
    script: Script,
    program: Program,
    number: u16,
    classes: Vec<u8>,
}

impl Method {
    /// The method that carries out `recipe`; the server knows its plan by `number`.
    ///
    /// # Errors
    /// The recipe is none.
    pub fn new(recipe: &Recipe, number: u16, classes: Vec<u8>) -> Result<Self, &'static str> {
        let (script, recipe) = (Script::of(recipe), recipe.clone());
        Ok(Self { program: Program::compile(&recipe)?, recipe, script, number, classes })
    }

    /// What is carried out.
    #[must_use]
    pub const fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// By which the server knows it.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// The responder's half.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }
}

/// Names a run that was submitted. Runs end in the order of their tickets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Why a run was not submitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Not now: [`drive`](Requester::drive), and try again when something has completed.
    Busy,
    /// Not before the server has applied earlier messages to these places, which it must be asked for.
    Unapplied,
    /// Staging is too small, even when it is empty; so many bytes would do.
    Staging(u64),
    /// Never: the sentence says why.
    Never(String),
}

/// A work request that waits to be posted.
#[derive(Clone, Copy, Debug)]
struct Queued {
    op: SendOp,
    at: u64,
    len: u32,
    flags: SendFlags,
    message: bool,
    what: &'static str,
}

#[derive(Clone, Debug)]
struct Send {
    at: u64,
    body_len: u32,
    entries: u16,
    hash: crc32fast::Hasher,
}

#[derive(Debug)]
struct Active {
    ticket: Ticket,
    run: Run,
    job: Job,
    ended: Option<Persistent>,
}

/// What a run needs to post its steps.
#[derive(Debug)]
struct Job {
    method: Arc<Method>,
    /// Offset in the region, length, and place in staging of each update.
    updates: Vec<(u64, u32, u64)>,
    sends: VecDeque<Send>,
    /// Messages posted so far.
    part: u8,
    /// What was posted since the last flush: address, length, key.
    unflushed: Vec<(u64, u64, u32)>,
    acks: u32,
    /// The last work request that was queued.
    last: u64,
}

/// A part of staging that is taken.
#[derive(Debug)]
struct Chunk {
    start: u64,
    /// Free when this work request has completed; `None`: not known yet.
    until: Option<u64>,
    ticket: u64,
}

/// An answer that is not about a recipe.
pub type Reply = Result<Vec<u8>, String>;

/// Why a session can not go on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// A work request cannot be posted.
    #[error("a work request was refused: {0}")]
    Post(#[from] PostError),
    /// The server says what no server of ours says.
    #[error("the server broke the protocol: {0}")]
    Peer(&'static str),
    /// The server's medium failed.
    #[error("{0}; nothing that was not acknowledged may be believed durable")]
    Medium(String),
}

/// The requester's side of one session.
#[derive(Debug)]
pub struct Requester {
    terms: Terms,
    sq_depth: u64,
    depth: usize,
    /// Work requests queued, posted and completed so far.
    queued: u64,
    posted: u64,
    done: u64,
    waiting: VecDeque<Queued>,
    /// What the posted ones are, oldest first.
    posted_what: VecDeque<&'static str>,
    /// Messages numbered, posted, and given back.
    numbered: u64,
    sent: u64,
    reposted: u64,
    last_replayed: u64,
    active: VecDeque<Active>,
    next_ticket: u64,
    expected_acks: VecDeque<(u64, Ticket)>,
    expected_replies: VecDeque<u64>,
    replies: VecDeque<(u64, Reply)>,
    notices: VecDeque<Vec<u8>>,
    /// Keys for bytes that the region's key does not let this session write: by the first byte, how many, and the key.
    grants: BTreeMap<u64, (u64, u32)>,
    /// Calls go by WRITE with immediate.
    immediates: Option<Immediates>,
    /// Places that the server will write when it applies a message.
    unapplied: VecDeque<(u64, u64, u64)>,
    staging: u64,
    head: u64,
    chunks: VecDeque<Chunk>,
    /// What the runs that have ended held, for the next ones.
    spare: Vec<Job>,
    places: Vec<Option<u64>>,
}

impl Requester {
    /// A session that begins: `sq_depth` work requests may be posted at a time, `depth` runs may be under way, and staging
    /// has so many bytes.
    #[must_use]
    pub fn new(terms: Terms, sq_depth: u32, depth: usize, staging: u64) -> Self {
        Self {
            terms,
            sq_depth: sq_depth.into(),
            depth: depth.max(1),
            queued: 0,
            posted: 0,
            done: 0,
            waiting: VecDeque::new(),
            posted_what: VecDeque::new(),
            numbered: 0,
            sent: 0,
            reposted: 0,
            last_replayed: 0,
            active: VecDeque::new(),
            next_ticket: 1,
            expected_acks: VecDeque::new(),
            expected_replies: VecDeque::new(),
            replies: VecDeque::new(),
            notices: VecDeque::new(),
            grants: BTreeMap::new(),
            immediates: None,
            unapplied: VecDeque::new(),
            staging,
            head: SCRATCH,
            chunks: VecDeque::new(),
            spare: Vec::new(),
            places: Vec::new(),
        }
    }

    /// What it is conducted with.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Runs under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.active.len()
    }

    /// Whether nothing is under way, so that staging may be exchanged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty() && self.done == self.posted
    }

    /// Whether a part of staging is taken for longer than something is under way: what a READ has brought lies there until
    /// [`release`](Self::release).
    #[must_use]
    pub fn holds_staging(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.until.is_none())
    }

    /// Staging was exchanged for one of this size.
    ///
    /// # Panics
    /// If something is under way.
    pub fn set_staging(&mut self, bytes: u64) {
        assert!(self.is_idle(), "staging is exchanged under {} runs", self.active.len());
        self.chunks.clear();
        (self.staging, self.head) = (bytes, SCRATCH);
    }

    /// Begins a run. It goes on in [`drive`](Self::drive).
    ///
    /// # Errors
    /// Why it did not begin.
    pub fn submit(
        &mut self,
        method: &Arc<Method>,
        updates: &[(u64, &[u8])],
        port: &mut impl Port,
    ) -> Result<Ticket, Refused> {
        self.check(method, updates)?;
        if self.active.len() >= self.depth {
            return Err(Refused::Busy);
        }
        let recipe = method.recipe();
        let writes = |u: usize| recipe.requester().any(|step| written(step) == Some(u));
        // A message of an earlier run may still be on its way to the same places.
        let mut places = updates.iter().enumerate().filter(|(n, _)| writes(*n)).map(|(_, update)| update);
        if places.clone().any(|(at, bytes)| self.is_to_be_sent(*at, bytes.len() as u64)) {
            return Err(Refused::Busy);
        }
        if places.any(|(at, bytes)| self.is_unapplied(*at, bytes.len() as u64)) {
            return Err(Refused::Unapplied);
        }
        // Where writes may be placed in any order, those of two runs to the same bytes must not be under way together.
        if self.terms.config.order == Order::Relaxed && self.overlaps(updates) {
            return Err(Refused::Busy);
        }
        let (mut need, mut sends) = (0_u64, Vec::new());
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.resize(updates.len(), None);
        for step in recipe.requester() {
            match step {
                Rq::Send(message) => {
                    let all = recipe::Set(message.notice.0 | message.data.0);
                    let mut body = Vec::new();
                    for u in all.iter() {
                        let (offset, bytes) = updates[usize::from(u.0)];
                        Entry::emit(&mut body, offset, bytes.len() as u32, message.data.has(u));
                    }
                    for u in message.data.iter() {
                        body.extend_from_slice(updates[usize::from(u.0)].1);
                    }
                    sends.push((need, all.iter().count() as u16, body));
                    need += (HEADER + sends.last().expect("pushed").2.len()).next_multiple_of(64) as u64;
                }
                step => {
                    if let Some(u) = written(step)
                        && places[u].is_none()
                    {
                        places[u] = Some(need);
                        need += (updates[u].1.len() as u64).next_multiple_of(64);
                    }
                }
            }
        }
        let ticket = Ticket(self.next_ticket);
        let base = self.take(need, ticket.0)?;
        self.next_ticket += 1;
        for (place, (_, bytes)) in places.iter().zip(updates) {
            if let Some(place) = place {
                port.stage(base + place, bytes);
            }
        }
        let sends = sends.into_iter().map(|(at, entries, body)| {
            port.stage(base + at + HEADER as u64, &body);
            let mut hash = crc32fast::Hasher::new();
            hash.update(&body);
            Send { at: base + at, body_len: body.len() as u32, entries, hash }
        });
        let placed = updates.iter().zip(&places);
        let placed = placed.map(|((at, bytes), place)| (*at, bytes.len() as u32, base + place.unwrap_or(0)));
        let mut job = match self.spare.pop() {
            Some(spare) => Job { method: Arc::clone(method), part: 0, acks: 0, last: self.queued, ..spare },
            None => Job {
                method: Arc::clone(method),
                updates: Vec::new(),
                sends: VecDeque::new(),
                part: 0,
                unflushed: Vec::new(),
                acks: 0,
                last: self.queued,
            },
        };
        job.updates.clear();
        job.updates.extend(placed);
        job.sends.clear();
        job.sends.extend(sends);
        job.unflushed.clear();
        self.places = places;
        let run = Run::of(&method.script, &self.terms.config);
        self.active.push_back(Active { ticket, run, job, ended: None });
        Ok(ticket)
    }

    fn check(&self, method: &Method, updates: &[(u64, &[u8])]) -> Result<(), Refused> {
        let never = |text: String| Err(Refused::Never(text));
        let recipe = method.recipe();
        let Shape { count, word, .. } = recipe.shape;
        if updates.len() != usize::from(count) {
            return never(format!("the plan is for {count} updates, and {} were given", updates.len()));
        }
        for (offset, bytes) in updates {
            let end = offset.checked_add(bytes.len() as u64);
            if bytes.is_empty() || end.is_none_or(|end| end > self.terms.region.len) || bytes.len() > 1 << 30
            {
                return never(format!(
                    "an update of {} bytes at {offset} does not lie in the server's region of {}",
                    bytes.len(),
                    self.terms.region.len
                ));
            }
        }
        if let (true, Some((offset, bytes))) = (word, updates.last())
            && (bytes.len() > 8 || offset / 8 != (offset + bytes.len() as u64 - 1) / 8)
        {
            return never(format!(
                "the plan takes the last update for one aligned word, which is never torn, and {} bytes at {offset} are none",
                bytes.len()
            ));
        }
        if recipe.requester().any(|step| matches!(step, Rq::AtomicWrite(_))) {
            let (offset, bytes) = updates.last().expect("count is not 0");
            if bytes.len() != 8 || !offset.is_multiple_of(8) {
                return never(format!(
                    "ATOMIC WRITE takes 8 bytes at a multiple of 8, and the last update has {} at {offset}",
                    bytes.len()
                ));
            }
        }
        for step in recipe.requester() {
            if let Rq::Send(message) = step {
                let all = recipe::Set(message.notice.0 | message.data.0).iter().count() * ENTRY;
                let data: usize = message.data.iter().map(|u| updates[usize::from(u.0)].1.len()).sum();
                if HEADER + all + data > self.terms.slot_size as usize {
                    return never(format!(
                        "a message of {} bytes does not fit into the server's receive buffers of {}",
                        HEADER + all + data,
                        self.terms.slot_size
                    ));
                }
            }
        }
        Ok(())
    }

    fn overlaps(&self, updates: &[(u64, &[u8])]) -> bool {
        self.active.iter().filter(|active| active.ended.is_none()).any(|active| {
            active.job.updates.iter().any(|(at, len, _)| {
                updates
                    .iter()
                    .any(|(other, bytes)| *at < other + bytes.len() as u64 && *other < at + u64::from(*len))
            })
        })
    }

    /// Whether a run under way has yet to send a message that the server will apply to some of these bytes.
    fn is_to_be_sent(&self, at: u64, len: u64) -> bool {
        let runs = self.active.iter().filter(|one| one.job.method.recipe.replay && !one.job.sends.is_empty());
        runs.flat_map(|one| &one.job.updates)
            .any(|(other, n, _)| *other < at + len && at < other + u64::from(*n))
    }

    /// Whether the server still owes a copy to some of these bytes.
    #[must_use]
    pub fn is_unapplied(&self, at: u64, len: u64) -> bool {
        self.unapplied.iter().any(|(_, start, end)| *start < at + len && at < *end)
    }

    /// Takes a part of staging.
    fn take(&mut self, need: u64, ticket: u64) -> Result<u64, Refused> {
        while let Some(chunk) = self.chunks.front()
            && chunk.until.is_some_and(|until| until <= self.done)
        {
            self.chunks.pop_front();
        }
        if need + SCRATCH > self.staging {
            return Err(Refused::Staging(need + SCRATCH));
        }
        let Some(oldest) = self.chunks.front() else {
            self.head = SCRATCH;
            return Ok(self.taken(SCRATCH, need, ticket));
        };
        let tail = oldest.start;
        if self.head >= tail {
            if self.head + need <= self.staging {
                return Ok(self.taken(self.head, need, ticket));
            }
            if SCRATCH + need < tail {
                return Ok(self.taken(SCRATCH, need, ticket));
            }
        } else if self.head + need < tail {
            return Ok(self.taken(self.head, need, ticket));
        }
        Err(Refused::Busy)
    }

    fn taken(&mut self, at: u64, need: u64, ticket: u64) -> u64 {
        self.head = at + need;
        self.chunks.push_back(Chunk { start: at, until: None, ticket });
        at
    }

    fn enqueue(&mut self, queued: Queued) -> u64 {
        self.waiting.push_back(queued);
        self.queued += 1;
        self.queued
    }

    /// Queues an RDMA READ of the region. It has come when [`is_done`](Self::is_done) says so of the number, and the bytes
    /// are in staging then, until [`release`](Self::release) is called with it.
    ///
    /// # Errors
    /// [`Refused`]: why nothing was queued.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<(u64, u64), Refused> {
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > self.terms.region.len) {
            return Err(Refused::Never(format!(
                "{len} bytes at {offset} do not lie in the server's region of {}",
                self.terms.region.len
            )));
        }
        if self.is_to_be_sent(offset, len.into()) {
            return Err(Refused::Busy);
        }
        if self.is_unapplied(offset, len.into()) {
            return Err(Refused::Unapplied);
        }
        // Tickets of runs are never so large.
        let ticket = u64::MAX - self.queued;
        let at = self.take(u64::from(len).next_multiple_of(64), ticket)?;
        let op = SendOp::Read(self.remote(offset));
        let flags = SendFlags::SIGNALED;
        let number = self.enqueue(Queued { op, at, len, flags, message: false, what: "a READ" });
        Ok((number, at))
    }

    /// Queues a plain RDMA WRITE, which promises nothing but that the bytes are visible when [`is_done`](Self::is_done) says so
    /// of the number.
    ///
    /// # Errors
    /// [`Refused`]: why nothing was queued.
    pub fn write(&mut self, offset: u64, bytes: &[u8], port: &mut impl Port) -> Result<u64, Refused> {
        let len = bytes.len() as u64;
        let end = offset.checked_add(len);
        if bytes.is_empty() || end.is_none_or(|end| end > self.terms.region.len) || len > 1 << 30 {
            return Err(Refused::Never(format!(
                "{len} bytes at {offset} do not lie in the server's region of {}",
                self.terms.region.len
            )));
        }
        let unordered = self.terms.config.order == Order::Relaxed && self.overlaps(&[(offset, bytes)]);
        if unordered || self.is_to_be_sent(offset, len) {
            return Err(Refused::Busy);
        }
        if self.is_unapplied(offset, len) {
            return Err(Refused::Unapplied);
        }
        let ticket = u64::MAX - self.queued;
        let at = self.take(len.next_multiple_of(64), ticket)?;
        port.stage(at, bytes);
        let (op, flags) = (SendOp::Write(self.writable(offset, len)), SendFlags::SIGNALED);
        let number = self.enqueue(Queued { op, at, len: len as u32, flags, message: false, what: "a WRITE" });
        self.free(ticket, number);
        Ok(number)
    }

    /// Queues a FLUSH of a range: to find out whether the server executes it, and what that takes.
    pub fn flush(&mut self, placement: Placement, offset: u64, len: u32) -> u64 {
        let what = match placement {
            Placement::Persistence => "a FLUSH to persistence",
            Placement::GlobalVisibility => "a FLUSH to global visibility",
        };
        let op =
            SendOp::Flush { remote: self.remote(offset), len, placement, selectivity: Selectivity::Range };
        let flags = SendFlags::SIGNALED;
        self.enqueue(Queued { op, at: 0, len: 0, flags, message: false, what })
    }

    /// Queues a WRITE of no bytes, which changes nothing and takes a round trip.
    pub fn touch(&mut self) -> u64 {
        let op = SendOp::Write(self.remote(0));
        let flags = SendFlags::SIGNALED;
        self.enqueue(Queued { op, at: 0, len: 0, flags, message: false, what: "a WRITE" })
    }

    /// The bytes of a READ were taken out of staging.
    pub fn release(&mut self, number: u64) {
        let ticket = u64::MAX - (number - 1);
        self.free(ticket, number);
    }

    fn free(&mut self, ticket: u64, until: u64) {
        if let Some(chunk) = self.chunks.iter_mut().find(|chunk| chunk.ticket == ticket) {
            chunk.until = Some(until);
        }
    }

    /// Whether a work request has completed.
    #[must_use]
    pub const fn is_done(&self, number: u64) -> bool {
        self.done >= number
    }

    /// Queues a message that the server's application answers, or (a plan) the server itself. Its answer comes out of
    /// [`reply`](Self::reply) with the number that this returns.
    ///
    /// # Errors
    /// [`Refused`]: why nothing was queued.
    pub fn call(
        &mut self,
        kind: Kind,
        service: u16,
        body: &[u8],
        port: &mut impl Port,
    ) -> Result<u64, Refused> {
        let len = HEADER + body.len();
        if len > self.terms.slot_size as usize {
            return Err(Refused::Never(format!(
                "a request of {} bytes does not fit into the server's receive buffers; {} would",
                body.len(),
                self.terms.slot_size as usize - HEADER
            )));
        }
        let ticket = u64::MAX - self.queued;
        let at = self.take((len as u64).next_multiple_of(64), ticket)?;
        port.stage(at + HEADER as u64, body);
        let mut hash = crc32fast::Hasher::new();
        hash.update(body);
        let header = Header {
            stamp: self.terms.stamp,
            number: self.number(),
            after: self.last_replayed,
            kind,
            replay: false,
            part: 0,
            plan: service,
            entries: 0,
        };
        port.stage(at, &header.emit(body.len() as u32, &hash));
        let op = match self.immediates {
            Some(ours) if kind == Kind::Call => {
                let addr = self.terms.buffers.addr.wrapping_add(self.buffer_of(header.number));
                SendOp::WriteImm(RemoteAddr { addr, rkey: Rkey(ours.rkey) }, ours.number)
            }
            _ => SendOp::Send,
        };
        let flags = SendFlags::SIGNALED;
        let last = self.enqueue(Queued { op, at, len: len as u32, flags, message: true, what: "a call" });
        self.free(ticket, last);
        self.expected_replies.push_back(header.number);
        Ok(header.number)
    }

    /// From now on calls go by WRITE with immediate, into the buffers that they would be received into.
    pub const fn call_by_immediate(&mut self, ours: Immediates) {
        self.immediates = Some(ours);
    }

    /// The oldest notice of the server's application that nobody has taken yet.
    pub fn notice(&mut self) -> Option<Vec<u8>> {
        self.notices.pop_front()
    }

    /// The answer to a call, when it has come.
    pub fn reply(&mut self, number: u64) -> Option<Reply> {
        let at = self.replies.iter().position(|(n, _)| *n == number)?;
        self.replies.remove(at).map(|(_, reply)| reply)
    }

    fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// Where a message is received, from the beginning of the session's receive buffers.
    fn buffer_of(&self, number: u64) -> u64 {
        (number - 1) % u64::from(self.terms.slots) * u64::from(self.terms.slot_size)
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        let Window { rkey, addr, .. } = self.terms.region;
        RemoteAddr { addr: addr.wrapping_add(offset), rkey: Rkey(rkey) }
    }

    /// The place as a WRITE names it: by a key that was granted for it, or by that of the region.
    fn writable(&self, offset: u64, len: u64) -> RemoteAddr {
        let remote = self.remote(offset);
        let granted = self.grants.range(..=offset).next_back();
        let inside = |(from, (span, _)): &(&u64, &(u64, u32))| {
            offset - **from <= *span && len <= span - (offset - **from)
        };
        granted.filter(inside).map_or(remote, |(_, (_, rkey))| RemoteAddr { rkey: Rkey(*rkey), ..remote })
    }

    /// Notes a key for these bytes. One that began there before is forgotten.
    pub fn grant(&mut self, offset: u64, len: u64, rkey: u32) {
        self.grants.insert(offset, (len, rkey));
    }

    /// Forgets the key for what begins there.
    pub fn forget_grant(&mut self, offset: u64) {
        self.grants.remove(&offset);
    }

    /// Lets every run go on as far as it can, and posts what can be posted.
    ///
    /// # Errors
    /// The session is over.
    pub fn drive(&mut self, port: &mut impl Port) -> Result<(), Broken> {
        let mut active = std::mem::take(&mut self.active);
        let mut result = Ok(());
        for one in active.iter_mut().filter(|one| one.ended.is_none()) {
            let before = self.queued;
            let (ticket, job) = (one.ticket, &mut one.job);
            match one.run.poll(&mut View { requester: self, port, ticket, job }) {
                Poll::Pending => {}
                Poll::Ready(Ok(persistent)) => one.ended = Some(persistent),
                Poll::Ready(Err(e)) => {
                    result = Err(e);
                    break;
                }
            }
            // What was queued last tells of all before it.
            if self.queued > before {
                let last = self.waiting.back_mut().expect("it was queued just now");
                last.flags |= SendFlags::SIGNALED;
            }
            if one.ended.is_some() {
                let (ticket, last) = (one.ticket.0, one.job.last);
                self.free(ticket, last);
            }
        }
        self.active = active;
        result.and_then(|()| self.post(port))
    }

    fn post(&mut self, port: &mut impl Port) -> Result<(), Broken> {
        while let Some(next) = self.waiting.front() {
            let room = self.posted - self.done < self.sq_depth;
            let credit = !next.message || self.sent - self.reposted < u64::from(self.terms.slots);
            if !room || !credit {
                break;
            }
            // The send queue's last place tells when there is room again.
            let full = self.posted + 1 - self.done >= self.sq_depth;
            let flags = if full { next.flags | SendFlags::SIGNALED } else { next.flags };
            port.post(self.posted + 1, next.op, next.at, next.len, flags)?;
            self.posted += 1;
            self.sent += u64::from(next.message);
            self.posted_what.push_back(next.what);
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// The work request of that number has completed, and so have all before it.
    pub fn completed(&mut self, number: u64) {
        while self.done < number.min(self.posted) {
            self.done += 1;
            self.posted_what.pop_front();
        }
    }

    /// What the work request of that number is, for an error.
    #[must_use]
    pub fn what(&self, number: u64) -> &'static str {
        let at = number.checked_sub(self.done + 1).and_then(|n| usize::try_from(n).ok());
        at.and_then(|n| self.posted_what.get(n)).copied().unwrap_or("a work request")
    }

    /// The server has sent something.
    ///
    /// # Errors
    /// The session is over.
    pub fn received(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let answer = Answer::parse(bytes).map_err(|_| Broken::Peer("what it sent is no answer"))?;
        if answer.reposted > self.sent || answer.reposted < self.reposted || answer.number > self.sent {
            return Err(Broken::Peer("it gives back receive buffers that were not used"));
        }
        self.reposted = answer.reposted;
        while self.unapplied.front().is_some_and(|(number, ..)| *number <= answer.reposted) {
            self.unapplied.pop_front();
        }
        match answer.kind {
            AnswerKind::Credit => {}
            AnswerKind::Notice => {
                if self.notices.len() >= NOTICES_MAX {
                    self.notices.pop_front();
                }
                self.notices.push_back(answer.body);
            }
            AnswerKind::Ack => {
                let (number, ticket) = self
                    .expected_acks
                    .pop_front()
                    .ok_or(Broken::Peer("it acknowledges what was not sent"))?;
                if number != answer.number {
                    return Err(Broken::Peer("it acknowledges another message than the one that is due"));
                }
                if let Some(one) = self.active.iter_mut().find(|one| one.ticket == ticket) {
                    one.job.acks += 1;
                }
            }
            AnswerKind::Reply | AnswerKind::Refused => {
                if self.expected_replies.pop_front() != Some(answer.number) {
                    return Err(Broken::Peer("it answers what was not asked"));
                }
                let reply = match answer.kind {
                    AnswerKind::Reply => Ok(answer.body),
                    _ => Err(printable(&answer.body)),
                };
                self.replies.push_back((answer.number, reply));
            }
            AnswerKind::Failed => return Err(Broken::Medium(printable(&answer.body))),
        }
        Ok(())
    }

    /// The next run that has come to its end, in the order of the tickets.
    pub fn finished(&mut self) -> Option<(Ticket, Persistent)> {
        self.active.front()?.ended.as_ref()?;
        let Active { ticket, job, ended, .. } = self.active.pop_front()?;
        if self.spare.len() < self.depth {
            self.spare.push(job);
        }
        ended.map(|persistent| (ticket, persistent))
    }

    /// Whether something is under way that an answer or a completion will move.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.done < self.posted
            || !self.waiting.is_empty()
            || self.active.iter().any(|one| one.ended.is_none())
    }
}

/// The update that a step puts into its place, if it is one that does.
fn written(step: Rq) -> Option<usize> {
    match step {
        Rq::Write(u) | Rq::WriteImm(u) | Rq::AtomicWrite(u) | Rq::FencedWrite(u) => Some(usize::from(u.0)),
        Rq::Send(_) | Rq::Flush(_) | Rq::Comp | Rq::Receive => None,
    }
}

/// A requester as one of its runs sees it.
struct View<'a, P> {
    requester: &'a mut Requester,
    port: &'a mut P,
    ticket: Ticket,
    job: &'a mut Job,
}

impl<P: Port> View<'_, P> {
    fn enqueue(
        &mut self,
        op: SendOp,
        at: u64,
        len: u32,
        flags: SendFlags,
        message: bool,
        what: &'static str,
    ) {
        self.job.last = self.requester.enqueue(Queued { op, at, len, flags, message, what });
    }

    /// A message is numbered, and the server's acknowledgement of it expected if there will be one.
    fn message(&mut self) -> Result<(u64, u8), Broken> {
        let number = self.requester.number();
        let part = self.job.part;
        self.job.part += 1;
        let known = self.job.method.program.parts().get(usize::from(part));
        let known = known.ok_or(Broken::Peer("a recipe sends a message that nobody receives"))?;
        if known.acknowledges() {
            self.requester.expected_acks.push_back((number, self.ticket));
        }
        Ok((number, part))
    }

    fn send(&mut self) -> Result<(), Broken> {
        let (number, part) = self.message()?;
        let send = self.job.sends.pop_front().ok_or(Broken::Peer("a recipe sends more than it has"))?;
        let terms = self.requester.terms;
        let replay = self.job.method.recipe.replay;
        let header = Header {
            stamp: terms.stamp,
            number,
            after: self.requester.last_replayed,
            kind: Kind::Update,
            replay,
            part,
            plan: self.job.method.number,
            entries: send.entries,
        };
        self.port.stage(send.at, &header.emit(send.body_len, &send.hash));
        let len = HEADER as u32 + send.body_len;
        // Not applied when it is acknowledged: until it is, its places are the server's.
        if replay {
            self.requester.last_replayed = number;
            let message = self.job.method.program.parts()[usize::from(part)].message;
            for u in message.data.iter() {
                let (at, len, _) = self.job.updates[usize::from(u.0)];
                self.requester.unapplied.push_back((number, at, at + u64::from(len)));
            }
        }
        // What lies in a buffer that is not persistent is worth nothing by itself: no recipe flushes it, and no client may.
        if terms.config.buffers == Buffers::Pm {
            let slot = self.requester.buffer_of(number);
            self.job.unflushed.push((terms.buffers.addr.wrapping_add(slot), len.into(), terms.buffers.rkey));
        }
        self.enqueue(SendOp::Send, send.at, len, SendFlags::empty(), true, "a SEND");
        Ok(())
    }

    fn write(&mut self, step: Rq, update: recipe::Update) -> Result<(), Broken> {
        let (offset, len, at) = self.job.updates[usize::from(update.0)];
        let remote = self.requester.remote(offset);
        self.job.unflushed.push((remote.addr, len.into(), remote.rkey.0));
        let remote = self.requester.writable(offset, len.into());
        let none = SendFlags::empty();
        match step {
            Rq::WriteImm(_) => {
                let (_, part) = self.message()?;
                let class = self.job.method.classes.get(usize::from(part)).copied().unwrap_or(0);
                let imm = u32::from(class) << PLACE_BITS | (offset >> self.requester.terms.shift) as u32;
                self.enqueue(SendOp::WriteImm(remote, imm), at, len, none, true, "a WRITE with immediate");
            }
            Rq::AtomicWrite(_) => {
                self.enqueue(SendOp::AtomicWrite(remote), at, len, none, false, "an ATOMIC WRITE")
            }
            Rq::FencedWrite(_) => {
                self.enqueue(SendOp::Write(remote), at, len, SendFlags::FENCE, false, "a fenced WRITE");
            }
            _ => self.enqueue(SendOp::Write(remote), at, len, none, false, "a WRITE"),
        }
        Ok(())
    }

    fn flush(&mut self, flush: Flush) {
        let mut ranges = std::mem::take(&mut self.job.unflushed);
        if ranges.is_empty() {
            // Nothing was posted since the last one; what was before it is covered again.
            ranges.extend(self.job.updates.first().map(|(offset, len, _)| {
                let remote = self.requester.remote(*offset);
                (remote.addr, u64::from(*len), remote.rkey.0)
            }));
        }
        if flush == Flush::Read {
            // It pushes everything that was posted before it; whose bytes it reads does not matter.
            if let Some((addr, len, rkey)) = ranges.last() {
                let remote = RemoteAddr { addr: *addr, rkey: Rkey(*rkey) };
                let len = (*len).min(8) as u32;
                self.enqueue(
                    SendOp::Read(remote),
                    0,
                    len,
                    SendFlags::empty(),
                    false,
                    "a READ in place of a FLUSH",
                );
            }
            ranges.clear();
            self.job.unflushed = ranges;
            return;
        }
        let (placement, what) = match flush {
            Flush::Persistent => (Placement::Persistence, "a FLUSH to persistence"),
            Flush::Global | Flush::Read => (Placement::GlobalVisibility, "a FLUSH to global visibility"),
        };
        let reach = if lies_free(placement, &self.requester.terms.config) { u64::MAX } else { GAP };
        for Cover { addr, len, rkey, selectivity } in covers(&mut ranges, reach) {
            let remote = RemoteAddr { addr, rkey: Rkey(rkey) };
            let op = SendOp::Flush { remote, len, placement, selectivity };
            self.enqueue(op, 0, 0, SendFlags::empty(), false, what);
        }
        ranges.clear();
        self.job.unflushed = ranges;
    }
}

impl<P: Port> recipe::Requester for View<'_, P> {
    type Error = Broken;

    fn post(&mut self, step: Rq) -> Result<(), Broken> {
        match step {
            Rq::Write(u) | Rq::WriteImm(u) | Rq::AtomicWrite(u) | Rq::FencedWrite(u) => {
                self.write(step, u)?
            }
            Rq::Send(_) => self.send()?,
            Rq::Flush(flush) => self.flush(flush),
            Rq::Comp | Rq::Receive => {}
        }
        Ok(())
    }

    fn completed(&mut self) -> Result<bool, Broken> {
        Ok(self.requester.is_done(self.job.last))
    }

    fn acknowledged(&mut self) -> Result<bool, Broken> {
        let any = self.job.acks > 0;
        self.job.acks -= u32::from(any);
        Ok(any)
    }
}

/// Whether it costs a responder nothing that a FLUSH covers what nobody wrote: it does not go through it line by line. Global
/// visibility asks for no write-backs, nor do caches that are in the domain, and behind a page cache one fdatasync does for all.
fn lies_free(placement: Placement, config: &Config) -> bool {
    match (placement, config.domain) {
        (Placement::GlobalVisibility, _) => true,
        (Placement::Persistence, Domain::Dmp | Domain::Process) => false,
        (Placement::Persistence, Domain::Mhp | Domain::Wsp | Domain::PageCache) => true,
    }
}

/// What one FLUSH covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cover {
    addr: u64,
    len: u32,
    rkey: u32,
    selectivity: Selectivity,
}

/// FLUSHes that cover all these ranges: one for those of a key that lie within `reach` of each other. This is what lets a
/// recipe's one FLUSH step stand for everything that was posted before it, as the checker takes it.
fn covers(ranges: &mut Vec<(u64, u64, u32)>, reach: u64) -> impl Iterator<Item = Cover> + '_ {
    ranges.sort_unstable_by_key(|(addr, len, rkey)| (*rkey, *addr, *len));
    ranges.dedup_by(|(addr, len, rkey), last| {
        let joins = last.2 == *rkey
            && *addr - last.0 <= last.1.saturating_add(reach)
            && (reach == u64::MAX || *addr + *len - last.0 < RANGE_MAX);
        if joins {
            last.1 = last.1.max(*addr + *len - last.0);
        }
        joins
    });
    ranges.iter().map(|&(addr, len, rkey)| match len {
        0..RANGE_MAX => Cover { addr, len: len as u32, rkey, selectivity: Selectivity::Range },
        _ => Cover { addr, len: 0, rkey, selectivity: Selectivity::MemoryRegion },
    })
}

#[cfg(test)]
mod tests;
