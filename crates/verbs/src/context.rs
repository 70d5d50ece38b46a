//! An open device.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remanence_link::fault::FaultControl;
use remanence_link::host::Seat;
use remanence_link::monitor::Monitor;
use remanence_link::{Link, LinkCaps, LinkStats, SourcePort, Thread};
use remanence_rnic::cm::{self, CommIdSpace};
use remanence_rnic::{AsyncEvent, Config, Device, Stats};
use remanence_wire::{Gid, Mtu};

use crate::abandon;
use crate::channel::{Awaited, CompChannel, EventQueue};
use crate::claims::Claims;
use crate::clock::Clock;
use crate::cm::Connections;
use crate::cq::Cq;
use crate::driver::{Driver, Interest, ProgressStats, Signals, Turn};
use crate::error::Error;
use crate::flush::{self, FlushQueue};
use crate::follow::{self, Port};
use crate::handover::{Pace, Progress};
use crate::lock::DeviceLock;
use crate::memory::RegionMemory;
use crate::options::{Opened, Options};
use crate::pd::Pd;
use crate::progress;
use crate::share;
use crate::wake::Bell;

/// What happened to the device or one of its objects outside any work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// To an object.
    Affiliated(AsyncEvent),
    /// The link failed, or its interface was removed; nothing will be sent or received any more
    /// (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal(io::ErrorKind),
    /// Packets can leave again (`IBV_EVENT_PORT_ACTIVE`).
    PortActive,
    /// The interface is down (`IBV_EVENT_PORT_ERR`).
    PortError,
    /// The table of GIDs is another one (`IBV_EVENT_GID_CHANGE`).
    GidChange,
}

/// What the threads of a device share. They hold this part only, so that they do not keep the device open.
pub(crate) struct Shared {
    pub(crate) lock: DeviceLock<Driver>,
    pub(crate) clock: Clock,
    pub(crate) signals: Signals,
    pub(crate) stop: AtomicBool,
    /// Whether the thread that stops is to close the link.
    pub(crate) leave: Leave,
}

/// A device that its process leaves behind open, [`Context::leave`].
#[derive(Default)]
pub(crate) struct Leave(AtomicU8);

impl Leave {
    const ASKED: u8 = 1;
    const DONE: u8 = 2;

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ASKED
    }

    pub(crate) fn done(&self) {
        self.0.store(Self::DONE, Ordering::Release);
    }

    fn ask(&self) {
        self.0.store(Self::ASKED, Ordering::Release);
    }
}

impl Shared {
    /// Takes the device lock for a turn.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let driver = self.lock.lock();
        Turn::new(driver, &self.clock)
    }

    /// What the port is now.
    pub(crate) fn port(&self) -> Port {
        self.signals.port()
    }

    /// As [`turn`](Self::turn), to post.
    pub(crate) fn turn_to_post(&self) -> Turn<'_> {
        let driver = self.lock.lock();
        Turn::of_post(driver, &self.clock)
    }
}

/// Keeps the device open: every object has one. The last one to go closes it.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) caps: LinkCaps,
    pub(crate) config: Config,
    /// Where the port is shared.
    pub(crate) seat: Option<Seat>,
    /// Where it is not: the services that are taken.
    pub(crate) claims: Claims,
    faults: Option<FaultControl>,
    flushes: Arc<FlushQueue>,
    has_progress_thread: bool,
    threads: Mutex<Vec<Thread>>,
    /// Wakes the thread that follows the interface, where there is one.
    follower: Option<Arc<Bell>>,
}

impl Handle {
    /// Which of our addresses reaches a peer: one of its IP version, and its own if it is one of ours.
    pub(crate) fn sgid_index(&self, remote: Gid) -> u8 {
        let port = self.port();
        let same_version =
            |&gid: &Gid| gid != Gid::default() && gid.to_ip().is_ipv4() == remote.to_ip().is_ipv4();
        let similar = || port.gids.iter().position(same_version).and_then(|index| u8::try_from(index).ok());
        port.index_of(remote).or_else(similar).unwrap_or(0)
    }

