//! From a rule of the project's language to conjunctive rules: the disjunctive normal form of its tree, of
//! bounded size.

use slipstream_wire::Flags;

use super::conjunction::Conjunction;
use slipstream_core::rules::expr::{Expr, Ranges, Side, Test};

/// Conjunctive rules that one rule may become.
pub(super) const MAX_PARTS: usize = 4096;

/// A rule that becomes more than [`MAX_PARTS`] conjunctive rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

type Parts = Result<Vec<Conjunction>, TooMany>;

/// Conjunctive rules of which at least one matches wherever `expr` does, and none elsewhere.
pub(super) fn expand(expr: &Expr) -> Parts {
    parts(expr, true)
}

/// The parts of `expr`, or of its opposite.
fn parts(expr: &Expr, positive: bool) -> Parts {
    match (expr, positive) {
        (Expr::Any, true) | (Expr::None, false) => Ok(vec![Conjunction::default()]),
        (Expr::Any, false) | (Expr::None, true) => Ok(Vec::new()),
        (Expr::Not(inner), _) => parts(inner, !positive),
        (Expr::And(all), true) | (Expr::Or(all), false) => product(all.iter().map(|e| parts(e, positive))),
        (Expr::Or(some), true) | (Expr::And(some), false) => sum(some.iter().map(|e| parts(e, positive))),
        (Expr::Test(test), true) => holds(test),
        (Expr::Test(test), false) => fails(test),
    }
}

/// Some of `terms`.
fn sum(terms: impl Iterator<Item = Parts>) -> Parts {
    let mut all = Vec::new();
    for term in terms {
        all.extend(term?);
        if all.len() > MAX_PARTS {
            return Err(TooMany);
        }
    }
    Ok(all)
}

/// All of `factors`.
pub(super) fn product(factors: impl Iterator<Item = Parts>) -> Parts {
    let mut all = vec![Conjunction::default()];
    for factor in factors {
        let factor = factor?;
        let mut next = Vec::new();
        for (a, b) in all.iter().flat_map(|a| factor.iter().map(move |b| (a, b))) {
            next.extend(a.and(b));
            if next.len() > MAX_PARTS {
                return Err(TooMany);
            }
        }
        all = next;
    }
    Ok(all)
}

/// One part, where it can be fulfilled at all.
fn one(part: Conjunction) -> Parts {
    Ok(part.normal().into_iter().collect())
}

/// Packets of which `test` is true.
fn holds(test: &Test) -> Parts {
    match test {
        Test::Ip6(six) => one(Conjunction { six: Some(*six), ..Conjunction::default() }),
        Test::Proto(set) => one(Conjunction::rest(|r| r.protocols = *set)),
        Test::Net(side, nets) => {
            sum(sides(*side).map(|src| Ok(nets.iter().map(|&net| Conjunction::net(src, net)).collect())))
        }
        Test::Port(side, ports) => sum(sides(*side).map(|src| Ok(in_ranges(src, ports.pairs())))),
        Test::Dscp(set) => one(Conjunction::rest(|r| r.dscp = *set)),
        Test::Ecn(set) => one(Conjunction::rest(|r| r.ecn = *set)),
        Test::Flags { mask, value } => one(Conjunction::tcp_flags(*mask, *value)),
        Test::Vlan(ids) => one(Conjunction::rest(|r| r.vlans.push((true, ids.clone())))),
        Test::Fragment => one(Conjunction::flag(Flags::FRAGMENT, true)),
        Test::Length(bytes) => one(Conjunction::rest(|r| r.lengths.push(bytes.clone()))),
    }
}

/// Packets of which `test` is false.
fn fails(test: &Test) -> Parts {
    match test {
        Test::Ip6(six) => one(Conjunction { six: Some(!six), ..Conjunction::default() }),
        Test::Proto(set) => one(Conjunction::rest(|r| r.protocols = set.complement())),
        Test::Net(side, nets) => one(Conjunction::rest(|r| {
            if *side != Side::Dst {
                r.not_src = nets.clone();
            }
            if *side != Side::Src {
                r.not_dst = nets.clone();
            }
        })),
        Test::Port(side, ports) => {
            let others = complement(ports, u32::from(u16::MAX));
            product(sides(*side).map(|src| {
                let mut parts = vec![Conjunction::flag(Flags::PORTS, false)];
                parts.extend(in_ranges(src, &others));
                Ok(parts)
            }))
        }
        Test::Dscp(set) => one(Conjunction::rest(|r| r.dscp = !set)),
        Test::Ecn(set) => one(Conjunction::rest(|r| r.ecn = !set & 15)),
        Test::Flags { mask, value } => {
            let bits = (0..8).map(|n| 1_u8 << n).filter(|bit| mask & bit != 0);
            let differ = bits.map(|bit| Conjunction::tcp_flags(bit, !value));
            Ok(std::iter::once(Conjunction::flag(Flags::TCP, false)).chain(differ).collect())
        }
        Test::Vlan(ids) => one(Conjunction::rest(|r| r.vlans.push((false, ids.clone())))),
        Test::Fragment => one(Conjunction::flag(Flags::FRAGMENT, false)),
        Test::Length(bytes) => {
            one(Conjunction::rest(|r| r.lengths.push(Ranges::new(complement(bytes, u32::MAX)))))
        }
    }
}

/// The sides that a test is about: true for the source.
fn sides(side: Side) -> impl Iterator<Item = bool> {
    [true, false].into_iter().filter(move |src| match side {
        Side::Src => *src,
        Side::Dst => !src,
        Side::Either => true,
    })
}

/// A port of one side, where it can be seen, in one of `ranges`.
pub(super) fn in_ranges(src: bool, ranges: &[(u32, u32)]) -> Vec<Conjunction> {
    let port = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    ranges.iter().map(|&(lo, hi)| Conjunction::ports(src, (port(lo), port(hi)))).collect()
}

/// The ranges of numbers up to `max` that are in no range of `set`.
pub(super) fn complement(set: &Ranges, max: u32) -> Vec<(u32, u32)> {
    let mut gaps = Vec::new();
    let mut next = Some(0);
    for &(lo, hi) in set.pairs() {
        if let Some(first) = next.filter(|&first| first < lo) {
            gaps.push((first, lo - 1));
        }
        next = hi.checked_add(1).filter(|&n| n <= max);
    }
    gaps.extend(next.map(|first| (first, max)));
    gaps
}
