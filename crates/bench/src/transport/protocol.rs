//! What the controller of the transport bench and its two agents say to each other: a line of JSON each, over the
//! agents' standard input and output. Agents wait in a blocking read between runs, so that they cost nothing.

use serde::{Deserialize, Serialize};

/// What carries the packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Carrier {
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
    pub(super) const fn is_burst(self) -> bool {
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
    pub(super) const fn op(self) -> &'static str {
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

/// Where an agent's QP and memory are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Endpoint {
    /// GID as an IP address.
    pub(super) gid: std::net::Ipv6Addr,
    /// The number of the agent's QP.
    pub(super) qpn: u32,
    /// The first PSN that the agent's QP sends.
    pub(super) psn: u32,
    /// Of the memory that the peer may reach.
    pub(super) rkey: u32,
    /// Its first address.
    pub(super) addr: u64,
    /// Of the file that the peer may reach, whose first address is 0.
    pub(super) file_rkey: u32,
}

/// Where the other agent finds one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Where {
    /// Of ours.
    Qp(Endpoint),
    /// A bare socket's address, with a port that the kernel chose.
    Socket(std::net::SocketAddr),
    /// Whatever the interface carries is for it.
    Interface,
}

/// Controller to agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Open a carrier at `address`; answered by [`Reply::Opened`].
    Open {
        /// What to open.
        carrier: Carrier,
        /// The address of the agent that opens.
        address: std::net::IpAddr,
        /// The address of the other agent.
        peer: std::net::IpAddr,
        /// The network interface.
        interface: String,
    },
    /// Connect to the other agent.
    Connect {
        /// Where it is.
        peer: Where,
        /// The agent that is told is the one that answers.
        serves: bool,
    },
    /// Serve the peer, spinning, until [`Request::Stop`].
    Serve {
        /// What the peer will run.
        test: Test,
        /// With which size.
        size: u64,
    },
    /// Stop serving the peer.
    Stop,
    /// Run a test.
    Run {
        /// The test to run.
        test: Test,
        /// Bytes of an operation.
        size: u64,
        /// How long, in milliseconds.
        ms: u64,
    },
}

/// Agent to controller.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// Open, and to be found there.
    Opened(Where),
    /// Done, nothing to say.
    Ok,
    /// Nanoseconds of each operation, or for a burst one pair of operations and nanoseconds.
    Samples(Vec<u64>),
}
