//! Memory of this process: where there is room, and the two ways in which it becomes code.
//!
//! *The promise of this room*: no page is writable and executable at once, at no moment. Trampolines are written, and then made
//! executable; a library's own page loses its right to be executed while it is written to. So that must be done while
//! nobody executes it: one thread, its signals blocked, and no call of a library in between.
#![expect(unsafe_code, reason = "maps memory, and writes over code")]

use std::ops::Range;

use super::gate::{self, raw};
use super::{InstallError, Scope};
use crate::image::{Image, ProgramHeader, Segment};
use crate::plan::Patch;

/// The size of a page.
pub(super) const PAGE: u64 = 4096;

const MAP: u64 = libc::SYS_mmap as u64;
const PROTECT: u64 = libc::SYS_mprotect as u64;
const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXECUTE: u64 = libc::PROT_EXEC as u64;

/// Maps memory of zeros: anywhere at 0, or exactly there and over nothing else. `None` if that cannot be.
fn map(at: u64, length: u64, rights: u64) -> Option<u64> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed) as u64;
    // SAFETY: new memory, over nothing that is mapped.
    let mapped = unsafe { raw(MAP, [at, length, rights, flags, u64::MAX, 0]) };
    u64::try_from(mapped).ok().filter(|mapped| at == 0 || *mapped == at)
}

fn protect(at: u64, length: u64, rights: u64) -> i64 {
    // SAFETY: the callers' own memory, or code that they may write to as this room promises.
    unsafe { raw(PROTECT, [at, length, rights, 0, 0, 0]) }
}

/// The stacks on which calls are handled, each with a page below it that cannot be touched, and the word that says
/// which of them are in use.
pub(super) fn stacks() -> Result<(u64, u64), InstallError> {
    let stacks = map(0, gate::STACK * gate::STACKS, 0).ok_or(InstallError::Memory)?;
    for stack in 0..gate::STACKS {
        let at = stacks + stack * gate::STACK + PAGE;
        if protect(at, gate::STACK - PAGE, READ | WRITE) < 0 {
            return Err(InstallError::Memory);
        }
    }
    let used = map(0, PAGE, READ | WRITE).ok_or(InstallError::Memory)?;
    let advice = libc::MADV_WIPEONFORK as u64;
    // SAFETY: the page that was mapped above.
    if unsafe { raw(libc::SYS_madvise as u64, [used, PAGE, advice, 0, 0, 0]) } < 0 {
        return Err(InstallError::Memory);
    }
    Ok((stacks, used))
}

/// Memory of which the last part becomes code.
#[derive(Debug)]
pub(super) struct Area {
    /// All of it.
    pub(super) range: Range<u64>,
}

impl Area {
    /// Maps an area of which every byte is within reach of a jump from every byte of an object, and the other way round.
    pub(super) fn near(object: &Range<u64>, length: u64) -> Result<Self, InstallError> {
        /// Two GiB, and some room for what a jump's own length adds.
        const REACH: u64 = (1 << 31) - (1 << 16);
        let lowest = object.end.saturating_sub(REACH).max(1 << 16);
        let highest = object.start.saturating_add(REACH).min(1 << 47);
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| InstallError::Maps)?;
        for gap in gaps(&maps, lowest..highest, length, object) {
            if let Some(at) = map(gap, length, READ | WRITE) {
                return Ok(Self { range: at..at + length });
            }
        }
        Err(InstallError::Near)
    }

    /// Writes into it; before [`finish`](Self::finish), or into the part that is no code.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at >= self.range.start && at + bytes.len() as u64 <= self.range.end, "outside of the area");
        // SAFETY: within the area, which is ours alone and writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    /// Makes the part from an address on code, and no longer writable.
    pub(super) fn finish(&self, code: u64) -> Result<(), InstallError> {
        match protect(code, self.range.end - code, READ | EXECUTE) {
            0 => Ok(()),
            _ => Err(InstallError::Memory),
        }
    }
}

/// Where a length fits between what is mapped, the nearest to an object first.
fn gaps(maps: &str, within: Range<u64>, length: u64, object: &Range<u64>) -> Vec<u64> {
    let mapped = maps.lines().filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    });
    let mut found = Vec::new();
    let mut free = within.start;
    for range in mapped.chain(std::iter::once(within.end..within.end)) {
        let end = range.start.min(within.end);
        if end.checked_sub(free).is_some_and(|room| room >= length) {
            // Away from what grows downwards or upwards into the gap, as far as it goes.
            found.extend([(end - length) & !(PAGE - 1), free.next_multiple_of(PAGE)]);
        }
        free = free.max(range.end);
    }
    found.retain(|&at| at >= within.start && at + length <= within.end);
    found.sort_by_key(|&at| at.abs_diff(object.start));
    found
}

