//! Brings a server that was away up to date from the others.
//!
//! The version of each name decides: what a source has newer is copied with its version, deletions too. Each copy goes
//! the way of any put, so it is durable and whole or not there; an interrupted catch-up is simply begun again.
//!
//! The highest version that a majority of the servers knows of is what won: no put that was acknowledged has a higher
//! one, and of one that failed it is the only one that may still count ([`crate::quorum`]). So a majority, the target
//! included, has to be there; nothing that was acknowledged is ever replaced.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::get::Download;
use super::put::{Event, Source, Upload};
use super::{Client, Error, LossReason, Lost, ServerIndex};
use crate::blob::{BlobName, Listing, State, Version};
use crate::proto::{Code, Reply, Request};
use crate::quorum::majority;

/// Something that a source has newer than the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The name, with the version and the state that the source has.
    pub listing: Listing,
    /// What the target has: [`Version::NONE`] if it never heard of the name.
    pub behind: Version,
    /// The target has an older blob of that name.
    pub stale: bool,
    /// The server that has it, by its index among the sources.
    pub source: ServerIndex,
}

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

/// What `target` (a client of one server) is behind `sources`.
///
/// # Errors
/// The target is lost, or so many sources are that what is left is no majority.
pub fn differences(sources: &mut Client, target: &mut Client) -> Result<Vec<Difference>, Error> {
    let mut newest: BTreeMap<BlobName, (Listing, ServerIndex)> = BTreeMap::new();
    let mut asked = 0;
    // The target counts, and may be named among the sources too.
    let place = target.options.servers[0].1;
    for source in sources.live().collect::<Vec<_>>() {
        if sources.options.servers[source].1 == place {
            continue;
        }
        let Ok(catalogue) = sources.list(source) else { continue };
        asked += 1;
        for listing in catalogue {
            let known = newest.get(&listing.name).map_or(Version::NONE, |(known, _)| known.version);
            if listing.version > known {
                newest.insert(listing.name.clone(), (listing, source));
            }
        }
    }
    let named = sources.options.servers.iter().filter(|(_, address)| *address != place).count() + 1;
    let have = asked + 1;
    if asked == 0 || have < majority(named) {
        let (servers, need) = (named, majority(named));
        return Err(Error::NoMajority { have, servers, need, lost: sources.lost() });
    }
    let has: BTreeMap<BlobName, (Version, bool)> = target
        .list(0)
        .map_err(|lost| Error::TooFew { have: 0, need: 1, lost: vec![lost] })?
        .into_iter()
        .map(|listing| (listing.name, (listing.version, listing.state != State::Deleted)))
        .collect();
    Ok(newest
        .into_values()
        .filter_map(|(listing, source)| {
            let (behind, stale) = has.get(&listing.name).copied().unwrap_or((Version::NONE, false));
            (listing.version > behind).then_some(Difference { listing, behind, stale, source })
        })
        .collect())
}

impl Client {
    /// Brings this client's only server up to date from `sources`. `events` is told of each copy.
    ///
    /// # Errors
    /// The target is lost or full, or a blob can be had from no source.
    pub fn catch_up(
        &mut self,
        sources: &mut Self,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<SyncReport, Error> {
        let began = Instant::now();
        let mut report = SyncReport::default();
        // Each round that fails because of a source loses that source, so rounds are bounded by their number.
        for _ in 0..=sources.options.servers.len() {
            let behind = differences(sources, self)?;
            self.catch_up_numbers(sources);
            if behind.is_empty() {
                break;
            }
            match self.copy(sources, &behind, &mut report, events) {
                Ok(()) => {}
                Err(Error::Io { .. }) if sources.live().next().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(SyncReport { elapsed: began.elapsed(), ..report })
    }

    /// What the sources left behind the target leaves behind too: a new file in the place of a lost one gives out no
    /// number for the second time. Who cannot say so now is asked at the next put.
    fn catch_up_numbers(&mut self, sources: &mut Self) {
        let live: Vec<ServerIndex> = sources.live().collect();
        let numbers = live.into_iter().filter_map(|source| sources.promised(source, Request::Ticket));
        if let Some(number) = numbers.max() {
            let _ = self.promised(0, Request::Promise { number });
        }
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

    fn copy(
        &mut self,
        sources: &mut Self,
        behind: &[Difference],
        report: &mut SyncReport,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Error> {
        for difference in behind {
            if difference.listing.state == State::Deleted {
                let (name, version) = (difference.listing.name.clone(), difference.listing.version);
                match self.request(0, Request::Delete { name, version }) {
                    Ok(Reply::Committed { .. }) => report.deleted += usize::from(difference.stale),
                    // Somebody put it anew at the same time.
                    Err(Lost { why: LossReason::Refused { code: Code::Superseded, .. }, .. }) => {}
                    Ok(other) => drop(self.nonsense(0, other)),
                    Err(lost) => return Err(Error::TooFew { have: 0, need: 1, lost: vec![lost] }),
                }
            }
        }
        let shared = Mutex::new(sources);
        let blobs = behind.iter().filter(|difference| difference.listing.state != State::Deleted);
        let readers = blobs.map(|difference| {
            let name = difference.listing.name.clone();
            let mut client = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match Download::open(&mut client, difference.source, &name) {
                Ok(download) => {
                    // It may have been put anew since it was listed.
                    let (len, version) = (Some(download.len()), Some(download.version));
                    let reader = Box::new(SharedReader { client: &shared, download });
                    Ok(Source { name, len, reader, version })
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
        done.map(drop)
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
