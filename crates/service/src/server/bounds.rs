//! How much a server lets its clients have: sessions in all, sessions of one address, bytes of memory.
//!
//! A [`Permit`] is taken before anything is done for a session, and nothing of one can be made without it. It is given back
//! when it is dropped, which is after all that it stands for: the session's QP and its memory.
//!
//! Anybody can ask for a connection and never say more, under any address that packets are taken from: such a session is *half open*, for
//! as long as the connection manager repeats its reply. It has a permit, as the client may send as soon as it knows; but where there is none for the
//! next who comes, the oldest that is half open gives its permit up: one of the same address first, so that whoever asks without end
//! is in its own way. Sessions whose clients have said something never do.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::SessionId;

/// How long a half-open session has its permit, whoever comes. A client that is there has said so by then, and is not pushed out by others,
/// however fast they come: these are refused.
const KEPT: Duration = Duration::from_millis(50);
/// How long the end of a session is waited for that has to give its permit up. The serving thread needs a turn for it.
const PATIENCE: Duration = Duration::from_secs(5);

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
    #[error("it has as many sessions as it takes from one address; end one, or try again later")]
    Address,
    /// Their buffers have as many bytes as they may have, or the device has no room for more completions.
    #[error("it has as many sessions as its memory allows; try again later")]
    Memory,
}

/// Counts what is taken.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    taken: Mutex<Taken>,
    /// A permit was given back.
    freed: Condvar,
}

struct HalfOpen {
    address: IpAddr,
    session: SessionId,
    since: Instant,
    /// Whether its client has not said anything yet, as the connection manager knows it.
    is_silent: Box<dyn Fn() -> bool + Send>,
}

impl fmt::Debug for HalfOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HalfOpen").field(&self.address).field(&self.session).finish()
    }
}

#[derive(Debug)]
struct Taken {
    bounds: Bounds,
    /// Indices below `next` that nobody has.
    free: BTreeSet<u32>,
    next: u32,
    by_address: HashMap<IpAddr, u32>,
    /// Those that were half open when they were looked at last, by the numbers of their permits, the oldest first; and these by address.
    half_open: BTreeMap<u64, HalfOpen>,
    half_open_of: BTreeSet<(IpAddr, u64)>,
    /// The number of the next permit.
    number: u64,
    bytes: u64,
    /// Completions that there may be at once, and the most that the device takes.
    completions: u32,
    completions_max: u32,
}

/// A session's share of the bounds, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    permits: Permits,
    index: u32,
    /// Which of all that ever were.
    number: u64,
    address: IpAddr,
    bytes: u64,
    completions: u32,
}

impl Permits {
    pub(crate) fn new(bounds: Bounds, completions_max: u32) -> Self {
        let (free, by_address) = (BTreeSet::new(), HashMap::new());
        let (next, bytes, completions) = (0, 0, 0);
        let (half_open, half_open_of, number) = Default::default();
        let taken = Taken {
            bounds,
            free,
            next,
            by_address,
            half_open,
            half_open_of,
            number,
            bytes,
            completions,
            completions_max,
        };
        Self(Arc::new(Counted { taken: Mutex::new(taken), freed: Condvar::new() }))
    }

    /// The counts are whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What somebody at that address needs to [take](Claim::take) a permit. `end` ends a session.
    pub(crate) fn claim<'a>(&'a self, address: IpAddr, end: &'a dyn Fn(SessionId)) -> Claim<'a> {
        Claim { permits: self, address, end }
    }

    /// Bytes of buffers that are taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }
}

impl Taken {
    /// Which bound is reached for that address.
    fn full(&self, address: IpAddr) -> Option<Full> {
        if self.by_address.get(&address).is_some_and(|&count| count >= self.bounds.each) {
            return Some(Full::Address);
        }
        (self.free.is_empty() && self.next >= self.bounds.sessions).then_some(Full::Sessions)
    }

    /// The half-open session that has to make room for somebody at that address: none of those that have just come, as several clients of
    /// one host may come at once.
    fn oldest(&self, address: IpAddr, full: Full) -> Option<u64> {
        let own =
            self.half_open_of.range((address, 0)..=(address, u64::MAX)).next().map(|(_, number)| number);
        let all = if full == Full::Address { None } else { self.half_open.keys().next() };
        let is_old = |number: &&u64| self.half_open[*number].since.elapsed() >= KEPT;
        own.filter(is_old).or(all.filter(is_old)).copied()
    }

