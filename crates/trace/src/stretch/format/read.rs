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
    let sound = match records {
        0 => opening == 0 && clock == 0,
        _ => first_ns <= opening && opening <= clock && clock == last_ns,
    };
    from.check(sound, "times that can't be")?;
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
                if class & bit == 0 { first == 0 && span == 0 } else { first > 0 && span >= packets - 1 };
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
    pub(super) opens: bool,
    pub(super) records: u64,
    pub(super) flows: u64,
    pub(super) opening: u64,
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
        // A fragment of TCP has two rows: as a packet of IP, and as one of TCP.
        from.check(len as u64 <= 2 * self.records, "more first packets than packets")?;
        let (mut rows, mut time) = (Vec::new(), 0u64);
        for n in 0..len {
            let flags = from.byte()?;
            let bits = flags & (2 * ADVANCES - 1);
            let none = flags & NONE != 0;
            from.check(flags & 0x20 == 0 && none == (bits & CLASS == 0), "a packet that can't be")?;
            time = match time.checked_add(from.number()?) {
                Some(time) if time <= self.clock => time,
                _ => return from.damaged("a packet later than the last one"),
            };
            from.check(n > 0 || time >= self.opening, "a packet earlier than the first one")?;
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
        head: &[Row],
    ) -> Result<Vec<Window>, StretchError> {
        let burst = u16::try_from(settings.burst).unwrap_or(u16::MAX);
        let mut windows = Vec::new();
        for _ in &settings.windows_ns {
            let mut window = Window::new(burst, false);
            let rows = from.number()?;
            from.check(!self.opens || rows == 1, "a window that does not begin with its trace")?;
            if rows > 0 {
                from.check(rows - 1 <= head.len() as u64, "a window that meets behind the first packets")?;
                window.certain = Some((rows - 1) as usize);
                window.met_at = from.number()?;
                self.meeting(from, window.head(head), window.met_at)?;
                window.meeting = self.held(from, burst, window.met_at)?;
                from.check(window.meeting.open.iter().all(|train| !train.full), "a train that can't be")?;
                window.body = self.body(from, burst)?;
                window.end = self.held(from, burst, self.clock)?;
            }
            windows.push(window);
        }
        from.done()?;
        Ok(windows)
    }

    /// Checks the time at which a window meets behind its first packets: it is later than that of any of
    /// them that has a flow, and there is one. A window that begins with its trace meets at 0.
    fn meeting(&self, from: &In<'_>, head: &[Row], met_at: u64) -> Result<(), StretchError> {
        from.check(met_at <= self.clock, "a packet later than the last one")?;
        let last = head.iter().rev().find(|row| row.flow != NO_FLOW);
        let sound = if self.opens { met_at == 0 } else { last.is_some_and(|row| row.time < met_at) };
        from.check(sound, "a window that meets before its first packets")
    }

    /// The trains held at a time.
    fn held(&self, from: &mut In<'_>, burst: u16, now: u64) -> Result<Held, StretchError> {
        let full_at = from.number()?;
        from.check(full_at <= now, "trains that leave later than the last packet")?;
        let (mut open, mut before, mut any_full) = (Vec::new(), 0u64, false);
        for _ in 0..from.count()? {
            let flow = self.a_flow(from)?;
            let base = before.wrapping_add(from.signed()? as u64);
            from.check(base >= before, "a train that is held behind a later one")?;
            let packets: u16 = from.narrow("more packets than a burst")?;
            let flags = from.byte()?;
            let (full, bits) = (flags & MOVED != 0, flags & !MOVED);
            from.check(base <= if full { full_at } else { now }, "a train later than the last packet")?;
            let some = if full { packets == burst } else { packets > 0 && packets < burst };
            from.check(some && bits & CLASS != 0, "a train that can't be")?;
            open.push(Open { base, flow, packets, bits, full });
            (before, any_full) = (base, any_full | full);
        }
        from.check(any_full || full_at == 0, "a time at which no train leaves")?;
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

#[cfg(test)]
mod tests {
    use slipstream_wire::LinkType;

    use super::*;
    use crate::stretch::{Opening, Stretch, StretchAnalyzer};
    use crate::trains::Open;

    /// A part with one window of 4 ns whose first packets are kept, and which holds trains at its end.
    fn part(opening: Opening, times: impl IntoIterator<Item = u64>) -> Stretch {
        let config = Config { windows_ns: vec![4], burst: 3, ..Config::default() };
        let mut analyzer = StretchAnalyzer::new(config, opening).unwrap();
        for (time, flow) in times.into_iter().zip((1..=2).cycle()) {
            let mut bytes = [0; 54];
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[17] = 40;
            bytes[22..24].copy_from_slice(&[64, 17]);
            bytes[26..30].copy_from_slice(&[10, 0, 0, flow]);
            analyzer.packet(time, LinkType::Ethernet, 54, &bytes);
        }
        analyzer.finish(Place::default())
    }

    /// The fault found in the part once it was changed and its checksums are right; nothing of it may panic.
    fn told(opening: Opening, change: impl Fn(&mut Stretch)) -> &'static str {
        let mut changed = part(opening, (10..40).step_by(3));
        change(&mut changed);
        match Stretch::from_bytes(&changed.to_bytes()) {
            Err(StretchError::Damaged { byte, what }) => {
                assert!(byte > 16);
                what
            }
            read => {
                let read = read.unwrap();
                let mut before = part(Opening::Trace, [2]);
                let _ = (before.join(&read), before.into_partial().report());
                let mut first = read.clone();
                let _ = (first.join(&part(Opening::Middle, [50, 60])), first.into_partial().report());
                let _ = read.into_partial().report();
                "nothing"
            }
        }
    }

    /// A state is written in one way only: what another writer could order otherwise is refused.
    #[test]
    fn counts_of_trains_are_in_order() {
        let read = |bytes: &[u8]| {
            let mut counts = [0; 4];
            In { bytes, at: 0, end: bytes.len() }.counts(&mut counts).map(|()| counts)
        };
        assert_eq!(read(&[2, 1, 7, 3, 9]), Ok([0, 7, 0, 9]));
        for wrong in [[2, 3, 9, 1, 7], [2, 1, 7, 1, 9], [2, 1, 7, 4, 9], [2, 1, 7, 3, 0]] {
            assert_eq!(read(&wrong), Err(StretchError::Damaged { byte: 5, what: "trains that can't be" }));
        }
    }

    #[test]
    fn times_of_trains_that_cannot_be_are_told() {
        for opening in [Opening::Trace, Opening::Middle, Opening::MiddleKept] {
            assert_eq!(told(opening, |_| {}), "nothing");
        }
        let (trace, middle) = (Opening::Trace, Opening::Middle);
        let sound = part(middle, (10..40).step_by(3));
        let window = &sound.windows[0];
        let certain = window.certain.unwrap();
        assert!(certain > 1 && !window.meeting.open.is_empty() && !window.end.open.is_empty());
        assert!(window.met_at > sound.head[certain - 1].time && sound.clock == 37);

        let late = "a train later than the last packet";
        assert_eq!(told(middle, |s| s.windows[0].end.open[0].base = 38), late);
        assert_eq!(told(middle, |s| s.windows[0].meeting.open[0].base = s.windows[0].met_at + 1), late);
        let full = Open { base: 37, flow: 0, packets: 3, bits: 3, full: true };
        assert_eq!(told(middle, |s| s.windows[0].end.open.push(full)), late);
        assert_eq!(
            told(middle, |s| s.windows[0].end.full_at = 38),
            "trains that leave later than the last packet"
        );
        assert_eq!(told(middle, |s| s.windows[0].end.full_at = 37), "a time at which no train leaves");

        let before = "a window that meets before its first packets";
        assert_eq!(told(middle, |s| s.windows[0].met_at = s.head[certain - 1].time), before);
        assert_eq!(told(middle, |s| s.windows[0].met_at = 0), before);
        assert_eq!(told(middle, |s| s.windows[0].certain = Some(0)), before);
        assert_eq!(told(trace, |s| s.windows[0].met_at = 5), before);
        assert_eq!(told(middle, |s| s.windows[0].met_at = 38), "a packet later than the last one");
        assert_eq!(
            told(trace, |s| s.windows[0].certain = None),
            "a window that does not begin with its trace"
        );

        // Without a record no time is known, and trains that are held would come from nowhere.
        assert_eq!(told(trace, |s| s.totals.records = 0), "times that can't be");
        assert_eq!(told(middle, |s| s.totals.records = 1), "more first packets than packets");
        assert_eq!(
            told(middle, |s| (s.head[0].time, s.head[0].captured) = (9, 9)),
            "a packet earlier than the first one"
        );
        assert_eq!(told(middle, |s| s.flows[0].packets = u64::MAX), "positions of a flow that can't be");
    }
}
