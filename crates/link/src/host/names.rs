//! Who holds which abstract names in this network namespace: the kernel's list of unix sockets, each with its user.
//!
//! Any user may ask for it. It is a list of *all* unix sockets but those that listen, so asking costs in proportion to
//! how many the namespace has, some 0.2 us each, and nobody asks for a datagram.
//!
//! Read first: sock_diag(7). What it does not say: attribute 7 is the user whose socket it is, since Linux 5.3
//! (`include/uapi/linux/unix_diag.h`).
#![expect(clippy::host_endian_bytes, reason = "netlink speaks the machine's own byte order")]

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::sys::descriptor::Descriptor;

const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// `struct unix_diag_msg`, in front of the attributes.
const UNIX_DIAG_MSG: usize = 16;
/// The states of datagram sockets (`TCP_CLOSE` and `TCP_ESTABLISHED`). Since Linux 5.15 anybody who connects a socket to a name
/// also changes the state of the name's socket, so the state says nothing.
const STATES: u32 = 1 << 7 | 1 << 1;

/// The kernel makes no longer parts.
const PART: usize = 1 << 15;
/// Far more than a host has sockets for.
const MAX_PARTS: usize = 1 << 14;

/// Asks the kernel about the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Names {
    socket: Descriptor,
    sequence: u32,
    part: Box<[u8]>,
}

