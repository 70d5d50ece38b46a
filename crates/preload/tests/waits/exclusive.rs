//! Files that nobody else has open: their syncs are absorbed without a look at their times, and who opens one, or has it in another way, is seen all the same.

use std::fs::{self, File};
use std::io::{IoSliceMut, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;

use crate::cache::{Cache, Old, Talk, example, traps};
use crate::traps::Syncs;

const NEVER: u64 = 3000;

fn is_exclusive(cache: &Cache, name: &str) -> bool {
    cache.of(name).is_some_and(|file| file.contains("\"exclusive\":true"))
}

/// A program with an exclusive file, and what that was when it became one.
fn begun(name: &str, trap: &str) -> Option<(Cache, Talk, Old)> {
    let cache = Cache::new(&format!("exclusive-{name}"), NEVER)?;
    fs::write(cache.path("file"), [7; 10_000]).expect("room");
    let mut program = Talk::with(cache.command(traps()).args([trap, "file", "exclusive"]));
    program.until("ready");
    if !is_exclusive(&cache, "file") {
        println!(
            "SKIPPED: this kernel does not tell who opens a file, or gives no lease: {:?}",
            cache.of("file")
        );
        program.say("\n");
        program.end();
        cache.stop();
        return None;
    }
    let (found, bytes) = (fs::metadata(cache.path("file")), fs::read(cache.path("file.before")));
    let found = found.expect("it is there");
    let old = (cache.path("file"), bytes.expect("it is there"), found.modified().expect("a time"));
    Some((cache, program, Old([(found.ino(), old)].into())))
}

/// What becomes of the sync behind something.
fn behind(cache: &Cache, program: &mut Talk, old: &Old, syncs: Syncs) {
    let counts = || ["syncs_absorbed", "syncs_kernel"].map(|name| cache.counted(name));
    let before = counts();
    program.say("\n");
    program.until("done");
    let more = [0, 1].map(|n| counts()[n] > before[n]);
    assert_eq!(more, [syncs == Syncs::Absorbed, syncs == Syncs::Kernel], "{:?}", cache.of("file"));
    match syncs {
        Syncs::Absorbed => old.becomes_what_is_there(cache),
        Syncs::Kernel => cache.old(&["file"]).becomes_what_is_there(cache),
    }
}

fn trap(name: &str, syncs: Syncs) {
    let Some((cache, mut program, old)) = begun(name, name) else { return };
    behind(&cache, &mut program, &old, syncs);
    program.end();
    cache.stop();
}

#[test]
fn what_programs_do_is_in_the_log() {
    for name in ["plain", "big", "dup", "fork", "vectors", "dsync", "length", "limit", "threads"] {
        trap(name, Syncs::Absorbed);
    }
}

#[test]
fn what_goes_around_the_log_is_the_kernels() {
    for name in ["map", "copy", "direct", "append"] {
        trap(name, Syncs::Kernel);
    }
}

/// It closes the only description that there is, and opens the file again: if the daemon hears of both at once, it is somebody else who has opened it.
#[test]
fn a_file_that_is_closed_and_opened_again() {
    let Some((cache, mut program, old)) = begun("closed", "closed") else { return };
    let kernel = cache.counted("syncs_kernel");
    program.say("\n");
    program.until("done");
    let old = if cache.counted("syncs_kernel") == kernel { old } else { cache.old(&["file"]) };
    old.becomes_what_is_there(&cache);
    program.end();
    cache.stop();
}

#[test]
fn flags_that_change_are_seen() {
    trap("flags", Syncs::Absorbed);
}

#[test]
fn a_file_that_a_program_appends_to() {
    let Some((cache, mut program, old)) = begun("end", "end") else { return };
    behind(&cache, &mut program, &old, Syncs::Absorbed);
    assert_eq!(cache.count("file.end", "absorbed"), 100, "{:?}", cache.of("file.end"));
    // It was made under the log, which has all of it.
    let made = fs::metadata(cache.path("file.end")).expect("it is there");
    let empty = (cache.path("file.end"), Vec::new(), made.modified().expect("a time"));
    Old([(made.ino(), empty)].into()).becomes_what_is_there(&cache);
    program.end();
    cache.stop();
}

#[test]
fn a_child_that_nobody_sees_has_what_it_inherits() {
    trap("child", Syncs::Kernel);
    trap("spawn", Syncs::Kernel);
}

#[test]
fn who_is_sent_a_descriptor_may_write() {
    let Some((cache, mut program, old)) = begun("send", "send") else { return };
    let listener = UnixListener::bind(cache.path("socket")).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = listener.accept().expect("it connects");
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::empty())
                .expect("a message");
            let sent: Vec<OwnedFd> = control
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                    _ => None,
                })
                .flatten()
                .collect();
            let file = File::from(sent.into_iter().next().expect("a descriptor"));
            file.write_all_at(b"foreign", 300).expect("room");
            (&stream).write_all(&byte).expect("it waits");
        });
        behind(&cache, &mut program, &old, Syncs::Kernel);
    });
    program.end();
    cache.stop();
}

