//! Groups of flows, by port, address, VLAN or stretch of time: each with its packets, bytes, flows and
//! locality.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Serialize;
use slipstream_wire::{FlowKey, LinkType};

use crate::details::{DetailConfig, Details, FlowDetail, FlowTrains};
use crate::report::ratio;

/// The property that flows are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Protocol and destination port.
    DstPort,
    /// Address, of source or destination: a packet counts for both of its endpoints.
    Endpoint,
    /// VLAN ids, outermost first.
    Vlan,
    /// Stretches of so many nanoseconds (at least 1), which begin at multiples of it since 1970. Each is
    /// taken as a trace of its own: no run and no train spans two of them.
    Slice(u64),
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DstPort => "dst-port",
            Self::Endpoint => "endpoint",
            Self::Vlan => "vlan",
            Self::Slice(_) => "slice",
        })
    }
}

/// A word that names no way of grouping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is nothing to group by; there are dst-port, endpoint, vlan, and a time for slices")]
pub struct UnknownGroupBy(String);

impl FromStr for GroupBy {
    type Err = UnknownGroupBy;

    /// A name; slices are made with their length, not from text.
    fn from_str(text: &str) -> Result<Self, UnknownGroupBy> {
        match text {
            "dst-port" => Ok(Self::DstPort),
            "endpoint" => Ok(Self::Endpoint),
            "vlan" => Ok(Self::Vlan),
            _ => Err(UnknownGroupBy(text.to_owned())),
        }
    }
}

/// The trains of a group under one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupWindow {
    /// The window, in nanoseconds.
    pub window_ns: u64,
    /// Trains.
    pub batches: u64,
    /// Packets a train.
    pub mean_train: Option<f64>,
    /// The share of packets in trains of two and more.
    pub share_packets_in_trains: Option<f64>,
    #[serde(skip)]
    alone: u64,
}

/// A group of flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Its name: `443/tcp`, an address, VLAN ids joined by dots (`none` for none), the start of a slice in
    /// nanoseconds.
    pub name: String,
    /// Packets with a flow.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Directional flows.
    pub flows: u64,
    /// Runs of its flows among all packets.
    pub runs: u64,
    /// Packets ÷ runs: the spatial locality factor of its packets where they are, others between them.
    pub slf: Option<f64>,
    /// Time of the earliest packet, in nanoseconds.
    pub first_ns: u64,
    /// Time of the latest packet, in nanoseconds.
    pub last_ns: u64,
    /// By window.
    pub windows: Vec<GroupWindow>,
}

impl Group {
    fn empty(name: String, windows_ns: &[u64]) -> Self {
        let window = |window_ns: &u64| GroupWindow {
            window_ns: *window_ns,
            batches: 0,
            mean_train: None,
            share_packets_in_trains: None,
            alone: 0,
        };
        Self {
            name,
            packets: 0,
            bytes: 0,
            flows: 0,
            runs: 0,
            slf: None,
            first_ns: u64::MAX,
            last_ns: 0,
            windows: windows_ns.iter().map(window).collect(),
        }
    }

    fn add(&mut self, flow: &FlowDetail, trains: &[FlowTrains]) {
        self.packets += flow.packets;
        self.bytes += flow.bytes;
        self.flows += 1;
        self.runs += flow.runs;
        self.first_ns = self.first_ns.min(flow.first_ns);
        self.last_ns = self.last_ns.max(flow.last_ns);
        for (window, trains) in self.windows.iter_mut().zip(trains) {
            window.batches += trains.batches;
            window.alone += trains.alone;
        }
    }

    fn add_group(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.flows += other.flows;
        self.runs += other.runs;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        for (window, more) in self.windows.iter_mut().zip(&other.windows) {
            window.batches += more.batches;
            window.alone += more.alone;
        }
    }

    /// Computes the ratios.
    fn settled(mut self) -> Self {
        self.slf = ratio(self.packets, self.runs);
        for window in &mut self.windows {
            window.mean_train = ratio(self.packets, window.batches);
            window.share_packets_in_trains = ratio(self.packets - window.alone, self.packets);
        }
        self
    }
}

/// The groups of a trace, of which only so many are listed.
///
/// ```
/// use slipstream_trace::{DetailConfig, Details, GroupBy, Groups};
/// use slipstream_wire::LinkType;
///
/// let mut details = Details::new(DetailConfig::default());
/// let mut packet = [0; 28];
/// packet[..12].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
/// packet[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0]);
/// for (time_ns, port) in [(0, 53), (10, 53), (20, 123)] {
///     packet[23] = port;
///     details.packet(time_ns, LinkType::RawIp, 60, &packet);
/// }
/// let groups = Groups::of(&details, GroupBy::DstPort, 1);
/// assert_eq!((groups.groups, groups.listed[0].name.as_str(), groups.listed[0].packets), (2, "53/udp", 2));
/// assert_eq!(groups.rest.map(|others| others.packets), Some(1));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Groups {
    /// The property that they are grouped by: `dst-port`, `endpoint`, `vlan`, `slice`.
    pub by: String,
    /// The length of slices, in nanoseconds; none of other groups.
    pub slice_ns: Option<u64>,
    /// Groups there are, listed or not.
    pub groups: u64,
    /// Those listed: the ones with the most packets, the most first; of slices the first, in order of time.
    pub listed: Vec<Group>,
    /// All others, summed up: of slices, a flow counts once for each in which it occurs.
    pub rest: Option<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Port(u16, u8),
    Address(IpAddr),
    Vlans(Box<[u16]>),
}

