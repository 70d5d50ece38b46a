//! Table 1 of paper 002: bytes written to NVM by a create, an update and a delete.
//!
//! Every scheme runs on memory that counts what is stored. The paper counts as data-comparison write would program, and not
//! what the processor stores: of Erda's 8-byte word 4 bytes change. So the schemes count as the paper does, and the rows
//! *stored* say what really went to the medium; for ours there is only that.

use std::ops::Range;

use remanence_erda_paper::baseline::{self, Baseline, Scheme};
use remanence_erda_paper::paper::{self, Paper};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{Options, format};
use remanence_kv::view::Mode;
use remanence_kv::{Geometry, server::Server};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_ycsb::workload::PAPER_002_VALUE_SIZES;

use crate::report::{Bar, Kind, Row, Sense};

/// Bytes of a key: `user` and a number of 19 digits.
pub(super) const KEY: usize = 23;

/// What is done to one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Create,
    Update,
    Delete,
}

impl Change {
    pub(super) const ALL: [Self; 3] = [Self::Create, Self::Update, Self::Delete];

    pub(super) const fn op(self) -> &'static str {
        match self {
            Self::Create => "bytes create",
            Self::Update => "bytes update",
            Self::Delete => "bytes delete",
        }
    }
}

/// The design whose bytes are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    /// The paper's design, in the paper's layout.
    Paper,
    /// One of the paper's two baselines, in its layout.
    Baseline(Scheme),
    /// Our store, in one of its modes.
    Ours(Mode),
}

impl Who {
    pub(super) const ALL: [Self; 5] = [
        Self::Paper,
        Self::Baseline(Scheme::RedoLogging),
        Self::Baseline(Scheme::ReadAfterWrite),
        Self::Ours(Mode::Erda),
        Self::Ours(Mode::Durable),
    ];

    pub(super) const fn series(self) -> &'static str {
        match self {
            Self::Paper => "Erda, the paper's layout",
            Self::Baseline(Scheme::RedoLogging) => "Redo Logging",
            Self::Baseline(Scheme::ReadAfterWrite) => "Read After Write",
            Self::Ours(Mode::Erda) => "ours, mode erda",
            Self::Ours(Mode::Durable) => "ours, mode durable",
        }
    }

    /// Table 1, for a value of so many bytes; ours is not in it.
    pub(super) const fn formula(self, change: Change, value: usize) -> Option<u64> {
        let (key, n) = (KEY as u64, (KEY + value) as u64);
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
pub(super) struct Cell {
    pub(super) who: Who,
    pub(super) change: Change,
    pub(super) value: usize,
    /// As the paper counts.
    pub(super) counted: u64,
    /// What went to the medium.
    pub(super) stored: u64,
}

/// Counts what is stored.
struct Counted {
    image: CrashImage,
    bytes: std::cell::Cell<u64>,
}

impl Counted {
    fn new(len: u64) -> Self {
        Self { image: CrashImage::new(len, PersistenceDomain::Adr), bytes: std::cell::Cell::new(0) }
    }
}

impl Medium for Counted {
    fn len(&self) -> u64 {
        self.image.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.image.read(offset, into);
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.bytes.set(self.bytes.get() + bytes.len() as u64);
        self.image.write(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.image.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.bytes.set(self.bytes.get() + 8);
        self.image.store_u64(offset, value);
    }
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.image.compare_and_swap(offset, compare, swap)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.image.fetch_add(offset, add)
    }
    fn pwb(&self, range: Range<u64>) {
        self.image.pwb(range);
    }
    fn pfence(&self) -> std::io::Result<()> {
        self.image.pfence()
    }
    fn psync(&self) -> std::io::Result<()> {
        self.image.psync()
    }
}

/// All cells of the table, over the paper's value sizes.
pub(super) fn measure() -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for value in PAPER_002_VALUE_SIZES {
        for who in Who::ALL {
            let written = match who {
                Who::Paper => paper(value)?,
                Who::Baseline(scheme) => baseline(scheme, value)?,
                Who::Ours(mode) => ours(mode, value)?,
            };
            for (change, (counted, stored)) in Change::ALL.into_iter().zip(written) {
                cells.push(Cell { who, change, value, counted, stored });
            }
        }
    }
    Ok(cells)
}

type Three = [(u64, u64); 3];

fn paper(value: usize) -> Result<Three, String> {
    let sizes = paper::Sizes { key: KEY, value, entries: 8, region: 64 << 10, segment: 16 << 10, heads: 1 };
    let medium = Counted::new(sizes.medium());
    let mut erda = Paper::format(&medium, sizes);
    let (key, bytes) = ([7; KEY], vec![1; value]);
    let mut written = [(0, 0); 3];
    for (change, cell) in Change::ALL.into_iter().zip(&mut written) {
        let before = (erda.written().total(), medium.bytes.get());
        match change {
            Change::Create | Change::Update => erda.put(0, &key, &bytes),
            Change::Delete => erda.delete(0, &key),
        }
        .ok_or("the paper's store has no room")?;
        *cell = (erda.written().total() - before.0, medium.bytes.get() - before.1);
    }
    Ok(written)
}

