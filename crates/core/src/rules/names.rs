//! Names that stand for numbers: protocols, DSCP code points, ECN code points, TCP flags; and the nearest
//! name to a misspelt one.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::protocols::NETBASE;

/// IP protocols by the names that are words of their own. The first name of a number is the one that is
/// printed, in flows as well: `ipip` is IPv4 in IP (4), as for Linux' tunnels, while iptables means 94 by it.
pub const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmp6", 58),
    ("icmpv6", 58),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("carp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// The names that `proto` understands: our own, and those of `/etc/protocols` that don't mean another
/// protocol here.
pub fn all_protocols() -> Vec<(&'static str, u8)> {
    let other = NETBASE.iter().filter(|(name, _)| *name != "ip" && number(PROTOCOLS, name).is_none());
    PROTOCOLS.iter().chain(other).copied().collect()
}

/// DSCP code points by name (RFC 2474, 2597, 3246, 5865, 8622).
pub const DSCP: &[(&str, u8)] = &[
    ("cs0", 0),
    ("be", 0),
    ("default", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("va", 44),
    ("voice-admit", 44),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// ECN code points by name (RFC 3168, section 5).
pub const ECN: &[(&str, u8)] = &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];

/// TCP flags by name, as bits of the flags byte (RFC 9293, section 3.1).
pub const TCP_FLAGS: &[(&str, u8)] = &[
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
];

/// Every word that can begin a primitive, other than protocols and TCP flags.
pub const PRIMITIVES: &[&str] = &[
    "any", "none", "ip", "ip6", "proto", "src", "dst", "host", "net", "port", "dscp", "ecn", "flags", "vlan",
    "fragment", "length", "not", "and", "or",
];

/// Words that people bring along from other filters, and what to write instead.
const FOREIGN: &[(&str, &str)] = &[
    ("all", "write `any`"),
    ("portrange", "write `port 8000-8080`"),
    ("less", "write `length 0-N`"),
    ("greater", "write `length N-`"),
    ("len", "write `length`"),
    ("ip4", "write `ip`"),
    ("ipv4", "write `ip`"),
    ("ipv6", "write `ip6`"),
    ("source", "write `src`"),
    ("destination", "write `dst`"),
    ("sport", "write `src port`"),
    ("dport", "write `dst port`"),
    ("tos", "write `dscp` for the upper six bits, `ecn` for the lower two"),
    ("synack", "write `syn ack`"),
    ("syn-ack", "write `syn ack`"),
    ("ect", "write `ecn ect0,ect1`"),
    ("ce", "write `ecn ce`"),
    ("ether", "rules select by IP and transport headers; of layer 2 only `vlan` can be asked for"),
    ("arp", "packets that aren't IP pass through untouched, so that no rule sees them"),
    ("mpls", "packets that aren't IP pass through untouched, so that no rule sees them"),
    ("tcp-syn", "write `syn`"),
    ("tcp-ack", "write `ack`"),
    ("tcp-fin", "write `fin`"),
    ("tcp-rst", "write `rst`"),
];

/// The number of a name in `table`, whatever its case.
pub fn number(table: &[(&str, u8)], name: &str) -> Option<u8> {
    table.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|&(_, v)| v)
}

/// The first name of a number in `table`.
pub fn name(table: &[(&'static str, u8)], number: u8) -> Option<&'static str> {
    table.iter().find(|&&(_, v)| v == number).map(|&(n, _)| n)
}

/// A hint for a word that no primitive begins with.
pub fn hint_for_word(word: &str) -> Option<String> {
    if let Some((_, hint)) = FOREIGN.iter().find(|(w, _)| w.eq_ignore_ascii_case(word)) {
        return Some((*hint).to_owned());
    }
    if number(DSCP, word).is_some() {
        return Some(format!("write `dscp {}`", word.to_ascii_lowercase()));
    }
    let names = [PROTOCOLS, TCP_FLAGS].into_iter().flatten().map(|&(n, _)| n);
    nearest(word, PRIMITIVES.iter().copied().chain(names)).map(|n| format!("did you mean `{n}`?"))
}

/// The candidate that is fewest edits away from `word`: at most one in a word of up to three letters, else
/// two, but not the word itself. Of equals one with the same first letter, which people seldom get wrong.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = if word.chars().count() <= 3 { 1 } else { 2 };
    let first = |s: &str| s.chars().next().map(|c| c.to_ascii_lowercase());
    candidates
        .filter(|c| *c != word)
        .map(|c| (distance(word, c, most), first(c) != first(word), c))
        .filter(|&(d, ..)| d <= most)
        .min_by_key(|&(d, other_start, _)| (d, other_start))
        .map(|(.., c)| c)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, whatever their case
/// (optimal string alignment); anything above `most` where the lengths alone say that it is more.
fn distance(a: &str, b: &str, most: usize) -> usize {
    let lower = |s: &str| s.chars().map(|c| c.to_ascii_lowercase()).collect::<Vec<_>>();
    let (a, b) = (lower(a), lower(b));
    if a.len().abs_diff(b.len()) > most {
        return most + 1;
    }
    let at = |row: &[usize], i: usize| row.get(i).copied().unwrap_or(usize::MAX / 2);
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let substituted = at(&above, j) + usize::from(x != y);
            let mut d = substituted.min(at(&above, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(&y) && b.get(j - 1) == Some(&x);
            if swapped {
                d = d.min(at(&before, j - 1) + 1);
            }
            row.push(d);
        }
        before = core::mem::replace(&mut above, row);
    }
    at(&above, b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_each_kind_of_edit_once() {
        for (a, b, d) in [
            ("syn", "syn", 0),
            ("SYN", "syn", 0),
            ("syn", "sny", 1),
            ("syn", "sy", 1),
            ("syn", "synn", 1),
            ("syn", "fyn", 1),
            ("fragment", "fargmnet", 2),
            ("", "ip", 2),
        ] {
            assert_eq!(distance(a, b, 8), d, "{a} {b}");
            assert_eq!(distance(b, a, 8), d, "{b} {a}");
        }
    }

    #[test]
    fn a_word_far_from_all_has_no_hint() {
        assert_eq!(hint_for_word("xyzzyplugh"), None);
        assert_eq!(hint_for_word(&"a".repeat(10_000)), None);
    }

    #[test]
    fn a_word_of_another_filter_is_translated() {
        assert_eq!(hint_for_word("portrange").as_deref(), Some("write `port 8000-8080`"));
        assert_eq!(hint_for_word("EF").as_deref(), Some("write `dscp ef`"));
    }
}
