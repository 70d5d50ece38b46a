//! The commands, by Redis 7.0's semantics and texts.
//!
//! [`dispatch`] finds the command, says what is wrong with the request as Redis would, and leaves the rest to one file per
//! family. A handler writes its reply; if it fails after it began one, what it wrote is taken back and the error stands
//! alone.

mod channels;
mod connection;
mod expiry;
mod hashes;
mod info;
mod keys;
mod long;
mod run;
mod scan;
mod server;
mod strings;
mod table;
mod transaction;

use std::borrow::Cow;

use crate::channels::Kind as Chosen;
use crate::engine::{Moment, Session, Shared};
use crate::number::parse_i64;
use crate::parts::Missed;
use crate::protocol::{Request, Writer};
use crate::store::{Condition, Key, Metered, Store, StoreError, Version};
use crate::value::{Head, Kind, UnixMs};

pub use long::Long;
pub(crate) use long::is_long;
pub(crate) use run::dispatch_run;
pub use table::{COMMANDS, Command, Id};
pub(crate) use transaction::Transaction;

pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NOT_FLOAT: &str = "ERR value is not a valid float";
pub(crate) const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub(crate) const NO_NUMBER: &str = "ERR increment would produce NaN or Infinity";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
const NOT_AUTHENTICATED: &str = "NOAUTH Authentication required.";
const LOST: &str =
    "ERR a part of this hash is lost: rem kv verify says what is damaged, and DEL ends the hash";
const CONTENDED: &str = "TRYAGAIN other clients keep changing this key: try again";

/// How often a conditional write is tried. Each failure means that somebody else succeeded.
const ATTEMPTS: usize = 10_000;

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The error's text.
    Said(Cow<'static, [u8]>),
    /// The store's error, which is told to the client.
    Store(StoreError),
    /// The parts of a hash could not be read. Whoever reads them tries again.
    Missed(Missed),
}

impl From<Missed> for Failure {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Store(error) => Self::Store(error),
            missed => Self::Missed(missed),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Self {
        Self::Said(Cow::Borrowed(text.as_bytes()))
    }
}

impl Failure {
    pub(crate) const fn text(text: Vec<u8>) -> Self {
        Self::Said(Cow::Owned(text))
    }

    /// Whether the command that was put off will be carried out again, so that this is nobody's answer.
    const fn comes_again(&self) -> bool {
        matches!(self, Self::Missed(Missed::Under))
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Said(text) => Cow::Borrowed(text),
            Self::Store(error) => Cow::Owned(error.to_string().into_bytes()),
            Self::Missed(Missed::Lost) => Cow::Borrowed(LOST.as_bytes()),
            Self::Missed(_) => Cow::Borrowed(CONTENDED.as_bytes()),
        }
    }
}

/// What most handlers return.
pub(crate) type Done<T = ()> = Result<T, Failure>;

/// A command that is being carried out, and its surroundings.
pub(crate) struct Call<'a, S> {
    pub(crate) command: &'static Command,
    pub(crate) request: &'a Request<'a>,
    pub(crate) store: &'a mut S,
    pub(crate) session: &'a mut Session,
    pub(crate) shared: &'a Shared,
    pub(crate) moment: Moment,
    pub(crate) reply: Writer<'a>,
}

/// A value that was read.
pub(crate) struct Item {
    pub(crate) head: Head,
    version: Version,
    bytes: Vec<u8>,
    start: usize,
}

impl Item {
    /// The value, head and all.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What stands behind the head.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn string(&self) -> Done<&[u8]> {
        match self.head.kind {
            Kind::String => Ok(self.payload()),
            Kind::Hash | Kind::Parts => Err(WRONG_TYPE.into()),
        }
    }
}

/// What was seen of a hash whose parts could not be read.
#[derive(Default)]
pub(crate) struct Seen {
    version: Option<Version>,
    /// Its key was looked at twice and is the same: a part that is newer is taken as it is.
    pub(crate) newer: bool,
}

