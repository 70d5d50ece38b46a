//! The way from a patched site to the hook and back, and the one way out for our own system calls.
//!
//! Read first: `plan.rs`, which writes the trampolines that arrive here. *The promise of this room*: whoever arrives leaves with
//! every register, every flag and the whole stack, red zone included, as the kernel would leave them; the program cannot
//! tell that it was here. What that takes:
//!
//! - `wants` runs on the program's stack, with signals as they are: it is a leaf. The registers that Rust may use for
//!   it are saved: the low halves of the vector registers, as this code is compiled without AVX; if it is compiled with it, `wants` runs where `handle` does.
//! - `handle` runs with all signals blocked, on a stack of its own, with all of the processor's extended state saved.
//!   So nothing of the program runs while a call is handled, no handler can jump out of it, and a thread that has 128
//!   bytes of stack left can be served.
//! - A call from one of these stacks is therefore made by the hook itself, and goes to the kernel.
//!
//! On a goroutine's stack of a few hundred bytes there is no room for `wants` either: from the Go runtime's site both run where
//! `handle` does.
//!
//! Nothing here is bound to a thread: no thread-local memory is used, which a thread of the Go runtime would not have,
//! and the child of `vfork` would share.
#![expect(unsafe_code, reason = "entered from any instruction of the program, which only assembly can be")]

use std::arch::global_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Hook, Syscall, Verdict};

/// How long a stack of a call is that is handled, its guard page included.
pub(super) const STACK: u64 = 128 << 10;
/// How many calls can be handled at once; more wait for one of these to end.
pub(super) const STACKS: u64 = 64;

/// What the assembly below reads; it knows the order.
#[repr(C)]
struct State {
    /// Where the stacks begin.
    stacks: AtomicU64,
    /// Where they end.
    stacks_end: AtomicU64,
    /// The address of a word with a bit for each stack that is in use. It is on a page that is zeros in a forked child,
    /// as the threads that used the others are not there.
    used: AtomicU64,
    /// The size of the extended state.
    extended_size: AtomicU64,
    /// The parts of it that are saved.
    extended_mask: AtomicU64,
    /// [`wants`].
    wants: AtomicU64,
    /// [`handle`].
    handle: AtomicU64,
    /// [`handle_unasked`].
    handle_unasked: AtomicU64,
    /// Whether the processor has XSAVEC.
    compacts: AtomicU64,
}

/// What a site's trampoline hands over; the assembly knows the order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Where the trampoline jumps to.
    pub(crate) entry: u64,
    /// The `syscall` that is executed if nobody answers.
    pub(crate) call: u64,
    /// The site in the program, which is the same unless the instruction was moved.
    pub(crate) site: u64,
}

/// What the entry pushes, from the lowest address on.
#[repr(C)]
struct Frame {
    number: u64,
    arguments: [u64; 6],
    record: *const Record,
}

unsafe extern "C" {
    static remanence_intercept_state: State;
    static remanence_intercept_gate: u8;
    static remanence_intercept_gate_end: u8;
    fn remanence_intercept_entry();
    fn remanence_intercept_entry_go();
    fn remanence_intercept_raw(number: u64, arguments: *const [u64; 6]) -> i64;
}

static HOOK: OnceLock<Hook> = OnceLock::new();

