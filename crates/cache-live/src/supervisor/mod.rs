//! The face of the cache for programs that no library can be loaded into: static ones. The kernel hands their calls to a process of ours, which carries them out in their place.
//!
//! Two processes stand beside the program, and are no relatives of it. The *server* has joined the cache, as one program more, and carries out calls (`calls.rs`), several at a time. The
//! *keeper* does nothing but hold the kernel's end of it as well: if the server is killed, it answers the calls that this one was at (with `EIO`, where something of a file may have been changed, and nobody knows what),
//! and makes another server. Both end with the last process that the filter is over. If both are killed, each call of the program that changes or syncs a file fails with `ENOSYS`.
//!
//! **A call is carried out for a process that may be killed meanwhile**, and what is done for it then could arrive when another one has begun on the same files. So it is asked under the file's lock, right before the
//! kernel's call, whether it is still waited for (`sys::forward`); and each program that is executed below a supervisor begins when what was being done for the dead has ended. Who is not below it, or
//! executes nothing, may see a write that was under way when its process was killed end some microseconds later.
//!
//! Read first: `intercept/src/outside/mod.rs`.
#![expect(unsafe_code, reason = "processes that are forked, and a filter between a fork and a program")]

mod calls;

use std::fs;
use std::io;
use std::mem::forget;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Scope};

use remanence_intercept::Verdict;
use remanence_intercept::outside::filter::{Instruction, filter};
use remanence_intercept::outside::{Caller, Listener, Notified, Seat, confine};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use crate::{face, sys};
use calls::{Calls, MISSING, RULES};

/// So many calls are carried out at a time; others wait.
const THREADS: usize = 64;
/// How long the first program waits for those that are in the middle of a change, and each later one for what is done for the dead.
const CHANGES_MS: u64 = 2000;
/// What the server says when it has joined.
const READY: &[u8] = b"ready";
/// Bytes of the longest sentence that it says else.
const SAID: usize = 512;

/// What each thread of the server is at, for the keeper: a page that both have.
#[derive(Clone, Copy, Debug)]
struct Slots(&'static [AtomicU64]);

impl Slots {
    const WORDS: usize = 2;
    const IDLE: u64 = 0;
    /// A call is received, and it is not known here yet which one.
    const RECEIVES: u64 = 1;
    /// It is looked at, and may be made by the program as well.
    const LOOKS: u64 = 2;
    /// It changes a file.
    const CHANGES: u64 = 3;

    fn word(self, slot: usize, at: usize) -> &'static AtomicU64 {
        &self.0[slot % THREADS * Self::WORDS + at]
    }

    fn set(self, slot: usize, state: u64) {
        self.word(slot, 0).store(state, Ordering::SeqCst);
    }

    fn state(self, slot: usize) -> u64 {
        self.word(slot, 0).load(Ordering::SeqCst)
    }

    fn looks(self, slot: usize, id: u64) {
        self.word(slot, 1).store(id, Ordering::SeqCst);
        self.set(slot, Self::LOOKS);
    }

    /// The number of the wait of the call that a thread is at.
    fn at(self, slot: usize) -> Option<u64> {
        matches!(self.state(slot), Self::LOOKS | Self::CHANGES)
            .then(|| self.word(slot, 1).load(Ordering::SeqCst))
    }

    /// Answers what a server that has died was at. `false`: it had just received a call of which nobody knows.
    fn answer_unfinished(self, listener: &Listener) -> bool {
        let mut is_known = true;
        for slot in 0..THREADS {
            let state = self.state(slot);
            is_known &= state != Self::RECEIVES;
            if let Some(id) = self.at(slot) {
                let failed = Verdict::Return(-i64::from(libc::EIO));
                // It may have been answered just before.
                listener.answer(id, if state == Self::CHANGES { failed } else { Verdict::Pass });
            }
            self.set(slot, Self::IDLE);
        }
        is_known
    }
}

