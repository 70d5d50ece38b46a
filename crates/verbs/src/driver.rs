//! What the device lock protects, and one turn of driving it: {receive, engine, transmit}.
//!
//! Whoever holds the lock may take a turn; `progress.rs` says who does when. Everything that must follow a change of
//! the engine (packets leave, events reach their queues, sleepers who should know are woken) is in
//! [`Driver::settle`], which a [`Turn`] calls when it ends, so that no path can forget it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_link::{Link, LinkStats, Outgoing, SideChannel, WaitFd};
use remanence_rnic::{AsyncEvent, CqHandle, Device, FlushId, Instant, PostError, RxMeta, SendWr, SrqHandle};
use remanence_wire::{Gid, Qpn};

use crate::abandon;
use crate::channel::{CqEvent, EventQueue};
use crate::clock::Clock;
use crate::cm::Connections;
use crate::company::Company;
use crate::context::DeviceEvent;
use crate::error::Error;
use crate::follow::Port;
use crate::handover::{Handover, Kick, Outlook, Pace, Plan, Progress, WaiterId};
use crate::inplace::{self, InPlace};
use crate::memory::RegionMemory;
use crate::wake::Bell;

/// Sends of one turn, each up to 64 KiB: then somebody must look at what came in, or the socket buffer overflows.
const SENDS_PER_TURN: usize = 16;

/// Posts and sends after which a consumer that posts looks at what came in.
const POSTS_UNSEEN: usize = 32;

/// Bytes in and out of one turn from which it may have taken longer than a poller may leave between its polls.
const LABORIOUS: usize = 8 << 10;

/// Turns before a device is left for good, for what has arrived.
const LAST_TURNS: usize = 16;

/// What a blocked consumer waits for, so that it is not woken for anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Work completions in a CQ.
    Completions,
    /// Notifications, asynchronous events, events of connections.
    Events,
}

/// What happened so far that a blocked consumer may be waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct News {
    completions: u64,
    events: u64,
}

/// What an asynchronous event happened to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Object {
    Qp(Qpn),
    Cq(CqHandle),
    Srq(SrqHandle),
}

impl Object {
    fn of(event: &DeviceEvent) -> Option<Self> {
        Some(match *event {
            DeviceEvent::DeviceFatal(_)
            | DeviceEvent::PortActive
            | DeviceEvent::PortError
            | DeviceEvent::GidChange => return None,
            DeviceEvent::Affiliated(event) => match event {
                AsyncEvent::CommEst(qpn)
                | AsyncEvent::SqDrained(qpn)
                | AsyncEvent::LastWqeReached(qpn)
                | AsyncEvent::QpRequestError(qpn)
                | AsyncEvent::QpAccessError(qpn)
                | AsyncEvent::QpFatal(qpn) => Self::Qp(qpn),
                AsyncEvent::CqError(cq) => Self::Cq(cq),
                AsyncEvent::SrqLimitReached(srq) => Self::Srq(srq),
            },
        })
    }
}

/// Where the notifications of a CQ go.
#[derive(Debug)]
struct CqRoute {
    events: Arc<EventQueue<CqEvent>>,
    user_data: u64,
}

/// Who drove a device how often, and what it took. Counters since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProgressStats {
    /// Turns of consumers that polled and found nothing.
    pub poller_turns: u64,
    /// Turns of consumers in blocking calls.
    pub waiter_turns: u64,
    /// Turns of the progress thread.
    pub thread_turns: u64,
    /// Times that the progress thread or a blocked consumer went to sleep on the link.
    pub watches: u64,
    /// Times that a sleeping thread was woken as something changed that it could not see.
    pub kicks: u64,
    /// Times that a turn was taken by another kind of driver than the one before it.
    pub handovers: u64,
    /// ICMP messages that the link passed on.
    pub icmp_messages: u64,
}

/// How a driver makes itself heard outside the lock.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// Wakes the progress thread.
    pub(crate) thread: Arc<Bell>,
    /// Asynchronous events, for the consumer.
    pub(crate) async_events: Arc<EventQueue<DeviceEvent>>,
    /// [`Driver::news`] as of the end of the last turn, for those who find the lock taken.
    pub(crate) news: Arc<AtomicU64>,
    /// What the port is; changed under the device lock.
    pub(crate) port: Arc<Mutex<Port>>,
}

