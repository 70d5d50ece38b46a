//! A daemon that is replaced under programs that run: they join the one that has the log by then.
//!
//! A daemon that ends, or that finds what one has left that was killed, [retires](crate::segment::Segment::retire) the segment: by it nothing is logged any more. A program that sees that at a call of its
//! asks the next daemon, once in a second at most, and has another face from then on: another segment, the log mapped anew, a number of its own. Its files are taken into the table
//! as those of any program that begins.
//!
//! **The face before stays where it is**, as other threads may be in calls that have begun with it. What these change is in no log, and may take longer than two syncs of the file do; so each call is counted by its
//! face, and as long as the one before has some, the new one counts as being in the middle of a change, which keeps all from absorbing anything that they do not absorb yet. Who enters
//! a call looks once more whether its face is still the present one: either it finds the new one, or whoever looks for calls of the old one finds this.

use std::ops::Deref;
use std::sync::atomic::Ordering;

use super::{FACE, Face, begin, face, own};
use crate::sys;

/// How often a daemon is looked for.
const EACH_NS: u64 = 1_000_000_000;
/// Nobody asks a daemon for as long.
const LONGEST_NS: u64 = 60_000_000_000;

/// A call that is under way.
pub(super) struct Entered(&'static Face);

impl Deref for Entered {
    type Target = Face;

    fn deref(&self) -> &Face {
        self.0
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.own(own::CALLS).fetch_sub(1, Ordering::SeqCst);
    }
}

/// Begins a call with the present face. `None`: there is none.
pub(super) fn enter() -> Option<Entered> {
    loop {
        let now = face()?;
        if now.segment.is_retired() {
            look_for_another(now);
        }
        let now = face()?;
        now.own(own::CALLS).fetch_add(1, Ordering::SeqCst);
        let entered = Entered(now);
        if std::ptr::eq(now, face()?) {
            entered.go_on();
            return Some(entered);
        }
    }
}

/// Joins the daemon that has the log by now, if there is one.
#[cold]
fn look_for_another(old: &'static Face) {
    if !old.is_itself() {
        return;
    }
    let looked = old.own(own::LOOKED);
    let (begun, next) = (sys::monotonic(), looked.load(Ordering::SeqCst));
    let is_mine = begun >= next
        && looked.compare_exchange(next, begun + LONGEST_NS, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    if !is_mine {
        return;
    }
    match begin(old.address, None) {
        Ok(new) => {
            new.hold_back();
            // What it has sent, and to whom, the new segment does not know.
            new.leak_descriptors(true);
            FACE.store(Box::leak(Box::new(Face { before: Some(old), ..new })), Ordering::SeqCst);
        }
        Err(_) => {
            // Who has waited in vain does so less often.
            let ended = sys::monotonic();
            looked.store(ended + EACH_NS + 10 * (ended - begun), Ordering::SeqCst);
        }
    }
}

impl Face {
    /// Counts as a change that is under way until those are over that have begun with the face before.
    fn hold_back(&self) {
        if let Some(me) = self.me() {
            me.client.unlogged().fetch_add(1, Ordering::SeqCst);
            self.own(own::HELD).store(1, Ordering::SeqCst);
        }
    }

    /// Whether nobody is at a call that has begun with it, or with one before.
    fn is_over(&self) -> bool {
        self.own(own::CALLS).load(Ordering::SeqCst) == 0
            && (self.own(own::HELD).load(Ordering::SeqCst) == 0 || self.before.is_none_or(Self::is_over))
    }

    /// Is held up by the face before no more, if that is over.
    fn go_on(&self) {
        let held = self.own(own::HELD);
        if held.load(Ordering::SeqCst) == 0 || !self.before.is_none_or(Self::is_over) {
            return;
        }
        if let Some(me) = self.me()
            && held.swap(0, Ordering::SeqCst) != 0
        {
            me.client.unlogged().fetch_sub(1, Ordering::SeqCst);
        }
    }
}
