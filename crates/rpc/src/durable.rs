//! Durable writes by calls: the alternative of paper 001 to one-sided writes, on both sides.
//!
//! ```text
//! WRITE  (1): offset u64, then bytes         ->  promise u8: 1, in the persistence domain; 0, visible only
//! READ   (2): offset u64, length u32         ->  bytes
//! DESCRIBE (3): nothing                      ->  length u64, guarantee u16 (pmem's bits), promise u8
//! ```
//! Big-endian. A request that makes no sense is refused, with a sentence. When the medium fails, the call that met it is
//! refused, and the server ends: of what it acknowledged before nothing is taken back.

use std::io;
use std::time::Duration;

use remanence_codec::{Malformed, Reader, printable};
use remanence_pmem::engine::{CopyError, Promise};
use remanence_pmem::{Guarantee, Region, Survives};

use crate::copier::{Copier, Job, fatal};
use crate::core::buffers::Body;
use crate::core::event::{CallError, Event, RequestId, SessionId};
use crate::header::{Address, Status};
use crate::live::{Error, Live, Rpc};
use crate::metering::{Metering, event_loop};

/// Copy bytes into the server's memory, and answer when they are durable.
pub const WRITE: u16 = 1;
/// Bytes of the server's memory.
pub const READ: u16 = 2;
/// What the server's memory is.
pub const DESCRIBE: u16 = 3;

/// Bytes in front of the data of a WRITE.
pub const WRITE_HEAD: usize = 8;
/// Rounds of an event loop with a copy under way and nothing to do, before it lets others have the core.
const ROUNDS: u32 = 64;

/// Serves a region.
#[derive(Debug)]
pub struct Server {
    rpc: Rpc,
    region: Region,
    copier: Copier,
    idle_rounds: u32,
    metering: Metering,
}

event_loop!(Server);

impl Server {
    /// With what copies: the choices of paper 001 are the server's own CPU (its baseline) and an asynchronous engine.
    #[must_use]
    pub fn new(rpc: Rpc, region: Region, copier: Copier) -> Self {
        Self { rpc, region, copier, idle_rounds: 0, metering: Metering::default() }
    }

    /// Which failures a write survives that was acknowledged.
    #[must_use]
    pub fn survives(&self) -> Survives {
        self.copier.promise().survives(self.region.domain().guarantee())
    }

    /// One round of the event loop. It sleeps so long at most.
    ///
    /// # Errors
    /// The endpoint does not work any more, or the medium failed.
    pub fn turn(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let limit = if self.copier.is_idle() { limit } else { Some(Duration::ZERO) };
        let event = self.rpc.poll(limit).map_err(io::Error::other)?;
        let (mut worked, mut requests) = (event.is_some(), 0);
        let mut since = if worked { self.metering.begins() } else { None };
        if let Some(Event::Request { id, service, body }) = event {
            requests = 1;
            self.serve(id, service, body);
        }
        while let Some((id, outcome)) = self.copier.poll(&self.region) {
            if !std::mem::replace(&mut worked, true) {
                since = self.metering.begins();
            }
            self.acknowledge(id, outcome)?;
        }
        if worked {
            self.metering.served(requests, since);
        }
        // A copy is under way, and its engine may need this core.
        self.idle_rounds = if worked || self.copier.is_idle() { 0 } else { self.idle_rounds + 1 };
        if self.idle_rounds >= ROUNDS {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn acknowledge(&mut self, id: RequestId, outcome: Result<Promise, CopyError>) -> io::Result<()> {
        match outcome {
            Ok(promise) => {
                self.rpc.respond_with(id, Status::Done, &[u8::from(promise == Promise::Synced)]);
                Ok(())
            }
            Err(e) => {
                self.rpc.respond_with(id, Status::Refused, e.to_string().as_bytes());
                // Its last words; if they are lost, the client learns that nobody is here.
                let _ = self.rpc.flush();
                Err(fatal(e))
            }
        }
    }

    fn serve(&mut self, id: RequestId, service: u16, body: Body<Live>) {
        match service {
            WRITE => self.write(id, body),
            READ => self.read(id, &body),
            DESCRIBE => {
                let mut answer = self.region.len().to_be_bytes().to_vec();
                answer.extend_from_slice(&self.region.domain().guarantee().to_bits().to_be_bytes());
                answer.push((self.copier.promise() == Promise::Synced).into());
                self.rpc.respond_with(id, Status::Done, &answer);
            }
            _ => {
                self.rpc.respond(id, Status::NoService, None);
            }
        }
    }

    fn refuse(&mut self, id: RequestId, why: &str) {
        self.rpc.respond_with(id, Status::Refused, why.as_bytes());
    }

    fn write(&mut self, id: RequestId, body: Body<Live>) {
        if body.len() < WRITE_HEAD {
            return self.refuse(id, "a write begins with an offset of eight bytes");
        }
        let mut head = [0; WRITE_HEAD];
        body.read(0, &mut head);
        let (to, len) = (u64::from_be_bytes(head), (body.len() - WRITE_HEAD) as u64);
        if !self.region.contains(to, len) {
            let why = format!("{len} bytes at offset {to} do not lie in a region of {}", self.region.len());
            return self.refuse(id, &why);
        }
        self.copier.submit(&self.region, Job { id, body, skip: WRITE_HEAD, to });
    }

    fn read(&mut self, id: RequestId, body: &Body<Live>) {
        if body.len() != 12 {
            return self.refuse(id, "a read is an offset of eight bytes and a length of four");
        }
        let mut head = [0; 12];
        body.read(0, &mut head);
        let from = u64::from_be_bytes(head[..8].try_into().expect("eight bytes"));
        let len = u32::from_be_bytes(head[8..].try_into().expect("four bytes"));
        if !self.region.contains(from, len.into()) {
            let why = format!("{len} bytes at offset {from} do not lie in a region of {}", self.region.len());
            return self.refuse(id, &why);
        }
        match self.rpc.message(len as usize) {
            Some(message) if len <= self.rpc.config().message_max => {
                let (memory, at) = message.place();
                self.region.copy_to(from, memory, at, len as usize);
                self.rpc.respond(id, Status::Done, Some(message));
            }
            _ => {
                self.rpc.respond(id, Status::Overloaded, None);
            }
        }
    }
}

/// Writes to a [`Server`], several writes at a time.
#[derive(Debug)]
pub struct Client {
    rpc: Rpc,
    session: SessionId,
    submitted: u64,
    finished: u64,
}

/// Why a write is not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] Error),
    /// There is no memory for messages, or the backlog is full: wait for some of the writes that are under way.
    #[error("too much is under way: wait for some of it")]
    Full,
    /// The session is over, or the message is too long.
    #[error(transparent)]
    Call(CallError),
    /// The server says no.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// There is no answer. What was under way may be there or not.
    #[error("{0}")]
    Lost(String),
    /// The answer makes no sense.
    #[error("the server's answer makes no sense")]
    Nonsense,
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Nonsense
    }
}

