//! Tests that failed and then passed: printed last, and kept.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::root;

/// Tests whose verdict is known to depend on chance, each with its cause or who looks for it.
const KNOWN: &str = "docs/compliance/flaky.toml";

/// A test that failed beside others, and passed twice by itself.
pub(super) struct Flake {
    /// The program and the test.
    pub(super) test: String,
    /// How the first run ended, and what it printed.
    pub(super) how: String,
    pub(super) output: String,
    /// `/proc/loadavg` then.
    pub(super) load: String,
}

/// The load of this machine: how many wanted to run, of late.
pub(super) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg")
        .map_or_else(|_| "unknown".to_owned(), |load| load.trim().to_owned())
}

/// The seed that a test has named last, if it has: behind `seed`, as it stands in a sentence or in the line that replays it.
fn seed(output: &str) -> Option<u64> {
    output.rmatch_indices("seed").find_map(|(at, word)| {
        let rest = output[at + word.len()..].trim_start_matches([' ', ':', '=']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    })
}

/// The known ones.
pub(crate) fn known() -> Result<Vec<(String, String)>, String> {
    let text = std::fs::read_to_string(root().join(KNOWN)).map_err(|e| format!("{KNOWN}: {e}"))?;
    parse(&text).map_err(|e| format!("{KNOWN}: {e}"))
}

fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let table: toml::Table = text.parse().map_err(|e| format!("{e}"))?;
    let all = table.get("flaky").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let word = |one: &toml::Value, name: &str| {
        let word = one.get(name).and_then(toml::Value::as_str).map(str::trim).filter(|word| !word.is_empty());
        word.map(str::to_owned).ok_or_else(|| format!("an entry has no {name}"))
    };
    all.iter().map(|one| Ok((word(one, "test")?, word(one, "cause")?))).collect()
}

/// Prints them, and keeps them in `target/flaky.jsonl`.
pub(super) fn report(flakes: &[Flake]) -> Result<(), String> {
    if flakes.is_empty() {
        return Ok(());
    }
    let known = known()?;
    let path = root().join("target/flaky.jsonl");
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = std::fs::File::options().create(true).append(true).open(&path).map_err(failed)?;
    println!(
        "==> FLAKY: these failed beside others and passed twice by themselves. Look for the cause, or write it into {KNOWN}"
    );
    for flake in flakes {
        let cause = known.iter().find(|(test, _)| *test == flake.test).map(|(_, cause)| &cause[..]);
        println!(
            "---- {} ({}; load {}; {})",
            flake.test,
            flake.how,
            flake.load,
            cause.unwrap_or("not known")
        );
        println!("{}", flake.output);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let line = json!({
            "unix_s": now, "test": flake.test, "how": flake.how, "seed": seed(&flake.output), "load": flake.load, "cause": cause,
            "output": flake.output,
        });
        writeln!(file, "{line}").map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_that_a_test_has_named_is_kept_by_itself() {
        assert_eq!(
            seed("seeds 0..500\nseed 12: a store\nreplay   rem sim --seed 12 --faults 3,10"),
            Some(12)
        );
        assert_eq!((seed("failed with seed=77, twice"), seed("seed: 5")), (Some(77), Some(5)));
        assert_eq!((seed("no such word"), seed("of many seeds one"), seed("seed")), (None, None, None));
    }

    #[test]
    fn the_known_ones_have_causes() {
        known().expect("the list can be read");
        assert_eq!(parse("").expect("nothing is known"), []);
        let one = "[[flaky]]\ntest = \"kv-live/live::a\"\ncause = \"a timer\"\n";
        assert_eq!(parse(one).expect("one"), [("kv-live/live::a".to_owned(), "a timer".to_owned())]);
        assert!(
            parse("[[flaky]]\ntest = \"kv-live/live::a\"\ncause = \" \"\n")
                .expect_err("no cause")
                .contains("no cause")
        );
    }
}