impl Signals {
    pub(crate) fn port(&self) -> Port {
        // Every change is one assignment.
        self.port.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_port(&self, port: Port) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = port;
    }
}

pub(crate) struct Driver {
    pub(crate) device: Device,
    pub(crate) memory: RegionMemory,
    pub(crate) cm: Connections,
    pub(crate) in_place: InPlace,
    link: Box<dyn Link>,
    /// The UDP port that peers receive on; ours is the same.
    port: u16,
    handover: Handover,
    company: Company,
    /// A send that the link had no room for. Its bytes wait in the link's lent buffer.
    refused: Option<Outgoing>,
    /// The link has no buffer to lend, or could not push everything out.
    full: bool,
    /// The engine has more to send than one turn allows, or a doorbell waits.
    more: bool,
    /// The last turn received several datagrams at once.
    crowded: bool,
    /// The last turn received something.
    came: bool,
    /// Bytes that came and left in this turn.
    moved: usize,
    /// Posts and sends since somebody looked at what came in.
    unseen: usize,
    /// The link was told that somebody waits on it, and not yet that nobody does any more.
    armed: bool,
    /// The link does not work any more; packets are lost as on a cut cable.
    failed: bool,
    routes: HashMap<CqHandle, CqRoute>,
    /// ACKs that left with requests of ours, and those that waited for one in vain, as the handover knows them.
    answers: (u64, u64),
    /// ACKs that had to wait, as of the progress thread's last turn.
    deferred: u64,
    signals: Signals,
    waiters: Vec<Option<(Arc<Bell>, Interest)>>,
    /// Counts what a blocked consumer may wait for; see [`Driver::news`].
    pushed: u64,
    told: News,
    /// The kind of driver that took the last turn.
    drove: Option<Kind>,
    pub(crate) counters: ProgressStats,
}

/// Kinds of drivers, of which `handover.rs` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Poller,
    Waiter,
    Thread,
}

impl Driver {
    pub(crate) fn new(
        device: Device,
        memory: RegionMemory,
        cm: Connections,
        mut link: Box<dyn Link>,
        progress: Progress,
        pace: Pace,
        signals: Signals,
    ) -> Self {
        Self {
            device,
            memory,
            cm,
            in_place: InPlace::new(link.side_channel().is_some()),
            port: link.caps().port,
            link,
            handover: Handover::new(progress, pace),
            company: Company::new(pace),
            refused: None,
            full: false,
            more: false,
            crowded: false,
            came: false,
            moved: 0,
            unseen: 0,
            armed: false,
            failed: false,
            routes: HashMap::new(),
            signals,
            waiters: Vec::new(),
            pushed: 0,
            told: News { completions: 0, events: 0 },
            answers: (0, 0),
            deferred: 0,
            drove: None,
            counters: ProgressStats::default(),
        }
    }

    /// A driver whose link does not work.
    pub(crate) fn failed(
        device: Device,
        memory: RegionMemory,
        cm: Connections,
        link: Box<dyn Link>,
        progress: Progress,
        signals: Signals,
    ) -> Self {
        Self { failed: true, ..Self::new(device, memory, cm, link, progress, Pace::ONE, signals) }
    }

    /// One turn. Says whether there was anything to do.
    pub(crate) fn drive(&mut self, now: Instant) -> bool {
        self.company.driven(now);
        let received = self.receive(now);
        let due = self.deadline().is_some_and(|deadline| deadline <= now);
        if !(received || due || self.more || self.full) {
            // Every change before this turn was settled, so there is nothing to send: the usual end of a poll.
            return false;
        }
        if due {
            self.device.handle_timeout(now);
        }
        self.pump_cm(now);
        // Before anybody receives again: the peer waits for these.
        let sent = self.transmit(now);
        received || due || sent
    }

    /// When the engine or the connection manager wants to be called.
    fn deadline(&self) -> Option<Instant> {
        match (self.device.poll_timeout(), self.cm.manager.poll_timeout()) {
            (Some(engine), Some(cm)) => Some(engine.min(cm)),
            (engine, cm) => engine.or(cm),
        }
    }

