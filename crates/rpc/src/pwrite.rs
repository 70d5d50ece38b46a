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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_pmem::{Guarantee, Region, Survives};
use remanence_rnic::{
    Access, Data, Placement, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Wc, WcStatus,
};
use remanence_verbs::{ConnectAttr, Connection, Context, Cq, Listener, Mr, Phase, Qp, QpOptions};
use remanence_wire::Rkey;

pub use crate::error::Error;

/// How long the exporter's thread sleeps at most before it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
const BACKLOG: usize = 64;
const MAGIC: u32 = 0x5057_5231; // "PWR1"
/// Bytes of what an exporter tells: magic, rkey, length, guarantee, flush.
const TOLD: usize = 4 + 4 + 8 + 2 + 1;
/// Bytes that the READ reads: it is there for its order, not for its data.
const WORD: u32 = 8;

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

/// A region that peers write to.
#[derive(Debug)]
pub struct Export {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    port: u16,
}

impl Export {
    /// Exports a region at a port of RDMA-CM's TCP port space, until this is dropped.
    ///
    /// # Errors
    /// The port is taken, the memory cannot be registered, or there is no thread to be had.
    pub fn start(context: &Context, port: u16, region: &Region) -> Result<Self, Error> {
        let listener = Listener::bind(context, port, BACKLOG)?;
        let pd = context.alloc_pd()?;
        let (mr, flush) = match pd.reg_mr(region, rights(true)) {
            Ok(mr) => (mr, true),
            Err(_) => (pd.reg_mr(region, rights(false))?, false),
        };
        let mut told = Vec::with_capacity(TOLD);
        told.extend_from_slice(&MAGIC.to_be_bytes());
        told.extend_from_slice(&mr.rkey().0.to_be_bytes());
        told.extend_from_slice(&region.len().to_be_bytes());
        told.extend_from_slice(&region.domain().guarantee().to_bits().to_be_bytes());
        told.push(flush.into());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let attr = ConnectAttr { access: rights(flush) - Access::LOCAL_WRITE, ..ConnectAttr::default() };
        let cq = context.create_cq(16, None, 0)?;
        let serve = move || {
            let mut connections: Vec<Connection> = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                if let Some(incoming) = listener.get_request(Some(LOOK)) {
                    // A peer that goes away meanwhile is its own business.
                    let connection =
                        pd.create_qp(&QpOptions::rc(&cq)).and_then(|qp| incoming.accept(&qp, &attr, &told));
                    connections.extend(connection);
                }
                connections
                    .retain(|connection| !matches!(connection.advance(), Ok(Phase::Ended(_)) | Err(_)));
            }
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
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes one-sidedly to an exported region, several writes at a time.
#[derive(Debug)]
pub struct Writer {
    qp: Qp,
    cq: Cq,
    _connection: Connection,
    buffers: Mr,
    stride: u64,
    window: u64,
    rkey: Rkey,
    len: u64,
    guarantee: Guarantee,
    flush: bool,
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
    /// Nobody exports memory there, or the device has no room.
    pub fn connect(
        context: &Context,
        to: SocketAddr,
        window: u32,
        write_max: u32,
        limit: Duration,
    ) -> Result<Self, Error> {
        let window = window.max(1);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(window + 1, None, 0)?;
        let mut options = QpOptions::rc(&cq);
        options.caps.max_send_wr = 2 * window + 2;
        let qp = pd.create_qp(&options)?;
        let connection = Connection::connect(&qp, to, &ConnectAttr::default(), b"", Some(limit))?;
        let told = connection.private_data();
        let stride = u64::from(write_max).next_multiple_of(64) + 64;
        let buffers = pd.reg_mr(&Region::anonymous(stride * u64::from(window))?, Access::LOCAL_WRITE)?;
        let u32_at = |at: usize| u32::from_be_bytes(told[at..at + 4].try_into().expect("four bytes"));
        let guarantee = told.get(16..18).and_then(|b| Guarantee::from_bits(u16::from_be_bytes([b[0], b[1]])));
        let Some(guarantee) = guarantee.filter(|_| told.len() >= TOLD && u32_at(0) == MAGIC) else {
            return Err(Error::NotAnExport(to));
        };
        Ok(Self {
            qp,
            cq,
            _connection: connection,
            buffers,
            stride,
            window: window.into(),
            rkey: Rkey(u32_at(4)),
            len: u64::from_be_bytes(told[8..16].try_into().expect("eight bytes")),
            guarantee,
            flush: told[18] != 0,
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
        self.len
    }

    /// What the exporter's memory promises, as it says.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// Which failures a write survives when a method has completed, with our responder at the other end (whose stores
    /// are a CPU's: WRITE and READ leave them in its cache). `None`: the method cannot be had.
    #[must_use]
    pub fn survives(&self, method: Method) -> Option<Survives> {
        match method {
            Method::Write | Method::WriteRead => Some(self.guarantee.before_psync),
            Method::WriteFlush => self.flush.then_some(self.guarantee.after_psync),
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
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange { offset, len, region: self.len });
        }
        if method == Method::WriteFlush && !self.flush {
            return Err(Error::NoFlush(self.guarantee));
        }
        let at = self.submitted % self.window * self.stride;
        self.buffers.region().write(at, bytes);
        let remote = RemoteAddr { addr: offset, rkey: self.rkey };
        let (data, word) =
            ([self.buffers.sge(at, bytes.len() as u32)], [self.buffers.sge(at + self.stride - 64, WORD)]);
        let wr = |op, data, signaled| SendWr {
            wr_id: 0,
            op,
            data: Data::Sges(data),
            flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
            ud: None,
        };
        let mut doorbell = self.qp.doorbell();
        doorbell.post_send(&wr(SendOp::Write(remote), &data, method == Method::Write))?;
        match method {
            Method::Write => {}
            Method::WriteRead => {
                // Of the last bytes that were written, or of what is there to be read.
                let addr =
                    (offset + len).saturating_sub(WORD.into()).min(self.len.saturating_sub(WORD.into()));
                let read = SendOp::Read(RemoteAddr { addr, rkey: self.rkey });
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
        let window = self.window as usize;
        let mut n = self.cq.poll(&mut self.wcs, window)?;
        if n == 0 {
            n = self.cq.wait(&mut self.wcs, window, Some(self.limit))?;
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
