//! Images of files beside the log's copy: reads the files, and says what is to be sent of them.
//!
//! The files are those that the daemon has taken into its table. Each is held open here, also when the table forgets it, until it has no name any more: so no
//! inode is used again for another. A piece is read while nobody is in the middle of a change that is logged, which is told before and behind the reading from the file's lock and its last
//! entry; only of a file that never stands still the lock is taken, for one record's pieces. What comes from the disk is read once before.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use remanence_cache::imager::{Imager, Room, Step};
use remanence_cache::images::{FileKey, Meta, PIECE, State, pieces_of};
use remanence_codec::printable;

use super::work::OwnLog;
use crate::segment::{self, DAEMON, Segment};
use crate::sys::{self, Stat};

/// The longest path that a record is made with room for.
const PATH_MAX: usize = 4096;
/// Pieces of a record.
const PIECES: usize = 16;
/// How often a file is looked at that somebody is at, before its lock is taken.
const TURNS: usize = 8;
/// How long its lock is waited for then.
const LOCK_MS: u64 = 20;
/// A change within so many nanoseconds behind another one may leave the same time of change.
const TICK_NS: u64 = 10_000_000;
/// Files that a status lists.
const LISTED: usize = 50;

/// How a file stands that could not be made again as it is.
#[derive(Clone, Debug)]
pub(super) struct Lacking {
    pub(super) path: String,
    pub(super) state: State,
    /// Bytes that are there, of how many.
    pub(super) has: u64,
    pub(super) len: u64,
}

/// How the images stand.
#[derive(Clone, Default, Debug)]
pub(super) struct Standing {
    pub(super) whole: usize,
    pub(super) size: u64,
    pub(super) room: u64,
    pub(super) lacking: Vec<Lacking>,
}

/// What is read of a file: what it is, and pieces of it.
pub(super) type Read = (Meta, Vec<(u32, Vec<u8>)>);

/// What is done next.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing: there is nothing to be done.
    Idle,
    /// Nothing yet: somebody is at the file.
    Busy,
    /// This, with what was read, when the servers have all that is committed below the index, and nothing else.
    Step(u64, Step, Option<Read>),
}

/// A file that is held.
#[derive(Debug)]
struct Own {
    file: File,
    /// How often the kernel had synced it when it was looked at last.
    counted: Option<u64>,
    /// Its time of change up to which all of it is logged, or was scanned: so it is told, of one that the table has forgotten, whether that was changed since. 0: it is not known.
    changed: u64,
}

/// A time of change that a file had behind `now`, if whatever is changed later leaves another one; else 0.
const fn told_by(changed: u64, now: u64) -> u64 {
    if changed.saturating_add(TICK_NS) < now { changed } else { 0 }
}

pub(super) struct Imaging {
    pub(super) imager: Imager,
    files: BTreeMap<FileKey, Own>,
    /// What was asked for, and is being done.
    looking: Option<u64>,
    looked: u64,
}

const fn key_of(key: &segment::Key) -> FileKey {
    let segment::Key { device, inode, born } = *key;
    FileKey { device, inode, born }
}

const fn place_of(key: &FileKey) -> segment::Key {
    let FileKey { device, inode, born } = *key;
    segment::Key { device, inode, born }
}

/// What a file is called now.
fn path_of(file: &File) -> Option<Vec<u8>> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let path = path.into_os_string().into_vec();
    // The name that it was opened by is gone, and it has another one: nobody says which.
    (path.len() <= PATH_MAX && !path.ends_with(b" (deleted)")).then_some(path)
}

/// What an open says of a name that leads to no file.
const NAMELESS: [Option<i32>; 4] =
    [Some(libc::ENOENT), Some(libc::ENOTDIR), Some(libc::ELOOP), Some(libc::ENXIO)];

impl Imaging {
    pub(super) fn new(room: u64) -> Self {
        Self { imager: Imager::new(room), files: BTreeMap::new(), looking: None, looked: 0 }
    }

