//! PUT: a request, the address back, and the client writes the value itself. And what is one message: DELETE, and values
//! that the server writes.
//!
//! A long value goes out in lots, and with each the server is told that those before it have arrived, which extends the write's
//! lease. A lot has as many bytes as take a fraction of a second, so that a lease does not depend on how fast the link is.

use std::ops::Range;

use super::{Client, Completion, Error, Operation, Progress, RemoteMemory, Verb};
use crate::format::object::{Content, WRITTEN_FROM, crc64, emit, object_len};
use crate::format::{Chunk, ObjectAddress};
use crate::proto::{Changed, Expect, Inline, Refusal, Reply, Request, Reserved};
use crate::view::Mode;

/// The operation that writes a key's value.
#[derive(Debug)]
pub struct Put {
    key: Vec<u8>,
    hash: u64,
    value: Vec<u8>,
    expires: u64,
    expect: Expect,
    id: Option<u64>,
    state: State,
}

#[derive(Debug)]
enum State {
    Begin,
    /// Whether the request went out in a batch, behind a confirmation.
    Asked {
        batch: bool,
        /// Whether the request had the value with it, which the server writes.
        inline: bool,
    },
    Writing(Writing),
    /// The server is to see it whole, and to ship it.
    Settling(Reserved),
    Over,
}

/// A write that is under way.
#[derive(Debug)]
struct Writing {
    reserved: Reserved,
    /// The object, or in chunks what stands for it.
    object: Vec<u8>,
    /// The rooms that are left to write to, the next one at the end.
    left: Vec<Room>,
    /// How many bytes a lot is to have.
    lot: usize,
    /// Bytes of the lot that is under way, and of those before it.
    posted: usize,
    written: usize,
    /// When the lot that is under way was posted.
    since: u64,
}

/// A room, and which bytes of the object or of the value it is for.
#[derive(Debug)]
struct Room {
    at: u64,
    is_object: bool,
    bytes: Range<usize>,
}

/// The first lot, and what those after it may become.
const LOT: usize = 1 << 20;
const LOT_MIN: usize = 128 << 10;
const LOT_MAX: usize = 8 << 20;
/// A lot is to take so many milliseconds.
const LOT_TIME: Range<u64> = 100..400;

impl Writing {
    /// The next lot. The parts of a room go out from its end on: what begins where the room does is the last one, after which the
    /// key for the room is forgotten.
    fn lot(&mut self, now: u64, value: &[u8]) -> Vec<(u64, Vec<u8>)> {
        (self.posted, self.since) = (0, now);
        let mut lot = Vec::new();
        while self.posted < self.lot
            && let Some(room) = self.left.last_mut()
        {
            let from = room.bytes.end - room.bytes.len().min(self.lot - self.posted);
            let bytes = if room.is_object { &self.object } else { value };
            let at = room.at + (from - room.bytes.start) as u64;
            lot.push((at, bytes[from..room.bytes.end].to_vec()));
            self.posted += room.bytes.end - from;
            room.bytes.end = from;
            if room.bytes.is_empty() {
                self.left.pop();
            }
        }
        lot
    }

    /// Notes that the lot has arrived, and how large the next one is to be.
    fn arrived(&mut self, now: u64) {
        self.written += self.posted;
        let took = now.saturating_sub(self.since);
        if took < LOT_TIME.start {
            self.lot = (self.lot * 2).min(LOT_MAX);
        } else if took > LOT_TIME.end {
            self.lot = (self.lot / 2).max(LOT_MIN);
        }
    }
}

type Outcome = Result<u64, Error>;

impl Put {
    /// A PUT of this key, which has not begun; the version comes back. `expires` is a time of the server's clock in
    /// milliseconds, 0 for never.
    #[must_use]
    pub fn new(key: &[u8], value: &[u8], expires: u64, expect: Expect) -> Self {
        let (key, value) = (key.to_vec(), value.to_vec());
        Self { key, hash: 0, value, expires, expect, id: None, state: State::Begin }
    }

    /// Whether the server has handed out room, or has been sent the value: from then on a failure leaves the outcome open.
    #[must_use]
    pub const fn is_writing(&self) -> bool {
        matches!(self.state, State::Writing(_) | State::Settling(_) | State::Asked { inline: true, .. })
    }

    fn over(&mut self, client: &mut Client, outcome: Outcome) -> Progress<Outcome> {
        client.end(self.id.take());
        self.state = State::Over;
        Progress::Done(outcome)
    }

