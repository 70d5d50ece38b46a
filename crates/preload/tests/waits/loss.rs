//! The loss of what the kernel had in memory, as far as it can be feigned for some files.
#![expect(unsafe_code, reason = "a system call without a wrapper")]

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::cache::{Cache, Old};

/// `F_SET_RW_HINT`.
const SET_HINT: i32 = 1024 + 12;

/// Has the kernel forget that it has had this in memory all the time.
fn forget(path: &Path) {
    let (file, nothing) = (File::open(path).expect("it is there"), 0_u64);
    // SAFETY: reads a word of ours.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), SET_HINT, &raw const nothing) }, 0);
}

/// Files are what they were, with the time that they had.
pub(crate) fn put_back(old: &Old) {
    for (path, bytes, modified) in old.0.values() {
        let file = File::options().write(true).open(path).expect("it is there");
        file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).expect("room");
        file.set_modified(*modified).expect("its owner may");
    }
}

/// The same, as after the loss of the machine: nothing of the daemon is left but its log.
pub(crate) fn feign(cache: &Cache, old: &Old) {
    put_back(old);
    for (path, ..) in old.0.values() {
        forget(path);
        forget(path.parent().expect("a directory"));
    }
    let _ = fs::remove_file(cache.segment());
}
