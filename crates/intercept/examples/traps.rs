//! A program that does what a library which only replaces functions would miss, for the tests: it is traced while `probe` is preloaded.
//! Its argument is what it does. It ends with a panic where anything differs from what a program without a hook would see.
#![expect(unsafe_code, reason = "C's functions, and system calls by hand")]

use std::arch::asm;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, Ordering};

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    let directory = std::env::var("TMPDIR").unwrap_or_else(|_| "/tmp".into());
    match what.as_str() {
        "stdio" => stdio(&directory),
        "files" => files(&directory),
        "aio" => aio(&directory),
        "threads" => threads(),
        "fork" => fork(),
        "vfork" => vfork(),
        "spawn" => spawn(),
        "signals" => signals(),
        "cancel" => cancel(),
        "registers" => registers(),
        "loaded" => loaded(&directory),
        "answered" => answered(),
        other => panic!("nothing is called {other:?}"),
    }
}

fn path(directory: &str, name: &str) -> CString {
    CString::new(format!("{directory}/{name}-{}", std::process::id())).expect("no zero in it")
}

fn stdio(directory: &str) {
    unsafe extern "C" {
        fn dprintf(fd: i32, format: *const libc::c_char, ...) -> i32;
    }
    let file = path(directory, "stdio");
    // SAFETY: C's functions with what they expect.
    unsafe {
        let stream = libc::fopen(file.as_ptr(), c"w+".as_ptr());
        assert!(!stream.is_null());
        let text = [b'x'; 10_000];
        assert_eq!(libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream), text.len());
        assert_eq!(libc::fflush(stream), 0);
        libc::rewind(stream);
        let mut back = [0_u8; 10_000];
        assert_eq!(libc::fread(back.as_mut_ptr().cast(), 1, back.len(), stream), back.len());
        assert_eq!(back, text);
        assert!(dprintf(libc::fileno(stream), c"%d".as_ptr(), 7) == 1);
        assert_eq!(libc::fclose(stream), 0);
        let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_APPEND);
        let stream = libc::fdopen(fd, c"a".as_ptr());
        assert!(libc::fputs(c"more".as_ptr(), stream) >= 0);
        assert_eq!(libc::fclose(stream), 0);
        let pipe = libc::popen(c"echo from a shell".as_ptr(), c"r".as_ptr());
        let mut line = [0; 64];
        assert!(!libc::fgets(line.as_mut_ptr(), 64, pipe).is_null());
        assert_eq!(CStr::from_ptr(line.as_ptr()), c"from a shell\n");
        assert_eq!(libc::pclose(pipe), 0);
        assert_eq!(libc::remove(file.as_ptr()), 0);
    }
}

fn files(directory: &str) {
    let mut template = CString::new(format!("{directory}/files{}", "X".repeat(6)))
        .expect("no zero in it")
        .into_bytes_with_nul();
    let name = template.as_mut_ptr().cast();
    // SAFETY: as above.
    unsafe {
        let fd = libc::mkstemp(name);
        assert!(fd >= 0);
        assert_eq!(libc::posix_fallocate(fd, 0, 65_536), 0);
        assert_eq!(libc::lockf(fd, libc::F_LOCK, 10), 0);
        assert_eq!(libc::pwrite(fd, name.cast(), 5, 100), 5);
        let part = libc::iovec { iov_base: name.cast(), iov_len: 5 };
        assert_eq!(libc::pwritev(fd, &raw const part, 1, 200), 5);
        assert_eq!(libc::ftruncate(fd, 300), 0);
        assert_eq!(libc::lseek(fd, 0, libc::SEEK_END), 300);
        assert_eq!(libc::fdatasync(fd), 0);
        assert_eq!(libc::fsync(fd), 0);
        let copy = libc::dup(fd);
        assert_eq!(libc::dup2(copy, 50), 50);
        let mut place = 0_i64;
        assert_eq!(libc::copy_file_range(fd, &raw mut place, copy, std::ptr::null_mut(), 100, 0), 100);
        let map = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::munmap(map, 4096), 0);
        *libc::__errno_location() = 77;
        assert_eq!(libc::close(copy), 0);
        assert_eq!(*libc::__errno_location(), 77, "errno is the program's");
        assert_eq!(libc::close(12_345), -1);
        assert_eq!(*libc::__errno_location(), libc::EBADF);
        assert_eq!(libc::unlink(name), 0);
    }
}

