//! Where a sync of the log is shorter than that of a file: on ext4 without a journal, which writes a file's inode with each sync, as its time is new, and waits for that.
//!
//! There it is enough that the log's pages are written and then the cache of the device, as all blocks of the log were written before and so nothing else is to be. The second is what a sync
//! of any file does that has nothing to be written; the root of the file system is one, and its inode is in no block with those of files that programs change.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::sys;

/// The root of the file system of a log at a path, if the log is synced by it. A journal could have something to be written of the log's data as well, or of where they are.
pub(super) fn root_of(path: &Path, log: &File) -> Option<File> {
    /// The inode of the root, of ext2 and its successors.
    const ROOT: u64 = 2;
    const EXT: u64 = 0xef53;
    let found = log.metadata().ok()?;
    let is_ext = rustix::fs::fstatfs(log).is_ok_and(|system| system.f_type as u64 == EXT);
    if !is_ext || has_journal(found.dev()) || !sys::is_all_written(log.as_raw_fd(), found.len()) {
        return None;
    }
    let path = fs::canonicalize(path).ok()?;
    let is_root = |root: &File| root.metadata().is_ok_and(|it| (it.dev(), it.ino()) == (found.dev(), ROOT));
    path.ancestors().skip(1).filter_map(|directory| File::open(directory).ok()).find(is_root)
}

/// Whether an ext4 has a journal, as far as can be told.
fn has_journal(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let name = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
    let name =
        name.ok().and_then(|device| device.file_name().map(|name| Path::new("/sys/fs/ext4").join(name)));
    let task = name.and_then(|name| fs::read_to_string(name.join("journal_task")).ok());
    task.is_none_or(|task| task.trim() != "<none>")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    #[test]
    fn a_file_is_all_written_when_each_byte_of_it_was() {
        const LEN: u64 = 1 << 20;
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let file = File::create_new(directory.path().join("file")).expect("room");
        let is_written = || sys::is_all_written(file.as_raw_fd(), LEN);
        file.set_len(LEN).expect("a file");
        assert!(!is_written(), "it is a hole");
        if fallocate(&file, FallocateFlags::empty(), 0, LEN).is_ok() {
            assert!(!is_written(), "its blocks were never written");
        }
        file.write_all_at(&[1; LEN as usize / 2], 0).expect("room");
        assert!(!is_written(), "half of it");
        file.write_all_at(&[1; LEN as usize / 2], LEN / 2).expect("room");
        if rustix::fs::fstatfs(&file).is_ok_and(|system| system.f_type as u64 == 0xef53) {
            assert!(is_written());
        }
    }
}
