//! How the processes of a host share the RoCEv2 port: what in a datagram says which process it is for.
//!
//! Each process has a seat, and with it the top byte of its QP numbers and of its communication ids (see
//! `remanence_link::host`). Packets name the QP. MADs go to QP 1, which everyone has, and are told apart by the
//! message: a request names the service, which one process listens for; everything else names a communication id of
//! its receiver. (One thing does not: who gives up on a request that was never answered says so without knowing an id
//! of the other side, which finds its connection by the sender's. So everyone who listens hears that; not of too many, as anybody
//! on the network can say so, and nothing is lost but a little patience.) What is for a process that is
//! gone is answered by one that is there, as by a connection manager that has forgotten: who disconnects need not wait.

use std::io;

use remanence_link::host::{Match, Seat, SteerCase, SteerRule, SteerTo};
use remanence_rnic::cm::CommIdSpace;
use remanence_wire::{Qpn, bth, deth, mad};

/// BTH: the destination QP, bytes 5 to 7 (IBA Vol 1, 9.2).
const DEST_QPN: u16 = 5;
/// BTH and DETH are in front of a MAD.
const MAD: u16 = (bth::LEN + deth::LEN) as u16;
/// The common MAD header: its attribute id (13.4.2).
const ATTRIBUTE: u16 = MAD + 16;
/// CM messages begin behind it (12.6): the sender's communication id, or the request id of a SIDR exchange.
const SENDERS_ID: u16 = MAD + mad::HEADER_LEN as u16;
/// The receiver's communication id.
const RECEIVERS_ID: u16 = SENDERS_ID + 4;
/// REQ and SIDR_REQ: the service id.
const SERVICE: u16 = SENDERS_ID + 8;

const REQ: u32 = 0x10;
const REJ: u32 = 0x12;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;

fn steer_rule() -> SteerRule {
    let gsi = Match { offset: DEST_QPN - 1, width: 4, mask: 0x00ff_ffff, value: Qpn::GSI.value() };
    let attribute = |value| Match { offset: ATTRIBUTE, width: 2, mask: 0xffff, value };
    let nobodys = Match { offset: RECEIVERS_ID, width: 4, mask: u32::MAX, value: 0 };
    let case = |when: &[Match], to| SteerCase { when: when.to_vec(), to };
    SteerRule {
        cases: vec![
            case(&[gsi, attribute(REQ)], SteerTo::Service(SERVICE)),
            case(&[gsi, attribute(SIDR_REQ)], SteerTo::Service(SERVICE)),
            // The answer to a SIDR_REQ carries its request id back in the same place.
            case(&[gsi, attribute(SIDR_REP)], SteerTo::Slot(SENDERS_ID)),
            case(&[gsi, attribute(REJ), nobodys], SteerTo::Everyone),
            case(&[gsi], SteerTo::SlotOrHeir(RECEIVERS_ID)),
            case(&[], SteerTo::Slot(DEST_QPN)),
        ],
    }
}

/// Takes a seat at this host's RoCEv2 port.
pub(crate) fn claim() -> io::Result<Seat> {
    Seat::claim(steer_rule())
}

/// The communication ids that go with a seat.
pub(crate) fn comm_ids(seat: &Seat) -> CommIdSpace {
    CommIdSpace { prefix: u32::from(seat.slot()), prefix_bits: 8 }
}

#[cfg(test)]
mod tests {
    use remanence_wire::Pkey;
    use remanence_wire::cm::{Message, Repr, Rtu, ServiceId, SidrReq};

    use super::*;

    fn emit(message: Message) -> [u8; mad::LEN] {
        let mut bytes = [0; mad::LEN];
        Repr { transaction_id: 1, message }.emit(&mut bytes);
        bytes
    }

    fn at<const N: usize>(mad: &[u8; mad::LEN], offset: u16) -> [u8; N] {
        *mad[usize::from(offset - MAD)..].first_chunk().unwrap()
    }

    /// The offsets above, against messages as `wire` writes them. (A REQ is laid out as a SIDR_REQ as far as it
    /// matters here; connections between processes show that.)
    #[test]
    fn the_offsets_are_those_of_the_messages() {
        let rtu = Rtu { local_comm_id: 0x1122_3344, remote_comm_id: 0x5566_7788, private_data: [0; 224] };
        let rtu = emit(Message::Rtu(rtu));
        assert_eq!(at(&rtu, ATTRIBUTE), [0, 0x14]);
        assert_eq!(at(&rtu, RECEIVERS_ID), [0x55, 0x66, 0x77, 0x88]);
        let request = SidrReq {
            request_id: 0x1122_3344,
            pkey: Pkey::DEFAULT,
            service_id: ServiceId(0x0102_0304_0506_0708),
            private_data: [0; SidrReq::PRIVATE_DATA_LEN],
        };
        let request = emit(Message::SidrReq(request));
        assert_eq!(at(&request, ATTRIBUTE), (SIDR_REQ as u16).to_be_bytes());
        assert_eq!(at(&request, SENDERS_ID), [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(at(&request, SERVICE), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
