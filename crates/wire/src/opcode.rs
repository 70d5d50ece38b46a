//! The BTH opcodes of RC, UC and UD, and THE table of which headers follow the BTH.
//!
//! Read first: IBA Vol 1, 9.2.1 (the opcode field and its table), Annex A17 (CNP), Annex A19 (FLUSH, ATOMIC
//! WRITE). The upper three bits of an opcode name the transport, the lower five the operation. Nothing else in
//! the project knows which header belongs to which opcode: the parser, the emitter, the engine's sequence and
//! length checks and the dump all read [`INFO`].

use std::fmt;

use crate::types::Mtu;
use crate::{aeth, atomic_ack_eth, atomic_eth, bth, deth, feth, ieth, imm_dt, reth};

/// The transport service an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection: one peer, acknowledged, every operation.
    Rc,
    /// Unreliable connection: one peer, no acknowledgements, SEND and RDMA WRITE only.
    Uc,
    /// Unreliable datagram: any peer, one packet for each message, SEND only.
    Ud,
    /// Congestion notification, which every transport receives (Annex A17).
    Cnp,
}

/// What a packet is about, its place in a message set aside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Operation {
    /// SEND, with immediate or invalidate too.
    Send,
    /// RDMA WRITE, with immediate too.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also answers FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// Acknowledge: ACK, NAK or RNR NAK.
    Acknowledge,
    /// The answer to CmpSwap and FetchAdd: an acknowledgement with the original value.
    AtomicAcknowledge,
    /// Replaces 8 bytes at the responder if they equal a value, and returns what was there.
    CompareSwap,
    /// Adds to 8 bytes at the responder, and returns what was there.
    FetchAdd,
    /// Makes earlier writes visible or persistent at the responder (Annex A19).
    Flush,
    /// ATOMIC WRITE request.
    AtomicWrite,
    /// Congestion notification packet.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several packets.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message starts here.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The legal combinations of headers behind a BTH, in wire order. `packet::Headers` carries their values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Layout {
    /// No extension header follows the BTH.
    None,
    /// A RETH alone: the range in the responder's memory.
    Reth,
    /// A RETH, then an ImmDt.
    RethImm,
    /// An ImmDt alone: 4 bytes of immediate data.
    Imm,
    /// An IETH alone: the rkey to invalidate.
    Ieth,
    /// An AETH alone: syndrome and MSN.
    Aeth,
    /// An AETH, then an AtomicAckETH.
    AethAtomicAck,
    /// An AtomicETH alone: address, key and operands of an atomic.
    AtomicEth,
    /// A FETH, then a RETH.
    FethReth,
    /// A DETH alone: Q_Key and source QP of a datagram.
    Deth,
    /// A DETH, then an ImmDt.
    DethImm,
    /// The 16 reserved bytes of a CNP.
    Cnp,
}

/// The reserved bytes that follow the BTH of a CNP (Annex A17).
pub(crate) const CNP_RESERVED_LEN: usize = 16;

/// How long the payload of a packet may be (IBA Vol 1, 9.7.4.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Payload {
    /// None at all.
    Empty,
    /// Exactly the path MTU: a first or middle packet.
    Full,
    /// One byte up to the path MTU: a last packet.
    Tail,
    /// Zero bytes up to the path MTU: an only packet.
    Any,
    /// Exactly eight bytes: ATOMIC WRITE.
    Eight,
}

impl Payload {
    /// Whether a payload of `len` bytes, pad removed, is legal at this path MTU.
    #[must_use]
    pub const fn admits(self, len: usize, mtu: Mtu) -> bool {
        match self {
            Self::Empty => len == 0,
            Self::Full => len == mtu.bytes(),
            Self::Tail => len >= 1 && len <= mtu.bytes(),
            Self::Any => len <= mtu.bytes(),
            Self::Eight => len == 8,
        }
    }
}

