//! Slipstream's data path: packets in, trains out.
//!
//! Read it in the order in which a packet sees it:
//!
//! 1. [`io`] brings packets in from capture files or makes them ([`io::synth`]), and writes them out.
//! 2. [`frame`], [`pool`], [`batch`]: what a packet is while it is inside.
//! 3. [`rules`]: the one language that selects packets.
//! 4. [`reframe`]: the stage that holds packets and releases them as trains.
//! 5. [`runtime`]: the loop that drives stages over a capture's own clock.

#![deny(unsafe_code)]

pub mod io;
pub mod rules;
pub mod time;
