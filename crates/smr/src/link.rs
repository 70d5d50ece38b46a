//! A connection to another replica, on one plane: what the machine wants to be done there.
//!
//! It is begun in its order, as far as there is room, and told in its order, as the machine has it ([`mu::Action`](remanence_coord::mu::Action)). A WRITE is visible
//! when it is told. An update is durable there then, by the recipe that the planner has for that machine. What is to be written on the replication
//! plane waits for the key of the zone, which comes as soon as the peer has given the right to this connection.

use std::collections::VecDeque;
use std::task::{Context as Task, Waker};

use remanence_coord::mu::memory::{grant_at, request_at};
use remanence_coord::mu::{Geometry, Input, Plane};
use remanence_persist::plan::Request as PlanRequest;
use remanence_remote::{Error, Plan, Reading, Session, Writing};

/// Updates that one run makes durable, the most first.
const RUNS: [usize; 3] = [16, 4, 1];

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Op {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// `is_ordered`: each must be durable before the next one is.
    Update {
        updates: VecDeque<(u64, Vec<u8>)>,
        is_ordered: bool,
    },
}

impl Op {
    /// An entry's number is made durable alone, before and behind anything else: [`mu::entry`](remanence_coord::mu::entry) says why. What has no number beside it
    /// is whole or not by its checksum, and told when all of it is durable.
    pub(crate) fn update(updates: Vec<(u64, Vec<u8>)>) -> Self {
        let is_ordered = updates.iter().any(|(_, bytes)| bytes.len() == 8);
        Self::Update { updates: updates.into(), is_ordered }
    }
}

/// What was begun of it.
#[derive(Debug)]
enum Begun {
    Nothing,
    Read(Reading),
    Write(Writing),
    /// So many runs are under way.
    Update(usize),
}

/// How updates become durable.
#[derive(Debug)]
struct Plans {
    /// For each of [`RUNS`].
    slots: [Plan; RUNS.len()],
    /// For one that is longer than a slot.
    snapshot: Plan,
}

impl Plans {
    fn make(session: &mut Session, geometry: &Geometry) -> Result<Self, String> {
        let mut plan = |sizes: Vec<u32>| {
            // Each update has a checksum in it, and one of several may be durable before another.
            let request = PlanRequest {
                sizes,
                ordered: false,
                replay: false,
                immediate: false,
                notify: false,
                checksum: true,
                message_max: session.message_max(),
            };
            session.plan(&request).map_err(|refusal| refusal.to_string())
        };
        let [most, some, one] = RUNS.map(|count| vec![geometry.slot; count]);
        Ok(Self { slots: [plan(most)?, plan(some)?, plan(one)?], snapshot: plan(vec![geometry.snapshot])? })
    }

    /// How the first of these become durable, and how many of them together.
    fn next(
        &self,
        updates: &VecDeque<(u64, Vec<u8>)>,
        is_ordered: bool,
        geometry: &Geometry,
    ) -> (&Plan, usize) {
        if updates.front().is_some_and(|(_, bytes)| bytes.len() > geometry.slot as usize) {
            return (&self.snapshot, 1);
        }
        let fits = |count: &usize| *count <= updates.len() && !(is_ordered && *count > 1);
        let n = RUNS.iter().position(fits).unwrap_or(RUNS.len() - 1);
        (&self.slots[n], RUNS[n])
    }
}

/// A connection that is there.
#[derive(Debug)]
pub(crate) struct Link {
    peer: usize,
    plane: Plane,
    geometry: Geometry,
    session: Session,
    plans: Option<Plans>,
    /// The peer lets this connection write its zone.
    has_key: bool,
    queue: VecDeque<(Op, Begun)>,
}

impl Link {
    /// Over a session in which the peer has answered this to who wanted to join it ([`rights`](crate::rights)).
    ///
    /// # Errors
    /// A sentence says why there is none.
    pub(crate) fn new(
        (me, peer, plane): (usize, usize, Plane),
        geometry: Geometry,
        mut session: Session,
        answer: &[u8],
    ) -> Result<Self, String> {
        if session.region().len < geometry.size() {
            return Err("it has less memory than a replica of this group".to_owned());
        }
        let plans = match plane {
            Plane::Background => {
                let keys = answer.as_chunks::<4>().0;
                let [request, grant] = *keys else { return Err("it gave no keys".to_owned()) };
                session.grant(request_at(me), 8, u32::from_le_bytes(request));
                session.grant(grant_at(me), 8, u32::from_le_bytes(grant));
                None
            }
            Plane::Replication => Some(Plans::make(&mut session, &geometry)?),
        };
        Ok(Self { peer, plane, geometry, session, plans, has_key: false, queue: VecDeque::new() })
    }

