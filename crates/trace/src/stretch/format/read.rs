//! A stretch's sections as they are read: every figure is checked against those of the sections before it.

use std::collections::HashMap;

use slipstream_stats::SignedHistogram;
use slipstream_wire::Encapsulation;

use super::input::In;
use super::{MOST, MOVED, NONE, StretchError};
use crate::analyzer::Acknowledged;
use crate::block::{ADVANCES, CLASS, NO_FLOW, Row};
use crate::config::Config;
use crate::flows::FlowTable;
use crate::partial::{Settings, Totals};
use crate::report::Skipped;
use crate::stretch::order::{Order, Phases, tail_len};
use crate::stretch::{Ending, FlowPart, MAX_BATCH, Place, Window};
use crate::trains::{Body, Counts, Held, Open, Output, Sent};

impl Place {
    pub(super) fn read(from: &mut In<'_>, version: u16) -> Result<Self, StretchError> {
        let file = from.text()?;
        let [begin, to, context_from, context_to] = from.numbers()?;
        let (damaged, byte) = (from.flag()?, from.number()?);
        from.check(damaged || byte == 0, "a place of no damage")?;
        let ending = match if version == 1 { 0 } else { from.byte()? } {
            0 => Ending::Unknown,
            1 => Ending::Continues,
            2 => Ending::Ends,
            _ => return from.damaged("an end that can't be"),
        };
        from.done()?;
        let truncated_at_byte = damaged.then_some(byte);
        Ok(Self { file, from: begin, to, context_from, context_to, truncated_at_byte, ending })
    }
}

impl Settings {
    pub(super) fn read(from: &mut In<'_>) -> Result<Self, StretchError> {
        let mut windows_ns = Vec::new();
        for _ in 0..from.count()? {
            windows_ns.push(from.number()?);
        }
        let burst = from.narrow("a burst that can't be")?;
        let mut switch_batches = Vec::new();
        for _ in 0..from.count()? {
            switch_batches.push(from.narrow("a batch that can't be")?);
        }
        let top = from.narrow("more top addresses than there can be")?;
        let encapsulation = if from.flag()? { Encapsulation::Inner } else { Encapsulation::Outer };
        from.done()?;
        let config = Config { windows_ns, burst, switch_batches, top, encapsulation, threads: 1 };
        let small = config.switch_batches.iter().all(|size| *size <= MAX_BATCH);
        from.check(small && config.validate().is_ok(), "settings that can't be")?;
        Ok(Self::of(&config))
    }
}

pub(super) fn read_totals(from: &mut In<'_>) -> Result<(bool, Totals, u64, u64), StretchError> {
    let opens = from.flag()?;
    let [records, bytes, first_ns, last_ns, opening, clock, clock_backwards] = from.numbers()?;
    let [non_ip, unsupported_link_type, truncated, malformed, ipv6, fragments, pure_acks, ack_flags] =
        from.numbers()?;
    from.done()?;
    let counts = [records, bytes, clock_backwards, ipv6, fragments, pure_acks, ack_flags];
    let skips = [non_ip, unsupported_link_type, truncated, malformed];
    from.check(counts.iter().chain(&skips).all(|n| *n < MOST), "more packets than there can be")?;
    let skipped = Skipped { non_ip, unsupported_link_type, truncated, malformed };
    let totals = Totals {
        records,
        bytes,
        first_ns,
        last_ns,
        clock_backwards,
        skipped,
        ipv6,
        fragments,
        pure_acks,
        ack_flags,
    };
    from.check(
        records == 0 || (first_ns <= opening && opening <= clock && clock == last_ns),
        "times that can't be",
    )?;
    Ok((opens, totals, opening, clock))
}

pub(super) type Flows = (FlowTable, HashMap<u32, u32>, Vec<FlowPart>);

pub(super) fn read_flows(from: &mut In<'_>) -> Result<Flows, StretchError> {
    let (mut table, mut twins, mut flows) = (FlowTable::new(), HashMap::new(), Vec::new());
    for number in 0..from.count()? as u32 {
        match from.byte()? {
            0 => {
                let of: u32 = from.narrow("a flow that is not there")?;
                from.check(of < number && twins.insert(of, number).is_none(), "a flow that is not there")?;
                table.spare_number();
            }
            version => {
                let key = from.key(version)?;
                from.check(table.get(&key).is_none(), "a flow that was there before")?;
                let hash = table.hash(&key);
                table.number(&key, hash);
            }
        }
        flows.push(FlowPart::read(from)?);
    }
    from.done()?;
    Ok((table, twins, flows))
}

