//! Those who are connected and have proved nothing yet: how many may wait, and who has to go for the next one.
//!
//! Nobody is turned away because others wait: who comes in when there are too many takes the place of somebody who had
//! time to prove that it has the token, the one that has waited longest of the address that has most waiting. So a crowd
//! from one address drives out its own, and who needs no longer than a few round trips is let in whatever others do.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// Bounds of a crowd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// How many may be there at once, from all addresses together.
    pub most: usize,
    /// From one address.
    pub each: usize,
    /// How long one may wait.
    pub patience: Duration,
}

/// Who waits, the oldest first. `Id` names a connection.
#[derive(Debug)]
pub struct Crowd<Id> {
    room: Room,
    waiting: VecDeque<Stranger<Id>>,
}

#[derive(Debug)]
struct Stranger<Id> {
    id: Id,
    from: IpAddr,
    since: Duration,
}

impl<Id: Copy + PartialEq> Crowd<Id> {
    /// A crowd in which nobody waits.
    #[must_use]
    pub const fn new(room: Room) -> Self {
        Self { room, waiting: VecDeque::new() }
    }

    /// Somebody comes. Returns who has to go for it; the caller ends that connection.
    pub fn enter(&mut self, now: Duration, id: Id, from: IpAddr) -> Option<Id> {
        let goes = self.too_many(from).and_then(|from| self.remove_first(|one| one.from == from));
        self.waiting.push_back(Stranger { id, from, since: now });
        goes
    }

    /// Somebody proved that it has the token, or is gone.
    pub fn leave(&mut self, id: Id) {
        let _ = self.remove_first(|one| one.id == id);
    }

    /// Those whose time is over; they stay here until they [`leave`](Self::leave).
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = Id> {
        let patience = self.room.patience;
        self.waiting.iter().take_while(move |one| now.saturating_sub(one.since) >= patience).map(|one| one.id)
    }

    /// When the time of the first of them is over.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.waiting.front().map(|one| one.since + self.room.patience)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The address of which one has to go, if one from `next` comes.
    fn too_many(&self, next: IpAddr) -> Option<IpAddr> {
        if self.waiting.iter().filter(|one| one.from == next).count() >= self.room.each {
            return Some(next);
        }
        if self.waiting.len() < self.room.most {
            return None;
        }
        let mut count: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.waiting.iter().for_each(|one| *count.entry(one.from).or_default() += 1);
        let most = count.values().max().copied()?;
        self.waiting.iter().map(|one| one.from).find(|from| count[from] == most)
    }

    fn remove_first(&mut self, which: impl Fn(&Stranger<Id>) -> bool) -> Option<Id> {
        let at = self.waiting.iter().position(which)?;
        self.waiting.remove(at).map(|one| one.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { most: 6, each: 4, patience: Duration::from_secs(10) };

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_crowd_from_one_address_drives_out_its_own() {
        let mut crowd = Crowd::new(ROOM);
        assert_eq!(crowd.enter(at(0), 1000, address(2)), None);
        let gone: Vec<_> = (0..100).filter_map(|n| crowd.enter(at(0), n, address(9))).collect();
        assert_eq!(gone, (0..96).collect::<Vec<_>>());
        assert_eq!(crowd.enter(at(0), 1001, address(2)), None, "there is room for others");
        assert_eq!(crowd.len(), 6);
        // There is none in the whole: of those who are many the one that waited longest goes.
        assert_eq!(crowd.enter(at(0), 1002, address(3)), Some(96));
    }

    #[test]
    fn of_as_many_addresses_as_strangers_the_one_that_waited_longest_goes() {
        let mut crowd = Crowd::new(ROOM);
        let gone: Vec<_> = (0..50).filter_map(|n| crowd.enter(at(0), n, address(n))).collect();
        assert_eq!(gone, (0..44).collect::<Vec<_>>());
    }

    #[test]
    fn who_waits_too_long_is_named_and_who_leaves_makes_room() {
        let mut crowd = Crowd::new(ROOM);
        (0..4_u64).for_each(|n| assert_eq!(crowd.enter(at(n), n, address(1)), None));
        assert_eq!(crowd.deadline(), Some(at(10)));
        assert_eq!(crowd.expired(at(11)).collect::<Vec<_>>(), [0, 1]);
        crowd.leave(0);
        assert_eq!(crowd.deadline(), Some(at(11)));
        crowd.leave(77);
        assert_eq!(crowd.enter(at(11), 5, address(1)), None);
        assert_eq!(crowd.enter(at(11), 6, address(1)), Some(1));
        (0..9).for_each(|n| crowd.leave(n));
        assert!(crowd.is_empty() && crowd.expired(at(99)).next().is_none());
    }
}
