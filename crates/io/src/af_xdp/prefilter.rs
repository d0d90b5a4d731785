//! Rules about which packets a port takes, as instructions of its XDP program; all other packets stay with
//! the kernel.
//!
//! Everything that the rule language can ask is asked here with the same answer, of the same fields of the
//! same headers: those of up to two VLAN tags and of up to eight IPv6 extension headers. A packet that isn't
//! IP, ends within its IP header, or has more tags or headers than that matches no rule.
//!
//! [`headers`](super::headers) puts the fields on the stack. What follows there is a chain of comparisons
//! that jump forward only.

use slipstream_core::rules::Rule;
use slipstream_core::rules::expr::{Expr, Ranges, Side, Test};
use slipstream_wire::Flags;
use thiserror::Error;

use super::headers::{Slot, Slots, read, slot};
use super::instruction::Comparison::{AtMost, Equal, Greater, Less, NotEqual};
use super::instruction::Operation::{And, Xor};
use super::instruction::Register::{R1, R9, R10};
use super::instruction::{Assembly, Label, change, change_by, load64};

/// Comparisons of a program at most. A packet that no rule matches goes through all of them; the kernel's
/// verifier follows each several times, and a million instructions in all; and jumps reach over 32767
/// instructions, of which a comparison takes up to 6.
pub(super) const MOST: usize = 2048;
/// Characters of a rule that an error shows.
const SHOWN: usize = 60;

/// Rules that come down to more comparisons than the program may have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the rules come down to {comparisons} comparisons; rule {number}, `{rule}`, goes beyond the {MOST} that an XDP program may make"
)]
pub struct TooManyComparisons {
    /// Comparisons of all rules.
    pub comparisons: usize,
    /// The rule that goes beyond what is possible: its number among those joined by line breaks, `;` or
    /// `or`, from 1.
    pub number: usize,
    /// Its beginning.
    pub rule: String,
}

/// Rules that can be made a part of an XDP program.
#[derive(Clone, Debug)]
pub struct Prefilter {
    condition: Condition,
    /// The fields that it asks for.
    fields: Slots,
}

/// The condition for a packet to be taken.
#[derive(Clone, Debug)]
enum Condition {
    Always,
    Never,
    /// The bits of a field under a mask, as a number from the first to the last of these.
    Within {
        slot: Slot,
        mask: u32,
        first: u32,
        last: u32,
    },
    Not(Box<Condition>),
    All(Vec<Condition>),
    Some(Vec<Condition>),
}

use Condition::{All, Some as OneOf, Within};

impl Prefilter {
    /// The rules by which a port takes packets.
    ///
    /// # Errors
    /// [`TooManyComparisons`]: 2048 are possible. A range of ports, protocols, VLAN ids or other numbers is
    /// one, and one more where it doesn't say which end of a packet is meant; so is a prefix of IPv4, and one
    /// of IPv6 is up to four.
    pub fn new(rule: &Rule) -> Result<Self, TooManyComparisons> {
        let condition = Condition::of(rule.expr());
        let comparisons = condition.comparisons();
        if comparisons > MOST {
            let rules = match rule.expr() {
                Expr::Or(rules) => rules.as_slice(),
                one => std::slice::from_ref(one),
            };
            let mut so_far = 0;
            let beyond = rules.iter().position(|rule| {
                so_far += Condition::of(rule).comparisons();
                so_far > MOST
            });
            let at = beyond.unwrap_or(0);
            let text = rules.get(at).map(ToString::to_string).unwrap_or_default();
            let mut rule: String = text.chars().take(SHOWN).collect();
            if rule.len() < text.len() {
                rule.push('…');
            }
            return Err(TooManyComparisons { comparisons, number: at + 1, rule });
        }
        let mut fields = Slots::default();
        condition.add_fields(&mut fields);
        Ok(Self { condition, fields })
    }