fn aio(directory: &str) {
    let file = path(directory, "aio");
    // SAFETY: as above; the control block lives until its request is done.
    unsafe {
        let fd = libc::open(file.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        let mut text = *b"asynchronous";
        let mut block: libc::aiocb = std::mem::zeroed();
        block.aio_fildes = fd;
        block.aio_buf = text.as_mut_ptr().cast();
        block.aio_nbytes = text.len();
        assert_eq!(libc::aio_write(&raw mut block), 0);
        let list = [&raw const block];
        while libc::aio_error(&raw const block) == libc::EINPROGRESS {
            libc::aio_suspend(list.as_ptr(), 1, std::ptr::null());
        }
        assert_eq!(libc::aio_return(&raw mut block), text.len() as isize);
        assert_eq!(libc::unlink(file.as_ptr()), 0);
    }
}

fn threads() {
    let workers: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..200 {
                    let text = std::fs::read_to_string("/proc/self/stat").expect("it is there");
                    assert!(!text.is_empty());
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no panic");
    }
}

fn reap(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}

fn fork() {
    // With threads that are in the middle of calls when a child comes to be.
    static STOP: AtomicU32 = AtomicU32::new(0);
    let busy: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(|| {
                while STOP.load(Ordering::Relaxed) == 0 {
                    // SAFETY: it has no arguments.
                    unsafe { libc::getppid() };
                }
            })
        })
        .collect();
    for _ in 0..20 {
        // SAFETY: the child makes two calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::write(2, b"".as_ptr().cast(), 0);
                libc::_exit(7);
            }
            reap(child);
        }
    }
    STOP.store(1, Ordering::Relaxed);
    for thread in busy {
        thread.join().expect("no panic");
    }
}

fn vfork() {
    unsafe extern "C" {
        fn vfork() -> libc::pid_t;
    }
    for _ in 0..20 {
        // SAFETY: the child makes calls that touch nothing of its parent, and ends.
        unsafe {
            let child = vfork();
            if child == 0 {
                libc::write(2, b"".as_ptr().cast(), 0);
                libc::_exit(7);
            }
            reap(child);
        }
    }
}

fn spawn() {
    for _ in 0..5 {
        let output =
            std::process::Command::new("sh").args(["-c", "echo spawned; exit 3"]).output().expect("a shell");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"spawned\n".as_slice()));
    }
}

/// A timer's signals arrive anywhere: their handler makes calls, of which it is asserted that they come to what they did.
fn signals() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    static PIPE: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: i32) {
        let seen = SEEN.fetch_add(1, Ordering::Relaxed) + 1;
        let fd = PIPE.load(Ordering::Relaxed).cast_signed();
        // SAFETY: it is safe in a handler.
        unsafe {
            let errno = *libc::__errno_location();
            libc::write(fd, b"s".as_ptr().cast(), 1);
            if seen.is_multiple_of(100) {
                // Here, as on a slow machine the next signal may come before anything else is executed.
                let off: libc::itimerval = std::mem::zeroed();
                libc::setitimer(libc::ITIMER_REAL, &raw const off, std::ptr::null_mut());
            }
            *libc::__errno_location() = errno;
        }
    }
    let mut ends = [0; 2];
    // SAFETY: as above; the stack for handlers lives as long as they may come.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK), 0);
        PIPE.store(ends[1].cast_unsigned(), Ordering::Relaxed);
        let mut stack = vec![0_u8; 16_384];
        let alternate = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
        for flags in [libc::SA_RESTART, libc::SA_RESTART | libc::SA_ONSTACK] {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
            let often = libc::timeval { tv_sec: 0, tv_usec: 700 };
            let timer = libc::itimerval { it_interval: often, it_value: often };
            assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()), 0);
            let until = SEEN.load(Ordering::Relaxed) + 100;
            let mut drained = [0_u8; 256];
            while SEEN.load(Ordering::Relaxed) < until {
                let came = libc::read(ends[0], drained.as_mut_ptr().cast(), drained.len());
                assert!(came > 0 || *libc::__errno_location() == libc::EAGAIN);
                assert_eq!(libc::getppid(), libc::getppid());
            }
        }
        let off = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        assert_eq!(libc::sigaltstack(&raw const off, std::ptr::null_mut()), 0);
    }
}

