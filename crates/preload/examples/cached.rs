//! A daemon of the write cache that lives as long as its standard input: what the tests run programs with.
//!
//! `cached LOG [BATCH [WORD]]`; it says "ready" when programs can join. The word `strict` has each change durable when it returns, and `aged` drains what is half a second old.

use std::os::fd::AsFd as _;

use remanence_cache_live::daemon::{Options, Paths, serve};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let log = arguments.next().expect("the path of a log").into();
    let batch = arguments.next().map(|batch| batch.parse().expect("a number of entries"));
    let word = arguments.next().unwrap_or_default();
    let (strict, aged) = (word == "strict", word == "aged");
    let drain_after = aged.then_some(std::time::Duration::from_millis(500));
    let paths = Paths::default();
    let options = Options { log, entries: Some(4096), batch, paths, copies: None, strict, drain_after };
    let ready = |recovered: Option<&str>| match recovered {
        Some(recovered) => println!("{recovered}\nready"),
        None => println!("ready"),
    };
    if let Err(why) = serve(&options, std::io::stdin().as_fd(), ready) {
        eprintln!("{why}");
        std::process::exit(1);
    }
}
