//! Questions and answers of one epoch: asked of one sketch each for IPv4 and IPv6, then put together.

use std::collections::BTreeMap;

use slipstream_sketch::{
    Bounds, Change, Confidence, Exact, Flow, QueryError, Question, Sketch, ValueRange, Want, quantile,
};

use super::{Keying, Span, Task, is_ipv6};

/// A question to the sketches of an epoch.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The question.
    pub task: Task,
    /// The way from packets to keys.
    pub keying: Keying,
    /// Which flows are listed.
    pub want: Want,
    /// Flows asked for by name: key, whether it is IPv6.
    pub flows: Vec<(Vec<u8>, bool)>,
}

/// One key of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The key as people write it.
    pub key: String,
    /// Its size, or the size of its change.
    pub size: Bounds<u64>,
    /// Of a change: whether it went up.
    pub up: Option<bool>,
    /// The true size, where it is known.
    pub truth: Option<u64>,
}

/// A single figure; no estimate where the sketch is saturated, then lower is what it could still have told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The best guess.
    pub estimate: Option<f64>,
    /// No less than this.
    pub lower: f64,
    /// No more than this.
    pub upper: Option<f64>,
    /// The true figure, where that is known.
    pub truth: Option<f64>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Keys in descending order, and with a comparison the truly greatest: size and key.
    Keys {
        /// The keys.
        rows: Vec<Row>,
        /// The truly greatest.
        greatest: Option<Vec<(u64, String)>>,
        /// The most that a flow may weigh which isn't among the rows, where that is known.
        unlisted: Option<u64>,
    },
    /// A single figure.
    Figure(Figure),
    /// By size: estimated flows and, with a comparison, true ones.
    Distribution {
        /// Flows by size.
        sizes: BTreeMap<u64, (f64, u64)>,
        /// Says that true numbers are known.
        compared: bool,
    },
    /// Values by ranges, from which quantiles follow.
    Values(Vec<ValueRange>),
}

/// The quantiles that are told, of values in ascending order.
pub const QUANTILES: [f64; 9] = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

/// The quantiles of some values, each with its share of the way; none of no values.
#[must_use]
pub fn quantiles(values: &[ValueRange]) -> Vec<(f64, Bounds<f64>)> {
    QUANTILES.iter().filter_map(|q| Some((*q, quantile(values, *q)?))).collect()
}

/// Statements about an answer as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The share of cases in which its bounds hold.
    pub confidence: Confidence,
    /// Of changes: the least that is sure to be listed, where that is known.
    pub least_change: Option<u64>,
}

impl Promise {
    /// Combines the statements about the answers for IPv4 and for IPv6.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            confidence: self.confidence.and(other.confidence),
            least_change: self.least_change.max(other.least_change),
        }
    }

    /// The statements about an epoch: where gaps may be missing, no bounds hold for all of them.
    #[must_use]
    pub fn of_epoch(self, span: &Span) -> Self {
        let confidence = if span.gaps_missing { Confidence::None } else { self.confidence };
        Self { confidence, ..self }
    }
}

/// A sketch, and what the exact table beside it holds; the same of the epoch before.
pub(super) struct Side<'a, const N: usize> {
    /// The sketch.
    pub(super) now: &'a dyn Sketch<N>,
    /// The exact table.
    pub(super) truth: Option<&'a Exact<N>>,
    /// The sketch of the epoch before.
    pub(super) before: Option<&'a dyn Sketch<N>>,
    /// The exact table of the epoch before.
    pub(super) truth_before: Option<&'a Exact<N>>,
}

