//! Counters of each class, where there are several: of one, those of all packets say the same.

use super::stats::{Cause, ReframeStats};

/// The packets that each class holds, and the classes of the last packets. What is counted of several classes
/// is apart from the way of all packets, so that it costs nothing where there is one.
#[derive(Debug)]
pub(super) struct ByClass {
    several: bool,
    /// Packets held, by class. Where there is one class, it says nothing.
    held: [u32; 1 << u8::BITS],
    last_in: u8,
    last_out: u8,
}

impl ByClass {
    /// For so many classes.
    pub(super) fn new(classes: usize) -> Self {
        Self { several: classes > 1, held: [0; 1 << u8::BITS], last_in: 0, last_out: 0 }
    }

    /// A packet of one of several classes has come, which begins a run of its flow or not.
    #[inline]
    pub(super) fn came(&mut self, stats: &mut ReframeStats, class: u8, begins: bool) {
        let begins = begins || class != self.last_in;
        self.last_in = class;
        if let Some(stats) = stats.classes.get_mut(usize::from(class)) {
            stats.runs_in += u64::from(begins);
        }
    }

    /// A train of a class has left, which begins a run of its flow or not.
    #[inline(always)]
    pub(super) fn left(&mut self, stats: &mut ReframeStats, class: u8, begins: bool) {
        if self.several {
            self.count_out(stats, class, begins);
        }
    }

    #[inline(never)]
    fn count_out(&mut self, stats: &mut ReframeStats, class: u8, begins: bool) {
        let begins = begins || class != self.last_out;
        self.last_out = class;
        if let Some(stats) = stats.classes.get_mut(usize::from(class)) {
            stats.runs_out += u64::from(begins);
        }
    }

    /// A packet of a class is held.
    #[inline(always)]
    pub(super) fn keep(&mut self, class: u8) {
        if let Some(held) = self.held.get_mut(usize::from(class)) {
            *held = held.wrapping_add(1);
        }
    }

    /// A train of a class is no longer held; it had so many packets.
    #[inline(always)]
    pub(super) fn let_go(&mut self, stats: &mut ReframeStats, class: u8, packets: u16, cause: Cause) {
        if self.several {
            self.count_gone(stats, class, packets, cause);
        }
    }

    #[inline(never)]
    fn count_gone(&mut self, stats: &mut ReframeStats, class: u8, packets: u16, cause: Cause) {
        let class = usize::from(class);
        if let (Some(held), Some(stats)) = (self.held.get_mut(class), stats.classes.get_mut(class)) {
            // A packet that makes its train leave was never held.
            stats.held_max = stats.held_max.max(*held - u32::from(cause == Cause::Full));
            *held -= u32::from(packets);
        }
    }

    /// Completes the counters: of what is held now, or of all packets where there is one class.
    pub(super) fn tell(&self, stats: &mut ReframeStats) {
        if let [class] = stats.classes.as_mut_slice() {
            class.runs_in = stats.runs_in;
            class.runs_out = stats.runs_out;
            class.held_max = stats.held_max;
        }
        if self.several {
            for (class, held) in stats.classes.iter_mut().zip(&self.held) {
                class.held_max = class.held_max.max(*held);
            }
        }
    }
}
