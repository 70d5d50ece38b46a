//! The accepting thread: requests for connections, one after the other.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use remanence_rnic::QpCaps;
use remanence_verbs::{ConnectAttr, Connection, Cq, Incoming, Pd, QpOptions};
use remanence_wire::Qpn;

use super::Error;
use super::bounds::{Claim, Permit, Permits};
use super::control::Control;
use super::session::{Opened, Session, SessionId, Spec};

/// A request for a connection.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// From where it comes.
    pub peer: IpAddr,
    /// The address that it was sent to.
    pub local: IpAddr,
    /// The QP of the one who asks.
    pub qpn: Qpn,
    /// What it says, padded with zeros to 56 bytes.
    pub private_data: &'a [u8],
}

/// What a peer is told that has no session, at most 148 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refusal(pub Vec<u8>);

/// Something failed here; the peer is refused without a word.
impl From<Error> for Refusal {
    fn from(_: Error) -> Self {
        Self::default()
    }
}

/// What becomes of a request that is not refused.
#[derive(Debug)]
pub enum Decision<S> {
    /// It is a new session.
    Session {
        /// What [`Workshop::open`] made for it.
        opened: Box<Opened>,
        /// What the service keeps for it.
        state: S,
        /// What its client is told, at most 196 bytes.
        welcome: Vec<u8>,
    },
    /// It is the second QP of a session, which ends with it: for one-sided operations, with keys of its own PD.
    Second {
        /// The session that it belongs to.
        session: SessionId,
        /// The PD that the QP is made in.
        pd: Pd,
        /// How it is connected.
        attr: ConnectAttr,
    },
}

/// Who has a session: the service's half of admission, which the accepting thread asks. It may take its time; nobody who is
/// served waits for it.
pub trait Admit {
    /// What the service keeps for a session.
    type State;

    /// Decides about a request. By `claim` the share of the server's bounds is taken that a new session needs, when nothing else speaks
    /// against it: somebody may have to make room.
    ///
    /// # Errors
    /// It is refused, with these words.
    fn admit(
        &mut self,
        request: &Request<'_>,
        claim: Claim<'_>,
        workshop: &Workshop<'_>,
    ) -> Result<Decision<Self::State>, Refusal>;

    /// The [second](Decision::Second) QP of a session could not be connected, and its client may ask for it again.
    fn not_connected(&mut self, session: SessionId) {
        let _ = session;
    }
}

/// Makes what a session needs.
#[derive(Debug)]
pub struct Workshop<'a> {
    pub(crate) pd: &'a Pd,
    pub(crate) cq: &'a Cq,
    pub(crate) capacity: &'a AtomicU32,
    pub(crate) next_id: &'a AtomicU64,
    pub(crate) message: u32,
}

/// The completion queue is made for so many.
pub(crate) const COMPLETIONS: u32 = 1024;

impl Workshop<'_> {
    /// Makes a session: its memory is registered, its QP is there, and its receive buffers are posted.
    ///
    /// # Errors
    /// A bound is reached, or the device or the machine has no room.
    pub fn open(&self, mut permit: Permit, spec: &Spec<'_>) -> Result<Box<Opened>, Error> {
        // Whatever all clients do at once, the queue does not overflow.
        let completions = permit.charge(spec.bytes(self.message), spec.completions())?;
        self.make_room(completions)?;
        let id = SessionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let caps = spec.caps();
        let qp = self.pd.create_qp(&QpOptions { caps, ..QpOptions::rc(self.cq) })?;
        Opened::new(self.pd, qp, id, permit, spec).map(Box::new)
    }

    /// Doubles the completion queue where it is too small. Only this thread does.
    fn make_room(&self, completions: u32) -> Result<(), Error> {
        let mut size = self.capacity.load(Ordering::Relaxed);
        if completions > size {
            let most = self.cq.context().config().max_cqe;
            size = completions.checked_next_power_of_two().unwrap_or(most).min(most);
            self.cq.resize(size).map_err(remanence_verbs::Error::from)?;
            self.capacity.store(size, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What the accepting thread hands to the serving one.
#[derive(Debug)]
pub(crate) enum Arrival<S> {
    Session(Box<Session<S>>),
    Second(SessionId, Connection),
}

/// Where sessions wait that were made and not taken over yet.
#[derive(Debug)]
pub(crate) struct Inbox<S> {
    arrivals: Mutex<Vec<Arrival<S>>>,
    /// Those, and the one that is being connected.
    coming: AtomicUsize,
}

impl<S> Inbox<S> {
    pub(crate) const fn new() -> Self {
        Self { arrivals: Mutex::new(Vec::new()), coming: AtomicUsize::new(0) }
    }

    /// Connects, and hands over. The lock is held from before the client can know of its QP: the serving thread, which takes it
    /// when a completion is of nobody whom it knows, finds the session behind it.
    fn put(&self, make: impl FnOnce() -> Result<Arrival<S>, remanence_verbs::Error>) -> bool {
        self.coming.fetch_add(1, Ordering::SeqCst);
        let mut arrivals = self.lock();
        let made = make();
        let is_made = made.is_ok();
        match made {
            Ok(arrival) => arrivals.push(arrival),
            Err(_) => drop(self.coming.fetch_sub(1, Ordering::SeqCst)),
        }
        is_made
    }

    /// Whether [`take`](Self::take) may find something.
    pub(crate) fn is_coming(&self) -> bool {
        self.coming.load(Ordering::SeqCst) > 0
    }

    /// What was made. `wait`: what is being connected as well.
    pub(crate) fn take(&self, wait: bool) -> Vec<Arrival<S>> {
        let arrivals = if wait { Some(self.lock()) } else { self.arrivals.try_lock().ok() };
        let taken = arrivals.map(|mut arrivals| std::mem::take(&mut *arrivals)).unwrap_or_default();
        self.coming.fetch_sub(taken.len(), Ordering::SeqCst);
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arrival<S>>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request. Whether a connection was made.
pub(crate) fn decide<S>(
    admit: &mut impl Admit<State = S>,
    incoming: Incoming,
    permits: &Permits,
    workshop: &Workshop<'_>,
    inbox: &Inbox<S>,
    control: &Control,
) -> bool {
    let peer = incoming.peer();
    let asked = incoming.request();
    let request = Request {
        peer,
        local: asked.path.local.to_ip(),
        qpn: asked.remote_qpn,
        private_data: incoming.private_data(),
    };
    match admit.admit(&request, permits.claim(peer, &|session| control.end(session)), workshop) {
        // A peer that cannot be told has taken its request back.
        Err(Refusal(words)) => {
            let _ = incoming.reject(&words);
            false
        }
        Ok(Decision::Session { opened, state, welcome }) => {
            let id = opened.id();
            // Before its client can know of it.
            control.begun(id);
            let made = inbox.put(|| {
                let connection = incoming.accept(&opened.qp, &opened.attr, &welcome)?;
                let handshake = connection.handshake();
                opened.permit().is_half_open(id, move || handshake.is_half_open());
                let link = (*opened).into_link(connection, peer, Instant::now());
                Ok(Arrival::Session(Box::new(Session { state, link })))
            });
            if !made {
                control.never_was(id);
            }
            made
        }
        Ok(Decision::Second { session, pd, attr }) => {
            let caps =
                QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
            let made = pd.create_qp(&QpOptions { caps, ..QpOptions::rc(workshop.cq) }).is_ok_and(|qp| {
                inbox.put(|| Ok(Arrival::Second(session, incoming.accept(&qp, &attr, &[])?)))
            });
            if !made {
                admit.not_connected(session);
            }
            made
        }
    }
}
