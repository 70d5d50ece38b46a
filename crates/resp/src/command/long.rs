//! Commands that go over all keys: `db.c`. How long they take depends on how many there are, so they are carried out in parts, each
//! of which is short, and whoever carries them out serves others in between: KEYS, RANDOMKEY, FLUSHDB and FLUSHALL, and DBSIZE
//! as long as a store has not counted its keys. Inside a transaction all parts follow each other.

use super::{Call, Done, SYNTAX};
use crate::glob;
use crate::parts::{self, DATABASES_MAX};
use crate::protocol::Writer;
use crate::store::Store;
use crate::value::{Head, UnixMs};

/// Keys that a part looks at, about.
const PART: usize = 1024;

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
}

impl Long {
    /// Bytes that it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.what {
            What::Keys { bytes, .. } => *bytes,
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

    /// Carries a part out; with the last one comes the reply, and `true`.
    pub(crate) fn step<S: Store>(
        &mut self,
        store: &mut S,
        now: UnixMs,
        reply: &mut Writer<'_>,
    ) -> Done<bool> {
        let live = |head: &[u8]| Head::parse(head).is_ok_and(|(head, _)| !head.expired(now));
        match &mut self.what {
            What::Keys { pattern, names, bytes } => {
                self.cursor = store.scan(self.space, self.cursor, PART, &mut |name, head| {
                    if glob::matches(pattern, name, false) && live(head) {
                        *bytes += name.len() + size_of::<Vec<u8>>();
                        names.push(name.to_vec());
                    }
                })?;
                if self.cursor != 0 {
                    return Ok(false);
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
                    None => return Ok(false),
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
                    return Ok(false);
                }
                *parts = !*parts;
                if *parts || self.space < *last {
                    self.space += u8::from(!*parts);
                    return Ok(false);
                }
                reply.ok();
            }
            What::Count => match store.count(self.space)? {
                Some(count) => reply.integer(count as i64),
                None => return Ok(false),
            },
        }
        Ok(true)
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
        while !long.step(self.store, now, &mut self.reply)? {}
        Ok(())
    }
}
