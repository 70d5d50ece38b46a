//! Table 1 of paper 002: bytes written to NVM by a create, an update and a delete.
//!
//! Every scheme runs on memory that counts what is stored. The paper counts as data-comparison write would program, and not
//! what the processor stores: of Erda's 8-byte word 4 bytes change. So the schemes count as the paper does, and beside that stands what
//! really went to the medium; for ours there is only that.

use std::ops::Range;

use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{Options, format};
use remanence_kv::view::Mode;
use remanence_kv::{Geometry, server::Server};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::watched::{Watch, Watched};
use remanence_pmem::{Medium, PersistenceDomain};

use crate::baseline::{self, Baseline, Scheme};
use crate::paper::{self, Paper};

/// What is done to one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key is new.
    Create,
    /// It has a value already.
    Update,
    /// Its value goes.
    Delete,
}

impl Change {
    /// All of them, in the order in which they are done.
    pub const ALL: [Self; 3] = [Self::Create, Self::Update, Self::Delete];

    /// What a figure calls it.
    #[must_use]
    pub const fn op(self) -> &'static str {
        match self {
            Self::Create => "bytes create",
            Self::Update => "bytes update",
            Self::Delete => "bytes delete",
        }
    }
}

/// The design whose bytes are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// The paper's design, in the paper's layout.
    Paper,
    /// One of the paper's two baselines, in its layout.
    Baseline(Scheme),
    /// Our store, in one of its modes.
    Ours(Mode),
}

impl Design {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Paper,
        Self::Baseline(Scheme::RedoLogging),
        Self::Baseline(Scheme::ReadAfterWrite),
        Self::Ours(Mode::Erda),
        Self::Ours(Mode::Durable),
    ];

    /// What a figure calls it.
    #[must_use]
    pub const fn series(self) -> &'static str {
        match self {
            Self::Paper => "Erda, the paper's layout",
            Self::Baseline(Scheme::RedoLogging) => "Redo Logging",
            Self::Baseline(Scheme::ReadAfterWrite) => "Read After Write",
            Self::Ours(Mode::Erda) => "ours, mode erda",
            Self::Ours(Mode::Durable) => "ours, mode durable",
        }
    }

    /// Table 1, for a key and a value of so many bytes; ours is not in it.
    #[must_use]
    pub const fn formula(self, change: Change, key: usize, value: usize) -> Option<u64> {
        let (key, n) = (key as u64, (key + value) as u64);
        Some(match (self, change) {
            (Self::Paper, Change::Create) => key + 10 + n,
            (Self::Paper, Change::Update) => 9 + n,
            (Self::Paper, Change::Delete) => key + 9,
            (Self::Baseline(_), Change::Create) => key + 12 + 2 * n,
            (Self::Baseline(_), Change::Update) => 4 + 2 * n,
            (Self::Baseline(_), Change::Delete) => key + 8,
            (Self::Ours(_), _) => return None,
        })
    }
}

/// What one change wrote.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The design that wrote.
    pub who: Design,
    /// What was done to the key.
    pub change: Change,
    /// Bytes of the key.
    pub key: usize,
    /// Bytes of the value.
    pub value: usize,
    /// As the paper counts.
    pub counted: u64,
    /// What went to the medium.
    pub stored: u64,
}

impl Cell {
    /// What the paper's formula says of it, if it is in the paper.
    #[must_use]
    pub const fn formula(&self) -> Option<u64> {
        self.who.formula(self.change, self.key, self.value)
    }
}

/// Counts what is stored.
#[derive(Default)]
struct Bytes(std::cell::Cell<u64>);

impl Watch for Bytes {
    fn store(&self, range: Range<u64>) {
        self.0.set(self.0.get() + range.end - range.start);
    }
}

type Counted = Watched<CrashImage, Bytes>;

fn counted(len: u64) -> Counted {
    Watched { medium: CrashImage::new(len, PersistenceDomain::Adr), watch: Bytes::default() }
}

