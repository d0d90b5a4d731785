//! The design of the aggregator: its size under more and less skewed traffic (Fig. 7), its eviction policy
//! and the instructions that compare keys (Fig. 8).

use std::collections::BTreeMap;

use serde_json::json;
use slipstream::clock::thread_cpu_ns;
use slipstream_sketch::{Aggregator, AggregatorConfig, Eviction, Instructions, Kind, Update};

use super::super::{Claim, Curve, Scale};
use super::beyond::aside;
use super::{BURST, InFront, Study, compare, flow_numbers, front, grr, time_in_turn, updates};

/// Fig. 7: skew, and the size of the aggregator.
pub(super) fn skew_and_size(study: &mut Study<'_>, shuffled: &[u32]) -> anyhow::Result<()> {
    let (mut plain, mut with) = (Vec::new(), Vec::new());
    for skew in [0.3, 0.6, 0.9, 1.1, 1.5, 2.0] {
        let stream = updates::<4>(&flow_numbers(study.packets, study.packets * 3 / 10, skew, 1.0));
        let mut fronts =
            [front::<4>(Kind::FlowRadar, InFront::Nothing)?, front::<4>(Kind::FlowRadar, grr())?];
        let (a, b, _) = compare(time_in_turn(&mut fronts, &stream, 256, study.rounds), &fronts);
        study.findings.row(json!({ "figure": "7ab", "skew": skew, "ns_plain": a, "ns_aggregated": b }));
        plain.push((skew, a));
        with.push((skew, b));
    }
    let falls = with.first().map(|p| p.1) > with.last().map(|p| p.1);
    study.plot(
        "Fig. 7b: FlowRadar by skew",
        Scale::linear("Zipf exponent"),
        vec![Curve::ours("plain", plain), Curve::ours("aggregator", with)],
    );
    study.claim(
        "Fig. 7b: behind the aggregator, time falls as traffic is more skewed",
        json!(true),
        json!(falls),
        "less at exponent 2 than at 0.3",
        falls,
    );
    sizes(study, shuffled)
}

/// Fig. 7c: the size of the aggregator. A larger one hits more, and leaves the nearer caches.
fn sizes(study: &mut Study<'_>, shuffled: &[u32]) -> anyhow::Result<()> {
    let stream = updates::<4>(shuffled);
    let buckets = [125, 250, 500, 1000, 2000, 4000, 8000];
    let with = |buckets| InFront::Aggregator(AggregatorConfig { buckets, ..AggregatorConfig::default() });
    let mut fronts = Vec::new();
    for n in buckets {
        fronts.push(front::<4>(Kind::FlowRadar, with(n))?);
    }
    let times = time_in_turn(&mut fronts, &stream, 256, study.rounds);
    let (mut hits, mut alone) = (Vec::new(), Vec::new());
    for ((n, front), ns) in buckets.into_iter().zip(&fronts).zip(&times) {
        let stats = front.stats().unwrap_or_default();
        let share = stats.hits as f64 / stats.updates.max(1) as f64;
        let table = aggregator_alone(n, &stream, study.rounds)?;
        study.findings.row(json!({
            "figure": "7c", "buckets": n, "aggregator_bytes": front.aggregator_bytes(), "hit_share": share,
            "aside_share": stats.aside as f64 / (stats.updates + stats.aside).max(1) as f64,
            "ns_aggregated": ns, "ns_aggregator_alone": table,
        }));
        hits.push(share);
        alone.push(table);
    }
    let by_size = |times: &[f64]| buckets.map(|n| n as f64).into_iter().zip(times.to_vec());
    study.plot(
        "Fig. 7c: FlowRadar by size of the aggregator",
        Scale::log("buckets of 16", 2.0),
        vec![
            Curve::ours("with FlowRadar", by_size(&times)),
            Curve::ours("aggregator alone", by_size(&alone)),
        ],
    );
    let small_and_paper =
        |of: &[f64]| (of.first().copied().unwrap_or(f64::NAN), of.get(4).copied().unwrap_or(f64::NAN));
    let (few, many) = small_and_paper(&hits);
    let text = "Fig. 7c: a larger aggregator hits more (share of hits, 125 and 2000 buckets)";
    study.claim(
        text,
        json!(true),
        json!(format!("{few:.2} and {many:.2}")),
        "more hits with 2000",
        many > few,
    );
    let ((small, large), (table, larger)) = (small_and_paper(&times), small_and_paper(&alone));
    let text = "Fig. 7c: so it is faster (ns an update with 125 and 2000 buckets; the aggregator's own part)";
    let measured = json!(format!("{small:.1} and {large:.1}; {table:.1} and {larger:.1}"));
    study.claim(text, json!(true), measured, "less time with 2000", large < small);
    Ok(())
}

/// Time of an aggregator with no sketch behind it, in ns an update.
fn aggregator_alone(buckets: usize, stream: &[Update<4>], rounds: usize) -> anyhow::Result<f64> {
    let mut aggregator = Aggregator::<4>::new(&AggregatorConfig { buckets, ..AggregatorConfig::default() })?;
    let mut best = f64::INFINITY;
    let mut out = 0usize;
    for round in 0..=rounds {
        let since = thread_cpu_ns();
        stream.chunks(256).for_each(|some| aggregator.offer(some, &mut |left| out += left.len()));
        aggregator.drain(&mut |left| out += left.len());
        let ns = (thread_cpu_ns() - since) as f64 / stream.len().max(1) as f64;
        if round > 0 {
            best = best.min(ns);
        }
    }
    std::hint::black_box(out);
    Ok(best)
}

