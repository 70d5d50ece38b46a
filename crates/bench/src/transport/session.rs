//! The controller's hold on a pair of agents.

use std::io::{BufRead, BufReader, Write};
use std::path::Path as FilePath;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::plan::Path;
use super::protocol::{Reply, Request, Test};
use crate::netns::NetworkPath;

/// A pair of agents at a place.
pub(crate) struct Session {
    client: Agent,
    server: Agent,
    /// Dropped last: the namespaces go when the agents are gone.
    _place: NetworkPath,
}

struct Agent {
    process: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Session {
    /// Starts both agents and connects them; `libraries` is where those find ours that go through the C ABI.
    pub(crate) fn open(program: &FilePath, path: Path, libraries: Option<&FilePath>) -> Result<Self, String> {
        let place = path.place()?;
        let mut session = Self {
            client: Agent::start(program, &place, true, libraries)?,
            server: Agent::start(program, &place, false, libraries)?,
            _place: place,
        };
        let parse = |address: String| address.parse().map_err(|e| format!("{address}: {e}"));
        let server_address = parse(session._place.server_address())?;
        let client_address = parse(session._place.client_address())?;
        let open = |server: bool, interface: &str| Request::Open {
            carrier: path.carrier(),
            address: if server { server_address } else { client_address },
            peer: if server { client_address } else { server_address },
            interface: interface.to_owned(),
            server,
        };
        let interface = session._place.interface();
        let opened = |reply| match reply {
            Reply::Opened(endpoint) => Ok(endpoint),
            other => Err(unexpected(&other)),
        };
        let theirs = opened(session.server.ask(&open(true, interface))?)?;
        let ours = opened(session.client.ask(&open(false, interface))?)?;
        session.server.ask(&Request::Connect(ours))?;
        session.client.ask(&Request::Connect(theirs))?;
        Ok(session)
    }

    /// One run of a test while the server spins.
    pub(crate) fn sample(&mut self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        self.server.ask(&Request::Serve { test, size })?;
        let samples = self.client.ask(&Request::Run { test, size, ms });
        let stopped = self.server.ask(&Request::Stop);
        // Where both failed, one of them is the cause and the other its consequence, and only a reader can tell which.
        match (samples, stopped) {
            (Ok(Reply::Samples(samples)), Ok(Reply::Ok)) => Ok(samples),
            (Err(client), Err(server)) => Err(format!("the client: {client}; the server: {server}")),
            (Err(client), Ok(_)) => Err(format!("the client: {client}")),
            (Ok(_), Err(server)) => Err(format!("the server: {server}")),
            (Ok(other), Ok(_)) => Err(unexpected(&other)),
        }
    }
}

impl Agent {
    fn start(
        program: &FilePath,
        place: &NetworkPath,
        client: bool,
        libraries: Option<&FilePath>,
    ) -> Result<Self, String> {
        let program = program.to_str().ok_or("the program's path is not UTF-8")?;
        let mut process = place
            .command(program, usize::from(client), client)
            .envs(libraries.map(|directory| ("REMANENCE_LIB", directory)))
            // Loopback is a device beside others only if it is named.
            .envs(libraries.map(|_| ("REMANENCE_DEVICE", place.interface())))
            .arg("bench-agent")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start {program}: {e}"))?;
        let requests = process.stdin.take();
        let replies = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Self { process, requests, replies })
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        let mut line = serde_json::to_string(request).expect("a request is plain data");
        line.push('\n');
        let requests = self.requests.as_mut().ok_or("the agent is gone")?;
        requests.write_all(line.as_bytes()).map_err(|e| format!("the agent is gone: {e}"))?;
        line.clear();
        if self.replies.read_line(&mut line).map_err(|e| e.to_string())? == 0 {
            return Err("the agent ended".into());
        }
        match serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))? {
            Reply::Failed(why) => Err(why),
            reply => Ok(reply),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Closing its input ends it; a process that does not hear is ended.
        drop(self.requests.take());
        for _ in 0..100 {
            if let Ok(Some(_)) = self.process.try_wait() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn unexpected(reply: &Reply) -> String {
    format!("the agent answered out of turn: {reply:?}")
}
