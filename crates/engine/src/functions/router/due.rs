//! Work that is due although no packet comes: questions are repeated, neighbours given up, routes changed.

use super::fib::{Fib, Gateway};
use super::neighbours::Due;
use super::watch::Found;
use super::{Macs, Made, Router, Scene};
use crate::stage::DropReason;
use crate::time::Nanos;

impl Router {
    /// Does what is due: questions to repeat, neighbours to give up, the file of routes.
    pub(super) fn due(&mut self, scene: &mut Scene<'_, '_>) {
        let now = scene.cx.now;
        while let Some(due) = self.neighbours.due(now) {
            match due {
                Due::Ask(port, address, known) => self.question(scene, port, address, known),
                Due::Failed(port, frames) => {
                    for frame in frames {
                        self.unreachable(scene, port, &frame);
                        self.drops.add(DropReason::Unresolved, 1);
                        scene.cx.pool.free(frame.buf);
                    }
                }
            }
        }
        if self.watch.as_ref().is_some_and(|w| w.deadline() <= now) {
            self.look(scene);
        }
    }

    /// Looks whether there are other routes.
    pub(super) fn look(&mut self, scene: &mut Scene<'_, '_>) {
        let now = scene.cx.now;
        match self.watch.as_mut().map(|w| w.look(now)) {
            None | Some(Found::Nothing) => {}
            Some(Found::Table(fib)) => {
                self.counters.reloads += 1;
                self.last_error = None;
                self.install(*fib, now);
                for (frame, port, mac) in self.neighbours.take_ready() {
                    let own = self.interface(port).and_then(|i| i.mac).unwrap_or_default();
                    Macs::new(mac, own).write_to(scene.cx.data_mut(&frame));
                    scene.made.push(Made { frame, port });
                }
            }
            Some(Found::Wrong(why)) => {
                self.counters.reload_errors += 1;
                self.last_error = Some(why);
            }
        }
    }

    /// Puts a table in the place of the present one.
    pub(super) fn install(&mut self, fib: Fib, now: Nanos) {
        self.neighbours.unpin(now, &self.gateways);
        let pin = |g: &Gateway| self.neighbours.pin(g.port, g.address, g.mac, now);
        self.gateways = fib.gateways.iter().map(pin).collect();
        self.fib = fib;
    }
}