/// Fig. 8: GRR against LRU, SIMD against none.
pub(super) fn design(study: &mut Study<'_>, shuffled: &[u32]) -> anyhow::Result<()> {
    let with = |eviction, instructions| {
        InFront::Aggregator(AggregatorConfig { eviction, instructions, ..AggregatorConfig::default() })
    };
    let best = Instructions::best();
    let (four, eight) = (updates::<4>(shuffled), updates::<8>(shuffled));
    let mut evicted = Vec::new();
    for kind in Kind::PAPER.into_iter().filter(|k| *k != Kind::Exact) {
        let (grr, lru) = (with(Eviction::Grr, best), with(Eviction::Lru, best));
        let ((a, b, _), share) = if kind == Kind::TwoLevel {
            let mut fronts = [front::<8>(kind, grr)?, front::<8>(kind, lru)?];
            (compare(time_in_turn(&mut fronts, &eight, 256, study.rounds), &fronts), aside(&fronts))
        } else {
            let mut fronts = [front::<4>(kind, grr)?, front::<4>(kind, lru)?];
            (compare(time_in_turn(&mut fronts, &four, 256, study.rounds), &fronts), aside(&fronts))
        };
        study.findings.row(json!({
            "figure": "8a", "sketch": kind.name(), "ns_grr": a, "ns_lru": b, "aside_share": share,
        }));
        evicted.push(Evicted { kind, grr: a, lru: b, aside: share });
    }
    study.findings.claims.push(eviction(&evicted));
    let mut times = BTreeMap::new();
    let all = Instructions::available();
    let mut fronts = Vec::new();
    for instructions in &all {
        fronts.push(front::<4>(Kind::FlowRadar, with(Eviction::Grr, *instructions))?);
    }
    let stream = updates::<4>(&flow_numbers(study.packets, study.packets / 100, 1.1, BURST));
    for (instructions, ns) in all.iter().zip(time_in_turn(&mut fronts, &stream, 256, study.rounds)) {
        let name = format!("{instructions:?}").to_lowercase();
        study.findings.row(json!({ "figure": "8bc", "instructions": name, "ns_aggregated": ns }));
        times.insert(name, ns);
    }
    let portable = times.get("portable").copied().unwrap_or(f64::NAN);
    let simd = times.values().copied().fold(f64::INFINITY, f64::min);
    let claim = "Fig. 8c: SIMD saves about so many ns an update";
    study.findings.claims.push(Claim::number(claim, 20.0, portable - simd, 0.25, 0.0));
    Ok(())
}

/// Times of a sketch behind aggregators of both policies, ns an update.
struct Evicted {
    kind: Kind,
    grr: f64,
    lru: f64,
    /// The share of updates that passed by the aggregator.
    aside: f64,
}

/// Fig. 8a: of the paper's nine, UnivMon and Space-Saving keep heaps, for which LRU is a little better. An
/// aggregator that stands aside evicts nothing, whatever its policy.
fn eviction(all: &[Evicted]) -> Claim {
    let hashed = all.iter().filter(|e| !matches!(e.kind, Kind::UnivMon | Kind::SpaceSaving | Kind::Exact));
    let (still, told): (Vec<&Evicted>, Vec<&Evicted>) = hashed.partition(|e| e.aside > STANDS_ASIDE);
    let claim = "Fig. 8a: GRR is faster than LRU for the seven solutions without a heap";
    let wins = told.iter().filter(|e| e.grr < e.lru).count();
    let names: Vec<&str> = still.iter().map(|e| e.kind.name()).collect();
    let mut measured = format!("{wins} of {}", told.len());
    if !names.is_empty() {
        measured += &format!("; the aggregator stands aside before {}", names.join(", "));
    }
    if told.is_empty() {
        let why = "an aggregator that stands aside evicts nothing";
        return Claim::not_comparable(claim, "7 of 7", measured, why);
    }
    let criterion = "all before which the aggregator doesn't stand aside";
    Claim::checked(claim, "7 of 7", measured, criterion, wins == told.len())
}

/// The share of updates from which on an aggregator counts as one that stands aside.
const STANDS_ASIDE: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Verdict;

    /// What wins with a heap, or with an aggregator that evicts nothing, is none of the seven.
    #[test]
    fn policies_are_compared_where_something_is_evicted() {
        let of = |kind, grr, lru, aside| Evicted { kind, grr, lru, aside };
        let mut all = vec![
            of(Kind::FlowRadar, 20.0, 22.0, 0.0),
            of(Kind::TwoLevel, 14.0, 13.0, 0.0),
            of(Kind::Mrac, 3.0, 2.0, 1.0),
            of(Kind::SpaceSaving, 20.0, 21.0, 0.0),
            of(Kind::UnivMon, 12.0, 14.0, 0.0),
        ];
        let claim = eviction(&all);
        assert_eq!(claim.measured, json!("1 of 2; the aggregator stands aside before mrac"));
        assert_eq!(claim.verdict, Verdict::Contradicted);
        all[1].grr = 12.0;
        assert_eq!(eviction(&all).verdict, Verdict::Reproduced);
        assert_eq!(eviction(&all[2..]).verdict, Verdict::NotComparable);
    }
}
