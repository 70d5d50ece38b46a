//! Processes of the benches: servers that are ready when they say so, and agents that do what their controller asks for. Each of them
//! ends when what holds it goes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::marker::PhantomData;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How long a process may take to end when its input has.
const FAREWELL: Duration = Duration::from_secs(2);

/// A `rem … serve --json --stop-on-eof`, which ends when we do, in whatever way.
pub(crate) struct Server(Child);

impl Server {
    /// Starts it, and waits until it is ready: what it says then, and where it says more.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(mut command: Command) -> Result<(Self, Value, BufReader<ChildStdout>), String> {
        command.args(["--json", "--stop-on-eof"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut this = Self(spawn(&mut command)?);
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

fn spawn(command: &mut Command) -> Result<Child, String> {
    let name = Path::new(command.get_program()).display().to_string();
    command.spawn().map_err(|e| format!("cannot start {name}: {e}"))
}

/// The controller's hold on a process that [answers](answer) its requests.
pub(crate) struct Agent<Q, R> {
    process: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    speaks: PhantomData<(Q, R)>,
}

impl<Q: Serialize, R: DeserializeOwned> Agent<Q, R> {
    /// Starts a command that shall come to [`answer`].
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let mut process = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let requests = process.stdin.take();
        let replies = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Self { process, requests, replies, speaks: PhantomData })
    }

    /// Asks for something, and waits until it is done.
    ///
    /// # Errors
    /// It could not be done, or the process is gone.
    pub(crate) fn ask(&mut self, request: &Q) -> Result<R, String> {
        let mut line = serde_json::to_string(request).expect("a request is plain data");
        line.push('\n');
        let requests = self.requests.as_mut().ok_or("the process is gone")?;
        requests.write_all(line.as_bytes()).map_err(|e| format!("the process is gone: {e}"))?;
        line.clear();
        if self.replies.read_line(&mut line).map_err(|e| e.to_string())? == 0 {
            return Err("the process ended".into());
        }
        serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))?
    }
}

impl<Q, R> Drop for Agent<Q, R> {
    fn drop(&mut self) {
        // Closing its input ends it; a process that does not hear is ended.
        drop(self.requests.take());
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL {
            if let Ok(Some(_)) = self.process.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves one controller on standard input and output until it closes them.
pub(crate) fn answer<Q: DeserializeOwned, R: Serialize>(
    mut handle: impl FnMut(Q) -> Result<R, String>,
) -> ExitCode {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return ExitCode::FAILURE };
        let request = serde_json::from_str(&line).map_err(|e| format!("not a request: {e}"));
        let mut text = serde_json::to_string(&request.and_then(&mut handle)).expect("a reply is plain data");
        text.push('\n');
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
