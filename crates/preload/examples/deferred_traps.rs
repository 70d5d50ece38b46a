//! A program with a trap for whoever keeps its file from the kernel, by the name of its first argument; the second is its file, which is made.
//!
//! It writes and reads, does what it is here for, writes and reads again, and says what it has seen: a line for each thing, the same with a cache and without. It knows nothing of one.
#![expect(unsafe_code, reason = "calls that the standard library does not make")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each is a call of C on memory and numbers of its own, or on none, and is refused then"
)]

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, path, ..] = &arguments[..] else { panic!("the name of a trap, and a file") };
    let path = Path::new(path);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    match name.as_str() {
        "appends" => drop(options.truncate(false).append(true)),
        "dsync" => drop(options.custom_flags(libc::O_DSYNC)),
        "direct" => return direct(path),
        "together" => return together(path),
        _ => {}
    }
    let mut file = options.open(path).expect("room");
    before(&mut file);
    match name.as_str() {
        "plain" | "appends" | "dsync" => {}
        "outside" => outside(&file),
        "dup" => file = duplicated(file),
        "fork" => forked(&mut file),
        "spawn" => spawned(&mut file),
        "exec" => executed(&file),
        "map" => mapped(&file),
        "sendfile" => sent(&file, path),
        "splice" => spliced(&file),
        "copy" => copied(&file, path),
        "rights" => file = passed_on(file),
        "flock" => done("flock", unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }),
        "lock" => locked(&file),
        "again" => again(path),
        "rename" => renamed(path),
        "unlink" => std::fs::remove_file(path).expect("it is there"),
        "truncate" => {
            let path = c(path);
            done("truncate", unsafe { libc::truncate(path.as_ptr(), 5000) });
        }
        "allocate" => {
            done("allocate", unsafe { libc::fallocate(file.as_raw_fd(), 0, 20_000, 90_000) });
        }
        "aio" => submitted(&file),
        "hole" => {
            let data = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
            println!("data at {data}");
        }
        "flags" => flagged(&file),
        "setfl" => {
            let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
            done("setfl", set);
        }
        "ioctl" => {
            let mut left = 0;
            let asked = unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut left) };
            println!("ioctl {asked} {left}");
        }
        "numbers" => numbers(&file),
        "range" => ranges(&file),
        "addresses" => addresses(&file),
        "vectors" => vectors(&file),
        "threads" => threads(&file),
        "limit" => limited(&mut file),
        "sync" => unsafe {
            libc::sync();
            libc::syncfs(file.as_raw_fd());
        },
        "unshare" => done("unshare", unsafe { libc::unshare(libc::CLONE_FILES) }),
        "last" => last(file, path),
        "times" => return times(file, path),
        _ => panic!("there is no trap {name}"),
    }
    after(&mut file, path);
}

fn done(what: &str, value: i32) {
    println!("{what} {value}");
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path")
}

/// Bytes that repeat nowhere near.
fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// All of a file, by its descriptor.
fn whole(file: &File) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 1777]);
    loop {
        match file.read_at(&mut part, all.len() as u64).expect("it can be read") {
            0 => return all,
            some => all.extend_from_slice(&part[..some]),
        }
    }
}

fn before(file: &mut File) {
    for n in 0..60_u64 {
        file.write_all(&noise(n as usize * 37)).expect("room");
        file.write_all_at(&[n as u8; 3], n * 500).expect("room");
        if n % 7 == 0 {
            file.sync_data().expect("a disk");
        }
        let mut part = [0; 900];
        let read = file.read_at(&mut part, n * 300).expect("it can be read");
        println!("{n}: {read} {}", hash(&part[..read]));
    }
    file.set_len(40_000).expect("a file");
    file.set_len(70_000).expect("a file");
    let end = file.seek(SeekFrom::End(-10)).expect("a place");
    let place = file.seek(SeekFrom::Start(777)).expect("a place");
    println!("{end} {place} {}", file.seek(SeekFrom::Current(3)).expect("a place"));
    println!("{}", file.seek(SeekFrom::Current(-4000)).expect_err("before the begin"));
}

