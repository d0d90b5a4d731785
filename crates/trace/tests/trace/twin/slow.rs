//! The slow, obvious twin of the analysis: every definition over whole lists of packets.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use slipstream_trace::{Analyzer, Config, Partial};
use slipstream_wire::{Flags, FlowKey, LinkType, classify, tcp_segment};

/// A packet as captured.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) time: u64,
    pub(crate) link: LinkType,
    pub(crate) bytes: Vec<u8>,
}

/// Feeds packets to the analysis, one by one; and in digests, which give the same.
pub(crate) fn partial(config: &Config, packets: &[Packet]) -> Partial {
    let mut analyzer = Analyzer::new(config.clone()).unwrap();
    for p in packets {
        analyzer.packet(p.time, p.link, p.bytes.len() as u32, &p.bytes);
    }
    let partial = analyzer.finish();
    let mut analyzer = Analyzer::new(config.clone()).unwrap();
    let (mut digest, mut left) = (analyzer.digest(), packets);
    for size in [1, 7, 0, 64, 300].iter().cycle() {
        let (now, rest) = left.split_at((*size).min(left.len()));
        left = rest;
        digest.clear();
        for p in now {
            digest.packet(p.time, p.link, p.bytes.len() as u32, &p.bytes);
        }
        analyzer.add(&digest);
        if left.is_empty() {
            break;
        }
    }
    assert_eq!(analyzer.finish().report(), partial.report());
    partial
}

/// A packet of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: FlowKey,
    pub(crate) captured: u64,
    /// The latest time up to this packet.
    pub(crate) time: u64,
    pub(crate) tcp: bool,
    pub(crate) ack_flag: bool,
    /// The acknowledgement number of a pure acknowledgement.
    pub(crate) pure: Option<u32>,
}

/// All IP packets.
pub(crate) fn seen(packets: &[Packet]) -> Vec<Seen> {
    let mut clock = 0;
    let mut list = Vec::new();
    for p in packets {
        clock = clock.max(p.time);
        let Ok(h) = classify(p.link, &p.bytes) else { continue };
        let tcp = h.key.protocol() == 6 && !h.flags.has(Flags::FRAGMENT);
        let segment = tcp_segment(&p.bytes, &h);
        let pure = tcp && h.tcp_flags & 0x17 == 0x10 && segment.is_some_and(|s| s.payload_len == 0);
        list.push(Seen {
            key: h.key,
            captured: p.time,
            time: clock,
            tcp,
            ack_flag: tcp && h.tcp_flags & 0x10 != 0,
            pure: pure.then(|| segment.unwrap().ack),
        });
    }
    list
}

/// Indices of the packets of each flow.
pub(crate) fn flows(sequence: &[Seen]) -> BTreeMap<FlowKey, Vec<usize>> {
    let mut flows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (i, p) in sequence.iter().enumerate() {
        flows.entry(p.key).or_default().push(i);
    }
    flows
}

/// Maximal stretches of equal neighbours.
pub(crate) fn runs<T: PartialEq>(list: &[T]) -> u64 {
    list.len().min(1) as u64 + list.windows(2).filter(|w| w[0] != w[1]).count() as u64
}

/// Indices of the packets of each batch of one flow.
fn batches(sequence: &[Seen], flow: &[usize], window: u64, burst: usize) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for &i in flow {
        match batches.last_mut() {
            Some(b) if sequence[i].time - sequence[b[0]].time < window && b.len() < burst => b.push(i),
            _ => batches.push(vec![i]),
        }
    }
    batches
}

/// The result of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Held {
    pub(crate) sizes: BTreeMap<u64, u64>,
    pub(crate) runs_after: u64,
    pub(crate) batches_with_pure: u64,
    pub(crate) batches_with_ack: u64,
    pub(crate) strict: u64,
}

pub(crate) fn held(sequence: &[Seen], window: u64, burst: usize) -> Held {
    let mut held = Held::default();
    let mut sent = Vec::new();
    for (key, flow) in flows(sequence) {
        for batch in batches(sequence, &flow, window, burst) {
            *held.sizes.entry(batch.len() as u64).or_default() += 1;
            let leaves = if batch.len() == burst {
                u128::from(sequence[*batch.last().unwrap()].time)
            } else {
                u128::from(sequence[batch[0]].time) + u128::from(window)
            };
            sent.push((leaves, batch[0], key));
            held.batches_with_pure += u64::from(batch.iter().any(|i| sequence[*i].pure.is_some()));
            held.batches_with_ack += u64::from(batch.iter().any(|i| sequence[*i].ack_flag));
            for pair in batch.windows(2) {
                if let (Some(a), Some(b)) = (sequence[pair[0]].pure, sequence[pair[1]].pure) {
                    held.strict += u64::from((1..1 << 31).contains(&b.wrapping_sub(a)));
                }
            }
        }
    }
    sent.sort();
    held.runs_after = runs(&sent.iter().map(|s| s.2).collect::<Vec<_>>());
    held
}

/// Distances in packets and in time of consecutive packets of a flow.
pub(crate) fn distances(sequence: &[Seen]) -> Vec<(u64, i64)> {
    let all = flows(sequence);
    let pairs = all.values().flat_map(|f| f.windows(2));
    pairs
        .map(|w| {
            let time = sequence[w[1]].captured as i64 - sequence[w[0]].captured as i64;
            ((w[1] - w[0]) as u64, time)
        })
        .collect()
}

/// Complete batches of `n`, switches as they come, switches sorted.
pub(crate) fn switches(sequence: &[Seen], n: usize) -> (u64, u64, u64) {
    sequence.chunks_exact(n).fold((0, 0, 0), |(batches, unordered, ordered), chunk| {
        let changes = chunk.windows(2).filter(|w| w[0].key != w[1].key).count() as u64;
        let distinct = chunk.iter().map(|p| p.key).collect::<HashSet<_>>().len() as u64;
        (batches + 1, unordered + changes, ordered + distinct - 1)
    })
}

/// NumPy's linear percentile.
pub(crate) fn quantile(mut values: Vec<f64>, q: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = q * values.len().checked_sub(1)? as f64;
    let (low, high) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
    Some(low + (high - low) * rank.fract())
}

/// Addresses by TCP flows, the most first, each with its flow sizes as sender and as receiver, ascending.
pub(crate) fn endpoints(tcp: &[Seen]) -> Vec<(IpAddr, Vec<u64>, Vec<u64>)> {
    let mut sides: HashMap<IpAddr, (Vec<u64>, Vec<u64>)> = HashMap::new();
    for (key, flow) in flows(tcp) {
        sides.entry(key.src()).or_default().0.push(flow.len() as u64);
        sides.entry(key.dst()).or_default().1.push(flow.len() as u64);
    }
    let mut list: Vec<_> = sides.into_iter().map(|(a, (tx, rx))| (a, tx, rx)).collect();
    for (_, tx, rx) in &mut list {
        tx.sort_unstable();
        rx.sort_unstable();
    }
    list.sort_by_key(|(a, tx, rx)| (std::cmp::Reverse(tx.len() + rx.len()), *a));
    list
}

/// Flows of which the two directions count as one.
pub(crate) fn bidirectional(sequence: &[Seen]) -> u64 {
    let ends = |k: &FlowKey| {
        let mut ends = [(k.src(), k.src_port()), (k.dst(), k.dst_port())];
        ends.sort_unstable();
        (k.vlans().collect::<Vec<_>>(), k.protocol(), ends)
    };
    sequence.iter().map(|p| ends(&p.key)).collect::<BTreeSet<_>>().len() as u64
}
