#![expect(unsafe_code, reason = "calls the copies on memory that this test owns")]

use super::{copy, copy_nt, portable};

const LENGTHS: &[usize] = &[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64, 65, 96, 127, 128, 129, 191,
    255, 256, 257, 383, 384, 385, 511, 512, 1000, 1023, 1024, 2047, 2048, 2049, 4095, 4096, 4097, 10_000,
    65_536,
];

type Copy = unsafe fn(*mut u8, *const u8, usize);

#[test]
fn every_length_and_alignment_arrives_and_nothing_beside_it() {
    every_length_and_alignment(|to, from, len| {
        // SAFETY: the caller's.
        unsafe { copy(to, from, len) }
    });
}

#[test]
fn the_portable_copy_does_the_same() {
    every_length_and_alignment(|to, from, len| {
        // SAFETY: the caller's.
        unsafe { portable::copy(to, from, len) }
    });
    let (mut target, source) = (vec![0_u8; 256], vec![7_u8; 128]);
    let start = target.as_ptr().align_offset(64);
    // SAFETY: both ranges lie in the vectors.
    unsafe { portable::copy_nt(target.as_mut_ptr().add(start), source.as_ptr(), 128) };
    assert_eq!(target[start..start + 128], source);
}

fn every_length_and_alignment(copy: Copy) {
    let source: Vec<u8> = (0..70_000_u32).map(|i| (i * 7 + i / 251 + 1) as u8 | 1).collect();
    for &len in LENGTHS {
        for from in [0, 1, 7, 8, 13] {
            for to in [64, 65, 71, 72, 95] {
                let mut target = vec![0_u8; to + len + 64];
                // SAFETY: both ranges lie in the vectors.
                unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
                assert!(target[..to].iter().all(|b| *b == 0), "{len} bytes from {from} to {to}: before");
                assert_eq!(target[to..to + len], source[from..from + len], "{len} bytes from {from} to {to}");
                assert!(target[to + len..].iter().all(|b| *b == 0), "{len} bytes from {from} to {to}: after");
            }
        }
    }
}

#[test]
fn lines_go_past_the_caches() {
    let source: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8 | 1).collect();
    for lines in [0, 1, 2, 3, 16, 100] {
        let mut target = vec![0_u8; 8192 + 64];
        let start = target.as_ptr().align_offset(64);
        // SAFETY: the lines lie in the vectors, and `start` is on a line.
        unsafe { copy_nt(target.as_mut_ptr().add(start), source.as_ptr().add(3), lines * 64) };
        crate::flush::fence();
        assert_eq!(target[start..start + lines * 64], source[3..3 + lines * 64]);
        assert!(target[start + lines * 64..].iter().all(|b| *b == 0));
    }
}
