//! The limit of durable writes to a disk: blocks of a file that were written before, so that writing them anew is no matter of
//! their allocation, and an fdatasync after each.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the file, and of each write to it.
const LEN: u64 = 8 << 20;
pub(crate) const WRITE: u64 = 4096;
/// What a burst is, for a report's parameters.
pub(crate) const WORDS: &str =
    "4 KiB to blocks that were written before, one after the other, an fdatasync after each";

/// A file that is written bare. Dropped, it is removed.
pub(crate) struct BareFile {
    file: File,
    path: PathBuf,
    at: u64,
}

impl BareFile {
    pub(crate) fn new(path: &Path) -> Result<Self, String> {
        let said = |e: std::io::Error| format!("{}: {e}", path.display());
        std::fs::write(path, vec![1; LEN as usize]).map_err(said)?;
        let file = OpenOptions::new().write(true).open(path).map_err(said)?;
        file.sync_all().map_err(said)?;
        Ok(Self { file, path: path.to_owned(), at: 0 })
    }

    fn write(&mut self) -> Result<(), String> {
        let written = self.file.write_all_at(&[2; WRITE as usize], self.at);
        self.at = (self.at + WRITE) % LEN;
        written.and_then(|()| self.file.sync_data()).map_err(|e| format!("{}: {e}", self.path.display()))
    }
}

impl Drop for BareFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Writes to all of the files at once, again and again for a while; microseconds until the last one is synced.
pub(crate) fn write_at_once(files: &mut [BareFile], burst: Duration) -> Result<Vec<f64>, String> {
    let (first, others) = files.split_first_mut().ok_or("a file at least")?;
    let round = Barrier::new(others.len() + 1);
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let threads: Vec<_> = others
            .iter_mut()
            .map(|file| {
                scope.spawn(|| {
                    let mut result = Ok(());
                    loop {
                        round.wait();
                        if !goes_on.load(Ordering::Acquire) {
                            return result;
                        }
                        result = result.and(file.write());
                        round.wait();
                    }
                })
            })
            .collect();
        let (begin, mut values, mut result) = (Instant::now(), Vec::new(), Ok(()));
        while (values.is_empty() || begin.elapsed() < burst) && result.is_ok() {
            let start = Instant::now();
            round.wait();
            result = first.write();
            round.wait();
            values.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        goes_on.store(false, Ordering::Release);
        round.wait();
        for thread in threads {
            result = result.and(thread.join().map_err(|_| "a thread that writes has panicked".to_owned())?);
        }
        result.map(|()| values)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_at_once_and_go_when_they_are_done_with() {
        let path = |n: u32| std::env::temp_dir().join(format!("rem-bare-{}-{n}", std::process::id()));
        let mut files = [0, 1].map(|n| BareFile::new(&path(n)).expect("there is room"));
        let values = write_at_once(&mut files, Duration::ZERO).expect("they are written");
        assert_eq!(values.len(), 1, "one round at least, however short the burst");
        for n in [0, 1] {
            let bytes = std::fs::read(path(n)).expect("it is there");
            assert_eq!((bytes.len() as u64, bytes[0], bytes[WRITE as usize]), (LEN, 2, 1));
        }
        drop(files);
        assert!(!path(0).exists() && !path(1).exists());
    }
}