impl Names {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let diag = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, diag)?;
        Ok(Self { socket: socket.into(), sequence: 0, part: vec![0; PART].into() })
    }

    /// Tells `each` the abstract name of every datagram socket, without its leading zero, whose it is, and the socket's
    /// number, which no other socket of this host ever has.
    ///
    /// # Errors
    /// `Unsupported` when the kernel does not say whose a socket is; what it says when it does not answer.
    pub(super) fn each(&mut self, mut each: impl FnMut(&[u8], u32, u64)) -> io::Result<()> {
        // An answer that was not read to its end would be in the way of the next.
        for _ in 0..MAX_PARTS {
            if recv(&self.socket, &mut self.part[..], RecvFlags::empty()).is_err() {
                break;
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        send(&self.socket, &request(self.sequence), SendFlags::empty())?;
        for _ in 0..MAX_PARTS {
            // The kernel makes each part when it is asked for: there is nothing to wait for.
            let (_, len) = recv(&self.socket, &mut self.part[..], RecvFlags::TRUNC)?;
            let part = self.part.get(..len).ok_or(io::ErrorKind::InvalidData)?;
            if read(part, self.sequence, &mut each)? {
                return Ok(());
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn request(sequence: u32) -> [u8; HEADER + 24] {
    let mut bytes = [0; HEADER + 24];
    bytes[..4].copy_from_slice(&(HEADER as u32 + 24).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    bytes[16] = libc::AF_UNIX as u8;
    bytes[20..24].copy_from_slice(&STATES.to_ne_bytes());
    bytes[28..32].copy_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_UID).to_ne_bytes());
    bytes
}

/// Reads one part of the answer to the request `sequence`; `true`: it was the last.
pub(crate) fn read(
    mut part: &[u8],
    sequence: u32,
    each: &mut impl FnMut(&[u8], u32, u64),
) -> io::Result<bool> {
    while !part.is_empty() {
        let (kind, of, body, rest) = message(part).ok_or(io::ErrorKind::InvalidData)?;
        part = rest;
        if of != sequence {
            continue;
        }
        match kind {
            NLMSG_DONE | NLMSG_ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return match (kind, code) {
                    (NLMSG_DONE, 0..) => Ok(true),
                    (_, ..0) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    _ => Err(io::ErrorKind::InvalidData.into()),
                };
            }
            SOCK_DIAG_BY_FAMILY => socket(body, each)?,
            _ => {}
        }
    }
    Ok(false)
}

/// The first message of `bytes`: its kind, its sequence number, what it carries; and what comes behind it.
fn message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let body = bytes.get(HEADER..len)?;
    let kind = u16::from_ne_bytes(*bytes[4..].first_chunk()?);
    let sequence = u32::from_ne_bytes(*bytes[8..].first_chunk()?);
    Some((kind, sequence, body, bytes.get(aligned(len)..).unwrap_or_default()))
}

fn aligned(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// Reads what is said of one socket.
fn socket(body: &[u8], each: &mut impl FnMut(&[u8], u32, u64)) -> io::Result<()> {
    let (head, mut attributes) = body.split_at_checked(UNIX_DIAG_MSG).ok_or(io::ErrorKind::InvalidData)?;
    let (mut name, mut user) = (None, None);
    while !attributes.is_empty() {
        let (kind, value, rest) = attribute(attributes).ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            UNIX_DIAG_NAME => name = value.strip_prefix(&[0]),
            UNIX_DIAG_UID => user = value.first_chunk().map(|user| u32::from_ne_bytes(*user)),
            _ => {}
        }
        attributes = rest;
    }
    // A name of another kind of socket cannot be sent to: it is as if nobody had it.
    if let Some(name) = name
        && i32::from(head[0]) == libc::AF_UNIX
        && i32::from(head[1]) == libc::SOCK_DGRAM
    {
        let number = head.last_chunk().map_or(0, |cookie| u64::from_ne_bytes(*cookie));
        each(name, user.ok_or(io::ErrorKind::Unsupported)?, number);
    }
    Ok(())
}

fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    Some((kind, bytes.get(4..len)?, bytes.get(aligned(len)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use rand_chacha::ChaCha8Rng;
    use rand_core::{RngCore, SeedableRng};

    use super::*;
    use crate::sys::net;
    use crate::sys::unix::{self, Name};

    const SEQUENCE: u32 = 7;

    /// A part as the kernel makes it.
    fn part(messages: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut part = Vec::new();
        for (kind, body) in messages {
            part.extend((HEADER as u32 + body.len() as u32).to_ne_bytes());
            part.extend(kind.to_ne_bytes());
            part.extend(2_u16.to_ne_bytes());
            part.extend(SEQUENCE.to_ne_bytes());
            part.extend([0; 4]);
            part.extend(body);
            part.resize(aligned(part.len()), 0);
        }
        part
    }

    /// What is said of a socket: its type, then attributes.
    fn said(kind: i32, attributes: &[(u16, &[u8])]) -> (u16, Vec<u8>) {
        let mut body = vec![1, kind as u8, 7, 0];
        body.resize(UNIX_DIAG_MSG, 0xAA);
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(aligned(body.len()), 0);
        }
        (SOCK_DIAG_BY_FAMILY, body)
    }

    fn done(code: i32) -> (u16, Vec<u8>) {
        (NLMSG_DONE, code.to_ne_bytes().to_vec())
    }

    fn heard(part: &[u8]) -> (io::Result<bool>, Vec<(Vec<u8>, u32)>) {
        let mut names = Vec::new();
        let last = read(part, SEQUENCE, &mut |name, user, _| names.push((name.to_vec(), user)));
        (last, names)
    }

    fn user(user: u32) -> [u8; 4] {
        user.to_ne_bytes()
    }

    #[test]
    fn names_and_users_are_read_and_all_else_is_passed_over() {
        let messages = [
            said(libc::SOCK_DGRAM, &[(0, b"\0one"), (7, &user(1000))]),
            said(libc::SOCK_DGRAM, &[(7, &user(0)), (9, b"later"), (0, b"\0another")]),
            said(libc::SOCK_STREAM, &[(0, b"\0stream"), (7, &user(1))]),
            said(libc::SOCK_DGRAM, &[(0, b"/in/the/file/system"), (7, &user(1))]),
            said(libc::SOCK_DGRAM, &[(7, &user(1))]),
            (99, b"unheard of".to_vec()),
        ];
        let (last, names) = heard(&part(&messages));
        assert!(!last.unwrap(), "there is more to come");
        assert_eq!(names, [(b"one".to_vec(), 1000), (b"another".to_vec(), 0)]);
        assert!(heard(&part(&[done(0)])).0.unwrap());
        assert!(heard(&part(&[(NLMSG_DONE, vec![])])).0.unwrap(), "as some kernels end a list");
        assert_eq!(heard(&part(&[done(-libc::EINTR)])).0.unwrap_err().raw_os_error(), Some(libc::EINTR));
        let refused = part(&[(NLMSG_ERROR, (-libc::ENOENT).to_ne_bytes().to_vec())]);
        assert_eq!(heard(&refused).0.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        // Before Linux 5.3.
        let unowned = part(&[said(libc::SOCK_DGRAM, &[(0, b"\0one")])]);
        assert_eq!(heard(&unowned).0.unwrap_err().kind(), io::ErrorKind::Unsupported);
        // What is left of an earlier answer.
        let mut stale = part(&[said(libc::SOCK_DGRAM, &[(0, b"\0one"), (7, &user(1))]), done(0)]);
        let second = stale.len() - HEADER - 4;
        (stale[8], stale[second + 8]) = (6, 6);
        let (last, names) = heard(&stale);
        assert!(!last.unwrap() && names.is_empty());
    }

    /// Whatever the bytes are, reading ends, and tells of nothing that is not in them.
    #[test]
    fn cut_and_garbled_answers_are_refused_or_read_within_their_bounds() {
        let messages = [
            said(libc::SOCK_DGRAM, &[(0, b"\0remanence/slot/3f"), (7, &user(1000))]),
            said(libc::SOCK_DGRAM, &[(7, &user(65_534)), (0, b"\0x")]),
            done(0),
        ];
        let whole = part(&messages);
        assert_eq!((heard(&whole).0.unwrap(), heard(&whole).1.len()), (true, 2));
        for len in 0..whole.len() {
            let (last, names) = heard(&whole[..len]);
            assert!(!matches!(last, Ok(true)), "cut to {len} bytes it has no end");
            assert!(names.len() <= 2);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let mut garbled = whole.clone();
            for _ in 0..=rng.next_u32() % 3 {
                let at = rng.next_u32() as usize % garbled.len();
                // Mostly small numbers: lengths and kinds are small.
                garbled[at] =
                    if rng.next_u32() % 2 == 0 { rng.next_u32() as u8 } else { rng.next_u32() as u8 % 24 };
            }
            garbled.truncate(garbled.len() - (rng.next_u32() % 8) as usize);
            let (last, names) = heard(&garbled);
            if last.is_ok() {
                read += 1
            } else {
                refused += 1
            }
            assert!(names.iter().all(
                |(name, _)| garbled.windows(name.len().max(1)).any(|w| w == &name[..]) || name.is_empty()
            ));
        }
        assert!(read > 1_000 && refused > 10_000, "{read} read, {refused} refused");
    }

    #[test]
    fn the_kernel_tells_of_a_name_as_long_as_it_is_held() {
        let mut names = match Names::open() {
            Ok(names) => names,
            Err(err) => {
                println!("SKIPPED: the kernel does not list unix sockets: {err}");
                return;
            }
        };
        let text = format!("remanence/test/{:016x}", net::random_u64());
        let (mut users, mut numbers) = (Vec::new(), Vec::new());
        let mut users = || {
            users.clear();
            names.each(|name, user, number| {
                if name == text.as_bytes() {
                    users.push(user);
                    numbers.push(number);
                }
            })?;
            io::Result::Ok(users.clone())
        };
        assert!(users().unwrap().is_empty());
        let held = unix::bind(&Name::new(&text)).unwrap();
        assert_eq!(users().unwrap(), [unix::effective_uid()]);
        // Who connects to a name does not hide it.
        let connected = UnixDatagram::unbound().unwrap();
        connected.connect_addr(&SocketAddr::from_abstract_name(&text).unwrap()).unwrap();
        assert_eq!(users().unwrap(), [unix::effective_uid()]);
        drop(connected);
        assert_eq!(users().unwrap(), [unix::effective_uid()]);
        drop(held);
        assert!(users().unwrap().is_empty());
        let _again = unix::bind(&Name::new(&text)).unwrap();
        assert_eq!(users().unwrap(), [unix::effective_uid()]);
        // It is another socket by the same name.
        assert!(
            matches!(numbers[..], [one, two, three, other] if one == two && two == three && three != other)
        );
    }
}
