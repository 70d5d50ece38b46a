//! What travels beside the payload of a send or a receive (cmsg(3)).

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void};

/// `SOL_UDP`, the level of the segmentation options.
pub(crate) const SOL_UDP: c_int = libc::IPPROTO_UDP;
/// Send one buffer as many datagrams of this size.
pub(crate) const UDP_SEGMENT: c_int = 103;
/// Receive many equal datagrams of one sender as one buffer.
pub(crate) const UDP_GRO: c_int = 104;

/// Space for control data, aligned as the kernel wants it.
#[repr(C, align(8))]
pub(crate) struct ControlBuf([u8; Self::LEN]);

impl ControlBuf {
    /// Enough for all that this crate asks for at once: segment size, TOS, TTL, credentials, an extended error with
    /// its address.
    pub(crate) const LEN: usize = 192;

    pub(crate) const fn new() -> Self {
        Self([0; Self::LEN])
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Makes a descriptor that is to be passed all there is; returns the length.
    #[expect(
        clippy::host_endian_bytes,
        reason = "control data is in the kernel's own, that is the host's, order"
    )]
    pub(crate) fn push_descriptor(&mut self, descriptor: BorrowedFd<'_>) -> usize {
        self.push(0, libc::SOL_SOCKET, libc::SCM_RIGHTS, &descriptor.as_raw_fd().to_ne_bytes())
    }

    /// Appends one item at `at` and returns the offset behind it.
    fn push(&mut self, at: usize, level: c_int, kind: c_int, data: &[u8]) -> usize {
        let data_len = u32::try_from(data.len()).expect("a few bytes");
        // SAFETY: pure arithmetic on a length.
        let (space, len) = unsafe { (libc::CMSG_SPACE(data_len) as usize, libc::CMSG_LEN(data_len)) };
        assert!(at + space <= Self::LEN, "control data of {at} + {space} bytes exceeds {}", Self::LEN);
        let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
        // SAFETY: header and data fit behind `at` (asserted); `at` is a sum of CMSG_SPACEs and hence aligned.
        unsafe {
            let to = self.0.as_mut_ptr().add(at);
            to.cast::<libc::cmsghdr>().write(header);
            let body = to.add(mem::size_of::<libc::cmsghdr>());
            body.copy_from_nonoverlapping(data.as_ptr(), data.len());
        }
        at + space
    }
}

/// What a send asks for beyond the socket's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendControl {
    /// Cut the payload into datagrams of this size.
    pub(crate) segment_size: Option<u16>,
    /// TOS or traffic class.
    pub(crate) tos: Option<u8>,
    /// TTL or hop limit.
    pub(crate) ttl: Option<u8>,
    /// The destination is IPv6.
    pub(crate) v6: bool,
}

impl SendControl {
    #[expect(
        clippy::host_endian_bytes,
        reason = "control data is in the kernel's own, that is the host's, order"
    )]
    pub(crate) fn encode(&self, buf: &mut ControlBuf) -> usize {
        let mut at = 0;
        if let Some(size) = self.segment_size {
            at = buf.push(at, SOL_UDP, UDP_SEGMENT, &size.to_ne_bytes());
        }
        if let Some(tos) = self.tos {
            let (level, kind) = if self.v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            } else {
                (libc::IPPROTO_IP, libc::IP_TOS)
            };
            at = buf.push(at, level, kind, &c_int::from(tos).to_ne_bytes());
        }
        if let Some(ttl) = self.ttl {
            let (level, kind) = if self.v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
            } else {
                (libc::IPPROTO_IP, libc::IP_TTL)
            };
            at = buf.push(at, level, kind, &c_int::from(ttl).to_ne_bytes());
        }
        at
    }
}

