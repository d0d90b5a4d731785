//! Axes: places of values, and the ticks that are written.

/// An axis: it gives values their places, and writes round ones at its ticks.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(super) label: String,
    /// The base of a logarithmic axis; `from`, `to` and `step` are exponents then.
    base: Option<f64>,
    from: f64,
    to: f64,
    step: f64,
    tick: fn(f64) -> String,
    /// The lowest tick of a logarithmic axis stands for 0.
    zero: bool,
}

impl Axis {
    /// From 0 to `high` or somewhat more, in steps of 1, 2 or 5 times a power of ten.
    #[must_use]
    pub fn linear(label: &str, high: f64, tick: fn(f64) -> String) -> Self {
        let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        let raw = high / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0]
            .map(|m| m * power)
            .into_iter()
            .find(|s| *s >= raw * 0.999)
            .unwrap_or(10.0 * power);
        let to = (high / step - 1e-9).ceil() * step;
        Self { label: label.to_owned(), base: None, from: 0.0, to, step, tick, zero: false }
    }

    /// Logarithmic, over whole powers of `base` (above 1) that hold `low..=high`; both at least the smallest
    /// positive value.
    #[must_use]
    pub fn log(label: &str, base: f64, (low, high): (f64, f64), tick: fn(f64) -> String) -> Self {
        let exponent = |v: f64| if v.is_finite() && v > 0.0 { v.log(base) } else { 0.0 };
        let from = (exponent(low) + 1e-9).floor();
        let to = (exponent(high) - 1e-9).ceil().max(from + 1.0);
        let step = ((to - from) / 7.0).ceil();
        Self { label: label.to_owned(), base: Some(base), from, to, step, tick, zero: false }
    }

    /// The same, whose lowest tick stands for 0: all smaller values lie there.
    #[must_use]
    pub fn with_zero(self) -> Self {
        Self { zero: true, ..self }
    }

    /// The text at a tick.
    pub(super) fn text(&self, value: f64) -> String {
        let lowest = self.base.is_some_and(|base| value <= base.powf(self.from) * 1.0001);
        if self.zero && lowest { "0".to_owned() } else { (self.tick)(value) }
    }

    /// The place of a value, as a share of the axis; values outside lie at its ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = self.base.map_or(value, |base| value.max(f64::MIN_POSITIVE).log(base));
        let share = (value - self.from) / (self.to - self.from);
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// The values at the ticks.
    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        let n = ((self.to - self.from) / self.step + 1e-9).floor() as u32;
        let place = move |i| self.from + f64::from(i) * self.step;
        (0..=n).map(move |i| self.base.map_or(place(i), |base| base.powf(place(i))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plain;
    use super::*;

    #[test]
    pub(super) fn ticks_are_round_and_hold_the_values() {
        let ticks = |a: Axis| a.ticks().collect::<Vec<_>>();
        assert_eq!(ticks(Axis::linear("", 1.0, plain)).len(), 6);
        assert_eq!(ticks(Axis::linear("", 9.3, plain)), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(Axis::linear("", f64::NAN, plain)).len(), 6);
        assert_eq!(ticks(Axis::log("", 10.0, (1.0, 1000.0), plain)), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(ticks(Axis::log("", 10.0, (30.0, 31.0), plain)), [10.0, 100.0]);
        assert_eq!(ticks(Axis::log("", 2.0, (1.0, 32.0), plain)), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        // A long axis has labels at every second power or so.
        assert!(ticks(Axis::log("", 10.0, (1.0, 1e18), plain)).len() <= 8);
    }

    #[test]
    fn places_are_shares_of_the_axis() {
        let log = Axis::log("", 10.0, (1.0, 100.0), plain);
        for (value, share) in
            [(1.0, 0.0), (10.0, 0.5), (100.0, 1.0), (1e9, 1.0), (-3.0, 0.0), (f64::NAN, 0.0)]
        {
            assert!((log.at(value) - share).abs() < 1e-9, "{value}");
        }
    }
}
