//! Which calls the kernel hands to a supervisor, as a program for its filter: classic BPF over `struct seccomp_data`.
//!
//! Read first: seccomp(2), and the kernel's `Documentation/userspace-api/seccomp_filter.rst`. A call is handed over by its number, and of some
//! numbers by what an argument has; a call that the filter does not name is made as if there was none. Calls of other
//! architectures' tables (`int 0x80`, x32) are never handed over: their numbers mean something else.

/// A call that is handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The number of the call.
    pub number: u16,
    /// Which of its calls.
    pub when: ArgumentFilter,
}

/// Which calls of a number are handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentFilter {
    /// All of them.
    Always,
    /// Those of which the low half of an argument, as far as these bits of it count, is one of some values.
    Argument {
        /// Which argument, from 0 on.
        at: u8,
        /// The bits that count.
        mask: u32,
        /// The values, of which there are a few.
        is: &'static [u32],
    },
}

/// An instruction of the filter, as the kernel has it (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// So many instructions are left out if a comparison holds.
    pub then: u8,
    /// So many if it does not.
    pub otherwise: u8,
    /// The number that it works with.
    pub value: u32,
}

/// `ld [k]`: a word of the call's description.
pub const LOAD: u16 = 0x20;
/// `and #k`.
pub const AND: u16 = 0x54;
/// `jeq #k`.
pub const EQUAL: u16 = 0x15;
/// `ret #k`.
pub const RETURN: u16 = 0x06;

/// Where the number, the architecture and the arguments are in the description, in bytes.
pub const AT_NUMBER: u32 = 0;
/// The architecture's place there.
pub const AT_ARCHITECTURE: u32 = 4;
/// Where the first argument's low half is; each has eight bytes.
pub const AT_ARGUMENTS: u32 = 16;

/// `AUDIT_ARCH_X86_64`.
pub const ARCHITECTURE: u32 = 0xc000_003e;

/// `SECCOMP_RET_ALLOW`: the call is made.
pub const ALLOW: u32 = 0x7fff_0000;
/// `SECCOMP_RET_USER_NOTIF`: it is handed over.
pub const HAND_OVER: u32 = 0x7fc0_0000;
/// `SECCOMP_RET_ERRNO` with `ENOSYS`: it is refused as on a kernel that lacks it.
pub const MISSING: u32 = 0x0005_0000 | 38;

const fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, then: 0, otherwise: 0, value }
}

/// A comparison, behind which so many instructions are left out if it does not hold.
const fn unless(value: u32, otherwise: u8) -> Instruction {
    Instruction { code: EQUAL, then: 0, otherwise, value }
}

/// The filter that hands over the calls of some rules, and has the kernel lack the calls of some numbers. `None`: a rule has more values than a jump passes.
#[must_use]
pub fn filter(handed: &[Rule], missing: &[u16]) -> Option<Vec<Instruction>> {
    let mut filter = vec![
        plain(LOAD, AT_ARCHITECTURE),
        Instruction { code: EQUAL, then: 1, otherwise: 0, value: ARCHITECTURE },
        plain(RETURN, ALLOW),
        plain(LOAD, AT_NUMBER),
    ];
    for &number in missing {
        filter.extend([unless(number.into(), 1), plain(RETURN, MISSING)]);
    }
    for rule in handed {
        match rule.when {
            ArgumentFilter::Always => {
                filter.extend([unless(rule.number.into(), 1), plain(RETURN, HAND_OVER)])
            }
            ArgumentFilter::Argument { at, mask, is } => {
                let behind = u8::try_from(3 + 2 * is.len()).ok()?;
                filter.push(unless(rule.number.into(), behind));
                filter.extend([plain(LOAD, AT_ARGUMENTS + 8 * u32::from(at)), plain(AND, mask)]);
                is.iter().for_each(|&value| filter.extend([unless(value, 1), plain(RETURN, HAND_OVER)]));
                filter.push(plain(RETURN, ALLOW));
            }
        }
    }
    filter.push(plain(RETURN, ALLOW));
    Some(filter)
}
