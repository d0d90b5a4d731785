//! Joins a stretch with the one that follows it.

use slipstream_wire::FlowKey;

use super::certain::Certain;
use super::{FlowPart, Key, Stretch, Window};
use crate::analyzer::Acknowledged;
use crate::block::{ADVANCES, IN_IP, IN_TCP, NO_FLOW, PURE_ACK, Row};
use crate::distances::difference;
use crate::partial::MergeError;
use crate::trains::{Body, Held, Trains};

/// The numbers that the flows of the later stretch have in the earlier one, or will have.
struct Numbers(Vec<u32>);

impl Numbers {
    fn new(earlier: &Stretch, later: &Stretch) -> Self {
        let mut next = earlier.flows.len() as u32;
        let mut new = || {
            next += 1;
            next - 1
        };
        let mut numbers: Vec<u32> = Vec::with_capacity(later.flows.len());
        let mut twins = std::collections::HashMap::new();
        for key in later.keys() {
            let number = match key {
                Key::Flow(key) => earlier.table.get(&key).unwrap_or_else(&mut new),
                Key::Twin(of) => {
                    let of = numbers.get(of as usize).copied().unwrap_or(NO_FLOW);
                    earlier
                        .twins
                        .get(&of)
                        .copied()
                        .unwrap_or_else(|| *twins.entry(of).or_insert_with(&mut new))
                }
            };
            numbers.push(number);
        }
        Self(numbers)
    }

    fn of(&self, flow: u32) -> u32 {
        self.0.get(flow as usize).copied().unwrap_or(NO_FLOW)
    }

    fn held(&self, held: &Held) -> Held {
        held.renumbered(|flow| self.of(flow))
    }

    fn body(&self, body: &Body) -> Body {
        body.renumbered(|flow| self.of(flow))
    }
}

impl Stretch {
    /// Adds the stretch that follows in the trace. Afterwards this one is, exactly, what one pass over the
    /// packets of both would have made of them; joining is associative.
    ///
    /// # Errors
    /// [`MergeError`]; nothing is joined then. [`MergeError::Unresolved`] can't happen where the later
    /// stretch was made with [`Opening::MiddleKept`](super::Opening::MiddleKept).
    pub fn join(&mut self, next: &Self) -> Result<(), MergeError> {
        if self.settings != next.settings {
            return Err(MergeError::Settings);
        }
        self.follows(next)?;
        let numbers = Numbers::new(self, next);
        let head = self.rows_of(next, &numbers);
        let late = self.late(next)?;
        let windows = self.joined_windows(next, &numbers, &head)?;

        if self.kept {
            self.head.extend(head);
            let certain = windows.iter().filter_map(|w| w.certain).max().unwrap_or(0);
            self.kept &= next.kept;
            if !self.kept {
                self.head.truncate(certain);
            }
        }
        self.windows = windows;
        self.add_flows(next, &numbers);
        self.temporal.iter_mut().zip(&next.temporal).for_each(|(a, b)| a.merge(b));
        if self.totals.records == 0 {
            self.opening = next.opening;
        }
        self.totals.merge(&next.totals);
        self.totals.clock_backwards += late;
        self.clock = self.clock.max(next.clock);
        self.place.to = next.place.to;
        self.place.context_to = next.place.context_to;
        self.place.truncated_at_byte = next.place.truncated_at_byte;
        self.place.ending = next.place.ending;
        Ok(())
    }

    /// Checks that the next stretch begins where this one ends.
    fn follows(&self, next: &Self) -> Result<(), MergeError> {
        let (here, there) = (&self.place, &next.place);
        if next.opens {
            return Err(MergeError::Opens);
        }
        if here.truncated_at_byte.is_some() || here.file != there.file {
            return Err(MergeError::OtherTrace);
        }
        if (here.to != there.from && here.to != 0 && there.from != 0)
            || (here.context_to != there.context_from && here.context_to != 0 && there.context_from != 0)
        {
            return Err(MergeError::Gap { ends: here.to, begins: there.from });
        }
        Ok(())
    }

    /// As [`late`], of the next stretch.
    fn late(&self, next: &Self) -> Result<u64, MergeError> {
        if self.totals.records == 0 || next.totals.records == 0 {
            return Ok(0);
        }
        late(self.clock, next.opening, &next.head, next.kept)
    }

