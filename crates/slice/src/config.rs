//! Settings of slicing, and the arithmetic behind the number of entries.

use slipstream_core::rules::Rule;
use slipstream_core::units::Duration;

use super::token::{MAX_PLACES, MOST_TAG_BITS, TAG_BITS, TOKEN_LEN, TokenFormat, TokenKey, TokenMode};

/// The storage of waiting payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the buffers that they came in: only descriptors move.
    InPlace,
    /// Copied into entries of this many bytes, 1 to 65 535, as a middlebox does that passes headers across a
    /// boundary.
    Copied {
        /// Room of an entry in bytes. Packets with more to park are forwarded whole.
        entry_bytes: u32,
    },
}

/// The amount of the payload behind [`SliceConfig::keep_bytes`] that is parked: its last bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// This share of it, 0 to 1 (§VI-B of the paper); 0 slices nothing.
    Share(f64),
    /// At most so many bytes, as a switch does (§VI-B: 160 or 320).
    Bytes(u16),
}

/// The policy for a packet that carries the mark of sliced packets already and can't be sliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// It gets a token without a payload, and its DSCP back at the end; where that can't be, DSCP 0.
    Slice,
    /// It gets this DSCP (0 to 62), for good.
    Remark(u8),
    /// It is dropped.
    Drop,
}

/// The binding of a token beyond its entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// Nothing: functions may rewrite addresses and ports, and are trusted not to exchange tokens.
    #[default]
    Nothing,
    /// The flow: a packet gets no payload unless its addresses, its protocol and its ports are those of the
    /// packet that was sliced. Functions between must leave these alone.
    Flow,
}

/// Settings of slicing. Both ends of a pair have the same.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceConfig {
    /// Payloads that can wait at a time, with one worker; times `workers` at most [`MAX_PLACES`].
    pub entries: u32,
    /// Their storage.
    pub storage: Storage,
    /// Workers that have a table each, 1 to [`MAX_PLACES`].
    pub workers: u32,
    /// The construction of tokens.
    pub mode: TokenMode,
    /// The secret behind them.
    pub key: TokenKey,
    /// Bits of the tag of a keyed token, 24 to 40; what it has more than 24, the generation has fewer.
    pub tag_bits: u32,
    /// The binding of tokens.
    pub bind: Bind,
    /// Turns of the index that a payload may wait, at least 1.
    pub ttl: u16,
    /// Time that a payload may wait, in ns; none: only turns count.
    pub max_age_ns: Option<u64>,
    /// Time that a payload waits at least, in ns, however many turns there are; at most `max_age_ns`.
    pub min_age_ns: u64,
    /// Shortest frame that is sliced, in bytes.
    pub threshold: u32,
    /// Bytes of payload that stay with the headers in any case.
    pub keep_bytes: u16,
    /// The amount of the rest that is parked.
    pub amount: Amount,
    /// The packets that are sliced.
    pub rules: Rule,
    /// The policy for marked packets that can't be.
    pub marked: Marked,
    /// Longest IP packet that the functions between take, in bytes, 68 to 65 535: a longer one goes whole,
    /// and none is made longer than this by a token.
    pub functions_mtu: u32,
    /// Longest IP packet that may leave the splicer, in bytes, 68 to 65 535.
    pub mtu: u32,
}

/// Why a configuration can't be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// More entries than a token's index can name, or none.
    #[error(
        "{entries} entries for each of {workers} workers: there must be 1 to {MAX_PLACES} in all, a power of two for each worker"
    )]
    Entries {
        /// Entries of a worker.
        entries: u32,
        /// Workers.
        workers: u32,
    },
    /// A worker that there isn't.
    #[error("there is no worker {worker} among {workers}")]
    Worker {
        /// The worker, from 0.
        worker: u32,
        /// Workers.
        workers: u32,
    },
    /// Entries without room, or with more than an IP packet takes.
    #[error("an entry of {0} bytes: 1 to 65535 are possible")]
    EntryBytes(u32),
    /// A tag that is too short or too long.
    #[error("a tag of {0} bits: {TAG_BITS} to {MOST_TAG_BITS} are possible")]
    TagBits(u32),
    /// A payload would have to wait for longer than it may.
    #[error(
        "a payload must wait for {} at least (min_age), and may for no more than {} (max_age)",
        Duration(*.least),
        Duration(*.most)
    )]
    MinAge {
        /// Time that it must, in ns.
        least: u64,
        /// Time that it may, in ns.
        most: u64,
    },
    /// No turn to wait.
    #[error("a payload must be allowed to wait for at least one turn")]
    Ttl,
    /// A share that is none.
    #[error("{0} is no share: 0 to 1 are possible")]
    Share(f64),
    /// A code point that there isn't, or the mark itself.
    #[error("packets can't be remarked to DSCP {0}: 0 to 62 are possible")]
    Remark(u8),
    /// A length that no link has.
    #[error("an MTU of {0} bytes: 68 to 65535 are possible")]
    Mtu(u32),
}

