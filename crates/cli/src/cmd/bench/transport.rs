//! `rem bench transport`.

use indicatif::{ProgressBar, ProgressStyle};
use remanence_bench::transport::{self, Options};

use super::Common;
use crate::fail::{Context as _, Fail};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench transport --quick
  rem bench transport --path udp-lo --json transport.json --plot transport.svg")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Only these paths, several times for several [default: all]
    #[arg(long = "path", value_name = "PATH", value_parser = ["udp-lo", "udp-veth", "xdp-veth", "shm"])]
    paths: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let program = std::env::current_exe().context(|| "this program cannot be found".into())?;
    let options = Options { quick: args.common.quick, program, paths: args.paths.clone() };
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{wide_bar:.cyan/dim} {pos}/{len} {msg:40}").expect("constant");
    bar.set_style(style.progress_chars("━━─"));
    let report = transport::run(&options, |done, of, what| {
        bar.set_length(of);
        bar.set_position(done);
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    super::publish(&report.map_err(Fail::new)?, &args.common)
}
