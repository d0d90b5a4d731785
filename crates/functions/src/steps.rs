//! One decision of a [`NetworkFunction`] after the other: about the first packet of a train, and about those
//! that share no decision with the one before them.

use std::slice::from_mut;

use slipstream_core::batch::Train;
use slipstream_core::frame::Frame;
use slipstream_core::stage::{Context, Verdict};
use slipstream_core::time::Nanos;

use super::function::{FunctionContext, LeavesAs, NetworkFunction, NewPacket};

/// The parts of a runner that each decision needs.
pub(super) struct Steps<'a, F: NetworkFunction> {
    pub(super) function: &'a mut F,
    pub(super) made: &'a mut Vec<NewPacket>,
    pub(super) behind: &'a mut Vec<(usize, Nanos)>,
    pub(super) keys: &'a mut Vec<(u32, LeavesAs)>,
    /// Keys behind the function are noted of every decision.
    pub(super) each: bool,
    pub(super) decisions: &'a mut u64,
}

impl<F: NetworkFunction> Steps<'_, F> {
    /// Decides about the packet of a train of one, of which `found` was found out, and does what was decided.
    #[inline(always)]
    pub(super) fn single(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        found: &F::Lookahead,
        frame: &mut Frame,
        verdict: &mut Verdict,
    ) {
        let time = train.release.max(frame.arrival);
        cx.now = time;
        let mut fx = FunctionContext { cx, made: self.made };
        let decision = self.function.decide(&mut fx, frame, found);
        if F::CHANGES_KEYS && self.each {
            self.keys.push((train.start, self.function.leaves_as(&decision)));
        }
        self.function.apply(&mut fx, &decision, from_mut(frame), from_mut(verdict));
        if self.behind.len() < self.made.len() {
            self.place(train.start as usize, 1, time);
        }
    }

    /// Decides about the packet at `at` of a train, of which `found` was found out, and does what was decided
    /// to all behind it that share the decision. Returns where the first is that doesn't.
    #[inline(always)]
    pub(super) fn first(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        at: usize,
        found: &F::Lookahead,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) -> usize {
        let Some((first, others)) = frames.get(at..).and_then(<[Frame]>::split_first) else { return at };
        let time = train.release.max(first.arrival);
        cx.now = time;
        let mut shared = match others {
            [] => 0,
            _ if first.info.is_datagram() => return self.datagram(cx, train, found, frames, verdicts),
            _ => self.function.sharing(cx, first, others),
        };
        let mut fx = FunctionContext { cx, made: self.made };
        let decision = self.function.decide(&mut fx, first, found);
        if shared > 0 {
            // A packet that the decision made leaves right behind the packet that the decision is about.
            let alone = self.behind.len() < fx.made.len();
            let others = if alone { &[] } else { others.get(..shared).unwrap_or_default() };
            shared = shared_in_time(self.function, &decision, time, others);
        }
        let end = at + 1 + shared;
        // Packets of one decision leave with one key.
        if F::CHANGES_KEYS && (self.each || end - at < frames.len()) {
            self.keys.push((train.start + at as u32, self.function.leaves_as(&decision)));
        }
        if let Some((frames, verdicts)) = frames.get_mut(at..end).zip(verdicts.get_mut(at..end)) {
            self.function.apply(&mut fx, &decision, frames, verdicts);
        }
        if self.behind.len() < self.made.len() {
            self.place(train.start as usize + at, end - at, time);
        }
        end
    }

    /// Finds the places of packets that were made for so many from `start` on.
    #[inline(never)]
    fn place(&mut self, start: usize, count: usize, time: Nanos) {
        let new = self.made.iter().skip(self.behind.len());
        self.behind.extend(new.map(|made| (start + made.behind.min(count), time)));
    }

    /// Decides about a datagram, which stands before its fragments, and does to those what was decided.
    #[inline(never)]
    fn datagram(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        found: &F::Lookahead,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) -> usize {
        let (len, time) = (frames.len(), cx.now);
        let mut fx = FunctionContext { cx, made: self.made };
        if let ([datagram, fragments @ ..], [kept, verdicts @ ..]) = (frames, verdicts) {
            *kept = Verdict::KEPT;
            let decision = self.function.decide(&mut fx, datagram, found);
            if F::CHANGES_KEYS && self.each {
                self.keys.push((train.start, self.function.leaves_as(&decision)));
            }
            self.function.apply(&mut fx, &decision, fragments, verdicts);
        }
        if self.behind.len() < self.made.len() {
            self.place(train.start as usize + 1, len - 1, time);
        }
        len
    }

    /// The same for all packets from `at` on, each of which shares no decision with the one before it.
    #[inline(never)]
    pub(super) fn others(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        mut at: usize,
        found: &mut F::Lookahead,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        while let Some(first) = frames.get(at) {
            *self.decisions += 1;
            self.function.look_ahead(cx, first, found);
            self.function.prefetch(cx, from_mut(found));
            at = self.first(cx, train, at, found, frames, verdicts);
        }
    }
}

/// For how many of these packets a decision holds that was just made at `time`.
#[inline(always)]
fn shared_in_time<F: NetworkFunction>(
    function: &F,
    decision: &F::Decision,
    time: Nanos,
    others: &[Frame],
) -> usize {
    let last = others.last().map_or(time, |last| last.arrival);
    if last <= time {
        return others.len();
    }
    let until = function.holds_until(decision, time);
    if last < until {
        return others.len();
    }
    // Packets come in the order of time.
    others.iter().take_while(|other| time.max(other.arrival) < until).count()
}
