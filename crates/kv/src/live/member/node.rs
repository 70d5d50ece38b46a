//! What all threads of a member share: its log and its image, what it knows of the others, and what it is at the moment.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_remotelog::Epoch;
use remanence_remotelog::format::root::State as LogState;
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::ConnectionLost;
use remanence_remotelog::live::{OwnLog, Part};
use remanence_remotelog::store::Store;

use super::connection::MemberConnection;
use super::wire::{MemberStats, Role};
use crate::live::{Error, Metrics};
use crate::replica::keeper::Ledger;
use crate::replica::watch::{Leader, Other, Watch};
use crate::replica::{Keeper, LeadError, Order, Told};

/// A connection to every member, in the members' order, as a group takes them.
pub(super) type Connections = Vec<(String, Result<MemberConnection, ConnectionLost>)>;

/// What is known of another member.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// What it said last. Only what can be a member of this store counts.
    pub(super) said: Option<MemberStats>,
    /// Somebody has tried to reach it.
    pub(super) tried: bool,
    /// Why it is not there.
    pub(super) why: String,
}

/// What a member has, as it was seen when nobody worked on it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) log: LogState,
    name: Uuid,
    next: u64,
    ledger: Ledger,
}

fn see(store: &Store<Part>, keeper: &Keeper<Region>) -> Seen {
    Seen {
        log: *store.state(),
        name: store.superblock().uuid,
        next: store.tail().sequence,
        ledger: keeper.ledger(),
    }
}

/// How often members tell each other what they are, if one that is silent for `notice` is taken for dead.
fn interval(notice: Duration) -> Duration {
    (notice / 8).clamp(Duration::from_millis(20), Duration::from_millis(250))
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

    /// Others are told at once if that is something else than before.
    pub(super) fn becomes(&mut self, role: Role) {
        if self.role != role {
            self.role = role;
            self.news += 1;
        }
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) role: Role,
    /// Why it does not serve, or could not.
    pub(super) why: String,
    pub(super) store_port: u16,
    /// Of a primary.
    pub(super) store: Option<Metrics>,
    pub(super) epoch: Epoch,
    pub(super) lost: Vec<String>,
    pub(super) rebuilding: Option<(String, u64, u64)>,
    /// When others were heard, and who serves.
    pub(super) watch: Watch,
    pub(super) peers: Vec<Peer>,
    /// Counts what others are to be told at once.
    pub(super) news: u64,
    seen: Seen,
    /// What was being done with the log when somebody looked, and since when.
    working: Option<(u64, Duration)>,
    /// Why its image does not follow.
    image_why: String,
    /// Members whose images do not follow, and why: of a primary.
    pub(super) behind: Vec<String>,
    /// Connections to all members, for a primary that does without some.
    pub(super) connections: Option<Connections>,
    /// An order of the primary is being carried out.
    pub(super) obeying: bool,
    /// It has followed a primary, or was one.
    pub(super) joined: bool,
    /// What makes it useless to go on.
    pub(super) fatal: Option<String>,
    /// The member ends.
    pub(super) over: bool,
}

/// While it lives, only the member itself changes its image.
#[derive(Debug)]
pub(super) struct Shown<'a>(&'a Node);

impl Drop for Shown<'_> {
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
    pub(super) survives: String,
    /// Who has been silent for so long is taken for dead.
    pub(super) notice: Duration,
    begin: Instant,
    state: Mutex<State>,
    changed: Condvar,
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
    pub(super) survives: String,
    pub(super) notice: Duration,
}

