//! Settings of a stage that reassembles.

use super::FragmentLimits;
use slipstream_core::settings::{Kind, Setting, Settings};

/// Fragments held at most; 0, where a stage allows it, holds none.
pub(crate) const FRAGMENTS: Setting = Setting {
    name: "fragments",
    kind: Kind::Count(1, 1 << 20),
    default: Some("4096"),
    required: false,
    help: "Fragments that wait for their datagram to be complete, at most; the oldest datagrams give way",
};

/// Bytes held at most.
pub(crate) const FRAGMENT_BYTES: Setting = Setting {
    name: "fragment_bytes",
    kind: Kind::Bytes(1 << 17, 1 << 36),
    default: Some("8MiB"),
    required: false,
    help: "Bytes of waiting fragments at most",
};

/// Time for a datagram to be complete.
pub(crate) const FRAGMENT_TIMEOUT: Setting = Setting {
    name: "fragment_timeout",
    kind: Kind::Time(1_000_000, 3_600_000_000_000),
    default: Some("30s"),
    required: false,
    help: "After which an incomplete IPv4 datagram is dropped; IPv6 datagrams have twice as long (RFC 8200 §4.5)",
};

/// The bounds that these settings give.
pub(crate) fn limits(settings: &Settings, seed: u64) -> FragmentLimits {
    FragmentLimits {
        fragments: settings.number("fragments") as u32,
        bytes: settings.number("fragment_bytes"),
        timeout: settings.number("fragment_timeout"),
        ipv6: true,
        marked: true,
        seed,
    }
}
