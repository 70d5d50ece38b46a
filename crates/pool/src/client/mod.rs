//! Puts blobs on servers and gets them back.
//!
//! A [`Client`] has a link to each server and a ring of registered memory that all of them share: a chunk of data is
//! read into it once and written to every server from there. All links are on one reactor: their servers are waited for
//! together, and for nothing else. Nothing here has threads of its own but the one that reads the source of a
//! [`put`](Client::put), which wakes who waits. What it decides stands on a [`Network`], live or simulated.
//!
//! An [`AsyncClient`] is the same with futures.
//!
//! Read in this order: [`transfer`] (pure: what goes to one server next), [`dialogue`] (pure: what is said to it), [`network`] (what carries
//! both out), `link` (that over verbs), `put`, `get`, `resync`.

mod asynch;
pub mod dialogue;
mod error;
mod get;
mod link;
pub mod measure;
pub mod network;
mod put;
mod resync;
pub mod transfer;

use std::net::SocketAddr;
use std::time::Duration;

use remanence_pmem::{Region, Survives};
use remanence_verbs::Context;

pub use asynch::AsyncClient;
pub use error::{Error, LossReason, Lost};
pub use get::{BlobReader, Got};
use link::Device;
use network::{Happened, Link, Network, Tag};
pub use put::{Event, PutReport, Source, Upload};
pub use resync::{Difference, SyncReport, differences};

use crate::auth::Token;
use crate::blob::{BlobName, Listing, Version};
use crate::format::superblock::Uuid;
use crate::proto::{Code, PoolInfo, Reply, Request};
pub use crate::quorum::ServerIndex;
use crate::quorum::{Ballot, Reading, majority};

/// How a client is made.
#[derive(Clone, Debug)]
pub struct Options {
    servers: Vec<(String, SocketAddr)>,
    tokens: Vec<Token>,
    connect_limit: Duration,
    answer_limit: Duration,
    /// Bytes of a chunk.
    chunk: u32,
    /// Chunks in the ring.
    chunks: u32,
}

impl Options {
    /// Servers, as the user names them and where they are, and what suits most programs: 5 s to connect and 30 s for each answer; 16 MiB in
    /// flight in chunks of 512 KiB, which is small enough for a core's L2 cache and large enough that a chunk's bookkeeping does not show.
    #[must_use]
    pub fn new(servers: Vec<(String, SocketAddr)>) -> Self {
        let (connect_limit, answer_limit) = (Duration::from_secs(5), Duration::from_secs(30));
        Self { servers, tokens: Vec::new(), connect_limit, answer_limit, chunk: 512 << 10, chunks: 32 }
    }

    /// Tokens; each server says which one it wants.
    #[must_use]
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.tokens = tokens.into_iter().collect();
        self
    }

    /// How long a server may take to answer a connection request; 5 s if nothing is said.
    #[must_use]
    pub const fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// How long its program may leave a request unanswered, which waits for its disk at most, before it is given up; 30 s if nothing is said.
    #[must_use]
    pub const fn answer_limit(mut self, limit: Duration) -> Self {
        self.answer_limit = limit;
        self
    }

    /// How much is in flight: so many chunks of so many bytes; 32 of 512 KiB if nothing is said.
    #[must_use]
    pub const fn ring(mut self, chunks: u32, chunk: u32) -> Self {
        (self.chunks, self.chunk) = (chunks, chunk);
        self
    }
}

enum Seat {
    Live(Box<dyn Link>),
    Lost(Lost),
}

/// Connections to some servers.
pub struct Client {
    seats: Vec<Seat>,
    network: Box<dyn Network>,
    /// The chunks that are under way, one behind the other.
    ring: Region,
    options: Options,
    /// Decides between puts that took one number.
    writer: u64,
    next_tag: Tag,
    happened: Vec<Happened>,
    /// What happened and was not looked at yet.
    news: std::collections::VecDeque<News>,
}

/// Something happened at a server.
#[derive(Debug)]
enum News {
    /// On its link.
    From(ServerIndex, Happened),
    /// It is lost.
    Lost(ServerIndex),
}

impl Client {
    /// Connects by a device of its own, at the local address from which the first server is reached: see
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to that server.
    pub fn connect_to(options: Options, need: usize) -> Result<Self, Error> {
        Self::connect(&towards(&options, need)?, options, need)
    }

