//! Numbers with units, as people write them.

use std::fmt;
use std::str::FromStr;

pub(crate) use slipstream::units::{Bytes, Count, Duration};

/// A count as a 32-bit number; `option` stands for it in the error.
pub(crate) fn to_u32(count: Count, option: &str) -> anyhow::Result<u32> {
    u32::try_from(count.0)
        .map_err(|_| anyhow::anyhow!("{option} {}: at most {} is possible", count.0, u32::MAX))
}

/// The length of an epoch: `2000000p` or `2Mp` (packets), `1s`, `100ms` (time). Never nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Epoch {
    /// So many packets.
    Packets(u64),
    /// So many ns.
    Time(u64),
}

impl FromStr for Epoch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is no length of an epoch; write packets (2000000p) or a time (1s)");
        let epoch = match text.trim().strip_suffix('p') {
            Some(packets) => Self::Packets(packets.parse::<Count>().map_err(|_| form())?.0),
            None => Self::Time(text.parse::<Duration>().map_err(|_| form())?.0),
        };
        match epoch {
            Self::Packets(0) | Self::Time(0) => Err(format!("{text:?}: an epoch can't be empty")),
            other => Ok(other),
        }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(n) => write!(f, "{n}p"),
            Self::Time(ns) => Duration(*ns).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs() {
        assert_eq!("2000000p".parse(), Ok(Epoch::Packets(2_000_000)));
        assert_eq!("2Mp".parse(), Ok(Epoch::Packets(2_000_000)));
        assert_eq!("1s".parse(), Ok(Epoch::Time(1_000_000_000)));
        for text in ["0p", "0s", "p", "s", "7", "-1p", "1e99p", "", "1 parsec"] {
            assert!(text.parse::<Epoch>().is_err(), "{text}");
        }
    }
}
