//! Opens a file as a region, such that what can fail fails now, with a sentence, and not later by a signal.
//!
//! Every block is reserved, so a full disk is an error here. The file and its name are made durable before anything
//! is put in it: the name by everybody who opens the file for himself, as who made it may have been killed before. An exclusive lock keeps a second server away, and goes with the region or
//! the process (`lock`). A file's journal
//! (`journal`), if it has one, is replayed before anybody sees the region.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cache;
use crate::domain::{self, PersistenceDomain};
use crate::error::WayOut;
use crate::flush::{self, Instruction};
use crate::journal::{self, JOURNAL_NOTE_LEN, Journal, JournalLayout, NO_NAME, Name, Note, Sizes};
use crate::lock::OwnFile;
use crate::map::{self, Mapping};
use crate::region::{Kind, Region};
use crate::unnamed::{self, Unnamed};

/// How to open a file as a region.
///
/// ```no_run
/// use remanence_pmem::FileOptions;
/// let region = FileOptions::new().create(64 << 20).populate(true).open("/mnt/pmem/pool")?;
/// # Ok::<(), remanence_pmem::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    create: Option<u64>,
    create_new: bool,
    expect: Option<u64>,
    declared: Option<PersistenceDomain>,
    write_back: Option<Instruction>,
    populate: bool,
    written: bool,
    journal: Journaling,
    only_durable: bool,
    image: Option<fn(&[u8], u64) -> Image>,
    /// Where the file says that it has a journal, and what its owner says to who misses that.
    note: Option<(u64, &'static str)>,
    /// Not the machine's own: for tests.
    boot: Option<Name>,
    /// As on a file system where each file has a name: for tests.
    named: bool,
}

/// What an open file has.
struct Found {
    /// Bytes of the region.
    len: u64,
    journal: Option<JournalLayout>,
    /// If it is to get a journal: of about that many bytes.
    wanted: Option<u64>,
    /// Where it says that it has one, and what it says.
    note: Option<(u64, Note)>,
}

/// What an existing file has, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Image {
    /// Nothing yet: the opener may make what it likes.
    Blank,
    /// What the opener knows, in the first so many bytes.
    Ours {
        /// Bytes from the start of the file; behind them is nothing of the opener's own.
        len: u64,
    },
    /// Something else, or what cannot be used as it is.
    Foreign,
}

/// Bytes that tell what a file has.
const IMAGE_HEAD: u64 = 64 << 10;

/// Whether psync writes what is to be durable into a journal at the end of the file, instead of pages all over it: scattered
/// persists then cost one sequential write, and the pages follow when nobody waits. Without effect where psync writes no
/// pages (persistent memory, tmpfs).
///
/// A file that has a journal goes on with that one, whoever opens it, and whatever is said here. What survives which
/// failure is the same with it and without.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Journaling {
    /// No file gets one.
    #[default]
    Off,
    /// A file that is made now gets one that goes with its length: an eighth of it, 128 KiB at least and 64 MiB at most.
    IfMade,
    /// A file that has none gets one of about so many bytes, 128 KiB at least.
    Len(u64),
}

impl FileOptions {
    /// Opens a file that exists, whole.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the file with this length if it does not exist, and extends it if it is shorter.
    #[must_use]
    pub const fn create(mut self, len: u64) -> Self {
        self.create = Some(len);
        self
    }

    /// Creates the file with this length, and refuses if it exists.
    #[must_use]
    pub const fn create_new(mut self, len: u64) -> Self {
        self.create = Some(len);
        self.create_new = true;
        self
    }

    /// Refuses the file as truncated if it is shorter than this.
    #[must_use]
    pub const fn expect_len(mut self, len: u64) -> Self {
        self.expect = Some(len);
        self
    }

    /// Takes the user's word for the persistence domain, where the machine does not tell.
    #[must_use]
    pub const fn declare(mut self, domain: PersistenceDomain) -> Self {
        self.declared = Some(domain);
        self
    }

