//! Appends to a log of a [`Server`](super::Server), several at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_codec::Reader;
use remanence_pmem::counter::Position;

use super::{APPEND, BOUNDS, READ, TRIM};
use crate::core::event::{CallError, Event, SessionId};
use crate::durable::{Fault, refusal};
use crate::header::{Address, Status};
use crate::live::Rpc;

/// A client of one log.
#[derive(Debug)]
pub struct Client {
    rpc: Rpc,
    session: SessionId,
    next: u64,
    under_way: u64,
    early: BTreeMap<u64, Result<Position, String>>,
}

/// An append that came to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Which, in the order of submission, from 0.
    pub number: u64,
    /// Where it is, durable; or why nothing is known of it.
    pub outcome: Result<Position, String>,
}

impl Client {
    /// A session with a server. (It is set up with the first call.)
    ///
    /// # Errors
    /// The endpoint has as many sessions as it may.
    pub fn connect(mut rpc: Rpc, to: Address) -> Result<Self, Fault> {
        let session = rpc.connect(to).ok_or(Fault::Full)?;
        Ok(Self { rpc, session, next: 0, under_way: 0, early: BTreeMap::new() })
    }

    /// As [`connect`](Self::connect), and waits until the session is up.
    ///
    /// # Errors
    /// The server does not answer or refuses, or the endpoint has as many sessions as it may.
    pub fn connect_and_wait(mut rpc: Rpc, to: Address) -> Result<Self, Fault> {
        let session = rpc.connect_and_wait(to, |_| {})?;
        Ok(Self { rpc, session, next: 0, under_way: 0, early: BTreeMap::new() })
    }

    /// The endpoint that the client calls through.
    #[must_use]
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Appends that were submitted and have not come to an end.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Starts an append; returns its number.
    ///
    /// # Errors
    /// [`Fault::Full`], which changes nothing; the session is over.
    pub fn submit(&mut self, entry: &[u8]) -> Result<u64, Fault> {
        let message = self.rpc.message(entry.len()).ok_or(Fault::Full)?;
        message.write(0, entry);
        let number = self.next;
        match self.rpc.call(self.session, APPEND, message, number) {
            Ok(()) => {
                self.next += 1;
                self.under_way += 1;
                Ok(number)
            }
            Err((CallError::Full, _)) => Err(Fault::Full),
            Err((why, _)) => Err(Fault::Call(why)),
        }
    }

    /// Waits for the next append that comes to its end, in any order. `None`: none is under way, or the limit was
    /// reached.
    ///
    /// # Errors
    /// The endpoint does not work any more.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<Appended>, Fault> {
        if let Some((number, outcome)) = self.early.pop_first() {
            return Ok(Some(Appended { number, outcome }));
        }
        while self.under_way > 0 {
            match self.rpc.poll(limit)? {
                Some(event) => {
                    if let Some(appended) = outcome(&event) {
                        self.under_way -= 1;
                        return Ok(Some(appended));
                    }
                }
                None if limit.is_some() => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// One append, and waits for it: its position, durable.
    ///
    /// # Errors
    /// It is not acknowledged.
    pub fn append(&mut self, entry: &[u8]) -> Result<Position, Fault> {
        let mine = self.submit(entry)?;
        let mut early = BTreeMap::new();
        let outcome = loop {
            match self.wait(None)? {
                Some(Appended { number, outcome }) if number == mine => break outcome,
                Some(Appended { number, outcome }) => {
                    early.insert(number, outcome);
                }
                None => break Err("the append was lost".into()),
            }
        };
        self.early.append(&mut early);
        outcome.map_err(Fault::Lost)
    }

    /// From where to where there are entries.
    ///
    /// # Errors
    /// There is no answer, or it makes no sense.
    pub fn bounds(&mut self) -> Result<(Position, Position), Fault> {
        let bytes = self.call(BOUNDS, &[])?;
        let mut r = Reader::new(&bytes);
        let bounds = (r.u64_be()?, r.u64_be()?);
        r.end()?;
        Ok(bounds)
    }

    /// The entry that begins at a position, and where the next one does.
    ///
    /// # Errors
    /// There is none, or no answer.
    pub fn read(&mut self, position: Position) -> Result<(Vec<u8>, Position), Fault> {
        let bytes = self.call(READ, &position.to_be_bytes())?;
        let mut r = Reader::new(&bytes);
        let end = r.u64_be()?;
        Ok((r.rest().to_vec(), end))
    }

    /// Forgets the entries before a position.
    ///
    /// # Errors
    /// It is no end of a committed entry, or there is no answer.
    pub fn trim(&mut self, to: Position) -> Result<(), Fault> {
        self.call(TRIM, &to.to_be_bytes()).map(|_| ())
    }

    fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, Fault> {
        let (early, mut ended) = (&mut self.early, 0);
        let answer = self.rpc.call_and_wait(self.session, service, request, |event| {
            if let Some(Appended { number, outcome }) = outcome(&event) {
                early.insert(number, outcome);
                ended += 1;
            }
        });
        self.under_way -= ended;
        let (status, body) = answer.map_err(Fault::Lost)?;
        match status {
            Status::Done => Ok(body.to_vec()),
            _ => Err(refusal(status, &body)),
        }
    }
}

/// What an event says of an append.
fn outcome(event: &Event<crate::live::Live>) -> Option<Appended> {
    match event {
        Event::Response { tag, status, body } => {
            let outcome = match status {
                Status::Done => Reader::new(&body.to_vec()).u64_be().map_err(|_| Fault::Nonsense.to_string()),
                _ => Err(refusal(*status, body).to_string()),
            };
            Some(Appended { number: *tag, outcome })
        }
        Event::Failed { tag, why } => Some(Appended { number: *tag, outcome: Err(why.to_string()) }),
        Event::Connected(_) | Event::Ended { .. } | Event::Accepted { .. } | Event::Request { .. } => None,
    }
}
