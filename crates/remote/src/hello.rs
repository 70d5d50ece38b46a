//! The handshake: what the two sides tell each other in the private data of the connection manager's messages.
//!
//! The client's REQ carries a [`Hello`]: its version, and the configuration that it declares, if it declares one. The
//! server answers with a [`Welcome`] in its REP: what it is, what both rely on from now on, where its memory lies; or with
//! a [`Rejection`] in its REJ. Everything is checked by the one who reads it. Who is answered at all: [`crate::admission`].

use std::ops::Range;

use remanence_auth::{Nonce, Proof, Role};
use remanence_codec::{Malformed, Reader, clipped, printable};
use remanence_persist::Config;
use remanence_persist::taxonomy::{AtomicSupport, Buffers, Domain, FlushSupport, Order, Transport};
use remanence_pmem::Guarantee;

/// The version of the protocol. Both sides must have the same. 2 has tokens; receive buffers in persistent memory have a
/// version of their own.
pub const VERSION: u16 = 2;

/// Receive buffers that a server has for a session at most, and bytes of each.
pub const SLOTS_MAX: u16 = 256;
/// Bytes of a receive buffer at most.
pub const SLOT_SIZE_MAX: u32 = 1 << 20;

const MAGIC: [u8; 4] = *b"RREM";

/// Private data of a REQ (IBA Vol 1, 12.6.5, less what RDMA-CM's own header takes).
const REQ_MAX: usize = 56;
/// Private data of a REP.
const REP_MAX: usize = 196;
/// Private data of a REJ.
pub(crate) const REJ_MAX: usize = 148;

/// A configuration in 16 bits: domain 0..3, DDIO 3, buffers 4, transport 5, FLUSH 6..8, ATOMIC WRITE 8, order 9.
#[must_use]
pub fn config_bits(config: &Config) -> u16 {
    let domain = Domain::ALL.iter().position(|d| *d == config.domain).expect("one of all") as u16;
    domain
        | u16::from(config.ddio) << 3
        | (config.buffers as u16) << 4
        | (config.transport as u16) << 5
        | (config.flush as u16) << 6
        | (config.atomic as u16) << 8
        | (config.order as u16) << 9
}

/// The inverse of [`config_bits`]; `None` for bits that it never makes.
#[must_use]
pub fn config_from_bits(bits: u16) -> Option<Config> {
    let bit = |n: u16| bits >> n & 1 == 1;
    if bits >> 10 != 0 {
        return None;
    }
    Some(Config {
        domain: *Domain::ALL.get(usize::from(bits & 7))?,
        ddio: bit(3),
        buffers: if bit(4) { Buffers::Pm } else { Buffers::Dram },
        transport: if bit(5) { Transport::Iwarp } else { Transport::Roce },
        flush: match bits >> 6 & 3 {
            0 => FlushSupport::Read,
            1 => FlushSupport::Global,
            2 => FlushSupport::Persistent,
            _ => return None,
        },
        atomic: if bit(8) { AtomicSupport::Fenced } else { AtomicSupport::Native },
        order: if bit(9) { Order::Relaxed } else { Order::Posted },
    })
}

/// Why a connection request is not one of this protocol's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stranger {
    /// Some other program's.
    Other,
    /// Ours, of another version.
    Version(u16),
}

/// What a client says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// What it declares of the server, if anything.
    pub declared: Option<Config>,
    /// Why it should be admitted.
    pub credentials: Credentials,
}

/// What a client has to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credentials {
    /// Nothing: it has no token.
    None,
    /// It has a token, and asks for a challenge.
    Nonce(Nonce),
    /// The answer to a challenge.
    Proof {
        /// The first bytes of the server's nonce.
        challenge: [u8; 8],
        /// That it has the token.
        proof: Proof,
    },
}

impl Hello {
    /// The private data to send.
    #[must_use]
    pub fn emit(&self) -> [u8; REQ_MAX] {
        let mut bytes = [0; REQ_MAX];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.declaration());
        match &self.credentials {
            Credentials::None => {}
            Credentials::Nonce(nonce) => {
                bytes[6] = 1;
                bytes[10..42].copy_from_slice(nonce);
            }
            Credentials::Proof { challenge, proof } => {
                bytes[6] = 2;
                bytes[10..18].copy_from_slice(challenge);
                bytes[18..50].copy_from_slice(proof);
            }
        }
        bytes
    }

    /// What a proof covers of it: what it declares, as it travels.
    pub(crate) fn declaration(&self) -> [u8; 4] {
        let mut bytes = [0; 4];
        if let Some(config) = &self.declared {
            bytes[1] = 1;
            bytes[2..].copy_from_slice(&config_bits(config).to_be_bytes());
        }
        bytes
    }

    /// Reads private data; what the connection manager padded it with is not looked at.
    ///
    /// # Errors
    /// It is not of this protocol, or of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, Stranger> {
        let mut r = Reader::new(bytes);
        header(&mut r)?;
        Self::body(&mut r).map_err(|_| Stranger::Other)
    }

    fn body(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (shown, declares, bits) = (r.u8()?, r.u8()?, r.u16_be()?);
        let declared = match (declares, bits) {
            (0, 0) => None,
            (1, bits) => Some(config_from_bits(bits).ok_or(r.malformed())?),
            _ => return r.fail(),
        };
        let credentials = match shown {
            0 => Credentials::None,
            1 => Credentials::Nonce(r.array()?),
            2 => Credentials::Proof { challenge: r.array()?, proof: r.array()? },
            _ => return r.fail(),
        };
        Ok(Self { declared, credentials })
    }
}

