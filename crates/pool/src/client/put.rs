//! Puts streams on several servers at once.
//!
//! One thread reads the sources, hashes them and fills chunks of the ring ([`Reading`]); the caller's thread moves each chunk to
//! every server and, when all of a blob is flushed there, has it committed. Many small blobs are under way at a time,
//! so their waits for the media overlap. A blob is durable when at least `quorum` servers have said so; a server
//! that is lost on the way is told of, and the rest goes on as long as the quorum can be reached.
//!
//! Which version a blob gets is decided by [`crate::quorum`], while its data is under way; nothing is committed before
//! that, nor before all of it is durable on as many servers as the quorum has.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::{Duration, Instant};

use remanence_pmem::{Region, Survives};

use super::dialogue::unexpected;
use super::network::{Happened, Tag, Waker};
use super::transfer::{Act, BlobTransfer, End};
use super::{Client, Error, LossReason, Lost, News, ServerIndex};
use crate::blob::{BlobName, Digest, DigestHasher, Version};
use crate::proto::{Code, Reply, Request};
use crate::quorum::Ballot;

/// Blobs under way at a time.
const OPEN: usize = 32;

/// Bytes that are read and hashed at once: they stay in the cache in between.
const GULP: usize = 128 << 10;

/// One blob to put.
pub struct Source<'a> {
    /// Its name on the servers.
    pub name: BlobName,
    /// Its length, if known: then its room is reserved at once.
    pub len: Option<u64>,
    /// Gives the blob's bytes, up to its end.
    pub reader: Box<dyn Read + Send + 'a>,
    /// The version it has, if this is a copy; `None` for a new blob, which gets one above all earlier ones.
    pub version: Option<Version>,
}

/// How blobs are put: on which servers, and how many of them must have each.
#[derive(Clone, Debug)]
pub struct Upload {
    /// On how many servers a blob must be durable: a majority at least, so that nobody who asks a majority misses it.
    pub quorum: usize,
    /// The servers; `None` means all that are live.
    pub servers: Option<Vec<ServerIndex>>,
}

/// What happens on the way.
#[derive(Debug)]
pub enum Event<'a> {
    /// So many more bytes of a source are on their way to the servers.
    Sent(u64),
    /// A blob is durable.
    Durable {
        /// The blob's name on the servers.
        name: &'a BlobName,
        /// The version that is durable.
        version: Version,
        /// Bytes of the blob.
        len: u64,
        /// The digest of the bytes that were read from the source.
        digest: Digest,
        /// Time from the first byte read to the last answer of the quorum.
        took: Duration,
        /// On how many servers it is durable.
        copies: usize,
    },
    /// A server is lost; the others go on.
    Lost(&'a Lost),
}

/// What a call of [`Client::put`] has done.
#[derive(Clone, Debug)]
pub struct PutReport {
    /// Blobs that are durable on as many servers as the quorum asks.
    pub blobs: usize,
    /// Bytes that these blobs have, each counted once.
    pub bytes: u64,
    /// Time from the beginning of the put to its end.
    pub elapsed: Duration,
    /// Blobs that are durable on the quorum but not on every server that was named.
    pub incomplete: usize,
    /// Which failures each of these blobs survives: what it does on every server that it was put on.
    pub survives: Survives,
}

/// What the reading thread tells the thread that puts.
enum Feed {
    Begin { name: BlobName, len: Option<u64>, version: Option<Version>, at: Instant },
    Chunk { slot: u32, len: u32 },
    End(End),
    Broken { what: String, error: io::Error },
}

/// The transfer and the server that a completion or a reply belongs to.
enum Owed {
    Reply { transfer: u64, server: ServerIndex },
    Written { transfer: u64, server: ServerIndex },
    Flushed { transfer: u64, server: ServerIndex },
}

/// A leg, and whether it was given up and only waits for what is under way.
struct Path {
    server: ServerIndex,
    leg: BlobTransfer,
    given_up: bool,
}