    /// Writes cache lines back by this instruction, and not by the best that the CPU has: to measure what it costs.
    #[must_use]
    pub const fn write_back(mut self, instruction: Instruction) -> Self {
        self.write_back = Some(instruction);
        self
    }

    /// Makes every page present at once.
    #[must_use]
    pub const fn populate(mut self, yes: bool) -> Self {
        self.populate = yes;
        self
    }

    /// Writes zeros to a file that is made, or to what it grows by, where its pages are to be written to a disk. Blocks that are only reserved have to be made
    /// known as written by the first sync of each, which is a commit of the file system's journal beside the data: of ext4, four writes and not two. Takes as
    /// long as the disk takes for so many bytes. A journal of ours behind the file has no part in it.
    #[must_use]
    pub const fn written(mut self, yes: bool) -> Self {
        self.written = yes;
        self
    }

    /// Whether the file gets a journal.
    #[must_use]
    pub const fn journal(mut self, journal: Journaling) -> Self {
        self.journal = journal;
        self
    }

    /// Whether nothing counts but what was persisted. Then whoever opens the file next replays its journal in any case, also where
    /// the kernel has kept all that a killed process had written: what was visible and not persisted may be gone, as after a power loss, and
    /// what was persisted is there, whatever was done to the file in between ([`before_psync`](crate::Guarantee) says so). Without
    /// effect on a file that has no journal.
    #[must_use]
    pub const fn only_durable(mut self, yes: bool) -> Self {
        self.only_durable = yes;
        self
    }

    /// Has the file looked at before anything of it is changed: `look` is given its first 64 KiB (or what there are) and its length. What is [`Foreign`](Image::Foreign)
    /// is opened as it is, so that its owner can say what is wrong with it: no block of it is reserved, it grows by nothing and gets no
    /// journal. What is not is refused if it was cut short within its journal. All openers of images say this.
    #[must_use]
    pub const fn image(mut self, look: fn(&[u8], u64) -> Image) -> Self {
        self.image = Some(look);
        self
    }

    /// Has the file say that it has a journal, in [`JOURNAL_NOTE_LEN`](crate::JOURNAL_NOTE_LEN) bytes from `at` on, a line in which its
    /// owner has nothing: they are a [note](crate::is_journal_note), or zeros, and no part of what makes an image [`Blank`](Image::Blank). A file that says so is
    /// refused without its journal, also when nothing is left of that; `way` is what that error has its reader do (*or …*). One that was
    /// to get another journal when its owner was killed gets it when it is opened again. An owner who says this says it always, together with
    /// [`image`](Self::image): without it, the note is neither looked at nor kept true.
    #[must_use]
    pub const fn journal_note(mut self, at: u64, way: &'static str) -> Self {
        self.note = Some((at, way));
        self
    }

    #[cfg(test)]
    pub(crate) const fn in_boot(mut self, boot: Name) -> Self {
        self.boot = Some(boot);
        self
    }

    #[cfg(test)]
    pub(crate) const fn named(mut self) -> Self {
        self.named = true;
        self
    }

    /// Opens the file. One that is made has its name when all of it is there, durably.
    ///
    /// # Errors
    /// One sentence that says what to do: [`Error`].
    pub fn open(&self, path: impl Into<PathBuf>) -> Result<Region, Error> {
        self.open_path(path.into()).map_err(|error| self.with_way(error))
    }

    fn open_path(&self, path: PathBuf) -> Result<Region, Error> {
        if let Some(instruction) = self.write_back.filter(|instruction| !flush::has(*instruction)) {
            return Err(Error::NoInstruction { instruction });
        }
        let there = is_there(&path)?;
        if self.create.is_some()
            && !there
            && let Some(region) = self.make(&path)?
        {
            return Ok(region);
        }
        if self.create_new {
            return Err(Error::Exists { path });
        }
        let file = opened(File::options().read(true).write(true).open(&path), &path)?;
        self.take(file, &path, false)
    }

