//! Files made again from the images that servers have, on a machine that has none of them.
//!
//! They are made in a directory beside their places, whatever a run that was cut short has left there, and each gets its name when all of them are whole and durable. A
//! file that is there already stays if it is the same; else nothing at all is put in its place. So this can be cut short anywhere, and begun anew.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use remanence_cache::images::{Built, FileKey, RestoreTarget, State};
use remanence_codec::printable;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

/// What the directory is called in which files are made.
const STAGING: &str = ".rem-building";
/// What follows the name of a file that is not whole.
const INCOMPLETE: &str = ".rem-incomplete";
/// So many files are open at a time.
const OPEN: usize = 256;
const CHUNK: usize = 64 << 10;

/// Files that are being made.
#[derive(Debug)]
pub struct Staging {
    into: PathBuf,
    at: PathBuf,
    open: BTreeMap<FileKey, File>,
}

/// A file, and what became of it.
#[derive(Clone, Debug)]
pub struct Made {
    /// What it is called, fit to be shown.
    pub path: String,
    /// Bytes of it.
    pub len: u64,
    /// How much of it there was; one that was given up is nowhere.
    pub state: State,
    /// Where it is now; `None` if it is nowhere, or nothing was changed.
    pub at: Option<PathBuf>,
    /// It was there.
    pub kept: bool,
}

/// Why files are not made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The system refuses something.
    #[error("{0}: {1}")]
    System(PathBuf, io::Error),
    /// Other files are there.
    #[error("{} there already with other content, and nothing was put in its place: move it away, or name another directory", listed(.0))]
    There(Vec<PathBuf>),
    /// What the servers have contradicts itself.
    #[error("{path} has {has} bytes and should have {len}: what the servers have of it is damaged")]
    Damaged {
        /// Which file that is.
        path: String,
        /// Bytes that it has.
        has: u64,
        /// And should have.
        len: u64,
    },
    /// Its path leads nowhere.
    #[error("{0} is no whole path of a file")]
    Path(String),
}

fn listed(paths: &[PathBuf]) -> String {
    match paths {
        [one] => format!("{} is", one.display()),
        [first, more @ ..] => format!("{} and {} more are", first.display(), more.len()),
        [] => "nothing is".into(),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |why| BuildError::System(path, why)
}

/// The place of a file below a directory.
fn below(into: &Path, path: &[u8]) -> Result<PathBuf, BuildError> {
    let whole = PathBuf::from(OsString::from_vec(path.to_vec()));
    let mut place = into.to_owned();
    let mut names = 0;
    for component in whole.components() {
        match component {
            Component::RootDir if names == 0 => {}
            Component::Normal(name) => {
                place.push(name);
                names += 1;
            }
            _ => return Err(BuildError::Path(printable(path))),
        }
    }
    if names == 0 || !whole.is_absolute() || path.ends_with(b"/") {
        return Err(BuildError::Path(printable(path)));
    }
    Ok(place)
}

impl Staging {
    /// Begins anew in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(into: &Path) -> Result<Self, BuildError> {
        fs::create_dir_all(into).map_err(at(into))?;
        let into = fs::canonicalize(into).map_err(at(into))?;
        let staging = into.join(STAGING);
        match fs::remove_dir_all(&staging) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(at(&staging)(why)),
            _ => {}
        }
        fs::create_dir(&staging).map_err(at(&staging))?;
        fs::set_permissions(&staging, Permissions::from_mode(0o700)).map_err(at(&staging))?;
        Ok(Self { into, at: staging, open: BTreeMap::new() })
    }

    fn name(&self, key: &FileKey) -> PathBuf {
        self.at.join(format!("{:x}-{:x}-{:x}", key.device, key.inode, key.born))
    }

    fn file(&mut self, key: &FileKey) -> Result<&File, BuildError> {
        if self.open.len() >= OPEN {
            self.open.clear();
        }
        let name = self.name(key);
        match self.open.entry(*key) {
            std::collections::btree_map::Entry::Occupied(open) => Ok(open.into_mut()),
            std::collections::btree_map::Entry::Vacant(none) => {
                let mut options = File::options();
                let file = options.read(true).write(true).create(true).truncate(false).open(&name);
                Ok(none.insert(file.map_err(at(&name))?))
            }
        }
    }

    /// Gives all files their names, durably: those that are not whole get one that says so.
    ///
    /// # Errors
    /// Another file is there, a file is not as the servers say, or the system refuses.
    pub fn place(mut self, built: &[Built]) -> Result<Vec<Made>, BuildError> {
        self.open.clear();
        let mut all = Vec::new();
        let mut there = Vec::new();
        for file in built {
            let meta = &file.meta;
            let mut made = said(file);
            if meta.state == State::GivenUp {
                all.push((None, made));
                continue;
            }
            let from = self.name(&meta.key);
            let mut place = below(&self.into, &meta.path)?;
            if meta.state == State::Building {
                let mut name = place.into_os_string();
                name.push(INCOMPLETE);
                place = name.into();
            }
            let has = fs::metadata(&from).map_err(at(&from))?.len();
            if has != meta.len {
                return Err(BuildError::Damaged { path: made.path, has, len: meta.len });
            }
            match fs::symlink_metadata(&place) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(at(&place)(why)),
                Ok(found) => {
                    made.kept = found.is_file() && is_same(&from, &place)?;
                    if !made.kept {
                        there.push(place.clone());
                    }
                }
            }
            made.at = Some(place);
            all.push((Some((from, meta)), made));
        }
        if !there.is_empty() {
            let _ = fs::remove_dir_all(&self.at);
            return Err(BuildError::There(there));
        }
        // Each is durable before any has its name.
        for (from, _) in &all {
            let Some((from, meta)) = from else { continue };
            let file = File::options().write(true).open(from).map_err(at(from))?;
            // Only who may give files away keeps their owners; and without that nobody runs as whoever recovers.
            let [user, group] = meta.owner.map(Some);
            let is_kept = std::os::unix::fs::fchown(&file, user, group).is_ok();
            let bits = if is_kept { 0o7777 } else { 0o1777 };
            file.set_permissions(Permissions::from_mode(meta.mode & bits)).map_err(at(from))?;
            file.sync_all().map_err(at(from))?;
        }
        let mut directories = Vec::new();
        for (from, made) in &all {
            let (Some((from, _)), Some(place)) = (from, &made.at) else { continue };
            if made.kept {
                // Whoever has made it may not have waited for it.
                File::open(place).and_then(|file| file.sync_all()).map_err(at(place))?;
            } else {
                if let Some(parent) = place.parent() {
                    fs::create_dir_all(parent).map_err(at(parent))?;
                }
                renameat_with(CWD, from, CWD, place, RenameFlags::NOREPLACE)
                    .map_err(|why| at(place)(why.into()))?;
            }
            let ancestors = place.ancestors().skip(1);
            directories.extend(ancestors.take_while(|path| path.starts_with(&self.into)).map(Path::to_owned));
        }
        directories.sort_unstable();
        directories.dedup();
        for directory in directories {
            File::open(&directory).and_then(|file| file.sync_all()).map_err(at(&directory))?;
        }
        fs::remove_dir_all(&self.at).map_err(at(&self.at))?;
        Ok(all.into_iter().map(|(_, made)| made).collect())
    }
}