impl Path {
    /// It waits for the answer to its commit.
    fn is_committing(&self) -> bool {
        !self.given_up && self.leg.is_committing()
    }
}

struct Transfer {
    name: BlobName,
    paths: Vec<Path>,
    /// How the version is chosen; for copies it was given.
    ballot: Ballot,
    version: Option<Version>,
    /// Enough servers had all of it, so it is being committed.
    committing: bool,
    end: Option<End>,
    began: Instant,
    done: usize,
    lost: Vec<Lost>,
    /// The user was told that it is durable.
    told: bool,
}

impl Client {
    /// Puts blobs. `events` is told what happens on the way, from this thread.
    ///
    /// # Errors
    /// At the first blob that does not reach the quorum, or source that cannot be read; or the quorum is no majority.
    /// What was told to be durable is. A blob that was not may come to be, as long as nobody puts it again: who reads it
    /// on a server that has it brings it to the others. The client should not be used for more: what it had reserved is
    /// given back when it is dropped.
    pub fn put<'a>(
        &mut self,
        sources: impl Iterator<Item = Result<Source<'a>, (String, io::Error)>> + Send,
        upload: &Upload,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<PutReport, Error> {
        let servers = upload.servers.as_ref().map_or(self.options.servers.len(), Vec::len);
        super::check_quorum(upload.quorum, servers)?;
        self.put_on(sources, upload, events)
    }

    /// Puts one blob that is in memory. It is durable on `quorum` servers at least when this returns.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_bytes(&mut self, name: &BlobName, bytes: &[u8], quorum: usize) -> Result<PutReport, Error> {
        let (len, reader) = (Some(bytes.len() as u64), Box::new(bytes));
        let source = Source { name: name.clone(), len, reader, version: None };
        self.put(std::iter::once(Ok(source)), &Upload { quorum, servers: None }, &mut |_| ())
    }

    /// The same with any quorum, for copies, whose versions were chosen long ago.
    pub(super) fn put_on<'a>(
        &mut self,
        sources: impl Iterator<Item = Result<Source<'a>, (String, io::Error)>> + Send,
        upload: &Upload,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<PutReport, Error> {
        let servers = upload.servers.clone().unwrap_or_else(|| self.live().collect());
        let named = upload.servers.as_ref().map_or(self.options.servers.len(), Vec::len);
        // Also of those that are lost on the way: some blobs may be on the quorum by one of them.
        let survives = self.survived_on(servers.iter().copied()).unwrap_or(Survives::NOTHING);
        let began = Instant::now();
        let mut reading = Reading::new(sources, self.options.chunk, self.ring.clone());
        let (chunks, quorum) = (self.options.chunks, upload.quorum);
        let report = match self.network.waker() {
            None => {
                let read = Box::new(move |slot: &mut dyn FnMut() -> Option<u32>| reading.next(slot));
                let intake = Intake::Here { read, free: (0..chunks).rev().collect() };
                Put::new(self, intake, servers, (named, quorum), survives).run(events)
            }
            Some(waker) => std::thread::scope(|scope| {
                let (feed_tx, feed) = sync_channel(chunks as usize);
                let (free, free_rx) = channel();
                for slot in 0..chunks {
                    free.send(slot).expect("the other end is here");
                }
                scope.spawn(move || {
                    // However it ends, whoever waits for what is read finds that out.
                    let feeder = Feeder { feed: Some(feed_tx), waker };
                    while let Some(feed) = reading.next(&mut || free_rx.recv().ok()) {
                        if !feeder.send(feed) {
                            break;
                        }
                    }
                });
                // Dropping the put's ends of the channels ends the reading thread.
                Put::new(self, Intake::Beside { feed, free }, servers, (named, quorum), survives).run(events)
            }),
        };
        report.map(|report| PutReport { elapsed: began.elapsed(), ..report })
    }
}

/// Where the reading thread puts what it has read.
struct Feeder {
    feed: Option<SyncSender<Feed>>,
    waker: Waker,
}

