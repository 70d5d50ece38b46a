//! Cache lines on x86-64. Read first: Intel SDM volume 1, 11.4.6 (cacheability control) and CLWB in volume 2.
//!
//! `clwb` and `clflushopt` are ordered with older stores to the same line and by `sfence`, with nothing else.
//! `sfence` returns when they are complete, which with ADR means accepted into a queue that the power supply can
//! still drain. `clflush` needs no fence among its kind, but non-temporal stores do, so a fence always ends it.
#![expect(unsafe_code, reason = "cache-control instructions have no safe form")]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

use super::{Instruction, LINE};

/// Leaf 1, EDX bit 19: clflush. Leaf 7, EBX bit 23: clflushopt, bit 24: clwb. Leaf 1, EBX 8..16: line / 8.
pub(super) fn detect() -> Instruction {
    let basic = __cpuid(1);
    let line = (basic.ebx >> 8 & 0xff) as usize * 8;
    assert!(line == 0 || line >= LINE, "this CPU flushes {line} bytes at a time, and we step by {LINE}");
    let best = [Instruction::Clwb, Instruction::ClflushOpt].into_iter().find(|instruction| has(*instruction));
    best.unwrap_or(Instruction::Clflush)
}

pub(super) fn has(instruction: Instruction) -> bool {
    let features = || if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    match instruction {
        Instruction::Clwb => features() & 1 << 24 != 0,
        Instruction::ClflushOpt => features() & 1 << 23 != 0,
        Instruction::Clflush => __cpuid(1).edx & 1 << 19 != 0,
        Instruction::DcCvap | Instruction::DcCvac => false,
    }
}

/// Writes `count` lines back, the first at address `first`.
///
/// # Safety
/// The lines are mapped, and this CPU has the instruction.
#[inline]
pub(super) unsafe fn write_back(instruction: Instruction, first: usize, count: usize) {
    // The asm blocks may touch any memory as far as the compiler knows (no `nomem`), so stores before them stay
    // before them.
    match instruction {
        Instruction::Clwb => {
            for line in 0..count {
                // SAFETY: the line is mapped, by the caller's promise.
                unsafe { asm!("clwb [{}]", in(reg) first + line * LINE, options(nostack, preserves_flags)) }
            }
        }
        Instruction::ClflushOpt => {
            for line in 0..count {
                // SAFETY: as above.
                unsafe {
                    asm!("clflushopt [{}]", in(reg) first + line * LINE, options(nostack, preserves_flags))
                }
            }
        }
        Instruction::Clflush => {
            for line in 0..count {
                // SAFETY: as above.
                unsafe {
                    asm!("clflush [{}]", in(reg) first + line * LINE, options(nostack, preserves_flags))
                }
            }
        }
        Instruction::DcCvap | Instruction::DcCvac => unreachable!("{instruction} on x86-64"),
    }
}

#[inline]
pub(super) fn fence() {
    // SAFETY: a fence touches nothing; part of every x86-64.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}
