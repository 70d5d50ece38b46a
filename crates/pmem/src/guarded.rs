//! Accesses to memory that its owner may unmap at any time, which fail instead of killing the process.
//!
//! Memory of an application that registered it ([`Region::borrowed`](crate::Region::borrowed)) is not ours to keep
//! mapped, and applications do free what is still registered. A real RNIC has the pages pinned and never notices. We
//! would be killed by SIGSEGV, in a thread of which the application knows nothing. So such memory is reached only by
//! the few routines below, which the fault handler (`sigbus.rs`) knows by their addresses: a fault inside of them
//! goes on at `landing`, which returns 1 to their caller. It is what operating systems do to copy from their users.
//!
//! The routines touch no stack and call nothing, so that `landing` can return from any instruction of them. The
//! promises of `copy` hold here too: ascending order, the last bytes last, aligned words in one store.
//!
//! The promise of this room: nothing but the routines lies between `begin` and `end`.
#![expect(unsafe_code, reason = "accesses that may fault, by design")]

use std::arch::global_asm;

/// The access met memory that is not there, or not to be used so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.remanence_guarded,\"ax\",@progbits",
    ".p2align 5",
    ".globl remanence_guarded_begin",
    ".hidden remanence_guarded_begin",
    "remanence_guarded_begin:",
    // copy(to: rdi, from: rsi, len: rdx, by_string: ecx)
    ".globl remanence_guarded_copy",
    ".hidden remanence_guarded_copy",
    "remanence_guarded_copy:",
    "cmp rdx, 64",
    "ja 40f",
    "cmp rdx, 32",
    "ja 30f",
    "cmp rdx, 16",
    "ja 20f",
    "cmp rdx, 8",
    "ja 16f",
    "je 8f",
    "cmp rdx, 4",
    "jae 14f",
    "cmp rdx, 2",
    "jae 12f",
    "test rdx, rdx",
    "je 99f",
    "mov al, byte ptr [rsi]",
    "mov byte ptr [rdi], al",
    "jmp 99f",
    "12:",
    "movzx eax, word ptr [rsi]",
    "movzx ecx, word ptr [rsi + rdx - 2]",
    "mov word ptr [rdi], ax",
    "mov word ptr [rdi + rdx - 2], cx",
    "jmp 99f",
    "14:",
    "mov eax, dword ptr [rsi]",
    "mov ecx, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], eax",
    "mov dword ptr [rdi + rdx - 4], ecx",
    "jmp 99f",
    "8:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "jmp 99f",
    "16:",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "jmp 99f",
    "20:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "jmp 99f",
    // 33 to 64 bytes, and the last 64 of more.
    "30:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "jmp 99f",
    "40:",
    "test ecx, ecx",
    "jnz 50f",
    "41:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 41b",
    "45:",
    // What is left is 1 to 64 bytes, behind at least 64 that are done: the last 64 again, in order.
    "lea rsi, [rsi + rdx - 64]",
    "lea rdi, [rdi + rdx - 64]",
    "mov edx, 64",
    "jmp 30b",
    "50:",
    "lea rcx, [rdx - 64]",
    "rep movsb",
    "mov edx, 64",
    "jmp 30b",
    // load(from: rdi, into: rsi)
    ".globl remanence_guarded_load",
    ".hidden remanence_guarded_load",
    "remanence_guarded_load:",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "jmp 99f",
    // store(to: rdi, value: rsi)
    ".globl remanence_guarded_store",
    ".hidden remanence_guarded_store",
    "remanence_guarded_store:",
    "mov [rdi], rsi",
    "jmp 99f",
    // compare_and_swap(at: rdi, compare: rsi, swap: rdx, was: rcx)
    ".globl remanence_guarded_cas",
    ".hidden remanence_guarded_cas",
    "remanence_guarded_cas:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "jmp 99f",
    // fetch_add(at: rdi, add: rsi, was: rdx)
    ".globl remanence_guarded_add",
    ".hidden remanence_guarded_add",
    "remanence_guarded_add:",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "99:",
    "xor eax, eax",
    "ret",
    ".globl remanence_guarded_end",
    ".hidden remanence_guarded_end",
    "remanence_guarded_end:",
    ".globl remanence_guarded_landing",
    ".hidden remanence_guarded_landing",
    "remanence_guarded_landing:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.remanence_guarded,\"ax\",@progbits",
    ".p2align 5",
    ".globl remanence_guarded_begin",
    ".hidden remanence_guarded_begin",
    "remanence_guarded_begin:",
    // copy(to: x0, from: x1, len: x2), whatever x3 says
    ".globl remanence_guarded_copy",
    ".hidden remanence_guarded_copy",
    "remanence_guarded_copy:",
    "20: cmp x2, #16",
    "b.ls 21f",
    "ldp x3, x4, [x1], #16",
    "stp x3, x4, [x0], #16",
    "sub x2, x2, #16",
    "b 20b",
    "21: cmp x2, #8",
    "b.lo 22f",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "sub x2, x2, #8",
    "b 21b",
    "22: cmp x2, #4",
    "b.lo 23f",
    "ldr w3, [x1], #4",
    "str w3, [x0], #4",
    "sub x2, x2, #4",
    "23: cmp x2, #2",
    "b.lo 24f",
    "ldrh w3, [x1], #2",
    "strh w3, [x0], #2",
    "sub x2, x2, #2",
    "24: cbz x2, 99f",
    "ldrb w3, [x1]",
    "strb w3, [x0]",
    "b 99f",
    // load(from: x0, into: x1)
    ".globl remanence_guarded_load",
    ".hidden remanence_guarded_load",
    "remanence_guarded_load:",
    "ldar x3, [x0]",
    "str x3, [x1]",
    "b 99f",
    // store(to: x0, value: x1)
    ".globl remanence_guarded_store",
    ".hidden remanence_guarded_store",
    "remanence_guarded_store:",
    "stlr x1, [x0]",
    "b 99f",
    // compare_and_swap(at: x0, compare: x1, swap: x2, was: x3)
    ".globl remanence_guarded_cas",
    ".hidden remanence_guarded_cas",
    "remanence_guarded_cas:",
    "30: ldaxr x4, [x0]",
    "cmp x4, x1",
    "b.ne 31f",
    "stlxr w5, x2, [x0]",
    "cbnz w5, 30b",
    "31: str x4, [x3]",
    "dmb ish",
    "b 99f",
    // fetch_add(at: x0, add: x1, was: x2)
    ".globl remanence_guarded_add",
    ".hidden remanence_guarded_add",
    "remanence_guarded_add:",
    "40: ldaxr x4, [x0]",
    "add x5, x4, x1",
    "stlxr w6, x5, [x0]",
    "cbnz w6, 40b",
    "str x4, [x2]",
    "dmb ish",
    "99: mov x0, #0",
    "ret",
    ".globl remanence_guarded_end",
    ".hidden remanence_guarded_end",
    "remanence_guarded_end:",
    ".globl remanence_guarded_landing",
    ".hidden remanence_guarded_landing",
    "remanence_guarded_landing:",
    "mov x0, #1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn remanence_guarded_begin();
    fn remanence_guarded_end();
    fn remanence_guarded_landing();
    fn remanence_guarded_copy(to: *mut u8, from: *const u8, len: usize, by_string: u32) -> usize;
    fn remanence_guarded_load(from: *const u8, into: *mut u64) -> usize;
    fn remanence_guarded_store(to: *mut u8, value: u64) -> usize;
    fn remanence_guarded_cas(at: *mut u8, compare: u64, swap: u64, was: *mut u64) -> usize;
    fn remanence_guarded_add(at: *mut u8, add: u64, was: *mut u64) -> usize;
}

