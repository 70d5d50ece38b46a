//! Measures operations between two connected QPs: the client's half times them, the server's half is their target.
//!
//! The client says in the private data of its connection request what the server shall do ([`Role`]); the server
//! answers with the address and key of its memory. Both halves spin: wake-ups are not what is measured.

use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{
    Access, Data, Placement, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Wc, WcStatus,
};
use remanence_wire::Rkey;

use crate::connect::{Connection, Incoming, Phase};
use crate::context::Context;
use crate::cq::Cq;
use crate::error::Error;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::{ConnectAttr, Qp, QpOptions};

/// How many work requests each queue of the measured QPs holds.
pub const DEPTH_MAX: u32 = 512;

/// What the server does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// Nothing: its memory is the target of one-sided operations, which its progress thread serves.
    Target = 0,
    /// Sends each message back.
    Echo = 1,
    /// Takes messages and forgets them.
    Sink = 2,
    /// Watches the last byte of its memory's first `size` bytes, and writes as many back when it changes.
    Pong = 3,
}

impl Role {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Target, Self::Echo, Self::Sink, Self::Pong].into_iter().find(|role| *role as u8 == byte)
    }
}

/// The operations that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// RDMA WRITE into the peer's memory.
    Write,
    /// RDMA READ of the peer's memory.
    Read,
    /// SEND, one way.
    Send,
    /// CmpSwap on 8 bytes of the peer's memory.
    CompareSwap,
    /// FetchAdd on 8 bytes of the peer's memory.
    FetchAdd,
    /// ATOMIC WRITE of 8 bytes into the peer's memory.
    AtomicWrite,
    /// FLUSH of the range with placement type global visibility.
    FlushGlobal,
    /// FLUSH of the range with placement type persistence.
    FlushPersistent,
}

impl Operation {
    /// What the server must do for it.
    #[must_use]
    pub fn role(self) -> Role {
        match self {
            Self::Send => Role::Sink,
            Self::Write
            | Self::Read
            | Self::CompareSwap
            | Self::FetchAdd
            | Self::AtomicWrite
            | Self::FlushGlobal
            | Self::FlushPersistent => Role::Target,
        }
    }

    fn op(self, remote: RemoteAddr, len: u32) -> SendOp {
        let flush = |placement| SendOp::Flush { remote, len, placement, selectivity: Selectivity::Range };
        match self {
            Self::Write => SendOp::Write(remote),
            Self::Read => SendOp::Read(remote),
            Self::Send => SendOp::Send,
            Self::CompareSwap => SendOp::CompareSwap { remote, compare: 0, swap: 0 },
            Self::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            Self::AtomicWrite => SendOp::AtomicWrite(remote),
            Self::FlushGlobal => flush(Placement::GlobalVisibility),
            Self::FlushPersistent => flush(Placement::Persistence),
        }
    }
}

/// What a stream did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stream {
    /// Operations that completed with success.
    pub operations: u64,
    /// Bytes moved by them.
    pub bytes: u64,
    /// From the first posting to the last completion.
    pub elapsed: Duration,
}

impl Stream {
    /// 10^9 bytes a second.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_nanos() as f64
    }

    /// 10^6 operations a second.
    #[must_use]
    pub fn mega_operations_per_second(&self) -> f64 {
        self.operations as f64 * 1000.0 / self.elapsed.as_nanos() as f64
    }
}

/// The end that measures.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    cq: Cq,
    local: Mr,
    remote: RemoteAddr,
    wcs: Vec<Wc>,
}

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

fn access_of(region: &Region) -> Access {
    if region.domain().guarantee().is_durable() { ACCESS | Access::FLUSH_PERSISTENT } else { ACCESS }
}

fn create_qp(pd: &Pd, cq: &Cq) -> Result<Qp, Error> {
    let mut options = QpOptions::rc(cq);
    options.caps.max_send_wr = DEPTH_MAX;
    options.caps.max_recv_wr = DEPTH_MAX;
    pd.create_qp(&options)
}

