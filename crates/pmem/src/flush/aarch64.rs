//! Cache lines on arm64. Read first: Arm ARM, D7.5.9 (cache maintenance) and FEAT_DPB.
#![expect(unsafe_code, reason = "cache-control instructions have no safe form")]

use std::arch::asm;

use super::{Instruction, LINE};

/// HWCAP_DCPOP: `dc cvap` may be used from user space.
const HWCAP_DCPOP: u64 = 1 << 16;

pub(super) fn detect() -> Instruction {
    if has(Instruction::DcCvap) { Instruction::DcCvap } else { Instruction::DcCvac }
}

pub(super) fn has(instruction: Instruction) -> bool {
    match instruction {
        Instruction::DcCvac => true,
        Instruction::DcCvap => {
            // SAFETY: reads a word of the auxiliary vector.
            let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) };
            capabilities & HWCAP_DCPOP != 0
        }
        Instruction::Clwb | Instruction::ClflushOpt | Instruction::Clflush => false,
    }
}

/// Writes `count` lines back, the first at address `first`.
///
/// # Safety
/// The lines are mapped, and this CPU has the instruction.
#[inline]
pub(super) unsafe fn write_back(instruction: Instruction, first: usize, count: usize) {
    for line in 0..count {
        let address = first + line * LINE;
        match instruction {
            Instruction::DcCvap => {
                // SAFETY: the line is mapped, by the caller's promise. The encoding is that of `dc cvap`, which
                // the assembler knows only with FEAT_DPB switched on.
                unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) address, options(nostack, preserves_flags)) }
            }
            _ => {
                // SAFETY: as above.
                unsafe { asm!("dc cvac, {}", in(reg) address, options(nostack, preserves_flags)) }
            }
        }
    }
}

#[inline]
pub(super) fn fence() {
    // SAFETY: a barrier touches nothing. `dsb` and not `dmb`: it waits for the cleaning itself.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}
