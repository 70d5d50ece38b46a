//! Classic BPF: the instructions we use, and attaching them.
//!
//! Read first: Linux Documentation/networking/filter.rst; socket(7), `SO_ATTACH_FILTER` and
//! `SO_ATTACH_REUSEPORT_CBPF`.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, socklen_t};

use super::net::check;

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

const RET_K: u16 = 0x06;

impl Insn {
    const fn new(code: u16, k: u32) -> Self {
        Self { code, jt: 0, jf: 0, k }
    }

    /// Ends with `k`.
    pub(crate) const fn ret(k: u32) -> Self {
        Self::new(RET_K, k)
    }
}

/// Drops everything that arrives at this socket.
pub(crate) fn attach_drop_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, &[Insn::ret(0)])
}

fn attach(fd: BorrowedFd<'_>, name: c_int, program: &[Insn]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let fprog = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    let size = mem::size_of::<libc::sock_fprog>() as socklen_t;
    // SAFETY: `fprog` and the instructions it points to outlive the call; the kernel copies and verifies them.
    let ret =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const fprog).cast(), size) };
    check(ret as isize).map(drop)
}
