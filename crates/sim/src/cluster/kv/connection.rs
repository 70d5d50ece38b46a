//! A primary's connections to the members, for code that waits: what it begins its process carries out, and what has come waits for it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use remanence_coord::log::group::{Action as LogAction, ConnectionLost, Event as LogEvent};
use remanence_coord::log::proto::{Request, parse_reply};
use remanence_coord::log::{Epoch, Updates};
use remanence_kv::replica::keeper::{emit_order, parse_told};
use remanence_kv::replica::primary::{Action, Event};
use remanence_kv::replica::{ImageReply, Member};

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
        self.body.lock().port.wakes = Self::now().saturating_add(limit);
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
                return Connecting { at, name, connection: Ok(Connection { world: self.clone(), to }) };
            }
            let Some(said) = body.takeover.recent(at, now).copied() else {
                return Connecting { at, name, connection: Err(ConnectionLost("it is silent".into())) };
            };
            let Body { port, .. } = &mut *body;
            port.next += 1;
            let number = port.next;
            port.links.insert(number, (Link::Connecting, VecDeque::new()));
            port.commands.push_back(Command::Connect { number, member: at });
            let other = Other { who: at, life: said.life, number, under_way: 0, orders: 0 };
            Connecting { at, name, connection: Ok(Connection { world: self.clone(), to: To::Other(other) }) }
        };
        members.iter().map(one).collect()
    }
}

/// A connection that is being made.
#[derive(Debug)]
pub(super) struct Connecting {
    at: usize,
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

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// To whom, by number and by name, and what came of it.
    pub(super) fn made(self) -> (usize, String, Result<Connection, ConnectionLost>) {
        (self.at, self.name, self.connection)
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
    came: VecDeque<LogEvent>,
    told: Option<ImageReply>,
}

#[derive(Debug)]
struct Other {
    who: usize,
    life: u64,
    number: u64,
    /// Answers that are to come.
    under_way: usize,
    /// Orders that were not answered yet. Of all but the last one nobody wants to know any more.
    orders: usize,
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

impl Own {
    /// Does at once what is asked of this member's log and its image; but updates when the others have them: then all work at the same time.
    fn begin(&mut self, world: &World, action: Action) {
        let mut body = world.body.lock();
        match action {
            Action::Log(LogAction::Call { request, .. }) => {
                let reply = body.answer_own(&request);
                if let (Request::Grant { epoch }, Ok(_)) = (request, &reply) {
                    self.epoch = Some(epoch);
                }
                self.came.push_back(LogEvent::Reply(reply.map(Box::new)));
            }
            Action::Log(LogAction::Read { offset, len, .. }) => {
                let mut bytes = vec![0; len as usize];
                remanence_pmem::Medium::read(body.store.medium(), offset, &mut bytes);
                self.came.push_back(LogEvent::Data(bytes));
            }
            Action::Log(LogAction::Append { updates, .. }) => self.under_way.push_back(*updates),
            Action::Log(LogAction::Disconnect { .. }) => {}
            Action::Order { epoch, order, .. } => self.told = Some(body.obey(epoch, &order)),
        }
    }

    fn has_come(&self) -> bool {
        !self.came.is_empty() || !self.under_way.is_empty() || self.told.is_some()
    }

    fn poll(&mut self, world: &World) -> Result<Option<Event>, ConnectionLost> {
        if let Some(event) = self.came.pop_front() {
            return Ok(Some(Event::Log(event)));
        }
        let Some(updates) = self.under_way.pop_front() else {
            return Ok(self.told.take().map(Event::Image));
        };
        // What was begun on other members is on its way by then.
        world.wait(Duration::ZERO);
        let epoch = self.epoch.ok_or_else(|| ConnectionLost("it was promised to nobody".into()))?;
        let updated = world.body.lock().update_own(epoch, &updates);
        updated.map_err(|refused| ConnectionLost(refused.to_string()))?;
        Ok(Some(Event::Log(LogEvent::Durable)))
    }
}

impl Other {
    fn begin(&mut self, world: &World, action: Action) {
        let number = self.number;
        let command = match action {
            Action::Log(LogAction::Call { request, .. }) => {
                Command::Send { number, bytes: message(LOG, &[&request.emit()]) }
            }
            Action::Log(LogAction::Read { offset, len, .. }) => Command::Read { number, offset, len },
            Action::Log(LogAction::Append { updates, .. }) => {
                let updates = updates.list().into_iter().map(|(at, bytes)| (at, bytes.to_vec())).collect();
                Command::Update { number, updates }
            }
            Action::Log(LogAction::Disconnect { .. }) => return,
            Action::Order { epoch, order, .. } => {
                self.orders += 1;
                Command::Send { number, bytes: message(ORDER, &[&emit_order(epoch, &order)]) }
            }
        };
        self.under_way += 1;
        world.does(command);
    }

    /// What has come next. A member that is silent is not waited for until its connection breaks.
    fn poll(&mut self, world: &World) -> Result<Option<Event>, ConnectionLost> {
        let mut body = world.body.lock();
        let gone = if self.under_way > 0 { body.gone(self.who, self.life) } else { None };
        let Some((link, came)) = body.port.links.get_mut(&self.number) else {
            return Err(ConnectionLost("it is gone".into()));
        };
        while let Some(next) = came.pop_front() {
            self.under_way -= 1;
            return Ok(Some(match next {
                Came::Message(bytes) if bytes[0] == ORDER => {
                    self.orders -= 1;
                    if self.orders > 0 {
                        continue;
                    }
                    let told = parse_told(&bytes[1..]);
                    Event::Image(told.ok_or_else(|| ConnectionLost("its answer means nothing".into()))?)
                }
                Came::Message(bytes) => Event::Log(LogEvent::Reply(parse_reply(&bytes[1..]).map(Box::new))),
                Came::Read(bytes) => Event::Log(LogEvent::Data(bytes)),
                Came::Durable => Event::Log(LogEvent::Durable),
            }));
        }
        match (link, gone) {
            (Link::Lost(why), _) => Err(ConnectionLost(why.clone())),
            (_, Some(gone)) => Err(ConnectionLost(format!("{gone:?}"))),
            _ => Ok(None),
        }
    }
}

impl Member for Connection {
    fn now() -> Duration {
        World::now()
    }

    fn begin(&mut self, action: Action) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => own.begin(&self.world, action),
            To::Other(other) => other.begin(&self.world, action),
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        let came = match &mut self.to {
            To::Own(own) => own.poll(&self.world)?,
            To::Other(other) => other.poll(&self.world)?,
        };
        match &came {
            Some(_) => World::is_awake(),
            None => self.world.looks_in_vain(),
        }
        Ok(came)
    }

    fn has_come(&self) -> bool {
        matches!(&self.to, To::Own(own) if own.has_come())
    }

    fn wait(&mut self, limit: Duration) {
        self.world.wait(limit.min(NAP_MAX));
    }
}
