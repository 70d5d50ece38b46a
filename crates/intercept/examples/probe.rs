//! A library to be preloaded that writes down each system call which it sees, and lets it pass: what the tests compare with a tracer's list.
//!
//! `REMANENCE_PROBE_LOG` names a file of 32 MiB: its first word counts, and each record of 32 bytes behind it is a process, a number, the
//! address of the instruction that makes the call, and its first argument. `REMANENCE_PROBE_MODE` is `all` for the objects of the program too, and
//! `net` puts the net under it, which tells of each call that is made in another way: its process has bit 63. `handle` has each call go the whole way to the handler, which lets it pass, but for a number that no kernel has.
#![expect(unsafe_code, reason = "a constructor, and a file that is mapped")]

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use remanence_intercept::{Hook, Scope, Syscall, Verdict, extend, install, own_calls, raw, watch};

const WORDS: usize = (32 << 20) / 8;
/// The call that tells a tracer that from now on each one is seen: a number that no kernel has.
const MARK: u64 = 0x7ea1;
/// The call that is answered, by its argument and one more.
const ANSWERED: u64 = 0x7ea2;

static LOG: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static WHOLE_WAY: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Ok(path) = std::env::var("REMANENCE_PROBE_LOG") else { return };
    let mode = std::env::var("REMANENCE_PROBE_MODE").unwrap_or_default();
    let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { return };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a new mapping of the whole file.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            WORDS * 8,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return;
    }
    WHOLE_WAY.store(u64::from(mode.contains("handle")), Ordering::Relaxed);
    drop(file);
    let scope = if mode.contains("all") { Scope::All } else { Scope::Libc };
    match install(Hook { wants, handle }, 0..=u16::MAX, scope) {
        Ok(_) => {
            let own = own_calls();
            LOG.store(map.cast(), Ordering::Relaxed);
            if mode.contains("net")
                && let Err(why) = watch(slipped)
            {
                eprintln!("probe: {why}");
                std::process::exit(70);
            }
            // SAFETY: no such call.
            unsafe { raw(MARK, [own.start, own.end, 0, 0, 0, 0]) };
        }
        Err(why) => eprintln!("probe: {why}"),
    }
}

fn wants(call: &Syscall) -> bool {
    note(call, 0) && WHOLE_WAY.load(Ordering::Relaxed) != 0
}

fn slipped(call: &Syscall) {
    note(call, 1 << 63);
}

/// Writes a call down. False before there is a log.
fn note(call: &Syscall, mark: u64) -> bool {
    // SAFETY: the file is mapped, of that size, for as long as the process lives.
    unsafe {
        let log = LOG.load(Ordering::Relaxed);
        if log.is_null() {
            return false;
        }
        let pid = raw(libc::SYS_getpid as u64, [0; 6]).cast_unsigned();
        let index = (*log).fetch_add(1, Ordering::Relaxed) as usize;
        let at = 4 + index * 4;
        if at + 4 <= WORDS {
            (*log.add(at)).store(pid | mark, Ordering::Relaxed);
            (*log.add(at + 1)).store(call.number, Ordering::Relaxed);
            (*log.add(at + 2)).store(call.call, Ordering::Relaxed);
            (*log.add(at + 3)).store(call.arguments[0], Ordering::Relaxed);
        }
    }
    true
}

/// Patches what was loaded since, and says how many sites that were.
#[unsafe(no_mangle)]
pub extern "C" fn remanence_probe_extend() -> usize {
    let patched = extend(Scope::All).unwrap_or_default();
    patched.iter().map(|object| object.in_place + object.moved).sum()
}

/// Makes a call from this library.
#[unsafe(no_mangle)]
pub extern "C" fn remanence_probe_call(number: u64, argument: u64) -> i64 {
    // SAFETY: the caller asks for what does no harm.
    unsafe { raw(number, [argument, 0, 0, 0, 0, 0]) }
}

fn handle(call: &Syscall) -> Verdict {
    if call.number != ANSWERED {
        return Verdict::Pass;
    }
    // What the program has in its vector registers is to survive this.
    // SAFETY: it overwrites what it names.
    unsafe { std::arch::asm!("pxor xmm0, xmm0", "pxor xmm15, xmm15", out("xmm0") _, out("xmm15") _) };
    // The hook's own calls through a library are not hooked: this one would be answered by itself for ever.
    // SAFETY: no such call.
    let nested = unsafe { libc::syscall(libc::c_long::try_from(ANSWERED).unwrap_or(-1), 0) };
    Verdict::Return(if nested == -1 { call.arguments[0].wrapping_add(1).cast_signed() } else { -1 })
}
