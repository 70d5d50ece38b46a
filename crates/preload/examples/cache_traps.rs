//! A program with a trap for whoever watches its system calls, by the name of its first argument; the second is its file.
//!
//! It writes and syncs its file a few times, says "ready", waits for a line, does what it is here for, syncs, says "done", waits for the end of its
//! standard input, and ends. It knows nothing of a cache. (`forever` alone does nothing of that.) With a third argument, `exclusive`, it syncs more often, so that nobody else is supposed to have the file, and writes
//! what is in it to another one, as whoever reads it opens it.
#![expect(unsafe_code, reason = "calls that the standard library does not make")]

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, path, ..] = &arguments[..] else { panic!("the name of a trap, and a file") };
    let mut file = File::options().read(true).write(true).open(path).expect("the file is there");
    if name == "forever" {
        return forever(&file, arguments[3].parse().expect("the number of the run"));
    }
    let is_exclusive = arguments.get(3).is_some_and(|word| word == "exclusive");
    for round in 0..if is_exclusive { 12 } else { 4 } {
        file.write_all_at(&[round; 5000], u64::from(round) * 100).expect("room");
        file.sync_all().expect("a disk");
    }
    if is_exclusive {
        let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("as long");
        std::fs::write(format!("{path}.before"), bytes).expect("room");
    }
    say("ready");
    let mut line = [0; 1];
    std::io::stdin().read_exact(&mut line).expect("a line");
    match name.as_str() {
        "plain" => plain(&mut file),
        "dup" => duplicate(&file),
        "fork" => shared_offset(&mut file),
        "append" => appends(Path::new(path)),
        "spawn" => spawned(&mut file),
        "vectors" => vectors(&file),
        "dsync" => with_sync(&file),
        "length" => lengths(&mut file),
        "limit" => limited(&mut file),
        "threads" => threads(&file),
        "big" => file.write_all_at(&noise(3_000_000), 77).expect("room"),
        "map" => mapped(&file),
        "copy" => copied(&file),
        "ring" => ring(),
        "direct" => around(path),
        "closed" => closed(&mut file, path),
        "flags" => flags(&file),
        "end" => at_the_end(path),
        "child" => unseen_child(&file),
        "send" => send(&file),
        "write" => file.write_all_at(b"one write", 50).expect("room"),
        _ => panic!("there is no trap {name}"),
    }
    file.sync_all().expect("a disk");
    say("done");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn say(word: &str) {
    println!("{word}");
}

/// Bytes that repeat nowhere near.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn plain(file: &mut File) {
    for n in 0..100_u64 {
        file.write_all(&noise(n as usize * 7)).expect("room");
        file.seek(SeekFrom::Start(n * 31)).expect("a file");
        file.write_all_at(&[n as u8; 3], n * 1000).expect("room");
    }
}

fn duplicate(file: &File) {
    let mut other = file.try_clone().expect("a descriptor");
    let mut first = file;
    first.write_all(b"by the first").expect("room");
    other.write_all(b"by the other").expect("room");
    // The number is used again, for a pipe.
    // SAFETY: no memory is touched.
    let third = unsafe { File::from_raw_fd(libc::dup(file.as_raw_fd())) };
    let number = third.as_raw_fd();
    drop(third);
    let mut ends = [0; 2];
    // SAFETY: two numbers are written.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    assert!(ends.contains(&number));
    // SAFETY: new descriptors, which are ours.
    let (mut from, mut to) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    to.write_all(b"into a pipe").expect("room");
    from.read_exact(&mut [0; 11]).expect("what was written");
    other.write_all(b"at the end").expect("room");
    other.sync_data().expect("a disk");
}

fn forked(child: impl FnOnce(), parent: impl FnOnce()) {
    // SAFETY: the child only does what is given, with one thread, and ends.
    match unsafe { libc::fork() } {
        -1 => panic!("no process"),
        0 => {
            child();
            // SAFETY: it ends.
            unsafe { libc::_exit(0) }
        }
        process => {
            parent();
            let mut status = 0;
            // SAFETY: a number is written.
            assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
            assert_eq!(status, 0, "the child ends well");
        }
    }
}

fn shared_offset(file: &mut File) {
    let mut other = file.try_clone().expect("a descriptor");
    let write = |file: &mut File, byte: u8| {
        for n in 0..200 {
            file.write_all(&vec![byte; 1 + n % 50]).expect("room");
        }
    };
    forked(
        || {
            write(&mut other, b'c');
            other.sync_all().expect("a disk");
        },
        || write(file, b'p'),
    );
}

