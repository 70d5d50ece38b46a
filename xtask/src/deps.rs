//! The crate edges that ARCHITECTURE.md promises, and the licences that we may ship.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::root;

/// The crate that hands the others out to users.
const FACADE: &str = "remanence";

/// Which workspace crates a crate may use, dev-dependencies apart. The table of ARCHITECTURE.md.
const EDGES: &[(&str, &[&str])] = &[
    ("auth", &[]),
    ("wire", &[]),
    ("pmem", &[]),
    ("link", &[]),
    ("rnic", &["wire"]),
    ("persist", &["rnic", "pmem"]),
    ("coord", &["pmem", "persist"]),
    ("kv", &["coord", "pmem"]),
    ("kv-live", &["coord", "kv", "metrics", "pmem", "persist", "remote", "remotelog", "verbs"]),
    ("verbs", &["wire", "rnic", "pmem", "link"]),
    ("ibverbs", &["wire", "rnic", "pmem", "link", "verbs"]),
    ("pool", &["auth", "wire", "rnic", "pmem", "verbs"]),
    ("remote", &["auth", "wire", "rnic", "pmem", "verbs", "persist"]),
    ("remotelog", &["coord", "pmem", "persist", "remote", "verbs"]),
    ("rpc", &["auth", "wire", "rnic", "pmem", "verbs", "persist"]),
    ("sim", &["wire", "rnic", "pmem", "persist", "coord", "kv"]),
    ("resp", &[]),
    ("metrics", &[]),
    ("effort", &[]),
    ("gateway", &["resp", "kv", "kv-live", "metrics", "verbs"]),
    ("ycsb", &[]),
    (
        FACADE,
        &[
            "auth",
            "wire",
            "rnic",
            "pmem",
            "link",
            "verbs",
            "persist",
            "remote",
            "remotelog",
            "pool",
            "kv",
            "kv-live",
        ],
    ),
    (
        "bench",
        &[
            "wire",
            "rnic",
            "pmem",
            "link",
            "verbs",
            "ibverbs",
            "pool",
            "persist",
            "remote",
            "remotelog",
            "rpc",
            "kv",
            "kv-live",
            "ycsb",
        ],
    ),
    (
        "cli",
        &[
            "bench",
            "wire",
            "rnic",
            "pmem",
            "link",
            "verbs",
            "pool",
            "sim",
            "persist",
            "remote",
            "remotelog",
            "kv",
            "kv-live",
            "rpc",
            "gateway",
            "metrics",
            "resp",
        ],
    ),
];

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
    let mut faults = edges(&metadata);
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

fn edges(metadata: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for package in workspace(metadata) {
        let Some(name) = short(text(&package["name"])) else { continue };
        let Some((_, allowed)) = EDGES.iter().find(|(n, _)| *n == name) else {
            faults.push(format!("crate {name} has no row in xtask/src/deps.rs: say what it may use"));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let Some(used) = short(text(&dependency["name"])) else { continue };
            if text(&dependency["kind"]) != "dev" && !allowed.contains(&used) {
                faults.push(format!("{name} uses {used}, which the architecture does not allow"));
            }
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
