//! Socket pairs between processes that share a port: what is sent on by them cannot be crowded out.
//!
//! Anybody may send to the name of a seat, and its queue has room for as few as ten messages (`net.unix.max_dgram_qlen`):
//! a stranger who sends without end keeps it full, and what is sent on meanwhile is lost. What he sends is told by the
//! kernel to be a stranger's, but only once it is received. So the first message that who sends on gets through to the name
//! has one end of a socket pair with it; the receiver, to whom the kernel says whose message that is, answers by a byte on
//! it, and from then on it is where the two meet. Its queue is theirs alone.
//!
//! Until it is answered, messages go to the name: a receiver of another version, or one who does not believe us, closes what
//! he was passed.
//!
//! **A pair outlives its name.** Whoever had the plain name of a slot could give it up and keep the pair, and would get
//! what is for the next holder. So a pair is for one socket, by the kernel's number of it, and is given up when the name is
//! seen to be another socket's ([`Roster::holder`](super::roster::Roster::holder)). Services have none, as nobody
//! looks at who has their names: what is for them is a request that its sender repeats.
//!
//! **A pair ends with either side.** Both are told of the other's end by the set of descriptors that they wait for, and close
//! theirs at once, whether or not there is anything to send.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::roster::Label;
use super::seat::Passed;
use crate::link::WaitFd;
use crate::sys::descriptor::Descriptor;
use crate::sys::event::Epoll;
use crate::sys::net;
use crate::sys::unix::{self, Arrived};
use crate::wait;

/// What the receiver says who has taken his end.
const ANSWER: &[u8] = b"+";

/// The most pairs that one process sends by, and that it receives by from those whom it believes. Each is a descriptor.
const MOST: usize = 64;
const MOST_INLETS: usize = 256;

/// A pair that was not used for so long gives way to another one.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes under way in one pair, as far as the kernel lets us: hundreds of small messages, or some ten of the longest.
const SEND_BUFFER: libc::c_int = 1 << 20;

/// The first token of those that send, by their slots, and of those that receive; what is below is the seat's own.
pub(super) const FIRST_OUTLET: u64 = 1 << 62;
pub(super) const FIRST_INLET: u64 = 1 << 63;

/// Whose pair it is: the label of the slot, and the socket that has it.
pub(super) type Holder = (Label, u64);

/// The ends that this process sends by.
#[derive(Debug, Default)]
pub(super) struct Outlets(HashMap<u8, Outlet>);

#[derive(Debug)]
struct Outlet {
    holder: Holder,
    /// Our end; `None`: he did not want the other one, or has no use for it any more.
    end: Option<Descriptor>,
    answered: bool,
    used: Instant,
}

impl Outlet {
    /// Closes our end, of which a forked child may have a copy.
    fn close(&mut self, news: &Epoll) {
        if let Some(end) = self.end.take() {
            news.remove(end.as_fd());
        }
    }
}

impl Outlets {
    /// Sends by the pair with `holder` of `slot`; `None` if there is none yet, or none any more.
    pub(super) fn send(
        &mut self,
        slot: u8,
        holder: Holder,
        [head, body]: [&[u8]; 2],
        news: &Epoll,
    ) -> Option<Passed> {
        let outlet = self.0.get_mut(&slot)?;
        if outlet.holder != holder {
            self.remove(slot, news);
            return None;
        }
        outlet.used = Instant::now();
        let end = outlet.end.as_ref()?.as_fd();
        if !outlet.answered {
            match unix::recv(end, &mut [0; ANSWER.len()]) {
                Ok(Arrived { len: 1.., .. }) => outlet.answered = true,
                Err(err) if matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return None;
                }
                Ok(_) | Err(_) => {
                    outlet.close(news);
                    return None;
                }
            }
        }
        match unix::send(end, head, body) {
            Ok(()) => Some(Passed::On),
            Err(err) if matches!(err.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)) => {
                Some(Passed::Full)
            }
            // He has gone. The name says whether somebody is there.
            Err(_) => {
                self.remove(slot, news);
                None
            }
        }
    }

    /// The other end of the pair `token` was closed, unless that is a pair which has gone meanwhile.
    pub(super) fn end(&mut self, token: u64, news: &Epoll) {
        let slot = u8::try_from(token - FIRST_OUTLET).ok();
        let Some(outlet) = slot.and_then(|slot| self.0.get_mut(&slot)) else { return };
        // Of one who still has his name no more is wanted than of one who did not want a pair: the entry says so.
        let has_ended = |end: &Descriptor| {
            wait::poll(&[WaitFd { fd: end.as_raw_fd(), events: 0 }], Some(Duration::ZERO)).unwrap_or(true)
        };
        if outlet.end.as_ref().is_some_and(has_ended) {
            outlet.close(news);
        }
    }

    fn remove(&mut self, slot: u8, news: &Epoll) {
        if let Some(mut outlet) = self.0.remove(&slot) {
            outlet.close(news);
        }
    }

    /// Makes a pair with `holder` of `slot`, unless there is one, and has `pass` hand him his end with a message; `None`: there
    /// is no end to hand over, or none can be handed over now.
    pub(super) fn introduce(
        &mut self,
        slot: u8,
        holder: Holder,
        news: &Epoll,
        pass: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Option<Passed> {
        if self.0.contains_key(&slot) {
            return None;
        }
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, outlet)| outlet.used);
            match oldest.filter(|(_, outlet)| outlet.used.elapsed() >= IDLE).map(|(slot, _)| *slot) {
                Some(idle) => self.remove(idle, news),
                None => return None,
            }
        }
        let (ours, theirs) = unix::pair().ok()?;
        let _ = net::set_option(ours.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
            .or_else(|_| net::set_option(ours.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER));
        news.add_for_end(ours.as_fd(), FIRST_OUTLET | u64::from(slot)).ok()?;
        let mut outlet = Outlet { holder, end: Some(ours), answered: false, used: Instant::now() };
        let passed = Passed::of(pass(theirs.as_fd()));
        if passed == Passed::On {
            self.0.insert(slot, outlet);
        } else {
            outlet.close(news);
        }
        // The kernel bounds how many descriptors of one user may be under way.
        (passed != Passed::Lost).then_some(passed)
    }
}

