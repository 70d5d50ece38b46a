//! The loss of what the kernel had in memory: as far as it can be feigned for some files, and for a whole file system of a test's own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use crate::cache::{Cache, Old};
use crate::disk::{Disk, hint};

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
        // The kernel forgets that it has had this in memory all the time.
        hint(path, 0);
        hint(path.parent().expect("a directory"), 0);
    }
    let _ = cache.segment().map(fs::remove_file);
}

impl Disk {
    /// Nobody changes anything there until it goes on.
    pub(crate) fn stand_still(&self, yes: bool) {
        let how = if yes { "--freeze" } else { "--unfreeze" };
        let done = Command::new("fsfreeze").arg(how).arg(&self.place).status().expect("a program");
        assert!(done.success(), "it is mounted");
    }
}