    /// A new file, which gets its name when it is whole. `None`: meanwhile somebody else had made one.
    fn make(&self, path: &Path) -> Result<Option<Region>, Error> {
        let os = |e| Error::os(format!("creating {}", path.display()), e);
        let new = Unnamed::beside(path, self.named)?;
        let region = self.take(new.file().try_clone().map_err(os)?, path, true)?;
        match new.name(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            named => named.and_then(|()| sync_directory_of(path)).map_err(os)?,
        }
        Ok(Some(region))
    }

    fn take(&self, file: File, path: &Path, created: bool) -> Result<Region, Error> {
        let mut file = OwnFile::from(file);
        let found = self.fill(&mut file, path, created)?;
        let region = self.map(file, found, path)?;
        if self.populate {
            region.populate();
        }
        Ok(if created { region.made_now() } else { region })
    }

    /// The region of a file as its next owner would find it, without writing a byte of the file, which needs to be readable only:
    /// what a journal has to put into it is put into a copy in memory, and so is whatever is written to the region. Nobody
    /// becomes its owner meanwhile; others may look.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`InUse`](Error::InUse) while somebody owns it.
    pub fn view(&self, path: impl Into<PathBuf>) -> Result<Region, Error> {
        self.view_path(path.into()).map_err(|error| self.with_way(error))
    }

    fn view_path(&self, path: PathBuf) -> Result<Region, Error> {
        let file = looked_at(&path)?;
        let whole = length_of(&file, &path)?;
        let place = journal::find(&file, whole, &path)?;
        let note = self.noted(&file, whole, &path)?;
        refuse_another(place, note, &path)?;
        if place.is_none() && !is_moving(note) {
            self.is_foreign(&file, whole, note, &path)?;
        }
        let len = region_len(whole, place, note, &path)?;
        let region = copy_of(file, len, &path)?;
        if let (Some(place), Some(file)) = (place, region.file()) {
            journal::view(file, place, self.boot()?, &region, &path)?;
        }
        Ok(region)
    }

    /// As [`view`](Self::view), and stops at no damage of a journal: what can be read of it is in the region. The error says what
    /// is wrong with it; then what was persisted last may be missing, in part or wholly.
    ///
    /// # Errors
    /// The file cannot be opened or read, or somebody owns it.
    pub fn salvage(&self, path: impl Into<PathBuf>) -> Result<(Region, Option<Error>), Error> {
        let (region, damage) = self.salvage_path(path.into()).map_err(|error| self.with_way(error))?;
        Ok((region, damage.map(|error| self.with_way(error))))
    }

    fn salvage_path(&self, path: PathBuf) -> Result<(Region, Option<Error>), Error> {
        let file = looked_at(&path)?;
        let len = length_of(&file, &path)?;
        let note = self.noted(&file, len, &path)?;
        let in_front = |part| journal::in_front(part, |at, block| file.read_exact_at(block, at).is_ok());
        let (place, damage) = match journal::find(&file, len, &path) {
            Ok(Some(place)) => match refuse_another(Some(place), note, &path) {
                Ok(()) => (Some(place), None),
                Err(another) => (None, Some(another)),
            },
            Ok(None) if is_moving(note) => (None, None),
            Ok(None) => match in_front(
                self.looked_through(&file, len, &path)?.map_or(0..len, |unused| with_noted(unused, note)),
            ) {
                Some(place) => (Some(place), Some(journal::cut_short(place, len, &path))),
                None => (None, region_len(len, None, note, &path).err()),
            },
            Err(damage @ (Error::JournalDamaged { .. } | Error::JournalVersion { .. })) => {
                (in_front(0..len).filter(|place| place.file() == len), Some(damage))
            }
            Err(other) => return Err(other),
        };
        let region = match (place, note) {
            (Some(place), _) => place.region,
            (None, Some((_, Note::Has(sizes) | Note::Moves(sizes)))) => len.min(sizes.region),
            (None, _) => len,
        };
        let region = copy_of(file, region, &path)?;
        let lost = match (place, region.file()) {
            (Some(place), Some(file)) => journal::salvage(file, place, self.boot()?, &region, &path)?,
            _ => None,
        };
        Ok((region, damage.or(lost)))
    }

