//! Results for people: tables of plain text, numbers with units, charts as SVG, and pages of HTML that need
//! nothing else: no network, no script, no font.
//!
//! `analyze`, `model`, `recommend` and the labs draw the same charts and print the same tables. This crate
//! knows none of them, no packet and no terminal: it takes names and numbers, and gives text. [`Table`] is
//! the place to begin, then [`svg`] and [`page`](fn@page). There is no feature; it needs Rust 1.95.

#![forbid(unsafe_code)]

mod page;
pub mod svg;
mod table;
mod text;

pub use page::{PageError, STYLE, page};
pub use table::{Sheet, Table};
pub use text::{
    bit_rate, count, number, packet_rate, per_second, plural, rates, share, tick, time, visible, with_error,
};
