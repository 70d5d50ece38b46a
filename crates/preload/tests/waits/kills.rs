//! Programs and the daemon are killed wherever they are: what was acknowledged is there.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

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
    // Who has opened it has only read it: that is known before there is nobody to say so.
    records(&mut program, 20);
    cache.kill_daemon();
    records(&mut program, 180);
    old.becomes_what_is_there(&cache);
    // Another one finds what the first has left, keeps the program from adding to it, and has nothing to replay: the page cache has it.
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("its files have all of it"), "{said}");
    // It joins that one, and what it changes from then on is in the log that there is by now.
    records(&mut program, 100);
    assert!(cache.count("file", "absorbed") >= 90, "{:?}", cache.of("file"));
    let old = cache.old(&["file"]);
    records(&mut program, 100);
    old.becomes_what_is_there(&cache);
    program.child.kill().expect("it can be killed");
    program.child.wait().expect("it was");
    has_records(&fs::read(cache.path("file")).expect("it is there"), 1, 419);
    cache.stop();
}

/// As a release is replaced by the next one: nothing of it is lost, and nobody has to begin anew.
#[test]
fn a_daemon_is_replaced_under_programs_that_run() {
    let Some(mut cache) = Cache::new("replaced-daemon", NEVER) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.command(traps()).args(["forever", "file", "1"]));
    records(&mut program, 20);
    for round in 1..4 {
        cache.stop_and_keep();
        // Nobody has the log: it goes on by itself, and looks for the next one once in a while.
        records(&mut program, 20);
        assert_eq!(cache.start_again().expect("it was closed"), "");
        let until = Instant::now() + Duration::from_secs(60);
        let mut count = 20;
        while cache.count("file", "absorbed") < 10 {
            assert!(Instant::now() < until, "{}", cache.status());
            records(&mut program, 10);
            count += 10;
        }
        let old = cache.old(&["file"]);
        records(&mut program, 20);
        old.becomes_what_is_there(&cache);
        println!("round {round}: {count} records before it was absorbed again");
    }
    program.child.kill().expect("it can be killed");
    let upto = acknowledged(&mut program);
    program.child.wait().expect("it was");
    has_records(&fs::read(cache.path("file")).expect("it is there"), 1, upto);
    cache.stop();
}

/// What is in the middle of a change while that goes on is known to the next daemon: nobody absorbs a sync before it is over.
#[test]
fn threads_are_at_their_files_while_the_daemon_is_replaced() {
    let Some(mut cache) = Cache::new("replaced-at-work", NEVER) else { return };
    let mut command = cache.command(crate::cache::example("cache_load"));
    let mut program = Talk::with(command.args(["steps", ".", "7", "0", "3"]));
    for round in 0..6 {
        let until = Instant::now() + Duration::from_secs(60);
        while cache.counted("syncs_absorbed") < 200 {
            assert!(Instant::now() < until, "round {round}: {}", cache.status());
            (0..50).for_each(|_| drop(program.line().expect("it goes on")));
        }
        cache.stop_and_keep();
        cache.start_again().expect("it was closed");
    }
    program.child.kill().expect("it runs");
    program.child.wait().expect("it was");
    cache.stop();
}

/// More than a server has connections.
#[test]
fn some_hundred_processes_have_a_log_together() {
    let Some(cache) = Cache::new("hundreds", NEVER) else { return };
    let idle: Vec<Talk> = (0..300).map(|_| Talk::with(&mut cache.command("cat"))).collect();
    let until = Instant::now() + Duration::from_secs(120);
    while cache.counted("programs") < 300 {
        assert!(Instant::now() < until, "{}", cache.status());
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.command(traps()).args(["forever", "file", "1"]));
    records(&mut program, 20);
    assert!(cache.count("file", "absorbed") > 10, "{:?}", cache.of("file"));
    program.end();
    idle.into_iter().for_each(Talk::end);
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
        let begun = Instant::now();
        // More than it can have said before.
        (0..600).for_each(|_| drop(program.line().expect("it goes on")));
        assert!(begun.elapsed().as_secs() < 8, "round {round}: {:?}", begun.elapsed());
    }
    program.child.kill().expect("it runs");
    program.child.wait().expect("it was");
    cache.stop();
}
