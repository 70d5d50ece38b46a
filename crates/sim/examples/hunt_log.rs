//! Runs a range of seeds of the replicated log and shows those that fail: `cargo run --release --example hunt_log -- 0 10000`.
//!
//! More arguments: lines of the trace to show, how many failures to show, servers, acknowledgements, and the mode.

use remanence_coord::log::Mode;
use remanence_sim::cluster::Counts;
use remanence_sim::cluster::log::{Params, Work, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).map(|arg| arg.parse::<u64>().expect("a number"));
    let (first, last) = (number(0).unwrap_or(0), number(1).unwrap_or(1000));
    let quorum = number(4).zip(number(5)).map(|(servers, acks)| (servers as u16, acks as u16));
    let mode = args.get(6).map(|name| *Mode::ALL.iter().find(|mode| mode.name() == name).expect("a mode"));
    let trace_lines = number(2).map_or(20, |lines| lines as usize);
    let params = Params { quorum, mode, trace_lines, ..Params::default() };
    let show = number(3).unwrap_or(3);
    let (mut failed, mut counts, mut work) = (0, Counts::default(), Work::default());
    for seed in first..last {
        let outcome = run(seed, &params);
        if !outcome.passed() {
            println!("{outcome}\n");
            failed += 1;
            if failed == show {
                println!("at seed {seed}");
                break;
            }
        }
        counts += outcome.counts;
        work += outcome.work;
    }
    println!("{counts:?}\n{work:?}");
    println!("{failed} of {} seeds failed", last - first);
    std::process::exit(i32::from(failed > 0));
}
