//! The adaptive hold beside fixed ones on made traffic of many kinds, which nothing was chosen by.
//!
//! `cargo run --release --locked -p slipstream-lab --example made_traffic -- 20 34` makes a trace of each
//! kind for each seed from 20 up to 33: 1,000 to 50,000 packets, 5 to 3,000 flows, mean gaps of 10 µs to
//! 1.5 ms within a flow. For each fixed hold of 8 µs to 1 ms that is at most a fourth of the trace and has
//! trains of 1.2 packets or more it tells the adaptive hold's delay beside the fixed one's at the same mean
//! train. Kinds may be named behind the seeds. Every point at which the fixed hold is better has a line of
//! its own; a line for each kind follows, and lines for long traces and for all.

#![expect(clippy::indexing_slicing, reason = "a program that measures, whose numbers are its own")]

use slipstream::time::Nanos;
use slipstream_lab::frontier::{Arrivals, Point, at_train, hold_at};
use slipstream_wire::{Encapsulation, LinkType};

/// Prices of the adaptive hold for each octave.
const AN_OCTAVE: f64 = 4.0;
const BURST: u16 = 32;
/// The longest hold is so many times the longest fixed one.
const LONGER: u64 = 8;

const KINDS: [&str; 22] = [
    "on-off",
    "poisson",
    "zipf",
    "hot",
    "pareto",
    "paced",
    "jitter",
    "tcp",
    "change",
    "mix",
    "runs",
    "bursts",
    "lognormal",
    "weibull",
    "frames",
    "modulated",
    "steps",
    "mice",
    "churn",
    "incast",
    "hyper",
    "two",
];

/// Random numbers (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    fn pareto(&mut self, least: f64, exponent: f64) -> f64 {
        least * self.unit().powf(-1.0 / exponent)
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.unit())
    }
}

/// A packet: its time in µs, flow, length, and of TCP whether it is pushed.
#[derive(Clone, Copy)]
struct Sent {
    at: f64,
    flow: u32,
    len: u16,
    tcp: Option<bool>,
}

fn datagram(at: f64, flow: usize, len: u16) -> Sent {
    Sent { at, flow: flow as u32, len, tcp: None }
}

/// Packets of a trace, its flows, and the mean gap within a flow in µs.
#[derive(Clone, Copy)]
struct Shape {
    packets: usize,
    flows: usize,
    gap: f64,
}

impl Shape {
    fn drawn(chance: &mut Chance) -> Self {
        let packets = chance.pick(&[1000, 2000, 3000, 10_000, 20_000, 30_000, 50_000]);
        let flows = chance.pick(&[5, 20, 60, 300, 1000, 3000]).min(packets / 8);
        Self { packets, flows, gap: chance.between(10.0, 1500.0) }
    }

    /// Each flow begins within a gap of its own; `next` gives its gaps.
    fn gaps(self, chance: &mut Chance, mut next: impl FnMut(&mut Chance, usize) -> f64) -> Vec<Sent> {
        let mut times: Vec<f64> = (0..self.flows).map(|flow| next(chance, flow) * chance.unit()).collect();
        let lens: Vec<u16> = times.iter().map(|_| chance.pick(&[64, 200, 600, 1200, 1400])).collect();
        self.until_enough(|sent, end| {
            for flow in 0..self.flows {
                while times[flow] < end {
                    sent.push(datagram(times[flow], flow, lens[flow]));
                    times[flow] += next(chance, flow).max(0.001);
                }
            }
        })
    }

