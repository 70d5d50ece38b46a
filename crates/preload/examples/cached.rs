//! A daemon of the write cache that lives as long as its standard input: what the tests run programs with.
//!
//! `cached LOG [BATCH]`; it says "ready" when programs can join.

use std::os::fd::AsFd as _;

use remanence_cache_live::daemon::{Options, Paths, serve};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let log = arguments.next().expect("the path of a log").into();
    let batch = arguments.next().map(|batch| batch.parse().expect("a number of entries"));
    let options = Options { log, entries: Some(4096), batch, paths: Paths::default(), copies: None };
    let ready = |recovered: Option<&str>| match recovered {
        Some(recovered) => println!("{recovered}\nready"),
        None => println!("ready"),
    };
    if let Err(why) = serve(&options, std::io::stdin().as_fd(), ready) {
        eprintln!("{why}");
        std::process::exit(1);
    }
}
