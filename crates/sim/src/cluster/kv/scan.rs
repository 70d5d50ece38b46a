//! A scan of all keys, page by page, as one operation: each key was there, or was not, at some moment since it began.

use std::collections::BTreeSet;

use remanence_kv::client::{Call, Client, Completion, Error, Operation as _, Progress};
use remanence_kv::{Reply, Request};

use super::oracle::key_of;

pub(super) struct Scan {
    call: Call,
    /// Keys that a page is asked for.
    limit: u32,
    seen: BTreeSet<Vec<u8>>,
    twice: Option<Vec<u8>>,
}

impl Scan {
    pub(super) fn new(limit: u32) -> Self {
        let call = Call::new(Request::Scan { cursor: 0, limit });
        Self { call, limit, seen: BTreeSet::new(), twice: None }
    }

    /// Goes on; it is over when the last page has come.
    pub(super) fn step<T>(
        &mut self,
        client: &mut Client,
        clock: u64,
        done: Vec<Completion>,
    ) -> Progress<Result<Option<T>, Error>> {
        match self.call.step(client, clock, done) {
            Progress::Post(verbs) => Progress::Post(verbs),
            Progress::Again => Progress::Again,
            Progress::Done(Ok(Reply::Page { next, keys, nameless })) => {
                for key in keys {
                    self.twice = self.twice.take().or_else(|| self.seen.contains(&key).then(|| key.clone()));
                    self.seen.insert(key);
                }
                if nameless > 0 {
                    return Progress::Done(Err(Error::Protocol("a key has no name")));
                }
                let Some(cursor) = next else { return Progress::Done(Ok(None)) };
                self.call = Call::new(Request::Scan { cursor, limit: self.limit });
                self.step(client, clock, Vec::new())
            }
            Progress::Done(Ok(_)) => {
                Progress::Done(Err(Error::Protocol("a scan is answered with something else")))
            }
            Progress::Done(Err(error)) => Progress::Done(Err(error)),
        }
    }

    pub(super) fn cancel(&mut self, client: &mut Client) {
        self.call.cancel(client);
    }

    /// Which keys there were, of so many that there may be.
    ///
    /// # Errors
    /// It has seen one twice, or one that nobody has written.
    pub(super) fn seen(&self, keys: u64) -> Result<&BTreeSet<Vec<u8>>, String> {
        let known: BTreeSet<Vec<u8>> = (0..keys).map(key_of).collect();
        let name = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        if let Some(key) = &self.twice {
            return Err(format!("a scan has seen {} twice", name(key)));
        }
        match self.seen.difference(&known).next() {
            Some(key) => Err(format!("a scan has seen {}, which nobody has written", name(key))),
            None => Ok(&self.seen),
        }
    }
}
