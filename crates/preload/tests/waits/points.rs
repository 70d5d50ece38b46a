//! A program is killed at each point of a write and its sync at which it enters the kernel or leaves it, and somebody who knows nothing of the cache has written to its file just before: between two of these nothing
//! happens but stores to memory that it shares with the daemon. What it had acknowledged is there, nothing of the stranger's is undone, and the file is nobody's for ever.
#![expect(unsafe_code, reason = "ptrace has no wrapper")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use crate::cache::{Cache, Talk, example};
use crate::model::{RECORD, record};

const NEVER: u64 = 3000;
/// Records that are acknowledged before: enough for syncs to be absorbed.
const BEFORE: u64 = 8;

/// A process that is traced.
struct Traced(libc::pid_t);

impl Traced {
    /// Has it stand still.
    fn seize(process: u32) -> Self {
        let this = Self(process.cast_signed());
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        this.ask(libc::PTRACE_SEIZE, options as usize);
        this.ask(libc::PTRACE_INTERRUPT, 0);
        this.stands();
        this
    }

    fn ask(&self, what: libc::c_uint, data: usize) {
        // SAFETY: a child of ours; what is asked for writes at most where `data` says, which the callers own.
        let done = unsafe { libc::ptrace(what, self.0, 0_usize, data) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    fn stands(&self) {
        let mut status = 0;
        // SAFETY: a number is written.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) }, self.0);
        assert!(libc::WIFSTOPPED(status), "it has ended: {status}");
    }

    /// Lets it go on to the next of these points. Gives the call, and whether it enters it.
    fn next(&self) -> (i64, u64, bool) {
        self.ask(libc::PTRACE_SYSCALL, 0);
        self.stands();
        // SAFETY: numbers only, for which zeros are values.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ask(libc::PTRACE_GETREGS, (&raw mut registers) as usize);
        let enters = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
        (registers.orig_rax.cast_signed(), registers.rdi, enters)
    }
}

/// One that has had syncs absorbed, and waits for a word.
fn program(cache: &Cache, file: &str) -> Talk {
    let mut program = Talk::with(cache.command(example("cache_load")).args(["syncs", file]));
    for _ in 0..BEFORE {
        program.say(".");
        assert_eq!(program.line().as_deref(), Some("ok"));
    }
    assert!(cache.count(file, "absorbed") > 0, "{:?}", cache.of(file));
    program
}

fn has_records(bytes: &[u8], what: &str) {
    for n in 0..BEFORE as usize {
        let there = bytes.get(n * RECORD..(n + 1) * RECORD);
        assert_eq!(there, Some(&record(0, 0, 0, n as u64)[..]), "{what}: record {n}");
    }
}

/// Kills it at a point. `false`: it was done before that.
fn is_killed_at(cache: &Cache, point: u64, with_stranger: bool) -> bool {
    let name = format!("file-{point}-{with_stranger}");
    let mut program = program(cache, &name);
    let before = cache.old(&[&name]);
    let traced = Traced::seize(program.child.id());
    program.say(".");
    let (mut writes, mut is_done, mut at) = (false, false, 0);
    while at < point && !is_done {
        let (call, first, enters) = traced.next();
        writes |= call == libc::SYS_pwrite64;
        is_done = writes && enters && call == libc::SYS_read && first == 0;
        at += 1;
    }
    let what = format!("point {point}");
    let strange = [b'f'; RECORD / 2];
    let place = BEFORE * RECORD as u64 + 7;
    let mut behind = None;
    if with_stranger {
        let file = File::options().write(true).open(cache.path(&name)).expect("it is there");
        file.write_all_at(&strange, place).and_then(|()| file.sync_all()).expect("a disk");
        behind = Some(cache.old(&[&name]));
    }
    program.child.kill().expect("it runs");
    program.child.wait().expect("it ends");
    has_records(&fs::read(cache.path(&name)).expect("it is there"), &what);
    if !with_stranger {
        // As a loss of the machine would have left it.
        before.replayed(cache).iter().for_each(|(_, bytes)| has_records(bytes, &what));
    }
    // Nobody waits for who is dead, and what he was at is passed.
    cache.drain();
    let mut other = self::program(cache, &name);
    if let Some(behind) = behind {
        let now = fs::read(cache.path(&name)).expect("it is there");
        assert_eq!(now.get(place as usize..place as usize + strange.len()), Some(&strange[..]), "{what}");
        for (_, bytes) in behind.replayed(cache) {
            assert!(bytes == now, "{what}: what the stranger has synced is undone");
        }
    }
    other.say(".");
    assert_eq!(other.line().as_deref(), Some("ok"));
    other.end();
    !is_done
}

#[test]
fn a_program_that_is_killed_at_each_point_has_lost_nothing() {
    let Some(cache) = Cache::in_memory("points", NEVER) else { return };
    // While somebody is there, nothing is carried out by itself.
    let idle = Talk::with(&mut cache.command("cat"));
    for with_stranger in [false, true] {
        let points = (1..400).find(|point| !is_killed_at(&cache, *point, with_stranger));
        println!("it has {points:?} points");
        assert!(points.is_some_and(|points| points > 10), "{points:?}");
    }
    idle.end();
    cache.stop();
}
