//! Flows in detail: bytes, times, TCP flags, runs and trains of each flow, beyond what the report needs.
//!
//! The [`Analyzer`](crate::Analyzer) counts over all packets; this counts flow by flow, which takes more
//! memory a flow and is done only where somebody asks: for the columns of a [`FlowFile`](crate::FlowFile),
//! and for [groups](crate::Groups) of flows. A flow's trains depend on its own packets alone, and its runs on
//! which flow the packet before belongs to; therefore sums over any group of flows are exact, and sums over
//! all flows are what the report has.

use slipstream_wire::protocol::TCP;
use slipstream_wire::{Encapsulation, Flags, FlowKey, LinkType, classify_with};

use crate::block::NO_FLOW;
use crate::flows::{FlowTable, Hashing};
use crate::partial::MergeError;

/// Settings of [`Details`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetailConfig {
    /// Holding windows in nanoseconds for which trains are counted; none where nobody asks for trains.
    pub windows_ns: Vec<u64>,
    /// Packets at which a train leaves at once; 0 is taken as 1.
    pub burst: u32,
    /// The IP header of a tunnel that counts.
    pub encapsulation: Encapsulation,
}

/// One packet, as far as it adds to its flow.
#[derive(Clone, Copy, Debug)]
struct Seen {
    key: FlowKey,
    hash: u64,
    time: u64,
    /// The latest time seen, of packets without a flow, too.
    clock: u64,
    original_len: u32,
    tcp_flags: u8,
    tcp: bool,
}

/// The facts of packets that can be found without knowing those before them, as in a
/// [`Digest`](crate::Digest): several threads may each make some, and [`Details`] take them in the order of
/// the trace.
#[derive(Clone, Debug)]
pub struct DetailDigest {
    encapsulation: Encapsulation,
    hashing: Hashing,
    clock: u64,
    seen: Vec<Seen>,
}

impl DetailDigest {
    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.clock = 0;
        self.seen.clear();
    }

    /// Takes the next packet, as [`Details::packet`] does.
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.clock = self.clock.max(time_ns);
        let seen = read(self.encapsulation, self.hashing, (time_ns, self.clock), link, original_len, data);
        self.seen.extend(seen);
    }
}

/// Reads a packet that came at a time, by a clock that doesn't run backwards at another.
#[inline(always)]
fn read(
    encapsulation: Encapsulation,
    hashing: Hashing,
    (time, clock): (u64, u64),
    link: LinkType,
    original_len: u32,
    data: &[u8],
) -> Option<Seen> {
    let headers = classify_with(link, data, encapsulation).ok()?;
    let tcp = headers.key.protocol() == TCP && !headers.flags.has(Flags::FRAGMENT);
    let (key, tcp_flags) = (headers.key, headers.tcp_flags);
    Some(Seen { key, hash: hashing.hash(&key), time, clock, original_len, tcp_flags, tcp })
}

/// The totals of one directional flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowDetail {
    /// Its packets; at least 1.
    pub packets: u64,
    /// Those that are TCP packets and not fragments.
    pub tcp_packets: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Time of its earliest packet, in nanoseconds.
    pub first_ns: u64,
    /// Time of its latest packet, in nanoseconds.
    pub last_ns: u64,
    /// All TCP flags that its packets had (FIN 0x01 … CWR 0x80), or-ed.
    pub tcp_flags: u8,
    /// Runs: maximal stretches of its packets with no packet of another flow between.
    pub runs: u64,
}

const NOTHING: FlowDetail = FlowDetail {
    packets: 0,
    tcp_packets: 0,
    bytes: 0,
    first_ns: u64::MAX,
    last_ns: 0,
    tcp_flags: 0,
    runs: 0,
};

impl FlowDetail {
    fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.tcp_packets += other.tcp_packets;
        self.bytes += other.bytes;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.tcp_flags |= other.tcp_flags;
        self.runs += other.runs;
    }
}

/// A flow's trains under one window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowTrains {
    /// Arrival of the first packet of the train under way, in ns.
    open: u64,
    /// Its packets so far.
    size: u32,
    /// Trains that have begun.
    pub(crate) batches: u64,
    /// Trains of one packet, the one under way included.
    pub(crate) alone: u64,
}