/// One row of the opcode table. Offsets count from the first byte of the BTH; zero means "not there".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The specification's name, such as `RC RDMA WRITE First`.
    pub name: &'static str,
    /// The transport service.
    pub transport: Transport,
    /// What the packet asks for or answers, whatever its place in the message.
    pub operation: Operation,
    /// Its place in the message.
    pub position: Position,
    /// The headers behind the BTH.
    pub layout: Layout,
    /// The legal payload lengths.
    pub payload: Payload,
    /// Bytes of BTH and extension headers: where the payload begins.
    pub header_len: u8,
    pub(crate) deth: u8,
    pub(crate) feth: u8,
    pub(crate) reth: u8,
    pub(crate) atomic_eth: u8,
    pub(crate) aeth: u8,
    pub(crate) atomic_ack_eth: u8,
    pub(crate) imm_dt: u8,
    pub(crate) ieth: u8,
}

impl OpcodeInfo {
    const fn new(
        name: &'static str,
        transport: Transport,
        operation: Operation,
        position: Position,
        layout: Layout,
        payload: Payload,
    ) -> Self {
        let mut info = Self {
            name,
            transport,
            operation,
            position,
            layout,
            payload,
            header_len: bth::LEN as u8,
            deth: 0,
            feth: 0,
            reth: 0,
            atomic_eth: 0,
            aeth: 0,
            atomic_ack_eth: 0,
            imm_dt: 0,
            ieth: 0,
        };
        match layout {
            Layout::None => {}
            Layout::Reth => info.reth = info.append(reth::LEN),
            Layout::RethImm => {
                info.reth = info.append(reth::LEN);
                info.imm_dt = info.append(imm_dt::LEN);
            }
            Layout::Imm => info.imm_dt = info.append(imm_dt::LEN),
            Layout::Ieth => info.ieth = info.append(ieth::LEN),
            Layout::Aeth => info.aeth = info.append(aeth::LEN),
            Layout::AethAtomicAck => {
                info.aeth = info.append(aeth::LEN);
                info.atomic_ack_eth = info.append(atomic_ack_eth::LEN);
            }
            Layout::AtomicEth => info.atomic_eth = info.append(atomic_eth::LEN),
            Layout::FethReth => {
                info.feth = info.append(feth::LEN);
                info.reth = info.append(reth::LEN);
            }
            Layout::Deth => info.deth = info.append(deth::LEN),
            Layout::DethImm => {
                info.deth = info.append(deth::LEN);
                info.imm_dt = info.append(imm_dt::LEN);
            }
            Layout::Cnp => _ = info.append(CNP_RESERVED_LEN),
        }
        info
    }

    const fn append(&mut self, len: usize) -> u8 {
        let at = self.header_len;
        self.header_len += len as u8;
        at
    }

    /// Whether this is a response, which a requester takes.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// Whether the packet carries immediate data.
    #[must_use]
    pub const fn has_immediate(&self) -> bool {
        self.imm_dt != 0
    }

    /// Whether the last packet of such a message takes a receive WQE at the responder: every SEND, and an
    /// RDMA WRITE with immediate.
    #[must_use]
    pub const fn takes_receive(&self) -> bool {
        match self.operation {
            Operation::Send => true,
            Operation::Write => self.has_immediate(),
            Operation::ReadRequest
            | Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Cnp => false,
        }
    }
}

macro_rules! opcodes {
    ($($variant:ident = $value:literal, $name:literal,
       $transport:ident $operation:ident $position:ident $layout:ident $payload:ident;)*) => {
        /// A BTH opcode of a transport that RoCEv2 peers speak: RC, UC, UD, and the CNP.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = concat!("`", $name, "`.")] $variant = $value,)*
        }

        impl Opcode {
            /// Every opcode, in numeric order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
        }

        /// The table, indexed by the opcode's number. Rows of unassigned numbers are named `reserved` and are
        /// never reached through an [`Opcode`].
        pub static INFO: [OpcodeInfo; 256] = {
            let reserved = OpcodeInfo::new(
                "reserved", Transport::Cnp, Operation::Cnp, Position::Only, Layout::None, Payload::Empty);
            let mut table = [reserved; 256];
            $(table[$value] = OpcodeInfo::new($name, Transport::$transport, Operation::$operation,
                Position::$position, Layout::$layout, Payload::$payload);)*
            table
        };

        static FROM_U8: [Option<Opcode>; 256] = {
            let mut table = [None; 256];
            $(table[$value] = Some(Opcode::$variant);)*
            table
        };
    };
}

