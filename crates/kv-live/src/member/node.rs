//! What all threads of a member share: its log and its image, what it knows of the others, and what it is at the moment.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_pmem::{Region, Survives};
use remanence_remote::SessionControl;
use remanence_remotelog::Epoch;
use remanence_remotelog::format::root::State as LogState;
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::store::Store;
use remanence_remotelog::{OwnLog, Part};

use super::connection::MemberConnection;
use super::wire::MemberStats;
use crate::{Error, Metrics};
use remanence_coord::takeover::{Action, Gone, Input, Obstacle, Own, Role, Takeover};
use remanence_coord::watch::beat;
use remanence_kv::replica::keeper::Ledger;
use remanence_kv::replica::{ImageReply, Keeper, LeadError, Order, driver};

/// A connection to every member, in the members' order, as a primary takes them.
pub(super) type Connections = driver::Connections<MemberConnection>;

/// Connections to members that are there again, for a primary that does without them.
#[derive(Debug, Default)]
pub(super) struct Back {
    /// To all of them: some have promised their logs to somebody who did not become the primary, and take nothing more in this epoch.
    pub(super) all: Option<Connections>,
    /// To those that it has lost, and in the same epoch.
    pub(super) some: Vec<(String, MemberConnection)>,
}

/// What is known of another member.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberView {
    /// What it said last. Only what can be a member of this store counts.
    pub(super) said: Option<MemberStats>,
    /// Why it is not there.
    pub(super) why: String,
    /// It is there, and no member of this store.
    pub(super) is_stranger: bool,
}

/// What a member has, as it was seen when nobody worked on it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) log: LogState,
    name: Uuid,
    next: u64,
    pub(super) ledger: Ledger,
    /// Why its image takes no change any more.
    pub(super) stuck: Option<String>,
}

fn see(store: &Store<Part>, keeper: &Keeper<Region>) -> Seen {
    Seen {
        log: *store.state(),
        name: store.superblock().uuid,
        next: store.tail().sequence,
        ledger: keeper.ledger(),
        stuck: keeper.failure().map(ToOwned::to_owned),
    }
}

impl Seen {
    /// It has never been a member of a store.
    pub(super) fn is_new(&self) -> bool {
        self.log.group == Uuid::default()
    }

    /// It has what a store was kept in, whole or not.
    pub(super) fn holds(&self) -> bool {
        !self.is_new() || !self.ledger.is_fresh()
    }

    /// As far as it matters for who takes over; `acks`: how many acknowledge if the store is yet to be made.
    fn own(&self, acks: usize, stalled: Duration, failed: bool) -> Own {
        Own {
            promised: self.log.promised,
            is_new: self.is_new(),
            holds: self.holds(),
            has_image: self.ledger.can_follow(&self.log),
            is_stuck: self.stuck.is_some(),
            acks: if self.is_new() { acks } else { self.log.acks.into() },
            stalled,
            failed,
        }
    }
}

impl State {
    /// For how long one and the same work on the log has been under way, as far as anybody has looked: members that tell each
    /// other what they are do so all the time.
    fn stalled(&mut self, under_way: Option<u64>, now: Duration) -> Duration {
        match (under_way, self.working) {
            (Some(number), Some((known, since))) if number == known => now.saturating_sub(since),
            (under_way, _) => {
                self.working = under_way.map(|number| (number, now));
                Duration::ZERO
            }
        }
    }

    /// Something has happened that matters for who takes over. Whoever says so calls [`Node::stir`] afterwards.
    pub(super) fn happens(&mut self, now: Duration, input: Input) {
        self.look_at_medium(now);
        self.takeover.handle(now, input);
        self.settle();
    }

    /// Before anything is decided it is known that the log's medium failed, whoever met that.
    fn look_at_medium(&mut self, now: Duration) {
        if !self.own.failed && self.log.failure().is_err() {
            self.own.failed = true;
            self.takeover.handle(now, Input::Own(self.own));
        }
    }