fn baseline(scheme: Scheme, value: usize) -> Result<Three, String> {
    let words = |e: std::io::Error| e.to_string();
    let sizes = baseline::Sizes { key: KEY, value, keys: 8, records: 8 };
    let medium = Counted::new(sizes.medium());
    let mut store = Baseline::format(&medium, scheme, sizes).map_err(words)?;
    let (key, bytes) = (vec![7; KEY], vec![1; value]);
    let mut written = [(0, 0); 3];
    for (change, cell) in Change::ALL.into_iter().zip(&mut written) {
        let before = (store.written().total(), medium.bytes.get() - store.bookkeeping());
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
        *cell = (store.written().total() - before.0, medium.bytes.get() - store.bookkeeping() - before.1);
    }
    Ok(written)
}

fn ours(mode: Mode, value: usize) -> Result<Three, String> {
    let geometry =
        Geometry { size: 1 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 1, grown_from: 0 };
    let medium = Counted::new(geometry.size);
    format(&&medium, &geometry, 64, 1, [0; 16]).map_err(|e| e.to_string())?;
    let options = Options { mode, ..Options::default() };
    let (mut server, _) = Server::open(&medium, options).map_err(|e| e.to_string())?;
    let client = server.connect();
    let inline = |key: u8| Request::PutInline {
        key: vec![key; KEY],
        value: vec![1; value],
        expires: 0,
        expect: Expect::Any,
    };
    // The first object enters a region and a segment, which is not the operation's.
    server.handle(0, client, &inline(1));
    let mut written = [(0, 0); 3];
    for (change, cell) in Change::ALL.into_iter().zip(&mut written) {
        let before = medium.bytes.get();
        let request = match change {
            Change::Create | Change::Update => inline(2),
            Change::Delete => Request::Delete { key: vec![2; KEY], expect: Expect::Any },
        };
        let reply = server.handle(0, client, &request);
        if !matches!(reply, Reply::Done { .. }) {
            return Err(format!("our store answers {reply:?}"));
        }
        let stored = medium.bytes.get() - before;
        *cell = (stored, stored);
    }
    Ok(written)
}

fn row(cell: &Cell, series: String, bytes: u64) -> Row {
    Row {
        series,
        op: cell.change.op().to_owned(),
        x: cell.value as u64,
        metric: "written",
        unit: "B",
        state: "any",
        p50: bytes as f64,
        p99: bytes as f64,
        n: 1,
        kind: Kind::Live,
    }
}

/// The table as rows: what is counted, and where that is not all, what is stored.
pub(super) fn rows(cells: &[Cell]) -> Vec<Row> {
    let mut rows = Vec::new();
    for cell in cells {
        rows.push(row(cell, cell.who.series().to_owned(), cell.counted));
        if cell.counted != cell.stored {
            rows.push(row(cell, format!("{}, stored", cell.who.series()), cell.stored));
        }
    }
    rows
}

/// Cells that are not what the paper's formula says.
pub(super) fn differing(cells: &[Cell]) -> usize {
    let differs = |cell: &&Cell| cell.who.formula(cell.change, cell.value).is_some_and(|f| f != cell.counted);
    cells.iter().filter(differs).count()
}

/// Bytes of an update at 1 KiB, ours or the paper's over a baseline's.
pub(super) fn update_ratio(cells: &[Cell], who: Who, under: Scheme) -> Option<f64> {
    let at = |who: Who| {
        let found = cells.iter().find(|c| c.who == who && c.change == Change::Update && c.value == 1024)?;
        Some(found.stored as f64)
    };
    Some(at(who)? / at(Who::Baseline(under))?)
}

/// The bars of bytes written.
pub(super) fn bars(cells: &[Cell]) -> Vec<Bar> {
    let formulas = cells.iter().filter(|cell| cell.who.formula(cell.change, cell.value).is_some()).count();
    let mut bars = vec![Bar::new(
        format!("Table 1: cells of {formulas} that differ from the paper's formulas"),
        Some(differing(cells) as f64),
        Sense::AtMost,
        0.0,
    )];
    for who in [Who::Paper, Who::Ours(Mode::Erda), Who::Ours(Mode::Durable)] {
        for under in [Scheme::RedoLogging, Scheme::ReadAfterWrite] {
            let name = format!(
                "bytes stored by an update of 1 KiB: {} / {}",
                who.series(),
                Who::Baseline(under).series()
            );
            bars.push(Bar::new(name, update_ratio(cells, who, under), Sense::AtMost, 0.55));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_1_is_the_papers_to_the_byte() {
        let cells = measure().expect("memory does not fail");
        assert_eq!(cells.len(), Who::ALL.len() * 3 * PAPER_002_VALUE_SIZES.len());
        for cell in &cells {
            if let Some(formula) = cell.who.formula(cell.change, cell.value) {
                assert_eq!(cell.counted, formula, "{cell:?}");
            }
        }
        assert_eq!(differing(&cells), 0);
        for bar in bars(&cells) {
            assert!(bar.holds, "{bar:?}");
        }
    }

    #[test]
    fn a_cell_that_is_off_by_one_is_seen() {
        let mut cells = measure().expect("memory does not fail");
        cells[0].counted += 1;
        assert_eq!(differing(&cells), 1);
        assert!(!bars(&cells)[0].holds);
    }
}