/// An object that is loaded in this process.
#[derive(Debug)]
pub(super) struct Object {
    /// Its path, as the loader has it.
    pub(super) name: String,
    /// From its first to its last byte.
    pub(super) range: Range<u64>,
    /// Its segments that cannot be written to.
    pub(super) image: Image<'static>,
}

impl Object {
    /// Whether it was made by Go's linker, as its file says: the mark is where it can be written to in memory.
    pub(super) fn is_go(&self) -> bool {
        let path = if self.name == Scope::PROGRAM { "/proc/self/exe" } else { &self.name };
        std::fs::read(path).is_ok_and(|bytes| crate::inspect::go(&bytes).is_some())
    }
}

/// The objects that are loaded, in the loader's order, but neither the kernel's own nor the one that this code is in.
pub(super) fn objects(scope: Scope) -> Vec<Object> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> i32 {
        // SAFETY: the loader hands over its own description, which stays while the call lasts, and our pointer.
        unsafe {
            let found = &mut *found.cast::<Vec<Object>>();
            found.extend(object(&*info, found.is_empty()));
        }
        0
    }
    let mut found: Vec<Object> = Vec::new();
    // SAFETY: the function and what it gets are as the loader wants them.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    let own = gate::gate().start;
    found.retain(|object| {
        !object.range.contains(&own) && !object.name.contains("linux-vdso") && scope.has(&object.name)
    });
    found
}

/// # Safety
/// The description is the loader's, of an object that stays loaded: its slices are kept.
unsafe fn object(info: &libc::dl_phdr_info, first: bool) -> Option<Object> {
    let name = if info.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's own string.
        unsafe { std::ffi::CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
    };
    let name = if name.is_empty() && first { Scope::PROGRAM.to_owned() } else { name };
    // SAFETY: the loader's own table.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr;
    let mut image = Image::default();
    let (mut start, mut end) = (u64::MAX, 0);
    for header in headers {
        let at = base.wrapping_add(header.p_vaddr);
        match header.p_type {
            ProgramHeader::LOAD => {
                start = start.min(at);
                end = end.max(at.saturating_add(header.p_memsz));
                if header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R {
                    let length = usize::try_from(header.p_filesz).ok()?;
                    // SAFETY: a loaded segment that can be read and not be written to, so that nobody changes it but
                    // this room, which does so while nobody looks at these slices.
                    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, length) };
                    let executable = header.p_flags & libc::PF_X != 0;
                    image.segments.push(Segment { address: at, bytes, executable });
                }
            }
            ProgramHeader::EH_FRAME => image.eh_frame_hdr = Some(at),
            _ => {}
        }
    }
    (start < end).then_some(Object { name, range: start..end, image })
}

/// Writes over code.
///
/// # Safety
/// Nobody else executes these pages meanwhile: the caller is the only thread, or they are an object's that nobody has
/// entered yet. Each patch is what the planner made of these bytes.
pub(super) unsafe fn apply(patches: &[Patch]) -> Result<(), InstallError> {
    let (Some(first), Some(last)) = (
        patches.iter().map(|patch| patch.at).min(),
        patches.iter().map(|patch| patch.at + patch.bytes.len() as u64).max(),
    ) else {
        return Ok(());
    };
    let start = first & !(PAGE - 1);
    let length = last.next_multiple_of(PAGE) - start;
    let all = !(1_u64 << (libc::SIGSYS - 1));
    let mut old = 0_u64;
    let signals = libc::SYS_rt_sigprocmask as u64;
    let set = libc::SIG_SETMASK as u64;
    // SAFETY: the two masks live; from here to the last call nothing is executed that is not in this library: the
    // writes are volatile so that no function of a library is called for them, and the calls are raw.
    unsafe {
        raw(signals, [set, (&raw const all) as u64, (&raw mut old) as u64, 8, 0, 0]);
        let mut done = protect(start, length, READ | WRITE);
        if done == 0 {
            for patch in patches {
                let mut at = patch.at as *mut u8;
                for &byte in &patch.bytes {
                    at.write_volatile(byte);
                    at = at.wrapping_add(1);
                }
            }
            done = protect(start, length, READ | EXECUTE);
        }
        raw(signals, [set, (&raw const old) as u64, 0, 8, 0, 0]);
        if done == 0 { Ok(()) } else { Err(InstallError::Protected) }
    }
}