    /// It is not half open any more.
    fn settle(&mut self, number: u64) -> Option<HalfOpen> {
        let half_open = self.half_open.remove(&number)?;
        self.half_open_of.remove(&(half_open.address, number));
        Some(half_open)
    }
}

/// What is needed to take a permit of a server, once it is known that a session is wanted.
pub struct Claim<'a> {
    permits: &'a Permits,
    address: IpAddr,
    end: &'a dyn Fn(SessionId),
}

impl fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.address).finish()
    }
}

impl Claim<'_> {
    /// Takes a permit, the free one with the lowest index. Where there is none, a session is ended that is half open.
    ///
    /// # Errors
    /// The bound that is reached.
    pub fn take(self) -> Result<Permit, Full> {
        let Self { permits, address, end } = self;
        let mut taken = permits.lock();
        while let Some(full) = taken.full(address) {
            let oldest = taken.oldest(address, full).ok_or(full)?;
            let half_open = taken.settle(oldest).expect("it is there");
            // Nobody is asked, and nothing ended, under the lock.
            drop(taken);
            let is_silent = (half_open.is_silent)();
            if is_silent {
                end(half_open.session);
            }
            taken = permits.lock();
            if is_silent {
                let freed = &permits.0.freed;
                let waited = freed.wait_timeout_while(taken, PATIENCE, |taken| taken.full(address).is_some());
                taken = waited.unwrap_or_else(PoisonError::into_inner).0;
                if let Some(full) = taken.full(address) {
                    return Err(full);
                }
            }
        }
        let index = taken.free.pop_first().unwrap_or_else(|| {
            taken.next += 1;
            taken.next - 1
        });
        *taken.by_address.entry(address).or_default() += 1;
        taken.number += 1;
        Ok(Permit {
            permits: permits.clone(),
            index,
            number: taken.number,
            address,
            bytes: 0,
            completions: 0,
        })
    }
}

impl Permit {
    /// The session that has it was accepted, and is half open as long as that says so.
    pub(crate) fn is_half_open(&self, session: SessionId, is_silent: impl Fn() -> bool + Send + 'static) {
        let (address, since) = (self.address, Instant::now());
        let half_open = HalfOpen { address, session, since, is_silent: Box::new(is_silent) };
        let mut taken = self.permits.lock();
        taken.half_open.insert(self.number, half_open);
        taken.half_open_of.insert((address, self.number));
    }

    /// The client of the session that has it has said something.
    pub(crate) fn is_established(&self) {
        let settled = self.permits.lock().settle(self.number);
        drop(settled);
    }