    fn receive(&mut self, now: Instant) -> bool {
        (self.crowded, self.came) = (false, false);
        self.unseen = 0;
        if self.failed {
            return false;
        }
        if self.armed && !self.handover.is_watched() {
            self.armed = false;
            self.link.wait_is_over();
        }
        let Self { device, memory, link, moved, .. } = self;
        let received = link.recv(&mut |datagram| {
            *moved += datagram.payload.len();
            let meta = RxMeta {
                src: datagram.src.ip(),
                dst: datagram.dst_ip,
                src_port: datagram.src.port(),
                ip_id: datagram.ip_id,
                train_index: datagram.train_index,
                ecn: datagram.ecn,
                hop_limit: datagram.ttl,
            };
            device.handle_datagram(now, &meta, datagram.payload, memory);
        });
        let beside = self.in_place.is_possible() && inplace::side_events(self);
        self.crowded = matches!(received, Ok(2..));
        self.came = match received {
            Ok(n) => n > 0 || beside,
            Err(e) => {
                self.fail(&e);
                // That is news, which must be told.
                true
            }
        };
        self.came
    }

    /// Memory in place, and the way to its other users.
    pub(crate) fn in_place_and_side(&mut self) -> (&mut InPlace, Option<&mut dyn SideChannel>) {
        (&mut self.in_place, self.link.side_channel())
    }

    /// Sends what the engine has to send, up to the limit of a turn. Says whether anything left.
    pub(crate) fn transmit(&mut self, now: Instant) -> bool {
        self.more = false;
        if self.failed {
            return false;
        }
        let mut sent = false;
        match self.transmit_all(now, &mut sent).and_then(|()| self.flush(sent)) {
            Ok(()) => self.full = false,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.full = true,
            Err(e) => self.fail(&e),
        }
        sent
    }

    fn transmit_all(&mut self, now: Instant, sent: &mut bool) -> io::Result<()> {
        if let Some(out) = self.refused {
            self.link.send(&out)?;
            self.refused = None;
            *sent = true;
            self.count_send(&out);
        }
        for _ in 0..SENDS_PER_TURN {
            // Asked each time: a link may find out that its offload does not work.
            let max_segments = self.link.caps().max_segments;
            self.device.set_ident(self.link.ident());
            let buf = self.link.tx_buffer()?;
            let Some(transmit) = self.device.poll_transmit(now, buf, max_segments, &mut self.memory) else {
                return Ok(());
            };
            let out = Outgoing {
                src: transmit.src,
                src_port: transmit.src_port,
                dst: SocketAddr::new(transmit.dst, self.port),
                tos: transmit.tos,
                ttl: transmit.hop_limit,
                len: transmit.len,
                segment_size: transmit.segment_size,
            };
            if transmit.parting {
                self.link.send_surely(&out);
            }
            if let Err(e) = self.link.send(&out) {
                if e.kind() == io::ErrorKind::WouldBlock {
                    self.refused = Some(out);
                }
                // What went before must not wait for room that only it can make.
                self.flush(*sent)?;
                return Err(e);
            }
            *sent = true;
            self.count_send(&out);
        }
        self.more = true;
        Ok(())
    }

    const fn count_send(&mut self, out: &Outgoing) {
        self.moved += out.len;
        self.unseen += 1;
    }

    fn flush(&mut self, sent: bool) -> io::Result<()> {
        if sent || self.full { self.link.flush() } else { Ok(()) }
    }

    #[cold]
    fn fail(&mut self, error: &io::Error) {
        if !self.failed {
            self.failed = true;
            self.push_async(DeviceEvent::DeviceFatal(error.kind()));
        }
    }

    /// What carried the packets is gone.
    pub(crate) fn lose(&mut self, error: &io::Error) {
        self.fail(error);
        self.look_again();
    }

    /// An event of the device for the consumer.
    pub(crate) fn push_async(&mut self, event: DeviceEvent) {
        self.signals.async_events.push(event);
        self.pushed += 1;
    }

    pub(crate) fn link(&mut self) -> &mut dyn Link {
        &mut *self.link
    }

