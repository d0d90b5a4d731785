//! The meter in a pipeline: colours packets by their rate, and marks them (RFC 2697, RFC 2698).

use slipstream_wire::checksum::Delta;
use slipstream_wire::{Flags, FlowKey, NarrowKey};

use crate::answer::ip_length;
use crate::meter::{Colour, DscpMap, FlowMeters, Marker, Meter};
use crate::{DECIDE, FunctionContext, MAX_TOKENS, NetworkFunction, stage_of};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::packet::key_of;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{Meets, Need, Partner, Properties, need};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::time::Nanos;
use slipstream_core::units::Rate;

/// The stage type.
pub const METER: StageType = StageType {
    name: "meter",
    group: Group::Function,
    summary: "Colours packets by their rate (srTCM, trTCM) and marks them by DSCP",
    example: "in -> meter(cir=10mbps, cbs=64KiB, ebs=64KiB, mark=af1) -> out",
    inputs: Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]),
    outputs: Ports::These(&[
        PortType {
            name: "out",
            help: "green and yellow packets, red ones too where `red` is pass",
            unconnected: None,
        },
        PortType {
            name: "red",
            help: "red packets, where `red` is port",
            unconnected: Some(DropReason::RateLimited),
        },
    ]),
    settings: &[
        Setting {
            name: "cir",
            kind: Kind::Rate,
            default: None,
            required: true,
            help: "Committed information rate, in bits of IP packets a second",
        },
        Setting {
            name: "cbs",
            kind: Kind::Bytes(0, MAX_TOKENS),
            default: Some("64KiB"),
            required: false,
            help: "Committed burst size",
        },
        Setting {
            name: "ebs",
            kind: Kind::Bytes(0, MAX_TOKENS),
            default: Some("64KiB"),
            required: false,
            help: "Excess burst size, of one rate",
        },
        Setting {
            name: "pir",
            kind: Kind::Rate,
            default: None,
            required: false,
            help: "Peak information rate: with it two rates are metered (trTCM), without it one (srTCM)",
        },
        Setting {
            name: "pbs",
            kind: Kind::Bytes(1, MAX_TOKENS),
            default: Some("128KiB"),
            required: false,
            help: "Peak burst size, of two rates",
        },
        Setting {
            name: "per",
            kind: Kind::Choice(&["all", "flow"]),
            default: Some("all"),
            required: false,
            help: "One meter for all packets, or one a flow; for one a class put `switch` before it",
        },
        Setting {
            name: "flows",
            kind: Kind::Count(1, 1 << 26),
            default: Some("65536"),
            required: false,
            help: "Flows metered apart at most; those beyond share one meter",
        },
        Setting {
            name: "aware",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Take the colour into account that a packet's DSCP stands for already: by `mark`, else by the drop precedence of any assured forwarding class",
        },
        Setting {
            name: "mark",
            kind: Kind::Text("none, af1 to af4, or GREEN,YELLOW,RED as numbers 0 to 63 or -"),
            default: Some("none"),
            required: false,
            help: "Code points to write: those of an assured forwarding class, or these three; - leaves the packet's own",
        },
        Setting {
            name: "red",
            kind: Kind::Choice(&["pass", "port"]),
            default: Some("pass"),
            required: false,
            help: "Where red packets go: with the others, or to the port `red`",
        },
        DECIDE,
    ],
    properties: Properties {
        changes_frames: |settings| settings.text("mark") != "none",
        rewrites_dscp: |settings| settings.text("mark") != "none",
        partners: &[
            Partner { of: &["pbs"], need: Need::Given(&["pir"]) },
            Partner { of: &["ebs"], need: Need::Without("pir") },
            Partner { of: &["flows"], need: Need::Is("per", &["flow"]) },
        ],
        output_needs: &[("red", Need::Is("red", &["port"]))],
        without_meeting: Some(
            "with per=flow each flow has a bucket of its own, which needs no other shard's packets",
        ),
        ..Properties::new(
            // The rate is that of a flow, or of all packets: one bucket counts them.
            |settings| if settings.text("per") == "flow" { Meets::Flow } else { Meets::Everything },
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let rate = |name: &'static str| match settings.rate(name) {
        Some(Rate::Bits(bits)) => Ok(Some(bits)),
        Some(Rate::Packets(_)) => Err(BuildError::setting(name, "a meter counts bits, not packets")
            .hint("as in 10mbps; `limit` counts packets")),
        None => Ok(None),
    };
    let (cir, cbs) = (rate("cir")?.unwrap_or(0), settings.number("cbs"));
    let marker = match rate("pir")? {
        Some(pir) => Marker::TwoRate { cir, cbs, pir, pbs: settings.number("pbs") },
        None => Marker::SingleRate { cir, cbs, ebs: settings.number("ebs") },
    };
    let wrong = |e: crate::meter::MeterError| BuildError::stage(e.to_string());
    let marker = marker.checked().map_err(wrong)?;
    let meters = if settings.text("per") == "flow" {
        let flows = settings.number("flows") as u32;
        need("flows", FlowMeters::memory(flows))?;
        Meters::Flows(Box::new(FlowMeters::new(marker, flows, site.seed).map_err(wrong)?))
    } else {
        Meters::All(marker, None)
    };
    let marks = dscp_map(settings.text("mark"))
        .ok_or_else(|| BuildError::setting("mark", "no code points").hint("as in none, af1, or 10,12,14"))?;
    let stage = MeterStage {
        meters,
        marks,
        aware: settings.flag("aware"),
        red_port: settings.text("red") == "port",
        seen: [0; 3],
        not_ip: 0,
    };
    Ok(Made::Stage(stage_of(stage, settings)))
}

