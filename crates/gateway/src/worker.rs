//! A thread with an epoll, a handle of the store, and its share of the connections.
//!
//! The first worker has the listening sockets and deals connections out, each to the worker that has fewest; it also
//! sweeps the store for expired keys. A worker sleeps until something comes for it, somebody [wakes](Stopper::wake) it, or something is
//! [due](Worker::next_due): a connection has been idle or stalled for too long, the first key expires, a store is to be given a [rest](Store::rest), whose
//! server waits for that from clients that are idle, and wakes the worker then.
//!
//! It serves its connections in [rounds](Worker::serve): each has a share of the round's work at a turn, and those that are known to want little
//! go before those that could not finish, or did more than their share, and those that have only come: nothing is known of these.
//!
//! What connections have changed is written at the end of a round. Where others are in the way of a change, as a store that cleans its log may
//! be, it [waits](Waiting) with the connection that has made it, and all other ones go on. So does a command that is not written with others:
//! it is [tried again](Worker::paused). What waits for keys that another command holds is told when that one lets go of them ([`Released`], or
//! the connection's own [bell](ConnectionWaker)), and what waits for a store whose server is [away](Store::away), or has not answered yet, when it
//! is back: nobody else waits for that, and the store is [tended](Worker::tend_store) meanwhile.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use remanence_resp::engine::{Bell, Moment, Session, Shared};
use remanence_resp::joint::{Joint, Piece, Verdict};
use remanence_resp::store::{Store, StoreError};
use remanence_resp::sweep::Sweep;

use crate::connection::{After, COMMAND, Connection, Progress, Turn, apart, next_random};
use crate::process::{self, Rates};
use crate::stream::{Listener, Stream};
use crate::{Options, Stopper};

/// Wakes a worker.
pub(crate) const WAKER: Token = Token(0);
/// The store's descriptor.
const STORE: Token = Token(1);
/// The listening sockets.
const LISTENERS: usize = 2;
/// The first token of a connection; those below are the waker's and the listening sockets'.
const SEATS: usize = 1024;

/// After how long an idle connection gives back its buffers.
pub(crate) const RELAX: Duration = Duration::from_secs(2);
/// So long after something was done the store is given a rest; and between the steps of a sweep.
const TICK: Duration = Duration::from_millis(100);
/// How old the facts of the process may be when somebody asks, microseconds.
const FACTS_US: i64 = 1_000_000;
/// Steps that a sweep makes at a time, and how long it takes at most, but for the last of them.
const SWEEPS: usize = 64;
const SWEEP_TIME: Duration = Duration::from_millis(2);
/// Places without anything that it passes by.
const EMPTY: usize = 3;
const READ_BUFFER: usize = 64 * 1024;
/// What a [share](Turn::share) is at least, some 60 small commands or 16 KiB received; and the work that a round does for those together that
/// have more to do than one share. Who is alone has all of it; whoever wants little waits for one round, however many want much.
const SHARE: usize = 64 * 1024;
const ROUND: usize = 640 * 1024;
/// How long changes wait that others are in the way of: between two attempts, first and at most, and in all. A store in this process
/// [tells](Store::tells) when they may be out of the way, and the next attempt is made the first pause later, so that no number of such events makes
/// more of them. It is told of each change that is refused what room it lacks, and may find nothing that is worth cleaning for that: so
/// after a second it is asked again. A server elsewhere has no message for any of this. Its protocol has one for those that are to
/// acknowledge a view, and none for those that it has refused: neither is the end of a write of another client told to anybody, nor that the last
/// client has acknowledged a view, by which regions come free. So it is asked again and again, ever more seldom, until the time is over.
/// And so many bytes of values wait at most: those of one change more.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(32);
const SELDOM: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
const WAITING: usize = 16 << 20;
/// How often commands are put off whose key others keep changing, before each is carried out by itself; and how often they are in all.
const ROUNDS: u32 = 8;
const ATTEMPTS: u32 = 10_000;

/// What all workers share.
pub(crate) struct Common {
    pub(crate) options: Options,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stopper: Stopper,
    pub(crate) mailboxes: Vec<Mailbox>,
    /// Commands on several keys hold it alone, all others together.
    pub(crate) alone: RwLock<()>,
    /// Whoever has found its keys changed by another worker has it while it writes.
    pub(crate) turn: Mutex<()>,
    /// Workers that have it, or wait for it.
    pub(crate) contended: AtomicUsize,
    /// Until when the one that sweeps sleeps, milliseconds of Unix time: who knows of something to sweep before that wakes it.
    pub(crate) sweeps_at: AtomicI64,
    pub(crate) rates: Mutex<Rates>,
}

