//! Which paths are cached: rules, and which of them has said so.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A path, and all that is below it. In its names `*` stands for any bytes and `?` for one, and the name `**` for any names. One without a slash is about names in any directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule(PathBuf);

impl Rule {
    /// The rule of a text, whose path is absolute and leads through no links, as those are that the kernel shows.
    #[must_use]
    pub const fn new(text: PathBuf) -> Self {
        Self(text)
    }

    /// The pattern as its user has written it.
    #[must_use]
    pub fn text(&self) -> &Path {
        &self.0
    }

    /// Whether a name has what stands for others.
    #[must_use]
    pub fn is_open(name: &[u8]) -> bool {
        name.iter().any(|byte| matches!(byte, b'*' | b'?'))
    }

    fn has(&self, path: &Path) -> bool {
        let names = |path: &'_ [u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
        };
        let (rule, path) = (self.0.as_os_str().as_bytes(), names(path.as_os_str().as_bytes()));
        if rule.contains(&b'/') {
            begins(&names(rule), &path)
        } else {
            path.iter().any(|name| fits(rule, name))
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.display(), f)
    }
}

/// Whether a path begins with what the names of a rule stand for.
fn begins(rule: &[Vec<u8>], path: &[Vec<u8>]) -> bool {
    match rule {
        [] => true,
        [any, rule @ ..] if any == b"**" => (0..=path.len()).any(|n| begins(rule, &path[n..])),
        [first, rule @ ..] => {
            path.split_first().is_some_and(|(name, path)| fits(first, name) && begins(rule, path))
        }
    }
}

/// Whether one name of a rule stands for a name.
fn fits(rule: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where the last star is, and up to where it stands for the name.
    let mut star = None;
    while of < name.len() {
        match rule.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[of] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((last, upto)) = star else { return false };
                star = Some((last, upto + 1));
                (at, of) = (last + 1, upto + 1);
            }
        }
    }
    rule[at..].iter().all(|byte| *byte == b'*')
}

/// Which paths are cached.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// Only what one of these is about; all, if there are none.
    pub include: Vec<Rule>,
    /// Nothing that one of these is about.
    pub exclude: Vec<Rule>,
}

impl Paths {
    /// Which rule, or lack of one, keeps a path from the cache.
    #[must_use]
    pub fn refuses(&self, path: &Path) -> Option<String> {
        let of = |rules: &'_ [Rule]| rules.iter().find(|rule| rule.has(path)).map(ToString::to_string);
        if let Some(rule) = of(&self.exclude) {
            return Some(format!("--exclude {rule}"));
        }
        let is_in = self.include.is_empty() || of(&self.include).is_some();
        (!is_in).then(|| "no --include has it".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(rule: &str, path: &str) -> bool {
        Rule::new(rule.into()).has(Path::new(path))
    }

    #[test]
    fn a_rule_is_about_a_path_and_what_is_below() {
        assert!(has("/data", "/data") && has("/data", "/data/db") && has("/data/", "/data/a/b"));
        assert!(!has("/data", "/database") && !has("/data/x", "/data") && has("/", "/x"));
    }

    #[test]
    fn stars_stand_for_bytes_of_a_name_or_for_names() {
        assert!(has("/data/*.tmp", "/data/a.tmp") && has("/data/*.tmp", "/data/a.tmp/below"));
        assert!(!has("/data/*.tmp", "/data/sub/a.tmp") && has("/data/**/*.tmp", "/data/sub/a.tmp"));
        assert!(has("/data/**/*.tmp", "/data/a.tmp"), "also for none");
        assert!(has("/a?c/**/z", "/abc/x/y/z") && !has("/a?c", "/ac"));
        assert!(has("*-journal", "/any/where/db-journal") && !has("*-journal", "/any/where/db-journal.bak"));
        assert!(has("cache", "/a/cache/b") && !has("cache", "/a/caches/b"));
        assert!(has("*a*b*", "/xaxxbx") && !has("*a*b", "/xaxxbx") && has("a**b", "/ab"));
    }

    #[test]
    fn what_is_excluded_is_so_although_it_is_included_and_the_rule_is_told() {
        let rules = |rules: &[&str]| rules.iter().map(|rule| Rule::new(rule.into())).collect::<Vec<_>>();
        let paths = Paths { include: rules(&["/data"]), exclude: rules(&["/data/tmp", "*.log"]) };
        assert_eq!(paths.refuses(Path::new("/data/db")), None);
        assert_eq!(paths.refuses(Path::new("/data/tmp/x")).as_deref(), Some("--exclude /data/tmp"));
        assert_eq!(paths.refuses(Path::new("/data/x.log")).as_deref(), Some("--exclude *.log"));
        assert_eq!(paths.refuses(Path::new("/db")).as_deref(), Some("no --include has it"));
        assert_eq!(Paths::default().refuses(Path::new("/anything")), None);
    }
}