    /// Bursts of `packets`, and pauses of `pause` on average between them; of TCP they are acknowledged.
    fn bursts(
        self,
        chance: &mut Chance,
        pause: f64,
        tcp: bool,
        mut packets: impl FnMut(&mut Chance) -> usize,
        mut inner: impl FnMut(&mut Chance) -> f64,
    ) -> Vec<Sent> {
        let mut times: Vec<f64> = (0..self.flows).map(|_| chance.unit() * pause).collect();
        self.until_enough(|sent, end| {
            for (flow, time) in times.iter_mut().enumerate() {
                while *time < end {
                    let n = packets(chance).max(1);
                    for i in 0..n {
                        let pushed = i + 1 == n;
                        let short = 200 + chance.below(1200) as u16;
                        let len = if !tcp {
                            800
                        } else if pushed {
                            short
                        } else {
                            1514
                        };
                        let tcp = tcp.then_some(pushed);
                        sent.push(Sent { at: *time, flow: flow as u32, len, tcp });
                        if tcp.is_some() && i % 2 == 1 {
                            let at = *time + 5.0 + chance.exponential(20.0);
                            let flow = (self.flows + flow) as u32;
                            sent.push(Sent { at, flow, len: 66, tcp: Some(false) });
                        }
                        *time += inner(chance);
                    }
                    *time += chance.exponential(pause);
                }
            }
        })
    }

    /// Calls `send` with later and later ends of time, until there are packets enough.
    fn until_enough(self, mut send: impl FnMut(&mut Vec<Sent>, f64)) -> Vec<Sent> {
        let (mut sent, mut end) = (Vec::new(), 200.0);
        while sent.len() < self.packets {
            send(&mut sent, end);
            end *= 1.3;
        }
        self.in_order(sent)
    }

    fn in_order(self, mut sent: Vec<Sent>) -> Vec<Sent> {
        sent.sort_by(|a, b| a.at.total_cmp(&b.at));
        sent.truncate(self.packets);
        sent
    }

    /// Traffic of one shape, and then of others.
    fn one_after_another(self, parts: impl Iterator<Item = Vec<Sent>>) -> Vec<Sent> {
        let (mut all, mut begin): (Vec<Sent>, f64) = (Vec::new(), 0.0);
        for part in parts {
            let end = part.last().map_or(0.0, |sent| sent.at);
            all.extend(part.into_iter().map(|sent| Sent { at: sent.at + begin, ..sent }));
            begin += end;
        }
        self.in_order(all)
    }

    fn zipf(self, chance: &mut Chance, exponent: f64) -> Vec<Sent> {
        let weight = |flow: usize| (1.0 + flow as f64).powf(exponent);
        let sum: f64 = (0..self.flows).map(|flow| 1.0 / weight(flow)).sum();
        self.gaps(chance, |chance, flow| {
            chance.exponential(self.gap / self.flows as f64 * sum * weight(flow))
        })
    }

