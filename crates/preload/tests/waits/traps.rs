//! One trap a test: what the log has is what the file is.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use crate::cache::{Cache, Talk, traps};

/// So many entries that nothing is carried out by itself.
const NEVER: u64 = 3000;

/// What became of the syncs behind a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Syncs {
    Absorbed,
    Kernel,
}

fn trap(name: &str, syncs: Syncs) {
    trap_under(name, name, syncs, |cache| cache.command(traps()));
}

/// Runs a trap, and replays the log onto the file as it was before.
pub(crate) fn trap_under(place: &str, name: &str, syncs: Syncs, under: fn(&Cache) -> Command) {
    let Some(cache) = Cache::new(place, NEVER) else { return };
    fs::write(cache.path("file"), [7; 10_000]).expect("room");
    let mut program = Talk::with(under(&cache).args([name, "file"]));
    program.until("ready");
    let old = cache.old(&["file"]);
    let before = [cache.counted("syncs_absorbed"), cache.counted("syncs_kernel")];
    assert!(before[0] > 0, "syncs are absorbed before the trap: {:?}", cache.of("file"));
    program.say("\n");
    program.until("done");
    let after = [cache.counted("syncs_absorbed"), cache.counted("syncs_kernel")];
    let more = [after[0] > before[0], after[1] > before[1]];
    assert_eq!(more, [syncs == Syncs::Absorbed, syncs == Syncs::Kernel], "{:?}", cache.of("file"));
    match syncs {
        Syncs::Absorbed => old.becomes_what_is_there(&cache),
        // The log says nothing that would undo what the kernel has synced.
        Syncs::Kernel => cache.old(&["file"]).becomes_what_is_there(&cache),
    }
    program.end();
    cache.stop();
}

#[test]
fn writes_of_all_sizes() {
    trap("plain", Syncs::Absorbed);
}

#[test]
fn a_write_of_megabytes() {
    trap("big", Syncs::Absorbed);
}

#[test]
fn descriptors_that_were_duplicated_and_numbers_that_are_used_again() {
    trap("dup", Syncs::Absorbed);
}

#[test]
fn a_forked_child_that_shares_the_offset() {
    trap("fork", Syncs::Absorbed);
}

#[test]
fn two_processes_that_append() {
    trap("append", Syncs::Absorbed);
}

#[test]
fn programs_that_were_spawned_and_executed() {
    trap("spawn", Syncs::Absorbed);
}

#[test]
fn vectors() {
    trap("vectors", Syncs::Absorbed);
}

#[test]
fn a_write_that_syncs() {
    trap("dsync", Syncs::Absorbed);
}

#[test]
fn lengths_holes_and_ranges() {
    trap("length", Syncs::Absorbed);
}

#[test]
fn a_write_that_is_cut_short() {
    trap("limit", Syncs::Absorbed);
}

#[test]
fn threads_whose_writes_overlap() {
    trap("threads", Syncs::Absorbed);
}

#[test]
fn a_ring_is_refused() {
    trap("ring", Syncs::Absorbed);
}

#[test]
fn descriptors_that_were_all_closed() {
    trap("closed", Syncs::Absorbed);
}

#[test]
fn a_write_around_the_page_cache_that_is_refused_and_one_that_is_not() {
    trap("direct", Syncs::Kernel);
}

#[test]
fn a_file_that_is_mapped() {
    trap("map", Syncs::Kernel);
}

#[test]
fn a_copy_in_the_kernel() {
    trap("copy", Syncs::Kernel);
}

/// It makes durable what may be newer than what the log has of it, so all of that is in its files before.
#[test]
fn a_sync_of_all_that_there_is() {
    for of in [&[][..], &["--file-system", "file"]] {
        let Some(cache) = Cache::new("all", NEVER) else { return };
        fs::write(cache.path("file"), [7; 10_000]).expect("room");
        let mut program = Talk::with(cache.command(traps()).args(["plain", "file"]));
        program.until("ready");
        program.say("\n");
        program.until("done");
        assert!(cache.counted("used") > 0);
        assert!(cache.command("sync").args(of).status().expect("it runs").success());
        assert_eq!(cache.counted("used"), 0, "{of:?}");
        program.end();
        cache.stop();
    }
}

#[test]
fn a_foreign_writer() {
    let Some(cache) = Cache::new("foreign", NEVER) else { return };
    fs::write(cache.path("file"), [7; 10_000]).expect("room");
    let mut program = Talk::with(cache.command(traps()).args(["plain", "file"]));
    program.until("ready");
    let absorbed = cache.count("file", "absorbed");
    assert!(absorbed > 0 && cache.counted("used") > 0);
    // Over what the log has of it.
    let file = fs::File::options().write(true).open(cache.path("file")).expect("it is there");
    file.write_all_at(&[b'f'; 9000], 0).expect("room");
    program.say("\n");
    program.until("done");
    assert_eq!(cache.count("file", "absorbed"), absorbed, "the kernel has synced it");
    assert_eq!(cache.counted("used"), 0, "what is older is in its file, and is never replayed");
    cache.old(&["file"]).becomes_what_is_there(&cache);
    program.end();
    cache.stop();
}

#[test]
fn a_log_that_is_full_many_times_over() {
    let Some(cache) = Cache::new("full", 64) else { return };
    fs::write(cache.path("file"), []).expect("room");
    let mut program = Talk::with(cache.command(traps()).args(["big", "file"]));
    program.until("ready");
    program.say("\n");
    program.until("done");
    program.end();
    for _ in 0..12 {
        let mut program = Talk::with(cache.command(traps()).args(["big", "file"]));
        program.until("ready");
        program.say("\n");
        program.until("done");
        program.end();
    }
    cache.drain();
    cache.old(&["file"]).becomes_what_is_there(&cache);
    assert_eq!(cache.counted("used"), 0);
    assert!(cache.counted("tail") > 2 * 4096, "it went round");
    cache.stop();
}
