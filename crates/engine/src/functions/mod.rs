//! Network functions: L2 forwarding, routing, filtering, translation, metering, balancing, counting.
//!
//! Each is written once, as a [`NetworkFunction`], and becomes a stage through [`PerTrain`] or [`PerPacket`]. What it looks
//! things up in knows neither frames nor stages: [`lpm`] finds routes, [`firewall`] the rule that decides about a packet.

mod bytes;
pub mod firewall;
mod function;
pub mod lpm;
pub mod nat;
mod packet;
pub mod table;
pub mod tcp_state;
#[cfg(test)]
mod test_packets;

pub use function::{Made, NetworkFunction, PerPacket, PerTrain, Reads, Scene};
pub use packet::{headers_of, is_ethernet, key_of};

use crate::pipeline::{Kind, Setting, Settings};
use crate::stage::Stage;

/// The setting that says which of the two wrappers makes a stage of a function.
pub(crate) const DECIDE: Setting = Setting {
    name: "decide",
    kind: Kind::Choice(&["train", "packet"]),
    default: Some("train"),
    required: false,
    help: "Once for all packets of a train that share the decision, or for every packet",
};

/// A function as the stage that the settings ask for.
pub(crate) fn stage_of<F>(function: F, settings: &Settings) -> Box<dyn Stage + Send>
where
    F: NetworkFunction + Send + 'static,
{
    match settings.text("decide") {
        "packet" => Box::new(PerPacket::new(function)),
        _ => Box::new(PerTrain::new(function)),
    }
}