opcodes! {
    RcSendFirst          = 0x00, "RC SEND First",                         Rc Send First None Full;
    RcSendMiddle         = 0x01, "RC SEND Middle",                        Rc Send Middle None Full;
    RcSendLast           = 0x02, "RC SEND Last",                          Rc Send Last None Tail;
    RcSendLastImm        = 0x03, "RC SEND Last with Immediate",           Rc Send Last Imm Tail;
    RcSendOnly           = 0x04, "RC SEND Only",                          Rc Send Only None Any;
    RcSendOnlyImm        = 0x05, "RC SEND Only with Immediate",           Rc Send Only Imm Any;
    RcWriteFirst         = 0x06, "RC RDMA WRITE First",                   Rc Write First Reth Full;
    RcWriteMiddle        = 0x07, "RC RDMA WRITE Middle",                  Rc Write Middle None Full;
    RcWriteLast          = 0x08, "RC RDMA WRITE Last",                    Rc Write Last None Tail;
    RcWriteLastImm       = 0x09, "RC RDMA WRITE Last with Immediate",     Rc Write Last Imm Tail;
    RcWriteOnly          = 0x0a, "RC RDMA WRITE Only",                    Rc Write Only Reth Any;
    RcWriteOnlyImm       = 0x0b, "RC RDMA WRITE Only with Immediate",     Rc Write Only RethImm Any;
    RcReadRequest        = 0x0c, "RC RDMA READ Request",                  Rc ReadRequest Only Reth Empty;
    RcReadResponseFirst  = 0x0d, "RC RDMA READ response First",           Rc ReadResponse First Aeth Full;
    RcReadResponseMiddle = 0x0e, "RC RDMA READ response Middle",          Rc ReadResponse Middle None Full;
    RcReadResponseLast   = 0x0f, "RC RDMA READ response Last",            Rc ReadResponse Last Aeth Tail;
    RcReadResponseOnly   = 0x10, "RC RDMA READ response Only",            Rc ReadResponse Only Aeth Any;
    RcAck                = 0x11, "RC Acknowledge",                        Rc Acknowledge Only Aeth Empty;
    RcAtomicAck          = 0x12, "RC ATOMIC Acknowledge",                 Rc AtomicAcknowledge Only AethAtomicAck Empty;
    RcCompareSwap        = 0x13, "RC CmpSwap",                            Rc CompareSwap Only AtomicEth Empty;
    RcFetchAdd           = 0x14, "RC FetchAdd",                           Rc FetchAdd Only AtomicEth Empty;
    RcSendLastInv        = 0x16, "RC SEND Last with Invalidate",          Rc Send Last Ieth Tail;
    RcSendOnlyInv        = 0x17, "RC SEND Only with Invalidate",          Rc Send Only Ieth Any;
    RcFlush              = 0x1c, "RC FLUSH",                              Rc Flush Only FethReth Empty;
    RcAtomicWrite        = 0x1d, "RC ATOMIC WRITE",                       Rc AtomicWrite Only Reth Eight;
    UcSendFirst          = 0x20, "UC SEND First",                         Uc Send First None Full;
    UcSendMiddle         = 0x21, "UC SEND Middle",                        Uc Send Middle None Full;
    UcSendLast           = 0x22, "UC SEND Last",                          Uc Send Last None Tail;
    UcSendLastImm        = 0x23, "UC SEND Last with Immediate",           Uc Send Last Imm Tail;
    UcSendOnly           = 0x24, "UC SEND Only",                          Uc Send Only None Any;
    UcSendOnlyImm        = 0x25, "UC SEND Only with Immediate",           Uc Send Only Imm Any;
    UcWriteFirst         = 0x26, "UC RDMA WRITE First",                   Uc Write First Reth Full;
    UcWriteMiddle        = 0x27, "UC RDMA WRITE Middle",                  Uc Write Middle None Full;
    UcWriteLast          = 0x28, "UC RDMA WRITE Last",                    Uc Write Last None Tail;
    UcWriteLastImm       = 0x29, "UC RDMA WRITE Last with Immediate",     Uc Write Last Imm Tail;
    UcWriteOnly          = 0x2a, "UC RDMA WRITE Only",                    Uc Write Only Reth Any;
    UcWriteOnlyImm       = 0x2b, "UC RDMA WRITE Only with Immediate",     Uc Write Only RethImm Any;
    UdSendOnly           = 0x64, "UD SEND Only",                          Ud Send Only Deth Any;
    UdSendOnlyImm        = 0x65, "UD SEND Only with Immediate",           Ud Send Only DethImm Any;
    Cnp                  = 0x81, "CNP",                                   Cnp Cnp Only Cnp Empty;
}