impl SliceConfig {
    /// Checks everything.
    ///
    /// # Errors
    /// The first thing that can't be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.format().map(|_| ())
    }

    /// The format of its tokens.
    pub(super) fn format(&self) -> Result<TokenFormat, ConfigError> {
        match self.storage {
            Storage::Copied { entry_bytes } if !(1..=0xffff).contains(&entry_bytes) => {
                return Err(ConfigError::EntryBytes(entry_bytes));
            }
            _ => {}
        }
        if self.ttl == 0 {
            return Err(ConfigError::Ttl);
        }
        match self.amount {
            Amount::Share(share) if !(0.0..=1.0).contains(&share) => return Err(ConfigError::Share(share)),
            _ => {}
        }
        match self.marked {
            Marked::Remark(dscp) if dscp >= super::DSCP_SLICED => return Err(ConfigError::Remark(dscp)),
            _ => {}
        }
        for mtu in [self.functions_mtu, self.mtu] {
            if !(68..=0xffff).contains(&mtu) {
                return Err(ConfigError::Mtu(mtu));
            }
        }
        if !(TAG_BITS..=MOST_TAG_BITS).contains(&self.tag_bits) {
            return Err(ConfigError::TagBits(self.tag_bits));
        }
        match self.max_age_ns {
            Some(most) if most < self.min_age_ns => {
                return Err(ConfigError::MinAge { least: self.min_age_ns, most });
            }
            _ => {}
        }
        TokenFormat::with_tags(self.mode, self.tag_bits, &self.key, self.entries, self.workers)
            .ok_or(ConfigError::Entries { entries: self.entries, workers: self.workers })
    }

    /// Bytes that are parked of a payload of `payload` bytes; 0 if slicing would not make the packet shorter.
    #[inline]
    #[must_use]
    pub fn parks(&self, payload: u32) -> u32 {
        let rest = payload.saturating_sub(u32::from(self.keep_bytes));
        let parked = match self.amount {
            Amount::Share(1.0) => rest,
            Amount::Share(share) => (f64::from(rest) * share) as u32,
            Amount::Bytes(most) => rest.min(u32::from(most)),
        };
        if parked > TOKEN_LEN as u32 { parked } else { 0 }
    }
}

/// Payloads that wait on average, by Little's law: those that arrive in a second, times the seconds that each
/// waits.
///
/// `rate` is in packets worth slicing a second, `service_ns` how long the functions have a packet on average.
///
/// ```
/// use slipstream_slice::{entries_for, waiting};
///
/// // §V of the paper slices 4 million packets a second; 25 µs at the functions.
/// assert_eq!(waiting(4e6, 25_000), 100.0);
/// // Twice that for what arrives in bursts.
/// assert_eq!(entries_for(4e6, 25_000, 2.0), 200);
/// ```
#[must_use]
pub fn waiting(rate: f64, service_ns: u64) -> f64 {
    rate.max(0.0) * service_ns as f64 / 1e9
}

/// Entries for so many payloads and `headroom` times that for bursts, 1 to [`MAX_PLACES`].
#[must_use]
pub fn entries_for(rate: f64, service_ns: u64, headroom: f64) -> u32 {
    let entries = (waiting(rate, service_ns) * headroom.max(1.0)).ceil();
    (entries as u32).clamp(1, MAX_PLACES)
}

/// Mean time to guess a token, in s, if `rate` guesses a second reach the splicer,
/// `unknown` bits of the token are not known, and `live` tokens would do.
///
/// ```
/// use slipstream_slice::guessing_s;
///
/// // 10 Gbit/s of the shortest frames. One token of an entry was seen a moment ago: its tag of 24 bits remains.
/// assert_eq!((guessing_s(14.88e6, 24, 1.0) * 10.0).round(), 11.0);
/// // Nothing was seen: 48 bits, for any of a hundred payloads that wait, take two days.
/// assert_eq!((guessing_s(14.88e6, 48, 100.0) / 86400.0).round(), 2.0);
/// ```
#[must_use]
pub fn guessing_s(rate: f64, unknown: u32, live: f64) -> f64 {
    if rate > 0.0 && live > 0.0 { f64::from(unknown).exp2() / (rate * live) } else { f64::INFINITY }
}

/// Time for which a payload of a dropped packet keeps its entry, in ns, if packets worth slicing come at
/// `rate` a second: the index must pass it `ttl` times, and comes to it once more to use it.
#[must_use]
pub fn residence_ns(rate: f64, entries: u32, ttl: u16) -> f64 {
    if rate > 0.0 { f64::from(entries) * f64::from(ttl) / rate * 1e9 } else { f64::INFINITY }
}

/// Share of packets that are not sliced because the functions drop a share `dropped` of those that were, and
/// entries wait `ttl` turns for them: dT / (1 + dT). With explicit drops it is 0.
///
/// ```
/// assert_eq!(slipstream_slice::unsliced_share(0.1, 10), 0.5);
/// ```
#[must_use]
pub fn unsliced_share(dropped: f64, ttl: u16) -> f64 {
    let blocked = dropped.clamp(0.0, 1.0) * f64::from(ttl);
    blocked / (1.0 + blocked)
}

/// After how long the generation of an entry comes round again, in ns, where packets worth slicing come at
/// `rate` a second and go to `entries` in turn: a packet that took exactly so long would be taken for
/// another.
///
/// ```
/// use slipstream_slice::generation_wraps_ns;
///
/// // 100 Gbit/s of 1538 bytes on the wire each (8.13 million packets a second), 1024 entries, 24 bits: 35 minutes.
/// assert_eq!((generation_wraps_ns(8.127e6, 1024, 24) / 1e9).round(), 2114.0);
/// ```
#[must_use]
pub fn generation_wraps_ns(rate: f64, entries: u32, bits: u32) -> f64 {
    if rate > 0.0 { f64::from(entries) * f64::from(bits).exp2() / rate * 1e9 } else { f64::INFINITY }
}
