//! Socket pairs between processes that share a port: what is sent on by them cannot be crowded out.
//!
//! Anybody may send to the name of a seat, and its queue has room for as few as ten messages (`net.unix.max_dgram_qlen`):
//! a stranger who sends without end keeps it full, and what is sent on meanwhile is lost. What he sends is told by the
//! kernel to be a stranger's, but only once it is received. So who sends on passes one end of a socket pair to the name,
//! the *introduction*; the receiver, to whom the kernel says whose that is, answers by a byte on it, and from then on it is
//! where the two meet. Its queue is theirs alone.
//!
//! The introduction must pass the crowded queue once, and is tried with each message until it has. Until it is answered
//! the messages go there too: a receiver of another version, or one who does not believe us, closes what he was passed.
//!
//! **A pair outlives its name.** Whoever had the plain name of a slot could give it up and keep the pair, and would get
//! what is for the next holder. So a pair is for one socket, by the kernel's number of it, and is given up when the name is
//! seen to be another socket's ([`Roster::holder`](super::roster::Roster::holder)). Services have none, as nobody
//! looks at who has their names: what is for them is a request that its sender repeats.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::roster::Label;
use super::seat::Passed;
use crate::sys::descriptor::Descriptor;
use crate::sys::net;
use crate::sys::unix::{self, Arrived};

/// What an introduction says. No train begins so.
pub(super) const INTRODUCTION: &[u8] = b"RMP1";
/// And its answer.
const ANSWER: &[u8] = b"+";

/// The most pairs that one process sends by, and that it receives by from those whom it believes. Each is a descriptor.
const MOST: usize = 64;
const MOST_INLETS: usize = 256;

/// A pair that was not used for so long gives way to another one.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes under way in one pair, as far as the kernel lets us: hundreds of small messages, or some ten of the longest.
const SEND_BUFFER: libc::c_int = 1 << 20;

/// The first token of those that receive; what is below is the seat's own.
pub(super) const FIRST_INLET: u64 = 1 << 63;

/// Whose pair it is: the label of the slot, and the socket that has it.
pub(super) type Holder = (Label, u64);

/// The ends that this process sends by.
#[derive(Debug, Default)]
pub(super) struct Outlets(HashMap<u8, Outlet>);

#[derive(Debug)]
struct Outlet {
    holder: Holder,
    /// Our end; `None`: he did not want the other one.
    end: Option<Descriptor>,
    answered: bool,
    used: Instant,
}

impl Outlets {
    /// Sends by the pair with `holder` of `slot`; `None` if there is none yet, or none any more.
    pub(super) fn send(&mut self, slot: u8, holder: Holder, head: &[u8], body: &[u8]) -> Option<Passed> {
        let outlet = self.0.get_mut(&slot)?;
        if outlet.holder != holder {
            self.0.remove(&slot);
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
                    outlet.end = None;
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
                self.0.remove(&slot);
                None
            }
        }
    }

    /// Makes a pair with `holder` of `slot`, unless there is one, and has `pass` hand him his end.
    pub(super) fn introduce(
        &mut self,
        slot: u8,
        holder: Holder,
        pass: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) {
        if self.0.contains_key(&slot) {
            return;
        }
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, outlet)| outlet.used);
            match oldest.filter(|(_, outlet)| outlet.used.elapsed() >= IDLE).map(|(slot, _)| *slot) {
                Some(idle) => self.0.remove(&idle),
                None => return,
            };
        }
        let Ok((ours, theirs)) = unix::pair() else { return };
        let _ = net::set_option(ours.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
            .or_else(|_| net::set_option(ours.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER));
        if pass(theirs.as_fd()).is_ok() {
            let outlet = Outlet { holder, end: Some(ours), answered: false, used: Instant::now() };
            self.0.insert(slot, outlet);
        }
    }
}

/// The ends that this process receives by.
#[derive(Debug, Default)]
pub(super) struct Inlets {
    next: u64,
    by_token: HashMap<u64, Descriptor>,
}

