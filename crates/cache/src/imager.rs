//! Which piece of which file is sent next, so that the [images] of files get complete, stay so, and leave the servers room.
//!
//! A file is *scanned* when it is new, or was changed without that being logged: each of its pieces is read, and sent if it is not there as it is. What is logged needs no scan. When the
//! records take too much room, the oldest pieces are sent once more, until the beginning of the records is not needed any more. Whoever drives this reads the
//! files and sends the records: one at a time, each of some pieces of one file.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::Layout;
use crate::images::{self, FileKey, ImageError, Keeper, Meta, State, count_of};

/// Bytes of a file that is scanned while somebody waits for it. Longer ones get complete while syncs go on.
pub const WAITED: u64 = 64 << 20;

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send [that it is no more](images::gone).
    Gone(FileKey),
    /// Read what the file is, and these of its pieces, as far as it has them; and whether they are the next ones of a scan.
    Read(FileKey, Vec<u32>, bool),
}

/// How much room the records leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Enough for everything.
    Enough,
    /// Little: the oldest pieces are sent once more, in turn with what there is to be sent.
    Low,
    /// None: nothing else is sent.
    None,
}

/// A file that is known.
#[derive(Clone, Copy, Debug)]
struct Known {
    len: u64,
    /// The next piece of a scan.
    scan: Option<u32>,
    /// It was changed since that scan began.
    again: bool,
    /// The servers have been told of the scan.
    told: bool,
    /// What it is called, or its attributes, are to be sent.
    renamed: bool,
    /// There is no room for it.
    leaves: bool,
}

impl Known {
    const fn of(len: u64) -> Self {
        Self { len, scan: None, again: false, told: false, renamed: false, leaves: false }
    }

    /// What there is to be sent of it, if there is anything.
    const fn due(&self) -> Due {
        if self.leaves {
            Due::Leaving
        } else if self.renamed {
            Due::Renamed
        } else if self.scan.is_none() {
            Due::Nothing
        } else if self.len <= WAITED || !self.told {
            Due::Waited
        } else {
            Due::Scanned
        }
    }
}

/// What there is to be sent of a file, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// That it is given up.
    Leaving,
    /// What it is called, or its attributes.
    Renamed,
    /// Pieces, for which somebody waits.
    Waited,
    /// Pieces, while syncs go on.
    Scanned,
    Nothing,
}

/// The files that are known, and those of them first of which there is something to be sent: nobody looks for these among all.
#[derive(Default, Debug)]
struct Files {
    known: BTreeMap<FileKey, Known>,
    due: BTreeSet<(Due, FileKey)>,
}

impl Files {
    fn get(&self, key: &FileKey) -> Option<&Known> {
        self.known.get(key)
    }

    /// Changes what is known of a file. `None`: it is not known.
    fn change<T>(&mut self, key: &FileKey, change: impl FnOnce(&mut Known) -> T) -> Option<T> {
        let known = self.known.get_mut(key)?;
        let before = known.due();
        let done = change(known);
        let after = known.due();
        if before != after {
            self.due.remove(&(before, *key));
            if after != Due::Nothing {
                self.due.insert((after, *key));
            }
        }
        Some(done)
    }

    fn add(&mut self, key: FileKey, len: u64) {
        self.known.entry(key).or_insert(Known::of(len));
    }

    fn remove(&mut self, key: &FileKey) {
        if let Some(known) = self.known.remove(key) {
            self.due.remove(&(known.due(), *key));
        }
    }

    /// What is to be sent first.
    fn first(&self) -> Option<(Due, FileKey)> {
        self.due.first().copied()
    }
}

/// What is known when a record is durable.
#[derive(Clone, Copy, Debug)]
struct Progress {
    key: FileKey,
    scan: Option<u32>,
}

/// Decides what is sent of files.
#[derive(Debug)]
pub struct Imager {
    keeper: Keeper,
    files: Files,
    gone: BTreeSet<FileKey>,
    /// Bytes that all images may take.
    room: u64,
    progress: Option<Progress>,
    /// The last step was to gain room.
    cleaned: bool,
}

impl Imager {
    /// One of servers that have room for so many bytes of images, and as much again to move them.
    #[must_use]
    pub fn new(room: u64) -> Self {
        let (keeper, files, gone) = (Keeper::default(), Files::default(), BTreeSet::new());
        Self { keeper, files, gone, room, progress: None, cleaned: false }
    }

    /// What is on the servers.
    #[must_use]
    pub const fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Records below this one are given up.
    pub fn trimmed(&mut self, below: u64) {
        self.keeper.given_up(below);
    }

