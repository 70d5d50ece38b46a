//! What the ends of the transport bench are told, and tell each other.

use serde::{Deserialize, Serialize};

/// What carries the packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Carrier {
    /// UDP sockets, whose device is driven by the thread that polls.
    Udp,
    /// UDP sockets, with a thread of the device's own beside whoever polls, as the C libraries have it.
    UdpServed,
    /// The same through `libibverbs.so.1`, in the directory that `REMANENCE_LIB` names.
    CAbi,
    /// AF_XDP sockets on a veth.
    Xdp,
    /// Shared memory between processes of one host.
    Shm,
    /// UDP sockets and nothing of ours: the physical limit.
    BareUdp,
    /// AF_XDP rings and nothing of ours: the physical limit.
    BareXdp,
}

/// What one run measures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// Bare: one datagram out and one back. Latency, per round trip.
    Ping,
    /// Bare: one way, with the offloads that we use, in a window that the receiver opens. Throughput.
    Stream,
    /// Bare: the same as RoCEv2 has it, and nothing more: an operation in the system calls that its packets take, each packet copied and
    /// with an ICRC at both ends. The limit of whoever speaks it over a socket. Throughput.
    Framed,
    /// Bare: one way, packets as long as those of small WRITEs, as many to a system call as we send. Rate.
    Rate,
    /// Post to completion of one RDMA WRITE. Latency.
    Write,
    /// Post to completion of one RDMA READ. Latency.
    Read,
    /// Post to completion of one SEND. Latency.
    Send,
    /// Post to completion of a FLUSH of the range just written, placement global visibility. Latency.
    Flush,
    /// The same with placement persistence, on a file in the page cache: one fdatasync each. Latency.
    FlushPersistent,
    /// Post to completion of a CmpSwap. Latency.
    CompareSwap,
    /// Post to completion of a FetchAdd. Latency.
    FetchAdd,
    /// Post to completion of an ATOMIC WRITE. Latency.
    AtomicWrite,
    /// WRITEs in flight. Throughput.
    WriteStream,
    /// READs in flight. Throughput.
    ReadStream,
    /// SENDs in flight. Throughput.
    SendStream,
    /// Small WRITEs in flight, posted one by one. Rate.
    WriteRate,
    /// Each side WRITEs into the other's memory and polls its own. Latency, half of a round trip.
    PingPong,
}

impl Test {
    /// Whether a run yields one value for the whole burst and not one for each operation.
    #[must_use]
    pub(crate) const fn is_burst(self) -> bool {
        matches!(
            self,
            Self::Stream
                | Self::Framed
                | Self::Rate
                | Self::WriteStream
                | Self::ReadStream
                | Self::SendStream
                | Self::WriteRate
        )
    }

    /// The operation's name in a report.
    #[must_use]
    pub(crate) const fn op(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            // With the offloads that they use.
            Self::Stream => "stream, GSO and GRO",
            Self::Framed => "framed, GSO and GRO",
            Self::Rate => "rate",
            Self::Write | Self::WriteStream | Self::WriteRate => "write",
            Self::Read | Self::ReadStream => "read",
            Self::Send | Self::SendStream => "send",
            Self::Flush => "flush",
            Self::FlushPersistent => "flush-persistent",
            Self::CompareSwap => "cas",
            Self::FetchAdd => "faa",
            Self::AtomicWrite => "atomic-write",
            Self::PingPong => "ping-pong",
        }
    }
}

/// Where an end's QP and memory are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    /// GID as an IP address.
    pub(super) gid: std::net::Ipv6Addr,
    /// The number of its QP.
    pub(super) qpn: u32,
    /// The first PSN that its QP sends.
    pub(super) psn: u32,
    /// Of the memory that the peer may reach.
    pub(super) rkey: u32,
    /// Its first address.
    pub(super) addr: u64,
    /// Of the file that the peer may reach, whose first address is 0.
    pub(super) file_rkey: u32,
}

/// Where the other end finds one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Where {
    /// A queue pair of ours.
    Qp(Endpoint),
    /// A bare socket's address, with a port that the kernel chose.
    Socket(std::net::SocketAddr),
    /// Whatever the interface carries is for it.
    Interface,
}

/// What an end shall be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// What to open.
    pub(super) carrier: Carrier,
    /// Its own address.
    pub(super) address: std::net::IpAddr,
    /// The address of the other end.
    pub(super) peer: std::net::IpAddr,
    /// The network interface.
    pub(super) interface: String,
    /// It is the end that answers.
    pub(super) server: bool,
}

/// What is run, and served meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Burst {
    /// The test to run.
    pub(super) test: Test,
    /// Bytes of an operation.
    pub(super) size: u64,
    /// How long, in milliseconds.
    pub(super) ms: u64,
}
