//! The net under the patches tells of what slips by, and of nothing else; and what is under it behaves as before.

use std::process::Command;

use crate::programs::{TestDirectory, examples, hooked};

/// The numbers of the calls that slipped by while a program ran. None where the kernel has no net.
fn slipped(name: &str, mode: &str, program: &[&str]) -> Option<Vec<u64>> {
    let place = TestDirectory::new(&format!("net-{name}"));
    let log = place.0.join("log");
    std::fs::File::create(&log).expect("a file").set_len(32 << 20).expect("its size");
    let output = Command::new(program[0])
        .args(&program[1..])
        .current_dir(&place.0)
        .envs([
            ("TMPDIR", &place.0),
            ("REMANENCE_PROBE_LOG", &log),
            ("LD_PRELOAD", &examples().join("libprobe.so")),
        ])
        .env("REMANENCE_PROBE_MODE", mode)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("the kernel has no syscall user dispatch") {
        println!("skipped: {said}");
        return None;
    }
    assert!(output.status.success(), "{program:?} ({mode}): {output:?}");
    let seen = hooked(&log);
    assert!(
        seen.keys().any(|(process, ..)| process >> 63 == 0),
        "{program:?} ({mode}): the hook saw nothing"
    );
    Some(seen.keys().filter(|(process, ..)| process >> 63 == 1).map(|(_, number, _)| *number).collect())
}

fn nothing(name: &str, program: &[&str]) {
    for mode in ["libc,net", "libc,net,handle"] {
        let slipped = slipped(name, mode, program);
        assert!(slipped.is_none_or(|slipped| slipped.is_empty()), "{program:?} ({mode})");
    }
}

fn traps() -> String {
    examples().join("traps").to_str().expect("text").to_owned()
}

#[test]
fn the_programs_own_call_is_told_unless_it_is_patched_too() {
    let traps = traps();
    let getppid = u64::try_from(libc::SYS_getppid).expect("a number");
    if let Some(slipped) = slipped("own", "libc,net", &[&traps, "registers"]) {
        assert_eq!(slipped, [getppid], "one site, outside of what is patched");
    }
    let all = slipped("own-all", "all,net", &[&traps, "registers"]);
    assert!(all.is_none_or(|slipped| slipped.is_empty()));
}

#[test]
fn nothing_slips_by_where_threads_and_processes_begin() {
    for what in ["stdio", "files", "aio", "threads", "fork", "vfork", "spawn"] {
        nothing(what, &[&traps(), what]);
    }
}

#[test]
fn nothing_slips_by_between_signals() {
    for what in ["signals", "cancel"] {
        nothing(what, &[&traps(), what]);
    }
}

#[test]
fn nothing_of_a_shell_slips_by() {
    let script = "echo one | cat >f; (cd /; pwd); trap : USR1; kill -USR1 $$; sleep 0.01 & wait; seq 9999 | sort -R | sort -n | tail -n 1";
    nothing("sh", &["sh", "-e", "-c", script]);
}