    /// Begins anew later. Until then nothing is under way: what it waits for may be this client's acknowledgement.
    fn wait(&mut self, client: &mut Client) -> Progress<Outcome> {
        client.end(self.id.take());
        self.state = State::Begin;
        Progress::Again
    }

    fn ask(&mut self, client: &mut Client) -> Progress<Outcome> {
        let (key, expires, expect) = (self.key.clone(), self.expires, self.expect);
        let max = client.view.inline_max;
        let inline = max > 0 && self.value.len() <= max as usize;
        let put = match inline {
            true => Request::PutInline { key, value: self.value.clone(), expires, expect },
            false => Request::Put { key, len: self.value.len() as u64, expires, expect },
        };
        let confirm = client.poll_confirm();
        self.state = State::Asked { batch: confirm.is_some(), inline };
        let request = match confirm {
            Some(confirm) => Request::Batch(vec![confirm, put]),
            None => put,
        };
        Progress::Post(vec![Verb::Call(request)])
    }

    fn asked(&mut self, client: &mut Client, now: u64, reply: Reply) -> Progress<Outcome> {
        match reply {
            Reply::Reserved(reserved) => self.write(client, now, reserved),
            Reply::Written(place) if !client.learn(&place) => {
                self.over(client, Err(Error::Protocol("a place outside of the medium")))
            }
            Reply::Written(place) => self.done(client, &place),
            Reply::Done { version } => self.over(client, Ok(version)),
            // The server checks the condition again then.
            Reply::Refused(Refusal::Unfinished | Refusal::Growing | Refusal::Cleaning) => self.wait(client),
            Reply::Refused(refusal) => self.over(client, Err(refusal.into())),
            _ => self.over(client, Err(Error::Protocol("no answer to a PUT"))),
        }
    }

    fn write(&mut self, client: &mut Client, now: u64, reserved: Reserved) -> Progress<Outcome> {
        let place = ObjectAddress {
            salt: client.view.salt,
            head: reserved.head,
            offset: reserved.offset,
            epoch: reserved.epoch,
        };
        let sum: u64 = reserved.extents.iter().map(|extent| u64::from(extent.len)).sum();
        let chained = !reserved.extents.is_empty();
        if chained && sum != self.value.len() as u64 {
            return self.over(client, Err(Error::Protocol("room for another value")));
        }
        if !client.learn(&reserved) {
            return self.over(client, Err(Error::Protocol("room outside of the medium")));
        }
        let mut left = Vec::with_capacity(reserved.extents.len() + 1);
        let mut chunks = Vec::with_capacity(reserved.extents.len());
        let mut from = 0;
        for extent in &reserved.extents {
            let bytes = from..from + extent.len as usize;
            from = bytes.end;
            let crc = crc64(&[&self.value[bytes.clone()]]);
            chunks.push(Chunk { offset: extent.offset, len: extent.len, crc });
            left.push(Room { at: extent.at, is_object: false, bytes });
        }
        let content = if chained { Content::Chained(&chunks) } else { Content::Value(&self.value) };
        let object = emit(&place, reserved.version, self.expires, &self.key, content);
        let at = reserved.at + WRITTEN_FROM as u64;
        left.push(Room { at, is_object: true, bytes: WRITTEN_FROM..object.len() });
        // The object behind its chunks.
        left.reverse();
        let (lot, posted, written) = (LOT, 0, 0);
        let writing = Writing { reserved, object, left, lot, posted, written, since: now };
        self.post(client, now, writing)
    }

    fn post(&mut self, client: &Client, now: u64, mut writing: Writing) -> Progress<Outcome> {
        let (version, written) = (writing.reserved.version, writing.written as u64);
        let renew = (written > 0).then_some(Verb::Call(Request::Renew { version, written }));
        let writes = writing.lot(now, &self.value);
        self.state = State::Writing(writing);
        let mut verbs = Vec::with_capacity(2);
        verbs.extend(renew);
        match client.view.mode {
            Mode::Durable if !client.view.replicated => verbs.push(Verb::Persist(writes)),
            // On several members it would be durable where it does not have to be.
            Mode::Durable | Mode::Erda => {
                verbs.extend(writes.into_iter().map(|(at, bytes)| Verb::Write { at, bytes }));
            }
        }
        Progress::Post(verbs)
    }

