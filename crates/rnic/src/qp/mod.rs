//! Queue pairs.
//!
//! A QP is a requester (turns WQEs into request packets), a completer (turns responses into completions), and a
//! responder (executes the peer's requests). They share the connection's identity and path, and nothing else.
//!
//! Read first: IBA Vol 1, 9.7 (reliable service) and 10.2, 10.3 (QPs and their states).

pub(crate) mod attr;
pub(crate) mod path;
pub(crate) mod state;
mod table;
pub(crate) mod timer;
mod verbs;

use remanence_wire::{Mtu, Qpn};

use crate::access::Access;
pub use attr::{QpAttr, QpCaps, QpInfo, QpInit, QpType};
use path::Path;
pub use state::QpState;
pub(crate) use table::QpTable;

use crate::wqe::{RecvQueue, SendQueue};

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// Where the table keeps it; names it in timers and the ready list.
    pub(crate) slot: u32,
    pub(crate) state: QpState,
    pub(crate) init: QpInit,
    /// As the consumer set them, for queries.
    pub(crate) attr: QpAttr,
    pub(crate) dest: Qpn,
    pub(crate) mtu: Mtu,
    pub(crate) access: Access,
    pub(crate) path: Option<Box<Path>>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
}
