//! MULTI, EXEC, DISCARD, WATCH and UNWATCH: `multi.c`.
//!
//! What follows MULTI is looked at, queued, and carried out by EXEC, one command after the other, on a [`Joint`]: the store is waited for
//! once for many. A command that fails there takes none of the others back. What is wrong with a request when it is queued discards all of them. That nothing runs beside
//! EXEC is the caller's part, as for every command on several keys ([`isolation`](crate::engine::isolation)).
//!
//! A watched key has changed if its version is another one than at WATCH. Versions do not come again, so a value that was
//! replaced by the same one counts as changed, as in Redis. A key that was absent has no version: it has changed if it, or
//! a key that shares its count, was written by a connection of this gateway. A key whose time came since WATCH has changed; one whose time had come then was absent.
//!
//! A store that is written beside the gateway cannot be kept still while EXEC runs. There MULTI is refused
//! ([`Config::transactions`](crate::engine::Config)), *and so is everything behind it until EXEC or DISCARD*: libraries send
//! a transaction in one go, and what is carried out of one that was refused is carried out again when it is repeated.

use super::{
    ATTEMPTS, CONTENDED, Call, Command, Done, Failure, Id, answer_failure, carry_out, count, wrong_arity,
};
use crate::engine::{Joins, Moment, Session, Shared, joins};
use crate::joint::{Joined, Joint, Mended, Piece, Verdict};
use crate::protocol::{Decoder, Limits, Request, Writer};
use crate::store::{Key, Store, Version};
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

    pub(super) fn queue(&mut self, request: &Request<'_>) -> Done {
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

/// EXEC, whose request is as it must be.
pub(super) fn exec<S: Store>(
    session: &mut Session,
    command: &'static Command,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) -> Done {
    let done = carry_out_all(session, store, shared, moment, out);
    count(shared, command, &done);
    done
}

fn carry_out_all<S: Store>(
    session: &mut Session,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) -> Done {
    let Some(queue) = session.transaction.queue.take() else { return Err(NO_MULTI_EXEC.into()) };
    let watched = std::mem::take(&mut session.transaction).watched;
    if queue.spoilt || queue.refused {
        return Err(ABORTED.into());
    }
    for key in &watched {
        if look(store, shared, key.space, &key.name, moment)? != key.seen {
            Writer::new(out, session.version).null_array();
            return Ok(());
        }
    }
    Writer::new(out, session.version).array(queue.requests);
    // These have been within a client's limits.
    let mut decoder =
        Decoder::new(Limits { bulk: usize::MAX >> 1, request: usize::MAX >> 1, words: 1 << 30 });
    decoder.push(&queue.bytes);
    drop(queue);
    session.in_exec = true;
    // What they change is given to the store together, but for commands on several keys: each wait is one for all whom EXEC keeps waiting.
    let mut joint = Joint::default();
    while let Ok(Some(request)) = decoder.next(false) {
        let command = Command::find(request.word(0)).expect("it was found when it was queued");
        let joined = match joins(&request) {
            Joins::Writes => true,
            Joins::Looks => !joint.is_empty(),
            Joins::Not => false,
        };
        if !joint.is_empty() && (!joined || !joint.has_room()) {
            settle(session, &mut joint, store, shared, moment, out);
        }
        let start = out.len();
        let done = match joined {
            true => {
                let store = &mut Joined { store: &mut *store as &mut dyn Store, joint: &mut joint };
                carry_out(session, command, &request, store, shared, moment, out)
            }
            false => carry_out(session, command, &request, store, shared, moment, out),
        };
        count(shared, command, &done);
        if let Err(failure) = done {
            answer_failure(session, shared, &failure, start, out);
        }
        joint.note(0, start..out.len(), &request);
    }
    settle(session, &mut joint, store, shared, moment, out);
    session.in_exec = false;
    Ok(())
}

/// Has the store write what commands have changed, and answers those anew whose replies do not hold: nobody else of this gateway is
/// at the store, but others may be.
fn settle(
    session: &mut Session,
    joint: &mut Joint,
    store: &mut dyn Store,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) {
    let mut mended = Mended::default();
    for round in 1.. {
        let left = joint.write(store, shared);
        if left.is_empty() {
            break;
        }
        for (piece, verdict) in left {
            let mut reply = Vec::new();
            match verdict {
                Verdict::Failed(error) => answer_failure(session, shared, &error.into(), 0, &mut reply),
                _ if round < ROUNDS => {
                    let joined = &mut Joined { store: &mut *store, joint: &mut *joint };
                    session.again(&piece, joined, shared, moment, &mut reply);
                }
                _ => by_itself(session, &piece, joint, store, shared, moment, &mut reply),
            }
            mended.put(&piece, reply);
        }
    }
    mended.apply(out);
    // Nobody else does it meanwhile, and a hash that is changed by many commands would become ever slower to change.
    for _ in 0..FOLDS {
        if !shared.has_folds() || shared.fold(store, moment) != Ok(true) {
            break;
        }
    }
}

/// Carries a command out again with nothing beside it, until what it changes is written: it was refused or overtaken with others.
fn by_itself(
    session: &mut Session,
    piece: &Piece,
    joint: &mut Joint,
    store: &mut dyn Store,
    shared: &Shared,
    moment: Moment,
    reply: &mut Vec<u8>,
) {
    let mut failure = CONTENDED.into();
    for _ in 0..ATTEMPTS {
        reply.clear();
        session.again(piece, &mut Joined { store: &mut *store, joint: &mut *joint }, shared, moment, reply);
        match joint.write(store, shared).pop() {
            None => return,
            Some((_, Verdict::Failed(error))) => {
                failure = error.into();
                break;
            }
            Some(_) => {}
        }
    }
    answer_failure(session, shared, &failure, 0, reply);
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
