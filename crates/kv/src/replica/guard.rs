//! Why nobody reads from a primary that was replaced.
//!
//! A primary may be cut off from the other members and not from its clients. Another one takes over, values change, and the
//! first one's memory is read as before: nothing tells it, and no step here waits for a time to pass. So clients ask the
//! members. Each exports, read-only, whom it has promised its log last ([`Promise`]); a client reads the promises of `acks`
//! members while it does whatever it does at the primary, in any order, and believes what it has read, and every reply, only
//! if none of these promises is to another primary of later. So no READ waits for another: a GET has as many round trips as
//! it has at one server.
//!
//! ARGUMENT. A primary answers only when `members - acks + 1` members have promised it their logs, and every set of so many
//! meets every set of `acks`. So at the moment T at which the *first* of the client's promises was read, no later primary had
//! acknowledged anything: else a member that both sets have would have promised its log to that one before T, and was read at T
//! or later. T lies between the begin and the end of the operation. What the client read from its own primary was in the log of
//! `acks` members before it could be read (rule 4). If it was the primary's value at T already, it was the value at T. If it
//! came later, one of those members has it before it promises its log to anybody else, so that whoever takes over has it before
//! it acknowledges anything of its own: it was the value when it came. Whether the READ of the value was before or after T does
//! not matter: if it was before, and the primary has replaced the value since, it was the value when it was read. A member that
//! has lost its disk may have forgotten a promise: it does not count until it has adopted an epoch again.

use remanence_coord::log::Epoch;
use remanence_coord::log::format::root::State;

/// Bytes of a [`Promise`], which is stored in words that are each atomic.
pub const PROMISE_LEN: usize = 16;

/// What a member says of its log to clients. Little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// To whom its log is promised. Stored before the promise is made.
    pub promised: Epoch,
    /// The epoch that it adopted last; none if it is new, or has lost its disk.
    pub adopted: Epoch,
}

impl Promise {
    /// Of a member's log.
    #[must_use]
    pub const fn of(state: &State) -> Self {
        Self { promised: state.promised, adopted: state.adopted }
    }

    /// As it is exported.
    #[must_use]
    pub fn emit(&self) -> [u8; PROMISE_LEN] {
        let mut bytes = [0; PROMISE_LEN];
        bytes[..8].copy_from_slice(&self.promised.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.adopted.0.to_le_bytes());
        bytes
    }

    /// As it was read.
    #[must_use]
    pub fn parse(bytes: &[u8; PROMISE_LEN]) -> Self {
        let word = |at| Epoch(crate::format::get_u64(bytes, at));
        Self { promised: word(0), adopted: word(8) }
    }

    /// Whether it lets the primary of this epoch be believed. A primary that has opened the log again, for a member that came
    /// back, has a new epoch, which its clients ask it for: that a member has promised the log to the same writer again does
    /// not say that there was no other one in between.
    #[must_use]
    pub fn lets(&self, primary: Epoch) -> bool {
        let earlier = self.promised.counter() < primary.counter();
        self.adopted != Epoch::NONE && (self.promised == primary || earlier)
    }
}

/// Whether what was read from a primary may be believed, by the promises of members that were all read since the operation
/// began.
#[must_use]
pub fn is_current(primary: Epoch, promises: &[Promise], acks: usize) -> bool {
    promises.iter().filter(|promise| promise.lets(primary)).count() >= acks
}

/// What a member says of itself to who looks for the primary. It proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// It serves the store.
    pub serves: bool,
    /// Its own, if it serves; else to whom its log is promised.
    pub epoch: Epoch,
    /// How many members acknowledge.
    pub acks: usize,
}

/// The member that a client tries first, by what all of those say that have answered: the one that serves in the latest epoch,
/// if enough members could vouch for it. One that was replaced and does not know it, because its medium hangs, may answer before
/// any other does; whoever believed it would find out only when an operation has waited there in vain.
#[must_use]
pub fn likely_primary(claims: &[Option<Claim>]) -> Option<usize> {
    let there = || claims.iter().enumerate().filter_map(|(at, claim)| Some((at, (*claim)?)));
    let (at, primary) = there().filter(|(_, claim)| claim.serves).max_by_key(|(_, claim)| claim.epoch)?;
    let lets = |epoch: Epoch| epoch == primary.epoch || epoch.counter() < primary.epoch.counter();
    let vouch = there().filter(|(_, claim)| lets(claim.epoch)).count();
    (vouch >= primary.acks.max(1)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_is_believed_until_too_many_have_promised_another() {
        let ours = Epoch::new(5, 77);
        let promise = |counter, writer| Promise {
            promised: Epoch::new(counter, writer),
            adopted: Epoch::new(counter.min(5), writer),
        };
        let (same, earlier, later) = (promise(5, 77), promise(4, 1), promise(6, 1));
        assert!(is_current(ours, &[same, same], 2) && is_current(ours, &[same, earlier], 2));
        // Found by the simulation: who was replaced, and has then opened the log in vain.
        let again = promise(9, 77);
        assert!(!is_current(ours, &[same, again], 2) && is_current(again.promised, &[same, again], 2));
        assert!(!is_current(ours, &[same, later], 2));
        assert!(is_current(ours, &[same, later], 1));
        let blank = Promise { adopted: Epoch::NONE, ..earlier };
        assert!(!is_current(ours, &[same, blank], 2), "who lost its disk may have promised anything");
        assert_eq!(Promise::parse(&later.emit()), later);
    }

    #[test]
    fn a_client_does_not_try_a_primary_for_which_too_few_could_vouch() {
        let claim =
            |serves, counter, writer| Some(Claim { serves, epoch: Epoch::new(counter, writer), acks: 2 });
        let (old, new) = (claim(true, 5, 1), claim(true, 6, 2));
        assert_eq!(likely_primary(&[old, None, None]), None, "it has answered first, and nobody else yet");
        assert_eq!(likely_primary(&[old, claim(false, 5, 1), None]), Some(0));
        assert_eq!(likely_primary(&[old, claim(false, 6, 2), None]), None, "somebody is taking over");
        assert_eq!(likely_primary(&[old, new, None]), Some(1));
        assert_eq!(likely_primary(&[None, new, claim(false, 6, 2)]), Some(1));
        assert_eq!(likely_primary(&[None, claim(false, 6, 2), claim(false, 6, 2)]), None);
        assert_eq!(likely_primary(&[claim(true, 6, 1), new, None]), None, "of two with one counter neither");
        let alone = Claim { serves: true, epoch: Epoch::new(1, 1), acks: 0 };
        assert_eq!(likely_primary(&[Some(alone)]), Some(0));
    }

    #[test]
    fn of_two_that_were_drawn_with_one_counter_neither_believes_the_other() {
        let (one, other) = (Epoch::new(5, 1), Epoch::new(5, 2));
        assert!(!Promise { promised: other, adopted: other }.lets(one));
    }
}
