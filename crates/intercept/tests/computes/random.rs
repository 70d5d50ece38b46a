//! Random code: what is planned keeps what the code does, by the word of the disassembler.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use proptest::prelude::*;
use remanence_intercept::plan::{Layout, Plan, patches, plan, trampoline};
use remanence_intercept::scan::{Insn, Kind, Scan};

use crate::{BASE, code, image};

/// One instruction of random code.
#[derive(Clone, Debug)]
enum Piece {
    /// It is these bytes, wherever it is.
    Plain(Vec<u8>),
    /// A conditional jump (0 to 15) or a jump (16), short if that reaches, to another piece.
    Jump(u8, bool, usize),
}

fn piece() -> impl Strategy<Value = Piece> {
    let plain = |bytes: &[u8]| Just(Piece::Plain(bytes.to_vec()));
    prop_oneof![
        3 => plain(&[0x0f, 0x05]),
        2 => (0_u16..460).prop_map(|n| Piece::Plain([&[0xb8][..], &u32::from(n).to_le_bytes()].concat())),
        1 => plain(&[0x31, 0xc0]),
        1 => plain(&[0x48, 0x89, 0xdf]),
        1 => plain(&[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff]),
        1 => plain(&[0x50]),
        1 => plain(&[0x48, 0x89, 0x44, 0x24, 0xf8]),
        1 => plain(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x10, 0, 0, 0]),
        1 => plain(&[0xf3, 0x48, 0xab]),
        1 => plain(&[0xc3]),
        1 => plain(&[0x90]),
        1 => plain(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]),
        1 => plain(&[0xe8, 0, 0, 0, 0]),
        1 => plain(&[0xe3, 0]),
        1 => (-4000_i32..4000).prop_map(|d| Piece::Plain([&[0x48, 0x8d, 0x3d][..], &d.to_le_bytes()].concat())),
        1 => (-4000_i32..4000).prop_map(|d| Piece::Plain([&[0x80, 0x3d][..], &d.to_le_bytes(), &[7]].concat())),
        2 => (0_u8..17, any::<bool>(), any::<prop::sample::Index>()).prop_map(|(kind, short, to)| {
            Piece::Jump(kind, short, to.index(64))
        }),
    ]
}

/// The code, with its jumps going to the beginnings of pieces.
fn assemble(pieces: &[Piece]) -> Vec<u8> {
    let length = |piece: &Piece| match piece {
        Piece::Plain(bytes) => bytes.len(),
        Piece::Jump(_, true, _) => 2,
        Piece::Jump(16, false, _) => 5,
        Piece::Jump(_, false, _) => 6,
    };
    let starts: Vec<usize> = pieces
        .iter()
        .scan(0, |at, piece| {
            let start = *at;
            *at += length(piece);
            Some(start)
        })
        .collect();
    let mut code = Vec::new();
    for (piece, start) in pieces.iter().zip(&starts) {
        let end = i32::try_from(start + length(piece)).expect("short");
        match piece {
            Piece::Plain(bytes) => code.extend_from_slice(bytes),
            Piece::Jump(kind, short, to) => {
                let distance = i32::try_from(starts[to % starts.len()]).expect("short") - end;
                match (kind, short) {
                    (16, true) => code.push(0xeb),
                    (kind, true) => code.push(0x70 | kind),
                    (16, false) => code.push(0xe9),
                    (kind, false) => code.extend([0x0f, 0x80 | kind]),
                }
                if *short {
                    code.push(i8::try_from(distance).unwrap_or(0).cast_unsigned());
                } else {
                    code.extend(distance.to_le_bytes());
                }
            }
        }
    }
    code
}

fn decode(code: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter().collect()
}

/// Whether an instruction does here what it did there.
fn same(here: &Instruction, there: &Instruction) -> bool {
    if there.is_jcc_short_or_near() || there.is_jmp_short_or_near() {
        here.mnemonic() == there.mnemonic() && here.near_branch_target() == there.near_branch_target()
    } else {
        here == there
    }
}