    /// Which of the server's permits it is, below the number of sessions that there may be. Another session has the same only
    /// after this one is gone.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Takes so many bytes and completions more. Returns how many completions there may be in all.
    pub(crate) fn charge(&mut self, bytes: u64, completions: u32) -> Result<u32, Full> {
        let mut taken = self.permits.lock();
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

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.lock();
        let settled = taken.settle(self.number);
        taken.bytes -= self.bytes;
        taken.completions -= self.completions;
        taken.free.insert(self.index);
        if let Some(count) = taken.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&self.address);
            }
        }
        drop(taken);
        drop(settled);
        self.permits.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    impl Permits {
        /// Nobody is ended for it.
        fn take(&self, address: IpAddr) -> Result<Permit, Full> {
            self.claim(address, &|session| panic!("{session:?} ends")).take()
        }

        /// The one of these is ended for it that has to.
        fn take_from(
            &self,
            address: IpAddr,
            all: &RefCell<Vec<Option<Permit>>>,
        ) -> (Result<Permit, Full>, Option<u64>) {
            let ended = Cell::new(None);
            let end = |SessionId(session)| {
                ended.set(Some(session));
                all.borrow_mut()[session as usize] = None;
            };
            (self.claim(address, &end).take(), ended.get())
        }

        /// As long as half-open ones are kept, and longer.
        fn grow_old(&self) {
            for half_open in self.lock().half_open.values_mut() {
                half_open.since = Instant::now().checked_sub(2 * KEPT).expect("a time");
            }
        }

        /// As if the half-open session of that number had just come, however long the test takes.
        fn has_just_come(&self, session: u64) {
            for half_open in self.lock().half_open.values_mut().filter(|one| one.session.0 == session) {
                half_open.since = Instant::now() + Duration::from_secs(3600);
            }
        }
    }

    #[test]
    fn the_oldest_half_open_session_makes_room_one_of_the_same_address_first_and_no_other_does() {
        let permits = Permits::new(Bounds { sessions: 4, each: 3, bytes: 0 }, 0);
        let all: Vec<_> =
            [1, 2, 2, 2].iter().map(|&last| Some(permits.take(address(last)).expect("room"))).collect();
        for (session, permit) in all.iter().flatten().enumerate() {
            // The first of the second address has said something to the connection manager.
            permit.is_half_open(SessionId(session as u64), move || session != 1);
        }
        (0..4).for_each(|session| permits.has_just_come(session));
        // The second one, to its server.
        all[2].as_ref().expect("it is there").is_established();
        let all = RefCell::new(all);
        assert_eq!(permits.take(address(3)).map(drop), Err(Full::Sessions), "they have just come");
        assert_eq!(permits.take(address(2)).map(drop), Err(Full::Address));
        permits.grow_old();
        let (own, ended) = permits.take_from(address(2), &all);
        assert_eq!(ended, Some(3), "the only one of its address that is half open");
        let own = own.expect("room");
        assert_eq!(own.index(), 3, "the permit that was given up");
        assert_eq!(permits.take(address(2)).map(drop), Err(Full::Address), "its others are established");
        let (other, ended) = permits.take_from(address(3), &all);
        assert_eq!(ended, Some(0), "the oldest of all");
        let other = other.expect("room");
        assert_eq!(permits.take(address(4)).map(drop), Err(Full::Sessions), "nobody is half open");
        own.is_half_open(SessionId(9), || true);
        drop((own, other, all));
        let taken = permits.lock();
        assert!(taken.half_open.is_empty() && taken.half_open_of.is_empty() && taken.by_address.is_empty());
    }

    #[test]
    fn clients_of_one_address_that_come_at_once_are_not_in_each_other_s_way_while_strangers_fill_a_server() {
        let permits = Permits::new(Bounds { sessions: 3, each: 3, bytes: 0 }, 0);
        let all: Vec<_> =
            [1, 2, 3].iter().map(|&last| Some(permits.take(address(last)).expect("room"))).collect();
        for (session, permit) in all.iter().flatten().enumerate() {
            permit.is_half_open(SessionId(session as u64), || true);
        }
        permits.grow_old();
        let all = RefCell::new(all);
        let (first, ended) = permits.take_from(address(9), &all);
        assert_eq!(ended, Some(0), "the oldest of all");
        let first = first.expect("room");
        first.is_half_open(SessionId(9), || true);
        permits.has_just_come(9);
        let (second, ended) = permits.take_from(address(9), &all);
        assert_eq!(ended, Some(1), "the first of the two has just come");
        drop((first, second.expect("room"), all));
    }

    #[test]
    fn each_bound_holds_alone_and_a_place_that_goes_makes_room() {
        let permits = Permits::new(Bounds { sessions: 3, each: 2, bytes: 100 }, 50);
        let mut first = permits.take(address(1)).expect("room");
        let second = permits.take(address(1)).expect("room");
        assert_eq!(permits.take(address(1)).map(drop), Err(Full::Address));
        let mut third = permits.take(address(2)).expect("room for others");
        assert_eq!(permits.take(address(3)).map(drop), Err(Full::Sessions));
        assert_eq!((first.index(), second.index(), third.index()), (0, 1, 2));
        assert_eq!(first.charge(60, 10), Ok(10));
        assert_eq!(third.charge(41, 1), Err(Full::Memory));
        assert_eq!(third.charge(1, 41), Err(Full::Memory));
        assert_eq!(third.charge(40, 40), Ok(50));
        assert_eq!(permits.bytes(), 100);
        drop(first);
        assert_eq!(permits.bytes(), 40);
        let again = permits.take(address(1)).expect("room again");
        assert_eq!(again.index(), 0, "the lowest that is free");
        drop((second, third, again));
        let taken = permits.lock();
        assert!(
            taken.by_address.is_empty()
                && taken.free.len() == 3
                && (taken.bytes, taken.completions) == (0, 0)
        );
    }
}
