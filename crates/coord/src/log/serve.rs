//! Whom a server listens to: its log is promised to one session at a time, and what another one asks is refused.
//!
//! Pure: whoever has the sessions says which of them go on, and ends them.

use remanence_pmem::Medium;

use crate::log::error::Refused;
use crate::log::format::root::State;
use crate::log::proto::Request;
use crate::log::store::{Status, Store};

/// The sessions of a server.
pub trait Sessions {
    /// Whether a session goes on. If it does not, everything that it brought is in place, and nothing of it can come any more.
    fn is_live(&self, session: u64) -> bool;

    /// Asks for the end of a session. It has come when [`is_live`](Self::is_live) says so.
    fn cut(&mut self, session: u64);
}

/// The session that a log is promised to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holder {
    session: Option<u64>,
}

impl Holder {
    /// The number of the session that holds the log; none before one is granted it.
    #[must_use]
    pub const fn session(&self) -> Option<u64> {
        self.session
    }

    /// Does what a session asks for. `promising` is told what the log will remember before a promise is made.
    ///
    /// # Errors
    /// The log is promised to another session, or does not do it. [`Refused::Busy`]: ask again, the writer before is being cut off.
    pub fn answer<M: Medium + Clone>(
        &mut self,
        store: &mut Store<M>,
        sessions: &mut impl Sessions,
        session: u64,
        request: &Request,
        promising: &mut dyn FnMut(&State),
    ) -> Result<Status, Refused> {
        match *request {
            Request::Status => store.status(),
            Request::Grant { epoch } => {
                let promised = store.state().promised;
                if !promised.may_become(epoch) {
                    return Err(Refused::Fenced { promised });
                }
                // Nothing of the writer before may arrive while or after the log is looked at.
                let before = self.session.filter(|before| *before != session && sessions.is_live(*before));
                if let Some(before) = before {
                    sessions.cut(before);
                    return Err(Refused::Busy);
                }
                self.session = Some(session);
                promising(&State { promised: epoch, ..*store.state() });
                store.grant(epoch)
            }
            // A session that was not promised the log has no business with what follows.
            Request::Truncate { .. }
            | Request::Reset { .. }
            | Request::Adopt { .. }
            | Request::Known { .. }
                if self.session != Some(session) =>
            {
                Err(Refused::Fenced { promised: store.state().promised })
            }
            Request::Truncate { epoch, sequence } => store.truncate(epoch, sequence),
            Request::Reset { epoch, sequence, after } => store.reset(epoch, sequence, after),
            Request::Adopt { epoch, sequence, group, members, acks } => {
                store.adopt(epoch, sequence, group, members, acks)
            }
            Request::Trim { below } => store.trim(below),
            Request::Known { epoch, below } => store.note_known(epoch, below),
        }
    }
}
