//! External addresses of translators, and who answers for them.
//!
//! On a link somebody has to say where an address is (ARP, neighbour discovery). Nobody has the addresses of
//! a NAT's pool, so that the router before the NAT answers for those that lie in a network of its interface
//! there. Addresses that no interface of that router can answer for are an error where the NAT leads to a
//! link, unless the setting `routed` says that others send them here by their routes. A NAT without a router
//! before it is only warned of. A prefix that stands for another is always one that is routed here; where it
//! is that of the link, the router answers for it, too.

use ipnet::IpNet;

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::Finding;
use super::topology::search;
use slipstream_core::registry::{Attachment, Role};

/// The first input and output port of a NAT.
const INSIDE: [&str; 2] = ["inside", "0"];
const OUTSIDE: [&str; 2] = ["outside", "0"];

/// A router's port that leads to a NAT from inside.
struct Port {
    router: usize,
    number: usize,
    interface: Attachment,
}

/// For every stage of a plan the addresses that it is to answer for, with the number of the port. What nobody
/// can answer for is added to `findings`.
pub(crate) fn proxied(plan: &Plan, findings: &mut Vec<Finding>) -> Vec<Vec<(usize, IpNet)>> {
    let mut all = vec![Vec::new(); plan.stages.len()];
    let wires = Wires::of(plan);
    for (id, stage) in plan.stages.iter().enumerate() {
        let external = (stage.kind.properties.external)(&stage.settings);
        if external.is_empty() {
            continue;
        }
        let Some(ports) = ports_before(plan, &wires, id) else { continue };
        if leads_to_a_link(plan, &wires, id) && !is_routed(stage) {
            let wrong = external.iter().filter_map(|net| unanswered(stage, &ports, net));
            findings.extend(wrong.map(|finding| place(plan, stage, finding)).take(1));
        }
        for port in ports {
            if let Some(place) = all.get_mut(port.router) {
                place.extend(external.iter().map(|net| (port.number, *net)));
            }
        }
    }
    all
}

/// Says that others send packets to the external addresses of a stage by their routes.
fn is_routed(stage: &PlannedStage) -> bool {
    stage.settings.flag("routed") || stage.kind.properties.translation.is_none()
}

fn place(plan: &Plan, stage: &PlannedStage, (message, hint): (String, String)) -> Finding {
    let setting = if stage.settings.list("pool").is_empty() { "static" } else { "pool" };
    Finding::new(&plan.setting_span(stage, Some(setting)), message).hint(hint)
}

/// Remarks about NATs that stand in a wire, with no router before them: each one's name, and the
/// advice. Whoever sends to their addresses may know where they are, so that this is no error.
pub(crate) fn unanswered_notes(plan: &Plan) -> Vec<(String, String)> {
    let wires = Wires::of(plan);
    let note = |(id, stage): (usize, &PlannedStage)| {
        let external = (stage.kind.properties.external)(&stage.settings);
        let net = external.first().filter(|_| !is_routed(stage) && leads_to_a_link(plan, &wires, id))?;
        ports_before(plan, &wires, id)?.is_empty().then(|| {
            let text = format!(
                "nobody on the link answers for {}, an external address: no router leads to the NAT; lead packets from \
                 inside to it by a router whose interface has that address in its network, or say routed = true where \
                 others know the way",
                show(net)
            );
            (stage.name.clone(), text)
        })
    };
    plan.stages.iter().enumerate().filter_map(note).collect()
}

/// The reason for which nobody can reach external addresses, and advice; none where a router answers for
/// them, or there is none.
fn unanswered(stage: &PlannedStage, ports: &[Port], net: &IpNet) -> Option<(String, String)> {
    let name = &stage.name;
    let shown = show(net);
    let elsewhere = "or say routed = true where others send it here by their routes";
    let Port { interface, .. } = ports.first()?;
    let quiet = |port: &Port| !port.interface.answers;
    let connected = |port: &Port| port.interface.addresses.iter().find(|own| own.contains(net)).copied();
    let (at, nets) = (&interface.name, networks(interface, net));
    if ports.iter().any(quiet) {
        return None;
    }
    let Some(connected) = ports.iter().find_map(connected) else {
        return Some((
            format!(
                "nobody can reach {shown}, an external address of `{name}`: it is not in a network of interface `{at}`"
            ),
            format!("take addresses of {nets}, the interface's own among them, {elsewhere}"),
        ));
    };
    let ends = match connected {
        IpNet::V4(own) if own.prefix_len() < 31 => [own.network(), own.broadcast()]
            .into_iter()
            .find(|end| net.contains(&IpNet::from(std::net::IpAddr::V4(*end)))),
        _ => None,
    };
    ends.map(|end| {
        (
            format!(
                "{end}, of the external addresses {shown} of `{name}`, is no host's in {}",
                connected.trunc()
            ),
            "leave the network's first and last address out".to_owned(),
        )
    })
}

