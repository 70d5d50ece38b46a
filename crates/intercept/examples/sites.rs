//! Says of each program or library that it is given what a hook would see of it: `sites /bin/sort /lib/x86_64-linux-gnu/libc.so.6`.

use remanence_intercept::inspect;

fn main() {
    for path in std::env::args().skip(1) {
        match inspect(&path) {
            Ok(report) => {
                let patched = report.sites - report.unpatched.len();
                println!("{path}: {} system calls, {patched} of which can be patched", report.sites);
                for (site, why) in &report.unpatched {
                    println!("  {site:#x}: {why}");
                }
                for obstacle in report.obstacles() {
                    println!("  {obstacle}");
                }
            }
            Err(why) => println!("{why}"),
        }
    }
}