global_asm!(
    // Hidden: each library that has this code has its own.
    ".pushsection .bss.remanence_intercept_state, \"aw\", @nobits",
    ".balign 64",
    ".globl remanence_intercept_state",
    ".hidden remanence_intercept_state",
    "remanence_intercept_state: .skip 72",
    ".popsection",
    ".pushsection .text.remanence_intercept_gate, \"ax\", @progbits",
    ".balign 64",
    ".globl remanence_intercept_gate",
    ".hidden remanence_intercept_gate",
    "remanence_intercept_gate:",
    // extern "C" fn(number, &[u64; 6]) -> i64
    ".globl remanence_intercept_raw",
    ".hidden remanence_intercept_raw",
    "remanence_intercept_raw:",
    "mov rax, rdi",
    "mov rcx, rsi",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    "syscall",
    "ret",
    // From a trampoline: R11 is the record, RCX is free, all else is the program's.
    ".globl remanence_intercept_entry",
    ".hidden remanence_intercept_entry",
    "remanence_intercept_entry:",
    "lea rsp, [rsp - 128]", // the red zone
    "pushfq",
    "push rbp",
    "mov rbp, rsp",
    "cld",
    "push r11", // the frame, from its last field on
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rax",
    "and rsp, -16",
    // A call from one of our stacks is the hook's own.
    "cmp rbp, [rip + {state}]",
    "jb 2f",
    "cmp rbp, [rip + {state} + 8]",
    "jb 8f",
    "2:",
    ".if {leaf}",
    "sub rsp, 256",
    "movups [rsp], xmm0",
    "movups [rsp + 16], xmm1",
    "movups [rsp + 32], xmm2",
    "movups [rsp + 48], xmm3",
    "movups [rsp + 64], xmm4",
    "movups [rsp + 80], xmm5",
    "movups [rsp + 96], xmm6",
    "movups [rsp + 112], xmm7",
    "movups [rsp + 128], xmm8",
    "movups [rsp + 144], xmm9",
    "movups [rsp + 160], xmm10",
    "movups [rsp + 176], xmm11",
    "movups [rsp + 192], xmm12",
    "movups [rsp + 208], xmm13",
    "movups [rsp + 224], xmm14",
    "movups [rsp + 240], xmm15",
    "lea rdi, [rbp - 64]",
    "call [rip + {state} + 40]",
    "movups xmm0, [rsp]",
    "movups xmm1, [rsp + 16]",
    "movups xmm2, [rsp + 32]",
    "movups xmm3, [rsp + 48]",
    "movups xmm4, [rsp + 64]",
    "movups xmm5, [rsp + 80]",
    "movups xmm6, [rsp + 96]",
    "movups xmm7, [rsp + 112]",
    "movups xmm8, [rsp + 128]",
    "movups xmm9, [rsp + 144]",
    "movups xmm10, [rsp + 160]",
    "movups xmm11, [rsp + 176]",
    "movups xmm12, [rsp + 192]",
    "movups xmm13, [rsp + 208]",
    "movups xmm14, [rsp + 224]",
    "movups xmm15, [rsp + 240]",
    "add rsp, 256",
    "test al, al",
    "jz 8f",
    ".endif",
    // Somebody wants it. Signals wait: rt_sigprocmask(SIG_SETMASK, all but SIGSYS, old).
    "sub rsp, 64",
    "mov [rsp + 8], rbx",
    "mov [rsp + 16], r12",
    "mov [rsp + 24], r13",
    "mov rax, {mask}",
    "mov [rsp + 40], rax",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rsp + 40]",
    "mov rdx, rsp",
    "mov r10d, 8",
    "syscall",
    "mov rbx, rsp",
    // A stack that is free; if none is, sched_yield.
    "mov rcx, [rip + {state} + 16]",
    "3:",
    "mov rax, [rcx]",
    "not rax",
    "bsf rax, rax",
    "jz 4f",
    "lock bts qword ptr [rcx], rax",
    "jnc 5f",
    "jmp 3b",
    "4:",
    "mov eax, 24",
    "syscall",
    "mov rcx, [rip + {state} + 16]",
    "jmp 3b",
    "5:",
    "mov r12, rax",
    "inc rax",
    "imul rax, rax, {stack}",
    "add rax, [rip + {state}]",
    "mov rsp, rax",
    "sub rsp, [rip + {state} + 24]",
    // The state's header has to be zero before it is saved.
    "xor eax, eax",
    "mov [rsp + 512], rax",
    "mov [rsp + 520], rax",
    "mov [rsp + 528], rax",
    "mov [rsp + 536], rax",
    "mov [rsp + 544], rax",
    "mov [rsp + 552], rax",
    "mov [rsp + 560], rax",
    "mov [rsp + 568], rax",
    "mov eax, [rip + {state} + 32]",
    "mov edx, [rip + {state} + 36]",
    // Where the processor can, without the parts that nobody has used since they were as they begin.
    "cmp qword ptr [rip + {state} + 64], 0",
    "je 6f",
    "xsavec64 [rsp]",
    "jmp 7f",
    "6:",
    "xsave64 [rsp]",
    "7:",
    "mov r13, rsp",
    "lea rdi, [rbp - 64]",
    "call [rip + {state} + 48]",
    "movzx eax, al",
    "mov [rbx + 32], rax",
    "mov eax, [rip + {state} + 32]",
    "mov edx, [rip + {state} + 36]",
    "xrstor64 [r13]",
    "mov rsp, rbx",
    "mov rcx, [rip + {state} + 16]",
    "lock btr qword ptr [rcx], r12",
    "mov eax, 14",
    "mov edi, 2",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov rax, [rsp + 32]",
    "mov rbx, [rsp + 8]",
    "mov r12, [rsp + 16]",
    "mov r13, [rsp + 24]",
    "test eax, eax",
    "jnz 9f",
    // Nobody answers: the program's own instruction is next.
    "8:",
    "lea rsp, [rbp - 64]",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop r11",
    "mov rcx, [r11 + 8]",
    "pop rbp",
    "popfq",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    // Answered: as the kernel returns, with the flags in R11 and the next instruction in RCX.
    "9:",
    "lea rsp, [rbp - 64]",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop r11",
    "mov rcx, [r11 + 8]",
    "lea rcx, [rcx + 2]",
    "mov r11, [rsp + 8]",
    "pop rbp",
    "popfq",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    // From a site of the Go runtime, on a goroutine's stack, of which nothing may be used: R11 is the record, and RCX, R12
    // and R13 are free, as everything is that is no argument in a function of Go's assembly. Its signal handlers have a
    // stack of their own, and none of them jumps out.
    ".globl remanence_intercept_entry_go",
    ".hidden remanence_intercept_entry_go",
    "remanence_intercept_entry_go:",
    "mov rcx, [rip + {state} + 16]",
    "mov r12, [rcx]",
    "not r12",
    "bsf r12, r12",
    "jz 4f",
    "lock bts qword ptr [rcx], r12",
    "jc remanence_intercept_entry_go",
    "lea r13, [r12 + 1]",
    "imul r13, r13, {stack}",
    "add r13, [rip + {state}]",
    "mov [r13 - 8], rsp",
    "mov [r13 - 16], r12",
    "lea rsp, [r13 - 16]",
    "pushfq",
    "push rbp",
    "mov rbp, rsp",
    "cld",
    "push r11",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rax",
    "sub rsp, 32",
    "mov rax, {mask}",
    "mov [rbp - 72], rax",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rbp - 72]",
    "lea rdx, [rbp - 80]",
    "mov r10d, 8",
    "syscall",
    "sub rsp, [rip + {state} + 24]",
    "and rsp, -64",
    "xor eax, eax",
    "mov [rsp + 512], rax",
    "mov [rsp + 520], rax",
    "mov [rsp + 528], rax",
    "mov [rsp + 536], rax",
    "mov [rsp + 544], rax",
    "mov [rsp + 552], rax",
    "mov [rsp + 560], rax",
    "mov [rsp + 568], rax",
    "mov eax, [rip + {state} + 32]",
    "mov edx, [rip + {state} + 36]",
    // Where the processor can, without the parts that nobody has used since they were as they begin.
    "cmp qword ptr [rip + {state} + 64], 0",
    "je 6f",
    "xsavec64 [rsp]",
    "jmp 7f",
    "6:",
    "xsave64 [rsp]",
    "7:",
    "mov r13, rsp",
    "lea rdi, [rbp - 64]",
    "call [rip + {state} + 56]",
    "movzx eax, al",
    "mov [rbp - 72], rax",
    "mov eax, [rip + {state} + 32]",
    "mov edx, [rip + {state} + 36]",
    "xrstor64 [r13]",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rbp - 80]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "lea rsp, [rbp - 64]",
    "cmp qword ptr [rbp - 72], 0",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop r11",
    "mov rcx, [r11 + 8]",
    "je 2f",
    "lea rcx, [rcx + 2]",
    "2:",
    "mov r12, [rbp + 16]",
    "mov r13, [rbp + 24]",
    "mov r11, [rbp + 8]",
    "mov rbp, [rbp]",
    "mov rsp, r13",
    "mov r13, [rip + {state} + 16]",
    "lock btr qword ptr [r13], r12",
    "jmp rcx",
    // No stack is free: sched_yield.
    "4:",
    "mov r12, rax",
    "mov r13, r11",
    "mov eax, 24",
    "syscall",
    "mov rax, r12",
    "mov r11, r13",
    "jmp remanence_intercept_entry_go",
    ".globl remanence_intercept_gate_end",
    ".hidden remanence_intercept_gate_end",
    "remanence_intercept_gate_end:",
    ".popsection",
    state = sym remanence_intercept_state,
    stack = const STACK,
    mask = const MASK,
    leaf = const LEAF,
);

