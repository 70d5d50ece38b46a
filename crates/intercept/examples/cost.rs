//! What a system call costs that a hook sees, beside a bare one: `cargo run --release -p remanence-intercept --example cost`.
//!
//! Each row is the fastest and the median of many short rounds, in nanoseconds a call. Rounds with a hook and rounds without
//! alternate, as one process has the hook and its child's child has none; each is told when to go by a pipe.
#![expect(unsafe_code, reason = "a fork before the hook, and bare calls")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::time::Instant;

use remanence_intercept::{Hook, Scope, Syscall, Verdict, install};

const ROUNDS: usize = 300;
const CALLS: u32 = 3000;
/// Signals this number to itself, 0: what `wants` refuses, lets through, and what is answered.
const REFUSED: u64 = 1;
const PASSED: u64 = 2;
const ANSWERED: u64 = 3;

/// A call with an argument that it ignores, through the C library.
fn getppid(argument: u64) {
    // SAFETY: the function takes nothing; what is in its register is only for the hook to see.
    unsafe {
        let function: unsafe extern "C" fn(u64) -> i32 =
            std::mem::transmute(libc::getppid as unsafe extern "C" fn() -> i32);
        black_box(function(argument));
    }
}

fn getuid(_: u64) {
    // SAFETY: it takes nothing.
    black_box(unsafe { libc::getuid() });
}

fn round(call: fn(u64), argument: u64) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call(black_box(argument));
    }
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// What is measured: its name, the call, and the argument.
type Row = (&'static str, fn(u64), u64);

const ROWS: [Row; 5] = [
    ("a number that nobody wants (getuid)", getuid, 0),
    ("a call that `wants` refuses (getppid)", getppid, REFUSED),
    ("a call that goes to `handle` and passes (getppid)", getppid, PASSED),
    ("a call that is answered (getppid)", getppid, ANSWERED),
    ("the same again, not hooked on either side (control)", control, 0),
];

fn control(_: u64) {
    // SAFETY: it takes nothing.
    unsafe { black_box(remanence_intercept::raw(libc::SYS_getppid as u64, [0; 6])) };
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let mut ends: [RawFd; 2] = [0; 2];
    // SAFETY: two descriptors are written, which are nobody else's.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        (std::fs::File::from_raw_fd(ends[0]), std::fs::File::from_raw_fd(ends[1]))
    }
}

fn main() {
    let (mut go, mut tell) = pipe();
    let (mut hear, mut say) = pipe();
    // SAFETY: one thread.
    if unsafe { libc::fork() } == 0 {
        // The child has no hook.
        drop(tell);
        let mut row = [0];
        while go.read_exact(&mut row).is_ok() {
            let (_, call, argument) = ROWS[usize::from(row[0])];
            if say.write_all(&round(call, argument).to_le_bytes()).is_err() {
                break;
            }
        }
        return;
    }
    drop((go, say));
    let hook = Hook {
        wants: |call: &Syscall| call.arguments[0] >= PASSED,
        handle: |call: &Syscall| {
            if call.arguments[0] == PASSED { Verdict::Pass } else { Verdict::Return(1) }
        },
    };
    install(hook, [110], Scope::Libc).unwrap_or_else(|why| panic!("{why}"));
    println!("{:<52} {:>8} {:>8} {:>8}  (median ns)", "", "bare", "hooked", "more");
    for (index, (name, call, argument)) in ROWS.into_iter().enumerate() {
        let (mut bare, mut hooked) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            tell.write_all(&[u8::try_from(index).expect("few")]).expect("the child");
            let mut answer = [0; 8];
            hear.read_exact(&mut answer).expect("the child");
            bare.push(f64::from_le_bytes(answer));
            hooked.push(round(call, argument));
        }
        let median = |rounds: &mut Vec<f64>| {
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        };
        let (bare, hooked) = (median(&mut bare), median(&mut hooked));
        println!("{name:<52} {bare:>8.1} {hooked:>8.1} {:>8.1}", hooked - bare);
    }
}
