//! A primary's connection to a member: to another one over verbs, to its own log directly.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use remanence_remote::Waiter;
use remanence_remotelog::group::{Action as LogAction, ConnectionLost, Event as LogEvent};
use remanence_remotelog::proto::Request;
use remanence_remotelog::{Epoch, ReplicaConnection as _, SessionConnection, Updates};

use super::ORDERS;
use super::node::Node;
use remanence_kv::replica::keeper::{emit_order, parse_told};
use remanence_kv::replica::primary::{Action, Event};
use remanence_kv::replica::{ImageReply, Member};

/// Updates of a member that are under way at a time.
pub(super) const DEPTH: usize = 32;

/// A primary's connection to the log and the image of one member.
#[derive(Debug)]
pub(crate) struct MemberConnection {
    node: Arc<Node>,
    /// For the connections to all members.
    waiter: Waiter,
    to: To,
}

#[derive(Debug)]
enum To {
    /// The log of this process: whoever has promised it to somebody else meanwhile is refused there.
    Own(Own),
    Other(Box<Other>),
}

#[derive(Debug, Default)]
struct Own {
    epoch: Option<Epoch>,
    under_way: VecDeque<Updates>,
    /// What came of what was done at once.
    came: VecDeque<LogEvent>,
    told: Option<ImageReply>,
}

#[derive(Debug)]
struct Other {
    who: usize,
    life: u64,
    connection: SessionConnection,
    under_way: usize,
    order: Option<Ordered>,
}

/// An order that was begun.
#[derive(Debug)]
enum Ordered {
    /// The session had no room for it yet.
    Waiting(Vec<u8>),
    /// It is under way, by this number.
    Asked(u64),
}

impl MemberConnection {
    pub(super) fn own(node: Arc<Node>, waiter: Waiter) -> Self {
        Self { node, waiter, to: To::Own(Own::default()) }
    }

    pub(super) fn other(
        node: Arc<Node>,
        waiter: Waiter,
        who: usize,
        life: u64,
        connection: SessionConnection,
    ) -> Self {
        let other = Other { who, life, connection, under_way: 0, order: None };
        Self { node, waiter, to: To::Other(Box::new(other)) }
    }
}

/// A member that is silent is not waited for until its connection breaks.
fn there(node: &Node, other: &Other) -> Result<(), ConnectionLost> {
    node.gone(other.who, other.life).map_or(Ok(()), |why| Err(ConnectionLost(why)))
}

impl Own {
    /// Does at once what is asked of this member's log and its image; but updates when the others have them: then all work at the same time.
    fn begin(&mut self, node: &Node, action: Action) {
        match action {
            Action::Log(LogAction::Call { request, .. }) => {
                let reply = node.log.call(&request);
                if let (Request::Grant { epoch }, Ok(_)) = (request, &reply) {
                    self.epoch = Some(epoch);
                }
                self.came.push_back(LogEvent::Reply(reply.map(Box::new)));
            }
            Action::Log(LogAction::Read { offset, len, .. }) => {
                let mut bytes = vec![0; len as usize];
                node.log.with(|store| remanence_pmem::Medium::read(store.medium(), offset, &mut bytes));
                self.came.push_back(LogEvent::Data(bytes));
            }
            Action::Log(LogAction::Append { updates, .. }) => self.under_way.push_back(*updates),
            Action::Log(LogAction::Disconnect { .. }) => {}
            Action::Order { epoch, order, .. } => self.told = Some(node.obey(epoch, &order)),
        }
    }

    fn has_come(&self) -> bool {
        !self.came.is_empty() || !self.under_way.is_empty() || self.told.is_some()
    }

    fn poll(&mut self, node: &Node) -> Result<Option<Event>, ConnectionLost> {
        if let Some(event) = self.came.pop_front() {
            return Ok(Some(Event::Log(event)));
        }
        let Some(updates) = self.under_way.pop_front() else {
            return Ok(self.told.take().map(Event::Image));
        };
        let epoch = self.epoch.ok_or_else(|| ConnectionLost("it was promised to nobody".into()))?;
        node.log.update(epoch, &updates).map_err(|refused| ConnectionLost(refused.to_string()))?;
        Ok(Some(Event::Log(LogEvent::Durable)))
    }
}

impl Other {
    fn begin(&mut self, node: &Node, action: Action) -> Result<(), ConnectionLost> {
        match action {
            Action::Log(LogAction::Call { request, .. }) => {
                there(node, self)?;
                self.under_way += 1;
                self.connection.begin_call(&request)
            }
            Action::Log(LogAction::Read { offset, len, .. }) => {
                there(node, self)?;
                self.under_way += 1;
                self.connection.begin_read(offset, len)
            }
            Action::Log(LogAction::Append { updates, plan, .. }) => {
                self.under_way += 1;
                self.connection.begin_append(*updates, &plan)
            }
            Action::Log(LogAction::Disconnect { .. }) => Ok(()),
            Action::Order { epoch, order, .. } => {
                there(node, self)?;
                self.order = Some(Ordered::Waiting(emit_order(epoch, &order)));
                self.send_order()
            }
        }
    }

    /// Sends the order that waits for room, if there is some.
    fn send_order(&mut self) -> Result<(), ConnectionLost> {
        if let Some(Ordered::Waiting(order)) = &self.order
            && let Some(number) = self.connection.session().try_call(ORDERS, order).map_err(lost)?
        {
            self.order = Some(Ordered::Asked(number));
        }
        Ok(())
    }

    fn poll(&mut self, node: &Node) -> Result<Option<Event>, ConnectionLost> {
        if let Some(event) = self.connection.poll()? {
            self.under_way -= 1;
            return Ok(Some(Event::Log(event)));
        }
        self.send_order()?;
        if let Some(Ordered::Asked(number)) = self.order
            && let Some(answer) = self.connection.session().answer(number)
        {
            self.order = None;
            let told = answer.map_err(|why| lost(remanence_remote::Error::Application(why)))?;
            let told = parse_told(&told).ok_or_else(|| ConnectionLost("its answer means nothing".into()))?;
            return Ok(Some(Event::Image(told)));
        }
        if self.under_way > 0 || self.order.is_some() {
            there(node, self)?;
        }
        Ok(None)
    }
}

fn lost(error: remanence_remote::Error) -> ConnectionLost {
    ConnectionLost(error.to_string())
}

impl Member for MemberConnection {
    fn now() -> Duration {
        SessionConnection::now()
    }

    fn begin(&mut self, action: Action) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                own.begin(&self.node, action);
                Ok(())
            }
            To::Other(other) => other.begin(&self.node, action),
        }
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        match &mut self.to {
            To::Own(own) => own.poll(&self.node),
            To::Other(other) => other.poll(&self.node),
        }
    }

    fn has_come(&self) -> bool {
        matches!(&self.to, To::Own(own) if own.has_come())
    }

    fn wait(&mut self, limit: Duration) {
        // Whether a member is still there is known anew with each beat. This member's own log is never waited for: what is begun
        // there has come with the next look.
        let limit = limit.min(self.node.interval());
        // A queue that is broken says so to each session that looks.
        let _ = self.waiter.wait(std::time::Instant::now().checked_add(limit));
    }
}
