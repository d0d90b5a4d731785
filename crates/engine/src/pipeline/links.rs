//! Links of a plan: which stages receive from the same interface, and how long the packets are that routers
//! send there.

use std::collections::BTreeMap;

use super::config::{Plan, PlannedStage};
use super::topology::search;
use slipstream_core::registry::Role;

/// The longest packets that a router sends to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongestPackets {
    /// Name of the port by which they leave.
    pub port: String,
    /// Name of the router.
    pub router: String,
    /// Name of the router's interface.
    pub interface: String,
    /// Its MTU, in bytes of IP packet.
    pub mtu: u32,
}

impl Plan {
    /// The longest packets that come from routers to the links of the plan's ports: of several interfaces
    /// that lead to a port those of the largest MTU. Routers answer what is longer than the MTU of their own
    /// interface; a link that takes less loses packets, and nobody tells their senders.
    #[must_use]
    pub fn longest_packets(&self) -> Vec<LongestPackets> {
        let mut longest: BTreeMap<usize, LongestPackets> = BTreeMap::new();
        for (id, stage) in self.stages.iter().enumerate().filter(|(_, s)| s.kind.properties.counts_hops) {
            let interfaces = (stage.kind.properties.attachments)(&stage.settings).unwrap_or_default();
            for (number, interface) in interfaces.iter().enumerate() {
                for port in self.links_behind(id, &[&interface.name, &number.to_string()]) {
                    let Some(name) = self.stages.get(port).map(|port| port.name.clone()) else { continue };
                    let (router, mtu) = (stage.name.clone(), interface.mtu);
                    let new = LongestPackets { port: name, router, interface: interface.name.clone(), mtu };
                    let known = longest.entry(port).or_insert_with(|| new.clone());
                    if known.mtu < mtu {
                        *known = new;
                    }
                }
            }
        }
        longest.into_values().collect()
    }

    /// The ports to links that packets from an output of a router come to, before another router.
    fn links_behind(&self, router: usize, output: &[&str]) -> Vec<usize> {
        let mut links = Vec::new();
        search(router, |from, next| {
            let leads = |name: &Option<String>| output.contains(&name.as_deref().unwrap_or("0"));
            for wire in self.wires.iter().filter(|w| w.from == from && (from != router || leads(&w.output))) {
                let Some(to) = self.stages.get(wire.to) else { continue };
                if to.kind.properties.faces_a_link {
                    links.push(wire.to);
                } else if !to.kind.properties.counts_hops {
                    next.push(wire.to);
                }
            }
        });
        links
    }
}

/// Remarks about stages that receive from an interface of which another stage gets all packets as well: the
/// later one's name, and the advice. Who only looks on may want that.
pub(crate) fn received_twice_notes(plan: &Plan) -> Vec<(String, String)> {
    let mut first: BTreeMap<&str, &PlannedStage> = BTreeMap::new();
    let mut notes = Vec::new();
    // Ports that can't share an interface have it, or queues of it, for themselves.
    let can_share = |s: &&PlannedStage| s.kind.settings.iter().any(|setting| setting.name == "fanout");
    for stage in plan.stages.iter().filter(can_share).filter(|s| s.role != Role::Sink) {
        let interface = stage.settings.text("interface");
        let other = *first.entry(interface).or_insert(stage);
        let group = |stage: &PlannedStage| stage.settings.optional_number("fanout");
        if other.name == stage.name || group(stage).is_some() && group(stage) == group(other) {
            continue;
        }
        let text = format!(
            "receives from interface `{interface}`, and so does `{}`: each gets every packet. Where one of them is for \
             another interface, name that; to share the packets, give both the same `fanout`",
            other.name
        );
        notes.push((stage.name.clone(), text));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(graph: &str) -> Plan {
        Plan::from_graph(graph, None, None, "".as_ref()).unwrap()
    }

    #[test]
    fn links_are_held_against_the_routers_that_send_there() {
        let router = |lan: &str| {
            format!(
                "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); lan -> [lan]r :: router(interfaces=[\
                 \"lan 10.0.0.1/24 02:00:00:00:00:01 mtu 9000\", \"wan 192.0.2.2/24 02:00:00:00:00:02\"]); {lan} \
                 r[1] -> [inside]n :: nat(pool=[192.0.2.2])[outside] -> reframe -> wan; wan -> [outside]n[inside] -> [wan]r"
            )
        };
        let told = |lan: &str| -> Vec<(String, String, u32)> {
            plan(&router(lan)).longest_packets().into_iter().map(|l| (l.port, l.interface, l.mtu)).collect()
        };
        let all = [("lan".into(), "lan".into(), 9000), ("wan".into(), "wan".into(), 1500)];
        assert_eq!(told("r[lan] -> lan;"), all);
        assert_eq!(told("r[lan] -> discard;"), all[1..]);
        assert_eq!(
            plan("af_packet(interface=eth1) -> reframe -> af_packet(interface=eth2)").longest_packets(),
            []
        );
    }

    #[test]
    fn an_interface_that_two_stages_receive_from_is_remarked() {
        let notes = |a: &str, b: &str| {
            received_twice_notes(&plan(&format!(
                "a :: {a}; b :: {b}; a -> x :: reframe -> b; b -> y :: reframe -> a"
            )))
        };
        let on = |interface: &str| format!("af_packet(interface={interface})");
        assert_eq!(notes(&on("eth1"), &on("eth2")), []);
        let said = notes(&on("eth1"), &on("eth1"));
        let [(stage, note)] = said.as_slice() else { panic!("{said:?}") };
        assert!(stage == "b" && note.contains("`eth1`, and so does `a`"), "{note}");
        let fanout = |group: &str| on(&format!("eth1, fanout={group}"));
        assert_eq!(notes(&fanout("7"), &fanout("7")), []);
        assert_eq!(notes(&fanout("7"), &fanout("8")).len(), 1);
        let queues = |queues: &str| format!("af_xdp(interface=eth1, queues={queues})");
        assert_eq!(notes(&queues("0"), &queues("1")), []);
        // Out by where packets come in.
        let one = "a :: af_packet(interface=eth1) -> reframe -> b :: af_packet(interface=eth1)";
        assert_eq!(received_twice_notes(&plan(one)), []);
    }
}
