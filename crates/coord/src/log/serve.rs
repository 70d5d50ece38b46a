//! Whom a server listens to: its log is promised to one session at a time, and what another one asks is refused.
//!
//! Pure: whoever has the sessions says which of them go on, and ends them.

use remanence_pmem::Medium;

use crate::log::error::Refused;
use crate::log::format::Epoch;
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

/// The session of the process' own requests: those of others count from 1. It has no end that anybody could see.
pub const OWN: u64 = 0;

/// So often a lower epoch is refused for the sake of one that waits, before that one must ask again: it may have given up. Whoever
/// waits asks every half millisecond; of the process' own session nobody sees the end.
const REFUSALS: u32 = 256;
const OWN_REFUSALS: u32 = 16;

/// The session that a log is promised to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holder {
    session: Option<u64>,
    /// Who was told to ask again, as the writer before is being cut off.
    waiting: Option<Waiting>,
}

/// A session that will ask again for a promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    epoch: Epoch,
    session: u64,
    /// How often others were refused for it since it asked.
    refusals: u32,
}

impl Holder {
    /// The number of the session that holds the log; none before one is granted it.
    #[must_use]
    pub const fn session(&self) -> Option<u64> {
        self.session
    }

    /// Whether another session with a higher epoch was told to ask again, and may.
    fn is_waited_for(&mut self, sessions: &impl Sessions, session: u64, epoch: Epoch) -> bool {
        let Some(waiting) = &mut self.waiting else { return false };
        let goes_on = match waiting.session {
            OWN => waiting.refusals < OWN_REFUSALS,
            other => waiting.refusals < REFUSALS && sessions.is_live(other),
        };
        waiting.refusals += 1;
        goes_on && waiting.session != session && epoch < waiting.epoch
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
                // Else a writer that was replaced and connects again and again would always be the one before.
                if self.is_waited_for(sessions, session, epoch) {
                    return Err(Refused::Busy);
                }
                // Nothing of the writer before may arrive while or after the log is looked at.
                let before = self.session.filter(|before| *before != session && sessions.is_live(*before));
                if let Some(before) = before {
                    sessions.cut(before);
                    self.waiting = Some(Waiting { epoch, session, refusals: 0 });
                    return Err(Refused::Busy);
                }
                (self.session, self.waiting) = (Some(session), None);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::CrashImage;

    use super::*;
    use crate::log::format::superblock::Uuid;
    use crate::log::format::{Geometry, Mode};
    use crate::log::store::Make;

    /// Sessions that go on; one that is cut goes on until somebody ends it here.
    #[derive(Default)]
    struct Live(BTreeSet<u64>, Vec<u64>);

    impl Sessions for Live {
        fn is_live(&self, session: u64) -> bool {
            self.0.contains(&session)
        }

        fn cut(&mut self, session: u64) {
            self.1.push(session);
        }
    }

    struct Served {
        store: Store<Arc<CrashImage>>,
        holder: Holder,
        sessions: Live,
    }

    impl Served {
        fn new() -> Self {
            let geometry = Geometry::for_size(1 << 20).expect("fair");
            let image = Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
            let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([1; 16]), salt: 3 };
            let store = Store::create(image, &make).expect("fair");
            Self { store, holder: Holder::default(), sessions: Live((1..9).collect(), Vec::new()) }
        }

        fn asks(&mut self, session: u64, counter: u32) -> Result<(), Refused> {
            let request = Request::Grant { epoch: Epoch::new(counter, 1) };
            let Self { store, holder, sessions } = self;
            holder.answer(store, sessions, session, &request, &mut |_| ()).map(drop)
        }
    }

