//! What groups act upon: packets that leave, reports, counters.

use std::collections::VecDeque;
use std::net::IpAddr;

use remanence_wire::icrc::Flow;
use remanence_wire::packet::{self, Headers, OVERHEAD_MAX, Repr};
use remanence_wire::{Opcode, Psn, ROCE_PORT, aeth, bth, ip, udp};

use crate::frame::{Edit, Frame, seal_flush};
use crate::group::Group;
use crate::icrc::Advance;
use crate::report::{Report, Stats, note};

/// The way out of a switch.
pub(crate) struct Port<'a> {
    pub(crate) addr: IpAddr,
    /// The one that all leave from, if there is one.
    pub(crate) src_port: Option<u16>,
    pub(crate) advance: &'a Advance,
    pub(crate) scratch: &'a mut Vec<u8>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) reports: &'a mut VecDeque<Report>,
    pub(crate) send: &'a mut dyn FnMut(&[u8]),
}

impl Port<'_> {
    pub(crate) fn report(&mut self, report: Report) {
        note(self.reports, self.stats, report);
    }

    /// Sends a packet as another one.
    pub(crate) fn rewritten(&mut self, frame: &Frame<'_>, edit: &Edit, flush: Option<FlushForm>) {
        let Some(()) = frame.rewrite(edit, self.src_port, self.advance, self.scratch) else {
            self.stats.malformed += 1;
            return;
        };
        if let Some(FlushForm { linux }) = flush {
            seal_flush(self.scratch, linux);
        }
        (self.send)(self.scratch);
    }

    /// Sends the leader of a group an ACK or a NAK.
    pub(crate) fn acknowledge(&mut self, group: &Group, psn: Psn, aeth: aeth::Repr) {
        self.answer(group, Opcode::RcAck, psn, aeth);
    }

    /// Sends the leader of a group the answer to a FLUSH or an ATOMIC WRITE.
    pub(crate) fn done(&mut self, group: &Group, psn: Psn, aeth: aeth::Repr) {
        self.answer(group, Opcode::RcReadResponseOnly, psn, aeth);
    }

    fn answer(&mut self, group: &Group, opcode: Opcode, psn: Psn, aeth: aeth::Repr) {
        let leader = group.spec.leader;
        let repr = Repr { bth: bth::Repr::new(opcode, leader.qpn, psn), headers: Headers::Aeth(aeth) };
        // One of those that Annex A17 has for flows.
        let src_port = 0xc000 | (group.broadcast.value() & 0x3fff) as u16;
        self.emit(leader.addr, src_port, &repr, &[]);
        self.stats.answered += 1;
    }

    /// Sends a packet of the switch's own.
    pub(crate) fn emit(&mut self, dst: IpAddr, src_port: u16, repr: &Repr, payload: &[u8]) {
        let src_port = self.src_port.unwrap_or(src_port);
        let len = packet::packet_len(repr.header_len(), payload.len());
        let payload_len = (udp::LEN + len) as u16;
        let ip = ip::Repr {
            src: self.addr,
            dst,
            traffic_class: 0,
            hop_limit: 64,
            ident: 0,
            flow_label: 0,
            payload_len,
        };
        self.scratch.clear();
        self.scratch.resize(ip.header_len() + udp::LEN + payload.len() + OVERHEAD_MAX, 0);
        let at = ip.emit(self.scratch);
        let (header, body) = self.scratch[at..].split_first_chunk_mut().expect("room for a UDP header");
        udp::Repr { src_port, dst_port: ROCE_PORT, payload_len: len as u16 }.emit(header);
        let header_len = repr.emit(body);
        body[header_len..header_len + payload.len()].copy_from_slice(payload);
        let flow = Flow::new(self.addr, dst, src_port, ROCE_PORT);
        packet::finish(body, header_len, payload.len(), &flow, 0);
        (self.send)(&self.scratch[..at + udp::LEN + len]);
    }
}

/// How a FLUSH is sealed again, as its receiver may want another form of the ICRC than the one that it came with.
pub(crate) struct FlushForm {
    pub(crate) linux: bool,
}