fn dscp_map(text: &str) -> Option<DscpMap> {
    match text {
        "none" => return Some(DscpMap { marks: [None; 3] }),
        "af1" | "af2" | "af3" | "af4" => {
            return text.bytes().last().map(|c| DscpMap::assured_forwarding(c - b'0'));
        }
        _ => {}
    }
    let mut marks = [None; 3];
    let mut parts = text.split(',').map(str::trim);
    for mark in &mut marks {
        *mark = match parts.next()? {
            "-" => None,
            number => Some(number.parse().ok().filter(|n| *n < 64)?),
        };
    }
    parts.next().is_none().then_some(DscpMap { marks })
}

#[derive(Debug)]
enum Meters {
    All(Marker, Option<Meter>),
    Flows(Box<FlowMeters>),
}

/// A meter as a network function.
#[derive(Debug)]
pub struct MeterStage {
    meters: Meters,
    marks: DscpMap,
    aware: bool,
    red_port: bool,
    /// Packets by colour.
    seen: [u64; 3],
    /// Packets without an IP header that could be read: they have no colour.
    not_ip: u64,
}

/// A flow, where each has a meter of its own.
#[derive(Clone, Copy, Debug)]
pub struct Metered {
    key: FlowKey,
    /// Its hash, unless its number is known.
    hash: u64,
    /// The number that its context says.
    number: Option<u32>,
}

impl Default for Metered {
    fn default() -> Self {
        Self { key: FlowKey::Narrow(NarrowKey([0; 2])), hash: 0, number: None }
    }
}

impl NetworkFunction for MeterStage {
    type Decision = Metered;
    type Lookahead = Metered;

    /// Of a flow it keeps the number of its meter, plus one.
    fn flow_use(&self) -> FlowUse {
        let words = if matches!(self.meters, Meters::Flows(_)) { 1 } else { 0 };
        FlowUse { words, alone: false, trains: Trains::Pass }
    }

