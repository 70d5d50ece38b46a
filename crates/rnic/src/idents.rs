//! Which IPv4 identification a datagram probably has, where the link cannot see it.
//!
//! The ICRC covers it, and one that was not guessed has to be found out from the ICRC itself (`remanence_wire::icrc`), which
//! takes longer than the check. Senders do one of two things: a socket without a peer numbers each train from 0, and a
//! connected one counts its sends, from a random number on. So for each sender that counts, the number that comes next is
//! kept here; all others are guessed at 0. A wrong guess costs time, and no packet.

use std::net::IpAddr;

use remanence_wire::icrc::{self, BadIcrc, Flow, IpId};

use crate::device::RxMeta;

/// Senders that are remembered; others push them out.
const SENDERS: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    /// Address and port.
    key: u64,
    /// Identification of the next train's first datagram; `None` if this one does not count.
    next: Option<u16>,
}

/// What is known of the senders that count.
#[derive(Debug)]
pub(crate) struct Idents(Box<[Sender; SENDERS]>);

impl Default for Idents {
    fn default() -> Self {
        Self(Box::new([Sender::default(); SENDERS]))
    }
}

impl Idents {
    /// Checks the ICRC of a datagram, with whatever is known of its identification; whether a guess was right, if there was
    /// one.
    #[inline]
    pub(crate) fn check(
        &mut self,
        flow: &Flow,
        rx: &RxMeta,
        payload: &[u8],
    ) -> Result<Option<bool>, BadIcrc> {
        let (IpAddr::V4(src), None) = (rx.src, rx.ip_id) else {
            return icrc::check(flow, rx.ip_id, payload).map(|_| None);
        };
        let key = u64::from(u32::from(src)) << 16 | u64::from(rx.src_port);
        let sender = &mut self.0[slot(key)];
        let mut guess = rx.train_index;
        if let Some(next) = sender.next.filter(|_| sender.key == key) {
            // What is not the first of its train has the train's number, which `next` is beyond.
            guess = next.wrapping_add(rx.train_index).wrapping_sub(u16::from(rx.train_index > 0));
            // A train that came in pieces looks like as many sends as it has datagrams.
            for id in [guess, guess.wrapping_sub(1)] {
                if icrc::check(flow, Some(id), payload).is_ok() {
                    sender.next = Some(id.wrapping_sub(rx.train_index).wrapping_add(1));
                    return Ok(Some(true));
                }
            }
        }
        match icrc::check_guess(flow, guess, payload)? {
            IpId::Absent => Ok(None),
            IpId::Confirmed(_) => Ok(Some(true)),
            IpId::Recovered(id) => {
                let first = id.wrapping_sub(rx.train_index);
                // Who was thought to count and begins at 0 does not count (any more); if it does after all, the next one
                // tells.
                let next = (first != 0).then(|| first.wrapping_add(1));
                *sender = Sender { key, next };
                Ok(Some(false))
            }
        }
    }
}

/// Fibonacci hashing: addresses and ports differ in their low bits.
const fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use remanence_wire::udp::ROCE_PORT;

    use super::*;

    fn meta(last: u8, train_index: u16) -> RxMeta {
        RxMeta {
            src: Ipv4Addr::new(10, 0, 0, last).into(),
            dst: Ipv4Addr::new(10, 0, 1, 1).into(),
            src_port: 0xc000,
            ip_id: None,
            train_index,
            ecn: 0,
            hop_limit: 64,
        }
    }

    fn packet(rx: &RxMeta, ident: u16) -> (Flow, Vec<u8>) {
        let flow = Flow::new(rx.src, rx.dst, rx.src_port, ROCE_PORT);
        let mut payload: Vec<u8> = (0..64_u8).map(|i| i.wrapping_mul(7)).collect();
        icrc::seal(&flow, ident, &mut payload);
        (flow, payload)
    }

    /// How the guess was: right, or found out.
    fn arrives(idents: &mut Idents, rx: &RxMeta, ident: u16) -> bool {
        let (flow, payload) = packet(rx, ident);
        idents.check(&flow, rx, &payload).expect("a sound packet passes, whatever was guessed") == Some(true)
    }

    #[test]
    fn who_begins_at_0_each_time_is_guessed_right() {
        let mut idents = Idents::default();
        for train in [1_u16, 3, 64] {
            for index in 0..train {
                assert!(arrives(&mut idents, &meta(1, index), index));
            }
        }
    }

    #[test]
    fn who_counts_is_found_out_once_and_guessed_right_from_then_on() {
        let mut idents = Idents::default();
        let mut first = 65_000_u16;
        let mut wrong = 0;
        for round in 0..2000_u16 {
            // A send is one number, however many datagrams it makes.
            for index in 0..=(round % 4) {
                wrong += u32::from(!arrives(&mut idents, &meta(1, index), first.wrapping_add(index)));
            }
            first = first.wrapping_add(1);
        }
        assert!(
            wrong <= 4,
            "{wrong} wrong guesses: the first, what follows it in its train, and 0 in between"
        );
    }

    #[test]
    fn senders_are_told_apart_and_may_change_their_ways() {
        let mut idents = Idents::default();
        assert!(!arrives(&mut idents, &meta(1, 0), 500) && !arrives(&mut idents, &meta(2, 0), 9));
        assert!(arrives(&mut idents, &meta(3, 0), 0));
        assert!(arrives(&mut idents, &meta(1, 0), 501) && arrives(&mut idents, &meta(2, 0), 10));
        assert!(!arrives(&mut idents, &meta(1, 0), 0), "it does not count any more");
        assert!(arrives(&mut idents, &meta(1, 0), 0) && arrives(&mut idents, &meta(1, 1), 1));
        assert!(arrives(&mut idents, &meta(2, 0), 11));
        assert!(!arrives(&mut idents, &meta(2, 0), 20), "a gap");
        assert!(arrives(&mut idents, &meta(2, 0), 21));
    }

    #[test]
    fn nothing_is_learnt_from_damage() {
        let mut idents = Idents::default();
        let rx = meta(1, 0);
        assert!(!arrives(&mut idents, &rx, 7));
        for id in 8..40 {
            let (flow, mut payload) = packet(&rx, id);
            payload[40] ^= 1;
            assert_eq!(idents.check(&flow, &rx, &payload), Err(BadIcrc));
            assert!(arrives(&mut idents, &rx, id), "a damaged packet is none");
        }
    }
}
