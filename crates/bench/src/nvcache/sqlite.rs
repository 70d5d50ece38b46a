//! sqlite3, unmodified: its shell, which reads statements from a pipe.
//!
//! What the shell itself costs is in all of its figures; a database in its memory (`:memory:`) has nothing else.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ends::Found;
use crate::process::{Running, spawn};
use crate::role::{Causes, Counters};

/// Statements that are asked for together, and timed together: one row each, and a transaction each.
const TOGETHER: u64 = 16;
/// Transactions before it counts.
const WARM: u64 = 4;
/// Bytes of a row, about.
const ROW: usize = 100;
/// Seconds that an answer may take.
const PATIENCE: i64 = 30;

/// A journal of SQLite's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Journal {
    Wal,
    Delete,
}

impl Journal {
    pub(super) const ALL: [Self; 2] = [Self::Wal, Self::Delete];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Wal => "WAL",
            Self::Delete => "DELETE",
        }
    }
}

/// What it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Work {
    /// A row for each transaction.
    Insert(Journal),
    /// A row of so many, drawn.
    Select(u64),
}

/// A shell with a database that is new.
struct Shell {
    child: Running,
    input: Option<ChildStdin>,
    output: ChildStdout,
    rows: u64,
}

impl Shell {
    fn start(under: &[OsString], database: &str, journal: Journal) -> Result<Self, String> {
        let words = under.iter().cloned().chain([OsString::from("sqlite3")]).collect::<Vec<_>>();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["-batch", "-bail", database]);
        let child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut child = child.map_err(|e| format!("sqlite3 cannot be started: {e}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no standard output")?;
        let mut this = Self { child: Running(child), input, output, rows: 0 };
        this.ask(&format!(
            "PRAGMA journal_mode={}; PRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\n",
            journal.word()
        ))?;
        Ok(this)
    }

    /// Has statements carried out, and waits until they are.
    fn ask(&mut self, statements: &str) -> Result<(), String> {
        const DONE: &[u8] = b"\ndone\n";
        let input = self.input.as_mut().ok_or("it has ended")?;
        // An empty line in front: whatever it printed before ends somewhere.
        let all = format!("{statements}.print \"\\ndone\"\n");
        input.write_all(all.as_bytes()).map_err(|e| format!("sqlite3 reads nothing any more: {e}"))?;
        let (mut said, mut some) = (Vec::new(), [0; 4096]);
        while !said.ends_with(DONE) {
            let mut fds = [PollFd::new(&self.output, PollFlags::IN)];
            let patience = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
            match poll(&mut fds, Some(&patience)) {
                Ok(0) => return Err(format!("sqlite3 does not answer for {PATIENCE} s")),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.to_string()),
            }
            match self.output.read(&mut some).map_err(|e| e.to_string())? {
                0 => return Err("sqlite3 has ended; it says above why".into()),
                n => said.extend(&some[..n]),
            }
        }
        Ok(())
    }

    fn insert(&mut self, rows: u64) -> Result<(), String> {
        let mut all = String::new();
        for _ in 0..rows {
            self.rows += 1;
            all += &format!("INSERT INTO t(v) VALUES('{:x>ROW$}');\n", self.rows);
        }
        self.ask(&all)
    }

    /// Has it carry out so many statements of this kind.
    fn some(&mut self, work: Work, random: &mut fastrand::Rng) -> Result<(), String> {
        match work {
            Work::Insert(_) => self.insert(TOGETHER),
            Work::Select(rows) => {
                let one = |_| format!("SELECT length(v) FROM t WHERE id={};\n", random.u64(1..=rows));
                let all: String = (0..TOGETHER).map(one).collect();
                self.ask(&all)
            }
        }
    }

    /// Ends it in order, so that it takes its files of a moment away.
    fn end(mut self) -> Result<(), String> {
        drop(self.input.take());
        let status = self.child.0.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("sqlite3 ended with {status}")) }
    }
}

/// A burst of it, on a database that is made for it and removed, in this directory, or in its memory; and what it counted.
pub(super) fn burst(
    under: &[OsString],
    directory: Option<&Path>,
    work: Work,
    time: Duration,
) -> Result<(Found, Causes), String> {
    let database = directory.map(|directory| directory.join("sqlite.db"));
    let name = database.as_ref().map_or_else(|| ":memory:".to_owned(), |path| path.display().to_string());
    remove(database.as_deref());
    let journal = if let Work::Insert(journal) = work { journal } else { Journal::Wal };
    let mut shell = Shell::start(under, &name, journal)?;
    let mut random = fastrand::Rng::with_seed(11);
    match work {
        Work::Insert(_) => shell.insert(WARM)?,
        Work::Select(rows) => {
            shell.ask("BEGIN;\n")?;
            shell.insert(rows)?;
            shell.ask("COMMIT;\n")?;
        }
    }
    let counters = Counters { programs: vec![shell.child.0.id()], ..Counters::default() };
    let before = counters.read();
    let (mut found, begin) = (Found::default(), Instant::now());
    let mut last = begin;
    while found.nanos.is_empty() || last - begin < time {
        shell.some(work, &mut random)?;
        let now = Instant::now();
        let each = (now - last).as_nanos() / u128::from(TOGETHER);
        found.nanos.push(u32::try_from(each).unwrap_or(u32::MAX));
        last = now;
    }
    let operations = found.nanos.len() as u64 * TOGETHER;
    found.rate = operations as f64 / ((last - begin).as_secs_f64() * 1e6);
    let causes = counters.read().since(&before);
    shell.end()?;
    remove(database.as_deref());
    Ok((found, causes))
}

/// How many operations a burst was of.
pub(super) fn operations(found: &Found) -> u64 {
    found.nanos.len() as u64 * TOGETHER
}

fn remove(database: Option<&Path>) {
    let Some(database) = database else { return };
    for more in ["", "-wal", "-shm", "-journal"] {
        let mut path = database.as_os_str().to_owned();
        path.push(more);
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Directory;

    #[test]
    fn rows_are_written_and_read_by_the_shell_itself_and_nothing_stays() {
        if std::process::Command::new("sqlite3").arg("--version").output().is_err() {
            println!("SKIPPED: sqlite3 is not installed; `apt-get install sqlite3` brings it");
            return;
        }
        let place = std::env::temp_dir().join(format!("rem-sqlite-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("room");
        let place = Directory(place);
        let all = [Work::Insert(Journal::Wal), Work::Insert(Journal::Delete), Work::Select(20)];
        for work in all {
            for directory in [Some(&*place.0), None] {
                let (found, _) = burst(&[], directory, work, Duration::ZERO).expect("it runs");
                assert_eq!((found.nanos.len(), operations(&found)), (1, TOGETHER), "{work:?}");
                assert!(found.rate > 0.0);
            }
            assert_eq!(std::fs::read_dir(&place.0).expect("it is there").count(), 0, "{work:?}");
        }
        assert!(burst(&[], Some(Path::new("/nowhere/at/all")), all[0], Duration::ZERO).is_err());
    }
}