    /// A lot has arrived, and the server has said what it thinks of the lease.
    fn arrived(
        &mut self,
        client: &mut Client,
        now: u64,
        mut writing: Writing,
        completions: &[Completion],
    ) -> Progress<Outcome> {
        for completion in completions {
            if let Completion::Reply(Reply::Refused(refusal)) = completion {
                return self.over(client, Err(refusal.clone().into()));
            }
        }
        writing.arrived(now);
        match writing.left.is_empty() {
            true => self.written(client, writing.reserved),
            false => self.post(client, now, writing),
        }
    }

    fn written(&mut self, client: &mut Client, reserved: Reserved) -> Progress<Outcome> {
        if client.view.replicated {
            self.state = State::Settling(reserved);
            return Progress::Post(vec![Verb::Call(Request::Settle { key: self.key.clone() })]);
        }
        client.confirm.push(reserved.version);
        self.done(client, &reserved)
    }

    /// Takes the reply to the settling of a write, in a store on several servers: the client knows that the write is
    /// whole.
    fn settled(&mut self, client: &mut Client, reserved: &Reserved, reply: Reply) -> Progress<Outcome> {
        match reply {
            Reply::Settled { version } if version >= reserved.version => self.done(client, reserved),
            // Somebody has changed the key since, which the server allows only when this write is settled (rule 1).
            Reply::Absent | Reply::Refused(Refusal::Unfinished) => self.done(client, reserved),
            Reply::Settled { .. } => self.over(client, Err(Refusal::NotYours.into())),
            Reply::Refused(refusal) => self.over(client, Err(refusal.into())),
            _ => self.over(client, Err(Error::Protocol("no answer to a write that is to be settled"))),
        }
    }

    fn done(&mut self, client: &mut Client, reserved: &Reserved) -> Progress<Outcome> {
        if reserved.extents.is_empty() {
            client.remember(self.hash, reserved, self.key.len(), self.value.len());
        }
        let version = reserved.version;
        self.over(client, Ok(version))
    }
}

impl Operation for Put {
    type Output = Outcome;

    fn step(&mut self, client: &mut Client, now: u64, mut completions: Vec<Completion>) -> Progress<Outcome> {
        if self.id.is_none() {
            self.hash = match client.hash(&self.key) {
                Ok(hash) => hash,
                Err(refusal) => return self.over(client, Err(refusal.into())),
            };
            self.id = Some(client.begin());
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Begin => self.ask(client),
            State::Asked { batch, .. } => match (batch, completions.pop()) {
                (false, Some(Completion::Reply(reply))) => self.asked(client, now, reply),
                (true, Some(Completion::Reply(Reply::Batch(mut replies)))) => match replies.pop() {
                    Some(reply) => self.asked(client, now, reply),
                    None => self.over(client, Err(Error::Protocol("an empty batch"))),
                },
                (true, Some(Completion::Reply(Reply::Refused(refusal)))) => {
                    self.over(client, Err(refusal.into()))
                }
                _ => self.over(client, Err(Error::Protocol("no reply to a PUT"))),
            },
            State::Writing(writing) => self.arrived(client, now, writing, &completions),
            State::Settling(reserved) => match completions.pop() {
                Some(Completion::Reply(reply)) => self.settled(client, &reserved, reply),
                _ => self.over(client, Err(Error::Protocol("no reply to a write that is to be settled"))),
            },
            State::Over => self.over(client, Err(Error::Protocol("a step after the end"))),
        }
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        client.end(self.id.take());
        match std::mem::replace(&mut self.state, State::Over) {
            State::Writing(Writing { reserved, .. }) | State::Settling(reserved) => {
                Some(Request::Abandon { version: reserved.version })
            }
            State::Begin | State::Asked { .. } | State::Over => None,
        }
    }
}

