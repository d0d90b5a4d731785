//! The selection of packets of a trace that count: `--rules`, `--count`, `--time`, the same for every verb
//! that reads traces.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use slipstream::io::capture::CaptureReader;
use slipstream::rules::Rule;
use slipstream_wire::{Encapsulation, LinkType, classify_with};

use crate::cli::Tunnel;
use crate::units::{Count, Duration};

/// The packets that count; without any of it, all do.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Selection {
    /// Only packets that match a rule, in the words of tcpdump's filters: 'tcp dst port 443'; @FILE reads it
    /// from a file. What is no IP packet matches none.
    #[arg(long, value_name = "RULES")]
    pub(crate) rules: Option<Rules>,
    /// The first so many packets, of those that the other options let through.
    #[arg(short = 'c', long, value_name = "N")]
    pub(crate) count: Option<Count>,
    /// Only packets of a stretch of time, its begin included, its end not; either may be missing. A time is
    /// counted from the first packet (10s..20s), or is a date in UTC (2024-05-01T12:00:00Z..), or seconds
    /// since 1970 (@1714564800.5..).
    #[arg(long, value_name = "FROM..TO")]
    pub(crate) time: Option<TimeRange>,
}

/// A rule as an option takes it, and the file that it is from, if it is from one.
#[derive(Clone, Debug)]
pub(crate) struct Rules(pub(crate) Rule, Option<PathBuf>);

impl FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Rule::parse_or_read(text, Path::new(""))
            .map(|rule| Self(rule, text.strip_prefix('@').map(PathBuf::from)))
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// So many ns after the first packet.
    After(u64),
    /// So many ns since 1970.
    At(u64),
}

impl Moment {
    fn since_1970(self, first_ns: u64) -> u64 {
        match self {
            Self::After(ns) => first_ns.saturating_add(ns),
            Self::At(ns) => ns,
        }
    }
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeRange {
    from: Option<Moment>,
    to: Option<Moment>,
}

impl FromStr for TimeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((from, to)) = text.split_once("..") else {
            return Err(format!("{text:?} is no stretch of time; write FROM..TO, as in 10s..20s"));
        };
        let moment = |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some) };
        let range = Self { from: moment(from.trim())?, to: moment(to.trim())? };
        match range {
            Self { from: None, to: None } => Err(format!("{text:?} has neither a begin nor an end")),
            Self { from: Some(Moment::At(a)), to: Some(Moment::At(b)) }
            | Self { from: Some(Moment::After(a)), to: Some(Moment::After(b)) }
                if a >= b =>
            {
                let how = if a == b { "has no length: it ends when" } else { "ends before" };
                Err(format!("{text:?} {how} it begins"))
            }
            range => Ok(range),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(seconds) = text.strip_prefix('@') {
            return seconds_since_1970(seconds)
                .map(Self::At)
                .ok_or_else(|| format!("{text:?} is no number of seconds since 1970, as in @1714564800.5"));
        }
        match text.parse::<Duration>() {
            // A dash is in every date, and in a duration such as 1e-3s.
            Err(_) if text.contains('-') => date(text).map(Self::At).ok_or_else(|| {
                format!("{text:?} is no date in UTC, as in 2024-05-01 or 2024-05-01T12:00:00.5Z")
            }),
            duration => duration.map(|d| Self::After(d.0)),
        }
    }
}

/// Decimal seconds as ns; at most nine digits after the point.
fn seconds_since_1970(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// A date in UTC of 1970 or later, with or without a time of day (RFC 3339), as ns since 1970.
fn date(text: &str) -> Option<u64> {
    let text = text.strip_suffix(['Z', 'z']).unwrap_or(text);
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00:00"));
    let number = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse::<u64>().ok()).flatten();
    let mut parts = date.split('-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month_index = usize::try_from(month.checked_sub(1)?).ok()?;
    let in_month = *lengths.get(month_index)?;
    if parts.next().is_some() || !(1970..10_000).contains(&year) || !(1..=in_month).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(|y| if leap(y) { 366 } else { 365 }).sum();
    let days = years + lengths.iter().take(month_index).sum::<u64>() + day - 1;
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let second = seconds_since_1970(parts.next().unwrap_or("0"))?;
    if hour > 23 || minute > 59 || second >= 60_000_000_000 {
        return None;
    }
    (days * 86_400 + hour * 3600 + minute * 60).checked_mul(1_000_000_000)?.checked_add(second)
}

/// The header of a tunnel that an option names.
pub(crate) fn encapsulation(tunnel: Tunnel) -> Encapsulation {
    match tunnel {
        Tunnel::Outer => Encapsulation::Outer,
        Tunnel::Inner => Encapsulation::Inner,
    }
}

/// The time of the first packet of a file, for threads that each read a part of it.
pub(crate) fn first_time(path: &Path) -> anyhow::Result<u64> {
    Ok(CaptureReader::open(path)?.next_record()?.map_or(0, |record| record.time.0))
}

impl Selection {
    /// Returns true if every packet counts.
    pub(crate) fn is_everything(&self) -> bool {
        self.rules.is_none() && self.count.is_none() && self.time.is_none()
    }

    /// The file that the rules are from, if they are from one.
    pub(crate) fn rules_file(&self) -> Option<&Path> {
        self.rules.as_ref()?.1.as_deref()
    }

    /// By rule and time, in a trace whose first packet came at `first_ns`.
    pub(crate) fn filter(&self, first_ns: u64, encapsulation: Encapsulation) -> Filter<'_> {
        let bound = |m: Option<Moment>, otherwise| m.map_or(otherwise, |m| m.since_1970(first_ns));
        let (from, to) = self.time.map_or((None, None), |t| (t.from, t.to));
        Filter {
            rule: self.rules.as_ref().map(|r| &r.0),
            from: bound(from, 0),
            to: bound(to, u64::MAX),
            encapsulation,
        }
    }
}

