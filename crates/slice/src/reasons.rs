//! The reasons for which only slicers and splicers drop packets.

use slipstream_core::stage::{DropReason, OwnReason};

/// It carries the mark of sliced packets, and came from the network.
pub const MARKED: DropReason = own(0, "marked");
/// Its token was never made, or for another packet.
pub const FORGED_TOKEN: DropReason = own(1, "forged_token");
/// The entry of its token holds a later payload.
pub const STALE_TOKEN: DropReason = own(2, "stale_token");
/// Its payload was given up before it came for it.
pub const LATE_TOKEN: DropReason = own(3, "late_token");
/// Its payload left with another packet.
pub const DUPLICATE_TOKEN: DropReason = own(4, "duplicate_token");
/// The bytes around its token are not those that were sliced.
pub const MANGLED_SLICE: DropReason = own(5, "mangled_slice");

const fn own(place: u8, name: &'static str) -> DropReason {
    DropReason::Own(OwnReason::new(place, name))
}
