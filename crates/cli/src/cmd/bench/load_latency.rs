//! `rem bench load-latency`.

use remanence_bench::load_latency::{self, Options, figure};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench load-latency --quick
  rem bench load-latency --json load-latency.json --plot load-latency.svg

Offered load: one client whose requests are due at the times of a Poisson process, from 10 to 120 % of what saturates the service; a
latency counts from when the request was due. Clients: 1, 4, 16, 64 and 256, each of which asks again as soon as it is answered. Both
for calls, GET and PUT of the store and durable appends, beside bare UDP, and Redis and memcached where they are installed:
apt-get install redis-server memcached")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let options = Options { effort: args.common.effort(), program: super::program(None)? };
    let (bar, progress) = super::progress();
    let report = load_latency::run(&options, progress);
    bar.finish_and_clear();
    let report = report.map_err(Fail::new)?;
    super::tell(&report, &args.common)?;
    super::draw(&report, &args.common, figure::draw)?;
    report.whole().map_err(Fail::new)
}