    pub(crate) const fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Each thread that sleeps on the link's descriptors is to ask for them again.
    pub(crate) fn look_again(&mut self) {
        let kick = self.handover.look_again();
        self.kick(kick);
    }

    /// The process ends: takes what has come, tells the peers of all connections, and closes the link, so that what it
    /// holds back leaves and what it records is written.
    pub(crate) fn part(&mut self, now: Instant) {
        for _ in 0..LAST_TURNS {
            if !self.drive(now) {
                break;
            }
        }
        self.device.hurry_all();
        self.cm.manager.close_all(now);
        self.pump_cm(now);
        while self.transmit(now) && self.more {}
        self.close_link();
    }

    /// What stands in the link's queues for other processes of this host goes on to them.
    pub(crate) fn close_link(&mut self) {
        let gone = abandon::gone(self.link.caps());
        drop(std::mem::replace(&mut self.link, gone));
        (self.failed, self.armed, self.refused) = (true, false, None);
    }

    fn outlook(&self, now: Instant) -> Outlook {
        let deadline = if self.more { Some(now) } else { self.deadline() };
        Outlook {
            deadline,
            blocked: self.full && !self.failed,
            busy: self.more || self.crowded,
            came: self.came,
            awaited: false,
        }
    }

    /// What must follow every change of the engine, before the lock is released. `me`: the waiter whose turn it is,
    /// who needs no waking. `waits`: the doorbell does.
    fn settle(&mut self, now: Instant, me: Option<WaiterId>, waits: bool) {
        // Events of the engine may move the connection manager, and that may have MADs to send.
        self.pump_events();
        self.pump_cm(now);
        if self.in_place.is_possible() {
            self.in_place.review(&self.device);
        }
        if waits {
            self.more = true;
        } else {
            self.company.left();
            self.transmit(now);
        }
        let news = News { completions: self.device.stats().completions, events: self.pushed };
        if news != self.told {
            self.tell(news, me);
        }
        let stats = self.device.stats();
        let answers = (stats.acks_ridden, stats.acks_in_vain);
        if answers != self.answers {
            let before = std::mem::replace(&mut self.answers, answers);
            self.handover.answered(answers.0 - before.0, answers.1 - before.1);
        }
        let kick = self.handover.changed(self.outlook(now));
        self.kick(kick);
    }

    fn pump_cm(&mut self, now: Instant) {
        self.pushed += self.cm.pump(now, &mut self.device);
    }

    /// Publishes the news, and wakes the threads that it concerns.
    fn tell(&mut self, news: News, me: Option<WaiterId>) {
        let told = std::mem::replace(&mut self.told, news);
        self.signals.news.store(self.news(), Ordering::Release);
        for sleeper in self.handover.sleepers().filter(|&id| Some(id) != me) {
            if let Some(Some((bell, interest))) = self.waiters.get(sleeper.0 as usize) {
                let concerned = match interest {
                    Interest::Completions => news.completions != told.completions,
                    Interest::Events => news.events != told.events,
                };
                if concerned {
                    bell.ring();
                }
            }
        }
    }

    /// Moves the engine's events to the queues that consumers read.
    pub(crate) fn pump_events(&mut self) {
        while let Some(cq) = self.device.poll_cq_event() {
            if let Some(route) = self.routes.get(&cq) {
                route.events.push(CqEvent { cq, user_data: route.user_data });
                self.pushed += 1;
            }
        }
        while let Some(event) = self.device.poll_async_event() {
            if let AsyncEvent::CommEst(qpn) = event {
                self.cm.communication_established(qpn);
            }
            self.signals.async_events.push(DeviceEvent::Affiliated(event));
            self.pushed += 1;
        }
    }

    /// Takes the asynchronous events of an object back that nobody read: it was destroyed.
    pub(crate) fn forget_async_events(&mut self, object: Object) {
        self.pump_events();
        self.signals.async_events.retain(|event| Object::of(event) != Some(object));
    }

    /// Grows whenever something happened that a consumer may be waiting for.
    pub(crate) fn news(&self) -> u64 {
        self.pushed + self.device.stats().completions
    }

