//! Which file the packets of a context are recorded to.
//!
//! All processes of a run have the same environment, and with it the same file name. The first one to come takes the
//! file, for as long as it lives; the others write beside it.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file that no other context of any process writes.
pub(crate) fn file(wanted: &Path) -> PathBuf {
    /// Contexts of this process that record.
    static USED: AtomicU32 = AtomicU32::new(0);
    if let Ok(file) = OpenOptions::new().create(true).append(true).open(wanted)
        && lock(&file)
    {
        // The lock is the process's for good: it goes when the descriptor does, which is never closed by us.
        std::mem::forget(file);
        return wanted.to_owned();
    }
    let mut name = wanted.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let n = USED.fetch_add(1, Ordering::Relaxed);
    if n > 0 {
        name.push(format!(".{n}"));
    }
    name.into()
}

fn lock(file: &File) -> bool {
    // SAFETY: an open descriptor; the call touches no memory.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[cfg(test)]
mod tests {
    use super::file;

    #[test]
    fn the_first_takes_the_name_and_each_other_its_own() {
        let wanted = std::env::temp_dir().join(format!("remanence-capture-test.{}", std::process::id()));
        let names = [file(&wanted), file(&wanted), file(&wanted)];
        let me = std::process::id();
        assert_eq!(names[0], wanted);
        assert_eq!(names[1].to_string_lossy(), format!("{}.{me}", wanted.display()));
        assert_eq!(names[2].to_string_lossy(), format!("{}.{me}.1", wanted.display()));
        std::fs::remove_file(&wanted).expect("it was made");
    }
}