    /// The line of a text, from 1, with the rule that goes beyond what is possible, or with its beginning;
    /// none of rules that are possible.
    pub(super) fn line_beyond(text: &str) -> Option<usize> {
        let (mut so_far, mut rules, mut begins) = (0, String::new(), 0);
        for (line, number) in text.lines().zip(1..) {
            if rules.is_empty() {
                begins = number;
            }
            rules.push_str(line);
            rules.push('\n');
            let is_rule = !line.trim_start().is_empty() && !line.trim_start().starts_with('#');
            match Rule::parse(&rules) {
                Ok(rule) => so_far += Condition::of(rule.expr()).comparisons(),
                // It goes on in the next line.
                Err(_) if is_rule || begins < number => continue,
                Err(_) => {}
            }
            if so_far > MOST {
                return Some(begins);
            }
            rules.clear();
        }
        None
    }

    /// The rules ask for lengths, of which kernels tell programs from Linux 5.18 on.
    pub(super) fn asks_for_length(&self) -> bool {
        self.fields.has(slot::LENGTH)
    }

    /// Instructions that go on behind them with packets that match, and at `kernel` with all others. R6 is
    /// the context.
    pub(super) fn put(&self, code: &mut Assembly, kernel: Label) {
        read(code, self.fields, kernel);
        self.condition.put(code, false, kernel);
    }
}

impl Condition {
    fn of(expr: &Expr) -> Self {
        let each = |parts: &[Expr]| parts.iter().map(Self::of).collect();
        match expr {
            Expr::Any => Self::Always,
            Expr::None => Self::Never,
            Expr::Test(test) => Self::of_test(test),
            Expr::Not(inner) => Self::Not(Box::new(Self::of(inner))),
            Expr::And(parts) => All(each(parts)),
            Expr::Or(parts) => OneOf(each(parts)),
        }
    }

    fn of_test(test: &Test) -> Self {
        match test {
            Test::Ip6(six) => is_ip6(*six),
            Test::Proto(set) => numbers(slot::PROTOCOL, set.iter().map(u32::from)),
            Test::Net(side, nets) => {
                let versions = [false, true].map(|six| {
                    let of_one = |slots: [Slot; 4]| {
                        let nets = nets.iter().filter(|net| net.addr().is_ipv6() == six);
                        OneOf(nets.map(|net| prefix(slots, net.network(), net.netmask())).collect())
                    };
                    let none = !nets.iter().any(|net| net.addr().is_ipv6() == six);
                    if none {
                        Self::Never
                    } else {
                        All(vec![is_ip6(six), sides(*side, slot::SRC, slot::DST, of_one)])
                    }
                });
                OneOf(versions.into())
            }
            Test::Port(side, ports) => {
                let of_one = |slot| ranges(slot, ports);
                All(vec![has(Flags::PORTS), sides(*side, slot::SRC_PORT, slot::DST_PORT, of_one)])
            }
            Test::Dscp(set) => numbers(slot::DSCP, (0..64).filter(|n| set >> n & 1 == 1)),
            Test::Ecn(set) => numbers(slot::ECN, (0..4).filter(|n| set >> n & 1 == 1)),
            Test::Flags { mask, value } => {
                let value = u32::from(*value);
                let mask = u32::from(*mask);
                All(vec![has(Flags::TCP), Within { slot: slot::TCP_FLAGS, mask, first: value, last: value }])
            }
            Test::Vlan(ids) => {
                let any = Ranges::new(vec![(0, 0xfff)]);
                OneOf(slot::TAGS.map(|tag| ranges(tag, ids.as_ref().unwrap_or(&any))).into())
            }
            Test::Fragment => has(Flags::FRAGMENT),
            Test::Length(bytes) => ranges(slot::LENGTH, bytes),
        }
    }

    fn comparisons(&self) -> usize {
        match self {
            Self::Always | Self::Never => 0,
            Within { .. } => 1,
            Self::Not(inner) => inner.comparisons(),
            All(parts) | OneOf(parts) => parts.iter().map(Self::comparisons).sum(),
        }
    }

    fn add_fields(&self, fields: &mut Slots) {
        match self {
            Self::Always | Self::Never => {}
            Within { slot, .. } => fields.add(*slot),
            Self::Not(inner) => inner.add_fields(fields),
            All(parts) | OneOf(parts) => parts.iter().for_each(|part| part.add_fields(fields)),
        }
    }

