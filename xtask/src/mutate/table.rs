//! The mutations, as they are written down: `crates/*/tests/mutations/*.toml`.
//!
//! ```toml
//! [[mutation]]
//! name = "hole-2-acknowledged-and-gone"
//! hole = 2                                # of docs/erda.md; optional
//! does = "a reply leaves before what it speaks of is durable, as in the paper"
//! tests = ["erda-paper/holes::hole_2_acknowledged_and_gone::ours_does_not"]   # CRATE/PROGRAM::TEST, `lib` for unit tests
//! seeds = 10000                           # of each simulation among the tests, until one fails; optional: as many as for a push
//!
//! [[mutation.edit]]
//! file = "crates/kv/src/server/mod.rs"
//! old = '''text that is there once'''
//! new = '''what comes in its place'''
//! ```
//! Every test that is named must fail. A mutation with `lives = "REASON"` is one that no test can tell from the original, and
//! why; its tests must pass.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use toml::{Table, Value};

use crate::testing;

/// The crate that simulates clusters.
pub(crate) const SIMULATOR: &str = "sim";

/// So many mutations of `coord` name a test of the simulator at least.
const SIMULATED: usize = 70;

/// Crates that the simulator has as they are: mutations of theirs that only it and tests of `coord` are to notice share one build.
const HOSTED: [&str; 3] = ["coord", "pool", "rpc"];

/// One way to break a rule of the code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mutation {
    pub(crate) name: String,
    /// Which of the nine holes of the paper's design it opens again.
    pub(crate) hole: Option<u8>,
    /// What the mutated code does, in words.
    pub(crate) does: String,
    pub(crate) edits: Vec<Edit>,
    pub(crate) tests: Vec<Test>,
    /// How many seeds simulations try until one of them notices, if more than usual.
    pub(crate) seeds: Option<u64>,
    /// Why no test fails.
    pub(crate) lives: Option<String>,
}

/// Text that is there once in a file, and what comes in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Edit {
    /// From the workspace's root.
    pub(crate) file: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// A test of the workspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Test {
    /// The crate, without the prefix of all.
    pub(crate) package: String,
    /// The file in `tests` or in one of its lanes, or `lib`.
    pub(crate) program: String,
    /// The test's name within it.
    pub(crate) path: String,
}

impl Test {
    fn parse(text: &str) -> Option<Self> {
        let (package, rest) = text.split_once('/')?;
        let (program, path) = rest.split_once("::")?;
        let fair = [package, program, path].iter().all(|part| !part.is_empty());
        fair.then(|| Self { package: package.into(), program: program.into(), path: path.into() })
    }

    /// The target that cargo builds for it, and how the test is named there: a module of a lane comes with the others of the lane.
    pub(crate) fn built(&self, root: &Path) -> (String, String) {
        match testing::source(&root.join("crates").join(&self.package), &self.program) {
            (Some(lane), _) => (lane.to_owned(), format!("{}::{}", self.program, self.path)),
            (None, _) => (self.program.clone(), self.path.clone()),
        }
    }

    /// Whether the source has every name of the path. (A macro may put them together, so no more can be asked of text.)
    fn is_in(&self, root: &Path) -> bool {
        let at = root.join("crates").join(&self.package);
        let mut text = String::new();
        if self.program == "lib" {
            read_all(&at.join("src"), &mut text);
        } else {
            text = fs::read_to_string(testing::source(&at, &self.program).1).unwrap_or_default();
        }
        self.path.split("::").all(|name| text.contains(name))
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}::{}", self.package, self.program, self.path)
    }
}

fn read_all(at: &Path, into: &mut String) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

impl Edit {
    /// Whether it is made in the sources of a crate.
    fn is_of(&self, package: &str) -> bool {
        self.file
            .strip_prefix("crates/")
            .and_then(|file| file.strip_prefix(package))
            .is_some_and(|file| file.starts_with("/src/"))
    }