impl FlowPart {
    fn read(from: &mut In<'_>) -> Result<Self, StretchError> {
        let (class, packets) = (from.byte()?, from.number()?);
        from.check((1..=CLASS).contains(&class) && packets > 0, "a flow without packets")?;
        let mut positions = [[0; 2]; 2];
        for (place, bit) in positions.iter_mut().zip([1, 2]) {
            let [first, span] = from.numbers()?;
            let last = first.checked_add(span);
            let sound =
                if class & bit == 0 { first == 0 && span == 0 } else { first > 0 && span + 1 >= packets };
            from.check(sound && last.is_some(), "positions of a flow that can't be")?;
            *place = [first, last.unwrap_or(0)];
        }
        let (first, span) = (from.number()?, from.signed()?);
        let mut ack = [Acknowledged::default(); 2];
        for ack in &mut ack {
            let flags = from.byte()?;
            from.check(matches!(flags, 0 | 1 | 3), "an acknowledgement that can't be")?;
            let number = if flags == 3 { from.narrow("an acknowledgement that can't be")? } else { 0 };
            *ack = Acknowledged { number, pure: flags == 3, seen: flags != 0 };
        }
        let [ip, tcp] = positions;
        Ok(Self { class, packets, ip, tcp, captured: [first, first.wrapping_add(span as u64)], ack })
    }
}

/// The figures that those of later sections must fit to.
pub(super) struct Known {
    pub(super) flows: u64,
    pub(super) clock: u64,
}

pub(super) type Orders = (Order, Order, [SignedHistogram; CLASS as usize + 1]);

impl Known {
    fn flow(&self, from: &mut In<'_>) -> Result<u32, StretchError> {
        let n = from.number()?;
        from.check(n <= self.flows, "a flow that is not there")?;
        Ok(if n == 0 { NO_FLOW } else { (n - 1) as u32 })
    }

    fn a_flow(&self, from: &mut In<'_>) -> Result<u32, StretchError> {
        let flow = self.flow(from)?;
        from.check(flow != NO_FLOW, "a flow that is not there")?;
        Ok(flow)
    }

    pub(super) fn orders(&self, from: &mut In<'_>, settings: &Settings) -> Result<Orders, StretchError> {
        let ip = self.order(from, settings)?;
        let tcp = self.order(from, settings)?;
        let mut temporal: [SignedHistogram; CLASS as usize + 1] = Default::default();
        for part in &mut temporal {
            let (below, above) = (from.histogram()?, from.histogram()?);
            *part = SignedHistogram::from_sides(below, above)
                .map_or_else(|| from.damaged("a histogram that can't be"), Ok)?;
        }
        from.done()?;
        Ok((ip, tcp, temporal))
    }

    fn order(&self, from: &mut In<'_>, settings: &Settings) -> Result<Order, StretchError> {
        let [packets, runs] = from.numbers()?;
        from.check(packets < MOST, "more packets than there can be")?;
        let (first, last) = (self.flow(from)?, self.flow(from)?);
        let some = first != NO_FLOW && last != NO_FLOW && runs > 0 && runs <= packets;
        from.check(
            some || packets == 0 && runs == 0 && first == last && last == NO_FLOW,
            "runs that can't be",
        )?;
        let spatial = from.histogram()?;
        from.check(packets.saturating_sub(runs) <= spatial.count(), "runs that can't be")?;
        let mut phases = Vec::new();
        for size in &settings.switch_batches {
            from.check(
                u64::from(*size) * 2 <= (from.end - from.at) as u64,
                "more figures than there are bytes",
            )?;
            let mut one = Phases::new(*size);
            for n in one.changes.iter_mut().chain(&mut one.fresh) {
                *n = from.number()?;
                from.check(*n <= packets, "more switches than packets")?;
            }
            phases.push(one);
        }
        let len = from.count()?;
        let most = (tail_len(&settings.switch_batches) as u64).min(packets);
        from.check(len as u64 == most, "the flows of the last packets: too many or too few")?;
        let tail = (0..len).map(|_| self.a_flow(from)).collect::<Result<_, _>>()?;
        Ok(Order { packets, runs, first, last, spatial, phases, tail, notes: Vec::new() })
    }

