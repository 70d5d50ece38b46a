//! Serves one log: appends of many clients, several to a commit.

use std::io;
use std::time::{Duration, Instant};

use remanence_pmem::Region;

use super::LogFile;
use super::machine::Machine;
use super::sharing::Sharing;
use crate::core::event::{Event, RequestId};
use crate::header::Status;
use crate::live::Rpc;
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
    machine: Machine,
    sharing: Sharing,
    /// The request that is carried out.
    bytes: Vec<u8>,
    metering: Metering,
}

event_loop!(Server);

impl Server {
    /// Over a log that was made or opened.
    #[must_use]
    pub fn new(rpc: Rpc, log: LogFile<Region>, options: Options) -> Self {
        let (sharing, metering) = (Sharing::new(options.batch), Metering::default());
        Self { rpc, machine: Machine::new(log), sharing, bytes: Vec::new(), metering }
    }

    /// Entries appended, and commits made, by this server.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.machine.counts()
    }

    /// One round of the event loop. It sleeps so long at most.
    ///
    /// # Errors
    /// The endpoint does not work any more, or the medium failed.
    pub fn turn(&mut self, limit: Option<Duration>) -> io::Result<()> {
        // What came with others is served without waiting for it: that is what an append costs.
        let (before, appends) = (self.rpc.has_event().then(Instant::now), self.counts().0);
        let event = self.rpc.poll(limit).map_err(io::Error::other)?;
        let (worked, mut requests) = (event.is_some(), 0);
        let since = if worked { self.metering.begins() } else { None };
        if let Some(Event::Request { id, service, body }) = event {
            requests = 1;
            self.bytes.resize(body.len(), 0);
            body.read(0, &mut self.bytes);
            let served = self.machine.serve(id, service, &self.bytes, answers(&mut self.rpc));
            self.says(served)?;
        }
        if let Some(before) = before.filter(|_| self.counts().0 > appends) {
            self.sharing.appended(before.elapsed());
        }
        // What came together is committed together, as far as that pays.
        if self.machine.is_due(self.sharing.limit(), self.rpc.has_event()) {
            let begin = Instant::now();
            let committed = self.machine.commit();
            self.sharing.committed(begin.elapsed());
            let answered = self.machine.answer(committed, answers(&mut self.rpc));
            self.says(answered)?;
        }
        if worked {
            self.metering.served(requests, since);
        }
        Ok(())
    }

    /// The last words of a server whose medium failed leave before it ends.
    fn says(&mut self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            let _ = self.rpc.flush();
        }
        result
    }
}

/// How requests are answered.
fn answers(rpc: &mut Rpc) -> impl FnMut(RequestId, Status, &[u8]) {
    move |id, status, bytes| {
        if bytes.is_empty() {
            rpc.respond(id, status, None);
        } else {
            rpc.respond_with(id, status, bytes);
        }
    }
}
