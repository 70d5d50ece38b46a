//! One-sided durable writes (*pwrite*) on an RC QP: a WRITE, and behind it what makes it more than visible.
//!
//! Read first: paper 001, 4.1 to 4.5. The responder's application does nothing.
//!
//! | method | a completion says |
//! |---|---|
//! | [`Method::Write`] | the responder took it. On a real NIC not even that it is visible; on ours that it is |
//! | [`Method::WriteRead`] | it is visible; durable where what is visible survives (eADR; DDIO off under a real NIC) |
//! | [`Method::WriteFlush`] | it is in the region's persistence domain |
//!
//! WRITE and READ or FLUSH are posted together, and only the last is signalled, as the paper's are.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_codec::{Malformed, Reader, printable};
use remanence_pmem::{Guarantee, Region, Survives};
use remanence_rnic::{
    Access, Data, Placement, QpCaps, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Wc, WcStatus,
};
use remanence_service::client::{Endpoint, Reactor};
use remanence_service::server::{
    Admit, Bounds, Buffers, Claim, Close, Decision, Message, Options, Refusal, Request, Server, Service,
    Session, Spec, Stop, Workshop,
};
use remanence_verbs::{ConnectAttr, Connection, Context, Mr};
use remanence_wire::Rkey;

pub use crate::error::Error;

const BACKLOG: usize = 64;
/// Writers of an export at a time, and those that come from one address.
const BOUNDS: Bounds = Bounds { sessions: 1024, each: 128, bytes: u64::MAX };
/// Bytes that the READ reads: it is there for its order, not for its data.
const WORD: u32 = 8;
/// Bytes of a receive buffer of the export's, of which each session has one: for what a writer should not have sent.
const SLOT: u32 = 64;

/// How a write is made to stay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Method {
    /// WRITE alone: the volatile baseline.
    Write,
    /// WRITE, then READ.
    WriteRead,
    /// WRITE, then FLUSH with placement persistence.
    WriteFlush,
}

impl Method {
    /// Every method, the volatile baseline first.
    pub const ALL: [Self; 3] = [Self::Write, Self::WriteRead, Self::WriteFlush];

    /// The name that options and machine-readable output use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteRead => "write+read",
            Self::WriteFlush => "write+flush",
        }
    }
}

fn rights(flush: bool) -> Access {
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE;
    if flush { rights | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT } else { rights }
}

/// What an exporter tells a writer that it lets in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Welcome {
    rkey: Rkey,
    len: u64,
    guarantee: Guarantee,
    flush: bool,
}

impl Welcome {
    const MAGIC: [u8; 4] = *b"PWR1";

    fn emit(&self) -> Vec<u8> {
        let mut bytes = Self::MAGIC.to_vec();
        bytes.extend_from_slice(&self.rkey.0.to_be_bytes());
        bytes.extend_from_slice(&self.len.to_be_bytes());
        bytes.extend_from_slice(&self.guarantee.to_bits().to_be_bytes());
        bytes.push(self.flush.into());
        bytes
    }

    /// What the connection manager padded it with is not looked at.
    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        if r.array()? != Self::MAGIC {
            return r.fail();
        }
        let (rkey, len) = (Rkey(r.u32_be()?), r.u64_be()?);
        let guarantee = Guarantee::from_bits(r.u16_be()?).ok_or(r.malformed())?;
        Ok(Self { rkey, len, guarantee, flush: r.bool()? })
    }
}

/// A region that peers write to.
#[derive(Debug)]
pub struct Export {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    port: u16,
}

impl Export {
    /// Exports a region at a port of RDMA-CM's TCP port space (0: one that is free), until this is dropped. It has 1024 writers
    /// at most, and 128 of one address.
    ///
    /// # Errors
    /// The port is taken, the memory cannot be registered, or there is no thread to be had.
    pub fn start(context: &Context, port: u16, region: &Region) -> Result<Self, Error> {
        let options = Options { port, backlog: BACKLOG, message: SLOT, bounds: BOUNDS, quiet: None };
        let server = Server::bind(context, options)?;
        let pd = server.pd();
        let (mr, flush) = match pd.reg_mr(region, rights(true)) {
            Ok(mr) => (mr, true),
            Err(_) => (pd.reg_mr(region, rights(false))?, false),
        };
        let (rkey, guarantee) = (mr.rkey(), region.domain().guarantee());
        let welcome = Welcome { rkey, len: region.len(), guarantee, flush }.emit();
        let attr = ConnectAttr { access: rights(flush) - Access::LOCAL_WRITE, ..ConnectAttr::default() };
        let (port, stop) = (server.addr().port(), Stop::new());
        let stopping = stop.clone();
        let serve = move || {
            // It ends early only when the device does.
            let _ = server.run(&mut OneSided, &mut Everybody { attr, welcome }, &stopping);
            drop(mr);
        };
        let thread = std::thread::Builder::new().name("remanence-export".into()).spawn(serve);
        Ok(Self { stop, thread: Some(thread.map_err(Error::Thread)?), port })
    }