impl Common {
    /// Looks at the system, if nobody has lately.
    fn refresh(&self) {
        if let Ok(mut rates) = self.rates.try_lock()
            && process::unix_us() - rates.at_us() >= FACTS_US
        {
            process::refresh(&self.shared, &mut rates);
        }
    }
}

/// Where a worker gets its connections from.
pub(crate) struct Mailbox {
    sender: Sender<Arrival>,
    /// Places of connections that messages have come for, or keys that they wait for, from whatever worker.
    rung: Mutex<Vec<usize>>,
    /// Keys were given back that changes of its wait for.
    released: AtomicBool,
    /// Connections that it has or has been sent.
    load: AtomicUsize,
}

impl Mailbox {
    pub(crate) const fn new(sender: Sender<Arrival>) -> Self {
        let released = AtomicBool::new(false);
        Self { sender, rung: Mutex::new(Vec::new()), released, load: AtomicUsize::new(0) }
    }

    fn rung(&self) -> MutexGuard<'_, Vec<usize>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has a worker look at one of its connections: there are messages for it, or keys that it waits for.
struct ConnectionWaker {
    common: Weak<Common>,
    worker: usize,
    place: usize,
}

impl Bell for ConnectionWaker {
    fn ring(&self) {
        let Some(common) = self.common.upgrade() else { return };
        let mut rung = common.mailboxes[self.worker].rung();
        rung.push(self.place);
        let first = rung.len() == 1;
        drop(rung);
        if first {
            common.stopper.wake(self.worker);
        }
    }
}

/// Has a worker try again what [waits](Waiting) for keys: some were given back.
struct Released {
    common: Weak<Common>,
    worker: usize,
}

impl Bell for Released {
    fn ring(&self) {
        let Some(common) = self.common.upgrade() else { return };
        common.mailboxes[self.worker].released.store(true, Ordering::Release);
        common.stopper.wake(self.worker);
    }
}

/// A new connection, and the names of its ends.
pub(crate) struct Arrival {
    stream: Stream,
    address: String,
    local: String,
}

/// Changes that others are in the way of.
struct Waiting {
    joint: Joint,
    since: Instant,
    /// When they are tried again; nothing: when keys are given back that they wait for, or to be given up.
    next: Option<Instant>,
    pause: Duration,
}

impl Waiting {
    fn due(&self) -> Instant {
        self.next.unwrap_or(self.since + PATIENCE)
    }
}

#[derive(Default)]
struct Listeners {
    clients: Vec<Listener>,
    /// The system had no descriptor left for a connection that waits: it is asked again then.
    again: Option<Instant>,
    sweep: Sweep,
    /// When the next step of a round is taken; nothing: no round has begun.
    step_at: Option<Instant>,
    /// Commands that had been carried out at its last step.
    commands: u64,
}

impl Listeners {
    /// A few steps of the round, and the next ones a little later.
    fn step<S: Store>(&mut self, store: &mut S, common: &Common, now: Instant) {
        let (options, shared) = (&common.options, &common.shared);
        let now_ms = process::unix_ms();
        let commands = shared.stats.commands.get();
        // Where much has to go, or nothing else is to be done, there is more of it.
        let is_idle = std::mem::replace(&mut self.commands, commands) == commands;
        let (since, mut empty) = (Instant::now(), 0);
        shared.leaving_is_due();
        self.step_at = Some(now + TICK);
        for _ in 0..SWEEPS {
            let swept =
                self.sweep.step(store, &shared.stats, options.config.databases, now_ms, options.sweep);
            if let Some(round) = self.sweep.take_round() {
                shared.swept(round);
                self.step_at = None;
                return;
            }
            match swept {
                Ok(swept) if (swept.pays() || is_idle) && since.elapsed() < SWEEP_TIME => {}
                // Most databases are empty.
                Ok(swept) if swept.looked == 0 && empty < EMPTY => empty += 1,
                // A store that fails now is asked again the next time; nothing expired is served meanwhile.
                Ok(_) | Err(_) => break,
            }
        }
    }
}

pub(crate) struct Worker<S> {
    number: usize,
    poll: Poll,
    inbox: Receiver<Arrival>,
    store: S,
    common: Arc<Common>,
    listeners: Option<Listeners>,
    guests: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Places that have something to do, and have wanted little so far.
    woken: Vec<usize>,
    /// Those that are [behind](Connection::is_behind) the others, and each other's turns.
    again: VecDeque<usize>,
    /// Those that have only [come](Connection::is_new), which go by turns with these, and whether one of them was the last.
    newcomers: VecDeque<usize>,
    was_new: bool,
    /// What a turn may do in this round.
    share: usize,
    /// What connections have changed and the store has not taken yet, and whose it is: they wait for each other, no longer than one
    /// round of all that have something to do takes.
    joint: Joint,
    joined: Vec<usize>,
    waiting: Vec<Waiting>,
    /// What is rung when keys are given back that they wait for.
    released: Arc<dyn Bell>,
    /// Something waits for a store whose server is away.
    is_away: bool,
    /// Places that have a change to make, and no room to wait with it.
    parked: Vec<usize>,
    /// Places with a command that others are in the way of, and when it is tried again.
    paused: Vec<(Instant, usize)>,
    buffer: Vec<u8>,
    random: u64,
    /// All hashes that are to be folded are others' business just now.
    folded: bool,
    /// Something was done for a connection.
    was_active: bool,
    /// When the store is to be given a rest, and when connections are looked at for what they have not done for too long.
    rest_at: Option<Instant>,
    look_at: Option<Instant>,
    /// The store wants a rest.
    is_wanted: Arc<AtomicBool>,
}

impl<S: Store> Worker<S> {
    pub(crate) fn new(
        number: usize,
        poll: Poll,
        inbox: Receiver<Arrival>,
        mut store: S,
        common: Arc<Common>,
    ) -> Self {
        let (is_wanted, whole) = (Arc::new(AtomicBool::new(false)), Arc::downgrade(&common));
        let released: Arc<dyn Bell> = Arc::new(Released { common: whole.clone(), worker: number });
        let wanted = Arc::clone(&is_wanted);
        store.wake_by(Arc::new(move || {
            if !wanted.swap(true, Ordering::AcqRel)
                && let Some(common) = whole.upgrade()
            {
                common.stopper.wake(number);
            }
        }));
        Self {
            number,
            poll,
            inbox,
            store,
            common,
            listeners: None,
            guests: Vec::new(),
            free: Vec::new(),
            woken: Vec::new(),
            again: VecDeque::new(),
            newcomers: VecDeque::new(),
            was_new: false,
            share: ROUND,
            joint: Joint::with_bell(Arc::clone(&released)),
            joined: Vec::new(),
            waiting: Vec::new(),
            released,
            is_away: false,
            parked: Vec::new(),
            paused: Vec::new(),
            buffer: vec![0; READ_BUFFER],
            random: u64::from_le_bytes(process::random()),
            folded: false,
            was_active: false,
            rest_at: Some(Instant::now()),
            look_at: None,
            is_wanted,
        }
    }

