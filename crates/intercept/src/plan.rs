//! Decides how each site is patched, and writes the code that takes its place.
//!
//! Read first: `scan.rs`. A patch is a jump of five bytes into a *trampoline*, which executes what the jump replaced,
//! looks whether anybody wants the call, and if not goes on. Three shapes, the best first:
//!
//! - *in place*: the jump replaces instructions before the `syscall`, which itself stays. A call that nobody answers is
//!   made by the program's own instruction, on its own stack: `clone`, `vfork`, cancellation, debuggers and unwinders
//!   see what they would see without us.
//! - *moved*: there is no room before it, so the `syscall` is in the trampoline with what is around it.
//! - either of them with a *short* jump of two bytes, to padding nearby that has the long one.
//!
//! No window has an instruction in its inside at which anything else arrives, and none has a call in it.

use std::ops::Range;

use crate::image::Image;
use crate::scan::{Insn, JUMP, Kind, SIGRETURN, Scan, Site};

/// `jmp rel8`.
const SHORT: u64 = 2;
/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How long a trampoline can become: instructions that grow by four bytes each, and what is fixed.
pub const TRAMPOLINE_MAX: u64 = 512;

/// How one site is patched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The `syscall` instruction's address.
    pub site: u64,
    /// The number of the call, where it is known.
    pub number: Option<u32>,
    /// It is [the Go runtime's](Site::go).
    pub go: bool,
    /// The bytes that are replaced. In place it ends at the `syscall`, otherwise behind it.
    pub window: Range<u64>,
    /// What is moved and executed before the call.
    pub before: Vec<Insn>,
    /// What is moved and executed after the call.
    pub after: Vec<Insn>,
    /// The padding that has the long jump, if the window has room for a short one only.
    pub slot: Option<u64>,
}

impl Plan {
    /// Whether the `syscall` instruction stays where it is.
    #[must_use]
    pub fn in_place(&self) -> bool {
        self.window.end == self.site
    }
}

/// Why a site stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unpatched {
    /// It returns from a signal's handler.
    #[error("it returns from a signal handler")]
    Sigreturn,
    /// No five bytes around it can be moved, and no padding is in reach.
    #[error("too few bytes around it can be moved, and no padding is in reach of a short jump")]
    NoRoom,
    /// It is one of the Go runtime's own, for its scheduler and its memory, on stacks where no hook can run.
    #[error("it is the Go scheduler's own")]
    Go,
}

/// A site with its plan, or why it has none.
pub type Planned = (u64, Result<Plan, Unpatched>);

/// Plans all sites of an object.
#[must_use]
pub fn plan(scan: &Scan) -> Vec<Planned> {
    let mut planner = Planner { scan, taken: 0, slots: Vec::new() };
    let ahead = scan.sites.iter().skip(1).map(|site| site.at).chain([u64::MAX]);
    scan.sites.iter().zip(ahead).map(|(site, next)| (site.at, planner.plan(site, next))).collect()
}

struct Planner<'a> {
    scan: &'a Scan,
    /// The end of the last window.
    taken: u64,
    /// The padding that has a long jump in it already.
    slots: Vec<u64>,
}

