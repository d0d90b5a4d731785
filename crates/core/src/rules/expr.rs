//! A parsed rule: a tree of tests under `and`, `or` and `not`, kept as written so that it can be printed
//! again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::reads::Reads;
use core::fmt;
use core::net::IpAddr;

use ipnet::IpNet;

use super::names;

/// A rule as a tree. [`Expr::and`], [`Expr::or`] and [`Expr::not`] keep it in the one form that parsing its
/// own printout gives: no `and` directly within an `and`, no `or` within an `or`, no `not` of a `not`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// `any`: every packet.
    Any,
    /// `none`: no packet.
    None,
    /// One question.
    Test(Test),
    /// Every packet that this doesn't select.
    Not(Box<Expr>),
    /// All of at least two.
    And(Vec<Expr>),
    /// Some of at least two.
    Or(Vec<Expr>),
}

/// One question about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// `ip` (false) or `ip6` (true).
    Ip6(bool),
    /// The protocol after extension headers.
    Proto(ByteSet),
    /// An address in one of the prefixes.
    Net(Side, Vec<IpNet>),
    /// A port in one of the ranges. False for a packet whose ports can't be seen.
    Port(Side, Ranges),
    /// The upper six bits of TOS or traffic class; bit `n` of the set stands for code point `n`.
    Dscp(u64),
    /// The lower two bits of TOS or traffic class; bit `n` of the set stands for code point `n`.
    Ecn(u8),
    /// The bits of `mask` among the TCP flags are those of `value`. False for a packet whose flags can't be
    /// seen.
    Flags {
        /// The flags that are looked at.
        mask: u8,
        /// The flags among them that must be set; the others must not.
        value: u8,
    },
    /// A VLAN tag; or a tag whose id is in one of the ranges.
    Vlan(Option<Ranges>),
    /// A fragment, the first of a datagram included.
    Fragment,
    /// The packet's length on the wire.
    Length(Ranges),
}

/// The end of a packet that a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source.
    Src,
    /// The destination.
    Dst,
    /// Source or destination.
    Either,
}

impl Expr {
    /// The fields that it reads of a packet beyond its flow key.
    pub fn reads(&self) -> Reads {
        match self {
            Self::Any | Self::None => Reads::KEY,
            Self::Not(inner) => inner.reads(),
            Self::And(parts) | Self::Or(parts) => {
                parts.iter().fold(Reads::KEY, |reads, part| reads.and(part.reads()))
            }
            Self::Test(test) => match test {
                Test::Ip6(_) | Test::Proto(_) | Test::Net(..) | Test::Vlan(_) => Reads::KEY,
                Test::Port(..) | Test::Fragment => Reads::SHAPE,
                Test::Dscp(_) => Reads::DSCP,
                Test::Ecn(_) => Reads::ECN,
                Test::Flags { mask, .. } => Reads::of_word(u32::from(*mask) << 8).and(Reads::SHAPE),
                Test::Length(_) => Reads::LENGTH,
            },
        }
    }

    /// All of `parts`; there is at least one.
    pub fn and(parts: Vec<Self>) -> Self {
        Self::join(parts, Self::And, |e| if let Self::And(inner) = e { Ok(inner) } else { Err(e) })
    }

    /// Some of `parts`; there is at least one.
    pub fn or(parts: Vec<Self>) -> Self {
        Self::join(parts, Self::Or, |e| if let Self::Or(inner) = e { Ok(inner) } else { Err(e) })
    }

    /// The opposite.
    #[allow(
        clippy::should_implement_trait,
        reason = "beside `and` and `or`, which are no operators' names either"
    )]
    pub fn not(self) -> Self {
        match self {
            Self::Not(inner) => *inner,
            e => Self::Not(Box::new(e)),
        }
    }

    fn join(parts: Vec<Self>, of: fn(Vec<Self>) -> Self, split: fn(Self) -> Result<Vec<Self>, Self>) -> Self {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match split(part) {
                Ok(inner) => flat.extend(inner),
                Err(one) => flat.push(one),
            }
        }
        if flat.len() == 1 { flat.pop().unwrap_or(Self::None) } else { of(flat) }
    }
}

/// A set of byte values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    /// Adds a value.
    pub fn insert(&mut self, v: u8) {
        if let Some(w) = self.0.get_mut(usize::from(v >> 6)) {
            *w |= 1 << (v & 63);
        }
    }

    /// Says whether a value is in the set.
    #[inline]
    pub fn contains(&self, v: u8) -> bool {
        self.0.get(usize::from(v >> 6)).is_some_and(|w| w >> (v & 63) & 1 == 1)
    }

    /// The values that are not members.
    pub fn complement(self) -> Self {
        Self(self.0.map(|w| !w))
    }

    /// The members that both have.
    pub fn intersection(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a & e, b & f, c & g, d & h])
    }

    /// Returns true if it has no members.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    /// Number of members.
    pub fn len(self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |&v| self.contains(v))
    }
}

/// A set of numbers: ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Box<[(u32, u32)]>);