/// Selects packets by rule and time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter<'a> {
    rule: Option<&'a Rule>,
    from: u64,
    to: u64,
    encapsulation: Encapsulation,
}

impl Filter<'_> {
    /// Returns true if a packet counts.
    #[inline]
    pub(crate) fn wants(&self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) -> bool {
        if time_ns < self.from || time_ns >= self.to {
            return false;
        }
        let Some(rule) = self.rule else { return true };
        let headers = classify_with(link, data, self.encapsulation);
        headers.is_ok_and(|h| rule.matches(&h, original_len))
    }
}

/// Selects the packets of a stream, in order.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    selection: Selection,
    encapsulation: Encapsulation,
    /// The time of the first packet, from which times count.
    first_ns: Option<u64>,
    left: u64,
    left_out: u64,
}

impl Selector {
    /// For a stream whose first packet is still to come.
    pub(crate) fn new(selection: &Selection, encapsulation: Encapsulation) -> Self {
        let left = selection.count.map_or(u64::MAX, |c| c.0);
        Self { selection: selection.clone(), encapsulation, first_ns: None, left, left_out: 0 }
    }

    /// Returns true if the next packet counts.
    #[inline]
    pub(crate) fn wants(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) -> bool {
        if self.left == 0 {
            return false;
        }
        let first_ns = *self.first_ns.get_or_insert(time_ns);
        let filter = self.selection.filter(first_ns, self.encapsulation);
        let wanted = filter.wants(time_ns, link, original_len, data);
        self.left -= u64::from(wanted);
        self.left_out += u64::from(!wanted);
        wanted
    }

    /// Returns true if no further packet can count.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// The number of packets seen that don't count.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_of_time() {
        let range = |text: &str| text.parse::<TimeRange>();
        let s = 1_000_000_000;
        let both = |from, to| Ok(TimeRange { from: Some(from), to: Some(to) });
        assert_eq!(range("10s..1min"), both(Moment::After(10 * s), Moment::After(60 * s)));
        assert_eq!(range("0..2s"), both(Moment::After(0), Moment::After(2 * s)));
        assert_eq!(range("..5ms"), Ok(TimeRange { from: None, to: Some(Moment::After(5_000_000)) }));
        assert_eq!(range("1e-3s..2e-3s"), both(Moment::After(1_000_000), Moment::After(2_000_000)));
        assert_eq!(range("@1.25.."), Ok(TimeRange { from: Some(Moment::At(1_250_000_000)), to: None }));
        assert_eq!(range("@5..1s"), both(Moment::At(5 * s), Moment::After(s)));
        // GNU date's seconds for these.
        for (text, seconds) in [
            ("1970-01-01", 0u64),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2024-05-01 12:00:00", 1_714_564_800),
            ("2100-03-01t00:00:01z", 4_107_542_401),
            ("2024-05-01T12:30", 1_714_566_600),
        ] {
            let from = Moment::At(seconds * s);
            assert_eq!(range(&format!("{text}..")), Ok(TimeRange { from: Some(from), to: None }), "{text}");
        }
        let half = Moment::At(1_714_564_800_500_000_000);
        assert_eq!(range("2024-05-01T12:00:00.5Z.."), Ok(TimeRange { from: Some(half), to: None }));
        for wrong in [
            "10s",
            "..",
            "",
            "2s..1s",
            "1s..1s",
            "x..",
            "@..",
            "@1e3..",
            "@-1..",
            "2023-02-29..",
            "2024-13-01..",
            "2024-00-01..",
            "2024-01-00..",
            "2024-01-01T24:00:00..",
            "2024-01-01T00:60:00..",
            "1969-12-31..",
            "2024-01-01T00:00:60..",
            "2024-1-1-1..",
            "99999-01-01..",
            "@18446744074..",
        ] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_selector_counts_what_it_lets_through() {
        let selection = Selection {
            rules: Some("udp".parse().unwrap()),
            count: Some(Count(2)),
            time: Some("10ns..".parse().unwrap()),
        };
        let packet = |protocol: u8| {
            let mut p = [
                0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0,
            ];
            p[9] = protocol;
            p
        };
        let mut selector = Selector::new(&selection, Encapsulation::Outer);
        let mut ask = |time, protocol| {
            let wanted = selector.wants(time, LinkType::RawIp, 28, &packet(protocol));
            (wanted, selector.is_done())
        };
        assert_eq!(ask(100, 17), (false, false), "before 10 ns after the first");
        assert_eq!(ask(110, 6), (false, false));
        assert_eq!(ask(111, 17), (true, false));
        assert_eq!(ask(109, 17), (false, false));
        assert_eq!(ask(112, 17), (true, true));
        assert_eq!(ask(113, 17), (false, true));
        assert_eq!(selector.left_out(), 3);
        assert!(!selection.is_everything() && Selection::default().is_everything());
        assert!("port of call".parse::<Rules>().is_err() && "@/no/such/file".parse::<Rules>().is_err());
    }
}
