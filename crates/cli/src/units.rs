//! Numbers with units, as people write them.

pub(crate) use slipstream::units::{Bytes, Count, Duration};

/// A count as a 32-bit number; `option` stands for it in the error.
pub(crate) fn to_u32(count: Count, option: &str) -> anyhow::Result<u32> {
    u32::try_from(count.0)
        .map_err(|_| anyhow::anyhow!("{option} {}: at most {} is possible", count.0, u32::MAX))
}
