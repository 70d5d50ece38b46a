//! The controller's hold on a server process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::protocol::{Cost, Open, Reply, Request};

/// A server process, which ends when this goes.
pub(super) struct Server {
    process: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Server {
    /// Starts `command`, which shall come to [`super::agent::main`].
    pub(super) fn start(mut command: Command) -> Result<Self, String> {
        let name = Path::new(command.get_program()).display().to_string();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        let requests = process.stdin.take();
        let replies = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Self { process, requests, replies })
    }

    pub(super) fn open(&mut self, open: &Open) -> Result<(SocketAddr, String), String> {
        match self.ask(&Request::Open(open.clone()))? {
            Reply::Opened { addr, sentence } => Ok((addr, sentence)),
            other => Err(odd(&other)),
        }
    }

    pub(super) fn cost(&mut self) -> Result<Cost, String> {
        match self.ask(&Request::Cost)? {
            Reply::Cost(cost) => Ok(cost),
            other => Err(odd(&other)),
        }
    }

    pub(super) fn close(&mut self) -> Result<(), String> {
        match self.ask(&Request::Close)? {
            Reply::Closed => Ok(()),
            other => Err(odd(&other)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        let mut line = serde_json::to_string(request).expect("a request is plain data");
        line.push('\n');
        let requests = self.requests.as_mut().ok_or("the server process is gone")?;
        requests.write_all(line.as_bytes()).map_err(|e| format!("the server process is gone: {e}"))?;
        line.clear();
        if self.replies.read_line(&mut line).map_err(|e| e.to_string())? == 0 {
            return Err("the server process ended".into());
        }
        match serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))? {
            Reply::Failed(why) => Err(why),
            reply => Ok(reply),
        }
    }
}

fn odd(reply: &Reply) -> String {
    format!("the server process answered out of turn: {reply:?}")
}

impl Drop for Server {
    fn drop(&mut self) {
        // Closing its input ends it; a process that does not hear is ended.
        drop(self.requests.take());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            if let Ok(Some(_)) = self.process.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