    /// Gives the worker the listening sockets, if it is the one that has them.
    pub(crate) fn with_listeners(mut self, listeners: Option<Vec<Listener>>) -> std::io::Result<Self> {
        let Some(mut clients) = listeners else { return Ok(self) };
        for (index, listener) in clients.iter_mut().enumerate() {
            listener.register(self.poll.registry(), Token(LISTENERS + index))?;
        }
        self.listeners = Some(Listeners { clients, ..Listeners::default() });
        Ok(self)
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.stopping() {
            let now = Instant::now();
            let is_back = self.tend_store(now);
            let wait = match is_back || self.has_work() {
                true => Some(Duration::ZERO),
                false => self.next_due(now).map(|due| due.saturating_duration_since(now)),
            };
            self.gather(&mut events, wait);
            if !events.is_empty() {
                self.common.refresh();
            }
            self.serve();
            self.write_joint();
            self.write_waiting(Instant::now());
            self.fold();
            self.common.shared.leave_channels();
            if self.has_leaving() {
                // A store that fails now is asked again by a sweep.
                let _ = self.common.shared.delete_leaving(&mut self.store);
            }
            self.on_time(Instant::now());
        }
        self.farewell();
    }

    /// Whether there is something to do at once.
    fn has_work(&self) -> bool {
        let shared = &self.common.shared;
        let has_folds = shared.has_folds() && !self.folded;
        let is_idle = self.ready() == 0 && self.joined.is_empty();
        !is_idle || has_folds || shared.has_left_channels() || self.has_leaving()
    }