impl<const N: usize> Side<'_, N> {
    /// Asks.
    ///
    /// # Errors
    /// [`QueryError`] where the sketch can't tell.
    pub(super) fn answer(&self, ask: &Ask) -> Result<Answer, QueryError> {
        let source_len = ask.keying.source_len(is_ipv6(N));
        match ask.task {
            Task::FlowSize if !ask.flows.is_empty() => self.named(ask),
            Task::FlowSize | Task::HeavyHitters => {
                let truth = self.truth.map(|t| t.heavy_hitters(ask.want)).transpose()?;
                let size = |key: &[u8; N]| self.truth.map(|t| t.get(key));
                let (flows, unlisted) = self.heaviest(ask.want)?;
                Ok(keys(flows, truth, size, unlisted, ask))
            }
            Task::Superspreaders | Task::DdosVictims => {
                let all = Want { threshold: 1, top: usize::MAX };
                let truth = self.truth.map(|t| t.superspreaders(source_len, all)).transpose()?;
                let by_key: BTreeMap<_, _> =
                    truth.iter().flatten().map(|f| (f.key, f.size.estimate)).collect();
                let size = |key: &[u8; N]| self.truth.map(|_| by_key.get(key).copied().unwrap_or(0));
                let top = truth.map(|t| select(t, ask.want));
                Ok(keys(self.now.superspreaders(source_len, ask.want)?, top, size, None, ask))
            }
            Task::HeavyChanges => self.changes(ask),
            Task::SizeDistribution => {
                let mut sizes: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
                for (size, flows) in self.now.size_distribution()? {
                    sizes.entry(size).or_default().0 += flows;
                }
                for (size, flows) in
                    self.truth.map(Sketch::size_distribution).transpose()?.unwrap_or_default()
                {
                    sizes.entry(size).or_default().1 += flows as u64;
                }
                Ok(Answer::Distribution { sizes, compared: self.truth.is_some() })
            }
            Task::Cardinality => {
                self.figure(self.now.cardinality(), self.truth.map(Sketch::cardinality).transpose()?)
            }
            Task::Entropy => self.figure(self.now.entropy(), self.truth.map(Sketch::entropy).transpose()?),
            Task::Quantiles => Ok(Answer::Values(self.now.value_ranges()?)),
        }
    }

    /// Takes the statements about an answer as a whole.
    ///
    /// # Errors
    /// [`QueryError`] where the epochs don't fit together.
    pub(super) fn promise(&self, task: Task) -> Result<Promise, QueryError> {
        let least_change = match self.before {
            Some(before) if task == Task::HeavyChanges => self.now.least_change(before)?,
            _ => None,
        };
        // Sums of 64 bits, with a sign or without, that are at their end give no upper bound.
        let ended = |s: &dyn Sketch<N>| s.weight() > i64::MAX as u64 && s.is_saturated();
        let weighs = matches!(
            task.question(),
            Question::Sizes | Question::Changes | Question::Distribution | Question::Entropy
        );
        if weighs && (ended(self.now) || self.before.is_some_and(ended)) {
            return Ok(Promise { confidence: Confidence::None, least_change: None });
        }
        Ok(Promise { confidence: self.now.confidence(task.question()), least_change })
    }

    /// The heaviest flows, and the most that any other may weigh: those that the sketch knows and that
    /// weren't wanted, and those that it doesn't know.
    fn heaviest(&self, want: Want) -> Result<(Vec<Flow<N>>, Option<u64>), QueryError> {
        let Some(unknown) = self.now.unlisted() else {
            return Ok((self.now.heavy_hitters(want)?, None));
        };
        let mut flows = self.now.heavy_hitters(Want { threshold: 1, top: usize::MAX })?;
        let enough = |f: &&Flow<N>| f.size.estimate >= want.threshold;
        let wanted = flows.iter().take(want.top).take_while(enough).count();
        let others = flows.split_off(wanted);
        let most = others.iter().map(|f| f.size.upper).max().unwrap_or(0);
        Ok((flows, Some(most.max(unknown))))
    }

    fn named(&self, ask: &Ask) -> Result<Answer, QueryError> {
        let mut rows = Vec::new();
        for (key, ipv6) in ask.flows.iter().filter(|f| f.1 == is_ipv6(N)) {
            let Some(bytes) = key.first_chunk::<N>() else { continue };
            let truth = self.truth.map(|t| t.get(bytes));
            let size = self.now.flow_size(bytes)?;
            rows.push(Row { key: ask.keying.show(key, *ipv6), size, up: None, truth });
        }
        Ok(Answer::Keys { rows, greatest: None, unlisted: None })
    }

    fn changes(&self, ask: &Ask) -> Result<Answer, QueryError> {
        let Some(before) = self.before else {
            // A sketch that can't tell changes says so in the first epoch already.
            self.now.heavy_changes(self.now, ask.want)?;
            return Ok(Answer::Keys { rows: Vec::new(), greatest: None, unlisted: None });
        };
        let changes = self.now.heavy_changes(before, ask.want)?;
        let compared = self.truth.zip(self.truth_before);
        let truth = compared.map(|(now, then)| now.heavy_changes(then, ask.want)).transpose()?;
        let greatest = truth.map(|t| {
            let one = |c: &Change<N>| (c.change.estimate.unsigned_abs(), ask.keying.show(&c.key, is_ipv6(N)));
            t.iter().map(one).collect()
        });
        let row = |c: &Change<N>| {
            let Bounds { estimate, lower, upper } = c.change;
            let up = estimate >= 0;
            let (low, high) =
                if up { (lower, upper) } else { (upper.saturating_neg(), lower.saturating_neg()) };
            Row {
                key: ask.keying.show(&c.key, is_ipv6(N)),
                size: Bounds {
                    estimate: estimate.unsigned_abs(),
                    lower: low.max(0).unsigned_abs(),
                    // Bounds of both signs: it may have gone the other way, by as much as that.
                    upper: high.max(low.saturating_neg()).max(0).unsigned_abs(),
                },
                up: Some(up),
                truth: compared.map(|(now, then)| now.get(&c.key).abs_diff(then.get(&c.key))),
            }
        };
        let mut rows: Vec<Row> = changes.iter().map(row).collect();
        in_order(&mut rows);
        Ok(Answer::Keys { rows, greatest, unlisted: None })
    }

    fn figure(
        &self,
        estimate: Result<Bounds<f64>, QueryError>,
        truth: Option<Bounds<f64>>,
    ) -> Result<Answer, QueryError> {
        let truth = truth.map(|t| t.estimate);
        Ok(Answer::Figure(match estimate {
            Ok(b) => Figure { estimate: Some(b.estimate), lower: b.lower, upper: Some(b.upper), truth },
            Err(QueryError::Saturated { at_least, .. }) => {
                Figure { estimate: None, lower: at_least, upper: None, truth }
            }
            Err(other) => return Err(other),
        }))
    }
}

