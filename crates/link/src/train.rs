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
    /// Bytes of each datagram but the last; never 0.
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
        (0_usize..).zip(self.payloads()).map(move |(nth, payload)| Received {
            src,
            dst_ip,
            ip_id: None,
            // Where the kernel's identification stands for it, the next one after 65535 is 0.
            train_index: first_index.wrapping_add(nth as u16),
            ecn,
            ttl,
            payload,
        })
    }

    /// The datagrams `from..to` of this train.
    pub(crate) fn part(&self, from: usize, to: usize) -> Self {
        let end = (to * self.segment_size).min(self.data.len());
        let first_index = self.first_index.wrapping_add(from as u16);
        Self { first_index, data: &self.data[from * self.segment_size..end], ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_around_as_identifications_do() {
        let train = |first_index, data| Train {
            src: "127.0.0.1:4791".parse().expect("an address"),
            dst_ip: "127.0.0.2".parse().expect("an address"),
            ecn: 0,
            ttl: 64,
            segment_size: 2,
            first_index,
            data,
        };
        let positions = |train: Train<'_>| train.datagrams().map(|one| one.train_index).collect::<Vec<_>>();
        assert_eq!(positions(train(65_533, b"abcdefgh")), [65_533, 65_534, 65_535, 0]);
        assert_eq!(positions(train(65_535, b"")), [65_535]);
        let whole = train(65_534, b"abcdefgh");
        assert_eq!(positions(whole.part(1, 2)), [65_535]);
        assert_eq!(positions(whole.part(3, 4)), [1]);
    }
}
