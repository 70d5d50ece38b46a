//! What the controller of the bench and its server processes say to each other: JSON, a line each way.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::server_load::ServerLoad;

/// What carries the packets between server and clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// UDP over loopback.
    Udp,
    /// Shared memory of one host.
    Shm,
}

impl Carrier {
    /// The word of the reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// What is served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Served {
    /// Our store; durable when it acknowledges, or as the paper.
    Erda {
        durable: bool,
    },
    RedoLogging,
    ReadAfterWrite,
}

/// What a server process shall open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    pub(crate) served: Served,
    pub(crate) carrier: Carrier,
    /// The file that the store lies in; it is made, and goes when the store is closed.
    pub(crate) file: PathBuf,
    /// The file is memory that is declared to be in the persistence domain ADR, DDIO off; else it is what it is.
    pub(crate) declared: bool,
    pub(crate) key: usize,
    pub(crate) value: usize,
    /// Keys that there will be.
    pub(crate) keys: u64,
    /// Bytes of a store of ours.
    pub(crate) size: u64,
    /// What its application does besides.
    pub(crate) load: ServerLoad,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Answered with [`Reply::Opened`].
    Open(Open),
    /// Answered with [`Reply::Cost`].
    Cost,
    /// Answered with [`Reply::Closed`].
    Close,
}

/// CPU time and messages since the process began.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Messages that the application was sent, of the store that is open.
    pub(crate) messages: u64,
    /// Microseconds that the application spent on them.
    pub(crate) application_us: f64,
    /// Microseconds of the whole process: the application, the RNIC's engine, and waiting for either.
    pub(crate) process_us: f64,
}

impl Cost {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            application_us: self.application_us - before.application_us,
            process_us: self.process_us - before.process_us,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Opened { addr: SocketAddr, sentence: String },
    Cost(Cost),
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_survives_the_pipe() {
        let open = Open {
            served: Served::Erda { durable: true },
            carrier: Carrier::Shm,
            file: "/dev/shm/x".into(),
            declared: true,
            key: 23,
            value: 64,
            keys: 10,
            size: 1 << 20,
            load: ServerLoad::BUSY,
        };
        let text = serde_json::to_string(&Request::Open(open)).expect("plain data");
        assert!(!text.contains('\n'));
        let Ok(Request::Open(back)) = serde_json::from_str(&text) else { panic!("{text}") };
        assert_eq!(
            (back.served, back.carrier, back.load),
            (Served::Erda { durable: true }, Carrier::Shm, ServerLoad::BUSY)
        );
    }
}