impl Ranges {
    /// The union of `ranges`, each from its first to its last number.
    pub fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (lo, hi) in ranges {
            match merged.last_mut() {
                Some((_, end)) if lo <= end.saturating_add(1) => *end = hi.max(*end),
                _ => merged.push((lo, hi)),
            }
        }
        Self(merged.into())
    }

    /// The ranges, each from its first to its last number.
    pub fn pairs(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Says whether a value is in one of the ranges.
    #[inline]
    pub fn contains(&self, v: u32) -> bool {
        if let [(lo, hi)] = *self.0 {
            return (lo..=hi).contains(&v);
        }
        let after = self.0.partition_point(|&(lo, _)| lo <= v);
        after.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|&(_, hi)| v <= hi)
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        comma(f, self.pairs().iter(), |f, &(lo, hi)| match hi {
            _ if lo == hi => write!(f, "{lo}"),
            u32::MAX => write!(f, "{lo}-"),
            _ => write!(f, "{lo}-{hi}"),
        })
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::None => f.write_str("none"),
            Self::Test(test) => test.fmt(f),
            Self::Not(e) => {
                f.write_str("not ")?;
                inner(f, e)
            }
            Self::And(parts) => joined(f, parts, " and "),
            Self::Or(parts) => joined(f, parts, " or "),
        }
    }
}

/// The parts of an `and` or `or`; only an `and` needs no parentheses within an `or`.
fn joined(f: &mut fmt::Formatter<'_>, parts: &[Expr], by: &str) -> fmt::Result {
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            f.write_str(by)?;
        }
        match part {
            Expr::And(_) => write!(f, "{part}")?,
            _ => inner(f, part)?,
        }
    }
    Ok(())
}

fn inner(f: &mut fmt::Formatter<'_>, e: &Expr) -> fmt::Result {
    match e {
        Expr::And(_) | Expr::Or(_) => write!(f, "({e})"),
        _ => write!(f, "{e}"),
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip6(false) => f.write_str("ip"),
            Self::Ip6(true) => f.write_str("ip6"),
            Self::Proto(set) => protocols(f, *set),
            Self::Net(side, nets) => {
                f.write_str(match side {
                    Side::Src => "src ",
                    Side::Dst => "dst ",
                    Side::Either if nets.iter().all(is_host) => "host ",
                    Side::Either => "net ",
                })?;
                comma(f, nets.iter(), |f, net| if is_host(net) { net.addr().fmt(f) } else { net.fmt(f) })
            }
            Self::Port(side, ports) => {
                f.write_str(match side {
                    Side::Src => "src ",
                    Side::Dst => "dst ",
                    Side::Either => "",
                })?;
                write!(f, "port {ports}")
            }
            Self::Dscp(set) => {
                f.write_str("dscp ")?;
                let runs = Ranges::new((0..64).filter(|n| set >> n & 1 == 1).map(|n| (n, n)).collect());
                comma(f, runs.pairs().iter(), |f, &(lo, hi)| named_range(f, names::DSCP, lo, hi))
            }
            Self::Ecn(set) => {
                f.write_str("ecn ")?;
                comma(f, names::ECN.iter().filter(|(_, n)| set >> n & 1 == 1), |f, (name, _)| {
                    f.write_str(name)
                })
            }
            Self::Flags { mask, value } => tcp_flags(f, *mask, *value),
            Self::Vlan(None) => f.write_str("vlan"),
            Self::Vlan(Some(ids)) => write!(f, "vlan {ids}"),
            Self::Fragment => f.write_str("fragment"),
            Self::Length(bytes) => write!(f, "length {bytes}"),
        }
    }
}

/// Returns true if a prefix holds one address only.
fn is_host(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// `tcp`, or `proto 47,50-51`.
fn protocols(f: &mut fmt::Formatter<'_>, set: ByteSet) -> fmt::Result {
    let runs = Ranges::new(set.iter().map(|v| (u32::from(v), u32::from(v))).collect());
    match *runs.pairs() {
        [(lo, hi)] if lo == hi && named(names::PROTOCOLS, lo).is_some() => {}
        _ => f.write_str("proto ")?,
    }
    comma(f, runs.pairs().iter(), |f, &(lo, hi)| named_range(f, names::PROTOCOLS, lo, hi))
}

/// `syn`, or `flags syn,!ack`.
fn tcp_flags(f: &mut fmt::Formatter<'_>, mask: u8, value: u8) -> fmt::Result {
    if mask != value || mask.count_ones() != 1 {
        f.write_str("flags ")?;
    }
    comma(f, names::TCP_FLAGS.iter().filter(|(_, bit)| mask & bit != 0), |f, (name, bit)| {
        write!(f, "{}{name}", if value & bit == 0 { "!" } else { "" })
    })
}

fn named(table: &[(&'static str, u8)], n: u32) -> Option<&'static str> {
    u8::try_from(n).ok().and_then(|n| names::name(table, n))
}

fn named_range(f: &mut fmt::Formatter<'_>, table: &[(&'static str, u8)], lo: u32, hi: u32) -> fmt::Result {
    match named(table, lo) {
        _ if lo != hi => write!(f, "{lo}-{hi}"),
        Some(name) => f.write_str(name),
        None => write!(f, "{lo}"),
    }
}

/// Items with commas between them.
fn comma<'f, T>(
    f: &mut fmt::Formatter<'f>,
    items: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut fmt::Formatter<'f>, T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// A single address as a prefix.
pub fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}