    /// What the port is now; in a forked child, what it was when the device was opened.
    pub(crate) fn port(&self) -> Port {
        if self.shared.lock.is_abandoned() {
            return Port { active: false, gids: self.config.gids.clone().into(), mtu: self.config.mtu };
        }
        self.shared.port()
    }
}

impl Deref for Handle {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("kind", &self.caps.kind)
            .field("opened_with", &self.config.gids)
            .finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.lock.is_abandoned() {
            // All of it is as a thread of the parent left it; its descriptors are closed already.
            std::mem::forget((Arc::clone(&self.shared), self.seat.take(), Arc::clone(&self.flushes)));
            let threads = std::mem::replace(&mut self.threads, Mutex::new(Vec::new()));
            std::mem::forget(threads);
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.signals.thread.ring();
        if let Some(follower) = &self.follower {
            follower.ring();
        }
        self.flushes.stop();
        // Neither thread ever owns a Handle, so this is not one of them joining itself.
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            thread.join();
        }
    }
}

/// An open device. Clones are the same device; it closes when the last clone and the last object of it are gone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) handle: Arc<Handle>,
}

impl Context {
    /// Opens a device at the local address from which `peer` is reached, so that who connects need not know how this host is
    /// connected.
    ///
    /// # Errors
    /// There is no route to it; or as [`open`](Self::open).
    pub fn towards(peer: IpAddr) -> Result<Self, Error> {
        Self::open(Options::towards(peer)?)
    }

    /// The same for several peers, of which some may not be reachable now: see [`Options::towards_any`].
    ///
    /// # Errors
    /// There is no route to any of them; or as [`open`](Self::open).
    pub fn towards_any(peers: impl IntoIterator<Item = IpAddr>) -> Result<Self, Error> {
        Self::open(Options::towards_any(peers)?)
    }

    /// Opens a device.
    ///
    /// # Errors
    /// One sentence that says what to do: the link cannot be opened (no such address or interface, port taken, no
    /// permission), or the operating system refuses a descriptor or a thread.
    pub fn open(options: Options) -> Result<Self, Error> {
        // Before the addresses are read, so that no change of them is missed.
        let monitor = options.follow.as_deref().map(Monitor::open).transpose();
        let monitor = monitor.map_err(|e| Error::os("cannot follow the interface", e))?;
        let Opened { mut link, seat, faults } =
            Options::open_link(options.link, options.faults, options.capture.as_deref())?;
        let clock = Clock::new();
        let os = |e| Error::os("cannot create an event descriptor", e);
        let thread = Arc::new(Bell::new().map_err(os)?);
        let pace = pace(&clock, &mut *link, &thread);
        let caps = link.caps().clone();
        let mut config = options.config;
        config.gids = caps.addresses.iter().map(|&address| Gid::from_ip(address)).collect();
        config.mtu = options.mtu.min(Mtu::fitting(caps.mtu).unwrap_or(Mtu::B256));
        config.source_port = match caps.src_port {
            SourcePort::Fixed(port) => remanence_rnic::SourcePort::Fixed(port),
            SourcePort::Any => remanence_rnic::SourcePort::PerQp,
        };
        config.icrc &= !caps.reliable_bytes;
        config.ack_ride = pace.of(config.ack_ride);
        if let Some(seat) = &seat {
            config.qpns = seat.qpns();
        }
        if config.seed == 0 {
            config.seed = random();
        }
        let async_events = Arc::new(EventQueue::new());
        async_events.fd()?;
        let flushes = Arc::new(FlushQueue::default());
        let carries = |monitor: &Monitor| monitor.state().ok().flatten().is_none_or(|state| state.carries);
        let active = monitor.as_ref().is_none_or(carries);
        let port = Port { active, gids: config.gids.clone().into(), mtu: config.mtu };
        let port = Arc::new(Mutex::new(port));
        let signals = Signals { thread, async_events, news: Arc::new(AtomicU64::new(0)), port };
        let driver = Driver::new(
            Device::new(config.clone()),
            RegionMemory::new(Arc::clone(&flushes)),
            Connections::new(
                cm::Config {
                    ca_guid: random(),
                    gids: config.gids.clone(),
                    seed: random(),
                    max_mtu: config.mtu,
                    comm_ids: seat.as_ref().map_or(CommIdSpace::ALL, share::comm_ids),
                    ..cm::Config::default()
                },
                seat.is_some(),
            ),
            link,
            options.progress,
            pace,
            signals.clone(),
        );
        let heir = {
            let (caps, signals) = (caps.clone(), signals.clone());
            move || abandon::heir(&caps, &signals)
        };
        let follower = monitor.is_some().then(Bell::new).transpose().map_err(os)?.map(Arc::new);
        let shared = Arc::new(Shared {
            lock: DeviceLock::new(driver, heir),
            clock,
            signals,
            stop: AtomicBool::new(false),
            leave: Leave::default(),
        });
        let has_progress_thread = options.progress != Progress::ByConsumer;
        // The handle exists before the threads, so that an error below stops those already running.
        let handle = Arc::new(Handle {
            shared: Arc::clone(&shared),
            caps,
            config,
            seat,
            claims: Claims::default(),
            faults,
            flushes: Arc::clone(&flushes),
            has_progress_thread,
            threads: Mutex::new(Vec::new()),
            follower: follower.clone(),
        });
        let mut threads = Vec::new();
        if has_progress_thread {
            let shared = Arc::clone(&shared);
            threads
                .push(progress::spawn(shared).map_err(|e| Error::os("cannot start the progress thread", e))?);
        }
        if let (Some(monitor), Some(bell)) = (monitor, follower) {
            let (seat, claims) = (handle.seat.clone(), handle.claims.clone());
            let books = follow::Books { seat, claims, removed: options.removed };
            let thread = follow::spawn(Arc::clone(&shared), monitor, bell, options.mtu, books);
            threads.push(
                thread.map_err(|e| Error::os("cannot start the thread that follows the interface", e))?,
            );
        }
        *handle.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        let worker = flush::spawn(flushes, move |outcomes| progress::flushed(&shared, outcomes))
            .map_err(|e| Error::os("cannot start the flush worker", e))?;
        handle.threads.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        Ok(Self { handle })
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The device has no room.
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::new(&self.handle)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// The operating system refuses a descriptor.
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::new(&self.handle)
    }

