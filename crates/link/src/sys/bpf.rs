//! Classic BPF: the instructions we use, and the two places where a program is attached.
//!
//! Read first: Linux Documentation/networking/filter.rst; socket(7), `SO_ATTACH_FILTER` and
//! `SO_ATTACH_REUSEPORT_CBPF`.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, socklen_t};

use super::net::check;

/// One instruction of a classic BPF program, like `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// The most instructions the kernel takes (`BPF_MAXINSNS`).
pub(crate) const MAX_INSNS: usize = 4096;

const LD_W_ABS: u16 = 0x20;
const LD_H_ABS: u16 = 0x28;
const LD_B_ABS: u16 = 0x30;
const ALU_AND_K: u16 = 0x54;
const JMP_JA: u16 = 0x05;
const JMP_JEQ_K: u16 = 0x15;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;

impl Insn {
    const fn new(code: u16, k: u32) -> Self {
        Self { code, jt: 0, jf: 0, k }
    }

    /// A := `width` bytes at `offset`, most significant first; a load outside of the packet ends the program with 0.
    pub(crate) fn load(offset: u16, width: u8) -> Self {
        let code = match width {
            1 => LD_B_ABS,
            2 => LD_H_ABS,
            4 => LD_W_ABS,
            _ => unreachable!("BPF loads 1, 2 or 4 bytes, not {width}"),
        };
        Self::new(code, offset.into())
    }

    /// A := A & `mask`.
    pub(crate) const fn and(mask: u32) -> Self {
        Self::new(ALU_AND_K, mask)
    }

    /// Skips `jt` instructions if A = `k`, else `jf`.
    pub(crate) const fn jump_eq(k: u32, jt: u8, jf: u8) -> Self {
        Self { code: JMP_JEQ_K, jt, jf, k }
    }

    /// Skips `by` instructions.
    pub(crate) const fn jump(by: u32) -> Self {
        Self::new(JMP_JA, by)
    }

    /// Ends with `k`.
    pub(crate) const fn ret(k: u32) -> Self {
        Self::new(RET_K, k)
    }

    /// Ends with A.
    pub(crate) const fn ret_a() -> Self {
        Self::new(RET_A, 0)
    }
}

/// Makes the program choose among the sockets that share this one's address and port: it sees the UDP payload and
/// returns the index of a socket in the order in which the group was joined.
pub(crate) fn attach_reuseport(fd: BorrowedFd<'_>, program: &[Insn]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Drops everything that arrives at this socket.
pub(crate) fn attach_drop_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, &[Insn::ret(0)])
}

/// `sock_fprog`, with its hole named, so that it holds zeros: the kernel copies it, and Valgrind minds.
#[repr(C)]
struct Program {
    len: u16,
    hole: [u8; HOLE],
    filter: *mut libc::sock_filter,
}

const HOLE: usize = mem::offset_of!(libc::sock_fprog, filter) - 2;
const _: () = assert!(mem::size_of::<Program>() == mem::size_of::<libc::sock_fprog>());

fn attach(fd: BorrowedFd<'_>, name: c_int, program: &[Insn]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let fprog = Program { len, hole: [0; HOLE], filter: filter.as_mut_ptr() };
    let size = mem::size_of::<Program>() as socklen_t;
    // SAFETY: `fprog` and the instructions it points to outlive the call; the kernel copies and verifies them.
    let ret =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const fprog).cast(), size) };
    check(ret as isize).map(drop)
}
