//! A primary's connection to a member: to another one over verbs, to its own log directly.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remanence_persist::plan::Request as PlanRequest;
use remanence_remotelog::group::{Leg, LegError};
use remanence_remotelog::live::SessionLeg;
use remanence_remotelog::proto::Request;
use remanence_remotelog::{Epoch, Refused, Status, Updates};

use super::ORDERS;
use super::node::Node;
use crate::replica::keeper::{emit_order, parse_told};
use crate::replica::{Member, Order, Told};

/// Updates of a member that are under way at a time.
pub(super) const DEPTH: usize = 32;
/// How long, and how often, this process' own log is asked again while it cuts the connection of an older writer: its serving
/// thread does that in its next turn, and sleeps until a message comes if nobody calls.
const CUTTING: Duration = Duration::from_secs(1);
const ASKED_AGAIN: Duration = Duration::from_micros(500);

/// The connection.
#[derive(Debug)]
pub(crate) struct LiveLeg {
    node: Arc<Node>,
    to: To,
}

#[derive(Debug)]
enum To {
    /// The log of this process: whoever has promised it to somebody else meanwhile is refused there.
    Own {
        epoch: Option<Epoch>,
        under_way: VecDeque<Updates>,
    },
    Other(Box<Other>),
}

#[derive(Debug)]
struct Other {
    who: usize,
    life: u64,
    leg: SessionLeg,
    under_way: usize,
    /// Durable, and not yet said.
    done: usize,
}

impl LiveLeg {
    pub(super) const fn own(node: Arc<Node>) -> Self {
        Self { node, to: To::Own { epoch: None, under_way: VecDeque::new() } }
    }

    pub(super) fn other(node: Arc<Node>, who: usize, life: u64, leg: SessionLeg) -> Self {
        Self { node, to: To::Other(Box::new(Other { who, life, leg, under_way: 0, done: 0 })) }
    }
}

/// A member that is silent is not waited for until its connection breaks.
fn there(node: &Node, other: &Other) -> Result<(), LegError> {
    node.gone(other.who, other.life).map_or(Ok(()), |why| Err(LegError::Lost(why)))
}

impl Leg for LiveLeg {
    fn call(&mut self, request: &Request) -> Result<Status, LegError> {
        match &mut self.to {
            To::Own { epoch, .. } => {
                let begin = Instant::now();
                while begin.elapsed() < CUTTING {
                    match self.node.log.call(request) {
                        Err(Refused::Busy) => std::thread::sleep(ASKED_AGAIN),
                        reply => {
                            if let (Request::Grant { epoch: new }, Ok(_)) = (request, &reply) {
                                *epoch = Some(*new);
                            }
                            return Ok(reply?);
                        }
                    }
                }
                Err(Refused::Busy.into())
            }
            To::Other(other) => {
                there(&self.node, other)?;
                other.leg.call(request)
            }
        }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LegError> {
        match &mut self.to {
            To::Own { .. } => {
                self.node.log.with(|store| remanence_pmem::Medium::read(store.medium(), offset, into));
                Ok(())
            }
            To::Other(other) => {
                there(&self.node, other)?;
                other.leg.read(offset, into)
            }
        }
    }

    fn submit(&mut self, updates: &Updates, plan: &PlanRequest) -> Result<(), LegError> {
        match &mut self.to {
            // When the others have it: then all of them work at the same time.
            To::Own { under_way, .. } => under_way.push_back(updates.clone()),
            To::Other(other) => {
                while other.under_way >= DEPTH {
                    there(&self.node, other)?;
                    if other.leg.poll()? {
                        other.under_way -= 1;
                        other.done += 1;
                    }
                }
                other.leg.submit(updates, plan)?;
                other.under_way += 1;
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool, LegError> {
        match &mut self.to {
            To::Own { epoch, under_way } => {
                let Some(updates) = under_way.pop_front() else { return Ok(false) };
                let epoch = epoch.ok_or_else(|| LegError::Lost("it was promised to nobody".into()))?;
                self.node.log.update(epoch, &updates)?;
                Ok(true)
            }
            To::Other(other) => {
                if other.done > 0 {
                    other.done -= 1;
                    return Ok(true);
                }
                if other.leg.poll()? {
                    other.under_way -= 1;
                    return Ok(true);
                }
                if other.under_way > 0 {
                    there(&self.node, other)?;
                }
                Ok(false)
            }
        }
    }
}

impl Member for LiveLeg {
    fn order(&mut self, epoch: Epoch, order: &Order) -> Result<Told, LegError> {
        match &mut self.to {
            To::Own { .. } => Ok(self.node.obey(epoch, order)),
            To::Other(other) => {
                there(&self.node, other)?;
                let called = other.leg.session().call(ORDERS, &emit_order(epoch, order));
                let told = called.map_err(|e| LegError::Lost(e.to_string()))?;
                parse_told(&told).ok_or_else(|| LegError::Lost("its answer means nothing".into()))
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
