//! A primary's connection to a member: to another one over verbs, to its own log directly.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use remanence_persist::plan::Request as PlanRequest;
use remanence_remote::Waiter;
use remanence_remotelog::SessionConnection;
use remanence_remotelog::group::{ConnectionLost, Event, ReplicaConnection};
use remanence_remotelog::proto::Request;
use remanence_remotelog::{Epoch, Updates};

use super::ORDERS;
use super::node::Node;
use remanence_kv::replica::keeper::{emit_order, parse_told};
use remanence_kv::replica::{ImageReply, Member, Order};

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
    came: VecDeque<Event>,
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

impl ReplicaConnection for MemberConnection {
    fn now() -> Duration {
        SessionConnection::now()
    }

    fn yield_now() {
        SessionConnection::yield_now();
    }

    fn begin_call(&mut self, request: &Request) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                let reply = self.node.log.call(request);
                if let (Request::Grant { epoch }, Ok(_)) = (request, &reply) {
                    own.epoch = Some(*epoch);
                }
                own.came.push_back(Event::Reply(reply.map(Box::new)));
                Ok(())
            }
            To::Other(other) => {
                there(&self.node, other)?;
                other.under_way += 1;
                other.connection.begin_call(request)
            }
        }
    }

    fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                let mut bytes = vec![0; len as usize];
                self.node.log.with(|store| remanence_pmem::Medium::read(store.medium(), offset, &mut bytes));
                own.came.push_back(Event::Data(bytes));
                Ok(())
            }
            To::Other(other) => {
                there(&self.node, other)?;
                other.under_way += 1;
                other.connection.begin_read(offset, len)
            }
        }
    }

    fn begin_append(&mut self, updates: Updates, plan: &PlanRequest) -> Result<(), ConnectionLost> {
        match &mut self.to {
            // When the others have it: then all of them work at the same time.
            To::Own(own) => {
                own.under_way.push_back(updates);
                Ok(())
            }
            To::Other(other) => {
                other.under_way += 1;
                other.connection.begin_append(updates, plan)
            }
        }
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                if let Some(event) = own.came.pop_front() {
                    return Ok(Some(event));
                }
                let Some(updates) = own.under_way.pop_front() else { return Ok(None) };
                let epoch = own.epoch.ok_or_else(|| ConnectionLost("it was promised to nobody".into()))?;
                self.node
                    .log
                    .update(epoch, &updates)
                    .map_err(|refused| ConnectionLost(refused.to_string()))?;
                Ok(Some(Event::Durable))
            }
            To::Other(other) => {
                let event = other.connection.poll()?;
                match &event {
                    Some(_) => other.under_way -= 1,
                    None if other.under_way > 0 => there(&self.node, other)?,
                    None => {}
                }
                Ok(event)
            }
        }
    }

    fn wait(&mut self, limit: Duration) {
        // Whether a member is still there is known anew with each beat. This member's own log is never waited for: what is begun
        // there has come with the next look.
        let limit = limit.min(self.node.interval());
        // A queue that is broken says so to each session that looks.
        let _ = self.waiter.wait(std::time::Instant::now().checked_add(limit));
    }
}

impl Member for MemberConnection {
    fn begin_order(&mut self, epoch: Epoch, order: &Order) -> Result<(), ConnectionLost> {
        match &mut self.to {
            To::Own(own) => {
                own.told = Some(self.node.obey(epoch, order));
                // Nothing else comes of it that would end a wait.
                self.waiter.reactor().waker().wake();
            }
            To::Other(other) => {
                there(&self.node, other)?;
                other.order = Some(Ordered::Waiting(emit_order(epoch, order)));
                self.poll_told()?;
            }
        }
        Ok(())
    }

    fn poll_told(&mut self) -> Result<Option<ImageReply>, ConnectionLost> {
        let other = match &mut self.to {
            To::Own(own) => return Ok(own.told.take()),
            To::Other(other) => other,
        };
        let lost = |e: remanence_remote::Error| ConnectionLost(e.to_string());
        let session = other.connection.session();
        match &other.order {
            None => Ok(None),
            Some(Ordered::Waiting(order)) => {
                if let Some(number) = session.try_call(ORDERS, order).map_err(lost)? {
                    other.order = Some(Ordered::Asked(number));
                }
                Ok(None)
            }
            Some(Ordered::Asked(number)) => {
                let Some(answer) = session.answer(*number) else {
                    there(&self.node, other)?;
                    return Ok(None);
                };
                other.order = None;
                let told = answer.map_err(|why| lost(remanence_remote::Error::Application(why)))?;
                let told = parse_told(&told);
                Ok(Some(told.ok_or_else(|| ConnectionLost("its answer means nothing".into()))?))
            }
        }
    }

    fn record_max(&self) -> usize {
        self.node.record_max
    }

    fn image_len(&self) -> u64 {
        self.node.image.len()
    }
}
