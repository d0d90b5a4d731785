//! Stages that lead packets about: counter, discard, limit, tap, tee; and the type of [`switch`].

use std::path::Path;

use super::switch;
use slipstream_core::batch::Batch;
use slipstream_core::flow_context::FlowUse;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::packet::headers_of;
use slipstream_core::port::Transmit;
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, OUT, PortType, Ports, Properties, Site, StageType,
};
use slipstream_core::rules::Rule;
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, DropReason, Drops, Egress, Observe, Stage, StageError, Verdict};
use slipstream_core::time::Nanos;
use slipstream_core::units::Rate;
use slipstream_functions::{DECIDE, FunctionContext, NetworkFunction, stage_of};
use slipstream_io::capture::{CaptureWriter, Format, WriterOptions};
use slipstream_io::ports::CaptureStage;
use slipstream_io::sink::{CaptureSink, Stamp};

const RULES: Setting = Setting {
    name: "rules",
    kind: Kind::Rules,
    default: Some("any"),
    required: false,
    help: "The packets that are meant",
};

pub(super) const COUNTER: StageType = StageType {
    name: "counter",
    group: Group::Plumbing,
    summary: "Counts packets and bytes",
    example: "in -> counter(rules=\"tcp syn\") -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[RULES],
    properties: Properties {
        ..Properties::new(
            // Counts add up.
            |_| Meets::Nothing,
        )
    },
    build: |settings, _| {
        Ok(Made::Stage(Box::new(Counter { rules: settings.rules("rules"), packets: 0, bytes: 0 })))
    },
};

pub(super) const DISCARD: StageType = StageType {
    name: "discard",
    group: Group::Plumbing,
    summary: "Drops every packet",
    example: "fw[denied] -> discard",
    inputs: IN,
    outputs: Ports::None,
    settings: &[],
    properties: Properties {
        drops: &[DropReason::Discarded],
        ..Properties::new(
            // Every packet goes.
            |_| Meets::Nothing,
        )
    },
    build: |_, _| Ok(Made::Stage(Box::new(Discard::default()))),
};

pub(super) const LIMIT: StageType = StageType {
    name: "limit",
    group: Group::Plumbing,
    summary: "Lets packets pass up to a rate (token bucket), over which they leave by port `exceeded`",
    example: "in -> limit(rate=100mbps, burst=64KiB) -> out",
    inputs: IN,
    outputs: Ports::These(&[
        PortType { name: "out", help: "packets within the rate", unconnected: None },
        PortType {
            name: "exceeded",
            help: "packets over the rate",
            unconnected: Some(DropReason::RateLimited),
        },
    ]),
    settings: &[
        Setting {
            name: "rate",
            kind: Kind::Rate,
            default: None,
            required: true,
            help: "Packets or bits (of whole frames) a second",
        },
        Setting {
            name: "burst",
            kind: Kind::Bytes(1, 1 << 32),
            default: None,
            required: false,
            help: "Bytes, or packets where the rate is one of packets, that may pass at once after a pause; left out: 64KiB, \
                   or the packets of a tenth of a second",
        },
    ],
    properties: Properties {
        ..Properties::new(
            // The rate is one of all packets: one bucket counts them.
            |_| Meets::Everything,
        )
    },
    build: limit,
};

pub(super) const SWITCH: StageType = StageType {
    name: "switch",
    group: Group::Plumbing,
    summary: "Leads packets to ports by rules; the first that matches counts",
    example: "in -> sw :: switch(ports=[\"dns: udp port 53\"]); sw[dns] -> out; sw[other] -> discard",
    inputs: IN,
    outputs: Ports::AsSet("one for each rule, by its name, and `other`"),
    settings: &[
        Setting {
            name: "ports",
            kind: Kind::List(&Kind::Text("NAME: RULE")),
            default: None,
            required: true,
            help: "Names of ports and what goes to them",
        },
        DECIDE,
    ],
    properties: Properties {
        reload: Some(switch::RELOAD),
        ..Properties::new(
            // The rules read a packet's own headers.
            |_| Meets::Nothing,
        )
    },
    build: switch::build,
};

pub(super) const TAP: StageType = StageType {
    name: "tap",
    group: Group::Plumbing,
    summary: "Writes a copy of every packet to a capture file",
    example: "in -> tap(path=seen.pcapng) -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "path",
            kind: Kind::File,
            default: None,
            required: true,
            help: "The file to write; `-` for stdout",
        },
        RULES,
    ],
    properties: Properties {
        writes: Some("path"),
        ..Properties::new(
            // A file is one sequence, which one core writes.
            |_| Meets::Everything,
        )
    },
    build: tap,
};

