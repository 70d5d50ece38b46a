//! MULTI, EXEC, DISCARD, WATCH and UNWATCH: `multi.c`.
//!
//! What follows MULTI is looked at, queued, and carried out by EXEC, one command after the other, on a [`Joint`]: the store is waited for
//! once for many. A command that fails there takes none of the others back. What is wrong with a request when it is queued discards all of them. That nothing runs beside
//! EXEC is the caller's part, as for every command on several keys ([`isolation`](crate::engine::isolation)). Where others are in the way of a
//! change, or there is much to do, it is carried out in [parts](super::Long), and holds its keys between them. What is carried out in parts by itself
//! is so here, too.
//!
//! A watched key has changed if its version is another one than at WATCH. Versions do not come again, so a value that was
//! replaced by the same one counts as changed, as in Redis. A key that was absent has no version: it has changed if it, or
//! a key that shares its count, was written by a connection of this gateway. A key whose time came since WATCH has changed; one whose time had come then was absent.
//!
//! A store that is written beside the gateway cannot be kept still while EXEC runs. There MULTI is refused
//! ([`Config::transactions`](crate::engine::Config)), *and so is everything behind it until EXEC or DISCARD*: libraries send
//! a transaction in one go, and what is carried out of one that was refused is carried out again when it is repeated.

use std::collections::VecDeque;

use super::{
    ATTEMPTS, CONTENDED, Call, Command, Done, Failure, Id, Long, answer_failure, carry_out, count, is_long,
    wrong_arity,
};
use crate::engine::{Joins, Moment, Session, Shared, joins};
use crate::holds::Keys;
use crate::joint::{Joined, Joint, Mended, Piece, Verdict};
use crate::protocol::{Decoder, Limits, Request, Writer};
use crate::store::{Key, Store, StoreError, Version};
use crate::value::Head;

const NESTED: &str = "ERR MULTI calls can not be nested";
const WATCH_INSIDE: &str = "ERR WATCH inside MULTI is not allowed";
const NO_MULTI_DISCARD: &str = "ERR DISCARD without MULTI";
const NO_MULTI_EXEC: &str = "ERR EXEC without MULTI";
const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const TOO_LARGE: &str = "ERR the transaction is larger than a request may be: divide it";
const REFUSED: &str = "ERR transactions are refused here, as others write to this store beside the gateway: send the commands \
                       without MULTI, or serve the store in the gateway's own process (--store)";
const REFUSED_BEHIND: &str =
    "ERR not carried out: MULTI was refused, and so is what follows it until EXEC or DISCARD";

/// Times that what commands change together is given to the store. What is left then is carried out one by one.
const ROUNDS: usize = 3;
/// Steps in which changes of large hashes are brought into their parts, each time the store has been given something.
const FOLDS: usize = 2;
/// Work that is done before others are served.
const PART: usize = 64 * 1024;
/// Bytes of the requests of a transaction at most, as encoded: as many as one request may have.
const QUEUE_MAX: usize = 1 << 30;
/// Keys that a connection may watch, and bytes of their names.
const WATCHED_MAX: usize = 1 << 16;
const WATCHED_BYTES_MAX: usize = 64 << 20;

/// What a connection has under way.
#[derive(Default, Debug)]
pub(crate) struct Transaction {
    queue: Option<Queue>,
    watched: Vec<Watched>,
    watched_bytes: usize,
}

#[derive(Default, Debug)]
struct Queue {
    /// The requests, one behind the other, as a client would send them.
    bytes: Vec<u8>,
    requests: usize,
    /// What they are about.
    keys: Keys,
    /// A request was wrong: EXEC will discard all of them.
    spoilt: bool,
    /// MULTI itself was refused.
    refused: bool,
}

#[derive(Debug)]
struct Watched {
    space: u8,
    name: Vec<u8>,
    seen: Seen,
}

/// How a key is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Value(Version),
    /// There is no value, or its time has come; and how many have been written there.
    Absent(u64),
}

