//! Counters and drop reasons of a NAT.

/// The reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// No external port is left for the host (RFC 4787: never overload one).
    NoPort,
    /// The session table is full.
    SessionsFull,
    /// The mapping table is full.
    MappingsFull,
    /// The inside host has as many sessions as one may have.
    HostSessions,
    /// The mapping has as many sessions as one may have.
    MappingSessions,
    /// The inside host has as many mappings of the protocol as one may have.
    HostMappings,
    /// From outside to an external address, and nobody inside has that port.
    NoMapping,
    /// From outside to a mapping that is not open to its sender.
    Filtered,
    /// A reply, or a TCP segment that can't begin a connection, of no session.
    NoSession,
    /// A protocol without ports that can be translated, from a host without a static address mapping.
    Protocol,
    /// From inside to an external address, and hairpinning is off.
    Hairpin,
    /// An ICMP error about a packet of no session.
    UnknownError,
    /// A later fragment by itself: it has no ports.
    UnknownFragment,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::NoPort,
        Self::SessionsFull,
        Self::MappingsFull,
        Self::HostSessions,
        Self::MappingSessions,
        Self::HostMappings,
        Self::NoMapping,
        Self::Filtered,
        Self::NoSession,
        Self::Protocol,
        Self::Hairpin,
        Self::UnknownError,
        Self::UnknownFragment,
    ];

    /// A name for reports, in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoPort => "no_port",
            Self::SessionsFull => "sessions_full",
            Self::MappingsFull => "mappings_full",
            Self::HostSessions => "host_sessions",
            Self::MappingSessions => "mapping_sessions",
            Self::HostMappings => "host_mappings",
            Self::NoMapping => "no_mapping",
            Self::Filtered => "filtered",
            Self::NoSession => "no_session",
            Self::Protocol => "protocol",
            Self::Hairpin => "hairpin",
            Self::UnknownError => "unknown_error",
            Self::UnknownFragment => "unknown_fragment",
        }
    }
}

/// Counters of a NAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatCounters {
    drops: [u64; DropReason::ALL.len()],
    /// Sessions begun.
    pub sessions_opened: u64,
    /// Sessions that came back from a saved state.
    pub sessions_restored: u64,
    /// Sessions ended, of those that were begun and of those that came back.
    pub sessions_closed: u64,
    /// Dynamic mappings made.
    pub mappings_made: u64,
    /// Dynamic mappings given up.
    pub mappings_released: u64,
    /// Packets from outside that a mapping let in, of no session.
    pub unsolicited: u64,
}

impl NatCounters {
    /// Packets (or trains, where one decision is for a train) dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }

    pub(super) fn count(&mut self, reason: DropReason) {
        if let Some(count) = self.drops.get_mut(reason as usize) {
            *count += 1;
        }
    }
}