fn told(fault: usize) -> Result<(), Fault> {
    if fault == 0 { Ok(()) } else { Err(Fault) }
}

/// Longer copies are left to the CPU's string move, where that is a fast one.
#[cfg(target_arch = "x86_64")]
const BY_STRING: usize = 1024;

/// Whether to copy so many bytes by a string move. Without ERMSB (CPUs before 2012, emulators) it goes byte by byte: 64 KiB
/// took three to five times as long as in steps of 16 bytes, in QEMU's.
#[cfg(target_arch = "x86_64")]
#[inline]
fn by_string(len: usize) -> bool {
    len > BY_STRING && std::arch::is_x86_feature_detected!("ermsb")
}

#[cfg(not(target_arch = "x86_64"))]
const fn by_string(_: usize) -> bool {
    false
}

/// Copies `len` bytes. After a fault any part of them may have been copied.
///
/// # Safety
/// The fault handler is installed. What of either range is mapped may be read and written by somebody who promises
/// what `copy` asks.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: as the caller promises; the routine touches nothing else.
    told(unsafe { remanence_guarded_copy(to, from, len, u32::from(by_string(len))) })
}

/// Loads the word at a multiple of 8 (acquire).
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn load(from: *const u8) -> Result<u64, Fault> {
    let mut value = 0;
    // SAFETY: as the caller promises; `value` is ours.
    told(unsafe { remanence_guarded_load(from, &raw mut value) })?;
    Ok(value)
}

