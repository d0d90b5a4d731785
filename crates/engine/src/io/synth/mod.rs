//! Generated traffic with a known locality.
