//! Real MAP_SYNC mappings: the tests of files and the conformance suite once more, on ext4 with DAX on an emulated
//! NVDIMM, in a guest (`tests/guest`), on a platform that claims ADR and on one that claims eADR.
//!
//! Skipped, with the reason, where QEMU or what the guest is made of cannot be had.

use std::path::{Path, PathBuf};
use std::process::Command;

use remanence_pmem::{Guarantee, PersistenceDomain};

/// The youngest build of a test program of this crate, if it was built.
fn program(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().expect("this program");
    let directory = this.parent().expect("it lies in a directory");
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("its own directory")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let file = path.file_name().expect("a name").to_string_lossy();
            file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && !rest.contains('.'))
        })
        .collect();
    found.sort_by_key(|path| path.metadata().and_then(|m| m.modified()).expect("a time"));
    found.pop()
}

/// Runs both suites in a guest whose platform claims this; `None` if there can be no guest.
fn run(persistence: &str) -> Option<String> {
    let (Some(conformance), Some(files)) = (program("conformance"), program("files")) else {
        eprintln!("skipped: this runs the crate's other tests, which were not built; run all of them");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/guest.sh");
    let output = Command::new("timeout")
        .args(["--kill-after=5", "200"])
        .arg(script)
        .arg("pmem")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest"))
        .args([conformance, files])
        .env("PERSISTENCE", persistence)
        .output()
        .expect("coreutils are installed");
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Some(console),
        Some(3) => {
            eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
            None
        }
        _ => panic!("{console}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn claims(persistence: &str, domain: PersistenceDomain) {
    let Some(console) = run(persistence) else { return };
    let bits = format!("DaxFile {:#x} ext4 on pmem0", Guarantee::of(domain).to_bits());
    assert!(console.contains(&bits), "no line with {bits:?}: {console}");
    assert_eq!(console.matches("test result: ok").count(), 2, "{console}");
}

#[test]
fn on_an_adr_platform_lines_are_written_back() {
    claims("mem-ctrl", PersistenceDomain::Adr);
}

#[test]
fn on_an_eadr_platform_what_is_visible_is_durable() {
    claims("cpu", PersistenceDomain::Eadr);
}
