//! Single operations against scratch memory of a server, for `rem ping`, `rem perf` and benches.

use std::time::{Duration, Instant};

use remanence_rnic::{Placement, RemoteAddr, Selectivity, SendOp};
use remanence_wire::Rkey;

use super::network::Happened;
use super::{Client, LossReason, Lost, News, ServerIndex};
use crate::proto::{RemoteExtent, Reply, Request};

/// An operation that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A request and its reply, by SEND and RECV: a round trip through the server's program.
    Ping,
    /// RDMA WRITE: visible at the server when it completes.
    Write,
    /// RDMA READ: its completion brings the bytes.
    Read,
    /// RDMA WRITE, then FLUSH: durable at the server when it completes, if the pool is.
    DurableWrite,
    /// FLUSH of a range that nothing was written to.
    Flush,
    /// CmpSwap on 8 bytes.
    CompareSwap,
    /// FetchAdd on 8 bytes.
    FetchAdd,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Ping,
        Self::Write,
        Self::Read,
        Self::DurableWrite,
        Self::Flush,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::AtomicWrite,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Write => "write",
            Self::Read => "read",
            Self::DurableWrite => "durable-write",
            Self::Flush => "flush",
            Self::CompareSwap => "cas",
            Self::FetchAdd => "faa",
            Self::AtomicWrite => "atomic-write",
        }
    }

    /// Bytes that it moves when `size` are asked for.
    #[must_use]
    pub const fn bytes(self, size: u32) -> u32 {
        match self {
            Self::Write | Self::Read | Self::DurableWrite | Self::Flush => size,
            Self::CompareSwap | Self::FetchAdd | Self::AtomicWrite => 8,
            Self::Ping => 0,
        }
    }
}

/// Scratch memory of one server, given back when dropped.
pub struct Scratch<'a> {
    client: &'a mut Client,
    server: ServerIndex,
    reservation: u64,
    remote: RemoteExtent,
}

impl Client {
    /// Reserves scratch memory.
    ///
    /// # Errors
    /// The server is lost or full.
    pub fn scratch(&mut self, server: ServerIndex, bytes: u64) -> Result<Scratch<'_>, Lost> {
        match self.request(server, Request::Scratch { bytes: bytes.max(8) })? {
            Reply::Reserved { reservation, extents, .. } => match extents.first() {
                Some(remote) if remote.len >= bytes => {
                    Ok(Scratch { server, reservation, remote: *remote, client: self })
                }
                _ => {
                    let why =
                        LossReason::Local("the pool is too fragmented for so much scratch memory".into());
                    Err(Lost { server: self.name(server).to_owned(), why })
                }
            },
            other => Err(self.nonsense(server, other)),
        }
    }
}

impl Scratch<'_> {
    /// Does `op` with `size` bytes once, and waits until it is complete.
    ///
    /// # Errors
    /// The server is lost.
    pub fn once(&mut self, op: Op, size: u32) -> Result<Duration, Lost> {
        let began = Instant::now();
        if op == Op::Ping {
            self.client.request(self.server, Request::Ping)?;
        } else {
            let last = self.post(op, size)?;
            self.wait_for(last)?;
        }
        Ok(began.elapsed())
    }

    /// Does `op` as often as possible for `time`, with up to `depth` under way. Returns how many completed and how long
    /// that took.
    ///
    /// # Errors
    /// The server is lost.
    pub fn stream(
        &mut self,
        op: Op,
        size: u32,
        depth: usize,
        time: Duration,
    ) -> Result<(u64, Duration), Lost> {
        let began = Instant::now();
        let (mut done, mut under_way) = (0, std::collections::VecDeque::new());
        if op == Op::Ping {
            while began.elapsed() < time {
                self.once(op, size)?;
                done += 1;
            }
            return Ok((done, began.elapsed()));
        }
        loop {
            let open = began.elapsed() < time;
            // A durable write is two work requests.
            while open
                && under_way.len() < depth
                && self.client.link(self.server).is_some_and(|link| link.budget() >= 2)
            {
                under_way.push_back(self.post(op, size)?);
            }
            let Some(first) = under_way.pop_front() else { break };
            self.wait_for(first)?;
            done += 1;
        }
        Ok((done, began.elapsed()))
    }

    /// Posts the work requests of an operation; the tag is the last one's.
    fn post(&mut self, op: Op, size: u32) -> Result<u64, Lost> {
        let to = RemoteAddr { addr: self.remote.addr, rkey: Rkey(self.remote.rkey) };
        let flush = SendOp::Flush {
            remote: to,
            len: size.max(1),
            placement: if self.durable() { Placement::Persistence } else { Placement::GlobalVisibility },
            selectivity: Selectivity::Range,
        };
        let chunk = (0, op.bytes(size));
        let mut post = |op: SendOp, with_data: bool| {
            let tag = self.client.tag();
            let chunk = with_data.then_some(chunk);
            self.client.on(self.server, |link| link.post(op, chunk, tag)).map(|()| tag)
        };
        match op {
            Op::Ping => unreachable!("a request, not a work request"),
            Op::Write => post(SendOp::Write(to), true),
            Op::Read => post(SendOp::Read(to), true),
            Op::DurableWrite => {
                post(SendOp::Write(to), true)?;
                post(flush, false)
            }
            Op::Flush => post(flush, false),
            Op::CompareSwap => post(SendOp::CompareSwap { remote: to, compare: 0, swap: 0 }, true),
            Op::FetchAdd => post(SendOp::FetchAdd { remote: to, add: 1 }, true),
            Op::AtomicWrite => post(SendOp::AtomicWrite(to), true),
        }
    }

    /// Whether the server's pool can make anything durable.
    #[must_use]
    pub fn durable(&self) -> bool {
        self.client.info(self.server).is_some_and(|info| info.guarantee.is_durable())
    }

    fn wait_for(&mut self, tag: u64) -> Result<(), Lost> {
        loop {
            match self.client.next_news() {
                Some(News::From(_, Happened::Completed(done))) if done == tag => return Ok(()),
                Some(News::Lost(server)) if server == self.server => {
                    return Err(self.client.why_lost(server));
                }
                Some(_) | None => {}
            }
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let reservation = self.reservation;
        let _ = self.client.on(self.server, |link| link.tell(Request::Abandon { reservation }));
    }
}
