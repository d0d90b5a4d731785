//! `slipstream.Sketch`: a sketch over keys of a length that is known only when it is made.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use slipstream_sketch::{
    Bounds, BuildError, Config, ExaLogLogHip, Kind, MergeError, QueryError, Size, Sketch as Sketching,
    StateError as Unreadable, Update, Want, build, by_key_length, load, peek, quantile, save,
};

use crate::error::StateError;
use crate::input::{aside, in_turn};

/// An answer with the interval in which the truth lies.
type Answer<T> = (T, T, T);
/// A key with its size.
type Keyed<T> = (Vec<u8>, Answer<T>);

/// A sketch over keys of some length.
trait Any: Send + Sync {
    fn kind(&self) -> &'static str;
    fn key_len(&self) -> usize;
    fn seed(&self) -> u64;
    fn shape(&self) -> String;
    fn weight(&self) -> u64;
    fn memory_bytes(&self) -> usize;
    fn is_saturated(&self) -> bool;
    fn clear(&mut self);
    /// Adds so much to each of the keys, which stand one behind the other.
    fn update(&mut self, keys: &[u8], weight: &dyn Fn(usize) -> u64);
    fn save(&self) -> Vec<u8>;
    fn copy(&self) -> Box<dyn Any>;
    fn merge(&mut self, state: &[u8]) -> Result<(), Failed>;
    fn flow_size(&self, key: &[u8]) -> Result<Answer<u64>, Failed>;
    fn heavy_hitters(&self, want: Want) -> Result<Vec<Keyed<u64>>, Failed>;
    fn heavy_changes(&self, earlier: &[u8], want: Want) -> Result<Vec<Keyed<i64>>, Failed>;
    fn superspreaders(&self, source_len: usize, want: Want) -> Result<Vec<Keyed<u64>>, Failed>;
    fn size_distribution(&self) -> Result<Vec<(u64, f64)>, Failed>;
    fn cardinality(&self) -> Result<Answer<f64>, Failed>;
    fn set_sizes(&self, other: &[u8]) -> Result<[Answer<f64>; 4], Failed>;
    fn quantile(&self, q: f64) -> Result<Option<Answer<f64>>, Failed>;
    fn unlisted(&self) -> Option<u64>;
    fn entropy(&self) -> Result<Answer<f64>, Failed>;
    fn second_moment(&self) -> Result<Answer<f64>, Failed>;
}

/// Why a sketch did not do it.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    State(#[from] Unreadable),
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("a key of {0} bytes, where they have {1}")]
    KeyLen(usize, usize),
    #[error("a source of {0} bytes, where keys have {1}; it may have 1 to {most}", most = .1 - 1)]
    SourceLen(usize, usize),
    #[error("a quantile of {0}: it must lie between 0 and 1")]
    Quantile(f64),
}

impl From<Failed> for PyErr {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::State(error) => StateError::new_err(error.to_string()),
            other => PyValueError::new_err(other.to_string()),
        }
    }
}

fn bounds<T>(b: Bounds<T>) -> Answer<T> {
    (b.estimate, b.lower, b.upper)
}

struct Of<const N: usize>(Box<dyn Sketching<N>>);

