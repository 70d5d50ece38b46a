//! Calls by WRITE with immediate, at the client's end: [`crate::message`] says what they are.

use crate::error::Error;
use crate::message::{BY_IMMEDIATE, Immediates};
use crate::requester::Broken;
use crate::session::Session;

impl Session {
    /// Asks the server to take calls by WRITE with immediate, with a number of this client's in the immediate; whether it does. If so
    /// all calls go that way from now on, and no plan of this session uses immediates; if not, as an older server does not, they
    /// go on by SEND.
    ///
    /// # Errors
    /// The session is over.
    pub fn call_by_immediate(&mut self) -> Result<bool, Error> {
        let said = match self.call(BY_IMMEDIATE, &[]) {
            Err(Error::Application(_)) => return Ok(false),
            said => said?,
        };
        let ours = Immediates::parse(&said);
        let ours = ours.map_err(|_| Broken::Peer("its answer about immediates is none"))?;
        self.with_port(|requester, _| {
            requester.call_by_immediate(ours);
            Ok(true)
        })
    }
}
