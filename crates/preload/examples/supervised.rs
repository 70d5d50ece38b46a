//! Runs a program under a supervisor of the write cache: what the tests run programs with that no library can be loaded into.
//!
//! `supervised SOCKET PROGRAM [ARGUMENT...]`

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use remanence_cache_live::supervisor::Supervisor;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let socket: PathBuf = arguments.next().expect("the daemon's socket").into();
    let mut command = Command::new(arguments.next().expect("a program"));
    command.args(arguments);
    Supervisor::start(&socket).expect("a supervisor").watch(&mut command);
    panic!("it is not executed: {}", command.exec());
}