fn appends(path: &Path) {
    let write = |byte: u8| {
        let mut file = File::options().append(true).open(path).expect("the file");
        for n in 0..200 {
            file.write_all(&vec![byte; 1 + n % 90]).expect("room");
            // It appends all the same.
            file.write_at(&[byte; 4], 0).expect("room");
        }
    };
    forked(|| write(b'c'), || write(b'p'));
}

fn spawned(file: &mut File) {
    // It inherits the descriptor, and the offset with it.
    let inherited = file.try_clone().expect("a descriptor");
    file.write_all(b"before").expect("room");
    let script = "printf one; printf two; cd /; exec printf three";
    let status = Command::new("sh").args(["-c", script]).stdout(inherited).status().expect("a shell");
    assert!(status.success());
    file.write_all(b"behind").expect("room");
}

fn vectors(file: &File) {
    let parts: Vec<Vec<u8>> = [0, 5, 40_000, 1, 0, 9000].into_iter().map(noise).collect();
    let vectors: Vec<libc::iovec> = parts
        .iter()
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
        .collect();
    let (count, whole) = (vectors.len() as i32, parts.iter().map(Vec::len).sum::<usize>() as isize);
    // SAFETY: the vectors name live memory.
    unsafe {
        assert_eq!(libc::writev(file.as_raw_fd(), vectors.as_ptr(), count), whole);
        assert_eq!(libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count, 1234), whole);
        assert_eq!(libc::pwritev2(file.as_raw_fd(), vectors.as_ptr(), count, -1, 0), whole);
        assert_eq!(libc::pwritev2(file.as_raw_fd(), vectors.as_ptr(), count, 9, libc::RWF_APPEND), whole);
    }
}

fn with_sync(file: &File) {
    let part = b"durable when it returns";
    let vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    for n in 0..20 {
        // SAFETY: the vector names live memory.
        let written =
            unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, n * 100, libc::RWF_DSYNC) };
        assert_eq!(written, part.len() as isize);
    }
}

fn lengths(file: &mut File) {
    file.set_len(1000).expect("a file");
    file.write_all_at(&noise(500), 900).expect("room");
    file.set_len(700).expect("a file");
    file.set_len(70_000).expect("a file");
    file.write_all_at(b"behind a hole", 60_000).expect("room");
    let allocate = |mode, offset, len| {
        // SAFETY: no memory is touched.
        assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }, 0);
    };
    allocate(0, 80_000, 5000);
    file.write_all_at(&noise(20_000), 20_000).expect("room");
    allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 24_576, 8192);
    allocate(libc::FALLOC_FL_ZERO_RANGE, 36_000, 100);
    allocate(libc::FALLOC_FL_KEEP_SIZE, 200_000, 5000);
}

fn limited(file: &mut File) {
    let limit = libc::rlimit { rlim_cur: 12_000, rlim_max: 12_000 };
    // SAFETY: a limit is read; the signal is ignored.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
    file.seek(SeekFrom::Start(11_000)).expect("a file");
    assert_eq!(file.write(&noise(5000)).expect("some of it"), 1000);
    let refused = file.write(&noise(5000)).expect_err("no room");
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG));
}

fn threads(file: &File) {
    let together = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let together = &together;
            scope.spawn(move || {
                for round in 0..600 {
                    together.wait();
                    // They overlap, and straddle pages; of each round it is seen who was last.
                    file.write_all_at(&[(thread * 60 + round % 60) as u8; 700], round * 900 + thread * 11)
                        .expect("room");
                    if round % 100 == 0 {
                        file.sync_data().expect("a disk");
                    }
                }
            });
        }
    });
}

fn mapped(file: &File) {
    // SAFETY: a new mapping of the file, which is longer, and is written to within.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        map.cast::<u8>().add(100).write_volatile(b'm');
    }
    file.write_all_at(b"beside it", 200).expect("room");
}

