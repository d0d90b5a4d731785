//! Numbers that headers carry to say what follows: IP protocols and ethertypes (IANA), and the UDP ports of
//! tunnels.

/// IPv6 hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// IPv4 in IP (RFC 2003).
pub const IPV4: u8 = 4;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// IPv6 in IP (RFC 4213).
pub const IPV6: u8 = 41;
/// IPv6 routing header.
pub const ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const FRAGMENT: u8 = 44;
/// Generic routing encapsulation (RFC 2784).
pub const GRE: u8 = 47;
/// Authentication header (RFC 4302).
pub const AH: u8 = 51;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// IPv6 destination options.
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP.
pub const SCTP: u8 = 132;
/// IPv6 mobility header (RFC 6275).
pub const MOBILITY: u8 = 135;

/// Offset of the checksum in a TCP header, in bytes.
pub const TCP_CHECKSUM: usize = 16;
/// Offset of the checksum in a UDP header, and in those of UDP-Lite and DCCP.
pub const UDP_CHECKSUM: usize = 6;
/// Offset of the checksum in the header of ICMP, and of ICMPv6.
pub const ICMP_CHECKSUM: usize = 2;
/// Offset of the CRC32c in an SCTP header.
pub const SCTP_CHECKSUM: usize = 8;

/// IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Transparent Ethernet bridging: an Ethernet frame follows.
pub const ETHERTYPE_BRIDGING: u16 = 0x6558;
/// IEEE 802.1Q VLAN tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IEEE 802.1ad service VLAN tag.
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Double tagging as it was done before IEEE 802.1ad.
pub const ETHERTYPE_OLD_DOUBLE_VLAN: u16 = 0x9100;

/// UDP destination port of VXLAN (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;
/// UDP destination port of GENEVE (RFC 8926).
pub const GENEVE_PORT: u16 = 6081;

/// Says that a header of this protocol begins with a source and a destination port that belong to the flow
/// key.
#[inline]
#[must_use]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

/// Says that a protocol number is that of an IPv6 extension header that classification walks.
#[inline]
#[must_use]
pub const fn is_extension(number: u8) -> bool {
    matches!(number, HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS | MOBILITY)
}

/// Says that an ethertype is one of a VLAN tag.
#[inline]
#[must_use]
pub const fn is_vlan(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN | ETHERTYPE_OLD_DOUBLE_VLAN)
}

/// The usual short name of an IP protocol, where it has one that people write.
#[must_use]
pub const fn name(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        ICMP => "icmp",
        2 => "igmp",
        IPV4 => "ipip",
        TCP => "tcp",
        UDP => "udp",
        IPV6 => "ipv6",
        GRE => "gre",
        50 => "esp",
        AH => "ah",
        ICMPV6 => "icmp6",
        89 => "ospf",
        103 => "pim",
        112 => "vrrp",
        SCTP => "sctp",
        136 => "udplite",
        _ => return None,
    })
}
