//! Where in a datagram stands whose it is; once for us to read, once as a BPF program for the kernel.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::bpf::{self, Insn, MAX_INSNS};

/// Tells whose a datagram is, by bytes at fixed offsets of the UDP payload. The first case that matches decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteerRule {
    /// In order of precedence. The last one should have no condition.
    pub cases: Vec<SteerCase>,
}

/// One case of a [`SteerRule`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteerCase {
    /// All of these must hold.
    pub when: Vec<Match>,
    /// Then this says whose it is.
    pub to: SteerTo,
}

/// A condition on a big-endian number at an offset of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    /// Where the number begins.
    pub offset: u16,
    /// Its size in bytes: 1, 2 or 4.
    pub width: u8,
    /// The bits that count.
    pub mask: u32,
    /// What they must be.
    pub value: u32,
}

/// How the owner is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SteerTo {
    /// The byte at this offset is the owner's slot.
    Slot(u16),
    /// The same; and where nobody has that slot any more, whoever gets it may answer for the dead.
    SlotOrHeir(u16),
    /// The eight bytes at this offset name a service; the owner listens for it.
    Service(u16),
    /// It does not say, and is about a request to a service. Every process that listens for one gets it, as far as there are
    /// not too many, and knows whether it is meant.
    Everyone,
}

/// Whose a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Slot(u8),
    SlotOrHeir(u8),
    Service(u64),
    Everyone,
}

/// Which socket of a reuseport group is whose.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Table {
    pub(crate) slots: Vec<(u8, u32)>,
    pub(crate) services: Vec<(u64, u32)>,
    /// Who gets what is nobody's here, and sends it on; `None`: whom the kernel's hash chooses among all.
    pub(crate) otherwise: Option<u32>,
}

/// Probes begin with these words (see `udp::steer`); the first byte is an opcode that RoCEv2 leaves to
/// manufacturers and that no peer of ours sends.
pub(crate) const PROBE_MAGIC: [u32; 2] = [0xFFE5_7A1D, 0x5EA7_0001];

/// Where a probe says which index it is for.
pub(crate) const PROBE_INDEX_OFFSET: u16 = 8;

/// An index that no group has: the kernel then chooses by a hash of the addresses.
const NO_INDEX: u32 = u32::MAX;

/// Makes the kernel deliver by `rule`, as far as `table` knows and the kernel has room (`net.core.optmem_max` is as
/// little as 20 KiB before Linux 6.7): a shorter program costs detours.
pub(crate) fn attach(fd: BorrowedFd<'_>, rule: &SteerRule, table: &Table) -> io::Result<()> {
    let mut budget = MAX_INSNS;
    loop {
        match bpf::attach_reuseport(fd, &rule.compile(table, budget)) {
            Err(err) if err.raw_os_error() == Some(libc::ENOMEM) && budget > 64 => budget /= 2,
            other => return other,
        }
    }
}

impl SteerRule {
    /// Whose `payload` is; `None` if it is too short to say or no case matches.
    pub(crate) fn owner(&self, payload: &[u8]) -> Option<Owner> {
        for case in &self.cases {
            if case.holds(payload)? {
                return match case.to {
                    SteerTo::Slot(at) => payload.get(usize::from(at)).map(|slot| Owner::Slot(*slot)),
                    SteerTo::SlotOrHeir(at) => {
                        payload.get(usize::from(at)).map(|slot| Owner::SlotOrHeir(*slot))
                    }
                    SteerTo::Service(at) => {
                        let bytes = payload.get(usize::from(at)..)?.first_chunk::<8>()?;
                        Some(Owner::Service(u64::from_be_bytes(*bytes)))
                    }
                    SteerTo::Everyone => Some(Owner::Everyone),
                };
            }
        }
        None
    }

    /// The offset of the slot in datagrams that no special case catches.
    pub(crate) fn plain_slot_offset(&self) -> Option<u16> {
        self.cases.iter().find(|case| case.when.is_empty()).and_then(|case| match case.to {
            SteerTo::Slot(at) | SteerTo::SlotOrHeir(at) => Some(at),
            SteerTo::Service(_) | SteerTo::Everyone => None,
        })
    }

