//! Meters: which colour a packet has by its flow's or class's rate. The single rate three colour marker (RFC
//! 2697) and the two rate three colour marker (RFC 2698), colour-blind and colour-aware.
//!
//! Tokens are counted in billionths of a bit, so that the result is that of the RFCs' real-valued buckets, to
//! the byte.

use slipstream_wire::FlowKey;

use super::bucket::{Bucket, MAX_TOKENS, PARTS, accrued_bits};
use super::table::Table;
use slipstream_core::time::Nanos;

/// The colour that a meter gives a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Colour {
    /// Within the committed rate.
    Green,
    /// Above it, within the excess burst or the peak rate.
    Yellow,
    /// Above both.
    Red,
}

/// Rates in bits of IP packets a second; bursts in bytes, up to [`MAX_TOKENS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// srTCM: one rate, two bursts.
    SingleRate {
        /// Committed information rate.
        cir: u64,
        /// Committed burst size.
        cbs: u64,
        /// Excess burst size.
        ebs: u64,
    },
    /// trTCM: two rates, a burst each.
    TwoRate {
        /// Committed information rate.
        cir: u64,
        /// Committed burst size.
        cbs: u64,
        /// Peak information rate.
        pir: u64,
        /// Peak burst size.
        pbs: u64,
    },
}

/// The reason why numbers make no meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeterError {
    /// A rate of 0.
    #[error("a rate of 0 bits a second")]
    NoRate,
    /// No burst: nothing would ever be green or yellow.
    #[error("at least one burst size must be above 0 (of two rates: both)")]
    NoBurst,
    /// A burst above [`MAX_TOKENS`].
    #[error("a burst of {0} bytes is above {max}", max = MAX_TOKENS)]
    Burst(u64),
    /// A peak rate below the committed one (RFC 2698 §2).
    #[error("the peak rate is below the committed rate")]
    PeakBelowCommitted,
}

impl Marker {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`MeterError`] for numbers that the RFCs rule out.
    pub fn checked(self) -> Result<Self, MeterError> {
        let (rates, bursts) = match self {
            Self::SingleRate { cir, cbs, ebs } => ([cir, cir], [cbs, ebs]),
            Self::TwoRate { cir, cbs, pir, pbs } => ([cir, pir], [cbs, pbs]),
        };
        let [committed, peak] = rates;
        if committed == 0 {
            return Err(MeterError::NoRate);
        }
        if peak < committed {
            return Err(MeterError::PeakBelowCommitted);
        }
        if let Some(burst) = bursts.into_iter().find(|burst| *burst > MAX_TOKENS) {
            return Err(MeterError::Burst(burst));
        }
        let enough = if matches!(self, Self::TwoRate { .. }) { 2 } else { 1 };
        if bursts.into_iter().filter(|burst| *burst > 0).count() < enough {
            return Err(MeterError::NoBurst);
        }
        Ok(self)
    }

    /// Nanoseconds after which the buckets of a meter are full again, whatever it saw: then it may be
    /// forgotten.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let fill =
            |burst: u64, rate: u64| (u128::from(burst) * u128::from(PARTS)).div_ceil(u128::from(rate.max(1)));
        let ns = match *self {
            Self::SingleRate { cir, cbs, ebs } => fill(cbs + ebs, cir),
            Self::TwoRate { cir, cbs, pir, pbs } => fill(cbs, cir).max(fill(pbs, pir)),
        };
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// The buckets of one class or flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    committed: Bucket,
    /// Excess or peak.
    other: Bucket,
    last: Nanos,
}

impl Meter {
    /// Full buckets, at the time of the first packet.
    #[must_use]
    pub fn new(marker: &Marker, now: Nanos) -> Self {
        let (cbs, other) = match *marker {
            Marker::SingleRate { cbs, ebs, .. } => (cbs, ebs),
            Marker::TwoRate { cbs, pbs, .. } => (cbs, pbs),
        };
        Self { committed: Bucket::full(cbs), other: Bucket::full(other), last: now }
    }