impl Planner<'_> {
    fn plan(&mut self, site: &Site, next: u64) -> Result<Plan, Unpatched> {
        // The kernel takes the stack there for the signal's frame, there is nothing to answer, and unwinders know these bytes.
        if site.number == Some(SIGRETURN) {
            return Err(Unpatched::Sigreturn);
        }
        let plan = self
            .in_place(site, JUMP)
            .or_else(|| self.moved(site, next))
            .or_else(|| self.short(site))
            .ok_or(Unpatched::NoRoom)?;
        self.taken = plan.window.end.max(site.at + 2);
        self.slots.extend(plan.slot);
        Ok(plan)
    }

    /// The longer and longer straight lines that end at the site and may be moved.
    fn behind<'s>(&self, site: &'s Site) -> impl Iterator<Item = &'s [Insn]> {
        let movable = site
            .before
            .iter()
            .rev()
            .take_while(|insn| {
                let outside = insn.at >= self.taken && !self.scan.entered(insn.at + 1..site.at + 1);
                outside && !matches!(insn.kind, Kind::Fixed | Kind::Jump(_))
            })
            .count();
        (0..=movable).map(|count| &site.before[site.before.len() - count..])
    }

    fn in_place(&self, site: &Site, room: u64) -> Option<Plan> {
        let whole = |before: &&[Insn]| before.first().is_some_and(|first| site.at - first.at >= room);
        let before = self.behind(site).find(whole)?;
        accept(site, before, &[], before.first()?.at..site.at)
    }

    fn moved(&self, site: &Site, next: u64) -> Option<Plan> {
        // No window reaches into what the next site may need, and none over a jump away: what follows that is not reached.
        let away = site.after.iter().position(|insn| matches!(insn.kind, Kind::Jump(_)));
        let after = &site.after[..away.map_or(site.after.len(), |at| at + 1)];
        let may = |insn: &&Insn| insn.kind != Kind::Fixed && insn.end() <= next;
        let after = &after[..after.iter().take_while(may).count()];
        self.behind(site).find_map(|before| {
            let start = before.first().map_or(site.at, |first| first.at);
            let ends = (0..=after.len()).map(|count| &after[..count]);
            let windows = ends.map(|after| (after, after.last().map_or(site.at + 2, Insn::end)));
            let (after, end) = windows.into_iter().find(|(_, end)| end - start >= JUMP)?;
            let free = !self.scan.entered(start + 1..end);
            free.then(|| accept(site, before, after, start..end)).flatten()
        })
    }

    fn short(&self, site: &Site) -> Option<Plan> {
        let mut plan = self.in_place(site, SHORT).or_else(|| {
            let window = site.at..site.at + 2;
            let free = site.at >= self.taken && !self.scan.entered(site.at + 1..site.at + 2);
            free.then(|| accept(site, &[], &[], window)).flatten()
        })?;
        let from = plan.window.start + SHORT;
        let reach = from.saturating_sub(128)..from + 128 - JUMP;
        let slots = self.scan.padding.iter().flat_map(|padding| {
            let last = padding.end - JUMP;
            (padding.start..=last).step_by(usize::try_from(JUMP).unwrap_or(1))
        });
        let free = |slot: &u64| {
            reach.contains(slot)
                && !self.scan.entered(*slot..*slot + JUMP)
                && !self.slots.iter().any(|used| used.abs_diff(*slot) < JUMP)
        };
        plan.slot = Some(slots.into_iter().find(free)?);
        Some(plan)
    }
}

/// The plan of a window, if nothing that is moved jumps into it.
fn accept(site: &Site, before: &[Insn], after: &[Insn], window: Range<u64>) -> Option<Plan> {
    let inside = |insn: &Insn| match insn.kind {
        Kind::Jump(target) | Kind::Conditional(_, target) => {
            window.contains(&target) && target != window.start
        }
        _ => false,
    };
    let moved = before.iter().chain(after);
    (!moved.into_iter().any(inside)).then(|| Plan {
        site: site.at,
        number: site.number,
        go: site.go,
        window,
        before: before.to_vec(),
        after: after.to_vec(),
        slot: None,
    })
}

/// Where the things are that a trampoline refers to.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The trampoline's own address.
    pub trampoline: u64,
    /// The table with one byte for each number of sixteen bits: zero if nobody wants the call.
    pub table: u64,
    /// The site's record, which begins with the address of the entry.
    pub record: u64,
}

/// A trampoline that was written, and how its call goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trampoline {
    /// Its code, to be put at the address that it was written for.
    pub code: Vec<u8>,
    /// The address of the `syscall` that is executed if nobody answers.
    pub call: u64,
}

/// What is written over an object's own bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Where it begins.
    pub at: u64,
    /// What is there then.
    pub bytes: Vec<u8>,
}

/// Something is further away than a jump reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("something at {0:#x} is further away than a jump reaches")]
pub struct TooFar(pub u64);