    /// The text with this edit.
    ///
    /// # Errors
    /// It does not apply: what was to be replaced is not there, or more than once.
    pub(crate) fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.old).count() {
            1 if self.old != self.new => Ok(text.replacen(&self.old, &self.new, 1)),
            1 => Err(format!("{}: an edit that changes nothing", self.file)),
            n => Err(format!("{}: this is there {n} times, not once:\n{}", self.file, self.old)),
        }
    }
}

impl Mutation {
    /// Whether everything that it concerns computes, and so can run beside anything: a rule of a crate that is simulated, and tests of `coord` and
    /// of the simulator.
    pub(crate) fn computes(&self) -> bool {
        self.edits.iter().all(|edit| HOSTED.into_iter().any(|name| edit.is_of(name)))
            && self.tests.iter().all(|test| [SIMULATOR, "coord"].contains(&&test.package[..]))
    }

    /// This mutation with those tests only that simulate clusters, if it has some.
    pub(crate) fn simulated(&self) -> Option<Self> {
        let mut simulated = self.clone();
        simulated.tests.retain(|test| test.package == SIMULATOR);
        (simulated.computes() && !simulated.tests.is_empty()).then_some(simulated)
    }
    /// The mutated files.
    ///
    /// # Errors
    /// An edit does not apply to the sources under `root`.
    pub(crate) fn apply(&self, root: &Path) -> Result<Vec<(String, String)>, String> {
        let mut files: Vec<(String, String)> = Vec::new();
        for edit in &self.edits {
            let read =
                || fs::read_to_string(root.join(&edit.file)).map_err(|e| format!("{}: {e}", edit.file));
            match files.iter_mut().find(|(name, _)| *name == edit.file) {
                Some((_, text)) => *text = edit.apply(text)?,
                None => files.push((edit.file.clone(), edit.apply(&read()?)?)),
            }
        }
        Ok(files)
    }
}

/// All of them, in the order of their files.
///
/// # Errors
/// A file cannot be read, or means nothing.
pub(crate) fn load(root: &Path) -> Result<Vec<Mutation>, String> {
    let mut files = Vec::new();
    for member in fs::read_dir(root.join("crates")).map_err(|e| format!("crates: {e}"))?.flatten() {
        let at = member.path().join("tests/mutations");
        files.extend(fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        all.extend(parse(&text).map_err(|why| format!("{}: {why}", file.display()))?);
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Vec<Mutation>, String> {
    let table: Table = text.parse().map_err(|e| format!("{e}"))?;
    list(&table, "mutation")?.into_iter().map(mutation).collect()
}

fn mutation(table: &Table) -> Result<Mutation, String> {
    let name = string(table, "name")?;
    let named = |why: String| format!("{name}: {why}");
    let known = ["name", "hole", "does", "tests", "seeds", "lives", "edit"];
    if let Some(key) = table.keys().find(|key| !known.contains(&&key[..])) {
        return Err(named(format!("`{key}` means nothing here")));
    }
    let edits = list(table, "edit").map_err(named)?.into_iter().map(|edit| {
        Ok(Edit { file: string(edit, "file")?, old: string(edit, "old")?, new: string(edit, "new")? })
    });
    let tests = table.get("tests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let tests = tests.iter().map(|test| {
        let text = test.as_str().unwrap_or_default();
        Test::parse(text).ok_or_else(|| format!("{test} is no CRATE/PROGRAM::TEST"))
    });
    let mutation = Mutation {
        hole: table.get("hole").and_then(Value::as_integer).and_then(|hole| u8::try_from(hole).ok()),
        does: string(table, "does").map_err(named)?,
        edits: edits.collect::<Result<_, String>>().map_err(named)?,
        tests: tests.collect::<Result<_, String>>().map_err(named)?,
        seeds: table.get("seeds").and_then(Value::as_integer).and_then(|seeds| u64::try_from(seeds).ok()),
        lives: table.get("lives").and_then(Value::as_str).map(str::to_owned),
        name: name.clone(),
    };
    if mutation.edits.is_empty() || mutation.tests.is_empty() {
        return Err(named("it needs an `edit`, and the `tests` that are to notice".into()));
    }
    Ok(mutation)
}

fn list<'a>(table: &'a Table, key: &str) -> Result<Vec<&'a Table>, String> {
    let values = table.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    values.iter().map(|v| v.as_table().ok_or_else(|| format!("`{key}` is a list of tables"))).collect()
}

