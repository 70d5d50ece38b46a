//! The schemes that Erda is compared with, live: [`remanence_kv::baseline`] behind the very connection that Erda has, so that both
//! pay the same for messages, READs and WRITEs.
//!
//! Not a store to keep data in: keys and values have one size each, there is one handshake, and nobody is cut off.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_persist::Config;
use remanence_pmem::Region;
use remanence_remote::{Meter, ServerOptions};
use remanence_verbs::Context;

use super::server::{SLOT, SLOTS};
use super::wire::{Answer, Call, Hello, VERSION, What, emit_keyed};
use super::{ConnectOptions, Error, SERVICE, Session};
use remanence_kv::Geometry;
use remanence_kv::baseline::{Baseline, ReadAfterWritePut, Scheme, Sizes};
use remanence_kv::client::{self, Client, Operation};
use remanence_kv::format::slot::TableAt;
use remanence_kv::paper::Written;
use remanence_kv::proto::{Expect, Refusal, Reply, Request};
use remanence_kv::view::{Mode, View};

/// Records that are applied before the next look at messages.
const BUDGET: usize = 16;
/// How long the serving thread waits when it has nothing to apply.
const REST: Duration = Duration::from_millis(100);
/// How soon a record is looked at again whose client is still writing it.
const SOON: Duration = Duration::from_micros(50);
/// The view of a store that nobody reads one-sidedly speaks of so much memory, as a view must.
const VIEW: u64 = 1 << 20;

/// How a server of a baseline is made.
#[derive(Clone, Debug)]
pub struct BaselineOptions {
    /// Which of the two.
    pub scheme: Scheme,
    /// How large everything is.
    pub sizes: Sizes,
    /// What persistence depends on, by the operator's word; detected if there is none.
    pub configuration: Option<Config>,
    /// Clients at a time.
    pub clients: u16,
}

impl BaselineOptions {
    /// Bytes of memory that it takes.
    #[must_use]
    pub fn medium(&self) -> u64 {
        self.sizes.medium().max(VIEW).next_multiple_of(4096)
    }
}

/// A server of Redo Logging or Read After Write. What is in its memory is formatted.
#[derive(Debug)]
pub struct BaselineServer {
    remote: remanence_remote::Server,
    store: Arc<Mutex<Baseline<Region>>>,
}

fn lock(store: &Mutex<Baseline<Region>>) -> MutexGuard<'_, Baseline<Region>> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As a server of Erda answers, but for the parts of what is too long for a message.
fn serve(store: &Mutex<Baseline<Region>>, call: &[u8]) -> Result<Vec<u8>, String> {
    let call = Call::parse(call).ok_or("the call means nothing")?;
    let body = match call.what {
        What::Hello => {
            let hello = Hello { version: VERSION, lease: REST.as_millis() as u64 }.emit();
            [hello, Reply::View(view()).emit()].concat()
        }
        What::Request => {
            let reply = match Request::parse(call.body) {
                Some(request) => lock(store).handle(&request).map_err(|e| e.to_string())?,
                None => Reply::Refused(Refusal::Malformed),
            };
            // The client has the key to all of it, as in the paper.
            emit_keyed(&[], &reply.emit())
        }
        What::Part | What::Rest | What::Stats | What::Scrub | What::Compact | What::Lead => {
            return Err("a baseline has no such service".into());
        }
    };
    Ok(Answer { left: 0, clock: 0, body: &body }.emit())
}

fn view() -> View {
    View {
        number: 1,
        boot: 1,
        mode: Mode::Durable,
        replicated: false,
        inline_max: 0,
        geometry: Geometry::for_size(VIEW),
        salt: 0,
        // A view has a table, and nobody looks into this one.
        tables: vec![TableAt { at: 0, buckets: 1 }],
        links: std::collections::BTreeMap::new(),
    }
}

