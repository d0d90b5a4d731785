//! Numbers with units, as people write them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// A time in ns: `64us`, `1.5ms`, `2s`, `100ns`, `0`.
///
/// ```
/// use slipstream_core::units::Duration;
///
/// let hold: Duration = "1.5ms".parse()?;
/// assert_eq!(hold, Duration(1_500_000));
/// // To three decimals for people, to the last ns where two times are held against each other.
/// let longer = Duration(1_500_001);
/// assert_eq!((longer.to_string(), longer.exact()), ("1.5ms".to_owned(), "1500001ns".to_owned()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub u64);

/// A count: `8192`, `64k`, `1.5M`, `1e6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

/// A size in bytes: `65536`, `64KiB`, `1MiB`, `2MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// The nearest whole number to one that is not negative, halves upwards; `core` has no `round`. From 2⁵³ on
/// all are whole.
fn rounded(x: f64) -> f64 {
    if x >= (1_u64 << 53) as f64 {
        return x;
    }
    let whole = x as u64 as f64;
    if x - whole >= 0.5 { whole + 1.0 } else { whole }
}

/// A number as it is written, and what follows it.
fn split(text: &str) -> Option<(String, &str)> {
    let text = text.trim();
    let numeric = |c: char| c.is_ascii_digit() || c == '.' || c == '_';
    let mut end = text.find(|c| !numeric(c)).unwrap_or(text.len());
    // An exponent: e or E, a sign perhaps, and digits.
    if let Some(rest) = text.get(end..).and_then(|t| t.strip_prefix(['e', 'E'])) {
        let digits = rest.trim_start_matches(['+', '-']);
        let n = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        if n > 0 && rest.len() - digits.len() <= 1 {
            end += 1 + (rest.len() - digits.len()) + n;
        }
    }
    let (number, unit) = text.split_at_checked(end)?;
    Some((number.replace('_', ""), unit.trim()))
}

/// So many times a whole number, without a fraction of a bit lost: from 2⁵³ on a floating-point number has
/// not every whole one.
fn times(number: &str, factor: f64) -> Option<u64> {
    number.parse::<u64>().ok()?.checked_mul(factor as u64)
}

/// The whole number nearest to what a text says, and what it says.
fn parse(text: &str, units: &[(&str, f64)], needs_unit: bool, what: &str) -> Result<(u64, f64), String> {
    let known = || units.iter().map(|u| u.0).filter(|u| !u.is_empty()).collect::<Vec<_>>().join(", ");
    let read = split(text).and_then(|(digits, unit)| Some((digits.parse::<f64>().ok()?, digits, unit)));
    let Some((number, digits, unit)) = read else {
        return Err(format!("{text:?} is not {what}; write a number and a unit ({})", known()));
    };
    if unit.is_empty() && needs_unit && number != 0.0 {
        return Err(format!(
            "{text:?} lacks a unit; write one of {} behind it, as in {text}{}",
            known(),
            first(units)
        ));
    }
    let Some((_, factor)) = units.iter().find(|(u, _)| u.eq_ignore_ascii_case(unit)) else {
        return Err(format!("{unit:?} is not a unit of {what}; there are {}", known()));
    };
    let exact = number * factor;
    let value = rounded(exact);
    if !(0.0..1.8e19).contains(&value) {
        return Err(format!("{text:?} is out of range"));
    }
    if value == 0.0 && number != 0.0 {
        return Err(format!("{text:?} is too small: it rounds to 0"));
    }
    Ok((times(&digits, *factor).unwrap_or(value as u64), exact))
}

fn first<'a>(units: &[(&'a str, f64)]) -> &'a str {
    units.iter().map(|u| u.0).find(|u| !u.is_empty()).unwrap_or_default()
}

const TIMES: [(&str, f64); 8] =
    [("us", 1e3), ("ns", 1.0), ("ms", 1e6), ("s", 1e9), ("µs", 1e3), ("μs", 1e3), ("min", 6e10), ("", 0.0)];
