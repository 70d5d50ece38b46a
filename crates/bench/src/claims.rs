//! What a paper claims, and whether it holds on this machine: the words beside the figures.

use std::fmt;

use serde::Serialize;

use crate::report::figure;

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
    /// It could not be looked at.
    Open,
}

impl Verdict {
    /// Of something that was measured, or not.
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

/// A ratio as words.
#[must_use]
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "not measured".to_owned(), |ratio| format!("{} x", figure(ratio)))
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