fn show(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// The networks of an interface whose IP version is that of `like`.
fn networks(interface: &Attachment, like: &IpNet) -> String {
    let same = interface.addresses.iter().filter(|net| net.addr().is_ipv4() == like.addr().is_ipv4());
    let nets: Vec<String> = same.map(|net| net.trunc().to_string()).collect();
    if nets.is_empty() { "a network that it has".to_owned() } else { nets.join(" or ") }
}

fn is(port: Option<&str>, names: [&str; 2]) -> bool {
    port.is_none_or(|port| names.contains(&port))
}

/// The wires of a plan by their ends, so that a search for each NAT need not look at all of them for each
/// stage that it comes to.
struct Wires<'a> {
    into: Vec<Vec<&'a Wire>>,
    out_of: Vec<Vec<&'a Wire>>,
}

impl<'a> Wires<'a> {
    fn of(plan: &'a Plan) -> Self {
        let none = || vec![Vec::new(); plan.stages.len()];
        let (mut into, mut out_of) = (none(), none());
        for wire in &plan.wires {
            for (all, stage) in [(&mut into, wire.to), (&mut out_of, wire.from)] {
                all.get_mut(stage).into_iter().for_each(|wires: &mut Vec<_>| wires.push(wire));
            }
        }
        Self { into, out_of }
    }

