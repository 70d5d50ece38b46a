//! The schemes that Erda is compared with, live: [`remanence_erda_paper::baseline`] behind the very sessions that Erda has, so that both
//! pay the same for messages, READs and WRITEs. A call has a request, and its answer the reply, with nothing around them.
//!
//! Not a store to keep data in: keys and values have one size each, and nobody is cut off.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_erda_paper::baseline::{self, Baseline, ReadAfterWritePut, Scheme, Sizes};
use remanence_kv::client::{self, Client, Completion, Operation, RemoteMemory, Verb};
use remanence_kv::proto::{Expect, Refusal, Reply, Request};
use remanence_persist::Config;
use remanence_pmem::Region;
use remanence_remote::{Done, Meter, Options, ServerOptions, Session, Stop, Work};
use remanence_verbs::Context;
use remanence_ycsb::packed::KeyValue;

use super::load::StoreClient;
use crate::server_load::Loaded;

/// The number of the service, and how messages are received: as at a server of Erda.
const SERVICE: u16 = remanence_kv_live::SERVICE;
const SLOTS: u16 = 16;
const SLOT: u32 = 16 << 10;
/// Records that are applied before the next look at messages.
const BUDGET: usize = 16;
/// How long the serving thread waits when it has nothing to apply.
const REST: Duration = Duration::from_millis(100);
/// How soon a record is looked at again whose client is still writing it.
const SOON: Duration = Duration::from_micros(50);

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// How a server of a baseline is made.
#[derive(Clone, Debug)]
pub(super) struct BaselineOptions {
    /// Which of the two.
    pub(super) scheme: Scheme,
    /// How large everything is.
    pub(super) sizes: Sizes,
    /// What persistence depends on, by the operator's word; detected if there is none.
    pub(super) configuration: Option<Config>,
    /// Clients at a time.
    pub(super) clients: u16,
}

impl BaselineOptions {
    /// Bytes of memory that it takes.
    pub(super) fn medium(&self) -> u64 {
        self.sizes.medium().next_multiple_of(4096)
    }
}

/// A server of Redo Logging or Read After Write. What is in its memory is formatted.
pub(super) struct BaselineServer {
    remote: remanence_remote::Server,
    store: Arc<Mutex<Baseline<Region>>>,
}

fn lock(store: &Mutex<Baseline<Region>>) -> MutexGuard<'_, Baseline<Region>> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BaselineServer {
    /// Formats the memory, which has [`BaselineOptions::medium`] bytes at least, and listens at the address of the device.
    pub(super) fn bind(context: &Context, region: Region, options: &BaselineOptions) -> Result<Self, String> {
        let store = Baseline::format(region.clone(), options.scheme, options.sizes).map_err(words)?;
        let mut remote =
            ServerOptions::new(context, region, 0).sessions(options.clients).messages(SLOTS, SLOT);
        if let Some(config) = options.configuration {
            remote = remote.declare(config);
        }
        let mut remote = remanence_remote::Server::bind(remote).map_err(words)?;
        let store = Arc::new(Mutex::new(store));
        let serving = Arc::clone(&store);
        // The client has the key to all of it, as in the paper.
        remote.on_call(SERVICE, move |call| {
            let reply = match Request::parse(call.request) {
                Some(request) => lock(&serving).handle(&request).map_err(words)?,
                None => Reply::Refused(Refusal::Malformed),
            };
            Ok(reply.emit())
        });
        let applying = Arc::clone(&store);
        // "The server applies the write request asynchronously to the destination storage" (5.1).
        remote.on_turn(move |_| {
            let mut store = lock(&applying);
            let before = store.backlog();
            if before == 0 {
                return Some(REST);
            }
            let after = store.apply(BUDGET).ok()?;
            Some(match after {
                0 => REST,
                after if after < before => Duration::ZERO,
                _ => SOON,
            })
        });
        Ok(Self { remote, store })
    }

    /// Where clients connect.
    pub(super) fn addr(&self) -> SocketAddr {
        self.remote.addr()
    }

    /// Counts what the application costs, from here on.
    pub(super) fn meter(&mut self) -> Meter {
        self.remote.meter()
    }

    /// Serves until it is asked to stop, and applies what is left.
    pub(super) fn run(&mut self, stop: &Stop) -> Result<(), String> {
        self.remote.run(stop).map_err(words)?;
        lock(&self.store).apply(usize::MAX).map(drop).map_err(words)
    }
}

impl Loaded for BaselineServer {
    fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.remote.on_round(work);
    }

    fn spin(&mut self) {
        self.remote.spin();
    }
}

/// The server's memory, and the server.
struct Reached(Session);

impl RemoteMemory for Reached {
    type Error = String;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, String> {
        // What the calls borrow from.
        let requests = verbs.iter().map(|verb| match verb {
            Verb::Call(request) => request.emit(),
            _ => Vec::new(),
        });
        let requests: Vec<Vec<u8>> = requests.collect();
        let mut work = Vec::with_capacity(verbs.len());
        for (verb, request) in verbs.iter().zip(&requests) {
            work.push(match verb {
                Verb::Read { at, len } => Work::Read { at: *at, len: *len },
                Verb::Write { at, bytes } => Work::Write { at: *at, bytes },
                Verb::Call(_) => Work::Call { service: SERVICE, request },
                Verb::Persist(_) => return Err("the baselines have their own way".to_owned()),
            });
        }
        let completion = |done| {
            Ok(match done {
                Done::Read(bytes) => Completion::Read(bytes),
                Done::Written => Completion::Written,
                Done::Persistent(_) => Completion::Persistent,
                Done::Reply(said) => Completion::Reply(Reply::parse(&said?).ok_or("a reply is none")?),
            })
        };
        self.0.together(&work).map_err(words)?.into_iter().map(completion).collect()
    }

    fn now(&self) -> u64 {
        0
    }

    fn again(&mut self, _: u32) -> Result<(), String> {
        std::thread::yield_now();
        Ok(())
    }
}

/// A client of a baseline, for one thread.
pub(super) struct BaselineStore {
    client: Client,
    reached: Reached,
    scheme: Scheme,
}

impl BaselineStore {
    /// Connects to a [`BaselineServer`] of that scheme.
    pub(super) fn connect(
        context: &Context,
        to: SocketAddr,
        scheme: Scheme,
        options: Options,
    ) -> Result<Self, String> {
        let session = Session::connect(context, to, options).map_err(words)?;
        Ok(Self { client: baseline::client(), reached: Reached(session), scheme })
    }

    fn call(&mut self, request: Request) -> Result<Reply, String> {
        match self.carry(&mut client::Call::new(request))?.map_err(words)? {
            Reply::Refused(refusal) => Err(words(refusal)),
            reply => Ok(reply),
        }
    }

    fn carry<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, String> {
        client::run(&mut self.client, &mut self.reached, operation)
    }
}

impl StoreClient for BaselineStore {}

impl KeyValue for BaselineStore {
    type Error = String;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
        match self.call(Request::Get { key: key.to_vec() })? {
            Reply::Value { value: found, .. } => *value = found,
            Reply::Absent => return Ok(false),
            _ => return Err("no answer to a GET".to_owned()),
        }
        Ok(true)
    }

    /// Durable when it returns.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (key, value) = (key.to_vec(), value.to_vec());
        match self.scheme {
            Scheme::RedoLogging => {
                self.call(Request::PutInline { key, value, expires: 0, expect: Expect::Any }).map(drop)
            }
            Scheme::ReadAfterWrite => {
                self.carry(&mut ReadAfterWritePut::new(&key, &value))?.map(drop).map_err(words)
            }
        }
    }
}
