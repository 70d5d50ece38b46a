//! Copies to and from memory that a peer, another thread or another process may be writing at the same time.
//!
//! Registered memory is device memory in all but name: the "DMA engine" is whichever thread drives the engine, and
//! consumers poll the same bytes without a lock, as they would with a real RNIC. The argument for why that is
//! sound, once, for the whole crate:
//!
//! 1. A region is mapped by a system call, lies outside of every Rust allocation, and no reference to it is ever
//!    made. (Foreign memory: the caller of `Region::from_raw` promises the same of its own Rust code.)
//! 2. It is reached by three things only: atomics on aligned 8-byte words, the volatile accesses of the portable
//!    fallback, and the copies below, which on x86-64 are inline assembly. The compiler cannot see into an
//!    assembly block: it may neither invent, drop, repeat nor reorder what is in it, nor assume that two of them
//!    read the same value. What a racing copy means is therefore decided by the CPU alone, and the CPU knows no
//!    undefined behaviour: each byte read is one that somebody wrote.
//! 3. What racing readers may rely on is written down as a promise, and is the CPU's to keep: see below.
//!
//! **Promises.** A copy writes its last bytes last, so that a consumer which polls the last byte of a message finds
//! the rest of it (x86-64 keeps stores in order; string instructions keep order with the stores around them, not
//! within themselves, so the tail of a long copy is always stored by plain moves). A copy of 1, 2, 4 or 8 bytes to
//! an address that is a multiple of its length is one store. A longer one may be seen, and may be torn by a crash,
//! at any byte.
//!
//! **Speed.** Up to 16 bytes two overlapping scalar moves, up to 64 overlapping vector moves, then a loop over the
//! widest vectors that stores whole lines, and for long copies, where the CPU has it fast, `rep movsb`, whose microcode need
//! not read the lines that it is about to overwrite. `examples/copy_bench.rs` measures each against memcpy.

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use portable::{copy, copy_nt};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{copy, copy_nt};

/// From here on a non-temporal copy beats a copy that is followed by write-backs (measured: 96 ns against 162 ns
/// for 256 B, fence included; at 64 B one write-back and its fence are as cheap).
pub(crate) const NT_MIN: usize = 256;

#[cfg(test)]
mod tests;
