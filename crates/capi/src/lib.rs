//! The C interface: the embedded reframer and the sketches, with `include/slipstream.h` as their manual.
//!
//! Each function checks what it is given before it uses it, calls the library, and turns what comes back into
//! a code and a text. No panic crosses the border: one `catch_unwind` a call, so one a burst. An object that
//! a panic went through answers [`error::SLIP_E_INTERNAL`] from then on and can only be freed.
//!
//! - [`error`]: codes and texts.
//! - [`object`]: what a C program has in its hands, and how objects that were freed are told from those that
//!   live.
//! - [`config`], [`packet`], [`stats`]: what goes in and comes out, as C sees it.
//! - [`reframe`], [`sketch`]: the functions.
//!
//! There is no feature. It needs Rust 1.95 to build, and whoever links it a C compiler.

#![allow(non_camel_case_types)]
// Whoever calls these functions is a C program; what it must see to stands in the header, which is made of
// these comments.
#![allow(clippy::missing_safety_doc)]

pub mod config;
pub mod error;
pub mod object;
pub mod packet;
pub mod reframe;
pub mod sketch;
pub mod stats;