    /// When there is something to do though nothing comes.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let folds = (self.folded && self.common.shared.has_folds()).then(|| now + PAUSE_MAX);
        let again = self.listeners.as_ref().and_then(|listeners| listeners.again);
        [self.next_attempt(), self.rest_at, self.look_at, folds, again, self.next_sweep(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// The same of what is swept.
    fn next_sweep(&self, now: Instant) -> Option<Instant> {
        let (common, listeners) = (&*self.common, self.listeners.as_ref()?);
        if common.options.sweep == 0 {
            return None;
        }
        if listeners.step_at.is_some() {
            return listeners.step_at;
        }
        loop {
            let due = common.shared.sweep_due();
            common.sweeps_at.store(due, Ordering::SeqCst);
            // Whoever has told of something earlier meanwhile may not have seen that this thread is to be woken for it.
            if common.shared.sweep_due() == due {
                let left = due.saturating_sub(process::unix_ms()).max(0) as u64;
                return (due < i64::MAX).then(|| now + Duration::from_millis(left));
            }
        }
    }

    /// Waits so long for something to happen, or for as long as nothing does, and has those that it happened to wait for their turns.
    fn gather(&mut self, events: &mut Events, wait: Option<Duration>) {
        let polled = self.poll.poll(events, wait);
        self.common.shared.stats.wakeups.add(1);
        match polled {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            Err(error) => panic!("epoll of gateway worker {} failed: {error}", self.number),
        }
        for event in &*events {
            match event.token() {
                WAKER => {}
                STORE => self.is_wanted.store(true, Ordering::Release),
                Token(nth @ LISTENERS..SEATS) => self.accept(nth - LISTENERS),
                Token(seat) => self.wake(seat - SEATS, event),
            }
        }
        while let Ok(arrival) = self.inbox.try_recv() {
            self.seat(arrival);
        }
        self.take_rung();
    }

    /// Those that messages have come for, or keys, have a turn. Whoever has such a place now may be somebody else: no harm is done.
    fn take_rung(&mut self) {
        let rung = std::mem::take(&mut *self.common.mailboxes[self.number].rung());
        rung.into_iter().for_each(|place| self.enqueue(place));
    }

    fn enqueue(&mut self, place: usize) {
        if let Some(Some(connection)) = self.guests.get_mut(place)
            && !std::mem::replace(&mut connection.queued, true)
        {
            match (connection.is_behind(), connection.is_new()) {
                (true, _) => self.again.push_back(place),
                (false, true) => self.newcomers.push_back(place),
                (false, false) => self.woken.push(place),
            }
        }
    }

    /// How many connections have a turn to come.
    fn ready(&self) -> usize {
        self.woken.len() + self.newcomers.len() + self.again.len()
    }

    /// A round of turns: of all that have wanted little, and then of the new ones and of those that had more to do than their share, until a
    /// round's work has been done for them; one of them has a turn in any case.
    fn serve(&mut self) {
        self.share = (ROUND / self.ready().max(1)).max(SHARE);
        let (mut left, mut most) = (ROUND, self.newcomers.len() + self.again.len());
        for place in std::mem::take(&mut self.woken) {
            self.turn(place);
        }
        while left > 0
            && most > 0
            && let Some(place) = self.next_in_turn()
        {
            left = left.saturating_sub(self.turn(place).max(COMMAND));
            most -= 1;
        }
    }

    /// Who comes next of those for which there is a bound: by turns one that is new and one that is behind, so that neither kind keeps the
    /// other waiting.
    fn next_in_turn(&mut self) -> Option<usize> {
        self.was_new = !self.was_new;
        match self.was_new {
            true => self.newcomers.pop_front().or_else(|| self.again.pop_front()),
            false => self.again.pop_front().or_else(|| self.newcomers.pop_front()),
        }
    }

    fn stopping(&self) -> bool {
        self.common.stopper.stopping()
    }

    /// Takes every connection that waits at a listener.
    fn accept(&mut self, nth: usize) {
        let Some(mut listeners) = self.listeners.take() else { return };
        while let Some(listener) = listeners.clients.get(nth) {
            match listener.accept(self.common.options.keepalive) {
                Ok((stream, address, local)) => self.deal(Arrival { stream, address, local }),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Whoever it was has gone again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(_) => {
                    listeners.again = Some(Instant::now() + TICK);
                    break;
                }
            }
        }
        self.listeners = Some(listeners);
    }

    /// Gives a connection to the worker that has fewest.
    fn deal(&mut self, mut arrival: Arrival) {
        let common = self.common.clone();
        let loads = || common.mailboxes.iter().map(|mailbox| mailbox.load.load(Ordering::Relaxed));
        if loads().sum::<usize>() >= common.options.config.clients_max {
            common.shared.stats.rejected_connections.add(1);
            // Best effort: whoever is told no is closed anyway.
            let _ = std::io::Write::write(&mut arrival.stream, b"-ERR max number of clients reached\r\n");
            return;
        }
        let chosen = loads().enumerate().min_by_key(|(_, load)| *load).map_or(0, |(index, _)| index);
        common.mailboxes[chosen].load.fetch_add(1, Ordering::Relaxed);
        if chosen == self.number {
            self.seat(arrival);
        } else if common.mailboxes[chosen].sender.send(arrival).is_ok() {
            common.stopper.wake(chosen);
        }
    }

    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.guests.push(None);
            self.guests.len() - 1
        })
    }

