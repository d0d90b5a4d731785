//! Takes the packets of a section.

use std::hint::black_box;

use slipstream_wire::FlowKey;

use super::Section;
use crate::analyzer::{Acknowledged, Analyzer};
use crate::block::{ADVANCES, IN_IP, IN_TCP, NO_FLOW, PURE_ACK, Row};
use crate::flows::FlowTable;
use crate::partial::MergeError;
use crate::stretch::{Key, Window, keys};
use crate::trains::Trains;
use crate::workers::Analysis;

/// Keys that are looked up together, so that their cache misses overlap.
const TOGETHER: usize = 64;

/// The numbers that the flows of a section have in the whole trace.
pub(crate) struct Numbers(Vec<u32>);

impl Numbers {
    pub(crate) fn of(&self, flow: u32) -> u32 {
        self.0.get(flow as usize).copied().unwrap_or(NO_FLOW)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Every flow that the section has with others has its number; the others get theirs, in their order.
    fn enter(analyzer: &mut Analyzer, section: &Section) -> Self {
        let mut numbers = Self(Vec::with_capacity(section.table.numbers()));
        let mut keys = keys(&section.table, &section.portless, section.table.numbers());
        let mut together: Vec<(Key, u64)> = Vec::with_capacity(TOGETHER);
        loop {
            together.clear();
            let hash = |table: &FlowTable, key: &Key| match key {
                Key::Flow(key) => table.hash(key),
                Key::Twin(_) => 0,
            };
            together.extend(keys.by_ref().take(TOGETHER).map(|key| (key, hash(&analyzer.table, &key))));
            if together.is_empty() {
                return numbers;
            }
            let flows = together.iter().filter_map(|(key, hash)| match key {
                Key::Flow(key) => Some((*hash, matches!(key, FlowKey::Narrow(_)))),
                Key::Twin(_) => None,
            });
            black_box(analyzer.table.touch(flows));
            for (key, hash) in &together {
                let table = &mut analyzer.table;
                let number = match key {
                    Key::Flow(key) => table.number(key, *hash),
                    Key::Twin(of) => {
                        let of = numbers.of(*of);
                        *analyzer.portless.entry(of).or_insert_with(|| table.spare_number())
                    }
                };
                numbers.0.push(number);
            }
        }
    }
}

impl Analyzer {
    /// Takes all packets of the section that follows.
    ///
    /// # Errors
    /// [`MergeError::Unresolved`], if times run back over the boundary farther than packets were kept;
    /// [`MergeError::Settings`], if other threads have the analyses. It is of no further use then.
    pub(crate) fn append(&mut self, mut section: Section) -> Result<(), MergeError> {
        self.flush();
        if section.totals.records == 0 {
            return Ok(());
        }
        let late = self.late(&section)?;
        let numbers = Numbers::enter(self, &section);
        let head = self.head_of(&section, &numbers);
        let clock = self.clock;
        let burst = u16::try_from(self.config.burst).unwrap_or(u16::MAX);
        let windows = std::mem::take(&mut section.recorded.windows);
        let mut windows = windows.iter().zip(&self.config.windows_ns);
        for analysis in self.workers.here().ok_or(MergeError::Settings)? {
            match analysis {
                Analysis::Distances(distances) => distances.append(&mut section.recorded, &numbers),
                Analysis::Trains(trains) => {
                    let (window, length) = windows.next().ok_or(MergeError::Settings)?;
                    let settings = (*length, burst);
                    let so_far = std::mem::replace(&mut **trains, Trains::new(*length, burst));
                    **trains = through(so_far, settings, window, &numbers, &head, clock)?;
                }
            }
        }
        self.acknowledged.resize(self.table.numbers(), Acknowledged::default());
        for (number, latest) in numbers.iter().zip(&section.acknowledged[1]) {
            if let Some(mine) = self.acknowledged.get_mut(number as usize).filter(|_| latest.seen) {
                *mine = *latest;
            }
        }
        self.totals.merge(&section.totals);
        self.totals.clock_backwards += late;
        self.clock = self.clock.max(section.clock);
        Ok(())
    }

    /// Records of the section whose times are earlier than the latest one here, and which it took to be in
    /// order.
    fn late(&self, section: &Section) -> Result<u64, MergeError> {
        let recorded = &section.recorded;
        if self.totals.records == 0 || self.clock <= section.opening {
            return Ok(0);
        }
        if !recorded.kept && recorded.head.last().is_none_or(|row| row.time < self.clock) {
            return Err(MergeError::Unresolved);
        }
        let in_order = |row: &&Row| row.captured == row.time && row.time < self.clock;
        let once = |row: &&Row| row.flow == NO_FLOW || row.bits & IN_IP != 0;
        Ok(recorded.head.iter().filter(once).filter(in_order).count() as u64)
    }

    /// The first packets of the section, as they come behind those here.
    fn head_of(&self, section: &Section, numbers: &Numbers) -> Vec<Row> {
        let [firsts, _] = &section.acknowledged;
        let mut seen = vec![false; section.table.numbers()];
        let row = |row: &Row| {
            let mut row = Row { time: row.time.max(self.clock), ..*row };
            if row.flow == NO_FLOW {
                return row;
            }
            let (there, number) = (row.flow, numbers.of(row.flow));
            row.flow = number;
            let is_first = seen.get_mut(there as usize).is_some_and(|seen| !std::mem::replace(seen, true));
            if is_first && row.bits & IN_TCP != 0 && row.bits & PURE_ACK != 0 {
                let previous = self.acknowledged.get(number as usize).copied().unwrap_or_default();
                let now = firsts.get(there as usize).copied().unwrap_or_default();
                row.bits |= if now.advances(previous) { ADVANCES } else { 0 };
            }
            row
        };
        section.recorded.head.iter().map(row).collect()
    }
}

/// A holding window behind the section: it goes on over the section's first packets; what was counted there
/// holds from where both hold the same.
fn through(
    mut trains: Trains,
    (length, burst): (u64, u16),
    section: &Window,
    numbers: &Numbers,
    head: &[Row],
    clock: u64,
) -> Result<Trains, MergeError> {
    let rows = section.head(head);
    rows.iter().filter(|row| row.flow != NO_FLOW).for_each(|row| trains.step(*row));
    if section.certain.is_none() {
        return Ok(trains);
    }
    trains.settle(section.met_at.max(clock));
    let number = |flow: u32| numbers.of(flow);
    if section.met_at < clock || trains.held() != section.meeting.renumbered(number) {
        return Err(MergeError::Unresolved);
    }
    let mut body = trains.take_body();
    body.append(&section.body.renumbered(number));
    Ok(Trains::resumed(length, burst, &section.end.renumbered(number), body))
}
