//! Commands that go over all keys: `db.c`. How long they take depends on how many there are, so they are carried out in parts, each
//! of which is short, and whoever carries them out serves others in between: KEYS, RANDOMKEY, FLUSHDB and FLUSHALL, and DBSIZE
//! as long as a store has not counted its keys. So are those that name [many keys](Several), PUBLISH where a name is to be compared with many long
//! patterns, and EXEC, and what of these EXEC carries out.

use std::ops::Range;

use super::transaction::Exec;
use super::{Call, Command, Done, Id, SYNTAX, carry_out, wrong_arity};
use crate::channels::Search;
use crate::engine::{Moment, Session, Shared};
use crate::glob;
use crate::holds::Keys;
use crate::number::parse_i64;
use crate::parts::{self, DATABASES_MAX};
use crate::protocol::{Request, Writer};
use crate::store::{Metered, OPERATION, Store};
use crate::value::{Head, UnixMs};

/// Keys that a part looks at, about.
const PART: usize = 1024;
/// Of those that a command names, keys that are read in a part, and that are written, for whom the store waits once for its medium; and bytes
/// of values, about.
const READ: usize = 64;
const WRITTEN: usize = 512;
const BYTES: usize = 1 << 20;

/// A command that is under way.
#[derive(Debug)]
pub struct Long {
    pub(crate) command: &'static Command,
    space: u8,
    cursor: u64,
    what: What,
    /// Whom it waits for before it begins, and between its parts if it is nothing that is one moment.
    keys: Keys,
    /// It holds them.
    hold: Option<u64>,
}

#[derive(Debug)]
enum What {
    Keys {
        pattern: Vec<u8>,
        names: Vec<Vec<u8>>,
        bytes: usize,
    },
    /// From a place chosen at random to the end, then from the start.
    RandomKey {
        from_start: bool,
    },
    /// Of the databases up to `last`; then the parts of their hashes.
    Flush {
        last: u8,
        parts: bool,
    },
    Count,
    Several(Several),
    Publish {
        channel: Vec<u8>,
        message: Vec<u8>,
        search: Search,
    },
    Exec(Box<Exec>),
}

impl What {
    const fn flushes(&self) -> bool {
        matches!(self, Self::Flush { .. })
    }
}

