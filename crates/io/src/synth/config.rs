//! Settings of generated traffic, their ranges and errors.

use serde::Deserialize;

use super::error::SynthError;
use super::text::{Rate, Size};

/// The kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Runs of a known length of a known number of flows: every setting counts.
    #[default]
    Plain,
    /// Traffic like that at the gateway of the campus in the Reframer paper (§3). Of the settings only
    /// `copies`, `packets`, `seed`, `start` and `snap_len` count, and text that names another is refused.
    Campus,
}

/// The choice of the flow that sends the next run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Drawn by `zipf`, never the same flow twice in a row.
    #[default]
    Random,
    /// Flows take turns: ABCABC, or AABBCC with `slf = 2` (paper §2.1).
    RoundRobin,
}

/// The distribution of the lengths of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainModel {
    /// Always `slf`; where that is no whole number, one of the two next to it, so that the mean is `slf`.
    #[default]
    Fixed,
    /// Geometric with mean `slf`: after each packet the run goes on with the same probability.
    Geometric,
}

/// When packets come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Evenly spaced (in time for a rate in packets, in bits for a rate in bits).
    #[default]
    Constant,
    /// A Poisson process.
    Poisson,
}

/// Transport protocol of the flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// UDP, each flow one way.
    #[default]
    Udp,
    /// TCP: flows 2c and 2c+1 are the two directions of connection c.
    Tcp,
    /// This share (0 to 1) of the pairs of flows is TCP, the rest UDP.
    Mix(f64),
}

/// The lifetime of flows: a Pareto distribution of packets per flow, bounded on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetime {
    /// Fewest packets of a flow, at least 1.
    pub min: u64,
    /// Most packets of a flow, at least `min`.
    pub max: u64,
    /// Shape: the share of flows with more than x packets falls as x^-shape. Above 0; 1.1 is typical of the
    /// Internet.
    pub shape: f64,
}

/// Settings of the generator. Every field has a default, so that `SynthConfig { packets: 10,
/// ..Default::default() }` and an empty TOML table are whole configurations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SynthConfig {
    /// Kind of traffic. Default: plain.
    pub profile: Profile,
    /// Campus: this many independent campuses superposed, without a flow in common; 1 to 256. Default: 1.
    pub copies: u32,
    /// Packets to make, at least 1. Default: 100,000.
    pub packets: u64,
    /// Directional flows alive at a time, 1 to 2^24. Default: 10,000.
    pub flows: u32,
    /// After every flow has sent one packet, only the first `active` flows go on, 1 to `flows`. Default: all.
    pub active: Option<u32>,
    /// Spatial locality factor: mean number of packets in a run, 1 to 1,000,000. With one flow the whole
    /// trace is one run all the same. Default: 1.
    pub slf: f64,
    /// The choice of the flow that sends the next run. Default: random.
    pub order: Order,
    /// The distribution of the lengths of runs. Default: fixed.
    pub train: TrainModel,
    /// Exponent of the popularity of flows in random order: the r-th flow sends in proportion to r^-zipf; 0
    /// (uniform) to 10. No flow can have more than half of the runs, since none comes twice in a row.
    /// Default: 0.
    pub zipf: f64,
    /// Frame sizes, in bytes of the captured frame: Ethernet header included, frame check sequence not; 60 to
    /// 65,535. TCP segments that open and close a connection carry no data and are as small as they can be.
    /// Default: 64 to 1500.
    pub size: Size,
    /// Mean rate, in packets or in bits of captured frames a second. Default: 1 Mpps.
    pub rate: Rate,
    /// When packets come. Default: constant.
    pub arrivals: Arrivals,
    /// Transport protocol. Default: UDP.
    pub protocol: Protocol,
    /// Share of flows (of connections, for TCP) over IPv6, 0 to 1. Default: 0.
    pub ipv6: f64,
    /// Share of flows (of connections, for TCP) in a VLAN, 0 to 1. Default: 0.
    pub vlan: f64,
    /// VLAN ids to choose from, 1 to 4094, at least one where `vlan` is above 0. Default: 100.
    pub vlan_ids: Vec<u16>,
    /// Timestamps (RFC 7323) on every TCP segment. Default: where the smallest frame has room for them.
    pub tcp_timestamps: Option<bool>,
    /// Flows end after so many packets, at the end of a run, and new ones take their place. Default: flows
    /// never end.
    pub lifetime: Option<Lifetime>,
    /// Time of the first packet at the earliest, in nanoseconds since the Unix epoch, below 2^62. Default: 0.
    pub start: u64,
    /// Seed: the same settings and seed give the same bytes at the same times on every machine. Default: 1.
    pub seed: u64,
    /// Snap length: bytes of a frame that a capture keeps, see [`SynthConfig::captured_len`]; at least 14.
    /// Default: all.
    pub snap_len: Option<u32>,
}

impl Default for SynthConfig {
    fn default() -> Self {
        Self {
            profile: Profile::Plain,
            copies: 1,
            packets: 100_000,
            flows: 10_000,
            active: None,
            slf: 1.0,
            order: Order::Random,
            train: TrainModel::Fixed,
            zipf: 0.0,
            size: Size::Range(64, 1500),
            rate: Rate::Packets(1_000_000),
            arrivals: Arrivals::Constant,
            protocol: Protocol::Udp,
            ipv6: 0.0,
            vlan: 0.0,
            vlan_ids: vec![100],
            tcp_timestamps: None,
            lifetime: None,
            start: 0,
            seed: 1,
            snap_len: None,
        }
    }
}