    fn seat(&mut self, mut arrival: Arrival) {
        let place = self.place();
        if arrival.stream.register(self.poll.registry(), Token(SEATS + place)).is_err() {
            self.free.push(place);
            self.common.mailboxes[self.number].load.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let bell =
            Box::new(ConnectionWaker { common: Arc::downgrade(&self.common), worker: self.number, place });
        let (shared, now) = (&self.common.shared, process::unix_us());
        let session = Session::open_with_bell(shared, &arrival.address, &arrival.local, now, Some(bell));
        let connection = Connection::new(arrival.stream, session, self.common.options.limits);
        self.guests[place] = Some(Box::new(connection));
        self.enqueue(place);
    }

    fn wake(&mut self, place: usize, event: &Event) {
        if let Some(Some(connection)) = self.guests.get_mut(place) {
            let hung_up = event.is_read_closed() || event.is_error();
            connection.wake(event.is_readable(), event.is_writable(), hung_up);
        }
        self.enqueue(place);
    }

    /// Does what there is to do at a place, and says how much work it was. The place may have been left since the event, or taken by somebody
    /// else: a turn without need does no harm.
    fn turn(&mut self, place: usize) -> usize {
        let mut progress = Progress::default();
        loop {
            let crowded = self.is_crowded();
            let common = &*self.common;
            let Some(Some(connection)) = self.guests.get_mut(place) else { return 0 };
            connection.queued = false;
            self.was_active = true;
            let mut turn = Turn {
                store: &mut self.store,
                shared: &common.shared,
                alone: &common.alone,
                buffer: &mut self.buffer,
                random: &mut self.random,
                output_high: common.options.output_high,
                memory: common.options.memory,
                joint: &mut self.joint,
                is_crowded: crowded,
                place,
                share: self.share,
                progress,
            };
            let after = connection.turn(&mut turn);
            progress = turn.progress;
            let pause = (connection.pause * 2).clamp(PAUSE, PAUSE_MAX);
            connection.pause = if after == After::InTheWay { pause } else { Duration::ZERO };
            match after {
                After::Wait => {}
                After::Again => self.enqueue(place),
                After::Joint => self.joined.push(place),
                After::Full if crowded => {
                    connection.queued = true;
                    self.parked.push(place);
                }
                After::Full => {
                    self.write_joint();
                    continue;
                }
                After::InTheWay => {
                    connection.queued = true;
                    let next = self.next_try(Instant::now(), pause);
                    self.paused.push((next, place));
                }
                After::Close => self.leave(place),
            }
            return progress.work();
        }
    }

    /// Writes what was put off: one wait of the store for all of it. Then it is answered.
    fn write_joint(&mut self) {
        if self.joined.is_empty() && self.joint.is_empty() {
            return;
        }
        let common = Arc::clone(&self.common);
        let (mut turn, mut left) = (None, Vec::new());
        for round in 0.. {
            // Workers that change the same keys would be in each other's way for ever: from the second round on each has its turn, and
            // as long as there is one, so have all.
            if turn.is_none() && (round > 0 || common.contended.load(Ordering::Relaxed) > 0) {
                common.contended.fetch_add(1, Ordering::Relaxed);
                turn = Some(common.turn.lock().unwrap_or_else(PoisonError::into_inner));
            }
            let _beside = apart(&common.alone, false);
            // Who is always too late is carried out by itself.
            let by_itself = round >= ROUNDS;
            for (piece, verdict) in std::mem::take(&mut left) {
                let verdict = if round < ATTEMPTS { verdict } else { Verdict::Failed(StoreError::InTheWay) };
                self.mend(&piece, verdict);
                if by_itself {
                    left.extend(self.write_once());
                }
            }
            left.extend(self.write_once());
            if left.is_empty() {
                break;
            }
        }
        if turn.is_some() {
            common.contended.fetch_sub(1, Ordering::Relaxed);
        }
        drop(turn);
        self.was_active = true;
        let waits: BTreeSet<usize> = self.waiting.iter().flat_map(|waiting| waiting.joint.owners()).collect();
        for place in std::mem::take(&mut self.joined) {
            if waits.contains(&place) {
                continue;
            }
            let Some(Some(connection)) = self.guests.get_mut(place) else { continue };
            match connection.release(&common.shared) {
                After::Close => self.leave(place),
                After::Again => self.enqueue(place),
                After::Wait | After::Joint | After::Full | After::InTheWay => {}
            }
        }
    }

    /// Writes what was put off, and returns what is to be carried out again. What others are in the way of waits.
    fn write_once(&mut self) -> Vec<(Piece, Verdict)> {
        let left = self.joint.write(&mut self.store, &self.common.shared);
        if !self.joint.is_empty() {
            let empty = Joint::with_bell(Arc::clone(&self.released));
            let (joint, since) = (std::mem::replace(&mut self.joint, empty), Instant::now());
            let next = joint.is_obstructed().then(|| self.next_try(since, PAUSE));
            self.waiting.push(Waiting { joint, since, next, pause: PAUSE });
        }
        left
    }

    /// Lets a store go on whose server is away or has not answered yet, before this thread sleeps; whether it is back, and somebody waits for
    /// that.
    fn tend_store(&mut self, now: Instant) -> bool {
        self.is_away |= self.store.away().is_some();
        if !self.is_away {
            return false;
        }
        // What comes from here on wakes this thread, and what has come before is looked at behind this.
        self.give_rest(now);
        let is_back = self.store.away().is_none();
        let is_awaited = !(self.waiting.is_empty() && self.paused.is_empty());
        self.is_away = !is_back || is_awaited;
        is_back && is_awaited
    }

    /// When what the store is in the way of is tried again: after a pause, or when a server that is away is not waited for any more.
    fn next_try(&mut self, now: Instant, pause: Duration) -> Instant {
        let away = self.store.away();
        self.is_away |= away.is_some();
        let pause = if self.store.tells() { SELDOM } else { pause };
        now + away.unwrap_or(pause)
    }

    /// What waits for something that has happened is due: keys were given back, or the store's server is there again.
    fn hasten(&mut self, now: Instant) {
        let released = self.common.mailboxes[self.number].released.swap(false, Ordering::AcqRel);
        let is_back = self.is_away && self.store.away().is_none();
        if is_back {
            self.is_away = false;
            self.paused.iter_mut().for_each(|(next, _)| *next = now);
        }
        if released || is_back {
            self.waiting.iter_mut().for_each(|waiting| waiting.next = Some(now));
        }
    }

    /// What others are in the way of is tried again soon: they may not be any more.
    fn hasten_hindered(&mut self, now: Instant) {
        let soon = now + PAUSE;
        let waiting = self.waiting.iter_mut().filter_map(|waiting| waiting.next.as_mut());
        let paused = self.paused.iter_mut().map(|(next, _)| next);
        waiting.chain(paused).for_each(|next| *next = soon.min(*next));
    }

    /// Has a connection find out what a command of its that came out otherwise is answered.
    fn mend(&mut self, piece: &Piece, verdict: Verdict) {
        self.random = next_random(self.random);
        let moment = Moment { unix_us: process::unix_us(), random: self.random };
        if let Some(Some(connection)) = self.guests.get_mut(piece.owner) {
            let store = (&mut self.store, &mut self.joint);
            connection.mend((piece, verdict), store, &self.common.shared, moment);
        }
    }

    /// When something that others are in the way of is tried again.
    fn next_attempt(&self) -> Option<Instant> {
        let paused = self.paused.iter().map(|(next, _)| *next);
        self.waiting.iter().map(Waiting::due).chain(paused).min()
    }

    /// Whether what waits is so much that nothing more is put off.
    fn is_crowded(&self) -> bool {
        self.waiting.iter().map(|waiting| waiting.joint.value_bytes()).sum::<usize>() > WAITING
    }

    /// Tries again to write what others were in the way of, as far as it is time. What comes out otherwise is carried out again with what is
    /// put off next.
    fn write_waiting(&mut self, now: Instant) {
        if self.waiting.is_empty() && self.parked.is_empty() && self.paused.is_empty() {
            return;
        }
        let common = Arc::clone(&self.common);
        self.hasten(now);
        let mut over = BTreeSet::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            if now < waiting.due() {
                self.waiting.push(waiting);
                continue;
            }
            over.extend(waiting.joint.owners());
            let _beside = apart(&common.alone, false);
            let goes_on = now.saturating_duration_since(waiting.since) < PATIENCE;
            let left = match goes_on || waiting.joint.is_under_way() {
                true => waiting.joint.write(&mut self.store, &common.shared),
                false => waiting.joint.give_up(),
            };
            for (piece, verdict) in left {
                self.mend(&piece, verdict);
            }
            if !waiting.joint.is_empty() {
                let pause = (waiting.pause * 2).min(PAUSE_MAX);
                let next = waiting.joint.is_obstructed().then(|| self.next_try(now, pause));
                self.waiting.push(Waiting { next, pause, ..waiting });
            }
        }
        // Those that still wait for something stay.
        self.joined.extend(over);
        self.write_joint();
        let mut again: Vec<usize> =
            self.paused.extract_if(.., |(next, _)| *next <= now).map(|(_, place)| place).collect();
        if !self.is_crowded() {
            again.append(&mut self.parked);
        }
        for place in again {
            if let Some(Some(connection)) = self.guests.get_mut(place) {
                connection.queued = false;
            }
            self.enqueue(place);
        }
    }