/// Has the server write and delete values, where it is [at hand](RemoteMemory::put_all), and appends to `done` what became of each:
/// its version, or why it was not done. `None`: a [`Change`] is to be made of it, as the server is not at hand, or somebody is in
/// the way, or it takes more than one object. Nothing is promised about the order of changes of one key.
///
/// # Errors
/// The remote memory cannot be reached any more: nothing that was not acknowledged before was written.
pub fn put_all<R: RemoteMemory>(
    client: &mut Client,
    remote: &mut R,
    puts: &[Inline<'_>],
    done: &mut Vec<Option<Result<u64, Error>>>,
) -> Result<(), R::Error> {
    let max = client.view.geometry.object_max();
    let mut written = Vec::with_capacity(puts.len());
    let fit = |put: &Inline<'_>| object_len(put.key.len(), put.value.map_or(0, <[u8]>::len) as u64) <= max;
    if !puts.iter().all(fit) || !remote.put_all(puts, &mut written)? {
        done.extend(puts.iter().map(|_| None));
        return Ok(());
    }
    for (put, written) in puts.iter().zip(written) {
        done.push(match written {
            Ok(Changed::Value(reserved)) => {
                if client.learn(&reserved)
                    && let Ok(hash) = client.hash(put.key)
                {
                    client.remember(hash, &reserved, put.key.len(), put.value.map_or(0, <[u8]>::len));
                }
                Some(Ok(reserved.version))
            }
            Ok(Changed::Gone(version)) => Some(Ok(version)),
            Err(Refusal::Unfinished | Refusal::Growing | Refusal::Cleaning | Refusal::Full) => None,
            Err(refusal) => Some(Err(refusal.into())),
        });
    }
    Ok(())
}

/// One message, and its reply. Asked again while a write of the key is under way.
#[derive(Debug)]
pub struct Call {
    request: Request,
    id: Option<u64>,
}

impl Call {
    /// A message with this request, which has not been sent.
    #[must_use]
    pub const fn new(request: Request) -> Self {
        Self { request, id: None }
    }

    /// Whether the server changes a value when it gets this.
    #[must_use]
    pub const fn changes(&self) -> bool {
        matches!(self.request, Request::PutInline { .. } | Request::Delete { .. } | Request::Batch(_))
    }

    /// A message that takes a key's value away.
    #[must_use]
    pub fn delete(key: &[u8], expect: Expect) -> Self {
        Self::new(Request::Delete { key: key.to_vec(), expect })
    }
}

impl Operation for Call {
    type Output = Result<Reply, Error>;

    fn step(
        &mut self,
        client: &mut Client,
        _: u64,
        mut completions: Vec<Completion>,
    ) -> Progress<Self::Output> {
        let outcome = match completions.pop() {
            None => {
                self.id = Some(self.id.unwrap_or_else(|| client.begin()));
                return Progress::Post(vec![Verb::Call(self.request.clone())]);
            }
            Some(Completion::Reply(Reply::Refused(
                Refusal::Unfinished | Refusal::Growing | Refusal::Cleaning,
            ))) => {
                client.end(self.id.take());
                return Progress::Again;
            }
            Some(Completion::Reply(Reply::Refused(refusal))) => Err(refusal.into()),
            Some(Completion::Reply(reply)) => Ok(reply),
            Some(_) => Err(Error::Protocol("no reply to a message")),
        };
        client.end(self.id.take());
        Progress::Done(outcome)
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        client.end(self.id.take());
        None
    }
}

/// A value written, or deleted: for several of either kind [together](super::Many). The version comes back; 0 where there was
/// nothing to delete.
#[derive(Debug)]
pub enum Change {
    /// The key is to have a value.
    Put(Put),
    /// The key is to have no value.
    Delete(Call),
}

impl Change {
    /// The operation for an [`Inline`].
    #[must_use]
    pub fn new(change: &Inline<'_>) -> Self {
        match change.value {
            Some(value) => Self::Put(Put::new(change.key, value, change.expires, change.expect)),
            None => Self::Delete(Call::delete(change.key, change.expect)),
        }
    }

    /// Whether a failure from here on leaves the outcome open.
    #[must_use]
    pub const fn is_writing(&self) -> bool {
        match self {
            Self::Put(put) => put.is_writing(),
            Self::Delete(call) => call.id.is_some(),
        }
    }
}

impl Operation for Change {
    type Output = Outcome;

    fn step(&mut self, client: &mut Client, now: u64, completions: Vec<Completion>) -> Progress<Outcome> {
        match self {
            Self::Put(put) => put.step(client, now, completions),
            Self::Delete(call) => match call.step(client, now, completions) {
                Progress::Post(verbs) => Progress::Post(verbs),
                Progress::Again => Progress::Again,
                Progress::Done(Ok(Reply::Done { version })) => Progress::Done(Ok(version)),
                Progress::Done(Ok(_)) => Progress::Done(Err(Error::Protocol("no answer to a deletion"))),
                Progress::Done(Err(error)) => Progress::Done(Err(error)),
            },
        }
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        match self {
            Self::Put(put) => put.cancel(client),
            Self::Delete(call) => call.cancel(client),
        }
    }
}