/// Every signal but SIGSYS, which the kernel sends to a thread for a call of its own, and kills it if it is blocked.
const MASK: i64 = !(1 << (libc::SIGSYS - 1));

/// Whether `wants` can run with the low halves of the vector registers saved.
const LEAF: u32 = if cfg!(target_feature = "avx") { 0 } else { 1 };

/// Where calls that nobody may hook are made from.
pub(crate) fn gate() -> std::ops::Range<u64> {
    (&raw const remanence_intercept_gate) as u64..(&raw const remanence_intercept_gate_end) as u64
}

/// The address that trampolines jump to, from a site of the Go runtime or from another.
pub(super) fn entry(go: bool) -> u64 {
    if go {
        remanence_intercept_entry_go as *const () as u64
    } else {
        remanence_intercept_entry as *const () as u64
    }
}

/// Makes a system call that is neither hooked nor counted, and gives what the kernel gave: a negative number is an error.
///
/// # Safety
/// As for the call itself, whatever it is.
pub unsafe fn raw(number: u64, arguments: [u64; 6]) -> i64 {
    // SAFETY: both functions have this signature; the caller's promise; they read six words.
    unsafe {
        let call = match UNDER_NET.load(Ordering::Relaxed) {
            0 => remanence_intercept_raw,
            address => std::mem::transmute::<u64, unsafe extern "C" fn(u64, *const [u64; 6]) -> i64>(address),
        };
        call(number, &raw const arguments)
    }
}