fn select<const N: usize>(mut flows: Vec<Flow<N>>, want: Want) -> Vec<Flow<N>> {
    flows.retain(|f| f.size.estimate >= want.threshold);
    flows.truncate(want.top);
    flows
}

/// Rows of flows, and the truly greatest.
fn keys<const N: usize>(
    flows: Vec<Flow<N>>,
    truth: Option<Vec<Flow<N>>>,
    size: impl Fn(&[u8; N]) -> Option<u64>,
    unlisted: Option<u64>,
    ask: &Ask,
) -> Answer {
    let greatest =
        truth.map(|t| t.iter().map(|f| (f.size.estimate, ask.keying.show(&f.key, is_ipv6(N)))).collect());
    let row = |f: &Flow<N>| Row {
        key: ask.keying.show(&f.key, is_ipv6(N)),
        size: f.size,
        up: None,
        truth: size(&f.key),
    };
    let mut rows: Vec<Row> = flows.iter().map(row).collect();
    if ask.flows.is_empty() {
        in_order(&mut rows);
    }
    Answer::Keys { rows, greatest, unlisted }
}

/// The greatest first; equal ones by their keys as they are printed, whether there are one or two IP
/// versions.
fn in_order(rows: &mut [Row]) {
    rows.sort_by(|x, y| y.size.estimate.cmp(&x.size.estimate).then(x.key.cmp(&y.key)));
}

impl Answer {
    /// Of how many of the truly greatest keys, how many are listed; where there is a comparison. Of keys of
    /// equal size, of which only some have a place among the greatest, any will do.
    #[must_use]
    pub fn recall(&self) -> Option<(usize, usize)> {
        let Self::Keys { rows, greatest: Some(greatest), .. } = self else { return None };
        let least = greatest.iter().map(|(size, _)| *size).min()?;
        let found = rows.iter().filter(|row| row.truth.is_some_and(|truth| truth >= least)).count();
        Some((found.min(greatest.len()), greatest.len()))
    }

