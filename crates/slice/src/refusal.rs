//! Why a token gets no payload, and what became of payloads.

/// Why a token gets no payload. [`Refusal::Elsewhere`] apart, the packet is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Nobody made such a token: it names no entry, its tag is wrong, or its generation is yet to come.
    #[error("the token is forged")]
    Forged,
    /// The entry holds a later payload.
    #[error("the entry of the token holds a later payload")]
    Stale,
    /// The payload has waited too long and is gone.
    #[error("the payload is gone: the packet took too long")]
    Late,
    /// The payload left with a packet already.
    #[error("the payload left with another packet")]
    Duplicate,
    /// The packet was said to be dropped.
    #[error("the packet was reported as dropped")]
    Released,
    /// The bytes around the token are not those that were sliced: too short, or with a payload before the
    /// token.
    #[error("the packet is not the one that was sliced")]
    Mangled,
    /// The packet is of another flow than the payload, and tokens are bound to flows.
    #[error("the packet is of another flow than the payload")]
    Swapped,
    /// A token stands in the packet where it brings nothing back, and would leave.
    #[error("the packet carries a token where none belongs")]
    Hidden,
    /// The whole packet would be longer than an IP packet can be, or than the way out allows.
    #[error("the whole packet is too long")]
    Oversize,
    /// The payload waits with this worker, to which the packet has to be handed.
    #[error("the payload waits with worker {0}")]
    Elsewhere(u32),
}

/// Counters of entries' fates: all count payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounters {
    /// Parked.
    pub parked: u64,
    /// Gone with their packets.
    pub spliced: u64,
    /// Given up because the packet was reported as dropped.
    pub released: u64,
    /// Given up after `ttl` turns of the index.
    pub expired: u64,
    /// Given up after the time bound.
    pub overdue: u64,
    /// Given up by a reset.
    pub reset: u64,
    /// Packets that met an entry in use and could not be sliced.
    pub full: u64,
    /// Tokens without a payload that are out now: part of `waiting`.
    pub empties: u32,
    /// Waiting at most at a time.
    pub most_waiting: u32,
    /// Waiting now.
    pub waiting: u32,
}
