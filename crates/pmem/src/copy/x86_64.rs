//! The copy on x86-64, in assembly. Read first: the parent module; Intel SDM volume 3, 9.2.4 (fast-string
//! operation and out-of-order stores).
#![expect(unsafe_code, reason = "the data path of registered memory; the argument is in the parent module")]

use std::arch::asm;
use std::sync::OnceLock;

/// From this length on `rep movsb` is the fastest way. Measured; below it the microcode's start-up shows.
const REP_MIN: usize = 2048;

/// Bytes of a long copy that plain moves store after the string instruction, so that the last byte is last.
const TAIL: usize = 64;

/// Copies `len` bytes.
///
/// # Safety
/// `src..src + len` may be read and `dst..dst + len` written, by somebody who promises what the parent module
/// asks. Ranges that overlap are copied in ascending order, with bytes already overwritten read as they are.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // Each size class loads everything before it stores anything, and stores in ascending order.
    // SAFETY: every address below lies in `src..src + len` or `dst..dst + len`, which the caller vouches for;
    // the registers that a block uses are its operands.
    unsafe {
        match len {
            8 => asm!(
                "mov {a}, [{s}]",
                "mov [{d}], {a}",
                s = in(reg) src, d = in(reg) dst, a = out(reg) _,
                options(nostack, preserves_flags)
            ),
            9..=16 => asm!(
                "mov {a}, [{s}]",
                "mov {b}, [{s} + {n} - 8]",
                "mov [{d}], {a}",
                "mov [{d} + {n} - 8], {b}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags)
            ),
            17..=32 => asm!(
                "movups {a}, [{s}]",
                "movups {b}, [{s} + {n} - 16]",
                "movups [{d}], {a}",
                "movups [{d} + {n} - 16], {b}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(xmm_reg) _, b = out(xmm_reg) _,
                options(nostack, preserves_flags)
            ),
            33..=64 => four_vectors(dst, src, len),
            0..=7 => small(dst, src, len),
            _ => long(dst, src, len),
        }
    }
}

/// 33 to 64 bytes.
#[inline]
unsafe fn four_vectors(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in `copy`.
    unsafe {
        asm!(
            "movups {a}, [{s}]",
            "movups {b}, [{s} + 16]",
            "movups {x}, [{s} + {n} - 32]",
            "movups {y}, [{s} + {n} - 16]",
            "movups [{d}], {a}",
            "movups [{d} + 16], {b}",
            "movups [{d} + {n} - 32], {x}",
            "movups [{d} + {n} - 16], {y}",
            s = in(reg) src, d = in(reg) dst, n = in(reg) len,
            a = out(xmm_reg) _, b = out(xmm_reg) _, x = out(xmm_reg) _, y = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// 0 to 7 bytes.
#[inline]
unsafe fn small(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in `copy`.
    unsafe {
        match len {
            0 => {}
            1 => asm!(
                "mov {a}, byte ptr [{s}]",
                "mov byte ptr [{d}], {a}",
                s = in(reg) src, d = in(reg) dst, a = out(reg_byte) _,
                options(nostack, preserves_flags)
            ),
            2..=3 => asm!(
                "movzx {a:e}, word ptr [{s}]",
                "movzx {b:e}, word ptr [{s} + {n} - 2]",
                "mov word ptr [{d}], {a:x}",
                "mov word ptr [{d} + {n} - 2], {b:x}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags)
            ),
            _ => asm!(
                "mov {a:e}, dword ptr [{s}]",
                "mov {b:e}, dword ptr [{s} + {n} - 4]",
                "mov dword ptr [{d}], {a:e}",
                "mov dword ptr [{d} + {n} - 4], {b:e}",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags)
            ),
        }
    }
}

/// More than 64 bytes.
unsafe fn long(dst: *mut u8, src: *const u8, len: usize) {
    let short = if has_avx() { REP_MIN } else { 0 };
    // SAFETY: as in `copy`; `has_avx` was asked.
    unsafe {
        if len < short {
            return vectors(dst, src, len);
        }
        let body = len - TAIL;
        asm!(
            "rep movsb",
            inout("rcx") body => _, inout("rsi") src => _, inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
        four_vectors(dst.add(body), src.add(body), TAIL);
    }
}

/// 65 bytes or more, 128 at a time: the last 128 (or, of a short copy, all that lies behind the first 64) are
/// loaded first and stored last.
unsafe fn vectors(dst: *mut u8, src: *const u8, len: usize) {
    // `vzeroupper` clears the upper halves of all sixteen registers, so all are given up here.
    // SAFETY: as in `copy`; the caller asked for AVX.
    unsafe {
        if len <= 128 {
            asm!(
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{s} + 32]",
                "vmovdqu ymm2, [{s} + {n} - 64]",
                "vmovdqu ymm3, [{s} + {n} - 32]",
                "vmovdqu [{d}], ymm0",
                "vmovdqu [{d} + 32], ymm1",
                "vmovdqu [{d} + {n} - 64], ymm2",
                "vmovdqu [{d} + {n} - 32], ymm3",
                "vzeroupper",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack, preserves_flags)
            );
        } else {
            asm!(
                "vmovdqu ymm4, [{s} + {n} - 128]",
                "vmovdqu ymm5, [{s} + {n} - 96]",
                "vmovdqu ymm6, [{s} + {n} - 64]",
                "vmovdqu ymm7, [{s} + {n} - 32]",
                "lea {e}, [{d} + {n} - 128]",
                "2:",
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{s} + 32]",
                "vmovdqu ymm2, [{s} + 64]",
                "vmovdqu ymm3, [{s} + 96]",
                "vmovdqu [{d}], ymm0",
                "vmovdqu [{d} + 32], ymm1",
                "vmovdqu [{d} + 64], ymm2",
                "vmovdqu [{d} + 96], ymm3",
                "sub {s}, -128",
                "sub {d}, -128",
                "cmp {d}, {e}",
                "jb 2b",
                "vmovdqu [{e}], ymm4",
                "vmovdqu [{e} + 32], ymm5",
                "vmovdqu [{e} + 64], ymm6",
                "vmovdqu [{e} + 96], ymm7",
                "vzeroupper",
                s = inout(reg) src => _, d = inout(reg) dst => _, n = in(reg) len, e = out(reg) _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            );
        }
    }
}

/// Copies whole lines past the caches: durable after a fence, with no write-back. Both ends of `dst` lie on lines.
///
/// # Safety
/// As for [`copy`]; `dst` and `len` are multiples of 64.
pub(crate) unsafe fn copy_nt(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: as in `copy`. `movntdq` wants its 16-byte alignment, which 64 implies.
    unsafe {
        asm!(
            "2:",
            "movups {a}, [{s}]",
            "movups {b}, [{s} + 16]",
            "movups {x}, [{s} + 32]",
            "movups {y}, [{s} + 48]",
            "movntdq [{d}], {a}",
            "movntdq [{d} + 16], {b}",
            "movntdq [{d} + 32], {x}",
            "movntdq [{d} + 48], {y}",
            "add {s}, 64",
            "add {d}, 64",
            "sub {n}, 64",
            "jnz 2b",
            s = inout(reg) src => _, d = inout(reg) dst => _, n = inout(reg) len => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, x = out(xmm_reg) _, y = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Whether vector registers of 256 bits may be used.
fn has_avx() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| std::is_x86_feature_detected!("avx"))
}
