//! Programs as they are, with others beside them that are not under the cache.

use std::fs;
use std::process::{Command, Stdio};

use crate::cache::{Cache, Talk};

const NEVER: u64 = 3000;

/// `sqlite3`, with others that read outside; whatever is not installed is skipped.
fn sqlite(mode: &str, files: &[&str]) {
    if Command::new("sqlite3").arg("-version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: sqlite3 is not installed");
        return;
    }
    let Some(cache) = Cache::new(mode, NEVER) else { return };
    let begin = format!("PRAGMA journal_mode={mode}; CREATE TABLE t(n INTEGER PRIMARY KEY, x BLOB);");
    let made = Command::new("sqlite3").arg(cache.path("db")).arg(begin).stdout(Stdio::null()).status();
    assert!(made.expect("sqlite3").success());
    let mut shell = Talk::with(cache.command("sqlite3").args(["-batch", "db"]));
    // In the rollback mode it waits for those who read.
    shell.say("PRAGMA busy_timeout=60000; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0;\n");
    let mut rows = 0;
    let mut insert = |shell: &mut Talk, count: u32| {
        for n in 0..count {
            rows += 1;
            shell.say("INSERT INTO t(x) VALUES (randomblob(900));\n");
            if n % 8 == 7 {
                shell.say("PRAGMA wal_checkpoint(PASSIVE);\n");
            }
        }
        // What it prints itself waits in its buffer.
        shell.say(".shell echo mark\n");
        shell.until("mark");
        rows
    };
    insert(&mut shell, 16);
    std::thread::scope(|scope| {
        let reader = || {
            for _ in 0..4 {
                let mut command = Command::new("sqlite3");
                let checks =
                    "PRAGMA busy_timeout=60000; PRAGMA integrity_check; SELECT count(*) >= 16 FROM t;";
                let output = command.arg(cache.path("db")).arg(checks).output().expect("sqlite3");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert_eq!(said, "60000\nok\n1\n", "{}", String::from_utf8_lossy(&output.stderr));
            }
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        insert(&mut shell, 16);
        readers.into_iter().for_each(|reader| reader.join().expect("it reads"));
    });
    // A reader that runs as root gives the files to their owner when it opens them, which is a change of theirs: now nobody is there.
    insert(&mut shell, 24);
    let (old, absorbed) = (cache.old(files), cache.counted("syncs_absorbed"));
    let (kernel, tail) = (cache.counted("syncs_kernel"), cache.counted("tail"));
    let rows = insert(&mut shell, 24);
    assert!(cache.counted("syncs_absorbed") >= absorbed + 24);
    // Each journal is a new file, in a directory that is synced.
    assert_eq!(cache.counted("syncs_kernel"), kernel, "{}", cache.status());
    for name in files {
        assert!(cache.count(name, "absorbed") > 0, "{name}: {:?}", cache.of(name));
    }
    // Journals that are gone may have had the log drained.
    if cache.counted("tail") == tail {
        old.becomes_what_is_there(&cache);
    }
    if mode == "wal" {
        let shm = cache.of("db-shm").expect("it is mapped");
        assert!(shm.contains("it is mapped"), "{shm}");
    }
    shell.end();
    let count = Command::new("sqlite3").arg(cache.path("db")).arg("SELECT count(*) FROM t;").output();
    assert_eq!(String::from_utf8_lossy(&count.expect("sqlite3").stdout).trim(), rows.to_string());
    cache.stop();
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    sqlite("wal", &["db", "db-wal"]);
}

#[test]
fn sqlite_with_a_rollback_journal() {
    sqlite("delete", &["db"]);
}

#[test]
fn what_coreutils_do_is_what_they_do_without() {
    let Some(cache) = Cache::new("coreutils", NEVER) else { return };
    let script = "
        set -e
        seq 1 2000 > a
        dd if=a of=b bs=777 conv=fsync status=none
        dd if=a of=b bs=100 seek=9 oflag=dsync conv=notrunc status=none
        sync b
        cp b c
        cp --reflink=auto -p c d
        mv d e
        sort -r -o e e
        sync e; echo more >> e; sync e; echo and more >> e; sync e
        seq 5 9 | tee -a e > f
        sync e
        truncate -s 5000 f
        sync f; truncate -s 100 f; sync f
        seq 1 9 | split -l 3 - part.
        install -m 600 a g
        sed -i s/1/one/ g
        touch -d 2001-01-01 g
        sync g .
        rm part.ab
        cat a b c e f g part.* > all
        sync -d all; sync -f all; sync
    ";
    let plain = cache.path("plain");
    fs::create_dir(&plain).expect("a directory");
    let status = Command::new("sh").args(["-c", script]).current_dir(&plain).status();
    assert!(status.expect("a shell").success());
    let cached = cache.path("cached");
    fs::create_dir(&cached).expect("a directory");
    let status = cache.command("sh").args(["-c", script]).current_dir(&cached).status();
    assert!(status.expect("a shell").success());
    let names = |place| {
        let entries = fs::read_dir(place).expect("a directory");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&plain), names(&cached));
    for name in names(&plain) {
        assert!(fs::read(plain.join(&name)).unwrap() == fs::read(cached.join(&name)).unwrap(), "{name:?}");
    }
    cache.stop();
}

#[test]
fn a_file_without_names_is_not_kept() {
    let Some(cache) = Cache::new("unlinked", NEVER) else { return };
    let script = "echo x > a; sync a; sync a; sync a; echo y >> a; sync a; rm a; echo done; read line";
    let mut shell = Talk::with(cache.command("sh").args(["-c", script]));
    shell.until("done");
    // The daemon hears of it before it answers the next question, or while it is being asked: it is over when this is.
    cache.drain();
    cache.drain();
    assert_eq!(cache.of("a"), None);
    shell.say("\n");
    shell.end();
    cache.stop();
}

#[test]
fn more_files_are_absorbed_than_a_shell_lets_a_daemon_open() {
    let Some(cache) = Cache::new("descriptors", NEVER) else { return };
    let script = "
        set -e
        names=$(seq -f f.%.0f 200)
        touch $names
        sync $names
        for name in $names; do echo x >> $name; done
        sync $names
    ";
    assert!(cache.command("sh").args(["-c", script]).status().expect("a shell").success());
    assert!(cache.counted("syncs_absorbed") >= 200, "{}", cache.counted("syncs_kernel"));
    cache.stop();
}
