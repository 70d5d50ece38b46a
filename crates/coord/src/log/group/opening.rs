//! When a log that is being opened is handed to whoever opens it: enough servers take part, and the others had their time.

use super::GroupError;
use super::machine::{Machine, Time};

/// How far a log is that is being opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    grace: Time,
    /// Since when records can be appended.
    since: Option<Time>,
}

impl Opening {
    /// Of a log whose slower servers are waited for so long, once there are enough.
    #[must_use]
    pub const fn new(grace: Time) -> Self {
        Self { grace, since: None }
    }

    /// Whether it is over: records can be appended, and all servers that are there take part, or had their time. Those that did not come
    /// as far go on by themselves.
    ///
    /// # Errors
    /// It will never be open: too few servers, servers that do not belong together, or a writer that was faster.
    pub fn is_over(&mut self, now: Time, machine: &Machine) -> Result<bool, GroupError> {
        if let Some(error) = machine.failed() {
            return Err(error.clone());
        }
        if let Some(short) = machine.shortage() {
            return Err(short);
        }
        if !machine.is_open() {
            return Ok(false);
        }
        let since = *self.since.get_or_insert(now);
        Ok(!machine.is_settling() || now.saturating_sub(since) >= self.grace)
    }

    /// When it is over at the latest, if records can be appended.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.since.and_then(|since| since.checked_add(self.grace))
    }
}