impl BaselineServer {
    /// Formats the memory, which has [`BaselineOptions::medium`] bytes at least, and listens at the address of the device.
    ///
    /// # Errors
    /// One sentence: the memory is too small or failed, or cannot be exported.
    pub fn bind(context: &Context, region: Region, options: &BaselineOptions) -> Result<Self, Error> {
        if region.len() < options.medium() {
            let (has, takes) = (region.len(), options.medium());
            return Err(Error::Argument(format!(
                "the store takes {takes} bytes of memory, and this has {has}"
            )));
        }
        let failed = |e: std::io::Error| remanence_kv::server::OpenError::Medium(e.to_string());
        let store = Baseline::format(region.clone(), options.scheme, options.sizes).map_err(failed)?;
        let mut remote =
            ServerOptions::new(context, region, 0).sessions(options.clients).messages(SLOTS, SLOT);
        if let Some(config) = options.configuration {
            remote = remote.declare(config);
        }
        let mut remote = remanence_remote::Server::bind(remote)?;
        let store = Arc::new(Mutex::new(store));
        let serving = Arc::clone(&store);
        remote.on_call(SERVICE, move |call| serve(&serving, call.request));
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
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.remote.addr()
    }

    /// What operations wrote so far, as Table 1 of the paper counts it.
    #[must_use]
    pub fn written(&self) -> Written {
        lock(&self.store).written()
    }

    /// Other work of the serving thread: see [`remanence_remote::Server::on_round`].
    pub fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.remote.on_round(work);
    }

    /// Counts what the application costs, from here on.
    pub fn meter(&mut self) -> Meter {
        self.remote.meter()
    }

    /// Serves until `stop` is set, and applies what is left.
    ///
    /// # Errors
    /// The device is gone; the memory failed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        self.remote.run(stop)?;
        let failed = |e: std::io::Error| remanence_kv::server::OpenError::Medium(e.to_string());
        lock(&self.store).apply(usize::MAX).map_err(failed)?;
        Ok(())
    }
}

/// A client of a baseline, for one thread.
#[derive(Debug)]
pub struct BaselineStore {
    client: Client,
    session: Session,
    scheme: Scheme,
}

impl BaselineStore {
    /// Connects to a [`BaselineServer`] of that scheme.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect(
        context: &Context,
        to: SocketAddr,
        scheme: Scheme,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let (session, view) = Session::connect(context, to, options)?;
        Ok(Self { client: Client::new(view, 0), session, scheme })
    }

    /// The key's value, from the server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.call(Request::Get { key: key.to_vec() })? {
            Reply::Value { value, .. } => Ok(Some(value)),
            Reply::Absent => Ok(None),
            _ => Err(Error::Protocol("no answer to a GET")),
        }
    }

    /// Writes a key's value; durable when it returns.
    ///
    /// # Errors
    /// The server cannot be reached or has no room, or the sizes are not those of the store.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let put = match self.scheme {
            Scheme::RedoLogging => Request::PutInline {
                key: key.to_vec(),
                value: value.to_vec(),
                expires: 0,
                expect: Expect::Any,
            },
            Scheme::ReadAfterWrite => {
                let mut put = ReadAfterWritePut::new(key, value);
                return Ok(self.carry(&mut put)?.map(drop)?);
            }
        };
        self.call(put).map(drop)
    }

    /// Takes a key's value away; whether there was one.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        match self.call(Request::Delete { key: key.to_vec(), expect: Expect::Any })? {
            Reply::Done { version } => Ok(version > 0),
            _ => Err(Error::Protocol("no answer to a DELETE")),
        }
    }

    fn call(&mut self, request: Request) -> Result<Reply, Error> {
        match self.carry(&mut client::Call::new(request))?? {
            Reply::Refused(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    fn carry<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, Error> {
        client::run(&mut self.client, &mut self.session, operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_is_one_that_clients_take() {
        let sizes = Sizes { key: 1, value: 1, keys: 1, records: 4 };
        let options = BaselineOptions { scheme: Scheme::RedoLogging, sizes, configuration: None, clients: 1 };
        assert_eq!(Reply::parse(&Reply::View(view()).emit()), Some(Reply::View(view())));
        assert!(view().geometry.size <= options.medium());
    }
}