    /// Bytes that all images may take.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.room
    }

    /// The same when it is known what room there is.
    pub const fn set_room(&mut self, room: u64) {
        self.room = room;
    }

    /// A record is durable.
    ///
    /// # Errors
    /// It is none.
    pub fn recorded(&mut self, number: u64, record: &[u8]) -> Result<(), ImageError> {
        self.keeper.add(number, record)
    }

    /// A file of so many bytes is new, or was changed without that being logged.
    pub fn stale(&mut self, key: FileKey, len: u64) {
        self.gone.remove(&key);
        self.files.add(key, len);
        self.files.change(&key, |known| {
            (known.len, known.told) = (len, false);
            match known.scan {
                Some(next) if next > 0 => known.again = true,
                _ => known.scan = Some(0),
            }
        });
    }

    /// A file has another name, or other attributes.
    pub fn renamed(&mut self, key: &FileKey) {
        self.files.change(key, |known| known.renamed = true);
    }

    /// Nothing of a file is to be kept: it cannot be read.
    pub fn give_up(&mut self, key: &FileKey) {
        self.files.change(key, |known| known.leaves = true);
    }

    /// A file has no name any more.
    pub fn gone(&mut self, key: FileKey) {
        self.files.remove(&key);
        if self.keeper.get(&key).is_some() {
            self.gone.insert(key);
        }
    }

    /// Whether there is something to be sent that somebody waits for.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.gone.is_empty() || self.files.first().is_some_and(|(due, _)| due <= Due::Waited)
    }

    /// What is done next, with so many pieces at most.
    pub fn next(&mut self, most: usize, room: Room) -> Option<Step> {
        self.progress = None;
        if self.keeper.size() > self.room
            && self.files.first().is_none_or(|(due, _)| due != Due::Leaving)
            && let Some(largest) = self.keeper.images().max_by_key(|image| image.size())
        {
            self.files.change(&largest.meta().key, |known| known.leaves = true);
        }
        self.cleaned = match room {
            Room::Enough => false,
            Room::Low => !self.cleaned,
            Room::None => true,
        };
        if self.cleaned
            && let Some(step) = self.clean(most)
        {
            return Some(step);
        }
        let next = match (self.files.first(), self.gone.first()) {
            // A name that another file has taken goes when it is the other's.
            (Some((Due::Leaving | Due::Renamed, key)), _) => Some(Step::Read(key, Vec::new(), false)),
            (_, Some(key)) => Some(Step::Gone(*key)),
            (Some((_, key)), None) => self
                .files
                .get(&key)
                .and_then(|known| known.scan)
                .map(|next| Step::Read(key, (next..next.saturating_add(most as u32)).collect(), true)),
            (None, None) => None,
        };
        next.or_else(|| if room == Room::Low { self.clean(most) } else { None })
    }

    fn clean(&self, most: usize) -> Option<Step> {
        let (key, pieces) = self.keeper.oldest(most)?;
        // Of a file that is known no more nothing can be read.
        Some(if self.files.get(&key).is_some() { Step::Read(key, pieces, false) } else { Step::Gone(key) })
    }

    /// The record of a step, if there has to be one. What was read is `meta`, whose state does not count, and pieces, none of which is behind the file's end. All groups
    /// below its index were [taken](Self::recorded) before, and none from there on; what a piece is on the servers is not told otherwise. Then comes [`done`](Self::done),
    /// when the record is durable and was taken.
    pub fn record(
        &mut self,
        layout: &Layout,
        tail: u64,
        step: &Step,
        read: Option<(Meta, images::Pieces)>,
    ) -> Option<Vec<u8>> {
        let (key, asked, scans) = match (step, &read) {
            (Step::Read(key, asked, scans), Some(_)) => (*key, asked, *scans),
            (Step::Read(key, ..) | Step::Gone(key), _) => {
                self.files.remove(key);
                self.gone.insert(*key);
                self.progress = Some(Progress { key: *key, scan: None });
                return Some(images::gone(layout, tail, key));
            }
        };
        let (mut meta, pieces) = read?;
        let is_too_long = meta.len > images::FILE_MAX;
        let known = self.files.change(&key, |known| {
            known.len = meta.len;
            known.leaves |= is_too_long;
            *known
        })?;
        let image = self.keeper.get(&key);
        let was = image.map(|image| image.meta().state);
        meta.len = meta.len.min(images::FILE_MAX);
        let count = count_of(meta.len);
        // With what it has already.
        let needs = (u64::from(count) + 1) * (images::PIECE as u64 + 64);
        let others = self.keeper.size() - image.map_or(0, images::Image::size);
        if known.leaves || (known.scan.is_some() && others + needs > self.room) {
            meta.state = State::GivenUp;
            self.progress = Some(Progress { key, scan: None });
            if was == Some(State::GivenUp) && image.is_some_and(|image| image.meta().path == meta.path) {
                self.done();
                return None;
            }
            return Some(images::record(layout, tail, &meta, &[]));
        }
        let scan = match (known.scan, asked.last()) {
            // Those that were asked for are read, up to its end.
            (Some(_), Some(last)) if scans => (last + 1 < count).then_some(last + 1),
            (scan, _) => scan,
        };
        meta.state = match (was, known.scan, scan) {
            (Some(was), None, _) => was,
            (None, None, _) | (None | Some(State::Building | State::GivenUp), _, Some(_)) => State::Building,
            (_, _, Some(_)) => State::Stale,
            (_, _, None) if known.again => State::Stale,
            (_, _, None) => State::Whole,
        };
        let is_over = scans && scan.is_none();
        self.progress = Some(Progress { key, scan });
        let differs = |(number, bytes): &&(u32, Vec<u8>)| {
            !scans || image.is_none_or(|image| !image.has(*number, bytes))
        };
        let sent: Vec<(u32, &[u8])> =
            pieces.iter().filter(differs).map(|(number, bytes)| (*number, &bytes[..])).collect();
        let says_nothing = scans
            && sent.is_empty()
            && !known.renamed
            && image.is_some_and(|image| {
                let said = image.meta();
                said.state == meta.state && (!is_over || said.len == meta.len && said.path == meta.path)
            });
        if says_nothing {
            self.done();
            return None;
        }
        Some(images::record(layout, tail, &meta, &sent))
    }

    /// The record of the last step is durable.
    pub fn done(&mut self) {
        let Some(Progress { key, scan }) = self.progress.take() else { return };
        self.gone.remove(&key);
        self.files.change(&key, |known| {
            known.scan = if scan.is_none() && std::mem::take(&mut known.again) { Some(0) } else { scan };
            (known.renamed, known.leaves, known.told) = (false, false, true);
        });
    }
}
