//! The frontier of a trace: mean train against mean added delay, for fixed holds, for the adaptive hold at
//! several prices, and for a hold that knows the future.

mod clairvoyant;

use std::collections::HashMap;

use anyhow::bail;
use serde::Serialize;
use slipstream::reframe::embed::{EmbedError, Packet, Reframer};
use slipstream::reframe::{Admit, Budget, Cause, ClassStats, ReframeConfig, ReframeStats};
use slipstream::rules::Rule;
use slipstream::time::Nanos;
use slipstream::units::Duration;
use slipstream_wire::{Encapsulation, FlowKey, Headers, LinkType, classify_with};

/// The longest hold of the adaptive and the clairvoyant ones is so many times the longest of the fixed ones.
const LONGER: u64 = 8;
/// Prices that are tried: so many for each octave of the range.
const PRICES_AN_OCTAVE: i32 = 2;

/// The headers of a trace's packets, about 90 bytes each.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    packets: Vec<(Nanos, u32, Headers)>,
    last: Nanos,
}

impl Arrivals {
    /// A packet: its time, which counts as that of the one before where it runs backwards, its length on the
    /// wire, and its bytes. One without a flow is left out.
    pub fn push(
        &mut self,
        time: Nanos,
        link: LinkType,
        original_len: u32,
        data: &[u8],
        encapsulation: Encapsulation,
    ) {
        self.last = self.last.max(time);
        if let Ok(headers) = classify_with(link, data, encapsulation) {
            self.packets.push((self.last, original_len, headers));
        }
    }

    /// Packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The time of the first packet.
    pub(crate) fn first(&self) -> Nanos {
        self.packets.first().map_or(Nanos(0), |p| p.0)
    }

    /// The packets of each flow by themselves.
    pub(crate) fn by_flow(&self) -> Vec<Self> {
        let mut numbers: HashMap<FlowKey, usize> = HashMap::new();
        let mut flows: Vec<Self> = Vec::new();
        for packet in &self.packets {
            let next = flows.len();
            let number = *numbers.entry(packet.2.key).or_insert(next);
            if number == next {
                flows.push(Self::default());
            }
            if let Some(flow) = flows.get_mut(number) {
                flow.packets.push(*packet);
                flow.last = packet.0;
            }
        }
        flows
    }

    /// From now on all packets have this length.
    pub(crate) fn forget_sizes(&mut self) {
        self.packets.iter_mut().for_each(|p| p.1 = 1500);
    }

    /// From now on no packet has a TCP flag.
    pub(crate) fn forget_flags(&mut self) {
        self.packets.iter_mut().for_each(|p| p.2.tcp_flags = 0);
    }

    /// Makes the gaps between the packets of the second half so many times as long; returns when it begins.
    pub(crate) fn stretch_second_half(&mut self, times: u64) -> Nanos {
        let half = self.packets.len() / 2;
        let (before, after) = self.packets.split_at_mut(half);
        let start = before.last().map_or(Nanos(0), |p| p.0);
        for (time, ..) in after {
            *time = start.after(time.since(start) * times);
            self.last = *time;
        }
        start
    }
}

/// The effect of one setting on a trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The hold, in ns: the longest wait of any packet.
    pub hold_ns: u64,
    /// The price of the adaptive and clairvoyant holds: delay that a packet more in a train is worth, in ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_ns: Option<u64>,
    /// Packets a train. Of a trace without a packet that has a flow this and the means below are NaN, which
    /// is `null` in JSON.
    pub mean_train: f64,
    /// Mean added delay of all packets, in ns.
    pub mean_delay_ns: f64,
    /// Time that trains of one packet waited for nothing, in ns a packet. None of clairvoyance.
    pub futile_wait_ns: f64,
}

/// A fixed hold, and what reaches the same mean train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The fixed hold.
    #[serde(flatten)]
    pub fixed: Point,
    /// The adaptive hold at the same mean train, with the least delay: [`Beside::learned`], or the same hold
    /// at the highest price, where it is the fixed one.
    pub adaptive: Point,
    /// The adaptive hold at the same mean train, between two prices of [`Frontier::adaptive`]; none where it
    /// doesn't get that far.
    pub learned: Option<Point>,
    /// The hold that knows the future, at the same mean train.
    pub clairvoyant: Option<Point>,
}

