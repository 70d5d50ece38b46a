//! `rem cache recover`, `fsck` and `dump`, on logs that the library made.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{rem, run};
use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::format::{self, Geometry, Promise};
use remanence_cache::log::Log;
use remanence_cache::op::{Name, Op};
use remanence_cache::table::FileTable;
use remanence_cache::words::LocalWords;
use remanence_cache_live::recover::real::identity;
use remanence_pmem::Region;
use remanence_pmem::layout::Uuid;
use serde_json::Value;

const GEOMETRY: Geometry = Geometry { entries: 64, slot: 512, files: 4, path_max: 256 };

/// A log with a write, a name and a length that its file lacks.
fn dirty(directory: &Path) -> (Region, PathBuf, PathBuf) {
    let (log, data) = (directory.join("app.log"), directory.join("app.db"));
    fs::write(&data, b"before").expect("written");
    let region = format::file_options().create(GEOMETRY.size()).open(&log).expect("made");
    let layout = format::make(&region, Uuid([4; 16]), GEOMETRY, 8, Promise::AtSync).expect("made");
    let open = Log::start(region.clone(), LocalWords::default(), Promise::AtSync).expect("empty");
    let mut table = FileTable::empty(region.clone(), layout);
    let file = table.register(&identity(&data).expect("there"), open.tail()).expect("room");
    let place = table.register(&identity(directory).expect("there"), open.tail()).expect("room");
    let at = Name { directory: place, name: b"other" };
    let now = fs::metadata(&data).and_then(|data| data.modified()).expect("there");
    let now = now.duration_since(std::time::UNIX_EPOCH).expect("later").as_nanos() as u64;
    for op in [
        Op::Write { file, offset: 0, bytes: b"behind" },
        Op::Link { file, at },
        Op::Settled { file, upto: 0 },
        Op::Truncate { file, len: 3 },
    ] {
        let end = open.append(Owner::new(1), &op, Mtime(now)).expect("room");
        open.persist_up_to(Owner::new(1), end).expect("a disk");
    }
    (region, log, data)
}

#[test]
fn a_log_is_checked_printed_and_recovered() {
    let directory = tempfile::tempdir().expect("a directory");
    let (region, log, data) = dirty(directory.path());
    let said = run(rem().args(["cache", "recover"]).arg(&log));
    assert_eq!(said.status, Some(1));
    assert!(said.stderr.contains("is in use by process"), "{}", said.stderr);
    drop(region);

    let checked = run(rem().args(["cache", "fsck", "--json"]).arg(&log)).json();
    assert_eq!(
        (&checked["clean"], &checked["writes"], &checked["settled"]),
        (&false.into(), &1.into(), &1.into())
    );
    assert_eq!(checked["files"][0]["path"], data.to_str().expect("UTF-8"));
    let lines = String::from_utf8(run(rem().args(["cache", "dump"]).arg(&log)).good()).expect("UTF-8");
    assert_eq!(lines.lines().count(), 4, "{lines}");
    let json =
        String::from_utf8(run(rem().args(["cache", "dump", "--json"]).arg(&log)).good()).expect("UTF-8");
    let first: Value = serde_json::from_str(json.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&first["kind"], &first["bytes"]), (&"write".into(), &6.into()));

    let was = fs::read(&log).expect("there");
    let dry = run(rem().args(["cache", "recover", "--dry-run", "--json"]).arg(&log)).json();
    assert_eq!((&dry["files"][0]["state"], &dry["outcome"]), (&"replayed".into(), &"not-begun".into()));
    assert_eq!((fs::read(&log).expect("there"), fs::read(&data).expect("there")), (was, b"before".to_vec()));
    let table = run(rem().args(["cache", "recover", "--dry-run"]).arg(&log)).good();
    assert!(String::from_utf8_lossy(&table).contains("nothing was changed"));
    let done = run(rem().args(["cache", "recover", "--json"]).arg(&log)).json();
    assert_eq!(done["outcome"], "recovered", "{done}");
    assert_eq!(fs::read(&data).expect("there"), b"beh");
    assert_eq!(fs::read(directory.path().join("other")).expect("there"), b"beh");
    let again = run(rem().args(["cache", "recover", "--json"]).arg(&log)).json();
    assert_eq!(again["outcome"], "clean");
    assert_eq!(run(rem().args(["cache", "fsck", "--json"]).arg(&log)).json()["clean"], true);
}