/// A thread that waits in a call is cancelled.
fn cancel() {
    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> i32;
    }
    extern "C" fn waits(pipe: *mut libc::c_void) -> *mut libc::c_void {
        let mut byte = 0_u8;
        // SAFETY: it has a byte to read into; nobody ever writes.
        unsafe { libc::read(pipe as i32, (&raw mut byte).cast(), 1) };
        std::ptr::null_mut()
    }
    let mut ends = [0; 2];
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        for _ in 0..10 {
            let mut thread = 0;
            let pipe = ends[0] as usize as *mut libc::c_void;
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), waits, pipe), 0);
            assert_eq!(pthread_cancel(thread), 0);
            let mut result = std::ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
        }
    }
}

/// What a call leaves: registers, the red zone, vector registers.
#[repr(C)]
#[derive(Default)]
struct Left {
    general: [u64; 14],
    flags: u64,
    zone: [u64; 16],
    vectors: [[u64; 2]; 16],
    rax: u64,
    rcx: u64,
    r11: u64,
    next: u64,
}

/// Makes a call with everything filled in, and gives what is left: the flags are carry, sign, overflow and direction.
fn call(number: u64, argument: u64) -> Left {
    let mut left = Left::default();
    // SAFETY: what is overwritten is saved on the stack, above a red zone of its own; a pointer to `left` is kept there.
    unsafe {
        asm!(
            "push rbx", "push rbp", "push rdi",
            "sub rsp, 136",
            // Vector registers: 100 + n in each.
            "mov rcx, 100",
            "movq xmm0, rcx", "inc rcx", "movq xmm1, rcx", "inc rcx", "movq xmm2, rcx", "inc rcx", "movq xmm3, rcx",
            "inc rcx", "movq xmm4, rcx", "inc rcx", "movq xmm5, rcx", "inc rcx", "movq xmm6, rcx", "inc rcx",
            "movq xmm7, rcx", "inc rcx", "movq xmm8, rcx", "inc rcx", "movq xmm9, rcx", "inc rcx", "movq xmm10, rcx",
            "inc rcx", "movq xmm11, rcx", "inc rcx", "movq xmm12, rcx", "inc rcx", "movq xmm13, rcx", "inc rcx",
            "movq xmm14, rcx", "inc rcx", "movq xmm15, rcx",
            // The red zone: 1 to 16 below the stack pointer.
            "mov rcx, 16",
            "2:", "mov [rsp + rcx * 8 - 136], rcx", "dec rcx", "jnz 2b",
            "mov rdi, rsi", "mov rbx, 11", "mov rdx, 12", "mov rsi, 13", "mov rbp, 14", "mov r8, 15", "mov r9, 16",
            "mov r10, 17", "mov r12, 18", "mov r13, 19", "mov r14, 20", "mov r15, 21",
            "push 0xc83", "popfq", // overflow, direction, sign, carry, and the bit that is always set
            // What `push` overwrote of the red zone.
            "mov qword ptr [rsp - 8], 16",
            "nop dword ptr [rax + rax + 0]", // five bytes that can be moved
            "syscall",
            "3:",
            // Nothing between here and the stores changes flags or the red zone.
            "xchg r15, [rsp + 136]", // `left`, and what was r15
            "mov [r15], rdi", "mov [r15 + 8], rbx", "mov [r15 + 16], rdx", "mov [r15 + 24], rsi", "mov [r15 + 32], rbp",
            "mov [r15 + 40], r8", "mov [r15 + 48], r9", "mov [r15 + 56], r10", "mov [r15 + 64], r12",
            "mov [r15 + 72], r13", "mov [r15 + 80], r14",
            "mov [r15 + 504], rax", "mov [r15 + 512], rcx", "mov [r15 + 520], r11",
            "mov rax, [rsp - 8]", "mov [r15 + 240], rax",
            "pushfq", "pop rax", "mov [r15 + 112], rax", "cld",
            "lea rax, [rip + 3b]", "mov [r15 + 528], rax",
            "mov rax, [rsp + 136]", "mov [r15 + 88], rax",
            "mov rcx, 15",
            "4:", "mov rax, [rsp + rcx * 8 - 136]", "mov [r15 + rcx * 8 + 112], rax", "dec rcx", "jnz 4b",
            "movups [r15 + 248], xmm0", "movups [r15 + 264], xmm1", "movups [r15 + 280], xmm2", "movups [r15 + 296], xmm3",
            "movups [r15 + 312], xmm4", "movups [r15 + 328], xmm5", "movups [r15 + 344], xmm6", "movups [r15 + 360], xmm7",
            "movups [r15 + 376], xmm8", "movups [r15 + 392], xmm9", "movups [r15 + 408], xmm10", "movups [r15 + 424], xmm11",
            "movups [r15 + 440], xmm12", "movups [r15 + 456], xmm13", "movups [r15 + 472], xmm14", "movups [r15 + 488], xmm15",
            "add rsp, 136",
            "pop rdi", "pop rbp", "pop rbx",
            inout("rdi") &raw mut left => _, inout("rsi") argument => _, inout("rax") number => _,
            out("rcx") _, out("rdx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _,
            out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    left
}

fn assert_untouched(left: &Left, argument: u64) {
    assert_eq!(left.general[0], argument, "RDI");
    assert_eq!(left.general[1..12], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]);
    assert_eq!(left.flags & 0xcd5, 0xc81, "flags");
    assert_eq!(left.r11 & 0xcd5, 0xc81, "R11 has the flags");
    let zone: Vec<u64> = (1..=16).collect();
    assert_eq!(left.zone.as_slice(), zone, "the red zone");
    for (register, value) in left.vectors.iter().enumerate() {
        assert_eq!(*value, [100 + register as u64, 0], "xmm{register}");
    }
}

fn registers() {
    for _ in 0..3 {
        let left = call(libc::SYS_getppid as u64, 10);
        // SAFETY: it has no arguments.
        assert_eq!(left.rax, unsafe { libc::getppid() } as u64);
        assert_untouched(&left, 10);
        // Under the net it is that of the stub.
        if !std::env::var("REMANENCE_PROBE_MODE").is_ok_and(|mode| mode.contains("net")) {
            assert_eq!(left.rcx, left.next, "RCX has the next instruction");
        }
    }
}

/// The hook answers this number, which no kernel has.
fn answered() {
    let left = call(0x7ea2, 41);
    assert_eq!(left.rax, 42, "the hook's answer");
    assert_untouched(&left, 41);
    assert_eq!(left.rcx, left.next);
}

/// A library that is loaded later makes calls of its own: they are seen once the probe was told to look again.
fn loaded(directory: &str) {
    // SAFETY: the functions are the probe's, with these signatures; the library is a copy of it that finds no log.
    unsafe {
        let extend: extern "C" fn() -> usize =
            std::mem::transmute(symbol(libc::RTLD_DEFAULT, c"remanence_probe_extend"));
        assert_eq!(extend(), 0, "nothing was loaded since");
        let probe = std::env::var("LD_PRELOAD").expect("the probe is preloaded");
        std::env::remove_var("REMANENCE_PROBE_LOG");
        let copy = format!("{directory}/copy.so");
        std::fs::copy(probe, &copy).expect("a copy");
        let copy = CString::new(copy).expect("no zero in it");
        for _ in 0..2 {
            let library = libc::dlopen(copy.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null());
            let call: extern "C" fn(u64, u64) -> i64 =
                std::mem::transmute(symbol(library, c"remanence_probe_call"));
            assert_eq!(call(0x7ea2, 41), -i64::from(libc::ENOSYS), "it is not known yet");
            assert!(extend() > 0);
            assert_eq!(call(0x7ea2, 41), 42, "the hook's answer");
            assert_eq!(extend(), 0, "all is known");
            // The second time it may be where it was, and is another one.
            assert_eq!(libc::dlclose(library), 0);
        }
    }
}

/// # Safety
/// The library is loaded.
unsafe fn symbol(library: *mut libc::c_void, name: &CStr) -> *mut libc::c_void {
    // SAFETY: the caller's promise.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?}");
    symbol
}
