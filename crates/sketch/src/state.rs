//! The state of a sketch: its parameters and its tables, listed once per sketch, from which saving, loading,
//! clearing and merging follow.
//!
//! A sketch lists its tables with [`tables!`], each with its number of words and the rule by which two of
//! them are united, and says how its parameters are written and read. [`state_methods!`] then gives the
//! methods of [`Sketch`] that are the same for all sketches.

use crate::serial::{Decoder, Encoder, StateError, Word};
use crate::sketch::same;
use crate::store::Store;
use crate::{MergeError, Sketch};

/// Parameters and tables of a sketch.
pub(crate) trait State<const N: usize>: Sketch<N> + Clone + 'static {
    /// A sketch whose tables have yet to be read, from its saved parameters.
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError>;

    fn write_parameters(&self, out: &mut Encoder);

    /// Reads the tables, in the order in which they are listed.
    fn read_tables(&mut self, d: &mut Decoder<'_>) -> Result<(), StateError>;

    /// Mends what a state of an older version says otherwise than one of today's.
    fn amend(&mut self, _version: u16) {}

    /// Checks what the tables' own checks can't see.
    fn check_tables(&self) -> Result<(), StateError> {
        Ok(())
    }

    fn write_tables(&self, out: &mut Encoder);

    fn clear_tables(&mut self);

    /// Unites the tables, each by its rule.
    fn unite_tables(&mut self, other: &Self);

    fn set_weight(&mut self, weight: u64);

    /// Adds another state of the same shape, but for the weight; leaves this one unchanged on an error.
    fn unite(&mut self, other: &Self) -> Result<(), MergeError> {
        self.unite_tables(other);
        Ok(())
    }
}

/// Reads a state.
pub(crate) fn decode<const N: usize, S: State<N>>(
    seed: u64,
    weight: u64,
    d: &mut Decoder<'_>,
) -> Result<Box<dyn Sketch<N>>, StateError> {
    let mut sketch = S::read_parameters(seed, d)?;
    sketch.read_tables(d)?;
    sketch.set_weight(weight);
    sketch.amend(d.version());
    sketch.check_tables()?;
    Ok(Box::new(sketch))
}

/// Adds another state, if it is of the same kind, seed and shape.
pub(crate) fn merge<const N: usize, S: State<N>>(
    this: &mut S,
    other: &dyn Sketch<N>,
) -> Result<(), MergeError> {
    let other = same(this, other)?;
    let weight = this.weight().saturating_add(other.weight());
    this.unite(other)?;
    this.set_weight(weight);
    Ok(())
}

/// Unites two cells of the same place.
pub(crate) trait Rule<W> {
    fn unite(cell: &mut W, other: W);
}

/// Counters add up, and stay at their ends.
#[derive(Debug)]
pub(crate) struct Add;

/// Bits that are set in either are set.
#[derive(Debug)]
pub(crate) struct Or;

impl Rule<u32> for Add {
    fn unite(cell: &mut u32, other: u32) {
        *cell = cell.saturating_add(other);
    }
}

impl Rule<u64> for Add {
    fn unite(cell: &mut u64, other: u64) {
        *cell = cell.saturating_add(other);
    }
}

impl Rule<i64> for Add {
    fn unite(cell: &mut i64, other: i64) {
        *cell = cell.saturating_add(other);
    }
}

impl Rule<u64> for Or {
    fn unite(cell: &mut u64, other: u64) {
        *cell |= other;
    }
}

impl<const K: usize> Rule<[u64; K]> for Or {
    fn unite(cell: &mut [u64; K], other: [u64; K]) {
        cell.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
    }
}

/// The sketch unites these tables itself: it takes more than the cells.
#[derive(Debug)]
pub(crate) struct Apart;

impl<W> Rule<W> for Apart {
    fn unite(_: &mut W, _: W) {}
}

/// A part of a state.
pub(crate) trait Table<R> {
    /// Reads so many cells.
    fn read(&mut self, cells: usize, d: &mut Decoder<'_>) -> Result<(), StateError>;

    fn write(&self, out: &mut Encoder);

    fn clear(&mut self);

    fn unite(&mut self, other: &Self);
}

impl<W: Word, R: Rule<W>> Table<R> for Vec<W> {
    fn read(&mut self, cells: usize, d: &mut Decoder<'_>) -> Result<(), StateError> {
        *self = d.all(cells)?;
        Ok(())
    }

    fn write(&self, out: &mut Encoder) {
        out.all(self);
    }

    fn clear(&mut self) {
        self.fill(W::default());
    }

    fn unite(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(a, b)| R::unite(a, *b));
    }
}

/// Stores of keys, as many as the sketch was made with; their merge needs estimates, which only the sketch
/// has.
impl<const N: usize> Table<Apart> for Vec<Store<N>> {
    fn read(&mut self, _: usize, d: &mut Decoder<'_>) -> Result<(), StateError> {
        self.iter_mut().try_for_each(|store| store.read(1, d))
    }

    fn write(&self, out: &mut Encoder) {
        self.iter().for_each(|store| store.write(out));
    }

    fn clear(&mut self) {
        self.iter_mut().for_each(Table::clear);
    }

    fn unite(&mut self, _: &Self) {}
}

/// Lists a sketch's tables in the order of the saved state: `field: rule, number of cells`.
macro_rules! tables {
    ($this:ident: $($table:ident: $rule:ty, $cells:expr;)+) => {
        fn read_tables(
            &mut $this,
            d: &mut $crate::serial::Decoder<'_>,
        ) -> Result<(), $crate::StateError> {
            $(
                let cells = $cells;
                $crate::state::Table::<$rule>::read(&mut $this.$table, cells, d)?;
            )+
            Ok(())
        }

        fn write_tables(&$this, out: &mut $crate::Encoder) {
            $($crate::state::Table::<$rule>::write(&$this.$table, out);)+
        }

        fn clear_tables(&mut $this) {
            $($crate::state::Table::<$rule>::clear(&mut $this.$table);)+
        }

        fn unite_tables(&mut $this, other: &Self) {
            $($crate::state::Table::<$rule>::unite(&mut $this.$table, &other.$table);)+
        }

        fn set_weight(&mut $this, weight: u64) {
            $this.weight = weight;
        }
    };
}

/// The methods of a sketch that follow from its state.
macro_rules! state_methods {
    () => {
        fn seed(&self) -> u64 {
            self.seed
        }

        fn weight(&self) -> u64 {
            self.weight
        }

        fn clear(&mut self) {
            $crate::state::State::clear_tables(self);
            self.weight = 0;
        }

        fn merge(&mut self, other: &dyn $crate::Sketch<N>) -> Result<(), $crate::MergeError> {
            $crate::state::merge(self, other)
        }

        fn boxed_clone(&self) -> Box<dyn $crate::Sketch<N>> {
            Box::new(self.clone())
        }

        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn encode(&self, out: &mut $crate::Encoder) {
            $crate::state::State::write_parameters(self, out);
            $crate::state::State::write_tables(self, out);
        }
    };
}

pub(crate) use {state_methods, tables};
