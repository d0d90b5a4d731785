//! Claims of the papers, each with a measurement beside it and a verdict by a printed criterion.

use serde::Serialize;
use serde_json::Value;

/// The outcome of holding a measurement against a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It meets the criterion that stands beside the claim.
    Reproduced,
    /// It misses the criterion and points the same way as the paper.
    SameSign,
    /// It points the other way.
    Contradicted,
    /// No measurement here can be held against the paper's.
    NotComparable,
}

impl Verdict {
    /// The words for it in a table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::SameSign => "same sign",
            Self::Contradicted => "contradicted",
            Self::NotComparable => "not comparable",
        }
    }
}

/// The figure of another program, measured here beside ours.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Other {
    /// The program.
    pub(crate) name: &'static str,
    /// Its figure.
    pub(crate) measured: Value,
}

/// Something that a paper says (or that we aim at), beside what was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    /// The claim, in a sentence.
    pub(crate) claim: String,
    /// The paper's figure; null where the paper has none.
    pub(crate) paper: Value,
    /// The figure of another program, where ours is held against one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) other: Option<Other>,
    /// Our figure; null where nothing was measured.
    pub(crate) measured: Value,
    /// The condition under which the claim counts as reproduced.
    pub(crate) criterion: String,
    /// The verdict by this criterion.
    pub(crate) verdict: Verdict,
    /// True if the claim was reproduced; null where nothing comparable was measured.
    pub(crate) holds: Option<bool>,
    /// True if the two can be compared on this machine.
    pub(crate) comparable: bool,
    /// The reason why they can't be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl Claim {
    /// Returns true for an aim of our own, about which no paper says anything.
    pub(crate) fn is_own(&self) -> bool {
        self.paper.is_null()
    }

    /// The verdict in words: nobody contradicts an aim of our own, which is met or missed.
    pub(crate) fn words(&self) -> &'static str {
        match self.verdict {
            Verdict::Reproduced if self.is_own() => "aim met",
            Verdict::SameSign | Verdict::Contradicted if self.is_own() => "aim missed",
            verdict => verdict.name(),
        }
    }

    /// The same with the reason, where there is one.
    pub(crate) fn words_and_reason(&self) -> String {
        match &self.why {
            Some(why) => format!("{}: {why}", self.words()),
            None => self.words().to_owned(),
        }
    }

    /// The same beside the figure of another program.
    pub(crate) fn beside(self, name: &'static str, measured: impl Into<Value>) -> Self {
        Self { other: Some(Other { name, measured: measured.into() }), ..self }
    }

    /// A claim and the verdict on it.
    pub(crate) fn judged(
        claim: impl Into<String>,
        paper: impl Into<Value>,
        measured: impl Into<Value>,
        criterion: impl Into<String>,
        verdict: Verdict,
    ) -> Self {
        let comparable = verdict != Verdict::NotComparable;
        Self {
            claim: claim.into(),
            paper: paper.into(),
            other: None,
            measured: measured.into(),
            criterion: criterion.into(),
            verdict,
            holds: comparable.then_some(verdict == Verdict::Reproduced),
            comparable,
            why: None,
        }
    }

    /// A claim that is right or wrong, with no verdict between.
    pub(crate) fn checked(
        claim: impl Into<String>,
        paper: impl Into<Value>,
        measured: impl Into<Value>,
        criterion: impl Into<String>,
        holds: bool,
    ) -> Self {
        let verdict = if holds { Verdict::Reproduced } else { Verdict::Contradicted };
        Self::judged(claim, paper, measured, criterion, verdict)
    }

    /// A number beside the paper's. It is reproduced within `tolerance` (a share of the paper's number), and
    /// has the same sign where it lies on the paper's side of `neutral`, at which there is no effect: 1 of a
    /// ratio, 0 of a difference.
    pub(crate) fn number(
        claim: impl Into<String>,
        paper: f64,
        measured: f64,
        tolerance: f64,
        neutral: f64,
    ) -> Self {
        let verdict = if (measured - paper).abs() <= tolerance * paper.abs() {
            Verdict::Reproduced
        } else if (measured - neutral) * (paper - neutral) > 0.0 {
            Verdict::SameSign
        } else {
            Verdict::Contradicted
        };
        let side = if paper > neutral { "above" } else { "below" };
        let criterion =
            format!("within {:.0} % of the paper's; same sign: {side} {neutral}", tolerance * 100.0);
        Self::judged(claim, paper, measured, criterion, verdict)
    }

    /// A number that is to be as large as the paper's, or larger. It has the same sign above `neutral`.
    pub(crate) fn at_least(
        claim: impl Into<String>,
        paper: impl Into<Value>,
        measured: f64,
        least: f64,
        neutral: f64,
    ) -> Self {
        let verdict = if measured >= least {
            Verdict::Reproduced
        } else if measured > neutral {
            Verdict::SameSign
        } else {
            Verdict::Contradicted
        };
        // A figure that was measured may be the aim of another claim.
        let rounded = (least * 1000.0).round() / 1000.0;
        let criterion = format!("at least {rounded}; same sign: above {neutral}");
        Self::judged(claim, paper, measured, criterion, verdict)
    }

    /// A claim that can't be held against what was measured, and why.
    pub(crate) fn not_comparable(
        claim: impl Into<String>,
        paper: impl Into<Value>,
        measured: impl Into<Value>,
        why: impl Into<String>,
    ) -> Self {
        let none = Self::judged(claim, paper, measured, "none", Verdict::NotComparable);
        Self { why: Some(why.into()), ..none }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aims_are_told_in_few_digits() {
        let criterion = |least| Claim::at_least("", "", 2.0, least, 1.0).criterion;
        assert_eq!(criterion(1.269_161_800_882), "at least 1.269; same sign: above 1");
        assert_eq!(criterion(1.84), "at least 1.84; same sign: above 1");
    }

    #[test]
    fn numbers_are_judged_by_tolerance_and_side() {
        let of = |paper, measured, tolerance, neutral| {
            Claim::number("", paper, measured, tolerance, neutral).verdict
        };
        assert_eq!(of(2.0, 2.19, 0.1, 1.0), Verdict::Reproduced);
        assert_eq!(of(2.0, 2.3, 0.1, 1.0), Verdict::SameSign);
        assert_eq!(of(2.0, 0.9, 0.1, 1.0), Verdict::Contradicted);
        assert_eq!(of(5.7, 2.0, 0.2, 1.0), Verdict::SameSign, "a weaker effect is not the paper's");
        assert_eq!(of(20.0, 0.1, 0.25, 0.0), Verdict::SameSign);
        assert_eq!(of(20.0, -0.1, 0.25, 0.0), Verdict::Contradicted);
        assert_eq!(of(0.9, 0.97, 0.05, 1.0), Verdict::SameSign, "below 1, as the paper's");
        assert_eq!(of(2.0, f64::NAN, 0.1, 1.0), Verdict::Contradicted, "what is no number bears nothing out");
    }

    #[test]
    fn what_holds_follows_from_the_verdict() {
        let holds = |claim: Claim| (claim.holds, claim.comparable);
        assert_eq!(holds(Claim::at_least("", "1.84 to 2.0", 1.9, 1.84, 1.0)), (Some(true), true));
        assert_eq!(holds(Claim::at_least("", "1.84 to 2.0", 1.5, 1.84, 1.0)), (Some(false), true));
        assert_eq!(holds(Claim::checked("", true, false, "is so", false)), (Some(false), true));
        let none = Claim::not_comparable("", 1, Value::Null, "needs a card");
        assert_eq!((none.why.clone().as_deref(), holds(none)), (Some("needs a card"), (None, false)));
    }
}
