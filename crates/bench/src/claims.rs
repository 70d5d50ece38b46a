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
    /// What it says of the figure's [`Shape`] does: the paper's own factor was not reached, or not surely.
    HoldsInShape,
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
        let order = [
            Self::FailsHere,
            Self::Open,
            Self::Undecided,
            Self::ModelOnly,
            Self::HoldsInShape,
            Self::HoldsHere,
        ];
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
            Self::HoldsInShape => "holds in shape",
            Self::FailsHere => "does not hold here",
            Self::ModelOnly => "in the model only",
            Self::Undecided => "undecided here",
            Self::Open => "not measured",
        })
    }
}

/// What a claim says of a figure beside its factor: which scheme is ahead, what grows, where two cross. It holds where all of its conditions
/// do, each judged by its whole interval.
#[derive(Clone, Debug)]
pub struct Shape {
    words: String,
    verdict: Option<Verdict>,
}

impl Shape {
    /// One in words, which has no condition yet, and so does not hold.
    #[must_use]
    pub fn new(words: impl Into<String>) -> Self {
        Self { words: words.into(), verdict: None }
    }

    /// With a condition.
    #[must_use]
    pub fn and<E: Into<Estimate>>(mut self, found: Option<E>, sense: Sense, limit: f64) -> Self {
        let verdict = Verdict::judged(found, sense, limit);
        self.verdict = Some(self.verdict.map_or(verdict, |others| others.and(verdict)));
        self
    }
}

/// A claim of the paper, and what became of it here.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// What the paper says, and where.
    pub paper: String,
    /// Whether that holds.
    pub verdict: Verdict,
    /// What it says of the figure's shape, where it gives a factor too, and whether that holds.
    pub shape: Option<(String, Verdict)>,
    /// What was found, and why it is so.
    pub found: String,
}

impl Claim {
    /// A claim with the verdict on it and what was found.
    #[must_use]
    pub fn new(paper: impl Into<String>, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { paper: paper.into(), verdict, shape: None, found: found.into() }
    }

    /// Where the factor was missed, or was not decided, it holds in shape if the shape does.
    #[must_use]
    pub fn or_in_shape(mut self, shape: Shape) -> Self {
        let found = shape.verdict.unwrap_or(Verdict::Open);
        if found == Verdict::HoldsHere && matches!(self.verdict, Verdict::FailsHere | Verdict::Undecided) {
            self.verdict = Verdict::HoldsInShape;
        }
        self.shape = Some((shape.words, found));
        self
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}: {}", self.paper, self.verdict, self.found)?;
        self.shape.as_ref().map_or(Ok(()), |(words, verdict)| write!(f, "\n    shape: {words}: {verdict}"))
    }
}

/// A ratio as words, with its interval, in each state that is judged.
#[must_use]
pub fn times<E: Into<Estimate>>(ratio: Option<E>) -> String {
    ratio.map_or_else(|| "not measured".to_owned(), |ratio| ratio.into().words(" x"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(factor: f64) -> Claim {
        Claim::new("it is twice as fast", Verdict::judged(Some(factor), Sense::AtLeast, 2.0), "")
    }

    #[test]
    fn a_missed_factor_holds_in_shape_where_every_condition_of_the_shape_does() {
        let shape = |ahead: f64, grows: Option<f64>| {
            Shape::new("it is ahead, and grows").and(Some(ahead), Sense::AtLeast, 1.0).and(
                grows,
                Sense::AtLeast,
                1.0,
            )
        };
        let judged = |factor, shape| claim(factor).or_in_shape(shape).verdict;
        assert_eq!(judged(1.5, shape(1.5, Some(1.1))), Verdict::HoldsInShape);
        assert_eq!(judged(2.5, shape(2.5, Some(1.1))), Verdict::HoldsHere);
        assert_eq!(judged(1.5, shape(1.5, Some(0.9))), Verdict::FailsHere);
        assert_eq!(judged(1.5, shape(1.5, None)), Verdict::FailsHere);
        assert_eq!(judged(0.5, shape(0.5, Some(1.1))), Verdict::FailsHere);
        assert_eq!(
            judged(1.5, Shape::new("nothing")),
            Verdict::FailsHere,
            "what has no condition cannot fail"
        );
        let missing = Claim::new("", Verdict::judged(None::<f64>, Sense::AtLeast, 2.0), "");
        assert_eq!(missing.or_in_shape(shape(1.5, Some(1.1))).verdict, Verdict::Open);
    }

    #[test]
    fn the_words_of_a_shape_are_beside_the_verdict() {
        let said = claim(1.5).or_in_shape(Shape::new("it is ahead").and(Some(1.5), Sense::AtLeast, 1.0));
        let text = said.to_string();
        assert!(text.contains("holds in shape") && text.contains("shape: it is ahead: holds here"), "{text}");
        let json = serde_json::to_value(&said).expect("plain data");
        assert_eq!((&json["verdict"], &json["shape"][1]), (&"holds-in-shape".into(), &"holds-here".into()));
    }
}