    #[expect(clippy::too_many_lines, reason = "one arm a kind")]
    fn made(self, chance: &mut Chance, kind: &str) -> Vec<Sent> {
        let Self { packets, flows, gap } = self;
        match kind {
            "on-off" => {
                let (mean, inner) = (chance.between(2.0, 12.0), chance.between(2.0, 40.0));
                let long = move |c: &mut Chance| 1 + c.exponential(mean) as usize;
                self.bursts(chance, gap * 5.0, false, long, |c| c.exponential(inner))
            }
            "poisson" => self.gaps(chance, |c, _| c.exponential(gap)),
            "zipf" => {
                let exponent = 0.8 + 0.5 * chance.unit();
                self.zipf(chance, exponent)
            }
            "hot" => {
                let exponent = 1.2 + 0.6 * chance.unit();
                self.zipf(chance, exponent)
            }
            "pareto" => {
                let exponent = 1.1 + chance.unit();
                self.gaps(chance, |c, _| c.pareto(gap * (exponent - 1.0) / exponent, exponent))
            }
            "paced" => self.gaps(chance, |_, _| gap),
            "jitter" => {
                let jitter = chance.between(0.02, 0.5);
                let paces: Vec<f64> = (0..flows).map(|_| gap * chance.between(0.5, 2.0)).collect();
                self.gaps(chance, |c, flow| paces[flow] * (1.0 + jitter * (2.0 * c.unit() - 1.0)))
            }
            "tcp" => {
                let (mean, inner) = (chance.between(2.0, 20.0), chance.pick(&[0.3, 1.2, 12.0]));
                let long = move |c: &mut Chance| 1 + c.exponential(mean) as usize;
                self.bursts(chance, gap * 5.0, true, long, |_| inner)
            }
            "change" => {
                let half = Self { packets: packets / 2, ..self };
                let later = Self { gap: chance.between(10.0, 1500.0), ..half };
                let kinds = ["on-off", "poisson", "tcp", "paced", "zipf", "pareto"];
                let parts = [half, later].map(|shape| {
                    let kind = chance.pick(&kinds);
                    shape.made(chance, kind)
                });
                self.one_after_another(parts.into_iter())
            }
            "mix" => {
                let (mut all, mut end) = (Vec::new(), f64::MAX);
                for (first, kind) in [(0, "poisson"), (10_000, "on-off"), (20_000, "tcp")] {
                    let gap = chance.between(10.0, 1500.0);
                    let part = Self { packets: packets / 2, flows: (flows / 3).max(2), gap };
                    let part = part.made(chance, kind);
                    end = part.last().map_or(0.0, |sent| sent.at).min(end);
                    all.extend(part.into_iter().map(|sent| Sent { flow: first + sent.flow, ..sent }));
                }
                all.retain(|sent| sent.at <= end);
                self.in_order(all)
            }
            "runs" => {
                let each = gap / flows as f64;
                let run = |n: usize, flow: usize| {
                    (0..4).map(move |i| datagram((4 * n + i) as f64 * each, flow, 64))
                };
                let all = (0..packets / 4).flat_map(|n| run(n, chance.below(flows as u64) as usize));
                all.collect()
            }
            "bursts" => {
                let (long, inner) = (chance.pick(&[2, 3, 4, 8]), chance.between(1.0, 30.0));
                let even = chance.unit() < 0.5;
                let inner = move |c: &mut Chance| if even { inner } else { c.exponential(inner) };
                self.bursts(chance, gap * 4.0, false, |_| long, inner)
            }
            "lognormal" => {
                let wide = 0.5 + 1.5 * chance.unit();
                self.gaps(chance, |c, _| gap * (wide * c.normal() - wide * wide / 2.0).exp())
            }
            "weibull" => {
                let power = 1.0 / (0.4 + 1.6 * chance.unit());
                self.gaps(chance, |c, _| gap * c.exponential(1.0).powf(power))
            }
            "frames" => {
                let more = 1 + chance.below(3) as usize;
                let mut sent = vec![0; flows];
                self.gaps(chance, |c, flow| {
                    sent[flow] += 1;
                    if sent[flow] % (more + 1) == 0 { 3.0 * gap } else { 2.0 + c.unit() }
                })
            }
            "modulated" => {
                let (ratio, stay) = (chance.between(3.0, 30.0), gap * chance.between(3.0, 100.0));
                let mut states = vec![(false, 0.0); flows];
                self.gaps(chance, |c, flow| {
                    let (slow, left) = &mut states[flow];
                    let next = c.exponential(if *slow { gap * ratio } else { gap });
                    *left -= next;
                    if *left < 0.0 {
                        (*slow, *left) = (!*slow, c.exponential(stay));
                    }
                    next
                })
            }
            "steps" => {
                let parts = [1.0, 4.0, 0.5, 8.0, 1.0].map(|times| Self {
                    packets: packets / 5,
                    flows,
                    gap: gap * times,
                });
                let parts: Vec<_> = parts.into_iter().map(|shape| shape.made(chance, "poisson")).collect();
                self.one_after_another(parts.into_iter())
            }
            "mice" => {
                let heavy = Self { packets: packets / 2, flows: (flows / 50).max(2), gap: gap / 4.0 };
                let mut all = heavy.made(chance, "poisson");
                let end = all.last().map_or(0.0, |sent| sent.at);
                let mut flow = 10_000;
                while all.len() < packets {
                    let mut at = chance.unit() * end;
                    for _ in 0..=chance.below(5) {
                        all.push(datagram(at, flow, 200));
                        at += chance.exponential(gap);
                    }
                    flow += 1;
                }
                self.in_order(all)
            }
            "churn" => {
                let (mut all, mut begin, mut flow) = (Vec::new(), 0.0, 0);
                while all.len() < packets * 11 / 10 {
                    begin += chance.exponential(gap * 6.0 / flows as f64);
                    let long = chance.pareto(2.0, 1.3).min(2000.0) as usize;
                    let (mut at, own) = (begin, chance.between(gap / 5.0, gap * 2.0));
                    for _ in 0..long {
                        all.push(datagram(at, flow, 900));
                        at += chance.exponential(own);
                    }
                    flow += 1;
                }
                self.in_order(all)
            }
            "incast" => {
                let (mut all, mut begin) = (Vec::new(), 0.0);
                let (senders, each) = (flows.min(100), 1 + chance.below(8) as usize);
                let round = chance.between(0.5, 5.0);
                while all.len() < packets {
                    for turn in 0..each * senders {
                        let at = begin + turn as f64 * round / senders as f64 + chance.exponential(1.0);
                        all.push(datagram(at, turn % senders, 1400));
                    }
                    begin += each as f64 * round + chance.exponential(gap * 3.0);
                }
                self.in_order(all)
            }
            "hyper" => {
                let (share, ratio) = (0.3 + 0.6 * chance.unit(), chance.between(5.0, 100.0));
                self.gaps(chance, |c, _| {
                    let short = c.unit() < share;
                    c.exponential(if short { 3.0 * gap / ratio } else { 2.0 * gap })
                })
            }
            // "two": flows of two rates.
            _ => {
                let ratio = chance.between(5.0, 50.0);
                let fast: Vec<bool> = (0..flows).map(|_| chance.unit() < 0.3).collect();
                self.gaps(chance, |c, flow| c.exponential(if fast[flow] { gap / ratio } else { gap }))
            }
        }
    }
}

