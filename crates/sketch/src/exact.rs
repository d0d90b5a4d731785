//! The exact table: every key with its weight. The baseline that a sketch has to beat (Alipourfard, Moshref
//! and Yu, HotNets 2015, find that it often doesn't).

use hashbrown::HashTable;

use crate::hash::Hasher;
use crate::order;
use crate::serial::{Decoder, Encoder, StateError};
use crate::sketch::{changes_between, distribution_of, entropy_of, same, second_moment_of, select, spreads};
use crate::state::{State, state_methods};
use crate::{
    Bounds, Change, Confidence, Distribution, Flow, Kind, MergeError, QueryError, Question, Sketch, Update,
    Want,
};

/// Every key with its weight.
#[derive(Clone, Debug)]
pub struct Exact<const N: usize> {
    table: HashTable<([u8; N], u64)>,
    hasher: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> Exact<N> {
    /// An empty table.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { table: HashTable::new(), hasher: Hasher::new(seed, 0x65_78), seed, weight: 0 }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Says that there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The weight of a key, 0 where it is not there.
    #[must_use]
    pub fn get(&self, key: &[u8; N]) -> u64 {
        self.table.find(self.hasher.hash64(key), |e| e.0 == *key).map_or(0, |e| e.1)
    }

    /// All keys with their weights, in no order.
    pub fn iter(&self) -> impl Iterator<Item = ([u8; N], u64)> + '_ {
        self.table.iter().copied()
    }

    #[inline(always)]
    fn add(&mut self, key: &[u8; N], weight: u64) {
        let hasher = self.hasher;
        self.weight = self.weight.saturating_add(weight);
        let hash = hasher.hash64(key);
        // Not by `entry`: a full table would grow even for a key that it has, so that its memory would depend
        // on the order of keys.
        match self.table.find_mut(hash, |e| e.0 == *key) {
            Some(entry) => entry.1 = entry.1.saturating_add(weight),
            None => {
                self.table.insert_unique(hash, (*key, weight), |e| hasher.hash64(&e.0));
            }
        }
    }

    fn flows(&self) -> Vec<Flow<N>> {
        let mut flows = Vec::with_capacity(self.len());
        for (key, size) in &self.table {
            flows.push(Flow { key: *key, size: Bounds::exact(*size) });
        }
        flows
    }

    /// All keys with their weights, in the order of keys.
    fn sorted(&self) -> Vec<Flow<N>> {
        let mut flows = self.flows();
        order::by_key(&mut flows, |f| &f.key);
        flows
    }

    fn sizes(&self) -> Vec<u64> {
        let mut sizes = Vec::with_capacity(self.len());
        for (_, size) in &self.table {
            sizes.push(*size);
        }
        sizes
    }
}

impl<const N: usize> State<N> for Exact<N> {
    fn read_parameters(seed: u64, _: &mut Decoder<'_>) -> Result<Self, StateError> {
        Ok(Self::new(seed))
    }

    fn write_parameters(&self, _: &mut Encoder) {}

    fn read_tables(&mut self, d: &mut Decoder<'_>) -> Result<(), StateError> {
        let entries = d.entries::<N, 1>()?;
        let n = entries.len();
        for (key, [size]) in &entries {
            self.update(key, *size);
        }
        if self.len() == n { Ok(()) } else { Err(StateError::Damaged("it has a key twice")) }
    }

    fn write_tables(&self, out: &mut Encoder) {
        out.entries(self.iter().map(|(key, size)| (key, [size])));
    }

    fn clear_tables(&mut self) {
        self.table.clear();
    }

    fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
    }

    fn unite_tables(&mut self, other: &Self) {
        for (key, size) in &other.table {
            self.update(key, *size);
        }
    }
}

impl<const N: usize> Sketch<N> for Exact<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::Exact
    }

    fn shape(&self) -> String {
        "a table of all keys".to_owned()
    }

    fn memory_bytes(&self) -> usize {
        self.table.allocation_size()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.add(key, weight);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        updates.iter().for_each(|u| self.add(&u.key, u64::from(u.weight)));
    }

    fn update_cost(&self) -> f64 {
        3.0
    }

    fn merges_exactly(&self) -> bool {
        true
    }

    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        Ok(Bounds::exact(self.get(key)))
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        Ok(select(self.flows(), want))
    }

    fn confidence(&self, _: Question) -> Confidence {
        Confidence::Certain
    }

    fn least_change(&self, earlier: &dyn Sketch<N>) -> Result<Option<u64>, MergeError> {
        same(self, earlier).map(|_| Some(1))
    }

    fn unlisted(&self) -> Option<u64> {
        Some(0)
    }

    fn heavy_changes(&self, earlier: &dyn Sketch<N>, want: Want) -> Result<Vec<Change<N>>, QueryError> {
        let (earlier, later) = (same(self, earlier)?.sorted(), self.sorted());
        Ok(changes_between((&earlier, &|_| 0), (&later, &|_| 0), want))
    }

    fn superspreaders(&self, source_len: usize, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        let mut keys = Vec::with_capacity(self.len());
        for (key, _) in &self.table {
            keys.push(*key);
        }
        Ok(spreads(keys, 0, source_len, want))
    }

    fn size_distribution(&self) -> Result<Distribution, QueryError> {
        Ok(distribution_of(self.sizes()))
    }

    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        Ok(Bounds::exact(self.len() as f64))
    }

    fn entropy(&self) -> Result<Bounds<f64>, QueryError> {
        Ok(Bounds::exact(entropy_of(self.sizes())))
    }

    fn second_moment(&self) -> Result<Bounds<f64>, QueryError> {
        Ok(Bounds::exact(second_moment_of(&self.sizes())))
    }
}
