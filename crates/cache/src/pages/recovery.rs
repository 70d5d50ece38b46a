//! What a crash has left of a page cache, and how it comes into its files.
//!
//! [`scan`] looks and changes nothing: it is the dry run. [`Recovery`] then says what is to be done with files, in this order: truncations, one after the other in the
//! order of their numbers; pages, each as it is in the end; a sync of each file. Then it raises the root's floor, behind every number that anybody can have
//! taken. Until then the cache is as it was, so it may be cut short anywhere and begun anew, and what was dropped never comes back.
//!
//! **What counts.** Let the *watermark* be the number up to which all is in place, as the medium says: no record of these counts, or is needed. Let *known* be the
//! highest number up to which all was durable, as the medium says or the line of any record. Of the writes above the watermark no record was used again:
//!
//! | a write above the watermark | committed, and whole | not committed | committed, and not whole |
//! |---|---|---|---|
//! | fenced, or nothing was lost | counts | was in progress | damaged |
//! | up to *known* | counts | damaged: it is missing | damaged |
//! | above *known* | counts, if all before it does and its pages are there | the end | the end |
//!
//! Nothing counts of a file that has [lost its last name](Identity::disown). Under [`Promise::AtReturn`] all are fenced. A commit word that no writer ever wrote before a write that is whole is taken for one, but before a truncation, which must not come
//! back over what was written since. A slot counts that is not
//! free, if a mark says that something is in place, or a record that counts names it. It is a page with the bytes that the newest mark
//! speaks of, and over them the records that are newer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use remanence_pmem::Medium;

use super::format::{Commit, Kind, Layout, Level, Mark, Record, RecordLine, SlotLine, content_crc, data_crc};
use super::keeper::Action;
use super::{Fault, PageOf};
use crate::format::{Lost, Promise};
pub use crate::recovery::Policy;
use crate::table::{FileId, Identity};

/// A record over a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Over {
    seq: u64,
    change: Change,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Bytes {
        record: u32,
        offset: u32,
        len: u32,
    },
    /// Its tail is cleared from here on.
    Cut {
        from: u32,
    },
}

/// A page that its file may lack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Which page it is.
    pub of: PageOf,
    /// So many of its bytes are of the file.
    pub valid: u32,
    slot: u32,
    born: u64,
    over: Vec<Over>,
}

/// A truncation that its file may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncation {
    /// The number of its write.
    pub seq: u64,
    /// The file that was cut.
    pub file: FileId,
    /// How long it is then.
    pub len: u64,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Flaw {
    /// A write was committed, and a record of it is not whole.
    Record {
        /// The number of the write.
        seq: u64,
    },
    /// The line of a slot that holds a page is not whole.
    Line {
        /// The slot whose line it is.
        slot: u32,
    },
    /// The bytes of a page are not what was written.
    Content {
        /// The page that is damaged.
        of: PageOf,
    },
    /// The file table does not say which file a number means.
    File {
        /// The number that nothing is known of.
        file: FileId,
    },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { seq } => {
                write!(f, "write {seq} was durable, and a record of it is damaged or missing")
            }
            Self::Line { slot } => write!(f, "the line that says which page is in slot {slot} is damaged"),
            Self::Content { of } => write!(f, "page {} of {} is damaged", of.page, of.file),
            Self::File { file } => write!(f, "the table does not say which file {file} is"),
        }
    }
}

/// What a cache has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// Where things lie.
    pub layout: Layout,
    /// What the root record says.
    pub record: Record,
    /// What was lost, as far as this cache is concerned.
    pub lost: Lost,
    /// Truncations, in their order.
    pub truncations: Vec<Truncation>,
    /// Pages, in the order of files and places.
    pub pages: Vec<Page>,
    /// What is damaged.
    pub damaged: BTreeSet<Flaw>,
    /// No write with a higher number counts.
    pub end: u64,
    /// How many writes above are dropped: one before them is missing, and nobody was told that they are durable.
    pub dropped: u64,
    /// Behind all numbers that anybody can have taken.
    floor: u64,
}

impl Scan {
    /// Whether its files lack nothing, and it can be opened as it is.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        !self.record.open
    }

    /// The bytes of a page.
    #[must_use]
    pub fn bytes(&self, medium: &impl Medium, page: &Page) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.geometry.page as usize];
        medium.read(self.layout.data(page.slot), &mut bytes);
        for over in &page.over {
            match over.change {
                Change::Bytes { record, offset, len } => {
                    let into = &mut bytes[offset as usize..(offset + len) as usize];
                    medium.read(self.layout.redo(record), into);
                }
                Change::Cut { from } => bytes[from as usize..].fill(0),
            }
        }
        bytes.truncate(page.valid as usize);
        bytes
    }
}