/// The packets as a hold sees them.
fn arrivals(sent: &[Sent]) -> Arrivals {
    let mut arrivals = Arrivals::default();
    for Sent { at, flow, len, tcp } in sent {
        let [.., high, middle, low] = flow.to_be_bytes();
        let mut bytes = [0; 60];
        bytes[12..24].copy_from_slice(&[
            8,
            0,
            0x45,
            0,
            0,
            46,
            0,
            0,
            0,
            0,
            64,
            if tcp.is_some() { 6 } else { 17 },
        ]);
        bytes[26..36].copy_from_slice(&[10, 0, high, 1, 10, 0, 0, 2, middle, low]);
        match tcp {
            Some(pushed) => bytes[46..48].copy_from_slice(&[0x50, if *pushed { 0x18 } else { 0x10 }]),
            None => bytes[38..40].copy_from_slice(&[0, 26]),
        }
        let at = Nanos(1_000_000 + (at * 1000.0) as u64);
        arrivals.push(at, LinkType::Ethernet, (*len).into(), &bytes, Encapsulation::Outer);
    }
    arrivals
}

/// The time from the first packet to the last, in µs.
fn lasts(sent: &[Sent]) -> f64 {
    sent.last().map_or(0.0, |s| s.at) - sent.first().map_or(0.0, |s| s.at)
}