impl<const N: usize> Any for Of<N> {
    fn kind(&self) -> &'static str {
        self.0.kind().name()
    }

    fn key_len(&self) -> usize {
        N
    }

    fn seed(&self) -> u64 {
        self.0.seed()
    }

    fn shape(&self) -> String {
        self.0.shape()
    }

    fn weight(&self) -> u64 {
        self.0.weight()
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    fn is_saturated(&self) -> bool {
        self.0.is_saturated()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn update(&mut self, keys: &[u8], weight: &dyn Fn(usize) -> u64) {
        const TOGETHER: usize = 2048;
        let mut updates = Vec::with_capacity(TOGETHER);
        for (i, key) in keys.as_chunks::<N>().0.iter().enumerate() {
            match u32::try_from(weight(i)) {
                Ok(weight) => updates.push(Update { key: *key, weight }),
                Err(_) => {
                    self.0.update_all(&updates);
                    updates.clear();
                    self.0.update(key, weight(i));
                }
            }
            if updates.len() == TOGETHER {
                self.0.update_all(&updates);
                updates.clear();
            }
        }
        self.0.update_all(&updates);
    }

    fn save(&self) -> Vec<u8> {
        save(self.0.as_ref())
    }

    fn copy(&self) -> Box<dyn Any> {
        Box::new(Self(self.0.boxed_clone()))
    }

    fn merge(&mut self, state: &[u8]) -> Result<(), Failed> {
        Ok(self.0.merge(load::<N>(state)?.as_ref())?)
    }

    fn flow_size(&self, key: &[u8]) -> Result<Answer<u64>, Failed> {
        let key = <&[u8; N]>::try_from(key).map_err(|_| Failed::KeyLen(key.len(), N))?;
        Ok(bounds(self.0.flow_size(key)?))
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Keyed<u64>>, Failed> {
        let flows = self.0.heavy_hitters(want)?;
        Ok(flows.into_iter().map(|f| (f.key.to_vec(), bounds(f.size))).collect())
    }

    fn heavy_changes(&self, earlier: &[u8], want: Want) -> Result<Vec<Keyed<i64>>, Failed> {
        let changes = self.0.heavy_changes(load::<N>(earlier)?.as_ref(), want)?;
        Ok(changes.into_iter().map(|c| (c.key.to_vec(), bounds(c.change))).collect())
    }

    fn superspreaders(&self, source_len: usize, want: Want) -> Result<Vec<Keyed<u64>>, Failed> {
        if !(1..N).contains(&source_len) {
            return Err(Failed::SourceLen(source_len, N));
        }
        let sources = self.0.superspreaders(source_len, want)?;
        let source = |key: [u8; N]| key.iter().take(source_len).copied().collect();
        Ok(sources.into_iter().map(|f| (source(f.key), bounds(f.size))).collect())
    }

    fn size_distribution(&self) -> Result<Vec<(u64, f64)>, Failed> {
        Ok(self.0.size_distribution()?)
    }

    fn cardinality(&self) -> Result<Answer<f64>, Failed> {
        Ok(bounds(self.0.cardinality()?))
    }

    fn set_sizes(&self, other: &[u8]) -> Result<[Answer<f64>; 4], Failed> {
        let sizes = self.0.set_sizes(load::<N>(other)?.as_ref())?;
        Ok([sizes.union, sizes.intersection, sizes.only_first, sizes.only_second].map(bounds))
    }

    fn quantile(&self, q: f64) -> Result<Option<Answer<f64>>, Failed> {
        if !(0.0..=1.0).contains(&q) {
            return Err(Failed::Quantile(q));
        }
        Ok(quantile(&self.0.value_ranges()?, q).map(bounds))
    }

    fn unlisted(&self) -> Option<u64> {
        self.0.unlisted()
    }

    fn entropy(&self) -> Result<Answer<f64>, Failed> {
        Ok(bounds(self.0.entropy()?))
    }

    fn second_moment(&self) -> Result<Answer<f64>, Failed> {
        Ok(bounds(self.0.second_moment()?))
    }
}

/// Keys have a length for which no sketch is compiled.
fn no_key(len: usize) -> String {
    format!("keys of {len} bytes: they may have 4, 8, 13, 16, 32 or 37")
}

/// `below`: of exaloglog-hip, the events that a register keeps below its highest one.
fn make<const N: usize>(config: &Config, below: Option<u32>) -> PyResult<Box<dyn Any>> {
    let sketch: Result<Box<dyn Sketching<N>>, BuildError> = match (config.kind, below) {
        (Kind::ExaLogLogHip, Some(below)) => {
            ExaLogLogHip::<N>::sized_below(config.size, below, config.seed).map(|s| Box::new(s) as _)
        }
        (kind, Some(_)) => {
            return Err(PyValueError::new_err(format!("{kind}: below is of exaloglog-hip alone")));
        }
        (_, None) => build::<N>(config),
    };
    let sketch = sketch.map_err(|e| match e {
        BuildError::Memory { .. } => PyMemoryError::new_err(e.to_string()),
        _ => PyValueError::new_err(e.to_string()),
    })?;
    Ok(Box::new(Of(sketch)))
}

fn read<const N: usize>(state: &[u8]) -> PyResult<Box<dyn Any>> {
    let sketch = load::<N>(state).map_err(Failed::State)?;
    Ok(Box::new(Of(sketch)))
}

/// A sketch. Threads that use it at the same time take turns.
#[pyclass(frozen, module = "slipstream._native")]
pub(crate) struct Sketch {
    shared: Arc<Mutex<Box<dyn Any>>>,
    kind: &'static str,
}

impl Sketch {
    fn of(sketch: Box<dyn Any>) -> Self {
        let kind = sketch.kind();
        Self { shared: Arc::new(Mutex::new(sketch)), kind }
    }

    /// Does `work` on it, once it is this thread's turn.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut dyn Any) -> R + Send) -> R {
        in_turn(py, &self.shared, |sketch| work(sketch.as_mut()))
    }

    /// The same of what may take seconds, on a thread of its own: the user can interrupt whoever waits. The
    /// work then goes on to its end, and whoever uses the sketch meanwhile waits for that.
    fn ask<R: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn Any) -> Result<R, Failed> + Send + 'static,
    ) -> PyResult<R> {
        let shared = Arc::clone(&self.shared);
        let asked = aside(py, move || work(shared.lock().unwrap_or_else(PoisonError::into_inner).as_mut()))?;
        Ok(asked?)
    }
}