impl Client {
    /// A session with a server. (It is set up with the first call.)
    ///
    /// # Errors
    /// The endpoint has as many sessions as it may.
    pub fn connect(mut rpc: Rpc, to: Address) -> Result<Self, Fault> {
        let session = rpc.connect(to).ok_or(Fault::Full)?;
        Ok(Self { rpc, session, submitted: 0, finished: 0 })
    }

    /// The endpoint that the client calls through.
    #[must_use]
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// What the server's memory is: its length, its guarantee, and whether acknowledged writes are in its persistence
    /// domain.
    ///
    /// # Errors
    /// There is no answer, or one that makes no sense.
    pub fn describe(&mut self) -> Result<(u64, Guarantee, Promise), Fault> {
        let bytes = self.call(DESCRIBE, &[])?;
        let mut r = Reader::new(&bytes);
        let (len, guarantee) = (r.u64_be()?, Guarantee::from_bits(r.u16_be()?).ok_or(Fault::Nonsense)?);
        let promise = if r.bool()? { Promise::Synced } else { Promise::Visible };
        r.end()?;
        Ok((len, guarantee, promise))
    }

    /// Bytes of the server's memory.
    ///
    /// # Errors
    /// There is no answer, or it is a refusal.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Fault> {
        let mut request = offset.to_be_bytes().to_vec();
        request.extend_from_slice(&len.to_be_bytes());
        self.call(READ, &request)
    }

    fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, Fault> {
        // Writes that are under way are accounted for as always.
        while self.finished < self.submitted {
            self.wait()?;
        }
        let answer = self.rpc.call_and_wait(self.session, service, request, |_| {});
        let (status, body) = answer.map_err(Fault::Lost)?;
        match status {
            Status::Done => Ok(body.to_vec()),
            _ => Err(refusal(status, &body)),
        }
    }

    /// Writes that were submitted and not acknowledged.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.submitted - self.finished
    }

    /// Starts a write of bytes, which are copied at once.
    ///
    /// # Errors
    /// [`Fault::Full`], which changes nothing; the session is over.
    pub fn submit(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let message = self.rpc.message(WRITE_HEAD + bytes.len()).ok_or(Fault::Full)?;
        message.write(0, &offset.to_be_bytes());
        message.write(WRITE_HEAD, bytes);
        match self.rpc.call(self.session, WRITE, message, self.submitted) {
            Ok(()) => {
                self.submitted += 1;
                Ok(())
            }
            Err((CallError::Full, _)) => Err(Fault::Full),
            Err((why, _)) => Err(Fault::Call(why)),
        }
    }

    /// Waits for the next acknowledgement.
    ///
    /// # Errors
    /// A write is not acknowledged.
    pub fn wait(&mut self) -> Result<(), Fault> {
        loop {
            match self.rpc.poll(None)? {
                Some(Event::Response { status: Status::Done, .. }) => {
                    self.finished += 1;
                    return Ok(());
                }
                Some(Event::Response { status, body, .. }) => {
                    self.finished += 1;
                    return Err(refusal(status, &body));
                }
                Some(Event::Failed { why, .. }) => {
                    self.finished += 1;
                    return Err(Fault::Lost(why.to_string()));
                }
                Some(
                    Event::Connected(_)
                    | Event::Ended { .. }
                    | Event::Accepted { .. }
                    | Event::Request { .. },
                )
                | None => {}
            }
        }
    }

    /// One write, and waits for it.
    ///
    /// # Errors
    /// As [`submit`](Self::submit) and [`wait`](Self::wait).
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.submit(offset, bytes)?;
        while self.under_way() > 0 {
            self.wait()?;
        }
        Ok(())
    }
}

pub(crate) fn refusal(status: Status, body: &Body<Live>) -> Fault {
    Fault::Refused(match status {
        Status::NoService => "it does not serve this".into(),
        Status::Overloaded => "it has no room for the message now".into(),
        Status::Refused | Status::Done => printable(&body.to_vec()),
    })
}
