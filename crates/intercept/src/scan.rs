//! Finds the `syscall` instructions of an object, and around each the straight line of instructions that a patch may move.
//!
//! Read first: `image.rs`, then Intel's manual, volume 2, chapter 2 (instruction format). Bytes `0f 05` are no instruction
//! unless decoding arrives at them. Decoding starts anew at each function that the object's frame table lists, and what
//! it finds there counts only if it is valid to the function's very end. What no function covers (hand-written
//! assembly, libraries without a frame table) is swept from its start on.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::image::{Image, Segment};

/// How many instructions on either side of a `syscall` a patch may need: the shortest five bytes are five instructions.
const NEAR: usize = 12;
/// How many bytes those can have, at most.
const AROUND: u64 = NEAR as u64 * 16;
/// How many entries a jump table may have: more than any real one; it bounds what garbage costs.
const TABLE_MAX: usize = 4096;
/// Below this number of bytes decoded without a fault, a sweep that began nowhere in particular is not believed.
const CONFIDENCE: u64 = 64;
/// The number of `rt_sigreturn`.
pub(crate) const SIGRETURN: u32 = 15;
/// `mov rax, 15`, before a call.
const RESTORER: [u8; 7] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0];
/// How `Syscall6` moves its arguments from the registers of Go to those of the kernel, right before its call:
/// `mov r10, rsi; mov rdx, rdi; mov rsi, rcx; mov rdi, rbx`.
const SYSCALL6: [u8; 12] = [0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf];
/// `jmp rel32`.
pub(crate) const JUMP: u64 = 5;

/// What becomes of an instruction that is executed somewhere else than where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The same bytes do the same anywhere.
    Plain,
    /// Its memory operand is relative to its own address; the displacement begins at this byte of it.
    Relative(u8),
    /// It jumps to a fixed address if a condition holds: the low four bits of `jcc`.
    Conditional(u8, u64),
    /// It jumps to a fixed address.
    Jump(u64),
    /// It may not be moved: calls, returns, other system calls, and what counts or looks at its own address.
    Fixed,
}

/// An instruction and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insn {
    /// The address of its first byte.
    pub at: u64,
    /// How many bytes it has.
    pub length: u8,
    /// Whether it can be moved, and how.
    pub kind: Kind,
    number: Number,
}

impl Insn {
    /// The address behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.at + self.length as u64
    }
}

/// What an instruction does to the number of the next system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Number {
    Untouched,
    Set(u32),
    Unknown,
}

/// A `syscall` instruction, with the straight line around it.
#[derive(Clone, Debug)]
pub struct Site {
    /// The instruction's address.
    pub at: u64,
    /// The number of the call that is made here, where the instructions before say it.
    pub number: Option<u32>,
    /// It is that of the Go runtime's `Syscall6`, which every call of a Go program is made by that its own scheduler does not make.
    pub go: bool,
    /// What is executed before it, the nearest last. Nothing before them is.
    pub before: Vec<Insn>,
    /// What is executed after it.
    pub after: Vec<Insn>,
}

/// All that is known of an object's code.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The `syscall` instructions, by address.
    pub sites: Vec<Site>,
    /// Where control may arrive other than from the instruction before, by address.
    pub targets: Vec<u64>,
    /// Five bytes and more that are never executed, by address.
    pub padding: Vec<Range<u64>>,
    /// The places of bytes `0f 05` in code that could not be decoded: if one is an instruction, it is not known as such.
    pub unknown: Vec<u64>,
    /// The places of other instructions that enter the kernel (`int 0x80`, `sysenter`), by address.
    pub others: Vec<u64>,
}