    #[inline]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Metered) {
        let Meters::Flows(meters) = &self.meters else { return };
        if let Some((key, [number])) = cx.pool.keyed_flow_words()
            && number > 0
        {
            *found = Metered { key: FlowKey::Narrow(key), hash: 0, number: Some(number - 1) };
            return meters.prefetch_known(number - 1);
        }
        let key = key_of(cx, first).unwrap_or(FlowKey::Narrow(NarrowKey([0; 2])));
        *found = Metered { key, hash: meters.prefetch(&key), number: None };
    }

    /// Once a flow's buckets may be full again it may be forgotten; one that found no room may find it next
    /// time.
    fn holds_until(&self, Metered { key, hash, number }: &Metered, now: Nanos) -> Nanos {
        match (&self.meters, number) {
            (Meters::All(..), _) => Nanos::MAX,
            (Meters::Flows(meters), Some(_)) => meters.known_until(now),
            (Meters::Flows(meters), None) => meters.holds_until(key, *hash, now),
        }
    }

    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, _: &Frame, ahead: &Metered) -> Metered {
        let Metered { key, number, .. } = *ahead;
        match (&self.meters, number) {
            (Meters::Flows(meters), Some(id)) if !meters.has(&key, id, fx.cx.now) => {
                Metered { key, hash: meters.prefetch(&key), number: None }
            }
            _ => *ahead,
        }
    }

    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        Metered { key, hash, number }: &Metered,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        // It has no bytes of IP and no code point: it passes as it is, and takes no meter.
        if !frames.iter().any(|frame| frame.info.classified()) {
            self.not_ip += frames.len() as u64;
            return;
        }
        let now = fx.cx.now;
        let (marker, meter) = match &mut self.meters {
            Meters::All(marker, meter) => (&*marker, meter.get_or_insert_with(|| Meter::new(marker, now))),
            Meters::Flows(meters) => {
                let found = number.or_else(|| {
                    let found = meters.number(key, *hash, now);
                    if let Some(id) = found {
                        fx.cx.pool.keep_flow_words([id + 1]);
                    }
                    found
                });
                let last = frames.last().map_or(now, |frame| now.max(frame.arrival));
                meters.numbered(found, frames.len() as u64, now, last)
            }
        };
        for (frame, verdict) in frames.iter_mut().zip(verdicts) {
            if !frame.info.classified() {
                self.not_ip += 1;
                continue;
            }
            let dscp = frame.info.tos() >> 2;
            let bytes = metered_length(fx.cx, frame);
            let before = if self.aware { self.marks.colour_of(dscp) } else { Colour::Green };
            let colour = meter.colour(marker, bytes, before, now.max(frame.arrival));
            if let Some(n) = self.seen.get_mut(colour as usize) {
                *n += 1;
            }
            let mark = self.marks.mark(colour, dscp);
            if mark != dscp {
                write_dscp(fx.cx, frame, mark);
            }
            if colour == Colour::Red && self.red_port {
                *verdict = Verdict::port(1);
            }
        }
    }
}

impl Observe for MeterStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, n) in ["green", "yellow", "red"].into_iter().zip(self.seen) {
            visit(name, n);
        }
        visit("not_ip", self.not_ip);
        if let Meters::Flows(meters) = &self.meters {
            visit("flows", u64::from(meters.flows()));
            visit("shared", meters.shared());
            visit("long_probes", meters.long_probes());
        }
    }
}

/// Bytes behind the link-layer header of the shortest Ethernet frame: a shorter packet is padded.
const SHORTEST: u32 = 46;
/// Bytes behind a packet and its padding that a link may add at most: the frame's checksum, time stamps of
/// switches.
const TRAILER: u32 = 32;

/// Length in bytes by which a packet is metered: that of the IP packet, as its header says. With more behind
/// it than a link adds it is that of all of it: else who has headers say little sends the rest unmetered.
#[inline(always)]
fn metered_length(cx: &Context<'_>, frame: &Frame) -> u32 {
    let said = ip_length(cx, frame);
    let there = cx.pool.meta(frame.buf).original_len.saturating_sub(u32::from(frame.info.l3()));
    if there > said.max(SHORTEST).saturating_add(TRAILER) { there } else { said }
}

/// Writes a code point; the ECN bits stay. A right header checksum stays right.
fn write_dscp(cx: &mut Context<'_>, frame: &mut Frame, dscp: u8) {
    let tos = frame.info.tos() & 3 | dscp << 2;
    let six = Flags(frame.info.flags()).has(Flags::IPV6);
    let Some(ip) = cx.data_mut(frame).get_mut(usize::from(frame.info.l3())..) else { return };
    if six {
        if let Some([a, b]) = ip.first_chunk_mut::<2>() {
            *a = *a & 0xf0 | tos >> 4;
            *b = *b & 0x0f | tos << 4;
        }
    } else if let Some([version, old, _, _, _, _, _, _, _, _, c0, c1]) = ip.first_chunk_mut::<12>() {
        let word = |low: u8| u16::from_be_bytes([*version, low]);
        let delta = Delta::new().word(word(*old), word(tos));
        [*c0, *c1] = delta.apply(u16::from_be_bytes([*c0, *c1])).to_be_bytes();
        *old = tos;
    }
    frame.info = Info::with_tos(frame.info, tos);
}