fn after(file: &mut File, path: &Path) {
    file.write_all(b"where it was").expect("room");
    file.write_all_at(b"at a place", 5000).expect("room");
    let mut next = [0; 40];
    let more = file.read(&mut next).expect("it can be read");
    file.sync_all().expect("a disk");
    println!("next {more} {}", hash(&next));
    println!("at {}", file.stream_position().expect("a place"));
    let by_path = std::fs::metadata(path).map(|found| found.len()).unwrap_or(0);
    println!("{} bytes, by its path {by_path}", file.metadata().expect("a file").len());
    println!("{}", hash(&whole(file)));
}

/// Waits until somebody outside has looked at it.
fn outside(file: &File) {
    println!("{}\nready", hash(&whole(file)));
    std::io::stdin().read_exact(&mut [0]).expect("somebody says something");
}

fn duplicated(file: File) -> File {
    let mut other = file.try_clone().expect("a number");
    other.write_all(b"by the other").expect("room");
    let third = unsafe { File::from_raw_fd(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, 40)) };
    assert!(third.as_raw_fd() >= 40);
    // Onto one that is a pipe's.
    let mut ends = [0; 2];
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), ends[1]) }, ends[1]);
    drop((file, other));
    let mut last = unsafe { File::from_raw_fd(ends[1]) };
    last.write_all(b"by the last").expect("room");
    // The number is another file's then.
    let number = third.as_raw_fd();
    drop(third);
    assert_eq!(unsafe { libc::dup2(ends[0], number) }, number);
    assert_eq!(unsafe { libc::write(number, b"x".as_ptr().cast(), 1) }, -1, "nobody writes to that end");
    last
}

fn forked(file: &mut File) {
    let mut other = file.try_clone().expect("a number");
    match unsafe { libc::fork() } {
        0 => {
            for n in 0..50 {
                other.write_all(&vec![b'c'; 1 + n]).expect("room");
            }
            other.sync_all().expect("a disk");
            // One of its own.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            done("child", status);
            file.write_all(b"by the parent").expect("room");
        }
    }
}

fn spawned(file: &mut File) {
    let inherited = file.try_clone().expect("a number");
    let script = "printf one; printf two; cd /; exec printf three";
    let status = Command::new("sh").args(["-c", script]).stdout(inherited).status().expect("a shell");
    done("shell", status.code().unwrap_or(-1));
    file.write_all(b"behind").expect("room");
}

/// The program ends here, and another one goes on with the number.
fn executed(file: &File) {
    let inherited = file.try_clone().expect("a number");
    println!("{}", hash(&whole(file)));
    panic!("{}", Command::new("sh").args(["-c", "printf more"]).stdout(inherited).exec());
}

fn mapped(file: &File) {
    unsafe {
        let shared = |kind| {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                kind,
                file.as_raw_fd(),
                0,
            )
        };
        let own = shared(libc::MAP_PRIVATE);
        assert_ne!(own, libc::MAP_FAILED);
        println!("mapped {}", hash(std::slice::from_raw_parts(own.cast(), 8192)));
        let all = shared(libc::MAP_SHARED);
        assert_ne!(all, libc::MAP_FAILED);
        all.cast::<u8>().add(100).write_volatile(b'm');
    }
}

fn beside(path: &Path) -> File {
    let place = path.with_extension("beside");
    File::options().read(true).write(true).create(true).truncate(true).open(place).expect("room")
}

fn sent(file: &File, path: &Path) {
    let other = beside(path);
    let mut from = 100_i64;
    let count = unsafe { libc::sendfile(other.as_raw_fd(), file.as_raw_fd(), &raw mut from, 30_000) };
    println!("sent {count} {from} {}", hash(&whole(&other)));
}

fn spliced(file: &File) {
    let mut ends = [0; 2];
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let (mut from, mut to) = (50_i64, 9000_i64);
    let null = std::ptr::null_mut();
    let into = unsafe { libc::splice(file.as_raw_fd(), &raw mut from, ends[1], null, 3000, 0) };
    let out = unsafe { libc::splice(ends[0], null, file.as_raw_fd(), &raw mut to, 3000, 0) };
    println!("spliced {into} {out}");
}

