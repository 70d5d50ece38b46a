//! Which bytes of a guarded region each session may write: memory windows, bound to its QP.
//!
//! The region of a guarded server ([`ServerOptions::guarded`](crate::ServerOptions::guarded)) is registered for reading
//! only. What a client may write is a type 2 memory window (IBA Vol 1, 10.6.7): its key is good through this client's QP
//! alone, for these bytes alone, until it is taken back. The bind is a work request in front of the answer that carries the
//! key, so it costs no packet and no wait. The same book decides what a client may have copied by message.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remanence_rnic::{Access, MwBind, MwType, SendOp};
use remanence_verbs::{Mr, Mw, Pd};
use remanence_wire::{Lkey, Rkey};

/// What the sessions of a server may write. Clones are the same book; it may be used from a handler of calls.
#[derive(Clone, Debug)]
pub struct Grants(Arc<Mutex<Book>>);

#[derive(Debug)]
struct Book {
    pd: Pd,
    memory: (Lkey, u64),
    rights: Access,
    guarded: bool,
    sessions: BTreeMap<u64, Held>,
    /// Whose a window is, by its first byte.
    whose: BTreeMap<u64, u64>,
    given: u64,
}

#[derive(Debug, Default)]
struct Held {
    windows: BTreeMap<u64, (u64, Mw)>,
    binds: VecDeque<Bind>,
}

/// A window that is to be bound before anything else is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    offset: u64,
    pub(crate) op: SendOp,
}

/// A window and its key, which is good when this work request has been executed, and through its QP alone.
pub(crate) fn window(pd: &Pd, bind: MwBind) -> Option<(Mw, Rkey, SendOp)> {
    let mw = pd.alloc_mw(MwType::Type2).ok()?;
    // Another low byte than it was made with, so that the key of before the bind reaches nothing.
    let rkey = Rkey(mw.rkey().0 ^ 1);
    let op = SendOp::BindMw { mw: mw.raw(), rkey, bind };
    Some((mw, rkey, op))
}

impl Grants {
    pub(crate) fn new(pd: &Pd, memory: &Mr, flush: Access, guarded: bool) -> Self {
        let book = Book {
            pd: pd.clone(),
            memory: (memory.lkey(), memory.addr()),
            rights: Access::REMOTE_WRITE | flush,
            guarded,
            sessions: BTreeMap::new(),
            whose: BTreeMap::new(),
            given: 0,
        };
        Self(Arc::new(Mutex::new(book)))
    }

    /// The book is whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a session write `len` bytes of the region: the key, which works when the client has the answer to the call that
    /// is being served. `None`: the region is not guarded, another session has a grant that begins there, or the device has
    /// no window left.
    #[must_use]
    pub fn give(&self, session: u64, offset: u64, len: u64) -> Option<u32> {
        let book = &mut *self.lock();
        if !book.guarded || len == 0 || book.whose.contains_key(&offset) {
            return None;
        }
        let (mr, base) = book.memory;
        let (mw, rkey, op) = window(&book.pd, MwBind { mr, addr: base + offset, len, access: book.rights })?;
        let held = book.sessions.entry(session).or_default();
        held.binds.push_back(Bind { offset, op });
        held.windows.insert(offset, (len, mw));
        book.whose.insert(offset, session);
        book.given += 1;
        Some(rkey.0)
    }

    /// Takes the grant that begins there back: on return nothing that anybody sends is written through it.
    pub fn take(&self, offset: u64) {
        let book = &mut *self.lock();
        let Some(session) = book.whose.remove(&offset) else { return };
        if let Some(held) = book.sessions.get_mut(&session) {
            held.binds.retain(|bind| bind.offset != offset);
            // Dropped, it is gone at once.
            held.windows.remove(&offset);
        }
    }

    /// Takes back all that a session has.
    pub fn take_all(&self, session: u64) {
        let book = &mut *self.lock();
        book.sessions.remove(&session);
        book.whose.retain(|_, owner| *owner != session);
    }

    /// How many grants there are now, and how many were given so far.
    #[must_use]
    pub fn counts(&self) -> (usize, u64) {
        let book = self.lock();
        (book.whose.len(), book.given)
    }

    /// Whether a session may have bytes written there by message.
    pub(crate) fn covers(&self, session: u64, offset: u64, len: u64) -> bool {
        let book = self.lock();
        let inside = |held: &Held| {
            let before = held.windows.range(..=offset).next_back();
            before.is_some_and(|(from, (span, _))| offset - from <= *span && len <= span - (offset - from))
        };
        !book.guarded || book.sessions.get(&session).is_some_and(inside)
    }

    pub(crate) fn next_bind(&self, session: u64) -> Option<Bind> {
        self.lock().sessions.get_mut(&session)?.binds.pop_front()
    }

    /// It could not be posted yet.
    pub(crate) fn put_back(&self, session: u64, bind: Bind) {
        if let Some(held) = self.lock().sessions.get_mut(&session)
            && held.windows.contains_key(&bind.offset)
        {
            held.binds.push_front(bind);
        }
    }
}
