//! Link types: what a captured frame begins with.

/// The link-layer header type of a captured frame, by its number in pcap and pcapng files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// 1: Ethernet.
    Ethernet,
    /// 0 and 108: BSD loopback; four bytes of address family, then IP.
    Loopback,
    /// 12, 14, 101, 228, 229: raw IP, the version in the first nibble.
    RawIp,
    /// 113: Linux cooked capture v1.
    LinuxSll,
    /// 276: Linux cooked capture v2.
    LinuxSll2,
    /// Any other; frames of it are passed on untouched.
    Other(u16),
}

impl LinkType {
    /// From the number in a capture file.
    #[must_use]
    pub const fn from_number(n: u16) -> Self {
        match n {
            1 => Self::Ethernet,
            0 | 108 => Self::Loopback,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            113 => Self::LinuxSll,
            276 => Self::LinuxSll2,
            n => Self::Other(n),
        }
    }
}
