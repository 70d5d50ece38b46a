//! How many appends share a commit: as many as it takes for commits to be a small part of the work, and no more.
//!
//! An append that waits for others to share its commit with is answered later, and its client, which would have sent the next
//! one meanwhile, waits too. That is worth it where a commit is an fdatasync, and not where it is two write-backs.

use std::time::Duration;

/// Commits shall take at most one part in so many of the time of the appends that they are for.
const PART: u64 = 4;
/// One sample moves what is known by one part in so many.
const WEIGHT: i64 = 8;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    most: usize,
    /// Nanoseconds; 0 until something is known.
    commit: i64,
    append: i64,
}

impl Sharing {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, commit: 0, append: 0 }
    }

    /// A commit took so long.
    pub(super) fn committed(&mut self, took: Duration) {
        follow(&mut self.commit, took);
    }

    /// To receive an append, to write it and to answer it took so long.
    pub(super) fn appended(&mut self, took: Duration) {
        follow(&mut self.append, took);
    }

    /// So many appends may wait for one commit.
    pub(super) fn limit(&self) -> usize {
        if self.commit == 0 || self.append == 0 {
            return 1;
        }
        let enough = (self.commit.unsigned_abs() * PART).div_ceil(self.append.unsigned_abs());
        usize::try_from(enough).unwrap_or(usize::MAX).clamp(1, self.most.max(1))
    }
}

/// What is known follows what is measured; a thread that lost its core in between does not count for much.
fn follow(known: &mut i64, took: Duration) {
    let took = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX).max(1);
    if *known == 0 {
        *known = took;
    } else {
        *known = (*known + (took.min(known.saturating_mul(4)) - *known) / WEIGHT).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(commit: u64, append: u64, most: usize) -> usize {
        let mut sharing = Sharing::new(most);
        for _ in 0..200 {
            sharing.appended(Duration::from_nanos(append));
            sharing.committed(Duration::from_nanos(commit));
        }
        sharing.limit()
    }

    #[test]
    fn a_cheap_commit_is_not_waited_for_and_a_dear_one_is_shared_by_all() {
        assert_eq!(Sharing::new(32).limit(), 1, "nothing is known yet");
        assert_eq!(after(300, 2_500, 32), 1, "two write-backs beside a call");
        assert_eq!(after(2_500, 2_500, 32), 4);
        assert_eq!(after(200_000, 2_500, 32), 32, "an fdatasync");
        assert_eq!(after(200_000, 2_500, 1), 1, "the paper's");
        assert_eq!(after(200_000, 2_500, 0), 1);
    }

    #[test]
    fn one_long_commit_changes_little_and_many_do() {
        let mut sharing = Sharing::new(32);
        for _ in 0..100 {
            sharing.appended(Duration::from_nanos(2_000));
            sharing.committed(Duration::from_nanos(200));
        }
        // The thread lost its core.
        sharing.committed(Duration::from_millis(4));
        assert_eq!(sharing.limit(), 1);
        (0..200).for_each(|_| sharing.committed(Duration::from_millis(4)));
        assert_eq!(sharing.limit(), 32);
    }
}
