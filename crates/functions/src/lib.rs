//! Network functions: L2 forwarding, routing, filtering, translation, metering, balancing, counting.
//!
//! Each is written once, as a [`NetworkFunction`], and becomes a stage through [`PerTrain`] or [`PerPacket`].
//! Its tables know neither frames nor stages.
//!
//! Read it in this order:
//!
//! 1. [`NetworkFunction`]: what a function is asked, and when a train shares an answer.
//! 2. [`l2fwd`], the shortest one: its table ([`mac_table`]), its decision, its settings and its stage type
//!    in one folder.
//! 3. [`router`] with [`lpm`] and [`routes`]; [`firewall`] with [`conntrack`]; [`nat`].
//! 4. [`meter`], [`balancer`] with [`maglev`] and [`encap`], [`flow_stats`] with [`ipfix`]; their stage types
//!    are in [`stages`].
//! 5. `reassembly`: datagrams are decided about whole; `answer`, [`icmp`], `fragment`: packets that functions
//!    make.
//!
//! There is no feature. Unsafe code compares four rules of the firewall at a time, and nothing else. It needs
//! Rust 1.95.

mod answer;
mod background;
pub mod balancer;
mod bucket;
pub mod conntrack;
pub mod datagrams;
pub mod encap;
pub mod firewall;
pub mod flow_stats;
mod fragment;
mod function;
pub mod icmp;
pub mod ipfix;
pub mod l2fwd;
pub mod lpm;
pub mod mac_table;
pub mod maglev;
mod martian;
pub mod meter;
pub mod nat;
mod packet;
mod reassembly;
pub mod router;
pub mod routes;
mod runner;
mod sound;
pub mod stages;
mod steps;
pub mod tcp_state;
#[cfg(test)]
mod test_packets;
mod text;

pub use bucket::{MAX_TOKENS, RateLimiter};
pub use slipstream_core::packet::{headers_of, is_ethernet, key_of};
pub use slipstream_core::reads::Reads;
pub use slipstream_core::table;

pub use function::{FunctionContext, LeavesAs, NetworkFunction, NewPacket, PerPacket, PerTrain};
pub use reassembly::FragmentLimits;

use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::Stage;
use slipstream_wire::field as bytes;

/// The setting that says which of the two wrappers makes a stage of a function.
pub const DECIDE: Setting = Setting {
    name: "decide",
    kind: Kind::Choice(&["train", "packet"]),
    default: Some("train"),
    required: false,
    help: "Once for all packets of a train that share the decision, or for every packet",
};

/// A function as the stage that the settings ask for.
pub fn stage_of<F>(function: F, settings: &Settings) -> Box<dyn Stage + Send>
where
    F: NetworkFunction + Send + 'static,
{
    match settings.text("decide") {
        "packet" => Box::new(PerPacket::new(function)),
        _ => Box::new(PerTrain::new(function)),
    }
}
