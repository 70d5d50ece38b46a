//! Files, and what their tables say of functions.

use proptest::prelude::*;
use remanence_intercept::image::{Elf, ElfError, Image, Segment};
use remanence_intercept::plan::{Unpatched, plan};
use remanence_intercept::scan::Scan;
use remanence_intercept::{Libc, Obstacle, Report, Way, inspect_bytes};

use crate::BASE;

/// A static program of one segment, which is code, at an address.
fn program(code: &[u8]) -> Vec<u8> {
    let mut file = vec![0_u8; 0x78];
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    file[16..20].copy_from_slice(&[2, 0, 62, 0]);
    file[24..32].copy_from_slice(&(BASE + 0x78).to_le_bytes());
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[54..58].copy_from_slice(&[56, 0, 1, 0]);
    file[64..72].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    file[72..80].copy_from_slice(&0x78_u64.to_le_bytes());
    file[80..88].copy_from_slice(&(BASE + 0x78).to_le_bytes());
    file[96..104].copy_from_slice(&(code.len() as u64).to_le_bytes());
    file[104..112].copy_from_slice(&(code.len() as u64).to_le_bytes());
    file.extend_from_slice(code);
    file
}

/// A frame table of functions, of which some return from signal handlers, and where it is.
fn frames(at: u64, functions: &[(u64, u32, bool)]) -> Vec<u8> {
    let relative =
        |to: u64, from: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).expect("near").to_le_bytes();
    let count = functions.len() as u64;
    let mut table = vec![1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0];
    table.extend_from_slice(&u32::try_from(count).expect("few").to_le_bytes());
    let descriptions = at + 12 + count * 8;
    let mut behind = Vec::new();
    for &(start, length, signal) in functions {
        let common = descriptions + behind.len() as u64;
        behind.extend_from_slice(&[16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R']);
        behind.push(if signal { b'S' } else { 0 });
        behind.extend_from_slice(&[0; 8]);
        let description = descriptions + behind.len() as u64;
        table.extend_from_slice(&relative(start, at));
        table.extend_from_slice(&relative(description, at));
        behind.extend_from_slice(&[16, 0, 0, 0]);
        behind.extend_from_slice(&u32::try_from(description + 4 - common).expect("near").to_le_bytes());
        behind.extend_from_slice(&relative(start, description + 8));
        behind.extend_from_slice(&length.to_le_bytes());
        behind.extend_from_slice(&[0; 4]);
    }
    table.extend(behind);
    table
}

#[test]
fn functions_begin_where_the_frame_table_says_but_for_signal_frames() {
    let at = BASE + 0x1000;
    // Eleven bytes of data that would hide what follows if they were decoded, a call, and a restorer.
    let mut code = vec![0x48; 3];
    code.extend([0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3]);
    code.extend([0x00, 0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05]);
    let table = frames(at, &[(BASE + 3, 8, false), (BASE + 11, 10, true)]);
    let segments = vec![
        Segment { address: BASE, bytes: &code, executable: true },
        Segment { address: at, bytes: &table, executable: false },
    ];
    let image = Image { segments, eh_frame_hdr: Some(at) };
    assert_eq!(image.functions(), [BASE + 3..BASE + 11, BASE + 12..BASE + 21]);
    let planned = plan(&Scan::of(&image));
    assert_eq!(planned.len(), 2);
    assert_eq!(planned[0].1.as_ref().map(|plan| plan.window.clone()), Ok(BASE + 3..BASE + 8));
    assert_eq!(planned[1], (BASE + 19, Err(Unpatched::Sigreturn)));
}

#[test]
fn a_description_that_ends_before_the_call_does_not_hide_it() {
    let at = BASE + 0x1000;
    // glibc's clone3: the description ends at the call, as the child has another stack.
    let code = [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xc0, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3];
    let table = frames(at, &[(BASE, 5, false), (BASE + 16, 1, false)]);
    let segments = vec![
        Segment { address: BASE, bytes: &code, executable: true },
        Segment { address: at, bytes: &table, executable: false },
    ];
    let scan = Scan::of(&Image { segments, eh_frame_hdr: Some(at) });
    assert_eq!(scan.sites.len(), 1);
    assert_eq!((scan.sites[0].number, scan.sites[0].before.len()), (Some(435), 1));
    assert_eq!(scan.padding.len(), 1);
    assert_eq!(scan.padding[0], BASE + 11..BASE + 16, "what aligns the next function");
}

#[test]
fn a_static_program_is_told_as_one() {
    let mut code = vec![0x90; 64];
    code.extend([0xb8, 0xa9, 1, 0, 0, 0x0f, 0x05, 0xcd, 0x80, 0xc3]);
    let report = inspect_bytes(&program(&code)).expect("a program");
    assert_eq!(
        (report.libc, report.sites, report.io_uring, report.go.clone()),
        (Libc::Static, 1, true, None)
    );
    assert_eq!(report.obstacles(), [Obstacle::Static, Obstacle::IoUring, Obstacle::Others(1)]);
    assert_eq!(report.way(), Err(Obstacle::Others(1)), "calls of another table are seen by nobody");
}

#[test]
fn each_program_is_seen_in_the_cheapest_way_that_misses_nothing() {
    let report = inspect_bytes(&program(&[0x90; 64])).expect("a program");
    assert_eq!(report.way(), Ok(Way::Outside), "it is static");
    let loaded = Report { libc: Libc::Glibc, ..report };
    assert_eq!(loaded.way(), Ok(Way::Libc));
    assert_eq!(Report { sites: 3, ..loaded.clone() }.way(), Ok(Way::All), "it has calls of its own");
    let of_go = Report { go: Some("go1.26".into()), sites: 3, ..loaded.clone() };
    assert_eq!(of_go.way(), Ok(Way::Outside), "where the runtime makes them is not known");
    assert_eq!(Report { go_site: true, ..of_go }.way(), Ok(Way::All));
    assert_eq!(
        Report { libc: Libc::Other, ..loaded.clone() }.way(),
        Ok(Way::Outside),
        "nobody knows this loader"
    );
    assert_eq!(Report { privileged: true, ..loaded }.way(), Err(Obstacle::Privileged));
}

#[test]
fn a_program_of_go_names_its_version() {
    let mut file = program(&[0x90; 64]);
    file.resize(file.len().next_multiple_of(16), 0);
    file.extend(b"\xff Go buildinf:\x08\x02");
    file.extend([0; 16]);
    file.extend(b"\x06go1.26");
    assert_eq!(inspect_bytes(&file).expect("a program").go.as_deref(), Some("go1.26"));
}

#[test]
fn another_architecture_is_refused_with_a_sentence() {
    let mut file = program(&[0x90]);
    file[18] = 183;
    let why = Elf::parse(&file).expect_err("refused");
    assert_eq!(why, ElfError::Machine(183));
    assert_eq!(why.to_string(), "it is for another architecture (machine 183) than x86-64");
    assert_eq!(Elf::parse(b"#!/bin/sh\n").expect_err("refused"), ElfError::NoElf);
}

/// What is missing of a file makes no system call that could be seen, so it would be approved.
#[test]
fn a_file_that_is_not_whole_is_refused_with_what_is_wrong() {
    let whole = program(&[0x90; 64]);
    inspect_bytes(&whole).expect("a program");
    let has = whole.len() as u64;
    let why = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        inspect_bytes(&file).expect_err("refused")
    };
    assert_eq!(inspect_bytes(&whole[..0x80]).expect_err("cut"), ElfError::Missing { ends: has, has: 0x80 });
    assert_eq!(why(96, &[0xff; 8]), ElfError::Missing { ends: u64::MAX, has }, "its segment");
    assert_eq!(why(68, &[4]), ElfError::NoCode, "its segment is data");
    assert_eq!(why(64, &[0x77; 8]), ElfError::NoCode, "nothing is loaded");
    assert_eq!(why(24, &[9, 0]), ElfError::Entry(BASE + 9), "in front of its code");
    for (kind, expected) in [(1, ElfError::Object), (4, ElfError::Core), (9, ElfError::Kind(9))] {
        assert_eq!(why(16, &[kind]), expected);
    }
    let mut file = whole.clone();
    file[58..62].copy_from_slice(&[64, 0, 2, 0]);
    for (sections, fits) in [(0, true), (has - 128, true), (has - 127, false), (u64::MAX, false)] {
        file[40..48].copy_from_slice(&sections.to_le_bytes());
        let refused = inspect_bytes(&file).err();
        let ends = sections.saturating_add(128);
        assert_eq!(refused, (!fits).then_some(ElfError::Sections { ends, has }), "{sections}");
    }
}

