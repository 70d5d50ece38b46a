//! Gets blobs back: pipelined READs into the ring, in order, the digest checked at the end.
//!
//! A blob is read from one server that has its newest version; when that one fails, or has other bytes than were put
//! there, the next one is asked.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use super::link::{self, Happened, Tag};
use super::{Client, Error, Lost, News, ServerIndex, Why};
use crate::blob::{BlobName, Digest, DigestHasher, Version};
use crate::proto::{RemoteExtent, Reply, Request};

/// What was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Got {
    /// From which server.
    pub server: ServerIndex,
    /// Which version.
    pub version: Version,
    /// Its length.
    pub len: u64,
    /// Its digest, as it was put and as it was found to be.
    pub digest: Digest,
    /// How long it took.
    pub took: Duration,
    /// Servers that could not give it.
    pub lost: Vec<Lost>,
}

/// One blob on its way from one server.
pub(super) struct Download {
    server: ServerIndex,
    lease: u64,
    version: Version,
    len: u64,
    digest: Digest,
    /// What is not asked for yet.
    extents: VecDeque<RemoteExtent>,
    unasked: u64,
    /// READs under way, in order: tag, slot, bytes.
    under_way: VecDeque<(Tag, u32, u32)>,
    free: Vec<u32>,
    /// The chunk that is being handed out: slot, position, bytes.
    current: Option<(u32, u32, u32)>,
    hasher: DigestHasher,
    handed_out: u64,
    verified: bool,
    failure: Option<Lost>,
}

/// A blob as a stream. At its end the digest was compared: who has read to the end has what was put.
pub struct BlobReader<'a> {
    client: &'a mut Client,
    download: Download,
}

impl BlobReader<'_> {
    /// The blob's length.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.download.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.download.len == 0
    }

    /// The server that it comes from.
    #[must_use]
    pub fn server(&self) -> ServerIndex {
        self.download.server
    }
}

impl Read for BlobReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.download.read(self.client, into)
    }
}

impl Drop for BlobReader<'_> {
    fn drop(&mut self) {
        self.download.close(self.client);
    }
}

impl Client {
    /// Opens a blob for reading on one server.
    ///
    /// # Errors
    /// The server is lost, or has no such blob.
    pub fn open(&mut self, server: ServerIndex, name: &BlobName) -> Result<BlobReader<'_>, Lost> {
        let download = Download::open(self, server, name)?;
        Ok(BlobReader { client: self, download })
    }

    /// Gets the newest version of a blob that the live servers know of. `take` consumes the stream, and is called again
    /// from the beginning when a server fails.
    ///
    /// # Errors
    /// There is no such blob, no server could give it whole, or `take` failed.
    pub fn get(
        &mut self,
        name: &BlobName,
        mut take: impl FnMut(&mut BlobReader<'_>) -> io::Result<()>,
    ) -> Result<Got, Error> {
        let began = Instant::now();
        let versions = self.versions(name)?;
        let newest = versions.iter().map(|(_, version, _)| *version).max().unwrap_or(Version::NONE);
        let holders: Vec<ServerIndex> =
            versions.iter().filter(|(_, v, live)| *live && *v == newest).map(|(s, ..)| *s).collect();
        if holders.is_empty() {
            return Err(Error::NotFound(name.clone()));
        }
        let mut lost = Vec::new();
        for server in holders {
            let mut reader = match self.open(server, name) {
                Ok(reader) => reader,
                Err(why) => {
                    lost.push(why);
                    continue;
                }
            };
            // What `take` left is read all the same: the digest is of the whole.
            let taken = take(&mut reader).and_then(|()| io::copy(&mut reader, &mut io::sink()).map(drop));
            let Download { version, len, digest, .. } = reader.download;
            match (taken, reader.download.failure.take()) {
                (Ok(()), _) => {
                    drop(reader);
                    return Ok(Got { server, version, len, digest, took: began.elapsed(), lost });
                }
                (Err(_), Some(failure)) => lost.push(failure),
                (Err(error), None) => {
                    let what = format!("\"{name}\" cannot be written out");
                    return Err(Error::Io { what, error });
                }
            }
        }
        Err(Error::Unreadable { name: name.clone(), lost })
    }
}

