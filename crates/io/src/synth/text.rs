//! Settings that people write as one word: sizes (`64`, `64..1500`, `imix`, `64:7,594:4,1518:1`) and rates
//! (`1mpps`, `2.2gbps`).

use std::str::FromStr;

use serde::Deserialize;

use super::config::{Arrivals, MAX_FRAME, MIN_FRAME, Order, Profile, Protocol, TrainModel};
use super::error::SynthError;

/// Most sizes in a mix.
pub(super) const MAX_MIX: usize = 4096;

/// Frame sizes, in bytes of the captured frame (without the frame check sequence).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Size {
    /// Always this.
    Fixed(u32),
    /// Uniform, both ends included.
    Range(u32, u32),
    /// Sizes with weights.
    Mix(Vec<(u32, u32)>),
}

impl Size {
    /// The simple Internet mix: 64, 594 and 1518 bytes as 7 : 4 : 1.
    #[must_use]
    pub fn imix() -> Self {
        Self::Mix(vec![(64, 7), (594, 4), (1518, 1)])
    }

    /// The smallest size that occurs.
    #[must_use]
    pub fn min(&self) -> u32 {
        match self {
            Self::Fixed(size) | Self::Range(size, _) => *size,
            Self::Mix(mix) => mix.iter().filter(|m| m.1 > 0).map(|m| m.0).min().unwrap_or(0),
        }
    }

    /// The largest size that can occur.
    pub(super) fn max(&self) -> u32 {
        match self {
            Self::Fixed(size) | Self::Range(_, size) => *size,
            Self::Mix(mix) => mix.iter().filter(|m| m.1 > 0).map(|m| m.0).max().unwrap_or(0),
        }
    }

    pub(super) fn validate(&self) -> Result<(), SynthError> {
        let check = |size: u32| {
            if (MIN_FRAME..=MAX_FRAME).contains(&size) { Ok(()) } else { Err(SynthError::Size(size)) }
        };
        match self {
            Self::Fixed(size) => check(*size),
            Self::Range(lo, hi) if hi < lo => Err(SynthError::SizeRange(*lo, *hi)),
            Self::Range(lo, hi) => check(*lo).and_then(|()| check(*hi)),
            Self::Mix(mix) if mix.len() > MAX_MIX || mix.iter().all(|m| m.1 == 0) => Err(SynthError::SizeMix),
            Self::Mix(mix) => mix.iter().try_for_each(|m| check(m.0)),
        }
    }
}

fn unreadable(setting: &'static str, text: &str, expected: &'static str) -> SynthError {
    SynthError::Text { setting, text: text.to_owned(), expected }
}

impl FromStr for Size {
    type Err = SynthError;

    fn from_str(text: &str) -> Result<Self, SynthError> {
        let wrong = || unreadable("size", text, "write 64, 64..1500, imix, or size:weight,size:weight");
        let number = |s: &str| s.trim().parse::<u32>().map_err(|_| wrong());
        if text.trim().eq_ignore_ascii_case("imix") {
            return Ok(Self::imix());
        }
        if let Some((lo, hi)) = text.split_once("..") {
            return Ok(Self::Range(number(lo)?, number(hi.trim_start_matches('='))?));
        }
        if !text.contains(':') {
            return Ok(Self::Fixed(number(text)?));
        }
        let pair = |part: &str| {
            let (size, weight) = part.split_once(':').ok_or_else(wrong)?;
            Ok((number(size)?, number(weight)?))
        };
        text.split(',').map(pair).collect::<Result<_, _>>().map(Self::Mix)
    }
}

/// Mean rate of a plain stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Rate {
    /// Packets a second, 1 to 10^9.
    Packets(u64),
    /// Bits of captured frames a second, 1 to 10^13.
    Bits(u64),
}

impl Rate {
    pub(super) fn validate(self) -> Result<(), SynthError> {
        match self {
            Self::Packets(n) if !(1..=1_000_000_000).contains(&n) => Err(SynthError::Rate(n)),
            Self::Bits(n) if !(1..=10_000_000_000_000).contains(&n) => Err(SynthError::Rate(n)),
            _ => Ok(()),
        }
    }
}

impl FromStr for Rate {
    type Err = SynthError;

    fn from_str(text: &str) -> Result<Self, SynthError> {
        let wrong = || {
            unreadable(
                "rate",
                text,
                "write whole packets or bits a second, as a number and pps, kpps, mpps, gpps, bps, kbps, mbps, gbps or tbps",
            )
        };
        let lower = text.trim().to_ascii_lowercase();
        let split = lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len());
        let (number, unit) = lower.split_at(split);
        let (factor, bits) = match unit {
            "pps" | "" => (1, false),
            "kpps" => (1_000, false),
            "mpps" => (1_000_000, false),
            "gpps" => (1_000_000_000, false),
            "bps" => (1, true),
            "kbps" => (1_000, true),
            "mbps" => (1_000_000, true),
            "gbps" => (1_000_000_000, true),
            "tbps" => (1_000_000_000_000, true),
            _ => return Err(wrong()),
        };
        let value = decimal(number.trim(), factor).ok_or_else(wrong)?;
        Ok(if bits { Self::Bits(value) } else { Self::Packets(value) })
    }
}

/// `number` × `factor`, exactly; digits behind what the factor (a power of ten) resolves must be 0.
fn decimal(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || !whole.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit()) {
        return None;
    }
    let mut value = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let mut unit = factor;
    for digit in fraction.chars().filter_map(|c| c.to_digit(10)) {
        unit /= 10;
        if unit == 0 && digit != 0 {
            return None;
        }
        value = value.checked_add(u64::from(digit) * unit)?;
    }
    Some(value)
}

impl FromStr for Protocol {
    type Err = SynthError;

    fn from_str(text: &str) -> Result<Self, SynthError> {
        let wrong = || unreadable("protocol", text, "write udp, tcp, or mix:SHARE with the share of TCP");
        match text.trim() {
            "udp" => Ok(Self::Udp),
            "tcp" => Ok(Self::Tcp),
            other => {
                let share = other.strip_prefix("mix:").ok_or_else(wrong)?;
                share.parse().map(Self::Mix).map_err(|_| wrong())
            }
        }
    }
}

macro_rules! words {
    ($type:ty, $setting:literal, $expected:literal, $($word:literal => $value:expr),+) => {
        impl FromStr for $type {
            type Err = SynthError;

            fn from_str(text: &str) -> Result<Self, SynthError> {
                match text.trim() {
                    $($word => Ok($value),)+
                    _ => Err(unreadable($setting, text, $expected)),
                }
            }
        }
    };
}

words!(Profile, "profile", "write plain or campus", "plain" => Self::Plain, "campus" => Self::Campus);
words!(Order, "order", "write random or round-robin", "random" => Self::Random, "round-robin" => Self::RoundRobin);
words!(TrainModel, "train", "write fixed or geometric", "fixed" => Self::Fixed, "geometric" => Self::Geometric);
words!(Arrivals, "arrivals", "write constant or poisson", "constant" => Self::Constant, "poisson" => Self::Poisson);

impl TryFrom<String> for Size {
    type Error = SynthError;

    fn try_from(text: String) -> Result<Self, SynthError> {
        text.parse()
    }
}

impl TryFrom<String> for Rate {
    type Error = SynthError;

    fn try_from(text: String) -> Result<Self, SynthError> {
        text.parse()
    }
}