    /// The port that the export listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Who has a session with an export: whoever asks, within the bounds.
struct Everybody {
    attr: ConnectAttr,
    welcome: Vec<u8>,
}

impl Admit for Everybody {
    type State = ();

    fn admit(
        &mut self,
        _: &Request<'_>,
        place: Claim<'_>,
        workshop: &Workshop<'_>,
    ) -> Result<Decision<()>, Refusal> {
        let place = place.take().map_err(|full| Refusal(full.to_string().into_bytes()))?;
        let (slots, slot_size, buffers) = (1, SLOT, Buffers::Own);
        let spec = Spec { slots, slot_size, sends: 0, unsent: 0, extra: 0, buffers, attr: self.attr };
        let opened = workshop.open(place, &spec)?;
        Ok(Decision::Session { opened, state: (), welcome: self.welcome.clone() })
    }
}

/// The service of an export: the device does it all.
struct OneSided;

impl Service for OneSided {
    type State = ();

    fn message(&mut self, _: &mut Session<()>, _: &Message) -> Result<(), Close> {
        // Nobody who writes one-sidedly has anything to say.
        Err(Close::Expelled)
    }
}

/// Writes one-sidedly to an exported region, several writes at a time.
#[derive(Debug)]
pub struct Writer {
    // It goes first: it has the endpoint's QP as well.
    _connection: Connection,
    endpoint: Endpoint,
    buffers: Mr,
    stride: u64,
    window: u64,
    export: Welcome,
    submitted: u64,
    finished: u64,
    wcs: Vec<Wc>,
    limit: Duration,
}

impl Writer {
    /// Connects; up to `window` writes of up to `write_max` bytes each may then be under way. `limit` is how long it
    /// waits for any one answer.
    ///
    /// # Errors
    /// Nobody exports memory there, or lets in one more writer, or the device has no room.
    pub fn connect(
        context: &Context,
        to: SocketAddr,
        window: u32,
        write_max: u32,
        limit: Duration,
    ) -> Result<Self, Error> {
        Self::connect_on(&Reactor::new(context)?, to, window, write_max, limit)
    }

    /// As [`connect`](Self::connect), on a reactor that others are on, too.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_on(
        reactor: &Reactor,
        to: SocketAddr,
        window: u32,
        write_max: u32,
        limit: Duration,
    ) -> Result<Self, Error> {
        let window = window.max(1);
        let pd = reactor.context().alloc_pd()?;
        let max_send_wr = 2 * window + 2;
        let caps = QpCaps { max_send_wr, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let endpoint = reactor.endpoint(&pd, caps)?;
        let connected = Connection::connect(endpoint.qp(), to, &ConnectAttr::default(), b"", Some(limit));
        let connection = connected.map_err(|error| match error {
            remanence_verbs::Error::Rejected { private_data, .. } if private_data.iter().any(|b| *b != 0) => {
                Error::Refused(to, printable(&private_data))
            }
            other => other.into(),
        })?;
        let export = Welcome::parse(&connection.private_data()).map_err(|_| Error::NotAnExport(to))?;
        let stride = u64::from(write_max).next_multiple_of(64) + 64;
        let buffers = pd.reg_mr(&Region::anonymous(stride * u64::from(window))?, Access::LOCAL_WRITE)?;
        Ok(Self {
            _connection: connection,
            endpoint,
            buffers,
            stride,
            window: window.into(),
            export,
            submitted: 0,
            finished: 0,
            wcs: Vec::new(),
            limit,
        })
    }

    /// Bytes that are exported.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty region cannot be exported")]
    pub fn len(&self) -> u64 {
        self.export.len
    }

    /// What the exporter's memory promises, as it says.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        self.export.guarantee
    }

    /// Which failures a write survives when a method has completed, with our responder at the other end (whose stores
    /// are a CPU's: WRITE and READ leave them in its cache). `None`: the method cannot be had.
    #[must_use]
    pub fn survives(&self, method: Method) -> Option<Survives> {
        match method {
            Method::Write | Method::WriteRead => Some(self.export.guarantee.before_psync),
            Method::WriteFlush => self.export.flush.then_some(self.export.guarantee.after_psync),
        }
    }

