//! What network functions look up: data structures that know neither frames nor stages.
//!
//! [`lpm`] finds routes.

pub mod lpm;
