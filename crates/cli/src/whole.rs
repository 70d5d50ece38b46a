//! A file that takes its place when all of it is there, so that who is killed while he writes it leaves nothing, and what had the name
//! before is there until then.
//!
//! It has no name until then (`O_TMPFILE`), and goes with its maker. Where the file system knows no such thing it has a hidden one
//! beside its place, which only SIGKILL leaves behind.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use tempfile::NamedTempFile;

/// Tries at a name that nobody has.
const TRIES: u32 = 100;

#[derive(Debug)]
pub(crate) struct Whole {
    file: Made,
    path: PathBuf,
}

#[derive(Debug)]
enum Made {
    Unnamed(File),
    Named(NamedTempFile),
}

impl Whole {
    /// What is to be at a path, with these rights as far as the process's mask lets it have them.
    pub(crate) fn at(path: &Path, mode: u32) -> io::Result<Self> {
        match Self::unnamed(path, mode) {
            // Not known to the file system, or to the kernel.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {
                Self::named(path, mode)
            }
            other => Ok(other?),
        }
    }

    fn unnamed(path: &Path, mode: u32) -> Result<Self, rustix::io::Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, directory_of(path), flags, Mode::from_raw_mode(mode))?;
        Ok(Self { file: Made::Unnamed(file.into()), path: path.to_owned() })
    }

    fn named(path: &Path, mode: u32) -> io::Result<Self> {
        let rights = std::fs::Permissions::from_mode(mode);
        let file = tempfile::Builder::new().permissions(rights).tempfile_in(directory_of(path))?;
        Ok(Self { file: Made::Named(file), path: path.to_owned() })
    }

    pub(crate) fn file(&self) -> &File {
        match &self.file {
            Made::Unnamed(file) => file,
            Made::Named(file) => file.as_file(),
        }
    }

    /// All of it is there: durable under its name on return, in place of what had that before.
    pub(crate) fn end(self) -> io::Result<()> {
        self.file().sync_all()?;
        match self.file {
            Made::Unnamed(file) => name(&file, &self.path)?,
            Made::Named(file) => drop(file.persist(&self.path)?),
        }
        File::open(directory_of(&self.path))?.sync_all()
    }
}

/// Writes a file, which takes its place when all of it is there; a device or a pipe is written as it is.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match file_at(path)? {
        Some(whole) => whole.file().write_all(bytes).and_then(|()| whole.end()),
        None => File::options().write(true).open(path)?.write_all(bytes),
    }
}

/// Whether [`write()`] has anywhere to write to, as far as that can be known; nothing is left there.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    file_at(path).map(drop)
}

/// `None` for what is there and is no file.
fn file_at(path: &Path) -> io::Result<Option<Whole>> {
    match std::fs::metadata(path) {
        Ok(there) if there.is_file() => {
            // Who may not write to it may not replace it.
            File::options().write(true).open(path)?;
            Whole::at(&path.canonicalize()?, there.permissions().mode() & 0o777).map(Some)
        }
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Whole::at(path, 0o666).map(Some),
        Err(error) => Err(error),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name cannot take another one's place, but one with a name can.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let this = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |path: &Path| rustix::fs::linkat(CWD, &this, CWD, path, AtFlags::SYMLINK_FOLLOW);
    match link(path) {
        Err(rustix::io::Errno::EXIST) => {}
        other => return Ok(other?),
    }
    let mut tries = (0..TRIES).map(|n| {
        let mut hidden = OsString::from(".");
        hidden.push(path.file_name().unwrap_or_default());
        hidden.push(format!(".{}.{n}", std::process::id()));
        directory_of(path).join(hidden)
    });
    let hidden = tries.find_map(|hidden| match link(&hidden) {
        Ok(()) => Some(Ok(hidden)),
        Err(rustix::io::Errno::EXIST) => None,
        Err(e) => Some(Err(io::Error::from(e))),
    });
    let hidden = hidden.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
    std::fs::rename(&hidden, path).inspect_err(|_| drop(std::fs::remove_file(&hidden)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(dir: &Path) -> Vec<OsString> {
        fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
    }

    #[test]
    fn a_file_takes_its_place_when_it_is_whole_and_leaves_nothing_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        for (make, before) in
            [(Whole::at as fn(&Path, u32) -> _, None), (Whole::at, Some("one")), (Whole::named, Some("two"))]
        {
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), before);
            let given_up = make(&path, 0o600).expect("room");
            given_up.file().write_all(b"half").expect("room");
            drop(given_up);
            assert_eq!(names(dir.path()).len(), usize::from(before.is_some()));
            let whole = make(&path, 0o640).expect("room");
            let what = if before.is_none() { "one" } else { "two" };
            whole.file().write_all(what.as_bytes()).expect("room");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), before, "it is not whole yet");
            whole.end().expect("room");
            assert_eq!(fs::read_to_string(&path).expect("there"), what);
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o7777 & !0o640, 0, "{mode:o}");
            assert_eq!(names(dir.path()), ["file"]);
        }
    }

    /// As SIGKILL does.
    #[test]
    fn who_is_killed_while_he_writes_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let Ok(whole) = Whole::unnamed(&dir.path().join("file"), 0o600) else {
            return println!("skipped: the file system of temporary files knows no files without names");
        };
        whole.file().write_all(b"half").expect("room");
        std::mem::forget(whole);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn what_is_in_the_way_stays_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::create_dir(&path).expect("room");
        fs::write(path.join("of"), "somebody").expect("room");
        for make in [Whole::at, Whole::named] {
            make(&path, 0o600).expect("room").end().expect_err("a directory");
            assert_eq!(names(dir.path()), ["file"]);
        }
        assert!(Whole::at(&dir.path().join("none/file"), 0o600).is_err());
    }

    #[test]
    fn what_is_written_is_checked_before_and_replaces_files_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        check(&path).expect("room");
        assert!(names(dir.path()).is_empty(), "a look leaves nothing");
        for text in ["one", "two"] {
            write(&path, text.as_bytes()).expect("room");
            assert_eq!(fs::read_to_string(&path).expect("there"), text);
        }
        std::os::unix::fs::symlink("file", &link).expect("room");
        write(&link, b"three").expect("room");
        assert_eq!(fs::read_to_string(&path).expect("there"), "three");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink(), "a link stays one");
        write(Path::new("/dev/null"), b"nothing").expect("it takes everything");
        assert!(!fs::metadata("/dev/null").expect("there").is_file(), "a device stays one");
        assert!(check(dir.path()).is_err() && check(&dir.path().join("none/file")).is_err());
        assert_eq!(fs::read_to_string(&path).expect("there"), "three");
    }
}
