//! Packets by hand, sealed by `wire`'s own computation over every byte; and a switch with one group.

use std::net::{IpAddr, Ipv4Addr};

use remanence_rnic::Instant;
use remanence_switch::{Config, Endpoint, Made, Replica, Report, Spec, Switch};
use remanence_wire::aeth::{self, Aeth, Credits, NakCode};
use remanence_wire::icrc::{self, Flow};
use remanence_wire::ip::{self, Datagram};
use remanence_wire::packet::{self, Headers, OVERHEAD_MAX, Packet, Repr};
use remanence_wire::{Msn, Mtu, Opcode, Psn, Qpn, ROCE_PORT, Rkey, bth, reth, udp};

/// Where all switches are.
pub(crate) const SWITCH: IpAddr = host(100);
/// The UDP port that leaders and replicas send from.
pub(crate) const PORT: u16 = 0xc0de;

/// A host of the network.
pub(crate) const fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

/// What is behind an IP header and beside the RoCE packet.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) ident: u16,
}

/// A whole packet.
pub(crate) fn packet(path: &Path, repr: &Repr, payload: &[u8]) -> Vec<u8> {
    let &Path { src, dst, src_port, ident } = path;
    let len = packet::packet_len(repr.header_len(), payload.len());
    let payload_len = (udp::LEN + len) as u16;
    let ip = ip::Repr { src, dst, traffic_class: 2, hop_limit: 64, ident, flow_label: 0, payload_len };
    let mut bytes = vec![0; ip.header_len() + udp::LEN + payload.len() + OVERHEAD_MAX];
    let at = ip.emit(&mut bytes);
    let udp = udp::Repr { src_port, dst_port: ROCE_PORT, payload_len: len as u16 };
    udp.emit(bytes[at..].first_chunk_mut().unwrap());
    let at = at + udp::LEN;
    let header_len = repr.emit(&mut bytes[at..]);
    bytes[at + header_len..][..payload.len()].copy_from_slice(payload);
    packet::finish(
        &mut bytes[at..],
        header_len,
        payload.len(),
        &Flow::new(src, dst, src_port, ROCE_PORT),
        ident,
    );
    bytes.truncate(at + len);
    bytes
}

/// What leaves a switch, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) repr: Repr,
    pub(crate) payload: Vec<u8>,
}

impl Seen {
    pub(crate) fn psn(&self) -> Psn {
        self.repr.bth.psn
    }

    pub(crate) fn aeth(&self) -> Option<aeth::Repr> {
        match self.repr.headers {
            Headers::Aeth(aeth) => Some(aeth),
            _ => None,
        }
    }
}

/// Takes a packet apart, which must be whole: lengths, checksums and ICRC.
pub(crate) fn see(bytes: &[u8]) -> Seen {
    let datagram = Datagram::parse(bytes).unwrap();
    assert_eq!(icrc::check(&datagram.flow(), datagram.ip_id(), datagram.payload).err(), None, "{datagram:?}");
    let packet = Packet::parse(datagram.payload).unwrap();
    let ip::Repr { src: from, dst: to, .. } = datagram.ip;
    Seen { from, to, repr: packet.repr(), payload: packet.payload().to_vec() }
}

/// A group of so many replicas, whose connections begin shortly before the PSNs wrap.
pub(crate) fn spec(replicas: u8, writes: usize, reads: usize) -> Spec {
    let replica = |n: u8| Replica {
        end: Endpoint {
            addr: host(2 + n),
            qpn: Qpn::new(0x21 + 0x10 * u32::from(n)),
            psn: Psn::new(0x10_0000 * u32::from(n) + 0x100),
        },
        va: 0x7f00_0000_0000 + 0x1_0000_0000 * u64::from(n),
        rkey: Rkey(0x2222 + u32::from(n)),
        linux_flush: false,
    };
    Spec {
        service: 1,
        epoch: 1,
        leader: Endpoint { addr: host(1), qpn: Qpn::new(0x11), psn: Psn::new(0xff_fffe) },
        replicas: (0..replicas).map(replica).collect(),
        mtu: Mtu::B1024,
        va: 0x1000,
        rkey: Rkey(0xabcd),
        writes,
        reads,
        lag: 1000,
    }
}

/// A switch with one group, and who can speak for its leader and its replicas. Packets are counted from the first PSN of the connection on.
pub(crate) struct Rig {
    pub(crate) switch: Switch,
    pub(crate) spec: Spec,
    pub(crate) made: Made,
}

impl Rig {
    pub(crate) fn new(spec: Spec) -> Self {
        let mut switch = Switch::new(config());
        let made = switch.make_group(Instant::ZERO, spec.clone()).unwrap();
        Self { switch, spec, made }
    }

    /// A group of which all may be asked for: three replicas, of which two must have a WRITE, and two must agree on a READ.
    pub(crate) fn usual() -> Self {
        Self::new(spec(3, 2, 2))
    }

    /// A range of the group's memory, as the leader names it.
    pub(crate) fn range(&self, offset: u64, len: u32) -> reth::Repr {
        reth::Repr { va: self.spec.va + offset, rkey: self.spec.rkey, dma_len: len }
    }

    /// The same range, as a replica knows it.
    pub(crate) fn range_at(&self, replica: usize, offset: u64, len: u32) -> reth::Repr {
        let replica = &self.spec.replicas[replica];
        reth::Repr { va: replica.va + offset, rkey: replica.rkey, dma_len: len }
    }

