//! Reading and writing big-endian fields at an offset, without a panic: what lies outside reads as 0 and is
//! not written. Views check lengths once, in `new_checked`; these keep every accessor total.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::field;

#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    field::array(bytes, at).unwrap_or([0; N])
}

#[inline]
pub(crate) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// The bytes from `at` on; empty if that is beyond the end.
#[inline]
pub(crate) fn from(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or_default()
}

/// The bytes from `start` to `end`, as far as they are there.
#[inline]
pub(crate) fn between(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    bytes.get(start..end.min(bytes.len())).unwrap_or_default()
}

/// Writes `value` at `at` if it fits there.
#[inline]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    field::put(bytes, at, value);
}

/// A header field of fixed size.
pub(crate) trait Field {
    fn read(bytes: &[u8], at: usize) -> Self;
    fn write(self, bytes: &mut [u8], at: usize);
}

macro_rules! integer_field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            #[inline]
            fn read(bytes: &[u8], at: usize) -> Self {
                Self::from_be_bytes(array(bytes, at))
            }

            #[inline]
            fn write(self, bytes: &mut [u8], at: usize) {
                put(bytes, at, &self.to_be_bytes());
            }
        }
    )*};
}

integer_field!(u8, u16, u32);

impl<const N: usize> Field for [u8; N] {
    #[inline]
    fn read(bytes: &[u8], at: usize) -> Self {
        array(bytes, at)
    }

    #[inline]
    fn write(self, bytes: &mut [u8], at: usize) {
        put(bytes, at, &self);
    }
}

impl Field for Ipv4Addr {
    #[inline]
    fn read(bytes: &[u8], at: usize) -> Self {
        Self::from(array::<4>(bytes, at))
    }

    #[inline]
    fn write(self, bytes: &mut [u8], at: usize) {
        put(bytes, at, &self.octets());
    }
}

impl Field for Ipv6Addr {
    #[inline]
    fn read(bytes: &[u8], at: usize) -> Self {
        Self::from(array::<16>(bytes, at))
    }

    #[inline]
    fn write(self, bytes: &mut [u8], at: usize) {
        put(bytes, at, &self.octets());
    }
}