fn header(r: &mut Reader<'_>) -> Result<(), Stranger> {
    if r.array() != Ok(MAGIC) {
        return Err(Stranger::Other);
    }
    match r.u16_be() {
        Ok(VERSION) => Ok(()),
        Ok(other) => Err(Stranger::Version(other)),
        Err(_) => Err(Stranger::Other),
    }
}

/// Why a client is not welcome, or not yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// For a person to read.
    Sentence(String),
    /// It has to prove that it has the token, with this nonce of the server's.
    Challenge(Nonce),
    /// It showed no token, and the server asks for one.
    TokenNeeded,
    /// Its token is another one.
    WrongToken,
    /// It has a token, and the server has none that it could prove to have.
    Open,
}

impl Rejection {
    /// The private data to send.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (kind, nonce): (u16, &[u8]) = match self {
            Self::Sentence(why) => return clipped(why, REJ_MAX).into(),
            Self::Challenge(nonce) => (1, nonce),
            Self::TokenNeeded => (2, &[]),
            Self::WrongToken => (3, &[]),
            Self::Open => (4, &[]),
        };
        [&MAGIC[..], &VERSION.to_be_bytes(), &kind.to_be_bytes(), nonce].concat()
    }

    /// Reads private data; whatever else it is, is a sentence.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        let mut coded = || {
            header(&mut r).ok()?;
            Some(match r.u16_be().ok()? {
                1 => Self::Challenge(r.array().ok()?),
                2 => Self::TokenNeeded,
                3 => Self::WrongToken,
                4 => Self::Open,
                _ => return None,
            })
        };
        coded().unwrap_or_else(|| Self::Sentence(printable(bytes)))
    }
}

/// Where the server's proof is in an emitted [`Welcome`]; zeros without a token.
pub(crate) const WELCOME_PROOF: Range<usize> = 68..100;

/// Memory of the server, as a client names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The rkey under which the client reaches the memory.
    pub rkey: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// How many bytes may be reached.
    pub len: u64,
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// What the server is, by its own word.
    pub server: Config,
    /// What both rely on.
    pub agreed: Config,
    /// The server's configuration was declared by its operator, in part at least, and not detected.
    pub declared: bool,
    /// What the client may do.
    pub role: Role,
    /// What the region promises, by the server's word.
    pub guarantee: Guarantee,
    /// The memory to update.
    pub region: Window,
    /// The receive buffers of this session: for FLUSH and READ to name, if they are persistent. Else the key is good for
    /// nothing.
    pub buffers: Window,
    /// How many receive buffers there are.
    pub slots: u16,
    /// Bytes of each.
    pub slot_size: u32,
    /// Names this session in its messages.
    pub stamp: u64,
    /// What the server says of its region, as far as it fits.
    pub sentence: String,
}