/// Looks at what a cache has, and changes nothing. `lost` is what the failure can have taken; where that is not certain it is
/// [`Lost::Unsynced`]. No bytes make it panic.
///
/// # Errors
/// There is no cache that can be read.
pub fn scan(medium: &impl Medium, lost: Lost) -> Result<Scan, Fault> {
    let layout = Layout::read(medium)?;
    let record = Record::peek(medium)?;
    let lost = if record.kept { Lost::Nothing } else { lost };
    let mut scan = Scan {
        layout,
        record,
        lost,
        truncations: Vec::new(),
        pages: Vec::new(),
        damaged: BTreeSet::new(),
        end: record.floor - 1,
        dropped: 0,
        floor: record.floor,
    };
    if !scan.is_clean() {
        let log = Log::read(medium, &layout, record.floor);
        let counts = scan.judge(medium, &log);
        scan.gather(medium, &log, &counts);
    }
    Ok(scan)
}

/// What lies in the redo log.
struct Log {
    lines: Vec<Option<RecordLine>>,
    words: Vec<Commit>,
    /// Records of each write above the watermark, whole lines only.
    writes: BTreeMap<u64, Vec<u32>>,
    watermark: u64,
    known: u64,
}

impl Log {
    fn read(medium: &impl Medium, layout: &Layout, floor: u64) -> Self {
        let watermark = Level::InPlace.read(medium, layout).max(floor - 1);
        let all = 0..layout.geometry.records;
        let line = |record| RecordLine::read(medium, layout, record).filter(|line| line.seq > watermark);
        let lines: Vec<Option<RecordLine>> = all.clone().map(line).collect();
        let words = all.map(|record| RecordLine::committed(medium, layout, record)).collect();
        let mut writes: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut known = Level::Durable.read(medium, layout).max(watermark);
        for (record, line) in lines.iter().enumerate() {
            if let Some(line) = line {
                writes.entry(line.seq).or_default().push(record as u32);
                known = known.max(line.durable);
            }
        }
        // Each write above the watermark has a record that is not free: nobody but a forger says more.
        known = known.min(watermark + u64::from(layout.geometry.records));
        Self { lines, words, writes, watermark, known }
    }

    fn line(&self, record: u32) -> Option<&RecordLine> {
        self.lines[record as usize].as_ref()
    }

    fn first(&self, seq: u64) -> Option<u32> {
        let records = self.writes.get(&seq)?;
        records.iter().copied().find(|record| self.line(*record).is_some_and(|line| line.back == 0))
    }

    fn is_committed(&self, seq: u64) -> bool {
        let Some(first) = self.first(seq) else { return false };
        match self.words[first as usize] {
            // It is not known whether its file has it, and what was written there since.
            Commit::Damaged => self.line(first).is_some_and(|line| line.kind == Kind::Bytes),
            Commit::Of(its) | Commit::Gone(its) => its == seq,
            Commit::Nothing => false,
        }
    }

    fn is_damaged(&self, seq: u64) -> bool {
        self.first(seq).is_some_and(|first| self.words[first as usize] == Commit::Damaged)
    }

    /// Writes above the watermark that a commit word speaks of, whether there is anything else of them or not.
    fn committed(&self) -> BTreeSet<u64> {
        let said = self.words.iter().filter_map(|word| match word {
            Commit::Of(seq) | Commit::Gone(seq) if *seq > self.watermark => Some(*seq),
            _ => None,
        });
        let known = |seq: &u64| self.is_committed(*seq) || self.is_damaged(*seq);
        said.chain(self.writes.keys().copied().filter(known)).collect()
    }
}

