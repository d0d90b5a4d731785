//! The router as a network function.

use super::{Decision, Kept, Router};
use crate::{FunctionContext, NetworkFunction, Reads};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::operate::Operate;
use slipstream_core::stage::{Context, DropReason, Drops, Observe, Verdict};
use slipstream_core::time::Nanos;
use slipstream_wire::Flags;
use slipstream_wire::protocol::{ICMP, ICMPV6};

impl NetworkFunction for Router {
    type Decision = Decision;
    type Lookahead = ();

    fn reads(&self) -> Reads {
        Reads::KEY
    }

    /// Of a flow it keeps the way that its packets take.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 3, alone: false, trains: Trains::Pass }
    }

    /// The flow key has the IP addresses; the Ethernet destination says whether it is for us at all. The key
    /// of a packet in a tunnel may be that of its inner header; what one ICMP packet says may change what
    /// becomes of the next. What is due at the first packet is done before it is decided about, and
    /// [`holds_until`](NetworkFunction::holds_until) says what is due between two packets.
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.sharing(cx, first, std::slice::from_ref(other)) == 1
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        let flags = Flags(first.info.flags());
        if flags.has(Flags::INNER) || !first.info.classified() {
            return 0;
        }
        let start = usize::from(first.info.l3());
        if !flags.has(Flags::PORTS) {
            let at = if flags.has(Flags::IPV6) { 6 } else { 9 };
            if let None | Some(&(ICMP | ICMPV6)) = cx.data(first).get(start + at) {
                return 0;
            }
        }
        let others = others.get(..Reads::L3.agreeing(cx.pool, first, others)).unwrap_or_default();
        if start == 0 {
            return others.len();
        }
        // The Ethernet address that a packet is sent to: none of them is as short as that.
        let station = |frame: &Frame| {
            let bytes = cx.pool.front(frame.buf);
            bytes.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes) & 0xffff_ffff_ffff)
        };
        // All of them are looked at, as their fields are: mostly all go to one station.
        let to = station(first);
        let at = |n: usize| station(others.get(n).unwrap_or(first)) ^ to;
        let mut differ = at(0) | at(1) | at(2) | at(3);
        for other in others.get(4..).unwrap_or_default() {
            differ |= station(other) ^ to;
        }
        if differ == 0 {
            return others.len();
        }
        others.iter().position(|other| to != station(other)).unwrap_or(others.len())
    }

    /// A neighbour is asked again after a while, and what is due happens before a later packet is decided
    /// about: what is due already, and the second of any question that an answer to these packets may ask
    /// first.
    fn holds_until(&self, _: &Decision, now: Nanos) -> Nanos {
        let confirmed = self.towards.map_or(Nanos::MAX, |id| self.neighbours.confirmed_until(id));
        self.changes_next().min(confirmed).min(self.neighbours.asked_again(now))
    }

    #[inline(always)]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, (): &mut ()) {
        cx.pool.prefetch(first.buf);
    }

    #[inline(always)]
    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, (): &()) -> Decision {
        let now = fx.cx.now;
        if self.neighbours.next_deadline() <= now {
            self.due(fx);
        }
        if self.watch.as_mut().is_some_and(|w| w.packet(now)) {
            self.poll_routes(fx);
        }
        let (interface, data) = fx.cx.pool.packet(first.buf, first.len);
        self.capture = interface;
        let kept = fx.cx.pool.flow_words().map(Kept);
        match self.choose_fast(fx.cx, first, data, kept) {
            Some((decision, way)) => {
                debug_assert_eq!(
                    decision,
                    self.choose(fx, first),
                    "the fast path decides as the general one"
                );
                let Kept(words) = way;
                if kept.is_none_or(|Kept(before)| before != words) {
                    fx.cx.pool.keep_flow_words(words);
                }
                let [_, _, neighbour] = words;
                self.towards = Some(neighbour);
                decision
            }
            None => self.choose_slowly(fx, first),
        }
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decision: &Decision,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        match *decision {
            Decision::Forward { port, mtu, macs } => self.forward(fx, (port, mtu, macs), frames, verdicts),
            other => self.apply_other(fx, other, frames, verdicts),
        }
    }

    fn next_deadline(&self) -> Nanos {
        self.changes_next().min(self.reports_again)
    }

    /// The next question to a neighbour: one that is open, or the second of one that a packet sets off.
    #[inline(always)]
    fn leaves_by_itself(&self, first: Nanos) -> Nanos {
        self.neighbours.next_deadline().min(self.neighbours.asked_again(first))
    }

    fn on_deadline(&mut self, fx: &mut FunctionContext<'_, '_>) {
        self.due(fx);
    }

    fn drain(&mut self, fx: &mut FunctionContext<'_, '_>) {
        for frame in self.neighbours.take_all() {
            self.drops.add(DropReason::Unresolved, 1);
            fx.cx.pool.free(frame.buf);
        }
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }

    fn reloads(&self) -> Option<&'static str> {
        self.watch.as_ref().map(|_| "its routes")
    }

    fn reload(&mut self, now: Nanos) {
        if let Some(watch) = &mut self.watch {
            watch.reload(now);
        }
    }
}

impl Observe for Router {
    fn held(&self) -> u64 {
        self.neighbours.held()
    }

    fn drops(&self) -> Drops {
        self.drops
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let (c, n) = (&self.counters, &self.neighbours.counters);
        visit("routes", self.fib.routes as u64);
        visit("route_memory_bytes", self.fib.memory() as u64);
        visit("route_reloads", c.reloads);
        visit("route_reload_errors", c.reload_errors);
        visit("neighbours", u64::from(self.neighbours.len()));
        visit("neighbours_learned", n.learned);
        visit("neighbours_changed", n.changed);
        visit("neighbours_failed", n.failed);
        visit("neighbours_full", n.full);
        visit("neighbour_questions_displaced", n.displaced);
        visit("neighbour_questions_limited", n.limited);
        visit("neighbour_questions", c.questions);
        visit("neighbour_answers", c.answers);
        visit("neighbour_announcements", c.announcements);
        visit("listener_reports", c.reports);
        visit("address_conflicts", c.conflicts);
        visit("icmp_errors", c.icmp_sent);
        visit("icmp_errors_suppressed", c.icmp_suppressed);
        visit("echo_replies", c.echo_replies);
        visit("own_packets_unroutable", c.unroutable);
        visit("fragmented", c.fragmented);
        visit("fragments", c.fragments);
    }

    fn report(&self) -> Option<serde_json::Value> {
        let error = self.last_error.as_ref()?;
        Some(serde_json::json!({ "routes_error": error }))
    }
}
