//! The net under the patches: the kernel stops each system call of this process that is made anywhere but here (syscall user
//! dispatch), and what is not known as the way of a trampoline is told.
//!
//! Read first: the kernel's `Documentation/admin-guide/syscall-user-dispatch.rst`; `gate.rs`. *The promise of this room*: a program
//! under the net behaves as without it, but for the time that a signal takes at each call, and what RCX has behind it. A call that is stopped is made once more
//! from a stub that belongs to its site, in the one range that the kernel lets through; so whatever it does to stacks, memory
//! or signals it does to the program's own. Stubs of calls that make threads and processes put the net under these. Two kinds of calls are made in
//! the handler instead, as they could block SIGSYS, whose next one would end the process: masks and handlers of signals.
//!
//! A call on a goroutine's stack has no room for a signal: no net is put under programs of Go.
#![expect(unsafe_code, reason = "a signal handler that changes where the program goes on")]

use std::ops::Range;
use std::sync::OnceLock;

use super::gate;
use super::memory::{self, Area, PAGE};
use super::{InstallError, calls};
use crate::scan::{SIGRETURN, Scan};
use crate::{Scope, Syscall};

/// `PR_SET_SYSCALL_USER_DISPATCH`.
const DISPATCH: u64 = 59;
/// `SYSCALL_DISPATCH_FILTER_BLOCK`.
const STOPPED: u8 = 1;
const CALL: [u8; 2] = [0x0f, 0x05];
/// How many bytes a site's two stubs have.
const STUBS: u64 = 144;
/// Where the second one begins, for calls that return twice.
const TWICE: u64 = 16;
/// Where things are in the range that the kernel lets through: the function that makes a call, the return from a handler, the byte that says that
/// all else is stopped, and the stubs.
const RETURN: u64 = 64;
const SELECTOR: u64 = 96;
const FIRST: u64 = 128;

struct Net {
    /// The range that the kernel lets through.
    through: Range<u64>,
    /// The kernel's own object, whose calls are those of clocks.
    kernel: Range<u64>,
    /// The addresses of calls that are known, whether they are the way of a trampoline, and their stubs; by address.
    calls: Vec<(u64, bool, u64)>,
    /// Who is told of the others.
    told: fn(&Syscall),
}

static NET: OnceLock<Net> = OnceLock::new();

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

const SIGSYS: u64 = 1 << (libc::SIGSYS - 1);

/// Puts the net under this thread and all that comes of it, until it executes a program. Whoever is told runs in a signal
/// handler: it looks at memory, and makes no call but by [`raw`](super::raw).
///
/// # Errors
/// The kernel has no syscall user dispatch, or there is no memory.
pub fn watch(told: fn(&Syscall)) -> Result<(), InstallError> {
    let ways = calls();
    let mut found: Vec<(u64, bool)> = ways.iter().map(|&call| (call, true)).collect();
    for object in memory::objects(Scope::All) {
        if object.is_go() {
            return Err(InstallError::Go);
        }
        // By now a site that was patched in place is a call like any other.
        let sites = Scan::of(&object.image).sites;
        found.extend(sites.iter().map(|site| (site.at, false)).filter(|(at, _)| !ways.contains(at)));
    }
    found.sort_unstable();
    let length = (FIRST + found.len() as u64 * STUBS).next_multiple_of(PAGE);
    let own = gate::gate();
    let area = Area::near(&own, length)?;
    let through = area.range.clone();
    // mov rax, rdi; mov rcx, rsi; the six arguments from [rcx]; syscall; ret
    area.write(
        through.start,
        &[
            0x48, 0x89, 0xf8, 0x48, 0x89, 0xf1, 0x48, 0x8b, 0x39, 0x48, 0x8b, 0x71, 0x08, 0x48, 0x8b, 0x51,
            0x10, 0x4c, 0x8b, 0x51, 0x18, 0x4c, 0x8b, 0x41, 0x20, 0x4c, 0x8b, 0x49, 0x28, 0x0f, 0x05, 0xc3,
        ],
    );
    // mov eax, 15; syscall
    area.write(through.start + RETURN, &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]);
    area.write(through.start + SELECTOR, &[STOPPED]);
    let mut known = Vec::new();
    for ((call, way), number) in found.into_iter().zip(0_u64..) {
        let stub = through.start + FIRST + number * STUBS;
        area.write(stub, &once(call));
        area.write(stub + TWICE, &twice(call, &through));
        known.push((call, way, stub));
    }
    area.finish(through.start)?;
    // SAFETY: it reads a vector that the kernel left.
    let kernel = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let net = Net { through: through.clone(), kernel: kernel..kernel + 2 * PAGE, calls: known, told };
    if NET.set(net).is_err() {
        return Err(InstallError::Again);
    }
    let action = Action {
        handler: handler as *const () as u64,
        flags: (libc::SA_SIGINFO | 0x0400_0000) as u64, // SA_RESTORER
        restorer: through.start + RETURN,
        mask: u64::MAX,
    };
    let selector = through.start + SELECTOR;
    // SAFETY: the function was written there and stays; the handler is ready for each call from here on, as is what the
    // two calls point to.
    let armed = unsafe {
        gate::go_through(through.start);
        gate::raw(13, [libc::SIGSYS as u64, (&raw const action) as u64, 0, 8, 0, 0]);
        gate::raw(157, [DISPATCH, 1, through.start, through.end - through.start, selector, 0])
    };
    if armed == 0 { Ok(()) } else { Err(InstallError::Dispatch) }
}

/// The call, and on to what follows it.
fn once(call: u64) -> Vec<u8> {
    let mut code = CALL.to_vec();
    code.extend(jump(call + 2));
    code
}

