//! Commands that go over all keys: `db.c`. How long they take depends on how many there are, so they are carried out in parts, each
//! of which is short, and whoever carries them out serves others in between: KEYS, RANDOMKEY, FLUSHDB and FLUSHALL, and DBSIZE
//! as long as a store has not counted its keys. So are those that look at as many keys as they name, which are small beside that, EXISTS and
//! TOUCH, and PUBLISH where a name is to be compared with many long patterns. Inside a transaction all parts follow each other.

use super::{Call, Done, SYNTAX};
use crate::channels::Search;
use crate::engine::Shared;
use crate::glob;
use crate::parts::{self, DATABASES_MAX};
use crate::protocol::Writer;
use crate::store::{HEAD_LEN, Key, OPERATION, Store};
use crate::value::{Head, UnixMs};

/// Keys that a part looks at, about.
const PART: usize = 1024;
/// Keys that EXISTS looks at in a part: those of a request with no more are looked at at one time.
pub(crate) const NAMED: usize = 64;

/// A command that is under way.
#[derive(Debug)]
pub struct Long {
    pub(crate) command: &'static super::Command,
    space: u8,
    cursor: u64,
    what: What,
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
    /// Of some names, from a place on.
    Exists {
        names: Vec<Vec<u8>>,
        found: i64,
    },
    Publish {
        channel: Vec<u8>,
        message: Vec<u8>,
        search: Search,
    },
}

impl Long {
    /// Bytes that it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.what {
            What::Keys { bytes, .. } => *bytes,
            What::Exists { names, .. } => names.iter().map(|name| name.len() + size_of::<Vec<u8>>()).sum(),
            What::Publish { channel, message, search } => channel.len() + message.len() + search.bytes(),
            _ => 0,
        }
    }

    /// Which command it is.
    #[must_use]
    pub const fn id(&self) -> super::Id {
        self.command.id
    }

    /// Whether nothing may run beside one of its parts: it changes what it comes by.
    #[must_use]
    pub const fn alone(&self) -> bool {
        matches!(self.what, What::Flush { .. })
    }

    /// Carries a part out; with the last one comes the reply, and the work that it was beside what each part is.
    pub(crate) fn step<S: Store>(
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
            What::Exists { names, found } => {
                let from = self.cursor as usize;
                let mut head = Vec::with_capacity(HEAD_LEN);
                for name in names.iter().skip(from).take(NAMED) {
                    head.clear();
                    let key = Key { space: self.space, name };
                    // What expired is left to whoever sweeps.
                    let there = store.head(key, &mut head)?.is_some();
                    let there = there && !Head::parse(&head)?.0.expired(now);
                    let stats = &shared.stats;
                    if there {
                        stats.hits.add(1)
                    } else {
                        stats.misses.add(1)
                    }
                    *found += i64::from(there);
                }
                self.cursor += NAMED as u64;
                if from + NAMED < names.len() {
                    return Ok(None);
                }
                reply.integer(*found);
            }
            What::Publish { channel, message, search } => {
                if !shared.channels.search(channel, search) {
                    return Ok(None);
                }
                let count = shared.channels.publish_to(shared, search, channel, message);
                reply.integer(count as i64);
                return Ok(Some(count.saturating_mul(OPERATION + message.len())));
            }
        }
        Ok(Some(0))
    }
}

impl<S: Store> Call<'_, S> {
    /// The command that is called, if it is one of these and nothing is wrong with it.
    pub(crate) fn long(&self) -> Done<Long> {
        let (mut space, mut cursor) = (self.session.space, 0);
        let what = match self.command.id {
            super::Id::Keys => What::Keys { pattern: self.word(1).to_vec(), names: Vec::new(), bytes: 0 },
            super::Id::RandomKey => {
                cursor = self.store.anywhere(self.moment.random);
                What::RandomKey { from_start: cursor == 0 }
            }
            super::Id::DbSize => What::Count,
            super::Id::Exists | super::Id::Touch => {
                What::Exists { names: self.request.words(1).map(<[u8]>::to_vec).collect(), found: 0 }
            }
            super::Id::Publish => {
                let (channel, message) = (self.word(1).to_vec(), self.word(2).to_vec());
                What::Publish { channel, message, search: Search::default() }
            }
            id => {
                match self.request.len() {
                    1 => {}
                    2 if self.is(1, "sync") || self.is(1, "async") => {}
                    _ => return Err(SYNTAX.into()),
                }
                let mut last = space;
                if id == super::Id::FlushAll {
                    let databases = self.shared.config.databases.clamp(1, DATABASES_MAX);
                    (space, last) = (0, databases as u8 - 1);
                }
                What::Flush { last, parts: false }
            }
        };
        Ok(Long { command: self.command, space, cursor, what })
    }

    /// All parts, one after the other.
    pub(super) fn run_whole(&mut self) -> Done {
        let (mut long, now) = (self.long()?, self.now());
        while long.step(self.store, self.shared, now, &mut self.reply)?.is_none() {}
        Ok(())
    }
}
