//! Big-endian fields of packets at an offset, without a panic: what lies outside reads as `None` and is not
//! written.

/// Two bytes at `at`.
#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u16::from_be_bytes(*b))
}

/// Four bytes at `at`.
#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u32::from_be_bytes(*b))
}

/// Sixteen bytes at `at`: an IPv6 address.
#[inline]
pub(super) fn be128(bytes: &[u8], at: usize) -> Option<u128> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u128::from_be_bytes(*b))
}

/// Writes `value` at `at` if the whole of it fits there, and says whether it did.
#[inline]
pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> bool {
    match bytes.get_mut(at..).and_then(|rest| rest.get_mut(..value.len())) {
        Some(place) => {
            place.copy_from_slice(value);
            true
        }
        None => false,
    }
}
