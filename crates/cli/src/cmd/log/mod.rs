//! `rem log`: an append-only log in remote memory. One file for each verb; what they share is here.

mod append;
mod bench;
mod calls;
mod salvage;
mod serve;
mod tail;
mod trim;
mod verify;

use std::net::IpAddr;

use remanence_persist::recipe::Op;
use remanence_remote::{Background, Reactor};
use remanence_remotelog::{
    AsyncLog, ConnectOptions, Group, Method, SessionConnection, Status, connect, group,
};

use crate::args::{Server, Tokens};
use crate::device;
use crate::fail::Fail;

crate::cmd::subcommands! {
    /// Export a log in a file; it is made if it is not there
    Serve(serve::Args) => serve::run,
    /// Append lines of a stream or of a file, durable on one or several servers
    Append(append::Args) => append::run,
    /// Print the records of a server, and follow it
    Tail(tail::Args) => tail::run,
    /// Check every record, and say what is safe
    Verify(verify::Args) => verify::run,
    /// Copy what is left of a file whose journal is damaged or gone
    Salvage(salvage::Args) => salvage::run,
    /// Give up records that were applied, so that their place is free
    Trim(trim::Args) => trim::run,
    /// The log server of paper 001: appends by calls, one server
    Calls(calls::Args) => calls::run,
    /// Latency of durable appends
    Bench(bench::Args) => bench::run,
}

/// How servers are reached.
#[derive(Clone, Debug, clap::Args)]
struct Reach {
    #[command(flatten)]
    tokens: Tokens,
    /// Local address to send from [default: the one that routes to the server]
    #[arg(long, value_name = "ADDRESS", env = "REM_LOCAL")]
    local: Option<IpAddr>,
    /// Give up when a server shows no sign of life for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

impl Reach {
    const fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.patience)
    }

    fn options(&self) -> Result<remanence_remote::Options, Fail> {
        Ok(remanence_remote::Options::default().patience(self.patience()).tokens(self.tokens.load_any()?))
    }
}

/// How a group is written to.
#[derive(Clone, Debug, clap::Args)]
struct Write {
    /// Servers as HOST or HOST:PORT, separated by commas; name all that the log lies on, lost ones too
    #[arg(value_name = "SERVER", value_delimiter = ',', required = true)]
    servers: Vec<Server>,
    /// How many servers must have a record before it is acknowledged; fixed when the log is made [default: all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    acks: Option<u16>,
    /// Use the paper's recipe for this operation, not the cheapest that is proven
    #[arg(long, value_name = "OP", value_parser = ["WRITE", "WRITE_IMM", "SEND"], ignore_case = true)]
    op: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

impl Write {
    fn method(&self) -> Method {
        let name = self.op.as_deref().unwrap_or_default();
        let op = Op::ALL.into_iter().find(|op| op.name().eq_ignore_ascii_case(name));
        op.map_or(Method::Cheapest, Method::Op)
    }

    /// What is asked for cannot be.
    fn check(&self) -> Result<(), Fail> {
        if self.acks.is_some_and(|acks| usize::from(acks) > self.servers.len()) {
            return Err(Fail::new(format!(
                "--acks asks for more servers than the {} that were named; name more, or ask for fewer",
                self.servers.len()
            )));
        }
        Ok(())
    }

    /// Opens the log for writing, as its only writer. It goes on as long as the last is there, whoever waits for the reactor.
    fn open_in_background(&self) -> Result<(AsyncLog, Reactor, Background), Fail> {
        self.check()?;
        let servers = self.servers.iter().map(Server::resolve).collect::<Result<Vec<_>, _>>()?;
        let first = servers.first().ok_or_else(|| Fail::new("name a server at least"))?;
        let context = device::open_towards(first.ip(), self.reach.local)?;
        let said = |e: &dyn std::fmt::Display| Fail::new(e.to_string());
        let reactor = Reactor::new(&context).map_err(|e| said(&e))?;
        let background = reactor.in_background().map_err(|e| said(&e))?;
        let mut options = ConnectOptions::default().patience(self.reach.patience()).method(self.method());
        options = options.tokens(self.reach.tokens.load_any()?);
        if let Some(acks) = self.acks {
            options = options.acks(acks);
        }
        let log = reactor.block_on(AsyncLog::connect(&reactor, &servers, &options)).map_err(|e| said(&e))?;
        Ok((log, reactor, background))
    }

    /// Bytes of the longest record that the log can have, by the first of its servers that says so.
    fn longest(&self) -> Result<u64, Fail> {
        let mut why = Fail::new("name a server at least");
        for server in &self.servers {
            match look(server, &self.reach) {
                Ok((_, status)) => return Ok(status.superblock.geometry.payload_max()),
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// Opens the log for writing, as its only writer, by the thread that writes.
    fn open(&self) -> Result<(Group<SessionConnection>, group::Opened), Fail> {
        self.check()?;
        let mut random = [0; 20];
        getrandom::fill(&mut random)
            .map_err(|e| Fail::new(format!("the system gives no random bytes: {e}")))?;
        let (name, writer) = random.split_at(16);
        let writer = u32::from_le_bytes(writer.try_into().expect("four bytes"));
        let name = remanence_remotelog::format::superblock::Uuid(name.try_into().expect("16 bytes"));
        let options = group::Options::new(writer, name).acks(self.acks).patience(self.reach.patience());
        let reach = self.reach.options()?;
        let mut connections = Vec::new();
        let mut reactor = None;
        for server in &self.servers {
            let to = server.resolve()?;
            let reactor = match &mut reactor {
                Some(reactor) => reactor,
                none => {
                    let context = device::open_towards(to.ip(), self.reach.local)?;
                    none.insert(Reactor::new(&context).map_err(|e| Fail::new(e.to_string()))?)
                }
            };
            let connection = connect(reactor, to, reach.clone(), self.method());
            connections.push((server.to_string(), connection));
        }
        Group::open(connections, &options).map_err(|e| Fail::new(e.to_string()))
    }
}

/// A connection for reading, and how the log is.
fn look(server: &Server, reach: &Reach) -> Result<(SessionConnection, Status), Fail> {
    let to = server.resolve()?;
    let context = device::open_towards(to.ip(), reach.local)?;
    let reactor = Reactor::new(&context).map_err(|e| Fail::new(e.to_string()))?;
    let mut connection =
        connect(&reactor, to, reach.options()?, Method::Cheapest).map_err(|e| of(server, &e))?;
    let status = connection.call(&remanence_remotelog::proto::Request::Status).map_err(|e| of(server, &e))?;
    Ok((connection, status))
}

fn of(server: &Server, error: &dyn std::fmt::Display) -> Fail {
    Fail::new(format!("{server}: {error}"))
}

/// Bytes that a reader asks for at a time.
const WINDOW: u64 = 64 << 10;
