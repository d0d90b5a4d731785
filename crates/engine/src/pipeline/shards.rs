//! Pipelines replicated: a plan for each shard, or the reason why there can't be several.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::config::{Plan, PlannedStage};
use super::diagnostics::Finding;
use super::{Change, Diagnostics};
use crate::runtime::shards::{By, External, Externals, Hash, Hosts, PortRange, Steer};
use slipstream_core::operate::{EntryEnds, Update};
use slipstream_core::registry::{
    Group, Hindrance, Meets, Ports, Properties, Role, Shared, Sharing, Translation,
};
use slipstream_core::settings::{Settings, Value};

/// A source of a plan in shards.
#[derive(Clone, Debug)]
pub(crate) struct ShardedSource {
    pub(crate) by: By,
    /// First: only the first shard has it; else all have.
    pub(crate) sharing: Sharing,
    /// Packets stay on the shard whose queue they came by.
    pub(crate) stays: bool,
    /// All shards hear what neighbours say here, since their routers ask them.
    pub(crate) neighbours: bool,
}

/// A plan for several shards.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    pub(crate) plans: Vec<Plan>,
    /// By the names of stages.
    pub(crate) sources: Vec<(String, ShardedSource)>,
    pub(crate) externals: Externals,
    /// Of a pipeline with a NAT: its name and the hosts behind it; no host: all.
    nat: Option<(String, Vec<IpNet>)>,
    /// The hash by which connections are led to shards.
    pub(crate) hash: Hash,
    /// Name of each stage, and the packets that it needs to meet on one shard.
    pub needs: Vec<(String, Meets)>,
}

impl ShardPlan {
    /// The number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.plans.len()
    }

    /// Tells the shard that a saved entry is for, since the packets that it is for are led there; none where
    /// they would be led to two. Of `hosts` a NAT has sessions or mappings, or [a shard](Self::inside_hosts)
    /// has told so: where its settings don't say who is inside, these are.
    pub fn owners<'a>(&'a self, hosts: &'a HashSet<IpAddr>) -> impl Fn(&EntryEnds) -> Option<usize> + 'a {
        let inside = self.nat.as_ref().map(|(_, inside)| Hosts { translated: inside, known: hosts });
        let steer = Steer::new(self.plans.len() as u32, By::Connection, self.hash, self.externals.clone());
        move |ends| steer.of_entry(ends, inside).map(|shard| shard as usize)
    }

    /// Tells of entries of a shard, by its number, which of their ends is behind a NAT where its settings
    /// don't say so: for [`owners`](Self::owners), of however many shards. None where there is no NAT.
    pub fn inside_hosts(&self) -> Option<impl Fn(usize, &EntryEnds) -> Option<IpAddr>> {
        let (_, inside) = self.nat.as_ref()?;
        let steer = Steer::new(self.plans.len() as u32, By::Connection, self.hash, self.externals.clone());
        Some(move |shard, ends: &EntryEnds| steer.inside_host(ends, inside, u32::try_from(shard).ok()?))
    }

    /// As [`Plan::updates`], for each shard: what is to be handed to it where `new` takes the place of this.
    ///
    /// # Errors
    /// Everything that is wrong, or can't change while shards run.
    pub fn updates(&self, new: &Self, changes: &[Change]) -> Result<Vec<Vec<(String, Update)>>, Diagnostics> {
        let (old, next) = (self.externals.get(), new.externals.get());
        if let (Some((name, _)), Some(plan)) = (&new.nat, new.plans.first())
            && (old.ranges != next.ranges || old.identifiers != next.identifiers)
        {
            let message = format!("`{name}`: other ports would belong to other shards than their sessions");
            let span = plan.stage(name).and_then(|id| plan.stages.get(id)).map_or(0..0, |s| s.span.clone());
            return plan
                .fail_on(vec![Finding::new(&span, message).hint("start the pipeline anew for this")])
                .map(|()| Vec::new());
        }
        new.plans.iter().map(|plan| plan.updates(changes)).collect()
    }

    /// Has packets led as `new` says from now on, which takes this one's place: called before its
    /// [updates](Self::updates) are handed over.
    pub fn follow(&mut self, new: Self) {
        self.externals.set(new.externals.get());
        let externals = self.externals.clone();
        *self = Self { externals, ..new };
    }

    /// Each source, and by what its packets are led to shards, in words.
    pub fn steering(&self) -> impl Iterator<Item = (&str, String)> {
        self.sources.iter().map(|(name, source)| {
            let by = match source.by {
                By::Connection => "by addresses and ports, both directions alike",
                By::Inside => "by the inside host's address",
                By::Outside => {
                    "by the external port, of which each shard has a range; else by the inside host's address"
                }
            };
            let text = match source.sharing {
                Sharing::Kernel => format!("the kernel spreads, {by}"),
                _ if source.stays => {
                    "each shard has queues of the device, and what comes by them (steer=false)".to_owned()
                }
                Sharing::Queues => format!(
                    "each shard has queues of the interface, whose own hash is another: about (N - 1) / N of the packets \
                     are handed over, {by}"
                ),
                Sharing::Rss => format!(
                    "each shard has queues of the device; what comes by another one's is handed over, {by}: little where \
                     the device spreads by RSS, everything that isn't the first shard's where it has one queue"
                ),
                Sharing::First | Sharing::Not => format!("the first shard receives and hands over, {by}"),
            };
            let all = if source.neighbours { "; ARP and neighbour discovery go to all shards" } else { "" };
            (name.as_str(), format!("{text}{all}"))
        })
    }
}

