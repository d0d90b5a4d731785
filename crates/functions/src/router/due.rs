//! Work that is due although no packet comes: questions and reports are repeated, neighbours given up, routes
//! changed.

use super::fib::{Fib, Gateway};
use super::neighbours::Due;
use super::watch::{Reload, Watch};
use super::{FunctionContext, Macs, NewPacket, Router};
use slipstream_core::stage::DropReason;
use slipstream_core::time::Nanos;

impl Router {
    /// Does what is due: questions and reports to repeat, neighbours to give up, the file of routes.
    pub(super) fn due(&mut self, fx: &mut FunctionContext<'_, '_>) {
        let now = fx.cx.now;
        self.send_ready(fx);
        while let Some(due) = self.neighbours.due(now) {
            match due {
                Due::Ask(port, address, known) => self.question(fx, port, address, known),
                Due::Failed(port, frames) => {
                    for frame in frames {
                        self.unreachable(fx, port, &frame);
                        self.drops.add(DropReason::Unresolved, 1);
                        fx.cx.pool.free(frame.buf);
                    }
                }
            }
        }
        if self.watch.as_ref().is_some_and(|w| w.deadline() <= now) {
            self.poll_routes(fx);
        }
        if self.reports_again <= now {
            self.reports_again = Nanos::MAX;
            self.report_all(fx);
        }
    }

    /// The next time at which a decision may change: a question is due, or a look at the file of routes.
    pub(super) fn changes_next(&self) -> Nanos {
        let watch = self.watch.as_ref().map_or(Nanos::MAX, Watch::deadline);
        self.neighbours.next_deadline().min(watch)
    }

    /// Sends what waited for neighbours whose addresses other routes tell, or other settings.
    fn send_ready(&mut self, fx: &mut FunctionContext<'_, '_>) {
        for (frame, port, mac) in self.neighbours.take_ready() {
            let own = self.interface(port).and_then(|i| i.mac).unwrap_or_default();
            Macs::new(mac, own).write_to(fx.cx.data_mut(&frame));
            fx.made.push(NewPacket::new(frame, port));
        }
    }

    /// Installs new routes, if their file has changed.
    pub(super) fn poll_routes(&mut self, fx: &mut FunctionContext<'_, '_>) {
        let now = fx.cx.now;
        match self.watch.as_mut().map(|w| w.poll(now)) {
            None | Some(Reload::Unchanged) => {}
            Some(Reload::Table(fib)) => {
                self.counters.reloads += 1;
                self.last_error = None;
                drop(self.install(*fib, now));
                self.send_ready(fx);
            }
            Some(Reload::Failed(why)) => {
                self.counters.reload_errors += 1;
                self.last_error = Some(why);
            }
        }
    }

    /// Puts a table in the place of the present one, and gives that back.
    pub(super) fn install(&mut self, fib: Fib, now: Nanos) -> Fib {
        self.neighbours.unpin(now, &self.gateways);
        let pin = |g: &Gateway| self.neighbours.pin(g.port, g.address, g.mac, now);
        self.gateways = fib.gateways.iter().map(pin).collect();
        let old = std::mem::replace(&mut self.fib, fib);
        // 0 is what a context has that says nothing.
        self.generation = self.generation.wrapping_add(1).max(1);
        old
    }
}
