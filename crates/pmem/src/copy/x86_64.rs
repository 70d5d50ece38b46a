//! The copy on x86-64, in assembly. Read first: the parent module; Intel SDM volume 3, 9.2.4 (fast-string
//! operation and out-of-order stores).
#![expect(unsafe_code, reason = "the data path of registered memory; the argument is in the parent module")]

use std::arch::asm;

/// From this length on `rep movsb` is as fast as anything, and leaves lines alone that it is about to overwrite.
/// Measured: below it the vector loop wins by up to a third, from 32 KiB (beyond the first cache) they are equal. So it is
/// where the CPU says that it has made it fast (ERMS); where not, it moves a byte at a time.
const REP_MIN: usize = 32 << 10;

/// Bytes of a long copy that plain moves store after the string instruction, so that the last byte is last.
const TAIL: usize = 64;

/// Copies `len` bytes.
///
/// # Safety
/// `src..src + len` may be read and `dst..dst + len` written, by somebody who promises what the parent module
/// asks. Of ranges that overlap the result is any mixture of their bytes.
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
    // SAFETY: as in `copy`; the width says which registers there are.
    unsafe {
        match width() {
            _ if len >= REP_MIN && has_fast_strings() => as_string(dst, src, len),
            Width::Zmm => with_zmm(dst, src, len),
            Width::Ymm => with_ymm(dst, src, len),
            Width::Xmm => with_xmm(dst, src, len),
        }
    }
}

/// 65 bytes or more with the string instruction.
unsafe fn as_string(dst: *mut u8, src: *const u8, len: usize) {
    let body = len - TAIL;
    // SAFETY: as in `copy`.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") body => _, inout("rsi") src => _, inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
        four_vectors(dst.add(body), src.add(body), TAIL);
    }
}