impl FlowTrains {
    #[inline]
    fn packet(&mut self, time: u64, window: u64, burst: u32) {
        if self.size == 0 || self.size >= burst || time - self.open >= window {
            (self.open, self.size) = (time, 1);
            self.batches += 1;
            self.alone += 1;
        } else {
            self.alone -= u64::from(self.size == 1);
            self.size += 1;
        }
    }
}

/// Totals flow by flow, fed packet by packet in the order of the file.
///
/// ```
/// use slipstream_trace::{DetailConfig, Details};
/// use slipstream_wire::LinkType;
///
/// let config = DetailConfig { windows_ns: vec![64_000], burst: 32, ..DetailConfig::default() };
/// let mut details = Details::new(config);
/// let mut dns = [0; 28];
/// dns[..12].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
/// dns[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0]);
/// // From two hosts in turn.
/// for n in 0..10 {
///     dns[15] = n % 2;
///     details.packet(u64::from(n) * 1000, LinkType::RawIp, 60, &dns);
/// }
/// let (key, flow) = details.flows_in_order().next().unwrap();
/// assert_eq!((key.dst_port(), flow.packets, flow.bytes, flow.last_ns), (53, 5, 300, 8000));
/// ```
///
/// Memory: 40 bytes a flow for its key, 56 for its totals, 32 for each window.
#[derive(Clone, Debug)]
pub struct Details {
    config: DetailConfig,
    table: FlowTable,
    flows: Vec<FlowDetail>,
    /// By flow, then by window.
    trains: Vec<FlowTrains>,
    /// The flow of the packet before.
    latest: u32,
    /// The latest time seen, by which windows go.
    clock: u64,
}

impl Details {
    /// Of no packet yet.
    #[must_use]
    pub fn new(config: DetailConfig) -> Self {
        let (table, flows, trains) = (FlowTable::new(), Vec::new(), Vec::new());
        Self { config, table, flows, trains, latest: NO_FLOW, clock: 0 }
    }

    /// Nothing yet, for packets that are to be [added](Self::add).
    #[must_use]
    pub fn digest(&self) -> DetailDigest {
        let (encapsulation, hashing) = (self.config.encapsulation, self.table.hashing());
        DetailDigest { encapsulation, hashing, clock: 0, seen: Vec::new() }
    }