/// A file that was not made yet.
#[must_use]
pub fn said(file: &Built) -> Made {
    let meta = &file.meta;
    Made { path: printable(&meta.path), len: meta.len, state: meta.state, at: None, kept: false }
}

fn is_same(one: &Path, other: &Path) -> Result<bool, BuildError> {
    let mut files = [File::open(one).map_err(at(one))?, File::open(other).map_err(at(other))?];
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    loop {
        let mut lens = [0; 2];
        for (n, (file, buffer)) in files.iter_mut().zip(&mut buffers).enumerate() {
            while lens[n] < CHUNK {
                match file.read(&mut buffer[lens[n]..]) {
                    Ok(0) => break,
                    Ok(len) => lens[n] += len,
                    Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                    Err(why) => return Err(at([one, other][n])(why)),
                }
            }
        }
        if lens[0] != lens[1] || buffers[0][..lens[0]] != buffers[1][..lens[1]] {
            return Ok(false);
        }
        if lens[0] == 0 {
            return Ok(true);
        }
    }
}

impl RestoreTarget for Staging {
    type Error = BuildError;

    fn write(&mut self, key: &FileKey, offset: u64, bytes: &[u8]) -> Result<(), BuildError> {
        let name = self.name(key);
        self.file(key)?.write_all_at(bytes, offset).map_err(at(&name))
    }

    fn zero(&mut self, key: &FileKey, from: u64, to: u64) -> Result<(), BuildError> {
        let name = self.name(key);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = loop {
            match fallocate(self.file(key)?, hole, from, to.saturating_sub(from)) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match punched {
            // There are no holes here.
            Err(Errno::OPNOTSUPP) => {}
            other => return other.map_err(|why| at(&name)(why.into())),
        }
        let mut done = from;
        while done < to {
            let len = (to - done).min(CHUNK as u64);
            self.write(key, done, &[0; CHUNK][..len as usize])?;
            done += len;
        }
        Ok(())
    }

    fn set_len(&mut self, key: &FileKey, len: u64) -> Result<(), BuildError> {
        let name = self.name(key);
        self.file(key)?.set_len(len).map_err(at(&name))
    }

    fn discard(&mut self, key: &FileKey) -> Result<(), BuildError> {
        self.open.remove(key);
        let name = self.name(key);
        match fs::remove_file(&name) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(at(&name)(why)),
            _ => Ok(()),
        }
    }
}

/// Where nothing is made: for who only looks.
#[derive(Clone, Copy, Default, Debug)]
pub struct Nowhere;

