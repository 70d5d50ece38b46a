//! Signals of the program, which end the calls that wait for events, as read(2) and write(2) of the standard library end.
//! (Threads of ours take none: see `remanence_link::without_signals`.)

use std::ptr;

use remanence_link::FAULTS;

/// Whether a signal handler of this program wants calls to end early. The standard library waits in read(2) and
/// write(2), which go on by themselves after handlers with `SA_RESTART`; poll(2) never does, and does not say which handler
/// it was. (Faults, for which we have a handler too, are nobody's call.)
pub(crate) fn is_interruptible() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).any(|signal| {
        // SAFETY: all zeros are a value of this structure, and the kernel only writes it.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, ptr::null(), &raw mut action) != 0 {
                return false;
            }
            action
        };
        action.sa_sigaction != libc::SIG_DFL
            && action.sa_sigaction != libc::SIG_IGN
            && action.sa_flags & libc::SA_RESTART == 0
    })
}
