//! Puts a hook into this process.

mod gate;
mod memory;
mod net;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use gate::Record;
pub use gate::raw;
use memory::{Area, Object, PAGE};
pub use net::watch;

use crate::plan::{self, Layout, Patch, Unpatched};
use crate::scan::Scan;
use crate::{Hook, Scope};

/// How many numbers a table tells apart.
const NUMBERS: u64 = 1 << 16;
const RECORD: u64 = size_of::<Record>() as u64;

/// What became of an object's sites.
#[derive(Clone, Debug, Default)]
pub struct Patched {
    /// Its path, as the loader has it, or [`Scope::PROGRAM`].
    pub name: String,
    /// Its sites whose instruction stays where it is.
    pub in_place: usize,
    /// Its sites whose instruction was moved.
    pub moved: usize,
    /// How many of both have a short jump.
    pub short: usize,
    /// Its sites that stay as they are.
    pub unpatched: Vec<(u64, Unpatched)>,
    /// The places of bytes that would be system calls, if they are executed; they could not be decoded.
    pub unknown: Vec<u64>,
}

/// Why a hook could not be put into this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InstallError {
    /// There is one already.
    #[error("a hook is installed in this process already")]
    Again,
    /// Its other threads may be executing what would be written over.
    #[error(
        "other threads of this process are running, and may be executing the code that has to be patched"
    )]
    Threads,
    /// The CPU lacks XSAVE.
    #[error("this CPU cannot save its extended state (XSAVE)")]
    Cpu,
    /// The kernel gives no memory.
    #[error("there is no memory for the hook's stacks and trampolines")]
    Memory,
    /// `/proc` is not mounted.
    #[error("/proc/self/maps and /proc/self/task cannot be read")]
    Maps,
    /// There is no room near an object.
    #[error("there is no free address range within reach of a jump from a library")]
    Near,
    /// Code may not be written to, as a security policy wants it.
    #[error("a library's code may not be changed (mprotect is refused)")]
    Protected,
    /// Nothing is known of the Go runtime's stacks.
    #[error("this is a program of Go, under whose small stacks no net can be put")]
    Go,
    /// The kernel is older than 5.11, or does not let us.
    #[error("the kernel has no syscall user dispatch")]
    Dispatch,
}

/// The objects that were looked at, by their names and addresses, each with a patch by which it is known again: a library
/// that was unloaded and loaded once more has none.
static KNOWN: Mutex<BTreeMap<(String, u64), Option<Patch>>> = Mutex::new(BTreeMap::new());
/// The addresses of the calls that are made if nobody answers.
static CALLS: Mutex<Vec<u64>> = Mutex::new(Vec::new());
static WANTED: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// Patches what is loaded, so that calls of these numbers go to a hook. All others go on after four instructions.
///
/// # Errors
/// As [`InstallError`] says; nothing is patched then, but of objects before the one that failed.
pub fn install(
    hook: Hook,
    numbers: impl IntoIterator<Item = u16>,
    scope: Scope,
) -> Result<Vec<Patched>, InstallError> {
    if gate::is_open() {
        return Err(InstallError::Again);
    }
    let threads = std::fs::read_dir("/proc/self/task").map_err(|_| InstallError::Maps)?.count();
    if threads != 1 {
        return Err(InstallError::Threads);
    }
    let (stacks, used) = memory::stacks()?;
    if !gate::open(hook, stacks, used) {
        return Err(InstallError::Cpu);
    }
    *lock(&WANTED) = numbers.into_iter().collect();
    let patched = extend(scope)?;
    // What is out of the scope now stays so: threads may be in it when `extend` is called.
    for object in memory::objects(Scope::All) {
        lock(&KNOWN).entry((object.name, object.range.start)).or_default();
    }
    Ok(patched)
}

/// Patches what was loaded since, by `dlopen` for one: before anybody calls into it.
///
/// # Errors
/// As [`InstallError`] says.
pub fn extend(scope: Scope) -> Result<Vec<Patched>, InstallError> {
    let numbers = lock(&WANTED).clone();
    let mut all = Vec::new();
    for object in memory::objects(scope) {
        let key = (object.name.clone(), object.range.start);
        let there =
            |patch: &Patch| object.image.at(patch.at).is_some_and(|bytes| bytes.starts_with(&patch.bytes));
        if lock(&KNOWN).get(&key).is_some_and(|patch| patch.as_ref().is_none_or(there)) {
            continue;
        }
        let (patched, patch) = patch(&object, &numbers)?;
        lock(&KNOWN).insert(key, patch);
        all.push(patched);
    }
    Ok(all)
}

/// The range of code from which this crate makes its own calls.
#[must_use]
pub fn own_calls() -> Range<u64> {
    gate::gate()
}

fn calls() -> Vec<u64> {
    lock(&CALLS).clone()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[expect(unsafe_code, reason = "says that nobody executes what is written over")]
fn patch(object: &Object, numbers: &[u16]) -> Result<(Patched, Option<Patch>), InstallError> {
    let scan = Scan::of(&object.image);
    let go = object.is_go();
    let planned = plan::plan(&scan);
    let mut patched = Patched { name: object.name.clone(), unknown: scan.unknown, ..Patched::default() };
    let count = planned.len() as u64;
    if count == 0 {
        return Ok((patched, None));
    }
    // The table and the records stay data, so that they can be changed; the trampolines behind them become code.
    let code = (NUMBERS + count * RECORD).next_multiple_of(PAGE);
    let length = (code + count * plan::TRAMPOLINE_MAX).next_multiple_of(PAGE);
    let area = Area::near(&object.range, length)?;
    let table = area.range.start;
    for &number in numbers {
        area.write(table + u64::from(number), &[1]);
    }
    let (mut record, mut at) = (table + NUMBERS, table + code);
    let mut patches = Vec::new();
    for (site, plan) in planned {
        let plan = match plan.and_then(|plan| if go && !plan.go { Err(Unpatched::Go) } else { Ok(plan) }) {
            Ok(plan) => plan,
            Err(why) => {
                patched.unpatched.push((site, why));
                continue;
            }
        };
        let layout = Layout { trampoline: at, table, record };
        let trampoline = plan::trampoline(&plan, &object.image, &layout).map_err(|_| InstallError::Near)?;
        area.write(at, &trampoline.code);
        for (field, value) in [gate::entry(plan.go), trampoline.call, site].into_iter().enumerate() {
            area.write(record + field as u64 * 8, &value.to_le_bytes());
        }
        patches.extend(plan::patches(&plan, at).map_err(|_| InstallError::Near)?);
        patched.in_place += usize::from(plan.in_place());
        patched.moved += usize::from(!plan.in_place());
        patched.short += usize::from(plan.slot.is_some());
        lock(&CALLS).push(trampoline.call);
        record += RECORD;
        at += (trampoline.code.len() as u64).next_multiple_of(16);
    }
    area.finish(table + code)?;
    // SAFETY: `install` found one thread, and `extend` is for what nobody has entered.
    unsafe { memory::apply(&patches)? };
    Ok((patched, patches.pop()))
}