    /// As [`rows_behind`], of the next stretch.
    fn rows_of(&self, next: &Self, numbers: &Numbers) -> Vec<Row> {
        let ack = |flows: &[FlowPart], flow: u32| flows.get(flow as usize).map(|f| f.ack).unwrap_or_default();
        let (before, first) = (|flow| ack(&self.flows, flow)[1], |flow| ack(&next.flows, flow)[0]);
        rows_behind(&next.head, self.latest(), |flow| numbers.of(flow), before, first)
    }

    fn joined_windows(
        &self,
        next: &Self,
        numbers: &Numbers,
        head: &[Row],
    ) -> Result<Vec<Window>, MergeError> {
        let late = self.totals.records > 0 && next.totals.records > 0 && self.clock > next.opening;
        let burst = self.burst();
        let join = |((mine, theirs), length): ((&Window, &Window), &u64)| {
            let Some(certain) = mine.certain else {
                // All its packets are in the head: it is certain where the next one is.
                return Ok(match theirs.certain {
                    None => mine.clone(),
                    Some(rows) => {
                        if late {
                            self.prove((*length, burst), theirs, numbers, head)?;
                        }
                        Window {
                            certain: Some(self.head.len() + rows),
                            met_at: theirs.met_at,
                            meeting: numbers.held(&theirs.meeting),
                            body: numbers.body(&theirs.body),
                            end: numbers.held(&theirs.end),
                        }
                    }
                });
            };
            let trains = Trains::resumed(*length, burst, &mine.end, mine.body.clone());
            let (end, body) = through(trains, theirs, head, self.latest(), |flow| numbers.of(flow))?;
            Ok(Window {
                certain: Some(certain),
                met_at: mine.met_at,
                meeting: mine.meeting.clone(),
                body,
                end,
            })
        };
        self.windows.iter().zip(&next.windows).zip(&self.settings.windows_ns).map(join).collect()
    }

    /// The latest time; 0 of no packets.
    fn latest(&self) -> u64 {
        if self.totals.records > 0 { self.clock } else { 0 }
    }

    /// Checks that, with the times that packets have behind this stretch, it does not matter at the next
    /// one's meeting what was held before either.
    fn prove(
        &self,
        (length, burst): (u64, u16),
        theirs: &Window,
        numbers: &Numbers,
        head: &[Row],
    ) -> Result<(), MergeError> {
        let (mut certain, mut trains) = (Certain::new(length, burst), Trains::new(length, burst));
        let mut now = 0;
        for row in self.head.iter().chain(theirs.head(head)) {
            now = row.time;
            if row.flow != NO_FLOW {
                certain.packet(row);
                trains.step(*row);
            }
        }
        if now >= theirs.met_at {
            return Err(MergeError::Unresolved);
        }
        trains.settle(theirs.met_at);
        let proven = certain.at(theirs.met_at) && trains.held() == numbers.held(&theirs.meeting);
        if proven { Ok(()) } else { Err(MergeError::Unresolved) }
    }

    fn add_flows(&mut self, next: &Self, numbers: &Numbers) {
        let mut pairs = [Vec::new(), Vec::new()];
        let (ip, tcp) = (self.ip.packets, self.tcp.packets);
        for ((key, theirs), &number) in next.keys().zip(&next.flows).zip(&numbers.0) {
            match key {
                Key::Flow(key) => self.enter(&key),
                Key::Twin(of) => {
                    let of = numbers.of(of);
                    if !self.twins.contains_key(&of) {
                        let twin = self.table.spare_number();
                        self.twins.insert(of, twin);
                    }
                }
            }
            if self.flows.len() <= number as usize {
                self.flows.resize(number as usize + 1, FlowPart::default());
            }
            let Some(mine) = self.flows.get_mut(number as usize) else { continue };
            if mine.packets > 0
                && let Some(temporal) = self.temporal.get_mut(usize::from(theirs.class))
            {
                temporal.record(difference(theirs.captured[0], mine.captured[1]));
            }
            for (pairs, (a, b)) in pairs.iter_mut().zip([(mine.ip, theirs.ip), (mine.tcp, theirs.tcp)]) {
                if a[1] > 0 && b[0] > 0 {
                    pairs.push((b[0], a[1]));
                }
            }
            mine.append(theirs, ip, tcp);
        }
        let [of_ip, of_tcp] = pairs;
        self.ip.append(&next.ip, |flow| numbers.of(flow), &of_ip);
        self.tcp.append(&next.tcp, |flow| numbers.of(flow), &of_tcp);
    }