    #[test]
    fn who_knows_the_epoch_and_was_not_promised_the_log_changes_nothing() {
        let mut served = Served::new();
        assert_eq!(served.asks(1, 5), Ok(()));
        let epoch = Epoch::new(5, 1);
        for request in [
            Request::Truncate { epoch, sequence: 0 },
            Request::Adopt { epoch, sequence: 0, group: Uuid([2; 16]), members: 1, acks: 1 },
            Request::Known { epoch, below: 0 },
            Request::Reset { epoch, sequence: 3, after: epoch },
        ] {
            let Served { store, holder, sessions } = &mut served;
            let before = *store.state();
            let mut ask = |session| holder.answer(store, sessions, session, &request, &mut |_| ()).map(drop);
            assert_eq!(ask(2), Err(Refused::Fenced { promised: epoch }), "{request:?}");
            assert_eq!(served.store.state(), &before, "{request:?}");
            let Served { store, holder, sessions } = &mut served;
            assert!(holder.answer(store, sessions, 1, &request, &mut |_| ()).is_ok(), "{request:?}");
        }
    }

    #[test]
    fn a_replaced_writer_that_connects_again_and_again_holds_nobody_up() {
        let mut served = Served::new();
        assert_eq!(served.asks(1, 5), Ok(()));
        assert_eq!(served.asks(2, 6), Err(Refused::Busy));
        served.sessions.0.remove(&1);
        // The one before is back before the later one asks again, and would hold the log.
        for session in 3..6 {
            assert_eq!(served.asks(session, 5), Err(Refused::Busy));
        }
        assert_eq!(served.asks(2, 6), Ok(()));
        assert_eq!(served.sessions.1, [1], "nobody else was in the way");
        assert!(matches!(served.asks(3, 5), Err(Refused::Fenced { .. })));
    }

    #[test]
    fn who_was_waited_for_and_is_gone_holds_nobody_up() {
        let mut served = Served::new();
        assert_eq!(served.asks(1, 5), Ok(()));
        assert_eq!(served.asks(2, 6), Err(Refused::Busy));
        served.sessions.0.retain(|session| *session > 2);
        assert_eq!(served.asks(3, 5), Ok(()));
        // A still later one does not wait for who waits, and is waited for in its place.
        assert_eq!(served.asks(4, 6), Err(Refused::Busy));
        assert_eq!(served.asks(5, 7), Err(Refused::Busy));
        served.sessions.0.remove(&3);
        assert_eq!(served.asks(4, 6), Err(Refused::Busy));
        assert_eq!(served.asks(5, 7), Ok(()));
    }

    /// It was stopped, perhaps, and its connection is there still.
    #[test]
    fn who_does_not_ask_again_is_not_waited_for_for_ever() {
        let mut served = Served::new();
        assert_eq!(served.asks(1, 5), Ok(()));
        assert_eq!(served.asks(2, 7), Err(Refused::Busy));
        served.sessions.0.remove(&1);
        let refused = (0..1000).take_while(|_| served.asks(3, 6) == Err(Refused::Busy)).count();
        assert_eq!(refused, REFUSALS as usize);
    }

    #[test]
    fn the_process_itself_is_waited_for_as_long_as_it_asks() {
        let mut served = Served::new();
        assert_eq!(served.asks(1, 5), Ok(()));
        assert_eq!(served.asks(OWN, 6), Err(Refused::Busy));
        assert_eq!(served.asks(OWN, 6), Err(Refused::Busy), "session 1 has not ended yet");
        served.sessions.0.remove(&1);
        assert_eq!(served.asks(2, 5), Err(Refused::Busy));
        assert_eq!(served.asks(OWN, 6), Ok(()));
        // It gives up: nobody sees its end, and the writer before is let in some time.
        assert_eq!(served.asks(3, 7), Ok(()), "the process' own session is not cut");
        assert_eq!(served.asks(OWN, 8), Err(Refused::Busy));
        served.sessions.0.remove(&3);
        let refused = (0..100).take_while(|_| served.asks(4, 7) == Err(Refused::Busy)).count();
        assert_eq!(refused, OWN_REFUSALS as usize);
    }
}
