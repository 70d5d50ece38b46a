//! The messages of the communication manager, which set connections up and take them down.
//!
//! Read first: IBA Vol 1, 12.6 and 12.11 (message contents, tables 106 to 120). Offsets below count from the end
//! of the MAD header, as the specification's tables do; they were checked against Linux' `ibta_vol1_c12.h` and
//! a captured conversation. [`CmaHeader`] is what RDMA-CM puts into the private data.
//!
//! What a message *means* is the business of the engine's connection manager. Reserved bits are neither kept nor
//! checked; private data is always the whole field, as the receiver cannot tell data from padding.

mod cma;
mod field;
mod messages;
mod reject;
mod req;

pub use cma::{CMA_HEADER_LEN, CmaHeader, PortSpace, ServiceId};
pub use messages::{Apr, Drep, Dreq, Lap, Mra, Rej, RejectedMessage, Rep, Rtu, SidrRep, SidrReq};
pub use reject::RejReason;
pub use req::{Path, Req, TransportService};

use std::fmt;
use std::time::Duration;

use crate::types::Mtu;
use crate::{Error, mad};

/// A message of the communication manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Asks for a connection.
    Req(Req),
    /// Asks for patience.
    Mra(Mra),
    /// Refuses a request or its answer, with a reason.
    Rej(Rej),
    /// Grants a connection.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Takes a connection down.
    Dreq(Dreq),
    /// Agrees to take it down.
    Drep(Drep),
    /// Asks which UD QP serves a service.
    SidrReq(SidrReq),
    /// Says which UD QP serves a service, or why none does.
    SidrRep(SidrRep),
    /// Asks for another path. RoCE peers do not migrate paths: we read it to be able to refuse.
    Lap(Lap),
    /// Answers a LAP: the path is taken, or why it is not.
    Apr(Apr),
}

/// The attribute ids of IBA Vol 1, 12.6, table 105.
mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
    pub(super) const SIDR_REQ: u16 = 0x17;
    pub(super) const SIDR_REP: u16 = 0x18;
    pub(super) const LAP: u16 = 0x19;
    pub(super) const APR: u16 = 0x1a;
}

impl Message {
    /// The attribute id in the MAD header.
    #[must_use]
    pub const fn attribute_id(&self) -> u16 {
        match self {
            Self::Req(_) => attribute::REQ,
            Self::Mra(_) => attribute::MRA,
            Self::Rej(_) => attribute::REJ,
            Self::Rep(_) => attribute::REP,
            Self::Rtu(_) => attribute::RTU,
            Self::Dreq(_) => attribute::DREQ,
            Self::Drep(_) => attribute::DREP,
            Self::SidrReq(_) => attribute::SIDR_REQ,
            Self::SidrRep(_) => attribute::SIDR_REP,
            Self::Lap(_) => attribute::LAP,
            Self::Apr(_) => attribute::APR,
        }
    }

    /// The specification's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Rej(_) => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu(_) => "RTU",
            Self::Dreq(_) => "DREQ",
            Self::Drep(_) => "DREP",
            Self::SidrReq(_) => "SIDR_REQ",
            Self::SidrRep(_) => "SIDR_REP",
            Self::Lap(_) => "LAP",
            Self::Apr(_) => "APR",
        }
    }
}

/// One MAD of the communication manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Chosen by whoever opens an exchange, and repeated by its answers.
    pub transaction_id: u64,
    /// What it says.
    pub message: Message,
}

impl Repr {
    /// Reads a MAD.
    ///
    /// # Errors
    /// When it is not a message of the communication manager, or a field that decides how to read the rest holds
    /// a reserved value.
    pub fn parse(mad: &[u8; mad::LEN]) -> Result<Self, Error> {
        let header = mad::Header::parse(mad);
        if !header.is_cm() {
            return Err(Error::Mad("version, class or method"));
        }
        let data = mad.last_chunk().expect("a MAD is its header and data");
        let message = match header.attribute_id {
            attribute::REQ => Message::Req(Req::parse(data)),
            attribute::MRA => Message::Mra(Mra::parse(data)),
            attribute::REJ => Message::Rej(Rej::parse(data)),
            attribute::REP => Message::Rep(Rep::parse(data)),
            attribute::RTU => Message::Rtu(Rtu::parse(data)),
            attribute::DREQ => Message::Dreq(Dreq::parse(data)),
            attribute::DREP => Message::Drep(Drep::parse(data)),
            attribute::SIDR_REQ => Message::SidrReq(SidrReq::parse(data)),
            attribute::SIDR_REP => Message::SidrRep(SidrRep::parse(data)),
            attribute::LAP => Message::Lap(Lap::parse(data)),
            attribute::APR => Message::Apr(Apr::parse(data)),
            _ => return Err(Error::Mad("attribute id")),
        };
        Ok(Self { transaction_id: header.transaction_id, message })
    }

