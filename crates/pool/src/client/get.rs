//! Gets blobs back: pipelined READs into the ring, in order, the digest checked at the end.
//!
//! A blob is read from one server that has its newest version; when that one fails, or has other bytes than were put
//! there, the next one is asked. Which version is the newest a majority of the servers says; one that is on fewer is
//! brought to a majority before it is believed, so that what was read once is never taken back ([`crate::quorum`]).

use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use super::network::{Happened, Tag};
use super::{Client, Error, LossReason, Lost, News, Options, ServerIndex};
use crate::blob::{BlobName, Digest, DigestHasher, Version};
use crate::proto::{Code, RemoteExtent, Reply, Request};
use crate::quorum::Reading;

/// How often it is begun anew when others put or delete the blob at the same time.
const ROUNDS: usize = 16;

/// What is known of a blob that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Got {
    /// The server that gave the blob.
    pub server: ServerIndex,
    /// The version of the blob, as its server named it.
    pub version: Version,
    /// Bytes of the blob.
    pub len: u64,
    /// Its digest, as it was put and as it was found to be.
    pub digest: Digest,
    /// Time from the call to the last byte.
    pub took: Duration,
    /// How many servers said which version they have.
    pub asked: usize,
    /// It is what was put last: a majority was asked, and has it.
    pub newest: bool,
    /// Servers that could not give it.
    pub lost: Vec<Lost>,
}

/// One blob on its way from one server.
pub(super) struct Download {
    server: ServerIndex,
    lease: u64,
    pub(super) version: Version,
    len: u64,
    digest: Digest,
    /// Memory of the server that no READ has asked for yet.
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
    /// Bytes of the blob.
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

