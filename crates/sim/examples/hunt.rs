//! Runs a range of seeds and shows those that fail: `cargo run --example hunt -- 0 10000`.

use remanence_sim::{Params, run};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (first, last) = (args.next().unwrap_or(0), args.next().unwrap_or(1000));
    let lines = args.next().unwrap_or(20) as usize;
    let mut failed = 0;
    for seed in first..last {
        let outcome = run(seed, &Params { trace_lines: lines, ..Params::default() });
        if !outcome.passed() {
            println!("{outcome}\n");
            failed += 1;
        }
    }
    println!("{failed} of {} seeds failed", last - first);
    std::process::exit(i32::from(failed > 0));
}