/// What a receive was told beside the payload.
#[derive(Debug, Default)]
pub(crate) struct RecvControl {
    /// The payload is a train of datagrams of this size.
    pub(crate) segment_size: Option<usize>,
    /// TOS or traffic class.
    pub(crate) tos: u8,
    /// TTL or hop limit; 0 if unknown.
    pub(crate) ttl: u8,
    /// Who sent this over a unix socket.
    pub(crate) uid: Option<libc::uid_t>,
    /// The first descriptor that was passed. The kernel installs all that it has room for, so they have to be closed by
    /// whoever receives, wanted or not: a stranger could use up all numbers of this process.
    pub(crate) descriptor: Option<OwnedFd>,
    /// An entry of the error queue.
    pub(crate) error: Option<ExtendedError>,
}

/// An entry of a socket's error queue: what ICMP, or the local stack, said about an earlier send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExtendedError {
    /// The errno it stands for.
    pub(crate) errno: c_int,
    /// It comes from our own stack, about a send that also failed; otherwise from ICMP.
    pub(crate) local: bool,
    /// For `EMSGSIZE` the path MTU.
    pub(crate) info: u32,
}

impl RecvControl {
    /// Reads the control data behind a message header.
    ///
    /// # Safety
    /// `msg` was filled by a successful receive and its control buffer is alive, and it is decoded once: descriptors that
    /// came with it belong to what is returned.
    pub(crate) unsafe fn decode(msg: &libc::msghdr) -> Self {
        let mut out = Self::default();
        // SAFETY: the caller vouches for `msg`; the CMSG macros stay within `msg_controllen`.
        let mut item = unsafe { libc::CMSG_FIRSTHDR(msg) };
        while !item.is_null() {
            // SAFETY: `item` is non-null, hence a whole header inside the control buffer, aligned by the kernel.
            let header = unsafe { item.read() };
            // SAFETY: as above; the data begins right behind the header.
            let data = unsafe { libc::CMSG_DATA(item) };
            let len = (header.cmsg_len as usize).saturating_sub(mem::size_of::<libc::cmsghdr>());
            // SAFETY: the kernel wrote `len` bytes there, inside the control buffer, and nobody writes any more.
            out.item(header.cmsg_level, header.cmsg_type, unsafe { std::slice::from_raw_parts(data, len) });
            // SAFETY: as for CMSG_FIRSTHDR.
            item = unsafe { libc::CMSG_NXTHDR(msg, item) };
        }
        out
    }

    fn item(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        match (level, kind) {
            (SOL_UDP, UDP_GRO) => self.segment_size = int(data).and_then(|v| usize::try_from(v).ok()),
            // The kernel passes the TOS as one byte, everything else as an int.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = byte(data),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = byte(data)
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                self.error = extended_error(data);
            }
            // struct ucred { pid, uid, gid }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                self.uid = data.get(4..).and_then(int).map(|v| v as libc::uid_t);
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for fd in data.chunks(4).filter_map(int) {
                    // SAFETY: the kernel has just installed it for this receive, and control data is decoded once.
                    let passed = unsafe { OwnedFd::from_raw_fd(fd) };
                    self.descriptor.get_or_insert(passed);
                }
            }
            _ => {}
        }
    }
}

#[expect(
    clippy::host_endian_bytes,
    reason = "control data is in the kernel's own, that is the host's, order"
)]
fn int(data: &[u8]) -> Option<c_int> {
    data.first_chunk::<4>().map(|b| c_int::from_ne_bytes(*b))
}

fn byte(data: &[u8]) -> u8 {
    int(data).and_then(|v| u8::try_from(v).ok()).unwrap_or(0)
}

// struct sock_extended_err { u32 errno; u8 origin, type, code, pad; u32 info, data; }
#[expect(
    clippy::host_endian_bytes,
    reason = "control data is in the kernel's own, that is the host's, order"
)]
fn extended_error(data: &[u8]) -> Option<ExtendedError> {
    const SO_EE_ORIGIN_LOCAL: u8 = 1;
    let errno = int(data)?;
    let local = *data.get(4)? == SO_EE_ORIGIN_LOCAL;
    let info = u32::from_ne_bytes(*data.get(8..)?.first_chunk::<4>()?);
    Some(ExtendedError { errno, local, info })
}
