//! Brings a server that was away up to date from the others.
//!
//! The version of each name decides: what a source has newer is copied with its version, deletions too. Each copy goes
//! the way of any put, so it is durable and whole or not there; an interrupted catch-up is simply begun again.
//!
//! The highest version that is known of where every majority has a server is what won: no put that was acknowledged has a
//! higher one, and of one that failed it is the only one that may still count ([`crate::quorum`]). The target is not one of
//! those that are asked: it may have a new disk, and know nothing of what it has said. So as many others have to
//! be there as every majority has one of ([`others_needed`]); nothing that was acknowledged is ever replaced. A target with a new
//! disk must be caught up before clients use it: to them it is a server that has never heard of anything.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::get::Download;
use super::put::{Event, Source, Upload};
use super::{Client, Error, LossReason, Lost, ServerIndex};
use crate::blob::{BlobName, Listing, State, Version};
use crate::proto::{Code, Reply, Request};
use crate::quorum::others_needed;

/// Something that a source has newer than the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The name, with the version and the state that the source has.
    pub listing: Listing,
    /// What the target has: [`Version::NONE`] if it never heard of the name.
    pub behind: Version,
    /// The target has an older blob of that name.
    pub stale: bool,
    /// The servers that have it, by their indices among the sources.
    pub sources: Vec<ServerIndex>,
}

/// A version of a blob, and a source that has it.
type Holding = (BlobName, Version, ServerIndex);

/// What a call of [`Client::catch_up`] has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SyncReport {
    /// Blobs that were copied to the target, and are durable there.
    pub copied: usize,
    /// Bytes that these blobs have.
    pub bytes: u64,
    /// Blobs that the target had and that were deleted there.
    pub deleted: usize,
    /// Time from the call to its end.
    pub elapsed: Duration,
}

/// What `target` (a client of one server) is behind `sources`, which may have the target among them.
///
/// # Errors
/// The target is lost, or so many sources are that nobody may be left who knows of something that was acknowledged.
pub fn differences(sources: &mut Client, target: &mut Client) -> Result<Vec<Difference>, Error> {
    let mut newest: BTreeMap<BlobName, (Listing, Vec<ServerIndex>)> = BTreeMap::new();
    let mut asked = 0;
    for source in sources.others(target) {
        let Ok(catalogue) = sources.list(source) else { continue };
        asked += 1;
        for listing in catalogue {
            let (known, holders) =
                newest.entry(listing.name.clone()).or_insert_with(|| (listing.clone(), Vec::new()));
            if listing.version > known.version {
                (*known, *holders) = (listing, vec![source]);
            } else if listing.version == known.version {
                holders.push(source);
            }
        }
    }
    sources.are_enough(target, asked, Vec::new())?;
    let has: BTreeMap<BlobName, (Version, bool)> = target
        .list(0)
        .map_err(|lost| Error::TooFew { have: 0, need: 1, lost: vec![lost] })?
        .into_iter()
        .map(|listing| (listing.name, (listing.version, listing.state != State::Deleted)))
        .collect();
    Ok(newest
        .into_values()
        .filter_map(|(listing, sources)| {
            let (behind, stale) = has.get(&listing.name).copied().unwrap_or((Version::NONE, false));
            (listing.version > behind).then_some(Difference { listing, behind, stale, sources })
        })
        .collect())
}

