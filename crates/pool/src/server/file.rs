//! A pool's file: opened, or made whole under another name first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use remanence_pmem::{self as pmem, FileOptions, Image, PersistenceDomain, Region};
use thiserror::Error;

use crate::error::OpenError;
use crate::format::BLOCK;
use crate::format::superblock::{FORMAT, Superblock, Uuid};
use crate::pool::Pool;
use crate::recover::recover;

/// Why a pool file cannot be served.
#[derive(Error)]
pub enum FileError {
    /// The file, or the mapping of it.
    #[error(transparent)]
    Region(#[from] pmem::Error),
    /// What is in it.
    #[error("{path}: {error}")]
    Pool {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: OpenError,
    },
    /// It is there, of another size than was asked for.
    #[error("{path} holds a pool of {found} bytes, not {wanted}; leave --size out to serve it as it is")]
    OtherSize {
        /// The file.
        path: PathBuf,
        /// Bytes of the pool in it.
        found: u64,
        /// Bytes asked for.
        wanted: u64,
    },
    /// It is not there and could not be made.
    #[error("{path} cannot be made ({error}); check the path and the disk")]
    Make {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The kernel gave no randomness.
    #[error("the system gives no random bytes ({0})")]
    Random(#[from] getrandom::Error),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Opens the pool in `path`, or makes one of `size` bytes there. Says whether it was made.
///
/// A new pool is complete and durable before the file gets its name: a crash leaves no half-made pool behind, and an
/// existing file is never written over.
///
/// # Errors
/// One sentence each; see [`FileError`].
pub fn open_or_make(
    path: &Path,
    size: Option<u64>,
    default_size: u64,
    declared: Option<PersistenceDomain>,
) -> Result<(Pool<Region>, bool), FileError> {
    let pool_error = |error| FileError::Pool { path: path.to_owned(), error };
    let mut options = FORMAT.file_options(image);
    if let Some(domain) = declared {
        options = options.declare(domain);
    }
    if path.exists() {
        // An empty file has no pages to map, and is no pool.
        if fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == 0) {
            return Err(pool_error(OpenError::TooShort { file: 0 }));
        }
        let pool = recover(options.open(path)?).map_err(pool_error)?;
        return match size {
            Some(wanted) if pool.geometry().size != wanted => {
                Err(FileError::OtherSize { path: path.to_owned(), found: pool.geometry().size, wanted })
            }
            _ => Ok((pool, false)),
        };
    }
    let size = size.unwrap_or(default_size);
    let making = making(path);
    let (mut uuid, mut salt) = ([0; 16], [0; 8]);
    getrandom::fill(&mut uuid)?;
    getrandom::fill(&mut salt)?;
    // What an interrupted attempt left behind is of no use; one under way holds the lock, and says so.
    if making.exists() {
        drop(FileOptions::new().open(&making)?);
        fs::remove_file(&making).map_err(|error| FileError::Make { path: making.clone(), error })?;
    }
    let region = options.create_new(size).open(&making)?;
    let made = Pool::create(region, Uuid(uuid), u64::from_le_bytes(salt));
    let named = made.map_err(pool_error).and_then(|pool| {
        // A link and not a rename: a file that appeared meanwhile stays as it is.
        fs::hard_link(&making, path)
            .and_then(|()| sync_directory_of(path))
            .map_err(|error| FileError::Make { path: path.to_owned(), error })?;
        Ok((pool, true))
    });
    // Best effort: the file has its name, or there is an error to tell already.
    let _ = fs::remove_file(&making);
    named
}

/// A pool in memory, which goes with the server: for tests, and for measuring without a disk.
///
/// # Errors
/// No memory of that size.
pub fn in_memory(size: u64) -> Result<Pool<Region>, FileError> {
    let path = PathBuf::from("(memory)");
    let (mut uuid, mut salt) = ([0; 16], [0; 8]);
    getrandom::fill(&mut uuid)?;
    getrandom::fill(&mut salt)?;
    let region = Region::memfd("remanence-pool", size)?;
    Pool::create(region, Uuid(uuid), u64::from_le_bytes(salt))
        .map_err(|error| FileError::Pool { path, error })
}

/// What a file has that begins so; nothing of it is changed if it is no pool.
fn image(head: &[u8], len: u64) -> Image {
    match head.get(..BLOCK as usize).map(|block| Superblock::parse(block, len)) {
        Some(Ok(_)) => Image::Ours { len },
        Some(Err(_)) | None => Image::Foreign,
    }
}

fn making(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".making");
    name.into()
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn open(path: &Path, size: Option<u64>) -> Result<(Pool<Region>, bool), String> {
        open_or_make(path, size, SIZE, None).map_err(|e| e.to_string())
    }

    #[test]
    fn a_pool_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let (first, made) = open(&path, None).expect("made");
        assert!(made);
        let uuid = first.uuid();
        let busy = open(&path, None).expect_err("locked");
        assert!(busy.contains("in use"), "{busy}");
        drop(first);
        let (second, made) = open(&path, Some(SIZE)).expect("found");
        assert_eq!((second.uuid(), made), (uuid, false));
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "nothing else is left");
    }

    #[test]
    fn what_is_no_pool_is_left_alone_and_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let say = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("written");
            let sentence = open(&path, None).expect_err("no pool");
            assert_eq!(fs::read(&path).expect("readable"), bytes, "untouched");
            sentence
        };
        assert!(say(b"").contains("too few for a pool"));
        assert!(say(b"#!/bin/sh\n").contains("too few for a pool"));
        assert!(say(&vec![b'x'; 100_000]).contains("not a pool file"));
        assert!(say(&vec![0; 100_000]).contains("only zeros"));
    }

    #[test]
    fn a_truncated_a_grown_and_another_versions_pool_are_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        drop(open(&path, None).expect("made"));
        let whole = fs::read(&path).expect("readable");
        let say = |bytes: &[u8], size| {
            fs::write(&path, bytes).expect("written");
            open(&path, size).expect_err("unfit")
        };
        assert!(say(&whole[..500_000], None).contains("truncated: 500000 of 1048576 bytes are left"));
        assert!(say(&[&whole[..], &[0; 4096]].concat(), None).contains("truncate -s 1048576"));
        assert!(say(&whole, Some(2 * SIZE)).contains("leave --size out"));
        let mut other = whole;
        other[8] = 9;
        assert!(say(&other, None).contains("format version 9"));
    }

    #[test]
    fn what_an_interrupted_attempt_left_is_cleared_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        fs::write(making(&path), vec![1; 5000]).expect("written");
        assert!(open(&path, None).expect("made").1);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
    }
}
