//! A server of the pool: `pool`'s core on the node's disk. Each client has two connections to it: one on which it asks, and one by which it moves
//! data, and may write on that only what it has reserved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remanence_pmem::Guarantee;
use remanence_pool::auth::Token;
use remanence_pool::format::BLOCK;
use remanence_pool::format::superblock::Uuid;
use remanence_pool::proto::{Purpose, RemoteExtent, Request};
use remanence_pool::server::Limits;
use remanence_pool::server::core::{ClientId, Core as Pools, Keys, Rights, Verdict};
use remanence_pool::{Listing, Pool, State, recover};

use super::oracle::Oracle;
use crate::cluster::core::{ConnectionId, Core, Host, blank_disk};
use crate::cluster::disk::Disk;
use crate::cluster::{Input, Moment};
use crate::rng::Rng;

/// What whoever brings a server up to date says when it connects: a server that has lost its disk is there for nobody else.
pub(super) const OPERATOR: u8 = 1;

/// What a server says on a data connection that it has taken.
pub(super) const TAKEN: u8 = 1;

/// What all have.
pub(super) fn token() -> Token {
    Token::new("the-token-of-a-simulation").expect("a fair token")
}

/// A disk with an empty pool.
pub(super) fn make(core: &mut Core<Oracle>) -> Disk {
    core.oracle.made += 1;
    let (made, seed, plan) = (core.oracle.made, core.oracle.seed, &core.oracle.plan);
    let disk = blank_disk(plan.size, plan.domain);
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&made.to_le_bytes());
    Pool::create(disk.clone(), Uuid(uuid), made ^ seed << 8).expect("a new disk is healthy");
    disk
}

pub(super) struct Server {
    core: Pools<Disk>,
    rng: Rng,
    /// Clients by the connections on which they ask, with those by which they move data.
    clients: BTreeMap<ConnectionId, Option<ConnectionId>>,
    /// Keys that were given out, and those that let somebody write.
    keys: u32,
    fills: BTreeSet<u32>,
    /// When the commits that have come are made durable.
    settles: Option<Duration>,
    /// It goes on when its disk has failed, and refuses what it is asked for; else it ends.
    goes_on: bool,
    is_over: bool,
}

/// The keys of clients: rooms of their data connections.
struct Rooms<'a, 'b> {
    host: &'a mut Host<'b, Oracle>,
    clients: &'a BTreeMap<ConnectionId, Option<ConnectionId>>,
    keys: &'a mut u32,
    fills: &'a mut BTreeSet<u32>,
}

impl Rooms<'_, '_> {
    fn data(&self, ClientId(id): ClientId) -> Option<ConnectionId> {
        self.clients.get(&(id as usize)).copied().flatten()
    }
}

impl Keys for Rooms<'_, '_> {
    fn open(
        &mut self,
        client: ClientId,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteExtent, String> {
        *self.keys += 1;
        if rights != Rights::Read
            && let Some(data) = self.data(client)
        {
            self.fills.insert(*self.keys);
            self.host.rooms(data).insert(offset, len);
        }
        Ok(RemoteExtent { addr: offset, len, rkey: *self.keys })
    }

    fn close(&mut self, client: ClientId, extent: RemoteExtent) {
        if self.fills.remove(&extent.rkey)
            && let Some(data) = self.data(client)
        {
            self.host.rooms(data).remove(&extent.addr);
        }
    }
}

impl Server {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let pool = recover(host.disk(0)).map_err(|error| format!("a crash is taken for damage: {error}"))?;
        let (node, life) = (host.node() as u64, host.life());
        let mut rng = Rng::new(host.known().seed, (4000 + node) << 32 ^ u64::from(life));
        let guarantee = Guarantee::of(host.known().plan.domain);
        let goes_on = rng.one_in(2);
        Ok(Self {
            core: Pools::new(pool, token(), Limits::default(), guarantee, "simulated"),
            rng,
            clients: BTreeMap::new(),
            keys: 0,
            fills: BTreeSet::new(),
            settles: None,
            goes_on,
            is_over: false,
        })
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        if self.is_over { None } else { [self.settles, self.core.deadline()].into_iter().flatten().min() }
    }

