//! Numbers, times, rates and names as text for people.

/// A text without characters that would do something to a terminal or that a page can't have: each becomes
/// U+FFFD.
#[must_use]
pub fn visible(text: &str) -> String {
    let bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.chars().map(|c| if bad(c) { '\u{fffd}' } else { c }).collect()
}

/// A count and its noun.
#[must_use]
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A value in the unit of a thousand that suits it, four digits of it. Only 0 is told as 0.
fn scaled(value: f64, unit: &str) -> String {
    // A value that would be told as 1000.0 ns, or as 600.0 s, 120.0 min or 48.0 h, is one of the next unit.
    let (value, prefix) = match value.abs() {
        v if v >= 999.95e6 => (value / 1e9, "G"),
        v if v >= 999.95e3 => (value / 1e6, "M"),
        v if v >= 999.95 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match value.abs() {
        0.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        v if v >= 0.1 => 3,
        v if v < 1e-6 => return format!("{value:.2e} {unit}"),
        v => (2.0 - v.log10().floor()) as usize,
    };
    format!("{value:.decimals$} {prefix}{unit}")
}

/// Packets and bytes in so many ns as rates.
#[must_use]
pub fn rates(packets: u64, bytes: u64, ns: u64) -> String {
    if ns == 0 {
        return "–".into();
    }
    [packet_rate(packets, ns), bit_rate(bytes, ns)].join(", ")
}

/// Packets a second, with the unit that suits them.
#[must_use]
pub fn per_second(packets: f64) -> String {
    scaled(packets, "pps")
}

/// Packets in so many ns as a rate.
#[must_use]
pub fn packet_rate(packets: u64, ns: u64) -> String {
    scaled(packets as f64 / (ns as f64 / 1e9), "pps")
}

/// Bytes in so many ns as a rate of bits.
#[must_use]
pub fn bit_rate(bytes: u64, ns: u64) -> String {
    scaled(bytes as f64 * 8.0 / (ns as f64 / 1e9), "bit/s")
}

/// A time in ns, with its error where it has one.
#[must_use]
pub fn with_error(ns: f64, error: f64) -> String {
    match error {
        e if e < 0.05 => format!("{ns:.0} ns"),
        e if e < 0.5 => format!("{ns:.1} ± {e:.1} ns"),
        e => format!("{ns:.0} ± {e:.0} ns"),
    }
}

/// A count with thousands apart.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

/// A number with `decimals`, or a dash for nothing.
#[must_use]
pub fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{v:.decimals$}"))
}

/// A number at a tick of an axis: as many as four significant digits of it in few characters, so that no two
/// ticks have the same text.
#[must_use]
pub fn tick(value: f64) -> String {
    let value: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 1e-3 => format!("{value:e}"),
        _ => format!("{value}"),
    }
}

/// A share as a percentage.
#[must_use]
pub fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{:.1} %", v * 100.0))
}

/// A time in ns, in the unit that suits it.
#[must_use]
pub fn time(ns: Option<f64>) -> String {
    let Some(ns) = ns else { return "–".to_owned() };
    // A value that would be told as 1000.0 ns, or as 600.0 s, 120.0 min or 48.0 h, is one of the next unit.
    let (value, unit) = match ns.abs() {
        0.0..999.95 => (ns, "ns"),
        999.95..999.95e3 => (ns / 1e3, "µs"),
        999.95e3..999.95e6 => (ns / 1e6, "ms"),
        999.95e6..599.95e9 => (ns / 1e9, "s"),
        599.95e9..7.197e12 => (ns / 6e10, "min"),
        7.197e12..1.7262e14 => (ns / 3.6e12, "h"),
        _ => (ns / 8.64e13, "days"),
    };
    let decimals = if unit == "ns" && value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_suit_the_values() {
        assert_eq!(rates(12, 480, 60_000_000_000), "0.200 pps, 64.00 bit/s");
        assert_eq!(rates(2_000_000, 2_000_000_000, 1_000_000_000), "2.000 Mpps, 16.00 Gbit/s");
        let small = [0.0, 0.1, 0.001, 0.000_012_34, 1.234e-9];
        assert_eq!(
            small.map(per_second),
            ["0 pps", "0.100 pps", "0.00100 pps", "0.0000123 pps", "1.23e-9 pps"]
        );
        assert_eq!(time(Some(184_280_863.5e9)), "2132.9 days");
        assert_eq!(
            ["90", "599.94", "599.96", "900", "7196.9", "7197.1", "9000", "172619.9", "172620.1"]
                .map(|s| time(s.parse().ok().map(|s: f64| s * 1e9))),
            [
                "90.0 s",
                "599.9 s",
                "10.0 min",
                "15.0 min",
                "119.9 min",
                "2.0 h",
                "2.5 h",
                "47.9 h",
                "2.0 days"
            ]
        );
        assert_eq!(
            [999.0, 999.94, 999.96, 999_949.0, 999_999.0, 999_999_999.0].map(|ns| time(Some(ns))),
            ["999 ns", "999.9 ns", "1.0 µs", "999.9 µs", "1.0 ms", "1.0 s"]
        );
        assert_eq!([999.94, 999.96, 999_999.0].map(per_second), ["999.9 pps", "1.000 kpps", "1.000 Mpps"]);
        assert_eq!(
            [with_error(600.0, 0.0), with_error(77.0, 0.04), with_error(77.0, 3.0)],
            ["600 ns", "77 ns", "77 ± 3 ns"]
        );
    }

    /// The steps of an axis are 1, 2 or 5 times a power of ten, so that every second one may have two digits.
    #[test]
    fn ticks_differ() {
        let of = |step: f64| (0..4).map(|n| tick(f64::from(n) * step)).collect::<Vec<_>>();
        assert_eq!(of(0.005), ["0", "0.005", "0.01", "0.015"]);
        assert_eq!(of(5e-4), ["0", "5e-4", "0.001", "0.0015"]);
        assert_eq!(of(5e-9), ["0", "5e-9", "1e-8", "1.5e-8"]);
        assert_eq!(of(5e8), ["0", "500000000", "1000000000", "1500000000"]);
        assert_eq!([0.1 + 0.2, -0.0, 1024.0, 0.0625].map(tick), ["0.3", "0", "1024", "0.0625"]);
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(Some(64_000.0)), "64.0 µs");
        assert_eq!(time(None), "–");
        assert_eq!(share(Some(0.5)), "50.0 %");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(visible("a\u{0}b\u{1b}[31m\u{ffff}"), "a\u{fffd}b\u{fffd}[31m\u{fffd}");
    }
}
