//! Scans as iterators, and as futures of what comes next: pages are fetched as they are needed.
//!
//! Both are the same [`Pages`] and [`Values`]: a [`Store`] has what they fetch when it is asked, an [`AsyncStore`] later.

use std::collections::VecDeque;
use std::iter::FusedIterator;

use remanence_remote::at_once;

use super::{AsyncStore, Error, Page, Store};
use remanence_kv::client::Found;

/// The keys of a page: enough that its round trip does not show, few enough that nobody waits for the server to find them.
const PAGE: u32 = 256;

/// A store that is iterated over.
trait Fetch {
    async fn page(&mut self, cursor: u64) -> Result<Page, Error>;

    /// What each of these keys has, their READs together.
    async fn values(&mut self, keys: &[Vec<u8>]) -> Vec<Result<Option<Found>, Error>>;
}

impl Fetch for &mut Store {
    async fn page(&mut self, cursor: u64) -> Result<Page, Error> {
        self.scan(cursor, PAGE)
    }

    async fn values(&mut self, keys: &[Vec<u8>]) -> Vec<Result<Option<Found>, Error>> {
        match self.get_many(keys) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            // One of them cannot be read, which says nothing of the others.
            Err(_) => keys.iter().map(|key| self.get(key)).collect(),
        }
    }
}

impl Fetch for AsyncStore {
    async fn page(&mut self, cursor: u64) -> Result<Page, Error> {
        self.scan(cursor, PAGE).await
    }

    async fn values(&mut self, keys: &[Vec<u8>]) -> Vec<Result<Option<Found>, Error>> {
        let gets: Vec<_> = keys.iter().map(|key| self.get(key)).collect();
        let mut values = Vec::with_capacity(gets.len());
        for get in gets {
            values.push(get.await);
        }
        values
    }
}

#[derive(Debug)]
struct Pages<F> {
    store: F,
    page: VecDeque<Vec<u8>>,
    /// Of the page, values that have lost their key.
    nameless: u32,
    /// Where to go on; `None` at the end.
    cursor: Option<u64>,
}

impl<F> Pages<F> {
    const fn new(store: F) -> Self {
        Self { store, page: VecDeque::new(), nameless: 0, cursor: Some(0) }
    }
}

impl<F: Fetch> Pages<F> {
    /// Fetches pages until one has something.
    async fn fill(&mut self) -> Result<(), Error> {
        while let Some(cursor) = self.cursor.filter(|_| self.page.is_empty() && self.nameless == 0) {
            let page = self.store.page(cursor).await.inspect_err(|_| self.cursor = None)?;
            (self.page, self.nameless, self.cursor) = (page.keys.into(), page.nameless, page.next);
        }
        if self.nameless > 0 {
            return Err(Error::Nameless(std::mem::take(&mut self.nameless)));
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Result<Vec<u8>, Error>> {
        match self.fill().await {
            Err(error) => Some(Err(error)),
            Ok(()) => self.page.pop_front().map(Ok),
        }
    }
}

#[derive(Debug)]
struct Values<F> {
    keys: Pages<F>,
    found: VecDeque<Result<(Vec<u8>, Found), Error>>,
}

impl<F> Values<F> {
    const fn new(store: F) -> Self {
        Self { keys: Pages::new(store), found: VecDeque::new() }
    }
}

impl<F: Fetch> Values<F> {
    async fn next(&mut self) -> Option<Result<(Vec<u8>, Found), Error>> {
        loop {
            if let Some(found) = self.found.pop_front() {
                return Some(found);
            }
            if let Err(error) = self.keys.fill().await {
                return Some(Err(error));
            }
            if self.keys.page.is_empty() {
                return None;
            }
            // They stay in the page until their values are there: the future may be dropped before.
            let values = self.keys.store.values(self.keys.page.make_contiguous()).await;
            let keys = std::mem::take(&mut self.keys.page);
            let there =
                keys.into_iter().zip(values).filter_map(|(key, found)| Some((key, found.transpose()?)));
            self.found.extend(there.map(|(key, found)| Ok((key, found?))));
        }
    }
}

/// The keys of a store, in no order that means anything: see [`Store::keys`].
#[derive(Debug)]
pub struct Keys<'a>(Pages<&'a mut Store>);

/// The keys of a store with their values: see [`Store::entries`].
#[derive(Debug)]
pub struct Entries<'a>(Values<&'a mut Store>);

/// The keys of a store, for a task: see [`AsyncStore::keys`].
#[derive(Debug)]
pub struct AsyncKeys(Pages<AsyncStore>);

/// The keys of a store with their values, for a task: see [`AsyncStore::entries`].
#[derive(Debug)]
pub struct AsyncEntries(Values<AsyncStore>);

impl Store {
    /// All keys, as an iterator. One that is there all the time comes once; one that is put or deleted meanwhile, or a value that is
    /// replaced, may be seen or not. Values that are damaged so much that nobody can tell whose they are come as
    /// [`Error::Nameless`], and the iteration goes on behind them; after any other error it is over.
    pub const fn keys(&mut self) -> Keys<'_> {
        Keys(Pages::new(self))
    }

    /// All keys with their values, as an iterator: see [`keys`](Self::keys). A value that is damaged comes as an error, and the
    /// iteration goes on behind it.
    pub const fn entries(&mut self) -> Entries<'_> {
        Entries(Values::new(self))
    }
}

impl AsyncStore {
    /// All keys, one after the other: see [`Store::keys`].
    #[must_use]
    pub fn keys(&self) -> AsyncKeys {
        AsyncKeys(Pages::new(self.clone()))
    }

    /// All keys with their values, one after the other: see [`Store::entries`].
    #[must_use]
    pub fn entries(&self) -> AsyncEntries {
        AsyncEntries(Values::new(self.clone()))
    }
}

impl AsyncKeys {
    /// The next key; `None` at the end. If this future is dropped before its end, no key is lost.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, Error>> {
        self.0.next().await
    }
}

impl AsyncEntries {
    /// The next key with its value; `None` at the end. If this future is dropped before its end, no key is lost.
    pub async fn next(&mut self) -> Option<Result<(Vec<u8>, Found), Error>> {
        self.0.next().await
    }
}

impl Iterator for Keys<'_> {
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        at_once(self.0.next())
    }
}

impl FusedIterator for Keys<'_> {}

impl Iterator for Entries<'_> {
    type Item = Result<(Vec<u8>, Found), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        at_once(self.0.next())
    }
}

impl FusedIterator for Entries<'_> {}
