//! A token bucket that loses nothing to rounding.
//!
//! A token is counted in parts, eighths of billionths: a rate of R tokens a second adds exactly 8 R of them
//! in a nanosecond, and one of R bits a second adds exactly R where tokens are bytes.

use slipstream_core::time::Nanos;

/// Parts of a token.
pub(super) const PARTS: u64 = 8_000_000_000;

/// The largest size of a bucket, in tokens.
pub const MAX_TOKENS: u64 = u32::MAX as u64;

/// A bucket of tokens. Rate and size are its owner's: many buckets have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    parts: u128,
}

impl Bucket {
    /// A full bucket of `size` tokens.
    pub(super) const fn full(size: u64) -> Self {
        Self { parts: size as u128 * PARTS as u128 }
    }

    /// Adds parts up to the size, in tokens; what does not fit.
    #[inline]
    pub(super) fn add(&mut self, parts: u128, size: u64) -> u128 {
        let added = parts.min((u128::from(size) * u128::from(PARTS)).saturating_sub(self.parts));
        self.parts += added;
        parts - added
    }

    /// Returns true if there are so many tokens.
    #[inline]
    pub(super) const fn has(&self, tokens: u64) -> bool {
        self.parts >= tokens as u128 * PARTS as u128
    }

    /// Takes tokens that it has.
    #[inline]
    pub(super) fn take(&mut self, tokens: u64) {
        self.parts = self.parts.saturating_sub(u128::from(tokens) * u128::from(PARTS));
    }
}

/// Parts that a rate (tokens a second) adds in a time.
#[inline]
pub(super) fn accrued(rate: u64, since: Nanos, now: Nanos) -> u128 {
    accrued_bits(rate, since, now) * 8
}

/// Parts that a rate in bits a second adds in a time, where tokens are bytes.
#[inline]
pub(super) fn accrued_bits(rate: u64, since: Nanos, now: Nanos) -> u128 {
    u128::from(rate) * u128::from(now.since(since))
}

/// A limit to how often something happens: `burst` times at once, `rate` times a second in the long run.
///
/// ```
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::RateLimiter;
///
/// let mut limiter = RateLimiter::new(10, 2);
/// let allowed = [0, 0, 0, 100_000_000].map(|now| limiter.allow(1, Nanos(now)));
/// assert_eq!(allowed, [true, true, false, true]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimiter {
    bucket: Bucket,
    last: Option<Nanos>,
    rate: u64,
    burst: u64,
}

impl RateLimiter {
    /// A limiter that has let nothing happen. `rate` in events (or bytes) a second; `burst` in events (or
    /// bytes), 1 to [`MAX_TOKENS`].
    #[must_use]
    pub fn new(rate: u64, burst: u64) -> Self {
        let burst = burst.clamp(1, MAX_TOKENS);
        Self { bucket: Bucket::full(burst), last: None, rate, burst }
    }

    /// The same, but where the rate is 0 nothing may happen, not even one burst.
    pub(crate) fn or_none(rate: u64, burst: u64) -> Self {
        let bucket = if rate == 0 { Bucket::full(0) } else { Bucket::full(burst.clamp(1, MAX_TOKENS)) };
        Self { bucket, ..Self::new(rate, burst) }
    }

    /// Returns true if `amount` events (or bytes) may happen now; if so they count.
    #[inline]
    pub fn allow(&mut self, amount: u64, now: Nanos) -> bool {
        let allowed = self.would_allow(amount, now);
        if allowed {
            self.bucket.take(amount);
        }
        allowed
    }

    /// The same, of events that may come to nothing: none of them counts yet.
    #[inline]
    pub(crate) fn would_allow(&mut self, amount: u64, now: Nanos) -> bool {
        let last = self.last.unwrap_or(now);
        self.last = Some(last.max(now));
        self.bucket.add(accrued(self.rate, last, now), self.burst);
        self.bucket.has(amount)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rate_of_nothing_may_allow_nothing() {
        for rate in [0, 1] {
            let mut limiter = RateLimiter::or_none(rate, 5);
            let allowed = (0..10).filter(|n| limiter.allow(1, Nanos(*n))).count();
            assert_eq!(allowed, if rate == 0 { 0 } else { 5 });
        }
    }

    proptest! {
        /// Whatever the steps of time, tokens are those of the whole time, exactly.
        #[test]
        fn steps_add_up(rate in 0..10_000_000_u64, steps in proptest::collection::vec(0..1_000_000_000_u64, 1..50)) {
            let mut bucket = Bucket::default();
            let mut now = Nanos(5);
            for step in &steps {
                let next = now.after(*step);
                bucket.add(accrued(rate, now, next), MAX_TOKENS);
                now = next;
            }
            let exact = u128::from(rate) * u128::from(steps.iter().sum::<u64>());
            let tokens = (exact / 1_000_000_000).min(MAX_TOKENS.into()) as u64;
            prop_assert!(bucket.has(tokens) && (tokens == MAX_TOKENS || !bucket.has(tokens + 1)));
        }

        /// Never more than burst + rate × time, within any stretch.
        #[test]
        fn a_limit_is_kept(rate in 1..1000_u64, burst in 1..20_u64, gaps in proptest::collection::vec(0..20_000_000_u64, 1..300)) {
            let mut limiter = RateLimiter::new(rate, burst);
            let mut now = 1_000_000_000_000;
            let mut passed = vec![];
            for gap in gaps {
                now += gap;
                if limiter.allow(1, Nanos(now)) {
                    passed.push(now);
                }
                for (n, from) in passed.iter().enumerate() {
                    let count = (passed.len() - n) as u128;
                    let allowed = u128::from(burst) * 1_000_000_000 + u128::from(rate) * u128::from(now - from);
                    prop_assert!(count * 1_000_000_000 <= allowed);
                }
            }
            prop_assert!(passed.len() as u64 >= burst.min(passed.len() as u64));
        }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut limiter = RateLimiter::new(10, 3);
        let seen: Vec<bool> =
            [0, 0, 0, 0, 99, 100, 100, 200].map(|ms| limiter.allow(1, Nanos(ms * 1_000_000))).into();
        assert_eq!(seen, [true, true, true, false, false, true, false, true]);
    }
}
