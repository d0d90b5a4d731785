//! Tasks of measurement, and the epochs over which they are carried out.

use std::fmt;
use std::str::FromStr;

use slipstream_sketch::{Kind, Question};

use slipstream_core::units::{Count, Duration};

/// A task of measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Sizes of flows.
    FlowSize,
    /// The heaviest flows.
    #[default]
    HeavyHitters,
    /// The flows that changed most since the epoch before.
    HeavyChanges,
    /// Sources with the most distinct destinations.
    Superspreaders,
    /// Destinations with the most distinct sources.
    DdosVictims,
    /// The number of flows of each size.
    SizeDistribution,
    /// The number of flows.
    Cardinality,
    /// Entropy of the weight over flows, in bits.
    Entropy,
    /// Quantiles of what packets weigh.
    Quantiles,
}

/// A word that names no task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no task {0:?}")]
pub struct UnknownTask(String);

impl Task {
    /// All tasks.
    pub const ALL: [Self; 9] = [
        Self::FlowSize,
        Self::HeavyHitters,
        Self::HeavyChanges,
        Self::Superspreaders,
        Self::DdosVictims,
        Self::SizeDistribution,
        Self::Cardinality,
        Self::Entropy,
        Self::Quantiles,
    ];

    /// Their names, in the same order.
    pub const NAMES: [&'static str; 9] = {
        let mut names = [""; 9];
        let mut i = 0;
        while i < Self::ALL.len() {
            #[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
            {
                names[i] = Self::ALL[i].name();
            }
            i += 1;
        }
        names
    };

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowSize => "flow-size",
            Self::HeavyHitters => "heavy-hitters",
            Self::HeavyChanges => "heavy-changes",
            Self::Superspreaders => "superspreaders",
            Self::DdosVictims => "ddos-victims",
            Self::SizeDistribution => "size-distribution",
            Self::Cardinality => "cardinality",
            Self::Entropy => "entropy",
            Self::Quantiles => "quantiles",
        }
    }

    /// Its question, for people.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::FlowSize => "Sizes of flows: of those that are named, or of the largest",
            Self::HeavyHitters => "The heaviest flows",
            Self::HeavyChanges => "The flows that changed most since the epoch before",
            Self::Superspreaders => "Sources with the most distinct destinations",
            Self::DdosVictims => "Destinations with the most distinct sources",
            Self::SizeDistribution => "How many flows have which size",
            Self::Cardinality => "How many flows there are",
            Self::Entropy => "Entropy of the weight over flows, in bits",
            Self::Quantiles => {
                "Quantiles of packets' sizes (--weight bytes) or of the gaps between them (--weight gap)"
            }
        }
    }

    /// The sketch that is made for it.
    #[must_use]
    pub const fn sketch(self) -> Kind {
        match self {
            Self::FlowSize => Kind::CountMin,
            Self::HeavyHitters => Kind::SpaceSaving,
            Self::HeavyChanges => Kind::RevSketch,
            Self::Superspreaders | Self::DdosVictims => Kind::TwoLevel,
            Self::SizeDistribution => Kind::Mrac,
            Self::Cardinality => Kind::LinearCounting,
            Self::Entropy => Kind::UnivMon,
            Self::Quantiles => Kind::DdSketch,
        }
    }

    /// Its question to a sketch.
    #[must_use]
    pub const fn question(self) -> Question {
        match self {
            Self::FlowSize | Self::HeavyHitters => Question::Sizes,
            Self::HeavyChanges => Question::Changes,
            Self::Superspreaders | Self::DdosVictims => Question::Spreads,
            Self::SizeDistribution => Question::Distribution,
            Self::Cardinality => Question::Cardinality,
            Self::Entropy => Question::Entropy,
            Self::Quantiles => Question::Quantiles,
        }
    }

    /// Says that it counts the distinct counterparts of one side.
    #[must_use]
    pub const fn counts_pairs(self) -> bool {
        matches!(self, Self::Superspreaders | Self::DdosVictims)
    }

    /// Says that its answer is a list of keys, of which there may be too many.
    #[must_use]
    pub const fn lists_keys(self) -> bool {
        self.lists_flows() || self.counts_pairs() || matches!(self, Self::HeavyChanges)
    }

    /// Says that its answer is a list of flows, whose keys a sketch must have kept.
    #[must_use]
    pub const fn lists_flows(self) -> bool {
        matches!(self, Self::FlowSize | Self::HeavyHitters)
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Task {
    type Err = UnknownTask;

    fn from_str(text: &str) -> Result<Self, UnknownTask> {
        Self::ALL.into_iter().find(|t| t.name() == text).ok_or_else(|| UnknownTask(text.to_owned()))
    }
}

/// The length of an epoch: `2000000p` or `2Mp` (packets), `1s`, `100ms` (time). Never nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochLength {
    /// So many packets.
    Packets(u64),
    /// So many ns.
    Time(u64),
}

impl FromStr for EpochLength {
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

impl fmt::Display for EpochLength {
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
        assert_eq!("2000000p".parse(), Ok(EpochLength::Packets(2_000_000)));
        assert_eq!("2Mp".parse(), Ok(EpochLength::Packets(2_000_000)));
        assert_eq!("1s".parse(), Ok(EpochLength::Time(1_000_000_000)));
        for text in ["0p", "0s", "p", "s", "7", "-1p", "1e99p", "", "1 parsec"] {
            assert!(text.parse::<EpochLength>().is_err(), "{text}");
        }
    }

    #[test]
    fn tasks_have_names() {
        for (task, name) in Task::ALL.into_iter().zip(Task::NAMES) {
            assert_eq!((task.name(), name.parse()), (name, Ok(task)));
        }
        assert!("heavy".parse::<Task>().is_err());
    }
}
