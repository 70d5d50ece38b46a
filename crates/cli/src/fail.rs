//! How a command ends when it does not succeed: one sentence on stderr.

use std::fmt;

/// One sentence that says what happened and what to do.
#[derive(PartialEq, Eq)]
pub(crate) struct Fail(String);

impl Fail {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says what was tried when the system refused.
pub(crate) trait Context<T> {
    /// The sentence is "`what` (the system's reason)".
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fail>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Fail> {
        self.map_err(|error| Fail(format!("{} ({error})", what())))
    }
}
