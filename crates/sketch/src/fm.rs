//! FM, probabilistic counting with stochastic averaging (Flajolet and Martin, JCSS 31, 1985): how many distinct keys.
//!
//! A key chooses one of m bitmaps and in it bit i with probability 2⁻⁽ⁱ⁺¹⁾. R, the lowest *unset* bit, averaged over
//! bitmaps, tells n ≈ (m/φ)·2^R with φ = 0.77351, at a standard error of about 0.78/√m. While a bitmap sees few keys that
//! is biased; then the number of bitmaps without any key tells more, by the formula of linear counting.

use std::any::Any;

use crate::hash::{Hasher, below};
use crate::kind::{MAX_CELLS, cells};
use crate::serial::{Decoder, Encoder, StateError};
use crate::sketch::same;
use crate::{Bounds, BuildError, Kind, MergeError, QueryError, Size, Sketch, Update};

/// Flajolet and Martin's correction.
const PHI: f64 = 0.773_51;
/// Standard error of one bitmap, relative.
const ERROR: f64 = 0.78;
/// Scheuermann and Mauve's exponent (ICNS 2007) of the correction for few keys a bitmap.
const KAPPA: f64 = 1.75;
/// Up to so many keys a bitmap, empty bitmaps tell more than R.
const FEW: f64 = 1.5;
/// Standard errors either side that hold 95 % of answers.
const SIGMAS: f64 = 1.96;

/// Distinct keys, from bitmaps of 32 bits.
#[derive(Clone, Debug)]
pub struct Fm<const N: usize> {
    maps: Vec<u32>,
    hasher: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> Fm<N> {
    /// An empty sketch of `maps` bitmaps (1 to 2³⁰; the paper has 4).
    ///
    /// # Errors
    /// [`BuildError`] where the number is out of range.
    pub fn new(maps: usize, seed: u64) -> Result<Self, BuildError> {
        if maps == 0 || maps > MAX_CELLS {
            let (what, range) = ("the number of bitmaps", "1 to 2^30");
            return Err(BuildError::Parameter { kind: Kind::Fm, what, range });
        }
        Ok(Self { maps: vec![0; maps], hasher: Hasher::new(seed, 0x66_6d), seed, weight: 0 })
    }

    /// The sketch for a size: for an accuracy, (z·0.78/error)² bitmaps, z the normal quantile of the confidence.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let maps = match size {
            Size::Memory(budget) if budget < 4 => {
                return Err(BuildError::TooSmall { kind: Kind::Fm, least: 4, budget });
            }
            Size::Memory(budget) => (budget / 4).min(MAX_CELLS),
            Size::Accuracy { error, confidence, .. } => {
                cells(Kind::Fm, (crate::stats::two_sided(confidence) * ERROR / error).powi(2))?
            }
        };
        Self::new(maps, seed)
    }

    #[inline(always)]
    fn set(&mut self, key: &[u8; N]) {
        let [a, b] = self.hasher.hash(key).0;
        let chosen = below(a as u32, self.maps.len());
        if let Some(map) = self.maps.get_mut(chosen) {
            *map |= 1 << b.trailing_zeros().min(31);
        }
    }

    fn estimate(&self) -> f64 {
        let m = self.maps.len() as f64;
        let empty = self.maps.iter().filter(|b| **b == 0).count() as f64;
        if empty == m {
            return 0.0;
        }
        if empty > 0.0 {
            let linear = m * (m / empty).ln();
            if linear <= FEW * m && m >= 16.0 {
                return linear;
            }
        }
        let mean = self.maps.iter().map(|b| f64::from(b.trailing_ones())).sum::<f64>() / m;
        m / PHI * (mean.exp2() - (-KAPPA * mean).exp2())
    }

    pub(crate) fn decode(seed: u64, weight: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let n = d.count(4)?;
        if n == 0 || n > MAX_CELLS {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self { maps: d.all_u32(n)?, hasher: Hasher::new(seed, 0x66_6d), seed, weight })
    }
}

impl<const N: usize> Sketch<N> for Fm<N> {
    fn kind(&self) -> Kind {
        Kind::Fm
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn shape(&self) -> String {
        format!("{} bitmaps of 32 bits", self.maps.len())
    }

    fn weight(&self) -> u64 {
        self.weight
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.maps.as_slice())
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        self.set(key);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        for u in updates {
            self.weight = self.weight.saturating_add(u64::from(u.weight));
            self.set(&u.key);
        }
    }

    fn update_cost(&self) -> f64 {
        0.6
    }

    fn clear(&mut self) {
        self.maps.fill(0);
        self.weight = 0;
    }

    fn merge(&mut self, other: &dyn Sketch<N>) -> Result<(), MergeError> {
        let other = same(self, other)?;
        self.maps.iter_mut().zip(&other.maps).for_each(|(a, b)| *a |= *b);
        self.weight = self.weight.saturating_add(other.weight);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Sketch<N>> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn encode(&self, out: &mut Encoder) {
        out.u32(self.maps.len() as u32);
        out.all_u32(&self.maps);
    }

    /// Lower and upper hold in about 95 % of cases.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        let estimate = self.estimate();
        let factor = SIGMAS * ERROR / (self.maps.len() as f64).sqrt();
        let lower = (estimate / (1.0 + factor)).min(estimate);
        Ok(Bounds { estimate, lower, upper: estimate * (1.0 + factor) })
    }

    fn is_saturated(&self) -> bool {
        self.maps.iter().all(|b| *b == u32::MAX)
    }
}
