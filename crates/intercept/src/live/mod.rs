//! Puts a hook into this process.

mod gate;
mod memory;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;

use gate::Record;
pub use gate::raw;
use memory::{Area, Object, PAGE};

use crate::plan::{self, Layout, Unpatched};
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
}

/// The ranges of objects that were patched.
static DONE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
static NUMBERS_WANTED: Mutex<Vec<u16>> = Mutex::new(Vec::new());

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
    *lock(&NUMBERS_WANTED) = numbers.into_iter().collect();
    extend(scope)
}

/// Patches what was loaded since, by `dlopen` for one: before anybody calls into it.
///
/// # Errors
/// As [`InstallError`] says.
pub fn extend(scope: Scope) -> Result<Vec<Patched>, InstallError> {
    let numbers = lock(&NUMBERS_WANTED).clone();
    let objects = memory::objects(scope).into_iter().filter(|object| lock(&DONE).insert(object.range.start));
    objects.map(|object| patch(&object, &numbers)).collect()
}

/// The range of code from which this crate makes its own calls.
#[must_use]
pub fn own_calls() -> Range<u64> {
    gate::gate()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[expect(unsafe_code, reason = "says that nobody executes what is written over")]
fn patch(object: &Object, numbers: &[u16]) -> Result<Patched, InstallError> {
    let scan = Scan::of(&object.image);
    let go = object.is_go();
    let planned = plan::plan(&scan);
    let mut patched = Patched { name: object.name.clone(), unknown: scan.unknown, ..Patched::default() };
    let count = planned.len() as u64;
    if count == 0 {
        return Ok(patched);
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
        record += RECORD;
        at += (trampoline.code.len() as u64).next_multiple_of(16);
    }
    area.finish(table + code)?;
    // SAFETY: `install` found one thread, and `extend` is for what nobody has entered.
    unsafe { memory::apply(&patches)? };
    Ok(patched)
}