impl Transaction {
    /// Whether MULTI has been said, and neither EXEC nor DISCARD.
    pub(crate) const fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether EXEC will carry something out.
    pub(crate) fn is_ready(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.spoilt && !queue.refused)
    }

    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.bytes.len()) + self.watched_bytes
    }

    /// Whether a command waits for EXEC.
    pub(super) const fn takes(&self, id: Id) -> bool {
        self.is_open() && !matches!(id, Id::Exec | Id::Discard | Id::Multi | Id::Watch | Id::Quit | Id::Reset)
    }

    /// Something was wrong with a request.
    pub(super) const fn spoil(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.spoilt = true;
        }
    }

    pub(super) fn queue(&mut self, command: &Command, request: &Request<'_>, space: u8) -> Done {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        if queue.refused {
            return Err(REFUSED_BEHIND.into());
        }
        let size = 32 + request.words(0).map(|word| word.len() + 32).sum::<usize>();
        if queue.bytes.len().saturating_add(size) > QUEUE_MAX {
            queue.spoilt = true;
            return Err(TOO_LARGE.into());
        }
        // What will be discarded need not be kept.
        if !queue.spoilt {
            request.encode(&mut queue.bytes);
            queue.requests += 1;
            queue.keys.add_all(command, request, space);
            // Of which database the keys behind it are is not known.
            queue.keys.all |= command.id == Id::Select;
        }
        Ok(())
    }

    fn unwatch(&mut self) {
        self.watched = Vec::new();
        self.watched_bytes = 0;
    }
}

/// The words behind those commands that have such, with the arities that Redis gives them: a wrong one is told when it is
/// queued.
const SUBCOMMANDS: &[(Id, &str, i64)] = &[
    (Id::Client, "getname", 2),
    (Id::Client, "help", 2),
    (Id::Client, "id", 2),
    (Id::Client, "info", 2),
    (Id::Client, "kill", -3),
    (Id::Client, "list", -2),
    (Id::Client, "no-evict", 3),
    (Id::Client, "no-touch", 3),
    (Id::Client, "reply", 3),
    (Id::Client, "setinfo", 4),
    (Id::Client, "setname", 3),
    (Id::Cluster, "addslots", -3),
    (Id::Cluster, "addslotsrange", -4),
    (Id::Cluster, "bumpepoch", 2),
    (Id::Cluster, "count-failure-reports", 3),
    (Id::Cluster, "countkeysinslot", 3),
    (Id::Cluster, "delslots", -3),
    (Id::Cluster, "delslotsrange", -4),
    (Id::Cluster, "failover", -2),
    (Id::Cluster, "flushslots", 2),
    (Id::Cluster, "forget", 3),
    (Id::Cluster, "getkeysinslot", 4),
    (Id::Cluster, "help", 2),
    (Id::Cluster, "info", 2),
    (Id::Cluster, "keyslot", 3),
    (Id::Cluster, "links", 2),
    (Id::Cluster, "meet", -4),
    (Id::Cluster, "myid", 2),
    (Id::Cluster, "nodes", 2),
    (Id::Cluster, "replicas", 3),
    (Id::Cluster, "replicate", 3),
    (Id::Cluster, "reset", -2),
    (Id::Cluster, "saveconfig", 2),
    (Id::Cluster, "set-config-epoch", 3),
    (Id::Cluster, "setslot", -4),
    (Id::Cluster, "shards", 2),
    (Id::Cluster, "slaves", 3),
    (Id::Cluster, "slots", 2),
    (Id::Command, "count", 2),
    (Id::Command, "docs", -2),
    (Id::Command, "help", 2),
    (Id::Command, "info", -2),
    (Id::Command, "list", -2),
    (Id::Config, "get", -3),
    (Id::Config, "help", 2),
    (Id::Config, "resetstat", 2),
    (Id::Config, "set", -4),
    (Id::PubSub, "channels", -2),
    (Id::PubSub, "help", 2),
    (Id::PubSub, "numpat", 2),
    (Id::PubSub, "numsub", -2),
];

/// What is wrong with the second word of a request, of one that is to be queued above all.
pub(super) fn wrong_subcommand(command: &Command, request: &Request<'_>) -> Option<Failure> {
    if request.len() < 2 || !SUBCOMMANDS.iter().any(|(id, ..)| *id == command.id) {
        return None;
    }
    let of = |(id, name, _): &&(Id, &str, i64)| {
        *id == command.id && request.word(1).eq_ignore_ascii_case(name.as_bytes())
    };
    match SUBCOMMANDS.iter().find(of) {
        None => Some(super::unknown_subcommand(command, request)),
        Some((_, name, arity)) => {
            let words = request.len() as i64;
            let takes = if *arity < 0 { words >= -arity } else { words == *arity };
            (!takes).then(|| wrong_arity(&format!("{}|{name}", command.name)))
        }
    }
}

