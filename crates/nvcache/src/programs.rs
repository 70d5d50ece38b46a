//! What `rem run` says to the library that it has loaded into a program whose files are read and written by a cache (the modes *deferred* and *pages*), in its environment; and what that library
//! counts, in a file that both have.
//!
//! A word of that file is a [`Count`], and each is only added to: programs that a program executes add to the same ones.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use remanence_cache_live::daemon::{Paths, Rule};

const LOG: &str = "REMANENCE_DEFERRED";
const PAGES: &str = "REMANENCE_DEFERRED_PAGES";
const COUNTS: &str = "REMANENCE_DEFERRED_COUNTS";
const INCLUDE: &str = "REMANENCE_DEFERRED_INCLUDE";
const EXCLUDE: &str = "REMANENCE_DEFERRED_EXCLUDE";

/// All variables. Where another mode is meant, none of them may be in the environment.
pub const VARIABLES: [&str; 5] = [LOG, PAGES, COUNTS, INCLUDE, EXCLUDE];

/// How a program is to be run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The log, or the pages, which are there.
    pub log: PathBuf,
    /// Whether these are pages.
    pub pages: bool,
    /// The file of the counts.
    pub counts: Option<PathBuf>,
    /// Which files the cache may have. No rule has a newline.
    pub paths: Paths,
}

impl Settings {
    /// All variables that say it; one without a value is to be taken out of the environment.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, Option<OsString>); 5] {
        let rules = |rules: &[Rule]| {
            let texts: Vec<&[u8]> = rules.iter().map(|rule| rule.text().as_os_str().as_bytes()).collect();
            (!texts.is_empty()).then(|| OsString::from_vec(texts.join(&b'\n')))
        };
        [
            (LOG, Some(self.log.clone().into_os_string())),
            (PAGES, self.pages.then(|| "1".into())),
            (COUNTS, self.counts.clone().map(PathBuf::into_os_string)),
            (INCLUDE, rules(&self.paths.include)),
            (EXCLUDE, rules(&self.paths.exclude)),
        ]
    }

    /// What the environment says, if it says anything.
    #[must_use]
    pub fn told() -> Option<Self> {
        Self::of(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let rules = |name: &str| {
            let texts = variable(name).unwrap_or_default().into_vec();
            let texts = texts.split(|byte| *byte == b'\n').filter(|text| !text.is_empty());
            texts.map(|text| Rule::new(OsString::from_vec(text.to_vec()).into())).collect()
        };
        Some(Self {
            log: variable(LOG)?.into(),
            pages: variable(PAGES).is_some(),
            counts: variable(COUNTS).map(PathBuf::from),
            paths: Paths { include: rules(INCLUDE), exclude: rules(EXCLUDE) },
        })
    }
}

/// What is counted, in the order of the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Count {
    /// Files that were opened to be written, and which the cache has had.
    Deferred,
    /// Those of them which it had until they were closed, or their program has ended.
    Kept,
    /// Reads that it has answered.
    Reads,
    /// Writes and truncations that it has taken.
    Writes,
    /// Syncs that waited for the log.
    Syncs,
    /// Of files that were handed back: a child was made.
    Forked,
    /// A program was executed.
    Executed,
    /// It was mapped.
    Mapped,
    /// It was locked.
    Locked,
    /// The kernel copied it, or into it.
    Copied,
    /// Somebody opened it once more, or truncated it by its path.
    Shared,
    /// It was renamed or removed, or its times were set.
    Named,
    /// Space was allocated.
    Allocated,
    /// Requests were submitted.
    Asynchronous,
    /// Descriptors were sent.
    Sent,
    /// Another call came that only the kernel can answer.
    Other,
    /// The process has another root, or shares its descriptors.
    Elsewhere,
    /// Of files that were never deferred: somebody else has it open.
    InUse,
    /// It was opened to be written only, and pages have to be read.
    WriteOnly,
    /// It goes around the page cache, or has no name.
    Direct,
    /// Another process has the log.
    NoLog,
    /// A rule keeps it out.
    Excluded,
    /// It is another user's, or its file system has no leases.
    NoLease,
    /// The cache cannot have it.
    Refused,
}

impl Count {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::Deferred,
        Self::Kept,
        Self::Reads,
        Self::Writes,
        Self::Syncs,
        Self::Forked,
        Self::Executed,
        Self::Mapped,
        Self::Locked,
        Self::Copied,
        Self::Shared,
        Self::Named,
        Self::Allocated,
        Self::Asynchronous,
        Self::Sent,
        Self::Other,
        Self::Elsewhere,
        Self::InUse,
        Self::WriteOnly,
        Self::Direct,
        Self::NoLog,
        Self::Excluded,
        Self::NoLease,
        Self::Refused,
    ];
    /// Bytes of the file that has them.
    pub const LEN: u64 = 8 * Self::ALL.len() as u64;

    /// The same in the words of a report.
    #[must_use]
    pub const fn said(self) -> &'static str {
        match self {
            Self::Deferred => "files opened to be written, and deferred",
            Self::Kept => "of these until they were closed",
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Syncs => "syncs",
            Self::Forked => "handed back: a child was made",
            Self::Executed => "handed back: a program was executed",
            Self::Mapped => "handed back: mapped",
            Self::Locked => "handed back: locked",
            Self::Copied => "handed back: copied by the kernel (copy_file_range, sendfile, splice)",
            Self::Shared => "handed back: opened once more, or truncated by its path",
            Self::Named => "handed back: renamed, removed, or its times set",
            Self::Allocated => "handed back: fallocate",
            Self::Asynchronous => "handed back: io_submit",
            Self::Sent => "handed back: descriptors were sent",
            Self::Other => "handed back: another call that only the kernel can answer",
            Self::Elsewhere => "handed back: the process has another root, or shares its descriptors",
            Self::InUse => "not deferred: somebody else has it open",
            Self::WriteOnly => "not deferred: opened to be written only, and pages have to be read",
            Self::Direct => "not deferred: O_DIRECT, or a file without a name",
            Self::NoLog => "not deferred: another process has the log",
            Self::Excluded => "not deferred: excluded",
            Self::NoLease => "not deferred: no lease, as it is another user's, or the file system has none",
            Self::Refused => "not deferred: the cache cannot have it",
        }
    }
}

const _: () = {
    let mut n = 0;
    while n < Count::ALL.len() {
        assert!(Count::ALL[n] as usize == n, "a word has its number's place");
        n += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was_said() {
        let rules = |texts: &[&str]| texts.iter().map(|text| Rule::new(text.into())).collect::<Vec<_>>();
        let said = Settings {
            log: "/dev/shm/a log".into(),
            pages: true,
            counts: Some("/proc/1/fd/3".into()),
            paths: Paths { include: rules(&["/data", "*.db"]), exclude: rules(&["/data/tmp x"]) },
        };
        for said in [said.clone(), Settings { pages: false, counts: None, paths: Paths::default(), ..said }] {
            let variables = said.variables();
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name)?.1.clone();
            let told = Settings::of(find).expect("it was said");
            assert_eq!(told.variables(), variables);
            assert_eq!((told.paths.include, told.paths.exclude), (said.paths.include, said.paths.exclude));
        }
        assert!(Settings::of(|_| None).is_none());
    }
}