    /// Brings the changes of one large hash into its parts. Others may be at it, and this worker then waits for something else to do.
    fn fold(&mut self) {
        self.folded = false;
        if !self.common.shared.has_folds() {
            return;
        }
        self.random = next_random(self.random);
        let moment = Moment { unix_us: process::unix_us(), random: self.random };
        let _beside = apart(&self.common.alone, false);
        // A store that fails now is asked again when the hash is changed the next time.
        self.folded = !self.common.shared.fold(&mut self.store, moment).unwrap_or(true);
    }

    fn leave(&mut self, place: usize) {
        let Some(mut connection) = self.guests.get_mut(place).and_then(Option::take) else { return };
        while connection.drain(&mut self.buffer, READ_BUFFER) {}
        connection.stream.deregister(self.poll.registry());
        connection.close(&self.common.shared);
        self.common.mailboxes[self.number].load.fetch_sub(1, Ordering::Relaxed);
        self.free.push(place);
    }

    /// Does what is due.
    fn on_time(&mut self, now: Instant) {
        if std::mem::take(&mut self.was_active) {
            let limit = self.common.options.least_limit();
            self.rest_at.get_or_insert(now + TICK);
            self.look_at = Some(self.look_at.map_or(now + limit, |at| at.min(now + limit)));
            // Whoever replaces a hash leaves its parts.
            if self.common.shared.has_parts() {
                self.common.shared.sweep_by(process::unix_ms());
            }
        }
        let is_wanted = self.is_wanted.swap(false, Ordering::AcqRel);
        if is_wanted && self.store.tells() {
            self.hasten_hindered(now);
        }
        if is_wanted || self.rest_at.is_some_and(|at| at <= now) {
            self.give_rest(now);
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = self.look_at_connections().map(|time| now + time);
        }
        self.housekeeping(now);
    }

