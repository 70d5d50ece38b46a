//! A process's place among those that share a port: its slot, and the services it listens for.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::board::Board;
use super::message::{self, HEADER_LEN};
use super::names::Names;
use super::pairs::{FIRST_INLET, FIRST_OUTLET, Holder, Inlets, Outlets};
use super::roster::{LEASE, Label, Rank, Roster, SHUT_LEASE, Viewer, Way};
use super::{Owner, SLOTS, SteerRule};
use crate::sys::descriptor::Descriptor;
use crate::sys::event::{Epoll, Timer};
use crate::sys::net;
use crate::sys::unix::{self, Arrived, Name};
use crate::train::Train;

/// The QP number of multicast, which nobody can have.
const MULTICAST_QPN: u32 = 0x00FF_FFFF;

/// A slot of the host's QP number space, held until the last clone is dropped (or the process ends, in whatever
/// way).
///
/// Like every descriptor, it is inherited by a child that forks without executing; the slot is free when that child
/// has ended too, or called [`abandon_inherited`](crate::abandon_inherited). The sockets of a link behave the same.
#[derive(Clone)]
pub struct Seat(Arc<Inner>);

struct Inner {
    slot: u8,
    /// Whoever has the port sends on to this seat, whichever user's he is.
    counts_everywhere: bool,
    incarnation: u64,
    /// What was seen of the names of all slots; `None` where the kernel does not say whose a name is.
    seen: Option<Mutex<Seen>>,
    rule: SteerRule,
    board: RwLock<Arc<Board>>,
    /// The holder of the slot's name. Receives what others send on.
    socket: Descriptor,
    /// All that can bring news beside the UDP sockets: `socket`, the services' sockets, the timer.
    news: Epoll,
    timer: Timer,
    listeners: Mutex<Listeners>,
    /// The ends of socket pairs by which this process sends on to others, and they to it.
    outlets: Mutex<Outlets>,
    inlets: Mutex<Inlets>,
}

/// The last look at the names of all slots.
struct Seen {
    names: Names,
    viewer: Viewer,
    roster: Roster,
    /// When that look began.
    since: Instant,
}

impl Seen {
    /// Looks, or says that the kernel cannot tell.
    fn first() -> io::Result<Self> {
        let (mut names, viewer, since) = (Names::open()?, Viewer::here(), Instant::now());
        let roster = Roster::look(&mut names, &viewer, None, None)?;
        Ok(Self { names, viewer, roster, since })
    }

    /// Looks again. Should the kernel not answer, what was seen last stays, and is asked for again in its time.
    fn again(&mut self) {
        self.since = Instant::now();
        if let Ok(roster) = Roster::look(&mut self.names, &self.viewer, Some(&self.roster), None) {
            self.roster = roster;
        }
    }
}

/// A slot that was taken, and has no seat yet.
struct Taken {
    slot: u8,
    label: Label,
    socket: Descriptor,
    counts_everywhere: bool,
}

#[derive(Default)]
struct Listeners {
    next_token: u64,
    by_token: HashMap<u64, (Service, Descriptor)>,
}

/// A service, at one of this host's addresses or at all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Service {
    id: u64,
    addr: Option<IpAddr>,
}

/// What another process sent us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) train: Train<'a>,
    /// It says nothing of the kernel's choice among us: its sender preferred this way.
    pub(crate) chosen: bool,
}

/// Which channel of a seat has news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    Timer,
    /// Datagrams that others sent on, at the slot or at a service.
    Datagrams(u64),
}

/// Bytes under way to others, as far as the kernel lets us.
const SEND_BUFFER: libc::c_int = 8 << 20;

/// The channel of the slot.
const SLOT_CHANNEL: u64 = 0;
const TIMER_TOKEN: u64 = 1;
const FIRST_LISTENER_TOKEN: u64 = 2;

