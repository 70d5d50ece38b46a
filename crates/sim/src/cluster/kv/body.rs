//! What a member's process and the code that it runs as the primary share: its log, its image, what it knows of the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::proto::Request;
use remanence_coord::log::serve::{Holder, Sessions};
use remanence_coord::log::{Epoch, Refused, Status, Store, Updates};
use remanence_coord::takeover::{Gone, Input, Own, Role, Statement, Takeover};
use remanence_kv::replica::{ImageReply, Keeper, Order, Promise};
use remanence_pmem::Medium as _;

use super::message::Said;
use super::oracle::Work;
use crate::cluster::core::ConnectionId;
use crate::cluster::disk::Disk;

/// The session by which a member holds its own log.
const OWN: u64 = u64::MAX;

/// What has come on a connection of a primary to a member.
#[derive(Debug)]
pub(super) enum Came {
    Message(Vec<u8>),
    Read(Vec<u8>),
    Durable,
}

/// How a connection of a primary to a member is.
#[derive(Debug)]
pub(super) enum Link {
    Connecting,
    Up,
    Lost(String),
}

/// What a client does to a primary.
#[derive(Debug)]
pub(super) enum FromClient {
    Says(Vec<u8>),
    IsGone,
}

/// What the code of a primary has its process do.
#[derive(Debug)]
pub(super) enum Command {
    /// Connect to a member, under a number of the primary's own.
    Connect {
        number: u64,
        member: usize,
    },
    Send {
        number: u64,
        bytes: Vec<u8>,
    },
    Read {
        number: u64,
        offset: u64,
        len: u32,
    },
    Update {
        number: u64,
        updates: Vec<(u64, Vec<u8>)>,
    },
    Cut {
        number: u64,
    },
    /// Say something to a client.
    Answer {
        client: ConnectionId,
        bytes: Vec<u8>,
    },
    CutClient(ConnectionId),
    /// Let a client write so many bytes there, and nothing but what it was let.
    GiveRoom {
        client: ConnectionId,
        at: u64,
        len: u64,
    },
    /// Nobody may write in the room that begins there any more.
    TakeRoom(u64),
    /// Have clients read and write this memory.
    Show(Disk),
    /// It has taken the log over, which goes on with that record; or has opened it again.
    Opened {
        epoch: Epoch,
        start: u64,
        again: bool,
    },
    /// All records below this number are acknowledged.
    Acknowledged {
        epoch: Epoch,
        below: u64,
    },
    /// The primary of that epoch has looked at its image, and may send it.
    LookedAt(Epoch),
    Count(fn(&mut Work, u64), u64),
}

/// Between the process and the code that it runs as the primary.
#[derive(Debug, Default)]
pub(super) struct Port {
    pub(super) commands: VecDeque<Command>,
    pub(super) links: BTreeMap<u64, (Link, VecDeque<Came>)>,
    pub(super) next: u64,
    pub(super) clients: VecDeque<(ConnectionId, FromClient)>,
    /// The memory that clients read and write.
    pub(super) memory: Option<Disk>,
    /// Something has come.
    pub(super) is_stirred: bool,
    /// Something has come on a connection to a member since it was looked for, or something else has happened that a primary looks at.
    pub(super) has_come: bool,
    pub(super) is_asked: bool,
    /// When the code goes on, should nothing come.
    pub(super) wakes: Duration,
}

/// All of it. One at a time works on it.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) who: usize,
    pub(super) names: Vec<String>,
    pub(super) notice: Duration,
    pub(super) acks: usize,
    pub(super) life: u64,
    pub(super) now: Duration,
    pub(super) store: Store<Disk>,
    holder: Holder,
    pub(super) keeper: Keeper<Disk>,
    /// What clients read of whom its log is promised to.
    promise: Disk,
    /// Its image is shown to clients where it was not written since: nobody else changes it.
    pub(super) is_shown: bool,
    pub(super) takeover: Takeover,
    own: Own,
    /// For how long its disks have not answered.
    pub(super) stalled: Duration,
    pub(super) said: Vec<Option<Said>>,
    /// What is wrong with whom it follows since somebody spoke.
    pub(super) wrong: Option<String>,
    /// As a primary: its epoch, and the members that it does without.
    pub(super) epoch: Epoch,
    pub(super) lost: Vec<usize>,
    pub(super) joining: usize,
    /// As a primary: the processes that it was connected to when it looked last; 0 for those that are gone.
    pub(super) lives: Vec<u64>,
    pub(super) serves: bool,
    /// Connections on which others ask something of its log, and those that are to be cut.
    pub(super) sessions: BTreeSet<u64>,
    pub(super) cuts: Vec<u64>,
    pub(super) port: Port,
}

/// Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Body>>);

impl Shared {
    pub(super) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sessions with a member's log: those that live, and those that are to be ended.
struct MemberSessions<'a> {
    sessions: &'a BTreeSet<u64>,
    cuts: &'a mut Vec<u64>,
}

impl Sessions for MemberSessions<'_> {
    fn is_live(&self, session: u64) -> bool {
        self.sessions.contains(&session)
    }

    fn cut(&mut self, session: u64) {
        self.cuts.push(session);
    }
}

fn is_new(store: &Store<Disk>) -> bool {
    store.state().group == Uuid::default()
}

fn own(store: &Store<Disk>, keeper: &Keeper<Disk>, acks: usize, stalled: Duration) -> Own {
    let (state, ledger) = (store.state(), keeper.ledger());
    let failed = store.medium().failure().is_err();
    Own {
        promised: state.promised,
        is_new: is_new(store),
        holds: !is_new(store) || !ledger.is_fresh(),
        has_image: ledger.can_follow(state),
        is_stuck: keeper.failure().is_some(),
        acks: if is_new(store) { acks } else { state.acks.into() },
        stalled,
        failed,
    }
}

/// What a member is made of.
pub(super) struct Parts {
    pub(super) who: usize,
    pub(super) names: Vec<String>,
    pub(super) notice: Duration,
    pub(super) acks: usize,
    pub(super) life: u64,
    pub(super) now: Duration,
    pub(super) store: Store<Disk>,
    pub(super) keeper: Keeper<Disk>,
    pub(super) promise: Disk,
}