    /// Takes the next packet of the file, as [`Analyzer::packet`](crate::Analyzer::packet) does; one without
    /// a flow is passed over. Gives the number of its flow, from 0 in order of first appearance.
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) -> Option<u32> {
        self.clock = self.clock.max(time_ns);
        let (at, hashing) = ((time_ns, self.clock), self.table.hashing());
        let seen = read(self.config.encapsulation, hashing, at, link, original_len, data)?;
        Some(self.count(&seen))
    }

    /// Takes the next packets of the file, which a [digest](Self::digest) of this was made of.
    pub fn add(&mut self, digest: &DetailDigest) {
        for seen in &digest.seen {
            self.count(seen);
        }
        self.clock = self.clock.max(digest.clock);
    }

    #[inline]
    fn count(&mut self, seen: &Seen) -> u32 {
        self.clock = self.clock.max(seen.clock);
        let number = self.table.number(&seen.key, seen.hash);
        let (at, windows) = (number as usize, self.config.windows_ns.len());
        self.cover(at);
        if let Some(flow) = self.flows.get_mut(at) {
            flow.packets += 1;
            flow.tcp_packets += u64::from(seen.tcp);
            flow.bytes += u64::from(seen.original_len);
            flow.first_ns = flow.first_ns.min(seen.time);
            flow.last_ns = flow.last_ns.max(seen.time);
            flow.tcp_flags |= seen.tcp_flags;
            flow.runs += u64::from(number != self.latest);
        }
        self.latest = number;
        if let Some(trains) = self.trains.get_mut(at * windows..(at + 1) * windows) {
            let (clock, burst) = (self.clock, self.config.burst);
            trains.iter_mut().zip(&self.config.windows_ns).for_each(|(t, w)| t.packet(clock, *w, burst));
        }
        number
    }

    /// Makes room for the flow of this number.
    #[inline]
    fn cover(&mut self, at: usize) {
        if at >= self.flows.len() {
            self.flows.resize(at + 1, NOTHING);
            self.trains.resize((at + 1) * self.config.windows_ns.len(), FlowTrains::default());
        }
    }

    /// Adds the flows of another trace: one that occurs in both is one flow. No run and no train spans two
    /// traces; packets that are taken afterwards are those of a further one.
    ///
    /// # Errors
    /// [`MergeError::Settings`] where the two don't come from the same settings; nothing is merged then.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.config != other.config {
            return Err(MergeError::Settings);
        }
        let windows = self.config.windows_ns.len();
        for ((key, more), trains) in other.flows_in_order().zip(other.trains_in_order()) {
            let at = self.table.number(&key, self.table.hash(&key)) as usize;
            self.cover(at);
            if let Some(flow) = self.flows.get_mut(at) {
                flow.merge(&more);
            }
            if let Some(mine) = self.trains.get_mut(at * windows..(at + 1) * windows) {
                for (mine, more) in mine.iter_mut().zip(trains) {
                    mine.batches += more.batches;
                    mine.alone += more.alone;
                }
            }
        }
        // Packets that come from now on are of another trace, which has its own clock.
        self.trains.iter_mut().for_each(|train| train.size = 0);
        (self.latest, self.clock) = (NO_FLOW, 0);
        Ok(())
    }

    /// Forgets all flows; windows go on by the same clock.
    pub fn clear(&mut self) {
        (self.table, self.latest) = (FlowTable::new(), NO_FLOW);
        self.flows.clear();
        self.trains.clear();
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &DetailConfig {
        &self.config
    }

    /// Number of its flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns true if no packet had a flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Every directional flow with its totals, in order of first appearance.
    pub fn flows_in_order(&self) -> impl Iterator<Item = (FlowKey, FlowDetail)> + '_ {
        self.table.in_order().zip(&self.flows).map(|((key, _), flow)| (key, *flow))
    }

    /// The trains of every flow by window, in the same order.
    pub(crate) fn trains_in_order(&self) -> impl Iterator<Item = &[FlowTrains]> + '_ {
        let windows = self.config.windows_ns.len();
        (0..self.flows.len())
            .map(move |at| self.trains.get(at * windows..(at + 1) * windows).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use slipstream_wire::classify;

    use super::*;
    use crate::{Analyzer, Config, GroupBy, Groups, Slices};

    const WINDOWS: [u64; 2] = [50, 400];
    const BURST: u32 = 4;

    fn config() -> DetailConfig {
        DetailConfig { windows_ns: WINDOWS.to_vec(), burst: BURST, ..DetailConfig::default() }
    }

    /// A packet: time, who sends, who receives, what it is.
    type Packet = (u64, u8, u8, u8);

    fn bytes((_, src, dst, what): Packet) -> Vec<u8> {
        let protocol = [6, 17, 1, 6, 6][usize::from(what % 5)];
        let fragment = if what % 5 == 3 { 0x20 } else { 0 };
        let version = if what % 5 == 4 { 0x15 } else { 0x45 };
        let mut f =
            vec![version, 0, 0, 40, 0, 0, fragment, 0, 64, protocol, 0, 0, 10, 0, 0, src, 10, 0, 0, dst];
        f.extend([4, 210, 0, dst % 3, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, src, 0, 0, 0, 0, 0, 0]);
        f
    }

    /// Packets in runs, now and then with a time that runs backwards.
    fn packets() -> impl Strategy<Value = Vec<Packet>> {
        let run = (-20i64..200, 0u8..4, 0u8..4, 0u8..5, 1usize..5);
        proptest::collection::vec(run, 0..80).prop_map(|runs| {
            let mut time = 1000u64;
            let mut all = Vec::new();
            for (gap, src, dst, what, len) in runs {
                time = time.saturating_add_signed(gap);
                for _ in 0..len {
                    all.push((time, src, dst, what));
                    time += 17;
                }
            }
            all
        })
    }

    /// Flow by flow, by a dictionary: packets, bytes, first, last, flags, runs, and trains by window.
    type Twin = HashMap<FlowKey, (FlowDetail, Vec<(u64, u64)>)>;

    fn twin(packets: &[Packet]) -> Twin {
        let mut times: HashMap<FlowKey, Vec<u64>> = HashMap::new();
        let mut found = Twin::new();
        let (mut latest, mut clock) = (None, 0);
        for packet in packets {
            clock = clock.max(packet.0);
            let Ok(headers) = classify(LinkType::RawIp, &bytes(*packet)) else { continue };
            let flow = &mut found.entry(headers.key).or_insert((NOTHING, Vec::new())).0;
            flow.packets += 1;
            flow.tcp_packets += u64::from(packet.3 % 5 == 0);
            flow.bytes += 100 + u64::from(packet.1);
            flow.first_ns = flow.first_ns.min(packet.0);
            flow.last_ns = flow.last_ns.max(packet.0);
            flow.tcp_flags |= headers.tcp_flags;
            flow.runs += u64::from(latest != Some(headers.key));
            latest = Some(headers.key);
            times.entry(headers.key).or_default().push(clock);
        }
        for (key, times) in times {
            let trains = WINDOWS.map(|window| {
                let (mut batches, mut alone, mut rest) = (0, 0, times.as_slice());
                while let Some(open) = rest.first() {
                    let in_time = rest.iter().take_while(|t| *t - open < window).count();
                    let size = in_time.min(BURST as usize);
                    batches += 1;
                    alone += u64::from(size == 1);
                    rest = &rest[size..];
                }
                (batches, alone)
            });
            found.get_mut(&key).unwrap().1 = trains.to_vec();
        }
        found
    }

    fn of(packets: &[Packet]) -> Details {
        let mut details = Details::new(config());
        for p in packets {
            details.packet(p.0, LinkType::RawIp, 100 + u32::from(p.1), &bytes(*p));
        }
        details
    }

    fn as_twin(details: &Details) -> Twin {
        let trains =
            details.trains_in_order().map(|t| t.iter().map(|t| (t.batches, t.alone)).collect::<Vec<_>>());
        details.flows_in_order().zip(trains).map(|((key, flow), trains)| (key, (flow, trains))).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn flows_are_those_of_a_dictionary(packets in packets(), cut in 0usize..200) {
            let details = of(&packets);
            prop_assert_eq!(as_twin(&details), twin(&packets));
            // Parts read elsewhere are the same.
            let mut parts = Details::new(config());
            let mut digest = parts.digest();
            let cut = cut.min(packets.len());
            for part in [&packets[..cut], &packets[cut..]] {
                digest.clear();
                part.iter().for_each(|p| digest.packet(p.0, LinkType::RawIp, 100 + u32::from(p.1), &bytes(*p)));
                parts.add(&digest);
            }
            prop_assert_eq!(as_twin(&parts), twin(&packets));
            // Two traces add up flow by flow.
            let (a, b) = (of(&packets[..cut]), of(&packets[cut..]));
            let mut both = a.clone();
            both.merge(&b).unwrap();
            let mut want = as_twin(&a);
            for (key, (flow, trains)) in as_twin(&b) {
                let have = want.entry(key).or_insert((NOTHING, vec![(0, 0); 2]));
                have.0.merge(&flow);
                have.1.iter_mut().zip(trains).for_each(|(a, b)| *a = (a.0 + b.0, a.1 + b.1));
            }
            prop_assert_eq!(as_twin(&both), want);
            // Packets that follow a merge belong to neither trace, whichever of them their flow was in.
            let empty = Details::new(config());
            for (mut first, second) in [(a.clone(), &b), (a.clone(), &empty), (empty.clone(), &a)] {
                first.merge(second).unwrap();
                let mut merged = first.clone();
                for p in &packets {
                    first.packet(p.0, LinkType::RawIp, 100 + u32::from(p.1), &bytes(*p));
                }
                merged.merge(&of(&packets)).unwrap();
                prop_assert_eq!(as_twin(&first), as_twin(&merged));
            }
        }

        #[test]
        fn groups_sum_to_the_report(packets in packets(), most in 0usize..4) {
            let settings = Config { windows_ns: WINDOWS.to_vec(), burst: BURST, ..Config::default() };
            let mut analyzer = Analyzer::new(settings).unwrap();
            for p in &packets {
                analyzer.packet(p.0, LinkType::RawIp, 100 + u32::from(p.1), &bytes(*p));
            }
            let (report, details) = (analyzer.finish().report(), of(&packets));
            for by in [GroupBy::DstPort, GroupBy::Vlan] {
                let groups = Groups::of(&details, by, most);
                prop_assert!(groups.listed.len() <= most);
                let all: Vec<_> = groups.listed.iter().chain(&groups.rest).collect();
                prop_assert_eq!(all.iter().map(|g| g.packets).sum::<u64>(), report.ip.packets);
                prop_assert_eq!(all.iter().map(|g| g.flows).sum::<u64>(), report.ip.flows);
                prop_assert_eq!(all.iter().map(|g| g.runs).sum::<u64>(), report.ip.runs);
                for (i, window) in report.ip.windows.iter().enumerate() {
                    prop_assert_eq!(all.iter().map(|g| g.windows[i].batches).sum::<u64>(), window.batches);
                }
            }
            let one = Groups::of(&details, GroupBy::Vlan, 1);
            if let Some(group) = one.listed.first() {
                prop_assert_eq!(&group.name, "none");
                prop_assert_eq!(group.slf, report.ip.slf);
                for (ours, theirs) in group.windows.iter().zip(&report.ip.windows) {
                    prop_assert_eq!(ours.mean_train, theirs.mean_train);
                    prop_assert_eq!(ours.share_packets_in_trains, theirs.share_packets_in_trains);
                }
            }
        }

        #[test]
        fn a_slice_is_a_trace_of_its_own(packets in packets(), slice in 1u64..3000) {
            let mut slices = Slices::new(slice, config(), 5);
            packets.iter().for_each(|p| slices.packet(p.0, LinkType::RawIp, 100 + u32::from(p.1), &bytes(*p)));
            let got = slices.finish();
            let (mut clock, mut want) = (0, Vec::<(u64, Vec<Packet>)>::new());
            for p in &packets {
                clock = clock.max(p.0);
                let start = clock / slice * slice;
                match want.last_mut().filter(|(s, _)| *s == start) {
                    Some((_, of_slice)) => of_slice.push(*p),
                    None => want.push((start, vec![*p])),
                }
            }
            let mut want: Vec<_> = want.into_iter().map(|(start, p)| (start, of(&p))).collect();
            want.retain(|(_, d)| !d.is_empty());
            prop_assert_eq!(got.groups, want.len() as u64);
            let alone = want.iter().map(|(_, d)| Groups::of(d, GroupBy::Vlan, 1).listed[0].clone());
            for (slice, (group, (start, _))) in got.listed.iter().zip(alone.zip(&want)) {
                let group = crate::Group { name: start.to_string(), ..group };
                // Windows of a slice go by the clock, which may be ahead of the slice's own packets.
                if packets.is_sorted_by_key(|p| p.0) {
                    prop_assert_eq!(slice, &group);
                } else {
                    prop_assert_eq!((slice.packets, slice.flows, slice.runs), (group.packets, group.flows, group.runs));
                }
            }
            let rest = want.iter().skip(5).map(|(_, d)| d.flows_in_order().map(|(_, f)| f.packets).sum::<u64>());
            prop_assert_eq!(got.rest.map_or(0, |r| r.packets), rest.sum::<u64>());
        }
    }

    #[test]
    fn a_packet_counts_for_both_of_its_endpoints() {
        let packets = [(1, 1, 2, 1), (2, 2, 1, 1), (3, 3, 3, 1)];
        let groups = Groups::of(&of(&packets), GroupBy::Endpoint, 10);
        let found: Vec<_> = groups.listed.iter().map(|g| (g.name.as_str(), g.packets, g.flows)).collect();
        assert_eq!(found, [("10.0.0.1", 2, 2), ("10.0.0.2", 2, 2), ("10.0.0.3", 1, 1)]);
        assert_eq!(Groups::of(&of(&packets), GroupBy::Endpoint, 1).rest.unwrap().packets, 3);
    }

    #[test]
    fn details_of_other_settings_do_not_merge() {
        let mut a = Details::new(config());
        assert_eq!(a.merge(&Details::new(DetailConfig::default())), Err(MergeError::Settings));
    }
}
