//! Programs that write and sync for as long as they are let, and say what was acknowledged. They know nothing of a cache.
//!
//! `cache_load syncs FILE`: for each byte on its standard input a record and a sync, and a line that says how that went: "ok", or the error's number.
//! `cache_load steps DIRECTORY SEED PROCESS THREADS`: each thread takes the steps of its seed on a file of its own, and appends records to one of all.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

#[path = "../tests/waits/model.rs"]
#[expect(dead_code, reason = "the test has the other half")]
mod model;

use model::{RECORD, Step, bytes, numbers, record};

/// More than anybody lets it take.
const STEPS: u64 = 200_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |n: usize| -> u64 { arguments[n].parse().expect("a number") };
    match arguments[1].as_str() {
        "syncs" => syncs(&arguments[2]),
        "steps" => {
            let (directory, seed, process) = (Path::new(&arguments[2]), number(3), number(4));
            std::thread::scope(|scope| {
                for thread in 0..number(5) {
                    scope.spawn(move || steps(directory, seed, process, thread));
                }
            });
        }
        other => panic!("nobody knows how to {other}"),
    }
}

fn said(done: std::io::Result<()>) -> String {
    match done {
        Ok(()) => "ok".to_owned(),
        Err(why) => format!("{}", why.raw_os_error().unwrap_or(-1)),
    }
}

fn syncs(path: &str) {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).expect("room");
    for n in 0_u64.. {
        if std::io::stdin().read_exact(&mut [0]).is_err() {
            return;
        }
        let done = file.write_all_at(&record(0, 0, 0, n), n * RECORD as u64).and_then(|()| file.sync_data());
        println!("{}", said(done));
    }
}

fn steps(directory: &Path, seed: u64, process: u64, thread: u64) {
    let mut open = File::options();
    let open = open.read(true).write(true).create(true).truncate(false);
    let file = open.open(directory.join(format!("own-{process}-{thread}"))).expect("room");
    let all = File::options().append(true).create(true).open(directory.join("all")).expect("room");
    let mut numbers = numbers(seed, process, thread);
    let mut len = file.metadata().expect("a file").len();
    for taken in 1..STEPS {
        let step = Step::draw(&mut numbers, len);
        match step {
            Step::Write { offset, len, word } => file.write_all_at(&bytes(word, len), offset),
            Step::Append { len: more, word } => file.write_all_at(&bytes(word, more), len),
            Step::Truncate { len } => file.set_len(len),
            Step::Sync { only_data: true } => file.sync_data(),
            Step::Sync { only_data: false } => file.sync_all(),
        }
        .expect("a disk");
        len = step.len(len);
        if matches!(step, Step::Sync { .. }) {
            println!("own {thread} {taken}");
        }
        if taken % 16 == 0 {
            (&all).write_all(&record(seed, process, thread, taken)).expect("room");
            all.sync_data().expect("a disk");
            println!("all {thread} {taken}");
        }
    }
}
