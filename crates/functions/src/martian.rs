//! Addresses that no packet on a link has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns true for the IPv6 addresses that stay within a host (RFC 4291 §2.5): `::`, which is nobody's,
/// `::1`, the host's own, and `::ffff:0:0/96`, IPv4 addresses as programs hand them to their host. On a link,
/// rules about IPv4 would not see these.
#[inline]
fn is_within_a_host(address: Ipv6Addr) -> bool {
    address.is_unspecified() || address.is_loopback() || address.to_ipv4_mapped().is_some()
}

/// Returns true if a packet may never have this source, which is that of no single host (RFC 1812 §5.3.7,
/// RFC 4291 §2.5): in IPv4 networks 0 and 127, and classes D and E with the broadcast address.
#[inline]
pub(crate) fn is_martian_source(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => matches!(a.octets(), [0 | 127 | 224..=255, ..]),
        IpAddr::V6(a) => is_within_a_host(a) || a.is_multicast(),
    }
}

/// Returns true if a packet on a link may never have this destination.
#[inline]
pub(crate) fn is_martian_destination(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => matches!(a.octets(), [0 | 127 | 240..=254, ..]) || is_class_e(a),
        IpAddr::V6(a) => is_within_a_host(a),
    }
}

fn is_class_e(address: Ipv4Addr) -> bool {
    address.octets()[0] == 255 && !address.is_broadcast()
}