    fn at<'b>(all: &'b [Vec<&'a Wire>], stage: usize) -> impl Iterator<Item = &'a Wire> + use<'a, 'b> {
        all.get(stage).into_iter().flatten().copied()
    }
}

/// The ports of routers by which packets come to a NAT from inside; none if a router's can't be told.
fn ports_before(plan: &Plan, wires: &Wires<'_>, nat: usize) -> Option<Vec<Port>> {
    let port = |router: usize, wire: &Wire, stage: &PlannedStage| {
        let attachments = (stage.kind.properties.attachments)(&stage.settings)?;
        let name = wire.output.as_deref().unwrap_or("0");
        let named = attachments.iter().position(|i| i.name == name);
        let number = named.or_else(|| name.parse().ok())?;
        Some(Port { router, number, interface: attachments.get(number)?.clone() })
    };
    let mut ports = Vec::new();
    search(nat, |to, next| {
        let leads = |w: &&Wire| to != nat || is(w.input.as_deref(), INSIDE);
        for wire in Wires::at(&wires.into, to).filter(leads) {
            let Some(from) = plan.stages.get(wire.from) else { continue };
            if from.kind.properties.counts_hops {
                ports.push(port(wire.from, wire, from));
            } else if !matches!(from.role, Role::Source | Role::TwoWay) {
                next.push(wire.from);
            }
        }
    });
    ports.into_iter().collect()
}

/// Returns true if packets that leave a NAT to outside come to a link, before another router.
fn leads_to_a_link(plan: &Plan, wires: &Wires<'_>, nat: usize) -> bool {
    let mut found = false;
    search(nat, |from, next| {
        let leads = |w: &&Wire| from != nat || is(w.output.as_deref(), OUTSIDE);
        for wire in Wires::at(&wires.out_of, from).filter(leads) {
            let Some(to) = plan.stages.get(wire.to) else { continue };
            found |= to.kind.properties.faces_a_link;
            if !to.kind.properties.counts_hops {
                next.push(wire.to);
            }
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: &str = "lan 10.0.0.1/24 02:00:00:00:00:01";
    const WAN: &str = "wan 192.0.2.2/24 2001:db8::2/64 02:00:00:00:00:02";

    fn check(graph: &str) -> Result<(), String> {
        let plan = Plan::from_graph(graph, None, None, "".as_ref()).map_err(|e| e.to_string())?;
        plan.check().map_err(|e| e.to_string())
    }

    /// A gateway between two links, with these settings of its NAT.
    fn gateway(nat: &str) -> Result<(), String> {
        let counted = "r[wan] -> counter -> [inside]n";
        check(&format!(
            "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); n :: nat({nat}); \
             lan -> [lan]r :: router(interfaces=[\"{LAN}\", \"{WAN}\"]); r[lan] -> lan; {counted}; \
             n[outside] -> reframe -> wan; wan -> [outside]n; n[inside] -> [wan]r"
        ))
    }

    #[test]
    fn a_pool_that_nobody_can_reach_is_refused() {
        for right in [
            "pool=[192.0.2.2]",
            "pool=[192.0.2.8/29]",
            "pool=[192.0.2.2], static=[\"tcp 10.0.0.5:80 = 192.0.2.9:80\"]",
            "pool=[203.0.113.0/28], routed=true",
        ] {
            assert_eq!(gateway(right), Ok(()), "{right}");
        }
        for (wrong, parts) in [
            ("pool=[203.0.113.1]", ["nobody can reach 203.0.113.1", "addresses of 192.0.2.0/24, the"]),
            ("pool=[10.0.0.9]", ["not in a network of interface `wan`", "routed = true"]),
            ("pool=[192.0.2.0/23]", ["nobody can reach 192.0.2.0/23", "routed = true"]),
            (
                "pool=[192.0.2.2], static=[\"10.0.0.5 = 203.0.113.7\"]",
                ["nobody can reach 203.0.113.7", "of `n`"],
            ),
            ("pool=[192.0.2.248/29]", ["192.0.2.255", "first and last address"]),
        ] {
            let said = gateway(wrong).unwrap_err();
            assert!(parts.iter().all(|part| said.contains(part)), "{wrong}: {said}");
        }
    }

    /// A prefix that stands for another is routed here, and the router before it leads packets to it there.
    #[test]
    fn a_prefix_is_routed_here_and_known_to_the_router() {
        for external in ["2001:db8:1::/48", "2001:db8::/64"] {
            let graph = format!(
                "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); \
                 n :: nptv6(inside=fd00:1:2::/48, external={external}); \
                 lan -> [lan]r :: router(interfaces=[\"{LAN}\", \"{WAN}\"]); r[lan] -> lan; \
                 r[wan] -> counter -> n -> wan; wan -> [outside]n[inside] -> [wan]r"
            );
            let plan = Plan::from_graph(&graph, None, None, "".as_ref()).unwrap();
            plan.check().unwrap();
            let mut findings = Vec::new();
            let router = plan.stages.iter().position(|stage| stage.name == "r").unwrap();
            assert_eq!(proxied(&plan, &mut findings)[router], [(1, external.parse().unwrap())]);
            assert!(findings.is_empty() && unanswered_notes(&plan).is_empty(), "{external}");
        }
    }

    #[test]
    fn a_nat_without_a_router_is_warned_of() {
        let notes = |graph: &str| {
            let plan = Plan::from_graph(graph, None, None, "".as_ref()).unwrap();
            plan.check().unwrap();
            unanswered_notes(&plan)
        };
        let wire = |nat: &str| {
            notes(&format!(
                "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); \
                 lan -> n :: nat({nat}) -> wan; wan -> [outside]n[inside] -> lan"
            ))
        };
        assert_eq!(wire("pool=[192.0.2.2], routed=true"), []);
        let said = wire("pool=[192.0.2.2]");
        let [(stage, note)] = said.as_slice() else { panic!("{said:?}") };
        assert!(
            stage == "n" && note.contains("no router leads to the NAT") && note.contains("routed = true")
        );
        // Nobody asks where there is no link.
        assert_eq!(notes("in :: null -> nat(pool=[192.0.2.2]) -> out :: null"), []);
    }

    /// The router is told of what is behind it, by the numbers of its ports.
    #[test]
    fn a_router_learns_what_is_behind_its_ports() {
        let graph = format!(
            "in :: null -> [lan]r :: router(interfaces=[\"{LAN}\", \"{WAN}\"]); r[1] -> counter -> n :: \
             nat(pool=[192.0.2.8/30], static=[\"10.0.0.5 = 192.0.2.3\", \"udp 10.0.0.6:53 = 192.0.2.9:53\"]) -> out :: null"
        );
        let plan = Plan::from_graph(&graph, None, None, "".as_ref()).unwrap();
        let mut findings = Vec::new();
        let told = proxied(&plan, &mut findings);
        let router = plan.stage("r").unwrap();
        let nets = ["192.0.2.8/30", "192.0.2.3/32"].map(|net| (1, net.parse().unwrap()));
        assert_eq!(told[router], nets);
        assert!(findings.is_empty() && told.iter().map(Vec::len).sum::<usize>() == 2);
    }
}
