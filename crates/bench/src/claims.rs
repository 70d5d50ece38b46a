//! What a paper claims, and whether it holds on this machine: the words beside the figures.

use std::fmt;

use serde::Serialize;

use crate::report::Sense;
use crate::stats::{Estimate, Judgement};

/// Whether a claim holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It does, in what was measured here.
    HoldsHere,
    /// It does not, in what was measured here.
    FailsHere,
    /// Its hardware is not here; a model that was built on the paper's own figures shows it.
    ModelOnly,
    /// It was measured, and the interval of what was found has both sides of the limit.
    Undecided,
    /// It could not be looked at.
    Open,
}

impl Verdict {
    /// Of an estimate: the claim holds where its whole interval is on the good side of the limit, in every state of the machine.
    #[must_use]
    pub fn judged<E: Into<Estimate>>(found: Option<E>, sense: Sense, limit: f64) -> Self {
        match found.map_or(Judgement::NotMeasured, |found| found.into().judge(sense, limit)) {
            Judgement::Holds => Self::HoldsHere,
            Judgement::Missed => Self::FailsHere,
            Judgement::Undecided => Self::Undecided,
            Judgement::NotMeasured => Self::Open,
        }
    }

    /// Of two things that a claim says: it holds where both do.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let order = [Self::FailsHere, Self::Open, Self::Undecided, Self::ModelOnly, Self::HoldsHere];
        let is = |verdict: &Self| self == *verdict || other == *verdict;
        order.into_iter().find(is).unwrap_or(Self::Open)
    }

    /// Of something that was seen, or not.
    #[must_use]
    pub fn of(holds: Option<bool>) -> Self {
        match holds {
            Some(true) => Self::HoldsHere,
            Some(false) => Self::FailsHere,
            None => Self::Open,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HoldsHere => "holds here",
            Self::FailsHere => "does not hold here",
            Self::ModelOnly => "in the model only",
            Self::Undecided => "undecided here",
            Self::Open => "not measured",
        })
    }
}

/// A claim of the paper, and what became of it here.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// What the paper says, and where.
    pub paper: String,
    /// Whether that holds.
    pub verdict: Verdict,
    /// What was found, and why it is so.
    pub found: String,
}

impl Claim {
    /// A claim with the verdict on it and what was found.
    #[must_use]
    pub fn new(paper: impl Into<String>, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { paper: paper.into(), verdict, found: found.into() }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}: {}", self.paper, self.verdict, self.found)
    }
}

/// A ratio as words: that of the state with the most blocks, with its interval.
#[must_use]
pub fn times<E: Into<Estimate>>(ratio: Option<E>) -> String {
    ratio.map_or_else(|| "not measured".to_owned(), |ratio| format!("{} x", ratio.into()))
}

/// Claims, one below the other.
#[must_use]
pub fn text(claims: &[Claim]) -> String {
    let mut text = "claims of the paper\n".to_owned();
    for claim in claims {
        text += &format!("  {claim}\n");
    }
    text
}
