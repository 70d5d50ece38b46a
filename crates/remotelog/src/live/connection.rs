//! A connection to a server of a log.

use std::net::SocketAddr;

use remanence_persist::plan::Request as PlanRequest;
use remanence_persist::recipe::{Op, Recipe};
use remanence_pmem::Survives;
use remanence_remote::{Error, Options, Plan, Session};
use remanence_verbs::Context;

use super::SERVICE;
use crate::error::Refused;
use crate::group::{Leg, LegError};
use crate::proto::{Request, parse_reply};
use crate::store::Status;
use crate::writer::Updates;

/// How often a server is asked again that is cutting the connection of an older writer: that takes a turn of its serving
/// thread, which an application may keep busy.
const ASKED_AGAIN: usize = 10_000;
/// Looks without a completion after which the processor is offered to others: some tens of microseconds.
const LOOKS: u32 = 200;

/// How updates are made durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Method {
    /// By the cheapest recipe that is proven.
    Cheapest,
    /// By the paper's for that operation.
    Op(Op),
    /// By this one, which is proven first.
    Recipe(Op, Recipe),
}

/// A connection.
#[derive(Debug)]
pub struct SessionLeg {
    session: Session,
    method: Method,
    plans: Vec<(PlanRequest, Plan)>,
    /// Nobody else is waited for: it may block.
    alone: bool,
    looks: u32,
    /// Updates that are durable, and of which that was not said yet.
    done: usize,
    survives: Option<Survives>,
}

/// Connects to a server of a log.
///
/// # Errors
/// One sentence that says what to do.
pub fn connect(
    context: &Context,
    to: SocketAddr,
    options: Options,
    method: Method,
) -> Result<SessionLeg, LegError> {
    let session = Session::connect(context, to, options).map_err(lost)?;
    Ok(SessionLeg { session, method, plans: Vec::new(), alone: false, looks: 0, done: 0, survives: None })
}

fn lost(error: Error) -> LegError {
    LegError::Lost(error.to_string())
}

impl SessionLeg {
    /// It is the only one of its group: a look for a completion may wait for it.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// The session under it.
    pub const fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Which failures the last record that was made durable survives, by the recipe's token.
    #[must_use]
    pub const fn survives(&self) -> Option<Survives> {
        self.survives
    }

    /// The recipe for a record of so many bytes, as text; and whether the server's CPU takes part in it.
    ///
    /// # Errors
    /// There is none.
    pub fn explain(&mut self, plan: &PlanRequest) -> Result<(String, bool), LegError> {
        let plan = self.plan(plan)?;
        Ok((plan.recipe.to_string(), plan.recipe.is_two_sided()))
    }

    /// Of what was asked before the answer is known.
    fn plan(&mut self, request: &PlanRequest) -> Result<&Plan, LegError> {
        let known = self.plans.iter().position(|(known, _)| known == request);
        let at = match known {
            Some(at) => at,
            None => self.planned(request)?,
        };
        Ok(&self.plans[at].1)
    }

    fn planned(&mut self, request: &PlanRequest) -> Result<usize, LegError> {
        let plan = match &self.method {
            Method::Cheapest => self.session.plan(request),
            Method::Op(op) => self.session.plan_by(*op, request),
            Method::Recipe(op, recipe) => self.session.plan_for(*op, recipe.clone(), request),
        };
        let plan = plan.map_err(|refusal| LegError::Refused(Refused::Said(refusal.to_string())))?;
        self.plans.push((request.clone(), plan));
        Ok(self.plans.len() - 1)
    }
}

impl Leg for SessionLeg {
    fn call(&mut self, request: &Request) -> Result<Status, LegError> {
        let request = request.emit();
        for _ in 0..ASKED_AGAIN {
            match parse_reply(&self.session.call(SERVICE, &request).map_err(lost)?) {
                Err(Refused::Busy) => {}
                reply => return Ok(reply?),
            }
        }
        Err(Refused::Busy.into())
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LegError> {
        self.session.read(offset, into).map_err(lost)
    }

    fn submit(&mut self, updates: &Updates, plan: &PlanRequest) -> Result<(), LegError> {
        let plan = self.plan(plan)?.clone();
        updates.with(|list| self.session.submit(&plan, list)).map_err(lost)?;
        Ok(())
    }

    fn poll(&mut self) -> Result<bool, LegError> {
        if self.done > 0 {
            self.done -= 1;
            return Ok(true);
        }
        if let Some((_, token)) = self.session.poll().map_err(lost)? {
            self.looks = 0;
            self.survives = Some(token.survives());
            return Ok(true);
        }
        self.looks += 1;
        if self.looks >= LOOKS {
            self.looks = 0;
            if !self.alone {
                std::thread::yield_now();
                return Ok(false);
            }
            // It gives the processor up while it waits, and notices a server that is silent for too long.
            let ended = self.session.finish().map_err(lost)?;
            if let Some((_, token)) = ended.last() {
                self.survives = Some(token.survives());
                self.done = ended.len() - 1;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