    fn give_rest(&mut self, now: Instant) {
        let is_told = self.listen_to_store();
        let next = self.store.rest().or((!is_told).then_some(TICK));
        self.rest_at = next.map(|time| now + time);
    }

    /// Has the store's descriptor wake this worker, if there is one; whether the worker will hear of what the store wants.
    fn listen_to_store(&mut self) -> bool {
        let Some(descriptor) = self.store.descriptor() else { return true };
        let listens =
            self.poll.registry().register(&mut SourceFd(&descriptor.as_raw_fd()), STORE, Interest::READABLE);
        // It is a new one where the connection is.
        listens.is_ok() || listens.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
    }

    /// Closes the connections that have not done for too long what they are to do; and when the next one is due.
    fn look_at_connections(&mut self) -> Option<Duration> {
        let now_us = process::unix_us();
        let (options, shared) = (&self.common.options, &self.common.shared);
        let idle_us = options.config.idle_timeout_s.saturating_mul(1_000_000) as i64;
        let (mut over, mut next) = (Vec::new(), None);
        let mut is_over = |since_us: i64, limit_us: i64| {
            let left = since_us.saturating_add(limit_us).saturating_sub(now_us);
            if left >= 0 {
                next = Some(next.map_or(left, |next: i64| next.min(left)));
            }
            left < 0
        };
        for (place, guest) in self.guests.iter_mut().enumerate() {
            let Some(connection) = guest else { continue };
            // What it waits for is written, or given up, before it may go; and then it is looked at.
            if connection.is_busy() {
                continue;
            }
            let peer = connection.session().peer().clone();
            if !connection.is_relaxed && is_over(peer.last_us(), RELAX.as_micros() as i64) {
                connection.relax(shared);
            }
            let idle = idle_us > 0 && !peer.listens() && is_over(peer.last_us(), idle_us);
            let stall_us = options.stall.as_micros() as i64;
            let stalled = connection.stalled_us().is_some_and(|since| is_over(since, stall_us));
            if idle || stalled {
                shared.stats.idle_closed.add(1);
            }
            let auth_us = options.auth_time.as_micros() as i64;
            let stranger = connection.session().stranger(shared) && is_over(peer.opened_us(), auth_us);
            if stranger {
                shared.stats.stranger_closed.add(1);
            }
            if idle || stalled || stranger {
                over.push(place);
            }
        }
        over.into_iter().for_each(|place| self.leave(place));
        // A moment later than that it is over.
        next.map(|left| Duration::from_micros(left as u64 + 1))
    }

