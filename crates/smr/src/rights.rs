//! What other replicas may do with this one's memory: who has joined it, and who may write its zone.
//!
//! All of it is registered for reading. A session that has joined may write the two words of its replica that are its own, if it is for the background plane, and the
//! zone, if it is for replication and its replica was given the right. Each of these is a memory window of type 2: a key to these bytes that is good through the QP of
//! this session alone, and that is void when it was [taken back](Grants::take), also within a WRITE of several packets: the RNIC looks at the key of each packet.
//! So a right changes without a packet and without a QP's state, in a time that does not depend on how much memory it is for. (Mu changes access flags of QPs, or takes
//! the QPs through RESET where that fails: real RNICs of its time took tens of milliseconds to register memory anew.)
//!
//! This is done on the serving thread alone, which also carries out recipes with messages: no message of somebody is applied to the zone behind the end of his right.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remanence_codec::{Malformed, Reader, Writer};
use remanence_coord::mu::memory::{grant_at, request_at};
use remanence_coord::mu::{Geometry, Input, Plane};
use remanence_remote::{Call, Grants, SessionControl};

use crate::mailbox::{Mail, Mailbox};

/// The number of the service by which a replica joins another one.
pub(crate) const JOIN: u16 = 3;
/// The first byte of what it says.
const VERSION: u8 = 1;

/// What all replicas of a group have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) geometry: Geometry,
    pub(crate) salt: u64,
}

/// Who joins, for which plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Join {
    pub(crate) from: u16,
    pub(crate) plane: Plane,
    pub(crate) group: Group,
}

impl Join {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let Geometry { replicas, slots, slot, window, snapshot } = self.group.geometry;
        let mut out = Writer::new(usize::MAX);
        out.u8(VERSION);
        out.u8(self.plane as u8);
        out.u16_le(self.from);
        out.u64_le(self.group.salt);
        out.u16_le(replicas);
        [slots, slot, window, snapshot].into_iter().for_each(|word| out.u32_le(word));
        out.finish().expect("it has no limit")
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return reader.fail();
        }
        let plane = *Plane::ALL.get(usize::from(reader.u8()?)).ok_or(reader.malformed())?;
        let (from, salt, replicas) = (reader.u16_le()?, reader.u64_le()?, reader.u16_le()?);
        let (slots, slot) = (reader.u32_le()?, reader.u32_le()?);
        let (window, snapshot) = (reader.u32_le()?, reader.u32_le()?);
        let geometry = Geometry { replicas, slots, slot, window, snapshot };
        reader.end().map(|()| Self { from, plane, group: Group { geometry, salt } })
    }
}

/// What the machine wants to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Revoke,
    Allow { peer: usize },
}

/// Who has joined, and what waits to be changed.
#[derive(Debug)]
pub(crate) struct Rights {
    me: u16,
    group: Group,
    grants: Grants,
    control: SessionControl,
    mailbox: Arc<Mailbox>,
    /// The last session of each replica, on each plane.
    sessions: Vec<[Option<u64>; 2]>,
    changes: VecDeque<Change>,
}

/// What is there is whole between any two statements that can panic.
pub(crate) fn lock(rights: &Mutex<Rights>) -> MutexGuard<'_, Rights> {
    rights.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rights {
    pub(crate) fn new(
        me: u16,
        group: Group,
        (grants, control): (Grants, SessionControl),
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let sessions = vec![[None; 2]; group.geometry.replicas.into()];
        Self { me, group, grants, control, mailbox, sessions, changes: VecDeque::new() }
    }

    /// From another thread: has the serving thread change something. What becomes of it comes by mail.
    pub(crate) fn wants(&mut self, change: Change) {
        self.changes.push_back(change);
        self.control.wake();
    }

    /// On the serving thread: somebody wants to join. Of an earlier session of the same replica for the same plane nothing comes any more.
    pub(crate) fn joins(&mut self, call: &Call<'_>) -> Result<Vec<u8>, String> {
        let join = Join::parse(call.request)
            .map_err(|_| "this replica speaks another version; run the same release everywhere".to_owned())?;
        let from = usize::from(join.from);
        if join.group != self.group || join.from == self.me || from >= self.sessions.len() {
            return Err(format!(
                "this is replica {} of another group, or one that is divided otherwise; name the same members in the same order \
                 everywhere",
                self.me
            ));
        }
        if let Some(earlier) = self.sessions[from][join.plane as usize].replace(call.session)
            && earlier != call.session
        {
            self.grants.take_all(earlier);
            self.control.cut(earlier);
        }
        let mut keys = Vec::new();
        if join.plane == Plane::Background {
            for at in [request_at(from), grant_at(from)] {
                self.grants.take(at);
                let key = self.grants.give(call.session, at, 8);
                let key = key.ok_or("the device of this replica has no memory window left")?;
                keys.extend(key.to_le_bytes());
            }
        }
        self.mailbox.put(Mail::Joined { peer: from });
        Ok(keys)
    }

    /// On the serving thread: changes what is wanted.
    pub(crate) fn turn(&mut self) {
        while let Some(change) = self.changes.pop_front() {
            let zone = self.group.geometry.zone();
            self.grants.take(zone.start);
            let done = match change {
                Change::Revoke => Input::Revoked,
                Change::Allow { peer } => {
                    // If it has lost that one, it asks again.
                    if let Some(session) = self.sessions[peer][Plane::Replication as usize]
                        && self.control.is_live(session)
                        && let Some(key) = self.grants.give(session, zone.start, zone.end - zone.start)
                    {
                        // The window is bound in front of this.
                        self.control.notify(session, key.to_le_bytes().to_vec());
                    }
                    Input::Allowed { peer }
                }
            };
            self.mailbox.put(Mail::Happened(done));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_joins_says_who_it_is_and_of_which_group() {
        let geometry = Geometry { replicas: 3, slots: 64, slot: 256, window: 8, snapshot: 4096 };
        for plane in Plane::ALL {
            let join = Join { from: 2, plane, group: Group { geometry, salt: 0x1234_5678_9abc_def0 } };
            let bytes = join.emit();
            assert_eq!(Join::parse(&bytes), Ok(join));
            for len in 0..bytes.len() {
                assert!(Join::parse(&bytes[..len]).is_err(), "{len}");
            }
        }
        let join = Join { from: 0, plane: Plane::Background, group: Group { geometry, salt: 1 } };
        let mut other = join.emit();
        other[0] = VERSION + 1;
        assert!(Join::parse(&other).is_err());
    }
}
