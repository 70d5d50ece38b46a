//! Scans as iterators: pages are fetched as they are needed.

use std::collections::VecDeque;
use std::iter::FusedIterator;

use super::{Error, Store};
use remanence_kv::client::Found;

/// The keys of a page: enough that its round trip does not show, few enough that nobody waits for the server to find them.
const PAGE: u32 = 256;

/// The keys of a store, in no order that means anything: see [`Store::keys`].
#[derive(Debug)]
pub struct Keys<'a> {
    store: &'a mut Store,
    page: VecDeque<Vec<u8>>,
    /// Of the page, values that have lost their key.
    nameless: u32,
    /// Where to go on; `None` at the end.
    cursor: Option<u64>,
}

/// The keys of a store with their values: see [`Store::entries`].
#[derive(Debug)]
pub struct Entries<'a> {
    keys: Keys<'a>,
    found: VecDeque<Result<(Vec<u8>, Found), Error>>,
}

impl Store {
    /// All keys, as an iterator. One that is there all the time comes once; one that is put or deleted meanwhile, or a value that is
    /// replaced, may be seen or not. Values that are damaged so much that nobody can tell whose they are come as
    /// [`Error::Nameless`], and the iteration goes on behind them; after any other error it is over.
    pub const fn keys(&mut self) -> Keys<'_> {
        Keys { store: self, page: VecDeque::new(), nameless: 0, cursor: Some(0) }
    }

    /// All keys with their values, as an iterator: see [`keys`](Self::keys). A value that is damaged comes as an error, and the
    /// iteration goes on behind it.
    pub const fn entries(&mut self) -> Entries<'_> {
        Entries { keys: self.keys(), found: VecDeque::new() }
    }
}

impl Keys<'_> {
    /// Fetches pages until one has something.
    fn fill(&mut self) -> Result<(), Error> {
        while let Some(cursor) = self.cursor.filter(|_| self.page.is_empty() && self.nameless == 0) {
            let page = self.store.scan(cursor, PAGE).inspect_err(|_| self.cursor = None)?;
            (self.page, self.nameless, self.cursor) = (page.keys.into(), page.nameless, page.next);
        }
        Ok(())
    }
}

impl Iterator for Keys<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            return Some(Err(error));
        }
        if self.nameless > 0 {
            return Some(Err(Error::Nameless(std::mem::take(&mut self.nameless))));
        }
        self.page.pop_front().map(Ok)
    }
}

impl FusedIterator for Keys<'_> {}

impl Entries<'_> {
    /// The values of the keys that are there, their READs together.
    fn fill(&mut self) {
        let keys = Vec::from(std::mem::take(&mut self.keys.page));
        match self.keys.store.get_many(&keys) {
            Ok(values) => {
                let there = keys.into_iter().zip(values).filter_map(|(key, found)| Some(Ok((key, found?))));
                self.found.extend(there);
            }
            // One of them cannot be read, which says nothing of the others.
            Err(_) => {
                for key in keys {
                    match self.keys.store.get(&key) {
                        Ok(found) => self.found.extend(found.map(|found| Ok((key, found)))),
                        Err(error) => self.found.push_back(Err(error)),
                    }
                }
            }
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<(Vec<u8>, Found), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Some(found);
            }
            if let Err(error) = self.keys.fill() {
                return Some(Err(error));
            }
            if self.keys.nameless > 0 {
                return Some(Err(Error::Nameless(std::mem::take(&mut self.keys.nameless))));
            }
            if self.keys.page.is_empty() {
                return None;
            }
            self.fill();
        }
    }
}

impl FusedIterator for Entries<'_> {}
