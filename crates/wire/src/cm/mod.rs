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

/// Makes [`Message`] of the attribute ids (IBA Vol 1, 12.6, table 105) and names of the messages.
macro_rules! messages {
    ($($(#[$doc:meta])* $message:ident = $attribute:literal, $name:literal;)*) => {
        /// A message of the communication manager.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Message {
            $($(#[$doc])* $message($message),)*
        }

        impl Message {
            /// The attribute id in the MAD header.
            #[must_use]
            pub const fn attribute_id(&self) -> u16 {
                match self {
                    $(Self::$message(_) => $attribute,)*
                }
            }

            /// The specification's name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$message(_) => $name,)*
                }
            }

            fn parse(attribute_id: u16, data: &[u8]) -> Option<Self> {
                match attribute_id {
                    $($attribute => Some(Self::$message($message::parse(data))),)*
                    _ => None,
                }
            }

            fn emit(&self, data: &mut [u8]) {
                match self {
                    $(Self::$message(message) => message.emit(data),)*
                }
            }
        }
    };
}

messages! {
    /// Asks for a connection.
    Req = 0x10, "REQ";
    /// Asks for patience.
    Mra = 0x11, "MRA";
    /// Refuses a request or its answer, with a reason.
    Rej = 0x12, "REJ";
    /// Grants a connection.
    Rep = 0x13, "REP";
    /// Ready to use.
    Rtu = 0x14, "RTU";
    /// Takes a connection down.
    Dreq = 0x15, "DREQ";
    /// Agrees to take it down.
    Drep = 0x16, "DREP";
    /// Asks which UD QP serves a service.
    SidrReq = 0x17, "SIDR_REQ";
    /// Says which UD QP serves a service, or why none does.
    SidrRep = 0x18, "SIDR_REP";
    /// Asks for another path. RoCE peers do not migrate paths: we read it to be able to refuse.
    Lap = 0x19, "LAP";
    /// Answers a LAP: the path is taken, or why it is not.
    Apr = 0x1a, "APR";
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
        let message = Message::parse(header.attribute_id, &mad[mad::LEN - mad::DATA_LEN..]);
        let message = message.ok_or(Error::Mad("attribute id"))?;
        Ok(Self { transaction_id: header.transaction_id, message })
    }

    /// Writes a MAD, reserved bits zero.
    ///
    /// # Panics
    /// When a field holds more bits than it has on the wire.
    pub fn emit(&self, mad: &mut [u8; mad::LEN]) {
        mad.fill(0);
        mad::Header::cm(self.transaction_id, self.message.attribute_id()).emit(mad);
        self.message.emit(&mut mad[mad::LEN - mad::DATA_LEN..]);
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