    /// Finds the files again of which an earlier daemon has kept images. The beginning of a sentence, if none of them is here: this may be another machine, unless it
    /// has the log still; or one of them cannot be looked at, whose image would be given up else.
    pub(super) fn find(&mut self, has_log: bool) -> Result<(), String> {
        let images: Vec<Meta> = self.imager.keeper().images().map(|image| image.meta().clone()).collect();
        let mut refused = None;
        for meta in &images {
            let path = PathBuf::from(std::ffi::OsString::from_vec(meta.path.clone()));
            let mut open = File::options();
            let file = open.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(&path);
            let same = |file: &File| {
                Stat::of(file.as_raw_fd())
                    .is_ok_and(|stat| stat.is_regular() && key_of(&stat.key) == meta.key)
            };
            let why = match file {
                Ok(file) if same(&file) => {
                    self.known(meta.key, file);
                    continue;
                }
                // Something else has its name.
                Ok(_) => None,
                Err(why) => Some(why).filter(|why| !NAMELESS.contains(&why.raw_os_error())),
            };
            // Only where its file system is there it is known to have no name any more.
            let above = path.ancestors().skip(1).find_map(|above| above.metadata().ok());
            let is_there = above.is_some_and(|above| above.dev() == meta.key.device);
            if refused.is_none() && (why.is_some() || !is_there) {
                let why =
                    why.map_or_else(|| "its file system is not there".to_owned(), |why| why.to_string());
                refused = Some(format!(
                    "these servers have an image of {}, and whether that is still here cannot be told ({why}): start again when it can, and if it is lost, `rem cache recover --from",
                    path.display()
                ));
            }
        }
        if !has_log && !images.is_empty() && self.files.is_empty() {
            return Err(format!(
                "these servers have images of {} files, and none of them is here: `rem cache recover --from",
                images.len()
            ));
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        for meta in images.iter().filter(|meta| !self.files.contains_key(&meta.key)) {
            self.imager.gone(meta.key);
        }
        Ok(())
    }

    fn known(&mut self, key: FileKey, file: File) {
        let now = sys::since_1970();
        let (len, changed) = Stat::of(file.as_raw_fd()).map_or((0, 0), |found| (found.size, found.changed));
        self.files.insert(key, Own { file, counted: None, changed: told_by(changed, now) });
        self.imager.stale(key, len);
    }

    /// Takes what is new, and looks at all files, if somebody had asked for that before: who asks behind that is looked at in the next turn, as his file may have come since.
    pub(super) fn take(&mut self, segment: Segment, fresh: impl FnOnce() -> Vec<(segment::Key, File)>) {
        let asked = segment.asked_to_look();
        for (key, file) in fresh() {
            self.known(key_of(&key), file);
        }
        self.look(segment, asked);
    }

    /// Looks at all files, if somebody has asked for that and nobody is being served yet: which have no name any more, another one, or were synced by the
    /// kernel. `asked`: what had been asked for before it was told which files are new.
    fn look(&mut self, segment: Segment, asked: u64) {
        if self.looking.is_some() || asked == self.looked {
            return;
        }
        self.looking = Some(asked);
        let now = sys::since_1970();
        let mut gone = Vec::new();
        for (key, own) in &mut self.files {
            let Ok(found) = Stat::of(own.file.as_raw_fd()) else { continue };
            if found.links == 0 {
                gone.push(*key);
                continue;
            }
            let said = self.imager.keeper().get(key).map(|image| image.meta());
            let path = path_of(&own.file);
            let is_renamed = said.is_some_and(|said| {
                path.is_some_and(|path| path != said.path)
                    || (said.mode, said.owner) != (found.mode, [found.user, found.group])
            });
            if is_renamed {
                self.imager.renamed(key);
            }
            let slot = segment.find(&place_of(key));
            let counted = slot.map(|slot| slot.counts()[1]);
            // Of one that the table has forgotten nobody counts what the kernel syncs.
            let is_stale = if slot.is_some() { counted != own.counted } else { found.changed != own.changed };
            let is_logged = slot.is_some_and(|slot| slot.is_absorbed() && slot.changed() == found.changed);
            if is_stale {
                own.counted = counted;
                self.imager.stale(*key, found.size);
            }
            if is_stale || is_logged {
                own.changed = told_by(found.changed, now);
            }
        }
        for key in gone {
            self.files.remove(&key);
            self.imager.gone(key);
        }
    }

    /// Says that what was asked for is done, if it is.
    pub(super) fn serve(&mut self, segment: Segment) {
        if !self.imager.is_waited_for()
            && let Some(asked) = self.looking.take()
        {
            self.looked = asked;
            segment.looked(asked);
        }
    }

    /// What is done next, for a record of no more than `max` bytes.
    pub(super) fn next(&mut self, log: &OwnLog, segment: Segment, max: usize, room: Room) -> Next {
        let most = pieces_of(max, PATH_MAX).min(PIECES);
        loop {
            let Some(step) = self.imager.next(most, room) else { return Next::Idle };
            let read = match &step {
                Step::Gone(_) => None,
                Step::Read(key, pieces, _) => match self.read(log, segment, key, pieces) {
                    Ok(Some(read)) => Some(read),
                    Ok(None) => return Next::Busy,
                    Err(_) if self.files.contains_key(key) && !pieces.is_empty() => {
                        // The next step says so.
                        self.imager.give_up(key);
                        continue;
                    }
                    Err(_) => None,
                },
            };
            let at = read.as_ref().map_or_else(|| log.head(), |(meta, _)| meta.at);
            return Next::Step(at, step, read);
        }
    }

    /// The record of a step, if there has to be one.
    pub(super) fn record(&mut self, log: &OwnLog, step: &Step, read: Option<Read>) -> Option<Vec<u8>> {
        self.imager.record(log.layout(), log.tail(), step, read)
    }

    /// Reads what a file is, and pieces of it. `None`: somebody is at it.
    fn read(
        &self,
        log: &OwnLog,
        segment: Segment,
        key: &FileKey,
        pieces: &[u32],
    ) -> std::io::Result<Option<Read>> {
        let own = self.files.get(key).ok_or(std::io::ErrorKind::NotFound)?;
        let slot = segment.find(&place_of(key));
        // Who is at it, and what was logged of it last.
        let stands = || slot.map(|slot| (slot.holder(), slot.last(), slot.is_live()));
        // It is in memory then, and what follows is quick.
        self.read_now(own, key, pieces)?;
        for _ in 0..TURNS {
            let before = stands();
            if before.is_none_or(|(holder, ..)| holder == 0) {
                let at = log.head();
                let (meta, read) = self.read_now(own, key, pieces)?;
                if stands() == before {
                    return Ok(Some((Meta { at, ..meta }, read)));
                }
            }
            sys::yield_now();
        }
        let Some(slot) = slot.filter(|slot| slot.lock(DAEMON, LOCK_MS)) else { return Ok(None) };
        let at = log.head();
        let read = self.read_now(own, key, pieces);
        slot.unlock();
        let (meta, read) = read?;
        Ok(Some((Meta { at, ..meta }, read)))
    }

    fn read_now(&self, own: &Own, key: &FileKey, pieces: &[u32]) -> std::io::Result<Read> {
        let found = own.file.metadata()?;
        let said = self.imager.keeper().get(key).map(|image| image.meta().path.clone());
        let path = path_of(&own.file).or(said).unwrap_or_default();
        let mut read = Vec::with_capacity(pieces.len());
        for number in pieces {
            let from = u64::from(*number) * PIECE as u64;
            let len = found.len().saturating_sub(from).min(PIECE as u64) as usize;
            if len == 0 {
                continue;
            }
            let mut bytes = vec![0; len];
            let mut done = 0;
            while done < len {
                match own.file.read_at(&mut bytes[done..], from + done as u64) {
                    // It was cut meanwhile, which is seen.
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(why) => return Err(why),
                }
            }
            read.push((*number, bytes));
        }
        let (len, mode, owner) = (found.len(), found.mode(), [found.uid(), found.gid()]);
        Ok((Meta { key: *key, state: State::Building, at: 0, len, mode, owner, path }, read))
    }

    pub(super) fn standing(&self) -> Standing {
        let keeper = self.imager.keeper();
        let mut standing = Standing { size: keeper.size(), room: self.imager.room(), ..Standing::default() };
        for image in keeper.images() {
            let meta = image.meta();
            if meta.state == State::Whole {
                standing.whole += 1;
            } else if standing.lacking.len() < LISTED {
                let has = (image.count() as u64 * PIECE as u64).min(meta.len);
                let path = printable(&meta.path);
                standing.lacking.push(Lacking { path, state: meta.state, has, len: meta.len });
            }
        }
        standing
    }
}

/// What a state is called.
pub(super) const fn name_of(state: State) -> &'static str {
    match state {
        State::Building => "building",
        State::Whole => "whole",
        State::Stale => "stale",
        State::GivenUp => "given-up",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use remanence_cache::format::{Geometry, Layout};
    use remanence_cache::images;
    use remanence_pmem::layout::Uuid;

    use super::*;
    use crate::segment::tests::segment;

    const GEOMETRY: Geometry = Geometry { entries: 64, slot: 512, files: 8, path_max: 64 };
    const LAYOUT: Layout = Layout { uuid: Uuid([3; 16]), geometry: GEOMETRY, salt: 1, together: false };

    /// A file, its images, and what the servers have of them.
    struct Bench {
        directory: tempfile::TempDir,
        segment: Segment,
        imaging: Imaging,
        records: u64,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            fs::write(directory.path().join("f"), "one").expect("room");
            Self { directory, segment: segment(), imaging: Imaging::new(1 << 30), records: 0 }
        }

        fn file(&self) -> Vec<(segment::Key, File)> {
            let file = File::open(self.directory.path().join("f")).expect("it is there");
            vec![(Stat::of(file.as_raw_fd()).expect("it is open").key, file)]
        }

        /// Sends all that there is to be sent; how many records that are.
        fn send(&mut self) -> u64 {
            let before = self.records;
            while let Some(step) = self.imaging.imager.next(PIECES, Room::Enough) {
                let read = match &step {
                    Step::Read(key, pieces, _) => {
                        let own = &self.imaging.files[key];
                        Some(self.imaging.read_now(own, key, pieces).expect("it can be read"))
                    }
                    Step::Gone(_) => None,
                };
                if let Some(record) = self.imaging.imager.record(&LAYOUT, 64, &step, read) {
                    self.imaging.imager.recorded(self.records, &record).expect("it is one of ours");
                    self.imaging.imager.done();
                    self.records += 1;
                }
            }
            self.records - before
        }

        /// Looks at all files; whether there was one to be read once more.
        fn look(&mut self) -> bool {
            let asked = self.segment.ask_to_look();
            self.imaging.take(self.segment, Vec::new);
            let is_stale = self.imaging.imager.is_waited_for();
            self.send();
            self.imaging.serve(self.segment);
            assert_eq!(self.imaging.looked, asked, "nobody waits any more");
            is_stale
        }
    }

