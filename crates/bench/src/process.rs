//! Servers of our own that a bench starts as a user does; they are ready when they say so, and end when what holds them goes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A `rem … serve --json --stop-on-eof`, which ends when we do, in whatever way.
pub(crate) struct Server(Child);

impl Server {
    /// Starts it, and waits until it is ready: what it says then, and where it says more.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(mut command: Command) -> Result<(Self, Value, BufReader<ChildStdout>), String> {
        command.args(["--json", "--stop-on-eof"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = Path::new(command.get_program()).display().to_string();
        let mut this = Self(command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?);
        let mut lines = BufReader::new(this.0.stdout.take().ok_or("no standard output")?);
        let mut line = String::new();
        lines.read_line(&mut line).map_err(|e| e.to_string())?;
        let ready = serde_json::from_str(&line).map_err(|_| "a server does not start; it says above why")?;
        Ok((this, ready, lines))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