    /// Connects to all servers of `options`, at least `need` of which must be there.
    ///
    /// # Errors
    /// Fewer are, or the device refuses.
    pub fn connect(context: &Context, options: Options, need: usize) -> Result<Self, Error> {
        let device = Device::open(context, &options)?;
        Self::over(Box::new(device), options, need)
    }

    /// The same over any network.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn over(mut network: Box<dyn Network>, options: Options, need: usize) -> Result<Self, Error> {
        let servers = options.servers.len();
        if need > servers || servers == 0 {
            return Err(Error::BadQuorum { quorum: need, servers });
        }
        check_names(&options.servers)?;
        let mut writer = [0; 8];
        network.random(&mut writer)?;
        let links = network.connect(&options.servers);
        let seats = links.into_iter().zip(&options.servers).map(|(link, (name, _))| match link {
            Ok(link) => Seat::Live(link),
            Err(why) => Seat::Lost(Lost { server: name.clone(), why }),
        });
        let this = Self {
            seats: seats.collect(),
            ring: network.memory().clone(),
            network,
            options,
            writer: u64::from_le_bytes(writer),
            next_tag: 1,
            happened: Vec::new(),
            news: std::collections::VecDeque::new(),
        };
        this.check_pools()?;
        let have = this.live().count();
        if have < need { Err(Error::TooFew { have, need, lost: this.lost() }) } else { Ok(this) }
    }

    /// Nobody is counted twice who has two addresses.
    fn check_pools(&self) -> Result<(), Error> {
        let mut known: Vec<(Uuid, ServerIndex)> = Vec::new();
        for (at, seat) in self.seats.iter().enumerate() {
            let Seat::Live(link) = seat else { continue };
            let uuid = link.info().uuid;
            if let Some((_, first)) = known.iter().find(|(known, _)| *known == uuid) {
                return Err(twice(&self.options.servers, *first, at));
            }
            known.push((uuid, at));
        }
        Ok(())
    }

    /// Servers that can be used.
    pub fn live(&self) -> impl Iterator<Item = ServerIndex> {
        self.seats.iter().enumerate().filter(|(_, seat)| matches!(seat, Seat::Live(_))).map(|(n, _)| n)
    }

    /// Servers that cannot, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.seats
            .iter()
            .filter_map(|seat| match seat {
                Seat::Lost(lost) => Some(lost.clone()),
                Seat::Live(_) => None,
            })
            .collect()
    }

    /// A server's name, as the user gave it.
    #[must_use]
    pub fn name(&self, server: ServerIndex) -> &str {
        &self.options.servers[server].0
    }

    /// What a live server said of itself when it was connected.
    #[must_use]
    pub fn info(&self, server: ServerIndex) -> Option<&PoolInfo> {
        match &self.seats[server] {
            Seat::Live(link) => Some(link.info()),
            Seat::Lost(_) => None,
        }
    }

    /// Which failures data survives that was made durable on all live servers: what it does on each of them. `None` if none is left.
    #[must_use]
    pub fn survives(&self) -> Option<Survives> {
        self.survived_on(self.live())
    }

    fn survived_on(&self, servers: impl Iterator<Item = ServerIndex>) -> Option<Survives> {
        servers
            .filter_map(|server| self.info(server))
            .map(|info| info.guarantee.after_psync)
            .reduce(Survives::and)
    }

    /// Asks a server how full its pool is.
    ///
    /// # Errors
    /// It is lost.
    pub fn stat(&mut self, server: ServerIndex) -> Result<PoolInfo, Lost> {
        match self.request(server, Request::Stat)? {
            Reply::Info(info) => Ok(info),
            other => Err(self.nonsense(server, other)),
        }
    }

    /// The whole catalogue of a server, deletions included.
    ///
    /// # Errors
    /// It is lost.
    pub fn list(&mut self, server: ServerIndex) -> Result<Vec<Listing>, Lost> {
        let mut all: Vec<Listing> = Vec::new();
        loop {
            let after = all.last().map(|listing| listing.name.clone());
            match self.request(server, Request::List { after })? {
                // A page that is empty and says there is more would go on for ever.
                Reply::Page { listings, more } if !(more && listings.is_empty()) => {
                    all.extend(listings);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.nonsense(server, other)),
            }
        }
    }

    /// The newest version of a name on each live server; `true` where it is a blob.
    ///
    /// # Errors
    /// No server is left.
    pub fn versions(&mut self, name: &BlobName) -> Result<Vec<(ServerIndex, Version, bool)>, Error> {
        let mut found = Vec::new();
        for server in self.live().collect::<Vec<_>>() {
            match self.request(server, Request::VersionOf { name: name.clone() }) {
                Ok(Reply::IsAt { version, live }) => found.push((server, version, live)),
                Ok(other) => drop(self.nonsense(server, other)),
                Err(_) => {}
            }
        }
        let lost = self.lost();
        if found.is_empty() { Err(Error::TooFew { have: 0, need: 1, lost }) } else { Ok(found) }
    }

    /// What a majority of the servers has of a name.
    ///
    /// # Errors
    /// Fewer than a majority can be used.
    fn reading(&mut self, name: &BlobName) -> Result<Reading, Error> {
        let servers = self.options.servers.len();
        let said = self.versions(name)?;
        Reading::of(servers, &said).ok_or_else(|| self.no_majority(said.len()))
    }

    fn no_majority(&self, have: usize) -> Error {
        let servers = self.options.servers.len();
        Error::NoMajority { have, servers, need: majority(servers), lost: self.lost() }
    }

    /// Deletes a blob on all live servers; returns on how many it is durably gone.
    ///
    /// # Errors
    /// It is on none of them, fewer than `need` could do it, or `need` is no majority.
    pub fn delete(&mut self, name: &BlobName, need: usize) -> Result<usize, Error> {
        check_quorum(need, self.options.servers.len())?;
        if !self.settle(name)?.live {
            return Err(Error::NotFound(name.clone()));
        }
        let version = self.next_version()?;
        let (mut have, mut refused) = (0, Vec::new());
        for server in self.live().collect::<Vec<_>>() {
            match self.request(server, Request::Delete { name: name.clone(), version }) {
                Ok(Reply::Committed { .. }) => have += 1,
                // Somebody put it anew at the same time.
                Err(Lost { why: LossReason::Refused { code: Code::Superseded, .. }, .. }) => have += 1,
                Ok(other) => drop(self.nonsense(server, other)),
                Err(lost) => refused.push(lost),
            }
        }
        if have < need {
            refused.extend(self.lost());
            refused.dedup();
            return Err(Error::NotGone { name: name.clone(), have, need, lost: refused });
        }
        Ok(have)
    }

    /// A version above all that were chosen before: see [`crate::quorum`]. Puts choose theirs themselves.
    ///
    /// # Errors
    /// Fewer than a majority can be used.
    pub fn next_version(&mut self) -> Result<Version, Error> {
        let mut ballot = Ballot::new(self.options.servers.len());
        let mut have = 0;
        for server in self.live().collect::<Vec<_>>() {
            if let Ok(number) = self.promised(server, Request::Ticket) {
                ballot.ticket(server, number);
                have += 1;
            }
        }
        let Some((number, open)) = ballot.choose() else { return Err(self.no_majority(have)) };
        for server in open {
            match self.promised(server, Request::Promise { number }) {
                Ok(promised) => ballot.promised(server, promised),
                Err(_) => have -= 1,
            }
        }
        let counter = ballot.number().ok_or_else(|| self.no_majority(have))?;
        Ok(Version { counter, writer: self.next_writer() })
    }

    /// The answer to a `Ticket` or a `Promise`.
    fn promised(&mut self, server: ServerIndex, request: Request) -> Result<u64, Lost> {
        match self.request(server, request)? {
            Reply::Promised { number } => Ok(number),
            other => Err(self.nonsense(server, other)),
        }
    }

    /// Each put has a name of its own, as two of one client may take one number too.
    fn next_writer(&mut self) -> u64 {
        self.writer = self.writer.wrapping_add(1);
        self.writer
    }

    // ---- the machinery ----

    /// One request, one reply. A refusal is an error, and leaves the server usable.
    fn request(&mut self, server: ServerIndex, request: Request) -> Result<Reply, Lost> {
        let tag = self.tag();
        self.ask(server, request, tag)?;
        loop {
            match self.next_news() {
                Some(News::From(from, Happened::Replied(number, reply)))
                    if (from, number) == (server, tag) =>
                {
                    return match reply {
                        Reply::Refused { .. } => Err(Lost {
                            server: self.name(server).to_owned(),
                            why: dialogue::unexpected(reply),
                        }),
                        reply => Ok(reply),
                    };
                }
                Some(News::Lost(from)) if from == server => return Err(self.why_lost(server)),
                // Left over from something that was given up.
                Some(_) | None => {}
            }
        }
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        self.next_tag
    }

    fn ask(&mut self, server: ServerIndex, request: Request, tag: Tag) -> Result<(), Lost> {
        self.on(server, |link| link.ask(request, tag))
    }

    /// Does something on a server's link, which is lost if it fails.
    fn on<T>(
        &mut self,
        server: ServerIndex,
        act: impl FnOnce(&mut dyn Link) -> Result<T, LossReason>,
    ) -> Result<T, Lost> {
        match &mut self.seats[server] {
            Seat::Lost(lost) => Err(lost.clone()),
            Seat::Live(link) => match act(&mut **link) {
                Ok(done) => Ok(done),
                Err(why) => Err(self.lose(server, why)),
            },
        }
    }

    fn link(&self, server: ServerIndex) -> Option<&dyn Link> {
        match &self.seats[server] {
            Seat::Live(link) => Some(&**link),
            Seat::Lost(_) => None,
        }
    }

    fn lose(&mut self, server: ServerIndex, why: LossReason) -> Lost {
        let lost = Lost { server: self.name(server).to_owned(), why };
        if let Seat::Live(_) = &self.seats[server] {
            // Dropping the link takes its QPs away: nothing reads or writes our memory for it any more.
            self.seats[server] = Seat::Lost(lost.clone());
            self.news.push_back(News::Lost(server));
        }
        lost
    }

    fn why_lost(&self, server: ServerIndex) -> Lost {
        match &self.seats[server] {
            Seat::Lost(lost) => lost.clone(),
            Seat::Live(_) => Lost { server: self.name(server).to_owned(), why: LossReason::Nonsense },
        }
    }

    fn nonsense(&mut self, server: ServerIndex, reply: Reply) -> Lost {
        self.lose(server, dialogue::unexpected(reply))
    }

    /// The next thing that happened, which is waited for; `None` if another thread ended the wait.
    fn next_news(&mut self) -> Option<News> {
        while self.news.is_empty() {
            let came = self.network.wait();
            (0..self.seats.len()).for_each(|server| self.look(server));
            if !came {
                break;
            }
        }
        self.news.pop_front()
    }

    /// Takes what has come on a server's link.
    fn look(&mut self, server: ServerIndex) {
        let Seat::Live(link) = &mut self.seats[server] else { return };
        let looked = link.look(&mut self.happened);
        self.news.extend(self.happened.drain(..).map(|happened| News::From(server, happened)));
        if let Err(why) = looked {
            self.lose(server, why);
        }
    }
}