impl Long {
    /// Bytes that it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.what {
            What::Keys { bytes, .. } => *bytes,
            What::Several(several) => several.bytes(),
            What::Publish { channel, message, search } => channel.len() + message.len() + search.bytes(),
            What::Exec(exec) => exec.bytes(),
            _ => 0,
        }
    }

    /// Which command it is.
    #[must_use]
    pub const fn id(&self) -> Id {
        self.command.id
    }

    /// Whether nothing may run beside its next part: it changes what it comes by, or is to be one moment and does not hold its keys yet.
    #[must_use]
    pub fn alone(&self) -> bool {
        let flushes = match &self.what {
            What::Exec(exec) => exec.flushes(),
            what => what.flushes(),
        };
        flushes || self.is_one_moment() && self.hold.is_none()
    }

    /// Whether it deletes whatever it comes by.
    pub(super) const fn flushes(&self) -> bool {
        self.what.flushes()
    }

    /// Whether nobody comes between its parts to one of its keys.
    #[must_use]
    pub const fn is_one_moment(&self) -> bool {
        matches!(self.what, What::Exec(_) | What::Several(_))
    }

    /// Whether it has to wait for another one that holds keys of its, as [`Session::is_barred`].
    #[must_use]
    pub fn is_barred(&self, session: &Session, shared: &Shared) -> bool {
        self.hold.is_none() && shared.keys_held.bar_all(&self.keys, session.bell())
    }

    /// Has its keys kept as they are until its end.
    pub(crate) fn hold(&mut self, shared: &Shared) {
        if self.is_one_moment() && self.hold.is_none() {
            self.hold = Some(shared.keys_held.take(self.keys.clone()));
            if let What::Exec(exec) = &mut self.what {
                exec.holds(self.hold);
            }
        }
    }

    /// It is over, or will not be carried out to its end.
    pub fn give_back(&mut self, shared: &Shared) {
        if let Some(hold) = self.hold.take() {
            shared.give_back(hold);
        }
    }

    /// Carries a part out; with the last one comes the reply, and the work that it was beside what each part is.
    pub(crate) fn step<S: Store>(
        &mut self,
        session: &mut Session,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Done<Option<usize>> {
        let is_over = match &mut self.what {
            What::Exec(exec) => exec.step(session, store, shared, moment, out)?,
            What::Several(several) => several.step(self.command, session, store, shared, moment, out)?,
            _ => {
                return self.step_by_itself(
                    store,
                    shared,
                    moment.now(),
                    &mut Writer::new(out, session.version),
                );
            }
        };
        Ok(is_over.then_some(0))
    }

    /// The same of one that is not made of other commands.
    fn step_by_itself<S: Store>(
        &mut self,
        store: &mut S,
        shared: &Shared,
        now: UnixMs,
        reply: &mut Writer<'_>,
    ) -> Done<Option<usize>> {
        let live = |head: &[u8]| Head::parse(head).is_ok_and(|(head, _)| !head.expired(now));
        match &mut self.what {
            What::Keys { pattern, names, bytes } => {
                self.cursor = store.scan(self.space, self.cursor, PART, &mut |name, head| {
                    if (*pattern == b"*" || glob::matches(pattern, name, false)) && live(head) {
                        *bytes += name.len() + size_of::<Vec<u8>>();
                        names.push(name.to_vec());
                    }
                })?;
                if self.cursor != 0 {
                    return Ok(None);
                }
                // A scan may show a key twice.
                names.sort_unstable();
                names.dedup();
                reply.array(names.len());
                names.iter().for_each(|name| reply.bulk(name));
            }
            What::RandomKey { from_start } => {
                let mut found = None;
                self.cursor = store.scan(self.space, self.cursor, 1, &mut |name, head| {
                    if found.is_none() && live(head) {
                        found = Some(name.to_vec());
                    }
                })?;
                match found {
                    Some(name) => reply.bulk(&name),
                    None if self.cursor == 0 && std::mem::replace(from_start, true) => reply.null(),
                    None => return Ok(None),
                }
            }
            What::Flush { last, parts } => {
                self.cursor = match *parts {
                    false => store.clear(Some(self.space), self.cursor)?,
                    true if store.count(parts::bucket_space(self.space))? == Some(0) => 0,
                    // Hashes that are made meanwhile keep their parts.
                    true => parts::sweep(store, self.space, self.cursor, PART)?.0,
                };
                if self.cursor != 0 {
                    return Ok(None);
                }
                *parts = !*parts;
                if *parts || self.space < *last {
                    self.space += u8::from(!*parts);
                    return Ok(None);
                }
                reply.ok();
            }
            What::Count => match store.count(self.space)? {
                Some(count) => reply.integer(count as i64),
                None => return Ok(None),
            },
            What::Publish { channel, message, search } => {
                if !shared.channels.search(channel, search) {
                    return Ok(None);
                }
                let count = shared.channels.publish_to(shared, search, channel, message);
                reply.integer(count as i64);
                return Ok(Some(count.saturating_mul(OPERATION + message.len())));
            }
            What::Several(_) | What::Exec(_) => unreachable!("it is made of other commands"),
        }
        Ok(Some(0))
    }
}

/// A command on many keys, carried out as several on fewer. Its keys are held meanwhile, so that nobody sees but one state of them.
#[derive(Debug)]
struct Several {
    bytes: Vec<u8>,
    /// Where the words of the request are there.
    words: Vec<Range<usize>>,
    /// The first of those that are left.
    at: usize,
    /// Keys of a part at most.
    most: usize,
    /// It looks first whether it is to change anything.
    looks: bool,
    sum: i64,
    replies: Vec<u8>,
}

/// Keys of a part of such a command.
const fn most(id: Id) -> usize {
    if matches!(id, Id::Exists | Id::Touch | Id::MGet) { READ } else { WRITTEN }
}

/// Whether a request, which is not EXEC, is carried out in parts.
pub(crate) fn is_long(command: &Command, request: &Request<'_>, shared: &Shared) -> bool {
    match command.id {
        Id::Keys | Id::RandomKey | Id::DbSize | Id::FlushDb | Id::FlushAll => true,
        Id::Exists | Id::Touch | Id::MGet | Id::Del | Id::Unlink | Id::MSet | Id::MSetNx => {
            is_large(command, request)
        }
        Id::Publish => request.len() == 3 && shared.channels.takes_long(request.word(1)),
        _ => false,
    }
}

/// Whether a request on several keys is more than one part.
fn is_large(command: &Command, request: &Request<'_>) -> bool {
    let keys = (request.len() - 1) / command.keys[2].max(1) as usize;
    keys > most(command.id) || keys > 1 && request.words(1).map(<[u8]>::len).sum::<usize>() > BYTES
}

impl Several {
    fn new(command: &Command, request: &Request<'_>) -> Self {
        let (mut bytes, mut words) = (Vec::new(), Vec::with_capacity(request.len()));
        for word in request.words(0) {
            words.push(bytes.len()..bytes.len() + word.len());
            bytes.extend_from_slice(word);
        }
        let looks = command.id == Id::MSetNx;
        Self { bytes, words, at: 1, most: most(command.id), looks, sum: 0, replies: Vec::new() }
    }