impl Client {
    /// Connects to a [server](serve) that plays `role` with messages of `size` bytes.
    ///
    /// # Errors
    /// The server is not there or refuses, or the device has no room.
    pub fn connect(
        context: &Context,
        peer: std::net::SocketAddr,
        role: Role,
        size: u32,
        memory: &Region,
    ) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(4 * DEPTH_MAX, None, 0)?;
        let local = pd.reg_mr(memory, access_of(memory))?;
        let qp = create_qp(&pd, &cq)?;
        let mut hello = vec![role as u8];
        hello.extend(size.to_be_bytes());
        hello.extend(local.rkey().0.to_be_bytes());
        let limit = Some(Duration::from_secs(10));
        let connection = Connection::connect(&qp, peer, &ConnectAttr::default(), &hello, limit)?;
        let reply = connection.private_data();
        let rkey = reply.first_chunk().map(|bytes| Rkey(u32::from_be_bytes(*bytes))).unwrap_or_default();
        let remote = RemoteAddr { addr: 0, rkey };
        Ok(Self { connection, cq, local, remote, wcs: Vec::with_capacity(64) })
    }

    /// The connection that the measurements are made over.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The memory here that operations read from and write to.
    #[must_use]
    pub fn local(&self) -> &Mr {
        &self.local
    }

    fn post(&self, operation: Operation, size: u32, wr_id: u64) -> Result<(), Error> {
        let len = match operation {
            Operation::Write | Operation::Read | Operation::Send => size,
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite => 8,
            Operation::FlushGlobal | Operation::FlushPersistent => 0,
        };
        let sge = [self.local.sge(0, len)];
        let sges = if len == 0 { &sge[..0] } else { &sge[..] };
        let op = operation.op(self.remote, size);
        let wr = SendWr { wr_id, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None };
        Ok(self.connection.qp().post_send(&wr)?)
    }

    /// Spins until at least one completion is there; returns how many.
    fn complete(&mut self) -> Result<usize, Error> {
        self.wcs.clear();
        let mut idle = 0u32;
        while self.cq.poll(&mut self.wcs, 64)? == 0 {
            idle += 1;
            // A dead peer shows as a completion with an error, when the retries are used up; a connection that ended
            // otherwise shows here.
            if idle.is_multiple_of(1 << 20) && matches!(self.connection.advance()?, Phase::Ended(_)) {
                return Err(Error::Disconnected(self.connection.peer_addr()));
            }
        }
        match self.wcs.iter().find(|wc| wc.status != WcStatus::Success) {
            Some(wc) => Err(Error::Completion(wc.status)),
            None => Ok(self.wcs.len()),
        }
    }

    /// Times `count` operations one after the other, from posting to completion.
    ///
    /// # Errors
    /// An operation failed.
    pub fn latency(&mut self, operation: Operation, size: u32, count: usize) -> Result<Vec<Duration>, Error> {
        let mut samples = Vec::with_capacity(count);
        let mut begin = Instant::now();
        for i in 0..count {
            self.post(operation, size, i as u64)?;
            self.complete()?;
            let end = Instant::now();
            samples.push(end - begin);
            begin = end;
        }
        Ok(samples)
    }

    /// Times `count` operations, `depth` of them outstanding.
    ///
    /// # Errors
    /// An operation failed.
    pub fn stream(
        &mut self,
        operation: Operation,
        size: u32,
        depth: u32,
        count: u64,
    ) -> Result<Stream, Error> {
        let depth = u64::from(depth.clamp(1, DEPTH_MAX));
        let begin = Instant::now();
        let (mut posted, mut completed) = (0, 0);
        while completed < count {
            while posted < count && posted - completed < depth {
                self.post(operation, size, posted)?;
                posted += 1;
            }
            completed += self.complete()? as u64;
        }
        Ok(Stream { operations: count, bytes: count * u64::from(size), elapsed: begin.elapsed() })
    }

    /// Times `count` SENDs that a server with [`Role::Echo`] sends back: round trips.
    ///
    /// # Errors
    /// An operation failed.
    pub fn send_round_trips(&mut self, size: u32, count: usize) -> Result<Vec<Duration>, Error> {
        let qp = self.connection.qp().clone();
        let receive = [self.local.sge(u64::from(size), size)];
        let mut samples = Vec::with_capacity(count);
        let mut begin = Instant::now();
        for i in 0..count as u64 {
            qp.post_recv(&RecvWr { wr_id: i, sges: &receive })?;
            self.post(Operation::Send, size, i)?;
            // The completion of the send, and that of the echo.
            let mut missing = 2;
            while missing > 0 {
                missing -= self.complete()?;
            }
            let end = Instant::now();
            samples.push(end - begin);
            begin = end;
        }
        Ok(samples)
    }

    /// Times `count` WRITEs that a server with [`Role::Pong`] answers by WRITEs, each side watching its memory:
    /// round trips.
    ///
    /// # Errors
    /// An operation failed.
    pub fn write_round_trips(&mut self, size: u32, count: usize) -> Result<Vec<Duration>, Error> {
        let region = self.local.region().clone();
        let (from, watched) = (u64::from(size), u64::from(size) - 1);
        let qp = self.connection.qp().clone();
        let sge = [self.local.sge(from, size)];
        let mut samples = Vec::with_capacity(count);
        let mut outstanding = 0;
        let mut begin = Instant::now();
        for i in 0..count {
            let mark = (i % 255) as u8 + 1;
            region.write(from + watched, &[mark]);
            let op = SendOp::Write(self.remote);
            let wr =
                SendWr { wr_id: i as u64, op, data: Data::Sges(&sge), flags: SendFlags::SIGNALED, ud: None };
            qp.post_send(&wr)?;
            outstanding += 1;
            let mut byte = [0];
            loop {
                region.read(watched, &mut byte);
                if byte[0] == mark {
                    break;
                }
                self.wcs.clear();
                self.cq.poll(&mut self.wcs, 64)?;
                outstanding -= self.wcs.len();
                if let Some(wc) = self.wcs.iter().find(|wc| wc.status != WcStatus::Success) {
                    return Err(Error::Completion(wc.status));
                }
            }
            let end = Instant::now();
            samples.push(end - begin);
            begin = end;
        }
        while outstanding > 0 {
            outstanding -= self.complete()?;
        }
        Ok(samples)
    }
}