/// The ends that this process receives by.
#[derive(Debug, Default)]
pub(super) struct Inlets {
    next: u64,
    by_token: HashMap<u64, Descriptor>,
}

impl Inlets {
    /// Takes what somebody passed to us whom we believe, has `news` watch it, and answers.
    pub(super) fn admit(&mut self, end: Descriptor, news: &Epoll) {
        if self.by_token.len() >= MOST_INLETS {
            return;
        }
        let token = FIRST_INLET | self.next;
        self.next += 1;
        if news.add(end.as_fd(), token).is_ok() {
            if unix::send(end.as_fd(), ANSWER, &[]).is_ok() {
                self.by_token.insert(token, end);
            } else {
                news.remove(end.as_fd());
            }
        }
    }

    /// One message from the pair `token`: its length in `buffer`, unless it is too long to be one. `None`: empty, or gone.
    pub(super) fn receive(&mut self, token: u64, buffer: &mut [u8], news: &Epoll) -> Option<Option<usize>> {
        match unix::recv(self.by_token.get(&token)?.as_fd(), buffer) {
            Ok(Arrived { len: len @ 1.., cut, .. }) => Some((!cut).then_some(len)),
            Err(err) if matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
            // Its sender has gone. A forked child may have a copy of our end.
            Ok(_) | Err(_) => {
                if let Some(end) = self.by_token.remove(&token) {
                    news.remove(end.as_fd());
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u8 = 7;
    const FIRST: Holder = (Label::Plain, 1);

    /// One who sends, one who receives, and what each of them waits for.
    struct World {
        outlets: Outlets,
        inlets: Inlets,
        sender: Epoll,
        receiver: Epoll,
    }

    impl World {
        fn new() -> Self {
            let news = || Epoll::new().expect("a set");
            Self { outlets: Outlets::default(), inlets: Inlets::default(), sender: news(), receiver: news() }
        }

        /// Introduces the one who sends to `holder`; what he was passed.
        fn passed(&mut self, slot: u8, holder: Holder) -> Option<Descriptor> {
            let mut passed = None;
            let told = self.outlets.introduce(slot, holder, &self.sender, |end| {
                passed = Some(end.try_clone_to_owned()?.into());
                Ok(())
            });
            assert_eq!(told, passed.as_ref().map(|_| Passed::On));
            passed
        }

        /// And he accepts it.
        fn meet(&mut self, slot: u8, holder: Holder) {
            let end = self.passed(slot, holder).expect("a pair");
            self.inlets.admit(end, &self.receiver);
        }

        fn send(&mut self, holder: Holder, body: &[u8]) -> Option<Passed> {
            self.outlets.send(SLOT, holder, [b"a", body], &self.sender)
        }

        fn read(&mut self, token: u64) -> Option<Option<Vec<u8>>> {
            let mut buffer = [0; 8];
            let received = self.inlets.receive(token, &mut buffer, &self.receiver);
            received.map(|len| len.map(|len| buffer[..len].to_vec()))
        }

        fn has_outlet(&self, slot: u8) -> bool {
            self.outlets.0.get(&slot).is_some_and(|outlet| outlet.end.is_some())
        }
    }

    fn news(of: &Epoll) -> Vec<u64> {
        of.ready().expect("a set").collect()
    }

    #[test]
    fn a_pair_is_used_once_it_was_answered() {
        let mut world = World::new();
        assert_eq!(world.send(FIRST, b"b"), None, "there is none");
        for (error, told) in [
            (libc::EAGAIN, Some(Passed::Full)),
            (libc::ECONNREFUSED, Some(Passed::NoSuchOwner)),
            (libc::ETOOMANYREFS, None),
        ] {
            let fail = |_: BorrowedFd<'_>| Err(io::Error::from_raw_os_error(error));
            assert_eq!(world.outlets.introduce(SLOT, FIRST, &world.sender, fail), told);
        }
        let end = world.passed(SLOT, FIRST).expect("it is tried again");
        assert!(world.passed(SLOT, FIRST).is_none(), "and once is enough");
        assert_eq!(world.send(FIRST, b"b"), None, "no answer yet");
        world.inlets.admit(end, &world.receiver);
        assert_eq!(world.send(FIRST, b"b"), Some(Passed::On));
        assert_eq!(world.send(FIRST, b"ar too long"), Some(Passed::On));
        assert_eq!(news(&world.receiver), [FIRST_INLET]);
        assert_eq!(world.read(FIRST_INLET), Some(Some(b"ab".to_vec())));
        assert_eq!(world.read(FIRST_INLET), Some(None));
        assert_eq!(world.read(FIRST_INLET), None);
        assert!(world.inlets.by_token.contains_key(&FIRST_INLET), "only empty");
        assert!(news(&world.receiver).is_empty() && news(&world.sender).is_empty());
    }

    /// Each side is told, and what a forked child has of the other's end does not tell it again and again.
    #[test]
    fn a_pair_ends_with_either_side() {
        let mut world = World::new();
        world.meet(SLOT, FIRST);
        let kept = world.inlets.by_token[&FIRST_INLET].try_clone().expect("a copy");
        assert_eq!(world.send(FIRST, b"b"), Some(Passed::On));
        world.outlets = Outlets::default();
        assert_eq!(news(&world.receiver), [FIRST_INLET]);
        assert_eq!(world.read(FIRST_INLET), Some(Some(b"ab".to_vec())), "what was sent before is there");
        assert_eq!(world.read(FIRST_INLET), None);
        assert!(world.inlets.by_token.is_empty() && news(&world.receiver).is_empty());
        drop(kept);
        world.meet(SLOT, FIRST);
        assert_eq!(world.send(FIRST, b"b"), Some(Passed::On));
        let token = FIRST_OUTLET | u64::from(SLOT);
        world.outlets.end(token, &world.sender);
        assert!(world.has_outlet(SLOT), "the news was of another pair");
        let copy = |end: &Descriptor| end.try_clone().expect("a copy");
        let kept = world.outlets.0[&SLOT].end.as_ref().map(copy).expect("ours");
        world.inlets = Inlets::default();
        assert_eq!(news(&world.sender), [token]);
        world.outlets.end(token, &world.sender);
        assert!(!world.has_outlet(SLOT) && news(&world.sender).is_empty());
        drop(kept);
        // Who has the name still does not want one; whoever has it next may.
        assert_eq!(world.send(FIRST, b"b"), None);
        assert!(world.passed(SLOT, FIRST).is_none());
        let next = (Label::Plain, 2);
        assert_eq!(world.send(next, b"b"), None);
        world.meet(SLOT, next);
        // And who sends before he has read the news sends by the name.
        assert_eq!(world.send(next, b"b"), Some(Passed::On));
        world.inlets = Inlets::default();
        assert_eq!(world.send(next, b"b"), None);
        assert!(news(&world.sender).is_empty());
    }

    #[test]
    fn who_does_not_want_a_pair_is_asked_once() {
        let mut world = World::new();
        drop(world.passed(SLOT, FIRST).expect("a pair"));
        for _ in 0..2 {
            assert_eq!(world.send(FIRST, b"b"), None);
            assert!(world.passed(SLOT, FIRST).is_none());
            assert!(news(&world.sender).is_empty() && !world.has_outlet(SLOT));
        }
    }

    /// He who had the name may keep the pair for as long as he likes.
    #[test]
    fn a_pair_ends_with_who_had_the_name() {
        let mut world = World::new();
        world.meet(SLOT, FIRST);
        assert_eq!(world.send(FIRST, b"b"), Some(Passed::On));
        let next = (Label::Plain, 2);
        assert_eq!(world.send(next, b"d"), None);
        assert!(world.passed(SLOT, next).is_some());
        assert_eq!(world.read(FIRST_INLET), Some(Some(b"ab".to_vec())));
        assert_eq!(world.read(FIRST_INLET), None);
        assert!(world.inlets.by_token.is_empty());
    }

    #[test]
    fn pairs_are_few_and_one_in_use_does_not_give_way() {
        let mut world = World::new();
        let slots = 0..u8::try_from(MOST).expect("fewer than slots");
        let _ends: Vec<_> = slots.map(|slot| world.passed(slot, FIRST).expect("room")).collect();
        assert!(world.passed(200, FIRST).is_none());
        world.outlets.0.get_mut(&5).expect("there").used -= IDLE;
        assert!(world.passed(200, FIRST).is_some());
        assert!(!world.outlets.0.contains_key(&5) && world.outlets.0.len() == MOST);
        let others: Vec<_> = (0..MOST_INLETS + 3).map(|_| unix::pair().expect("a pair")).collect();
        let (_others, ends): (Vec<_>, Vec<_>) = others.into_iter().unzip();
        ends.into_iter().for_each(|end| world.inlets.admit(end, &world.receiver));
        assert_eq!(world.inlets.by_token.len(), MOST_INLETS);
    }
}