/// The frontier of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Frontier {
    /// Packets a train at most.
    pub burst: u16,
    /// The longest wait of any packet under the adaptive and clairvoyant holds, in ns.
    pub longest_ns: u64,
    /// The fixed holds, each beside the others.
    pub holds: Vec<Beside>,
    /// The adaptive hold at prices from low to high.
    pub adaptive: Vec<Point>,
    /// The hold that knows the future, at prices from low to high.
    pub clairvoyant: Vec<Point>,
}

impl Beside {
    /// Nothing that is learned shortens the waits for trains of this length.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.adaptive.price_ns == Some(Budget::MAX_PRICE_NS)
    }
}

impl Frontier {
    /// Measures the frontier. `tick` is called with the share that is done, and ends it by an error.
    ///
    /// # Errors
    /// A hold or burst is out of range, and what `tick` says.
    pub fn measure(
        arrivals: &Arrivals,
        holds_ns: &[u64],
        burst: u16,
        mut tick: impl FnMut(f64) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let longest = holds_ns.iter().max().copied().unwrap_or(0).max(1);
        let shortest = holds_ns.iter().filter(|h| **h > 0).min().copied().unwrap_or(1);
        let longest_ns = (longest * LONGER).min(ReframeConfig::MAX_HOLD_NS);
        let prices = prices(shortest / 8, longest_ns * 8);
        let steps = (holds_ns.len() + prices.len()) as f64;
        let (mut fixed, mut adaptive) = (Vec::new(), Vec::new());
        for hold in holds_ns {
            fixed.push(hold_at(arrivals, *hold, burst, None)?);
            tick(0.8 * fixed.len() as f64 / steps)?;
        }
        for price in &prices {
            adaptive.push(hold_at(arrivals, longest_ns, burst, Some(*price))?);
            tick(0.8 * (fixed.len() + adaptive.len()) as f64 / steps)?;
        }
        let mut clairvoyant = Vec::new();
        let flows = flows(arrivals);
        for price in &prices {
            clairvoyant.push(knowing(&flows, longest_ns, burst, *price));
            tick(0.8 + 0.2 * clairvoyant.len() as f64 / prices.len() as f64)?;
        }
        let beside = |fixed: Point| {
            let learned = at_train(&adaptive, fixed.mean_train);
            Beside {
                fixed,
                adaptive: learned
                    .filter(|p| p.mean_delay_ns <= fixed.mean_delay_ns)
                    .unwrap_or(Point { price_ns: Some(Budget::MAX_PRICE_NS), ..fixed }),
                learned,
                clairvoyant: at_train(&clairvoyant, fixed.mean_train),
            }
        };
        let holds = fixed.into_iter().map(beside).collect();
        Ok(Self { burst, longest_ns, holds, adaptive, clairvoyant })
    }
}

/// Prices from one to the other, in equal ratios.
pub(crate) fn prices(from: u64, to: u64) -> Vec<u64> {
    let (from, to) = (from.max(16) as f64, to as f64);
    let steps = ((to / from).log2().max(0.0) * f64::from(PRICES_AN_OCTAVE)).ceil() as i32;
    (0..=steps).map(|n| (from * 2f64.powf(f64::from(n) / f64::from(PRICES_AN_OCTAVE))) as u64).collect()
}

/// Runs the reframer over a trace; with a price the hold is adaptive.
///
/// # Errors
/// A setting is out of range.
pub fn hold_at(
    arrivals: &Arrivals,
    hold_ns: u64,
    burst: u16,
    price_ns: Option<u64>,
) -> anyhow::Result<Point> {
    let budget = price_ns.map(Budget::Price);
    let (point, _) = run(arrivals, hold_ns, burst, budget, &mut |_, _| {})?;
    Ok(Point { price_ns, ..point })
}

/// Runs the reframer over a trace, under a budget or with a fixed hold. `each` is told the release time of
/// each train, and the packets' delays in ns. The second value is the price at the end.
///
/// # Errors
/// A setting is out of range.
pub(crate) fn run(
    arrivals: &Arrivals,
    hold_ns: u64,
    burst: u16,
    budget: Option<Budget>,
    each: &mut dyn FnMut(Nanos, &mut dyn Iterator<Item = u64>),
) -> anyhow::Result<(Point, Option<u64>)> {
    let config = ReframeConfig { budget, ..config(hold_ns, burst) };
    let admit = if budget.is_some() { Admit::Adaptive } else { Admit::Always };
    let (point, stats) = run_with(arrivals, &ReframeConfig { admit, ..config }, each)?;
    Ok((point, stats.prices_ns.first().copied()))
}