/// What one thread of the server is at.
#[derive(Clone, Copy, Debug)]
struct Slot(Slots, usize);

impl Slot {
    /// From now on nobody can say any more what was done of the call.
    fn changes(self) {
        self.0.set(self.1, Slots::CHANGES);
    }
}

/// A supervisor that waits for its program.
#[derive(Debug)]
pub struct Supervisor {
    socket: OwnedFd,
    filter: Vec<Instruction>,
}

impl Supervisor {
    /// Starts one, which joins the cache whose daemon has a socket there.
    ///
    /// # Errors
    /// One sentence: it cannot, or it would not be allowed to look into its program. Also where this process has several threads: of these none would be
    /// in the processes that are forked.
    pub fn start(daemon: &Path) -> Result<Self, String> {
        let failed = |what: &str, why: io::Error| format!("{what}: {why}");
        let threads = fs::read_dir("/proc/self/task").map_err(|why| failed("/proc/self/task", why))?.count();
        if threads != 1 {
            return Err("this process has several threads, and cannot be forked".into());
        }
        is_allowed()?;
        let filter = filter(&RULES, &MISSING).ok_or("the filter has too many values")?;
        let page = sys::shared_page();
        let slots = Slots(page.map_err(|errno| failed("memory", io::Error::from_raw_os_error(errno)))?);
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let sockets = rustix::net::socketpair(kind.0, kind.1, kind.2, None);
        let (socket, theirs) = sockets.map_err(|why| failed("a socket", why.into()))?;
        // SAFETY: there is one thread, as was just seen, so the child is as whole as this process. It never returns.
        match unsafe { libc::fork() } {
            -1 => return Err(failed("a process", io::Error::last_os_error())),
            0 => become_nobodys_child(theirs, daemon.as_os_str().as_bytes(), slots),
            // SAFETY: a child of ours, of which nothing is to be known.
            child => unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) },
        };
        drop(theirs);
        let mut said = [0; SAID];
        let len = rustix::net::recv(&socket, &mut said[..], RecvFlags::empty());
        match len.map(|(len, _)| &said[..len]) {
            Ok(READY) => Ok(Self { socket, filter }),
            Ok([]) | Err(_) => Err("the supervisor of this program has ended".into()),
            Ok(why) => Err(String::from_utf8_lossy(why).into_owned()),
        }
    }

    /// Has all calls that matter of a command's program, and of all that it executes, handed to this supervisor, from right before it begins. It is then no more to be
    /// put under a hook as well.
    pub fn watch(self, command: &mut Command) {
        let Self { socket, filter } = self;
        let confined = move || {
            let listener = confine(&filter)?;
            // For the server and for the keeper.
            for _ in 0..2 {
                sys::send(socket.as_raw_fd(), b"l", &[listener.as_raw_fd()])
                    .map_err(io::Error::from_raw_os_error)?;
            }
            Ok(())
        };
        // SAFETY: it makes system calls, and allocates nothing.
        unsafe { command.pre_exec(confined) };
    }
}

/// Whether a process of this user may look into another one that is not its child.
fn is_allowed() -> Result<(), String> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scope = scope.trim();
    if matches!(scope, "" | "0") || rustix::process::geteuid().is_root() && scope != "3" {
        return Ok(());
    }
    Err(format!(
        "the kernel lets no process look into another one (kernel.yama.ptrace_scope is {scope}), which a program like this one takes: set it to 0, or run as root"
    ))
}

/// Ends this process, as it has nothing that would have to be done before.
fn end(code: i32) -> ! {
    // SAFETY: nothing is run any more.
    unsafe { libc::_exit(code) }
}

/// What is forked first: makes the keeper, in a session of its own, and ends.
fn become_nobodys_child(socket: OwnedFd, daemon: &[u8], slots: Slots) -> ! {
    // SAFETY: numbers only.
    unsafe { libc::setsid() };
    match forked() {
        0 => keep(&apart(socket), daemon, slots),
        _ => end(0),
    }
}

