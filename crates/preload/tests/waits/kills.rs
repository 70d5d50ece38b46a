//! Programs and the daemon are killed wherever they are: what was acknowledged is there.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use crate::cache::{Cache, Talk, traps};

const NEVER: u64 = 3000;

/// Bytes of a record of `cache_traps forever`.
const RECORD: usize = 600;

/// The highest number that a program has said before it ended.
pub(crate) fn acknowledged(program: &mut Talk) -> u64 {
    std::iter::from_fn(|| program.line()).last().map_or(0, |line| line.parse().expect("a number"))
}

/// Each record of a run is there, whole, up to one.
pub(crate) fn has_records(bytes: &[u8], run: u64, upto: u64) {
    for n in 0..=upto {
        let record = &bytes[n as usize * RECORD..][..RECORD];
        let whole = record.chunks(8).all(|word| word == (run << 32 | n).to_le_bytes());
        assert!(whole, "record {n} of {upto} in run {run}");
    }
}

pub(crate) fn records(program: &mut Talk, count: usize) {
    program.say(&".".repeat(count));
    for _ in 0..count {
        program.line().expect("it goes on");
    }
}

/// A program is killed so often, wherever it is then, and has lost nothing that it said.
pub(crate) fn is_killed(cache: &Cache, runs: u64, program: impl Fn() -> Command) {
    fs::write(cache.path("file"), []).expect("room");
    // While somebody is there, nothing is carried out by itself.
    let other = Talk::with(&mut cache.command("cat"));
    for run in 0..runs {
        let mut program = Talk::with(program().args(["forever", "file", &run.to_string()]));
        // Enough for its syncs to be absorbed.
        records(&mut program, 6);
        let absorbed = cache.count("file", "absorbed");
        let old = cache.old(&["file"]);
        program.say(&".".repeat(100));
        for _ in 0..1 + run * 4 {
            program.line().expect("it goes on");
        }
        program.child.kill().expect("it can be killed");
        let upto = acknowledged(&mut program);
        program.child.wait().expect("it was");
        has_records(&fs::read(cache.path("file")).expect("it is there"), run, upto);
        for (_, bytes) in old.replayed(cache) {
            has_records(&bytes, run, upto);
        }
        assert!(cache.count("file", "absorbed") > absorbed);
    }
    other.end();
}

#[test]
fn a_program_that_is_killed_has_lost_nothing_that_it_said() {
    let Some(cache) = Cache::new("killed", NEVER) else { return };
    is_killed(&cache, 12, || cache.command(traps()));
    cache.stop();
}

#[test]
fn without_a_daemon_the_log_says_what_the_kernel_has_synced() {
    let Some(mut cache) = Cache::new("settled", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.command(traps()).args(["forever", "file", "1"]));
    records(&mut program, 20);
    cache.kill_daemon();
    // Over what the log has: the program's next sync makes it durable, and nothing older comes back.
    let file = fs::File::options().write(true).open(cache.path("file")).expect("it is there");
    file.write_all_at(&[b'f'; 5000], 300).expect("room");
    records(&mut program, 1);
    cache.old(&["file"]).becomes_what_is_there(&cache);
    records(&mut program, 20);
    cache.old(&["file"]).becomes_what_is_there(&cache);
    program.end();
}

#[test]
fn a_program_goes_on_when_the_daemon_was_killed() {
    let Some(mut cache) = Cache::new("daemon", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.command(traps()).args(["forever", "file", "1"]));
    records(&mut program, 20);
    assert!(cache.count("file", "absorbed") > 0);
    let old = cache.old(&["file"]);
    cache.kill_daemon();
    records(&mut program, 200);
    old.becomes_what_is_there(&cache);
    // Another one finds what the first has left, keeps the program from adding to it, and has nothing to replay: the page cache has it.
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("its files have all of it"), "{said}");
    records(&mut program, 200);
    assert_eq!(cache.counted("used"), 0, "its syncs are the kernel's");
    program.child.kill().expect("it can be killed");
    program.child.wait().expect("it was");
    has_records(&fs::read(cache.path("file")).expect("it is there"), 1, 419);
    cache.stop();
}

/// Threads that are at a file whenever a daemon takes over what another one has left: none of them waits for that.
#[test]
fn programs_go_on_at_once_under_another_daemon() {
    let Some(mut cache) = Cache::new("at-once", NEVER) else { return };
    let mut command = cache.command(crate::cache::example("cache_load"));
    let mut program = Talk::with(command.args(["steps", ".", "7", "0", "3"]));
    for round in 0..6 {
        (0..200).for_each(|_| drop(program.line().expect("it goes on")));
        cache.kill_daemon();
        cache.start_again().expect("nobody has to decide anything");
        let begun = std::time::Instant::now();
        // More than it can have said before.
        (0..600).for_each(|_| drop(program.line().expect("it goes on")));
        assert!(begun.elapsed().as_secs() < 8, "round {round}: {:?}", begun.elapsed());
    }
    program.child.kill().expect("it runs");
    program.child.wait().expect("it was");
    cache.stop();
}