impl Feeder {
    /// Hands it to the thread that puts, and wakes that; `false` if nobody listens any more.
    fn send(&self, feed: Feed) -> bool {
        let sent = self.feed.as_ref().is_some_and(|to| to.send(feed).is_ok());
        self.waker.wake();
        sent
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        drop(self.feed.take());
        self.waker.wake();
    }
}

/// Reads sources, hashes them and fills chunks of the ring, one step at a time.
struct Reading<'a, I> {
    sources: I,
    /// One of them cannot be read, so no more of them are.
    broken: bool,
    current: Option<Current<'a>>,
    chunk: u32,
    ring: Region,
    gulp: Vec<u8>,
}

/// The source that is being read.
struct Current<'a> {
    source: Source<'a>,
    hasher: DigestHasher,
    len: u64,
    over: bool,
}

impl<'a, I: Iterator<Item = Result<Source<'a>, (String, io::Error)>>> Reading<'a, I> {
    fn new(sources: I, chunk: u32, ring: Region) -> Self {
        let gulp = vec![0; GULP.min(chunk as usize)];
        Self { sources, broken: false, current: None, chunk, ring, gulp }
    }

    /// What comes next; `slot` gives a slot of the ring, if one is needed. `None`: the sources are at their end, or no slot will come.
    fn next(&mut self, slot: &mut dyn FnMut() -> Option<u32>) -> Option<Feed> {
        if self.broken {
            return None;
        }
        let Some(mut current) = self.current.take() else {
            return match self.sources.next()? {
                Ok(source) => {
                    let (name, len, version) = (source.name.clone(), source.len, source.version);
                    self.current = Some(Current { source, hasher: Digest::hasher(), len: 0, over: false });
                    Some(Feed::Begin { name, len, version, at: Instant::now() })
                }
                Err((what, error)) => Some(self.breaks(what, error)),
            };
        };
        match self.fill(&mut current, slot) {
            Ok(Some(feed)) => {
                if !matches!(feed, Feed::End(_)) {
                    self.current = Some(current);
                }
                Some(feed)
            }
            Ok(None) => None,
            Err(error) => {
                let what = format!("the source of \"{}\" cannot be read", current.source.name);
                Some(self.breaks(what, error))
            }
        }
    }

    const fn breaks(&mut self, what: String, error: io::Error) -> Feed {
        self.broken = true;
        Feed::Broken { what, error }
    }

    /// Fills a slot with what the source gives, or finds it at its end. `None`: no slot will come.
    fn fill(
        &mut self,
        current: &mut Current<'a>,
        slot: &mut dyn FnMut() -> Option<u32>,
    ) -> io::Result<Option<Feed>> {
        let Current { source, hasher, len, over } = current;
        // Bytes first, then a slot: a source that is at its end needs none.
        let mut have = if *over { 0 } else { read_some(&mut source.reader, &mut self.gulp)? };
        if have == 0 {
            return Ok(Some(Feed::End(End { len: *len, digest: hasher.finish() })));
        }
        let Some(slot) = slot() else { return Ok(None) };
        let mut at = 0;
        loop {
            hasher.update(&self.gulp[..have]);
            self.ring.write(u64::from(slot) * u64::from(self.chunk) + u64::from(at), &self.gulp[..have]);
            at += have as u32;
            let room = ((self.chunk - at) as usize).min(self.gulp.len());
            if room == 0 {
                break;
            }
            have = read_some(&mut source.reader, &mut self.gulp[..room])?;
            *over = have == 0;
            if *over {
                break;
            }
        }
        *len += u64::from(at);
        Ok(Some(Feed::Chunk { slot, len: at }))
    }
}

/// What is read, and the slots of the ring that may be read into.
enum Intake<'a> {
    /// A thread beside reads.
    Beside { feed: Receiver<Feed>, free: Sender<u32> },
    /// Nothing runs beside: it is read when there is a slot for it.
    Here { read: Reads<'a>, free: Vec<u32> },
}

