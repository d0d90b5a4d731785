//! The cost of moving packets between a network card and a server, on paper: bytes over PCI Express and to
//! memory, the waiting times that follow from queueing, and the part of it all that slicing saves. No packet
//! is touched here; every number that is assumed is a field with a default and the source of it.
//!
//! It is the model beside §VI-B and §VI-D of the slicing paper (NFSlicer): [`pcie`] is its Fig. 15,
//! [`memory`] Fig. 14, [`latency`] a prediction beside Fig. 10, [`switch`] Fig. 9. [`sram`] says by Little's
//! law how many payloads must have room at a time.
//!
//! Sizes of frames are those on the wire, frame check sequence included, as the paper counts them: 64 to 1518
//! bytes.

pub mod latency;
pub mod memory;
pub mod pcie;
pub mod sram;
pub mod switch;

/// Smallest Ethernet frame, in bytes, frame check sequence included (IEEE 802.3).
pub const SMALLEST_FRAME: u32 = 64;
/// Bytes of the frame check sequence, which stay on the network card.
pub const FRAME_CHECK: u32 = 4;

/// Bytes on the wire of a sliced frame: `headers` (Ethernet to TCP or UDP), the `token` that stands for the
/// payload, the frame check sequence, and padding up to the smallest frame.
///
/// ```
/// use slipstream_model::data_movement::sliced_frame;
///
/// // TCP without options: 54 bytes of headers, 8 of token. The paper's 64 bytes, and 2 more.
/// assert_eq!(sliced_frame(54, 8), 66);
/// assert_eq!(sliced_frame(42, 8), 64);
/// ```
#[must_use]
pub fn sliced_frame(headers: u32, token: u32) -> u32 {
    headers.saturating_add(token).saturating_add(FRAME_CHECK).max(SMALLEST_FRAME)
}