/// The second word of a request, if it is one of the command's.
pub(super) fn subcommand(command: &Command, request: &Request<'_>) -> Option<&'static str> {
    let word = (request.len() > 1).then(|| request.word(1))?;
    let of = |(id, name, _): &&(Id, &'static str, i64)| {
        *id == command.id && word.eq_ignore_ascii_case(name.as_bytes())
    };
    SUBCOMMANDS.iter().find(of).map(|(_, name, _)| *name)
}

/// EXEC, whose request is as it must be: all parts, one after the other.
pub(super) fn exec<S: Store>(
    session: &mut Session,
    command: &'static Command,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) -> Done {
    let done = Exec::begin(session, moment).and_then(|mut exec| {
        while !exec.step(session, store, shared, moment, out)? {}
        Ok(())
    });
    // Who has no parts does not come again.
    session.waits(&Ok(()), moment);
    count(shared, command, &done);
    done
}

/// A transaction that is carried out.
#[derive(Debug)]
pub(crate) struct Exec {
    /// All of its commands see one time.
    moment: Moment,
    /// Looked at before the first command, and of no interest from then on.
    watched: Option<Vec<Watched>>,
    keys: Keys,
    requests: usize,
    queue: Decoder,
    /// The one of them that is under way, if it is carried out in parts.
    long: Option<Box<Long>>,
    /// What they have answered.
    replies: Vec<u8>,
    /// What they change is given to the store together, but for commands on several keys: each wait is one for all whom EXEC keeps waiting.
    joint: Joint,
    /// It is being given to the store: so often it has been. What did not come out as it was answered, and commands that follow by themselves.
    rounds: Option<usize>,
    mended: Mended,
    behind: VecDeque<Piece>,
}

impl Exec {
    /// Takes what is queued: the transaction of the session is over.
    pub(super) fn begin(session: &mut Session, moment: Moment) -> Done<Self> {
        let Some(queue) = session.transaction.queue.take() else { return Err(NO_MULTI_EXEC.into()) };
        let watched = std::mem::take(&mut session.transaction).watched;
        if queue.spoilt || queue.refused {
            return Err(ABORTED.into());
        }
        let mut keys = queue.keys;
        watched.iter().for_each(|key| keys.add(Key { space: key.space, name: &key.name }));
        // These have been within a client's limits.
        let mut decoder =
            Decoder::new(Limits { bulk: usize::MAX >> 1, request: usize::MAX >> 1, words: 1 << 30 });
        decoder.push(&queue.bytes);
        Ok(Self {
            moment,
            watched: Some(watched),
            keys: keys.sorted(),
            requests: queue.requests,
            queue: decoder,
            long: None,
            replies: Vec::new(),
            joint: Joint::default(),
            rounds: None,
            mended: Mended::default(),
            behind: VecDeque::new(),
        })
    }

    pub(super) fn keys(&self) -> Keys {
        self.keys.clone()
    }

    pub(super) fn bytes(&self) -> usize {
        let long = self.long.as_ref().map_or(0, |long| long.bytes());
        self.queue.capacity() + self.replies.capacity() + long
    }

    /// Whether the command under way deletes whatever it comes by.
    pub(super) fn flushes(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.flushes())
    }

    /// Its keys are held.
    pub(super) const fn holds(&mut self, hold: Option<u64>) {
        self.joint.hold = hold;
    }

    /// Carries a part out; whether it was the last one, with which comes the reply.
    pub(super) fn step<S: Store>(
        &mut self,
        session: &mut Session,
        store: &mut S,
        shared: &Shared,
        now: Moment,
        out: &mut Vec<u8>,
    ) -> Done<bool> {
        if self.watched.is_some() {
            for key in self.watched.iter().flatten() {
                if look(store, shared, key.space, &key.name, self.moment)? != key.seen {
                    Writer::new(out, session.version).null_array();
                    return Ok(true);
                }
            }
            // Where the store was in the way of a look, all of them are looked at again.
            self.watched = None;
            Writer::new(&mut self.replies, session.version).array(self.requests);
        }
        session.in_exec = true;
        let is_over = self.go_on(session, store, shared, now);
        session.in_exec = false;
        if is_over == Ok(true) {
            out.append(&mut self.replies);
        }
        is_over
    }

    fn go_on<S: Store>(
        &mut self,
        session: &mut Session,
        store: &mut S,
        shared: &Shared,
        now: Moment,
    ) -> Done<bool> {
        let before = session.work();
        loop {
            if self.rounds.is_some() {
                self.settle(session, store, shared, now)?;
            }
            if !self.part(session, store, shared, now)? {
                return Ok(false);
            }
            if session.work() - before >= PART && self.queue.pending() > 0 {
                return Ok(false);
            }
            let Ok(Some(request)) = self.queue.next(false) else {
                if self.joint.is_empty() {
                    return Ok(true);
                }
                self.rounds = Some(0);
                continue;
            };
            let command = Command::find(request.word(0)).expect("it was found when it was queued");
            let joined = match joins(&request) {
                Joins::Writes => true,
                Joins::Looks => !self.joint.is_empty(),
                Joins::Not => false,
            };
            if !self.joint.is_empty() && (!joined || !self.joint.has_room()) {
                self.queue.unread();
                self.rounds = Some(0);
                continue;
            }
            if is_long(command, &request, shared) {
                let (mut nothing, moment) = (Vec::new(), self.moment);
                let reply = Writer::new(&mut nothing, session.version);
                let (store, session) = (&mut *store, &mut *session);
                let mut call = Call { command, request: &request, store, session, shared, moment, reply };
                // What is wrong with it is said by carrying it out.
                if let Ok(long) = call.long() {
                    self.long = Some(Box::new(long));
                    continue;
                }
            }
            let (start, out) = (self.replies.len(), &mut self.replies);
            let done = match joined {
                true => {
                    let store = &mut Joined { store: &mut *store as &mut dyn Store, joint: &mut self.joint };
                    carry_out(session, command, &request, store, shared, self.moment, out)
                }
                false => carry_out(session, command, &request, store, shared, self.moment, out),
            };
            if session.waits(&done, now) {
                self.replies.truncate(start);
                self.queue.unread();
                self.joint.forget();
                return Err(StoreError::InTheWay.into());
            }
            count(shared, command, &done);
            if let Err(failure) = done {
                answer_failure(session, shared, &failure, start, &mut self.replies);
            }
            self.joint.note(0, start..self.replies.len(), &request);
        }
    }

    /// Carries out a part of the command that is carried out in parts, if one is under way; whether none is from here on.
    fn part<S: Store>(
        &mut self,
        session: &mut Session,
        store: &mut S,
        shared: &Shared,
        now: Moment,
    ) -> Done<bool> {
        let Some(mut long) = self.long.take() else { return Ok(true) };
        let start = self.replies.len();
        let done = long.step(session, store, shared, self.moment, &mut self.replies);
        let waits = session.waits(&done, now);
        if waits || done == Ok(None) {
            self.long = Some(long);
            return if waits { Err(StoreError::InTheWay.into()) } else { Ok(false) };
        }
        let done = done.map(|work| session.worked(work.unwrap_or(0)));
        count(shared, long.command, &done);
        if let Err(failure) = done {
            answer_failure(session, shared, &failure, start, &mut self.replies);
        }
        Ok(true)
    }

    /// Has the store write what commands have changed, and answers those anew whose replies do not hold: nobody else of this gateway is
    /// at these keys, but others may be. What others are in the way of is left, and this is to be called again.
    fn settle<S: Store>(
        &mut self,
        session: &mut Session,
        store: &mut S,
        shared: &Shared,
        now: Moment,
    ) -> Done {
        let mut round = self.rounds.unwrap_or(0);
        loop {
            let mut left = self.joint.write(store, shared);
            let waits = !self.joint.is_empty() && session.may_wait(now);
            if !waits {
                left.extend(self.joint.give_up());
            }
            for (piece, verdict) in left.into_iter().rev() {
                match verdict {
                    Verdict::Failed(error) => self.fail(&piece, error.into(), session, shared),
                    _ if round >= ATTEMPTS => self.fail(&piece, CONTENDED.into(), session, shared),
                    _ => self.behind.push_front(piece),
                }
            }
            round += 1;
            self.rounds = Some(round);
            // Together at first; then one after the other, as each may have been refused or overtaken for the others' sake.
            let next = if round < ROUNDS { self.behind.len() } else { usize::from(!waits) };
            for piece in self.behind.drain(..next.min(self.behind.len())) {
                let (joined, mut reply) = (
                    &mut Joined { store: &mut *store as &mut dyn Store, joint: &mut self.joint },
                    Vec::new(),
                );
                session.again(&piece, joined, shared, self.moment, &mut reply);
                self.mended.put(&piece, reply);
            }
            if waits {
                return Err(StoreError::InTheWay.into());
            }
            if self.joint.is_empty() && self.behind.is_empty() {
                break;
            }
        }
        self.rounds = None;
        self.mended.apply(&mut self.replies);
        // Nobody else may do it meanwhile, and a hash that is changed by many commands would become ever slower to change.
        for _ in 0..FOLDS {
            if !shared.has_folds() || shared.fold(store, self.moment) != Ok(true) {
                break;
            }
        }
        Ok(())
    }

    fn fail(&mut self, piece: &Piece, failure: super::Failure, session: &Session, shared: &Shared) {
        let mut reply = Vec::new();
        answer_failure(session, shared, &failure, 0, &mut reply);
        self.mended.put(piece, reply);
    }
}

