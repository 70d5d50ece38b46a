//! Servers of a test's own, each on a loopback address of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Cursor;
use std::net::{IpAddr, SocketAddr};

use remanence_effort::address;
use remanence_pmem::Region;
use remanence_pool::auth::Token;
use remanence_pool::client::{Client, Error, Event, Options, PutReport, Source, Upload};
use remanence_pool::format::{BLOCK, Geometry};
use remanence_pool::server::{self, Limits, Port, Server};
use remanence_pool::{BlobName, Pool};
use remanence_verbs::{Context, Options as DeviceOptions};

pub(crate) fn token() -> Token {
    Token::new("the-token-of-the-live-tests").expect("fair")
}

pub(crate) fn name(text: &str) -> BlobName {
    BlobName::new(text).expect("fair")
}

pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (seed.wrapping_mul(0x9E37_79B9).wrapping_add(n.wrapping_mul(0x1_0001)) >> 7) as u8)
        .collect()
}

pub(crate) fn source(text: &str, data: Vec<u8>) -> Source<'static> {
    Source {
        name: name(text),
        len: Some(data.len() as u64),
        reader: Box::new(Cursor::new(data)),
        version: None,
    }
}

pub(crate) fn put(client: &mut Client, text: &str, data: Vec<u8>, quorum: usize) -> Result<PutReport, Error> {
    put_with(client, vec![source(text, data)], quorum, &mut |_| ())
}

pub(crate) fn put_with(
    client: &mut Client,
    sources: Vec<Source<'static>>,
    quorum: usize,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<PutReport, Error> {
    client.put(sources.into_iter().map(Ok), &Upload { quorum, servers: None }, events)
}

fn open(address: IpAddr) -> Context {
    Context::open(DeviceOptions::udp(address)).expect("a device on loopback")
}

/// A machine with a server on it.
pub(crate) struct Host {
    address: IpAddr,
    server: Option<Server>,
    region: Option<Region>,
    file: Option<tempfile::TempDir>,
}

const PORT: u16 = 7471;

impl Host {
    /// With a pool in memory.
    pub(crate) fn new(size: u64) -> Self {
        let pool = server::in_memory(size).expect("memory");
        let mut this =
            Self { address: address(), server: None, region: Some(pool.medium().clone()), file: None };
        this.start(pool);
        this
    }

    /// With other bounds than usual.
    pub(crate) fn with_limits(size: u64, limits: Limits) -> Self {
        let pool = server::in_memory(size).expect("memory");
        let mut this =
            Self { address: address(), server: None, region: Some(pool.medium().clone()), file: None };
        let port = Port::take(&open(this.address), PORT).expect("free");
        let options = server::Options { token: token(), limits };
        this.server = Some(Server::start(port, pool, options).expect("serves"));
        this
    }

    /// With a pool in a file, so that it can restart.
    pub(crate) fn file(size: u64) -> Self {
        let file = tempfile::tempdir().expect("a directory");
        let (pool, _) =
            server::open_or_make(&file.path().join("pool"), Some(size), size, None).expect("made");
        let mut this = Self { address: address(), server: None, region: None, file: Some(file) };
        this.start(pool);
        this
    }

    fn start(&mut self, pool: Pool<Region>) {
        let port = Port::take(&open(self.address), PORT).expect("free");
        let options = server::Options { token: token(), limits: Limits::default() };
        self.server = Some(Server::start(port, pool, options).expect("serves"));
    }

    /// Takes the server away, to be stopped.
    pub(crate) fn take(&mut self) -> Server {
        self.server.take().expect("it runs")
    }

    /// Serves the same file again.
    pub(crate) fn restart(&mut self) {
        let path = self.file.as_ref().expect("a file").path().join("pool");
        let (pool, made) = server::open_or_make(&path, None, 0, None).expect("sound");
        assert!(!made);
        self.start(pool);
    }

    /// The same pool, elsewhere: a copy of its file, which nobody serves meanwhile.
    pub(crate) fn twin(&self) -> Self {
        let file = tempfile::tempdir().expect("a directory");
        let from = self.file.as_ref().expect("a file").path().join("pool");
        std::fs::copy(from, file.path().join("pool")).expect("copied");
        let mut this = Self { address: address(), server: None, region: None, file: Some(file) };
        this.restart();
        this
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    pub(crate) fn named(&self) -> (String, SocketAddr) {
        let at = SocketAddr::new(self.address, PORT);
        (at.to_string(), at)
    }

    /// A device for clients.
    pub(crate) fn context(&self) -> Context {
        open(address())
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.context(), Options::new(vec![self.named()], vec![token()]), 1)
            .expect("it is there")
    }

    /// Changes a byte of the data area.
    pub(crate) fn rot(&self, offset: u64) {
        let region = self.region.as_ref().expect("a pool in memory");
        let at = Geometry::for_size(region.len()).expect("fair").data() + offset / BLOCK * BLOCK + 77;
        let mut byte = [0];
        region.read(at, &mut byte);
        region.write(at, &[byte[0] ^ 1]);
    }
}