    fn kick(&mut self, kick: Kick) {
        self.counters.kicks += u64::from(kick != Kick::None);
        match kick {
            Kick::None => {}
            Kick::Thread => self.signals.thread.ring(),
            Kick::Waiter(id) => {
                if let Some(Some((bell, _))) = self.waiters.get(id.0 as usize) {
                    bell.ring();
                }
            }
        }
    }

    /// Attaches a QP to a multicast group, which the link joins with the first.
    pub(crate) fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        self.device.attach_mcast(qpn, group)?;
        if let Err(e) = self.link.join(group.to_ip()) {
            self.device.detach_mcast(qpn, group)?;
            let _ = self.device.poll_left_group();
            return Err(Error::os("multicast", e));
        }
        // The group's descriptors are new to the threads that sleep on those that there were.
        self.look_again();
        Ok(())
    }

    /// Leaves the groups that no QP is attached to any more.
    pub(crate) fn leave_groups(&mut self) {
        while let Some(group) = self.device.poll_left_group() {
            self.link.leave(group.to_ip());
        }
    }

    /// A flush that was pending has ended.
    pub(crate) fn flush_done(&mut self, now: Instant, id: FlushId, result: Result<(), ()>) {
        self.device.flush_done(now, id, result, &mut self.memory);
    }

    /// A consumer posted to a QP; `polls`: in a row of polls. Says whether the doorbell waits: for a consumer that is known to
    /// come back, and only for requests of which a train can be made.
    #[inline]
    fn rings(&mut self, now: Instant, qpn: Qpn, polls: bool) -> bool {
        let may = polls
            && !self.full
            && self.refused.is_none()
            && self.handover.is_left_to_poller()
            && self.device.may_wait(qpn);
        self.company.posted(now, may)
    }

    /// A consumer polled and found something, or found the lock taken.
    pub(crate) fn count_polls(&mut self, polls: u32) {
        self.handover.count_polls(u64::from(polls));
    }

    /// A consumer asked for a notification.
    pub(crate) fn armed(&mut self) {
        let kick = self.handover.armed();
        self.kick(kick);
    }

    fn drives(&mut self, kind: Kind) {
        *match kind {
            Kind::Poller => &mut self.counters.poller_turns,
            Kind::Waiter => &mut self.counters.waiter_turns,
            Kind::Thread => &mut self.counters.thread_turns,
        } += 1;
        let before = self.drove.replace(kind);
        self.counters.handovers += u64::from(before.is_some_and(|before| before != kind));
    }

    /// A consumer polled and found nothing.
    pub(crate) fn polled(&mut self, now: Instant) {
        self.drives(Kind::Poller);
        let kick = self.handover.polled(now);
        self.kick(kick);
    }

    /// Whether the progress thread, whose lease is over, may rest on as a poller still drives.
    pub(crate) fn renew_lease(&mut self, now: Instant) -> Option<Duration> {
        self.handover.renew(now)
    }

    /// What the progress thread does next. Fills in the descriptors to watch.
    pub(crate) fn plan_thread(&mut self, now: Instant, worked: bool, fds: &mut Vec<WaitFd>) -> Plan {
        self.drives(Kind::Thread);
        let deferred = self.device.stats().acks_deferred;
        let awaited = std::mem::replace(&mut self.deferred, deferred) != deferred;
        let outlook = Outlook { awaited, ..self.outlook(now) };
        let plan = self.handover.plan(now, worked, outlook);
        if let Plan::Watch(limit) = plan {
            if !self.may_wait(now, fds) {
                self.handover.stay_awake();
                return Plan::Again;
            }
            return Plan::Watch(limit);
        }
        plan
    }

    /// What a blocked consumer does next.
    pub(crate) fn plan_waiter(
        &mut self,
        now: Instant,
        id: WaiterId,
        warm: bool,
        worked: bool,
        fds: &mut Vec<WaitFd>,
    ) -> Plan {
        self.drives(Kind::Waiter);
        let (plan, kick) = self.handover.plan_waiter(now, id, warm, worked, self.outlook(now));
        self.kick(kick);
        match plan {
            Plan::Watch(_) if !self.may_wait(now, fds) => Plan::Again,
            Plan::Again | Plan::Yield | Plan::Rest(_) | Plan::Watch(_) => plan,
        }
    }

    fn may_wait(&mut self, now: Instant, fds: &mut Vec<WaitFd>) -> bool {
        fds.clear();
        if self.failed {
            return true;
        }
        self.counters.watches += 1;
        self.armed = true;
        let prepared = self.link.prepare_wait();
        while let Some(event) = self.link.poll_event() {
            self.counters.icmp_messages += 1;
            if let remanence_link::Event::Unreachable { dst, port_closed: true, evidence } = event {
                self.pushed += self.cm.refused(now, &self.device, Gid::from_ip(dst.ip()), &evidence);
            }
        }
        match prepared {
            Ok(busy) => {
                self.link.wait_fds(fds);
                !busy
            }
            Err(e) => {
                self.fail(&e);
                true
            }
        }
    }

    pub(crate) fn waiter_came(&mut self, now: Instant, bell: Arc<Bell>, interest: Interest) -> WaiterId {
        self.handover.waiter_came(now);
        let slot = self.waiters.iter().position(Option::is_none).unwrap_or_else(|| {
            self.waiters.push(None);
            self.waiters.len() - 1
        });
        self.waiters[slot] = Some((bell, interest));
        WaiterId(u32::try_from(slot).expect("threads are fewer"))
    }

    pub(crate) fn waiter_left(&mut self, now: Instant, id: WaiterId, found: bool) {
        self.waiters[id.0 as usize] = None;
        let kick = self.handover.waiter_left(now, id, found);
        self.kick(kick);
    }

    pub(crate) fn route_cq(&mut self, cq: CqHandle, events: Arc<EventQueue<CqEvent>>, user_data: u64) {
        self.routes.insert(cq, CqRoute { events, user_data });
    }

    /// Forgets a CQ's channel, and takes the notifications back that nobody read.
    pub(crate) fn unroute_cq(&mut self, cq: CqHandle) {
        if let Some(route) = self.routes.remove(&cq) {
            route.events.retain(|event| event.cq != cq);
        }
    }

    pub(crate) fn routes_to(&self, events: &Arc<EventQueue<CqEvent>>) -> usize {
        self.routes.values().filter(|route| Arc::ptr_eq(&route.events, events)).count()
    }

    pub(crate) fn link_stats(&self) -> LinkStats {
        self.link.stats()
    }
}

