//! Runs a range of seeds and shows those that fail: `cargo run --release --example hunt -- 0 10000`.
//!
//! More arguments: lines of the trace to show, and work requests of a run.

use remanence_sim::{Params, run};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (first, last) = (args.next().unwrap_or(0), args.next().unwrap_or(1000));
    let mut params = Params::default();
    params.trace_lines = args.next().map_or(20, |lines| lines as usize);
    params.ops = args.next().map_or(params.ops, |ops| ops as u32);
    let mut failed = 0;
    for seed in first..last {
        let outcome = run(seed, &params);
        if !outcome.passed() {
            println!("{outcome}\n");
            failed += 1;
        }
    }
    println!("{failed} of {} seeds failed", last - first);
    std::process::exit(i32::from(failed > 0));
}