impl Client {
    /// Brings this client's only server up to date from `sources`. `events` is told of each copy. A blob that one source
    /// cannot give is copied from another one that has it.
    ///
    /// # Errors
    /// The target is lost or full, too few sources are there to know what was put last and which numbers were given out, or a blob can be had
    /// from no source; then all others are there.
    pub fn catch_up(
        &mut self,
        sources: &mut Self,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<SyncReport, Error> {
        let began = Instant::now();
        let mut report = SyncReport::default();
        self.catch_up_numbers(sources)?;
        // Each round but the last one finds a source more that cannot give a blob.
        let mut failed: BTreeMap<Holding, Error> = BTreeMap::new();
        loop {
            let behind = differences(sources, self)?;
            self.copy_deletions(&behind, &mut report)?;
            let (mut copies, mut missing) = (Vec::new(), None);
            for Difference { listing, sources: holders, .. } in behind {
                if listing.state == State::Deleted {
                    continue;
                }
                let of = |source| (listing.name.clone(), listing.version, source);
                let holding = holders.into_iter().map(of).find(|holding| !failed.contains_key(holding));
                match holding {
                    Some(holding) => copies.push(holding),
                    None => missing = Some(listing.name),
                }
            }
            if let Some((holding, why)) = self.copy(sources, &copies, &mut report, events)? {
                failed.insert(holding, why);
                continue;
            }
            return match failed.into_iter().find(|((name, ..), _)| Some(name) == missing.as_ref()) {
                Some((_, why)) => Err(why),
                None => Ok(SyncReport { elapsed: began.elapsed(), ..report }),
            };
        }
    }

    /// What the others left behind the target leaves behind too: a new file in the place of a lost one gives out no number for the second
    /// time.
    fn catch_up_numbers(&mut self, sources: &mut Self) -> Result<(), Error> {
        let (mut numbers, mut refused) = (Vec::new(), Vec::new());
        for source in sources.others(self) {
            match sources.promised(source, Request::Ticket) {
                Ok(number) => numbers.push(number),
                Err(lost) => refused.push(lost),
            }
        }
        sources.are_enough(self, numbers.len(), refused)?;
        let number = numbers.into_iter().max().expect("one is needed at least");
        let promised = self.promised(0, Request::Promise { number });
        promised.map(drop).map_err(|lost| Error::TooFew { have: 0, need: 1, lost: vec![lost] })
    }

    /// Whether a server of these is the one of a client that has no other one.
    fn is_of(&self, server: ServerIndex, target: &Self) -> bool {
        let uuid = |client: &Self, server| client.info(server).map(|info| info.uuid);
        let of = uuid(target, 0);
        self.options.servers[server].1 == target.options.servers[0].1
            || of.is_some() && uuid(self, server) == of
    }

    /// The live servers that are not the target.
    fn others(&self, target: &Self) -> Vec<ServerIndex> {
        self.live().filter(|server| !self.is_of(*server, target)).collect()
    }

    /// Whether one at least of so many others was asked whenever something was acknowledged, or promised, by a majority of these servers and the
    /// target.
    fn are_enough(&self, target: &Self, have: usize, mut lost: Vec<Lost>) -> Result<(), Error> {
        let named = (0..self.options.servers.len()).filter(|server| !self.is_of(*server, target)).count();
        let need = others_needed(named + 1);
        if have >= need {
            return Ok(());
        }
        lost.extend(self.lost());
        lost.dedup();
        Err(Error::TooFewSources { have, need, lost })
    }

    /// Copies one blob that was opened at a source to `quorum` of this client's servers.
    pub(super) fn copy_one(
        &mut self,
        from: &mut Self,
        name: &BlobName,
        download: Download,
        quorum: usize,
    ) -> Result<(), Error> {
        let version = download.version;
        let shared = Mutex::new(from);
        let reader = Box::new(SharedReader { client: &shared, download });
        let source = Source { name: name.clone(), len: None, reader, version: Some(version) };
        let upload = Upload { quorum, servers: None };
        self.put_on(std::iter::once(Ok(source)), &upload, &mut |_| ()).map(drop)
    }

    fn copy_deletions(&mut self, behind: &[Difference], report: &mut SyncReport) -> Result<(), Error> {
        for difference in behind.iter().filter(|difference| difference.listing.state == State::Deleted) {
            let (name, version) = (difference.listing.name.clone(), difference.listing.version);
            let lost = match self.request(0, Request::Delete { name, version }) {
                Ok(Reply::Committed { .. }) => {
                    report.deleted += usize::from(difference.stale);
                    continue;
                }
                // Somebody put it anew at the same time.
                Err(Lost { why: LossReason::Refused { code: Code::Superseded, .. }, .. }) => continue,
                Ok(other) => self.nonsense(0, other),
                Err(lost) => lost,
            };
            return Err(Error::TooFew { have: 0, need: 1, lost: vec![lost] });
        }
        Ok(())
    }

    /// Copies blobs, each from a source that has it, up to the first one that this source cannot give.
    fn copy(
        &mut self,
        sources: &mut Self,
        copies: &[Holding],
        report: &mut SyncReport,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<(Holding, Error)>, Error> {
        let (shared, begun) = (Mutex::new(sources), AtomicUsize::new(0));
        let readers = copies.iter().map(|(name, _, source)| {
            begun.fetch_add(1, Ordering::Relaxed);
            let mut client = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match Download::open(&mut client, *source, name) {
                Ok(download) => {
                    // It may have been put anew since it was listed.
                    let (len, version) = (Some(download.len()), Some(download.version));
                    let reader = Box::new(SharedReader { client: &shared, download });
                    Ok(Source { name: name.clone(), len, reader, version })
                }
                Err(lost) => {
                    Err((format!("\"{name}\" cannot be copied"), io::Error::other(lost.to_string())))
                }
            }
        });
        let upload = Upload { quorum: 1, servers: Some(vec![0]) };
        let (mut copied, mut bytes) = (0, 0);
        let done = self.put_on(readers, &upload, &mut |event| {
            if let Event::Durable { len, .. } = &event {
                copied += 1;
                bytes += len;
            }
            events(event);
        });
        report.copied += copied;
        report.bytes += bytes;
        match done {
            Ok(_) => Ok(None),
            // Sources are read one after the other, so it is the last one that was begun.
            Err(why @ Error::Io { .. }) => Ok(Some((copies[begun.into_inner() - 1].clone(), why))),
            Err(why) => Err(why),
        }
    }
}

/// A blob of a source, read by the thread that feeds the put.
struct SharedReader<'a, 'b> {
    client: &'a Mutex<&'b mut Client>,
    download: Download,
}

impl Read for SharedReader<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        self.download.read(&mut client, into)
    }
}

impl Drop for SharedReader<'_, '_> {
    fn drop(&mut self) {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        self.download.close(&mut client);
    }
}