    /// The colour of a packet of `bytes` (of IP). `before`: its colour when it came, for a colour-aware
    /// meter; [`Colour::Green`] for a colour-blind one, which is the same (RFC 2697 §3, RFC 2698 §3).
    #[inline]
    pub fn colour(&mut self, marker: &Marker, bytes: u32, before: Colour, now: Nanos) -> Colour {
        let bytes = u64::from(bytes);
        let since = self.last;
        self.last = since.max(now);
        match *marker {
            Marker::SingleRate { cir, cbs, ebs } => {
                let excess = self.committed.add(accrued_bits(cir, since, now), cbs);
                self.other.add(excess, ebs);
                if before == Colour::Green && self.committed.has(bytes) {
                    self.committed.take(bytes);
                    Colour::Green
                } else if before <= Colour::Yellow && self.other.has(bytes) {
                    self.other.take(bytes);
                    Colour::Yellow
                } else {
                    Colour::Red
                }
            }
            Marker::TwoRate { cir, cbs, pir, pbs } => {
                self.committed.add(accrued_bits(cir, since, now), cbs);
                self.other.add(accrued_bits(pir, since, now), pbs);
                if before == Colour::Red || !self.other.has(bytes) {
                    return Colour::Red;
                }
                self.other.take(bytes);
                if before == Colour::Yellow || !self.committed.has(bytes) {
                    return Colour::Yellow;
                }
                self.committed.take(bytes);
                Colour::Green
            }
        }
    }
}

/// Code points (0 to 63) that stand for colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DscpMap {
    /// For green, yellow and red packets; `None` leaves the packet's own.
    pub marks: [Option<u8>; 3],
}

impl DscpMap {
    /// Drop precedences 1 to 3 of an assured forwarding class, 1 to 4 (RFC 2597 §6).
    #[must_use]
    pub const fn assured_forwarding(class: u8) -> Self {
        let base = (class & 7) << 3;
        Self { marks: [Some(base | 2), Some(base | 4), Some(base | 6)] }
    }

    /// The code point of a packet with this colour that had `dscp` before.
    #[inline]
    #[must_use]
    pub fn mark(&self, colour: Colour, dscp: u8) -> u8 {
        self.marks.get(colour as usize).copied().flatten().unwrap_or(dscp) & 63
    }

    /// The colour that a packet's code point stands for, for a colour-aware meter: by these marks, else by
    /// the drop precedence of any assured forwarding class (RFC 2597 §6); green where it stands for none.
    #[must_use]
    pub fn colour_of(&self, dscp: u8) -> Colour {
        let [green, yellow, red] = self.marks;
        match Some(dscp) {
            seen if seen == red => Colour::Red,
            seen if seen == yellow => Colour::Yellow,
            seen if seen == green => Colour::Green,
            _ if !(1..=4).contains(&(dscp >> 3)) => Colour::Green,
            _ => match dscp & 7 {
                4 => Colour::Yellow,
                6 => Colour::Red,
                _ => Colour::Green,
            },
        }
    }
}

/// A meter for each flow. A flow is forgotten when its buckets are full again, so that forgetting changes
/// nothing.
///
/// ```
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::meter::{Colour, FlowMeters, Marker};
/// use slipstream_wire::FlowKey;
///
/// let marker = Marker::SingleRate { cir: 1_000_000, cbs: 1500, ebs: 1500 };
/// let mut meters = FlowMeters::new(marker, 1000, 1)?;
/// let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 5000, 53)?;
/// let mut colours = Vec::new();
/// for now in [0, 1, 2, 12_000_000] {
///     let hash = meters.prefetch(&key);
///     let (marker, meter) = meters.meter(&key, hash, Nanos(now));
///     colours.push(meter.colour(marker, 1500, Colour::Green, Nanos(now)));
/// }
/// // A burst, an excess burst, nothing left; 12 ms later a megabit a second has brought 1500 bytes.
/// assert_eq!(colours, [Colour::Green, Colour::Yellow, Colour::Red, Colour::Green]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FlowMeters {
    marker: Marker,
    memory: u64,
    table: Table<FlowKey, Meter>,
    /// Flows that found no room share one meter.
    shared: Option<Meter>,
    shared_packets: u64,
}