    pub(super) fn head(&self, from: &mut In<'_>) -> Result<(bool, Vec<Row>), StretchError> {
        let (kept, len) = (from.flag()?, from.count()?);
        let (mut rows, mut time) = (Vec::new(), 0u64);
        for _ in 0..len {
            let flags = from.byte()?;
            let bits = flags & (2 * ADVANCES - 1);
            let none = flags & NONE != 0;
            from.check(flags & 0x20 == 0 && none == (bits & CLASS == 0), "a packet that can't be")?;
            time = match time.checked_add(from.number()?) {
                Some(time) if time <= self.clock => time,
                _ => return from.damaged("a packet later than the last one"),
            };
            let flow = if none { NO_FLOW } else { self.a_flow(from)? };
            let earlier = if flags & MOVED == 0 { 0 } else { from.number()? };
            from.check((flags & MOVED != 0) == (earlier > 0) && earlier <= time, "a time that can't be")?;
            rows.push(Row { time, captured: time - earlier, flow, bits });
        }
        from.done()?;
        Ok((kept, rows))
    }

    pub(super) fn windows(
        &self,
        from: &mut In<'_>,
        settings: &Settings,
        head: usize,
    ) -> Result<Vec<Window>, StretchError> {
        let burst = u16::try_from(settings.burst).unwrap_or(u16::MAX);
        let mut windows = Vec::new();
        for _ in &settings.windows_ns {
            let mut window = Window::new(burst, false);
            let rows = from.number()?;
            if rows > 0 {
                from.check(rows - 1 <= head as u64, "a window that meets behind the first packets")?;
                window.certain = Some((rows - 1) as usize);
                window.met_at = from.number()?;
                from.check(window.met_at <= self.clock, "a packet later than the last one")?;
                window.meeting = self.held(from, burst)?;
                window.body = self.body(from, burst)?;
                window.end = self.held(from, burst)?;
            }
            windows.push(window);
        }
        from.done()?;
        Ok(windows)
    }

    fn held(&self, from: &mut In<'_>, burst: u16) -> Result<Held, StretchError> {
        let full_at = from.number()?;
        let (mut open, mut before) = (Vec::new(), 0u64);
        for _ in 0..from.count()? {
            let flow = self.a_flow(from)?;
            let base = before.wrapping_add(from.signed()? as u64);
            let packets: u16 = from.narrow("more packets than a burst")?;
            let flags = from.byte()?;
            let (full, bits) = (flags & MOVED != 0, flags & !MOVED);
            let some = if full { packets == burst } else { packets > 0 && packets < burst };
            let sound =
                some && bits & CLASS != 0 && base >= before && base <= self.clock && full_at <= self.clock;
            from.check(sound, "a train that can't be")?;
            open.push(Open { base, flow, packets, bits, full });
            before = base;
        }
        let mut flows: Vec<u32> = open.iter().filter(|o| !o.full).map(|o| o.flow).collect();
        flows.sort_unstable();
        from.check(flows.windows(2).all(|pair| pair.first() != pair.last()), "two trains of one flow")?;
        Ok(Held { open, full_at })
    }

    fn body(&self, from: &mut In<'_>, burst: u16) -> Result<Body, StretchError> {
        let mut body = Body { counts: Counts::new(burst), sent: Sent::NEW, first: [NO_FLOW; 2] };
        from.counts(&mut body.counts.sizes)?;
        from.counts(&mut body.counts.bits)?;
        body.counts.advancing = from.number()?;
        from.check(body.counts.advancing < MOST, "more packets than there can be")?;
        for (first, output) in body.first.iter_mut().zip([&mut body.sent.ip, &mut body.sent.tcp]) {
            *first = self.flow(from)?;
            *output = Output { last: self.flow(from)?, runs: from.number()? };
            let some = *first != NO_FLOW && output.last != NO_FLOW && (1..MOST).contains(&output.runs);
            let none = *first == NO_FLOW && output.last == NO_FLOW && output.runs == 0;
            from.check(some || none, "runs that can't be")?;
        }
        Ok(body)
    }
}