    /// How many writes may be submitted before one must be [waited](Self::wait) for.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.window - (self.submitted - self.finished)
    }

    /// Writes that have completed, ever.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Starts a write of bytes that are copied at once. Writes complete in order.
    ///
    /// # Errors
    /// It does not fit, or the method cannot be had; nothing was done. The connection is gone.
    ///
    /// # Panics
    /// There is no [`room`](Self::room), or the bytes are more than `write_max`.
    pub fn submit(&mut self, method: Method, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let len = bytes.len() as u64;
        assert!(self.room() > 0, "{} writes are under way, and none was waited for", self.window);
        assert!(len + 64 <= self.stride, "{len} bytes in a write of at most {}", self.stride - 64);
        if offset.checked_add(len).is_none_or(|end| end > self.export.len) {
            return Err(Error::OutOfRange { offset, len, region: self.export.len });
        }
        if method == Method::WriteFlush && !self.export.flush {
            return Err(Error::NoFlush(self.export.guarantee));
        }
        let at = self.submitted % self.window * self.stride;
        self.buffers.region().write(at, bytes);
        let remote = RemoteAddr { addr: offset, rkey: self.export.rkey };
        let (data, word) =
            ([self.buffers.sge(at, bytes.len() as u32)], [self.buffers.sge(at + self.stride - 64, WORD)]);
        let wr = |op, data, signaled| SendWr {
            wr_id: 0,
            op,
            data: Data::Sges(data),
            flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
            ud: None,
        };
        let mut doorbell = self.endpoint.qp().doorbell();
        doorbell.post_send(&wr(SendOp::Write(remote), &data, method == Method::Write))?;
        match method {
            Method::Write => {}
            Method::WriteRead => {
                // Of the last bytes that were written, or of what is there to be read.
                let addr = (offset + len)
                    .saturating_sub(WORD.into())
                    .min(self.export.len.saturating_sub(WORD.into()));
                let read = SendOp::Read(RemoteAddr { addr, rkey: self.export.rkey });
                doorbell.post_send(&wr(read, &word, true))?;
            }
            Method::WriteFlush => {
                let (placement, selectivity) = (Placement::Persistence, Selectivity::Range);
                let flush = SendOp::Flush { remote, len: bytes.len() as u32, placement, selectivity };
                doorbell.post_send(&wr(flush, &[], true))?;
            }
        }
        drop(doorbell);
        self.submitted += 1;
        Ok(())
    }

    /// Waits until at least one more write has completed, and says how many have, ever. Spins as long as that has paid
    /// lately.
    ///
    /// # Errors
    /// A write failed; the connection is of no use any more.
    pub fn wait(&mut self) -> Result<u64, Error> {
        if self.finished == self.submitted {
            return Ok(self.finished);
        }
        let mut n = self.endpoint.poll(&mut self.wcs)?;
        if n == 0 {
            n = self.endpoint.wait(&mut self.wcs, Some(self.limit))?;
        }
        if n == 0 {
            return Err(Error::Silent(self.limit));
        }
        for wc in self.wcs.drain(..) {
            if wc.status != WcStatus::Success {
                return Err(Error::Failed(wc.status));
            }
            self.finished += 1;
        }
        Ok(self.finished)
    }

    /// One write, and waits for it.
    ///
    /// # Errors
    /// As [`submit`](Self::submit) and [`wait`](Self::wait).
    pub fn write(&mut self, method: Method, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.submit(method, offset, bytes)?;
        let mine = self.submitted;
        while self.wait()? < mine {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;

    use super::*;

    #[test]
    fn what_an_export_tells_has_the_bytes_that_it_always_had() {
        let guarantee = Guarantee::of(PersistenceDomain::Adr);
        let welcome = Welcome { rkey: Rkey(0x0102_0304), len: 1 << 20, guarantee, flush: true };
        let mut bytes = [*b"PWR1", [1, 2, 3, 4], [0; 4], [0, 0x10, 0, 0]].concat();
        bytes.extend_from_slice(&guarantee.to_bits().to_be_bytes());
        bytes.push(1);
        assert_eq!(welcome.emit(), bytes);
        bytes.resize(196, 0);
        assert_eq!(Welcome::parse(&bytes), Ok(welcome), "as the connection manager hands it out");
        for len in 0..19 {
            assert!(Welcome::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        for (at, value) in [(0, b'Q'), (18, 2)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert!(Welcome::parse(&bad).is_err(), "byte {at}");
        }
    }
}
