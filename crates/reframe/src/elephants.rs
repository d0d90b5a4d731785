//! Classes of heavy flows: which of a class's flows have most packets of late is asked now and then of who
//! counts them, and kept as a bit a flow in between.
//!
//! A flow becomes heavy, or is no longer, with the packet that ends a window; a train of it that was begun in
//! another class leaves first, as wherever a flow changes its class.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::config::{Class, ConfigError, ReframeConfig};
use slipstream_core::heavy::{HeavyFlows, MakeHeavyFlows};

/// Packets that are handed on at once to be counted.
const BATCH: usize = 64;

/// The heavy flows of a class.
#[derive(Debug)]
pub(crate) struct Heavy {
    finder: Box<dyn HeavyFlows>,
    /// Packets not handed on yet, and those after which the window ends.
    waiting: Vec<u32>,
    left: u32,
    window: u32,
    /// A bit for each flow, by number: whether it is heavy.
    bits: Vec<u64>,
    /// The heavy flows.
    all: Vec<u32>,
    /// Flow numbers below this were given.
    given: u32,
}

impl Heavy {
    /// By class, from the first after the default one; empty where none is about heavy flows.
    ///
    /// # Errors
    /// [`ConfigError::NobodyCounts`] for a class of heavy flows where the settings bring no counter of them.
    pub(crate) fn of_classes(config: &ReframeConfig) -> Result<Vec<Option<Self>>, ConfigError> {
        if config.classes.iter().all(|c| c.top.is_none()) {
            return Ok(Vec::new());
        }
        config.classes.iter().map(|c| Self::of_class(c, config.heavy_flows, config.top_window)).collect()
    }

    fn of_class(
        class: &Class,
        make: Option<MakeHeavyFlows>,
        window: u32,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(top) = class.top else { return Ok(None) };
        let nobody = || ConfigError::NobodyCounts { class: class.name.clone() };
        let finder = make.and_then(|make| make(top, window)).ok_or_else(nobody)?;
        Ok(Some(Self {
            finder,
            waiting: Vec::with_capacity(BATCH),
            left: window,
            window,
            bits: Vec::new(),
            all: Vec::new(),
            given: 0,
        }))
    }

    /// Takes the memory for so many flows, which is else taken as they come.
    pub(crate) fn reserve_all(&mut self, flows: usize) {
        self.bits.reserve_exact(flows.div_ceil(64));
    }

    /// Goes on where `before`, which counted the packets of the same rules, has ended. Without it flows with
    /// numbers below `flows` came before anybody counted here.
    #[cfg(feature = "std")]
    pub(crate) fn follow(&mut self, before: Option<&mut Self>, flows: usize) {
        if let Some(before) = before.filter(|before| before.window == self.window) {
            return core::mem::swap(self, before);
        }
        self.given = flows as u32;
        if let Some(last) = self.given.checked_sub(1) {
            self.cover(last);
        }
    }

    /// The number of heavy flows.
    pub(crate) fn flows(&self) -> usize {
        self.all.len()
    }

    /// A flow is new. Its number may have been another one's.
    #[inline]
    pub(crate) fn new_flow(&mut self, flow: u32) {
        if flow >= self.given {
            self.given = flow + 1;
            self.cover(flow);
            return;
        }
        if self.is_heavy(flow) {
            self.all.retain(|f| *f != flow);
            self.set(flow, false);
        }
        self.finder.count(&self.waiting);
        self.waiting.clear();
        self.finder.renumber(flow);
    }

    #[inline(always)]
    fn is_heavy(&self, flow: u32) -> bool {
        self.bits.get(flow as usize >> 6).is_some_and(|word| word >> (flow & 63) & 1 == 1)
    }

    fn cover(&mut self, flow: u32) {
        let words = (flow as usize >> 6) + 1;
        if self.bits.len() < words {
            self.bits.resize(words, 0);
        }
    }

    fn set(&mut self, flow: u32, heavy: bool) {
        if let Some(word) = self.bits.get_mut(flow as usize >> 6) {
            *word = *word & !(1 << (flow & 63)) | u64::from(heavy) << (flow & 63);
        }
    }

    /// A packet of a flow has come that is of this class if its flow is heavy: returns whether it is.
    #[inline(always)]
    pub(crate) fn packet(&mut self, flow: u32) -> bool {
        self.waiting.push(flow);
        self.left -= 1;
        if self.left == 0 || self.waiting.len() >= BATCH {
            self.hand_on();
        }
        self.is_heavy(flow)
    }

    #[inline(never)]
    fn hand_on(&mut self) {
        self.finder.count(&self.waiting);
        self.waiting.clear();
        if self.left > 0 {
            return;
        }
        self.left = self.window;
        for at in 0..self.all.len() {
            let flow = self.all.get(at).copied().unwrap_or(0);
            self.set(flow, false);
        }
        let Self { finder, all, .. } = self;
        all.clear();
        finder.end(&mut |flow| all.push(flow));
        for at in 0..self.all.len() {
            let flow = self.all.get(at).copied().unwrap_or(0);
            self.cover(flow);
            self.set(flow, true);
        }
    }
}
