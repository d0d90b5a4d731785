//! The rule language that selects packets.