impl Plan {
    /// A plan for each of so many shards, which share nothing: packets are led so that those which must meet
    /// come to the same one.
    ///
    /// # Errors
    /// A stage needs packets that can't be led to one shard, or a port can't be shared; the text says which
    /// and what would help.
    pub fn in_shards(&self, shards: usize) -> Result<ShardPlan, Diagnostics> {
        if !self.stages.iter().any(|s| s.kind.live()) {
            let message = "shards are for live ports, such as af_packet";
            return Err(self.error(format!("{message}; a replay takes --workers N")));
        }
        let hindered = self.stages.iter().filter_map(|stage| self.may_be_replicated(stage).err());
        let mut findings: Vec<Finding> = hindered.collect();
        let nat = self.the_nat(&mut findings);
        let external = nat.map(|(_, stage, by)| external(stage, &by)).unwrap_or_default();
        let sources = self.led_sources(nat.map(|(n, _, by)| (n, by.outside)), &mut findings);
        let mut plans = Vec::new();
        for shard in 0..shards {
            match self.of_shard(shard as u32, shards as u32) {
                Ok(plan) => plans.push(plan),
                Err(finding) => {
                    findings.push(finding);
                    break;
                }
            }
        }
        self.fail_on(findings)?;
        let needs = self.stages.iter().map(|s| (s.name.clone(), s.kind.meets(&s.settings))).collect();
        // All that lead packets go by the same hash; where each is a device that may know this one, by this
        // one.
        let mut spread = sources.iter().filter(|(_, source)| source.sharing != Sharing::First).peekable();
        let devices = spread.peek().is_some() && spread.all(|(_, source)| source.sharing == Sharing::Rss);
        let hash = if devices { Hash::Rss } else { Hash::Filter };
        let nat = nat.map(|(_, nat, by)| {
            let inside = nat.settings.prefixes(by.inside).collect();
            (nat.name.clone(), inside)
        });
        Ok(ShardPlan { plans, sources, externals: Externals::new(external), nat, hash, needs })
    }

    /// The NAT, by whose addresses and ports packets are led: its number, itself, and how it translates. A
    /// second one is among the findings.
    fn the_nat(&self, findings: &mut Vec<Finding>) -> Option<(usize, &PlannedStage, Translation)> {
        let all = self.stages.iter().enumerate();
        let mut nats = all.filter_map(|(n, stage)| Some((n, stage, stage.kind.properties.translation?)));
        let first = nats.next();
        if let Some((_, second, _)) = nats.next() {
            let message = "two NATs in one pipeline can't be led to shards together";
            findings.push(Finding::new(&second.span, message));
        }
        first
    }

    /// The ports that packets come by, each with the rule by which it leads them to shards. `nat` is the
    /// number of the NAT, and of its input from outside.
    fn led_sources(
        &self,
        nat: Option<(usize, usize)>,
        findings: &mut Vec<Finding>,
    ) -> Vec<(String, ShardedSource)> {
        let mut sources = Vec::new();
        for (id, stage) in self.stages.iter().enumerate() {
            if !matches!(stage.role, Role::Source | Role::TwoWay) || stage.kind.group != Group::Port {
                continue;
            }
            let led = self.steering(id, nat).and_then(|by| Ok((by, self.neighbours(id)?)));
            let (by, neighbours) = match led {
                Ok(led) => led,
                Err(message) => {
                    findings.push(Finding::new(&stage.span, message));
                    continue;
                }
            };
            let sharing = (stage.kind.properties.sharing)(&stage.settings);
            let queues = matches!(sharing, Sharing::Queues | Sharing::Rss);
            let stays = queues && !stage.settings.flag("steer");
            if let Some(other) = self.needs_steering(id).filter(|_| stays) {
                let message = format!(
                    "steer=false: ICMP errors and fragments come by other queues than the connection that they belong to, \
                     and `{other}` needs them on its shard"
                );
                findings.push(Finding::new(&stage.span, message).hint("leave out steer=false"));
            }
            sources.push((stage.name.clone(), ShardedSource { by, sharing, stays, neighbours }));
        }
        sources
    }

