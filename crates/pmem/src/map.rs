//! The mapping system calls, and the arithmetic of pages.
//!
//! The promise of this room: a [`Mapping`] is alive for as long as the value is, and nobody else unmaps it.
#![expect(unsafe_code, reason = "mmap and friends")]

use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::ptr;

use crate::Error;

/// Bytes in a page of this machine.
pub(crate) fn page_size() -> usize {
    // SAFETY: reads a constant.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("a page has a size")
}

/// Bytes in a huge page.
const HUGE: usize = 2 << 20;

fn whole_pages(len: u64) -> Result<usize, Error> {
    let page = page_size() as u64;
    let rounded = len.checked_next_multiple_of(page).filter(|rounded| *rounded <= i64::MAX as u64 && len > 0);
    rounded.and_then(|rounded| usize::try_from(rounded).ok()).ok_or(Error::BadLength { len })
}

/// A live mapping, unmapped when dropped; or memory that somebody else owns.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    /// Whole pages of ours; zero for foreign memory.
    mapped: usize,
}

// SAFETY: a mapping is an address range of the process, not of a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; whoever reaches through `base` answers for races.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file, with MAP_SYNC if it can be (then stores are durable by cache-line write-back alone), and says
    /// whether it could.
    pub(crate) fn file(file: &File, len: u64) -> Result<(Self, bool), Error> {
        let mapped = whole_pages(len)?;
        if let Ok(mapping) = map(mapped, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, file.as_raw_fd()) {
            return Ok((mapping, true));
        }
        let mapping = map(mapped, libc::MAP_SHARED, file.as_raw_fd());
        Ok((mapping.map_err(|e| Error::os(format!("mapping {len} bytes of the file"), e))?, false))
    }

    /// Maps a file that may be open for reading only; what is written to the pages stays in this process.
    pub(crate) fn copy(file: &File, len: u64) -> Result<Self, Error> {
        let mapped = whole_pages(len)?;
        let mapping = map(mapped, libc::MAP_PRIVATE | libc::MAP_NORESERVE, file.as_raw_fd());
        mapping.map_err(|e| Error::os(format!("mapping {len} bytes of the file"), e))
    }

    /// Memory of this process alone.
    pub(crate) fn anonymous(len: u64) -> Result<Self, Error> {
        let mapped = whole_pages(len)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = map(mapped, flags, -1).map_err(|e| Error::os(format!("mapping {len} bytes"), e))?;
        // Small ones lie side by side, and are one to the kernel: with huge pages the first byte of one would be memory for many.
        mapping.advise(if mapped < HUGE { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE });
        Ok(mapping)
    }

    /// Memory that stays somebody else's.
    pub(crate) const fn foreign(base: *mut u8) -> Self {
        Self { base, mapped: 0 }
    }

    /// The first byte.
    pub(crate) const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes mapped, in whole pages; zero for foreign memory.
    pub(crate) const fn mapped(&self) -> usize {
        self.mapped
    }

    /// Makes every page present and writable now, so that no first access has to. Best effort: a kernel without it
    /// (before 5.14) takes the faults later.
    pub(crate) fn populate(&self) {
        self.advise(libc::MADV_POPULATE_WRITE);
    }

    fn advise(&self, advice: c_int) {
        if self.mapped > 0 {
            // SAFETY: the range is ours; the advice changes no content. Its failure costs speed only.
            unsafe { libc::madvise(self.base.cast(), self.mapped, advice) };
        }
    }

    /// Has the kernel write these whole pages to the device, and flush its cache.
    pub(crate) fn msync(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = self.base.wrapping_add(offset);
        // SAFETY: msync reads the mapping only, and answers ENOMEM if a page of it is not mapped.
        check(unsafe { libc::msync(start.cast(), len, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: this mapping is ours, and this is the last use of it.
            unsafe { libc::munmap(self.base.cast(), self.mapped) };
        }
    }
}

fn map(mapped: usize, flags: c_int, fd: c_int) -> io::Result<Mapping> {
    // SAFETY: the kernel chooses an address range that nobody uses.
    let base =
        unsafe { libc::mmap(ptr::null_mut(), mapped, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if base == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(Mapping { base: base.cast(), mapped })
    }
}

/// Puts a page of zeros where a page of a mapping of ours has become unreachable. Safe to call in a signal handler.
///
/// # Safety
/// The page lies in a live [`Mapping`].
pub(crate) unsafe fn replace_page(page: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's; the page belongs to a region, and nobody holds a reference into it.
    let base = unsafe { libc::mmap(page as *mut c_void, page_size(), prot, flags, -1, 0) };
    base != libc::MAP_FAILED
}

/// Makes the pages of a range present, to be read or also written. `EFAULT`: somewhere nothing is mapped, or not so that
/// it can be.
pub(crate) fn make_present(start: usize, len: usize, write: bool) -> io::Result<()> {
    let fault = || Err(io::Error::from_raw_os_error(libc::EFAULT));
    let page = page_size();
    let first = start & !(page - 1);
    let Some(end) = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return fault();
    };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let populate = |from: usize, len: usize| loop {
        // SAFETY: the pages become present as if somebody had touched them, which changes no content; where nothing
        // is mapped the kernel says so.
        let done = check(unsafe { libc::madvise(ptr::without_provenance_mut(from), len, advice) });
        match done {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
            other => return other,
        }
    };
    match populate(first, end - first) {
        Ok(()) => Ok(()),
        // Kernels before 5.14 do not know the advice, not even for nothing.
        Err(_) if populate(first, 0).is_err() => is_mapped(first, end - first),
        Err(e) if e.raw_os_error() == Some(libc::EHWPOISON) => Err(e),
        Err(_) => fault(),
    }
}

/// Whether all of a range of pages is mapped at all.
fn is_mapped(start: usize, len: usize) -> io::Result<()> {
    const PAGES: usize = 4096;
    let mut present = [0_u8; PAGES];
    let page = page_size();
    for at in (0..len).step_by(PAGES * page) {
        let part = (len - at).min(PAGES * page);
        let from = ptr::without_provenance_mut(start + at);
        // SAFETY: the kernel writes a byte for each page, and reads nothing of the range.
        check(unsafe { libc::mincore(from, part, present.as_mut_ptr()) })
            .map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    }
    Ok(())
}

/// Whether the kernel accepts a MAP_SYNC mapping of the file's first page.
pub(crate) fn accepts_map_sync(file: &File) -> bool {
    map(page_size(), libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, file.as_raw_fd()).is_ok()
}

/// A file without a name in a directory: it goes when it is closed, unless it is [named](name_file).
pub(crate) fn unnamed_file(directory: &Path) -> io::Result<File> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC, 0o600) };
    check(fd)?;
    // SAFETY: a new descriptor that nobody else knows.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives a file that has no name one, in the directory that it was made in. Fails if that is taken.
