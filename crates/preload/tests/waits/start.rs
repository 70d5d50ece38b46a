//! A daemon that is started on a log that nobody has closed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, SystemTime};

use crate::cache::{Cache, Old, Talk, traps};
use crate::loss;

const NEVER: u64 = 3000;

/// A file whose last changes are in the log of a daemon that was killed, its program, and the file as it was before these.
fn left(cache: &mut Cache, trap: &str) -> (Talk, Old) {
    fs::write(cache.path("file"), [7; 10_000]).expect("room");
    let mut program = Talk::with(cache.command(traps()).args([trap, "file"]));
    program.until("ready");
    let old = cache.old(&["file"]);
    program.say("\n");
    program.until("done");
    cache.kill_daemon();
    (program, old)
}

fn names(cache: &Cache) -> Vec<String> {
    let entries = fs::read_dir(&cache.place).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn after_a_kill_nothing_is_undone_that_the_log_does_not_have() {
    let Some(mut cache) = Cache::new("left", NEVER) else { return };
    let (program, _) = left(&mut cache, "plain");
    // It goes on for as long as it likes: somebody else writes where the log has something, and a file is gone that it has entries of.
    let file = File::options().write(true).open(cache.path("file")).expect("it is there");
    file.write_all_at(&[b'f'; 5000], 100).expect("room");
    let now = fs::read(cache.path("file")).expect("it is there");
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("its files have all of it"), "{said}");
    assert_eq!(cache.counted("used"), 0);
    assert!(fs::read(cache.path("file")).expect("it is there") == now, "nothing was replayed");
    assert_eq!(names(&cache), ["file", "log", "log.sock"], "nothing is beside it");
    program.end();
    cache.stop();
}

#[test]
fn after_a_kill_a_file_that_was_removed_is_nobodys_loss() {
    let Some(mut cache) = Cache::new("removed", NEVER) else { return };
    let (program, _) = left(&mut cache, "plain");
    fs::remove_file(cache.path("file")).expect("it is there");
    program.end();
    cache.start_again().expect("nobody has to decide anything");
    assert_eq!(names(&cache), ["log", "log.sock"]);
    cache.stop();
}

#[test]
fn after_the_loss_of_the_machine_it_is_replayed_wherever_a_start_is_cut_short() {
    let Some(mut cache) = Cache::new("lost", NEVER) else { return };
    let (program, old) = left(&mut cache, "big");
    program.end();
    let now = fs::read(cache.path("file")).expect("it is there");
    loss::feign(&cache, &old);
    assert!(fs::read(cache.path("file")).expect("it is there") != now);
    for milliseconds in 0..24 {
        cache.start_and_kill(Duration::from_millis(milliseconds));
    }
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.is_empty() || said.contains("was not closed"), "{said}");
    assert!(fs::read(cache.path("file")).expect("it is there") == now, "all of it is there");
    assert_eq!(names(&cache), ["file", "log", "log.sock"]);
    cache.stop();
}

#[test]
fn a_recovery_says_how_much_it_has_brought_where() {
    let Some(mut cache) = Cache::new("told", NEVER) else { return };
    let (program, old) = left(&mut cache, "plain");
    program.end();
    let now = fs::read(cache.path("file")).expect("it is there");
    loss::feign(&cache, &old);
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("is recovered: ") && said.ends_with("of its files and names\n"), "{said}");
    assert!(fs::read(cache.path("file")).expect("it is there") == now);
    cache.stop();
}

#[test]
fn a_page_cache_that_lacks_what_the_log_has_is_not_believed() {
    let Some(mut cache) = Cache::new("lacks", NEVER) else { return };
    let (program, old) = left(&mut cache, "plain");
    program.end();
    let now = fs::read(cache.path("file")).expect("it is there");
    loss::put_back(&old);
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("is recovered: "), "{said}");
    assert!(fs::read(cache.path("file")).expect("it is there") == now);
    cache.stop();
}

#[test]
fn what_somebody_has_to_decide_is_not_begun() {
    let Some(mut cache) = Cache::new("decide", NEVER) else { return };
    let (program, old) = left(&mut cache, "plain");
    loss::feign(&cache, &old);
    // Its program goes on: it would be written to by both.
    let refused = cache.start_again().expect_err("a program is there");
    assert!(refused.contains("still run (process "), "{refused}");
    assert!(refused.contains(&program.child.id().to_string()), "{refused}");
    program.end();
    let log = fs::read(cache.log()).expect("it is there");
    // Somebody else's bytes, where the log has something, and later than the log can explain.
    let file = File::options().write(true).open(cache.path("file")).expect("it is there");
    file.write_all_at(&[b'f'; 9000], 0).expect("room");
    file.set_modified(SystemTime::now() + Duration::from_secs(100)).expect("its owner may");
    let refused = cache.start_again().expect_err("somebody has to say whose bytes these are to be");
    assert!(
        refused.contains("somebody else has changed") && refused.contains("rem cache recover"),
        "{refused}"
    );
    let gone = cache.path("elsewhere");
    fs::rename(cache.path("file"), &gone).expect("it is there");
    let elsewhere = fs::read(&gone).expect("it is there");
    fs::remove_file(&gone).expect("it is there");
    let refused = cache.start_again().expect_err("somebody has to say where the file is");
    assert!(refused.contains("--set-aside DIRECTORY"), "{refused}");
    assert_eq!(elsewhere[..9000], [b'f'; 9000], "nothing was written to it");
    assert!(fs::read(cache.log()).expect("it is there") == log, "the log is as it was");
}
