//! TCP options (RFC 9293 §3.1; window scale and timestamps: RFC 7323; SACK: RFC 2018).

use super::HeaderError;
use super::ipv4::next_option;
use crate::bytes::{be16, be32, byte};

/// One TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Padding between options.
    NoOperation,
    /// Largest segment that the sender takes, in bytes.
    MaxSegmentSize(u16),
    /// The sender's windows are to be shifted left by so many bits.
    WindowScale(u8),
    /// The sender understands SACK.
    SackPermitted,
    /// Ranges that have arrived beyond the acknowledgement number.
    Sack(SackBlocks<'a>),
    /// Timestamps.
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The newest value got from the other side; means something if ACK is set.
        echo: u32,
    },
    /// Another kind, or one of the above with a length that it can't have.
    Unknown {
        /// Its number.
        kind: u8,
        /// The bytes that follow the length byte.
        data: &'a [u8],
    },
}

/// The options of a TCP header, up to the end-of-options mark. A length that can't be is an error and the
/// last item.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a>(&'a [u8]);

impl<'a> TcpOptions<'a> {
    /// The options in `bytes`: what lies between the fixed header and the payload.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, HeaderError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let option = next_option(&mut self.0)?.map(|(kind, data)| match (kind, data.len()) {
            (1, _) => TcpOption::NoOperation,
            (2, 2) => TcpOption::MaxSegmentSize(be16(data, 0)),
            (3, 1) => TcpOption::WindowScale(byte(data, 0)),
            (4, 0) => TcpOption::SackPermitted,
            (5, length) if length > 0 && length % 8 == 0 => TcpOption::Sack(SackBlocks(data)),
            (8, 8) => TcpOption::Timestamps { value: be32(data, 0), echo: be32(data, 4) },
            _ => TcpOption::Unknown { kind, data },
        });
        Some(option)
    }
}

/// The blocks of a SACK option: (first sequence number, the one after the last).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackBlocks<'a>(&'a [u8]);

impl Iterator for SackBlocks<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        let (block, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some((be32(block, 0), be32(block, 4)))
    }
}
