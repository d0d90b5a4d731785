//! Big-endian fields of a packet at an offset in bytes, without a panic: one that doesn't lie in the packet
//! as a whole reads as `None`, and is not written.
//!
//! ```
//! use slipstream_wire::field::{be16, put};
//!
//! let mut header = [0x45, 0, 0, 40];
//! assert_eq!((be16(&header, 2), be16(&header, 3)), (Some(40), None));
//! assert!(put(&mut header, 2, &1500_u16.to_be_bytes()) && !put(&mut header, 3, &[0; 2]));
//! assert_eq!(be16(&header, 2), Some(1500));
//! ```

/// The `N` bytes at `at`.
#[inline]
#[must_use]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Two bytes at `at`.
#[inline]
#[must_use]
pub fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// Four bytes at `at`.
#[inline]
#[must_use]
pub fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Eight bytes at `at`.
#[inline]
#[must_use]
pub fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Sixteen bytes at `at`: an IPv6 address.
#[inline]
#[must_use]
pub fn be128(bytes: &[u8], at: usize) -> Option<u128> {
    array(bytes, at).map(u128::from_be_bytes)
}

/// Writes `value` at `at` if the whole of it fits there, and says whether it did.
#[inline]
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> bool {
    match bytes.get_mut(at..).and_then(|rest| rest.get_mut(..value.len())) {
        Some(place) => {
            place.copy_from_slice(value);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_in_the_packet_as_a_whole_or_are_none() {
        let bytes: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
        assert_eq!((be16(&bytes, 14), be16(&bytes, 15)), (Some(0x0f10), None));
        assert_eq!((be32(&bytes, 12), be32(&bytes, 13)), (Some(0x0d0e_0f10), None));
        assert_eq!((be64(&bytes, 8), be64(&bytes, 9)), (Some(0x090a_0b0c_0d0e_0f10), None));
        assert_eq!(be128(&bytes, 0), Some(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
        for at in [1, 16, 17, usize::MAX] {
            assert_eq!(be128(&bytes, at), None, "{at}");
        }
        assert_eq!(array::<0>(&bytes, 16), Some([]));
    }

    #[test]
    fn a_field_that_does_not_fit_is_not_written() {
        let mut bytes = [1, 2, 3, 4];
        assert!(put(&mut bytes, 2, &[5, 6]));
        for at in [3, 4, 5, usize::MAX] {
            assert!(!put(&mut bytes, at, &[7, 8]), "{at}");
        }
        assert_eq!(bytes, [1, 2, 5, 6]);
    }
}
