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
