//! The crate edges that the table of ARCHITECTURE.md has, and the licences that we may ship.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::root;

/// The crate that hands the others out to users.
const FACADE: &str = "remanence";

/// Whose table says which crates a crate may use, dev-dependencies apart.
const MAP: &str = "ARCHITECTURE.md";

/// Crates that stand beside the columns of its picture: what stands in for the live one, and what only tests and benches use.
const BESIDE: [&str; 3] = ["sim", "effort", "erda-paper"];

/// Licences that go with Apache-2.0 OR MIT in a binary we ship.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "CC0-1.0",
    "Unicode-3.0",
    "Unlicense",
    "MIT-0",
];

pub(crate) fn run() -> Result<(), String> {
    let metadata = metadata()?;
    let map = std::fs::read_to_string(root().join(MAP)).map_err(|e| format!("{MAP}: {e}"))?;
    let allowed = allowed(&map);
    let mut faults = edges(&metadata, &allowed);
    faults.extend(picture(&map, &allowed));
    faults.extend(licences(&metadata));
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n  ")) }
}

/// The names of the workspace's packages.
pub(crate) fn members() -> Result<Vec<String>, String> {
    let metadata = metadata()?;
    Ok(workspace(&metadata).map(|p| text(&p["name"]).to_owned()).collect())
}

/// The name of the package in a directory of `crates`.
pub(crate) fn name(directory: &str) -> String {
    match directory {
        "remanence" => directory.to_owned(),
        _ => format!("remanence-{directory}"),
    }
}

/// Where cargo builds.
pub(crate) fn target() -> Result<PathBuf, String> {
    Ok(PathBuf::from(text(&metadata()?["target_directory"])))
}

fn metadata() -> Result<Value, String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn workspace(metadata: &Value) -> impl Iterator<Item = &Value> {
    let members: BTreeSet<&str> = list(&metadata["workspace_members"]).iter().map(text).collect();
    list(&metadata["packages"]).iter().filter(move |p| members.contains(text(&p["id"])))
}

/// A crate's name without the project's; the facade has no other.
fn short(name: &str) -> Option<&str> {
    if name == FACADE { Some(name) } else { name.strip_prefix("remanence-") }
}

/// What each crate may use, from the rows of the table: `| crate | owns | may use | unsafe |`. `None`: whatever lies below it.
fn allowed(map: &str) -> BTreeMap<&str, Option<BTreeSet<&str>>> {
    let rows = map.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, uses) = (cells.next()?.strip_suffix('`')?, cells.nth(1)?);
        let names = || uses.split('`').skip(1).step_by(2).collect();
        Some((name, (!uses.starts_with("all")).then(names)))
    });
    rows.collect()
}

/// Uses that the table does not have, those that only the table has, and crates without a row.
fn edges(metadata: &Value, allowed: &BTreeMap<&str, Option<BTreeSet<&str>>>) -> Vec<String> {
    let mut faults = Vec::new();
    for package in workspace(metadata) {
        let Some(name) = short(text(&package["name"])) else { continue };
        let Some(allowed) = allowed.get(name) else {
            faults.push(format!("crate {name} has no row in the table of {MAP}: say what it may use"));
            continue;
        };
        let Some(allowed) = allowed else { continue };
        let dependencies = list(&package["dependencies"]).iter().filter(|one| text(&one["kind"]) != "dev");
        let used: BTreeSet<&str> = dependencies.filter_map(|one| short(text(&one["name"]))).collect();
        for unknown in used.difference(allowed) {
            faults.push(format!("{name} uses {unknown}, which the table of {MAP} does not allow"));
        }
        for unused in allowed.difference(&used) {
            faults.push(format!("{name} does not use {unused}, which the table of {MAP} says it may"));
        }
    }
    faults
}

