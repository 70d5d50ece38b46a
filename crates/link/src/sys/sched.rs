//! What a thread tells the scheduler about itself.

use std::mem;

/// `struct sched_attr` of linux/sched/types.h, in its second version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

/// The shortest slice that the kernel takes: 100 us.
const SLICE_NANOS: u64 = 100_000;

/// What a thread may ask for that has the privilege (`RLIMIT_NICE`, or root): nine parts of ten of a core that it shares
/// with one other, for as long as it has something to do.
const NICE: i32 = -10;

/// Tells the scheduler that this thread runs briefly and often, and that others wait for what it does. Of two ordinary threads that share a core, one that
/// wakes up with a shorter slice than the other's may interrupt it at once; with equal slices it would wait for the
/// next tick, up to 4 ms, while the other spins. A thread that has used up its share of the core waits all the same; with
/// the privilege for it, its share is made larger.
///
/// Kernels before 6.12 take no notice, and threads of other scheduling classes are left alone.
pub fn ask_for_short_slices() {
    let mut attr = Attr::default();
    let size = u32::try_from(mem::size_of::<Attr>()).expect("56 bytes");
    // SAFETY: the kernel writes at most `size` bytes to `attr`; 0 is this thread.
    let found = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    if found != 0 || attr.policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    // Utilisation is said by flags only, and none is set; the policy is as it was.
    (attr.size, attr.flags, attr.runtime) = (size, 0, SLICE_NANOS);
    let set = |attr: Attr| {
        // SAFETY: the kernel reads `attr`, whose size it is told. Its refusal changes nothing.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0 }
    };
    let nicer = Attr { nice: attr.nice.min(NICE), ..attr };
    let _ = set(nicer) || set(attr);
}

/// The core that this thread runs on, at this moment; a negative number where the system doesn't say. Where the C library
/// keeps it in a thread's own memory (rseq, glibc 2.35) that is two loads.
#[inline]
#[must_use]
pub fn current_cpu() -> i32 {
    // SAFETY: it takes nothing and changes nothing.
    unsafe { libc::sched_getcpu() }
}

/// The signals by which a thread learns of its own faults.
pub const FAULTS: [i32; 7] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Calls `start`, which starts a thread that takes no signals: those of a program are for the program's own threads, whose
/// calls they end. [`FAULTS`] are not among them.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    /// Gives the thread the signals back that it had.
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: a set that the kernel filled; it cannot fail with that.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: sets are numbers, for which zeros are values; the calls fill them, and read them.
    let _restore = unsafe {
        let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&raw mut all);
        for fault in FAULTS {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        Restore(before)
    };
    // Threads begin with the mask of the one that starts them.
    start()
}

/// Cores that are online.
#[must_use]
pub fn cores() -> u32 {
    // SAFETY: reads a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(cores).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that this thread takes not, as proc(5) has them.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("proc(5)");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("proc(5)");
        u64::from_str_radix(line.trim(), 16).expect("hexadecimal")
    }

    #[test]
    fn a_thread_of_ours_takes_no_signal_but_its_own_faults() {
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let before = blocked();
        let theirs = without_signals(|| std::thread::spawn(blocked)).join().expect("it ends");
        assert_eq!(blocked(), before, "the one that starts it has its own back");
        for signal in [libc::SIGALRM, libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD] {
            assert_ne!(theirs & bit(signal), 0, "signal {signal}");
        }
        assert_eq!(theirs & (bit(libc::SIGBUS) | bit(libc::SIGSEGV)), 0);
    }

    #[test]
    fn asking_keeps_the_policy_and_makes_nothing_worse() {
        let read = || {
            let mut attr = Attr::default();
            // SAFETY: as above.
            let found = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, 56, 0) };
            assert_eq!(found, 0);
            (attr.policy, attr.nice)
        };
        let before = read();
        ask_for_short_slices();
        let after = read();
        assert_eq!(after.0, before.0);
        assert!(after.1 == before.1 || after.1 == NICE, "{before:?} {after:?}");
        assert!(cores() >= 1);
    }
}