fn copied(file: &File) {
    let path = std::env::temp_dir().join(format!("remanence-copied-{}", std::process::id()));
    std::fs::write(&path, noise(9000)).expect("room");
    let from = File::open(&path).expect("the file");
    std::fs::remove_file(&path).expect("it is there");
    let (mut at, mut to) = (0_i64, 50_i64);
    // SAFETY: two numbers are read and written.
    let copied = unsafe {
        libc::copy_file_range(from.as_raw_fd(), &raw mut at, file.as_raw_fd(), &raw mut to, 9000, 0)
    };
    assert_eq!(copied, 9000);
    // SAFETY: a number is read and written.
    let sent = unsafe { libc::sendfile(file.as_raw_fd(), from.as_raw_fd(), &raw mut at, 9000) };
    assert_eq!(sent, 0, "at its end");
}

/// What the kernel refuses of a write that goes around the page cache is refused.
fn around(path: &str) {
    use std::os::unix::fs::OpenOptionsExt as _;
    #[repr(align(4096))]
    struct Pages([u8; 8192]);
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).expect("the file");
    let pages = Pages([9; 8192]);
    for (bytes, at) in [(&pages.0[..100], 0), (&pages.0[..4096], 10), (&pages.0[1..4097], 4096)] {
        let refused = file.write_at(bytes, at).expect_err("it is no whole block");
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
    file.write_all_at(&pages.0, 16_384).expect("room");
}

/// Closes all that there is, as programs do which begin; the number is another descriptor's behind that.
fn closed(file: &mut File, path: &str) {
    file.write_all(b"before").expect("room");
    // SAFETY: what had these numbers is forgotten.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
    let again = File::options().read(true).write(true).open(path).expect("the file is there");
    std::mem::forget(std::mem::replace(file, again));
    let other = File::open("/dev/null").expect("a device");
    // SAFETY: a new number, which is this file's from then on.
    let third = unsafe { File::from_raw_fd(libc::dup2(file.as_raw_fd(), other.as_raw_fd())) };
    std::mem::forget(other);
    third.write_all_at(b"by a number that was a device's", 3000).expect("room");
    file.write_all_at(&noise(5000), 100).expect("room");
}

/// Writes go elsewhere when the flags of a descriptor are others, whoever changes them.
fn flags(file: &File) {
    let other = file.try_clone().expect("a descriptor");
    let set = |flags: i32| {
        // SAFETY: no memory is touched.
        assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_SETFL, flags) }, 0);
    };
    file.write_all_at(b"where it is said", 100).expect("room");
    set(libc::O_APPEND);
    file.write_all_at(b"at the end all the same", 100).expect("room");
    file.write_all_at(&noise(5000), 100).expect("room");
    set(0);
    file.write_all_at(b"where it is said again", 200).expect("room");
}

/// Appends by a description that nobody else has.
fn at_the_end(path: &str) {
    let path = format!("{path}.end");
    let mut file = File::options().append(true).create(true).open(path).expect("room");
    for n in 0..100 {
        file.write_all(&noise(1 + n * 50)).expect("room");
        file.write_all_at(b"it appends all the same", 3).expect("room");
        file.sync_data().expect("a disk");
    }
}

/// A child whose calls nobody sees writes by the same description.
fn unseen_child(file: &File) {
    let inherited = file.try_clone().expect("a descriptor");
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", "printf foreign"]).env_remove("LD_PRELOAD").stdout(inherited).status();
    assert!(status.expect("a shell").success());
}

/// A process whose calls nobody sees is sent the descriptor, and writes by it.
fn send(file: &File) {
    let socket = std::os::unix::net::UnixStream::connect("socket").expect("somebody listens");
    let mut byte = [1_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SOL_SOCKET and SCM_RIGHTS are 1.
    let mut control = [20_u64, 1 << 32 | 1, file.as_raw_fd() as u64];
    // SAFETY: numbers and pointers, for which zeros are values; they name live memory.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 24;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
    (&socket).read_exact(&mut byte).expect("it is written");
}

fn ring() {
    let mut parameters = [0_u8; 120];
    // SAFETY: the kernel writes its parameters.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()) };
    assert_eq!((made, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOSYS)));
}

/// For each byte on its standard input, writes a record and says its number when it is durable.
fn forever(file: &File, run: u64) {
    for n in 0_u64.. {
        if std::io::stdin().read_exact(&mut [0]).is_err() {
            return;
        }
        let record = [(run << 32 | n).to_le_bytes(); 75];
        file.write_all_at(record.as_flattened(), n * 600).expect("room");
        file.sync_data().expect("a disk");
        println!("{n}");
    }
}