pub(crate) fn name_file(file: &File, path: &Path) -> io::Result<()> {
    let this = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths are C strings that outlive the call.
    check(unsafe { libc::linkat(here, this.as_ptr(), here, path.as_ptr(), follow) })
}

/// A file in memory, of fixed length: its seals keep every holder from cutting it short under the others.
pub(crate) fn memfd(name: &str, len: u64) -> Result<File, Error> {
    let what = || format!("making the memfd {name}");
    let name = CString::new(name).map_err(|e| Error::os(what(), e.into()))?;
    // SAFETY: the name is a C string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(Error::last_os(what()));
    }
    // SAFETY: a new descriptor that nobody else knows.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(whole_pages(len)? as u64).map_err(|e| Error::os(what(), e))?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: changes flags of a file of ours.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
        .map_err(|e| Error::os(what(), e))?;
    Ok(file)
}

/// How long a file may be that this process writes, if there is a limit to that.
pub(crate) fn file_size_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the structure, which outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) }).ok()?;
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Reserves every block of the file up to `len` and makes it that long.
///
/// What cannot fit is refused before anything is taken: a file system may hand out all that it has before it says that it
/// has no more, and for that moment nobody else could write.
pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
    has_room(file, len)?;
    let len = i64::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: changes a file of ours.
        match check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) }) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            other => return other,
        }
    }
}

/// Where the first hole of a file is, or its end: blocks that are reserved and were never written are one, to file systems that tell.
#[cfg(test)]
pub(crate) fn first_hole(file: &File) -> io::Result<u64> {
    // SAFETY: moves the position of a descriptor of ours.
    let at = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    u64::try_from(at).map_err(|_| io::Error::last_os_error())
}

/// Whether a file could have so many bytes by what its file system still has, of which nothing is taken.
pub(crate) fn has_room(file: &File, len: u64) -> io::Result<()> {
    let missing = len.saturating_sub(file.metadata()?.blocks() * 512);
    if free_bytes(file)?.is_some_and(|free| missing > free) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    Ok(())
}

/// What the file system of a file still has, in bytes, with what it keeps for root; `None` if it does not count.
fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    // SAFETY: numbers only, for which zeros are values.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: writes into a structure of ours.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut found) })?;
    Ok((found.f_blocks != 0).then(|| found.f_bfree.saturating_mul(found.f_frsize)))
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ext4 takes block after block until there is none left, and leaves them with the file. (Its files can be that long.)
    #[test]
    fn what_cannot_fit_takes_nothing_from_others() {
        let path = std::env::temp_dir().join(format!("remanence-pmem-{}-huge", std::process::id()));
        let file = File::create(&path).expect("a file");
        let refused = reserve(&file, 15 << 40).map_err(|e| e.raw_os_error());
        let taken = file.metadata().expect("it is open").blocks();
        let fits = reserve(&file, 1 << 20).map(|()| file.metadata().expect("it is open").len());
        std::fs::remove_file(&path).expect("removed");
        assert_eq!((refused, taken), (Err(Some(libc::ENOSPC)), 0));
        assert_eq!(fits.map_err(|e| e.raw_os_error()), Ok(1 << 20));
    }

    /// What the kernel was told of the memory at an address.
    fn flags(at: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            if let Some((from, to)) = ends {
                inside = (from..to).contains(&at);
            }
            if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return format!("{flags} ");
            }
        }
        panic!("nothing is mapped there")
    }

    #[test]
    fn many_small_mappings_are_not_one_huge_page() {
        let small = Mapping::anonymous(HUGE as u64 / 8).expect("memory");
        let large = Mapping::anonymous(HUGE as u64).expect("memory");
        let (small, large) = (flags(small.base() as usize), flags(large.base() as usize));
        assert!(small.contains(" nh ") && !small.contains(" hg "), "{small}");
        assert!(large.contains(" hg ") && !large.contains(" nh "), "{large}");
    }
}
