//! Sets of addresses and ports as `ipset save` prints them, for `-m set` in rules of iptables.
//!
//! `hash:ip`, `hash:net`, `hash:ip,port`, `hash:net,port` and `bitmap:port` are read. What would change by
//! itself (timeouts) or means something else than being in the set (`nomatch`) is an error.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use slipstream_wire::Flags;
use slipstream_wire::protocol::{TCP, UDP};

use super::PacketFields;
use crate::text::{Errors, Line, RuleSetErrors, short};
use slipstream_core::rules::{RuleError, protocols};

/// First and last value of disjoint ranges, ascending.
type Ranges = Vec<(u128, u128)>;

/// The kind of entries that a set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Addresses,
    AddressesAndPorts,
    Ports,
}

/// One set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpSet {
    six: bool,
    kind: Kind,
    /// By protocol and port; sets without ports have all under 0, sets of ports alone every address.
    entries: BTreeMap<(u8, u16), Ranges>,
}

/// Sets by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpSets(BTreeMap<String, std::sync::Arc<IpSet>>);

impl IpSets {
    /// The sets of a file of `ipset save`.
    ///
    /// # Errors
    /// Everything that is wrong or not supported, up to twenty errors, each with its place and a hint.
    pub fn parse(text: &str) -> Result<Self, RuleSetErrors> {
        let (mut errors, mut sets) = (Errors::default(), BTreeMap::new());
        for line in Line::all(text) {
            if let Err(error) = read(text, line, &mut sets) {
                errors.push(error);
            }
            if errors.is_full() {
                break;
            }
        }
        for set in sets.values_mut() {
            set.entries.values_mut().for_each(merge);
        }
        errors.finish(Self(sets.into_iter().map(|(name, set)| (name, set.into())).collect()))
    }

    pub(super) fn get(&self, name: &str) -> Option<&std::sync::Arc<IpSet>> {
        self.0.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl IpSet {
    /// Addresses or ports that are asked for: how many of `src` and `dst` a rule must give.
    pub(super) const fn dimensions(&self) -> usize {
        if matches!(self.kind, Kind::AddressesAndPorts) { 2 } else { 1 }
    }

    /// Returns true if ports are asked for.
    pub(super) const fn has_ports(&self) -> bool {
        !matches!(self.kind, Kind::Addresses)
    }

    /// Returns true if a packet is in the set by its sides, each of which is the source (true) or the
    /// destination.
    pub(super) fn contains(&self, packet: &PacketFields, sides: [bool; 2]) -> bool {
        let [first, second] = sides;
        let address = |src: bool| if src { packet.src() } else { packet.dst() };
        let port = |src: bool| if src { packet.src_port() } else { packet.dst_port() };
        let seen = packet.word() & u32::from(Flags::PORTS) != 0;
        match self.kind {
            Kind::Addresses => self.holds((0, 0), address(first)),
            Kind::AddressesAndPorts => seen && self.holds((packet.protocol(), port(second)), address(first)),
            // Linux takes no other protocol's ports for members of these, though it does in the sets above.
            Kind::Ports => {
                matches!(packet.protocol(), TCP | UDP) && seen && self.entries.contains_key(&(0, port(first)))
            }
        }
    }

    fn holds(&self, key: (u8, u16), address: IpAddr) -> bool {
        let (six, bits) = number(address);
        let Some(ranges) = self.entries.get(&key).filter(|_| six == self.six) else { return false };
        let at = ranges.partition_point(|(_, last)| *last < bits);
        ranges.get(at).is_some_and(|(first, _)| *first <= bits)
    }
}

fn number(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, address.to_bits().into()),
        IpAddr::V6(address) => (true, address.to_bits()),
    }
}