/// Reads the next of it, given slots.
type Reads<'a> = Box<dyn FnMut(&mut dyn FnMut() -> Option<u32>) -> Option<Feed> + 'a>;

impl Intake<'_> {
    /// What was read, if there is something or can be now.
    fn next(&mut self) -> Result<Feed, TryRecvError> {
        match self {
            Self::Beside { feed, .. } => feed.try_recv(),
            Self::Here { free, .. } if free.is_empty() => Err(TryRecvError::Empty),
            Self::Here { read, free } => read(&mut || free.pop()).ok_or(TryRecvError::Disconnected),
        }
    }

    fn release(&mut self, slot: u32) {
        match self {
            // The reading thread may have ended.
            Self::Beside { free, .. } => drop(free.send(slot)),
            Self::Here { free, .. } => free.push(slot),
        }
    }
}

/// Reads until the buffer is full or the source ends: a pipe gives little at a time.
fn read_some(reader: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < into.len() {
        match reader.read(&mut into[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

/// One call of [`Client::put`] while it runs.
struct Put<'a, 'b> {
    client: &'a mut Client,
    servers: Vec<ServerIndex>,
    named: usize,
    quorum: usize,
    intake: Intake<'b>,
    feed_over: bool,
    /// How many legs still need each slot of the ring.
    users: Vec<u32>,
    transfers: BTreeMap<u64, Transfer>,
    /// The transfer that the reading thread is at.
    reading: Option<u64>,
    next: u64,
    owed: HashMap<Tag, Owed>,
    acts: Vec<Act>,
    report: PutReport,
}

impl<'a, 'b> Put<'a, 'b> {
    fn new(
        client: &'a mut Client,
        intake: Intake<'b>,
        servers: Vec<ServerIndex>,
        (named, quorum): (usize, usize),
        survives: Survives,
    ) -> Self {
        Self {
            users: vec![0; client.options.chunks as usize],
            client,
            servers,
            named,
            quorum,
            intake,
            feed_over: false,
            transfers: BTreeMap::new(),
            reading: None,
            next: 0,
            owed: HashMap::new(),
            acts: Vec::new(),
            report: PutReport { blobs: 0, bytes: 0, elapsed: Duration::ZERO, incomplete: 0, survives },
        }
    }

    fn run(mut self, events: &mut dyn FnMut(Event<'_>)) -> Result<PutReport, Error> {
        loop {
            while !self.feed_over && self.transfers.len() < OPEN {
                match self.intake.next() {
                    Ok(feed) => self.fed(feed, events)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => self.feed_over = true,
                }
            }
            let was_full = self.transfers.len() >= OPEN;
            self.step();
            self.finish(events)?;
            if self.feed_over && self.transfers.is_empty() {
                return Ok(self.report);
            }
            // What the source had when there was no room is taken before anything is waited for: nobody tells of it again.
            if !(was_full && self.transfers.len() < OPEN) {
                self.wait(events);
            }
        }
    }

    fn fed(&mut self, feed: Feed, events: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        match feed {
            Feed::Begin { name, len, version, at } => self.begin(name, len, version, at),
            Feed::Chunk { slot, len } => {
                let transfer = self.reading();
                let mut users = 0;
                for path in transfer.paths.iter_mut().filter(|path| !path.given_up) {
                    path.leg.chunk(slot, len);
                    users += 1;
                }
                self.users[slot as usize] = users;
                if users == 0 {
                    self.intake.release(slot);
                }
                events(Event::Sent(len.into()));
            }
            Feed::End(end) => {
                let transfer = self.reading();
                transfer.end = Some(end);
                transfer.paths.iter_mut().for_each(|path| path.leg.end(end));
                self.reading = None;
            }
            Feed::Broken { what, error } => return Err(Error::Io { what, error }),
        }
        Ok(())
    }

    fn reading(&mut self) -> &mut Transfer {
        let id = self.reading.expect("a chunk follows a beginning");
        self.transfers.get_mut(&id).expect("it stays until its source ends")
    }

    fn begin(&mut self, name: BlobName, len: Option<u64>, version: Option<Version>, began: Instant) {
        let id = self.next;
        self.next += 1;
        self.reading = Some(id);
        let mut transfer = Transfer {
            name,
            paths: Vec::new(),
            ballot: Ballot::new(self.named),
            version,
            committing: false,
            end: None,
            began,
            done: 0,
            lost: Vec::new(),
            told: false,
        };
        for server in self.servers.clone() {
            let (leg, ask) = BlobTransfer::open(transfer.name.clone(), len);
            let Act::Ask(request) = ask else { unreachable!("a leg opens with a request") };
            match self.ask(id, server, request) {
                Ok(()) => transfer.paths.push(Path { server, leg, given_up: false }),
                Err(lost) => transfer.lost.push(lost),
            }
        }
        self.transfers.insert(id, transfer);
    }

    fn ask(&mut self, transfer: u64, server: ServerIndex, request: Request) -> Result<(), Lost> {
        let tag = self.client.tag();
        self.client.ask(server, request, tag)?;
        self.owed.insert(tag, Owed::Reply { transfer, server });
        Ok(())
    }

    /// Gives every server the work that it can take.
    fn step(&mut self) {
        let ids: Vec<u64> = self.transfers.keys().copied().collect();
        for id in ids {
            let count = self.transfers[&id].paths.len();
            for n in 0..count {
                let transfer = self.transfers.get_mut(&id).expect("listed above");
                let path = &mut transfer.paths[n];
                let Some(link) = self.client.link(path.server) else { continue };
                if path.given_up {
                    continue;
                }
                let mut acts = std::mem::take(&mut self.acts);
                path.leg.step(link.budget(), &mut acts);
                let server = path.server;
                for act in acts.drain(..) {
                    // A server that is lost here is in the news, where its legs are taken away.
                    if self.act(id, server, act).is_err() {
                        break;
                    }
                }
                self.acts = acts;
            }
            self.commit(id);
        }
    }

    fn act(&mut self, transfer: u64, server: ServerIndex, act: Act) -> Result<(), Lost> {
        let tag = self.client.tag();
        let chunk = u64::from(self.client.options.chunk);
        match act {
            Act::Ask(request) => self.ask(transfer, server, request)?,
            Act::Write { slot, offset, len, addr, rkey } => {
                let from = (u64::from(slot) * chunk + u64::from(offset), len);
                self.client.on(server, |link| link.write(from, addr, rkey, tag))?;
                self.owed.insert(tag, Owed::Written { transfer, server });
            }
            Act::Flush { addr, len, rkey } => {
                self.client.on(server, |link| link.flush(addr, len, rkey, tag))?;
                self.owed.insert(tag, Owed::Flushed { transfer, server });
            }
        }
        Ok(())
    }

    /// Has the blob committed where all of it is durable, once that is so on enough servers: a put that cannot reach
    /// its quorum shall leave nothing behind if that is known before.
    fn commit(&mut self, id: u64) {
        self.elect(id);
        let transfer = self.transfers.get_mut(&id).expect("the caller has it");
        let Some(version) = transfer.version else { return };
        let ready = transfer.paths.iter_mut().filter(|path| !path.given_up && path.leg.is_ready());
        let ready: Vec<&mut Path> = ready.collect();
        transfer.committing |= ready.len() >= self.quorum;
        if !transfer.committing {
            return;
        }
        let commits: Vec<_> = ready.into_iter().map(|path| (path.server, path.leg.commit(version))).collect();
        for (server, act) in commits {
            // As above: who is lost is in the news.
            let _ = self.act(id, server, act);
        }
    }

    /// Chooses the version, once every server has said what it has, and has it promised.
    fn elect(&mut self, id: u64) {
        let transfer = self.transfers.get_mut(&id).expect("the caller has it");
        if transfer.version.is_some() {
            return;
        }
        let mut paths = transfer.paths.iter().filter(|path| !path.given_up);
        if paths.all(|path| path.leg.has_room())
            && let Some((number, open)) = transfer.ballot.choose()
        {
            for server in open {
                // As above.
                let _ = self.ask(id, server, Request::Promise { number });
            }
        }
        let transfer = self.transfers.get_mut(&id).expect("looked up above");
        if let Some(counter) = transfer.ballot.number() {
            transfer.version = Some(Version { counter, writer: self.client.next_writer() });
        }
    }

    /// Tells of blobs that are durable, and takes away those that nothing more can happen to.
    fn finish(&mut self, events: &mut dyn FnMut(Event<'_>)) -> Result<(), Error> {
        let (quorum, named) = (self.quorum, self.named);
        let mut over = Vec::new();
        for (id, transfer) in &mut self.transfers {
            let open = transfer.paths.iter().filter(|path| !path.given_up).count();
            if transfer.done + open < quorum {
                let (name, have, lost) = (transfer.name.clone(), transfer.done, self.client.lost());
                let lost = transfer.lost.iter().cloned().chain(lost).fold(Vec::new(), |mut all, one| {
                    if !all.contains(&one) {
                        all.push(one);
                    }
                    all
                });
                return Err(Error::NoQuorum { name, have, need: quorum, lost });
            }
            if open > 0 || transfer.end.is_none() {
                continue;
            }
            if !transfer.told {
                transfer.told = true;
                let End { len, digest } = transfer.end.expect("checked above");
                self.report.blobs += 1;
                self.report.bytes += len;
                self.report.incomplete += usize::from(transfer.done < named);
                events(Event::Durable {
                    name: &transfer.name,
                    version: transfer.version.expect("committed somewhere"),
                    len,
                    digest,
                    took: transfer.began.elapsed(),
                    copies: transfer.done,
                });
            }
            if transfer.paths.is_empty() {
                over.push(*id);
            }
        }
        over.into_iter().for_each(|id| drop(self.transfers.remove(&id)));
        Ok(())
    }

    /// Waits for something to happen, on the links or at the source.
    fn wait(&mut self, events: &mut dyn FnMut(Event<'_>)) {
        let mut news = self.client.next_news();
        while let Some(what) = news {
            self.happened(what, events);
            // What is there already; then there is room for more.
            news = self.client.news.pop_front();
        }
    }

    fn happened(&mut self, news: News, events: &mut dyn FnMut(Event<'_>)) {
        match news {
            News::Lost(server) => self.server_lost(server, events),
            News::From(_, happened) => {
                let (Happened::Replied(tag, _) | Happened::Completed(tag)) = &happened;
                // What is owed to nobody was given up, or is of an earlier request.
                let Some(owed) = self.owed.remove(tag) else { return };
                match (owed, happened) {
                    (Owed::Reply { transfer, server }, Happened::Replied(_, reply)) => {
                        self.replied(transfer, server, reply);
                    }
                    (Owed::Written { transfer, server }, _) => {
                        if let Some(path) = self.path(transfer, server) {
                            let slot = path.leg.written();
                            self.release(slot);
                            self.drained(transfer, server);
                        }
                    }
                    (Owed::Flushed { transfer, server }, _) => {
                        if let Some(path) = self.path(transfer, server) {
                            path.leg.flushed();
                            self.drained(transfer, server);
                        }
                    }
                    (Owed::Reply { .. }, Happened::Completed(_)) => {
                        unreachable!("requests have their own tags")
                    }
                }
            }
        }
    }

    fn path(&mut self, transfer: u64, server: ServerIndex) -> Option<&mut Path> {
        self.transfers.get_mut(&transfer)?.paths.iter_mut().find(|path| path.server == server)
    }

    fn replied(&mut self, id: u64, server: ServerIndex, reply: Reply) {
        match (self.transfers.get_mut(&id), &reply) {
            (Some(transfer), Reply::Reserved { ticket, .. }) => transfer.ballot.ticket(server, *ticket),
            // Also of a server that has no room for the blob: its word counts all the same.
            (Some(transfer), Reply::Promised { number }) => {
                return transfer.ballot.promised(server, *number);
            }
            _ => {}
        }
        let Some(path) = self.path(id, server) else { return };
        match reply {
            Reply::Reserved { reservation, extents, .. } => {
                path.leg.reserved(reservation, &extents);
                self.drained(id, server);
            }
            Reply::Extents { extents } => path.leg.extended(&extents),
            // Who says so before it was asked for counts for nothing.
            Reply::Committed { version } if path.is_committing() => {
                path.leg.committed(version);
                self.complete(id, server);
            }
            // Somebody put a newer one at the same time. The server has what comes after ours, durably: nobody who asks
            // it will see what was there before, so this is as good as done.
            Reply::Refused { code: Code::Superseded, .. } if path.is_committing() => {
                let reservation = path.leg.reservation();
                self.complete(id, server);
                if let Some(reservation) = reservation {
                    let _ = self.client.on(server, |link| link.tell(Request::Abandon { reservation }));
                }
            }
            Reply::Refused { .. } => self.give_up(id, server, unexpected(reply)),
            other => {
                let why = unexpected(other);
                let _ = self.client.lose(server, why);
            }
        }
    }

    fn complete(&mut self, id: u64, server: ServerIndex) {
        let transfer = self.transfers.get_mut(&id).expect("the caller has it");
        transfer.paths.retain(|path| path.server != server);
        transfer.done += 1;
    }

    /// The server refused this blob, and can be used for others: what it reserved goes back to it once nothing of
    /// ours is on its way there any more. (A WRITE that arrived later would find its key closed, and end the QP.)
    fn give_up(&mut self, id: u64, server: ServerIndex, why: LossReason) {
        let name = self.client.name(server).to_owned();
        let transfer = self.transfers.get_mut(&id).expect("the caller has it");
        transfer.lost.push(Lost { server: name, why });
        let path = self.path(id, server).expect("the caller has it");
        path.given_up = true;
        let slots = path.leg.stop();
        self.release(slots);
        self.drained(id, server);
    }

    /// Takes a given-up leg away once nothing is under way on it.
    fn drained(&mut self, id: u64, server: ServerIndex) {
        let Some(path) = self.path(id, server) else { return };
        if !path.given_up || !path.leg.is_idle() {
            return;
        }
        let reservation = path.leg.reservation();
        let transfer = self.transfers.get_mut(&id).expect("looked up above");
        transfer.paths.retain(|path| path.server != server);
        if let Some(reservation) = reservation {
            let _ = self.client.on(server, |link| link.tell(Request::Abandon { reservation }));
        }
    }

    fn server_lost(&mut self, server: ServerIndex, events: &mut dyn FnMut(Event<'_>)) {
        let lost = self.client.why_lost(server);
        let mut slots = Vec::new();
        for transfer in self.transfers.values_mut() {
            for path in transfer.paths.iter().filter(|path| path.server == server) {
                slots.extend(path.leg.slots());
                if !path.given_up {
                    transfer.lost.push(lost.clone());
                }
            }
            transfer.paths.retain(|path| path.server != server);
        }
        self.release(slots);
        self.servers.retain(|s| *s != server);
        self.owed.retain(|_, owed| match owed {
            Owed::Reply { server: s, .. }
            | Owed::Written { server: s, .. }
            | Owed::Flushed { server: s, .. } => *s != server,
        });
        events(Event::Lost(&lost));
    }

    /// One leg less needs these slots.
    fn release(&mut self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            let users = &mut self.users[slot as usize];
            *users -= 1;
            if *users == 0 {
                self.intake.release(slot);
            }
        }
    }
}
