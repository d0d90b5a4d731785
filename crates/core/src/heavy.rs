//! Heavy flows ("elephants"), as far as members have to agree on them: who counts packets by flow and ranks
//! the flows knows no stage, and a stage that treats heavy flows in their own way knows no sketch.

use alloc::boxed::Box;
use core::fmt;

/// The flows that are heavy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    /// So many flows, at least 1.
    Flows(u32),
    /// A share of all flows, in millionths, 1 to [`Top::ALL`]; at least one flow.
    Share(u32),
}

impl Top {
    /// All flows, in millionths.
    pub const ALL: u32 = 1_000_000;
    /// The longest window, in packets.
    pub const MAX_WINDOW: u32 = 1 << 20;

    /// The number of heavy flows among so many, at most.
    #[must_use]
    pub fn of(self, flows: u64) -> u64 {
        match self {
            Self::Flows(n) => n.into(),
            Self::Share(millionths) => (flows * u64::from(millionths)).div_ceil(Self::ALL.into()).max(1),
        }
    }
}

impl fmt::Display for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Flows(n) => write!(f, "top {n}"),
            Self::Share(millionths) => write!(f, "top {} %", f64::from(millionths) / 1e4),
        }
    }
}

/// Counts packets by the numbers of their flows, and says which flows had the most.
///
/// The same calls have the same answers, always.
pub trait HeavyFlows: fmt::Debug + Send {
    /// Packets of these flows have come, in this order.
    fn count(&mut self, flows: &[u32]);

    /// This is the number of another flow from now on. Until the end of the next window none of this number
    /// is heavy.
    fn renumber(&mut self, flow: u32);

    /// Ends a window, and hands the heavy flows by the packets of this window and the one before to `heavy`,
    /// the heaviest first, of equal ones the lowest number first. A flow that has had no two packets in any
    /// of the two is never heavy.
    fn end(&mut self, heavy: &mut dyn FnMut(u32));
}

/// Makes what finds heavy flows, in windows of so many packets; `None` where it can't.
pub type MakeHeavyFlows = fn(top: Top, window: u32) -> Option<Box<dyn HeavyFlows>>;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_share_is_rounded_up() {
        for (top, flows, heavy) in [
            (Top::Share(10_000), 0, 1),
            (Top::Share(10_000), 100, 1),
            (Top::Share(10_000), 101, 2),
            (Top::Share(Top::ALL), 7, 7),
            (Top::Flows(20), 5, 20),
        ] {
            assert_eq!(top.of(flows), heavy, "{top} of {flows}");
        }
        assert_eq!(Top::Share(5_000).to_string(), "top 0.5 %");
    }
}
