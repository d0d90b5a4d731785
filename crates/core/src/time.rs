//! Time: nanoseconds since the Unix epoch, as a newtype.

use core::fmt;

/// A second, in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// A point in time, in nanoseconds since the Unix epoch, or since the start of a clock that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The end of time.
    pub const MAX: Self = Self(u64::MAX);

    /// This time and `ns` nanoseconds more, at most [`Nanos::MAX`].
    #[inline]
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to this time, 0 where that is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / SECOND, self.0 % SECOND)
    }
}
