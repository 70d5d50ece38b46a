//! What the fuzz targets do with their bytes; `fuzz/` holds the shells, and the unit tests run the committed corpus through the same
//! functions.

use std::sync::Arc;
use std::time::Duration;

use remanence_auth::Token;
use remanence_rnic::Instant;
use remanence_wire::{Gid, Qpn};

use crate::core::buffers::Body;
use crate::core::config::Config;
use crate::core::endpoint::Endpoint;
use crate::core::event::Event;
use crate::core::heap::{Datagram, Heap};
use crate::header::{Address, HEADER_LEN, Repr, Status};

/// A datagram's first bytes: what parses is emitted as the same bytes.
pub fn header(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HEADER_LEN>() else { return };
    if let Ok(repr) = Repr::parse(bytes) {
        assert_eq!(repr.emit(), *bytes);
    }
}

const MESSAGE_MAX: usize = 4096;
const DATAGRAM: usize = 192;
/// Sessions of each end.
const SESSIONS: usize = 4;

fn config(n: u8, token: Option<&Token>) -> Config {
    let message_max = MESSAGE_MAX as u32;
    Config {
        incarnation: u64::from(n) + 1,
        seed: 1,
        token: token.cloned(),
        secret: [n; 32],
        own: address(n),
        datagram: DATAGRAM,
        message_max,
        credits: 4,
        backlog: 4,
        sessions_max: SESSIONS,
        ..Config::default()
    }
}

fn address(n: u8) -> Address {
    Address { gid: Gid::from_ip([10, 0, 0, n].into()), qpn: Qpn::new(7) }
}

/// A story about two ends: each step is an opcode and its arguments. Packets pass from one to the other, whole, lost,
/// again, or with bytes of the fuzzer in them. Nothing panics, sessions and messages keep to their limits, no call ends
/// twice, and every packet that leaves is one that parses.
/// Each story is told without tokens, and with one that both ends have.
pub fn endpoint(data: &[u8]) {
    let token = Token::new("correct-horse-battery").expect("a fair token");
    story(data, None);
    story(data, Some(&token));
}

fn story(data: &[u8], token: Option<&Token>) {
    let mut ends = [0, 1].map(|n| Endpoint::<Heap>::new(config(n, token)));
    let mut heap = Heap { largest: Some(MESSAGE_MAX), short: false };
    let mut now = Instant::ZERO;
    let mut sessions = Vec::new();
    let mut requests = Vec::new();
    let mut open = std::collections::BTreeSet::new();
    let mut last: Option<(usize, Address, Vec<u8>)> = None;
    let mut tag = 0;
    let mut steps = data.iter().copied();
    while let Some(step) = steps.next() {
        let mut next = || steps.next().unwrap_or(0);
        let n = usize::from(step & 1);
        match step >> 1 & 7 {
            0 => sessions.extend(ends[n].connect(now, address(1 - n as u8)).map(|session| (n, session))),
            1 => {
                if let Some(&(n, session)) = sessions.get(usize::from(next()) % sessions.len().max(1)) {
                    tag += 1;
                    let len = usize::from(next()) * 16;
                    if ends[n].call(now, session, 1, Arc::new(vec![7; len]), len as u32, tag).is_ok() {
                        open.insert(tag);
                    }
                }
            }
            2 => {
                let (at, len) = (usize::from(next()), usize::from(next()) * 16);
                if !requests.is_empty() {
                    let (n, id): (usize, _) = requests.swap_remove(at % requests.len());
                    ends[n].respond(id, Status::Done, Some(Arc::new(vec![9; len])), len as u32);
                }
            }
            3 => {
                now = now + Duration::from_millis(u64::from(next()) * 8);
                ends.iter_mut().for_each(|end| end.handle_timeout(now));
            }
            // What one has to say reaches the other, but for the packets that the mask takes.
            4 | 5 => {
                let mask = next();
                for i in 0..8 {
                    let Some(transmit) = ends[n].poll_transmit(now) else { break };
                    assert!(Repr::parse(&transmit.header).is_ok(), "our own header: {:?}", transmit.header);
                    let datagram = Datagram::of(&transmit);
                    assert!(datagram.0.len() <= DATAGRAM);
                    last = Some((1 - n, address(n as u8), datagram.0.clone()));
                    if mask >> i & 1 == 0 {
                        ends[1 - n].handle_packet(now, &mut heap, address(n as u8), datagram);
                    }
                }
            }
            // The last packet again, with a byte changed, or cut.
            6 => {
                if let Some((to, from, bytes)) = &last {
                    let (at, value) = (usize::from(next()), next());
                    let mut bytes = bytes.clone();
                    match bytes.get_mut(at) {
                        Some(byte) => *byte = value,
                        None => bytes.truncate(usize::from(value)),
                    }
                    ends[*to].handle_packet(now, &mut heap, *from, Datagram(bytes));
                }
            }
            _ => {
                if let Some(&(n, session)) = sessions.get(usize::from(next()) % sessions.len().max(1)) {
                    ends[n].disconnect(now, session);
                }
            }
        }
        for (n, end) in ends.iter_mut().enumerate() {
            assert!(end.sessions() <= SESSIONS);
            while let Some(event) = end.poll_event() {
                match event {
                    Event::Request { id, body, .. } => {
                        assert!(body.len() <= MESSAGE_MAX);
                        if let Body::Message { message, len } = &body {
                            assert_eq!(message.len(), *len);
                        }
                        requests.push((n, id));
                    }
                    Event::Response { tag, .. } | Event::Failed { tag, .. } => {
                        assert!(open.remove(&tag), "call {tag} ended twice");
                    }
                    Event::Ended { session, .. } => sessions.retain(|&mine| mine != (n, session)),
                    Event::Connected(_) | Event::Accepted { .. } => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