impl Key {
    fn name(&self) -> String {
        match self {
            Self::Port(port, 6) => format!("{port}/tcp"),
            Self::Port(port, 17) => format!("{port}/udp"),
            Self::Port(port, 132) => format!("{port}/sctp"),
            Self::Port(_, 1) => "icmp".to_owned(),
            Self::Port(_, 58) => "icmpv6".to_owned(),
            Self::Port(_, other) => format!("protocol {other}"),
            Self::Address(address) => address.to_string(),
            Self::Vlans(vlans) => {
                let ids: Vec<_> = vlans.iter().map(u16::to_string).collect();
                if ids.is_empty() { "none".to_owned() } else { ids.join(".") }
            }
        }
    }
}

/// The groups to which a flow belongs: one, or its two endpoints.
fn keys(by: GroupBy, flow: &FlowKey) -> [Option<Key>; 2] {
    match by {
        GroupBy::DstPort => [Some(Key::Port(flow.dst_port(), flow.protocol())), None],
        GroupBy::Endpoint => {
            let (src, dst) = (flow.src(), flow.dst());
            [Some(Key::Address(src)), (src != dst).then_some(Key::Address(dst))]
        }
        GroupBy::Vlan => [Some(Key::Vlans(flow.vlans().collect())), None],
        GroupBy::Slice(_) => [None, None],
    }
}

impl Groups {
    /// Groups the flows of a trace, or of several that were [merged](Details::merge); the `most` largest are
    /// listed. Slices can't be made of flows: there are none then (see [`Slices`]).
    #[must_use]
    pub fn of(details: &Details, by: GroupBy, most: usize) -> Self {
        let windows = &details.config().windows_ns;
        let mut groups: HashMap<Key, Group> = HashMap::new();
        for ((key, flow), trains) in details.flows_in_order().zip(details.trains_in_order()) {
            for key in keys(by, &key).into_iter().flatten() {
                groups.entry(key).or_insert_with(|| Group::empty(String::new(), windows)).add(&flow, trains);
            }
        }
        let mut all: Vec<_> = groups.into_iter().collect();
        all.sort_unstable_by(|(a, x), (b, y)| y.packets.cmp(&x.packets).then(a.cmp(b)));
        let (groups, rest) = (all.len() as u64, all.split_off(most.min(all.len())));
        let rest = rest.iter().fold(None, |sum: Option<Group>, (_, group)| {
            let mut sum = sum.unwrap_or_else(|| Group::empty("others".to_owned(), windows));
            sum.add_group(group);
            Some(sum)
        });
        Self {
            by: by.to_string(),
            slice_ns: None,
            groups,
            listed: all.into_iter().map(|(k, g)| Group { name: k.name(), ..g }.settled()).collect(),
            rest: rest.map(Group::settled),
        }
    }
}

/// Cuts a trace into slices of time.
#[derive(Debug)]
pub struct Slices {
    slice_ns: u64,
    most: usize,
    details: Details,
    /// The slice under way.
    start: Option<u64>,
    clock: u64,
    groups: u64,
    listed: Vec<Group>,
    rest: Option<Group>,
}

impl Slices {
    /// Slices of so many nanoseconds (0 is taken as 1), of which the first `most` are listed.
    #[must_use]
    pub fn new(slice_ns: u64, config: DetailConfig, most: usize) -> Self {
        Self {
            slice_ns: slice_ns.max(1),
            most,
            details: Details::new(config),
            start: None,
            clock: 0,
            groups: 0,
            listed: Vec::new(),
            rest: None,
        }
    }

    /// Takes the next packet of the file. One whose time is earlier than that of a packet before it counts in
    /// the slice that is under way.
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.clock = self.clock.max(time_ns);
        let start = self.clock - self.clock % self.slice_ns;
        if self.start != Some(start) {
            self.end_slice();
            self.start = Some(start);
        }
        self.details.packet(time_ns, link, original_len, data);
    }

    fn end_slice(&mut self) {
        let Some(start) = self.start.filter(|_| !self.details.is_empty()) else { return };
        let windows = &self.details.config().windows_ns;
        let mut group = Group::empty(start.to_string(), windows);
        for ((_, flow), trains) in self.details.flows_in_order().zip(self.details.trains_in_order()) {
            group.add(&flow, trains);
        }
        self.groups += 1;
        if self.listed.len() < self.most {
            self.listed.push(group.settled());
        } else {
            let rest = self.rest.get_or_insert_with(|| Group::empty("others".to_owned(), windows));
            rest.add_group(&group);
        }
        self.details.clear();
    }

    /// Ends the trace. Slices in which no packet with a flow came aren't listed.
    #[must_use]
    pub fn finish(mut self) -> Groups {
        self.end_slice();
        Groups {
            by: GroupBy::Slice(self.slice_ns).to_string(),
            slice_ns: Some(self.slice_ns),
            groups: self.groups,
            listed: self.listed,
            rest: self.rest.map(Group::settled),
        }
    }
}
