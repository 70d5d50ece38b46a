//! RDMA verbs on a software RNIC, with the names of libibverbs.
//!
//! [`Context`] is an open device; everything else is made from it. A [`Region`] is registered as an [`Mr`], a [`Qp`] reports to a
//! [`Cq`], and a [`Connection`] joins two QPs. A completed WRITE or SEND is visible at the other side and no more. A completed FLUSH with
//! [`Placement::Persistence`] is durable: it, and all that its QP wrote in that range before.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use remanence::verbs::{
//!     Access, ConnectAttr, Connection, Context, Data, QpOptions, Region, RemoteAddr, Rkey, SendFlags, SendOp, SendWr,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server: std::net::SocketAddr = "192.0.2.7:7471".parse()?;
//! let context = Context::towards(server.ip())?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16, None, 0)?;
//! let qp = pd.create_qp(&QpOptions::rc(&cq))?;
//! let limit = Some(Duration::from_secs(10));
//! let connection = Connection::connect(&qp, server, &ConnectAttr::default(), b"hello", limit)?;
//! // The server has sent the key to its memory along with its answer, say.
//! let rkey = Rkey(u32::from_be_bytes(*connection.private_data().first_chunk().ok_or("no rkey")?));
//!
//! let memory = Region::anonymous(4096)?;
//! let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
//! memory.write(0, b"hello, memory");
//! let op = SendOp::Write(RemoteAddr { addr: 100, rkey });
//! let data = Data::Sges(&[mr.sge(0, 13)]);
//! qp.post_send(&SendWr { wr_id: 1, op, data, flags: SendFlags::SIGNALED, ud: None })?;
//! let mut completions = Vec::new();
//! cq.wait(&mut completions, 1, limit)?;
//! println!("{}", completions.first().ok_or("it takes too long")?.status);
//! # Ok(())
//! # }
//! ```
//!
//! `cargo run -p remanence --example verbs` is both sides of it; `crates/verbs/examples` of the repository are numbered, each adding
//! one idea. [`link`] has what carries a device's packets besides UDP sockets, and a network that is bad on purpose.

pub use remanence_rnic::cm::{CmError, Ended, Request as ConnectRequest};
pub use remanence_rnic::{
    Access, AhAttr, AhHandle, AsyncEvent, Config as DeviceConfig, CqError, CqHandle, Data, MwBind, MwHandle,
    MwType, PdHandle, Placement, PlacementSupport, PostError, QpAttr, QpCaps, QpInfo, QpInit, QpState,
    QpType, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Sge, SrqAttr, SrqHandle,
    Stats as DeviceStats, UdDest, VerbError, Wc, WcOpcode, WcStatus,
};
pub use remanence_verbs::{
    Ah, CompChannel, ConnectAttr, Connection, Context, Cq, CqEvent, DeviceEvent, Doorbell, Error, Incoming,
    LinkKind, Listener, Mr, MrMemory, Mw, Options, Pd, Phase, Port, Progress, ProgressStats, Qp, QpEndpoint,
    QpOptions, Srq,
};
pub use remanence_wire::cm::RejReason;
pub use remanence_wire::{Gid, Lkey, Mtu, Pkey, Psn, Qkey, Qpn, Rkey};

pub use crate::pmem::Region;

/// What carries the packets of a device, for [`LinkKind`] and [`Options`].
pub mod link {
    pub use remanence_link::fault::{FaultControl, FaultStats, Faults, Plan as FaultPlan};
    pub use remanence_link::shm::Config as ShmConfig;
    pub use remanence_link::udp::Options as UdpOptions;
    pub use remanence_link::xdp::{Config as XdpConfig, Mode as XdpMode};
    pub use remanence_link::{Event, Link, LinkCaps, LinkStats, Outgoing, Received, WaitFd};
}