    fn settle(&mut self) {
        while let Some(action) = self.takeover.poll() {
            self.is_stirred = true;
            match action {
                Action::Become(_) => self.news += 1,
                Action::Lead => self.is_to_lead = true,
                Action::Explain(obstacle) => self.obstacle = Some(obstacle),
            }
        }
        self.is_stirred |= self.takeover.deadline().is_some_and(|deadline| deadline < self.sleeps_until);
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// Who is to be the primary, as far as this member is concerned.
    pub(super) takeover: Takeover,
    log: OwnLog,
    own: Own,
    /// For how long its medium has not answered.
    stalled: Duration,
    /// There is something to do for the thread that takes part.
    is_stirred: bool,
    /// That thread does nothing until then by itself.
    sleeps_until: Duration,
    is_to_lead: bool,
    obstacle: Option<Obstacle>,
    /// Why it does not serve, or could not.
    pub(super) why: String,
    pub(super) store_port: u16,
    /// Of a primary.
    pub(super) store: Option<Metrics>,
    pub(super) epoch: Epoch,
    /// Members to which a primary has no connection, and those that have one and do not take part yet.
    pub(super) lost: Vec<String>,
    pub(super) joining: Vec<String>,
    pub(super) rebuilding: Option<(String, u64, u64)>,
    pub(super) peers: Vec<MemberView>,
    /// Counts what others are to be told at once.
    pub(super) news: u64,
    pub(super) seen: Seen,
    /// What was being done with the log when somebody looked, and since when.
    working: Option<(u64, Duration)>,
    /// Why its image does not follow.
    image_why: String,
    /// Members whose images do not follow, and why: of a primary.
    pub(super) behind: Vec<String>,
    /// Connections for a primary that does without some members.
    pub(super) back: Back,
    /// Of a primary: the processes that it is connected to; 0 for those that are gone.
    lives: Vec<u64>,
    /// Counts what the thread that connects to members is to look at.
    returns: u64,
    /// It has followed a primary, or was one.
    pub(super) joined: bool,
    /// What makes it useless to go on.
    pub(super) fatal: Option<String>,
    /// The member ends.
    pub(super) over: bool,
}

/// What the thread that takes part is to do now.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) role: Role,
    /// Somebody else serves.
    pub(super) is_served: bool,
    /// It is to try to lead.
    pub(super) is_to_lead: bool,
    /// Why it cannot, though nobody serves.
    pub(super) obstacle: Option<Obstacle>,
    /// Why the image does not follow; empty if it does.
    pub(super) trouble: String,
    pub(super) fatal: Option<String>,
}

/// While it lives, only the member itself changes its image.
#[derive(Debug)]
pub(super) struct ImageGuard<'a>(&'a Node);

impl Drop for ImageGuard<'_> {
    fn drop(&mut self) {
        self.0.shown.store(false, Ordering::Release);
    }
}

/// What the threads of a member share: its log, its image, and what it knows of the others.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) names: Vec<String>,
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) who: usize,
    pub(super) log: OwnLog,
    keeper: Mutex<Keeper<Region>>,
    pub(super) image: Region,
    /// What this member serves shows its image where it has not been written since: nobody else may change that one. Set
    /// under the log's lock, as a promise is.
    shown: AtomicBool,
    pub(super) record_max: usize,
    pub(super) log_port: u16,
    life: u64,
    /// How many acknowledge in a store that is yet to be made.
    acks: usize,
    pub(super) survives: String,
    log_survives: Survives,
    /// Who has been silent for so long is taken for dead.
    pub(super) notice: Duration,
    begin: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// Reaches the serving thread of the store that this member serves.
    store: Mutex<Option<SessionControl>>,
    /// There is something to do for that thread which no client has asked for.
    woken: AtomicBool,
}

pub(super) struct Parts {
    pub(super) names: Vec<String>,
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) who: usize,
    pub(super) log: OwnLog,
    pub(super) keeper: Keeper<Region>,
    pub(super) record_max: usize,
    pub(super) log_port: u16,
    pub(super) life: u64,
    pub(super) acks: usize,
    pub(super) survives: String,
    pub(super) log_survives: Survives,
    pub(super) notice: Duration,
}