/// Sorts ranges and joins those that meet.
fn merge(ranges: &mut Ranges) {
    ranges.sort_unstable();
    let mut merged: Ranges = Vec::with_capacity(ranges.len());
    for &(first, last) in ranges.iter() {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    *ranges = merged;
}

/// Reads a line: `create NAME TYPE …` or `add NAME ENTRY …`.
fn read(text: &str, line: Line<'_>, sets: &mut BTreeMap<String, IpSet>) -> Result<(), RuleError> {
    let (verb, rest) = line.word();
    let (name, rest) = rest.word();
    let (what, rest) = rest.word();
    if verb.text.is_empty() {
        return Ok(());
    }
    if what.text.is_empty() {
        let error = line.trimmed().error(text, "the line ends early");
        return Err(error.hint("a line of `ipset save` is `create NAME TYPE …` or `add NAME ENTRY`"));
    }
    match verb.text {
        "create" => {
            let kind = match what.text {
                "hash:ip" | "hash:net" => Kind::Addresses,
                "hash:ip,port" | "hash:net,port" => Kind::AddressesAndPorts,
                "bitmap:port" => Kind::Ports,
                other => {
                    let error =
                        what.error(text, format!("sets of the type `{}` are not supported", short(other)));
                    let hint = "supported are hash:ip, hash:net, hash:ip,port, hash:net,port and bitmap:port";
                    return Err(error.hint(hint));
                }
            };
            refuse(text, rest, &["timeout", "netmask", "bitmask"])?;
            let six = rest.text.split_whitespace().any(|word| word == "inet6");
            sets.insert(name.text.to_owned(), IpSet { six, kind, entries: BTreeMap::new() });
            Ok(())
        }
        "add" => {
            refuse(text, rest, &["timeout", "nomatch"])?;
            let Some(set) = sets.get_mut(name.text) else {
                let error = name.error(text, format!("there is no set `{}`", short(name.text)));
                return Err(error.hint("`create` it before"));
            };
            let Some((key, range)) = entry(set, what.text) else {
                let hint = "write `10.0.0.1`, `10.0.0.0/8`, `10.0.0.1-10.0.0.9`, `10.0.0.1,tcp:80`, as the set's type asks";
                return Err(what
                    .error(text, format!("`{}` is no entry of this set", short(what.text)))
                    .hint(hint));
            };
            for port in key.1..=key.2 {
                set.entries.entry((key.0, port)).or_default().push(range);
            }
            Ok(())
        }
        other => Err(verb
            .error(text, format!("expected `create` or `add`, found `{}`", short(other)))
            .hint("write the file with `ipset save`")),
    }
}

/// Options that change what being in the set means.
fn refuse(text: &str, rest: Line<'_>, words: &[&str]) -> Result<(), RuleError> {
    let (mut word, mut rest) = rest.word();
    while !word.text.is_empty() && !word.text.starts_with('"') {
        if words.contains(&word.text) {
            let error = word.error(text, format!("`{}` is not supported", word.text));
            return Err(error.hint("save a set without it: members here are members for good"));
        }
        (word, rest) = rest.word();
    }
    Ok(())
}

/// Protocol, first and last port; and addresses of an entry of this set.
type Entry = ((u8, u16, u16), (u128, u128));

fn entry(set: &IpSet, text: &str) -> Option<Entry> {
    let all = (0, u128::MAX);
    match set.kind {
        Kind::Addresses => Some(((0, 0, 0), addresses(set.six, text)?)),
        Kind::Ports => {
            let (first, last) = ports(text)?;
            Some(((0, first, last), all))
        }
        Kind::AddressesAndPorts => {
            let (address, port) = text.split_once(',')?;
            let (protocol, port) = port.split_once(':').unwrap_or(("tcp", port));
            let protocol = protocols::number(protocol).or_else(|| protocol.parse().ok())?;
            let (first, last) = ports(port).filter(|_| slipstream_wire::protocol::has_ports(protocol))?;
            Some(((protocol, first, last), addresses(set.six, address)?))
        }
    }
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

fn addresses(six: bool, text: &str) -> Option<(u128, u128)> {
    let (first, last) = if let Some((first, last)) = text.split_once('-') {
        (first.parse::<IpAddr>().ok()?, last.parse::<IpAddr>().ok()?)
    } else if let Ok(net) = text.parse::<IpNet>() {
        (net.network(), net.broadcast())
    } else {
        let address = text.parse::<IpAddr>().ok()?;
        (address, address)
    };
    let ((six_first, first), (six_last, last)) = (number(first), number(last));
    (six_first == six && six_last == six && first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::FlowKey;

    use super::*;

    /// A packet of TCP from this address, with ports or as a fragment, which has none.
    fn packet(src: u32, port: u16, whole: bool) -> PacketFields {
        let (src, dst) = (std::net::Ipv4Addr::from_bits(src), std::net::Ipv4Addr::LOCALHOST);
        let (port, flags) = if whole { (port, Flags::PORTS) } else { (0, 0) };
        let key = FlowKey::new(&[], src.into(), dst.into(), TCP, port, 0).unwrap();
        PacketFields::of(&key, flags.into(), 60)
    }

    const BASE: u32 = 0x0a00_0000;

    proptest! {
        /// Entries may overlap, meet, lie within each other, and stand in any order.
        #[test]
        fn a_set_has_what_any_of_its_entries_has(
            entries in prop::collection::vec((0..60_u32, 0..30_u32), 0..12),
            with_ports in any::<bool>(),
        ) {
            let kind = if with_ports { "hash:net,port" } else { "hash:net" };
            let mut text = format!("create s {kind} family inet\n");
            for (first, more) in &entries {
                let [first, last] = [*first, first + more].map(|n| std::net::Ipv4Addr::from_bits(BASE + n));
                let port = if with_ports { ",tcp:7" } else { "" };
                text += &format!("add s {first}-{last}{port}\n");
            }
            let sets = IpSets::parse(&text).unwrap();
            for n in 0..100 {
                let is_member = entries.iter().any(|(first, more)| (*first..=first + more).contains(&n));
                let contains = |port, whole| {
                    sets.get("s").unwrap().contains(&packet(BASE + n, port, whole), [true, true])
                };
                prop_assert_eq!(contains(7, true), is_member, "{}", n);
                prop_assert_eq!(contains(8, true), is_member && !with_ports, "{}", n);
                prop_assert_eq!(contains(7, false), is_member && !with_ports, "{}", n);
            }
        }
    }

    /// A fragment has no port, not even port 0.
    #[test]
    fn a_fragment_is_in_no_set_of_ports() {
        let sets = IpSets::parse("create s bitmap:port range 0-65535\nadd s 0-9\n").unwrap();
        let contains =
            |port, whole| sets.get("s").unwrap().contains(&packet(BASE, port, whole), [true, true]);
        assert_eq!([contains(0, true), contains(9, true), contains(10, true)], [true, true, false]);
        assert!(!contains(0, false));
    }
}