impl Scan {
    /// Which writes count, and what is damaged of those that should.
    fn judge(&mut self, medium: &impl Medium, log: &Log) -> BTreeSet<u64> {
        let is_fenced = self.record.promise == Promise::AtReturn || self.lost == Lost::Nothing;
        let mut counts = BTreeSet::new();
        let committed = log.committed();
        let highest = log.writes.keys().next_back().max(committed.last());
        let most = u64::from(self.layout.geometry.records);
        self.end = highest.map_or(log.known, |highest| log.known.max(*highest)).min(log.watermark + most);
        // So many writes can have a record that is not free.
        self.floor = log.watermark + most + 1;
        if is_fenced {
            for seq in committed {
                match log.is_committed(seq) && self.is_whole(medium, log, seq) {
                    true => counts.insert(seq),
                    false => self.damaged.insert(Flaw::Record { seq }),
                };
            }
            return counts;
        }
        for seq in log.watermark + 1..=self.end {
            let is_whole = log.is_committed(seq) && self.is_whole(medium, log, seq);
            if is_whole && (seq <= log.known || self.has_its_pages(medium, log, seq)) {
                counts.insert(seq);
            } else if seq <= log.known {
                self.damaged.insert(Flaw::Record { seq });
            } else {
                self.end = seq - 1;
                break;
            }
        }
        self.dropped = committed.iter().filter(|seq| **seq > self.end).count() as u64;
        counts
    }

    /// Whether all records of a write are there, with their data.
    fn is_whole(&self, medium: &impl Medium, log: &Log, seq: u64) -> bool {
        let Some(records) = log.writes.get(&seq) else { return false };
        let mut backs = BTreeSet::new();
        let mut counts = BTreeSet::new();
        for record in records {
            let Some(line) = log.line(*record) else { return false };
            backs.insert(line.back);
            counts.insert(line.count);
            if !self.has_data(medium, *record, line) {
                return false;
            }
        }
        counts.len() == 1 && counts.first() == Some(&(backs.len() as u16)) && backs.len() == records.len()
    }

    fn has_data(&self, medium: &impl Medium, record: u32, line: &RecordLine) -> bool {
        if line.kind == Kind::Truncate {
            return true;
        }
        let mut data = vec![0; line.len as usize];
        medium.read(self.layout.redo(record), &mut data);
        data_crc(self.layout.salt, line.seq, &data) == line.data
    }

    /// Whether the pages that a write made dirty were there, before any of it was in place.
    fn has_its_pages(&self, medium: &impl Medium, log: &Log, seq: u64) -> bool {
        let page = self.layout.geometry.page;
        log.writes[&seq].iter().filter_map(|record| log.line(*record)).all(|line| {
            if line.kind == Kind::Truncate || line.born < seq {
                return true;
            }
            let slot = SlotLine::read(medium, &self.layout, line.slot);
            let Some(slot) = slot.filter(|slot| slot.born == seq) else { return false };
            let mut bytes = vec![0; page as usize];
            medium.read(self.layout.data(line.slot), &mut bytes);
            let [Some(mark), _] = slot.marks else { return false };
            line.len == page || mark.content == content_crc(&bytes)
        })
    }

    /// The truncations and pages that the writes which count have made.
    fn gather(&mut self, medium: &impl Medium, log: &Log, counts: &BTreeSet<u64>) {
        let mut of_slot: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
        for seq in counts {
            for record in &log.writes[seq] {
                let Some(line) = log.line(*record) else { continue };
                match line.kind {
                    Kind::Bytes => of_slot.entry(line.slot).or_default().push((*seq, *record)),
                    Kind::Truncate if matches!(log.words[*record as usize], Commit::Gone(_)) => {}
                    Kind::Truncate => self.truncations.push(Truncation {
                        seq: *seq,
                        file: FileId(line.slot),
                        len: line.born,
                    }),
                }
            }
        }
        let mut pages: BTreeMap<PageOf, Page> = BTreeMap::new();
        for slot in 0..self.layout.geometry.slots {
            let records = of_slot.get(&slot).map_or(&[][..], |records| &records[..]);
            let Some(page) = self.page(medium, log, slot, records) else { continue };
            // Two of one page there are never, unless one says so by a bit that was flipped.
            let newer = pages.get(&page.of).is_none_or(|other| other.born < page.born);
            if newer {
                pages.insert(page.of, page);
            }
        }
        let files: BTreeSet<FileId> = pages
            .keys()
            .map(|of| of.file)
            .chain(self.truncations.iter().map(|truncation| truncation.file))
            .collect();
        for file in files {
            let identity = Identity::read(medium, &self.layout.table(), file);
            if identity.as_ref().is_none_or(Identity::is_nobodys) {
                if identity.is_none() {
                    self.damaged.insert(Flaw::File { file });
                }
                pages.retain(|of, _| of.file != file);
                self.truncations.retain(|truncation| truncation.file != file);
            }
        }
        self.pages = pages.into_values().collect();
    }

