//! What network functions look up: data structures that know neither frames nor stages.
//!
//! [`lpm`] finds routes, [`firewall`] the rule that decides about a packet.

pub mod firewall;
pub mod lpm;
