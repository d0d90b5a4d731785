//! A block of packets as the analyses see them: no bytes and no keys, but flow numbers, times and a few bits.

/// The packet counts in the sequence of IP packets.
pub(crate) const IN_IP: u8 = 1;
/// The packet counts in the sequence of TCP packets.
pub(crate) const IN_TCP: u8 = 2;
/// Of a TCP packet: a pure acknowledgement (ACK, no SYN, FIN or RST, no payload).
pub(crate) const PURE_ACK: u8 = 4;
/// Of a TCP packet: the ACK flag is set.
pub(crate) const ACK_FLAG: u8 = 8;
/// Of a TCP packet: a pure acknowledgement of more than the flow's previous packet, itself one, acknowledged.
pub(crate) const ADVANCES: u8 = 16;
/// The bits that say in which sequences a packet, and with it its whole flow, counts.
pub(crate) const CLASS: u8 = IN_IP | IN_TCP;

/// No flow has this number.
pub(crate) const NO_FLOW: u32 = u32::MAX;

/// A packet of a flow.
///
/// A flow counts in `ip`, in `tcp`, or, as nearly every TCP flow, in both. Fragments share the key of TCP
/// packets whose ports are 0 or not captured; such a packet gives two rows, one of the flow with the
/// fragments, for `ip`, and one of a flow without them, for `tcp`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Arrival in nanoseconds, clamped: never less than in an earlier row.
    pub(crate) time: u64,
    /// Arrival in nanoseconds as captured.
    pub(crate) captured: u64,
    /// Its flow's number, dense from 0.
    pub(crate) flow: u32,
    /// The bits above.
    pub(crate) bits: u8,
}

/// Rows in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) rows: Vec<Row>,
    /// Flows numbered so far; every row's flow is below.
    pub(crate) flows: usize,
}