/// Forks this process, which has one thread; gives 0 in the child, and nothing sensible where there is none.
fn forked() -> libc::pid_t {
    // SAFETY: one thread: the child is as whole as its parent.
    unsafe { libc::fork() }
}

/// Leaves everything that is the caller's: its terminal, its directory, and all its descriptors but one, so that nobody waits for the end of a pipe that is held here.
fn apart(socket: OwnedFd) -> OwnedFd {
    /// Behind the standard ones.
    const FIRST: i32 = 3;
    // SAFETY: numbers and texts that live. What is closed here belonged to values of the parent's that are dropped in no child: both of them only ever end by `_exit`.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in 0..FIRST {
            libc::dup2(null, standard);
        }
        if socket.as_raw_fd() != FIRST {
            libc::dup3(socket.as_raw_fd(), FIRST, libc::O_CLOEXEC);
        }
        forget(socket);
        libc::syscall(libc::SYS_close_range, FIRST + 1, u32::MAX, 0);
        libc::chdir(c"/".as_ptr());
        libc::prctl(libc::PR_SET_NAME, c"rem-supervisor".as_ptr());
        // Ends of children are to be seen, and a limit is the program's own.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        OwnedFd::from_raw_fd(FIRST)
    }
}

/// What the keeper does.
fn keep(socket: &OwnedFd, daemon: &[u8], slots: Slots) -> ! {
    // Each call that is carried out takes a few descriptors, however few a shell has left to its programs.
    let limits = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    let mut server = forked();
    if server == 0 {
        let joined = face::join(daemon);
        let said = joined.as_ref().map_or_else(|why| why.as_bytes(), |_| READY);
        let _ = rustix::net::send(socket, &said[..said.len().min(SAID)], SendFlags::NOSIGNAL);
        match listener(socket).filter(|_| joined.is_ok()) {
            Some(listener) => serve(listener, slots),
            None => end(0),
        }
    }
    if server < 0 {
        end(1);
    }
    // Whoever has started us ends without a program: so do we. Or he waits for what the server has to say, which is gone: he hears of our end.
    let Some(listener) = lives_until_told(socket, server).then(|| listener(socket)).flatten() else { end(0) };
    // SAFETY: it is this process' own, and nothing uses it any more.
    unsafe { libc::close(socket.as_raw_fd()) };
    loop {
        let mut status = 0;
        // SAFETY: a child of ours, and a number that is written.
        let waited = unsafe { libc::waitpid(server, &raw mut status, 0) };
        // One that ends by itself has nobody left to work for, or cannot: another one could not either.
        if waited != server || libc::WIFEXITED(status) {
            end(libc::WEXITSTATUS(status));
        }
        // Where a call is lost of which nobody knows the number, its thread would wait for ever. It ends with the listener: with an error, as each call from then on.
        if !slots.answer_unfinished(&listener) {
            end(1);
        }
        server = forked();
        match server {
            // Without a daemon, calls are the kernel's.
            0 => {
                let _ = face::join(daemon);
                serve(listener, slots)
            }
            -1 => end(1),
            _ => {}
        }
    }
}