/// The device lock, held, and the time of the turn. Settles when it ends.
pub(crate) struct Turn<'a> {
    driver: MutexGuard<'a, Driver>,
    clock: &'a Clock,
    pub(crate) now: Instant,
    pub(crate) me: Option<WaiterId>,
    /// A consumer posts.
    posts: bool,
    /// A consumer polls, or posts in a row of polls.
    polls: bool,
    /// The doorbell of what was posted waits.
    waits: bool,
    /// Nothing was changed that must be settled.
    idle: bool,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(mut driver: MutexGuard<'a, Driver>, clock: &'a Clock) -> Self {
        let now = clock.now();
        if driver.company.waits() {
            // Before whatever follows: it may be that a QP is destroyed, and what was posted to it would be lost.
            driver.company.driven(now);
            driver.transmit(now);
        }
        Self::at(driver, clock, now)
    }

    /// Of a consumer that posts: what waits goes on waiting, unless this turn says otherwise.
    pub(crate) fn of_post(driver: MutexGuard<'a, Driver>, clock: &'a Clock) -> Self {
        Self::at(driver, clock, clock.now())
    }

    fn at(mut driver: MutexGuard<'a, Driver>, clock: &'a Clock, now: Instant) -> Self {
        driver.moved = 0;
        let waits = driver.company.waits();
        Self { driver, clock, now, me: None, posts: false, polls: false, waits, idle: false }
    }

    pub(crate) fn drive(&mut self) -> bool {
        let now = self.now;
        self.driver.drive(now)
    }

    /// It brought what a waiter waits for.
    pub(crate) fn waiter_found(&mut self) {
        let now = self.now;
        self.driver.handover.found(now);
    }

    /// What a QP holds back leaves: it is about to go, or to change its state.
    pub(crate) fn let_leave(&mut self, qpn: Qpn) {
        let now = self.now;
        if self.driver.device.hurry(qpn) {
            self.driver.transmit(now);
        }
    }

    /// The turn of a consumer that posts; said before each request of a list.
    pub(crate) fn posts(&mut self) {
        let now = self.now;
        self.waits = false;
        let first = !std::mem::replace(&mut self.posts, true);
        self.polls = self.driver.handover.posted(now);
        if first && self.driver.unseen >= POSTS_UNSEEN {
            // Who posts on and on may keep the progress thread off the link; and the window opens with what comes in. Not within
            // a list, whose packets leave together.
            self.driver.drive(now);
        }
        self.driver.unseen += 1;
    }

    /// Posts a send work request of a consumer.
    #[inline]
    pub(crate) fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.posts();
        self.driver.device.post_send(qpn, wr)?;
        self.waits = self.driver.rings(self.now, qpn, self.polls);
        Ok(())
    }

    /// The turn of a poller, who changes nothing else. Says whether there was anything to do.
    pub(crate) fn poll(&mut self) -> bool {
        let now = self.now;
        self.driver.polled(now);
        let worked = self.driver.drive(now);
        self.polls = worked;
        if worked {
            self.driver.handover.took();
        }
        self.idle = !worked;
        worked
    }
}