fn copied(file: &File, path: &Path) {
    let other = beside(path);
    let (mut from, mut to) = (70_i64, 7_i64);
    let count = unsafe {
        libc::copy_file_range(file.as_raw_fd(), &raw mut from, other.as_raw_fd(), &raw mut to, 20_000, 0)
    };
    println!("copied {count} {}", hash(&whole(&other)));
}

/// Sends the number to ourselves, which makes another one of it.
fn passed_on(file: File) -> File {
    let mut ends: [RawFd; 2] = [0; 2];
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()), 0);
        let mut byte = [b'x'];
        let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = [0_u64; 3];
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<i32>().write_unaligned(file.as_raw_fd());
        assert_eq!(libc::sendmsg(ends[0], &raw const message, 0), 1);
        assert_eq!(libc::recvmsg(ends[1], &raw mut message, 0), 1);
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        File::from_raw_fd(libc::CMSG_DATA(head).cast::<i32>().read_unaligned())
    }
}

fn locked(file: &File) {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 10,
        l_pid: 0,
    };
    done("lock", unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) });
}

fn again(path: &Path) {
    let mut other = File::options().read(true).write(true).open(path).expect("it is there");
    println!("again {}", hash(&whole(&other)));
    other.write_all(b"by the second").expect("room");
}

fn renamed(path: &Path) {
    let other = path.with_extension("other");
    std::fs::rename(path, &other).expect("it is there");
    println!("renamed {}", hash(&std::fs::read(&other).expect("it is there")));
    std::fs::rename(&other, path).expect("it is there");
}

/// Has the kernel write asynchronously.
fn submitted(file: &File) {
    let part = noise(3000);
    let mut request = [0_u64; 8];
    // The opcode and the number; where from, how many, and where to.
    request[2] = 1 | (file.as_raw_fd() as u64) << 32;
    (request[3], request[4], request[5]) = (part.as_ptr() as u64, part.len() as u64, 2500);
    let (mut context, request) = (0_u64, &raw const request);
    let mut event = [0_u64; 4];
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 4, &raw mut context), 0);
        println!("submitted {}", libc::syscall(libc::SYS_io_submit, context, 1, &raw const request));
        let got = libc::syscall(libc::SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), 0);
        println!("event {got} {}", event[2]);
    }
}

fn flagged(file: &File) {
    let part = noise(300);
    let vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    let count = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, 0, libc::RWF_APPEND) };
    println!("appended {count}");
}

/// Closes all numbers that it has not opened, as daemons do when they begin, and takes them for others.
fn numbers(file: &File) {
    let mine = file.as_raw_fd();
    for number in (3..4096).filter(|number| *number != mine) {
        unsafe { libc::close(number) };
    }
    let other = File::open("/dev/null").expect("it is there");
    for number in (700..900).filter(|number| *number != mine) {
        unsafe { libc::dup2(other.as_raw_fd(), number) };
    }
}

fn ranges(file: &File) {
    let mine = file.as_raw_fd() as u32;
    for (from, upto) in [(3, mine.saturating_sub(1)), (mine + 1, u32::MAX)] {
        if from <= upto {
            assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, from, upto, 0) }, 0);
        }
    }
}

fn addresses(file: &File) {
    let bad = 8 as *mut libc::c_void;
    let fd = file.as_raw_fd();
    let told = |what: &str, value: isize| {
        println!("{what} {value} {:?}", std::io::Error::last_os_error().raw_os_error());
    };
    unsafe {
        told("read", libc::read(fd, bad, 100));
        told("write", libc::write(fd, bad, 100));
        told("pread", libc::pread(fd, bad, 100, 5));
        told("vectors", libc::writev(fd, bad.cast(), 3));
        told("offset", libc::pwrite(fd, b"x".as_ptr().cast(), 1, -1));
        told("many", libc::readv(fd, bad.cast(), 5000));
        told("length", libc::ftruncate(fd, -1) as isize);
    }
}