#[test]
fn damage_is_said_and_what_is_behind_it_is_held_until_it_is_given_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let (region, log, data) = dirty(directory.path());
    let layout = format::Layout::read(&region).expect("whole");
    region.write(layout.data(64), b"rotten");
    region.psync().expect("a disk");
    drop(region);
    let said = run(rem().args(["cache", "fsck"]).arg(&log));
    assert_eq!(said.status, Some(1));
    assert!(said.stderr.contains("an entry is damaged that was durable"), "{}", said.stderr);
    let said = run(rem().args(["cache", "recover"]).arg(&log));
    assert_eq!(said.status, Some(1));
    assert!(said.stderr.contains("--skip-damage"), "{}", said.stderr);
    assert_eq!(fs::read(&data).expect("there"), b"before");
    let done = run(rem().args(["cache", "recover", "--skip-damage", "--json"]).arg(&log)).json();
    assert_eq!(done["outcome"], "recovered", "{done}");
    assert_eq!(fs::read(&data).expect("there"), b"bef");
}

#[test]
fn what_is_only_beside_a_file_is_for_somebody_to_decide() {
    let directory = tempfile::tempdir().expect("a directory");
    let (region, log, data) = dirty(directory.path());
    drop(region);
    // Somebody else's bytes, where the log has some, and later than it can explain.
    fs::write(&data, b"theirs").expect("room");
    let late = std::time::SystemTime::now() + std::time::Duration::from_secs(100);
    fs::File::options()
        .write(true)
        .open(&data)
        .and_then(|data| data.set_modified(late))
        .expect("its owner may");
    let said = run(rem().args(["cache", "recover"]).arg(&log));
    assert_eq!(said.status, Some(3), "{}", said.stderr);
    assert!(said.stderr.contains("app.db") && said.stderr.contains("NAME.rem-recovered"), "{}", said.stderr);
    assert_eq!(fs::read(&data).expect("there"), b"theirs");
    // It has two names.
    let beside: Vec<_> = ["app.db", "other"]
        .iter()
        .filter_map(|name| fs::read(directory.path().join(format!("{name}.rem-recovered"))).ok())
        .collect();
    assert_eq!(beside, [b"beh"]);
    // It was told, and nothing is left in the log.
    let again = run(rem().args(["cache", "recover", "--json"]).arg(&log));
    assert_eq!((again.status, &again.json()["outcome"]), (Some(0), &"clean".into()));
}

/// What it says would be written to files that only root may write to.
#[test]
fn a_log_of_another_user_is_not_recovered() {
    let directory = tempfile::tempdir().expect("a directory");
    let (region, log, data) = dirty(directory.path());
    drop(region);
    if std::os::unix::fs::chown(&log, Some(65_534), None).is_err() {
        println!("SKIPPED: only root can give a file to another user");
        return;
    }
    run(rem().args(["cache", "recover"]).arg(&log)).bad("belongs to another user (number 65534)");
    run(rem().args(["cache", "start", "--log"]).arg(&log)).bad("belongs to another user (number 65534)");
    assert_eq!(fs::read(&data).expect("there"), b"before");
    std::os::unix::fs::chown(&log, Some(rustix::process::geteuid().as_raw()), None).expect("as above");
    run(rem().args(["cache", "recover"]).arg(&log)).good();
    assert_eq!(fs::read(&data).expect("there"), b"beh");
}

#[test]
fn what_is_no_log_is_refused_with_a_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    let (region, log, _) = dirty(directory.path());
    drop(region);
    let whole = fs::read(&log).expect("there");
    let newer = {
        let mut bytes = whole.clone();
        for copy in [0, 4096] {
            bytes[copy + 8] = 9;
            bytes[copy + 76] ^= 1;
        }
        bytes
    };
    let damaged = {
        let mut bytes = whole.clone();
        [20, 4096 + 20].into_iter().for_each(|at| bytes[at] ^= 1);
        bytes
    };
    let other = [b"SQLite format 3\0".to_vec(), vec![0; 20_000]].concat();
    for (name, bytes, sentence) in [
        ("empty", vec![], "it has no log"),
        ("blank", vec![0; 20_000], "the medium is blank"),
        ("other", other, "something else than a log"),
        ("newer", newer, "is of version 9, and this release reads versions 1 and 2"),
        ("damaged", damaged, "damaged"),
        ("truncated", whole[..20_000].to_vec(), "of which 20000 are left"),
    ] {
        let path = directory.path().join(name);
        fs::write(&path, &bytes).expect("written");
        for verb in [&["recover"][..], &["recover", "--dry-run"], &["fsck"], &["dump"]] {
            let said = run(rem().arg("cache").args(verb).arg(&path));
            assert_eq!(said.status, Some(1), "{verb:?} {name}");
            assert!(said.stderr.contains(sentence), "{verb:?} {name}: {}", said.stderr);
            assert!(
                said.stderr.contains(name) && said.stderr.lines().count() == 1,
                "{verb:?}: {}",
                said.stderr
            );
            assert_eq!(fs::read(&path).expect("there"), bytes, "{verb:?} {name} changes nothing");
        }
    }
    let said = run(rem().args(["cache", "fsck", "--json"]).arg(directory.path().join("absent")));
    let error: Value = serde_json::from_str(&said.stderr).expect("JSON");
    assert!(error["error"].as_str().is_some_and(|error| error.contains("does not exist")), "{error}");
}
