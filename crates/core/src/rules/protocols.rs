//! Protocols by the names that Linux programs know them by: those of `/etc/protocols` as Debian's netbase
//! package has it, which iptables reads and prints. Numbers are IANA's (registry "Assigned Internet Protocol
//! Numbers").
//!
//! Two of them are easily taken for one another: `ipencap` is IPv4 in IP (4, RFC 2003), what tunnels of
//! Linux' mode "ipip" use; `ipip` is an older encapsulation (94) that hardly anybody speaks.

/// Names and their numbers, in the order of the file; `ip` and `hopopt` are both 0.
pub const NETBASE: &[(&str, u8)] = &[
    ("ip", 0),
    ("hopopt", 0),
    ("icmp", 1),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("st", 5),
    ("tcp", 6),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", 17),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", 33),
    ("xtp", 36),
    ("ddp", 37),
    ("idpr-cmtp", 38),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("skip", 57),
    ("ipv6-icmp", 58),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("rspf", 73),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ax.25", 93),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", 132),
    ("fc", 133),
    ("mobility-header", 135),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("manet", 138),
    ("hip", 139),
    ("shim6", 140),
    ("wesp", 141),
    ("rohc", 142),
    ("ethernet", 143),
];

/// The other names that the file has for some of them, in lower case, and those that iptables knows without
/// it.
pub const ALIASES: &[(&str, u8)] = &[
    ("ip-encap", 4),
    ("ipsec-esp", 50),
    ("ipsec-ah", 51),
    ("cphb", 73),
    ("ospfigp", 89),
    ("icmpv6", 58),
    ("ipv6-mh", 135),
    ("mh", 135),
];

/// The number that iptables and Debian's `/etc/protocols` mean by a name in lower case.
pub fn number(name: &str) -> Option<u8> {
    [NETBASE, ALIASES].into_iter().flatten().find(|(known, _)| *known == name).map(|&(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipencap_and_ipip_are_two_protocols() {
        assert_eq!((number("ipencap"), number("ipip"), number("ip-encap")), (Some(4), Some(94), Some(4)));
        assert_eq!((number("ospf"), number("ipv6-icmp"), number("mh")), (Some(89), Some(58), Some(135)));
        assert_eq!(number("nothing"), None);
    }

    /// Every name of the file where there is one. Files may have names that ours lacks only for protocols
    /// that it doesn't have.
    #[test]
    fn names_mean_what_etc_protocols_says() {
        let Ok(file) = std::fs::read_to_string("/etc/protocols") else { return };
        let mut compared = 0;
        for line in file.lines() {
            let mut words = line.split('#').next().unwrap_or("").split_whitespace();
            let (Some(name), Some(n)) = (words.next(), words.next().and_then(|n| n.parse::<u8>().ok()))
            else {
                continue;
            };
            for name in core::iter::once(name).chain(words).map(str::to_lowercase) {
                match number(&name) {
                    Some(ours) => {
                        assert_eq!(ours, n, "{name}");
                        compared += 1;
                    }
                    None => assert!(NETBASE.iter().all(|(_, known)| *known != n), "{name} is missing"),
                }
            }
        }
        assert!(compared > 50 || file.lines().count() < 50, "only {compared} names compared");
    }
}
