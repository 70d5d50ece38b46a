//! Programs that write and sync for as long as they are let, and say what was acknowledged. They know nothing of a cache.
//!
//! `cache_load syncs FILE`: for each byte on its standard input a record and a sync, and a line that says how that went: "ok", or the error's number.
//! `cache_load names DIRECTORY SEED`: for each byte on its standard input the next step of a seed with names, each durable, and a line; with one more argument, without being asked.
//! `cache_load syncs FILE`: for each byte on its standard input a record and a sync, and a line that says how that went: "ok", or the error's number. For a `w` it is a record alone; for a `d` a page
//! behind the records that goes around the page cache, for an `m` a byte of a mapping there, for a `c` a copy by the kernel; for an `x` all descriptors that it has not opened lead to a file of its own from then on.
//! `cache_load files`: for each byte a new file with a record and a sync, and a line with the milliseconds that this took.
//! `cache_load seen FILE` and `cache_load unseen FILE`: a number that was a pipe's becomes the file's, by a call of the C library or by one of its own; after lines and syncs as in `cache_traps`.
//! `cache_load lowest DIRECTORY`: which numbers files have that are made.
//! `cache_load out`: 40 records and syncs to its standard output.
//! `cache_load cost`: what a write costs that leads to no file, in nanoseconds.
//! `cache_load steps DIRECTORY SEED PROCESS THREADS`: each thread takes the steps of its seed on a file of its own, and appends records to one of all.
#![expect(unsafe_code, reason = "a call that nobody sees")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

#[path = "../tests/waits/model.rs"]
#[expect(dead_code, reason = "the test has the other half")]
mod model;

use model::{NameStep, RECORD, SUB, Step, TMP, Tree, bytes, numbers, record};

/// More than anybody lets it take.
const STEPS: u64 = 200_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |n: usize| -> u64 { arguments[n].parse().expect("a number") };
    match arguments[1].as_str() {
        "syncs" => syncs(&arguments[2]),
        "names" => names(Path::new(&arguments[2]), number(3), arguments.get(4).is_some()),
        "lowest" => lowest(Path::new(&arguments[2])),
        "files" => files(),
        "seen" => becomes(&arguments[2], true),
        "unseen" => becomes(&arguments[2], false),
        "cost" => cost(),
        "out" => out(),
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
    let mut n = 0_u64;
    loop {
        let mut what = [0];
        if std::io::stdin().read_exact(&mut what).is_err() {
            return;
        }
        let write = || file.write_all_at(&record(0, 0, 0, n), n * RECORD as u64);
        let done = match what[0] {
            b'd' => around(path),
            b'm' => mapped(&file),
            b'c' => copied(&file),
            b'x' => taken(&file, path),
            b'w' => write(),
            _ => write().and_then(|()| file.sync_data()),
        };
        n += u64::from(!b"dmcx".contains(&what[0]));
        println!("{}", said(done));
    }
}

/// Where in a file something is done that goes around the log.
const AROUND: u64 = 1 << 16;

fn around(path: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path)?;
    file.write_all_at(&Page([7; 4096]).0, AROUND)
}

fn mapped(file: &File) -> std::io::Result<()> {
    file.set_len(AROUND + 4096)?;
    // SAFETY: a new mapping of the file, which is as long; nobody else has it, and it stays.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED;
        let map = libc::mmap(std::ptr::null_mut(), 4096, rights, shared, file.as_raw_fd(), AROUND as i64);
        assert_ne!(map, libc::MAP_FAILED);
        map.cast::<u8>().write_volatile(7);
    }
    Ok(())
}