    /// Says whether a stage may be there once for each shard.
    fn may_be_replicated(&self, stage: &PlannedStage) -> Result<(), Finding> {
        let refused = |message: String| Err(Finding::new(&stage.span, message));
        let name = &stage.name;
        if (stage.kind.properties.sharing)(&stage.settings) != Sharing::Not {
            return Ok(());
        }
        if let Some(Hindrance { reason, remedy }) = (stage.kind.properties.hindrance)(&stage.settings) {
            return Err(Finding::new(&stage.span, format!("`{name}` {reason}")).hint(remedy));
        }
        // Packets are led together by endpoints, and all shards hear what neighbours say.
        if stage.kind.properties.translation.is_some()
            || (stage.kind.properties.asks_neighbours)(&stage.settings)
        {
            return Ok(());
        }
        if stage.kind.group == Group::Port {
            let kind = stage.kind.name;
            let message = format!("`{name}`: a port of type `{kind}` can't be shared by shards");
            return Err(Finding::new(&stage.span, message)
                .hint("af_packet, af_xdp, dpdk, tap_interface, null, and paced as a source can; or leave out --shards"));
        }
        // Answers may come to any shard if an address alone says what it becomes, unless another stage has
        // seen the other direction. A NAT leads packets by what it translates itself, which is IPv4.
        let alone = stage.kind.meets(&stage.settings) == Meets::Nothing
            && self.stages.iter().all(|other| {
                other.kind.properties.translation.is_some()
                    || other.kind.meets(&other.settings) <= Meets::Flow
            });
        if (stage.kind.properties.rewrites_flows)(&stage.settings) && !alone {
            return refused(format!(
                "`{name}` gives packets other addresses, and answers to these would come to another shard; leave out --shards"
            ));
        }
        if stage.kind.meets(&stage.settings) == Meets::Everything {
            let message = format!("`{name}` decides about all packets together, which no shard sees");
            let hint = stage
                .kind
                .properties
                .without_meeting
                .unwrap_or("leave out --shards; --workers N takes several threads for stages in a row");
            return Err(Finding::new(&stage.span, message).hint(hint));
        }
        Ok(())
    }

    /// The rule by which packets of a source are led to shards. `nat` is the number of the NAT, and of its
    /// input from outside.
    fn steering(&self, source: usize, nat: Option<(usize, usize)>) -> Result<By, String> {
        let Some((nat, outside)) = nat else { return Ok(By::Connection) };
        let ports = self.stages.get(nat).map_or(Ports::None, |stage| stage.kind.inputs);
        let (mut seen, mut next, mut inputs) = (vec![source], vec![source], Vec::new());
        let mut tracks = false;
        while let Some(stage) = next.pop() {
            for wire in self.wires.iter().filter(|w| w.from == stage) {
                if wire.to == nat {
                    inputs.push(number(wire.input.as_deref(), &ports) == Some(outside));
                } else if !seen.contains(&wire.to) {
                    seen.push(wire.to);
                    let to = self.stages.get(wire.to);
                    tracks |= to.is_some_and(|s| s.kind.meets(&s.settings) == Meets::Connection);
                    // Packets that a port takes don't come out of it again.
                    if to.is_some_and(|s| s.kind.group != Group::Port) {
                        next.push(wire.to);
                    }
                }
            }
        }
        match inputs.split_first() {
            None if tracks => {
                Err("packets of this source pass a stage that tracks connections, and not the NAT: \
                                   they can't be led to shards together with those that do"
                    .to_owned())
            }
            None => Ok(By::Connection),
            Some((first, rest)) if rest.iter().all(|input| input == first) => {
                Ok(if *first { By::Outside } else { By::Inside })
            }
            Some(_) => Err(
                "packets of this source come to both sides of the NAT, so that nothing says whose they are"
                    .to_owned(),
            ),
        }
    }

