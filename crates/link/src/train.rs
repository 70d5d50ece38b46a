//! Datagrams that arrived together: what one receive of a socket with receive offload brings.

use std::net::{IpAddr, SocketAddr};

use crate::link::Received;

/// Equal datagrams of one sender, one behind the other; the last may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Train<'a> {
    pub(crate) src: SocketAddr,
    pub(crate) dst_ip: IpAddr,
    pub(crate) ecn: u8,
    pub(crate) ttl: u8,
    /// Never 0.
    pub(crate) segment_size: usize,
    /// The position of the first one in the train as it was sent.
    pub(crate) first_index: u16,
    pub(crate) data: &'a [u8],
}

impl<'a> Train<'a> {
    /// The payloads, at least one.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        // An empty datagram is a datagram.
        let empty = self.data.is_empty().then_some(self.data);
        empty.into_iter().chain(self.data.chunks(self.segment_size))
    }

    /// The datagrams, at least one.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = Received<'a>> + use<'a> {
        let Self { src, dst_ip, ecn, ttl, first_index, .. } = *self;
        (first_index..).zip(self.payloads()).map(move |(train_index, payload)| Received {
            src,
            dst_ip,
            ip_id: None,
            train_index,
            ecn,
            ttl,
            payload,
        })
    }

    /// The datagrams `from..to` of this train.
    pub(crate) fn part(&self, from: usize, to: usize) -> Self {
        let end = (to * self.segment_size).min(self.data.len());
        let first_index = self.first_index.saturating_add(u16::try_from(from).unwrap_or(u16::MAX));
        Self { first_index, data: &self.data[from * self.segment_size..end], ..*self }
    }
}
