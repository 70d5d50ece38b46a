//! Windows as they are in real libraries, and what becomes of each.

use remanence_intercept::plan::{Layout, Plan, Unpatched, patches, plan, trampoline};
use remanence_intercept::scan::Scan;

use crate::{BASE, code, image};

/// The plan of the only site.
fn only(bytes: &[u8]) -> Result<Plan, Unpatched> {
    let code = code(bytes);
    let planned = plan(&Scan::of(&image(&code)));
    assert_eq!(planned.len(), 1, "one site");
    planned[0].1.clone()
}

#[test]
fn a_number_of_five_bytes_before_the_call_is_the_whole_window() {
    // glibc's kill: mov eax, 62; syscall; cmp rax, -4095; jae; ret
    let kill = [0xb8, 0x3e, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01, 0xc3, 0xc3];
    let plan = only(&kill).expect("a plan");
    assert!(plan.in_place());
    assert_eq!((plan.number, plan.site, plan.window.clone()), (Some(62), BASE + 5, BASE..BASE + 5));
    let layout = Layout { trampoline: BASE + 0x1000, table: BASE + 0x2000, record: BASE + 0x3000 };
    let written = trampoline(&plan, &image(&code(&kill)), &layout).expect("near");
    assert_eq!(written.call, BASE + 5, "the program's own instruction makes the call");
    assert_eq!(written.code[..5], kill[..5], "what was replaced comes first");
    let patches = patches(&plan, layout.trampoline).expect("near");
    assert_eq!(patches.len(), 1);
    assert_eq!((patches[0].at, patches[0].bytes.as_slice()), (BASE, [0xe9, 0xfb, 0x0f, 0, 0].as_slice()));
}

#[test]
fn a_jump_away_before_the_call_is_moved_with_its_target() {
    // glibc's read: cmp byte [rip + x], 0; je slow; xor eax, eax; syscall; ret; slow: ret
    let read = [0x80, 0x3d, 0x11, 0xf3, 0x19, 0, 0, 0x74, 5, 0x31, 0xc0, 0x0f, 0x05, 0xc3, 0xc3, 0xc3];
    let plan = only(&read).expect("a plan");
    assert_eq!((plan.number, plan.window.clone()), (Some(0), BASE..BASE + 11));
    let layout = Layout { trampoline: BASE + 0x1000, table: BASE + 0x2000, record: BASE + 0x3000 };
    let written = trampoline(&plan, &image(&code(&read)), &layout).expect("near");
    let distance = |at: usize| i32::from_le_bytes(written.code[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(distance(2), 0x19_f311 - 0x1000, "it still looks at the same byte");
    assert_eq!(written.code[7..9], [0x0f, 0x84], "a long je");
    assert_eq!(i64::from(distance(9)), 14 - (0x1000 + 13), "to where it went");
}

#[test]
fn a_call_that_is_jumped_to_is_moved_with_what_follows() {
    // test eax, eax; jne call; mov eax, 1; call: syscall; cmp rax, -4096; ja; ret
    let bytes = [
        0x85, 0xc0, 0x75, 5, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 1, 0xc3,
        0xc3,
    ];
    let plan = only(&bytes).expect("a plan");
    assert!(!plan.in_place());
    assert_eq!((plan.before.len(), plan.window.clone()), (0, BASE + 9..BASE + 17));
}

#[test]
fn a_loop_around_the_call_is_not_cut() {
    // glibc's exit: edx = 60; again: xor edi, edi; mov eax, edx; syscall; jmp again
    let exit = [0xba, 60, 0, 0, 0, 0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xf8];
    let plan = only(&exit).expect("a plan");
    assert_eq!(plan.number, None, "it comes from another register");
    assert_eq!(plan.window, BASE + 7..BASE + 13, "to the loop's end, whose jump goes where it went");
    assert!(!plan.in_place());
}

#[test]
fn what_returns_from_a_signal_handler_is_left_alone() {
    let restorer = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    assert_eq!(only(&restorer), Err(Unpatched::Sigreturn));
}

#[test]
fn too_small_a_window_jumps_to_padding_in_reach() {
    // call; xor eax, eax; syscall; ret, and behind that alignment that nobody executes; jump to the first xor from before.
    let mut bytes = vec![0xe8, 0, 0, 0, 0, 0x31, 0xc0, 0x0f, 0x05, 0xc3];
    assert_eq!(only(&bytes), Err(Unpatched::NoRoom));
    bytes.extend([0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]); // nop of ten bytes
    let plan = only(&bytes).expect("a plan");
    assert_eq!((plan.window.clone(), plan.slot), (BASE + 5..BASE + 7, Some(BASE + 10)));
    assert!(plan.in_place());
    let patches = patches(&plan, BASE + 0x1000).expect("near");
    assert_eq!((patches[0].at, patches[0].bytes[0]), (BASE + 10, 0xe9));
    assert_eq!((patches[1].at, patches[1].bytes.as_slice()), (BASE + 5, [0xeb, 3].as_slice()));
}

#[test]
fn a_jump_table_says_where_control_may_arrive() {
    // lea rdx, [rip + table]; movsxd rax, [rdx + rax*4]; add rax, rdx; jmp rax; mov edi, ebx (2 bytes); mov esi, ecx; entry: xor eax, eax; syscall
    let code = code(&[
        0x48, 0x8d, 0x15, 0xf9, 0x0f, 0, 0, 0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0, 0x89, 0xdf,
        0x89, 0xce, 0x31, 0xc0, 0x0f, 0x05, 0x48, 0x89, 0xc7, 0xc3,
    ]);
    let table = (20_i32 - 0x1000).to_le_bytes();
    let mut image = image(&code);
    let free = plan(&Scan::of(&image));
    assert_eq!(free[0].1.as_ref().map(|plan| plan.window.clone()), Ok(BASE + 16..BASE + 22));
    image.segments.push(remanence_intercept::image::Segment {
        address: BASE + 0x1000,
        bytes: &table,
        executable: false,
    });
    let scan = Scan::of(&image);
    assert!(scan.targets.contains(&(BASE + 20)));
    assert_eq!(plan(&scan)[0].1.as_ref().map(|plan| plan.window.clone()), Ok(BASE + 22..BASE + 27));
}

#[test]
fn bytes_inside_of_another_instruction_are_no_call() {
    // mov eax, 0x050f; ret
    let code = code(&[0xb8, 0x0f, 0x05, 0, 0, 0xc3]);
    let scan = Scan::of(&image(&code));
    assert!(scan.sites.is_empty() && scan.unknown.is_empty());
}

#[test]
fn what_is_swept_from_nowhere_is_not_believed() {
    let bytes = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
    let segment = remanence_intercept::image::Segment { address: BASE, bytes: &bytes, executable: true };
    let image = remanence_intercept::image::Image { segments: vec![segment], eh_frame_hdr: None };
    let scan = Scan::of(&image);
    assert_eq!((scan.sites.len(), scan.unknown.as_slice()), (0, [BASE + 5].as_slice()));
}

#[test]
fn the_go_runtimes_call_is_known_by_what_moves_its_arguments() {
    let syscall6 = [
        0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0x48, 0x3d, 1,
        0xf0, 0xff, 0xff,
    ];
    let plan = only(&syscall6).expect("a plan");
    assert!(plan.go && plan.in_place());
    let other = only(&syscall6[3..]).expect("a plan");
    assert!(!other.go, "the fourth argument is elsewhere");
}