/// 65 bytes or more with the registers of 128 bits that every x86-64 has: of CPUs without AVX, and of emulated ones.
unsafe fn with_xmm(dst: *mut u8, src: *const u8, len: usize) {
    // The last 64 bytes are loaded before anything is stored, and stored last; the loop before them stops where less than 64
    // are left.
    // SAFETY: as in `copy`.
    unsafe {
        asm!(
            "movups {w}, [{s} + {n} - 64]",
            "movups {x}, [{s} + {n} - 48]",
            "movups {y}, [{s} + {n} - 32]",
            "movups {z}, [{s} + {n} - 16]",
            "lea {e}, [{d} + {n} - 64]",
            "sub {s}, {d}",
            "2:",
            "movups {a}, [{s} + {d}]",
            "movups {b}, [{s} + {d} + 16]",
            "movups {f}, [{s} + {d} + 32]",
            "movups {g}, [{s} + {d} + 48]",
            "movups [{d}], {a}",
            "movups [{d} + 16], {b}",
            "movups [{d} + 32], {f}",
            "movups [{d} + 48], {g}",
            "add {d}, 64",
            "cmp {d}, {e}",
            "jb 2b",
            "movups [{e}], {w}",
            "movups [{e} + 16], {x}",
            "movups [{e} + 32], {y}",
            "movups [{e} + 48], {z}",
            s = inout(reg) src => _, d = inout(reg) dst => _, n = in(reg) len, e = out(reg) _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _,
            w = out(xmm_reg) _, x = out(xmm_reg) _, y = out(xmm_reg) _, z = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// 65 bytes or more with registers of 512 bits; the high sixteen, which need no `vzeroupper` afterwards.
#[target_feature(enable = "avx512f")]
unsafe fn with_zmm(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in `copy`; each block is entered with the length that its addresses need.
    unsafe {
        if len <= 128 {
            asm!(
                "vmovdqu64 zmm16, [{s}]",
                "vmovdqu64 zmm17, [{s} + {n} - 64]",
                "vmovdqu64 [{d}], zmm16",
                "vmovdqu64 [{d} + {n} - 64], zmm17",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                out("zmm16") _, out("zmm17") _,
                options(nostack, preserves_flags)
            );
        } else if len <= 256 {
            asm!(
                "vmovdqu64 zmm16, [{s}]",
                "vmovdqu64 zmm17, [{s} + 64]",
                "vmovdqu64 zmm18, [{s} + {n} - 128]",
                "vmovdqu64 zmm19, [{s} + {n} - 64]",
                "vmovdqu64 [{d}], zmm16",
                "vmovdqu64 [{d} + 64], zmm17",
                "vmovdqu64 [{d} + {n} - 128], zmm18",
                "vmovdqu64 [{d} + {n} - 64], zmm19",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                options(nostack, preserves_flags)
            );
        } else {
            // The first 64 and the last 256 are loaded before anything is stored; the loop between them stores whole
            // lines. `s` is kept as the distance from `d`, so that one register counts.
            asm!(
                "vmovdqu64 zmm20, [{s}]",
                "vmovdqu64 zmm24, [{s} + {n} - 256]",
                "vmovdqu64 zmm25, [{s} + {n} - 192]",
                "vmovdqu64 zmm26, [{s} + {n} - 128]",
                "vmovdqu64 zmm27, [{s} + {n} - 64]",
                "lea {e}, [{d} + {n} - 256]",
                "vmovdqu64 [{d}], zmm20",
                "sub {s}, {d}",
                "add {d}, 64",
                "and {d}, -64",
                "cmp {d}, {e}",
                "jae 3f",
                "2:",
                "vmovdqu64 zmm16, [{s} + {d}]",
                "vmovdqu64 zmm17, [{s} + {d} + 64]",
                "vmovdqu64 zmm18, [{s} + {d} + 128]",
                "vmovdqu64 zmm19, [{s} + {d} + 192]",
                "vmovdqa64 [{d}], zmm16",
                "vmovdqa64 [{d} + 64], zmm17",
                "vmovdqa64 [{d} + 128], zmm18",
                "vmovdqa64 [{d} + 192], zmm19",
                "add {d}, 256",
                "cmp {d}, {e}",
                "jb 2b",
                "3:",
                "vmovdqu64 [{e}], zmm24",
                "vmovdqu64 [{e} + 64], zmm25",
                "vmovdqu64 [{e} + 128], zmm26",
                "vmovdqu64 [{e} + 192], zmm27",
                s = inout(reg) src => _, d = inout(reg) dst => _, n = in(reg) len, e = out(reg) _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _,
                out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                options(nostack)
            );
        }
    }
}

/// 65 bytes or more with registers of 256 bits.
#[target_feature(enable = "avx")]
unsafe fn with_ymm(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: as in `copy`. `vzeroupper` clears the upper halves of registers that no block names; the compiler keeps
    // nothing in any vector register across this call, as the ABI saves none.
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
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                options(nostack, preserves_flags)
            );
        } else {
            asm!(
                "vmovdqu ymm8, [{s}]",
                "vmovdqu ymm4, [{s} + {n} - 128]",
                "vmovdqu ymm5, [{s} + {n} - 96]",
                "vmovdqu ymm6, [{s} + {n} - 64]",
                "vmovdqu ymm7, [{s} + {n} - 32]",
                "lea {e}, [{d} + {n} - 128]",
                "vmovdqu [{d}], ymm8",
                "sub {s}, {d}",
                "add {d}, 32",
                "and {d}, -32",
                "cmp {d}, {e}",
                "jae 3f",
                "2:",
                "vmovdqu ymm0, [{s} + {d}]",
                "vmovdqu ymm1, [{s} + {d} + 32]",
                "vmovdqu ymm2, [{s} + {d} + 64]",
                "vmovdqu ymm3, [{s} + {d} + 96]",
                "vmovdqa [{d}], ymm0",
                "vmovdqa [{d} + 32], ymm1",
                "vmovdqa [{d} + 64], ymm2",
                "vmovdqa [{d} + 96], ymm3",
                "sub {d}, -128",
                "cmp {d}, {e}",
                "jb 2b",
                "3:",
                "vmovdqu [{e}], ymm4",
                "vmovdqu [{e} + 32], ymm5",
                "vmovdqu [{e} + 64], ymm6",
                "vmovdqu [{e} + 96], ymm7",
                "vzeroupper",
                s = inout(reg) src => _, d = inout(reg) dst => _, n = in(reg) len, e = out(reg) _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _,
                out("ymm5") _, out("ymm6") _, out("ymm7") _, out("ymm8") _,
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

/// The widest vector registers that this CPU has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Width {
    Xmm,
    Ymm,
    Zmm,
}

/// The string instructions are fast: Enhanced REP MOVSB.
fn has_fast_strings() -> bool {
    std::is_x86_feature_detected!("ermsb")
}

fn width() -> Width {
    if std::is_x86_feature_detected!("avx512f") {
        Width::Zmm
    } else if std::is_x86_feature_detected!("avx") {
        Width::Ymm
    } else {
        Width::Xmm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_width_copies_every_length_at_every_alignment() {
        type Copy = unsafe fn(*mut u8, *const u8, usize);
        let mut copies: Vec<(&str, Copy)> = vec![
            ("xmm", |d, s, n| {
                // SAFETY: the caller's.
                unsafe { with_xmm(d, s, n) }
            }),
            ("string", |d, s, n| {
                // SAFETY: the caller's.
                unsafe { as_string(d, s, n) }
            }),
        ];
        if width() != Width::Xmm {
            copies.push(("ymm", |d, s, n| {
                // SAFETY: this CPU has AVX; the rest is the caller's.
                unsafe { with_ymm(d, s, n) }
            }));
        }
        if width() == Width::Zmm {
            copies.push(("zmm", |d, s, n| {
                // SAFETY: this CPU has AVX-512; the rest is the caller's.
                unsafe { with_zmm(d, s, n) }
            }));
        }
        let source: Vec<u8> = (0..3000_u32).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
        for (name, copy) in copies {
            for len in (65..700).chain([1023, 1024, 1025, 2000]) {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (31, 33), (7, 63), (64, 32)] {
                    let mut target = vec![0_u8; to + len + 64];
                    // SAFETY: both ranges lie in the vectors.
                    unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
                    let intact = target[to..to + len] == source[from..from + len];
                    let beside = target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0);
                    assert!(intact && beside, "{name}: {len} bytes from {from} to {to}");
                }
            }
        }
    }
}