impl Seat {
    /// Takes a slot that is free, or that only somebody has who may not.
    ///
    /// # Errors
    /// `AddrInUse` when all slots are taken, or what the kernel says.
    pub fn claim(rule: SteerRule) -> io::Result<Self> {
        // Starting anywhere, a restarted process rarely gets the numbers that peers still associate with its
        // previous life.
        let first = net::random_u64() as u8;
        let slots = || (0..SLOTS).map(|i| first.wrapping_add(i as u8));
        let Ok(mut seen) = Seen::first() else {
            for slot in slots() {
                if let Some(socket) = bind(slot, Label::Plain)? {
                    let taken = Taken { slot, label: Label::Plain, socket, counts_everywhere: true };
                    return Self::sit(taken, None, rule);
                }
            }
            return Err(all_taken());
        };
        // Names may change hands while we look for one.
        for _ in 0..ROUNDS {
            for rank in Rank::ALL {
                for slot in slots() {
                    if seen.roster.offer(&seen.viewer, slot) != Some(rank) {
                        continue;
                    }
                    if let Some(taken) = seen.take(slot, rank)? {
                        return Self::sit(taken, Some(seen), rule);
                    }
                }
            }
            seen.again();
        }
        Err(all_taken())
    }

    fn sit(taken: Taken, seen: Option<Seen>, rule: SteerRule) -> io::Result<Self> {
        let Taken { slot, label, socket, counts_everywhere } = taken;
        let seen = seen.map(Mutex::new);
        let (news, timer) = (Epoll::new()?, Timer::new()?);
        // A full queue at one of the others must not use up what we may have under way to the rest.
        let _ = net::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
            .or_else(|_| net::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER));
        news.add(socket.as_fd(), SLOT_CHANNEL)?;
        news.add(timer.as_fd(), TIMER_TOKEN)?;
        let board = Arc::new(Board::open()?);
        // Who beholds the board finds the name by it.
        let incarnation = match label {
            Label::Plain => net::random_u64() | 1,
            Label::Beside(number) => number,
        };
        board.take(slot, incarnation);
        let listeners = Mutex::new(Listeners { next_token: FIRST_LISTENER_TOKEN, ..Listeners::default() });
        let board = RwLock::new(board);
        Ok(Self(Arc::new(Inner {
            slot,
            counts_everywhere,
            incarnation,
            seen,
            rule,
            board,
            socket,
            news,
            timer,
            listeners,
            outlets: Mutex::default(),
            inlets: Mutex::default(),
        })))
    }

    /// Whether processes of other users would send on to this seat. Root's can be told from anybody's; another user's
    /// are believed in a quarter of all slots, and beyond that have only the addresses whose port is their user's.
    pub(crate) fn counts_everywhere(&self) -> bool {
        self.0.counts_everywhere
    }

    /// The slot: the top byte of the QP numbers and of the communication ids that this process may give out.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.0.slot
    }

    /// Whether a process of this host has the slot to which a QP number belongs.
    #[must_use]
    pub fn is_taken(qpn: u32) -> bool {
        let slot = (qpn >> 16) as u8;
        match Seen::first() {
            Ok(seen) => seen.roster.is_held(slot),
            Err(_) => unix::bind(&Label::Plain.name(slot)).is_err(),
        }
    }

    /// The QP numbers that this process may give out. Never 0, 1 (the special QPs) or 0xFFFFFF (multicast).
    #[must_use]
    pub fn qpns(&self) -> Range<u32> {
        let first = u32::from(self.0.slot) << 16;
        first.max(2)..(first + (1 << 16)).min(MULTICAST_QPN)
    }

    /// Listens for `service` at one address or at all: requests for it that reach any process of this host will come
    /// here.
    ///
    /// # Errors
    /// `AddrInUse` when some process of this host already listens for it there.
    pub fn listen(&self, service: u64, addr: Option<IpAddr>) -> io::Result<Listening> {
        let service = Service { id: service, addr };
        let socket = unix::bind(&service.name()).map_err(|err| match err.kind() {
            io::ErrorKind::AddrInUse => {
                io::Error::new(err.kind(), format!("a process of this host already listens for {service}"))
            }
            _ => err,
        })?;
        let mut listeners = self.listeners();
        let token = listeners.next_token;
        listeners.next_token += 1;
        self.0.news.add(socket.as_fd(), token)?;
        listeners.by_token.insert(token, (service, socket));
        drop(listeners);
        let board = self.board();
        board.add_service(self.0.slot, service.id);
        // So that the link puts it into the steering.
        board.ring(self.0.slot);
        Ok(Listening { seat: self.clone(), token })
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        // Nothing under this lock can panic half-way.
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rule(&self) -> &SteerRule {
        &self.0.rule
    }

    /// The board as it was when last looked at.
    pub(crate) fn board(&self) -> Arc<Board> {
        self.0.board.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Moves to the board that others use now, if that is another one.
    pub(crate) fn find_board(&self) -> io::Result<()> {
        let old = self.board();
        if old.is_current() {
            return Ok(());
        }
        let new = Board::open()?;
        new.move_from(&old, self.0.slot);
        *self.0.board.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(())
    }

    pub(crate) fn news_fd(&self) -> RawFd {
        self.0.news.as_raw_fd()
    }

    pub(crate) fn set_timer(&self, period: Duration) -> io::Result<()> {
        self.0.timer.set(period)
    }

    /// What has news, without waiting. The timer is cleared.
    pub(crate) fn news(&self) -> io::Result<impl Iterator<Item = News> + use<>> {
        let ready = self.0.news.ready()?;
        let timer = self.0.clone();
        Ok(ready.map(move |token| {
            if token == TIMER_TOKEN {
                timer.timer.clear();
                News::Timer
            } else {
                News::Datagrams(token)
            }
        }))
    }

    /// The channels at which datagrams wait, for [`Seat::receive`].
    pub(crate) fn channels_with_news(&self) -> Vec<u64> {
        let channel = |news| match news {
            News::Timer => None,
            News::Datagrams(token) => Some(token),
        };
        self.news().map(|news| news.filter_map(channel).collect()).unwrap_or_default()
    }

    fn outlets(&self) -> MutexGuard<'_, Outlets> {
        // Nothing under this lock can panic half-way.
        self.0.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inlets(&self) -> MutexGuard<'_, Inlets> {
        // Nothing under this lock can panic half-way.
        self.0.inlets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One message from the channel `token`, if there is one, in `buffer`. `Ok(None)`: empty, or gone meanwhile.
    /// `Some(None)`: a message that is not to be believed.
    pub(crate) fn receive<'b>(
        &self,
        token: u64,
        buffer: &'b mut [u8],
    ) -> io::Result<Option<Option<Message<'b>>>> {
        let read = |bytes: &'b [u8]| {
            let chosen = |train| Message { train, chosen: message::is_chosen(bytes) };
            message::decode(bytes).map(chosen)
        };
        if token >= FIRST_INLET {
            // Whoever has its other end was believed when he passed us ours.
            let received = self.inlets().receive(token, buffer, &self.0.news);
            let buffer: &'b [u8] = buffer;
            return Ok(received.map(|len| read(&buffer[..len?])));
        }
        if token >= FIRST_OUTLET {
            self.outlets().end(token, &self.0.news);
            return Ok(None);
        }
        let received = if token == SLOT_CHANNEL {
            unix::recv(self.0.socket.as_fd(), buffer)
        } else {
            let listeners = self.listeners();
            let Some((_, socket)) = listeners.by_token.get(&token) else { return Ok(None) };
            unix::recv(socket.as_fd(), buffer)
        };
        match received {
            // Another user could forge any sender, which the network does not let him do; root could anyway.
            Ok(Arrived { len, cut: false, uid: Some(uid), descriptor })
                if uid == 0 || uid == unix::effective_uid() =>
            {
                if let Some(end) = descriptor {
                    self.inlets().admit(end.into(), &self.0.news);
                }
                Ok(Some(read(&buffer[..len])))
            }
            Ok(_) => Ok(Some(None)),
            Err(err) if matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(err) => Err(err),
        }
    }

    /// Whether this process listens for `service` at `addr`.
    pub(crate) fn listens(&self, service: u64, addr: IpAddr) -> bool {
        let serves = |s: &Service| s.id == service && s.addr.is_none_or(|at| at == addr);
        self.listeners().by_token.values().any(|(s, _)| serves(s))
    }

    /// Sends a train on to its owner, who is one.
    pub(crate) fn pass_on(&self, owner: Owner, train: &Train<'_>) -> Passed {
        match owner {
            Owner::Everyone => Passed::NoSuchOwner,
            Owner::Slot(slot) | Owner::SlotOrHeir(slot) => self.pass_to_slot(slot, train, false),
            Owner::Service(id) => {
                let here = Service { id, addr: Some(train.dst_ip) };
                let mut passed = self.pass_to(&here.name(), train, false);
                if passed == Passed::NoSuchOwner {
                    passed = self.pass_to(&Service { id, addr: None }.name(), train, false);
                }
                if passed == Passed::On {
                    let board = self.board();
                    board.listener(id).into_iter().for_each(|slot| board.ring(slot));
                }
                passed
            }
        }
    }

    /// Hands a train of our own to its receiver, if that is one process of this host.
    pub(crate) fn hand_over(&self, train: &Train<'_>) -> Passed {
        match self.rule().owner(train.data) {
            Some(Owner::Slot(slot) | Owner::SlotOrHeir(slot)) => self.pass_to_slot(slot, train, true),
            Some(Owner::Service(_) | Owner::Everyone) | None => Passed::NoSuchOwner,
        }
    }

    fn pass_to_slot(&self, slot: u8, train: &Train<'_>, chosen: bool) -> Passed {
        let way = self.way(slot, false);
        let mut passed = self.pass_by(way, slot, train, chosen);
        if passed == Passed::NoSuchOwner && matches!(way, Way::To(Label::Beside(_))) {
            // He died, and somebody may have the slot by another name since. The next look does not show him any more.
            passed = self.pass_by(self.way(slot, true), slot, train, chosen);
        }
        if passed == Passed::On {
            self.board().ring(slot);
        }
        passed
    }

    fn pass_by(&self, way: Way, slot: u8, train: &Train<'_>, chosen: bool) -> Passed {
        match way {
            Way::To(label) => {
                if let Some(passed) = self.pass_by_pair(label, slot, train, chosen) {
                    return passed;
                }
                let passed = self.pass_to(&label.name(slot), train, chosen);
                if passed == Passed::On && self.holder(slot).is_none() {
                    // He came after the last look. A pair is only for one who was seen, and until there is one he can be crowded out.
                    self.way(slot, true);
                }
                passed
            }
            Way::Shut => Passed::NoSuchOwner,
        }
    }

    /// Sends a train on by the socket pair with the holder of `slot`, if there is one that he has taken; else offers one with it.
    fn pass_by_pair(&self, label: Label, slot: u8, train: &Train<'_>, chosen: bool) -> Option<Passed> {
        let holder = self.holder(slot).filter(|(seen, _)| *seen == label)?;
        let (mut outlets, news) = (self.outlets(), &self.0.news);
        let message = [&message::encode(train, chosen)[..], train.data];
        outlets.send(slot, holder, message, news).or_else(|| {
            let (from, name) = (self.0.socket.as_fd(), label.name(slot));
            outlets.introduce(slot, holder, news, |end| unix::pass_to(from, &name, message, end))
        })
    }

    /// Whom the last look showed to have `slot`.
    fn holder(&self, slot: u8) -> Option<Holder> {
        self.0.seen.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).roster.holder(slot)
    }

    /// Where what is for the holder of `slot` goes, by a look that is not older than the lease, or by a new one.
    pub(super) fn way(&self, slot: u8, anew: bool) -> Way {
        let Some(seen) = &self.0.seen else { return Way::To(Label::Plain) };
        // Nothing under this lock can panic half-way.
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = if seen.roster.way(slot) == Way::Shut { SHUT_LEASE } else { LEASE };
        if anew || seen.since.elapsed() >= lease {
            seen.again();
        }
        seen.roster.way(slot)
    }

    fn pass_to(&self, name: &Name, train: &Train<'_>, chosen: bool) -> Passed {
        let head: [u8; HEADER_LEN] = message::encode(train, chosen);
        Passed::of(unix::send_to(self.0.socket.as_fd(), name, &head, train.data))
    }

    /// Erases from the board those who died without leaving. Asks the kernel once per entry, about 2 us each.
    pub(crate) fn bury_the_dead(&self) {
        let board = self.board();
        let is_free = |slot, label: Label| matches!(unix::is_held(&label.name(slot)), Ok(false));
        for (slot, incarnation) in board.taken() {
            if slot != self.0.slot && is_free(slot, Label::Plain) && is_free(slot, Label::Beside(incarnation))
            {
                board.leave(slot, incarnation);
            }
        }
    }
}

