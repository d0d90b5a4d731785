//! Flow statistics in a pipeline, exported by IPFIX (RFC 7011) over UDP, to a file, or not at all.

use slipstream_wire::FlowKey;

use super::flow_export::{Export, Target, target};
use crate::answer::ip_length;
use crate::flow_stats::{ACTIVE, FLOWS, Flow, FlowStats, FlowStatsConfig, IDLE, Observed};
use crate::ipfix::{Exporter, IpfixConfig};
use crate::{DECIDE, FunctionContext, NetworkFunction, stage_of};
use slipstream_core::clock::LiveClock;
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::packet::{any_key_of, fast_key_of};
use slipstream_core::reads::Reads;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{Meets, Need, Partner, Properties, need};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, Observe, StageError, Verdict};
use slipstream_core::time::Nanos;

/// The stage type.
pub const FLOW_STATS: StageType = StageType {
    name: "flow_stats",
    group: Group::Function,
    summary: "Counts packets, bytes and TCP flags of every flow, and exports them by IPFIX",
    example: "in -> flow_stats(export=\"udp:192.0.2.9:4739\") -> out",
    inputs: Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]),
    outputs: Ports::These(&[PortType { name: "out", help: "the same packets", unconnected: None }]),
    settings: &[
        Setting {
            name: "export",
            kind: Kind::Text("none, udp:HOST:PORT, or a file (of IPFIX messages back to back, RFC 5655)"),
            default: Some("none"),
            required: false,
            help: "Where records go",
        },
        FLOWS,
        IDLE,
        ACTIVE,
        Setting {
            name: "domain",
            kind: Kind::Count(0, u32::MAX as u64),
            default: Some("0"),
            required: false,
            help: "Observation domain id",
        },
        DECIDE,
    ],
    properties: Properties {
        writes: Some("export"),
        partners: &[Partner { of: &["domain"], need: Need::IsNot("export", "none") }],
        without_meeting: Some("with export=udp:ADDRESS:PORT each shard exports its own flows"),
        ..Properties::new(meets)
    },
    build,
};

/// A flow's packets are counted in one place. A file is one sequence of messages; by UDP each core is an
/// exporter with a session of its own (RFC 7011 §10.3).
fn meets(settings: &Settings) -> Meets {
    let export = settings.text("export");
    if export == "none" || export.starts_with("udp:") { Meets::Flow } else { Meets::Everything }
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let config = FlowStatsConfig::from_settings(settings, site.seed);
    need("flows", FlowStats::memory(config.flows))?;
    let target = target(settings.text("export"), site)?;
    let ipfix = IpfixConfig {
        domain: settings.number("domain") as u32,
        template_interval: match target {
            Target::File { .. } => None,
            _ => IpfixConfig::default().template_interval,
        },
        ..IpfixConfig::default()
    };
    let mut stage = FlowStatsStage::new(&config, &ipfix, target);
    stage.by_clock = site.live;
    if site.live {
        stage.export.by_clock(LiveClock::get());
    }
    Ok(Made::Stage(stage_of(stage, settings)))
}

/// Flow statistics as a network function.
#[derive(Debug)]
pub struct FlowStatsStage {
    flows: FlowStats,
    /// The flow that packets were counted of last that was not known.
    asked: Flow,
    export: Export,
    next: Nanos,
    /// Time is the clock's: flows whose time has passed are handed out in slices.
    by_clock: bool,
    counted: u64,
    unclassified: u64,
    /// Times that flows whose time had passed were looked for.
    turns: u64,
}

/// Interval, in ns, of the search for expired flows while no packet comes.
const TURN: u64 = 1_000_000_000;
/// Flows of a slice of that search, where time is the clock's, and the time from one to the next, in ns: many
/// flows that end at one time hold no packet up.
const SLICE: u32 = 64;
const NEXT_SLICE: u64 = 100_000;

impl FlowStatsStage {
    /// Counts flows, and hands their records to `target`.
    #[must_use]
    pub fn new(config: &FlowStatsConfig, ipfix: &IpfixConfig, target: Target) -> Self {
        Self {
            flows: FlowStats::new(config),
            asked: Flow::default(),
            export: Export::new(Exporter::new(ipfix), target),
            next: Nanos::MAX,
            by_clock: false,
            counted: 0,
            unclassified: 0,
            turns: 0,
        }
    }
}