    /// Whether parts of large hashes that were deleted are to go, and this worker sees to that.
    fn has_leaving(&self) -> bool {
        self.listeners.is_some() && self.common.shared.has_leaving()
    }

    /// What one worker does for all; the others wake it if there is something to do before it would look.
    fn housekeeping(&mut self, now: Instant) {
        let common = &*self.common;
        let Some(listeners) = &mut self.listeners else {
            if common.shared.sweep_due() < common.sweeps_at.load(Ordering::SeqCst) {
                common.stopper.wake(0);
            }
            return;
        };
        let options = &common.options;
        if options.sweep > 0 {
            match listeners.step_at {
                Some(at) if at <= now => listeners.step(&mut self.store, common, now),
                // What is to be deleted may be about to be written.
                None if common.shared.sweep_due() <= process::unix_ms() => {
                    common.shared.sweeps();
                    common.sweeps_at.store(i64::MIN, Ordering::SeqCst);
                    listeners.step_at = Some(now + TICK);
                }
                _ => {}
            }
        }
        if listeners.again.take_if(|at| *at <= now).is_some() {
            for nth in 0..listeners.clients.len() {
                self.accept(nth);
            }
        }
    }

    /// Answers what has been received, sends what is owed as long as the grace lasts, and closes everything.
    fn farewell(mut self) {
        self.listeners = None;
        self.write_joint();
        while let Ok(arrival) = self.inbox.try_recv() {
            self.seat(arrival);
        }
        self.share = 2 * ROUND;
        for place in 0..self.guests.len() {
            // One more look at every socket: requests that had arrived when the stop came are answered.
            if let Some(connection) = &mut self.guests[place] {
                connection.wake(true, true, false);
            }
            // Where some are put off, others may have come behind them.
            for _ in 0..2 {
                self.turn(place);
                self.write_joint();
            }
            if let Some(connection) = &mut self.guests[place] {
                connection.leave();
            }
        }
        let deadline = Instant::now() + self.common.options.grace;
        let mut events = Events::with_capacity(1024);
        loop {
            // A pipeline that a turn could not finish goes on, to the end of what has been received.
            while !(self.joined.is_empty() && self.ready() == 0) {
                self.serve();
                self.write_joint();
            }
            self.write_waiting(Instant::now());
            if self.ready() > 0 {
                continue;
            }
            for place in 0..self.guests.len() {
                if self.guests[place].as_ref().is_some_and(|guest| !guest.owes() && !guest.waits()) {
                    self.leave(place);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.guests.iter().all(Option::is_none) || left.is_zero() {
                break;
            }
            let now = Instant::now();
            let is_back = self.tend_store(now);
            let rest_at = self.rest_at.filter(|_| self.is_away);
            let due = [self.next_attempt(), rest_at].into_iter().flatten().min();
            let left = match due {
                _ if is_back => Duration::ZERO,
                Some(due) => left.min(due.saturating_duration_since(now)),
                None => left,
            };
            if self.poll.poll(&mut events, Some(left)).is_err() {
                continue;
            }
            for event in &events {
                if let Token(seat @ SEATS..) = event.token() {
                    self.wake(seat - SEATS, event);
                }
            }
            self.take_rung();
        }
        for place in 0..self.guests.len() {
            self.leave(place);
        }
    }
}
