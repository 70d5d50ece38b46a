//! A primary's connections to the members, for code that waits: what it begins its process carries out, and what has come waits for it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use remanence_coord::log::group::{ConnectionLost, Event, ReplicaConnection};
use remanence_coord::log::proto::{Request, parse_reply};
use remanence_coord::log::{Epoch, Updates};
use remanence_kv::replica::keeper::{emit_order, parse_told};
use remanence_kv::replica::{ImageReply, Member, Order};
use remanence_persist::plan::Request as PlanRequest;

use super::body::{Body, Came, Command, Link, Shared};
use super::message::{LOG, ORDER, message};
use crate::cluster::task::Baton;

/// After so many looks at connections on which nothing has come, by whoever waits for something, the simulator goes on.
const LOOKS: u32 = 24;
/// How long it goes on for the first time, should nothing come; and at most.
const NAP: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_millis(5);

thread_local! {
    /// What the clock of this code's node shows.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Looks in vain since something has come, and how long the next nap is.
    static LOOKED: Cell<(u32, Duration)> = const { Cell::new((0, NAP)) };
}

/// What code of a process has of the world: what it shares with the process, and how it waits.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) body: Shared,
    baton: Arc<Baton<Result<(), String>>>,
}

impl World {
    pub(super) fn new(body: Shared, baton: Arc<Baton<Result<(), String>>>) -> Self {
        let this = Self { body, baton };
        this.goes_on();
        this
    }

    fn goes_on(&self) {
        let mut body = self.body.lock();
        body.port.is_stirred = false;
        NOW.set(body.now);
    }

    pub(super) fn now() -> Duration {
        NOW.get()
    }

    /// Waits until something comes, for so long at most.
    pub(super) fn wait(&self, limit: Duration) {
        self.body.lock().port.wakes = Self::now() + limit;
        self.baton.wait();
        self.goes_on();
    }

    /// What comes next is no wait for anything.
    pub(super) fn is_awake() {
        LOOKED.set((0, NAP));
    }

    fn looks_in_vain(&self) {
        let (looks, nap) = LOOKED.get();
        if looks < LOOKS {
            return LOOKED.set((looks + 1, nap));
        }
        self.wait(nap);
        LOOKED.set((0, (2 * nap).min(NAP_MAX)));
    }

    pub(super) fn does(&self, command: Command) {
        self.body.lock().port.commands.push_back(command);
    }

    /// Connections to these members, made at the same time.
    pub(super) fn begin_connections(&self, members: &[usize]) -> Vec<Connecting> {
        let mut body = self.body.lock();
        let now = body.now;
        let one = |at: &usize| {
            let at = *at;
            let name = body.names[at].clone();
            if at == body.who {
                let to = To::Own(Own::default());
                return Connecting { name, connection: Ok(Connection { world: self.clone(), to }) };
            }
            let Some(said) = body.takeover.recent(at, now).copied() else {
                return Connecting { name, connection: Err(ConnectionLost("it is silent".into())) };
            };
            let Body { port, .. } = &mut *body;
            port.next += 1;
            let number = port.next;
            port.links.insert(number, (Link::Connecting, VecDeque::new()));
            port.commands.push_back(Command::Connect { number, member: at });
            let other = Other { who: at, life: said.life, number, under_way: 0, orders: 0, told: None };
            Connecting { name, connection: Ok(Connection { world: self.clone(), to: To::Other(other) }) }
        };
        members.iter().map(one).collect()
    }
}

/// A connection that is being made.
#[derive(Debug)]
pub(super) struct Connecting {
    name: String,
    connection: Result<Connection, ConnectionLost>,
}

impl Connecting {
    /// Whether nothing is waited for any more.
    pub(super) fn is_over(&mut self) -> bool {
        if let Ok(connection) = &mut self.connection
            && let To::Other(other) = &connection.to
        {
            let body = connection.world.body.lock();
            let lost = match body.port.links.get(&other.number) {
                Some((Link::Up, _)) => return true,
                Some((Link::Lost(why), _)) => Some(why.clone()),
                Some((Link::Connecting, _)) => {
                    body.gone(other.who, other.life).map(|gone| format!("{gone:?}"))
                }
                None => Some("it is gone".into()),
            };
            drop(body);
            let Some(why) = lost else { return false };
            self.connection = Err(ConnectionLost(why));
        }
        true
    }

    /// It is there, and is not to this member itself.
    pub(super) fn is_to_another(&self) -> bool {
        self.connection.as_ref().is_ok_and(|connection| matches!(connection.to, To::Other(_)))
    }

    pub(super) fn made(self) -> (String, Result<Connection, ConnectionLost>) {
        (self.name, self.connection)
    }
}

/// A primary's connection to the log and the image of one member.
#[derive(Debug)]
pub(super) struct Connection {
    world: World,
    to: To,
}

#[derive(Debug)]
enum To {
    Own(Own),
    Other(Other),
}

#[derive(Debug, Default)]
struct Own {
    epoch: Option<Epoch>,
    under_way: VecDeque<Updates>,
    came: VecDeque<Event>,
    told: Option<ImageReply>,
}