impl Node {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { names, addrs, who, log, keeper, record_max, log_port, life, survives, notice } = parts;
        let seen = log.with(|store| see(store, &keeper));
        let state = State {
            role: Role::Waiting,
            why: String::new(),
            store_port: 0,
            store: None,
            epoch: Epoch::NONE,
            lost: Vec::new(),
            rebuilding: None,
            watch: Watch::new(names.len(), notice, interval(notice) / 2),
            news: 0,
            seen,
            working: None,
            image_why: String::new(),
            behind: Vec::new(),
            peers: names.iter().map(|_| Peer::default()).collect(),
            connections: None,
            obeying: false,
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
            survives,
            notice,
            begin: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// The state is whole between any two statements that can panic.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for a change.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change, or for that long.
    pub(super) fn wait(&self, time: Duration) {
        let state = self.lock();
        if !state.over {
            drop(self.changed.wait_timeout(state, time));
        }
    }

    /// Why this member's image does not follow; empty if it does.
    pub(super) fn image_trouble(&self) -> String {
        self.lock().image_why.clone()
    }

    /// How often members tell each other what they are.
    pub(super) fn interval(&self) -> Duration {
        interval(self.notice)
    }

    /// The time, for [`Watch`].
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

    /// What this member does from now on; others are told at once.
    pub(super) fn becomes(&self, role: Role) {
        self.lock().becomes(role);
        self.notify();
    }

    /// What this member has, without waiting for who works on it.
    pub(super) fn seen(&self) -> Seen {
        let fresh = self
            .log
            .try_with(|store| see(store, &self.keeper.lock().unwrap_or_else(PoisonError::into_inner)));
        let mut state = self.lock();
        if let Some(fresh) = fresh {
            state.seen = fresh;
        }
        state.seen.clone()
    }

    pub(super) fn own_name(&self) -> &str {
        &self.names[self.who]
    }

    /// A medium that shows the image, for the store that this member serves from now on; nobody else's order changes the image
    /// until the guard is dropped. The caller has taken the log over in that epoch.
    ///
    /// # Errors
    /// The log is promised to somebody else by now, or the kernel gives no memory.
    pub(super) fn show_image(&self, epoch: Epoch) -> Result<(Region, Shown<'_>), Error> {
        self.log.with(|store| {
            if store.state().promised != epoch {
                return Err(Error::Argument(LeadError::Deposed.to_string()));
            }
            let shown = self.image.private_copy()?;
            self.shown.store(true, Ordering::Relaxed);
            Ok((shown, Shown(self)))
        })
    }

    /// Carries an order of another member out, which is the primary.
    pub(super) fn obey_other(&self, epoch: Epoch, order: &Order) -> Told {
        // Who only reads changes nothing.
        let changes = !matches!(order, Order::Read { .. });
        self.carry_out(epoch, order, |node| changes && node.shown.load(Ordering::Acquire))
    }

    /// Carries an order of this member, which is the primary, out.
    pub(super) fn obey(&self, epoch: Epoch, order: &Order) -> Told {
        self.carry_out(epoch, order, |_| false)
    }

    fn carry_out(&self, epoch: Epoch, order: &Order, is_in_use: impl Fn(&Self) -> bool) -> Told {
        self.lock().obeying = true;
        let told = self.log.with(|store| {
            if is_in_use(self) && store.state().promised == epoch {
                return Told::Refused("it was the primary, and is ending that".into());
            }
            let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
            keeper.obey(store, epoch, order)
        });
        let now = self.now();
        let state = &mut *self.lock();
        state.obeying = false;
        match &told {
            // Not to whom the log is promised, and that is no trouble of the image.
            Told::Refused(_) if self.log.try_with(|store| store.state().promised != epoch) == Some(true) => {}
            Told::Refused(_) if is_in_use(self) => {}
            Told::Refused(why) => state.image_why = format!("its image does not follow: {why}"),
            Told::Applied(_) | Told::Ok => state.image_why.clear(),
            Told::NeedsImage | Told::Bytes(_) => {}
        }
        if !matches!(told, Told::Refused(_)) {
            state.watch.ordered(epoch, now);
        }
        told
    }

    /// Whether this member's image is one, so that it can take over; whether it has never been a member of a store; and how
    /// many acknowledge in its store.
    pub(super) fn image_state(&self) -> (bool, bool, usize) {
        let Seen { log, ledger, .. } = self.seen();
        let has_image = ledger.complete && ledger.applied >= log.head.sequence;
        (has_image, log.group == Uuid::default(), log.acks.into())
    }

    /// What this member says of itself.
    pub(super) fn said(&self) -> MemberStats {
        let Seen { log: log_state, name: log, next, ledger } = self.seen();
        let (under_way, now) = (self.log.under_way(), self.now());
        let mut state = self.lock();
        let state = &mut *state;
        let stalled = state.stalled(under_way, now).as_millis() as u64;
        let (rebuilding, sent, of) = state.rebuilding.clone().unwrap_or_default();
        let primary = state.role == Role::Primary;
        MemberStats {
            role: state.role,
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
            sent,
            of,
            lost: state.lost.clone(),
            rebuilding,
            why: if state.why.is_empty() { state.image_why.clone() } else { state.why.clone() },
            survives: self.survives.clone(),
            stalled,
            behind: state.behind.clone(),
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

    /// A member, by the place at which it was reached or by its own word, says something of itself.
    pub(super) fn heard(&self, from: Option<usize>, said: MemberStats) {
        let Seen { log: own, name: log, .. } = self.seen();
        let at = from.or_else(|| {
            let name = said.members.get(usize::from(said.who))?;
            self.names.iter().position(|own| own == name)
        });
        let stranger = self.stranger(&said, own.group, log);
        let now = self.now();
        let state = &mut *self.lock();
        let Some(at) = at.filter(|at| *at != self.who) else {
            return;
        };
        state.peers[at].tried = true;
        if let Some(why) = stranger {
            // Who has just come is wrong, and not those who serve already.
            if !state.joined && matches!(said.role, Role::Primary | Role::Follower) {
                state.fatal.get_or_insert_with(|| why.clone());
            }
            state.peers[at].said = None;
            state.peers[at].why = why;
            self.notify();
            return;
        }
        state.watch.heard(at, said.life, now);
        if said.role == Role::Primary && said.epoch.counter() >= own.promised.counter() {
            let leader = Leader { who: at, epoch: said.epoch, life: said.life };
            state.joined |= state.watch.leads(leader, Duration::from_millis(said.stalled), now);
        } else {
            // It stopped serving, and says so.
            state.watch.leads_not(at);
        }
        if matches!(state.role, Role::Waiting | Role::Follower) {
            let follows = state.watch.leader().is_some();
            state.becomes(if follows { Role::Follower } else { Role::Waiting });
        }
        let peer = &mut state.peers[at];
        peer.why.clear();
        peer.said = Some(said);
        self.notify();
    }

    /// A member cannot be reached.
    pub(super) fn missed(&self, at: usize, why: &impl ToString) {
        let state = &mut *self.lock();
        state.peers[at].tried = true;
        state.peers[at].why = why.to_string();
        self.notify();
    }

    /// What a member said lately, if its medium answers.
    pub(super) fn recent<'a>(&self, state: &'a State, at: usize) -> Option<&'a MemberStats> {
        let said = state.peers[at].said.as_ref()?;
        let answers = Duration::from_millis(said.stalled) < state.watch.stall();
        (answers && state.watch.is_there(at, self.now())).then_some(said)
    }

    /// Whether a primary is to connect to a member anew: it does without it, or that has promised its log to somebody who did
    /// not become the primary, and takes nothing more.
    pub(super) fn wants_back(&self, state: &State, at: usize) -> bool {
        self.recent(state, at).is_some_and(|said| {
            let promised = said.role == Role::Waiting && said.epoch.counter() > state.epoch.counter();
            promised || state.lost.contains(&self.names[at])
        })
    }

    /// Why a member is not there.
    pub(super) fn absent(&self, state: &State, at: usize) -> String {
        let peer = &state.peers[at];
        match &peer.said {
            _ if !peer.why.is_empty() => peer.why.clone(),
            None => "it was not heard of yet".into(),
            Some(said) if Duration::from_millis(said.stalled) >= state.watch.stall() => {
                "its medium does not answer".into()
            }
            Some(_) => "it has been silent".into(),
        }
    }

    /// All members, as far as it matters for who takes over.
    pub(super) fn others(&self, state: &State, is_new: bool) -> Vec<Other> {
        let promised = state.seen.log.promised.counter();
        let other = |at: usize| {
            let Some(said) = self.recent(state, at) else { return Other::default() };
            let belongs = said.group != Uuid::default();
            Other {
                there: true,
                follows: match said.role {
                    Role::Follower => true,
                    // It does not know yet that it was replaced.
                    Role::Primary => said.epoch.counter() >= promised,
                    Role::Waiting | Role::TakingOver => false,
                },
                takes_over: said.role == Role::TakingOver,
                is_fit: said.complete && said.applied >= said.first && (is_new || belongs),
                belongs,
            }
        };
        (0..self.names.len()).map(other).collect()
    }

    /// Why a life of a member is over, or taken for over: nothing is waited for then. A member that is slow is not given up as
    /// fast as a primary is suspected: the others go on without its answer.
    pub(super) fn gone(&self, at: usize, life: u64) -> Option<String> {
        let now = self.now();
        let state = self.lock();
        let stall = state.watch.stall();
        let said = state.peers[at].said.as_ref();
        if said.is_some_and(|said| said.life != life) {
            return Some("it was started again".into());
        }
        if let Some(said) = said.filter(|said| Duration::from_millis(said.stalled) >= stall) {
            return Some(format!("its medium has not answered for {} ms", said.stalled));
        }
        let limit = (2 * state.watch.limit()).max(Duration::from_secs(1));
        match state.watch.silence(at, now).filter(|_| said.is_some()) {
            Some(silence) if silence < limit => None,
            _ => Some(format!("it has been silent for {} ms", limit.as_millis())),
        }
    }

    /// Other members that are gone, or are there again, since these lives.
    pub(super) fn changed_lives(&self, lives: &[u64]) -> bool {
        let others = (0..lives.len()).filter(|at| *at != self.who && lives[*at] != 0);
        others.into_iter().any(|at| self.gone(at, lives[at]).is_some())
    }

    /// The lives of all that were heard of lately; 0 for the others.
    pub(super) fn lives(&self) -> Vec<u64> {
        let state = self.lock();
        let life = |at| self.recent(&state, at).map_or(0, |said| said.life);
        (0..self.names.len()).map(life).collect()
    }
}