/// The adaptive hold's delay beside that of each fixed hold; none where it doesn't reach the same trains.
fn ratios(sent: &[Sent]) -> anyhow::Result<Vec<(u64, f64, Option<f64>)>> {
    let lasts = lasts(sent);
    let holds = (3..=10).map(|n| 1u64 << n).filter(|us| *us as f64 <= lasts / 4.0).map(|us| us * 1000);
    let arrivals = arrivals(sent);
    let fixed = holds.map(|hold| hold_at(&arrivals, hold, BURST, None)).collect::<Result<Vec<Point>, _>>()?;
    let Some(longest) = fixed.last().filter(|p| p.mean_train >= 1.2).map(|p| LONGER * p.hold_ns) else {
        return Ok(Vec::new());
    };
    let octaves = (longest as f64 * 8.0 / 1000.0).log2();
    let price = |n: i32| (1000.0 * 2f64.powf(f64::from(n) / AN_OCTAVE)) as u64;
    let prices = (0..=(octaves * AN_OCTAVE).ceil() as i32).map(price);
    let curve = prices
        .map(|price| hold_at(&arrivals, longest, BURST, Some(price)))
        .collect::<Result<Vec<Point>, _>>()?;
    let told = fixed.iter().filter(|p| p.mean_train >= 1.2).map(|p| {
        let learned = at_train(&curve, p.mean_train);
        (p.hold_ns, p.mean_train, learned.map(|learned| learned.mean_delay_ns / p.mean_delay_ns))
    });
    Ok(told.collect())
}

/// Points of traffic: packets of the trace, how many of the fixed holds it lasts, and the ratio of delays,
/// where there is one.
type Points = Vec<(usize, f64, Option<f64>)>;

/// Tells how many of these points there are, and how the adaptive hold does at them.
fn tell(name: &str, points: &Points) {
    let reached: Vec<f64> = points.iter().filter_map(|(_, _, ratio)| *ratio).collect();
    let mut above: Vec<f64> = reached.iter().copied().filter(|ratio| *ratio > 1.0).collect();
    above.sort_by(f64::total_cmp);
    let mean = (reached.iter().map(|ratio| ratio.ln()).sum::<f64>() / reached.len().max(1) as f64).exp();
    let most = reached.iter().copied().fold(0.0, f64::max);
    let middle = above.get(above.len() / 2).map_or(String::new(), |ratio| format!(" (median {ratio:.3})"));
    println!(
        "{name:10} {:5} points, {:4} above{middle}, {} not reached, mean {mean:.4}, highest {most:.3}",
        points.len(),
        above.len(),
        points.len() - reached.len()
    );
}

fn main() -> anyhow::Result<()> {
    let said: Vec<String> = std::env::args().skip(1).collect();
    let seed = |at: usize, usual: u64| said.get(at).map_or(Ok(usual), |text| text.parse());
    let (from, to) = (seed(0, 1)?, seed(1, 5)?);
    let named = |kind: &&str| said.len() < 3 || said.iter().skip(2).any(|name| name == kind);
    let mut all = Points::new();
    for kind in KINDS.into_iter().filter(named) {
        let mut of_kind = Points::new();
        for seed in from..to {
            let salt = kind.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(131).wrapping_add(byte.into()));
            let mut chance = Chance(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ salt);
            let shape = Shape::drawn(&mut chance);
            let sent = shape.made(&mut chance, kind);
            for (hold, train, ratio) in ratios(&sent)? {
                if ratio.is_none_or(|ratio| ratio > 1.0) {
                    let Shape { packets, flows, gap } = shape;
                    let ratio = ratio.map_or("not reached".to_owned(), |ratio| format!("{ratio:.3}"));
                    println!(
                        "{kind} {seed}: {packets} packets, {flows} flows, gap {gap:.0} us, trains of {} us \
                         ({train:.3}): {ratio}",
                        hold / 1000
                    );
                }
                of_kind.push((sent.len(), lasts(&sent) * 1000.0 / hold as f64, ratio));
            }
        }
        tell(kind, &of_kind);
        all.extend(of_kind);
    }
    let some = |name: &str, is: &dyn Fn(usize, f64) -> bool| {
        let points = all.iter().copied().filter(|(packets, holds, _)| is(*packets, *holds));
        tell(name, &points.collect());
    };
    some("20,000 packets and more", &|packets, _| packets >= 20_000);
    some("64 holds and more", &|_, holds| holds >= 64.0);
    some("both", &|packets, holds| packets >= 20_000 && holds >= 64.0);
    tell("all", &all);
    Ok(())
}
