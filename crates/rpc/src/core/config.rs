//! What an endpoint is created with.

use std::time::Duration;

use remanence_auth::Token;
use remanence_wire::{Gid, Qpn};

use crate::header::{Address, HEADER_LEN};

/// The limits and times of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tells this endpoint from earlier ones at the same address: must grow with every start of the program (the time
    /// of day in nanoseconds does).
    pub incarnation: u64,
    /// Draws the keys of sessions.
    pub seed: u64,
    /// What a client must prove to have to get a session, and what this endpoint proves to its servers to have. `None`:
    /// everybody gets one.
    pub token: Option<Token>,
    /// Draws the nonces of such proofs: random, and never the same twice.
    pub secret: [u8; 32],
    /// Where this endpoint is, as its servers see it: proofs are bound to it.
    pub own: Address,
    /// The largest datagram to send or receive, header included, in bytes.
    pub datagram: usize,
    /// The largest message to send or accept, in bytes.
    pub message_max: u32,
    /// Packets that one session may have under way.
    pub credits: u16,
    /// Calls of a session that may wait for a free slot.
    pub backlog: usize,
    /// Sessions at a time, of both kinds.
    pub sessions_max: usize,
    /// A packet is not sent again before this has passed.
    pub timeout_min: Duration,
    /// The timeout does not grow beyond this.
    pub timeout_max: Duration,
    /// How often a client asks for a response that the server still works on.
    pub probe: Duration,
    /// A server that says nothing for so long, though it was asked, is taken for dead.
    pub patience: Duration,
    /// How often an idle session is kept alive. Well below the peer's `silence_max`.
    pub ping: Duration,
    /// A client that says nothing for so long is forgotten.
    pub silence_max: Duration,
    /// Round trips beyond this say that queues build up, unless four of the shortest are more.
    pub queueing: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            incarnation: 0,
            seed: 0,
            token: None,
            secret: [0; 32],
            own: Address { gid: Gid([0; 16]), qpn: Qpn::new(0) },
            datagram: 4096,
            message_max: 8 << 20,
            credits: 32,
            backlog: 1024,
            sessions_max: 1 << 16,
            timeout_min: Duration::from_millis(5),
            timeout_max: Duration::from_millis(200),
            probe: Duration::from_millis(50),
            patience: Duration::from_secs(5),
            ping: Duration::from_secs(1),
            silence_max: Duration::from_secs(10),
            queueing: Duration::from_micros(200),
        }
    }
}

impl Config {
    /// Payload bytes of a packet of ours.
    ///
    /// # Panics
    /// A datagram would have no payload, or more than its length field can say.
    pub(crate) fn capacity(&self) -> u16 {
        let fits = self.datagram > HEADER_LEN && self.datagram <= usize::from(u16::MAX);
        assert!(fits, "datagrams of {} bytes, {HEADER_LEN} of them header", self.datagram);
        (self.datagram - HEADER_LEN) as u16
    }
}