/// Stores the word at a multiple of 8 (release).
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn store(to: *mut u8, value: u64) -> Result<(), Fault> {
    // SAFETY: as the caller promises.
    told(unsafe { remanence_guarded_store(to, value) })
}

/// Atomically replaces the word at a multiple of 8 if it equals `compare`; returns what was there.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn compare_and_swap(at: *mut u8, compare: u64, swap: u64) -> Result<u64, Fault> {
    let mut was = 0;
    // SAFETY: as the caller promises; `was` is ours.
    told(unsafe { remanence_guarded_cas(at, compare, swap, &raw mut was) })?;
    Ok(was)
}

/// Atomically adds to the word at a multiple of 8; returns what was there.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, Fault> {
    let mut was = 0;
    // SAFETY: as the caller promises; `was` is ours.
    told(unsafe { remanence_guarded_add(at, add, &raw mut was) })?;
    Ok(was)
}

/// For the fault handler: if the fault is one of the routines', lets the interrupted thread go on at `landing`.
///
/// # Safety
/// `context` is the `ucontext_t` that the kernel gave to a signal handler, which now runs.
pub(crate) unsafe fn land(context: *mut std::ffi::c_void) -> bool {
    let routines = (remanence_guarded_begin as *const ()).addr()..(remanence_guarded_end as *const ()).addr();
    let landing = (remanence_guarded_landing as *const ()).addr();
    // SAFETY: as the caller promises; nobody else looks at the context while the handler runs.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        #[cfg(target_arch = "x86_64")]
        let at = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let at = &mut (*context).uc_mcontext.pc;
        let found = routines.contains(&(*at as usize));
        if found {
            *at = landing as _;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarded_copy_copies_every_length_and_nothing_else() {
        let source: Vec<u8> = (0..5000_u32).map(|i| (i % 251) as u8).collect();
        for len in (0..300).chain([511, 512, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 4096, 4999]) {
            // Both ways, whichever this CPU takes.
            for by_string in 0..=1 {
                let mut target = vec![0xEE; len + 2];
                // SAFETY: both lie in buffers of ours.
                let fault = unsafe {
                    remanence_guarded_copy(target[1..].as_mut_ptr(), source.as_ptr(), len, by_string)
                };
                assert_eq!(fault, 0);
                assert!(target[1..=len] == source[..len], "{len} bytes");
                assert_eq!((target[0], target[len + 1]), (0xEE, 0xEE), "around {len} bytes");
            }
        }
    }

    #[test]
    fn the_handler_knows_the_routines_and_nothing_else() {
        let routines =
            (remanence_guarded_begin as *const ()).addr()..(remanence_guarded_end as *const ()).addr();
        assert!(routines.contains(&(remanence_guarded_copy as *const ()).addr()));
        assert!(routines.contains(&(remanence_guarded_add as *const ()).addr()));
        assert!(!routines.contains(&(remanence_guarded_landing as *const ()).addr()));
        assert!(routines.len() < 1024, "{}", routines.len());
    }
}