/// What somebody does whose calls nobody sees.
type Stranger = fn(&Cache);

/// Who opens it is told by the kernel before he can write; who takes away from it by its path, or changes its attributes, by its length or the same.
#[test]
fn a_stranger_is_seen() {
    let strangers: [(&str, Stranger); 3] = [
        ("writes", |cache| {
            let file = File::options().write(true).open(cache.path("file")).expect("it is there");
            file.write_all_at(&[b'f'; 9000], 0).expect("room");
        }),
        ("truncates", |cache| {
            let path = std::ffi::CString::new(cache.path("file").to_str().expect("text")).expect("no zeros");
            rustix::fs::ftruncate(
                File::options().write(true).open(path.to_str().expect("text")).expect("it is there"),
                3000,
            )
            .expect("a file");
        }),
        ("permits", |cache| {
            fs::set_permissions(cache.path("file"), fs::Permissions::from_mode(0o640)).expect("ours");
        }),
    ];
    for (name, stranger) in strangers {
        let Some((cache, mut program, old)) = begun(name, "write") else { return };
        stranger(&cache);
        behind(&cache, &mut program, &old, Syncs::Kernel);
        assert_eq!(cache.counted("used"), 0, "what is older is in its file, and is never replayed");
        assert!(!is_exclusive(&cache, "file"));
        program.end();
        cache.stop();
    }
}

/// The kernel tells the program as well as the daemon.
#[test]
fn a_stranger_is_seen_while_the_daemon_stands_still() {
    let Some((cache, mut program, _)) = begun("still", "write") else { return };
    let kernel = cache.counted("syncs_kernel");
    cache.signal_daemon(Signal::STOP);
    let file = File::options().write(true).open(cache.path("file")).expect("it is there");
    file.write_all_at(&[b'f'; 9000], 0).expect("room");
    program.say("\n");
    program.until("done");
    cache.signal_daemon(Signal::CONT);
    assert_eq!(cache.counted("syncs_kernel"), kernel + 1, "{:?}", cache.of("file"));
    cache.old(&["file"]).becomes_what_is_there(&cache);
    program.end();
    cache.drain();
    cache.stop();
}

/// He has it open for less than anybody could write in, or still has.
#[test]
fn a_reader_is_nobody() {
    let Some((cache, mut program, old)) = begun("reader", "write") else { return };
    drop(fs::read(cache.path("file")));
    behind(&cache, &mut program, &old, Syncs::Absorbed);
    assert!(is_exclusive(&cache, "file"), "{:?}", cache.of("file"));
    program.end();
    cache.stop();
}