/// Settings under which every packet is held; where that takes more room, [`run_with`] makes it.
pub(crate) fn config(hold_ns: u64, burst: u16) -> ReframeConfig {
    let mut config = ReframeConfig {
        capacity: 1 << 17,
        capacity_bytes: ReframeConfig::MAX_CAPACITY_BYTES,
        flows: 1 << 20,
        bypass: Rule::never(),
        ..ReframeConfig::default()
    };
    config.default.hold_ns = hold_ns;
    config.default.burst = burst;
    config
}

/// The most packets that come within a time after one of them, it included: no hold of that time has more of
/// them at once.
fn most_within(arrivals: &Arrivals, time_ns: u64) -> usize {
    let times = arrivals.packets.iter().map(|p| p.0);
    let mut oldest = times.clone().peekable();
    let (mut within, mut most) = (0usize, 0);
    for now in times {
        within += 1;
        while oldest.next_if(|then| now.since(*then) > time_ns).is_some() {
            within -= 1;
        }
        most = most.max(within);
    }
    most
}

/// Checks that all packets of a run had room for as long as they were to be held.
///
/// # Errors
/// Trains left for want of room: the run is not that of a hold of this length.
pub fn check_room(total: &ClassStats, hold_ns: u64) -> anyhow::Result<()> {
    if total.released.get(Cause::Capacity as usize).is_some_and(|trains| *trains > 0) {
        let hold = Duration(hold_ns);
        bail!("more is held at once for {hold} than a reframer has room for: choose shorter holds");
    }
    Ok(())
}

/// Runs the reframer over a trace, with room for all that it holds at once; see [`run`].
///
/// # Errors
/// A setting is out of range, or more is held at once than a reframer has room for.
pub(crate) fn run_with(
    arrivals: &Arrivals,
    config: &ReframeConfig,
    each: &mut dyn FnMut(Nanos, &mut dyn Iterator<Item = u64>),
) -> anyhow::Result<(Point, ReframeStats)> {
    let hold_ns = config.default.hold_ns;
    let most = u32::try_from(most_within(arrivals, hold_ns)).unwrap_or(u32::MAX);
    let capacity = most.min(ReframeConfig::MAX_CAPACITY).max(config.capacity);
    let config = &ReframeConfig { capacity, ..config.clone() };
    let mut reframer = Reframer::new(config).map_err(|e: EmbedError| anyhow::anyhow!("{e}"))?;
    let came = |handle: &u32| arrivals.packets.get(*handle as usize).map_or(Nanos(0), |p| p.0);
    let mut polled = |reframer: &mut Reframer, now| {
        while let Some(train) = reframer.poll(now) {
            each(train.release, &mut train.handles.iter().map(|h| train.release.since(came(h))));
        }
    };
    for (handle, (time, len, headers)) in (0u32..).zip(&arrivals.packets) {
        let packet = Packet::with_headers(handle, *len, *headers);
        reframer.push_burst(*time, [packet].into_iter())?;
        polled(&mut reframer, *time);
    }
    polled(&mut reframer, arrivals.last.after(hold_ns).after(1));
    reframer.drain();
    polled(&mut reframer, Nanos::MAX);
    let stats = reframer.stats();
    let total = stats.total();
    check_room(&total, hold_ns)?;
    let point = Point {
        hold_ns,
        price_ns: None,
        mean_train: total.mean_train().unwrap_or(f64::NAN),
        mean_delay_ns: total.delay.mean().unwrap_or(f64::NAN),
        futile_wait_ns: total.futile_wait_ns as f64 / arrivals.len() as f64,
    };
    Ok((point, stats))
}