    #[test]
    fn who_asks_when_it_was_taken_what_is_new_is_answered_when_his_file_has_its_image() {
        let mut bench = Bench::new();
        let segment = bench.segment;
        bench.imaging.take(segment, || {
            let none = Vec::new();
            segment.ask_to_look();
            none
        });
        bench.imaging.serve(segment);
        assert_eq!(bench.imaging.looked, 0, "his file may be new");
        let file = bench.file();
        bench.imaging.take(segment, || file);
        bench.imaging.serve(segment);
        assert_eq!(bench.imaging.looked, 0, "it has no image");
        assert_eq!(bench.send(), 1);
        bench.imaging.serve(segment);
        assert_eq!(bench.imaging.looked, 1);
    }

    #[test]
    fn what_the_kernel_syncs_of_a_file_that_the_table_has_forgotten_is_sent() {
        let mut bench = Bench::new();
        let file = bench.file();
        bench.imaging.take(bench.segment, || file);
        bench.send();
        // Until a change would leave another time, it may be one that nobody has seen.
        while bench.look() {
            sys::yield_now();
        }
        assert!(!bench.look(), "nothing has changed");
        fs::write(bench.directory.path().join("f"), "two").expect("it is there");
        let before = bench.records;
        assert!(bench.look() && bench.records == before + 1, "somebody has changed it, and synced that");
    }