impl Opcode {
    /// The opcode of this number, unless it is unassigned, or of a transport that is not spoken here (RD, XRC).
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        FROM_U8[value as usize]
    }

    /// This opcode's row of the table.
    #[must_use]
    pub const fn info(self) -> &'static OpcodeInfo {
        &INFO[self as usize]
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#04x})", self.info().name, *self as u8)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_map_onto_each_other() {
        let known: Vec<Opcode> = (0..=255).filter_map(Opcode::from_u8).collect();
        assert_eq!(known, Opcode::ALL);
        for number in 0..=255 {
            match Opcode::from_u8(number) {
                Some(opcode) => {
                    assert_eq!(opcode as u8, number);
                    assert_ne!(opcode.info().name, "reserved");
                }
                None => assert_eq!(INFO[number as usize].name, "reserved"),
            }
        }
    }

    /// The lengths of IBA Vol 1, 9.2.1, written out once more by hand.
    #[test]
    fn header_lengths_are_those_of_the_specification() {
        let cases = [
            (0x00, 12),
            (0x05, 16),
            (0x06, 28),
            (0x0b, 32),
            (0x0c, 28),
            (0x0d, 16),
            (0x0e, 12),
            (0x11, 16),
            (0x12, 24),
            (0x13, 40),
            (0x16, 16),
            (0x1c, 32),
            (0x1d, 28),
            (0x2b, 32),
            (0x64, 20),
            (0x65, 24),
            (0x81, 28),
        ];
        for (number, len) in cases {
            assert_eq!(INFO[number].header_len, len, "{}", INFO[number].name);
        }
    }

    #[test]
    fn uc_repeats_the_first_twelve_rows_of_rc() {
        for number in 0x00..=0x0b {
            let (rc, uc) = (&INFO[number], &INFO[0x20 + number]);
            assert_eq!(rc.name.strip_prefix("RC"), uc.name.strip_prefix("UC"));
            assert_eq!(
                (rc.operation, rc.position, rc.layout, rc.payload),
                (uc.operation, uc.position, uc.layout, uc.payload)
            );
            assert_eq!((rc.transport, uc.transport), (Transport::Rc, Transport::Uc));
        }
    }

    #[test]
    fn payload_lengths_follow_the_position() {
        let mtu = Mtu::B1024;
        assert!(Payload::Full.admits(1024, mtu) && !Payload::Full.admits(1023, mtu));
        assert!(Payload::Tail.admits(1, mtu) && !Payload::Tail.admits(0, mtu));
        assert!(Payload::Any.admits(0, mtu) && !Payload::Any.admits(1025, mtu));
        assert!(Payload::Eight.admits(8, mtu) && !Payload::Eight.admits(7, mtu));
        assert!(Payload::Empty.admits(0, mtu) && !Payload::Empty.admits(4, mtu));
    }
}
