//! How much the tests try: the one room for it, so that every simulation and every loop of kills has the same two efforts and is
//! replayed in the same way.
//!
//! `REMANENCE_EFFORT=push`, which is usual, tries what somebody waits for: a fixed number of seeds, so that one source has one verdict
//! on every machine. `REMANENCE_EFFORT=night` gives each simulation ten minutes, and twenty times as many seeds at least.
//! `REMANENCE_SEEDS=FROM..TO` runs those seeds and no others: it is what a failure asks to be replayed by. `REMANENCE_ROUNDS=N` has what
//! kills or repeats do so as often. Beside that here is what live tests of many crates need: an [address] of their own, what cargo has [built] of
//! another program, and processes of their own, for which they run [again].

#![forbid(unsafe_code)]

mod corpus;
mod process;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use corpus::{corpus, replay_corpora};
pub use process::{Process, again};

/// What says how much is tried.
const EFFORT: &str = "REMANENCE_EFFORT";
/// What says which seeds are run.
const SEEDS: &str = "REMANENCE_SEEDS";
/// What says how often tests kill or repeat.
const ROUNDS: &str = "REMANENCE_ROUNDS";
/// How long a simulation goes on at night.
const NIGHT: Duration = Duration::from_secs(600);
/// How many times the seeds of a push a night has at least.
const TIMES: u64 = 20;

/// Who waits for the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Somebody who has changed something and wants to go on.
    Push,
    /// Nobody does before the next morning.
    Night,
}

impl Effort {
    /// What the environment asks for.
    ///
    /// # Panics
    /// It asks for something else.
    #[must_use]
    pub fn asked() -> Self {
        let asked = std::env::var(EFFORT).ok();
        Self::of(asked.as_deref()).unwrap_or_else(|why| panic!("{why}"))
    }

    fn of(asked: Option<&str>) -> Result<Self, String> {
        match asked {
            None | Some("push") => Ok(Self::Push),
            Some("night") => Ok(Self::Night),
            Some(other) => Err(format!("{EFFORT} is `push` or `night`, and not `{other}`")),
        }
    }
}

/// The rounds of a test that kills or repeats: so many for a push, so many for a night; or as many as the environment asks for.
///
/// # Panics
/// The environment asks for another effort than these two, or for rounds that are no number.
#[must_use]
pub fn rounds(push: u64, night: u64) -> u64 {
    let asked = std::env::var(ROUNDS).ok();
    match (asked, Effort::asked()) {
        (Some(asked), _) => {
            asked.parse().unwrap_or_else(|_| panic!("{ROUNDS} is a number, and not `{asked}`"))
        }
        (None, Effort::Push) => push,
        (None, Effort::Night) => night,
    }
}

/// The seeds of a simulation that has so many for a push, from 0 on; or those that the environment asks for.
///
/// # Panics
/// The environment asks for another effort than the two, or for seeds that are no range.
#[must_use]
pub fn seeds(push: u64) -> Seeds {
    let asked = std::env::var(SEEDS).ok();
    let asked = asked.map(|text| range(&text).unwrap_or_else(|why| panic!("{why}")));
    Seeds::of(asked, Effort::asked(), push)
}

/// Whether tests run their own seeds, and not some that the environment asks for: those are no measure of what a test meets.
///
/// # Panics
/// The environment asks for seeds that are no range.
#[must_use]
pub fn are_all() -> bool {
    seeds(0).are_all()
}

/// An address of 127/8 that no other test of this or another process uses at the moment.
pub fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id() % 60_000 + 256;
    let n = NEXT.fetch_add(1, Ordering::Relaxed) % 254 + 1;
    Ipv4Addr::new(127, (process >> 8) as u8, process as u8, n as u8).into()
}

/// Has cargo build what a test runs besides itself, as these arguments name it, and gives the directory where that is. `tmp` is the test's
/// `CARGO_TARGET_TMPDIR`.
///
/// # Panics
/// It does not build.
#[must_use]
pub fn built(tmp: &str, arguments: &[&str]) -> PathBuf {
    let target = Path::new(tmp).parent().expect("below cargo's directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked"]).args(arguments).arg("--target-dir").arg(target);
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "{arguments:?} does not build");
    target.join("debug")
}

/// What makes a test run this seed alone, for its message: `REMANENCE_SEEDS=7..8`.
#[must_use]
pub fn replay(seed: u64) -> String {
    format!("{SEEDS}={seed}..{}", seed + 1)
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    let fair = parts.filter(|range| !range.is_empty());
    fair.ok_or_else(|| format!("{SEEDS} is a range of numbers like `7..8`, and not `{text}`"))
}

/// Seeds to be run, in their order.
#[derive(Clone, Debug)]
pub struct Seeds {
    next: u64,
    /// All seeds below this one are run.
    least: u64,
    /// Further ones are run until then.
    until: Option<Instant>,
    /// The environment has asked for these and no others.
    asked: bool,
}

impl Seeds {
    fn of(asked: Option<Range<u64>>, effort: Effort, push: u64) -> Self {
        match (asked, effort) {
            (Some(asked), _) => Self { next: asked.start, least: asked.end, until: None, asked: true },
            (None, Effort::Push) => Self { next: 0, least: push, until: None, asked: false },
            (None, Effort::Night) => {
                let until = Some(Instant::now() + NIGHT);
                Self { next: 0, least: TIMES * push, until, asked: false }
            }
        }
    }

    /// Whether these are the test's own seeds and not some that were asked for: then they are enough for what a test demands of
    /// all of them together.
    #[must_use]
    pub const fn are_all(&self) -> bool {
        !self.asked
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let goes_on = self.next < self.least || self.until.is_some_and(|until| Instant::now() < until);
        goes_on.then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_has_as_many_seeds_everywhere_and_a_night_more() {
        let push = Seeds::of(None, Effort::Push, 3);
        assert!(push.are_all());
        assert_eq!(push.collect::<Vec<_>>(), [0, 1, 2]);
        let night = Seeds { until: Some(Instant::now()), ..Seeds::of(None, Effort::Night, 3) };
        assert_eq!(night.count(), 60, "as many at least, when its time is over");
        assert_eq!(Seeds::of(None, Effort::Night, 3).take(100).count(), 100, "and more, while it is not");
    }

    #[test]
    fn what_is_asked_for_is_run_and_nothing_else() {
        for effort in [Effort::Push, Effort::Night] {
            let asked = Seeds::of(Some(7..9), effort, 100);
            assert!(!asked.are_all());
            assert_eq!(asked.collect::<Vec<_>>(), [7, 8]);
        }
        assert_eq!(range("7..8"), Ok(7..8));
        assert!(replay(7).ends_with("=7..8"));
        for bad in ["7", "7..", "..8", "8..8", "9..8", "a..b", "7..=8"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_effort_that_is_none_is_refused() {
        assert_eq!(Effort::of(None), Ok(Effort::Push));
        assert_eq!(Effort::of(Some("push")), Ok(Effort::Push));
        assert_eq!(Effort::of(Some("night")), Ok(Effort::Night));
        assert!(Effort::of(Some("nigth")).is_err_and(|why| why.contains("nigth")));
    }
}
