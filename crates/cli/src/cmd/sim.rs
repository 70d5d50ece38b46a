//! `rem sim`: one simulated cluster, or many.

use std::time::Instant;

use remanence_sim::{Params, run as simulate};

use crate::fail::Fail;
use crate::signals::Stop;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem sim --seed 42              that run, always the same
  rem sim --seed 0 --count 5000  those runs; the first that fails is told and ends it")]
pub(crate) struct Args {
    /// The seed, which decides everything
    #[arg(long)]
    seed: u64,
    /// Run so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
    /// Work requests of each run
    #[arg(long, value_name = "N")]
    ops: Option<u32>,
    /// Print one JSON object for each run
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let stop = Stop::listen()?;
    let mut params = Params::default();
    if let Some(ops) = args.ops {
        params.ops = ops;
    }
    let began = Instant::now();
    let mut done = 0;
    for n in 0..args.count {
        let seed = args.seed.wrapping_add(n);
        let outcome = simulate(seed, &params);
        if args.json {
            anstream::println!("{}", outcome.to_json());
        } else if args.count == 1 || !outcome.passed() {
            anstream::println!("{outcome}");
        }
        if !outcome.passed() {
            return Err(Fail::new(format!("seed {seed} failed; `rem sim --seed {seed}` replays it")));
        }
        done += 1;
        if stop.is_asked() {
            break;
        }
    }
    if args.count > 1 && !args.json {
        anstream::println!("{} passed in {}", ui::count(done, "seed"), ui::time(began.elapsed()));
    }
    Ok(())
}