    /// Whether it has clients, as far as it knows.
    pub(super) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// What it has when all clients are gone. Each blob was read, and all other blocks are free.
    pub(super) fn listings(&self) -> Result<Vec<Listing>, String> {
        let (pool, mut used) = (self.core.pool(), 0);
        let listings: Vec<Listing> = pool.list(None).collect();
        for listing in &listings {
            let State::Live { len, .. } = listing.state else { continue };
            used += len.div_ceil(BLOCK) * BLOCK;
            if pool.verify(&listing.name) != Some(true) {
                return Err(format!("{:?} has other bytes than were put there", listing.name));
            }
        }
        let usage = pool.usage();
        match usage.free + used == usage.capacity {
            true => Ok(listings),
            false => Err(format!("{used} bytes are used, and {usage:?}")),
        }
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let now = host.now();
        match input {
            Input::Message { connection, .. } if self.is_over => host.cut(connection),
            Input::Message { connection, bytes } if self.clients.contains_key(&connection) => {
                self.is_asked(now, connection, &bytes, host);
            }
            Input::Message { connection, bytes } => self.connects(now, connection, &bytes, host),
            Input::Lost { connection, .. } => {
                let of = |(client, data): (&ConnectionId, &Option<ConnectionId>)| {
                    (*client == connection || *data == Some(connection)).then_some(*client)
                };
                if let Some(client) = self.clients.iter().find_map(of) {
                    self.leave(client, host);
                }
            }
            Input::Connected { .. }
            | Input::Read { .. }
            | Input::Durable { .. }
            | Input::Written { .. }
            | Input::Datagram { .. }
            | Input::Timer => {}
        }
        if self.is_over {
            return;
        }
        if self.settles.is_some_and(|at| at <= now) {
            self.settles = None;
            let answers = self.core.settle();
            answers.into_iter().for_each(|(ClientId(id), answer)| host.send(id as usize, answer));
        }
        let late: Vec<ClientId> = self.core.expired(now).collect();
        late.into_iter().for_each(|ClientId(id)| self.leave(id as usize, host));
        if host.disk(0).has_failed() && !self.goes_on {
            host.tell(format_args!("ends, as its disk has failed"));
            self.is_over = true;
            self.clients.keys().copied().collect::<Vec<_>>().into_iter().for_each(|client| {
                self.leave(client, host);
            });
        }
    }

    /// The first message of a connection: the private data of its request.
    fn connects(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        bytes: &[u8],
        host: &mut Host<'_, Oracle>,
    ) {
        let is_operator = bytes.last() == Some(&OPERATOR);
        if host.known().plan.guarded && host.known().lost.contains_key(&host.node()) && !is_operator {
            return host.cut(connection);
        }
        match Purpose::parse(bytes) {
            Ok(Purpose::Control) => {
                // Whoever connects has an address of its own.
                let at = IpAddr::from(Ipv4Addr::from(0x0A00_0000 + connection as u32));
                self.clients.insert(connection, None);
                let goes = self.core.connected(now, ClientId(connection as u64), at);
                if let Some(ClientId(id)) = goes {
                    self.leave(id as usize, host);
                }
            }
            Ok(Purpose::Data { ticket }) => {
                let has = |client: &ConnectionId| self.core.ticket(ClientId(*client as u64)) == Some(ticket);
                let Some(client) = self.clients.keys().copied().find(has) else {
                    return host.cut(connection);
                };
                self.clients.insert(client, Some(connection));
                host.rooms(connection);
                host.send(connection, vec![TAKEN]);
            }
            Err(why) => host.core().wrong(format!("a client connects as no client does: {why:?}")),
        }
    }

    fn is_asked(&mut self, now: Duration, client: ConnectionId, bytes: &[u8], host: &mut Host<'_, Oracle>) {
        let asked = Request::parse(bytes).map(|(_, request)| request);
        match &asked {
            Ok(Request::Reserve { .. } | Request::Ticket | Request::Promise { .. }) => {
                host.moment(Moment::Promise, Some(client));
            }
            Ok(Request::Commit { .. } | Request::Delete { .. }) => host.moment(Moment::Commit, Some(client)),
            Ok(Request::Lookup { .. } | Request::VersionOf { .. }) => host.moment(Moment::Find, Some(client)),
            _ => {}
        }
        let Self { core, rng, clients, keys, fills, .. } = self;
        let mut random = |into: &mut [u8]| {
            into.chunks_mut(8)
                .for_each(|chunk| chunk.copy_from_slice(&rng.u64().to_le_bytes()[..chunk.len()]));
        };
        let mut rooms = Rooms { host, clients, keys, fills };
        let verdict = core.receive(now, ClientId(client as u64), bytes, &mut random, &mut rooms);
        match verdict {
            Verdict::Reply(reply) | Verdict::Last(reply) => {
                host.tell(format_args!("is asked {asked:?}, and answers at once"));
                host.send(client, reply);
            }
            Verdict::Later => {
                host.tell(format_args!("is asked {asked:?}, and answers later"));
                let gathers = Duration::from_nanos(host.known().plan.gathers);
                self.settles.get_or_insert(now + gathers);
            }
            Verdict::Hostile(why) => {
                host.core().wrong(format!("a client is taken for a hostile one: {why}: {asked:?}"));
            }
        }
        if let Some(ClientId(id)) = self.core.gave_way() {
            self.leave(id as usize, host);
        }
    }

    /// A client is gone, or has to go.
    fn leave(&mut self, client: ConnectionId, host: &mut Host<'_, Oracle>) {
        let Some(data) = self.clients.get(&client).copied() else { return };
        // Nothing arrives any more before what it held is free.
        host.cut(client);
        data.into_iter().for_each(|data| host.cut(data));
        let Self { core, clients, keys, fills, .. } = self;
        core.disconnected(ClientId(client as u64), &mut Rooms { host, clients, keys, fills });
        self.clients.remove(&client);
    }
}
