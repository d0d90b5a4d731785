//! Slice, a function, splice: the same as the function alone.

mod attacks;
mod chaos;
mod chaotic;
mod edges;
mod hidden;
mod packets;
mod pipelines;
mod rewrite;
mod same;
mod usual;