/// Serves one client until its connection ends. `memory` must hold twice the size of its messages.
///
/// # Errors
/// The client asks for what this server does not do, or the device has no room.
pub fn serve(context: &Context, incoming: Incoming, memory: &Region) -> Result<(), Error> {
    let hello = incoming.private_data().to_vec();
    let (Some(role), Some(size), Some(rkey)) = (
        hello.first().and_then(|&byte| Role::from_byte(byte)),
        hello.get(1..5).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_be_bytes(*bytes)),
        hello.get(5..9).and_then(|bytes| bytes.first_chunk()).map(|bytes| Rkey(u32::from_be_bytes(*bytes))),
    ) else {
        return incoming.reject(b"");
    };
    if u64::from(size) * 2 > memory.len() {
        return incoming.reject(b"");
    }
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(4 * DEPTH_MAX, None, 0)?;
    let mr = pd.reg_mr(memory, access_of(memory))?;
    let qp = create_qp(&pd, &cq)?;
    let receives = matches!(role, Role::Echo | Role::Sink);
    let receive = [mr.sge(0, size)];
    let connection = incoming.accept(&qp, &ConnectAttr::default(), &mr.rkey().0.to_be_bytes())?;
    for wr_id in 0..if receives { u64::from(DEPTH_MAX) } else { 0 } {
        qp.post_recv(&RecvWr { wr_id, sges: &receive })?;
    }
    connection.wait_established(Some(Duration::from_secs(10)))?;
    let server = Server { connection, cq, mr, client: RemoteAddr { addr: 0, rkey }, size };
    match role {
        Role::Target => server.connection.wait_ended(None).map(|_| ()),
        Role::Echo => server.receive(true),
        Role::Sink => server.receive(false),
        Role::Pong => server.pong(),
    }
}

struct Server {
    connection: Connection,
    cq: Cq,
    mr: Mr,
    client: RemoteAddr,
    size: u32,
}

impl Server {
    fn is_over(&self) -> Result<bool, Error> {
        Ok(matches!(self.connection.advance()?, Phase::Ended(_)))
    }

    fn receive(&self, echo: bool) -> Result<(), Error> {
        let qp = self.connection.qp();
        let receive = [self.mr.sge(0, self.size)];
        let mut wcs = Vec::with_capacity(64);
        loop {
            wcs.clear();
            if self.cq.poll(&mut wcs, 64)? == 0 && self.is_over()? {
                return Ok(());
            }
            for wc in &wcs {
                if wc.status != WcStatus::Success {
                    return self.connection.wait_ended(Some(Duration::from_secs(10))).map(|_| ());
                }
                if wc.opcode == remanence_rnic::WcOpcode::Recv {
                    qp.post_recv(&RecvWr { wr_id: wc.wr_id, sges: &receive })?;
                    if echo {
                        let sge = [self.mr.sge(0, wc.byte_len)];
                        qp.post_send(&signaled(SendOp::Send, &sge))?;
                    }
                }
            }
        }
    }

    fn pong(&self) -> Result<(), Error> {
        let region = self.mr.region();
        let (from, watched) = (u64::from(self.size), u64::from(self.size) - 1);
        let sge = [self.mr.sge(from, self.size)];
        let mut wcs = Vec::with_capacity(64);
        let mut last = [0];
        region.read(watched, &mut last);
        loop {
            let mut byte = [0];
            region.read(watched, &mut byte);
            if byte != last {
                last = byte;
                region.write(from + watched, &byte);
                self.connection.qp().post_send(&signaled(SendOp::Write(self.client), &sge))?;
            }
            wcs.clear();
            if self.cq.poll(&mut wcs, 64)? == 0 && self.is_over()? {
                return Ok(());
            }
            if wcs.iter().any(|wc| wc.status != WcStatus::Success) {
                return self.connection.wait_ended(Some(Duration::from_secs(10))).map(|_| ());
            }
        }
    }
}

fn signaled(op: SendOp, sges: &[remanence_rnic::Sge]) -> SendWr<'_> {
    SendWr { wr_id: 0, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None }
}