/// Waits until the program is about to begin, or will not. `false`: the server has ended before.
fn lives_until_told(socket: &OwnedFd, server: libc::pid_t) -> bool {
    let lives = Pid::from_raw(server).and_then(|server| pidfd_open(server, PidfdFlags::empty()).ok());
    let Some(lives) = lives else { return false };
    loop {
        let mut fds = [socket, &lives].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) => return !fds[0].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// What the program sends when it is about to begin; `None`: it does not.
fn listener(socket: &OwnedFd) -> Option<Listener> {
    let (_, fds) = sys::receive_owned(socket.as_fd(), &mut [0; 8]).ok()?;
    Listener::new(fds.into_iter().next()?).ok()
}

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// Carries out calls until nobody is left who could make one, and ends.
fn serve(listener: Listener, slots: Slots) -> ! {
    // Whoever waits for an answer would wait for ever: the keeper gives it.
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    let listener = LISTENER.get_or_init(|| listener);
    sys::on_behalf(|id| LISTENER.get().is_some_and(|listener| listener.is_waiting(id)));
    let serving = Serving {
        listener,
        slots,
        turn: Mutex::new(()),
        idle: AtomicUsize::new(0),
        threads: AtomicUsize::new(1),
        has_begun: AtomicBool::new(false),
    };
    thread::scope(|scope| serving.serve(scope, 0));
    end(0)
}

/// What the server's threads share.
struct Serving {
    listener: &'static Listener,
    slots: Slots,
    /// One of them receives at a time, and none of them waits meanwhile.
    turn: Mutex<()>,
    /// How many of them have nothing to do.
    idle: AtomicUsize,
    threads: AtomicUsize,
    /// The first program has begun.
    has_begun: AtomicBool,
}

impl Serving {
    /// What each thread does; others are called for as they are needed.
    fn serve<'s>(&'s self, scope: &'s Scope<'s, '_>, slot: usize) {
        let Ok(seat) = self.listener.seat() else { return self.is_one_less(slot) };
        let mut calls = Calls::new(Slot(self.slots, slot));
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let notified = self.next(&seat, slot);
            let others = self.idle.fetch_sub(1, Ordering::SeqCst) - 1;
            let Some(notified) = notified else { return };
            let more = self.threads.load(Ordering::SeqCst);
            let is_needed = others == 0 && more < THREADS;
            if is_needed
                && self.threads.compare_exchange(more, more + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                // Without it, this one does what there is.
                let spawned = thread::Builder::new().spawn_scoped(scope, move || self.serve(scope, more));
                if spawned.is_err() {
                    self.is_one_less(more);
                }
            }
            let verdict = match notified.call.number.cast_signed() {
                libc::SYS_execve | libc::SYS_execveat => self.execute(slot, &notified),
                _ => calls.carry_out(&notified),
            };
            self.listener.answer(notified.id, verdict);
            self.slots.set(slot, Slots::IDLE);
        }
    }

    /// A thread has no place: the others do what there is, and where there are none, another server has to.
    fn is_one_less(&self, slot: usize) {
        if slot == 0 {
            end(1);
        }
        self.threads.store(THREADS, Ordering::SeqCst);
    }

    /// The next call; `None`: there will be none.
    fn next(&self, seat: &Seat<'_>, slot: usize) -> Option<Notified> {
        loop {
            match seat.wait() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => end(1),
            }
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.listener.has_call() {
                continue;
            }
            self.slots.set(slot, Slots::RECEIVES);
            match self.listener.receive() {
                Ok(Some(notified)) => {
                    self.slots.looks(slot, notified.id);
                    return Some(notified);
                }
                Ok(None) => self.slots.set(slot, Slots::IDLE),
                Err(_) => end(1),
            }
        }
    }

    /// A program is executed: what was being done for processes that are gone has ended by then. The first one is not, if we may not look into it.
    fn execute(&self, slot: usize, notified: &Notified) -> Verdict {
        if !self.has_begun.swap(true, Ordering::SeqCst) {
            // Those of another supervisor, whose program was killed a moment ago.
            face::wait_changes(CHANGES_MS);
            let seen = Caller::of(notified.thread).and_then(|caller| caller.descriptor(0));
            if seen.is_err_and(|why| why.raw_os_error() == Some(libc::EPERM)) {
                return Verdict::Return(-i64::from(libc::EPERM));
            }
        }
        let until = sys::monotonic() + CHANGES_MS * 1_000_000;
        for other in (0..THREADS).filter(|other| *other != slot) {
            let Some(id) = self.slots.at(other) else { continue };
            while !self.listener.is_waiting(id)
                && self.slots.at(other) == Some(id)
                && sys::monotonic() < until
            {
                sys::yield_now();
            }
        }
        Verdict::Pass
    }
}
