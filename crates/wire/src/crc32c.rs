//! CRC32c (Castagnoli), the checksum of SCTP (RFC 9260 appendix A): eight bytes a step, from tables made at
//! compile time.

/// The polynomial 0x1EDC6F41, bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// State before the first byte.
pub(crate) const START: u32 = !0;

/// Entry `n` of table `k`: the state after byte `n` and then `k` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

#[expect(
    clippy::indexing_slicing,
    reason = "evaluated in the build, which an index out of bounds would fail"
)]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut n = 0;
    while n < 256 {
        let mut state = n as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 0 { state >> 1 } else { state >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][n] = state;
        n += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut n = 0;
        while n < 256 {
            let state = tables[k - 1][n];
            tables[k][n] = state >> 8 ^ tables[0][state as usize & 255];
            n += 1;
        }
        k += 1;
    }
    tables
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "a byte is always below 256")]
fn look(table: &[u32; 256], byte: u8) -> u32 {
    table[usize::from(byte)]
}

/// The state after more bytes.
pub(crate) fn update(mut state: u32, bytes: &[u8]) -> u32 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &TABLES;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in chunks {
        let [a, b, c, d] = (u32::from_le_bytes([a, b, c, d]) ^ state).to_le_bytes();
        state = look(t7, a) ^ look(t6, b) ^ look(t5, c) ^ look(t4, d);
        state ^= look(t3, e) ^ look(t2, f) ^ look(t1, g) ^ look(t0, h);
    }
    for &byte in rest {
        state = state >> 8 ^ look(t0, state as u8 ^ byte);
    }
    state
}

/// The checksum that a state stands for.
pub(crate) const fn finish(state: u32) -> u32 {
    !state
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bitwise(bytes: &[u8]) -> u32 {
        let mut state = START;
        for &byte in bytes {
            state ^= u32::from(byte);
            for _ in 0..8 {
                state = if state & 1 == 0 { state >> 1 } else { state >> 1 ^ POLYNOMIAL };
            }
        }
        !state
    }

    #[test]
    fn known_values() {
        assert_eq!(finish(update(START, b"123456789")), 0xe306_9283);
        // RFC 3720 appendix B.4.
        assert_eq!(finish(update(START, &[0; 32])), 0x8a91_36aa);
        assert_eq!(finish(update(START, &[0xff; 32])), 0x62a8_ab43);
    }

    proptest! {
        #[test]
        fn tables_equal_bit_by_bit(a: Vec<u8>, b: Vec<u8>) {
            let whole: Vec<u8> = a.iter().chain(&b).copied().collect();
            prop_assert_eq!(finish(update(update(START, &a), &b)), bitwise(&whole));
        }
    }
}