fn string(table: &Table, key: &str) -> Result<String, String> {
    let text = table.get(key).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| format!("it has no `{key}`"))
}

/// What is wrong with them, beside the sources that they are about; builds nothing.
pub(crate) fn faults(all: &[Mutation], root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let mut names = BTreeSet::new();
    for mutation in all {
        let name = &mutation.name;
        if !names.insert(name) {
            faults.push(format!("{name}: there are two of that name"));
        }
        if let Err(why) = mutation.apply(root) {
            faults.push(format!("{name} does not apply any more: {why}"));
        }
        let missing = mutation.tests.iter().filter(|test| !test.is_in(root));
        faults.extend(missing.map(|test| format!("{name}: there is no test {test}")));
    }
    // The simulator is to find a defect in any rule of `coord` (issue 14).
    let is_of_coord = |m: &Mutation| m.edits.iter().all(|edit| edit.is_of("coord"));
    let found = |m: &&Mutation| m.lives.is_none() && is_of_coord(m) && m.simulated().is_some();
    let count = all.iter().filter(found).count();
    if count < SIMULATED {
        faults.push(format!("the simulator finds {count} mutations of coord, and not {SIMULATED}"));
    }
    let opens = |hole: u8| all.iter().any(|m| m.hole == Some(hole) && m.lives.is_none());
    faults.extend((1..=9).filter(|hole| !opens(*hole)).map(|hole| format!("no mutation opens hole {hole}")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "
        [[mutation]]
        name = 'a'
        hole = 3
        seeds = 9000
        does = 'something else'
        tests = ['kv/holes::hole_3::ours', 'kv/lib::x']
        [[mutation.edit]]
        file = 'f'
        old = 'one'
        new = 'two'
    ";

    #[test]
    fn a_mutation_is_read_and_applied_once_and_only_where_it_fits() {
        let all = parse(ONE).expect("fair");
        assert_eq!(
            (all.len(), all[0].hole, all[0].seeds, all[0].tests[0].to_string()),
            (1, Some(3), Some(9000), "kv/holes::hole_3::ours".into())
        );
        let edit = &all[0].edits[0];
        assert_eq!(edit.apply("no one is"), Ok("no two is".to_owned()));
        assert!(edit.apply("nobody is").is_err_and(|why| why.contains("0 times")));
        assert!(edit.apply("one by one").is_err_and(|why| why.contains("2 times")));
        assert!(Edit { new: "one".into(), ..edit.clone() }.apply("one").is_err());
    }

    #[test]
    fn what_is_incomplete_or_misspelt_is_refused() {
        for (from, to) in [
            ("does =", "dose ="),
            ("'kv/holes::hole_3::ours'", "'kv/holes'"),
            ("tests = [", "test = ["),
            ("[[mutation.edit]]", "[[mutation.edits]]"),
            ("old =", "older ="),
        ] {
            assert!(parse(&ONE.replace(from, to)).is_err(), "{from} as {to}");
        }
    }

    #[test]
    fn every_mutation_of_this_repository_applies_and_each_hole_has_one() {
        let root = crate::root();
        let all = load(&root).expect("they are read");
        assert_eq!(faults(&all, &root), Vec::<String>::new());
    }

    #[test]
    fn a_mutation_that_does_not_fit_any_more_is_a_fault() {
        let root = crate::root();
        let mut all = load(&root).expect("they are read");
        all[0].edits[0].old.insert_str(0, "no such text ");
        all[1].tests[0].path.push_str("_no_such_test");
        let faults = faults(&all, &root);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("does not apply") && faults[1].contains("no_such_test"), "{faults:?}");
    }
}