/// The call, and on; but where it returns 0, which is in a new thread or process, the net is put under that first. It has its parent's
/// stack or one of its own, below whose red zone there is room.
fn twice(call: u64, through: &Range<u64>) -> Vec<u8> {
    let mut code = CALL.to_vec();
    code.extend([0x89, 0xc1, 0xe3, 14]); // mov ecx, eax; jrcxz over the jump
    code.extend(jump(call + 2));
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp, [rsp - 128]
    code.extend([0x57, 0x56, 0x52, 0x41, 0x52, 0x41, 0x50]); // push rdi, rsi, rdx, r10, r8
    code.extend([0xb8, 157, 0, 0, 0]); // mov eax, prctl
    code.extend([0xbf, DISPATCH.to_le_bytes()[0], 0, 0, 0, 0xbe, 1, 0, 0, 0]); // mov edi, dispatch; mov esi, on
    code.extend([0x48, 0xba]); // mov rdx
    code.extend(through.start.to_le_bytes());
    code.extend([0x49, 0xba]); // mov r10
    code.extend((through.end - through.start).to_le_bytes());
    code.extend([0x49, 0xb8]); // mov r8
    code.extend((through.start + SELECTOR).to_le_bytes());
    code.extend([0x0f, 0x05]);
    code.extend([0x41, 0x58, 0x41, 0x5a, 0x5a, 0x5e, 0x5f]); // pop r8, r10, rdx, rsi, rdi
    code.extend([0x48, 0x8d, 0xa4, 0x24, 128, 0, 0, 0]); // lea rsp, [rsp + 128]
    code.extend([0xb8, 0, 0, 0, 0]); // mov eax, 0
    code.extend(jump(call + 2));
    debug_assert!(code.len() as u64 <= STUBS - TWICE, "{} bytes", code.len());
    code
}

/// `jmp [rip]`, to anywhere.
fn jump(to: u64) -> Vec<u8> {
    let mut code = vec![0xff, 0x25, 0, 0, 0, 0];
    code.extend(to.to_le_bytes());
    code
}

/// For each call that the kernel stopped: the registers are as they were before it, and the next instruction is the one behind it.
extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let Some(net) = NET.get() else { return };
    // SAFETY: the kernel's own frame, which is on this stack as long as the handler runs.
    let (registers, mask) =
        unsafe { (&mut (*context).uc_mcontext.gregs, &mut *(&raw mut (*context).uc_sigmask).cast::<u64>()) };
    let register = |name: i32| registers[usize::try_from(name).unwrap_or(0)].cast_unsigned();
    let number = register(libc::REG_RAX);
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
        .map(register);
    let at = register(libc::REG_RIP) - 2;
    let known = net.calls.binary_search_by_key(&at, |call| call.0).ok().map(|found| net.calls[found]);
    let own = gate::gate().contains(&at) || net.kernel.contains(&at);
    if number == u64::from(SIGRETURN) {
        registers[libc::REG_RIP as usize] = (net.through.start + RETURN).cast_signed();
        return;
    }
    if !own && !known.is_some_and(|(_, way, _)| way) {
        (net.told)(&Syscall { number, arguments, site: at, call: at });
    }
    let returns_twice = matches!(number, 56..=58 | 435);
    // SAFETY: what the program asks for, of its own memory.
    let result = unsafe {
        match (number, known) {
            (14, _) => set_mask(mask, &arguments),
            (13, _) => set_action(&arguments),
            (_, Some((_, _, stub))) => {
                let stub = if returns_twice { stub + TWICE } else { stub };
                registers[libc::REG_RIP as usize] = stub.cast_signed();
                return;
            }
            // Code that is not known has no stub: a child would come back into this handler, on whatever stack.
            _ if returns_twice => -i64::from(libc::ENOSYS),
            _ => gate::raw(number, arguments),
        }
    };
    registers[libc::REG_RAX as usize] = result;
}

/// `rt_sigprocmask`, of what is in force when the handler returns; SIGSYS is never blocked.
///
/// # Safety
/// The pointers are those of the call.
unsafe fn set_mask(mask: &mut u64, arguments: &[u64; 6]) -> i64 {
    let [how, set, old, size, ..] = *arguments;
    if size != 8 {
        return -i64::from(libc::EINVAL);
    }
    let before = *mask;
    if set != 0 {
        // SAFETY: the caller's promise.
        let set = unsafe { (set as *const u64).read_unaligned() };
        *mask = match i32::try_from(how) {
            Ok(libc::SIG_BLOCK) => before | set,
            Ok(libc::SIG_UNBLOCK) => before & !set,
            Ok(libc::SIG_SETMASK) => set,
            _ => return -i64::from(libc::EINVAL),
        } & !SIGSYS;
    }
    if old != 0 {
        // SAFETY: the caller's promise.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    0
}

/// `rt_sigaction`: no handler blocks SIGSYS, and that of SIGSYS stays.
///
/// # Safety
/// The pointers are those of the call.
unsafe fn set_action(arguments: &[u64; 6]) -> i64 {
    let [signal, new, old, size, ..] = *arguments;
    if signal == libc::SIGSYS as u64 && new != 0 {
        return 0;
    }
    if new == 0 {
        // SAFETY: the caller's promise.
        return unsafe { gate::raw(13, [signal, 0, old, size, 0, 0]) };
    }
    // SAFETY: the caller's promise.
    let mut action = unsafe { (new as *const Action).read_unaligned() };
    action.mask &= !SIGSYS;
    // SAFETY: the caller's promise, and a structure that lives.
    unsafe { gate::raw(13, [signal, (&raw const action) as u64, old, size, 0, 0]) }
}
