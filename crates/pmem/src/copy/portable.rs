//! The copy in volatile words, for CPUs without an assembly version.
#![expect(unsafe_code, reason = "the data path of registered memory; the argument is in the parent module")]

/// Copies `len` bytes.
///
/// # Safety
/// `src..src + len` may be read and `dst..dst + len` written, by somebody who promises what the parent module
/// asks.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: `at..at + 1` and `at..at + 8` stay below `len`, and words are only used where both are aligned.
    unsafe {
        if (dst as usize ^ src as usize).is_multiple_of(8) {
            while at < len && !(dst as usize + at).is_multiple_of(8) {
                dst.add(at).write_volatile(src.add(at).read_volatile());
                at += 1;
            }
            while at + 8 <= len {
                dst.add(at).cast::<u64>().write_volatile(src.add(at).cast::<u64>().read_volatile());
                at += 8;
            }
        } else if (dst as usize).is_multiple_of(8) && len == 8 {
            // One store, whatever the source's alignment: a promise of the parent module.
            let mut word = [0_u8; 8];
            for (i, byte) in word.iter_mut().enumerate() {
                *byte = src.add(i).read_volatile();
            }
            dst.cast::<[u8; 8]>().cast::<u64>().write_volatile(u64::from_le_bytes(word).to_le());
            return;
        }
        while at < len {
            dst.add(at).write_volatile(src.add(at).read_volatile());
            at += 1;
        }
    }
}

/// Copies whole lines; here through the caches, so the caller's write-back is what makes them durable.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn copy_nt(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's. arm64 has no store that both bypasses the caches and is durable by a barrier alone.
    unsafe {
        copy(dst, src, len);
        crate::flush::write_back(crate::flush::instruction(), dst as usize..dst as usize + len);
    }
}