impl RestoreTarget for Nowhere {
    type Error = BuildError;

    fn write(&mut self, _: &FileKey, _: u64, _: &[u8]) -> Result<(), BuildError> {
        Ok(())
    }

    fn zero(&mut self, _: &FileKey, _: u64, _: u64) -> Result<(), BuildError> {
        Ok(())
    }

    fn set_len(&mut self, _: &FileKey, _: u64) -> Result<(), BuildError> {
        Ok(())
    }

    fn discard(&mut self, _: &FileKey) -> Result<(), BuildError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use remanence_cache::images::Meta;

    use super::*;

    const KEY: FileKey = FileKey { device: 1, inode: 2, born: 3 };

    fn built(path: &str, len: u64, state: State) -> Built {
        let (mode, owner, path) = (0o100_640, [u32::MAX; 2], path.as_bytes().to_vec());
        Built::new(Meta { key: KEY, state, at: 0, len, mode, owner, path })
    }

    #[test]
    fn a_file_gets_its_name_once_and_nothing_is_put_in_another_ones_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let into = directory.path().join("new");
        let make = |bytes: &[u8], state| {
            let mut staging = Staging::new(&into)?;
            staging.write(&KEY, 0, b"longer than that")?;
            staging.set_len(&KEY, 0)?;
            staging.write(&KEY, 1, &bytes[1..])?;
            staging.write(&KEY, 0, &bytes[..1])?;
            staging.place(&[built("/data/app.db", bytes.len() as u64, state)])
        };
        let made = make(b"rows", State::Whole).expect("it is empty");
        let place = into.canonicalize().expect("it was made").join("data/app.db");
        assert_eq!((made[0].at.as_ref(), made[0].kept), (Some(&place), false));
        assert_eq!(fs::read(&place).expect("it is there"), b"rows");
        let mode = fs::metadata(&place).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert!(make(b"rows", State::Whole).expect("it is the same")[0].kept);
        let refused = make(b"other", State::Whole).expect_err("it is another").to_string();
        assert!(refused.contains("app.db is there already with other content"), "{refused}");
        assert_eq!(fs::read(&place).expect("it is there"), b"rows");
        let made = make(b"oth", State::Building).expect("it has another name");
        assert!(made[0].at.as_ref().is_some_and(|at| at.ends_with("data/app.db.rem-incomplete")));
        let given_up = make(b"x", State::GivenUp).expect("nothing is made");
        assert_eq!(given_up[0].at, None);
        assert!(!into.join(STAGING).exists());
    }

    #[test]
    fn zeros_take_no_room() {
        const LEN: u64 = 1 << 30;
        let directory = tempfile::tempdir().expect("a directory");
        let mut staging = Staging::new(directory.path()).expect("it can be written");
        staging.write(&KEY, 5000, &[7; 9000]).expect("room");
        staging.set_len(&KEY, LEN).expect("room");
        staging.zero(&KEY, 6000, LEN).expect("room");
        let made = staging.place(&[built("/a", LEN, State::Whole)]).expect("nothing else is there");
        let file = File::open(made[0].at.as_ref().expect("it was made")).expect("it is there");
        let mut bytes = vec![1; 20_000];
        file.read_exact_at(&mut bytes, 0).expect("it is as long");
        assert_eq!(bytes, [vec![0; 5000], vec![7; 1000], vec![0; 14_000]].concat());
        let takes = file.metadata().expect("it is there").blocks() * 512;
        assert!(takes < 1 << 20, "{takes} bytes of the disk");
    }

    /// Also where `root` recovers: as another user.
    #[test]
    fn a_file_that_cannot_be_given_to_its_owner_runs_as_nobody() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("it is ours");
        let made = || {
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).expect("root may");
            }
            let mut staging = Staging::new(directory.path()).expect("it can be written");
            staging.write(&KEY, 0, b"abc").expect("room");
            let mut file = built("/a", 3, State::Whole);
            (file.meta.mode, file.meta.owner) = (0o106_755, [0, 0]);
            staging.place(&[file]).expect("nothing else is there")
        };
        // The user is that of the thread alone.
        let made = std::thread::scope(|scope| scope.spawn(made).join().expect("it does not panic"));
        let mode = fs::metadata(made[0].at.as_ref().expect("it was made")).expect("it is there").mode();
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn what_is_no_path_or_has_another_length_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in ["/a/../../b", "a", "/", "/a/", "", "/.."] {
            assert!(matches!(below(directory.path(), path.as_bytes()), Err(BuildError::Path(_))), "{path}");
        }
        let mut staging = Staging::new(directory.path()).expect("it can be written");
        staging.write(&KEY, 0, b"abc").expect("room");
        let refused = staging.place(&[built("/a", 4, State::Whole)]);
        assert!(matches!(refused, Err(BuildError::Damaged { has: 3, len: 4, .. })), "{refused:?}");
    }
}