/// Most flows alive at a time.
pub const MAX_FLOWS: u32 = 1 << 24;
/// Most superposed copies of a profile.
pub const MAX_COPIES: u32 = 256;
/// Smallest Ethernet frame, without its frame check sequence.
pub const MIN_FRAME: u32 = 60;
/// Largest frame.
pub const MAX_FRAME: u32 = 65_535;

impl SynthConfig {
    /// Are all settings in range and fit together?
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), SynthError> {
        if self.packets == 0 {
            return Err(SynthError::NoPackets);
        }
        if self.start >= 1 << 62 {
            return Err(SynthError::Start(self.start));
        }
        if let Some(snap @ 0..14) = self.snap_len {
            return Err(SynthError::SnapLen(snap));
        }
        if !(1..=MAX_COPIES).contains(&self.copies) {
            return Err(SynthError::Copies(self.copies));
        }
        match self.profile {
            Profile::Campus => Ok(()),
            Profile::Plain if self.copies != 1 => Err(SynthError::CopiesOfPlain(self.copies)),
            Profile::Plain => {
                self.validate_flows()?;
                self.validate_runs()?;
                self.validate_frames()
            }
        }
    }

    /// Flows that go on after the first round: `active`, else all.
    #[must_use]
    pub fn active_flows(&self) -> u32 {
        self.active.unwrap_or(self.flows)
    }

    /// True if some flows are drawn more often than others.
    pub(super) fn is_weighted(&self) -> bool {
        self.order == Order::Random && self.zipf > 0.0 && self.active_flows() > 1
    }

    fn validate_flows(&self) -> Result<(), SynthError> {
        if !(1..=MAX_FLOWS).contains(&self.flows) {
            return Err(SynthError::Flows(self.flows));
        }
        if let Some(active) = self.active
            && !(1..=self.flows).contains(&active)
        {
            return Err(SynthError::Active { active, flows: self.flows });
        }
        if self.protocol == Protocol::Tcp && (self.flows % 2 == 1 || self.active.unwrap_or(0) % 2 == 1) {
            return Err(SynthError::OddTcp);
        }
        if let Protocol::Mix(share) = self.protocol {
            share_in_range("protocol", share)?;
        }
        share_in_range("ipv6", self.ipv6)?;
        share_in_range("vlan", self.vlan)?;
        if self.vlan > 0.0 && self.vlan_ids.is_empty() {
            return Err(SynthError::NoVlanIds);
        }
        if let Some(&id) = self.vlan_ids.iter().find(|id| !(1..=4094).contains(*id)) {
            return Err(SynthError::VlanId(id));
        }
        if self.vlan == 0.0 && !self.vlan_ids.is_empty() && self.vlan_ids != Self::default().vlan_ids {
            return Err(SynthError::VlanIdsOfNone);
        }
        match self.lifetime {
            Some(l) if l.min == 0 || l.max < l.min || !(l.shape > 0.0 && l.shape <= 100.0) => {
                Err(SynthError::Lifetime { min: l.min, max: l.max, shape: l.shape })
            }
            _ => Ok(()),
        }
    }

    fn validate_runs(&self) -> Result<(), SynthError> {
        if !(1.0..=1e6).contains(&self.slf) {
            return Err(SynthError::Slf(self.slf));
        }
        if !(0.0..=10.0).contains(&self.zipf) {
            return Err(SynthError::Zipf(self.zipf));
        }
        if self.order == Order::RoundRobin && self.zipf > 0.0 {
            return Err(SynthError::ZipfInTurn(self.zipf));
        }
        self.rate.validate()
    }

    fn validate_frames(&self) -> Result<(), SynthError> {
        self.size.validate()?;
        let (size, needed) = (self.size.min(), self.headers_len(self.tcp_timestamps.unwrap_or(false)));
        if size < needed {
            return Err(SynthError::SizeBelowHeaders { size, needed });
        }
        self.validate_length()
    }

    /// Checks that the times of all packets have 64 bits, were all of them as large as can be. What comes at
    /// random may take longer, but not twice as long where it is so much.
    fn validate_length(&self) -> Result<(), SynthError> {
        let (units, per_second, unit) = match self.rate {
            Rate::Packets(rate) => (1, rate, "pps"),
            Rate::Bits(rate) => (8 * u128::from(self.size.max()), rate, "bps"),
        };
        let ns = u128::from(self.packets) * units * 1_000_000_000 / u128::from(per_second);
        if ns >= 1 << 63 {
            let rate = format!("{per_second} {unit}");
            return Err(SynthError::TooLong { packets: self.packets, rate });
        }
        Ok(())
    }

    /// Returns true if TCP segments carry timestamps.
    pub(super) fn timestamps(&self) -> bool {
        self.tcp_timestamps.unwrap_or(self.size.min() >= self.headers_len(true))
    }

    /// Length of the longest headers that these settings lead to.
    fn headers_len(&self, timestamps: bool) -> u32 {
        let tcp = match self.protocol {
            Protocol::Udp => false,
            Protocol::Tcp => true,
            Protocol::Mix(share) => share > 0.0,
        };
        let l2 = if self.vlan > 0.0 { 18 } else { 14 };
        let l3 = if self.ipv6 > 0.0 { 40 } else { 20 };
        let l4 = match (tcp, timestamps) {
            (true, true) => 32,
            (true, false) => 20,
            (false, _) => 8,
        };
        l2 + l3 + l4
    }

    /// Bytes that a capture with this snap length keeps of a frame of `frame_len` bytes.
    #[must_use]
    pub fn captured_len(&self, frame_len: usize) -> usize {
        self.snap_len.map_or(frame_len, |snap| frame_len.min(snap as usize))
    }
}

fn share_in_range(setting: &'static str, share: f64) -> Result<(), SynthError> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(SynthError::Share { setting, share }) }
}