impl Deref for Turn<'_> {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.idle && !std::thread::panicking() {
            self.driver.settle(self.now, self.me, self.waits);
            if self.polls && self.driver.moved >= LABORIOUS {
                let end = self.clock.now();
                self.driver.handover.drove_until(self.now, end);
            }
        }
    }
}

/// The shorter of two limits, either of which may be none.
pub(crate) fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    [a, b].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use remanence_pmem::Region;
    use remanence_rnic::{Access, Data, RemoteAddr, SendFlags, SendOp};

    use super::*;
    use crate::{ConnectAttr, Context, Options, Qp, QpOptions};

    /// A device that nobody but the test drives, and a QP of it.
    fn side(host: u8) -> (Context, Qp, RemoteAddr) {
        let process = std::process::id();
        let address = Ipv4Addr::new(127, 230 + (process >> 8) as u8 % 20, process as u8, host).into();
        let context =
            Context::open(Options { progress: Progress::ByConsumer, ..Options::udp(address) }).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None, 0).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.reg_mr(&Region::anonymous(4096).unwrap(), access).unwrap();
        let remote = mr.remote(0);
        (context, pd.create_qp(&QpOptions::rc(&cq)).unwrap(), remote)
    }

    /// Posts that nobody answers, at times of our own: those of a consumer who posts three at a time and polls leave one by one
    /// at first, and then together. What waits leaves before its QP goes.
    #[test]
    fn small_requests_posted_one_by_one_leave_together_once_that_is_the_habit() {
        let ((a, qp, _), (_b, other, remote)) = (side(1), side(2));
        qp.connect_to(&other.endpoint(), &ConnectAttr::default()).unwrap();
        other.connect_to(&qp.endpoint(), &ConnectAttr::default()).unwrap();
        let (shared, qpn) = (&*a.handle, qp.endpoint().qpn);
        let mut now = shared.clock.now();
        let mut turn = || {
            now = now + Duration::from_micros(1);
            Turn::at(shared.lock.lock(), &shared.clock, now)
        };
        let data = Data::Inline(&[7; 8]);
        let wr = SendWr { wr_id: 0, op: SendOp::Write(remote), data, flags: SendFlags::empty(), ud: None };
        let sends = || shared.lock.lock().link_stats();
        let before = sends();
        turn().poll();
        let mut row = || {
            let start = sends().tx_batches;
            for _ in 0..3 {
                turn().post_send(qpn, &wr).unwrap();
            }
            let posted = sends().tx_batches;
            turn().poll();
            (posted - start, sends().tx_batches - posted)
        };
        let rows: Vec<_> = (0..6).map(|_| row()).collect();
        assert_eq!(rows, [(3, 0), (3, 0), (3, 0), (3, 0), (0, 1), (0, 1)]);
        turn().post_send(qpn, &wr).unwrap();
        assert_eq!(sends().tx_datagrams - before.tx_datagrams, 18, "the last one waits");
        drop(qp);
        assert_eq!(sends().tx_datagrams - before.tx_datagrams, 19);
    }
}