    /// Creates a completion queue of at least `capacity` entries. With a channel, notifications that were asked for
    /// arrive there with `user_data`.
    ///
    /// # Errors
    /// The capacity is zero or beyond the device's, or the device has no room.
    pub fn create_cq(
        &self,
        capacity: u32,
        channel: Option<&CompChannel>,
        user_data: u64,
    ) -> Result<Cq, Error> {
        Cq::new(&self.handle, capacity, channel, user_data)
    }

    /// What the port is now: state, GID table, largest path MTU.
    #[must_use]
    pub fn port(&self) -> Port {
        self.handle.port()
    }

    /// What the device was opened with: limits, GIDs, MTU. Of the latter, [`port`](Self::port) says what became.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.handle.config
    }

    /// What the link can do.
    #[must_use]
    pub fn link_caps(&self) -> &LinkCaps {
        &self.handle.caps
    }

    /// The counters of the engine.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.lock.lock().device.stats().clone()
    }

    /// Who drove the device how often, and what it took.
    #[must_use]
    pub fn progress_stats(&self) -> ProgressStats {
        self.handle.lock.lock().counters
    }

    /// The counters of the link.
    #[must_use]
    pub fn link_stats(&self) -> LinkStats {
        self.handle.lock.lock().link_stats()
    }

    /// Changes the faults of the network, and counts them, where [`Options::faults`] asked for some.
    #[must_use]
    pub fn fault_control(&self) -> Option<&FaultControl> {
        self.handle.faults.as_ref()
    }

    /// The next asynchronous event, waiting for it; `None` if the limit was reached first, or at once if the
    /// descriptor ([`async_fd`](Self::async_fd)) is in non-blocking mode and there is none.
    #[must_use]
    pub fn get_async_event(&self, limit: Option<Duration>) -> Option<DeviceEvent> {
        let events = &self.handle.signals.async_events;
        match events.pop() {
            None if !events.is_nonblocking() => self.handle.wait(limit, Interest::Events, |_| events.pop()),
            found => found,
        }
    }

    /// The next asynchronous event for a caller that sleeps by itself.
    #[must_use]
    pub fn awaited_async_event(&self) -> Awaited<DeviceEvent> {
        Awaited::new(&self.handle, Arc::clone(&self.handle.signals.async_events))
    }

    /// The next asynchronous event if there is one.
    #[must_use]
    pub fn try_get_async_event(&self) -> Option<DeviceEvent> {
        self.handle.signals.async_events.pop()
    }

    /// Drops events that nobody took yet: those of an object that was destroyed.
    pub fn retain_async_events(&self, keep: impl FnMut(&DeviceEvent) -> bool) {
        self.handle.signals.async_events.retain(keep);
    }

    /// Readable while an asynchronous event waits.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.handle.signals.async_events.fd().expect("made with the device")
    }

    /// In a child that was forked: gives this device of the parent up, and with it every other one that the parent had
    /// open. Descriptors that were inherited are closed, so that the port and the parent's place at it are free when
    /// the parent ends; nothing of the parent's is disturbed, and no lock is waited for. From then on calls on the
    /// device and its objects fail, and to drop them does nothing. The child may open devices of its own.
    ///
    /// Best called right after the fork (`pthread_atfork`); it allocates nothing. In the process that opened the
    /// device it does nothing.
    pub fn abandon(&self) {
        remanence_link::abandon_inherited();
    }

    /// The process is about to end without having closed the device: peers of its connections are told, as a kernel would
    /// tell them, and what the link holds back or records is not lost. From then on nothing is sent or received. Waits
    /// for other threads that use the device for a fraction of a second at most.
    pub fn part(&self) {
        const PATIENCE: Duration = Duration::from_millis(300);
        if let Some(driver) = self.handle.lock.lock_within(PATIENCE) {
            let mut turn = Turn::new(driver, &self.handle.clock);
            let now = turn.now;
            turn.part(now);
        }
    }

    /// The process is about to end, with the device open and shared with other processes of this host: what the network
    /// brought here and is theirs goes on to them. The kernel would drop it with the sockets, and nobody sends a datagram of
    /// an unreliable service again. From then on nothing is sent or received.
    ///
    /// The progress thread does it, so that this may be called where memory cannot be allocated, as in a signal handler that
    /// ends the process. It is waited for as long as `limit` at most; where nobody shares the port there is nothing to do.
    pub fn leave(&self, limit: Duration) {
        let handle = &*self.handle;
        if handle.seat.is_none() || handle.shared.lock.is_abandoned() {
            return;
        }
        if !handle.has_progress_thread {
            if let Some(mut driver) = handle.lock.lock_within(limit) {
                driver.close_link();
            }
            return;
        }
        handle.leave.ask();
        handle.stop.store(true, Ordering::Release);
        handle.signals.thread.ring();
        let end = handle.clock.now() + limit;
        while handle.leave.is_asked() && handle.clock.now() < end {
            std::thread::sleep(Duration::from_micros(10));
        }
    }

    /// Serves the device once: for programs with [`Progress::ByConsumer`] that have nothing to poll.
    pub fn poll(&self) -> bool {
        self.handle.turn().poll()
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

/// How slow this machine is: the shortest of a few empty polls, of the link and of the system, whichever is longer, as links
/// in mapped memory need no system call for one. What arrives meanwhile is for nobody: there are no QPs yet.
fn pace(clock: &Clock, link: &mut dyn Link, bell: &Bell) -> Pace {
    let of_link = shortest(clock, || matches!(link.recv(&mut |_| ()), Ok(0)));
    let of_system = shortest(clock, || {
        bell.sleep(&mut Vec::with_capacity(1), Some(Duration::ZERO));
        true
    });
    of_link.max(of_system).map_or(Pace::ONE, Pace::of_empty_poll)
}

/// The shortest time of a few calls, of those that say that they count.
fn shortest(clock: &Clock, mut call: impl FnMut() -> bool) -> Option<Duration> {
    const CALLS: usize = 8;
    let time = |_| {
        let start = clock.now();
        call().then(|| clock.now().since(start))
    };
    (0..CALLS).filter_map(time).min()
}

/// PSNs and keys must not repeat from one run to the next, nor in a child of the process.
pub(crate) fn random() -> u64 {
    remanence_link::random()
}
