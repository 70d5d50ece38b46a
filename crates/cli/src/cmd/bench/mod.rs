//! `rem bench NAME`: figures and tables, reproduced with the baselines in the same run. One file per bench; what they
//! share (options, and what becomes of a report) is here.

mod transport;

use std::path::PathBuf;

use remanence_bench::report::Report;

use crate::fail::{Context as _, Fail};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand, Debug)]
enum Bench {
    /// Every operation over every carrier, beside the bare path and the peers
    Transport(transport::Args),
}

/// Options of every bench.
#[derive(clap::Args, Debug)]
struct Common {
    /// Write the report to this file as JSON; `-` is standard output, in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Draw the figure to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Fewer samples: about 30 seconds
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    match &args.bench {
        Bench::Transport(args) => transport::run(args),
    }
}

/// One end of a bench: a process that does what the controller says.
pub(crate) fn agent() -> Result<(), Fail> {
    // It has told its controller already how it ended.
    let _: std::process::ExitCode = remanence_bench::transport::agent::main();
    Ok(())
}

/// Prints, writes and draws a report as the options say.
fn publish(report: &Report, common: &Common) -> Result<(), Fail> {
    match common.json.as_deref() {
        Some(file) if file.as_os_str() == "-" => anstream::println!("{}", report.json()),
        Some(file) => {
            std::fs::write(file, report.json())
                .context(|| format!("{} cannot be written", file.display()))?;
            anstream::println!("{}", report.table());
        }
        None => anstream::println!("{}", report.table()),
    }
    common.plot.as_deref().map_or(Ok(()), |file| remanence_bench::plot::draw(report, file).map_err(Fail::new))
}