#[pymethods]
impl Sketch {
    #[new]
    #[pyo3(signature = (kind, key_len, *, memory, accuracy, seed, keep, source_len, below))]
    #[allow(clippy::too_many_arguments, reason = "settings, which Python names")]
    fn new(
        kind: &str,
        key_len: usize,
        memory: usize,
        accuracy: Option<(f64, f64, u64)>,
        seed: u64,
        keep: usize,
        source_len: usize,
        below: Option<u32>,
    ) -> PyResult<Self> {
        let found = Kind::from_name(kind).ok_or_else(|| {
            let all = Kind::ALL.map(Kind::name).join(", ");
            PyValueError::new_err(format!("there is no sketch {kind:?}; there are {all}"))
        })?;
        let size = match accuracy {
            Some((error, confidence, flows)) => Size::Accuracy { error, confidence, flows },
            None => Size::Memory(memory),
        };
        let config = Config { kind: found, size, seed, keep, source_len };
        Ok(Self::of(by_key_length!(
            key_len,
            make(&config, below),
            other => Err(PyValueError::new_err(no_key(other)))
        )?))
    }

    /// A saved state.
    #[staticmethod]
    fn load(py: Python<'_>, state: PyBackedBytes) -> PyResult<Self> {
        py.detach(|| {
            let (_, len) = peek(&state).map_err(Failed::State)?;
            let no_state = |len| StateError::new_err(no_key(len));
            Ok(Self::of(by_key_length!(len, read(&state), other => Err(no_state(other)))?))
        })
    }

