//! Seeds of hashes and random choices: the one place where stages have them from.
//!
//! Every table that packets fill is hashed with a seed. Who knows it can choose flows that collide, and make
//! each look-up cost as much as a walk through all of them; so seeds are secret wherever packets come from a
//! network. A replay repeats itself to the byte, which needs the same seed every time, and its packets were
//! there before.

use rand::TryRngCore;
use rand::rngs::OsRng;

/// The origin of the stages' seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// This one for all of them: the same packets give the same bytes.
    Fixed(u64),
    /// From the operating system, others for every stage and start.
    Secret,
}

/// The operating system has no random numbers to give.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gives no random numbers for the seeds of hashes: {0}")]
pub struct NoRandomness(rand::rand_core::OsError);

impl From<u64> for Seeds {
    fn from(seed: u64) -> Self {
        Self::Fixed(seed)
    }
}

impl Seeds {
    /// A seed.
    ///
    /// # Errors
    /// [`NoRandomness`] where a secret one can't be had: there is no other to fall back on.
    pub fn draw(self) -> Result<u64, NoRandomness> {
        match self {
            Self::Fixed(seed) => Ok(seed),
            Self::Secret => OsRng.try_next_u64().map_err(NoRandomness),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_seeds_repeat_and_secret_ones_do_not() {
        assert_eq!(Seeds::from(7).draw().unwrap(), 7);
        let drawn: std::collections::BTreeSet<u64> =
            (0..100).map(|_| Seeds::Secret.draw().unwrap()).collect();
        assert_eq!(drawn.len(), 100);
    }
}
