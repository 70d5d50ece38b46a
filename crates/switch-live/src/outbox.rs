//! What leaves: packets for one host that are alike become a train, which is one system call where the kernel can cut it.
//!
//! The kernel numbers the datagrams of a train, and the ICRC covers the number: whatever is not the first is sealed for the one that it gets.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use remanence_link::{Link, LinkCaps, Outgoing};
use remanence_switch::icrc::Advance;
use remanence_wire::Opcode;
use remanence_wire::icrc::{self, Flow};
use remanence_wire::ip::Datagram;

/// Trains that are looked through for one that a packet can join: those of the largest group, one a replica, and the leader's.
const NEAR: usize = remanence_switch::REPLICAS_MAX + 1;
/// Buffers that are kept for the next trains.
const SPARE: usize = 64;

/// Equal datagrams for one host, of which the last may be shorter.
#[derive(Debug)]
struct Train {
    out: Outgoing,
    /// Their UDP payloads, one behind the other, each with identification 0.
    bytes: Vec<u8>,
    segments: usize,
    /// It has had its shorter one.
    ends: bool,
}

/// What one send may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    segments: usize,
    bytes: usize,
}

impl Limits {
    /// Those of the link at the moment.
    pub(crate) fn of(link: &dyn Link) -> Self {
        let &LinkCaps { max_segments: segments, max_send_bytes: bytes, .. } = link.caps();
        Self { segments, bytes }
    }
}

/// Packets that wait to leave, in the order in which they were said for each host.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    trains: VecDeque<Train>,
    spare: Vec<Vec<u8>>,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Those that the link does not take, as they are too long for it.
    pub(crate) unsendable: u64,
    /// There is no room for what is left.
    pub(crate) blocked: bool,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Adds a packet, from its IP header to its ICRC.
    pub(crate) fn push(&mut self, packet: &[u8], limits: Limits) {
        let datagram = Datagram::parse(packet).expect("what a switch sends is a datagram");
        let Datagram { ip, udp, payload } = datagram;
        let out = Outgoing {
            src: ip.src,
            src_port: udp.src_port,
            dst: SocketAddr::new(ip.dst, udp.dst_port),
            tos: ip.traffic_class,
            ttl: ip.hop_limit,
            len: payload.len(),
            segment_size: payload.len(),
        };
        // Behind the last of the host's own, or else at the end, so that their order stays.
        let last = self.trains.iter_mut().rev().take(NEAR).find(|train| train.out.dst == out.dst);
        if let Some(train) = last.filter(|train| train.takes(&out, limits)) {
            train.bytes.extend_from_slice(payload);
            train.segments += 1;
            train.ends = payload.len() < train.out.segment_size;
            train.out.len = train.bytes.len();
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(payload);
        self.trains.push_back(Train { out, bytes, segments: 1, ends: false });
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// The link no longer works.
    pub(crate) fn send(&mut self, link: &mut dyn Link, advance: &Advance) -> io::Result<Sent> {
        let mut sent = Sent::default();
        while let Some(train) = self.trains.front() {
            match train.offer(link, advance) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    sent.blocked = true;
                    return Ok(sent);
                }
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => sent.unsendable += train.segments as u64,
                Err(e) => return Err(e),
            }
            let train = self.trains.pop_front().expect("it was looked at");
            if self.spare.len() < SPARE {
                let mut bytes = train.bytes;
                bytes.clear();
                self.spare.push(bytes);
            }
        }
        match link.flush() {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            // What waits in the link leaves with the next push, or before the next sleep.
            _ => Ok(sent),
        }
    }
}

impl Train {
    /// Whether one more such datagram can go with these.
    fn takes(&self, one: &Outgoing, limits: Limits) -> bool {
        let Self { out, .. } = self;
        !self.ends
            && (out.src, out.src_port, out.tos, out.ttl) == (one.src, one.src_port, one.tos, one.ttl)
            && one.len <= out.segment_size
            && self.segments < limits.segments
            && out.len + one.len <= limits.bytes
    }

    /// Seals a datagram, which has identification 0, for another one; `false` if it is longer than any may be.
    fn number(&self, payload: &mut [u8], ident: u16, advance: &Advance) -> bool {
        if payload.first() != Some(&(Opcode::RcFlush as u8)) {
            return advance.renumber(payload, ident);
        }
        // Linux takes it in a form that covers the headers twice. What a switch sends of these is whole, in the one form or the other.
        let Outgoing { src, src_port, dst, .. } = self.out;
        let flow = Flow::new(src, dst.ip(), src_port, dst.port());
        let mut plain = payload.to_vec();
        icrc::seal(&flow, 0, &mut plain);
        if plain == payload {
            icrc::seal(&flow, ident, payload);
        } else {
            icrc::seal_linux_flush(&flow, ident, payload);
        }
        true
    }

    /// Sends it, if there is room.
    fn offer(&self, link: &mut dyn Link, advance: &Advance) -> io::Result<()> {
        let first = link.ident();
        let room = link.tx_buffer()?.get_mut(..self.out.len).ok_or(io::ErrorKind::InvalidInput)?;
        room.copy_from_slice(&self.bytes);
        if self.out.dst.is_ipv4() {
            for (index, payload) in (0..).zip(room.chunks_mut(self.out.segment_size)) {
                let ident = first.wrapping_add(index);
                if ident != 0 && !self.number(payload, ident, advance) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
            }
        }
        link.send(&self.out)
    }
}