    /// Instructions that go on at `to` if the packet fulfils the condition, where `when` is true, or doesn't,
    /// where it is false; and behind them if not.
    fn put(&self, code: &mut Assembly, when: bool, to: Label) {
        match self {
            Self::Always | Self::Never => {
                if matches!(self, Self::Always) == when {
                    always(code, to);
                }
            }
            Self::Not(inner) => inner.put(code, !when, to),
            // The first part that doesn't hold decides about all; the first that holds about one of them.
            All(parts) | OneOf(parts) => {
                let decides = matches!(self, OneOf(_));
                if decides == when {
                    parts.iter().for_each(|part| part.put(code, when, to));
                } else if let Some((last, others)) = parts.split_last() {
                    let decided = code.label();
                    others.iter().for_each(|part| part.put(code, decides, decided));
                    last.put(code, when, to);
                    code.place(decided);
                } else {
                    // All of none hold, and one of none doesn't.
                    always(code, to);
                }
            }
            &Within { slot, mask, first, last } => within(code, slot, mask, [first, last], when, to),
        }
    }
}

/// Goes on at `to`. The kernel refuses instructions that no way leads to, so that it must not see that none
/// leads to those behind this.
fn always(code: &mut Assembly, to: Label) {
    code.jump_if(R9, Equal, 0, to);
}

/// As [`Condition::put`], of [`Condition::Within`].
fn within(code: &mut Assembly, slot: Slot, mask: u32, [first, last]: [u32; 2], when: bool, to: Label) {
    // With the zero that it doesn't know, the verifier keeps in mind nothing of comparisons, and all ways to
    // what follows are one to it.
    code.put([load64(R1, R10, slot.offset()), change_by(R1, Xor, R9)]);
    if mask != u32::MAX {
        code.put([change(R1, And, mask as i32)]);
    }
    match (first, last, when) {
        _ if first == last => code.jump_if(R1, if when { Equal } else { NotEqual }, first, to),
        (_, _, false) => {
            if first > 0 {
                code.jump_if(R1, Less, first, to);
            }
            if last < u32::MAX {
                code.jump_if(R1, Greater, last, to);
            }
        }
        (_, _, true) => {
            let below = code.label();
            if first > 0 {
                code.jump_if(R1, Less, first, below);
            }
            code.jump_if(R1, AtMost, last, to);
            code.place(below);
        }
    }
}

/// The packet has this flag of [`Flags`].
fn has(flag: u8) -> Condition {
    let flag = u32::from(flag);
    Within { slot: slot::FLAGS, mask: flag, first: flag, last: flag }
}

fn is_ip6(six: bool) -> Condition {
    let value = if six { u32::from(Flags::IPV6) } else { 0 };
    Within { slot: slot::FLAGS, mask: Flags::IPV6.into(), first: value, last: value }
}

fn ranges(slot: Slot, ranges: &Ranges) -> Condition {
    let one = |&(first, last): &(u32, u32)| Within { slot, mask: u32::MAX, first, last };
    OneOf(ranges.pairs().iter().map(one).collect())
}

fn numbers(slot: Slot, numbers: impl Iterator<Item = u32>) -> Condition {
    ranges(slot, &Ranges::new(numbers.map(|n| (n, n)).collect()))
}

/// The ends of a packet that are meant, each as `of_one` says.
fn sides<S>(side: Side, src: S, dst: S, of_one: impl Fn(S) -> Condition) -> Condition {
    match side {
        Side::Src => of_one(src),
        Side::Dst => of_one(dst),
        Side::Either => OneOf(vec![of_one(src), of_one(dst)]),
    }
}

/// An address lies in a prefix of its IP version.
fn prefix(slots: [Slot; 4], network: std::net::IpAddr, mask: std::net::IpAddr) -> Condition {
    let words = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(four) => vec![u32::from_ne_bytes(four.octets())],
        std::net::IpAddr::V6(six) => {
            six.octets().as_chunks().0.iter().copied().map(u32::from_ne_bytes).collect()
        }
    };
    let words = words(network).into_iter().zip(words(mask));
    let parts = slots.into_iter().zip(words).filter(|(_, (_, mask))| *mask != 0);
    All(parts.map(|(slot, (word, mask))| Within { slot, mask, first: word, last: word }).collect())
}