impl Seen {
    /// Takes `slot`, which was offered by `rank`; `None` if somebody else was faster.
    fn take(&mut self, slot: u8, rank: Rank) -> io::Result<Option<Taken>> {
        let label = if rank.is_beside() { Label::Beside(net::random_u64() | 1) } else { Label::Plain };
        let Some(socket) = bind(slot, label)? else { return Ok(None) };
        // Two who take a slot by different names do not see each other before they have them.
        self.since = Instant::now();
        self.roster = Roster::look(&mut self.names, &self.viewer, None, Some((slot, label)))?;
        if !self.roster.may_stay(slot, rank) {
            return Ok(None);
        }
        if rank.is_beside() {
            // Until then somebody may send to the plain name what is for us, by what he saw before we came (see `roster`).
            std::thread::sleep(LEASE);
        }
        let counts_everywhere = self.viewer.counts_everywhere(slot, rank);
        Ok(Some(Taken { slot, label, socket, counts_everywhere }))
    }
}

/// A socket by this name of `slot`; `None` if it is taken.
fn bind(slot: u8, label: Label) -> io::Result<Option<Descriptor>> {
    match unix::bind(&label.name(slot)) {
        Ok(socket) => Ok(Some(socket)),
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(err) => Err(err),
    }
}

/// How often all slots are looked through for one that stays free for long enough to be taken.
const ROUNDS: usize = 3;