impl Welcome {
    /// The private data to send.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(REP_MAX);
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&VERSION.to_be_bytes());
        for word in [
            u16::from(self.declared) | u16::from(!self.role.may_write()) << 1,
            config_bits(&self.server),
            config_bits(&self.agreed),
            self.guarantee.to_bits(),
            self.slots,
        ] {
            b.extend_from_slice(&word.to_be_bytes());
        }
        for window in [&self.region, &self.buffers] {
            b.extend_from_slice(&window.rkey.to_be_bytes());
            b.extend_from_slice(&window.addr.to_be_bytes());
            b.extend_from_slice(&window.len.to_be_bytes());
        }
        b.extend_from_slice(&self.slot_size.to_be_bytes());
        b.extend_from_slice(&self.stamp.to_be_bytes());
        assert_eq!(b.len(), WELCOME_PROOF.start);
        b.resize(WELCOME_PROOF.end, 0);
        let room = REP_MAX - b.len();
        b.extend_from_slice(clipped(&self.sentence, room).as_bytes());
        b
    }

    /// Reads private data.
    ///
    /// # Errors
    /// It is not of this protocol, of another version, or contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self, Stranger> {
        let mut r = Reader::new(bytes);
        header(&mut r)?;
        let this = Self::body(&mut r).map_err(|_| Stranger::Other)?;
        // A ring whose size overflows, buffers without room for a header: nobody of ours says so.
        let ring = u64::from(this.slots) * u64::from(this.slot_size);
        let end = |w: &Window| w.addr.checked_add(w.len).is_some();
        let sound = (1..=SLOTS_MAX).contains(&this.slots)
            && (crate::message::HEADER as u32..=SLOT_SIZE_MAX).contains(&this.slot_size)
            && ring == this.buffers.len
            && end(&this.region)
            && end(&this.buffers)
            && this.agreed == this.server.agree(&this.agreed).unwrap_or(Config::SAFE);
        if sound { Ok(this) } else { Err(Stranger::Other) }
    }

    fn body(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (declared, role) = match r.u16_be()? {
            flags @ 0..4 => (flags & 1 != 0, if flags & 2 == 0 { Role::Writer } else { Role::Reader }),
            _ => return r.fail(),
        };
        let config = |r: &mut Reader<'_>| config_from_bits(r.u16_be()?).ok_or(r.malformed());
        let (server, agreed) = (config(r)?, config(r)?);
        let guarantee = Guarantee::from_bits(r.u16_be()?).ok_or(r.malformed())?;
        let slots = r.u16_be()?;
        let mut window = || Ok(Window { rkey: r.u32_be()?, addr: r.u64_be()?, len: r.u64_be()? });
        let (region, buffers) = (window()?, window()?);
        let (slot_size, stamp) = (r.u32_be()?, r.u64_be()?);
        // Checked by who knows the conversation.
        r.array::<{ WELCOME_PROOF.end - WELCOME_PROOF.start }>()?;
        let sentence = printable(r.rest());
        Ok(Self {
            server,
            agreed,
            declared,
            role,
            guarantee,
            region,
            buffers,
            slots,
            slot_size,
            stamp,
            sentence,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use remanence_pmem::PersistenceDomain;

    use super::*;

    pub(crate) fn welcome() -> Welcome {
        let server = Config::software(Domain::Dmp);
        Welcome {
            server,
            agreed: server,
            declared: true,
            role: Role::Writer,
            guarantee: Guarantee::of(PersistenceDomain::Adr),
            region: Window { rkey: 7, addr: 0, len: 1 << 20 },
            buffers: Window { rkey: 8, addr: 4096, len: 64 * 4096 },
            slots: 64,
            slot_size: 4096,
            stamp: 0x1234_5678_9abc_def0,
            sentence: "ext4 on pmem0, persistent memory (ADR)".into(),
        }
    }

    #[test]
    fn every_configuration_goes_through_its_bits() {
        for config in Config::all() {
            assert_eq!(config_from_bits(config_bits(&config)), Some(config));
        }
        for bits in [5, 6, 7, 3 << 6, 1 << 10, u16::MAX] {
            assert_eq!(config_from_bits(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn both_messages_come_through_the_padding_of_the_connection_manager() {
        let proof = Credentials::Proof { challenge: [3; 8], proof: [4; 32] };
        for declared in [None, Some(Config::SAFE)] {
            for credentials in [Credentials::None, Credentials::Nonce([5; 32]), proof] {
                let hello = Hello { declared, credentials };
                assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
            }
        }
        let sentence = Rejection::Sentence("no room".into());
        let coded =
            [Rejection::Challenge([6; 32]), Rejection::TokenNeeded, Rejection::WrongToken, Rejection::Open];
        for rejection in coded.into_iter().chain([sentence]) {
            let mut bytes = rejection.emit();
            bytes.resize(REJ_MAX, 0);
            assert_eq!(Rejection::parse(&bytes), rejection);
        }
        let mut bytes = welcome().emit();
        assert!(bytes.len() <= REP_MAX);
        bytes.resize(REP_MAX, 0);
        assert_eq!(Welcome::parse(&bytes), Ok(welcome()));
        for (declared, role) in [(false, Role::Reader), (true, Role::Reader), (false, Role::Writer)] {
            let other = Welcome { declared, role, ..welcome() };
            assert_eq!(Welcome::parse(&other.emit()), Ok(other));
        }
        let long = Welcome { sentence: "long ".repeat(100), ..welcome() };
        assert_eq!(long.emit().len(), REP_MAX);
    }

    #[test]
    fn another_version_is_told_from_another_program() {
        let mut bytes = Hello { declared: None, credentials: Credentials::None }.emit();
        bytes[5] = 9;
        assert_eq!(Hello::parse(&bytes), Err(Stranger::Version(9)));
        assert_eq!(Hello::parse(&[0; REQ_MAX]), Err(Stranger::Other));
        let mut bytes = welcome().emit();
        bytes[5] = 3;
        assert_eq!(Welcome::parse(&bytes), Err(Stranger::Version(3)));
    }

    #[test]
    fn an_agreement_that_is_stronger_than_the_server_is_not_believed() {
        let mut lie = welcome();
        lie.agreed.domain = Domain::Wsp;
        assert_eq!(Welcome::parse(&lie.emit()), Err(Stranger::Other));
        let mut ring = welcome();
        ring.slots = 63;
        assert_eq!(Welcome::parse(&ring.emit()), Err(Stranger::Other));
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), ours in any::<bool>()) {
            let mut bytes = bytes;
            if ours && bytes.len() >= 6 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
            }
            let _ = Hello::parse(&bytes);
            let _ = Welcome::parse(&bytes);
            let _ = Rejection::parse(&bytes);
        }
    }
}