    /// Writes a MAD, reserved bits zero.
    ///
    /// # Panics
    /// When a field holds more bits than it has on the wire.
    pub fn emit(&self, mad: &mut [u8; mad::LEN]) {
        mad.fill(0);
        mad::Header::cm(self.transaction_id, self.message.attribute_id()).emit(mad);
        let data = mad.last_chunk_mut().expect("a MAD is its header and data");
        match &self.message {
            Message::Req(req) => req.emit(data),
            Message::Mra(mra) => mra.emit(data),
            Message::Rej(rej) => rej.emit(data),
            Message::Rep(rep) => rep.emit(data),
            Message::Rtu(rtu) => rtu.emit(data),
            Message::Dreq(dreq) => dreq.emit(data),
            Message::Drep(drep) => drep.emit(data),
            Message::SidrReq(req) => req.emit(data),
            Message::SidrRep(rep) => rep.emit(data),
            Message::Lap(lap) => lap.emit(data),
            Message::Apr(apr) => apr.emit(data),
        }
    }

    /// The MAD's bytes.
    ///
    /// # Panics
    /// When a field holds more bits than it has on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; mad::LEN] {
        let mut mad = [0; mad::LEN];
        self.emit(&mut mad);
        mad
    }
}

/// The time that a 5-bit exponent stands for in CM messages and in the local ACK timeout: 4.096 us * 2^n.
/// (Whether zero means *forever* is up to the field.)
#[must_use]
pub const fn exponent_to_duration(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << (exponent & 0x1f))
}

/// The smallest 5-bit exponent that stands for at least `duration`.
#[must_use]
pub fn duration_to_exponent(duration: Duration) -> u8 {
    (0..31).find(|&exponent| exponent_to_duration(exponent) >= duration).unwrap_or(31)
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Req(m) => write!(
                f,
                " id {:#010x} service {} qpn {} psn {} resources {} depth {} mtu {}",
                m.local_comm_id,
                m.service_id,
                m.local_qpn,
                m.starting_psn,
                m.responder_resources,
                m.initiator_depth,
                Mtu::from_code(m.path_mtu).map_or(0, Mtu::bytes),
            ),
            Self::Mra(m) => write!(f, " id {:#010x} to {:#010x}", m.local_comm_id, m.remote_comm_id),
            Self::Rej(m) => {
                write!(f, " id {:#010x} to {:#010x}: {}", m.local_comm_id, m.remote_comm_id, m.reason)
            }
            Self::Rep(m) => write!(
                f,
                " id {:#010x} to {:#010x} qpn {} psn {} resources {} depth {}",
                m.local_comm_id,
                m.remote_comm_id,
                m.local_qpn,
                m.starting_psn,
                m.responder_resources,
                m.initiator_depth,
            ),
            Self::Rtu(m) => write!(f, " id {:#010x} to {:#010x}", m.local_comm_id, m.remote_comm_id),
            Self::Dreq(m) => {
                write!(f, " id {:#010x} to {:#010x} qpn {}", m.local_comm_id, m.remote_comm_id, m.remote_qpn)
            }
            Self::Drep(m) => write!(f, " id {:#010x} to {:#010x}", m.local_comm_id, m.remote_comm_id),
            Self::SidrReq(m) => write!(f, " id {:#010x} service {}", m.request_id, m.service_id),
            Self::SidrRep(m) => {
                write!(f, " id {:#010x} status {} qpn {} qkey {}", m.request_id, m.status, m.qpn, m.qkey)
            }
            Self::Lap(m) => write!(f, " id {:#010x} to {:#010x}", m.local_comm_id, m.remote_comm_id),
            Self::Apr(m) => {
                write!(f, " id {:#010x} to {:#010x} status {}", m.local_comm_id, m.remote_comm_id, m.status)
            }
        }
    }
}

#[cfg(test)]
mod tests;