    const fn bytes(&self) -> usize {
        self.bytes.capacity() + self.words.capacity() * size_of::<Range<usize>>() + self.replies.capacity()
    }

    /// Carries a part out; whether it was the last one, with which comes the reply.
    fn step<S: Store>(
        &mut self,
        command: &'static Command,
        session: &mut Session,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Done<bool> {
        let (each, mut end, mut bytes) = (command.keys[2].max(1) as usize, self.at, 0);
        while end < self.words.len() && (end - self.at) / each < self.most && bytes < BYTES {
            bytes += self.words[end..end + each].iter().map(ExactSizeIterator::len).sum::<usize>();
            end += each;
        }
        let words: Vec<_> =
            std::iter::once(&self.words[0]).chain(&self.words[self.at..end]).cloned().collect();
        let request = Request::new(&self.bytes, &words);
        let is_last = end == self.words.len();
        let mut part = Vec::new();
        if self.looks {
            let (reply, store) = (Writer::new(&mut part, session.version), &mut Metered::new(store));
            let mut call = Call { command, request: &request, store, session, shared, moment, reply };
            let absent = call.are_absent()?;
            let work = call.store.work();
            session.worked(work);
            if !absent {
                Writer::new(out, session.version).flag(false);
            }
            (self.looks, self.at) = if is_last { (false, 1) } else { (true, end) };
            return Ok(!absent);
        }
        if command.id == Id::MSetNx {
            // It has been looked at.
            session.so_far = Some(0);
        }
        carry_out(session, command, &request, store, shared, moment, &mut part)?;
        match command.id {
            Id::MSet | Id::MSetNx => {}
            Id::MGet => {
                let head = part.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                self.replies.extend_from_slice(&part[head..]);
                // Values may be large.
                self.most = (BYTES / (part.len() / (end - self.at) + 1)).clamp(1, READ);
            }
            _ => self.sum += part.get(1..part.len() - 2).and_then(parse_i64).unwrap_or(0),
        }
        self.at = end;
        if is_last {
            let mut reply = Writer::new(out, session.version);
            match command.id {
                Id::MSet => reply.ok(),
                Id::MSetNx => reply.flag(true),
                Id::MGet => {
                    reply.array(self.words.len() - 1);
                    reply.written(&self.replies);
                }
                _ => reply.integer(self.sum),
            }
        }
        Ok(is_last)
    }
}

impl<S: Store> Call<'_, S> {
    /// The command that is called, if it is one of these and nothing is wrong with it.
    pub(crate) fn long(&mut self) -> Done<Long> {
        let (mut space, mut cursor) = (self.session.space, 0);
        let mut keys = Keys::of(self.command, self.request, space);
        let what = match self.command.id {
            Id::Keys => What::Keys { pattern: self.word(1).to_vec(), names: Vec::new(), bytes: 0 },
            Id::RandomKey => {
                cursor = self.store.anywhere(self.moment.random);
                What::RandomKey { from_start: cursor == 0 }
            }
            Id::DbSize => What::Count,
            Id::MSet | Id::MSetNx if self.request.len().is_multiple_of(2) => {
                return Err(wrong_arity(self.command.name));
            }
            Id::Del | Id::Unlink | Id::Exists | Id::Touch | Id::MGet | Id::MSet | Id::MSetNx => {
                What::Several(Several::new(self.command, self.request))
            }
            Id::Publish => {
                let (channel, message) = (self.word(1).to_vec(), self.word(2).to_vec());
                What::Publish { channel, message, search: Search::default() }
            }
            Id::Exec => {
                let exec = Exec::begin(self.session, self.moment)?;
                keys = exec.keys();
                What::Exec(Box::new(exec))
            }
            id => {
                match self.request.len() {
                    1 => {}
                    2 if self.is(1, "sync") || self.is(1, "async") => {}
                    _ => return Err(SYNTAX.into()),
                }
                let mut last = space;
                if id == Id::FlushAll {
                    let databases = self.shared.config.databases.clamp(1, DATABASES_MAX);
                    (space, last) = (0, databases as u8 - 1);
                }
                What::Flush { last, parts: false }
            }
        };
        Ok(Long { command: self.command, space, cursor, what, keys, hold: None })
    }

    /// All parts, one after the other.
    pub(super) fn run_whole(&mut self) -> Done {
        let (mut long, now) = (self.long()?, self.now());
        while long.step_by_itself(self.store, self.shared, now, &mut self.reply)?.is_none() {}
        Ok(())
    }
}
