//! Sliding windows: panes as long as the step from window to window are measured, and every window is the sum
//! of its panes.

use std::collections::BTreeSet;

use anyhow::bail;
use slipstream::measure::{EpochLength, SavedEpoch, Span, sum_states};

use super::state::all_emptied;
use crate::cli::measure as cli;
use crate::units::Duration;

/// The most panes of a window.
const MOST: u64 = 10_000;

/// Windows of a length, one from every step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sliding {
    window_ns: u64,
    slide_ns: u64,
}

/// The windows of a trace.
#[derive(Debug, Default)]
pub(super) struct Windows {
    pub(super) summed: Vec<SavedEpoch>,
    pub(super) failed: Vec<FailedWindow>,
}

/// A window of which nothing is known.
#[derive(Debug)]
pub(super) struct FailedWindow {
    pub(super) span: Span,
    /// The reason for which its panes can't be added up.
    pub(super) error: String,
}

impl Sliding {
    /// As the user asks for; none where they ask for epochs.
    pub(super) fn of(args: &cli::Measure) -> anyhow::Result<Option<Self>> {
        let (Some(Duration(window_ns)), Some(Duration(slide_ns))) = (args.window, args.slide) else {
            return Ok(None);
        };
        if slide_ns == 0 || window_ns % slide_ns != 0 || window_ns == 0 {
            bail!(
                "--window {}: it must be a multiple of --slide {}, which is above 0",
                Duration(window_ns),
                Duration(slide_ns)
            );
        }
        if window_ns / slide_ns > MOST {
            bail!("--window {}: {MOST} steps of --slide at most", Duration(window_ns));
        }
        if args.compare.is_some() {
            bail!("--compare exact: the exact table isn't kept by pane; compare epochs instead of windows");
        }
        Ok(Some(Self { window_ns, slide_ns }))
    }

    /// The length of a pane.
    pub(super) const fn pane(self) -> EpochLength {
        EpochLength::Time(self.slide_ns)
    }

    /// As the result names it.
    pub(super) fn name(self) -> String {
        format!("{} every {}", Duration(self.window_ns), Duration(self.slide_ns))
    }

    /// The windows that end with the trace or before, and that any packet came in. One that began before the
    /// trace did, or in which a pane is partial, is partial. Those whose panes can't be added up stand
    /// beside.
    pub(super) fn windows(self, panes: &[SavedEpoch], lens: [usize; 2]) -> anyhow::Result<Windows> {
        let panes: Vec<_> = panes.iter().filter(|pane| pane.span.packets > 0).collect();
        let (Some(first), Some(last)) = (panes.first(), panes.last()) else { return Ok(Windows::default()) };
        let (begin, end) = (first.span.start_ns, last.span.end_ns);
        let steps = 1..=self.window_ns / self.slide_ns;
        let ends_of = |pane: &&SavedEpoch| {
            let start = pane.span.start_ns;
            steps.clone().map(move |step| start.saturating_add(step * self.slide_ns))
        };
        let ends: BTreeSet<u64> = panes.iter().flat_map(ends_of).filter(|at| *at <= end).collect();
        // The panes of each window, which lie one behind the other.
        let (mut spans, mut stretches) = (Vec::with_capacity(ends.len()), Vec::with_capacity(ends.len()));
        for end_ns in ends {
            let from = end_ns.saturating_sub(self.window_ns);
            let stretch = panes.partition_point(|pane| pane.span.start_ns < from)
                ..panes.partition_point(|pane| pane.span.end_ns <= end_ns);
            let within = panes.get(stretch.clone()).unwrap_or_default();
            let mut span = within.iter().fold(Span::default(), |all, pane| all.and(pane.span));
            span.partial |= from < begin;
            (span.start_ns, span.end_ns) = (from, end_ns);
            spans.push(span);
            stretches.push(stretch);
        }
        let sums = |side: usize, len: usize| {
            let of_side = panes.iter().map(|pane| pane.states.get(side).map_or(&[][..], Vec::as_slice));
            sum_states(len, &of_side.collect::<Vec<_>>(), &stretches)
        };
        let [len4, len6] = lens;
        let states = sums(0, len4)?.into_iter().zip(sums(1, len6)?);
        let mut windows = Windows::default();
        for (span, (four, six)) in spans.into_iter().zip(states) {
            match four.and_then(|four| Ok([four, six?])) {
                Ok(states) => windows.summed.push(SavedEpoch { span, states }),
                Err(error) => windows.failed.push(FailedWindow { span, error: error.to_string() }),
            }
        }
        Ok(windows)
    }

    /// The same windows, and one without packets for each stretch of those in which nothing came: it is what
    /// the next one is to be compared with. Its span is that of them all.
    pub(super) fn with_silence(
        self,
        windows: Vec<SavedEpoch>,
        lens: [usize; 2],
    ) -> anyhow::Result<Vec<SavedEpoch>> {
        let mut all: Vec<SavedEpoch> = Vec::with_capacity(windows.len());
        for window in windows {
            let next_ns = |last: &&SavedEpoch| last.span.end_ns.saturating_add(self.slide_ns);
            if let Some(last) = all.last().filter(|last| next_ns(last) < window.span.end_ns) {
                let span = Span {
                    start_ns: last.span.start_ns.saturating_add(self.slide_ns),
                    end_ns: window.span.end_ns - self.slide_ns,
                    ..Span::default()
                };
                all.push(SavedEpoch { span, states: all_emptied(&last.states, lens)? });
            }
            all.push(window);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pane(start_ns: u64, packets: u64) -> SavedEpoch {
        let span = Span { packets, start_ns, end_ns: start_ns + 10, first_ns: start_ns, ..Span::default() };
        SavedEpoch { span, states: Default::default() }
    }

    #[test]
    fn windows_cover_their_panes() {
        let sliding = Sliding { window_ns: 30, slide_ns: 10 };
        let panes = [pane(100, 1), pane(110, 2), pane(120, 0), pane(200, 4)];
        let found = sliding.windows(&panes, [4, 16]).unwrap().summed;
        let found: Vec<_> = found.iter().map(|w| w.span).collect();
        let got: Vec<_> = found.iter().map(|s| (s.start_ns, s.end_ns, s.packets, s.partial)).collect();
        // Nothing came from 120 to 200: no window lies there alone.
        let want = [
            (80, 110, 1, true),
            (90, 120, 3, true),
            (100, 130, 3, false),
            (110, 140, 2, false),
            (180, 210, 4, false),
        ];
        assert_eq!(got, want);
        assert!(sliding.windows(&[], [4, 16]).unwrap().summed.is_empty());
        // The window after that silence is compared with it.
        let found = sliding.with_silence(sliding.windows(&panes, [4, 16]).unwrap().summed, [4, 16]).unwrap();
        let got: Vec<_> = found.iter().map(|w| (w.span.start_ns, w.span.end_ns, w.span.packets)).collect();
        assert_eq!(got.get(4..), Some(&[(120, 200, 0), (180, 210, 4)][..]));
        assert_eq!(got.len(), want.len() + 1);
    }
}
