//! The compiled half of the Python package `slipstream`: what `python/slipstream/` calls, and nothing that a
//! program in Python would call itself.
//!
//! Arguments come in as numbers, text and bytes; results go out as JSON text of the same numbers that the
//! command prints, as Parquet, or as saved states. The other half gives them names, types and documentation.
//! Python's lock is released while there is work. A program is interrupted within a fraction of a second;
//! only what merges, loads or saves a sketch or a part is finished first.
//!
//! - `input`: a path, bytes, or `synth:…` as a source of packets.
//! - `analyze`, `stretch`, `reframe`, `synth`, `model`, `sketch`: one file for each part of the package.
//! - `error`: errors as exceptions that name file and byte.

#![forbid(unsafe_code)]

mod analyze;
mod error;
mod input;
mod model;
mod reframe;
mod sketch;
mod stretch;
mod synth;

use pyo3::prelude::*;

/// The module `slipstream._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CaptureError", module.py().get_type::<error::CaptureError>())?;
    module.add("StateError", module.py().get_type::<error::StateError>())?;
    module.add("PartialError", module.py().get_type::<error::PartialError>())?;
    module.add_class::<analyze::Analysis>()?;
    module.add_class::<stretch::Stretch>()?;
    module.add_class::<stretch::Builder>()?;
    module.add_class::<stretch::Packets>()?;
    module.add_function(wrap_pyfunction!(stretch::spans, module)?)?;
    module.add_function(wrap_pyfunction!(stretch::stretch, module)?)?;
    module.add_class::<sketch::Sketch>()?;
    module.add_function(wrap_pyfunction!(analyze::analyze, module)?)?;
    module.add_function(wrap_pyfunction!(reframe::reframe, module)?)?;
    module.add_function(wrap_pyfunction!(reframe::reframe_settings, module)?)?;
    module.add_function(wrap_pyfunction!(synth::synth, module)?)?;
    module.add_function(wrap_pyfunction!(model::solve, module)?)?;
    Ok(())
}