#[derive(Debug)]
struct Other {
    who: usize,
    life: u64,
    number: u64,
    under_way: usize,
    /// Orders that were not answered yet. Of all but the last one nobody wants to know any more.
    orders: usize,
    told: Option<Vec<u8>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let To::Other(other) = &self.to {
            let mut body = self.world.body.lock();
            body.port.links.remove(&other.number);
            body.port.commands.push_back(Command::Cut { number: other.number });
        }
    }
}

impl Other {
    /// What has come next. A member that is silent is not waited for until its connection breaks.
    fn poll(&mut self, world: &World) -> Result<Option<Event>, ConnectionLost> {
        let mut body = world.body.lock();
        let gone = if self.under_way > 0 { body.gone(self.who, self.life) } else { None };
        let Some((link, came)) = body.port.links.get_mut(&self.number) else {
            return Err(ConnectionLost("it is gone".into()));
        };
        while let Some(next) = came.pop_front() {
            let event = match next {
                Came::Message(bytes) if bytes[0] == ORDER => {
                    self.orders -= 1;
                    self.told = (self.orders == 0).then(|| bytes[1..].to_vec());
                    continue;
                }
                Came::Message(bytes) => Event::Reply(parse_reply(&bytes[1..]).map(Box::new)),
                Came::Read(bytes) => Event::Data(bytes),
                Came::Durable => Event::Durable,
            };
            self.under_way -= 1;
            return Ok(Some(event));
        }
        match (link, gone) {
            (Link::Lost(why), _) => Err(ConnectionLost(why.clone())),
            (_, Some(gone)) => Err(ConnectionLost(format!("{gone:?}"))),
            _ => Ok(None),
        }
    }
}

impl ReplicaConnection for Connection {
    fn now() -> Duration {
        World::now()
    }

    fn begin_call(&mut self, request: &Request) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                let reply = self.world.body.lock().answer_own(request);
                if let (Request::Grant { epoch }, Ok(_)) = (request, &reply) {
                    own.epoch = Some(*epoch);
                }
                own.came.push_back(Event::Reply(reply.map(Box::new)));
            }
            To::Other(other) => {
                other.under_way += 1;
                let bytes = message(LOG, &[&request.emit()]);
                self.world.does(Command::Send { number: other.number, bytes });
            }
        }
        Ok(())
    }

    fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                let mut bytes = vec![0; len as usize];
                let body = self.world.body.lock();
                remanence_pmem::Medium::read(body.store.medium(), offset, &mut bytes);
                own.came.push_back(Event::Data(bytes));
            }
            To::Other(other) => {
                other.under_way += 1;
                self.world.does(Command::Read { number: other.number, offset, len });
            }
        }
        Ok(())
    }

    fn begin_append(&mut self, updates: Updates, _: &PlanRequest) -> Result<(), ConnectionLost> {
        match &mut self.to {
            // When the others have it: then all of them work at the same time.
            To::Own(own) => own.under_way.push_back(updates),
            To::Other(other) => {
                other.under_way += 1;
                let updates = updates.list().into_iter().map(|(at, bytes)| (at, bytes.to_vec())).collect();
                self.world.does(Command::Update { number: other.number, updates });
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        let came = match &mut self.to {
            To::Own(own) => {
                if let Some(event) = own.came.pop_front() {
                    return Ok(Some(event));
                }
                let Some(updates) = own.under_way.pop_front() else { return Ok(None) };
                // What was begun on other members is on its way by then.
                self.world.wait(Duration::ZERO);
                let epoch = own.epoch.ok_or_else(|| ConnectionLost("it was promised to nobody".into()))?;
                let updated = self.world.body.lock().update_own(epoch, &updates);
                updated.map_err(|refused| ConnectionLost(refused.to_string()))?;
                Some(Event::Durable)
            }
            To::Other(other) => other.poll(&self.world)?,
        };
        match &came {
            Some(_) => World::is_awake(),
            None => self.world.looks_in_vain(),
        }
        Ok(came)
    }

    fn wait(&mut self, limit: Duration) {
        self.world.wait(limit.min(NAP_MAX));
    }
}

impl Member for Connection {
    fn begin_order(&mut self, epoch: Epoch, order: &Order) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => own.told = Some(self.world.body.lock().obey(epoch, order)),
            To::Other(other) => {
                (other.orders, other.told) = (other.orders + 1, None);
                let bytes = message(ORDER, &[&emit_order(epoch, order)]);
                self.world.does(Command::Send { number: other.number, bytes });
            }
        }
        Ok(())
    }

    fn poll_told(&mut self) -> Result<Option<ImageReply>, ConnectionLost> {
        let other = match &mut self.to {
            To::Own(own) => return Ok(own.told.take()),
            To::Other(other) => other,
        };
        if let Some(told) = other.told.take() {
            let told = parse_told(&told);
            return Ok(Some(told.ok_or_else(|| ConnectionLost("its answer means nothing".into()))?));
        }
        // What has come is taken by the log's poll, in its order.
        let gone = self.world.body.lock().gone(other.who, other.life);
        gone.map_or(Ok(None), |gone| Err(ConnectionLost(format!("{gone:?}"))))
    }

    fn record_max(&self) -> usize {
        self.world.body.lock().store.superblock().geometry.payload_max() as usize
    }

    fn image_len(&self) -> u64 {
        remanence_pmem::Medium::len(self.world.body.lock().keeper.image())
    }
}