/// A device of its own, at the local address from which the first server is reached.
fn towards(options: &Options, need: usize) -> Result<Context, Error> {
    if options.servers.is_empty() {
        return Err(Error::BadQuorum { quorum: need, servers: 0 });
    }
    Ok(Context::towards_any(options.servers.iter().map(|(_, addr)| addr.ip()))?)
}

/// Refuses servers that are one: what is on it would count as being on two, and be no quorum.
fn check_names(servers: &[(String, SocketAddr)]) -> Result<(), Error> {
    for (at, (_, addr)) in servers.iter().enumerate() {
        if let Some(first) = servers[..at].iter().position(|(_, other)| other == addr) {
            return Err(twice(servers, first, at));
        }
    }
    Ok(())
}

fn twice(servers: &[(String, SocketAddr)], one: ServerIndex, other: ServerIndex) -> Error {
    Error::Twice { one: servers[one].0.clone(), other: servers[other].0.clone() }
}

/// Refuses quorums that are none.
fn check_quorum(quorum: usize, servers: usize) -> Result<(), Error> {
    let need = majority(servers);
    match quorum {
        _ if quorum > servers => Err(Error::BadQuorum { quorum, servers }),
        _ if quorum < need => Err(Error::SmallQuorum { quorum, servers, need }),
        _ => Ok(()),
    }
}

fn device(what: &str, error: impl std::fmt::Display) -> Error {
    let source = std::sync::Arc::new(std::io::Error::other(error.to_string()));
    Error::Device(remanence_verbs::Error::Os { what: what.to_owned(), source })
}