fn all_taken() -> io::Error {
    io::Error::new(
        io::ErrorKind::AddrInUse,
        format!(
            "all {SLOTS} places for processes on this host are taken; close one that uses the RoCEv2 port"
        ),
    )
}

/// What became of a train that was sent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passed {
    On,
    NoSuchOwner,
    /// The owner does not keep up.
    Full,
    /// The kernel does not send it.
    Lost,
}

impl Passed {
    /// What the kernel says of a message to a name.
    pub(super) fn of(sent: io::Result<()>) -> Self {
        match sent.map_err(|err| err.raw_os_error()) {
            Ok(()) => Self::On,
            Err(Some(libc::ECONNREFUSED)) => Self::NoSuchOwner,
            Err(Some(libc::EAGAIN | libc::ENOBUFS)) => Self::Full,
            Err(_) => Self::Lost,
        }
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({:#04x})", self.0.slot)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.socket.is_ours() {
            // We are a child, and it is still the parent's.
            return;
        }
        let board = self.board.get_mut().unwrap_or_else(PoisonError::into_inner);
        board.leave(self.slot, self.incarnation);
        board.clear_away();
    }
}

/// A service being listened for, until this is dropped.
#[derive(Debug)]
pub struct Listening {
    seat: Seat,
    token: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if !self.seat.0.socket.is_ours() {
            return;
        }
        let removed = self.seat.listeners().by_token.remove(&self.token);
        if let Some((service, _)) = removed {
            self.seat.board().remove_service(self.seat.0.slot, service.id);
        }
    }
}