    /// Locks the file and gives its region its length.
    fn fill(&self, file: &mut OwnFile, path: &Path, created: bool) -> Result<Found, Error> {
        file.lock().map_err(|e| in_use(e, file, path))?;
        let os = |e| Error::os(path.display().to_string(), e);
        let whole = file.metadata().map_err(os)?.len();
        if whole == 0 && self.create.or(self.expect).is_none() {
            return Err(Error::Empty { path: path.to_owned(), way: WayOut::Nothing });
        }
        let mut place = journal::find(file, whole, path)?;
        let mut note = if created {
            self.note.map(|(at, _)| (at, Note::Nothing))
        } else {
            self.noted(file, whole, path)?
        };
        refuse_another(place, note, path)?;
        // What is there of a journal that was being made is of none that is missing.
        let moving = place.is_none() && is_moving(note);
        let mut found = place.map_or(whole, |place| place.region);
        if let Some(asked) = self
            .create
            .or(self.expect)
            .filter(|asked| place.is_none() && !moving && *asked > 0 && whole > *asked)
        {
            journal::refuse_cut(file, whole, asked, path)?;
        }
        if let Some(expected) = self.expect.filter(|expected| found < *expected && self.create.is_none()) {
            return Err(Error::Truncated { path: path.to_owned(), expected, found });
        }
        if !created && place.is_none() && !moving && self.is_foreign(file, whole, note, path)? {
            return match whole {
                0 => Err(Error::BadLength { len: 0 }),
                len => Ok(Found { len, journal: None, wanted: None, note: None }),
            };
        }
        if place.is_none() {
            found = region_len(whole, None, note, path)?;
        }
        if found < whole && moving {
            // Of a journal of which a part was made.
            file.set_len(found).and_then(|()| file.sync_all()).map_err(os)?;
            step(file);
        }
        let len = self.create.map_or(found, |wanted| wanted.max(found));
        if len == 0 {
            return Err(Error::BadLength { len });
        }
        let mut wanted = match self.journal {
            Journaling::IfMade if created => Some(journal::default_len(len)),
            Journaling::Len(len) => Some(len),
            Journaling::Off | Journaling::IfMade => match note {
                Some((_, Note::Moves(sizes))) if moving => Some(sizes.journal),
                _ => None,
            },
        };
        if let Some(old) = place.filter(|_| len > found) {
            // It stands where the region is to be, and is made anew behind it, if there is room for both.
            let both = len.saturating_add(old.journal());
            map::has_room(file, both).map_err(|e| full(path, both, e))?;
            wanted = wanted.or(Some(old.journal()));
            let moves = Note::Moves(Sizes { region: len, journal: old.journal(), name: NO_NAME });
            note = note.map(|(at, _)| (at, moves));
            journal::remove(file, old, self.boot()?, note, path)?;
            place = None;
        }
        // An existing file may have holes, whose blocks could be missing just as well.
        let file_len = place.map_or(len, |place| place.file());
        let writes = self.written
            && found < len
            && domain::of_file(file, false, None)?.domain() == PersistenceDomain::PageCache;
        if !reserve(file, file_len, path)? || writes {
            write_zeros(file, found, len, path)?;
        }
        if found < len {
            file.sync_all().map_err(os)?;
            step(file);
        }
        if !created {
            match sync_directory_of(path) {
                // Whoever may not list it did not make the file.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced.map_err(os)?,
            }
        }
        Ok(Found { len, journal: place, wanted, note })
    }

    /// What the file says of its journal, and where; `None`: it is somebody else's, or its owner has no line for that.
    fn noted(&self, file: &File, len: u64, path: &Path) -> Result<Option<(u64, Note)>, Error> {
        let Some((at, _)) = self.note else { return Ok(None) };
        if self.looked_through(file, len, path)?.is_none() {
            return Ok(None);
        }
        let note = Note::read(file, at);
        Ok(Some((at, note.map_err(|e| Error::os(format!("reading {}", path.display()), e))?)))
    }

    fn with_way(&self, error: Error) -> Error {
        match self.note {
            Some((_, says)) => error.with_way(says),
            None => error,
        }
    }