    fn save<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.with(py, |sketch| sketch.save()))
    }

    fn copy(&self, py: Python<'_>) -> Self {
        Self::of(self.with(py, |sketch| sketch.copy()))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.kind
    }

    #[getter]
    fn key_len(&self, py: Python<'_>) -> usize {
        self.with(py, |sketch| sketch.key_len())
    }

    #[getter]
    fn seed(&self, py: Python<'_>) -> u64 {
        self.with(py, |sketch| sketch.seed())
    }

    #[getter]
    fn shape(&self, py: Python<'_>) -> String {
        self.with(py, |sketch| sketch.shape())
    }

    #[getter]
    fn weight(&self, py: Python<'_>) -> u64 {
        self.with(py, |sketch| sketch.weight())
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> usize {
        self.with(py, |sketch| sketch.memory_bytes())
    }

    #[getter]
    fn saturated(&self, py: Python<'_>) -> bool {
        self.with(py, |sketch| sketch.is_saturated())
    }

    fn clear(&self, py: Python<'_>) {
        self.with(py, |sketch| sketch.clear());
    }

    /// Adds to keys, which stand one behind the other: the same to all, or to each its own.
    fn update(
        &self,
        py: Python<'_>,
        keys: PyBackedBytes,
        weight: u64,
        weights: Option<Vec<u64>>,
    ) -> PyResult<()> {
        /// Keys between two looks whether the user has interrupted the program.
        const AT_ONCE: usize = 1 << 18;
        let len = self.with(py, |sketch| sketch.key_len());
        if !keys.len().is_multiple_of(len) {
            return Err(Failed::KeyLen(keys.len(), len).into());
        }
        let n = keys.len() / len;
        if let Some(weights) = weights.as_ref().filter(|w| w.len() != n) {
            return Err(PyValueError::new_err(format!("{n} keys, and {} weights", weights.len())));
        }
        for (first, keys) in (0..).step_by(AT_ONCE).zip(keys.chunks(AT_ONCE * len)) {
            py.check_signals()?;
            let own = |i: usize| weights.as_ref().and_then(|weights| weights.get(first + i).copied());
            self.with(py, |sketch| sketch.update(keys, &|i| own(i).unwrap_or(weight)));
        }
        Ok(())
    }

    fn merge(&self, py: Python<'_>, state: PyBackedBytes) -> PyResult<()> {
        Ok(self.with(py, |sketch| sketch.merge(&state))?)
    }

    fn flow_size(&self, py: Python<'_>, key: PyBackedBytes) -> PyResult<Answer<u64>> {
        // This kind finds all its flows for the size of one.
        if self.kind == Kind::FlowRadar.name() {
            return self.ask(py, move |sketch| sketch.flow_size(&key));
        }
        Ok(self.with(py, |sketch| sketch.flow_size(&key))?)
    }

    fn heavy_hitters(&self, py: Python<'_>, threshold: u64, top: usize) -> PyResult<Vec<Keyed<u64>>> {
        self.ask(py, move |sketch| sketch.heavy_hitters(Want { threshold, top }))
    }

    fn heavy_changes(
        &self,
        py: Python<'_>,
        earlier: PyBackedBytes,
        threshold: u64,
        top: usize,
    ) -> PyResult<Vec<Keyed<i64>>> {
        self.ask(py, move |sketch| sketch.heavy_changes(&earlier, Want { threshold, top }))
    }

    fn superspreaders(
        &self,
        py: Python<'_>,
        source_len: usize,
        threshold: u64,
        top: usize,
    ) -> PyResult<Vec<Keyed<u64>>> {
        self.ask(py, move |sketch| sketch.superspreaders(source_len, Want { threshold, top }))
    }

    fn size_distribution(&self, py: Python<'_>) -> PyResult<Vec<(u64, f64)>> {
        self.ask(py, |sketch| sketch.size_distribution())
    }

    fn cardinality(&self, py: Python<'_>) -> PyResult<Answer<f64>> {
        self.ask(py, |sketch| sketch.cardinality())
    }

    /// Keys of either, of both, of this one alone, of the other alone.
    fn set_sizes(&self, py: Python<'_>, other: PyBackedBytes) -> PyResult<[Answer<f64>; 4]> {
        self.ask(py, move |sketch| sketch.set_sizes(&other))
    }

    fn quantile(&self, py: Python<'_>, q: f64) -> PyResult<Option<Answer<f64>>> {
        Ok(self.with(py, |sketch| sketch.quantile(q))?)
    }

    #[getter]
    fn unlisted(&self, py: Python<'_>) -> Option<u64> {
        self.with(py, |sketch| sketch.unlisted())
    }

    fn entropy(&self, py: Python<'_>) -> PyResult<Answer<f64>> {
        self.ask(py, |sketch| sketch.entropy())
    }

    fn second_moment(&self, py: Python<'_>) -> PyResult<Answer<f64>> {
        self.ask(py, |sketch| sketch.second_moment())
    }
}
