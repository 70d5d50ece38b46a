//! What connection management messages carry in private data when a group is made. Numbers are big-endian.
//!
//! A leader asks for one in its REQ, behind the header of RDMA-CM, where 56 bytes are left:
//!
//! ```text
//!   0  version, 1          4..8   leader id      32..56  addresses of the replicas, IPv4
//!   1  replicas, 1 to 6    8..16  epoch                  (of a request to a replica: 32..36, the leader's)
//!   2  writes  3  reads   16..32  proof
//! ```
//! The switch asks each replica with the same, and the leader's address in place of the replicas'. Who the leader is and whether it may be one is for the replicas to judge, and before them for a switch
//! that has a token: the proof is the first half of an HMAC-SHA256 by the token that they all have, over service, leader id, epoch and the leader's address ([`Ask::prove`]). Those that have none do not look at it. A replica answers in its REP:
//!
//! ```text
//!   0..8   address of the memory    8..16  its length    16..20  its key    20  1 for Linux Soft-RoCE (ICRC of a FLUSH)
//! ```
//! The leader gets the same in its REP, of the memory of the group, and then which of the replicas have agreed. It gets a REJ with the latter alone if they were too few.
//!
//! ```text
//!   21  how many    22  a bit for each, the first one's lowest
//! ```

use std::net::{IpAddr, Ipv4Addr};

use remanence_auth::Token;
use remanence_wire::Rkey;
use remanence_wire::cm::ServiceId;

/// The version of all this.
const VERSION: u8 = 1;
/// Replicas that a request has room for.
pub const ASKED_MAX: usize = 6;
/// Bytes of a request.
pub const ASK_LEN: usize = 56;
/// Bytes of an answer, and of one for the leader.
const MEMORY_LEN: usize = 21;
/// Bytes of an answer for the leader.
pub const ANSWER_LEN: usize = MEMORY_LEN + 2;

/// What a proof is for.
const LABEL: &[u8] = b"remanence switch leader 1";

/// A request for a group, or of the switch to one of its replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// So many replicas must have acknowledged a WRITE.
    pub writes: u8,
    /// So many replicas must agree on a READ.
    pub reads: u8,
    /// Who the leader is, to the replicas.
    pub leader: u32,
    /// Of the leader.
    pub epoch: u64,
    /// That it is who it says: of no use where nobody has a token.
    pub proof: [u8; 16],
    /// The replicas; in a request to a replica, the leader's own address as the switch sees it.
    pub addrs: Vec<Ipv4Addr>,
}

impl Ask {
    /// Reads a request; `None` if it is none, or of another version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ASK_LEN] = bytes.first_chunk()?;
        let count = usize::from(bytes[1]);
        if bytes[0] != VERSION || !(1..=ASKED_MAX).contains(&count) {
            return None;
        }
        let (addrs, _) = bytes[32..].as_chunks();
        Some(Self {
            writes: bytes[2],
            reads: bytes[3],
            leader: u32::from_be_bytes(*bytes[4..].first_chunk()?),
            epoch: u64::from_be_bytes(*bytes[8..].first_chunk()?),
            proof: *bytes[16..].first_chunk()?,
            addrs: addrs[..count].iter().map(|&octets: &[u8; 4]| Ipv4Addr::from(octets)).collect(),
        })
    }

    /// Says that it is of a leader at that address who has the token.
    #[must_use]
    pub fn prove(self, token: &Token, service: ServiceId, from: IpAddr) -> Self {
        Self { proof: self.proof_by(token, service, from), ..self }
    }

    /// Whether it is, in a time that does not depend on where the proof is wrong. A replica asks with the address that the request has for the leader's.
    #[must_use]
    pub fn is_proven(&self, token: &Token, service: ServiceId, from: IpAddr) -> bool {
        let right = self.proof_by(token, service, from);
        right.iter().zip(&self.proof).fold(0, |differs, (a, b)| differs | a ^ b) == 0
    }

    fn proof_by(&self, token: &Token, service: ServiceId, from: IpAddr) -> [u8; 16] {
        let octets = match from {
            IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
            IpAddr::V6(addr) => addr.octets(),
        };
        let (service, leader, epoch) =
            (service.0.to_be_bytes(), self.leader.to_be_bytes(), self.epoch.to_be_bytes());
        let whole = token.prove(LABEL, &[&service, &leader, &epoch, &octets]);
        *whole.first_chunk().expect("half of it")
    }

    /// The request's bytes.
    ///
    /// # Panics
    /// There are no addresses, or more than [`ASKED_MAX`].
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ASK_LEN] {
        assert!((1..=ASKED_MAX).contains(&self.addrs.len()), "{} addresses", self.addrs.len());
        let mut bytes = [0; ASK_LEN];
        bytes[..4].copy_from_slice(&[VERSION, self.addrs.len() as u8, self.writes, self.reads]);
        bytes[4..8].copy_from_slice(&self.leader.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.proof);
        for (addr, into) in self.addrs.iter().zip(bytes[32..].chunks_exact_mut(4)) {
            into.copy_from_slice(&addr.octets());
        }
        bytes
    }
}

/// Memory that a replica or a group has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The address of its first byte.
    pub va: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The key under which it is reached.
    pub rkey: Rkey,
    /// A FLUSH for it needs the ICRC of Linux Soft-RoCE.
    pub linux_flush: bool,
}

impl Memory {
    /// Reads a replica's answer; `None` if it is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MEMORY_LEN] = bytes.first_chunk()?;
        let memory = Self {
            va: u64::from_be_bytes(*bytes[..].first_chunk()?),
            size: u64::from_be_bytes(*bytes[8..].first_chunk()?),
            rkey: Rkey(u32::from_be_bytes(*bytes[16..].first_chunk()?)),
            linux_flush: bytes[20] & 1 != 0,
        };
        (memory.size != 0).then_some(memory)
    }

    /// The answer's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MEMORY_LEN] {
        let mut bytes = [0; MEMORY_LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[20] = self.linux_flush.into();
        bytes
    }
}

/// What the leader is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The memory of the group; `None` where too few have agreed.
    pub memory: Option<Memory>,
    /// Which replicas have agreed, a bit for each in the order in which the leader named them.
    pub agreed: u8,
}

impl Answer {
    /// Reads the private data of a REP or a REJ; `None` if it is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ANSWER_LEN] = bytes.first_chunk()?;
        let [.., count, agreed] = *bytes;
        (agreed.count_ones() == u32::from(count)).then(|| Self { memory: Memory::parse(bytes), agreed })
    }

    /// The answer's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        if let Some(memory) = self.memory {
            bytes[..MEMORY_LEN].copy_from_slice(&memory.to_bytes());
        }
        bytes[MEMORY_LEN..].copy_from_slice(&[self.agreed.count_ones() as u8, self.agreed]);
        bytes
    }
}
