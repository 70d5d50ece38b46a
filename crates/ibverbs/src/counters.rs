//! What the devices counted, for who reads `/sys/class/infiniband/DEVICE/ports/1/{hw_counters,counters}`.
//!
//! A kernel answers when it is asked; here the files are plain ones, made by `rem verbs` (`view.rs` of `remanence-cli`),
//! and every process that has the device open adds what it counted to what is there. So they count for all processes of
//! the host's view together, and go on when one has ended. A kernel's hardware counters are up to `lifespan` old, 10 ms;
//! so are these while something happens. A process without that view, which is one that was not started by `rem verbs`,
//! does nothing here. What ends without closing its device loses what it counted in its last moments: to wait for that
//! would be the end of programs such as rping, whose threads use what was destroyed until exit ends them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use remanence_link::without_signals;

use crate::abi::*;
use crate::context::Ctx;
use crate::per_process::PerProcess;
use crate::sysfs;

/// How old the files may be while something happens: `RDMA_HW_STATS_DEFAULT_LIFESPAN` of Linux.
const LIFESPAN: Duration = Duration::from_millis(10);
/// How often a device is looked at that has nothing to do.
const IDLE: Duration = Duration::from_millis(100);
/// How often a device that is closed tries to make its last additions, a millisecond apart, should another one be stopped in the midst of its own.
const LAST_TRIES: u32 = 200;

/// A device of this process whose counters somebody may read.
struct CountedDevice {
    block: *mut verbs_context,
    /// `ports/1`
    port: PathBuf,
    /// What is in the files already, of ours.
    added: Vec<u64>,
}

// SAFETY: the pointer is compared, and followed only while the device is open, as `closed` says.
unsafe impl Send for CountedDevice {}

#[derive(Default)]
struct Board {
    shown: Vec<CountedDevice>,
    /// Somebody adds, every now and then.
    served: bool,
}

#[derive(Default)]
struct Scribe {
    board: Mutex<Board>,
    news: Condvar,
}

fn scribe() -> &'static Scribe {
    static SCRIBE: PerProcess<Scribe> = PerProcess::new();
    SCRIBE.get()
}

impl Scribe {
    fn lock(&self) -> MutexGuard<'_, Board> {
        // Every change is whole before anything can panic.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its thread: adds until no device is left that is shown.
    fn serve(&'static self) {
        let mut period = LIFESPAN;
        let mut board = self.lock();
        while !board.shown.is_empty() {
            let mut changed = false;
            for shown in &mut board.shown {
                changed |= shown.add() != Added::Nothing;
            }
            period = if changed { LIFESPAN } else { (2 * period).min(IDLE) };
            let waited = self.news.wait_timeout_while(board, period, |board| !board.shown.is_empty());
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        board.served = false;
    }
}

/// What came of adding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Added {
    Nothing,
    /// Everything that was new.
    All,
    /// It is left for the next time: another process is adding.
    Later,
}

impl CountedDevice {
    /// Adds what is new.
    fn add(&mut self) -> Added {
        // SAFETY: a block that is shown is open, and is not closed while the board is locked, as it is here.
        let context = unsafe { &(*(*self.block).priv_.cast::<Ctx>()).context };
        let (stats, refused) = (context.stats(), context.link_stats().tx_failed);
        let counters =
            stats.hw_counters(refused).into_iter().map(|(name, value)| ("hw_counters", name, value)).chain(
                stats.port_counters(refused).into_iter().map(|(name, value)| ("counters", name, value)),
            );
        let counters: Vec<_> = counters.collect();
        self.added.resize(counters.len(), 0);
        if counters.iter().zip(&self.added).all(|(counter, added)| counter.2 == *added) {
            return Added::Nothing;
        }
        let Ok(held) = hold(&self.port) else { return Added::Later };
        for ((directory, name, value), added) in counters.into_iter().zip(&mut self.added) {
            if value > *added {
                // A file that somebody took away counts nothing.
                let _ = add(&self.port.join(directory).join(name), value - *added);
                *added = value;
            }
        }
        drop(held);
        Added::All
    }

    /// As `add`, for who has no next time.
    fn add_last(&mut self) {
        for _ in 0..LAST_TRIES {
            if self.add() != Added::Later {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The right to change the files of a port, which one process has at a time.
fn hold(port: &Path) -> io::Result<File> {
    let directory = File::open(port.join("hw_counters"))?;
    directory.try_lock().map_err(|why| match why {
        std::fs::TryLockError::Error(why) => why,
        std::fs::TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
    })?;
    Ok(directory)
}

/// Adds to the number in a file. It never gets shorter, so that it is written in its place, and readers that keep the file
/// open see it.
fn add(file: &Path, more: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let mut text = [0; 32];
    let len = file.read_at(&mut text, 0)?;
    let number = std::str::from_utf8(&text[..len]).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let number = number.unwrap_or(0).wrapping_add(more);
    file.write_all_at(format!("{number}\n").as_bytes(), 0)
}

/// The port's directory, if it is one that we may write to.
fn port_of(device: &str) -> Option<PathBuf> {
    let port = Path::new(sysfs::path()).join("class/infiniband").join(device).join("ports/1");
    OpenOptions::new().write(true).open(port.join("hw_counters/sent_pkts")).ok().map(|_| port)
}

/// A device was opened: it is shown, where that can be.
pub(crate) fn opened(block: *mut verbs_context, device: &str) {
    let Some(port) = port_of(device) else { return };
    let scribe = scribe();
    let mut board = scribe.lock();
    board.shown.push(CountedDevice { block, port, added: Vec::new() });
    if !board.served {
        let thread = thread::Builder::new().name("counters".into());
        board.served = without_signals(|| thread.spawn(|| scribe.serve())).is_ok();
    }
}

/// It is about to be closed.
pub(crate) fn closed(block: *mut verbs_context) {
    let scribe = scribe();
    let mut board = scribe.lock();
    if let Some(at) = board.shown.iter().position(|shown| shown.block == block) {
        board.shown.swap_remove(at).add_last();
        scribe.news.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_in_their_place() {
        let dir = std::env::temp_dir().join(format!("remanence-counters.{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("sent_pkts");
        std::fs::write(&file, "0\n").expect("written");
        let reader = File::open(&file).expect("it is there");
        for (more, sum) in [(9, "9\n"), (1, "10\n"), (89, "99\n"), (u64::from(u32::MAX), "4294967394\n")] {
            add(&file, more).expect("added");
            let mut text = [0; 32];
            let len = reader.read_at(&mut text, 0).expect("read");
            assert_eq!(std::str::from_utf8(&text[..len]), Ok(sum));
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
