//! The stage types that are no network functions: ports, reframe, and what leads packets about.

mod af_packet;
mod measure;
mod outermost;
mod paced;
mod plumbing;
mod ports;
mod reasons;
mod reframe;
mod shm;
mod slice;
mod vlan;

pub use ports::port_of;
pub(crate) use reasons::drop_reasons;

use ipnet::IpNet;

use super::registry::StageType;
use super::settings::Settings;
use crate::functions::router::Interface;
use crate::functions::{firewall, l2fwd, nat, router, stages};

/// Names of the types whose packets come or go by the wall clock. One that has inputs and outputs may stand at both ends.
pub(crate) const LIVE: &[&str] = &[af_packet::AF_PACKET.name, paced::PACED.name, shm::SHM.name];

/// Name of the type that parks payloads.
pub(crate) const SLICE: &str = slice::SLICE.name;
/// Name of the type that brings them back.
pub(crate) const SPLICE: &str = slice::SPLICE.name;

/// Why a stage of this type and with these settings can't do with packets whose payload waits elsewhere, if it can't.
pub(crate) fn needs_payload(kind: &StageType, settings: &Settings) -> Option<&'static str> {
    if kind.name == reframe::REFRAME.name {
        if settings.flag("tcp_order") {
            return Some("`tcp_order` adds up the lengths of payloads");
        }
        if settings.text("tunnel") == "inner" {
            return Some("`tunnel=inner` reads headers that are payload of the outer packet");
        }
    }
    // What it sends is more packets with one payload among them.
    (kind.name == plumbing::TEE.name).then_some("it multiplies packets, and a payload comes back once")
}

/// Whether a stage of this type gives packets other addresses or ports.
pub(crate) fn rewrites_flows(kind: &StageType, settings: &Settings) -> bool {
    kind.name == nat::NAT.name || kind.name == stages::BALANCER.name && settings.text("mode") == "nat"
}

/// Whether packets that come by a stage of this type again and again are dropped in the end.
pub(crate) fn counts_hops(kind: &StageType) -> bool {
    kind.name == router::ROUTER.name
}

/// Whether a stage of this type may send on more packets than it took.
pub(crate) fn copies(kind: &StageType) -> bool {
    kind.name == plumbing::TEE.name || kind.name == l2fwd::L2FWD.name
}

/// External addresses of a stage that translates, which somebody has to answer for.
pub(crate) fn external(kind: &StageType, settings: &Settings) -> Vec<IpNet> {
    if kind.name == nat::NAT.name { nat::external(settings) } else { Vec::new() }
}

/// The interfaces of a router, by the numbers of its ports; none where they can't be read, or of another
/// stage.
pub(crate) fn interfaces(kind: &StageType, settings: &Settings) -> Option<Vec<Interface>> {
    counts_hops(kind).then(|| router::interfaces(settings.texts("interfaces")).ok()).flatten()
}

/// Says that packets which leave by a stage of this type come to a link, where stations ask each other for
/// addresses.
pub(crate) fn faces_a_link(kind: &StageType) -> bool {
    kind.name == af_packet::AF_PACKET.name
}

/// All stage types, by group and name.
pub(crate) const ALL: &[StageType] = &[
    af_packet::AF_PACKET,
    ports::NULL,
    paced::PACED,
    ports::PCAP,
    shm::SHM,
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
    measure::MEASURE,
    slice::SLICE,
    slice::SPLICE,
    plumbing::SWITCH,
    plumbing::TAP,
    plumbing::TEE,
    vlan::VLAN_POP,
    vlan::VLAN_PUSH,
];