/// The result of reading a packet ahead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// True if there is a flow.
    is_flow: bool,
    /// The flow has the number that its context says, unless it ended.
    by_context: bool,
    flow: Flow,
}

/// Whose packets there are to count.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// A flow's that is known, with this number.
    Known(u32),
    /// The one's that was asked for last: it is not known, or no longer.
    Anew,
    /// No flow's.
    Nobody,
}

impl FlowStatsStage {
    #[inline(never)]
    fn look_at_any(&self, cx: &Context<'_>, first: &Frame, found: &mut Found) {
        let key = any_key_of(cx, first);
        (found.is_flow, found.by_context) = (key.is_some(), false);
        if let Some(key) = key {
            self.flows.prefetch_index(&key, &mut found.flow);
        }
    }

    /// Decides about a flow that is not the one that it was taken for, or whose time has passed.
    #[inline(never)]
    fn look_again(&mut self, fx: &mut FunctionContext<'_, '_>, ahead: &Found) -> Counted {
        self.asked = ahead.flow;
        self.flows.seek(&mut self.asked, !ahead.by_context);
        if let Some(id) = self.flows.known(&self.asked, fx.cx.now) {
            fx.cx.pool.keep_flow_words([id + 1]);
            return Counted::Known(id);
        }
        Counted::Anew
    }

    #[inline(never)]
    fn count_anew(&mut self, fx: &mut FunctionContext<'_, '_>, seen: &Observed) {
        let Self { flows, export, .. } = self;
        let id = flows.count_anew(&self.asked, seen, &mut |record| export.record(record, seen.first));
        if let Some(id) = id {
            fx.cx.pool.keep_flow_words([id + 1]);
        }
    }
}

impl NetworkFunction for FlowStatsStage {
    type Decision = Counted;
    type Lookahead = Found;

    fn reads(&self) -> Reads {
        Reads::KEY
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        Reads::KEY.agreeing(cx.pool, first, others)
    }

    /// Of a flow it keeps the number of its entry, plus one.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 1, alone: false, trains: Trains::Pass }
    }

    /// A record ends where its flow was silent or has lasted too long.
    #[inline]
    fn holds_until(&self, counted: &Counted, now: Nanos) -> Nanos {
        match *counted {
            Counted::Known(id) => self.flows.holds_until(Some(id), now),
            Counted::Anew => self.flows.holds_until(None, now),
            Counted::Nobody => Nanos::MAX,
        }
    }

    #[inline(always)]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Found) {
        if let Some((key, [number])) = cx.pool.keyed_flow_words()
            && number > 0
        {
            (found.is_flow, found.by_context) = (true, true);
            return self.flows.prefetch_known(key, number - 1, &mut found.flow);
        }
        // Most keys are short: such a one is written where it belongs, without the room that a long one would
        // take.
        match fast_key_of(cx, first) {
            Some(key) => {
                (found.is_flow, found.by_context) = (true, false);
                self.flows.prefetch_index(&FlowKey::Narrow(key), &mut found.flow);
            }
            None => self.look_at_any(cx, first, found),
        }
    }

    #[inline(always)]
    fn prefetch(&mut self, _: &Context<'_>, found: &mut [Found]) {
        let sought = found.iter_mut().filter(|found| !found.by_context);
        sought.for_each(|found| self.flows.prefetch_record(&mut found.flow));
    }

    #[inline(always)]
    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, _: &Frame, ahead: &Found) -> Counted {
        if !ahead.is_flow {
            return Counted::Nobody;
        }
        match self.flows.known(&ahead.flow, fx.cx.now) {
            Some(id) => {
                if !ahead.by_context {
                    fx.cx.pool.keep_flow_words([id + 1]);
                }
                Counted::Known(id)
            }
            None => self.look_again(fx, ahead),
        }
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        counted: &Counted,
        frames: &mut [Frame],
        _: &mut [Verdict],
    ) {
        let now = fx.cx.now;
        if matches!(counted, Counted::Nobody) {
            self.unclassified += frames.len() as u64;
            return;
        }
        let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return };
        let mut seen = Observed {
            packets: frames.len() as u64,
            bytes: 0,
            tcp_flags: 0,
            tos: first.info.tos(),
            first: now,
            last: now.max(last.arrival),
        };
        for frame in &*frames {
            seen.bytes += u64::from(ip_length(fx.cx, frame));
            seen.tcp_flags |= frame.info.tcp_flags();
        }
        match *counted {
            Counted::Known(id) => self.flows.count_known(id, &seen),
            // A copy goes by reference, so that what most packets count stays in registers.
            _ => self.count_anew(fx, &Observed { ..seen }),
        }
        if self.next == Nanos::MAX {
            self.next = now.after(TURN);
        }
        self.counted += seen.packets;
    }

    fn next_deadline(&self) -> Nanos {
        self.next
    }

    fn catches_up(&self) -> bool {
        !self.by_clock
    }

    fn on_deadline(&mut self, fx: &mut FunctionContext<'_, '_>) {
        let now = fx.cx.now;
        let visits = if self.by_clock { SLICE } else { u32::MAX };
        let Self { flows, export, .. } = self;
        if flows.expire(now, visits, &mut |record| export.record(record, now)) {
            self.next = now.after(NEXT_SLICE);
            return;
        }
        self.turns += 1;
        export.flush(now);
        // A capture may be silent for years: nothing is looked for before there can be something.
        self.next = self.flows.next_end().map_or(Nanos::MAX, |end| end.max(now.after(TURN)));
    }

    fn flush(&mut self, now: Nanos) -> Result<(), StageError> {
        let Self { flows, export, .. } = self;
        if self.by_clock {
            // Those that no slice has come to yet.
            flows.expire(now, u32::MAX, &mut |record| export.record(record, now));
        }
        flows.drain(&mut |record| export.record(record, now));
        export.flush(now);
        export.target.flush()
    }

    fn finish(&mut self, now: Nanos) -> Result<(), StageError> {
        self.flush(now)?;
        self.export.target.finish()
    }
}