const COUNTS: [(&str, f64); 4] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];
const SIZES: [(&str, f64); 8] = [
    ("", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("B", 1.0),
];

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &TIMES, true, "a time").map(|(ns, _)| Self(ns))
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A seed may be any number that there is.
        if let Some((digits, "")) = split(text)
            && let Ok(count) = digits.parse()
        {
            return Ok(Self(count));
        }
        let (count, exact) = parse(text, &COUNTS, false, "a count")?;
        // Half a packet there is not; a product of a decimal fraction is off by its last bits.
        if (exact - count as f64).abs() > exact * 1e-9 {
            return Err(format!("{text:?} is not a whole number"));
        }
        Ok(Self(count))
    }
}

/// A share, 0 to 1: `0.01`, `1%`.
///
/// # Errors
/// Anything else, in words.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>() {
        Ok(part) if (0.0..=whole).contains(&part) => Ok(part / whole),
        _ => {
            Err(format!("{text:?} is no share; write a number from 0 to 1 or a percentage, as in 0.01 or 1%"))
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &SIZES, false, "a size").map(|(bytes, _)| Self(bytes))
    }
}

impl Duration {
    /// The time to the last ns: a text that is read as this time and no other, so that one just over a bound
    /// doesn't look like the bound.
    #[must_use]
    pub fn exact(self) -> String {
        let rounded = self.to_string();
        if rounded.parse() == Ok(self) { rounded } else { format!("{}ns", self.0) }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let (value, unit) = match self.0 {
            0 => return write!(f, "0"),
            1..1_000 => (ns, "ns"),
            1_000..1_000_000 => (ns / 1e3, "us"),
            // Half a microsecond less than a second is a second to three digits.
            1_000_000..999_999_500 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        write!(f, "{}{unit}", rounded(value * 1000.0) / 1000.0)
    }
}

/// A rate of packets or bits: `1mpps`, `500kpps`, `2.2gbps`, `10Mbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Packets a second.
    Packets(u64),
    /// Bits a second.
    Bits(u64),
}

