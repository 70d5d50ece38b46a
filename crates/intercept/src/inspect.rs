//! What a program is, and which of its system calls a hook would not see: before it is started, or while it runs.
//!
//! Read first: `image.rs` and `plan.rs`, which say this of bytes; here they are those of a file.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt};
use std::path::{Path, PathBuf};

use crate::image::{Elf, ElfError, Image, ProgramHeader};
use crate::plan::{Unpatched, plan};
use crate::scan::Scan;

/// What precedes the version in every program that Go's linker makes.
const GO: &[u8; 14] = b"\xff Go buildinf:";
/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`.
const IO_URING: std::ops::RangeInclusive<u32> = 425..=427;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Bytes of the largest file that is looked into: all of it is read.
const LARGEST: u64 = 4 << 30;

/// Which C library a program is linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Libc {
    /// That of GNU.
    Glibc,
    /// The one of Alpine Linux.
    Musl,
    /// Another dynamic loader than these two have.
    Other,
    /// None that is loaded: the program is static.
    Static,
}

/// What is to be known of a program, or of a library.
#[derive(Clone, Debug)]
pub struct Report {
    /// The file that was looked into.
    pub path: PathBuf,
    /// Its dynamic loader, if it has one.
    pub interpreter: Option<String>,
    /// Its C library.
    pub libc: Libc,
    /// The libraries that it names.
    pub needs: Vec<String>,
    /// The version of Go that it was made with, or an empty text if it does not say which.
    pub go: Option<String>,
    /// Whether the call is known, and can be patched, by which the Go runtime makes those of its program.
    pub go_site: bool,
    /// Whether it runs with other rights than its caller's (set-user-ID, set-group-ID): nothing is preloaded into it.
    pub privileged: bool,
    /// Whether it submits its requests through memory that the kernel polls or fetches, as far as can be seen.
    pub io_uring: bool,
    /// How many `syscall` instructions are in it.
    pub sites: usize,
    /// Those of them that cannot be patched.
    pub unpatched: Vec<(u64, Unpatched)>,
    /// Where code could not be decoded that would make a system call.
    pub unknown: Vec<u64>,
    /// Other instructions that enter the kernel: `int 0x80` and `sysenter`.
    pub others: Vec<u64>,
}

/// How all calls of a program that matter can be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By a hook in its C library: [`Scope::Libc`](crate::Scope::Libc).
    Libc,
    /// By a hook in all that is loaded: [`Scope::All`](crate::Scope::All).
    All,
    /// By a supervisor, to whom the kernel hands them: [`outside`](crate::outside).
    Outside,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Libc => "by a hook in its C library",
            Self::All => "by a hook in all that is loaded",
            Self::Outside => "by a supervisor, to whom the kernel hands them",
        })
    }
}

/// Something of a program that a hook in a preloaded library does not see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// No library is loaded into it.
    Static,
    /// The loader ignores what is to be preloaded.
    Privileged,
    /// Requests go around system calls.
    IoUring,
    /// It has system calls of its own beside those of the C library.
    Own(usize),
    /// The Go runtime makes the calls, not the C library.
    Go,
    /// Some sites cannot be patched.
    Unpatched(usize),
    /// It enters the kernel in other ways.
    Others(usize),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("it is static: no library can be preloaded into it"),
            Self::Privileged => {
                f.write_str("it is set-user-ID or set-group-ID: the loader ignores LD_PRELOAD for it")
            }
            Self::IoUring => f.write_str("it uses io_uring: what is submitted there is no system call"),
            Self::Own(count) => write!(
                f,
                "it has system calls of its own, at {count} places: the C library alone is not enough"
            ),
            Self::Go => {
                f.write_str("it is a Go program: its runtime makes the system calls, not the C library")
            }
            Self::Unpatched(count) => {
                write!(f, "{count} places where it may make a system call cannot be patched")
            }
            Self::Others(count) => {
                write!(f, "it enters the kernel by int 0x80 or sysenter at {count} places")
            }
        }
    }
}

impl Report {
    /// How its calls can be seen.
    ///
    /// # Errors
    /// They cannot, and this is why.
    pub fn way(&self) -> Result<Way, Obstacle> {
        let obstacles = self.obstacles();
        let never =
            obstacles.iter().find(|obstacle| matches!(obstacle, Obstacle::Privileged | Obstacle::Others(_)));
        if let Some(never) = never {
            return Err(*never);
        }
        let is_loaded = matches!(self.libc, Libc::Glibc | Libc::Musl);
        Ok(if !is_loaded || self.go.is_some() && !self.go_site {
            Way::Outside
        } else if obstacles.is_empty() {
            Way::Libc
        } else {
            Way::All
        })
    }

    /// What a hook that is preloaded would not see, the gravest first; empty if it sees all.
    #[must_use]
    pub fn obstacles(&self) -> Vec<Obstacle> {
        let cannot = self.unpatched.iter().filter(|(_, why)| *why != Unpatched::Sigreturn).count()
            + self.unknown.len();
        let rules = [
            (self.libc == Libc::Static, Obstacle::Static),
            (self.privileged, Obstacle::Privileged),
            (self.go.is_some(), Obstacle::Go),
            (self.io_uring, Obstacle::IoUring),
            (self.go.is_none() && self.libc != Libc::Static && self.sites > 0, Obstacle::Own(self.sites)),
            (cannot > 0, Obstacle::Unpatched(cannot)),
            (!self.others.is_empty(), Obstacle::Others(self.others.len())),
        ];
        rules.into_iter().filter(|(holds, _)| *holds).map(|(_, obstacle)| obstacle).collect()
    }
}

/// Why nothing can be said of a program.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// It cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// It is a script: its interpreter is what runs.
    #[error("{0} is a script: ask about its interpreter, {1}")]
    Script(PathBuf, String),
    /// It is no file that could be one.
    #[error("{0} is {1}, and no program")]
    NotAFile(PathBuf, &'static str),
    /// It is larger than any program.
    #[error("{0} has {1} bytes, and a program of more than {largest} is not looked into", largest = LARGEST)]
    TooLarge(PathBuf, u64),
    /// It is something else than a whole program of this architecture.
    #[error("{0}: {1}")]
    Elf(PathBuf, ElfError),
}

/// What a path leads to that is no file.
fn what_else(kind: std::fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Looks into the file of a program or library.
///
/// # Errors
/// As [`InspectError`] says.
pub fn inspect(path: impl AsRef<Path>) -> Result<Report, InspectError> {
    let path = path.as_ref().to_owned();
    let unreadable = |why| InspectError::Read(path.clone(), why);
    let metadata = std::fs::metadata(&path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(InspectError::NotAFile(path, what_else(metadata.file_type())));
    }
    if metadata.len() > LARGEST {
        return Err(InspectError::TooLarge(path, metadata.len()));
    }
    let (mode, mut bytes) = (metadata.mode(), Vec::new());
    // Some files have more than they say.
    File::open(&path).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes)).map_err(unreadable)?;
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let interpreter = String::from_utf8_lossy(&line[..line.len().min(128)]).trim().to_owned();
        return Err(InspectError::Script(path, interpreter));
    }
    match inspect_bytes(&bytes) {
        Ok(report) => Ok(Report { path, privileged: mode & (SET_USER | SET_GROUP) != 0, ..report }),
        Err(why) => Err(InspectError::Elf(path, why)),
    }
}

/// Looks into the bytes of a program, of which no path and no mode are known.
///
/// # Errors
/// They are something else than a whole program of this architecture.
pub fn inspect_bytes(bytes: &[u8]) -> Result<Report, ElfError> {
    let elf = Elf::parse(bytes)?;
    elf.check()?;
    let image = elf.image();
    let scan = Scan::of(&image);
    let (needs, named) = needs(&elf, &image);
    let interpreter = elf.interpreter().map(str::to_owned);
    let libc = match interpreter.as_deref() {
        Some(loader) if loader.contains("ld-musl") => Libc::Musl,
        Some(loader) if loader.contains("ld-linux") => Libc::Glibc,
        Some(_) => Libc::Other,
        None if needs.iter().any(|name| name.contains("musl")) => Libc::Musl,
        None if needs.iter().any(|name| name.starts_with("libc.so") || name.starts_with("ld-linux")) => {
            Libc::Glibc
        }
        None if elf.is_library() || named => Libc::Other,
        None => Libc::Static,
    };
    let ring = |number: Option<u32>| number.is_some_and(|number| IO_URING.contains(&number));
    let io_uring = scan.sites.iter().any(|site| ring(site.number))
        || needs.iter().any(|name| name.starts_with("liburing"));
    let planned = plan(&scan);
    let go_site = planned.iter().any(|(_, plan)| plan.as_ref().is_ok_and(|plan| plan.go));
    let unpatched = planned.iter().filter_map(|(site, plan)| Some((*site, *plan.as_ref().err()?))).collect();
    Ok(Report {
        path: PathBuf::new(),
        interpreter,
        libc,
        needs,
        go: go(bytes),
        go_site,
        privileged: false,
        io_uring,
        sites: scan.sites.len(),
        unpatched,
        unknown: scan.unknown,
        others: scan.others,
    })
}

/// The version of Go that a program was made with, empty if it is not where later versions have it; `None` if it is none of Go's.
pub(crate) fn go(bytes: &[u8]) -> Option<String> {
    /// Its bit says that the version follows behind 32 bytes.
    const INLINE: u8 = 2;
    let at = bytes.windows(GO.len()).step_by(16).position(|bytes| bytes == GO)? * 16;
    let version = || {
        let (flags, rest) = (bytes.get(at + 15)?, bytes.get(at + 32..)?);
        let (&length, text) = rest.split_first()?;
        let text = text.get(..usize::from(length)).filter(|_| flags & INLINE != 0 && length < 0x80)?;
        std::str::from_utf8(text).ok().map(str::to_owned)
    };
    Some(version().unwrap_or_default())
}

/// The names of the libraries that a file's dynamic section asks for, and whether it has a name itself, as libraries have.
fn needs(elf: &Elf<'_>, image: &Image<'_>) -> (Vec<String>, bool) {
    const OWN: u64 = 14;
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    let Some(header) = elf.headers.iter().find(|header| header.kind == ProgramHeader::DYNAMIC) else {
        return (Vec::new(), false);
    };
    let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let entries: Vec<(u64, u64)> = elf
        .content(header)
        .chunks_exact(16)
        .filter_map(|entry| Some((word(entry)?, word(&entry[8..])?)))
        .collect();
    let named = entries.iter().any(|(tag, _)| *tag == OWN);
    let strings = entries.iter().find(|(tag, _)| *tag == STRINGS).and_then(|&(_, at)| image.at(at));
    let strings = strings.unwrap_or_default();
    let name = |at: u64| {
        let rest = strings.get(usize::try_from(at).ok()?..)?;
        let name = rest.split(|&byte| byte == 0).next()?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    };
    let needed = entries.iter().filter(|(tag, _)| *tag == NEEDED);
    (needed.filter_map(|&(_, at)| name(at)).collect(), named)
}
