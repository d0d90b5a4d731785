//! One array of small cells, of which a key touches one: what FM, linear counting and MRAC are made of.
//!
//! A [`Rule`] says what a cell is, what a key does to it, and what the cells tell; everything else is the
//! same for all three.

use std::fmt::Debug;
use std::marker::PhantomData;

use crate::hash::{Hasher, below};
use crate::kind::{MAX_CELLS, cells, need};
use crate::serial::{Decoder, Encoder, StateError, Word};
use crate::simd::prefetch;
use crate::sketch::same;
use crate::state::{State, state_methods};
use crate::stats::SHARE;
use crate::{
    Bounds, BuildError, Confidence, Distribution, Kind, QueryError, Question, SetSizes, Size, Sketch, Update,
};

/// Updates whose cells are asked for before the first of them is touched.
const AHEAD: usize = 32;

/// Tells what an array of cells stands for.
pub trait Rule: Clone + Copy + Debug + Send + Sync + 'static {
    /// The type of a cell.
    type Cell: Word;
    /// Which sketch it makes.
    const KIND: Kind;
    /// Which hash function of a seed chooses cells.
    const PURPOSE: u64;
    /// Names the number of cells and its range, as the error says it.
    const CELLS: (&'static str, &'static str);
    /// The most cells.
    const MAX: usize = MAX_CELLS;

    /// Takes from the 128 bits of a key's hash the 32 that choose its cell, and the mark that it leaves
    /// there.
    fn mark(hash: [u64; 2]) -> (u32, Self::Cell);
    /// Adds to a cell.
    fn add(cell: &mut Self::Cell, mark: Self::Cell, weight: u32);
    /// Adds the same cell of another array.
    fn unite(cell: &mut Self::Cell, other: Self::Cell);
    /// Describes so many cells in words.
    fn shape(n: usize) -> String;
    /// The cells that an accuracy needs.
    ///
    /// # Errors
    /// [`BuildError`] where there can't be as many.
    fn cells_for(error: f64, confidence: f64, flows: f64) -> Result<f64, BuildError>;
    /// The number of distinct keys.
    ///
    /// # Errors
    /// [`QueryError`] where the cells are too full to tell.
    fn cardinality(cells: &[Self::Cell]) -> Result<Bounds<f64>, QueryError>;
    /// Says that answers are worse than stated.
    fn is_saturated(cells: &[Self::Cell]) -> bool;

    /// Tells the keys that two arrays share from those that one has alone, given the numbers of keys of
    /// either and of both: by inclusion and exclusion, where the cells say no more.
    fn set_sizes(_: &[Self::Cell], _: &[Self::Cell], keys: [Bounds<f64>; 3]) -> SetSizes {
        let [first, second, union] = keys;
        SetSizes::between(first, second, union)
    }

    /// Writes the cells of a saved state: one after the other.
    fn write(cells: &[Self::Cell], out: &mut Encoder) {
        out.all(cells);
    }

    /// Reads so many cells as [`Rule::write`] has written them, in the version that the state has.
    ///
    /// # Errors
    /// [`StateError`] where they can't be had from the bytes.
    fn read(n: usize, d: &mut Decoder<'_>) -> Result<Vec<Self::Cell>, StateError> {
        d.all(n)
    }

    /// Counts the keys of each weight.
    ///
    /// # Errors
    /// [`QueryError`] where the cells can't tell.
    fn size_distribution(_: &[Self::Cell]) -> Result<Distribution, QueryError> {
        Err(QueryError::Unsupported { sketch: Self::KIND, question: "the distribution of flow sizes" })
    }
}

/// A sketch of one array.
#[derive(Clone, Debug)]
pub struct Array<const N: usize, R: Rule> {
    cells: Vec<R::Cell>,
    /// Cells, also while they have yet to be read.
    n: usize,
    hasher: Hasher,
    seed: u64,
    weight: u64,
    rule: PhantomData<R>,
}

impl<const N: usize, R: Rule> Array<N, R> {
    /// The most cells.
    pub const MAX: usize = R::MAX;

    /// An empty sketch of so many cells: 1 to [`Array::MAX`].
    ///
    /// # Errors
    /// [`BuildError`] where the number is out of range.
    pub fn new(cells: usize, seed: u64) -> Result<Self, BuildError> {
        empty::<R>(cells).map(|empty| Self { cells: empty, ..Self::without_cells(cells, seed) })
    }

    fn without_cells(n: usize, seed: u64) -> Self {
        let hasher = Hasher::new(seed, R::PURPOSE);
        Self { cells: Vec::new(), n, hasher, seed, weight: 0, rule: PhantomData }
    }

