//! Takes the packets of a section.

use std::hint::black_box;

use slipstream_wire::FlowKey;

use super::Section;
use crate::analyzer::{Acknowledged, Analyzer};
use crate::block::NO_FLOW;
use crate::flows::FlowTable;
use crate::partial::MergeError;
use crate::stretch::{Key, keys, late, rows_behind, through};
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
        let clock = self.clock;
        let recorded = &section.recorded;
        let late = match self.totals.records {
            0 => 0,
            _ => late(clock, section.opening, &recorded.head, recorded.kept)?,
        };
        let numbers = Numbers::enter(self, &section);
        let ack = |acks: &[Acknowledged], flow: u32| acks.get(flow as usize).copied().unwrap_or_default();
        let (before, first) =
            (|flow| ack(&self.acknowledged, flow), |flow| ack(&section.acknowledged[0], flow));
        let head = rows_behind(&section.recorded.head, clock, |flow| numbers.of(flow), before, first);
        let burst = u16::try_from(self.config.burst).unwrap_or(u16::MAX);
        let windows = std::mem::take(&mut section.recorded.windows);
        let mut windows = windows.iter().zip(&self.config.windows_ns);
        for analysis in self.workers.here().ok_or(MergeError::Settings)? {
            match analysis {
                Analysis::Distances(distances) => distances.append(&mut section.recorded, &numbers),
                Analysis::Trains(trains) => {
                    let (window, length) = windows.next().ok_or(MergeError::Settings)?;
                    let so_far = std::mem::replace(&mut **trains, Trains::new(*length, burst));
                    let (held, body) = through(so_far, window, &head, clock, |flow| numbers.of(flow))?;
                    **trains = Trains::resumed(*length, burst, &held, body);
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
}