    /// Gets the newest version of a blob. `take` consumes the stream, and is called again from the beginning when a
    /// server fails.
    ///
    /// # Errors
    /// Fewer than a majority of the servers can be used, there is no such blob, no server could give it whole, or `take`
    /// failed.
    pub fn get(
        &mut self,
        name: &BlobName,
        take: impl FnMut(&mut BlobReader<'_>) -> io::Result<()>,
    ) -> Result<Got, Error> {
        self.fetch(name, false, take)
    }

    /// Gets the newest version of a blob, into memory.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_bytes(&mut self, name: &BlobName) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.get(name, |reader| {
            bytes.clear();
            reader.read_to_end(&mut bytes).map(drop)
        })?;
        Ok(bytes)
    }

    /// Gets the newest version that the live servers know of, however few they are: it may be older than what was put
    /// last, or of a put that failed.
    ///
    /// # Errors
    /// There is no such blob on any of them, no server could give it whole, or `take` failed.
    pub fn get_any(
        &mut self,
        name: &BlobName,
        take: impl FnMut(&mut BlobReader<'_>) -> io::Result<()>,
    ) -> Result<Got, Error> {
        self.fetch(name, true, take)
    }

    fn fetch(
        &mut self,
        name: &BlobName,
        any: bool,
        mut take: impl FnMut(&mut BlobReader<'_>) -> io::Result<()>,
    ) -> Result<Got, Error> {
        let began = Instant::now();
        let servers = self.options.servers.len();
        let mut lost = Vec::new();
        'again: for _ in 0..ROUNDS {
            let reading = match any {
                false => self.settle(name)?,
                true => {
                    let said = self.versions(name)?;
                    Reading::of_any(servers, &said).expect("somebody spoke, or it was an error")
                }
            };
            if !reading.live {
                return Err(Error::NotFound(name.clone()));
            }
            let asked = reading.holders.len() + reading.behind.len();
            for &server in &reading.holders {
                let mut reader = match self.open(server, name) {
                    Ok(reader) => reader,
                    // It was deleted just now.
                    Err(Lost { why: LossReason::Refused { code: Code::NotFound, .. }, .. }) => {
                        continue 'again;
                    }
                    Err(why) => {
                        lost.push(why);
                        continue;
                    }
                };
                // It was put anew just now; who knows on how many servers.
                if reader.download.version != reading.version {
                    continue 'again;
                }
                // What `take` left is read all the same: the digest is of the whole.
                let taken = take(&mut reader).and_then(|()| io::copy(&mut reader, &mut io::sink()).map(drop));
                let Download { version, len, digest, .. } = reader.download;
                match (taken, reader.download.failure.take()) {
                    (Ok(()), _) => {
                        drop(reader);
                        let (took, newest) = (began.elapsed(), !any || reading.is_settled());
                        return Ok(Got { server, version, len, digest, took, asked, newest, lost });
                    }
                    (Err(_), Some(failure)) => lost.push(failure),
                    (Err(error), None) => {
                        let what = format!("\"{name}\" cannot be written out");
                        return Err(Error::Io { what, error });
                    }
                }
            }
            return Err(Error::Unreadable { name: name.clone(), lost });
        }
        Err(Error::Busy(name.clone()))
    }

    /// What a majority has of a name, once a majority has it: a version that fewer have is brought to the others first.
    ///
    /// # Errors
    /// Fewer than a majority can be used, or it cannot be brought there.
    pub(super) fn settle(&mut self, name: &BlobName) -> Result<Reading, Error> {
        for _ in 0..ROUNDS {
            let reading = self.reading(name)?;
            if reading.missing() == 0 {
                return Ok(reading);
            }
            let brought = match reading.live {
                true => self.bring(name, &reading),
                false => self.bring_deletion(name, &reading),
            };
            match brought {
                Ok(true) => return Ok(reading),
                // It is another one by now.
                Ok(false) => {}
                Err(why) => {
                    let (have, servers) = (reading.holders.len(), self.options.servers.len());
                    return Err(Error::Unsettled { name: name.clone(), have, servers, why });
                }
            }
        }
        Err(Error::Busy(name.clone()))
    }

    /// Copies a blob from one of its holders to as many of those behind as make a majority; `false` if the holders have
    /// another version meanwhile.
    fn bring(&mut self, name: &BlobName, reading: &Reading) -> Result<bool, String> {
        let servers = reading.behind.iter().map(|server| self.options.servers[*server].clone()).collect();
        let options = Options { servers, ..self.options.clone() };
        let network = self.network.another().map_err(|e| e.to_string())?;
        let mut to = Self::over(network, options, reading.missing()).map_err(|e| e.to_string())?;
        let mut why = String::new();
        for &holder in &reading.holders {
            let download = match Download::open(self, holder, name) {
                Ok(download) if download.version == reading.version => download,
                Ok(mut other) => {
                    other.close(self);
                    return Ok(false);
                }
                Err(Lost { why: LossReason::Refused { code: Code::NotFound, .. }, .. }) => return Ok(false),
                Err(lost) => {
                    why = lost.to_string();
                    continue;
                }
            };
            match to.copy_one(self, name, download, reading.missing()) {
                Ok(()) => return Ok(true),
                // The holder's fault; the next one may be sound.
                Err(error @ Error::Io { .. }) => why = error.to_string(),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(why)
    }

    /// The same of a deletion.
    fn bring_deletion(&mut self, name: &BlobName, reading: &Reading) -> Result<bool, String> {
        let (mut done, mut why) = (0, Vec::new());
        for &server in &reading.behind {
            let request = Request::Delete { name: name.clone(), version: reading.version };
            match self.request(server, request) {
                Ok(Reply::Committed { .. }) => done += 1,
                Err(Lost { why: LossReason::Refused { code: Code::Superseded, .. }, .. }) => {
                    return Ok(false);
                }
                Ok(other) => why.push(self.nonsense(server, other)),
                Err(lost) => why.push(lost),
            }
        }
        if done >= reading.missing() { Ok(true) } else { Err(super::error::list(&why)) }
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
            return Err(client.lose(server, LossReason::Nonsense));
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

    /// Bytes of the blob.
    pub(super) const fn len(&self) -> u64 {
        self.len
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
                return Err(Lost { server: client.name(self.server).to_owned(), why: LossReason::Damaged });
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
        let place = u64::from(slot) * u64::from(client.options.chunk) + u64::from(at);
        client.ring.read(place, &mut into[..n]);
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
            let to = (u64::from(slot) * u64::from(chunk), len as u32);
            client.on(self.server, |link| link.read(to, addr, rkey, tag))?;
            self.under_way.push_back((tag, slot, len as u32));
        }
        if self.under_way.is_empty() { Err(client.why_lost(self.server)) } else { Ok(()) }
    }

    fn wait_for(&self, client: &mut Client, tag: Tag) -> Result<(), Lost> {
        loop {
            // From a server that is lost nothing comes any more, but what has come already.
            if client.news.is_empty() && client.link(self.server).is_none() {
                return Err(client.why_lost(self.server));
            }
            match client.next_news() {
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
        let _: Result<(), Lost> = client.on(self.server, |link| link.tell(Request::Release { lease }));
    }
}