    /// The page of a slot, if it has one that counts.
    fn page(&mut self, medium: &impl Medium, log: &Log, slot: u32, records: &[(u64, u32)]) -> Option<Page> {
        let size = self.layout.geometry.page;
        let Some(line) = SlotLine::read(medium, &self.layout, slot) else {
            self.broken(medium, log, slot, records);
            return None;
        };
        if line.free || line.born < self.record.floor {
            return None;
        }
        let mark = line.marks[0];
        let since = mark.map_or(0, |mark| mark.seq);
        let mut over = Vec::new();
        for (seq, record) in records {
            let Some(its) = log.line(*record).filter(|its| its.born == line.born && its.seq > since) else {
                continue;
            };
            if !self.has_data(medium, *record, its) {
                self.damaged.insert(Flaw::Record { seq: *seq });
                return None;
            }
            let change = Change::Bytes { record: *record, offset: its.offset, len: its.len };
            over.push(Over { seq: *seq, change });
        }
        if since < line.born && over.is_empty() {
            // It was about to become dirty, and no write of it counts.
            return None;
        }
        let of = PageOf { file: line.file, page: line.page };
        let Some(start) = line.page.checked_mul(size.into()) else {
            self.damaged.insert(Flaw::Line { slot });
            return None;
        };
        let mut valid = match (mark, over.first()) {
            (Some(mark), _) => mark.valid,
            (None, Some(Over { change: Change::Bytes { offset: 0, len, .. }, .. })) if *len == size => 0,
            (None, _) => {
                self.damaged.insert(Flaw::Line { slot });
                return None;
            }
        };
        for truncation in self.truncations.iter().filter(|its| its.file == of.file && its.seq > since) {
            match truncation.len.checked_sub(start) {
                // What is behind was given up; what was written there since is in another slot.
                None | Some(0) => return None,
                Some(from) if from < size.into() => {
                    over.push(Over { seq: truncation.seq, change: Change::Cut { from: from as u32 } });
                }
                Some(_) => {}
            }
        }
        over.sort_by_key(|over| over.seq);
        if let (Some(mark), true) = (mark, over.is_empty()) {
            self.check(medium, slot, of, &mark)?;
        }
        for over in &over {
            valid = match over.change {
                Change::Bytes { offset, len, .. } => valid.max(offset + len),
                Change::Cut { from } => valid.min(from),
            };
        }
        Some(Page { of, valid, slot, born: line.born, over })
    }

    fn check(&mut self, medium: &impl Medium, slot: u32, of: PageOf, mark: &Mark) -> Option<()> {
        let mut bytes = vec![0; self.layout.geometry.page as usize];
        medium.read(self.layout.data(slot), &mut bytes);
        if content_crc(&bytes) == mark.content {
            return Some(());
        }
        self.damaged.insert(Flaw::Content { of });
        None
    }

    /// A line that is not whole: it was torn when the slot got another page, or is blank, or it is damaged.
    fn broken(&mut self, medium: &impl Medium, log: &Log, slot: u32, records: &[(u64, u32)]) {
        let freed = SlotLine::freed(medium, &self.layout, slot);
        let is_needed = |record: u32| log.line(record).is_some_and(|line| line.born > freed);
        if records.iter().any(|(_, record)| is_needed(*record))
            || SlotLine::held(medium, &self.layout, slot, self.record.floor)
        {
            self.damaged.insert(Flaw::Line { slot });
        }
    }
}

/// How a recovery has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All that counts is in its files, and the cache is empty.
    Empty,
    /// Something is damaged, and it may be a part of any page: no file was changed, and the cache is dirty until somebody says to skip the damage.
    Held,
}

/// How far a recovery is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Truncate(usize),
    Write(usize),
    Sync,
    Done,
}

/// Names something that a recovery asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token(u64);

/// A recovery under way.
#[derive(Debug)]
pub struct Recovery {
    scan: Scan,
    policy: Policy,
    stage: Stage,
    unsynced: Vec<FileId>,
    running: BTreeMap<Token, (Action, usize)>,
    token: u64,
    failed: Option<(Action, String)>,
}