/// Times of the packets, by flow.
fn flows(arrivals: &Arrivals) -> Vec<Vec<u64>> {
    let mut numbers: HashMap<FlowKey, usize> = HashMap::new();
    let mut flows: Vec<Vec<u64>> = Vec::new();
    for (time, _, headers) in &arrivals.packets {
        let next = flows.len();
        let number = *numbers.entry(headers.key).or_insert(next);
        if number == next {
            flows.push(Vec::new());
        }
        if let Some(flow) = flows.get_mut(number) {
            flow.push(time.0);
        }
    }
    flows
}

fn knowing(flows: &[Vec<u64>], hold_ns: u64, burst: u16, price_ns: u64) -> Point {
    let (mut packets, mut trains, mut delay) = (0u64, 0u64, 0f64);
    for times in flows {
        let cut = clairvoyant::cut(times, burst.into(), hold_ns, price_ns);
        packets += times.len() as u64;
        trains += cut.trains;
        delay += cut.delay_ns as f64;
    }
    Point {
        hold_ns,
        price_ns: Some(price_ns),
        mean_train: packets as f64 / trains as f64,
        mean_delay_ns: delay / packets as f64,
        futile_wait_ns: if packets > 0 { 0.0 } else { f64::NAN },
    }
}

/// The point of a curve at a mean train, between the two points beside it; none where the curve doesn't get
/// there.
#[must_use]
pub fn at_train(curve: &[Point], mean_train: f64) -> Option<Point> {
    let mut sorted = curve.to_vec();
    sorted.sort_by(|a, b| a.mean_train.total_cmp(&b.mean_train));
    // Without waiting, trains are what they are.
    if let Some(first) = sorted.first().filter(|p| p.mean_train >= mean_train) {
        return (first.mean_train - mean_train < 1e-9).then_some(*first);
    }
    sorted.windows(2).find_map(|pair| match pair {
        [a, b] if b.mean_train >= mean_train => {
            let share = (mean_train - a.mean_train) / (b.mean_train - a.mean_train).max(1e-12);
            let mix = |of: fn(&Point) -> f64| of(a) + share * (of(b) - of(a));
            let price = mix(|p| p.price_ns.unwrap_or(0) as f64);
            Some(Point {
                hold_ns: a.hold_ns,
                price_ns: a.price_ns.map(|_| price as u64),
                mean_train,
                mean_delay_ns: mix(|p| p.mean_delay_ns),
                futile_wait_ns: mix(|p| p.futile_wait_ns),
            })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(port: u16) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[34..36].copy_from_slice(&port.to_be_bytes());
        bytes
    }

    #[test]
    fn of_no_packet_there_is_no_mean() {
        let frontier = Frontier::measure(&Arrivals::default(), &[3000], 4, |_| Ok(())).unwrap();
        let json = serde_json::to_value(&frontier).unwrap();
        let points = [&json["holds"][0], &json["adaptive"][0], &json["clairvoyant"][0]];
        for key in ["mean_train", "mean_delay_ns", "futile_wait_ns"] {
            assert!(points.iter().all(|p| p[key].is_null()), "{json}");
        }
        assert_eq!(json["holds"][0]["hold_ns"], 3000);
    }

    /// A hold is as long as it says, however many packets that is at once.
    #[test]
    fn all_that_is_held_has_room() {
        let mut arrivals = Arrivals::default();
        let (flows, rounds) = (3u64 << 16, 2);
        for n in 0..rounds * flows {
            let mut bytes = udp((n % flows) as u16);
            bytes[26] = 10 + ((n % flows) >> 16) as u8;
            arrivals.push(Nanos(n), LinkType::Ethernet, 60, &bytes, Encapsulation::Outer);
        }
        assert_eq!([0, 1, flows].map(|time| most_within(&arrivals, time)), [1, 2, flows as usize + 1]);
        let point = hold_at(&arrivals, rounds * flows, 32, None).unwrap();
        assert_eq!(point.mean_train, rounds as f64, "{point:?}");
        assert_eq!(point.mean_delay_ns, (rounds * flows) as f64 - 0.5 * flows as f64);
    }

    /// More bytes than a reframer holds: there is no point that would be that of the hold.
    #[test]
    fn a_hold_that_has_no_room_is_refused() {
        let mut arrivals = Arrivals::default();
        for port in 0..50_000 {
            arrivals.push(Nanos(0), LinkType::Ethernet, 65_535, &udp(port), Encapsulation::Outer);
        }
        let error = hold_at(&arrivals, 1000, 32, None).unwrap_err();
        assert!(error.to_string().contains("choose shorter holds"), "{error}");
    }

    /// Flows that send four packets, one each 2 µs, and then nothing for long: a fixed hold waits in vain
    /// behind each fourth packet, and what learns does not.
    #[test]
    fn it_lies_between_the_fixed_hold_and_clairvoyance() {
        let mut arrivals = Arrivals::default();
        for n in 0..40_000u64 {
            let (round, step, flow) = (n / 40, n / 10 % 4, n % 10);
            let time = round * 1_000_000 + step * 2000 + flow * 100;
            arrivals.push(Nanos(time), LinkType::Ethernet, 60, &udp(flow as u16), Encapsulation::Outer);
        }
        let frontier = Frontier::measure(&arrivals, &[3000, 10_000], 4, |_| Ok(())).unwrap();
        let beside = &frontier.holds[0];
        let (adaptive, knowing) = (beside.learned.unwrap(), beside.clairvoyant.unwrap());
        assert!(knowing.mean_delay_ns <= adaptive.mean_delay_ns, "{beside:?}");
        assert!(adaptive.mean_delay_ns <= beside.fixed.mean_delay_ns * 1.02, "{beside:?}");
        // Nothing is learned before the first trains have gone: it comes near the longest ones, and stays
        // behind them.
        let longest = frontier.adaptive.iter().max_by(|a, b| a.mean_train.total_cmp(&b.mean_train)).unwrap();
        assert!(longest.mean_train > 3.9 && longest.mean_delay_ns < 3060.0, "{longest:?}");
        assert!((frontier.holds[1].fixed.mean_train - 4.0).abs() < 1e-9);
        assert_eq!(frontier.holds[1].fixed.mean_delay_ns, 3000.0);
    }

    /// Sixty flows that send four packets at once every 400 µs: their trains cost nothing, and the next
    /// packet more a whole period. No price gives a delay between.
    #[test]
    fn a_mean_delay_is_kept_where_no_price_gives_it() {
        let mut arrivals = Arrivals::default();
        for burst in 0..60 * 800u64 {
            let (round, flow) = (burst / 60, burst % 60);
            for n in 0..4 {
                let time = Nanos(round * 400_000 + flow * 6_666 + n * 300);
                arrivals.push(time, LinkType::Ethernet, 60, &udp(flow as u16), Encapsulation::Outer);
            }
        }
        for aim in [5_000u64, 10_000, 30_000, 100_000, 200_000] {
            let (point, _) = run(&arrivals, 1_000_000, 32, Some(Budget::Delay(aim)), &mut |_, _| {}).unwrap();
            let share = point.mean_delay_ns / aim as f64;
            assert!((0.75..1.25).contains(&share) && point.mean_train >= 4.0, "{aim}: {point:?}");
        }
    }

    /// Few packets of flows that come back after any time: no wait is worth more than another, and what is
    /// learned may by chance be worse than a fixed hold.
    #[test]
    fn it_is_nowhere_above_a_fixed_hold_and_its_settings_give_what_it_says() {
        let mut fixed_ones = 0;
        for seed in 1..=6u64 {
            let (mut arrivals, mut chance) = (Arrivals::default(), seed);
            for n in 0..750u64 {
                chance =
                    chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let flow = (chance >> 33) % 300;
                for k in 0..4 {
                    let time = Nanos((4 * n + k) * 1000);
                    arrivals.push(time, LinkType::Ethernet, 60, &udp(flow as u16), Encapsulation::Outer);
                }
            }
            let frontier = Frontier::measure(&arrivals, &[16_000, 32_000, 64_000], 32, |_| Ok(())).unwrap();
            for beside in &frontier.holds {
                let (adaptive, fixed) = (beside.adaptive, beside.fixed);
                assert!(adaptive.mean_delay_ns <= fixed.mean_delay_ns, "{beside:?}");
                assert!((adaptive.mean_train - fixed.mean_train).abs() < 1e-9, "{beside:?}");
                if beside.is_fixed() {
                    fixed_ones += 1;
                    let ran = hold_at(&arrivals, adaptive.hold_ns, 32, adaptive.price_ns).unwrap();
                    assert_eq!(ran, adaptive);
                }
            }
        }
        assert!(fixed_ones > 0, "nothing was asked");
    }
}
