//! The stage types that are no network functions: ports, reframe, and what leads packets about.

mod delay;
mod plumbing;
#[cfg(test)]
mod reasons;
mod reframe;
mod switch;
mod vlan;

pub(crate) use reframe::with_heavy_flows;
pub use slipstream_io::ports::{port_names, port_of};

use slipstream_core::registry::{Registry, StageType};
use slipstream_functions::{firewall, l2fwd, nat, router, stages};
use slipstream_io::{af_packet, af_xdp, paced, ports, shm, tap};
use slipstream_measure as measure;
use slipstream_slice as slice;

/// All stage types, by group and name.
const ALL: &[StageType] = &[
    af_packet::AF_PACKET,
    af_xdp::AF_XDP,
    ports::NULL,
    paced::PACED,
    ports::PCAP,
    shm::SHM,
    ports::SYNTH,
    tap::TAP_INTERFACE,
    reframe::REFRAME,
    stages::BALANCER,
    firewall::FIREWALL,
    stages::FLOW_STATS,
    l2fwd::L2FWD,
    stages::METER,
    nat::NAT,
    stages::NPTV6,
    router::ROUTER,
    plumbing::COUNTER,
    delay::DELAY,
    plumbing::DISCARD,
    plumbing::LIMIT,
    measure::MEASURE,
    slice::SLICE,
    slice::SPLICE,
    plumbing::SWITCH,
    plumbing::TAP,
    plumbing::TEE,
    vlan::VLAN_POP,
    vlan::VLAN_PUSH,
];

/// All built-in stage types, by group and name.
#[must_use]
pub fn stage_types() -> &'static [StageType] {
    ALL
}

/// The built-in type of this name.
#[must_use]
pub fn stage_type(name: &str) -> Option<&'static StageType> {
    ALL.iter().find(|t| t.name == name)
}

/// A registry of the built-in types, to register others with: see `examples/own_stage.rs`.
///
/// ```
/// use slipstream::pipeline::{Group, built_in};
///
/// let registry = built_in();
/// let ports: Vec<_> = registry.types().iter().filter(|t| t.group == Group::Port).map(|t| t.name).collect();
/// assert_eq!(ports, ["af_packet", "af_xdp", "null", "paced", "pcap", "shm", "synth", "tap_interface"]);
/// assert_eq!(registry.get("reframe").map(|t| t.settings[0].name), Some("hold"));
/// ```
#[must_use]
#[allow(unsafe_code)]
pub fn built_in() -> Registry {
    // SAFETY: these stages keep a packet's `BufId` beside the packet and nowhere else, and forget it when the
    // packet goes on or is freed. What slicers and splicers share is on one thread (`Common::uses`).
    unsafe { Registry::of_shared(ALL) }
}