    /// The program, of at most `budget` instructions, that makes the kernel deliver by this rule. Owners that are not
    /// in the table, or for whom no room is left, go where the kernel's hash leads.
    pub(crate) fn compile(&self, table: &Table, budget: usize) -> Vec<Insn> {
        let mut program = probe_case();
        let (slots, services) = self.share_out(budget, table);
        let (slots, services) = (&table.slots[..slots], &table.services[..services]);
        let otherwise = table.otherwise.unwrap_or(NO_INDEX);
        for case in &self.cases {
            let action = match case.to {
                SteerTo::Slot(at) | SteerTo::SlotOrHeir(at) => to_slot(at, slots, otherwise),
                SteerTo::Service(at) => to_service(at, services, otherwise),
                // Whoever gets it sends it on.
                SteerTo::Everyone => vec![Insn::ret(otherwise)],
            };
            program.extend(case.guard(action.len()));
            program.extend(action);
        }
        program.push(Insn::ret(otherwise));
        program
    }

    /// How many slots and services fit: slots first, they carry the data.
    fn share_out(&self, budget: usize, table: &Table) -> (usize, usize) {
        let count = |kind: fn(&SteerTo) -> bool| self.cases.iter().filter(|case| kind(&case.to)).count();
        let by_slot = count(|to| matches!(to, SteerTo::Slot(_) | SteerTo::SlotOrHeir(_)));
        let by_service = count(|to| matches!(to, SteerTo::Service(_)));
        let by_none = self.cases.len() - by_slot - by_service;
        let conditions: usize = self.cases.iter().map(|case| case.when.len()).sum();
        let fixed =
            probe_case().len() + CONDITION_INSNS * conditions + 2 * by_slot + by_service + by_none + 1;
        let room = budget.saturating_sub(fixed);
        let slots = table.slots.len().min(room / (SLOT_INSNS * by_slot).max(1));
        let room = room - slots * SLOT_INSNS * by_slot;
        (slots, table.services.len().min(room / (SERVICE_INSNS * by_service).max(1)))
    }
}

impl SteerCase {
    /// `None` if the payload is too short to say.
    fn holds(&self, payload: &[u8]) -> Option<bool> {
        for condition in &self.when {
            if condition.read(payload)? & condition.mask != condition.value {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Instructions that skip the `action` behind them unless all conditions hold.
    fn guard(&self, action: usize) -> Vec<Insn> {
        let mut code = Vec::new();
        for (i, condition) in self.when.iter().enumerate() {
            let behind = self.when.len() - 1 - i;
            code.push(Insn::load(condition.offset, condition.width));
            code.push(Insn::and(condition.mask));
            code.push(Insn::jump_eq(condition.value, 1, 0));
            code.push(Insn::jump(u32::try_from(behind * CONDITION_INSNS + action).expect("a short program")));
        }
        code
    }
}

impl Match {
    fn read(&self, payload: &[u8]) -> Option<u32> {
        let bytes = payload.get(usize::from(self.offset)..)?.get(..usize::from(self.width))?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }
}

const CONDITION_INSNS: usize = 4;

/// A probe goes to the socket that it names.
fn probe_case() -> Vec<Insn> {
    vec![
        Insn::load(0, 4),
        Insn::jump_eq(PROBE_MAGIC[0], 0, 4),
        Insn::load(4, 4),
        Insn::jump_eq(PROBE_MAGIC[1], 0, 2),
        Insn::load(PROBE_INDEX_OFFSET, 4),
        Insn::ret_a(),
    ]
}

const SLOT_INSNS: usize = 2;

fn to_slot(at: u16, slots: &[(u8, u32)], otherwise: u32) -> Vec<Insn> {
    let mut code = vec![Insn::load(at, 1)];
    for (slot, index) in slots {
        code.push(Insn::jump_eq((*slot).into(), 0, 1));
        code.push(Insn::ret(*index));
    }
    code.push(Insn::ret(otherwise));
    code
}

const SERVICE_INSNS: usize = 5;

fn to_service(at: u16, services: &[(u64, u32)], otherwise: u32) -> Vec<Insn> {
    let mut code = Vec::new();
    for (service, index) in services {
        code.push(Insn::load(at, 4));
        code.push(Insn::jump_eq((service >> 32) as u32, 0, 3));
        code.push(Insn::load(at + 4, 4));
        code.push(Insn::jump_eq(*service as u32, 0, 1));
        code.push(Insn::ret(*index));
    }
    code.push(Insn::ret(otherwise));
    code
}
