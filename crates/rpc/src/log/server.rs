//! Serves one log: appends of many clients, several to a commit.

use std::io;
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_pmem::counter::{Entry, LogFault};

use super::sharing::Sharing;
use super::{APPEND, BOUNDS, LogFile, READ, TRIM};
use crate::core::buffers::Body;
use crate::core::event::{Event, RequestId};
use crate::header::Status;
use crate::live::{Live, Rpc};
use crate::metering::{Metering, event_loop};

/// How a log is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Appends that may share one commit, if they have come already: nobody waits for more of them. 1 is the paper's. Fewer
    /// share one where a commit is cheap beside an append, as those that wait are answered later.
    pub batch: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { batch: 32 }
    }
}

/// Serves one log.
#[derive(Debug)]
pub struct Server {
    rpc: Rpc,
    log: LogFile<Region>,
    sharing: Sharing,
    /// Appended, and acknowledged after the next commit.
    appended: Vec<(RequestId, Entry)>,
    bytes: Vec<u8>,
    appends: u64,
    commits: u64,
    metering: Metering,
}

event_loop!(Server);

impl Server {
    /// Over a log that was made or opened.
    #[must_use]
    pub fn new(rpc: Rpc, log: LogFile<Region>, options: Options) -> Self {
        let sharing = Sharing::new(options.batch);
        let metering = Metering::default();
        Self { rpc, log, sharing, appended: Vec::new(), bytes: Vec::new(), appends: 0, commits: 0, metering }
    }

    /// Entries appended, and commits made, by this server.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.appends, self.commits)
    }

    /// One round of the event loop. It sleeps so long at most.
    ///
    /// # Errors
    /// The endpoint does not work any more, or the medium failed.
    pub fn turn(&mut self, limit: Option<Duration>) -> io::Result<()> {
        // What came with others is served without waiting for it: that is what an append costs.
        let (before, appends) = (self.rpc.has_event().then(Instant::now), self.appends);
        let event = self.rpc.poll(limit).map_err(io::Error::other)?;
        let (worked, mut requests) = (event.is_some(), 0);
        let since = if worked { self.metering.begins() } else { None };
        if let Some(Event::Request { id, service, body }) = event {
            requests = 1;
            self.serve(id, service, &body)?;
        }
        if let Some(before) = before.filter(|_| self.appends > appends) {
            self.sharing.appended(before.elapsed());
        }
        // What came together is committed together, as far as that pays.
        if !self.appended.is_empty() && (self.appended.len() >= self.sharing.limit() || !self.rpc.has_event())
        {
            self.commit()?;
        }
        if worked {
            self.metering.served(requests, since);
        }
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let result = self.log.commit();
        self.sharing.committed(begin.elapsed());
        self.commits += 1;
        for (id, entry) in self.appended.drain(..) {
            match &result {
                Ok(()) => {
                    let answer = [entry.position, entry.end].map(u64::to_be_bytes);
                    self.rpc.respond_with(id, Status::Done, answer.as_flattened());
                }
                Err(why) => {
                    self.rpc.respond_with(id, Status::Refused, why.to_string().as_bytes());
                }
            }
        }
        if result.is_err() {
            // Its last words.
            let _ = self.rpc.flush();
        }
        result.map_err(failed)
    }

    fn serve(&mut self, id: RequestId, service: u16, body: &Body<Live>) -> io::Result<()> {
        let position = || {
            let mut bytes = [0; 8];
            (body.len() == 8).then(|| {
                body.read(0, &mut bytes);
                u64::from_be_bytes(bytes)
            })
        };
        match service {
            APPEND => {
                self.bytes.resize(body.len(), 0);
                body.read(0, &mut self.bytes);
                match self.log.append(&self.bytes) {
                    Ok(entry) => {
                        self.appends += 1;
                        self.appended.push((id, entry));
                    }
                    Err(why @ (LogFault::Full { .. } | LogFault::TooLong { .. })) => {
                        self.refuse(id, &why.to_string());
                    }
                    Err(why) => {
                        self.refuse(id, &why.to_string());
                        let _ = self.rpc.flush();
                        return Err(failed(why));
                    }
                }
            }
            BOUNDS => {
                let (head, tail) = self.log.bounds();
                let answer = [head, tail].map(u64::to_be_bytes);
                self.rpc.respond_with(id, Status::Done, answer.as_flattened());
            }
            READ => match position().map(|position| self.log.read(position)) {
                Some(Some((entry, bytes))) => {
                    let mut answer = entry.end.to_be_bytes().to_vec();
                    answer.extend_from_slice(&bytes);
                    self.rpc.respond_with(id, Status::Done, &answer);
                }
                Some(None) => self.refuse(id, "no committed entry begins there"),
                None => self.refuse(id, "a position has eight bytes"),
            },
            TRIM => match position().map(|position| self.log.trim(position)) {
                Some(Ok(())) => {
                    self.rpc.respond(id, Status::Done, None);
                }
                Some(Err(why)) => self.refuse(id, &why.to_string()),
                None => self.refuse(id, "a position has eight bytes"),
            },
            _ => {
                self.rpc.respond(id, Status::NoService, None);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, id: RequestId, why: &str) {
        self.rpc.respond_with(id, Status::Refused, why.as_bytes());
    }
}

fn failed(why: LogFault) -> io::Error {
    match why {
        LogFault::Medium(e) => e,
        other => io::Error::other(other),
    }
}