    /// Whether a file that has no journal has something else than its opener knows. Refuses one that had a journal.
    fn is_foreign(
        &self,
        file: &File,
        len: u64,
        note: Option<(u64, Note)>,
        path: &Path,
    ) -> Result<bool, Error> {
        let Some(unused) = self.looked_through(file, len, path)? else { return Ok(self.image.is_some()) };
        match journal::in_front(with_noted(unused, note), |at, block| file.read_exact_at(block, at).is_ok()) {
            Some(place) => Err(journal::cut_short(place, len, path)),
            None => Ok(false),
        }
    }

    /// The part of a file without a journal in which its owner has nothing; `None`: that is not known.
    fn looked_through(&self, file: &File, len: u64, path: &Path) -> Result<Option<Range<u64>>, Error> {
        let Some(look) = self.image else { return Ok(None) };
        let mut head = vec![0; len.min(IMAGE_HEAD) as usize];
        file.read_exact_at(&mut head, 0).map_err(|e| Error::os(format!("reading {}", path.display()), e))?;
        Ok(match look(&head, len) {
            Image::Foreign => None,
            Image::Blank => Some(0..len),
            Image::Ours { len: ours } => Some(ours..len),
        })
    }

    fn boot(&self) -> Result<Name, Error> {
        self.boot.map_or_else(journal::boot, Ok)
    }

    fn map(&self, file: OwnFile, found: Found, path: &Path) -> Result<Region, Error> {
        let len = found.len;
        let (mapping, map_sync) = Mapping::file(&file, len)?;
        let mut domain = domain::of_file(&file, map_sync, self.declared)?;
        let kind = if map_sync { Kind::DaxFile } else { Kind::File };
        let journal = self.open_journal(&file, &found, domain.domain(), path)?;
        if let Some(journal) = &journal {
            domain.journaled(journal.len(), self.only_durable);
        }
        let region = Region::assemble(kind, mapping, len, domain, Some(file), Some(path.to_owned()));
        let region = match journal {
            Some(journal) => region.with_journal(journal),
            None => region,
        };
        let region = match self.write_back {
            Some(instruction) => region.with_instruction(instruction),
            None => region,
        };
        if let (Some((at, note)), Some((journal, name))) = (found.note, region.journal_and_name())
            && at.checked_add(JOURNAL_NOTE_LEN as u64).is_some_and(|end| end <= len)
        {
            let has = Note::Has(Sizes { region: len, journal, name });
            if note != has {
                // Through the journal, which sees to it if that fails.
                region.write(at, &has.encode());
                region
                    .persist(at..at + JOURNAL_NOTE_LEN as u64)
                    .map_err(|e| Error::os(format!("writing {}", path.display()), e))?;
                region.file().into_iter().for_each(step);
            }
        }
        Ok(region)
    }

    fn open_journal(
        &self,
        file: &File,
        found: &Found,
        domain: PersistenceDomain,
        path: &Path,
    ) -> Result<Option<Journal>, Error> {
        let pages = domain == PersistenceDomain::PageCache;
        let as_on_disk = || {
            let read = cache::settle(file, found.len);
            read.map_err(|e| Error::os(format!("opening {}", path.display()), e))
        };
        let signs = if self.only_durable { Ok(journal::NO_BOOT) } else { self.boot() };
        match (found.journal, found.wanted) {
            (Some(place), _) if pages => {
                // Else the first sync would take the limit for a medium that failed.
                if let Some(beyond) = beyond_limit(path, place.file()) {
                    return Err(beyond);
                }
                journal::open(file, place, self.boot()?, signs?, path).map(Some)
            }
            // It was copied to where psync writes no pages.
            (Some(place), _) => {
                let note = found.note.filter(|(_, note)| *note != Note::Nothing);
                let note = note.map(|(at, _)| (at, Note::Nothing));
                journal::remove(file, place, self.boot()?, note, path).map(|()| None)
            }
            (None, Some(len)) if pages => {
                as_on_disk()?;
                let moves = Note::Moves(Sizes { region: found.len, journal: len, name: NO_NAME });
                self.note_without(file, found, moves, path)?;
                journal::create(file, found.len, len, signs?, path).map(Some)
            }
            (None, _) => {
                if pages {
                    as_on_disk()?;
                }
                self.note_without(file, found, Note::Nothing, path).map(|()| None)
            }
        }
    }

