//! What the server does about each request, without an endpoint or a clock: whoever drives it has both, and says when to commit.

use std::io;

use remanence_pmem::counter::{Entry, LogFault};
use remanence_pmem::{Medium, Region};

use super::{APPEND, BOUNDS, LogFile, READ, TRIM};
use crate::core::event::RequestId;
use crate::header::Status;

/// A log that is served. After an error it is to be asked nothing more: the medium failed, and whoever drives it ends.
#[derive(Debug)]
pub struct Machine<M: Medium = Region> {
    log: LogFile<M>,
    /// Appended, and acknowledged after the next commit.
    appended: Vec<(RequestId, Entry)>,
    appends: u64,
    commits: u64,
}

/// What became of a commit, of which those are to be told that wait for it.
#[derive(Debug)]
#[must_use = "appends wait for their answers"]
pub struct Committed(Result<(), LogFault>);

impl<M: Medium> Machine<M> {
    /// Over a log that was made or opened.
    #[must_use]
    pub const fn new(log: LogFile<M>) -> Self {
        Self { log, appended: Vec::new(), appends: 0, commits: 0 }
    }

    /// Entries appended, and commits made.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64) {
        (self.appends, self.commits)
    }

    /// Whether to commit now: something was appended, and as many wait as may share a commit, or nothing more has come.
    #[must_use]
    pub const fn is_due(&self, sharing: usize, more: bool) -> bool {
        !self.appended.is_empty() && (self.appended.len() >= sharing || !more)
    }

    /// Carries a request out, and answers it; an append that was made is answered when it is [committed](Self::commit).
    ///
    /// # Errors
    /// The medium failed.
    pub fn serve(
        &mut self,
        id: RequestId,
        service: u16,
        body: &[u8],
        mut answer: impl FnMut(RequestId, Status, &[u8]),
    ) -> io::Result<()> {
        let position = body.try_into().map(u64::from_be_bytes);
        let done = match (service, position) {
            (APPEND, _) => self.log.append(body).map(|entry| {
                self.appends += 1;
                self.appended.push((id, entry));
            }),
            (BOUNDS, _) => {
                let (head, tail) = self.log.bounds();
                answer(id, Status::Done, [head, tail].map(u64::to_be_bytes).as_flattened());
                Ok(())
            }
            (READ, Ok(position)) => {
                match self.log.read(position) {
                    Some((entry, bytes)) => {
                        answer(id, Status::Done, &[&entry.end.to_be_bytes(), &bytes[..]].concat());
                    }
                    None => answer(id, Status::Refused, b"no committed entry begins there"),
                }
                Ok(())
            }
            (TRIM, Ok(position)) => self.log.trim(position).map(|()| answer(id, Status::Done, &[])),
            (READ | TRIM, Err(_)) => {
                answer(id, Status::Refused, b"a position has eight bytes");
                Ok(())
            }
            _ => {
                answer(id, Status::NoService, &[]);
                Ok(())
            }
        };
        let Err(why) = done else { return Ok(()) };
        answer(id, Status::Refused, why.to_string().as_bytes());
        match why {
            LogFault::Full { .. } | LogFault::TooLong { .. } | LogFault::NotAnEnd { .. } => Ok(()),
            why => Err(failed(why)),
        }
    }

    /// Makes durable what was appended. Those who wait for it are answered [next](Self::answer).
    pub fn commit(&mut self) -> Committed {
        self.commits += 1;
        Committed(self.log.commit())
    }

    /// Answers those whose entries a commit was for.
    ///
    /// # Errors
    /// The medium failed, which they are told.
    pub fn answer(
        &mut self,
        Committed(result): Committed,
        mut answer: impl FnMut(RequestId, Status, &[u8]),
    ) -> io::Result<()> {
        for (id, entry) in self.appended.drain(..) {
            match &result {
                Ok(()) => {
                    let place = [entry.position, entry.end].map(u64::to_be_bytes);
                    answer(id, Status::Done, place.as_flattened());
                }
                Err(why) => answer(id, Status::Refused, why.to_string().as_bytes()),
            }
        }
        result.map_err(failed)
    }
}

fn failed(why: LogFault) -> io::Error {
    match why {
        LogFault::Medium(e) => e,
        other => io::Error::other(other),
    }
}
