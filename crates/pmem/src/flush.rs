//! How a store gets to the persistence domain: chosen once, by what the CPU and the region offer.
//!
//! `pwb` asks for a write-back and does not wait, `pfence` orders earlier write-backs before later stores, `psync`
//! waits until earlier write-backs are in the domain (paper 000, 2.5.3). On cache lines these are instructions
//! (`x86_64`, `aarch64`); on a page cache they are system calls (`page`), and there `pfence` has to wait, as
//! nothing else keeps the kernel from writing a later page first.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub(crate) mod page;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

use std::fmt;
use std::ops::Range;

use once_cell::race::OnceBox;

/// Bytes that one write-back covers. 64 on every x86-64 and on the arm64 servers that have persistent memory; a
/// CPU with longer lines writes back more than it was asked to, which is harmless, and `detect` refuses shorter.
pub const LINE: usize = 64;

/// The instruction that writes a cache line back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// x86-64 `clwb`: writes the line back and may keep it.
    Clwb,
    /// x86-64 `clflushopt`: writes the line back and drops it; ordered by a fence only.
    ClflushOpt,
    /// x86-64 `clflush`: as above, and ordered among themselves, so one by one.
    Clflush,
    /// arm64 `dc cvap`: cleans the line to the point of persistence.
    DcCvap,
    /// arm64 `dc cvac`: cleans the line to the point of coherency, which is the memory controller.
    DcCvac,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
            Self::DcCvac => "dc cvac",
        })
    }
}

/// The best instruction of this CPU.
#[must_use]
pub fn instruction() -> Instruction {
    static CHOSEN: OnceBox<Instruction> = OnceBox::new();
    *CHOSEN.get_or_init(|| Box::new(arch::detect()))
}

/// Whether this CPU has an instruction.
#[must_use]
pub fn has(instruction: Instruction) -> bool {
    arch::has(instruction)
}

/// The lines that hold any byte of the range, as the address of the first and how many. The end is computed
/// before the start is rounded down: rounding first loses the tail of an object that does not start on a line.
pub(crate) fn lines_of(range: Range<usize>) -> (usize, usize) {
    if range.is_empty() {
        return (range.start, 0);
    }
    let last = (range.end - 1) & !(LINE - 1);
    let first = range.start & !(LINE - 1);
    (first, (last - first) / LINE + 1)
}

/// Writes back every line that holds a byte of the range of addresses, with the given instruction. Durable after
/// [`fence`].
///
/// # Safety
/// Every line of the range is mapped. (Nothing is read or written: these instructions only move what is there.)
#[cfg_attr(not(test), inline)]
#[expect(unsafe_code, reason = "the door to the instructions: an address that is not mapped would fault")]
pub(crate) unsafe fn write_back(instruction: Instruction, range: Range<usize>) {
    let (first, count) = lines_of(range);
    // SAFETY: the caller's.
    unsafe { arch::write_back(instruction, first, count) }
}

/// Waits until earlier write-backs and non-temporal stores are accepted by the memory controller, before any
/// later store is visible. A packet that says "durable" is such a later store.
#[inline]
pub(crate) fn fence() {
    arch::fence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_back_for_each_that_holds_a_byte() {
        assert_eq!(lines_of(128..128), (128, 0));
        assert_eq!(lines_of(0..1), (0, 1));
        assert_eq!(lines_of(0..64), (0, 1));
        assert_eq!(lines_of(0..65), (0, 2));
        assert_eq!(lines_of(63..65), (0, 2));
        assert_eq!(lines_of(100..164), (64, 2), "an unaligned line's worth touches two");
        assert_eq!(lines_of(127..193), (64, 3), "the tail counts from the true end");
    }

    #[test]
    fn every_byte_of_every_small_range_lies_in_a_line() {
        for start in 0..200 {
            for end in start + 1..300 {
                let (first, count) = lines_of(start..end);
                assert!(first <= start && first + count * LINE >= end, "{start}..{end}");
                assert!(first + LINE > start && first + (count - 1) * LINE < end, "no line too many");
            }
        }
    }

    #[test]
    fn this_cpu_has_an_instruction() {
        println!("{}", instruction());
        assert!(has(instruction()));
    }
}