    /// Has a file without a journal say this of it.
    fn note_without(&self, file: &File, found: &Found, says: Note, path: &Path) -> Result<(), Error> {
        match found.note {
            Some((at, note)) if note != says && at.saturating_add(JOURNAL_NOTE_LEN as u64) <= found.len => {
                says.write(file, at).map_err(|e| Error::os(format!("writing {}", path.display()), e))?;
                step(file);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// What may have the beginning of a journal: where its owner has nothing, and where the file itself says that one began.
fn with_noted(unused: Range<u64>, note: Option<(u64, Note)>) -> Range<u64> {
    match note {
        Some((_, Note::Has(sizes))) => unused.start.min(sizes.region)..unused.end,
        _ => unused,
    }
}

/// Refuses a file with the journal of another one: what that has is not of this file, and what its own had is missing.
fn refuse_another(place: Option<JournalLayout>, note: Option<(u64, Note)>, path: &Path) -> Result<(), Error> {
    match (place, note) {
        (Some(place), Some((_, note))) if note.is_of_another(&place) => Err(Error::JournalDamaged {
            path: path.to_owned(),
            what: "it is that of another file".into(),
            way: WayOut::Nothing,
        }),
        _ => Ok(()),
    }
}

/// Whether the journal of a file that says this, and has none, is being made.
const fn is_moving(note: Option<(u64, Note)>) -> bool {
    matches!(note, Some((_, Note::Moves(_))))
}

/// Bytes of a file that are its region; an error, if it is to have a journal and has none.
fn region_len(
    whole: u64,
    place: Option<JournalLayout>,
    note: Option<(u64, Note)>,
    path: &Path,
) -> Result<u64, Error> {
    match (place, note) {
        (Some(place), _) => Ok(place.region),
        (None, Some((_, Note::Has(_)))) => {
            Err(Error::JournalGone { path: path.to_owned(), way: WayOut::Nothing })
        }
        (None, Some((_, Note::Moves(sizes)))) => Ok(whole.min(sizes.region)),
        (None, _) => Ok(whole),
    }
}

/// Between two changes of a file a crash may come: tests look at what each leaves.
#[cfg(test)]
pub(crate) fn step(file: &File) {
    tests::LEFT.with_borrow_mut(|left| left.as_mut().map(|left| left.push(tests::bytes_of(file))));
}

/// Tests look at what is there then.
#[cfg(not(test))]
pub(crate) const fn step(_: &File) {}

/// Whether there is a file; refuses what is none.
fn is_there(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(Error::NotAFile { path: path.to_owned() }),
        Ok(_) => Ok(true),
        Err(_) => Ok(false),
    }
}

fn opened(file: io::Result<File>, path: &Path) -> Result<File, Error> {
    file.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::Missing { path: path.to_owned() },
        _ => Error::os(format!("opening {}", path.display()), e),
    })
}

fn in_use(why: io::Error, file: &File, path: &Path) -> Error {
    match why.kind() {
        io::ErrorKind::WouldBlock => Error::InUse { path: path.to_owned(), holder: holder_of(file) },
        _ => Error::os(format!("locking {}", path.display()), why),
    }
}

/// A file that is opened for reading only, and that nobody owns meanwhile.
fn looked_at(path: &Path) -> Result<OwnFile, Error> {
    is_there(path)?;
    let mut file = OwnFile::from(opened(File::open(path), path)?);
    file.lock_to_look().map_err(|e| in_use(e, &file, path))?;
    Ok(file)
}

fn length_of(file: &File, path: &Path) -> Result<u64, Error> {
    match file.metadata().map_err(|e| Error::os(path.display().to_string(), e))?.len() {
        0 => Err(Error::Empty { path: path.to_owned(), way: WayOut::Nothing }),
        len => Ok(len),
    }
}

fn copy_of(file: OwnFile, len: u64, path: &Path) -> Result<Region, Error> {
    let mapping = Mapping::copy(&file, len)?;
    Ok(Region::assemble(Kind::Copy, mapping, len, domain::of_copy(), Some(file), Some(path.to_owned())))
}

/// Reserves every block of a file up to a length, and makes it that long. `false`: its file system knows no such thing.
pub(crate) fn reserve(file: &File, len: u64, path: &Path) -> Result<bool, Error> {
    match map::reserve(file, len) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(e) => Err(full(path, len, e)),
    }
}

