//! Settings of an analysis, checked once.

use slipstream_wire::Encapsulation;
use thiserror::Error;

/// Settings of an analysis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Holding windows in nanoseconds; each is simulated on its own. A window of 0 builds no trains.
    pub windows_ns: Vec<u64>,
    /// Packets at which a train leaves at once, 1 to 65,535.
    pub burst: u32,
    /// Batch sizes in packets at which flow switches are counted, each 1 to 2³⁰.
    pub switch_batches: Vec<u32>,
    /// Addresses that `top_endpoints` lists.
    pub top: usize,
    /// The IP header of a tunnel that counts.
    pub encapsulation: Encapsulation,
    /// Threads that work on the packets, the caller's included; at least 1. More than two plus the number of
    /// windows find nothing to do.
    pub threads: usize,
}

impl Default for Config {
    /// The paper's windows (16, 64 and 128 µs), batches of 32, the batch sizes of its Fig. 8, one thread.
    fn default() -> Self {
        Self {
            windows_ns: vec![16_000, 64_000, 128_000],
            burst: 32,
            switch_batches: vec![32, 64, 256, 1024],
            top: 10,
            encapsulation: Encapsulation::Outer,
            threads: 1,
        }
    }
}

/// The reason why a [`Config`] can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// [`Config::burst`] is out of range.
    #[error("a burst of {0} packets: it must be 1 to 65535")]
    Burst(u32),
    /// One of [`Config::switch_batches`] is out of range.
    #[error("flow switches in batches of {0} packets: these must be 1 to 2^30")]
    SwitchBatch(u32),
    /// One of [`Config::switch_batches`] is larger than a stretch of a trace can have it.
    #[error("flow switches in batches of {0} packets: in a part of a trace these must be 1 to 65536")]
    StretchBatch(u32),
    /// [`Config::threads`] is 0.
    #[error("at least one thread must do the work")]
    Threads,
}

impl Config {
    /// Checks the ranges.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=u32::from(u16::MAX)).contains(&self.burst) {
            return Err(ConfigError::Burst(self.burst));
        }
        if let Some(wrong) = self.switch_batches.iter().find(|size| !(1..=1 << 30).contains(*size)) {
            return Err(ConfigError::SwitchBatch(*wrong));
        }
        if self.threads == 0 {
            return Err(ConfigError::Threads);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_field_has_its_own_error() {
        assert_eq!(Config::default().validate(), Ok(()));
        for (burst, want) in [(0, Err(ConfigError::Burst(0))), (1, Ok(())), (65_535, Ok(()))] {
            assert_eq!(Config { burst, ..Config::default() }.validate(), want);
        }
        assert_eq!(Config { burst: 65_536, ..Config::default() }.validate(), Err(ConfigError::Burst(65_536)));
        for (size, want) in [
            (0, Err(ConfigError::SwitchBatch(0))),
            (1 << 30, Ok(())),
            ((1 << 30) + 1, Err(ConfigError::SwitchBatch((1 << 30) + 1))),
        ] {
            assert_eq!(Config { switch_batches: vec![32, size], ..Config::default() }.validate(), want);
        }
        assert_eq!(Config { threads: 0, ..Config::default() }.validate(), Err(ConfigError::Threads));
    }
}
