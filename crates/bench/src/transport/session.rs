//! The controller's hold on a pair of agents.

use std::path::Path as FilePath;

use super::plan::Path;
use super::protocol::{Reply, Request, Test};
use crate::netns::NetworkPath;
use crate::process;

/// A pair of agents at a place.
pub(crate) struct Session {
    client: Agent,
    server: Agent,
    /// Dropped last: the namespaces go when the agents are gone.
    _place: NetworkPath,
}

type Agent = process::Agent<Request, Reply>;

impl Session {
    /// Starts both agents and connects them; `libraries` is where those find ours that go through the C ABI.
    pub(crate) fn open(program: &FilePath, path: Path, libraries: Option<&FilePath>) -> Result<Self, String> {
        let place = path.place()?;
        let mut session = Self {
            client: start(program, &place, true, libraries)?,
            server: start(program, &place, false, libraries)?,
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
        };
        let interface = session._place.interface();
        let opened = |reply| match reply {
            Reply::Opened(at) => Ok(at),
            other => Err(unexpected(&other)),
        };
        let theirs = opened(session.server.ask(&open(true, interface))?)?;
        let ours = opened(session.client.ask(&open(false, interface))?)?;
        session.server.ask(&Request::Connect { peer: ours, serves: true })?;
        session.client.ask(&Request::Connect { peer: theirs, serves: false })?;
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

fn start(
    program: &FilePath,
    place: &NetworkPath,
    client: bool,
    libraries: Option<&FilePath>,
) -> Result<Agent, String> {
    let program = program.to_str().ok_or("the program's path is not UTF-8")?;
    let mut command = place.command(program, usize::from(client), client);
    command.envs(libraries.map(|directory| ("REMANENCE_LIB", directory)));
    // Loopback is a device beside others only if it is named.
    command.envs(libraries.map(|_| ("REMANENCE_DEVICE", place.interface())));
    Agent::start(command.arg("bench-agent"))
}

fn unexpected(reply: &Reply) -> String {
    format!("the agent answered out of turn: {reply:?}")
}
