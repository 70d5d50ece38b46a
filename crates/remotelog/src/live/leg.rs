//! A connection to a server of a log.

use std::net::SocketAddr;

use remanence_persist::plan::Request as PlanRequest;
use remanence_persist::recipe::Op;
use remanence_pmem::Survives;
use remanence_remote::{Error, Options, Session};
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
/// Looks without a completion after which the processor is offered to others.
const LOOKS: u32 = 200;

/// A connection.
#[derive(Debug)]
pub struct SessionLeg {
    session: Session,
    op: Option<Op>,
    looks: u32,
    survives: Option<Survives>,
}

/// Connects to a server of a log. With an operation, the paper's recipe for that one is used, and the cheapest proven one
/// without.
///
/// # Errors
/// One sentence that says what to do.
pub fn connect(
    context: &Context,
    to: SocketAddr,
    options: Options,
    op: Option<Op>,
) -> Result<SessionLeg, LegError> {
    let session = Session::connect(context, to, options).map_err(lost)?;
    Ok(SessionLeg { session, op, looks: 0, survives: None })
}

fn lost(error: Error) -> LegError {
    LegError::Lost(error.to_string())
}

impl SessionLeg {
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

    fn plan(&mut self, request: &PlanRequest) -> Result<remanence_remote::Plan, LegError> {
        let plan = match self.op {
            Some(op) => self.session.plan_by(op, request),
            None => self.session.plan(request),
        };
        plan.map_err(|refusal| LegError::Refused(Refused::Said(refusal.to_string())))
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

    fn submit(&mut self, updates: &Updates, plan: PlanRequest) -> Result<(), LegError> {
        let plan = self.plan(&plan)?;
        self.session.submit(&plan, &updates.list()).map_err(lost)?;
        Ok(())
    }

    fn poll(&mut self) -> Result<bool, LegError> {
        if let Some((_, token)) = self.session.poll().map_err(lost)? {
            self.looks = 0;
            self.survives = Some(token.survives());
            return Ok(true);
        }
        self.looks += 1;
        if self.looks >= LOOKS {
            self.looks = 0;
            std::thread::yield_now();
        }
        Ok(false)
    }
}
