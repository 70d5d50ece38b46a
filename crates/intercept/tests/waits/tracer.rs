//! Sees every system call of a program and of all that it starts, as the kernel does: `ptrace(2)`.
#![expect(unsafe_code, reason = "ptrace")]

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The number of the call by which the probe says that from now on it sees everything, and where its own calls come from.
const MARK: u64 = 0x7ea1;
const RT_SIGRETURN: u64 = 15;
/// Made by the kernel in place of a call that a signal interrupted.
const RESTART_SYSCALL: u64 = 219;

/// A process, a number, and the address of the instruction.
pub(crate) type Key = (u64, u64, u64);

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How often each call was made that the hook should have seen.
    pub(crate) calls: HashMap<Key, u64>,
    /// How often the kernel made one of them once more by itself, after a signal.
    pub(crate) restarts: HashMap<Key, u64>,
    /// How many programs were executed, and how many of these had the hook.
    pub(crate) executed: u64,
    pub(crate) hooked: u64,
    /// How the first process ended.
    pub(crate) status: i32,
}

/// What is known of a thread.
#[derive(Clone, Copy, Default)]
struct Thread {
    pid: u64,
    /// Where the hook's own calls come from, and the kernel's object; none before the mark.
    own: Option<[(u64, u64); 2]>,
    /// The call that it is in.
    inside: Option<Key>,
}

/// Runs a program to the end of all that it starts, or gives `None` where nobody may trace.
pub(crate) fn trace(command: &mut Command) -> Option<Seen> {
    // SAFETY: one call, which is safe in a forked child.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) if why.raw_os_error() == Some(libc::EPERM) => return None,
        Err(why) => panic!("{command:?}: {why}"),
    };
    let root = i32::try_from(child.id()).expect("a process");
    let mut seen = Seen::default();
    let mut threads: HashMap<i32, Thread> = HashMap::new();
    // Those that stopped before their parent told of them.
    let mut early: HashMap<i32, i32> = HashMap::new();
    let mut status = 0;
    // SAFETY: waits for this thread's children and tracees only; other tests have theirs.
    let wait = |status: &mut i32| unsafe { libc::waitpid(-1, status, libc::__WALL | libc::__WNOTHREAD) };
    assert_eq!(wait(&mut status), root, "the first stop is that of exec");
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    // SAFETY: the tracee is stopped.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, root, 0, options) }, 0);
    threads.insert(root, Thread { pid: tgid(root), ..Thread::default() });
    seen.executed = 1;
    go_on(root, 0);
    loop {
        let tid = wait(&mut status);
        if tid < 0 {
            break;
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            threads.remove(&tid);
            if tid == root {
                seen.status = status;
            }
            continue;
        }
        if !threads.contains_key(&tid) {
            early.insert(tid, status);
            continue;
        }
        step(tid, status, &mut seen, &mut threads, &mut early);
    }
    // It was waited for above; the handle has nothing left to wait for.
    drop(child.try_wait());
    Some(seen)
}

fn step(
    tid: i32,
    status: i32,
    seen: &mut Seen,
    threads: &mut HashMap<i32, Thread>,
    early: &mut HashMap<i32, i32>,
) {
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
            let new = i32::try_from(message(tid)).expect("a thread");
            let parent = threads[&tid];
            threads.insert(new, Thread { pid: tgid(new), own: parent.own, inside: None });
            if early.remove(&new).is_some() {
                go_on(new, 0);
            }
            go_on(tid, 0);
        }
        libc::PTRACE_EVENT_EXEC => {
            let former = i32::try_from(message(tid)).expect("a thread");
            threads.remove(&former);
            threads.insert(tid, Thread { pid: tgid(tid), ..Thread::default() });
            seen.executed += 1;
            go_on(tid, 0);
        }
        _ if signal == libc::SIGTRAP | 0x80 => {
            syscall(tid, seen, threads.get_mut(&tid).expect("known"));
            go_on(tid, 0);
        }
        // A new thread's first stop is none of its signals.
        _ if signal == libc::SIGSTOP => go_on(tid, 0),
        _ => go_on(tid, signal),
    }
}

fn syscall(tid: i32, seen: &mut Seen, thread: &mut Thread) {
    // SAFETY: the tracee is stopped, and the kernel writes no more than the structure has.
    let info = unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        if libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, &raw mut info) <= 0 {
            return;
        }
        info
    };
    if info.op == libc::PTRACE_SYSCALL_INFO_EXIT {
        // SAFETY: this is an exit.
        let result = unsafe { info.u.exit.sval };
        // ERESTARTSYS and its like: the kernel makes the call again, unless a handler is not to have it.
        if let Some(key) = thread.inside.take().filter(|_| (-516..=-512).contains(&result)) {
            *seen.restarts.entry(key).or_default() += 1;
        }
        return;
    }
    // SAFETY: this is an entry.
    let (number, arguments) = unsafe { (info.u.entry.nr, info.u.entry.args) };
    let at = info.instruction_pointer - 2;
    thread.inside = None;
    if number == MARK {
        thread.own = Some([(arguments[0], arguments[1]), kernel_object(tid)]);
        seen.hooked += 1;
        return;
    }
    let Some(own) = thread.own else { return };
    let unseen = [RT_SIGRETURN, RESTART_SYSCALL].contains(&number)
        || own.iter().any(|&(from, to)| (from..to).contains(&at));
    if !unseen {
        let key = (thread.pid, number, at);
        thread.inside = Some(key);
        *seen.calls.entry(key).or_default() += 1;
    }
}

fn go_on(tid: i32, signal: i32) {
    // SAFETY: the tracee is stopped. One that was killed meanwhile cannot go on, and its end is waited for.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, tid, 0, signal) };
}

fn message(tid: i32) -> u64 {
    let mut message = 0_u64;
    // SAFETY: the tracee is stopped; the kernel writes a word.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message) }, 0);
    message
}

fn tgid(tid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|tgid| tgid.trim().parse().ok()).unwrap_or(tid.unsigned_abs().into())
}

/// Where the kernel's object (vDSO) is: it makes calls for clocks that it cannot read.
fn kernel_object(tid: i32) -> (u64, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{tid}/maps")).unwrap_or_default();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap_or_default();
    let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
    let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
    ends.map_or((0, 0), |(from, to)| (hex(from), hex(to)))
}
