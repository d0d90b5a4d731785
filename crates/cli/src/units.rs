//! Numbers with units, as people write them.

use std::str::FromStr;

pub(crate) use slipstream::units::{Bytes, Count, Duration, share};

/// The address of metrics: that of this machine alone where only a port is written, as in `:9464`.
pub(crate) fn metrics_address(text: &str) -> Result<std::net::SocketAddr, String> {
    let whole = with_host(text);
    whole.parse().map_err(|_| "no ADDRESS:PORT, as in 127.0.0.1:9464 or :9464".to_owned())
}

/// An address with the host that it has where only a port is written.
pub(crate) fn with_host(text: &str) -> String {
    if text.starts_with(':') { format!("127.0.0.1{text}") } else { text.to_owned() }
}

/// A count as a 32-bit number; `option` stands for it in the error.
pub(crate) fn to_u32(count: Count, option: &str) -> anyhow::Result<u32> {
    u32::try_from(count.0)
        .map_err(|_| anyhow::anyhow!("{option} {}: at most {} is possible", count.0, u32::MAX))
}

/// A number of packets: `4096`, `4k`.
pub(crate) fn packets(text: &str) -> Result<usize, String> {
    let n = text.parse::<Count>()?.0;
    usize::try_from(n).map_err(|_| format!("{text:?} is out of range"))
}

/// A time in ns that need not be whole: `71.3ns`, `1us`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Nanoseconds(pub(crate) f64);

/// Packets a second: `11.97mpps`, `500kpps`, `1e6pps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(pub(crate) f64);

const TIMES: [(&str, f64); 6] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9)];
const RATES: [(&str, f64); 4] = [("mpps", 1e6), ("kpps", 1e3), ("gpps", 1e9), ("pps", 1.0)];

/// A number before one of several units; nothing but 0 goes without.
fn number(text: &str, units: &[(&str, f64)], what: &str) -> Result<f64, String> {
    let known = || units.iter().map(|u| u.0).collect::<Vec<_>>().join(", ");
    let text = text.trim();
    let unit_of = |(unit, factor): &(&str, f64)| {
        let at = text.len().checked_sub(unit.len())?;
        let (number, end) = text.split_at_checked(at)?;
        // The longest unit that fits is the one that leaves a number: `us` also ends in `s`.
        let value: f64 = number.trim_end().replace('_', "").parse().ok()?;
        end.eq_ignore_ascii_case(unit).then_some(value * factor)
    };
    let value = if text == "0" { Some(0.0) } else { units.iter().find_map(unit_of) };
    match value {
        Some(value) if value.is_finite() && value >= 0.0 => Ok(value),
        Some(_) => Err(format!("{text:?} is out of range")),
        None => Err(format!("{text:?} is not {what}; write a number and a unit ({})", known())),
    }
}

impl FromStr for Nanoseconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        number(text, &TIMES, "a time").map(Self)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match number(text, &RATES, "a rate of packets")? {
            0.0 => Err(format!("{text:?}: no packet comes at this rate")),
            rate => Ok(Self(rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_need_not_be_whole() {
        assert_eq!("71.3ns".parse(), Ok(Nanoseconds(71.3)));
        assert_eq!("1.5us".parse(), Ok(Nanoseconds(1500.0)));
        assert_eq!("2 s".parse(), Ok(Nanoseconds(2e9)));
        assert_eq!("0".parse(), Ok(Nanoseconds(0.0)));
        assert_eq!((packets("4096"), packets("4k")), (Ok(4096), Ok(4000)));
        assert!(packets("many").unwrap_err().contains("a count"));
        assert_eq!("11.97mpps".parse(), Ok(Rate(11.97e6)));
        assert_eq!("1e6pps".parse(), Ok(Rate(1e6)));
        for text in ["0pps", "5", "-1mpps", "NaNpps", "infpps", "1gbps", "1e400pps", "", "pps"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
