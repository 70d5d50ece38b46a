//! How much a server lets its clients have: sessions in all, sessions of one address, bytes of memory.
//!
//! A [`Place`] is taken before anything is done for a session, and nothing of one can be made without it. It is given back
//! when it is dropped, which is after all that it stands for: the session's QP and its memory.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bounds of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Sessions at a time.
    pub sessions: u32,
    /// Sessions at a time that come from one address.
    pub each: u32,
    /// Bytes of message buffers that the server makes for all sessions together.
    pub bytes: u64,
}

/// Which bound is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// There are as many sessions as there may be.
    #[error("it has as many sessions as it takes; try again later")]
    Sessions,
    /// As many as there may be come from this address.
    #[error("it has as many sessions of your address as it takes; end one, or try again later")]
    Address,
    /// Their buffers have as many bytes as they may have, or the device has no room for more completions.
    #[error("it has as many sessions as its memory allows; try again later")]
    Memory,
}

/// Counts what is taken.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    bounds: Bounds,
    /// Indices below `next` that nobody has.
    free: BTreeSet<u32>,
    next: u32,
    by_address: HashMap<IpAddr, u32>,
    bytes: u64,
    /// Completions that there may be at once, and the most that the device takes.
    completions: u32,
    completions_max: u32,
}

/// A session's share of the bounds, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    index: u32,
    address: IpAddr,
    bytes: u64,
    completions: u32,
}

impl Places {
    pub(crate) fn new(bounds: Bounds, completions_max: u32) -> Self {
        let (free, by_address) = (BTreeSet::new(), HashMap::new());
        let (next, bytes, completions) = (0, 0, 0);
        let taken = Taken { bounds, free, next, by_address, bytes, completions, completions_max };
        Self(Arc::new(Mutex::new(taken)))
    }

    /// The counts are whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a session from that address, with the lowest index that is free.
    pub(crate) fn take(&self, address: IpAddr) -> Result<Place, Full> {
        let mut taken = self.lock();
        let of_address = taken.by_address.get(&address).copied().unwrap_or(0);
        if of_address >= taken.bounds.each {
            return Err(Full::Address);
        }
        let index = match taken.free.pop_first() {
            Some(index) => index,
            None if taken.next < taken.bounds.sessions => {
                taken.next += 1;
                taken.next - 1
            }
            None => return Err(Full::Sessions),
        };
        taken.by_address.insert(address, of_address + 1);
        Ok(Place { places: self.clone(), index, address, bytes: 0, completions: 0 })
    }

    /// Bytes of buffers that are taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }
}

impl Place {
    /// Which of the server's places it is, below the number of sessions that there may be. Another session has the same only
    /// after this one is gone.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Takes so many bytes and completions more. Returns how many completions there may be in all.
    pub(crate) fn charge(&mut self, bytes: u64, completions: u32) -> Result<u32, Full> {
        let mut taken = self.places.lock();
        let has_room = bytes <= taken.bounds.bytes - taken.bytes
            && completions <= taken.completions_max - taken.completions;
        if !has_room {
            return Err(Full::Memory);
        }
        taken.bytes += bytes;
        taken.completions += completions;
        self.bytes += bytes;
        self.completions += completions;
        Ok(taken.completions)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.bytes -= self.bytes;
        taken.completions -= self.completions;
        taken.free.insert(self.index);
        if let Some(count) = taken.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn each_bound_holds_alone_and_a_place_that_goes_makes_room() {
        let places = Places::new(Bounds { sessions: 3, each: 2, bytes: 100 }, 50);
        let mut first = places.take(address(1)).expect("room");
        let second = places.take(address(1)).expect("room");
        assert_eq!(places.take(address(1)).map(drop), Err(Full::Address));
        let mut third = places.take(address(2)).expect("room for others");
        assert_eq!(places.take(address(3)).map(drop), Err(Full::Sessions));
        assert_eq!((first.index(), second.index(), third.index()), (0, 1, 2));
        assert_eq!(first.charge(60, 10), Ok(10));
        assert_eq!(third.charge(41, 1), Err(Full::Memory));
        assert_eq!(third.charge(1, 41), Err(Full::Memory));
        assert_eq!(third.charge(40, 40), Ok(50));
        assert_eq!(places.bytes(), 100);
        drop(first);
        assert_eq!(places.bytes(), 40);
        let again = places.take(address(1)).expect("room again");
        assert_eq!(again.index(), 0, "the lowest that is free");
        drop((second, third, again));
        let taken = places.lock();
        assert!(
            taken.by_address.is_empty()
                && taken.free.len() == 3
                && (taken.bytes, taken.completions) == (0, 0)
        );
    }
}