impl Seen {
    /// Whether to look again, at what the key has now.
    pub(crate) fn again<S: Store>(
        &mut self,
        store: &mut S,
        key: Key<'_>,
        item: Option<&Item>,
        missed: Missed,
    ) -> Done {
        if !store.is_outdated(key) {
            return Err(Failure::Missed(Missed::Under));
        }
        let version = item.map(|item| item.version);
        let same = self.version == version;
        self.version = version;
        match missed {
            // Parts go after their hash has gone: as long as it is there, so are they.
            Missed::Lost if same => return Err(Missed::Lost.into()),
            // A batch is in the key's value before it is in any part. Who lost power with a store that promises nothing for that
            // case may find it otherwise.
            Missed::Newer => self.newer |= same,
            _ => {}
        }
        Ok(())
    }
}

/// What a change does to the key.
pub(crate) enum Change {
    /// The new value is in the buffer.
    Write,
    /// The same, and by it something comes to take less room, soon or later.
    WriteFreeing,
    Delete,
    Keep,
}

/// Carries a request out; which command it was, if it was one.
pub(crate) fn dispatch<S: Store>(
    session: &mut Session,
    request: &Request<'_>,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) -> Option<&'static Command> {
    let start = out.len();
    let found = Command::find(request.word(0));
    let refusal = match found {
        None => Some(Failure::text(unknown(request))),
        Some(command) if !command.takes(request.len()) => Some(wrong_arity(command.name)),
        Some(command) if session.stranger(shared) && !command.open_to_strangers() => {
            Some(NOT_AUTHENTICATED.into())
        }
        Some(command) if session.only_listens() => channels::refused(session, command, request),
        Some(command) if session.transaction.takes(command.id) => {
            transaction::wrong_subcommand(command, request)
        }
        Some(_) => None,
    };
    let failure = match (found, refusal) {
        (Some(command), None) if session.transaction.takes(command.id) => {
            let queued = session.transaction.queue(command, request, session.space);
            if queued.is_ok() {
                Writer::new(out, session.version).simple("QUEUED");
            }
            queued.err()
        }
        (Some(command), None) if command.id == Id::Exec => {
            transaction::exec(session, command, store, shared, moment, out).err()
        }
        (Some(command), None) => {
            let done = carry_out(session, command, request, store, shared, moment, out);
            if session.waits(&done, moment) {
                out.truncate(start);
                return found;
            }
            if !session.repeating {
                count(shared, command, &done);
            }
            done.err()
        }
        (found, refusal) => {
            session.transaction.spoil();
            if let Some(command) = found {
                shared.stats.of(command.id).rejected.add(1);
            }
            match (found, refusal) {
                (Some(command), Some(why)) if command.id == Id::Exec => {
                    Some(transaction::discard(session, &why))
                }
                (_, refusal) => refusal,
            }
        }
    };
    if let Some(failure) = failure {
        answer_failure(session, shared, &failure, start, out);
    }
    found
}

/// Carries out one command whose request is as it must be, and counts the work for the session.
pub(crate) fn carry_out<S: Store>(
    session: &mut Session,
    command: &'static Command,
    request: &Request<'_>,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) -> Done {
    let reply = Writer::new(out, session.version);
    let store = &mut Metered::new(store);
    let mut call = Call { command, request, store, session, shared, moment, reply };
    let done = call.carry_out();
    let work = call.store.work();
    session.worked(work);
    done
}

pub(crate) fn count(shared: &Shared, command: &Command, done: &Done) {
    shared.stats.commands.add(1);
    shared.stats.of(command.id).calls.add(1);
    if done.as_ref().is_err_and(|failure| !failure.comes_again()) {
        shared.stats.of(command.id).failed.add(1);
    }
}

/// Takes back what was written of a reply, and answers with the error.
pub(crate) fn answer_failure(
    session: &Session,
    shared: &Shared,
    failure: &Failure,
    start: usize,
    out: &mut Vec<u8>,
) {
    let text = failure.bytes();
    if !failure.comes_again() {
        shared.stats.error(&text);
    }
    out.truncate(start);
    Writer::new(out, session.version).error(&text);
}

pub(crate) fn wrong_arity(name: &str) -> Failure {
    Failure::text(format!("ERR wrong number of arguments for '{name}' command").into_bytes())
}

/// The text for a name that is no command: the name and what follows, each cut at 128 bytes, and at a NUL as C's strings
/// are.
fn unknown(request: &Request<'_>) -> Vec<u8> {
    const MAX: usize = 128;
    let c_string = |word: &[u8], max: usize| {
        let end = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
        word[..end.min(max)].to_vec()
    };
    let mut arguments = Vec::new();
    for word in request.words(1) {
        if arguments.len() >= MAX {
            break;
        }
        let room = MAX - arguments.len();
        arguments.push(b'\'');
        arguments.extend(c_string(word, room));
        arguments.extend_from_slice(b"' ");
    }
    let mut text = b"ERR unknown command '".to_vec();
    text.extend(c_string(request.word(0), MAX));
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend(arguments);
    text
}

/// A container's word that names nothing of ours.
pub(crate) fn unknown_subcommand(command: &Command, request: &Request<'_>) -> Failure {
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend(expiry::c_string(request.word(1)).take(128));
    text.extend_from_slice(format!("'. Try {} HELP.", command.name.to_uppercase()).as_bytes());
    Failure::text(text)
}

impl<'a, S: Store> Call<'a, S> {
    fn carry_out(&mut self) -> Done {
        match self.command.id {
            Id::Append => self.append(),
            Id::Auth => self.auth(),
            Id::Client => self.client(),
            Id::Command => self.command(),
            Id::Cluster => self.cluster(),
            Id::Config => self.config(),
            Id::DbSize | Id::FlushAll | Id::FlushDb | Id::Keys | Id::RandomKey => self.run_whole(),
            Id::Decr => self.increment_by(-1),
            Id::DecrBy => self.decrby(),
            Id::Del | Id::Unlink => self.del(),
            Id::Discard => self.discard(),
            Id::Echo => self.echo(),
            Id::Exec => unreachable!("EXEC is carried out by itself"),
            Id::Exists | Id::Touch => self.exists(),
            Id::Expire => self.expire(true, false),
            Id::ExpireAt => self.expire(true, true),
            Id::ExpireTime => self.expire_time(true),
            Id::Get => self.get(),
            Id::GetDel => self.getdel(),
            Id::GetEx => self.getex(),
            Id::GetRange | Id::Substr => self.getrange(),
            Id::GetSet => self.getset(),
            Id::HDel => self.hdel(),
            Id::Hello => self.hello(),
            Id::HExists => self.hexists(),
            Id::HGet => self.hget(),
            Id::HGetAll => self.hgetall(),
            Id::HIncrBy => self.hincrby(),
            Id::HIncrByFloat => self.hincrbyfloat(),
            Id::HKeys => self.hash_column(true),
            Id::HLen => self.hlen(),
            Id::HMGet => self.hmget(),
            Id::HMSet | Id::HSet => self.hset(),
            Id::HScan => self.hscan(),
            Id::HSetNx => self.hsetnx(),
            Id::HStrLen => self.hstrlen(),
            Id::HVals => self.hash_column(false),
            Id::Incr => self.increment_by(1),
            Id::IncrBy => self.incrby(),
            Id::IncrByFloat => self.incrbyfloat(),
            Id::Info => self.info(),
            Id::MGet => self.mget(),
            Id::MSet => self.mset(),
            Id::MSetNx => self.msetnx(),
            Id::Multi => self.multi(),
            Id::Persist => self.persist(),
            Id::PExpire => self.expire(false, false),
            Id::PExpireAt => self.expire(false, true),
            Id::PExpireTime => self.expire_time(false),
            Id::Ping => self.ping(),
            Id::PSetEx => self.setex(false),
            Id::PTtl => self.ttl(false),
            Id::PSubscribe => self.subscribe(Chosen::Pattern),
            Id::Publish => self.publish(),
            Id::PubSub => self.pubsub(),
            Id::PUnsubscribe => self.unsubscribe(Chosen::Pattern),
            Id::Quit => self.quit(),
            Id::Rename => self.rename(false),
            Id::RenameNx => self.rename(true),
            Id::Reset => self.reset(),
            Id::Scan => self.scan(),
            Id::Select => self.select(),
            Id::Set => self.set(),
            Id::SetEx => self.setex(true),
            Id::SetNx => self.setnx(),
            Id::SetRange => self.setrange(),
            Id::StrLen => self.strlen(),
            Id::Subscribe => self.subscribe(Chosen::Channel),
            Id::Time => self.time(),
            Id::Ttl => self.ttl(true),
            Id::Type => self.kind(),
            Id::Unsubscribe => self.unsubscribe(Chosen::Channel),
            Id::Unwatch => self.unwatch(),
            Id::Watch => self.watch(),
        }
    }

    pub(crate) fn word(&self, index: usize) -> &'a [u8] {
        self.request.word(index)
    }

    pub(crate) fn integer(&self, index: usize) -> Done<i64> {
        parse_i64(self.word(index)).ok_or_else(|| NOT_INTEGER.into())
    }

    /// Whether a word is this one, in any case.
    pub(crate) fn is(&self, index: usize, word: &str) -> bool {
        self.word(index).eq_ignore_ascii_case(word.as_bytes())
    }

    pub(crate) const fn key_of(&self, name: &'a [u8]) -> Key<'a> {
        Key { space: self.session.space, name }
    }

    pub(crate) const fn now(&self) -> UnixMs {
        self.moment.now()
    }

    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.session.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Gives a buffer back for the next command. Large ones are let go, and a handful is enough.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= 16 * 1024 && self.session.spare.len() < 3 {
            self.session.spare.push(buffer);
        }
    }

    pub(crate) fn release(&mut self, item: Item) {
        self.recycle(item.bytes);
    }

    /// Reads a key, expired or not.
    fn fetch(&mut self, key: Key<'_>) -> Done<Option<Item>> {
        let mut bytes = self.buffer();
        let Some(version) = self.store.get(key, &mut bytes)? else {
            self.recycle(bytes);
            return Ok(None);
        };
        let (head, start) = Head::parse(&bytes)?;
        Ok(Some(Item { head, version, bytes, start }))
    }

    /// Reads a key. One that expired is not there, and is deleted.
    pub(crate) fn load(&mut self, name: &'a [u8]) -> Done<Option<Item>> {
        let key = self.key_of(name);
        let Some(item) = self.fetch(key)? else { return Ok(None) };
        if !item.head.expired(self.now()) {
            return Ok(Some(item));
        }
        self.leaves(key, Some(&item));
        self.expire_now(key, item.version)?;
        self.release(item);
        Ok(None)
    }

    /// Notes the parts of a hash that is about to be deleted.
    pub(crate) fn leaves(&self, key: Key<'_>, item: Option<&Item>) {
        if let Some(item) = item.filter(|item| item.head.kind == Kind::Parts) {
            self.shared.leaves(key, item.payload());
        }
    }

    /// The same, and counts whether it was there.
    pub(crate) fn load_counted(&mut self, name: &'a [u8]) -> Done<Option<Item>> {
        let item = self.load(name)?;
        self.count_hit(item.is_some());
        Ok(item)
    }

    pub(crate) fn count_hit(&self, hit: bool) {
        let stats = &self.shared.stats;
        if hit { stats.hits.add(1) } else { stats.misses.add(1) }
    }

    /// Reads the front of a key's value. One that expired is not there, and is deleted.
    pub(crate) fn head(&mut self, name: &'a [u8]) -> Done<Option<(Head, Version)>> {
        let key = self.key_of(name);
        let mut bytes = self.buffer();
        let version = self.store.head(key, &mut bytes)?;
        let found = match version {
            None => None,
            Some(version) => {
                let (head, _) = Head::parse(&bytes)?;
                if head.expired(self.now()) {
                    if head.kind == Kind::Parts {
                        let item = self.fetch(key)?;
                        self.leaves(key, item.as_ref());
                    }
                    self.expire_now(key, version)?;
                    None
                } else {
                    Some((head, version))
                }
            }
        };
        self.recycle(bytes);
        Ok(found)
    }

    fn expire_now(&mut self, key: Key<'_>, version: Version) -> Done {
        // If somebody has written it since, it is no longer the value that expired.
        match self.store.delete(key, Condition::Is(version)) {
            Ok(gone) => self.shared.stats.expired.add(u64::from(gone)),
            // It takes room until somebody may write, and is served to nobody.
            Err(StoreError::ReadOnly | StoreError::InTheWay | StoreError::UnderWay) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Writes a key whatever it was.
    pub(crate) fn overwrite(&mut self, name: &'a [u8], head: Head, payload: &[u8]) -> Done {
        let key = self.key_of(name);
        let mut value = self.buffer();
        head.emit(&mut value);
        value.extend_from_slice(payload);
        let written = self.store.put(key, &value, Condition::Always);
        self.shared.wrote(key);
        let written = written?;
        assert!(written, "a write without a condition was not carried out");
        self.shared.fold_if_due(key, &value);
        self.recycle(value);
        Ok(())
    }

    /// Changes a key atomically: `change` sees the value, if there is one, and says what becomes of it, with a new value
    /// (head and all) appended to the buffer. It may be called again, when somebody else was faster.
    pub(crate) fn update<T>(
        &mut self,
        name: &'a [u8],
        mut change: impl FnMut(Option<&Item>, &mut Vec<u8>) -> Done<(Change, T)>,
    ) -> Done<T> {
        self.update_over(name, |_, _, item, new| change(item, new))
    }

    /// The same, where `change` looks at what lies beneath the key, too: it is called again where that was another state.
    pub(crate) fn update_over<T>(
        &mut self,
        name: &'a [u8],
        mut change: impl FnMut(&mut S, bool, Option<&Item>, &mut Vec<u8>) -> Done<(Change, T)>,
    ) -> Done<T> {
        let key = self.key_of(name);
        let mut seen = Seen::default();
        for _ in 0..ATTEMPTS {
            let mut item = self.fetch(key)?;
            let found = item.as_ref().map(|item| item.version);
            let condition = found.map_or(Condition::Absent, Condition::Is);
            let gone = item.take_if(|item| item.head.expired(self.moment.now()));
            self.leaves(key, gone.as_ref());
            let expired = gone.is_some();
            let mut value = self.buffer();
            let (change, answer) = match change(self.store, seen.newer, item.as_ref(), &mut value) {
                Err(Failure::Missed(missed)) => {
                    seen.again(self.store, key, item.as_ref(), missed)?;
                    continue;
                }
                changed => changed?,
            };
            let done = match change {
                Change::Write | Change::WriteFreeing => {
                    let condition = match change {
                        Change::WriteFreeing => Condition::Freeing(found),
                        _ => condition,
                    };
                    let written = self.store.put(key, &value, condition);
                    self.shared.wrote(key);
                    if written == Err(StoreError::Full) {
                        self.shared.has_no_room(key, &value);
                    }
                    let written = written?;
                    if written {
                        self.shared.fold_if_due(key, &value);
                    }
                    written
                }
                Change::Delete => {
                    self.leaves(key, item.as_ref());
                    self.store.delete(key, condition)?
                }
                // What expired goes as it would have on any other look at the key.
                Change::Keep if expired => match self.store.delete(key, condition) {
                    Ok(_) => true,
                    Err(StoreError::ReadOnly | StoreError::InTheWay | StoreError::UnderWay) => {
                        return Ok(answer);
                    }
                    Err(error) => return Err(error.into()),
                },
                Change::Keep => true,
            };
            self.recycle(value);
            if let Some(item) = item {
                self.release(item);
            }
            if done {
                self.shared.stats.expired.add(u64::from(expired));
                return Ok(answer);
            }
        }
        Err(CONTENDED.into())
    }

    /// Lets go of an item whose reply has been written.
    pub(crate) fn reply_bulk(&mut self, item: Option<Item>) -> Done {
        match item {
            None => self.reply.null(),
            Some(item) => {
                self.reply.bulk(item.string()?);
                self.release(item);
            }
        }
        Ok(())
    }
}
