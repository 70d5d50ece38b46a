//! How a command ends when it does not succeed: one sentence on stderr.

use std::fmt;

/// One sentence that says what happened and what to do.
#[derive(PartialEq, Eq)]
pub(crate) struct Fail {
    sentence: String,
    status: u8,
}

impl Fail {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), status: 1 }
    }

    /// Ends with another exit status than 1, where a convention says so.
    pub(crate) fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    pub(crate) const fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl fmt::Debug for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// Says what was tried when the system refused.
pub(crate) trait Context<T> {
    /// The sentence is "`what` (the system's reason)".
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fail>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fail> {
        self.map_err(|error| Fail::new(format!("{} ({error})", what())))
    }
}