/// Why this process may not write all of a file of that length, if it may not.
fn beyond_limit(path: &Path, len: u64) -> Option<Error> {
    let limit = map::file_size_limit().filter(|limit| *limit < len)?;
    Some(Error::FileLimit { path: path.to_owned(), len, limit })
}

fn full(path: &Path, len: u64, e: io::Error) -> Error {
    let no_space = || Error::NoSpace { path: path.to_owned(), len };
    match e.raw_os_error() {
        Some(libc::EFBIG) => beyond_limit(path, len).unwrap_or_else(no_space),
        Some(libc::ENOSPC | libc::EDQUOT) => no_space(),
        _ => Error::os(format!("reserving {len} bytes for {}", path.display()), e),
    }
}

/// For file systems without fallocate: blocks are there once they were written.
pub(crate) fn write_zeros(file: &File, from: u64, to: u64, path: &Path) -> Result<(), Error> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let chunk = zeros.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..chunk], at).map_err(|e| full(path, to, e))?;
        at += chunk as u64;
    }
    Ok(())
}

/// A new file is durable when its name is: its own, and not that of a link to it.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    let own = fs::canonicalize(path)?;
    let parent = unnamed::directory_of(&own);
    #[cfg(test)]
    tests::DIRECTORIES.with_borrow_mut(|synced| synced.push(parent.to_owned()));
    File::open(parent)?.sync_all()
}