impl Node {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { names, addrs, who, log, keeper, record_max, log_port, life, acks, notice, .. } = parts;
        let seen = log.with(|store| see(store, &keeper));
        let own = seen.own(acks, Duration::ZERO, false);
        let state = State {
            takeover: Takeover::new(Duration::ZERO, who, names.len(), notice, own),
            log: log.clone(),
            own,
            stalled: Duration::ZERO,
            is_stirred: true,
            sleeps_until: Duration::ZERO,
            is_to_lead: false,
            obstacle: None,
            why: String::new(),
            store_port: 0,
            store: None,
            epoch: Epoch::NONE,
            lost: Vec::new(),
            joining: Vec::new(),
            rebuilding: None,
            news: 0,
            seen,
            working: None,
            image_why: keeper.damage().unwrap_or_default(),
            behind: Vec::new(),
            peers: names.iter().map(|_| MemberView::default()).collect(),
            back: Back::default(),
            lives: vec![0; names.len()],
            returns: 0,
            joined: false,
            fatal: None,
            over: false,
        };
        let image = keeper.image().clone();
        Arc::new(Self {
            names,
            addrs,
            who,
            log,
            keeper: Mutex::new(keeper),
            image,
            shown: AtomicBool::new(false),
            record_max,
            log_port,
            life,
            acks,
            survives: parts.survives,
            log_survives: parts.log_survives,
            notice,
            begin: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            store: Mutex::new(None),
            woken: AtomicBool::new(false),
        })
    }

    /// This member serves the store from now on, by a thread that is reached so, or serves it no more.
    pub(super) fn serves(&self, store: Option<SessionControl>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
        self.wake_primary();
    }

    /// Wakes the thread that serves the store, if there is one: something has happened that it is to look at. Whoever calls it may hold any
    /// lock of this node.
    pub(super) fn wake_primary(&self) {
        self.woken.store(true, Ordering::Release);
        if let Some(store) = &*self.store.lock().unwrap_or_else(PoisonError::into_inner) {
            store.wake();
        }
    }

    /// Whether somebody has woken the thread that serves the store since this was asked last.
    pub(super) fn take_wake(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// There is something for the thread that connects to members.
    pub(super) fn stir_returns(&self, mut state: MutexGuard<'_, State>) {
        state.returns += 1;
        drop(state);
        self.notify();
    }

    /// Waits until there is something for the thread that connects to members, beyond this, or until then. Returns what there is.
    pub(super) fn wait_for_returns(&self, known: u64, until: Option<Duration>) -> u64 {
        let mut state = self.lock();
        loop {
            let left = until.map(|until| until.saturating_sub(self.now()));
            if state.returns != known || left.is_some_and(|left| left.is_zero()) {
                return state.returns;
            }
            state = match left {
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Something was heard of a member, or nothing was: a primary looks, and so does whoever connects to members for it.
    fn look_for_primary(&self, mut state: MutexGuard<'_, State>, at: usize) {
        let is_primary = state.takeover.role() == Role::Primary;
        if is_primary && self.has_changed(&state, at) {
            self.wake_primary();
        }
        let is_lost = self.lost(&state).contains(&at);
        if is_primary && state.takeover.wants_back(at, state.epoch, is_lost, self.now()) {
            state.returns += 1;
            state.is_stirred = true;
        }
        self.stir(state);
    }

    /// Connections to members that are there again.
    pub(super) fn take_back(&self) -> Back {
        std::mem::take(&mut self.lock().back)
    }

    /// Has a thread of this member end it with a sentence if that panics, as nobody else would notice.
    pub(super) const fn noticed(&self, what: &'static str) -> Noticed<'_> {
        Noticed { node: self, what }
    }

    /// Does what a thread beside the serving one is for. If that panics the member ends [with a sentence](Self::noticed), and so does the
    /// thread, as who begins such threads waits for all of them.
    pub(super) fn watched(&self, what: &'static str, act: impl FnOnce()) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _noticed = self.noticed(what);
            act();
        }));
    }

    /// It is useless to go on, and this is why.
    pub(super) fn give_up(&self, why: &impl ToString) {
        let mut state = self.lock();
        state.fatal.get_or_insert_with(|| why.to_string());
        (state.is_stirred, state.own.failed) = (true, true);
        let own = state.own;
        state.happens(self.now(), Input::Own(own));
        state.news += 1;
        self.stir(state);
    }

    /// Whether it is over, and has something to say about that.
    pub(super) fn last_word(&self) -> (bool, bool) {
        let state = self.lock();
        (state.over, state.fatal.is_some())
    }

    /// The state is whole between any two statements that can panic.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for a change.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Wakes whoever waits for a change, if there was one.
    pub(super) fn stir(&self, state: MutexGuard<'_, State>) {
        let is_stirred = state.is_stirred;
        drop(state);
        if is_stirred {
            self.notify();
        }
    }

    /// There is something to do for the thread that takes part, or to be looked at.
    pub(super) fn stir_part(&self) {
        let mut state = self.lock();
        state.is_stirred = true;
        self.stir(state);
    }

    /// Waits until there is something to do for the thread that takes part.
    pub(super) fn turn(&self) -> Turn {
        let mut state = self.lock();
        let news = state.news;
        loop {
            let now = self.now();
            if state.takeover.deadline().is_some_and(|deadline| deadline <= now) {
                state.look_at_medium(now);
                state.takeover.timeout(now);
                state.settle();
            }
            if state.is_stirred || state.over {
                break;
            }
            // Who is silent for too long says so to nobody.
            let gone = match state.takeover.role() {
                Role::Primary if (0..self.names.len()).any(|at| self.has_changed(&state, at)) => {
                    self.wake_primary();
                    None
                }
                Role::Primary => self.next_gone(&state, now),
                _ => None,
            };
            let deadline = [state.takeover.deadline(), gone].into_iter().flatten().min();
            state.sleeps_until = deadline.unwrap_or(Duration::MAX);
            state = match deadline {
                Some(deadline) => {
                    let left = deadline.saturating_sub(now);
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        (state.is_stirred, state.sleeps_until) = (false, Duration::ZERO);
        if state.news != news {
            // What a deadline has decided is told to others at once.
            self.notify();
        }
        Turn {
            role: state.takeover.role(),
            is_served: state.takeover.is_served(),
            is_to_lead: std::mem::take(&mut state.is_to_lead),
            obstacle: state.obstacle.take(),
            trouble: state.image_why.clone(),
            fatal: state.fatal.clone(),
        }
    }

    /// How often members tell each other what they are.
    pub(super) fn interval(&self) -> Duration {
        beat(self.notice)
    }

    /// The time, for [`Takeover`]. Who has the lock asks for it: no two see it in another order.
    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Waits for that long, or until others are to be told something: news beyond these. Returns the news.
    pub(super) fn wait_for_news(&self, known: u64, time: Duration) -> u64 {
        let begin = Instant::now();
        let mut state = self.lock();
        loop {
            let left = time.saturating_sub(begin.elapsed());
            if state.over || state.news != known || left.is_zero() {
                return state.news;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What this member has, without waiting for who works on it.
    pub(super) fn seen(&self) -> Seen {
        let fresh = self
            .log
            .try_with(|store| see(store, &self.keeper.lock().unwrap_or_else(PoisonError::into_inner)));
        let under_way = self.log.under_way();
        let mut state = self.lock();
        let now = self.now();
        if let Some(fresh) = fresh {
            state.seen = fresh;
        }
        state.stalled = state.stalled(under_way, now);
        // In whole beats: or that it still waits would be news whenever somebody looks.
        let beats = state.stalled.as_nanos() / self.interval().as_nanos();
        let failed = state.fatal.is_some() || self.log.failure().is_err();
        let own = state.seen.own(self.acks, self.interval() * beats as u32, failed);
        if own != state.own {
            state.own = own;
            state.happens(now, Input::Own(own));
        }
        let seen = state.seen.clone();
        self.stir(state);
        seen
    }

    pub(super) fn own_name(&self) -> &str {
        &self.names[self.who]
    }

    /// A medium that shows the image, for the store that this member serves from now on; nobody else's order changes the image
    /// until the guard is dropped. The caller has taken the log over in that epoch.
    ///
    /// # Errors
    /// The log is promised to somebody else by now, or the kernel gives no memory.
    pub(super) fn show_image(&self, epoch: Epoch) -> Result<(Region, ImageGuard<'_>), Error> {
        self.log.with(|store| {
            if store.state().promised != epoch {
                return Err(Error::Argument(LeadError::Deposed.to_string()));
            }
            let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
            keeper.check().map_err(Error::Argument)?;
            let shown = self.image.private_copy()?;
            self.shown.store(true, Ordering::Relaxed);
            Ok((shown, ImageGuard(self)))
        })
    }

    /// Carries an order of another member out, which is the primary.
    pub(super) fn obey_other(&self, epoch: Epoch, order: &Order) -> ImageReply {
        // Who only reads changes nothing.
        let changes = !matches!(order, Order::Read { .. });
        let happens = |input| {
            let mut state = self.lock();
            let now = self.now();
            state.happens(now, input);
            self.stir(state);
        };
        happens(Input::Obeys);
        let told = self.carry_out(epoch, order, |node| changes && node.shown.load(Ordering::Acquire));
        happens(Input::Obeyed((!matches!(told, ImageReply::Refused(_))).then_some(epoch)));
        told
    }

    /// Carries an order of this member, which is the primary, out.
    pub(super) fn obey(&self, epoch: Epoch, order: &Order) -> ImageReply {
        self.carry_out(epoch, order, |_| false)
    }

    fn carry_out(&self, epoch: Epoch, order: &Order, is_in_use: impl Fn(&Self) -> bool) -> ImageReply {
        let told = self.log.with(|store| {
            if is_in_use(self) && store.state().promised == epoch {
                return ImageReply::Refused("it was the primary, and is ending that".into());
            }
            let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
            keeper.obey(store, epoch, order)
        });
        let mut state = self.lock();
        let before = state.image_why.clone();
        match &told {
            // Not to whom the log is promised, and that is no trouble of the image.
            ImageReply::Refused(_)
                if self.log.try_with(|store| store.state().promised != epoch) == Some(true) => {}
            ImageReply::Refused(_) if is_in_use(self) => {}
            ImageReply::Refused(why) => state.image_why = format!("its image does not follow: {why}"),
            ImageReply::Applied(_) | ImageReply::Ok => state.image_why.clear(),
            ImageReply::NeedsImage | ImageReply::Bytes(_) => {}
        }
        state.is_stirred |= state.image_why != before;
        self.stir(state);
        told
    }

    /// What this member says of itself.
    pub(super) fn said(&self) -> MemberStats {
        let Seen { log: log_state, name: log, next, ledger, .. } = self.seen();
        let state = self.lock();
        let stalled = state.stalled.as_millis() as u64;
        let role = state.takeover.role();
        let (rebuilding, sent, of) = state.rebuilding.clone().unwrap_or_default();
        let primary = role == Role::Primary;
        MemberStats {
            role,
            who: self.who as u16,
            members: self.names.clone(),
            acks: log_state.acks,
            image: self.image.len(),
            epoch: if primary { state.epoch } else { log_state.promised },
            group: log_state.group,
            log,
            life: self.life,
            log_port: self.log_port,
            store_port: state.store_port,
            first: log_state.head.sequence,
            next,
            applied: ledger.applied,
            complete: ledger.complete,
            durable: self.image.domain().guarantee().is_durable(),
            log_survives: self.log_survives,
            sent,
            of,
            lost: state.lost.iter().chain(&state.joining).cloned().collect(),
            rebuilding,
            why: match &state.fatal {
                Some(why) => why.clone(),
                None if state.why.is_empty() => state.image_why.clone(),
                None => state.why.clone(),
            },
            survives: self.survives.clone(),
            stalled,
            failed: state.own.failed,
            behind: match primary {
                true => state.behind.iter().cloned().chain(self.strangers(&state)).collect(),
                false => Vec::new(),
            },
        }
    }

    /// Why what says this of itself is no other member of this store.
    fn stranger(&self, said: &MemberStats, group: Uuid, log: Uuid) -> Option<String> {
        let name = said.members.get(usize::from(said.who)).map_or("?", String::as_str);
        if said.members != self.names {
            return Some(format!(
                "{name} was started with the members {}, and this one with {}; start all of them with the same list",
                said.members.join(","),
                self.names.join(",")
            ));
        }
        if said.log == log {
            return Some(format!(
                "{name} and {} serve copies of one member; remove one of them, and it is rebuilt from the others",
                self.own_name()
            ));
        }
        if let Some(why) = self.copied(said) {
            return Some(why);
        }
        if group != Uuid::default() && said.group != Uuid::default() && said.group != group {
            return Some(format!(
                "{name} is a member of another store ({}, and this is one of {group}); name the members of one store, or give the \
                 one that is to join an empty directory",
                said.group
            ));
        }
        if said.image != self.image.len() {
            return Some(format!(
                "{name} has {} bytes for the store and this member {}; start all of them with the same --size",
                said.image,
                self.image.len()
            ));
        }
        None
    }

    /// Why what says this of itself is a copy of another member that is there.
    fn copied(&self, said: &MemberStats) -> Option<String> {
        let state = self.lock();
        let of_it = |other: &&MemberStats| other.log == said.log && other.who != said.who;
        let there = (0..self.names.len()).filter_map(|at| self.recent(&state, at));
        let other = there.into_iter().find(of_it)?;
        let [name, other] =
            [said, other].map(|said| self.names.get(usize::from(said.who)).map_or("?", String::as_str));
        Some(format!(
            "{name} and {other} serve copies of one member; remove one of them, and it is rebuilt from the others"
        ))
    }

    /// Members that say what no member of this store can say, and why they are none.
    fn strangers<'a>(&'a self, state: &'a State) -> impl Iterator<Item = String> + 'a {
        let is_one = |view: &MemberView| view.is_stranger;
        let peers = state.peers.iter().enumerate().filter(move |(_, view)| is_one(view));
        peers.map(|(at, view)| format!("{}: {}", self.names[at], view.why))
    }

    /// A member, by the place at which it was reached or by its own word, says something of itself.
    pub(super) fn heard(&self, from: Option<usize>, said: MemberStats) {
        let Seen { log: own, name: log, .. } = self.seen();
        let at = from.or_else(|| {
            let name = said.members.get(usize::from(said.who))?;
            self.names.iter().position(|own| own == name)
        });
        let stranger = self.stranger(&said, own.group, log);
        let Some(at) = at.filter(|at| *at != self.who) else {
            return;
        };
        let mut state = self.lock();
        let now = self.now();
        if let Some(why) = stranger {
            // Who has just come is wrong, and not those who serve already.
            if !state.joined && matches!(said.role, Role::Primary | Role::Follower) {
                state.fatal.get_or_insert_with(|| why.clone());
                state.is_stirred = true;
            }
            if said.log == log && self.is_left_out(&state) {
                state.is_stirred |= state.image_why != why;
                state.image_why.clone_from(&why);
            }
            state.peers[at] = MemberView { said: None, why, is_stranger: true };
            state.happens(now, Input::Stranger { at });
            self.look_for_primary(state, at);
            return;
        }
        let statement = said.statement();
        state.peers[at] = MemberView { said: Some(said), why: String::new(), is_stranger: false };
        state.happens(now, Input::Heard { at, said: statement });
        state.joined |= state.takeover.leader().is_some();
        self.look_for_primary(state, at);
    }

    /// Whoever asks a member what it is runs, and has no answer yet.
    pub(super) fn asks(&self, at: usize) {
        let mut state = self.lock();
        let now = self.now();
        state.happens(now, Input::Asks { at });
        self.stir(state);
    }

    /// A member cannot be reached.
    pub(super) fn missed(&self, at: usize, why: &impl ToString) {
        let mut state = self.lock();
        let now = self.now();
        (state.peers[at].why, state.peers[at].is_stranger) = (why.to_string(), false);
        state.happens(now, Input::Missed { at });
        self.look_for_primary(state, at);
    }

    /// Whether the primary does without this member.
    fn is_left_out(&self, state: &State) -> bool {
        let leader = state.takeover.leader().and_then(|leader| state.peers[leader.who].said.as_ref());
        leader.is_some_and(|said| said.lost.iter().any(|lost| lost == self.own_name()))
    }

    /// What a member said lately, if its medium answers.
    pub(super) fn recent<'a>(&self, state: &'a State, at: usize) -> Option<&'a MemberStats> {
        state.takeover.recent(at, self.now())?;
        state.peers[at].said.as_ref()
    }

    /// The members that a primary does without.
    pub(super) fn lost(&self, state: &State) -> Vec<usize> {
        (0..self.names.len()).filter(|at| state.lost.contains(&self.names[*at])).collect()
    }

    /// Why a member is not there.
    pub(super) fn absent(&self, state: &State, at: usize) -> String {
        let peer = &state.peers[at];
        match &peer.said {
            // Which was its last word.
            Some(said) if said.failed => said.why.clone(),
            _ if !peer.why.is_empty() => peer.why.clone(),
            None => "it was not heard of yet".into(),
            Some(_) if state.takeover.is_stalled(at) => "its medium does not answer".into(),
            Some(_) => "it has been silent".into(),
        }
    }

    /// Why a life of a member is over, or taken for over: nothing is waited for then.
    pub(super) fn gone(&self, at: usize, life: u64) -> Option<String> {
        let gone = self.lock().takeover.gone(at, life, self.now())?;
        Some(match gone {
            Gone::StartedAgain => "it was started again".into(),
            Gone::Stalled(time) => format!("its medium has not answered for {} ms", time.as_millis()),
            Gone::Failed => {
                let state = self.lock();
                self.absent(&state, at)
            }
            Gone::Silent(time) => format!("it has been silent for {} ms", time.as_millis()),
        })
    }

    /// Whether a member that a primary is connected to is gone, or was started again.
    fn has_changed(&self, state: &State, at: usize) -> bool {
        state.takeover.has_changed(&state.lives, at, self.now())
    }

    /// When the first of the members that a primary is connected to has been silent for too long.
    fn next_gone(&self, state: &State, now: Duration) -> Option<Duration> {
        let others = (0..self.names.len()).filter(|at| *at != self.who && state.lives[*at] != 0);
        others.filter_map(|at| state.takeover.gives_up(at, now)).min()
    }

    /// The same, of any.
    pub(super) fn changed_lives(&self) -> bool {
        let state = self.lock();
        (0..self.names.len()).any(|at| self.has_changed(&state, at))
    }

    /// A primary has seen which members are there now.
    pub(super) fn know_lives(&self) {
        let mut state = self.lock();
        state.lives = state.takeover.lives(self.now());
    }
}

/// See [`Node::noticed`].
pub(super) struct Noticed<'a> {
    node: &'a Node,
    what: &'static str,
}

impl Drop for Noticed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.node.give_up(&format!(
                "{} has panicked, which is an error of this program: start the member again, and report what it printed",
                self.what
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use remanence_remote::Stop;
    use remanence_remotelog::proto::Request;
    use remanence_verbs::{Context, Options};

    use super::super::{Member, MemberOptions, take_part};
    use super::*;

    #[test]
    fn a_member_ends_with_a_sentence_if_a_thread_beside_the_serving_one_panics() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, (a ^ b) | 2, c, d.clamp(1, 254));
        let context = Context::open(Options::udp(ip.into())).expect("a device");
        let names = [7471, 7472].map(|port| SocketAddr::new(ip.into(), port));
        let names = names.map(|addr| (addr.to_string(), addr)).to_vec();
        let options = MemberOptions::directory(directory.path(), names).size(2 << 20);
        let member = Member::bind(&context, 7471, options.clone()).expect("a member");
        let node = member.node();
        std::thread::scope(|scope| {
            scope.spawn(|| node.watched("the thread of a test", || panic!("a defect")));
        });
        let ended = take_part(node, &member.connector, &options, &Stop::new());
        let sentence = ended.expect_err("nobody else would notice").to_string();
        assert!(sentence.starts_with("the thread of a test has panicked"), "{sentence}");
    }

    /// Waits until that is so, however long that takes.
    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_connection_that_breaks_while_nobody_writes_is_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = |n: u8| Ipv4Addr::new(127, (a ^ b) | 1, c ^ n, d.clamp(1, 254));
        let addrs = [1, 2].map(|n| SocketAddr::new(ip(n << 6).into(), 7471));
        let names = addrs.map(|addr| (addr.to_string(), addr)).to_vec();
        let members = addrs.map(|addr| {
            let context = Context::open(Options::udp(addr.ip())).expect("a device");
            let path = directory.path().join(addr.ip().to_string());
            let options = MemberOptions::directory(path, names.clone()).size(2 << 20);
            // Nobody is taken for dead, however busy the machine is.
            Member::bind(&context, addr.port(), options.notice(Duration::from_secs(20))).expect("a member")
        });
        let nodes = members.each_ref().map(|member| Arc::clone(member.node()));
        let stop = Stop::new();
        std::thread::scope(|scope| {
            for mut member in members {
                let stop = &stop;
                scope.spawn(move || member.run(stop).map(drop));
            }
            let ends = stop.clone();
            let _ends = Ends(&ends);
            let primary = |node: &&Arc<Node>| node.lock().takeover.role() == Role::Primary;
            let leads = || nodes.iter().find(primary);
            until("nobody leads", || leads().is_some());
            let leader = leads().expect("one does");
            let other = nodes.iter().find(|node| node.who != leader.who).expect("there are two");
            let is_whole = || {
                let state = leader.lock();
                state.lost.is_empty() && state.joining.is_empty() && state.rebuilding.is_none()
            };
            until("the other one takes no part", || is_whole() && !other.seen().is_new());
            let before = leader.lock().returns;
            // Whoever asks for the promise that a session has cuts that one off.
            let epoch = other.seen().log.promised;
            let _ = other.log.call(&Request::Grant { epoch });
            until("the other one is lost for good", || leader.lock().returns != before && is_whole());
        });
    }

    /// Ends the members, also if the test fails.
    struct Ends<'a>(&'a Stop);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.ask();
        }
    }

    #[test]
    fn who_takes_part_sees_a_promise_and_a_stop_without_looking_for_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, (a ^ b) | 4, c, d.clamp(1, 254));
        let context = Context::open(Options::udp(ip.into())).expect("a device");
        let names = [7471, 7472].map(|port| SocketAddr::new(ip.into(), port));
        let names = names.map(|addr| (addr.to_string(), addr)).to_vec();
        // Nothing is due within the test.
        let options = MemberOptions::directory(directory.path(), names).size(2 << 20);
        let options = options.notice(Duration::from_secs(36_000));
        let member = Member::bind(&context, 7471, options.clone()).expect("a member");
        let node = Arc::clone(member.node());
        let epoch = Epoch::new(5, 1);
        node.log.call(&Request::Grant { epoch }).expect("nobody has it");
        assert_eq!(node.lock().own.promised, epoch, "it was told when the log had answered");
        let stop = Stop::new();
        let (ended, end) = std::sync::mpsc::channel();
        let (asked, waits) = (stop.clone(), Arc::clone(&node));
        let running = std::thread::spawn(move || {
            let ran = take_part(&node, &member.connector, &options, &asked);
            ended.send(ran).expect("it is waited for");
        });
        // What it set is seen when it sleeps.
        while waits.lock().sleeps_until.is_zero() {
            std::thread::yield_now();
        }
        stop.ask();
        let ran = end.recv_timeout(Duration::from_secs(120)).expect("it ends when it is asked to");
        ran.expect("it ends well");
        running.join().expect("it does not panic");
    }
}