impl Download {
    pub(super) fn open(client: &mut Client, server: ServerIndex, name: &BlobName) -> Result<Self, Lost> {
        let (lease, version, len, digest, total, mut extents) =
            match client.request(server, Request::Lookup { name: name.clone() })? {
                Reply::Found { lease, version, len, digest, total, extents } => {
                    (lease, version, len, digest, total as usize, extents)
                }
                other => return Err(client.nonsense(server, other)),
            };
        while extents.len() < total {
            let from = extents.len() as u32;
            match client.request(server, Request::MoreExtents { lease, from })? {
                Reply::Extents { extents: more } if !more.is_empty() => extents.extend(more),
                other => return Err(client.nonsense(server, other)),
            }
        }
        let room: u64 = extents.iter().fold(0, |sum, e| sum.saturating_add(e.len));
        if room < len {
            return Err(client.lose(server, Why::Nonsense));
        }
        Ok(Self {
            server,
            lease,
            version,
            len,
            digest,
            extents: extents.into(),
            unasked: len,
            under_way: VecDeque::new(),
            free: (0..client.options.chunks).collect(),
            current: None,
            hasher: Digest::hasher(),
            handed_out: 0,
            verified: false,
            failure: None,
        })
    }

    pub(super) fn read(&mut self, client: &mut Client, into: &mut [u8]) -> io::Result<usize> {
        let result = self.try_read(client, into);
        result.map_err(|lost| {
            let error = io::Error::other(lost.to_string());
            self.failure = Some(lost);
            error
        })
    }

    fn try_read(&mut self, client: &mut Client, into: &mut [u8]) -> Result<usize, Lost> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.handed_out == self.len {
            if !self.verified && self.hasher.finish() != self.digest {
                // The server is sound otherwise: other blobs can be had from it.
                return Err(Lost { server: client.name(self.server).to_owned(), why: Why::Damaged });
            }
            self.verified = true;
            return Ok(0);
        }
        if into.is_empty() {
            return Ok(0);
        }
        let (slot, at, have) = match self.current {
            Some(current) => current,
            None => self.next_chunk(client)?,
        };
        let n = into.len().min((have - at) as usize);
        let place = client.ring.offset() + u64::from(slot) * u64::from(client.options.chunk) + u64::from(at);
        client.ring.region().read(place, &mut into[..n]);
        self.hasher.update(&into[..n]);
        self.handed_out += n as u64;
        let at = at + n as u32;
        if at == have {
            self.free.push(slot);
            self.current = None;
        } else {
            self.current = Some((slot, at, have));
        }
        Ok(n)
    }

    /// Keeps READs under way, and waits for the oldest.
    fn next_chunk(&mut self, client: &mut Client) -> Result<(u32, u32, u32), Lost> {
        self.ask(client)?;
        let (tag, slot, len) = self.under_way[0];
        self.wait_for(client, tag)?;
        self.under_way.pop_front();
        Ok((slot, 0, len))
    }

    fn ask(&mut self, client: &mut Client) -> Result<(), Lost> {
        let chunk = client.options.chunk;
        while self.unasked > 0 && !self.free.is_empty() {
            if client.link(self.server).is_none_or(|link| link.budget() == 0) {
                break;
            }
            let slot = self.free.pop().expect("looked at above");
            let extent = self.extents.front_mut().expect("extents cover the length");
            let len = u64::from(chunk).min(extent.len).min(self.unasked);
            let (addr, rkey) = (extent.addr, extent.rkey);
            extent.addr += len;
            extent.len -= len;
            if extent.len == 0 {
                self.extents.pop_front();
            }
            self.unasked -= len;
            let tag = client.tag();
            let to = client.ring.sge(u64::from(slot) * u64::from(chunk), len as u32);
            client.on(self.server, |link| link.read(to, addr, rkey, tag))?;
            self.under_way.push_back((tag, slot, len as u32));
        }
        if self.under_way.is_empty() { Err(client.why_lost(self.server)) } else { Ok(()) }
    }

    fn wait_for(&self, client: &mut Client, tag: Tag) -> Result<(), Lost> {
        loop {
            match client.next_news(Some(Duration::from_millis(100))) {
                Some(News::From(_, Happened::Completed(done))) if done == tag => return Ok(()),
                Some(News::Lost(server)) if server == self.server => return Err(client.why_lost(server)),
                Some(_) | None => {}
            }
        }
    }

    /// Lets go of the blob, once no READ of it is under way any more: a READ that found its key closed would end the
    /// QP.
    pub(super) fn close(&mut self, client: &mut Client) {
        while let Some((tag, ..)) = self.under_way.pop_front() {
            if self.wait_for(client, tag).is_err() {
                return;
            }
        }
        let lease = self.lease;
        let _: Result<(), Lost> =
            client.on(self.server, |link: &mut link::Link| link.tell(Request::Release { lease }));
    }
}