pub(super) const TEE: StageType = StageType {
    name: "tee",
    group: Group::Plumbing,
    summary: "Copies every packet to each of its ports",
    example: "in -> t :: tee(ports=2); t[0] -> out; t[1] -> discard",
    inputs: IN,
    outputs: Ports::AsSet("as many as `ports` says, by number"),
    settings: &[Setting {
        name: "ports",
        kind: Kind::Count(1, 64),
        default: Some("2"),
        required: false,
        help: "How many ports",
    }],
    properties: Properties {
        copies: true,
        // The output has several packets with one payload among them.
        needs_payload: |_| Some("it multiplies packets, and a payload comes back once"),
        ..Properties::new(
            // Every packet is copied alike.
            |_| Meets::Nothing,
        )
    },
    build: |settings, _| {
        let ports = settings.number("ports");
        let tee = Tee { ports: ports as u8, copy: Batch::new() };
        Ok(Made::WithPorts(Box::new(tee), (0..ports).map(|n| n.to_string()).collect()))
    },
};

#[derive(Debug)]
struct Counter {
    rules: Rule,
    packets: u64,
    bytes: u64,
}

impl Stage for Counter {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        for frame in &batch.frames {
            let len = cx.pool.meta(frame.buf).original_len;
            if selects(&self.rules, cx, frame, len) {
                self.packets += 1;
                self.bytes += u64::from(len);
            }
        }
        batch.ports.clear();
        out.emit(cx.pool, batch);
    }

    fn flow_use(&self) -> FlowUse {
        FlowUse::PASSES
    }
}

impl Observe for Counter {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_counted", self.packets);
        visit("bytes_counted", self.bytes);
    }
}

#[inline]
fn selects(rules: &Rule, cx: &Context<'_>, frame: &Frame, len: u32) -> bool {
    rules.is_always() || headers_of(cx, frame).is_some_and(|h| rules.matches(&h, len))
}

#[derive(Debug, Default)]
struct Discard {
    drops: Drops,
}

impl Stage for Discard {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
        self.drops.add(DropReason::Discarded, batch.frames.len() as u64);
        batch.frames.iter().for_each(|f| cx.pool.free(f.buf));
        batch.clear();
    }
}

impl Observe for Discard {
    fn drops(&self) -> Drops {
        self.drops
    }
}

fn limit(settings: &Settings, _: &Site<'_>) -> Result<Made, BuildError> {
    let (per_second, bits) = match settings.rate("rate") {
        Some(Rate::Packets(n)) => (n, false),
        Some(Rate::Bits(n)) => (n, true),
        None => (0, false),
    };
    if per_second == 0 {
        return Err(
            BuildError::setting("rate", "a rate of 0 lets nothing pass").hint("use `discard` for that")
        );
    }
    let usual = if bits { 1 << 16 } else { (per_second / 10).max(1) };
    let burst = settings.optional_number("burst").unwrap_or(usual);
    let full = u128::from(if bits { burst * 8 } else { burst }) * SECOND;
    let limit = Limit { per_second, bits, tokens: full, full, last: Nanos(0) };
    Ok(Made::Stage(stage_of(limit, &Settings::default())))
}

const SECOND: u128 = 1_000_000_000;

/// A token bucket, exact: tokens are counted in bits (or packets) times ns of a second.
#[derive(Debug)]
struct Limit {
    per_second: u64,
    bits: bool,
    tokens: u128,
    full: u128,
    last: Nanos,
}

impl Limit {
    fn conforms(&mut self, now: Nanos, len: u32) -> bool {
        let gained = u128::from(now.since(self.last)) * u128::from(self.per_second);
        self.last = self.last.max(now);
        self.tokens = (self.tokens + gained).min(self.full);
        let cost = if self.bits { u128::from(len) * 8 } else { 1 } * SECOND;
        let conforms = cost <= self.tokens;
        self.tokens -= if conforms { cost } else { 0 };
        conforms
    }
}

impl NetworkFunction for Limit {
    type Decision = ();
    type Lookahead = ();