    #[test]
    fn an_image_is_given_up_only_where_its_file_system_is_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let device = directory.path().metadata().expect("it is there").dev();
        let find = |device, path: &Path| {
            let mut imaging = Imaging::new(1 << 30);
            let key = FileKey { device, inode: u64::MAX, born: 1 };
            let (path, owner) = (path.as_os_str().as_bytes().to_vec(), [0; 2]);
            let meta = Meta { key, state: State::Whole, at: 0, len: 0, mode: 0o100_600, owner, path };
            let record = images::record(&LAYOUT, 64, &meta, &[]);
            imaging.imager.recorded(0, &record).expect("it is one of ours");
            let found = imaging.find(true);
            (found, imaging.imager.next(1, Room::Enough))
        };
        let path = directory.path().join("gone");
        let is_given_up = |(found, next): (Result<(), String>, Option<Step>)| {
            found.is_ok() && matches!(next, Some(Step::Gone(_)))
        };
        assert!(is_given_up(find(device, &path)));
        assert!(is_given_up(find(device, &path.join("below"))));
        let long = directory.path().join("n".repeat(300));
        for (device, path) in [(device + 1, &path), (device, &long)] {
            let (found, next) = find(device, path);
            let why = found.expect_err("it may be there");
            assert!(why.contains("cannot be told") && next.is_none(), "{why}");
        }
        fs::write(&path, "another file").expect("room");
        assert!(is_given_up(find(device, &path)));
    }
}
