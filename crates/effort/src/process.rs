//! Other processes of a test: its own program once more, for one of its tests alone, listened to line by line.

use std::fs::{self, DirEntry};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// This program, to be run once more for this test of it alone, also where it is ignored as it is none by itself.
///
/// # Panics
/// The system does not say which program this is.
#[must_use]
pub fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// A process whose lines are read. It is killed when it is dropped, if it has not ended.
#[derive(Debug)]
pub struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process, whose output is read line by line.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, said }
    }

    /// The process itself, whose output is read here.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its next line; `None` when it has ended, even within one.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let is_whole = self.said.read_line(&mut line).is_ok() && line.ends_with('\n');
        is_whole.then(|| line.trim_end().to_owned())
    }

    /// What follows these words in the next line that has them, in which the test harness may have said something before; `None` when it
    /// has ended.
    pub fn after(&mut self, words: &str) -> Option<String> {
        loop {
            let line = self.line()?;
            if let Some((_, rest)) = line.split_once(words) {
                return Some(rest.to_owned());
            }
        }
    }

    /// SIGSTOP: it is there and does nothing, from when this returns until [it goes on](Self::go_on). The signal alone returns before all of its
    /// threads stand still.
    ///
    /// # Panics
    /// It has ended.
    pub fn hold(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let stands_still = |task: std::io::Result<DirEntry>| {
            let stat = fs::read_to_string(task.expect("a thread").path().join("stat")).unwrap_or_default();
            // The name before it may have any bytes.
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        while !fs::read_dir(&tasks).expect("it is there").all(stands_still) {
            std::thread::yield_now();
        }
    }

    /// SIGCONT: it goes on where it was held.
    ///
    /// # Panics
    /// It has ended.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success(), "{kill}");
    }

    /// SIGKILL, and its end. What it has said is still to be read.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
