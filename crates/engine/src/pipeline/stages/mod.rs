//! The stage types that are no network functions: ports, reframe, and what leads packets about.

mod af_packet;
mod paced;
mod plumbing;
mod ports;
mod reframe;
mod vlan;

pub use ports::port_of;

use super::registry::StageType;
use crate::functions::{firewall, l2fwd, nat, router, stages};

/// Names of the types whose packets come or go by the wall clock. One that has inputs and outputs may stand at both ends.
pub(crate) const LIVE: &[&str] = &[af_packet::AF_PACKET.name, paced::PACED.name];

/// All stage types, by group and name.
pub(crate) const ALL: &[StageType] = &[
    af_packet::AF_PACKET,
    ports::NULL,
    paced::PACED,
    ports::PCAP,
    ports::SYNTH,
    reframe::REFRAME,
    stages::BALANCER,
    firewall::FIREWALL,
    stages::FLOW_STATS,
    l2fwd::L2FWD,
    stages::METER,
    nat::NAT,
    router::ROUTER,
    plumbing::COUNTER,
    plumbing::DISCARD,
    plumbing::LIMIT,
    plumbing::SWITCH,
    plumbing::TAP,
    plumbing::TEE,
    vlan::VLAN_POP,
    vlan::VLAN_PUSH,
];