impl Inlets {
    /// Takes what somebody passed to us whom we believe, has `watch` wait for it, and answers.
    pub(super) fn admit(
        &mut self,
        end: Descriptor,
        watch: impl FnOnce(BorrowedFd<'_>, u64) -> io::Result<()>,
    ) {
        if self.by_token.len() >= MOST_INLETS {
            return;
        }
        let token = FIRST_INLET | self.next;
        self.next += 1;
        if watch(end.as_fd(), token).and_then(|()| unix::send(end.as_fd(), ANSWER, &[])).is_ok() {
            self.by_token.insert(token, end);
        }
    }

    /// One message from the pair `token`: its length in `buffer`, unless it is too long to be one. `None`: empty, or gone.
    pub(super) fn receive(&mut self, token: u64, buffer: &mut [u8]) -> Option<Option<usize>> {
        match unix::recv(self.by_token.get(&token)?.as_fd(), buffer) {
            Ok(Arrived { len: len @ 1.., cut, .. }) => Some((!cut).then_some(len)),
            Err(err) if matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
            // Its sender has gone. Closing it takes it out of what is waited for.
            Ok(_) | Err(_) => {
                self.by_token.remove(&token);
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

    /// Introduces `outlets` to `holder`; what he was passed.
    fn passed(outlets: &mut Outlets, slot: u8, holder: Holder) -> Option<Descriptor> {
        let mut passed = None;
        outlets.introduce(slot, holder, |end| {
            passed = Some(end.try_clone_to_owned()?.into());
            Ok(())
        });
        passed
    }

    fn read(inlets: &mut Inlets, token: u64) -> Option<Option<Vec<u8>>> {
        let mut buffer = [0; 8];
        inlets.receive(token, &mut buffer).map(|len| len.map(|len| buffer[..len].to_vec()))
    }

    #[test]
    fn a_pair_is_used_once_it_was_answered_and_until_one_side_has_gone() {
        let (mut outlets, mut inlets) = (Outlets::default(), Inlets::default());
        assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), None, "there is none");
        outlets.introduce(SLOT, FIRST, |_| Err(io::ErrorKind::WouldBlock.into()));
        let end = passed(&mut outlets, SLOT, FIRST).expect("it is tried again");
        assert!(passed(&mut outlets, SLOT, FIRST).is_none(), "and once is enough");
        assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), None, "no answer yet");
        inlets.admit(end, |_, _| Ok(()));
        assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), Some(Passed::On));
        assert_eq!(outlets.send(SLOT, FIRST, b"far too long", b""), Some(Passed::On));
        assert_eq!(read(&mut inlets, FIRST_INLET), Some(Some(b"ab".to_vec())));
        assert_eq!(read(&mut inlets, FIRST_INLET), Some(None));
        assert_eq!(read(&mut inlets, FIRST_INLET), None);
        assert!(inlets.by_token.contains_key(&FIRST_INLET), "only empty");
        drop(outlets);
        assert_eq!(read(&mut inlets, FIRST_INLET), None);
        assert!(inlets.by_token.is_empty());
        let mut outlets = Outlets::default();
        inlets.admit(passed(&mut outlets, SLOT, FIRST).expect("another"), |_, _| Ok(()));
        assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), Some(Passed::On));
        drop(inlets);
        assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), None);
        assert!(passed(&mut outlets, SLOT, FIRST).is_some(), "somebody may have come again");
    }

    #[test]
    fn who_does_not_want_a_pair_is_asked_once() {
        let mut outlets = Outlets::default();
        drop(passed(&mut outlets, SLOT, FIRST).expect("a pair"));
        for _ in 0..2 {
            assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), None);
            assert!(passed(&mut outlets, SLOT, FIRST).is_none());
        }
    }

    /// He who had the name may keep the pair for as long as he likes.
    #[test]
    fn a_pair_ends_with_who_had_the_name() {
        let (mut outlets, mut inlets) = (Outlets::default(), Inlets::default());
        inlets.admit(passed(&mut outlets, SLOT, FIRST).expect("a pair"), |_, _| Ok(()));
        assert_eq!(outlets.send(SLOT, FIRST, b"a", b"b"), Some(Passed::On));
        let next = (Label::Plain, 2);
        assert_eq!(outlets.send(SLOT, next, b"c", b"d"), None);
        assert!(passed(&mut outlets, SLOT, next).is_some());
        assert_eq!(read(&mut inlets, FIRST_INLET), Some(Some(b"ab".to_vec())));
        assert_eq!(read(&mut inlets, FIRST_INLET), None);
        assert!(inlets.by_token.is_empty());
    }

    #[test]
    fn pairs_are_few_and_one_in_use_does_not_give_way() {
        let mut outlets = Outlets::default();
        let slots = 0..u8::try_from(MOST).expect("fewer than slots");
        let _ends: Vec<_> = slots.map(|slot| passed(&mut outlets, slot, FIRST).expect("room")).collect();
        assert!(passed(&mut outlets, 200, FIRST).is_none());
        outlets.0.get_mut(&5).expect("there").used -= IDLE;
        assert!(passed(&mut outlets, 200, FIRST).is_some());
        assert!(!outlets.0.contains_key(&5) && outlets.0.len() == MOST);
        let mut inlets = Inlets::default();
        let others: Vec<_> = (0..MOST_INLETS + 3).map(|_| unix::pair().expect("a pair")).collect();
        let (_others, ends): (Vec<_>, Vec<_>) = others.into_iter().unzip();
        ends.into_iter().for_each(|end| inlets.admit(end, |_, _| Ok(())));
        assert_eq!(inlets.by_token.len(), MOST_INLETS);
    }
}
