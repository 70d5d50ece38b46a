//! Every test, from one build.
//!
//! Some tests run what this workspace makes: `rem`, and the drop-in libraries. Alone, they have cargo build it, which for
//! one package picks other features of shared dependencies than for the workspace, and so builds all of them once more.
//! Here the build of the tests has made both already, and the tests are told where.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::dropin;
use crate::root;
use crate::run as run_command;

const TESTS: [&str; 3] = ["test", "--workspace", "--locked"];

pub(crate) fn run() -> Result<(), String> {
    let mut build = Command::new(env!("CARGO"));
    build.args(TESTS).args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = build.current_dir(root()).output().map_err(|e| format!("{build:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{build:?}: {}", output.status));
    }
    let made = Made::of(&String::from_utf8_lossy(&output.stdout))?;
    let libraries = made.libraries()?;
    run_command(
        Command::new(env!("CARGO"))
            .args(TESTS)
            .env("REMANENCE_TEST_REM", &made.rem)
            .env("REMANENCE_TEST_LIB", libraries),
    )
}

/// What the tests run.
#[derive(PartialEq, Eq, Debug)]
struct Made {
    rem: PathBuf,
    /// `libremanence_ibverbs-….a`
    archive: PathBuf,
}

impl Made {
    /// From what cargo says of its artifacts, a JSON object in each line.
    fn of(messages: &str) -> Result<Self, String> {
        let (mut rem, mut archive) = (None, None);
        for line in messages.lines().filter(|line| line.contains("compiler-artifact")) {
            let message: Value = serde_json::from_str(line).map_err(|e| format!("cargo says {line}: {e}"))?;
            if message["profile"]["test"] == true {
                continue;
            }
            match message["target"]["name"].as_str() {
                Some("rem") => rem = message["executable"].as_str().map(PathBuf::from).or(rem),
                Some("remanence_ibverbs") => {
                    let files = message["filenames"].as_array().into_iter().flatten();
                    let mut files = files.filter_map(Value::as_str).map(PathBuf::from);
                    archive = files.find(|file| file.extension().is_some_and(|e| e == "a")).or(archive);
                }
                _ => {}
            }
        }
        Ok(Self {
            rem: rem.ok_or("the build of the tests made no rem")?,
            archive: archive.ok_or("the build of the tests made no libremanence_ibverbs.a")?,
        })
    }

    /// Links the drop-in libraries beside `rem`, where it looks for them too.
    fn libraries(&self) -> Result<PathBuf, String> {
        let out = self.rem.parent().unwrap_or(Path::new(".")).join("dropin");
        dropin::link(&self.archive, &out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tests_run_is_found_among_what_cargo_made() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"remanence_ibverbs"},"profile":{"test":true},"filenames":["/t/no.a"],"executable":"/t/no"}
{"reason":"compiler-artifact","target":{"name":"remanence_ibverbs"},"profile":{"test":false},"filenames":["/t/x.rlib","/t/x.a","/t/x.rmeta"],"executable":null}
{"reason":"compiler-artifact","target":{"name":"rem"},"profile":{"test":true},"filenames":["/t/deps/rem-1"],"executable":"/t/deps/rem-1"}
{"reason":"compiler-artifact","target":{"name":"rem"},"profile":{"test":false},"filenames":["/t/rem"],"executable":"/t/rem"}
{"reason":"build-finished","success":true}"#;
        let made = Made::of(messages).expect("both are there");
        assert_eq!(made, Made { rem: "/t/rem".into(), archive: "/t/x.a".into() });
        let without = messages.lines().filter(|line| !line.contains("/t/x.a")).collect::<Vec<_>>().join("\n");
        assert!(Made::of(&without).expect_err("no archive").contains("libremanence_ibverbs.a"));
    }
}
