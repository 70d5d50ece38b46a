//! The pull-score failure detector: each replica reads the others' beats, and the one with the lowest number that is trusted leads.
//!
//! A beat that has changed since it was read last counts for a peer, one that has not against it. A slow network only delays samples, and never
//! produces one that has not changed, so the limits can be close. A software RNIC ends with its process: nobody reads the word of a
//! peer that is dead, so a READ that finds no answer in time counts like a beat that has not changed.

/// The highest score.
pub const MAX: u8 = 15;
/// A peer whose score falls below is not trusted.
pub const FAILS: u8 = 2;
/// One whose score climbs above is trusted again. What lies between keeps a peer from being both by turns.
pub const RECOVERS: u8 = 6;

#[derive(Clone, Copy, Debug)]
struct Score {
    score: u8,
    is_trusted: bool,
    beat: Option<u64>,
}

/// What a replica thinks of its peers.
#[derive(Clone, Debug)]
pub struct Scores(Vec<Score>);

impl Scores {
    /// So many replicas, all of them trusted: who is dead is found out soon enough.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self(vec![Score { score: MAX, is_trusted: true, beat: None }; replicas])
    }

    /// A peer's beat was read.
    pub fn read(&mut self, peer: usize, beat: u64) {
        match self.0[peer].beat.replace(beat) {
            Some(before) if before == beat => self.silence(peer),
            _ => {
                let score = &mut self.0[peer];
                score.score = (score.score + 1).min(MAX);
                score.is_trusted |= score.score > RECOVERS;
            }
        }
    }

    /// A peer's beat has not changed, or has found no answer in time.
    pub fn silence(&mut self, peer: usize) {
        let score = &mut self.0[peer];
        score.score = score.score.saturating_sub(1);
        score.is_trusted &= score.score >= FAILS;
    }

    /// Whether a peer is taken for alive.
    #[must_use]
    pub fn is_trusted(&self, peer: usize) -> bool {
        self.0[peer].is_trusted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_suspected_after_fourteen_samples_and_trusted_again_after_six() {
        let mut scores = Scores::new(2);
        scores.read(1, 7);
        for n in 1..=14 {
            assert!(scores.is_trusted(1), "{n}");
            if n % 2 == 0 { scores.read(1, 7) } else { scores.silence(1) }
        }
        assert!(!scores.is_trusted(1) && scores.is_trusted(0));
        for beat in 8..14 {
            assert!(!scores.is_trusted(1), "{beat}");
            scores.read(1, beat);
        }
        assert!(scores.is_trusted(1));
    }

    #[test]
    fn a_score_has_bounds() {
        let mut scores = Scores::new(1);
        (0..100).for_each(|_| scores.silence(0));
        (1..=7).for_each(|beat| scores.read(0, beat));
        assert!(scores.is_trusted(0), "a long silence is not paid for");
        (10..100).for_each(|beat| scores.read(0, beat));
        (0..14).for_each(|_| scores.silence(0));
        assert!(!scores.is_trusted(0), "nor is a long life a credit");
    }
}
