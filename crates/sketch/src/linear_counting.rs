//! Linear counting (Whang, Vander-Zanden and Taylor, ACM TODS 15, 1990): how many distinct keys, from one bitmap.
//!
//! A key sets one of m bits. With z bits left unset, n ≈ −m ln(z/m); the standard error is √(m(eᵗ − t − 1)) with t = n/m.
//! A full bitmap tells only that there were more than about m ln m: that is an error, not a number.

use std::any::Any;

use crate::hash::{Hasher, below};
use crate::kind::{MAX_CELLS, cells};
use crate::serial::{Decoder, Encoder, StateError};
use crate::sketch::same;
use crate::{Bounds, BuildError, Kind, MergeError, QueryError, Size, Sketch, Update};

/// Standard errors either side that hold 95 % of answers.
const SIGMAS: f64 = 1.96;

/// Distinct keys, from a bitmap.
#[derive(Clone, Debug)]
pub struct LinearCounting<const N: usize> {
    words: Vec<u64>,
    hasher: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> LinearCounting<N> {
    /// An empty bitmap of `words` × 64 bits (1 to 2²⁵ words, so that bits can be numbered with room to spare).
    ///
    /// # Errors
    /// [`BuildError`] where the number is out of range.
    pub fn new(words: usize, seed: u64) -> Result<Self, BuildError> {
        if words == 0 || words > Self::MAX_WORDS {
            let (what, range) = ("the number of words", "1 to 2^25");
            return Err(BuildError::Parameter { kind: Kind::LinearCounting, what, range });
        }
        Ok(Self { words: vec![0; words], hasher: Hasher::new(seed, 0x6c_63), seed, weight: 0 })
    }

    /// The most words.
    pub const MAX_WORDS: usize = MAX_CELLS / 32;

    /// The bitmap for a size: for an accuracy, the smallest whose standard error at that many flows, times the normal quantile
    /// of the confidence, is no more than the error, and that is full with a probability under 10⁻⁴.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let kind = Kind::LinearCounting;
        let words = match size {
            Size::Memory(budget) if budget < 8 => {
                return Err(BuildError::TooSmall { kind, least: 8, budget });
            }
            Size::Memory(budget) => (budget / 8).min(Self::MAX_WORDS),
            Size::Accuracy { error, confidence, flows } => {
                let n = flows as f64;
                let z = crate::stats::two_sided(confidence);
                let enough = |m: f64| {
                    let t = n / m;
                    z * standard_error(n, m) <= error * n && m * (-t).exp() > 10.0
                };
                let mut m = 64.0;
                while !enough(m) {
                    m = cells(kind, m * 1.25)? as f64;
                }
                (m as usize).div_ceil(64)
            }
        };
        Self::new(words, seed)
    }

    fn bits(&self) -> f64 {
        self.words.len() as f64 * 64.0
    }

    #[inline(always)]
    fn set(&mut self, key: &[u8; N]) {
        let hash = self.hasher.hash64(key);
        let chosen = below((hash >> 32) as u32, self.words.len());
        if let Some(word) = self.words.get_mut(chosen) {
            *word |= 1 << (hash & 63);
        }
    }

    fn unset(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_zeros())).sum()
    }

    pub(crate) fn decode(seed: u64, weight: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let n = d.count(8)?;
        if n == 0 || n > Self::MAX_WORDS {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self { words: d.all_u64(n)?, hasher: Hasher::new(seed, 0x6c_63), seed, weight })
    }
}

/// Of a bitmap of m bits that saw n keys.
pub(crate) fn standard_error(n: f64, m: f64) -> f64 {
    let t = n / m;
    (m * (t.exp() - t - 1.0)).sqrt()
}

impl<const N: usize> Sketch<N> for LinearCounting<N> {
    fn kind(&self) -> Kind {
        Kind::LinearCounting
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn shape(&self) -> String {
        format!("{} bits", self.words.len() * 64)
    }

    fn weight(&self) -> u64 {
        self.weight
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
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
        self.words.fill(0);
        self.weight = 0;
    }

    fn merge(&mut self, other: &dyn Sketch<N>) -> Result<(), MergeError> {
        let other = same(self, other)?;
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a |= *b);
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
        out.u32(self.words.len() as u32);
        out.all_u64(&self.words);
    }

    /// Lower and upper hold in about 95 % of cases.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        let (m, unset) = (self.bits(), self.unset() as f64);
        if unset == 0.0 {
            return Err(QueryError::Saturated { sketch: self.kind(), at_least: m * m.ln() });
        }
        let estimate = m * (m / unset).ln();
        let error = SIGMAS * standard_error(estimate, m);
        // There were at least as many keys as there are bits set.
        let lower = (estimate - error).max(m - unset).min(estimate);
        Ok(Bounds { estimate, lower, upper: estimate + error })
    }

    fn is_saturated(&self) -> bool {
        self.unset() == 0
    }
}