/// The process that holds the lock. Line format: `1: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF` (proc(5)).
fn holder_of(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let id =
        format!("{:02x}:{:02x}:{}", libc::major(metadata.dev()), libc::minor(metadata.dev()), metadata.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&id.as_str()))
            .then(|| words[4].parse().ok())?
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// Directories that this thread made durable.
        pub(super) static DIRECTORIES: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
        /// What was there of files between two changes of this thread, if somebody looks.
        pub(crate) static LEFT: RefCell<Option<Vec<Vec<u8>>>> = const { RefCell::new(None) };
    }

    pub(super) fn bytes_of(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes
    }

    #[test]
    fn a_file_has_its_name_durably_whoever_made_it() {
        let path = std::env::temp_dir().join(format!("remanence-name-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let synced = |options: &FileOptions| {
            DIRECTORIES.take();
            let opened = options.open(&path);
            (DIRECTORIES.take().len(), opened)
        };
        let (times, made) = synced(&FileOptions::new().create(8192));
        assert_eq!(times, 1);
        let (times, refused) = synced(&FileOptions::new());
        assert!(times == 0 && matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
        drop(made.expect("a file"));
        // It could have been killed before its own sync.
        for options in [FileOptions::new(), FileOptions::new().create(8192), FileOptions::new().create(16384)]
        {
            let (times, opened) = synced(&options);
            assert!(times == 1 && opened.is_ok(), "{times}, {opened:?}");
        }
        for (image, expected) in [(Image::Blank, 1), (Image::Ours { len: 1 }, 1), (Image::Foreign, 0)] {
            let look: fn(&[u8], u64) -> Image = match image {
                Image::Blank => |_, _| Image::Blank,
                Image::Ours { .. } => |_, _| Image::Ours { len: 1 },
                Image::Foreign => |_, _| Image::Foreign,
            };
            let (times, opened) = synced(&FileOptions::new().image(look));
            assert!(times == expected && opened.is_ok(), "{image:?}: {times}, {opened:?}");
        }
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn what_is_made_written_has_blocks_that_no_sync_has_to_convert() {
        let home = Directory::new("written");
        let first_hole = |region: &Region| map::first_hole(region.file().expect("a file")).expect("it tells");
        let (path, options) = (home.0.join("file"), FileOptions::new().written(true));
        for len in [3 << 20, 5 << 20] {
            let region = options.clone().create(len).open(&path).expect("room");
            if region.domain().domain() == PersistenceDomain::PageCache {
                assert_eq!(first_hole(&region), len);
            }
        }
    }

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("remanence-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("a directory");
            Self(fs::canonicalize(path).expect("it is there"))
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("a directory");
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_directory_that_has_the_file_is_synced_and_not_that_of_a_link_to_it() {
        let (has, links) = (Directory::new("has"), Directory::new("links"));
        let link = links.0.join("link");
        std::os::unix::fs::symlink(has.0.join("file"), &link).expect("a link");
        drop(FileOptions::new().create(8192).open(has.0.join("file")).expect("a file"));
        DIRECTORIES.take();
        drop(FileOptions::new().open(&link).expect("a file"));
        assert_eq!(DIRECTORIES.take(), std::slice::from_ref(&has.0));
        fs::remove_file(has.0.join("file")).expect("it is there");
        let dangling = FileOptions::new().create(8192).open(&link);
        assert!(matches!(dangling, Err(Error::Missing { .. })), "{dangling:?}");
    }

    /// Whatever is there of it when its maker is killed: nothing, under its name.
    #[test]
    fn a_file_has_its_name_when_all_of_it_is_there() {
        let dir = Directory::new("named");
        let path = dir.0.join("file");
        for options in [FileOptions::new(), FileOptions::new().named()] {
            let options = options.create(300_000).journal(Journaling::Len(1 << 18));
            let new = Unnamed::beside(&path, options.named).expect("a file");
            let region = options.take(new.file().try_clone().expect("a file"), &path, true).expect("room");
            let left = dir.names();
            assert!(left.iter().all(|name| name == "file.making"), "{left:?}");
            // Killed here, it leaves what it has.
            drop(region);
            std::mem::forget(new);
            let again = options.open(&path).expect("made anew");
            assert!(again.is_new());
            assert_eq!(dir.names(), ["file"]);
            drop(again);
            assert!(!options.open(&path).expect("it is there").is_new());
            let refused = options.clone().create_new(1).open(&path);
            assert!(matches!(refused, Err(Error::Exists { .. })), "{refused:?}");
            fs::remove_file(&path).expect("it is there");
        }
    }

    #[test]
    fn what_only_the_cache_may_have_is_not_read() {
        let path = PathBuf::from(format!("/var/tmp/remanence-cache-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let forgets = |options: &FileOptions| {
            crate::cache::FORGOTTEN.set(0);
            let region = options.open(&path).expect("a file");
            (crate::cache::FORGOTTEN.get(), region)
        };
        let (_, region) = forgets(&FileOptions::new().create(8192));
        let file = region.file().expect("a file").try_clone().expect("it is open");
        let has = region.domain().domain() == PersistenceDomain::PageCache && cache::has_trace(&file);
        drop(region);
        if has {
            assert_eq!(forgets(&FileOptions::new()).0, 0, "all that it has is on the disk");
            // As after a psync that failed.
            cache::take_trace(&file);
            assert_eq!(forgets(&FileOptions::new()).0, 1);
            assert_eq!(forgets(&FileOptions::new()).0, 0, "it was read from the disk since");
        } else {
            println!("/var/tmp is no disk, or its kernel remembers no inode: not tried");
        }
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn of_two_who_make_a_file_one_opens_that_of_the_other() {
        let dir = Directory::new("two");
        let path = dir.0.join("file");
        let options = FileOptions::new().create(8192);
        fs::write(&path, [7; 8192]).expect("room");
        assert!(options.make(&path).expect("room").is_none(), "it is there already");
        assert_eq!(fs::read(&path).expect("a file"), [7; 8192]);
        assert_eq!(dir.names(), ["file"]);
    }
}
