//! Settings of the reframe stage, checked once.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::adaptive::{Budget, Knowledge};
use slipstream_core::batch::BATCH;
use slipstream_core::heavy::{MakeHeavyFlows, Top};
use slipstream_core::rules::Rule;
use slipstream_core::units::Duration;
use slipstream_wire::gro::Limits;

/// Order among trains that are released together (paper §4, "Priority").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Oldest flow first: by the arrival of the flow's first packet ever seen.
    #[default]
    Oldest,
    /// Longest wait in the buffer first: by the arrival of the train's first packet.
    Waiting,
    /// Shortest flow first: by the packets of the flow seen so far.
    Shortest,
}

/// The packet of a flow from which on it is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admit {
    /// From the first.
    #[default]
    Always,
    /// A flow's first packet passes at once; holding begins with its second.
    Second,
    /// From the first, but a train waits for its next packet only as long as that is worth it within
    /// [`ReframeConfig::budget`].
    Adaptive,
}

/// The headers that make a packet's flow key.
pub use slipstream_wire::Encapsulation;

/// Settings of a class of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSettings {
    /// Longest wait of any packet, in ns, up to [`ReframeConfig::MAX_HOLD_NS`]; 0 = pass-through.
    pub hold_ns: u64,
    /// `Some`: the hold sets itself between this, in ns, and `hold_ns`; from 0 on it may also hold nothing.
    pub hold_min_ns: Option<u64>,
    /// Packets in a train at which it leaves at once, 1 to [`BATCH`].
    pub burst: u16,
    /// Weight of a train of this class among those released together, at least 1: under [`Policy::Oldest`]
    /// and [`Policy::Waiting`] its age, under [`Policy::Shortest`] the inverse of its flow's size, is
    /// multiplied by this.
    pub weight: u32,
    /// Pass at once, after flushing the train of its own flow.
    pub bypass: bool,
}

impl ClassSettings {
    /// Returns true if a packet of it may wait for others.
    pub(crate) fn holds(&self) -> bool {
        !self.bypass && self.hold_ns > 0 && self.burst > 1
    }
}

/// Packets that are treated in their own way. The first class whose rule matches counts.
#[derive(Clone, Debug)]
pub struct Class {
    /// Name, for statistics.
    pub name: String,
    /// The rule that its packets match.
    pub rule: Rule,
    /// Of these, only those of the flows that have most of them of late; see [`ReframeConfig::heavy_flows`].
    /// Packets of classes before this one don't count.
    pub top: Option<Top>,
    /// Its settings.
    pub settings: ClassSettings,
}

/// Settings of the reframe stage.
#[derive(Clone, Debug)]
pub struct ReframeConfig {
    /// The settings of packets that belong to no class.
    pub default: ClassSettings,
    /// Packets held at most, 1 to [`ReframeConfig::MAX_CAPACITY`]; then the oldest train leaves.
    pub capacity: u32,
    /// Captured bytes held at most, up to [`ReframeConfig::MAX_CAPACITY_BYTES`]; then the oldest train
    /// leaves.
    pub capacity_bytes: u64,
    /// Flows remembered at most: their age and size, for [`Policy::Oldest`], [`Policy::Shortest`] and
    /// [`Admit::Second`]. Never fewer than twice the capacity, nor fewer than 1024.
    pub flows: u32,
    /// Order among trains released together.
    pub policy: Policy,
    /// The packet from which on a flow is held.
    pub admit: Admit,
    /// The budget of each class's waits under [`Admit::Adaptive`]: a mean delay of a quarter of its hold
    /// where none is set. Where a hold sets itself, the budget that it is chosen by: a price of its longest
    /// hold where none is set. Must not be set otherwise.
    pub budget: Option<Budget>,
    /// The knowledge that waits go by under [`Admit::Adaptive`].
    pub knows: Knowledge,
    /// Packets that pass at once, after flushing the train of their own flow. By default
    /// [`ReframeConfig::BYPASS`], as on the command line and in a pipeline.
    pub bypass: Rule,
    /// Packets that are treated in their own way.
    pub classes: Vec<Class>,
    /// Packets of a class with [`Class::top`] after which its flows are ranked anew, by the packets of this
    /// window and the one before: [`ReframeConfig::MIN_TOP_WINDOW`] to [`Top::MAX_WINDOW`].
    pub top_window: u32,
    /// Makes what ranks flows for such classes, such as `slipstream_measure::Elephants::boxed`. Pipelines and
    /// replays of `slipstream` have it by themselves.
    pub heavy_flows: Option<MakeHeavyFlows>,
    /// Coalesce pure ACKs.
    pub compress_ack: bool,
    /// Make super-frames of TCP segments and UDP datagrams:
    /// [`Info::joins`](slipstream_core::frame::Info::joins) tells which packet of a train belongs to that of
    /// the packet before it.
    pub compress_gro: bool,
    /// Most of what a super-frame may be.
    pub gro: Limits,
    /// Verify checksums where packets are marked, not only where a super-frame is sent.
    pub gro_verify: bool,
    /// Restore TCP sequence order inside a train.
    pub tcp_order: bool,
    /// The header of a tunnel that makes the flow.
    pub encapsulation: Encapsulation,
    /// Seed of the flow table's hash. Results don't depend on it; live, it should be secret.
    pub seed: u64,
}