proptest! {
    #[test]
    fn no_file_is_believed(at in 0_usize..0x200, bytes in proptest::collection::vec(any::<u8>(), 1..64), cut in 0_usize..0x300) {
        let mut file = program(&[0x90; 0x100]);
        let end = (at + bytes.len()).min(file.len());
        let at = at.min(end);
        file[at..end].copy_from_slice(&bytes[..end - at]);
        let cut = cut.min(file.len());
        // Neither panics nor runs for long, whatever it says.
        let _ = inspect_bytes(&file);
        let _ = inspect_bytes(&file[..cut]);
    }

    #[test]
    fn no_frame_table_is_believed(at in 0_usize..0x80, bytes in proptest::collection::vec(any::<u8>(), 1..32)) {
        let mut table = frames(BASE + 0x100, &[(BASE, 8, false), (BASE + 8, 8, true), (BASE + 32, 100, false)]);
        let end = (at + bytes.len()).min(table.len());
        let at = at.min(end);
        table[at..end].copy_from_slice(&bytes[..end - at]);
        let code = [0x0f, 0x05, 0x90, 0x74].repeat(32);
        let segments = vec![
            Segment { address: BASE, bytes: &code, executable: true },
            Segment { address: BASE + 0x100, bytes: &table, executable: false },
        ];
        let image = Image { segments, eh_frame_hdr: Some(BASE + 0x100) };
        let functions = image.functions();
        prop_assert!(functions.windows(2).all(|pair| pair[0].end <= pair[1].start));
        drop(plan(&Scan::of(&image)));
    }
}