fn vectors(file: &File) {
    let parts: Vec<Vec<u8>> = [0, 5, 40_000, 1, 0, 9000].into_iter().map(noise).collect();
    let vectors: Vec<libc::iovec> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect();
    let (fd, all, count) = (file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32);
    let mut back: Vec<Vec<u8>> = parts.iter().map(|part| vec![0; part.len()]).collect();
    let into: Vec<libc::iovec> = back
        .iter_mut()
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
        .collect();
    unsafe {
        println!("written {} {}", libc::writev(fd, all, count), libc::pwritev(fd, all, count, 1234));
        println!("at the place {}", libc::pwritev2(fd, all, count, -1, 0));
        println!("read {}", libc::preadv(fd, into.as_ptr(), count, 1000));
    }
    println!("{}", hash(&back.concat()));
}

fn threads(file: &File) {
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for round in 0..300_u64 {
                    // Each has its own bytes of each page.
                    let part = [(thread * 60 + round % 60) as u8; 700];
                    file.write_all_at(&part, round * 4096 + thread * 1000).expect("room");
                    let mut back = [0; 700];
                    file.read_exact_at(&mut back, round * 4096 + thread * 1000).expect("it is there");
                    assert_eq!(part, back, "what was written is read");
                    if round % 50 == 0 {
                        file.sync_data().expect("a disk");
                    }
                }
            });
        }
    });
}

/// Threads are in many files, one after the other, while each is handed back in another way.
fn together(path: &Path) {
    for n in 0..24_usize {
        let own = path.with_extension(format!("{n}"));
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&own).expect("room");
        let begun = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (file, begun) = (&file, &begun);
                scope.spawn(move || {
                    for round in 0..200_u64 {
                        let part = [(thread * 80 + round % 80) as u8; 900];
                        let place = round * 2700 + thread * 900;
                        file.write_all_at(&part, place).expect("room");
                        if round == 40 {
                            begun.wait();
                        }
                        let mut back = [0; 900];
                        file.read_exact_at(&mut back, place).expect("it is there");
                        assert_eq!(part, back, "what was written is read");
                    }
                });
            }
            begun.wait();
            match n % 6 {
                0 => drop(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }),
                1 => assert!(File::open(&own).expect("it is there").metadata().expect("a file").len() > 0),
                2 => assert!(Command::new("true").status().expect("a program").success()),
                3 => drop(Command::new("cat").arg(&own).output().expect("a program")),
                4 => locked(&file),
                _ => drop(file.try_clone().expect("a number")),
            }
        });
        println!("{n} {} {}", file.metadata().expect("a file").len(), hash(&whole(&file)));
    }
}

fn limited(file: &mut File) {
    let limit = libc::rlimit { rlim_cur: 80_000, rlim_max: 80_000 };
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
    file.seek(SeekFrom::Start(79_000)).expect("a file");
    println!("{:?}", file.write(&noise(5000)).map_err(|why| why.raw_os_error()));
    println!("{:?}", file.write(&noise(5000)).map_err(|why| why.raw_os_error()));
    file.seek(SeekFrom::Start(3)).expect("a file");
}

/// The thread that has begun ends first; the other one has the file, and ends the process with what is in the C library's buffer.
fn last(file: File, path: &Path) -> ! {
    let path = path.to_owned();
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut file = file;
        after(&mut file, &path);
        std::mem::forget(file);
    });
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("it has ended")
}

fn times(file: File, path: &Path) {
    let (path, times) = (c(path), [libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 5 }; 2]);
    let set = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) };
    done("times", set);
    let found = file.metadata().expect("a file");
    println!("{} {}", found.mtime(), found.mtime_nsec());
}

fn direct(path: &Path) {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let file = options.open(path).expect("room");
    file.write_all_at(&Page([7; 4096]).0, 4096).expect("room");
    println!("{}", file.metadata().expect("a file").len());
}