    fn enter(&mut self, key: &FlowKey) {
        let hash = self.table.hash(key);
        self.table.number(key, hash);
    }
}

/// Records of later packets whose times are earlier than `clock`, the latest one before them, and which they
/// took to be in order. The first of them came at `opening`; `head` are the first ones, or (`kept`) all.
///
/// # Errors
/// [`MergeError::Unresolved`], if times run back farther than packets were kept.
pub(crate) fn late(clock: u64, opening: u64, head: &[Row], kept: bool) -> Result<u64, MergeError> {
    if clock <= opening {
        return Ok(0);
    }
    if !kept && head.last().is_none_or(|row| row.time < clock) {
        return Err(MergeError::Unresolved);
    }
    let in_order = |row: &&Row| row.captured == row.time && row.time < clock;
    let once = |row: &&Row| row.flow == NO_FLOW || row.bits & IN_IP != 0;
    Ok(head.iter().filter(once).filter(in_order).count() as u64)
}

/// First packets, as they come behind packets up to `clock`: `number` gives the numbers that flows have
/// there, `before` the last acknowledgement there of such a number, `first` the first one of a flow here.
pub(crate) fn rows_behind(
    head: &[Row],
    clock: u64,
    number: impl Fn(u32) -> u32,
    before: impl Fn(u32) -> Acknowledged,
    first: impl Fn(u32) -> Acknowledged,
) -> Vec<Row> {
    let most = head.iter().map(|row| row.flow).filter(|flow| *flow != NO_FLOW).max();
    let mut seen = vec![false; most.map_or(0, |most| most as usize + 1)];
    let row = |row: &Row| {
        let mut row = Row { time: row.time.max(clock), ..*row };
        if row.flow == NO_FLOW {
            return row;
        }
        let (there, here) = (row.flow, number(row.flow));
        row.flow = here;
        let is_first = seen.get_mut(there as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        if is_first && row.bits & IN_TCP != 0 && row.bits & PURE_ACK != 0 {
            row.bits |= if first(there).advances(before(here)) { ADVANCES } else { 0 };
        }
        row
    };
    head.iter().map(row).collect()
}

/// A holding window goes on over the first packets of those that follow (`head`), behind packets up to
/// `clock`. What was counted there (`theirs`) holds from where both hold the same.
///
/// # Errors
/// [`MergeError::Unresolved`], if they don't hold the same there, since times run back.
pub(crate) fn through(
    mut trains: Trains,
    theirs: &Window,
    head: &[Row],
    clock: u64,
    number: impl Fn(u32) -> u32,
) -> Result<(Held, Body), MergeError> {
    let rows = theirs.head(head);
    rows.iter().filter(|row| row.flow != NO_FLOW).for_each(|row| trains.step(*row));
    if theirs.certain.is_none() {
        return Ok((trains.held(), trains.take_body()));
    }
    trains.settle(theirs.met_at.max(clock));
    if theirs.met_at < clock || trains.held() != theirs.meeting.renumbered(&number) {
        return Err(MergeError::Unresolved);
    }
    let mut body = trains.take_body();
    body.append(&theirs.body.renumbered(&number));
    Ok((theirs.end.renumbered(&number), body))
}

impl FlowPart {
    /// Adds the flow's part in the next stretch; so many packets of either sequence come before that.
    fn append(&mut self, next: &Self, ip: u64, tcp: u64) {
        let first = self.packets == 0;
        for (mine, theirs, before) in [(&mut self.ip, next.ip, ip), (&mut self.tcp, next.tcp, tcp)] {
            if theirs[0] > 0 {
                mine[1] = before + theirs[1];
                mine[0] = if mine[0] == 0 { before + theirs[0] } else { mine[0] };
            }
        }
        self.class |= next.class;
        self.packets += next.packets;
        self.captured[1] = next.captured[1];
        if first {
            self.captured[0] = next.captured[0];
        }
        if next.ack[1].seen {
            self.ack[1] = next.ack[1];
            self.ack[0] = if self.ack[0].seen { self.ack[0] } else { next.ack[0] };
        }
    }
}