/// The function that makes calls where the net lets them through; 0 without a net.
static UNDER_NET: AtomicU64 = AtomicU64::new(0);

/// From now on [`raw`] calls go through this function.
///
/// # Safety
/// It does what that of this room does, and stays.
pub(super) unsafe fn go_through(function: u64) {
    UNDER_NET.store(function, Ordering::Relaxed);
}

/// What a processor has to save of its state; `None` if it lacks the instructions.
fn extended() -> Option<(u64, u64)> {
    const OSXSAVE: u32 = 1 << 27;
    /// Protection keys, which the hook leaves alone, and the tiles of AMX, which no library uses unasked.
    const NOT: u64 = 1 << 9 | 1 << 17 | 1 << 18;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return None;
    }
    let (low, high): (u32, u32);
    // SAFETY: the processor has the instruction, as OSXSAVE says; it reads a register.
    unsafe {
        std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    let size = u64::from(__cpuid_count(0xd, 0).ebx).next_multiple_of(64);
    Some((size, (u64::from(high) << 32 | u64::from(low)) & !NOT))
}

/// Whether a hook is there already.
pub(super) fn is_open() -> bool {
    HOOK.get().is_some()
}

/// Makes the entry ready: from now on trampolines may be jumped into. False if the processor cannot.
pub(super) fn open(hook: Hook, stacks: u64, used: u64) -> bool {
    let Some((size, mask)) = extended() else { return false };
    // SAFETY: it is a static of the assembly above, of that size and alignment, and its fields are atomic.
    let state = unsafe { &remanence_intercept_state };
    for (field, value) in [
        (&state.stacks, stacks),
        (&state.stacks_end, stacks + STACK * STACKS),
        (&state.used, used),
        (&state.extended_size, size),
        (&state.extended_mask, mask),
        (&state.wants, wants as *const () as u64),
        (&state.handle, handle as *const () as u64),
        (&state.handle_unasked, handle_unasked as *const () as u64),
        (&state.compacts, __cpuid_count(0xd, 1).eax as u64 >> 1 & 1),
    ] {
        field.store(value, Ordering::Relaxed);
    }
    HOOK.set(hook).is_ok()
}

fn call(frame: &Frame) -> Syscall {
    // SAFETY: a record is written before the trampoline that names it, and neither is ever freed.
    let record = unsafe { &*frame.record };
    Syscall { number: frame.number, arguments: frame.arguments, site: record.site, call: record.call }
}

/// Called by the entry: whether `handle` is to be called.
extern "C" fn wants(frame: &Frame) -> bool {
    HOOK.get().is_some_and(|hook| (hook.wants)(&call(frame)))
}

/// Called by the entry where `wants` was not asked before.
extern "C" fn handle_unasked(frame: &mut Frame) -> bool {
    wants(frame) && handle(frame)
}

/// Called by the entry: whether the call is answered, with the answer instead of its number.
extern "C" fn handle(frame: &mut Frame) -> bool {
    let Some(hook) = HOOK.get() else { return false };
    let call = call(frame);
    if LEAF == 0 && !(hook.wants)(&call) {
        return false;
    }
    match (hook.handle)(&call) {
        Verdict::Pass => false,
        Verdict::Return(value) => {
            frame.number = value.cast_unsigned();
            true
        }
    }
}