/// Writes the trampoline of a plan.
///
/// # Errors
/// It lies too far away from what it refers to.
pub fn trampoline(plan: &Plan, image: &Image<'_>, layout: &Layout) -> Result<Trampoline, TooFar> {
    let mut out = Emitter { at: layout.trampoline, code: Vec::new() };
    for insn in &plan.before {
        out.relocate(insn, image)?;
    }
    // Flags are the program's until the kernel has returned, and only RCX and R11 are free: it overwrites these two.
    out.bytes(&[0x0f, 0xb7, 0xc8]); // movzx ecx, ax
    out.relative(&[0x4c, 0x8d, 0x1d], layout.table)?; // lea r11, [rip + table]
    out.bytes(&[0x41, 0x0f, 0xb6, 0x0c, 0x0b]); // movzx ecx, byte ptr [r11 + rcx]
    out.bytes(&[0xe3, 10]); // jrcxz over the next two
    out.relative(&[0x4c, 0x8d, 0x1d], layout.record)?; // lea r11, [rip + record]
    out.bytes(&[0x41, 0xff, 0x23]); // jmp [r11]
    if plan.in_place() {
        out.relative(&[0xe9], plan.site)?;
        return Ok(Trampoline { code: out.code, call: plan.site });
    }
    let call = out.here();
    out.bytes(&SYSCALL);
    for insn in &plan.after {
        out.relocate(insn, image)?;
    }
    if !matches!(plan.after.last().map(|insn| insn.kind), Some(Kind::Jump(_))) {
        out.relative(&[0xe9], plan.window.end)?;
    }
    Ok(Trampoline { code: out.code, call })
}

/// What is to be written over the object's bytes, so that a site's calls go to its trampoline.
///
/// # Errors
/// The trampoline is too far away.
pub fn patches(plan: &Plan, trampoline: u64) -> Result<Vec<Patch>, TooFar> {
    let jump = |at: u64| {
        let mut out = Emitter { at, code: Vec::new() };
        out.relative(&[0xe9], trampoline).map(|()| Patch { at, bytes: out.code })
    };
    let mut patches = Vec::new();
    let mut window = match plan.slot {
        None => jump(plan.window.start)?,
        Some(slot) => {
            patches.push(jump(slot)?);
            let offset = slot.wrapping_sub(plan.window.start + SHORT).cast_signed();
            let offset = i8::try_from(offset).map_err(|_| TooFar(slot))?;
            Patch { at: plan.window.start, bytes: vec![0xeb, offset.cast_unsigned()] }
        }
    };
    // Nothing is executed here any more; if it is, we were wrong, and a trap tells where.
    let length = usize::try_from(plan.window.end - plan.window.start).unwrap_or(0);
    window.bytes.resize(length.max(window.bytes.len()), 0xcc);
    patches.push(window);
    Ok(patches)
}

struct Emitter {
    at: u64,
    code: Vec<u8>,
}

impl Emitter {
    fn here(&self) -> u64 {
        self.at + self.code.len() as u64
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// An instruction that ends with the distance to an address.
    fn relative(&mut self, opcode: &[u8], target: u64) -> Result<(), TooFar> {
        self.bytes(opcode);
        let distance = target.wrapping_sub(self.here() + 4).cast_signed();
        let distance = i32::try_from(distance).map_err(|_| TooFar(target))?;
        self.bytes(&distance.to_le_bytes());
        Ok(())
    }

    fn relocate(&mut self, insn: &Insn, image: &Image<'_>) -> Result<(), TooFar> {
        let bytes = image.at(insn.at).and_then(|bytes| bytes.get(..usize::from(insn.length)));
        let bytes = bytes.ok_or(TooFar(insn.at))?;
        match insn.kind {
            Kind::Plain | Kind::Fixed => self.bytes(bytes),
            Kind::Jump(target) => self.relative(&[0xe9], target)?,
            Kind::Conditional(condition, target) => self.relative(&[0x0f, 0x80 | condition], target)?,
            Kind::Relative(displacement) => {
                let field = usize::from(displacement);
                let old = bytes.get(field..).and_then(|rest| rest.first_chunk()).ok_or(TooFar(insn.at))?;
                let target = insn.end().wrapping_add_signed(i64::from(i32::from_le_bytes(*old)));
                let end = self.here() + u64::from(insn.length);
                let new =
                    i32::try_from(target.wrapping_sub(end).cast_signed()).map_err(|_| TooFar(target))?;
                let at = self.code.len() + field;
                self.bytes(bytes);
                self.code[at..at + 4].copy_from_slice(&new.to_le_bytes());
            }
        }
        Ok(())
    }
}