/// All cells of the table, for keys of so many bytes and values of each of these sizes.
///
/// # Errors
/// A design refuses a change.
pub fn measure(key: usize, values: &[usize]) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for &value in values {
        for who in Design::ALL {
            let written = match who {
                Design::Paper => paper(key, value)?,
                Design::Baseline(scheme) => baseline(scheme, key, value)?,
                Design::Ours(mode) => ours(mode, key, value)?,
            };
            for (change, (counted, stored)) in Change::ALL.into_iter().zip(written) {
                cells.push(Cell { who, change, key, value, counted, stored });
            }
        }
    }
    Ok(cells)
}

type Three = [(u64, u64); 3];

fn paper(key: usize, value: usize) -> Result<Three, String> {
    let sizes = paper::Sizes { key, value, entries: 8, region: 64 << 10, segment: 16 << 10, heads: 1 };
    let medium = counted(sizes.medium());
    let mut erda = Paper::format(&medium, sizes);
    let (key, bytes) = (vec![7; key], vec![1; value]);
    let mut written = [(0, 0); 3];
    for (change, cell) in Change::ALL.into_iter().zip(&mut written) {
        let before = (erda.written().total(), medium.watch.0.get());
        match change {
            Change::Create | Change::Update => erda.put(0, &key, &bytes),
            Change::Delete => erda.delete(0, &key),
        }
        .ok_or("the paper's store has no room")?;
        *cell = (erda.written().total() - before.0, medium.watch.0.get() - before.1);
    }
    Ok(written)
}

fn baseline(scheme: Scheme, key: usize, value: usize) -> Result<Three, String> {
    let words = |e: std::io::Error| e.to_string();
    let sizes = baseline::Sizes { key, value, keys: 8, records: 8 };
    let medium = counted(sizes.medium());
    let mut store = Baseline::format(&medium, scheme, sizes).map_err(words)?;
    let (key, bytes) = (vec![7; key], vec![1; value]);
    let mut written = [(0, 0); 3];
    for (change, cell) in Change::ALL.into_iter().zip(&mut written) {
        let before = (store.written().total(), medium.watch.0.get() - store.bookkeeping());
        let (key, value, expires, expect) = (key.clone(), bytes.clone(), 0, Expect::Any);
        let request = match (change, scheme) {
            (Change::Delete, _) => Request::Delete { key: key.clone(), expect },
            (_, Scheme::RedoLogging) => Request::PutInline { key: key.clone(), value, expires, expect },
            (_, Scheme::ReadAfterWrite) => {
                Request::Put { key: key.clone(), len: bytes.len() as u64, expires, expect }
            }
        };
        match store.handle(&request).map_err(words)? {
            Reply::Reserved(room) => {
                medium.write(room.at, &baseline::record(room.version - 1, &key, &bytes));
            }
            Reply::Done { .. } => {}
            other => return Err(format!("a baseline answers {other:?}")),
        }
        store.apply(usize::MAX).map_err(words)?;
        // What it has applied is said once per lot, and the paper does not count it.
        *cell = (store.written().total() - before.0, medium.watch.0.get() - store.bookkeeping() - before.1);
    }
    Ok(written)
}

fn ours(mode: Mode, key: usize, value: usize) -> Result<Three, String> {
    let geometry =
        Geometry { size: 1 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 1, grown_from: 0 };
    let medium = counted(geometry.size);
    format(&&medium, &geometry, 64, 1, [0; 16]).map_err(|e| e.to_string())?;
    let options = Options { mode, ..Options::default() };
    let (mut server, _) = Server::open(&medium, options).map_err(|e| e.to_string())?;
    let client = server.connect();
    let inline = |n: u8| Request::PutInline {
        key: vec![n; key],
        value: vec![1; value],
        expires: 0,
        expect: Expect::Any,
    };
    // The first object enters a region and a segment, which is not the operation's.
    server.handle(0, client, &inline(1));
    let mut written = [(0, 0); 3];
    for (change, cell) in Change::ALL.into_iter().zip(&mut written) {
        let before = medium.watch.0.get();
        let request = match change {
            Change::Create | Change::Update => inline(2),
            Change::Delete => Request::Delete { key: vec![2; key], expect: Expect::Any },
        };
        let reply = server.handle(0, client, &request);
        if !matches!(reply, Reply::Done { .. }) {
            return Err(format!("our store answers {reply:?}"));
        }
        let stored = medium.watch.0.get() - before;
        *cell = (stored, stored);
    }
    Ok(written)
}
