//! A page of a file that can no longer be reached: truncated under us, or a medium error.
//!
//! The kernel then sends SIGBUS to whoever touches the page, and the default is to kill the process: with it every
//! other pool it serves, and every connection. Instead our handler puts a page of zeros in place of the lost one
//! and marks the region as failed; the access goes on. From then on each `psync` of that region fails with a
//! sentence, so that nothing more is ever called durable, and its owner decides what to do. What was read of the
//! page is zeros, which a checksum finds; who would take zeros for an answer ("no record follows") asks for the region's failure
//! behind the read. Nobody is woken from the handler, which may not: the owner finds out in its next turn, or the next psync does.
//!
//! Memory that an application owns is another matter: nobody may put pages in its place. It is reached by the routines
//! of `guarded.rs` only, and a fault there (SIGSEGV where nothing is mapped any more, SIGBUS where a file was cut
//! short) makes the access fail.
//!
//! The handlers are installed with the first region that needs them. Faults outside of every region go to the
//! handler that was there before, or kill the process as they would have.
//!
//! The promise of this room: the handler does what may be done in a handler only (atomics, mmap, sigaction, raise), and
//! replaces pages of live regions only.
#![expect(unsafe_code, reason = "a signal handler")]

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::{guarded, map};

/// Regions that can be watched at a time. One more is mapped all the same, and a page that it loses is not replaced:
/// the signal goes to the handler that was there before, or kills the process.
const SLOTS: usize = 1024;

/// A watched mapping. `base` is 0 in a free slot, 1 while its owner fills it.
struct Slot {
    base: AtomicUsize,
    end: AtomicUsize,
    /// 1 + the offset of the first page that was lost.
    lost: AtomicU64,
}

const TAKEN: usize = 1;

static SLOT: [Slot; SLOTS] =
    [const { Slot { base: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicU64::new(0) } }; SLOTS];

/// The handler that a signal had before ours.
struct Previous {
    installed: AtomicBool,
    action: AtomicPtr<libc::sigaction>,
}

static BUS: Previous =
    Previous { installed: AtomicBool::new(false), action: AtomicPtr::new(ptr::null_mut()) };
static SEGV: Previous =
    Previous { installed: AtomicBool::new(false), action: AtomicPtr::new(ptr::null_mut()) };

/// Watches one mapping until dropped, which must be before it is unmapped.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: Option<usize>,
}

impl Watch {
    /// Watches the `len` bytes that are mapped at `base`.
    pub(crate) fn new(base: usize, len: usize) -> Self {
        install(libc::SIGBUS, &BUS);
        let slot = SLOT.iter().position(|slot| {
            slot.base.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if let Some(slot) = slot.map(|i| &SLOT[i]) {
            slot.end.store(base + len, Ordering::Relaxed);
            slot.lost.store(0, Ordering::Relaxed);
            slot.base.store(base, Ordering::Release);
        }
        Self { slot }
    }

    /// A watch without a mapping, for memory that has no file which could lose a page: nothing is ever lost.
    pub(crate) const fn none() -> Self {
        Self { slot: None }
    }

    /// The offset of the page that was lost first, if any was.
    #[inline]
    pub(crate) fn lost(&self) -> Option<u64> {
        SLOT[self.slot?].lost.load(Ordering::Acquire).checked_sub(1)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            SLOT[slot].base.store(0, Ordering::Release);
        }
    }
}

/// Installs what the routines of `guarded.rs` need.
pub(crate) fn guard() {
    install(libc::SIGBUS, &BUS);
    install(libc::SIGSEGV, &SEGV);
}

/// Installs our handler before it returns, whoever else is about to. Nobody waits for another thread here: a child that
/// is forked in between has no such thread.
fn install(signal: c_int, slot: &'static Previous) {
    if slot.installed.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: all zeros is a valid sigaction; the calls get pointers to live values; the handler has the signature that
    // SA_SIGINFO asks for. It may run as soon as it is installed, so what came before is known first: the thread that
    // notes it is one that asked when nobody had installed ours yet. To install ours again changes nothing.
    unsafe {
        let mut previous: Box<libc::sigaction> = Box::new(mem::zeroed());
        libc::sigaction(signal, ptr::null(), &raw mut *previous);
        let previous = Box::into_raw(previous);
        let noted =
            slot.action.compare_exchange(ptr::null_mut(), previous, Ordering::AcqRel, Ordering::Acquire);
        if noted.is_err() {
            drop(Box::from_raw(previous));
        }
        let mut ours: libc::sigaction = mem::zeroed();
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut ours.sa_mask);
        libc::sigaction(signal, &raw const ours, ptr::null_mut());
    }
    slot.installed.store(true, Ordering::Release);
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a valid siginfo to a handler with SA_SIGINFO.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // A signal that somebody sent has no address, and a code that is not positive.
    // SAFETY: the context is the kernel's, and we are in the handler.
    if code > 0 && unsafe { guarded::land(context) } {
        return;
    }
    for slot in SLOT.iter().filter(|_| code > 0 && signal == libc::SIGBUS) {
        let base = slot.base.load(Ordering::Acquire);
        if base > TAKEN && (base..slot.end.load(Ordering::Relaxed)).contains(&address) {
            let page = address & !(map::page_size() - 1);
            let lost = (page - base) as u64 + 1;
            // Marked before the access can go on: a psync after it must see the mark.
            let _ = slot.lost.compare_exchange(0, lost, Ordering::Release, Ordering::Relaxed);
            // SAFETY: the thread that faulted is using the region, which therefore is alive.
            if unsafe { map::replace_page(page) } {
                return;
            }
        }
    }
    pass_on(signal, info, context);
}

/// Does with a signal what would have been done without our handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = if signal == libc::SIGBUS { &BUS } else { &SEGV }.action.load(Ordering::Acquire);
    // SAFETY: set before the handler was installed, never freed; a handler in it has the signature that its flags
    // say. With no handler the default is put back and the signal raised again, to be met on return.
    unsafe {
        match (*previous).sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                let mut default: libc::sigaction = mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                libc::raise(signal);
            }
            handler if (*previous).sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(c_int) = mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