/// The program that comes next has its first sync absorbed as well.
#[test]
fn who_ends_leaves_a_file_as_any_other() {
    let Some((cache, mut program, _)) = begun("ends", "write") else { return };
    program.say("\n");
    program.until("done");
    program.end();
    assert!(!is_exclusive(&cache, "file"), "the daemon has heard of its end");
    let kernel = cache.counted("syncs_kernel");
    for _ in 0..2 {
        let mut program = Talk::with(cache.command(traps()).args(["write", "file", "exclusive"]));
        program.until("ready");
        program.say("\n");
        program.until("done");
        program.end();
        assert!(!is_exclusive(&cache, "file"), "the daemon has heard of its end");
    }
    assert_eq!(cache.counted("syncs_kernel"), kernel, "{}", cache.status());
    cache.stop();
}

#[test]
fn a_writer_that_has_not_written_yet_ends_it() {
    let Some((cache, mut program, old)) = begun("holder", "write") else { return };
    let held = File::options().write(true).open(cache.path("file")).expect("it is there");
    behind(&cache, &mut program, &old, Syncs::Kernel);
    assert!(!is_exclusive(&cache, "file"), "{:?}", cache.of("file"));
    drop(held);
    program.end();
    cache.stop();
}

/// Also if the daemon hears of his coming and his going at once.
#[test]
fn a_stranger_that_has_gone_again_is_seen() {
    let Some((cache, mut program, old)) = begun("gone", "write") else { return };
    cache.signal_daemon(Signal::STOP);
    let file = File::options().write(true).open(cache.path("file")).expect("it is there");
    file.write_all_at(&[b'f'; 9000], 0).expect("room");
    drop(file);
    cache.signal_daemon(Signal::CONT);
    behind(&cache, &mut program, &old, Syncs::Kernel);
    program.end();
    cache.stop();
}

/// By its path, without a descriptor: its length tells, or its time, as soon as somebody looks at these.
#[test]
fn a_file_that_is_cut_short_by_its_path_is_seen_when_its_length_is_looked_at() {
    let Some((cache, mut program, old)) = begun("path", "write") else { return };
    let status = std::process::Command::new("python3")
        .args(["-c", "import os, sys; os.truncate(sys.argv[1], 3000)"])
        .arg(cache.path("file"))
        .status();
    assert!(status.expect("python runs").success());
    std::thread::sleep(Duration::from_millis(20));
    behind(&cache, &mut program, &old, Syncs::Kernel);
    program.end();
    cache.stop();
}

#[test]
fn what_somebody_has_open_already_is_not_exclusive() {
    let Some((cache, mut program, _)) = begun("before", "write") else { return };
    program.say("\n");
    program.until("done");
    program.end();
    for (name, writes) in [("written", true), ("read", false)] {
        fs::write(cache.path(name), [7; 10_000]).expect("room");
        let held = File::options().read(true).write(writes).open(cache.path(name)).expect("it is there");
        let mut program = Talk::with(cache.command(traps()).args(["write", name, "exclusive"]));
        program.until("ready");
        // Readers are counted where the kernel has leases for them, from Linux 5.3 on.
        assert!(!writes || !is_exclusive(&cache, name), "{:?}", cache.of(name));
        program.say("\n");
        program.until("done");
        program.end();
        drop(held);
    }
    cache.stop();
}

/// The shell that began it has the description as well.
#[test]
fn what_a_program_was_started_with_is_not_exclusive() {
    let Some(cache) = Cache::new("exclusive-start", NEVER) else { return };
    let out = File::create(cache.path("out")).expect("room");
    let mut shared = out.try_clone().expect("a descriptor");
    // No other program stands between: what one keeps over `exec` is another rule.
    let mut program = cache.command(example("cache_load"));
    let status = program.arg("out").stdin(Stdio::null()).stdout(out).status().expect("it runs");
    assert!(status.success() && cache.count("out", "absorbed") > 8, "{:?}", cache.of("out"));
    assert!(!is_exclusive(&cache, "out"), "{:?}", cache.of("out"));
    shared.write_all(b"by the shell").expect("room");
    let mut all = String::new();
    File::open(cache.path("out")).expect("it is there").read_to_string(&mut all).expect("text");
    assert!(all.len() == 4012 && all.ends_with("by the shell"));
    cache.stop();
}
