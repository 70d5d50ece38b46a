//! A link in memory: what arrives is put there, and what left is looked at.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use remanence_link::{Link, LinkCaps, LinkStats, Outgoing, Received, SourcePort, WaitFd};
use remanence_wire::ip::{self, Datagram};
use remanence_wire::{ROCE_PORT, udp};

/// What the test and the link have in common.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// Packets to be received, in batches.
    pub(crate) arrives: VecDeque<Vec<Vec<u8>>>,
    /// Packets that have left.
    pub(crate) left: Vec<Vec<u8>>,
    /// Sends that it took.
    pub(crate) sends: usize,
    /// Sends that it has room for; `None`: any number.
    pub(crate) room: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Wire {
    caps: LinkCaps,
    /// As AF_XDP does, and a socket does not.
    sees_ident: bool,
    ident: u16,
    ends: Arc<Mutex<Ends>>,
    buffer: Vec<u8>,
}

impl Wire {
    /// One that is like AF_XDP.
    pub(crate) fn whole(addr: IpAddr) -> Self {
        Self::new(addr, SourcePort::Any, 1, true)
    }

    /// One that is like a socket that counts its sends, from this number on.
    pub(crate) fn socket(addr: IpAddr, src_port: u16, ident: u16) -> Self {
        Self { ident, ..Self::new(addr, SourcePort::Fixed(src_port), 8, false) }
    }

    fn new(addr: IpAddr, src_port: SourcePort, max_segments: usize, sees_ident: bool) -> Self {
        let caps = LinkCaps {
            kind: "wire",
            addresses: vec![addr],
            port: ROCE_PORT,
            mtu: 9000,
            max_segments,
            max_send_bytes: 65_507,
            src_port,
            reliable_bytes: false,
        };
        Self { buffer: vec![0; caps.max_send_bytes], caps, sees_ident, ident: 0, ends: Arc::default() }
    }

    pub(crate) fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap()
    }
}

impl Link for Wire {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn ident(&self) -> u16 {
        self.ident
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        if self.ends().room == Some(0) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&mut self.buffer)
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        assert!(out.segments() <= self.caps.max_segments && self.caps.addresses.contains(&out.src));
        let (src, dst) = (out.src, out.dst.ip());
        for (index, payload) in (0..).zip(self.buffer[..out.len].chunks(out.segment_size)) {
            let ident = self.ident.wrapping_add(index);
            let payload_len = (udp::LEN + payload.len()) as u16;
            let (traffic_class, hop_limit) = (out.tos, out.ttl);
            let ip = ip::Repr { src, dst, traffic_class, hop_limit, ident, flow_label: 0, payload_len };
            let mut packet = vec![0; ip.header_len() + udp::LEN];
            let at = ip.emit(&mut packet);
            let src_port = self.caps.effective_src_port(out.src_port);
            udp::Repr { src_port, dst_port: out.dst.port(), payload_len: payload.len() as u16 }
                .emit(packet[at..].first_chunk_mut().unwrap());
            packet.extend_from_slice(payload);
            self.ends().left.push(packet);
        }
        let mut ends = self.ends.lock().unwrap();
        ends.sends += 1;
        ends.room = ends.room.map(|room| room - 1);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let batch = self.ends().arrives.pop_front().unwrap_or_default();
        for (packet, train_index) in batch.iter().zip(0..) {
            let Datagram { ip, udp, payload } = Datagram::parse(packet).unwrap();
            sink(Received {
                src: SocketAddr::new(ip.src, udp.src_port),
                dst_ip: ip.dst,
                ip_id: self.sees_ident.then_some(ip.ident),
                train_index,
                ecn: ip.traffic_class & 3,
                ttl: if self.sees_ident { ip.hop_limit } else { 0 },
                payload,
            });
        }
        Ok(batch.len())
    }

    fn wait_fds(&self, _: &mut Vec<WaitFd>) {}

    fn prepare_wait(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}
