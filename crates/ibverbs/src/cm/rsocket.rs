//! The names of rsockets, so that programs that could use them start; nothing is behind them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno;

/// Tells once what a program cannot find out from `ENOSYS`, least of all one under librspreload, which thinks that it has a socket.
fn say() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "remanence: rsockets (rsocket(7), librspreload) are not implemented; run the program without librspreload, over TCP"
        );
    }
}

macro_rules! absent {
    ($($name:ident)*) => {
        $(
            /// rsocket(7), which is not here: -1 and `ENOSYS`, in whatever width the caller takes.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> isize {
                say();
                errno::set(libc::ENOSYS);
                -1
            }
        )*
    };
}

absent!(
    rem_raccept rem_rbind rem_rclose rem_rconnect rem_repoll_create rem_repoll_ctl rem_repoll_wait rem_rfcntl rem_rgetpeername rem_rgetsockname rem_rgetsockopt
    rem_riomap rem_riounmap rem_riowrite rem_rlisten rem_rpoll rem_rread rem_rreadv rem_rrecv rem_rrecvfrom
    rem_rrecvmsg rem_rselect rem_rsend rem_rsendmsg rem_rsendto rem_rsetsockopt rem_rshutdown rem_rsocket
    rem_rwrite rem_rwritev
);