fn copied(file: &File) -> std::io::Result<()> {
    let (mut from, mut to) = (0_i64, AROUND as i64);
    let fd = file.as_raw_fd();
    // SAFETY: two numbers are read and written.
    let copied = unsafe { libc::copy_file_range(fd, &raw mut from, fd, &raw mut to, RECORD, 0) };
    if copied < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// By a description that it was started with.
fn out() {
    use std::os::fd::AsFd as _;
    let out = std::io::stdout().as_fd().try_clone_to_owned().expect("a descriptor");
    let mut out = File::from(out);
    (0..40).try_for_each(|_| out.write_all(&[b'x'; 100]).and_then(|()| out.sync_all())).expect("a disk");
}

fn files() {
    for n in 0_u64.. {
        if std::io::stdin().read_exact(&mut [0]).is_err() {
            return;
        }
        let begun = std::time::Instant::now();
        let mut file = File::create(format!("new-{n}")).expect("room");
        file.write_all(&record(0, 0, 0, n)).and_then(|()| file.sync_all()).expect("a disk");
        println!("{}", begun.elapsed().as_millis());
    }
}

/// Each file that is made has the lowest number that is free.
fn lowest(place: &Path) {
    let hole = File::open(place).expect("a directory");
    let number = hole.as_raw_fd();
    let _above: Vec<File> = (0..3).map(|_| File::open(place).expect("a directory")).collect();
    drop(hole);
    for n in 0..20 {
        let path = place.join(format!("lowest-{n}"));
        let file = File::create_new(&path).expect("room");
        assert_eq!(file.as_raw_fd(), number, "the {n}th file");
        file.sync_all().and_then(|()| std::fs::remove_file(&path)).expect("a disk");
    }
    println!("ok");
}

/// Takes steps with names in a directory that is there and empty.
fn names(place: &Path, seed: u64, alone: bool) {
    let (mut numbers, mut tree) = (numbers(seed, 0, 0), Tree::default());
    for n in 0_u64.. {
        if !alone && std::io::stdin().read_exact(&mut [0]).is_err() {
            return;
        }
        let step = NameStep::draw(&mut numbers, &tree);
        name_step(place, &step, &tree).unwrap_or_else(|why| panic!("{step:?}: {why}"));
        step.change(&mut tree);
        println!("{n}");
    }
}

fn name_step(place: &Path, step: &NameStep, tree: &Tree) -> std::io::Result<()> {
    let path = |name: &str| place.join(name);
    let write = |name: &str, len: u64, word: u64| {
        let file = File::options().write(true).create(true).truncate(false).open(path(name))?;
        // In two pieces, as programs do.
        let (bytes, half) = (bytes(word, len), len as usize / 2);
        file.write_all_at(&bytes[..half], 0)?;
        file.write_all_at(&bytes[half..], half as u64)?;
        file.sync_all()
    };
    match step {
        NameStep::Replace { name, len, word } => {
            write(TMP, *len, *word)?;
            std::fs::rename(path(TMP), path(name))?;
        }
        NameStep::Write { name, len, word } => write(name, *len, *word)?,
        NameStep::Permit { name, mode } => {
            let file = File::open(path(name))?;
            let mode = std::fs::Permissions::from_mode(*mode);
            // By its name, and by a descriptor.
            match mode.mode() % 2 {
                0 => std::fs::set_permissions(path(name), mode)?,
                _ => file.set_permissions(mode)?,
            }
            file.sync_all()?;
        }
        NameStep::Unlink { name } => std::fs::remove_file(path(name))?,
        NameStep::Rename { from, to } => std::fs::rename(path(from), path(to))?,
        NameStep::Exchange { from, to } => {
            let [from, to] = [from, to].map(|name| std::ffi::CString::new(path(name).as_os_str().as_bytes()));
            let (from, to) = (from?, to?);
            let here = libc::AT_FDCWD;
            // SAFETY: two paths that end with a zero.
            let done =
                unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), libc::RENAME_EXCHANGE) };
            if done != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        NameStep::Link { from, to } => std::fs::hard_link(path(from), path(to))?,
        NameStep::Directory if !tree.names.contains_key(SUB) => std::fs::create_dir(path(SUB))?,
        NameStep::Directory if tree.names.keys().any(|name| name.contains('/')) => {}
        NameStep::Directory => std::fs::remove_dir(path(SUB))?,
    }
    // Directories of names that are gone are gone with them.
    for directory in [path(SUB), place.to_owned()] {
        match File::open(directory) {
            Ok(directory) => directory.sync_all()?,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// `dup2`, by the C library or by an instruction of this program.
fn duplicate(from: i32, to: i32, seen: bool) {
    let mut value = libc::SYS_dup2;
    if seen {
        // SAFETY: two numbers.
        value = unsafe { libc::dup2(from, to) }.into();
    } else {
        // SAFETY: two numbers; the kernel overwrites these two registers.
        unsafe {
            std::arch::asm!(
                "syscall", inlateout("rax") value, in("rdi") i64::from(from), in("rsi") i64::from(to),
                out("rcx") _, out("r11") _,
            );
        }
    }
    assert_eq!(value, i64::from(to));
}

fn taken(file: &File, path: &str) -> std::io::Result<()> {
    let own = File::create(format!("{path}.own"))?;
    let all = std::fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
    for name in all.collect::<Result<Vec<_>, _>>()? {
        let fd: i32 = name.to_str().and_then(|name| name.parse().ok()).expect("a number");
        if fd > 2 && ![file.as_raw_fd(), own.as_raw_fd()].contains(&fd) {
            duplicate(own.as_raw_fd(), fd, true);
        }
    }
    Ok(())
}

fn becomes(path: &str, seen: bool) {
    let file = File::options().read(true).write(true).open(path).expect("the file is there");
    for round in 0..4 {
        file.write_all_at(&[round; 5000], u64::from(round) * 100).expect("room");
        file.sync_all().expect("a disk");
    }
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).expect("a line");
    let (_from, mut to) = std::io::pipe().expect("a pipe");
    for _ in 0..3 {
        to.write_all(b"into the pipe").expect("room");
    }
    duplicate(file.as_raw_fd(), to.as_raw_fd(), seen);
    to.write_all(b"into the file").expect("room");
    file.write_all_at(b"beside it", 3000).expect("room");
    file.sync_all().expect("a disk");
    println!("done");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn cost() {
    const CALLS: u32 = 2000;
    let mut null = File::options().write(true).open("/dev/null").expect("a device");
    let (mut from, mut to) = std::io::pipe().expect("a pipe");
    for (name, write) in [
        ("/dev/null", &mut (|| null.write_all(b"x").expect("nobody looks")) as &mut dyn FnMut()),
        ("a pipe", &mut || {
            to.write_all(b"x").expect("room");
            from.read_exact(&mut [0]).expect("a byte");
        }),
    ] {
        let mut rounds: Vec<u128> = (0..300)
            .map(|_| {
                let start = std::time::Instant::now();
                (0..CALLS).for_each(|_| write());
                start.elapsed().as_nanos()
            })
            .collect();
        rounds.sort_unstable();
        println!("{name}: {:.1} ns", rounds[150] as f64 / f64::from(CALLS));
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
