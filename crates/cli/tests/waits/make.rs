//! `make demo` on a machine that lacks what it needs: it stops before it begins, and the remedy is the last it says.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A machine whose programs are those that `make` and the scripts use, a user without rights, and what is given.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(has: &[&str]) -> Self {
        let this = Self(tempfile::tempdir().expect("a directory"));
        for tool in ["sh", "dirname", "grep"] {
            symlink(found(tool).expect("every system has it"), this.0.path().join(tool)).expect("made");
        }
        this.script("id", "echo 1000");
        this.script("dpkg-query", "exit 1");
        has.iter().for_each(|tool| this.script(tool, "echo \"$0 $*\""));
        this
    }

    fn script(&self, name: &str, does: &str) {
        let path = self.0.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{does}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    fn make(&self, target: &str) -> Option<Output> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut make = Command::new(found("make")?);
        // Whatever make runs these tests has its own settings for its children.
        for of_ours in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
            make.env_remove(of_ours);
        }
        Some(
            make.args(["--dry-run", target])
                .current_dir(root)
                .env("PATH", self.0.path())
                .output()
                .expect("runs"),
        )
    }
}

fn found(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(tool)).find(|file| file.is_file())
}

#[test]
fn what_a_build_needs_is_asked_for_before_it_begins_and_the_remedy_is_last() {
    for (has, remedy) in [
        (&["apt-get", "cargo"][..], "not root: please run 'apt-get install gcc libc6-dev' as root"),
        (&["cargo"][..], "not a Debian system: please install the equivalents of: gcc libc6-dev"),
        (&["apt-get", "cc"][..], "there is no cargo in PATH: please install a Rust toolchain"),
    ] {
        for target in ["demo", "verbs", "test"] {
            let Some(output) = Machine::new(has).make(target) else {
                return eprintln!("skipped: there is no make");
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = said.trim_end().lines().last().unwrap_or_default();
            assert!(last.contains(remedy), "make {target} with {has:?}: {said}");
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(!String::from_utf8_lossy(&output.stdout).contains("cargo build"), "it began: {output:?}");
        }
    }
    let all = Machine::new(&["apt-get", "cargo", "cc"]).make("demo").expect("it was there above");
    assert!(all.status.success(), "{}", String::from_utf8_lossy(&all.stderr));
    assert!(String::from_utf8_lossy(&all.stdout).contains("cargo build --release"), "{all:?}");
}