impl Service {
    fn name(&self) -> Name {
        Name::new(&match self.addr {
            Some(addr) => format!("remanence/service/{:016x}/{addr}", self.id),
            None => format!("remanence/service/{:016x}", self.id),
        })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {:#018x}", self.id)?;
        self.addr.map_or(Ok(()), |addr| write!(f, " at {addr}"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::veth::{End, Veth};

    /// A network namespace for this thread, or the reason why the test is skipped is printed.
    fn alone() -> Option<Veth> {
        let alone = Veth::new(1500).and_then(|veth| veth.enter(End::Left).map(|()| veth));
        alone
            .map_err(|err| println!("SKIPPED: a network namespace for the test alone needs root: {err}"))
            .ok()
    }

    /// Until somebody is seen nothing can be sent on to him but by his name, where strangers can crowd him out.
    #[test]
    fn who_came_after_the_last_look_is_seen_with_the_first_message() {
        let Some(_alone) = alone() else { return };
        let seat = || Seat::claim(SteerRule { cases: Vec::new() }).expect("a seat");
        let (early, late) = (seat(), seat());
        let train = Train {
            src: (Ipv4Addr::LOCALHOST, 49_152).into(),
            dst_ip: Ipv4Addr::LOCALHOST.into(),
            ecn: 0,
            ttl: 64,
            segment_size: 100,
            first_index: 0,
            data: b"data",
        };
        assert_eq!(early.holder(late.slot()), None);
        // By the name; and the second one has a pair's end with it.
        for _ in 0..2 {
            assert_eq!(early.pass_to_slot(late.slot(), &train, false), Passed::On);
            assert!(early.holder(late.slot()).is_some());
        }
        let mut buffer = [0; 256];
        let mut receive = |token| {
            let message = late.receive(token, &mut buffer).expect("a socket");
            message.map(|message| message.expect("a train").train.data == b"data")
        };
        assert_eq!([(); 3].map(|()| receive(SLOT_CHANNEL)), [Some(true), Some(true), None]);
        assert_eq!(early.pass_to_slot(late.slot(), &train, false), Passed::On);
        assert_eq!((receive(SLOT_CHANNEL), receive(FIRST_INLET)), (None, Some(true)));
    }

    /// Each of them took the slot where he saw nobody, the one by this name and the other by that.
    #[test]
    fn two_who_race_for_a_slot_never_both_stay() {
        const SLOT: u8 = 0x3f;
        let Some(_alone) = alone() else { return };
        let names = [Label::Plain, Label::Beside(1), Label::Beside(u64::MAX)];
        for other in names {
            for rank in Rank::ALL {
                let mut seen = Seen::first().expect("the kernel says whose names are");
                assert_eq!(seen.roster.offer(&seen.viewer, SLOT), Some(Rank::Home));
                let met = bind(SLOT, other).expect("a socket").expect("free");
                assert!(seen.take(SLOT, rank).expect("a look").is_none(), "{rank:?} beside {other:?}");
                // Who goes leaves nothing. (A child that another test forks has its descriptors until it executes.)
                drop(met);
                let start = Instant::now();
                let patience = |what| assert!(start.elapsed() < Duration::from_secs(60), "{what}");
                let taken = loop {
                    match seen.take(SLOT, rank).expect("a look") {
                        Some(taken) => break taken,
                        None => patience("nobody is there"),
                    }
                };
                assert!(Seat::is_taken(u32::from(SLOT) << 16));
                drop(taken);
                while Seat::is_taken(u32::from(SLOT) << 16) {
                    patience("it is free");
                }
            }
        }
        // And all at once.
        let claims: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(|| Seat::claim(SteerRule { cases: Vec::new() }).expect("a seat")))
            .collect();
        let seats: Vec<_> = claims.into_iter().map(|claim| claim.join().expect("a seat")).collect();
        let mut slots: Vec<_> = seats.iter().map(Seat::slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), seats.len());
    }
}
