//! Servers of a test's own, each on a loopback address of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Cursor;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_effort::address;
use remanence_pmem::Region;
use remanence_pool::auth::{Side, Token};
use remanence_pool::client::{Client, Error, Event, Options, PutReport, Source, Upload};
use remanence_pool::format::{BLOCK, Geometry};
use remanence_pool::proto::{MAX_MESSAGE, PoolInfo, Reply, Request};
use remanence_pool::server::{self, Limits, Port, Server};
use remanence_pool::{BlobName, Pool};
use remanence_rnic::{Access, Data, QpCaps, RecvWr, SendFlags, SendOp, SendWr, WcOpcode};
use remanence_verbs::{ConnectAttr, Context, Listener, Options as DeviceOptions, QpOptions};

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
        let options = server::Options::new(token()).limits(limits);
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
        let options = server::Options::new(token());
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
        Client::connect(&self.context(), Options::new(vec![self.named()]).tokens([token()]), 1)
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

/// A server whose program lets one client in and does nothing more, while its device goes on: as one whose thread waits for a disk.
pub(crate) struct Hangs {
    at: SocketAddr,
    end: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Hangs {
    pub(crate) fn new() -> Self {
        let at = SocketAddr::new(address(), PORT);
        let context = open(at.ip());
        let listener = Listener::bind(&context, PORT, 4).expect("free");
        let (end, ended) = channel();
        let thread = std::thread::spawn(move || hang(&context, &listener, &ended));
        Self { at, end, thread: Some(thread) }
    }

    pub(crate) fn named(&self) -> (String, SocketAddr) {
        (self.at.to_string(), self.at)
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        let _ = self.end.send(());
        let ended = self.thread.take().expect("it goes once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server that hangs has panicked");
    }
}

fn hang(context: &Context, listener: &Listener, ended: &Receiver<()>) {
    const RECEIVES: u64 = 32;
    let limit = Some(Duration::from_secs(120));
    let (pd, cq) = (context.alloc_pd().expect("room"), context.create_cq(256, None, 0).expect("room"));
    let len = (RECEIVES + 1) * MAX_MESSAGE as u64;
    let mr = pd.reg_mr(&Region::anonymous(len).expect("memory"), Access::LOCAL_WRITE).expect("room");
    let caps = QpCaps { max_send_wr: 8, max_recv_wr: 32, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let new = || pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&cq) }).expect("room");
    let (control, data, attr) = (new(), new(), ConnectAttr { max_rd_atomic: 16, ..ConnectAttr::default() });
    let incoming = listener.get_request(limit).expect("a client comes");
    let _control = incoming.accept(&control, &attr, b"").expect("it waits");
    for slot in 0..RECEIVES {
        let sge = mr.sge(slot * MAX_MESSAGE as u64, MAX_MESSAGE as u32);
        control.post_recv(&RecvWr { wr_id: slot, sges: &[sge] }).expect("room");
    }
    let (ours, mut theirs) = ([3; 32], [0; 32]);
    let mut completions = Vec::new();
    'greeting: loop {
        completions.clear();
        cq.wait(&mut completions, 16, limit).expect("it holds all");
        for wc in completions.iter().filter(|wc| wc.opcode == WcOpcode::Recv) {
            let mut bytes = vec![0; wc.byte_len as usize];
            mr.region().read(wc.wr_id * MAX_MESSAGE as u64, &mut bytes);
            let (number, request) = Request::parse(&bytes).expect("a client of ours");
            let reply = match request {
                Request::Hello { nonce } => {
                    theirs = nonce;
                    Reply::Challenge { nonce: ours, fingerprint: token().fingerprint() }
                }
                Request::Authenticate { .. } => {
                    let proof = Side::Server.prove(&token(), &theirs, &ours);
                    Reply::Welcome { proof, ticket: [7; 16], info: PoolInfo::unknown() }
                }
                other => panic!("{other:?}"),
            };
            let (is_last, message) = (matches!(reply, Reply::Welcome { .. }), reply.emit(number));
            mr.region().write(RECEIVES * MAX_MESSAGE as u64, &message);
            let sge = mr.sge(RECEIVES * MAX_MESSAGE as u64, message.len() as u32);
            let (op, data) = (SendOp::Send, Data::Sges(&[sge]));
            let wr = SendWr { wr_id: 99, op, data, flags: SendFlags::SIGNALED, ud: None };
            control.post_send(&wr).expect("room");
            if is_last {
                break 'greeting;
            }
        }
    }
    let incoming = listener.get_request(limit).expect("it was let in");
    let _data = incoming.accept(&data, &attr, b"").expect("it waits");
    let _ = ended.recv();
}