    /// Returns true if a router behind this source asks its neighbours, so that the routers of all shards
    /// have to hear them.
    ///
    /// # Errors
    /// Their answers would come to another port, too, and leave by it once for each shard.
    fn neighbours(&self, source: usize) -> Result<bool, String> {
        let (mut seen, mut next) = (Vec::new(), vec![(source, None)]);
        let (mut heard, mut passes) = (false, None);
        while let Some((from, by)) = next.pop() {
            // A packet leaves by the number that it came by, unless these made it themselves.
            let paired = self.stages.get(from).is_some_and(|s| s.kind.properties.paired);
            for wire in self.wires.iter().filter(|wire| wire.from == from) {
                let Some((stage, to)) = self.stages.get(from).zip(self.stages.get(wire.to)) else { continue };
                let output = number(wire.output.as_deref(), &stage.kind.outputs);
                if paired && by.is_some() && output != by {
                    continue;
                }
                if (to.kind.properties.asks_neighbours)(&to.settings) {
                    heard = true;
                } else if to.kind.group == Group::Port {
                    passes = passes.or(Some(&to.name).filter(|_| !to.kind.properties.leads_nowhere));
                } else {
                    let place = (wire.to, number(wire.input.as_deref(), &to.kind.inputs));
                    if !seen.contains(&place) {
                        seen.push(place);
                        next.push(place);
                    }
                }
            }
        }
        match passes.filter(|_| heard) {
            None => Ok(heard),
            Some(port) => Err(format!(
                "ARP and neighbour discovery from here go to all shards, since a router asks its neighbours; they would \
                 come to `{port}` as well, and leave once for each shard"
            )),
        }
    }

    /// A stage behind this source that needs more than the packets of a flow together.
    fn needs_steering(&self, source: usize) -> Option<&str> {
        let (mut seen, mut next) = (vec![source], vec![source]);
        while let Some(stage) = next.pop() {
            for wire in
                self.wires.iter().filter(|w| w.from == stage && !seen.contains(&w.to)).collect::<Vec<_>>()
            {
                seen.push(wire.to);
                let to = self.stages.get(wire.to)?;
                if to.kind.meets(&to.settings) > Meets::Flow {
                    return Some(&to.name);
                }
                if to.kind.group != Group::Port {
                    next.push(wire.to);
                }
            }
        }
        None
    }

    /// The plan of one shard.
    fn of_shard(&self, shard: u32, shards: u32) -> Result<Self, Finding> {
        let mut plan = self.clone();
        let mut groups = 0;
        for stage in &mut plan.stages {
            let properties = stage.kind.properties;
            let receives = matches!(stage.role, Role::Source | Role::TwoWay);
            match (properties.sharing)(&stage.settings) {
                // The first shard hands over to the others what they are to receive.
                Sharing::First if receives && shard > 0 => {
                    let null = slipstream_io::ports::NULL;
                    stage.kind = null;
                    stage.kind.properties = Properties { live: true, ..null.properties };
                    stage.settings = Settings::defaults(null.settings);
                    continue;
                }
                Sharing::Not => {}
                _ => {
                    let with = Shared { role: stage.role, group: group(groups) };
                    stage.settings = (properties.shared)(&stage.settings, with);
                    groups += usize::from(receives);
                }
            }
            if let Some(by) = properties.translation {
                stage.settings = part_of_ports(stage, &by, shard, shards)?;
            }
        }
        Ok(plan)
    }
}

/// The number of a port of a type that has these, as it is written at a wire: none where it isn't known.
fn number(written: Option<&str>, ports: &Ports) -> Option<usize> {
    let Some(written) = written else { return Some(0) };
    let by_name = ports.of_type().iter().position(|port| port.name == written);
    by_name.or_else(|| written.parse().ok())
}

/// A group for one of the ports that receive, which no other process uses.
fn group(port: usize) -> u64 {
    (u64::from(std::process::id()) * 8 + port as u64) % 0xffff + 1
}

/// Settings of a NAT with a shard's part of its ports.
fn part_of_ports(
    stage: &PlannedStage,
    by: &Translation,
    shard: u32,
    shards: u32,
) -> Result<Settings, Finding> {
    let mut settings = stage.settings.clone();
    for name in by.ports.iter().copied().chain([by.identifiers]) {
        let Some(range) = range(&settings, name) else { continue };
        let Some(part) = range.part(shard, shards) else {
            let message = format!("`{}`: {name} are fewer than shards", stage.name);
            return Err(Finding::new(&stage.span, message));
        };
        settings = settings.with(name, Value::Text(format!("{}-{}", part.first, part.last)));
    }
    Ok(settings)
}

fn range(settings: &Settings, name: &str) -> Option<PortRange> {
    let (first, last) = settings.text(name).split_once('-')?;
    Some(PortRange { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? })
}

/// The external addresses and ports of a NAT.
fn external(nat: &PlannedStage, by: &Translation) -> External {
    let v4 = |net: IpNet| match net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    };
    let addresses = (nat.kind.properties.external)(&nat.settings).into_iter().filter_map(v4).collect();
    let ranges = by.ports.iter().filter_map(|name| range(&nat.settings, name)).collect();
    External { addresses, ranges, identifiers: range(&nat.settings, by.identifiers) }
}
