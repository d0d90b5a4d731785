//! The reasons for which stages of a type drop packets, so that monitoring knows them before the first drop.

use super::{af_packet, plumbing, ports, shm, slice};
use crate::functions::{l2fwd, nat, router, stages};
use crate::pipeline::registry::{Ports, StageType};
use crate::stage::DropReason;

/// The reasons of a type in the order of their numbers: those of the stage itself, and those of output ports
/// that may lead nowhere. A stage may still count others, which its report then has.
pub(crate) fn drop_reasons(kind: &StageType) -> Vec<DropReason> {
    let mut all = own(kind.name).to_vec();
    if let Ports::These(ports) = kind.outputs {
        all.extend(ports.iter().filter_map(|p| p.unconnected));
    }
    all.sort_unstable_by_key(|r| *r as u8);
    all.dedup();
    all
}

/// What the stages themselves drop packets for.
fn own(name: &str) -> &'static [DropReason] {
    use DropReason::{
        Blackhole, Denied, Discarded, DuplicateToken, ForgedToken, HopLimit, LateToken, Local, Malformed,
        MangledSlice, Marked, Martian, NoBackend, NoMapping, NoPort, NoRoute, NotSent, OtherStation,
        SamePort, StaleToken, TableFull, TooBig, Unresolved, Unsupported,
    };
    const TYPES: &[(&str, &[DropReason])] = &[
        (af_packet::AF_PACKET.name, &[NotSent]),
        (ports::PCAP.name, &[NotSent]),
        (shm::SHM.name, &[NotSent]),
        (stages::BALANCER.name, &[Malformed, NoBackend, TooBig, Unsupported]),
        (crate::functions::firewall::FIREWALL.name, &[Denied, TableFull]),
        (l2fwd::L2FWD.name, &[Malformed, Martian, NoRoute, SamePort, Unsupported]),
        (nat::NAT.name, &[Denied, Malformed, NoMapping, NoPort, TableFull, Unsupported]),
        (
            router::ROUTER.name,
            &[
                Blackhole,
                HopLimit,
                Local,
                Malformed,
                Martian,
                NoRoute,
                OtherStation,
                TableFull,
                TooBig,
                Unresolved,
                Unsupported,
            ],
        ),
        (plumbing::DISCARD.name, &[Discarded]),
        (slice::SLICE.name, &[Marked]),
        (slice::SPLICE.name, &[ForgedToken, StaleToken, LateToken, DuplicateToken, MangledSlice, TooBig]),
    ];
    TYPES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, reasons)| reasons)
}

#[cfg(test)]
mod tests {
    use crate::pipeline::stage_type;

    #[test]
    fn reasons_of_a_stage_and_of_its_open_ports() {
        let names = |kind: &str| -> Vec<_> {
            stage_type(kind).unwrap().drop_reasons().into_iter().map(|r| r.name()).collect()
        };
        assert_eq!(names("firewall"), ["unconnected", "denied", "table_full"]);
        assert_eq!(names("meter"), ["rate_limited"]);
        assert!(names("nat").contains(&"table_full"));
        assert!(names("reframe").is_empty());
    }
}
