//! The stage types that are no network functions: ports, reframe, and what leads packets about.

mod plumbing;
mod ports;
mod reframe;
mod vlan;

pub use ports::port_of;

use super::registry::StageType;
use crate::functions::{firewall, l2fwd, nat, router, stages};

/// All stage types, by group and name.
pub(crate) const ALL: &[StageType] = &[
    ports::NULL,
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
