//! A datagram, or a train of them, on the detour from the process that received it to the one it belongs to.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `RMF1` |
//! | 4 | 4 or 6: the family of both addresses |
//! | 5 | ECN bits |
//! | 6 | TTL or hop limit, 0 unknown |
//! | 7 | 0: it came to the wrong process; 1: its sender chose this way |
//! | 8..12 | segment size |
//! | 12..14 | source port |
//! | 14..16 | position of the first datagram in the train it was part of |
//! | 16..32 | source address, IPv4 in the first four bytes |
//! | 32..48 | destination address |
//!
//! All numbers big-endian. Then the payload.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::train::Train;

pub(crate) const HEADER_LEN: usize = 48;
const MAGIC: &[u8; 4] = b"RMF1";

/// The header for `train`, which another process received, or (`chosen`) which its sender brings himself.
pub(crate) fn encode(train: &Train<'_>, chosen: bool) -> [u8; HEADER_LEN] {
    let mut head = [0; HEADER_LEN];
    head[7] = chosen.into();
    head[..4].copy_from_slice(MAGIC);
    head[4] = if train.src.is_ipv4() { 4 } else { 6 };
    head[5] = train.ecn;
    head[6] = train.ttl;
    head[8..12].copy_from_slice(&u32::try_from(train.segment_size).unwrap_or(u32::MAX).to_be_bytes());
    head[12..14].copy_from_slice(&train.src.port().to_be_bytes());
    head[14..16].copy_from_slice(&train.first_index.to_be_bytes());
    put_ip(&mut head[16..32], train.src.ip());
    put_ip(&mut head[32..48], train.dst_ip);
    head
}

/// Whether the sender of a message that can be decoded chose this way.
pub(crate) fn is_chosen(message: &[u8]) -> bool {
    message[7] == 1
}

/// What `message` carries; `None` if it is not one of ours.
pub(crate) fn decode(message: &[u8]) -> Option<Train<'_>> {
    let (head, data) = message.split_at_checked(HEADER_LEN)?;
    if &head[..4] != MAGIC || head[7] > 1 {
        return None;
    }
    let family = head[4];
    let segment_size = u32::from_be_bytes(*head[8..].first_chunk()?);
    let port = u16::from_be_bytes(*head[12..].first_chunk()?);
    Some(Train {
        src: SocketAddr::new(get_ip(family, &head[16..32])?, port),
        dst_ip: get_ip(family, &head[32..48])?,
        ecn: head[5] & 3,
        ttl: head[6],
        segment_size: usize::try_from(segment_size).ok().filter(|size| *size > 0)?,
        first_index: u16::from_be_bytes(*head[14..].first_chunk()?),
        data,
    })
}

fn put_ip(to: &mut [u8], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => to[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => to.copy_from_slice(&ip.octets()),
    }
}

fn get_ip(family: u8, from: &[u8]) -> Option<IpAddr> {
    match family {
        4 => Some(Ipv4Addr::from(*from.first_chunk::<4>()?).into()),
        6 => Some(Ipv6Addr::from(*from.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_decoded() {
        for (src, dst_ip) in [("127.0.0.1:49152", "127.0.0.9"), ("[fd00::1]:65535", "fd00::2")] {
            let train = Train {
                src: src.parse().expect("an address"),
                dst_ip: dst_ip.parse().expect("an address"),
                ecn: 3,
                ttl: 64,
                segment_size: 1084,
                first_index: 7,
                data: b"payload",
            };
            for chosen in [false, true] {
                let mut message = encode(&train, chosen).to_vec();
                message.extend(train.data);
                assert_eq!((decode(&message), is_chosen(&message)), (Some(train), chosen));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused_and_what_is_read_is_whole() {
        use rand_core::{RngCore, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
        let mut read = 0;
        for _ in 0..50_000 {
            let mut message = vec![0; rng.next_u32() as usize % 120];
            rng.fill_bytes(&mut message);
            if message.len() > 8 && rng.next_u32() % 4 > 0 {
                let family = 4 + (message[4] & 2);
                message[..8].copy_from_slice(&[
                    b'R',
                    b'M',
                    b'F',
                    b'1',
                    family,
                    3,
                    9,
                    rng.next_u32() as u8 & 1,
                ]);
            }
            if let Some(train) = decode(&message) {
                let bytes: usize = train.payloads().map(<[u8]>::len).sum();
                assert_eq!(bytes, message.len() - HEADER_LEN);
                assert_eq!(encode(&train, is_chosen(&message))[..16], message[..16]);
                read += 1;
            }
        }
        assert!(read > 1000, "{read}");
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let train = Train {
            src: "127.0.0.1:1".parse().expect("an address"),
            dst_ip: "127.0.0.1".parse().expect("an address"),
            ecn: 0,
            ttl: 0,
            segment_size: 1,
            first_index: 0,
            data: &[],
        };
        let good = encode(&train, false);
        assert!(decode(&good).is_some());
        for (at, value) in [(0, b'x'), (4, 5), (7, 2), (11, 0)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(decode(&bad), None, "byte {at} = {value}");
        }
        assert_eq!(decode(&good[..47]), None);
        assert_eq!(decode(&[]), None);
    }
}
