//! What all threads of a member share: its log and its image, what it knows of the others, and what it is at the moment.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_remotelog::Epoch;
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::LegError;
use remanence_remotelog::live::OwnLog;

use super::leg::LiveLeg;
use super::wire::{MemberStats, Role};
use crate::live::Metrics;
use crate::replica::{Keeper, Order, Told};

/// Legs of every member, in the members' order, as a group takes them.
pub(super) type Legs = Vec<(String, Result<LiveLeg, LegError>)>;

/// What is known of another member.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// What it said last, and when. Only what can be a member of this store counts.
    pub(super) said: Option<(MemberStats, Instant)>,
    /// Somebody has tried to reach it.
    pub(super) tried: bool,
    /// Why it is not there.
    pub(super) why: String,
}

/// Who serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leader {
    pub(super) who: usize,
    pub(super) epoch: Epoch,
    pub(super) seen: Instant,
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
    pub(super) leader: Option<Leader>,
    pub(super) peers: Vec<Peer>,
    /// Connections to all members, for a primary that does without some.
    pub(super) legs: Option<Legs>,
    /// An order of the primary is being carried out.
    pub(super) obeying: bool,
    /// It has followed a primary, or was one.
    pub(super) joined: bool,
    /// What makes it useless to go on.
    pub(super) fatal: Option<String>,
    /// The member ends.
    pub(super) over: bool,
}

/// A member.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) names: Vec<String>,
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) who: usize,
    pub(super) log: OwnLog,
    keeper: Mutex<Keeper<Region>>,
    pub(super) image: Region,
    pub(super) record_max: usize,
    pub(super) log_port: u16,
    life: u64,
    pub(super) survives: String,
    /// Who has been silent for so long is taken for dead.
    pub(super) notice: Duration,
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
        let state = State {
            role: Role::Waiting,
            why: String::new(),
            store_port: 0,
            store: None,
            epoch: Epoch::NONE,
            lost: Vec::new(),
            rebuilding: None,
            leader: None,
            peers: names.iter().map(|_| Peer::default()).collect(),
            legs: None,
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
            record_max,
            log_port,
            life,
            survives,
            notice,
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

    /// How often members tell each other what they are.
    pub(super) fn interval(&self) -> Duration {
        (self.notice / 8).min(Duration::from_millis(250))
    }

    pub(super) fn own_name(&self) -> &str {
        &self.names[self.who]
    }

    /// Carries an order of a primary out.
    pub(super) fn obey(&self, epoch: Epoch, order: &Order) -> Told {
        self.lock().obeying = true;
        let told = self.log.with(|store| {
            let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
            keeper.obey(store, epoch, order)
        });
        let state = &mut *self.lock();
        state.obeying = false;
        if !matches!(told, Told::Refused(_))
            && let Some(leader) = &mut state.leader
            && leader.epoch == epoch
        {
            leader.seen = Instant::now();
        }
        told
    }

    /// Whether this member's image is one, so that it can take over; whether it has never been a member of a store; and how
    /// many acknowledge in its store.
    pub(super) fn image_state(&self) -> (bool, bool, usize) {
        self.log.with(|store| {
            let ledger = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).ledger();
            let state = store.state();
            let has_image = ledger.complete && ledger.applied >= state.head.sequence;
            (has_image, state.group == Uuid::default(), state.acks.into())
        })
    }

    /// What this member says of itself.
    pub(super) fn said(&self) -> MemberStats {
        let (log_state, log, next, ledger) = self.log.with(|store| {
            let ledger = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).ledger();
            (*store.state(), store.superblock().uuid, store.tail().sequence, ledger)
        });
        let state = self.lock();
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
            why: state.why.clone(),
            survives: self.survives.clone(),
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
        let (own, log) = self.log.with(|store| (*store.state(), store.superblock().uuid));
        let at = from.or_else(|| {
            let name = said.members.get(usize::from(said.who))?;
            self.names.iter().position(|own| own == name)
        });
        let stranger = self.stranger(&said, own.group, log);
        let now = Instant::now();
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
        let leads = said.role == Role::Primary && said.epoch.counter() >= own.promised.counter();
        match &mut state.leader {
            _ if leads => {
                state.joined = true;
                if state.leader.is_none_or(|leader| leader.epoch.counter() <= said.epoch.counter()) {
                    state.leader = Some(Leader { who: at, epoch: said.epoch, seen: now });
                }
            }
            // It stopped serving, and says so.
            Some(leader) if leader.who == at => state.leader = None,
            _ => {}
        }
        if matches!(state.role, Role::Waiting | Role::Follower) {
            state.role = if state.leader.is_some() { Role::Follower } else { Role::Waiting };
        }
        let peer = &mut state.peers[at];
        peer.why.clear();
        peer.said = Some((said, now));
        self.notify();
    }

    /// A member cannot be reached.
    pub(super) fn missed(&self, at: usize, why: &impl ToString) {
        let state = &mut *self.lock();
        state.peers[at].tried = true;
        state.peers[at].why = why.to_string();
        self.notify();
    }

    /// What a member said lately.
    pub(super) fn recent<'a>(&self, state: &'a State, at: usize) -> Option<&'a MemberStats> {
        let (said, when) = state.peers[at].said.as_ref()?;
        (when.elapsed() < self.notice).then_some(said)
    }

    /// Why a life of a member is over, or taken for over: nothing is waited for then.
    pub(super) fn gone(&self, at: usize, life: u64) -> Option<String> {
        let state = self.lock();
        match &state.peers[at].said {
            Some((said, _)) if said.life != life => Some("it was started again".into()),
            Some((_, when)) if when.elapsed() <= 2 * self.notice => None,
            _ => Some(format!("it has been silent for {} ms", (2 * self.notice).as_millis())),
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