/// Where the picture of the map puts a crate in another column than the table: the pure ones use only each other and what is shared. And crates
/// that it does not have, or nobody has.
fn picture(map: &str, allowed: &BTreeMap<&str, Option<BTreeSet<&str>>>) -> Vec<String> {
    let mut lines = map.lines().skip_while(|line| !line.contains("PURE: "));
    let head = lines.next().unwrap_or_default();
    let (Some(shared), Some(live)) = (head.find("shared"), head.find("LIVE: ")) else {
        return vec![format!("{MAP} has no picture of its columns")];
    };
    let mut columns: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lines.take_while(|line| !line.trim().is_empty()) {
        // Behind the name of the row.
        for word in line.split_whitespace().skip(1) {
            columns.insert(word, word.as_ptr().addr() - line.as_ptr().addr());
        }
    }
    let is_unknown = |name: &&&str| !allowed.contains_key(**name);
    let unknown =
        columns.keys().filter(is_unknown).map(|name| format!("the picture has {name}, which is no crate"));
    let is_missing = |name: &&&str| !columns.contains_key(**name) && !BESIDE.contains(*name);
    let missing = allowed.keys().filter(is_missing).map(|name| format!("the picture does not have {name}"));
    let mut faults: Vec<String> = unknown.chain(missing).collect();
    for (name, uses) in allowed {
        let is_pure = columns.get(name).is_some_and(|at| *at < shared);
        for used in
            uses.iter().flatten().filter(|used| is_pure && columns.get(**used).is_some_and(|at| *at >= live))
        {
            faults.push(format!(
                "the picture has {name} in the pure column, and {used}, which it uses, in the live one"
            ));
        }
    }
    faults
}

fn licences(metadata: &Value) -> Vec<String> {
    let allowed = |one: &str| LICENCES.contains(&one.trim().trim_matches(['(', ')']).trim());
    list(&metadata["packages"])
        .iter()
        .filter_map(|package| {
            let expression = text(&package["license"]).replace('/', " OR ");
            // Every part of a conjunction must be allowed, one part of a disjunction is enough.
            let fine = expression.split(" AND ").all(|part| part.split(" OR ").any(allowed));
            (!fine).then(|| format!("{} is licensed {expression:?}", text(&package["name"])))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &str = "\
| crate | owns | may use | `unsafe` |
|---|---|---|---|
| `wire` | formats: `Header` and so on | nothing | forbidden |
| `rnic` | the engine | `wire` | forbidden |
| `remanence` | what users see | `rnic`, `wire` | forbidden |
| `cli` | `rem`, the one binary | all | `cmd/verbs/namespace` |
";

    #[test]
    fn the_picture_has_each_crate_and_none_that_is_pure_uses_one_that_is_live() {
        let head = "         PURE: decides       shared   LIVE: waits\n";
        let of = |rows: &str| picture(&format!("{head}{rows}\n\n{TABLE}"), &allowed(TABLE));
        assert_eq!(of("engine   rnic   wire          remanence   cli"), Vec::<String>::new());
        let faults = of("engine   rnic                remanence   wire");
        assert!(faults.iter().any(|fault| fault.contains("does not have cli")), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.contains("has rnic in the pure column")), "{faults:?}");
        assert!(of("engine   rnic   wire   other   cli   remanence")[0].contains("other, which is no crate"));
        assert_eq!(picture(TABLE, &allowed(TABLE)).len(), 1, "there is none");
    }

    fn metadata(user: &str, used: &[&str], kind: Option<&str>) -> Value {
        let dependencies = used.iter().chain(&["libc"]).map(|name| json!({ "name": name, "kind": kind }));
        let dependencies: Vec<Value> = dependencies.collect();
        let package = json!({ "id": "x", "name": user, "dependencies": dependencies });
        json!({ "workspace_members": ["x"], "packages": [package] })
    }

    #[test]
    fn a_use_that_either_the_table_or_the_crate_does_not_have_is_a_fault() {
        let allowed = allowed(TABLE);
        assert_eq!(allowed["wire"], Some(BTreeSet::new()), "what it owns is not what it may use");
        let faults = |user: &str, used: &[&str]| edges(&metadata(user, used, None), &allowed);
        let [wire, rnic] = ["remanence-wire", "remanence-rnic"];
        assert!(faults(rnic, &[wire]).is_empty());
        assert!(faults("remanence", &[rnic, wire]).is_empty());
        assert!(faults("remanence-cli", &[rnic]).is_empty(), "all");
        assert!(faults(wire, &[rnic])[0].contains("wire uses rnic"));
        assert!(faults("remanence", &[rnic])[0].contains("remanence does not use wire"));
        assert!(faults("remanence-new", &[wire])[0].contains("no row"));
        assert!(edges(&metadata(wire, &[rnic], Some("dev")), &allowed).is_empty());
        assert!(edges(&metadata(rnic, &[wire], Some("dev")), &allowed)[0].contains("rnic does not use wire"));
    }
}