    /// The leader's `n`th packet, which asks for an answer.
    pub(crate) fn request(&self, opcode: Opcode, n: u32, headers: Headers, payload: &[u8]) -> Vec<u8> {
        let path = Path { src: self.spec.leader.addr, dst: SWITCH, src_port: PORT, ident: 7 };
        let bth = bth::Repr {
            ack_req: true,
            ..bth::Repr::new(opcode, self.made.broadcast, self.spec.leader.psn.add(n))
        };
        packet(&path, &Repr { bth, headers }, payload)
    }

    /// What a replica gets of that.
    pub(crate) fn copy(
        &self,
        to: usize,
        opcode: Opcode,
        n: u32,
        headers: Headers,
        payload: &[u8],
    ) -> Vec<u8> {
        let end = self.spec.replicas[to].end;
        let path = Path { src: SWITCH, dst: end.addr, src_port: PORT, ident: 0 };
        let bth = bth::Repr { ack_req: true, ..bth::Repr::new(opcode, end.qpn, end.psn.add(n)) };
        packet(&path, &Repr { bth, headers }, payload)
    }

    /// A replica's answer with the `n`th PSN.
    pub(crate) fn response(
        &self,
        from: usize,
        opcode: Opcode,
        n: u32,
        headers: Headers,
        payload: &[u8],
    ) -> Vec<u8> {
        let end = self.spec.replicas[from].end;
        let path = Path { src: end.addr, dst: SWITCH, src_port: PORT, ident: 9 + from as u16 };
        let bth = bth::Repr::new(opcode, self.made.aggregate(from), end.psn.add(n));
        packet(&path, &Repr { bth, headers }, payload)
    }

    /// What the leader gets, from the switch itself.
    pub(crate) fn told(&self, opcode: Opcode, n: u32, aeth: aeth::Repr) -> Seen {
        let leader = self.spec.leader;
        let bth = bth::Repr::new(opcode, leader.qpn, leader.psn.add(n));
        let repr = Repr { bth, headers: Headers::Aeth(aeth) };
        Seen { from: SWITCH, to: leader.addr, repr, payload: Vec::new() }
    }

    /// Gives the switch a packet.
    pub(crate) fn give(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut left = Vec::new();
        self.switch.handle(Instant::ZERO, packet, &mut |packet| left.push(packet.to_vec()));
        left
    }

    /// The leader writes 8 bytes; what leaves for it beside the copies.
    pub(crate) fn write(&mut self, n: u32) -> Vec<Seen> {
        let request = self.request(Opcode::RcWriteOnly, n, Headers::Reth(self.range(0, 8)), &[1; 8]);
        self.beside_copies(&request)
    }

    /// The leader sends a FLUSH of nothing in particular, an ATOMIC WRITE or a READ.
    pub(crate) fn ask(&mut self, opcode: Opcode, n: u32, len: u32) -> Vec<Seen> {
        let range = self.range(0, len);
        let (headers, payload): (_, &[u8]) = match opcode {
            Opcode::RcFlush => {
                (Headers::FethReth(remanence_wire::feth::Repr::parse(&[0, 0, 0, 2]), range), &[])
            }
            Opcode::RcAtomicWrite => (Headers::Reth(range), &[5; 8]),
            _ => (Headers::Reth(range), &[]),
        };
        let request = self.request(opcode, n, headers, payload);
        self.beside_copies(&request)
    }

    /// Gives the switch a request, and takes out the copies, one for each replica.
    fn beside_copies(&mut self, request: &[u8]) -> Vec<Seen> {
        let left: Vec<Seen> = self.give(request).iter().map(|packet| see(packet)).collect();
        left.into_iter().filter(|seen| seen.to == self.spec.leader.addr).collect()
    }

    /// A replica acknowledges, with so many messages completed.
    pub(crate) fn ack(&mut self, from: usize, n: u32, msn: u32) -> Vec<Seen> {
        self.say(from, Opcode::RcAck, n, Aeth::Ack(Credits::UNLIMITED), msn)
    }

    /// A replica asks for a packet that it misses.
    pub(crate) fn misses(&mut self, from: usize, n: u32) -> Vec<Seen> {
        self.say(from, Opcode::RcAck, n, Aeth::Nak(NakCode::PsnSequenceError), 0)
    }

    /// A replica answers with an AETH and no data.
    pub(crate) fn say(&mut self, from: usize, opcode: Opcode, n: u32, aeth: Aeth, msn: u32) -> Vec<Seen> {
        let headers = Headers::Aeth(aeth::Repr { aeth, msn: Msn::new(msn) });
        let packet = self.response(from, opcode, n, headers, &[]);
        self.give(&packet).iter().map(|packet| see(packet)).collect()
    }

    pub(crate) fn reports(&mut self) -> Vec<Report> {
        std::iter::from_fn(|| self.switch.poll_report()).collect()
    }
}

/// What all switches are.
pub(crate) fn config() -> Config {
    Config::new(SWITCH, 0x100..0x200)
}

/// An ACK without end-to-end flow control.
pub(crate) const fn plain_ack(msn: u32) -> aeth::Repr {
    aeth::Repr { aeth: Aeth::Ack(Credits::UNLIMITED), msn: Msn::new(msn) }
}
