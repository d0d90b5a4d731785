//! Integers of either byte order, at fixed offsets.

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    /// The two bytes at `at`; 0 where `bytes` ends before: callers have checked the length.
    #[inline]
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let field = array::<2>(bytes, at);
        match self {
            Self::Little => u16::from_le_bytes(field),
            Self::Big => u16::from_be_bytes(field),
        }
    }

    /// The four bytes at `at`; 0 where `bytes` ends before: callers have checked the length.
    #[inline]
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let field = array::<4>(bytes, at);
        match self {
            Self::Little => u32::from_le_bytes(field),
            Self::Big => u32::from_be_bytes(field),
        }
    }

    /// The eight bytes at `at`, signed; 0 where `bytes` ends before: callers have checked the length.
    #[inline]
    pub(super) fn i64(self, bytes: &[u8], at: usize) -> i64 {
        let field = array::<8>(bytes, at);
        match self {
            Self::Little => i64::from_le_bytes(field),
            Self::Big => i64::from_be_bytes(field),
        }
    }
}

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}