impl Recovery {
    /// Makes durable what was found, before any file is changed.
    ///
    /// # Errors
    /// The medium failed, or the root record is damaged.
    pub fn begin(medium: &impl Medium, mut scan: Scan, policy: Policy) -> Result<Self, Fault> {
        // Both copies of the root say so durably from here on.
        scan.record = Record::read(medium)?;
        let layout = scan.layout;
        if !scan.is_clean() {
            medium.pwb(layout.geometry.judged());
        }
        for found in &scan.pages {
            let at = layout.data(found.slot);
            medium.pwb(at..at + u64::from(layout.geometry.page));
        }
        medium.psync()?;
        if !scan.is_clean() && scan.lost == Lost::Nothing && !scan.record.kept {
            scan.record.kept = true;
            scan.record.store(medium)?;
        }
        let held = policy == Policy::Hold && !scan.damaged.is_empty();
        let stage = if scan.is_clean() || held { Stage::Done } else { Stage::Truncate(0) };
        Ok(Self {
            scan,
            policy,
            stage,
            unsynced: Vec::new(),
            running: BTreeMap::new(),
            token: 0,
            failed: None,
        })
    }

    /// What was found.
    #[must_use]
    pub const fn scan(&self) -> &Scan {
        &self.scan
    }

    /// What is to be done next. `None` when something has failed, when it waits for what runs, or has come to its end.
    pub fn poll(&mut self) -> Option<(Token, Action)> {
        if self.failed.is_some() {
            return None;
        }
        loop {
            let waits = !self.running.is_empty();
            match self.stage {
                Stage::Truncate(_) if waits => return None,
                Stage::Truncate(next) => match self.scan.truncations.get(next) {
                    Some(truncation) => {
                        let action = Action::Truncate { file: truncation.file, len: truncation.len };
                        self.stage = Stage::Truncate(next + 1);
                        return Some(self.ask(action, next));
                    }
                    None => self.stage = Stage::Write(0),
                },
                Stage::Write(next) => match self.scan.pages.get(next) {
                    Some(page) => {
                        let offset = page.of.page * u64::from(self.scan.layout.geometry.page);
                        let action = Action::Write { file: page.of.file, offset, len: page.valid };
                        self.stage = Stage::Write(next + 1);
                        return Some(self.ask(action, next));
                    }
                    None if waits => return None,
                    None => {
                        let cut = self.scan.truncations.iter().map(|truncation| truncation.file);
                        let files: BTreeSet<FileId> =
                            self.scan.pages.iter().map(|page| page.of.file).chain(cut).collect();
                        self.unsynced = files.into_iter().rev().collect();
                        self.stage = Stage::Sync;
                    }
                },
                Stage::Sync => {
                    if let Some(file) = self.unsynced.pop() {
                        return Some(self.ask(Action::Sync { file }, 0));
                    }
                    if waits {
                        return None;
                    }
                    self.stage = Stage::Done;
                }
                Stage::Done => return None,
            }
        }
    }

    fn ask(&mut self, action: Action, of: usize) -> (Token, Action) {
        self.token += 1;
        let token = Token(self.token);
        self.running.insert(token, (action, of));
        (token, action)
    }

    /// The bytes of a write that was asked for.
    #[must_use]
    pub fn bytes(&self, medium: &impl Medium, token: Token) -> Option<Vec<u8>> {
        let (action, page) = self.running.get(&token)?;
        matches!(action, Action::Write { .. }).then(|| self.scan.bytes(medium, &self.scan.pages[*page]))
    }

    /// What was asked for is done.
    pub fn done(&mut self, token: Token) {
        self.running.remove(&token);
    }

    /// What was asked for has failed: the recovery goes no further, and is to be begun anew.
    pub fn failed(&mut self, token: Token, why: &str) {
        if let Some((action, _)) = self.running.remove(&token) {
            self.failed.get_or_insert((action, why.to_owned()));
        }
    }

    /// What has failed, and what was said of it.
    #[must_use]
    pub const fn failure(&self) -> Option<&(Action, String)> {
        self.failed.as_ref()
    }

    /// Empties the cache when all is in its files.
    ///
    /// # Errors
    /// The medium failed: the cache is dirty, and a recovery may be begun anew.
    ///
    /// # Panics
    /// Something was not carried out.
    pub fn finish(self, medium: &impl Medium) -> Result<Outcome, Fault> {
        let is_over = self.stage == Stage::Done && self.running.is_empty() && self.failed.is_none();
        assert!(is_over, "a recovery ends when all is in its files");
        if self.scan.is_clean() {
            return Ok(Outcome::Empty);
        }
        if self.policy == Policy::Hold && !self.scan.damaged.is_empty() {
            return Ok(Outcome::Held);
        }
        Record::empty(self.scan.floor, self.scan.record.promise).store(medium)?;
        Ok(Outcome::Empty)
    }
}
