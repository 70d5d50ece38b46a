//! Rules about the source text itself.

use std::fs;
use std::process::Command;

use crate::{root, testing};

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
    faults.extend(testing::strays(&root()));
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
    if name.ends_with(".rs") {
        for number in terse(text) {
            faults.push(format!("{name}:{number}: a doc comment of one or two words: say it in a sentence"));
        }
    }
    if name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs") {
        for number in shipped(text) {
            faults.push(format!(
                "{name}:{number}: what a fuzzer runs is for `{FUZZING}` only: users compile it else"
            ));
        }
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

/// What a fuzzer and the unit tests have, and no other build: not that of a user, debug or release, nor the documentation.
const FUZZING: &str = "#[cfg(any(test, fuzzing))]";

/// The lines, counted from 1, that declare a module `fuzzing` which other builds have too.
fn shipped(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declares = |line: &str| {
        !line.starts_with("//") && line.trim_end_matches([' ', '{', ';']).ends_with("mod fuzzing")
    };
    let is_gated = |at: usize| {
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).any(|line| *line == FUZZING)
    };
    (0..lines.len()).filter(|at| declares(lines[*at]) && !is_gated(*at)).map(|at| at + 1).collect()
}

/// The lines, counted from 1, on which a paragraph of a doc comment is one or two words and a full stop. A name of code
/// (`` `like_this` ``), a link and a manual page's name say where the sentence stands, and may be alone.
fn terse(text: &str) -> Vec<usize> {
    let plain = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "',/_-".contains(c));
    let short = |said: &str| {
        let words = said.strip_suffix('.').unwrap_or_default();
        (1..=2).contains(&words.split_whitespace().count()) && words.split_whitespace().all(plain)
    };
    let opens = |before: Option<&str>| before.is_none_or(|said| said.is_empty() || said.starts_with("# "));
    let said: Vec<Option<&str>> = text.lines().map(doc).collect();
    let mut found = Vec::new();
    for (at, line) in said.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| said[at]);
        let behind = said.get(at + 1).copied().flatten().unwrap_or_default();
        if line.is_some_and(short) && opens(before) && behind.is_empty() {
            found.push(at + 1);
        }
    }
    found
}

/// What a line of a doc comment says; `None` if the line is none.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))
        .filter(|said| !said.starts_with('/'))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::{inspect, shipped, terse};

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

    #[test]
    fn a_doc_comment_of_one_or_two_words_is_refused() {
        let text = [
            "//! Queue pairs.",
            "",
            "/// Why.",
            "/// # Errors",
            "/// The store's.",
            "    /// P_Key, Q_Key.",
            "fn f() {}",
            "/// Why it failed.",
            "/// A sentence that goes on, and ends with",
            "/// its last.",
            "/// Undoes [`join`](Self::join).",
            "/// `rdma_listen(3)`.",
            "/// Whole.",
            "/// Then more of it.",
            "//// No doc.",
            "// Not one.",
        ];
        let alone = |line: usize| terse(&format!("{}\nfn f() {{}}\n", text[line - 1]));
        for line in [1, 3, 5, 6] {
            assert_eq!(alone(line), [1], "{}", text[line - 1]);
        }
        for line in [7, 8, 9, 11, 12, 15, 16] {
            assert!(alone(line).is_empty(), "{}", text[line - 1]);
        }
        // Of a comment of several lines only a paragraph that is alone in its section counts.
        assert_eq!(terse("/// Reads it all.\n///\n/// # Errors\n/// The store's.\nfn f() {}\n"), [4]);
        assert_eq!(terse("/// Reads.\n///\n/// # Errors\n/// When the store fails.\nfn f() {}\n"), [1]);
        assert!(terse(&text[8..10].join("\n")).is_empty());
        assert!(terse(&text[12..14].join("\n")).is_empty());
    }

    #[test]
    fn what_a_fuzzer_runs_is_in_no_build_of_a_user() {
        assert_eq!(shipped("pub mod format;\npub mod fuzzing;\n"), [2]);
        assert_eq!(shipped("#[doc(hidden)]\npub mod fuzzing;\n"), [2]);
        assert_eq!(shipped("#[cfg(any(debug_assertions, fuzzing))]\npub(crate) mod fuzzing {\n"), [2]);
        assert!(shipped("#[cfg(any(test, fuzzing))]\npub mod fuzzing;\n// mod fuzzing;\n").is_empty());
        let mut faults = Vec::new();
        for name in ["crates/kv/src/lib.rs", "crates/kv/tests/a.rs"] {
            inspect(name, "//! What this crate is for.\n\npub mod fuzzing;\n", &mut faults);
        }
        assert_eq!(faults.len(), 1, "{faults:?}");
    }

    #[test]
    fn a_terse_comment_is_reported_with_its_line() {
        let text = "//! What this crate is for.\n\n/// Why.\nfn f() {}\n";
        let mut faults = Vec::new();
        inspect("docs/a.md", text, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        inspect("crates/kv/src/a.rs", text, &mut faults);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("crates/kv/src/a.rs:3:"), "{faults:?}");
    }
}
