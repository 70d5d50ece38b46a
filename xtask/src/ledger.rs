//! The compliance ledger, `docs/compliance/*.toml`, against the code.
//!
//! A ledger file lists the rules of one chapter or annex. Each rule is `tested` and names the tests, or
//! `implemented` and names the file, or `excluded` with a reason. A test that is renamed or deleted breaks the
//! check here, so the ledger cannot drift into wishful thinking.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::{mutate, root};

pub(crate) fn run() -> Result<(), String> {
    let folder = root().join("docs/compliance");
    let mut sources = String::new();
    collect(&root().join("crates"), &mut sources);
    let mutations = mutate::names()?;
    let mut faults = Vec::new();
    let mut rules = 0;
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "toml")) {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let table: Table = toml::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        for rule in table.get("rule").and_then(Value::as_array).into_iter().flatten() {
            rules += 1;
            if let Err(why) = judge(rule, &sources, &mutations) {
                faults.push(format!("{}: {why}", file.file_name().unwrap_or_default().to_string_lossy()));
            }
        }
    }
    if !faults.is_empty() {
        return Err(format!("\n  {}", faults.join("\n  ")));
    }
    println!("    {rules} rules");
    Ok(())
}

fn judge(rule: &Value, sources: &str, known: &[String]) -> Result<(), String> {
    let field = |name: &str| rule.get(name).and_then(Value::as_str);
    let what = field("rule").ok_or("an entry without `rule`")?;
    for mutation in rule.get("mutations").and_then(Value::as_array).into_iter().flatten() {
        let named = mutation.as_str().filter(|name| known.iter().any(|known| known == name));
        named.ok_or_else(|| format!("{what:?} names the mutation {mutation}, which does not exist"))?;
    }
    match field("state") {
        Some("tested") => {
            let tests = rule.get("tests").and_then(Value::as_array);
            let tests = tests.filter(|t| !t.is_empty()).ok_or_else(|| format!("{what:?} names no test"))?;
            for test in tests.iter().filter_map(Value::as_str) {
                if !sources.contains(&format!("fn {test}(")) {
                    return Err(format!("{what:?} names the test {test}, which does not exist"));
                }
            }
            Ok(())
        }
        Some("implemented") => match field("file") {
            Some(file) if root().join(file).is_file() => Ok(()),
            _ => Err(format!("{what:?} is implemented in no file that exists")),
        },
        Some("excluded") if field("reason").is_some_and(|r| !r.is_empty()) => Ok(()),
        _ => Err(format!("{what:?} is neither tested, implemented nor excluded with a reason")),
    }
}

fn collect(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::judge;

    fn entry(text: &str) -> toml::Value {
        toml::Value::Table(toml::from_str(text).unwrap())
    }

    #[test]
    fn a_rule_must_have_its_evidence() {
        let tested = entry("rule = 'r'\nstate = 'tested'\ntests = ['t']");
        assert!(judge(&tested, "fn t() {}", &[]).is_ok());
        assert!(judge(&tested, "fn u() {}", &[]).is_err());
        assert!(judge(&entry("rule = 'r'\nstate = 'excluded'"), "", &[]).is_err());
        assert!(judge(&entry("rule = 'r'\nstate = 'excluded'\nreason = 'no RD'"), "", &[]).is_ok());
        assert!(judge(&entry("rule = 'r'\nstate = 'implemented'\nfile = 'no/such.rs'"), "", &[]).is_err());
        let mutated = entry("rule = 'r'\nstate = 'tested'\ntests = ['t']\nmutations = ['m']");
        assert!(judge(&mutated, "fn t() {}", &["m".to_owned()]).is_ok());
        assert!(judge(&mutated, "fn t() {}", &["n".to_owned()]).is_err());
    }
}