impl Default for ReframeConfig {
    fn default() -> Self {
        Self {
            default: ClassSettings {
                hold_ns: 64_000,
                hold_min_ns: None,
                burst: 32,
                weight: 1,
                bypass: false,
            },
            capacity: 8192,
            capacity_bytes: 64 << 20,
            flows: 1 << 20,
            policy: Policy::Oldest,
            admit: Admit::Always,
            budget: None,
            knows: Knowledge::default(),
            // The rule is a good one; a test says so.
            bypass: Rule::parse(Self::BYPASS).unwrap_or_else(|_| Rule::never()),
            classes: Vec::new(),
            top_window: 4096,
            heavy_flows: None,
            compress_ack: false,
            compress_gro: false,
            gro: Limits::default(),
            gro_verify: false,
            tcp_order: false,
            encapsulation: Encapsulation::Outer,
            seed: 0x5115_57e4_a11e_1234,
        }
    }
}

/// A setting that can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// `burst` out of range.
    Burst {
        /// Class, or `reframe`.
        place: String,
        /// The burst that was asked for.
        burst: u16,
    },
    /// `hold` too long.
    Hold {
        /// Class, or `reframe`.
        place: String,
        /// The hold time that was asked for.
        hold_ns: u64,
    },
    /// The bounds of a hold that sets itself are in the wrong order.
    Bounds {
        /// Class, or `reframe`.
        place: String,
        /// The lower one, in ns.
        min_ns: u64,
        /// The upper one, in ns.
        max_ns: u64,
    },
    /// A hold that sets itself, with waits that are learned.
    AutoAdaptive {
        /// Class, or `reframe`.
        place: String,
    },
    /// `weight` of 0.
    Weight {
        /// Class, or `reframe`.
        place: String,
    },
    /// `budget` that can't be kept.
    Budget {
        /// Class, or `reframe`.
        place: String,
        /// The budget that was asked for.
        budget: Budget,
        /// The fault, and its remedy.
        fault: String,
    },
    /// `budget` without `admit = adaptive` or a hold that sets itself.
    NotAdaptive(Budget),
    /// `capacity` out of range.
    Capacity(u32),
    /// `capacity_bytes` out of range.
    CapacityBytes(u64),
    /// `flows` out of range.
    Flows(u32),
    /// `gro_bytes` out of range.
    GroBytes(u32),
    /// `gro_segments` out of range.
    GroSegments(u16),
    /// More classes than there are numbers for them.
    Classes(usize),
    /// Two classes of one name.
    ClassName(String),
    /// A class named as the one that there always is, `default`.
    ClassDefault,
    /// A class of heavy flows whose number is out of range.
    Top {
        /// The class.
        class: String,
        /// The flows that were asked for.
        top: Top,
    },
    /// `top_window` out of range.
    TopWindow(u32),
    /// A class of heavy flows, and nobody to count them.
    NobodyCounts {
        /// The class.
        class: String,
    },
    /// Memory can't be had: what is asked for, and by which setting.
    Memory(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_HOLD: Duration = Duration(ReframeConfig::MAX_HOLD_NS);
        const MAX_CAPACITY: u32 = ReframeConfig::MAX_CAPACITY;
        const MAX_BYTES: u64 = ReframeConfig::MAX_CAPACITY_BYTES;
        const MAX_FLOWS: u32 = ReframeConfig::MAX_FLOWS;
        const MIN_GRO: u32 = ReframeConfig::MIN_GRO_BYTES;
        const MAX_GRO: u32 = Limits::MOST_BYTES;
        match self {
            Self::Burst { place, burst } => {
                write!(f, "{place}: burst = {burst} packets is out of range; 1 to {BATCH} are possible")
            }
            Self::Hold { place, hold_ns } => {
                let hold = Duration(*hold_ns).exact();
                write!(f, "{place}: hold = {hold} is too long; up to {MAX_HOLD} is possible")
            }
            Self::Bounds { place, min_ns, max_ns } => {
                let (min, max) = (Duration(*min_ns).exact(), Duration(*max_ns).exact());
                write!(f, "{place}: hold_min = {min} is above hold_max = {max}; exchange them")
            }
            Self::AutoAdaptive { place } => write!(
                f,
                "{place}: hold = auto doesn't go with admit = adaptive, which sets each train's wait itself; set a \
                 hold, its bound, or another admit"
            ),
            Self::Weight { place } => write!(f, "{place}: weight = 0; it must be at least 1"),
            Self::Budget { place, budget, fault } => write!(f, "{place}: budget = {budget} {fault}"),
            Self::NotAdaptive(budget) => write!(
                f,
                "reframe: budget = {budget} goes with admit = adaptive or hold = auto; set one of them too, or leave \
                 the budget out"
            ),
            Self::Capacity(n) => {
                write!(f, "reframe: capacity = {n} packets is out of range; 1 to {MAX_CAPACITY} are possible")
            }
            Self::CapacityBytes(n) => {
                write!(f, "reframe: capacity of {n} bytes is out of range; 1 to {MAX_BYTES} are possible")
            }
            Self::Flows(n) => {
                write!(f, "reframe: flows = {n} is out of range; 1 to {MAX_FLOWS} are possible")
            }
            Self::GroBytes(n) => {
                write!(f, "reframe: gro_bytes = {n} is out of range; {MIN_GRO} to {MAX_GRO} are possible")
            }
            Self::GroSegments(n) => {
                write!(f, "reframe: gro_segments = {n} is out of range; 2 to {BATCH} are possible")
            }
            Self::Classes(n) => write!(f, "reframe: {n} classes; at most 254 are possible"),
            Self::ClassName(name) => {
                write!(f, "reframe: two classes are named {name:?}; give each its own name")
            }
            Self::ClassDefault => {
                let name = ReframeConfig::DEFAULT_CLASS;
                write!(
                    f,
                    "reframe: {name} is the class of all packets that no other takes; give this one another name"
                )
            }
            Self::Top { class, top } => write!(
                f,
                "class {class:?}: {top} is out of range; 1 flow and more, and more than 0 % up to 100 % are possible"
            ),
            Self::TopWindow(n) => write!(
                f,
                "reframe: top_window = {n} packets is out of range; {} to {} are possible",
                ReframeConfig::MIN_TOP_WINDOW,
                Top::MAX_WINDOW
            ),
            Self::Memory(fault) => write!(f, "reframe: {fault}"),
            Self::NobodyCounts { class } => write!(
                f,
                "class {class:?} is about heavy flows, and nothing counts them here; set `heavy_flows`, as the \
                 pipelines of slipstream do"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

impl ReframeConfig {
    /// The rule of the packets that pass at once by default: connections are set up without delay.
    pub const BYPASS: &str = "tcp syn";
    /// The name of the class of all packets that no other takes.
    pub const DEFAULT_CLASS: &str = "default";
    /// Longest hold: 4 s.
    pub const MAX_HOLD_NS: u64 = 4_000_000_000;
    /// Longest hold of one that sets itself, where no other is set: 256 µs.
    pub const USUAL_MAX_NS: u64 = 256_000;
    /// Most packets held.
    pub const MAX_CAPACITY: u32 = 1 << 24;
    /// Most bytes held: 3 GiB.
    pub const MAX_CAPACITY_BYTES: u64 = 3 << 30;
    /// Most flows remembered.
    pub const MAX_FLOWS: u32 = 1 << 28;
    /// The shortest window in which flows are ranked, in packets.
    pub const MIN_TOP_WINDOW: u32 = 16;
    /// Fewest bytes that a super-frame may be limited to: those of the smallest MTU of IPv6.
    pub const MIN_GRO_BYTES: u32 = 1280;

    /// The names of all classes, the default class's first.
    pub fn class_names(&self) -> impl Iterator<Item = &str> {
        core::iter::once(Self::DEFAULT_CLASS).chain(self.classes.iter().map(|class| class.name.as_str()))
    }

    /// Checks every setting against its range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check(&self.default, "reframe")?;
        if let Some(budget) = self.budget {
            self.check_budget(budget)?;
        }
        self.check_auto()?;
        for (i, class) in self.classes.iter().enumerate() {
            check(&class.settings, &format!("class {:?}", class.name))?;
            if class.name == Self::DEFAULT_CLASS {
                return Err(ConfigError::ClassDefault);
            }
            if self.classes.iter().take(i).any(|c| c.name == class.name) {
                return Err(ConfigError::ClassName(class.name.clone()));
            }
            if let Some(top @ (Top::Flows(0) | Top::Share(0 | 1_000_001..))) = class.top {
                return Err(ConfigError::Top { class: class.name.clone(), top });
            }
        }
        if !(Self::MIN_TOP_WINDOW..=Top::MAX_WINDOW).contains(&self.top_window) {
            return Err(ConfigError::TopWindow(self.top_window));
        }
        if self.classes.len() > 254 {
            return Err(ConfigError::Classes(self.classes.len()));
        }
        if self.capacity == 0 || self.capacity > Self::MAX_CAPACITY {
            return Err(ConfigError::Capacity(self.capacity));
        }
        if self.capacity_bytes == 0 || self.capacity_bytes > Self::MAX_CAPACITY_BYTES {
            return Err(ConfigError::CapacityBytes(self.capacity_bytes));
        }
        if self.flows == 0 || self.flows > Self::MAX_FLOWS {
            return Err(ConfigError::Flows(self.flows));
        }
        if !(Self::MIN_GRO_BYTES..=Limits::MOST_BYTES).contains(&self.gro.bytes) {
            return Err(ConfigError::GroBytes(self.gro.bytes));
        }
        if !(2..=BATCH).contains(&usize::from(self.gro.segments)) {
            return Err(ConfigError::GroSegments(self.gro.segments));
        }
        Ok(())
    }

    /// Waits are learned. At the highest price nothing that is learned could make one shorter than the hold:
    /// it is a fixed one then.
    pub(crate) fn learns(&self) -> bool {
        self.admit == Admit::Adaptive && self.budget != Some(Budget::Price(Budget::MAX_PRICE_NS))
    }

    fn check_budget(&self, budget: Budget) -> Result<(), ConfigError> {
        let adaptive = self.admit == Admit::Adaptive;
        if !adaptive && self.places().all(|(_, t)| t.hold_min_ns.is_none()) {
            return Err(ConfigError::NotAdaptive(budget));
        }
        let places = || self.places().filter(|(_, t)| adaptive || t.hold_min_ns.is_some());
        // A class that is not held has nothing to be steered, but where none is, a budget is kept by nobody.
        let idle = places().all(|(_, t)| !t.holds());
        for (place, t) in places() {
            let steered = t.holds() || idle;
            let name = if t.hold_min_ns.is_some() { "hold_max" } else { "hold" };
            if steered && let Some(fault) = budget.contradiction((name, t.hold_ns), t.burst) {
                return Err(ConfigError::Budget { place, budget, fault });
            }
        }
        Ok(())
    }

    /// The settings of the default class, then of the others, each with the words for it in errors.
    fn places(&self) -> impl Iterator<Item = (String, &ClassSettings)> {
        let classes = self.classes.iter().map(|c| (format!("class {:?}", c.name), &c.settings));
        core::iter::once(("reframe".to_owned(), &self.default)).chain(classes)
    }

    fn check_auto(&self) -> Result<(), ConfigError> {
        for (place, t) in self.places() {
            let Some(min_ns) = t.hold_min_ns else { continue };
            if min_ns > t.hold_ns {
                return Err(ConfigError::Bounds { place, min_ns, max_ns: t.hold_ns });
            }
            if self.admit == Admit::Adaptive {
                return Err(ConfigError::AutoAdaptive { place });
            }
        }
        Ok(())
    }

    /// Entries of the flow table: what was asked for, but never fewer than the stage can hold.
    pub(crate) fn table_entries(&self) -> u32 {
        self.flows.max(self.capacity.saturating_mul(2)).max(1024)
    }
}

fn check(t: &ClassSettings, place: &str) -> Result<(), ConfigError> {
    let place = || place.to_owned();
    if t.burst == 0 || usize::from(t.burst) > BATCH {
        return Err(ConfigError::Burst { place: place(), burst: t.burst });
    }
    if t.hold_ns > ReframeConfig::MAX_HOLD_NS {
        return Err(ConfigError::Hold { place: place(), hold_ns: t.hold_ns });
    }
    if t.weight == 0 {
        return Err(ConfigError::Weight { place: place() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_bypass_is_that_of_the_command_line() {
        assert_eq!(ReframeConfig::default().bypass.to_string(), Rule::parse("tcp syn").unwrap().to_string());
        assert_ne!(ReframeConfig::default().bypass.to_string(), Rule::never().to_string());
    }

    #[test]
    fn a_hold_that_is_too_long_is_told_as_it_was_written() {
        let mut config = ReframeConfig::default();
        config.default.hold_ns = 5_000_000_000;
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(error, "reframe: hold = 5s is too long; up to 4s is possible");
        config.default.hold_ns = ReframeConfig::MAX_HOLD_NS + 1;
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(error, "reframe: hold = 4000000001ns is too long; up to 4s is possible");
    }

    /// Times that differ by less than what people are usually told are told apart.
    #[test]
    fn times_in_the_wrong_order_are_told_to_the_last_nanosecond() {
        let default = ReframeConfig::default().default;
        let of = |hold_min_ns, admit, budget| {
            let default = ClassSettings { hold_ns: 1_500_000, hold_min_ns, ..default.clone() };
            ReframeConfig { default, admit, budget, ..ReframeConfig::default() }.validate()
        };
        let bounds = of(Some(1_500_001), Admit::Always, None).unwrap_err().to_string();
        assert!(bounds.contains("hold_min = 1500001ns is above hold_max = 1.5ms"), "{bounds}");
        let budget = of(None, Admit::Adaptive, Some(Budget::Delay(1_500_001))).unwrap_err().to_string();
        assert!(budget.contains("delay=1500001ns can't be reached"), "{budget}");
        assert!(budget.contains("no packet waits longer than hold = 1.5ms"), "{budget}");
        let price = of(None, Admit::Adaptive, Some(Budget::Price(Budget::MAX_PRICE_NS + 1)));
        let price = price.unwrap_err().to_string();
        assert!(price.contains("price=1000000000001ns is too high; up to 1000s"), "{price}");
    }

    #[test]
    fn a_budget_where_nothing_is_held_is_an_error() {
        let of = |hold_ns: u64, burst: u16, hold_min_ns: Option<u64>, budget: Budget, classes: &[&str]| {
            let default = ReframeConfig::default().default;
            ReframeConfig {
                default: ClassSettings { hold_ns, burst, hold_min_ns, ..default.clone() },
                admit: if hold_min_ns.is_some() { Admit::Always } else { Admit::Adaptive },
                budget: Some(budget),
                classes: classes
                    .iter()
                    .map(|class| Class::parse(class, &default, "".as_ref()).unwrap())
                    .collect(),
                ..ReframeConfig::default()
            }
        };
        for (hold_ns, burst, hold_min_ns, budget) in [
            (0, 32, None, Budget::Delay(30_000)),
            (0, 32, None, Budget::Train(2000)),
            (1_000_000, 1, None, Budget::Delay(30_000)),
            (1_000_000, 1, None, Budget::Train(2000)),
            (1_000_000, 1, Some(0), Budget::Train(2000)),
        ] {
            let config = of(hold_ns, burst, hold_min_ns, budget, &[]);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(&format!("budget = {budget} can't be reached")), "{error}");
            // It stays an error beside classes that aren't held either.
            assert!(of(hold_ns, burst, hold_min_ns, budget, &["a: udp => bypass"]).validate().is_err());
        }
        // One that is held for a fixed time has no budget.
        let auto = of(64_000, 32, None, Budget::Train(2000), &["a: udp => hold=auto, hold_max=1ms, burst=1"]);
        assert!(ReframeConfig { admit: Admit::Always, ..auto }.validate().is_err());
        // A price is no promise. Where a class is held, its budget is all that counts.
        assert_eq!(of(0, 32, None, Budget::Price(30_000), &[]).validate(), Ok(()));
        assert_eq!(of(0, 32, None, Budget::Delay(30_000), &["a: udp => hold=64us"]).validate(), Ok(()));
        assert_eq!(of(64_000, 32, None, Budget::Delay(30_000), &["a: udp => burst=1"]).validate(), Ok(()));
    }

    #[test]
    fn no_class_has_the_name_of_another() {
        let class = |name: &str| {
            let default = ReframeConfig::default().default;
            Class::parse(&format!("{name}: udp => hold=0"), &default, "".as_ref()).unwrap()
        };
        let of = |names: &[&str]| ReframeConfig {
            classes: names.iter().copied().map(class).collect(),
            ..ReframeConfig::default()
        };
        assert_eq!(of(&["a", "b", "Default"]).validate(), Ok(()));
        assert_eq!(of(&["a", "a"]).validate(), Err(ConfigError::ClassName("a".to_owned())));
        let error = of(&["a", "default"]).validate().unwrap_err();
        assert_eq!(error, ConfigError::ClassDefault);
        assert!(error.to_string().contains("another name"), "{error}");
    }
}