    /// Does this when all that was said before is begun.
    pub(crate) fn push(&mut self, op: Op) {
        self.queue.push_back((op, Begun::Nothing));
    }

    /// Takes what has come, of which the machine is told, and begins what can begin.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn poll(&mut self, told: &mut Vec<Input>) -> Result<(), Error> {
        let mut looks = self.session.poll_ready(&Task::from_waker(Waker::noop())).is_ready();
        loop {
            if looks {
                while self.session.poll()?.is_some() {
                    self.has_run();
                }
                while let Some(notice) = self.session.notice() {
                    self.has_right(&notice);
                }
                self.tells(told);
            }
            // What lets something begin was taken above, or ends the next wait.
            looks = self.begins()?;
            if !looks {
                return Ok(());
            }
        }
    }

    /// A run has ended: they do in their order.
    fn has_run(&mut self) {
        let runs = self.queue.iter_mut().find_map(|(_, begun)| match begun {
            Begun::Update(runs) if *runs > 0 => Some(runs),
            _ => None,
        });
        if let Some(runs) = runs {
            *runs -= 1;
        }
    }

    /// The peer has given the right to write its zone to this connection.
    fn has_right(&mut self, notice: &[u8]) {
        let zone = self.geometry.zone();
        if let Ok(key) = notice.try_into() {
            self.session.grant(zone.start, zone.end - zone.start, u32::from_le_bytes(key));
            self.has_key = true;
        }
    }

    /// What has ended, up to the first that has not.
    fn tells(&mut self, told: &mut Vec<Input>) {
        let (peer, plane) = (self.peer, self.plane);
        while let Some((op, begun)) = self.queue.front() {
            let input = match (op, begun) {
                (_, Begun::Read(reading)) => match self.session.try_finish_read(reading) {
                    Some(bytes) => Input::Read { peer, plane, bytes },
                    None => return,
                },
                (_, Begun::Write(writing)) if self.session.is_written(*writing) => {
                    Input::Written { peer, plane }
                }
                (Op::Update { updates, .. }, Begun::Update(0)) if updates.is_empty() => {
                    Input::Durable { peer }
                }
                _ => return,
            };
            self.queue.pop_front();
            told.push(input);
        }
    }

    /// Begins the next ones. Whether any was.
    fn begins(&mut self) -> Result<bool, Error> {
        let mut any = false;
        for (op, begun) in &mut self.queue {
            let may_write = self.plane == Plane::Background || self.has_key;
            let is_whole = match (op, &mut *begun) {
                (_, Begun::Read(_) | Begun::Write(_)) => true,
                (Op::Read { offset, len }, _) => match self.session.try_read(*offset, *len)? {
                    Some(reading) => {
                        (*begun, any) = (Begun::Read(reading), true);
                        true
                    }
                    None => false,
                },
                _ if !may_write => false,
                (Op::Write { offset, bytes }, _) => match self.session.try_write(*offset, bytes)? {
                    Some(writing) => {
                        (*begun, any) = (Begun::Write(writing), true);
                        true
                    }
                    None => false,
                },
                (Op::Update { updates, is_ordered }, begun) => {
                    let Some(plans) = &self.plans else { break };
                    let mut runs = if let Begun::Update(runs) = begun { *runs } else { 0 };
                    while !updates.is_empty() && (runs == 0 || !*is_ordered) {
                        let (plan, count) = plans.next(updates, *is_ordered, &self.geometry);
                        let run: Vec<(u64, &[u8])> =
                            updates.iter().take(count).map(|(at, bytes)| (*at, &bytes[..])).collect();
                        if self.session.try_submit(plan, &run)?.is_none() {
                            break;
                        }
                        updates.drain(..count);
                        (runs, any) = (runs + 1, true);
                    }
                    *begun = Begun::Update(runs);
                    updates.is_empty()
                }
            };
            if !is_whole {
                break;
            }
        }
        Ok(any)
    }
}