impl Observe for FlowStatsStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_counted", self.counted);
        visit("flows", u64::from(self.flows.flows()));
        visit("records", self.export.records);
        visit("not_ip", self.unclassified);
        visit("expiry_turns", self.turns);
        visit("long_probes", self.flows.long_probes());
        let c = self.export.exporter.counters();
        visit("messages", c.messages);
        visit("messages_lost", self.export.lost);
    }

    fn trouble(&self) -> Option<String> {
        self.export.trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use slipstream_core::pool::Pool;

    use super::*;

    /// Live, a call hands out a part of the flows whose time has passed, and the next one goes on soon; in a
    /// replay one hands out all.
    #[test]
    fn live_many_flows_end_in_slices() {
        for (by_clock, want) in [(false, vec![200]), (true, vec![64, 128, 192, 200])] {
            let config = FlowStatsConfig { flows: 1000, idle: TURN, active: TURN, seed: 1 };
            let mut stage = FlowStatsStage::new(&config, &IpfixConfig::default(), Target::None);
            stage.by_clock = by_clock;
            for port in 0..200 {
                let key =
                    FlowKey::new(&[], [10, 0, 0, 1].into(), [192, 0, 2, 7].into(), 6, port, 443).unwrap();
                let seen = Observed { packets: 1, ..Observed::default() };
                stage.flows.count(&key, stage.flows.hash(&key), &seen, &mut |_| panic!("a flow ends"));
            }
            let (mut pool, mut records, mut times) = (Pool::new(), Vec::new(), Vec::new());
            stage.next = Nanos(2 * TURN);
            while stage.next < Nanos::MAX {
                let now = stage.next;
                let mut cx = Context { now, pool: &mut pool, input: 0, links: &[] };
                stage.on_deadline(&mut FunctionContext { cx: &mut cx, made: &mut Vec::new() });
                records.push(stage.export.records);
                times.push(now.0 - 2 * TURN);
            }
            assert_eq!(records, want);
            assert!(times.into_iter().eq((0..want.len() as u64).map(|n| n * NEXT_SLICE)));
            assert_eq!((stage.flows.flows(), stage.turns, stage.catches_up()), (0, 1, !by_clock));
        }
    }
}
