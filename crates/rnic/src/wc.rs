//! Work completions: what a consumer polls.

use std::fmt;

use remanence_wire::{Qpn, Rkey};

/// `enum ibv_wc_status`, with its values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum WcStatus {
    /// The work request was executed.
    Success = 0,
    /// The posted buffers are too small for an incoming message, or a message is too large to send.
    LocLenErr = 1,
    /// Inconsistent state of the QP while the work request was processed.
    LocQpOpErr = 2,
    /// A local buffer is not within a live MR with the right access.
    LocProtErr = 4,
    /// Flushed: the QP entered the error state before this work request finished.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The peer's response made no sense.
    BadRespErr = 7,
    /// A protection error on a local buffer while an RDMA WRITE with immediate or SEND was received.
    LocAccessErr = 8,
    /// The peer refused the request as invalid (unsupported, malformed, too long).
    RemInvReqErr = 9,
    /// The peer refused the access (rkey, bounds, rights, PD).
    RemAccessErr = 10,
    /// The peer could not complete the operation.
    RemOpErr = 11,
    /// The peer did not answer within the retry count.
    RetryExcErr = 12,
    /// The peer had no receive buffer within the RNR retry count.
    RnrRetryExcErr = 13,
    /// An error that no other status describes.
    GeneralErr = 21,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local QP operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "work request flushed error",
            Self::MwBindErr => "memory bind operation error",
            Self::BadRespErr => "bad response error",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote invalid request error",
            Self::RemAccessErr => "remote access error",
            Self::RemOpErr => "remote operation error",
            Self::RetryExcErr => "transport retry counter exceeded",
            Self::RnrRetryExcErr => "RNR retry counter exceeded",
            Self::GeneralErr => "general error",
        })
    }
}

/// `enum ibv_wc_opcode`, with its values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum WcOpcode {
    /// SEND, with immediate or invalidate too.
    Send = 0,
    /// RDMA WRITE, with immediate too.
    RdmaWrite = 1,
    /// An RDMA READ, whose data has arrived.
    RdmaRead = 2,
    /// A CmpSwap, whose original value has arrived.
    CompSwap = 3,
    /// A FetchAdd, whose original value has arrived.
    FetchAdd = 4,
    /// Memory window bound.
    BindMw = 5,
    /// An invalidation of a local key, which sends nothing.
    LocalInv = 6,
    /// A FLUSH, whose placement the responder has answered for.
    Flush = 8,
    /// An ATOMIC WRITE of 8 bytes.
    AtomicWrite = 9,
    /// A message was received.
    Recv = 128,
    /// An RDMA WRITE with immediate was received.
    RecvRdmaWithImm = 129,
}

/// A work completion. With a status other than success only `wr_id`, `status` and `qpn` mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wc {
    /// Of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// Which operation ended.
    pub opcode: WcOpcode,
    /// Bytes moved: received ones on the receive side, READ or atomic ones on the send side.
    pub byte_len: u32,
    /// The immediate, host order.
    pub imm: Option<u32>,
    /// The rkey that a SEND with invalidate took away.
    pub invalidated: Option<Rkey>,
    /// The local QP.
    pub qpn: Qpn,
    /// UD: the sender's QP.
    pub src_qp: Qpn,
    /// UD: a 40-byte GRH area precedes the data (always so on RoCE).
    pub grh: bool,
    /// UD: that area holds an IPv4 header, in its last 20 bytes.
    pub ipv4: bool,
    /// The completion was solicited by the sender.
    pub solicited: bool,
}

impl Wc {
    /// A successful completion of nothing yet.
    #[must_use]
    pub const fn new(opcode: WcOpcode, qpn: Qpn) -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn,
            src_qp: Qpn::new(0),
            grh: false,
            ipv4: false,
            solicited: false,
        }
    }
}