impl Scan {
    /// Looks at all code of an object.
    #[must_use]
    pub fn of(image: &Image<'_>) -> Self {
        let mut scan = Self::default();
        let functions = image.functions();
        scan.targets.extend(functions.iter().map(|function| function.start));
        for segment in image.segments.iter().filter(|segment| segment.executable) {
            let end = segment.address.saturating_add(segment.bytes.len() as u64);
            let mut at = segment.address;
            let mut line = None;
            for function in
                functions.iter().filter(|function| (segment.address..end).contains(&function.start))
            {
                scan.sweep(image, segment, at..function.start, Sweep::Between(line));
                let stop = function.end.min(end);
                line = scan.sweep(image, segment, function.start..stop, Sweep::Function);
                at = stop;
            }
            scan.sweep(image, segment, at..end, Sweep::Between(line));
        }
        scan.sites.sort_unstable_by_key(|site| site.at);
        scan.padding.sort_unstable_by_key(|padding| padding.start);
        for addresses in [&mut scan.targets, &mut scan.unknown, &mut scan.others] {
            addresses.sort_unstable();
            addresses.dedup();
        }
        scan
    }

    /// Whether control may arrive at an address in a range other than from the instruction before.
    #[must_use]
    pub fn entered(&self, range: Range<u64>) -> bool {
        let first = self.targets.partition_point(|&target| target < range.start);
        self.targets.get(first).is_some_and(|&target| target < range.end)
    }

    /// Decodes a range, and gives the straight line that goes on behind it, if all of it was valid.
    fn sweep(
        &mut self,
        image: &Image<'_>,
        segment: &Segment<'_>,
        range: Range<u64>,
        what: Sweep,
    ) -> Option<Vec<Insn>> {
        let offset = |at: u64| usize::try_from(at - segment.address).ok();
        let code =
            segment.bytes.get(offset(range.start)?..offset(range.end)?).filter(|code| !code.is_empty())?;
        let mut walk = Walk::new(range.start);
        let function = matches!(what, Sweep::Function);
        // Where something is known to end something else begins: the first sweep from there is as good as a function's.
        let sure = matches!(what, Sweep::Between(Some(_)));
        if let Sweep::Between(Some(line)) = what {
            walk.idle = line.is_empty().then_some(range.start..range.start);
            walk.line = line;
        }
        let mut decoder = Decoder::with_ip(64, code, range.start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let marks: Vec<u64> = pairs(code, range.start).collect();
        let mut marks = marks.as_slice();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                if function {
                    walk.broken = true;
                    break;
                }
                // Data between functions: the next byte may be code again.
                let next = usize::try_from(instruction.ip() - range.start + 1).unwrap_or(code.len());
                walk.restart(range.start + next as u64);
                if decoder.set_position(next).is_err() {
                    break;
                }
                decoder.set_ip(range.start + next as u64);
                continue;
            }
            let at = instruction.ip();
            while marks.first().is_some_and(|mark| mark + AROUND < at) {
                marks = &marks[1..];
            }
            // Of all other code, which is nearly all, only where it leads to matters.
            let line = marks.first().is_some_and(|mark| *mark < at + AROUND) || at + AROUND > range.end;
            walk.take(&instruction, line.then_some(&decoder), image);
        }
        walk.finish(image, &range);
        if walk.broken {
            self.unknown.extend(pairs(code, range.start));
            return None;
        }
        let doubtful = |at: u64| {
            let since = walk.since(at);
            let known = function || (sure && since == range.start);
            !known && at - since < CONFIDENCE
        };
        self.others.extend(walk.others.iter().filter(|&&at| !doubtful(at)));
        for site in &walk.found {
            if doubtful(site.at) {
                self.unknown.push(site.at);
                continue;
            }
            let mut site = site.clone();
            // Unwinders know it by its bytes, and so do we: the last thing to be mistaken about.
            let call = usize::try_from(site.at - range.start).unwrap_or(0);
            if code[..call].ends_with(&RESTORER) {
                site.number = Some(SIGRETURN);
            }
            site.go = code[..call].ends_with(&SYSCALL6);
            self.sites.push(site);
        }
        self.targets.append(&mut walk.targets);
        self.padding.append(&mut walk.padding);
        // A description may end in the middle of a straight line: at the call of `clone`, as its child has another stack.
        Some(walk.line)
    }
}

/// What is decoded.
enum Sweep {
    /// A function that is known to begin and end there.
    Function,
    /// What lies behind a function, or at the start of a segment. If the function was valid to its end, its last straight line.
    Between(Option<Vec<Insn>>),
}

