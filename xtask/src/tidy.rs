//! Rules about the source text itself.

use std::fs;
use std::process::Command;

use crate::root;

/// A file longer than this has more than one idea in it.
const LINES_MAX: usize = 1_200;

/// Text that must not appear, and why. The words are split so that this file passes its own check.
const BANNED: &[(&str, &str)] = &[
    (concat!("to", "do!("), "finish it or leave it out"),
    (concat!("unimple", "mented!("), "finish it or leave it out"),
    (concat!("TO", "DO"), "an open question belongs in an issue"),
    (concat!("FIX", "ME"), "an open question belongs in an issue"),
    (concat!("X", "XX"), "an open question belongs in an issue"),
    (concat!("db", "g!("), "a leftover"),
    (concat!("<<<<", "<<< "), "a merge that was not finished"),
    (concat!(">>>>", ">>> "), "a merge that was not finished"),
    (concat!("/ro", "ot/"), "a machine path"),
    (concat!("/ho", "me/"), "a machine path"),
    (concat!("/wo", "rk/"), "a machine path"),
];

/// The sources' files, relative to the root, each with a NUL behind it: what git knows, or would take.
pub(crate) fn listing() -> Result<String, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn run() -> Result<(), String> {
    let listing = listing()?;
    let mut faults = Vec::new();
    for name in listing.split('\0').filter(|n| is_source(n)) {
        let Ok(text) = fs::read_to_string(root().join(name)) else { continue };
        inspect(name, &text, &mut faults);
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("\n  {}", faults.join("\n  "))) }
}

fn is_source(name: &str) -> bool {
    [".rs", ".c", ".h", ".sh", ".toml", ".md", ".py"].iter().any(|end| name.ends_with(end))
}

fn inspect(name: &str, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if name.ends_with(".rs") && lines > LINES_MAX {
        faults.push(format!("{name}: {lines} lines, more than {LINES_MAX}: split it by ideas"));
    }
    if name.ends_with("/lib.rs") && !text.starts_with("//!") {
        faults.push(format!("{name}: a crate opens with what it is for"));
    }
    for (number, line) in text.lines().enumerate() {
        for (word, why) in BANNED {
            if line.contains(word) {
                faults.push(format!("{name}:{}: {word:?}: {why}", number + 1));
            }
        }
        let ignored = line.trim_start().starts_with(concat!("#[ig", "nore"));
        if ignored && !line.contains("`cargo ") {
            let number = number + 1;
            faults
                .push(format!("{name}:{number}: an ignored test needs a reason and a command that runs it"));
        }
        if line.ends_with([' ', '\t']) && !name.ends_with(".md") {
            faults.push(format!("{name}:{}: trailing space", number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::inspect;

    #[test]
    fn each_rule_reports_its_line() {
        let mut faults = Vec::new();
        inspect("a/lib.rs", concat!("fn x() { to", "do!() }\nlet a = 1; \n"), &mut faults);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[1].starts_with("a/lib.rs:1:"));
        assert!(faults[2].starts_with("a/lib.rs:2:"));
    }

    #[test]
    fn an_ignored_test_says_why_and_how_it_is_run() {
        let mut faults = Vec::new();
        for line in [
            concat!("#[ig", "nore]\n"),
            concat!("    #[ig", "nore = \"the part of a child process\"]\n"),
            concat!("#[ig", "nore = \"a child process of `cargo test --test x`\"]\n"),
        ] {
            inspect("a/tests/b.rs", line, &mut faults);
        }
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