fn check(plan: &Plan, scan: &Scan, bytes: &[u8], layout: &Layout) -> Result<(), TestCaseError> {
    let offset = |at: u64| usize::try_from(at - (BASE - 64)).expect("inside");
    let window = plan.window.clone();
    prop_assert!(!scan.targets.iter().any(|&target| window.start < target && target < window.end), "entered");
    let room = if plan.slot.is_some() { 2 } else { 5 };
    prop_assert!(window.end - window.start >= room);
    prop_assert!(window.contains(&plan.site) || window.end == plan.site);
    // What is moved, with the call, is the window; or ends where the call begins.
    let original = decode(&bytes[offset(window.start)..offset(window.end)], window.start);
    let moved: Vec<&Insn> = plan.before.iter().chain(&plan.after).collect();
    prop_assert_eq!(original.len(), moved.len() + usize::from(!plan.in_place()));
    prop_assert!(moved.iter().all(|insn| insn.kind != Kind::Fixed));
    let written = trampoline(plan, &image(bytes), layout).expect("near");
    prop_assert!(written.code.len() as u64 <= remanence_intercept::plan::TRAMPOLINE_MAX);
    let now = decode(&written.code, layout.trampoline);
    let before = plan.before.len();
    for (here, there) in now.iter().zip(&original).take(before) {
        prop_assert!(same(here, there), "{here:?} for {there:?}");
    }
    // Six instructions look whether the call is wanted.
    let rest = &now[before + 6..];
    if plan.in_place() {
        prop_assert_eq!(rest.len(), 1);
        prop_assert_eq!(rest[0].near_branch_target(), plan.site);
    } else {
        prop_assert_eq!(rest[0].ip(), written.call);
        for (here, there) in rest.iter().zip(&original[before..]) {
            prop_assert!(same(here, there), "{here:?} for {there:?}");
        }
        let after = &rest[original.len() - before..];
        let ends = plan.after.last().is_some_and(|insn| matches!(insn.kind, Kind::Jump(_)));
        prop_assert_eq!(after.len(), usize::from(!ends));
        prop_assert!(after.iter().all(|jump| jump.near_branch_target() == window.end));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_moved_does_what_it_did(pieces in proptest::collection::vec(piece(), 1..40)) {
        let bytes = code(&assemble(&pieces));
        let scan = Scan::of(&image(&bytes));
        let calls = decode(&bytes, BASE - 64).iter().filter(|i| i.code() == iced_x86::Code::Syscall).count();
        prop_assert_eq!(scan.sites.len(), calls);
        let mut patched = bytes.clone();
        let mut touched = vec![false; bytes.len()];
        for (number, (_, plan)) in plan(&scan).into_iter().enumerate() {
            let Ok(plan) = plan else { continue };
            let at = BASE + 0x10_0000 + number as u64 * 512;
            let layout = Layout { trampoline: at, table: BASE + 0x20_0000, record: BASE + 0x30_0000 };
            check(&plan, &scan, &bytes, &layout)?;
            for patch in patches(&plan, at).expect("near") {
                let from = usize::try_from(patch.at - (BASE - 64)).expect("inside");
                for (index, byte) in patch.bytes.iter().enumerate() {
                    prop_assert!(!std::mem::replace(&mut touched[from + index], true), "two patches of one byte");
                    patched[from + index] = *byte;
                }
            }
            // The way from the window leads to the trampoline.
            let follow = |from: u64| {
                let offset = usize::try_from(from - (BASE - 64)).expect("inside");
                decode(&patched[offset..], from)[0].near_branch_target()
            };
            let first = follow(plan.window.start);
            prop_assert_eq!(if plan.slot.is_some() { follow(first) } else { first }, at);
        }
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let bytes = code(&bytes);
        let scan = Scan::of(&image(&bytes));
        for (_, plan) in plan(&scan) {
            let Ok(plan) = plan else { continue };
            let layout = Layout { trampoline: BASE + 0x10_0000, table: BASE + 0x20_0000, record: BASE + 0x30_0000 };
            check(&plan, &scan, &bytes, &layout)?;
        }
    }
}