impl Body {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { who, names, notice, acks, life, now, store, keeper, promise } = parts;
        let own = own(&store, &keeper, acks, Duration::ZERO);
        promise.write(0, &Promise::of(store.state()).emit());
        Self {
            takeover: Takeover::new(now, who, names.len(), notice, own),
            said: names.iter().map(|_| None).collect(),
            wrong: None,
            own,
            stalled: Duration::ZERO,
            who,
            names,
            notice,
            acks,
            life,
            now,
            store,
            holder: Holder::default(),
            keeper,
            promise,
            is_shown: false,
            epoch: Epoch::NONE,
            lost: Vec::new(),
            joining: 0,
            lives: Vec::new(),
            serves: false,
            sessions: BTreeSet::new(),
            cuts: Vec::new(),
            port: Port::default(),
        }
    }

    pub(super) fn is_new(&self) -> bool {
        is_new(&self.store)
    }

    /// Something has happened that matters for who takes over. That the medium failed is known by then, whoever met it.
    pub(super) fn happens(&mut self, input: Input) {
        if !self.own.failed && self.store.medium().failure().is_err() {
            self.own.failed = true;
            self.takeover.handle(self.now, Input::Own(self.own));
        }
        self.takeover.handle(self.now, input);
    }

    /// What its log promises and its image has may have changed.
    pub(super) fn sees(&mut self) {
        let own = own(&self.store, &self.keeper, self.acks, self.stalled);
        if own != self.own {
            let is_promised = std::mem::replace(&mut self.own, own).promised != own.promised;
            self.happens(Input::Own(own));
            if is_promised {
                self.asks_primary();
            }
        }
    }

    /// There is something for a primary to look at that nobody has asked it for.
    fn asks_primary(&mut self) {
        (self.port.is_asked, self.port.is_stirred) = (true, true);
    }

    /// Something was heard of a member, or nothing was: a primary looks.
    fn look_for_primary(&mut self, at: usize) {
        let Self { takeover, lives, epoch, lost, now, .. } = self;
        let is_here = self.serves && !lives.is_empty();
        if is_here
            && (takeover.has_changed(lives, at, *now)
                || takeover.wants_back(at, *epoch, lost.contains(&at), *now))
        {
            self.asks_primary();
        }
    }

    /// A member cannot be reached.
    pub(super) fn missed(&mut self, at: usize) {
        self.happens(Input::Missed { at });
        self.look_for_primary(at);
    }

    /// When the first of the members that a primary is connected to has been silent for too long.
    pub(super) fn next_gone(&self) -> Option<Duration> {
        let others = (0..self.lives.len()).filter(|at| *at != self.who && self.lives[*at] != 0);
        others.filter_map(|at| self.takeover.gives_up(at, self.now)).min()
    }

    /// What it says of itself.
    pub(super) fn says(&self) -> Said {
        let (state, ledger, role) = (self.store.state(), self.keeper.ledger(), self.takeover.role());
        let statement = Statement {
            role,
            epoch: if role == Role::Primary { self.epoch } else { state.promised },
            life: self.life,
            stalled: self.stalled,
            failed: self.own.failed,
            has_image: ledger.complete && ledger.applied >= state.head.sequence,
            belongs: !self.is_new(),
            holds: !self.is_new() || !ledger.is_fresh(),
        };
        Said { statement, acks: state.acks.into(), serves: self.serves }
    }

    /// Another one says something of itself.
    pub(super) fn heard(&mut self, at: usize, said: Said) {
        self.said[at] = Some(said);
        self.happens(Input::Heard { at, said: said.statement });
        self.look_for_primary(at);
        let promised = self.own.promised;
        let is_other = |epoch: Epoch| epoch != promised && epoch.counter() <= promised.counter();
        if let Some(leader) =
            self.takeover.leader().filter(|leader| leader.who == at && is_other(leader.epoch))
        {
            let (name, epoch) = (&self.names[self.who], leader.epoch);
            self.wrong =
                Some(format!("{name} follows one of epoch {epoch}, and has promised its log to {promised}"));
        }
    }

    /// Why a life of another member is over.
    pub(super) fn gone(&self, at: usize, life: u64) -> Option<Gone> {
        self.takeover.gone(at, life, self.now)
    }

    /// Whether other members are gone, or are there again, since a primary looked.
    pub(super) fn changed_lives(&self) -> bool {
        (0..self.lives.len()).any(|at| self.takeover.has_changed(&self.lives, at, self.now))
    }

    /// A primary has seen which members are there now.
    pub(super) fn know_lives(&mut self) {
        self.lives = self.takeover.lives(self.now);
    }

    /// Does what a session asks of the log.
    pub(super) fn answer(&mut self, session: u64, request: &Request) -> Result<Status, Refused> {
        let Self { store, holder, sessions, cuts, promise, .. } = self;
        let export = |promised: &Promise| promise.write(0, &promised.emit());
        let mut sessions = MemberSessions { sessions, cuts };
        let promising = &mut |state: &_| export(&Promise::of(state));
        let reply = holder.answer(store, &mut sessions, session, request, promising);
        export(&Promise::of(store.state()));
        reply
    }

    /// The same for this member itself.
    pub(super) fn answer_own(&mut self, request: &Request) -> Result<Status, Refused> {
        self.answer(OWN, request)
    }

    /// Makes updates of its own durable.
    pub(super) fn update_own(&mut self, epoch: Epoch, updates: &Updates) -> Result<(), Refused> {
        let promised = self.store.state().promised;
        if self.holder.session() != Some(OWN) || promised != epoch {
            return Err(Refused::Fenced { promised });
        }
        let medium = self.store.medium();
        for (at, bytes) in updates.list() {
            medium.write(at, bytes);
            let persisted = medium.persist(at..at + bytes.len() as u64);
            persisted.map_err(|e| Refused::Said(format!("the medium failed: {e}")))?;
        }
        Ok(())
    }

    /// Carries an order of another member out, which is the primary.
    pub(super) fn obey_other(&mut self, epoch: Epoch, order: &Order) -> ImageReply {
        let changes = !matches!(order, Order::Read { .. });
        self.happens(Input::Obeys);
        let told = if changes && self.is_shown && self.store.state().promised == epoch {
            ImageReply::Refused("it was the primary, and is ending that".into())
        } else {
            self.obey(epoch, order)
        };
        self.happens(Input::Obeyed((!matches!(told, ImageReply::Refused(_))).then_some(epoch)));
        told
    }

    /// Carries an order out.
    pub(super) fn obey(&mut self, epoch: Epoch, order: &Order) -> ImageReply {
        self.keeper.obey(&mut self.store, epoch, order)
    }
}