impl FlowMeters {
    /// Meters for at most `flows` flows (1 to 2³⁰) at a time.
    ///
    /// # Errors
    /// [`MeterError`] for numbers that the RFCs rule out.
    pub fn new(marker: Marker, flows: u32, seed: u64) -> Result<Self, MeterError> {
        let marker = marker.checked()?;
        let table = Table::new(flows, seed);
        Ok(Self { marker, memory: marker.memory(), table, shared: None, shared_packets: 0 })
    }

    /// Memory that meters for so many flows take when they are made, in bytes, piece by piece.
    pub(crate) fn memory(flows: u32) -> [u64; 3] {
        Table::<FlowKey, Meter>::memory(flows)
    }

    /// Asks for what will be needed of a flow: its hash, its index line.
    #[inline]
    pub fn prefetch(&self, key: &FlowKey) -> u64 {
        let hash = self.table.hash(key);
        self.table.prefetch_index(hash);
        hash
    }

    /// Up to when packets of a flow that come from `now` on are sure to find the meter that the first of them
    /// finds.
    #[must_use]
    pub fn holds_until(&self, key: &FlowKey, hash: u64, now: Nanos) -> Nanos {
        let known = self.table.find(key, hash).is_some();
        if known || !self.table.is_full() { self.known_until(now) } else { now }
    }

    /// The same of a flow that has a meter.
    #[must_use]
    pub fn known_until(&self, now: Nanos) -> Nanos {
        now.after(self.memory)
    }

    /// Asks for the meter with this number.
    #[inline]
    pub fn prefetch_known(&self, id: u32) {
        self.table.prefetch_entry(id);
    }

    /// Returns true if a flow has the meter with this number, and won't be forgotten at `now`.
    #[inline]
    #[must_use]
    pub fn has(&self, key: &FlowKey, id: u32, now: Nanos) -> bool {
        self.table.holds(id, key, now)
    }

    /// The number of a flow's meter, which begins if it must; none where there is no room. `hash` is that of
    /// [`FlowMeters::prefetch`]. Flows whose time has passed are looked for where a new one comes.
    #[inline]
    pub fn number(&mut self, key: &FlowKey, hash: u64, now: Nanos) -> Option<u32> {
        self.table.find(key, hash).or_else(|| self.begin(key, hash, now))
    }

    /// The meter of a flow with this hash (see [`FlowMeters::prefetch`]), for one packet. Flows whose time
    /// has passed are looked for where a new one comes.
    #[inline]
    pub fn meter(&mut self, key: &FlowKey, hash: u64, now: Nanos) -> (&Marker, &mut Meter) {
        let number = self.number(key, hash, now);
        self.numbered(number, 1, now, now)
    }

    /// The meter with this [number](FlowMeters::number), or the one of all flows that have none, for so many
    /// packets of a train, of which the first comes at `now` and the last at `last`.
    #[inline]
    pub fn numbered(
        &mut self,
        found: Option<u32>,
        packets: u64,
        now: Nanos,
        last: Nanos,
    ) -> (&Marker, &mut Meter) {
        if let Some(id) = found {
            self.table.extend(id, last.after(self.memory));
        }
        match found.and_then(|id| self.table.get_mut(id)) {
            Some(meter) => (&self.marker, meter),
            None => {
                self.shared_packets += packets;
                (&self.marker, self.shared.get_or_insert_with(|| Meter::new(&self.marker, now)))
            }
        }
    }

    /// The number of a flow that is new; none where there is no room.
    #[inline(never)]
    fn begin(&mut self, key: &FlowKey, hash: u64, now: Nanos) -> Option<u32> {
        self.expire(now, 16);
        if self.table.is_full() {
            self.expire(now, u32::MAX);
        }
        self.table.insert(*key, hash, Meter::new(&self.marker, now), now.after(self.memory)).ok()
    }

    /// Forgets flows whose buckets are full, `visits` at most.
    pub fn expire(&mut self, now: Nanos, mut visits: u32) {
        while let Some(id) = self.table.next_due(now, &mut visits) {
            self.table.remove(id);
        }
    }

    /// Packets whose flow found no room and took the shared meter.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.shared_packets
    }

    /// Entries far from where their hash says; see [`Index::long_probes`](super::table::Index::long_probes).
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.table.long_probes()
    }

    /// Flows that have a meter of their own.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.table.len()
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