    /// The sketch for a size: as many cells as fit, or as the accuracy needs.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        Self::new(cells_for::<R>(size)?, seed)
    }
}

/// Unites the cells of two arrays.
fn unite<R: Rule>(cells: &mut [R::Cell], others: &[R::Cell]) {
    cells.iter_mut().zip(others).for_each(|(a, b)| R::unite(a, *b));
}

/// [`Sketch::set_sizes`] from the cells of both.
fn set_sizes<R: Rule>(cells: &[R::Cell], others: &[R::Cell]) -> Result<SetSizes, QueryError> {
    let mut all = cells.to_vec();
    unite::<R>(&mut all, others);
    let keys = [R::cardinality(cells)?, R::cardinality(others)?, R::cardinality(&all)?];
    Ok(R::set_sizes(cells, others, keys))
}

/// The cells of an array that are asked for, if there can be as many.
fn empty<R: Rule>(cells: usize) -> Result<Vec<R::Cell>, BuildError> {
    if cells == 0 || cells > R::MAX {
        let (what, range) = R::CELLS;
        return Err(BuildError::Parameter { kind: R::KIND, what, range });
    }
    need(R::KIND, cells * size_of::<R::Cell>())?;
    Ok(vec![R::Cell::default(); cells])
}

/// The number of cells for a size.
fn cells_for<R: Rule>(size: Size) -> Result<usize, BuildError> {
    let least = size_of::<R::Cell>();
    match size {
        Size::Memory(budget) if budget < least => Err(BuildError::TooSmall { kind: R::KIND, least, budget }),
        Size::Memory(budget) => Ok((budget / least).min(R::MAX)),
        Size::Accuracy { error, confidence, flows } => {
            cells(R::KIND, R::cells_for(error, confidence, flows as f64)?)
        }
    }
}

impl<const N: usize, R: Rule> State<N> for Array<N, R> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let n = d.u32()? as usize;
        if n == 0 || n > R::MAX {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self::without_cells(n, seed))
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.n as u32);
    }

    fn read_tables(&mut self, d: &mut Decoder<'_>) -> Result<(), StateError> {
        self.cells = R::read(self.n, d)?;
        Ok(())
    }

    fn write_tables(&self, out: &mut Encoder) {
        R::write(&self.cells, out);
    }

    fn clear_tables(&mut self) {
        self.cells.fill(R::Cell::default());
    }

    fn unite_tables(&mut self, other: &Self) {
        unite::<R>(&mut self.cells, &other.cells);
    }

    fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
    }
}

impl<const N: usize, R: Rule> Sketch<N> for Array<N, R> {
    state_methods!();

    fn kind(&self) -> Kind {
        R::KIND
    }

    fn shape(&self) -> String {
        R::shape(self.cells.len())
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.cells.as_slice())
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let (piece, mark) = R::mark(self.hasher.hash(key).0);
        let place = below(piece, self.cells.len());
        if let Some(cell) = self.cells.get_mut(place) {
            R::add(cell, mark, u32::try_from(weight).unwrap_or(u32::MAX));
        }
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        let (hasher, cells) = (self.hasher, self.cells.as_mut_slice());
        for some in updates.chunks(AHEAD) {
            let mut marks = [(0, R::Cell::default()); AHEAD];
            for (mark, u) in marks.iter_mut().zip(some) {
                let (piece, what) = R::mark(hasher.hash(&u.key).0);
                *mark = (below(piece, cells.len()), what);
                prefetch(cells, mark.0);
            }
            // At most 32 weights of 32 bits.
            self.weight = self.weight.saturating_add(some.iter().map(|u| u64::from(u.weight)).sum());
            for ((place, what), u) in marks.iter().zip(some) {
                if let Some(cell) = cells.get_mut(*place) {
                    R::add(cell, *what, u.weight);
                }
            }
        }
    }

    fn update_cost(&self) -> f64 {
        0.6
    }

    fn merges_exactly(&self) -> bool {
        true
    }

    fn size_distribution(&self) -> Result<Distribution, QueryError> {
        R::size_distribution(&self.cells)
    }

    /// Lower and upper hold in about 95 % of cases.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        R::cardinality(&self.cells)
    }

    fn set_sizes(&self, other: &dyn Sketch<N>) -> Result<SetSizes, QueryError> {
        set_sizes::<R>(&self.cells, &same(self, other)?.cells)
    }

    fn confidence(&self, question: Question) -> Confidence {
        // The distribution is an estimate.
        if question == Question::Distribution { Confidence::None } else { Confidence::Share(SHARE) }
    }

    fn is_saturated(&self) -> bool {
        R::is_saturated(&self.cells)
    }
}
