//! One line per packet, as a person reads a trace. Never fails: what is no packet is shown as such.
//!
//! ```text
//! RC RDMA WRITE First qp 0x11 psn 0x141a9a va 0x7f54c0de1000 rkey 0x2a51 dma 9000, 4096 bytes
//! RC SEND Only with Immediate qp 0x11 psn 0x141a9d ackreq solicited imm 0x7, 12 bytes
//! RC Acknowledge qp 0x15 psn 0x141a9d NAK remote access error msn 3
//! UD SEND Only qp 0x1 psn 0x5 from 0x1 qkey 0x80010000: REQ id 0xa1ae3b0e service tcp:7471 ...
//! CNP qp 0x11 psn 0x000000 becn
//! no packet, 3 bytes: truncated: 3 bytes where 12 are needed
//! ```

use std::fmt;

use crate::aeth::Aeth;
use crate::packet::{Headers, Packet};
use crate::types::Qpn;
use crate::{aeth, cm, feth, mad, reth};

/// Displays a UDP payload, BTH to ICRC, as one line. The ICRC is not checked.
#[derive(Clone, Copy, Debug)]
pub struct Pretty<'a>(pub &'a [u8]);

impl fmt::Display for Pretty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse(self.0) {
            Ok(packet) => packet.fmt(f),
            Err(error) => write!(f, "no packet, {} bytes: {error}", self.0.len()),
        }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = self.bth();
        write!(f, "{} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        let flags = [
            (bth.ack_req, " ackreq"),
            (bth.solicited, " solicited"),
            (bth.mig_req, " migreq"),
            (bth.fecn, " fecn"),
            (bth.becn, " becn"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            f.write_str(name)?;
        }
        match self.headers() {
            Headers::None | Headers::Cnp => {}
            Headers::Reth(reth) => write!(f, " {reth}")?,
            Headers::RethImm(reth, imm) => write!(f, " {reth} imm {:#x}", imm.imm)?,
            Headers::Imm(imm) => write!(f, " imm {:#x}", imm.imm)?,
            Headers::Ieth(ieth) => write!(f, " invalidate {}", ieth.rkey)?,
            Headers::Aeth(aeth) => write!(f, " {aeth}")?,
            Headers::AethAtomicAck(aeth, ack) => write!(f, " {aeth} was {:#x}", ack.original)?,
            Headers::AtomicEth(atomic) => {
                let (first, second) = (atomic.swap_or_add, atomic.compare);
                write!(
                    f,
                    " va {:#x} rkey {} swap/add {first:#x} compare {second:#x}",
                    atomic.va, atomic.rkey
                )?;
            }
            Headers::FethReth(feth, reth) => write!(f, " {feth} {reth}")?,
            Headers::Deth(deth) => write!(f, " from {} qkey {}", deth.src_qp, deth.qkey)?,
            Headers::DethImm(deth, imm) => {
                write!(f, " from {} qkey {} imm {:#x}", deth.src_qp, deth.qkey, imm.imm)?;
            }
        }
        let payload = self.payload();
        if bth.dest_qp == Qpn::GSI
            && let Ok(mad) = <&[u8; mad::LEN]>::try_from(payload)
            && let Ok(cm) = cm::Repr::parse(mad)
        {
            write!(f, ": {}", cm.message)
        } else if payload.is_empty() {
            Ok(())
        } else {
            write!(f, ", {} bytes", payload.len())
        }
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({self})")
    }
}

impl fmt::Display for reth::Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {} dma {}", self.va, self.rkey, self.dma_len)
    }
}

impl fmt::Display for aeth::Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.aeth {
            Aeth::Ack(credits) => match credits.count() {
                Some(count) => write!(f, "ACK credits {count}"),
                None => f.write_str("ACK"),
            },
            Aeth::RnrNak(timer) => write!(f, "RNR NAK {:?}", timer.duration()),
            Aeth::Nak(code) => write!(f, "NAK {code}"),
        }?;
        write!(f, " msn {}", self.msn.value())
    }
}

impl fmt::Display for feth::Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = self.placement - feth::PlacementType::all();
        f.write_str(match (self.placement & feth::PlacementType::all()).bits() {
            0 => "no placement",
            1 => "global visibility",
            2 => "persistence",
            _ => "global visibility and persistence",
        })?;
        if !reserved.is_empty() {
            write!(f, " and reserved {:#x}", reserved.bits())?;
        }
        f.write_str(match self.selectivity {
            feth::SelectivityLevel::Range => " of range",
            feth::SelectivityLevel::MemoryRegion => " of MR",
            feth::SelectivityLevel::Reserved2 | feth::SelectivityLevel::Reserved3 => " of reserved",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aeth::{NakCode, RnrTimer};
    use crate::packet::Repr;
    use crate::psn::Psn;
    use crate::types::{Msn, Rkey};
    use crate::{Opcode, bth};

    fn line(opcode: Opcode, headers: Headers, payload_len: usize) -> String {
        let mut bytes = vec![0; 128 + payload_len];
        let bth = bth::Repr::new(opcode, Qpn::new(0x11), Psn::new(0x14_1a9a));
        let header_len = Repr { bth, headers }.emit(&mut bytes);
        bytes.truncate(crate::packet::packet_len(header_len, payload_len));
        Pretty(&bytes).to_string()
    }

    #[test]
    fn lines_read_well() {
        let reth = reth::Repr { va: 0x1000, rkey: Rkey(0x2a51), dma_len: 9000 };
        let feth = feth::Repr {
            placement: feth::PlacementType::PERSISTENCE,
            selectivity: feth::SelectivityLevel::Range,
        };
        let aeth = |aeth| Headers::Aeth(aeth::Repr { aeth, msn: Msn::new(3) });
        let cases = [
            (
                line(Opcode::RcWriteFirst, Headers::Reth(reth), 4096),
                "RC RDMA WRITE First qp 0x11 psn 0x141a9a va 0x1000 rkey 0x2a51 dma 9000, 4096 bytes",
            ),
            (
                line(Opcode::RcFlush, Headers::FethReth(feth, reth), 0),
                "RC FLUSH qp 0x11 psn 0x141a9a persistence of range va 0x1000 rkey 0x2a51 dma 9000",
            ),
            (
                line(Opcode::RcAck, aeth(Aeth::Nak(NakCode::RemoteAccessError)), 0),
                "RC Acknowledge qp 0x11 psn 0x141a9a NAK remote access error msn 3",
            ),
            (
                line(Opcode::RcAck, aeth(Aeth::RnrNak(RnrTimer::new(12))), 0),
                "RC Acknowledge qp 0x11 psn 0x141a9a RNR NAK 640µs msn 3",
            ),
            (line(Opcode::Cnp, Headers::Cnp, 0), "CNP qp 0x11 psn 0x141a9a"),
        ];
        for (got, want) in cases {
            assert_eq!(got, want);
        }
        assert_eq!(
            Pretty(&[1, 2, 3]).to_string(),
            "no packet, 3 bytes: truncated: 3 bytes where 12 are needed"
        );
    }
}