const RATES: [(&str, f64, bool); 12] = [
    ("pps", 1.0, true),
    ("kpps", 1e3, true),
    ("mpps", 1e6, true),
    ("gpps", 1e9, true),
    ("bps", 1.0, false),
    ("kbps", 1e3, false),
    ("mbps", 1e6, false),
    ("gbps", 1e9, false),
    ("bit", 1.0, false),
    ("kbit", 1e3, false),
    ("mbit", 1e6, false),
    ("gbit", 1e9, false),
];

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units: Vec<(&str, f64)> = RATES.iter().map(|(unit, factor, _)| (*unit, *factor)).collect();
        let (value, exact) = parse(text, &units, true, "a rate")?;
        // A thousandth is no more than what clocks are off by; 1 packet a second for 0.5 is another rate.
        if (exact - value as f64).abs() > exact * 1e-3 {
            return Err(format!("{text:?} is not a whole number a second: it would be taken for {value}"));
        }
        let unit = split(text).map(|(_, unit)| unit).unwrap_or_default();
        let packets = RATES.iter().any(|(u, _, packets)| *packets && u.eq_ignore_ascii_case(unit));
        Ok(if packets { Self::Packets(value) } else { Self::Bits(value) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ns) in
            [("64us", 64_000), ("1.5ms", 1_500_000), ("0", 0), ("2 s", 2_000_000_000), ("1e3ns", 1000)]
        {
            assert_eq!(text.parse(), Ok(Duration(ns)), "{text}");
        }
        for text in ["64 parsecs", "64", "", "us", "-1us", "1e-9ns", "1e99s", "0.1.2us"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
        assert!("64 parsecs".parse::<Duration>().unwrap_err().contains("parsecs"));
    }

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        let odd = [
            0.0,
            0.499_999_999_999_999_94,
            0.5,
            1.5,
            2.5,
            1e15 + 0.5,
            9_007_199_254_740_993.0,
            1.7e19,
            1e300,
        ];
        for x in odd.into_iter().chain((0..1000).map(|i| f64::from(i) * 0.123_4)) {
            assert_eq!(rounded(x), x.round(), "{x}");
        }
        assert_eq!(rounded(f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn printed_times_parse_to_themselves() {
        for ns in [0, 1, 999, 1000, 64_000, 1_700_000, 4_000_000_000] {
            assert_eq!(Duration(ns).to_string().parse(), Ok(Duration(ns)));
        }
    }

    #[test]
    fn a_time_is_shown_in_the_unit_that_it_rounds_to() {
        for (ns, shown) in [
            (0, "0"),
            (1, "1ns"),
            (999, "999ns"),
            (1_000, "1us"),
            (1_001, "1.001us"),
            (999_999, "999.999us"),
            (1_000_000, "1ms"),
            (1_000_499, "1ms"),
            (1_000_500, "1.001ms"),
            (999_999_499, "999.999ms"),
            (999_999_500, "1s"),
            (999_999_999, "1s"),
            (1_000_000_000, "1s"),
            (1_000_499_999, "1s"),
            (1_000_500_000, "1.001s"),
            (10_000_000_000_000_000_000, "10000000000s"),
        ] {
            assert_eq!(Duration(ns).to_string(), shown, "{ns}");
            let exact = Duration(ns).exact();
            assert_eq!(exact.parse(), Ok(Duration(ns)), "{exact}");
        }
    }

    /// A floating-point number has not every whole one from 2⁵³ on.
    #[test]
    fn large_whole_numbers_are_read_to_the_last_digit() {
        for (text, n) in [
            ("9007199254740993", (1 << 53) + 1),
            ("9_007_199_254_740_993", (1 << 53) + 1),
            ("1234567890123456789", 1_234_567_890_123_456_789),
            ("9007199254740993k", 9_007_199_254_740_993_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Count(n)), "{text}");
        }
        assert_eq!("1700000000123456789ns".parse(), Ok(Duration(1_700_000_000_123_456_789)));
        assert_eq!("9007199254740993us".parse(), Ok(Duration(9_007_199_254_740_993_000)));
        assert_eq!("9007199254740993B".parse(), Ok(Bytes((1 << 53) + 1)));
        assert_eq!("9007199254740993bps".parse(), Ok(Rate::Bits((1 << 53) + 1)));
    }

    #[test]
    fn shares_are_parts_of_one_or_of_a_hundred() {
        for (text, expected) in
            [("0", 0.0), ("0.25", 0.25), ("1", 1.0), ("1e-5", 1e-5), (" 1 %", 0.01), ("100%", 1.0)]
        {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        for text in ["", "%", "-0.1", "1.01", "101%", "nan", "inf", "1%%", "one"] {
            assert!(share(text).unwrap_err().contains("0.01 or 1%"), "{text}");
        }
    }

    #[test]
    fn counts_and_sizes() {
        assert_eq!("1M".parse(), Ok(Count(1_000_000)));
        assert_eq!("1e6".parse(), Ok(Count(1_000_000)));
        assert_eq!("8_192".parse(), Ok(Count(8192)));
        assert_eq!("64MiB".parse(), Ok(Bytes(64 << 20)));
        assert_eq!("1.5Mpps".parse(), Ok(Rate::Packets(1_500_000)));
        assert_eq!("2.2 gbps".parse(), Ok(Rate::Bits(2_200_000_000)));
        assert!("7".parse::<Rate>().unwrap_err().contains("lacks a unit"));
        assert_eq!("33.3333333333mpps".parse(), Ok(Rate::Packets(33_333_333)));
        assert_eq!("1234.5678pps".parse(), Ok(Rate::Packets(1235)));
        assert_eq!("0.0000125mpps".parse::<Rate>().unwrap_err().matches("taken for 13").count(), 1);
        for text in ["0.5pps", "1.5pps", "0.9bps", "100.5bps", "0.0025kpps"] {
            assert!(text.parse::<Rate>().unwrap_err().contains("whole number a second"), "{text}");
        }
        assert!("0.4pps".parse::<Rate>().unwrap_err().contains("rounds to 0"));
        assert!("12 apples".parse::<Count>().is_err());
        for (text, n) in
            [("2.5k", 2500), ("1.1M", 1_100_000), ("0.3G", 300_000_000), ("1e19", 10_000_000_000_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Count(n)), "{text}");
        }
        for text in ["18446744073709551616", "1.9e19", "18446744073709552k"] {
            assert!(text.parse::<Count>().unwrap_err().contains("out of range"), "{text}");
        }
        for text in ["2.5", "0.7", "1.0005k"] {
            assert!(text.parse::<Count>().unwrap_err().contains("whole"), "{text}");
        }
    }
}