    /// The answers for IPv4 and for IPv6 as one; `weights` are what each side saw.
    #[must_use]
    pub fn join(self, other: Self, weights: (u64, u64), ask: &Ask) -> Self {
        match (self, other) {
            (
                Self::Keys { rows: mut a, greatest: s, unlisted: u },
                Self::Keys { rows: b, greatest: t, unlisted: v },
            ) => {
                a.extend(b);
                let mut unlisted = u.zip(v).map(|(u, v)| u.max(v));
                if ask.flows.is_empty() {
                    in_order(&mut a);
                    let others = a.split_off(a.len().min(ask.want.top));
                    let most = others.iter().map(|row| row.size.upper).max().unwrap_or(0);
                    unlisted = unlisted.map(|u| u.max(most));
                }
                let greatest = match (s, t) {
                    (None, None) => None,
                    (s, t) => {
                        let mut all = s.unwrap_or_default();
                        all.extend(t.unwrap_or_default());
                        all.sort_unstable_by(|x, y| y.cmp(x));
                        all.truncate(ask.want.top);
                        Some(all)
                    }
                };
                Self::Keys { rows: a, greatest, unlisted }
            }
            (Self::Figure(a), Self::Figure(b)) => Self::Figure(match ask.task {
                Task::Entropy => join_entropies(a, b, weights),
                _ => add(a, b),
            }),
            (Self::Distribution { mut sizes, compared }, Self::Distribution { sizes: more, .. }) => {
                for (size, (flows, truth)) in more {
                    let at = sizes.entry(size).or_default();
                    (at.0, at.1) = (at.0 + flows, at.1 + truth);
                }
                Self::Distribution { sizes, compared }
            }
            (Self::Values(mut values), Self::Values(more)) => {
                values.extend(more);
                Self::Values(values)
            }
            // Both sides were asked the same question, so there is no other case.
            (answer, _) => answer,
        }
    }
}

fn both(a: Option<f64>, b: Option<f64>, f: impl Fn(f64, f64) -> f64) -> Option<f64> {
    a.zip(b).map(|(a, b)| f(a, b))
}

/// Flows of IPv4 and of IPv6 are different ones: their numbers add up.
fn add(a: Figure, b: Figure) -> Figure {
    let plus = |x: f64, y: f64| x + y;
    Figure {
        estimate: both(a.estimate, b.estimate, plus),
        lower: a.lower + b.lower,
        upper: both(a.upper, b.upper, plus),
        truth: both(a.truth, b.truth, plus),
    }
}

/// The entropy of two disjoint parts: that of the parts, weighed, and that of the choice between them.
fn join_entropies(a: Figure, b: Figure, weights: (u64, u64)) -> Figure {
    let (wa, wb) = (weights.0 as f64, weights.1 as f64);
    let all = wa + wb;
    let join = |x: f64, y: f64| {
        let part = |w: f64, h: f64| if w > 0.0 { w / all * (h + (all / w).log2()) } else { 0.0 };
        part(wa, x) + part(wb, y)
    };
    Figure {
        estimate: both(a.estimate, b.estimate, join),
        lower: join(a.lower, b.lower),
        upper: both(a.upper, b.upper, join),
        truth: both(a.truth, b.truth, join),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropies_of_parts_make_the_entropy_of_all() {
        let of = |parts: &[f64]| {
            let n: f64 = parts.iter().sum();
            -parts.iter().map(|p| p / n * (p / n).log2()).sum::<f64>()
        };
        let figure = |h: f64| Figure { estimate: Some(h), lower: h, upper: Some(h), truth: None };
        let (a, b) = ([5.0, 1.0, 2.0], [7.0, 9.0]);
        let joined = join_entropies(figure(of(&a)), figure(of(&b)), (8, 16));
        let want = of(&[5.0, 1.0, 2.0, 7.0, 9.0]);
        assert!((joined.estimate.unwrap() - want).abs() < 1e-12);
        let none = join_entropies(figure(of(&a)), figure(0.0), (8, 0));
        assert!((none.lower - of(&a)).abs() < 1e-12, "nothing adds nothing");
        assert_eq!(join_entropies(figure(0.0), figure(0.0), (0, 0)).estimate, Some(0.0));
    }

    /// Of many flows of one size any may be listed, whatever the order in which IPv4 and IPv6 come.
    #[test]
    fn ties_are_not_missed() {
        let row = |key: &str, size| Row {
            key: key.to_owned(),
            size: Bounds::exact(size),
            up: None,
            truth: Some(size),
        };
        let greatest =
            vec![(9, "10.0.0.9".to_owned()), (5, "2001:db8::7".to_owned()), (5, "2001:db8::6".to_owned())];
        let rows = vec![row("10.0.0.9", 9), row("10.0.0.1", 5), row("10.0.0.2", 5)];
        let answer = Answer::Keys { rows, greatest: Some(greatest.clone()), unlisted: None };
        assert_eq!(answer.recall(), Some((3, 3)));
        let rows = vec![row("10.0.0.9", 9), row("10.0.0.1", 4), row("10.0.0.2", 5)];
        assert_eq!(Answer::Keys { rows, greatest: Some(greatest), unlisted: None }.recall(), Some((2, 3)));
        assert_eq!(
            Answer::Keys { rows: Vec::new(), greatest: Some(Vec::new()), unlisted: None }.recall(),
            None
        );
    }
}