    fn look_ahead(&mut self, _: &Context<'_>, _: &Frame, (): &mut ()) {}

    fn decide(&mut self, _: &mut FunctionContext<'_, '_>, _: &Frame, (): &()) {}

    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        (): &(),
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        for (frame, verdict) in frames.iter().zip(verdicts) {
            let len = fx.cx.pool.meta(frame.buf).original_len;
            if !self.conforms(fx.cx.now.max(frame.arrival), len) {
                *verdict = Verdict::port(1);
            }
        }
    }
}

impl Observe for Limit {}

fn tap(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let rules = settings.rules("rules");
    if site.dry {
        return Ok(Made::Stage(Box::new(Counter { rules, packets: 0, bytes: 0 })));
    }
    let path = settings.file("path").unwrap_or(Path::new("-"));
    let options = WriterOptions::for_path(path, Format::PcapNg);
    let writer =
        CaptureWriter::to_named(path, options).map_err(|e| BuildError::setting("path", e.to_string()))?;
    let writes = CaptureStage::new(CaptureSink::new(writer, Stamp::Release));
    let writes = if site.live { writes.published() } else { writes };
    Ok(Made::Stage(Box::new(Tap { writes, rules, selected: Batch::new() })))
}

#[derive(Debug)]
struct Tap {
    writes: CaptureStage,
    rules: Rule,
    selected: Batch,
}

impl Stage for Tap {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        if self.rules.is_always() {
            self.writes.write(cx, batch);
        } else {
            for (train, frames) in batch.iter() {
                for frame in frames {
                    if selects(&self.rules, cx, frame, cx.pool.meta(frame.buf).original_len) {
                        self.selected.push_single(*frame, train.release, 0);
                    }
                }
            }
            self.writes.write(cx, &self.selected);
            self.selected.clear();
        }
        batch.ports.clear();
        out.emit(cx.pool, batch);
    }

    fn next_deadline(&self) -> Nanos {
        self.writes.next_look()
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, _: &mut dyn Output) {
        self.writes.publish(cx.now);
    }

    fn egress(&mut self) -> Option<&mut dyn Egress> {
        Some(self)
    }
}

impl Observe for Tap {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.writes.counters(visit);
    }

    fn trouble(&self) -> Option<String> {
        self.writes.trouble()
    }
}

impl Egress for Tap {
    fn interfaces(&mut self, new: &[Interface]) -> Result<(), StageError> {
        self.writes.interfaces(new).map_err(StageError::from)
    }

    fn flush(&mut self) -> Result<(), StageError> {
        self.writes.flush().map_err(StageError::from)
    }

    fn finish(&mut self) -> Result<(), StageError> {
        self.writes.finish().map_err(StageError::from)
    }
}

#[derive(Debug)]
struct Tee {
    ports: u8,
    copy: Batch,
}

impl Stage for Tee {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        for port in 1..self.ports {
            self.copy.trains.extend_from_slice(&batch.trains);
            self.copy.ports.resize(batch.trains.len(), port);
            for frame in &batch.frames {
                let buf = cx.pool.copy(frame.buf, frame.len);
                self.copy.frames.push(Frame { buf, ..*frame });
            }
            out.emit(cx.pool, &mut self.copy);
            self.copy.clear();
        }
        batch.ports.clear();
        out.emit(cx.pool, batch);
    }

    fn emits_apart(&self) -> bool {
        self.ports > 1
    }
}

impl Observe for Tee {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The bucket lets no more pass in any stretch of time than the rate and one burst allow, and no less
        /// than it must: a packet that is refused would have exceeded that.
        #[test]
        fn the_bucket_keeps_its_rate(
            gaps in proptest::collection::vec((0u64..3_000_000, 60u32..1500), 1..200),
            rate in 1_000_000u64..100_000_000,
            burst in 1500u64..20_000,
        ) {
            let full = u128::from(burst * 8) * SECOND;
            let mut limit = Limit { per_second: rate, bits: true, tokens: full, full, last: Nanos(0) };
            let mut now = 0;
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (gap, len) in gaps {
                now += gap;
                // The slow twin: most bits over all stretches that end now, against what they allow.
                let bits = |from: usize| passed.iter().skip(from).map(|p| p.1).sum::<u64>() + u64::from(len) * 8;
                let fits = (0..=passed.len()).all(|from| {
                    let since = passed.get(from).map_or(now, |p| p.0);
                    u128::from(bits(from)) * SECOND <= full + u128::from(now - since) * u128::from(rate)
                });
                prop_assert_eq!(limit.conforms(Nanos(now), len), fits);
                if fits {
                    passed.push((now, u64::from(len) * 8));
                }
            }
        }
    }
}