/// The places of bytes `0f 05`.
fn pairs(code: &[u8], base: u64) -> impl Iterator<Item = u64> {
    let at = code.windows(2).enumerate().filter(|(_, pair)| *pair == [0x0f, 0x05]).map(|(at, _)| at as u64);
    at.map(move |at| base + at)
}

/// One sweep, from instruction to instruction.
struct Walk {
    /// The straight line that ends here.
    line: Vec<Insn>,
    /// Sites, of which the last ones may still lack instructions behind them.
    found: Vec<Site>,
    targets: Vec<u64>,
    padding: Vec<Range<u64>>,
    others: Vec<u64>,
    /// Where the sweep began, and began again.
    starts: Vec<u64>,
    /// What the function takes the address of, for it may be a jump table.
    tables: Vec<u64>,
    /// Whether the function jumps to where a register or memory says.
    computed: bool,
    /// The padding that may be growing.
    idle: Option<Range<u64>>,
    broken: bool,
}

impl Walk {
    fn new(start: u64) -> Self {
        Self {
            line: Vec::new(),
            found: Vec::new(),
            targets: Vec::new(),
            padding: Vec::new(),
            others: Vec::new(),
            starts: vec![start],
            tables: Vec::new(),
            computed: false,
            idle: None,
            broken: false,
        }
    }

    fn restart(&mut self, at: u64) {
        self.line.clear();
        self.starts.push(at);
        self.end_padding();
    }

    /// Where the sweep that arrived at an address began.
    fn since(&self, at: u64) -> u64 {
        let behind = self.starts.partition_point(|&start| start <= at);
        behind.checked_sub(1).map_or(at, |last| self.starts[last])
    }

    fn end_padding(&mut self) {
        self.padding.extend(self.idle.take().filter(|idle| idle.end - idle.start >= JUMP));
    }

    /// Goes on by one instruction; with its decoder if it may belong to a site's straight line.
    fn take(&mut self, instruction: &Instruction, line: Option<&Decoder<'_>>, image: &Image<'_>) {
        if near_target(instruction) {
            self.targets.push(instruction.near_branch_target());
        }
        if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
            let address = instruction.ip_rel_memory_address();
            if image.is_code(address) { self.targets.push(address) } else { self.tables.push(address) }
        }
        let end = instruction.next_ip();
        if let Some(idle) = self.idle.as_mut() {
            if is_nop(instruction) {
                // It may take a long jump, so it is in no window.
                idle.end = end;
                return;
            }
            self.end_padding();
        }
        match instruction.code() {
            Code::Sysenter => self.others.push(instruction.ip()),
            Code::Int_imm8 if instruction.immediate8() == 0x80 => self.others.push(instruction.ip()),
            _ => {}
        }
        match line {
            Some(decoder) => self.lengthen(instruction, decoder),
            None => self.line.clear(),
        }
        let flow = instruction.flow_control();
        self.computed |= flow == FlowControl::IndirectBranch;
        if matches!(
            flow,
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Exception
        ) {
            self.line.clear();
            self.idle = Some(end..end);
        }
    }

    fn lengthen(&mut self, instruction: &Instruction, decoder: &Decoder<'_>) {
        let insn = describe(instruction, decoder);
        if instruction.code() == Code::Syscall {
            let number = number_of(&self.line);
            let before = self.line.clone();
            self.found.push(Site { at: insn.at, number, go: false, before, after: Vec::new() });
        }
        for site in self.found.iter_mut().rev().take(NEAR) {
            let follows = site.after.last().map_or(site.at + 2, Insn::end);
            if follows == insn.at && site.after.len() < NEAR && site.at != insn.at {
                site.after.push(insn);
            }
        }
        if self.line.len() == NEAR {
            self.line.remove(0);
        }
        self.line.push(insn);
    }

    fn finish(&mut self, image: &Image<'_>, range: &Range<u64>) {
        self.end_padding();
        if !self.computed {
            return;
        }
        for &table in &self.tables {
            let Some(bytes) = image.at(table) else { continue };
            for entry in bytes.chunks_exact(4).take(TABLE_MAX) {
                let offset = entry.first_chunk().map_or(0, |entry| i32::from_le_bytes(*entry));
                let target = table.wrapping_add_signed(i64::from(offset));
                if !range.contains(&target) {
                    break;
                }
                self.targets.push(target);
            }
        }
    }
}