/// What EXEC answers that is not carried out for what is wrong with it: the transaction is over.
pub(super) fn discard(session: &mut Session, why: &Failure) -> Failure {
    session.transaction = Transaction::default();
    let why = why.bytes();
    let why = why.strip_prefix(b"ERR ").unwrap_or(&why);
    Failure::text([b"EXECABORT Transaction discarded because of: ".as_slice(), why].concat())
}

/// What is there now.
fn look<S: Store>(store: &mut S, shared: &Shared, space: u8, name: &[u8], moment: Moment) -> Done<Seen> {
    let (key, mut head) = (Key { space, name }, Vec::new());
    // Counted before it is looked at: what is written from here on makes it another number.
    let absent = Seen::Absent(shared.writes_of(key));
    let Some(version) = store.head(key, &mut head)? else { return Ok(absent) };
    let (head, _) = Head::parse(&head)?;
    Ok(if head.expired(moment.now()) { absent } else { Seen::Value(version) })
}

impl<S: Store> Call<'_, S> {
    pub(super) fn multi(&mut self) -> Done {
        let refused = !self.shared.config.transactions;
        if self.session.transaction.is_open() {
            return Err(NESTED.into());
        }
        self.session.transaction.queue = Some(Queue { refused, ..Queue::default() });
        if refused {
            return Err(REFUSED.into());
        }
        self.reply.ok();
        Ok(())
    }

    pub(super) fn discard(&mut self) -> Done {
        if !self.session.transaction.is_open() {
            return Err(NO_MULTI_DISCARD.into());
        }
        self.session.transaction = Transaction::default();
        self.reply.ok();
        Ok(())
    }

    pub(super) fn watch(&mut self) -> Done {
        if self.session.transaction.is_open() {
            return Err(WATCH_INSIDE.into());
        }
        if !self.shared.config.transactions {
            return Err(REFUSED.into());
        }
        let space = self.session.space;
        for name in self.request.words(1) {
            let known = |key: &Watched| key.space == space && key.name == name;
            if self.session.transaction.watched.iter().any(known) {
                continue;
            }
            let seen = look(self.store, self.shared, space, name, self.moment)?;
            let transaction = &mut self.session.transaction;
            if transaction.watched.len() >= WATCHED_MAX
                || transaction.watched_bytes + name.len() > WATCHED_BYTES_MAX
            {
                return Err("ERR too many keys are watched: EXEC or UNWATCH first".into());
            }
            transaction.watched_bytes += name.len();
            transaction.watched.push(Watched { space, name: name.to_vec(), seen });
        }
        self.reply.ok();
        Ok(())
    }

    pub(super) fn unwatch(&mut self) -> Done {
        self.session.transaction.unwatch();
        self.reply.ok();
        Ok(())
    }
}
