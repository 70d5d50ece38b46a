//! The client of these benches, in one thread that spins.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use remanence_rpc::durable;
use remanence_rpc::live::Nexus;
use remanence_rpc::pwrite::{Method, Writer};
use remanence_verbs::Context;
use serde::{Deserialize, Serialize};

use super::logserver::{Clients, SERVED};
use super::server::{EXPORT_PORT, RPC_PORT, count, device, options, words};
use super::{bulk, pwrite};
use crate::role::{Causes, Counters, Role};

const LIMIT: Duration = Duration::from_secs(10);
/// How long it looks for an answer before it sleeps: it has a core of its own.
const SPIN: Duration = Duration::from_millis(20);

/// Whose client it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Spec {
    /// Of so many servers that copy, and a one-sided writer with so many writes under way, of so many bytes.
    Writers { calls: usize, window: u32, longest: u32 },
    /// Of the logs.
    Logs,
}

/// What it does for some milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// One-sided writes, one after the other: microseconds of each.
    Write { method: OneSided, size: u64, ms: u64 },
    /// Calls to an endpoint, one after the other: microseconds of each.
    Call { n: usize, size: u64, ms: u64 },
    /// As many one-sided writes under way as there may be: GB/s.
    BulkWrites { method: OneSided, size: u64, ms: u64 },
    /// As many calls: GB/s.
    BulkCalls { n: usize, size: u64, ms: u64 },
    /// Appends to a log, which is trimmed behind them: millions a second.
    Append { n: usize, size: u64, ms: u64 },
}

/// What it found, in the unit of the metric, and how many operations it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(super) values: Vec<f64>,
    pub(super) operations: u64,
}

impl Found {
    /// Of which each value is an operation.
    fn each(values: Vec<f64>) -> Self {
        Self { operations: values.len() as u64, values }
    }
}

/// A [`Method`], by its number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OneSided(usize);

impl From<Method> for OneSided {
    fn from(method: Method) -> Self {
        Self(Method::ALL.iter().position(|one| *one == method).expect("it has all"))
    }
}

impl OneSided {
    fn method(self) -> Method {
        Method::ALL[self.0]
    }
}

/// The client of all endpoints.
pub(crate) struct Client {
    spec: Spec,
    calls: Vec<durable::Client>,
    logs: Vec<Clients>,
    writer: Option<Writer>,
    nexus: Nexus,
    device: Context,
}

impl Role for Client {
    const WORD: &'static str = "rpc-client";
    type Spec = Spec;
    type Here = ();
    type Peer = IpAddr;
    type Burst = Burst;
    type Values = Found;

    fn open(spec: Spec) -> Result<(Self, ()), String> {
        let device = device()?;
        let nexus = Nexus::new(&device).map_err(words)?;
        Ok((Self { spec, calls: Vec::new(), logs: Vec::new(), writer: None, nexus, device }, ()))
    }

    fn connect(&mut self, to: IpAddr) -> Result<(), String> {
        let at = |port| SocketAddr::new(to, port);
        let endpoint = |n: usize| {
            let number = u8::try_from(n).map_err(words)?;
            let to = self.nexus.resolve(at(RPC_PORT), number, LIMIT).map_err(words)?;
            Ok::<_, String>((self.nexus.create(&options(SPIN)).map_err(words)?, to))
        };
        match self.spec {
            Spec::Writers { calls, window, longest } => {
                for n in 0..calls {
                    let (rpc, to) = endpoint(n)?;
                    self.calls.push(durable::Client::connect(rpc, to).map_err(words)?);
                }
                let writer = Writer::connect(&self.device, at(EXPORT_PORT), window, longest, LIMIT);
                self.writer = Some(writer.map_err(words)?);
            }
            Spec::Logs => {
                for n in 0..SERVED.len() {
                    let (rpc, to) = endpoint(n)?;
                    self.logs.push(Clients::connect(rpc, to)?);
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, burst: Burst) -> Result<Found, String> {
        const NONE: &str = "there is no such client";
        match burst {
            Burst::Write { method, size, ms } => {
                pwrite::one_sided(self.writer.as_mut().ok_or(NONE)?, method.method(), size, ms)
                    .map(Found::each)
            }
            Burst::Call { n, size, ms } => {
                pwrite::calls(self.calls.get_mut(n).ok_or(NONE)?, size, ms).map(Found::each)
            }
            Burst::BulkWrites { method, size, ms } => {
                bulk::one_sided(self.writer.as_mut().ok_or(NONE)?, method.method(), size, ms)
            }
            Burst::BulkCalls { n, size, ms } => bulk::calls(self.calls.get_mut(n).ok_or(NONE)?, size, ms),
            Burst::Append { n, size, ms } => {
                let clients = self.logs.get_mut(n).ok_or(NONE)?;
                let found = clients.burst(size, ms)?;
                clients.forget()?;
                Ok(found)
            }
        }
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.device)
    }

    fn count(&self, causes: &mut Causes) {
        let calls = self.calls.iter().map(durable::Client::rpc);
        calls.chain(self.logs.iter().map(|log| &log.rpc)).for_each(|rpc| count(rpc, causes));
    }
}