/// Whether it names an address that it goes to, whatever else it does.
fn near_target(instruction: &Instruction) -> bool {
    matches!(instruction.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16)
}

fn is_nop(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

fn describe(instruction: &Instruction, decoder: &Decoder<'_>) -> Insn {
    let relative = instruction.is_ip_rel_memory_operand();
    let displacement = || {
        let offsets = decoder.get_constant_offsets(instruction);
        offsets.has_displacement().then(|| offsets.displacement_offset())
    };
    let kind = match instruction.flow_control() {
        FlowControl::Next if !relative => Kind::Plain,
        FlowControl::Next => {
            displacement().and_then(|at| u8::try_from(at).ok()).map_or(Kind::Fixed, Kind::Relative)
        }
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => {
            Kind::Conditional(condition(instruction), instruction.near_branch_target())
        }
        FlowControl::UnconditionalBranch if instruction.is_jmp_short_or_near() => {
            Kind::Jump(instruction.near_branch_target())
        }
        _ => Kind::Fixed,
    };
    Insn {
        at: instruction.ip(),
        // An instruction has fifteen bytes at most.
        length: u8::try_from(instruction.len()).unwrap_or(15),
        kind,
        number: number(instruction),
    }
}

/// The condition's four bits, as `jcc` has them.
fn condition(instruction: &Instruction) -> u8 {
    use iced_x86::ConditionCode as C;
    match instruction.condition_code() {
        C::o | C::None => 0,
        C::no => 1,
        C::b => 2,
        C::ae => 3,
        C::e => 4,
        C::ne => 5,
        C::be => 6,
        C::a => 7,
        C::s => 8,
        C::ns => 9,
        C::p => 10,
        C::np => 11,
        C::l => 12,
        C::ge => 13,
        C::le => 14,
        C::g => 15,
    }
}

fn number(instruction: &Instruction) -> Number {
    let writes = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == Register::RAX;
    match (instruction.mnemonic(), instruction.op_count()) {
        (Mnemonic::Mov, 2) if writes => match instruction.op1_kind() {
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => {
                u32::try_from(instruction.immediate(1)).map_or(Number::Unknown, Number::Set)
            }
            _ => Number::Unknown,
        },
        (Mnemonic::Xor, 2) if writes && instruction.op1_register() == instruction.op0_register() => {
            Number::Set(0)
        }
        (Mnemonic::Cmp | Mnemonic::Test, _) => Number::Untouched,
        _ if writes => Number::Unknown,
        _ if instruction.flow_control() == FlowControl::Next && !implicit(instruction) => Number::Untouched,
        _ if instruction.flow_control() == FlowControl::ConditionalBranch => Number::Untouched,
        _ => Number::Unknown,
    }
}

/// Whether an instruction writes RAX without naming it.
fn implicit(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Mul
            | M::Imul
            | M::Div
            | M::Idiv
            | M::Cpuid
            | M::Rdtsc
            | M::Rdtscp
            | M::Cmpxchg
            | M::Xchg
            | M::Xadd
            | M::Lodsb
            | M::Lodsd
            | M::Lodsq
            | M::Lodsw
            | M::Cdqe
            | M::Cwde
            | M::Cbw
            | M::Lahf
            | M::Xgetbv
            | M::Rdpmc
            | M::Rdmsr
            | M::In
            | M::Cmpxchg8b
            | M::Cmpxchg16b
    )
}

/// The number that a straight line leaves for the call behind it.
fn number_of(line: &[Insn]) -> Option<u32> {
    let last = line.iter().rev().map(|insn| insn.number).find(|number| *number != Number::Untouched);
    match last {
        Some(Number::Set(number)) => Some(number),
        _ => None,
    }
}
